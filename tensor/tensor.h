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

#include <stdio.h>

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
/* Returns a new tensor that is filled with `value`. Any dtype and any shape is allowed, also one with a size of 0.
 * Errors: ARGUMENT if an integer dtype cannot represent `value`; SHAPE, DTYPE, DEVICE, MEMORY. */
TREK_API trek_tensor *trek_tensor_full(trek_shape shape, double value, trek_dtype dtype, trek_device device);
/* Returns a new tensor whose elements are not initialised. Any dtype and any shape is allowed, also one with a size of 0.
 * Errors: SHAPE, DTYPE, DEVICE, MEMORY. */
TREK_API trek_tensor *trek_tensor_empty(trek_shape shape, trek_dtype dtype, trek_device device);
/* Returns a new 1-D tensor of the values start, start + step, start + 2 step, ... that lie before `end`.
 * For an integer dtype the fractions of `start` and `step` are dropped, after the number of elements has been computed.
 * Errors: ARGUMENT if `step` is 0 or leads away from `end`. */
TREK_API trek_tensor *trek_tensor_arange(double start, double end, double step, trek_dtype dtype, trek_device device);
/* Returns a new 1-D tensor of `count` equally spaced values from `start` to `end`, both included.
 * For an integer dtype the fractions of `start`, `end` and the values are dropped. */
TREK_API trek_tensor *trek_tensor_linspace(double start, double end, int64_t count, trek_dtype dtype, trek_device device);
/* Returns a new 1-D tensor of base to the powers of `count` equally spaced numbers from start to end, both included. For an
 * integer dtype the results lose their fractions. */
TREK_API trek_tensor *trek_tensor_logspace(double start, double end, int64_t count, double base, trek_dtype dtype,
                                           trek_device device);
/* Returns a new tensor of shape [n, n] with ones on the diagonal and zeros elsewhere. */
TREK_API trek_tensor *trek_tensor_eye(int64_t n, trek_dtype dtype, trek_device device);
/* Returns a new tensor of random values that are uniform in [0, 1), drawn from the calling thread's generator (trek_seed).
 * Dtypes: floating. */
TREK_API trek_tensor *trek_tensor_rand(trek_shape shape, trek_dtype dtype, trek_device device);
/* Returns a new tensor of random values from the standard normal distribution, drawn from the calling thread's generator
 * (trek_seed). Dtypes: floating. */
TREK_API trek_tensor *trek_tensor_randn(trek_shape shape, trek_dtype dtype, trek_device device);
/* Returns a new tensor of random integers in [low, high), drawn from the calling thread's generator (trek_seed).
 * Errors: ARGUMENT unless low < high. */
TREK_API trek_tensor *trek_tensor_randint(int64_t low, int64_t high, trek_shape shape, trek_dtype dtype, trek_device device);
/* Returns a new 1-D tensor of dtype i64 with a random permutation of 0, 1, ..., n - 1, drawn from the calling thread's
 * generator (trek_seed). */
TREK_API trek_tensor *trek_tensor_randperm(int64_t n, trek_device device);

/* Returns a new tensor with a copy of `data`, which are as many elements of `dtype` as the shape has, in row-major order. */
TREK_API trek_tensor *trek_tensor_from_data(const void *data, trek_shape shape, trek_dtype dtype, trek_device device);
/* Returns a new tensor on cpu:0 that uses the caller's host memory without copying it.
 * The elements lie in row-major order. `release(data, arg)` is called when the tensor and all its views are gone; if it is
 * NULL, nothing is called. If this function fails, `release` is not called and the memory stays the caller's. */
TREK_API trek_tensor *trek_tensor_wrap(void *data, trek_shape shape, trek_dtype dtype,
                                       void (*release)(void *data, void *arg), void *arg);

/* Adds a reference to the tensor and returns the tensor. NULL is allowed: NULL is returned. */
TREK_API trek_tensor *trek_tensor_retain(trek_tensor *tensor);
/* Gives one reference back; the tensor is freed with its last reference. NULL is allowed: nothing happens. */
TREK_API void trek_tensor_release(trek_tensor *tensor);

/* Returns the sizes of the tensor's dimensions, or a 0-dimensional shape if `tensor` is NULL. */
TREK_API trek_shape trek_tensor_shape(const trek_tensor *tensor);
/* Returns the strides of the tensor's dimensions in elements (not in bytes), or a 0-dimensional shape if `tensor` is NULL. */
TREK_API trek_shape trek_tensor_strides(const trek_tensor *tensor);
/* Returns the dtype of the elements, or TREK_DTYPE_COUNT if `tensor` is NULL. */
TREK_API trek_dtype trek_tensor_dtype(const trek_tensor *tensor);
/* Returns the device that holds the elements, or cpu:0 if `tensor` is NULL. */
TREK_API trek_device trek_tensor_device(const trek_tensor *tensor);
/* Returns the number of elements, or 0 if `tensor` is NULL. */
TREK_API int64_t trek_tensor_numel(const trek_tensor *tensor);
/* Returns true if the elements lie in row-major order without gaps. */
TREK_API bool trek_tensor_is_contiguous(const trek_tensor *tensor);
/* Returns the address of the first element, or NULL if the elements are not in host memory.
 * The other elements lie at the distances that trek_tensor_strides gives, which need not be row-major: the result of an op
 * keeps the order of dimensions of its input. An element-wise op on the CPU keeps any order, as in PyTorch; the other ops
 * keep the channels-last order. trek_tensor_contiguous and trek_tensor_to_host give row-major elements.
 * trek does not notice a write through this pointer, so the check that saved tensors are unchanged cannot see it. */
TREK_API void *trek_tensor_data(const trek_tensor *tensor);

/* Returns the only element, converted to double. It waits for the device.
 * Errors: SHAPE if the tensor does not have exactly one element; NaN is returned. */
TREK_API double trek_tensor_item(const trek_tensor *tensor);
/* Copies all elements to host memory in row-major order, converted to `dtype`. It waits for the device.
 * Errors: ARGUMENT unless `bytes`, the size of `data`, is exactly the number of elements times the size of `dtype`. */
TREK_API trek_status trek_tensor_to_host(const trek_tensor *tensor, trek_dtype dtype, void *data, size_t bytes);
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
/* Returns the tensor in row-major order without gaps: a new tensor, or a new reference to `tensor` if it is so already. */
TREK_API trek_tensor *trek_tensor_contiguous(trek_tensor *tensor);
/* Returns a new tensor with a copy of the elements in row-major order. */
TREK_API trek_tensor *trek_tensor_clone(trek_tensor *tensor);
/* Returns a view of the tensor with another shape. One size of `shape` may be -1: it is computed from the others.
 * Errors: SHAPE if the number of elements differs, or if the strides do not allow a view; use trek_tensor_contiguous
 * first. */
TREK_API trek_tensor *trek_tensor_view(trek_tensor *tensor, trek_shape shape);

/* Prints the tensor in NumPy's form to `stream` (NULL stands for stdout). A tensor of more than 1000
 * elements is shortened to 3 elements at each edge.
 * Errors: IO, MEMORY. */
TREK_API trek_status trek_tensor_print(const trek_tensor *tensor, FILE *stream);
/* Returns the text that trek_tensor_print prints as a new string. The caller frees it with trek_string_free. */
TREK_API char *trek_tensor_text(const trek_tensor *tensor);
/* Frees a string that a function of trek returned to the caller, and sets *text to NULL. `text` and *text may be NULL. */
TREK_API void trek_string_free(char **text);

/* Returns a DLManagedTensorVersioned * (DLPack 1.x) that shares the tensor's memory.
 * The caller owns it and ends it by calling its deleter; it holds a reference to the tensor until then. */
TREK_API void *trek_tensor_to_dlpack(trek_tensor *tensor);
/* Returns a tensor that shares the memory of `managed`, a DLManagedTensorVersioned * (DLPack 1.x). It takes `managed` over,
 * also on failure: the deleter is called when the memory is no longer needed. If `managed` is marked as read-only, its
 * elements are copied.
 * Errors: DEVICE unless it is CPU memory, UNSUPPORTED if the version is not 1.x, DTYPE, SHAPE. */
TREK_API trek_tensor *trek_tensor_from_dlpack(void *managed);

/* Seeds the generator of the process. The random streams of all ranks are derived from this seed. */
TREK_API void trek_seed(uint64_t seed);

TREK_END

#endif
