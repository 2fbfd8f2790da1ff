/* SPDX-License-Identifier: Apache-2.0 */
/* Matrix products in f32 (with 16-bit operands) and f64. */
#include "tensor/cpu/products/gemm.h"

#include <math.h>

#include "tensor/cpu/vector_math.h"

#define TREK_REAL f32
#define TREK_REAL_BYTES 4
#include "tensor/cpu/products/gemm_template.h"
#undef TREK_REAL
#undef TREK_REAL_BYTES

#define TREK_REAL f64
#define TREK_REAL_BYTES 8
#include "tensor/cpu/products/gemm_template.h"

trek_status TREK_ISA_NAME(trek_gemm_f32)(const trek_gemm *g)
{
    return gemm_f32(g, TREK_F32);
}

trek_status TREK_ISA_NAME(trek_gemm_f64)(const trek_gemm *g)
{
    return gemm_f64(g, TREK_F64);
}
