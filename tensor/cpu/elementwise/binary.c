/* SPDX-License-Identifier: Apache-2.0 */
/* Element-wise kernels of two or three inputs, and the fused gradients of
 * activations (gradient, then what was saved). */
#include "tensor/cpu/elementwise/elementwise.h"
#include "tensor/cpu/elementwise/vector_activations.h"
#include "tensor/cpu/vector_math.h"

#define CHEAP TREK_GRAIN_CHEAP
#define FUNCTION TREK_GRAIN_FUNCTION
#define CALL TREK_GRAIN_CALL

TREK_BINARY_FLOATS(add, CHEAP, x + y, x + y)
TREK_BINARY_FLOATS(sub, CHEAP, x - y, x - y)
TREK_BINARY_FLOATS(mul, CHEAP, x *y, x *y)
TREK_BINARY_FLOATS(div, CHEAP, x / y, x / y)
TREK_BINARY_INTEGERS(add, CHEAP, x + y)
TREK_BINARY_INTEGERS(sub, CHEAP, x - y)
TREK_BINARY_INTEGERS(mul, CHEAP, x *y)
TREK_BINARY_BOOL(add, x | y)
TREK_BINARY_BOOL(mul, x &y)

/* NaN in either comes out. */
TREK_BINARY_FLOATS(maximum, CHEAP, x > y || x != x ? x : y, x > y || x != x ? x : y)
TREK_BINARY_FLOATS(minimum, CHEAP, x < y || x != x ? x : y, x < y || x != x ? x : y)
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

/* The remainder has the divisor's sign, a zero that of x. */
#define REMAINDER_OF(suffix, T)                                                                        \
    static inline T remainder_of_##suffix(T r, T y) { return r != 0 && (r < 0) != (y < 0) ? r + y : r; }
REMAINDER_OF(f32, float)
REMAINDER_OF(f64, double)

/* x - y q, q the quotient towards zero: exact where q and y have no more bits than a double together, or with an fma. One that
 * was rounded up to a whole number leaves a remainder of the other sign, which remainder_of mends. */
static inline double rest_of_f32(double x, double y)
{
    double r = x - trunc(x / y) * y;
    return r == 0 ? copysign(0, x) : r;
}
#define MANY_f32 0x1p28
#if defined(__FMA__) || defined(__ARM_FEATURE_FMA)
static inline double rest_of_f64(double x, double y)
{
    double r = __builtin_fma(-trunc(x / y), y, x);
    return r == 0 ? copysign(0, x) : r;
}
#define MANY_f64 0x1p52
#else
static inline double rest_of_f64(double x, double y) { return rest_of_f32(x, y); }
#define MANY_f64 1.0 /* of which the quotient is 0 */
#endif

/* Blocks with larger quotients, infinities, NaN or a division by zero go through libm. */
#define REMAINDER_ROW(suffix, T, call, largest)                                                        \
    static void remainder_##suffix##_row(void *to, const void *const *from, int64_t n, const trek_attrs *attrs) \
    {                                                                                                  \
        T *result = to;                                                                                \
        const T *xs = from[0], *ys = from[1];                                                          \
        (void)attrs;                                                                                   \
        for (int64_t begin = 0; begin < n; begin += 256) {                                             \
            int64_t end = begin + 256 < n ? begin + 256 : n;                                           \
            int special = 0;                                                                           \
            for (int64_t i = begin; i < end; i++)                                                      \
                special |= !(fabs((double)xs[i]) < MANY_##suffix * fabs((double)ys[i])) | !(fabs((double)ys[i]) <= largest); \
            if (special) {                                                                             \
                for (int64_t i = begin; i < end; i++)                                                  \
                    result[i] = remainder_of_##suffix(call(xs[i], ys[i]), ys[i]);                      \
                continue;                                                                              \
            }                                                                                          \
            TREK_INDEPENDENT                                                                           \
            for (int64_t i = begin; i < end; i++)                                                      \
                result[i] = remainder_of_##suffix((T)rest_of_##suffix((double)xs[i], (double)ys[i]), ys[i]); \
        }                                                                                              \
    }
REMAINDER_ROW(f32, float, fmodf, (double)__FLT_MAX__)
REMAINDER_ROW(f64, double, fmod, __DBL_MAX__)
/* y is not 0; -1 is apart because the smallest integer divided by it overflows */
static inline int64_t remainder_integer(int64_t x, int64_t y)
{
    int64_t r = y == -1 ? 0 : x % y;
    return r != 0 && (r < 0) != (y < 0) ? r + y : r;
}
TREK_BINARY_FLOAT_KERNELS(remainder, FUNCTION)
/* integers of up to 32 bits are exact in f64, and so is where their quotient is whole */
#define REMAINDER_NARROW(suffix, width)                                                                \
    TREK_BINARY_ROW(remainder_nonzero, suffix, suffix, remainder_of_f64(rest_of_f32(x, y), y))         \
    TREK_BINARY_KERNEL(remainder_nonzero, suffix, suffix, width, FUNCTION)
TREK_BINARY_ROW(remainder_nonzero, i64, i64, remainder_integer(x, y))
TREK_BINARY_KERNEL(remainder_nonzero, i64, i64, 8, CALL)
REMAINDER_NARROW(i32, 4)
REMAINDER_NARROW(u8, 1)

/* Whether a tensor of any strides holds a zero: bytes of 0 from elements of `width` bytes. */
static bool holds_zero(const trek_tensor *t, int width)
{
    int64_t at[TREK_MAX_DIMS] = { 0 };
    int last = t->ndim - 1;
    int64_t run = t->ndim ? t->sizes[last] : 1, stride = t->ndim ? t->strides[last] * width : width;
    for (int64_t left = t->numel; left > 0; left -= run) {
        const char *data = t->data;
        for (int d = 0; d < last; d++)
            data += at[d] * t->strides[d] * width;
        for (int64_t i = 0; i < run; i++, data += stride)
            if (width == 8 ? *(const int64_t *)data == 0 : width == 4 ? *(const int32_t *)data == 0 : *data == 0)
                return true;
        for (int d = last - 1; d >= 0 && ++at[d] == t->sizes[d]; d--)
            at[d] = 0;
    }
    return false;
}

#define REMAINDER_INTEGER(dtype, width)                                                                \
    static trek_status remainder_##dtype(const trek_op_call *call)                                     \
    {                                                                                                  \
        if (call->outputs[0]->numel > 0 && holds_zero(call->inputs[1], width))                         \
            return trek_op_fail(call, TREK_ERR_ARGUMENT, "division of integers by zero");              \
        return remainder_nonzero_##dtype(call);                                                        \
    }
REMAINDER_INTEGER(i64, 8)
REMAINDER_INTEGER(i32, 4)
REMAINDER_INTEGER(u8, 1)

/* Gradients: x is the gradient, y what was saved. NaN that passed relu lets its gradient pass. */
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
TREK_BINARY_FLOAT_KERNELS(gelu_backward, FUNCTION)

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
    NUMBERS(add) NUMBERS(sub) NUMBERS(mul) NUMBERS(maximum) NUMBERS(minimum) NUMBERS(pow) NUMBERS(remainder)
    NUMBERS(relu_backward)
    FLOATS(div) FLOATS(atan2) FLOATS(tanh_backward) FLOATS(sigmoid_backward) FLOATS(silu_backward) FLOATS(gelu_backward)
    BOOL(add) BOOL(mul) BOOL(maximum) BOOL(minimum)
#undef NUMBERS
#undef FLOATS
#undef BOOL
    register_where(b);
}
