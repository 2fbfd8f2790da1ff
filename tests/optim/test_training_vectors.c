/* SPDX-License-Identifier: Apache-2.0 */
/* Ten steps of small models from given weights: the losses are PyTorch's
 * (vectors/make.py), in f32 to 1e-5. */
#include "autograd/backward.h"
#include "autograd/grad.h"
#include "autograd/ops.h"
#include "nn/layers.h"
#include "nn/params.h"
#include "optim/optimizer.h"
#include "tensor/copies.h"
#include "tensor/shapes.h"
#include "tests/support/support.h"
#include "tests/support/unit.h"
#include "tests/support/ways.h"

static void stored_losses(const char *name, double *losses)
{
    char path[4096], line[1024], found[64];
    const char *root = getenv("TREK_TEST_ROOT");
    snprintf(path, sizeof path, "%s/tests/vectors/training.txt", root ? root : ".");
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    while (fgets(line, sizeof line, file)) {
        sscanf(line, "%63s", found);
        assert_non_null(fgets(line, sizeof line, file));
        if (strcmp(found, name))
            continue;
        char *at = line;
        for (int k = 0; k < 10; k++)
            losses[k] = strtod(at, &at);
        fclose(file);
        return;
    }
    fail_msg("%s is not stored", name);
}

/* Parameter k is stream 100 + k, scaled by 1 / sqrt(fan in) of its layer. */
static void fill(const trek_params *params)
{
    double fan = 1;
    for (int k = 0; k < trek_params_count(params); k++) {
        trek_var *p = trek_params_var(params, k);
        trek_shape shape = trek_var_shape(p);
        if (shape.ndim > 1)
            fan = (double)(trek_shape_numel(shape) / shape.sizes[0]);
        trek_tensor *t = test_tensor((uint32_t)(100 + k), shape, 1 / sqrt(fan));
        assert_int_equal(trek_tensor_copy_from(trek_var_data(p), t), TREK_OK);
        trek_tensor_release(t);
    }
}

static trek_var *labels(int64_t n)
{
    double values[64];
    assert_in_range(n, 1, 64);
    for (int64_t i = 0; i < n; i++)
        values[i] = (double)((i * 7 + 1) % 10);
    return trek_var_from(test_values(values, trek_dims(n), TREK_I64));
}

static void train(const char *name, trek_module *model, trek_optimizer_spec spec, trek_shape shape)
{
    double want[10];
    stored_losses(name, want);
    assert_non_null(model);
    trek_params *params = trek_module_params(model);
    fill(params);
    trek_optimizer *optimizer = trek_optimizer_new(spec, params);
    assert_non_null(optimizer);
    for (int step = 0; step < 10; step++) {
        trek_scope scope = trek_scope_begin();
        trek_var *x = trek_var_from(test_tensor((uint32_t)(1000 + step), shape, 1));
        trek_var *loss = trek_cross_entropy(trek_forward(model, x), labels(shape.sizes[0]));
        trek_optimizer_zero_grad(optimizer);
        if (trek_backward(loss) != TREK_OK || trek_optimizer_step(optimizer) != TREK_OK)
            fail_msg("%s, step %d: %s", name, step, trek_error());
        double got = trek_var_item(loss);
        if (!(fabs(got - want[step]) <= 1e-5 * (1 + fabs(want[step]))))
            fail_msg("%s, step %d: the loss is %.9g, PyTorch's %.9g", name, step, got, want[step]);
        assert_int_equal(trek_scope_end(scope), TREK_OK);
        assert_int_equal(trek_tape_size(), 0);
    }
    trek_optimizer_free(&optimizer);
    trek_params_free(&params);
    trek_module_free(&model);
    assert_int_equal(trek_error_status(), TREK_OK);
}

static void lenet(void)
{
    trek_device device = test_device();
    trek_conv2d_opts first = { .in = 1, .out = 6, .kernel = { 5 }, .padding = { 2, 2 }, .device = device };
    trek_module *layers[] = { trek_nn_conv2d_with(&first), trek_nn_relu(), trek_nn_max_pool2d(2),
                              trek_nn_conv2d(6, 16, 5, device),
                              trek_nn_relu(), trek_nn_max_pool2d(2), trek_nn_flatten(), trek_nn_linear(400, 120, device),
                              trek_nn_relu(),
                              trek_nn_linear(120, 84, device), trek_nn_relu(), trek_nn_linear(84, 10, device) };
    train("lenet_sgd", trek_nn_sequential(layers, 12), trek_sgd(&(trek_sgd_opts){ .lr = 0.05, .momentum = 0.9 }),
          trek_dims(16, 1, 28, 28));
}

static void mlp_adam(void)
{
    trek_module *layers[] = { trek_nn_linear(784, 256, test_device()), trek_nn_relu(), trek_nn_linear(256, 10, test_device()) };
    train("mlp_adam", trek_nn_sequential(layers, 3), trek_adam(&(trek_adam_opts){ .lr = 1e-3 }), trek_dims(16, 784));
}

static void mlp_adamw(void)
{
    trek_module *layers[] = { trek_nn_linear(784, 256, test_device()), trek_nn_gelu(), trek_nn_linear(256, 10, test_device()) };
    train("mlp_adamw", trek_nn_sequential(layers, 3), trek_adamw(&(trek_adam_opts){ .lr = 2e-3, .weight_decay = 0.05 }),
          trek_dims(16, 784));
}

typedef struct training {
    const char *name;
    void (*run)(void);
} training;

/* By each instruction set, with one thread and with two in turns. */
static void run_training(void **state)
{
    const training *t = *state;
    for (int way = 0; way < ways(); way++) {
        if (!way_taken(way, TREK_F32, false, 0))
            continue;
        way_use(way);
        printf("%s\n", way_name(way)); /* of which one fails the last */
        t->run();
        way_use(-1);
    }
}

int main(void)
{
    static training all[] = { { "lenet", lenet }, { "mlp_adam", mlp_adam }, { "mlp_adamw", mlp_adamw } };
    struct CMUnitTest tests[3];
    for (int k = 0; k < 3; k++)
        tests[k] = (struct CMUnitTest){ .name = all[k].name, .test_func = run_training, .initial_state = &all[k] };
    return _cmocka_run_group_tests("training against PyTorch", tests, 3, NULL, NULL);
}
