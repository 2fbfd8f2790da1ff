/* SPDX-License-Identifier: Apache-2.0 */
/* Gradients that are put together from those of slices. */
#ifndef TREK_AUTOGRAD_SLICE_GRAD_H
#define TREK_AUTOGRAD_SLICE_GRAD_H

#include "autograd/var_internal.h"

/* Adds grad, which has all the dimensions of input 0, to that input's gradient at [start, ...) along dim, in place. *done is
 * false, and nothing was done, where that is not possible: under create_graph, in another dtype, on a device, with a gradient
 * that others look at. */
trek_status trek_rule_give_slice(trek_backward_call *b, trek_var *grad, int dim, int64_t start, bool *done);

/* Of a node whose `partial` is set: zeroes what no slice has filled. Whoever reads node->grad, or adds to all of it, has to. */
trek_status trek_partial_complete(trek_node *node);
void trek_partial_free(trek_node *node);

/* The engine's: whether nobody else looks at the memory of a gradient in the walk. */
bool trek_walk_may_write(const trek_var *grad);
/* Gives input k's node, output 0, its first gradient before the rule has ended. */
trek_status trek_walk_give(trek_backward_call *b, int k, trek_var *grad);

#endif
