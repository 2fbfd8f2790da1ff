/* SPDX-License-Identifier: Apache-2.0 */
/* Summaries with shapes and multiply-adds: numbers of torchinfo 1.8, what a summary leaves as it was, its text. */
#include <stdio.h>
#include <stdlib.h>

#include "autograd/ops.h"
#include "graph/flow.h"
#include "graph/summary.h"
#include "graph/tree.h"
#include "distributed/trainer.h"
#include "nn/activations.h"
#include "nn/layers.h"
#include "nn/transformer.h"
#include "tensor/rank_context.h"
#include "tests/support/scoped.h"
#include "tests/support/support.h"
#include "tensor/print.h"
#include "graph/flow_branches.h"
#include "nn/module_values.h"
#include "nn/module_tree.h"
#include "tensor/copies.h"
#include "nn/module_internal.h"

#define HERE trek_cpu(0)

static trek_module *chain(int n, trek_module *const *modules)
{
    trek_module *m = trek_nn_sequential(modules, n);
    assert_non_null(m);
    return m;
}

/* --- torchinfo's numbers ------------------------------------------------------------- */

static trek_module *convolutions(void)
{
    return chain(7, (trek_module *[]){
        trek_nn_conv2d_with(&(trek_conv2d_opts){ .in = 3, .out = 16, .kernel = { 3 }, .stride = { 2 }, .padding = { 1, 1 },
                                                 .device = trek_cpu(0) }),
        trek_nn_batch_norm2d(16, HERE), trek_nn_relu(),
        trek_nn_conv2d_with(&(trek_conv2d_opts){ .in = 16, .out = 32, .kernel = { 3 }, .groups = 4, .no_bias = true,
                                                 .device = trek_cpu(0) }),
        trek_nn_conv_transpose2d_with(&(trek_conv_transpose2d_opts){ .in = 32, .out = 8, .kernel = { 2 }, .stride = { 2 },
                                                                     .device = trek_cpu(0) }),
        trek_nn_flatten(), trek_nn_linear(8 * 28 * 28, 10, HERE) });
}

static trek_module *perceptron(void)
{
    return chain(4, (trek_module *[]){ trek_nn_linear(12, 20, HERE), trek_nn_layer_norm(20, HERE), trek_nn_gelu(),
        trek_nn_linear_with(&(trek_linear_opts){ .in = 20, .out = 4, .no_bias = true, .device = trek_cpu(0) }) });
}

static trek_module *lines(void)
{
    return chain(4, (trek_module *[]){ trek_nn_conv1d(4, 6, 3, HERE),
        trek_nn_conv_transpose1d_with(&(trek_conv_transpose1d_opts){ .in = 6, .out = 5, .kernel = 4, .stride = 2,
                                                                     .device = trek_cpu(0) }),
        trek_nn_group_norm(5, 5, HERE), trek_nn_prelu_with(&(trek_prelu_opts){ .parameters = 5, .device = trek_cpu(0) }) });
}

static trek_module *volumes(void)
{
    return chain(2, (trek_module *[]){
        trek_nn_conv3d_with(&(trek_conv3d_opts){ .in = 2, .out = 4, .kernel = { 3 }, .padding = { 1, 1, 1 },
                                                 .device = trek_cpu(0) }),
        trek_nn_conv_transpose3d_with(&(trek_conv_transpose3d_opts){ .in = 4, .out = 3, .kernel = { 2 }, .stride = { 2 },
                                                                     .device = trek_cpu(0) }) });
}

static trek_module *lstm(void)
{
    return trek_nn_lstm_with(&(trek_lstm_opts){ .in = 6, .hidden = 8, .layers = 2, .bidirectional = true, .batch_first = true,
                                                .device = trek_cpu(0) });
}

static trek_module *gru(void) { return trek_nn_gru(6, 8, HERE); }

static trek_module *words(void)
{
    return chain(3, (trek_module *[]){ trek_nn_embedding(50, 12, HERE), trek_nn_layer_norm(12, HERE),
                                       trek_nn_linear(12, 50, HERE) });
}

static trek_module *encoder(void)
{
    return trek_nn_transformer_encoder_layer_with(&(trek_transformer_opts){ .d_model = 16, .heads = 4, .dim_feedforward = 32,
                                                                            .device = trek_cpu(0) });
}

static trek_module *shared(void)
{
    trek_module *linear = trek_nn_linear(6, 6, HERE), *tail = trek_nn_linear(6, 3, HERE);
    return chain(4, (trek_module *[]){ linear, trek_nn_relu(), linear, chain(1, &tail) });
}

static const struct {
    const char *name;
    trek_module *(*make)(void);
    trek_shape shape;
    trek_dtype dtype;
    trek_module_totals totals;
} known[] = {
    { "convolutions", convolutions, { 4, { 2, 3, 32, 32 } }, TREK_F32, { 65394, 65394, 2424660, 24576, 331936, 261576 } },
    { "perceptron", perceptron, { 3, { 5, 7, 12 } }, TREK_F32, { 380, 380, 1900, 1680, 12320, 1520 } },
    { "lines", lines, { 3, { 3, 4, 17 } }, TREK_F32, { 218, 218, 15555, 816, 13680, 872 } },
    { "volumes", volumes, { 5, { 2, 2, 5, 6, 7 } }, TREK_F32, { 319, 319, 425040, 3360, 94080, 1276 } },
    { "lstm", lstm, { 3, { 3, 9, 6 } }, TREK_F32, { 2688, 2688, 72576, 648, 3456, 10752 } },
    { "gru", gru, { 3, { 9, 3, 6 } }, TREK_F32, { 384, 384, 10368, 648, 1728, 1536 } },
    { "words", words, { 2, { 4, 11 } }, TREK_I64, { 1274, 1274, 5096, 352, 26048, 5096 } },
    { "encoder", encoder, { 3, { 3, 10, 16 } }, TREK_F32, 
      /* torchinfo has 3408 multiply-adds, 19200 and 4544 bytes: of attention nothing, whose own 816 parameters count 3 10 times
       * here, and the 272 of the projection out 3 times */
      { 2224, 2224, 3408 + 816 * 30 + 272 * 3, 1920, 19200 + 2 * 2 * 4 * 480, 8896 } },
    { "shared", shared, { 2, { 4, 6 } }, TREK_F32, { 63, 63, 420, 96, 480, 252 } },
};

static void totals_of_layers(void **state)
{
    for (size_t k = 0; k < sizeof known / sizeof *known; k++) {
        trek_module *m = known[k].make();
        assert_non_null(m);
        trek_module_totals got;
        trek_summary_opts opts = { .n_inputs = 1, .shapes = &known[k].shape, .dtypes = &known[k].dtype };
        if (trek_module_measure(m, &opts, &got) != TREK_OK)
            fail_msg("%s: %s", known[k].name, trek_error());
        if (memcmp(&got, &known[k].totals, sizeof got) != 0)
            fail_msg("%s: %lld params, %lld trained, %lld multiply-adds, %lld + %lld + %lld bytes", known[k].name,
                     (long long)got.params, (long long)got.trainable, (long long)got.mult_adds, (long long)got.input_bytes,
                     (long long)got.pass_bytes, (long long)got.param_bytes);
        assert_true(trek_module_is_training(m));
        trek_module_free(&m);
    }
}

/* --- the table ------------------------------------------------------------------------------ */

/* Lines as they are but for spaces. */
static void expect_lines(char *text, const char *const *lines)
{
    assert_non_null(text);
    char squeezed[4096];
    size_t n = 0;
    for (const char *c = text; *c && n + 1 < sizeof squeezed; c++)
        if (!(*c == ' ' && n && squeezed[n - 1] == ' '))
            squeezed[n++] = *c;
    squeezed[n] = 0;
    const char *at = squeezed;
    for (; *lines; lines++) {
        const char *found = strstr(at, *lines);
        if (!found)
            fail_msg("no line \"%s\" (in that order) in\n%s", *lines, text);
        at = found + strlen(*lines);
    }
    trek_string_free(&text);
}

/* Runs its grandchildren itself: the module between has no forward. */
static trek_var *around_forward(trek_module *self, trek_var *x)
{
    const trek_module *list = self->own->children[0].module;
    for (int k = 0; k < list->own->n_children; k++)
        x = trek_forward(list->own->children[k].module, x);
    return x;
}
static const trek_module_class list_class = { .name = "module_list", .size = sizeof(trek_module) };
static const trek_module_class around_class = { .name = "around", .size = sizeof(trek_module), .forward = around_forward };

static trek_module *holder(int n, trek_module *const *modules)
{
    trek_module *list = trek_module_new(&list_class), *around = trek_module_new(&around_class);
    for (int k = 0; k < n; k++) {
        char name[16];
        snprintf(name, sizeof name, "%d", k);
        trek_module_add(list, name, TREK_NO_FIELD, modules[k]);
    }
    trek_module_add(around, "layers", TREK_NO_FIELD, list);
    return trek_module_check(around);
}

static void tables(void **state)
{
    trek_module *inner[2] = { trek_nn_linear(6, 6, HERE), trek_nn_linear(6, 6, HERE) };
    trek_module *mlp[3] = { trek_nn_linear(4, 6, HERE), trek_nn_relu(), NULL };
    mlp[2] = holder(2, inner);
    trek_module *m = chain(3, mlp);
    assert_int_equal(trek_module_freeze(inner[1]), TREK_OK);
    trek_shape shape = trek_dims(8, 4);
    trek_summary_opts opts = { .n_inputs = 1, .shapes = &shape };
    expect_lines(trek_module_summary_with(m, &opts), (const char *const[]){
        "Layer: depth-idx Output Shape Param # Mult-Adds Trainable\n", "sequential [8, 6] -- -- Partial\n",
        "├─linear: 1-1 [8, 6] 30 240 True\n", "├─relu: 1-2 [8, 6] -- -- --\n", /* apart, though they run as one */
        "├─around: 1-3 [8, 6] -- -- Partial\n", "│ └─module_list: 2-1 -- -- -- Partial\n",
        "│ │ └─linear: 3-1 [8, 6] 42 336 True\n", "│ │ └─linear: 3-2 [8, 6] (42) 336 False\n", "Total params: 114\n",
        "Trainable params: 72\n", "Non-trainable params: 42\n", "Total mult-adds (M): 0.00\n", "Params size (MB): 0.00\n",
        NULL });
    opts.depth = 1;
    opts.paths = opts.input_shapes = true;
    expect_lines(trek_module_summary_with(m, &opts), (const char *const[]){
        "Layer (path) Input Shape Output Shape Param # Mult-Adds Trainable\n", "├─linear (0) [8, 4] [8, 6] 30 240 True\n",
        "├─around (2) [8, 6] [8, 6] 84 672 Partial\n", "====", NULL });
    expect_lines(trek_module_summary_with(m, &(trek_summary_opts){ .depth = TREK_OFF }), (const char *const[]){
        "Layer: depth-idx Param # Trainable\n", "│ │ └─linear: 3-2 (42) False\n", "Non-trainable params: 42\n====", NULL });
    trek_module_free(&m);
}

/* Thousands of millions; under sanitizers a tenth. */
static void large_counts(void **state)
{
    bool few = test_short();
    trek_module *big = trek_nn_linear(1000, 1500, HERE);
    trek_shape shape = trek_dims(few ? 100 : 1000, 1000);
    trek_summary_opts opts = { .n_inputs = 1, .shapes = &shape };
    const char *const some[] = { "linear [100, 1500] 1,501,500 150,150,000 True\n", "Total mult-adds (M): 150.15\n",
                                 "Input size (MB): 0.40\n", NULL };
    const char *const many[] = { "linear [1000, 1500] 1,501,500 1,501,500,000 True\n", "Total mult-adds (G): 1.50\n",
                                 "Input size (MB): 4.00\n", "Forward/backward pass size (MB): 12.00\n",
                                 "Params size (MB): 6.01\n", "Estimated Total Size (MB): 22.01\n", NULL };
    expect_lines(trek_module_summary_with(big, &opts), few ? some : many);
    trek_module_free(&big);
}

static void mistakes(void **state)
{
    trek_module *m = trek_nn_linear(4, 6, HERE);
    trek_shape shape = trek_dims(2, 5);
    trek_module_totals totals = { .params = -7 };
    trek_summary_opts opts = { .n_inputs = 1, .shapes = &shape };
    FAILS(trek_module_measure(m, &opts, &totals), TREK_ERR_SHAPE, "");
    assert_null(trek_module_summary_with(m, &opts));
    trek_error_clear();
    assert_true(totals.params == -7 && trek_module_is_training(m));
    opts.shapes = NULL;
    FAILS(trek_module_measure(m, &opts, &totals), TREK_ERR_ARGUMENT, "1 inputs; exactly one of");
    FAILS(trek_module_measure(m, &(trek_summary_opts){ .depth = -3 }, &totals), TREK_ERR_ARGUMENT, ".depth: -3");
    FAILS(trek_module_measure(NULL, &opts, &totals), TREK_ERR_ARGUMENT, "");
    FAILS(trek_module_measure(m, NULL, &totals), TREK_ERR_ARGUMENT, "");
    FAILS(trek_module_measure(m, &opts, NULL), TREK_ERR_ARGUMENT, "");
    trek_module_free(&m);
}

/* --- what it leaves as it was ------------------------------------------------------------------ */

static trek_var *drawing(trek_module *self, trek_var *x)
{
    return trek_dropout(x, 0.5, true); /* in eval mode, too */
}
static const trek_module_class drawing_class = { .name = "drawing", .size = sizeof(trek_module), .forward = drawing };

static trek_graph *build(trek_device device, void *arg)
{
    trek_flow *inner = trek_flow_tag(trek_flow_from(trek_nn_linear(4, 4, device)), "mid");
    trek_flow *flow = trek_flow_through(trek_flow_from(trek_nn_linear(4, 4, device)), trek_nn_relu()); /* one step of the route */
    trek_flow_through(flow, trek_nn_batch_norm1d(4, device));
    trek_flow_through(flow, trek_graph_module(trek_flow_build(inner)));
    trek_flow_through(flow, trek_module_new(&drawing_class));
    trek_flow_using(trek_flow_through(flow, trek_nn_bilinear(4, 4, 4, device)), "memory");
    trek_flow_tag(flow, "memory");
    return trek_flow_build(flow);
}

static trek_status note_entry(const char *name, trek_var *var, void *arg)
{
    trek_tensor ***to = arg;
    *(*to)++ = trek_tensor_clone(trek_var_data(var));
    return TREK_OK;
}

static trek_var *numbers(int64_t rows)
{
    return trek_var_from(test_tensor(3, trek_dims(rows, 4), 1));
}

static void nothing_is_disturbed(void **state)
{
    for (int ranks = 1; ranks <= 3; ranks += 2) {
        trek_seed(4);
        trek_graph *graph = build(HERE, NULL);
        assert_non_null(graph);
        assert_int_equal(trek_trainer_setup(graph, &(trek_trainer_opts){ .build_replica = build, .ranks = ranks }), TREK_OK);
        assert_int_equal(trek_graph_train_at(graph, "3", false), TREK_OK);
        trek_module *module = trek_graph_module(graph);
        trek_var *y = trek_graph_forward(graph, numbers(6));
        assert_non_null(y);
        trek_var *memory = trek_graph_tagged(graph, "memory"), *mid = trek_graph_tagged_at(graph, "3.mid");
        trek_tensor *before[32], *after[32], **end = before;
        assert_int_equal(trek_module_each_buffer(module, note_entry, &end), TREK_OK);
        uint64_t step = trek_rank_here.rng_step, draw = trek_rank_here.rng_draw;
        trek_shape shape = trek_dims(9, 4); /* other rows than the memory's */
        trek_module_totals totals;
        trek_summary_opts opts = { .n_inputs = 1, .shapes = &shape };
        SUCCEEDS(trek_module_measure(module, &opts, &totals));
        assert_int_equal(totals.mult_adds, 9 * (20 + 8 + 20 + 68)); /* whole, also over ranks; batch norm, too */
        assert_int_equal(totals.pass_bytes, 4 * 2 * 4 * 36);
        expect_lines(trek_module_summary_with(module, &opts), (const char *const[]){ "├─linear: 1-1 [9, 4]", "├─relu: 1-2 [9, 4]",
            "├─graph: 1-4 [9, 4] -- -- True", "│ └─linear: 2-1 [9, 4]", NULL });
        assert_ptr_equal(trek_graph_tagged(graph, "memory"), memory);
        assert_ptr_equal(trek_graph_tagged_at(graph, "3.mid"), mid);
        assert_true(trek_rank_here.rng_step == step && trek_rank_here.rng_draw == draw);
        assert_true(trek_module_is_training(module) && !trek_module_is_training(trek_graph_at(graph, "3")) &&
                    trek_module_is_training(trek_graph_at(graph, "2")));
        assert_true(trek_grad_enabled());
        trek_tensor **other = after;
        assert_int_equal(trek_module_each_buffer(module, note_entry, &other), TREK_OK);
        assert_int_equal(other - after, end - before);
        for (int k = 0; k < end - before; k++) {
            assert_true(test_same_bits(before[k], after[k]));
            trek_tensor_release(before[k]);
            trek_tensor_release(after[k]);
        }
        assert_non_null(trek_graph_forward(graph, numbers(6))); /* goes on with the state of 6 rows */
        trek_var *x = numbers(6); /* values instead of shapes */
        opts = (trek_summary_opts){ .n_inputs = 1, .inputs = &x };
        assert_int_equal(trek_module_measure(module, &opts, &totals), TREK_OK);
        assert_int_equal(totals.input_bytes, 6 * 4 * 4);
        trek_graph_free(&graph);
    }
}

int main(void)
{
    trek_log_set(TREK_LOG_LEVEL_ERROR, NULL, NULL);
    const struct CMUnitTest tests[] = { TEST(totals_of_layers), TEST(tables), TEST(large_counts), TEST(mistakes),
                                        TEST(nothing_is_disturbed) };
    return cmocka_run_group_tests_name("summary", tests, NULL, NULL);
}
