/* SPDX-License-Identifier: Apache-2.0 */
/* The flow builder's verbs that run modules more than once, or in part: modules whose children are the bodies. Internal. */
#ifndef TREK_GRAPH_VERBS_H
#define TREK_GRAPH_VERBS_H

#include "graph/flow.h"
#include "nn/module.h"
#include "nn/text.h"

/* Take their modules over where they succeed; NULL and the error, with the modules as they were or freed by their owner, the
 * failed module. */
trek_module *trek_loop_new(trek_module *body, const trek_loop_opts *opts);
trek_module *trek_gate_new(trek_module *router, trek_module *const *experts, int n);
trek_module *trek_switch_new(trek_module *router, trek_module *const *branches, int n, bool whole);
trek_module *trek_map_new(trek_module *body, const trek_map_opts *opts);

/* Who takes the further inputs that `using` hands to the module: a loop's and a map's body, a gate's and a switch's router; of
 * any other module itself. Modules of this kind have options and children that are part of a graph's structure. */
trek_module *trek_verb_taker(trek_module *module);

/* --- what they share ---------------------------------------------------------------- */

/* A module's one number for each of `rows` rows ([rows], or [rows, 1]): SHAPE otherwise. `what` names it. */
trek_status trek_verb_numbers(const char *what, trek_var *z, int64_t rows, double *numbers);
/* Integers as a variable [n] on the device, in the present scope. */
trek_var *trek_verb_index(const int64_t *index, int64_t n, trek_device device);
/* Number of x's rows; -1 and SHAPE without dimensions. */
int64_t trek_verb_rows(const char *name, trek_var *x);
/* UNSUPPORTED where a layer below meets other ranks: how often the part runs depends on a rank's rows. */
trek_status trek_verb_refuse_meeting(const char *name, trek_module *part);
/* Runs the part: trek_forward, or with further inputs trek_forward_many. */
trek_var *trek_verb_run(trek_module *part, trek_var *const *inputs, int n);

/* [rows] as [rows, 1, ...] of as many dimensions as x. */
trek_var *trek_verb_by_rows(trek_var *of_rows, trek_var *x);
/* The variable in the slot leaves the tape. */
trek_status trek_detach_slot(trek_var **slot);

#define TREK_VERB_MOST_INPUTS 65 /* of a loop or a map: the stream and what `using` hands over */

/* --- loops' traces -------------------------------------------------------------------- */

bool trek_is_loop(const trek_module *module);
/* Values published under the name in the loop's last forward; value k, borrowed, NULL out of range. */
int trek_loop_trace_count(trek_module *loop, const char *name);
trek_var *trek_loop_trace_value(trek_module *loop, const char *name, int k);
void trek_loop_clear(trek_module *loop);
/* They leave the tape. */
trek_status trek_loop_detach(trek_module *loop);

#endif
