/* SPDX-License-Identifier: Apache-2.0 */
/* Elementary functions of f32 without branches or calls: trek_exp_f32 and so on for one number (the compiler
 * vectorises loops over them), trek_exp_wide for a vector. Errors are at most about 2 ulp; infinities, NaN and
 * denormals give the results of libm. */
#ifndef TREK_TENSOR_CPU_VECTOR_MATH_H
#define TREK_TENSOR_CPU_VECTOR_MATH_H

#include <math.h>

#include "tensor/cpu/wide.h"

#define M(name) trek_##name##_f32
#define F float
#define BITS uint32_t
#define SIGNED int32_t
#include "tensor/function_template.h"
#undef M
#undef F
#undef BITS
#undef SIGNED

#define M(name) trek_##name##_wide
#define F trek_wide
#define BITS trek_wide_bits
#define SIGNED trek_wide_int
#include "tensor/function_template.h"
#undef M
#undef F
#undef BITS
#undef SIGNED

/* Reduces |x| <= 2^20 by multiples of pi/2 in f64. */
#define TREK_SIN_LIMIT 0x1p20f
static inline float trek_sin_reduce_f32(float x, int32_t *quarter)
{
    double shifted = (double)x * 0x1.45f306dc9c883p-1 + 0x1.8p52;
    double whole = shifted - 0x1.8p52;
    *quarter = (int32_t)trek_bits_f64(shifted);
    double r = (double)x - whole * 0x1.921fb544p0; /* exact: 33 bits times 21 */
    return (float)(r - whole * 0x1.0b4611a626331p-34);
}
static inline float trek_sin_small_f32(float x)
{
    int32_t quarter;
    float r = trek_sin_reduce_f32(x, &quarter);
    return x == 0.0f ? x : trek_sin_quarter_f32(quarter, r);
}
static inline float trek_cos_small_f32(float x)
{
    int32_t quarter;
    float r = trek_sin_reduce_f32(x, &quarter);
    return trek_sin_quarter_f32(quarter + 1, r);
}
static inline float trek_tan_small_f32(float x)
{
    int32_t quarter;
    float r = trek_sin_reduce_f32(x, &quarter);
    return x == 0.0f ? x : trek_tan_quarter_f32(quarter, r);
}

#endif
