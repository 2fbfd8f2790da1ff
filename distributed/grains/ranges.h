/* SPDX-License-Identifier: Apache-2.0 */
/* The grains of a pass that nobody has yet, as a range for each process, in words that all processes of a machine can change.
 *
 * A process takes grains from the beginning of its own range, whose samples it has read ahead. When that is empty, it takes them
 * from the end of the range that would last longest. One compare-and-swap decides who gets a grain. Nobody has to begin: whoever
 * comes first to a word sets it to the range that its process has in this pass, so a process that is late, or has been stopped,
 * loses its grains to the others. */
#ifndef TREK_DISTRIBUTED_GRAINS_RANGES_H
#define TREK_DISTRIBUTED_GRAINS_RANGES_H

#include <stdatomic.h>

#include "distributed/control/call.h"

/* The most grains of a pass that a word can say. */
#define TREK_GRAIN_RANGES_MOST 65535

typedef struct trek_grain_ranges {
    _Atomic uint64_t *words; /* [processes], of all processes */
    int process, processes;
    uint32_t serial;         /* of the pass: the same in all processes, and later than those of the passes before */
    int64_t first[TREK_MAX_RANKS + 1]; /* [processes + 1] where the range of each process begins in this pass */
    double speed[TREK_MAX_RANKS]; /* [processes] */
} trek_grain_ranges;

/* Returns how many grains nobody has. */
int64_t trek_grain_ranges_left(const trek_grain_ranges *ranges);
/* Takes up to `most` grains that follow each other in the process's own range, or one of another range. Returns the number of the
 * first, or -1 if none is left; *n becomes how many. Ranks may call it at the same time. */
int64_t trek_grain_ranges_take(const trek_grain_ranges *ranges, int64_t most, int64_t *n);
/* Returns the number of the grain of another process that a rank will probably take next, if it begins to run one now and
 * its process has `ranks` ranks; -1: it will take one of its own process's range, or that process will be faster. Nothing is
 * taken. */
int64_t trek_grain_ranges_expect(const trek_grain_ranges *ranges, int ranks);

#endif
