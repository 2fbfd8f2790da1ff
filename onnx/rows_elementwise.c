/* SPDX-License-Identifier: Apache-2.0 */
/* Element-wise rows. */
#include <math.h>

#include "onnx/onnx_internal.h"
#include "tensor/pointwise.h"

static trek_dtype in_dtype(const trek_onnx *x, int k) { return trek_onnx_in_seen(x, k)->dtype; }
static const char *number(trek_onnx *x, double value) { return trek_onnx_scalar(x, in_dtype(x, 0), value); }

/* --- one node of the same meaning ------------------------------------------------------------- */

static const char *const plain_names[TREK_OP_COUNT] = {
    [TREK_OP_neg] = "Neg",         [TREK_OP_abs] = "Abs",           [TREK_OP_sign] = "Sign",       [TREK_OP_exp] = "Exp",
    [TREK_OP_log] = "Log",         [TREK_OP_sqrt] = "Sqrt",         [TREK_OP_sin] = "Sin",         [TREK_OP_cos] = "Cos",
    [TREK_OP_tan] = "Tan",         [TREK_OP_asin] = "Asin",         [TREK_OP_acos] = "Acos",       [TREK_OP_atan] = "Atan",
    [TREK_OP_sinh] = "Sinh",       [TREK_OP_cosh] = "Cosh",         [TREK_OP_tanh] = "Tanh",       [TREK_OP_erf] = "Erf",
    [TREK_OP_sigmoid] = "Sigmoid", [TREK_OP_reciprocal] = "Reciprocal", [TREK_OP_sub] = "Sub",     [TREK_OP_div] = "Div",
    [TREK_OP_pow] = "Pow",         [TREK_OP_where] = "Where",
};

static void plain(trek_onnx *x, const char **outs)
{
    const trek_onnx_call *call = trek_onnx_at(x, 0);
    const char *in[3] = { NULL };
    for (int k = 0; k < call->n_inputs; k++)
        in[k] = trek_onnx_in(x, k);
    outs[0] = trek_onnx_node(x, plain_names[call->op->id], call->n_inputs, in);
}

/* Ops that do not change integers. */
static void rounded(trek_onnx *x, const char **outs)
{
    const char *a = trek_onnx_in(x, 0);
    int op = trek_onnx_at(x, 0)->op->id;
    if (!trek_dtype_is_float(in_dtype(x, 0)))
        outs[0] = trek_onnx_1(x, "Identity", a);
    else if (op == TREK_OP_trunc)
        outs[0] = trek_onnx_2(x, "Mul", trek_onnx_1(x, "Sign", a), trek_onnx_1(x, "Floor", trek_onnx_1(x, "Abs", a)));
    else
        outs[0] = trek_onnx_1(x, op == TREK_OP_floor ? "Floor" : op == TREK_OP_ceil ? "Ceil" : "Round", a);
}

static void made_of(trek_onnx *x, const char **outs)
{
    const char *a = trek_onnx_in(x, 0);
    switch (trek_onnx_at(x, 0)->op->id) {
    case TREK_OP_expm1: outs[0] = trek_onnx_2(x, "Sub", trek_onnx_1(x, "Exp", a), number(x, 1)); return;
    case TREK_OP_log1p: outs[0] = trek_onnx_1(x, "Log", trek_onnx_2(x, "Add", a, number(x, 1))); return;
    case TREK_OP_log2: outs[0] = trek_onnx_2(x, "Mul", trek_onnx_1(x, "Log", a), number(x, 1 / log(2))); return;
    case TREK_OP_log10: outs[0] = trek_onnx_2(x, "Mul", trek_onnx_1(x, "Log", a), number(x, 1 / log(10))); return;
    case TREK_OP_rsqrt: outs[0] = trek_onnx_1(x, "Reciprocal", trek_onnx_1(x, "Sqrt", a)); return;
    case TREK_OP_square: outs[0] = trek_onnx_2(x, "Mul", a, a); return;
    default: outs[0] = trek_onnx_2(x, "Mul", a, trek_onnx_1(x, "Sigmoid", a)); return; /* silu */
    }
}

/* --- truth ---------------------------------------------------------------------------------------- */

static const char *truth(trek_onnx *x, int k) { return trek_onnx_cast(x, trek_onnx_in(x, k), in_dtype(x, k), TREK_BOOL); }

static void finiteness(trek_onnx *x, const char **outs)
{
    int op = trek_onnx_at(x, 0)->op->id;
    const char *a = trek_onnx_in(x, 0);
    trek_dtype dtype = in_dtype(x, 0);
    if (dtype != TREK_F64) /* also for integers */
        a = trek_onnx_cast(x, a, dtype, TREK_F32);
    const char *nan = op == TREK_OP_isinf ? NULL : trek_onnx_1(x, "IsNaN", a);
    const char *inf = op == TREK_OP_isnan ? NULL : trek_onnx_1(x, "IsInf", a);
    outs[0] = nan && inf ? trek_onnx_1(x, "Not", trek_onnx_2(x, "Or", nan, inf)) : nan ? nan : inf;
}

static void logical(trek_onnx *x, const char **outs)
{
    int op = trek_onnx_at(x, 0)->op->id;
    if (op == TREK_OP_logical_not)
        outs[0] = trek_onnx_1(x, "Not", truth(x, 0));
    else
        outs[0] = trek_onnx_2(x, op == TREK_OP_logical_and ? "And" : op == TREK_OP_logical_or ? "Or" : "Xor", truth(x, 0),
                              truth(x, 1));
}

static void bitwise(trek_onnx *x, const char **outs)
{
    int op = trek_onnx_at(x, 0)->op->id;
    bool is_bool = in_dtype(x, 0) == TREK_BOOL;
    if (!is_bool && x->opset < 18) {
        trek_onnx_refuse(x, "for integers it exists from opset 18 on");
        return;
    }
    if (op == TREK_OP_bitwise_not)
        outs[0] = trek_onnx_1(x, is_bool ? "Not" : "BitwiseNot", trek_onnx_in(x, 0));
    else
        outs[0] = trek_onnx_2(x, op == TREK_OP_bitwise_and ? (is_bool ? "And" : "BitwiseAnd")
                                 : op == TREK_OP_bitwise_or ? (is_bool ? "Or" : "BitwiseOr") : (is_bool ? "Xor" : "BitwiseXor"),
                              trek_onnx_in(x, 0), trek_onnx_in(x, 1));
}

static void shifted(trek_onnx *x, const char **outs)
{
    if (in_dtype(x, 0) != TREK_U8) {
        trek_onnx_refuse(x, "ONNX shifts only unsigned integers");
        return;
    }
    outs[0] = trek_onnx_2(x, "BitShift", trek_onnx_in(x, 0), trek_onnx_in(x, 1));
    trek_onnx_attr_string(x, "direction", trek_onnx_at(x, 0)->op->id == TREK_OP_bitwise_left_shift ? "LEFT" : "RIGHT");
}

static const char *compared(trek_onnx *x, int op, const char *a, const char *b)
{
    switch (op) {
    case TREK_OP_eq: case TREK_OP_eq_scalar: return trek_onnx_2(x, "Equal", a, b);
    case TREK_OP_ne: case TREK_OP_ne_scalar: return trek_onnx_1(x, "Not", trek_onnx_2(x, "Equal", a, b));
    case TREK_OP_lt: case TREK_OP_lt_scalar: return trek_onnx_2(x, "Less", a, b);
    case TREK_OP_le: case TREK_OP_le_scalar: return trek_onnx_2(x, "LessOrEqual", a, b);
    case TREK_OP_gt: case TREK_OP_gt_scalar: return trek_onnx_2(x, "Greater", a, b);
    default: return trek_onnx_2(x, "GreaterOrEqual", a, b);
    }
}

/* Bools are compared as integers. */
static void comparison(trek_onnx *x, const char **outs)
{
    trek_dtype dtype = in_dtype(x, 0), as = dtype == TREK_BOOL ? TREK_I32 : dtype;
    outs[0] = compared(x, trek_onnx_at(x, 0)->op->id, trek_onnx_cast(x, trek_onnx_in(x, 0), dtype, as),
                       trek_onnx_cast(x, trek_onnx_in(x, 1), dtype, as));
}

static void comparison_with_number(trek_onnx *x, const char **outs)
{
    double value = trek_onnx_f(x, 0);
    trek_dtype dtype = in_dtype(x, 0), as = dtype;
    bool fits = trek_dtype_is_float(dtype) || (value == rint(value) && fabs(value) < 2147483648.0 && dtype != TREK_U8);
    if (dtype == TREK_BOOL || !fits)
        as = dtype == TREK_I64 && !fits ? TREK_F64 : fits ? TREK_I32 : TREK_F32;
    outs[0] = compared(x, trek_onnx_at(x, 0)->op->id, trek_onnx_cast(x, trek_onnx_in(x, 0), dtype, as),
                       trek_onnx_scalar(x, as, value));
}

/* --- with numbers and pairs ------------------------------------------------------------------------- */

static void with_number(trek_onnx *x, const char **outs)
{
    const char *a = trek_onnx_in(x, 0);
    double first = trek_onnx_f(x, 0);
    switch (trek_onnx_at(x, 0)->op->id) {
    case TREK_OP_add_scalar: outs[0] = trek_onnx_2(x, "Add", a, number(x, first)); return;
    case TREK_OP_mul_scalar: outs[0] = trek_onnx_2(x, "Mul", a, number(x, first)); return;
    default: outs[0] = trek_onnx_2(x, "Pow", a, number(x, first)); return;
    }
}

static void clamp(trek_onnx *x, const char **outs)
{
    double low = trek_onnx_f(x, 0), high = trek_onnx_f(x, 1);
    outs[0] = trek_onnx_3(x, "Clip", trek_onnx_in(x, 0), isinf(low) ? NULL : number(x, low),
                          isinf(high) ? NULL : number(x, high));
}

/* For bools, sum and maximum are or; product and minimum are and. */
static void pair(trek_onnx *x, const char **outs)
{
    int op = trek_onnx_at(x, 0)->op->id;
    bool is_bool = in_dtype(x, 0) == TREK_BOOL, both = op == TREK_OP_mul || op == TREK_OP_minimum;
    const char *name = op == TREK_OP_add ? "Add" : op == TREK_OP_mul ? "Mul" : op == TREK_OP_maximum ? "Max" : "Min";
    outs[0] = trek_onnx_2(x, is_bool ? (both ? "And" : "Or") : name, trek_onnx_in(x, 0), trek_onnx_in(x, 1));
}

/* Returns the remainder with the divisor's sign or, truncated, with the dividend's. */
static const char *remainder_of(trek_onnx *x, const char *a, const char *b, trek_dtype dtype, bool truncated)
{
    if (trek_dtype_is_float(dtype) && !truncated)
        return trek_onnx_2(x, "Sub", a, trek_onnx_2(x, "Mul", trek_onnx_1(x, "Floor", trek_onnx_2(x, "Div", a, b)), b));
    const char *rest = trek_onnx_2(x, "Mod", a, b);
    trek_onnx_attr_int(x, "fmod", truncated);
    return rest;
}

static void divided(trek_onnx *x, const char **outs)
{
    const char *a = trek_onnx_in(x, 0), *b = trek_onnx_in(x, 1);
    trek_dtype dtype = in_dtype(x, 0);
    int op = trek_onnx_at(x, 0)->op->id;
    if (op != TREK_OP_div_rounded) {
        outs[0] = remainder_of(x, a, b, dtype, op == TREK_OP_fmod);
        return;
    }
    bool truncated = trek_onnx_i(x, 0) == 0;
    if (!trek_dtype_is_float(dtype)) {
        if (!truncated)
            a = trek_onnx_2(x, "Sub", a, remainder_of(x, a, b, dtype, false));
        outs[0] = trek_onnx_2(x, "Div", a, b);
        return;
    }
    const char *q = trek_onnx_2(x, "Div", a, b);
    outs[0] = truncated ? trek_onnx_2(x, "Mul", trek_onnx_1(x, "Sign", q), trek_onnx_1(x, "Floor", trek_onnx_1(x, "Abs", q)))
                        : trek_onnx_1(x, "Floor", q);
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
    if (activation == TREK_ACTIVATION_RELU)
        return trek_onnx_1(x, "Relu", a);
    return activation == TREK_ACTIVATION_GELU ? trek_onnx_gelu(x, a, dtype, false) : a;
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

static void pointwise(trek_onnx *x, const char **outs)
{
    const char *a = trek_onnx_in(x, 0);
    int64_t kind = trek_onnx_i(x, 0);
    double s = trek_onnx_f(x, 0), t = trek_onnx_f(x, 1);
    switch (kind) {
    case TREK_POINTWISE_hardshrink: outs[0] = shrink(x, a, s, 0); return;
    case TREK_POINTWISE_softshrink: outs[0] = shrink(x, a, s, s); return;
    case TREK_POINTWISE_hardsigmoid: outs[0] = hardsigmoid(x, a); return;
    case TREK_POINTWISE_hardtanh: outs[0] = trek_onnx_3(x, "Clip", a, number(x, s), number(x, t)); return;
    case TREK_POINTWISE_hardswish: outs[0] = trek_onnx_1(x, "HardSwish", a); return;
    case TREK_POINTWISE_logsigmoid:
        outs[0] = trek_onnx_1(x, "Neg", trek_onnx_1(x, "Softplus", trek_onnx_1(x, "Neg", a)));
        return;
    case TREK_POINTWISE_selu: outs[0] = selu(x, a); return;
    case TREK_POINTWISE_celu:
        outs[0] = trek_onnx_2(x, "Mul", with_float(x, "Elu", trek_onnx_2(x, "Div", a, number(x, s)), "alpha", 1), number(x, s));
        if (s < 0) /* a negative scale exchanges the halves */
            trek_onnx_refuse(x, "celu of a negative alpha");
        return;
    case TREK_POINTWISE_elu: outs[0] = with_float(x, "Elu", a, "alpha", s); return;
    case TREK_POINTWISE_leaky_relu: outs[0] = with_float(x, "LeakyRelu", a, "alpha", s); return;
    case TREK_POINTWISE_mish:
        outs[0] = trek_onnx_2(x, "Mul", a, trek_onnx_1(x, "Tanh", trek_onnx_1(x, "Softplus", a)));
        return;
    case TREK_POINTWISE_softsign: outs[0] = trek_onnx_1(x, "Softsign", a); return;
    case TREK_POINTWISE_tanhshrink: outs[0] = trek_onnx_2(x, "Sub", a, trek_onnx_1(x, "Tanh", a)); return;
    case TREK_POINTWISE_threshold:
        outs[0] = trek_onnx_3(x, "Where", trek_onnx_2(x, "Greater", a, number(x, s)), a, number(x, t));
        return;
    case TREK_POINTWISE_asinh: outs[0] = trek_onnx_1(x, "Asinh", a); return;
    case TREK_POINTWISE_acosh: outs[0] = trek_onnx_1(x, "Acosh", a); return;
    case TREK_POINTWISE_atanh: outs[0] = trek_onnx_1(x, "Atanh", a); return;
    case TREK_POINTWISE_exp2: outs[0] = trek_onnx_2(x, "Pow", number(x, 2), a); return;
    case TREK_POINTWISE_erfc: outs[0] = trek_onnx_2(x, "Sub", number(x, 1), trek_onnx_1(x, "Erf", a)); return;
    default:
        trek_onnx_refuse(x, "ONNX does not have this function (erfinv, lgamma, polygamma, i0, i0e, i1, i1e, log_ndtr)");
        return;
    }
}

void trek_onnx_rows_elementwise(trek_onnx_row *rows)
{
    static const struct { int op; trek_onnx_row row; } list[] = {
        { TREK_OP_floor, rounded }, { TREK_OP_ceil, rounded }, { TREK_OP_round, rounded }, { TREK_OP_trunc, rounded },
        { TREK_OP_expm1, made_of }, { TREK_OP_log1p, made_of }, { TREK_OP_log2, made_of }, { TREK_OP_log10, made_of },
        { TREK_OP_rsqrt, made_of }, { TREK_OP_square, made_of }, { TREK_OP_silu, made_of },
        { TREK_OP_isnan, finiteness }, { TREK_OP_isinf, finiteness }, { TREK_OP_isfinite, finiteness },
        { TREK_OP_logical_not, logical }, { TREK_OP_logical_and, logical }, { TREK_OP_logical_or, logical },
        { TREK_OP_logical_xor, logical }, { TREK_OP_bitwise_not, bitwise }, { TREK_OP_bitwise_and, bitwise },
        { TREK_OP_bitwise_or, bitwise }, { TREK_OP_bitwise_xor, bitwise },
        { TREK_OP_bitwise_left_shift, shifted }, { TREK_OP_bitwise_right_shift, shifted },
        { TREK_OP_eq, comparison }, { TREK_OP_ne, comparison }, { TREK_OP_lt, comparison }, { TREK_OP_le, comparison },
        { TREK_OP_gt, comparison }, { TREK_OP_ge, comparison },
        { TREK_OP_eq_scalar, comparison_with_number }, { TREK_OP_ne_scalar, comparison_with_number },
        { TREK_OP_lt_scalar, comparison_with_number }, { TREK_OP_le_scalar, comparison_with_number },
        { TREK_OP_gt_scalar, comparison_with_number }, { TREK_OP_ge_scalar, comparison_with_number },
        { TREK_OP_add_scalar, with_number }, { TREK_OP_mul_scalar, with_number }, { TREK_OP_pow_scalar, with_number },
        { TREK_OP_clamp, clamp }, { TREK_OP_add, pair }, { TREK_OP_mul, pair }, { TREK_OP_maximum, pair },
        { TREK_OP_minimum, pair }, { TREK_OP_remainder, divided }, { TREK_OP_fmod, divided }, { TREK_OP_div_rounded, divided },
        { TREK_OP_hypot, hypot_row },
        { TREK_OP_atan2, atan2_row }, { TREK_OP_copysign, copysign_row }, { TREK_OP_relu, relu }, { TREK_OP_gelu, gelu },
        { TREK_OP_softplus, softplus },
        { TREK_OP_pointwise, pointwise },
    };
    for (int op = 0; op < TREK_OP_COUNT; op++)
        if (plain_names[op])
            rows[op] = plain;
    for (size_t k = 0; k < sizeof list / sizeof *list; k++)
        rows[list[k].op] = list[k].row;
}
