/* SPDX-License-Identifier: Apache-2.0 */
/* A part of a model whose values wait for backward in host memory (autograd/offload.h). */
#ifndef TREK_NN_OFFLOAD_H
#define TREK_NN_OFFLOAD_H

#include "autograd/offload.h"
#include "nn/module.h"

TREK_BEGIN

/* A layer that runs the module between trek_offload_begin(opts) and trek_offload_end in training; it takes the module over, also
 * on failure, as its child "module". opts (copied) may be NULL. NULL gives NULL. Around or inside trek_nn_recompute it keeps on
 * the host what that keeps. Errors: MEMORY; ARGUMENT for a negative number. */
TREK_API trek_module *trek_nn_offload(trek_module *module, const trek_offload_opts *opts);

TREK_END

#endif
