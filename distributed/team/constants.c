/* SPDX-License-Identifier: Apache-2.0 */
/* Constants and teachers of a graph on all its ranks. They are built and placed on each rank's thread and compared
 * between processes; all processes take the values of the first. */

#include "distributed/job/agreement.h"
#include "distributed/system/system.h"
#include "distributed/team/constants.h"
#include "graph/constants_internal.h"
#include "nn/text.h"

typedef struct follow_call {
    const trek_team *team;
    trek_lock building;
    trek_constants *made;    /* [local_ranks] */
} follow_call;

/* Keeps what the replica has already. */
static trek_status make_rank(int rank, void *arg)
{
    follow_call *c = arg;
    const trek_constants *first = &c->team->graph->constants;
    if (rank == 0)
        return TREK_OK;
    const trek_constants *present = &c->team->replicas[rank].graph->constants;
    trek_constants *made = &c->made[rank];
    if (!trek_constants_begin(made, first->n))
        return trek_error_status();
    made->n = 0;
    for (int k = 0; k < first->n; k++) {
        trek_constant *own = trek_constants_find(present, first->list[k]->name);
        if (!own || own->serial != first->list[k]->serial) {
            trek_lock_acquire(&c->building);
            trek_scope scope = trek_scope_begin();
            own = trek_constant_copy(first->list[k], trek_ranks_device(c->team->ranks, rank));
            trek_scope_end(scope);
            trek_lock_release(&c->building);
        }
        if (!own)
            return trek_error_status();
        own->lists++;
        made->list[made->n++] = own;
    }
    return TREK_OK;
}

/* Replaces the old list by the new one. Old constants are freed on the rank's thread. */
static trek_status take_rank(int rank, void *arg)
{
    follow_call *c = arg;
    if (rank == 0)
        return TREK_OK;
    trek_constants old = c->team->replicas[rank].graph->constants;
    c->team->replicas[rank].graph->constants = c->made[rank];
    trek_constants_end(&old);
    return TREK_OK;
}

static trek_status drop_rank(int rank, void *arg)
{
    trek_constants_end(&((follow_call *)arg)->made[rank]);
    return TREK_OK;
}

static trek_status copy_one(trek_tensor *tensor, void *arg) { return trek_replica_take_tensor(arg, tensor); }

static trek_status join_processes(const trek_team *team, const trek_job *job)
{
    trek_text text = { 0 };
    trek_status status = trek_constants_describe(&team->graph->constants, &text);
    status = trek_agree(job->comm, status, "graph_set_constant: the constants and teachers of the processes differ", &text);
    trek_text_clear(&text);
    return status == TREK_OK ? trek_constants_each(&team->graph->constants, copy_one, job->comm) : status;
}

trek_status trek_ranks_constants(const trek_team *team, const trek_job *job)
{
    follow_call c = { .team = team, .made = trek_calloc((size_t)team->local_ranks, sizeof *c.made) };
    if (!c.made)
        return trek_error_status();
    trek_status status = trek_job_is_alone(job) ? TREK_OK : join_processes(team, job);
    trek_lock_init(&c.building);
    if (status == TREK_OK)
        status = trek_ranks_call(team->ranks, make_rank, &c);
    trek_ranks_call(team->ranks, status == TREK_OK ? take_rank : drop_rank, &c);
    trek_lock_destroy(&c.building);
    trek_free(c.made);
    return status;
}

trek_status trek_ranks_follow_teachers(const trek_team *team, int rank)
{
    const trek_constants *first = &team->graph->constants, *own = &team->replicas[rank].graph->constants;
    trek_status status = TREK_OK;
    for (int k = 0; rank > 0 && k < first->n && status == TREK_OK; k++)
        status = trek_constant_follow(own->list[k], first->list[k]);
    return status;
}
