/* SPDX-License-Identifier: Apache-2.0 */
/* A group becomes that of an elastic run (elastic.c), and its processes look for the newest complete step that one of them has,
 * and get its state. */
#include <sys/stat.h>
#include <unistd.h>

#include "distributed/job/agreement.h"
#include "distributed/job/job_file.h"
#include "distributed/pass/survivors.h"
#include "distributed/reduce/sharded.h"
#include "distributed/reduce/twice.h"
#include "distributed/run/elastic_internal.h"
#include "distributed/team/replica.h"
#include "tensor/memory_internal.h"

void trek_run_elastic_take_group(trek_run *run, trek_comm *group)
{
    run_elastic *e = run->elastic;
    if (!trek_comm_retain(group))
        return;
    e->followed = survival_of(run)->groups;
    trek_comm_free(&e->comm);
    e->comm = run->opts.trainer.comm = group;
}

void trek_run_elastic_follow(trek_run *run)
{
    const trek_survival *survival = survival_of(run);
    if (survival && survival->groups != run->elastic->followed)
        trek_run_elastic_take_group(run, survival->group);
}

/* What a process says of its state when all look for the newest. */
typedef struct offer {
    run_place at;
    int64_t file;            /* it has the state in a file */
} offer;

static int later(const run_place *a, const run_place *b)
{
    if (a->epoch != b->epoch)
        return a->epoch > b->epoch ? 1 : -1;
    if (a->parts != b->parts)
        return a->parts > b->parts ? 1 : -1;
    return a->batch > b->batch ? 1 : a->batch < b->batch ? -1 : 0;
}

/* This process is behind: its own last step was complete, too, as another process knows. */
static trek_status catch_up(trek_run *run, const run_place *newest)
{
    run_elastic *e = run->elastic;
    run_epoch *pending = run->pending;
    trek_status status = TREK_OK;
    run->pending = NULL;
    if (newest->epoch > e->at.epoch || newest->parts > e->at.parts) {
        trek_run_elastic_forget_observed(e);
        e->epoch_steps = 0;
        if (pending)
            status = trek_run_publish(run, pending);
        pending = NULL;
    } else if (run->graph && stepper_of(run)) {
        status = trek_run_elastic_keep_observed(e, stepper_of(run));
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
        trek_run_elastic_close_file(e);
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
        own = trek_run_elastic_write_state(run);
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
    trek_run_elastic_follow(run);
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
        late |= offers[p].at.epoch == RUN_OTHERS_STATE;
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

trek_status trek_run_elastic_agree(trek_run *run, bool *from_start)
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
