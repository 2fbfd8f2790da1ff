/* SPDX-License-Identifier: Apache-2.0 */
/* Which parts of a forward backward shall run again, and of which what backward needs shall wait in host memory, so that what a
 * pass keeps fits into its room, in the least time.
 *
 * A forward is a line of points in time, at each of which so many bytes are in use. A segment leads from one point to another. It
 * may be kept, or recomputed: then only its result stays, and while backward runs it again, what it keeps is added to what has
 * been kept before it. Nothing after it is in use any more at that time, so that for each segment alone a sum has to fit. With
 * one level of segments this is a shortest path through the points whose resource is memory (Beaumont and others 2019, "Optimal
 * checkpointing for heterogeneous chains", with segments that contain others, and without recomputing in a recomputation). A
 * segment that is moved to host memory is one more step between the same points, with another time. Host memory is a second
 * resource: if the fastest way takes more than there is, each byte of it costs time in the search, as little as possible. */
#ifndef TREK_DISTRIBUTED_BALANCE_RECOMPUTING_H
#define TREK_DISTRIBUTED_BALANCE_RECOMPUTING_H

#include <stdbool.h>

#include "tensor/status.h"

typedef struct trek_segment {
    int begin, end;          /* points; begin < end. Segments may overlap, of which at most one is chosen */
    int64_t result;          /* bytes of what stays if it is chosen */
    int64_t ns;              /* that this takes: recomputed, its forward */
    int64_t host;            /* bytes that are moved to host memory; 0: it is recomputed */
    int64_t need;            /* moved: the most that it has in use above what was before it */
} trek_segment;

typedef struct trek_forward_line {
    int n_points;            /* at least 1 */
    const int64_t *held;     /* [n_points] bytes in use; 0 at the first */
    int n;
    const trek_segment *segments; /* [n] */
    int64_t host;            /* bytes of host memory for what is moved */
} trek_forward_line;

/* Writes to chosen[n] what to recompute or move so that at most `room` bytes are in use at any point, in backward, too, and to
 * *ns the time that it takes, the least possible (up to the rounding of bytes to 1/512 of the room, which only makes it longer,
 * and, if host memory does not suffice for the fastest choice, up to what its last bytes are worth). *found: whether that is
 * possible. Fails with MEMORY. */
trek_status trek_recomputing_choose(const trek_forward_line *line, int64_t room, bool *chosen, int64_t *ns, bool *found);
/* Writes the smallest room for which it is possible, up to 1/1000. Fails with MEMORY. */
trek_status trek_recomputing_least(const trek_forward_line *line, int64_t *room);

#endif
