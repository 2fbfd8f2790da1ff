/* SPDX-License-Identifier: Apache-2.0 */
/* Settings of the training of a graph, and what they are now. The rules of graph/graph.h apply. */
#ifndef TREK_GRAPH_SETTINGS_H
#define TREK_GRAPH_SETTINGS_H

#include "graph/graph.h"
#include "optim/optimizer.h"
#include "optim/schedule.h"

TREK_BEGIN

/* Sets the graph's optimizer and replaces an earlier one with its state. The parameters move into one flat block of memory. It
 * may be called before or after trek_trainer_setup. If the processes divide the state (.shard), all of them must call
 * it with the same values. */
TREK_API trek_status trek_graph_set_optimizer(trek_graph *graph, trek_optimizer_spec spec);
/* Sets the schedule of the learning rate: step k, counted from 0, uses trek_schedule_lr(schedule, k). The other groups of
 * parameters keep the ratio of their rates to the rate of group 0. NULL ends the schedule: the learning rate stays as it is. */
TREK_API trek_status trek_graph_set_schedule(trek_graph *graph, const trek_schedule *schedule);
/* Sets a fixed learning rate and ends the schedule. */
TREK_API trek_status trek_graph_set_lr(trek_graph *graph, double lr);
/* Sets how each step clips gradients: first the 2-norm of all gradients together to max_norm, then each element to
 * [-max_value, max_value]. A limit that is <= 0 is off.
 * Errors: ARGUMENT if a limit is NaN. */
TREK_API trek_status trek_graph_set_clip(trek_graph *graph, double max_norm, double max_value);
/* Freezes the module at a path (NULL: the whole graph): its parameters get no gradients, see trek_module_freeze. */
TREK_API trek_status trek_graph_freeze(trek_graph *graph, const char *path);
/* Makes the parameters of the module at a path (NULL: the whole graph) trainable again after trek_graph_freeze. */
TREK_API trek_status trek_graph_thaw(trek_graph *graph, const char *path);
/* Copies the parameters and buffers to the replicas of the other ranks. Call it after the program has changed them: loaded,
 * reset or moved them. */
TREK_API trek_status trek_graph_parameters_changed(trek_graph *graph);
/* Marks an input that is the same for all samples: every rank gets the whole input instead of a part.
 * Errors: ARGUMENT if the graph has no input of this name. */
TREK_API trek_status trek_graph_replicate_input(trek_graph *graph, const char *input);
/* Returns the number of ranks that train this graph, or 0 if `graph` is NULL. */
TREK_API int trek_graph_world_size(trek_graph *graph);
/* Writes each rank's share of the global batch to `shares`, at most `capacity` of them, and returns the number of ranks. */
TREK_API int trek_graph_shares(trek_graph *graph, double *shares, int capacity);
/* Returns the current learning rate, or NaN if the graph has no optimizer. */
TREK_API double trek_graph_lr(trek_graph *graph);
/* Returns how many steps the graph has done, or 0 if `graph` is NULL. */
TREK_API int64_t trek_graph_steps(trek_graph *graph);
/* Returns the 2-norm of the last step's gradients before clipping. Returns NaN if it was not measured because no max_norm is
 * set. */
TREK_API double trek_graph_grad_norm(trek_graph *graph);
/* Returns the graph's optimizer, borrowed, or NULL without an error if it has none. */
TREK_API trek_optimizer *trek_graph_optimizer(trek_graph *graph);

TREK_END

#endif
