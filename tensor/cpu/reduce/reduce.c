/* SPDX-License-Identifier: Apache-2.0 */
/* Reductions by arithmetic: sum, mean, prod, max, min, any, all, variance, std, logsumexp.
 * Floating ones gather in f64, so that sums of f32 are exact to a rounding or
 * two whatever their length; integers gather in i64. */
#include <math.h>

#include "tensor/cpu/reduce/reduce.h"
#include "tensor/cpu/row_math.h"

#define LANES TREK_LANES
#define ROWS 4 /* of a block of columns that are taken together */

/* A fold named name_type: gathers A from elements T. `term` is what an element x gives, `join` combines two of
 * these; m is the output's parameter. G is the type that lanes of a row gather in. Long rows have twice the lanes:
 * an addition waits for the one before it. */
#define FOLD_ROW(name, suffix, T, A, G, member, start, term, join)                                     \
    static void name##_##suffix##_row(trek_partial *partial, const void *row, int64_t n, double parameter) \
    {                                                                                                  \
        const T *xs = row;                                                                             \
        const double m = parameter;                                                                    \
        G lanes[LANES], others[LANES];                                                                 \
        (void)m;                                                                                       \
        for (int l = 0; l < LANES; l++)                                                                \
            lanes[l] = others[l] = start;                                                              \
        int64_t i = 0;                                                                                 \
        for (; i + 2 * LANES <= n; i += 2 * LANES) {                                                   \
            for (int l = 0; l < LANES; l++) {                                                          \
                const T x = xs[i + l];                                                                 \
                const G a = lanes[l], b = (G)(term);                                                   \
                lanes[l] = join;                                                                       \
            }                                                                                          \
            for (int l = 0; l < LANES; l++) {                                                          \
                const T x = xs[i + LANES + l];                                                         \
                const G a = others[l], b = (G)(term);                                                  \
                others[l] = join;                                                                      \
            }                                                                                          \
        }                                                                                              \
        for (int l = 0; l < LANES && i > 0; l++) {                                                     \
            const G a = lanes[l], b = others[l];                                                       \
            lanes[l] = join;                                                                           \
        }                                                                                              \
        for (; i < n; i += LANES)                                                                      \
            for (int l = 0; l < LANES && i + l < n; l++) {                                             \
                const T x = xs[i + l];                                                                 \
                const G a = lanes[l], b = (G)(term);                                                   \
                lanes[l] = join;                                                                       \
            }                                                                                          \
        for (int half = LANES / 2; half > 0; half /= 2)                                                \
            for (int l = 0; l < half; l++) {                                                           \
                const G a = lanes[l], b = lanes[l + half];                                             \
                lanes[l] = join;                                                                       \
            }                                                                                          \
        {                                                                                              \
            const A a = partial->member, b = lanes[0];                                                 \
            partial->member = join;                                                                    \
        }                                                                                              \
    }
/* ROWS rows are joined before they meet what is gathered, which is read and written once for all of them. */
#define FOLD_COLUMNS(name, suffix, T, A, G, member, term, join)                                        \
    static inline G name##_##suffix##_term(T x, double m)                                              \
    {                                                                                                  \
        (void)m;                                                                                       \
        return (G)(term);                                                                              \
    }                                                                                                  \
    static inline G name##_##suffix##_join(G a, G b) { return join; }                                  \
    static void name##_##suffix##_columns(trek_partial *partials, const void *row, int64_t stride, int64_t rows, int64_t n, \
                                          const double *parameters)                                    \
    {                                                                                                  \
        A *gathered = &partials->member;                                                               \
        (void)parameters;                                                                              \
        for (; rows >= ROWS; rows -= ROWS, row = (const char *)row + ROWS * stride) {                  \
            const T *p = row, *q = (const T *)((const char *)row + stride),                            \
                    *r = (const T *)((const char *)row + 2 * stride), *s = (const T *)((const char *)row + 3 * stride); \
            TREK_INDEPENDENT                                                                           \
            for (int64_t i = 0; i < n; i++) {                                                          \
                const double m = parameters[i];                                                        \
                const G first = name##_##suffix##_join(name##_##suffix##_term(p[i], m), name##_##suffix##_term(q[i], m)); \
                const G second = name##_##suffix##_join(name##_##suffix##_term(r[i], m), name##_##suffix##_term(s[i], m)); \
                const A a = gathered[i], b = name##_##suffix##_join(first, second);                    \
                gathered[i] = join;                                                                    \
            }                                                                                          \
        }                                                                                              \
        for (; rows > 0; rows--, row = (const char *)row + stride) {                                   \
            const T *xs = row;                                                                         \
            TREK_INDEPENDENT                                                                           \
            for (int64_t i = 0; i < n; i++) {                                                          \
                const A a = gathered[i], b = name##_##suffix##_term(xs[i], parameters[i]);             \
                gathered[i] = join;                                                                    \
            }                                                                                          \
        }                                                                                              \
    }
#define FOLD_COMBINE(name, suffix, A, member, start, join)                                             \
    static void name##_##suffix##_combine(trek_partial *into, const trek_partial *from)                \
    {                                                                                                  \
        const A a = into->member, b = from->member;                                                    \
        into->member = join;                                                                           \
    }                                                                                                  \
    static const trek_fold fold_##name##_##suffix = { { .member = start }, name##_##suffix##_row, name##_##suffix##_columns, \
                                               name##_##suffix##_combine };
#define FOLD(name, suffix, T, A, G, member, start, term, join)                                         \
    FOLD_ROW(name, suffix, T, A, G, member, start, term, join)                                         \
    FOLD_COLUMNS(name, suffix, T, A, G, member, term, join)                                            \
    FOLD_COMBINE(name, suffix, A, member, start, join)

#define FOLD_FLOAT(name, start, term, join)                                                            \
    FOLD(name, f32, float, double, double, f, start, term, join)                                       \
    FOLD(name, f64, double, double, double, f, start, term, join)
#define FOLD_INTEGER(name, start, term, join)                                                          \
    FOLD(name, i64, int64_t, int64_t, int64_t, i, start, term, join)                                   \
    FOLD(name, i32, int32_t, int64_t, int64_t, i, start, term, join)                                   \
    FOLD(name, u8, uint8_t, int64_t, int64_t, i, start, term, join)

FOLD_FLOAT(sum, 0, x, a + b)
FOLD_FLOAT(prod, 1, x, a *b)
FOLD_FLOAT(sum_squares, 0, (double)x *(double)x, a + b)
FOLD_INTEGER(sum, 0, x, a + b)
FOLD_INTEGER(prod, 1, x, a *b)
/* NaN stays once it is there. */
#define FOLD_EXTREME(name, suffix, T, start, compare)                                                  \
    static void name##_##suffix##_row(trek_partial *partial, const void *row, int64_t n, double parameter) \
    {                                                                                                  \
        (void)parameter;                                                                               \
        partial->f = trek_row_##name##_##suffix(row, n, (T)partial->f);                                \
    }                                                                                                  \
    static void name##_##suffix##_columns(trek_partial *partials, const void *row, int64_t stride, int64_t rows, int64_t n, \
                                          const double *parameters)                                    \
    {                                                                                                  \
        T best[TREK_FOLD_COLUMNS];                                                                     \
        (void)parameters;                                                                              \
        for (int64_t i = 0; i < n; i++)                                                                \
            best[i] = (T)partials[i].f;                                                                \
        for (int64_t r = 0; r < rows; r++, row = (const char *)row + stride) {                         \
            const T *xs = row;                                                                         \
            for (int64_t i = 0; i < n; i++) {                                                          \
                const T a = best[i], b = xs[i];                                                        \
                best[i] = ((b compare a) | (b != b)) ? b : a;                                          \
            }                                                                                          \
        }                                                                                              \
        for (int64_t i = 0; i < n; i++)                                                                \
            partials[i].f = (double)best[i];                                                           \
    }                                                                                                  \
    FOLD_COMBINE(name, suffix, double, f, start, ((b compare a) | (b != b)) ? b : a)
FOLD_EXTREME(max, f32, float, -HUGE_VAL, >)
FOLD_EXTREME(max, f64, double, -HUGE_VAL, >)
FOLD_EXTREME(min, f32, float, HUGE_VAL, <)
FOLD_EXTREME(min, f64, double, HUGE_VAL, <)
FOLD(max, i64, int64_t, int64_t, int64_t, i, INT64_MIN, x, b > a ? b : a)
FOLD(min, i64, int64_t, int64_t, int64_t, i, INT64_MAX, x, b < a ? b : a)
FOLD(max, i32, int32_t, int64_t, int32_t, i, INT32_MIN, x, b > a ? b : a)
FOLD(min, i32, int32_t, int64_t, int32_t, i, INT32_MAX, x, b < a ? b : a)
FOLD(max, u8, uint8_t, int64_t, uint8_t, i, 0, x, b > a ? b : a)
FOLD(min, u8, uint8_t, int64_t, uint8_t, i, UINT8_MAX, x, b < a ? b : a)
#define FOLD_LOGIC(suffix, T)                                                                          \
    FOLD(any, suffix, T, int64_t, int64_t, i, 0, x != 0, a | b)                                        \
    FOLD(all, suffix, T, int64_t, int64_t, i, 1, x != 0, a & b)
FOLD_LOGIC(f32, float)
FOLD_LOGIC(f64, double)
FOLD_LOGIC(i64, int64_t)
FOLD_LOGIC(i32, int32_t)
FOLD_LOGIC(u8, uint8_t)
/* second passes: squared distances from the mean, exponentials of distances from the maximum */
#define SQUARE(d) ((d) * (d))
FOLD_FLOAT(squares, 0, SQUARE((double)x - m), a + b)
static void exponentials_f32_row(trek_partial *partial, const void *row, int64_t n, double maximum)
{
    const float *x = row;
    float scratch[512];
    for (int64_t i = 0; i < n; i += 512)
        partial->f += trek_row_exp_sum_f32(scratch, x + i, n - i < 512 ? n - i : 512, (float)maximum);
}
FOLD_COLUMNS(exponentials, f32, float, double, double, f, trek_exp_negative_f32(x - (float)m), a + b)
FOLD_COMBINE(exponentials, f32, double, f, 0, a + b)
FOLD(exponentials, f64, double, double, double, f, 0, exp(x - m), a + b)

/* Sums of 16-bit numbers: of a few in f32, whose digits they have no use for; of these in f64. */
#define PIECE 512
#define FOLD_HALF(name, suffix, row_sum, term)                                                         \
    static inline float name##_##suffix##_term(uint16_t bits)                                          \
    {                                                                                                  \
        const float x = trek_f32_from_##suffix(bits);                                                  \
        return term;                                                                                   \
    }                                                                                                  \
    static void name##_##suffix##_row(trek_partial *partial, const void *row, int64_t n, double parameter) \
    {                                                                                                  \
        (void)parameter;                                                                               \
        float piece[PIECE];                                                                            \
        for (int64_t begin = 0; begin < n; begin += PIECE) {                                           \
            int64_t count = n - begin < PIECE ? n - begin : PIECE;                                     \
            trek_f32_from_##suffix##_row(piece, (const uint16_t *)row + begin, count);                 \
            partial->f += row_sum(piece, count);                                                       \
        }                                                                                              \
    }                                                                                                  \
    static void name##_##suffix##_columns(trek_partial *partials, const void *row, int64_t stride, int64_t rows, int64_t n, \
                                       const double *parameters)                                       \
    {                                                                                                  \
        double *gathered = &partials->f;                                                               \
        (void)parameters;                                                                              \
        for (; rows >= ROWS; rows -= ROWS, row = (const char *)row + ROWS * stride) {                  \
            const uint16_t *p = row, *q = (const uint16_t *)((const char *)row + stride),              \
                    *r = (const uint16_t *)((const char *)row + 2 * stride),                           \
                    *s = (const uint16_t *)((const char *)row + 3 * stride);                           \
            TREK_INDEPENDENT                                                                           \
            for (int64_t i = 0; i < n; i++)                                                            \
                gathered[i] += (double)((name##_##suffix##_term(p[i]) + name##_##suffix##_term(q[i])) + \
                                        (name##_##suffix##_term(r[i]) + name##_##suffix##_term(s[i]))); \
        }                                                                                              \
        for (; rows > 0; rows--, row = (const char *)row + stride) {                                   \
            const uint16_t *xs = row;                                                                  \
            TREK_INDEPENDENT                                                                           \
            for (int64_t i = 0; i < n; i++)                                                            \
                gathered[i] += (double)name##_##suffix##_term(xs[i]);                                  \
        }                                                                                              \
    }                                                                                                  \
    static const trek_fold fold_##name##_##suffix = { { .f = 0 }, name##_##suffix##_row, name##_##suffix##_columns, \
                                                      sum_f32_combine };
FOLD_HALF(sum, bf16, trek_row_short_sum_f32, x)
FOLD_HALF(sum, f16, trek_row_short_sum_f32, x)
FOLD_HALF(sum_squares, bf16, trek_row_short_sum_of_squares_f32, x *x)
FOLD_HALF(sum_squares, f16, trek_row_short_sum_of_squares_f32, x *x)

/* --- results --- */

static trek_partial mean_of(trek_partial p, double parameter, int64_t count, const trek_attrs *attrs)
{
    (void)parameter, (void)attrs;
    return (trek_partial){ .f = p.f / (double)count };
}
static double mean_parameter(trek_partial p, int64_t count) { return p.f / (double)count; }
/* correction in f[0]; with too few elements 0/0 or x/0, as PyTorch */
static trek_partial variance_of(trek_partial p, double parameter, int64_t count, const trek_attrs *attrs)
{
    (void)parameter;
    double divisor = (double)count - attrs->f[0];
    return (trek_partial){ .f = p.f / (divisor > 0 ? divisor : 0) };
}
static trek_partial deviation_of(trek_partial p, double parameter, int64_t count, const trek_attrs *attrs)
{
    return (trek_partial){ .f = sqrt(variance_of(p, parameter, count, attrs).f) };
}
/* -infinity is not subtracted: no element is above it, and the sum will be 0. */
static double maximum_parameter(trek_partial p, int64_t count)
{
    (void)count;
    return p.f == -HUGE_VAL ? 0 : p.f;
}
static trek_partial logsumexp_of(trek_partial p, double maximum, int64_t count, const trek_attrs *attrs)
{
    (void)count, (void)attrs;
    return (trek_partial){ .f = maximum == HUGE_VAL ? maximum : log(p.f) + maximum };
}

#define PLAN(op, dtype, first, second, parameter, finish, floating, grain)                             \
    static trek_status op##_##dtype(const trek_op_call *call)                                          \
    {                                                                                                  \
        static const trek_reduce_plan plan = { first, second, parameter, finish, floating, grain, NULL }; \
        return TREK_ISA_NAME(trek_reduce)(call, &plan);                                                \
    }
#define PLAN_HALF(op, dtype, fold, halves, finish)                                                      \
    static trek_status op##_##dtype(const trek_op_call *call)                                          \
    {                                                                                                  \
        static const trek_reduce_plan plan = { &fold_##fold##_f32, NULL, NULL, finish, true, TREK_GRAIN_CHEAP, halves }; \
        return TREK_ISA_NAME(trek_reduce)(call, &plan);                                                \
    }
#define PLAN_FLOATS(op, fold, finish)                                                                  \
    PLAN(op, f32, &fold_##fold##_f32, NULL, NULL, finish, true, TREK_GRAIN_CHEAP)                             \
    PLAN(op, f64, &fold_##fold##_f64, NULL, NULL, finish, true, TREK_GRAIN_CHEAP)
#define PLAN_INTEGERS(op, fold)                                                                        \
    PLAN(op, i64, &fold_##fold##_i64, NULL, NULL, NULL, false, TREK_GRAIN_CHEAP)                             \
    PLAN(op, i32, &fold_##fold##_i32, NULL, NULL, NULL, false, TREK_GRAIN_CHEAP)                             \
    PLAN(op, u8, &fold_##fold##_u8, NULL, NULL, NULL, false, TREK_GRAIN_CHEAP)
PLAN_FLOATS(sum, sum, NULL)
PLAN_FLOATS(mean, sum, mean_of)
PLAN_FLOATS(sum_squares, sum_squares, NULL)
PLAN_HALF(sum_squares, bf16, sum_squares, &fold_sum_squares_bf16, NULL)
PLAN_HALF(sum_squares, f16, sum_squares, &fold_sum_squares_f16, NULL)
PLAN_HALF(sum, bf16, sum, &fold_sum_bf16, NULL)
PLAN_HALF(sum, f16, sum, &fold_sum_f16, NULL)
PLAN_HALF(mean, bf16, sum, &fold_sum_bf16, mean_of)
PLAN_HALF(mean, f16, sum, &fold_sum_f16, mean_of)
PLAN_FLOATS(prod, prod, NULL)
PLAN_FLOATS(max, max, NULL)
PLAN_FLOATS(min, min, NULL)
PLAN_INTEGERS(sum, sum)
PLAN_INTEGERS(prod, prod)
PLAN_INTEGERS(max, max)
PLAN_INTEGERS(min, min)
PLAN_INTEGERS(any, any)
PLAN_INTEGERS(all, all)
PLAN(any, f32, &fold_any_f32, NULL, NULL, NULL, false, TREK_GRAIN_CHEAP)
PLAN(any, f64, &fold_any_f64, NULL, NULL, NULL, false, TREK_GRAIN_CHEAP)
PLAN(all, f32, &fold_all_f32, NULL, NULL, NULL, false, TREK_GRAIN_CHEAP)
PLAN(all, f64, &fold_all_f64, NULL, NULL, NULL, false, TREK_GRAIN_CHEAP)
PLAN(variance, f32, &fold_sum_f32, &fold_squares_f32, mean_parameter, variance_of, true, TREK_GRAIN_CHEAP)
PLAN(variance, f64, &fold_sum_f64, &fold_squares_f64, mean_parameter, variance_of, true, TREK_GRAIN_CHEAP)
PLAN(std, f32, &fold_sum_f32, &fold_squares_f32, mean_parameter, deviation_of, true, TREK_GRAIN_CHEAP)
PLAN(std, f64, &fold_sum_f64, &fold_squares_f64, mean_parameter, deviation_of, true, TREK_GRAIN_CHEAP)
PLAN(logsumexp, f32, &fold_max_f32, &fold_exponentials_f32, maximum_parameter, logsumexp_of, true, TREK_GRAIN_FUNCTION)
PLAN(logsumexp, f64, &fold_max_f64, &fold_exponentials_f64, maximum_parameter, logsumexp_of, true, TREK_GRAIN_FUNCTION)

void TREK_ISA_NAME(trek_cpu_register_reduce)(trek_backend *b)
{
    /* the plan of f32 reads 16-bit floats as well, if they have none, that of u8 bool: the walk loads and stores by dtype */
#define FLOATS(op)                                                                                     \
    b->kernels[TREK_OP_##op][TREK_F32] = b->kernels[TREK_OP_##op][TREK_BF16] = b->kernels[TREK_OP_##op][TREK_F16] = op##_f32; \
    b->kernels[TREK_OP_##op][TREK_F64] = op##_f64;
#define ALL(op)                                                                                        \
    FLOATS(op)                                                                                         \
    b->kernels[TREK_OP_##op][TREK_I64] = op##_i64;                                                     \
    b->kernels[TREK_OP_##op][TREK_I32] = op##_i32;                                                     \
    b->kernels[TREK_OP_##op][TREK_U8] = b->kernels[TREK_OP_##op][TREK_BOOL] = op##_u8;
    ALL(sum) ALL(prod) ALL(max) ALL(min) ALL(any) ALL(all)
    FLOATS(mean) FLOATS(variance) FLOATS(std) FLOATS(logsumexp)
    FLOATS(sum_squares)
    b->kernels[TREK_OP_sum_squares][TREK_BF16] = sum_squares_bf16;
    b->kernels[TREK_OP_sum_squares][TREK_F16] = sum_squares_f16;
    b->kernels[TREK_OP_sum][TREK_BF16] = sum_bf16;
    b->kernels[TREK_OP_sum][TREK_F16] = sum_f16;
    b->kernels[TREK_OP_mean][TREK_BF16] = mean_bf16;
    b->kernels[TREK_OP_mean][TREK_F16] = mean_f16;
#undef FLOATS
#undef ALL
}
