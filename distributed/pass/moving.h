/* SPDX-License-Identifier: Apache-2.0 */
/* How long it takes to move values of a rank to host memory and back (autograd/offload.h), measured. */
#ifndef TREK_DISTRIBUTED_PASS_MOVING_H
#define TREK_DISTRIBUTED_PASS_MOVING_H

#include "tensor/status.h"

typedef struct trek_step trek_step;

/* In ns a byte, to host memory and back; 0: the rank moves nothing, since it has no device of its own memory. */
typedef struct trek_moving {
    double out, back;
} trek_moving;

/* Measures all ranks of this process, which copy at the same time, as in a pass: of[local_ranks]. Fails with MEMORY, or errors of
 * the device. */
trek_status trek_moving_measure(trek_step *s, trek_moving *of);
/* Writes how many bytes each rank's passes have moved to host memory since the process began: bytes[local_ranks]. */
trek_status trek_moving_count(trek_step *s, int64_t *bytes);

/* Returns by how much a pass becomes longer if so many bytes of a segment are moved, whose forward takes forward_ns. The bytes
 * are copied to the host while the segment's forward runs, and back while its backward runs, which is assumed to take twice as
 * long. A copy costs only the time by which it exceeds that. */
static inline int64_t trek_moving_ns(const trek_moving *moving, int64_t bytes, int64_t forward_ns)
{
    double out = (double)bytes * moving->out - (double)forward_ns, back = (double)bytes * moving->back - 2 * (double)forward_ns;
    return (int64_t)((out > 0 ? out : 0) + (back > 0 ? back : 0));
}

/* Tests: the time in ns a byte, which is not measured then; 0: it is. */
extern double trek_moving_slow;

#endif
