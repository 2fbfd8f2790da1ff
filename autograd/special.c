/* SPDX-License-Identifier: Apache-2.0 */
/* Less common element-wise functions, made from other ops. */
#include "autograd/special.h"

#include <math.h>

#include "autograd/blocks.h"
#include "autograd/calls_internal.h"
#include "autograd/ops.h"
#include "autograd/rows.h"
#include "autograd/tape_internal.h"

static bool floats(const char *name, const trek_var *x)
{
    trek_dtype dtype = trek_var_dtype(x);
    if (trek_dtype_is_float(dtype))
        return true;
    return trek_fail(TREK_ERR_DTYPE, "%s: x: dtype %s; must be floating", name, trek_dtype_name(dtype)), false;
}

/* Returns the dtype of the result, f32 for integers, which is also that of the computation. */
static trek_dtype common(const trek_var *x, const trek_var *y, const trek_var *z)
{
    trek_dtype dtype = trek_op_common_dtype((trek_tensor *[]){ x->data, y ? y->data : NULL, z ? z->data : NULL }, 3);
    return trek_dtype_is_float(dtype) ? dtype : TREK_F32;
}
static trek_dtype wide(trek_dtype dtype) { return dtype == TREK_F64 ? TREK_F64 : TREK_F32; }

trek_var *trek_lerp_var(trek_var *x, trek_var *y, trek_var *weight)
{
    TREK_NEEDED("lerp_var", x);
    TREK_NEEDED("lerp_var", y);
    TREK_NEEDED("lerp_var", weight);
    if (!floats("lerp_var", x) || !floats("lerp_var", y) || !floats("lerp_var", weight))
        return NULL;
    return trek_apply_lerp_var(x, y, weight);
}

/* numbers: decimals, and the power of ten */
static trek_var *round_decimals_of(trek_var *const *in, const double *numbers)
{
    const double decimals = numbers[0], ten = numbers[1];
    trek_dtype dtype = trek_var_dtype(in[0]);
    trek_var *x = trek_cast(in[0], wide(dtype));
    trek_var *y = trek_round(decimals > 0 ? trek_mul_scalar(x, ten) : trek_div_scalar(x, ten));
    return trek_cast(decimals > 0 ? trek_div_scalar(y, ten) : trek_mul_scalar(y, ten), dtype);
}

trek_var *trek_round_decimals(trek_var *x, int64_t decimals)
{
    TREK_NEEDED("round_decimals", x);
    if (!floats("round_decimals", x))
        return NULL;
    trek_dtype dtype = trek_var_dtype(x), work = wide(dtype);
    int64_t most = work == TREK_F64 ? 300 : 38;
    if (decimals > most || decimals < -most)
        return trek_fail_null(TREK_ERR_ARGUMENT, "round_decimals: decimals: %lld, for %s; must be within +-%lld",
                              (long long)decimals,
                              trek_dtype_name(dtype), (long long)most);
    if (decimals == 0)
        return trek_round(x); /* which is exact in each dtype */
    return trek_by_blocks(round_decimals_of, &x, 1, (double[]){ (double)decimals, pow(10, fabs((double)decimals)) });
}

trek_var *trek_logaddexp2(trek_var *x, trek_var *y)
{
    TREK_NEEDED("logaddexp2", x);
    TREK_NEEDED("logaddexp2", y);
    if (!floats("logaddexp2", x) || !floats("logaddexp2", y))
        return NULL;
    const char *before = trek_op_calling("logaddexp2");
    return trek_op_called_end(before, trek_apply_logaddexp(x, y, 0.69314718055994530942));
}

/* --- powers of two ------------------------------------------------------------------------------------- */

enum { LEAST = -1074, MOST = 1023 }; /* exponents of f64's powers of two */

/* Multiplies x (f64) by 2^exponent (i64) with a table and in three steps, because 2^exponent may not be representable
 * although the product is. */
static trek_var *scaled(trek_var *x, trek_var *exponent)
{
    trek_tensor *powers = trek_tensor_empty(trek_dims(MOST - LEAST + 1), TREK_F64, trek_cpu(0));
    if (!powers || !x || !exponent)
        return trek_tensor_release(powers), NULL;
    for (int k = LEAST; k <= MOST; k++)
        ((double *)(void *)powers->data)[k - LEAST] = ldexp(1, k);
    trek_var *table = trek_to(trek_var_from(powers), trek_var_device(x)), *rest = exponent;
    for (int step = 0; x && step < 3; step++) {
        trek_var *part = trek_clamp(rest, -1000, 1000);
        trek_var *index = trek_reshape(trek_add_scalar(part, -LEAST), trek_dims(-1));
        trek_var *factor = trek_reshape(trek_index_select(table, 0, index), trek_var_shape(exponent));
        x = trek_mul(x, factor);
        rest = trek_sub(rest, part);
    }
    return x;
}

trek_var *trek_ldexp(trek_var *x, trek_var *exponent)
{
    TREK_NEEDED("ldexp", x);
    TREK_NEEDED("ldexp", exponent);
    trek_dtype of = trek_var_dtype(exponent), dtype = common(x, NULL, NULL);
    if (trek_dtype_is_float(of) || of == TREK_BOOL)
        return trek_fail_null(TREK_ERR_DTYPE, "ldexp: exponent: dtype %s; must be an integer dtype", trek_dtype_name(of));
    trek_var *within = trek_clamp(trek_cast(exponent, TREK_I64), -3000, 3000); /* beyond this everything is 0 or infinite */
    return trek_cast(scaled(trek_cast(x, TREK_F64), within), dtype);
}

trek_var *trek_frexp(trek_var *x, trek_var **exponent)
{
    if (exponent)
        *exponent = NULL;
    TREK_NEEDED("frexp", x);
    if (!floats("frexp", x))
        return NULL;
    trek_var *size = trek_abs(trek_cast(trek_var_detach(x), TREK_F64));
    trek_var *none = trek_logical_or(trek_eq_scalar(size, 0), trek_logical_not(trek_isfinite(size)));
    size = trek_masked_fill(size, none, 0.5);
    trek_var *e = trek_add_scalar(trek_cast(trek_floor(trek_log2(size)), TREK_I64), 1); /* or an adjacent one */
    trek_var *m = scaled(size, trek_neg(e));
    e = trek_add(e, trek_sub(trek_cast(trek_ge_scalar(m, 1), TREK_I64), trek_cast(trek_lt_scalar(m, 0.5), TREK_I64)));
    trek_var *mantissa = e ? trek_cast(scaled(trek_cast(x, TREK_F64), trek_neg(e)), trek_var_dtype(x)) : NULL;
    trek_var *whole = mantissa ? trek_cast(e, TREK_I32) : NULL;
    if (exponent)
        *exponent = whole;
    return whole ? mantissa : NULL;
}

/* --- logarithms ------------------------------------------------------------------------------------------ */

trek_var *trek_entr(trek_var *x)
{
    TREK_NEEDED("entr", x);
    trek_dtype dtype = common(x, NULL, NULL);
    x = trek_cast(x, wide(dtype));
    trek_var *zero = trek_eq_scalar(x, 0), *below = trek_lt_scalar(x, 0), *outside = trek_logical_or(zero, below);
    trek_var *inside = trek_masked_fill(x, outside, 1), *y = trek_neg(trek_mul(inside, trek_log(inside)));
    return trek_cast(trek_masked_fill(trek_masked_fill(y, zero, 0), below, -INFINITY), dtype);
}

trek_var *trek_xlog1py(trek_var *x, trek_var *y)
{
    TREK_NEEDED("xlog1py", x);
    TREK_NEEDED("xlog1py", y);
    trek_dtype dtype = common(x, y, NULL);
    x = trek_cast(x, wide(dtype));
    y = trek_cast(y, wide(dtype));
    trek_var *outside = trek_logical_or(trek_le_scalar(y, -1), trek_eq_scalar(y, INFINITY));
    trek_var *nothing = trek_logical_and(trek_eq_scalar(x, 0), outside);
    return trek_cast(trek_mul(x, trek_log1p(trek_masked_fill(y, nothing, 0))), dtype);
}

static trek_var *incomplete_gamma(const char *name, trek_var *a, trek_var *x, bool upper)
{
    TREK_NEEDED(name, a, x);
    const char *before = trek_op_calling(name);
    return trek_op_called_end(before, trek_apply_igamma(a, x, upper));
}
trek_var *trek_igamma(trek_var *a, trek_var *x) { return incomplete_gamma("igamma", a, x, false); }
trek_var *trek_igammac(trek_var *a, trek_var *x) { return incomplete_gamma("igammac", a, x, true); }
