/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TREK_DISTRIBUTED_ARRIVALS_STATE_H
#define TREK_DISTRIBUTED_ARRIVALS_STATE_H

#include "distributed/job/survival.h"
#include "nn/text.h"

/* The state of a graph as that of a checkpoint, for processes that join its job (pass/arrivals.h). */
extern const trek_survival_state trek_arrivals_state;
/* Returns a hash of what processes must have in common to compute the same bits. `options` are the options of set-up as lines. A
 * process with another hash is not let in. Returns 0 with MEMORY. */
uint64_t trek_arrivals_program(trek_graph *graph, const trek_text *options);

#endif
