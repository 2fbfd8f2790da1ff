/* SPDX-License-Identifier: Apache-2.0 */
/* Remainders and rounded quotients. */
#include "tensor/cpu/elementwise/elementwise.h"
#include "tensor/cpu/vector_math.h"

#define CHEAP TREK_GRAIN_CHEAP
#define FUNCTION TREK_GRAIN_FUNCTION
#define CALL TREK_GRAIN_CALL

/* --- floats ------------------------------------------------------------------------------------- */

/* Computes x - y q, with the quotient q rounded towards zero. It is exact if q and y together have no more bits than
 * a double, or with an fma. If q was rounded up to an integer, the remainder has the other sign, which the ops
 * correct. */
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
#define MANY_f64 1.0 /* for which the quotient is 0 */
#endif

/* Results by op: for numbers with a small quotient, then for all others (infinities, NaN, a division by zero). r is
 * the result of rest_of or fmod. */
#define FLOATS_OF(suffix, T, call)                                                                     \
    /* the divisor's sign; a zero has the sign of x */                                                     \
    static inline T remainder_mended_##suffix(T r, T y) { return r != 0 && (r < 0) != (y < 0) ? r + y : r; } \
    static inline T remainder_near_##suffix(T x, T y)                                                  \
    {                                                                                                  \
        return remainder_mended_##suffix((T)rest_of_##suffix((double)x, (double)y), y);                \
    }                                                                                                  \
    static inline T remainder_any_##suffix(T x, T y) { return remainder_mended_##suffix(call(x, y), y); } \
    /* the sign of x */                                                                                     \
    static inline T fmod_near_##suffix(T x, T y)                                                       \
    {                                                                                                  \
        T r = (T)rest_of_##suffix((double)x, (double)y), size = y < 0 ? -y : y;                        \
        return ((r < 0) & (x > 0)) ? r + size : ((r > 0) & (x < 0)) ? r - size : r;                    \
    }                                                                                                  \
    static inline T fmod_any_##suffix(T x, T y) { return call(x, y); }                                 \
    /* the quotient rounded down; a zero has the sign of x / y */                                      \
    static inline T floor_near_##suffix(T x, T y)                                                      \
    {                                                                                                  \
        double q = trunc((double)x / (double)y), r = rest_of_##suffix((double)x, (double)y);           \
        T down = (T)(q - (((r != 0) & ((r < 0) != (y < 0))) ? 1 : 0));                                  \
        return down == 0 ? (T)copysign(0, (double)(x / y)) : down;                                     \
    }                                                                                                  \
    static inline T floor_any_##suffix(T x, T y)                                                       \
    {                                                                                                  \
        if (y == 0)                                                                                    \
            return x / y;                                                                              \
        T r = call(x, y), q = (x - r) / y;                                                             \
        q = (T)rint((double)(r != 0 && (r < 0) != (y < 0) ? q - 1 : q));                               \
        return q == 0 ? (T)copysign(0, (double)(x / y)) : q;                                           \
    }
FLOATS_OF(f32, float, fmodf)
FLOATS_OF(f64, double, fmod)

/* In blocks, because one special number makes the whole block slow. */
#define BLOCKS_ROW(op, suffix, T, largest)                                                             \
    static void op##_##suffix##_row(void *to, const void *const *from, int64_t n, const trek_attrs *attrs) \
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
                    result[i] = op##_any_##suffix(xs[i], ys[i]);                                       \
                continue;                                                                              \
            }                                                                                          \
            TREK_INDEPENDENT                                                                           \
            for (int64_t i = begin; i < end; i++)                                                      \
                result[i] = op##_near_##suffix(xs[i], ys[i]);                                          \
        }                                                                                              \
    }
#define BLOCKS(op)                                                                                     \
    BLOCKS_ROW(op, f32, float, (double)__FLT_MAX__)                                                    \
    BLOCKS_ROW(op, f64, double, __DBL_MAX__)                                                           \
    TREK_BINARY_FLOAT_KERNELS(op, FUNCTION)
BLOCKS(remainder)
BLOCKS(fmod)
BLOCKS(floor)
TREK_BINARY_FLOATS(trunc, CHEAP, truncf(x / y), trunc(x / y))

/* --- integers: y is not 0 ------------------------------------------------------------------------- */

/* Integers of up to 32 bits are exact in f64, and so is their integer quotient; of i64 those below 2^52 are. -1 is
 * separate because the smallest integer divided by it overflows. */
#define WHOLE_OF(suffix, T)                                                                            \
    static inline T fmod_whole_##suffix(T x, T y) { return (T)(y == -1 ? 0 : x % y); }                 \
    static inline T remainder_whole_##suffix(T x, T y)                                                 \
    {                                                                                                  \
        T r = fmod_whole_##suffix(x, y);                                                               \
        return (T)(r != 0 && (r < 0) != (y < 0) ? r + y : r);                                          \
    }                                                                                                  \
    static inline T trunc_whole_##suffix(T x, T y) { return (T)(y == -1 ? -x : x / y); }               \
    static inline T floor_whole_##suffix(T x, T y)                                                     \
    {                                                                                                  \
        T r = fmod_whole_##suffix(x, y);                                                               \
        return (T)(trunc_whole_##suffix(x, y) - (r != 0 && (r < 0) != (y < 0)));                       \
    }
WHOLE_OF(i64, int64_t)

static inline double fmod_real(double x, double y) { return rest_of_f32(x, y); }
static inline double remainder_real(double x, double y) { return remainder_mended_f64(rest_of_f32(x, y), y); }
static inline double trunc_real(double x, double y) { return trunc(x / y); }
static inline double floor_real(double x, double y) { return floor(x / y); }

#define I64_ROW(op)                                                                                    \
    static void op##_nonzero_i64_row(void *to, const void *const *from, int64_t n, const trek_attrs *attrs) \
    {                                                                                                  \
        int64_t *result = to;                                                                          \
        const int64_t *xs = from[0], *ys = from[1], many = INT64_C(1) << 52;                           \
        (void)attrs;                                                                                   \
        for (int64_t begin = 0; begin < n; begin += 256) {                                             \
            int64_t end = begin + 256 < n ? begin + 256 : n, large = 0;                                \
            for (int64_t i = begin; i < end; i++)                                                      \
                large |= (xs[i] >= many) | (xs[i] <= -many) | (ys[i] >= many) | (ys[i] <= -many);      \
            if (large) {                                                                               \
                for (int64_t i = begin; i < end; i++)                                                  \
                    result[i] = op##_whole_i64(xs[i], ys[i]);                                          \
                continue;                                                                              \
            }                                                                                          \
            TREK_INDEPENDENT                                                                           \
            for (int64_t i = begin; i < end; i++)                                                      \
                result[i] = (int64_t)op##_real((double)xs[i], (double)ys[i]);                          \
        }                                                                                              \
    }                                                                                                  \
    TREK_BINARY_KERNEL(op##_nonzero, i64, i64, 8, FUNCTION)
#define NARROW(op, suffix, width, expression)                                                          \
    TREK_BINARY_ROW(op##_nonzero, suffix, suffix, expression)                                          \
    TREK_BINARY_KERNEL(op##_nonzero, suffix, suffix, width, FUNCTION)
#define WHOLE(op, of_i32)                                                                              \
    I64_ROW(op)                                                                                        \
    NARROW(op, i32, 4, of_i32)                                                                         \
    NARROW(op, u8, 1, (int32_t)op##_real(x, y))
WHOLE(fmod, (int32_t)fmod_real(x, y))
WHOLE(remainder, (int32_t)remainder_real(x, y))
WHOLE(trunc, y == -1 ? -x : trek_i32_from_f64(trunc_real(x, y)))
WHOLE(floor, y == -1 ? -x : trek_i32_from_f64(floor_real(x, y)))

/* Returns whether a tensor of any strides contains a zero: an element of `width` zero bytes. */
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

#define OF_INTEGERS(op, dtype, width)                                                                                            \
    static trek_status op##_##dtype(const trek_op_call *call)                                                                    \
    {                                                                                                                            \
        if (call->outputs[0]->numel > 0 && holds_zero(call->inputs[1], width))                                                   \
            return trek_op_fail(call, TREK_ERR_ARGUMENT, "y: division of integers by zero");                                     \
        return op##_nonzero_##dtype(call);                                                                                       \
    }
#define INTEGERS(op) OF_INTEGERS(op, i64, 8) OF_INTEGERS(op, i32, 4) OF_INTEGERS(op, u8, 1)
INTEGERS(remainder)
INTEGERS(fmod)
INTEGERS(trunc)
INTEGERS(floor)

#define ROUNDED(dtype)                                                                                 \
    static trek_status div_rounded_##dtype(const trek_op_call *call)                                   \
    {                                                                                                  \
        return call->attrs.i[0] ? floor_##dtype(call) : trunc_##dtype(call);                           \
    }
ROUNDED(f32)
ROUNDED(f64)
ROUNDED(bf16)
ROUNDED(f16)
ROUNDED(i64)
ROUNDED(i32)
ROUNDED(u8)

void TREK_ISA_NAME(trek_cpu_register_division)(trek_backend *b)
{
#define NUMBERS(op) (TREK_ENTER_FLOATS(b, op), TREK_ENTER_INTEGERS(b, op));
    NUMBERS(remainder) NUMBERS(fmod) NUMBERS(div_rounded)
#undef NUMBERS
}
