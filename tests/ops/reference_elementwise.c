/* SPDX-License-Identifier: Apache-2.0 */
/* References of the element-wise rows: one double at a time, by libm. */
#include <float.h>
#include <math.h>

#include "tests/ops/suite.h"

#define REFERENCE(name) int reference_##name(const op_array *const *in, int n, const trek_attrs *a, op_array *out)
#define UNUSED (void)n, (void)a

typedef enum result_kind { KEEP, FLOAT, BOOLEAN } result_kind;

static trek_dtype result_dtype(trek_dtype dtype, result_kind kind)
{
    return kind == BOOLEAN ? TREK_BOOL : kind == FLOAT && !dtype_floats(dtype) ? TREK_F32 : dtype;
}

static int each(const op_array *x, op_array *out, result_kind kind, double (*f)(double x))
{
    array_like(&out[0], x, result_dtype(x->dtype, kind));
    for (int64_t i = 0; i < x->numel; i++)
        array_set(&out[0], i, f(x->v[i]));
    return 1;
}

#define UNARY(name, kind, expression)                                          \
    static double name##_of(double x)                                          \
    {                                                                          \
        return expression;                                                     \
    }                                                                          \
    REFERENCE(name)                                                            \
    {                                                                          \
        UNUSED;                                                                \
        return each(in[0], out, kind, name##_of);                              \
    }

static double phi(double x)
{
    return 0.5 * erfc(-x / sqrt(2));
}

UNARY(neg, KEEP, -x)
UNARY(abs, KEEP, fabs(x))
UNARY(sign, KEEP, (x > 0) - (x < 0)) /* of NaN 0, as in PyTorch */
UNARY(exp, FLOAT, exp(x))
UNARY(expm1, FLOAT, expm1(x))
UNARY(log, FLOAT, log(x))
UNARY(log1p, FLOAT, log1p(x))
UNARY(log2, FLOAT, log2(x))
UNARY(log10, FLOAT, log10(x))
UNARY(sqrt, FLOAT, sqrt(x))
UNARY(rsqrt, FLOAT, 1 / sqrt(x))
UNARY(reciprocal, FLOAT, 1 / x)
UNARY(square, KEEP, x * x)
UNARY(sin, FLOAT, sin(x))
UNARY(cos, FLOAT, cos(x))
UNARY(tan, FLOAT, tan(x))
UNARY(asin, FLOAT, asin(x))
UNARY(acos, FLOAT, acos(x))
UNARY(atan, FLOAT, atan(x))
UNARY(sinh, FLOAT, sinh(x))
UNARY(cosh, FLOAT, cosh(x))
UNARY(tanh, FLOAT, tanh(x))
UNARY(sigmoid, FLOAT, x < 0 ? exp(x) / (1 + exp(x)) : 1 / (1 + exp(-x)))
UNARY(erf, FLOAT, erf(x))
UNARY(relu, KEEP, x < 0 ? 0 : x)
UNARY(silu, KEEP, x < 0 ? x * exp(x) / (1 + exp(x)) : x / (1 + exp(-x)))
UNARY(floor, KEEP, floor(x))
UNARY(ceil, KEEP, ceil(x))
UNARY(round, KEEP, x - remainder(x, 1))
UNARY(trunc, KEEP, trunc(x))
UNARY(isnan, BOOLEAN, x != x)
UNARY(isinf, BOOLEAN, x == INFINITY || x == -INFINITY)
UNARY(isfinite, BOOLEAN, x - x == 0)
UNARY(logical_not, BOOLEAN, !(x != 0))
UNARY(copy, KEEP, x)

/* --- with a flag or numbers ---------------------------------------------------- */

static double gelu_tanh(double x)
{
    return 0.5 * x * (1 + tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}

REFERENCE(gelu)
{
    array_like(&out[0], in[0], in[0]->dtype);
    for (int64_t i = 0; i < in[0]->numel; i++)
        out[0].v[i] = a->i[0] ? gelu_tanh(in[0]->v[i]) : in[0]->v[i] * phi(in[0]->v[i]);
    return 1;
}

static double sigmoid_at(double x) { return x < 0 ? exp(x) / (1 + exp(x)) : 1 / (1 + exp(-x)); }

/* log gamma's derivatives of order 1 and 2, from 50 terms of their sums on; negative x by the recurrence. */
static double gamma_slope(double x, int order)
{
    double sum = 0;
    if (x <= 0 && x == floor(x))
        return order > 1 ? INFINITY : x == 0 ? copysign(INFINITY, -x) : NAN;
    for (; x < 50; x++)
        sum += order > 1 ? 1 / (x * x) : -1 / x;
    if (order > 1)
        return sum + 1 / x + 1 / (2 * x * x) + 1 / (6 * x * x * x) - 1 / (30 * pow(x, 5)) + 1 / (42 * pow(x, 7));
    return sum + log(x) - 1 / (2 * x) - 1 / (12 * x * x) + 1 / (120 * pow(x, 4)) - 1 / (252 * pow(x, 6));
}

/* By halving. */
static double erf_inverse(double y)
{
    double low = -6, high = 6;
    if (!(fabs(y) < 1))
        return fabs(y) == 1 ? y * INFINITY : NAN;
    if (fabs(y) < 1e-8)
        return y * sqrt(M_PI) / 2;
    for (int k = 0; k < 100; k++) {
        double middle = (low + high) / 2;
        *(erf(middle) < y ? &low : &high) = middle;
    }
    return low;
}

/* By Bessel's integral, which the trapezoidal rule gives to all digits: the mean of e^(x cos t - |x|) cos(t)^order. */
static double bessel_mean(double x, int order)
{
    enum { HALF = 200 }; /* steps of half the circle; the other half has the same cosines */
    static double cosines[HALF + 1];
    double sum = 0;
    for (int k = 0; k <= HALF && cosines[0] == 0; k++)
        cosines[HALF - k] = cos(M_PI * (HALF - k) / HALF);
    if (order == 1 && fabs(x) < 1e-5)
        return x / 2 * exp(-fabs(x));
    for (int k = 0; k <= HALF; k++) {
        double c = cosines[k], term = exp(x * c - fabs(x)) * (order == 0 ? 1 : order == 1 ? c : c * c);
        sum += k == 0 || k == HALF ? term : 2 * term;
    }
    return sum / (2 * HALF);
}

/* i0, i0e, i1, i1e: the derivatives are those under the integral. */
static double bessel_at(double x, int kind, bool slope)
{
    const bool scaled = kind == TREK_OP_i0e || kind == TREK_OP_i1e;
    const int order = kind == TREK_OP_i1 || kind == TREK_OP_i1e;
    double value = bessel_mean(x, order + slope), sign = x > 0 ? 1 : x < 0 ? -1 : 0;
    if (scaled)
        return slope ? value - sign * bessel_mean(x, order) : value;
    return value * exp(fabs(x));
}

static double special_at(double x, int kind, bool slope)
{
    switch (kind) {
    case TREK_OP_i0:
    case TREK_OP_i0e:
    case TREK_OP_i1:
    case TREK_OP_i1e:
        return bessel_at(x, kind, slope);
    case TREK_OP_log_ndtr:
        return slope ? exp(-x * x / 2) / sqrt(2 * M_PI) / phi(x) : log(phi(x));
    case TREK_OP_asinh: return slope ? 1 / sqrt(x * x + 1) : asinh(x);
    case TREK_OP_acosh: return slope ? 1 / sqrt(x * x - 1) : acosh(x);
    case TREK_OP_atanh: return slope ? 1 / (1 - x * x) : atanh(x);
    case TREK_OP_erfc: return slope ? -2 / sqrt(M_PI) * exp(-x * x) : erfc(x);
    case TREK_OP_erfinv: return slope ? sqrt(M_PI) / 2 * exp(pow(erf_inverse(x), 2)) : erf_inverse(x);
    case TREK_OP_exp2: return slope ? M_LN2 * exp2(x) : exp2(x);
    case TREK_OP_lgamma: return slope ? gamma_slope(x, 1) : lgamma(x);
    default: return gamma_slope(x, slope ? 2 : 1); /* of order 0 */
    }
}

/* The op's value, or its slope. */
static double sloped_at(double x, int id, const trek_attrs *a, bool slope)
{
    const double s = a->f[0], t = a->f[1], scale = 1.0507009873554805, alpha = 1.6732632423543772;
    const double softplus = x > 0 ? x + log1p(exp(-x)) : log1p(exp(x)), w = tanh(softplus);
    switch (id) {
    case TREK_OP_hardshrink: return fabs(x) <= s ? 0 : slope ? 1 : x;
    case TREK_OP_hardsigmoid: return slope ? (fabs(x) < 3 ? 1 / 6.0 : 0) : x != x ? x : fmin(fmax(x + 3, 0), 6) / 6;
    case TREK_OP_hardtanh: return slope ? (x > s && x < t) : x != x ? x : fmin(fmax(x, s), t);
    case TREK_OP_hardswish: return slope ? (x <= -3 ? 0 : x >= 3 ? 1 : x / 3 + 0.5) : x <= -3 ? 0 : x * fmin(x + 3, 6) / 6;
    case TREK_OP_logsigmoid: return slope ? sigmoid_at(-x) : x > 0 ? -log1p(exp(-x)) : x - log1p(exp(x));
    case TREK_OP_selu: return scale * (slope ? (x > 0 ? 1 : alpha * exp(x)) : x > 0 ? x : alpha * expm1(x));
    case TREK_OP_celu: return slope ? (x > 0 ? 1 : exp(x / s)) : x > 0 ? x : s * expm1(x / s);
    case TREK_OP_elu: return slope ? (x > 0 ? 1 : s * exp(x)) : x > 0 ? x : s * expm1(x);
    case TREK_OP_leaky_relu: return slope ? (x > 0 ? 1 : s) : x > 0 ? x : s * x;
    case TREK_OP_mish: return slope ? w + x * sigmoid_at(x) * (1 - w * w) : x * w;
    case TREK_OP_softshrink: return slope ? fabs(x) > s : x > s ? x - s : x < -s ? x + s : x * 0;
    case TREK_OP_softsign: return slope ? pow(1 + fabs(x), -2) : x / (1 + fabs(x));
    case TREK_OP_tanhshrink: return slope ? tanh(x) * tanh(x) : x - tanh(x);
    case TREK_OP_div_scalar: return x / s;
    case TREK_OP_nan_to_num: return isnan(x) ? s : isinf(x) ? (x > 0 ? t : a->f[2]) : x;
    case TREK_OP_threshold: return x <= s ? (slope ? 0 : t) : slope ? 1 : x;
    default: return special_at(x, id, slope);
    }
}

static int sloped_values(const op_array *x, int id, const trek_attrs *a, op_array *out)
{
    array_like(&out[0], x, result_dtype(x->dtype, FLOAT));
    for (int64_t i = 0; i < x->numel; i++)
        array_set(&out[0], i, sloped_at(x->v[i], id, a, false));
    return 1;
}

/* The slopes of i0e and i1e are differences of means of which none is larger than 1, and i1e's crosses 0. */
static int sloped_gradient(const op_array *const *in, int id, const trek_attrs *a, op_array *out)
{
    array_like(&out[0], in[0], in[0]->dtype);
    if (id == TREK_OP_i0e || id == TREK_OP_i1e)
        array_scaled(&out[0]);
    for (int64_t i = 0; i < in[0]->numel; i++) {
        out[0].v[i] = in[0]->v[i] * sloped_at(in[1]->v[i], id, a, true);
        if (out[0].scale)
            out[0].scale[i] = fabs(in[0]->v[i]) * bessel_mean(in[1]->v[i], 0);
    }
    return 1;
}

#define SLOPED(name)                                                                              \
    REFERENCE(name) { return (void)n, sloped_values(in[0], TREK_OP_##name, a, out); }            \
    REFERENCE(name##_backward) { return (void)n, sloped_gradient(in, TREK_OP_##name, a, out); }
UNARY(ndtr, FLOAT, phi(x))
UNARY(frac, KEEP, x - trunc(x))
REFERENCE(div_scalar) { return (void)n, sloped_values(in[0], TREK_OP_div_scalar, a, out); }
REFERENCE(nan_to_num) { return (void)n, sloped_values(in[0], TREK_OP_nan_to_num, a, out); }
SLOPED(hardshrink) SLOPED(hardsigmoid) SLOPED(hardtanh) SLOPED(hardswish) SLOPED(logsigmoid) SLOPED(selu)
SLOPED(celu) SLOPED(elu) SLOPED(leaky_relu) SLOPED(mish) SLOPED(softshrink) SLOPED(softsign)
SLOPED(tanhshrink) SLOPED(threshold) SLOPED(asinh) SLOPED(acosh) SLOPED(atanh) SLOPED(erfc) SLOPED(erfinv)
SLOPED(lgamma) SLOPED(exp2) SLOPED(polygamma) SLOPED(i0) SLOPED(i0e) SLOPED(i1) SLOPED(i1e) SLOPED(log_ndtr)

static double gelu_slope(double x, bool approximate)
{
    if (!approximate)
        return phi(x) + x * exp(-0.5 * x * x) / sqrt(2 * M_PI);
    double k = sqrt(2 / M_PI), t = tanh(k * (x + 0.044715 * x * x * x));
    return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * k * (1 + 3 * 0.044715 * x * x);
}

typedef double (*scalar_fn)(double x, double first, double second);

static int each_scalar(const op_array *x, const trek_attrs *a, op_array *out, trek_dtype dtype, scalar_fn f)
{
    array_like(&out[0], x, dtype);
    for (int64_t i = 0; i < x->numel; i++)
        array_set(&out[0], i, f(x->v[i], a->f[0], a->f[1]));
    return 1;
}

/* A number takes part in promotion: a fraction makes integers f32, bool becomes i64. */
static trek_dtype scalar_dtype(trek_dtype dtype, double value)
{
    if (dtype_floats(dtype))
        return dtype;
    return value != floor(value) || !isfinite(value) ? TREK_F32 : dtype == TREK_BOOL ? TREK_I64 : dtype;
}

#define SCALAR(name, dtype, expression)                                        \
    static double name##_of(double x, double first, double second)             \
    {                                                                          \
        (void)second;                                                          \
        return expression;                                                     \
    }                                                                          \
    REFERENCE(name)                                                            \
    {                                                                          \
        (void)n;                                                               \
        return each_scalar(in[0], a, out, dtype, name##_of);                   \
    }

#define PROMOTED scalar_dtype(in[0]->dtype, a->f[0])
SCALAR(add_scalar, PROMOTED, x + first)
SCALAR(mul_scalar, PROMOTED, x * first)
SCALAR(pow_scalar, PROMOTED, pow(x, first))
SCALAR(clamp, scalar_dtype(PROMOTED, a->f[1]), x < first ? first : x > second ? second : x)
SCALAR(softplus, in[0]->dtype, first * x > second ? x : log1p(exp(first * x)) / first)
SCALAR(eq_scalar, TREK_BOOL, x == first)
SCALAR(ne_scalar, TREK_BOOL, x != first)
SCALAR(lt_scalar, TREK_BOOL, x < first)
SCALAR(le_scalar, TREK_BOOL, x <= first)
SCALAR(gt_scalar, TREK_BOOL, x > first)
SCALAR(ge_scalar, TREK_BOOL, x >= first)

/* --- two inputs ---------------------------------------------------------------- */

static void broadcast_make(op_array *out, trek_dtype dtype, const op_array *const *in, int first, int n)
{
    int ndim = 0;
    int64_t sizes[TREK_MAX_DIMS];
    for (int k = first; k < n; k++)
        ndim = in[k]->ndim > ndim ? in[k]->ndim : ndim;
    for (int d = 0; d < ndim; d++) {
        sizes[d] = 1;
        for (int k = first; k < n; k++) {
            int own = d - (ndim - in[k]->ndim);
            if (own >= 0 && in[k]->sizes[own] != 1)
                sizes[d] = in[k]->sizes[own];
        }
    }
    array_make(out, dtype, ndim, sizes);
}

static int each_pair(const op_array *const *in, op_array *out, result_kind kind, double (*f)(double x, double y))
{
    broadcast_make(&out[0], result_dtype(dtype_promote(in[0]->dtype, in[1]->dtype), kind), in, 0, 2);
    int64_t index[TREK_MAX_DIMS] = { 0 };
    for (int64_t i = 0; i < out[0].numel; i++) {
        double x = in[0]->v[array_broadcast_index(in[0], index, out[0].ndim)];
        double y = in[1]->v[array_broadcast_index(in[1], index, out[0].ndim)];
        array_set(&out[0], i, f(x, y));
        array_next(index, out[0].ndim, out[0].sizes);
    }
    return 1;
}

#define BINARY(name, kind, expression)                                         \
    static double name##_of(double x, double y)                                \
    {                                                                          \
        return expression;                                                     \
    }                                                                          \
    REFERENCE(name)                                                            \
    {                                                                          \
        UNUSED;                                                                \
        return each_pair(in, out, kind, name##_of);                            \
    }

/* The remainder that has the divisor's sign. */
static double floored_remainder(double x, double y)
{
    double r = fmod(x, y);
    return r != 0 && (r < 0) != (y < 0) ? r + y : r;
}

static double cut_quotient(double x, double y) { return trunc(x / y); }

BINARY(add, KEEP, x + y)
BINARY(sub, KEEP, x - y)
BINARY(mul, KEEP, x * y)
BINARY(div, FLOAT, x / y)
BINARY(pow, KEEP, pow(x, y))
BINARY(maximum, KEEP, isnan(x) ? x : isnan(y) ? y : x > y ? x : y)
BINARY(minimum, KEEP, isnan(x) ? x : isnan(y) ? y : x < y ? x : y)
BINARY(atan2, FLOAT, atan2(x, y))
BINARY(remainder, KEEP, floored_remainder(x, y))
BINARY(fmod, KEEP, fmod(x, y))
BINARY(hypot, KEEP, isinf(x) || isinf(y) ? INFINITY : hypot(x, y))
BINARY(copysign, FLOAT, copysign(x, y))

/* The quotient towards 0, and one less where that was upwards. */
static double floored_quotient(double x, double y)
{
    double rest = fmod(x, y), quotient = y == 0 ? x / y : rint((x - rest) / y) - (rest != 0 && (rest < 0) != (y < 0));
    return quotient == 0 ? copysign(0, x / y) : quotient;
}

REFERENCE(div_rounded)
{
    return each_pair(in, out, KEEP, a->i[0] ? floored_quotient : cut_quotient);
}

/* Of up to three numbers and the call's one, judged by the size of the terms. */
typedef double (*fused_fn)(const double *v, double number);
static int each_fused(const op_array *const *in, int n, const trek_attrs *a, op_array *out, fused_fn f, fused_fn size)
{
    trek_dtype dtype = in[0]->dtype;
    for (int k = 1; k < n; k++)
        dtype = dtype_promote(dtype, in[k]->dtype);
    broadcast_make(&out[0], dtype, in, 0, n);
    array_scaled(&out[0]);
    int64_t index[TREK_MAX_DIMS] = { 0 };
    for (int64_t i = 0; i < out[0].numel; i++) {
        double v[3] = { 0 };
        for (int k = 0; k < n; k++)
            v[k] = in[k]->v[array_broadcast_index(in[k], index, out[0].ndim)];
        out[0].v[i] = f(v, a->f[0]);
        out[0].scale[i] = size(v, a->f[0]);
        array_next(index, out[0].ndim, out[0].sizes);
    }
    return 1;
}
#define FUSED(name, expression, terms)                                         \
    static double name##_of(const double *v, double s) { return (void)s, expression; } \
    static double name##_size(const double *v, double s) { return (void)s, terms; } \
    REFERENCE(name) { return each_fused(in, n, a, out, name##_of, name##_size); }
FUSED(lerp, fabs(s) < 0.5 ? v[0] + s * (v[1] - v[0]) : v[1] - (1 - s) * (v[1] - v[0]), fabs(v[0]) + fabs(v[1]))
FUSED(lerp_var, v[0] + v[2] * (v[1] - v[0]), (1 + fabs(v[2])) * (fabs(v[0]) + fabs(v[1])))
static double larger_of(double x, double y) { return isnan(x) || x > y ? x : y; }
static double smaller_of(double x, double y) { return isnan(x) || x < y ? x : y; }
FUSED(clamp_var, smaller_of(larger_of(v[0], v[1]), v[2]), fabs(v[0]))
FUSED(addcmul, v[0] + s * v[1] * v[2], fabs(v[0]) + fabs(s * v[1] * v[2]))
FUSED(addcdiv, v[0] + s * v[1] / v[2], fabs(v[0]) + fabs(s * v[1] / v[2]))
FUSED(logaddexp, isnan(v[0]) || isnan(v[1]) ? NAN : v[0] == v[1] ? v[0] + log(2) / s
      : fmax(v[0], v[1]) + log1p(exp(-s * fabs(v[0] - v[1]))) / s, fmax(fabs(v[0]), fabs(v[1])) + 1)

/* By the series of the lower one, in long double, so that its complement keeps its digits, too. */
static long double lower_gamma_series(double a, double x)
{
    long double term = x == 0 ? 0 : expl((long double)a * logl(x) - x - lgammal((long double)a + 1)), sum = term;
    for (int k = 1; k < 500 && (k < x || term > sum * LDBL_EPSILON / 1024); k++)
        sum += term *= (long double)x / ((long double)a + k);
    return sum;
}
static double lower_gamma(double a, double x) { return (double)lower_gamma_series(a, x); }
static double upper_gamma(double a, double x) { return (double)(1 - lower_gamma_series(a, x)); }

REFERENCE(igamma)
{
    return each_pair(in, out, FLOAT, a->i[0] ? upper_gamma : lower_gamma);
}

/* Of the integers as they are, by their digits in base 2; a negative number's are those of its complement. */
static double by_bits(double x, double y, int table)
{
    int64_t a = (int64_t)x, b = (int64_t)y, made = 0;
    for (int bit = 0; bit < 64; bit++) {
        int digits = (int)(a >> bit & 1) + 2 * (int)(b >> bit & 1);
        made |= (int64_t)((uint64_t)(table >> digits & 1) << bit);
    }
    return (double)made;
}
BINARY(bitwise_and, KEEP, by_bits(x, y, 8))
BINARY(bitwise_or, KEEP, by_bits(x, y, 14))
BINARY(bitwise_xor, KEEP, by_bits(x, y, 6))

REFERENCE(bitwise_not)
{
    UNUSED;
    array_like(&out[0], in[0], in[0]->dtype);
    for (int64_t i = 0; i < in[0]->numel; i++)
        array_set(&out[0], i, in[0]->dtype == TREK_BOOL ? in[0]->v[i] == 0 : -1 - in[0]->v[i]);
    return 1;
}

/* By less than 0 or by more than there are bits: all are shifted out. */
static int shifted(const op_array *const *in, op_array *out, bool left)
{
    trek_dtype dtype = dtype_promote(in[0]->dtype, in[1]->dtype);
    int bits = 8 * (int)trek_dtype_size(dtype);
    broadcast_make(&out[0], dtype, in, 0, 2);
    int64_t index[TREK_MAX_DIMS] = { 0 };
    for (int64_t i = 0; i < out[0].numel; i++) {
        double x = in[0]->v[array_broadcast_index(in[0], index, out[0].ndim)];
        double y = in[1]->v[array_broadcast_index(in[1], index, out[0].ndim)];
        bool inside = y >= 0 && y < bits;
        array_set(&out[0], i, left ? (inside ? ldexp(x, (int)y) : 0) : inside ? floor(ldexp(x, -(int)y)) : x < 0 ? -1 : 0);
        array_next(index, out[0].ndim, out[0].sizes);
    }
    return 1;
}
REFERENCE(bitwise_left_shift)
{
    UNUSED;
    return shifted(in, out, true);
}
REFERENCE(bitwise_right_shift)
{
    UNUSED;
    return shifted(in, out, false);
}
static double common_divisor(double x, double y) { return y == 0 ? fabs(x) : common_divisor(y, fmod(x, y)); }
BINARY(gcd, KEEP, common_divisor(x, y))

/* From x the least step that changes it, by halving, from what is sure to be more than that. */
static double next_number(double x, double y, trek_dtype dtype)
{
    if (isnan(x) || isnan(y) || x == y)
        return isnan(x) ? x : y;
    double high = x < y ? INFINITY : -INFINITY, largest = dtype == TREK_F16 ? 65504 : dtype == TREK_BF16 ? 0x1.fep127 : FLT_MAX;
    if (dtype == TREK_F64 || (fabs(x) == largest && signbit(x) == signbit(high)))
        return dtype == TREK_F64 ? nextafter(x, y) : high;
    if (isinf(x))
        return copysign(largest, x);
    double low = x, far = copysign(fabs(x) * 0x1p-5 + 0x1p-20, high) + x;
    for (double middle; (middle = low + (far - low) / 2) != low && middle != far;)
        *(dtype_round(dtype, middle) == x ? &low : &far) = middle;
    double found = dtype_round(dtype, far);
    return found == 0 ? copysign(0, x) : found;
}

REFERENCE(nextafter)
{
    UNUSED;
    trek_dtype dtype = dtype_promote(in[0]->dtype, in[1]->dtype);
    broadcast_make(&out[0], dtype, in, 0, 2);
    int64_t index[TREK_MAX_DIMS] = { 0 };
    for (int64_t i = 0; i < out[0].numel; i++) {
        double x = dtype_round(dtype, in[0]->v[array_broadcast_index(in[0], index, out[0].ndim)]);
        out[0].v[i] = next_number(x, dtype_round(dtype, in[1]->v[array_broadcast_index(in[1], index, out[0].ndim)]), dtype);
        array_next(index, out[0].ndim, out[0].sizes);
    }
    return 1;
}
BINARY(eq, BOOLEAN, x == y)
BINARY(ne, BOOLEAN, x != y)
BINARY(lt, BOOLEAN, x < y)
BINARY(le, BOOLEAN, x <= y)
BINARY(gt, BOOLEAN, x > y)
BINARY(ge, BOOLEAN, x >= y)
BINARY(logical_and, BOOLEAN, x != 0 && y != 0)
BINARY(logical_or, BOOLEAN, x != 0 || y != 0)
BINARY(logical_xor, BOOLEAN, (x != 0) != (y != 0))
/* gradients: x is the gradient, y what was saved */
BINARY(relu_backward, KEEP, y > 0 ? x : 0)
BINARY(tanh_backward, KEEP, x * (1 - y * y))
BINARY(sigmoid_backward, KEEP, x * y * (1 - y))

static double silu_slope(double y)
{
    double s = 1 / (1 + exp(-y));
    return s * (1 + y * (1 - s));
}
BINARY(silu_backward, KEEP, x * silu_slope(y))
BINARY(sigmoid_mul, KEEP, x * sigmoid_at(y))
BINARY(silu_mul, KEEP, x * y * sigmoid_at(y))
FUSED(sigmoid_mul_backward, v[0] * v[1] * sigmoid_at(v[2]) * sigmoid_at(-v[2]), fabs(v[0] * v[1]))
FUSED(silu_mul_backward, v[0] * v[1] * silu_slope(v[2]), fabs(v[0] * v[1]))

REFERENCE(gelu_backward)
{
    array_like(&out[0], in[0], in[0]->dtype);
    for (int64_t i = 0; i < in[0]->numel; i++)
        out[0].v[i] = in[0]->v[i] * gelu_slope(in[1]->v[i], a->i[0]);
    return 1;
}

/* The loss of one element, or its slope. */
static double loss_of(double x, double target, const trek_attrs *a, bool slope)
{
    double d = x - target, beta = a->f[0], far = fabs(d) - beta / 2, sign = (d > 0) - (d < 0);
    switch (a->i[0]) {
    case TREK_LOSS_SQUARED: return slope ? 2 * d : d * d;
    case TREK_LOSS_ABSOLUTE: return slope ? sign : fabs(d);
    case TREK_LOSS_SMOOTH: return fabs(d) < beta ? (slope ? d / beta : d * d / 2 / beta) : slope ? sign : far;
    case TREK_LOSS_LOGISTIC: return slope ? 1 / (1 + exp(-x)) - target : log1p(exp(x)) - x * target;
    default: return slope ? d / (x * (1 - x)) : -target * log(x) - (1 - target) * log1p(-x);
    }
}

REFERENCE(pointwise_loss)
{
    trek_dtype dtype = dtype_promote(in[0]->dtype, in[1]->dtype);
    broadcast_make(&out[0], dtype == TREK_BF16 || dtype == TREK_F16 ? TREK_F32 : dtype, in, 0, 2);
    int64_t index[TREK_MAX_DIMS] = { 0 };
    for (int64_t i = 0; i < out[0].numel; i++) {
        double x = in[0]->v[array_broadcast_index(in[0], index, out[0].ndim)];
        out[0].v[i] = loss_of(x, in[1]->v[array_broadcast_index(in[1], index, out[0].ndim)], a, false);
        array_next(index, out[0].ndim, out[0].sizes);
    }
    return 1;
}

REFERENCE(pointwise_loss_backward)
{
    broadcast_make(&out[0], dtype_promote(in[1]->dtype, in[2]->dtype), in, 0, 3);
    array_scaled(&out[0]);
    int64_t index[TREK_MAX_DIMS] = { 0 };
    for (int64_t i = 0; i < out[0].numel; i++) {
        double grad = in[0]->v[array_broadcast_index(in[0], index, out[0].ndim)];
        double x = in[1]->v[array_broadcast_index(in[1], index, out[0].ndim)];
        out[0].v[i] = grad * loss_of(x, in[2]->v[array_broadcast_index(in[2], index, out[0].ndim)], a, true);
        out[0].scale[i] = fabs(grad) * 2;
        array_next(index, out[0].ndim, out[0].sizes);
    }
    return 1;
}

REFERENCE(where)
{
    UNUSED;
    broadcast_make(&out[0], dtype_promote(in[1]->dtype, in[2]->dtype), in, 0, 3);
    int64_t index[TREK_MAX_DIMS] = { 0 };
    for (int64_t i = 0; i < out[0].numel; i++) {
        int ndim = out[0].ndim;
        bool first = in[0]->v[array_broadcast_index(in[0], index, ndim)] != 0;
        const op_array *from = first ? in[1] : in[2];
        out[0].v[i] = from->v[array_broadcast_index(from, index, ndim)];
        array_next(index, ndim, out[0].sizes);
    }
    return 1;
}

REFERENCE(convert)
{
    array_like(&out[0], in[0], (trek_dtype)a->i[0]);
    for (int64_t i = 0; i < in[0]->numel; i++)
        array_set(&out[0], i, in[0]->v[i]);
    return 1;
}
