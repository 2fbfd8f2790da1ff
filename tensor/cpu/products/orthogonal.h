/* SPDX-License-Identifier: Apache-2.0 */
/* Factorisations by orthogonal matrices, whose work is mostly in trek's products: QR, eigenvalues of symmetric matrices, singular
 * values. They serve where the machine's LAPACK is the reference, which multiplies without regard to caches. Matrices are
 * column-major without gaps; arguments and results are those of tensor/lapack.h. */
#ifndef TREK_TENSOR_CPU_PRODUCTS_ORTHOGONAL_H
#define TREK_TENSOR_CPU_PRODUCTS_ORTHOGONAL_H

#include <stddef.h>
#include <stdint.h>

#include "tensor/types.h"

/* Routines of LAPACK for one precision that do no large products, and are used as they are: values and vectors of small
 * tridiagonal and bidiagonal matrices, and what divide and conquer needs to join two of them. */
typedef struct trek_orthogonal_routines {
    void (*steqr)(const char *job, const int *n, void *d, void *e, void *z, const int *ldz, void *work, int *info, size_t length);
    void (*sterf)(const int *n, void *d, void *e, int *info);
    void (*laed2)(int *k, const int *n, const int *n1, void *d, void *q, const int *ldq, int *indxq, void *rho, void *z,
                  void *dlamda,
                  void *w, void *q2, int *indx, int *indxc, int *indxp, int *coltyp, int *info);
    void (*laed4)(const int *n, const int *i, const void *d, const void *z, void *delta, const void *rho, void *value, int *info);
    void (*lamrg)(const int *n1, const int *n2, const void *a, const int *step1, const int *step2, int *index);
    void (*lasdq)(const char *half, const int *sqre, const int *n, const int *ncvt, const int *nru, const int *ncc, void *d,
                  void *e,
                  void *vt, const int *ldvt, void *u, const int *ldu, void *c, const int *ldc, void *work, int *info,
                  size_t length);
    void (*lasd2)(const int *nl, const int *nr, const int *sqre, int *k, void *d, void *z, const void *alpha, const void *beta,
                  void *u,
                  const int *ldu, void *vt, const int *ldvt, void *dsigma, void *u2, const int *ldu2, void *vt2, const int *ldvt2,
                  int *idxp, int *idx, int *idxc, int *idxq, int *coltyp, int *info);
    void (*lasd4)(const int *n, const int *i, const void *d, const void *z, void *delta, const void *rho, void *sigma, void *work,
                  int *info);
} trek_orthogonal_routines;

/* Returns 0, or -1 without memory. */
int trek_orthogonal_qr(trek_dtype dtype, int64_t m, int64_t n, void *a, void *r);
/* These return what a routine refused, or 1 for numbers that are not finite. */
int trek_orthogonal_eigh(const trek_orthogonal_routines *routines, trek_dtype dtype, int64_t n, bool vectors, void *a,
                         void *values);
int trek_orthogonal_svd(const trek_orthogonal_routines *routines, trek_dtype dtype, int64_t m, int64_t n, void *a, void *u,
                        void *s,
                        void *vh);

#endif
