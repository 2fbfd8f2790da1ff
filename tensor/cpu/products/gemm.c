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

/* Computes each unit by itself. */
static trek_status each_unit(const trek_gemm *g, trek_status (*gemm)(const trek_gemm *g))
{
    size_t a_item = trek_dtype_size(g->a_dtype), c_item = trek_dtype_size(g->c_dtype);
    trek_gemm one = *g;
    trek_status status = TREK_OK;
    one.m = g->unit;
    one.unit = 0;
    for (int64_t row = 0; row < g->m && status == TREK_OK; row += g->unit) {
        one.a = (const char *)g->a + (size_t)(row * g->a_row) * a_item;
        one.c = (char *)g->c + (size_t)(row * g->c_row) * c_item;
        one.pre = g->pre ? (char *)g->pre + (size_t)(row * g->c_row) * c_item : NULL;
        one.bias = g->bias_row && g->bias ? (const char *)g->bias + (size_t)row * trek_dtype_size(g->bias_dtype) : g->bias;
        status = gemm(&one);
    }
    return status;
}

static bool has_units(const trek_gemm *g) { return g->unit > 0 && g->unit < g->m; }

trek_status TREK_ISA_NAME(trek_gemm_f32)(const trek_gemm *g)
{
    const trek_amx *amx = TREK_ISA_NAME(trek_gemm_amx_serving)(g);
    if (has_units(g)) {
        trek_status status = amx || trek_gemm_has_half(g) ? TREK_ERR_UNSUPPORTED : gemm_units_f32(g);
        return status == TREK_ERR_UNSUPPORTED ? each_unit(g, TREK_ISA_NAME(trek_gemm_f32)) : status;
    }
    if (amx)
        return TREK_ISA_NAME(trek_gemm_amx)(g, amx);
    return trek_gemm_has_half(g) ? TREK_ISA_NAME(trek_gemm_half_vectors)(g) : gemm_f32(g);
}

trek_status TREK_ISA_NAME(trek_gemm_fma)(const trek_gemm *g) { return gemm_f32(g); }

trek_status TREK_ISA_NAME(trek_gemm_f64)(const trek_gemm *g)
{
    trek_status status = has_units(g) ? gemm_units_f64(g) : gemm_f64(g);
    return status == TREK_ERR_UNSUPPORTED ? each_unit(g, TREK_ISA_NAME(trek_gemm_f64)) : status;
}

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
