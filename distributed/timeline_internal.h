/* SPDX-License-Identifier: Apache-2.0 */
/* Bounds for the difference between the clocks of two ranks. */
#ifndef TREK_DISTRIBUTED_TIMELINE_INTERNAL_H
#define TREK_DISTRIBUTED_TIMELINE_INTERNAL_H

#include <stdint.h>

/* The times at which a rank entered a barrier and left it, by its own clock. */
typedef struct trek_clock_meeting {
    int64_t came_ns, left_ns;
} trek_clock_meeting;

/* Bounds by how much a rank's clock is ahead of the first rank's: by *least to *most. `first` and `own` are the times of the same
 * n barriers on the two clocks. Nobody leaves a barrier before all have entered it, which gives both bounds. */
void trek_clock_bound(const trek_clock_meeting *first, const trek_clock_meeting *own, int n, int64_t *least, int64_t *most);

#endif
