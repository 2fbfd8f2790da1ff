/* SPDX-License-Identifier: Apache-2.0 */
/* trek_fit: a run over a module that is there. Its bits are trek_trainer_run's; the module stays the caller's whatever happens.
 */
#include <unistd.h>

#include "autograd/backward.h"
#include "autograd/grad.h"
#include "autograd/ops.h"
#include "distributed/run.h"
#include "distributed/run_progress.h"
#include "graph/flow.h"
#include "graph/flow_branches.h"
#include "monitor/progress.h"
#include "nn/layers.h"
#include "nn/module_tree.h"
#include "nn/module_values.h"
#include "nn/state_tensors.h"
#include "tensor/copies.h"
#include "tests/support/refused.h"
#include "tests/support/support.h"

enum { FEATURES = 3, ROWS = 61, MOST = 64 };

static trek_dataset *points(void)
{
    double x[ROWS * FEATURES], y[ROWS];
    for (int i = 0; i < ROWS; i++) {
        y[i] = 0.75;
        for (int k = 0; k < FEATURES; k++) {
            x[i * FEATURES + k] = test_number(3, (uint32_t)(i * FEATURES + k));
            y[i] += (k - 0.5) * x[i * FEATURES + k];
        }
    }
    trek_tensor *tensors[] = { trek_tensor_from_data(x, trek_dims(ROWS, FEATURES), TREK_F64, trek_cpu(0)),
                               trek_tensor_from_data(y, trek_dims(ROWS, 1), TREK_F64, trek_cpu(0)) };
    trek_dataset *dataset = trek_dataset_tensors((const char *const[]){ "x", "y" }, tensors, 2);
    trek_tensor_release(tensors[0]);
    trek_tensor_release(tensors[1]);
    return dataset;
}

static trek_module *model(trek_device device)
{
    trek_seed(7);
    return trek_nn_sequential((trek_module *[]){
        trek_nn_linear_with(&(trek_linear_opts){ .in = FEATURES, .out = 4, .dtype = TREK_F64, .device = device }),
        trek_nn_batch_norm1d_with(&(trek_batch_norm_opts){ .features = 4, .dtype = TREK_F64, .device = device }),
        trek_nn_linear_with(&(trek_linear_opts){ .in = 4, .out = 1, .dtype = TREK_F64, .device = device }) }, 3);
}

static trek_graph *build(trek_device device, void *arg)
{
    return trek_flow_build(trek_flow_label(trek_flow_from(model(device)), "model"));
}

typedef struct story {
    double losses[MOST], evaluations[MOST];
    int epochs, fails_at; /* epoch; 0: never */
} story;

static trek_var *squares(trek_graph *graph, trek_var *output, const trek_batch *batch, void *arg)
{
    const story *s = arg;
    if (s->fails_at && s->epochs == s->fails_at)
        return trek_fail(TREK_ERR_IO, "the disk is gone"), NULL;
    return trek_mse_loss(output, trek_batch_get(batch, "y"));
}

static trek_status note(const trek_epoch_metrics *metrics, void *arg)
{
    story *s = arg;
    s->losses[s->epochs] = metrics->loss;
    s->evaluations[s->epochs++] = metrics->evaluation_loss;
    return TREK_OK;
}

static trek_run_opts options(trek_dataset *data, story *s)
{
    return (trek_run_opts){ .train_step = squares, .dataset = data, .evaluation = data, .input = "x", .arg = s,
                            .on_metrics = note,
                            .optimizer = trek_adam(&(trek_adam_opts){ .lr = 0.05 }), .batch_size = 8, .shuffle = true,
                            .epochs = 4,
                            .seed = 11 };
}

static void well(trek_status status)
{
    if (status != TREK_OK)
        print_error("%s\n", trek_error());
    assert_int_equal(status, TREK_OK);
}

static trek_status same_as_final(const char *name, trek_var *var, void *arg)
{
    char full[256];
    snprintf(full, sizeof full, "model.%s", name);
    assert_true(test_same_bits(trek_var_data(var), trek_state_find(arg, full)));
    return TREK_OK;
}

static void test_as_a_run(void **state)
{
    trek_dataset *data = points();
    story built = { 0 }, fitted = { 0 };
    trek_run_opts o = options(data, &built);
    o.build_model = build;
    o.trainer.ranks = 1;
    o.trainer.devices = test_devices();
    trek_run *run = trek_trainer_run(&o);
    trek_state *final = run ? trek_run_join(run) : NULL;
    assert_non_null(final);
    trek_module *m = model(test_device());
    o = options(data, &fitted);
    well(trek_fit(m, &o));
    assert_int_equal(fitted.epochs, 4);
    for (int k = 0; k < 4; k++)
        assert_true(fitted.losses[k] == built.losses[k] && fitted.evaluations[k] == built.evaluations[k]);
    assert_true(fitted.evaluations[3] < 0.5 * fitted.evaluations[0]);
    well(trek_module_each_param(m, same_as_final, final));
    well(trek_module_each_buffer(m, same_as_final, final));
    trek_state_free(&final);
    trek_module_free(&m);
    assert_null(m);
    trek_dataset_free(&data);
}

static trek_status show(const trek_epoch_metrics *metrics, void *arg)
{
    return trek_progress_metrics(metrics, NULL);
}

/* A run, and a module that is trained in place, have a line for each epoch, by one line of the program's. */
static void test_shown(void **state)
{
    char *text = NULL;
    size_t size = 0;
    FILE *stream = open_memstream(&text, &size);
    trek_dataset *data = points();
    story s = { 0 };
    trek_run_opts o = options(data, &s);
    o.build_model = build;
    o.trainer.ranks = 1;
    o.trainer.devices = test_devices();
    trek_run *run = trek_trainer_run(&o);
    well(trek_progress_follow(run, &(trek_progress_opts){ .stream = stream, .terminal = TREK_OFF }));
    trek_state *final = trek_run_join(run);
    assert_non_null(final);
    trek_state_free(&final);
    fclose(stream);
    int lines = 0;
    for (const char *at = text; (at = strchr(at, '\n')); at++)
        lines++;
    assert_int_equal(lines, 4);
    assert_non_null(strstr(text, "epoch 4/4  loss "));
    assert_non_null(strstr(text, "  evaluation_loss "));
    assert_non_null(strstr(text, " samples/s  "));
    free(text);
    trek_module *m = model(test_device());
    o = options(data, &s);
    s.epochs = 0;
    o.epochs = 1;
    o.on_metrics = show;
    well(trek_fit(m, &o));
    trek_module_free(&m);
    trek_dataset_free(&data);
}

/* The module afterwards: as it was set, and free for anything. */
static void test_afterwards(void **state)
{
    trek_dataset *data = points();
    story s = { 0 };
    trek_run_opts o = options(data, &s);
    o.epochs = 2;
    trek_module *m = model(test_device()), *around = trek_nn_sequential(&m, 1);
    well(trek_fit(around, &o));
    assert_true(trek_module_is_training(around) && trek_module_is_training(m) &&
                trek_module_is_training(trek_module_child(m, 0)));
    well(trek_module_train(around, false));
    well(trek_fit(around, &o)); /* it goes on where it was */
    assert_false(trek_module_is_training(around) || trek_module_is_training(m));
    assert_true(s.losses[2] < s.losses[0]);
    well(trek_module_train(around, true));
    trek_params *params = trek_module_params(around);
    trek_optimizer *own = trek_optimizer_new(trek_sgd(&(trek_sgd_opts){ .lr = 0.1 }), params);
    trek_params_free(&params);
    trek_scope scope = trek_scope_begin();
    trek_var *x = trek_var_from(trek_tensor_ones(trek_dims(4, FEATURES), TREK_F64, test_device()));
    well(trek_backward(trek_mean(trek_square(trek_forward(around, x)), trek_dims_all(), false)));
    well(trek_optimizer_step(own));
    trek_scope_end(scope);
    assert_int_equal(trek_fit(around, &o), TREK_ERR_STATE); /* its parameters are the optimizer's */
    trek_error_clear();
    trek_optimizer_free(&own);
    well(trek_fit(around, &o));
    trek_module_free(&around);
    assert_null(around);
    assert_int_equal(trek_tape_size(), 0);
    trek_dataset_free(&data);
}

static void test_failure(void **state)
{
    trek_dataset *data = points();
    story s = { .fails_at = 2 };
    trek_run_opts o = options(data, &s);
    trek_module *m = model(test_device());
    FAILS(trek_fit(m, &o), TREK_ERR_IO, "the disk is gone");
    assert_int_equal(s.epochs, 2);
    s.fails_at = 0;
    well(trek_fit(m, &o));
    assert_int_equal(s.epochs, 6);
    assert_true(s.losses[2] < s.losses[0]); /* what was learnt before the failure is there */
    trek_module_free(&m);
    trek_dataset_free(&data);
}

static void test_checkpoints(void **state)
{
    char folder[] = "/tmp/trek_fit_XXXXXX";
    assert_non_null(mkdtemp(folder));
    trek_dataset *data = points();
    story whole = { 0 }, part = { 0 };
    trek_run_opts o = options(data, &whole);
    trek_module *a = model(test_device()), *b = model(test_device());
    well(trek_fit(a, &o));
    o = options(data, &part);
    o.checkpoint_folder = o.resume_from = folder;
    o.epochs = 2;
    well(trek_fit(b, &o));
    well(trek_module_reset(b)); /* what is resumed comes from the file */
    o.epochs = 4;
    well(trek_fit(b, &o));
    assert_int_equal(part.epochs, 4);
    for (int k = 0; k < 4; k++)
        assert_true(part.losses[k] == whole.losses[k]);
    char best[64];
    snprintf(best, sizeof best, "%s/best.safetensors", folder);
    FAILS(trek_run_load_best(b, folder), TREK_ERR_IO, ".keep_best");
    FAILS(trek_run_load_best(NULL, folder), TREK_ERR_ARGUMENT, "model");
    o.resume_from = NULL;
    o.keep_best = true;
    well(trek_fit(b, &o));                          /* whose last epoch is the best */
    trek_graph *graph = build(test_device(), NULL); /* the run's own names */
    for (int way = 0; way < 3; way++) {
        trek_module *to = way < 2 ? a : trek_graph_module(graph);
        well(trek_module_reset(to));
        well(way ? trek_state_load(to, best, NULL) : trek_run_load_best(to, folder));
        assert_true(test_same_bits(trek_var_data(trek_module_find(b, "2.weight")),
                                   trek_var_data(trek_module_find(to, way < 2 ? "2.weight" : "model.2.weight"))));
    }
    trek_module *other = trek_nn_sequential((trek_module *[]){ trek_nn_relu() }, 1);
    FAILS(trek_state_load(other, best, NULL), TREK_ERR_ARGUMENT, "9 unexpected: 0.weight, 0.bias, 1.weight");
    trek_module_free(&other);
    trek_graph_free(&graph);
    trek_module_free(&a);
    trek_module_free(&b);
    trek_dataset_free(&data);
    assert_int_equal(test_remove(folder), 0);
}

static void test_refused(void **state)
{
    trek_dataset *data = points();
    story s = { 0 };
    trek_run_opts good = options(data, &s), o = good;
    trek_module *m = model(test_device());
    FAILS(trek_fit(NULL, &o), TREK_ERR_ARGUMENT, "");
    FAILS(trek_fit(m, NULL), TREK_ERR_ARGUMENT, "");
    o.build_model = build;
    trek_fit(m, &o);
    expect_error(TREK_ERR_ARGUMENT, ".build_model is not called");
    o = good;
    o.trainer.ranks = 2;
    trek_fit(m, &o);
    expect_error(TREK_ERR_ARGUMENT, "a module is one rank");
    o = good;
    o.input = "z";
    trek_fit(m, &o);
    expect_error(TREK_ERR_ARGUMENT, "\"z\"");
    o = good;
    o.epochs = 0;
    trek_fit(m, &o);
    expect_error(TREK_ERR_ARGUMENT, ".epochs: 0");
    trek_module_freeze(m);
    trek_tensor *before = trek_tensor_clone(trek_var_data(trek_module_find(m, "0.weight")));
    well(trek_fit(m, &good)); /* nothing to train */
    assert_true(test_same_bits(before, trek_var_data(trek_module_find(m, "0.weight"))));
    trek_tensor_release(before);
    trek_module_thaw(m);
    well(trek_fit(m, &good)); /* none of these has done anything to it */
    trek_module_free(&m);
    assert_null(m);
    trek_dataset_free(&data);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_as_a_run), cmocka_unit_test(test_shown), cmocka_unit_test(test_afterwards),
        cmocka_unit_test(test_failure), cmocka_unit_test(test_checkpoints), cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests_name("fit", tests, NULL, NULL);
}
