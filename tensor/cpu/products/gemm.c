/* SPDX-License-Identifier: Apache-2.0 */
/* Matrix products in f32 and f64. */
#include "tensor/cpu/products/gemm_amx.h"
#include "tensor/cpu/products/gemm_half.h"

#include <math.h>
#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include "tensor/cpu/products/blas.h"
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
    const trek_amx *amx = TREK_ISA_NAME(trek_gemm_amx_serving)(g);
    if (amx)
        return TREK_ISA_NAME(trek_gemm_amx)(g, amx);
    return trek_gemm_has_half(g) ? TREK_ISA_NAME(trek_gemm_half_vectors)(g) : gemm_f32(g);
}

trek_status TREK_ISA_NAME(trek_gemm_fma)(const trek_gemm *g) { return gemm_f32(g); }

trek_status TREK_ISA_NAME(trek_gemm_f64)(const trek_gemm *g) { return gemm_f64(g); }

size_t TREK_ISA_NAME(trek_gemm_packed_size)(int64_t n, int64_t k)
{
    int64_t f32 = packed_cols_f32(n), f64 = packed_cols_f64(n);
    return (size_t)((f32 > f64 ? f32 : f64) * k);
}

void TREK_ISA_NAME(trek_gemm_pack_f32)(const trek_gemm *g, float *packed) { pack_b_f32(g, packed); }
void TREK_ISA_NAME(trek_gemm_pack_f64)(const trek_gemm *g, double *packed) { pack_b_f64(g, packed); }

void TREK_ISA_NAME(trek_gemm_packed_f32)(const trek_gemm *g, const float *packed, float *workspace)
{
    gemm_packed_f32(g, packed, workspace);
}

void TREK_ISA_NAME(trek_gemm_packed_f64)(const trek_gemm *g, const double *packed, double *workspace)
{
    gemm_packed_f64(g, packed, workspace);
}
