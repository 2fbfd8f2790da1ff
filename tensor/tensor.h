/* SPDX-License-Identifier: Apache-2.0 */
/* Tensors are plain arrays for the edges of a program: datasets, files, DLPack and buffers. They can be created, copied
 * and inspected. To compute with them, make variables of them (autograd/).
 *
 * A function that returns a trek_tensor * gives the caller one reference, which the caller gives back with
 * trek_tensor_release. A view shares the storage of the tensor it views. A function that returns a pointer returns NULL
 * on failure and sets the error of the calling thread. Comments name a status without its prefix: SHAPE stands for
 * TREK_ERR_SHAPE. */
#ifndef TREK_TENSOR_TENSOR_H
#define TREK_TENSOR_TENSOR_H

#include "tensor/types.h"

TREK_BEGIN

/* A tensor: an array of elements of one dtype on one device, with a count of its references. */
typedef struct trek_tensor trek_tensor;

/* Returns a new tensor that is filled with 0. Any dtype and any shape is allowed, also one with a size of 0.
 * Errors: SHAPE, DTYPE, DEVICE, MEMORY. */
TREK_API trek_tensor *trek_tensor_zeros(trek_shape shape, trek_dtype dtype, trek_device device);
/* Returns a new tensor that is filled with 1. Any dtype and any shape is allowed, also one with a size of 0.
 * Errors: SHAPE, DTYPE, DEVICE, MEMORY. */
TREK_API trek_tensor *trek_tensor_ones(trek_shape shape, trek_dtype dtype, trek_device device);
/* Returns a new tensor of random values from the standard normal distribution, drawn from the calling thread's generator
 * (trek_seed). Dtypes: floating. */
TREK_API trek_tensor *trek_tensor_randn(trek_shape shape, trek_dtype dtype, trek_device device);

/* Returns a new tensor with a copy of `data`, which are as many elements of `dtype` as the shape has, in row-major order. */
TREK_API trek_tensor *trek_tensor_from_data(const void *data, trek_shape shape, trek_dtype dtype, trek_device device);

/* Adds a reference to the tensor and returns the tensor. NULL is allowed: NULL is returned. */
TREK_API trek_tensor *trek_tensor_retain(trek_tensor *tensor);
/* Gives one reference back; the tensor is freed with its last reference. NULL is allowed: nothing happens. */
TREK_API void trek_tensor_release(trek_tensor *tensor);

/* Returns the sizes of the tensor's dimensions, or a 0-dimensional shape if `tensor` is NULL. */
TREK_API trek_shape trek_tensor_shape(const trek_tensor *tensor);
/* Returns the number of elements, or 0 if `tensor` is NULL. */
TREK_API int64_t trek_tensor_numel(const trek_tensor *tensor);
/* Returns the address of the first element, or NULL if the elements are not in host memory.
 * The other elements lie at the distances that trek_tensor_strides gives, which need not be row-major: the result of an op
 * keeps the order of dimensions of its input. An element-wise op on the CPU keeps any order, as in PyTorch; the other ops
 * keep the channels-last order. trek_tensor_contiguous and trek_tensor_to_host give row-major elements.
 * trek does not notice a write through this pointer, so the check that saved tensors are unchanged cannot see it.
 * Errors: STATE for a parameter that is divided over ranks (TREK_SHARD_PARAMETERS), whose memory comes and goes; NULL is
 * returned. trek_tensor_to_host and trek_tensor_clone copy its elements. */
TREK_API void *trek_tensor_data(const trek_tensor *tensor);

/* Copies all elements to host memory in row-major order, converted to `dtype`. It waits for the device.
 * Errors: ARGUMENT unless `bytes`, the size of `data`, is exactly the number of elements times the size of `dtype`. */
TREK_API trek_status trek_tensor_to_host(const trek_tensor *tensor, trek_dtype dtype, void *data, size_t bytes);

/* Seeds the generator of the process. The random streams of all ranks are derived from this seed. */
TREK_API void trek_seed(uint64_t seed);

TREK_END

#endif
