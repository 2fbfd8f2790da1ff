/* SPDX-License-Identifier: Apache-2.0 */
/* Sums of products by labels, products, distances: against numbers told by hand and plain loops; gradients by differences. */
#include "autograd/backward.h"
#include "autograd/leaf.h"
#include "autograd/linalg.h"
#include "autograd/ops.h"
#include "tensor/shapes.h"
#include "tests/autograd/differences.h"
#include "tests/support/scoped.h"
#include "tests/support/support.h"

static trek_var *einsum2(const char *equation, trek_var *x, trek_var *y)
{
    return trek_einsum(equation, (trek_var *[]){ x, y }, 2);
}

static void equations(void **state)
{
    trek_var *x = VALUES(trek_dims(2, 2), TREK_F64, 1, 2, 3, 4), *y = VALUES(trek_dims(2, 3), TREK_F64, 1, 0, 2, -1, 3, 1);
    ASSERT_VALUES(einsum2("ij,jk", x, y), -1, 6, 4, -1, 12, 10);
    ASSERT_VALUES(einsum2("ij , jk -> ki", x, y), -1, -1, 6, 12, 4, 10);
    ASSERT_VALUES(einsum2("ij,ik->jk", x, y), -2, 9, 5, -2, 12, 8);
    ASSERT_VALUES(einsum2("ij,ij->i", x, x), 5, 25);
    ASSERT_VALUES(einsum2("ij,ij->ij", x, x), 1, 4, 9, 16);
    ASSERT_VALUES(einsum2("ij,kl->", x, y), 60);
    ASSERT_VALUES(trek_einsum("ii", &x, 1), 5);
    ASSERT_VALUES(trek_einsum("ii->i", &x, 1), 1, 4);
    ASSERT_VALUES(trek_einsum("ba", &x, 1), 1, 3, 2, 4); /* letters in their order */
    ASSERT_VALUES(trek_einsum("ij->j", &x, 1), 4, 6);
    ASSERT_VALUES(einsum2("...j,j->...", x, VALUES(trek_dims(2), TREK_F64, 1, 10)), 21, 43);
    ASSERT_VALUES(einsum2("i...,i...", x, VALUES(trek_dims(1, 2), TREK_F64, 1, 10)), 4, 60); /* of size 1 */
    ASSERT_VALUES(trek_einsum("ij,jk,kl->il", (trek_var *[]){ x, x, x }, 3), 37, 54, 81, 118);
}

/* "bij,bkj->bki" of views against loops: batch, rows and columns in an order that no one product has. */
static void against_loops(void **state)
{
    trek_var *x = trek_permute(random_values(1, trek_dims(4, 3, 5)), trek_dims(1, 2, 0)),
        *y = random_values(2, trek_dims(3, 2, 4)); /* [3, 5, 4], [3, 2, 4] */
    double *a = test_read(trek_var_data(x)), *b = test_read(trek_var_data(y)), *c;
    trek_var *z = einsum2("bij,bkj->bki", x, y);
    assert_non_null(z);
    assert_true(trek_shape_equal(trek_var_shape(z), trek_dims(3, 2, 5)));
    c = test_read(trek_var_data(z));
    for (int n = 0; n < 3; n++)
        for (int k = 0; k < 2; k++)
            for (int i = 0; i < 5; i++) {
                double sum = 0;
                for (int j = 0; j < 4; j++)
                    sum += a[(n * 5 + i) * 4 + j] * b[(n * 2 + k) * 4 + j];
                assert_true(fabs(c[(n * 2 + k) * 5 + i] - sum) < 1e-12);
            }
    free(a);
    free(b);
    free(c);
}

static void refused_equations(void **state)
{
    trek_var *x = VALUES(trek_dims(2, 2), TREK_F32, 1, 2, 3, 4), *y = VALUES(trek_dims(3), TREK_F32, 1, 2, 3);
    ASSERT_REFUSED(trek_einsum("i", &x, 1), TREK_ERR_ARGUMENT);
    ASSERT_REFUSED(trek_einsum("ijk", &x, 1), TREK_ERR_ARGUMENT);
    ASSERT_REFUSED(trek_einsum("i1", &x, 1), TREK_ERR_ARGUMENT);
    ASSERT_REFUSED(trek_einsum("......", &x, 1), TREK_ERR_ARGUMENT);
    ASSERT_REFUSED(trek_einsum("ij,jk", &x, 1), TREK_ERR_ARGUMENT);
    ASSERT_REFUSED(einsum2("ij", x, x), TREK_ERR_ARGUMENT);
    ASSERT_REFUSED(trek_einsum("ij->ik", &x, 1), TREK_ERR_ARGUMENT);
    ASSERT_REFUSED(trek_einsum("ij->ii", &x, 1), TREK_ERR_ARGUMENT);
    ASSERT_REFUSED(trek_einsum("ij-", &x, 1), TREK_ERR_ARGUMENT);
    ASSERT_REFUSED(trek_einsum("ij->i,j", &x, 1), TREK_ERR_ARGUMENT);
    ASSERT_REFUSED(einsum2("ij,j", x, y), TREK_ERR_SHAPE);
    ASSERT_REFUSED(einsum2("ij,j", x, trek_cast(trek_narrow(y, 0, 0, 2), TREK_F64)), TREK_ERR_DTYPE);
    ASSERT_REFUSED(trek_einsum(NULL, &x, 1), TREK_ERR_ARGUMENT);
    ASSERT_REFUSED(trek_einsum("ij", &x, 0), TREK_ERR_ARGUMENT);
    ASSERT_REFUSED(einsum2("abcdef,ghijkl->abcdefghijkl", random_values(1, trek_dims(1, 1, 1, 1, 1, 1)),
                           random_values(1, trek_dims(1, 1, 1, 1, 1, 1))), TREK_ERR_ARGUMENT);
    ASSERT_REFUSED(einsum2("abcdef,ghijkl", random_values(1, trek_dims(1, 1, 1, 1, 1, 1)),
                           random_values(1, trek_dims(1, 1, 1, 1, 1, 1))), TREK_ERR_UNSUPPORTED);
}

static trek_var *attention_scores(trek_var *const *in) { return trek_einsum("bthd,bshd->bhts", in, 2); }
static trek_var *diagonals(trek_var *const *in) { return trek_einsum("aab,bc->ac", in, 2); }
static trek_var *three(trek_var *const *in) { return trek_einsum("bi,ijk,bk->bj", in, 3); }
static trek_var *dotted(trek_var *const *in) { return trek_tensordot(in[0], in[1], trek_dims(2, 0), trek_dims(0, -1)); }
static trek_var *blocks(trek_var *const *in) { return trek_kron(in[0], in[1]); }
static trek_var *crossed(trek_var *const *in) { return trek_cross(in[0], in[1], 0); }
static trek_var *added(trek_var *const *in) { return trek_addmm(in[0], in[1], in[2], 0.5, 2); }
static trek_var *few_rows(trek_var *const *in) { return trek_cdist(in[0], in[1], 2); }
static trek_var *cubes(trek_var *const *in) { return trek_cdist(in[0], in[1], 3); }
static trek_var *pairs(trek_var *const *in) { return trek_pdist(in[0], 2); }

static void gradients(void **state)
{
    check_gradients(attention_scores, 2, (trek_shape[]){ trek_dims(2, 3, 2, 4), trek_dims(2, 2, 2, 4) }, true);
    check_gradients(diagonals, 2, (trek_shape[]){ trek_dims(3, 3, 2), trek_dims(2, 2) }, true);
    check_gradients(three, 3, (trek_shape[]){ trek_dims(2, 3), trek_dims(3, 2, 4), trek_dims(2, 4) }, true);
    check_gradients(dotted, 2, (trek_shape[]){ trek_dims(2, 3, 4), trek_dims(4, 2, 2) }, true);
    check_gradients(blocks, 2, (trek_shape[]){ trek_dims(2, 3), trek_dims(2) }, true);
    check_gradients(blocks, 2, (trek_shape[]){ trek_dims(9, 2), trek_dims(8, 3) }, true);
    check_gradients(crossed, 2, (trek_shape[]){ trek_dims(3, 2), trek_dims(3, 1) }, true);
    check_gradients(added, 3, (trek_shape[]){ trek_dims(3), trek_dims(2, 4), trek_dims(4, 3) }, true);
    check_gradients(few_rows, 2, (trek_shape[]){ trek_dims(3, 4), trek_dims(30, 4) }, true);
    check_gradients(few_rows, 2, (trek_shape[]){ trek_dims(2, 3, 4), trek_dims(5, 4) }, true);
    check_gradients(cubes, 2, (trek_shape[]){ trek_dims(3, 4), trek_dims(2, 4) }, true);
    check_gradients(pairs, 1, (trek_shape[]){ trek_dims(4, 3) }, true);
}

static void products(void **state)
{
    trek_var *x = VALUES(trek_dims(2), TREK_F32, 1, 2), *y = VALUES(trek_dims(3), TREK_F32, 1, 0, 3);
    trek_var *m = VALUES(trek_dims(2, 2), TREK_F32, 1, 2, 3, 4);
    ASSERT_VALUES(trek_outer_product(x, y), 1, 0, 3, 2, 0, 6);
    ASSERT_VALUES(trek_kron(x, y), 1, 0, 3, 2, 0, 6);
    ASSERT_VALUES(trek_kron(m, x), 1, 2, 2, 4, 3, 6, 4, 8);
    ASSERT_VALUES(trek_dot(x, x), 5);
    ASSERT_VALUES(trek_inner(m, x), 5, 11);
    ASSERT_VALUES(trek_inner(m, VALUES(trek_dims_none(), TREK_F32, 2)), 2, 4, 6, 8);
    ASSERT_VALUES(trek_tensordot(m, x, trek_dims_none(), trek_dims_none()), 1, 2, 2, 4, 3, 6, 4, 8);
    ASSERT_VALUES(trek_trace(m), 5);
    ASSERT_VALUES(trek_addmm(x, m, m, 1, 1), 8, 12, 16, 24);
    ASSERT_VALUES(trek_addmm(LIST(TREK_F32, NAN, NAN), m, m, 0, 2), 14, 20, 30, 44);
    ASSERT_VALUES(trek_baddbmm(x, trek_unsqueeze(m, 0), trek_unsqueeze(m, 0), -1, 1), 6, 8, 14, 20);
    ASSERT_VALUES(trek_cross(y, LIST(TREK_F32, 0, 1, 2), 0), -3, -2, 1);
    ASSERT_VALUES(trek_cross(trek_expand(trek_cast(y, TREK_I64), trek_dims(2, 3)), VALUES(trek_dims(1, 3), TREK_I64, 0, 1, 2),
                             -1),
                  -3, -2, 1, -3, -2, 1);
    ASSERT_REFUSED(trek_cross(x, x, 0), TREK_ERR_SHAPE);
    ASSERT_REFUSED(trek_cross(y, m, 0), TREK_ERR_SHAPE);
    ASSERT_REFUSED(trek_cross(y, trek_cast(y, TREK_F64), 0), TREK_ERR_DTYPE);
    ASSERT_REFUSED(trek_dot(x, y), TREK_ERR_SHAPE);
    ASSERT_REFUSED(trek_outer_product(m, x), TREK_ERR_SHAPE);
    ASSERT_REFUSED(trek_trace(x), TREK_ERR_SHAPE);
    ASSERT_REFUSED(trek_inner(m, y), TREK_ERR_SHAPE);
    ASSERT_REFUSED(trek_addmm(y, m, m, 1, 1), TREK_ERR_SHAPE);
    ASSERT_REFUSED(trek_addmm(trek_cast(x, TREK_F64), m, m, 1, 1), TREK_ERR_DTYPE);
    trek_var *whole = trek_cast(m, TREK_I64);
    ASSERT_VALUES(trek_addmm(whole, whole, whole, 2, 1), 9, 14, 21, 30);
    ASSERT_REFUSED(trek_addmm(whole, whole, whole, 0.5, 1), TREK_ERR_ARGUMENT);
    ASSERT_REFUSED(trek_baddbmm(x, trek_expand(m, trek_dims(2, 2, 2)), trek_expand(m, trek_dims(3, 2, 2)), 1, 1), TREK_ERR_SHAPE);
    ASSERT_REFUSED(trek_tensordot(m, m, trek_dims(0, 0), trek_dims(0, 1)), TREK_ERR_ARGUMENT);
    ASSERT_REFUSED(trek_tensordot(m, m, trek_dims(0), trek_dims(0, 1)), TREK_ERR_ARGUMENT);
    ASSERT_REFUSED(trek_kron(random_values(1, trek_dims(1, 1, 1, 1, 1)), x), TREK_ERR_UNSUPPORTED);
}

/* Shapes whose rows are long or short, with inputs that are repeated or read as they are, in two layouts. */
static void kronecker_products(void **state)
{
    static const int64_t rows[][4] = { { 9, 2, 8, 3 }, { 9, 5, 16, 4 }, { 8, 3, 8, 700 }, { 3, 9, 8, 2 }, { 8, 1, 8, 1 },
                                       { 20, 0, 20, 3 } };
    for (size_t r = 0; r < 2 * sizeof rows / sizeof *rows; r++) {
        const int64_t *s = rows[r / 2];
        bool turned = r & 1;
        trek_var *x = random_values(1, turned ? trek_dims(s[1], s[0]) : trek_dims(s[0], s[1]));
        trek_var *y = random_values(2, turned ? trek_dims(s[3], s[2]) : trek_dims(s[2], s[3]));
        x = turned ? trek_transpose(x, 0, 1) : x;
        y = turned ? trek_transpose(y, 0, 1) : y;
        trek_var *product = trek_kron(x, y);
        assert_non_null(product);
        assert_true(trek_shape_equal(trek_var_shape(product), trek_dims(s[0] * s[2], s[1] * s[3])));
        double *to = test_read(trek_var_data(product)), *of_a = test_read(trek_var_data(x)), *of_b = test_read(trek_var_data(y));
        for (int64_t i = 0; i < s[0] * s[2]; i++)
            for (int64_t j = 0; j < s[1] * s[3]; j++)
                assert_true(to[i * s[1] * s[3] + j] == of_a[i / s[2] * s[1] + j / s[3]] * of_b[i % s[2] * s[3] + j % s[3]]);
        free(to);
        free(of_a);
        free(of_b);
    }
}

static void distances(void **state)
{
    trek_var *x = VALUES(trek_dims(2, 2), TREK_F32, 0, 0, 3, 4), *y = VALUES(trek_dims(1, 2), TREK_F32, 0, 0);
    ASSERT_VALUES(trek_cdist(x, y, 2), 0, 5);
    ASSERT_VALUES(trek_cdist(x, y, 1), 0, 7);
    ASSERT_VALUES(trek_cdist(x, y, INFINITY), 0, 4);
    ASSERT_VALUES(trek_cdist(x, y, 0), 0, 2);
    ASSERT_VALUES(trek_pdist(x, 2), 5);
}

static void distances_at_0(void **state)
{
    assert_int_equal(trek_var_numel(trek_pdist(VALUES(trek_dims(1, 2), TREK_F32, 1, 2), 2)), 0);
    for (int rows = 1; rows < 40; rows += 38) { /* by differences, by products */
        trek_var *x = trek_clone(trek_expand(VALUES(trek_dims(2), TREK_F32, 1, 2), trek_dims(rows, 2)));
        assert_int_equal(trek_var_set_requires_grad(x, true), TREK_OK);
        assert_int_equal(trek_backward(trek_sum(trek_cdist(x, trek_var_detach(x), 2), trek_dims_all(), false)), TREK_OK);
        double *grad = test_read(trek_var_data(trek_var_grad(x)));
        for (int i = 0; i < rows * 2; i++)
            assert_true(grad[i] == 0);
        free(grad);
    }
    trek_var *x = VALUES(trek_dims(2, 2), TREK_F32, 0, 0, 3, 4);
    ASSERT_REFUSED(trek_cdist(x, x, -1), TREK_ERR_ARGUMENT);
    ASSERT_REFUSED(trek_cdist(x, x, NAN), TREK_ERR_ARGUMENT);
    ASSERT_REFUSED(trek_cdist(x, trek_narrow(x, 1, 0, 1), 2), TREK_ERR_SHAPE);
    ASSERT_REFUSED(trek_cdist(x, trek_cast(x, TREK_F64), 2), TREK_ERR_DTYPE);
    ASSERT_REFUSED(trek_pdist(trek_cast(x, TREK_I64), 2), TREK_ERR_DTYPE);
    ASSERT_REFUSED(trek_pdist(trek_select(x, 0, 0), 2), TREK_ERR_SHAPE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(equations), TEST(against_loops), TEST(refused_equations), TEST(gradients), TEST(products), TEST(kronecker_products),
        TEST(distances), TEST(distances_at_0),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
