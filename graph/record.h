/* SPDX-License-Identifier: Apache-2.0 */
/* Recording in the function of trek_graph_set_loss or trek_trainer_run, on any rank. The point of a name is computed from the
 * values of all ranks and processes. graph/observe.h has sums, means and trends, graph/metric.h metrics that are not means of
 * batches. */
#ifndef TREK_GRAPH_RECORD_H
#define TREK_GRAPH_RECORD_H

#include "graph/graph.h"

TREK_BEGIN

/* Adds a scalar to the current point of `name`, which is the mean over the samples of all batches. It may be called only in the
 * function of trek_graph_set_loss or trek_trainer_run. The value stays on its device until the point ends.
 * Errors: SHAPE if it is not a scalar. STATE on any other thread. ARGUMENT if `name` is missing, empty or contains a tab or a
 * line break, or is also recorded as a sum or a metric. */
TREK_API trek_status trek_record_scalar(const char *name, trek_var *value);

TREK_END

#endif
