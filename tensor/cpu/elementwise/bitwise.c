/* SPDX-License-Identifier: Apache-2.0 */
/* Element-wise kernels on bits of integers and of bool (for which not differs from that of a byte); also the next
 * number of a floating dtype, and common divisors. */
#include "tensor/cpu/elementwise/elementwise.h"

#define CHEAP TREK_GRAIN_CHEAP

TREK_BINARY_INTEGERS(bitwise_and, CHEAP, x &y)
TREK_BINARY_INTEGERS(bitwise_or, CHEAP, x | y)
TREK_BINARY_INTEGERS(bitwise_xor, CHEAP, x ^ y)
TREK_BINARY_BOOL(bitwise_and, x &y)
TREK_BINARY_BOOL(bitwise_or, x | y)
TREK_BINARY_BOOL(bitwise_xor, x ^ y)
TREK_UNARY_INTEGERS(bitwise_not, ~x)
TREK_UNARY_ROW(bitwise_not, boolean, boolean, x ^ 1)
TREK_UNARY_KERNEL(bitwise_not, boolean, boolean, 1, CHEAP)

/* A shift by less than 0 or by all bits: a left shift gives 0, a right shift gives the sign. */
#define SHIFTS(suffix, T, U, bits, width)                                                              \
    static inline T left_##suffix(T x, T y) { return (T)(U)((U)y < bits ? (U)x << ((U)y & (bits - 1)) : 0); } \
    static inline T right_##suffix(T x, T y) { return (T)(x >> ((U)y < bits ? (U)y : bits - 1)); }     \
    TREK_BINARY_ROW(bitwise_left_shift, suffix, suffix, left_##suffix(x, y))                           \
    TREK_BINARY_ROW(bitwise_right_shift, suffix, suffix, right_##suffix(x, y))                         \
    TREK_BINARY_KERNEL(bitwise_left_shift, suffix, suffix, width, CHEAP)                               \
    TREK_BINARY_KERNEL(bitwise_right_shift, suffix, suffix, width, CHEAP)
SHIFTS(i64, int64_t, uint64_t, 64, 8)
SHIFTS(i32, int32_t, uint32_t, 32, 4)
/* bytes are shifted as 32 bits, which hold shifts by up to 8 */
TREK_BINARY_ROW(bitwise_left_shift, u8, u8, (uint32_t)x << (y < 8 ? y : 8))
TREK_BINARY_ROW(bitwise_right_shift, u8, u8, x >> (y < 8 ? y : 8))
TREK_BINARY_KERNEL(bitwise_left_shift, u8, u8, 1, CHEAP)
TREK_BINARY_KERNEL(bitwise_right_shift, u8, u8, 1, CHEAP)

/* Euclid's algorithm on magnitudes. */
static inline uint64_t gcd_of(uint64_t x, uint64_t y)
{
    while (y != 0) {
        uint64_t rest = x % y;
        x = y;
        y = rest;
    }
    return x;
}
#define SIZE(x) ((x) < 0 ? -(uint64_t)(x) : (uint64_t)(x))
#define GCD(suffix, width)                                                                             \
    TREK_BINARY_ROW(gcd, suffix, suffix, gcd_of(SIZE(x), SIZE(y)))                                     \
    TREK_BINARY_KERNEL(gcd, suffix, suffix, width, TREK_GRAIN_CALL)
GCD(i64, 8)
GCD(i32, 4)
GCD(u8, 1)

/* The next number: the bits, ordered as integers, plus or minus one. The smallest number has the direction's sign. */
#define NEXT(suffix, T, U, sign)                                                                       \
    static inline U next_##suffix(U x, U y, T a, T b)                                                  \
    {                                                                                                  \
        U further = (a < b) == (a > 0) ? x + 1 : x - 1;                                                \
        U moved = a == 0 ? (U)((y & (U)sign) | 1) : further;                                           \
        return a != a ? x : b != b || a == b ? y : moved;                                              \
    }
NEXT(f32, float, uint32_t, 0x80000000u)
NEXT(f64, double, uint64_t, UINT64_C(0x8000000000000000))
NEXT(16, float, uint16_t, 0x8000u)
#define AFTER(suffix, name, U, value, lane)                                                            \
    static void nextafter_##suffix##_row(void *to, const void *const *from, int64_t n, const trek_attrs *attrs) \
    {                                                                                                  \
        U *result = to;                                                                                \
        const U *xs = from[0], *ys = from[1];                                                          \
        (void)attrs;                                                                                   \
        TREK_INDEPENDENT                                                                               \
        for (int64_t i = 0; i < n; i++)                                                                \
            result[i] = next_##name(xs[i], ys[i], value(xs[i]), value(ys[i]));                         \
    }                                                                                                  \
    TREK_MAP_KERNEL(nextafter_##suffix, nextafter_##suffix##_row, CHEAP, 2, lane, lane, lane)
AFTER(f32, f32, uint32_t, trek_f32_bits, TREK_LANE_4)
AFTER(f64, f64, uint64_t, trek_f64_bits, TREK_LANE_8)
AFTER(bf16, 16, uint16_t, trek_f32_from_bf16, TREK_LANE_2)
AFTER(f16, 16, uint16_t, trek_f32_from_f16, TREK_LANE_2)

void TREK_ISA_NAME(trek_cpu_register_bitwise)(trek_backend *b)
{
#define BOTH(op) (TREK_ENTER_INTEGERS(b, op), TREK_ENTER_BOOL(b, op));
    BOTH(bitwise_and) BOTH(bitwise_or) BOTH(bitwise_xor) BOTH(bitwise_not)
#undef BOTH
    TREK_ENTER_INTEGERS(b, bitwise_left_shift);
    TREK_ENTER_INTEGERS(b, bitwise_right_shift);
    TREK_ENTER_INTEGERS(b, gcd);
    TREK_ENTER_FLOATS(b, nextafter);
}
