/* SPDX-License-Identifier: Apache-2.0 */
/* The fused ops of transformers through their public functions and layers: what
 * the op suite's rows do not show. Pairs of results with gradients, views in and
 * out of attention, memory, dropout over ranks. */
#include "autograd/autocast.h"
#include "autograd/backward.h"
#include "autograd/leaf.h"
#include "autograd/ops.h"
#include "nn/layers.h"
#include "nn/module_tree.h"
#include "tensor/copies.h"
#include "tensor/creation.h"
#include "tensor/devices.h"
#include "tensor/rank_context.h"
#include "tensor/shapes.h"
#include "tests/autograd/values.h"
#include "tests/support/support.h"

static trek_var *labels_of(trek_shape shape, int64_t classes)
{
    double values[512];
    int64_t n = trek_shape_numel(shape);
    assert_true(n <= 512);
    for (int64_t k = 0; k < n; k++)
        values[k] = (double)(k * 7 % classes);
    return trek_var_from(test_values(values, shape, TREK_I64));
}

static trek_var *sum_of(trek_var *x, trek_var *with) { return trek_sum(trek_mul(x, with), trek_dims_all(), false); }

/* --- a pair ------------------------------------------------------------------------------- */

typedef struct stream {
    trek_var *in[4];                      /* x, branch, weight, bias */
    trek_var *y, *residual;
} stream;

static stream make_stream(bool fused)
{
    stream s = { .in = { numbers(1, trek_dims(3, 5), true), numbers(2, trek_dims(3, 5), true), numbers(3, trek_dims(5), true),
                         numbers(4, trek_dims(5), true) } };
    if (fused) {
        s.y = trek_add_layer_norm(s.in[0], s.in[1], 1, s.in[2], s.in[3], 1e-5, &s.residual);
    } else {
        s.residual = trek_add(s.in[0], s.in[1]);
        s.y = trek_layer_norm(s.residual, 1, s.in[2], s.in[3], 1e-5);
    }
    assert_non_null(s.y);
    assert_non_null(s.residual);
    return s;
}

/* A loss of y (bit 0) and of the residual (bit 1). */
static trek_var *loss_of(const stream *s, int of)
{
    trek_var *a = sum_of(trek_square(s->y), numbers(8, trek_dims(3, 5), false));
    trek_var *b = sum_of(trek_sin(s->residual), numbers(9, trek_dims(3, 5), false));
    return of == 1 ? a : of == 2 ? b : trek_add(a, b);
}

static void gradients_flow_through_both(void **state)
{
    for (int of = 1; of <= 3; of++) {
        stream fused = make_stream(true), plain = make_stream(false);
        same(fused.y, plain.y);
        same(fused.residual, plain.residual);
        assert_int_equal(trek_backward(loss_of(&fused, of)), TREK_OK);
        assert_int_equal(trek_backward(loss_of(&plain, of)), TREK_OK);
        for (int k = 0; k < 4; k++) {
            if (of == 2 && k >= 2) {
                assert_null(trek_var_grad(fused.in[k]));
                continue;
            }
            same(trek_var_grad(fused.in[k]), trek_var_grad(plain.in[k]));
        }
    }
}

/* Gradients of gradients, and the gradient at the residual: that of its own uses. */
static void second_gradients_of_a_pair(void **state)
{
    for (int of = 1; of <= 3; of++) {
        trek_var *second[2][4] = { { NULL } }, *at_residual;
        for (int fused = 0; fused < 2; fused++) {
            stream s = make_stream(fused);
            trek_var *loss = loss_of(&s, of), *first[4], *scalar;
            trek_backward_opts create = { .create_graph = true };
            assert_int_equal(trek_grad(&loss, 1, s.in, of == 2 ? 2 : 3, NULL, &create, first), TREK_OK);
            assert_int_equal(trek_grad(&loss, 1, &s.residual, 1, NULL, &create, &at_residual), TREK_OK);
            if (of == 1 && fused)
                assert_null(at_residual);
            else if (fused || of == 2)
                same(at_residual, trek_mul(trek_cos(s.residual), numbers(9, trek_dims(3, 5), false)));
            scalar = sum_of(trek_square(first[0]), numbers(10, trek_dims(3, 5), false));
            if (of != 2)
                scalar = trek_add(scalar, trek_sum(trek_square(first[2]), trek_dims_all(), false));
            assert_int_equal(trek_grad(&scalar, 1, s.in, 4, NULL, NULL, second[fused]), TREK_OK);
        }
        for (int k = 0; k < 4; k++) {
            if (!second[0][k])
                assert_null(second[1][k]);
            else
                same(second[0][k], second[1][k]);
        }
    }
}

static int calls[2];

static trek_var *count_call(trek_var *var, trek_var *grad, void *arg)
{
    calls[*(int *)arg]++;
    return trek_mul_scalar(grad, *(int *)arg ? 3 : 2);
}

static void hooks_know_the_output(void **state)
{
    static int first = 0, second = 1;
    stream fused = make_stream(true), plain = make_stream(false);
    calls[0] = calls[1] = 0;
    assert_true(trek_var_on_grad(fused.y, count_call, &first) != 0);
    assert_true(trek_var_on_grad(fused.residual, count_call, &second) != 0);
    assert_int_equal(trek_backward(loss_of(&fused, 3)), TREK_OK);
    assert_int_equal(calls[0], 1);
    assert_int_equal(calls[1], 1);
    trek_var *loss = trek_add(trek_mul_scalar(loss_of(&plain, 1), 2), trek_mul_scalar(loss_of(&plain, 2), 3));
    assert_int_equal(trek_backward(loss), TREK_OK);
    for (int k = 0; k < 4; k++)
        same(trek_var_grad(fused.in[k]), trek_var_grad(plain.in[k]));
}

/* --- attention ------------------------------------------------------------------------------ */

static trek_var *head(trek_var *packed, int k) { return trek_permute(trek_select(packed, 2, k), trek_dims(0, 2, 1, 3)); }

/* softmax(q k^T / sqrt(d)) v by plain ops, query i seeing keys 0..i. */
static trek_var *plain_attention(trek_var *q, trek_var *k, trek_var *v)
{
    trek_var *scores = trek_mul_scalar(trek_matmul(q, trek_transpose(k, 2, 3)), 1 / sqrt((double)trek_var_size(q, 3)));
    trek_tensor *ones = trek_tensor_ones(trek_dims(trek_var_size(q, 2), trek_var_size(k, 2)), TREK_BOOL, trek_var_device(q));
    trek_var *future = trek_logical_not(trek_tril(trek_var_from(ones), 0));
    return trek_matmul(trek_softmax(trek_masked_fill(scores, future, -INFINITY), 3), v);
}

static void packed_heads_are_views(void **state)
{
    trek_var *packed[2], *y[2];
    for (int fused = 0; fused < 2; fused++) {
        packed[fused] = numbers(5, trek_dims(2, 7, 3, 2, 4), true);
        trek_var *q = head(packed[fused], 0), *k = head(packed[fused], 1), *v = head(packed[fused], 2);
        y[fused] = fused ? trek_attention(q, k, v, &(trek_attention_opts){ .causal = true }) : plain_attention(q, k, v);
        assert_int_equal(trek_backward(sum_of(y[fused], numbers(6, trek_dims(2, 2, 7, 4), false))), TREK_OK);
    }
    same(y[0], y[1]);
    same(trek_var_grad(packed[0]), trek_var_grad(packed[1]));
    trek_var *joined = trek_reshape(trek_permute(y[1], trek_dims(0, 2, 1, 3)), trek_dims(2, 7, 8));
    if (test_on_cpu())
        assert_ptr_equal(trek_tensor_data(trek_var_data(joined)), trek_tensor_data(trek_var_data(y[1])));
}

static void queries_that_see_nothing(void **state)
{
    trek_var *x = numbers(5, trek_dims(1, 1, 3, 4), true);
    trek_var *mask = trek_var_from(test_values((double[]){ 1, 0, 1, 0, 0, 0, 0, 1, 1 }, trek_dims(3, 3), TREK_BOOL));
    trek_var *y = trek_attention(x, x, x, &(trek_attention_opts){ .mask = mask });
    same(trek_select(y, 2, 1), trek_var_from(trek_tensor_zeros(trek_dims(1, 1, 4), TREK_F64, trek_var_device(x))));
    trek_var *infinite = trek_masked_fill(trek_mul_scalar(trek_cast(mask, TREK_F64), 0), trek_logical_not(mask), -INFINITY);
    same(y, trek_attention(x, x, x, &(trek_attention_opts){ .mask = infinite }));
    assert_int_equal(trek_backward(trek_sum(y, trek_dims_all(), false)), TREK_OK);
    trek_var *finite = trek_all(trek_isfinite(trek_var_grad(x)), trek_dims_all(), false);
    assert_true(trek_var_item(finite) == 1);
}

static void attention_refuses(void **state)
{
    trek_var *x = numbers(5, trek_dims(1, 2, 3, 4), true), *mask = numbers(6, trek_dims(3, 3), true);
    assert_non_null(trek_attention(x, x, x, &(trek_attention_opts){ .mask = mask }));
    assert_non_null(trek_attention(x, x, x, &(trek_attention_opts){ .mask = trek_var_detach(mask) }));
    REFUSED(trek_attention(x, x, NULL, NULL), TREK_ERR_ARGUMENT, "attention: ");
    REFUSED(trek_attention(x, x, x, &(trek_attention_opts){ .dropout = -0.1 }), TREK_ERR_ARGUMENT, "attention: ");
    REFUSED(trek_attention(x, x, x, &(trek_attention_opts){ .scale = NAN }), TREK_ERR_ARGUMENT, "attention: ");
}

static void attention_dropout_does_not_know_the_split(void **state)
{
    trek_rank_context kept = trek_rank_here;
    trek_seed(11);
    trek_var *x = numbers(1, trek_dims(6, 2, 5, 3), false);
    trek_attention_opts opts = { .dropout = 0.4 };
    trek_rank_here.rng_step = 3;
    trek_rank_here.rng_draw = 0;
    trek_var *whole = trek_attention(x, x, x, &opts);
    static const int64_t cuts[] = { 0, 1, 4, 6 };
    for (int rank = 0; rank < 3; rank++) {
        int64_t first = cuts[rank], rows = cuts[rank + 1] - first;
        trek_rank_here.rank = rank;
        trek_rank_here.world = 3;
        trek_rank_here.first_sample = first;
        trek_rank_here.rows = rows;
        trek_rank_here.global_rows = 6;
        trek_rank_here.rng_step = 3;
        trek_rank_here.rng_draw = 0;
        trek_var *part = trek_narrow(x, 0, first, rows);
        same(trek_attention(part, part, part, &opts), trek_narrow(whole, 0, first, rows));
    }
    trek_rank_here = kept;
}

/* Scores of 1 x 4 x 1024 x 1024 would be 16 MiB each time they are made. */
static void attention_makes_no_scores(void **state)
{
    trek_tensor *t = test_tensor(3, trek_dims(1, 4, 1024, 16), 1);
    trek_var *x = trek_var_from(t);
    assert_int_equal(trek_var_set_requires_grad(x, true), TREK_OK);
    trek_device device = trek_var_device(x);
    trek_memory_reset_peak(device);
    int64_t before = trek_memory_usage(device).allocated_peak;
    trek_var *y = trek_attention(x, x, x, &(trek_attention_opts){ .causal = true });
    assert_int_equal(trek_backward(trek_sum(y, trek_dims_all(), false)), TREK_OK);
    assert_true(trek_memory_usage(device).allocated_peak - before < 8 << 20);
}

/* --- the loss of a linear layer --------------------------------------------------------------- */

static void loss_equals_linear_and_cross_entropy(void **state)
{
    const trek_cross_entropy_opts options[] = { { 0 }, { .ignore_index = TREK_ZERO, .label_smoothing = 0.1 },
                                                { .reduction = TREK_REDUCTION_SUM, .ignore_index = 3 },
                                                    { .reduction = TREK_REDUCTION_NONE } };
    for (int k = 0; k < 4; k++) {
        trek_var *in[2][3], *loss[2], *labels = labels_of(trek_dims(2, 6), 5);
        for (int fused = 0; fused < 2; fused++) {
            trek_var *x = in[fused][0] = numbers(1, trek_dims(2, 6, 3), true), *w = in[fused][1] = numbers(2, trek_dims(5, 3),
                                                                                                           true);
            trek_var *bias = in[fused][2] = numbers(3, trek_dims(5), true);
            if (fused)
                loss[fused] = trek_linear_cross_entropy(x, w, bias, labels, &options[k]);
            else
                loss[fused] = trek_cross_entropy_with(trek_linear(trek_reshape(x, trek_dims(12, 3)), w, bias),
                                                      trek_reshape(labels, trek_dims(12)), &options[k]);
            if (!fused && options[k].reduction == TREK_REDUCTION_NONE)
                loss[fused] = trek_reshape(loss[fused], trek_dims(2, 6));
            assert_int_equal(trek_backward(trek_sum(trek_square(loss[fused]), trek_dims_all(), false)), TREK_OK);
        }
        same(loss[0], loss[1]);
        for (int i = 0; i < 3; i++)
            same(trek_var_grad(in[0][i]), trek_var_grad(in[1][i]));
    }
}

/* Class weights, with and without smoothing, without making the logits; probabilities; several losses for each row: what linear
 * and cross_entropy give, their gradients and those of gradients. */
static trek_var *loss_of_form(int form, bool fused, trek_var *const *in, const trek_cross_entropy_opts *opts)
{
    trek_var *x = in[0], *w = in[1], *bias = in[2], *labels;
    if (form == 2) { /* [classes, 2, D] */
        labels = labels_of(trek_dims(12, 2), 5);
        if (fused)
            return trek_linear_cross_entropy(trek_reshape(x, trek_dims(12, 3)), trek_reshape(w, trek_dims(5, 2, 3)),
                                             trek_reshape(bias, trek_dims(5, 2)), labels, opts);
        trek_var *logits = trek_linear(trek_reshape(x, trek_dims(12, 3)), w, bias);
        return trek_cross_entropy_with(trek_reshape(logits, trek_dims(12, 5, 2)), labels, opts);
    }
    labels = form ? trek_softmax(numbers(7, trek_dims(2, 6, 10), false), 2) : labels_of(trek_dims(2, 6), 10);
    if (fused)
        return trek_linear_cross_entropy(x, w, bias, labels, opts);
    labels = form ? trek_reshape(labels, trek_dims(12, 10)) : trek_reshape(labels, trek_dims(12));
    trek_var *loss = trek_cross_entropy_with(trek_linear(trek_reshape(x, trek_dims(12, 3)), w, bias), labels, opts);
    return opts->reduction == TREK_REDUCTION_NONE ? trek_reshape(loss, trek_dims(2, 6)) : loss;
}

static void loss_of_all_forms(void **state)
{
    for (int k = 0; k < 3 * 3 * 4; k++) {
        static const trek_reduction reductions[] = { TREK_REDUCTION_MEAN, TREK_REDUCTION_SUM, TREK_REDUCTION_NONE };
        int form = k % 3, other = k / 9;
        trek_cross_entropy_opts opts = { .reduction = reductions[k / 3 % 3], .label_smoothing = other & 1 ? 0.1 : 0 };
        if (other & 2 || form == 0)
            opts.weight = trek_add_scalar(trek_square(numbers(4, trek_dims(form == 2 ? 5 : 10), false)), 0.5);
        if (form != 1)
            opts.ignore_index = 3;
        trek_var *in[2][3], *loss[2], *first[2][3];
        for (int fused = 0; fused < 2; fused++) {
            const trek_shape shapes[3] = { trek_dims(2, 6, 3), trek_dims(10, 3), trek_dims(10) };
            for (int i = 0; i < 3; i++)
                in[fused][i] = numbers((uint32_t)i, shapes[i], true);
            loss[fused] = loss_of_form(form, fused, in[fused], &opts);
            trek_var *scalar = trek_sum(trek_square(loss[fused]), trek_dims_all(), false);
            assert_int_equal(trek_grad(&scalar, 1, in[fused], 3, NULL, &(trek_backward_opts){ .create_graph = true },
                                       first[fused]),
                             TREK_OK);
            assert_int_equal(trek_backward(trek_sum(trek_square(first[fused][0]), trek_dims_all(), false)), TREK_OK);
        }
        same(loss[0], loss[1]);
        double weights[2] = { trek_loss_weight(loss[0]), trek_loss_weight(loss[1]) };
        assert_true(isnan(weights[0]) ? isnan(weights[1]) : fabs(weights[0] - weights[1]) < 1e-9);
        for (int i = 0; i < 3; i++) {
            same(first[0][i], first[1][i]);
            same(trek_var_grad(in[0][i]), trek_var_grad(in[1][i]));
        }
    }
}

/* The same with fewer gradients asked for, with sums that are there already, and asked for again after backward: what forward
 * has kept serves all of them. */
static void loss_gives_what_is_asked_for(void **state)
{
    const trek_cross_entropy_opts options[] = { { .label_smoothing = 0.1 },
                                                { .reduction = TREK_REDUCTION_SUM, .ignore_index = 3 } };
    for (int k = 0; k < 16; k++) {
        trek_var *in[2][3], *loss[2], *labels = labels_of(trek_dims(12), 5);
        for (int fused = 0; fused < 2; fused++) {
            const trek_shape shapes[3] = { trek_dims(12, 3), trek_dims(5, 3), trek_dims(5) };
            for (int i = 0; i < 3; i++)
                in[fused][i] = numbers((uint32_t)i, shapes[i], (k & 7) >> i & 1);
            trek_var **v = in[fused];
            loss[fused] = fused ? trek_linear_cross_entropy(v[0], v[1], v[2], labels, &options[k / 8])
                : trek_cross_entropy_with(trek_linear(v[0], v[1], v[2]), labels, &options[k / 8]);
            for (int times = 0; times < 2 && k & 7; times++)
                assert_int_equal(trek_backward_with(trek_mul_scalar(loss[fused], 0.7), NULL,
                                                    &(trek_backward_opts){ .retain_graph = true }),
                                 TREK_OK);
        }
        same(loss[0], loss[1]);
        for (int i = 0; i < 3; i++) {
            assert_int_equal(!trek_var_grad(in[1][i]), !((k & 7) >> i & 1));
            if ((k & 7) >> i & 1)
                same(trek_var_grad(in[0][i]), trek_var_grad(in[1][i]));
        }
    }
}

/* The weight of a product in 16 bits has its gradient in f32, not rounded on the way: a row's share would be lost in 16 bits. */
static void loss_in_low_precision(void **state)
{
    const trek_dtype dtypes[] = { TREK_BF16, TREK_F16 };
    for (int k = 0; k < 2; k++) {
        trek_var *labels = labels_of(trek_dims(6), 5), *w[2];
        for (int wide = 0; wide < 2; wide++) {
            trek_var *x = trek_cast(trek_cast(numbers(1, trek_dims(6, 3), false), dtypes[k]), wide ? TREK_F64 : TREK_F32);
            trek_var *rounded = trek_cast(trek_cast(numbers(2, trek_dims(5, 3), false), dtypes[k]), wide ? TREK_F64 : TREK_F32);
            w[wide] = trek_var_new(trek_var_data(rounded), true);
            trek_autocast_begin(wide ? TREK_F32 : dtypes[k]);
            trek_var *loss = trek_linear_cross_entropy(x, w[wide], NULL, labels, NULL);
            trek_autocast_end();
            assert_int_equal(trek_backward(trek_mul_scalar(loss, 1.0 / 3)), TREK_OK);
        }
        assert_int_equal(trek_var_dtype(trek_var_grad(w[0])), TREK_F32);
        double *got = test_read(trek_var_data(trek_var_grad(w[0]))), *want = test_read(trek_var_data(trek_var_grad(w[1])));
        int finer = 0;
        for (int e = 0; e < 15; e++) {
            float value = (float)got[e];
            uint32_t bits;
            memcpy(&bits, &value, sizeof bits);
            finer += (bits & (k ? 0x1fff : 0xffff)) != 0;
            assert_true(fabs(got[e] - want[e]) < 0.004);
        }
        assert_true(finer > 5);
        free(got);
        free(want);
        trek_var_release(w[0]);
        trek_var_release(w[1]);
    }
}

/* An odd number of classes against the same rounded numbers in f64: 16-bit operands, then f32 ones. */
static void compare_losses(int64_t rows, int64_t classes)
{
    const trek_cross_entropy_opts options[] = { { 0 }, { .label_smoothing = 0.1 } };
    trek_var *labels = labels_of(trek_dims(rows), classes);
    for (int k = 0; k < 4; k++) {
        trek_var *in[2][3], *loss[2];
        for (int wide = 0; wide < 2; wide++) {
            const trek_shape shapes[3] = { trek_dims(rows, 1), trek_dims(classes, 1), trek_dims(classes) };
            for (int i = 0; i < 3; i++) {
                trek_var *rounded = trek_cast(numbers((uint32_t)i, shapes[i], false), TREK_BF16);
                in[wide][i] = trek_cast(rounded, wide ? TREK_F64 : k < 2 ? TREK_BF16 : TREK_F32);
                in[wide][i] = trek_var_new(trek_var_data(in[wide][i]), true);
            }
            loss[wide] = trek_linear_cross_entropy(in[wide][0], in[wide][1], in[wide][2], labels, &options[k % 2]);
            assert_int_equal(trek_backward(loss[wide]), TREK_OK);
        }
        /* in f32 a sum over the classes, one after the other, strays by the root of their number */
        double unit = k < 2 ? 0x1p-8 : fmax(0x1p-20, 0x1p-26 * sqrt((double)classes));
        assert_true(fabs(trek_var_item(loss[0]) - trek_var_item(loss[1])) < unit * trek_var_item(loss[1]));
        for (int i = 0; i < 3; i++) {
            double *got = test_read(trek_var_data(trek_var_grad(in[0][i]))),
                   *want = test_read(trek_var_data(trek_var_grad(in[1][i]))), most = 0;
            int64_t n = trek_var_numel(in[0][i]);
            for (int64_t e = 0; e < n; e++)
                most = fabs(want[e]) > most ? fabs(want[e]) : most;
            for (int64_t e = 0; e < n; e++)
                if (!(fabs(got[e] - want[e]) < 4 * unit * most))
                    fail_msg("setting %d: gradient of input %d, element %lld of %lld, is %g, in f64 %g; the largest is %g", k, i,
                             (long long)e, (long long)n, got[e], want[e], most);
            free(got);
            free(want);
            trek_var_release(in[0][i]);
            trek_var_release(in[1][i]);
        }
    }
}

/* More classes than the threads of a GPU's block take at a time, in several pieces of rows. */
static void many_classes(void **state)
{
    compare_losses(90, 3001);
}

/* Logits of 16 bits that take more than an eighth of a GPU's 48 MiB: they are made in two parts. */
static void rows_in_parts(void **state)
{
    compare_losses(140, 20001);
}

/* More classes than a GPU's block has room for in its shared memory. */
static void more_classes(void **state)
{
    compare_losses(3, 60001);
}

/* log(1 + e^-29.6875 + e^-30) of a row whose label stands out: to the precision of 1, not of 30. */
static void small_losses(void **state)
{
    trek_var *logits = trek_var_from(test_values((double[]){ 30, 0.3125, 0 }, trek_dims(1, 3), TREK_F64));
    trek_var *labels = trek_var_from(test_values((double[]){ 0 }, trek_dims(1), TREK_I64));
    trek_var *x = trek_var_from(test_values((double[]){ 1 }, trek_dims(1, 1), TREK_F64));
    trek_var *losses[2] = { trek_cross_entropy(logits, labels),
                            trek_linear_cross_entropy(x, trek_reshape(logits, trek_dims(3, 1)), NULL, labels, NULL) };
    for (int k = 0; k < 2; k++) {
        double loss = -1;
        assert_non_null(losses[k]);
        assert_int_equal(trek_tensor_to_host(trek_var_data(losses[k]), TREK_F64, &loss, sizeof loss), TREK_OK);
        assert_true(fabs(loss - (exp(-30) + exp(-29.6875))) < 2.3e-16);
    }
}

/* By the cotangent of each row's loss: an ignored row has no part in it. */
static void ignored_rows_are_not_seen(void **state)
{
    trek_var *logits = trek_var_from(test_values((double[]){ INFINITY, 0, 1, 2 }, trek_dims(2, 2), TREK_F64)), *slope, *again;
    trek_var *labels = trek_var_from(test_values((double[]){ -100, 1 }, trek_dims(2), TREK_I64)),
        *seed = numbers(1, trek_dims(2), true);
    assert_int_equal(trek_var_set_requires_grad(logits, true), TREK_OK);
    trek_var *loss = trek_cross_entropy_with(logits, labels, &(trek_cross_entropy_opts){ .reduction = TREK_REDUCTION_NONE });
    assert_int_equal(trek_grad(&loss, 1, &logits, 1, &seed, &(trek_backward_opts){ .create_graph = true }, &slope), TREK_OK);
    trek_var *sum = trek_sum(trek_square(slope), trek_dims_all(), false);
    assert_int_equal(trek_grad(&sum, 1, &seed, 1, NULL, NULL, &again), TREK_OK);
    double first[4], second[2];
    assert_int_equal(trek_tensor_to_host(trek_var_data(slope), TREK_F64, first, sizeof first), TREK_OK);
    assert_int_equal(trek_tensor_to_host(trek_var_data(again), TREK_F64, second, sizeof second), TREK_OK);
    assert_true(first[0] == 0 && first[1] == 0 && first[2] > -1 && first[2] != 0);
    assert_true(second[0] == 0 && isfinite(second[1]) && second[1] != 0);
}

static void loss_refuses(void **state)
{
    trek_var *x = numbers(1, trek_dims(6, 3), true), *w = numbers(2, trek_dims(5, 3), true), *labels = labels_of(trek_dims(6), 5);
    trek_cross_entropy_opts weighted[] = { { .weight = numbers(3, trek_dims(5), true) },
                                           { .weight = numbers(3, trek_dims(4), false) },
                                           { .weight = labels_of(trek_dims(5), 5) }, { .weight = numbers(3, trek_dims(5), false),
                                                                                       .label_smoothing = 1.5 } };
    REFUSED(trek_linear_cross_entropy(x, w, NULL, labels, &weighted[0]), TREK_ERR_UNSUPPORTED,
            "linear_cross_entropy: class weights");
    REFUSED(trek_linear_cross_entropy(x, w, NULL, labels, &weighted[1]), TREK_ERR_SHAPE, "linear_cross_entropy: class weights");
    REFUSED(trek_linear_cross_entropy(x, w, NULL, labels, &weighted[2]), TREK_ERR_DTYPE, "linear_cross_entropy: class weights");
    REFUSED(trek_linear_cross_entropy(x, w, NULL, labels, &weighted[3]), TREK_ERR_ARGUMENT,
            "linear_cross_entropy: label_smoothing");
    REFUSED(trek_linear_cross_entropy(x, w, NULL, x, NULL), TREK_ERR_SHAPE, "linear_cross_entropy: labels: [6, 3] do not fit");
    trek_var *deep = numbers(2, trek_dims(5, 2, 3), false);
    REFUSED(trek_linear_cross_entropy(x, deep, NULL, labels, NULL), TREK_ERR_SHAPE,
            "cross_entropy: labels: [6] do not fit [6, 5, 2]");
    REFUSED(trek_linear_cross_entropy(x, deep, numbers(3, trek_dims(2, 5), false), labels_of(trek_dims(6, 2), 5), NULL),
            TREK_ERR_SHAPE,
            "linear_cross_entropy: bias");
    REFUSED(trek_linear_cross_entropy(x, w, NULL, labels_of(trek_dims(2, 3), 5), NULL), TREK_ERR_SHAPE,
            "linear_cross_entropy: labels: [2, 3] do not fit input [6, 3]");
    REFUSED(trek_linear_cross_entropy(x, NULL, NULL, labels, NULL), TREK_ERR_ARGUMENT, "linear_cross_entropy: ");
    REFUSED(trek_linear_cross_entropy(x, w, NULL, NULL, NULL), TREK_ERR_ARGUMENT, "linear_cross_entropy: ");
}

/* Logits and their gradient would be 2 x 16 MiB. */
static void loss_takes_a_tenth_of_the_memory(void **state)
{
    double *values = calloc(4096, sizeof *values);
    assert_non_null(values);
    trek_var *labels = trek_var_from(test_values(values, trek_dims(4096), TREK_I64));
    free(values);
    trek_var *x = trek_var_from(test_tensor(1, trek_dims(4096, 2), 1)), *w = trek_var_from(test_tensor(2, trek_dims(1024, 2), 1));
    assert_int_equal(trek_var_set_requires_grad(x, true), TREK_OK);
    assert_int_equal(trek_var_set_requires_grad(w, true), TREK_OK);
    trek_device device = trek_var_device(x);
    trek_memory_reset_peak(device);
    int64_t before = trek_memory_usage(device).allocated_peak;
    assert_int_equal(trek_backward(trek_linear_cross_entropy(x, w, NULL, labels, NULL)), TREK_OK);
    assert_true(trek_memory_usage(device).allocated_peak - before < 32 << 20 >> 3);
}

/* --- layers ------------------------------------------------------------------------------------- */

static trek_var *half_of(trek_var *x, int64_t first, int64_t n) { return trek_narrow(x, 0, first, n); }

static void multihead_attention_layer(void **state)
{
    trek_module *m = trek_nn_multihead_attention_with(
        &(trek_multihead_attention_opts){ .embed_dim = 8, .heads = 2, .causal = true, .dtype = TREK_F64,
                                          .device = test_device() });
    assert_non_null(m);
    trek_var *w = trek_module_find(m, "in_proj_weight"), *b = trek_module_find(m, "in_proj_bias");
    trek_var *out_w = trek_module_find(m, "out_proj.weight"), *out_b = trek_module_find(m, "out_proj.bias");
    assert_true(w && b && out_w && out_b);
    assert_true(trek_shape_equal(trek_var_shape(w), trek_dims(24, 8)) && trek_shape_equal(trek_var_shape(b), trek_dims(24)));
    same(out_b, trek_var_from(trek_tensor_zeros(trek_dims(8), TREK_F64, test_device())));
    trek_no_grad_begin();
    assert_non_null(trek_copy_(b, numbers(7, trek_dims(24), false)));
    trek_no_grad_end();
    trek_var *x = numbers(1, trek_dims(2, 5, 8), false), *parts[3];
    for (int k = 0; k < 3; k++) {
        trek_var *part = trek_linear(x, half_of(w, 8 * k, 8), half_of(b, 8 * k, 8));
        parts[k] = trek_permute(trek_reshape(part, trek_dims(2, 5, 2, 4)), trek_dims(0, 2, 1, 3));
    }
    trek_var *joined = trek_reshape(trek_permute(plain_attention(parts[0], parts[1], parts[2]), trek_dims(0, 2, 1, 3)),
                                    trek_dims(2, 5, 8));
    trek_var *want = trek_linear(joined, out_w, out_b), *y = trek_forward(m, x);
    same(want, y);
    trek_var *copy = trek_clone(x), *other = trek_clone(x);
    same(want, trek_forward_many(m, (trek_var *[]){ x, x }, 2));
    same(want, trek_forward_many(m, (trek_var *[]){ x, copy }, 2));
    same(want, trek_forward_many(m, (trek_var *[]){ x, copy, other }, 3));
    trek_var *nothing = trek_var_from(trek_tensor_ones(trek_dims(5, 5), TREK_BOOL, test_device()));
    same(want, trek_forward_many(m, (trek_var *[]){ x, x, x, nothing }, 4));
    assert_int_equal(trek_backward(trek_sum(y, trek_dims_all(), false)), TREK_OK);
    assert_non_null(trek_var_grad(w));
    REFUSED(trek_forward(m, numbers(1, trek_dims(5, 8), false)), TREK_ERR_SHAPE,
            "multihead_attention: input: [5, 8]; must be [N, T, 8]");
    trek_module_free(&m);
    REFUSED(trek_nn_multihead_attention(8, 3, test_device()), TREK_ERR_ARGUMENT,
            "multihead_attention: .embed_dim: 8; must be a multiple of 3");
}

static void multihead_attention_drops_in_training(void **state)
{
    trek_module *m = trek_nn_multihead_attention_with(
        &(trek_multihead_attention_opts){ .embed_dim = 4, .heads = 1, .no_bias = true, .dropout = 0.5, .device = test_device() });
    trek_var *x = trek_var_from(test_tensor(1, trek_dims(2, 6, 4), 1));
    assert_null(trek_module_find(m, "in_proj_bias"));
    assert_false(test_same_bits(trek_var_data(trek_forward(m, x)), trek_var_data(trek_forward(m, x))));
    trek_module_train(m, false);
    assert_true(test_same_bits(trek_var_data(trek_forward(m, x)), trek_var_data(trek_forward(m, x))));
    trek_module_free(&m);
}

static void rms_norm_layer(void **state)
{
    trek_module *m = trek_nn_rms_norm_with(&(trek_rms_norm_opts){ .shape = trek_dims(3), .dtype = TREK_F64,
                                                                  .device = test_device() });
    trek_var *x = trek_var_from(test_values((double[]){ 1, 2, 2, 0, 0, 0 }, trek_dims(2, 3), TREK_F64)),
        *weight = trek_module_find(m, "weight");
    assert_non_null(weight);
    double r = sqrt(3.0) / 3;
    same(trek_forward(m, x), trek_var_from(test_values((double[]){ r, 2 * r, 2 * r, 0, 0, 0 }, trek_dims(2, 3), TREK_F64)));
    REFUSED(trek_forward(m, trek_reshape(x, trek_dims(3, 2))), TREK_ERR_SHAPE,
            "rms_norm: input: [3, 2]; the last dimensions must be [3]");
    trek_module_free(&m);
    REFUSED(trek_nn_rms_norm(0, test_device()), TREK_ERR_ARGUMENT, "rms_norm: ");
}

/* --- norms: dtypes, rows of one number, what needs no gradient ------------------------------- */

static trek_var *filled(double value, trek_shape shape, trek_dtype dtype, bool requires_grad)
{
    trek_var *v = trek_var_from(trek_tensor_full(shape, value, dtype, test_device()));
    if (requires_grad)
        assert_int_equal(trek_var_set_requires_grad(v, true), TREK_OK);
    return v;
}

/* PyTorch's mixed norms: 16-bit x, f32 parameters, a result of x's dtype, gradients of their inputs'. */
static void norms_of_16_bits_with_f32_parameters(void **state)
{
    for (int which = 0; which < 4; which++) {
        trek_dtype low = which % 2 ? TREK_F16 : TREK_BF16;
        trek_var *x = trek_cast(numbers(3, trek_dims(4, 6), false), low), *w = filled(1.5, trek_dims(6), TREK_F32, true);
        trek_var *b = filled(0.5, trek_dims(6), TREK_F32, true);
        assert_int_equal(trek_var_set_requires_grad(x, true), TREK_OK);
        trek_var *y = which == 0   ? trek_layer_norm(x, 1, w, b, 1e-5)
                      : which == 1 ? trek_rms_norm(x, 1, w, 1e-5)
                      : which == 2 ? trek_batch_norm(x, NULL, NULL, w, b, true, 0.1, 1e-5)
                                   : trek_add_layer_norm(x, x, 1, w, b, 1e-5, NULL);
        assert_int_equal(trek_var_dtype(y), low);
        assert_int_equal(trek_backward(trek_sum(trek_mul(y, trek_cast(numbers(4, trek_dims(4, 6), false), low)), trek_dims_all(),
                                                false)), TREK_OK);
        assert_int_equal(trek_var_dtype(trek_var_grad(x)), low);
        assert_int_equal(trek_var_dtype(trek_var_grad(w)), TREK_F32);
    }
}

static void norms_refuse_other_mixtures(void **state)
{
    trek_var *x = filled(1, trek_dims(4, 6), TREK_F64, true), *w = filled(1, trek_dims(6), TREK_F32, true);
    REFUSED(trek_layer_norm(x, 1, w, NULL, 1e-5), TREK_ERR_DTYPE,
            "layer_norm: weight: dtype f32, for an input of f64; must be the same");
    REFUSED(trek_rms_norm(x, 1, w, 1e-5), TREK_ERR_DTYPE, "rms_norm: weight: dtype f32, for an input of f64; must be the same");
    REFUSED(trek_add_layer_norm(x, x, 1, NULL, w, 1e-5, NULL), TREK_ERR_DTYPE,
            "add_layer_norm: bias: dtype f32, for an input of f64; must be the same");
    assert_non_null(trek_batch_norm(x, NULL, NULL, w, w, true, 0.1, 1e-5)); /* which takes any */
    REFUSED(trek_batch_norm(x, NULL, NULL, trek_cast(w, TREK_I32), NULL, true, 0.1, 1e-5), TREK_ERR_DTYPE,
            "batch_norm: weight: dtype i32; must be floating");
    REFUSED(trek_layer_norm(trek_cast(x, TREK_BF16), 1, w, trek_cast(w, TREK_BF16), 1e-5), TREK_ERR_DTYPE,
            "layer_norm: weight and bias: dtypes f32 and bf16; must be equal");
    REFUSED(trek_layer_norm(trek_cast(x, TREK_BF16), 1, trek_cast(w, TREK_F16), NULL, 1e-5), TREK_ERR_DTYPE,
            "layer_norm: weight: dtype f16, for an input of bf16; must be the same, or f32");
}

/* What the sum's rounding costs the mean is divided by sqrt(eps): it must not be seen. */
static void rows_of_one_number(void **state)
{
    static const double values[] = { 100.1, -0.3, 1e6 / 3, 3e38 };
    static const int64_t columns[] = { 768, 129, 7, 1 };
    for (int k = 0; k < 16; k++) {
        trek_var *x = filled(values[k % 4], trek_dims(3, columns[k / 4]), TREK_F32, true);
        if (k % 4 == 3 && k / 4 < 3)
            continue; /* the sum is infinite */
        double *y = test_read(trek_var_data(trek_layer_norm(x, 1, NULL, NULL, 1e-5)));
        for (int64_t j = 0; j < 3 * columns[k / 4]; j++)
            assert_true(y[j] == 0);
        free(y);
        trek_var *grad, *out = trek_layer_norm(x, 1, NULL, NULL, 1e-5),
            *seed = trek_cast(numbers(9, trek_var_shape(x), false), TREK_F32);
        for (int create = 0; create < 2; create++) { /* the composite, too */
            assert_int_equal(trek_grad(&out, 1, &x, 1, &seed,
                                       &(trek_backward_opts){ .create_graph = create, .retain_graph = true }, &grad), TREK_OK);
            double *g = test_read(trek_var_data(grad)), *s = test_read(trek_var_data(seed)), mean = 0;
            for (int64_t j = 0; j < columns[k / 4]; j++)
                mean += s[j] / (double)columns[k / 4];
            for (int64_t j = 0; j < columns[k / 4]; j++)
                if (!(fabs(g[j] - (s[j] - mean) / sqrt(1e-5)) < 0.01))
                    fail_msg("%g, %d columns, create_graph %d: %g, should be %g", values[k % 4], (int)columns[k / 4], create,
                             g[j],
                             (s[j] - mean) / sqrt(1e-5));
            free(g);
            free(s);
        }
    }
}

/* As x + branch would be: of two frozen inputs, a constant. */
static void a_residual_without_gradient(void **state)
{
    trek_var *x = numbers(1, trek_dims(2, 3), false), *w = filled(1, trek_dims(3), TREK_F64, true), *residual;
    trek_var *y = trek_add_layer_norm(x, x, 1, w, NULL, 1e-5, &residual);
    assert_true(trek_var_requires_grad(y) && !trek_var_requires_grad(residual));
    FAILS(trek_backward(trek_sum(residual, trek_dims_all(), false)), TREK_ERR_STATE, "");
    assert_int_equal(trek_backward(trek_sum(trek_add(y, residual), trek_dims_all(), false)), TREK_OK);
    assert_non_null(trek_var_grad(w));
    y = trek_add_layer_norm(x, numbers(2, trek_dims(2, 3), true), 1, NULL, NULL, 1e-5, &residual);
    assert_true(trek_var_requires_grad(y) && trek_var_requires_grad(residual));
}

/* --- linear in 16 bits -------------------------------------------------------------------------- */

/* A stream's numbers, rounded to `rounded` and held as `dtype`. */
static trek_var *rounded_numbers(uint32_t stream, trek_shape shape, trek_dtype rounded, trek_dtype dtype, bool requires_grad)
{
    trek_tensor *f32 = test_tensor(stream, shape, 1), *narrow = trek_tensor_cast(f32, rounded);
    trek_var *v = trek_var_from(trek_tensor_cast(narrow, dtype));
    trek_tensor_release(f32);
    trek_tensor_release(narrow);
    if (requires_grad)
        assert_int_equal(trek_var_set_requires_grad(v, true), TREK_OK);
    return v;
}

typedef struct linear_case {
    int64_t rows, in, out;
    int passes; /* of backward, which add up */
} linear_case;

/* Gradients of weight and bias after the passes. */
static void linear_gradients(const linear_case *c, trek_dtype rounded, trek_dtype dtype, bool bias, trek_var *grads[2])
{
    trek_var *x = rounded_numbers(1, trek_dims(c->rows, c->in), rounded, dtype, true);
    trek_var *weight = rounded_numbers(2, trek_dims(c->out, c->in), rounded, dtype, true);
    trek_var *b = rounded_numbers(3, trek_dims(c->out), rounded, dtype, true);
    trek_var *seed = rounded_numbers(4, trek_dims(c->rows, c->out), rounded, dtype, false);
    for (int pass = 0; pass < c->passes; pass++) {
        trek_var *y = trek_linear(x, weight, bias ? b : NULL);
        assert_int_equal(trek_backward_with(y, seed, NULL), TREK_OK);
    }
    grads[0] = trek_var_grad(weight);
    grads[1] = trek_var_grad(b);
}

/* The sums are gathered in f32 and rounded once in each pass. */
static void near_sums(const trek_var *got, const trek_var *want, double unit, const char *what)
{
    double *x = test_read(trek_var_data(got)), *y = test_read(trek_var_data(want));
    assert_true(x && y && trek_shape_equal(trek_var_shape(got), trek_var_shape(want)));
    for (int64_t k = 0; k < trek_var_numel(want); k++)
        if (!(fabs(x[k] - y[k]) <= 2 * unit * fabs(y[k]) + 1e-4 * unit / 0x1p-9))
            fail_msg("%s, element %d: %.9g, should be %.9g", what, (int)k, x[k], y[k]);
    free(x);
    free(y);
}

/* Weight and bias come of one product where there is a library for it: few rows and many, sides that it takes and that it does
 * not, gradients that are written and that are added to. */
static void linear_gradients_in_16_bits(void **state)
{
    static const linear_case cases[] = {
        { 128, 24, 40, 1 }, { 128, 24, 40, 2 }, { 2, 16, 8, 2 }, { 1, 16, 8, 2 },
        { 33, 7, 5, 2 },    { 65, 17, 1, 1 },   { 3, 1, 9, 1 },  { 0, 8, 8, 1 },
    };
    static const struct { trek_dtype dtype; double unit; } formats[] = { { TREK_BF16, 0x1p-8 }, { TREK_F16, 0x1p-11 } };
    for (int f = 0; f < 2; f++)
        for (size_t k = 0; k < sizeof cases / sizeof cases[0]; k++) {
            trek_var *got[2], *want[2];
            char what[40];
            linear_gradients(&cases[k], formats[f].dtype, formats[f].dtype, true, got);
            linear_gradients(&cases[k], formats[f].dtype, TREK_F64, true, want);
            for (int i = 0; i < 2; i++) {
                snprintf(what, sizeof what, "case %d, %s", (int)k, i ? "bias" : "weight");
                near_sums(got[i], want[i], formats[f].unit, what);
            }
        }
}

/* With cuBLASLt a bias takes no kernel of its own, neither way. */
static void bias_gradients_take_no_kernel(void **state)
{
    const linear_case c = { 64, 32, 48, 1 };
    long (*kernels)(int device), count[2];
    void *address = test_fake("trek_fake_kernels");
    const char *library = getenv("TREK_CUBLASLT_LIBRARY");
    if (!address || !library || strncmp(library, "/nowhere/", 9) == 0)
        skip();
    memcpy(&kernels, &address, sizeof kernels);
    for (int round = 0; round < 2; round++) /* the first: what a device runs once */
        for (int bias = 0; bias < 2; bias++) {
            trek_var *grads[2];
            trek_scope scope = trek_scope_begin();
            long before = kernels(test_device().index);
            linear_gradients(&c, TREK_BF16, TREK_BF16, bias, grads);
            assert_int_equal(trek_device_sync(test_device()), TREK_OK);
            count[bias] = kernels(test_device().index) - before;
            trek_scope_end(scope);
        }
    assert_int_equal(count[1], count[0]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(gradients_flow_through_both), TEST(second_gradients_of_a_pair), TEST(hooks_know_the_output),
        TEST(packed_heads_are_views), TEST(queries_that_see_nothing), TEST(attention_refuses),
        TEST(attention_dropout_does_not_know_the_split), TEST(attention_makes_no_scores),
        TEST(loss_equals_linear_and_cross_entropy), TEST(loss_of_all_forms), TEST(loss_gives_what_is_asked_for),
        TEST(loss_in_low_precision),
        TEST(many_classes), TEST(rows_in_parts), TEST(more_classes), TEST(small_losses), TEST(ignored_rows_are_not_seen),
        TEST(loss_refuses), TEST(loss_takes_a_tenth_of_the_memory), TEST(multihead_attention_layer),
        TEST(multihead_attention_drops_in_training), TEST(rms_norm_layer), TEST(norms_of_16_bits_with_f32_parameters),
        TEST(norms_refuse_other_mixtures), TEST(rows_of_one_number), TEST(a_residual_without_gradient),
        TEST(linear_gradients_in_16_bits), TEST(bias_gradients_take_no_kernel),
    };
    return cmocka_run_group_tests_name("fused", tests, NULL, NULL);
}
