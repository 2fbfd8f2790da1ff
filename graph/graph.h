/* SPDX-License-Identifier: Apache-2.0 */
/* Graphs, which trek_flow_build makes. A graph is a module: it can be part of another module, has parameters and is saved. It is
 * also the object of a training loop: forward, backward, step, optimizer, schedule, clipping. These calls train on one device
 * or, after trek_trainer_setup, on many.
 *
 * Only one thread at a time may use a graph, with one exception: any number of threads may run forwards without gradients
 * (trek_no_grad_begin, trek_graph_infer) at the same time, see docs/inference.md. If `graph` is NULL, a function sets an error
 * and returns NULL, a status, or the value that its comment states. A pointer that is "borrowed" must not be freed by the
 * caller. */
#ifndef TREK_GRAPH_GRAPH_H
#define TREK_GRAPH_GRAPH_H

#include "nn/module.h"

TREK_BEGIN

/* A graph of modules. */
typedef struct trek_graph trek_graph;

/* Returns the graph as a module, borrowed. Giving this module to a flow or to a parent module gives the graph away: the new
 * parent owns it. */
TREK_API trek_module *trek_graph_module(trek_graph *graph);
/* Frees the graph with its modules and sets *graph to NULL. Errors: STATE if a parent owns the graph; nothing is freed then. */
TREK_API void trek_graph_free(trek_graph **graph);
/* Returns the module at a path of child names, such as "encoder.scan", borrowed. "" and NULL stand for the graph itself.
 * Errors: ARGUMENT if no such module exists; NULL is returned. */
TREK_API trek_module *trek_graph_at(trek_graph *graph, const char *path);

/* -- computing -- */

/* Computes the graph's output for one input. The result belongs to the caller's scope.
 * Errors: ARGUMENT if the graph has more than one input, SCOPE if no scope is open, and the errors of the modules. */
TREK_API trek_var *trek_graph_forward(trek_graph *graph, trek_var *x);
/* Computes the gradients of `loss`, a scalar, and adds them to the gradients of this graph's parameters, but of no others. It
 * frees the tape. Several calls before a step add up, or form one large batch (trek_trainer_opts.accumulate). With several
 * processes the loss should be a mean, because the processes' losses are weighted by the number of elements they are the mean
 * of. If it is a sum, the result is the weighted mean of the processes' sums. If each rank computes a part of a gradient, hooks
 * on parameters (trek_var_on_grad) see rank 0's part before the reduction; after trek_graph_reduce the gradient is whole. */
TREK_API trek_status trek_graph_backward(trek_graph *graph, trek_var *loss);
/* Performs one optimizer step: it sets the learning rate of the schedule, clips the gradients, updates the parameters and sets
 * the gradients to zero. If the calling thread has an error, it changes nothing and returns that error.
 * Errors: STATE if the graph has no optimizer. */
TREK_API trek_status trek_graph_step(trek_graph *graph);

/* -- training set-up -- */

/* Sets the mode of the graph and its modules: training mode for true, evaluation mode for false. It does not train. */
TREK_API trek_status trek_graph_train(trek_graph *graph, bool training);

/* -- inspection -- */

/* Returns the value of a tag in the last forward of the graph's own thread (see trek_graph_infer). It is borrowed until the
 * next forward or step; a step detaches it from the tape. Before the first forward NULL is returned without an error.
 * Errors: ARGUMENT for an unknown tag; UNSUPPORTED if the ranks' values do not fit together as rows of the batch. */
TREK_API trek_var *trek_graph_tagged(trek_graph *graph, const char *tag);

TREK_END

#endif
