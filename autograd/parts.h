/* SPDX-License-Identifier: Apache-2.0 */
/* Parts of a tensor: cut out, chosen by subscripts, replaced by others. Names and defaults are PyTorch's; NULL in, NULL out. Part
 * of autograd/ops.h. */
#ifndef TREK_AUTOGRAD_PARTS_H
#define TREK_AUTOGRAD_PARTS_H

#include "autograd/var.h"
#include "tensor/op_opts.h"

TREK_BEGIN

/* -- cut: views, written to parts as trek_split writes them -- */
/* Parts of these sizes along dim, whose sum is the dimension (ARGUMENT); torch.split by a list. Returns count, or -1. */
TREK_API int trek_split_with_sizes(trek_var *x, const int64_t *sizes, int count, int dim, trek_var **parts, int capacity);
/* So many parts, the first of which are one longer where the dimension is no multiple; torch.tensor_split by a number. Returns
 * `sections`, or -1. */
TREK_API int trek_split_sections(trek_var *x, int sections, int dim, trek_var **parts, int capacity);
/* The parts before, between and behind `count` places, as Python slices: negative ones are from the end, those beyond an end are
 * the end; torch.tensor_split by a list. Returns count + 1, or -1. */
TREK_API int trek_split_indices(trek_var *x, const int64_t *indices, int count, int dim, trek_var **parts, int capacity);
/* Every step-th element along dim, from start on and before stop, as Python's x[start:stop:step]. Negative places are
 * from the end, those beyond an end (INT64_MAX) are the end. A view with a step of 1, else a copy. ARGUMENT: a step below 1
 * (trek_flip turns). */
TREK_API trek_var *trek_slice(trek_var *x, int dim, int64_t start, int64_t stop, int64_t step);
/* Windows of `size` elements along dim, `step` apart: dim counts them, a last dimension holds them, as torch.Tensor.unfold. A
 * view where they lie side by side (step = size), else a copy. ARGUMENT: a size beyond the dimension, a step below 1. */
TREK_API trek_var *trek_unfold_dim(trek_var *x, int dim, int64_t size, int64_t step);
/* x without those of these dimensions that have one element; trek_dims_none(): without all that have. */
TREK_API trek_var *trek_squeeze_dims(trek_var *x, trek_dims_list dims);

/* -- subscripts -- */
/* What stands between commas in x[...]; made by the functions below. */
typedef struct trek_subscript {
    int kind;
    int64_t start, stop, step;
    trek_var *of;
} trek_subscript;

/* i: one element, whose dimension goes; start:stop:step, as of trek_slice; ":"; None, a new dimension of one element; "...": as
 * many ":" as are missing; integers (i64, i32; negative ones from the end), or a mask (bool) for as many dimensions as it has. */
TREK_API trek_subscript trek_subscript_at(int64_t index);
TREK_API trek_subscript trek_subscript_range(int64_t start, int64_t stop, int64_t step);
TREK_API trek_subscript trek_subscript_all(void);
TREK_API trek_subscript trek_subscript_new(void);
TREK_API trek_subscript trek_subscript_rest(void);
TREK_API trek_subscript trek_subscript_by(trek_var *indices_or_mask);

/* x[subscripts], as PyTorch: dimensions that are not named stay. Without indices, masks and steps a view. Indices broadcast with
 * each other (a mask is the indices of what is set in it, for which a GPU is waited for), and their dimensions stand where they
 * stood, or, with others between them, in front. ARGUMENT: too many subscripts, a place out of range, two "..."; SHAPE: a mask
 * that does not fit; DTYPE: other indices. */
TREK_API trek_var *trek_index(trek_var *x, const trek_subscript *subscripts, int count);
/* x with x[subscripts] = values (accumulate: +=, each of several for one place; else one of them stays). values: x's dtype,
 * broadcast. A table of i64 of x's shape is made. */
TREK_API trek_var *trek_index_assign(trek_var *x, const trek_subscript *subscripts, int count, trek_var *values, bool accumulate);

/* -- x with a part replaced by source, which has the part's shape (SHAPE) and x's dtype (DTYPE); a copy -- */
TREK_API trek_var *trek_select_scatter(trek_var *x, trek_var *source, int dim, int64_t index);
TREK_API trek_var *trek_slice_scatter(trek_var *x, trek_var *source, int dim, int64_t start, int64_t stop, int64_t step);
TREK_API trek_var *trek_diagonal_scatter(trek_var *x, trek_var *source, int64_t offset, int dim1, int dim2);
/* trek_scatter_reduce of whole slices: source has x's shape, but along dim as many slices as index (1-D, any integer dtype, not
 * negative) says where each goes. */
TREK_API trek_var *trek_index_reduce(trek_var *x, trek_var *index, trek_var *source, int dim, trek_scatter_reduction reduction,
                                     bool include_self);

TREK_END

#endif
