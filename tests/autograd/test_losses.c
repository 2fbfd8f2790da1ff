/* SPDX-License-Identifier: Apache-2.0 */
/* What losses are the mean of: the weight that data parallelism reads, over full,
 * ignored and empty batches; sums of weight x loss over parts give the whole. */
#include "autograd/backward.h"
#include "autograd/leaf.h"
#include "autograd/ops.h"
#include "tensor/dtypes.h"
#include "tests/support/scoped.h"
#include "tests/support/support.h"

#define CLASSES 5

static trek_var *numbers(uint32_t stream, trek_shape shape)
{
    return trek_cast(trek_var_from(test_tensor(stream, shape, 1)), TREK_F64);
}

/* A leaf over rows [first, first + rows) of x. */
static trek_var *leaf(trek_var *x, int64_t first, int64_t rows)
{
    trek_var *part = trek_clone(trek_var_detach(trek_narrow(x, 0, first, rows)));
    assert_non_null(part);
    assert_int_equal(trek_var_set_requires_grad(part, true), TREK_OK);
    return part;
}

/* Labels of n rows; every third is `ignore` if that is below 0. */
static trek_var *labels_of(int64_t n, int64_t ignore)
{
    double values[64];
    assert_true(n <= 64);
    for (int64_t k = 0; k < n; k++)
        values[k] = ignore < 0 && k % 3 == 1 ? (double)ignore : (double)((7 * k + 2) % CLASSES);
    return trek_var_from(test_values(values, trek_dims(n), TREK_I64));
}

/* --- every loss, over [rows, CLASSES] and what belongs to the rows ------------------------- */

typedef struct loss_case {
    const char *name;
    trek_var *(*loss)(trek_var *x, trek_var *target);
    trek_var *(*target)(int64_t rows);
    double (*weight)(int64_t first, int64_t rows);
} loss_case;

static trek_var *plain_labels(int64_t n) { return labels_of(n, 0); }
static trek_var *some_ignored(int64_t n) { return labels_of(n, -100); }
static trek_var *some_minus_one(int64_t n) { return labels_of(n, -1); }
static trek_var *values(int64_t n) { return numbers(11, trek_dims(n, CLASSES)); }
static trek_var *probabilities(int64_t n) { return trek_softmax(values(n), 1); }

static double all_rows(int64_t first, int64_t rows) { return (void)first, (double)rows; }
static double elements(int64_t first, int64_t rows) { return (void)first, (double)(rows * CLASSES); }
static double not_ignored(int64_t first, int64_t rows)
{
    int n = 0;
    for (int64_t k = first; k < first + rows; k++)
        n += k % 3 != 1;
    return n;
}

static const double class_weight[CLASSES] = { 0.5, 2, 1, 0.25, 3 };
static double class_weights(int64_t first, int64_t rows)
{
    double sum = 0;
    for (int64_t k = first; k < first + rows; k++)
        sum += k % 3 != 1 ? class_weight[(7 * k + 2) % CLASSES] : 0;
    return sum;
}

static trek_var *with_classes(trek_var *x, trek_var *labels)
{
    trek_var *weight = trek_var_from(test_values(class_weight, trek_dims(CLASSES), TREK_F64));
    return trek_cross_entropy_with(x, labels, &(trek_cross_entropy_opts){ .weight = weight, .label_smoothing = 0.1 });
}

static trek_var *ignoring_minus_one(trek_var *x, trek_var *labels)
{
    return trek_cross_entropy_with(x, labels, &(trek_cross_entropy_opts){ .ignore_index = -1 });
}

/* [rows, C] seen as [rows, C, 1] */
static trek_var *with_places(trek_var *x, trek_var *labels)
{
    return trek_cross_entropy(trek_unsqueeze(x, 2), trek_unsqueeze(labels, 1));
}

static trek_var *through_linear(trek_var *x, trek_var *labels)
{
    return trek_linear_cross_entropy(x, numbers(12, trek_dims(CLASSES, CLASSES)), NULL, labels, NULL);
}

static trek_var *nll(trek_var *x, trek_var *labels) { return trek_nll_loss(trek_log_softmax(x, 1), labels); }
static trek_var *smooth(trek_var *x, trek_var *target) { return trek_smooth_l1_loss(x, target, 0.3); }
static trek_var *divergence(trek_var *x, trek_var *target) { return trek_kl_div(trek_log_softmax(x, 1), target); }

static trek_var *signs_of(trek_var *x)
{
    return trek_where(trek_ge_scalar(x, 0), trek_add_scalar(trek_mul_scalar(x, 0), 1),
                      trek_add_scalar(trek_mul_scalar(x, 0), -1));
}
static trek_var *ones_of(trek_var *x) { return trek_cast(trek_ge_scalar(x, 0), trek_var_dtype(x)); }

static trek_var *mse_weighted(trek_var *x, trek_var *y)
{
    return trek_mse_loss_with(x, y, &(trek_loss_opts){ .weight = trek_exp(y) });
}
static trek_var *l1_weighted(trek_var *x, trek_var *y)
{
    return trek_l1_loss_with(x, y, &(trek_loss_opts){ .weight = trek_exp(y) });
}
static trek_var *smooth_weighted(trek_var *x, trek_var *y)
{
    return trek_smooth_l1_loss_with(x, y, 0.3, &(trek_loss_opts){ .weight = trek_exp(y) });
}
static trek_var *huber(trek_var *x, trek_var *y) { return trek_huber_loss(x, y, 0.4, NULL); }
static trek_var *of_probabilities(trek_var *x, trek_var *y) { return trek_bce(trek_sigmoid(x), y, NULL); }
static trek_var *positives(trek_var *x, trek_var *y)
{
    return trek_bce_with_logits_with(x, y, &(trek_bce_opts){ .pos_weight = trek_exp(y) });
}
static trek_var *focal(trek_var *x, trek_var *y) { return trek_focal_loss(x, y, NULL); }
static trek_var *soft_margin(trek_var *x, trek_var *y) { return trek_soft_margin_loss(x, signs_of(y), NULL); }
static trek_var *poisson(trek_var *x, trek_var *y)
{
    return trek_poisson_nll_loss(x, y, &(trek_poisson_nll_opts){ .full = true });
}
static trek_var *gaussian(trek_var *x, trek_var *y) { return trek_gaussian_nll_loss(x, y, trek_exp(y), NULL); }
static trek_var *divergence_of_elements(trek_var *x, trek_var *y)
{
    return trek_kl_div_with(trek_log_softmax(x, 1), y, &(trek_kl_div_opts){ .per_element = true });
}
static trek_var *nll_weighted(trek_var *x, trek_var *labels)
{
    trek_var *weight = trek_var_from(test_values(class_weight, trek_dims(CLASSES), TREK_F64));
    return trek_nll_loss_with(trek_log_softmax(x, 1), labels, &(trek_cross_entropy_opts){ .weight = weight });
}
static trek_var *cosine(trek_var *x, trek_var *y)
{
    return trek_cosine_embedding_loss(x, y, signs_of(trek_select(y, 1, 0)), NULL);
}
static trek_var *ranking(trek_var *x, trek_var *y)
{
    return trek_margin_ranking_loss(x, y, signs_of(y), &(trek_margin_opts){ .margin = 0.2 });
}
static trek_var *hinge(trek_var *x, trek_var *y) { return trek_hinge_embedding_loss(x, signs_of(y), NULL); }
static trek_var *triplet(trek_var *x, trek_var *y) { return trek_triplet_margin_loss(x, y, trek_neg(y), NULL); }
static trek_var *multi_margin(trek_var *x, trek_var *labels) { return trek_multi_margin_loss(x, labels, NULL); }
static trek_var *multilabel(trek_var *x, trek_var *y) { return trek_multilabel_soft_margin_loss(x, ones_of(y), NULL); }

static double exponentials(int64_t first, int64_t rows)
{
    double *of = test_read(trek_var_data(values(12))), sum = 0;
    for (int64_t k = first * CLASSES; k < (first + rows) * CLASSES; k++)
        sum += exp(of[k]);
    free(of);
    return sum;
}

static const loss_case cases[] = {
    { "cross_entropy", trek_cross_entropy, plain_labels, all_rows },
    { "cross_entropy, ignored", trek_cross_entropy, some_ignored, not_ignored },
    { "cross_entropy, ignore_index", ignoring_minus_one, some_minus_one, not_ignored },
    { "cross_entropy, class weights", with_classes, some_ignored, class_weights },
    { "cross_entropy, places", with_places, some_ignored, not_ignored },
    { "cross_entropy, probabilities", trek_cross_entropy, probabilities, all_rows },
    { "linear_cross_entropy", through_linear, some_ignored, not_ignored },
    { "nll_loss", nll, some_ignored, not_ignored },
    { "mse_loss", trek_mse_loss, values, elements },
    { "l1_loss", trek_l1_loss, values, elements },
    { "smooth_l1_loss", smooth, values, elements },
    { "bce_with_logits", trek_bce_with_logits, probabilities, elements },
    { "kl_div", divergence, probabilities, all_rows },
    { "mse_loss, weights", mse_weighted, values, exponentials },
    { "l1_loss, weights", l1_weighted, values, exponentials },
    { "smooth_l1_loss, weights", smooth_weighted, values, elements },
    { "huber_loss", huber, values, elements },
    { "bce", of_probabilities, probabilities, elements },
    { "bce_with_logits, pos_weight", positives, probabilities, elements },
    { "focal_loss", focal, probabilities, elements },
    { "soft_margin_loss", soft_margin, values, elements },
    { "poisson_nll_loss", poisson, probabilities, elements },
    { "gaussian_nll_loss", gaussian, values, elements },
    { "kl_div, elements", divergence_of_elements, probabilities, elements },
    { "nll_loss, class weights", nll_weighted, some_ignored, class_weights },
    { "cosine_embedding_loss", cosine, values, all_rows },
    { "margin_ranking_loss", ranking, values, elements },
    { "hinge_embedding_loss", hinge, values, elements },
    { "triplet_margin_loss", triplet, values, all_rows },
    { "multi_margin_loss", multi_margin, plain_labels, all_rows },
    { "multilabel_soft_margin_loss", multilabel, values, all_rows },
};
enum { CASES = sizeof cases / sizeof *cases };

/* Parts of 12 rows, an empty one among them: weights as counted by hand; weighted losses and gradients add up to the whole's. */
static void parts_make_the_whole(void **state)
{
    static const int64_t parts[] = { 5, 0, 1, 6 };
    for (int c = 0; c < CASES; c++) {
        trek_var *x = numbers(3, trek_dims(12, CLASSES)), *target = cases[c].target(12), *whole = leaf(x, 0, 12);
        trek_var *loss = cases[c].loss(whole, target);
        assert_non_null(loss);
        double total = trek_loss_weight(loss), sum = 0, weights = 0;
        assert_true(fabs(total - cases[c].weight(0, 12)) < 1e-12);
        assert_int_equal(trek_backward(loss), TREK_OK);
        double *gradient = test_read(trek_var_data(trek_var_grad(whole)));
        int64_t first = 0;
        for (int p = 0; p < 4; first += parts[p++]) {
            trek_var *part = leaf(x, first, parts[p]);
            trek_var *of_part = cases[c].loss(part, trek_narrow(target, 0, first, parts[p]));
            double weight = trek_loss_weight(of_part);
            if (!of_part || !(fabs(weight - cases[c].weight(first, parts[p])) < 1e-12))
                fail_msg("%s: part %d has a weight of %g (%s)", cases[c].name, p, weight, trek_error());
            weights += weight;
            sum += weight * trek_var_item(of_part);
            assert_int_equal(trek_backward(of_part), TREK_OK);
            double *own = trek_var_grad(part) ? test_read(trek_var_data(trek_var_grad(part))) : NULL;
            for (int64_t k = 0; k < parts[p] * CLASSES; k++)
                if (!(fabs((own ? own[k] : 0) * weight / total - gradient[first * CLASSES + k]) < 1e-12))
                    fail_msg("%s: part %d, element %d: gradient %g", cases[c].name, p, (int)k, own[k]);
            free(own);
        }
        assert_true(fabs(weights - total) < 1e-12);
        if (!(fabs(sum / weights - trek_var_item(loss)) < 1e-12))
            fail_msg("%s: %g, its parts say %g", cases[c].name, trek_var_item(loss), sum / weights);
        free(gradient);
    }
}

static void over_nothing(void **state)
{
    for (int c = 0; c < CASES; c++) {
        trek_var *x = leaf(numbers(3, trek_dims(2, CLASSES)), 0, 0), *loss = cases[c].loss(x, cases[c].target(0));
        if (!loss || trek_var_item(loss) != 0 || trek_loss_weight(loss) != 0)
            fail_msg("%s of no rows: %g, weight %g (%s)", cases[c].name, trek_var_item(loss), trek_loss_weight(loss),
                     trek_error());
        assert_int_equal(trek_backward(loss), TREK_OK);
    }
}

static trek_var *all_smooth(trek_var *x, trek_var *labels)
{
    return trek_cross_entropy_with(x, labels, &(trek_cross_entropy_opts){ .label_smoothing = 0.2 });
}

/* All labels ignored: 0, weight 0, gradients of 0, where PyTorch gives NaN. */
static void all_ignored(void **state)
{
    trek_var *(*const losses[])(trek_var *, trek_var *) = { trek_cross_entropy, with_classes, with_places, through_linear, nll,
                                                            all_smooth };
    for (size_t c = 0; c < sizeof losses / sizeof *losses; c++) {
        trek_var *labels = trek_var_from(test_values((double[]){ -100, -100, -100 }, trek_dims(3), TREK_I64));
        trek_var *x = leaf(numbers(3, trek_dims(3, CLASSES)), 0, 3), *loss = losses[c](x, labels);
        assert_non_null(loss);
        assert_true(trek_var_item(loss) == 0 && trek_loss_weight(loss) == 0);
        assert_int_equal(trek_backward(loss), TREK_OK);
        double *gradient = test_read(trek_var_data(trek_var_grad(x)));
        assert_non_null(gradient);
        for (int k = 0; k < 3 * CLASSES; k++)
            assert_true(gradient[k] == 0);
        free(gradient);
    }
}

static void not_known(void **state)
{
    trek_var *x = leaf(numbers(3, trek_dims(4, CLASSES)), 0, 4), *labels = plain_labels(4);
    trek_cross_entropy_opts sum = { .reduction = TREK_REDUCTION_SUM }, none = { .reduction = TREK_REDUCTION_NONE };
    assert_true(isnan(trek_loss_weight(trek_cross_entropy_with(x, labels, &sum))));
    assert_true(isnan(trek_loss_weight(trek_cross_entropy_with(x, labels, &none))));
    assert_true(isnan(trek_loss_weight(trek_cross_entropy_with(x, probabilities(4), &sum))));
    assert_true(isnan(trek_loss_weight(trek_linear_cross_entropy(x, numbers(12, trek_dims(CLASSES, CLASSES)), NULL, labels,
                                                                 &sum))));
    trek_var *of_rows = trek_cross_entropy_with(x, probabilities(4), &none), *loss = trek_cross_entropy(x, labels);
    assert_int_equal(trek_var_numel(of_rows), 4);
    assert_true(isnan(trek_loss_weight(of_rows)));
    assert_true(trek_loss_weight(loss) == 4);
    assert_true(isnan(trek_loss_weight(trek_mul_scalar(loss, 2))));
    assert_true(isnan(trek_loss_weight(trek_add(loss, loss))));
    assert_true(isnan(trek_loss_weight(trek_var_detach(loss))));
    assert_true(isnan(trek_loss_weight(x)));
    assert_int_equal(trek_error_status(), TREK_OK);
    assert_true(isnan(trek_loss_weight(NULL)));
    assert_int_equal(trek_error_status(), TREK_ERR_ARGUMENT);
}

static void stated(void **state)
{
    trek_var *x = leaf(numbers(3, trek_dims(4, CLASSES)), 0, 4), *labels = plain_labels(4);
    trek_var *own = trek_mean(trek_square(x), trek_dims_all(), false);
    assert_int_equal(trek_loss_set_weight(own, 12.5), TREK_OK);
    assert_true(trek_loss_weight(own) == 12.5);
    assert_int_equal(trek_loss_set_weight(own, 0), TREK_OK);
    assert_true(trek_loss_weight(own) == 0);
    trek_var *loss = trek_cross_entropy(x, labels);
    assert_int_equal(trek_loss_set_weight(loss, 3), TREK_OK); /* in place of what it has counted */
    assert_true(trek_loss_weight(loss) == 3);
    const double wrong[] = { -1, INFINITY, NAN };
    for (int k = 0; k < 3; k++) {
        FAILS(trek_loss_set_weight(loss, wrong[k]), TREK_ERR_ARGUMENT, "");
    }
    assert_true(trek_loss_weight(loss) == 3);
    FAILS(trek_loss_set_weight(NULL, 1), TREK_ERR_ARGUMENT, "");
    assert_int_equal(trek_backward(loss), TREK_OK);
}

/* The labels as they were when the loss was computed, or an error: never a count of others. */
static void labels_that_change(void **state)
{
    trek_var *x = leaf(numbers(3, trek_dims(6, CLASSES)), 0, 6), *labels = some_ignored(6);
    trek_var *asked = trek_cross_entropy(x, labels), *late = trek_cross_entropy(x, labels);
    assert_true(trek_loss_weight(asked) == 4);
    trek_no_grad_begin();
    assert_non_null(trek_fill_(labels, -100));
    trek_no_grad_end();
    assert_true(trek_loss_weight(asked) == 4);
    assert_true(isnan(trek_loss_weight(late)));
    assert_int_equal(trek_error_status(), TREK_ERR_STATE);
}

static void no_memory(void **state)
{
    if (!test_on_cpu())
        skip(); /* what a device has cached decides what is asked for */
    trek_var *x = leaf(numbers(3, trek_dims(6, CLASSES)), 0, 6), *labels = some_ignored(6);
    trek_var *expected = trek_cross_entropy(x, labels);
    int failures = 0;
    test_memory.fail_count = 2; /* a second try is made after cached memory was given back */
    for (int64_t fail_at = 1;; fail_at++) {
        trek_scope inner = trek_scope_begin();
        test_allocator_restart(fail_at);
        trek_var *loss = trek_cross_entropy(x, labels);
        double weight = loss ? trek_loss_weight(loss) : NAN;
        bool failed = trek_error_status() != TREK_OK;
        bool reached = test_memory.calls >= fail_at;
        test_allocator_restart(0);
        assert_true(failed ? isnan(weight) && trek_error_status() == TREK_ERR_MEMORY : weight == 4);
        trek_error_clear();
        failures += failed;
        if (loss)
            assert_true(trek_loss_weight(loss) == 4 && trek_var_item(loss) == trek_var_item(expected));
        trek_scope_end(inner);
        if (!reached) {
            assert_true(failures > 10);
            break;
        }
    }
    test_memory.fail_count = 0;
}

/* --- shapes and dtypes ------------------------------------------------------------------------ */

/* Nothing is repeated in silence: [N] against [N, 1] would be N * N losses. */
static void unequal_shapes(void **state)
{
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        trek_var *loss = cases[c].loss(numbers(3, trek_dims(1, CLASSES)), cases[c].target(4));
        if (loss || trek_error_status() != TREK_ERR_SHAPE)
            fail_msg("%s takes unequal shapes: %s", cases[c].name, trek_error());
        trek_error_clear();
    }
    trek_var *line = numbers(1, trek_dims(3)), *column = numbers(2, trek_dims(3, 1)), *wide = numbers(3, trek_dims(4, 3));
    REFUSED(trek_mse_loss(line, column), TREK_ERR_SHAPE,
            "mse_loss: inputs: [3] and [3, 1]; must have one shape; trek_reshape one to the other's, as to [3]");
    REFUSED(trek_bce_with_logits(column, line), TREK_ERR_SHAPE, "as to [3, 1]");
    REFUSED(trek_l1_loss(line, wide), TREK_ERR_SHAPE, "trek_expand the smaller to [4, 3]");
    REFUSED(trek_l1_loss(wide, line), TREK_ERR_SHAPE, "trek_expand the smaller to [4, 3]");
    REFUSED(trek_mse_loss(numbers(1, trek_dims(4)), line), TREK_ERR_SHAPE, "inputs: [4] and [3]; must");
    REFUSED(trek_triplet_margin_loss(wide, wide, line, NULL), TREK_ERR_SHAPE, "triplet_margin_loss: inputs: ");
    REFUSED(trek_triplet_margin_loss(wide, wide, wide, &(trek_margin_opts){ .margin = -1 }), TREK_ERR_ARGUMENT, "negative");
}

/* An infinite loss has the gradient of others; weights may be negative. */
static void large_and_negative(void **state)
{
    trek_var *x = trek_var_from(test_values((double[]){ -INFINITY, 3 }, trek_dims(2), TREK_F64)), *slope;
    assert_int_equal(trek_var_set_requires_grad(x, true), TREK_OK);
    trek_var *zero = trek_zeros_like(x), *loss = trek_margin_ranking_loss(x, zero, trek_ones_like(x),
                                                                          &(trek_margin_opts){ .reduction = TREK_REDUCTION_SUM });
    assert_int_equal(trek_grad(&loss, 1, &x, 1, NULL, NULL, &slope), TREK_OK);
    double *slopes = test_read(trek_var_data(slope));
    assert_true(isinf(trek_var_item(loss)) && slopes[0] == -1 && slopes[1] == 0);
    free(slopes);
    trek_var *weight = trek_var_from(test_values((double[]){ -2, 1 }, trek_dims(2), TREK_F64));
    trek_var *rows = trek_var_from(test_values((double[]){ -1, -2 }, trek_dims(1, 2), TREK_F64));
    trek_var *label = trek_var_from(test_values((double[]){ 0 }, trek_dims(1), TREK_I64));
    trek_cross_entropy_opts opts = { .weight = weight };
    assert_true(trek_var_item(trek_nll_loss_with(rows, label, &opts)) == 1);
    assert_true(fabs(trek_var_item(trek_cross_entropy_with(rows, label, &opts)) - log1p(exp(-1))) < 1e-12);
}

static void nll_of_many_dimensions(void **state)
{
    trek_var *logits = numbers(5, trek_dims(2, CLASSES, 3, 2));
    trek_var_set_requires_grad(logits, true);
    trek_var *labels = trek_reshape(some_ignored(12), trek_dims(2, 3, 2)), *a, *b;
    trek_var *loss = trek_nll_loss(trek_log_softmax(logits, 1), labels), *right = trek_cross_entropy(logits, labels);
    assert_non_null(loss);
    assert_true(fabs(trek_var_item(loss) - trek_var_item(right)) < 1e-12);
    assert_true(trek_loss_weight(loss) == trek_loss_weight(right));
    assert_int_equal(trek_grad(&loss, 1, &logits, 1, NULL, NULL, &a), TREK_OK);
    assert_int_equal(trek_grad(&right, 1, &logits, 1, NULL, NULL, &b), TREK_OK);
    assert_true(trek_var_item(trek_norm(trek_sub(a, b), INFINITY, trek_dims_all(), false)) < 1e-12);
    REFUSED(trek_nll_loss(logits, trek_reshape(labels, trek_dims(2, 2, 3))), TREK_ERR_SHAPE, "");
    REFUSED(trek_nll_loss(logits, trek_cast(labels, TREK_F32)), TREK_ERR_DTYPE, "");
}

static void smooth_l1_without_a_bend(void **state)
{
    trek_var *x = numbers(1, trek_dims(7)), *y = numbers(2, trek_dims(7));
    assert_true(trek_var_item(trek_smooth_l1_loss(x, y, 0)) == trek_var_item(trek_l1_loss(x, y)));
    REFUSED(trek_smooth_l1_loss(x, y, -1), TREK_ERR_ARGUMENT, "");
    assert_null(trek_smooth_l1_loss(x, y, NAN));
    trek_error_clear();
}

/* In the wider dtype, rounded at the end; 16-bit ones as their f32 values give. */
static void mixed_dtypes(void **state)
{
    trek_var *(*const losses[])(trek_var *, trek_var *) = { trek_mse_loss, trek_l1_loss, smooth, trek_bce_with_logits,
                                                            trek_kl_div };
    const trek_dtype dtypes[] = { TREK_F64, TREK_F32, TREK_BF16, TREK_F16 };
    const double step[TREK_DTYPE_COUNT] = { [TREK_F64] = 0x1p-50, [TREK_F32] = 0x1p-20, [TREK_BF16] = 0x1p-8,
                                            [TREK_F16] = 0x1p-11 };
    for (int l = 0; l < 5; l++)
        for (int a = 0; a < 4; a++)
            for (int b = 0; b < 4; b++) {
                trek_var *x = trek_clone(trek_cast(trek_mul_scalar(numbers(1, trek_dims(6, 5)), 5), dtypes[a])), *slope, *right;
                trek_var *y = trek_clone(trek_cast(trek_softmax(numbers(2, trek_dims(6, 5)), 1), dtypes[b]));
                trek_var *exact_x = trek_clone(trek_cast(x, TREK_F64)), *exact_y = trek_clone(trek_cast(y, TREK_F64));
                trek_var_set_requires_grad(x, true);
                trek_var_set_requires_grad(exact_x, true);
                trek_var *loss = losses[l](x, y), *exact = losses[l](exact_x, exact_y);
                trek_dtype common = trek_dtype_promote(dtypes[a], dtypes[b]);
                assert_int_equal(trek_var_dtype(loss), common);
                assert_true(fabs(trek_var_item(loss) - trek_var_item(exact)) <= step[common] * fabs(trek_var_item(exact)));
                assert_int_equal(trek_grad(&loss, 1, &x, 1, NULL, NULL, &slope), TREK_OK);
                assert_int_equal(trek_grad(&exact, 1, &exact_x, 1, NULL, NULL, &right), TREK_OK);
                double error = trek_var_item(trek_norm(trek_sub(trek_cast(slope, TREK_F64), right), INFINITY, trek_dims_all(),
                                                       false));
                assert_true(error <= step[dtypes[a]] * trek_var_item(trek_norm(right, INFINITY, trek_dims_all(),
                                                                               false)) + step[common] / 30);
            }
}

static void options_that_are_none(void **state)
{
    const trek_reduction none = (trek_reduction)7;
    trek_var *x = numbers(1, trek_dims(4, CLASSES)), *y = probabilities(4), *labels = plain_labels(4),
        *row = numbers(2, trek_dims(4));
    trek_var *wide = numbers(3, trek_dims(2, 4, CLASSES));
    REFUSED(trek_mse_loss_with(x, y, &(trek_loss_opts){ .reduction = none }), TREK_ERR_ARGUMENT,
                 "mse_loss: reduction: 7");
    for (trek_reduction other = TREK_REDUCTION_MAX; other <= TREK_REDUCTION_NORM; other++) /* reductions of other functions */
        REFUSED(trek_mse_loss_with(x, y, &(trek_loss_opts){ .reduction = other }), TREK_ERR_ARGUMENT,
                "must be TREK_REDUCTION_MEAN, _SUM or _NONE");
    REFUSED(trek_cross_entropy_with(x, labels, &(trek_cross_entropy_opts){ .reduction = TREK_REDUCTION_MAX }), TREK_ERR_ARGUMENT,
            "cross_entropy: reduction: 2; must be TREK_REDUCTION_MEAN, _SUM or _NONE");
    REFUSED(trek_bce(y, y, &(trek_loss_opts){ .reduction = none }), TREK_ERR_ARGUMENT, "bce: reduction: 7");
    REFUSED(trek_kl_div_with(y, y, &(trek_kl_div_opts){ .reduction = none }), TREK_ERR_ARGUMENT, "kl_div: reduction: 7");
    REFUSED(trek_nll_loss_with(x, labels, &(trek_cross_entropy_opts){ .reduction = none }), TREK_ERR_ARGUMENT,
                 "nll_loss: reduction: 7");
    REFUSED(trek_triplet_margin_loss(x, y, y, &(trek_margin_opts){ .reduction = none }), TREK_ERR_ARGUMENT,
                 "triplet_margin_loss: reduction: 7");
    REFUSED(trek_info_nce(x, x, 1, none), TREK_ERR_ARGUMENT, "info_nce: reduction: 7");
    REFUSED(trek_mse_loss_with(x, y, &(trek_loss_opts){ .weight = wide }), TREK_ERR_SHAPE,
                 "mse_loss: weight: [2, 4, 5]; must broadcast");
    REFUSED(trek_bce(y, y, &(trek_loss_opts){ .weight = row }), TREK_ERR_SHAPE, "bce: weight: [4]");
    REFUSED(trek_nll_loss_with(x, labels, &(trek_cross_entropy_opts){ .weight = row }), TREK_ERR_SHAPE, ".weight: [4]");
    REFUSED(trek_nll_loss_with(x, labels, &(trek_cross_entropy_opts){ .label_smoothing = 0.1 }), TREK_ERR_ARGUMENT,
                 "smoothing");
    REFUSED(trek_huber_loss(x, y, 0, NULL), TREK_ERR_ARGUMENT, "delta: 0");
    REFUSED(trek_focal_loss(x, y, &(trek_focal_opts){ .gamma = -1 }), TREK_ERR_ARGUMENT, "gamma: -1");
    REFUSED(trek_focal_loss(x, y, &(trek_focal_opts){ .alpha = 1.5 }), TREK_ERR_ARGUMENT, "alpha: 1.5");
    REFUSED(trek_info_nce(x, x, 0, TREK_REDUCTION_MEAN), TREK_ERR_ARGUMENT, "temperature");
    REFUSED(trek_info_nce(x, row, 1, TREK_REDUCTION_MEAN), TREK_ERR_SHAPE, "[4, 5] and [4]");
    REFUSED(trek_gaussian_nll_loss(x, y, trek_neg(y), NULL), TREK_ERR_ARGUMENT, "negative");
    REFUSED(trek_gaussian_nll_loss(x, y, wide, NULL), TREK_ERR_SHAPE, "variance: [2, 4, 5]");
    REFUSED(trek_multi_margin_loss(x, labels, &(trek_margin_opts){ .p = 3 }), TREK_ERR_ARGUMENT, "p: 3");
    REFUSED(trek_multi_margin_loss(x, row, NULL), TREK_ERR_DTYPE, "integer");
    REFUSED(trek_multi_margin_loss(x, plain_labels(3), NULL), TREK_ERR_SHAPE, "must be [N, C] and [N]");
    REFUSED(trek_margin_ranking_loss(x, y, y, &(trek_margin_opts){ .weight = row }), TREK_ERR_ARGUMENT, ".weight: set");
    REFUSED(trek_cosine_embedding_loss(x, y, y, NULL), TREK_ERR_SHAPE, "cosine_embedding_loss: inputs: [4, 5]");
    REFUSED(trek_cosine_similarity(x, row, 1, 1e-8), TREK_ERR_SHAPE, "do not broadcast");
    REFUSED(trek_pairwise_distance(x, labels, 2, 1e-6, false), TREK_ERR_DTYPE, "pairwise_distance");
    REFUSED(trek_bce(trek_cast(y, TREK_I64), y, NULL), TREK_ERR_DTYPE, "bce");
}

/* Where a probability is 0 or 1 the logarithm ends at -100; its slope is that of the bounded p (1 - p). */
static void bce_at_its_ends(void **state)
{
    const double p_[4] = { 0, 1, 0, 1 }, t_[4] = { 1, 0, 0, 1 }, losses_[4] = { 100, 100, 0, 0 },
        slopes[4] = { -1e12, 1e12, 0, 0 };
    trek_var *p = trek_var_from(test_values(p_, trek_dims(4), TREK_F64)), *slope;
    trek_var_set_requires_grad(p, true);
    trek_var *loss = trek_bce(p, trek_var_from(test_values(t_, trek_dims(4), TREK_F64)),
                              &(trek_loss_opts){ .reduction = TREK_REDUCTION_NONE });
    trek_var *total = trek_sum(loss, trek_dims_all(), false);
    assert_int_equal(trek_grad(&total, 1, &p, 1, NULL, NULL, &slope), TREK_OK);
    double *got = test_read(trek_var_data(loss)), *bent = test_read(trek_var_data(slope));
    for (int k = 0; k < 4; k++)
        if (got[k] != losses_[k] || fabs(bent[k] - slopes[k]) > 1)
            fail_msg("%d: loss %g, slope %g", k, got[k], bent[k]);
    free(got);
    free(bent);
}

static void labels_that_are_no_classes(void **state)
{
    trek_var *logits = numbers(1, trek_dims(4, CLASSES));
    REFUSED(trek_cross_entropy(logits, trek_cast(plain_labels(4), TREK_F32)),
            TREK_ERR_DTYPE, "labels: f32 [4]; must be of an integer dtype");
    REFUSED(trek_cross_entropy(logits, numbers(1, trek_dims(3, CLASSES))), TREK_ERR_SHAPE, "");
    trek_var *last = numbers(1, trek_dims(2, CLASSES + 1, CLASSES)),
             *labels = trek_reshape(plain_labels(2 * CLASSES + 2), trek_dims(2, CLASSES + 1));
    REFUSED(trek_cross_entropy(last, labels), TREK_ERR_SHAPE,
            "which is [N, C, ...]: classes are dimension 1, not the last one (trek_movedim)");
    REFUSED(trek_nll_loss(last, labels), TREK_ERR_SHAPE, "classes are dimension 1, not the last one");
}

/* The number of labels that count, where a double does not hold what is ignored. */
static void ignoring_large_numbers(void **state)
{
    const int64_t values_[3] = { INT64_MAX, 2, INT64_MAX };
    trek_var *labels = trek_var_from(trek_tensor_from_data(values_, trek_dims(3), TREK_I64, test_device()));
    trek_var *loss = trek_cross_entropy_with(numbers(1, trek_dims(3, CLASSES)), labels,
                                             &(trek_cross_entropy_opts){ .ignore_index = INT64_MAX });
    assert_non_null(loss);
    assert_true(trek_loss_weight(loss) == 1);
}

/* Dtypes that PyTorch takes are taken, the others refused by name. */
static void dtypes_of_losses(void **state)
{
    trek_var *(*const losses[])(trek_var *, trek_var *) = { trek_mse_loss, trek_l1_loss, smooth, trek_bce_with_logits,
                                                            trek_kl_div };
    const char *const names[] = { "mse_loss: ", "l1_loss: ", "smooth_l1_loss: ", "bce_with_logits: ", "kl_div: " };
    const trek_dtype dtypes[] = { TREK_F32, TREK_F16, TREK_BOOL, TREK_U8, TREK_I32, TREK_I64 };
    for (int l = 0; l < 5; l++)
        for (int a = 0; a < 6; a++)
            for (int b = 0; b < 6; b++) {
                trek_var *x = trek_cast(plain_labels(4), dtypes[a]), *y = trek_cast(plain_labels(4), dtypes[b]);
                bool both = a < 2 && b < 2, one = a < 2 || b < 2, with_bool = dtypes[a] == TREK_BOOL || dtypes[b] == TREK_BOOL;
                bool taken = both || (l < 3 && one && !(l == 1 && with_bool));
                trek_var *loss = losses[l](x, y);
                assert_true((loss != NULL) == taken);
                assert_int_equal(trek_error_status(), taken ? TREK_OK : TREK_ERR_DTYPE);
                assert_true(taken || strncmp(trek_error(), names[l], strlen(names[l])) == 0);
                trek_error_clear();
            }
}

static void options_that_exclude_each_other(void **state)
{
    trek_var *logits = numbers(1, trek_dims(4, CLASSES)), *labels = plain_labels(4),
        *share = trek_softmax(numbers(2, trek_dims(4, CLASSES)), 1);
    trek_var *weight = leaf(trek_softmax(numbers(3, trek_dims(CLASSES)), 0), 0, CLASSES);
    REFUSED(trek_cross_entropy_with(logits, share, &(trek_cross_entropy_opts){ .ignore_index = 1 }), TREK_ERR_ARGUMENT, "");
    assert_null(trek_cross_entropy_with(logits, share, &(trek_cross_entropy_opts){ .ignore_index = TREK_ZERO }));
    trek_error_clear();
    assert_non_null(trek_cross_entropy_with(logits, share, &(trek_cross_entropy_opts){ .ignore_index = -1 }));
    REFUSED(trek_cross_entropy_with(logits, labels, &(trek_cross_entropy_opts){ .weight = weight }),
            TREK_ERR_UNSUPPORTED, "detach");
    assert_non_null(trek_cross_entropy_with(logits, labels, &(trek_cross_entropy_opts){ .weight = trek_var_detach(weight) }));
    assert_non_null(trek_cross_entropy_with(logits, share, &(trek_cross_entropy_opts){ .weight = weight }));
    trek_no_grad_begin();
    assert_non_null(trek_cross_entropy_with(logits, labels, &(trek_cross_entropy_opts){ .weight = weight }));
    trek_no_grad_end();
}

static trek_var *loss_of(int kind, trek_var *logits, trek_var *labels, const trek_cross_entropy_opts *opts)
{
    if (kind == 0)
        return trek_cross_entropy_with(logits, labels, opts);
    if (kind == 1)
        return trek_nll_loss(logits, labels);
    trek_var *x = numbers(4, trek_dims(2, 3)), *weight = numbers(5, trek_dims(0, 3));
    return trek_linear_cross_entropy(x, weight, NULL, trek_reshape(labels, trek_dims(2)), opts);
}

/* All labels ignored: 0, with a gradient; a label that counts: refused. */
static void without_classes(void **state)
{
    const trek_shape shapes[] = { trek_dims(2, 0), trek_dims(1, 0, 2, 1) }, of_labels[] = { trek_dims(2), trek_dims(1, 2, 1) };
    for (int kind = 0; kind < 3; kind++)
        for (int s = 0; s < 2; s++)
            for (int k = 0; k < 3; k++) {
                static const trek_reduction reductions[] = { TREK_REDUCTION_MEAN, TREK_REDUCTION_SUM, TREK_REDUCTION_NONE };
                trek_var *logits = numbers(1, shapes[s]),
                    *labels = trek_var_from(trek_tensor_zeros(of_labels[s], TREK_I64, test_device()));
                trek_cross_entropy_opts opts = { .reduction = reductions[k] }, zero = opts;
                zero.ignore_index = kind == 1 ? 0 : TREK_ZERO;
                trek_var_set_requires_grad(logits, true);
                REFUSED(loss_of(kind, logits, labels, &opts), TREK_ERR_ARGUMENT, "");
                trek_var *ignored = kind == 1 ? trek_add_scalar(labels, -100) : labels;
                trek_var *loss = loss_of(kind, logits, ignored, &zero), *total = trek_sum(loss, trek_dims_all(), false), *slope;
                assert_non_null(loss);
                assert_true(trek_var_item(total) == 0);
                bool mean = k == 0 || kind == 1;
                assert_true(mean ? trek_loss_weight(loss) == 0 : isnan(trek_loss_weight(loss)));
                assert_int_equal(trek_var_numel(loss), !mean && opts.reduction == TREK_REDUCTION_NONE ? 2 : 1);
                if (kind < 2)
                    assert_int_equal(trek_grad(&total, 1, &logits, 1, NULL, NULL, &slope), TREK_OK);
            }
}

/* Logits in the ten thousands: as those that are smaller by one number. */
static void large_logits(void **state)
{
    enum { ROWS = 3, WIDTH = 4 };
    const double shift = 58000, differences[ROWS * WIDTH] = { 0, 0.5, 1.25, -2, 3, 2.75, 0, 0.25, 1, 1, 1.5, -6 };
    double far[ROWS * WIDTH], eye[WIDTH * WIDTH] = { 0 };
    for (int k = 0; k < ROWS * WIDTH; k++)
        far[k] = differences[k] + shift;
    for (int k = 0; k < WIDTH; k++)
        eye[k * WIDTH + k] = 1;
    trek_var *labels = labels_of(ROWS, 0), *near_by = trek_var_from(test_values(differences, trek_dims(ROWS, WIDTH), TREK_F64));
    labels = trek_clamp(labels, 0, WIDTH - 1);
    assert_int_equal(trek_var_set_requires_grad(near_by, true), TREK_OK);
    assert_int_equal(trek_backward(trek_cross_entropy(near_by, labels)), TREK_OK);
    for (int fused = 0; fused < 2; fused++) {
        trek_var *x = trek_var_from(test_values(far, trek_dims(ROWS, WIDTH), TREK_F32));
        trek_var *weight = trek_var_from(test_values(eye, trek_dims(WIDTH, WIDTH), TREK_F32));
        assert_int_equal(trek_var_set_requires_grad(x, true), TREK_OK);
        assert_int_equal(trek_backward(fused ? trek_linear_cross_entropy(x, weight, NULL, labels, NULL)
                                       : trek_cross_entropy(x, labels)), TREK_OK);
        double got[ROWS * WIDTH], want[ROWS * WIDTH];
        assert_int_equal(trek_tensor_to_host(trek_var_data(trek_var_grad(x)), TREK_F64, got, sizeof got), TREK_OK);
        assert_int_equal(trek_tensor_to_host(trek_var_data(trek_var_grad(near_by)), TREK_F64, want, sizeof want), TREK_OK);
        for (int k = 0; k < ROWS * WIDTH; k++)
            if (!(fabs(got[k] - want[k]) <= 1e-6))
                fail_msg("%s, element %d: %g, should be %g", fused ? "linear_cross_entropy" : "cross_entropy", k, got[k],
                         want[k]);
    }
}

static void no_classes_in_16_bits(void **state)
{
    trek_var *x = trek_var_from(trek_tensor_zeros(trek_dims(0, 3), TREK_BF16, test_device()));
    trek_var *weight = trek_var_from(trek_tensor_zeros(trek_dims(0, 3), TREK_BF16, test_device()));
    trek_var *labels = trek_var_from(trek_tensor_zeros(trek_dims(0), TREK_I64, test_device()));
    trek_var *loss = trek_linear_cross_entropy(x, weight, NULL, labels, NULL);
    assert_non_null(loss);
    assert_int_equal(trek_var_dtype(loss), TREK_F32);
}

int main(void)
{
    setenv("TREK_CACHE", "off", 1); /* so that each allocation can fail */
    if (test_allocator_use() != TREK_OK)
        return 1;
    const struct CMUnitTest tests[] = {
        TEST(parts_make_the_whole), TEST(over_nothing), TEST(all_ignored), TEST(not_known), TEST(stated),
        TEST(labels_that_change), TEST(no_memory), TEST(unequal_shapes), TEST(large_and_negative), TEST(nll_of_many_dimensions),
        TEST(smooth_l1_without_a_bend), TEST(options_that_are_none), TEST(bce_at_its_ends), TEST(mixed_dtypes),
        TEST(labels_that_are_no_classes), TEST(ignoring_large_numbers), TEST(dtypes_of_losses),
        TEST(options_that_exclude_each_other), TEST(without_classes), TEST(large_logits), TEST(no_classes_in_16_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
