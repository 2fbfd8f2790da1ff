/* SPDX-License-Identifier: Apache-2.0 */
/* Which sharer keeps what of the optimizer's state, by parameter. */
#include "distributed/team/sharer.h"

/* Finds out who keeps element `at` of a part, and how far. A bucket has an owner, or every sharer has an even part of it. */
static trek_arena_cut stretch_at(const trek_sharer *x, int part, int64_t at, int *sharer)
{
    const trek_bucket *bucket = x->reducer->buckets.list;
    while (bucket->part != part || at < bucket->begin || at >= bucket->begin + bucket->count)
        bucket++;
    *sharer = bucket->owner;
    if (bucket->owner >= 0)
        return (trek_arena_cut){ .part = part, .begin = bucket->begin, .end = bucket->begin + bucket->count };
    int64_t each = bucket->count / x->arena->sharers, begin;
    *sharer = (int)((at - bucket->begin) / each);
    begin = bucket->begin + *sharer * each;
    return (trek_arena_cut){ .part = part, .begin = begin, .end = begin + each };
}

bool trek_sharer_next_piece(const trek_sharer *x, const trek_optimizer_item *item, int64_t *at, trek_sharer_piece *piece)
{
    const trek_arena *arena = x->arena;
    const trek_arena_segment *segment = &arena->segments[item->segment];
    int64_t all = trek_shape_numel(item->shape), block = trek_optimizer_own_block(item->kind);
    if (*at >= all)
        return false;
    *piece = (trek_sharer_piece){ .sharer = arena->owner ? arena->owner[item->segment] : 0, .begin = *at, .count = all - *at };
    if (!arena->owner) { /* cuts and segments begin with blocks */
        trek_arena_cut cut = stretch_at(x, segment->part, segment->offset + *at * block, &piece->sharer);
        int64_t end = (cut.end - segment->offset) / block;
        piece->count = (end < all ? end : all) - *at;
    }
    *at += piece->count;
    return true;
}

const char *trek_sharer_own_piece(const trek_sharer *x, const trek_optimizer_item *item, const trek_sharer_piece *piece)
{
    const trek_arena_segment *segment = &x->arena->segments[item->segment];
    const trek_tensor *own = trek_optimizer_own(x->optimizer, item->kind, segment->part);
    int64_t block = trek_optimizer_own_block(item->kind), begin;
    trek_shape shape;
    if (item->kind < TREK_UPDATE_STATES && trek_optimizer_is_uneven(x->optimizer, item->kind)) {
        trek_optimizer_state_extent(x->optimizer, item->kind, item->segment, &begin, &shape);
        begin += piece->begin;
    } else {
        begin = trek_arena_place(x->arena, segment->part, segment->offset + piece->begin * block) / block;
    }
    return own->data + (size_t)begin * trek_dtype_size(item->dtype);
}
