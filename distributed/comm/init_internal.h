/* SPDX-License-Identifier: Apache-2.0 */
/* The group of the process that follows on another one. Internal. */
#ifndef TREK_DISTRIBUTED_COMM_INIT_INTERNAL_H
#define TREK_DISTRIBUTED_COMM_INIT_INTERNAL_H

#include "distributed/comm/comm_internal.h"
#include "distributed/control/control.h"

/* What `ended` was, among the processes that control joins (NULL: this one alone), with the same engine and deadline; from here
 * on trek_comm_init gives it. Takes control over, also on failure. A meeting of all. `ended` stays its holders'. */
trek_comm *trek_comm_init_next(trek_control *control, const trek_comm *ended);

#endif
