/* SPDX-License-Identifier: Apache-2.0 */
/* Gradients assembled from those of slices. */
#ifndef TREK_AUTOGRAD_SLICE_GRAD_H
#define TREK_AUTOGRAD_SLICE_GRAD_H

#include "autograd/var_internal.h"

/* Adds grad, which has all the dimensions of input 0, to that input's gradient at [start, ...) along dim, in place.
 * *done is false and nothing is done where that is not possible: under create_graph, in another dtype, or with a
 * gradient that others use. */
trek_status trek_rule_give_slice(trek_backward_call *b, trek_var *grad, int dim, int64_t start, bool *done);

/* Provided by the engine: gives input k's node, output 0, its first gradient before the rule has ended. */
trek_status trek_walk_give(trek_backward_call *b, int k, trek_var *grad);

#endif
