/* SPDX-License-Identifier: Apache-2.0 */
/* SAM over an optimizer's arena. Master copies of 16-bit parameters stay unchanged, because going back discards the
 * ascent. */
#include "optim/sam.h"

#include <math.h>
#include <string.h>

#include "autograd/backward.h"
#include "autograd/ops.h"
#include "autograd/var_internal.h"
#include "nn/state_internal.h"
#include "optim/optimizer_internal.h"
#include "tensor/memory_internal.h"
#include "tensor/option_internal.h"
#include "tensor/scope.h"

struct trek_sam {
    trek_optimizer *optimizer;
    double rho;
    bool adaptive, climbed;
    trek_tensor *kept[TREK_DTYPE_COUNT]; /* the parameters' values before the ascent */
};

trek_sam *trek_sam_new(trek_optimizer *optimizer, const trek_sam_opts *opts)
{
    double rho = trek_option(opts ? opts->rho : 0, 0.05);
    if (!optimizer) {
        trek_fail_missing("sam_new", "optimizer");
        return NULL;
    }
    if (!(isfinite(rho) && rho >= 0))
        return trek_fail_null(TREK_ERR_ARGUMENT, "sam_new: rho: %g; must be finite and at least 0", rho);
    trek_sam *sam = trek_calloc(1, sizeof *sam);
    if (sam)
        *sam = (trek_sam){ .optimizer = optimizer, .rho = rho, .adaptive = opts && opts->adaptive };
    return sam;
}

static void drop(trek_sam *sam)
{
    for (int p = 0; p < TREK_DTYPE_COUNT; p++) {
        trek_tensor_release(sam->kept[p]);
        sam->kept[p] = NULL;
    }
}

static void bump(const trek_arena *arena)
{
    for (int k = 0; k < arena->n_segments; k++)
        trek_tensor_bump(arena->segments[k].param->data);
}

/* Cannot fail on the CPU, because the memory is there. */
static trek_status go_back(trek_sam *sam)
{
    trek_arena *arena = sam->optimizer->arena;
    trek_status status = TREK_OK;
    for (int p = 0; p < arena->n_parts && status == TREK_OK; p++)
        if (sam->kept[p])
            status = trek_tensor_copy_from(arena->parts[p].params, sam->kept[p]);
    bump(arena);
    trek_arena_note_masters(arena);
    drop(sam);
    sam->climbed = false;
    return status;
}

void trek_sam_free(trek_sam **address)
{
    trek_sam *sam = address ? *address : NULL;
    if (!sam)
        return;
    *address = NULL;
    if (sam->climbed)
        go_back(sam);
    drop(sam);
    trek_free(sam);
}

/* Returns the direction of a part's ascent, in the dtype of its gradients: the gradient, times the parameter's
 * magnitude if adaptive (and its square for the step itself). */
static trek_var *way(const trek_sam *sam, const trek_arena_part *part, bool step)
{
    trek_var *g = trek_var_from(trek_tensor_retain(part->grads));
    if (!sam->adaptive || !g)
        return g;
    trek_var *size = trek_abs(trek_cast(trek_var_from(trek_tensor_retain(part->params)), part->wide));
    g = size ? trek_mul(g, size) : NULL;
    return g && step ? trek_mul(g, size) : g;
}

static trek_status measure(const trek_sam *sam, double *norm)
{
    const trek_arena *arena = sam->optimizer->arena;
    double sum = 0;
    bool finite;
    if (!sam->adaptive)
        trek_arena_sum_squares(arena, &sum, &finite);
    for (int p = 0; p < arena->n_parts && sam->adaptive; p++) {
        trek_var *g = way(sam, &arena->parts[p], false), *square = g ? trek_sum(trek_square(g), trek_dims_all(), false) : NULL;
        if (!square)
            return trek_error_status();
        sum += trek_var_item(square);
    }
    *norm = sqrt(sum);
    return trek_error_status();
}

static trek_status climb(trek_sam *sam, double factor)
{
    trek_arena *arena = sam->optimizer->arena;
    trek_status status = TREK_OK;
    for (int p = 0; p < arena->n_parts && status == TREK_OK; p++)
        if (!(sam->kept[p] = trek_tensor_clone(arena->parts[p].params)))
            status = trek_error_status();
    for (int p = 0; p < arena->n_parts && status == TREK_OK && factor > 0; p++) { /* 0 times NaN would be NaN */
        trek_arena_part *part = &arena->parts[p];
        trek_var *own = trek_cast(trek_var_from(trek_tensor_retain(part->params)), part->wide), *g = way(sam, part, true);
        trek_var *sum = own && g ? trek_add(own, trek_mul_scalar(g, factor)) : NULL;
        status = sum ? trek_tensor_copy_from(part->params, trek_var_data(sum)) : trek_error_status();
    }
    bump(arena);
    trek_arena_note_masters(arena);
    return status;
}

trek_status trek_sam_first_step(trek_sam *sam)
{
    if (!sam)
        return trek_fail_missing("sam_first_step", "sam");
    if (sam->climbed)
        return trek_fail(TREK_ERR_STATE, "sam_first_step: called twice; call trek_sam_second_step in between");
    trek_status status = trek_error_status();
    if (status == TREK_OK)
        status = trek_arena_refresh_masters(sam->optimizer->arena);
    if (status != TREK_OK)
        return status;
    trek_scope scope = trek_scope_begin();
    trek_no_grad_begin();
    double norm = 0;
    status = measure(sam, &norm);
    if (status == TREK_OK)
        status = climb(sam, isfinite(norm) ? sam->rho / (norm + 1e-12) : 0);
    trek_no_grad_end();
    trek_scope_end(scope);
    if (status != TREK_OK) {
        go_back(sam);
        return status;
    }
    sam->climbed = true;
    return trek_optimizer_zero_grad(sam->optimizer);
}

trek_status trek_sam_second_step(trek_sam *sam)
{
    if (!sam)
        return trek_fail_missing("sam_second_step", "sam");
    if (!sam->climbed)
        return trek_fail(TREK_ERR_STATE, "sam_second_step: called without trek_sam_first_step before");
    trek_status status = go_back(sam);
    if (status == TREK_OK)
        status = trek_optimizer_step(sam->optimizer);
    return status == TREK_OK ? trek_optimizer_zero_grad(sam->optimizer) : status;
}

/* --- state ----------------------------------------------------------------------------------- */

#define BEFORE ".before"

/* Returns a parameter's elements of its part's kept values, in its shape. */
static trek_tensor *kept_view(trek_tensor *const *kept, const trek_arena_part *part, const trek_arena_segment *segment)
{
    return trek_tensor_make_part(kept[segment->part], (size_t)segment->offset * trek_dtype_size(part->dtype),
                                 trek_var_shape(segment->param), part->dtype);
}

static trek_status add_before(trek_state *state, const trek_sam *sam, const trek_arena_segment *segment)
{
    char *name = trek_format("%s" BEFORE, segment->name);
    trek_tensor *view = name ? kept_view(sam->kept, &sam->optimizer->arena->parts[segment->part], segment) : NULL;
    trek_tensor *here = view ? trek_tensor_to(view, trek_cpu(0)) : NULL, *copy = here ? trek_tensor_clone(here) : NULL;
    trek_status status = copy ? trek_state_add(state, name, copy) : trek_error_status();
    trek_tensor_release(view);
    trek_tensor_release(here);
    trek_tensor_release(copy);
    trek_free(name);
    return status;
}

trek_state *trek_sam_save(trek_sam *sam)
{
    if (!sam)
        return trek_fail_missing("sam_save", "sam"), NULL;
    trek_arena *arena = sam->optimizer->arena;
    if (sam->climbed) /* whatever was written there, the masters correspond to the kept values */
        trek_arena_note_masters(arena);
    trek_state *state = trek_optimizer_save(sam->optimizer);
    trek_status status = state ? TREK_OK : trek_error_status();
    for (int k = 0; sam->climbed && k < arena->n_segments && status == TREK_OK; k++)
        status = add_before(state, sam, &arena->segments[k]);
    if (status != TREK_OK)
        trek_state_free(&state);
    return state;
}

/* A state in two parts: the optimizer's, and each segment's values before the ascent. */
typedef struct loading {
    trek_state *of_optimizer;
    trek_tensor **before;    /* [segments] borrowed from the state; may be NULL */
    int n_before;
    trek_tensor *kept[TREK_DTYPE_COUNT];
} loading;

static int segment_before(const trek_arena *arena, const char *name)
{
    size_t length = strlen(name), more = strlen(BEFORE);
    if (length <= more || strcmp(name + length - more, BEFORE) != 0)
        return -1;
    for (int k = 0; k < arena->n_segments; k++)
        if (strlen(arena->segments[k].name) == length - more && memcmp(arena->segments[k].name, name, length - more) == 0)
            return k;
    return -1;
}

static trek_status check_before(const trek_arena_segment *segment, const trek_tensor *tensor)
{
    char text[TREK_SHAPE_TEXT], own[TREK_SHAPE_TEXT];
    trek_shape shape = trek_tensor_shape(tensor), is = trek_var_shape(segment->param);
    trek_dtype dtype = trek_var_dtype(segment->param);
    if (trek_shape_equal(shape, is) && trek_tensor_dtype(tensor) == dtype)
        return TREK_OK;
    return trek_fail(TREK_ERR_FORMAT, "sam_load: state: '%s" BEFORE "' is %s %s; must be %s %s", segment->name,
                     trek_shape_format(shape, text, sizeof text), trek_dtype_name(trek_tensor_dtype(tensor)),
                     trek_shape_format(is, own, sizeof own),
                     trek_dtype_name(dtype));
}

static trek_status divide(loading *x, const trek_arena *arena, const trek_state *state)
{
    x->before = trek_calloc((size_t)arena->n_segments + 1, sizeof *x->before);
    trek_status status = x->before && (x->of_optimizer = trek_state_new()) ? TREK_OK : trek_error_status();
    for (int k = 0; k < trek_state_count(state) && status == TREK_OK; k++) {
        const char *name = trek_state_name(state, k);
        int at = segment_before(arena, name);
        trek_tensor *tensor = trek_state_tensor(state, k);
        if (!tensor) {
            status = trek_error_status();
        } else if (at < 0) {
            status = trek_state_add(x->of_optimizer, name, tensor);
        } else if ((status = check_before(&arena->segments[at], tensor)) == TREK_OK) {
            x->before[at] = tensor;
            x->n_before++;
        }
    }
    for (int k = 0; k < arena->n_segments && status == TREK_OK && x->n_before > 0; k++)
        if (!x->before[k])
            status = trek_fail(TREK_ERR_FORMAT, "sam_load: state: '%s" BEFORE "' is missing", arena->segments[k].name);
    return status;
}

/* Adds masters that the optimizer does not save because it has not updated them. They equal the values before the
 * ascent. */
static trek_status add_masters(loading *x, const trek_arena *arena)
{
    trek_status status = TREK_OK;
    for (int k = 0; k < arena->n_segments && status == TREK_OK; k++) {
        const trek_arena_segment *segment = &arena->segments[k];
        const trek_arena_part *part = &arena->parts[segment->part];
        if (!trek_arena_part_is_low(part))
            continue;
        char *name = trek_format("%s.master", segment->name);
        bool there = name && trek_state_find(x->of_optimizer, name);
        trek_tensor *master = name && !there ? trek_tensor_cast(x->before[k], part->wide) : NULL;
        status = there ? TREK_OK : master ? trek_state_add(x->of_optimizer, name, master) : trek_error_status();
        trek_tensor_release(master);
        trek_free(name);
    }
    return status;
}

static trek_status fill_kept(loading *x, const trek_arena *arena)
{
    trek_status status = TREK_OK;
    for (int p = 0; p < arena->n_parts && status == TREK_OK; p++) {
        const trek_arena_part *part = &arena->parts[p];
        x->kept[p] = trek_tensor_zeros(trek_shape_make(&part->count, 1), part->dtype, arena->device);
        status = x->kept[p] ? TREK_OK : trek_error_status();
    }
    for (int k = 0; k < arena->n_segments && status == TREK_OK; k++) {
        const trek_arena_segment *segment = &arena->segments[k];
        trek_tensor *view = kept_view(x->kept, &arena->parts[segment->part], segment);
        status = view ? trek_tensor_copy_from(view, x->before[k]) : TREK_ERR_MEMORY;
        trek_tensor_release(view);
    }
    return status;
}

trek_status trek_sam_load(trek_sam *sam, const trek_state *state)
{
    if (!sam || !state)
        return trek_fail_missing("sam_load", sam ? "state" : "sam");
    trek_arena *arena = sam->optimizer->arena;
    loading x = { .n_before = 0 };
    trek_status status = trek_error_status();
    if (status == TREK_OK)
        status = divide(&x, arena, state);
    if (status == TREK_OK && x.n_before > 0)
        status = fill_kept(&x, arena);
    if (status == TREK_OK && x.n_before > 0)
        status = add_masters(&x, arena);
    status = trek_optimizer_load(sam->optimizer, status == TREK_OK ? x.of_optimizer : state); /* which passes an error on */
    if (status == TREK_OK) {
        drop(sam);
        sam->climbed = x.n_before > 0;
    }
    for (int p = 0; p < TREK_DTYPE_COUNT; p++) {
        if (status == TREK_OK)
            sam->kept[p] = x.kept[p];
        else
            trek_tensor_release(x.kept[p]);
    }
    trek_state_free(&x.of_optimizer);
    trek_free(x.before);
    return status;
}
