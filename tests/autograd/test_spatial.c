/* SPDX-License-Identifier: Apache-2.0 */
/* Padding, one dimension, pixels and channels, and their layers, against numbers told by hand. */
#include "autograd/backward.h"
#include "autograd/ops.h"
#include "nn/layers.h"
#include "nn/module_tree.h"
#include "tests/autograd/differences.h"
#include "tests/support/scoped.h"
#include "tests/support/support.h"

static void padding(void **state)
{
    trek_var *x = LIST(TREK_F32, 1, 2, 3, 4);
    ASSERT_VALUES(trek_pad(x, trek_dims(2, 1), TREK_PAD_MODE_CONSTANT, 9), 9, 9, 1, 2, 3, 4, 9);
    ASSERT_VALUES(trek_pad(x, trek_dims(2, 3), TREK_PAD_MODE_REFLECT, 9), 3, 2, 1, 2, 3, 4, 3, 2, 1);
    ASSERT_VALUES(trek_pad(x, trek_dims(2, 1), TREK_PAD_MODE_REPLICATE, 9), 1, 1, 1, 2, 3, 4, 4);
    ASSERT_VALUES(trek_pad(x, trek_dims(1, 4), TREK_PAD_MODE_CIRCULAR, 9), 4, 1, 2, 3, 4, 1, 2, 3, 4);
    ASSERT_VALUES(trek_pad(x, trek_dims(-1, 2), TREK_PAD_MODE_CONSTANT, 0), 2, 3, 4, 0, 0);
    ASSERT_VALUES(trek_pad(x, trek_dims(-3, 3), TREK_PAD_MODE_REFLECT, 0), 4, 3, 2, 1);
    trek_var *square = VALUES(trek_dims(1, 2, 2), TREK_I32, 1, 2, 3, 4);
    ASSERT_VALUES(trek_pad(square, trek_dims(1, 0, 0, 1), TREK_PAD_MODE_CONSTANT, 7), 7, 1, 2, 7, 3, 4, 7, 7, 7);
    trek_var *copy = trek_pad(x, trek_dims_none(), TREK_PAD_MODE_CONSTANT, 0);
    assert_ptr_not_equal(copy, x);
    ASSERT_VALUES(copy, 1, 2, 3, 4);
    REFUSED(trek_pad(x, trek_dims(1), TREK_PAD_MODE_CONSTANT, 0), TREK_ERR_ARGUMENT, "must be two for each dimension");
    REFUSED(trek_pad(x, trek_dims(4, 0), TREK_PAD_MODE_REFLECT, 0), TREK_ERR_SHAPE,
            "4 for dimension 0 of size 4; this mode can add 3");
    REFUSED(trek_pad(x, trek_dims(0, 5), TREK_PAD_MODE_CIRCULAR, 0), TREK_ERR_SHAPE, "this mode can add 4");
    REFUSED(trek_pad(x, trek_dims(-3, -2), TREK_PAD_MODE_CONSTANT, 0), TREK_ERR_SHAPE, "are removed from");
    REFUSED(trek_pad(x, trek_dims(1, 1, 1, 1), TREK_PAD_MODE_CONSTANT, 0), TREK_ERR_SHAPE, "sizes: for 2 dimensions");
    REFUSED(trek_pad(x, trek_dims(1, 1), (trek_pad_mode)4, 0), TREK_ERR_ARGUMENT, "mode: 4");
    REFUSED(trek_pad(trek_cast(x, TREK_U8), trek_dims(1, 1), TREK_PAD_MODE_CONSTANT, -1), TREK_ERR_ARGUMENT,
            "value: -1; u8 cannot hold it");
    assert_null(trek_pad(x, trek_dims(INT64_MAX, INT64_MAX), TREK_PAD_MODE_CONSTANT, 0));
    trek_error_clear();
}

/* Each element gets the gradients of all places that show it. */
static void padding_gradient(void **state)
{
    trek_var *x = trek_var_new(trek_var_data(LIST(TREK_F64, 1, 2, 3)), true);
    trek_var *y = trek_pad(x, trek_dims(2, 1), TREK_PAD_MODE_REPLICATE, 0);
    trek_var *loss = trek_sum(trek_mul(y, LIST(TREK_F64, 1, 2, 4, 8, 16, 32)), trek_dims_all(), false);
    assert_int_equal(trek_backward(loss), TREK_OK);
    ASSERT_VALUES(trek_var_grad(x), 7, 8, 48);
    trek_var_release(x);
}

static void pixels(void **state)
{
    trek_var *x = VALUES(trek_dims(4, 1, 2), TREK_F32, 0, 1, 2, 3, 4, 5, 6, 7);
    trek_var *large = trek_pixel_shuffle(x, 2);
    ASSERT_VALUES(large, 0, 2, 1, 3, 4, 6, 5, 7);
    assert_int_equal(trek_var_size(large, 1), 2);
    ASSERT_VALUES(trek_pixel_unshuffle(large, 2), 0, 1, 2, 3, 4, 5, 6, 7);
    ASSERT_VALUES(trek_channel_shuffle(trek_unsqueeze(x, 0), 2), 0, 1, 4, 5, 2, 3, 6, 7);
    REFUSED(trek_pixel_shuffle(x, 3), TREK_ERR_SHAPE, "must be multiples of 9");
    REFUSED(trek_pixel_unshuffle(x, 0), TREK_ERR_ARGUMENT, "factor: 0");
    REFUSED(trek_channel_shuffle(trek_select(x, 0, 0), 2), TREK_ERR_SHAPE, "must have at least 3");
}

static void one_dimension(void **state)
{
    trek_var *x = VALUES(trek_dims(1, 1, 5), TREK_F32, 1, 2, 3, 4, 5), *w = VALUES(trek_dims(1, 1, 2), TREK_F32, 1, 10);
    ASSERT_VALUES(trek_conv1d(x, w, NULL, NULL), 21, 32, 43, 54);
    ASSERT_VALUES(trek_conv1d(x, w, LIST(TREK_F32, 0.5), &(trek_conv_opts){ .stride = { 2 }, .padding = { 1 } }), 10.5, 32.5,
                  54.5);
    ASSERT_VALUES(trek_conv_transpose1d(trek_narrow(x, 2, 0, 2), w, NULL, &(trek_conv_transpose_opts){ .stride = { 3 } }), 1, 10,
                  0,
                  2, 20);
    ASSERT_VALUES(trek_conv_transpose1d(trek_narrow(x, 2, 0, 2), w, NULL,
                                        &(trek_conv_transpose_opts){ .stride = { 3 }, .output_size = { 7 } }),
                  1, 10, 0, 2, 20, 0, 0);
    trek_pool_opts pool = { .kernel = { 2 }, .ceil_mode = true };
    ASSERT_VALUES(trek_max_pool1d(x, &pool), 2, 4, 5);
    ASSERT_VALUES(trek_avg_pool1d(x, &(trek_pool_opts){ .kernel = { 3 }, .stride = { 2 } }), 2, 4);
    ASSERT_VALUES(trek_adaptive_avg_pool1d(x, 2), 2, 4);
    REFUSED(trek_conv1d(trek_select(x, 0, 0), w, NULL, NULL), TREK_ERR_SHAPE, "conv1d: x: ");
    REFUSED(trek_max_pool1d(x, NULL), TREK_ERR_ARGUMENT, "max_pool1d: kernel: ");
}

/* Of an even kernel one more at the end; of all dimensions at once. */
static void same_padding(void **state)
{
    trek_conv_opts same = { .padding_kind = TREK_PADDING_SAME }, valid = { .padding_kind = TREK_PADDING_VALID };
    trek_var *x = VALUES(trek_dims(1, 1, 4), TREK_F32, 1, 2, 3, 4), *even = VALUES(trek_dims(1, 1, 2), TREK_F32, 1, 10);
    trek_var *odd = VALUES(trek_dims(1, 1, 3), TREK_F32, 1, 10, 100), *bias = LIST(TREK_F32, 0.5);
    ASSERT_VALUES(trek_conv1d(x, even, NULL, &same), 21, 32, 43, 4);
    ASSERT_VALUES(trek_conv1d(x, odd, bias, &same), 210.5, 321.5, 432.5, 43.5);
    ASSERT_VALUES(trek_conv1d(x, even, NULL, &valid), 21, 32, 43);
    same.dilation[0] = 3; /* 1 before, 2 behind */
    ASSERT_VALUES(trek_conv1d(x, even, NULL, &same), 30, 41, 2, 3);
    same.dilation[0] = 0;
    trek_var *image = trek_reshape(x, trek_dims(1, 1, 2, 2)), *square = VALUES(trek_dims(1, 1, 2, 1), TREK_F32, 1, 10);
    ASSERT_VALUES(trek_conv2d(image, square, NULL, &same), 31, 42, 3, 4);
    ASSERT_VALUES(trek_conv2d(trek_cast(image, TREK_BF16), trek_cast(square, TREK_BF16), NULL, &same), 31, 42, 3, 4);
    trek_var *volume = trek_reshape(x, trek_dims(1, 1, 2, 1, 2)), *deep = trek_reshape(square, trek_dims(1, 1, 2, 1, 1));
    ASSERT_VALUES(trek_conv3d(volume, deep, NULL, &same), 31, 42, 3, 4);
    ASSERT_VALUES(trek_conv3d(volume, deep, NULL, &valid), 31, 42);
    assert_int_equal(trek_var_size(trek_conv2d(trek_narrow(image, 0, 0, 0), square, NULL, &same), 2), 2);
    same.stride[0] = 2;
    REFUSED(trek_conv2d(image, square, NULL, &same), TREK_ERR_ARGUMENT,
            "conv2d: stride: 2; padding to the same size needs a stride of 1");
    valid.padding[0] = 1;
    REFUSED(trek_conv3d(volume, deep, NULL, &valid), TREK_ERR_ARGUMENT, "conv3d: padding: 1, together with a kind of padding");
    REFUSED(trek_conv1d(x, odd, NULL, &(trek_conv_opts){ .padding_kind = (trek_padding)3 }), TREK_ERR_ARGUMENT,
            "conv1d: padding_kind: 3");
    assert_null(trek_conv1d(x, NULL, NULL, &(trek_conv_opts){ .padding_kind = TREK_PADDING_SAME }));
    trek_error_clear();
}

static trek_var *run_once(trek_module *module, trek_var *x)
{
    trek_var *y = module ? trek_forward(module, x) : NULL;
    trek_module_free(&module);
    return y;
}

static trek_module *filled(trek_module *conv)
{
    trek_no_grad_begin();
    assert_non_null(trek_fill_(trek_module_find(conv, "weight"), 1));
    trek_no_grad_end();
    return conv;
}

/* x [1, 1, 4]: 1, 2, 3, 4 */
static void same_padding_layers(trek_var *x)
{
    trek_conv1d_opts line = { .in = 1, .out = 1, .kernel = 4, .no_bias = true, .device = test_device(),
                              .padding_kind = TREK_PADDING_SAME };
    ASSERT_VALUES(run_once(filled(trek_nn_conv1d_with(&line)), x), 6, 10, 9, 7);
    line.padding_mode = TREK_PAD_MODE_CIRCULAR;
    ASSERT_VALUES(run_once(filled(trek_nn_conv1d_with(&line)), x), 10, 10, 10, 10);
    line.padding_kind = TREK_PADDING_VALID;
    ASSERT_VALUES(run_once(filled(trek_nn_conv1d_with(&line)), x), 10);
    line.padding = 1;
    REFUSED(trek_nn_conv1d_with(&line), TREK_ERR_ARGUMENT, "conv1d: padding: 1, together with a kind of padding");
    trek_conv2d_opts flat = { .in = 1, .out = 1, .kernel = { 1, 2 }, .no_bias = true, .device = test_device(),
                              .padding_mode = TREK_PAD_MODE_REPLICATE, .padding_kind = TREK_PADDING_SAME };
    ASSERT_VALUES(run_once(filled(trek_nn_conv2d_with(&flat)), trek_reshape(x, trek_dims(1, 1, 2, 2))), 3, 4, 7, 8);
    flat.stride[0] = 2;
    REFUSED(trek_nn_conv2d_with(&flat), TREK_ERR_ARGUMENT, "conv2d: stride: 2; padding to the same size needs a stride of 1");
    trek_conv3d_opts deep = { .in = 1, .out = 1, .kernel = { 2, 1, 2 }, .no_bias = true, .device = test_device(),
                              .padding_mode = TREK_PAD_MODE_REFLECT, .padding_kind = TREK_PADDING_SAME };
    ASSERT_VALUES(run_once(filled(trek_nn_conv3d_with(&deep)), trek_reshape(x, trek_dims(1, 1, 2, 1, 2))), 10, 10, 10, 10);
    deep.padding_kind = (trek_padding)5;
    REFUSED(trek_nn_conv3d_with(&deep), TREK_ERR_ARGUMENT, "conv3d: kind of padding: 5");
}

static void layers(void **state)
{
    trek_var *x = VALUES(trek_dims(1, 1, 4), TREK_F32, 1, 2, 3, 4);
    ASSERT_VALUES(run_once(trek_nn_pad(trek_dims(1, 1), TREK_PAD_MODE_REFLECT, 0), x), 2, 1, 2, 3, 4, 3);
    ASSERT_VALUES(run_once(trek_nn_max_pool1d(2), x), 2, 4);
    ASSERT_VALUES(run_once(trek_nn_avg_pool1d(2), x), 1.5, 3.5);
    trek_pool_opts ones = { .kernel = { 2 }, .stride = { 1 } };
    ASSERT_VALUES(run_once(trek_nn_max_pool1d_with(&ones), x), 2, 3, 4);
    ASSERT_VALUES(run_once(trek_nn_avg_pool1d_with(&ones), x), 1.5, 2.5, 3.5);
    ASSERT_VALUES(run_once(trek_nn_adaptive_avg_pool1d(1), x), 2.5);
    trek_var *image = trek_reshape(x, trek_dims(4, 1, 1));
    ASSERT_VALUES(run_once(trek_nn_pixel_shuffle(2), image), 1, 2, 3, 4);
    ASSERT_VALUES(run_once(trek_nn_pixel_unshuffle(2), trek_reshape(x, trek_dims(1, 2, 2))), 1, 2, 3, 4);
    ASSERT_VALUES(run_once(trek_nn_channel_shuffle(2), trek_reshape(x, trek_dims(1, 4, 1))), 1, 3, 2, 4);
    trek_module *conv = trek_nn_conv1d_with(&(trek_conv1d_opts){ .in = 1, .out = 1, .kernel = 3, .padding = 1, .no_bias = true,
                                                                 .device = test_device(),
                                                                 .padding_mode = TREK_PAD_MODE_CIRCULAR });
    ASSERT_VALUES(run_once(filled(conv), x), 7, 6, 9, 8);
    conv = trek_nn_conv_transpose1d(2, 6, 3, test_device());
    assert_int_equal(trek_module_param_count(conv), 2 * 6 * 3 + 6);
    trek_module_free(&conv);
    same_padding_layers(x);
    REFUSED(trek_nn_conv1d(0, 1, 1, test_device()), TREK_ERR_ARGUMENT, "conv1d: in: ");
    REFUSED(trek_nn_conv_transpose1d_with(&(trek_conv_transpose1d_opts){ .in = 1, .out = 1, .kernel = 1, .output_padding = 1,
                                                                         .device = trek_cpu(0) }), TREK_ERR_ARGUMENT,
                                                                         "output padding: 1; must be smaller than stride (1)");
    REFUSED(trek_nn_conv2d_with(&(trek_conv2d_opts){ .in = 1, .out = 1, .kernel = { 1 }, .padding_mode = (trek_pad_mode)7,
                                                     .device = trek_cpu(0) }), TREK_ERR_ARGUMENT, "mode of padding: 7");
    REFUSED(trek_nn_pad(trek_dims(1), TREK_PAD_MODE_CONSTANT, 0), TREK_ERR_ARGUMENT, "must be two for each");
    REFUSED(trek_nn_pixel_shuffle(0), TREK_ERR_ARGUMENT, "factor: ");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(padding), TEST(padding_gradient), TEST(pixels), TEST(one_dimension), TEST(same_padding), TEST(layers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
