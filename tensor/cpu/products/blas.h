/* SPDX-License-Identifier: Apache-2.0 */
/* Large products in f32 and f64 by a BLAS of the machine, where TREK_BLAS (else the option -Dblas=) names one. It is opened at
 * the first such product and computes on the thread that calls it: C is cut into slices, which trek's threads take. They
 * depend on the shape only, so that the number of threads changes no bit. */
#ifndef TREK_TENSOR_CPU_PRODUCTS_BLAS_H
#define TREK_TENSOR_CPU_PRODUCTS_BLAS_H

#include "tensor/cpu/products/gemm.h"

/* What follows the sums of some rows and columns of C: bias, activation. */
typedef void (*trek_blas_finish)(const trek_gemm *g, int64_t row, int64_t col, int64_t rows, int64_t cols);

/* C = A B or C + A B for operands of `dtype`, each slice ended by `finish` (NULL: by nothing). False, with nothing done, where no
 * library is wanted or usable, and for what our own loops are for: small products, other layouts. */
bool trek_blas_gemm(const trek_gemm *g, trek_dtype dtype, trek_blas_finish finish);

/* A library by its name (openblas, mkl, blis) or file; NULL and why. */
void *trek_blas_open_library(const char *name, char *why, size_t size);

/* Sees to it that a library starts no threads. What is wrong with it; NULL: nothing, or it is none that is `known` to have some.
 */
const char *trek_blas_quiet(void *library, const char *prefix, bool *known);

#endif
