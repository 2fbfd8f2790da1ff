/* SPDX-License-Identifier: Apache-2.0 */
/* The group of the process that follows on another one. Internal. */
#ifndef TREK_DISTRIBUTED_COMM_INIT_INTERNAL_H
#define TREK_DISTRIBUTED_COMM_INIT_INTERNAL_H

#include "distributed/comm/comm_internal.h"
#include "distributed/control/control.h"
#include "distributed/control/launch.h"

/* What `ended` was, among the processes that control joins (NULL: this one alone), with that engine and the same deadline (ended
 * NULL: the default one); from here on trek_comm_init gives it. Takes control over, also on failure. A meeting of all. `ended`
 * stays its holders'. */
trek_comm *trek_comm_init_next(trek_control *control, const char *engine, const trek_comm *ended);
/* Of one who has not been in a group of the job: the one that process 0 names. */
#define TREK_COMM_ENGINE_OF_OTHERS "*"

/* This process joins a job that is under way (TREK_JOIN): which. ARGUMENT; STATE: of no job, or in a group already. */
trek_status trek_comm_init_joining(trek_launch *launch);

#endif
