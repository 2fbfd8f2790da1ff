/* SPDX-License-Identifier: Apache-2.0 */
/* Sums of products by labels, products of vectors and matrices, distances, and linear algebra. Lifetimes, NULL, broadcasting,
 * promotion and errors are as in autograd/ops.h, which includes this header. Formulas, names and defaults are PyTorch's. */
#ifndef TREK_AUTOGRAD_LINALG_H
#define TREK_AUTOGRAD_LINALG_H

#include "autograd/var.h"

TREK_BEGIN

/* -- sums of products -- */
/* Computes sums of products by labels, as torch.einsum. The equation has a letter for each dimension of each of `count` operands
 * ("bij,bjk->bik"), and `...` for dimensions that broadcast.
 *
 * A letter that occurs twice in one operand takes its diagonal. Letters that are not in the output are summed over. Without "->"
 * the output is the ellipsis and the letters that occur once, A to Z before a to z. Sizes of 1 broadcast. With several operands,
 * the two whose product needs the fewest multiplications are multiplied first. Sums over a letter of two operands are one batched
 * matmul, so both have one dtype, not bool; otherwise it fails with DTYPE.
 *
 * Fails with ARGUMENT if the equation does not fit, and with UNSUPPORTED if an intermediate product has more than 8
 * dimensions. */
TREK_API trek_var *trek_einsum(const char *equation, trek_var *const *list, int count);
/* Computes sums of products of x and y over dimension dims_x[k] of x together with dims_y[k] of y. With trek_dims_none() it
 * returns all products. */
TREK_API trek_var *trek_tensordot(trek_var *x, trek_var *y, trek_dims_list dims_x, trek_dims_list dims_y);
/* Computes sums of products of x and y over the last dimension of both. If one of them is a scalar it multiplies the other. */
TREK_API trek_var *trek_inner(trek_var *x, trek_var *y);
/* Computes the matrix of the products of two vectors, as torch.outer. */
TREK_API trek_var *trek_outer_product(trek_var *x, trek_var *y);
/* Computes the sum of the products of two vectors of one size and one dtype, as torch.dot and torch.vdot. */
TREK_API trek_var *trek_dot(trek_var *x, trek_var *y);
/* Computes the Kronecker product: each element of x, multiplied by y, is a block of the result. The input with fewer dimensions
 * gets further ones in front. Fails with UNSUPPORTED if an input has more than four dimensions. */
TREK_API trek_var *trek_kron(trek_var *x, trek_var *y);
/* Computes beta x + alpha (y z) for matrices y and z. x broadcasts, and is ignored if beta is 0. All have one dtype. For 16-bit
 * dtypes the sum is rounded once. Fails with ARGUMENT if the dtype is an integer and beta or alpha has a fraction. */
TREK_API trek_var *trek_addmm(trek_var *x, trek_var *y, trek_var *z, double beta, double alpha);
/* Computes beta x + alpha (y z) for batches of matrices y and z [B, ., .] of one size each. Details and errors are those of
 * trek_addmm. */
TREK_API trek_var *trek_baddbmm(trek_var *x, trek_var *y, trek_var *z, double beta, double alpha);
/* Computes the sum of the diagonal of a matrix. Integers and bool give i64. */
TREK_API trek_var *trek_trace(trek_var *x);
/* Computes the cross product along dim, which has 3 elements. Both inputs have the same number of dimensions and one dtype;
 * otherwise it fails with SHAPE or DTYPE. */
TREK_API trek_var *trek_cross(trek_var *x, trek_var *y, int dim);

/* -- distances -- */
/* Computes the p-norm (p >= 0) of the difference of each row of x [..., P, M] and each row of y [..., R, M]: [..., P, R]. Dtypes:
 * floating, one of both.
 *
 * With p = 2 and more than 25 rows it uses a product of matrices, as PyTorch does by default, which loses digits if rows are
 * close to each other. Otherwise all differences are in memory at once while gradients are recorded. Gradients are 0 at a
 * distance of 0. With p = infinity the largest differences share the gradient if they are equal (PyTorch gives all of it to
 * each). Second derivatives exist (PyTorch has none). Fails with ARGUMENT if p is negative. */
TREK_API trek_var *trek_cdist(trek_var *x, trek_var *y, double p);
/* Computes the p-norm of the difference of each pair of rows of x [N, M], each pair once: [N (N - 1) / 2]. Gradients and errors
 * are those of trek_cdist. */
TREK_API trek_var *trek_pdist(trek_var *x, double p);

/* -- linear algebra by the machine's LAPACK. Matrices [..., m, n] are f32 or f64 (otherwise DTYPE), and their leading dimensions
 *    are a batch, which is computed matrix by matrix on one thread. Tensors on a GPU are moved to the host, and results back.
 *    Functions fail with UNSUPPORTED if no LAPACK is installed (liblapack3, OpenBLAS or oneMKL, opened at the first call;
 *    TREK_LAPACK names another one), or if a matrix has more than 2^20 rows or columns. They fail with ARGUMENT if a matrix is
 *    singular, not positive definite or not finite, where LAPACK needs it to be otherwise. Gradients of all orders exist and are
 *    computed by solutions and products. If singular values or eigenvalues are equal, gradients may be infinite, as in PyTorch.
 *    -- */
/* Solves a x = b for x. b is [..., n, k], or a vector for each matrix. Batches broadcast. */
TREK_API trek_var *trek_solve(trek_var *a, trek_var *b);
/* Solves x a = b for x. b is [..., k, n]. Batches broadcast. */
TREK_API trek_var *trek_solve_right(trek_var *a, trek_var *b);
/* Computes the inverse of square matrices. */
TREK_API trek_var *trek_inv(trek_var *a);
/* Solves a x = b or, if right is true, x a = b, with the lower or, if upper is true, the upper triangle of a. If unit is true the
 * diagonal counts as ones. A 0 on the diagonal gives infinities. */
TREK_API trek_var *trek_solve_triangular(trek_var *a, trek_var *b, bool upper, bool right, bool unit);
/* Computes the lower triangle L with a = L L^T or, if upper is true, its transpose. Only that triangle of a is read. */
TREK_API trek_var *trek_cholesky(trek_var *a, bool upper);
/* Solves a x = b for b [..., n, k] with the triangle that trek_cholesky returns for a. The triangle of factor that is not read
 * gets a gradient of 0 (PyTorch: another number). */
TREK_API trek_var *trek_cholesky_solve(trek_var *b, trek_var *factor, bool upper);
/* Factorises a = Q R in the reduced form, where k is the smaller side: returns Q [m, k] and writes R [k, n] to *r, which may be
 * NULL and gets NULL on failure. */
TREK_API trek_var *trek_qr(trek_var *a, trek_var **r);
/* Factorises matrices [m, n], which may be singular, as a = P L U. It returns the permutation P [m, m], a constant, and writes to
 * *l the lower triangle [m, k], whose diagonal is ones, and to *u the upper triangle [k, n], where k is the smaller side; either
 * may be NULL. The gradient of a singular matrix is infinite. */
TREK_API trek_var *trek_lu(trek_var *a, trek_var **l, trek_var **u);
/* Computes singular values and vectors in the reduced form, where k is the smaller side: returns U [m, k], and writes the
 * singular values [k] in falling order to *s and V^T [k, n] to *vh; either may be NULL. The signs of pairs of vectors are those
 * that LAPACK chooses. */
TREK_API trek_var *trek_svd(trek_var *a, trek_var **s, trek_var **vh);
/* Computes the singular values alone, in falling order. */
TREK_API trek_var *trek_svdvals(trek_var *a);
/* Factorises a = Q R with a square orthogonal Q: returns Q [m, m] and writes R [m, n] to *r. The vectors that complete the
 * reduced factor are some orthonormal basis of the complement; they have no gradient. */
TREK_API trek_var *trek_qr_complete(trek_var *a, trek_var **r);
/* Computes singular values and vectors with square orthogonal factors: returns U [m, m], and writes the singular values to *s and
 * V^T [n, n] to *vh. The vectors that complete the reduced factors are some orthonormal basis of the complement; they have no
 * gradient. */
TREK_API trek_var *trek_svd_full(trek_var *a, trek_var **s, trek_var **vh);
/* Computes the eigenvalues [n] of symmetric matrices in rising order, and writes the eigenvectors [n, n], as columns, to
 * *vectors, which may be NULL. Only the lower triangle is read. The gradient is symmetric. */
TREK_API trek_var *trek_eigh(trek_var *a, trek_var **vectors);
/* Computes the eigenvalues of symmetric matrices alone, in rising order. Only the lower triangle is read. */
TREK_API trek_var *trek_eigvalsh(trek_var *a);
/* Computes the determinant. Singular matrices have gradients, too. */
TREK_API trek_var *trek_det(trek_var *a);
/* Returns the sign of the determinant, which has no gradient, and writes the logarithm of its absolute value to *logabsdet, which
 * may be NULL. The backward pass of a singular matrix fails with ARGUMENT. */
TREK_API trek_var *trek_slogdet(trek_var *a, trek_var **logabsdet);
/* Computes the logarithm of the determinant. It is NaN where the determinant is negative. */
TREK_API trek_var *trek_logdet(trek_var *a);
/* Which norm trek_matrix_norm computes: FRO is the square root of the sum of the squares, and NUC the sum of the singular values.
 * 2, 1 and INF are the largest of the singular values, of the columns' sums of absolute values, and of the rows'. Each with LEAST
 * is the smallest instead of the largest. */
typedef enum trek_matrix_order {
    TREK_MATRIX_ORDER_FRO,
    TREK_MATRIX_ORDER_NUC,
    TREK_MATRIX_ORDER_2,
    TREK_MATRIX_ORDER_MINUS_2,
    TREK_MATRIX_ORDER_1,
    TREK_MATRIX_ORDER_MINUS_1,
    TREK_MATRIX_ORDER_INF,
    TREK_MATRIX_ORDER_MINUS_INF
} trek_matrix_order;
/* Computes the norm of the matrices in the last two dimensions, as torch.linalg.matrix_norm. Dtypes: floating; f32 and f64 if
 * singular values are needed. For an empty matrix, norms that are a largest value are 0, and norms that are a smallest value fail
 * with SHAPE. Where singular values are equal, or are 0 and summed, the gradient is one of several subgradients. */
TREK_API trek_var *trek_matrix_norm(trek_var *a, trek_matrix_order order, bool keepdim);
/* Computes the pseudoinverse. Singular values count as 0 if they are at most the largest one times max(m, n) times the dtype's
 * precision. */
TREK_API trek_var *trek_pinv(trek_var *a);
/* Computes pinv(a) b for b [..., m, k]: the shortest of the least-squares solutions. Singular values count as 0 as in
 * trek_pinv. */
TREK_API trek_var *trek_lstsq(trek_var *a, trek_var *b);
/* Counts the singular values that do not count as 0 (see trek_pinv), as i64. It has no gradient. */
TREK_API trek_var *trek_matrix_rank(trek_var *a);
/* Computes the pseudoinverse. Singular values count as 0 if they are at most atol, or at most rtol times the largest one. An rtol
 * below 0 stands for the default of trek_pinv, or for 0 if atol is above 0. Fails with ARGUMENT if a tolerance is not finite, or
 * if atol is below 0. */
TREK_API trek_var *trek_pinv_with(trek_var *a, double atol, double rtol);
/* Computes pinv(a) b, as trek_lstsq. Singular values count as 0 if they are at most rcond times the largest one. An rcond below 0
 * stands for the default of trek_pinv. Fails with ARGUMENT if rcond is not finite. */
TREK_API trek_var *trek_lstsq_with(trek_var *a, trek_var *b, double rcond);
/* Counts the singular values that do not count as 0, as i64. Tolerances and errors are those of trek_pinv_with. */
TREK_API trek_var *trek_matrix_rank_with(trek_var *a, double atol, double rtol);
/* Computes the exponential I + a + a^2 / 2 + ... of square matrices by scaling and squaring of a Taylor polynomial (Higham 2005).
 * It consists of products alone, so it runs on any device without LAPACK and has gradients of all orders. Dtypes: floating;
 * 16-bit matrices are computed in f32. The call synchronises with the GPU. Fails with ARGUMENT if an element is not finite. */
TREK_API trek_var *trek_matrix_exp(trek_var *a);
/* Computes a^n of square matrices. Dtypes: floating. A negative n takes powers of the inverse, which needs LAPACK and f32 or
 * f64. */
TREK_API trek_var *trek_matrix_power(trek_var *a, int64_t n);

TREK_END

#endif
