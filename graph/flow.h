/* SPDX-License-Identifier: Apache-2.0 */
/* Flow builder: a model as a stream that passes through modules, splits, merges
 * and is tagged on its way. trek_flow_build turns it into a graph.
 *
 * Mistakes are collected, not reported one by one: trek_flow_build names all of
 * them. Every verb returns the flow, so calls may be nested; given NULL (an
 * earlier failure) it returns NULL. Every module handed to a flow belongs to it,
 * also when the verb fails; a module handed in twice is shared (one set of
 * parameters). A flow belongs to one thread. */
#ifndef TREK_GRAPH_FLOW_H
#define TREK_GRAPH_FLOW_H

#include "graph/graph.h"

TREK_BEGIN

typedef struct trek_flow trek_flow;

/* A flow whose stream is the graph's first input, named "input". NULL and MEMORY. */
TREK_API trek_flow *trek_flow_new(void);
/* trek_flow_through(trek_flow_new(), module). */
TREK_API trek_flow *trek_flow_from(trek_module *module);
/* x -> module(x). Needs a single stream, as also, also_with, fork and split do. */
TREK_API trek_flow *trek_flow_through(trek_flow *flow, trek_module *module);
/* x -> x + module(x). */
TREK_API trek_flow *trek_flow_also(trek_flow *flow, trek_module *module);
/* x -> skip(x) + main(x). `using` and `label` after it mean main. */
TREK_API trek_flow *trek_flow_also_with(trek_flow *flow, trek_module *skip, trek_module *main);
/* Runs module on the stream beside it: the stream stays x, the next tag names module(x). */
TREK_API trek_flow *trek_flow_fork(trek_flow *flow, trek_module *module);
/* n >= 2 parallel streams modules[k](x), to be joined by merge. */
TREK_API trek_flow *trek_flow_split(trek_flow *flow, trek_module *const *modules, int n);

typedef enum trek_merge { TREK_MERGE_ADD, TREK_MERGE_MEAN, TREK_MERGE_CAT } trek_merge;

/* Joins the open streams: their sum, their mean, or their concatenation along
 * dimension 1 (features of [N, F], channels of [N, C, H, W]). */
TREK_API trek_flow *trek_flow_merge(trek_flow *flow, trek_merge how);
/* Concatenation along `dim` (negative: from the end). */
TREK_API trek_flow *trek_flow_merge_cat(trek_flow *flow, int dim);

/* Names the stream's value (after fork: the fork's), for `using` and trek_graph_tagged. Names are unique. */
TREK_API trek_flow *trek_flow_tag(trek_flow *flow, const char *name);
/* Names the values of two or more open streams name_0, name_1, ... */
TREK_API trek_flow *trek_flow_tag_group(trek_flow *flow, const char *name);
/* Names a result of the module that was added last, which has several (forward_results): by its class's name for it, as "hn" of
 * trek_nn_lstm. The stream is the first result. */
TREK_API trek_flow *trek_flow_tag_result(trek_flow *flow, const char *result, const char *name);
/* Hands the tagged value (or graph input) `tag` as a further input to the module
 * that was added last (after split: to each of them), which must have
 * forward_many or forward_results. A class with input_names gets a tag of such a name at that
 * place; other tags fill the free places in order of the calls.
 * A tag of something that is computed later, or by the module itself, is a state: the module sees the
 * value of the previous forward, and in the first one zeros shaped like its first input, or nothing (NULL) if its
 * inputs are optional. See trek_graph_reset_state. An LSTM that goes on where it ended:
 *     trek_flow_through(flow, lstm);
 *     trek_flow_tag_result(flow, "hn", "h0"), trek_flow_using(flow, "h0");
 *     trek_flow_tag_result(flow, "cn", "c0"), trek_flow_using(flow, "c0"); */
TREK_API trek_flow *trek_flow_using(trek_flow *flow, const char *tag);
/* Declares a further input of the graph; trek_graph_forward_many takes the first
 * input and then these in order of declaration. Read through `using`: one that nobody reads is a mistake. */
TREK_API trek_flow *trek_flow_input(trek_flow *flow, const char *name);
/* Name of the module that was added last, in parameter names and paths: without
 * it, modules are called by their number in order of adding, "0", "1", ... No
 * dots, not all digits, unique. */
TREK_API trek_flow *trek_flow_label(trek_flow *flow, const char *name);

/* Consumes the flow. The graph, owned by the caller; or NULL with ARGUMENT and all
 * mistakes, one a line (as far as a message reaches), or MEMORY. */
TREK_API trek_graph *trek_flow_build(trek_flow *flow);
/* For a flow that is given up: frees it with its modules. */
TREK_API void trek_flow_free(trek_flow **flow);

TREK_END

#endif
