/* SPDX-License-Identifier: Apache-2.0 */
/* The cost of a call by its shapes: arithmetic and memory traffic. */
#ifndef TREK_TENSOR_OP_COST_H
#define TREK_TENSOR_OP_COST_H

#include "tensor/op.h"

/* Computes the cost of a call that has run.
 *
 *   flops  of products: 2 for each multiplication and its addition. Other ops count as 0.
 *          matmul [m, k] x [k, n]            2 m n k
 *          linear                            2 rows in out
 *          conv2d and both its gradients     2 N O H' W' (C / groups) kh kw; transposed: over the input's positions
 *          attention, forward; backward      4 D; 10 D for each pair of a query and a key that it may see by its position
 *          lstm and gru, either direction    2 T N (4 or 3) H H: the product with the state of each step
 *          linear_cross_entropy              2 R D C for the logits, and for each of x's and weight's gradients if it
 *                                            computes them; its backward 6 R D C, or 0 if forward has computed them
 *   bytes  of inputs and outputs, with each element of memory counted once (an expanded dimension is one element); of a
 *          table only the selected elements; 0 for views. */
void trek_op_cost(const trek_op_call *call, double *flops, double *bytes);

#endif
