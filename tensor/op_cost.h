/* SPDX-License-Identifier: Apache-2.0 */
/* What a call costs by its shapes: arithmetic and memory traffic. Internal. */
#ifndef TREK_TENSOR_OP_COST_H
#define TREK_TENSOR_OP_COST_H

#include "tensor/op.h"

/* Of a call that has run.
 *   flops  of products: 2 for each multiplication and its addition. Other ops count none.
 *            matmul [m, k] x [k, n]            2 m n k        linear           2 rows in out
 *            conv2d and both its gradients     2 N O H' W' (C / groups) kh kw; transposed: over the input's places
 *            attention, forward; backward      4 D; 10 D for each pair of a query and a key that it may see by its place
 *            lstm and gru, either way          2 T N (4 or 3) H H: the product with the state of each step
 *            linear_cross_entropy              2 R D C for the logits, and for each of x's and weight's gradients, if it makes
 * them; its backward                      6 R D C, or 0 of gradients that forward has made bytes  of inputs and outputs, each
 * element of memory once (an expanded dimension is one element); of what is picked from a table, as much as is picked; 0 for
 * views. */
void trek_op_cost(const trek_op_call *call, double *flops, double *bytes);

#endif
