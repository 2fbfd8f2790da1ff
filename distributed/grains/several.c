/* SPDX-License-Identifier: Apache-2.0 */
/* Gradients of several grains that run in one forward and backward (policy/grain_together.c): each parameter gets those of one
 * grain after the other. */
#include <string.h>

#include "autograd/var_internal.h"
#include "distributed/grains/slots_internal.h"
#include "tensor/trace.h"

/* Gradients of one parameter in several grains that run at once, before they are added together. */
#define CHUNK_BYTES ((int64_t)1 << 20)

void trek_grain_sums_begin_grains(trek_grain_sums *sums, const trek_arena *arena, int n)
{
    if (sums->slots.full || sums->slots.used + n > sums->slots.n)
        trek_grain_slots_add(sums, arena);
    sums->slots.at_once = n;
    sums->slots.shared_bytes = 0;
}

/* A parameter without slots has the gradients of some grains in other memory: all of them until they are complete, if it gets
 * several of each; otherwise as many as are then added to the sums together. */

/* Returns how many grains that is. One is enough for a large parameter: then its gradient comes to the arena. */
static int grains_kept(const trek_grain_slots *slots, int64_t bytes, bool shared)
{
    int64_t n = CHUNK_BYTES / bytes;
    return shared || n > slots->at_once ? slots->at_once : n > 1 ? (int)n : 1;
}

static int64_t bytes_kept(const trek_arena *arena, int k)
{
    return trek_grain_padded(&arena->segments[k]) * trek_grain_wide_size(arena, arena->segments[k].part);
}

/* Makes the memory for n grains. What is between parameters is added to the sums, too. */
static trek_status keep(trek_grain_place *place, const trek_arena *arena, int k, int n)
{
    int64_t bytes = bytes_kept(arena, k), used = arena->segments[k].count * trek_grain_wide_size(arena, arena->segments[k].part);
    place->kept = trek_tensor_empty(trek_dims(n * bytes), TREK_U8, trek_cpu(0));
    for (int i = 0; place->kept && i < n; i++)
        memset(place->kept->data + i * bytes + used, 0, (size_t)(bytes - used));
    return place->kept ? TREK_OK : trek_error_status();
}

/* Adds the gradients of a parameter that are kept. */
static void add_kept(trek_grain_sums *sums, const trek_arena *arena, int k)
{
    trek_grain_place *place = &sums->slots.places[k];
    trek_binned to = trek_grain_sums_of(sums, arena, k, k + 1);
    void *terms[TREK_BINNED_TERMS];
    int n = 0;
    for (int i = 0; i < TREK_BINNED_TERMS; i++)
        if (place->keeps >> i & 1)
            terms[n++] = place->kept->data + i * bytes_kept(arena, k);
    if (n > 0)
        arena->backend->binned_add(&to, terms, n, 0, trek_binned_blocks(to.count), false);
    place->keeps = 0;
}

static void drop_kept(trek_grain_place *place)
{
    trek_tensor_release(place->kept);
    place->kept = NULL;
    place->keeps = 0;
}

trek_status trek_grain_sums_begin_group(int k, int group, bool shared, void *on)
{
    trek_grain_taker *taker = on;
    trek_grain_slots *slots = &taker->sums->slots;
    int segment = slots->segment_of[k], slot = slots->used + group;
    trek_leaf *leaf = taker->arena->segments[segment].param->leaf;
    trek_grain_place *place = &slots->places[segment];
    int n = place->at < 0 ? grains_kept(slots, bytes_kept(taker->arena, segment), shared) : 1;
    bool keeps = place->at < 0 && (shared || n > 1);
    taker->group = group;
    taker->shared = shared;
    if (keeps && !place->kept) {
        slots->shared_bytes += shared ? bytes_kept(taker->arena, segment) : 0;
        if (keep(place, taker->arena, segment, n) != TREK_OK)
            return trek_error_status();
    }
    leaf->grad->data->data = keeps ? place->kept->data + group % n * bytes_kept(taker->arena, segment)
                                   : trek_grain_slot_data(slots, segment, slot);
    leaf->has_grad = shared && (keeps ? place->keeps >> group & 1 : place->has >> slot & 1);
    return TREK_OK;
}

/* What is not kept is added to the sums before the next grain writes to its place. */
void trek_grain_sums_end_group(int k, int group, bool shared, void *on)
{
    const trek_grain_taker *taker = on;
    trek_grain_sums *sums = taker->sums;
    int segment = sums->slots.segment_of[k], slot = sums->slots.used + group;
    trek_grain_place *place = &sums->slots.places[segment];
    trek_leaf *leaf = taker->arena->segments[segment].param->leaf;
    bool has = leaf->has_grad;
    place->had |= has || place->waiting >> slot & 1;
    leaf->has_grad = false;
    if (place->kept) {
        int n = grains_kept(&sums->slots, bytes_kept(taker->arena, segment), shared);
        place->keeps |= has ? 1u << group % n : 0;
        if (!shared && (group % n == n - 1 || group == sums->slots.at_once - 1))
            add_kept(sums, taker->arena, segment);
        if (!shared && group == sums->slots.at_once - 1)
            drop_kept(place);
    } else if (has) {
        place->dirty |= place->at < 0 || slot == 0;
        place->has |= place->at < 0 ? 0 : 1u << slot;
        if (place->at < 0)
            trek_grain_sums_add_run(sums, taker->arena, segment, segment + 1, TREK_GRAIN_AT_ONCE);
    }
}

/* Completes gradients that consist of several: adds the products to them that nobody has computed. */
static trek_status complete_shared(trek_grain_sums *sums, const trek_arena *arena, int k, int n)
{
    trek_grain_slots *slots = &sums->slots;
    trek_grain_place *place = &slots->places[k];
    trek_leaf *leaf = arena->segments[k].param->leaf;
    trek_status status = TREK_OK;
    for (int group = 0; group < n && status == TREK_OK; group++) {
        int slot = slots->used + group;
        bool keeps = place->keeps >> group & 1;
        if (!(place->waiting >> slot & 1) || !(keeps || place->has >> slot & 1))
            continue;
        leaf->grad->data->data = keeps ? place->kept->data + group * bytes_kept(arena, k) : trek_grain_slot_data(slots, k, slot);
        leaf->has_grad = true;
        status = trek_grain_product_compute(slots, arena, k, slot);
        leaf->has_grad = false;
    }
    return status;
}

/* Drops what grains have given that did not come to their end. */
static void drop_grains(trek_grain_slots *slots, const trek_arena *arena)
{
    for (int k = 0; k < arena->n_segments; k++) {
        trek_grain_place *place = &slots->places[k];
        place->has &= (1u << slots->used) - 1;
        drop_kept(place);
        for (int slot = slots->used; slot < slots->n; slot++)
            if (place->waiting >> slot & 1)
                trek_grain_product_release(place, slot);
    }
}

/* A failure is the thread's error. */
void trek_grain_sums_end_grains(trek_grain_sums *sums, const trek_arena *arena, int n)
{
    if (n == 0)
        drop_grains(&sums->slots, arena);
    int64_t start = trek_trace_enter("sum grain");
    for (int k = 0; k < arena->n_segments && n > 0; k++) {
        if (complete_shared(sums, arena, k, n) != TREK_OK)
            trek_status_or(TREK_ERR_MEMORY);
        if (sums->slots.places[k].kept)
            add_kept(sums, arena, k);
        drop_kept(&sums->slots.places[k]);
    }
    sums->slots.used += n;
    sums->slots.at_once = 0;
    if (sums->slots.used == sums->slots.n)
        trek_grain_slots_empty(sums, arena);
    trek_grain_slots_select(&sums->slots, arena, sums->slots.used);
    trek_trace_end("sum grain", start, 0);
}
