/* SPDX-License-Identifier: Apache-2.0 */
/* What a scaler does with an optimizer: it divides the scale out of the gradients, and steps if they are finite. */
#include "autograd/var_internal.h"
#include "optim/optimizer_internal.h"
#include "optim/scaler_internal.h"

static trek_status check_call(const trek_grad_scaler *scaler, const trek_optimizer *optimizer, const char *function)
{
    if (!scaler || !optimizer)
        return trek_fail_missing(function, scaler ? "optimizer" : "scaler");
    return trek_error_status();
}

trek_status trek_grad_scaler_unscale(trek_grad_scaler *scaler, trek_optimizer *optimizer)
{
    trek_status status = check_call(scaler, optimizer, "grad_scaler_unscale");
    if (status != TREK_OK || scaler->no_scaling)
        return status;
    if (optimizer->unscaled)
        return trek_fail(TREK_ERR_STATE, "grad_scaler_unscale: the gradients are already unscaled; unscale once for each step");
    trek_arena *arena = optimizer->arena;
    if (!trek_scaler_record(scaler, arena->device) || trek_scaler_read(scaler) != TREK_OK)
        return trek_error_status();
    double sum;
    bool finite;
    trek_arena_sum_squares(arena, &sum, &finite);
    for (int p = 0; p < arena->n_parts; p++)
        arena->backend->scale(arena->device, arena->parts[p].wide, arena->parts[p].grads->data, arena->parts[p].count,
                              1.0 / scaler->values.scale);
    for (int k = 0; k < arena->n_segments; k++)
        if (arena->segments[k].param->leaf->has_grad)
            trek_tensor_bump(arena->segments[k].param->leaf->grad->data);
    optimizer->unscaled = true;
    optimizer->found_inf = !finite;
    scaler->values.found_inf |= !finite;
    return finite ? TREK_OK : trek_scaler_write(scaler);
}

trek_status trek_grad_scaler_step(trek_grad_scaler *scaler, trek_optimizer *optimizer)
{
    trek_status before = trek_error_status(), status = check_call(scaler, optimizer, "grad_scaler_step");
    if (before != TREK_OK && optimizer && !(optimizer->unscaled && optimizer->found_inf))
        return trek_optimizer_step(optimizer); /* it changes nothing, but others with a part of its state may be waiting for it */
    if (status != TREK_OK)
        return status;
    if (scaler->no_scaling)
        return trek_optimizer_step(optimizer);
    if (!optimizer->unscaled)
        return trek_optimizer_step_with(optimizer, &(trek_step_opts){ .scaler = scaler });
    status = optimizer->found_inf ? TREK_OK : trek_optimizer_step(optimizer);
    if (status == TREK_OK)
        optimizer->unscaled = false;
    return status;
}
