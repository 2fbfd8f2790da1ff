/* SPDX-License-Identifier: Apache-2.0 */
#include "distributed/team/divided.h"

#include <limits.h>
#include <string.h>

#include "autograd/var_internal.h"
#include "distributed/comm/shared/lent.h"
#include "distributed/system/system.h"
#include "distributed/team/ahead.h"
#include "tensor/memory_account.h"
#include "tensor/pages.h"

/* Of one bucket. */
typedef struct bucket_state {
    bool gathered;           /* its pieces of others are here, */
    bool coming;             /* or are being copied ahead of their use; */
    bool ahead;              /* they were, and it was not read since */
    uint64_t use, order;     /* by which it was read last; when it was gathered */
} bucket_state;

struct trek_divided {
    const trek_team *team;
    int rank;
    trek_pages_keeper keeper;
    int capacity, n_gathered; /* n_gathered: with what is coming */
    trek_ahead *ahead;       /* NULL: nothing is copied ahead of its use */
    bucket_state *buckets;   /* [capacity], by the number of the reducer's bucket */
    trek_lock lock;          /* of all below, since several threads may read rank 0's parameters (trek_graph_infer) */
    int readers;             /* ops that are reading: nothing is given back that is not theirs alone */
    uint64_t gatherings;
    int64_t gathered[2];     /* buckets, when they were needed, and ahead of that */
    bool keeps;              /* what it has gathered stays until the next update */
    bool updates;            /* the rank's optimizer may write its own cuts */
    bool written;            /* of rank 0: the program has written, and everything is here */
};

static const rank_replica *own_of(const trek_divided *d) { return &d->team->replicas[d->rank]; }

/* --- who has what ------------------------------------------------------------------------ */

static size_t item_of(const trek_arena *arena, int part) { return trek_dtype_size(arena->parts[part].dtype); }

static char *place_of(const trek_arena *arena, int part, int64_t at)
{
    return arena->parts[part].params->data + (size_t)at * item_of(arena, part);
}

/* Finds the elements of a part in which bytes lie. */
static trek_arena_cut range_of(const trek_arena *arena, const void *from, size_t bytes)
{
    const char *at = from;
    int p = 0;
    while (at < arena->parts[p].params->data ||
           at >= arena->parts[p].params->data + (size_t)arena->parts[p].count * item_of(arena, p))
        p++;
    int64_t begin = (at - arena->parts[p].params->data) / (int64_t)item_of(arena, p);
    return (trek_arena_cut){ .part = p, .begin = begin, .end = begin + (int64_t)(bytes / item_of(arena, p)) };
}

/* Finds the next elements of [*at, end) that are another's, and moves *at behind them. */
static bool next_foreign(const trek_arena *arena, int part, int64_t *at, int64_t end, trek_arena_cut *piece)
{
    trek_arena_cut own;
    int64_t next = *at;
    while (next < end) {
        int64_t begin = next;
        bool has = trek_arena_next_own(arena, part, &next, end, &own);
        if (has && own.begin == begin)
            continue;
        *piece = (trek_arena_cut){ .part = part, .begin = begin, .end = has ? own.begin : end };
        *at = has ? own.end : end;
        return true;
    }
    return false;
}

static bool is_own(const trek_arena *arena, const trek_arena_cut *range)
{
    trek_arena_cut piece;
    int64_t at = range->begin;
    return !next_foreign(arena, range->part, &at, range->end, &piece);
}

static bool overlaps(const trek_bucket *bucket, const trek_arena_cut *range)
{
    return bucket->part == range->part && bucket->begin < range->end && range->begin < bucket->begin + bucket->count;
}

/* Copies elements from the sharer that keeps them: one of the ranks of all processes. */
static trek_status copy_piece(const trek_divided *d, int keeper, int part, int64_t begin, int64_t end)
{
    const trek_arena *own = own_of(d)->arena;
    if (begin >= end || keeper == own->sharer)
        return TREK_OK;
    size_t offset = (size_t)begin * item_of(own, part), bytes = (size_t)(end - begin) * item_of(own, part);
    if (d->team->lent)
        return trek_lent_read(d->team->lent, &(trek_lent_piece){ d->rank, keeper, part, offset, bytes },
                              place_of(own, part, begin));
    memcpy(place_of(own, part, begin), place_of(d->team->replicas[keeper].arena, part, begin), bytes);
    return TREK_OK;
}

/* Copies what others keep of the elements in a range. */
static trek_status copy_range(const trek_divided *d, const trek_arena_cut *range)
{
    const trek_buckets *buckets = &own_of(d)->reducer->buckets;
    trek_bucket_piece piece;
    trek_status status = TREK_OK;
    for (int64_t at = range->begin;
         status == TREK_OK && trek_buckets_next_piece(buckets, d->team->sharers, range->part, &at, range->end, &piece);)
        status = copy_piece(d, piece.owner, range->part, piece.begin, piece.end);
    return status;
}

/* --- memory ------------------------------------------------------------------------------ */

static trek_status take(const trek_arena *arena, const trek_arena_cut *range, bool surely)
{
    trek_pages *pages = arena->parts[range->part].param_pages;
    const void *from = place_of(arena, range->part, range->begin);
    size_t bytes = (size_t)(range->end - range->begin) * item_of(arena, range->part);
    if (!surely)
        return trek_pages_take(pages, from, bytes);
    trek_pages_take_surely(pages, from, bytes);
    return TREK_OK;
}

/* Gives back what is not the rank's own. */
static void give_back(const trek_arena *arena, int part, int64_t begin, int64_t end)
{
    trek_arena_cut piece;
    while (next_foreign(arena, part, &begin, end, &piece))
        trek_pages_give_back(arena->parts[part].param_pages, place_of(arena, part, piece.begin),
                             (size_t)(piece.end - piece.begin) * item_of(arena, part));
}

/* Called with the lock held. An op of another thread that reads meanwhile keeps what it has. readers: those that do not count. */
static void forget(trek_divided *d, int readers)
{
    const trek_arena *arena = own_of(d)->arena;
    if (d->ahead)
        trek_ahead_wait(d->ahead);
    for (int p = 0; p < arena->n_parts && d->readers == readers; p++)
        give_back(arena, p, 0, arena->parts[p].count);
    if (d->capacity > 0)
        memset(d->buckets, 0, (size_t)d->capacity * sizeof *d->buckets);
    d->n_gathered = 0;
}

/* Holds the rank's own cuts, and gives back the rest. */
static void hold_own(trek_divided *d)
{
    const trek_arena *arena = own_of(d)->arena;
    for (int p = 0; p < arena->n_parts; p++)
        trek_pages_release_holds(arena->parts[p].param_pages);
    for (int k = 0; k < arena->n_cuts; k++)
        trek_pages_hold(arena->parts[arena->cuts[k].part].param_pages,
                        place_of(arena, arena->cuts[k].part, arena->cuts[k].begin),
                        (size_t)(arena->cuts[k].end - arena->cuts[k].begin) * item_of(arena, arena->cuts[k].part));
    trek_lock_acquire(&d->lock);
    if (!d->written)
        forget(d, 0);
    trek_lock_release(&d->lock);
}

static void forget_now(trek_divided *d)
{
    trek_lock_acquire(&d->lock);
    forget(d, 0);
    if (d->ahead)
        trek_ahead_begin(d->ahead, false);
    trek_lock_release(&d->lock);
}

static trek_status make_room_for(trek_divided *d, int n)
{
    if (n <= d->capacity)
        return TREK_OK;
    bucket_state *more = trek_calloc((size_t)n, sizeof *more);
    if (!more)
        return TREK_ERR_MEMORY;
    if (d->capacity > 0)
        memcpy(more, d->buckets, (size_t)d->capacity * sizeof *more);
    trek_free(d->buckets);
    d->buckets = more;
    d->capacity = n;
    return TREK_OK;
}

/* Takes everything, and copies it. Other processes do not see it. Called with the lock held; readers: see forget. */
static trek_status take_all(trek_divided *d, int readers)
{
    const trek_arena *arena = own_of(d)->arena;
    if (d->ahead)
        trek_ahead_wait(d->ahead);
    trek_status status = d->team->lent ? trek_lent_withhold(d->team->lent) : TREK_OK;
    if (status != TREK_OK)
        return status;
    for (int p = 0; p < arena->n_parts && status == TREK_OK; p++) {
        trek_arena_cut all = { .part = p, .begin = 0, .end = arena->parts[p].count };
        take(arena, &all, true);
        status = copy_range(d, &all);
    }
    if (status == TREK_OK)
        return TREK_OK;
    forget(d, readers);
    trek_lent_show(d->team->lent);
    return status;
}

/* --- reading ----------------------------------------------------------------------------- */

/* Gives back the bucket that was gathered first, except those of this use. Returns false if there is none, or another op reads,
 * of another thread or around this one. */
static bool drop_one(trek_divided *d, uint64_t use)
{
    int found = -1;
    for (int k = 0; k < own_of(d)->reducer->buckets.n && d->readers == 1; k++)
        if (d->buckets[k].gathered && d->buckets[k].use != use && (found < 0 || d->buckets[k].order < d->buckets[found].order))
            found = k;
    if (found < 0)
        return false;
    const trek_bucket *bucket = &own_of(d)->reducer->buckets.list[found];
    d->buckets[found].gathered = d->buckets[found].ahead = false;
    d->n_gathered--;
    give_back(own_of(d)->arena, bucket->part, bucket->begin, bucket->begin + bucket->count);
    return true;
}

static trek_arena_cut whole_of(const trek_bucket *bucket)
{
    return (trek_arena_cut){ .part = bucket->part, .begin = bucket->begin, .end = bucket->begin + bucket->count };
}

/* Marks a bucket whose memory has been taken as gathered, or gives it back. */
static void settle_bucket(trek_divided *d, int k, trek_status status)
{
    const trek_bucket *bucket = &own_of(d)->reducer->buckets.list[k];
    bucket_state *state = &d->buckets[k];
    state->coming = false;
    state->gathered = status == TREK_OK;
    state->order = ++d->gatherings;
    if (status == TREK_OK)
        return;
    state->ahead = false;
    d->n_gathered--;
    give_back(own_of(d)->arena, bucket->part, bucket->begin, bucket->begin + bucket->count);
}

static trek_status copy_bucket(void *arg, int k)
{
    const trek_divided *d = arg;
    trek_arena_cut all = whole_of(&own_of(d)->reducer->buckets.list[k]);
    return copy_range(d, &all);
}

static void end_copy(void *arg, int k, trek_status status) { settle_bucket(arg, k, status); }

/* Takes memory if the account allows it. Otherwise nothing has happened. */
static trek_status take_if(const trek_divided *d, const trek_arena_cut *range)
{
    trek_kept_error first;
    trek_error_keep(&first);
    trek_status status = take(own_of(d)->arena, range, false);
    trek_error_clear();
    trek_error_put_back(&first);
    return status;
}

static trek_status gather(trek_divided *d, int k, uint64_t use)
{
    trek_arena_cut all = whole_of(&own_of(d)->reducer->buckets.list[k]);
    bucket_state *state = &d->buckets[k];
    state->use = use;
    if (d->ahead && !state->gathered) /* by which what is given back does not depend on the thread's pace */
        trek_ahead_wait(d->ahead);
    if (d->ahead && (!state->gathered || state->ahead))
        trek_ahead_note(d->ahead, k);
    d->gathered[state->ahead] += !state->gathered || state->ahead;
    state->ahead = false;
    if (state->gathered)
        return TREK_OK;
    while (d->n_gathered >= TREK_DIVIDED_BUCKETS && !d->keeps && drop_one(d, use))
        ;
    trek_status status = take_if(d, &all);
    while (status != TREK_OK && d->keeps && drop_one(d, use))
        status = take_if(d, &all);
    if (status != TREK_OK)
        status = take(own_of(d)->arena, &all, false);
    if (status != TREK_OK)
        return status;
    d->n_gathered++;
    status = copy_bucket(d, k);
    settle_bucket(d, k, status);
    return status;
}

/* Begins to gather what will be read next, in memory for one bucket more than those that an op reads. Where that exceeds a
 * budget, nothing is gathered ahead. */
static void gather_next(trek_divided *d, uint64_t use)
{
    int next = trek_ahead_next(d->ahead), most = 1;
    if (next < 0 || d->buckets[next].coming)
        return;
    trek_ahead_wait(d->ahead);
    if (d->buckets[next].gathered)
        return;
    for (int k = 0; k < own_of(d)->reducer->buckets.n; k++)
        most += d->buckets[k].gathered && d->buckets[k].use == use;
    most = d->keeps ? INT_MAX : most > TREK_DIVIDED_BUCKETS ? most : TREK_DIVIDED_BUCKETS;
    while (d->n_gathered >= most && drop_one(d, use))
        ;
    if (d->n_gathered >= most)
        return;
    trek_arena_cut all = whole_of(&own_of(d)->reducer->buckets.list[next]);
    if (take_if(d, &all) != TREK_OK)
        return;
    d->n_gathered++;
    d->buckets[next].coming = d->buckets[next].ahead = true;
    d->buckets[next].use = 0;
    trek_ahead_start(d->ahead, next);
}

/* Gathers the buckets in which elements lie that are not the rank's own. */
static trek_status gather_range(trek_divided *d, const trek_arena_cut *range, uint64_t use)
{
    const trek_buckets *buckets = &own_of(d)->reducer->buckets;
    if (d->written || is_own(own_of(d)->arena, range))
        return TREK_OK;
    trek_status status = trek_divided_check(d->team, "parameters");
    for (int k = trek_buckets_find(buckets, range->part, range->begin);
         k < buckets->n && overlaps(&buckets->list[k], range) && status == TREK_OK; k++)
        status = gather(d, k, use);
    if (status == TREK_OK && d->ahead)
        gather_next(d, use);
    return status;
}

static trek_status read_bytes(void *arg, const void *from, size_t bytes, uint64_t use, bool first)
{
    trek_divided *d = arg;
    trek_arena_cut range = range_of(own_of(d)->arena, from, bytes);
    trek_lock_acquire(&d->lock);
    d->readers += first;
    trek_status status = gather_range(d, &range, use);
    trek_lock_release(&d->lock);
    return status;
}

static void leave_op(void *arg)
{
    trek_divided *d = arg;
    trek_lock_acquire(&d->lock);
    d->readers--;
    trek_lock_release(&d->lock);
}

/* --- writing ----------------------------------------------------------------------------- */

/* Waits until nothing is being copied. */
static void rest(trek_divided *d)
{
    trek_lock_acquire(&d->lock);
    if (d->ahead)
        trek_ahead_wait(d->ahead);
    trek_lock_release(&d->lock);
}

void trek_divided_rest(const trek_team *team)
{
    for (int r = 0; r < team->local_ranks; r++)
        if (team->replicas[r].divided)
            rest(team->replicas[r].divided);
}

static trek_status begin_writing(trek_divided *d, const trek_arena_cut *range)
{
    if (d->updates && is_own(own_of(d)->arena, range))
        return TREK_OK;
    if (d->updates || d->rank != 0 || trek_ranks_are_running(d->team->ranks))
        return trek_fail(TREK_ERR_UNSUPPORTED, "parameters: they are divided over ranks (TREK_SHARD_PARAMETERS), and something "
                                               "writes them in a pass or a step; only the optimizer can");
    for (int r = 1; r < d->team->local_ranks && !d->written; r++) /* they may still copy what is written now */
        rest(d->team->replicas[r].divided);
    trek_status status = d->written ? TREK_OK : take_all(d, 1);
    d->written |= status == TREK_OK;
    return status;
}

static trek_status write_bytes(void *arg, const void *from, size_t bytes, uint64_t use, bool first)
{
    trek_divided *d = arg;
    trek_arena_cut range = range_of(own_of(d)->arena, from, bytes);
    (void)use;
    trek_lock_acquire(&d->lock);
    d->readers += first;
    trek_status status = begin_writing(d, &range);
    trek_lock_release(&d->lock);
    return status;
}

trek_status trek_divided_check(const trek_team *team, const char *what)
{
    const trek_divided *first = team->replicas[0].divided;
    return !first || !first->written ? TREK_OK
        : trek_fail(TREK_ERR_STATE, "%s: the graph's parameters were written, and the other ranks have parts of them "
                                    "(TREK_SHARD_PARAMETERS); call trek_graph_parameters_changed before", what);
}

static trek_status take_written(int rank, void *arg)
{
    const trek_team *team = arg;
    trek_divided *d = team->replicas[rank].divided;
    const trek_arena *own = own_of(d)->arena, *first = team->replicas[0].arena;
    if (rank == 0)
        return TREK_OK;
    forget_now(d);
    for (int k = 0; k < own->n_cuts; k++) {
        const trek_arena_cut *cut = &own->cuts[k];
        memcpy(place_of(own, cut->part, cut->begin), place_of(first, cut->part, cut->begin),
               (size_t)(cut->end - cut->begin) * item_of(own, cut->part));
    }
    for (int k = 0; k < own->n_segments; k++)
        trek_tensor_bump(own->segments[k].param->data);
    return TREK_OK;
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
    first->written = false;
    forget_now(first);
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
    trek_status status = trek_ranks_call(team->ranks, take_written, team);
    if (status != TREK_OK)
        return status;
    first->written = false;
    forget_now(first);
    return TREK_OK;
}

/* --- beginning and end --------------------------------------------------------------------- */

static trek_status begin_rank(int rank, void *arg)
{
    const trek_team *team = arg;
    rank_replica *own = &team->replicas[rank];
    trek_divided *d = own->divided = trek_calloc(1, sizeof *d);
    if (!d)
        return TREK_ERR_MEMORY;
    *d = (trek_divided){ .team = team, .rank = rank, .keeper = { read_bytes, write_bytes, leave_op, d } };
    trek_lock_init(&d->lock);
    trek_status status = make_room_for(d, own->reducer->buckets.n);
    if (status != TREK_OK || !team->gathers_ahead)
        return status;
    d->ahead = trek_ahead_new(&(trek_ahead_work){ copy_bucket, end_copy, d, &d->lock }, own->reducer->buckets.n);
    return d->ahead ? TREK_OK : trek_error_status();
}

static trek_status divide_rank(int rank, void *arg)
{
    trek_divided *d = ((const trek_team *)arg)->replicas[rank].divided;
    const trek_arena *arena = own_of(d)->arena;
    hold_own(d);
    for (int p = 0; p < arena->n_parts; p++)
        trek_pages_set_keeper(arena->parts[p].param_pages, &d->keeper);
    return TREK_OK;
}

static trek_status end_rank(int rank, void *arg)
{
    rank_replica *own = &((const trek_team *)arg)->replicas[rank];
    trek_divided *d = own->divided;
    own->divided = NULL;
    if (!d)
        return TREK_OK;
    trek_ahead_free(&d->ahead);
    trek_lock_destroy(&d->lock);
    trek_free(d->buckets);
    trek_free(d);
    return TREK_OK;
}

/* Lends the parameters of the ranks to each other and to those of other processes. own: this process's status. */
static trek_status lend(trek_team *team, trek_comm *comm, trek_status own)
{
    int n = team->replicas[0].arena->n_parts;
    trek_pages **pages = trek_calloc((size_t)(team->local_ranks * n), sizeof(trek_pages *));
    for (int r = 0; r < team->local_ranks && pages; r++)
        for (int p = 0; p < n; p++)
            pages[r * n + p] = team->replicas[r].arena->parts[p].param_pages;
    trek_lent_opts opts = { .pages = pages, .ranks = team->local_ranks, .n = n, .what = "parameters" };
    trek_status status = trek_replica_agree(comm, own == TREK_OK && !pages ? TREK_ERR_MEMORY : own, "trainer_setup: .shard");
    if (status == TREK_OK)
        status = trek_replica_agree(comm, trek_lent_new(comm, &opts, &team->lent), "trainer_setup: .shard");
    if (status != TREK_OK)
        trek_lent_free(&team->lent);
    trek_free(pages);
    return status;
}

trek_status trek_divided_begin(trek_team *team, trek_comm *comm)
{
    trek_status status = trek_ranks_call(team->ranks, begin_rank, team);
    if (comm)
        status = lend(team, comm, status);
    if (status == TREK_OK)
        status = trek_ranks_call(team->ranks, divide_rank, team);
    if (status != TREK_OK)
        trek_ranks_call(team->ranks, end_rank, team);
    return status;
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
    const trek_arena *arena = own_of(d)->arena;
    bool works = trek_memory_account_work(false), has_all = d->written || !team->lent;
    trek_lock_acquire(&d->lock);
    if (rank == 0 && !d->written && !(team->lent && team->graph_ends))
        has_all = take_all(d, 0) == TREK_OK;
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
    trek_ranks_call(team->ranks, end_rank, team);
    trek_lent_free(&team->lent);
    trek_error_clear();
    trek_error_put_back(&first);
}

/* --- cuts, and updates ----------------------------------------------------------------------- */

trek_status trek_divided_prepare(const rank_replica *replica, const trek_sharer_cuts *next)
{
    trek_divided *d = replica->divided;
    if (!d)
        return TREK_OK;
    rest(d); /* others may give back what it copies from them */
    trek_status status = make_room_for(d, next->buckets.n);
    if (status == TREK_OK && d->team->lent) /* a program's values are not lent */
        status = trek_divided_check(d->team, "graph_set_optimizer");
    for (int k = 0; k < next->division.n_cuts && status == TREK_OK && !d->written; k++) {
        const trek_arena_cut *cut = &next->division.cuts[k];
        take(replica->arena, cut, true);
        status = copy_range(d, cut);
    }
    return status;
}

void trek_divided_settle(const rank_replica *replica)
{
    if (!replica->divided)
        return;
    hold_own(replica->divided);
    trek_lock_acquire(&replica->divided->lock);
    if (replica->divided->ahead)
        trek_ahead_begin(replica->divided->ahead, true);
    trek_lock_release(&replica->divided->lock);
}

void trek_divided_keep(const rank_replica *replica, bool keeps) { replica->divided->keeps = keeps; }

int64_t trek_divided_gathered(const rank_replica *replica, bool ahead) { return replica->divided->gathered[ahead]; }

void trek_divided_begin_update(const rank_replica *replica)
{
    if (!replica->divided)
        return;
    forget_now(replica->divided);
    replica->divided->updates = true;
    if (replica->divided->team->lent)
        trek_lent_begin_update(replica->divided->team->lent, replica->divided->rank);
}

void trek_divided_end_update(const rank_replica *replica)
{
    if (!replica->divided)
        return;
    replica->divided->updates = false;
    if (replica->divided->team->lent)
        trek_lent_end_update(replica->divided->team->lent, replica->divided->rank);
}

void trek_divided_forget(const trek_team *team)
{
    for (int r = 0; r < team->local_ranks; r++)
        if (team->replicas[r].divided && !team->replicas[r].divided->written)
            forget_now(team->replicas[r].divided);
}
