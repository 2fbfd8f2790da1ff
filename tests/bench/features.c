/* SPDX-License-Identifier: Apache-2.0 */
/* Says on one line what trek computes with on this machine: the instruction set of the kernels, how large products are
 * computed, and the libraries that serve. run.py prints it with its results. */
#include <stdio.h>

#include "tensor/backend.h"
#include "tensor/cpu/products/blas.h"
#include "tensor/cpu/products/onednn.h"
#include "tensor/cpu/use.h"
#include "tensor/products_way.h"

#if defined(TREK_WITH_AVX512)
bool trek_gemm_amx_faster_avx512(trek_dtype dtype); /* products/gemm_amx.h */
bool trek_gemm_dots_avx512(void);                   /* products/gemm_half.h */
#endif

static trek_products_way of_bf16(void)
{
    trek_products_way way = trek_products_chosen(TREK_BF16);
#if defined(TREK_WITH_AVX512)
    if (way == TREK_PRODUCTS_WAY_MEASURED && trek_cpu_backend()->isa == 2)
        way = trek_gemm_amx_faster_avx512(TREK_BF16) ? TREK_PRODUCTS_WAY_TILES
            : trek_gemm_dots_avx512()                ? TREK_PRODUCTS_WAY_DOTS
                                                     : TREK_PRODUCTS_WAY_FMA;
#endif
    return way == TREK_PRODUCTS_WAY_MEASURED ? TREK_PRODUCTS_WAY_FMA : way;
}

int main(void)
{
    static const char *const sets[] = { "baseline", "avx2", "avx512" };
    static const char *const ways[] = { "multiply-add", "tiles", "dot products of pairs" };
#if defined(TREK_ONEDNN_CONV)
    const char *convolutions = "oneDNN where it is faster";
#else
    const char *convolutions = "own kernels";
#endif
    printf("%s, f32 by %s, bf16 by %s, %s, convolutions by %s\n", sets[trek_cpu_backend()->isa], ways[trek_products_in_use()],
           ways[of_bf16()], trek_blas_asked_for() ? "large products by a BLAS" : "no BLAS", convolutions);
    return 0;
}
