/* SPDX-License-Identifier: Apache-2.0 */
/* Recomputation of modules where they are (ways.h). */
#ifndef TREK_NN_RECOMPUTE_INTERNAL_H
#define TREK_NN_RECOMPUTE_INTERNAL_H

#include "nn/recompute.h"

/* Returns whether the module can be run by trek_forward_recomputed with these inputs: it has one result, and no layer that meets
 * other ranks. */
bool trek_module_may_recompute(trek_module *module, trek_var *const *inputs, int n);
/* Runs it as trek_forward_recomputed does, in training, while something is recorded; otherwise as it is. */
trek_var *trek_module_run_recomputed(trek_module *module, trek_var *const *inputs, int n);

#endif
