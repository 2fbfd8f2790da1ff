/* SPDX-License-Identifier: Apache-2.0 */
/* The record of a state that is kept twice, and its parameters after a step. */
#include "distributed/reduce/twice.h"

#include <stdio.h>

#include "distributed/reduce/sharded.h"
#include "distributed/team/memory.h"
#include "distributed/team/step.h"

trek_status trek_twice_begin(trek_step *s, bool joins, bool alone)
{
    s->twice = trek_calloc(1, sizeof *s->twice);
    if (!s->twice)
        return TREK_ERR_MEMORY;
    s->twice->sharer = joins ? -1 : 0;
    s->twice->fresh = joins;
    s->twice->lost[0] = s->twice->lost[1] = -1;
    for (int p = 0; p < TREK_MAX_RANKS; p++)
        s->twice->numbers[p] = p;
    return joins || alone ? trek_arena_weigh(s->team->replicas[0].arena, (const double[]){ alone, joins }) : TREK_OK;
}

void trek_twice_end(trek_step *s)
{
    trek_free(s->twice);
    s->twice = NULL;
}

trek_status trek_twice_check(const trek_step *s, const char *what)
{
    char who[48];
    if (!s || !s->twice || (s->twice->lost[0] < 0 && !s->twice->gone))
        return TREK_OK;
    const int *lost = s->twice->lost;
    if (s->twice->gone)
        snprintf(who, sizeof who, "all processes that were there before are");
    else if (lost[0] == lost[1])
        snprintf(who, sizeof who, "process %d is", lost[0]);
    else
        snprintf(who, sizeof who, "processes %d and %d are", lost[0], lost[1]);
    return trek_fail(TREK_ERR_PEER, "%s: .shard: %s lost, with a part of the optimizer's state of which there is no other copy; "
                                    "load a checkpoint, in a new job",
                     what, who);
}

trek_status trek_twice_may_train(const trek_step *s, const char *what)
{
    trek_status status = trek_twice_check(s, what);
    return status == TREK_OK && s->twice && s->twice->exceeds ? trek_memory_check(s->team->memory, what) : status;
}

trek_status trek_twice_gather(trek_step *s)
{
    trek_status status = trek_twice_check(s, "graph_step");
    trek_sharer sharer = trek_ranks_sharer(s, 0);
    if (status != TREK_OK || (s->team->divides_params && trek_job_is_alone(&s->job)))
        return status;
    return s->team->divides_params ? trek_comm_barrier(s->job.comm) : trek_sharer_gather_params(&sharer);
}
