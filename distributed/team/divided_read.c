/* SPDX-License-Identifier: Apache-2.0 */
/* Gathering buckets of divided parameters when they are read, and before, and giving them back. */
#include "distributed/team/divided_internal.h"

#include <limits.h>
#include <string.h>

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

void trek_divided_drop_copies(trek_divided *d, int readers)
{
    const trek_arena *arena = trek_divided_own(d)->arena;
    end_ahead(d);
    for (int p = 0; p < arena->n_parts && d->readers == readers; p++)
        trek_divided_give_back(arena, p, 0, arena->parts[p].count);
    if (d->capacity > 0)
        memset(d->buckets, 0, (size_t)d->capacity * sizeof *d->buckets);
    d->n_gathered = 0;
}

void trek_divided_forget_now(trek_divided *d)
{
    trek_lock_acquire(&d->lock);
    trek_divided_drop_copies(d, 0);
    if (d->ahead)
        trek_ahead_begin(d->ahead, false);
    trek_lock_release(&d->lock);
}

trek_status trek_divided_take_all(trek_divided *d, int readers)
{
    const trek_arena *arena = trek_divided_own(d)->arena;
    end_ahead(d);
    trek_status status = d->team->lent ? trek_lent_withhold(d->team->lent) : TREK_OK;
    if (status != TREK_OK)
        return status;
    for (int p = 0; p < arena->n_parts && status == TREK_OK; p++) {
        trek_arena_cut all = { .part = p, .begin = 0, .end = arena->parts[p].count };
        status = trek_divided_take(arena, &all, true);
        if (status == TREK_OK)
            status = trek_divided_copy_range(d, &all);
    }
    if (status == TREK_OK)
        return TREK_OK;
    trek_divided_drop_copies(d, readers);
    if (d->team->lent)
        trek_lent_show(d->team->lent);
    return status;
}

/* Gives back the bucket that was gathered first, except those of this use. Returns false if there is none, or another op reads,
 * of another thread or around this one. */
static bool drop_one(trek_divided *d, uint64_t use)
{
    int found = -1;
    for (int k = 0; k < trek_divided_own(d)->reducer->buckets.n && d->readers == 1; k++)
        if (d->buckets[k].gathered && d->buckets[k].use != use && (found < 0 || d->buckets[k].order < d->buckets[found].order))
            found = k;
    if (found < 0)
        return false;
    const trek_bucket *bucket = &trek_divided_own(d)->reducer->buckets.list[found];
    if (d->buckets[found].ahead && trek_copier_finish(d->copier) != TREK_OK) /* it was not needed */
        return false;
    d->buckets[found].gathered = d->buckets[found].ahead = false;
    d->n_gathered--;
    trek_divided_give_back(trek_divided_own(d)->arena, bucket->part, bucket->begin, bucket->begin + bucket->count);
    return true;
}

static trek_arena_cut whole_of(const trek_bucket *bucket)
{
    return (trek_arena_cut){ .part = bucket->part, .begin = bucket->begin, .end = bucket->begin + bucket->count };
}

/* Marks a bucket whose memory has been taken as gathered, or gives it back. */
static void settle_bucket(trek_divided *d, int k, trek_status status)
{
    const trek_bucket *bucket = &trek_divided_own(d)->reducer->buckets.list[k];
    trek_divided_bucket *state = &d->buckets[k];
    state->coming = false;
    state->gathered = status == TREK_OK;
    state->order = ++d->gatherings;
    if (status == TREK_OK)
        return;
    state->ahead = false;
    d->n_gathered--;
    trek_copier_finish(d->copier);
    trek_divided_give_back(trek_divided_own(d)->arena, bucket->part, bucket->begin, bucket->begin + bucket->count);
}

trek_status trek_divided_copy_bucket(void *arg, int k)
{
    const trek_divided *d = arg;
    trek_arena_cut all = whole_of(&trek_divided_own(d)->reducer->buckets.list[k]);
    return trek_divided_copy_elements(d, &all);
}

void trek_divided_end_copy(void *arg, int k, trek_status status) { settle_bucket(arg, k, status); }

/* Takes memory if the account allows it. Otherwise nothing has happened. */
static trek_status take_if(const trek_divided *d, const trek_arena_cut *range)
{
    trek_kept_error first;
    trek_error_keep(&first);
    trek_status status = trek_divided_take(trek_divided_own(d)->arena, range, false);
    trek_error_clear();
    trek_error_put_back(&first);
    return status;
}

/* Copies a bucket to memory that was taken. A GPU may not have done so when it returns. */
static trek_status copy_beside(trek_divided *d, int k)
{
    trek_status status = trek_divided_begin_copies(d);
    if (status == TREK_OK)
        status = trek_divided_copy_bucket(d, k);
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
    trek_arena_cut all = whole_of(&trek_divided_own(d)->reducer->buckets.list[k]);
    trek_divided_bucket *state = &d->buckets[k];
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
        status = trek_divided_take(trek_divided_own(d)->arena, &all, false);
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
    for (int k = 0; k < trek_divided_own(d)->reducer->buckets.n; k++)
        most += d->buckets[k].gathered && d->buckets[k].use == use;
    most = d->keeps ? INT_MAX : most > TREK_DIVIDED_BUCKETS ? most : TREK_DIVIDED_BUCKETS;
    trek_arena_cut all = whole_of(&trek_divided_own(d)->reducer->buckets.list[next]);
    trek_divided_keep_spare(trek_divided_own(d)->arena, &all);
    while (d->n_gathered >= most && drop_one(d, use))
        ;
    bool taken = d->n_gathered < most && take_if(d, &all) == TREK_OK;
    trek_divided_keep_spare(trek_divided_own(d)->arena, NULL);
    if (!taken)
        return;
    d->n_gathered++;
    d->buckets[next].coming = d->buckets[next].ahead = true;
    d->buckets[next].use = 0;
    if (d->copier)
        settle_bucket(d, next, copy_beside(d, next));
    else
        trek_ahead_start(d->ahead, next);
}

trek_status trek_divided_check(const trek_team *team, const char *what)
{
    const trek_divided *first = team->replicas[0].divided;
    return !first || !first->written ? TREK_OK
        : trek_fail(TREK_ERR_STATE, "%s: the graph's parameters were written, and the other ranks have parts of them "
                                    "(TREK_SHARD_PARAMETERS); call trek_graph_parameters_changed before", what);
}

static bool overlaps(const trek_bucket *bucket, const trek_arena_cut *range)
{
    return bucket->part == range->part && bucket->begin < range->end && range->begin < bucket->begin + bucket->count;
}

/* Gathers the buckets in which elements lie that are not the rank's own. */
static trek_status gather_range(trek_divided *d, const trek_arena_cut *range, uint64_t use)
{
    const trek_buckets *buckets = &trek_divided_own(d)->reducer->buckets;
    if (d->written || trek_divided_is_own(trek_divided_own(d)->arena, range))
        return TREK_OK;
    trek_status status = trek_divided_check(d->team, "parameters");
    int first = trek_buckets_find(buckets, range->part, range->begin), end = first;
    while (end < buckets->n && overlaps(&buckets->list[end], range))
        end++;
    if (first < end)
        trek_divided_keep_spare(trek_divided_own(d)->arena,
                                &(trek_arena_cut){ .part = range->part, .begin = buckets->list[first].begin,
                                                   .end = buckets->list[end - 1].begin + buckets->list[end - 1].count });
    for (int k = first; k < end && status == TREK_OK; k++)
        status = gather(d, k, use);
    trek_divided_keep_spare(trek_divided_own(d)->arena, NULL);
    if (status == TREK_OK && d->ahead)
        gather_next(d, use);
    return status;
}

trek_status trek_divided_read_bytes(void *arg, const void *from, size_t bytes, uint64_t use, bool first)
{
    trek_divided *d = arg;
    trek_arena_cut range = trek_divided_range_of(trek_divided_own(d)->arena, from, bytes);
    trek_lock_acquire(&d->lock);
    d->readers += first;
    trek_status status = gather_range(d, &range, use);
    trek_lock_release(&d->lock);
    return status;
}

void trek_divided_leave_op(void *arg)
{
    trek_divided *d = arg;
    if (d->copier && d->thread != &trek_rank_here)
        trek_copier_finish(d->copier);
    trek_lock_acquire(&d->lock);
    d->readers--;
    trek_lock_release(&d->lock);
}

void trek_divided_rest_of(trek_divided *d)
{
    trek_lock_acquire(&d->lock);
    if (d->ahead)
        trek_ahead_wait(d->ahead);
    trek_copier_finish(d->copier);
    trek_lock_release(&d->lock);
}

void trek_divided_rest(const trek_team *team)
{
    for (int r = 0; r < team->local_ranks; r++) {
        trek_divided *d = team->replicas[r].divided;
        if (d && d->copier)
            trek_copier_rest(d->copier);
        else if (d)
            trek_divided_rest_of(d);
    }
}
