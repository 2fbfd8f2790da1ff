/* SPDX-License-Identifier: Apache-2.0 */
/* Runs of a step function: plainly, recorded, and replayed. */
#ifndef TREK_GRAPH_CAPTURE_RUNS_H
#define TREK_GRAPH_CAPTURE_RUNS_H

#include "graph/capture_records.h"

/* From now on steps are called, for this reason. */
void trek_captures_give_up(struct trek_captures *c, const char *reason);
/* Returns a digest of the modes, switches and addresses on which recorded work depends. */
uint64_t trek_captures_signature(trek_graph *graph, const struct trek_captures *c);

/* Calls the function. Fails as it does, or with the error that it has left. */
trek_status trek_captures_call(trek_graph *graph, struct trek_captures *c, trek_capture_record *r);
/* Makes the record's outputs those of the last step. */
void trek_captures_show_outputs(struct trek_captures *c, trek_capture_record *r);
/* Makes an ordinary run, and notes what the function uses. */
trek_status trek_captures_run_plainly(trek_graph *graph, struct trek_captures *c, trek_capture_record *r);
/* Makes an ordinary run between replays. The record stays as it is, with its results and what it retains. */
trek_status trek_captures_run_beside(trek_graph *graph, struct trek_captures *c, trek_capture_record *r);
/* Records, and replays the record. If recording fails, it makes an ordinary run instead. */
trek_status trek_captures_record(trek_graph *graph, struct trek_captures *c, trek_capture_record *r);
trek_status trek_captures_replay(trek_graph *graph, struct trek_captures *c, trek_capture_record *r);

#endif
