/* SPDX-License-Identifier: Apache-2.0 */
/* Layers whose class says that it is row-wise: several grains at once give results and gradients of inputs with the bits of each
 * grain by itself, whatever the number of samples in a grain. */
#include "autograd/backward.h"
#include "autograd/grad.h"
#include "autograd/leaf.h"
#include "autograd/ops.h"
#include "autograd/var_internal.h"
#include "nn/activations.h"
#include "nn/layers.h"
#include "nn/module_internal.h"
#include "tensor/rank_context.h"
#include "tensor/tensor_internal.h"
#include "tests/support/support.h"
#include "tests/support/unit.h"

static uint64_t state = 1;

static int64_t drawn(int64_t below)
{
    state = state * UINT64_C(6364136223846793005) + 1442695040888963407u;
    return (int64_t)(state >> 33) % below;
}

/* A layer, and the shape of one sample for it. */
typedef struct layer {
    trek_module *module;
    trek_shape sample;
} layer;

/* Sizes at which products have different methods: few and many columns, more depth than one block. */
static int64_t width(void)
{
    static const int64_t widths[] = { 1, 2, 7, 10, 33, 64, 84, 120, 256, 300, 520, 784, 1100 };
    return widths[drawn(13)];
}

static layer draw_linear(void)
{
    int64_t in = width();
    trek_module *m = trek_nn_linear_with(&(trek_linear_opts){ .in = in, .out = width(), .no_bias = drawn(3) == 0,
                                                              .dtype = drawn(6) ? TREK_F32 : TREK_F64 });
    return (layer){ m, drawn(3) ? trek_dims(in) : trek_dims(1 + drawn(5), in) };
}

static layer draw_conv(void)
{
    int64_t in = 1 + drawn(9), out = 1 + drawn(17), kernel = 1 + drawn(5), padding = drawn(2) ? 1 : TREK_ZERO;
    int64_t stride = 1 + drawn(2);
    trek_module *m = trek_nn_conv2d_with(&(trek_conv2d_opts){ .in = in, .out = out, .kernel = { kernel, kernel },
                                                              .padding = { padding, padding }, .stride = { stride, stride } });
    return (layer){ m, trek_dims(in, 6 + drawn(20), 6 + drawn(20)) };
}

static layer draw_other(void)
{
    int64_t n = width();
    switch (drawn(14)) {
    case 0: return (layer){ trek_nn_relu(), trek_dims(n) };
    case 1: return (layer){ trek_nn_gelu(), trek_dims(n) };
    case 2: return (layer){ trek_nn_silu(), trek_dims(3, n) };
    case 3: return (layer){ trek_nn_tanh(), trek_dims(n) };
    case 4: return (layer){ trek_nn_sigmoid(), trek_dims(n) };
    case 5: return (layer){ trek_nn_mish(), trek_dims(n) };
    case 6: return (layer){ trek_nn_hardswish(), trek_dims(n) };
    case 7: return (layer){ trek_nn_dropout(0.3), trek_dims(n) };
    case 8: return (layer){ trek_nn_max_pool2d(2), trek_dims(3, 5 + drawn(8), 4 + drawn(9)) };
    case 9: return (layer){ trek_nn_avg_pool2d(2), trek_dims(3, 5 + drawn(8), 4 + drawn(9)) };
    case 10: return (layer){ trek_nn_flatten(), trek_dims(3, n) };
    case 11: return (layer){ trek_nn_unflatten(1, trek_dims(1, -1)), trek_dims(n) };
    case 12: return (layer){ trek_nn_leaky_relu(0.1), trek_dims(n) };
    default: return (layer){ trek_nn_layer_norm(n, trek_cpu(0)), drawn(2) ? trek_dims(n) : trek_dims(3, n) };
    }
}

static layer draw_attention(void)
{
    int64_t heads = 1 + drawn(4), width = heads * (1 + drawn(drawn(2) ? 40 : 8)), tokens = 1 + drawn(drawn(3) ? 12 : 300);
    trek_module *m;
    if (drawn(2))
        m = trek_nn_multihead_attention_with(&(trek_multihead_attention_opts){
            .embed_dim = width, .heads = heads, .no_bias = drawn(2), .add_bias_kv = drawn(3) == 0, .add_zero_attn = drawn(3) == 0,
            .causal = drawn(2), .dropout = drawn(2) ? 0.3 : 0 });
    else
        m = trek_nn_transformer_encoder_with(&(trek_transformer_opts){
            .d_model = width, .heads = heads, .dim_feedforward = 1 + drawn(90), .layers = 1 + drawn(2),
            .dropout = drawn(2) ? 0.3 : TREK_ZERO, .causal = drawn(2), .norm_first = drawn(2),
            .activation = drawn(2) ? TREK_ACTIVATION_GELU : TREK_ACTIVATION_RELU });
    return (layer){ m, trek_dims(tokens, width) };
}

static trek_tensor *rows_of(trek_tensor *x, int64_t first, int64_t rows)
{
    int64_t sizes[TREK_MAX_DIMS];
    memcpy(sizes, x->sizes, (size_t)x->ndim * sizeof *sizes);
    sizes[0] = rows;
    return trek_tensor_make_view(x, x->data + first * x->strides[0] * (int64_t)trek_dtype_size((trek_dtype)x->dtype), x->ndim,
                                 sizes, x->strides);
}

/* Computes the result for some rows, and the gradient of the input. */
static void run(const layer *l, trek_tensor *x, trek_tensor *seed, int64_t first, int64_t grains, trek_tensor *results[2])
{
    trek_scope scope = trek_scope_begin();
    trek_var *input = trek_var_from(trek_tensor_retain(x)), *grad = NULL;
    trek_var_set_requires_grad(input, true);
    trek_rank_here.rows = x->sizes[0];
    trek_rank_here.first_sample = first;
    trek_rank_here.grains = grains;
    trek_rank_here.rng_draw = 5;
    trek_var *y = trek_module_run(l->module, &input, 1);
    if (!y)
        fail_msg("%s", trek_error());
    if (!seed)
        seed = y->data;
    trek_var *seeds[] = { trek_var_from(trek_tensor_retain(seed)) };
    assert_int_equal(trek_grad(&y, 1, &input, 1, seeds, NULL, &grad), TREK_OK);
    results[0] = trek_tensor_contiguous(y->data);
    results[1] = trek_tensor_contiguous(grad->data);
    trek_rank_here.grains = 0;
    trek_rank_here.rows = -1;
    trek_scope_end(scope);
}

static void compare(const layer *l, int64_t grains, int64_t rows)
{
    int64_t n = l->sample.ndim;
    trek_shape shape = { .ndim = (int)n + 1, .sizes = { grains * rows } };
    memcpy(shape.sizes + 1, l->sample.sizes, (size_t)n * sizeof *shape.sizes);
    bool wide = l->module->own->n_params > 0 && trek_var_dtype(l->module->own->params[0].var) == TREK_F64;
    trek_tensor *x = trek_tensor_randn(shape, wide ? TREK_F64 : TREK_F32, trek_cpu(0)), *all[2], *one[2];
    run(l, x, NULL, 0, grains, all);
    for (int64_t k = 0; k < grains; k++) {
        trek_tensor *part = rows_of(x, k * rows, rows), *seed = rows_of(all[0], k * (all[0]->sizes[0] / grains),
                                                                        all[0]->sizes[0] / grains);
        run(l, part, seed, k * rows, 0, one);
        for (int i = 0; i < 2; i++) {
            trek_tensor *expected = rows_of(all[i], k * (all[i]->sizes[0] / grains), all[i]->sizes[0] / grains);
            if (!test_same_bits(expected, one[i]))
                fail_msg("%s, %lld grains of %lld samples: %s of grain %lld has other bits by itself",
                         l->module->own->klass->name, (long long)grains, (long long)rows,
                         i ? "the input's gradient" : "the result", (long long)k);
            trek_tensor_release(expected);
            trek_tensor_release(one[i]);
        }
        trek_tensor_release(part);
        trek_tensor_release(seed);
    }
    trek_tensor_release(all[0]);
    trek_tensor_release(all[1]);
    trek_tensor_release(x);
}

static void compare_drawn(layer (*draw)(void), int n)
{
    state = test_seed();
    for (int k = 0; k < n; k++) {
        layer l = draw();
        if (!l.module)
            fail_msg("%s", trek_error());
        assert_true(l.module->own->klass->rowwise);
        compare(&l, 2 + drawn(5), 1 + drawn(drawn(2) ? 20 : 5));
        trek_module_free(&l.module);
    }
}

static void linear_layers_treat_rows_alike(void **unused) { compare_drawn(draw_linear, test_short() ? 60 : 400); }
static void convolutions_treat_images_alike(void **unused) { compare_drawn(draw_conv, test_short() ? 20 : 100); }
static void attention_treats_samples_alike(void **unused) { compare_drawn(draw_attention, test_short() ? 20 : 80); }
static void other_layers_treat_rows_alike(void **unused) { compare_drawn(draw_other, test_short() ? 60 : 300); }

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(linear_layers_treat_rows_alike),
        cmocka_unit_test(convolutions_treat_images_alike),
        cmocka_unit_test(attention_treats_samples_alike),
        cmocka_unit_test(other_layers_treat_rows_alike),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
