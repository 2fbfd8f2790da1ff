/* SPDX-License-Identifier: Apache-2.0 */
/* Matrix products of any strides: C = A B, or C + A B, with bias and activation applied while a tile of C is in
 * registers or cache.
 *
 * The blocking is that of Goto and van de Geijn, "Anatomy of high-performance matrix multiplication", ACM TOMS 2008.
 * Every element of C is summed over k in one fixed order, whatever the number of threads: k is never divided among
 * threads, and the choice of the method depends only on sizes and strides. Where rows belong to several grains that run at once,
 * it depends on the rows of one grain (`unit`). */
#ifndef TREK_TENSOR_CPU_PRODUCTS_GEMM_H
#define TREK_TENSOR_CPU_PRODUCTS_GEMM_H

#include "tensor/cpu/kernels.h"

/* Which part of an operand is a triangle, as under a causal mask. Methods that gain nothing by it compute everything. */
typedef enum trek_gemm_triangle {
    TREK_GEMM_FULL,
    TREK_GEMM_C_LOWER, /* C[i][j] is not needed where j > i + diagonal, and may keep any value there */
    TREK_GEMM_A_LOWER, /* A[i][p] is 0 where p > i + diagonal */
    TREK_GEMM_A_UPPER, /* A[i][p] is 0 where i > p + diagonal */
} trek_gemm_triangle;

/* A [m, k], B [k, n], C [m, n]; strides in elements. */
typedef struct trek_gemm {
    int64_t m, n, k;
    int64_t unit;               /* C has the bits of products of so many rows each, of which m is a multiple; 0: of m rows */
    const void *a, *b;
    trek_dtype a_dtype, b_dtype; /* that of the product; for f32 also BF16 or F16 */
    int64_t a_row, a_col, b_row, b_col;
    void *c;
    trek_dtype c_dtype; /* of C and pre, as a_dtype; zero means f32, and f64 products do not read it */
    int64_t c_row, c_col;
    bool accumulate;            /* adds to the values of C */
    const void *bias;           /* bias[i * bias_row + j * bias_col] is added to C[i][j]; NULL: none */
    trek_dtype bias_dtype;      /* as c_dtype */
    int64_t bias_row, bias_col; /* 0 or 1 each */
    trek_activation activation; /* applied last */
    void *pre;                  /* the values before the activation, with C's strides; NULL: not stored */
    bool alone;                 /* called from inside trek_parallel: not divided among threads */
    trek_gemm_triangle triangle;
    int64_t diagonal;
} trek_gemm;

/* C^T = B^T A^T; not of a triangle. */
static inline trek_gemm trek_gemm_swapped(const trek_gemm *g)
{
    trek_gemm s = *g;
    s.m = g->n, s.n = g->m;
    s.a = g->b, s.a_dtype = g->b_dtype, s.a_row = g->b_col, s.a_col = g->b_row;
    s.b = g->a, s.b_dtype = g->a_dtype, s.b_row = g->a_col, s.b_col = g->a_row;
    s.c_row = g->c_col, s.c_col = g->c_row;
    s.bias_row = g->bias_col, s.bias_col = g->bias_row;
    return s;
}

/* Compute on the threads of the caller's pool; inside trek_parallel on the caller only. They fail only with MEMORY. */
trek_status TREK_ISA_NAME(trek_gemm_f32)(const trek_gemm *g);
trek_status TREK_ISA_NAME(trek_gemm_f64)(const trek_gemm *g);
/* Computes a product of f32 by multiply-add, whatever is chosen. */
trek_status TREK_ISA_NAME(trek_gemm_fma)(const trek_gemm *g);

/* Pack B once for many products with few rows each, such as those of a recurrent layer. Of g they read B, n, k and
 * the dtypes; both operands have the product's own dtype. */
size_t TREK_ISA_NAME(trek_gemm_packed_size)(int64_t n, int64_t k); /* in elements */
void TREK_ISA_NAME(trek_gemm_pack_f32)(const trek_gemm *g, float *packed);
void TREK_ISA_NAME(trek_gemm_pack_f64)(const trek_gemm *g, double *packed);
/* Compute the product with packed B on the calling thread; c_col must be 1, without bias and activation; workspace: m
 * k elements. An element's bits do not depend on m. */
void TREK_ISA_NAME(trek_gemm_packed_f32)(const trek_gemm *g, const float *packed, float *workspace);
void TREK_ISA_NAME(trek_gemm_packed_f64)(const trek_gemm *g, const double *packed, double *workspace);

#endif
