/* SPDX-License-Identifier: Apache-2.0 */
/* Divided parameters that the program writes between two passes. */
#include "distributed/team/divided_internal.h"

#include "autograd/var_internal.h"

static trek_status begin_writing(trek_divided *d, const trek_arena_cut *range)
{
    if (d->updates && trek_divided_is_own(trek_divided_own(d)->arena, range))
        return TREK_OK;
    if (d->updates || d->rank != 0 || trek_ranks_are_running(d->team->ranks))
        return trek_fail(TREK_ERR_UNSUPPORTED, "parameters: they are divided over ranks (TREK_SHARD_PARAMETERS), and something "
                                               "writes them in a pass or a step; only the optimizer can");
    for (int r = 1; r < d->team->local_ranks && !d->written; r++) /* they may still copy what is written now */
        trek_divided_rest_of(d->team->replicas[r].divided);
    trek_status status = d->written ? TREK_OK : trek_divided_take_all(d, 1);
    d->written |= status == TREK_OK;
    return status;
}

trek_status trek_divided_write_bytes(void *arg, const void *from, size_t bytes, uint64_t use, bool first)
{
    trek_divided *d = arg;
    trek_arena_cut range = trek_divided_range_of(trek_divided_own(d)->arena, from, bytes);
    (void)use;
    trek_lock_acquire(&d->lock);
    d->readers += first;
    trek_status status = begin_writing(d, &range);
    trek_lock_release(&d->lock);
    return status;
}

static trek_status take_written(int rank, void *arg)
{
    const trek_team *team = arg;
    trek_divided *d = team->replicas[rank].divided;
    const trek_arena *own = trek_divided_own(d)->arena, *first = team->replicas[0].arena;
    if (rank == 0)
        return trek_divided_show_own(d, own->cuts, own->n_cuts);
    trek_divided_forget_now(d);
    trek_status status = trek_copier_begin(d->copier);
    for (int k = 0; k < own->n_cuts && status == TREK_OK; k++) {
        const trek_arena_cut *cut = &own->cuts[k];
        status = trek_copier_copy(d->copier, trek_divided_place_of(own, cut->part, cut->begin),
                                  trek_divided_place_of(first, cut->part, cut->begin),
                                  team->replicas[0].divided->copier,
                                  (size_t)(cut->end - cut->begin) * trek_divided_item(own, cut->part));
    }
    for (int k = 0; k < own->n_segments; k++)
        trek_tensor_bump(own->segments[k].param->data);
    trek_status ended = trek_copier_finish(d->copier);
    status = status == TREK_OK ? ended : status;
    return status == TREK_OK ? trek_divided_show_own(d, own->cuts, own->n_cuts) : status;
}

/* The ranks of each process keep their own cuts of what its program has written. None may do so while another one still reads
 * what was there before, nor read before all have done so. */
static trek_status lend_written(const trek_team *team, trek_comm *comm)
{
    trek_divided *first = team->replicas[0].divided;
    int32_t own = first->written, all[TREK_MAX_RANKS];
    trek_status status = trek_comm_gather_bytes(comm, &own, sizeof own, all);
    for (int p = 0; p < comm->world && status == TREK_OK; p++)
        if (all[p] != all[0])
            status = trek_fail(TREK_ERR_STATE, "graph_parameters_changed: the graph's parameters were written in process %d, and "
                                               "not in process %d; with TREK_SHARD_PARAMETERS all processes must write the same",
                               all[0] ? 0 : p, all[0] ? p : 0);
    if (status != TREK_OK || !own)
        return status;
    status = trek_ranks_call(team->ranks, take_written, (trek_team *)(uintptr_t)team);
    trek_status shown = trek_lent_show(team->lent);
    own = status = status == TREK_OK ? shown : status;
    trek_status met = trek_comm_gather_bytes(comm, &own, sizeof own, all);
    status = status == TREK_OK ? met : status;
    for (int p = 0; p < comm->world && status == TREK_OK; p++)
        if (all[p] != TREK_OK)
            status = trek_fail(TREK_ERR_PEER, "graph_parameters_changed: process %d failed", p);
    return status;
}

trek_status trek_divided_take_written(trek_team *team, trek_comm *comm)
{
    trek_divided *first = team->replicas[0].divided;
    if (first && team->lent)
        return lend_written(team, comm);
    if (!first || !first->written)
        return TREK_OK;
    trek_status status = trek_copier_finish(first->copier); /* what the program has written */
    return status == TREK_OK ? trek_ranks_call(team->ranks, take_written, team) : status;
}

void trek_divided_forget_written(const trek_team *team)
{
    trek_divided *first = team->replicas[0].divided;
    if (!first || !first->written)
        return;
    first->written = false;
    trek_divided_forget_now(first);
}
