/* SPDX-License-Identifier: Apache-2.0 */
/* Copying what other ranks keep of divided parameters: of this process, of this machine, or of others. */
#include "distributed/team/divided_internal.h"

#include "tensor/try_internal.h"

/* What is lent lies in host memory. */
static trek_status read_lent(const trek_divided *d, const trek_lent_piece *piece, char *to)
{
    char *room = d->copier ? trek_copier_room(d->copier, piece->bytes) : to;
    trek_status status = room ? trek_lent_read(d->team->lent, piece, room) : trek_error_status();
    trek_status sent = d->copier && room ? trek_copier_send(d->copier, status == TREK_OK ? to : NULL, room, piece->bytes)
                                         : TREK_OK;
    return status == TREK_OK ? sent : status;
}

/* Copies elements of a part from a sharer that keeps them: one of the ranks of all processes. */
static trek_status copy_from(const trek_divided *d, int keeper, int part, int64_t begin, int64_t end)
{
    const trek_arena *own = trek_divided_own(d)->arena;
    size_t offset = (size_t)begin * trek_divided_item(own, part), bytes = (size_t)(end - begin) * trek_divided_item(own, part);
    char *to = trek_divided_place_of(own, part, begin);
    if (d->team->lent)
        return read_lent(d, &(trek_lent_piece){ d->rank, keeper, part, offset, bytes }, to);
    if (d->team->twice)
        return trek_fail(TREK_ERR_PEER,
                         "parameters: a part of them was lost with the processes that kept it; load a checkpoint, in "
                         "a new job");
    const rank_replica *other = &d->team->replicas[keeper];
    return trek_copier_copy(d->copier, to, trek_divided_place_of(other->arena, part, begin), other->divided->copier, bytes);
}

/* Copies a piece that is not the rank's own. If one of two that keep it cannot be read any more, the other one can. */
static trek_status copy_piece(const trek_divided *d, const trek_bucket_piece *piece, int part)
{
    int own = trek_divided_own(d)->arena->sharer;
    bool twice = d->team->twice && piece->second >= 0;
    if (piece->begin >= piece->end || piece->owner == own || (twice && piece->second == own) || d->blank)
        return TREK_OK;
    if (!twice || !d->team->lent)
        return copy_from(d, piece->owner, part, piece->begin, piece->end);
    trek_kept_error before;
    trek_error_keep(&before);
    trek_status status = copy_from(d, piece->owner, part, piece->begin, piece->end);
    if (status != TREK_ERR_PEER)
        return status;
    trek_error_clear();
    trek_error_put_back(&before);
    return copy_from(d, piece->second, part, piece->begin, piece->end);
}

trek_status trek_divided_copy_elements(const trek_divided *d, const trek_arena_cut *range)
{
    const trek_buckets *buckets = &trek_divided_own(d)->reducer->buckets;
    trek_bucket_piece piece;
    trek_status status = TREK_OK;
    for (int64_t at = range->begin;
         status == TREK_OK && trek_buckets_next_piece(buckets, d->team->sharers, range->part, &at, range->end, &piece);)
        status = copy_piece(d, &piece, range->part);
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

/* Only the rank's own thread uses memory in the order in which it is taken. */
trek_status trek_divided_begin_copies(trek_divided *d)
{
    TRY(follow_keepers(d));
    if (d->copier && d->thread != &trek_rank_here)
        TRY(trek_copier_finish(d->copier));
    return trek_copier_begin(d->copier);
}

trek_status trek_divided_copy_range(trek_divided *d, const trek_arena_cut *range)
{
    trek_status status = trek_divided_begin_copies(d);
    if (status == TREK_OK)
        status = trek_divided_copy_elements(d, range);
    trek_status ended = trek_copier_finish(d->copier);
    return status == TREK_OK ? ended : status;
}
