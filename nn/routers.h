/* SPDX-License-Identifier: Apache-2.0 */
/* Modules that decide: routers for gates and switches, and conditions for loops (graph/flow.h). */
#ifndef TREK_NN_ROUTERS_H
#define TREK_NN_ROUTERS_H

#include "nn/module.h"

TREK_BEGIN

/* --- routers: x [..., in], further inputs of that shape are added to it first ------------- */

/* Returns a router that computes softmax(x W + b) over n experts. The child "proj" is a linear layer.
 * Shapes: x [..., in] -> [..., n], with sums of 1. Further inputs of the shape of x are added to it first.
 * Errors: ARGUMENT if in or n is below 1. */
TREK_API trek_module *trek_nn_softmax_router(int64_t in, int64_t n, trek_device device);

/* Returns a router that computes sigmoid(x W + b), an independent weight for each of n experts. The rest is as in
 * trek_nn_softmax_router. */
TREK_API trek_module *trek_nn_sigmoid_router(int64_t in, int64_t n, trek_device device);

/* Returns a router that selects one of n experts for each row: the index of the largest element of x W + b, the first of equal
 * ones. It passes no gradient: "proj" stays as it is unless something else trains it.
 * Shapes: x [..., in] -> i64 [...]. Further inputs of the shape of x are added to it first.
 * Errors: ARGUMENT if in or n is below 1. */
TREK_API trek_module *trek_nn_argmax_selector(int64_t in, int64_t n, trek_device device);

/* Returns a router that selects the same index for every row.
 * Shapes: any x with rows -> i64 [rows].
 * Errors: ARGUMENT if the index is negative. */
TREK_API trek_module *trek_nn_fixed_selector(int64_t index);

/* --- conditions: one number for each row, above 0 to halt it ------------------------------------ */

/* Returns a condition that halts a row where max(x) > threshold. Its result is max(x) - threshold.
 * Shapes: x [rows, ...] -> [rows].
 * Errors: ARGUMENT if the threshold is NaN. */
TREK_API trek_module *trek_nn_threshold_halt(double threshold);

/* Returns a condition that computes one number for each row by a linear layer, its child "proj". A row halts if its number is
 * above 0. In a loop it gets a gradient only with .adaptive (trek_flow_loop).
 * Shapes: x [rows, in] -> [rows, 1].
 * Errors: ARGUMENT if in is below 1. */
TREK_API trek_module *trek_nn_learned_halt(int64_t in, trek_device device);

TREK_END

#endif
