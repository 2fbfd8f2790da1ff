/* SPDX-License-Identifier: Apache-2.0 */
/* Arithmetic reductions: sum, nansum, mean, prod, max, min, any, all, variance, std, logsumexp. Floating ones are
 * computed in f64, so that errors do not grow with the length (sums and products of f32 join four elements first, in
 * pairs, which are rounded); integers in i64. */
#include <math.h>

#include "tensor/cpu/reduce/prod.h"
#include "tensor/cpu/reduce/reduce.h"
#include "tensor/cpu/row_math.h"

static int64_t highest_bit(int64_t x)
{
    int64_t bit = 1;
    while (bit <= x / 2)
        bit *= 2;
    return bit;
}

#define LANES TREK_LANES
#define ROWS 4 /* of a block of columns that are processed together */

/* Defines a fold named name_type that reduces elements T to A. `term` is the contribution of an element x, `join`
 * combines two of these, m is the output's parameter. G is the type of the lanes of a row. Long rows have twice the
 * lanes, because an addition waits for the one before it. */
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
/* Defines such a fold for floats: vectors of eight f64, four of them at once. */
#define FOLD_EIGHTS(name, suffix, T, start, term, operation)                                           \
    static void name##_##suffix##_row(trek_partial *partial, const void *row, int64_t n, double m)     \
    {                                                                                                  \
        const T *xs = row;                                                                             \
        trek_f64x8 gathered[4];                                                                        \
        (void)m;                                                                                       \
        for (int k = 0; k < 4; k++)                                                                    \
            gathered[k] = (trek_f64x8){ 0 } + start;                                                   \
        int64_t i = 0;                                                                                 \
        for (; i + 32 <= n; i += 32)                                                                   \
            for (int k = 0; k < 4; k++) {                                                              \
                trek_f64x8 x;                                                                          \
                TREK_EIGHT_##suffix(x, xs + i + 8 * k)                                                 \
                gathered[k] = gathered[k] operation(term);                                             \
            }                                                                                          \
        for (; i + 8 <= n; i += 8) { /* all indices are constants, so that everything stays in registers */              \
            trek_f64x8 x;                                                                              \
            TREK_EIGHT_##suffix(x, xs + i)                                                             \
            gathered[0] = gathered[0] operation(term);                                                 \
        }                                                                                              \
        gathered[0] = (gathered[0] operation gathered[1]) operation(gathered[2] operation gathered[3]); \
        TREK_JOIN_EIGHT(gathered[0], joined, operation)                                                \
        for (; i < n; i++) {                                                                           \
            const double x = (double)xs[i];                                                            \
            joined = joined operation(term);                                                           \
        }                                                                                              \
        partial->f = partial->f operation joined;                                                      \
    }
/* X: the type of x in `term`. ROWS rows are joined before they are combined with the result, which is read and
 * written once for all of them. */
#define FOLD_COLUMNS(name, suffix, T, X, A, G, member, term, join)                                     \
    static inline G name##_##suffix##_term(X x, double m)                                              \
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
/* Combines repeatedly doubled values, from the highest bit of `times` on. */
#define FOLD_COMBINE(name, suffix, A, member, start, join)                                             \
    static inline A name##_##suffix##_joined(A a, A b) { return join; }                                \
    static void name##_##suffix##_combine(trek_partial *into, const trek_partial *from, int64_t n)     \
    {                                                                                                  \
        A *to = &into->member;                                                                         \
        const A *other = &from->member;                                                                \
        TREK_INDEPENDENT                                                                               \
        for (int64_t i = 0; i < n; i++)                                                                \
            to[i] = name##_##suffix##_joined(to[i], other[i]);                                         \
    }                                                                                                  \
    static void name##_##suffix##_repeat(trek_partial *partials, int64_t n, int64_t times)             \
    {                                                                                                  \
        A *to = &partials->member;                                                                     \
        for (int64_t i = 0; i < n; i++) {                                                              \
            A once = to[i], all = once;                                                                \
            for (int64_t bit = highest_bit(times) / 2; bit > 0; bit /= 2) {                            \
                all = name##_##suffix##_joined(all, all);                                              \
                if (times & bit)                                                                       \
                    all = name##_##suffix##_joined(all, once);                                         \
            }                                                                                          \
            to[i] = all;                                                                               \
        }                                                                                              \
    }                                                                                                  \
    static const trek_fold fold_##name##_##suffix = { { .member = start }, name##_##suffix##_row, name##_##suffix##_columns, \
                                               name##_##suffix##_combine, name##_##suffix##_repeat };
#define FOLD(name, suffix, T, A, G, member, start, term, join)                                         \
    FOLD_ROW(name, suffix, T, A, G, member, start, term, join)                                         \
    FOLD_COLUMNS(name, suffix, T, T, A, G, member, term, join)                                         \
    FOLD_COMBINE(name, suffix, A, member, start, join)

#define FOLD_FLOAT_(name, suffix, T, start, term, operation)                                           \
    FOLD_EIGHTS(name, suffix, T, start, term, operation)                                               \
    FOLD_COLUMNS(name, suffix, T, double, double, double, f, term, a operation b)                      \
    FOLD_COMBINE(name, suffix, double, f, start, a operation b)
#define FOLD_FLOAT(name, start, term, operation)                                                       \
    FOLD_FLOAT_(name, f32, float, start, term, operation)                                              \
    FOLD_FLOAT_(name, f64, double, start, term, operation)
#define FOLD_INTEGER(name, start, term, join)                                                          \
    FOLD(name, i64, int64_t, int64_t, int64_t, i, start, term, join)                                   \
    FOLD(name, i32, int32_t, int64_t, int64_t, i, start, term, join)                                   \
    FOLD_COLUMNS(name, u8, uint8_t, int64_t, int64_t, int64_t, i, term, join)                          \
    FOLD_COMBINE(name, u8, int64_t, i, start, join)

/* Rows of u8 do not use a fold of 64-bit lanes: widened eightfold, that was a tenth of the library. */
static void sum_u8_row(trek_partial *partial, const void *row, int64_t n, double parameter)
{
    const uint8_t *xs = row;
    (void)parameter;
    for (int64_t i = 0; i < n;) {
        int64_t end = n - i < 1 << 16 ? n : i + (1 << 16);
        uint32_t sum = 0;
        for (; i < end; i++)
            sum += xs[i];
        partial->i += sum;
    }
}
/* A product that is 0, which happens soon, remains 0. */
static void prod_u8_row(trek_partial *partial, const void *row, int64_t n, double parameter)
{
    const uint8_t *xs = row;
    uint64_t product = (uint64_t)partial->i;
    (void)parameter;
    for (int64_t i = 0; i < n && product != 0; i++)
        product *= xs[i];
    partial->i = (int64_t)product;
}

/* The sum of four may be too large for f32. */
static void sum_f32_row(trek_partial *partial, const void *row, int64_t n, double parameter)
{
    double sum = trek_row_sum_of_fours_f32(row, n, false);
    (void)parameter;
    partial->f += sum - sum == 0 ? sum : trek_row_sum_f32(row, n);
}
FOLD_COLUMNS(sum_exact, f32, float, double, double, double, f, x, a + b)
FOLD_COLUMNS(nansum_exact, f32, float, double, double, double, f, x == x ? x : 0, a + b)
/* sums[i] += element i of 4 * fours rows, which are added in f32 four by four, as in a row. */
static inline __attribute__((always_inline)) void add_fours_of_rows(double *sums, const char *row, int64_t stride,
                                                                    const int fours,
                                                                    int64_t n, const bool numbers)
{
    int64_t i = 0;
    for (; i + 8 <= n; i += 8) {
        trek_f64x8 sum;
        memcpy(&sum, sums + i, sizeof sum);
        for (int k = 0; k < fours; k++) {
            trek_f32x8 part[4];
            for (int l = 0; l < 4; l++) {
                TREK_ROW_EIGHT(part[l], (const float *)(const void *)(row + (4 * k + l) * stride) + i, numbers)
            }
            part[0] = (part[0] + part[1]) + (part[2] + part[3]);
            sum += TREK_WIDENED(part[0]);
        }
        memcpy(sums + i, &sum, sizeof sum);
    }
    for (; i < n; i++)
        for (int k = 0; k < fours; k++) {
            float part[4];
            for (int l = 0; l < 4; l++) {
                float x = ((const float *)(const void *)(row + (4 * k + l) * stride))[i];
                part[l] = numbers && x != x ? 0 : x;
            }
            sums[i] += (double)((part[0] + part[1]) + (part[2] + part[3]));
        }
}
/* Sums columns as rows are summed. Columns with a sum that is too large for f32 are summed again in f64 alone. */
static inline __attribute__((always_inline)) void sum_columns(trek_partial *partials, const void *row, int64_t stride,
                                                              int64_t rows,
                                                              int64_t n, const double *parameters, const bool numbers)
{
    enum { FOURS = 2 };
    const trek_fold_columns exactly = numbers ? nansum_exact_f32_columns : sum_exact_f32_columns;
    if (rows < 4) {
        exactly(partials, row, stride, rows, n, parameters);
        return;
    }
    double sums[TREK_FOLD_COLUMNS], off[8] = { 0 }, all = 0; /* eight: added one to the other they took a fifth of the time */
    int64_t r = 0;
    memset(sums, 0, (size_t)n * sizeof *sums);
    for (; r + 4 * FOURS <= rows; r += 4 * FOURS)
        add_fours_of_rows(sums, (const char *)row + r * stride, stride, FOURS, n, numbers);
    for (; r + 4 <= rows; r += 4)
        add_fours_of_rows(sums, (const char *)row + r * stride, stride, 1, n, numbers);
    for (int64_t i = 0; i < n / 8 * 8; i += 8)
        for (int l = 0; l < 8; l++)
            off[l] += sums[i + l] - sums[i + l];
    for (int64_t i = n / 8 * 8; i < n; i++)
        off[0] += sums[i] - sums[i];
    for (int l = 0; l < 8; l++)
        all += off[l];
    if (all != 0) { /* NaN: one of them is not finite */
        trek_partial exact[TREK_FOLD_COLUMNS] = { 0 };
        exactly(exact, row, stride, r, n, parameters);
        for (int64_t i = 0; i < n; i++)
            sums[i] = sums[i] - sums[i] == 0 ? sums[i] : exact[i].f;
    }
    for (int64_t i = 0; i < n; i++)
        partials[i].f += sums[i];
    exactly(partials, (const char *)row + r * stride, stride, rows - r, n, parameters);
}
static void sum_f32_columns(trek_partial *partials, const void *row, int64_t stride, int64_t rows, int64_t n,
                            const double *parameters)
{
    sum_columns(partials, row, stride, rows, n, parameters, false);
}
static void nansum_f32_columns(trek_partial *partials, const void *row, int64_t stride, int64_t rows, int64_t n,
                               const double *parameters)
{
    sum_columns(partials, row, stride, rows, n, parameters, true);
}
FOLD_COMBINE(sum, f32, double, f, 0, a + b)
#define SQUARE(d) ((d) * (d))
FOLD_FLOAT_(sum, f64, double, 0, x, +)
FOLD_FLOAT_(prod, f64, double, 1, x, *)
FOLD_EIGHTS(prod_exact, f32, float, 1, x, *)
FOLD_COLUMNS(prod_exact, f32, float, double, double, double, f, x, a *b)
static void prod_f32_row(trek_partial *partial, const void *row, int64_t n, double parameter)
{
    enum { PART = 4096 };
    const float *x = row;
    for (int64_t i = 0; i < n; i += PART) {
        const int64_t count = n - i < PART ? n - i : PART;
        bool fit;
        const double product = trek_row_prod_of_fours(x + i, count, &fit);
        if (fit)
            partial->f *= product;
        else
            prod_exact_f32_row(partial, x + i, count, parameter);
    }
}
/* As a row, with 64 elements of each column at a time. */
static void prod_f32_columns(trek_partial *partials, const void *row, int64_t stride, int64_t rows, int64_t n,
                             const double *parameters)
{
    enum { PART = 64 };
    const char *from = row;
    const int64_t whole = n / 8 * 8;
    for (int64_t count; rows >= 4; rows -= count, from += count * stride) {
        double products[TREK_FOLD_COLUMNS];
        trek_pair_range range = TREK_PAIR_RANGE;
        count = rows < PART ? rows / 4 * 4 : PART;
        for (int64_t i = 0; i < whole; i++)
            products[i] = 1;
        for (int64_t r = 0; r < count; r += 4)
            trek_prod_fours_of_rows(products, from + r * stride, stride, whole, &range);
        const bool fit = whole > 0 && trek_pairs_fit(&range);
        for (int64_t i = 0; i < whole && fit; i++)
            partials[i].f *= products[i];
        const int64_t done = fit ? whole : 0;
        prod_exact_f32_columns(partials + done, from + done * (int64_t)sizeof(float), stride, count, n - done, parameters + done);
    }
    prod_exact_f32_columns(partials, from, stride, rows, n, parameters);
}
FOLD_COMBINE(prod, f32, double, f, 1, a *b)
FOLD_FLOAT(sum_squares, 0, SQUARE(x), +)
FOLD_INTEGER(sum, 0, x, a + b)

/* Sums of numbers: 0 for each NaN. */
static inline float number_f32(float x) { return x == x ? x : 0; }
static inline trek_wide number_wide(trek_wide x) { return (trek_wide)((trek_wide_int)x & (trek_wide_int)(x == x)); }
#define NUMBER(x) _Generic((x), trek_wide: number_wide, default: number_f32)(x)
FOLD(nansum, f64, double, double, double, f, 0, x == x ? x : 0, a + b)
FOLD_ROW(numbers, f32, float, double, double, f, 0, x == x ? x : 0, a + b)
static void nansum_f32_row(trek_partial *partial, const void *row, int64_t n, double parameter)
{
    double sum = trek_row_sum_of_fours_f32(row, n, true);
    if (sum - sum == 0)
        partial->f += sum;
    else
        numbers_f32_row(partial, row, n, parameter);
}
FOLD_COMBINE(nansum, f32, double, f, 0, a + b)
FOLD_INTEGER(prod, 1, x, a *b)
/* NaN remains. */
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
/* Bytes: the compiler's own vectors are wider than LANES bytes. */
#define FOLD_BYTES(name, start, worst, compare, term, join)                                            \
    static void name##_u8_row(trek_partial *partial, const void *row, int64_t n, double parameter)     \
    {                                                                                                  \
        const uint8_t *xs = row;                                                                       \
        uint8_t x = worst;                                                                             \
        (void)parameter;                                                                               \
        for (int64_t i = 0; i < n; i++)                                                                \
            x = xs[i] compare x ? xs[i] : x;                                                           \
        const int64_t a = partial->i, b = term;                                                        \
        partial->i = join;                                                                             \
    }                                                                                                  \
    static void name##_u8_columns(trek_partial *partials, const void *row, int64_t stride, int64_t rows, int64_t n, \
                                  const double *parameters)                                            \
    {                                                                                                  \
        uint8_t best[TREK_FOLD_COLUMNS];                                                               \
        (void)parameters;                                                                              \
        memset(best, worst, sizeof best);                                                              \
        for (int64_t r = 0; r < rows; r++, row = (const char *)row + stride)                           \
            for (int64_t i = 0; i < n; i++) {                                                          \
                const uint8_t x = ((const uint8_t *)row)[i], held = best[i];                           \
                best[i] = x compare held ? x : held;                                                   \
            }                                                                                          \
        for (int64_t i = 0; i < n; i++) {                                                              \
            const uint8_t x = best[i];                                                                 \
            const int64_t a = partials[i].i, b = term;                                                 \
            partials[i].i = join;                                                                      \
        }                                                                                              \
    }                                                                                                  \
    FOLD_COMBINE(name, u8, int64_t, i, start, join)
FOLD_BYTES(max, 0, 0, >, x, b > a ? b : a)
FOLD_BYTES(min, UINT8_MAX, UINT8_MAX, <, x, b < a ? b : a)
FOLD_BYTES(any, 0, 0, >, x != 0, a | b)
FOLD_BYTES(all, 1, UINT8_MAX, <, x != 0, a &b)
#define FOLD_LOGIC(suffix, T)                                                                          \
    FOLD(any, suffix, T, int64_t, int64_t, i, 0, x != 0, a | b)                                        \
    FOLD(all, suffix, T, int64_t, int64_t, i, 1, x != 0, a & b)
FOLD_LOGIC(f32, float)
FOLD_LOGIC(f64, double)
FOLD_LOGIC(i64, int64_t)
FOLD_LOGIC(i32, int32_t)
/* Second passes: squared distances from the mean, exponentials of distances from the maximum. */
FOLD_FLOAT(squares, 0, SQUARE(x - m), +)
static void exponentials_f32_row(trek_partial *partial, const void *row, int64_t n, double maximum)
{
    const float *x = row;
    float scratch[512];
    for (int64_t i = 0; i < n; i += 512)
        partial->f += trek_row_exp_sum_f32(scratch, x + i, n - i < 512 ? n - i : 512, (float)maximum);
}
FOLD_COLUMNS(exponentials, f32, float, float, double, double, f, trek_exp_negative_f32(x - (float)m), a + b)
FOLD_COMBINE(exponentials, f32, double, f, 0, a + b)
static void exponentials_f64_row(trek_partial *partial, const void *row, int64_t n, double maximum)
{
    const double *x = row;
    double scratch[512];
    for (int64_t i = 0; i < n; i += 512) {
        int64_t count = n - i < 512 ? n - i : 512;
        trek_row_exp_f64(scratch, x + i, count, maximum);
        partial->f += trek_row_sum_f64(scratch, count);
    }
}
static void exponentials_f64_columns(trek_partial *partials, const void *row, int64_t stride, int64_t rows, int64_t n,
                                     const double *parameters)
{
    double scratch[TREK_FOLD_COLUMNS];
    for (; rows > 0; rows--, row = (const char *)row + stride) {
        for (int64_t i = 0; i < n; i++)
            scratch[i] = ((const double *)row)[i] - parameters[i];
        trek_row_exp_f64(scratch, scratch, n, 0);
        for (int64_t i = 0; i < n; i++)
            partials[i].f += scratch[i];
    }
}
FOLD_COMBINE(exponentials, f64, double, f, 0, a + b)

/* Sums of 16-bit numbers: a few of them in f32, which has enough digits; the sums of these in f64. */
#define PIECE 512
#define FOLD_HALF(name, suffix, row_sum, term)                                                         \
    static void name##_##suffix##_row(trek_partial *partial, const void *row, int64_t n, double parameter) \
    {                                                                                                  \
        (void)parameter;                                                                               \
        for (int64_t begin = 0; begin < n; begin += PIECE)                                             \
            partial->f += row_sum##_##suffix((const uint16_t *)row + begin, n - begin < PIECE ? n - begin : PIECE); \
    }                                                                                                  \
    /* Computes sums[i] += the term of row[i]. */                                                                \
    static inline void name##_##suffix##_add(float *sums, const uint16_t *row, int64_t n)              \
    {                                                                                                  \
        int64_t i = 0;                                                                                 \
        for (; i + TREK_WIDE <= n; i += TREK_WIDE) {                                                   \
            const trek_wide x = trek_load_wide_##suffix(row + i);                                      \
            trek_store_wide(sums + i, trek_load_wide(sums + i) + term);                                \
        }                                                                                              \
        if (i < n) { /* sums has space for a whole vector */                                            \
            uint16_t rest[TREK_WIDE];                                                                  \
            TREK_LOAD_PART_16(rest, row + i, n - i);                                                   \
            const trek_wide x = trek_load_wide_##suffix(rest);                                         \
            trek_store_wide(sums + i, trek_load_wide(sums + i) + term);                                \
        }                                                                                              \
    }                                                                                                  \
    static void name##_##suffix##_columns(trek_partial *partials, const void *row, int64_t stride, int64_t rows, int64_t n, \
                                       const double *parameters)                                       \
    {                                                                                                  \
        float sums[TREK_FOLD_COLUMNS + TREK_WIDE];                                                     \
        double *gathered = &partials->f;                                                               \
        (void)parameters;                                                                              \
        for (int64_t count; rows > 0; rows -= count) {                                                 \
            count = rows < 2 * ROWS ? rows : 2 * ROWS;                                                 \
            memset(sums, 0, (size_t)(n + TREK_WIDE) * sizeof *sums);                                   \
            for (int64_t r = 0; r < count; r++, row = (const char *)row + stride)                      \
                name##_##suffix##_add(sums, row, n);                                                   \
            TREK_INDEPENDENT                                                                           \
            for (int64_t i = 0; i < n; i++)                                                            \
                gathered[i] += (double)sums[i];                                                        \
        }                                                                                              \
    }                                                                                                  \
    static const trek_fold fold_##name##_##suffix = { { .f = 0 }, name##_##suffix##_row, name##_##suffix##_columns, \
                                                      sum_f32_combine, sum_f32_repeat };
FOLD_HALF(sum, bf16, trek_row_short_sum, x)
FOLD_HALF(sum, f16, trek_row_short_sum, x)
TREK_ROW_SHORT_SUM(short_sum_of_numbers, bf16, NUMBER(x))
TREK_ROW_SHORT_SUM(short_sum_of_numbers, f16, NUMBER(x))
FOLD_HALF(nansum, bf16, short_sum_of_numbers, number_wide(x))
FOLD_HALF(nansum, f16, short_sum_of_numbers, number_wide(x))
FOLD_HALF(sum_squares, bf16, trek_row_short_sum_of_squares, x *x)
FOLD_HALF(sum_squares, f16, trek_row_short_sum_of_squares, x *x)

/* --- results --- */

static trek_partial mean_of(trek_partial p, double parameter, int64_t count, const trek_attrs *attrs)
{
    (void)parameter, (void)attrs;
    return (trek_partial){ .f = p.f / (double)count };
}
static double mean_parameter(trek_partial p, int64_t count) { return p.f / (double)count; }
/* f[0] is the correction; with too few elements the result is 0/0 or x/0, as in PyTorch. */
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
PLAN_FLOATS(nansum, nansum, NULL)
PLAN_HALF(nansum, bf16, nansum, &fold_nansum_bf16, NULL)
PLAN_HALF(nansum, f16, nansum, &fold_nansum_f16, NULL)
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
    /* The plan of f32 also reads 16-bit floats if they have no plan of their own, and that of u8 reads bool: the walk
     * loads and stores by dtype. */
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
    FLOATS(sum_squares) FLOATS(nansum)
    b->kernels[TREK_OP_nansum][TREK_BF16] = nansum_bf16;
    b->kernels[TREK_OP_nansum][TREK_F16] = nansum_f16;
    b->kernels[TREK_OP_sum_squares][TREK_BF16] = sum_squares_bf16;
    b->kernels[TREK_OP_sum_squares][TREK_F16] = sum_squares_f16;
    b->kernels[TREK_OP_sum][TREK_BF16] = sum_bf16;
    b->kernels[TREK_OP_sum][TREK_F16] = sum_f16;
    b->kernels[TREK_OP_mean][TREK_BF16] = mean_bf16;
    b->kernels[TREK_OP_mean][TREK_F16] = mean_f16;
#undef FLOATS
#undef ALL
}
