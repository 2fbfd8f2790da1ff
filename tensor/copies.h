/* SPDX-License-Identifier: Apache-2.0 */
/* Copies of tensors: of one element, to another dtype, to another device, into another tensor. */
#ifndef TREK_TENSOR_COPIES_H
#define TREK_TENSOR_COPIES_H

#include "tensor/tensor.h"

TREK_BEGIN

/* Returns the only element, converted to double. It waits for the device.
 * Errors: SHAPE if the tensor does not have exactly one element; NaN is returned. */
TREK_API double trek_tensor_item(const trek_tensor *tensor);
/* Overwrites the elements of `tensor` with those of `source`, converted to the dtype of `tensor`. The shapes must be equal;
 * the devices may be any.
 * Errors: SHAPE; ARGUMENT if two elements of `tensor` share memory, or if an element of `tensor` shares memory with a
 * different element of `source`. */
TREK_API trek_status trek_tensor_copy_from(trek_tensor *tensor, const trek_tensor *source);
/* Returns the tensor with its elements converted to `dtype`: a new tensor, or a new reference to `tensor` if it has that
 * dtype already. */
TREK_API trek_tensor *trek_tensor_cast(trek_tensor *tensor, trek_dtype dtype);
/* Returns the tensor on `device`: a new tensor, or a new reference to `tensor` if `device` holds it already. From one CPU device
 * to another the result is a view that shares the memory. */
TREK_API trek_tensor *trek_tensor_to(trek_tensor *tensor, trek_device device);
/* Returns a new tensor with a copy of the elements in row-major order. */
TREK_API trek_tensor *trek_tensor_clone(trek_tensor *tensor);

TREK_END

#endif
