/* SPDX-License-Identifier: Apache-2.0 */
/* Rounded quotients and functions of two numbers, made from other ops. */
#include <math.h>

#include "autograd/blocks.h"
#include "autograd/function.h"
#include "autograd/ops.h"
#include "autograd/rules_internal.h"
#include "autograd/tape_internal.h"

static bool integers(trek_var *x) { return !trek_dtype_is_float(trek_var_dtype(x)); }

/* Determines the dtype of the result, and converts both inputs to the dtype of the computation. Returns false on
 * failure. */
static bool two(const char *name, trek_var **x, trek_var **y, bool floats, trek_dtype *dtype)
{
    *dtype = trek_op_common_dtype((trek_tensor *[]){ (*x)->data, (*y)->data }, 2);
    *dtype = floats && !trek_dtype_is_float(*dtype) ? TREK_F32 : *dtype;
    if (*dtype == TREK_BOOL)
        return trek_fail(TREK_ERR_DTYPE, "%s: input: dtype bool is not supported", name), false;
    trek_dtype work = trek_dtype_is_16bit(*dtype) ? TREK_F32 : *dtype;
    *x = trek_cast(*x, work);
    *y = trek_cast(*y, work);
    return *x && *y;
}

/* --- quotients --------------------------------------------------------------------------------------- */

trek_var *trek_div_mode(trek_var *x, trek_var *y, trek_rounding rounding)
{
    TREK_NEEDED("div_mode", x);
    TREK_NEEDED("div_mode", y);
    if (rounding == TREK_ROUNDING_NONE)
        return trek_div(x, y);
    if (rounding != TREK_ROUNDING_TRUNC && rounding != TREK_ROUNDING_FLOOR)
        return trek_fail_null(TREK_ERR_ARGUMENT, "div_mode: rounding: %d; must be a value of trek_rounding", (int)rounding);
    return trek_apply_div_rounded(x, y, rounding == TREK_ROUNDING_FLOOR);
}

trek_var *trek_floor_divide(trek_var *x, trek_var *y) { return trek_div_mode(x, y, TREK_ROUNDING_FLOOR); }

/* --- numbers of two ---------------------------------------------------------------------------------- */

trek_var *trek_lcm(trek_var *x, trek_var *y)
{
    trek_var *divisor = trek_gcd(x, y), *none = divisor ? trek_eq_scalar(divisor, 0) : NULL;
    return trek_abs(trek_mul(trek_div_mode(x, trek_masked_fill(divisor, none, 1), TREK_ROUNDING_TRUNC), y));
}

trek_var *trek_signbit(trek_var *x)
{
    TREK_NEEDED("signbit", x);
    x = trek_var_detach(x);
    if (!x || integers(x))
        return trek_lt_scalar(x, 0);
    trek_tensor *one = trek_tensor_full(trek_dims_none(), 1, trek_var_dtype(x), trek_var_device(x));
    trek_var *left = one ? trek_var_from(one) : NULL; /* the input with dimensions decides how the result lies */
    return trek_lt_scalar(left ? trek_copysign(left, x) : NULL, 0);
}

/* The larger or the smaller of two numbers; the other one if one is NaN. */
static trek_var *taken_of(trek_var *const *in, const double *larger)
{
    trek_var *better = *larger != 0 ? trek_maximum(in[0], in[1]) : trek_minimum(in[0], in[1]);
    return trek_where(trek_isnan(in[1]), in[0], trek_where(trek_isnan(in[0]), in[1], better));
}

static trek_var *taken(const char *name, trek_var *x, trek_var *y, bool larger)
{
    TREK_NEEDED(name, x);
    TREK_NEEDED(name, y);
    return trek_by_blocks(taken_of, (trek_var *[]){ x, y }, 2, (double[]){ larger });
}

trek_var *trek_fmax(trek_var *x, trek_var *y) { return taken("fmax", x, y, true); }
trek_var *trek_fmin(trek_var *x, trek_var *y) { return taken("fmin", x, y, false); }

static trek_var *xlogy_of(trek_var *const *in, const double *numbers)
{
    trek_var *x = in[0], *y = in[1];
    trek_dtype dtype;
    (void)numbers;
    if (!two("xlogy", &x, &y, true, &dtype))
        return NULL;
    trek_var *given = trek_var_detach(y), *between = trek_isfinite(trek_log(given));
    trek_var *none = trek_logical_and(trek_eq_scalar(x, 0), trek_logical_not(trek_logical_or(between, trek_isnan(given))));
    return trek_cast(trek_mul(x, trek_log(trek_where(none, trek_ones_like(y), y))), dtype);
}

trek_var *trek_xlogy(trek_var *x, trek_var *y)
{
    TREK_NEEDED("xlogy", x);
    TREK_NEEDED("xlogy", y);
    return trek_by_blocks(xlogy_of, (trek_var *[]){ x, y }, 2, NULL);
}

trek_var *trek_heaviside(trek_var *x, trek_var *y)
{
    TREK_NEEDED("heaviside", x);
    TREK_NEEDED("heaviside", y);
    if (trek_var_dtype(x) != trek_var_dtype(y))
        return trek_fail_null(TREK_ERR_DTYPE, "heaviside: x and values: dtypes %s and %s; must be equal",
                              trek_dtype_name(trek_var_dtype(x)), trek_dtype_name(trek_var_dtype(y)));
    x = trek_var_detach(x), y = trek_var_detach(y);
    return trek_where(trek_eq_scalar(x, 0), y, x ? trek_cast(trek_gt_scalar(x, 0), trek_var_dtype(x)) : NULL);
}

trek_var *trek_clamp_var(trek_var *x, trek_var *low, trek_var *high)
{
    TREK_NEEDED("clamp_var", x);
    if (!low && !high)
        return trek_fail_null(TREK_ERR_ARGUMENT, "clamp_var: low and high: both NULL; one must be given");
    if (low && high && (!integers(x) || !integers(low) || !integers(high)))
        return trek_apply_clamp_var(x, low, high);
    x = low ? trek_maximum(x, low) : x;
    return high ? trek_minimum(x, high) : x;
}

static trek_var *sinc_of(trek_var *const *in, const double *numbers)
{
    trek_var *x = in[0];
    (void)numbers;
    trek_dtype dtype = integers(x) ? TREK_F32 : trek_var_dtype(x);
    trek_var *angle = trek_cast(x, trek_dtype_is_16bit(dtype) ? TREK_F32 : dtype), *zero = trek_eq_scalar(x, 0);
    angle = trek_mul_scalar(angle, 3.14159265358979323846);
    trek_var *near = trek_sub(trek_ones_like(angle), trek_div_scalar(trek_square(angle), 6)); /* also has its curvature at 0 */
    trek_var *other = trek_masked_fill(angle, zero, 1);
    return trek_cast(trek_where(zero, near, trek_div(trek_sin(other), other)), dtype);
}

trek_var *trek_sinc(trek_var *x)
{
    TREK_NEEDED("sinc", x);
    return trek_by_blocks(sinc_of, &x, 1, NULL);
}

static trek_var *is(const char *name, trek_var *x, double value)
{
    TREK_NEEDED(name, x);
    return integers(x) ? trek_ne(x, x) : trek_eq_scalar(x, value);
}

trek_var *trek_isposinf(trek_var *x) { return is("isposinf", x, INFINITY); }
trek_var *trek_isneginf(trek_var *x) { return is("isneginf", x, -INFINITY); }
