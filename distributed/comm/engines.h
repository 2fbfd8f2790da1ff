/* SPDX-License-Identifier: Apache-2.0 */
/* The engines among processes, one row each, and how the processes of a group agree on one of them. */
#ifndef TREK_DISTRIBUTED_COMM_ENGINES_H
#define TREK_DISTRIBUTED_COMM_ENGINES_H

#include "distributed/comm/comm_internal.h"
#include "distributed/control/control.h"

/* Where the processes of a group are. */
typedef struct trek_engine_places {
    int machines;      /* how many machines have some of them */
    int local, locals; /* the number of this process among those of its machine, and how many these are */
} trek_engine_places;

/* Checks that an engine has this name. Fails with ARGUMENT. */
trek_status trek_engines_check(const char *name);

/* Returns a bit for each engine that this process can use. */
uint32_t trek_engines_here(void);
/* Returns whether one of these engines can join processes, which are on one machine or on several. */
bool trek_engines_join(uint32_t engines, bool one_machine);
/* Returns whether an engine joins processes of one machine only. */
bool trek_engines_is_local(const char *name);

/* Makes a communicator among the processes of the channel, by the engine `wanted`, or by the best one that all can use if it is
 * NULL. The communicator borrows the channel, which must outlive it. All processes must call it, with equal arguments.
 * part: they are some of the processes of the job, in any order. limit_ns: how long processes wait for each other; 0: no limit.
 * Returns NULL on failure: ARGUMENT if the processes want different engines, UNSUPPORTED if no engine serves all, COMM, TIMEOUT,
 * PEER, MEMORY. */
trek_comm *trek_engines_pick(trek_control *control, const char *wanted, bool part, int64_t limit_ns, trek_engine_places *places);

#endif
