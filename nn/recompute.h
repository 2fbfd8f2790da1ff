/* SPDX-License-Identifier: Apache-2.0 */
/* Activation checkpointing (Chen and others 2016), which saves memory and costs time. */
#ifndef TREK_NN_RECOMPUTE_H
#define TREK_NN_RECOMPUTE_H

#include "nn/module.h"

TREK_BEGIN

/* Runs the module, as trek_forward_many, without keeping the values that backward needs; backward runs the module again. Only its
 * inputs and its result stay in memory in between. Where nothing is recorded it is trek_forward_many.
 *
 * Results and gradients have the same bits as without it; gradients of parameters that trek_grad returns are added in another
 * order, and rounded to 16 bits under autocast. Random numbers (dropout), autocast and mode are those of the first run, and
 * running statistics are updated once. Calls nest. The module must not change between forward and backward. Ranks: in backward
 * all parameters of the module get their gradients at once, so that ranks begin to exchange them only then. Errors: UNSUPPORTED
 * for gradients of gradients, and for a layer inside that meets other ranks (trek_nn_sync_batch_norm). */
TREK_API trek_var *trek_forward_recomputed(trek_module *module, trek_var *const *inputs, int n);

/* Returns a layer that runs the module with trek_forward_recomputed in training.
 * Ownership: the layer takes the module over, also on failure, as its child "module". If the module is NULL the result is
 * NULL. */
TREK_API trek_module *trek_nn_recompute(trek_module *module);

TREK_END

#endif
