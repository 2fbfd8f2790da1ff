/* SPDX-License-Identifier: Apache-2.0 */
/* What bounds the difference between two clocks. Internal. */
#ifndef TREK_DISTRIBUTED_TIMELINE_INTERNAL_H
#define TREK_DISTRIBUTED_TIMELINE_INTERNAL_H

#include <stdint.h>

/* When a rank came to a meeting of all, and when it left, on its clock. */
typedef struct trek_clock_meeting {
    int64_t came_ns, left_ns;
} trek_clock_meeting;

/* Of the same n meetings by the first rank's clock and by another one: the other is ahead by *least to *most. */
void trek_clock_bound(const trek_clock_meeting *first, const trek_clock_meeting *own, int n, int64_t *least, int64_t *most);

#endif
