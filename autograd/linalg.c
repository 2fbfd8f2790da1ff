/* SPDX-License-Identifier: Apache-2.0 */
/* The public functions of linear algebra: argument checks, batches that broadcast, and matrices on a GPU. */
#include <math.h>

#include "autograd/autocast.h"
#include "autograd/factorise.h"
#include "autograd/ops.h"
#include "autograd/tape_internal.h"
#include "tensor/lapack.h"

static trek_var *turned(trek_var *x) { return trek_transpose(x, -2, -1); }
static trek_var *host(trek_var *x)
{
    return x ? trek_to(x, trek_var_device(x).type == TREK_CPU ? trek_var_device(x) : trek_cpu(0)) : NULL;
}
static trek_var *home(trek_var *x, const trek_var *like)
{
    return x && trek_var_device(like).type != TREK_CPU ? trek_to(x, trek_var_device(like)) : x;
}

/* Checks for matrices in f32 or f64, of sizes that LAPACK can count, and for a LAPACK. Returns false on failure. */
static bool takes(const char *name, trek_var *x, bool square)
{
    if (!x)
        return trek_fail_missing(name, "input"), false;
    trek_dtype dtype = trek_var_dtype(x);
    char text[TREK_SHAPE_TEXT];
    if (dtype != TREK_F32 && dtype != TREK_F64)
        return trek_fail(TREK_ERR_DTYPE, "%s: matrices: dtype %s; must be f32 or f64", name, trek_dtype_name(dtype)), false;
    int n = trek_var_ndim(x);
    if (n < 2 || (square && trek_var_size(x, -1) != trek_var_size(x, -2)))
        return trek_fail(TREK_ERR_SHAPE, "%s: input: %s; must be %smatrices", name, trek_tensor_shape_text(x->data, text),
                         square ? "square " : ""),
               false;
    if (trek_var_size(x, -1) > 1 << 20 || trek_var_size(x, -2) > 1 << 20)
        return trek_fail(TREK_ERR_UNSUPPORTED, "%s: matrices: more than 2^20 rows or columns; must have fewer", name), false;
    return trek_lapack_there(name);
}

/* Gives both the batch dimensions that they broadcast to. Returns false on failure. */
static bool broadcast(const char *name, trek_var **a, trek_var **b)
{
    int na = trek_var_ndim(*a) - 2, nb = trek_var_ndim(*b) - 2, n = na > nb ? na : nb;
    trek_shape to_a = { .ndim = n + 2 }, to_b = { .ndim = n + 2 };
    for (int d = 1; d <= n; d++) {
        int64_t p = d <= na ? trek_var_size(*a, na - d) : 1, q = d <= nb ? trek_var_size(*b, nb - d) : 1;
        if (p != q && p != 1 && q != 1)
            return trek_fail(TREK_ERR_SHAPE, "%s: batches of %lld and %lld matrices; must be equal, or one of them 1", name,
                             (long long)p, (long long)q),
                   false;
        to_a.sizes[n - d] = to_b.sizes[n - d] = p == 1 ? q : p;
    }
    for (int d = 0; d < 2; d++) {
        to_a.sizes[n + d] = trek_var_size(*a, na + d);
        to_b.sizes[n + d] = trek_var_size(*b, nb + d);
    }
    *a = trek_expand(*a, to_a);
    *b = trek_expand(*b, to_b);
    return *a && *b;
}

static bool alike(const char *name, const trek_var *a, trek_var *b, int64_t rows)
{
    char texts[2][TREK_SHAPE_TEXT];
    if (trek_var_dtype(a) != trek_var_dtype(b))
        return trek_fail(TREK_ERR_DTYPE, "%s: matrices: dtypes %s and %s; must be equal", name,
                         trek_dtype_name(trek_var_dtype(a)), trek_dtype_name(trek_var_dtype(b))),
               false;
    if (trek_var_ndim(b) < 2 || trek_var_size(b, -2) != rows)
        return trek_fail(TREK_ERR_SHAPE, "%s: matrices: %s and %s do not fit together", name,
                         trek_tensor_shape_text(a->data, texts[0]), trek_tensor_shape_text(b->data, texts[1])),
               false;
    return true;
}

/* --- systems ------------------------------------------------------------------------------------- */

/* Returns whether b consists of vectors, one for each matrix. */
static bool of_vectors(const trek_var *a, const trek_var *b)
{
    bool vectors = trek_var_ndim(b) == trek_var_ndim(a) - 1;
    for (int d = 0; vectors && d < trek_var_ndim(b); d++)
        vectors = trek_var_size(a, d) == trek_var_size(b, d);
    return vectors || trek_var_ndim(b) == 1;
}

trek_var *trek_solve(trek_var *a, trek_var *b)
{
    if (!b)
        return trek_fail_missing("solve", "input"), NULL;
    if (!takes("solve", a, true))
        return NULL;
    bool vectors = of_vectors(a, b);
    trek_var *x = host(a), *y = host(vectors ? trek_unsqueeze(b, -1) : b);
    if (!x || !y || !alike("solve", x, y, trek_var_size(x, -1)) || !broadcast("solve", &x, &y))
        return NULL;
    trek_var *made = trek_factor_solve(x, y);
    return home(vectors ? trek_squeeze(made, -1) : made, a);
}

trek_var *trek_solve_right(trek_var *a, trek_var *b)
{
    if (!b)
        return trek_fail_missing("solve_right", "input"), NULL;
    if (!takes("solve_right", a, true) || (trek_var_ndim(b) < 2 && !alike("solve_right", a, b, -1)))
        return NULL;
    trek_var *x = host(turned(a)), *y = host(turned(b));
    if (!x || !y || !alike("solve_right", x, y, trek_var_size(x, -1)) || !broadcast("solve_right", &x, &y))
        return NULL;
    return home(turned(trek_factor_solve(x, y)), a);
}

trek_var *trek_inv(trek_var *a) { return takes("inv", a, true) ? home(trek_factor_inv(host(a)), a) : NULL; }

trek_var *trek_solve_triangular(trek_var *a, trek_var *b, bool upper, bool right, bool unit)
{
    static const char name[] = "solve_triangular";
    if (!b)
        return trek_fail_missing(name, "input"), NULL;
    if (!takes(name, a, true) || (trek_var_ndim(b) < 2 && !alike(name, a, b, -1)))
        return NULL;
    trek_var *x = host(right ? turned(a) : a), *y = host(right ? turned(b) : b);
    if (!x || !y || !alike(name, x, y, trek_var_size(x, -1)) || !broadcast(name, &x, &y))
        return NULL;
    trek_var *made = trek_factor_triangular(x, y, upper != right, unit);
    return home(right ? turned(made) : made, a);
}

trek_var *trek_cholesky(trek_var *a, bool upper)
{
    if (!takes("cholesky", a, true))
        return NULL;
    trek_var *made = trek_factor_cholesky(host(upper ? turned(a) : a));
    return home(upper ? turned(made) : made, a);
}

trek_var *trek_cholesky_solve(trek_var *b, trek_var *factor, bool upper)
{
    trek_var *first = trek_solve_triangular(upper ? turned(factor) : factor, b, false, false, false);
    return first ? trek_solve_triangular(upper ? factor : turned(factor), first, true, false, false) : NULL;
}

/* --- factors --------------------------------------------------------------------------------------- */

trek_var *trek_qr(trek_var *a, trek_var **r)
{
    trek_var *parts[2] = { NULL }, *x = takes("qr", a, false) ? host(a) : NULL;
    if (r)
        *r = NULL;
    if (!x)
        return NULL;
    int64_t m = trek_var_size(x, -2), n = trek_var_size(x, -1);
    trek_var *square = m < n ? trek_narrow(x, -1, 0, m) : x;
    if (!square || trek_factor_qr(square, parts) != TREK_OK)
        return NULL;
    if (m < n) /* Q applied to the other columns */
        parts[1] = trek_cat((trek_var *[]){ parts[1], trek_matmul(turned(parts[0]), trek_narrow(x, -1, m, n - m)) }, 2, -1);
    trek_var *made = home(parts[1], a), *q = made ? home(parts[0], a) : NULL;
    if (r)
        *r = q ? made : NULL;
    return q;
}

trek_var *trek_lu(trek_var *a, trek_var **l, trek_var **u)
{
    trek_var *parts[2] = { NULL }, *x = takes("lu", a, false) ? host(a) : NULL;
    if (l)
        *l = NULL;
    if (u)
        *u = NULL;
    if (!x || trek_factor_lu(x, parts) != TREK_OK)
        return NULL;
    int64_t m = trek_var_size(x, -2), n = trek_var_size(x, -1), k = m < n ? m : n;
    trek_var *p = home(trek_var_detach(parts[1]), a), *ones = trek_narrow(trek_factor_eye(x, m), -1, 0, k);
    trek_var *lower = p ? home(trek_add(trek_tril(trek_narrow(parts[0], -1, 0, k), -1), ones), a) : NULL;
    trek_var *upper = lower ? home(trek_triu(trek_narrow(parts[0], -2, 0, k), 0), a) : NULL;
    if (l)
        *l = upper ? lower : NULL;
    if (u)
        *u = upper;
    return upper ? p : NULL;
}

trek_var *trek_svd(trek_var *a, trek_var **s, trek_var **vh)
{
    trek_var *parts[3] = { NULL };
    if (s)
        *s = NULL;
    if (vh)
        *vh = NULL;
    trek_var *x = takes("svd", a, false) ? host(a) : NULL;
    if (!x || trek_factor_svd(x, parts) != TREK_OK)
        return NULL;
    for (int k = 0; k < 3; k++)
        if (!(parts[k] = home(parts[k], a)))
            return NULL;
    if (s)
        *s = parts[0];
    if (vh)
        *vh = parts[2];
    return parts[1];
}

trek_var *trek_svdvals(trek_var *a)
{
    trek_var *x = takes("svdvals", a, false) ? host(a) : NULL;
    return x ? home(trek_factor_svdvals(x), a) : NULL;
}

trek_var *trek_eigh(trek_var *a, trek_var **vectors)
{
    trek_var *parts[2] = { NULL };
    if (vectors)
        *vectors = NULL;
    trek_var *x = takes("eigh", a, true) ? host(a) : NULL;
    if (!x || trek_factor_eigh(x, parts) != TREK_OK)
        return NULL;
    trek_var *values = home(parts[0], a), *made = values ? home(parts[1], a) : NULL;
    if (vectors)
        *vectors = made;
    return made ? values : NULL;
}

trek_var *trek_eigvalsh(trek_var *a)
{
    trek_var *x = takes("eigvalsh", a, true) ? host(a) : NULL;
    return x ? home(trek_factor_eigvalsh(x), a) : NULL;
}

/* --- numbers ----------------------------------------------------------------------------------------- */

trek_var *trek_det(trek_var *a)
{
    if (!takes("det", a, true))
        return NULL;
    if (trek_var_size(a, -1) == 1)
        return trek_squeeze(trek_squeeze(a, -1), -1);
    return home(trek_factor_det(host(a)), a);
}

trek_var *trek_slogdet(trek_var *a, trek_var **logabsdet)
{
    trek_var *parts[2] = { NULL };
    if (logabsdet)
        *logabsdet = NULL;
    trek_var *x = takes("slogdet", a, true) ? host(a) : NULL;
    if (!x || trek_factor_slogdet(x, parts) != TREK_OK)
        return NULL;
    trek_var *sign = home(trek_var_detach(parts[0]), a), *made = sign ? home(parts[1], a) : NULL;
    if (logabsdet)
        *logabsdet = made;
    return made ? sign : NULL;
}

static bool tolerances_fit(const char *name, double rtol, double atol)
{
    if (isfinite(rtol) && isfinite(atol) && atol >= 0)
        return true;
    return trek_fail(TREK_ERR_ARGUMENT, "%s: rtol and atol: %g and %g; must not be negative", name, rtol, atol), false;
}

trek_var *trek_matrix_rank_with(trek_var *a, double atol, double rtol)
{
    trek_var *x = tolerances_fit("matrix_rank", rtol, atol) && takes("matrix_rank", a, false) ? host(a) : NULL;
    trek_var *s = x ? trek_factor_svdvals(trek_var_detach(x)) : NULL;
    trek_var *counts = s ? trek_logical_not(trek_factor_negligible(x, s, rtol, atol)) : NULL;
    return home(trek_sum(counts, trek_dims(-1), false), a);
}

trek_var *trek_matrix_rank(trek_var *a) { return trek_matrix_rank_with(a, 0, -1); }

/* --- made of these ------------------------------------------------------------------------------------- */

trek_var *trek_pinv_with(trek_var *a, double atol, double rtol)
{
    bool fits = tolerances_fit("pinv", rtol, atol) && takes("pinv", a, false);
    return fits ? home(trek_factor_pinv(host(a), rtol, atol), a) : NULL;
}

trek_var *trek_pinv(trek_var *a) { return trek_pinv_with(a, 0, -1); }

/* Returns, for each matrix of a batch, a number that the largest singular value hardly exceeds (by less than a tenth): the growth
 * of eight vectors in products with R^T R. They are fixed, so that no random numbers are drawn. */
static trek_var *largest_values(trek_var *r)
{
    enum { VECTORS = 8, STEPS = 10 };
    const int64_t n = trek_var_size(r, -1);
    trek_tensor *places = trek_tensor_arange(1, (double)(n * VECTORS + 1), 1, trek_var_dtype(r), trek_var_device(r));
    trek_var *v = places ? trek_var_from(places) : NULL, *length = NULL;
    v = trek_reshape(trek_cos(trek_mul_scalar(v, 2.399963)), trek_dims(n, VECTORS));
    for (int step = 0; v && step < STEPS; step++) {
        v = trek_div(v, trek_norm(v, 2, trek_dims(-2), true));
        trek_var *to = trek_matmul(r, v);
        length = trek_norm(to, 2, trek_dims(-2), false);
        v = trek_matmul(turned(r), to);
    }
    return trek_max(length, trek_dims(-1), false);
}

/* Returns whether no singular value of the triangles r counts as 0, by far enough that the estimates above cannot err. */
static bool certainly_regular(trek_var *r, double rcond, int64_t larger)
{
    const double margin = 1.25, eps = trek_var_dtype(r) == TREK_F64 ? 0x1p-52 : 0x1p-23;
    trek_var *upper = trek_var_detach(r), *eye = trek_factor_eye(r, trek_var_size(r, -1));
    trek_var *inverse = upper && eye ? trek_factor_triangular(upper, trek_expand(eye, trek_var_shape(r)), true, false) : NULL;
    trek_var *worst = inverse ? trek_mul(largest_values(upper), largest_values(inverse)) : NULL;
    worst = worst ? trek_max(trek_reshape(worst, trek_dims(-1)), trek_dims(0), false) : NULL;
    return worst && trek_var_item(worst) * margin * (rcond < 0 ? eps * (double)larger : rcond) < 1;
}

/* If all matrices of a batch certainly have full rank: returns the solutions, by QR, which takes a fifth of the time of singular
 * values and has the same errors; sets *certain. Otherwise, and on failure, returns NULL. */
static trek_var *solution_of_full_rank(trek_var *a, trek_var *b, double rcond, bool *certain)
{
    const int64_t m = trek_var_size(a, -2), n = trek_var_size(a, -1);
    if (trek_var_numel(a) == 0 || trek_var_numel(b) == 0)
        return NULL;
    const bool tall = m >= n;
    trek_var *q_and_r[2] = { NULL };
    if (trek_factor_qr(tall ? a : turned(a), q_and_r) != TREK_OK || !certainly_regular(q_and_r[1], rcond, tall ? m : n))
        return NULL;
    *certain = true;
    trek_var *q = q_and_r[0], *r = tall ? q_and_r[1] : turned(q_and_r[1]), *y = tall ? trek_matmul(turned(q), b) : b;
    if (!y || !broadcast("lstsq", &r, &y))
        return NULL;
    trek_var *made = trek_factor_triangular(r, y, tall, false);
    return tall ? made : trek_matmul(q, made); /* the shortest of the solutions */
}

trek_var *trek_lstsq_with(trek_var *a, trek_var *b, double rcond)
{
    if (!b)
        return trek_fail_missing("lstsq", "input"), NULL;
    if (!tolerances_fit("lstsq", rcond, 0) || !takes("lstsq", a, false) || !alike("lstsq", a, b, trek_var_size(a, -2)))
        return NULL;
    bool certain = false;
    trek_autocast_begin(TREK_F32); /* factors keep their dtype, so products with them have to */
    trek_var *x = host(a), *y = host(b), *made = x && y ? solution_of_full_rank(x, y, rcond, &certain) : NULL;
    trek_autocast_end();
    return certain ? home(made, a) : trek_error_status() == TREK_OK ? trek_matmul(trek_pinv_with(a, 0, rcond), b) : NULL;
}

trek_var *trek_lstsq(trek_var *a, trek_var *b) { return trek_lstsq_with(a, b, -1); }

/* --- with what is orthogonal to the reduced factors --------------------------------------------------------- */

/* Returns columns [..., m, m - k] that complete the orthonormal ones q [..., m, k], without a gradient. They are the
 * eigenvectors with eigenvalue 1 of the projection onto the orthogonal complement, which come last. */
static trek_var *complement(trek_var *q)
{
    int64_t m = trek_var_size(q, -2), k = trek_var_size(q, -1);
    q = trek_var_detach(q);
    trek_var *parts[2] = { NULL }, *rest = q ? trek_sub(trek_factor_eye(q, m), trek_matmul(q, turned(q))) : NULL;
    if (!rest || trek_factor_eigh(rest, parts) != TREK_OK)
        return NULL;
    return trek_var_detach(trek_narrow(parts[1], -1, k, m - k));
}

static trek_var *completed(trek_var *q)
{
    if (!q || trek_var_size(q, -1) == trek_var_size(q, -2))
        return q;
    trek_var *more = complement(q);
    return more ? trek_cat((trek_var *[]){ q, more }, 2, -1) : NULL;
}

trek_var *trek_qr_complete(trek_var *a, trek_var **r)
{
    trek_var *x = takes("qr_complete", a, false) ? host(a) : NULL, *upper = NULL;
    if (r)
        *r = NULL;
    trek_var *q = x ? completed(trek_qr(x, &upper)) : NULL;
    if (!q)
        return NULL;
    trek_shape below = trek_var_shape(upper);
    below.sizes[below.ndim - 2] = trek_var_size(q, -1) - trek_var_size(upper, -2);
    trek_tensor *zeros = trek_tensor_zeros(below, trek_var_dtype(upper), trek_var_device(upper));
    upper = zeros ? home(trek_cat((trek_var *[]){ upper, trek_var_from(zeros) }, 2, -2), a) : NULL;
    q = upper ? home(q, a) : NULL;
    if (r)
        *r = q ? upper : NULL;
    return q;
}

trek_var *trek_svd_full(trek_var *a, trek_var **s, trek_var **vh)
{
    trek_var *x = takes("svd_full", a, false) ? host(a) : NULL, *values = NULL, *right = NULL;
    if (s)
        *s = NULL;
    if (vh)
        *vh = NULL;
    trek_var *u = x ? completed(trek_svd(x, &values, &right)) : NULL, *v = u ? completed(turned(right)) : NULL;
    values = v ? home(values, a) : NULL;
    v = values ? home(turned(v), a) : NULL;
    u = v ? home(u, a) : NULL;
    if (s)
        *s = u ? values : NULL;
    if (vh)
        *vh = u ? v : NULL;
    return u;
}

trek_var *trek_matrix_power(trek_var *a, int64_t n)
{
    if (!a)
        return trek_fail_missing("matrix_power", "variable"), NULL;
    if (trek_var_ndim(a) < 2 || trek_var_size(a, -1) != trek_var_size(a, -2))
        return trek_fail_null(TREK_ERR_SHAPE, "matrix_power: input: it is not square; must be square matrices");
    if (!trek_dtype_is_float(trek_var_dtype(a)))
        return trek_fail_null(TREK_ERR_DTYPE, "matrix_power: input: dtype %s; must be floating",
                              trek_dtype_name(trek_var_dtype(a)));
    if (n == 0) { /* a takes part, so that it has a gradient, which is 0 */
        trek_tensor *yes = trek_tensor_ones(trek_dims_none(), TREK_BOOL, trek_var_device(a));
        return yes ? trek_where(trek_var_from(yes), trek_factor_eye(a, trek_var_size(a, -1)), a) : NULL;
    }
    trek_var *power = n < 0 ? trek_inv(a) : a, *made = NULL;
    for (uint64_t rest = n < 0 ? -(uint64_t)n : (uint64_t)n; power && rest; rest >>= 1) {
        if (rest & 1)
            made = made ? trek_matmul(made, power) : power;
        power = rest > 1 ? trek_matmul(power, power) : power;
    }
    return made == a ? trek_clone(a) : made;
}
