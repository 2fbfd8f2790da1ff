/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TREK_GRAPH_QUIET_FORWARD_H
#define TREK_GRAPH_QUIET_FORWARD_H

#include "graph/summary.h"

/* Runs the module on the calling thread in eval mode without gradients; its result is dropped. Modes, random numbers, tagged
 * values and states of graphs are then what they were. Internal. */
trek_status trek_quiet_forward(trek_module *module, trek_var *const *inputs, int n);
/* The same on what a summary's options say (summary.c); nothing without inputs. Adds up totals->input_bytes. */
trek_status trek_summary_run(trek_module *module, const trek_summary_opts *opts, trek_module_totals *totals);

#endif
