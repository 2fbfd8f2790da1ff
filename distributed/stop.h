/* SPDX-License-Identifier: Apache-2.0 */
/* Stopping a job in an orderly way: any process can be asked, and all processes stop at the same step.
 *
 *     signal(SIGTERM, on_term);      // which calls trek_request_stop()
 *     while (!trek_stop_requested()) { ... trek_graph_step(graph) ... }
 *     save; leave */
#ifndef TREK_DISTRIBUTED_STOP_H
#define TREK_DISTRIBUTED_STOP_H

#include "tensor/common.h"

TREK_BEGIN

/* Asks the job to stop after a step. It only sets a flag, so a signal handler may call it (it is async-signal-safe), and any
 * thread. */
TREK_API void trek_request_stop(void);
/* Returns true if the job must stop now. In a job of several processes it becomes true at the step at which all have agreed,
 * which is the same on all of them. In a single process it becomes true as soon as the stop is requested. */
TREK_API bool trek_stop_requested(void);
/* Clears the request and the agreement, for a program that continues with other work. All processes must call it, between
 * steps. */
TREK_API void trek_stop_clear(void);

TREK_END

#endif
