/* SPDX-License-Identifier: Apache-2.0 */
/* Quotients that are rounded, and functions of two numbers, made of other ops. */
#include <math.h>

#include "autograd/function.h"
#include "autograd/ops.h"
#include "autograd/rules_internal.h"
#include "autograd/tape_internal.h"

#define NEEDED(name, v)                          \
    do {                                         \
        if (!(v))                                \
            return trek_fail_missing(name, "an input"), NULL; \
    } while (0)

static bool integers(trek_var *x) { return !trek_dtype_is_float(trek_var_dtype(x)); }

/* What two come to: one without dimensions counts where it is of a higher kind, as in the op table. */
static trek_dtype common(trek_var *x, trek_var *y)
{
    trek_dtype a = trek_var_dtype(x), b = trek_var_dtype(y);
    int kind_a = trek_dtype_is_float(a) ? 2 : a != TREK_BOOL, kind_b = trek_dtype_is_float(b) ? 2 : b != TREK_BOOL;
    bool flat_x = trek_var_ndim(x) == 0, flat_y = trek_var_ndim(y) == 0;
    if (flat_x != flat_y && (flat_y ? kind_a >= kind_b : kind_b >= kind_a))
        return flat_y ? a : b;
    return trek_dtype_promote(a, b);
}

/* The dtype of a result of two, and both as they are computed; false and an error. */
static bool two(const char *name, trek_var **x, trek_var **y, bool floats, trek_dtype *dtype)
{
    *dtype = common(*x, *y);
    *dtype = floats && !trek_dtype_is_float(*dtype) ? TREK_F32 : *dtype;
    if (*dtype == TREK_BOOL)
        return trek_fail(TREK_ERR_DTYPE, "%s: dtype bool is not supported", name), false;
    trek_dtype work = trek_dtype_is_16bit(*dtype) ? TREK_F32 : *dtype;
    *x = trek_cast(*x, work);
    *y = trek_cast(*y, work);
    return *x && *y;
}

/* --- quotients --------------------------------------------------------------------------------------- */

/* Of integers: the quotient of what y divides in f64, then what that has lost of i64, in wrapping numbers. */
static trek_var *exact_quotient(trek_var *x, trek_var *y, bool down, trek_dtype dtype)
{
    trek_var *rest = trek_fmod(x, y), *by = trek_cast(y, TREK_I64), *real = trek_cast(y, TREK_F64);
    trek_var *whole = rest ? trek_cast(trek_sub(x, rest), TREK_I64) : NULL;
    trek_var *made = trek_cast(trek_round(trek_div(trek_cast(whole, TREK_F64), real)), TREK_I64);
    if (dtype == TREK_I64) {
        trek_var *lost = trek_cast(trek_sub(whole, trek_mul(made, by)), TREK_F64);
        made = trek_add(made, trek_cast(trek_round(trek_div(lost, real)), TREK_I64));
    }
    if (down) {
        trek_var *other = trek_ne(trek_lt_scalar(rest, 0), trek_lt_scalar(by, 0));
        made = trek_sub(made, trek_cast(trek_logical_and(other, trek_ne_scalar(rest, 0)), TREK_I64));
    }
    return trek_cast(made, dtype);
}

/* The sign of a quotient that is 0 is that of x / y. */
static trek_var *floored(trek_var *x, trek_var *y)
{
    trek_var *plain = trek_div(x, y), *made = plain ? trek_floored_quotient(x, y) : NULL;
    return trek_where(trek_eq_scalar(made, 0), trek_mul_scalar(plain, 0), made);
}

static trek_status quotient(trek_function_context *context, trek_var *const *in, int n_in, trek_var **out, int n_out)
{
    (void)n_out;
    trek_rounding rounding = *(const trek_rounding *)trek_function_data(context);
    trek_var *x = in[0], *y = in[1];
    trek_dtype dtype;
    if (trek_save_for_backward(context, in, n_in) != TREK_OK || !two("div_mode", &x, &y, false, &dtype))
        return trek_error_status();
    if (!trek_dtype_is_float(dtype))
        out[0] = exact_quotient(x, y, rounding == TREK_ROUND_FLOOR, dtype);
    else
        out[0] = trek_cast(rounding == TREK_ROUND_TRUNC ? trek_trunc(trek_div(x, y)) : floored(x, y), dtype);
    return out[0] ? TREK_OK : trek_error_status();
}

static trek_status flat(trek_function_context *context, trek_var *const *grads, int n, trek_var **to, int n_in)
{
    (void)grads, (void)n;
    for (int k = 0; k < n_in; k++)
        to[k] = trek_needs_grad(context, k) ? trek_zeros_like(trek_saved(context, k)) : NULL;
    return trek_error_status();
}

static const trek_function quotient_function = { .name = "div_mode", .forward = quotient, .backward = flat, .free = trek_free };

trek_var *trek_div_mode(trek_var *x, trek_var *y, trek_rounding rounding)
{
    NEEDED("div_mode", x);
    NEEDED("div_mode", y);
    if (rounding == TREK_ROUND_NONE)
        return trek_div(x, y);
    if (rounding != TREK_ROUND_TRUNC && rounding != TREK_ROUND_FLOOR)
        return trek_fail_null(TREK_ERR_ARGUMENT, "div_mode: %d is no rounding", (int)rounding);
    trek_rounding *data = trek_alloc(sizeof *data);
    if (!data)
        return NULL;
    *data = rounding;
    return trek_function_apply_one(&quotient_function, data, (trek_var *[]){ x, y }, 2);
}

trek_var *trek_floor_divide(trek_var *x, trek_var *y) { return trek_div_mode(x, y, TREK_ROUND_FLOOR); }

/* Of sizes, which remainders are exact of; signs by choosing, so that the slope at 0 is 1. */
trek_var *trek_fmod(trek_var *x, trek_var *y)
{
    NEEDED("fmod", x);
    NEEDED("fmod", y);
    trek_dtype dtype;
    if (!two("fmod", &x, &y, false, &dtype))
        return NULL;
    if (!trek_dtype_is_float(dtype)) {
        trek_var *rest = trek_remainder(x, y), *other = trek_ne(trek_lt_scalar(x, 0), trek_lt_scalar(y, 0));
        return trek_where(trek_logical_and(other, trek_ne_scalar(rest, 0)), trek_sub(rest, y), rest);
    }
    trek_var *below = trek_lt_scalar(x, 0), *size = trek_where(below, trek_neg(x), x);
    trek_var *rest = trek_remainder(size, trek_where(trek_lt_scalar(y, 0), trek_neg(y), y));
    return trek_cast(trek_where(below, trek_neg(rest), rest), dtype);
}

/* --- numbers of two ---------------------------------------------------------------------------------- */

/* In units of the larger one, a constant: whichever it is, values and derivatives are the same. */
trek_var *trek_hypot(trek_var *x, trek_var *y)
{
    NEEDED("hypot", x);
    NEEDED("hypot", y);
    trek_dtype dtype;
    if (integers(x) && integers(y))
        return trek_fail_null(TREK_ERR_DTYPE, "hypot: needs a floating dtype, not %s", trek_dtype_name(trek_var_dtype(x)));
    if (!two("hypot", &x, &y, true, &dtype))
        return NULL;
    trek_var *unit = trek_maximum(trek_abs(trek_var_detach(x)), trek_abs(trek_var_detach(y)));
    unit = trek_masked_fill(unit, trek_logical_or(trek_eq_scalar(unit, 0), trek_logical_not(trek_isfinite(unit))), 1);
    trek_var *sum = trek_add(trek_square(trek_div(x, unit)), trek_square(trek_div(y, unit)));
    return trek_cast(trek_mul(trek_sqrt(sum), unit), dtype);
}

trek_var *trek_signbit(trek_var *x)
{
    NEEDED("signbit", x);
    x = trek_var_detach(x);
    trek_var *below = trek_lt_scalar(x, 0);
    return !x || integers(x) ? below : trek_logical_or(below, trek_lt_scalar(trek_reciprocal(x), 0));
}

trek_var *trek_copysign(trek_var *x, trek_var *y)
{
    NEEDED("copysign", x);
    NEEDED("copysign", y);
    trek_dtype dtype = common(x, y);
    dtype = trek_dtype_is_float(dtype) ? dtype : TREK_F32;
    trek_var *sign = trek_signbit(y), *size = sign ? trek_abs(trek_cast(x, dtype)) : NULL;
    return trek_where(sign, trek_neg(size), size);
}

trek_var *trek_xlogy(trek_var *x, trek_var *y)
{
    NEEDED("xlogy", x);
    NEEDED("xlogy", y);
    trek_dtype dtype;
    if (!two("xlogy", &x, &y, true, &dtype))
        return NULL;
    trek_var *given = trek_var_detach(y), *between = trek_isfinite(trek_log(given));
    trek_var *none = trek_logical_and(trek_eq_scalar(x, 0), trek_logical_not(trek_logical_or(between, trek_isnan(given))));
    return trek_cast(trek_mul(x, trek_log(trek_where(none, trek_ones_like(y), y))), dtype);
}

trek_var *trek_heaviside(trek_var *x, trek_var *y)
{
    NEEDED("heaviside", x);
    NEEDED("heaviside", y);
    if (trek_var_dtype(x) != trek_var_dtype(y))
        return trek_fail_null(TREK_ERR_DTYPE, "heaviside: %s and %s", trek_dtype_name(trek_var_dtype(x)),
                              trek_dtype_name(trek_var_dtype(y)));
    x = trek_var_detach(x), y = trek_var_detach(y);
    return trek_where(trek_eq_scalar(x, 0), y, x ? trek_cast(trek_gt_scalar(x, 0), trek_var_dtype(x)) : NULL);
}

trek_var *trek_clamp_var(trek_var *x, trek_var *low, trek_var *high)
{
    NEEDED("clamp_var", x);
    if (!low && !high)
        return trek_fail_null(TREK_ERR_ARGUMENT, "clamp_var: a limit is needed");
    x = low ? trek_maximum(x, low) : x;
    return high ? trek_minimum(x, high) : x;
}

trek_var *trek_sinc(trek_var *x)
{
    NEEDED("sinc", x);
    trek_dtype dtype = integers(x) ? TREK_F32 : trek_var_dtype(x);
    trek_var *angle = trek_cast(x, trek_dtype_is_16bit(dtype) ? TREK_F32 : dtype), *zero = trek_eq_scalar(x, 0);
    angle = trek_mul_scalar(angle, 3.14159265358979323846);
    trek_var *near = trek_sub(trek_ones_like(angle), trek_div_scalar(trek_square(angle), 6)); /* its curve at 0, too */
    trek_var *other = trek_masked_fill(angle, zero, 1);
    return trek_cast(trek_where(zero, near, trek_div(trek_sin(other), other)), dtype);
}

static trek_var *is(const char *name, trek_var *x, double value)
{
    NEEDED(name, x);
    return integers(x) ? trek_ne(x, x) : trek_eq_scalar(x, value);
}

trek_var *trek_isposinf(trek_var *x) { return is("isposinf", x, INFINITY); }
trek_var *trek_isneginf(trek_var *x) { return is("isneginf", x, -INFINITY); }
