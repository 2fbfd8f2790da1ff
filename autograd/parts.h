/* SPDX-License-Identifier: Apache-2.0 */
/* Parts of a tensor: cut out, chosen by subscripts, replaced by others. Names and defaults are PyTorch's; NULL in, NULL out. Part
 * of autograd/ops.h. */
#ifndef TREK_AUTOGRAD_PARTS_H
#define TREK_AUTOGRAD_PARTS_H

#include "autograd/var.h"
#include "tensor/op_opts.h"

TREK_BEGIN

/* -- cut: views, written to parts as trek_split writes them -- */
/* Splits x along dim into parts of these sizes, as torch.split does with a list. Returns count, or -1. ARGUMENT: the sizes do not
 * add up to the dimension. */
TREK_API int trek_split_with_sizes(trek_var *x, const int64_t *sizes, int count, int dim, trek_var **parts, int capacity);
/* Splits x into so many parts, as torch.tensor_split does with a number. Where the dimension is no multiple of it, the first
 * parts are one element longer. Returns `sections`, or -1. */
TREK_API int trek_split_sections(trek_var *x, int sections, int dim, trek_var **parts, int capacity);
/* Splits x before each of `count` places, as torch.tensor_split does with a list. Places are read as in Python's slices: a
 * negative one counts from the end, and one beyond an end is that end. Returns count + 1, or -1. */
TREK_API int trek_split_indices(trek_var *x, const int64_t *indices, int count, int dim, trek_var **parts, int capacity);
/* Returns every step-th element along dim, from start on and before stop, as Python's x[start:stop:step]. A negative place counts
 * from the end, and one beyond an end (INT64_MAX) is that end. The result is a view if step is 1, and a copy otherwise.
 * ARGUMENT: step is below 1 (trek_flip reverses). */
TREK_API trek_var *trek_slice(trek_var *x, int dim, int64_t start, int64_t stop, int64_t step);
/* Returns the windows of `size` elements along dim that begin `step` apart, as torch.Tensor.unfold: dim counts the windows, and a
 * new last dimension holds their elements. The result is a view if step equals size, and a copy otherwise. ARGUMENT: size is
 * larger than the dimension; step is below 1. */
TREK_API trek_var *trek_unfold_dim(trek_var *x, int dim, int64_t size, int64_t step);
/* Removes those of these dimensions that have one element; trek_dims_none() stands for all dimensions. */
TREK_API trek_var *trek_squeeze_dims(trek_var *x, trek_dims_list dims);

/* -- subscripts -- */
/* What stands between commas in x[...]; made by the functions below. */
typedef struct trek_subscript {
    int kind;
    int64_t start, stop, step;
    trek_var *of;
} trek_subscript;

/* One element; the dimension goes. */
TREK_API trek_subscript trek_subscript_at(int64_t index);
/* start:stop:step, read as by trek_slice. */
TREK_API trek_subscript trek_subscript_range(int64_t start, int64_t stop, int64_t step);
/* ":", the whole dimension. */
TREK_API trek_subscript trek_subscript_all(void);
/* None, a new dimension of one element. */
TREK_API trek_subscript trek_subscript_new(void);
/* "...", as many ":" as are missing. */
TREK_API trek_subscript trek_subscript_rest(void);
/* Indices (i64 or i32; negative ones count from the end), or a mask (bool), which stands for as many dimensions as it has. */
TREK_API trek_subscript trek_subscript_by(trek_var *indices_or_mask);

/* x[subscripts], as in PyTorch; dimensions that are not named stay whole. The result is a view if there are no indices, masks and
 * steps. Indices broadcast with each other; a mask counts as the indices of its true elements, for which a GPU is waited for. The
 * dimensions of the indices stand where the indices stood, or in front if other subscripts lie between them. ARGUMENT: there are
 * too many subscripts or two "..."; a place is out of range. SHAPE: a mask does not fit. DTYPE: indices have another dtype. */
TREK_API trek_var *trek_index(trek_var *x, const trek_subscript *subscripts, int count);
/* Returns a copy of x in which x[subscripts] = values was done, or += if `accumulate` is true. Where several values go to one
 * place, += adds all of them; otherwise one of them stays. values have x's dtype and broadcast. The call makes a table of i64 of
 * x's shape. */
TREK_API trek_var *trek_index_assign(trek_var *x, const trek_subscript *subscripts, int count, trek_var *values, bool accumulate);

/* -- x with a part replaced by source, which has the part's shape (SHAPE) and x's dtype (DTYPE); a copy -- */
TREK_API trek_var *trek_select_scatter(trek_var *x, trek_var *source, int dim, int64_t index);
TREK_API trek_var *trek_slice_scatter(trek_var *x, trek_var *source, int dim, int64_t start, int64_t stop, int64_t step);
TREK_API trek_var *trek_diagonal_scatter(trek_var *x, trek_var *source, int64_t offset, int dim1, int dim2);
/* trek_scatter_reduce of whole slices. index is one-dimensional, of any integer dtype and not negative; it says for each slice of
 * source along dim to which slice of x it goes. The other dimensions of source are those of x. */
TREK_API trek_var *trek_index_reduce(trek_var *x, trek_var *index, trek_var *source, int dim, trek_scatter_reduction reduction,
                                     bool include_self);

TREK_END

#endif
