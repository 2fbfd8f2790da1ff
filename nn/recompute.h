/* SPDX-License-Identifier: Apache-2.0 */
/* Activation checkpointing (Chen and others 2016): memory for time. */
#ifndef TREK_NN_RECOMPUTE_H
#define TREK_NN_RECOMPUTE_H

#include "nn/module.h"

TREK_BEGIN

/* trek_forward_many without keeping what backward needs of the module: backward runs it once more. Of its activations only its
 * inputs and its result stay in between; results and gradients have the same bits (under autocast a parameter's gradient is
 * rounded to 16 bits on its way): random numbers (dropout), autocast and mode are those of the first time, and running
 * statistics are updated once. In backward all parameters of the module get their
 * gradients at once, so that ranks begin to exchange them no earlier than there. They nest. The module must not change in
 * between. Where nothing is recorded it is plain trek_forward_many.
 *
 * UNSUPPORTED: gradients of gradients through it; a layer that meets other ranks inside (trek_nn_sync_batch_norm). */
TREK_API trek_var *trek_forward_recomputed(trek_module *module, trek_var *const *inputs, int n);

/* A layer that runs the module so in training; it takes the module over, also on failure, as its child "module". NULL gives
 * NULL. */
TREK_API trek_module *trek_nn_recompute(trek_module *module);

TREK_END

#endif
