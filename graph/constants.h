/* SPDX-License-Identifier: Apache-2.0 */
/* What a loss needs besides the graph: constant values (weights of classes, priors)
 * and teachers, modules that are not trained. Every rank has them on its own device, under
 * their names, so that the function of trek_graph_set_loss finds them whatever rank runs it:
 *
 *     trek_graph_set_constant(graph, "weights", weights);
 *     trek_graph_set_teacher(graph, "teacher", teacher, build_teacher, NULL);
 *
 *     static trek_var *loss(trek_graph *graph, trek_var *output, const trek_batch *batch, void *arg)
 *     {
 *         trek_var *soft = trek_softmax(trek_forward(trek_graph_teacher(graph, "teacher"), trek_batch_get(batch, "image")), -1);
 *         trek_cross_entropy_opts opts = { .weight = trek_graph_constant(graph, "weights") };
 *         ...
 *
 * (On CPUs alone a constant needs none of this: their values may be mixed. In a loss over the output of
 * trek_graph_forward, which the program computes itself, the calls give rank 0's.)
 *
 * They belong to the graph and are no part of it as a module: not trained, not in its
 * parameters, not saved with them, untouched by trek_graph_train and freezing. They may be set before
 * trek_trainer_setup, and hold after it, or after it, between steps. In a job of several processes
 * all set the same, and take process 0's values; after setup that is a collective. */
#ifndef TREK_GRAPH_CONSTANTS_H
#define TREK_GRAPH_CONSTANTS_H

#include "graph/graph.h"

TREK_BEGIN

/* A copy of the value becomes the constant of that name, in the place of one that there was; NULL: there is none any more.
 * On failure the old one stays. ARGUMENT (processes that differ), MEMORY, and what communication reports. */
TREK_API trek_status trek_graph_set_constant(trek_graph *graph, const char *name, trek_var *value);
/* On the device of the graph, which may be a rank's replica. Borrowed, until it is set again; needs no gradient and is not
 * to be written to. NULL and ARGUMENT: there is none of that name. */
TREK_API trek_var *trek_graph_constant(trek_graph *graph, const char *name);

/* Makes the same module on another device: called on the thread of the rank that gets it, never twice at a time. NULL on failure.
 */
typedef trek_module *(*trek_build_module_fn)(trek_device device, void *arg);
/* The module becomes the teacher of that name: it is frozen, put into evaluation mode, moved to the graph's device, and belongs
 * to the graph, also on failure, unless it has other owners, too. Further ranks build theirs with `build` (NULL: there is
 * one rank) and get the module's parameters and buffers: on CPUs they share its memory. When these were changed from outside,
 * trek_graph_parameters_changed brings them to all ranks of the process. module NULL: there is no such teacher any more. On
 * failure the old one stays. ARGUMENT (no build function, a copy that differs), DEVICE, MEMORY, and what build reports. */
TREK_API trek_status trek_graph_set_teacher(trek_graph *graph, const char *name, trek_module *module, trek_build_module_fn build,
                                            void *arg);
/* That of the graph, which may be a rank's replica. Borrowed. NULL and ARGUMENT: there is none of that name. */
TREK_API trek_module *trek_graph_teacher(trek_graph *graph, const char *name);

TREK_END

#endif
