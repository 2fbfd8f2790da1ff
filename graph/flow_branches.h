/* SPDX-License-Identifier: Apache-2.0 */
/* Streams of a flow that part and meet, further inputs, and values that are used elsewhere. The rules of graph/flow.h apply. */
#ifndef TREK_GRAPH_FLOW_BRANCHES_H
#define TREK_GRAPH_FLOW_BRANCHES_H

#include "graph/flow.h"
#include "tensor/op_opts.h"

TREK_BEGIN

/* Replaces the stream x by skip(x) + main(x). Exactly one stream must be open. A trek_flow_using or trek_flow_label that follows
 * refers to `main`. */
TREK_API trek_flow *trek_flow_also_with(trek_flow *flow, trek_module *skip, trek_module *main);
/* Computes module(x) in addition to the stream x, which stays x. The next trek_flow_tag names module(x). Exactly one stream must
 * be open. */
TREK_API trek_flow *trek_flow_fork(trek_flow *flow, trek_module *module);
/* Splits the stream x into n >= 2 parallel streams modules[k](x), which trek_flow_merge joins. Exactly one stream must be
 * open. */
TREK_API trek_flow *trek_flow_split(trek_flow *flow, trek_module *const *modules, int n);

/* Joins the open streams to one: their sum (TREK_REDUCTION_SUM) or their mean (TREK_REDUCTION_MEAN). Another reduction is a
 * mistake. trek_flow_merge_cat concatenates them. */
TREK_API trek_flow *trek_flow_merge(trek_flow *flow, trek_reduction reduction);
/* Joins the open streams to one by concatenation along `dim`. Dimension 1 are the features of [N, F] and the channels of
 * [N, C, H, W]. A negative `dim` counts from the last dimension. */
TREK_API trek_flow *trek_flow_merge_cat(trek_flow *flow, int dim);
/* Gives the values of two or more open streams the names name_0, name_1, ... */
TREK_API trek_flow *trek_flow_tag_group(trek_flow *flow, const char *name);
/* Gives a name to one of several results of the module that was added last, which must have forward_results. `result` is the
 * name that the module's class gives to the result, such as "hn" of trek_nn_lstm. The stream is the first result. */
TREK_API trek_flow *trek_flow_tag_result(trek_flow *flow, const char *result, const char *name);
/* Passes the tagged value or graph input `tag` as a further input to the module that was added last. After trek_flow_split it is
 * passed to each of the modules. The module must have forward_many or forward_results. If its class has an input of the tag's
 * name (input_names), the value goes there. Other tags go to the free inputs in the order of the calls.
 * A tag of a value that is computed later, or by the module itself, is a state: the module sees the value of the previous
 * forward. In the first forward it sees zeros of the shape of its first input, or NULL if its inputs are optional. See
 * trek_graph_reset_state. This LSTM continues from its last state:
 *     trek_flow_through(flow, lstm);
 *     trek_flow_tag_result(flow, "hn", "h0"), trek_flow_using(flow, "h0");
 *     trek_flow_tag_result(flow, "cn", "c0"), trek_flow_using(flow, "c0"); */
TREK_API trek_flow *trek_flow_using(trek_flow *flow, const char *tag);
/* Passes `tag` as trek_flow_using does, to the input that the module's class calls `input`, such as "mask" of
 * trek_nn_multihead_attention. The inputs before it may be left out if the class says that its inputs are optional: the key and
 * the value of attention are then the query. */
TREK_API trek_flow *trek_flow_using_as(trek_flow *flow, const char *input, const char *tag);
/* Declares a further input of the graph. trek_graph_forward_many takes the first input and then these, in the order in which
 * they were declared. Modules read it with trek_flow_using. An input that no module reads is a mistake. */
TREK_API trek_flow *trek_flow_input(trek_flow *flow, const char *name);
/* Sets the name of the module that was added last, for parameter names and paths. Without a label, modules are named by their
 * number in the order in which they were added: "0", "1", ... A label must be unique, must not contain a dot and must not
 * consist of digits only. */
TREK_API trek_flow *trek_flow_label(trek_flow *flow, const char *name);

TREK_END

#endif
