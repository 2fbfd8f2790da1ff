/* SPDX-License-Identifier: Apache-2.0 */
/* Factorisations by recursion on halves of a matrix, so that nearly all work is in matrix products (Toledo, "Locality of
 * reference in LU decomposition with partial pivoting", SIAM J. Matrix Anal. Appl. 1997; Gustavson, IBM J. Res. Dev. 1997). They
 * serve where the machine's LAPACK is the reference, which multiplies without regard to caches. Arguments are those of
 * tensor/lapack.h, with a leading dimension each. */
#ifndef TREK_TENSOR_CPU_PRODUCTS_FACTORS_H
#define TREK_TENSOR_CPU_PRODUCTS_FACTORS_H

#include <stdint.h>

#include "tensor/cpu/products/gemm.h"
#include "tensor/types.h"

/* Computes a product with the instruction set in use. It fails only with MEMORY. */
trek_status trek_factors_product(trek_dtype dtype, const trek_gemm *g);

/* Return 0, the number (from 1 on) of the first pivot that is zero or not positive, or -1 without memory. */
int trek_factors_lu(trek_dtype dtype, int64_t m, int64_t n, void *a, int64_t lda, int *pivots);
/* The part above the diagonal is left with any values. */
int trek_factors_cholesky(trek_dtype dtype, int64_t n, void *a, int64_t lda);
int trek_factors_triangular(trek_dtype dtype, bool upper, bool unit, int64_t n, int64_t k, const void *a, int64_t lda, void *b,
                            int64_t ldb);
int trek_factors_solve(trek_dtype dtype, int64_t n, int64_t k, void *a, int *pivots, void *b);

#endif
