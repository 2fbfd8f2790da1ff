/* SPDX-License-Identifier: Apache-2.0 */
/* Sums, means and extremes over dimensions. The rules of autograd/ops.h, which includes this header, apply.
 *
 * They reduce over dims, or over all dimensions if dims is trek_dims_all(). With keepdim reduced dimensions stay, with size 1;
 * without it they are removed. autograd/ops.h has further reductions. */
#ifndef TREK_AUTOGRAD_REDUCTIONS_H
#define TREK_AUTOGRAD_REDUCTIONS_H

#include "autograd/var.h"

TREK_BEGIN

/* Computes the sum. Integers and bool give i64. */
TREK_API trek_var *trek_sum(trek_var *x, trek_dims_list dims, bool keepdim);
/* Computes the mean. Dtypes: floating. */
TREK_API trek_var *trek_mean(trek_var *x, trek_dims_list dims, bool keepdim);
/* Computes the maximum. A NaN wins. Equal elements share the gradient, or the NaNs do, as in torch.max(x); torch.amax gives NaN
 * to all elements. Fails with SHAPE if a reduced dimension has no elements. */
TREK_API trek_var *trek_max(trek_var *x, trek_dims_list dims, bool keepdim);
/* Returns the index of the maximum, the first one of equal elements, as i64. It takes one dimension, or trek_dims_all() for the
 * index in the flattened x. Dtypes: numbers, not bool. Fails with SHAPE if a reduced dimension has no elements. */
TREK_API trek_var *trek_argmax(trek_var *x, trek_dims_list dims, bool keepdim);

TREK_END

#endif
