/* SPDX-License-Identifier: Apache-2.0 */
/* Where the gradients of a CPU rank's grains wait, until those of several grains are added to the sums together: the sums have
 * four times their size, and are then read and written once for all of them. A slot has room for the gradients of one grain,
 * those of large parameters excepted; slot 0 is the arena's own memory. While a rank runs grains, the gradients of its leaves are
 * those of one slot. */
#include <string.h>

#include "autograd/var_internal.h"
#include "distributed/grains/grains.h"
#include "tensor/binned_room.h"
#include "tensor/memory_internal.h"
#include "tensor/pool.h"
#include "tensor/trace.h"

/* Of a slot, and of a parameter in it. Together, slots must not fill the cache in which gradients are made and added: with slots
 * for everything an MLP of 0.2 million parameters took one and a half times as long. */
#define MOST_BYTES ((int64_t)64 << 10)
#define LARGE_BYTES ((int64_t)16 << 10)
/* Gradients of smaller weights are written to a cache and read from it, which takes no longer than computing them in tiles. */
#define LEAST_PRODUCT ((int64_t)1 << 17)
/* Gradients of one parameter in several grains that run at once, before they are added together. */
#define CHUNK_BYTES ((int64_t)1 << 20)
/* In trek_grain_place.has, instead of a slot: the gradient lies in the arena, and is added at the end of its grain. */
#define AT_ONCE (1u << 31)

static int64_t wide_size(const trek_arena *arena, int part) { return (int64_t)trek_dtype_size(arena->parts[part].wide); }

/* Returns the elements of a segment with its padding. */
static int64_t padded(const trek_arena_segment *segment)
{
    return trek_arena_slot_end(segment->offset + segment->count) - segment->offset;
}

/* --- beginning and end --- */

static void release_product(trek_grain_place *place, int slot)
{
    trek_tensor_release(place->products[slot].grad);
    trek_tensor_release(place->products[slot].x);
    place->products[slot] = (trek_grain_product){ 0 };
    place->waiting &= ~(1u << slot);
}

static void release_products(trek_grain_place *place)
{
    for (int slot = 0; slot < TREK_BINNED_TERMS && place->waiting; slot++)
        if (place->waiting >> slot & 1)
            release_product(place, slot);
}

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
        int64_t bytes = padded(segment) * wide_size(arena, segment->part);
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
        release_products(&slots->places[k]);
    trek_free(slots->places);
    trek_free(slots->segment_of);
    trek_tensor_release(slots->more);
    *slots = (trek_grain_slots){ 0 };
}

/* --- gradients become sums --- */

static char *data_in_slot(const trek_grain_slots *slots, int k, int slot)
{
    const trek_grain_place *place = &slots->places[k];
    return slot == 0 || place->at < 0 ? place->own : slots->more->data + (slot - 1) * slots->bytes + place->at;
}

static void select_slot(const trek_grain_slots *slots, const trek_arena *arena, int slot)
{
    for (int k = 0; k < arena->n_segments; k++)
        arena->segments[k].param->leaf->grad->data->data = data_in_slot(slots, k, slot);
}

/* Returns the sums of segments [first, end), which follow each other. */
static trek_binned sums_of(const trek_grain_sums *sums, const trek_arena *arena, int first, int end)
{
    const trek_binned *all = &sums->parts[arena->segments[first].part];
    int64_t at = arena->segments[first].offset, count = arena->segments[end - 1].offset + padded(&arena->segments[end - 1]) - at;
    trek_binned some = { .dtype = all->dtype, .count = count < all->count - at ? count : all->count - at,
                         .bins = all->bins + at / TREK_BINNED_BLOCK };
    for (int k = 0; k < trek_binned_digits(all->dtype); k++)
        some.digits[k] = all->digits[k] + at;
    return some;
}

/* Adds the gradients of segments [first, end), which follow each other in the arena and in slots. */
static void add_run(trek_grain_sums *sums, const trek_arena *arena, int first, int end, uint32_t has)
{
    trek_binned to = sums_of(sums, arena, first, end);
    void *terms[TREK_BINNED_TERMS];
    int n = 0;
    for (int slot = 0; slot < sums->slots.n && !(has & AT_ONCE); slot++)
        if (has >> slot & 1)
            terms[n++] = data_in_slot(&sums->slots, first, slot);
    if (has & AT_ONCE)
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
            add_run(sums, arena, k, end, has);
        for (int i = k; i < end; i++)
            places[i].has &= ~which;
    }
}

/* --- products that nobody has computed --- */

static trek_binned_product product_in(const trek_grain_place *place, int slot)
{
    const trek_grain_product *product = &place->products[slot];
    return (trek_binned_product){ (const float *)(const void *)product->grad->data, (const float *)(const void *)product->x->data,
                                  product->grad->sizes[0] };
}

/* Returns where the gradient of parameter k waits as a product, or NULL if it has to be computed. */
static trek_grain_place *place_of_product(const trek_grain_taker *taker, int k, const trek_tensor *grad, const trek_tensor *x)
{
    const trek_grain_slots *slots = &taker->sums->slots;
    int segment = k < slots->numbers ? slots->segment_of[k] : -1;
    trek_grain_place *place = segment >= 0 ? &slots->places[segment] : NULL;
    int64_t least = slots->at_once > 0 && place && place->at < 0 && !taker->shared ? 0 : slots->least_product;
    bool waits = place && !(place->waiting >> (slots->used + taker->group) & 1) && grad->ndim == 2 && x->ndim == 2 &&
        taker->arena->segments[segment].count >= least &&
        trek_binned_takes_product(grad->sizes[1], x->sizes[1], grad->sizes[0]) &&
        grad->sizes[1] * x->sizes[1] == taker->arena->segments[segment].count;
    return waits ? place : NULL;
}

static int64_t bytes_of_copy(const trek_tensor *x)
{
    return (int64_t)(trek_block_size((size_t)x->numel * sizeof(float)) + trek_block_size(sizeof *x) +
                     trek_block_size(sizeof *x->storage));
}

int64_t trek_grain_sums_foresee(int k, const trek_tensor *grad, const trek_tensor *x, const trek_grain_taker *taker)
{
    trek_grain_slots *slots = &taker->sums->slots;
    if (!place_of_product(taker, k, grad, x))
        return 0;
    int64_t room = trek_pool_threads(trek_pool_here()) *
        (int64_t)trek_block_size((size_t)trek_binned_product_room(grad->sizes[1], x->sizes[1], grad->sizes[0], slots->n));
    slots->product_room = room > slots->product_room ? room : slots->product_room;
    return bytes_of_copy(grad) + bytes_of_copy(x);
}

bool trek_grain_sums_take(int k, trek_tensor *grad, trek_tensor *x, void *on)
{
    const trek_grain_taker *taker = on;
    trek_grain_place *place = place_of_product(taker, k, grad, x);
    int slot = taker->sums->slots.used + taker->group;
    if (!place)
        return false;
    place->products[slot] = (trek_grain_product){ trek_tensor_clone(grad), trek_tensor_clone(x) };
    place->waiting |= 1u << slot;
    if (place->products[slot].grad && place->products[slot].x)
        return true;
    release_product(place, slot);
    return false;
}

/* Writes a product to a tensor. */
static trek_status write_product(const trek_arena *arena, const trek_grain_place *place, int slot, trek_tensor *to)
{
    trek_binned_product product = product_in(place, slot);
    return arena->backend->binned_write_product((float *)(void *)to->data, place->products[slot].grad->sizes[1],
                                                place->products[slot].x->sizes[1], &product);
}

trek_tensor *trek_grain_sums_product(const trek_grain_taker *taker, int k)
{
    const trek_grain_slots *slots = &taker->sums->slots;
    const trek_tensor *like = taker->arena->segments[slots->segment_of[k]].param->data;
    trek_tensor *to = trek_tensor_make(like->ndim, like->sizes, TREK_F32, like->device);
    if (to && write_product(taker->arena, &slots->places[slots->segment_of[k]], slots->used + taker->group, to) == TREK_OK)
        return to;
    trek_tensor_release(to);
    return NULL;
}

/* Computes a product, and adds it to the other gradients that the leaf has. */
static trek_status compute_product(trek_grain_slots *slots, const trek_arena *arena, int k, int slot)
{
    trek_grain_place *place = &slots->places[k];
    trek_leaf *leaf = arena->segments[k].param->leaf;
    trek_tensor *grad = leaf->grad->data;
    trek_tensor *to = leaf->has_grad ? trek_tensor_make(grad->ndim, grad->sizes, TREK_F32, grad->device)
        : trek_tensor_retain(grad);
    trek_status status = to ? write_product(arena, place, slot, to) : TREK_ERR_MEMORY;
    if (status == TREK_OK && leaf->has_grad) {
        trek_op_call call = { .op = &trek_ops[TREK_OP_add], .n_inputs = 2, .inputs = (trek_tensor *[]){ grad, to },
                              .n_outputs = 1, .outputs = { grad } };
        status = trek_op_run(&call);
    }
    trek_tensor_release(to);
    release_product(place, slot);
    leaf->has_grad = true;
    return status;
}

/* A parameter that has no gradient in the grain may have that of another grain in its place, or that of the step, if the step is
 * made again. */
trek_status trek_grain_sums_show(trek_grain_sums *sums, trek_arena *arena)
{
    trek_status status = TREK_OK;
    for (int k = 0; k < arena->n_segments; k++) {
        bool stays = arena->backend->host_accessible && !arena->parts[arena->segments[k].part].pages;
        if (sums->slots.places[k].waiting >> sums->slots.used & 1 && status == TREK_OK)
            status = compute_product(&sums->slots, arena, k, sums->slots.used);
        if (stays && !arena->segments[k].param->leaf->has_grad)
            trek_arena_zero_segment(arena, k);
    }
    return status;
}

static int products_in(const trek_grain_place *place, trek_binned_product *terms)
{
    int n = 0;
    for (int slot = 0; slot < TREK_BINNED_TERMS; slot++)
        if (place->waiting >> slot & 1)
            terms[n++] = product_in(place, slot);
    return n;
}

static bool is_empty(const trek_binned *sums)
{
    for (int64_t block = 0; block < trek_binned_blocks(sums->count); block++)
        if (sums->bins[block] != TREK_BINNED_EMPTY)
            return false;
    return true;
}

/* Adds the products of all slots. unless_empty: but not where the sums are empty. */
static void add_products(trek_grain_sums *sums, const trek_arena *arena, bool unless_empty)
{
    for (int k = 0; k < arena->n_segments; k++) {
        trek_grain_place *place = &sums->slots.places[k];
        trek_binned_product terms[TREK_BINNED_TERMS];
        int n = products_in(place, terms);
        trek_binned to = n > 0 ? sums_of(sums, arena, k, k + 1) : (trek_binned){ 0 };
        const trek_tensor *weight = arena->segments[k].param->data;
        if (n == 0 || (unless_empty && is_empty(&to)))
            continue;
        if (arena->backend->binned_add_products(&to, weight->sizes[0], weight->sizes[1], terms, n) != TREK_OK)
            trek_status_or(TREK_ERR_MEMORY);
        release_products(place);
    }
}

void trek_grain_sums_settle(trek_grain_sums *sums, const trek_arena *arena)
{
    sums->slots.full = false;
    add_products(sums, arena, false);
}

void trek_grain_sums_forget(trek_grain_sums *sums)
{
    sums->slots.full = false;
    for (int k = 0; k < sums->slots.n_places; k++)
        release_products(&sums->slots.places[k]);
}

static trek_status read_products(trek_grain_sums *sums, const trek_arena *arena, int k, double factor)
{
    const trek_arena_segment *segment = &arena->segments[k];
    const trek_tensor *weight = segment->param->data;
    trek_binned_product terms[TREK_BINNED_TERMS];
    int n = products_in(&sums->slots.places[k], terms);
    float *to = (float *)(void *)arena->parts[segment->part].grads->data + segment->offset;
    trek_status status = arena->backend->binned_read_products(to, weight->sizes[0], weight->sizes[1], terms, n, factor);
    release_products(&sums->slots.places[k]);
    return status;
}

trek_status trek_grain_sums_read_part(trek_grain_sums *sums, const trek_arena *arena, int part, double factor)
{
    const trek_binned *all = &sums->parts[part];
    char *grads = arena->parts[part].grads->data;
    int64_t from = 0;
    trek_status status = TREK_OK;
    for (int k = 0; k < arena->n_segments && status == TREK_OK; k++) {
        const trek_arena_segment *segment = &arena->segments[k];
        if (segment->part != part || !sums->slots.places[k].waiting)
            continue;
        int64_t first = segment->offset / TREK_BINNED_BLOCK;
        arena->backend->binned_read(all, factor, grads, from, first - from);
        status = read_products(sums, arena, k, factor);
        from = first + trek_binned_blocks(padded(segment));
    }
    arena->backend->binned_read(all, factor, grads, from, trek_binned_blocks(all->count) - from);
    return status;
}

/* --- a rank runs grains --- */

static void add_slots(trek_grain_sums *sums, const trek_arena *arena)
{
    if (sums->slots.used > 0)
        add_places(sums, arena, ~AT_ONCE);
    trek_grain_sums_settle(sums, arena);
    sums->slots.used = 0;
}

/* Adds what all slots have, except for products: these may be the last of the step. */
static void empty_slots(trek_grain_sums *sums, const trek_arena *arena)
{
    add_places(sums, arena, ~AT_ONCE);
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
        empty_slots(sums, arena);
    add_products(sums, arena, alone);
    select_slot(&sums->slots, arena, 0);
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
    add_slots(sums, arena);
    select_slot(&sums->slots, arena, 0);
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
            compute_product(slots, arena, k, slots->used);
        if (!leaf->has_grad)
            continue;
        place->has |= place->at < 0 ? AT_ONCE : 1u << slots->used;
        place->dirty |= arena->backend->host_accessible && !arena->parts[arena->segments[k].part].pages &&
            (place->at < 0 || slots->used == 0);
        place->had = true;
        at_once |= place->at < 0;
        leaf->has_grad = false;
    }
    if (at_once)
        add_places(sums, arena, AT_ONCE);
    if (++slots->used == slots->n)
        empty_slots(sums, arena);
    select_slot(slots, arena, slots->used);
    trek_trace_end("sum grain", start, 0);
}

/* --- several grains at once --- */

void trek_grain_sums_begin_grains(trek_grain_sums *sums, const trek_arena *arena, int n)
{
    if (sums->slots.full || sums->slots.used + n > sums->slots.n)
        add_slots(sums, arena);
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
    return padded(&arena->segments[k]) * wide_size(arena, arena->segments[k].part);
}

/* Makes the memory for n grains. What is between parameters is added to the sums, too. */
static trek_status keep(trek_grain_place *place, const trek_arena *arena, int k, int n)
{
    int64_t bytes = bytes_kept(arena, k), used = arena->segments[k].count * wide_size(arena, arena->segments[k].part);
    place->kept = trek_tensor_empty(trek_dims(n * bytes), TREK_U8, trek_cpu(0));
    for (int i = 0; place->kept && i < n; i++)
        memset(place->kept->data + i * bytes + used, 0, (size_t)(bytes - used));
    return place->kept ? TREK_OK : trek_error_status();
}

/* Adds the gradients of a parameter that are kept. */
static void add_kept(trek_grain_sums *sums, const trek_arena *arena, int k)
{
    trek_grain_place *place = &sums->slots.places[k];
    trek_binned to = sums_of(sums, arena, k, k + 1);
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
                                   : data_in_slot(slots, segment, slot);
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
            add_run(sums, taker->arena, segment, segment + 1, AT_ONCE);
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
        leaf->grad->data->data = keeps ? place->kept->data + group * bytes_kept(arena, k) : data_in_slot(slots, k, slot);
        leaf->has_grad = true;
        status = compute_product(slots, arena, k, slot);
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
                release_product(place, slot);
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
        empty_slots(sums, arena);
    select_slot(&sums->slots, arena, sums->slots.used);
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
