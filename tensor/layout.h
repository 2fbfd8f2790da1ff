/* SPDX-License-Identifier: Apache-2.0 */
/* How a tensor is stored: its dtype, its device, its order in memory; and views of the same memory. */
#ifndef TREK_TENSOR_LAYOUT_H
#define TREK_TENSOR_LAYOUT_H

#include "tensor/tensor.h"

TREK_BEGIN

/* Returns the dtype of the elements, or TREK_DTYPE_COUNT if `tensor` is NULL. */
TREK_API trek_dtype trek_tensor_dtype(const trek_tensor *tensor);
/* Returns the device that holds the elements, or cpu:0 if `tensor` is NULL. */
TREK_API trek_device trek_tensor_device(const trek_tensor *tensor);
/* Returns the strides of the tensor's dimensions in elements (not in bytes), or a 0-dimensional shape if `tensor` is NULL. */
TREK_API trek_shape trek_tensor_strides(const trek_tensor *tensor);
/* Returns true if the elements lie in row-major order without gaps. */
TREK_API bool trek_tensor_is_contiguous(const trek_tensor *tensor);
/* Returns the tensor in row-major order without gaps: a new tensor, or a new reference to `tensor` if it is so already. */
TREK_API trek_tensor *trek_tensor_contiguous(trek_tensor *tensor);
/* Returns a view of the tensor with another shape. One size of `shape` may be -1: it is computed from the others.
 * Errors: SHAPE if the number of elements differs, or if the strides do not allow a view; use trek_tensor_contiguous
 * first. */
TREK_API trek_tensor *trek_tensor_view(trek_tensor *tensor, trek_shape shape);

TREK_END

#endif
