/* SPDX-License-Identifier: Apache-2.0 */
#include "distributed/team/divided.h"

#include <limits.h>
#include <string.h>

#include "autograd/var_internal.h"
#include "distributed/comm/shared/lent.h"
#include "distributed/system/system.h"
#include "distributed/team/ahead.h"
#include "distributed/team/copier.h"
#include "tensor/memory_account.h"
#include "tensor/pages.h"
#include "tensor/rank_context.h"
#include "tensor/try_internal.h"

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
    trek_copier *copier;     /* of a GPU rank; NULL: of a CPU rank */
    trek_tensor **shown;     /* [parts] what other processes read of a GPU rank's parameters, in host memory; NULL: nothing */
    const trek_rank_context *thread; /* the rank's own */
    bool follows;            /* copies follow the last update of all ranks */
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

/* What is lent lies in host memory. */
static trek_status read_lent(const trek_divided *d, const trek_lent_piece *piece, char *to)
{
    char *room = d->copier ? trek_copier_room(d->copier, piece->bytes) : to;
    trek_status status = room ? trek_lent_read(d->team->lent, piece, room) : trek_error_status();
    trek_status sent = d->copier && room ? trek_copier_send(d->copier, status == TREK_OK ? to : NULL, room, piece->bytes)
                                         : TREK_OK;
    return status == TREK_OK ? sent : status;
}

/* Copies elements from the sharer that keeps them: one of the ranks of all processes. */
static trek_status copy_piece(const trek_divided *d, int keeper, int part, int64_t begin, int64_t end)
{
    const trek_arena *own = own_of(d)->arena;
    if (begin >= end || keeper == own->sharer)
        return TREK_OK;
    size_t offset = (size_t)begin * item_of(own, part), bytes = (size_t)(end - begin) * item_of(own, part);
    char *to = place_of(own, part, begin);
    if (d->team->lent)
        return read_lent(d, &(trek_lent_piece){ d->rank, keeper, part, offset, bytes }, to);
    const rank_replica *other = &d->team->replicas[keeper];
    return trek_copier_copy(d->copier, to, place_of(other->arena, part, begin), other->divided->copier, bytes);
}

/* Copies what others keep of the elements in a range. */
static trek_status copy_elements(const trek_divided *d, const trek_arena_cut *range)
{
    const trek_buckets *buckets = &own_of(d)->reducer->buckets;
    trek_bucket_piece piece;
    trek_status status = TREK_OK;
    for (int64_t at = range->begin;
         status == TREK_OK && trek_buckets_next_piece(buckets, d->team->sharers, range->part, &at, range->end, &piece);)
        status = copy_piece(d, piece.owner, range->part, piece.begin, piece.end);
    return status;
}

/* What the ranks of this process keep was updated in the order of their own streams. */
static trek_status follow_keepers(trek_divided *d)
{
    trek_status status = TREK_OK;
    for (int r = 0; r < d->team->local_ranks && status == TREK_OK && !d->follows; r++)
        if (r != d->rank)
            status = trek_copier_follow(d->copier, d->team->replicas[r].divided->copier);
    d->follows = status == TREK_OK;
    return status;
}

/* Begins copies to memory that was taken. Only the rank's own thread uses memory in the order in which it is taken. */
static trek_status begin_copies(trek_divided *d)
{
    TRY(follow_keepers(d));
    if (d->copier && d->thread != &trek_rank_here)
        TRY(trek_copier_finish(d->copier));
    return trek_copier_begin(d->copier);
}

/* Copies what others keep of a range, and waits for it. */
static trek_status copy_range(trek_divided *d, const trek_arena_cut *range)
{
    trek_status status = begin_copies(d);
    if (status == TREK_OK)
        status = copy_elements(d, range);
    trek_status ended = trek_copier_finish(d->copier);
    return status == TREK_OK ? ended : status;
}

/* --- memory ------------------------------------------------------------------------------ */

static trek_status take(const trek_arena *arena, const trek_arena_cut *range, bool surely)
{
    trek_pages *pages = arena->parts[range->part].param_pages;
    const void *from = place_of(arena, range->part, range->begin);
    size_t bytes = (size_t)(range->end - range->begin) * item_of(arena, range->part);
    return surely ? trek_pages_take_surely(pages, from, bytes) : trek_pages_take(pages, from, bytes);
}

/* Gives back what is not the rank's own, of pages that have a part's layout. */
static void give_back_in(const trek_arena *arena, int part, trek_pages *pages, int64_t begin, int64_t end)
{
    size_t item = item_of(arena, part);
    trek_arena_cut piece;
    while (next_foreign(arena, part, &begin, end, &piece))
        trek_pages_give_back(pages, trek_pages_memory(pages) + (size_t)piece.begin * item,
                             (size_t)(piece.end - piece.begin) * item);
}

static void give_back(const trek_arena *arena, int part, int64_t begin, int64_t end)
{
    give_back_in(arena, part, arena->parts[part].param_pages, begin, end);
}

/* Waits for copies ahead of their use: by a thread, or by a GPU if there is one that nobody has used. */
static void end_ahead(trek_divided *d)
{
    bool unused = false;
    if (d->ahead)
        trek_ahead_wait(d->ahead);
    for (int k = 0; k < d->capacity && d->copier; k++)
        unused |= d->buckets[k].ahead;
    if (unused)
        trek_copier_finish(d->copier);
}

/* Called with the lock held. An op of another thread that reads meanwhile keeps what it has. readers: those that do not count. */
static void forget(trek_divided *d, int readers)
{
    const trek_arena *arena = own_of(d)->arena;
    end_ahead(d);
    for (int p = 0; p < arena->n_parts && d->readers == readers; p++)
        give_back(arena, p, 0, arena->parts[p].count);
    if (d->capacity > 0)
        memset(d->buckets, 0, (size_t)d->capacity * sizeof *d->buckets);
    d->n_gathered = 0;
}

/* Makes what other processes read of a GPU's parameters: a copy of its own cuts in host memory. */
static trek_status make_shown(trek_divided *d)
{
    const trek_arena *arena = own_of(d)->arena;
    if (!(d->shown = trek_calloc((size_t)arena->n_parts, sizeof *d->shown)))
        return TREK_ERR_MEMORY;
    for (int p = 0; p < arena->n_parts; p++)
        if (!(d->shown[p] = trek_pages_zeros(trek_dims(arena->parts[p].count), arena->parts[p].dtype, trek_cpu(0))))
            return trek_error_status();
    return TREK_OK;
}

static char *shown_at(const trek_divided *d, const trek_arena_cut *cut, size_t *bytes)
{
    size_t item = item_of(own_of(d)->arena, cut->part);
    *bytes = (size_t)(cut->end - cut->begin) * item;
    return d->shown[cut->part]->data + (size_t)cut->begin * item;
}

/* Copies cuts there, if there is such a copy. */
static trek_status show_own(const trek_divided *d, const trek_arena_cut *cuts, int n)
{
    trek_status status = TREK_OK;
    for (int k = 0; k < n && status == TREK_OK && d->shown; k++) {
        size_t bytes;
        char *to = shown_at(d, &cuts[k], &bytes);
        trek_pages_take_surely(trek_pages_of(d->shown[cuts[k].part]), to, bytes);
        status = trek_copier_fetch(d->copier, to, place_of(own_of(d)->arena, cuts[k].part, cuts[k].begin), bytes);
    }
    return status;
}

/* Holds cuts in pages [parts], and nothing else. */
static void hold_cuts(const trek_divided *d, trek_pages *const *pages)
{
    const trek_arena *arena = own_of(d)->arena;
    for (int p = 0; p < arena->n_parts; p++)
        trek_pages_release_holds(pages[p]);
    for (int k = 0; k < arena->n_cuts; k++) {
        const trek_arena_cut *cut = &arena->cuts[k];
        size_t item = item_of(arena, cut->part);
        trek_pages_hold(pages[cut->part], trek_pages_memory(pages[cut->part]) + (size_t)cut->begin * item,
                        (size_t)(cut->end - cut->begin) * item);
    }
}

/* Holds the rank's own cuts, and gives back the rest. */
static void hold_own(trek_divided *d)
{
    const trek_arena *arena = own_of(d)->arena;
    trek_pages *params[TREK_DTYPE_COUNT], *shown[TREK_DTYPE_COUNT];
    for (int p = 0; p < arena->n_parts; p++) {
        params[p] = arena->parts[p].param_pages;
        shown[p] = d->shown ? trek_pages_of(d->shown[p]) : NULL;
    }
    hold_cuts(d, params);
    if (d->shown)
        hold_cuts(d, shown);
    for (int p = 0; p < arena->n_parts && d->shown; p++)
        give_back_in(arena, p, shown[p], 0, arena->parts[p].count);
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
    end_ahead(d);
    trek_status status = d->team->lent ? trek_lent_withhold(d->team->lent) : TREK_OK;
    if (status != TREK_OK)
        return status;
    for (int p = 0; p < arena->n_parts && status == TREK_OK; p++) {
        trek_arena_cut all = { .part = p, .begin = 0, .end = arena->parts[p].count };
        status = take(arena, &all, true);
        if (status == TREK_OK)
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
    if (d->buckets[found].ahead && trek_copier_finish(d->copier) != TREK_OK) /* it was not needed */
        return false;
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
    trek_copier_finish(d->copier);
    give_back(own_of(d)->arena, bucket->part, bucket->begin, bucket->begin + bucket->count);
}

static trek_status copy_bucket(void *arg, int k)
{
    const trek_divided *d = arg;
    trek_arena_cut all = whole_of(&own_of(d)->reducer->buckets.list[k]);
    return copy_elements(d, &all);
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

/* Copies a bucket to memory that was taken. A GPU may not have done so when it returns. */
static trek_status copy_beside(trek_divided *d, int k)
{
    trek_status status = begin_copies(d);
    if (status == TREK_OK)
        status = copy_bucket(d, k);
    trek_status ended = trek_copier_end(d->copier);
    return status == TREK_OK ? ended : status;
}

/* Lets the op that follows wait for what a GPU copies. */
static trek_status use_copies(const trek_divided *d)
{
    return d->copier && d->thread != &trek_rank_here ? trek_copier_finish(d->copier) : trek_copier_use(d->copier);
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
    bool was_ahead = state->ahead;
    state->ahead = false;
    if (state->gathered)
        return was_ahead ? use_copies(d) : TREK_OK;
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
    status = copy_beside(d, k);
    if (status == TREK_OK)
        status = use_copies(d);
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
    if (d->copier)
        settle_bucket(d, next, copy_beside(d, next));
    else
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

/* What another thread has put on a GPU may still read. */
static void leave_op(void *arg)
{
    trek_divided *d = arg;
    if (d->copier && d->thread != &trek_rank_here)
        trek_copier_finish(d->copier);
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
    trek_copier_finish(d->copier);
    trek_lock_release(&d->lock);
}

/* GPUs whose parameters are copied wait by themselves, before they update. */
void trek_divided_rest(const trek_team *team)
{
    for (int r = 0; r < team->local_ranks; r++) {
        trek_divided *d = team->replicas[r].divided;
        if (d && d->copier)
            trek_copier_rest(d->copier);
        else if (d)
            rest(d);
    }
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
        return show_own(d, own->cuts, own->n_cuts);
    forget_now(d);
    trek_status status = trek_copier_begin(d->copier);
    for (int k = 0; k < own->n_cuts && status == TREK_OK; k++) {
        const trek_arena_cut *cut = &own->cuts[k];
        status = trek_copier_copy(d->copier, place_of(own, cut->part, cut->begin), place_of(first, cut->part, cut->begin),
                                  team->replicas[0].divided->copier,
                                  (size_t)(cut->end - cut->begin) * item_of(own, cut->part));
    }
    for (int k = 0; k < own->n_segments; k++)
        trek_tensor_bump(own->segments[k].param->data);
    trek_status ended = trek_copier_finish(d->copier);
    status = status == TREK_OK ? ended : status;
    return status == TREK_OK ? show_own(d, own->cuts, own->n_cuts) : status;
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
    trek_status status = trek_copier_finish(first->copier); /* what the program has written */
    if (status == TREK_OK)
        status = trek_ranks_call(team->ranks, take_written, team);
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
    d->thread = &trek_rank_here;
    trek_lock_init(&d->lock);
    trek_status status = make_room_for(d, own->reducer->buckets.n);
    if (status == TREK_OK)
        status = trek_copier_new(own->arena->device, &d->copier);
    if (status == TREK_OK && d->copier && team->lends)
        status = make_shown(d);
    if (status == TREK_OK)
        status = show_own(d, own->arena->cuts, own->arena->n_cuts);
    if (status != TREK_OK || !team->gathers_ahead)
        return status;
    d->ahead = trek_ahead_new(&(trek_ahead_work){ d->copier ? NULL : copy_bucket, end_copy, d, &d->lock },
                              own->reducer->buckets.n);
    return d->ahead ? TREK_OK : trek_error_status();
}

static trek_status divide_rank(int rank, void *arg)
{
    trek_divided *d = ((const trek_team *)arg)->replicas[rank].divided;
    const trek_arena *arena = own_of(d)->arena;
    trek_status status = trek_copier_finish(d->copier); /* others read what was written until now */
    hold_own(d);
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

trek_status trek_divided_begin(trek_team *team, trek_comm *comm)
{
    team->lends = comm != NULL;
    trek_status status = trek_ranks_call(team->ranks, begin_rank, team);
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
    trek_lent_free(&team->lent); /* before what is lent */
    trek_ranks_call(team->ranks, end_rank, team);
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
        status = take(replica->arena, cut, true);
        if (status == TREK_OK)
            status = copy_range(d, cut);
    }
    return status == TREK_OK ? show_own(d, next->division.cuts, next->division.n_cuts) : status;
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

trek_status trek_divided_begin_update(const rank_replica *replica)
{
    trek_divided *d = replica->divided;
    trek_status status = TREK_OK;
    if (!d)
        return TREK_OK;
    forget_now(d);
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
    trek_status status = show_own(d, own_of(d)->arena->cuts, own_of(d)->arena->n_cuts);
    if (d->team->lent)
        trek_lent_end_update(d->team->lent, d->rank);
    trek_status updated = trek_copier_updated(d->copier);
    return status == TREK_OK ? updated : status;
}

void trek_divided_forget(const trek_team *team)
{
    for (int r = 0; r < team->local_ranks; r++)
        if (team->replicas[r].divided && !team->replicas[r].divided->written)
            forget_now(team->replicas[r].divided);
}
