/* SPDX-License-Identifier: Apache-2.0 */
/* Factorisations by a LAPACK of the machine, which is opened at the first of them: what TREK_LAPACK names, else liblapack.so.3,
 * OpenBLAS or oneMKL. Matrices of f32 or f64 lie in memory column by column without gaps. Internal. */
#ifndef TREK_TENSOR_LAPACK_H
#define TREK_TENSOR_LAPACK_H

#include "tensor/types.h"

/* Whether there is one; UNSUPPORTED, naming `what` and what to install. */
bool trek_lapack_there(const char *what);

/* These give LAPACK's info: 0, the number of what is wrong with the matrix, below 0 also where memory ran out. */
/* a [n, n] becomes L and U, b [n, k] the solution; pivots: room for n. */
int trek_lapack_solve(trek_dtype dtype, int n, int k, void *a, int *pivots, void *b);
/* a [m, n] becomes L and U; pivots: room for the smaller of both. */
int trek_lapack_lu(trek_dtype dtype, int m, int n, void *a, int *pivots);
/* The lower triangle of a becomes L; the upper one stays. */
int trek_lapack_cholesky(trek_dtype dtype, int n, void *a);
/* b [n, k] becomes the solution for a triangle of a. */
void trek_lapack_triangular(trek_dtype dtype, bool upper, bool unit, int n, int k, const void *a, void *b);
/* a [m, n], m >= n, becomes Q; r [n, n] is R. */
int trek_lapack_qr(trek_dtype dtype, int m, int n, void *a, void *r);
/* a [m, n] is destroyed; u [m, k], s [k], vh [k, n], k the smaller one; u and vh NULL: s alone. */
int trek_lapack_svd(trek_dtype dtype, int m, int n, void *a, void *u, void *s, void *vh);
/* Of the lower triangle: a becomes the vectors, if wanted. */
int trek_lapack_eigh(trek_dtype dtype, int n, bool vectors, void *a, void *values);

#endif
