/* SPDX-License-Identifier: Apache-2.0 */
/* A graph with its own loader. Fields of a batch feed the graph's inputs of the same name. With a registered loss each batch
 * runs forward, loss and backward in one call, on the rank that has the batch.
 *
 *     trek_graph_set_loader(graph, loader, "image");
 *     trek_graph_set_loss(graph, loss, NULL);
 *     for (int64_t epoch = 0; epoch < epochs; epoch++) {
 *         trek_graph_start(graph, epoch);
 *         for (trek_batch *batch; (batch = trek_graph_next(graph)); trek_graph_step(graph))
 *             mean = trek_graph_train_batch(graph, batch);
 *     }
 *
 * This loop runs on any number of ranks. With a registered loss, ranks do not wait for each other before trek_graph_step.
 * They can also run windows: several whole batches for each rank, with numbers of batches that follow the ranks' speeds
 * (trek_trainer_opts). */
#ifndef TREK_GRAPH_GRAPH_LOADER_H
#define TREK_GRAPH_GRAPH_LOADER_H

#include "graph/loss.h"

TREK_BEGIN

/* Sets the loader whose batches feed the graph. The field named `field` feeds the first input. Every further input is fed by the
 * field of the input's name. If `field` is NULL, the registered loss gets NULL as its output and calls trek_graph_forward on its
 * graph itself, as often as it needs. The caller still owns the loader and must keep it alive while the graph uses it. NULL for
 * `loader` ends the use.
 * Errors: ARGUMENT if the dataset does not have such a field. UNSUPPORTED if the dataset is a stream and the graph runs
 * windows. */
TREK_API trek_status trek_graph_set_loader(trek_graph *graph, trek_loader *loader, const char *field);
/* Registers the function that computes the loss of a batch. `arg` is passed to it. NULL for `fn` removes the registered loss. */
TREK_API trek_status trek_graph_set_loss(trek_graph *graph, trek_loss_fn fn, void *arg);
/* Starts an epoch of the graph's loader, as trek_loader_start does. Errors: STATE if the graph has no loader. */
TREK_API trek_status trek_graph_start(trek_graph *graph, int64_t epoch);
/* Returns the samples of the next step as a batch. Returns NULL at the end of the epoch and on an error. The batch of a window
 * has a size and the indices of all ranks, but no fields, because its ranks read the fields themselves. If a loss is
 * registered and the process has several ranks, each rank reads its own rows of a batch, too. Then the fields of the batch are
 * read when the program first asks for one, and from there to the end of the epoch batches are read as a whole. An error of
 * the dataset is then reported by trek_graph_train_batch.
 * Errors: STATE if the graph has no loader. */
TREK_API trek_batch *trek_graph_next(trek_graph *graph);
/* Runs forward, the registered loss and backward for a batch or window of trek_graph_next, and returns the mean loss.
 * Backward runs only in training mode and while gradients are enabled. It adds to the gradients as trek_graph_backward does. The
 * result is the weighted mean of the losses of this process (in grains, if it trains: of all processes), a scalar that requires
 * no gradient. It is 0 if no sample counted. Afterwards the tagged values are those of rank 0's last batch.
 * Errors: STATE if no loss is registered. */
TREK_API trek_var *trek_graph_train_batch(trek_graph *graph, trek_batch *batch);
/* Returns the graph's output for the batch's fields, as trek_graph_forward_many does. A registered loss is not used.
 * Errors: UNSUPPORTED for a window, which does not have fields. STATE if trek_graph_set_loader was given no field. */
TREK_API trek_var *trek_graph_forward_batch(trek_graph *graph, const trek_batch *batch);

TREK_END

#endif
