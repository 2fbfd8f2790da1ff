/* SPDX-License-Identifier: Apache-2.0 */
/* Derivatives of element-wise ops. g is the gradient of the result y = f(x). */
#include <math.h>

#include "autograd/rules_internal.h"
#include "tensor/pointwise.h"

static trek_var *x_of(trek_backward_call *b) { return trek_rule_input(b, 0); }
static trek_var *y_of(trek_backward_call *b) { return trek_rule_output(b, 0); }
/* The same, and the gradient, for formulas of several steps. */
static trek_var *full_x(trek_backward_call *b) { return trek_rule_full(b, trek_rule_input(b, 0)); }
static trek_var *full_y(trek_backward_call *b) { return trek_rule_full(b, trek_rule_output(b, 0)); }
static trek_var *full_g(trek_backward_call *b) { return trek_rule_full(b, b->grad); }
static trek_var *one_minus(trek_var *x) { return trek_add_scalar(trek_neg(x), 1); }

trek_status trek_rule_identity(trek_backward_call *b) { return trek_rule_give(b, b->grad); }
trek_status trek_rule_neg(trek_backward_call *b) { return trek_rule_give(b, trek_neg(b->grad)); }
trek_status trek_rule_abs(trek_backward_call *b) { return trek_rule_give(b, trek_mul(b->grad, trek_sign(x_of(b)))); }
trek_status trek_rule_zero(trek_backward_call *b) { return trek_rule_give(b, trek_rule_zeros(b, trek_var_shape(b->grad))); }
trek_status trek_rule_exp(trek_backward_call *b) { return trek_rule_give(b, trek_mul(b->grad, y_of(b))); }
trek_status trek_rule_expm1(trek_backward_call *b) { return trek_rule_give(b, trek_mul(b->grad, trek_add_scalar(y_of(b), 1))); }
trek_status trek_rule_log(trek_backward_call *b) { return trek_rule_give(b, trek_div(b->grad, x_of(b))); }
trek_status trek_rule_log1p(trek_backward_call *b) { return trek_rule_give(b, trek_div(b->grad, trek_add_scalar(x_of(b), 1))); }
trek_status trek_rule_log2(trek_backward_call *b)
{
    return trek_rule_give(b, trek_div(b->grad, trek_mul_scalar(x_of(b), 0.693147180559945309417)));
}
trek_status trek_rule_log10(trek_backward_call *b)
{
    return trek_rule_give(b, trek_div(b->grad, trek_mul_scalar(x_of(b), 2.302585092994045684018)));
}
trek_status trek_rule_sqrt(trek_backward_call *b)
{
    return trek_rule_give(b, trek_div(b->grad, trek_mul_scalar(y_of(b), 2)));
}
trek_status trek_rule_rsqrt(trek_backward_call *b) /* -y^3 / 2 */
{
    return trek_rule_give(b, trek_mul(b->grad, trek_mul_scalar(trek_pow_scalar(full_y(b), 3), -0.5)));
}
trek_status trek_rule_reciprocal(trek_backward_call *b)
{
    return trek_rule_give(b, trek_mul(b->grad, trek_neg(trek_square(y_of(b)))));
}
trek_status trek_rule_square(trek_backward_call *b)
{
    return trek_rule_give(b, trek_mul_scalar(trek_mul(b->grad, x_of(b)), 2)); /* 2 x may overflow where the gradient is 0 */
}
trek_status trek_rule_sin(trek_backward_call *b) { return trek_rule_give(b, trek_mul(b->grad, trek_cos(x_of(b)))); }
trek_status trek_rule_cos(trek_backward_call *b) { return trek_rule_give(b, trek_neg(trek_mul(b->grad, trek_sin(x_of(b))))); }
trek_status trek_rule_tan(trek_backward_call *b)
{
    return trek_rule_give(b, trek_mul(b->grad, trek_add_scalar(trek_square(y_of(b)), 1)));
}
trek_status trek_rule_asin(trek_backward_call *b)
{
    return trek_rule_give(b, trek_mul(b->grad, trek_rsqrt(one_minus(trek_square(full_x(b))))));
}
trek_status trek_rule_acos(trek_backward_call *b)
{
    return trek_rule_give(b, trek_neg(trek_mul(b->grad, trek_rsqrt(one_minus(trek_square(full_x(b)))))));
}
trek_status trek_rule_atan(trek_backward_call *b)
{
    return trek_rule_give(b, trek_div(b->grad, trek_add_scalar(trek_square(x_of(b)), 1)));
}
trek_status trek_rule_sinh(trek_backward_call *b) { return trek_rule_give(b, trek_mul(b->grad, trek_cosh(x_of(b)))); }
trek_status trek_rule_cosh(trek_backward_call *b) { return trek_rule_give(b, trek_mul(b->grad, trek_sinh(x_of(b)))); }

trek_status trek_rule_tanh(trek_backward_call *b)
{
    if (!b->create_graph)
        return trek_rule_give(b, trek_apply_tanh_backward(b->grad, y_of(b)));
    return trek_rule_give(b, trek_mul(b->grad, one_minus(trek_square(full_y(b)))));
}

trek_status trek_rule_sigmoid(trek_backward_call *b)
{
    trek_var *y = y_of(b);
    if (!b->create_graph)
        return trek_rule_give(b, trek_apply_sigmoid_backward(b->grad, y));
    y = trek_rule_full(b, y);
    return trek_rule_give(b, trek_mul(b->grad, trek_mul(y, one_minus(y))));
}

trek_status trek_rule_erf(trek_backward_call *b) /* 2/sqrt(pi) exp(-x^2) */
{
    trek_var *bell = trek_exp(trek_neg(trek_square(full_x(b))));
    return trek_rule_give(b, trek_mul(b->grad, trek_mul_scalar(bell, 1.128379167095512573896)));
}

trek_status trek_rule_relu(trek_backward_call *b) { return trek_rule_give(b, trek_apply_relu_backward(b->grad, y_of(b))); }

/* Linear in the gradient. The selection of elements has no derivative. */
trek_status trek_rule_relu_backward(trek_backward_call *b)
{
    trek_status status = TREK_OK;
    if (trek_rule_needs(b, 0))
        status = trek_rule_give_to(b, 0, trek_apply_relu_backward(b->grad, trek_rule_input(b, 1)));
    if (status == TREK_OK && trek_rule_needs(b, 1))
        status = trek_rule_give_to(b, 1, trek_rule_zeros(b, trek_var_shape(b->grad)));
    return status;
}

/* d/dx [x Phi(x)] = Phi(x) + x phi(x), and the same for the tanh form; in f64, because the sums cancel where x is far
 * below 0 */
static trek_var *gelu_slope(trek_var *x, bool tanh_form)
{
    x = trek_cast(x, TREK_F64);
    if (!tanh_form) {
        trek_var *phi = trek_mul_scalar(trek_exp(trek_mul_scalar(trek_square(x), -0.5)), 0.398942280401432677940);
        trek_var *cumulative = trek_mul_scalar(trek_add_scalar(trek_erf(trek_mul_scalar(x, 0.707106781186547524401)), 1), 0.5);
        return trek_add(cumulative, trek_mul(x, phi));
    }
    const double k = 0.797884560802865355880, c = 0.044715; /* sqrt(2 / pi) */
    trek_var *square = trek_square(x);
    trek_var *t = trek_tanh(trek_mul_scalar(trek_mul(x, trek_add_scalar(trek_mul_scalar(square, c), 1)), k));
    trek_var *inner = trek_mul_scalar(trek_add_scalar(trek_mul_scalar(square, 3 * c), 1), k);
    trek_var *sech = one_minus(trek_square(t));
    return trek_mul_scalar(trek_add(trek_add_scalar(t, 1), trek_mul(x, trek_mul(sech, inner))), 0.5);
}

trek_status trek_rule_gelu(trek_backward_call *b)
{
    bool tanh_form = b->attrs->i[0] != 0;
    trek_var *x = x_of(b);
    if (!b->create_graph)
        return trek_rule_give(b, trek_apply_gelu_backward(b->grad, x, tanh_form));
    return trek_rule_give(b, trek_mul(b->grad, gelu_slope(x, tanh_form)));
}

static trek_var *sigmoid_slope(trek_var *x)
{
    trek_var *s = trek_sigmoid(x);
    return trek_mul(s, one_minus(s));
}
static trek_var *silu_slope(trek_var *x) /* s (1 + x (1 - s)) */
{
    trek_var *s = trek_sigmoid(x);
    return trek_mul(s, trek_add_scalar(trek_mul(x, one_minus(s)), 1));
}

trek_status trek_rule_silu(trek_backward_call *b)
{
    trek_var *x = x_of(b);
    if (!b->create_graph)
        return trek_rule_give(b, trek_apply_silu_backward(b->grad, x));
    return trek_rule_give(b, trek_mul(b->grad, silu_slope(trek_rule_full(b, x))));
}

/* The second derivative is 0 from the threshold on, as in PyTorch. */
trek_status trek_rule_softplus(trek_backward_call *b)
{
    double beta = b->attrs->f[0], threshold = b->attrs->f[1];
    trek_var *z = trek_mul_scalar(full_x(b), beta), *slope = trek_masked_fill(trek_sigmoid(z), trek_gt_scalar(z, threshold), 1);
    if (b->create_graph)
        slope = trek_where(trek_ge_scalar(z, threshold), slope ? trek_var_detach(slope) : NULL, slope);
    return trek_rule_give(b, trek_mul(full_g(b), slope));
}

/* i0(x) - i1(x) / x; for the function scaled by e^-|x|, minus the function itself with x's sign; 1/2 at 0. */
static trek_var *bessel_1_slope(trek_var *x, bool is_scaled)
{
    trek_var *zero = trek_eq_scalar(x, 0), *safe = trek_masked_fill(x, zero, 1);
    trek_var *first = is_scaled ? trek_i1e(safe) : trek_i1(safe), *slope = is_scaled ? trek_i0e(safe) : trek_i0(safe);
    if (is_scaled)
        slope = trek_sub(slope, trek_mul(first, trek_sign(safe)));
    return trek_masked_fill(trek_sub(slope, trek_div(first, safe)), zero, 0.5);
}

/* The density over the area, as a difference of logarithms that are large far below 0; therefore in f64. */
static trek_var *log_ndtr_slope(trek_var *x)
{
    trek_var *wide = trek_cast(x, TREK_F64), *density = trek_mul_scalar(trek_square(wide), -0.5);
    trek_var *slope = trek_mul_scalar(trek_exp(trek_sub(density, trek_log_ndtr(wide))), 0.39894228040143267794);
    return x ? trek_cast(slope, trek_var_dtype(x)) : NULL;
}

/* --- whose gradient has a kernel --------------------------------------------------- */

/* Computes the gradient by the kernel of that row; where it is recorded, by `slope`, the derivative made of ops that have
 * derivatives themselves, or NULL for a piecewise linear function, whose derivative is a constant. */
typedef trek_var *(*slope_fn)(trek_backward_call *b, trek_var *x);
static trek_status sloped(trek_backward_call *b, enum trek_op_id row, slope_fn slope)
{
    const trek_op *kernel = &trek_ops[row];
    trek_var *x = x_of(b);
    if (!b->create_graph)
        return trek_rule_give(b, trek_apply(kernel, (trek_var *[]){ b->grad, x }, 2, b->attrs));
    x = trek_rule_full(b, x);
    trek_var *one = slope ? NULL : trek_rule_full(b, trek_ones_like(x));
    trek_var *factor = slope ? slope(b, x) : trek_apply(kernel, (trek_var *[]){ one, trek_var_detach(x) }, 2, b->attrs);
    return trek_rule_give(b, trek_mul(full_g(b), factor));
}
#define SLOPED(name, slope) \
    trek_status trek_rule_##name(trek_backward_call *b) { return sloped(b, TREK_OP_##name##_backward, slope); }
#define SLOPE(name, derivative)                                                                          \
    static trek_var *slope_of_##name(trek_backward_call *b, trek_var *x) { return (void)b, derivative; } \
    SLOPED(name, slope_of_##name)

SLOPED(hardshrink, NULL)
SLOPED(hardsigmoid, NULL)
SLOPED(hardtanh, NULL)
SLOPED(leaky_relu, NULL)
SLOPED(softshrink, NULL)
SLOPED(threshold, NULL)

/* (2 x + 3) / 6 inside */
static trek_var *hardswish_slope(trek_backward_call *b, trek_var *x)
{
    trek_var *inside = trek_logical_and(trek_gt_scalar(x, -3), trek_lt_scalar(x, 3));
    trek_var *slope = trek_mul_scalar(trek_add_scalar(trek_mul_scalar(x, 2), 3), 1.0 / 6);
    (void)b;
    return trek_where(inside, slope, trek_cast(trek_logical_not(trek_lt_scalar(x, 3)), trek_var_dtype(x)));
}
SLOPED(hardswish, hardswish_slope)

/* below e^(x / s) for x <= 0, otherwise above */
static trek_var *exponential_slope(trek_var *x, double s, double below, double above)
{
    trek_var *e = trek_mul_scalar(trek_exp(trek_mul_scalar(trek_clamp(x, -INFINITY, 0), 1 / s)), below);
    return trek_masked_fill(e, trek_logical_not(trek_le_scalar(x, 0)), above);
}
SLOPE(selu, exponential_slope(x, 1, TREK_SELU_SCALE * TREK_SELU_ALPHA, TREK_SELU_SCALE))
SLOPE(celu, exponential_slope(x, b->attrs->f[0], 1, 1))
SLOPE(elu, exponential_slope(x, 1, b->attrs->f[0], 1))

static trek_var *mish_slope(trek_backward_call *b, trek_var *x)
{
    trek_var *w = trek_tanh(trek_softplus(x, 1, 20));
    (void)b;
    return trek_add(w, trek_mul(trek_mul(x, trek_sigmoid(x)), one_minus(trek_square(w))));
}
SLOPED(mish, mish_slope)

SLOPE(logsigmoid, trek_exp(trek_logsigmoid(trek_neg(x)))) /* precise at both ends, for derivatives of every order */
SLOPE(softsign, trek_reciprocal(trek_square(trek_add_scalar(trek_abs(x), 1))))
SLOPE(tanhshrink, trek_square(trek_tanh(x)))
SLOPE(asinh, trek_rsqrt(trek_add_scalar(trek_square(x), 1)))
SLOPE(acosh, trek_rsqrt(trek_sub_scalar(trek_square(x), 1)))
SLOPE(atanh, trek_reciprocal(trek_mul(one_minus(x), trek_add_scalar(x, 1))))
SLOPE(erfc, trek_mul_scalar(trek_exp(trek_neg(trek_square(x))), -1.1283791670955125739)) /* -2 / sqrt(pi) */
SLOPE(erfinv, trek_mul_scalar(trek_exp(trek_square(trek_erfinv(x))), 0.88622692545275801365))
SLOPE(exp2, trek_mul_scalar(trek_exp2(x), 0.69314718055994530942))
SLOPE(lgamma, trek_digamma(x))
SLOPE(polygamma, trek_polygamma((int64_t)b->attrs->f[0] + 1, x))
SLOPE(i0, trek_i1(x))
SLOPE(i0e, trek_sub(trek_i1e(x), trek_mul(trek_sign(x), trek_i0e(x))))
SLOPE(i1, bessel_1_slope(x, false))
SLOPE(i1e, bessel_1_slope(x, true))
SLOPE(log_ndtr, log_ndtr_slope(x))

/* --- with numbers ------------------------------------------------------------------- */

trek_status trek_rule_mul_scalar(trek_backward_call *b) { return trek_rule_give(b, trek_mul_scalar(b->grad, b->attrs->f[0])); }

trek_status trek_rule_div_scalar(trek_backward_call *b) { return trek_rule_give(b, trek_div_scalar(b->grad, b->attrs->f[0])); }
trek_status trek_rule_nan_to_num(trek_backward_call *b)
{
    return trek_rule_give(b, trek_masked_fill(b->grad, trek_logical_not(trek_isfinite(x_of(b))), 0));
}
trek_status trek_rule_ndtr(trek_backward_call *b)
{
    trek_var *density = trek_mul_scalar(trek_exp(trek_mul_scalar(trek_square(full_x(b)), -0.5)), 0.39894228040143267794);
    return trek_rule_give(b, trek_mul(full_g(b), density));
}

trek_status trek_rule_pow_scalar(trek_backward_call *b)
{
    double p = b->attrs->f[0];
    if (p == 0)
        return trek_rule_give(b, trek_rule_zeros(b, trek_var_shape(b->grad)));
    return trek_rule_give(b, trek_mul(full_g(b), trek_mul_scalar(trek_pow_scalar(full_x(b), p - 1), p)));
}

trek_status trek_rule_clamp(trek_backward_call *b)
{
    trek_var *x = x_of(b), *inside;
    double low = b->attrs->f[0], high = b->attrs->f[1];
    if (low == -INFINITY && high == INFINITY) /* an infinite bound does not limit anything, not even infinity */
        return trek_rule_give(b, b->grad);
    if (low == -INFINITY)
        inside = trek_lt_scalar(x, high);
    else if (high == INFINITY)
        inside = trek_gt_scalar(x, low);
    else
        inside = trek_logical_and(trek_gt_scalar(x, low), trek_lt_scalar(x, high));
    return trek_rule_give(b, trek_where(inside, b->grad, trek_rule_zeros(b, trek_dims_none())));
}

/* --- two inputs ----------------------------------------------------------------------- */

trek_status trek_rule_add(trek_backward_call *b)
{
    b->grads[0] = b->grads[1] = b->grad;
    return TREK_OK;
}

trek_status trek_rule_sub(trek_backward_call *b)
{
    b->grads[0] = b->grad;
    return trek_rule_needs(b, 1) ? trek_rule_give_to(b, 1, trek_neg(b->grad)) : TREK_OK;
}

trek_status trek_rule_mul(trek_backward_call *b)
{
    trek_status status = TREK_OK;
    if (trek_rule_needs(b, 0))
        status = trek_rule_give_to(b, 0, trek_mul(b->grad, trek_rule_input(b, 1)));
    if (status == TREK_OK && trek_rule_needs(b, 1))
        status = trek_rule_give_to(b, 1, trek_mul(b->grad, trek_rule_input(b, 0)));
    return status;
}

trek_status trek_rule_div(trek_backward_call *b) /* 1 / y and -(x / y) / y: g / y may overflow where x / y is 0 */
{
    trek_var *y = trek_rule_input(b, 1);
    trek_status status = TREK_OK;
    if (trek_rule_needs(b, 0))
        status = trek_rule_give_to(b, 0, trek_div(b->grad, y));
    if (status == TREK_OK && trek_rule_needs(b, 1))
        status = trek_rule_give_to(b, 1, trek_neg(trek_mul(b->grad, trek_div(trek_rule_output(b, 0), y))));
    return status;
}

/* What a mask removes from a derivative must not come back as 0 times infinity in the next one. So the exponent or
 * the base is replaced by 1 there before the formula uses it. */
trek_status trek_rule_pow(trek_backward_call *b)
{
    trek_status status = TREK_OK;
    trek_var *x = trek_rule_full(b, trek_rule_input(b, 0)), *p = trek_rule_full(b, trek_rule_input(b, 1)), *g = full_g(b);
    if (trek_rule_needs(b, 0)) { /* p x^(p - 1), 0 where p is 0 */
        trek_var *none = trek_eq_scalar(p, 0), *safe = trek_masked_fill(p, none, 1);
        trek_var *slope = trek_mul(g, trek_mul(safe, trek_pow(x, trek_sub_scalar(safe, 1))));
        status = trek_rule_give_to(b, 0, trek_masked_fill(slope, none, 0));
    }
    if (status == TREK_OK && trek_rule_needs(b, 1)) { /* y log x, 0 where x is 0 and p is at least 0 */
        trek_var *none = trek_logical_and(trek_eq_scalar(x, 0), trek_ge_scalar(p, 0)), *safe = trek_masked_fill(x, none, 1);
        trek_var *slope = trek_mul(g, trek_mul(full_y(b), trek_log(safe)));
        status = trek_rule_give_to(b, 1, trek_masked_fill(slope, none, 0));
    }
    return status;
}

/* The part of a gradient that the first of two numbers gets, or the second, if the larger or the smaller one was taken: all to
 * the one that was taken, half to each where they are equal, and to both at NaN. */
static trek_var *share_of(trek_var *grad, trek_var *x, trek_var *y, bool larger, bool second)
{
    trek_var *share = trek_where(trek_eq(x, y), trek_mul_scalar(grad, 0.5), grad);
    return trek_masked_fill(share, larger != second ? trek_lt(x, y) : trek_gt(x, y), 0);
}

trek_status trek_rule_maximum(trek_backward_call *b)
{
    bool larger = b->op->id == TREK_OP_maximum;
    trek_var *x = trek_rule_input(b, 0), *y = trek_rule_input(b, 1);
    trek_status status = TREK_OK;
    for (int k = 0; k < 2 && status == TREK_OK; k++)
        if (trek_rule_needs(b, k))
            status = trek_rule_give_to(b, k, share_of(b->grad, x, y, larger, k == 1));
    return status;
}

/* As minimum after maximum. */
trek_status trek_rule_clamp_var(trek_backward_call *b)
{
    trek_var *x = trek_rule_input(b, 0), *low = trek_rule_input(b, 1), *high = trek_rule_input(b, 2);
    trek_var *raised = trek_maximum(x, low), *inner = share_of(b->grad, raised, high, false, false);
    trek_status status = TREK_OK;
    for (int k = 0; k < 2 && status == TREK_OK; k++)
        if (trek_rule_needs(b, k))
            status = trek_rule_give_to(b, k, share_of(inner, x, low, true, k == 1));
    if (status == TREK_OK && trek_rule_needs(b, 2))
        status = trek_rule_give_to(b, 2, share_of(b->grad, raised, high, false, true));
    return status;
}

/* (y, -x) / (x^2 + y^2), and 0 at the origin. The gradient is multiplied last, so that its own derivatives do not
 * overflow on the way. */
trek_status trek_rule_atan2(trek_backward_call *b)
{
    trek_var *x = trek_rule_full(b, trek_rule_input(b, 0)), *y = trek_rule_full(b, trek_rule_input(b, 1)), *g = full_g(b);
    trek_var *squares = trek_add(trek_square(x), trek_square(y)), *origin = trek_eq_scalar(squares, 0);
    trek_var *safe = trek_masked_fill(squares, origin, 1);
    trek_status status = TREK_OK;
    if (trek_rule_needs(b, 0))
        status = trek_rule_give_to(b, 0, trek_mul(g, trek_masked_fill(trek_div(y, safe), origin, 0)));
    if (status == TREK_OK && trek_rule_needs(b, 1))
        status = trek_rule_give_to(b, 1, trek_neg(trek_mul(g, trek_masked_fill(trek_div(x, safe), origin, 0))));
    return status;
}

/* With respect to y: minus the quotient rounded down, which is constant between its steps. */
trek_status trek_rule_remainder(trek_backward_call *b)
{
    b->grads[0] = b->grad;
    if (!trek_rule_needs(b, 1))
        return TREK_OK;
    trek_no_grad_begin();
    trek_var *quotient = trek_apply_div_rounded(trek_rule_full(b, trek_rule_input(b, 0)),
                                                trek_rule_full(b, trek_rule_input(b, 1)), true);
    trek_no_grad_end();
    return trek_rule_give_to(b, 1, trek_neg(trek_mul(full_g(b), quotient)));
}

/* The same, rounded towards 0: the quotient of magnitudes, which is exact, with its sign. */
trek_status trek_rule_fmod(trek_backward_call *b)
{
    b->grads[0] = b->grad;
    if (!trek_rule_needs(b, 1))
        return TREK_OK;
    trek_no_grad_begin();
    trek_var *x = trek_rule_full(b, trek_rule_input(b, 0)), *y = trek_rule_full(b, trek_rule_input(b, 1));
    trek_var *size = trek_apply_div_rounded(trek_abs(x), trek_abs(y), true);
    trek_var *other = trek_ne(trek_lt_scalar(x, 0), trek_lt_scalar(y, 0));
    trek_var *quotient = trek_where(other, trek_neg(size), size);
    trek_no_grad_end();
    return trek_rule_give_to(b, 1, trek_neg(trek_mul(full_g(b), quotient)));
}

trek_status trek_rule_zero_pair(trek_backward_call *b)
{
    trek_status status = TREK_OK;
    for (int k = 0; k < 2 && status == TREK_OK; k++)
        if (trek_rule_needs(b, k))
            status = trek_rule_give_to(b, k, trek_rule_zeros(b, trek_var_shape(b->grad)));
    return status;
}

/* x / y and the like, where y is the result */
trek_status trek_rule_hypot(trek_backward_call *b)
{
    trek_var *length = full_y(b), *g = full_g(b);
    trek_status status = TREK_OK;
    for (int k = 0; k < 2 && status == TREK_OK; k++)
        if (trek_rule_needs(b, k))
            status = trek_rule_give_to(b, k, trek_mul(g, trek_div(trek_rule_full(b, trek_rule_input(b, k)), length)));
    return status;
}

/* With respect to x: x^(a - 1) e^-x / Gamma(a), or its negative, in f64 because its logarithms cancel. There is none
 * with respect to a, as in PyTorch. */
trek_status trek_rule_igamma(trek_backward_call *b)
{
    if (trek_rule_needs(b, 0))
        return trek_fail(TREK_ERR_UNSUPPORTED, "%s: it has no derivative with respect to a",
                         b->attrs->i[0] ? "igammac" : "igamma");
    trek_var *a = trek_cast(trek_rule_input(b, 0), TREK_F64), *x = trek_cast(trek_rule_input(b, 1), TREK_F64);
    trek_var *power = trek_sub(trek_sub(trek_xlogy(trek_sub_scalar(a, 1), x), x), trek_lgamma(a));
    trek_var *slope = trek_mul(trek_cast(b->grad, TREK_F64), trek_exp(power));
    return trek_rule_give_to(b, 1, b->attrs->i[0] ? trek_neg(slope) : slope);
}

/* 1, or -1 where the sign was changed; 0 at 0 */
trek_status trek_rule_copysign(trek_backward_call *b)
{
    trek_status status = TREK_OK;
    if (trek_rule_needs(b, 0))
        status = trek_rule_give_to(b, 0, trek_mul(b->grad, trek_mul(trek_sign(x_of(b)), trek_sign(y_of(b)))));
    if (status == TREK_OK && trek_rule_needs(b, 1))
        status = trek_rule_give_to(b, 1, trek_rule_zeros(b, trek_var_shape(b->grad)));
    return status;
}

/* --- several steps in one pass ------------------------------------------------------ */

static trek_var *full_in(trek_backward_call *b, int k) { return trek_rule_full(b, trek_rule_input(b, k)); }

trek_status trek_rule_lerp(trek_backward_call *b)
{
    const double weight = b->attrs->f[0];
    trek_status status = TREK_OK;
    if (trek_rule_needs(b, 0))
        status = trek_rule_give_to(b, 0, trek_mul_scalar(b->grad, 1 - weight));
    if (status == TREK_OK && trek_rule_needs(b, 1))
        status = trek_rule_give_to(b, 1, trek_mul_scalar(b->grad, weight));
    return status;
}

trek_status trek_rule_lerp_var(trek_backward_call *b)
{
    trek_var *weight = full_in(b, 2), *g = full_g(b);
    trek_status status = TREK_OK;
    if (trek_rule_needs(b, 0))
        status = trek_rule_give_to(b, 0, trek_mul(g, one_minus(weight)));
    if (status == TREK_OK && trek_rule_needs(b, 1))
        status = trek_rule_give_to(b, 1, trek_mul(g, weight));
    if (status == TREK_OK && trek_rule_needs(b, 2))
        status = trek_rule_give_to(b, 2, trek_mul(g, trek_sub(full_in(b, 1), full_in(b, 0))));
    return status;
}

trek_status trek_rule_addcmul(trek_backward_call *b)
{
    trek_status status = TREK_OK;
    b->grads[0] = b->grad;
    for (int k = 1; k < 3 && status == TREK_OK; k++)
        if (trek_rule_needs(b, k))
            status = trek_rule_give_to(b, k, trek_mul(full_g(b), trek_mul_scalar(full_in(b, 3 - k), b->attrs->f[0])));
    return status;
}

trek_status trek_rule_addcdiv(trek_backward_call *b)
{
    trek_var *z = full_in(b, 2), *part = trek_mul_scalar(full_g(b), b->attrs->f[0]);
    trek_status status = TREK_OK;
    b->grads[0] = b->grad;
    if (trek_rule_needs(b, 1))
        status = trek_rule_give_to(b, 1, trek_div(part, z));
    if (status == TREK_OK && trek_rule_needs(b, 2))
        status = trek_rule_give_to(b, 2, trek_neg(trek_mul(part, trek_div(trek_div(full_in(b, 1), z), z))));
    return status;
}

/* The sigmoid of s (x - y), and of s (y - x). Two equal infinities share the gradient, as two equal numbers do. */
trek_status trek_rule_logaddexp(trek_backward_call *b)
{
    trek_var *x = full_in(b, 0), *y = full_in(b, 1);
    trek_var *infinite = trek_logical_and(trek_isinf(x), trek_eq(x, y));
    trek_var *way = trek_mul_scalar(trek_masked_fill(trek_sub(x, y), infinite, 0), b->attrs->f[0]);
    trek_status status = TREK_OK;
    for (int k = 0; k < 2 && status == TREK_OK; k++)
        if (trek_rule_needs(b, k))
            status = trek_rule_give_to(b, k, trek_mul(full_g(b), trek_sigmoid(k == 0 ? way : trek_neg(way))));
    return status;
}

/* x f(y), where f is the sigmoid or SiLU: with respect to x the same of the gradient, with respect to y x f'(y). */
static trek_status gated(trek_backward_call *b, trek_var *slope_of(trek_var *),
                         trek_var *product(trek_var *, trek_var *), trek_var *backward(trek_var *, trek_var *, trek_var *))
{
    trek_var *x = trek_rule_input(b, 0), *y = trek_rule_input(b, 1);
    trek_status status = TREK_OK;
    if (trek_rule_needs(b, 0))
        status = trek_rule_give_to(b, 0, product(b->grad, y));
    if (status != TREK_OK || !trek_rule_needs(b, 1))
        return status;
    if (!b->create_graph)
        return trek_rule_give_to(b, 1, backward(b->grad, x, y));
    return trek_rule_give_to(b, 1, trek_mul(trek_mul(full_g(b), full_in(b, 0)), slope_of(full_in(b, 1))));
}
trek_status trek_rule_sigmoid_mul(trek_backward_call *b)
{
    return gated(b, sigmoid_slope, trek_apply_sigmoid_mul, trek_apply_sigmoid_mul_backward);
}
trek_status trek_rule_silu_mul(trek_backward_call *b)
{
    return gated(b, silu_slope, trek_apply_silu_mul, trek_apply_silu_mul_backward);
}

trek_status trek_rule_where(trek_backward_call *b)
{
    trek_var *condition = trek_rule_input(b, 0), *zero = trek_rule_zeros(b, trek_dims_none());
    trek_status status = TREK_OK;
    if (trek_rule_needs(b, 1))
        status = trek_rule_give_to(b, 1, trek_where(condition, b->grad, zero));
    if (status == TREK_OK && trek_rule_needs(b, 2))
        status = trek_rule_give_to(b, 2, trek_where(condition, zero, b->grad));
    return status;
}
