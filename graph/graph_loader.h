/* SPDX-License-Identifier: Apache-2.0 */
/* A graph with its own loader: batches are wired to the graph's inputs by name,
 * and with a registered loss each batch runs forward, loss and backward at once, on
 * the rank that has it.
 *
 *     trek_graph_set_loader(graph, loader, "image");
 *     trek_graph_set_loss(graph, loss, NULL);
 *     for (int64_t epoch = 0; epoch < epochs; epoch++) {
 *         trek_graph_start(graph, epoch);
 *         for (trek_batch *batch; (batch = trek_graph_next(graph)); trek_graph_step(graph))
 *             mean = trek_graph_train_batch(graph, batch);
 *     }
 *
 * The same loop runs on any number of ranks. With a loss, ranks do not wait for each
 * other before step(), and they can run windows: several whole batches each, in
 * numbers that follow their speeds (trek_trainer_opts). */
#ifndef TREK_GRAPH_GRAPH_LOADER_H
#define TREK_GRAPH_GRAPH_LOADER_H

#include "data/loader.h"
#include "graph/graph.h"

TREK_BEGIN

/* The loss of one batch, a scalar and a mean (of several ranks' sums the step takes the mean, weighted as losses are), in the
 * present scope. graph: the rank's own
 * replica, whose tagged values are those of this batch, which trek_graph_forward runs on this rank alone, and which has the
 * constants and teachers of trek_graph_set_constant and _teacher on its device; output: what it gave. What the loss is the mean
 * of is trek_loss_weight(loss): labels that count, elements, or what trek_loss_set_weight states; else the batch's samples.
 * Weight 0: parameters that the batch uses get zeros. Called on the ranks' threads, several at once. NULL: failure. */
typedef trek_var *(*trek_loss_fn)(trek_graph *graph, trek_var *output, const trek_batch *batch, void *arg);

/* Batches of this loader feed the graph: field feeds the first input, every further input takes the field of its own
 * name. field NULL: the registered loss gets no output (NULL) and calls trek_graph_forward on the graph that it is given
 * itself, as often as it likes. The loader stays the caller's and must outlive its use; NULL ends it. ARGUMENT: no such field. */
TREK_API trek_status trek_graph_set_loader(trek_graph *graph, trek_loader *loader, const char *field);
/* NULL: no loss is registered. */
TREK_API trek_status trek_graph_set_loss(trek_graph *graph, trek_loss_fn fn, void *arg);
/* trek_loader_start and trek_loader_seek of the graph's loader. STATE without one. */
TREK_API trek_status trek_graph_start(trek_graph *graph, int64_t epoch);
/* The next step's samples; NULL at the end of the epoch, and on an error. A window's batch gives size and indices (those
 * of all ranks), no fields: its ranks read them themselves. So they do with their rows of a batch where a loss is registered
 * and the process has several: its fields are fetched when somebody asks for one, and batches whole then until the epoch's
 * end; what the dataset reports is an error of trek_graph_train_batch. */
TREK_API trek_batch *trek_graph_next(trek_graph *graph);
/* A pass over the batch (or window) by the registered loss: forward, loss and, in training mode, unless recording is
 * off, backward, which adds up the gradient as trek_graph_backward does. Result: the mean loss over all
 * samples of this process, by weight, a scalar that needs no gradient (0 if no sample counted). The tagged values are
 * then rank 0's, of its last batch. STATE where no loss is registered. */
TREK_API trek_var *trek_graph_train_batch(trek_graph *graph, trek_batch *batch);
/* trek_graph_forward_many of the batch's fields, whether a loss is registered or not. UNSUPPORTED for a window, which has
 * no fields. */
TREK_API trek_var *trek_graph_forward_batch(trek_graph *graph, const trek_batch *batch);

TREK_END

#endif
