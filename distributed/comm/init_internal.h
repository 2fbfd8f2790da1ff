/* SPDX-License-Identifier: Apache-2.0 */
/* The groups that follow the first group of a process. */
#ifndef TREK_DISTRIBUTED_COMM_INIT_INTERNAL_H
#define TREK_DISTRIBUTED_COMM_INIT_INTERNAL_H

#include "distributed/comm/comm_internal.h"
#include "distributed/control/control.h"
#include "distributed/control/launch.h"

/* Makes the group that follows `ended`, among the processes that control joins (NULL: this one alone), with that
 * engine and the deadline of `ended` (ended NULL: the default one). From here on trek_comm_init returns it. It owns
 * control, also on failure. All processes must call it. `ended` still belongs to its holders. */
trek_comm *trek_comm_init_next(trek_control *control, const char *engine, const trek_comm *ended);
/* Returns a communicator of the processes that `control` joins, apart from the job's own communicator. `engine` NULL
 * stands for the one that fits these processes best. control stays the caller's. All these processes must call it.
 * Returns NULL with the errors of trek_comm_init. */
trek_comm *trek_comm_init_part(trek_control *control, const char *engine);
/* The engine's name in a process that has not been in a group of the job: it uses the engine that process 0 names. */
#define TREK_COMM_ENGINE_OF_OTHERS "*"

/* Makes the first group as trek_comm_init does, in a job that goes on without lost processes. A process that is lost
 * while they join is waited for as long as its launcher starts it again; otherwise the others go on while at least
 * `least` processes are left. Returns NULL with the errors of trek_comm_init, or with PEER if too few are left. */
trek_comm *trek_comm_init_of_left(const trek_comm_opts *opts, int least);
/* Returns whether the job's launcher says which processes have ended. */
bool trek_comm_init_hears_of_deaths(void);
/* Notes that all of the first group know how to find each other. A process that is started again joins them in
 * another way from here on. */
void trek_comm_init_begun(void);
/* Returns whether this process was started again and must join those who are at work; false if it has been in a group
 * already. */
bool trek_comm_init_joins(void);
/* Returns the number of this process in the job and, in *processes, the number of processes, as the launcher says. */
int trek_comm_init_number(int *processes);

/* Finds the job under way that this process joins (TREK_JOIN). Fails with ARGUMENT, or with STATE if there is no job
 * or the process has been in a group already. */
trek_status trek_comm_init_joining(trek_launch *launch);

#endif
