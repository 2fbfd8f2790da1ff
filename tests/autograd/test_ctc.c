/* SPDX-License-Identifier: Apache-2.0 */
/* The CTC loss against PyTorch's numbers, against a sum over all alignments, and its gradient against differences. */
#include "autograd/backward.h"
#include "autograd/leaf.h"
#include "autograd/ops.h"
#include "tests/autograd/differences.h"
#include "tests/support/scoped.h"
#include "tests/support/support.h"

static const trek_ctc_opts none = { .reduction = TREK_REDUCTION_NONE }, sum = { .reduction = TREK_REDUCTION_SUM };

/* --- PyTorch's ----------------------------------------------------------------------------------- */

enum { T = 4, N = 2, C = 3 };

static trek_var *logits(void)
{
    double x[T * N * C];
    for (int t = 0; t < T; t++)
        for (int n = 0; n < N; n++)
            for (int c = 0; c < C; c++)
                x[(t * N + n) * C + c] = (7 * t + 3 * n + 5 * c) % 11 / 5.0 - 1;
    return values_of(trek_dims(T, N, C), TREK_F64, x);
}

static trek_var *rows_of(trek_var *log_probs, trek_var *targets, const trek_ctc_opts *opts)
{
    return trek_ctc_loss(log_probs, targets, LIST(TREK_I64, 4, 3), LIST(TREK_I32, 2, 1), opts);
}

static void as_pytorch(void **state)
{
    trek_var *x = logits(), *targets = VALUES(trek_dims(2, 2), TREK_I64, 1, 2, 2, 2);
    assert_int_equal(trek_var_set_requires_grad(x, true), TREK_OK);
    trek_var *log_probs = trek_log_softmax(x, 2);
    ASSERT_VALUES(rows_of(log_probs, targets, &none), 2.47215192859, 1.54585620097);
    ASSERT_VALUES(rows_of(log_probs, LIST(TREK_U8, 1, 2, 2), &none), 2.47215192859, 1.54585620097); /* one behind the other */
    ASSERT_VALUES(rows_of(log_probs, targets, &sum), 4.01800812956);
    ASSERT_VALUES(rows_of(trek_cast(log_probs, TREK_F32), targets, &sum), 4.01800812956);
    trek_var *mean = rows_of(log_probs, targets, NULL);
    ASSERT_VALUES(mean, 1.39096608263);
    assert_true(trek_loss_weight(mean) == 2);
    assert_int_equal(trek_backward(mean), TREK_OK);
    ASSERT_VALUES(trek_var_grad(x), -0.0244569463955, -0.141853292548, 0.166310238944, -0.155323466879, 0.29956736725,
                  -0.144243900371, 0.00677712577415, -0.0308803224733, 0.0241031966992, 0.0474547752452, 0.0710388850753,
                  -0.11849366032, -0.0151035309562, 0.0880791495488, -0.0729756185926, -0.0296707380251, 0.0710388850753,
                  -0.0413681470502, 0.0238920845118, 0.0355194425376, -0.0594115270494, 0, 0, 0);
    /* one row alone */
    trek_var *alone = trek_ctc_loss(trek_select(log_probs, 1, 0), LIST(TREK_I64, 1, 2), LIST(TREK_I64, 4),
                                    VALUES(trek_dims_none(), TREK_I64, 2), NULL);
    ASSERT_VALUES(alone, 2.47215192859 / 2);
    assert_int_equal(trek_var_ndim(alone), 0);
}

/* --- all alignments ------------------------------------------------------------------------------- */

/* Whether a path of classes, repeats merged and then blanks taken out, is the target. */
static bool spells(const int *path, int steps, const int *target, int length, int blank)
{
    int at = 0;
    for (int t = 0; t < steps; t++) {
        if (path[t] == blank || (t > 0 && path[t] == path[t - 1]))
            continue;
        if (at == length || path[t] != target[at++])
            return false;
    }
    return at == length;
}

static double by_all_paths(const double *log_probs, int steps, int classes, const int *target, int length, int blank)
{
    double total = 0;
    int paths = 1, path[8];
    for (int t = 0; t < steps; t++)
        paths *= classes;
    for (int k = 0; k < paths; k++) {
        double log_prob = 0;
        for (int t = 0, rest = k; t < steps; rest /= classes, t++) {
            path[t] = rest % classes;
            log_prob += log_probs[t * classes + path[t]];
        }
        total += spells(path, steps, target, length, blank) ? exp(log_prob) : 0;
    }
    return -log(total);
}

static void all_alignments(void **state)
{
    static const int targets[][3] = { { 0, 0, 0 }, { 1, 2, 1 }, { 1, 1, 2 }, { 2, 2, 2 }, { 3, 1, 3 } };
    for (int row = 0; row < 5; row++)
        for (int length = 0; length <= 3; length++)
            for (int steps = 1; steps <= 6; steps++) {
                const int *target = targets[row];
                if (target[0] == 0 && length > 0)
                    continue;
                trek_var *x = random_values((uint32_t)(20 + row), trek_dims(steps, 4)); /* not normalised */
                double numbers[3] = { target[0], target[1], target[2] }, *log_probs = test_read(trek_var_data(x));
                trek_var *loss = trek_ctc_loss(x, values_of(trek_dims(length), TREK_I64, numbers), LIST(TREK_I64, steps),
                                               LIST(TREK_I64, length), &none);
                double wanted = by_all_paths(log_probs, steps, 4, target, length, 0);
                ASSERT_VALUES(loss, wanted);
                free(log_probs);
            }
}

static trek_var *of_rows(trek_var *const *in)
{
    trek_var *targets = VALUES(trek_dims(3, 3), TREK_I64, 1, 3, 3, 0, 0, 0, 3, 1, 0);
    return trek_ctc_loss(in[0], targets, LIST(TREK_I64, 5, 4, 5), LIST(TREK_I64, 3, 0, 2),
                         &(trek_ctc_opts){ .blank = 2, .reduction = TREK_REDUCTION_NONE });
}

static trek_var *of_mean(trek_var *const *in)
{
    return trek_ctc_loss(trek_permute(in[0], trek_dims(1, 0, 2)), VALUES(trek_dims(3, 2), TREK_I64, 1, 3, 1, 1, 3, 3),
                         LIST(TREK_I64, 5, 4, 0), LIST(TREK_I64, 2, 1, 0), NULL);
}

static trek_var *of_labels(trek_var *const *in)
{
    return trek_multilabel_margin_loss(in[0], VALUES(trek_dims(2, 4), TREK_I64, 3, 0, -1, 1, 1, 1, -1, 0), TREK_REDUCTION_NONE);
}

static void gradients(void **state)
{
    check_gradients(of_rows, 1, (trek_shape[]){ trek_dims(5, 3, 4) }, false);
    check_gradients(of_mean, 1, (trek_shape[]){ trek_dims(3, 5, 4) }, false);
    check_gradients(of_labels, 1, (trek_shape[]){ trek_dims(2, 4) }, false);
    trek_var *x = trek_var_detach(random_values(1, trek_dims(2, 1, 3))), *grad, *more;
    assert_int_equal(trek_var_set_requires_grad(x, true), TREK_OK);
    trek_var *loss = trek_ctc_loss(x, LIST(TREK_I64, 1), LIST(TREK_I64, 2), LIST(TREK_I64, 1), NULL);
    assert_int_equal(trek_grad(&loss, 1, &x, 1, NULL, &(trek_backward_opts){ .create_graph = true }, &grad), TREK_OK);
    trek_var *total = trek_sum(grad, trek_dims_all(), false);
    assert_int_equal(trek_grad(&total, 1, &x, 1, NULL, NULL, &more), TREK_ERR_UNSUPPORTED);
}

/* More labels than steps. */
static void no_path(void **state)
{
    for (int zero = 0; zero < 2; zero++) {
        trek_var *x = trek_clone(trek_var_detach(random_values(1, trek_dims(2, 2, 3))));
        assert_int_equal(trek_var_set_requires_grad(x, true), TREK_OK);
        trek_var *loss = trek_ctc_loss(x, VALUES(trek_dims(2, 2), TREK_I64, 1, 1, 1, 2), LIST(TREK_I64, 2, 2),
                                       LIST(TREK_I64, 2, 0),
                                       &(trek_ctc_opts){ .zero_infinity = zero, .reduction = TREK_REDUCTION_SUM });
        assert_int_equal(trek_backward(loss), TREK_OK);
        double *grad = test_read(trek_var_data(trek_var_grad(x)));
        assert_true(zero ? isfinite(trek_var_item(loss)) : trek_var_item(loss) == INFINITY);
        for (int c = 0; c < 3; c++)
            assert_true((zero ? grad[c] == 0 : isnan(grad[c])) && grad[3 + c] == (c == 0 ? -1 : 0));
        free(grad);
    }
    /* of no rows, and of no steps */
    trek_var *rows = trek_ctc_loss(random_values(1, trek_dims(2, 0, 3)), values_of(trek_dims(0, 2), TREK_I64, (double[]){ 0 }),
                                   values_of(trek_dims(0), TREK_I64, (double[]){ 0 }),
                                   values_of(trek_dims(0), TREK_I64, (double[]){ 0 }), NULL);
    ASSERT_VALUES(rows, 0);
    ASSERT_VALUES(trek_ctc_loss(random_values(1, trek_dims(2, 1, 3)), LIST(TREK_I64, 1), LIST(TREK_I64, 0), LIST(TREK_I64, 1),
                                &none),
                  INFINITY);
}

static void refused(void **state)
{
    trek_var *x = random_values(1, trek_dims(3, 1, 4)), *one = LIST(TREK_I64, 1), *three = LIST(TREK_I64, 3);
    ASSERT_REFUSED(trek_ctc_loss(x, LIST(TREK_I64, 4), three, one, NULL), TREK_ERR_ARGUMENT);
    ASSERT_REFUSED(trek_ctc_loss(x, LIST(TREK_I64, 0), three, one, NULL), TREK_ERR_ARGUMENT); /* the blank */
    ASSERT_REFUSED(trek_ctc_loss(x, one, LIST(TREK_I64, 4), one, NULL), TREK_ERR_ARGUMENT);
    ASSERT_REFUSED(trek_ctc_loss(x, one, three, LIST(TREK_I64, 2), NULL), TREK_ERR_ARGUMENT);
    ASSERT_REFUSED(trek_ctc_loss(x, LIST(TREK_I64, 1, 2), three, one, NULL), TREK_ERR_ARGUMENT);
    ASSERT_REFUSED(trek_ctc_loss(x, one, three, one, &(trek_ctc_opts){ .blank = 4 }), TREK_ERR_ARGUMENT);
    ASSERT_REFUSED(trek_ctc_loss(x, one, three, one, &(trek_ctc_opts){ .reduction = 7 }), TREK_ERR_ARGUMENT);
    ASSERT_REFUSED(trek_ctc_loss(x, LIST(TREK_F32, 1), three, one, NULL), TREK_ERR_DTYPE);
    ASSERT_REFUSED(trek_ctc_loss(trek_cast(x, TREK_I64), one, three, one, NULL), TREK_ERR_DTYPE);
    ASSERT_REFUSED(trek_ctc_loss(x, one, LIST(TREK_I64, 3, 3), one, NULL), TREK_ERR_SHAPE);
    ASSERT_REFUSED(trek_ctc_loss(one, one, three, one, NULL), TREK_ERR_SHAPE);
    ASSERT_REFUSED(trek_ctc_loss(x, NULL, three, one, NULL), TREK_ERR_ARGUMENT);
}

static void labels(void **state)
{
    trek_var *x = VALUES(trek_dims(2, 4), TREK_F64, 0.1, 0.2, 0.4, 0.8, -0.5, 1, 0.3, 0.2);
    trek_var *target = VALUES(trek_dims(2, 4), TREK_I64, 3, 0, -1, 1, 1, 1, -1, 0);
    assert_int_equal(trek_var_set_requires_grad(x, true), TREK_OK);
    ASSERT_VALUES(trek_multilabel_margin_loss(x, target, TREK_REDUCTION_NONE), 0.85, 0.25);
    ASSERT_VALUES(trek_multilabel_margin_loss(x, target, TREK_REDUCTION_SUM), 1.1);
    trek_var *mean = trek_multilabel_margin_loss(x, target, TREK_REDUCTION_MEAN);
    ASSERT_VALUES(mean, 0.55);
    assert_true(trek_loss_weight(mean) == 2);
    assert_int_equal(trek_backward(mean), TREK_OK);
    ASSERT_VALUES(trek_var_grad(x), -0.25, 0.25, 0.25, -0.25, 0, -0.5, 0.25, 0.25);
    ASSERT_REFUSED(trek_multilabel_margin_loss(x, trek_add_scalar(target, 1), TREK_REDUCTION_MEAN), TREK_ERR_ARGUMENT);
    ASSERT_REFUSED(trek_multilabel_margin_loss(x, trek_sub_scalar(target, 1), TREK_REDUCTION_MEAN), TREK_ERR_ARGUMENT);
    ASSERT_REFUSED(trek_multilabel_margin_loss(x, trek_select(target, 0, 0), TREK_REDUCTION_MEAN), TREK_ERR_SHAPE);
    ASSERT_REFUSED(trek_multilabel_margin_loss(x, x, TREK_REDUCTION_MEAN), TREK_ERR_DTYPE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(as_pytorch), TEST(all_alignments), TEST(gradients), TEST(no_path), TEST(refused), TEST(labels),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
