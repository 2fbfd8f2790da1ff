/* SPDX-License-Identifier: Apache-2.0 */
/* The function that computes a graph's loss of a batch. */
#ifndef TREK_GRAPH_LOSS_H
#define TREK_GRAPH_LOSS_H

#include "data/loader.h"
#include "graph/graph.h"

TREK_BEGIN

/* A function of the user that computes the loss of one batch and returns it: a scalar in the current scope, or NULL on failure.
 * - `graph` is the rank's own replica. Its tagged values are those of this batch, and trek_graph_forward runs it on this rank
 *   alone. It has the constants and teachers of trek_graph_set_constant and trek_graph_set_teacher on its device.
 * - `output` is the replica's output for the batch, `arg` is the value that was given to trek_graph_set_loss.
 * - The loss should be a mean. Its weight is trek_loss_weight(loss): the number of labels that count, the number of elements, or
 *   what trek_loss_set_weight states. If that is unknown, the weight is the batch's number of samples. If the losses are sums,
 *   the step computes their weighted mean. With weight 0 the parameters that the batch uses get gradients of 0.
 * - The function is called on the threads of the ranks, by several at the same time. */
typedef trek_var *(*trek_loss_fn)(trek_graph *graph, trek_var *output, const trek_batch *batch, void *arg);

TREK_END

#endif
