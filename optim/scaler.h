/* SPDX-License-Identifier: Apache-2.0 */
/* Dynamic loss scaling, as torch.amp.GradScaler. Multiplying the loss keeps 16-bit gradients from vanishing. Where they overflow,
 * the step is skipped and the scale is halved. Only f16 needs it; bf16 has the range of f32.
 *
 *     trek_var *loss = ...;
 *     trek_backward(trek_grad_scaler_scale(scaler, loss));
 *     trek_grad_scaler_step(scaler, optimizer);
 *     trek_grad_scaler_update(scaler);
 *
 * A graph does this by itself: trek_graph_set_amp. Scale and counts are on the device of the gradients. Only the calls whose
 * comments say so synchronise with it. */
#ifndef TREK_OPTIM_SCALER_H
#define TREK_OPTIM_SCALER_H

#include "optim/optimizer.h"
#include "optim/scaler_opts.h"

TREK_BEGIN

/* A loss scale with its history. */
typedef struct trek_grad_scaler trek_grad_scaler;

/* Returns a new scaler, or NULL on failure. opts may be NULL. The caller owns it.
 * Errors: ARGUMENT if an option is out of range, MEMORY. */
TREK_API trek_grad_scaler *trek_grad_scaler_new(const trek_grad_scaler_opts *opts);

/* Frees the scaler. *scaler may be NULL and is NULL afterwards. */
TREK_API void trek_grad_scaler_free(trek_grad_scaler **scaler);

/* Returns the loss times the scale. The product is recorded and belongs to the current scope. The first loss determines the
 * device of the scale. */
TREK_API trek_var *trek_grad_scaler_scale(trek_grad_scaler *scaler, trek_var *loss);

/* Divides the gradients of the optimizer's parameters by the scale, at most once a step, for programs that clip them between
 * backward and the step. It synchronises with the device.
 * Errors: STATE if the gradients are unscaled already since the last step or trek_optimizer_zero_grad. */
TREK_API trek_status trek_grad_scaler_unscale(trek_grad_scaler *scaler, trek_optimizer *optimizer);

/* Makes a step of the optimizer with the gradients divided by the scale, unless they are unscaled already. If a gradient is inf
 * or NaN the step is skipped: parameters, state and step counts stay as they are. */
TREK_API trek_status trek_grad_scaler_step(trek_grad_scaler *scaler, trek_optimizer *optimizer);

/* Adapts the scale; call it once after the steps of all optimizers. The scale shrinks if a step was skipped and grows after
 * growth_interval steps without overflow. */
TREK_API trek_status trek_grad_scaler_update(trek_grad_scaler *scaler);

/* Returns the scale, 1 with .no_scaling, or NaN on failure. It synchronises with the device. */
TREK_API double trek_grad_scaler_value(trek_grad_scaler *scaler);

/* All numbers of a scaler, as a value for checkpoints. */
typedef struct trek_grad_scaler_state {
    double scale;            /* current scale */
    double growth_factor;    /* as in trek_grad_scaler_opts */
    double backoff_factor;   /* as in trek_grad_scaler_opts */
    int64_t growth_interval; /* as in trek_grad_scaler_opts */
    int64_t growth_tracker;  /* steps without overflow since the scale was changed */
} trek_grad_scaler_state;

/* Writes the numbers of the scaler to *state. It synchronises with the device. */
TREK_API trek_status trek_grad_scaler_save(trek_grad_scaler *scaler, trek_grad_scaler_state *state);

/* Sets the numbers of the scaler.
 * Errors: ARGUMENT if a number is out of range. Nothing has changed then. */
TREK_API trek_status trek_grad_scaler_load(trek_grad_scaler *scaler, const trek_grad_scaler_state *state);

TREK_END

#endif
