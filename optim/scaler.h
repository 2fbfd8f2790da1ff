/* SPDX-License-Identifier: Apache-2.0 */
/* Dynamic loss scaling, as torch.amp.GradScaler: gradients of 16-bit values that
 * would vanish are kept by multiplying the loss; where they overflow, the step is
 * skipped and the scale halved. Only f16 needs it; bf16 has the range of f32.
 *
 *     trek_var *loss = ...;
 *     trek_backward(trek_grad_scaler_scale(scaler, loss));
 *     trek_grad_scaler_step(scaler, optimizer);
 *     trek_grad_scaler_update(scaler);
 *
 * A graph does this by itself: trek_graph_set_amp. Scale and counts live on the
 * device of the gradients; only the calls that say so wait for it. */
#ifndef TREK_OPTIM_SCALER_H
#define TREK_OPTIM_SCALER_H

#include "optim/optimizer.h"

TREK_BEGIN

typedef struct trek_grad_scaler trek_grad_scaler;

typedef struct trek_grad_scaler_opts {
    double init_scale;       /* default 65536 */
    double growth_factor;    /* default 2; above 1 */
    double backoff_factor;   /* default 0.5; in (0, 1) */
    int64_t growth_interval; /* good steps after which the scale grows; default 2000 */
    bool disabled;           /* scale() gives the loss as it is, step() is trek_optimizer_step */
} trek_grad_scaler_opts;

/* opts may be NULL. Errors: ARGUMENT for options out of range, MEMORY. */
TREK_API trek_grad_scaler *trek_grad_scaler_new(const trek_grad_scaler_opts *opts);
TREK_API void trek_grad_scaler_free(trek_grad_scaler **scaler);
/* loss times the scale, recorded, in the present scope. The first loss says on which device the scale lives. */
TREK_API trek_var *trek_grad_scaler_scale(trek_grad_scaler *scaler, trek_var *loss);
/* Divides the gradients of the optimizer's parameters by the scale, once a step: for those who clip between backward
 * and step. Waits. STATE if it has been done since the last step or zero_grad. */
TREK_API trek_status trek_grad_scaler_unscale(trek_grad_scaler *scaler, trek_optimizer *optimizer);
/* trek_optimizer_step with gradients divided by the scale (unless unscaled already); skipped if one of them is inf or NaN:
 * parameters, state and step counts then stay. */
TREK_API trek_status trek_grad_scaler_step(trek_grad_scaler *scaler, trek_optimizer *optimizer);
/* Once after the steps of all optimizers: the scale shrinks if one was skipped, grows after growth_interval good ones. */
TREK_API trek_status trek_grad_scaler_update(trek_grad_scaler *scaler);
/* The scale; 1 when disabled. Waits. NaN on failure. */
TREK_API double trek_grad_scaler_value(trek_grad_scaler *scaler);

/* A value with everything that a scaler is. */
typedef struct trek_grad_scaler_state {
    double scale, growth_factor, backoff_factor;
    int64_t growth_interval, growth_tracker; /* tracker: good steps since the scale was changed */
} trek_grad_scaler_state;

/* Waits. */
TREK_API trek_status trek_grad_scaler_save(trek_grad_scaler *scaler, trek_grad_scaler_state *state);
/* ARGUMENT for numbers out of range; then nothing has changed. */
TREK_API trek_status trek_grad_scaler_load(trek_grad_scaler *scaler, const trek_grad_scaler_state *state);

TREK_END

#endif
