/* SPDX-License-Identifier: Apache-2.0 */
/* The communicator among the processes of the job. A process has one, and every call of trek_comm_init returns a
 * handle of it. */
#include <stdio.h>
#include <string.h>

#include "distributed/comm/engines.h"
#include "distributed/comm/init_internal.h"
#include "distributed/system/system.h"
#include "tensor/environment.h"
#include "tensor/memory_internal.h"

/* How long all may take to come, and to agree on an engine each time they meet, if no deadline is given. Processes do
 * not start at the same moment, so that a deadline below LEAST_JOIN_S does not hold here. */
#define JOIN_S 300
#define LEAST_JOIN_S 5

/* The processes of the job that take part, by number: all, or those that have not ended for good. */
typedef struct takers {
    int self, n, ended; /* self: the index of this process among the n */
} takers;

/* The group of the process. */
typedef struct job_state {
    trek_lock lock;
    trek_condition gone; /* signals that the group has been freed */
    trek_comm *comm;     /* NULL: no group. It owns its control channel; without a channel it is a world of one */
    trek_launch launch;
    takers takers;       /* those of the first group, as far as processes that join know them */
    int64_t settling_ns; /* 0: no limit */
    bool belonged;       /* the process has been in a group */
} job_state;

TREK_PER_PROCESS(job_state, job, { .lock = TREK_LOCK_INIT, .gone = TREK_CONDITION_INIT });

/* Called when the last handle is freed: of the process's group, or of a group that has ended and was followed by
 * another one. */
static void free_job(trek_comm *comm)
{
    if (trek_forked)
        return;
    trek_lock_acquire(&job()->lock);
    trek_control *control = comm->control;
    bool present = job()->comm == comm;
    trek_comm_destroy(comm);
    trek_control_free(&control);
    if (present)
        job()->comm = NULL;
    trek_condition_wake_all(&job()->gone);
    trek_lock_release(&job()->lock);
}

static trek_status check_opts(const trek_comm_opts *opts)
{
    const char *wanted = opts ? opts->engine : NULL;
    double deadline = opts ? opts->deadline_s : 0;
    if (deadline != TREK_OFF && (!(deadline >= 0) || deadline > 1e9))
        return trek_fail(TREK_ERR_ARGUMENT, "comm_init: .deadline_s: %g; must be TREK_OFF, or 0 (the default) to 10^9", deadline);
    return wanted ? trek_engines_check(wanted) : TREK_OK;
}

/* Finds out which process of which job this is. */
static trek_status find_launch(const trek_comm_opts *opts, trek_launch *launch)
{
    trek_launch_opts own = { 0 };
    if (opts)
        own = (trek_launch_opts){ opts->rank, opts->world_size, opts->address, opts->port, opts->token };
    return trek_launch_find(&own, launch);
}

/* --- joining ------------------------------------------------------------------------------------------------------ */

static trek_comm *pick_engine(trek_control *control, const char *wanted)
{
    trek_engine_places places;
    trek_comm *comm = trek_engines_pick(control, wanted, false, job()->settling_ns, &places);
    trek_launch *launch = &job()->launch;
    if (!comm)
        return NULL;
    launch->local = places.local;
    launch->locals = places.locals;
    trek_log_message(
        TREK_LOG_LEVEL_INFO, "process %d of %d (by %s), %d of %d on this machine, %d machine%s, engine %s, process 0 at %s:%d",
        trek_control_process(control), trek_control_processes(control), launch->source, launch->local, launch->locals,
        places.machines, places.machines > 1 ? "s" : "", comm->engine->name, launch->address, launch->port);
    return comm;
}

static double join_seconds(const trek_comm_opts *opts)
{
    double deadline = opts ? opts->deadline_s : 0;
    if (deadline == 0 || deadline == TREK_OFF)
        return deadline == 0 ? JOIN_S : TREK_OFF;
    return deadline < LEAST_JOIN_S ? LEAST_JOIN_S : deadline;
}

/* Gives the channel to the group's handle, which frees it. Returns NULL if there is no group; then there is no
 * channel any more either. */
static trek_comm *own(trek_comm *comm, trek_control *control)
{
    if (!comm) {
        trek_control_free(&control);
        return NULL;
    }
    if (comm->control != control) /* if they are equal, the channel's thread may read it already, because the group has ended */
        comm->control = control;
    comm->freed = free_job;
    job()->comm = comm;
    job()->belonged = true;
    return comm;
}

static takers find_takers(bool of_left)
{
    const trek_launch *launch = &job()->launch;
    bool ended[TREK_MAX_RANKS];
    takers t = { .self = launch->process, .n = launch->processes };
    t.ended = of_left ? trek_launch_ended(launch->deaths, ended, launch->processes) : 0;
    t.n -= t.ended;
    for (int p = 0; p < launch->process && of_left; p++)
        t.self -= ended[p];
    return t;
}

/* Returns whether another process has ended besides those that the joining processes know of. */
static bool one_more_ended(void *arg, char *text, size_t size)
{
    bool ended[TREK_MAX_RANKS];
    const job_state *own = arg;
    snprintf(text, size, "one more process ended");
    return trek_launch_ended(own->launch.deaths, ended, own->launch.processes) > own->takers.ended;
}

static trek_comm *join(const trek_comm_opts *opts, bool of_left)
{
    const trek_launch *launch = &job()->launch;
    const takers *t = &job()->takers;
    trek_comm *comm = NULL;
    if (t->n == 1) {
        trek_comm_local(NULL, 1, &comm);
        return own(comm, NULL);
    }
    if (trek_launch_check_secret(launch) != TREK_OK)
        return NULL;
    trek_control_opts control_opts = { .process = t->self,
                                       .processes = t->n,
                                       .address = launch->address,
                                       .port = launch->port,
                                       .token = launch->token,
                                       .patient = of_left };
    control_opts.join_s = join_seconds(opts);
    control_opts.deaths = launch->deaths + 1;
    control_opts.died = of_left ? one_more_ended : NULL;
    control_opts.arg = job();
    control_opts.flat = (int)trek_process_number("TREK_CONTROL_TREE_ABOVE", 1, TREK_MAX_RANKS, 0);
    job()->settling_ns = control_opts.join_s > 0 ? (int64_t)(control_opts.join_s * 1e9) : 0;
    trek_control *control = trek_control_join(&control_opts);
    return control ? own(pick_engine(control, opts ? opts->engine : NULL), control) : NULL;
}

/* Repeats joining until those who are left have joined. A process that ends meanwhile is waited for if its launcher
 * starts it again; otherwise the others go on without it. */
static trek_comm *join_left(const trek_comm_opts *opts, int least)
{
    trek_comm *comm = NULL;
    trek_status status = TREK_ERR_PEER;
    for (job()->takers = find_takers(true); !comm && status == TREK_ERR_PEER && job()->takers.n >= least;
         job()->takers = find_takers(true)) {
        trek_error_clear();
        comm = join(opts, true);
        status = trek_error_status();
    }
    if (comm || job()->takers.n >= least)
        return comm;
    trek_error_clear();
    trek_fail(TREK_ERR_PEER, "comm_init: %d of %d processes are left; .min_processes is %d", job()->takers.n,
              job()->launch.processes, least);
    return NULL;
}

/* least 0: all processes are needed. All are also needed if no launcher says who has ended. */
static trek_comm *begin(const trek_comm_opts *opts, const trek_launch *launch, int least)
{
    job()->launch = *launch;
    job()->takers = find_takers(false);
    bool of_left = least > 0 && launch->deaths >= 0 && least <= launch->processes;
    trek_comm *comm = of_left ? join_left(opts, least) : join(opts, false);
    if (comm && opts && opts->deadline_s != 0)
        trek_comm_set_deadline(comm, opts->deadline_s);
    return comm;
}

trek_comm *trek_comm_init_next(trek_control *control, const char *engine, const trek_comm *ended)
{
    trek_comm *comm = NULL;
    trek_lock_acquire(&job()->lock);
    if (control)
        comm = pick_engine(control, engine);
    else
        trek_comm_local(NULL, 1, &comm);
    comm = own(comm, control);
    if (comm && ended)
        comm->deadline_ns = ended->deadline_ns;
    trek_lock_release(&job()->lock);
    return comm;
}

trek_comm *trek_comm_init_part(trek_control *control, const char *engine)
{
    trek_engine_places places;
    trek_comm *comm = trek_engines_pick(control, engine, true, job()->settling_ns, &places);
    if (comm && comm->control != control)
        comm->control = control;
    return comm;
}

/* Checks whether the arguments ask for the group that the process has. */
static trek_status check_again(const trek_comm_opts *opts, const trek_launch *launch)
{
    if (launch->processes != job()->launch.processes || launch->process != job()->launch.process)
        return trek_fail(TREK_ERR_ARGUMENT, "comm_init: this process already is process %d of %d; it cannot become %d of %d",
                         job()->launch.process, job()->launch.processes, launch->process, launch->processes);
    if (opts && opts->engine && job()->comm->control && strcmp(opts->engine, job()->comm->engine->name) != 0)
        return trek_fail(TREK_ERR_ARGUMENT, "comm_init: .engine: \"%s\" already joins the processes; it cannot become \"%s\"",
                         job()->comm->engine->name, opts->engine);
    return TREK_OK;
}

/* Called with the lock held. */
static bool joins(void) { return !job()->belonged && trek_launch_joins(); }

/* Refuses to begin the group that others have formed: a process enters that in another way. */
static trek_status check_begin(const trek_launch *launch)
{
    if (job()->belonged && launch->newcomer)
        return trek_fail(TREK_ERR_STATE,
                         "comm_init: TREK_JOIN=\"new\" in the environment: the job which this process had joined has "
                         "ended, and only processes with which it began can begin another one");
    if (!joins() || launch->processes == 1)
        return TREK_OK;
    return trek_fail(
        TREK_ERR_STATE,
        "comm_init: TREK_JOIN is set in the environment: this process comes to a job that is running, which only "
        "trek_trainer_setup and trek_trainer_run with .min_processes, without a communicator of the program's own, can join");
}

trek_status trek_comm_init_joining(trek_launch *launch)
{
    trek_lock_acquire(&job()->lock);
    bool there = job()->comm != NULL;
    trek_status status = trek_launch_find(NULL, launch);
    if (status == TREK_OK)
        status = trek_launch_check_secret(launch);
    if (status == TREK_OK && (there || launch->processes == 1))
        status = trek_fail(TREK_ERR_STATE,
                           there ? "comm_init: TREK_JOIN is set in the environment, but this process is in a group already"
                                 : "comm_init: TREK_JOIN is set in the environment, but the job does not have several processes");
    if (status == TREK_OK) {
        job()->launch = *launch;
        job()->settling_ns = (int64_t)JOIN_S * 1000000000;
    }
    trek_lock_release(&job()->lock);
    return status;
}

static trek_comm *init(const trek_comm_opts *opts, int least)
{
    trek_launch launch;
    if (trek_forked) {
        trek_fail_forked();
        return NULL;
    }
    if (check_opts(opts) != TREK_OK || find_launch(opts, &launch) != TREK_OK)
        return NULL;
    trek_lock_acquire(&job()->lock);
    while (job()->comm && !trek_comm_retain(job()->comm)) /* another thread is freeing the last handle */
        trek_condition_wait(&job()->gone, &job()->lock);
    trek_comm *comm = job()->comm;
    trek_status status = comm ? check_again(opts, &launch) : check_begin(&launch);
    if (!comm && status == TREK_OK)
        comm = begin(opts, &launch, least);
    trek_lock_release(&job()->lock);
    if (status != TREK_OK)
        trek_comm_free(&comm);
    return comm;
}

trek_comm *trek_comm_init(const trek_comm_opts *opts) { return init(opts, 0); }
trek_comm *trek_comm_init_of_left(const trek_comm_opts *opts, int least) { return init(opts, least); }
bool trek_comm_init_hears_of_deaths(void) { return job()->launch.deaths >= 0; }
void trek_comm_init_begun(void) { trek_launch_note_begun(job()->launch.deaths); }

int trek_comm_init_number(int *processes)
{
    *processes = job()->launch.processes;
    return job()->launch.process;
}

bool trek_comm_init_joins(void)
{
    trek_lock_acquire(&job()->lock);
    bool joining = joins();
    trek_lock_release(&job()->lock);
    return joining;
}

int trek_comm_world_described(const trek_comm_opts *opts)
{
    trek_launch launch;
    return find_launch(opts, &launch) == TREK_OK ? launch.processes : -1;
}

void trek_comm_say(trek_comm *comm, const char *phase)
{
    if (!comm || !comm->control)
        return;
    if (phase)
        trek_control_say_long(comm->control, phase);
    else
        trek_control_say(comm->control, NULL, NULL);
}
