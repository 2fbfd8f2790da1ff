/* SPDX-License-Identifier: Apache-2.0 */
/* Element-wise rows. */
#include <math.h>

#include "onnx/onnx_internal.h"
#include "tensor/pointwise.h"

static trek_dtype in_dtype(const trek_onnx *x, int k) { return trek_onnx_in_seen(x, k)->dtype; }
static const char *number(trek_onnx *x, double value) { return trek_onnx_scalar(x, in_dtype(x, 0), value); }

/* --- one node of the same meaning ------------------------------------------------------------- */

static void plain(trek_onnx *x, const char **outs)
{
    const trek_onnx_call *call = trek_onnx_at(x, 0);
    const char *in[3] = { NULL };
    for (int k = 0; k < call->n_inputs; k++)
        in[k] = trek_onnx_in(x, k);
    outs[0] = trek_onnx_node(x, x->type, call->n_inputs, in);
}

/* Ops that do not change integers. */
static void rounded(trek_onnx *x, const char **outs)
{
    outs[0] = trek_onnx_1(x, trek_dtype_is_float(in_dtype(x, 0)) ? x->type : "Identity", trek_onnx_in(x, 0));
}

/* --- several nodes ---------------------------------------------------------------------------- */

/* Returns a rounded towards zero. */
static const char *truncated_of(trek_onnx *x, const char *a)
{
    return trek_onnx_2(x, "Mul", trek_onnx_1(x, "Sign", a), trek_onnx_1(x, "Floor", trek_onnx_1(x, "Abs", a)));
}

static void trunc_row(trek_onnx *x, const char **outs)
{
    const char *a = trek_onnx_in(x, 0);
    outs[0] = trek_dtype_is_float(in_dtype(x, 0)) ? truncated_of(x, a) : trek_onnx_1(x, "Identity", a);
}

static void expm1_row(trek_onnx *x, const char **outs)
{
    outs[0] = trek_onnx_2(x, "Sub", trek_onnx_1(x, "Exp", trek_onnx_in(x, 0)), number(x, 1));
}

static void log1p_row(trek_onnx *x, const char **outs)
{
    outs[0] = trek_onnx_1(x, "Log", trek_onnx_2(x, "Add", trek_onnx_in(x, 0), number(x, 1)));
}

static const char *log_to_base(trek_onnx *x, double base)
{
    return trek_onnx_2(x, "Mul", trek_onnx_1(x, "Log", trek_onnx_in(x, 0)), number(x, 1 / log(base)));
}

static void log2_row(trek_onnx *x, const char **outs) { outs[0] = log_to_base(x, 2); }
static void log10_row(trek_onnx *x, const char **outs) { outs[0] = log_to_base(x, 10); }

static void rsqrt(trek_onnx *x, const char **outs)
{
    outs[0] = trek_onnx_1(x, "Reciprocal", trek_onnx_1(x, "Sqrt", trek_onnx_in(x, 0)));
}

static void square(trek_onnx *x, const char **outs)
{
    outs[0] = trek_onnx_2(x, "Mul", trek_onnx_in(x, 0), trek_onnx_in(x, 0));
}

static void silu(trek_onnx *x, const char **outs)
{
    const char *a = trek_onnx_in(x, 0);
    outs[0] = trek_onnx_2(x, "Mul", a, trek_onnx_1(x, "Sigmoid", a));
}

static void sigmoid_mul(trek_onnx *x, const char **outs)
{
    outs[0] = trek_onnx_2(x, "Mul", trek_onnx_in(x, 0), trek_onnx_1(x, "Sigmoid", trek_onnx_in(x, 1)));
}
static void silu_mul(trek_onnx *x, const char **outs)
{
    const char *y = trek_onnx_in(x, 1), *gate = trek_onnx_2(x, "Mul", y, trek_onnx_1(x, "Sigmoid", y));
    outs[0] = trek_onnx_2(x, "Mul", trek_onnx_in(x, 0), gate);
}

/* --- truth ---------------------------------------------------------------------------------------- */

static const char *truth(trek_onnx *x, int k) { return trek_onnx_cast(x, trek_onnx_in(x, k), in_dtype(x, k), TREK_BOOL); }

/* Returns the input as these questions take it, also if it is an integer. */
static const char *as_float(trek_onnx *x)
{
    trek_dtype dtype = in_dtype(x, 0);
    return dtype == TREK_F64 ? trek_onnx_in(x, 0) : trek_onnx_cast(x, trek_onnx_in(x, 0), dtype, TREK_F32);
}

static void is_special(trek_onnx *x, const char **outs) { outs[0] = trek_onnx_1(x, x->type, as_float(x)); }

static void is_finite(trek_onnx *x, const char **outs)
{
    const char *a = as_float(x), *nan = trek_onnx_1(x, "IsNaN", a);
    outs[0] = trek_onnx_1(x, "Not", trek_onnx_2(x, "Or", nan, trek_onnx_1(x, "IsInf", a)));
}

static void logical_not(trek_onnx *x, const char **outs) { outs[0] = trek_onnx_1(x, "Not", truth(x, 0)); }

static void logical(trek_onnx *x, const char **outs) { outs[0] = trek_onnx_2(x, x->type, truth(x, 0), truth(x, 1)); }

/* The row has the type for bools, and integers have that of the same name with "Bitwise". */
static const char *bitwise_type(trek_onnx *x)
{
    if (in_dtype(x, 0) == TREK_BOOL)
        return x->type;
    if (x->opset < 18)
        trek_onnx_refuse(x, "for integers it exists from opset 18 on");
    return trek_onnx_text(x, "Bitwise%s", x->type);
}

static void bitwise_not(trek_onnx *x, const char **outs)
{
    outs[0] = trek_onnx_1(x, bitwise_type(x), trek_onnx_in(x, 0));
}

static void bitwise(trek_onnx *x, const char **outs)
{
    outs[0] = trek_onnx_2(x, bitwise_type(x), trek_onnx_in(x, 0), trek_onnx_in(x, 1));
}

static void shifted(trek_onnx *x, const char **outs)
{
    if (in_dtype(x, 0) != TREK_U8) {
        trek_onnx_refuse(x, "ONNX shifts only unsigned integers");
        return;
    }
    outs[0] = trek_onnx_2(x, "BitShift", trek_onnx_in(x, 0), trek_onnx_in(x, 1));
    trek_onnx_attr_string(x, "direction", x->type);
}

/* ONNX has no NotEqual. */
static const char *compared(trek_onnx *x, const char *a, const char *b)
{
    return trek_onnx_is(x, "NotEqual") ? trek_onnx_1(x, "Not", trek_onnx_2(x, "Equal", a, b)) : trek_onnx_2(x, x->type, a, b);
}

/* Bools are compared as integers. */
static void comparison(trek_onnx *x, const char **outs)
{
    trek_dtype dtype = in_dtype(x, 0), as = dtype == TREK_BOOL ? TREK_I32 : dtype;
    outs[0] = compared(x, trek_onnx_cast(x, trek_onnx_in(x, 0), dtype, as),
                       trek_onnx_cast(x, trek_onnx_in(x, 1), dtype, as));
}

static void comparison_with_number(trek_onnx *x, const char **outs)
{
    double value = trek_onnx_f(x, 0);
    trek_dtype dtype = in_dtype(x, 0), as = dtype;
    bool fits = trek_dtype_is_float(dtype) || (value == rint(value) && fabs(value) < 2147483648.0 && dtype != TREK_U8);
    if (dtype == TREK_BOOL || !fits)
        as = dtype == TREK_I64 && !fits ? TREK_F64 : fits ? TREK_I32 : TREK_F32;
    outs[0] = compared(x, trek_onnx_cast(x, trek_onnx_in(x, 0), dtype, as),
                       trek_onnx_scalar(x, as, value));
}

/* --- with numbers and pairs ------------------------------------------------------------------------- */

static void with_number(trek_onnx *x, const char **outs)
{
    outs[0] = trek_onnx_2(x, x->type, trek_onnx_in(x, 0), number(x, trek_onnx_f(x, 0)));
}

static void clamp(trek_onnx *x, const char **outs)
{
    double low = trek_onnx_f(x, 0), high = trek_onnx_f(x, 1);
    outs[0] = trek_onnx_3(x, "Clip", trek_onnx_in(x, 0), isinf(low) ? NULL : number(x, low),
                          isinf(high) ? NULL : number(x, high));
}

static void pair(trek_onnx *x, const char *of_bools, const char **outs)
{
    outs[0] = trek_onnx_2(x, in_dtype(x, 0) == TREK_BOOL ? of_bools : x->type, trek_onnx_in(x, 0), trek_onnx_in(x, 1));
}

/* For bools, sum and maximum are or; product and minimum are and. */
static void either(trek_onnx *x, const char **outs) { pair(x, "Or", outs); }
static void both(trek_onnx *x, const char **outs) { pair(x, "And", outs); }

/* Returns the remainder with the divisor's sign or, truncated, with the dividend's. */
static const char *remainder_of(trek_onnx *x, const char *a, const char *b, trek_dtype dtype, bool truncated)
{
    if (trek_dtype_is_float(dtype) && !truncated)
        return trek_onnx_2(x, "Sub", a, trek_onnx_2(x, "Mul", trek_onnx_1(x, "Floor", trek_onnx_2(x, "Div", a, b)), b));
    const char *rest = trek_onnx_2(x, "Mod", a, b);
    trek_onnx_attr_int(x, "fmod", truncated);
    return rest;
}

static void remainder_row(trek_onnx *x, const char **outs)
{
    outs[0] = remainder_of(x, trek_onnx_in(x, 0), trek_onnx_in(x, 1), in_dtype(x, 0), false);
}

static void fmod_row(trek_onnx *x, const char **outs)
{
    outs[0] = remainder_of(x, trek_onnx_in(x, 0), trek_onnx_in(x, 1), in_dtype(x, 0), true);
}

static void divided(trek_onnx *x, const char **outs)
{
    const char *a = trek_onnx_in(x, 0), *b = trek_onnx_in(x, 1);
    trek_dtype dtype = in_dtype(x, 0);
    bool truncated = trek_onnx_i(x, 0) == 0;
    if (!trek_dtype_is_float(dtype)) {
        if (!truncated)
            a = trek_onnx_2(x, "Sub", a, remainder_of(x, a, b, dtype, false));
        outs[0] = trek_onnx_2(x, "Div", a, b);
        return;
    }
    const char *q = trek_onnx_2(x, "Div", a, b);
    outs[0] = truncated ? truncated_of(x, q) : trek_onnx_1(x, "Floor", q);
}

static void hypot_row(trek_onnx *x, const char **outs)
{
    const char *a = trek_onnx_in(x, 0), *b = trek_onnx_in(x, 1);
    outs[0] = trek_onnx_1(x, "Sqrt", trek_onnx_2(x, "Add", trek_onnx_2(x, "Mul", a, a), trek_onnx_2(x, "Mul", b, b)));
}

static void atan2_row(trek_onnx *x, const char **outs)
{
    const double pi = 3.14159265358979323846;
    const char *y = trek_onnx_in(x, 0), *a = trek_onnx_in(x, 1), *zero = number(x, 0);
    const char *angle = trek_onnx_1(x, "Atan", trek_onnx_2(x, "Div", y, a));
    const char *left = trek_onnx_3(x, "Where", trek_onnx_2(x, "Less", y, zero), trek_onnx_2(x, "Sub", angle, number(x, pi)),
                                   trek_onnx_2(x, "Add", angle, number(x, pi)));
    const char *upright = trek_onnx_2(x, "Mul", trek_onnx_1(x, "Sign", y), number(x, pi / 2));
    outs[0] = trek_onnx_3(x, "Where", trek_onnx_2(x, "Equal", a, zero), upright,
                          trek_onnx_3(x, "Where", trek_onnx_2(x, "Less", a, zero), left, angle));
}

/* One over -0 is below 0, but -0 itself is not. */
static void copysign_row(trek_onnx *x, const char **outs)
{
    const char *y = trek_onnx_in(x, 1), *zero = number(x, 0), *size = trek_onnx_1(x, "Abs", trek_onnx_in(x, 0));
    const char *minus_zero = trek_onnx_2(x, "And", trek_onnx_2(x, "Equal", y, zero),
                                         trek_onnx_2(x, "Less", trek_onnx_1(x, "Reciprocal", y), zero));
    const char *minus = trek_onnx_2(x, "Or", trek_onnx_2(x, "Less", y, zero), minus_zero);
    outs[0] = trek_onnx_3(x, "Where", minus, trek_onnx_1(x, "Neg", size), size);
}

static const char *times_number(trek_onnx *x, const char *a, double value)
{
    return value == 1 ? a : trek_onnx_2(x, "Mul", a, number(x, value));
}

static void lerp_row(trek_onnx *x, const char **outs)
{
    const char *a = trek_onnx_in(x, 0), *way = trek_onnx_2(x, "Sub", trek_onnx_in(x, 1), a);
    outs[0] = trek_onnx_2(x, "Add", a, times_number(x, way, trek_onnx_f(x, 0)));
}
static void lerp_var_row(trek_onnx *x, const char **outs)
{
    const char *a = trek_onnx_in(x, 0), *way = trek_onnx_2(x, "Sub", trek_onnx_in(x, 1), a);
    outs[0] = trek_onnx_2(x, "Add", a, trek_onnx_2(x, "Mul", trek_onnx_in(x, 2), way));
}
static void clamp_var_row(trek_onnx *x, const char **outs)
{
    outs[0] = trek_onnx_2(x, "Min", trek_onnx_2(x, "Max", trek_onnx_in(x, 0), trek_onnx_in(x, 1)), trek_onnx_in(x, 2));
}
static void addc_row(trek_onnx *x, const char **outs)
{
    const char *product = trek_onnx_2(x, x->type, times_number(x, trek_onnx_in(x, 1), trek_onnx_f(x, 0)),
                                      trek_onnx_in(x, 2));
    outs[0] = trek_onnx_2(x, "Add", trek_onnx_in(x, 0), product);
}

/* The larger one plus log(1 + e^-|x - y|), which is softplus. */
static void logaddexp_row(trek_onnx *x, const char **outs)
{
    double s = trek_onnx_f(x, 0);
    const char *a = trek_onnx_in(x, 0), *b = trek_onnx_in(x, 1), *apart = trek_onnx_1(x, "Abs", trek_onnx_2(x, "Sub", a, b));
    const char *more = trek_onnx_1(x, "Softplus", trek_onnx_1(x, "Neg", times_number(x, apart, s)));
    outs[0] = trek_onnx_2(x, "Add", trek_onnx_2(x, "Max", a, b), times_number(x, more, 1 / s));
}

static void frac_row(trek_onnx *x, const char **outs)
{
    const char *a = trek_onnx_in(x, 0);
    outs[0] = trek_onnx_2(x, "Sub", a, truncated_of(x, a));
}
static void div_scalar_row(trek_onnx *x, const char **outs)
{
    outs[0] = trek_onnx_2(x, "Div", trek_onnx_in(x, 0), number(x, trek_onnx_f(x, 0)));
}
static void ndtr_row(trek_onnx *x, const char **outs)
{
    const char *area = trek_onnx_1(x, "Erf", times_number(x, trek_onnx_in(x, 0), 0.70710678118654752440));
    outs[0] = trek_onnx_2(x, "Mul", number(x, 0.5), trek_onnx_2(x, "Add", area, number(x, 1)));
}
static void nan_to_num_row(trek_onnx *x, const char **outs)
{
    const char *a = trek_onnx_in(x, 0);
    outs[0] = trek_onnx_3(x, "Where", trek_onnx_1(x, "IsNaN", as_float(x)), number(x, trek_onnx_f(x, 0)), a);
    for (int k = 1; k < 3; k++)
        outs[0] = trek_onnx_3(x, "Where", trek_onnx_2(x, "Equal", a, number(x, k == 1 ? INFINITY : -INFINITY)),
                              number(x, trek_onnx_f(x, k)), outs[0]);
}

/* --- activations -------------------------------------------------------------------------------------- */

static void relu(trek_onnx *x, const char **outs)
{
    const char *a = trek_onnx_in(x, 0);
    outs[0] = trek_dtype_is_float(in_dtype(x, 0)) ? trek_onnx_1(x, "Relu", a) : trek_onnx_2(x, "Max", a, number(x, 0));
}

/* Gelu exists from opset 20 on. */
const char *trek_onnx_gelu(trek_onnx *x, const char *a, trek_dtype dtype, bool tanh_form)
{
    if (x->opset >= 20) {
        const char *y = trek_onnx_1(x, "Gelu", a);
        trek_onnx_attr_string(x, "approximate", tanh_form ? "tanh" : "none");
        return y;
    }
    const char *half = trek_onnx_scalar(x, dtype, 0.5), *one = trek_onnx_scalar(x, dtype, 1), *inner;
    if (tanh_form) {
        const char *cube = trek_onnx_2(x, "Mul", trek_onnx_2(x, "Mul", a, a), a);
        inner = trek_onnx_2(x, "Add", a, trek_onnx_2(x, "Mul", cube, trek_onnx_scalar(x, dtype, 0.044715)));
        inner = trek_onnx_1(x, "Tanh", trek_onnx_2(x, "Mul", inner, trek_onnx_scalar(x, dtype, 0.79788456080286535588)));
    } else {
        inner = trek_onnx_1(x, "Erf", trek_onnx_2(x, "Div", a, trek_onnx_scalar(x, dtype, 1.4142135623730950488)));
    }
    return trek_onnx_2(x, "Mul", trek_onnx_2(x, "Mul", a, trek_onnx_2(x, "Add", inner, one)), half);
}

const char *trek_onnx_activated(trek_onnx *x, const char *a, trek_dtype dtype, int activation)
{
    switch (activation) {
    case TREK_ACTIVATION_NONE: return a;
    case TREK_ACTIVATION_RELU: return trek_onnx_1(x, "Relu", a);
    case TREK_ACTIVATION_GELU: return trek_onnx_gelu(x, a, dtype, false);
    default: trek_onnx_refuse(x, "its activation %d has no counterpart", activation); return a;
    }
}

static void gelu(trek_onnx *x, const char **outs)
{
    outs[0] = trek_onnx_gelu(x, trek_onnx_in(x, 0), in_dtype(x, 0), trek_onnx_i(x, 0) != 0);
}

/* Beyond its threshold, beta x, trek's softplus is x. The difference there is below rounding. */
static void softplus(trek_onnx *x, const char **outs)
{
    double beta = trek_onnx_f(x, 0), threshold = trek_onnx_f(x, 1);
    const char *a = trek_onnx_in(x, 0), *scaled = beta == 1 ? a : trek_onnx_2(x, "Mul", a, number(x, beta));
    const char *y = trek_onnx_1(x, "Softplus", scaled);
    y = beta == 1 ? y : trek_onnx_2(x, "Div", y, number(x, beta));
    outs[0] = threshold >= 20 ? y : trek_onnx_3(x, "Where", trek_onnx_2(x, "Greater", scaled, number(x, threshold)), a, y);
}

static const char *with_float(trek_onnx *x, const char *type, const char *a, const char *attr, double value)
{
    const char *y = trek_onnx_1(x, type, a);
    trek_onnx_attr_float(x, attr, value);
    return y;
}

static const char *shrink(trek_onnx *x, const char *a, double lambd, double bias)
{
    const char *y = with_float(x, "Shrink", a, "lambd", lambd);
    trek_onnx_attr_float(x, "bias", bias);
    return y;
}

static const char *selu(trek_onnx *x, const char *a)
{
    const char *y = with_float(x, "Selu", a, "alpha", TREK_SELU_ALPHA);
    trek_onnx_attr_float(x, "gamma", TREK_SELU_SCALE);
    return y;
}

static const char *hardsigmoid(trek_onnx *x, const char *a)
{
    const char *y = with_float(x, "HardSigmoid", a, "alpha", 1.0 / 6);
    trek_onnx_attr_float(x, "beta", 0.5);
    return y;
}

#define IN trek_onnx_in(x, 0)
#define S trek_onnx_f(x, 0)
static void hardshrink_row(trek_onnx *x, const char **outs) { outs[0] = shrink(x, IN, S, 0); }
static void softshrink_row(trek_onnx *x, const char **outs) { outs[0] = shrink(x, IN, S, S); }
static void hardsigmoid_row(trek_onnx *x, const char **outs) { outs[0] = hardsigmoid(x, IN); }
static void hardtanh_row(trek_onnx *x, const char **outs)
{
    outs[0] = trek_onnx_3(x, "Clip", IN, number(x, S), number(x, trek_onnx_f(x, 1)));
}
static void logsigmoid_row(trek_onnx *x, const char **outs)
{
    outs[0] = trek_onnx_1(x, "Neg", trek_onnx_1(x, "Softplus", trek_onnx_1(x, "Neg", IN)));
}
static void selu_row(trek_onnx *x, const char **outs) { outs[0] = selu(x, IN); }
static void celu_row(trek_onnx *x, const char **outs)
{
    outs[0] = trek_onnx_2(x, "Mul", with_float(x, "Elu", trek_onnx_2(x, "Div", IN, number(x, S)), "alpha", 1), number(x, S));
    if (S < 0) /* a negative scale exchanges the halves */
        trek_onnx_refuse(x, "celu of a negative alpha");
}
static void elu_row(trek_onnx *x, const char **outs) { outs[0] = with_float(x, "Elu", IN, "alpha", S); }
static void leaky_relu_row(trek_onnx *x, const char **outs) { outs[0] = with_float(x, "LeakyRelu", IN, "alpha", S); }
static void mish_row(trek_onnx *x, const char **outs)
{
    outs[0] = trek_onnx_2(x, "Mul", IN, trek_onnx_1(x, "Tanh", trek_onnx_1(x, "Softplus", IN)));
}
static void tanhshrink_row(trek_onnx *x, const char **outs)
{
    outs[0] = trek_onnx_2(x, "Sub", IN, trek_onnx_1(x, "Tanh", IN));
}
static void threshold_row(trek_onnx *x, const char **outs)
{
    outs[0] = trek_onnx_3(x, "Where", trek_onnx_2(x, "Greater", IN, number(x, S)), IN, number(x, trek_onnx_f(x, 1)));
}
static void exp2_row(trek_onnx *x, const char **outs) { outs[0] = trek_onnx_2(x, "Pow", number(x, 2), IN); }
static void erfc_row(trek_onnx *x, const char **outs)
{
    outs[0] = trek_onnx_2(x, "Sub", number(x, 1), trek_onnx_1(x, "Erf", IN));
}
#undef IN
#undef S

const trek_onnx_row trek_onnx_rows_elementwise[] = {
    { TREK_OP_neg, plain, "Neg" }, { TREK_OP_abs, plain, "Abs" }, { TREK_OP_sign, plain, "Sign" },
    { TREK_OP_exp, plain, "Exp" }, { TREK_OP_log, plain, "Log" }, { TREK_OP_sqrt, plain, "Sqrt" },
    { TREK_OP_sin, plain, "Sin" }, { TREK_OP_cos, plain, "Cos" }, { TREK_OP_tan, plain, "Tan" },
    { TREK_OP_asin, plain, "Asin" }, { TREK_OP_acos, plain, "Acos" }, { TREK_OP_atan, plain, "Atan" },
    { TREK_OP_sinh, plain, "Sinh" }, { TREK_OP_cosh, plain, "Cosh" }, { TREK_OP_tanh, plain, "Tanh" },
    { TREK_OP_erf, plain, "Erf" }, { TREK_OP_sigmoid, plain, "Sigmoid" }, { TREK_OP_reciprocal, plain, "Reciprocal" },
    { TREK_OP_sub, plain, "Sub" }, { TREK_OP_div, plain, "Div" }, { TREK_OP_pow, plain, "Pow" },
    { TREK_OP_where, plain, "Where" }, { TREK_OP_floor, rounded, "Floor" }, { TREK_OP_ceil, rounded, "Ceil" },
    { TREK_OP_round, rounded, "Round" }, { TREK_OP_trunc, trunc_row, NULL }, { TREK_OP_expm1, expm1_row, NULL },
    { TREK_OP_log1p, log1p_row, NULL }, { TREK_OP_log2, log2_row, NULL }, { TREK_OP_log10, log10_row, NULL },
    { TREK_OP_rsqrt, rsqrt, NULL }, { TREK_OP_square, square, NULL }, { TREK_OP_silu, silu, NULL },
    { TREK_OP_sigmoid_mul, sigmoid_mul, NULL }, { TREK_OP_silu_mul, silu_mul, NULL },
    { TREK_OP_isnan, is_special, "IsNaN" }, { TREK_OP_isinf, is_special, "IsInf" }, { TREK_OP_isfinite, is_finite, NULL },
    { TREK_OP_logical_not, logical_not, NULL }, { TREK_OP_logical_and, logical, "And" }, { TREK_OP_logical_or, logical, "Or" },
    { TREK_OP_logical_xor, logical, "Xor" }, { TREK_OP_bitwise_not, bitwise_not, "Not" },
    { TREK_OP_bitwise_and, bitwise, "And" }, { TREK_OP_bitwise_or, bitwise, "Or" }, { TREK_OP_bitwise_xor, bitwise, "Xor" },
    { TREK_OP_bitwise_left_shift, shifted, "LEFT" }, { TREK_OP_bitwise_right_shift, shifted, "RIGHT" },
    { TREK_OP_eq, comparison, "Equal" }, { TREK_OP_ne, comparison, "NotEqual" }, { TREK_OP_lt, comparison, "Less" },
    { TREK_OP_le, comparison, "LessOrEqual" }, { TREK_OP_gt, comparison, "Greater" },
    { TREK_OP_ge, comparison, "GreaterOrEqual" }, { TREK_OP_eq_scalar, comparison_with_number, "Equal" },
    { TREK_OP_ne_scalar, comparison_with_number, "NotEqual" }, { TREK_OP_lt_scalar, comparison_with_number, "Less" },
    { TREK_OP_le_scalar, comparison_with_number, "LessOrEqual" }, { TREK_OP_gt_scalar, comparison_with_number, "Greater" },
    { TREK_OP_ge_scalar, comparison_with_number, "GreaterOrEqual" }, { TREK_OP_add_scalar, with_number, "Add" },
    { TREK_OP_mul_scalar, with_number, "Mul" }, { TREK_OP_pow_scalar, with_number, "Pow" }, { TREK_OP_clamp, clamp, NULL },
    { TREK_OP_add, either, "Add" }, { TREK_OP_maximum, either, "Max" }, { TREK_OP_mul, both, "Mul" },
    { TREK_OP_minimum, both, "Min" }, { TREK_OP_remainder, remainder_row, NULL }, { TREK_OP_fmod, fmod_row, NULL },
    { TREK_OP_div_rounded, divided, NULL }, { TREK_OP_hypot, hypot_row, NULL }, { TREK_OP_atan2, atan2_row, NULL },
    { TREK_OP_copysign, copysign_row, NULL }, { TREK_OP_lerp, lerp_row, NULL }, { TREK_OP_lerp_var, lerp_var_row, NULL },
    { TREK_OP_clamp_var, clamp_var_row, NULL }, { TREK_OP_addcmul, addc_row, "Mul" }, { TREK_OP_addcdiv, addc_row, "Div" },
    { TREK_OP_logaddexp, logaddexp_row, NULL },
    { TREK_OP_frac, frac_row, NULL }, { TREK_OP_div_scalar, div_scalar_row, NULL }, { TREK_OP_ndtr, ndtr_row, NULL },
    { TREK_OP_nan_to_num, nan_to_num_row, NULL },
    { TREK_OP_relu, relu, NULL }, { TREK_OP_gelu, gelu, NULL },
    { TREK_OP_softplus, softplus, NULL }, { TREK_OP_hardshrink, hardshrink_row, NULL },
    { TREK_OP_softshrink, softshrink_row, NULL }, { TREK_OP_hardsigmoid, hardsigmoid_row, NULL },
    { TREK_OP_hardtanh, hardtanh_row, NULL }, { TREK_OP_hardswish, plain, "HardSwish" },
    { TREK_OP_logsigmoid, logsigmoid_row, NULL }, { TREK_OP_selu, selu_row, NULL }, { TREK_OP_celu, celu_row, NULL },
    { TREK_OP_elu, elu_row, NULL }, { TREK_OP_leaky_relu, leaky_relu_row, NULL }, { TREK_OP_mish, mish_row, NULL },
    { TREK_OP_softsign, plain, "Softsign" }, { TREK_OP_tanhshrink, tanhshrink_row, NULL },
    { TREK_OP_threshold, threshold_row, NULL }, { TREK_OP_asinh, plain, "Asinh" }, { TREK_OP_acosh, plain, "Acosh" },
    { TREK_OP_atanh, plain, "Atanh" }, { TREK_OP_exp2, exp2_row, NULL }, { TREK_OP_erfc, erfc_row, NULL },
    { 0, NULL, NULL },
};
