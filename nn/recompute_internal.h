/* SPDX-License-Identifier: Apache-2.0 */
/* Recomputation of modules where they are: the tree, and so the names of parameters, stay as they are. */
#ifndef TREK_NN_RECOMPUTE_INTERNAL_H
#define TREK_NN_RECOMPUTE_INTERNAL_H

#include "nn/recompute.h"

/* Returns whether the module can be run by trek_forward_recomputed with these inputs: it has one result, and no layer that meets
 * other ranks. */
bool trek_module_may_recompute(trek_module *module, trek_var *const *inputs, int n);
/* From now on (on), every forward in training that records runs the module as trek_forward_recomputed does, whoever calls it. */
void trek_module_recompute(trek_module *module, bool on);
bool trek_module_recomputes(const trek_module *module);
/* From now on, n children of a sequential, from number `first` on, are recomputed together. Layers that run fused must not be
 * separated by it, since they round differently then. Stretches do not overlap. Fails with MEMORY. */
trek_status trek_sequential_recompute(trek_module *sequential, int first, int n);
/* Undoes both in the whole tree. */
trek_status trek_recompute_forget(trek_module *module);

#endif
