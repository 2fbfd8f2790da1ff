/* SPDX-License-Identifier: Apache-2.0 */
/* Flow builder: a model as a stream that passes through modules, splits, merges
 * is tagged, looped over, routed and mapped on its way. trek_flow_build turns it
 * into a graph.
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

/* How streams become one: trek_flow_merge. */
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
/* The same for a place among the module's inputs, by the class's name for it, whatever the tag is called: "mask" of
 * trek_nn_multihead_attention. Places in front of it may stay free where the class says that its inputs are optional: attention's
 * key and value are then the query. */
TREK_API trek_flow *trek_flow_using_as(trek_flow *flow, const char *input, const char *tag);
/* Declares a further input of the graph; trek_graph_forward_many takes the first
 * input and then these in order of declaration. Read through `using`: one that nobody reads is a mistake. */
TREK_API trek_flow *trek_flow_input(trek_flow *flow, const char *name);
/* Name of the module that was added last, in parameter names and paths: without
 * it, modules are called by their number in order of adding, "0", "1", ... No
 * dots, not all digits, unique. */
TREK_API trek_flow *trek_flow_label(trek_flow *flow, const char *name);

/* -- parts that run more than once, or for some of the rows -- */

/* Each of these is one module in the graph ("loop", "gate", "switch", "map"), the modules handed to it its children: "body" and
 * "condition"; "router" and "0", "1", ... Rows are slices of dimension 0, samples mostly. Over ranks each loops, chooses and maps
 * for its own rows, with the results of one device, dropout inside included. Where how often a part runs depends on the rows (a
 * loop with a condition, a switch, a map over dimension 0), layers that meet the other ranks (trek_nn_sync_batch_norm)
 * are a mistake, and layers that couple samples see the rows at hand. */

/* A loop's passes. One without a condition takes a stream of any shape. */
typedef struct trek_loop_opts {
    int64_t times;             /* passes, >= 1: all of them without a condition, else at most; must be given */
    trek_module *halt_before;  /* tested before each pass (a while loop: perhaps none is made); NULL: not */
    trek_module *halt_after;   /* tested after each pass but the last (an until loop: one at least); NULL: not. One of the two */
    bool adaptive;             /* with halt_after: its numbers are logits that get a gradient, see below */
    double epsilon;            /* of adaptive, in (0, 1); default 0: 0.01 */
    const char *trace;         /* the stream after each pass is published under this name; NULL: not */
} trek_loop_opts;
/* x -> body(...body(x)). A condition gives one number a row of the stream ([rows] or [rows, 1]; 0-dimensional streams are an
 * error); a row whose number is > 0 has halted (NaN is not): it keeps its value, and later passes give it no gradient and no
 * part in others'. The loop ends when all rows have. In a pass that some rows no longer need, the body sees a row that does in
 * their place, so that no overflow of theirs matters; with further inputs, the halted row itself. With a condition the body must
 * keep the stream's shape; the dtype stays the stream's.
 *     `using` hands further inputs to the body at every pass (its input_names count). A halt is a comparison: through it no
 * gradient reaches the condition, whose parameters then stay as they are (a tagged value of a condition that is a graph can
 * train them). With .adaptive they get one: Graves, "Adaptive computation time for recurrent neural networks" (2016,
 * arXiv:1603.08983). A row's h_k = sigmoid(number) after pass k; it halts in the first pass N where h_1 + ... + h_N >= 1 -
 * epsilon, or in the last; the result is sum_k p_k x_k with p_k = h_k before N and p_N = 1 - h_1 - ... - h_(N - 1).
 *     A second result, "passes" (trek_flow_tag_result): [rows], passes that each row took, in f32 (f64 of f64 streams); of an
 * adaptive loop N + p_N, the ponder cost, with its gradient. opts NULL: ARGUMENT at build, like all mistakes. */
TREK_API trek_flow *trek_flow_loop(trek_flow *flow, trek_module *body, const trek_loop_opts *opts);
/* For a body's forward: gives the value to the innermost loop that this thread runs now, under a name, at most once a pass
 * (ARGUMENT); not every pass needs to. Rows that have halted keep the last value that they had, where its shape begins with the
 * rows and has not changed. Outside a loop nothing happens. See trek_graph_trace. */
TREK_API trek_status trek_loop_publish(const char *name, trek_var *value);

/* A mixture of n >= 1 experts, all of which run: sum_k w_k experts[k](x), w = router(x): [..., n], the leading sizes those of
 * the experts' results ([rows, n], or a weight a token). Gradients go to the router and all experts. `using` means the router.
 */
TREK_API trek_flow *trek_flow_gate(trek_flow *flow, trek_module *router, trek_module *const *experts, int n);
/* Each row goes to one of n >= 1 branches, and to no other: router gives the branch's index a row, of any dtype. An index that is
 * none, NaN included, is an error. Branches without rows do not run, and get no gradient; of no rows at all the first one runs,
 * for the shape. Results must agree in all but dimension 0. The choice has no gradient: a gate has. Branches that carry states
 * from forward to forward (trek_flow_using) are a mistake: their rows are others each time. `using` means the router. */
TREK_API trek_flow *trek_flow_switch(trek_flow *flow, trek_module *router, trek_module *const *branches, int n);
/* One decision for the whole batch: the router gives one number, or the same for all rows (ARGUMENT otherwise). Over ranks it
 * has to be the same for all of them, as a fixed selector's is; trek_trainer_setup names the switch as coupling samples. */
TREK_API trek_flow *trek_flow_switch_batch(trek_flow *flow, trek_module *router, trek_module *const *branches, int n);

typedef struct trek_map_opts {
    int dim;                 /* elements along this dimension (negative: from the end); default 0: rows */
    int64_t slices;          /* default 0: elements of dim; n: n equal slices of the last dimension */
    bool batched;            /* the mapped dimension is folded into the rows and the body runs once */
    const char *over;        /* a tag (defined before) or input to map over instead of the stream; NULL: the stream */
} trek_map_opts;
/* Runs the body on each part and puts the results together again. Rows: the body sees [1, ...], results are joined along
 * dimension 0. Another dimension: the body sees the parts without it, [rows, ...], results are stacked along it. Slices: results
 * are joined along the last dimension; one that n does not divide is an error (SHAPE). With .batched, bodies that treat rows
 * independently give the same. `using` hands further inputs to the body at each call, whole; mapping over rows they go row by
 * row, too (SHAPE: of other rows). opts NULL: the rows. */
TREK_API trek_flow *trek_flow_map(trek_flow *flow, trek_module *body, const trek_map_opts *opts);

/* Consumes the flow. The graph, owned by the caller; or NULL with ARGUMENT and all
 * mistakes, one a line (as far as a message reaches), or MEMORY. */
TREK_API trek_graph *trek_flow_build(trek_flow *flow);
/* For a flow that is given up: frees it with its modules. */
TREK_API void trek_flow_free(trek_flow **flow);

TREK_END

#endif
