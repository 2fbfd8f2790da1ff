/* SPDX-License-Identifier: Apache-2.0 */
/* Moves values that backward needs to host memory until they are needed. A larger model or batch then fits on a GPU, at the price
 * of copies that run at the same time as forward and backward.
 *
 *     trek_offload_begin(NULL);
 *     trek_var *y = trek_forward(model, x);
 *     trek_offload_end();
 *     trek_backward(loss_of(y));
 *
 * What is moved: a value that the calling thread's tape saves between begin and end is copied to pinned memory, on a stream of
 * its own, as soon as the tape is its only holder. Its device memory is free then. Backward copies it back some values ahead.
 * Values with other holders stay (parameters, inputs, results that a variable or a scope keeps), because this would free no
 * memory. Modules and graphs release the values that they pass on. A scope of the program keeps the
 * results of a chain of ops, so these stay.
 *
 * Values have the same bits as without offloading. Overwriting a saved value is the same error, and gradients of gradients and
 * retain_graph work.
 *
 * On a CPU, and for ops that a capture records, it does nothing. A step that offloads is not captured (trek_graph_capture_problem
 * says so). If host memory is missing, values stay on the device, and one warning says so. */
#ifndef TREK_AUTOGRAD_OFFLOAD_H
#define TREK_AUTOGRAD_OFFLOAD_H

#include "autograd/var.h"

TREK_BEGIN

/* Options of trek_offload_begin. */
typedef struct trek_offload_opts {
    int64_t min_bytes; /* smaller values stay on the device; default 1 MiB. TREK_OFF: all values stay */
    /* Number of values that are copied at a time in each direction, each of which still has its device memory; default 4. */
    int ahead;
} trek_offload_opts;

/* Starts offloading on this thread, and on the ranks of a graph that is run before the end. opts may be NULL. Regions nest, and
 * the innermost one counts. Each begin needs its trek_offload_end.
 * Errors: ARGUMENT if an option is negative, STATE for more than 64 nested regions, MEMORY. The end is needed also after an
 * error. */
TREK_API void trek_offload_begin(const trek_offload_opts *opts);

/* Ends the innermost region that trek_offload_begin has started on this thread. */
TREK_API void trek_offload_end(void);

/* Numbers of all threads of the process. */
typedef struct trek_offload_stats {
    int64_t bytes;    /* bytes that are now in host memory and not on a device */
    int64_t sent;     /* bytes copied to the host since the start */
    int64_t returned; /* bytes copied back since the start */
} trek_offload_stats;

/* Returns the numbers of offloading for all threads of the process. */
TREK_API trek_offload_stats trek_offload_usage(void);

TREK_END

#endif
