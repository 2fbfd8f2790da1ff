/* SPDX-License-Identifier: Apache-2.0 */
/* Elements by their places and the other way round, and tensors made of others'. Names and defaults are PyTorch's; NULL in, NULL
 * out. Part of autograd/ops.h. */
#ifndef TREK_AUTOGRAD_TAKE_H
#define TREK_AUTOGRAD_TAKE_H

#include "autograd/var.h"

TREK_BEGIN

/* Bool: whether each element of x is among those of `of`, or with invert is not; both of one dtype of numbers (DTYPE). A NaN is
 * among none. No gradient; of floating dtypes a GPU is waited for. */
TREK_API trek_var *trek_isin(trek_var *x, trek_var *of, bool invert);
/* Elements of the flattened x at places of index, which is i64 of any shape; negative ones from the end. ARGUMENT: out of range,
 * for which a GPU may be told later. */
TREK_API trek_var *trek_take(trek_var *x, trek_var *index);
/* x with elements of source, in order, at those places; of several for one the last stays (accumulate: all are added). source: as
 * many elements, of x's dtype. */
TREK_API trek_var *trek_put(trek_var *x, trek_var *index, trek_var *source, bool accumulate);
/* trek_gather of dimensions that broadcast, but for dim. index: i64, of as many dimensions; negative ones from the end. */
TREK_API trek_var *trek_take_along_dim(trek_var *x, trek_var *index, int dim);
/* x with slices of source in place of those of index (1-D, any integer dtype, not negative) along dim; of equal ones the last
 * stays. source: x's shape but for dim, x's dtype. */
TREK_API trek_var *trek_index_copy(trek_var *x, trek_var *index, trek_var *source, int dim);
/* x, where mask (bool) is set, replaced by the elements of source in order; x and mask broadcast. A GPU is waited for. ARGUMENT:
 * fewer elements than places. source: x's dtype. */
TREK_API trek_var *trek_masked_scatter(trek_var *x, trek_var *mask, trek_var *source);
/* Turned by k right angles from the first of two dimensions to the second. ARGUMENT: not two different ones. */
TREK_API trek_var *trek_rot90(trek_var *x, int64_t k, trek_dims_list dims);
/* The last dimension as diagonals, `offset` above the main one, of matrices in dimensions dim1 and dim2 of the result; elsewhere
 * 0. ARGUMENT: dim1 equals dim2. */
TREK_API trek_var *trek_diag_embed(trek_var *x, int64_t offset, int dim1, int dim2);
/* Matrices (or vectors, as rows, and scalars) along the diagonal of one, elsewhere 0; dtypes promote. */
TREK_API trek_var *trek_block_diag(trek_var *const *list, int count);
/* All tuples [n, count] of elements of 1-D tensors, the last changing first; of one tensor itself. */
TREK_API trek_var *trek_cartesian_prod(trek_var *const *list, int count);
/* Powers of x [n], one for each of `columns` columns (-1: n), from the highest down, or with increasing from 0 up. Of bool: i64.
 */
TREK_API trek_var *trek_vander(trek_var *x, int64_t columns, bool increasing);
/* i64 [2, n]: rows and columns of the elements of a lower (upper) triangle, in row-major order. ARGUMENT: negative sizes. */
TREK_API trek_var *trek_tril_indices(int64_t rows, int64_t columns, int64_t offset, trek_device device);
TREK_API trek_var *trek_triu_indices(int64_t rows, int64_t columns, int64_t offset, trek_device device);

TREK_END

#endif
