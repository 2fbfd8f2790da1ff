/* SPDX-License-Identifier: Apache-2.0 */
/* Norms of matrices, the logarithm of a determinant, and cross products, made from other ops. */
#include <math.h>

#include "autograd/linalg.h"
#include "autograd/ops.h"
#include "autograd/tape_internal.h"

/* Returns the largest or the smallest along the last dimension. The largest of nothing is 0. */
static trek_var *extreme(trek_var *x, bool least)
{
    if (x && !least && trek_var_size(x, -1) == 0)
        return trek_sum(x, trek_dims(-1), false);
    return least ? trek_min(x, trek_dims(-1), false) : trek_max(x, trek_dims(-1), false);
}

static trek_var *norm_of(trek_var *a, trek_matrix_order order)
{
    switch (order) {
    case TREK_MATRIX_ORDER_FRO:
        return trek_norm(a, 2, trek_dims(-2, -1), false);
    case TREK_MATRIX_ORDER_NUC:
        return trek_sum(trek_svdvals(a), trek_dims(-1), false);
    case TREK_MATRIX_ORDER_2:
    case TREK_MATRIX_ORDER_MINUS_2:
        return extreme(trek_svdvals(a), order == TREK_MATRIX_ORDER_MINUS_2);
    case TREK_MATRIX_ORDER_1:
    case TREK_MATRIX_ORDER_MINUS_1:
        return extreme(trek_sum(trek_abs(a), trek_dims(-2), false), order == TREK_MATRIX_ORDER_MINUS_1);
    case TREK_MATRIX_ORDER_INF:
    case TREK_MATRIX_ORDER_MINUS_INF:
        return extreme(trek_sum(trek_abs(a), trek_dims(-1), false), order == TREK_MATRIX_ORDER_MINUS_INF);
    }
    return trek_fail_null(TREK_ERR_ARGUMENT, "matrix_norm: order: %d; must be a value of trek_matrix_order", (int)order);
}

trek_var *trek_matrix_norm(trek_var *a, trek_matrix_order order, bool keepdim)
{
    char text[TREK_SHAPE_TEXT];
    if (!a)
        return trek_fail_missing("matrix_norm", "input"), NULL;
    if (!trek_dtype_is_float(trek_var_dtype(a)))
        return trek_fail_null(TREK_ERR_DTYPE, "matrix_norm: a: dtype %s; must be floating", trek_dtype_name(trek_var_dtype(a)));
    if (trek_var_ndim(a) < 2)
        return trek_fail_null(TREK_ERR_SHAPE, "matrix_norm: a: %s; must be matrices", trek_tensor_shape_text(a->data, text));
    trek_var *made = norm_of(a, order);
    return keepdim ? trek_unsqueeze(trek_unsqueeze(made, -1), -1) : made;
}

trek_var *trek_logdet(trek_var *a)
{
    trek_var *size = NULL, *sign = trek_slogdet(a, &size);
    return trek_masked_fill(size, trek_lt_scalar(sign, 0), NAN);
}

trek_var *trek_cross(trek_var *x, trek_var *y, int dim)
{
    if (!x || !y)
        return trek_fail_missing("cross", "input"), NULL;
    if (trek_var_dtype(x) != trek_var_dtype(y))
        return trek_fail_null(TREK_ERR_DTYPE, "cross: x and y: dtypes %s and %s; must be equal",
                              trek_dtype_name(trek_var_dtype(x)), trek_dtype_name(trek_var_dtype(y)));
    if (trek_var_ndim(x) != trek_var_ndim(y))
        return trek_fail_null(TREK_ERR_SHAPE, "cross: x and y: %d and %d dimensions; must be equal", trek_var_ndim(x),
                              trek_var_ndim(y));
    int d = trek_normalize_dim(dim, trek_var_ndim(x), "cross");
    if (d < 0)
        return NULL;
    if (trek_var_ndim(x) == 0 || trek_var_size(x, d) != 3 || trek_var_size(y, d) != 3)
        return trek_fail_null(TREK_ERR_SHAPE, "cross: dimension %d: it must have 3 elements", d);
    trek_var *first = trek_mul(trek_roll(x, trek_dims(-1), trek_dims(d)), trek_roll(y, trek_dims(-2), trek_dims(d)));
    trek_var *second = trek_mul(trek_roll(x, trek_dims(-2), trek_dims(d)), trek_roll(y, trek_dims(-1), trek_dims(d)));
    return trek_sub(first, second);
}
