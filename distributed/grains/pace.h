/* SPDX-License-Identifier: Apache-2.0 */
/* How fast ranks run grains now, as far as those know it that take grains from the same place.
 *
 * Each rank notes how long a grain takes it, and when it has begun the present one. From this any of them can tell when
 * the others will be ready. A rank takes a grain if the others could not have run all that are left before it had run this one
 * (balance/handout.h); so a slow rank leaves the last ones to the others, and the pass ends as early as whole grains allow.
 * Otherwise it looks again a little later: if the others turn out to be slower than they were, for example because one was
 * stopped, it takes the grain after all.
 *
 * Speeds follow the last few grains. So they may change within a pass. */
#ifndef TREK_DISTRIBUTED_GRAINS_PACE_H
#define TREK_DISTRIBUTED_GRAINS_PACE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* Words that a rank writes, and all read. */
enum { TREK_GRAIN_PACE_WORDS = 4 };

/* What a process knows. The words are zero at first, and outlive the passes. */
typedef struct trek_grain_pace {
    _Atomic uint64_t *words; /* [ranks * TREK_GRAIN_PACE_WORDS] in memory of the process, or of all processes of a machine */
    int ranks;
    uint32_t serial;         /* of the pass: the same for all ranks, and another one than those of the passes before */
    int64_t start_ns;        /* when it began here */
} trek_grain_pace;

/* Begins a pass for ranks `first` to `first + n - 1`, which are those of this process. A rank that has run no grain in the pass
 * before is taken to be a little faster than it was, so that it gets one again at some time, and can show it. */
void trek_grain_pace_begin(trek_grain_pace *pace, uint32_t serial, int first, int n, int64_t now_ns);
/* Returns whether the rank, which is free, should take one of the `left` grains. At any time that is so for one of the ranks
 * at least, unless others are running grains. */
bool trek_grain_pace_takes(const trek_grain_pace *pace, int rank, int64_t left, int64_t now_ns);
/* Returns how many of the `left` grains a rank should take at once, at least 1: half of its part, by the speeds of all, and all
 * if it is the only one. */
int64_t trek_grain_pace_most(const trek_grain_pace *pace, int rank, int64_t left);
/* The rank begins n grains. */
void trek_grain_pace_start(const trek_grain_pace *pace, int rank, int64_t n, int64_t now_ns);
/* It has run them. `part`: their samples, divided by those of a whole grain; 0: it tells nothing of the rank's speed. */
void trek_grain_pace_stop(const trek_grain_pace *pace, int rank, double part, int64_t now_ns);
/* Returns how long a rank should wait before it looks again: half of the shortest grain, so that it has seen that none is left
 * before the last one has been run. */
int64_t trek_grain_pace_pause(const trek_grain_pace *pace);

#endif
