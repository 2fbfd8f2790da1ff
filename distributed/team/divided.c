/* SPDX-License-Identifier: Apache-2.0 */
/* Divided parameters from their beginning to their end: their cuts, and their updates. */
#include "distributed/team/divided_internal.h"

#include <string.h>

#include "autograd/var_internal.h"
#include "tensor/memory_account.h"

/* --- what is held -------------------------------------------------------------------------------- */

/* Holds cuts in pages [parts], and nothing else. Fails if there is no memory for them. */
static trek_status hold_cuts(const trek_divided *d, trek_pages *const *pages)
{
    const trek_arena *arena = trek_divided_own(d)->arena;
    for (int p = 0; p < arena->n_parts; p++)
        trek_pages_release_holds(pages[p]);
    trek_status status = TREK_OK;
    for (int k = 0; k < arena->n_cuts && status == TREK_OK; k++) {
        const trek_arena_cut *cut = &arena->cuts[k];
        size_t item = trek_divided_item(arena, cut->part);
        status = trek_pages_hold(pages[cut->part], trek_pages_memory(pages[cut->part]) + (size_t)cut->begin * item,
                                 (size_t)(cut->end - cut->begin) * item);
    }
    return status;
}

/* Holds the rank's own cuts, and gives back the rest. If that fails, nothing is given back. */
static trek_status hold_own(trek_divided *d)
{
    const trek_arena *arena = trek_divided_own(d)->arena;
    trek_pages *params[TREK_DTYPE_COUNT], *shown[TREK_DTYPE_COUNT];
    for (int p = 0; p < arena->n_parts; p++) {
        params[p] = arena->parts[p].param_pages;
        shown[p] = d->shown ? trek_pages_of(d->shown[p]) : NULL;
    }
    trek_status status = hold_cuts(d, params);
    if (status == TREK_OK && d->shown)
        status = hold_cuts(d, shown);
    if (status != TREK_OK)
        return status;
    for (int p = 0; p < arena->n_parts && d->shown; p++)
        trek_divided_give_back_in(arena, p, shown[p], 0, arena->parts[p].count);
    trek_lock_acquire(&d->lock);
    if (!d->written)
        trek_divided_drop_copies(d, 0);
    trek_lock_release(&d->lock);
    return TREK_OK;
}

static trek_status make_room_for(trek_divided *d, int n)
{
    if (n <= d->capacity)
        return TREK_OK;
    trek_divided_bucket *more = trek_calloc((size_t)n, sizeof *more);
    if (!more)
        return TREK_ERR_MEMORY;
    if (d->capacity > 0)
        memcpy(more, d->buckets, (size_t)d->capacity * sizeof *more);
    trek_free(d->buckets);
    d->buckets = more;
    d->capacity = n;
    return TREK_OK;
}

/* --- beginning and end --------------------------------------------------------------------- */

typedef struct beginning {
    trek_team *team;
    bool blank;
} beginning;

static trek_status begin_rank(int rank, void *arg)
{
    const beginning *b = arg;
    const trek_team *team = b->team;
    rank_replica *own = &team->replicas[rank];
    trek_divided *d = own->divided = trek_calloc(1, sizeof *d);
    if (!d)
        return TREK_ERR_MEMORY;
    *d = (trek_divided){ .team = team,
                         .rank = rank,
                         .keeper = { trek_divided_read_bytes, trek_divided_write_bytes, trek_divided_leave_op, d } };
    d->thread = &trek_rank_here;
    d->blank = b->blank;
    trek_lock_init(&d->lock);
    trek_status status = make_room_for(d, own->reducer->buckets.n);
    if (status == TREK_OK)
        status = trek_copier_new(own->arena->device, &d->copier);
    if (status == TREK_OK && d->copier && team->lends)
        status = trek_divided_make_shown(d);
    if (status == TREK_OK)
        status = trek_divided_show_own(d, own->arena->cuts, own->arena->n_cuts);
    if (status != TREK_OK || !team->gathers_ahead)
        return status;
    d->ahead = trek_ahead_new(&(trek_ahead_work){ d->copier ? NULL : trek_divided_copy_bucket, trek_divided_end_copy, d,
                                                  &d->lock },
                              own->reducer->buckets.n);
    return d->ahead ? TREK_OK : trek_error_status();
}

static trek_status divide_rank(int rank, void *arg)
{
    trek_divided *d = ((const trek_team *)arg)->replicas[rank].divided;
    const trek_arena *arena = trek_divided_own(d)->arena;
    trek_status status = trek_copier_finish(d->copier); /* others read what was written until now */
    if (status == TREK_OK)
        status = hold_own(d);
    for (int p = 0; p < arena->n_parts; p++)
        trek_pages_set_keeper(arena->parts[p].param_pages, &d->keeper);
    return status;
}

static trek_status end_rank(int rank, void *arg)
{
    rank_replica *own = &((const trek_team *)arg)->replicas[rank];
    trek_divided *d = own->divided;
    own->divided = NULL;
    if (!d)
        return TREK_OK;
    trek_ahead_free(&d->ahead);
    trek_copier_free(&d->copier);
    for (int p = 0; d->shown && p < own->arena->n_parts; p++)
        trek_tensor_release(d->shown[p]);
    trek_free(d->shown);
    trek_lock_destroy(&d->lock);
    trek_free(d->buckets);
    trek_free(d);
    return TREK_OK;
}

static trek_pages *lent_pages(const rank_replica *replica, int part)
{
    const trek_divided *d = replica->divided;
    return d && d->shown ? trek_pages_of(d->shown[part]) : replica->arena->parts[part].param_pages;
}

/* Lends the parameters of the ranks to each other and to those of other processes. own: this process's status. */
static trek_status lend(trek_team *team, trek_comm *comm, trek_status own)
{
    int n = team->replicas[0].arena->n_parts;
    trek_pages **pages = trek_calloc((size_t)(team->local_ranks * n), sizeof(trek_pages *));
    for (int r = 0; r < team->local_ranks && pages && own == TREK_OK; r++)
        for (int p = 0; p < n; p++)
            pages[r * n + p] = lent_pages(&team->replicas[r], p);
    trek_lent_opts opts = { .pages = pages, .ranks = team->local_ranks, .n = n, .what = "parameters" };
    trek_status status = trek_replica_agree(comm, own == TREK_OK && !pages ? TREK_ERR_MEMORY : own, "trainer_setup: .shard");
    if (status == TREK_OK)
        status = trek_replica_agree(comm, trek_lent_new(comm, &opts, &team->lent), "trainer_setup: .shard");
    if (status != TREK_OK)
        trek_lent_free(&team->lent);
    trek_free(pages);
    return status;
}

trek_status trek_divided_begin(trek_team *team, trek_comm *comm, bool blank)
{
    team->lends = comm != NULL;
    trek_status status = trek_ranks_call(team->ranks, begin_rank, &(beginning){ team, blank });
    if (comm)
        status = lend(team, comm, status);
    if (status == TREK_OK)
        status = trek_ranks_call(team->ranks, divide_rank, team);
    if (status != TREK_OK) {
        trek_lent_free(&team->lent);
        trek_ranks_call(team->ranks, end_rank, team);
    }
    return status;
}

/* Who has parts anew, which were moved to its GPU, shows them, too. A process that was alone has shown nothing yet. */
static trek_status show_rank(int rank, void *arg)
{
    trek_divided *d = ((const trek_team *)arg)->replicas[rank].divided;
    bool begins = d->copier && !d->shown;
    trek_status status = begins ? trek_divided_make_shown(d) : TREK_OK;
    if (status == TREK_OK && begins)
        status = hold_own(d);
    return status == TREK_OK ? trek_divided_show_own(d, trek_divided_own(d)->arena->cuts, trek_divided_own(d)->arena->n_cuts)
                             : status;
}

trek_status trek_divided_lend(trek_team *team, trek_comm *comm)
{
    return lend(team, comm, trek_ranks_call(team->ranks, show_rank, team));
}

trek_status trek_divided_withdraw(trek_team *team)
{
    trek_divided_rest(team);
    trek_divided_forget(team);
    for (int r = 0; r < team->local_ranks; r++)
        team->replicas[r].divided->blank = false;
    return trek_lent_free(&team->lent);
}

static trek_status read_gone(void *arg, const void *from, size_t bytes, uint64_t use, bool first)
{
    (void)arg, (void)from, (void)bytes, (void)use, (void)first;
    return trek_fail(TREK_ERR_STATE, "parameters: they were divided over processes (TREK_SHARD_PARAMETERS), and the graph that "
                                     "trained them is gone; read them before it is freed");
}

static void leave_gone(void *arg) { (void)arg; }

/* Of parameters of which this process has only parts. */
static const trek_pages_keeper gone = { read_gone, read_gone, leave_gone, NULL };

/* Results may outlive the ranks, and what backward has saved must not be read any more. */
static trek_status leave_rank(int rank, void *arg)
{
    const trek_team *team = arg;
    trek_divided *d = team->replicas[rank].divided;
    const trek_arena *arena = trek_divided_own(d)->arena;
    bool works = trek_memory_account_work(false), has_all = d->written || !(team->lent || team->twice);
    trek_lock_acquire(&d->lock);
    if (rank == 0 && !d->written && !(team->lent && team->graph_ends))
        has_all = trek_divided_take_all(d, 0) == TREK_OK;
    trek_lock_release(&d->lock);
    for (int p = 0; p < arena->n_parts; p++)
        trek_pages_set_keeper(arena->parts[p].param_pages, has_all ? NULL : &gone);
    for (int k = 0; k < arena->n_segments && rank > 0; k++)
        trek_tensor_bump(arena->segments[k].param->data);
    trek_memory_account_work(works);
    return TREK_OK;
}

void trek_divided_end(trek_team *team)
{
    if (!team->replicas[0].divided)
        return;
    trek_kept_error first;
    trek_error_keep(&first);
    trek_divided_rest(team); /* of a pass that has failed, something may still be on its way */
    trek_ranks_call(team->ranks, leave_rank, team);
    trek_lent_free(&team->lent); /* before what is lent */
    trek_ranks_call(team->ranks, end_rank, team);
    trek_error_clear();
    trek_error_put_back(&first);
}

/* --- cuts, and updates ----------------------------------------------------------------------- */

trek_status trek_divided_prepare(const rank_replica *replica, const trek_sharer_cuts *next, bool copies)
{
    trek_divided *d = replica->divided;
    if (!d)
        return TREK_OK;
    trek_divided_rest_of(d); /* others may give back what it copies from them */
    trek_status status = make_room_for(d, next->buckets.n);
    if (status == TREK_OK && d->team->lent && copies) /* a program's values are not lent */
        status = trek_divided_check(d->team, "graph_set_optimizer");
    for (int k = 0; k < next->division.n_cuts && status == TREK_OK && !d->written; k++) {
        const trek_arena_cut *cut = &next->division.cuts[k];
        status = trek_divided_take(replica->arena, cut, true);
        if (status == TREK_OK && copies)
            status = trek_divided_copy_range(d, cut);
    }
    return status == TREK_OK ? trek_divided_show_own(d, next->division.cuts, next->division.n_cuts) : status;
}

void trek_divided_settle(const rank_replica *replica)
{
    if (!replica->divided)
        return;
    (void)hold_own(replica->divided); /* trek_divided_prepare has taken the memory */
    trek_lock_acquire(&replica->divided->lock);
    if (replica->divided->ahead)
        trek_ahead_begin(replica->divided->ahead, true);
    trek_lock_release(&replica->divided->lock);
}

void trek_divided_keep(const rank_replica *replica, bool keeps) { replica->divided->keeps = keeps; }

int64_t trek_divided_gathered(const rank_replica *replica, bool ahead) { return replica->divided->gathered[ahead]; }

trek_status trek_divided_begin_update(const rank_replica *replica)
{
    trek_divided *d = replica->divided;
    trek_status status = TREK_OK;
    if (!d)
        return TREK_OK;
    trek_divided_forget_now(d);
    for (int r = 0; r < d->team->local_ranks && status == TREK_OK; r++)
        if (r != d->rank)
            status = trek_copier_wait_for_reader(d->copier, d->team->replicas[r].divided->copier);
    d->updates = true;
    if (d->team->lent)
        trek_lent_begin_update(d->team->lent, d->rank);
    return status;
}

trek_status trek_divided_end_update(const rank_replica *replica)
{
    trek_divided *d = replica->divided;
    if (!d)
        return TREK_OK;
    d->updates = d->follows = false;
    trek_status status = trek_divided_show_own(d, trek_divided_own(d)->arena->cuts, trek_divided_own(d)->arena->n_cuts);
    if (d->team->lent)
        trek_lent_end_update(d->team->lent, d->rank);
    trek_status updated = trek_copier_updated(d->copier);
    return status == TREK_OK ? updated : status;
}

void trek_divided_forget(const trek_team *team)
{
    for (int r = 0; r < team->local_ranks; r++)
        if (team->replicas[r].divided && !team->replicas[r].divided->written)
            trek_divided_forget_now(team->replicas[r].divided);
}
