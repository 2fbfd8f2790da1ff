/* SPDX-License-Identifier: Apache-2.0 */
/* Names of devices, waiting for them, and how GPUs multiply f32. */
#ifndef TREK_TENSOR_DEVICES_H
#define TREK_TENSOR_DEVICES_H

#include "tensor/types.h"

TREK_BEGIN

/* Reads a device from text such as "cpu", "cpu:1" or "cuda:0".
 * Errors: ARGUMENT if the text is not a device; *device is then unchanged. */
TREK_API trek_status trek_device_parse(const char *text, trek_device *device);
/* The number of bytes that holds the name of any device. */
#define TREK_DEVICE_NAME 24

/* Writes the name of a device, such as "cpu:0", to `text` and returns `text`. What does not fit into `capacity` bytes, the ending
 * zero included, is cut off; TREK_DEVICE_NAME bytes are enough. */
TREK_API char *trek_device_name(trek_device device, char *text, size_t capacity);
/* Waits until the device has finished all work it was given. Returns the error of that work, if there was one. */
TREK_API trek_status trek_device_sync(trek_device device);
/* Returns true if both are the same device. */
TREK_API bool trek_device_equal(trek_device a, trek_device b);
/* Returns how many devices of a kind can be used: for TREK_CPU the number of cores, for TREK_CUDA the number of GPUs, which
 * is 0 without a driver, and 0 for anything else. */
TREK_API int trek_device_count(trek_device_type type);
/* How exactly matrix products and convolutions of f32 are computed; sums are in f32 in each case. The lower settings allow what
 * is faster, where the device has it; elsewhere they change nothing. */
typedef enum trek_matmul_precision {
    TREK_MATMUL_PRECISION_HIGHEST, /* the errors of f32; the default */
    TREK_MATMUL_PRECISION_HIGH,    /* factors of some 16 bits on CPUs with tiles (AMX), and TF32, of 11 bits, on GPUs */
    TREK_MATMUL_PRECISION_MEDIUM,  /* factors in bf16, of 8 bits; on GPUs convolutions stay in TF32 */
} trek_matmul_precision;
/* Sets the precision for the whole process and for work that begins after the call. Any thread may call it. All processes of a
 * job must set the same. It is PyTorch's set_float32_matmul_precision, except that it also holds for convolutions.
 * Errors: ARGUMENT if it is not one of these three; the setting is then unchanged. */
TREK_API trek_status trek_matmul_precision_set(trek_matmul_precision precision);
/* Returns the precision that was set last. Any thread may call it. */
TREK_API trek_matmul_precision trek_matmul_precision_get(void);

TREK_END

#endif
