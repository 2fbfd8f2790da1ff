/* SPDX-License-Identifier: Apache-2.0 */
/* Modules that decide: routers for gates and switches, conditions for loops (graph/flow.h). */
#ifndef TREK_NN_ROUTERS_H
#define TREK_NN_ROUTERS_H

#include "nn/module.h"

TREK_BEGIN

/* --- routers: x [..., in], further inputs of that shape are added to it first ------------- */

/* softmax(x W + b) over n experts: [..., n], sums of 1. Its child "proj" is a linear layer. ARGUMENT: in or n below 1. */
TREK_API trek_module *trek_nn_softmax_router(int64_t in, int64_t n, trek_device device);
/* sigmoid(x W + b): each expert's weight by itself. */
TREK_API trek_module *trek_nn_sigmoid_router(int64_t in, int64_t n, trek_device device);
/* argmax of x W + b over the last dimension: an index a row, i64 [...]; the first of equal ones. Through it there is no gradient:
 * "proj" stays as it is unless something else trains it. */
TREK_API trek_module *trek_nn_argmax_selector(int64_t in, int64_t n, trek_device device);
/* The same index for every row: i64 [rows]. Of any x with rows. ARGUMENT: a negative index. */
TREK_API trek_module *trek_nn_fixed_selector(int64_t index);

/* --- conditions: a number a row, > 0 where it is to halt ------------------------------------ */

/* max(x) - threshold of each row of x [rows, ...]: [rows]. ARGUMENT: NaN. */
TREK_API trek_module *trek_nn_threshold_halt(double threshold);
/* A linear layer to one number, child "proj": x [rows, in] -> [rows, 1]. In a loop only .adaptive gives it a gradient
 * (trek_flow_loop). ARGUMENT: in below 1. */
TREK_API trek_module *trek_nn_learned_halt(int64_t in, trek_device device);

TREK_END

#endif
