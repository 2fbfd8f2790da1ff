/* SPDX-License-Identifier: Apache-2.0 */
/* Adapters of linear layers: the formula in plain loops, gradients, dropout, dtypes, merging, layers by name, what trains and
 * what does not, states in peft's names, where layers are run as one, refused calls and memory that runs out. */
#include <unistd.h>

#include "autograd/autocast.h"
#include "autograd/backward.h"
#include "autograd/gradcheck.h"
#include "autograd/leaf.h"
#include "autograd/ops.h"
#include "graph/flow.h"
#include "nn/layers.h"
#include "nn/lora.h"
#include "nn/module_internal.h"
#include "nn/module_tree.h"
#include "nn/module_values.h"
#include "nn/parametrize.h"
#include "nn/state_modules.h"
#include "nn/state_tensors.h"
#include "optim/optimizer.h"
#include "tensor/copies.h"
#include "tensor/print.h"
#include "tests/nn/values.h"
#include "tests/support/refused.h"
#include "tests/support/support.h"

enum { IN = 5, OUT = 4, R = 3, ROWS = 6 };

static trek_var *run(trek_module *m, trek_var *x)
{
    trek_var *y = trek_forward(m, x);
    if (!y)
        fail_msg("%s", trek_error());
    return y;
}

static double distance(trek_var *a, trek_var *b)
{
    if (!a || !b)
        fail_msg("%s", trek_error());
    return trek_var_item(trek_max(trek_abs(trek_sub(trek_cast(a, TREK_F64), trek_cast(b, TREK_F64))), trek_dims_all(), false));
}

static trek_status draw(const char *name, trek_var *param, void *stream)
{
    trek_tensor *values = test_tensor((*(uint32_t *)stream)++, trek_var_shape(param), 0.7);
    trek_status status = trek_tensor_copy_from(trek_var_data(param), values);
    trek_tensor_release(values);
    return status;
}

/* Numbers for everything, the adapters' too. */
static void fill_all(trek_module *m)
{
    uint32_t stream = 40;
    fine(trek_module_each_param(m, draw, &stream));
}

static trek_module *linear(trek_dtype dtype, bool bias)
{
    return trek_nn_linear_with(&(trek_linear_opts){ .in = IN, .out = OUT, .no_bias = !bias, .dtype = dtype,
                                                    .device = test_device() });
}

static trek_var *input(trek_dtype dtype)
{
    trek_tensor *narrow = test_tensor(7, trek_dims(2, ROWS / 2, IN), 1), *cast = trek_tensor_cast(narrow, dtype);
    trek_tensor_release(narrow);
    return trek_var_from(cast);
}

/* --- the formula -------------------------------------------------------------------------------------- */

static double *values_of(trek_module *m, const char *name)
{
    trek_var *var = trek_module_find(m, name);
    return var ? test_read(trek_var_data(var)) : NULL;
}

/* W x + bias + scale B A x. */
static void expect_formula(trek_module *m, trek_var *x, trek_var *y, double scale, double tolerance)
{
    double *w = values_of(m, "weight"), *bias = values_of(m, "bias"), *a = values_of(m, "lora_A.weight");
    double *b = values_of(m, "lora_B.weight"), *in = test_read(trek_var_data(x)), *out = test_read(trek_var_data(y));
    for (int row = 0; row < ROWS; row++)
        for (int o = 0; o < OUT; o++) {
            double sum = bias ? bias[o] : 0;
            for (int i = 0; i < IN; i++) {
                double product = 0;
                for (int k = 0; k < R; k++)
                    product += b[o * R + k] * a[k * IN + i];
                sum += (w[o * IN + i] + scale * product) * in[row * IN + i];
            }
            expect_near(out[row * OUT + o], sum, tolerance);
        }
    free(w), free(bias), free(a), free(b), free(in), free(out);
}

static void test_formula(void **state)
{
    const trek_lora_opts kinds[] = { { .r = R }, { .r = R, .lora_alpha = 2 }, { .r = R, .lora_alpha = TREK_ZERO },
                                     { .r = R, .lora_alpha = 6, .use_rslora = true }, { .r = R, .lora_alpha = 3 } };
    const double scales[] = { 8.0 / R, 2.0 / R, 0, 6 / sqrt(R), 1 };
    for (int k = 0; k < 5; k++)
        for (int bias = 0; bias < 2; bias++) {
            trek_module *m = linear(TREK_F64, bias);
            trek_scope scope = trek_scope_begin();
            trek_var *x = input(TREK_F64), *before = run(m, x);
            fine(trek_lora(m, &kinds[k]));
            assert_true(distance(run(m, x), before) == 0); /* B is zero */
            fill_all(m);
            expect_formula(m, x, run(m, x), scales[k], 1e-13);
            fine(trek_lora_merge(m));
            expect_formula(m, x, run(m, x), 0, 1e-13); /* the weight has it all */
            fine(trek_lora_unmerge(m));
            expect_formula(m, x, run(m, x), scales[k], 1e-13);
            trek_scope_end(scope);
            trek_module_free(&m);
        }
}

static void test_beginning(void **state)
{
    trek_module *m = linear(TREK_F32, true);
    fine(trek_lora(m, NULL));
    trek_var *a = trek_module_find(m, "lora_A.weight"), *b = trek_module_find(m, "lora_B.weight");
    assert_true(trek_var_size(a, 0) == 8 && trek_var_size(a, 1) == IN && trek_var_size(b, 0) == OUT && trek_var_size(b, 1) == 8);
    for (int pass = 0; pass < 2; pass++) {
        double least = 1, most = -1;
        for (int k = 0; k < 8 * IN; k++) {
            least = fmin(least, at(a, k)), most = fmax(most, at(a, k));
            if (k < 8 * OUT)
                assert_true(at(b, k) == 0);
        }
        assert_true(least >= -1 / sqrt(IN) && least < -0.2 && most < 1 / sqrt(IN) && most > 0.2);
        fill_all(m);
        fine(trek_module_reset(m)); /* and the same once more */
    }
    assert_false(trek_var_requires_grad(trek_module_find(m, "weight")) || trek_var_requires_grad(trek_module_find(m, "bias")));
    assert_true(trek_var_requires_grad(a) && trek_var_requires_grad(b));
    char *summary = trek_module_summary(m);
    assert_non_null(strstr(summary, "linear(5, 4, lora r 8, alpha 8, dropout 0)"));
    trek_string_free(&summary);
    trek_module_free(&m);
}

static trek_var *forward_of(trek_var *const *inputs, int n, void *arg)
{
    return trek_forward(arg, inputs[0]);
}

static void test_gradients(void **state)
{
    trek_module *m = linear(TREK_F64, true);
    fine(trek_lora(m, &(trek_lora_opts){ .r = R, .lora_alpha = 2 }));
    fill_all(m);
    trek_scope scope = trek_scope_begin();
    trek_var *x = input(TREK_F64);
    trek_var_set_requires_grad(x, true);
    trek_var *inputs[] = { x, trek_module_find(m, "lora_A.weight"), trek_module_find(m, "lora_B.weight") };
    fine(trek_gradcheck(forward_of, inputs, 3, m, &(trek_gradcheck_opts){ .second = true, .seed = 2 }));
    fine(trek_backward(trek_sum(trek_square(run(m, x)), trek_dims_all(), false)));
    assert_null(trek_var_grad(trek_module_find(m, "weight")));
    assert_non_null(trek_var_grad(inputs[1]));
    trek_scope_end(scope);
    trek_module_free(&m);
}

/* Of the adapter's input alone, and in training alone. */
static void test_dropout(void **state)
{
    trek_module *m = linear(TREK_F64, true), *plain = linear(TREK_F64, true);
    fine(trek_lora(m, &(trek_lora_opts){ .r = R, .lora_dropout = 0.4 }));
    fill_all(m);
    fine(trek_tensor_copy_from(trek_var_data(trek_module_find(plain, "weight")), trek_var_data(trek_module_find(m, "weight"))));
    fine(trek_tensor_copy_from(trek_var_data(trek_module_find(plain, "bias")), trek_var_data(trek_module_find(m, "bias"))));
    trek_scope scope = trek_scope_begin();
    trek_var *x = input(TREK_F64);
    trek_seed(3);
    trek_var *y = run(m, x);
    trek_seed(3);
    trek_var *dropped = trek_dropout(x, 0.4, true);
    trek_var *inner = trek_linear(trek_linear(dropped, trek_module_find(m, "lora_A.weight"), NULL),
                                  trek_module_find(m, "lora_B.weight"), NULL);
    assert_true(distance(dropped, x) > 0);
    assert_true(distance(y, trek_add(run(plain, x), trek_mul_scalar(inner, 8.0 / R))) < 1e-13);
    fine(trek_module_train(m, false));
    expect_formula(m, x, run(m, x), 8.0 / R, 1e-13);
    trek_scope_end(scope);
    trek_module_free(&m);
    trek_module_free(&plain);
}

/* --- dtypes ------------------------------------------------------------------------------------------------ */

static void test_16_bits(void **state)
{
    const trek_dtype dtypes[] = { TREK_BF16, TREK_F16 };
    for (int d = 0; d < 2; d++)
        for (int same = 0; same < 2; same++) {
            double tolerance = d == 0 ? 0.1 : 0.01;
            trek_module *m = linear(dtypes[d], true);
            fine(trek_lora(m, &(trek_lora_opts){ .r = R, .dtype = same ? dtypes[d] : TREK_F32 }));
            fill_all(m);
            trek_scope scope = trek_scope_begin();
            trek_var *x = input(dtypes[d]), *a = trek_module_find(m, "lora_A.weight");
            assert_int_equal(trek_var_dtype(a), same ? dtypes[d] : TREK_F32);
            trek_var *y = run(m, x);
            assert_int_equal(trek_var_dtype(y), dtypes[d]);
            expect_formula(m, x, y, 8.0 / R, tolerance);
            fine(trek_backward(trek_sum(trek_cast(y, TREK_F32), trek_dims_all(), false)));
            assert_int_equal(trek_var_dtype(trek_var_grad(a)), trek_var_dtype(a));
            trek_var *w = trek_cast(trek_module_find(m, "weight"), TREK_F64), *b = trek_module_find(m, "lora_B.weight");
            trek_var *sum = trek_add(w, trek_mul_scalar(trek_matmul(trek_cast(b, TREK_F64), trek_cast(a, TREK_F64)), 8.0 / R));
            fine(trek_lora_merge(m)); /* rounded once */
            assert_true(distance(trek_module_find(m, "weight"), sum) <= (d == 0 ? 0x1p-8 : 0x1p-11) * 8);
            expect_formula(m, x, run(m, x), 0, tolerance);
            trek_scope_end(scope);
            trek_module_free(&m);
        }
}

static void test_autocast(void **state)
{
    trek_module *m = linear(TREK_F32, true);
    fine(trek_lora(m, &(trek_lora_opts){ .r = R }));
    fill_all(m);
    trek_scope scope = trek_scope_begin();
    trek_var *x = input(TREK_F32), *y = run(m, x);
    trek_autocast_begin(TREK_BF16);
    trek_var *low = run(m, x);
    fine(trek_backward(trek_sum(low, trek_dims_all(), false)));
    trek_autocast_end();
    assert_int_equal(trek_var_dtype(low), TREK_BF16);
    assert_true(distance(low, y) < 0.1 && distance(low, y) > 0);
    assert_int_equal(trek_var_dtype(trek_var_grad(trek_module_find(m, "lora_A.weight"))), TREK_F32);
    trek_scope_end(scope);
    trek_module_free(&m);
}

/* --- models ------------------------------------------------------------------------------------------------- */

static trek_transformer_opts options(void)
{
    return (trek_transformer_opts){ .d_model = 6, .heads = 2, .layers = 2, .dim_feedforward = 9, .dropout = TREK_ZERO,
                                    .activation = TREK_ACTIVATION_GELU, .dtype = TREK_F64, .device = test_device() };
}

typedef struct tally {
    int adapters, trained;
    char names[2048];
} tally;

static trek_status count(const char *name, trek_var *param, void *arg)
{
    tally *t = arg;
    bool adapter = strstr(name, "lora_") != NULL;
    t->adapters += adapter;
    t->trained += trek_var_requires_grad(param);
    assert_true(trek_var_requires_grad(param) == adapter);
    if (adapter)
        snprintf(t->names + strlen(t->names), sizeof t->names - strlen(t->names), "%s ", name);
    return TREK_OK;
}

/* By the last parts of names; what is run as one op is, too: merged it gives the same. */
static void test_apply(void **state)
{
    const char *const targets[][3] = { { NULL }, { "linear1", NULL }, { "self_attn.out_proj", "layers.1.linear2", NULL },
                                       { "inear1", NULL } };
    const int adapters[] = { 12, 4, 6, 0 };
    for (int k = 0; k < 4; k++) {
        trek_transformer_opts o = options();
        trek_module *m = trek_nn_transformer_encoder_with(&o);
        fill_all(m);
        trek_scope scope = trek_scope_begin();
        trek_var *x = trek_cast(trek_var_from(test_tensor(3, trek_dims(2, 4, 6), 1)), TREK_F64), *before = run(m, x);
        trek_lora_opts opts = { .r = 2, .target_modules = k ? targets[k] : NULL };
        if (adapters[k] == 0) {
            refuse(trek_lora_apply(m, &opts), TREK_ERR_ARGUMENT, "ends in inear1");
            trek_scope_end(scope);
            trek_module_free(&m);
            continue;
        }
        fine(trek_lora_apply(m, &opts));
        tally t = { 0 };
        fine(trek_module_each_param(m, count, &t));
        assert_int_equal(t.adapters, adapters[k]);
        assert_true(distance(run(m, x), before) < 1e-14);
        fill_all(m);
        trek_var *y = run(m, x);
        fine(trek_lora_merge(m));
        assert_true(distance(run(m, x), y) < 1e-12);
        fine(trek_lora_unmerge(m));
        assert_true(distance(run(m, x), y) < 1e-12);
        fine(trek_lora_remove(m, true));
        assert_true(distance(run(m, x), y) < 1e-12);
        assert_null(trek_module_find(m, "layers.0.linear1.lora_A.weight"));
        refuse(trek_lora_merge(m), TREK_ERR_ARGUMENT, "no adapters");
        trek_scope_end(scope);
        trek_module_free(&m);
    }
}

/* A linear layer with its activation behind it, in a sequential and a flow; removed without merging. */
static void test_run_as_one(void **state)
{
    for (int way = 0; way < 4; way++) {
        trek_module *first = linear(TREK_F64, true), *next = way % 2 ? trek_nn_gelu() : trek_nn_relu(), *m;
        trek_graph *graph = NULL;
        if (way < 2)
            m = trek_nn_sequential((trek_module *[]){ first, next }, 2);
        else
            m = trek_graph_module(graph = trek_flow_build(trek_flow_through(trek_flow_from(first), next)));
        fill_all(m);
        trek_scope scope = trek_scope_begin();
        trek_var *x = input(TREK_F64), *before = run(m, x);
        fine(trek_lora(first, &(trek_lora_opts){ .r = R }));
        fill_all(m);
        trek_var *y = run(m, x), *wanted = way % 2 ? trek_gelu(run(first, x)) : trek_relu(run(first, x));
        assert_true(distance(y, wanted) < 1e-14);
        expect_formula(first, x, run(first, x), 8.0 / R, 1e-13);
        fine(trek_lora_merge(m));
        fine(trek_lora_remove(m, false));
        assert_int_equal(first->own->n_children, 0);
        assert_true(distance(run(m, x), before) < 1e-13);
        trek_scope_end(scope);
        if (graph)
            trek_graph_free(&graph);
        else
            trek_module_free(&m);
    }
}

/* A weight that is made of others takes an adapter, and is not merged. */
static void test_over_a_parametrised_weight(void **state)
{
    trek_module *m = linear(TREK_F64, true), *plain = linear(TREK_F64, true);
    fine(trek_weight_norm(m, NULL, 0));
    fine(trek_lora(m, &(trek_lora_opts){ .r = R }));
    assert_false(trek_var_requires_grad(trek_module_find(m, "parametrizations.weight.original0")));
    fill_all(m);
    fine(trek_lora(plain, &(trek_lora_opts){ .r = R }));
    trek_scope scope = trek_scope_begin();
    trek_var *x = input(TREK_F64), *y = run(m, x);
    const char *const names[] = { "bias", "lora_A.weight", "lora_B.weight" };
    for (int k = 0; k < 3; k++)
        fine(trek_tensor_copy_from(trek_var_data(trek_module_find(plain, names[k])),
                                   trek_var_data(trek_module_find(m, names[k]))));
    fine(trek_tensor_copy_from(trek_var_data(trek_module_find(plain, "weight")),
                               trek_var_data(trek_parametrized_weight(m, "weight"))));
    assert_true(distance(run(plain, x), y) == 0);
    refuse(trek_lora_merge(m), TREK_ERR_STATE, "parametrised");
    fine(trek_parametrize_remove(m, "weight", true));
    fine(trek_lora_merge(m));
    assert_true(distance(run(m, x), y) < 1e-13);
    trek_scope_end(scope);
    trek_module_free(&m);
    trek_module_free(&plain);
}

/* --- training ------------------------------------------------------------------------------------------------- */

static void test_trained(void **state)
{
    trek_seed(2);
    trek_module *m = trek_nn_sequential((trek_module *[]){ trek_nn_linear(4, 16, test_device()), trek_nn_gelu(),
                                                           trek_nn_linear(16, 2, test_device()) }, 3);
    fine(trek_lora_apply(m, &(trek_lora_opts){ .r = 2, .lora_alpha = 4 }));
    trek_params *params = trek_module_params(m);
    trek_optimizer *optimizer = trek_optimizer_new(trek_adamw(&(trek_adam_opts){ .lr = 0.02 }), params);
    trek_tensor *base = trek_tensor_clone(trek_var_data(trek_module_find(m, "0.weight")));
    double first = 0, last = 0;
    for (int step = 0; step < 300; step++) {
        trek_scope scope = trek_scope_begin();
        trek_var *x = trek_var_from(test_tensor(11, trek_dims(8, 4), 1)), *y = trek_var_from(test_tensor(12, trek_dims(8, 2), 1));
        trek_var *loss = trek_mean(trek_square(trek_sub(run(m, x), y)), trek_dims_all(), false);
        fine(trek_backward(loss));
        fine(trek_optimizer_step(optimizer));
        fine(trek_optimizer_zero_grad(optimizer));
        last = trek_var_item(loss);
        first = step ? first : last;
        trek_scope_end(scope);
    }
    assert_true(last < 0.2 * first);
    assert_true(test_same_bits(base, trek_var_data(trek_module_find(m, "0.weight"))));
    trek_scope scope = trek_scope_begin();
    trek_var *x = trek_var_from(test_tensor(11, trek_dims(8, 4), 1)), *y = run(m, x);
    fine(trek_lora_merge(m)); /* inside the arena */
    assert_true(distance(run(m, x), y) < 1e-5);
    trek_scope_end(scope);
    trek_tensor_release(base);
    trek_optimizer_free(&optimizer);
    trek_params_free(&params);
    trek_module_free(&m);
}

static void test_after_the_optimizer(void **state)
{
    trek_module *m = trek_nn_linear(4, 2, test_device());
    trek_params *params = trek_module_params(m);
    trek_optimizer *optimizer = trek_optimizer_new(trek_sgd(&(trek_sgd_opts){ .lr = 0.1 }), params);
    refuse(trek_lora(m, NULL), TREK_ERR_STATE, "arena");
    assert_int_equal(m->own->n_children, 0);
    trek_optimizer_free(&optimizer);
    trek_params_free(&params);
    trek_module_free(&m);
}

/* --- states ------------------------------------------------------------------------------------------------------ */

static trek_module *pair(uint32_t stream)
{
    trek_module *m = trek_nn_sequential((trek_module *[]){ trek_nn_linear(4, 3, test_device()),
                                                           trek_nn_linear(3, 2, test_device()) }, 2);
    fine(trek_lora_apply(m, &(trek_lora_opts){ .r = 2 }));
    fine(trek_module_each_param(m, draw, &stream));
    return m;
}

static double apart(trek_module *a, trek_module *b, const char *name)
{
    trek_scope scope = trek_scope_begin();
    double d = distance(trek_module_find(a, name), trek_module_find(b, name));
    trek_scope_end(scope);
    return d;
}

static void test_state(void **state)
{
    char path[] = "/tmp/trek-lora-XXXXXX";
    close(mkstemp(path));
    trek_module *from = pair(1), *to = pair(50);
    fine(trek_lora_save(from, path));
    trek_state *saved = trek_state_read(path);
    assert_int_equal(trek_state_count(saved), 4);
    assert_string_equal(trek_state_name(saved, 0), "base_model.model.0.lora_A.weight");
    assert_string_equal(trek_state_name(saved, 3), "base_model.model.1.lora_B.weight");
    fine(trek_lora_load(to, path));
    assert_true(apart(from, to, "0.lora_A.weight") == 0 && apart(from, to, "1.lora_B.weight") == 0);
    assert_true(apart(from, to, "0.weight") > 0);
    unlink(path);
    trek_state_free(&saved);

    trek_state *bare = trek_state_new(); /* without the beginning, of 16 bits */
    const char *const names[] = { "0.lora_A.weight", "0.lora_B.weight", "1.lora_A.weight", "1.lora_B.weight" };
    trek_module *other = pair(70);
    for (int k = 0; k < 4; k++) {
        if (k == 3)
            refuse(trek_lora_state_apply(bare, to), TREK_ERR_ARGUMENT, "no \"1.lora_B.weight\"");
        trek_tensor *low = trek_tensor_cast(trek_var_data(trek_module_find(other, names[k])), TREK_BF16);
        fine(trek_state_add(bare, names[k], low));
        trek_tensor_release(low);
    }
    assert_true(apart(from, to, "0.lora_A.weight") == 0); /* nothing was written */
    fine(trek_lora_state_apply(bare, to));
    assert_true(apart(other, to, "0.lora_A.weight") < 0.01 && apart(from, to, "0.lora_A.weight") > 0.01);
    fine(trek_lora_merge(to));
    refuse(trek_lora_state_apply(bare, to), TREK_ERR_STATE, "unmerge");
    fine(trek_lora_unmerge(to));
    fine(trek_state_add(bare, "1.weight", trek_var_data(trek_module_find(from, "1.weight"))));
    refuse(trek_lora_state_apply(bare, to), TREK_ERR_ARGUMENT, "no adapter \"1.weight\"");
    refuse(trek_lora_state_apply(NULL, to), TREK_ERR_ARGUMENT, "state");
    refuse(trek_lora_load(to, path), TREK_ERR_IO, "");
    refuse(trek_lora_load(NULL, path), TREK_ERR_ARGUMENT, "module");
    refuse(trek_lora_save(to, NULL), TREK_ERR_ARGUMENT, "path");
    trek_state_free(&bare);
    bare = trek_lora_state_of(to);
    trek_module *wider = trek_nn_linear(4, 3, test_device());
    REFUSED(trek_lora_state_of(wider), TREK_ERR_ARGUMENT, "no adapters");
    fine(trek_lora(wider, NULL));
    refuse(trek_lora_state_apply(bare, wider), TREK_ERR_ARGUMENT, "no adapter");
    trek_state_free(&bare);
    trek_module_free(&from), trek_module_free(&to), trek_module_free(&other), trek_module_free(&wider);
}

/* The base's own state fits a model with adapters: its names are the same. */
static void test_base_state(void **state)
{
    trek_module *plain = trek_nn_sequential((trek_module *[]){ trek_nn_linear(4, 3, test_device()),
                                                               trek_nn_linear(3, 2, test_device()) }, 2), *m = pair(1);
    trek_state *saved = trek_state_of(plain);
    trek_state_report report;
    fine(trek_state_apply_with(saved, m, &(trek_state_load_opts){ .allow_missing = true }, &report));
    assert_true(report.loaded == 4 && report.missing == 4);
    assert_true(apart(plain, m, "0.weight") == 0);
    trek_state_free(&saved);
    trek_module_free(&plain);
    trek_module_free(&m);
}

/* --- refused calls -------------------------------------------------------------------------------------------------- */

static void test_refused(void **state)
{
    trek_module *m = linear(TREK_F32, true), *norm = trek_nn_layer_norm(3, test_device());
    const char *const none[] = { NULL };
    refuse(trek_lora(NULL, NULL), TREK_ERR_ARGUMENT, "layer");
    refuse(trek_lora(norm, NULL), TREK_ERR_ARGUMENT, "layer_norm");
    refuse(trek_lora(m, &(trek_lora_opts){ .r = -1 }), TREK_ERR_ARGUMENT, "-1");
    refuse(trek_lora(m, &(trek_lora_opts){ .lora_alpha = (double)INFINITY }), TREK_ERR_ARGUMENT, "lora_alpha");
    refuse(trek_lora(m, &(trek_lora_opts){ .lora_dropout = 1.5 }), TREK_ERR_ARGUMENT, "1.5");
    refuse(trek_lora(m, &(trek_lora_opts){ .lora_dropout = (double)NAN }), TREK_ERR_ARGUMENT, "lora_dropout");
    refuse(trek_lora(m, &(trek_lora_opts){ .dtype = TREK_I64 }), TREK_ERR_DTYPE, "");
    refuse(trek_lora_apply(NULL, NULL), TREK_ERR_ARGUMENT, "module");
    refuse(trek_lora_apply(norm, NULL), TREK_ERR_ARGUMENT, "no linear layer");
    refuse(trek_lora_apply(m, &(trek_lora_opts){ .target_modules = none }), TREK_ERR_ARGUMENT, "no name");
    refuse(trek_lora_merge(NULL), TREK_ERR_ARGUMENT, "module");
    refuse(trek_lora_unmerge(m), TREK_ERR_ARGUMENT, "no adapters");
    refuse(trek_lora_remove(m, true), TREK_ERR_ARGUMENT, "no adapters");
    assert_int_equal(m->own->n_children, 0);
    assert_true(trek_var_requires_grad(trek_module_find(m, "weight")));
    fine(trek_lora(m, NULL));
    refuse(trek_lora(m, NULL), TREK_ERR_ARGUMENT, "already");
    refuse(trek_lora_apply(m, NULL), TREK_ERR_ARGUMENT, "already");
    assert_int_equal(m->own->n_children, 2);
    trek_module_free(&norm);
    trek_module_free(&m);
}

/* Whichever allocation fails, there are adapters on all layers or on none, and the model runs. */
static void test_without_memory(void **state)
{
    bool done = false;
    for (int64_t fail = 1; !done; fail++) {
        trek_module *m = trek_nn_sequential((trek_module *[]){ trek_nn_linear(4, 3, test_device()),
                                                               trek_nn_linear(3, 2, test_device()) }, 2);
        trek_scope scope = trek_scope_begin();
        trek_var *x = trek_var_from(test_tensor(1, trek_dims(2, 4), 1)), *before = run(m, x);
        test_allocator_restart(fail);
        done = trek_lora_apply(m, NULL) == TREK_OK;
        test_allocator_restart(0);
        if (!done)
            expect_error(TREK_ERR_MEMORY, "");
        for (int k = 0; k < 2; k++)
            assert_int_equal(m->own->children[k].module->own->n_children, done ? 2 : 0);
        assert_true(distance(run(m, x), before) == 0);
        trek_scope_end(scope);
        trek_module_free(&m);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_formula), cmocka_unit_test(test_beginning), cmocka_unit_test(test_gradients),
        cmocka_unit_test(test_dropout), cmocka_unit_test(test_16_bits), cmocka_unit_test(test_autocast),
        cmocka_unit_test(test_apply), cmocka_unit_test(test_run_as_one), cmocka_unit_test(test_over_a_parametrised_weight),
        cmocka_unit_test(test_trained), cmocka_unit_test(test_after_the_optimizer), cmocka_unit_test(test_state),
        cmocka_unit_test(test_base_state), cmocka_unit_test(test_refused), cmocka_unit_test(test_without_memory),
    };
    return test_allocator_use() == TREK_OK ? cmocka_run_group_tests(tests, NULL, NULL) : 1;
}
