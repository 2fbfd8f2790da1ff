/* SPDX-License-Identifier: Apache-2.0 */
/* Forward and backward passes of a graph with everything that can be chosen: inputs, tags, weights, states. The rules of
 * graph/graph.h apply. */
#ifndef TREK_GRAPH_PASSES_H
#define TREK_GRAPH_PASSES_H

#include "autograd/grad.h"
#include "graph/graph.h"

TREK_BEGIN

/* Computes the graph's output for `n` inputs, which are in the order of trek_graph_input_name. The result belongs to the
 * caller's scope.
 * Errors: ARGUMENT for a wrong number of inputs, SCOPE if no scope is open, and the errors of the modules. */
TREK_API trek_var *trek_graph_forward_many(trek_graph *graph, trek_var *const *inputs, int n);
/* Computes the graph's output without gradients, on the calling thread only, and returns also the tagged values of this call.
 * - `tags` holds the names of at most 64 tagged values. values[k] becomes the value of tags[k], or NULL on failure. If n_tags is
 *   0, both may be NULL. The result and the values belong to the caller's scope.
 * - The graph's autocast applies. States (trek_flow_using) start as in a first forward and are not carried on.
 * - Threads: the call writes nothing to the graph, nor to graphs nested in it. Any number of threads may call it at the same
 *   time, in eval mode, as long as nobody changes parameters, modes or structure.
 * - Errors: as trek_graph_forward_many; ARGUMENT for an unknown tag.
 *
 * Under trek_no_grad_begin, trek_graph_forward and trek_forward do the same if the calling thread is not the graph's own thread.
 * That is the thread that built the graph or last ran it with gradients. Only its forwards carry states and can be read with
 * trek_graph_tagged. */
TREK_API trek_var *trek_graph_infer(trek_graph *graph, trek_var *const *inputs, int n, const char *const *tags, trek_var **values,
                                    int n_tags);
/* Returns the number of the graph's inputs, or 0 if `graph` is NULL. */
TREK_API int trek_graph_input_count(const trek_graph *graph);
/* Returns the name of input k, borrowed, or NULL if k is out of range. */
TREK_API const char *trek_graph_input_name(const trek_graph *graph, int k);
/* Computes gradients as trek_graph_backward does, for a loss that is the mean over `weight` rows. The gradient counts with
 * this weight when it is combined with those of other ranks in this pass, and with those of other passes with .accumulate.
 * With weight 0 the parameters that the loss uses get gradients of 0, even if the loss is NaN.
 * Errors: ARGUMENT if `weight` is negative or not finite. */
TREK_API trek_status trek_graph_backward_weighted(trek_graph *graph, trek_var *loss, double weight);
/* Computes gradients as trek_grad does, for a loss of the batch of all processes that train the graph: the gradients that one
 * device would compute. The loss is a scalar and counts with its weight, as in trek_graph_backward. Gradients of parameters are
 * added up over the processes; gradients of other inputs, such as the rows of this process, are its own part. With .create_graph
 * the results have a history: a loss that uses them (a penalty, a product with second derivatives) has the gradients of one
 * device, too. With one process it is trek_grad. opts may be NULL.
 * Collective: every process calls it, with the same parameters in the same order, and every process goes backward through its
 * results if one does.
 * Errors: those of trek_grad and of collectives. Fails with SHAPE if the loss is not a scalar, with STATE in a loss that runs on
 * a rank or if parameters are averaged, and with UNSUPPORTED in a step that several processes capture. */
TREK_API trek_status trek_graph_grad(trek_graph *graph, trek_var *loss, trek_var *const *inputs, int n,
                                     const trek_backward_opts *opts, trek_var **grads);
/* Makes the gradients ready for reading before the step: it reduces them over all ranks and, if passes are weighted, divides
 * them so that they are the mean of the passes. It is a collective: every process must call it. */
TREK_API trek_status trek_graph_reduce(trek_graph *graph);
/* Sets the gradients of the graph's parameters to zero. */
TREK_API trek_status trek_graph_zero_grad(trek_graph *graph);
/* Drops the states that trek_flow_using carries from one forward to the next, also those of nested graphs. */
TREK_API trek_status trek_graph_reset_state(trek_graph *graph);
/* Truncates backpropagation through time: it detaches the states, the tagged values and the traces of loops from the tape. They
 * keep their values, but no later gradient passes through them. This holds for all ranks of this process and for nested graphs.
 * A step does the same. */
TREK_API trek_status trek_graph_detach_state(trek_graph *graph);

TREK_END

#endif
