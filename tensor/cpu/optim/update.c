/* SPDX-License-Identifier: Apache-2.0 */
/* An optimizer step from records (tensor/update.h), on the CPU: the reference for
 * the devices' kernels. Works through the table's functions over slices. */
#include "tensor/cpu/optim/update.h"

#include <string.h>

static trek_status update_numbers(trek_device device, const trek_update *update, const trek_update_numbers *numbers)
{
    (void)device;
    update->state->factor = numbers->factor;
    update->state->max_norm = numbers->max_norm;
    update->state->max_value = numbers->max_value;
    update->state->rng_step = numbers->rng_step;
    for (int k = 0; k < numbers->n_lrs; k++)
        update->lr[numbers->first_lr + k] = numbers->lr[k];
    return TREK_OK;
}

static trek_status update_norm(trek_device device, const trek_update *update, const trek_update_span *spans, int n)
{
    (void)device;
    update->state->sum_squares = 0;
    update->state->finite = 1;
    for (int k = 0; k < n; k++) {
        double sum;
        bool finite;
        trek_cpu_backend()->sum_squares(spans[k].dtype, spans[k].data, spans[k].count, &sum, &finite);
        update->state->sum_squares += sum;
        update->state->finite &= finite;
    }
    return TREK_OK;
}

static trek_status update_decide(trek_device device, const trek_update *update, bool measured)
{
    (void)device;
    trek_update_decide_state(update->state, update->scaler, measured);
    for (int k = 0; k < update->n_segments; k++)
        trek_update_decide_segment(update, k);
    return TREK_OK;
}

static void apply_sgd(const trek_update *u, const trek_update_run *run, const trek_update_group *group, bool zero_grads)
{
    trek_sgd_slice slice = { .param = run->param, .grad = run->grad, .momentum_buffer = group->momentum > 0 ? run->state[0] : NULL,
                             .count = run->count, .lr = u->lr[run->group], .momentum = group->momentum,
                             .dampening = group->dampening, .weight_decay = group->weight_decay, .nesterov = group->nesterov,
                             .first = u->segments[run->segment].first, .maximize = group->maximize,
                             .grad_scale = u->state->grad_scale, .zero_grad = zero_grads, .low = run->low,
                             .low_dtype = (trek_dtype)run->low_dtype };
    trek_cpu_backend()->sgd((trek_dtype)run->dtype, &slice);
}

static void apply_adam(const trek_update *u, const trek_update_run *run, const trek_update_group *group, bool zero_grads)
{
    const trek_update_segment *segment = &u->segments[run->segment];
    trek_adam_slice slice = { .param = run->param, .grad = run->grad, .m = run->state[0], .v = run->state[1], .count = run->count,
                              .lr = u->lr[run->group], .beta1 = group->beta1, .beta2 = group->beta2, .eps = group->eps,
                              .weight_decay = group->weight_decay, .bias1 = segment->bias1, .bias2 = segment->bias2,
                              .decoupled = group->kind == TREK_UPDATE_ADAMW, .maximize = group->maximize,
                              .grad_scale = u->state->grad_scale, .zero_grad = zero_grads, .low = run->low,
                              .low_dtype = (trek_dtype)run->low_dtype };
    trek_cpu_backend()->adam((trek_dtype)run->dtype, &slice);
}

static trek_status update_apply(trek_device device, const trek_update *update, bool zero_grads)
{
    (void)device;
    for (int k = 0; k < update->n_runs; k++) {
        const trek_update_run *run = &update->runs[k];
        const trek_update_group *group = &update->groups[run->group];
        if (update->state->skip) {
            if (zero_grads)
                memset(run->grad, 0, (size_t)run->count * trek_dtype_size((trek_dtype)run->dtype));
            continue;
        }
        if (update->state->value_limit > 0)
            trek_cpu_backend()->clamp_abs((trek_dtype)run->dtype, run->grad, run->count, update->state->value_limit);
        if (group->kind == TREK_UPDATE_SGD)
            apply_sgd(update, run, group, zero_grads);
        else
            apply_adam(update, run, group, zero_grads);
    }
    return TREK_OK;
}

static trek_status update_scaler(trek_device device, trek_update_scaler *scaler)
{
    (void)device;
    trek_update_scaler_adapt(scaler);
    return TREK_OK;
}

void trek_cpu_update_functions(trek_backend *b)
{
    b->update_numbers = update_numbers;
    b->update_norm = update_norm;
    b->update_decide = update_decide;
    b->update_apply = update_apply;
    b->update_scaler = update_scaler;
}
