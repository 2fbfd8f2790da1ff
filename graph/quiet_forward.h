/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TREK_GRAPH_QUIET_FORWARD_H
#define TREK_GRAPH_QUIET_FORWARD_H

#include "graph/summary.h"

/* Runs the module on the calling thread in eval mode without gradients, and drops its result. Afterwards modes,
 * random numbers, tagged values and states of graphs are as before. */
trek_status trek_quiet_forward(trek_module *module, trek_var *const *inputs, int n);
/* Does so on the inputs that a summary's options describe (summary.c); without inputs it does nothing. Adds to
 * totals->input_bytes. */
trek_status trek_summary_run(trek_module *module, const trek_summary_opts *opts, trek_module_totals *totals);

#endif
