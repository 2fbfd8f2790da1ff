/* SPDX-License-Identifier: Apache-2.0 */
/* A run that goes on without a process that has died, and lets processes join that were started again or are new. When one dies,
 * the others form a new group (comm/regroup.h). They take the newest complete step that one of them has, and from
 * there on the run is a resumed run: the state is that of a checkpoint, in memory, which that process writes and all
 * load. Restarted processes join where an epoch begins: all leave their group, as if a process had died, and form the
 * next one with the joiners, which have no state of their own.
 *
 * A run in grains outlives a death within the step (job/survival.h), and lets processes in at the next step (arrive.c): the graph
 * stays, and the run follows its job into the next group. What is said here then happens only if some process was not in a pass,
 * a step or a gathering of metrics when another one died.
 *
 * Until its last meeting of the processes a step changes buffers only, and each process does the rest by itself. So
 * parameters and optimizer are those of the last complete step, and processes that had passed the last meeting are
 * one step ahead of the others. (In a job of CPUs and GPUs all then take the first one's parameters, which differ from their own
 * by rounding only; the step is complete without that, since all take the state of one process when they go on.) Averaged
 * parameters change in between; for them the whole state is kept. */
#include <stdio.h>
#include <string.h>

#include "data/loader_position.h"
#include "distributed/checkpoint_internal.h"
#include "distributed/comm/init_internal.h"
#include "distributed/job/agreement.h"
#include "distributed/run/elastic_internal.h"
#include "distributed/system/system.h"
#include "distributed/team/replica.h"
#include "tensor/memory_internal.h"
#include "tensor/trace.h"

trek_regroup *trek_run_elastic_regroup(const trek_run *run) { return run->elastic ? run->elastic->regroup : NULL; }

/* Checks the ranks. The result is the same in all processes. */
static trek_status check_ranks(const trek_run *run)
{
    const trek_job *job = trek_graph_job(run->graph);
    if (!run->elastic || trek_job_is_alone(job))
        return TREK_OK;
    if (trek_step_team(stepper_of(run))->sharers > 1 && !trek_step_team(stepper_of(run))->twice)
        return trek_fail(TREK_ERR_UNSUPPORTED,
                         "trainer_run: .min_processes: set together with .trainer.shard; a process that dies "
                         "takes its part of the optimizer's state with it. With .trainer.grain each part is kept twice");
    return trek_comm_settle(job->comm); /* what set-up has sent to devices */
}

static run_elastic *begin(trek_run *run)
{
    run_elastic *e = run->elastic = trek_calloc(1, sizeof *run->elastic);
    if (e) {
        e->file = -1;
        e->at.epoch = RUN_NOTHING_YET;
    }
    return e;
}

/* Returns the communicator of a job of several processes. Returns NULL without an error if it has one process. */
static trek_comm *find_group(const trek_run *run)
{
    const trek_trainer_opts *t = &run->opts.trainer;
    trek_comm *comm = t->comm;
    if (!comm || !trek_comm_retain(comm))
        comm = trek_comm_init_of_left(&(trek_comm_opts){ .deadline_s = t->deadline_s }, run->opts.min_processes);
    if (!comm || comm->control)
        return comm;
    trek_comm_free(&comm);
    if (run->opts.min_processes > 1)
        trek_fail(TREK_ERR_ARGUMENT, "trainer_run: .min_processes: %d in a job of one process; it must have more",
                  run->opts.min_processes);
    return NULL;
}

/* Makes the process able to go on without others of this group. */
static trek_status prepare(trek_run *run, trek_comm *comm)
{
    run_elastic *e = run->elastic ? run->elastic : begin(run);
    if (!e) {
        trek_comm_abort(comm, "a process has no memory to continue without others");
        return TREK_ERR_MEMORY;
    }
    if (run->opts.min_processes > comm->world) /* in all processes */
        return trek_fail(TREK_ERR_ARGUMENT, "trainer_run: .min_processes: %d; must be 1 to %d, the number of processes",
                         run->opts.min_processes, comm->world);
    e->regroup = trek_regroup_new(comm, 0);
    return e->regroup ? TREK_OK : trek_error_status();
}

/* Returns whether a process has died after all had joined, and before they knew each other's doors: those that are left join
 * anew, if their launcher says who they are. */
static bool joins_anew(const trek_run *run, const trek_comm *comm, trek_status status)
{
    bool died = (status == TREK_ERR_PEER || status == TREK_ERR_TIMEOUT) && trek_regroup_may(comm);
    return died && !run->opts.trainer.comm && trek_comm_init_hears_of_deaths();
}

trek_status trek_run_elastic_begin(trek_run *run)
{
    trek_comm *comm = NULL;
    trek_status status = TREK_OK;
    if (run->opts.min_processes <= 0)
        return trek_error_status();
    for (bool again = true; again;) {
        comm = find_group(run);
        if (!comm)
            return trek_error_status();
        status = prepare(run, comm);
        again = joins_anew(run, comm, status);
        if (again || !run->elastic)
            trek_comm_free(&comm);
        if (again)
            trek_error_clear();
    }
    if (run->elastic)
        run->elastic->comm = comm;
    run->opts.trainer.comm = comm;
    return status;
}

trek_status trek_run_elastic_start(trek_run *run, trek_status (*build)(trek_run *run))
{
    int64_t batch = 0;
    trek_status status = build(run);
    if (status == TREK_OK)
        status = check_ranks(run);
    if (status == TREK_OK)
        status = trek_run_resume(run);
    run->looked = run->graph ? trek_graph_steps(run->graph) : 0;
    if (run->resumed)
        trek_loader_position(run->train, NULL, &batch);
    if (status == TREK_OK)
        status = trek_run_elastic_keep(run, run->first_epoch, batch);
    if (!run->elastic)
        return status;
    uint64_t program = status == TREK_OK ? trek_run_program(run) : 0;
    status = status == TREK_OK && program == 0 ? trek_error_status() : status;
    if (program && run->elastic->regroup && !trek_run_outlives_in_steps(run)) /* otherwise the trainer says it */
        trek_regroup_set_program(run->elastic->regroup, program);
    /* so that no process begins, and dies, before all could go on from here */
    return trek_replica_agree(run->elastic->comm, status, "trainer_run");
}

void trek_run_elastic_end(trek_run *run, bool complete)
{
    run_elastic *e = run->elastic;
    if (!e)
        return;
    if (complete && e->regroup && run->opts.min_processes > 1) /* otherwise those who are left are never too few */
        trek_regroup_leave(e->regroup, 1);
    trek_regroup_free(&e->regroup);
    trek_comm_free(&e->comm);
    trek_run_elastic_drop(e);
    trek_run_elastic_close_file(e);
    trek_free(e);
    run->elastic = NULL;
}

/* --- going on --------------------------------------------------------------------------------------------------------- */

static int64_t samples_of(const run_elastic *e)
{
    int64_t samples = 0;
    for (int r = 0; r < e->n_ranks; r++)
        samples += e->ranks[r].rows;
    return samples;
}

/* Loads the state from the file, as from any checkpoint. */
static trek_status load_state(trek_run *run)
{
    run_elastic *e = run->elastic;
    double numbers[TREK_RUN_NUMBERS];
    char path[64];
    bool found = false;
    trek_state *read = NULL;
    snprintf(path, sizeof path, "/proc/self/fd/%d", e->file);
    trek_status status = trek_checkpoint_load_more(run->graph, run->train, path, numbers, TREK_RUN_NUMBERS, &found, &read);
    if (status == TREK_OK)
        status = trek_run_take_rest(run, read);
    trek_state_free(&read);
    if (status == TREK_OK)
        status = trek_run_elastic_give_observed(e, run);
    status = trek_replica_agree(e->comm, status, "trainer_run");
    if (status != TREK_OK)
        return status;
    run->best = numbers[TREK_RUN_BEST];
    run->since_best = (int64_t)numbers[TREK_RUN_SINCE_BEST];
    run->first_epoch = e->at.epoch;
    run->parts = e->at.parts;
    run->looked = e->at.looked;
    run->resumed = true;
    const trek_step *s = stepper_of(run);
    bool goes_on = s && trek_job_has_others(trek_graph_job(run->graph)); /* it may lose another process */
    run->before.steps = e->epoch_steps;
    run->before.ns = e->epoch_ns;
    run->before.samples = goes_on ? 0 : samples_of(e);
    run->epoch_start_ns = trek_now_ns() - e->epoch_ns;
    trek_run_elastic_drop(e); /* belongs to another graph */
    status = trek_run_elastic_keep(run, run->first_epoch, e->at.batch);
    if (!goes_on || !trek_step_averages(s))
        trek_run_elastic_close_file(e);
    return status;
}

/* Starts again where all were when the run began. */
static trek_status start_anew(trek_run *run, trek_status (*build)(trek_run *run))
{
    trek_run_elastic_drop(run->elastic);
    run->elastic->at = (run_place){ .epoch = RUN_NOTHING_YET };
    run->first_epoch = run->parts = 0;
    run->resumed = false;
    memset(&run->before, 0, sizeof run->before);
    return trek_run_elastic_start(run, build);
}

/* told: the others, who may be in a step, have heard that this process continues as a resumed run. */
static trek_status take_up(trek_run *run, bool told, void (*drop)(trek_run *run), trek_status (*build)(trek_run *run))
{
    run_elastic *e = run->elastic;
    if (run->graph)
        trek_graph_zero_grad(run->graph); /* nothing of the step that was dropped is under way any more */
    trek_error_clear();
    bool from_start = false;
    trek_status status =
        !told && trek_run_outlives_in_steps(run) ? trek_survival_tell_away(e->comm, survival_of(run)) : TREK_OK;
    if (status == TREK_OK)
        status = trek_run_elastic_agree(run, &from_start);
    if (status != TREK_OK)
        return status;
    if (run->graph && run->graph->settings.stop_agreed)
        atomic_store(&run->stop, true);
    drop(run);
    e->followed = 0;
    trek_error_clear(); /* errors of the old group's calls */
    trek_run_epoch_free(run->pending);
    run->pending = NULL;
    run->opts.trainer.comm = e->comm;
    if (from_start)
        return start_anew(run, build);
    status = build(run);
    return status == TREK_OK ? load_state(run) : status;
}

/* Names processes by their numbers in the job, because each group numbers its processes from 0. */
static void say_who(const char *who, const char *what, int world, trek_log_level level)
{
    bool many = strchr(who, ',') != NULL;
    if (who[0])
        trek_log_message(level, "trainer_run: process%s %s of the job %s %s; %d continue%s", many ? "es" : "", who,
                         many ? "are" : "is", what, world, world == 1 ? "s" : "");
}

static trek_status fail_to_go_on(const char *reason)
{
    char why[TREK_ERROR_SIZE];
    trek_status status;
    trek_error_take(&status, why);
    trek_error_clear();
    return trek_fail(status, "%s; and the run cannot continue: %.400s", reason, why);
}

/* Forms the group of the processes that are left and of those that have come. */
static trek_status regroup(trek_run *run, const char *reason)
{
    run_elastic *e = run->elastic;
    trek_error_clear();
    trek_comm *next = trek_regroup_meet(e->regroup, e->comm, run->opts.min_processes);
    if (!next)
        return fail_to_go_on(reason);
    trek_comm_free(&e->comm);
    e->comm = next;
    say_who(trek_regroup_lost(e->regroup), "lost", trek_comm_world_size(e->comm), TREK_LOG_LEVEL_WARNING);
    say_who(trek_regroup_come(e->regroup), "back", trek_comm_world_size(e->comm), TREK_LOG_LEVEL_INFO);
    return TREK_OK;
}

/* *met: the survivors of a step have met already. */
static bool may_go_on(trek_run *run, trek_status status, bool *met)
{
    run_elastic *e = run->elastic;
    *met = false;
    if (!e || !e->regroup || (status != TREK_ERR_PEER && status != TREK_ERR_TIMEOUT))
        return false;
    trek_run_elastic_follow(run);
    trek_survival *survival = survival_of(run);
    *met = survival && survival->away;
    if (*met)
        survival->away = false;
    return *met || (!(survival && survival->over) && trek_regroup_may(e->comm));
}

bool trek_run_elastic_go_on(trek_run *run, trek_status *status, void (*drop)(trek_run *run), trek_status (*build)(trek_run *run))
{
    run_elastic *e = run->elastic;
    bool goes_on = false, met;
    while (!goes_on && may_go_on(run, *status, &met)) {
        char reason[TREK_ERROR_SIZE];
        trek_status why;
        trek_error_take(&why, reason);
        *status = met ? TREK_OK : regroup(run, reason[0] ? reason : trek_status_description(*status));
        if (*status != TREK_OK && trek_regroup_left(e->regroup) > 0) { /* nobody completes the run without this process */
            trek_error_clear();
            *status = TREK_OK;
            return false;
        }
        if (*status != TREK_OK)
            return false;
        *status = take_up(run, met, drop, build);
        goes_on = *status == TREK_OK;
        if (*status == TREK_ERR_STATE)
            *status = fail_to_go_on(reason);
    }
    return goes_on;
}

/* --- those who come again ------------------------------------------------------------------------------------------------ */

static trek_status admit(trek_run *run, int64_t epoch, void (*drop)(trek_run *run), trek_status (*build)(trek_run *run))
{
    trek_status status = trek_run_elastic_keep_whole(run, epoch);
    if (status == TREK_OK)
        status = regroup(run, "a process was to join");
    return status == TREK_OK ? take_up(run, false, drop, build) : status;
}

/* When a meeting with joiners has lost a process, no further joiners are admitted in the same epoch: a group with
 * a process that cannot reach all others ends at once, and the run would never get past the epoch's beginning. */
trek_status trek_run_elastic_admit(trek_run *run, int64_t epoch, void (*drop)(trek_run *run), trek_status (*build)(trek_run *run))
{
    run_elastic *e = run->elastic;
    int64_t batch = 0;
    if (run->resumed)
        trek_loader_position(run->train, NULL, &batch);
    if (!e || batch > 0 || trek_run_outlives_in_steps(run))
        return TREK_OK;
    trek_status status = TREK_OK;
    bool closed = e->admitted == epoch + 1;
    trek_run_elastic_follow(run);
    for (int joiners = 1; status == TREK_OK && joiners > 0;) { /* joiners ask, too */
        const trek_regroup_door door = { .closed = closed, .ranks = trek_graph_job(run->graph)->world_size };
        status = trek_regroup_invite(e->regroup, e->comm, &door, &joiners);
        if (status != TREK_OK || joiners == 0)
            continue;
        e->admitted = epoch + 1;
        status = admit(run, epoch, drop, build);
        closed = trek_regroup_lost(e->regroup)[0] || !trek_regroup_come(e->regroup)[0];
    }
    return status;
}

/* Returns how many ranks this process will have, as far as it is known before its graph has been built. */
static int expected_ranks(const trek_run *run)
{
    const trek_trainer_opts *t = &run->opts.trainer;
    const char *listed = t->ranks == 0 && !t->devices ? trek_process_variable("TREK_DEVICES") : NULL;
    int ranks = 1;
    for (const char *c = listed; c && *c && ranks < TREK_MAX_RANKS; c++)
        ranks += *c == ',';
    return t->ranks > 0 ? t->ranks : ranks;
}

/* Returns what the others compare, for which a graph is made that is not kept; 0 on failure. */
static uint64_t find_program(trek_run *run, trek_status (*make)(trek_run *run), void (*drop)(trek_run *run))
{
    uint64_t program = make(run) == TREK_OK ? trek_run_program(run) : 0;
    drop(run);
    return program;
}

/* Its trainer joins the job of the others, at a step. */
static trek_status join_in_step(trek_run *run, trek_status (*build)(trek_run *run))
{
    trek_status status = build(run);
    if (status != TREK_OK)
        return status;
    const trek_job *job = trek_graph_job(run->graph);
    run->elastic->regroup = trek_survival_give_regroup(job);
    trek_run_elastic_take_group(run, job->comm);
    status = trek_run_arrive(run);
    if (status == TREK_OK)
        status = trek_run_elastic_keep(run, run->first_epoch, job->survival->place.batch);
    run->elastic->epoch_steps = run->before.steps;
    run->elastic->epoch_ns = run->before.ns;
    return status;
}

trek_status trek_run_elastic_join(trek_run *run, trek_status (*make)(trek_run *run), void (*drop)(trek_run *run),
                                  trek_status (*build)(trek_run *run))
{
    if (run->opts.min_processes == 0)
        return trek_fail(TREK_ERR_STATE, "trainer_run: TREK_JOIN is set in the environment, to join a job that is running, but "
                                         ".min_processes is 0; nobody can join without it");
    if (run->opts.trainer.comm)
        return trek_fail(TREK_ERR_STATE, "trainer_run: TREK_JOIN is set in the environment, to join a job that is running, but "
                                         ".trainer.comm is a group already");
    run_elastic *e = begin(run);
    if (!e)
        return TREK_ERR_MEMORY;
    e->at.epoch = RUN_OTHERS_STATE;
    if (trek_run_outlives_in_steps(run))
        return join_in_step(run, build);
    run->rated = true; /* by the others */
    uint64_t program = find_program(run, make, drop);
    e->regroup = program ? trek_regroup_join(program, expected_ranks(run), &e->comm) : NULL;
    if (!e->regroup)
        return trek_error_status();
    trek_comm_set_deadline(e->comm, run->opts.trainer.deadline_s);
    trek_log_message(TREK_LOG_LEVEL_INFO, "trainer_run: this process has joined the job, as process %d of %d", e->comm->rank,
                     e->comm->world);
    return take_up(run, false, drop, build);
}
