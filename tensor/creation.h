/* SPDX-License-Identifier: Apache-2.0 */
/* Further tensors that are filled with sequences or random numbers, or left uninitialised. */
#ifndef TREK_TENSOR_CREATION_H
#define TREK_TENSOR_CREATION_H

#include "tensor/tensor.h"

TREK_BEGIN

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
/* Returns a new tensor of random integers in [low, high), drawn from the calling thread's generator (trek_seed).
 * Errors: ARGUMENT unless low < high. */
TREK_API trek_tensor *trek_tensor_randint(int64_t low, int64_t high, trek_shape shape, trek_dtype dtype, trek_device device);
/* Returns a new 1-D tensor of dtype i64 with a random permutation of 0, 1, ..., n - 1, drawn from the calling thread's
 * generator (trek_seed). */
TREK_API trek_tensor *trek_tensor_randperm(int64_t n, trek_device device);

TREK_END

#endif
