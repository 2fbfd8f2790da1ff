/* SPDX-License-Identifier: Apache-2.0 */
/* Linear algebra through LAPACK: factors multiply to what they are of, gradients are differences. Where none is installed (or, by
 * TREK_TEST_LAPACK=absent, none is to be found): what is said then. */
#include "autograd/autocast.h"
#include "autograd/backward.h"
#include "autograd/leaf.h"
#include "autograd/linalg.h"
#include "autograd/ops.h"
#include "tensor/creation.h"
#include "tensor/shapes.h"
#include "tests/autograd/differences.h"
#include "tests/support/scoped.h"
#include "tests/support/support.h"

static trek_var *turned(trek_var *x) { return trek_transpose(x, -2, -1); }
static trek_var *eye(int64_t n) { return trek_var_from(trek_tensor_eye(n, TREK_F64, test_device())); }
/* Far from singular; symmetric and positive. */
static trek_var *regular(trek_var *x) { return trek_add(x, trek_mul_scalar(eye(trek_var_size(x, -1)), 2)); }
static trek_var *positive(trek_var *x) { return trek_add(trek_matmul(x, turned(x)), eye(trek_var_size(x, -2))); }
static trek_var *symmetric(trek_var *x) { return trek_mul_scalar(trek_add(x, turned(x)), 0.5); }

/* Fails unless both have one shape and are equal to 1e-10. */
#define ASSERT_CLOSE(x, y) assert_close(x, y, __LINE__)
static void assert_close(trek_var *x, trek_var *y, int line)
{
    if (!x || !y)
        fail_msg("line %d: %s", line, trek_error());
    if (!trek_shape_equal(trek_var_shape(x), trek_var_shape(y)))
        fail_msg("line %d: two shapes", line);
    double *a = test_read(trek_var_data(x)), *b = test_read(trek_var_data(y));
    for (int64_t i = 0; i < trek_var_numel(x); i++)
        if (!(fabs(a[i] - b[i]) <= 1e-10))
            fail_msg("line %d: element %lld is %g, not %g", line, (long long)i, a[i], b[i]);
    free(a);
    free(b);
}

static void factors(void **state)
{
    for (int wide = 0; wide < 3; wide++) {
        trek_shape shape = wide == 0 ? trek_dims(2, 5, 3) : wide == 1 ? trek_dims(2, 3, 5) : trek_dims(4, 4);
        trek_var *x = random_values(1, shape), *r, *s, *vh, *q = trek_qr(x, &r), *u = trek_svd(x, &s, &vh);
        int64_t k = trek_var_size(q, -1);
        ASSERT_CLOSE(trek_matmul(q, r), x);
        ASSERT_CLOSE(r, trek_triu(r, 0));
        ASSERT_CLOSE(trek_matmul(turned(q), q), trek_add(trek_zeros_like(trek_matmul(turned(q), q)), eye(k)));
        ASSERT_CLOSE(trek_matmul(trek_mul(u, trek_unsqueeze(s, -2)), vh), x);
        ASSERT_CLOSE(trek_svdvals(x), s);
        ASSERT_CLOSE(trek_matmul(x, trek_matmul(trek_pinv(x), x)), x);
        ASSERT_CLOSE(trek_pinv(turned(x)), turned(trek_pinv(x)));
        ASSERT_CLOSE(trek_pinv_with(x, 0, 1e-9), trek_pinv(x));
        /* complete ones */
        trek_var *whole = trek_qr_complete(x, &r), *left = trek_svd_full(x, &s, &vh);
        int64_t m = trek_var_size(x, -2), n = trek_var_size(x, -1);
        trek_var *of_rows = trek_zeros_like(trek_matmul(x, turned(x))), *of_columns = trek_zeros_like(trek_matmul(turned(x), x));
        ASSERT_CLOSE(trek_matmul(whole, r), x);
        ASSERT_CLOSE(trek_narrow(whole, -1, 0, k), q);
        ASSERT_CLOSE(trek_matmul(turned(whole), whole), trek_add(of_rows, eye(m)));
        ASSERT_CLOSE(trek_matmul(turned(left), left), trek_add(of_rows, eye(m)));
        ASSERT_CLOSE(trek_matmul(vh, turned(vh)), trek_add(of_columns, eye(n)));
        trek_var *scaled = trek_mul(trek_narrow(left, -1, 0, k), trek_unsqueeze(s, -2));
        ASSERT_CLOSE(trek_matmul(scaled, trek_narrow(vh, -2, 0, k)), x);
    }
    ASSERT_CLOSE(trek_svd_full(eye(3), NULL, NULL), trek_svd(eye(3), NULL, NULL));
    ASSERT_CLOSE(trek_qr_complete(values_of(trek_dims(2, 0), TREK_F64, (double[]){ 0 }), NULL),
                 trek_add(trek_zeros_like(eye(2)), eye(2)));
    trek_var *lower, *upper_one, *square = random_values(8, trek_dims(2, 4, 4)), *rows = trek_lu(square, &lower, &upper_one);
    ASSERT_CLOSE(trek_matmul(rows, trek_matmul(lower, upper_one)), square);
    ASSERT_CLOSE(trek_add(trek_tril(lower, -1), eye(4)), lower);
    ASSERT_CLOSE(trek_triu(upper_one, 0), upper_one);
    const trek_shape oblong[] = { trek_dims(2, 5, 3), trek_dims(3, 5), trek_dims(1, 3), trek_dims(4, 1) };
    for (int k = 0; k < 4; k++) {
        trek_var *a = random_values(9, oblong[k]), *order = trek_lu(a, &lower, &upper_one);
        int64_t m = trek_var_size(a, -2), n = trek_var_size(a, -1), least = m < n ? m : n;
        assert_true(trek_var_size(lower, -1) == least && trek_var_size(upper_one, -2) == least);
        ASSERT_CLOSE(trek_matmul(order, trek_matmul(lower, upper_one)), a);
        ASSERT_CLOSE(trek_add(trek_tril(lower, -1), trek_narrow(eye(m), -1, 0, least)), lower);
        ASSERT_CLOSE(trek_triu(upper_one, 0), upper_one);
    }
    assert_int_equal(trek_var_size(trek_lu(values_of(trek_dims(2, 0), TREK_F64, (double[]){ 0 }), &lower, &upper_one), -1), 2);
    assert_true(trek_var_size(lower, -1) == 0 && trek_var_size(upper_one, -2) == 0);
    ASSERT_VALUES(trek_lu(VALUES(trek_dims(2, 2), TREK_F32, 0, 1, 0, 2), &lower, &upper_one), 1, 0, 0, 1);
    ASSERT_VALUES(upper_one, 0, 1, 0, 2);
    ASSERT_VALUES(trek_lu(VALUES(trek_dims(3, 3), TREK_F64, 0, 0, 1, 2, 0, 0, 0, 3, 0), NULL, &upper_one), 0, 0, 1, 1, 0, 0, 0, 1,
                  0);
    ASSERT_VALUES(upper_one, 2, 0, 0, 0, 3, 0, 0, 0, 1);
    trek_var *x = random_values(2, trek_dims(2, 4, 4)), *p = positive(x), *vectors, *values = trek_eigh(p, &vectors);
    ASSERT_CLOSE(trek_matmul(p, vectors), trek_mul(vectors, trek_unsqueeze(values, -2)));
    ASSERT_CLOSE(trek_eigvalsh(p), values);
    trek_var *l = trek_cholesky(p, false), *b = random_values(3, trek_dims(4, 2));
    ASSERT_CLOSE(trek_matmul(l, turned(l)), p);
    ASSERT_CLOSE(trek_cholesky(p, true), turned(l));
    ASSERT_CLOSE(trek_matmul(p, trek_cholesky_solve(b, l, false)), trek_expand(b, trek_dims(2, 4, 2)));
    ASSERT_CLOSE(trek_cholesky_solve(b, turned(l), true), trek_cholesky_solve(b, l, false));
    /* what lies above the diagonal is not read */
    ASSERT_CLOSE(trek_cholesky(trek_tril(p, 0), false), l);
    ASSERT_CLOSE(trek_eigvalsh(trek_tril(p, 0)), values);
}

static void systems(void **state)
{
    trek_var *a = regular(random_values(1, trek_dims(3, 4, 4))), *b = random_values(2, trek_dims(4, 2)), *x = trek_solve(a, b);
    ASSERT_CLOSE(trek_matmul(a, x), trek_expand(b, trek_dims(3, 4, 2)));
    ASSERT_CLOSE(trek_solve(a, trek_select(b, 1, 0)), trek_select(x, 2, 0));
    trek_var *rows = random_values(3, trek_dims(3, 4));
    ASSERT_CLOSE(trek_squeeze(trek_matmul(a, trek_unsqueeze(trek_solve(a, rows), -1)), -1), rows);
    ASSERT_CLOSE(trek_matmul(trek_solve_right(a, turned(b)), a), trek_expand(turned(b), trek_dims(3, 2, 4)));
    trek_var *square = regular(random_values(6, trek_dims(2, 2, 2))), *two = random_values(7, trek_dims(2, 2));
    ASSERT_CLOSE(trek_matmul(trek_solve_right(square, two), square), trek_expand(two, trek_dims(2, 2, 2)));
    ASSERT_CLOSE(trek_matmul(a, trek_inv(a)), trek_expand(eye(4), trek_dims(3, 4, 4)));
    ASSERT_CLOSE(trek_matmul(trek_triu(a, 0), trek_solve_triangular(a, b, true, false, false)),
                 trek_expand(b, trek_dims(3, 4, 2)));
    trek_var *right = trek_solve_triangular(a, turned(b), false, true, false);
    ASSERT_CLOSE(trek_matmul(right, trek_tril(a, 0)), trek_expand(turned(b), trek_dims(3, 2, 4)));
    trek_var *unit = trek_add(trek_tril(a, -1), eye(4));
    ASSERT_CLOSE(trek_matmul(unit, trek_solve_triangular(a, b, false, false, true)), trek_expand(b, trek_dims(3, 4, 2)));
    trek_var *tall = random_values(4, trek_dims(6, 3)), *y = random_values(5, trek_dims(6, 2)), *best = trek_lstsq(tall, y);
    ASSERT_CLOSE(trek_matmul(turned(tall), trek_sub(trek_matmul(tall, best), y)), trek_zeros_like(best));
}

/* Sizes at which matrices are divided into halves, and next to them. */
static void large_factors(void **state)
{
    const int64_t sizes[] = { 7, 8, 9, 16, 17, 31, 48, 49, 100, 131 };
    for (int k = 0; k < 10; k++) {
        trek_scope inner = trek_scope_begin();
        int64_t n = sizes[k];
        trek_var *a = random_values(20, trek_dims(n, n)), *b = random_values(21, trek_dims(n, k % 3 == 0 ? 1 : n + 3)), *lower,
            *upper;
        ASSERT_CLOSE(trek_matmul(a, trek_solve(a, b)), b);
        trek_var *p = trek_add(trek_matmul(a, turned(a)), eye(n)), *l = trek_cholesky(p, false);
        ASSERT_CLOSE(trek_matmul(l, turned(l)), p);
        ASSERT_CLOSE(trek_tril(l, 0), l);
        ASSERT_CLOSE(trek_matmul(p, trek_cholesky_solve(b, l, false)), b);
        trek_var *mild = trek_add(trek_div_scalar(a, (double)n), eye(n));
        for (int way = 0; way < 4; way++) {
            bool above = way & 1, unit = way & 2;
            trek_var *half = above ? trek_triu(mild, unit) : trek_tril(mild, -(int64_t)unit);
            half = unit ? trek_add(half, eye(n)) : half;
            ASSERT_CLOSE(trek_matmul(half, trek_solve_triangular(mild, b, above, false, unit)), b);
        }
        const trek_shape shapes[] = { trek_dims(n, n), trek_dims(n, n + 40), trek_dims(n + 40, n) };
        for (int shape = 0; shape < 3; shape++) {
            trek_var *x = random_values(22, shapes[shape]), *order = trek_lu(x, &lower, &upper);
            ASSERT_CLOSE(trek_matmul(order, trek_matmul(lower, upper)), x);
            ASSERT_CLOSE(trek_matmul(order, turned(order)), trek_add(trek_zeros_like(order), eye(trek_var_size(x, 0))));
            double *factors = test_read(trek_var_data(lower));
            for (int64_t i = 0; i < trek_var_numel(lower); i++)
                assert_true(fabs(factors[i]) <= 1); /* the largest of a column is its pivot */
            free(factors);
            trek_var *narrow = trek_cast(x, TREK_F32), *moved = trek_lu(narrow, &lower, &upper);
            trek_var *off = trek_sub(trek_matmul(moved, trek_matmul(lower, upper)), narrow);
            assert_true(trek_var_item(trek_max(trek_abs(off), trek_dims(0, 1), false)) < 2e-5);
        }
        assert_int_equal(trek_scope_end(inner), TREK_OK);
    }
}

/* Returns the largest magnitude. */
static double largest_of(trek_var *x) { return trek_var_item(trek_max(trek_abs(x), trek_dims(0, 1), false)); }

/* Fails unless the columns of q are orthonormal. */
static void assert_orthonormal(trek_var *q, double tolerance, int line)
{
    trek_var *gram = trek_matmul(turned(q), q);
    trek_var *off = trek_sub(trek_cast(gram, TREK_F64), eye(trek_var_size(q, -1)));
    if (!off || !(largest_of(off) <= tolerance))
        fail_msg("line %d: columns are orthonormal only to %g", line, off ? largest_of(off) : NAN);
}

/* Fails unless the values of a vector do not ascend (or do not descend), by more than rounding. */
static void assert_sorted(trek_var *values, double direction, int line)
{
    double *v = test_read(trek_var_data(values));
    for (int64_t i = 1; i < trek_var_numel(values); i++)
        if (!(direction * (v[i] - v[i - 1]) >= 0))
            fail_msg("line %d: value %lld is %g after %g", line, (long long)i, v[i], v[i - 1]);
    free(v);
}

/* All factorisations of x [m, n] by orthogonal matrices. */
static void check_orthogonal(trek_var *x, double tolerance, int line)
{
    trek_scope inner = trek_scope_begin();
    trek_var *r, *s, *vh, *q = trek_qr(x, &r), *u = trek_svd(x, &s, &vh), *only = trek_svdvals(x);
    if (!q || !u || !only)
        fail_msg("line %d: %s", line, trek_error());
    const double size = largest_of(x), bound = tolerance * (size > 0 ? size : 1);
    assert_true(largest_of(trek_sub(trek_matmul(q, r), x)) <= bound);
    assert_true(largest_of(trek_sub(r, trek_triu(r, 0))) == 0);
    assert_orthonormal(q, tolerance, line);
    trek_var *made = trek_matmul(trek_mul(u, trek_unsqueeze(s, -2)), vh);
    if (!(largest_of(trek_sub(made, x)) <= bound))
        fail_msg("line %d: %lld x %lld: u s vh is off by %g", line, (long long)trek_var_size(x, 0),
                 (long long)trek_var_size(x, 1),
                 largest_of(trek_sub(made, x)));
    assert_orthonormal(u, tolerance, line);
    assert_orthonormal(turned(vh), tolerance, line);
    assert_sorted(s, -1, line);
    assert_true(trek_var_item(trek_min(s, trek_dims(0), false)) >= 0);
    assert_true(largest_of(trek_unsqueeze(trek_sub(s, only), 0)) <= bound);
    trek_var *both = trek_var_size(x, 0) <= trek_var_size(x, 1) ? trek_matmul(x, turned(x)) : trek_matmul(turned(x), x);
    both = trek_mul_scalar(trek_add(both, turned(both)), 0.5);
    trek_var *v, *values = trek_eigh(both, &v);
    const double square = largest_of(both), wide = tolerance * (square > 0 ? square : 1);
    assert_true(largest_of(trek_sub(trek_matmul(both, v), trek_mul(v, trek_unsqueeze(values, -2)))) <= wide);
    assert_orthonormal(v, tolerance, line);
    assert_sorted(values, 1, line);
    assert_true(largest_of(trek_unsqueeze(trek_sub(values, trek_eigvalsh(both)), 0)) <= wide);
    assert_int_equal(trek_scope_end(inner), TREK_OK);
}

/* Sizes at which matrices are divided, and next to them; oblong ones of both kinds. */
static void large_orthogonal(void **state)
{
    const int64_t sizes[][2] = { { 1, 1 }, { 2, 2 }, { 3, 2 }, { 24, 25 }, { 25, 25 }, { 26, 26 }, { 27, 30 }, { 33, 31 },
                                 { 51, 51 }, { 52, 52 }, { 64, 64 }, { 65, 66 }, { 90, 60 }, { 91, 60 }, { 131, 40 }, { 30, 131 },
                                 { 131, 131 }, { 200, 1 }, { 1, 200 }, { 150, 170 } };
    for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++) {
        trek_var *x = random_values(30 + (int)k, trek_dims(sizes[k][0], sizes[k][1]));
        check_orthogonal(x, 1e-11, __LINE__);
        check_orthogonal(trek_cast(x, TREK_F32), 2e-4, __LINE__);
        if (k % 4 == 0) { /* far from 1 */
            check_orthogonal(trek_mul_scalar(x, 0x1p400), 1e-11, __LINE__);
            check_orthogonal(trek_mul_scalar(x, 0x1p-400), 1e-11, __LINE__);
        }
    }
}

/* Values that are given: several that are equal, far apart, nearly equal, 0; in blocks that are not joined. */
static void given_values(void **state)
{
    for (int kind = 0; kind < 6; kind++)
        for (int64_t n = 3; n < 120; n += 29) {
            double *d = malloc((size_t)n * sizeof *d);
            for (int64_t i = 0; i < n; i++)
                d[i] = kind == 0 ? 1 : kind == 1 ? (double)(i / (n / 3 + 1)) : kind == 2 ? pow(10, -12 * (double)i / (double)n)
                     : kind == 3 ? 1 + 1e-13 * (double)i : kind == 4 ? (i == n - 1) : (double)i - 1;
            trek_var *values = values_of(trek_dims(n), TREK_F64, d),
                *q = trek_qr(random_values(50 + kind, trek_dims(n, n)), NULL);
            trek_var *plain = trek_mul(eye(n), trek_unsqueeze(values, 0));
            trek_var *made = trek_matmul(trek_mul(q, trek_unsqueeze(values, 0)), turned(q)), *found, *v;
            made = trek_mul_scalar(trek_add(made, turned(made)), 0.5);
            check_orthogonal(plain, 1e-11, __LINE__);
            check_orthogonal(made, 1e-11, __LINE__);
            found = trek_eigh(made, &v);
            assert_orthonormal(v, 1e-12 * (double)n, __LINE__);
            assert_true(largest_of(trek_unsqueeze(trek_sub(found, trek_sort(values, 0, false, NULL)), 0)) < 1e-12 * (double)n);
            trek_var *magnitudes = trek_sort(trek_abs(values), 0, true, NULL);
            assert_true(largest_of(trek_unsqueeze(trek_sub(trek_svdvals(made), magnitudes), 0)) < 1e-12 * (double)n);
            free(d);
        }
    check_orthogonal(trek_zeros_like(random_values(1, trek_dims(60, 40))), 1e-11, __LINE__);
    trek_var *column = random_values(2, trek_dims(70, 1)); /* of rank 1 */
    check_orthogonal(trek_matmul(column, turned(column)), 1e-11, __LINE__);
    trek_var *first = trek_triu(trek_tril(random_values(3, trek_dims(60, 60)), 1), -1); /* two diagonal blocks */
    first = trek_mul(first, trek_cast(trek_ne_scalar(first, trek_var_item(trek_select(trek_select(first, 0, 29), 0, 30))),
                                      TREK_F64));
    check_orthogonal(first, 1e-11, __LINE__);
}

/* Least squares, by QR or by singular values, as the rank wants it: against the pseudoinverse, for values that are just above and
 * just below what counts as 0. */
static void least_squares(void **state)
{
    const int64_t sizes[][2] = { { 6, 6 }, { 40, 9 }, { 9, 40 }, { 90, 70 }, { 1, 5 }, { 5, 1 } };
    for (int k = 0; k < 6; k++)
        for (int way = 0; way < 5; way++) {
            trek_scope inner = trek_scope_begin();
            const int64_t m = sizes[k][0], n = sizes[k][1], least = m < n ? m : n;
            const double rcond = way < 2 ? -1 : 1e-4;
            trek_var *q = trek_qr(random_values(60 + k, trek_dims(m, least)), NULL);
            trek_var *p = trek_qr(random_values(70 + k, trek_dims(n, least)), NULL), *s = trek_ones_like(trek_select(q, 0, 0));
            double *values = test_read(trek_var_data(s));
            for (int64_t i = 1; i < least; i++)
                values[i] = 1 / (1 + (double)i / (double)least);
            if (least > 1) /* 0; regular; far above, just above, just below rcond */
                values[least - 1] = (double[]){ 0, 0.5, 1e-2, 1.05e-4, 0.95e-4 }[way];
            trek_var *a = trek_matmul(trek_mul(q, trek_unsqueeze(values_of(trek_dims(least), TREK_F64, values), 0)), turned(p));
            free(values);
            a = trek_expand(trek_unsqueeze(a, 0), trek_dims(2, m, n));
            trek_var *b = random_values(80 + k, k % 2 ? trek_dims(2, m, 3) : trek_dims(m, 3));
            trek_var *x = trek_lstsq_with(a, b, rcond), *wanted = trek_matmul(trek_pinv_with(a, 0, rcond), b);
            ASSERT_CLOSE(trek_mul_scalar(x, 0.1), trek_mul_scalar(wanted, 0.1));
            assert_int_equal(trek_scope_end(inner), TREK_OK);
        }
    trek_var *none = trek_lstsq(trek_reshape(random_values(1, trek_dims(0)), trek_dims(0, 3)),
                                trek_reshape(random_values(1, trek_dims(0)), trek_dims(0, 2)));
    ASSERT_VALUES(none, 0, 0, 0, 0, 0, 0);
    trek_var *single = trek_cast(random_values(90, trek_dims(4, 6, 3)), TREK_F32), *plain = trek_lstsq(single, single);
    trek_autocast_begin(TREK_BF16); /* does not change the dtype of factors */
    trek_var *cast = trek_lstsq(single, single);
    trek_autocast_end();
    assert_int_equal(trek_var_dtype(cast), TREK_F32);
    ASSERT_CLOSE(cast, plain);
}

/* Numbers that are not finite are refused, also in matrices that are divided. */
static void not_finite(void **state)
{
    const double bad[] = { NAN, INFINITY };
    for (int k = 0; k < 2; k++) {
        trek_var *x = trek_mul_scalar(trek_add(eye(70), random_values(4, trek_dims(70, 70))), 1), *v;
        trek_var *spoiled = trek_add(x, trek_mul_scalar(eye(70), bad[k]));
        spoiled = trek_where(trek_isfinite(spoiled), x, trek_full_like(x, bad[k]));
        ASSERT_REFUSED(trek_eigh(spoiled, &v), TREK_ERR_ARGUMENT);
        ASSERT_REFUSED(trek_eigvalsh(spoiled), TREK_ERR_ARGUMENT);
        ASSERT_REFUSED(trek_svd(spoiled, &v, NULL), TREK_ERR_ARGUMENT);
        ASSERT_REFUSED(trek_svdvals(spoiled), TREK_ERR_ARGUMENT);
    }
}

/* The first column that has no pivot is named, wherever it is. */
static void late_pivots(void **state)
{
    const int64_t n = 60;
    for (int64_t zero = 0; zero < n; zero += 7) {
        trek_scope inner = trek_scope_begin();
        trek_var *a = trek_add(trek_div_scalar(random_values(23, trek_dims(n, n)), (double)n), eye(n)), *l, *u;
        trek_var *places = trek_var_from(trek_tensor_arange(0, (double)n, 1, TREK_F64, test_device()));
        a = trek_mul(a, trek_cast(trek_ne_scalar(places, (double)zero), TREK_F64)); /* a column of zeros */
        char named[32];
        snprintf(named, sizeof named, "(LAPACK: %lld)", (long long)zero + 1);
        assert_null(trek_inv(a));
        assert_non_null(strstr(trek_error(), named));
        trek_error_clear();
        trek_var *order = trek_lu(a, &l, &u);
        ASSERT_CLOSE(trek_matmul(order, trek_matmul(l, u)), a);
        ASSERT_VALUES(trek_det(a), 0);
        assert_null(trek_cholesky(trek_matmul(turned(a), a), false));
        assert_non_null(strstr(trek_error(), named));
        trek_error_clear();
        assert_int_equal(trek_scope_end(inner), TREK_OK);
    }
}

static void numbers(void **state)
{
    trek_var *a = VALUES(trek_dims(2, 2), TREK_F32, 1, 2, 3, 4), *logarithm;
    trek_var *deficient = VALUES(trek_dims(2, 2, 3), TREK_F64, 1, 2, 3, 2, 4, 6, 1, 2, 3, 2, 4, 5);
    ASSERT_VALUES(trek_det(a), -2);
    ASSERT_VALUES(trek_slogdet(a, &logarithm), -1);
    ASSERT_VALUES(logarithm, 0.69314718);
    ASSERT_VALUES(trek_slogdet(a, NULL), -1);
    ASSERT_VALUES(trek_det(VALUES(trek_dims(2, 2), TREK_F64, 1, 2, 2, 4)), 0);
    ASSERT_VALUES(trek_slogdet(VALUES(trek_dims(2, 2), TREK_F64, 1, 2, 2, 4), &logarithm), 0);
    ASSERT_VALUES(logarithm, -INFINITY);
    ASSERT_VALUES(trek_inv(a), -2, 1, 1.5, -0.5);
    ASSERT_VALUES(trek_matrix_power(a, 3), 37, 54, 81, 118);
    ASSERT_VALUES(trek_matrix_power(a, 0), 1, 0, 0, 1);
    ASSERT_VALUES(trek_matrix_power(a, 1), 1, 2, 3, 4);
    ASSERT_VALUES(trek_matrix_power(a, -2), 5.5, -2.5, -3.75, 1.75);
    ASSERT_VALUES(trek_matrix_rank(deficient), 1, 2);
    ASSERT_VALUES(trek_matrix_rank(VALUES(trek_dims(2, 2), TREK_F32, 0, 0, 0, 0)), 0);
    trek_var *diagonal = VALUES(trek_dims(2, 2), TREK_F64, 4, 0, 0, 0.5);
    ASSERT_VALUES(trek_matrix_rank_with(diagonal, 0, 0.2), 1);
    ASSERT_VALUES(trek_matrix_rank_with(diagonal, 0, 0.1), 2);
    ASSERT_VALUES(trek_matrix_rank_with(diagonal, 0.6, -1), 1);
    ASSERT_VALUES(trek_matrix_rank_with(diagonal, 4, 0), 0);
    ASSERT_VALUES(trek_pinv_with(diagonal, 0, 0.2), 0.25, 0, 0, 0);
    ASSERT_VALUES(trek_pinv_with(diagonal, 0.1, -1), 0.25, 0, 0, 2);
    ASSERT_VALUES(trek_lstsq_with(diagonal, VALUES(trek_dims(2, 1), TREK_F64, 8, 1), 0.5), 2, 0);
    /* of nothing */
    trek_var *nothing = values_of(trek_dims(2, 0, 0), TREK_F64, (double[]){ 0 });
    ASSERT_VALUES(trek_det(nothing), 1, 1);
    assert_int_equal(trek_var_numel(trek_inv(nothing)), 0);
    assert_int_equal(trek_var_numel(trek_cholesky(nothing, false)), 0);
    assert_int_equal(trek_var_numel(trek_eigvalsh(nothing)), 0);
    ASSERT_VALUES(trek_matrix_rank(nothing), 0, 0);
    assert_int_equal(trek_var_numel(trek_pinv(values_of(trek_dims(3, 0), TREK_F64, (double[]){ 0 }))), 0);
    assert_int_equal(trek_var_numel(trek_qr(values_of(trek_dims(0, 3), TREK_F64, (double[]){ 0 }), NULL)), 0);
}

static trek_var *solved(trek_var *const *in) { return trek_solve(regular(in[0]), in[1]); }
static trek_var *solved_right(trek_var *const *in) { return trek_solve_right(regular(in[0]), in[1]); }
static trek_var *cut_off(trek_var *const *in) { return trek_pinv_with(in[0], 0, 0.5); }
static trek_var *exponential(trek_var *const *in) { return trek_matrix_exp(trek_mul_scalar(in[0], 3)); }
static trek_var *of_full(trek_var *const *in)
{
    trek_var *s, *u = trek_svd_full(in[0], &s, NULL);
    return trek_matmul(trek_square(trek_narrow(u, -1, 0, trek_var_size(s, -1))), trek_unsqueeze(s, -1));
}
static trek_var *of_lu(trek_var *const *in)
{
    trek_var *l, *u;
    return trek_lu(regular(in[0]), &l, &u) ? trek_add(trek_square(l), trek_mul(l, u)) : NULL;
}
static trek_var *of_tall_lu(trek_var *const *in)
{
    trek_var *l, *u, *a = trek_cat((trek_var *[]){ regular(in[0]), in[1] }, 2, -2);
    return trek_lu(a, &l, &u) ? trek_matmul(trek_square(l), u) : NULL;
}
static trek_var *of_wide_lu(trek_var *const *in)
{
    trek_var *l, *u, *a = trek_cat((trek_var *[]){ regular(in[0]), turned(in[1]) }, 2, -1);
    return trek_lu(a, &l, &u) ? trek_matmul(l, trek_square(u)) : NULL;
}
static trek_var *inverse(trek_var *const *in) { return trek_inv(regular(in[0])); }
static trek_var *upper(trek_var *const *in) { return trek_solve_triangular(regular(in[0]), in[1], true, false, false); }
static trek_var *lower_right(trek_var *const *in) { return trek_solve_triangular(regular(in[0]), in[1], false, true, true); }
static trek_var *root(trek_var *const *in) { return trek_cholesky(positive(in[0]), false); }
static trek_var *by_root(trek_var *const *in) { return trek_cholesky_solve(in[1], trek_cholesky(positive(in[0]), true), true); }
static trek_var *determinant(trek_var *const *in) { return trek_det(in[0]); }
static trek_var *log_determinant(trek_var *const *in)
{
    trek_var *made;
    return trek_slogdet(regular(in[0]), &made) ? made : NULL;
}
/* What does not depend on the signs of the vectors. */
static trek_var *of_qr(trek_var *const *in)
{
    trek_var *r, *q = trek_qr(in[0], &r);
    return trek_cat((trek_var *[]){ q, turned(r) }, 2, -2);
}
static trek_var *of_svd(trek_var *const *in)
{
    trek_var *s, *vh, *u = trek_svd(in[0], &s, &vh);
    trek_var *both = trek_matmul(trek_mul(u, trek_unsqueeze(trek_exp(s), -2)), vh);
    return trek_add(both, trek_matmul(trek_square(u), trek_square(vh)));
}
static trek_var *values_alone(trek_var *const *in) { return trek_svdvals(in[0]); }
static trek_var *of_eigh(trek_var *const *in)
{
    trek_var *v, *w = trek_eigh(symmetric(in[0]), &v);
    return trek_add(trek_matmul(trek_mul(v, trek_unsqueeze(trek_exp(w), -2)), turned(v)), trek_square(v));
}
static trek_var *eigenvalues(trek_var *const *in) { return trek_eigvalsh(symmetric(in[0])); }
static trek_var *pseudo(trek_var *const *in) { return trek_pinv(in[0]); }
static trek_var *least(trek_var *const *in) { return trek_lstsq(in[0], in[1]); }
static trek_var *power(trek_var *const *in) { return trek_matrix_power(regular(in[0]), -3); }

#define OF_ORDER(order) \
    static trek_var *norm_##order(trek_var *const *in) { return trek_matrix_norm(in[0], TREK_MATRIX_ORDER_##order, false); }
OF_ORDER(FRO) OF_ORDER(NUC) OF_ORDER(2) OF_ORDER(MINUS_2) OF_ORDER(1) OF_ORDER(MINUS_1) OF_ORDER(INF) OF_ORDER(MINUS_INF)
static trek_var *of_logdet(trek_var *const *in) { return trek_logdet(trek_matmul(in[0], trek_transpose(in[0], -1, -2))); }

static void norms(void **state)
{
    trek_var *a = VALUES(trek_dims(2, 2), TREK_F64, 3, 0, 0, -4), *b = VALUES(trek_dims(2, 3), TREK_F32, 1, -2, 3, 4, 0, 1);
    ASSERT_VALUES(trek_matrix_norm(a, TREK_MATRIX_ORDER_FRO, false), 5);
    ASSERT_VALUES(trek_matrix_norm(a, TREK_MATRIX_ORDER_NUC, false), 7);
    ASSERT_VALUES(trek_matrix_norm(a, TREK_MATRIX_ORDER_2, true), 4);
    ASSERT_VALUES(trek_matrix_norm(a, TREK_MATRIX_ORDER_MINUS_2, false), 3);
    ASSERT_VALUES(trek_matrix_norm(b, TREK_MATRIX_ORDER_1, false), 5);
    ASSERT_VALUES(trek_matrix_norm(b, TREK_MATRIX_ORDER_MINUS_1, false), 2);
    ASSERT_VALUES(trek_matrix_norm(trek_transpose(b, 0, 1), TREK_MATRIX_ORDER_INF, false), 5);
    ASSERT_VALUES(trek_matrix_norm(trek_cast(b, TREK_BF16), TREK_MATRIX_ORDER_MINUS_INF, true), 5);
    assert_int_equal(trek_var_ndim(trek_matrix_norm(b, TREK_MATRIX_ORDER_FRO, true)), 2);
    trek_var *none = trek_narrow(b, 1, 0, 0);
    for (int order = TREK_MATRIX_ORDER_FRO; order <= TREK_MATRIX_ORDER_MINUS_INF; order++)
        if (order < TREK_MATRIX_ORDER_2 || order % 2 == 0)
            ASSERT_VALUES(trek_matrix_norm(none, (trek_matrix_order)order, false), 0);
    ASSERT_REFUSED(trek_matrix_norm(none, TREK_MATRIX_ORDER_MINUS_1, false), TREK_ERR_SHAPE);
    ASSERT_REFUSED(trek_matrix_norm(b, (trek_matrix_order)8, false), TREK_ERR_ARGUMENT);
    ASSERT_REFUSED(trek_matrix_norm(trek_cast(b, TREK_I64), TREK_MATRIX_ORDER_FRO, false), TREK_ERR_DTYPE);
    ASSERT_REFUSED(trek_matrix_norm(trek_select(b, 0, 0), TREK_MATRIX_ORDER_FRO, false), TREK_ERR_SHAPE);
    ASSERT_REFUSED(trek_matrix_norm(trek_cast(b, TREK_BF16), TREK_MATRIX_ORDER_2, false), TREK_ERR_DTYPE);
    ASSERT_VALUES(trek_logdet(VALUES(trek_dims(3, 1, 1), TREK_F64, 1, -2, 0)), 0, NAN, -INFINITY);
    function_of *const of[] = { norm_FRO, norm_NUC, norm_2, norm_MINUS_2, norm_1, norm_MINUS_1, norm_INF, norm_MINUS_INF };
    for (int k = 0; k < 8; k++)
        check_gradients(of[k], 1, (trek_shape[]){ trek_dims(2, 3, 2) }, k < 4);
    check_gradients(of_logdet, 1, (trek_shape[]){ trek_dims(2, 3) }, true);
}

/* Of a turn by an angle, a nilpotent matrix, diagonals far apart, and against eigenvalues; without LAPACK, too. */
static void exponentials(void **state)
{
    ASSERT_VALUES(trek_matrix_exp(VALUES(trek_dims(2, 2), TREK_F64, 0, -20, 20, 0)), cos(20), -sin(20), sin(20), cos(20));
    ASSERT_VALUES(trek_matrix_exp(VALUES(trek_dims(3, 3), TREK_F32, 0, 2, 3, 0, 0, 4, 0, 0, 0)), 1, 2, 7, 0, 1, 4, 0, 0, 1);
    ASSERT_VALUES(trek_matrix_exp(VALUES(trek_dims(2, 2), TREK_F64, 0.25, 0, 0, -30)), exp(0.25), 0, 0, exp(-30));
    ASSERT_VALUES(trek_matrix_exp(VALUES(trek_dims(1, 1), TREK_BF16, 1)), 2.71875);
    assert_int_equal(trek_var_numel(trek_matrix_exp(values_of(trek_dims(2, 0, 0), TREK_F32, (double[]){ 0 }))), 0);
    trek_var *a = VALUES(trek_dims(1, 2), TREK_F32, 1, 2), *endless = VALUES(trek_dims(1, 1), TREK_F32, INFINITY);
    ASSERT_REFUSED(trek_matrix_exp(a), TREK_ERR_SHAPE);
    ASSERT_REFUSED(trek_matrix_exp(endless), TREK_ERR_ARGUMENT);
    ASSERT_REFUSED(trek_matrix_exp(trek_cast(endless, TREK_BOOL)), TREK_ERR_DTYPE);
    ASSERT_REFUSED(trek_matrix_exp(NULL), TREK_ERR_ARGUMENT);
}

static void gradients(void **state)
{
    check_gradients(solved, 2, (trek_shape[]){ trek_dims(2, 3, 3), trek_dims(3, 2) }, true);
    check_gradients(solved, 2, (trek_shape[]){ trek_dims(3, 3), trek_dims(3) }, true);
    check_gradients(solved_right, 2, (trek_shape[]){ trek_dims(2, 3, 3), trek_dims(2, 3) }, true);
    check_gradients(of_lu, 1, (trek_shape[]){ trek_dims(2, 3, 3) }, true);
    check_gradients(of_tall_lu, 2, (trek_shape[]){ trek_dims(3, 3), trek_dims(2, 3) }, true);
    check_gradients(of_wide_lu, 2, (trek_shape[]){ trek_dims(3, 3), trek_dims(2, 3) }, true);
    check_gradients(cut_off, 1, (trek_shape[]){ trek_dims(4, 1) }, true);
    check_gradients(exponential, 1, (trek_shape[]){ trek_dims(2, 3, 3) }, true);
    check_gradients(of_full, 1, (trek_shape[]){ trek_dims(4, 2) }, true);
    check_gradients(inverse, 1, (trek_shape[]){ trek_dims(2, 3, 3) }, true);
    check_gradients(upper, 2, (trek_shape[]){ trek_dims(3, 3), trek_dims(2, 3, 2) }, true);
    check_gradients(lower_right, 2, (trek_shape[]){ trek_dims(3, 3), trek_dims(2, 3) }, true);
    check_gradients(root, 1, (trek_shape[]){ trek_dims(2, 3, 3) }, true);
    check_gradients(by_root, 2, (trek_shape[]){ trek_dims(3, 3), trek_dims(3, 2) }, true);
    check_gradients(determinant, 1, (trek_shape[]){ trek_dims(2, 3, 3) }, true);
    check_gradients(log_determinant, 1, (trek_shape[]){ trek_dims(2, 3, 3) }, true);
    check_gradients(of_qr, 1, (trek_shape[]){ trek_dims(2, 4, 3) }, true);
    check_gradients(of_svd, 1, (trek_shape[]){ trek_dims(3, 3) }, true);
    check_gradients(of_svd, 1, (trek_shape[]){ trek_dims(2, 4, 3) }, true);
    check_gradients(of_svd, 1, (trek_shape[]){ trek_dims(2, 4) }, true);
    check_gradients(values_alone, 1, (trek_shape[]){ trek_dims(2, 3, 4) }, true);
    check_gradients(of_eigh, 1, (trek_shape[]){ trek_dims(2, 3, 3) }, true);
    check_gradients(eigenvalues, 1, (trek_shape[]){ trek_dims(3, 3) }, true);
    check_gradients(pseudo, 1, (trek_shape[]){ trek_dims(4, 3) }, true);
    check_gradients(pseudo, 1, (trek_shape[]){ trek_dims(2, 2, 3) }, true);
    check_gradients(least, 2, (trek_shape[]){ trek_dims(4, 2), trek_dims(4, 2) }, true);
    check_gradients(power, 1, (trek_shape[]){ trek_dims(3, 3) }, true);
}

static trek_var *wide_r(trek_var *const *in)
{
    trek_var *r, *q = trek_qr(in[0], &r);
    return trek_cat((trek_var *[]){ q, r }, 2, -1);
}

static void wide_factors(void **state)
{
    check_gradients(wide_r, 1, (trek_shape[]){ trek_dims(2, 4) }, true);
    /* of a singular matrix, whose cofactors are told by hand */
    trek_var *a = trek_clone(VALUES(trek_dims(2, 2), TREK_F64, 1, 2, 2, 4));
    assert_int_equal(trek_var_set_requires_grad(a, true), TREK_OK);
    assert_int_equal(trek_backward(trek_det(a)), TREK_OK);
    ASSERT_VALUES(trek_var_grad(a), 4, -2, -2, 1);
}

static void refused(void **state)
{
    trek_var *a = VALUES(trek_dims(2, 2), TREK_F64, 1, 2, 2, 4), *wide = random_values(1, trek_dims(2, 3));
    trek_var *half = trek_cast(a, TREK_BF16), *b = random_values(2, trek_dims(3, 1));
    ASSERT_REFUSED(trek_inv(a), TREK_ERR_ARGUMENT);
    ASSERT_REFUSED(trek_solve(a, a), TREK_ERR_ARGUMENT);
    ASSERT_REFUSED(trek_cholesky(trek_neg(a), false), TREK_ERR_ARGUMENT);
    ASSERT_REFUSED(trek_matrix_power(a, -1), TREK_ERR_ARGUMENT);
    ASSERT_REFUSED(trek_inv(wide), TREK_ERR_SHAPE);
    ASSERT_REFUSED(trek_solve_right(a, b), TREK_ERR_SHAPE);
    ASSERT_REFUSED(trek_lu(trek_select(wide, 0, 0), NULL, NULL), TREK_ERR_SHAPE);
    ASSERT_REFUSED(trek_lu(half, NULL, NULL), TREK_ERR_DTYPE);
    ASSERT_REFUSED(trek_pinv_with(a, 0, NAN), TREK_ERR_ARGUMENT);
    ASSERT_REFUSED(trek_matrix_rank_with(a, -1, 0), TREK_ERR_ARGUMENT);
    ASSERT_REFUSED(trek_lstsq_with(a, a, INFINITY), TREK_ERR_ARGUMENT);
    ASSERT_REFUSED(trek_qr_complete(half, NULL), TREK_ERR_DTYPE);
    ASSERT_REFUSED(trek_svd_full(NULL, NULL, NULL), TREK_ERR_ARGUMENT);
    ASSERT_REFUSED(trek_det(wide), TREK_ERR_SHAPE);
    ASSERT_REFUSED(trek_svd(trek_select(wide, 0, 0), NULL, NULL), TREK_ERR_SHAPE);
    ASSERT_REFUSED(trek_eigh(half, NULL), TREK_ERR_DTYPE);
    ASSERT_REFUSED(trek_solve(a, b), TREK_ERR_SHAPE);
    ASSERT_REFUSED(trek_solve(a, trek_cast(a, TREK_F32)), TREK_ERR_DTYPE);
    ASSERT_REFUSED(trek_solve_triangular(a, b, true, false, false), TREK_ERR_SHAPE);
    ASSERT_REFUSED(trek_lstsq(wide, b), TREK_ERR_SHAPE);
    ASSERT_REFUSED(trek_solve(trek_expand(a, trek_dims(2, 2, 2)), trek_expand(a, trek_dims(3, 2, 2))), TREK_ERR_SHAPE);
    ASSERT_REFUSED(trek_qr(trek_cast(a, TREK_I64), NULL), TREK_ERR_DTYPE);
    ASSERT_REFUSED(trek_matrix_power(trek_cast(a, TREK_I64), 2), TREK_ERR_DTYPE);
    ASSERT_REFUSED(trek_svdvals(NULL), TREK_ERR_ARGUMENT);
}

static void absent(void **state)
{
    trek_var *a = VALUES(trek_dims(2, 2), TREK_F64, 2, 1, 1, 2);
    ASSERT_REFUSED(trek_inv(a), TREK_ERR_UNSUPPORTED);
    assert_null(trek_cholesky(a, false));
    assert_non_null(strstr(trek_error(), "install liblapack3"));
    trek_error_clear();
    ASSERT_VALUES(trek_matrix_power(a, 2), 5, 4, 4, 5); /* needs none */
}

int main(void)
{
    const struct CMUnitTest there[] = {
        TEST(factors), TEST(systems), TEST(large_factors), TEST(large_orthogonal), TEST(given_values), TEST(least_squares),
            TEST(not_finite), TEST(late_pivots), TEST(numbers), TEST(exponentials), TEST(gradients),
            TEST(norms), TEST(wide_factors),
            TEST(refused),
    };
    const struct CMUnitTest none[] = { cmocka_unit_test_setup_teardown(absent, open_scope, close_scope) };
    const char *role = getenv("TREK_TEST_LAPACK");
    if (role && strcmp(role, "absent") == 0)
        return cmocka_run_group_tests(none, NULL, NULL);
    open_scope(NULL);
    bool found = trek_inv(eye(2)) != NULL;
    if (!found)
        puts(trek_error());
    close_scope(NULL);
    return found ? cmocka_run_group_tests(there, NULL, NULL) : 77;
}
