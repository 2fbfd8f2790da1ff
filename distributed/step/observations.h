/* SPDX-License-Identifier: Apache-2.0 */
/* What training functions have recorded, as bytes: for other processes, and for checkpoints. Internal. */
#ifndef TREK_DISTRIBUTED_STEP_OBSERVATIONS_H
#define TREK_DISTRIBUTED_STEP_OBSERVATIONS_H

#include "graph/graph.h"
#include "nn/text.h"

/* Of this graph and those inside it, as far as it is on the host. Failed: no memory. */
trek_text trek_observations_pack(const trek_graph *graph);
/* Adds what was packed. COMM: it is damaged; MEMORY. */
trek_status trek_observations_unpack(trek_graph *into, const char *bytes, int64_t length);

#endif
