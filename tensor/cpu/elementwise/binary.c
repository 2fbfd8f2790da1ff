/* SPDX-License-Identifier: Apache-2.0 */
/* Element-wise kernels of two or three inputs, and the fused gradients of
 * activations (gradient, then what was saved). */
#include "tensor/cpu/elementwise/elementwise.h"
#include "tensor/cpu/elementwise/vector_activations.h"
#include "tensor/cpu/vector_math.h"

#define CHEAP TREK_GRAIN_CHEAP
#define FUNCTION TREK_GRAIN_FUNCTION
#define CALL TREK_GRAIN_CALL

TREK_BINARY_FLOATS_ONE(add, CHEAP, x + y, x + y)
TREK_BINARY_FLOATS_ONE(sub, CHEAP, x - y, x - y)
TREK_BINARY_FLOATS_ONE(mul, CHEAP, x *y, x *y)
TREK_BINARY_FLOATS_ONE(div, CHEAP, x / y, x / y)
TREK_BINARY_INTEGERS(add, CHEAP, x + y)
TREK_BINARY_INTEGERS(sub, CHEAP, x - y)
TREK_BINARY_INTEGERS(mul, CHEAP, x *y)
TREK_BINARY_BOOL(add, x | y)
TREK_BINARY_BOOL(mul, x &y)

/* NaN in either input gives NaN. */
TREK_BINARY_FLOATS_ONE(maximum, CHEAP, x > y || x != x ? x : y, x > y || x != x ? x : y)
TREK_BINARY_FLOATS_ONE(minimum, CHEAP, x < y || x != x ? x : y, x < y || x != x ? x : y)
TREK_BINARY_INTEGERS(maximum, CHEAP, x > y ? x : y)
TREK_BINARY_INTEGERS(minimum, CHEAP, x < y ? x : y)
TREK_BINARY_BOOL(maximum, x | y)
TREK_BINARY_BOOL(minimum, x &y)

#define LIBRARY_BOTH(op)                                                                               \
    TREK_LIBRARY2(op, f32, op##f)                                                                      \
    TREK_LIBRARY2(op, f64, op)                                                                         \
    TREK_BINARY_LIBRARY_ROW(op, f32, trek_##op##_f32_library(x, y))                                    \
    TREK_BINARY_LIBRARY_ROW(op, f64, trek_##op##_f64_library(x, y))                                    \
    TREK_BINARY_FLOAT_KERNELS(op, FUNCTION)
LIBRARY_BOTH(atan2)
LIBRARY_BOTH(pow)
TREK_BINARY_ROW(pow, i64, i64, trek_power_integer(x, y))
TREK_BINARY_ROW(pow, i32, i32, trek_power_integer(x, y))
TREK_BINARY_ROW(pow, u8, u8, trek_power_u8((uint32_t)x, (uint32_t)y))
TREK_BINARY_KERNEL(pow, i64, i64, 8, CALL)
TREK_BINARY_KERNEL(pow, i32, i32, 4, CALL)
TREK_BINARY_KERNEL(pow, u8, u8, 1, FUNCTION)

/* The length of (x, y): an infinity wins over a NaN, as in C. f32 computes in f64, where nothing overflows and little
 * is lost. */
static inline double length_f32(double x, double y)
{
    double length = sqrt(x * x + y * y);
    return ((fabs(x) == INFINITY) | (fabs(y) == INFINITY)) ? INFINITY : length;
}
#if defined(__FMA__) || defined(__ARM_FEATURE_FMA)
/* Borges 2019, An improved algorithm for hypot(a, b), corrected and with fma: below 1 ulp. Large and small numbers
 * are scaled. */
static inline double length_f64(double x, double y)
{
    double a = fabs(x), b = fabs(y), large = a > b ? a : b, small = a > b ? b : a;
    double down = large > 0x1p500 ? 0x1p-600 : large < 0x1p-400 ? 0x1p600 : 1;
    double up = large > 0x1p500 ? 0x1p600 : large < 0x1p-400 ? 0x1p-600 : 1;
    double l = large * down, s = small * down, h = sqrt(__builtin_fma(l, l, s * s));
    double h_square = h * h, l_square = l * l;
    double off = __builtin_fma(-s, s, h_square - l_square) + __builtin_fma(h, h, -h_square) - __builtin_fma(l, l, -l_square);
    double length = ((h > 0) & (h < INFINITY)) ? (h - off / (2 * h)) * up : h;
    return ((a == INFINITY) | (b == INFINITY)) ? INFINITY : length;
}
#else
static inline double length_f64(double x, double y) { return hypot(x, y); }
#endif
TREK_BINARY_FLOATS(hypot, CHEAP, (float)length_f32(x, y), length_f64(x, y))

/* Works on bits. */
static inline float signed_f32(float x, float y)
{
    return trek_f32_bits((trek_bits_f32(x) & 0x7fffffffu) | (trek_bits_f32(y) & 0x80000000u));
}
TREK_BINARY_ROW(copysign, f32, f32, signed_f32(x, y))
TREK_BINARY_ROW(copysign, f64, f64, copysign(x, y))
TREK_BINARY_KERNEL(copysign, f32, f32, 4, CHEAP)
TREK_BINARY_KERNEL(copysign, f64, f64, 8, CHEAP)
static void copysign_bits_row(void *to, const void *const *from, int64_t n, const trek_attrs *attrs)
{
    uint16_t *result = to;
    const uint16_t *xs = from[0], *ys = from[1];
    (void)attrs;
    TREK_INDEPENDENT
    for (int64_t i = 0; i < n; i++)
        result[i] = (uint16_t)((xs[i] & 0x7fffu) | (ys[i] & 0x8000u));
}
static void copysign_bits_one(void *to, const void *const *from, int64_t n, const trek_attrs *attrs)
{
    uint16_t *result = to;
    const uint16_t *xs = from[0], sign = *(const uint16_t *)from[1] & 0x8000u;
    (void)attrs;
    TREK_INDEPENDENT
    for (int64_t i = 0; i < n; i++)
        result[i] = (uint16_t)((xs[i] & 0x7fffu) | sign);
}
TREK_MAP_KERNEL_ONE(copysign_bf16, copysign_bits_row, copysign_bits_one, CHEAP, 2, TREK_LANE_2, TREK_LANE_2, TREK_LANE_2)
TREK_MAP_KERNEL_ONE(copysign_f16, copysign_bits_row, copysign_bits_one, CHEAP, 2, TREK_LANE_2, TREK_LANE_2, TREK_LANE_2)

/* Gradients: x is the gradient, y what was saved. A NaN that passed relu passes its gradient. */
TREK_BINARY_FLOATS(relu_backward, CHEAP, y <= 0 ? 0 : x, y <= 0 ? 0 : x)
TREK_BINARY_INTEGERS(relu_backward, CHEAP, y <= 0 ? 0 : x)
TREK_BINARY_FLOATS(tanh_backward, CHEAP, x * (1 - y * y), x * (1 - y * y))
TREK_BINARY_FLOATS(sigmoid_backward, CHEAP, x * (1 - y) * y, x * (1 - y) * y)

TREK_BINARY_WIDE_ROW(silu_backward, x *trek_silu_derivative_wide(y))
TREK_BINARY_LIBRARY_ROW(silu_backward, f64, x *trek_silu_derivative_wide64(y))
TREK_BINARY_FLOAT_KERNELS(silu_backward, FUNCTION)

TREK_BINARY_WIDE_ROW(gelu_erf_backward, x *trek_gelu_derivative_wide(y))
TREK_BINARY_WIDE_ROW(gelu_tanh_backward, x *trek_gelu_tanh_derivative_wide(y))
static void gelu_backward_f32_row(void *to, const void *const *from, int64_t n, const trek_attrs *attrs)
{
    (attrs->i[0] ? gelu_tanh_backward_f32_row : gelu_erf_backward_f32_row)(to, from, n, attrs);
}
TREK_BINARY_LIBRARY_ROW(gelu_erf_backward, f64, x *trek_gelu_derivative_wide64(y))
TREK_BINARY_LIBRARY_ROW(gelu_tanh_backward, f64, x *trek_gelu_tanh_derivative_wide64(y))
static void gelu_backward_f64_row(void *to, const void *const *from, int64_t n, const trek_attrs *attrs)
{
    (attrs->i[0] ? gelu_tanh_backward_f64_row : gelu_erf_backward_f64_row)(to, from, n, attrs);
}
TREK_BINARY_KERNEL(gelu_backward, f32, f32, 4, FUNCTION)
TREK_BINARY_KERNEL(gelu_backward, f64, f64, 8, FUNCTION)
#if defined(TREK_WIDE_ROW_16)
TREK_WIDE_ROW_16(gelu_erf_backward, bf16, 2, x *trek_gelu_derivative_wide(y))
TREK_WIDE_ROW_16(gelu_erf_backward, f16, 2, x *trek_gelu_derivative_wide(y))
#define GELU_SHORT(format, lane)                                                                                                 \
    {                                                                                                                            \
        gelu_erf_backward_##format##_row, FUNCTION, 2, TREK_LANE_2, .in = { TREK_LANE_2, TREK_LANE_2 }                           \
    }
#else
#define GELU_SHORT(format, lane) { gelu_erf_backward_f32_row, FUNCTION, 2, lane, .in = { lane, lane } }
#endif
#define GELU(format, lane)                                                                             \
    static trek_status gelu_backward_##format(const trek_op_call *call)                                \
    {                                                                                                  \
        static const trek_map maps[] = { GELU_SHORT(format, lane),                                     \
                                         { gelu_tanh_backward_f32_row, FUNCTION, 2, lane, .in = { lane, lane } } }; \
        return trek_map_run(call, &maps[call->attrs.i[0] != 0]);                                       \
    }
GELU(bf16, TREK_LANE_BF16)
GELU(f16, TREK_LANE_F16)

/* where: elements are moved as bits, so that 16-bit floats need no conversion. */
#define WHERE(width)                                                                                   \
    static void where_##width##_row(void *to, const void *const *from, int64_t n, const trek_attrs *attrs) \
    {                                                                                                  \
        uint##width##_t *result = to;                                                                  \
        const uint8_t *condition = from[0];                                                            \
        const uint##width##_t *x = from[1], *y = from[2];                                              \
        (void)attrs;                                                                                   \
        TREK_INDEPENDENT                                                                               \
        for (int64_t i = 0; i < n; i++) {                                                              \
            uint##width##_t a = x[i], b = y[i];                                                        \
            result[i] = condition[i] ? a : b;                                                          \
        }                                                                                              \
    }
WHERE(8)
WHERE(16)
WHERE(32)
WHERE(64)
TREK_MAP_KERNEL(where_1, where_8_row, CHEAP, 3, TREK_LANE_1, TREK_LANE_1, TREK_LANE_1, TREK_LANE_1)
TREK_MAP_KERNEL(where_2, where_16_row, CHEAP, 3, TREK_LANE_2, TREK_LANE_1, TREK_LANE_2, TREK_LANE_2)
TREK_MAP_KERNEL(where_4, where_32_row, CHEAP, 3, TREK_LANE_4, TREK_LANE_1, TREK_LANE_4, TREK_LANE_4)
TREK_MAP_KERNEL(where_8, where_64_row, CHEAP, 3, TREK_LANE_8, TREK_LANE_1, TREK_LANE_8, TREK_LANE_8)

static void register_where(trek_backend *b)
{
    trek_kernel *where = b->kernels[TREK_OP_where];
    where[TREK_F32] = where[TREK_I32] = where_4;
    where[TREK_F64] = where[TREK_I64] = where_8;
    where[TREK_BF16] = where[TREK_F16] = where_2;
    where[TREK_U8] = where[TREK_BOOL] = where_1;
}

void TREK_ISA_NAME(trek_cpu_register_binary)(trek_backend *b)
{
#define NUMBERS(op) (TREK_ENTER_FLOATS(b, op), TREK_ENTER_INTEGERS(b, op));
#define FLOATS(op) TREK_ENTER_FLOATS(b, op);
#define BOOL(op) TREK_ENTER_BOOL(b, op);
    NUMBERS(add)
    NUMBERS(sub) NUMBERS(mul) NUMBERS(maximum) NUMBERS(minimum) NUMBERS(pow) NUMBERS(relu_backward) FLOATS(div) FLOATS(atan2)
        FLOATS(hypot) FLOATS(copysign) FLOATS(tanh_backward) FLOATS(sigmoid_backward) FLOATS(silu_backward)
            FLOATS(gelu_backward) BOOL(add) BOOL(mul) BOOL(maximum) BOOL(minimum)
#undef NUMBERS
#undef FLOATS
#undef BOOL
                register_where(b);
}
