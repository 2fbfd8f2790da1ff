/* SPDX-License-Identifier: Apache-2.0 */
/* Where the gradients of a CPU rank's grains wait, until those of several grains are added to the sums together: the sums have
 * four times their size, and are then read and written once for all of them. A slot has room for the gradients of one grain,
 * those of large parameters excepted; slot 0 is the arena's own memory. While a rank runs grains, the gradients of its leaves are
 * those of one slot. */
#include "autograd/var_internal.h"
#include "distributed/grains/slots_internal.h"
#include "tensor/memory_internal.h"
#include "tensor/trace.h"

/* Of a slot, and of a parameter in it. Together, slots must not fill the cache in which gradients are made and added: with slots
 * for everything an MLP of 0.2 million parameters took one and a half times as long. */
#define MOST_BYTES ((int64_t)64 << 10)
#define LARGE_BYTES ((int64_t)16 << 10)
/* Gradients of smaller weights are written to a cache and read from it, which takes no longer than computing them in tiles. */
#define LEAST_PRODUCT ((int64_t)1 << 17)

/* --- beginning and end --- */

/* Numbers the segments by the numbers of their parameters. */
static trek_status number_segments(trek_grain_slots *slots, const trek_arena *arena)
{
    for (int k = 0; k < arena->n_segments; k++)
        slots->numbers = arena->segments[k].index >= slots->numbers ? arena->segments[k].index + 1 : slots->numbers;
    slots->segment_of = trek_calloc((size_t)slots->numbers + 1, sizeof *slots->segment_of);
    if (!slots->segment_of)
        return TREK_ERR_MEMORY;
    for (int k = 0; k < slots->numbers; k++)
        slots->segment_of[k] = -1;
    for (int k = 0; k < arena->n_segments; k++)
        slots->segment_of[arena->segments[k].index] = k;
    return TREK_OK;
}

/* Gradients on GPUs, and those that go as soon as they are complete (pages), wait nowhere. */
trek_status trek_grain_slots_make(trek_grain_slots *slots, const trek_arena *arena)
{
    slots->places = trek_calloc((size_t)arena->n_segments + 1, sizeof *slots->places);
    if (!slots->places || number_segments(slots, arena) != TREK_OK)
        return TREK_ERR_MEMORY;
    for (int k = 0; k < arena->n_segments; k++) {
        const trek_arena_segment *segment = &arena->segments[k];
        int64_t bytes = trek_grain_padded(segment) * trek_grain_wide_size(arena, segment->part);
        bool waits = arena->backend->host_accessible && !arena->parts[segment->part].pages && bytes <= LARGE_BYTES &&
            slots->bytes + bytes <= MOST_BYTES;
        slots->places[k].at = waits ? slots->bytes : -1;
        slots->bytes += waits ? bytes : 0;
    }
    slots->n = TREK_BINNED_TERMS;
    slots->n_places = arena->n_segments;
    slots->least_product = LEAST_PRODUCT;
    slots->more = trek_tensor_zeros(trek_dims((slots->n - 1) * slots->bytes), TREK_U8, trek_cpu(0));
    return slots->more ? TREK_OK : trek_error_status();
}

void trek_grain_slots_free(trek_grain_slots *slots)
{
    for (int k = 0; slots->places && k < slots->n_places; k++)
        trek_grain_products_release(&slots->places[k]);
    trek_free(slots->places);
    trek_free(slots->segment_of);
    trek_tensor_release(slots->more);
    *slots = (trek_grain_slots){ 0 };
}

/* --- gradients become sums --- */

char *trek_grain_slot_data(const trek_grain_slots *slots, int k, int slot)
{
    const trek_grain_place *place = &slots->places[k];
    return slot == 0 || place->at < 0 ? place->own : slots->more->data + (slot - 1) * slots->bytes + place->at;
}

void trek_grain_slots_select(const trek_grain_slots *slots, const trek_arena *arena, int slot)
{
    for (int k = 0; k < arena->n_segments; k++)
        arena->segments[k].param->leaf->grad->data->data = trek_grain_slot_data(slots, k, slot);
}

void trek_grain_sums_add_run(trek_grain_sums *sums, const trek_arena *arena, int first, int end, uint32_t has)
{
    trek_binned to = trek_grain_sums_of(sums, arena, first, end);
    void *terms[TREK_BINNED_TERMS];
    int n = 0;
    for (int slot = 0; slot < sums->slots.n && !(has & TREK_GRAIN_AT_ONCE); slot++)
        if (has >> slot & 1)
            terms[n++] = trek_grain_slot_data(&sums->slots, first, slot);
    if (has & TREK_GRAIN_AT_ONCE)
        terms[n++] = sums->slots.places[first].own;
    arena->backend->binned_add(&to, terms, n, 0, trek_binned_blocks(to.count), !arena->backend->host_accessible);
}

/* Adds what some places hold. Parameters that follow each other, with gradients in the same places, go together. */
static void add_places(trek_grain_sums *sums, const trek_arena *arena, uint32_t which)
{
    trek_grain_place *places = sums->slots.places;
    for (int k = 0, end; k < arena->n_segments; k = end) {
        uint32_t has = places[k].has & which;
        int part = arena->segments[k].part;
        for (end = k + 1; end < arena->n_segments && arena->segments[end].part == part && (places[end].has & which) == has &&
             (places[end].at < 0) == (places[k].at < 0); end++)
            ;
        if (has && !arena->parts[part].pages) /* otherwise its buckets were added */
            trek_grain_sums_add_run(sums, arena, k, end, has);
        for (int i = k; i < end; i++)
            places[i].has &= ~which;
    }
}

/* --- a rank runs grains --- */

/* A parameter that has no gradient in the grain may have that of another grain in its place, or that of the step, if the step is
 * made again. */
trek_status trek_grain_sums_show(trek_grain_sums *sums, trek_arena *arena)
{
    trek_status status = TREK_OK;
    for (int k = 0; k < arena->n_segments; k++) {
        bool stays = arena->backend->host_accessible && !arena->parts[arena->segments[k].part].pages;
        if (sums->slots.places[k].waiting >> sums->slots.used & 1 && status == TREK_OK)
            status = trek_grain_product_compute(&sums->slots, arena, k, sums->slots.used);
        if (stays && !arena->segments[k].param->leaf->has_grad)
            trek_arena_zero_segment(arena, k);
    }
    return status;
}

void trek_grain_slots_add(trek_grain_sums *sums, const trek_arena *arena)
{
    if (sums->slots.used > 0)
        add_places(sums, arena, ~TREK_GRAIN_AT_ONCE);
    trek_grain_sums_settle(sums, arena);
    sums->slots.used = 0;
}

void trek_grain_slots_empty(trek_grain_sums *sums, const trek_arena *arena)
{
    add_places(sums, arena, ~TREK_GRAIN_AT_ONCE);
    sums->slots.used = 0;
    sums->slots.full = true;
}

void trek_grain_sums_open(trek_grain_sums *sums, const trek_arena *arena)
{
    for (int k = 0; k < arena->n_segments; k++) {
        trek_leaf *leaf = arena->segments[k].param->leaf;
        sums->slots.places[k].had = leaf->has_grad;
        sums->slots.places[k].own = leaf->grad->data->data;
        leaf->has_grad = false;
    }
}

/* The program sees zeros until the sums are read. */
void trek_grain_sums_close(trek_grain_sums *sums, trek_arena *arena, bool alone)
{
    int64_t start = trek_trace_enter("sum grain");
    if (sums->slots.used > 0)
        trek_grain_slots_empty(sums, arena);
    trek_grain_products_add(sums, arena, alone);
    trek_grain_slots_select(&sums->slots, arena, 0);
    for (int k = 0; k < arena->n_segments; k++) {
        trek_grain_place *place = &sums->slots.places[k];
        if (place->dirty)
            trek_arena_zero_segment(arena, k);
        place->dirty = false;
        arena->segments[k].param->leaf->has_grad |= place->had;
    }
    trek_trace_end("sum grain", start, 0);
}

void trek_grain_sums_begin(trek_grain_sums *sums, const trek_arena *arena, bool shown)
{
    if (sums->slots.full)
        trek_grain_sums_settle(sums, arena);
    if (!shown)
        return;
    trek_grain_slots_add(sums, arena);
    trek_grain_slots_select(&sums->slots, arena, 0);
}

void trek_grain_sums_add(trek_grain_sums *sums, const trek_arena *arena)
{
    trek_grain_slots *slots = &sums->slots;
    int64_t start = trek_trace_enter("sum grain");
    bool at_once = false;
    for (int k = 0; k < arena->n_segments; k++) {
        trek_leaf *leaf = arena->segments[k].param->leaf;
        trek_grain_place *place = &slots->places[k];
        bool waits = place->waiting >> slots->used & 1;
        place->had |= waits;
        if (waits && leaf->has_grad)
            trek_grain_product_compute(slots, arena, k, slots->used);
        if (!leaf->has_grad)
            continue;
        place->has |= place->at < 0 ? TREK_GRAIN_AT_ONCE : 1u << slots->used;
        place->dirty |= arena->backend->host_accessible && !arena->parts[arena->segments[k].part].pages &&
            (place->at < 0 || slots->used == 0);
        place->had = true;
        at_once |= place->at < 0;
        leaf->has_grad = false;
    }
    if (at_once)
        add_places(sums, arena, TREK_GRAIN_AT_ONCE);
    if (++slots->used == slots->n)
        trek_grain_slots_empty(sums, arena);
    trek_grain_slots_select(slots, arena, slots->used);
    trek_trace_end("sum grain", start, 0);
}

void trek_grain_sums_drop(trek_arena *arena)
{
    for (int k = 0; k < arena->n_segments; k++) {
        trek_leaf *leaf = arena->segments[k].param->leaf;
        if (leaf->has_grad)
            trek_arena_zero_segment(arena, k);
        leaf->has_grad = false;
    }
}
