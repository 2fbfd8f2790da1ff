/* SPDX-License-Identifier: Apache-2.0 */
/* Where the ranks of a process get the grains of a pass: from their process's part of the batch, or from the parts of all
 * processes. If processes are on one machine, their ranks take all grains one by one, first from the part of their own process,
 * then from those of others (grains/ranges.h). If they are on several machines, process 0 hands grains out (grains/counter.h).
 *
 * Ranks on CPUs know how fast those are now that take from the same place as they do (grains/pace.h). On GPUs the host does not
 * see when a grain ends, so shares say how fast ranks are; those of one process are given half of its grains before the pass
 * (balance/handout.h). */
#ifndef TREK_DISTRIBUTED_POLICY_GRAIN_SOURCE_H
#define TREK_DISTRIBUTED_POLICY_GRAIN_SOURCE_H

#include "distributed/grains/ranges.h"
#include "distributed/policy/grain_pass.h"

/* What a rank on a GPU has been given, or has taken, and has not run yet. */
typedef struct trek_rank_grains {
    int64_t first, n;
    double part;             /* of the speed of all ranks that take from the same place */
} trek_rank_grains;

typedef struct trek_grain_source {
    /* Returns how many grains nobody has. */
    int64_t (*left)(const struct trek_grain_source *source);
    /* Takes up to `most` that follow each other. Returns the number of the first, or -1 if none is left; *n becomes how many. */
    int64_t (*take)(struct trek_grain_source *source, int64_t most, int64_t *n);
    trek_grain_pace *pace;   /* of the ranks that take from it */
    int first_rank;          /* the number of this process's first rank in it */

    _Atomic int64_t next;    /* of this process's part: the first grain that no rank has */
    int64_t end;
    trek_grain_ranges ranges; /* of all processes */
    trek_rank_grains of[TREK_MAX_RANKS]; /* [local_ranks] on GPUs */
    double fastest;          /* the largest of their parts */
} trek_grain_source;

/* Decides who gets which grains of a call, in the same way in all processes: sets the call's `source`, `next` and `coming`.
 * `source` has to be there as long as the call. Fails with STATE if processes divide the batch in different ways. */
trek_status trek_grain_source_plan(trek_grain_source *source, trek_grain_call *call);

#endif
