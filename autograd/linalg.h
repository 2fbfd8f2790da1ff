/* SPDX-License-Identifier: Apache-2.0 */
/* Sums of products by labels, products of vectors and matrices, distances. Lifetimes, NULL, broadcasting, promotion and
 * errors as in autograd/ops.h; formulas, names and defaults are PyTorch's. */
#ifndef TREK_AUTOGRAD_LINALG_H
#define TREK_AUTOGRAD_LINALG_H

#include "autograd/var.h"

TREK_BEGIN

/* -- sums of products -- */
/* As torch.einsum: a letter for each dimension of each of `count` operands ("bij,bjk->bik"), `...` for those that broadcast. A
 * letter twice in one operand takes its diagonal; letters that are not in the output are summed over; without "->" the output
 * is the ellipsis and the letters that stand once, A to Z before a to z. Sizes of 1 broadcast. Of several operands the two
 * whose product takes the fewest multiplications come first. What is summed over in two operands is one batched matmul, so of
 * one dtype (DTYPE) and not of bool. ARGUMENT: an equation that does not fit. UNSUPPORTED: more than 8 dimensions on the way. */
TREK_API trek_var *trek_einsum(const char *equation, trek_var *const *list, int count);
/* Sums over dims_x[k] of x together with dims_y[k] of y; trek_dims_none(): all products. */
TREK_API trek_var *trek_tensordot(trek_var *x, trek_var *y, trek_dims_list dims_x, trek_dims_list dims_y);
TREK_API trek_var *trek_inner(trek_var *x, trek_var *y); /* over the last dimension of both; a scalar multiplies */
TREK_API trek_var *trek_outer_product(trek_var *x, trek_var *y); /* of vectors; torch.outer */
TREK_API trek_var *trek_dot(trek_var *x, trek_var *y);   /* of vectors as long, of one dtype */
TREK_API trek_var *trek_vdot(trek_var *x, trek_var *y);  /* the same: there are no complex numbers */
/* Each element of x times y, as blocks; the input with fewer dimensions gets some in front. UNSUPPORTED: more than 4. */
TREK_API trek_var *trek_kron(trek_var *x, trek_var *y);
/* beta x + alpha (y z), matrices, or batches [B, ., .] of one size each; x broadcasts. beta = 0: x is not looked at. Of
 * 16 bits the sum is rounded once. ARGUMENT: numbers with fractions beside integers. */
TREK_API trek_var *trek_addmm(trek_var *x, trek_var *y, trek_var *z, double beta, double alpha);
TREK_API trek_var *trek_baddbmm(trek_var *x, trek_var *y, trek_var *z, double beta, double alpha);
TREK_API trek_var *trek_trace(trek_var *x); /* of a matrix; integers and bool give i64 */
/* The cross product along dim, which has 3 elements; one dtype (DTYPE), as many dimensions of both. */
TREK_API trek_var *trek_cross(trek_var *x, trek_var *y, int dim);

/* -- distances -- */
/* The p-norms (p >= 0) of the differences of each row of x [..., P, M] and of y [..., R, M], floating dtypes: [..., P, R]. With
 * p = 2 and more than 25 rows they come from a product of matrices, as PyTorch's do by default, which loses digits where rows
 * are close; otherwise all differences are in memory together while gradients are wanted. Gradients are 0 at a distance of 0; of
 * p = infinity equal largest differences share them (PyTorch gives all of it to each). Second derivatives are taken where PyTorch
 * has none. */
TREK_API trek_var *trek_cdist(trek_var *x, trek_var *y, double p);
/* Those of the rows of x [N, M], each pair once: [N (N - 1) / 2]. */
TREK_API trek_var *trek_pdist(trek_var *x, double p);

/* -- linear algebra: by a LAPACK of the machine -- */
/* Matrices [..., m, n] of f32 or f64 (DTYPE) whose leading dimensions are a batch; one thread, matrix by matrix. What lies on a
 * GPU is moved to the host for it and the results back. UNSUPPORTED: no LAPACK is installed (liblapack3, OpenBLAS or oneMKL,
 * opened at the first call; TREK_LAPACK names another one). ARGUMENT: a matrix that is singular, not positive definite, or not
 * finite where that ends LAPACK's way. Gradients of all orders, by solutions and products; of an infinite one where singular or
 * eigenvalues are equal, in PyTorch, too. */
TREK_API trek_var *trek_solve(trek_var *a, trek_var *b);
    /* a x = b; b [..., n, k], or a vector for each matrix; batches broadcast */
TREK_API trek_var *trek_solve_right(trek_var *a, trek_var *b); /* x a = b; b [..., k, n]; batches broadcast */
TREK_API trek_var *trek_inv(trek_var *a);
/* a x = b, or x a = b (right), of the lower or upper triangle; unit: its diagonal counts as ones. A 0 there gives infinities. */
TREK_API trek_var *trek_solve_triangular(trek_var *a, trek_var *b, bool upper, bool right, bool unit);
/* The triangle L, a = L L^T, or its transpose (upper); of a the same triangle is read. */
TREK_API trek_var *trek_cholesky(trek_var *a, bool upper);
TREK_API trek_var *trek_cholesky_solve(trek_var *b, trek_var *factor, bool upper);
/* b [..., n, k]; the gradient is 0 where the factor is not read (PyTorch: it is not) */
/* The reduced factors, the smaller side k: returns Q [m, k], R [k, n] through *r (may be NULL, as below; NULL on failure). */
TREK_API trek_var *trek_qr(trek_var *a, trek_var **r);
/* Factorises matrices [m, n], which may be singular, as a = P L U. It returns the permutation P [m, m], a constant, and writes to
 * *l the lower triangle [m, k], whose diagonal is ones, and to *u the upper triangle [k, n], where k is the smaller side; either
 * may be NULL. The gradient of a singular matrix is infinite. */
TREK_API trek_var *trek_lu(trek_var *a, trek_var **l, trek_var **u);
/* U [m, k], through *s the singular values in falling order [k], through *vh V^T [k, n]. Signs of pairs of vectors are the
 * library's. */
TREK_API trek_var *trek_svd(trek_var *a, trek_var **s, trek_var **vh);
TREK_API trek_var *trek_svdvals(trek_var *a);
/* The same with square orthogonal factors: Q [m, m] and R [m, n]; U [m, m] and V^T [n, n]. The vectors that complete the reduced
 * factors are some orthonormal basis of the complement; they have no gradient. */
TREK_API trek_var *trek_qr_complete(trek_var *a, trek_var **r);
TREK_API trek_var *trek_svd_full(trek_var *a, trek_var **s, trek_var **vh);
/* Of symmetric matrices, whose lower triangle is read: eigenvalues in rising order [n], through *vectors [n, n], as columns. The
 * gradient is symmetric. */
TREK_API trek_var *trek_eigh(trek_var *a, trek_var **vectors);
TREK_API trek_var *trek_eigvalsh(trek_var *a);
TREK_API trek_var *trek_det(trek_var *a);                        /* with gradients of singular matrices */
TREK_API trek_var *trek_slogdet(trek_var *a, trek_var **logabsdet);
    /* the sign, without a gradient; a singular one: ARGUMENT in backward */
TREK_API trek_var *trek_logdet(trek_var *a);                     /* NaN where the determinant is negative */
/* Of a matrix over its last two dimensions, as torch.linalg.matrix_norm: the root of the sum of squares, the sum of the singular
 * values, the largest (or smallest) of these, of the sums of columns, of the sums of rows. Any floating dtype, but where singular
 * values are asked for, which LAPACK makes. SHAPE: the smallest of none; the largest of none is 0. Gradients of the sum of
 * singular values that are 0, and of equal ones, are some of those that fit. */
typedef enum trek_matrix_order {
    TREK_NORM_FRO,
    TREK_NORM_NUC,
    TREK_NORM_2,
    TREK_NORM_2_LEAST,
    TREK_NORM_1,
    TREK_NORM_1_LEAST,
    TREK_NORM_INF,
    TREK_NORM_INF_LEAST
} trek_matrix_order;
TREK_API trek_var *trek_matrix_norm(trek_var *a, trek_matrix_order order, bool keepdim);
/* Singular values count as 0 up to the largest times max(m, n) times the dtype's precision. */
TREK_API trek_var *trek_pinv(trek_var *a);
TREK_API trek_var *trek_lstsq(trek_var *a, trek_var *b); /* pinv(a) b, b [..., m, k]: the shortest of the best solutions */
TREK_API trek_var *trek_matrix_rank(trek_var *a);        /* i64; no gradient */
/* The same, but singular values count as 0 if they are at most atol or at most rtol (rcond) times the largest one. An rtol below
 * 0 stands for the default above, or for 0 if atol is above 0. ARGUMENT: a tolerance is not finite; atol is below 0. */
TREK_API trek_var *trek_pinv_with(trek_var *a, double rtol, double atol);
TREK_API trek_var *trek_lstsq_with(trek_var *a, trek_var *b, double rcond);
TREK_API trek_var *trek_matrix_rank_with(trek_var *a, double rtol, double atol);
/* The exponential I + a + a^2 / 2 + ... of square matrices of any floating dtype, computed by scaling and squaring of a Taylor
 * polynomial (Higham 2005). It is made of products alone, so it runs on any device and has gradients of all orders; a GPU is
 * waited for. 16-bit matrices are computed in f32. ARGUMENT: an element is not finite.
 */
TREK_API trek_var *trek_matrix_exp(trek_var *a);
TREK_API trek_var *trek_matrix_power(trek_var *a, int64_t n); /* any floating dtype where n >= 0; below 0 of the inverse */

TREK_END

#endif
