/* SPDX-License-Identifier: Apache-2.0 */
/* Matrix factorisations on the tape: LAPACK forward, and products and solutions backward (Giles 2008, and PyTorch's
 * formulas), which are again ops. */
#include "autograd/factorise.h"

#include <math.h>

#include "autograd/ops.h"
#include "autograd/tape_internal.h"
#include "tensor/lapack.h"

/* What a node keeps in addition to its variables. */
typedef struct settings {
    bool upper, unit, vectors;
    bool singular; /* for a determinant: one of them is 0 */
} settings;

/* --- small things that the formulas need ------------------------------------------------------------ */

static trek_var *turned(trek_var *x) { return trek_transpose(x, -2, -1); }
static trek_var *product(trek_var *x, trek_var *y) { return trek_matmul(x, y); }
static trek_var *scaled_columns(trek_var *x, trek_var *s) { return trek_mul(x, trek_unsqueeze(s, -2)); }
static trek_var *scaled_rows(trek_var *x, trek_var *s) { return trek_mul(x, trek_unsqueeze(s, -1)); }
/* Returns x + y, either of which may be missing. */
static trek_var *plus(trek_var *x, trek_var *y) { return x && y ? trek_add(x, y) : x ? x : y; }

trek_var *trek_factor_eye(const trek_var *x, int64_t n)
{
    trek_tensor *eye = trek_tensor_eye(n, trek_var_dtype(x), trek_var_device(x));
    return eye ? trek_var_from(eye) : NULL;
}

static trek_var *diagonal_of(trek_var *x) { return x ? trek_mul(x, trek_factor_eye(x, trek_var_size(x, -1))) : NULL; }
static trek_var *as_diagonal(trek_var *s) { return s ? scaled_rows(trek_factor_eye(s, trek_var_size(s, -1)), s) : NULL; }
static trek_var *skew(trek_var *x) { return trek_sub(x, turned(x)); }

/* Computes x_ij / (s_j - s_i), with 0 on the diagonal. */
static trek_var *over_differences(trek_var *x, trek_var *s)
{
    trek_var *apart = trek_sub(trek_unsqueeze(s, -2), trek_unsqueeze(s, -1));
    trek_var *eye = s ? trek_factor_eye(s, trek_var_size(s, -1)) : NULL;
    return trek_mul(trek_div(x, trek_add(apart, eye)), trek_add_scalar(trek_neg(eye), 1));
}

/* --- forward: columns one behind the other ------------------------------------------------------------ */

/* Returns a copy whose matrices are stored column by column. */
static trek_tensor *columns_of(trek_var *x)
{
    trek_var *copy = trek_clone(turned(x));
    return copy ? copy->data : NULL;
}

/* Returns a new tensor [..., cols, rows]: for each of x's matrices, a matrix [rows, cols] stored column by column. */
static trek_tensor *new_columns(const trek_var *x, int64_t rows, int64_t cols)
{
    trek_shape shape = trek_var_shape(x);
    shape.sizes[shape.ndim - 2] = cols;
    shape.sizes[shape.ndim - 1] = rows;
    trek_tensor *made = trek_tensor_empty(shape, trek_var_dtype(x), trek_var_device(x));
    trek_var *var = made ? trek_var_from(made) : NULL; /* belongs to the scope */
    return var ? var->data : NULL;
}

/* The same for vectors [..., n], or for numbers. */
static trek_tensor *new_vectors(const trek_var *x, int64_t n)
{
    trek_shape shape = trek_var_shape(x);
    shape.ndim -= n < 0 ? 2 : 1;
    if (n >= 0)
        shape.sizes[shape.ndim - 1] = n;
    trek_tensor *made = trek_tensor_empty(shape, trek_var_dtype(x), trek_var_device(x));
    trek_var *var = made ? trek_var_from(made) : NULL;
    return var ? var->data : NULL;
}

static trek_var *as_rows(trek_tensor *columns) { return turned(trek_var_constant(columns)); }

static int64_t count_of(const trek_var *x)
{
    int64_t count = 1;
    for (int d = 0; d < trek_var_ndim(x) - 2; d++)
        count *= trek_var_size(x, d);
    return count;
}

/* Returns matrix k of a contiguous tensor of matrices with this many elements. */
static void *at(const trek_tensor *t, int64_t k, int64_t elements)
{
    return t->data + k * elements * trek_item_size[t->dtype];
}

static trek_status wrong(const char *name, const char *what, int64_t k, int info)
{
    if (trek_error_status() != TREK_OK)
        return trek_error_status();
    return trek_fail(TREK_ERR_ARGUMENT, "%s: matrix %lld: it %s (LAPACK: %d)", name, (long long)k, what, info);
}

/* --- solve: A X = B --------------------------------------------------------------------------------- */

static trek_status solve_forward(trek_function_context *context, trek_var *const *in, int n_in, trek_var **out, int n_out)
{
    (void)n_in, (void)n_out;
    int64_t n = trek_var_size(in[0], -1), k = trek_var_size(in[1], -1), count = count_of(in[0]);
    trek_tensor *a = columns_of(in[0]), *b = columns_of(in[1]);
    int *pivots = trek_alloc(((size_t)n + 1) * sizeof *pivots), info = 0;
    if (!a || !b || !pivots) {
        trek_free(pivots);
        return trek_error_status();
    }
    int64_t i = 0;
    for (; i < count && n > 0 && info == 0; i++)
        info = trek_lapack_solve((trek_dtype)a->dtype, (int)n, (int)k, at(a, i, n * n), pivots, at(b, i, n * k));
    trek_free(pivots);
    if (info != 0)
        return wrong("solve", "is singular", i - 1, info);
    out[0] = as_rows(b);
    return trek_save_for_backward(context, (trek_var *[]){ in[0], out[0] }, 2);
}

static trek_status solve_backward(trek_function_context *context, trek_var *const *grads, int n, trek_var **to, int n_in)
{
    (void)n, (void)n_in;
    trek_var *x = trek_saved(context, 1), *b = trek_factor_solve(turned(trek_saved(context, 0)), grads[0]);
    to[1] = b;
    if (trek_needs_grad(context, 0))
        to[0] = trek_neg(product(b, turned(x)));
    return trek_error_status();
}

static const trek_function solve_function = { .name = "solve", .forward = solve_forward, .backward = solve_backward };

trek_var *trek_factor_solve(trek_var *a, trek_var *b)
{
    return a && b ? trek_function_apply_one(&solve_function, NULL, (trek_var *[]){ a, b }, 2) : NULL;
}

/* --- the inverse --------------------------------------------------------------------------------------- */

static trek_status inv_forward(trek_function_context *context, trek_var *const *in, int n_in, trek_var **out, int n_out)
{
    (void)n_in, (void)n_out;
    trek_var *eye = trek_factor_eye(in[0], trek_var_size(in[0], -1));
    out[0] = eye ? trek_factor_solve(in[0], trek_expand(eye, trek_var_shape(in[0]))) : NULL;
    return out[0] ? trek_save_for_backward(context, out, 1) : trek_error_status();
}

static trek_status inv_backward(trek_function_context *context, trek_var *const *grads, int n, trek_var **to, int n_in)
{
    (void)n, (void)n_in;
    trek_var *y = turned(trek_saved(context, 0));
    to[0] = trek_neg(product(y, product(grads[0], y)));
    return trek_error_status();
}

static const trek_function inv_function = { .name = "inv", .forward = inv_forward, .backward = inv_backward };

trek_var *trek_factor_inv(trek_var *a) { return a ? trek_function_apply_one(&inv_function, NULL, &a, 1) : NULL; }

/* --- triangles: A X = B ----------------------------------------------------------------------------------- */

static trek_status triangular_forward(trek_function_context *context, trek_var *const *in, int n_in, trek_var **out, int n_out)
{
    (void)n_in, (void)n_out;
    const settings *s = trek_function_data(context);
    int64_t n = trek_var_size(in[0], -1), k = trek_var_size(in[1], -1), count = count_of(in[0]);
    trek_tensor *a = columns_of(in[0]), *b = columns_of(in[1]);
    int info = 0;
    if (!a || !b)
        return trek_error_status();
    for (int64_t i = 0; i < count && n > 0 && k > 0 && info == 0; i++)
        info = trek_lapack_triangular((trek_dtype)a->dtype, s->upper, s->unit, (int)n, (int)k, at(a, i, n * n), at(b, i, n * k));
    if (info != 0)
        return trek_error_status();
    out[0] = as_rows(b);
    return trek_save_for_backward(context, (trek_var *[]){ in[0], out[0] }, 2);
}

static trek_status triangular_backward(trek_function_context *context, trek_var *const *grads, int n, trek_var **to, int n_in)
{
    (void)n, (void)n_in;
    const settings *s = trek_function_data(context);
    trek_var *x = trek_saved(context, 1), *b = trek_factor_triangular(turned(trek_saved(context, 0)), grads[0], !s->upper,
                                                                      s->unit);
    to[1] = b;
    if (trek_needs_grad(context, 0)) {
        trek_var *whole = trek_neg(product(b, turned(x)));
        to[0] = s->upper ? trek_triu(whole, s->unit) : trek_tril(whole, -(int64_t)s->unit);
    }
    return trek_error_status();
}

static const trek_function triangular_function = { .name = "solve_triangular", .forward = triangular_forward,
                                                   .backward = triangular_backward, .free = trek_free };

static settings *new_settings(settings given)
{
    settings *made = trek_alloc(sizeof *made);
    if (made)
        *made = given;
    return made;
}

trek_var *trek_factor_triangular(trek_var *a, trek_var *b, bool upper, bool unit)
{
    settings *s = a && b ? new_settings((settings){ .upper = upper, .unit = unit }) : NULL;
    return s ? trek_function_apply_one(&triangular_function, s, (trek_var *[]){ a, b }, 2) : NULL;
}

/* --- Cholesky: A = L L^T -------------------------------------------------------------------------------------- */

static trek_status cholesky_forward(trek_function_context *context, trek_var *const *in, int n_in, trek_var **out, int n_out)
{
    (void)n_in, (void)n_out;
    int64_t n = trek_var_size(in[0], -1), count = count_of(in[0]), i = 0;
    trek_tensor *a = columns_of(in[0]);
    int info = 0;
    for (; a && i < count && n > 0 && info == 0; i++)
        info = trek_lapack_cholesky((trek_dtype)a->dtype, (int)n, at(a, i, n * n));
    if (info != 0)
        return wrong("cholesky", "is not positive definite", i - 1, info);
    out[0] = a ? trek_tril(as_rows(a), 0) : NULL;
    return out[0] ? trek_save_for_backward(context, out, 1) : trek_error_status();
}

static trek_status cholesky_backward(trek_function_context *context, trek_var *const *grads, int n, trek_var **to, int n_in)
{
    (void)n, (void)n_in;
    trek_var *l = trek_saved(context, 0), *half = trek_tril(product(turned(l), grads[0]), 0);
    half = trek_sub(half, trek_mul_scalar(diagonal_of(half), 0.5));
    trek_var *left = trek_factor_triangular(turned(l), half, true, false);
    trek_var *both = trek_factor_triangular(turned(l), turned(left), true, false); /* transposed */
    to[0] = trek_mul_scalar(trek_add(both, turned(both)), 0.5);
    return trek_error_status();
}

static const trek_function cholesky_function = { .name = "cholesky", .forward = cholesky_forward, .backward = cholesky_backward };

trek_var *trek_factor_cholesky(trek_var *a) { return a ? trek_function_apply_one(&cholesky_function, NULL, &a, 1) : NULL; }

/* --- QR of m >= n ------------------------------------------------------------------------------------------------ */

static trek_status qr_forward(trek_function_context *context, trek_var *const *in, int n_in, trek_var **out, int n_out)
{
    (void)n_in, (void)n_out;
    int64_t m = trek_var_size(in[0], -2), n = trek_var_size(in[0], -1), count = count_of(in[0]), i = 0;
    trek_tensor *q = columns_of(in[0]), *r = q ? new_columns(in[0], n, n) : NULL;
    int info = 0;
    for (; r && i < count && n > 0 && info == 0; i++)
        info = trek_lapack_qr((trek_dtype)q->dtype, (int)m, (int)n, at(q, i, m * n), at(r, i, n * n));
    if (info != 0)
        return wrong("qr", "has no factors", i - 1, info);
    out[0] = r ? as_rows(q) : NULL;
    out[1] = r ? as_rows(r) : NULL;
    return out[1] ? trek_save_for_backward(context, out, 2) : trek_error_status();
}

static trek_status qr_backward(trek_function_context *context, trek_var *const *grads, int n, trek_var **to, int n_in)
{
    (void)n, (void)n_in;
    trek_var *q = trek_saved(context, 0), *r = trek_saved(context, 1);
    trek_var *of_r = grads[1] ? product(r, turned(grads[1])) : NULL, *of_q = grads[0] ? product(turned(grads[0]), q) : NULL;
    trek_var *m = plus(of_r, of_q ? trek_neg(of_q) : NULL);
    trek_var *mirrored = trek_add(trek_tril(m, 0), turned(trek_tril(m, -1)));
    trek_var *whole = plus(grads[0], product(q, mirrored));
    to[0] = turned(trek_factor_triangular(r, turned(whole), true, false));
    return trek_error_status();
}

static const trek_function qr_function = { .name = "qr", .forward = qr_forward, .backward = qr_backward };

trek_status trek_factor_qr(trek_var *a, trek_var **q_and_r)
{
    return trek_function_apply(&qr_function, NULL, &a, 1, q_and_r, 2);
}

/* --- LU: A = P L U, L and U in one matrix --------------------------------------------------------------------------- */

/* Writes the matrix P [m, m] of k successive row exchanges, column by column. */
static void write_permutation(trek_dtype dtype, int m, int k, const int *pivots, void *p, int64_t *order)
{
    for (int r = 0; r < m; r++)
        order[r] = r;
    for (int r = 0; r < k; r++) {
        int64_t kept = order[r];
        order[r] = order[pivots[r] - 1];
        order[pivots[r] - 1] = kept;
    }
    for (int c = 0; c < m; c++)
        for (int r = 0; r < m; r++)
            if (dtype == TREK_F64)
                ((double *)p)[(int64_t)c * m + r] = r == order[c];
            else
                ((float *)p)[(int64_t)c * m + r] = r == order[c];
}

static trek_status lu_forward(trek_function_context *context, trek_var *const *in, int n_in, trek_var **out, int n_out)
{
    (void)n_in, (void)n_out;
    int64_t m = trek_var_size(in[0], -2), n = trek_var_size(in[0], -1), k = m < n ? m : n, count = count_of(in[0]), i = 0;
    trek_tensor *a = columns_of(in[0]), *p = a ? new_columns(in[0], m, m) : NULL;
    int *pivots = trek_alloc(((size_t)k + 1) * sizeof *pivots), info = 0;
    int64_t *order = trek_alloc(((size_t)m + 1) * sizeof *order);
    for (; p && pivots && order && i < count && info >= 0; i++) {
        if (k > 0)
            info = trek_lapack_lu((trek_dtype)a->dtype, (int)m, (int)n, at(a, i, m * n), pivots); /* above 0: singular */
        if (info >= 0)
            write_permutation((trek_dtype)a->dtype, (int)m, (int)k, pivots, at(p, i, m * m), order);
    }
    bool made = p && pivots && order;
    trek_free(pivots);
    trek_free(order);
    if (info < 0)
        return wrong("lu", "has no factors", i - 1, info);
    if (!made)
        return trek_error_status();
    out[0] = as_rows(a);
    out[1] = as_rows(p);
    return out[0] && out[1] ? trek_save_for_backward(context, out, 2) : trek_error_status();
}

/* For square factors, without P: L^-T (the part below the diagonal of L^T dL, and above it of dU U^T) U^-T. */
static trek_var *lu_square(trek_var *l, trek_var *u, trek_var *gl, trek_var *gu)
{
    trek_var *below = trek_tril(product(turned(l), trek_tril(gl, -1)), -1);
    trek_var *above = trek_triu(product(trek_triu(gu, 0), turned(u)), 0);
    trek_var *left = trek_factor_triangular(turned(l), trek_add(below, above), true, true);
    return turned(trek_factor_triangular(u, turned(left), true, false));
}

/* The part beyond the square, L2 = A2 U^-1 or U2 = L^-1 A2, is a solution. Its gradient goes to A2, and through it to
 * the square's factors. */
static trek_status lu_backward(trek_function_context *context, trek_var *const *grads, int n, trek_var **to, int n_in)
{
    (void)n, (void)n_in;
    trek_var *both = trek_saved(context, 0), *p = trek_saved(context, 1), *g = grads[0];
    if (!both || !p || !g)
        return trek_error_status();
    int64_t rows = trek_var_size(both, -2), cols = trek_var_size(both, -1), k = rows < cols ? rows : cols, more = rows - cols;
    int dim = more > 0 ? -2 : -1;
    trek_var *square = more ? trek_narrow(both, dim, 0, k) : both, *gl = more ? trek_narrow(g, dim, 0, k) : g, *gu = gl;
    trek_var *l = trek_add(trek_tril(square, -1), trek_factor_eye(both, k)), *u = trek_triu(square, 0), *rest = NULL;
    if (more) {
        trek_var *beyond = trek_narrow(both, dim, k, more > 0 ? more : -more),
                 *of = trek_narrow(g, dim, k, more > 0 ? more : -more);
        rest = more > 0 ? turned(trek_factor_triangular(u, turned(of), true, false))
                        : trek_factor_triangular(turned(l), of, true, true);
        if (more > 0)
            gu = trek_sub(gu, product(turned(beyond), rest));
        else
            gl = trek_sub(gl, product(rest, turned(beyond)));
    }
    trek_var *whole = lu_square(l, u, gl, gu);
    to[0] = product(p, rest ? trek_cat((trek_var *[]){ whole, rest }, 2, dim) : whole);
    return trek_error_status();
}

static const trek_function lu_function = { .name = "lu", .forward = lu_forward, .backward = lu_backward };

trek_status trek_factor_lu(trek_var *a, trek_var **both_and_p)
{
    return trek_function_apply(&lu_function, NULL, &a, 1, both_and_p, 2);
}

/* --- singular values ----------------------------------------------------------------------------------------------- */

static trek_status svd_forward(trek_function_context *context, trek_var *const *in, int n_in, trek_var **out, int n_out)
{
    (void)n_in;
    int64_t m = trek_var_size(in[0], -2), n = trek_var_size(in[0], -1), k = m < n ? m : n, count = count_of(in[0]), i = 0;
    bool vectors = n_out == 3;
    trek_tensor *a = columns_of(in[0]), *s = a ? new_vectors(in[0], k) : NULL;
    trek_tensor *u = s && vectors ? new_columns(in[0], m, k) : NULL, *vh = u ? new_columns(in[0], k, n) : NULL;
    if (!s || (vectors && !vh))
        return trek_error_status();
    int info = 0;
    for (; i < count && k > 0 && info == 0; i++)
        info = trek_lapack_svd((trek_dtype)a->dtype, (int)m, (int)n, at(a, i, m * n), vectors ? at(u, i, m * k) : NULL,
                               at(s, i, k),
                               vectors ? at(vh, i, k * n) : NULL);
    if (info != 0)
        return wrong("svd", "has no singular values that could be found; is it finite?", i - 1, info);
    out[0] = trek_var_constant(s);
    if (!vectors)
        return trek_error_status();
    out[1] = as_rows(u);
    out[2] = as_rows(vh);
    return out[1] && out[2] ? trek_save_for_backward(context, out, 3) : trek_error_status();
}

static trek_status svd_backward(trek_function_context *context, trek_var *const *grads, int n, trek_var **to, int n_in)
{
    (void)n, (void)n_in;
    trek_var *s = trek_saved(context, 0), *u = trek_saved(context, 1), *vh = trek_saved(context, 2), *inner = NULL;
    trek_var *gs = grads[0], *gu = grads[1], *gvh = grads[2], *outside = NULL;
    if (!s || !u || !vh)
        return trek_error_status();
    trek_var *squares = trek_square(s);
    int64_t k = trek_var_size(s, -1);
    if (gu)
        inner = scaled_columns(over_differences(skew(product(turned(u), gu)), squares), s);
    if (gvh)
        inner = plus(inner, scaled_rows(over_differences(skew(product(vh, turned(gvh))), squares), s));
    if (gs)
        inner = plus(inner, as_diagonal(gs));
    if (gu && trek_var_size(u, -2) > k)
        outside = product(scaled_columns(trek_sub(gu, product(u, product(turned(u), gu))), trek_reciprocal(s)), vh);
    if (gvh && trek_var_size(vh, -1) > k)
        outside = plus(outside, product(u, scaled_rows(trek_sub(gvh, product(product(gvh, turned(vh)), vh)),
                                                       trek_reciprocal(s))));
    to[0] = plus(product(u, product(inner, vh)), outside);
    return trek_error_status();
}

static const trek_function svd_function = { .name = "svd", .forward = svd_forward, .backward = svd_backward };

trek_status trek_factor_svd(trek_var *a, trek_var **s_u_vh) { return trek_function_apply(&svd_function, NULL, &a, 1, s_u_vh, 3); }

trek_var *trek_factor_svdvals(trek_var *a)
{
    trek_var *parts[3] = { NULL };
    if (trek_recording() && trek_var_requires_grad(a))
        return trek_factor_svd(a, parts) == TREK_OK ? parts[0] : NULL;
    return trek_function_apply_one(&svd_function, NULL, &a, 1);
}

/* --- eigenvalues of symmetric matrices ---------------------------------------------------------------------------------- */

static trek_status eigh_forward(trek_function_context *context, trek_var *const *in, int n_in, trek_var **out, int n_out)
{
    (void)n_in;
    int64_t n = trek_var_size(in[0], -1), count = count_of(in[0]), i = 0;
    trek_tensor *a = columns_of(in[0]), *values = a ? new_vectors(in[0], n) : NULL;
    int info = 0;
    for (; values && i < count && n > 0 && info == 0; i++)
        info = trek_lapack_eigh((trek_dtype)a->dtype, (int)n, n_out == 2, at(a, i, n * n), at(values, i, n));
    if (info != 0)
        return wrong("eigh", "has no eigenvalues that could be found; is it finite?", i - 1, info);
    out[0] = values ? trek_var_constant(values) : NULL;
    if (n_out == 1 || !values)
        return trek_error_status();
    out[1] = as_rows(a);
    return out[1] ? trek_save_for_backward(context, out, 2) : trek_error_status();
}

static trek_status eigh_backward(trek_function_context *context, trek_var *const *grads, int n, trek_var **to, int n_in)
{
    (void)n, (void)n_in;
    trek_var *values = trek_saved(context, 0), *v = trek_saved(context, 1), *inner = NULL;
    if (!values || !v)
        return trek_error_status();
    if (grads[1])
        inner = over_differences(trek_mul_scalar(skew(product(turned(v), grads[1])), 0.5), values);
    inner = plus(inner, as_diagonal(grads[0]));
    to[0] = product(v, product(inner, turned(v)));
    return trek_error_status();
}

static const trek_function eigh_function = { .name = "eigh", .forward = eigh_forward, .backward = eigh_backward };

trek_status trek_factor_eigh(trek_var *a, trek_var **values_and_vectors)
{
    return trek_function_apply(&eigh_function, NULL, &a, 1, values_and_vectors, 2);
}

trek_var *trek_factor_eigvalsh(trek_var *a)
{
    trek_var *parts[2] = { NULL };
    if (trek_recording() && trek_var_requires_grad(a))
        return trek_factor_eigh(a, parts) == TREK_OK ? parts[0] : NULL;
    return trek_function_apply_one(&eigh_function, NULL, &a, 1);
}

/* --- determinants ---------------------------------------------------------------------------------------------------------- */

static double element(const trek_tensor *t, int64_t i)
{
    return t->dtype == TREK_F64 ? ((const double *)t->data)[i] : (double)((const float *)t->data)[i];
}

static void set_element(trek_tensor *t, int64_t i, double value)
{
    if (t->dtype == TREK_F64)
        ((double *)t->data)[i] = value;
    else
        ((float *)t->data)[i] = (float)value;
}

/* Computes det, or its sign and the logarithm of its magnitude. */
static trek_status det_forward(trek_function_context *context, trek_var *const *in, int n_in, trek_var **out, int n_out)
{
    (void)n_in;
    settings *s = trek_function_data(context);
    int64_t n = trek_var_size(in[0], -1), count = count_of(in[0]);
    trek_tensor *a = columns_of(in[0]), *first = a ? new_vectors(in[0], -1) : NULL;
    trek_tensor *second = first && n_out == 2 ? new_vectors(in[0], -1) : NULL;
    int *pivots = trek_alloc(((size_t)n + 1) * sizeof *pivots);
    bool fine = pivots && first && (n_out == 1 || second);
    for (int64_t i = 0; fine && i < count; i++) {
        double det = 1, sign = 1, logarithm = 0;
        if (n > 0)
            trek_lapack_lu((trek_dtype)a->dtype, (int)n, (int)n, at(a, i, n * n), pivots);
        for (int64_t d = 0; d < n; d++) {
            double u = element(a, i * n * n + d * n + d) * (pivots[d] == d + 1 ? 1 : -1);
            det *= u;
            sign *= u > 0 ? 1 : u < 0 ? -1 : u;
            logarithm += log(fabs(u));
        }
        s->singular = s->singular || det == 0;
        set_element(first, i, n_out == 1 ? det : sign);
        if (second)
            set_element(second, i, logarithm);
    }
    trek_free(pivots);
    if (!fine)
        return trek_error_status();
    out[0] = trek_var_constant(first);
    if (second)
        out[1] = trek_var_constant(second);
    return trek_save_for_backward(context, (trek_var *[]){ in[0], out[0] }, 2);
}

/* Computes the matrix of cofactors, also where the determinant is 0: det U det V U diag(products of the other
 * singular values) V^T. */
static trek_var *cofactors(trek_var *a)
{
    trek_var *parts[3];
    if (!a || trek_factor_svd(a, parts) != TREK_OK)
        return NULL;
    trek_var *eye = trek_factor_eye(a, trek_var_size(a, -1));
    trek_var *others = trek_where(trek_cast(eye, TREK_BOOL), eye, trek_unsqueeze(parts[0], -2));
    trek_var *sign = trek_mul(trek_factor_det(trek_var_detach(parts[1])), trek_factor_det(trek_var_detach(parts[2])));
    trek_var *whole = product(parts[1], scaled_rows(parts[2], trek_prod(others, trek_dims(-1), false)));
    return trek_mul(whole, trek_unsqueeze(trek_unsqueeze(sign, -1), -1));
}

static trek_status det_backward(trek_function_context *context, trek_var *const *grads, int n, trek_var **to, int n_in)
{
    (void)n_in;
    const settings *s = trek_function_data(context);
    trek_var *a = trek_saved(context, 0), *grad = grads[n - 1];
    if (!grad) /* for the sign alone */
        return TREK_OK;
    if (n == 1 && s->singular) {
        to[0] = trek_mul(cofactors(a), trek_unsqueeze(trek_unsqueeze(grad, -1), -1));
        return trek_error_status();
    }
    grad = n == 1 ? trek_mul(grad, trek_saved(context, 1)) : grad;
    to[0] = trek_mul(turned(trek_factor_inv(a)), trek_unsqueeze(trek_unsqueeze(grad, -1), -1));
    return trek_error_status();
}

static const trek_function det_function = { .name = "det", .forward = det_forward, .backward = det_backward, .free = trek_free };
static const trek_function slogdet_function = { .name = "slogdet", .forward = det_forward, .backward = det_backward,
                                                .free = trek_free };

trek_var *trek_factor_det(trek_var *a)
{
    settings *s = a ? new_settings((settings){ 0 }) : NULL;
    return s ? trek_function_apply_one(&det_function, s, &a, 1) : NULL;
}

trek_status trek_factor_slogdet(trek_var *a, trek_var **sign_and_log)
{
    settings *s = new_settings((settings){ 0 });
    return s ? trek_function_apply(&slogdet_function, s, &a, 1, sign_and_log, 2) : trek_error_status();
}

/* --- the pseudo-inverse ------------------------------------------------------------------------------------------------------
 */

static trek_status pinv_forward(trek_function_context *context, trek_var *const *in, int n_in, trek_var **out, int n_out)
{
    (void)n_in, (void)n_out;
    const double *tolerances = trek_function_data(context);
    trek_var *parts[3];
    if (trek_factor_svd(in[0], parts) != TREK_OK)
        return trek_error_status();
    trek_var *tiny = trek_factor_negligible(in[0], parts[0], tolerances[0], tolerances[1]);
    trek_var *inverse = trek_masked_fill(trek_reciprocal(parts[0]), tiny, 0);
    out[0] = product(turned(parts[2]), scaled_rows(turned(parts[1]), inverse));
    return out[0] ? trek_save_for_backward(context, (trek_var *[]){ in[0], out[0] }, 2) : trek_error_status();
}

static trek_status pinv_backward(trek_function_context *context, trek_var *const *grads, int n, trek_var **to, int n_in)
{
    (void)n, (void)n_in;
    trek_var *a = trek_saved(context, 0), *p = trek_saved(context, 1), *g = turned(grads[0]);
    if (!a || !p)
        return trek_error_status();
    trek_var *pt = turned(p), *k, *sum;
    if (trek_var_size(a, -2) <= trek_var_size(a, -1)) {
        k = product(g, p);
        trek_var *kp = product(k, pt);
        sum = trek_sub(kp, turned(product(p, k)));
        sum = trek_sub(sum, product(product(a, p), kp));
        to[0] = trek_add(sum, product(product(pt, p), trek_sub(g, product(k, a))));
    } else {
        k = product(p, g);
        trek_var *pk = product(pt, k);
        sum = trek_sub(pk, turned(product(k, p)));
        sum = trek_sub(sum, product(product(pk, p), a));
        to[0] = trek_add(sum, product(product(trek_sub(g, product(a, k)), p), pt));
    }
    return trek_error_status();
}

static const trek_function pinv_function = { .name = "pinv", .forward = pinv_forward, .backward = pinv_backward,
                                             .free = trek_free };

trek_var *trek_factor_pinv(trek_var *a, double rtol, double atol)
{
    double *tolerances = a ? trek_alloc(2 * sizeof *tolerances) : NULL;
    if (!tolerances)
        return NULL;
    tolerances[0] = rtol;
    tolerances[1] = atol;
    return trek_function_apply_one(&pinv_function, tolerances, &a, 1);
}

trek_var *trek_factor_negligible(const trek_var *a, trek_var *s, double rtol, double atol)
{
    int64_t m = trek_var_size(a, -2), n = trek_var_size(a, -1);
    double eps = trek_var_dtype(a) == TREK_F64 ? 0x1p-52 : 0x1p-23;
    if (m == 0 || n == 0)
        return trek_le_scalar(s, 0);
    if (rtol < 0)
        rtol = atol > 0 ? 0 : eps * (double)(m > n ? m : n);
    return trek_le(s, trek_clamp(trek_mul_scalar(trek_max(s, trek_dims(-1), true), rtol), atol, INFINITY));
}
