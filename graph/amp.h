/* SPDX-License-Identifier: Apache-2.0 */
/* Mixed precision of a graph. */
#ifndef TREK_GRAPH_AMP_H
#define TREK_GRAPH_AMP_H

#include "graph/amp_opts.h"
#include "graph/graph.h"
#include "optim/scaler.h"

TREK_BEGIN

/* Turns mixed precision on: autocast and dynamic loss scaling, with a new scaler. NULL for `opts` turns it off. Backward
 * multiplies the loss by the scale, so that gradients are scaled until the step. The step divides them by the scale. If a
 * gradient is infinite or NaN, the step is skipped on all ranks: parameters, optimizer state and its step counts do not
 * change, the gradients are dropped, and the scale is reduced. On GPUs the host does not wait for this decision, so a skipped
 * step counts in trek_graph_steps and in the schedule. TREK_AMP_PRODUCTS_FP8 must be set before trek_trainer_setup or in its
 * options. After that it cannot be turned off by another .products. Errors: STATE for such a change; ARGUMENT, MEMORY. */
TREK_API trek_status trek_graph_set_amp(trek_graph *graph, const trek_amp_opts *opts);
/* Returns the scaler of the loss, borrowed, for example to save or load its state. Returns NULL without an error if the loss is
 * not scaled. */
TREK_API trek_grad_scaler *trek_graph_scaler(trek_graph *graph);
/* Returns how many steps were skipped since the optimizer was set, or -1 on failure. It waits for the device. */
TREK_API int64_t trek_graph_skipped(trek_graph *graph);

TREK_END

#endif
