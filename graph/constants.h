/* SPDX-License-Identifier: Apache-2.0 */
/* Constants and teachers that a loss uses in addition to the graph. Constants are values such as weights of classes or priors.
 * Teachers are modules that are not trained. Every rank has them on its own device under their names, so that the function of
 * trek_graph_set_loss finds them on every rank:
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
 * If all ranks are on CPUs, a loss can use any variable as a constant, because values of CPU devices may be mixed. If the
 * program computes the loss itself from the output of trek_graph_forward, the functions return the values of rank 0.
 *
 * The graph owns its constants and teachers, but they are not parts of it as a module. They are not trained, are not among its
 * parameters, are not saved with them, and are not changed by trek_graph_train and freezing. They may be set before or after
 * trek_trainer_setup, between steps. In a job of several processes all processes must set the same, and process 0's values are
 * used. After trek_trainer_setup this is a collective. */
#ifndef TREK_GRAPH_CONSTANTS_H
#define TREK_GRAPH_CONSTANTS_H

#include "graph/graph.h"

TREK_BEGIN

/* Sets the constant of this name to a copy of the value. It replaces an earlier one. NULL for `value` removes the constant. On
 * failure the earlier constant stays.
 * Errors: ARGUMENT if the processes differ. MEMORY. Errors of the communication. */
TREK_API trek_status trek_graph_set_constant(trek_graph *graph, const char *name, trek_var *value);
/* Returns the constant of this name on the device of the graph, which may be a rank's replica. It is borrowed until it is set
 * again, requires no gradient and must not be written.
 * Errors: ARGUMENT if the graph has no such constant; NULL is returned. */
TREK_API trek_var *trek_graph_constant(trek_graph *graph, const char *name);

/* A function of the user that builds the teacher's module on another device and returns it, or NULL on failure. It is called on
 * the thread of the rank that gets the module, but never by two threads at the same time. */
typedef trek_module *(*trek_build_module_fn)(trek_device device, void *arg);
/* Makes `module` the teacher of this name. It replaces an earlier one. NULL for `module` removes the teacher. The module is
 * frozen, set to evaluation mode and moved to the graph's device. It belongs to the graph, also on failure, unless it has other
 * owners, too. Each further rank builds its teacher with `build` (it may be NULL if the graph has one rank) and gets the
 * parameters and buffers of `module`. On CPUs the teachers share their memory. After the program has changed them, call
 * trek_graph_parameters_changed, which copies them to all ranks of the process. On failure the earlier teacher stays.
 * Errors: ARGUMENT if `build` is missing or builds a different module. DEVICE, MEMORY. Errors of `build`. */
TREK_API trek_status trek_graph_set_teacher(trek_graph *graph, const char *name, trek_module *module, trek_build_module_fn build,
                                            void *arg);
/* Returns the teacher of this name that belongs to the graph, which may be a rank's replica. It is borrowed.
 * Errors: ARGUMENT if the graph has no such teacher; NULL is returned. */
TREK_API trek_module *trek_graph_teacher(trek_graph *graph, const char *name);

TREK_END

#endif
