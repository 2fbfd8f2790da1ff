/* SPDX-License-Identifier: Apache-2.0 */
/* SAM over an optimizer's arena. Master copies of 16-bit parameters stay where they are: what is climbed is lost in going back.
 */
#include "optim/sam.h"

#include <math.h>

#include "autograd/backward.h"
#include "autograd/ops.h"
#include "autograd/var_internal.h"
#include "optim/optimizer_internal.h"
#include "tensor/option_internal.h"
#include "tensor/scope.h"

struct trek_sam {
    trek_optimizer *optimizer;
    double rho;
    bool adaptive, climbed;
    trek_tensor *kept[TREK_DTYPE_COUNT]; /* what the parameters were */
};

trek_sam *trek_sam_new(trek_optimizer *optimizer, const trek_sam_opts *opts)
{
    double rho = trek_option(opts ? opts->rho : 0, 0.05);
    if (!optimizer) {
        trek_fail_missing("trek_sam_new", "optimizer");
        return NULL;
    }
    if (!(isfinite(rho) && rho >= 0))
        return trek_fail_null(TREK_ERR_ARGUMENT, "trek_sam_new: rho must be finite and at least 0, not %g", rho);
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

/* On the CPU this cannot fail: the memory is there. */
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

/* What a part climbs along, in the dtype of its gradients: the gradient, or times the parameter's size (squared: the step). */
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
        trek_var *g = way(sam, &arena->parts[p], false), *square = g ? trek_sum(trek_square(g), trek_dims_none(), false) : NULL;
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
        return trek_fail_missing("trek_sam_first_step", "sam");
    if (sam->climbed)
        return trek_fail(TREK_ERR_STATE, "trek_sam_first_step: the second step of the last one is missing");
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
        return trek_fail_missing("trek_sam_second_step", "sam");
    if (!sam->climbed)
        return trek_fail(TREK_ERR_STATE, "trek_sam_second_step: the first step is missing");
    trek_status status = go_back(sam);
    if (status == TREK_OK)
        status = trek_optimizer_step(sam->optimizer);
    return status == TREK_OK ? trek_optimizer_zero_grad(sam->optimizer) : status;
}
