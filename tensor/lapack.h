/* SPDX-License-Identifier: Apache-2.0 */
/* Factorisations by a LAPACK library of the machine: what TREK_LAPACK names, otherwise liblapack.so.3, OpenBLAS or
 * oneMKL. The first factorisation opens it. If it is none of the fast ones, factorisations are computed by trek's own products,
 * and only small steps by the library. Matrices of f32 or f64 are column-major without gaps. */
#ifndef TREK_TENSOR_LAPACK_H
#define TREK_TENSOR_LAPACK_H

#include "tensor/types.h"

/* Returns whether it is available. Otherwise sets UNSUPPORTED, which names `what` and what to install. */
bool trek_lapack_there(const char *what);

/* These functions return LAPACK's info: 0, or the number of what is wrong with the matrix; below 0 also without
 * memory. */
/* Solves: a [n, n] becomes L and U, b [n, k] the solution; pivots has space for n. */
int trek_lapack_solve(trek_dtype dtype, int n, int k, void *a, int *pivots, void *b);
/* Factorises: a [m, n] becomes L and U; pivots has space for the smaller of both. */
int trek_lapack_lu(trek_dtype dtype, int m, int n, void *a, int *pivots);
/* Replaces the lower triangle of a by L; the upper one is left with any values. */
int trek_lapack_cholesky(trek_dtype dtype, int n, void *a);
/* Replaces b [n, k] by the solution for a triangle of a. */
int trek_lapack_triangular(trek_dtype dtype, bool upper, bool unit, int n, int k, const void *a, void *b);
/* Replaces a [m, n], m >= n, by Q; r [n, n] gets R. */
int trek_lapack_qr(trek_dtype dtype, int m, int n, void *a, void *r);
/* Computes u [m, k], s [k], vh [k, n], where k is the smaller size; a [m, n] is destroyed. u and vh NULL: only s. */
int trek_lapack_svd(trek_dtype dtype, int m, int n, void *a, void *u, void *s, void *vh);
/* Uses the lower triangle; a becomes the vectors, if wanted. */
int trek_lapack_eigh(trek_dtype dtype, int n, bool vectors, void *a, void *values);

#endif
