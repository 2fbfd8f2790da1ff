/* SPDX-License-Identifier: Apache-2.0 */
#include "tensor/cpu/products/factors.h"

#include <math.h>
#include <string.h>

#include "tensor/backend.h"
#include "tensor/cpu/products/gemm.h"
#include "tensor/memory_internal.h"

trek_status trek_gemm_f32_baseline(const trek_gemm *g);
trek_status trek_gemm_f64_baseline(const trek_gemm *g);
trek_status trek_gemm_f32_avx2(const trek_gemm *g);
trek_status trek_gemm_f64_avx2(const trek_gemm *g);
trek_status trek_gemm_f32_avx512(const trek_gemm *g);
trek_status trek_gemm_f64_avx512(const trek_gemm *g);

trek_status trek_factors_product(trek_dtype dtype, const trek_gemm *g)
{
    const int isa = trek_cpu_backend()->isa;
    (void)isa;
#if defined(TREK_WITH_AVX512)
    if (isa == 2)
        return dtype == TREK_F64 ? trek_gemm_f64_avx512(g) : trek_gemm_f32_avx512(g);
#endif
#if defined(TREK_WITH_AVX2)
    if (isa == 1)
        return dtype == TREK_F64 ? trek_gemm_f64_avx2(g) : trek_gemm_f32_avx2(g);
#endif
    return dtype == TREK_F64 ? trek_gemm_f64_baseline(g) : trek_gemm_f32_baseline(g);
}

enum {
    FEW_COLUMNS = 8,   /* of a panel that is factorised column by column */
    FEW_ROWS = 16,     /* of a triangle that is solved row by row */
    FEW_SQUARE = 48,   /* of a diagonal block whose product is computed with its upper half */
};

/* Returns the first half of n > few: a multiple of few. */
static int64_t half_of(int64_t n, int64_t few) { return (n / 2 + few - 1) / few * few; }

#define TREK_REAL f32
#define REAL float
#include "tensor/cpu/products/factors_template.h"
#undef TREK_REAL
#undef REAL
#define TREK_REAL f64
#define REAL double
#include "tensor/cpu/products/factors_template.h"

int trek_factors_lu(trek_dtype dtype, int64_t m, int64_t n, void *a, int64_t lda, int *pivots)
{
    return dtype == TREK_F64 ? lu_f64(m, n, a, lda, pivots) : lu_f32(m, n, a, lda, pivots);
}

int trek_factors_cholesky(trek_dtype dtype, int64_t n, void *a, int64_t lda)
{
    return dtype == TREK_F64 ? cholesky_f64(n, a, lda) : cholesky_f32(n, a, lda);
}

int trek_factors_triangular(trek_dtype dtype, bool upper, bool unit, int64_t n, int64_t k, const void *a, int64_t lda, void *b,
                            int64_t ldb)
{
    bool fine = dtype == TREK_F64 ? triangular_f64(upper, unit, n, k, a, 1, lda, b, 1, ldb)
                                  : triangular_f32(upper, unit, n, k, a, 1, lda, b, 1, ldb);
    return fine ? 0 : -1;
}

int trek_factors_solve(trek_dtype dtype, int64_t n, int64_t k, void *a, int *pivots, void *b)
{
    int info = trek_factors_lu(dtype, n, n, a, n, pivots);
    if (info != 0)
        return info;
    if (dtype == TREK_F64)
        exchange_f64(b, n, k, pivots, n);
    else
        exchange_f32(b, n, k, pivots, n);
    info = trek_factors_triangular(dtype, false, true, n, k, a, n, b, n);
    return info == 0 ? trek_factors_triangular(dtype, true, false, n, k, a, n, b, n) : info;
}
