/* SPDX-License-Identifier: Apache-2.0 */
/* Which parts of a forward backward shall run again, so that what a pass keeps fits into its room, in the least time.
 *
 * A forward is a line of points in time, at each of which so many bytes are in use. A segment leads from one point to another. It
 * may be kept, or recomputed: then only its result stays, and while backward runs it again, what it keeps is added to what has
 * been kept before it. Nothing after it is in use any more at that time, so that for each segment alone a sum has to fit. With
 * one level of segments this is a shortest path through the points whose resource is memory (Beaumont and others 2019, "Optimal
 * checkpointing for heterogeneous chains", with segments that contain others, and without recomputing in a recomputation). */
#ifndef TREK_DISTRIBUTED_BALANCE_RECOMPUTING_H
#define TREK_DISTRIBUTED_BALANCE_RECOMPUTING_H

#include <stdbool.h>

#include "tensor/status.h"

typedef struct trek_segment {
    int begin, end;          /* points; begin < end. Segments may overlap, of which at most one is recomputed */
    int64_t result;          /* bytes of what stays if it is recomputed */
    int64_t ns;              /* that its forward takes */
} trek_segment;

typedef struct trek_forward_line {
    int n_points;            /* at least 1 */
    const int64_t *held;     /* [n_points] bytes in use; 0 at the first */
    int n;
    const trek_segment *segments; /* [n] */
} trek_forward_line;

/* Writes to recomputed[n] what to recompute so that at most `room` bytes are in use at any point, in backward, too, and to *ns
 * the time that it takes, the least possible (up to the rounding of bytes to 1/512 of the room, which only makes it longer).
 * *found: whether that is possible. Fails with MEMORY. */
trek_status trek_recomputing_choose(const trek_forward_line *line, int64_t room, bool *recomputed, int64_t *ns, bool *found);
/* Writes the smallest room for which it is possible, up to 1/1000. Fails with MEMORY. */
trek_status trek_recomputing_least(const trek_forward_line *line, int64_t *room);

#endif
