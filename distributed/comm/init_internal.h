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
/* Returns a communicator of the processes that `control` joins, apart from the job's own communicator. `engine` NULL stands for
 * the one that fits these processes best. control stays the caller's. All these processes must call it. Returns NULL with the
 * errors of trek_comm_init. */
trek_comm *trek_comm_init_part(trek_control *control, const char *engine);
/* Of one who has not been in a group of the job: the one that process 0 names. */
#define TREK_COMM_ENGINE_OF_OTHERS "*"

/* trek_comm_init of those who go on without others already while they join: who is lost is waited for as long as its launcher
 * starts it again, and done without as long as `least` are left. NULL also with PEER: too few are left. */
trek_comm *trek_comm_init_of_left(const trek_comm_opts *opts, int least);
/* All of the first group know how they find each other: who is started again from here on joins them otherwise. */
void trek_comm_init_begun(void);
/* Whether this process was started again, and is to join those who are at work; not if it has been in a group already. */
bool trek_comm_init_joins(void);
/* The number of this process in the job, and how many that has, by the launcher. */
int trek_comm_init_number(int *processes);

/* This process joins a job that is under way (TREK_JOIN): which. ARGUMENT; STATE: of no job, or in a group already. */
trek_status trek_comm_init_joining(trek_launch *launch);

#endif
