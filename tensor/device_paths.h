/* SPDX-License-Identifier: Apache-2.0 */
/* Counters that show which implementation of an op served its calls on a device, for ops with several implementations. */
#ifndef TREK_TENSOR_DEVICE_PATHS_H
#define TREK_TENSOR_DEVICE_PATHS_H

#include "tensor/types.h"

TREK_BEGIN

/* One implementation of an op on a device, with its counts since the process began or trek_device_paths_reset was called. */
typedef struct trek_device_path {
    /* The op: "attention", "attention_backward", "matmul", "matmul_fp8", "conv2d", "conv2d_backward" or
     * "conv_transpose2d". */
    const char *what;
    /* The implementation. For attention: "cudnn", "wgmma" (kernels for compute capability 9.0), "mma" (kernels for every GPU
     * with tensor cores) or "simple". For products: "cublaslt" or "own". For convolutions: "cudnn" (operation graphs),
     * "cudnn_call" (single convolutions) or "own". */
    const char *path;
    int64_t calls;      /* how many calls this implementation served */
    int64_t refused;    /* how many calls it was asked to serve and refused */
    const char *reason; /* why it refused the last of them, or NULL if it refused no call; never freed */
} trek_device_path;

/* Writes at most `capacity` rows to `paths` and returns how many rows the device has.
 * The number of rows of a device never changes: rows whose counts are 0 are included. It is 0 for CPUs and for a device that
 * the process has not used. The rows of one op are neighbours, in the order in which its implementations are tried. An
 * implementation that the settings turn off is not tried, and its `refused` does not grow. A call during the capture of a step
 * counts once; replays do not count. `paths` may be NULL if `capacity` is 0.
 * Any thread may call it; calls that other threads make at the same time may be counted or not. */
TREK_API int trek_device_paths(trek_device device, trek_device_path *paths, int capacity);
/* Sets all counts of a device to 0 and all reasons to NULL. */
TREK_API void trek_device_paths_reset(trek_device device);
/* Returns a text of the rows whose counts are not 0. It has one line for each row, such as "path: cuda:0 attention cudnn: 0
 * calls, 12 refused (the last: a mask)", and is "" if all counts are 0. The caller frees the text with trek_string_free.
 * Errors: MEMORY; NULL is returned. */
TREK_API char *trek_device_report(trek_device device);

TREK_END

#endif
