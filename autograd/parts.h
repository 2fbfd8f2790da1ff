/* SPDX-License-Identifier: Apache-2.0 */
/* Parts of a tensor: split, chosen by subscripts, replaced by others. Lifetimes, NULL and errors are as in autograd/ops.h, which
 * includes this header. Names and defaults are PyTorch's. */
#ifndef TREK_AUTOGRAD_PARTS_H
#define TREK_AUTOGRAD_PARTS_H

#include "autograd/var.h"
#include "tensor/op_opts.h"

TREK_BEGIN

/* -- splitting. Parts are views, written to parts, which has `capacity` elements. Functions fail with ARGUMENT if there are more
 *    parts than capacity. -- */
/* Splits x along dim into parts of the given sizes, as torch.split does with a list. Returns count, or -1 on failure. Fails with
 * ARGUMENT if the sizes do not add up to the dimension. */
TREK_API int trek_split_with_sizes(trek_var *x, const int64_t *sizes, int count, int dim, trek_var **parts, int capacity);
/* Splits x along dim into `sections` parts, as torch.tensor_split does with a number. If the dimension is not a multiple of it,
 * the first parts are one element longer. Returns sections, or -1 on failure. */
TREK_API int trek_split_sections(trek_var *x, int sections, int dim, trek_var **parts, int capacity);
/* Splits x along dim before each of `count` indices, as torch.tensor_split does with a list. Indices are read as in Python's
 * slices: a negative one counts from the end, and one beyond an end is that end. Returns count + 1, or -1 on failure. */
TREK_API int trek_split_indices(trek_var *x, const int64_t *indices, int count, int dim, trek_var **parts, int capacity);
/* Returns every step-th element along dim, from start on and before stop, as Python's x[start:stop:step]. A negative index counts
 * from the end, and one beyond an end (INT64_MAX) is that end. The result is a view if step is 1, and a copy otherwise. Fails
 * with ARGUMENT if step is below 1 (trek_flip reverses). */
TREK_API trek_var *trek_slice(trek_var *x, int dim, int64_t start, int64_t stop, int64_t step);
/* Returns the windows of `size` elements along dim that begin `step` apart, as torch.Tensor.unfold: dim counts the windows, and a
 * new last dimension holds their elements. The result is a view if step equals size, and a copy otherwise. Fails with ARGUMENT if
 * size is larger than the dimension, or step is below 1. */
TREK_API trek_var *trek_unfold_dim(trek_var *x, int dim, int64_t size, int64_t step);
/* Removes each listed dimension that has one element; trek_dims_all() stands for all dimensions. */
TREK_API trek_var *trek_squeeze_dims(trek_var *x, trek_dims_list dims);

/* -- subscripts -- */
/* A subscript: what stands between commas in x[...]. The functions below make it, and its fields are theirs. */
typedef struct trek_subscript {
    int kind;      /* which function has made it */
    int64_t start; /* first index of a range, or the only index */
    int64_t stop;  /* index before which a range ends */
    int64_t step;  /* distance of a range's elements */
    trek_var *of;  /* indices or mask, borrowed */
} trek_subscript;

/* Makes a subscript for the element at `index`, which removes the dimension. */
TREK_API trek_subscript trek_subscript_at(int64_t index);
/* Makes the subscript start:stop:step, read as by trek_slice. */
TREK_API trek_subscript trek_subscript_range(int64_t start, int64_t stop, int64_t step);
/* Makes the subscript ":", the whole dimension. */
TREK_API trek_subscript trek_subscript_all(void);
/* Makes the subscript None, a new dimension of one element. */
TREK_API trek_subscript trek_subscript_new(void);
/* Makes the subscript "...", which stands for as many ":" as are missing. */
TREK_API trek_subscript trek_subscript_rest(void);
/* Makes a subscript of indices (i64 or i32; negative ones count from the end), or of a mask (bool), which stands for as many
 * dimensions as it has. The variable is borrowed. */
TREK_API trek_subscript trek_subscript_by(trek_var *indices_or_mask);

/* Returns x[subscripts], as in PyTorch. Dimensions that are not named stay whole. The result is a view if there are no indices,
 * masks and steps, and a copy otherwise. Indices broadcast with each other. A mask counts as the indices of its true elements,
 * for which the call synchronises with the GPU. The dimensions of the indices stand where the indices stood, or in front if other
 * subscripts lie between them. Fails with ARGUMENT if there are too many subscripts or two "...", or if an index is out of range;
 * with SHAPE if a mask does not fit, and with DTYPE if indices have another dtype. */
TREK_API trek_var *trek_index(trek_var *x, const trek_subscript *subscripts, int count);
/* Returns a copy of x in which x[subscripts] = values was done, or += if `accumulate` is true. If several values go to one
 * position, += adds all of them; otherwise one of them stays. values have x's dtype and broadcast. The call makes an i64 table of
 * x's shape. */
TREK_API trek_var *trek_index_assign(trek_var *x, const trek_subscript *subscripts, int count, trek_var *values, bool accumulate);

/* -- replacing. These functions return a copy of x in which one part is replaced by source, which has that part's shape and x's
 *    dtype; otherwise they fail with SHAPE or DTYPE. -- */
/* Replaces the slice at `index` along dim, which trek_select returns. */
TREK_API trek_var *trek_select_scatter(trek_var *x, trek_var *source, int dim, int64_t index);
/* Replaces the elements start:stop:step along dim, which trek_slice returns. */
TREK_API trek_var *trek_slice_scatter(trek_var *x, trek_var *source, int dim, int64_t start, int64_t stop, int64_t step);
/* Replaces the diagonal that trek_diagonal returns. */
TREK_API trek_var *trek_diagonal_scatter(trek_var *x, trek_var *source, int64_t offset, int dim1, int dim2);
/* Reduces whole slices of source into x, as trek_scatter_reduce does with elements. index is one-dimensional, of any integer
 * dtype and not negative; it says for each slice of source along dim to which slice of x it goes. The other dimensions of source
 * have x's sizes. */
TREK_API trek_var *trek_index_reduce(trek_var *x, int dim, trek_var *index, trek_var *source, trek_reduction reduction,
                                     bool include_self);

TREK_END

#endif
