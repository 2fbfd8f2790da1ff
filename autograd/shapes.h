/* SPDX-License-Identifier: Apache-2.0 */
/* Other shapes of the same elements, parts of a variable, and joining several. The rules of autograd/ops.h, which includes
 * this header, apply.
 *
 * Results are views of x where strides allow it, and copies otherwise. */
#ifndef TREK_AUTOGRAD_SHAPES_H
#define TREK_AUTOGRAD_SHAPES_H

#include "autograd/var.h"

TREK_BEGIN

/* Returns x with another shape of as many elements. One size may be -1 and is computed. */
TREK_API trek_var *trek_reshape(trek_var *x, trek_shape shape);
/* Returns a view of x with its dimensions in the order of dims, which lists each of them once. */
TREK_API trek_var *trek_permute(trek_var *x, trek_dims_list dims);
/* Returns a view of x with two dimensions exchanged. */
TREK_API trek_var *trek_transpose(trek_var *x, int first, int second);
/* Inserts a dimension of size 1 at dim. */
TREK_API trek_var *trek_unsqueeze(trek_var *x, int dim);
/* Returns a view of `length` elements along dim from `start` on. */
TREK_API trek_var *trek_narrow(trek_var *x, int dim, int64_t start, int64_t length);
/* Returns a view of the slice at `index` along dim, without that dimension. */
TREK_API trek_var *trek_select(trek_var *x, int dim, int64_t index);
/* Joins `count` variables along dim. They have the same number of dimensions (torch skips tensors of shape [0]) and the same
 * sizes except along dim. Their dtypes promote. */
TREK_API trek_var *trek_cat(trek_var *const *list, int count, int dim);
/* Joins `count` variables of one shape along a new dimension dim. Their dtypes promote. */
TREK_API trek_var *trek_stack(trek_var *const *list, int count, int dim);

TREK_END

#endif
