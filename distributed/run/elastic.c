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
#include <sys/stat.h>
#include <unistd.h>

#include "autograd/var_internal.h"
#include "data/loader_position.h"
#include "distributed/checkpoint_internal.h"
#include "distributed/comm/init_internal.h"
#include "distributed/comm/regroup.h"
#include "distributed/job/agreement.h"
#include "distributed/job/job_file.h"
#include "distributed/job/survival.h"
#include "distributed/pass/survivors.h"
#include "distributed/reduce/sharded.h"
#include "distributed/reduce/twice.h"
#include "distributed/run/run_internal.h"
#include "distributed/stepper.h"
#include "distributed/system/system.h"
#include "distributed/team/replica.h"
#include "graph/observe_internal.h"
#include "nn/safetensors.h"
#include "tensor/memory_internal.h"
#include "tensor/trace.h"

/* What one of this process's ranks has recorded in the epoch so far. */
typedef struct kept_scalar {
    char *name;
    bool seen, recorded, total;
    double sum, weight;
    trek_tensor *on_device;  /* NULL: none of it is on a device */
    trek_metric_mark metric; /* of trek_record_metric */
} kept_scalar;

typedef struct kept_rank {
    kept_scalar *scalars;
    int n, capacity;
    int64_t rows;
    double ms;
} kept_rank;

/* The complete step whose result a state is, or an epoch that does not exist (see below). */
typedef struct place {
    int64_t epoch, batch, steps;
    int64_t parts, looked;   /* of the run */
} place;

/* What a process says of its state when all look for the newest. */
typedef struct offer {
    place at;
    int64_t file;            /* it has the state in a file */
} offer;

enum { NOTHING_YET = -1, OTHERS_STATE = -2 }; /* OTHERS_STATE: it has joined others and has no state of them yet */

typedef struct run_elastic {
    trek_regroup *regroup;
    trek_comm *comm;         /* the current group */
    int64_t followed;        /* how many groups of the job have become it since the graph was built */
    trek_status status;      /* OK, or why the state could not be kept */
    place at;
    int64_t admitted;        /* the last epoch in which joiners were admitted, from 1 on */
    uint64_t rng_step, rng_draw;
    double numbers[TREK_RUN_NUMBERS];
    int64_t epoch_steps, epoch_ns; /* since the epoch began */
    int n_buffers, n_ranks;
    trek_tensor **buffers;   /* of rank 0 */
    kept_rank *ranks;        /* of this process */
    int file;                /* holds the whole state; -1: the graph has it */
} run_elastic;

static const trek_step *stepper_of(const trek_run *run) { return trek_graph_ranks(run->graph); }

trek_regroup *trek_run_elastic_regroup(const trek_run *run) { return run->elastic ? run->elastic->regroup : NULL; }

static trek_survival *survival_of(const trek_run *run)
{
    return trek_graph_job(run->graph)->survival;
}

/* A group of the job becomes the run's. */
static void take_group(trek_run *run, trek_comm *group)
{
    run_elastic *e = run->elastic;
    if (!trek_comm_retain(group))
        return;
    e->followed = survival_of(run)->groups;
    trek_comm_free(&e->comm);
    e->comm = run->opts.trainer.comm = group;
}

/* The last group that the job has formed in a step becomes the run's. */
static void follow_job(trek_run *run)
{
    const trek_survival *survival = survival_of(run);
    trek_comm *last = survival && survival->next ? survival->next : survival ? trek_graph_job(run->graph)->comm : NULL;
    if (last && survival->groups != run->elastic->followed)
        take_group(run, last);
}

/* --- what is kept ------------------------------------------------------------------------------------------- */

static void free_scalar(kept_scalar *s)
{
    trek_free(s->name);
    trek_tensor_release(s->on_device);
    trek_metric_mark_clear(&s->metric);
}

static void drop_kept(run_elastic *e)
{
    for (int k = 0; k < e->n_buffers; k++)
        trek_tensor_release(e->buffers[k]);
    for (int r = 0; r < e->n_ranks; r++) {
        for (int k = 0; k < e->ranks[r].n; k++)
            free_scalar(&e->ranks[r].scalars[k]);
        trek_free(e->ranks[r].scalars);
    }
    trek_free(e->buffers);
    trek_free(e->ranks);
    e->buffers = NULL;
    e->ranks = NULL;
    e->n_buffers = e->n_ranks = 0;
}

static trek_status make_room(run_elastic *e, const trek_step *s)
{
    const trek_team *team = trek_step_team(s);
    const trek_replica *model = team->replicas[0].model;
    e->ranks = trek_calloc((size_t)team->local_ranks, sizeof *e->ranks);
    e->n_ranks = e->ranks ? team->local_ranks : 0;
    e->buffers = trek_calloc((size_t)model->n_buffers + 1, sizeof *e->buffers);
    if (!e->ranks || !e->buffers)
        return TREK_ERR_MEMORY;
    for (; e->n_buffers < model->n_buffers; e->n_buffers++)
        if (!(e->buffers[e->n_buffers] = trek_tensor_clone(model->buffers[e->n_buffers]->data)))
            return trek_error_status();
    return TREK_OK;
}

static trek_status keep_buffers(run_elastic *e, const trek_step *s)
{
    trek_status status = TREK_OK;
    for (int k = 0; k < e->n_buffers && status == TREK_OK; k++)
        status = trek_tensor_copy_from(e->buffers[k], trek_step_team(s)->replicas[0].model->buffers[k]->data);
    return status;
}

/* Keeps scalars. Those of a graph have a fixed order, and none is removed. */
static trek_status keep_scalars(kept_rank *kept, const trek_graph *graph)
{
    trek_status status = trek_array_grow(&kept->scalars, &kept->capacity, graph->n_observations, sizeof *kept->scalars);
    for (int k = 0; k < graph->n_observations && status == TREK_OK; k++) {
        const trek_observation *o = &graph->observations[k];
        kept_scalar *to = &kept->scalars[k];
        if (k == kept->n) {
            *to = (kept_scalar){ .name = trek_strdup(o->name) };
            if (!to->name)
                return trek_error_status();
            kept->n++;
        }
        trek_tensor_release(to->on_device);
        *to = (kept_scalar){ to->name, o->seen, o->recorded, o->total, o->sum, o->weight,
                             o->on_device ? trek_tensor_retain(o->on_device) : NULL, to->metric };
        status = trek_metric_mark_set(&to->metric, o->metric);
    }
    return status;
}

static trek_status keep_observed(run_elastic *e, const trek_step *s)
{
    trek_status status = TREK_OK;
    for (int r = 0; r < e->n_ranks && status == TREK_OK; r++) {
        e->ranks[r].rows = trek_step_team(s)->replicas[r].measured_rows;
        e->ranks[r].ms = trek_step_team(s)->replicas[r].measured_ms;
        status = keep_scalars(&e->ranks[r], trek_step_team(s)->replicas[r].graph);
    }
    return status;
}

static void forget_observed(run_elastic *e)
{
    for (int r = 0; r < e->n_ranks; r++) {
        for (int k = 0; k < e->ranks[r].n; k++)
            e->ranks[r].scalars[k].seen = false;
        e->ranks[r].rows = 0;
        e->ranks[r].ms = 0;
    }
}

static trek_status give_metric(const kept_scalar *kept, trek_graph *graph)
{
    trek_metric *from = trek_metric_mark_make(&kept->metric);
    trek_metric *to = from ? trek_observation_metric(graph, kept->name, &from->form) : NULL;
    trek_status status = to ? trek_metric_merge(to, from) : trek_error_status();
    trek_metric_free(&from);
    return status;
}

/* Gives what was recorded to the graph that has been rebuilt. */
static trek_status give_observed(run_elastic *e, trek_run *run)
{
    trek_step *s = trek_graph_ranks(run->graph);
    trek_status status = TREK_OK;
    for (int r = 0; r < e->n_ranks && status == TREK_OK; r++) {
        kept_rank *kept = &e->ranks[r];
        for (int k = 0; k < kept->n && status == TREK_OK; k++) {
            kept_scalar *o = &kept->scalars[k];
            if (!o->seen)
                continue;
            double more = o->on_device ? trek_tensor_item(o->on_device) : 0;
            status = o->metric.metric ? give_metric(o, run->graph)
                                      : trek_observation_add(run->graph, o->name, o->total, o->sum + more, o->weight);
            if (status == TREK_OK)
                trek_observation_find(run->graph, o->name)->recorded = o->recorded;
        }
        if (s && r < trek_step_team(s)->local_ranks) {
            trek_step_team(s)->replicas[r].measured_rows = kept->rows;
            trek_step_team(s)->replicas[r].measured_ms = kept->ms;
        }
    }
    return status == TREK_OK ? trek_error_status() : status;
}

/* --- a state in memory ------------------------------------------------------------------------------------------ */

static void close_file(run_elastic *e)
{
    if (e->file >= 0)
        close(e->file);
    e->file = -1;
}

/* Sets the graph's state to that of the last complete step, except what no step changes, and writes it. */
static trek_status write_state(trek_run *run)
{
    run_elastic *e = run->elastic;
    const trek_replica *model = trek_step_team(stepper_of(run))->replicas[0].model;
    trek_status status = trek_job_file_empty(&e->file);
    for (int k = 0; k < e->n_buffers && status == TREK_OK; k++)
        status = trek_tensor_copy_from(model->buffers[k]->data, e->buffers[k]);
    trek_rank_here.rng_step = e->rng_step;
    trek_rank_here.rng_draw = e->rng_draw;
    if (status == TREK_OK)
        status = trek_loader_seek(run->train, e->at.epoch, e->at.batch);
    if (status == TREK_OK)
        status = trek_checkpoint_write(run->graph, run->train, e->file, "the state of the run", e->numbers, TREK_RUN_NUMBERS);
    if (status != TREK_OK)
        close_file(e);
    return status;
}

/* With averaged parameters every step writes its state. The loader is at its position already. */
static trek_status write_average(trek_run *run)
{
    run_elastic *e = run->elastic;
    trek_status status = trek_job_file_empty(&e->file);
    trek_state *state = status == TREK_OK ? trek_run_state(run, e->numbers) : NULL;
    if (status == TREK_OK)
        status = state ? trek_state_write_file(state, e->file, "the state of the run") : trek_error_status();
    trek_state_free(&state);
    return status;
}

/* --- keeping ------------------------------------------------------------------------------------------------------ */

static trek_status keep(trek_run *run, int64_t epoch, int64_t batch)
{
    run_elastic *e = run->elastic;
    const trek_step *s = stepper_of(run);
    bool in_epoch = epoch == e->at.epoch && run->parts == e->at.parts;
    int64_t steps = trek_graph_steps(run->graph);
    trek_status status = e->n_ranks ? TREK_OK : make_room(e, s);
    if (status == TREK_OK)
        status = keep_buffers(e, s);
    if (status == TREK_OK && in_epoch)
        status = keep_observed(e, s);
    else
        forget_observed(e);
    e->epoch_steps = in_epoch ? e->epoch_steps + steps - e->at.steps : 0;
    e->epoch_ns = in_epoch ? trek_now_ns() - run->epoch_start_ns : 0;
    e->at = (place){ epoch, batch, steps, run->parts, run->looked };
    e->rng_step = trek_rank_here.rng_step;
    e->rng_draw = trek_rank_here.rng_draw;
    e->numbers[TREK_RUN_BEST] = run->best;
    e->numbers[TREK_RUN_SINCE_BEST] = (double)run->since_best;
    if (status == TREK_OK && trek_step_averages(s) && batch == 0)
        status = trek_loader_seek(run->train, epoch, 0); /* it is at the end of the epoch before */
    if (status == TREK_OK && trek_step_averages(s)) /* devices may still exchange what goes with the averages */
        status = trek_comm_settle(trek_graph_job(run->graph)->comm);
    return status == TREK_OK && trek_step_averages(s) ? write_average(run) : status;
}

trek_status trek_run_elastic_keep(trek_run *run, int64_t epoch, int64_t batch)
{
    if (!run->elastic || trek_job_is_alone(trek_graph_job(run->graph)))
        return TREK_OK;
    return keep(run, epoch, batch);
}

/* Nothing is under way: keeps the whole state, as a checkpoint does. */
static trek_status keep_whole(trek_run *run, int64_t epoch)
{
    run_elastic *e = run->elastic;
    forget_observed(e);
    e->epoch_steps = e->epoch_ns = 0;
    e->at = (place){ epoch, 0, trek_graph_steps(run->graph), run->parts, run->looked };
    e->numbers[TREK_RUN_BEST] = run->best;
    e->numbers[TREK_RUN_SINCE_BEST] = (double)run->since_best;
    trek_status status = trek_loader_seek(run->train, epoch, 0);
    return status == TREK_OK ? write_average(run) : status;
}

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
        e->at.epoch = NOTHING_YET;
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
    drop_kept(e);
    close_file(e);
    trek_free(e);
    run->elastic = NULL;
}

/* --- the newest state ------------------------------------------------------------------------------------------------ */

static int later(const place *a, const place *b)
{
    if (a->epoch != b->epoch)
        return a->epoch > b->epoch ? 1 : -1;
    if (a->parts != b->parts)
        return a->parts > b->parts ? 1 : -1;
    return a->batch > b->batch ? 1 : a->batch < b->batch ? -1 : 0;
}

/* This process is behind: its own last step was complete, too, as another process knows. */
static trek_status catch_up(trek_run *run, const place *newest)
{
    run_elastic *e = run->elastic;
    run_epoch *pending = run->pending;
    trek_status status = TREK_OK;
    run->pending = NULL;
    if (newest->epoch > e->at.epoch || newest->parts > e->at.parts) {
        forget_observed(e);
        e->epoch_steps = 0;
        if (pending)
            status = trek_run_publish(run, pending);
        pending = NULL;
    } else if (run->graph && stepper_of(run)) {
        status = keep_observed(e, stepper_of(run));
        e->epoch_steps += newest->steps - e->at.steps;
    }
    trek_run_epoch_free(pending);
    e->at = *newest;
    return status;
}

/* Copies the bytes of the file of `source` to the file of every process. A process that got only a part keeps what it
 * had. */
static trek_status share_bytes(run_elastic *e, int source, int64_t bytes)
{
    bool gives = e->comm->rank == source;
    trek_job_file file;
    trek_status status = trek_job_file_map(&file, gives ? e->file : -1, bytes);
    status = trek_replica_agree(e->comm, status, "trainer_run");
    if (status == TREK_OK)
        status = trek_job_file_send(e->comm, &file, source);
    trek_job_file_unmap(&file);
    if (!gives && status == TREK_OK) {
        close_file(e);
        e->file = file.fd;
    } else if (!gives && file.fd >= 0) {
        close(file.fd);
    }
    return status;
}

/* Copies the state to the files of all processes. It stays there until a graph has loaded it. */
static trek_status share_state(trek_run *run, int source)
{
    run_elastic *e = run->elastic;
    int64_t bytes = -1, *all = trek_calloc((size_t)e->comm->world, sizeof *all);
    struct stat about;
    trek_status own = all ? TREK_OK : TREK_ERR_MEMORY;
    if (e->comm->rank == source && own == TREK_OK && e->file < 0)
        own = write_state(run);
    if (e->comm->rank == source && own == TREK_OK && fstat(e->file, &about) == 0)
        bytes = (int64_t)about.st_size;
    trek_status status = trek_replica_agree(e->comm, own, "trainer_run");
    if (status == TREK_OK)
        status = trek_comm_gather_bytes(e->comm, &bytes, sizeof bytes, all);
    if (status == TREK_OK)
        status = share_bytes(e, source, all[source]);
    trek_free(all);
    return status;
}

/* Returns the process with the newest state, in a file if one has it there; offers[] are those of all processes. */
static int find_newest(const offer *offers, int n)
{
    int newest = 0;
    for (int p = 1; p < n; p++) {
        int order = later(&offers[p].at, &offers[newest].at);
        if (order > 0 || (order == 0 && offers[p].file > offers[newest].file))
            newest = p;
    }
    return newest;
}

/* Puts an optimizer's state together that is divided (reduce/twice.h). All have made the same updates, since one that is away has
 * left the last step. So the job of their graphs goes on in the group, which divides the state anew if some have died with their
 * parts. *again: another group has met meanwhile. */
static trek_status put_together(trek_run *run, bool *again)
{
    run_elastic *e = run->elastic;
    trek_step *s = trek_graph_ranks(run->graph);
    const trek_comm *group = e->comm;
    trek_status status = trek_graph_job(run->graph)->comm == group ? TREK_OK : trek_survivors_follow(s, e->comm);
    if (status != TREK_OK)
        return status;
    follow_job(run);
    *again = e->comm != group;
    if (!*again)
        status = trek_twice_check(s, "trainer_run");
    return *again ? status : trek_ranks_gather_state(s, status, true);
}

/* Copies the newest state to all. *from_start: no process has a state yet. */
static trek_status share_newest(trek_run *run, const offer *offers, bool *from_start, bool *again)
{
    run_elastic *e = run->elastic;
    int n = trek_comm_world_size(e->comm), source = find_newest(offers, n);
    const offer newest = offers[source];
    bool late = false, parted = run->graph && stepper_of(run) && trek_step_team(stepper_of(run))->twice && !newest.file;
    trek_status status = TREK_OK;
    for (int p = 0; p < n; p++)
        late |= offers[p].at.epoch == OTHERS_STATE;
    *from_start = newest.at.epoch < 0 && !late;
    if (newest.at.epoch < 0)
        return *from_start ? TREK_OK
            : trek_fail(TREK_ERR_STATE,
                        "trainer_run: none of the remaining processes has a state of the run from which it could continue");
    if (parted)
        status = put_together(run, again);
    if (status == TREK_OK && !*again)
        status = share_state(run, source);
    if (parted)
        trek_ranks_forget_state(trek_graph_ranks(run->graph));
    return status == TREK_OK && !*again && later(&newest.at, &e->at) > 0 ? catch_up(run, &newest.at) : status;
}

/* *from_start: no process has a state yet. */
static trek_status agree_on_state(trek_run *run, bool *from_start)
{
    run_elastic *e = run->elastic;
    bool again = true;
    trek_status status = TREK_OK;
    *from_start = false;
    while (again && status == TREK_OK) {
        const offer own = { .at = e->at, .file = e->file >= 0 };
        offer *offers = trek_calloc((size_t)trek_comm_world_size(e->comm), sizeof *offers);
        again = false;
        status = trek_replica_agree(e->comm, offers ? TREK_OK : TREK_ERR_MEMORY, "trainer_run");
        if (status == TREK_OK)
            status = trek_comm_gather_bytes(e->comm, &own, sizeof own, offers);
        if (status == TREK_OK)
            status = share_newest(run, offers, from_start, &again);
        trek_free(offers);
    }
    return status;
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
        status = give_observed(e, run);
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
    drop_kept(e); /* belongs to another graph */
    status = trek_run_elastic_keep(run, run->first_epoch, e->at.batch);
    if (!goes_on || !trek_step_averages(s))
        close_file(e);
    return status;
}

/* Starts again where all were when the run began. */
static trek_status start_anew(trek_run *run, trek_status (*build)(trek_run *run))
{
    drop_kept(run->elastic);
    run->elastic->at = (place){ .epoch = NOTHING_YET };
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
        status = agree_on_state(run, &from_start);
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
    follow_job(run);
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
    trek_status status = keep_whole(run, epoch);
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
    follow_job(run);
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
    take_group(run, job->comm);
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
    e->at.epoch = OTHERS_STATE;
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
