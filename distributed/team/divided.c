/* SPDX-License-Identifier: Apache-2.0 */
#include "distributed/team/divided.h"

#include <string.h>

#include "autograd/var_internal.h"
#include "distributed/system/system.h"
#include "tensor/memory_account.h"
#include "tensor/pages.h"

/* Of one bucket. */
typedef struct bucket_state {
    bool gathered;           /* its pieces of others are here */
    uint64_t use, order;     /* by which it was read last; when it was gathered */
} bucket_state;

struct trek_divided {
    const trek_team *team;
    int rank;
    trek_pages_keeper keeper;
    int capacity, n_gathered;
    bucket_state *buckets;   /* [capacity], by the number of the reducer's bucket */
    trek_lock lock;          /* of all below, since several threads may read rank 0's parameters (trek_graph_infer) */
    int readers;             /* ops that are reading: nothing is given back that is not theirs alone */
    uint64_t gatherings;
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

/* Returns the first bucket that ends behind an element of a part. Buckets lie in the order of parts and elements. */
static int first_bucket(const trek_buckets *buckets, int part, int64_t at)
{
    int low = 0, high = buckets->n;
    while (low < high) {
        int middle = (low + high) / 2;
        const trek_bucket *b = &buckets->list[middle];
        if (b->part < part || (b->part == part && b->begin + b->count <= at))
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static bool overlaps(const trek_bucket *bucket, const trek_arena_cut *range)
{
    return bucket->part == range->part && bucket->begin < range->end && range->begin < bucket->begin + bucket->count;
}

/* Copies elements from the rank that keeps them. */
static void copy_piece(const trek_divided *d, int keeper, int part, int64_t begin, int64_t end)
{
    const trek_arena *own = own_of(d)->arena;
    if (begin < end && keeper != d->rank)
        memcpy(place_of(own, part, begin), place_of(d->team->replicas[keeper].arena, part, begin),
               (size_t)(end - begin) * item_of(own, part));
}

/* Copies what others keep of the elements that lie in a bucket and in a range. */
static void copy_from_bucket(const trek_divided *d, const trek_bucket *bucket, const trek_arena_cut *range)
{
    int64_t begin = range->begin > bucket->begin ? range->begin : bucket->begin, stop = bucket->begin + bucket->count;
    stop = range->end < stop ? range->end : stop;
    if (bucket->owner >= 0) {
        copy_piece(d, bucket->owner, bucket->part, begin, stop);
        return;
    }
    int64_t each = bucket->count / d->team->sharers;
    for (int k = 0; k < d->team->sharers; k++) {
        int64_t first = bucket->begin + k * each, last = first + each;
        copy_piece(d, k, bucket->part, first > begin ? first : begin, last < stop ? last : stop);
    }
}

static void copy_range(const trek_divided *d, const trek_arena_cut *range)
{
    const trek_buckets *buckets = &own_of(d)->reducer->buckets;
    for (int k = first_bucket(buckets, range->part, range->begin); k < buckets->n && overlaps(&buckets->list[k], range); k++)
        copy_from_bucket(d, &buckets->list[k], range);
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

/* An op of another thread that reads meanwhile keeps what it has. */
static void forget(trek_divided *d)
{
    const trek_arena *arena = own_of(d)->arena;
    for (int p = 0; p < arena->n_parts && d->readers == 0; p++)
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
    if (!d->written)
        forget(d);
}

static void forget_now(trek_divided *d)
{
    trek_lock_acquire(&d->lock);
    forget(d);
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

/* Takes everything, and copies it. */
static void take_all(trek_divided *d)
{
    const trek_arena *arena = own_of(d)->arena;
    for (int p = 0; p < arena->n_parts; p++) {
        trek_arena_cut all = { .part = p, .begin = 0, .end = arena->parts[p].count };
        take(arena, &all, true);
        copy_range(d, &all);
    }
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
    d->buckets[found].gathered = false;
    d->n_gathered--;
    give_back(own_of(d)->arena, bucket->part, bucket->begin, bucket->begin + bucket->count);
    return true;
}

static trek_status gather(trek_divided *d, int k, uint64_t use)
{
    const trek_bucket *bucket = &own_of(d)->reducer->buckets.list[k];
    trek_arena_cut all = { .part = bucket->part, .begin = bucket->begin, .end = bucket->begin + bucket->count };
    bucket_state *state = &d->buckets[k];
    state->use = use;
    if (state->gathered)
        return TREK_OK;
    while (d->n_gathered >= TREK_DIVIDED_BUCKETS && drop_one(d, use))
        ;
    trek_status status = take(own_of(d)->arena, &all, false);
    if (status != TREK_OK)
        return status;
    copy_from_bucket(d, bucket, &all);
    state->gathered = true;
    state->order = ++d->gatherings;
    d->n_gathered++;
    return TREK_OK;
}

/* Gathers the buckets in which elements lie that are not the rank's own. */
static trek_status gather_range(trek_divided *d, const trek_arena_cut *range, uint64_t use)
{
    const trek_buckets *buckets = &own_of(d)->reducer->buckets;
    if (d->written || is_own(own_of(d)->arena, range))
        return TREK_OK;
    trek_status status = trek_divided_check(d->team, "parameters");
    for (int k = first_bucket(buckets, range->part, range->begin);
         k < buckets->n && overlaps(&buckets->list[k], range) && status == TREK_OK; k++)
        status = gather(d, k, use);
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

static trek_status begin_writing(trek_divided *d, const trek_arena_cut *range)
{
    if (d->updates && is_own(own_of(d)->arena, range))
        return TREK_OK;
    if (d->updates || d->rank != 0 || trek_ranks_are_running(d->team->ranks))
        return trek_fail(TREK_ERR_UNSUPPORTED, "parameters: they are divided over ranks (TREK_SHARD_PARAMETERS), and something "
                                               "writes them in a pass or a step; only the optimizer can");
    if (!d->written)
        take_all(d);
    d->written = true;
    return TREK_OK;
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
    const trek_arena *own = own_of(d)->arena;
    if (rank == 0)
        return TREK_OK;
    forget_now(d);
    for (int k = 0; k < own->n_cuts; k++)
        copy_piece(d, 0, own->cuts[k].part, own->cuts[k].begin, own->cuts[k].end);
    for (int k = 0; k < own->n_segments; k++)
        trek_tensor_bump(own->segments[k].param->data);
    return TREK_OK;
}

trek_status trek_divided_take_written(trek_team *team)
{
    trek_divided *first = team->replicas[0].divided;
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
    return make_room_for(d, own->reducer->buckets.n);
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
    trek_lock_destroy(&d->lock);
    trek_free(d->buckets);
    trek_free(d);
    return TREK_OK;
}

trek_status trek_divided_begin(trek_team *team)
{
    trek_status status = trek_ranks_call(team->ranks, begin_rank, team);
    if (status == TREK_OK)
        status = trek_ranks_call(team->ranks, divide_rank, team);
    if (status != TREK_OK)
        trek_ranks_call(team->ranks, end_rank, team);
    return status;
}

/* Results may outlive the ranks, and what backward has saved must not be read any more. */
static trek_status leave_rank(int rank, void *arg)
{
    const trek_team *team = arg;
    trek_divided *d = team->replicas[rank].divided;
    const trek_arena *arena = own_of(d)->arena;
    bool works = trek_memory_account_work(false);
    if (rank == 0 && !d->written)
        take_all(d);
    for (int p = 0; p < arena->n_parts; p++)
        trek_pages_set_keeper(arena->parts[p].param_pages, NULL);
    for (int k = 0; k < arena->n_segments && rank > 0; k++)
        trek_tensor_bump(arena->segments[k].param->data);
    trek_memory_account_work(works);
    return TREK_OK;
}

void trek_divided_end(trek_team *team)
{
    if (!team->replicas[0].divided)
        return;
    trek_ranks_call(team->ranks, leave_rank, team);
    trek_ranks_call(team->ranks, end_rank, team);
}

/* --- cuts, and updates ----------------------------------------------------------------------- */

trek_status trek_divided_prepare(const rank_replica *replica, const trek_sharer_cuts *next)
{
    trek_divided *d = replica->divided;
    if (!d)
        return TREK_OK;
    trek_status status = make_room_for(d, next->buckets.n);
    for (int k = 0; k < next->division.n_cuts && status == TREK_OK && !d->written; k++) {
        const trek_arena_cut *cut = &next->division.cuts[k];
        take(replica->arena, cut, true);
        copy_range(d, cut);
    }
    return status;
}

void trek_divided_settle(const rank_replica *replica)
{
    if (replica->divided)
        hold_own(replica->divided);
}

void trek_divided_begin_update(const rank_replica *replica)
{
    if (!replica->divided)
        return;
    forget_now(replica->divided);
    replica->divided->updates = true;
}

void trek_divided_end_update(const rank_replica *replica)
{
    if (replica->divided)
        replica->divided->updates = false;
}

void trek_divided_forget(const trek_team *team)
{
    for (int r = 0; r < team->local_ranks; r++)
        if (team->replicas[r].divided && !team->replicas[r].divided->written)
            forget_now(team->replicas[r].divided);
}
