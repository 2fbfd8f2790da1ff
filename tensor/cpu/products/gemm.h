/* SPDX-License-Identifier: Apache-2.0 */
/* Matrix products of any strides: C = A B, or C + A B, with bias and activation
 * applied while a tile of C is at hand.
 *
 * Blocking as in Goto and van de Geijn, "Anatomy of high-performance matrix
 * multiplication", ACM TOMS 2008. Every element of C is summed over k in one
 * fixed order, whatever the number of threads: k is never split over threads,
 * and which path is taken depends on sizes and strides only. */
#ifndef TREK_TENSOR_CPU_PRODUCTS_GEMM_H
#define TREK_TENSOR_CPU_PRODUCTS_GEMM_H

#include "tensor/cpu/kernels.h"

/* A [m, k], B [k, n], C [m, n]; strides in elements. */
typedef struct trek_gemm {
    int64_t m, n, k;
    const void *a, *b;
    trek_dtype a_dtype, b_dtype;      /* that of the product, or for f32 also BF16 or F16 */
    int64_t a_row, a_col, b_row, b_col;
    void *c;
    trek_dtype c_dtype;               /* of C and pre, as a_dtype; zero is f32, and f64 products do not read it */
    int64_t c_row, c_col;
    bool accumulate;                  /* add to what C holds */
    const void *bias;                 /* bias[i * bias_row + j * bias_col] is added to C[i][j]; NULL: none */
    trek_dtype bias_dtype;            /* as c_dtype */
    int64_t bias_row, bias_col;       /* 0 or 1 each */
    trek_activation activation;       /* applied last */
    void *pre;                        /* what the activation was applied to, strides as C's; NULL: not kept */
    bool alone;                       /* called from inside trek_parallel: not cut into parts for threads */
} trek_gemm;

/* On the threads of the caller's pool; inside trek_parallel on the caller alone.
 * Fails only for lack of memory. */
trek_status TREK_ISA_NAME(trek_gemm_f32)(const trek_gemm *g);
trek_status TREK_ISA_NAME(trek_gemm_f64)(const trek_gemm *g);

/* B packed once for many products with few rows each, as a recurrent layer's are. Of g B, n, k and the dtypes are read; both
 * operands are of the product's own dtype. */
size_t TREK_ISA_NAME(trek_gemm_packed_size)(int64_t n, int64_t k); /* elements */
void TREK_ISA_NAME(trek_gemm_pack_f32)(const trek_gemm *g, float *packed);
void TREK_ISA_NAME(trek_gemm_pack_f64)(const trek_gemm *g, double *packed);
/* The product with what was packed, on the calling thread; c_col is 1, no bias, no activation; workspace: m k elements.
 * An element's bits do not depend on m. */
void TREK_ISA_NAME(trek_gemm_packed_f32)(const trek_gemm *g, const float *packed, float *workspace);
void TREK_ISA_NAME(trek_gemm_packed_f64)(const trek_gemm *g, const double *packed, double *workspace);

#endif
