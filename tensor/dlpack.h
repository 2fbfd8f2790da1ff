/* SPDX-License-Identifier: Apache-2.0 */
/* Tensors over memory of other programs, and trek's memory for them: plain arrays and DLPack. */
#ifndef TREK_TENSOR_DLPACK_H
#define TREK_TENSOR_DLPACK_H

#include "tensor/tensor.h"

TREK_BEGIN

/* Returns a new tensor on cpu:0 that uses the caller's host memory without copying it.
 * The elements lie in row-major order. `release(data, arg)` is called when the tensor and all its views are gone; if it is
 * NULL, nothing is called. If this function fails, `release` is not called and the memory stays the caller's. */
TREK_API trek_tensor *trek_tensor_wrap(void *data, trek_shape shape, trek_dtype dtype,
                                       void (*release)(void *data, void *arg), void *arg);
/* Returns a DLManagedTensorVersioned * (DLPack 1.x) that shares the tensor's memory.
 * The caller owns it and ends it by calling its deleter; it holds a reference to the tensor until then.
 * Errors: STATE for a parameter that is divided over ranks (TREK_SHARD_PARAMETERS); NULL is returned. */
TREK_API void *trek_tensor_to_dlpack(trek_tensor *tensor);
/* Returns a tensor that shares the memory of `managed`, a DLManagedTensorVersioned * (DLPack 1.x). It takes `managed` over,
 * also on failure: the deleter is called when the memory is no longer needed. If `managed` is marked as read-only, its
 * elements are copied.
 * Errors: DEVICE unless it is CPU memory, UNSUPPORTED if the version is not 1.x, DTYPE, SHAPE. */
TREK_API trek_tensor *trek_tensor_from_dlpack(void *managed);

TREK_END

#endif
