/* SPDX-License-Identifier: Apache-2.0 */
/* The optimizer's state in parts of which each is kept by two processes (optim/arena.h: `twice`), so that a job goes on when one
 * of them dies (job/survival.h).
 *
 * Every process has the whole gradient when a step is made, or, if gradients are divided (in grains), that of its part: their
 * sums are kept by the same two. Both keepers of a part make the same update; nothing of the state is sent. Then the parameters
 * are gathered, each from one of its keepers. This is an operation of its own, which ends with a commit. Until then a process has
 * new parameters only where it keeps their state.
 *
 * When processes have died or come, the state is divided anew among those that are there (trek_twice_redivide). All have made
 * the same updates then. New buffers are filled from living keepers, and become the optimizer's after a commit; so a death
 * meanwhile destroys nothing.
 *
 * If both keepers of a part have died, training cannot go on. This is an error where the state is needed next, and not where it
 * is noticed: after the last step processes end in any order. */
#ifndef TREK_DISTRIBUTED_REDUCE_TWICE_H
#define TREK_DISTRIBUTED_REDUCE_TWICE_H

#include "distributed/team/team.h"

typedef struct trek_step trek_step;

typedef struct trek_twice {
    int sharer;              /* this process's number among those that divide the state, once the job can go on without some
                              * of them; -1: it has just come */
    int numbers[TREK_MAX_RANKS]; /* [sharers] of the processes, in the job */
    bool fresh;              /* this process has come, and does not know yet how often parameters have been updated */
    bool settled;            /* the state is divided among all that are in the job's group now, */
    bool renewed;            /* and the plan of memory has been made again by renew_plan; */
    bool exceeds;            /* some budget is too small for it */
    trek_status (*renew_plan)(trek_step *s);
    bool stale;              /* its parameters are new only where it keeps their state */
    int lost[2];             /* the keepers, by their numbers in the job, that have taken a part of the state with them, in
                              * ascending order; both are the same if one kept it alone. -1: none has */
    bool gone;               /* all that had a part of it have died; those that have come since do not know who they were */
} trek_twice;

/* Makes a step's record, when its team exists. joins: this process has nothing before it has met the others; alone: it has no
 * others, and keeps everything. Fails with MEMORY. */
trek_status trek_twice_begin(trek_step *s, bool joins, bool alone);
void trek_twice_end(trek_step *s);
/* Fails with PEER if a part of the state has been lost. `what` is the function that needs it. It succeeds if s is NULL. */
trek_status trek_twice_check(const trek_step *s, const char *what);
/* The same, and fails with MEMORY if those that are left have budgets which are too small for what they keep now. */
trek_status trek_twice_may_train(const trek_step *s, const char *what);
/* Gives all processes the parameters of the last update, unless these are divided: then it waits until all have made it. A
 * collective that can be repeated. Fails as trek_twice_check does, and with errors of the engine. */
trek_status trek_twice_gather(trek_step *s);
/* Divides the state anew among the processes of the job, with a commit at the end: a collective of those that have formed a
 * group. One that has no state of the job yet (survival->joins) gets nothing. It notes whether a part has been lost. Fails with
 * MEMORY, with PEER if the group ends, or if it must be repeated; then nothing has changed. */
trek_status trek_twice_redivide(trek_step *s);

#endif
