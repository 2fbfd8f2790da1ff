/* SPDX-License-Identifier: Apache-2.0 */
/* Loops, gates, switches and maps of a flow. The rules of graph/flow.h apply. */
#ifndef TREK_GRAPH_FLOW_CONTROL_H
#define TREK_GRAPH_FLOW_CONTROL_H

#include "graph/flow.h"

TREK_BEGIN

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

TREK_END

#endif
