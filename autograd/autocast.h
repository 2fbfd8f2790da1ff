/* SPDX-License-Identifier: Apache-2.0 */
/* Mixed precision by op, as torch.autocast: between begin and end the ops of this thread on variables choose the dtype that they
 * compute in.
 *
 *   - In the 16-bit dtype: matmul, linear, conv2d and the other products of matrices.
 *   - In f32: softmax, log_softmax, logsumexp, losses, layer norm, exp, expm1, log and its variants, pow, reciprocal, rsqrt, tan,
 *     asin, acos, sinh, cosh, softplus, sum, mean, var, prod, cumsum.
 *   - In the widest dtype of their inputs: ops of several inputs, cat, index_add and scatter_add included.
 *   - In the dtype of their input: all others. The statistics of batch norm are f32 in any case.
 *
 * f64 values are not changed. Casts are recorded: gradients arrive in the dtype of the variable. A parameter (a leaf that needs a
 * gradient) is cast once, and again after it was written or after backward freed its tape, until the outermost end. Backward
 * computes in the dtypes of forward, whatever autocast is then. */
#ifndef TREK_AUTOGRAD_AUTOCAST_H
#define TREK_AUTOGRAD_AUTOCAST_H

#include "autograd/var.h"

TREK_BEGIN

/* Starts autocast to a dtype on this thread: TREK_BF16, TREK_F16, or TREK_F32 to switch it off inside. Regions nest. Each begin
 * needs its trek_autocast_end.
 * Errors: ARGUMENT for another dtype, STATE for more than 64 nested regions. The end is needed also after an error. */
TREK_API void trek_autocast_begin(trek_dtype dtype);

/* Ends the innermost region that trek_autocast_begin has started on this thread. */
TREK_API void trek_autocast_end(void);

/* Returns the 16-bit dtype of autocast on this thread, or TREK_F32 if autocast is off. */
TREK_API trek_dtype trek_autocast_dtype(void);

TREK_END

#endif
