/* SPDX-License-Identifier: Apache-2.0 */
/* Tensors stand at the edges: datasets, files, DLPack, buffers. They are made,
 * copied and inspected; computing is for variables (autograd/).
 *
 * A function that makes a tensor gives the caller one reference, to be given
 * back by trek_tensor_release. Views share the storage of what they view. */
#ifndef TREK_TENSOR_TENSOR_H
#define TREK_TENSOR_TENSOR_H

#include "tensor/types.h"

TREK_BEGIN

typedef struct trek_tensor trek_tensor;

/* Any dtype, any shape (zero-size ones too). Errors: SHAPE, DTYPE, DEVICE, MEMORY. */
TREK_API trek_tensor *trek_tensor_zeros(trek_shape shape, trek_dtype dtype, trek_device device);
TREK_API trek_tensor *trek_tensor_ones(trek_shape shape, trek_dtype dtype, trek_device device);
TREK_API trek_tensor *trek_tensor_full(double value, trek_shape shape, trek_dtype dtype, trek_device device);
/* Uninitialised. */
TREK_API trek_tensor *trek_tensor_empty(trek_shape shape, trek_dtype dtype, trek_device device);
/* 1-D: start, start + step, ... below `end` (ARGUMENT: it lies the other way); integers: both without their fractions. */
TREK_API trek_tensor *trek_tensor_arange(double start, double end, double step, trek_dtype dtype, trek_device device);
/* 1-D: `count` values from start to end, both included; of an integer dtype without their fractions. */
TREK_API trek_tensor *trek_tensor_linspace(double start, double end, int64_t count, trek_dtype dtype, trek_device device);
/* 1-D: base to the powers of `count` numbers from start to end, both included, which for an integer dtype lose their fractions.
 */
TREK_API trek_tensor *trek_tensor_logspace(double start, double end, int64_t count, double base, trek_dtype dtype,
                                           trek_device device);
/* [n, n], ones on the diagonal. */
TREK_API trek_tensor *trek_tensor_eye(int64_t n, trek_dtype dtype, trek_device device);
/* Random values from the thread's generator (trek_seed): uniform in [0, 1),
 * standard normal (floating dtypes), integers in [low, high), a permutation of 0..n-1 (i64, 1-D). */
TREK_API trek_tensor *trek_tensor_rand(trek_shape shape, trek_dtype dtype, trek_device device);
TREK_API trek_tensor *trek_tensor_randn(trek_shape shape, trek_dtype dtype, trek_device device);
TREK_API trek_tensor *trek_tensor_randint(int64_t low, int64_t high, trek_shape shape, trek_dtype dtype, trek_device device);
TREK_API trek_tensor *trek_tensor_randperm(int64_t n, trek_device device);

/* Copies numel elements of `dtype` in row-major order. */
TREK_API trek_tensor *trek_tensor_from_data(const void *data, trek_shape shape, trek_dtype dtype, trek_device device);
/* Borrows host memory, row-major; `release(data, arg)` is called when the last
 * view is gone (NULL: nothing is called). On failure it is not called. */
TREK_API trek_tensor *trek_tensor_wrap(void *data, trek_shape shape, trek_dtype dtype,
                                       void (*release)(void *data, void *arg), void *arg);

TREK_API trek_tensor *trek_tensor_retain(trek_tensor *tensor);  /* returns tensor; NULL is fine */
TREK_API void trek_tensor_release(trek_tensor *tensor);         /* NULL is fine */

TREK_API trek_shape trek_tensor_shape(const trek_tensor *tensor); /* of NULL no dimensions */
TREK_API trek_shape trek_tensor_strides(const trek_tensor *tensor); /* in elements */
TREK_API trek_dtype trek_tensor_dtype(const trek_tensor *tensor); /* of each element */
TREK_API trek_device trek_tensor_device(const trek_tensor *tensor); /* where it is */
TREK_API int64_t trek_tensor_numel(const trek_tensor *tensor); /* elements */
TREK_API bool trek_tensor_is_contiguous(const trek_tensor *tensor); /* row-major, without gaps */
/* Address of the first element; NULL if it is not in host memory. The others lie by the strides: results keep their input's order
 * of dimensions, of element-wise ops on the CPU any (as in PyTorch), else what lies channels last. trek_tensor_contiguous or
 * trek_tensor_to_host give row-major. Writing through it is not seen by the check of saved tensors. */
TREK_API void *trek_tensor_data(const trek_tensor *tensor);

/* The only element, converted. Waits for the device. NaN and an error unless numel is 1. */
TREK_API double trek_tensor_item(const trek_tensor *tensor);
/* Writes all elements, row-major, as `dtype` to host memory of `bytes` bytes (ARGUMENT if it is not exactly enough). */
TREK_API trek_status trek_tensor_to_host(const trek_tensor *tensor, trek_dtype dtype, void *data, size_t bytes);
/* Overwrites tensor with source: same shape, dtypes converted, any devices. ARGUMENT if several elements of tensor
 * lie in one place, or some in a place of source's that is another element's. */
TREK_API trek_status trek_tensor_copy_from(trek_tensor *tensor, const trek_tensor *source);
/* A new tensor, or the same with one more reference where nothing changes. */
TREK_API trek_tensor *trek_tensor_cast(trek_tensor *tensor, trek_dtype dtype);
TREK_API trek_tensor *trek_tensor_to(trek_tensor *tensor, trek_device device);
TREK_API trek_tensor *trek_tensor_contiguous(trek_tensor *tensor);
TREK_API trek_tensor *trek_tensor_clone(trek_tensor *tensor);
/* Views. A dimension may be negative (from the end); one size of a shape may be -1 (inferred). */
TREK_API trek_tensor *trek_tensor_view(trek_tensor *tensor, trek_shape shape); /* SHAPE if strides do not allow a view */

/* Prints to `stream` (a FILE *, NULL for stdout) as NumPy does: up to 1000 elements
 * whole, beyond that 3 at each edge. */
TREK_API trek_status trek_tensor_print(const trek_tensor *tensor, void *stream);
/* The same text as a new string, to be freed by trek_string_free. */
TREK_API char *trek_tensor_text(const trek_tensor *tensor);
/* Frees any text that trek has handed out, and sets NULL; NULL, and a NULL text, are nothing to be done. */
TREK_API void trek_string_free(char **text);

/* DLPack (versioned, 1.x). The exported structure is a DLManagedTensorVersioned *,
 * owned by the caller until its deleter is called. from_dlpack takes it over
 * (also on failure), CPU memory only unless a backend knows the device. */
TREK_API void *trek_tensor_to_dlpack(trek_tensor *tensor);
TREK_API trek_tensor *trek_tensor_from_dlpack(void *managed);

/* Seeds the process's generator: RNG streams of all ranks follow from it. */
TREK_API void trek_seed(uint64_t seed);

TREK_END

#endif
