/* SPDX-License-Identifier: Apache-2.0 */
/* Element-wise kernels of two or three inputs that are several steps in one pass. */
#include <float.h>

#include "tensor/cpu/elementwise/elementwise.h"
#include "tensor/cpu/elementwise/vector_activations.h"
#include "tensor/cpu/vector_math.h"

#define CHEAP TREK_GRAIN_CHEAP
#define FUNCTION TREK_GRAIN_FUNCTION

/* From the nearer end, as in PyTorch, so that both ends are exact. */
#define NEAR(weight) ((weight) > -0.5f && (weight) < 0.5f)
#define LERP(weight) (NEAR(weight) ? x + (weight) * (y - x) : y + ((weight) - 1) * (y - x))
#define LERP_EACH(weight) ((NEAR(weight) ? x : y) + ((weight) - (NEAR(weight) ? 0 : 1)) * (y - x))
TREK_BINARY_FLOATS_ONE(lerp, CHEAP, LERP(s), LERP(s))
TREK_TERNARY_FLOATS(lerp_var, CHEAP, LERP_EACH(z))
/* As maximum and minimum, one after the other: a NaN in z passes the second choice, those in x and y are put back. */
#define CLAMPED(T, name)                                                                               \
    static inline T name(T x, T y, T z)                                                                \
    {                                                                                                  \
        const T raised = x > y ? x : y, inside = raised < z ? raised : z;                              \
        return __builtin_isunordered(x, y) ? x + y : inside;                                           \
    }
CLAMPED(float, clamped_f32)
CLAMPED(double, clamped_f64)
TREK_TERNARY_FLOATS(clamp_var, CHEAP, _Generic(x, float: clamped_f32, default: clamped_f64)(x, y, z))
TREK_TERNARY_FLOATS(addcmul, CHEAP, x + s * y * z)
TREK_TERNARY_FLOATS(addcdiv, CHEAP, x + s * y / z)

/* The larger one plus log(1 + e^(-s |x - y|)) / s. Infinities are limited before they are subtracted, so that two equal ones
 * have no distance. */
TREK_WIDE_INLINE trek_wide finite_wide(trek_wide x) { return trek_at_least_wide(trek_at_most_wide(x, FLT_MAX), -FLT_MAX); }
TREK_WIDE_INLINE trek_wide logaddexp_of_wide(trek_wide x, trek_wide y, trek_wide s)
{
    trek_wide apart = trek_magnitude_wide(finite_wide(x) - finite_wide(y));
    return trek_choose_wide(y, x, x, y) + trek_log1p_wide(trek_exp_wide(apart * -s)) / s;
}
TREK_WIDE_INLINE trek_wide64 finite_wide64(trek_wide64 x)
{
    x = trek_choose_wide64((trek_wide64_int)(x > DBL_MAX), trek_spread_wide64(DBL_MAX), x);
    return trek_choose_wide64((trek_wide64_int)(x < -DBL_MAX), trek_spread_wide64(-DBL_MAX), x);
}
TREK_WIDE_INLINE trek_wide64 logaddexp_of_wide64(trek_wide64 x, trek_wide64 y, double s)
{
    trek_wide64 below = (trek_wide64)((trek_wide64_int)((finite_wide64(x) - finite_wide64(y)) * s) | INT64_MIN);
    return trek_choose_wide64((trek_wide64_int)(y < x), x, y) + trek_log1p_f64_library(trek_exp_down_wide64(below)) / s;
}
TREK_BINARY_WIDE_ROW(logaddexp, logaddexp_of_wide(x, y, trek_spread_wide((float)attrs->f[0])))
TREK_BINARY_LIBRARY_ROW(logaddexp, f64, logaddexp_of_wide64(x, y, attrs->f[0]))
TREK_BINARY_FLOAT_KERNELS(logaddexp, FUNCTION)

/* A half of gated linear units, and the gradient of their gate y. */
TREK_WIDE_INLINE trek_wide sigmoid_derivative_wide(trek_wide x)
{
    trek_wide s = trek_sigmoid_wide(x);
    return s * (1 - s);
}
TREK_WIDE_INLINE trek_wide64 sigmoid_derivative_wide64(trek_wide64 x)
{
    trek_wide64 s = trek_sigmoid_wide64(x);
    return s * (1.0 - s);
}
TREK_BINARY_WIDE_ROW(sigmoid_mul, x *trek_sigmoid_wide(y))
TREK_BINARY_LIBRARY_ROW(sigmoid_mul, f64, x *trek_sigmoid_wide64(y))
TREK_BINARY_FLOAT_KERNELS(sigmoid_mul, FUNCTION)
TREK_BINARY_WIDE_ROW(silu_mul, x *trek_silu_wide(y))
TREK_BINARY_LIBRARY_ROW(silu_mul, f64, x *(y * trek_sigmoid_wide64(y)))
TREK_BINARY_FLOAT_KERNELS(silu_mul, FUNCTION)
TREK_TERNARY_WIDE_ROW(sigmoid_mul_backward, x *y *sigmoid_derivative_wide(z))
TREK_TERNARY_LIBRARY_ROW(sigmoid_mul_backward, f64, x *y *sigmoid_derivative_wide64(z))
TREK_TERNARY_FLOAT_KERNELS(sigmoid_mul_backward, FUNCTION)
TREK_TERNARY_WIDE_ROW(silu_mul_backward, x *y *trek_silu_derivative_wide(z))
TREK_TERNARY_LIBRARY_ROW(silu_mul_backward, f64, x *y *trek_silu_derivative_wide64(z))
TREK_TERNARY_FLOAT_KERNELS(silu_mul_backward, FUNCTION)

void TREK_ISA_NAME(trek_cpu_register_fused)(trek_backend *b)
{
    TREK_ENTER_FLOATS(b, lerp);
    TREK_ENTER_FLOATS(b, lerp_var);
    TREK_ENTER_FLOATS(b, clamp_var);
    TREK_ENTER_FLOATS(b, addcmul);
    TREK_ENTER_FLOATS(b, addcdiv);
    TREK_ENTER_FLOATS(b, logaddexp);
    TREK_ENTER_FLOATS(b, sigmoid_mul);
    TREK_ENTER_FLOATS(b, silu_mul);
    TREK_ENTER_FLOATS(b, sigmoid_mul_backward);
    TREK_ENTER_FLOATS(b, silu_mul_backward);
}
