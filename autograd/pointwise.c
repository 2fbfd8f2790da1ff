/* SPDX-License-Identifier: Apache-2.0 */
/* Activations and element-wise ops that check their numbers, or are made from others. */
#include "autograd/pointwise.h"

#include <math.h>

#include "autograd/blocks.h"
#include "autograd/calls_internal.h"
#include "autograd/ops.h"
#include "autograd/tape_internal.h"
#include "tensor/number_internal.h"

/* --- activations -------------------------------------------------------------------------------- */

trek_var *trek_hardtanh(trek_var *x, double low, double high)
{
    if (!(low <= high))
        return trek_fail_null(TREK_ERR_ARGUMENT, "hardtanh: low: %g; must be below high, %g", low, high);
    return trek_apply_hardtanh(x, low, high);
}

trek_var *trek_relu6(trek_var *x)
{
    const char *before = trek_op_calling("relu6");
    return trek_op_called_end(before, trek_apply_hardtanh(x, 0, 6));
}

trek_var *trek_softshrink(trek_var *x, double lambda)
{
    if (!(lambda >= 0))
        return trek_fail_null(TREK_ERR_ARGUMENT, "softshrink: lambda: %g; must not be negative", lambda);
    return trek_apply_softshrink(x, lambda);
}

trek_var *trek_celu(trek_var *x, double alpha)
{
    if (alpha == 0)
        return trek_fail_null(TREK_ERR_ARGUMENT, "celu: alpha: 0; must be another number");
    return trek_apply_celu(x, alpha);
}

trek_var *trek_softmin(trek_var *x, int dim) { return trek_softmax(trek_neg(x), dim); }

static bool floats(const char *name, trek_var *x)
{
    if (trek_dtype_is_float(trek_var_dtype(x)))
        return true;
    trek_fail(TREK_ERR_DTYPE, "%s: x: dtype %s; must be floating", name, trek_dtype_name(trek_var_dtype(x)));
    return false;
}

trek_var *trek_prelu(trek_var *x, trek_var *weight)
{
    TREK_NEEDED("prelu", x);
    TREK_NEEDED("prelu", weight);
    int64_t n = trek_var_numel(weight), channels = trek_var_ndim(x) > 1 ? trek_var_size(x, 1) : 1;
    if (trek_var_ndim(weight) > 1 || (n != 1 && n != channels))
        return trek_fail_null(TREK_ERR_ARGUMENT, "prelu: weight: wrong shape; must have 1 element or %lld", (long long)channels);
    if (!floats("prelu", x))
        return NULL;
    if (trek_var_dtype(x) != trek_var_dtype(weight))
        return trek_fail_null(TREK_ERR_DTYPE, "prelu: x and weight: dtypes %s and %s; must be equal",
                              trek_dtype_name(trek_var_dtype(x)), trek_dtype_name(trek_var_dtype(weight)));
    trek_shape shape = { .ndim = trek_var_ndim(x) };
    for (int d = 0; d < shape.ndim; d++)
        shape.sizes[d] = d == 1 ? n : 1;
    if (shape.ndim < 2 && n == 1)
        shape = trek_dims_none();
    /* slopes are selected, not multiplied: the other branch may be NaN */
    return trek_mul(x, trek_where(trek_gt_scalar(x, 0), trek_ones_like(x), trek_reshape(weight, shape)));
}

/* Returns the halves of x along dim. */
static bool halve(const char *name, trek_var *x, int dim, trek_var *halves[2])
{
    if (!x) {
        trek_fail_missing(name, "input");
        return false;
    }
    int64_t size = floats(name, x) ? trek_var_size(x, dim) : -1;
    if (size < 0)
        return false;
    if (size % 2 != 0) {
        trek_fail(TREK_ERR_SHAPE, "%s: dimension %d: %lld elements; must be an even number", name, dim, (long long)size);
        return false;
    }
    for (int k = 0; k < 2; k++)
        halves[k] = trek_narrow(x, dim, k * (size / 2), size / 2);
    return halves[1] != NULL;
}

trek_var *trek_glu(trek_var *x, int dim)
{
    trek_var *halves[2];
    return halve("glu", x, dim, halves) ? trek_apply_sigmoid_mul(halves[0], halves[1]) : NULL;
}

trek_var *trek_swiglu(trek_var *x, int dim)
{
    trek_var *halves[2];
    return halve("swiglu", x, dim, halves) ? trek_apply_silu_mul(halves[1], halves[0]) : NULL;
}

/* --- arithmetic -------------------------------------------------------------------------------------- */

trek_var *trek_lerp(trek_var *x, trek_var *y, double weight)
{
    TREK_NEEDED("lerp", x);
    TREK_NEEDED("lerp", y);
    return floats("lerp", x) && floats("lerp", y) ? trek_apply_lerp(x, y, weight) : NULL;
}

trek_var *trek_addcmul(trek_var *x, trek_var *y, trek_var *z, double value)
{
    TREK_NEEDED("addcmul", x);
    TREK_NEEDED("addcmul", y);
    TREK_NEEDED("addcmul", z);
    return floats("addcmul", x) && floats("addcmul", y) && floats("addcmul", z) ? trek_apply_addcmul(x, y, z, value) : NULL;
}

trek_var *trek_addcdiv(trek_var *x, trek_var *y, trek_var *z, double value)
{
    TREK_NEEDED("addcdiv", x);
    TREK_NEEDED("addcdiv", y);
    TREK_NEEDED("addcdiv", z);
    return floats("addcdiv", x) && floats("addcdiv", y) && floats("addcdiv", z) ? trek_apply_addcdiv(x, y, z, value) : NULL;
}

/* Converts integers to f32. */
static trek_var *floating(const char *name, trek_var *x)
{
    if (!x)
        trek_fail_missing(name, "input");
    return !x ? NULL : trek_dtype_is_float(trek_var_dtype(x)) ? x : trek_cast(x, TREK_F32);
}

trek_var *trek_digamma(trek_var *x)
{
    const char *before = trek_op_calling("digamma");
    return trek_op_called_end(before, trek_apply_polygamma(x, 0));
}

trek_var *trek_polygamma(int64_t n, trek_var *x)
{
    if (n < 0 || n > 100)
        return trek_fail_null(TREK_ERR_ARGUMENT, "polygamma: n: %lld; must be inside [0, 100]", (long long)n);
    return trek_apply_polygamma(x, (double)n);
}

static trek_var *logit_of(trek_var *const *in, const double *numbers)
{
    trek_var *x = in[0];
    const double eps = numbers[0];
    trek_dtype dtype = trek_var_dtype(x); /* of the result, which is rounded once */
    x = trek_cast(x, trek_dtype_is_16bit(dtype) ? TREK_F32 : dtype);
    if (eps > 0.5) /* values below eps become eps, above 1 - eps 1 - eps, as in PyTorch */
        x = trek_where(trek_lt_scalar(x, eps), trek_clamp(x, eps, eps), trek_clamp(x, 1 - eps, 1 - eps));
    else if (eps >= 0)
        x = trek_clamp(x, eps, 1 - eps);
    return trek_cast(trek_log(trek_div(x, trek_add_scalar(trek_neg(x), 1))), dtype);
}

trek_var *trek_logit(trek_var *x, double eps)
{
    x = floating("logit", x);
    return trek_by_blocks(logit_of, &x, 1, &eps);
}

trek_var *trek_deg2rad(trek_var *x) { return trek_mul_scalar(floating("deg2rad", x), 0.017453292519943295769); }
trek_var *trek_rad2deg(trek_var *x) { return trek_mul_scalar(floating("rad2deg", x), 57.295779513082320877); }

trek_var *trek_logaddexp(trek_var *x, trek_var *y)
{
    TREK_NEEDED("logaddexp", x);
    TREK_NEEDED("logaddexp", y);
    return trek_dtype_is_float(trek_var_dtype(x)) || floats("logaddexp", y) ? trek_apply_logaddexp(x, y, 1) : NULL;
}

trek_var *trek_nan_to_num(trek_var *x, double nan, double positive_infinity, double negative_infinity)
{
    TREK_NEEDED("nan_to_num", x);
    if (!trek_dtype_is_float(trek_var_dtype(x)))
        return trek_clone(x);
    const double numbers[] = { nan, positive_infinity, negative_infinity };
    for (int k = 0; k < 3; k++)
        if (!trek_dtype_holds(trek_var_dtype(x), numbers[k]))
            return trek_fail_null(TREK_ERR_ARGUMENT, "nan_to_num: value: %g; %s cannot hold it", numbers[k],
                                  trek_dtype_name(trek_var_dtype(x)));
    return trek_apply_nan_to_num(x, nan, positive_infinity, negative_infinity);
}

trek_var *trek_isclose(trek_var *x, trek_var *y, double rtol, double atol, bool equal_nan)
{
    TREK_NEEDED("isclose", x);
    TREK_NEEDED("isclose", y);
    trek_dtype dtype = trek_var_dtype(x);
    if (dtype != trek_var_dtype(y))
        return trek_fail_null(TREK_ERR_DTYPE, "isclose: x and y: dtypes %s and %s; must be equal", trek_dtype_name(dtype),
                              trek_dtype_name(trek_var_dtype(y)));
    if (!(rtol >= 0) || !(atol >= 0))
        return trek_fail_null(TREK_ERR_ARGUMENT, "isclose: rtol: %g, atol: %g; must not be negative", rtol, atol);
    x = trek_var_detach(x), y = trek_var_detach(y);
    trek_var *close = trek_eq(x, y);
    if (equal_nan && trek_dtype_is_float(dtype))
        close = trek_logical_or(close, trek_logical_and(trek_isnan(x), trek_isnan(y)));
    if (rtol == 0 && atol == 0)
        return close;
    if (!trek_dtype_is_float(dtype))
        x = trek_cast(x, TREK_F64), y = trek_cast(y, TREK_F64);
    trek_var *apart = trek_abs(trek_sub(x, y)), *allowed = trek_add_scalar(trek_abs(trek_mul_scalar(y, rtol)), atol);
    return trek_logical_or(close, trek_logical_and(trek_isfinite(apart), trek_le(apart, allowed)));
}

bool trek_allclose(trek_var *x, trek_var *y, double rtol, double atol, bool equal_nan)
{
    trek_scope scope = trek_scope_begin();
    trek_var *all = scope.depth == 0 ? NULL : trek_all(trek_isclose(x, y, rtol, atol, equal_nan), trek_dims_all(), false);
    bool close = all && trek_var_item(all) != 0;
    trek_scope_end(scope);
    return close && trek_error_status() == TREK_OK;
}

trek_var *trek_count_nonzero(trek_var *x, trek_dims_list dims)
{
    TREK_NEEDED("count_nonzero", x);
    return trek_sum(trek_ne_scalar(x, 0), dims, false);
}
