/* SPDX-License-Identifier: Apache-2.0 */
/* Autocast: the dtypes that an op's inputs get, and the cached casts of parameters. */
#include "autograd/autocast.h"

#include <stdlib.h>

#include "autograd/tape_internal.h"
#include "tensor/thread_end.h"

enum { DEEPEST = 64, FEW = 8, FIRST_CAPACITY = 64 };

/* The cast of a parameter, as long as it is valid. */
typedef struct kept_cast {
    trek_var *from, *to;   /* retained; from is NULL if the slot is free */
    uint32_t version;
    bool recorded;         /* made while the tape was recording */
} kept_cast;

/* Of the calling thread; NULL if it has never begun autocast. */
static _Thread_local struct autocast {
    int depth;
    uint8_t before[DEEPEST]; /* the state that each begin found */
    kept_cast *kept;       /* open addressing */
    int n_kept, capacity;  /* capacity: a power of two */
} *state;

/* --- the casts that are kept ----------------------------------------------------- */

static void drop_kept(void)
{
    for (int k = 0; k < state->capacity; k++) {
        trek_var_release(state->kept[k].to);
        trek_var_release(state->kept[k].from);
    }
    trek_free(state->kept);
    state->kept = NULL;
    state->n_kept = state->capacity = 0;
}

/* Returns the slot of a parameter, or the free slot where it belongs. There is always a free one. */
static kept_cast *find(kept_cast *kept, int capacity, const trek_var *var)
{
    uintptr_t hash = (uintptr_t)var >> 4;
    for (size_t at = (hash ^ hash >> 9) & (size_t)(capacity - 1);; at = (at + 1) & (size_t)(capacity - 1))
        if (!kept[at].from || kept[at].from == var)
            return &kept[at];
}

static trek_status make_room(void)
{
    if (2 * (state->n_kept + 1) <= state->capacity)
        return TREK_OK;
    int capacity = state->capacity ? 2 * state->capacity : FIRST_CAPACITY;
    kept_cast *kept = trek_calloc((size_t)capacity, sizeof *kept);
    if (!kept)
        return trek_error_status();
    for (int k = 0; k < state->capacity; k++)
        if (state->kept[k].from)
            *find(kept, capacity, state->kept[k].from) = state->kept[k];
    trek_free(state->kept);
    state->kept = kept;
    state->capacity = capacity;
    return TREK_OK;
}

static bool holds(const kept_cast *cast, const trek_var *var, trek_dtype dtype)
{
    return cast->from && cast->to->data->dtype == dtype && cast->version == var->data->storage->version &&
           cast->recorded == trek_recording() && !(cast->to->node && cast->to->node->freed);
}

static trek_var *cast_parameter(trek_var *var, trek_dtype dtype)
{
    if (make_room() != TREK_OK)
        return NULL;
    kept_cast *cast = find(state->kept, state->capacity, var);
    if (holds(cast, var, dtype))
        return cast->to;
    trek_var *to = trek_apply_convert(var, dtype);
    if (!to)
        return NULL;
    if (!cast->from) {
        cast->from = trek_var_retain(var);
        state->n_kept++;
    }
    trek_var_release(cast->to);
    cast->to = trek_var_retain(to);
    cast->version = var->data->storage->version;
    cast->recorded = trek_recording();
    return to;
}

/* --- one op ------------------------------------------------------------------------ */

static inline bool is_low(const trek_var *var) { return trek_dtype_is_16bit((trek_dtype)var->data->dtype); }

/* Returns the dtype that floating inputs other than f64 are cast to. */
static trek_dtype wanted(const trek_op *op, trek_var *const *inputs, int n)
{
    if (op->flags & TREK_OP_CAST_LOW)
        return (trek_dtype)trek_grad_mode_here.autocast;
    if (op->flags & TREK_OP_CAST_FULL)
        return TREK_F32;
    trek_dtype widest = TREK_DTYPE_COUNT;
    for (int k = 0; k < n; k++)
        if (inputs[k] && trek_dtype_is_float((trek_dtype)inputs[k]->data->dtype))
            widest = trek_dtype_promote(widest, (trek_dtype)inputs[k]->data->dtype);
    return widest;
}

static trek_var *cast_input(const trek_op *op, trek_var *var, trek_dtype dtype)
{
    if (!var || var->data->dtype == dtype || !(is_low(var) || var->data->dtype == TREK_F32))
        return var;
    if ((op->flags & TREK_OP_CAST_LOW) && var->data->dtype == TREK_F32 && !var->node && var->requires_grad)
        return cast_parameter(var, dtype);
    return trek_apply_convert(var, dtype);
}

trek_status trek_autocast_apply(const trek_op *op, trek_var *const *inputs, int n, const trek_attrs *attrs, trek_var **outs,
                                int n_outs)
{
    trek_var *few[FEW], **cast = few;
    if (n > FEW && !(cast = trek_block_alloc((size_t)n * sizeof *cast)))
        return trek_error_status();
    trek_dtype dtype = wanted(op, inputs, n);
    trek_status status = TREK_OK;
    for (int k = 0; k < n && status == TREK_OK; k++) {
        cast[k] = cast_input(op, inputs[k], dtype);
        if (inputs[k] && !cast[k])
            status = trek_error_status();
    }
    if (status == TREK_OK) {
        uint8_t present = trek_grad_mode_here.autocast;
        trek_grad_mode_here.autocast = TREK_F32; /* the inputs are already as they should be */
        status = trek_apply_many(op, cast, n, attrs, outs, n_outs);
        trek_grad_mode_here.autocast = present;
    }
    if (cast != few)
        trek_block_free(cast);
    return status;
}

trek_var *trek_autocast_full(trek_var *var)
{
    return var && trek_grad_mode_here.autocast != TREK_F32 && is_low(var) ? trek_apply_convert(var, TREK_F32) : var;
}

/* --- begin and end -------------------------------------------------------------------- */

static void end_of_thread(void)
{
    drop_kept();
    free(state);
    state = NULL;
    trek_grad_mode_here.autocast = TREK_F32;
}

/* Allocated with calloc, because it outlives every allocator. */
static bool have_state(void)
{
    if (state)
        return true;
    state = calloc(1, sizeof *state);
    if (!state)
        return trek_fail(TREK_ERR_MEMORY, "autocast_begin: out of memory"), false;
    trek_thread_at_end(TREK_THREAD_AUTOCAST, end_of_thread);
    return true;
}

void trek_autocast_begin(trek_dtype dtype)
{
    if (!have_state())
        return;
    if (state->depth < DEEPEST)
        state->before[state->depth] = trek_grad_mode_here.autocast;
    state->depth++;
    if (!trek_dtype_is_16bit(dtype) && dtype != TREK_F32)
        trek_fail(TREK_ERR_ARGUMENT, "autocast_begin: dtype: %s; must be bf16, f16 or (off) f32", trek_dtype_name(dtype));
    else if (state->depth > DEEPEST)
        trek_fail(TREK_ERR_STATE, "autocast_begin: nested more than %d deep; begin and end must pair", DEEPEST);
    else
        trek_grad_mode_here.autocast = (uint8_t)dtype;
}

void trek_autocast_end(void)
{
    if (!state || state->depth == 0) {
        trek_fail(TREK_ERR_STATE, "autocast_end: called without trek_autocast_begin before");
        return;
    }
    state->depth--;
    if (state->depth < DEEPEST)
        trek_grad_mode_here.autocast = state->before[state->depth];
    if (state->depth == 0 && state->kept)
        drop_kept();
}

trek_dtype trek_autocast_dtype(void) { return (trek_dtype)trek_grad_mode_here.autocast; }
