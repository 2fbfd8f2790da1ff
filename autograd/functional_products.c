/* SPDX-License-Identifier: Apache-2.0 */
/* Products of vectors and matrices, and distances, made from other ops. */
#include <math.h>

#include "autograd/calls_internal.h"
#include "autograd/ops.h"
#include "autograd/rules_internal.h"
#include "autograd/tape_internal.h"
#include "tensor/rank_context.h"

/* Returns whether both are present and have `dims` dimensions; if not, an error is set. */
static bool both_of(const char *name, trek_var *x, trek_var *y, int dims)
{
    if (!x || !y)
        return trek_fail_missing(name, "input"), false;
    if (trek_var_ndim(x) == dims && trek_var_ndim(y) == dims)
        return true;
    trek_fail(TREK_ERR_SHAPE, "%s: inputs: %d and %d dimensions; must have %d", name, trek_var_ndim(x), trek_var_ndim(y), dims);
    return false;
}

trek_var *trek_outer_product(trek_var *x, trek_var *y)
{
    return both_of("outer_product", x, y, 1) ? trek_mul(trek_unsqueeze(x, 1), y) : NULL;
}

trek_var *trek_dot(trek_var *x, trek_var *y)
{
    const char *before = trek_op_calling("dot");
    return trek_op_called_end(before, both_of("dot", x, y, 1) ? trek_matmul(x, y) : NULL);
}

trek_var *trek_inner(trek_var *x, trek_var *y)
{
    if (!x || !y)
        return trek_fail_missing("inner", "input"), NULL;
    if (trek_var_ndim(x) == 0 || trek_var_ndim(y) == 0)
        return trek_mul(x, y);
    if (trek_var_size(x, -1) != trek_var_size(y, -1))
        return trek_fail_null(TREK_ERR_SHAPE, "inner: x and y: last dimensions of sizes %lld and %lld; must be equal",
                              (long long)trek_var_size(x, -1), (long long)trek_var_size(y, -1));
    const char *before = trek_op_calling("inner");
    return trek_op_called_end(before, trek_tensordot(x, y, trek_dims(-1), trek_dims(-1)));
}

enum { KRON_LONG_ROW = 512, KRON_ROWS = 8 };

/* Returns x in this shape, with dimension d, which has one element, repeated n times in memory. */
static trek_var *repeat_along(trek_var *x, trek_shape shape, int d, int64_t n)
{
    trek_var *wide = trek_reshape(x, shape);
    shape.sizes[d] = n;
    return trek_contiguous(trek_expand(wide, shape));
}

trek_var *trek_kron(trek_var *x, trek_var *y)
{
    if (!x || !y)
        return trek_fail_missing("kron", "input"), NULL;
    trek_shape a = trek_var_shape(x), b = trek_var_shape(y), wide_a, wide_b, shape;
    int n = a.ndim > b.ndim ? a.ndim : b.ndim;
    if (2 * n > TREK_MAX_DIMS)
        return trek_fail_null(TREK_ERR_UNSUPPORTED, "kron: inputs: %d dimensions; at most %d are possible", n, TREK_MAX_DIMS / 2);
    wide_a.ndim = wide_b.ndim = 2 * n;
    shape.ndim = n;
    for (int d = 0; d < n; d++) {
        int64_t in_a = d < n - a.ndim ? 1 : a.sizes[d - n + a.ndim], in_b = d < n - b.ndim ? 1 : b.sizes[d - n + b.ndim];
        wide_a.sizes[2 * d] = in_a;
        wide_b.sizes[2 * d + 1] = in_b;
        wide_a.sizes[2 * d + 1] = wide_b.sizes[2 * d] = 1;
        shape.sizes[d] = in_a * in_b;
    }
    /* Short rows are computed side by side, from inputs that are repeated along them, if these copies are small beside the
     * result. */
    int64_t row_a = n > 0 ? wide_a.sizes[2 * n - 2] : 1, row_b = n > 0 ? wide_b.sizes[2 * n - 1] : 1;
    if (row_b < KRON_LONG_ROW && trek_var_numel(x) >= KRON_ROWS * row_a && trek_var_numel(y) >= KRON_ROWS * row_b && row_a > 0)
        return trek_reshape(trek_mul(repeat_along(y, wide_b, 2 * n - 2, row_a), repeat_along(x, wide_a, 2 * n - 1, row_b)),
                            shape);
    /* x last: along a row of the result it is one element */
    return trek_reshape(trek_mul(trek_reshape(trek_contiguous(y), wide_b), trek_reshape(x, wide_a)), shape);
}

trek_var *trek_trace(trek_var *x)
{
    if (!x)
        return trek_fail_missing("trace", "variable"), NULL;
    if (trek_var_ndim(x) != 2)
        return trek_fail_null(TREK_ERR_SHAPE, "trace: x: %d dimensions; must be a matrix", trek_var_ndim(x));
    return trek_sum(trek_diagonal(x, 0, 0, 1), trek_dims(0), false);
}

/* --- products that are added -------------------------------------------------------------------- */

static bool addable(const char *name, trek_var *x, trek_var *product, trek_dtype dtype, double beta, double alpha)
{
    trek_shape to = trek_var_shape(product), from = trek_var_shape(x);
    bool fits = from.ndim <= to.ndim;
    for (int d = 1; fits && d <= from.ndim; d++)
        fits = from.sizes[from.ndim - d] == 1 || from.sizes[from.ndim - d] == to.sizes[to.ndim - d];
    char a[TREK_SHAPE_TEXT], b[TREK_SHAPE_TEXT];
    if (!fits)
        return trek_fail(TREK_ERR_SHAPE, "%s: input: %s; must broadcast to the product, %s", name,
                         trek_shape_format(from, a, sizeof a),
                         trek_shape_format(to, b, sizeof b)), false;
    if (trek_var_dtype(x) != dtype)
        return trek_fail(TREK_ERR_DTYPE, "%s: input: dtype %s; the product has %s", name, trek_dtype_name(trek_var_dtype(x)),
                         trek_dtype_name(dtype)),
               false;
    if (!trek_dtype_is_float(trek_var_dtype(x)) && (beta != trunc(beta) || alpha != trunc(alpha)))
        return trek_fail(TREK_ERR_ARGUMENT, "%s: beta and alpha: %g and %g; must be whole numbers with integers", name, beta,
                         alpha),
               false;
    return true;
}

/* Returns zeros that depend on x, with a gradient of 0. */
static trek_var *nothing_of(trek_var *x)
{
    return trek_masked_fill(x, trek_cast(trek_ones_like(x), TREK_BOOL), 0);
}

/* Multiplies matrices or batches of them. 16-bit inputs give f32, so that sums with the product are rounded only once. */
static trek_var *product_of(trek_var *y, trek_var *z)
{
    const trek_rank_watch *watch = trek_rank_watched();
    int n = trek_var_ndim(y);
    if (!trek_dtype_is_16bit(trek_var_dtype(y)) || trek_grad_mode_here.autocast != TREK_F32 ||
        (watch && watch->around)) /* exports have no such product */
        return trek_matmul(y, z);
    trek_shape shape = trek_var_shape(y);
    shape.sizes[n - 1] = trek_var_size(z, n - 1);
    trek_tensor *wide = trek_tensor_empty(shape, TREK_F32, trek_var_device(y));
    return wide ? trek_apply_into(&trek_ops[TREK_OP_matmul], (trek_var *[]){ y, z }, 2, wide) : NULL;
}

static trek_var *add_product(const char *name, trek_var *x, trek_var *y, trek_var *z, int dims, double beta, double alpha)
{
    if (!x)
        return trek_fail_missing(name, "input"), NULL;
    if (!both_of(name, y, z, dims))
        return NULL;
    if (dims == 3 && trek_var_size(y, 0) != trek_var_size(z, 0))
        return trek_fail_null(TREK_ERR_SHAPE, "%s: batches of %lld and %lld matrices; must be equal", name,
                              (long long)trek_var_size(y, 0), (long long)trek_var_size(z, 0));
    trek_var *product = product_of(y, z);
    if (!product)
        return NULL;
    bool widened = trek_dtype_is_16bit(trek_var_dtype(y)) && trek_var_dtype(product) == TREK_F32;
    trek_dtype dtype = widened ? trek_var_dtype(y) : trek_var_dtype(product);
    if (!addable(name, x, product, dtype, beta, alpha))
        return NULL;
    x = trek_cast(x, trek_var_dtype(product));
    product = alpha == 1 ? product : trek_mul_scalar(product, alpha);
    if (beta == 0 && !trek_var_requires_grad(x))
        return trek_cast(product, dtype);
    trek_var *scaled = beta == 1 ? x : beta == 0 ? nothing_of(x) : trek_mul_scalar(x, beta);
    return trek_cast(trek_add(scaled, product), dtype);
}

trek_var *trek_addmm(trek_var *x, trek_var *y, trek_var *z, double beta, double alpha)
{
    const char *before = trek_op_calling("addmm");
    return trek_op_called_end(before, add_product("addmm", x, y, z, 2, beta, alpha));
}

trek_var *trek_baddbmm(trek_var *x, trek_var *y, trek_var *z, double beta, double alpha)
{
    const char *before = trek_op_calling("baddbmm");
    return trek_op_called_end(before, add_product("baddbmm", x, y, z, 3, beta, alpha));
}

/* --- distances ---------------------------------------------------------------------------------- */

/* The root of max(0, |x|^2 + |y|^2 - 2 x y), whose slope at 0 is defined as 0. */
static trek_var *by_products(trek_var *x, trek_var *y)
{
    trek_var *xx = trek_sum(trek_square(x), trek_dims(-1), true), *yy = trek_sum(trek_square(y), trek_dims(-1), true);
    trek_var *xy = trek_matmul(trek_mul_scalar(x, -2), trek_transpose(y, -1, -2));
    trek_var *squares = trek_clamp(trek_add(trek_add(xy, xx), trek_transpose(yy, -1, -2)), 0, INFINITY);
    trek_var *zero = trek_eq_scalar(squares, 0);
    return trek_masked_fill(trek_sqrt(trek_masked_fill(squares, zero, 1)), zero, 0);
}

static bool floats(const char *name, trek_var *x)
{
    if (trek_dtype_is_float(trek_var_dtype(x)))
        return true;
    return trek_fail(TREK_ERR_DTYPE, "%s: inputs: dtype %s; must be floating", name, trek_dtype_name(trek_var_dtype(x))), false;
}

static trek_var *by_differences(trek_var *x, trek_var *y, double p)
{
    trek_var *apart = trek_sub(trek_unsqueeze(x, -2), trek_unsqueeze(y, -3));
    return p == 1 ? trek_sum(trek_abs(apart), trek_dims(-1), false) : trek_norm(apart, p, trek_dims(-1), false);
}

/* Takes as many rows of x at a time as keep the differences in a cache. */
static trek_var *by_blocks(trek_var *x, trek_var *y, double p)
{
    enum { BLOCK = 1 << 16, MOST = 256 };
    int64_t rows = trek_var_size(x, -2), each = rows ? trek_var_numel(x) / rows * trek_var_size(y, -2) : 0;
    int64_t block = each && each < BLOCK ? BLOCK / each : 1;
    block = block < (rows + MOST - 1) / MOST ? (rows + MOST - 1) / MOST : block;
    if (rows <= block)
        return by_differences(x, y, p);
    trek_var *parts[MOST];
    int n = 0;
    for (int64_t k = 0; k < rows; k += block)
        parts[n++] = by_differences(trek_narrow(x, -2, k, rows - k < block ? rows - k : block), y, p);
    return trek_cat(parts, n, -2);
}

trek_var *trek_cdist(trek_var *x, trek_var *y, double p)
{
    enum { FEW = 25 };
    if (!x || !y)
        return trek_fail_missing("cdist", "input"), NULL;
    if (trek_var_ndim(x) < 2 || trek_var_ndim(y) < 2 || trek_var_size(x, -1) != trek_var_size(y, -1))
        return trek_fail_null(TREK_ERR_SHAPE, "cdist: x and y: wrong shapes; must be rows [..., P, M] and [..., R, M]");
    if (!floats("cdist", x) || !floats("cdist", y))
        return NULL;
    if (trek_var_dtype(x) != trek_var_dtype(y))
        return trek_fail_null(TREK_ERR_DTYPE, "cdist: x and y: dtypes %s and %s; must be equal",
                              trek_dtype_name(trek_var_dtype(x)), trek_dtype_name(trek_var_dtype(y)));
    if (!(p >= 0))
        return trek_fail_null(TREK_ERR_ARGUMENT, "cdist: p: %g; must be at least 0", p);
    bool empty = trek_var_size(x, -1) == 0;
    if (p == 2 && !empty && (trek_var_size(x, -2) > FEW || trek_var_size(y, -2) > FEW))
        return by_products(x, y);
    return empty ? trek_sum(trek_sub(trek_unsqueeze(x, -2), trek_unsqueeze(y, -3)), trek_dims(-1), false) : by_blocks(x, y, p);
}

/* Returns the row numbers of each pair: the first or the second ones. */
static trek_var *of_pairs(trek_var *x, int64_t n, bool second)
{
    trek_tensor *host = trek_tensor_empty(trek_dims(n * (n - 1) / 2), TREK_I64, trek_cpu(0));
    int64_t *at = host ? trek_tensor_data(host) : NULL;
    for (int64_t i = 0; at && i < n; i++)
        for (int64_t j = i + 1; j < n; j++)
            *at++ = second ? j : i;
    trek_tensor *there = host ? trek_tensor_to(host, trek_var_device(x)) : NULL;
    trek_tensor_release(host);
    return there ? trek_index_select(x, 0, trek_var_from(there)) : NULL;
}

trek_var *trek_pdist(trek_var *x, double p)
{
    if (!x)
        return trek_fail_missing("pdist", "variable"), NULL;
    if (trek_var_ndim(x) != 2)
        return trek_fail_null(TREK_ERR_SHAPE, "pdist: x: %d dimensions; must be rows [N, M]", trek_var_ndim(x));
    if (!floats("pdist", x))
        return NULL;
    if (!(p >= 0))
        return trek_fail_null(TREK_ERR_ARGUMENT, "pdist: p: %g; must be at least 0", p);
    int64_t n = trek_var_size(x, 0);
    trek_var *apart = trek_sub(of_pairs(x, n, false), of_pairs(x, n, true));
    return trek_var_size(x, 1) == 0 ? trek_sum(apart, trek_dims(-1), false) : trek_norm(apart, p, trek_dims(-1), false);
}

/* --- bilinear forms --------------------------------------------------------------------------- */

static trek_status check_bilinear(trek_var *x, trek_var *y, trek_var *weight, trek_var *bias)
{
    char a[TREK_SHAPE_TEXT], b[TREK_SHAPE_TEXT], c[TREK_SHAPE_TEXT];
    if (!x || !y || !weight)
        return trek_fail_missing("bilinear", "input");
    trek_var *all[4] = { x, y, weight, bias };
    for (int k = 1; k < 4; k++)
        if (all[k] && trek_var_dtype(all[k]) != trek_var_dtype(x))
            return trek_fail(TREK_ERR_DTYPE, "bilinear: inputs: dtypes %s and %s; must be equal, cast one of them",
                             trek_dtype_name(trek_var_dtype(x)), trek_dtype_name(trek_var_dtype(all[k])));
    if (!trek_dtype_is_float(trek_var_dtype(x)))
        return trek_fail(TREK_ERR_DTYPE, "bilinear: inputs: dtype %s is not supported", trek_dtype_name(trek_var_dtype(x)));
    int ndim = trek_var_ndim(x);
    bool fits = ndim > 0 && trek_var_ndim(y) == ndim && trek_var_ndim(weight) == 3;
    for (int d = 0; fits && d < ndim - 1; d++)
        fits = trek_var_size(x, d) == trek_var_size(y, d);
    fits = fits && trek_var_size(x, -1) == trek_var_size(weight, 1) && trek_var_size(y, -1) == trek_var_size(weight, 2);
    if (!fits)
        return trek_fail(TREK_ERR_SHAPE, "bilinear: inputs: %s and %s do not fit weight %s",
                         trek_shape_format(trek_var_shape(x), a, sizeof a),
                         trek_shape_format(trek_var_shape(y), b, sizeof b),
                         trek_shape_format(trek_var_shape(weight), c, sizeof c));
    if (bias && (trek_var_ndim(bias) != 1 || trek_var_size(bias, 0) != trek_var_size(weight, 0)))
        return trek_fail(TREK_ERR_SHAPE, "bilinear: bias: %s; must be [%lld]",
                         trek_shape_format(trek_var_shape(bias), a, sizeof a),
                         (long long)trek_var_size(weight, 0));
    return TREK_OK;
}

/* x times each matrix of the weight, [out, rows, m], then the sums with y. */
trek_var *trek_bilinear(trek_var *x, trek_var *y, trek_var *weight, trek_var *bias)
{
    if (check_bilinear(x, y, weight, bias) != TREK_OK)
        return NULL;
    trek_shape shape = trek_var_shape(x);
    int64_t n = shape.sizes[shape.ndim - 1], m = trek_var_size(y, -1), rows = 1;
    for (int d = 0; d < shape.ndim - 1; d++)
        rows *= shape.sizes[d];
    shape.sizes[shape.ndim - 1] = trek_var_size(weight, 0);
    trek_var *each = trek_matmul(trek_reshape(x, trek_dims(1, rows, n)), weight);
    trek_var *products = trek_mul(trek_rule_wide(each), trek_rule_wide(trek_reshape(y, trek_dims(rows, m))));
    trek_var *sums = trek_transpose(trek_sum(products, trek_dims(-1), false), 0, 1);
    sums = bias ? trek_add(sums, trek_rule_wide(bias)) : sums;
    return trek_rule_rounded(sums ? trek_reshape(sums, shape) : NULL, each);
}
