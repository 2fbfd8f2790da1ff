/* SPDX-License-Identifier: Apache-2.0 */
/* Flat arenas: the parameters and gradients of a model move into contiguous buffers. Everything that can fail happens
 * first, without touching the variables; they are switched over at the end. */
#include "optim/arena.h"

#include <string.h>

#include "autograd/var_internal.h"
#include "nn/params.h"
#include "tensor/pages.h"
#include "tensor/pool.h"

enum { ZERO_GRAIN = 1 << 20 /* bytes */ };

/* What a parameter gets and what it had, until everything has succeeded. */
typedef struct arena_move {
    trek_tensor *data, *grad; /* its slots */
    trek_var *old_grad;       /* retained */
    bool placed, old_has_grad;
} arena_move;

/* --- checks and layout ----------------------------------------------------- */

static trek_status check_param(const trek_params *params, int k, trek_device device)
{
    trek_var *var = trek_params_var(params, k);
    const char *name = trek_params_name(params, k);
    if (!trek_var_is_leaf(var))
        return trek_fail(TREK_ERR_ARGUMENT, "arena: parameter '%s': it is the result of an op; must be a leaf", name);
    trek_dtype dtype = trek_var_dtype(var);
    if (!trek_dtype_is_float(dtype))
        return trek_fail(TREK_ERR_DTYPE, "arena: parameter '%s': dtype %s; must be floating", name, trek_dtype_name(dtype));
    trek_device own = trek_var_device(var);
    if (!trek_device_equal(own, device) && (own.type != TREK_CPU || device.type != TREK_CPU)) {
        char a[16], b[16];
        return trek_fail(TREK_ERR_DEVICE, "arena: parameter '%s': it is on %s, but the first on %s; all must be on one device",
                         name,
                         trek_device_name(own, a, sizeof a),
                         trek_device_name(device, b, sizeof b));
    }
    if (var->leaf && var->leaf->grad_in_arena)
        return trek_fail(TREK_ERR_STATE, "arena: parameter '%s': it belongs to another optimizer or trainer; free that first",
                         name);
    return TREK_OK;
}

static int part_of(trek_arena_part *parts, int *n_parts, trek_dtype dtype)
{
    for (int p = 0; p < *n_parts; p++)
        if (parts[p].dtype == dtype)
            return p;
    parts[*n_parts].dtype = dtype;
    parts[*n_parts].wide = dtype == TREK_F64 ? TREK_F64 : TREK_F32;
    return (*n_parts)++;
}

int trek_arena_lay_out(const trek_params *params, trek_arena_part *parts, trek_arena_slot *slots)
{
    int n = trek_params_count(params), n_parts = 0, at = 0;
    for (int k = n - 1; k >= 0; k--)
        part_of(parts, &n_parts, trek_var_dtype(trek_params_var(params, k)));
    for (int p = 0; p < n_parts; p++) {
        for (int k = n - 1; k >= 0; k--) {
            const trek_var *var = trek_params_var(params, k);
            if (trek_var_dtype(var) != parts[p].dtype)
                continue;
            slots[at++] = (trek_arena_slot){ k, p, parts[p].count };
            parts[p].count += trek_arena_slot_end(trek_var_numel(var));
        }
    }
    return n_parts;
}

/* Adds the segments by part, within a part in reverse order of registration. */
static trek_status lay_out(trek_arena *arena, const trek_params *params)
{
    int n = trek_params_count(params);
    trek_arena_slot *slots = trek_calloc((size_t)n, sizeof *slots);
    if (!slots)
        return TREK_ERR_MEMORY;
    arena->n_parts = trek_arena_lay_out(params, arena->parts, slots);
    for (; arena->n_segments < n; arena->n_segments++) {
        const trek_arena_slot *slot = &slots[arena->n_segments];
        trek_arena_segment *segment = &arena->segments[arena->n_segments];
        segment->name = trek_strdup(trek_params_name(params, slot->index));
        if (!segment->name)
            break;
        segment->param = trek_var_retain(trek_params_var(params, slot->index));
        segment->offset = slot->offset;
        segment->count = trek_var_numel(segment->param);
        segment->part = slot->part;
        segment->index = slot->index;
    }
    trek_free(slots);
    return arena->n_segments == n ? TREK_OK : TREK_ERR_MEMORY;
}

static trek_arena *arena_begin(const trek_params *params)
{
    if (!params) {
        trek_fail_missing("arena_new", "params");
        return NULL;
    }
    int n = trek_params_count(params);
    trek_device device = n > 0 ? trek_var_device(trek_params_var(params, 0)) : trek_cpu(0);
    for (int k = 0; k < n; k++)
        if (check_param(params, k, device) != TREK_OK)
            return NULL;
    const trek_backend *backend = trek_backend_get(device.type);
    trek_arena *arena = backend ? trek_calloc(1, sizeof *arena) : NULL;
    if (!arena)
        return NULL;
    arena->device = device;
    arena->backend = backend;
    arena->segments = trek_calloc((size_t)n, sizeof *arena->segments);
    arena->sharers = 1;
    arena->unit = TREK_ARENA_SLOT;
    if (!arena->segments || lay_out(arena, params) != TREK_OK)
        trek_arena_free(&arena);
    return arena;
}

/* Pads the parts so that they can be divided evenly, unless the sharers may be others later. */
static void pad_parts(trek_arena *arena, int sharers)
{
    int64_t unit = (arena->twice ? 1 : sharers) * arena->unit;
    arena->sharers = sharers;
    for (int p = 0; p < arena->n_parts && sharers > 1; p++)
        arena->parts[p].count = (arena->parts[p].count + unit - 1) / unit * unit;
}

static bool has_masters(const trek_arena *arena, const trek_arena_part *part)
{
    return trek_arena_part_is_low(part) && arena->sharers == 1;
}

/* --- moving in --------------------------------------------------------------- */

static trek_tensor *make_slot(trek_tensor *whole, const trek_arena_segment *segment)
{
    trek_dtype dtype = (trek_dtype)whole->dtype;
    trek_tensor *slot = trek_tensor_make_part(whole, (size_t)segment->offset * trek_dtype_size(dtype),
                                              trek_var_shape(segment->param), dtype);
    if (slot) /* a parameter keeps its own CPU device, since the memory is a CPU's as well */
        slot->device = slot->storage->device = trek_var_device(segment->param);
    return slot;
}

static trek_status prepare_move(trek_arena *arena, trek_arena_segment *segment, arena_move *move)
{
    trek_arena_part *part = &arena->parts[segment->part];
    trek_tensor *value = segment->param->data;
    trek_leaf *leaf = trek_var_leaf(segment->param);
    if (!leaf)
        return TREK_ERR_MEMORY;
    move->data = make_slot(part->params, segment);
    move->grad = make_slot(part->grads, segment);
    if (!move->data || !move->grad)
        return TREK_ERR_MEMORY;
    move->data->storage->version = value->storage->version; /* what the tape saved of it stays valid */
    move->old_has_grad = leaf->has_grad;
    move->old_grad = trek_var_retain(leaf->grad);
    trek_status status = arena->sharing ? TREK_OK : trek_tensor_copy_from(move->data, value);
    if (status == TREK_OK && move->old_grad)
        status = trek_tensor_take_pages(move->grad);
    if (status == TREK_OK && move->old_grad)
        status = trek_tensor_copy_from(move->grad, move->old_grad->data);
    return status;
}

/* Switches the gradients first, because that can still fail, and then the data, which cannot. */
static trek_status switch_over(trek_arena *arena, arena_move *moves)
{
    for (int k = 0; k < arena->n_segments; k++) {
        trek_var *param = arena->segments[k].param;
        trek_status status = trek_var_place_grad(param, moves[k].grad);
        if (status != TREK_OK)
            return status;
        param->leaf->has_grad = moves[k].old_has_grad;
        moves[k].placed = true;
    }
    for (int k = 0; k < arena->n_segments; k++)
        trek_tensor_rebind(arena->segments[k].param->data, moves[k].data);
    trek_arena_note_masters(arena);
    return TREK_OK;
}

static void undo(trek_arena *arena, arena_move *moves)
{
    for (int k = 0; k < arena->n_segments; k++) {
        if (!moves[k].placed)
            continue;
        trek_leaf *leaf = arena->segments[k].param->leaf;
        trek_var_release(leaf->grad);
        leaf->grad = trek_var_retain(moves[k].old_grad);
        leaf->grad_in_arena = false;
        leaf->has_grad = moves[k].old_has_grad;
    }
}

/* Fills the masters of the parameters that are in their slots. */
static trek_status fill_masters(trek_arena *arena, const arena_move *moves)
{
    trek_status status = TREK_OK;
    for (int k = 0; k < arena->n_segments && status == TREK_OK; k++) {
        const trek_arena_part *part = &arena->parts[arena->segments[k].part];
        if (!has_masters(arena, part))
            continue;
        trek_tensor *master = make_slot(part->master, &arena->segments[k]);
        status = master ? trek_tensor_copy_from(master, moves[k].data) : TREK_ERR_MEMORY;
        trek_tensor_release(master);
    }
    return status;
}

static trek_status move_in(trek_arena *arena)
{
    arena_move *moves = trek_calloc((size_t)arena->n_segments, sizeof *moves);
    if (!moves)
        return TREK_ERR_MEMORY;
    trek_status status = TREK_OK;
    for (int k = 0; status == TREK_OK && k < arena->n_segments; k++)
        status = prepare_move(arena, &arena->segments[k], &moves[k]);
    if (status == TREK_OK && !arena->sharing)
        status = fill_masters(arena, moves);
    if (status == TREK_OK) {
        status = switch_over(arena, moves);
        if (status != TREK_OK)
            undo(arena, moves);
    }
    for (int k = 0; k < arena->n_segments; k++) {
        trek_tensor_release(moves[k].data);
        trek_tensor_release(moves[k].grad);
        trek_var_release(moves[k].old_grad);
    }
    trek_free(moves);
    return status;
}

static trek_tensor *plain_zeros(void *arg, trek_shape shape, trek_dtype dtype, trek_device device)
{
    (void)arg;
    return trek_tensor_zeros(shape, dtype, device);
}

/* Makes a part's buffers. A replica has its parameters and masters already. */
static trek_status make_buffers(const trek_arena *arena, trek_arena_part *part, trek_arena_zeros_fn zeros, void *arg)
{
    trek_shape shape = trek_shape_make(&part->count, 1);
    if (!part->params && arena->paged_params) {
        part->params = trek_pages_zeros(shape, part->dtype, arena->device);
        part->param_pages = part->params ? trek_pages_of(part->params) : NULL;
        if (part->params && trek_tensor_take_pages(part->params) != TREK_OK)
            return TREK_ERR_MEMORY;
    }
    if (!part->params)
        part->params = trek_tensor_zeros(shape, part->dtype, arena->device);
    if (!part->master && has_masters(arena, part))
        part->master = trek_tensor_zeros(shape, part->wide, arena->device);
    else if (!part->master && !trek_arena_part_is_low(part))
        part->master = trek_tensor_retain(part->params);
    part->grads = zeros(arg, shape, part->wide, arena->device);
    part->pages = part->grads ? trek_pages_of(part->grads) : NULL;
    bool whole = part->params && part->grads && (part->master || !has_masters(arena, part));
    return whole ? TREK_OK : trek_error_status();
}

trek_arena *trek_arena_new(const trek_params *params) { return trek_arena_new_in(params, 1, NULL, NULL); }

/* How an arena is made. */
typedef struct making {
    int sharers;
    int64_t unit;
    bool twice, paged_params;
    trek_arena_zeros_fn zeros; /* NULL: gradients are in any memory */
    void *arg;
} making;

static trek_arena *make(const trek_params *params, const making *how)
{
    trek_arena *arena = arena_begin(params);
    if (!arena)
        return NULL;
    arena->unit = how->unit;
    arena->twice = how->twice;
    arena->paged_params = how->paged_params;
    pad_parts(arena, how->sharers);
    trek_status status = TREK_OK;
    for (int p = 0; p < arena->n_parts && status == TREK_OK; p++)
        status = make_buffers(arena, &arena->parts[p], how->zeros ? how->zeros : plain_zeros, how->arg);
    if (status == TREK_OK)
        status = move_in(arena);
    if (status == TREK_OK && how->twice)
        status = trek_arena_weigh(arena, NULL);
    if (status != TREK_OK)
        trek_arena_free(&arena);
    else if (arena->device.type == TREK_CPU)
        arena->backend->release_cached(arena->device); /* the parameters' old memory: as much again, in sizes nobody needs */
    return arena;
}

trek_arena *trek_arena_new_in(const trek_params *params, int sharers, trek_arena_zeros_fn zeros, void *arg)
{
    return make(params, &(making){ .sharers = sharers, .unit = TREK_ARENA_SLOT, .zeros = zeros, .arg = arg });
}

trek_arena *trek_arena_new_twice(const trek_params *params, int sharers, trek_arena_zeros_fn zeros, void *arg)
{
    return make(params, &(making){ .sharers = sharers, .unit = TREK_ARENA_SLOT, .twice = true, .zeros = zeros, .arg = arg });
}

static trek_tensor *paged_zeros(void *arg, trek_shape shape, trek_dtype dtype, trek_device device)
{
    (void)arg;
    return trek_pages_zeros(shape, dtype, device);
}

/* Cuts lie at pages of gradients, which have 4 bytes or more, and of parameters, which have 2 or more. */
trek_arena *trek_arena_new_paged(const trek_params *params, int sharers, size_t page, bool params_too, bool twice)
{
    int64_t unit = (int64_t)(page / sizeof(uint16_t));
    return make(params, &(making){ .sharers = sharers, .unit = unit > TREK_ARENA_SLOT ? unit : TREK_ARENA_SLOT,
                                   .twice = twice, .paged_params = params_too, .zeros = paged_zeros });
}

/* The replica's layout follows from names, shapes and dtypes, so comparing the segments compares everything. */
static trek_status check_same(const trek_arena *arena, const trek_arena *owner)
{
    if (arena->device.type != owner->device.type)
        return trek_fail(TREK_ERR_DEVICE, "arena: a replica on another kind of device cannot share memory");
    if (arena->n_segments != owner->n_segments)
        return trek_fail(TREK_ERR_ARGUMENT, "arena: the replica has %d parameters, the first model %d; must be equal",
                         arena->n_segments, owner->n_segments);
    for (int k = 0; k < arena->n_segments; k++) {
        const trek_arena_segment *a = &arena->segments[k], *b = &owner->segments[k];
        trek_shape shape = trek_var_shape(a->param), other = trek_var_shape(b->param);
        trek_dtype dtype = trek_var_dtype(a->param), other_dtype = trek_var_dtype(b->param);
        if (strcmp(a->name, b->name) == 0 && a->index == b->index && dtype == other_dtype && trek_shape_equal(shape, other))
            continue;
        char text[TREK_SHAPE_TEXT], other_text[TREK_SHAPE_TEXT];
        return trek_fail(TREK_ERR_ARGUMENT, "arena: parameter '%s' of the replica: %s %s does not match '%s' %s %s", a->name,
                         trek_shape_format(shape, text, sizeof text), trek_dtype_name(dtype), b->name,
                         trek_shape_format(other, other_text, sizeof other_text),
                         trek_dtype_name(other_dtype));
    }
    return TREK_OK;
}

trek_arena *trek_arena_new_sharing(const trek_params *params, trek_arena *owner)
{
    if (!owner) {
        trek_fail_missing("arena_new_sharing", "owner");
        return NULL;
    }
    trek_arena *arena = arena_begin(params);
    if (!arena)
        return NULL;
    arena->sharing = true;
    arena->twice = owner->twice;
    pad_parts(arena, owner->sharers);
    trek_status status = check_same(arena, owner);
    if (status == TREK_OK && arena->twice)
        status = trek_arena_weigh(arena, owner->weights);
    for (int p = 0; status == TREK_OK && p < arena->n_parts; p++) {
        trek_arena_part *part = &arena->parts[p];
        part->params = trek_tensor_retain(owner->parts[p].params);
        part->master = owner->parts[p].master ? trek_tensor_retain(owner->parts[p].master) : NULL;
        status = make_buffers(arena, part, plain_zeros, NULL);
    }
    if (status == TREK_OK)
        status = move_in(arena);
    if (status != TREK_OK)
        trek_arena_free(&arena);
    return arena;
}

/* --- the end ------------------------------------------------------------------ */

/* Makes the leaf an ordinary one if its gradient is (still) in this arena. */
static void let_go(const trek_arena_part *part, trek_var *param)
{
    trek_leaf *leaf = param->leaf;
    if (!leaf || !leaf->grad_in_arena || !leaf->grad || !part->grads ||
        leaf->grad->data->storage->parent != part->grads->storage)
        return;
    leaf->grad_in_arena = false;
    if (!leaf->has_grad) {
        trek_var_release(leaf->grad);
        leaf->grad = NULL;
    }
}

void trek_arena_free(trek_arena **address)
{
    if (!address || !*address)
        return;
    trek_arena *arena = *address;
    *address = NULL;
    for (int k = 0; k < arena->n_segments; k++) {
        trek_arena_segment *segment = &arena->segments[k];
        let_go(&arena->parts[segment->part], segment->param);
        trek_var_release(segment->param);
        trek_free(segment->name);
    }
    for (int p = 0; p < arena->n_parts; p++) {
        trek_tensor_release(arena->parts[p].params);
        trek_tensor_release(arena->parts[p].master);
        trek_tensor_release(arena->parts[p].grads);
    }
    trek_free(arena->segments);
    trek_free(arena->cuts);
    trek_free(arena->weights);
    trek_free(arena->owner);
    trek_free(arena);
}

/* --- what is done to all of it ------------------------------------------------- */

static void zero_bytes(void *data, int64_t begin, int64_t end) { memset((char *)data + begin, 0, (size_t)(end - begin)); }

static void fill_zero(trek_tensor *tensor)
{
    trek_op_call fill = { .op = &trek_ops[TREK_OP_fill], .n_outputs = 1, .outputs = { tensor } };
    trek_op_run(&fill);
}

void trek_arena_zero_grads(trek_arena *arena)
{
    if (!arena)
        return;
    for (int p = 0; p < arena->n_parts; p++) {
        trek_arena_part *part = &arena->parts[p];
        if (part->pages) {
            trek_pages_give_back(part->pages, part->grads->data, (size_t)part->count * trek_dtype_size(part->wide));
        } else if (arena->backend->host_accessible) {
            int64_t bytes = part->count * (int64_t)trek_dtype_size(part->wide);
            if (bytes >= 2 * ZERO_GRAIN)
                trek_parallel(bytes, ZERO_GRAIN, zero_bytes, part->grads->data);
            else
                memset(part->grads->data, 0, (size_t)bytes);
        } else {
            fill_zero(part->grads);
        }
    }
    trek_arena_forget_grads(arena);
}

/* Fills elements [begin, end) of a part's gradients with zeros. */
static trek_status zero_stretch(const trek_arena *arena, const trek_arena_part *part, int64_t begin, int64_t end)
{
    size_t size = trek_dtype_size(part->wide);
    if (begin < end && part->pages) {
        trek_pages_give_back(part->pages, part->grads->data + (size_t)begin * size, (size_t)(end - begin) * size);
    } else if (begin < end && arena->backend->host_accessible) {
        memset(part->grads->data + (size_t)begin * size, 0, (size_t)(end - begin) * size);
    } else if (begin < end) {
        trek_tensor *grads = trek_arena_stretch(part->grads, begin, end - begin);
        if (!grads)
            return TREK_ERR_MEMORY;
        fill_zero(grads);
        trek_tensor_release(grads);
    }
    return TREK_OK;
}

/* The same except for this rank's own. */
static trek_status zero_others(const trek_arena *arena, int p, int64_t begin, int64_t end)
{
    const trek_arena_part *part = &arena->parts[p];
    trek_status status = TREK_OK;
    trek_arena_cut own;
    for (int64_t at = begin; status == TREK_OK && trek_arena_next_own(arena, p, &at, end, &own); begin = own.end)
        status = zero_stretch(arena, part, begin, own.begin);
    return status == TREK_OK ? zero_stretch(arena, part, begin, end) : status;
}

trek_status trek_arena_zero_others(trek_arena *arena)
{
    trek_status status = TREK_OK;
    for (int p = 0; p < arena->n_parts && status == TREK_OK; p++)
        status = zero_others(arena, p, 0, arena->parts[p].count);
    return status;
}

void trek_arena_give_back(trek_arena *arena, int part, int64_t begin, int64_t end)
{
    if (arena->parts[part].pages)
        zero_others(arena, part, begin, end);
}

trek_status trek_arena_hold_own(trek_arena *arena)
{
    bool any = false;
    trek_status status = TREK_OK;
    for (int k = 0; k < arena->n_segments; k++)
        any |= arena->segments[k].param->leaf->has_grad;
    for (int p = 0; p < arena->n_parts; p++) {
        const trek_arena_part *part = &arena->parts[p];
        size_t size = trek_dtype_size(part->wide);
        if (!part->pages)
            continue;
        trek_pages_release_holds(part->pages);
        for (int k = 0; k < arena->n_cuts && status == TREK_OK; k++)
            if (arena->cuts[k].part == p)
                status = trek_pages_hold(part->pages, part->grads->data + (size_t)arena->cuts[k].begin * size,
                                         (size_t)(arena->cuts[k].end - arena->cuts[k].begin) * size);
        if (!any)
            trek_arena_give_back(arena, p, 0, part->count);
    }
    return status;
}

void trek_arena_zero_segment(trek_arena *arena, int segment)
{
    trek_tensor *grad = arena->segments[segment].param->leaf->grad->data;
    trek_pages *pages = arena->parts[arena->segments[segment].part].pages;
    if (pages)
        trek_pages_give_back(pages, grad->data, (size_t)grad->numel * trek_dtype_size((trek_dtype)grad->dtype));
    else if (arena->backend->host_accessible)
        memset(grad->data, 0, (size_t)grad->numel * trek_dtype_size((trek_dtype)grad->dtype));
    else
        fill_zero(grad);
}

void trek_arena_forget_grads(trek_arena *arena)
{
    for (int k = 0; k < arena->n_segments; k++) {
        trek_leaf *leaf = arena->segments[k].param->leaf;
        if (!leaf->has_grad)
            continue;
        leaf->has_grad = false;
        trek_tensor_bump(leaf->grad->data);
    }
}

void trek_arena_mark_used(trek_arena *arena)
{
    for (int k = 0; k < arena->n_segments; k++) {
        trek_arena_segment *segment = &arena->segments[k];
        segment->used = segment->param->leaf->has_grad && segment->param->requires_grad;
    }
}

void trek_arena_bump(trek_arena *arena, const trek_arena *updated)
{
    for (int k = 0; k < arena->n_segments; k++)
        if (updated->segments[k].used)
            trek_tensor_bump(arena->segments[k].param->data);
}

void trek_arena_sum_squares(const trek_arena *arena, double *sum, bool *finite)
{
    *sum = 0.0;
    *finite = true;
    for (int p = 0; p < arena->n_parts; p++) {
        const trek_arena_part *part = &arena->parts[p];
        double of_part = 0.0;
        bool part_finite = true;
        arena->backend->sum_squares(arena->device, part->wide, part->grads->data, part->count, &of_part, &part_finite);
        *sum += of_part;
        *finite = *finite && part_finite;
    }
}

int64_t trek_arena_filled(const trek_arena *arena, int part)
{
    int64_t end = 0;
    for (int k = 0; k < arena->n_segments; k++)
        if (arena->segments[k].part == part)
            end = trek_arena_slot_end(arena->segments[k].offset + arena->segments[k].count);
    return end;
}

int trek_arena_find(const trek_arena *arena, const trek_var *param)
{
    for (int k = 0; arena && k < arena->n_segments; k++)
        if (arena->segments[k].param == param)
            return k;
    return -1;
}
