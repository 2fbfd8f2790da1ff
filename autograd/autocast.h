/* SPDX-License-Identifier: Apache-2.0 */
/* Mixed precision by op, as torch.autocast: between begin and end this thread's
 * ops on variables choose the dtype that they compute in.
 *
 *   in the 16-bit dtype: matmul, linear, conv2d and what else is a product of matrices
 *   in f32: softmax, log_softmax, logsumexp, losses, layer norm, exp, expm1, log and its kin, pow, reciprocal, rsqrt,
 *     tan, asin, acos, sinh, cosh, softplus, sum, mean, var, prod, cumsum
 *   in the widest of their inputs: ops of several inputs, cat, index_add and scatter_add too
 *   as they come: all others (batch norm: its statistics are f32 in any case)
 *
 * f64 values are left alone. Casts are recorded: gradients come back in the dtype of
 * the variable. The cast of a parameter (a leaf that needs a gradient) is made once,
 * and again when the parameter was written or backward freed its tape, until the
 * outermost end. Backward computes in the dtypes of forward, whatever is on then. */
#ifndef TREK_AUTOGRAD_AUTOCAST_H
#define TREK_AUTOGRAD_AUTOCAST_H

#include "autograd/var.h"

TREK_BEGIN

/* dtype: BF16, F16, or F32 to switch it off within. They nest; each begin needs its end. Error: ARGUMENT for another
 * dtype, STATE for more than 64 within each other (the end is needed all the same). */
TREK_API void trek_autocast_begin(trek_dtype dtype);
TREK_API void trek_autocast_end(void);
/* The 16-bit dtype in force on this thread; F32: off. */
TREK_API trek_dtype trek_autocast_dtype(void);

TREK_END

#endif
