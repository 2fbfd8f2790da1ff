/* SPDX-License-Identifier: Apache-2.0 */
/* Factorisations on the tape, for matrices [..., m, n] in f32 or f64 on the CPU with equal batch shapes, where LAPACK
 * is available. The public functions (linalg.c) ensure these conditions. */
#ifndef TREK_AUTOGRAD_FACTORISE_H
#define TREK_AUTOGRAD_FACTORISE_H

#include "autograd/function.h"

trek_var *trek_factor_eye(const trek_var *x, int64_t n); /* in x's dtype */
trek_var *trek_factor_solve(trek_var *a, trek_var *b);
trek_var *trek_factor_inv(trek_var *a);
trek_var *trek_factor_triangular(trek_var *a, trek_var *b, bool upper, bool unit);
trek_var *trek_factor_cholesky(trek_var *a);
trek_status trek_factor_qr(trek_var *a, trek_var **q_and_r); /* m >= n */
trek_status trek_factor_lu(trek_var *a, trek_var **both_and_p); /* L with a unit diagonal, and U, in one matrix */
trek_status trek_factor_svd(trek_var *a, trek_var **s_u_vh);
trek_var *trek_factor_svdvals(trek_var *a);
trek_status trek_factor_eigh(trek_var *a, trek_var **values_and_vectors);
trek_var *trek_factor_eigvalsh(trek_var *a);
trek_var *trek_factor_det(trek_var *a);
trek_status trek_factor_slogdet(trek_var *a, trek_var **sign_and_log);
trek_var *trek_factor_pinv(trek_var *a, double rtol, double atol);
/* Returns a mask of the singular values of a that count as 0. A value counts as 0 if it is at most atol, or at most rtol
 * times the largest one. If rtol is negative, the larger side of a times the precision of its dtype is used instead, or 0
 * if atol is positive. */
trek_var *trek_factor_negligible(const trek_var *a, trek_var *s, double rtol, double atol);

#endif
