/* SPDX-License-Identifier: Apache-2.0 */
/* A field whose default is not 0 takes a real zero as TREK_ZERO, whatever its type. */
#include <unistd.h>

#include "autograd/ops.h"
#include "data/loader.h"
#include "nn/layers.h"
#include "optim/optimizer.h"
#include "optim/schedule.h"
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
    const trek_optimizer_spec specs[] = { trek_sgd((trek_sgd_opts){ .lr = TREK_ZERO }),
                                          trek_adam((trek_adam_opts){ .lr = TREK_ZERO }),
                                          trek_adamw((trek_adam_opts){ .lr = TREK_ZERO, .beta1 = TREK_ZERO, .beta2 = TREK_ZERO,
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
    trek_plateau plateau = trek_plateau_lr((trek_plateau_opts){ .lr = TREK_ZERO, .patience = TREK_ZERO, .threshold = TREK_ZERO });
    assert_true(plateau.valid && plateau.lr == 0 && plateau.opts.patience == 0 && plateau.opts.threshold == 0);
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
        trek_nn_batch_norm1d_with(&(trek_batch_norm_opts){ .features = 2, .eps = TREK_ZERO, .momentum = TREK_ZERO }),
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
    trek_module *rows = trek_nn_embedding_with(&(trek_embedding_opts){ .num = 3, .dim = 2, .padding_idx = TREK_ZERO });
    assert_true(at(trek_module_find(rows, "weight"), 0) == 0 && at(trek_module_find(rows, "weight"), 2) != 0);
    trek_module_free(&rows);
}

static void windows(void **state)
{
    trek_module *conv = trek_nn_conv2d_with(&(trek_conv2d_opts){ .in = 1, .out = 1, .kernel = { 3 },
                                                                 .padding = { 1, TREK_ZERO } });
    trek_module *pool = trek_nn_max_pool2d_with(&(trek_pool_opts){ .kernel = { 3 }, .stride = { 1 },
                                                                   .padding = { 1, TREK_ZERO } });
    trek_var *x = trek_var_from(trek_tensor_ones(trek_dims(1, 1, 5, 5), TREK_F32, trek_cpu(0)));
    trek_var *y = trek_forward(conv, x), *z = trek_forward(pool, x);
    assert_true(trek_var_size(y, 2) == 5 && trek_var_size(y, 3) == 3);
    assert_true(trek_var_size(z, 2) == 5 && trek_var_size(z, 3) == 3);
    trek_module_free(&conv);
    trek_module_free(&pool);
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

/* TREK_OFF turns a feature off; where a number is meant it is a negative number, as any other. */
static void off_is_no_zero(void **state)
{
    trek_var *x = trek_var_from(trek_tensor_ones(trek_dims(1, 1, 5, 5), TREK_F32, trek_cpu(0)));
    trek_var *w = trek_var_from(trek_tensor_ones(trek_dims(1, 1, 3, 3), TREK_F32, trek_cpu(0)));
    assert_null(trek_conv2d(x, w, NULL, &(trek_conv_opts){ .padding = { 1, TREK_OFF } }));
    expect_refused("padding");
    assert_null(trek_max_pool2d(x, &(trek_pool_opts){ .kernel = { 3 }, .padding = { TREK_OFF } }));
    expect_refused("padding");
    assert_null(trek_nn_conv2d_with(&(trek_conv2d_opts){ .in = 1, .out = 1, .kernel = { 3 }, .padding = { TREK_OFF } }));
    expect_refused("padding");
    assert_null(trek_nn_max_pool2d_with(&(trek_pool_opts){ .kernel = { 3 }, .padding = { 1, TREK_OFF } }));
    expect_refused("padding");
    assert_false(trek_plateau_lr((trek_plateau_opts){ .patience = TREK_OFF }).valid);
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
    trek_log_set(TREK_LOG_WARNING, listen, NULL);
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
    trek_log_set(TREK_LOG_WARNING, NULL, NULL);
}

/* Each in a process of its own, as it is read once. */
static int use_library(void)
{
    trek_log_set(TREK_LOG_ERROR, NULL, NULL);
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
    const struct CMUnitTest tests[] = { TEST(learning_rates), TEST(layers), TEST(windows), TEST(functions), TEST(loaders),
                                        TEST(off_is_no_zero),
                                        TEST(the_environment), TEST(variables) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
