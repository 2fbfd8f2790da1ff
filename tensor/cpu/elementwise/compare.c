/* SPDX-License-Identifier: Apache-2.0 */
/* Element-wise kernels whose result is bool: comparisons, logic, tests. */
#define TREK_ROW_ATTRIBUTE __attribute__((noinline))
#include "tensor/cpu/elementwise/elementwise.h"
#include "tensor/cpu/vector_math.h"
#include "tensor/integer_range.h"

#define CHEAP TREK_GRAIN_CHEAP

/* Two inputs, all dtypes. */
#define COMPARE(op, expression)                                                                        \
    TREK_BINARY_ROW(op, f32, boolean, expression)                                                         \
    TREK_BINARY_ROW(op, f64, boolean, expression)                                                         \
    TREK_BINARY_ROW(op, i64, boolean, expression)                                                         \
    TREK_BINARY_ROW(op, i32, boolean, expression)                                                         \
    TREK_BINARY_ROW(op, u8, boolean, expression)                                                          \
    TREK_BINARY_KERNEL(op, f32, f32, 1, CHEAP)                                                         \
    TREK_BINARY_KERNEL(op, f64, f64, 1, CHEAP)                                                         \
    TREK_BINARY_KERNEL(op, bf16, f32, 1, CHEAP)                                                        \
    TREK_BINARY_KERNEL(op, f16, f32, 1, CHEAP)                                                         \
    TREK_BINARY_KERNEL(op, i64, i64, 1, CHEAP)                                                         \
    TREK_BINARY_KERNEL(op, i32, i32, 1, CHEAP)                                                         \
    TREK_BINARY_KERNEL(op, u8, u8, 1, CHEAP)                                                           \
    TREK_BINARY_KERNEL(op, boolean, u8, 1, CHEAP)
COMPARE(eq, x == y)
COMPARE(ne, x != y)
COMPARE(lt, x < y)
COMPARE(le, x <= y)
COMPARE(gt, x > y)
COMPARE(ge, x >= y)
COMPARE(logical_and, (x != 0) & (y != 0))
COMPARE(logical_or, (x != 0) | (y != 0))
COMPARE(logical_xor, (x != 0) ^ (y != 0))

/* One input. */
#define TEST_INTEGERS(op, expression)                                                                  \
    TREK_UNARY_ROW(op, i64, boolean, expression)                                                          \
    TREK_UNARY_ROW(op, i32, boolean, expression)                                                          \
    TREK_UNARY_ROW(op, u8, boolean, expression)                                                           \
    TREK_UNARY_KERNEL(op, i64, i64, 1, CHEAP)                                                          \
    TREK_UNARY_KERNEL(op, i32, i32, 1, CHEAP)                                                          \
    TREK_UNARY_KERNEL(op, u8, u8, 1, CHEAP)                                                            \
    TREK_UNARY_KERNEL(op, boolean, u8, 1, CHEAP)
#define TEST_FLOATS(op, expression)                                                                    \
    TREK_UNARY_ROW(op, f32, boolean, expression)                                                          \
    TREK_UNARY_ROW(op, f64, boolean, expression)                                                          \
    TREK_UNARY_KERNEL(op, f32, f32, 1, CHEAP)                                                          \
    TREK_UNARY_KERNEL(op, f64, f64, 1, CHEAP)                                                          \
    TREK_UNARY_KERNEL(op, bf16, f32, 1, CHEAP)                                                         \
    TREK_UNARY_KERNEL(op, f16, f32, 1, CHEAP)
TEST_FLOATS(isnan, x != x)
TEST_FLOATS(isinf, (x - x != x - x) & (x == x))
TEST_FLOATS(isfinite, x - x == x - x)
TEST_FLOATS(logical_not, x == 0)
TEST_INTEGERS(isnan, ((void)x, 0))
TEST_INTEGERS(isinf, ((void)x, 0))
TEST_INTEGERS(isfinite, ((void)x, 1))
TEST_INTEGERS(logical_not, x == 0)

/* One input and a number. Floats compare in their own precision, to which the number is rounded; integers compare
 * with the unrounded number. */
#define SCALAR_16(op, dtype)                                                                           \
    TREK_UNARY_KERNEL(op##_rounded, dtype, f32, 1, CHEAP)                                              \
    static trek_status op##_##dtype(const trek_op_call *call)                                          \
    {                                                                                                  \
        trek_op_call rounded = *call;                                                                  \
        rounded.attrs.f[0] = trek_f32_from_##dtype(trek_##dtype##_from_f32((float)call->attrs.f[0]));  \
        return op##_rounded_##dtype(&rounded);                                                         \
    }
/* i64 has more digits than a double's fraction, so that a range of integers replaces the comparison. */
#define SCALAR_I64(op)                                                                                 \
    TREK_ROW_ATTRIBUTE static void op##_i64_row(void *to, const void *const *from, int64_t n, const trek_attrs *attrs)    \
    {                                                                                                  \
        uint8_t *result = to;                                                                          \
        const int64_t *xs = from[0];                                                                   \
        const trek_integer_range range = trek_integer_range_of(TREK_OP_##op, attrs->f[0]);             \
        TREK_INDEPENDENT                                                                               \
        for (int64_t i = 0; i < n; i++)                                                                \
            result[i] = ((xs[i] >= range.low) & (xs[i] <= range.high)) ^ range.outside;                \
    }
#define SCALAR(op, sign)                                                                               \
    TREK_UNARY_ROW(op, f32, boolean, x sign s)                                                            \
    TREK_UNARY_ROW(op##_rounded, f32, boolean, x sign s)                                                  \
    TREK_UNARY_ROW(op, f64, boolean, x sign s)                                                            \
    SCALAR_I64(op)                                                                                     \
    TREK_UNARY_ROW(op, i32, boolean, (double)x sign number)                                               \
    TREK_UNARY_ROW(op, u8, boolean, (double)x sign number)                                                \
    TREK_UNARY_KERNEL(op, f32, f32, 1, CHEAP)                                                          \
    TREK_UNARY_KERNEL(op, f64, f64, 1, CHEAP)                                                          \
    TREK_UNARY_KERNEL(op, i64, i64, 1, CHEAP)                                                          \
    TREK_UNARY_KERNEL(op, i32, i32, 1, CHEAP)                                                          \
    TREK_UNARY_KERNEL(op, u8, u8, 1, CHEAP)                                                            \
    TREK_UNARY_KERNEL(op, boolean, u8, 1, CHEAP)                                                          \
    SCALAR_16(op, bf16)                                                                                \
    SCALAR_16(op, f16)
SCALAR(eq_scalar, ==)
SCALAR(ne_scalar, !=)
SCALAR(lt_scalar, <)
SCALAR(le_scalar, <=)
SCALAR(gt_scalar, >)
SCALAR(ge_scalar, >=)

void TREK_ISA_NAME(trek_cpu_register_compare)(trek_backend *b)
{
#define ALL(op) (TREK_ENTER_FLOATS(b, op), TREK_ENTER_INTEGERS(b, op), TREK_ENTER_BOOL(b, op));
    ALL(eq) ALL(ne) ALL(lt) ALL(le) ALL(gt) ALL(ge) ALL(logical_and) ALL(logical_or) ALL(logical_xor)
    ALL(isnan) ALL(isinf) ALL(isfinite) ALL(logical_not)
    ALL(eq_scalar) ALL(ne_scalar) ALL(lt_scalar) ALL(le_scalar) ALL(gt_scalar) ALL(ge_scalar)
#undef ALL
}
