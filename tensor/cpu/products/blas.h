/* SPDX-License-Identifier: Apache-2.0 */
/* Large products in f32 and f64 by a BLAS library of the machine, if TREK_BLAS (or the option -Dblas=) names one. It
 * is opened at the first such product and computes on the thread that calls it: C is divided into slices, which
 * trek's threads process. The slices depend only on the shape, so that the number of threads changes no bit. */
#ifndef TREK_TENSOR_CPU_PRODUCTS_BLAS_H
#define TREK_TENSOR_CPU_PRODUCTS_BLAS_H

#include "tensor/cpu/products/gemm.h"

/* What is done after the sums of some rows and columns of C: bias, activation. */
typedef void (*trek_blas_finish)(const trek_gemm *g, int64_t row, int64_t col, int64_t rows, int64_t cols);

/* Computes C = A B or C + A B for operands of `dtype`; `finish` completes each slice (NULL: nothing to do). Returns
 * false, without any effect, if no library is requested or usable, and for what trek's own loops do better: small
 * products, other layouts. */
bool trek_blas_gemm(const trek_gemm *g, trek_dtype dtype, trek_blas_finish finish);

/* Returns whether a library is requested, usable or not. */
bool trek_blas_asked_for(void);

/* Opens a library by its name (openblas, mkl, blis) or file. Returns NULL, and why, on failure. */
void *trek_blas_open_library(const char *name, char *why, size_t size);

/* Makes sure that a library starts no threads. Returns what is wrong with it, or NULL; NULL also if it is not a
 * library that is `known` to start threads. */
const char *trek_blas_quiet(void *library, const char *prefix, bool *known);

#endif
