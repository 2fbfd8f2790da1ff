/* SPDX-License-Identifier: Apache-2.0 */
/* The flow builder's verbs that run modules repeatedly or on a part of the rows: modules whose children are the
 * bodies. */
#ifndef TREK_GRAPH_VERBS_H
#define TREK_GRAPH_VERBS_H

#include "graph/flow.h"
#include "graph/flow_control.h"
#include "nn/module.h"
#include "nn/text.h"

/* On success they own their modules. On failure they return NULL, and the modules are unchanged, or were freed by
 * their owner, the module that failed. */
trek_module *trek_loop_new(trek_module *body, const trek_loop_opts *opts);
trek_module *trek_gate_new(trek_module *router, trek_module *const *experts, int n);
trek_module *trek_switch_new(trek_module *router, trek_module *const *branches, int n, bool whole);
trek_module *trek_map_new(trek_module *body, const trek_map_opts *opts);

/* Returns the module that takes the further inputs that `using` gives: the body of a loop or map, the router of a
 * gate or switch, otherwise the module itself. The options and children of modules of this kind are part of a graph's
 * structure. */
trek_module *trek_verb_taker(trek_module *module);

/* --- what they share ---------------------------------------------------------------- */

/* Reads a module's one number for each of `rows` rows ([rows], or [rows, 1]). Fails with SHAPE otherwise. `what`
 * names it in messages. */
trek_status trek_verb_numbers(const char *what, trek_var *z, int64_t rows, double *numbers);
/* Returns integers as a variable [n] on the device, in the current scope. */
trek_var *trek_verb_index(const int64_t *index, int64_t n, trek_device device);
/* Returns the number of x's rows. Returns -1 and sets SHAPE if x has no dimensions. */
int64_t trek_verb_rows(const char *name, trek_var *x);
/* Fails with UNSUPPORTED if a layer below meets other ranks, because the number of runs of the part depends on a
 * rank's rows. */
trek_status trek_verb_refuse_meeting(const char *name, trek_module *part);
/* Runs the part with trek_forward, or with trek_forward_many if there are further inputs. */
trek_var *trek_verb_run(trek_module *part, trek_var *const *inputs, int n);

/* Returns [rows] as [rows, 1, ...] with as many dimensions as x. */
trek_var *trek_verb_by_rows(trek_var *of_rows, trek_var *x);
/* Detaches the variable in the slot from the tape. */
trek_status trek_detach_slot(trek_var **slot);

#define TREK_VERB_MOST_INPUTS 65 /* of a loop or map: the stream, and what `using` gives */

/* --- loops' traces -------------------------------------------------------------------- */

bool trek_is_loop(const trek_module *module);
/* Return how many values were published under the name in the loop's last forward, and value k, borrowed; NULL if k
 * is out of range. */
int trek_loop_trace_count(trek_module *loop, const char *name);
trek_var *trek_loop_trace_value(trek_module *loop, const char *name, int k);
/* Detaches them from the tape. */
trek_status trek_loop_detach(trek_module *loop);

#endif
