/* SPDX-License-Identifier: Apache-2.0 */
/* The signatures that rows of ops.def name. Each defines the C parameters, over tensors or variables (T), the inputs,
 * and where the numbers go in trek_attrs. attrs is filled by these statements before infer sees the call; `a` is its
 * name. */
#ifndef TREK_TENSOR_OP_SIGNATURES_H
#define TREK_TENSOR_OP_SIGNATURES_H

#include "tensor/op_opts.h"

#define TREK_IN(T, ...)                                                        \
    T *in_[] = { __VA_ARGS__ };                                                \
    T **in = in_;                                                              \
    const int n_in = (int)(sizeof in_ / sizeof in_[0])
#define TREK_NO_ATTRS (a = NULL) /* the tape need not store anything */

#define TREK_PARAMS_UNARY(T) T *x
#define TREK_INPUTS_UNARY(T) TREK_IN(T, x)
#define TREK_ATTRS_UNARY TREK_NO_ATTRS

#define TREK_PARAMS_BINARY(T) T *x, T *y
#define TREK_INPUTS_BINARY(T) TREK_IN(T, x, y)
#define TREK_ATTRS_BINARY TREK_NO_ATTRS

#define TREK_PARAMS_TERNARY(T) T *x, T *y, T *z
#define TREK_INPUTS_TERNARY(T) TREK_IN(T, x, y, z)
#define TREK_ATTRS_TERNARY TREK_NO_ATTRS

#define TREK_PARAMS_TERNARY_SCALAR(T) T *x, T *y, T *z, double value
#define TREK_INPUTS_TERNARY_SCALAR(T) TREK_IN(T, x, y, z)
#define TREK_ATTRS_TERNARY_SCALAR a->f[0] = value

/* f[0] = value */
#define TREK_PARAMS_SCALAR(T) T *x, double value
#define TREK_INPUTS_SCALAR(T) TREK_IN(T, x)
#define TREK_ATTRS_SCALAR a->f[0] = value

/* f[0], f[1] */
#define TREK_PARAMS_SCALAR2(T) T *x, double first, double second
#define TREK_INPUTS_SCALAR2(T) TREK_IN(T, x)
#define TREK_ATTRS_SCALAR2 (a->f[0] = first, a->f[1] = second)

#define TREK_PARAMS_SCALAR3(T) T *x, double first, double second, double third
#define TREK_INPUTS_SCALAR3(T) TREK_IN(T, x)
#define TREK_ATTRS_SCALAR3 (a->f[0] = first, a->f[1] = second, a->f[2] = third)

/* binary with f[0] = value: smooth_l1's beta, softplus_backward's beta ... */
#define TREK_PARAMS_BINARY_SCALAR(T) T *x, T *y, double value
#define TREK_INPUTS_BINARY_SCALAR(T) TREK_IN(T, x, y)
#define TREK_ATTRS_BINARY_SCALAR a->f[0] = value

#define TREK_PARAMS_BINARY_SCALAR2(T) T *x, T *y, double first, double second
#define TREK_INPUTS_BINARY_SCALAR2(T) TREK_IN(T, x, y)
#define TREK_ATTRS_BINARY_SCALAR2 (a->f[0] = first, a->f[1] = second)

/* unary with i[0] = flag (gelu: 1 = tanh approximation) */
#define TREK_PARAMS_UNARY_FLAG(T) T *x, bool flag
#define TREK_INPUTS_UNARY_FLAG(T) TREK_IN(T, x)
#define TREK_ATTRS_UNARY_FLAG a->i[0] = flag
#define TREK_PARAMS_BINARY_FLAG(T) T *x, T *y, bool flag
#define TREK_INPUTS_BINARY_FLAG(T) TREK_IN(T, x, y)
#define TREK_ATTRS_BINARY_FLAG a->i[0] = flag

/* Reductions. Given: i[0] = number of dims (0: all), i[1..8] = dims, i[9] = keepdim.
 * After infer: i[0] = bit mask of reduced dimensions of the input; i[9] = keepdim. */
#define TREK_PARAMS_REDUCE(T) T *x, trek_dims_list dims, bool keepdim
#define TREK_INPUTS_REDUCE(T) TREK_IN(T, x)
#define TREK_ATTRS_REDUCE trek_attrs_reduce(a, &dims, keepdim)
/* f[0] = correction (var: 1 is Bessel's) */
#define TREK_PARAMS_REDUCE_SCALAR(T) T *x, trek_dims_list dims, bool keepdim, double value
#define TREK_INPUTS_REDUCE_SCALAR(T) TREK_IN(T, x)
#define TREK_ATTRS_REDUCE_SCALAR (trek_attrs_reduce(a, &dims, keepdim), a->f[0] = value)

/* i[0] = dim (after infer 0..ndim-1) */
#define TREK_PARAMS_DIM(T) T *x, int dim
#define TREK_INPUTS_DIM(T) TREK_IN(T, x)
#define TREK_ATTRS_DIM a->i[0] = dim
#define TREK_PARAMS_BINARY_DIM(T) T *x, T *y, int dim
#define TREK_INPUTS_BINARY_DIM(T) TREK_IN(T, x, y)
#define TREK_ATTRS_BINARY_DIM a->i[0] = dim
#define TREK_PARAMS_TERNARY_DIM(T) T *x, T *y, T *z, int dim
#define TREK_INPUTS_TERNARY_DIM(T) TREK_IN(T, x, y, z)
#define TREK_ATTRS_TERNARY_DIM a->i[0] = dim

/* i[0] = dim, i[1] = flag (sort: descending) */
#define TREK_PARAMS_DIM_FLAG(T) T *x, int dim, bool flag
#define TREK_INPUTS_DIM_FLAG(T) TREK_IN(T, x)
#define TREK_ATTRS_DIM_FLAG (a->i[0] = dim, a->i[1] = flag)
/* i[0] = dim, i[1] = count; i[2]: topk's largest; trek_order_choice of kthvalue, which alone looks at the count */
#define TREK_PARAMS_DIM_COUNT(T) T *x, int dim, int64_t count, int which
#define TREK_INPUTS_DIM_COUNT(T) TREK_IN(T, x)
#define TREK_ATTRS_DIM_COUNT (a->i[0] = dim, a->i[1] = count, a->i[2] = which)
/* i[0] = dim, i[1] = trek_scatter_kind */
#define TREK_PARAMS_TERNARY_DIM_NUMBER(T) T *x, T *y, T *z, int dim, int kind
#define TREK_INPUTS_TERNARY_DIM_NUMBER(T) TREK_IN(T, x, y, z)
#define TREK_ATTRS_TERNARY_DIM_NUMBER (a->i[0] = dim, a->i[1] = kind)
/* i[0] = offset, i[1], i[2] = dims */
#define TREK_PARAMS_DIAGONAL(T) T *x, int64_t offset, int dim1, int dim2
#define TREK_INPUTS_DIAGONAL(T) TREK_IN(T, x)
#define TREK_ATTRS_DIAGONAL (a->i[0] = offset, a->i[1] = dim1, a->i[2] = dim2)

/* i[0], i[1] = dims to exchange */
#define TREK_PARAMS_DIM2(T) T *x, int first, int second
#define TREK_INPUTS_DIM2(T) TREK_IN(T, x)
#define TREK_ATTRS_DIM2 (a->i[0] = first, a->i[1] = second)

/* i[0] = dim, i[1] = start, i[2] = length (narrow); i[1] = index (select) */
#define TREK_PARAMS_DIM_RANGE(T) T *x, int dim, int64_t start, int64_t length
#define TREK_INPUTS_DIM_RANGE(T) TREK_IN(T, x)
#define TREK_ATTRS_DIM_RANGE (a->i[0] = dim, a->i[1] = start, a->i[2] = length)
#define TREK_PARAMS_DIM_INDEX(T) T *x, int dim, int64_t index
#define TREK_INPUTS_DIM_INDEX(T) TREK_IN(T, x)
#define TREK_ATTRS_DIM_INDEX (a->i[0] = dim, a->i[1] = index)

/* i[0] = count, i[1..8] = sizes or dims */
#define TREK_PARAMS_SHAPE(T) T *x, trek_shape shape
#define TREK_INPUTS_SHAPE(T) TREK_IN(T, x)
#define TREK_ATTRS_SHAPE trek_attrs_shape(a, &shape)
/* two inputs and a shape: a backward kernel whose output has that shape */
#define TREK_PARAMS_BINARY_SHAPE(T) T *x, T *y, trek_shape shape
#define TREK_INPUTS_BINARY_SHAPE(T) TREK_IN(T, x, y)
#define TREK_ATTRS_BINARY_SHAPE trek_attrs_shape(a, &shape)

/* a list of inputs, i[0] = dim */
#define TREK_PARAMS_LIST(T) T *const *list, int count, int dim
#define TREK_INPUTS_LIST(T) T **in = (T **)list; const int n_in = count
#define TREK_ATTRS_LIST a->i[0] = dim

/* i[0] = trek_dtype */
#define TREK_PARAMS_DTYPE(T) T *x, trek_dtype dtype
#define TREK_INPUTS_DTYPE(T) TREK_IN(T, x)
#define TREK_ATTRS_DTYPE a->i[0] = (int64_t)dtype

/* i[0] = number (one_hot: classes) */
#define TREK_PARAMS_NUMBER(T) T *x, int64_t number
#define TREK_INPUTS_NUMBER(T) TREK_IN(T, x)
#define TREK_ATTRS_NUMBER a->i[0] = number
/* embedding: weight [n, d], indices; i[0] = padding_idx (-1: none), i[1] = gradients are divided by how often their
 * row occurs */
#define TREK_PARAMS_EMBEDDING(T) T *x, T *y, int64_t number, bool by_frequency
#define TREK_INPUTS_EMBEDDING(T) TREK_IN(T, x, y)
#define TREK_ATTRS_EMBEDDING (a->i[0] = number, a->i[1] = by_frequency)
/* embedding_backward: grad, indices, bags or NULL, factors or NULL; i[0] = padding_idx, i[1] = rows of the weight.
 * Position k adds factors[k] (NULL: 1) times row bags[k] of grad (NULL: row k) to row indices[k]; positions whose bag
 * is not a row of grad add nothing. bags and factors have the shape of indices; bags are i64, factors f32 (f64 for
 * f64 gradients). */
#define TREK_PARAMS_EMBEDDING_GRAD(T) T *x, T *y, T *bags, T *factors, int64_t number, int64_t second
#define TREK_INPUTS_EMBEDDING_GRAD(T) TREK_IN(T, x, y, bags, factors)
#define TREK_ATTRS_EMBEDDING_GRAD (a->i[0] = number, a->i[1] = second)
/* embedding_bag: weight [n, d], indices [m], offsets [bags + 1] (i64, never decreasing, from 0 to at most m: bag b
 * has the positions from offsets[b] up to offsets[b + 1]), factors [m] or NULL (only sums); i[0] = padding_idx (-1:
 * none), i[1] = trek_reduction, i[2] as embedding's i[1]. outputs: y [bags, d]; row [bags, d] i64: which row of the
 * weight is the largest, -1 in an empty bag ([0, d] except for maxima). */
#define TREK_PARAMS_EMBEDDING_BAG(T)                                                                                             \
    T *weight, T *indices, T *offsets, T *factors, int64_t padding, int mode, bool by_frequency
#define TREK_INPUTS_EMBEDDING_BAG(T) TREK_IN(T, weight, indices, offsets, factors)
#define TREK_ATTRS_EMBEDDING_BAG (a->i[0] = padding, a->i[1] = mode, a->i[2] = by_frequency)

/* rotary: x [..., D], table [..., R], R even and at most D, its other dimensions broadcast to x's: cosines, then
 * sines, of R / 2 angles; f64 for f64 x, otherwise f32. i[0] = pairs are neighbours instead of halves; i[1] = rotated
 * back. Elements after R do not change. */
#define TREK_PARAMS_ROTARY(T) T *x, T *table, bool neighbours, bool back
#define TREK_INPUTS_ROTARY(T) TREK_IN(T, x, table)
#define TREK_ATTRS_ROTARY (a->i[0] = neighbours, a->i[1] = back)

/* linear: x [..., in], weight [out, in], bias [out] or NULL; i[0] = trek_activation */
#define TREK_PARAMS_LINEAR(T) T *x, T *weight, T *bias, int activation
#define TREK_INPUTS_LINEAR(T) TREK_IN(T, x, weight, bias)
#define TREK_ATTRS_LINEAR a->i[0] = activation

/* fp8_quantise: x [..., C], record [roles, 1 + H] i32 or NULL: bits of magnitudes, of the current step and of H past
 * steps (written with ROLL and OBSERVE). i[0] = format, i[1] = role (a row of the record), i[2] = flags, i[3] =
 * margin. The scale follows from past steps or, if there are none, from the tensor's own magnitude. outputs: codes
 * [R, C], [C, R] (with TURNED), [1] f32: the inverse of the scale */
#define TREK_PARAMS_FP8_QUANTISE(T) T *x, T *record, int format, int role, int flags, int margin
#define TREK_INPUTS_FP8_QUANTISE(T) TREK_IN(T, x, record)
#define TREK_ATTRS_FP8_QUANTISE (a->i[0] = format, a->i[1] = role, a->i[2] = flags, a->i[3] = margin)
/* fp8_product: codes x [M, K], y [N, K], their scales from fp8_quantise, bias [N] of the result's dtype or NULL.
 * i[0], i[1] = formats, i[2] = dtype of the result [M, N]: BF16 or F32. Sums are f32. */
#define TREK_PARAMS_FP8_PRODUCT(T) T *x, T *y, T *x_scales, T *y_scales, T *bias, int x_format, int y_format, trek_dtype dtype
#define TREK_INPUTS_FP8_PRODUCT(T) TREK_IN(T, x, y, x_scales, y_scales, bias)
#define TREK_ATTRS_FP8_PRODUCT (a->i[0] = x_format, a->i[1] = y_format, a->i[2] = dtype)

/* conv2d: x [N, C, H, W], weight [O, C/groups, kh, kw], bias [O] or NULL. i[0..1] stride, i[2..3] padding, i[4..5]
 * dilation (h, w each), i[6] groups, i[7] = trek_activation: none or ReLU. infer stores in i[11] which inputs are
 * channels last (bits 0: x, 1: weight); their gradients are, too */
#define TREK_PARAMS_CONV(T) T *x, T *weight, T *bias, const trek_conv_opts *opts, int activation
#define TREK_INPUTS_CONV(T) TREK_IN(T, x, weight, bias)
#define TREK_ATTRS_CONV (trek_attrs_conv(a, opts), a->i[7] = activation)
/* conv_transpose2d: x [N, C, H, W], weight [C, O/groups, kh, kw], bias [O] or NULL; conv numbers in i[0..6], i[7..8]
 * output padding, i[9..10] requested size of the result, 0: none. infer stores the output padding that gives this
 * size; i[11] as above */
#define TREK_PARAMS_CONV_TRANSPOSE(T) T *x, T *weight, T *bias, const trek_conv_transpose_opts *opts
#define TREK_INPUTS_CONV_TRANSPOSE(T) TREK_IN(T, x, weight, bias)
#define TREK_ATTRS_CONV_TRANSPOSE trek_attrs_conv_transpose(a, opts)
/* conv2d's gradients: conv numbers in i[0..6], sizes of the 4-D result in i[7..10], i[11] as above */
#define TREK_PARAMS_CONV_GRAD(T) T *x, T *y, const trek_attrs *conv, trek_shape shape
#define TREK_INPUTS_CONV_GRAD(T) TREK_IN(T, x, y)
#define TREK_ATTRS_CONV_GRAD trek_attrs_conv_grad(a, conv, &shape)

/* pooling: i[0..1] kernel, i[2..3] stride, i[4..5] padding, i[6..7] dilation, i[8] ceil_mode, i[9] count_include_pad;
 * f[0] the divisor of averages, or 0 */
#define TREK_PARAMS_POOL(T) T *x, const trek_pool_opts *opts
#define TREK_INPUTS_POOL(T) TREK_IN(T, x)
#define TREK_ATTRS_POOL trek_attrs_pool(a, opts)
/* avg_pool2d_backward: pool numbers as above; i[10], i[11] = H, W of the input */
#define TREK_PARAMS_POOL_GRAD(T) T *x, const trek_attrs *pool, int64_t height, int64_t width
#define TREK_INPUTS_POOL_GRAD(T) TREK_IN(T, x)
#define TREK_ATTRS_POOL_GRAD (*a = *pool, a->i[10] = height, a->i[11] = width)
/* two numbers: i[0], i[1] (adaptive pooling: output H, W) */
#define TREK_PARAMS_NUMBER2(T) T *x, int64_t first, int64_t second
#define TREK_INPUTS_NUMBER2(T) TREK_IN(T, x)
#define TREK_ATTRS_NUMBER2 (a->i[0] = first, a->i[1] = second)
/* unfold (im2col): kernel i[7..8] and conv numbers i[0..5]; fold adds H, W in i[9..10] */
#define TREK_PARAMS_UNFOLD(T) T *x, const trek_attrs *conv, int64_t kernel_h, int64_t kernel_w
#define TREK_INPUTS_UNFOLD(T) TREK_IN(T, x)
#define TREK_ATTRS_UNFOLD (*a = *conv, a->i[7] = kernel_h, a->i[8] = kernel_w)
#define TREK_PARAMS_FOLD(T) T *x, const trek_attrs *unfold, int64_t height, int64_t width
#define TREK_INPUTS_FOLD(T) TREK_IN(T, x)
#define TREK_ATTRS_FOLD (*a = *unfold, a->i[9] = height, a->i[10] = width)

/* resample: i[0] = dim, i[1] = size of the result along it, i[2] = trek_resample_kind, i[3] = align_corners; f[0] =
 * elements of the result for one of x, or 0: from the sizes */
#define TREK_PARAMS_RESAMPLE(T) T *x, const trek_attrs *numbers
#define TREK_INPUTS_RESAMPLE(T) TREK_IN(T, x)
#define TREK_ATTRS_RESAMPLE *a = *numbers
/* grid_sample: x [N, C, H, W], grid [N, H', W', 2], or [N, C, D, H, W] and [N, D', H', W', 3]; i[0] = trek_grid_mode,
 * i[1] = trek_grid_padding, i[2] = align_corners */
#define TREK_PARAMS_GRID_SAMPLE(T) T *x, T *grid, const trek_attrs *numbers
#define TREK_INPUTS_GRID_SAMPLE(T) TREK_IN(T, x, grid)
#define TREK_ATTRS_GRID_SAMPLE *a = *numbers
/* its backward: dy, x, grid; i[3], bits: which of dx and dgrid is omitted (has size [0]) */
#define TREK_PARAMS_GRID_SAMPLE_GRAD(T) T *grad, T *x, T *grid, const trek_attrs *numbers
#define TREK_INPUTS_GRID_SAMPLE_GRAD(T) TREK_IN(T, grad, x, grid)
#define TREK_ATTRS_GRID_SAMPLE_GRAD *a = *numbers

/* layer_norm: x, weight or NULL, bias or NULL; i[0] = number of normalised (last) dims, f[0] = eps. outputs: y, mean
 * [rows], rstd [rows] (f32 for 16-bit x, otherwise x's dtype) */
#define TREK_PARAMS_LAYER_NORM(T) T *x, T *weight, T *bias, int normalized_dims, double eps
#define TREK_INPUTS_LAYER_NORM(T) TREK_IN(T, x, weight, bias)
#define TREK_ATTRS_LAYER_NORM (a->i[0] = normalized_dims, a->f[0] = eps)
/* its backward: grad, x, mean, rstd, weight or NULL -> dx, dweight, dbias */
#define TREK_PARAMS_LAYER_NORM_GRAD(T) T *grad, T *x, T *mean, T *rstd, T *weight, int normalized_dims
#define TREK_INPUTS_LAYER_NORM_GRAD(T) TREK_IN(T, grad, x, mean, rstd, weight)
#define TREK_ATTRS_LAYER_NORM_GRAD a->i[0] = normalized_dims

/* add_layer_norm: x, branch (of x's shape), weight or NULL, bias or NULL; numbers as layer_norm's.
 * outputs: y = layer_norm(residual), residual = x + branch, mean [rows], rstd [rows] */
#define TREK_PARAMS_ADD_LAYER_NORM(T) T *x, T *branch, T *weight, T *bias, int normalized_dims, double eps
#define TREK_INPUTS_ADD_LAYER_NORM(T) TREK_IN(T, x, branch, weight, bias)
#define TREK_ATTRS_ADD_LAYER_NORM (a->i[0] = normalized_dims, a->f[0] = eps)
/* its backward: grad of y, grad of residual or NULL, residual, mean, rstd, weight or NULL -> d residual (which is dx
 * and d branch: that of the norm plus the second gradient), dweight (only with a weight), dbias */
#define TREK_PARAMS_ADD_LAYER_NORM_GRAD(T) T *grad, T *stream, T *residual, T *mean, T *rstd, T *weight, int normalized_dims
#define TREK_INPUTS_ADD_LAYER_NORM_GRAD(T) TREK_IN(T, grad, stream, residual, mean, rstd, weight)
#define TREK_ATTRS_ADD_LAYER_NORM_GRAD a->i[0] = normalized_dims

/* rms_norm: x, weight or NULL; i[0] = number of normalised (last) dims, f[0] = eps. outputs: y = x rstd weight, rstd
 * [rows] = 1 / sqrt(mean(x^2) + eps) (f32 for 16-bit x, otherwise x's dtype) */
#define TREK_PARAMS_RMS_NORM(T) T *x, T *weight, int normalized_dims, double eps
#define TREK_INPUTS_RMS_NORM(T) TREK_IN(T, x, weight)
#define TREK_ATTRS_RMS_NORM (a->i[0] = normalized_dims, a->f[0] = eps)
/* its backward: grad, x, rstd, weight or NULL -> dx, dweight (only with a weight) */
#define TREK_PARAMS_RMS_NORM_GRAD(T) T *grad, T *x, T *rstd, T *weight, int normalized_dims
#define TREK_INPUTS_RMS_NORM_GRAD(T) TREK_IN(T, grad, x, rstd, weight)
#define TREK_ATTRS_RMS_NORM_GRAD a->i[0] = normalized_dims

/* batch_norm: x [N, C, ...], weight, bias [C] or NULL, running mean, running var [C] or NULL (updated in training).
 * i[0] = training, f[0] = momentum, f[1] = eps. outputs: y, mean [C], rstd [C] */
#define TREK_PARAMS_BATCH_NORM(T)                                                                                                \
    T *x, T *weight, T *bias, T *running_mean, T *running_var, bool training, double momentum, double eps
#define TREK_INPUTS_BATCH_NORM(T) TREK_IN(T, x, weight, bias, running_mean, running_var)
#define TREK_ATTRS_BATCH_NORM (a->i[0] = training, a->f[0] = momentum, a->f[1] = eps)
#define TREK_PARAMS_BATCH_NORM_GRAD(T) T *grad, T *x, T *mean, T *rstd, T *weight, bool training
#define TREK_INPUTS_BATCH_NORM_GRAD(T) TREK_IN(T, grad, x, mean, rstd, weight)
#define TREK_ATTRS_BATCH_NORM_GRAD a->i[0] = training

/* group_norm: x [N, C, ...], weight, bias [C] or NULL; i[0] = groups, which divides C, f[0] = eps.
 * outputs: y, mean [N groups], rstd [N groups] */
#define TREK_PARAMS_GROUP_NORM(T) T *x, T *weight, T *bias, int64_t groups, double eps
#define TREK_INPUTS_GROUP_NORM(T) TREK_IN(T, x, weight, bias)
#define TREK_ATTRS_GROUP_NORM (a->i[0] = groups, a->f[0] = eps)
#define TREK_PARAMS_GROUP_NORM_GRAD(T) T *grad, T *x, T *mean, T *rstd, T *weight, int64_t groups
#define TREK_INPUTS_GROUP_NORM_GRAD(T) TREK_IN(T, grad, x, mean, rstd, weight)
#define TREK_ATTRS_GROUP_NORM_GRAD a->i[0] = groups

/* dropout: f[0] = p; i[0] = seed, i[1] = step, i[2] = draw, i[3] = position of element 0. Element e is kept if the
 * Philox number of position i[3] + e (row-major) is >= p; kept elements are divided by 1 - p. */
#define TREK_PARAMS_DROPOUT(T) T *x, double p, const trek_attrs *draw
#define TREK_INPUTS_DROPOUT(T) TREK_IN(T, x)
#define TREK_ATTRS_DROPOUT (*a = *draw, a->f[0] = p)

/* attention: q [B, H, T, D], k and v [B, G, S, D] with H a multiple of G (head h reads head h / (H / G) of k and v),
 * mask or NULL: broadcastable to [B, H, T, S]; bool (true: visible) or floating (added to the scaled scores). i[0..3]
 * a draw as for dropout, where position 0 is element 0 of [B, H, T, S]; i[4] = causal: query i sees keys 0..i; f[0] =
 * p of dropout on the probabilities (0: the draw is ignored), f[1] = scale (0: 1 / sqrt(D), which infer stores).
 * outputs: y [B, H, T, D], stored as [B, T, H, D] unless given; logsumexp [B, H, T] of the scaled, masked scores (f32
 * for 16-bit q, otherwise q's dtype). For a query that sees no key: y 0, logsumexp -infinity, gradients 0. */
#define TREK_PARAMS_ATTENTION(T) T *q, T *k, T *v, T *mask, const trek_attrs *numbers
#define TREK_INPUTS_ATTENTION(T) TREK_IN(T, q, k, v, mask)
#define TREK_ATTRS_ATTENTION *a = *numbers
/* its backward: grad, q, k, v, y, logsumexp, mask or NULL -> dq, dk, dv (contiguous) */
#define TREK_PARAMS_ATTENTION_GRAD(T) T *grad, T *q, T *k, T *v, T *y, T *lse, T *mask, const trek_attrs *forward
#define TREK_INPUTS_ATTENTION_GRAD(T) TREK_IN(T, grad, q, k, v, y, lse, mask)
#define TREK_ATTRS_ATTENTION_GRAD *a = *forward

/* pointwise_loss: x, target, which broadcast. i[0] = trek_pointwise_loss, f[0] = beta of the smooth one.
 * Output: each element's loss, f32 for 16-bit inputs. */
#define TREK_PARAMS_POINTWISE_LOSS(T) T *x, T *target, int kind, double beta
#define TREK_INPUTS_POINTWISE_LOSS(T) TREK_IN(T, x, target)
#define TREK_ATTRS_POINTWISE_LOSS (a->i[0] = kind, a->f[0] = beta)
/* its backward: grad (as the loss), x, target -> the gradient of x before it is summed to x's shape */
#define TREK_PARAMS_POINTWISE_LOSS_GRAD(T) T *grad, T *x, T *target, const trek_attrs *forward
#define TREK_INPUTS_POINTWISE_LOSS_GRAD(T) TREK_IN(T, grad, x, target)
#define TREK_ATTRS_POINTWISE_LOSS_GRAD *a = *forward

/* cross_entropy: logits [R, C], labels [R] (any integer dtype), class weights [C] or NULL.
 * i[0] = ignore_index, i[1] = trek_reduction, f[0] = label smoothing.
 * outputs: loss (scalar, or [R]), logsumexp [R], total weight (scalar): the loss's denominator.
 * A mean over no rows is 0. */
#define TREK_PARAMS_CROSS_ENTROPY(T) T *logits, T *labels, T *weight, int64_t ignore_index, int reduction, double smoothing
#define TREK_INPUTS_CROSS_ENTROPY(T) TREK_IN(T, logits, labels, weight)
#define TREK_ATTRS_CROSS_ENTROPY (a->i[0] = ignore_index, a->i[1] = reduction, a->f[0] = smoothing)
/* its backward: grad (scalar or [R]), logits, labels, weight, logsumexp, total weight -> d logits */
#define TREK_PARAMS_CROSS_ENTROPY_GRAD(T) T *grad, T *logits, T *labels, T *weight, T *lse, T *total, const trek_attrs *forward
#define TREK_INPUTS_CROSS_ENTROPY_GRAD(T) TREK_IN(T, grad, logits, labels, weight, lse, total)
#define TREK_ATTRS_CROSS_ENTROPY_GRAD *a = *forward

/* linear_cross_entropy: cross entropy of logits x weight^T + bias. A backend decides how many logits exist at a time,
 * and whether those of 16-bit x are rounded to its dtype: on CUDA they are, on a CPU they are f32. x [R, D], weight
 * [C, D], bias [C] or NULL, labels [R] (any integer dtype); numbers as cross_entropy's. i[2] = gradients
 * (trek_head_gradients) to compute in forward, from the logits that exist then; only for a sum or mean. outputs: loss
 * (scalar, or [R]), logsumexp [R], total weight (scalar): the number of rows that count; all f32 for 16-bit x. With
 * gradients also kept, a vector: those of the losses' sum, times TREK_HEAD_UNIT, of x, weight and bias, as far as
 * they are requested, one after the other, in f32 (f64 for f64). */
#define TREK_PARAMS_LINEAR_CROSS_ENTROPY(T)                                                                                      \
    T *x, T *weight, T *bias, T *labels, int64_t ignore_index, int reduction, double smoothing, int gradients
#define TREK_INPUTS_LINEAR_CROSS_ENTROPY(T) TREK_IN(T, x, weight, bias, labels)
#define TREK_ATTRS_LINEAR_CROSS_ENTROPY (a->i[0] = ignore_index, a->i[1] = reduction, a->f[0] = smoothing, a->i[2] = gradients)
/* its backward: grad (scalar or [R]), x, weight, bias or NULL, labels, logsumexp, total weight, kept or NULL -> dx,
 * dweight, dbias (only with a bias). Without kept the logits are computed again. With kept: the gradients requested
 * there, dx [0, D] if it is not among them; dweight may be given in f32 for 16-bit x; i[3]: it is added to the values
 * of the given output. */
#define TREK_PARAMS_LINEAR_CROSS_ENTROPY_GRAD(T) \
    T *grad, T *x, T *weight, T *bias, T *labels, T *lse, T *total, T *kept, const trek_attrs *forward
#define TREK_INPUTS_LINEAR_CROSS_ENTROPY_GRAD(T) TREK_IN(T, grad, x, weight, bias, labels, lse, total, kept)
#define TREK_ATTRS_LINEAR_CROSS_ENTROPY_GRAD *a = *forward

/* lstm: gates [T, N, 4 H], the inputs' part of i, f, g and o before their functions (including biases), weight [4 H,
 * H], h0, c0 [N, H] or NULL (zeros), lengths [N] (any integer dtype, of 0..T) or NULL. i[0] = reverse: from each
 * row's last step to its first; i[1] = store what backward needs. outputs: y [T, N, H], 0 after a row's length; state
 * [2, N, H]: h and c after each row's last step; kept [T, N, 5 H]: i, f, g, o and c of each step (f32 for 16-bit
 * gates; [0, N, 5 H] without i[1]). */
#define TREK_PARAMS_LSTM(T) T *gates, T *weight, T *h0, T *c0, T *lengths, bool reverse, bool keep
#define TREK_INPUTS_LSTM(T) TREK_IN(T, gates, weight, h0, c0, lengths)
#define TREK_ATTRS_LSTM (a->i[0] = reverse, a->i[1] = keep)
/* its backward: weight, kept, grad of y or NULL, of the state or NULL, c0 or NULL, lengths or NULL
 * -> d gates, d state [2, N, H]: of h0 and c0 */
#define TREK_PARAMS_LSTM_GRAD(T) T *weight, T *kept, T *grad, T *grad_state, T *c0, T *lengths, const trek_attrs *forward
#define TREK_INPUTS_LSTM_GRAD(T) TREK_IN(T, weight, kept, grad, grad_state, c0, lengths)
#define TREK_ATTRS_LSTM_GRAD *a = *forward

/* gru: gates [T, N, 3 H], the inputs' part of r, z and n, weight [3 H, H] and bias [3 H] or NULL of the product with
 * h, h0 [N, H] or NULL (zeros), lengths and numbers as lstm's. outputs: y [T, N, H]; state [N, H]: h after each row's
 * last step; kept [T, N, 4 H]: r, z, n and the product's part of n (f32 for 16-bit gates; [0, N, 4 H] without i[1]). */
#define TREK_PARAMS_GRU(T) T *gates, T *weight, T *bias, T *h0, T *lengths, bool reverse, bool keep
#define TREK_INPUTS_GRU(T) TREK_IN(T, gates, weight, bias, h0, lengths)
#define TREK_ATTRS_GRU (a->i[0] = reverse, a->i[1] = keep)
/* its backward: weight, kept, y, grad of y or NULL, of the state or NULL, h0 or NULL, lengths or NULL
 * -> d gates, d product [T, N, 3 H], d h0 */
#define TREK_PARAMS_GRU_GRAD(T) T *weight, T *kept, T *y, T *grad, T *grad_state, T *h0, T *lengths, const trek_attrs *forward
#define TREK_INPUTS_GRU_GRAD(T) TREK_IN(T, weight, kept, y, grad, grad_state, h0, lengths)
#define TREK_ATTRS_GRU_GRAD *a = *forward

/* fills, into a given output: value; or the numbers of a distribution: f[0], f[1], and a draw as for dropout in
 * i[0..3] */
#define TREK_PARAMS_FILL(T) T *out, double value
#define TREK_INPUTS_FILL(T) TREK_IN(T, out) /* the given output, which trek_op_run takes as such */
#define TREK_ATTRS_FILL a->f[0] = value
#define TREK_PARAMS_RANDOM(T) T *out, double first, double second, const trek_attrs *draw
#define TREK_INPUTS_RANDOM(T) TREK_IN(T, out)
#define TREK_ATTRS_RANDOM (*a = *draw, a->f[0] = first, a->f[1] = second)

struct trek_attrs;
void trek_attrs_reduce(struct trek_attrs *a, const trek_dims_list *dims, bool keepdim);
void trek_attrs_shape(struct trek_attrs *a, const trek_shape *shape);
void trek_attrs_conv(struct trek_attrs *a, const trek_conv_opts *opts);
void trek_attrs_conv_transpose(struct trek_attrs *a, const trek_conv_transpose_opts *opts);
void trek_attrs_conv_grad(struct trek_attrs *a, const struct trek_attrs *conv, const trek_shape *shape);
void trek_attrs_pool(struct trek_attrs *a, const trek_pool_opts *opts);

#endif
