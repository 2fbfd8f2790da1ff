/* SPDX-License-Identifier: Apache-2.0 */
/* A layer whose values wait for backward in host memory (autograd/offload.h). */
#ifndef TREK_NN_OFFLOAD_H
#define TREK_NN_OFFLOAD_H

#include "autograd/offload.h"
#include "nn/module.h"

TREK_BEGIN

/* Returns a layer that runs the module between trek_offload_begin(opts) and trek_offload_end in training. opts is copied and may
 * be NULL. Around or inside trek_nn_recompute it moves the values that trek_nn_recompute keeps.
 * Ownership: the layer takes the module over, also on failure, as its child "module". If the module is NULL the result is NULL.
 * Errors: ARGUMENT if an option is negative, MEMORY. */
TREK_API trek_module *trek_nn_offload(trek_module *module, const trek_offload_opts *opts);

TREK_END

#endif
