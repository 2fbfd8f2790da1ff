/* SPDX-License-Identifier: Apache-2.0 */
/* Elements by their indices, and tensors that are put together from other tensors. Lifetimes, NULL and errors are as in
 * autograd/ops.h, which includes this header. Names and defaults are PyTorch's. */
#ifndef TREK_AUTOGRAD_TAKE_H
#define TREK_AUTOGRAD_TAKE_H

#include "autograd/var.h"

TREK_BEGIN

/* Returns a tensor of bool that says for each element of x whether it occurs in `of` or, if invert is true, whether it does not.
 * Both have one dtype, which is not bool; otherwise it fails with DTYPE. A NaN never occurs. It has no gradient. For floating
 * dtypes the call synchronises with the GPU. */
TREK_API trek_var *trek_isin(trek_var *x, trek_var *of, bool invert);
/* Returns the elements of the flattened x at the given indices. index is i64 and has the result's shape; negative indices count
 * from the end. Fails with ARGUMENT if an index is out of range, which a GPU may report in a later call. */
TREK_API trek_var *trek_take(trek_var *x, trek_var *index);
/* Returns x with the elements of source, in order, written to the given indices of the flattened x, or added there if accumulate
 * is true. index is i64; source has as many elements, of x's dtype. If several elements go to one index the last one stays, or
 * all are added. */
TREK_API trek_var *trek_put(trek_var *x, trek_var *index, trek_var *source, bool accumulate);
/* Returns the elements of x whose index along dim is given by index, as trek_gather. index is i64 and has x's number of
 * dimensions; all dimensions except dim broadcast. Negative indices count from the end. */
TREK_API trek_var *trek_take_along_dim(trek_var *x, trek_var *index, int dim);
/* Returns x with its slices at the given indices along dim replaced by those of source. index is 1-D, of any integer dtype, and
 * not negative. source has x's dtype, and x's shape except along dim. If an index occurs more than once the last slice stays. */
TREK_API trek_var *trek_index_copy(trek_var *x, int dim, trek_var *index, trek_var *source);
/* Returns x with its elements where mask (bool) is true replaced by the elements of source, in order. x and mask broadcast;
 * source has x's dtype. The call synchronises with the GPU. Fails with ARGUMENT if source has too few elements. */
TREK_API trek_var *trek_masked_scatter(trek_var *x, trek_var *mask, trek_var *source);
/* Rotates x by k right angles in the plane of two dimensions, from the first towards the second. Fails with ARGUMENT if dims does
 * not list two different dimensions. */
TREK_API trek_var *trek_rot90(trek_var *x, int64_t k, trek_dims_list dims);
/* Makes matrices, in dimensions dim1 and dim2 of the result, whose diagonal `offset` above the main one is the last dimension of
 * x. The other elements are 0. Fails with ARGUMENT if dim1 equals dim2. */
TREK_API trek_var *trek_diag_embed(trek_var *x, int64_t offset, int dim1, int dim2);
/* Makes a matrix with the given matrices along its diagonal and 0 elsewhere. A vector counts as a row, and a scalar as [1, 1].
 * Dtypes promote. */
TREK_API trek_var *trek_block_diag(trek_var *const *list, int count);
/* Returns all tuples of elements of `count` 1-D tensors, [n, count]; the last element changes first. A single tensor is returned
 * itself. */
TREK_API trek_var *trek_cartesian_prod(trek_var *const *list, int count);
/* Returns a matrix of powers of x [n]: from columns - 1 down to 0 or, if increasing is true, from 0 up. If columns is -1, the
 * matrix has n columns. A bool or an integer x gives i64. */
TREK_API trek_var *trek_vander(trek_var *x, int64_t columns, bool increasing);
/* Returns the rows and the columns, i64 [2, n], of the elements on and below the diagonal `offset` above the main one, in
 * row-major order. Fails with ARGUMENT if rows or columns is negative. */
TREK_API trek_var *trek_tril_indices(int64_t rows, int64_t columns, int64_t offset, trek_device device);
/* Returns the rows and the columns, i64 [2, n], of the elements on and above the diagonal `offset` above the main one, in
 * row-major order. Fails with ARGUMENT if rows or columns is negative. */
TREK_API trek_var *trek_triu_indices(int64_t rows, int64_t columns, int64_t offset, trek_device device);

TREK_END

#endif
