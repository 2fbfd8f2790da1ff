/* SPDX-License-Identifier: Apache-2.0 */
/* Losses of one element and its target, and their slopes, in one pass each. For 16-bit inputs the loss is f32,
 * because it is summed next. */
#include <math.h>

#include "tensor/cpu/elementwise/vector_library.h"
#include "tensor/cpu/vector_math.h"

#define SIGN(x) ((0 < (x)) - ((x) < 0))

/* Computes x ([x > 0] - y) + log(1 + e^-|x|), in which nothing overflows or cancels. */
static inline trek_wide logistic_loss_of_wide(trek_wide x, trek_wide y)
{
    const trek_wide zero = trek_spread_wide(0.0f), one = trek_spread_wide(1.0f);
    return x * (trek_choose_wide(zero, x, one, zero) - y) +
           trek_log1p_wide(trek_exp_negative_wide(trek_choose_wide(x, zero, x, -x)));
}
TREK_LIBRARY(exp, f64, exp)
TREK_LIBRARY(log1p, f64, log1p)
static inline trek_wide64 logistic_loss_of_wide64(trek_wide64 x, trek_wide64 y)
{
    const trek_wide64 one = (trek_wide64){ 0 } + 1;
    trek_wide64 step = (trek_wide64)((trek_wide64_int)one & (x > 0)), size = (trek_wide64)((trek_wide64_int)x & INT64_MAX);
    return x * (step - y) + trek_log1p_f64_library(trek_exp_f64_library(-size));
}

/* Computes sigmoid(x) - y from sigmoid(-|x|), which has all its digits. */
static inline trek_wide logistic_slope_of_wide(trek_wide x, trek_wide y)
{
    const trek_wide zero = trek_spread_wide(0.0f), one = trek_spread_wide(1.0f);
    trek_wide e = trek_exp_negative_wide(trek_choose_wide(x, zero, x, -x)), tail = e / (one + e);
    return trek_choose_wide(zero, x, (one - y) - tail, tail - y);
}
static inline double logistic_slope_of_f64(double x, double y)
{
    double e = exp(-fabs(x)), tail = e / (1 + e);
    return x > 0 ? (1 - y) - tail : tail - y;
}

/* NaN remains. */
static inline trek_wide binary_loss_of_wide(trek_wide x, trek_wide y)
{
    const trek_wide one = trek_spread_wide(1.0f);
    return (y - one) * trek_at_least_wide(trek_log1p_wide(-x), -100.0f) - y * trek_at_least_wide(trek_log_wide(x), -100.0f);
}
static inline double binary_loss_of_f64(double x, double y)
{
    double is = log(x), is_not = log1p(-x);
    return (y - 1) * (is_not < -100 ? -100 : is_not) - y * (is < -100 ? -100 : is);
}

static inline float smooth_loss_of_f32(float d, float beta)
{
    float distance = fabsf(d), far = distance - 0.5f * beta, near = d * d * (0.5f / beta);
    return distance >= beta ? far : near;
}
static inline double smooth_loss_of_f64(double d, double beta)
{
    double distance = fabs(d);
    return distance >= beta ? distance - 0.5 * beta : d * d * (0.5 / beta);
}

/* --- the loss: x, target y; s is beta --- */

TREK_BINARY_ROW(squared_loss, f32, f32, (x - y) * (x - y))
TREK_BINARY_ROW(squared_loss, f64, f64, (x - y) * (x - y))
TREK_BINARY_ROW(absolute_loss, f32, f32, fabsf(x - y))
TREK_BINARY_ROW(absolute_loss, f64, f64, fabs(x - y))
TREK_BINARY_ROW(smooth_loss, f32, f32, smooth_loss_of_f32(x - y, s))
TREK_BINARY_ROW(smooth_loss, f64, f64, smooth_loss_of_f64(x - y, s))
TREK_BINARY_WIDE_ROW(logistic_loss, logistic_loss_of_wide(x, y))
TREK_BINARY_LIBRARY_ROW(logistic_loss, f64, logistic_loss_of_wide64(x, y))
TREK_BINARY_WIDE_ROW(binary_loss, binary_loss_of_wide(x, y))
TREK_BINARY_ROW(binary_loss, f64, f64, binary_loss_of_f64(x, y))

/* --- its slope: the gradient g, x, target y --- */

#define SLOPE_ROW(name, suffix, T, expression)                                                         \
    static void name##_##suffix##_row(void *to, const void *const *from, int64_t n, const trek_attrs *attrs) \
    {                                                                                                  \
        T *result = to;                                                                                \
        const T *gs = from[0], *xs = from[1], *ys = from[2], s = (T)attrs->f[0];                       \
        (void)s;                                                                                       \
        TREK_INDEPENDENT                                                                               \
        for (int64_t i = 0; i < n; i++) {                                                              \
            const T g = gs[i], x = xs[i], y = ys[i], d = x - y;                                        \
            (void)d;                                                                                   \
            result[i] = expression;                                                                    \
        }                                                                                              \
    }
SLOPE_ROW(squared_slope, f32, float, g * (d + d))
SLOPE_ROW(squared_slope, f64, double, g *(d + d))
SLOPE_ROW(absolute_slope, f32, float, g *(float)SIGN(d))
SLOPE_ROW(absolute_slope, f64, double, g *(double)SIGN(d))
SLOPE_ROW(smooth_slope, f32, float, g *(fabsf(d) >= s ? (float)SIGN(d) : d / s))
SLOPE_ROW(smooth_slope, f64, double, g *(fabs(d) >= s ? (double)SIGN(d) : d / s))
SLOPE_ROW(binary_slope, f32, float, g *d / ((1 - x) * x < 1e-12f ? 1e-12f : (1 - x) * x))
SLOPE_ROW(binary_slope, f64, double, g *d / ((1 - x) * x < 1e-12 ? 1e-12 : (1 - x) * x))
SLOPE_ROW(logistic_slope, f64, double, g *logistic_slope_of_f64(x, y))
static void logistic_slope_f32_row(void *to, const void *const *from, int64_t n, const trek_attrs *attrs)
{
    float *result = to;
    const float *gs = from[0], *xs = from[1], *ys = from[2];
    (void)attrs;
    int64_t i = 0;
    for (; i + TREK_WIDE <= n; i += TREK_WIDE)
        trek_store_wide(result + i,
                        trek_load_wide(gs + i) * logistic_slope_of_wide(trek_load_wide(xs + i), trek_load_wide(ys + i)));
    if (i < n)
        trek_store_part_wide(result + i,
                             trek_load_part_wide(gs + i, n - i) *
                                 logistic_slope_of_wide(trek_load_part_wide(xs + i, n - i), trek_load_part_wide(ys + i, n - i)),
                             n - i);
}

#define ROWS_OF(what, suffix)                                                                          \
    static void what##_##suffix##_row(void *to, const void *const *from, int64_t n, const trek_attrs *attrs) \
    {                                                                                                  \
        static const trek_row_fn rows[TREK_LOSS_KINDS] = {                                             \
            [TREK_LOSS_SQUARED] = squared_##what##_##suffix##_row,                                     \
            [TREK_LOSS_ABSOLUTE] = absolute_##what##_##suffix##_row,                                   \
            [TREK_LOSS_SMOOTH] = smooth_##what##_##suffix##_row,                                       \
            [TREK_LOSS_LOGISTIC] = logistic_##what##_##suffix##_row,                                   \
            [TREK_LOSS_BINARY] = binary_##what##_##suffix##_row,                                       \
        };                                                                                             \
        rows[attrs->i[0]](to, from, n, attrs);                                                         \
    }
ROWS_OF(loss, f32)
ROWS_OF(loss, f64)
ROWS_OF(slope, f32)
ROWS_OF(slope, f64)

#define GRAIN TREK_GRAIN_FUNCTION
TREK_MAP_KERNEL(loss_f32, loss_f32_row, GRAIN, 2, TREK_LANE_4, TREK_LANE_4, TREK_LANE_4)
TREK_MAP_KERNEL(loss_f64, loss_f64_row, GRAIN, 2, TREK_LANE_8, TREK_LANE_8, TREK_LANE_8)
TREK_MAP_KERNEL(loss_bf16, loss_f32_row, GRAIN, 2, TREK_LANE_4, TREK_LANE_BF16, TREK_LANE_BF16)
TREK_MAP_KERNEL(loss_f16, loss_f32_row, GRAIN, 2, TREK_LANE_4, TREK_LANE_F16, TREK_LANE_F16)
TREK_MAP_KERNEL(slope_f32, slope_f32_row, GRAIN, 3, TREK_LANE_4, TREK_LANE_4, TREK_LANE_4, TREK_LANE_4)
TREK_MAP_KERNEL(slope_f64, slope_f64_row, GRAIN, 3, TREK_LANE_8, TREK_LANE_8, TREK_LANE_8, TREK_LANE_8)
TREK_MAP_KERNEL(slope_bf16, slope_f32_row, GRAIN, 3, TREK_LANE_BF16, TREK_LANE_4, TREK_LANE_BF16, TREK_LANE_BF16)
TREK_MAP_KERNEL(slope_f16, slope_f32_row, GRAIN, 3, TREK_LANE_F16, TREK_LANE_4, TREK_LANE_F16, TREK_LANE_F16)

void TREK_ISA_NAME(trek_cpu_register_pointwise_loss)(trek_backend *b)
{
#define ENTER(op, kernel)                                                                              \
    b->kernels[TREK_OP_##op][TREK_F32] = kernel##_f32;                                                 \
    b->kernels[TREK_OP_##op][TREK_F64] = kernel##_f64;                                                 \
    b->kernels[TREK_OP_##op][TREK_BF16] = kernel##_bf16;                                               \
    b->kernels[TREK_OP_##op][TREK_F16] = kernel##_f16;
    ENTER(pointwise_loss, loss)
    ENTER(pointwise_loss_backward, slope)
#undef ENTER
}
