/* SPDX-License-Identifier: Apache-2.0 */
/* Which implementation served the calls of an op on a device, where there are several to choose from. */
#ifndef TREK_TENSOR_DEVICE_PATHS_H
#define TREK_TENSOR_DEVICE_PATHS_H

#include "tensor/types.h"

TREK_BEGIN

/* One way to compute something on a device, and how often it was taken since the process began or the counts were reset. */
typedef struct trek_device_path {
    /* What is computed: "attention", "attention_backward", "matmul", "matmul_fp8", "conv2d", "conv2d_backward" or
     * "conv_transpose2d". */
    const char *what;
    /* The way. Attention: "cudnn", "wgmma" (kernels for compute capability 9.0), "mma" (for all with tensor cores), "simple".
     * Products: "cublaslt", "own". Convolutions: "cudnn" (operation graphs), "cudnn_call" (single convolutions), "own". */
    const char *path;
    int64_t calls;      /* that this way served */
    int64_t refused;    /* calls that came to this way in its turn and that it did not take */
    const char *reason; /* why it did not take the last of these; NULL if there was none. Never freed */
} trek_device_path;

/* Writes at most `capacity` rows to `paths` and returns how many the device has, which is the same at all times: rows in which
 * nothing was counted are among them. Rows of one `what` stand together, in the order in which the ways are asked; a way that
 * is not asked for by the settings is not counted as refused. A call while a step is captured counts once, its replays do not.
 * 0 for CPUs and for a device that the process has not used; `paths` may be NULL if capacity is 0. From any thread: calls that
 * other threads make meanwhile may be counted or not. */
TREK_API int trek_device_paths(trek_device device, trek_device_path *paths, int capacity);
/* Sets the counts and the reasons of a device to what they were at first. */
TREK_API void trek_device_paths_reset(trek_device device);
/* The rows in which something was counted as a new string, to be freed by trek_string_free: a line for each, such as
 * "path: cuda:0 attention cudnn: 0 calls, 12 refused (the last: a mask)". "" where nothing was; NULL and MEMORY. */
TREK_API char *trek_device_report(trek_device device);

TREK_END

#endif
