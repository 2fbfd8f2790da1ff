/* SPDX-License-Identifier: Apache-2.0 */
/* What the files share that take a rank's gradients to its sums: slots.c, products.c and several.c. */
#ifndef TREK_DISTRIBUTED_GRAINS_SLOTS_INTERNAL_H
#define TREK_DISTRIBUTED_GRAINS_SLOTS_INTERNAL_H

#include "distributed/grains/grains.h"

/* In trek_grain_place.has, instead of a slot: the gradient lies in the arena, and is added at the end of its grain. */
#define TREK_GRAIN_AT_ONCE (1u << 31)

static inline int64_t trek_grain_wide_size(const trek_arena *arena, int part)
{
    return (int64_t)trek_dtype_size(arena->parts[part].wide);
}

/* Returns the elements of a segment with its padding. */
static inline int64_t trek_grain_padded(const trek_arena_segment *segment)
{
    return trek_arena_slot_end(segment->offset + segment->count) - segment->offset;
}

/* Returns the sums of segments [first, end), which follow each other. */
static inline trek_binned trek_grain_sums_of(const trek_grain_sums *sums, const trek_arena *arena, int first, int end)
{
    const trek_binned *all = &sums->parts[arena->segments[first].part];
    int64_t at = arena->segments[first].offset,
        count = arena->segments[end - 1].offset + trek_grain_padded(&arena->segments[end - 1]) - at;
    trek_binned some = { .dtype = all->dtype, .count = count < all->count - at ? count : all->count - at,
                         .bins = all->bins + at / TREK_BINNED_BLOCK };
    for (int k = 0; k < trek_binned_digits(all->dtype); k++)
        some.digits[k] = all->digits[k] + at;
    return some;
}

/* slots.c: returns where the gradient of segment k is in a slot. */
char *trek_grain_slot_data(const trek_grain_slots *slots, int k, int slot);
/* The gradients of the leaves are those of a slot from here on. */
void trek_grain_slots_select(const trek_grain_slots *slots, const trek_arena *arena, int slot);
/* Adds the gradients of segments [first, end), which follow each other in the arena and in slots. */
void trek_grain_sums_add_run(trek_grain_sums *sums, const trek_arena *arena, int first, int end, uint32_t has);
/* Adds what all slots have. empty does so except for products: these may be the last of the step. */
void trek_grain_slots_add(trek_grain_sums *sums, const trek_arena *arena);
void trek_grain_slots_empty(trek_grain_sums *sums, const trek_arena *arena);

/* products.c: computes the product of segment k, and adds it to the other gradients that the leaf has. */
trek_status trek_grain_product_compute(trek_grain_slots *slots, const trek_arena *arena, int k, int slot);
/* Adds the products of all slots. unless_empty: but not where the sums are empty. */
void trek_grain_products_add(trek_grain_sums *sums, const trek_arena *arena, bool unless_empty);
void trek_grain_product_release(trek_grain_place *place, int slot);
void trek_grain_products_release(trek_grain_place *place);

#endif
