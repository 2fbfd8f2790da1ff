/* SPDX-License-Identifier: Apache-2.0 */
/* Stopping a job in good order: any process is asked, all stop at the same step.
 *
 *     signal(SIGTERM, on_term);      // which calls trek_request_stop()
 *     while (!trek_stop_requested()) { ... trek_graph_step(graph) ... }
 *     save; leave */
#ifndef TREK_DISTRIBUTED_STOP_H
#define TREK_DISTRIBUTED_STOP_H

#include "tensor/common.h"

TREK_BEGIN

/* Asks the job to stop after a step. Async-signal-safe: it sets a flag and does nothing else. From any thread. */
TREK_API void trek_request_stop(void);
/* Whether the job is to stop here: in a job of several processes true from the step on at which all agreed, on all of
 * them at the same one; in a single process as soon as it was asked. */
TREK_API bool trek_stop_requested(void);
/* Forgets both, for a program that goes on with something else. On all processes, between steps. */
TREK_API void trek_stop_clear(void);

TREK_END

#endif
