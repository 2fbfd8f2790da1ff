/* SPDX-License-Identifier: Apache-2.0 */
/* nn/: layers against numbers worked out by hand, initial values, Sequential's fusing. */
#include <limits.h>

#include "autograd/backward.h"
#include "autograd/ops.h"
#include "autograd/var_internal.h"
#include "nn/init.h"
#include "nn/layers.h"
#include "nn/module_internal.h"
#include "nn/module_tree.h"
#include "tensor/memory.h"
#include "tensor/print.h"
#include "tests/nn/values.h"
#include "tests/support/refused.h"
#include "tests/support/support.h"

/* --- layers ---------------------------------------------------------------------------------------------- */

static void test_sequential(void **state)
{
    trek_module *m = trek_nn_sequential(NULL, 0), *twice = trek_nn_leaky_relu(0.5);
    trek_scope scope = trek_scope_begin();
    trek_var *x = numbers((double[]){ -4, 4 }, trek_dims(2));
    assert_ptr_equal(trek_forward(m, x), x);
    for (int k = 0; k < 40; k++) { /* more than one run of scopes */
        assert_int_equal(trek_nn_sequential_add(m, k < 2 ? twice : trek_nn_identity()), TREK_OK);
        int held = trek_scopes.count;
        expect_near(at(trek_forward(m, x), 0), k == 0 ? -2 : -1, 0);
        assert_int_equal(trek_scopes.count, held + 1);
    }
    for (int k = 0; k < 40; k++)
        trek_nn_sequential_add(m, trek_nn_tanh());
    int held = trek_scopes.count;
    double wanted = -1;
    for (int k = 0; k < 40; k++)
        wanted = tanh(wanted);
    expect_near(at(trek_forward(m, x), 0), wanted, 1e-5);
    assert_int_equal(trek_scopes.count, held + 1);
    trek_nn_sequential_add(m, trek_nn_linear(3, 3, test_device()));
    REFUSED(trek_forward(m, x), TREK_ERR_SHAPE, "linear");
    trek_scope_end(scope);
    char text[64] = "";
    trek_module_each_param(m, join_name, text);
    assert_string_equal(text, "80.weight 80.bias ");
    trek_module_free(&m);

    freed = 0;
    trek_module *same = trek_module_new(&bare_class);
    assert_null(trek_nn_sequential((trek_module *[]){ same, trek_module_new(&bare_class), NULL, same }, 4));
    assert_int_equal(freed, 2);
    expect_error(TREK_ERR_ARGUMENT, "");
    trek_module *relu = trek_nn_relu();
    FAILS(trek_nn_sequential_add(relu, trek_nn_relu()), TREK_ERR_ARGUMENT, "it is a relu; must be a sequential");
    trek_module_free(&relu);
}

static void test_batch_norm(void **state)
{
    trek_module *m = trek_nn_batch_norm1d(2, test_device());
    trek_batch_norm_opts averaging = { .features = 2, .momentum = TREK_OFF, .device = test_device() };
    trek_batch_norm_opts bare = { .features = 2, .no_running_stats = true, .no_affine = true, .device = test_device() };
    trek_module *average = trek_nn_batch_norm1d_with(&averaging), *own = trek_nn_batch_norm1d_with(&bare);
    trek_module *flat = trek_nn_batch_norm2d(2, test_device());
    trek_scope scope = trek_scope_begin();
    trek_var *x = numbers((double[]){ 1, 10, 3, 30, 5, 20 }, trek_dims(3, 2));
        /* means 3, 20; variances 8/3, 200/3; unbiased 4, 100 */
    trek_var *z = numbers((double[]){ 5, 0, 5, 0, 8, 0 }, trek_dims(3, 2));    /* mean 6 */
    trek_var *y = trek_forward(m, x);
    expect_near(at(y, 0), -2 / sqrt(8.0 / 3 + 1e-5), 1e-5);
    expect_near(at(y, 3), 10 / sqrt(200.0 / 3 + 1e-5), 1e-5);
    expect_near(at(trek_module_find(m, "running_mean"), 0), 0.3, 1e-6);
    expect_near(at(trek_module_find(m, "running_mean"), 1), 2, 1e-6);
    expect_near(at(trek_module_find(m, "running_var"), 0), 0.9 + 0.4, 1e-6);
    expect_near(at(trek_module_find(m, "running_var"), 1), 0.9 + 10, 1e-5);
    assert_int_equal((int)trek_var_item(trek_module_find(m, "num_batches_tracked")), 1);
    trek_forward(average, x);
    trek_forward(average, z);
    expect_near(at(trek_module_find(average, "running_mean"), 0), 4.5, 1e-5);
    trek_module_train(m, false);
    trek_module_train(own, false);
    expect_near(at(trek_forward(m, x), 0), (1 - 0.3) / sqrt(1.3 + 1e-5), 1e-5);
    expect_near(at(trek_forward(own, x), 0), -2 / sqrt(8.0 / 3 + 1e-5), 1e-5);
    assert_int_equal((int)trek_var_item(trek_module_find(m, "num_batches_tracked")), 1);
    assert_int_equal(trek_module_param_count(own), 0);
    assert_non_null(trek_forward(m, numbers((double[]){ 1, 2 }, trek_dims(1, 2)))); /* fine in eval */
    trek_module_train(m, true);
    REFUSED(trek_forward(m, numbers((double[]){ 1, 2 }, trek_dims(1, 2))), TREK_ERR_SHAPE, "more than 1 value for each channel");
    assert_int_equal((int)trek_var_item(trek_module_find(m, "num_batches_tracked")), 1);
    REFUSED(trek_forward(flat, x), TREK_ERR_SHAPE, "batch_norm2d: input: [3, 2]; must be [N, C, H, W]");
    assert_non_null(trek_forward(flat, trek_reshape(numbers((double[]){ 1, 2, 3, 4, 5, 6, 7, 8 }, trek_dims(8)),
                                                    trek_dims(1, 2, 2, 2))));
    REFUSED(trek_forward(m, numbers((double[]){ 1, 2, 3, 4, 5, 6 }, trek_dims(2, 3))), TREK_ERR_SHAPE,
            "input: [2, 3] has 3 channels in dimension 1; weight has 2");
    trek_scope_end(scope);
    trek_module *all[] = { m, average, own, flat };
    for (int k = 0; k < 4; k++)
        trek_module_free(&all[k]);
}

static void test_norm_embedding_dropout(void **state)
{
    trek_module *norm = trek_nn_layer_norm(3, test_device()), *drop = trek_nn_dropout(0.25);
    trek_module *table =
        trek_nn_embedding_with(&(trek_embedding_opts){ .num = 4, .dim = 2, .padding_idx = TREK_ZERO, .device = test_device() });
    trek_scope scope = trek_scope_begin();
    fill(norm, "weight", (double[]){ 1, 2, 1 });
    fill(norm, "bias", (double[]){ 0, 1, 0 });
    trek_var *y = trek_forward(norm, numbers((double[]){ 1, 2, 6 }, trek_dims(1, 3)));
    expect_near(at(y, 0), -2 / sqrt(14.0 / 3 + 1e-5), 1e-5);
    expect_near(at(y, 1), 1 - 2 / sqrt(14.0 / 3 + 1e-5), 1e-5);
    REFUSED(trek_forward(norm, numbers((double[]){ 1, 2 }, trek_dims(1, 2))), TREK_ERR_SHAPE,
            "input: [1, 2]; the last dimensions must be [3]");

    trek_var *weight = trek_module_find(table, "weight");
    expect_near(at(weight, 0), 0, 0);
    expect_near(at(weight, 1), 0, 0);
    assert_true(at(weight, 2) != 0);
    trek_var *rows = trek_var_from(trek_tensor_from_data((int64_t[]){ 0, 3, 3 }, trek_dims(3), TREK_I64, test_device()));
    y = trek_forward(table, rows);
    expect_near(at(y, 5), at(weight, 7), 0);
    trek_backward(trek_sum(y, trek_dims_all(), false));
    expect_near(at(trek_var_grad(weight), 0), 0, 0);
    expect_near(at(trek_var_grad(weight), 7), 2, 0);
    REFUSED(trek_nn_embedding_with(&(trek_embedding_opts){ .num = 4, .dim = 2, .padding_idx = 4, .device = trek_cpu(0) }),
            TREK_ERR_ARGUMENT, "padding_idx: 4; must be inside 4 rows");

    trek_var *ones = trek_var_from(trek_tensor_ones(trek_dims(4096), TREK_F32, test_device()));
    double sum = 0, values[4096];
    y = trek_forward(drop, ones);
    trek_tensor_to_host(trek_var_data(y), TREK_F64, values, sizeof values);
    for (int k = 0; k < 4096; k++) {
        assert_true(values[k] == 0 || fabs(values[k] - 4.0 / 3) < 1e-6);
        sum += values[k];
    }
    expect_near(sum / 4096, 1, 0.05);
    trek_module_train(drop, false);
    assert_ptr_equal(trek_forward(drop, ones), ones);
    trek_scope_end(scope);
    REFUSED(trek_nn_dropout(1.5), TREK_ERR_ARGUMENT, "p: 1.5");
    trek_module_free(&norm);
    trek_module_free(&drop);
    trek_module_free(&table);
}

static trek_var *places(trek_shape shape, const int64_t *values)
{
    return trek_var_from(trek_tensor_from_data(values, shape, TREK_I64, test_device()));
}

static void test_bags(void **state)
{
    trek_embedding_bag_opts opts = { .num = 4, .dim = 2, .mode = TREK_REDUCTION_SUM, .padding_idx = TREK_ZERO,
                                     .device = test_device() };
    trek_module *sum = trek_nn_embedding_bag_with(&opts), *mean = trek_nn_embedding_bag(4, 2, test_device());
    trek_module *table = trek_nn_embedding_with(&(trek_embedding_opts){ .num = 4, .dim = 2, .max_norm = 1, .norm_type = 1,
                                                                        .scale_grad_by_freq = true, .device = test_device() });
    trek_scope scope = trek_scope_begin();
    expect_near(at(trek_module_find(sum, "weight"), 1), 0, 0); /* the padding */
    const double rows[] = { 9, 9, 1, 2, 3, 4, -5, 6 };
    fill(sum, "weight", rows);
    fill(mean, "weight", rows);
    fill(table, "weight", rows);
    trek_var *index = places(trek_dims(4), (int64_t[]){ 1, 0, 3, 2 }), *offsets = places(trek_dims(2), (int64_t[]){ 0, 3 });
    trek_var *weights = numbers((double[]){ 1, 1, 2, 3 }, trek_dims(4));
    trek_var *y = trek_forward_many(sum, (trek_var *[]){ index, offsets, weights }, 3);
    expect_near(at(y, 0), 1 - 10, 1e-6);
    expect_near(at(y, 3), 12, 1e-6);
    y = trek_forward(mean, trek_reshape(index, trek_dims(2, 2)));
    expect_near(at(y, 0), 5, 1e-6);
    expect_near(at(trek_forward_many(mean, (trek_var *[]){ index, offsets }, 2), 1), 17.0 / 3, 1e-5);
    REFUSED(trek_forward(mean, index), TREK_ERR_ARGUMENT, "offsets: NULL");
    REFUSED(trek_forward_many(sum, (trek_var *[]){ index, offsets, weights, weights }, 4), TREK_ERR_ARGUMENT, "inputs: ");
    trek_backward(trek_sum(trek_forward(table, places(trek_dims(3), (int64_t[]){ 1, 1, 3 })), trek_dims_all(), false));
    trek_var *weight = trek_module_find(table, "weight");
    expect_near(at(weight, 2), 1.0 / 3, 1e-6); /* limited, as row 0 is not */
    expect_near(at(weight, 0), 9, 0);
    expect_near(at(trek_var_grad(weight), 2), 1, 1e-6);
    assert_true(trek_module_class_of(table)->couples_samples && !trek_module_class_of(sum)->couples_samples);
    char *text = trek_module_summary(sum);
    assert_non_null(strstr(text, "4, 2, padding row 0, sum"));
    trek_string_free(&text);
    trek_scope_end(scope);
    opts.mode = (trek_reduction)3;
    REFUSED(trek_nn_embedding_bag_with(&opts), TREK_ERR_ARGUMENT, "embedding_bag: .mode: 3");
    opts = (trek_embedding_bag_opts){ .num = 4, .dim = 2, .mode = TREK_REDUCTION_MAX, .scale_grad_by_freq = true,
                                      .device = trek_cpu(0) };
    REFUSED(trek_nn_embedding_bag_with(&opts), TREK_ERR_ARGUMENT, "set together with TREK_REDUCTION_MAX");
    REFUSED(trek_nn_embedding_bag(0, 2, test_device()), TREK_ERR_ARGUMENT, "embedding_bag: num: ");
    REFUSED(trek_nn_embedding_bag_with(NULL), TREK_ERR_ARGUMENT, "options: NULL");
    REFUSED(trek_nn_embedding_with(&(trek_embedding_opts){ .num = 4, .dim = 2, .max_norm = -1, .device = trek_cpu(0) }),
            TREK_ERR_ARGUMENT, "embedding: max_norm: -1");
    trek_module *all[] = { sum, mean, table };
    for (int k = 0; k < 3; k++)
        trek_module_free(&all[k]);
}

static void test_positions(void **state)
{
    trek_module *rotary = trek_nn_rotary(2, 3, test_device()), *waves = trek_nn_sinusoidal_positions(2, 3, test_device());
    trek_module *pairs = trek_nn_rotary_with(&(trek_rotary_layer_opts){ .dim = 2, .interleaved = true, .device = test_device() });
    trek_module *dropped = trek_nn_sinusoidal_positions_with(&(trek_sinusoidal_positions_opts){ .dim = 2, .dropout = 1,
                                                                                                .device = test_device() });
    trek_scope scope = trek_scope_begin();
    trek_var *x = numbers((double[]){ 1, 2, 7, 3, 4, 8 }, trek_dims(1, 2, 3));
    trek_var *y = trek_forward(rotary, x);
    expect_near(at(y, 1), 2, 0);
    expect_near(at(y, 3), 3 * cos(1) - 4 * sin(1), 1e-6);
    expect_near(at(y, 5), 8, 0);
    trek_var *own = places(trek_dims(2), (int64_t[]){ 2, 0 });
    y = trek_forward_many(pairs, (trek_var *[]){ x, own }, 2);
    expect_near(at(y, 1), 2 * cos(2) + sin(2), 1e-6);
    expect_near(at(y, 3), 3, 0);
    expect_near(at(trek_forward_many(pairs, (trek_var *[]){ x, NULL }, 2), 4), 4 * cos(1) + 3 * sin(1), 1e-6);
    y = trek_forward(waves, trek_narrow(x, 2, 0, 2));
    expect_near(at(y, 2), 3 + sin(1), 1e-6);
    expect_near(at(y, 3), 4 + cos(1), 1e-6);
    expect_near(at(trek_forward(dropped, trek_narrow(x, 2, 0, 2)), 1), 0, 0);
    trek_module_train(dropped, false);
    expect_near(at(trek_forward(dropped, trek_narrow(x, 2, 0, 2)), 1), 3, 1e-6);
    assert_int_equal((int)trek_var_size(trek_module_find(pairs, "table"), 0), 4096);
    assert_int_equal((int)trek_var_size(trek_module_find(dropped, "pe"), 0), 5000);
    assert_int_equal(trek_module_param_count(rotary), 0);
    REFUSED(trek_forward(rotary, trek_expand(trek_narrow(x, 1, 0, 1), trek_dims(1, 4, 3))), TREK_ERR_SHAPE,
            "rotary: input: [1, 4, 3]; must be [..., T, D] with T up to 3");
    REFUSED(trek_forward(waves, x), TREK_ERR_SHAPE, "sinusoidal_positions: input: [1, 2, 3]; must be [..., T, 2]");
    REFUSED(trek_forward_many(pairs, (trek_var *[]){ x, own, own }, 3), TREK_ERR_ARGUMENT, "inputs: 3");
    trek_scope_end(scope);
    REFUSED(trek_nn_rotary(3, 4, test_device()), TREK_ERR_ARGUMENT, "dim: 3");
    REFUSED(trek_nn_rotary(0, 4, test_device()), TREK_ERR_ARGUMENT, "rotary: dim: ");
    REFUSED(trek_nn_sinusoidal_positions_with(&(trek_sinusoidal_positions_opts){ .dim = 2, .dropout = 2, .device = trek_cpu(0) }),
            TREK_ERR_ARGUMENT, ".dropout: 2");
    REFUSED(trek_nn_sinusoidal_positions_with(NULL), TREK_ERR_ARGUMENT, "options: NULL");
    REFUSED(trek_nn_rotary_with(NULL), TREK_ERR_ARGUMENT, "options: NULL");
    trek_module *all[] = { rotary, waves, pairs, dropped };
    for (int k = 0; k < 4; k++)
        trek_module_free(&all[k]);
}

static void test_bilinear_unflatten(void **state)
{
    trek_module *m = trek_nn_bilinear(2, 1, 2, test_device()), *shape = trek_nn_unflatten(-1, trek_dims(2, -1));
    trek_module *bare = trek_nn_bilinear_with(&(trek_bilinear_opts){ .in1 = 2, .in2 = 1, .out = 2, .no_bias = true,
                                                                     .device = test_device() });
    trek_scope scope = trek_scope_begin();
    for (int64_t k = 0; k < 4; k++)
        assert_true(fabs(at(trek_module_find(m, "weight"), k)) <= sqrt(0.5) && at(trek_module_find(m, "weight"), k) != 0);
    fill(m, "weight", (double[]){ 1, 2, 3, 4 });
    fill(bare, "weight", (double[]){ 1, 2, 3, 4 });
    fill(m, "bias", (double[]){ 10, 20 });
    trek_var *x = numbers((double[]){ 1, -1 }, trek_dims(1, 2)), *z = numbers((double[]){ 2 }, trek_dims(1, 1));
    expect_near(at(trek_forward_many(m, (trek_var *[]){ x, z }, 2), 0), 8, 1e-6);
    expect_near(at(trek_forward_many(bare, (trek_var *[]){ x, z }, 2), 1), -2, 1e-6);
    REFUSED(trek_forward(m, x), TREK_ERR_ARGUMENT, "bilinear: inputs: 1; must be 2");
    assert_int_equal(trek_module_param_count(bare), 4);
    assert_true(trek_shape_equal(trek_var_shape(trek_forward(shape, x)), trek_dims(1, 2, 1)));
    REFUSED(trek_forward(shape, z), TREK_ERR_SHAPE, "unflatten: sizes: [2, -1]; must have 1 elements");
    trek_scope_end(scope);
    REFUSED(trek_nn_bilinear(2, 0, 2, test_device()), TREK_ERR_ARGUMENT, "bilinear: in2: ");
    REFUSED(trek_nn_bilinear_with(NULL), TREK_ERR_ARGUMENT, "options: NULL");
    const trek_shape wrong[] = { trek_dims_none(), trek_dims(-1, -1), trek_dims(-2) };
    for (int k = 0; k < 3; k++) {
        REFUSED(trek_nn_unflatten(1, wrong[k]), TREK_ERR_ARGUMENT, "unflatten: sizes");
    }
    trek_module *all[] = { m, bare, shape };
    for (int k = 0; k < 3; k++)
        trek_module_free(&all[k]);
}

static void test_conv_and_pool(void **state)
{
    trek_module *m = trek_nn_sequential((trek_module *[]){ trek_nn_conv2d(1, 1, 2, test_device()), trek_nn_max_pool2d(2),
                                                           trek_nn_adaptive_avg_pool2d(1, 1), trek_nn_flatten() }, 4);
    assert_non_null(m);
    fill(m, "0.weight", (double[]){ 1, 0, 0, 2 });
    fill(m, "0.bias", (double[]){ 0.5 });
    trek_scope scope = trek_scope_begin();
    trek_var *x = numbers((double[]){ 1, 2, 3, 4, 5, 6, 7, 8, 9 }, trek_dims(1, 1, 3, 3));
    trek_var *y = trek_forward(m, x);
    assert_int_equal(trek_var_ndim(y), 2);
    expect_near(at(y, 0), 5 + 2 * 9 + 0.5, 1e-5);
    trek_scope_end(scope);
    trek_module_free(&m);

    m = trek_nn_conv2d_with(&(trek_conv2d_opts){ .in = 4, .out = 6, .kernel = { 3, 5 }, .groups = 2, .no_bias = true,
                                                 .device = trek_cpu(0) });
    assert_int_equal(trek_module_param_count(m), 6 * 2 * 3 * 5);
    trek_var *weight = trek_module_find(m, "weight");
    for (int k = 0; k < 180; k++)
        assert_true(fabs(at(weight, k)) <= 1 / sqrt(30.0));
    trek_module_free(&m);
    REFUSED(trek_nn_conv2d_with(&(trek_conv2d_opts){ .in = 4, .out = 6, .kernel = { 3 }, .groups = 4, .device = trek_cpu(0) }),
            TREK_ERR_ARGUMENT, "groups: 4; must divide 4 channels in and 6 out");
    REFUSED(trek_nn_max_pool2d(0), TREK_ERR_ARGUMENT, "max_pool2d: kernel: ");
}

/* Each pixel of the input puts the kernel, times itself, into the result. */
/* In one and three dimensions, too, a second input says how large the result is to be. */
static void sizes_of_another(trek_module *m, trek_shape x, trek_shape like, trek_shape usual, trek_shape wanted)
{
    trek_scope scope = trek_scope_begin();
    trek_var *in = trek_var_from(trek_tensor_zeros(x, TREK_F32, test_device()));
    trek_var *as = trek_var_from(trek_tensor_zeros(like, TREK_F32, test_device()));
    assert_true(trek_shape_equal(trek_var_shape(trek_forward(m, in)), usual));
    assert_true(trek_shape_equal(trek_var_shape(trek_forward_many(m, (trek_var *[]){ in, as }, 2)), wanted));
    REFUSED(trek_forward_many(m, (trek_var *[]){ in, trek_narrow(as, 0, 0, 0) }, 2), TREK_ERR_SHAPE, "must not be empty");
    trek_scope_end(scope);
    trek_module_free(&m);
}

static void test_conv_transpose(void **state)
{
    trek_module *m = trek_nn_conv_transpose2d_with(
        &(trek_conv_transpose2d_opts){ .in = 1, .out = 2, .kernel = { 2, 3 }, .stride = { 2 }, .device = test_device() });
    fill(m, "weight", (double[]){ 1, 2, 3, 4, 5, 6, 10, 20, 30, 40, 50, 60 });
    fill(m, "bias", (double[]){ 0.5, -1 });
    trek_scope scope = trek_scope_begin();
    trek_var *x = numbers((double[]){ 1, 2 }, trek_dims(1, 1, 1, 2));
    trek_var *y = trek_forward(m, x);
    assert_true(trek_shape_equal(trek_var_shape(y), trek_dims(1, 2, 2, 5)));
    const double want[] = { 1, 2, 5, 4, 6, 4, 5, 14, 10, 12 };
    for (int k = 0; k < 10; k++) {
        expect_near(at(y, k), want[k] + 0.5, 1e-5);
        expect_near(at(y, 10 + k), 10 * want[k] - 1, 1e-4);
    }
    trek_var *like = numbers((double[]){ 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }, trek_dims(3, 6));
    y = trek_forward_many(m, (trek_var *[]){ x, like }, 2); /* a row and a column more */
    assert_true(trek_shape_equal(trek_var_shape(y), trek_dims(1, 2, 3, 6)));
    expect_near(at(y, 4), 6.5, 1e-5);
    expect_near(at(y, 5), 0.5, 1e-5);
    expect_near(at(y, 18 + 17), -1, 1e-5);
    REFUSED(trek_forward_many(m, (trek_var *[]){ x, trek_reshape(like, trek_dims(2, 9)) }, 2), TREK_ERR_ARGUMENT,
            "output size: [2, 9]; its width must be 5 to 6");
    REFUSED(trek_forward_many(m, (trek_var *[]){ x, trek_narrow(like, 0, 0, 0) }, 2), TREK_ERR_SHAPE,
            "result's shape: [0, 6]; must not be empty");
    REFUSED(trek_forward_many(m, (trek_var *[]){ x, trek_flatten(like, 0, 1) }, 2), TREK_ERR_SHAPE,
            "result's shape: [18]; must have 2 dimensions or more");
    REFUSED(trek_forward_many(m, (trek_var *[]){ x, like, like }, 3), TREK_ERR_ARGUMENT, "inputs: 3");
    trek_scope_end(scope);
    trek_module_free(&m);

    sizes_of_another(trek_nn_conv_transpose1d_with(&(trek_conv_transpose1d_opts){ .in = 2, .out = 3, .kernel = 2, .stride = 3,
                                                                                  .device = test_device() }),
                     trek_dims(1, 2, 4), trek_dims(13), trek_dims(1, 3, 11), trek_dims(1, 3, 13));
    sizes_of_another(trek_nn_conv_transpose3d_with(&(trek_conv_transpose3d_opts){ .in = 2, .out = 3, .kernel = { 2 },
                                                                                  .stride = { 3 }, .device = test_device() }),
                     trek_dims(1, 2, 2, 2, 3), trek_dims(6, 7, 8), trek_dims(1, 3, 5, 5, 8), trek_dims(1, 3, 6, 7, 8));

    trek_conv_transpose2d_opts opts = { .in = 4, .out = 6, .kernel = { 3, 5 }, .stride = { 2, 1 },
                                        .output_padding = { 1, TREK_ZERO },
                                        .groups = 2, .no_bias = true, .device = trek_cpu(0) };
    m = trek_nn_conv_transpose2d_with(&opts);
    assert_true(trek_shape_equal(trek_var_shape(trek_module_find(m, "weight")), trek_dims(4, 3, 3, 5)));
    for (int k = 0; k < 180; k++)
        assert_true(fabs(at(trek_module_find(m, "weight"), k)) <= 1 / sqrt(45.0));
    char text[200];
    m->own->klass->describe(m, text, sizeof text);
    assert_string_equal(text, "4, 6, kernel 3x5, stride 2x1, padding 0x0, output padding 1x0, grouped, no bias");
    trek_module_free(&m);
    opts.output_padding[0] = 2;
    REFUSED(trek_nn_conv_transpose2d_with(&opts), TREK_ERR_ARGUMENT,
            "output padding: 2; must be smaller than stride (2) or dilation (1)");
    opts.output_padding[0] = -1;
    REFUSED(trek_nn_conv_transpose2d_with(&opts), TREK_ERR_ARGUMENT,
            "conv_transpose2d: output padding: -1; must not be negative");
    REFUSED(trek_nn_conv_transpose2d_with(
                &(trek_conv_transpose2d_opts){ .in = 4, .out = 6, .kernel = { 3 }, .groups = 4, .device = trek_cpu(0) }),
            TREK_ERR_ARGUMENT, "conv_transpose2d: groups: 4; must divide 4 channels in and 6 out");
    REFUSED(trek_nn_conv_transpose2d(4, 6, 0, trek_cpu(0)), TREK_ERR_ARGUMENT, "conv_transpose2d: kernel: ");
}

/* Averages of windows, by hand: the short form's stride is its kernel. */
static void test_avg_pool(void **state)
{
    trek_module *plain = trek_nn_avg_pool2d(2),
                *full = trek_nn_avg_pool2d_with(&(trek_pool_opts){ .kernel = { 2, 3 }, .stride = { 1, 2 }, .padding = { 1, 1 } });
    trek_module *inside = trek_nn_avg_pool2d_with(
        &(trek_pool_opts){ .kernel = { 2, 3 }, .stride = { 1, 2 }, .padding = { 1, 1 }, .exclude_padding = true });
    trek_scope scope = trek_scope_begin();
    trek_var *x = numbers((double[]){ 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12 }, trek_dims(1, 1, 3, 4));
    trek_var *y = trek_forward(plain, x);
    assert_true(trek_shape_equal(trek_var_shape(y), trek_dims(1, 1, 1, 2)));
    expect_near(at(y, 0), (1 + 2 + 5 + 6) / 4., 1e-6);
    expect_near(at(y, 1), (3 + 4 + 7 + 8) / 4., 1e-6);
    y = trek_forward(full, x);
    assert_true(trek_shape_equal(trek_var_shape(y), trek_dims(1, 1, 4, 2)));
    expect_near(at(y, 0), (1 + 2) / 6., 1e-6);
    expect_near(at(y, 3), (2 + 3 + 4 + 6 + 7 + 8) / 6., 1e-6);
    y = trek_forward(inside, x);
    expect_near(at(y, 0), (1 + 2) / 2., 1e-6);
    expect_near(at(y, 3), (2 + 3 + 4 + 6 + 7 + 8) / 6., 1e-6);
    trek_scope_end(scope);
    char *summary = trek_module_summary(full);
    assert_non_null(strstr(summary, "kernel 2x3, stride 1x2"));
    trek_string_free(&summary);
    trek_module_free(&plain);
    trek_module_free(&full);
    trek_module_free(&inside);
    REFUSED(trek_nn_avg_pool2d(0), TREK_ERR_ARGUMENT, "avg_pool2d: kernel: ");
    REFUSED(trek_nn_avg_pool2d_with(NULL), TREK_ERR_ARGUMENT, "avg_pool2d: options: NULL");
    REFUSED(trek_nn_avg_pool2d_with(&(trek_pool_opts){ .kernel = { 2 }, .stride = { -1 } }), TREK_ERR_ARGUMENT,
            "avg_pool2d: kernel, stride");
}

/* The dimension: the last by default, TREK_ZERO for the first. */
static void test_softmax_options(void **state)
{
    const trek_softmax_opts *opts[] = { NULL, &(trek_softmax_opts){ 0 }, &(trek_softmax_opts){ .dim = -2 },
                                        &(trek_softmax_opts){ .dim = TREK_ZERO }, &(trek_softmax_opts){ .dim = 1 } };
    static const int dims[] = { 1, 1, 0, 0, 1 };
    static const double values[2][3] = { { 1, -2, 0.5 }, { 3, 0, -1 } };
    for (int k = 0; k < 5; k++) {
        trek_module *logs = trek_nn_log_softmax_with(opts[k]), *shares = trek_nn_softmax_with(opts[k]);
        trek_scope scope = trek_scope_begin();
        trek_var *x = numbers(&values[0][0], trek_dims(2, 3)), *log_y = trek_forward(logs, x), *y = trek_forward(shares, x);
        for (int i = 0; i < 6; i++) {
            double sum = 0;
            for (int j = 0; j < (dims[k] ? 3 : 2); j++)
                sum += exp(dims[k] ? values[i / 3][j] : values[j][i % 3]);
            expect_near(at(log_y, i), values[i / 3][i % 3] - log(sum), 1e-5);
            expect_near(at(y, i), exp(values[i / 3][i % 3]) / sum, 1e-6);
        }
        trek_scope_end(scope);
        trek_module_free(&logs);
        trek_module_free(&shares);
    }
}

static void test_activations(void **state)
{
    trek_module *layers[] = { trek_nn_relu(),       trek_nn_tanh(), trek_nn_sigmoid(), trek_nn_softmax(-1),
                              trek_nn_log_softmax(0),
                              trek_nn_leaky_relu(0.1), trek_nn_gelu(), trek_nn_gelu_with(&(trek_gelu_opts){ .tanh = true }),
                              trek_nn_silu() };
    double e = exp(1), s = exp(-2) + e;
    double inner = tanh(sqrt(2 / M_PI) * (-2 - 0.044715 * 8));
    double wanted[] = { 0, tanh(-2), 1 / (1 + exp(2)), exp(-2) / s, -2 - log(s), -0.2, -erfc(M_SQRT2), -(1 + inner),
                        -2 / (1 + exp(2)) };
    trek_scope scope = trek_scope_begin();
    trek_var *x = numbers((double[]){ -2, 1 }, trek_dims(2));
    for (int k = 0; k < 9; k++) {
        expect_near(at(trek_forward(layers[k], x), 0), wanted[k], 1e-5);
        trek_module_free(&layers[k]);
    }
    trek_scope_end(scope);
}

/* --- initial values -------------------------------------------------------------------------------------- */

static void moments(const trek_var *var, double *mean, double *deviation, double *low, double *high)
{
    int64_t count = trek_var_numel(var);
    double *values = malloc((size_t)count * sizeof *values), sum = 0, squares = 0;
    trek_tensor_to_host(trek_var_data(var), TREK_F64, values, (size_t)count * sizeof *values);
    *low = INFINITY, *high = -INFINITY;
    for (int64_t k = 0; k < count; k++) {
        sum += values[k];
        squares += values[k] * values[k];
        *low = fmin(*low, values[k]);
        *high = fmax(*high, values[k]);
    }
    free(values);
    *mean = sum / (double)count;
    *deviation = sqrt(squares / (double)count - *mean * *mean);
}

static void expect_moments(const trek_var *var, double mean, double deviation, double bound)
{
    double m, d, low, high;
    moments(var, &m, &d, &low, &high);
    expect_near(m, mean, 0.02 * deviation);
    expect_near(d, deviation, 0.02 * deviation);
    assert_true(low >= -bound && high <= bound);
}

static void test_init(void **state)
{
    trek_tensor *tensor = trek_tensor_zeros(trek_dims(200, 50, 2, 1), TREK_F32, test_device()); /* fan_in 100, fan_out 400 */
    trek_var *p = trek_var_new(tensor, true);
    trek_tensor_release(tensor);
    trek_seed(11);
    trek_init_xavier_uniform(p, 1);
    expect_moments(p, 0, sqrt(2.0 / 500), sqrt(6.0 / 500));
    trek_init_xavier_normal(p, 2);
    expect_moments(p, 0, 2 * sqrt(2.0 / 500), INFINITY);
    trek_init_kaiming_uniform(p, NULL);
    expect_moments(p, 0, sqrt(2.0 / 100), sqrt(6.0 / 100));
    trek_init_kaiming_normal(p, &(trek_kaiming_opts){ .mode = TREK_FAN_OUT, .nonlinearity = TREK_NONLINEARITY_TANH });
    expect_moments(p, 0, 5.0 / 3 / 20, INFINITY);
    trek_init_trunc_normal(p, 0, 1, -1, 1);
    expect_moments(p, 0, 0.539560, 1); /* sqrt(1 - 2 phi(1) / (2 Phi(1) - 1)) */
    trek_init_uniform(p, -3, -1);
    expect_moments(p, -2, 2 / sqrt(12.0), 3);
    trek_init_constant(p, 0.1);
    expect_near(at(p, 0), (float)0.1, 0);
    assert_true(trek_var_requires_grad(p));
    trek_var_release(p);
}

static void test_init_details(void **state)
{
    trek_tensor *tensor = trek_tensor_zeros(trek_dims(3, 5), TREK_F64, test_device()),
        *line = trek_tensor_zeros(trek_dims(3), TREK_F32, test_device());
    trek_var *p = trek_var_new(tensor, true), *flat = trek_var_new(line, true);
    trek_tensor_release(tensor);
    trek_tensor_release(line);
    assert_int_equal(trek_init_orthogonal(p, 2), TREK_OK);
    for (int i = 0; i < 3; i++) {
        for (int j = 0; j < 3; j++) {
            double dot = 0;
            for (int k = 0; k < 5; k++)
                dot += at(p, 5 * i + k) * at(p, 5 * j + k);
            expect_near(dot, i == j ? 4 : 0, 1e-12);
        }
    }
    trek_init_trunc_normal(p, 0, 1, 5, 6); /* far out in a tail */
    for (int k = 0; k < 15; k++)
        assert_true(at(p, k) >= 5 && at(p, k) <= 6);
    FAILS(trek_init_kaiming_uniform(flat, NULL), TREK_ERR_SHAPE, "[3]; must have at least 2 dimensions");
    FAILS(trek_init_normal(flat, 0, -1), TREK_ERR_ARGUMENT, "not negative");
    trek_scope scope = trek_scope_begin();
    FAILS(trek_init_zeros(trek_neg(flat)), TREK_ERR_STATE, "only leaves");
    trek_var *y = trek_sum(trek_mul(flat, flat), trek_dims_all(), false);
    trek_init_ones(flat); /* backward needs the old values */
    FAILS(trek_backward(y), TREK_ERR_STATE, "");
    trek_scope_end(scope);
    trek_var_release(p);
    trek_var_release(flat);
    expect_near(trek_init_gain(TREK_NONLINEARITY_LEAKY_RELU, sqrt(5)), sqrt(1.0 / 3), 1e-12);
}

static trek_var *leaf(trek_shape shape, trek_dtype dtype)
{
    trek_tensor *tensor = trek_tensor_full(shape, 7, dtype, test_device());
    trek_var *var = trek_var_new(tensor, true);
    trek_tensor_release(tensor);
    return var;
}

/* Ones where torch.nn.init.dirac_(w, 2) has them. */
static void test_init_dirac(void **state)
{
    static const trek_dtype dtypes[] = { TREK_F32, TREK_F64, TREK_BF16, TREK_F16 };
    for (int d = 0; d < 4; d++) {
        trek_var *line = leaf(trek_dims(6, 2, 4), dtypes[d]), *image = leaf(trek_dims(2, 3, 3, 2), dtypes[d]),
                 *volume = leaf(trek_dims(1, 1, 2, 3, 4), dtypes[d]), *none = leaf(trek_dims(2, 2, 0), dtypes[d]);
        assert_int_equal(trek_init_dirac(line, 2), TREK_OK);
        assert_int_equal(trek_init_dirac(image, 1), TREK_OK);
        assert_int_equal(trek_init_dirac(volume, 1), TREK_OK);
        assert_int_equal(trek_init_dirac(none, 1), TREK_OK);
        for (int k = 0; k < 48; k++) /* [0, 0, 2], [1, 1, 2], [3, 0, 2], [4, 1, 2] */
            expect_near(at(line, k), k == 2 || k == 14 || k == 26 || k == 38, 0);
        for (int k = 0; k < 36; k++) /* [0, 0, 1, 1], [1, 1, 1, 1] */
            expect_near(at(image, k), k == 3 || k == 27, 0);
        for (int k = 0; k < 24; k++) /* [0, 0, 1, 1, 2] */
            expect_near(at(volume, k), k == 18, 0);
        FAILS(trek_init_dirac(line, 4), TREK_ERR_ARGUMENT, "groups: 4; must divide 6");
        FAILS(trek_init_dirac(line, 0), TREK_ERR_ARGUMENT, "");
        expect_near(at(line, 2), 1, 0);
        trek_var_release(line);
        trek_var_release(image);
        trek_var_release(volume);
        trek_var_release(none);
    }
}

static void test_init_eye_and_sparse(void **state)
{
    trek_var *wide = leaf(trek_dims(3, 5), TREK_BF16), *high = leaf(trek_dims(4, 2), TREK_F64),
        *p = leaf(trek_dims(400, 50), TREK_F32);
    assert_int_equal(trek_init_eye(wide), TREK_OK);
    assert_int_equal(trek_init_eye(high), TREK_OK);
    for (int k = 0; k < 15; k++)
        expect_near(at(wide, k), k / 5 == k % 5, 0);
    for (int k = 0; k < 8; k++)
        expect_near(at(high, k), k / 2 == k % 2, 0);
    trek_seed(13);
    assert_int_equal(trek_init_sparse(p, 0.2512, 0.5), TREK_OK); /* 101 of 400 */
    double *values = test_read(trek_var_data(p)), squares = 0;
    int moved = 0;
    for (int c = 0; c < 50; c++) {
        int zeros = 0;
        for (int r = 0; r < 400; r++) {
            zeros += values[r * 50 + c] == 0;
            moved += c > 0 && (values[r * 50 + c] == 0) != (values[r * 50 + c - 1] == 0);
            squares += values[r * 50 + c] * values[r * 50 + c];
        }
        assert_int_equal(zeros, 101);
    }
    assert_true(moved > 49 * 100); /* each column has its own */
    expect_near(sqrt(squares / (299 * 50)), 0.5, 0.01);
    free(values);
    assert_int_equal(trek_init_sparse(p, 1, 1), TREK_OK);
    expect_near(at(p, 77), 0, 0);
    FAILS(trek_init_sparse(p, 1.5, 1), TREK_ERR_ARGUMENT, "sparsity: ");
    FAILS(trek_init_sparse(p, NAN, 1), TREK_ERR_ARGUMENT, "");
    FAILS(trek_init_dirac(p, 1), TREK_ERR_SHAPE, "[400, 50]; must have 3 to 5 dimensions");
    trek_var *flat = leaf(trek_dims(3), TREK_F32);
    FAILS(trek_init_eye(flat), TREK_ERR_SHAPE, "init_eye: param: [3]; must have 2 dimensions");
    trek_var_release(flat);
    trek_var_release(wide);
    trek_var_release(high);
    trek_var_release(p);
}

int main(void)
{
    trek_allocator_set(&(trek_allocator){ test_allocate, test_release, NULL });
    trek_seed(1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_sequential, teardown), cmocka_unit_test_teardown(test_batch_norm, teardown),
        cmocka_unit_test_teardown(test_norm_embedding_dropout, teardown), cmocka_unit_test_teardown(test_conv_and_pool, teardown),
        cmocka_unit_test_teardown(test_bags, teardown), cmocka_unit_test_teardown(test_positions, teardown),
        cmocka_unit_test_teardown(test_bilinear_unflatten, teardown), cmocka_unit_test_teardown(test_conv_transpose, teardown),
        cmocka_unit_test_teardown(test_avg_pool, teardown), cmocka_unit_test_teardown(test_activations, teardown),
        cmocka_unit_test_teardown(test_softmax_options, teardown), cmocka_unit_test_teardown(test_init, teardown),
        cmocka_unit_test_teardown(test_init_details, teardown), cmocka_unit_test_teardown(test_init_dirac, teardown),
        cmocka_unit_test_teardown(test_init_eye_and_sparse, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
