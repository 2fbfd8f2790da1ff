/* SPDX-License-Identifier: Apache-2.0 */
/* Every element-wise function of autograd/ops.h, called by its public name: values and gradients against plain C, over random
 * numbers, dtypes and what they promote to, views of every kind, broadcasting, numbers that are none. (The op suite tests
 * the rows of ops.def, which lie below.) Also squeeze, tril and triu, one_hot. */
#include "autograd/backward.h"
#include "autograd/ops.h"
#include "tests/support/support.h"
#include "tests/support/unit.h"

enum { MOST = 128 };

static trek_scope scope;

static int open_scope(void **state)
{
    (void)state;
    trek_error_clear();
    scope = trek_scope_begin();
    return 0;
}

static int close_scope(void **state)
{
    (void)state;
    trek_error_clear();
    return trek_scope_end(scope) == TREK_OK && trek_tape_size() == 0 ? 0 : -1;
}

/* --- the functions ------------------------------------------------------------------------------- */

typedef enum kind {
    KEEPS,   /* the dtype that the inputs promote to */
    FLOATS,  /* the same, f32 for integers */
    FLOATING, /* floating inputs only */
    TRUTH,   /* bool, and no gradient */
} kind;

typedef struct function {
    const char *name;
    trek_var *(*one)(trek_var *x);
    trek_var *(*two)(trek_var *x, trek_var *y);
    kind kind;
    double low[2], high[2]; /* of the inputs */
    double (*value)(double x, double y);
    double (*slope[2])(double x, double y);
} function;

static double phi(double x) { return 0.5 * erfc(-x / sqrt(2)); }
static double bell(double x) { return exp(-0.5 * x * x) / sqrt(2 * M_PI); }
static double logistic(double x) { return 1 / (1 + exp(-x)); }
static double pushed(double x) { return tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)); }
static double even(double x) { return isinf(x) ? x : copysign(x - remainder(x, 1), x); }
static double modulo(double x, double y)
{
    double rest = fmod(x, y);
    return rest != 0 && (rest < 0) != (y < 0) ? rest + y : rest;
}

/* What takes a number has one here. */
static trek_var *number_add(trek_var *x) { return trek_add_scalar(x, 2.5); }
static trek_var *number_sub(trek_var *x) { return trek_sub_scalar(x, 1.5); }
static trek_var *number_mul(trek_var *x) { return trek_mul_scalar(x, -2.5); }
static trek_var *number_div(trek_var *x) { return trek_div_scalar(x, 4); }
static trek_var *number_pow(trek_var *x) { return trek_pow_scalar(x, 3); }
static trek_var *number_root(trek_var *x) { return trek_pow_scalar(x, -1.5); }
static trek_var *number_eq(trek_var *x) { return trek_eq_scalar(x, 1); }
static trek_var *number_ne(trek_var *x) { return trek_ne_scalar(x, 1); }
static trek_var *number_lt(trek_var *x) { return trek_lt_scalar(x, 1); }
static trek_var *number_le(trek_var *x) { return trek_le_scalar(x, 1); }
static trek_var *number_gt(trek_var *x) { return trek_gt_scalar(x, 1); }
static trek_var *number_ge(trek_var *x) { return trek_ge_scalar(x, 1); }
static trek_var *number_clamp(trek_var *x) { return trek_clamp(x, -1, 1.5); }
static trek_var *number_leaky_relu(trek_var *x) { return trek_leaky_relu(x, 0.125); }
static trek_var *number_elu(trek_var *x) { return trek_elu(x, 1.25); }
static trek_var *number_softplus(trek_var *x) { return trek_softplus(x, 2, 4); }
static trek_var *number_masked_fill(trek_var *x) { return trek_masked_fill(x, trek_gt_scalar(x, 1), 7); }

/* name, function, kind, least and most of x, value, slope */
#define ONE(X)                                                                                        \
    X(neg, trek_neg, KEEPS, -3, 3, -x, -1)                                                            \
    X(abs, trek_abs, KEEPS, -3, 3, fabs(x), x > 0 ? 1 : -1)                                           \
    X(sign, trek_sign, KEEPS, -3, 3, (x > 0) - (x < 0), 0)                                             \
    X(exp, trek_exp, FLOATS, -3, 3, exp(x), exp(x))                                                   \
    X(expm1, trek_expm1, FLOATS, -3, 3, expm1(x), exp(x))                                             \
    X(log, trek_log, FLOATS, 0.1, 4, log(x), 1 / x)                                                   \
    X(log1p, trek_log1p, FLOATS, -0.9, 4, log1p(x), 1 / (1 + x))                                      \
    X(log2, trek_log2, FLOATS, 0.1, 4, log2(x), 1 / (x * M_LN2))                                      \
    X(log10, trek_log10, FLOATS, 0.1, 4, log10(x), 1 / (x * M_LN10))                                  \
    X(sqrt, trek_sqrt, FLOATS, 0.1, 4, sqrt(x), 0.5 / sqrt(x))                                        \
    X(rsqrt, trek_rsqrt, FLOATS, 0.1, 4, 1 / sqrt(x), -0.5 / (x * sqrt(x)))                           \
    X(reciprocal, trek_reciprocal, FLOATS, 0.2, 4, 1 / x, -1 / (x * x))                               \
    X(square, trek_square, KEEPS, -3, 3, x * x, 2 * x)                                                \
    X(sin, trek_sin, FLOATS, -4, 4, sin(x), cos(x))                                                   \
    X(cos, trek_cos, FLOATS, -4, 4, cos(x), -sin(x))                                                  \
    X(tan, trek_tan, FLOATS, -1.4, 1.4, tan(x), 1 + tan(x) * tan(x))                                  \
    X(asin, trek_asin, FLOATS, -0.95, 0.95, asin(x), 1 / sqrt(1 - x * x))                             \
    X(acos, trek_acos, FLOATS, -0.95, 0.95, acos(x), -1 / sqrt(1 - x * x))                            \
    X(atan, trek_atan, FLOATS, -4, 4, atan(x), 1 / (1 + x * x))                                       \
    X(sinh, trek_sinh, FLOATS, -3, 3, sinh(x), cosh(x))                                               \
    X(cosh, trek_cosh, FLOATS, -3, 3, cosh(x), sinh(x))                                               \
    X(tanh, trek_tanh, FLOATS, -3, 3, tanh(x), 1 - tanh(x) * tanh(x))                                 \
    X(sigmoid, trek_sigmoid, FLOATS, -4, 4, logistic(x), logistic(x) * (1 - logistic(x)))             \
    X(erf, trek_erf, FLOATS, -3, 3, erf(x), 2 * exp(-x * x) / sqrt(M_PI))                             \
    X(relu, trek_relu, KEEPS, -3, 3, x < 0 ? 0 : x, x > 0)                                            \
    X(gelu, trek_gelu, FLOATING, -3, 3, isinf(x) ? fmax(x, -0.0) : x * phi(x), phi(x) + x * bell(x))     \
    X(gelu_tanh, trek_gelu_tanh, FLOATING, -3, 3, isinf(x) ? fmax(x, -0.0) : 0.5 * x * (1 + pushed(x)),  \
      0.5 * (1 + pushed(x)) + 0.5 * x * (1 - pushed(x) * pushed(x)) * sqrt(2 / M_PI) * (1 + 3 * 0.044715 * x * x)) \
    X(silu, trek_silu, FLOATING, -4, 4, x * logistic(x), logistic(x) * (1 + x * (1 - logistic(x))))     \
    X(floor, trek_floor, KEEPS, -3, 3, floor(x), 0)                                                   \
    X(ceil, trek_ceil, KEEPS, -3, 3, ceil(x), 0)                                                      \
    X(round, trek_round, KEEPS, -3, 3, even(x), 0)                                                    \
    X(trunc, trek_trunc, KEEPS, -3, 3, trunc(x), 0)                                                   \
    X(isnan, trek_isnan, TRUTH, -3, 3, x != x, 0)                                                     \
    X(isinf, trek_isinf, TRUTH, -3, 3, fabs(x) == INFINITY, 0)                                        \
    X(isfinite, trek_isfinite, TRUTH, -3, 3, x - x == 0, 0)                                           \
    X(logical_not, trek_logical_not, TRUTH, -1, 1, x == 0, 0)                                         \
    X(clone, trek_clone, KEEPS, -3, 3, x, 1)                                                          \
    X(contiguous, trek_contiguous, KEEPS, -3, 3, x, 1)                                                \
    X(add_scalar, number_add, FLOATS, -3, 3, x + 2.5, 1)                                              \
    X(sub_scalar, number_sub, FLOATS, -3, 3, x - 1.5, 1)                                              \
    X(mul_scalar, number_mul, FLOATS, -3, 3, x * -2.5, -2.5)                                          \
    X(div_scalar, number_div, FLOATS, -3, 3, x / 4, 0.25)                                             \
    X(pow_scalar, number_pow, KEEPS, -3, 3, x * x * x, 3 * x * x)                                     \
    X(pow_root, number_root, FLOATS, 0.2, 4, pow(x, -1.5), -1.5 * pow(x, -2.5))                       \
    X(eq_scalar, number_eq, TRUTH, -3, 3, x == 1, 0)                                                  \
    X(ne_scalar, number_ne, TRUTH, -3, 3, x != 1, 0)                                                  \
    X(lt_scalar, number_lt, TRUTH, -3, 3, x < 1, 0)                                                   \
    X(le_scalar, number_le, TRUTH, -3, 3, x <= 1, 0)                                                  \
    X(gt_scalar, number_gt, TRUTH, -3, 3, x > 1, 0)                                                   \
    X(ge_scalar, number_ge, TRUTH, -3, 3, x >= 1, 0)                                                  \
    X(clamp, number_clamp, FLOATS, -3, 3, x < -1 ? -1 : x > 1.5 ? 1.5 : x, x > -1 && x < 1.5)         \
    X(leaky_relu, number_leaky_relu, FLOATING, -3, 3, x < 0 ? 0.125 * x : x, x < 0 ? 0.125 : 1)       \
    X(elu, number_elu, FLOATING, -3, 3, x < 0 ? 1.25 * expm1(x) : x, x < 0 ? 1.25 * exp(x) : 1)       \
    X(softplus, number_softplus, FLOATING, -3, 3, 2 * x > 4 ? x : log1p(exp(2 * x)) / 2, 2 * x > 4 ? 1 : logistic(2 * x)) \
    X(masked_fill, number_masked_fill, KEEPS, -3, 3, x > 1 ? 7 : x, x <= 1)

/* name, function, kind, least and most of x, of y, value, slope by x, by y */
#define TWO(X)                                                                                        \
    X(add, trek_add, KEEPS, -3, 3, -3, 3, x + y, 1, 1)                                                \
    X(sub, trek_sub, KEEPS, -3, 3, -3, 3, x - y, 1, -1)                                               \
    X(mul, trek_mul, KEEPS, -3, 3, -3, 3, x * y, y, x)                                                \
    X(div, trek_div, FLOATS, -3, 3, 0.3, 3, x / y, 1 / y, -x / (y * y))                               \
    X(pow, trek_pow, KEEPS, 0.3, 3, 0.2, 2.5, pow(x, y), y * pow(x, y - 1), log(x) * pow(x, y))       \
    X(maximum, trek_maximum, KEEPS, -3, 3, -3, 3, isnan(x) || x > y ? x : y, x > y, x < y)            \
    X(minimum, trek_minimum, KEEPS, -3, 3, -3, 3, isnan(x) || x < y ? x : y, x < y, x > y)            \
    X(atan2, trek_atan2, FLOATS, -3, 3, -3, 3, atan2(x, y), y / (x * x + y * y), -x / (x * x + y * y))\
    X(remainder, trek_remainder, KEEPS, -3, 3, 0.3, 3, modulo(x, y), 1, -floor(x / y))                \
    X(eq, trek_eq, TRUTH, -2, 2, -2, 2, x == y, 0, 0)                                                 \
    X(ne, trek_ne, TRUTH, -2, 2, -2, 2, x != y, 0, 0)                                                 \
    X(lt, trek_lt, TRUTH, -2, 2, -2, 2, x < y, 0, 0)                                                  \
    X(le, trek_le, TRUTH, -2, 2, -2, 2, x <= y, 0, 0)                                                 \
    X(gt, trek_gt, TRUTH, -2, 2, -2, 2, x > y, 0, 0)                                                  \
    X(ge, trek_ge, TRUTH, -2, 2, -2, 2, x >= y, 0, 0)                                                 \
    X(logical_and, trek_logical_and, TRUTH, -1, 1, -1, 1, x != 0 && y != 0, 0, 0)                     \
    X(logical_or, trek_logical_or, TRUTH, -1, 1, -1, 1, x != 0 || y != 0, 0, 0)                       \
    X(logical_xor, trek_logical_xor, TRUTH, -1, 1, -1, 1, (x != 0) != (y != 0), 0, 0)

#define FORMULA(name, expression)                                                                     \
    static double name(double x, double y)                                                            \
    {                                                                                                 \
        (void)x, (void)y;                                                                             \
        return expression;                                                                            \
    }
#define ONE_FORMULAS(name, function, kind, low, high, value, slope) FORMULA(name##_of, value) FORMULA(name##_slope, slope)
#define TWO_FORMULAS(name, function, kind, lowx, highx, lowy, highy, value, by_x, by_y) \
    FORMULA(name##_of, value) FORMULA(name##_by_x, by_x) FORMULA(name##_by_y, by_y)
ONE(ONE_FORMULAS)
TWO(TWO_FORMULAS)

#define ONE_ENTRY(name, function, kind, low, high, value, slope) \
    { #name, function, NULL, kind, { low }, { high }, name##_of, { name##_slope } },
#define TWO_ENTRY(name, function, kind, lowx, highx, lowy, highy, value, by_x, by_y) \
    { #name, NULL, function, kind, { lowx, lowy }, { highx, highy }, name##_of, { name##_by_x, name##_by_y } },
static const function functions[] = { ONE(ONE_ENTRY) TWO(TWO_ENTRY) };
enum { FUNCTIONS = sizeof functions / sizeof *functions };

static trek_var *call(const function *f, trek_var *const *in) { return f->one ? f->one(in[0]) : f->two(in[0], in[1]); }
static int inputs_of(const function *f) { return f->one ? 1 : 2; }

/* --- inputs: views of leaves ------------------------------------------------------------------------ */

/* How an input lies in its leaf. */
typedef enum layout { WHOLE, TRANSPOSED, PART, PLANE, REPEATED, LAYOUTS } layout;
static const char *const layout_names[] = { "whole", "transposed", "part", "plane", "repeated" };

typedef struct input {
    trek_var *leaf, *x;
    double value[MOST], place[MOST]; /* of x's elements: what they are, and where in the leaf */
} input;

static trek_shape leaf_shape(layout how, int64_t rows, int64_t columns)
{
    switch (how) {
    case TRANSPOSED: return trek_dims(columns, rows);
    case PART: return trek_dims(rows, columns + 3);
    case PLANE: return trek_dims(rows, 2, columns);
    case REPEATED: return trek_dims(1, columns);
    default: return trek_dims(rows, columns);
    }
}

static trek_var *view(trek_var *leaf, layout how, int64_t rows, int64_t columns)
{
    switch (how) {
    case TRANSPOSED: return trek_transpose(leaf, 0, 1);
    case PART: return trek_narrow(leaf, 1, 2, columns);
    case PLANE: return trek_select(leaf, 1, 1);
    case REPEATED: return trek_expand(leaf, trek_dims(rows, columns));
    default: return leaf;
    }
}

static void read_all(const trek_var *v, double *to)
{
    assert_non_null(v);
    assert_true(trek_var_numel(v) <= MOST);
    assert_int_equal(trek_tensor_to_host(trek_var_data(v), TREK_F64, to, sizeof(double) * (size_t)trek_var_numel(v)), TREK_OK);
}

static bool is_floating(trek_dtype dtype)
{
    return dtype == TREK_F64 || dtype == TREK_F32 || dtype == TREK_F16 || dtype == TREK_BF16;
}

/* In [low, high]; whole for integers, halves for truths, so that there are equal ones. */
static double draw(const function *f, int k, trek_dtype dtype, uint32_t stream, uint32_t at)
{
    double t = 0.5 + 0.5 * (double)test_number(stream, at), low = f->low[k], high = f->high[k];
    if (is_floating(dtype))
        return f->kind == TRUTH ? floor(2 * (low + t * (high - low)) + 0.5) / 2 : low + t * (high - low);
    low = dtype == TREK_U8 || dtype == TREK_BOOL ? fmax(ceil(low), 0) : ceil(low);
    return dtype == TREK_BOOL ? t > 0.5 : fmin(low + floor(t * (floor(high) - low + 1)), floor(high));
}

static input input_of(const function *f, int k, trek_dtype dtype, layout how, int64_t rows, int64_t columns, uint32_t stream)
{
    input in;
    double list[MOST], places[MOST];
    trek_shape shape = leaf_shape(how, rows, columns);
    for (int64_t i = 0; i < trek_shape_numel(shape); i++) {
        list[i] = draw(f, k, dtype, stream, (uint32_t)i);
        places[i] = (double)i;
    }
    in.leaf = trek_var_from(test_values(list, shape, dtype));
    trek_var *where = view(trek_var_from(test_values(places, shape, TREK_F64)), how, rows, columns);
    if (dtype == TREK_F64 || dtype == TREK_F32)
        assert_int_equal(trek_var_set_requires_grad(in.leaf, true), TREK_OK);
    in.x = view(in.leaf, how, rows, columns);
    read_all(in.x, in.value);
    read_all(where, in.place);
    return in;
}

/* --- comparing --------------------------------------------------------------------------------------- */

static double tolerance(trek_dtype dtype)
{
    return dtype == TREK_F64 ? 1e-12 : dtype == TREK_F32 ? 3e-6 : dtype == TREK_F16 ? 2e-3 : dtype == TREK_BF16 ? 1.6e-2 : 0;
}

static bool close_to(double got, double expected, double tolerance)
{
    if (isnan(expected) || isinf(expected))
        return isnan(expected) ? isnan(got) : got == expected;
    return fabs(got - expected) <= tolerance * (1 + fabs(expected));
}

static trek_dtype dtype_of_result(const function *f, trek_dtype promoted)
{
    return f->kind == TRUTH ? TREK_BOOL : f->kind == FLOATS && !is_floating(promoted) ? TREK_F32 : promoted;
}

/* Whether the function is one of inputs of that dtype. */
static bool takes(const function *f, trek_dtype promoted)
{
    bool bool_too =
        f->kind == TRUTH || f->two == trek_add || f->two == trek_mul || f->two == trek_maximum || f->two == trek_minimum;
    if (promoted == TREK_BOOL)
        return bool_too;
    return is_floating(promoted) || f->kind != FLOATING;
}

/* The gradient of sum(weights y) reaches each input's leaf, where elements of the view lie, and is 0 elsewhere. */
static void check_gradient(const function *f, const input *in, trek_var *y, const int64_t (*from)[MOST], const char *what)
{
    int64_t n = trek_var_numel(y);
    double weights[MOST], got[MOST];
    for (int64_t i = 0; i < n; i++)
        weights[i] = test_number(90, (uint32_t)i);
    trek_var *w = trek_var_from(test_values(weights, trek_var_shape(y), TREK_F64));
    assert_int_equal(trek_backward(trek_sum(trek_mul(y, w), trek_dims_none(), false)), TREK_OK);
    for (int k = 0; k < inputs_of(f); k++) {
        double expected[MOST] = { 0 };
        for (int64_t i = 0; i < n; i++) {
            double x = in[0].value[from[0][i]], other = f->two ? in[1].value[from[1][i]] : 0;
            expected[(int)in[k].place[from[k][i]]] += weights[i] * f->slope[k](x, other);
        }
        trek_var *grad = trek_var_grad(in[k].leaf);
        assert_non_null(grad);
        assert_true(trek_shape_equal(trek_var_shape(grad), trek_var_shape(in[k].leaf)));
        assert_int_equal(trek_var_dtype(grad), trek_var_dtype(in[k].leaf));
        read_all(grad, got);
        for (int64_t i = 0; i < trek_var_numel(grad); i++)
            if (!close_to(got[i], expected[i], 10 * tolerance(trek_var_dtype(in[k].leaf))))
                fail_msg("%s, %s: gradient %d of input %d is %.17g instead of %.17g", f->name, what, (int)i, k, got[i],
                         expected[i]);
    }
}

/* Values, dtype and gradient of a call. from: for each element of the result the inputs' elements. */
static void check_call(const function *f, const input *in, trek_shape shape, trek_dtype promoted, const int64_t (*from)[MOST],
                       const char *what)
{
    trek_var *y = call(f, (trek_var *[]){ in[0].x, f->two ? in[1].x : NULL });
    if (!y)
        fail_msg("%s, %s: %s", f->name, what, trek_error());
    trek_dtype dtype = dtype_of_result(f, promoted);
    if (trek_var_dtype(y) != dtype || !trek_shape_equal(trek_var_shape(y), shape))
        fail_msg("%s, %s: a result of %s instead of %s, or another shape", f->name, what, trek_dtype_name(trek_var_dtype(y)),
                 trek_dtype_name(dtype));
    double got[MOST];
    read_all(y, got);
    for (int64_t i = 0; i < trek_var_numel(y); i++) {
        double a = in[0].value[from[0][i]], b = f->two ? in[1].value[from[1][i]] : 0, expected = f->value(a, b);
        if (dtype == TREK_BOOL)
            expected = expected != 0;
        if (!close_to(got[i], expected, tolerance(dtype)))
            fail_msg("%s, %s: element %d of (%.17g, %.17g) is %.17g instead of %.17g", f->name, what, (int)i, a, b, got[i],
                     expected);
    }
    bool slopes = f->kind != TRUTH && (trek_var_requires_grad(in[0].leaf) && (!f->two || trek_var_requires_grad(in[1].leaf)));
    if (f->kind == TRUTH)
        assert_false(trek_var_requires_grad(y));
    if (slopes)
        check_gradient(f, in, y, from, what);
}

/* --- the cases --------------------------------------------------------------------------------------- */

static void dtypes_and_views(void **state)
{
    (void)state;
    static const trek_dtype dtypes[] = { TREK_F64, TREK_F32, TREK_F16, TREK_BF16, TREK_I64, TREK_I32, TREK_U8, TREK_BOOL };
    int64_t from[2][MOST];
    for (int i = 0; i < MOST; i++)
        from[0][i] = from[1][i] = i;
    for (int k = 0; k < FUNCTIONS; k++)
        for (size_t d = 0; d < sizeof dtypes / sizeof *dtypes; d++)
            for (int how = 0; how < LAYOUTS && takes(&functions[k], dtypes[d]); how++) {
                if (dtypes[d] == TREK_U8 && (functions[k].one == trek_neg || functions[k].two == trek_sub))
                    continue; /* wraps */
                trek_scope inner = trek_scope_begin();
                layout other = (layout)((how + k) % LAYOUTS); /* the second input lies otherwise */
                input in[2] = { input_of(&functions[k], 0, dtypes[d], (layout)how, 5, 7, 11) };
                if (functions[k].two)
                    in[1] = input_of(&functions[k], 1, dtypes[d], other, 5, 7, 12);
                char what[64];
                snprintf(what, sizeof what, "%s, %s and %s", trek_dtype_name(dtypes[d]), layout_names[how], layout_names[other]);
                check_call(&functions[k], in, trek_dims(5, 7), dtypes[d], (const int64_t(*)[MOST])from, what);
                trek_scope_end(inner);
            }
}

/* Two inputs of all shapes that broadcast; gradients are summed over what was repeated. */
static void broadcasting(void **state)
{
    (void)state;
    static const int64_t shapes[][2][2] = { { { 1, 4 }, { 3, 4 } }, { { 3, 4 }, { 1, 4 } }, { { 3, 1 }, { 1, 4 } },
                                            { { 1, 1 }, { 3, 4 } }, { { 3, 4 }, { 3, 1 } }, { { 1, 1 }, { 1, 1 } },
                                            { { 1, 4 }, { 5, 1 } } };
    for (int k = 0; k < FUNCTIONS; k++)
        for (size_t s = 0; s < sizeof shapes / sizeof *shapes && functions[k].two; s++) {
            trek_scope inner = trek_scope_begin();
            const int64_t(*at)[2] = shapes[s];
            int64_t rows = at[0][0] > at[1][0] ? at[0][0] : at[1][0], columns = at[0][1] > at[1][1] ? at[0][1] : at[1][1],
                    from[2][MOST];
            input in[2];
            for (int p = 0; p < 2; p++) {
                in[p] = input_of(&functions[k], p, TREK_F64, s % 2 ? TRANSPOSED : WHOLE, at[p][0], at[p][1], 21 + (uint32_t)p);
                for (int64_t i = 0; i < rows * columns; i++)
                    from[p][i] = (at[p][0] > 1 ? i / columns : 0) * at[p][1] + (at[p][1] > 1 ? i % columns : 0);
            }
            bool row = s == 1; /* of fewer dimensions */
            if (row)
                in[1].x = trek_reshape(in[1].x, trek_dims(columns));
            char what[64];
            snprintf(what, sizeof what, "shapes %d", (int)s);
            check_call(&functions[k], in, trek_dims(rows, columns), TREK_F64, (const int64_t(*)[MOST])from, what);
            trek_scope_end(inner);
        }
}

static void promotion(void **state)
{
    (void)state;
    static const trek_dtype pairs[][3] = { { TREK_F32, TREK_F64, TREK_F64 },  { TREK_I32, TREK_F32, TREK_F32 },
                                           { TREK_U8, TREK_I32, TREK_I32 },   { TREK_F16, TREK_I64, TREK_F16 },
                                           { TREK_BF16, TREK_F16, TREK_F32 }, { TREK_F32, TREK_BF16, TREK_F32 },
                                           { TREK_BOOL, TREK_I64, TREK_I64 }, { TREK_F64, TREK_BOOL, TREK_F64 } };
    int64_t from[2][MOST];
    for (int i = 0; i < MOST; i++)
        from[0][i] = from[1][i] = i;
    for (int k = 0; k < FUNCTIONS; k++)
        for (size_t p = 0; p < sizeof pairs / sizeof *pairs && functions[k].two; p++) {
            bool divides = functions[k].two == trek_remainder || functions[k].two == trek_div;
            bool subtracts = functions[k].two == trek_sub; /* which bool does not */
            if ((pairs[p][1] == TREK_BOOL && divides) || ((pairs[p][0] == TREK_BOOL || pairs[p][1] == TREK_BOOL) && subtracts))
                continue;
            trek_scope inner = trek_scope_begin();
            input in[2] = { input_of(&functions[k], 0, pairs[p][0], WHOLE, 4, 6, 31),
                            input_of(&functions[k], 1, pairs[p][1], TRANSPOSED, 4, 6, 32) };
            char what[64];
            snprintf(what, sizeof what, "%s and %s", trek_dtype_name(pairs[p][0]), trek_dtype_name(pairs[p][1]));
            check_call(&functions[k], in, trek_dims(4, 6), pairs[p][2], (const int64_t(*)[MOST])from, what);
            trek_scope_end(inner);
        }
}

/* NaN, infinities, zeros of both signs, halves: all of them, and all pairs. */
static void numbers_that_are_none(void **state)
{
    (void)state;
    static const double special[] = { NAN, INFINITY, -INFINITY, 0, -0.0, 0.5, -0.5, 1.5, 2.5, -2.5, 1, -1, 2, 0x1p60, -0x1p60 };
    enum { N = sizeof special / sizeof *special };
    double all[2][N * N], got[N * N];
    for (int i = 0; i < N * N; i++) {
        all[0][i] = special[i / N];
        all[1][i] = special[i % N];
    }
    for (int k = 0; k < FUNCTIONS; k++)
        for (int d = 0; d < 2; d++) {
            const function *f = &functions[k];
            trek_scope inner = trek_scope_begin();
            trek_dtype dtype = d ? TREK_F32 : TREK_F64;
            trek_var *in[2] = { trek_var_from(test_values(all[0], trek_dims(N * N), dtype)),
                                trek_var_from(test_values(all[1], trek_dims(N * N), dtype)) };
            trek_var *y = trek_cast(call(f, in), TREK_F64);
            assert_int_equal(trek_tensor_to_host(trek_var_data(y), TREK_F64, got, sizeof got), TREK_OK);
            for (int i = 0; i < N * N; i++) {
                double expected = f->value(all[0][i], all[1][i]);
                if (f->kind == TRUTH)
                    expected = expected != 0;
                if (d && fabs(expected) > 3.5e38)
                    expected = copysign(INFINITY, expected);
                if (!close_to(got[i], expected, tolerance(dtype)) ||
                    (expected == 0 && f->one && !signbit(got[i]) != !signbit(expected)))
                    fail_msg("%s of %s (%g, %g) is %.17g instead of %.17g", f->name, trek_dtype_name(dtype), all[0][i], all[1][i],
                             got[i], expected);
            }
            trek_scope_end(inner);
        }
}

/* NULL in, NULL out, and the first error stays; of no elements there are none. */
static void null_and_empty(void **state)
{
    (void)state;
    for (int k = 0; k < FUNCTIONS; k++) {
        trek_var *x = trek_var_from(test_values(NULL, trek_dims(0, 3), TREK_F32)),
                 *y = call(&functions[k], (trek_var *[]){ x, x });
        assert_non_null(y);
        assert_true(trek_shape_equal(trek_var_shape(y), trek_dims(0, 3)));
        trek_fail(TREK_ERR_FORMAT, "an earlier one");
        assert_null(call(&functions[k], (trek_var *[]){ NULL, x }));
        if (functions[k].two)
            assert_null(functions[k].two(x, NULL));
        assert_int_equal(trek_error_status(), TREK_ERR_FORMAT);
        trek_error_clear();
    }
}

static void shapes_that_do_not_broadcast(void **state)
{
    (void)state;
    trek_var *x = trek_var_from(test_tensor(1, trek_dims(3, 4), 1)), *y = trek_var_from(test_tensor(2, trek_dims(3), 1));
    for (int k = 0; k < FUNCTIONS; k++) {
        if (!functions[k].two)
            continue;
        assert_null(functions[k].two(x, y));
        assert_int_equal(trek_error_status(), TREK_ERR_SHAPE);
        if (!strstr(trek_error(), functions[k].name))
            fail_msg("%s: %s", functions[k].name, trek_error());
        trek_error_clear();
    }
}

/* --- squeeze ------------------------------------------------------------------------------------------ */

static trek_var *leaf_of(trek_shape shape)
{
    trek_var *x = trek_var_from(trek_tensor_cast(test_tensor(41, shape, 2), TREK_F64));
    assert_int_equal(trek_var_set_requires_grad(x, true), TREK_OK);
    return x;
}

static void expect_error(const trek_var *result, trek_status status, const char *prefix)
{
    assert_null(result);
    if (trek_error_status() != status || strncmp(trek_error(), prefix, strlen(prefix)) != 0)
        fail_msg("\"%s\" instead of %s, %s", trek_error(), trek_status_name(status), prefix);
    trek_error_clear();
}

static void squeezing(void **state)
{
    (void)state;
    static const struct { int dim; int64_t shape[4]; int ndim; } cases[] = {
        { 0, { 3, 1, 4 }, 3 }, { 2, { 1, 3, 4 }, 3 }, { -2, { 1, 3, 4 }, 3 }, { -4, { 3, 1, 4 }, 3 },
        { 1, { 1, 3, 1, 4 }, 4 }, { 3, { 1, 3, 1, 4 }, 4 }, { -1, { 1, 3, 1, 4 }, 4 }, /* not of size 1: as it is */
    };
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        trek_var *x = leaf_of(trek_dims(1, 3, 1, 4)), *y = trek_squeeze(x, cases[k].dim);
        assert_int_equal(trek_var_shape(y).ndim, cases[k].ndim);
        for (int d = 0; d < cases[k].ndim; d++)
            assert_int_equal(trek_var_shape(y).sizes[d], cases[k].shape[d]);
        double in[MOST], out[MOST], grad[MOST];
        read_all(x, in);
        read_all(y, out);
        assert_memory_equal(in, out, 12 * sizeof(double));
        if (test_on_cpu())
            assert_ptr_equal(trek_tensor_data(trek_var_data(x)), trek_tensor_data(trek_var_data(y))); /* a view */
        assert_int_equal(trek_backward(trek_sum(trek_square(y), trek_dims_none(), false)), TREK_OK);
        read_all(trek_var_grad(x), grad);
        assert_true(trek_shape_equal(trek_var_shape(trek_var_grad(x)), trek_dims(1, 3, 1, 4)));
        for (int i = 0; i < 12; i++)
            assert_true(grad[i] == 2 * in[i]);
    }
    trek_var *x = leaf_of(trek_dims(2, 1, 3)), *there = trek_unsqueeze(trek_squeeze(trek_transpose(x, 0, 2), 1), 1);
    assert_true(trek_shape_equal(trek_var_shape(there), trek_dims(3, 1, 2)));
    expect_error(trek_squeeze(x, 3), TREK_ERR_ARGUMENT, "squeeze: ");
    expect_error(trek_squeeze(x, -4), TREK_ERR_ARGUMENT, "squeeze: ");
    assert_null(trek_squeeze(NULL, 0));
}

/* --- triangles ------------------------------------------------------------------------------------------ */

static void check_triangle(trek_var *leaf, trek_var *x, int64_t diagonal, bool upper)
{
    trek_var *y = upper ? trek_triu(x, diagonal) : trek_tril(x, diagonal);
    trek_shape shape = trek_var_shape(x);
    int64_t rows = shape.sizes[shape.ndim - 2], columns = shape.sizes[shape.ndim - 1], kept = 0;
    double in[MOST], out[MOST], grad[MOST];
    assert_true(trek_shape_equal(trek_var_shape(y), shape));
    read_all(x, in);
    read_all(y, out);
    for (int64_t i = 0; i < trek_var_numel(x); i++) {
        int64_t row = i / columns % rows, column = i % columns;
        bool keep = upper ? column - row >= diagonal : column - row <= diagonal;
        kept += keep;
        if (out[i] != (keep ? in[i] : 0))
            fail_msg("tri%c %d: element (%d, %d) is %g", upper ? 'u' : 'l', (int)diagonal, (int)row, (int)column, out[i]);
    }
    trek_var_zero_grad(leaf);
    assert_int_equal(trek_backward(trek_sum(y, trek_dims_none(), false)), TREK_OK);
    read_all(trek_var_grad(leaf), grad);
    double sum = 0;
    for (int64_t i = 0; i < trek_var_numel(leaf); i++) {
        assert_true(grad[i] == 0 || grad[i] == 1);
        sum += grad[i];
    }
    assert_true(sum == (double)kept);
    trek_var *twice = upper ? trek_triu(y, diagonal) : trek_tril(y, diagonal); /* and again: the same */
    double again[MOST];
    read_all(twice, again);
    assert_memory_equal(again, out, sizeof(double) * (size_t)trek_var_numel(y));
}

static void triangles(void **state)
{
    (void)state;
    static const int64_t diagonals[] = { 0, 1, -1, 2, -3, 4, 100, -100, INT64_MAX, INT64_MIN };
    for (size_t k = 0; k < sizeof diagonals / sizeof *diagonals; k++)
        for (int upper = 0; upper < 2; upper++) {
            trek_var *x = leaf_of(trek_dims(3, 5)), *tall = leaf_of(trek_dims(5, 3)), *many = leaf_of(trek_dims(2, 4, 3));
            check_triangle(x, x, diagonals[k], upper);
            check_triangle(tall, tall, diagonals[k], upper);
            check_triangle(many, many, diagonals[k], upper);
            check_triangle(x, trek_transpose(x, 0, 1), diagonals[k], upper);
            check_triangle(many, trek_transpose(many, 0, 2), diagonals[k], upper);
            check_triangle(many, trek_narrow(many, 1, 1, 2), diagonals[k], upper);
        }
    trek_var *row = leaf_of(trek_dims(5));
    expect_error(trek_triu(row, 0), TREK_ERR_SHAPE, "triu: ");
    expect_error(trek_tril(row, 0), TREK_ERR_SHAPE, "tril: ");
    trek_var *whole = trek_triu(trek_cast(leaf_of(trek_dims(3, 3)), TREK_I32), 1);
    assert_int_equal(trek_var_dtype(whole), TREK_I32);
}

/* --- one_hot ---------------------------------------------------------------------------------------------- */

static void check_one_hot(trek_var *labels, int64_t classes, int64_t wanted)
{
    trek_var *y = trek_one_hot(labels, classes);
    if (!y)
        fail_msg("%s", trek_error());
    trek_shape shape = trek_var_shape(labels);
    double in[MOST], out[MOST];
    read_all(labels, in);
    read_all(y, out);
    assert_int_equal(trek_var_dtype(y), TREK_I64);
    assert_int_equal(trek_var_shape(y).ndim, shape.ndim + 1);
    assert_int_equal(trek_var_shape(y).sizes[shape.ndim], wanted);
    for (int64_t i = 0; i < trek_var_numel(y); i++)
        assert_true(out[i] == ((double)(i % wanted) == in[i / wanted]));
    assert_false(trek_var_requires_grad(y));
}

static void one_hot_labels(void **state)
{
    (void)state;
    static const double labels[] = { 2, 0, 1, 4, 4, 0 };
    static const trek_dtype dtypes[] = { TREK_I64, TREK_I32, TREK_U8 };
    for (int d = 0; d < 3; d++) {
        trek_var *x = trek_var_from(test_values(labels, trek_dims(2, 3), dtypes[d]));
        check_one_hot(x, 5, 5);
        check_one_hot(x, 7, 7);
        check_one_hot(x, -1, 5);
        check_one_hot(trek_transpose(x, 0, 1), -1, 5);
        check_one_hot(trek_narrow(x, 1, 0, 2), -1, 5);
        check_one_hot(trek_select(x, 0, 0), 3, 3);
        check_one_hot(trek_select(trek_select(x, 0, 0), 0, 2), -1, 2); /* a scalar */
    }
    trek_var *x = trek_var_from(test_values(labels, trek_dims(6), TREK_I64)), *negative = trek_neg(x);
    if (test_on_cpu()) { /* else at the next synchronisation */
        expect_error(trek_one_hot(x, 4), TREK_ERR_ARGUMENT, "one_hot: ");
        expect_error(trek_one_hot(negative, 5), TREK_ERR_ARGUMENT, "one_hot: ");
        expect_error(trek_one_hot(negative, -1), TREK_ERR_ARGUMENT, "one_hot: ");
    }
    expect_error(trek_one_hot(x, 0), TREK_ERR_ARGUMENT, "one_hot: ");
    expect_error(trek_one_hot(x, -2), TREK_ERR_ARGUMENT, "one_hot: ");
    expect_error(trek_one_hot(trek_cast(x, TREK_F32), 5), TREK_ERR_DTYPE, "one_hot: ");
    assert_null(trek_one_hot(NULL, 3));
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, open_scope, close_scope)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(dtypes_and_views), TEST(broadcasting), TEST(promotion), TEST(numbers_that_are_none), TEST(null_and_empty),
        TEST(shapes_that_do_not_broadcast), TEST(squeezing), TEST(triangles), TEST(one_hot_labels),
    };
    return cmocka_run_group_tests_name("public_ops", tests, NULL, NULL);
}
