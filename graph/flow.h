/* SPDX-License-Identifier: Apache-2.0 */
/* The flow builder describes a model as a stream of values that passes through modules. The stream can be split, merged and
 * tagged; parts of it can run in loops, be chosen by routers and be mapped. trek_flow_build makes a graph of it.
 *
 * The functions collect mistakes instead of reporting each one: trek_flow_build reports all of them. Each function returns the
 * flow, so that calls can be nested. If the flow is NULL because an earlier call failed, a function returns NULL. A module that
 * is given to a flow belongs to the flow, even if the call fails. A module that is given twice is shared: it has one set of
 * parameters. A flow may be used by one thread only. */
#ifndef TREK_GRAPH_FLOW_H
#define TREK_GRAPH_FLOW_H

#include "graph/graph.h"
#include "tensor/op_opts.h"

TREK_BEGIN

/* A model that is being described. */
typedef struct trek_flow trek_flow;

/* Returns a new flow with one stream: the graph's first input, which is named "input". Errors: MEMORY; NULL is returned. */
TREK_API trek_flow *trek_flow_new(void);
/* Returns a new flow that passes its input through `module`: trek_flow_through(trek_flow_new(), module). */
TREK_API trek_flow *trek_flow_from(trek_module *module);
/* Replaces the stream x by module(x). Exactly one stream must be open. */
TREK_API trek_flow *trek_flow_through(trek_flow *flow, trek_module *module);
/* Replaces the stream x by x + module(x), a residual connection. Exactly one stream must be open. */
TREK_API trek_flow *trek_flow_also(trek_flow *flow, trek_module *module);
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

/* Gives the stream's value a name for trek_flow_using and trek_graph_tagged. After trek_flow_fork it names the fork's value. A
 * name can be used only once in a flow. */
TREK_API trek_flow *trek_flow_tag(trek_flow *flow, const char *name);
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

/* -- Parts that run more than once, or for some of the rows only.
 * Each of these parts is one module of the graph: a "loop", "gate", "switch" or "map". The modules that are given to it are its
 * children "body" and "condition", or "router" and "0", "1", ... Rows are slices of dimension 0, mostly samples. With several
 * ranks, each rank loops, chooses and maps for its own rows; the results are those of one device, also with dropout inside. In a
 * loop with a condition, a switch, and a map over dimension 0, the number of runs depends on the rows. There, layers that
 * communicate with other ranks (trek_nn_sync_batch_norm) are a mistake, and layers that couple samples see only the rows of the
 * current run. -- */

/* Options of a loop. A loop without a condition takes a stream of any shape. */
typedef struct trek_loop_opts {
    int64_t times;             /* number of passes, >= 1, or the most passes with a condition; required */
    trek_module *halt_before;  /* condition of a while loop, computed before each pass (not with halt_after); default NULL */
    trek_module *halt_after;   /* condition of an until loop, computed after each pass except the last; default NULL */
    bool adaptive;             /* the numbers of halt_after are logits that get a gradient (see trek_flow_loop); default false */
    double epsilon;            /* for adaptive loops, in (0, 1); default 0.01 */
    const char *trace;         /* the name under which the stream after each pass is published; default NULL: it is not */
} trek_loop_opts;
/* Replaces the stream x by body(...body(x)): the body runs again on its own result.
 *
 * Without a condition it runs .times passes. A condition computes one number for each row of the stream: its shape is [rows] or
 * [rows, 1], and the stream must not be 0-dimensional. A row whose number is > 0 has halted (NaN does not halt a row). It keeps
 * its value, gets no gradient from later passes and does not take part in those of other rows. The loop ends when all rows have
 * halted. If only some rows have halted, the body sees a copy of an active row instead of each of them, so that halted rows
 * cannot overflow. If the loop has further inputs, the body sees the halted rows themselves. With a condition the body must keep
 * the stream's shape. The stream keeps its dtype.
 *
 * trek_flow_using passes further inputs to the body at every pass, by its input_names.
 *
 * No gradient passes through the decision to halt, so the parameters of the condition are not trained by it. If the condition is
 * a graph, a tagged value of it can train them. With .adaptive they get a gradient, as in Graves, "Adaptive computation time for
 * recurrent neural networks" (2016, arXiv:1603.08983): let h_k = sigmoid(number) of a row after pass k. The row halts in the
 * first pass N where h_1 + ... + h_N >= 1 - epsilon, or in the last pass. The result is the sum over k of p_k x_k, with p_k =
 * h_k for k < N and p_N = 1 - h_1 - ... - h_(N - 1).
 *
 * The loop has a second result "passes" (trek_flow_tag_result) of shape [rows]: the number of passes of each row, in f32, or in
 * f64 for f64 streams. For an adaptive loop it is N + p_N, the ponder cost, with its gradient.
 *
 * Errors: NULL for `opts` is a mistake, which trek_flow_build reports as ARGUMENT like all mistakes. */
TREK_API trek_flow *trek_flow_loop(trek_flow *flow, trek_module *body, const trek_loop_opts *opts);
/* Publishes a value under a name in the innermost loop that the calling thread runs, so that trek_graph_trace can read it. The
 * forward of a loop's body calls it, at most once per pass for each name. It need not be called in every pass. If the value's
 * first dimension is the rows and its shape does not change, rows that have halted keep their last value. Outside of a loop it
 * does nothing.
 * Errors: ARGUMENT if it is called twice in a pass for one name. */
TREK_API trek_status trek_loop_publish(const char *name, trek_var *value);

/* Replaces the stream x by a mixture of n >= 1 experts: the sum over k of w_k * experts[k](x) with w = router(x). All experts
 * run. The shape of w is [..., n]; its leading sizes are those of the experts' results, such as [rows, n], or one weight for
 * each token. The router and all experts get gradients. A trek_flow_using that follows refers to the router. */
TREK_API trek_flow *trek_flow_gate(trek_flow *flow, trek_module *router, trek_module *const *experts, int n);
/* Sends each row of the stream to one of n >= 1 branches. The router computes the index of the branch for each row, in any
 * dtype.
 * - A branch without rows does not run and gets no gradient. If the stream has no rows, the first branch runs, because its
 *   result has the right shape.
 * - The results of the branches must have equal shapes except in dimension 0.
 * - The choice has no gradient. Use trek_flow_gate if the router must get one.
 * - Branches that carry states (trek_flow_using) are a mistake, because each forward sends them other rows.
 * - A trek_flow_using that follows refers to the router.
 * - Errors in the forward: ARGUMENT if an index is NaN or not one of the branches. */
TREK_API trek_flow *trek_flow_switch(trek_flow *flow, trek_module *router, trek_module *const *branches, int n);
/* Sends the whole batch to one of n >= 1 branches. The router computes one number, or the same number for all rows.
 * With several ranks all of them must choose the same branch, for example by a fixed selector. trek_trainer_setup reports the
 * switch as a module that couples samples. Otherwise it is as trek_flow_switch.
 * Errors in the forward: ARGUMENT if the numbers of the rows differ. */
TREK_API trek_flow *trek_flow_switch_batch(trek_flow *flow, trek_module *router, trek_module *const *branches, int n);

/* Options of a map: trek_flow_map. */
typedef struct trek_map_opts {
    int dim;                 /* maps over the elements of this dimension (negative: from the last); default 0: the rows */
    int64_t slices;          /* n > 0: maps over n equal slices of the last dimension instead; default 0 */
    bool batched;            /* folds the mapped dimension into the rows, so that the body runs once; default false */
    const char *over;        /* a tag (defined before) or input to map over; default NULL: the stream */
} trek_map_opts;
/* Runs the body on each part of the stream and joins the results. NULL for `opts` maps over the rows.
 * - Over rows, the body sees [1, ...], and the results are concatenated along dimension 0.
 * - Over another dimension, the body sees the elements without that dimension, [rows, ...], and the results are stacked along
 *   it.
 * - Over slices, the results are concatenated along the last dimension.
 * - .batched gives the same results if the body treats rows independently.
 * - trek_flow_using passes further inputs to the body at each call: whole, or row by row if the map is over rows.
 * - Errors in the forward: SHAPE if the number of slices does not divide the last dimension, or if a further input has another
 *   number of rows. */
TREK_API trek_flow *trek_flow_map(trek_flow *flow, trek_module *body, const trek_map_opts *opts);

/* Makes a graph of the flow and frees the flow. The caller owns the graph.
 * Errors: ARGUMENT if mistakes were made, with one line for each of them as far as the message is long enough. MEMORY. NULL is
 * returned. */
TREK_API trek_graph *trek_flow_build(trek_flow *flow);
/* Frees a flow that will not be built, with its modules, and sets *flow to NULL. */
TREK_API void trek_flow_free(trek_flow **flow);

TREK_END

#endif
