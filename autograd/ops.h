/* SPDX-License-Identifier: Apache-2.0 */
/* The differentiable ops. All take and give variables; results belong to the
 * innermost open scope; NULL in, NULL out. Names, broadcasting, promotion and
 * defaults are PyTorch's. Errors: SHAPE, DTYPE, DEVICE, SCOPE, MEMORY.
 *
 * Inputs on different CPUs (cpu:0 and cpu:1) are as on one; the result is on the calling rank's (cpu:0 outside ranks), if one
 * of them is, else on the first input's, and a leaf's gradient where the leaf is. Other devices do not mix (DEVICE).
 *
 * Dimensions may be negative (from the end). Lists of dimensions: trek_dims(0, -1);
 * trek_dims_none() means all of them in reductions, none in trek_flip.
 * Inputs of several dtypes are computed in the one they promote to (an integer beyond f16 is infinite there, a scalar too), and
 * gradients are rounded to an input's own dtype at the end. Gradients of 16-bit dtypes are computed in f32 where a formula
 * has several steps. */
#ifndef TREK_AUTOGRAD_OPS_H
#define TREK_AUTOGRAD_OPS_H

#include "autograd/embedding.h"
#include "autograd/losses.h"
#include "autograd/norms.h"
#include "autograd/parts.h"
#include "autograd/resample.h"
#include "autograd/spatial.h"
#include "autograd/special.h"
#include "autograd/statistics.h"
#include "autograd/take.h"
#include "autograd/pointwise.h"
#include "autograd/var.h"
#include "tensor/op_opts.h"

TREK_BEGIN

/* -- element-wise, any shape; integer inputs of the float functions give f32; on the CPU results keep the layout of their
 *    input -- */
TREK_API trek_var *trek_neg(trek_var *x);
TREK_API trek_var *trek_abs(trek_var *x);         /* derivative 0 at 0 */
TREK_API trek_var *trek_sign(trek_var *x);        /* of NaN 0, of bool a copy */
TREK_API trek_var *trek_exp(trek_var *x);
TREK_API trek_var *trek_expm1(trek_var *x);
TREK_API trek_var *trek_log(trek_var *x);
TREK_API trek_var *trek_log1p(trek_var *x);
TREK_API trek_var *trek_log2(trek_var *x);
TREK_API trek_var *trek_log10(trek_var *x);
TREK_API trek_var *trek_sqrt(trek_var *x);
TREK_API trek_var *trek_rsqrt(trek_var *x);
TREK_API trek_var *trek_reciprocal(trek_var *x);
TREK_API trek_var *trek_square(trek_var *x);      /* of bool: i64 */
TREK_API trek_var *trek_sin(trek_var *x);
TREK_API trek_var *trek_cos(trek_var *x);
TREK_API trek_var *trek_tan(trek_var *x);
TREK_API trek_var *trek_asin(trek_var *x);
TREK_API trek_var *trek_acos(trek_var *x);
TREK_API trek_var *trek_atan(trek_var *x);
TREK_API trek_var *trek_sinh(trek_var *x);
TREK_API trek_var *trek_cosh(trek_var *x);
TREK_API trek_var *trek_tanh(trek_var *x);
TREK_API trek_var *trek_sigmoid(trek_var *x);
TREK_API trek_var *trek_erf(trek_var *x);         /* second derivative 0 where x^2 overflows (PyTorch: NaN) */
TREK_API trek_var *trek_relu(trek_var *x);        /* passes NaN on; derivative 0 at 0 */
TREK_API trek_var *trek_gelu(trek_var *x); /* x Phi(x), exact (erf); at the infinities its limits, where PyTorch gives NaN */
TREK_API trek_var *trek_gelu_tanh(trek_var *x);   /* its tanh approximation */
TREK_API trek_var *trek_silu(trek_var *x);
TREK_API trek_var *trek_softplus(trek_var *x, double beta, double threshold);
    /* log(1 + exp(beta x)) / beta; x itself where beta x > threshold; second derivative 0 from there on */
TREK_API trek_var *trek_leaky_relu(trek_var *x, double negative_slope);
TREK_API trek_var *trek_elu(trek_var *x, double alpha);
    /* derivative 1 at NaN (PyTorch's depends on the element's place), second one 0 at 0 */
TREK_API trek_var *trek_floor(trek_var *x);
TREK_API trek_var *trek_ceil(trek_var *x);
TREK_API trek_var *trek_round(trek_var *x);       /* halves to even */
TREK_API trek_var *trek_trunc(trek_var *x);
TREK_API trek_var *trek_isnan(trek_var *x);       /* bool, as the next ones */
TREK_API trek_var *trek_isinf(trek_var *x);
TREK_API trek_var *trek_isfinite(trek_var *x);
TREK_API trek_var *trek_logical_not(trek_var *x);
/* Limits each element of x to [low, high]. The gradient passes where an element lies between the limits, and is 0 at a limit
 * and beyond; an infinite limit bounds nothing, so the gradient passes at that infinity, too (PyTorch: 0). */
TREK_API trek_var *trek_clamp(trek_var *x, double low, double high);
/* passes NaN on; infinities leave a side open; a bound that is no whole number, infinity too, makes integers f32; derivative 0 at
 * the bounds */

/* -- with a number; a fractional number makes an integer input f32; comparisons of integers are exact. ARGUMENT: whole
 * numbers beyond i64 beside integers; an exponent or a bound that x's dtype does not hold (1e38 in f16). -- */
TREK_API trek_var *trek_add_scalar(trek_var *x, double value);
TREK_API trek_var *trek_sub_scalar(trek_var *x, double value); /* DTYPE: bool, as in all differences */
TREK_API trek_var *trek_mul_scalar(trek_var *x, double value);
TREK_API trek_var *trek_div_scalar(trek_var *x, double value);
TREK_API trek_var *trek_pow_scalar(trek_var *x, double value);
    /* ARGUMENT: an integer to a negative whole power; exponents as in trek_pow */
TREK_API trek_var *trek_eq_scalar(trek_var *x, double value); /* bool, as the next ones */
TREK_API trek_var *trek_ne_scalar(trek_var *x, double value);
TREK_API trek_var *trek_lt_scalar(trek_var *x, double value);
TREK_API trek_var *trek_le_scalar(trek_var *x, double value);
TREK_API trek_var *trek_gt_scalar(trek_var *x, double value);
TREK_API trek_var *trek_ge_scalar(trek_var *x, double value);

/* -- two inputs, broadcast, promoted by PyTorch's table -- */
TREK_API trek_var *trek_add(trek_var *x, trek_var *y);
TREK_API trek_var *trek_sub(trek_var *x, trek_var *y);     /* DTYPE: bool */
TREK_API trek_var *trek_mul(trek_var *x, trek_var *y);
TREK_API trek_var *trek_div(trek_var *x, trek_var *y);     /* integers give f32 */
TREK_API trek_var *trek_pow(trek_var *x, trek_var *y);
/* derivatives by x 0 where y is 0, by y 0 where x is 0 and y >= 0; beyond 2^24 f32 has even exponents only, so derivatives of
 * negative x may have the other sign */
TREK_API trek_var *trek_maximum(trek_var *x, trek_var *y); /* NaN wins; equal: half the gradient each; NaN: all of it to both */
TREK_API trek_var *trek_minimum(trek_var *x, trek_var *y);
TREK_API trek_var *trek_atan2(trek_var *x, trek_var *y);
/* atan(x / y) in the right quadrant; derivatives 0 at (0, 0), of integers as numbers (PyTorch's -x and squares of them wrap) */
TREK_API trek_var *trek_remainder(trek_var *x, trek_var *y);
    /* sign of y; by zero: NaN, or ARGUMENT for integers; exact, also where x / y overflows (PyTorch: NaN) */
TREK_API trek_var *trek_eq(trek_var *x, trek_var *y);      /* bool, as the next ones */
TREK_API trek_var *trek_ne(trek_var *x, trek_var *y);
TREK_API trek_var *trek_lt(trek_var *x, trek_var *y);
TREK_API trek_var *trek_le(trek_var *x, trek_var *y);
TREK_API trek_var *trek_gt(trek_var *x, trek_var *y);
TREK_API trek_var *trek_ge(trek_var *x, trek_var *y);
TREK_API trek_var *trek_logical_and(trek_var *x, trek_var *y);
TREK_API trek_var *trek_logical_or(trek_var *x, trek_var *y);
TREK_API trek_var *trek_logical_xor(trek_var *x, trek_var *y);
TREK_API trek_var *trek_where(trek_var *condition, trek_var *x, trek_var *y); /* condition: bool */
TREK_API trek_var *trek_masked_fill(trek_var *x, trek_var *mask, double value); /* value as trek_fill_'s */

/* -- in place, under no_grad only (STATE); x keeps shape and dtype; return x. Computed in the dtype that both promote to,
 * then rounded into x: DTYPE where that is floating and x integer, or not bool and x bool. ARGUMENT where several elements
 * of x lie in one place (an expanded view), or where x and y share places without being the same view. -- */
TREK_API trek_var *trek_add_(trek_var *x, trek_var *y);
TREK_API trek_var *trek_sub_(trek_var *x, trek_var *y);
TREK_API trek_var *trek_mul_(trek_var *x, trek_var *y);
TREK_API trek_var *trek_div_(trek_var *x, trek_var *y);
TREK_API trek_var *trek_fill_(trek_var *x, double value);
/* x of any strides, converted; ARGUMENT: a number that x's dtype does not hold (a negative one in u8, where torch wraps whole
 * ones; 1e38 in f16, where torch does so of some shapes) */
TREK_API trek_var *trek_copy_(trek_var *x, trek_var *y);
    /* y expanded to x's shape, converted to x's dtype, whichever; x itself: nothing happens */

/* -- reductions -- */
TREK_API trek_var *trek_sum(trek_var *x, trek_dims_list dims, bool keepdim);  /* integers and bool give i64 */
TREK_API trek_var *trek_mean(trek_var *x, trek_dims_list dims, bool keepdim); /* floating dtypes */
/* Prod's derivative is the product of the others, as it is: NaN where two zeros meet an infinity (PyTorch: 0), and with
 * create_graph a number where x is the one NaN or infinity (else, and in PyTorch: NaN). */
TREK_API trek_var *trek_prod(trek_var *x, trek_dims_list dims, bool keepdim); /* integers and bool give i64 */
TREK_API trek_var *trek_max(trek_var *x, trek_dims_list dims, bool keepdim);
/* values; SHAPE over no elements; equal ones share the gradient, or the NaNs do, as in torch.max(x) (amax gives NaN to all) */
TREK_API trek_var *trek_min(trek_var *x, trek_dims_list dims, bool keepdim);
TREK_API trek_var *trek_argmax(trek_var *x, trek_dims_list dims, bool keepdim);
    /* i64; one dim or all; first of equals; SHAPE over no elements */
TREK_API trek_var *trek_argmin(trek_var *x, trek_dims_list dims, bool keepdim);
TREK_API trek_var *trek_any(trek_var *x, trek_dims_list dims, bool keepdim);
    /* bool, of u8 too: PyTorch's u8 there is from before it had bool */
TREK_API trek_var *trek_all(trek_var *x, trek_dims_list dims, bool keepdim);
TREK_API trek_var *trek_variance(trek_var *x, trek_dims_list dims, bool keepdim);
    /* variance, Bessel-corrected; others: trek_variance_with */
TREK_API trek_var *trek_std(trek_var *x, trek_dims_list dims, bool keepdim);
    /* its root, also where the variance overflows; derivative 0 where nothing varies */
TREK_API trek_var *trek_norm(trek_var *x, double p, trek_dims_list dims, bool keepdim);
    /* p-norm, any p; subgradient 0 where the norm is 0, and below p = 1 at elements that are 0; SHAPE for p < 0 over nothing */
TREK_API trek_var *trek_logsumexp(trek_var *x, trek_dims_list dims, bool keepdim);
TREK_API trek_var *trek_cumsum(trek_var *x, int dim);
/* The logarithm of the running sum of e^x, without overflow; floating dtypes. Derivatives are numbers where PyTorch's are NaN for
 * a gradient of 0; beside what is not finite second derivatives may be NaN. */
TREK_API trek_var *trek_logcumsumexp(trek_var *x, int dim);
TREK_API trek_var *trek_softmax(trek_var *x, int dim); /* floating dtypes, also of no elements (where torch takes others) */
TREK_API trek_var *trek_log_softmax(trek_var *x, int dim);

/* -- shapes; views where strides allow -- */
TREK_API trek_var *trek_reshape(trek_var *x, trek_shape shape);   /* one size may be -1 */
TREK_API trek_var *trek_flatten(trek_var *x, int start_dim, int end_dim);
TREK_API trek_var *trek_unflatten(trek_var *x, int dim, trek_shape sizes);
    /* dim as dimensions of these sizes, one at least, of which one may be -1; SHAPE where they are not as many elements */
TREK_API trek_var *trek_expand(trek_var *x, trek_shape shape);    /* -1 keeps a size */
TREK_API trek_var *trek_permute(trek_var *x, trek_dims_list dims);
TREK_API trek_var *trek_transpose(trek_var *x, int first, int second);
TREK_API trek_var *trek_squeeze(trek_var *x, int dim);
TREK_API trek_var *trek_unsqueeze(trek_var *x, int dim);
TREK_API trek_var *trek_narrow(trek_var *x, int dim, int64_t start, int64_t length);
TREK_API trek_var *trek_select(trek_var *x, int dim, int64_t index);
TREK_API trek_var *trek_contiguous(trek_var *x);
TREK_API trek_var *trek_clone(trek_var *x);       /* contiguous (PyTorch's keeps the layout) */
TREK_API trek_var *trek_cast(trek_var *x, trek_dtype dtype);
TREK_API trek_var *trek_to(trek_var *x, trek_device device);
TREK_API trek_var *trek_flip(trek_var *x, trek_dims_list dims); /* trek_dims_none(): a copy, as PyTorch's */
TREK_API trek_var *trek_tril(trek_var *x, int64_t diagonal);
TREK_API trek_var *trek_triu(trek_var *x, int64_t diagonal);
TREK_API trek_var *trek_cat(trek_var *const *list, int count, int dim); /* all of as many dimensions (torch passes over [0]) */
TREK_API trek_var *trek_stack(trek_var *const *list, int count, int dim);
/* Parts of `size` along dim (the last may be shorter), written to parts (room for `capacity`; ARGUMENT if that is too little);
 * returns their number, -1 on failure. Of an empty dimension: one empty part, for which size may be 0. */
TREK_API int trek_split(trek_var *x, int64_t size, int dim, trek_var **parts, int capacity);
/* At most `chunks` parts of equal size (the last may be shorter); of an empty dimension `chunks` empty ones. */
TREK_API int trek_chunk(trek_var *x, int chunks, int dim, trek_var **parts, int capacity);
/* The slices along dim, without that dimension, as views; of an empty dimension none: 0. Errors as trek_split's. */
TREK_API int trek_unbind(trek_var *x, int dim, trek_var **parts, int capacity);
TREK_API trek_var *trek_index_select(trek_var *x, trek_var *index, int dim);           /* index: 1-D, any integer dtype */
TREK_API trek_var *trek_index_add(trek_var *x, trek_var *index, trek_var *source, int dim);
    /* indices are checked, also where nothing is added (torch: of some shapes); 16 bits are added in f32, rounded once */
TREK_API trek_var *trek_gather(trek_var *x, trek_var *index, int dim);                 /* index: x's ndim, i64 or i32 */
TREK_API trek_var *trek_scatter_add(trek_var *x, trek_var *index, trek_var *source, int dim);
TREK_API trek_var *trek_one_hot(trek_var *x, int64_t classes);                         /* i64; classes -1: largest + 1 */

/* -- sorting and choosing. NaN is larger than all numbers, -0 equals 0. Places are i64, through the last parameter (may be NULL;
 * NULL on failure); gradients go to the elements taken. -- */
/* The extreme along one dimension and its place, the first of equals (of NaNs, which win). SHAPE over no elements. */
TREK_API trek_var *trek_max_with_indices(trek_var *x, int dim, bool keepdim, trek_var **indices);
TREK_API trek_var *trek_min_with_indices(trek_var *x, int dim, bool keepdim, trek_var **indices);
/* Always stable: equal elements stay in their order, descending, too. UNSUPPORTED: lines of 2^32 elements. */
TREK_API trek_var *trek_sort(trek_var *x, int dim, bool descending, trek_var **indices);
TREK_API trek_var *trek_argsort(trek_var *x, int dim, bool descending);
/* The k largest (or smallest), in order, which is what trek_sort's first k are. ARGUMENT: k beyond the dimension,
 * or 0 of a tensor without dimensions. */
TREK_API trek_var *trek_topk(trek_var *x, int64_t k, int dim, bool largest, trek_var **indices);
/* The k-th smallest, counted from 1; of equals as trek_sort orders them. */
TREK_API trek_var *trek_kthvalue(trek_var *x, int64_t k, int dim, bool keepdim, trek_var **indices);
/* The lower one of two; of a line with a NaN the first NaN. SHAPE over no elements. nanmedian passes over them. */
TREK_API trek_var *trek_median(trek_var *x, int dim, bool keepdim, trek_var **indices);
TREK_API trek_var *trek_nanmedian(trek_var *x, int dim, bool keepdim, trek_var **indices);
/* q of f32 or f64, as x, without dimensions or 1-D (then its dimension comes first); ARGUMENT: outside [0, 1], for which a GPU is
 * waited for. NaN for a line with a NaN. */
TREK_API trek_var *trek_quantile(trek_var *x, trek_var *q, int dim, bool keepdim, trek_interpolation interpolation);
/* The same, but NaNs are left out; a line that has nothing but NaNs gives NaN. */
TREK_API trek_var *trek_nanquantile(trek_var *x, trek_var *q, int dim, bool keepdim, trek_interpolation interpolation);
TREK_API trek_var *trek_cummax(trek_var *x, int dim, trek_var **indices); /* the last of equals; from a NaN on NaN */
TREK_API trek_var *trek_cummin(trek_var *x, int dim, trek_var **indices);
TREK_API trek_var *trek_cumprod(trek_var *x, int dim);
/* integers and bool give i64; derivatives at zeros, too; where x is not finite, derivatives may be NaN elsewhere than PyTorch's
 */
/* Where values belong in sorted (1-D, or with x's leading dimensions): i64; the first place whose element is not below (right: is
 * above). DTYPE: two dtypes. */
TREK_API trek_var *trek_searchsorted(trek_var *sorted, trek_var *x, bool right);
/* trek_searchsorted in an unsorted sequence; sorter is trek_argsort of it along its last dimension. */
TREK_API trek_var *trek_searchsorted_by(trek_var *sequence, trek_var *sorter, trek_var *x, bool right);
TREK_API trek_var *trek_bucketize(trek_var *x, trek_var *boundaries, bool right);

/* -- places: their number lies in the data, so a GPU is waited for, but in scatter and index_fill -- */
TREK_API trek_var *trek_nonzero(trek_var *x);                     /* i64 [n, dimensions], in row-major order */
TREK_API trek_var *trek_masked_select(trek_var *x, trek_var *mask); /* both broadcast; 1-D; mask: bool */
/* The values of x in order, 1-D (a NaN is unlike all, also others); through *inverse where each element of x is among them,
 * through *counts how often each is there; either may be NULL. No gradient. */
TREK_API trek_var *trek_unique(trek_var *x, trek_var **inverse, trek_var **counts);
/* The same, but only neighbours that are equal are made one; the values stay in x's order. */
TREK_API trek_var *trek_unique_consecutive(trek_var *x, trek_var **inverse, trek_var **counts);
/* Returns the different slices of x along dim, in the order of their elements, as torch.unique does with a dimension; through
 * *inverse [n] where each slice is among them, and through *counts how often each is there; either may be NULL. They are sorted
 * on the host. A slice with a NaN is unlike all, also others. There is no gradient. SHAPE: x has no dimensions,
 * or slices have no elements. */
TREK_API trek_var *trek_unique_dim(trek_var *x, int dim, trek_var **inverse, trek_var **counts);
/* How often each of 0, 1, .. is there (i64), or the sum of its weights (f32 as f32, others as f64); of size minlength at least.
 * weights may be NULL. ARGUMENT: a negative number. No gradient. */
TREK_API trek_var *trek_bincount(trek_var *x, trek_var *weights, int64_t minlength);
TREK_API trek_var *trek_repeat_interleave(trek_var *x, int64_t repeats, int dim);
TREK_API trek_var *trek_repeat_interleave_by(trek_var *x, trek_var *repeats, int dim); /* repeats: 1-D, an integer for each */
/* x with elements of source at places of index along dim; index: i64, i32 or u8 of x's ndim, no larger than source; of several
 * for one place the last stays. source of x's dtype. */
TREK_API trek_var *trek_scatter(trek_var *x, trek_var *index, trek_var *source, int dim);
TREK_API trek_var *trek_scatter_value(trek_var *x, trek_var *index, double value, int dim);
/* The same with all of them, and x's own element or not. Means of integers are rounded down. Without x's own element it has no
 * part in the gradient of an extreme (PyTorch counts it where it equals the result). Second derivatives of a product with several
 * zeros are 0 there. */
TREK_API trek_var *trek_scatter_reduce(trek_var *x, trek_var *index, trek_var *source, int dim, trek_scatter_reduction reduction,
                                       bool include_self);
TREK_API trek_var *trek_index_fill(trek_var *x, trek_var *index, double value, int dim); /* index: 1-D; negative: from the end */
/* x[list[0], list[1], ...] = values (accumulate: += for each): integer indices that broadcast, for the first `count` dimensions,
 * negative ones from the end; values of x's dtype broadcast to their shape and x's other dimensions. */
TREK_API trek_var *trek_index_put(trek_var *x, trek_var *const *list, int count, trek_var *values, bool accumulate);

/* -- repeating and arranging -- */
/* ARGUMENT: a negative number, of nothing too. */
TREK_API trek_var *trek_repeat(trek_var *x, trek_shape repeats); /* as many as x's dimensions, or more in front */
TREK_API trek_var *trek_tile(trek_var *x, trek_shape repeats);   /* fewer are those of the last dimensions */
TREK_API trek_var *trek_roll(trek_var *x, trek_dims_list shifts, trek_dims_list dims);
    /* trek_dims_none(): the flattened x, one shift */
TREK_API trek_var *trek_movedim(trek_var *x, trek_dims_list source, trek_dims_list destination);
TREK_API trek_var *trek_diagonal(trek_var *x, int64_t offset, int dim1, int dim2); /* a view; its dimension comes last */
TREK_API trek_var *trek_diag(trek_var *x, int64_t diagonal); /* 1-D: a matrix with it; 2-D: its diagonal */
/* Grids of 1-D (or 0-D) coordinates, written to parts as trek_split does; xy: the first two exchanged. Returns count, or -1. */
TREK_API int trek_meshgrid(trek_var *const *list, int count, bool xy, trek_var **parts, int capacity);

/* -- of x's shape, dtype and device; constants -- */
TREK_API trek_var *trek_zeros_like(trek_var *x);
TREK_API trek_var *trek_ones_like(trek_var *x);
TREK_API trek_var *trek_full_like(trek_var *x, double value);
TREK_API trek_var *trek_empty_like(trek_var *x); /* uninitialised */
TREK_API trek_var *trek_rand_like(trek_var *x);  /* [0, 1); floating dtypes */
TREK_API trek_var *trek_randn_like(trek_var *x);
/* 1 with probability x, else 0, of x's floating dtype. ARGUMENT: outside [0, 1]; a GPU is waited for. No gradient. */
TREK_API trek_var *trek_bernoulli(trek_var *x);
/* `samples` places for each line of weights x [n] or [m, n] (floating, not negative): i64. ARGUMENT: a line without weight, or
 * without replacement one with fewer than samples that are not 0; a GPU is waited for. */
TREK_API trek_var *trek_multinomial(trek_var *x, int64_t samples, bool replacement);

/* -- products: their inputs are of one dtype (DTYPE otherwise: cast one; autocast does so by itself) -- */
/* As torch.matmul: [..., m, k] x [..., k, n], batch dimensions broadcast; 1-D operands are vectors. Any dtype but bool
 * (torch takes it of no elements). */
TREK_API trek_var *trek_matmul(trek_var *x, trek_var *y);
/* x [..., in], weight [out, in], bias [out] or NULL -> [..., out]. Floating dtypes (torch multiplies integers, too). */
TREK_API trek_var *trek_linear(trek_var *x, trek_var *weight, trek_var *bias);
/* The same with the activation fused in. */
TREK_API trek_var *trek_linear_activation(trek_var *x, trek_var *weight, trek_var *bias, trek_activation activation);
/* x^T weight[o] y + bias[o] for each o: x [..., n], y [..., m] of the same leading dimensions, weight [out, n, m], bias [out] or
 * NULL -> [..., out], all of one floating dtype (DTYPE). [out, rows, m] numbers are held on the way, and kept for backward. */
TREK_API trek_var *trek_bilinear(trek_var *x, trek_var *y, trek_var *weight, trek_var *bias);

/* -- convolution and pooling; x [N, C, H, W]; weight and bias of x's dtype (else DTYPE) -- */
TREK_API trek_var *trek_conv2d(trek_var *x, trek_var *weight, trek_var *bias, const trek_conv_opts *opts);
/* weight [O, C/groups, kh, kw]; bias and opts may be NULL; weights that are not finite may make gradients NaN anywhere, and
 * results over padding or not. Where x or the weight lies channels last (trek_channels_last), the result does. */
/* The same with the activation fused in: ReLU; GELU is an op of its own behind it. */
TREK_API trek_var *trek_conv2d_activation(trek_var *x, trek_var *weight, trek_var *bias, const trek_conv_opts *opts,
                                          trek_activation activation);
/* x [N, C, H, W] with the channels of each pixel side by side in memory, as torch's memory_format=torch.channels_last: the same
 * numbers and shape, by other strides; x itself where it lies so. Convolutions, poolings, batch norms and element-wise ops give
 * results that lie as their input does, and gradients likewise. SHAPE: not four dimensions. trek_contiguous goes back. */
TREK_API trek_var *trek_channels_last(trek_var *x);
/* Its transpose: what conv2d would make a gradient of x from y by, as torch.nn.functional.conv_transpose2d. weight
 * [C, O/groups, kh, kw]; bias [O] and opts may be NULL -> [N, O, H', W'], H' = (H - 1) stride - 2 padding + dilation (kh - 1) +
 * output padding + 1. ARGUMENT: an output padding that is neither below the stride nor below the dilation, an output size that
 * none gives; SHAPE: a result without pixels (torch gives some); also of an empty batch, of which torch checks less. Of weights
 * that are not finite as above. */
TREK_API trek_var *trek_conv_transpose2d(trek_var *x, trek_var *weight, trek_var *bias, const trek_conv_transpose_opts *opts);
TREK_API trek_var *trek_max_pool2d(trek_var *x, const trek_pool_opts *opts);
TREK_API trek_var *trek_avg_pool2d(trek_var *x, const trek_pool_opts *opts);
TREK_API trek_var *trek_adaptive_avg_pool2d(trek_var *x, int64_t height, int64_t width);

/* -- normalisation, embedding, dropout -- */
/* Over the last `normalized_dims` dimensions; weight and bias (that shape) may be NULL. The result has x's dtype; of the
 * three norms of rows, weight and bias are of x's dtype, or of f32 where x has 16 bits, both of one: DTYPE otherwise.
 * A bias without a weight has second derivatives. */
TREK_API trek_var *trek_layer_norm(trek_var *x, trek_var *weight, trek_var *bias, int normalized_dims, double eps);
/* The residual stream of a transformer, x + branch (both of one shape, promoted as trek_add does), and its layer norm, in
 * one pass each way: gives the norm, and the sum through *residual (may be NULL; NULL on failure). Gradients flow back
 * through both (the sum of two constants is one, whatever the parameters need); a hook on the
 * sum, or its gradient from trek_grad, sees what its own uses give, without the way through the norm. */
TREK_API trek_var *trek_add_layer_norm(trek_var *x, trek_var *branch, trek_var *weight, trek_var *bias, int normalized_dims,
                                       double eps,
                                       trek_var **residual);
/* x / sqrt(mean(x^2) + eps) weight, the mean over the last `normalized_dims` dimensions; weight (that shape) may be NULL. */
TREK_API trek_var *trek_rms_norm(trek_var *x, trek_var *weight, int normalized_dims, double eps);
/* x [N, C, ...]; weight, bias, running_mean, running_var [C] or NULL, of any floating dtypes (torch wants x's, or f32 for
 * 16 bits): the result has x's, each gradient its input's. In training the batch's statistics are used and the running
 * ones updated: (1 - momentum) old + momentum new. A bias without a weight has second derivatives
 * (PyTorch's drop it). Where inputs are not finite, gradients are NaN or infinite as the order of the formula has it. */
TREK_API trek_var *trek_batch_norm(trek_var *x, trek_var *weight, trek_var *bias, trek_var *running_mean, trek_var *running_var,
                                   bool training, double momentum, double eps);
/* weight [n, d], indices of any integer dtype and shape [...] -> [..., d]; out of range: ARGUMENT. padding_idx -1: none. With
 * options, and of bags: autograd/embedding.h. */
TREK_API trek_var *trek_embedding(trek_var *weight, trek_var *indices, int64_t padding_idx);
/* In training zeroes with probability p and divides the rest by 1 - p; else x itself; what is zeroed is 0 whatever it was
 * (PyTorch: NaN where it was NaN or infinite). */
TREK_API trek_var *trek_dropout(trek_var *x, double p, bool training);

typedef struct trek_attention_opts {
    bool causal;              /* query i sees keys 0..i */
    double scale;             /* of the scores; default 1 / sqrt(D), TREK_ZERO for 0 */
    trek_var *mask; /* broadcastable to [B, H, T, S]: bool (true: may be seen), or floating (added to the scores); default none */
    double dropout;           /* probability with which a weight is dropped, whenever given; default 0 */
} trek_attention_opts;

/* softmax(scale q k^T + mask) v, as torch's scaled_dot_product_attention, without making the matrix of scores:
 * memory grows with T, not with T S. q [B, H, T, D], k and v [B, G, S, D] of any strides (of a packed [B, T, 3, H, D]
 * select and permute do, no copies), H a multiple of G: head h reads head h / (H / G) of k and v. Result [B, H, T, D],
 * which lies in memory as [B, T, H, D]: permute and reshape to [B, T, H D] are views. A query that sees no key gives 0.
 * A mask that requires a gradient (a learned bias of positions) gets one; then the matrix of scores is made. A mask fits as it
 * does where there are elements (torch passes over it where there are none). Gradients are relative to a log-sum-exp of the
 * scores in f32 (f64 for f64), as in FlashAttention: of scores near 1000 they have four digits. opts may be NULL. */
TREK_API trek_var *trek_attention(trek_var *q, trek_var *k, trek_var *v, const trek_attention_opts *opts);
/* Returns the matrix that trek_attention never makes: the weights [B, H, T, S] with which each query takes the values, of q's
 * dtype, after dropout. A query that sees no key has weights of 0. */
TREK_API trek_var *trek_attention_weights(trek_var *q, trek_var *k, const trek_attention_opts *opts);

/* -- recurrent layers -- */
typedef struct trek_recurrent_opts {
    trek_var *h0;             /* [N, H], of a projected LSTM [N, P]; default zeros */
    trek_var *c0;             /* [N, H], of an LSTM; default zeros */
    trek_var *lengths;        /* [N] of any integer dtype, on any device, in any order: how many of its T steps each row has;
                               * default T */
    bool reverse;             /* from each row's last step to its first */
    trek_var *weight_hr;      /* [P, H], of an LSTM: projects each step's h, see there; default none */
} trek_recurrent_opts;

/* One layer of an LSTM in one direction, over all steps: x [T, N, in] (of [N, T, in], a transposed view), weight_ih [4 H, in],
 * weight_hh [4 H, H], biases [4 H] or NULL, all of one floating dtype; gates in PyTorch's order i, f, g, o. Result [T, N, H].
 * Through *hn and *cn (may be NULL; NULL on failure) the state [N, H] after each row's last step: that of step T - 1, of
 * step 0 in reverse; of no steps (torch refuses them) h0 and c0. With lengths, what lies beyond a row's length is not looked at
 * (its gradient is 0), the result is 0 there, hn and cn are those of the row's own last step (as of torch's packed sequences;
 * here a row may have no step and keeps h0, c0), and reverse begins at the row's own end. Steps are computed in f32 for 16 bits;
 * a GPU's products read states that are rounded to 16 bits. ARGUMENT: a length outside [0, T]. opts may be NULL. create_graph
 * takes the steps one by one.
 * With weight_hr, PyTorch's proj_size (Sak et al. 2014), each step gives weight_hr (o tanh(c)) in place of o tanh(c): weight_hh
 * is [4 H, P], the result [T, N, P], hn [N, P]. It is computed as an LSTM whose state is not projected, with weight_hh weight_hr
 * [4 H, H] as its weight, which is fast but takes more multiplications where P is much less than H. */
TREK_API trek_var *trek_lstm(trek_var *x, trek_var *weight_ih, trek_var *weight_hh, trek_var *bias_ih, trek_var *bias_hh,
                             const trek_recurrent_opts *opts, trek_var **hn, trek_var **cn);

/* The same of a GRU: weight_ih [3 H, in], weight_hh [3 H, H], biases [3 H] or NULL; gates in PyTorch's order r, z, n, and the
 * reset gate after the product, as there: n = tanh(x's part + r (weight_hh h + bias_hh)). ARGUMENT: a c0, a weight_hr. */
TREK_API trek_var *trek_gru(trek_var *x, trek_var *weight_ih, trek_var *weight_hh, trek_var *bias_ih, trek_var *bias_hh,
                            const trek_recurrent_opts *opts, trek_var **hn);

TREK_END

#include "autograd/fft.h"
#include "autograd/linalg.h"

#endif
