/* SPDX-License-Identifier: Apache-2.0 */
/* Gradients of large weights that wait as the two tensors whose product they are, until those of several grains are computed and
 * added to the sums at once, in the cache; or, if a rank has run all grains of a step, become the step's gradient without the
 * sums. */
#include "autograd/var_internal.h"
#include "distributed/grains/slots_internal.h"
#include "tensor/binned_room.h"
#include "tensor/memory_internal.h"
#include "tensor/pool.h"

void trek_grain_product_release(trek_grain_place *place, int slot)
{
    trek_tensor_release(place->products[slot].grad);
    trek_tensor_release(place->products[slot].x);
    place->products[slot] = (trek_grain_product){ 0 };
    place->waiting &= ~(1u << slot);
}

void trek_grain_products_release(trek_grain_place *place)
{
    for (int slot = 0; slot < TREK_BINNED_TERMS && place->waiting; slot++)
        if (place->waiting >> slot & 1)
            trek_grain_product_release(place, slot);
}

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
    trek_grain_product_release(place, slot);
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

trek_status trek_grain_product_compute(trek_grain_slots *slots, const trek_arena *arena, int k, int slot)
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
    trek_grain_product_release(place, slot);
    leaf->has_grad = true;
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

void trek_grain_products_add(trek_grain_sums *sums, const trek_arena *arena, bool unless_empty)
{
    for (int k = 0; k < arena->n_segments; k++) {
        trek_grain_place *place = &sums->slots.places[k];
        trek_binned_product terms[TREK_BINNED_TERMS];
        int n = products_in(place, terms);
        trek_binned to = n > 0 ? trek_grain_sums_of(sums, arena, k, k + 1) : (trek_binned){ 0 };
        const trek_tensor *weight = arena->segments[k].param->data;
        if (n == 0 || (unless_empty && is_empty(&to)))
            continue;
        if (arena->backend->binned_add_products(&to, weight->sizes[0], weight->sizes[1], terms, n) != TREK_OK)
            trek_status_or(TREK_ERR_MEMORY);
        trek_grain_products_release(place);
    }
}

void trek_grain_sums_settle(trek_grain_sums *sums, const trek_arena *arena)
{
    sums->slots.full = false;
    trek_grain_products_add(sums, arena, false);
}

void trek_grain_sums_forget(trek_grain_sums *sums)
{
    sums->slots.full = false;
    for (int k = 0; k < sums->slots.n_places; k++)
        trek_grain_products_release(&sums->slots.places[k]);
}

static trek_status read_products(trek_grain_sums *sums, const trek_arena *arena, int k, double factor)
{
    const trek_arena_segment *segment = &arena->segments[k];
    const trek_tensor *weight = segment->param->data;
    trek_binned_product terms[TREK_BINNED_TERMS];
    int n = products_in(&sums->slots.places[k], terms);
    float *to = (float *)(void *)arena->parts[segment->part].grads->data + segment->offset;
    trek_status status = arena->backend->binned_read_products(to, weight->sizes[0], weight->sizes[1], terms, n, factor);
    trek_grain_products_release(&sums->slots.places[k]);
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
        from = first + trek_binned_blocks(trek_grain_padded(segment));
    }
    arena->backend->binned_read(all, factor, grads, from, trek_binned_blocks(all->count) - from);
    return status;
}
