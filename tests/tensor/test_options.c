/* SPDX-License-Identifier: Apache-2.0 */
/* A field whose default is not 0 takes a real zero as TREK_ZERO, whatever its type; a device that is left out. */
#include <float.h>
#include <unistd.h>

#include "autograd/embedding.h"
#include "autograd/fft.h"
#include "autograd/leaf.h"
#include "autograd/losses.h"
#include "autograd/ops.h"
#include "autograd/resample.h"
#include "autograd/spatial.h"
#include "autograd/take.h"
#include "data/loader.h"
#include "distributed/comm/comm.h"
#include "distributed/ranks.h"
#include "nn/activations.h"
#include "nn/layers.h"
#include "nn/module_tree.h"
#include "nn/module_values.h"
#include "nn/norms.h"
#include "nn/spatial.h"
#include "optim/optimizer_internal.h"
#include "optim/optimizers.h"
#include "optim/schedule.h"
#include "optim/schedules.h"
#include "tensor/environment.h"
#include "tests/support/refused.h"
#include "tests/support/support.h"

static trek_var *given(const float *values, trek_shape shape)
{
    return trek_var_from(trek_tensor_from_data(values, shape, TREK_F32, trek_cpu(0)));
}

static double at(trek_var *var, int64_t k)
{
    return trek_var_item(trek_select(trek_reshape(var, trek_dims(trek_var_numel(var))), 0, k));
}

static void expect_refused(const char *text)
{
    expect_error(TREK_ERR_ARGUMENT, text);
}

static void learning_rates(void **state)
{
    const trek_optimizer_spec specs[] = { trek_sgd(&(trek_sgd_opts){ .lr = TREK_ZERO }),
                                          trek_adam(&(trek_adam_opts){ .lr = TREK_ZERO }),
                                          trek_adamw(&(trek_adam_opts){ .lr = TREK_ZERO, .beta1 = TREK_ZERO, .beta2 = TREK_ZERO,
                                                                       .eps = TREK_ZERO, .weight_decay = TREK_ZERO }) };
    for (int k = 0; k < 3; k++) {
        trek_module *linear = trek_nn_linear(2, 2, trek_cpu(0));
        trek_params *params = trek_module_params(linear);
        trek_optimizer *optimizer = trek_optimizer_new(specs[k], params);
        assert_non_null(optimizer);
        assert_true(trek_optimizer_lr(optimizer) == 0);
        trek_optimizer_free(&optimizer);
        trek_params_free(&params);
        trek_module_free(&linear);
    }
    trek_plateau plateau = trek_plateau_lr(&(trek_plateau_opts){ .lr = TREK_ZERO, .patience = TREK_ZERO,
                                                                 .threshold = TREK_ZERO });
    assert_true(plateau.valid && plateau.lr == 0 && plateau.opts.patience == 0 && plateau.opts.threshold == 0);
}

/* Every option of every class: 0 is its default, TREK_ZERO is 0, or what is wrong is told of by its name. */
static void options_of_optimizers(void **state)
{
    const trek_optimizer_spec specs[] = {
        trek_sgd(&(trek_sgd_opts){ 0 }), trek_adam(&(trek_adam_opts){ 0 }), trek_adamw(&(trek_adam_opts){ 0 }),
        trek_adagrad(&(trek_adagrad_opts){ 0 }), trek_adadelta(&(trek_adadelta_opts){ 0 }), trek_adamax(&(trek_adamax_opts){ 0 }),
        trek_nadam(&(trek_nadam_opts){ 0 }), trek_asgd(&(trek_asgd_opts){ 0 }), trek_radam(&(trek_radam_opts){ 0 }),
        trek_lion(&(trek_lion_opts){ 0 }), trek_rmsprop(&(trek_rmsprop_opts){ 0 }), trek_rprop(&(trek_rprop_opts){ 0 }),
        trek_lamb(&(trek_lamb_opts){ 0 }), trek_lars(&(trek_lars_opts){ 0 }), trek_adafactor(&(trek_adafactor_opts){ 0 }),
        trek_muon(&(trek_muon_opts){ 0 }),
    };
    for (size_t k = 0; k < sizeof specs / sizeof *specs; k++)
        for (int n = 0; n < TREK_UPDATE_OPTIONS && specs[k].klass->options[n].name; n++) {
            trek_optimizer_spec spec = specs[k], zero = specs[k];
            zero.options[n] = TREK_ZERO;
            assert_int_equal(trek_optimizer_resolve(&spec), TREK_OK);
            if (trek_optimizer_resolve(&zero) != TREK_OK)
                expect_refused(specs[k].klass->name);
            else if (zero.options[n] != 0)
                fail_msg("%s: %s is %g", specs[k].klass->name, specs[k].klass->options[n].name, zero.options[n]);
        }
}

/* A sum of what a module makes of some numbers; it is freed. */
static double run_once(trek_module *module, trek_shape shape)
{
    const float values[] = { -2.5f, -0.75f, 0.25f, 0.5f, 0.875f, 1.5f, 3, -1 };
    assert_non_null(module);
    trek_module_train(module, false);
    trek_var *y = trek_forward(module, given(values, shape));
    double sum = trek_var_item(trek_sum(trek_mul(y, y), trek_dims_none(), false)) + trek_var_item(trek_sum(y, trek_dims_none(),
                                                                                                           false));
    trek_module_free(&module);
    return sum;
}

static double loss_of(trek_var *loss) { return trek_var_item(loss); }

/* A field of an option struct, its default, and a number that follows from its value v. */
#define FIELDS(X) \
    X(leaky_relu, negative_slope, 0.01, run_once(trek_nn_leaky_relu_with(&(trek_leaky_relu_opts){ v }), trek_dims(2, 4))) \
    X(elu, alpha, 1, run_once(trek_nn_elu_with(&(trek_elu_opts){ v }), trek_dims(2, 4))) \
    X(softplus, threshold, 20, run_once(trek_nn_softplus_with(&(trek_softplus_opts){ .threshold = v }), trek_dims(2, 4))) \
    X(hardtanh, low, -1, run_once(trek_nn_hardtanh_with(&(trek_hardtanh_opts){ .low = v }), trek_dims(2, 4))) \
    X(hardtanh, high, 1, run_once(trek_nn_hardtanh_with(&(trek_hardtanh_opts){ .high = v }), trek_dims(2, 4))) \
    X(hardshrink, lambda, 0.5, run_once(trek_nn_hardshrink_with(&(trek_shrink_opts){ v }), trek_dims(2, 4))) \
    X(softshrink, lambda, 0.5, run_once(trek_nn_softshrink_with(&(trek_shrink_opts){ v }), trek_dims(2, 4))) \
    X(rrelu, lower, 1.0 / 8, run_once(trek_nn_rrelu_with(&(trek_rrelu_opts){ .lower = v }), trek_dims(2, 4))) \
    X(layer_norm, eps, 1e-5, run_once(trek_nn_layer_norm_with(&(trek_layer_norm_opts){ .shape = trek_dims(4), .eps = v }), \
                                      trek_dims(2, 4))) \
    X(rms_norm, eps, FLT_EPSILON, run_once(trek_nn_rms_norm_with(&(trek_rms_norm_opts){ .shape = trek_dims(4), .eps = v }), \
                                           trek_dims(2, 4))) \
    X(group_norm, eps, 1e-5, run_once(trek_nn_group_norm_with(&(trek_group_norm_opts){ .groups = 2, .channels = 4, .eps = v }), \
                                      trek_dims(1, 4, 2))) \
    X(local_response_norm, beta, 0.75, run_once(trek_nn_local_response_norm_with( \
        &(trek_local_response_norm_opts){ .size = 2, .alpha = 1, .beta = v }), trek_dims(1, 4, 2))) \
    X(local_response_norm, alpha, 1e-4, run_once(trek_nn_local_response_norm_with( \
        &(trek_local_response_norm_opts){ .size = 2, .alpha = v }), trek_dims(1, 4, 2))) \
    X(focal, gamma, 2, loss_of(trek_focal_loss(x, target, &(trek_focal_opts){ .gamma = v }))) \
    X(focal, alpha, 0.25, loss_of(trek_focal_loss(x, target, &(trek_focal_opts){ .alpha = v }))) \
    X(margin, margin, 1, loss_of(trek_hinge_embedding_loss(x, signs, &(trek_margin_opts){ .margin = v }))) \
    X(gaussian, eps, 1e-6, loss_of(trek_gaussian_nll_loss(x, target, few, &(trek_gaussian_nll_opts){ .eps = v }))) \
    X(attention, scale, 0.70710678118654752440, run_attention(v))

static double run_attention(double v)
{
    const float q[] = { 1, 5, -7, 2 };
    trek_var *x = given(q, trek_dims(1, 1, 2, 2));
    return at(trek_attention(x, x, x, &(trek_attention_opts){ .scale = v }), 0);
}

typedef double (*field_fn)(double v, trek_var *x, trek_var *target, trek_var *signs, trek_var *few);
#define FIELD_FUNCTION(struct_, field, otherwise, call)                                                                \
    static double struct_##_##field(double v, trek_var *x, trek_var *target, trek_var *signs, trek_var *few)          \
    {                                                                                                                  \
        (void)x, (void)target, (void)signs, (void)few;                                                                 \
        return call;                                                                                                   \
    }
FIELDS(FIELD_FUNCTION)

/* 0 is the default, TREK_ZERO is what 0 would be: next to the smallest number, and nothing else. */
static void numbers(void **state)
{
#define FIELD_ROW(struct_, field, otherwise, call) { #struct_ "." #field, struct_##_##field, otherwise },
    static const struct {
        const char *name;
        field_fn run;
        double otherwise;
    } list[] = { FIELDS(FIELD_ROW) };
    const float values[] = { 0.5f, -1, 2, 0.25f }, targets[] = { 1, 0, 1, 0 }, ones[] = { 1, -1, -1, 1 };
    const float variances[] = { 1e-3f, 1, 2, 0.5f };
    trek_var *x = given(values, trek_dims(4)), *target = given(targets, trek_dims(4)), *signs = given(ones, trek_dims(4));
    trek_var *few = given(variances, trek_dims(4));
    for (size_t k = 0; k < sizeof list / sizeof *list; k++) {
        double left_out = list[k].run(0, x, target, signs, few), usual = list[k].run(list[k].otherwise, x, target, signs, few);
        double zero = list[k].run(TREK_ZERO, x, target, signs, few), least = list[k].run(1e-30, x, target, signs, few);
        if (trek_error_status() != TREK_OK || left_out != usual || !(fabs(zero - least) <= 1e-6 * fabs(least)))
            fail_msg("%s: %.9g left out, %.9g by default, %.9g for zero, %.9g next to it: %s", list[k].name, left_out, usual,
                     zero,
                     least, trek_error());
    }
    assert_true(trek_number(0) == TREK_ZERO && trek_number(-0.0) == TREK_ZERO && trek_number(0.25) == 0.25);
}

/* TREK_ZERO in fields whose default is 0. */
static void defaults_of_zero(void **state)
{
    const float values[] = { 0.5f, -1, 2, 0.25f };
    const int64_t classes[] = { 1, 0 };
    trek_var *x = given(values, trek_dims(2, 2)), *eye = given((const float[]){ 1, 0, 0, 1 }, trek_dims(2, 2));
    trek_var *labels = trek_var_from(trek_tensor_from_data(classes, trek_dims(2), TREK_I64, trek_cpu(0)));
    trek_cross_entropy_opts loss = { .label_smoothing = TREK_ZERO };
    double plain = trek_var_item(trek_cross_entropy(x, labels));
    assert_true(trek_var_item(trek_cross_entropy_with(x, labels, &loss)) == plain);
    assert_float_equal(trek_var_item(trek_linear_cross_entropy(x, eye, NULL, labels, &loss)), plain, 1e-6);
    assert_true(trek_var_item(trek_nll_loss_with(x, labels, &loss)) == trek_var_item(trek_nll_loss(x, labels)));
    trek_var *q = trek_reshape(x, trek_dims(1, 1, 2, 2));
    trek_var *seen = trek_attention(q, q, q, &(trek_attention_opts){ .dropout = TREK_ZERO }),
        *all = trek_attention(q, q, q, NULL);
    for (int k = 0; k < 4; k++)
        assert_true(at(seen, k) == at(all, k));
    trek_module *made[] = {
        trek_nn_multihead_attention_with(&(trek_multihead_attention_opts){ .embed_dim = 2, .heads = 1, .dropout = TREK_ZERO }),
        trek_nn_lstm_with(&(trek_lstm_opts){ .in = 2, .hidden = 2, .layers = 2, .dropout = TREK_ZERO }),
    };
    for (size_t k = 0; k < sizeof made / sizeof *made; k++) {
        assert_non_null(made[k]);
        trek_module_free(&made[k]);
    }
    assert_int_equal(trek_error_status(), TREK_OK);
}

static void layers(void **state)
{
    const float values[] = { -1, 2, -3, 4 };
    trek_var *x = given(values, trek_dims(2, 2));
    trek_module *made[] = {
        trek_nn_dropout_with(&(trek_dropout_opts){ .p = TREK_ZERO }),
        trek_nn_leaky_relu_with(&(trek_leaky_relu_opts){ .negative_slope = TREK_ZERO }),
        trek_nn_softmax_with(&(trek_softmax_opts){ .dim = TREK_ZERO }),
        trek_nn_flatten_with(&(trek_flatten_opts){ .start_dim = TREK_ZERO }),
        trek_nn_batch_norm1d_with(&(trek_batch_norm_opts){ .features = 2, .eps = TREK_ZERO, .momentum = TREK_ZERO,
                                                           .device = trek_cpu(0) }),
    };
    assert_true(at(trek_forward(made[0], x), 2) == -3);
    assert_true(at(trek_forward(made[1], x), 2) == 0);
    trek_var *columns = trek_forward(made[2], x);
    assert_float_equal(at(columns, 0) + at(columns, 2), 1, 1e-6);
    assert_int_equal(trek_var_ndim(trek_forward(made[3], x)), 1);
    assert_float_equal(at(trek_forward(made[4], x), 0), 1, 1e-6);
    assert_true(at(trek_module_find(made[4], "running_mean"), 0) == 0);
    for (size_t k = 0; k < sizeof made / sizeof *made; k++)
        trek_module_free(&made[k]);
    trek_module *rows = trek_nn_embedding_with(&(trek_embedding_opts){ .num = 3, .dim = 2, .padding_idx = TREK_ZERO,
                                                                       .device = trek_cpu(0) });
    assert_true(at(trek_module_find(rows, "weight"), 0) == 0 && at(trek_module_find(rows, "weight"), 2) != 0);
    trek_module_free(&rows);
}

static void windows(void **state)
{
    trek_module *conv = trek_nn_conv2d_with(&(trek_conv2d_opts){ .in = 1, .out = 1, .kernel = { 3 },
                                                                 .padding = { 1, TREK_ZERO }, .device = trek_cpu(0) });
    trek_module *pool = trek_nn_max_pool2d_with(&(trek_pool_opts){ .kernel = { 3 }, .stride = { 1 },
                                                                   .padding = { 1, TREK_ZERO } });
    trek_var *x = trek_var_from(trek_tensor_ones(trek_dims(1, 1, 5, 5), TREK_F32, trek_cpu(0)));
    trek_var *y = trek_forward(conv, x), *z = trek_forward(pool, x);
    assert_true(trek_var_size(y, 2) == 5 && trek_var_size(y, 3) == 3);
    assert_true(trek_var_size(z, 2) == 5 && trek_var_size(z, 3) == 3);
    trek_module_free(&conv);
    trek_module_free(&pool);
}

/* { 1 } and { 1, 0 } are the same in C: nobody knows which is meant. */
static void half_a_padding(void **state)
{
    static const char left_out[] = "a later dimension's number is left out; give each dimension its own, TREK_ZERO for 0";
    trek_var *x = trek_var_from(trek_tensor_ones(trek_dims(1, 1, 5, 5), TREK_F32, trek_cpu(0)));
    trek_var *w = trek_var_from(trek_tensor_ones(trek_dims(1, 1, 3, 3), TREK_F32, trek_cpu(0)));
    trek_var *deep = trek_reshape(x, trek_dims(1, 1, 1, 5, 5)), *kernel = trek_reshape(w, trek_dims(1, 1, 1, 3, 3));
    trek_var *places = NULL, *y = trek_max_pool2d_with_indices(x, &(trek_pool_opts){ .kernel = { 2 } }, &places);
    const trek_conv_opts half = { .padding = { 1 } }, last = { .padding = { TREK_ZERO, 1, 0 } };
    const trek_conv_transpose_opts transposed = { .padding = { 1 } }, more = { .stride = { 2 }, .output_padding = { 1, 0 } };
    const trek_pool_opts pool = { .kernel = { 3 }, .padding = { 1 } };
#define LEFT_OUT(call) REFUSED(call, TREK_ERR_ARGUMENT, left_out)
    LEFT_OUT(trek_conv2d(x, w, NULL, &half));
    LEFT_OUT(trek_conv_transpose2d(x, w, NULL, &transposed));
    LEFT_OUT(trek_conv_transpose2d(x, w, NULL, &more));
    LEFT_OUT(trek_max_pool2d(x, &pool));
    LEFT_OUT(trek_avg_pool2d(x, &pool));
    LEFT_OUT(trek_max_unpool2d(y, places, &(trek_unpool_opts){ .kernel = { 2 }, .padding = { 1 } }));
    LEFT_OUT(trek_unfold(x, &(trek_unfold_opts){ .kernel = { 3 }, .padding = { 1 } }));
    LEFT_OUT(trek_conv3d(deep, kernel, NULL, &half));
    LEFT_OUT(trek_conv3d(deep, kernel, NULL, &last));
    LEFT_OUT(trek_conv_transpose3d(deep, kernel, NULL, &transposed));
    LEFT_OUT(trek_conv_transpose3d(deep, kernel, NULL, &more));
    LEFT_OUT(trek_max_pool3d(deep, &pool));
    LEFT_OUT(trek_nn_conv2d_with(&(trek_conv2d_opts){ .in = 1, .out = 1, .kernel = { 3 }, .padding = { 1 } }));
    LEFT_OUT(trek_nn_conv_transpose2d_with(&(trek_conv_transpose2d_opts){ .in = 1, .out = 1, .kernel = { 3 },
                                                                          .padding = { 1 } }));
    LEFT_OUT(trek_nn_conv3d_with(&(trek_conv3d_opts){ .in = 1, .out = 1, .kernel = { 3 }, .padding = { 1, 1 } }));
    LEFT_OUT(trek_nn_conv_transpose3d_with(&(trek_conv_transpose3d_opts){ .in = 1, .out = 1, .kernel = { 3 }, .stride = { 2 },
                                                                          .output_padding = { 1 } }));
    LEFT_OUT(trek_nn_max_pool2d_with(&pool));
    LEFT_OUT(trek_nn_avg_pool3d_with(&pool));
    LEFT_OUT(trek_nn_max_unpool2d_with(&(trek_unpool_opts){ .kernel = { 2 }, .padding = { 1 } }));
    y = trek_conv2d(x, w, NULL, &(trek_conv_opts){ .padding = { 0, 1 } });
    assert_true(trek_var_size(y, 2) == 3 && trek_var_size(y, 3) == 5);
    assert_int_equal(trek_var_size(trek_conv1d(trek_select(x, 2, 0), trek_select(w, 2, 0), NULL, &half), 2), 5);
}

static void functions(void **state)
{
    const float logits[] = { 1, 2, 3, 1 };
    const int64_t labels[] = { 0, 1 };
    trek_var *l = trek_var_from(trek_tensor_from_data(labels, trek_dims(2), TREK_I64, trek_cpu(0)));
    trek_var *loss = trek_cross_entropy_with(given(logits, trek_dims(2, 2)), l,
                                             &(trek_cross_entropy_opts){ .ignore_index = TREK_ZERO });
    assert_float_equal(trek_var_item(loss), log1p(exp(2)), 1e-6);
    const float q[] = { 1, 5, -7, 2 }, v[] = { 1, 3, 5, 9 };
    trek_var *query = given(q, trek_dims(1, 1, 2, 2)), *value = given(v, trek_dims(1, 1, 2, 2));
    trek_var_set_requires_grad(value, true);
    trek_var *mean = trek_attention(query, query, value, &(trek_attention_opts){ .scale = TREK_ZERO });
    assert_float_equal(at(mean, 0), 3, 1e-6);
    assert_float_equal(at(mean, 1), 6, 1e-6);
}

static void loaders(void **state)
{
    trek_loader *loader = trek_loader_new(trek_dataset_digits(8, 1),
                                          &(trek_loader_opts){ .batch_size = 4, .prefetch = TREK_ZERO });
    assert_non_null(loader);
    assert_int_equal(trek_loader_start(loader, 0), TREK_OK);
    assert_non_null(trek_loader_next(loader));
    trek_loader_free(&loader);
}

static void expect_device(trek_device device, const char *name)
{
    char text[16];
    assert_string_equal(trek_device_name(device, text, sizeof text), name);
}

static void expect_batches_on(trek_device given, const char *name)
{
    trek_loader *loader = trek_loader_new(trek_dataset_digits(8, 1), &(trek_loader_opts){ .batch_size = 4, .device = given });
    assert_int_equal(trek_loader_start(loader, 0), TREK_OK);
    trek_batch *batch = trek_loader_next(loader);
    assert_non_null(batch);
    expect_device(trek_var_device(trek_batch_get(batch, "image")), name);
    trek_loader_free(&loader);
}

/* A device that is left out is the default everywhere, and one that is said is that one. */
static void devices(void **state)
{
    const trek_device unset = { 0 }, list[] = { unset, trek_cpu(1) };
    setenv("TREK_DEVICES", "cpu:3", 1);
    expect_device(unset, "cpu:3");
    assert_true(trek_device_equal(unset, trek_cpu(3)) && !trek_device_equal(unset, trek_cpu(0)));
    assert_int_equal(trek_device_sync(unset), TREK_OK);
    trek_var *x = trek_var_from(trek_tensor_zeros(trek_dims(2, 3), TREK_F32, unset)), *zero = trek_to(x, trek_cpu(0));
    expect_device(trek_var_device(x), "cpu:3");
    assert_ptr_equal(trek_to(x, unset), x);
    expect_device(trek_var_device(zero), "cpu:0");
    expect_device(trek_var_device(trek_to(zero, unset)), "cpu:3");
    const float ones[] = { 1, 1, 1 };
    trek_tensor *made[] = {
        trek_tensor_empty(trek_dims(3), TREK_F32, unset), trek_tensor_full(trek_dims(3), 2, TREK_F32, unset),
        trek_tensor_ones(trek_dims(3), TREK_F32, unset), trek_tensor_from_data(ones, trek_dims(3), TREK_F32, unset),
        trek_tensor_arange(0, 3, 1, TREK_F32, unset), trek_tensor_linspace(0, 1, 3, TREK_F32, unset),
        trek_tensor_logspace(0, 1, 3, 10, TREK_F32, unset), trek_tensor_eye(3, TREK_F32, unset),
        trek_tensor_rand(trek_dims(3), TREK_F32, unset), trek_tensor_randn(trek_dims(3), TREK_F32, unset),
        trek_tensor_randint(0, 3, trek_dims(3), TREK_I64, unset), trek_tensor_randperm(3, unset),
        trek_comm_zeros(NULL, trek_dims(3), TREK_F32, unset) };
    for (size_t k = 0; k < sizeof made / sizeof *made; k++) {
        assert_non_null(made[k]);
        expect_device(trek_tensor_device(made[k]), "cpu:3");
        trek_tensor_release(made[k]);
    }
    trek_var *counted[] = { trek_hann_window(3, true, TREK_F32, unset), trek_fftfreq(3, 1, TREK_F32, unset),
                            trek_tril_indices(2, 2, 0, unset), trek_alibi(1, 2, 2, TREK_F32, unset) };
    for (size_t k = 0; k < sizeof counted / sizeof *counted; k++) {
        assert_non_null(counted[k]);
        expect_device(trek_var_device(counted[k]), "cpu:3");
    }
    expect_batches_on(unset, "cpu:3");
    expect_batches_on(trek_cpu(0), "cpu:0");
    trek_module *left_out = trek_nn_linear_with(&(trek_linear_opts){ .in = 3, .out = 2 });
    trek_module *said = trek_nn_linear(3, 2, trek_cpu(0));
    expect_device(trek_var_device(trek_forward(left_out, x)), "cpu:3");
    expect_device(trek_var_device(trek_module_find(said, "weight")), "cpu:0");
    assert_int_equal(trek_module_to(said, unset), TREK_OK);
    expect_device(trek_var_device(trek_module_find(said, "weight")), "cpu:3");
    trek_module_free(&left_out);
    trek_module_free(&said);
    trek_ranks *ranks = trek_ranks_new(list, 2);
    assert_non_null(ranks);
    trek_ranks_free(&ranks);
    REFUSED(trek_tensor_zeros(trek_dims(2), TREK_F32, (trek_device){ TREK_DEVICE_UNSET, 2 }), TREK_ERR_DEVICE,
            "tensor_zeros: device: it does not exist (type 0, index 2)");
    assert_int_equal(trek_device_count(TREK_DEVICE_UNSET), 0);
    unsetenv("TREK_DEVICES");
}

/* TREK_OFF turns a feature off; where a number is meant it is a negative number, as any other. */
static void off_is_no_zero(void **state)
{
    trek_var *x = trek_var_from(trek_tensor_ones(trek_dims(1, 1, 5, 5), TREK_F32, trek_cpu(0)));
    trek_var *w = trek_var_from(trek_tensor_ones(trek_dims(1, 1, 3, 3), TREK_F32, trek_cpu(0)));
    assert_null(trek_conv2d(x, w, NULL, &(trek_conv_opts){ .padding = { 1, TREK_OFF } }));
    expect_refused("padding");
    assert_null(trek_max_pool2d(x, &(trek_pool_opts){ .kernel = { 3 }, .padding = { TREK_OFF } }));
    expect_refused("padding");
    assert_null(trek_nn_conv2d_with(&(trek_conv2d_opts){ .in = 1, .out = 1, .kernel = { 3 }, .padding = { TREK_OFF },
                                                         .device = trek_cpu(0) }));
    expect_refused("padding");
    assert_null(trek_nn_max_pool2d_with(&(trek_pool_opts){ .kernel = { 3 }, .padding = { 1, TREK_OFF } }));
    expect_refused("padding");
    assert_false(trek_plateau_lr(&(trek_plateau_opts){ .patience = TREK_OFF }).valid);
    expect_refused("patience");
    assert_null(trek_loader_new(trek_dataset_digits(8, 1), &(trek_loader_opts){ .batch_size = 4, .prefetch = TREK_OFF }));
    expect_refused(".prefetch: -1; must be TREK_ZERO or 0 .. 4096");
}

/* --- the environment ------------------------------------------------------------------ */

static char said[300];

static void listen(trek_log_level level, const char *message, void *arg)
{
    snprintf(said, sizeof said, "%s", message);
}

static long number(const char *text)
{
    said[0] = '\0';
    setenv("TREK_TEST_NUMBER", text, 1);
    return trek_environment_number("TREK_TEST_NUMBER", -5, 255, 7);
}

static void the_environment(void **state)
{
    static const char *const colours[] = { "red", "green", "blue" };
    static const char *const wrong[] = { "abc", "1x", " 1", "256", "-6", "1.5", "99999999999999999999", "0x", "0x100" };
    trek_log_set(TREK_LOG_LEVEL_WARNING, listen, NULL);
    assert_int_equal(number("12"), 12);
    assert_int_equal(number("-5"), -5);
    assert_int_equal(number("0xff"), 255);
    assert_int_equal(number(""), 7);
    assert_string_equal(said, "");
    for (size_t k = 0; k < sizeof wrong / sizeof *wrong; k++) {
        assert_int_equal(number(wrong[k]), 7);
        assert_non_null(strstr(said, "not a whole number from -5 to 255: it is ignored"));
    }
    setenv("TREK_TEST_COLOUR", "green", 1);
    assert_int_equal(trek_environment_choice("TREK_TEST_COLOUR", colours, 3, -1), 1);
    setenv("TREK_TEST_COLOUR", "gren", 1);
    assert_int_equal(trek_environment_choice("TREK_TEST_COLOUR", colours, 3, -1), -1);
    assert_string_equal(said, "TREK_TEST_COLOUR=gren: it is ignored: it takes red, green or blue");
    setenv("TREK_DEVICES", "cpz:0", 1);
    trek_device_default();
    assert_non_null(strstr(said, "TREK_DEVICES=cpz:0: it does not begin with a device"));
    unsetenv("TREK_DEVICES");
    trek_log_set(TREK_LOG_LEVEL_WARNING, NULL, NULL);
}

/* Each in a process of its own, as it is read once. */
static int use_library(void)
{
    trek_log_set(TREK_LOG_LEVEL_ERROR, NULL, NULL);
    trek_tensor_release(trek_tensor_zeros(trek_dims(3), TREK_F32, trek_cpu(0)));
    printf("%s %s\n", trek_status_name(trek_error_status()), trek_error());
    return trek_error_status() != TREK_OK;
}

static void variables(void **state)
{
    static const char *const list[][3] = {
        { "TREK_LOG", "loud", "environment: TREK_LOG=loud; must be error, warning, info or debug" },
        { "TREK_CACHE", "of", "environment: TREK_CACHE=of; must be off or on" },
        { "TREK_CUDA_SYNC", "true", "environment: TREK_CUDA_SYNC=true; must be a whole number from 0 to 1" },
        { "TREK_CUDA_TUNE", "2", "environment: TREK_CUDA_TUNE=2; must be" },
        { "TREK_PIN", "yes", "environment: TREK_PIN=yes; must be a whole number from 0 to 1" },
        { "TREK_THREADS", "many", "environment: TREK_THREADS=many; must be a whole number from 1 to 1024" },
        { "TREK_NVTX", "on", "environment: TREK_NVTX=on; must be" },
        { "TREK_CACHE", "off", "TREK_OK \n" }, { "TREK_NVTX", "0", "TREK_OK \n" }, { "TREK_LOG", "", "TREK_OK \n" },
    };
    for (size_t k = 0; k < sizeof list / sizeof *list; k++) {
        char command[256], text[512] = "";
        snprintf(command, sizeof command, "%s='%s' TREK_TEST_USE=1 /proc/%d/exe 2>&1", list[k][0], list[k][1], (int)getpid());
        FILE *output = popen(command, "r");
        assert_non_null(output);
        size_t got = fread(text, 1, sizeof text - 1, output);
        text[got] = '\0';
        pclose(output);
        if (!strstr(text, list[k][2]))
            fail_msg("%s: %s", command, text);
    }
}

static trek_scope scope;

static int begin(void **state)
{
    scope = trek_scope_begin();
    return 0;
}

static int end(void **state)
{
    if (trek_error_status() != TREK_OK)
        printf("%s\n", trek_error());
    return trek_error_status() != TREK_OK || trek_scope_end(scope) != TREK_OK;
}

int main(void)
{
    if (getenv("TREK_TEST_USE"))
        return use_library();
#define TEST(name) cmocka_unit_test_setup_teardown(name, begin, end)
    const struct CMUnitTest tests[] = { TEST(learning_rates), TEST(options_of_optimizers), TEST(numbers), TEST(defaults_of_zero),
                                        TEST(layers),
                                        TEST(windows), TEST(half_a_padding), TEST(functions),
                                        TEST(loaders),
                                        TEST(devices),
                                        TEST(off_is_no_zero),
                                        TEST(the_environment), TEST(variables) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
