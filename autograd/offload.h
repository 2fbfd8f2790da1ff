/* SPDX-License-Identifier: Apache-2.0 */
/* What backward needs, in host memory until it is needed: a larger model or batch fits on a GPU, at the price of copies that
 * run beside forward and backward.
 *
 *     trek_offload_begin(NULL);
 *     trek_var *y = trek_forward(model, x);
 *     trek_offload_end();
 *     trek_backward(loss_of(y));
 *
 * What the calling thread's tape saves in between is copied to pinned memory, on a stream of its own, as soon as the tape is
 * its only holder; its memory on the device is then free. Backward brings it back a few values ahead. What somebody else
 * holds too (parameters, inputs, results that a variable or a scope keeps) stays, since nothing would become free: modules
 * and graphs drop what they pass on, and a chain of ops in one scope of one's own does not. Values have the same bits as
 * without, writing to what was saved is the same error, and gradients of gradients and retain_graph work as ever.
 *
 * On a CPU, and for ops that a capture records, it does nothing; a step that offloads is not captured (trek_graph_capture_problem
 * says so). Where there is no host memory values stay on the device, and a warning says it once. */
#ifndef TREK_AUTOGRAD_OFFLOAD_H
#define TREK_AUTOGRAD_OFFLOAD_H

#include "autograd/var.h"

TREK_BEGIN

typedef struct trek_offload_opts {
    int64_t min_bytes; /* smaller values stay; 1 MiB. TREK_OFF: all do */
    int ahead;         /* values that are on their way at a time, out or back: each still has its memory on the device; 4 */
} trek_offload_opts;

/* opts may be NULL; zeros are the defaults. They nest, the innermost holds; each begin needs its end. Ranks of a graph that is
 * run in between do likewise. Errors: ARGUMENT (a negative number), STATE for more than 64 within each other (the end is needed
 * all the same), MEMORY. */
TREK_API void trek_offload_begin(const trek_offload_opts *opts);
TREK_API void trek_offload_end(void);

/* Of all threads of the process. */
typedef struct trek_offload_stats {
    int64_t bytes;          /* in host memory now, and not on a device */
    int64_t sent, returned; /* bytes copied since the start, out and back */
} trek_offload_stats;
TREK_API trek_offload_stats trek_offload_usage(void);

TREK_END

#endif
