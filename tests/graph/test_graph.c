/* SPDX-License-Identifier: Apache-2.0 */
/* graph/: the flow builder's verbs, the route against plain ops, states, tags, hash and DOT. */
#include "autograd/ops.h"
#include "graph/flow.h"
#include "graph/flow_branches.h"
#include "graph/graph_internal.h"
#include "nn/module_internal.h"
#include "nn/module_tree.h"
#include "tensor/print.h"
#include "tensor/sha256.h"
#include "tests/graph/modules.h"
#include "tests/support/refused.h"

/* --- verbs ----------------------------------------------------------------------------------------------- */

static void chains(void **state)
{
    trek_graph *graph = built(trek_flow_through(trek_flow_from(scale(2)), scale(3)));
    assert_forward(graph, 1, 6);
    assert_forward(graph, 2, 12);
    assert_non_null(trek_module_find(trek_graph_module(graph), "1.factor"));
    trek_graph_free(&graph);
    assert_null(graph);
}

static void residuals(void **state)
{
    trek_graph *graph = built(trek_flow_also_with(trek_flow_also(trek_flow_new(), scale(3)), scale(10), scale(1)));
    assert_forward(graph, 1, 44); /* (1 + 3) * (10 + 1) */
    trek_graph_free(&graph);
}

static void forks(void **state)
{
    trek_flow *flow = trek_flow_from(scale(2));
    trek_flow_tag(trek_flow_fork(flow, scale(5)), "five");
    trek_flow_fork(flow, scale(7));
    trek_flow_fork(flow, scale(9));
    trek_flow_tag(flow, "nine");
    trek_flow_tag(flow, "stream");
    trek_graph *graph = built(trek_flow_through(flow, scale(1)));
    assert_null(trek_graph_tagged(graph, "five"));
    assert_int_equal(trek_error_status(), TREK_OK);
    static const char *const tags[] = { "five", "nine", "stream" }; /* in order of tagging */
    assert_int_equal(trek_graph_tag_count(graph), 3);
    for (int k = 0; k < 3; k++)
        assert_string_equal(trek_graph_tag_name(graph, k), tags[k]);
    assert_null(trek_graph_tag_name(graph, 3));
    assert_null(trek_graph_tag_name(graph, -1));
    assert_null(trek_graph_tag_name(NULL, 0));
    assert_int_equal(trek_graph_tag_count(NULL), 0);
    assert_forward(graph, 1, 2);
    assert_all(trek_graph_tagged(graph, "five"), 10);
    assert_all(trek_graph_tagged(graph, "nine"), 18);
    assert_all(trek_graph_tagged(graph, "stream"), 2);
    assert_forward(graph, 2, 4);
    assert_all(trek_graph_tagged(graph, "five"), 20);
    /* A loss over a fork reaches its parameter, and what it shares with the stream. */
    assert_int_equal(trek_graph_backward(graph, total(trek_graph_tagged(graph, "nine"))), TREK_OK);
    assert_float_equal(grad_of(graph, "3.factor"), 2 * 2 * 6, 1e-4);
    assert_float_equal(grad_of(graph, "0.factor"), 9 * 2 * 6, 1e-4);
    assert_true(isnan(grad_of(graph, "1.factor")) || grad_of(graph, "1.factor") == 0);
    trek_graph_free(&graph);
}

static void splits(void **state)
{
    trek_graph *graph = built(trek_flow_merge(trek_flow_split(trek_flow_new(), (trek_module *[]){ scale(1), scale(2), scale(6) },
                                                              3),
                                              TREK_REDUCTION_SUM));
    assert_forward(graph, 2, 18);
    assert_int_equal(trek_graph_backward(graph, total(trek_graph_forward(graph, filled(2)))), TREK_OK);
    for (int k = 0; k < 3; k++) {
        char name[16];
        snprintf(name, sizeof name, "%d.factor", k);
        assert_float_equal(grad_of(graph, name), 12, 1e-4);
    }
    trek_graph_free(&graph);

    graph = built(trek_flow_merge(trek_flow_split(trek_flow_new(), (trek_module *[]){ scale(1), scale(2), scale(6) }, 3),
                                  TREK_REDUCTION_MEAN));
    assert_forward(graph, 2, 6);
    assert_int_equal(trek_graph_backward(graph, total(trek_graph_forward(graph, filled(2)))), TREK_OK);
    assert_float_equal(grad_of(graph, "1.factor"), 4, 1e-4);
    trek_graph_free(&graph);

    trek_flow *flow = trek_flow_split(trek_flow_new(), (trek_module *[]){ scale(1), scale(1) }, 2);
    trek_flow_tag_group(flow, "part");
    graph = built(trek_flow_merge_cat(flow, 1));
    trek_var *y = trek_graph_forward(graph, filled(3));
    assert_true(trek_shape_equal(trek_var_shape(y), trek_dims(2, 6)));
    assert_all(y, 3);
    assert_all(trek_graph_tagged(graph, "part_1"), 3);
    trek_graph_free(&graph);

    graph = built(trek_flow_merge_cat(trek_flow_split(trek_flow_new(), (trek_module *[]){ scale(1), scale(1) }, 2), 0));
    assert_true(trek_shape_equal(trek_var_shape(trek_graph_forward(graph, filled(3))), trek_dims(4, 3)));
    trek_graph_free(&graph);
}

static void shared_modules(void **state)
{
    trek_module *twice = scale(3);
    trek_graph *graph = built(trek_flow_through(trek_flow_through(trek_flow_from(twice), scale(2)), twice));
    assert_forward(graph, 1, 18);
    assert_int_equal(trek_module_param_count(trek_graph_module(graph)), 2);
    assert_non_null(trek_module_find(trek_graph_module(graph), "0.factor"));
    assert_null(trek_module_find(trek_graph_module(graph), "2.factor"));
    trek_graph_free(&graph);
    /* Handed in beside its own parent, by a flow that fails. */
    trek_module *inner = scale(1), *outer = trek_nn_sequential(&inner, 1);
    assert_mistake(trek_flow_through(trek_flow_through(trek_flow_from(inner), outer), NULL), "NULL");
}

/* --- inputs, backward and forward references ------------------------------------------------------------- */

static void backward_references(void **state)
{
    trek_flow *flow = trek_flow_tag(trek_flow_from(scale(2)), "two");
    trek_flow_through(flow, scale(5));
    trek_graph *graph = built(trek_flow_using(trek_flow_through(flow, trek_module_new(&sum_class)), "two"));
    assert_forward(graph, 1, 12);
    assert_int_equal(graph->layout.n_states, 0);
    assert_int_equal(trek_graph_backward(graph, total(trek_graph_forward(graph, filled(1)))), TREK_OK);
    assert_float_equal(grad_of(graph, "0.factor"), 6 * 6, 1e-4);
    trek_graph_free(&graph);
}

/* What was halved comes back in the size it had. */
static void sizes_from_elsewhere(void **state)
{
    trek_flow *flow = trek_flow_from(
        trek_nn_conv2d_with(&(trek_conv2d_opts){ .in = 1, .out = 2, .kernel = { 3 }, .stride = { 2 }, .padding = { 1, 1 },
                                                 .device = trek_cpu(0) }));
    trek_flow_through(flow, trek_nn_conv_transpose2d_with(&(trek_conv_transpose2d_opts){
                                .in = 2, .out = 1, .kernel = { 3 }, .stride = { 2 }, .padding = { 1, 1 },
                                    .device = trek_cpu(0) }));
    trek_graph *graph = built(trek_flow_using(flow, "input"));
    trek_var *x = trek_var_from(trek_tensor_ones(trek_dims(2, 1, 7, 8), TREK_F32, trek_cpu(0)));
    trek_var *y = trek_graph_forward(graph, x);
    assert_true(y && trek_shape_equal(trek_var_shape(y), trek_var_shape(x)));
    trek_graph_free(&graph);
}

static void several_inputs(void **state)
{
    trek_flow *flow = trek_flow_input(trek_flow_input(trek_flow_new(), "plus"), "other");
    trek_flow_through(flow, trek_module_new(&ports_class));
    trek_flow_using(trek_flow_using(flow, "other"), "plus"); /* other takes the place that plus leaves */
    trek_graph *graph = built(flow);
    assert_int_equal(trek_graph_input_count(graph), 3);
    assert_string_equal(trek_graph_input_name(graph, 0), "input");
    assert_string_equal(trek_graph_input_name(graph, 2), "other");
    assert_null(trek_graph_input_name(graph, 3));
    assert_all(trek_graph_forward_many(graph, (trek_var *[]){ filled(1), filled(2), filled(3) }, 3), 1 - 30 + 200);
    assert_null(trek_graph_forward(graph, filled(1)));
    assert_int_equal(trek_error_status(), TREK_ERR_ARGUMENT);
    assert_string_equal(trek_error(), "graph: inputs: 1; the graph takes 3");
    trek_error_clear();
    assert_null(trek_graph_forward_many(graph, (trek_var *[]){ filled(1), NULL, filled(3) }, 3));
    trek_error_clear();
    trek_graph_free(&graph);
}

static trek_graph *accumulator(void)
{
    /* y = x + (y of the last forward) */
    trek_flow *flow = trek_flow_using(trek_flow_from(trek_module_new(&sum_class)), "memory");
    return built(trek_flow_tag(flow, "memory"));
}

static void forward_references(void **state)
{
    trek_graph *graph = accumulator();
    assert_forward(graph, 3, 3);
    assert_forward(graph, 3, 6);
    assert_forward(graph, 3, 9);
    assert_int_equal(trek_graph_detach(graph), TREK_OK);
    assert_forward(graph, 3, 12);
    assert_int_equal(trek_graph_reset_state(graph), TREK_OK);
    assert_forward(graph, 3, 3);
    /* A pass that fails leaves the state as it was. */
    trek_var *wrong = trek_var_from(trek_tensor_zeros(trek_dims(5, 7), TREK_F32, trek_cpu(0)));
    REFUSED(trek_graph_forward(graph, wrong), TREK_ERR_SHAPE, "");
    assert_forward(graph, 3, 6);
    trek_graph_free(&graph);
}

/* h = f (x + h'): gradients flow through the passes until the step cuts them. */
static void state_gradients(void **state)
{
    trek_flow *flow = trek_flow_using(trek_flow_from(trek_module_new(&sum_class)), "h");
    trek_graph *graph = built(trek_flow_tag(trek_flow_through(flow, scale(2)), "h"));
    assert_int_equal(trek_graph_set_optimizer(graph, trek_sgd(&(trek_sgd_opts){ .lr = 0.5 })), TREK_OK);
    assert_forward(graph, 1, 2);
    trek_var *h = trek_graph_forward(graph, filled(1));
    assert_all(h, 6); /* f (x + f x): f + f^2, derivative 1 + 2 f = 5 */
    assert_int_equal(trek_graph_backward(graph, trek_mean(h, trek_dims_all(), false)), TREK_OK);
    assert_float_equal(grad_of(graph, "1.factor"), 5, 1e-5);
    assert_int_equal(trek_graph_step(graph), TREK_OK);
    assert_float_equal(value_of(graph, "1.factor"), -0.5, 1e-6);
    h = trek_graph_forward(graph, filled(1)); /* -0.5 (1 + 6), where 6 is a constant by now */
    assert_all(h, -3.5);
    assert_int_equal(trek_graph_backward(graph, trek_mean(h, trek_dims_all(), false)), TREK_OK);
    assert_float_equal(grad_of(graph, "1.factor"), 7, 1e-5);
    trek_graph_free(&graph);
}

static void nested_graphs(void **state)
{
    trek_flow *inner = trek_flow_input(trek_flow_from(scale(2)), "more");
    trek_flow_label(inner, "double");
    trek_flow_tag(trek_flow_using(trek_flow_through(inner, trek_module_new(&sum_class)), "more"), "inside");
    trek_flow *outer = trek_flow_tag(trek_flow_from(scale(3)), "three");
    trek_flow_through(outer, trek_graph_module(built(inner)));
    trek_flow_label(trek_flow_using(outer, "three"), "encoder");
    trek_graph *graph = built(outer);
    assert_forward(graph, 1, 9); /* 2 * 3 + 3 */
    assert_all(trek_graph_tagged(trek_graph_from_module(trek_graph_at(graph, "encoder")), "inside"), 9);
    assert_non_null(trek_module_find(trek_graph_module(graph), "encoder.double.factor"));
    assert_ptr_equal(trek_graph_at(graph, NULL), trek_graph_module(graph));
    assert_string_equal(trek_module_name(trek_graph_at(graph, "encoder.double")), "scale");
    REFUSED(trek_graph_from_module(trek_graph_at(graph, "encoder.double")), TREK_ERR_ARGUMENT,
            "graph_from_module: module: it is of class \"scale\"; must be a graph");
    REFUSED(trek_graph_from_module(NULL), TREK_ERR_ARGUMENT, "graph_from_module");
    assert_null(trek_graph_at(graph, "encoder.single"));
    assert_string_equal(
        trek_error(),
        "graph_at: path: there is nothing at \"encoder.single\": \"encoder\" (graph) has no child \"single\"; it has double, 1");
    trek_error_clear();

    assert_int_equal(trek_graph_freeze(graph, "encoder"), TREK_OK);
    assert_int_equal(trek_graph_backward(graph, total(trek_graph_forward(graph, filled(1)))), TREK_OK);
    assert_false(grad_of(graph, "encoder.double.factor") > 0);
    assert_float_equal(grad_of(graph, "0.factor"), 3 * 6, 1e-4);
    assert_int_equal(trek_graph_thaw(graph, "encoder.double"), TREK_OK);
    assert_int_equal(trek_graph_backward(graph, total(trek_graph_forward(graph, filled(1)))), TREK_OK);
    assert_float_equal(grad_of(graph, "encoder.double.factor"), 3 * 6, 1e-4);
    FAILS(trek_graph_freeze(graph, "nowhere"), TREK_ERR_ARGUMENT, "");

    trek_graph *owned = trek_graph_from_module(trek_graph_at(graph, "encoder"));
    trek_graph_free(&owned);
    assert_int_equal(trek_error_status(), TREK_ERR_STATE);
    assert_non_null(owned);
    trek_error_clear();
    trek_graph_free(&graph);
}

static void train_mode(void **state)
{
    trek_module *list[] = { trek_nn_dropout(0.5), scale(1) };
    trek_graph *graph = built(trek_flow_from(trek_nn_sequential(list, 2)));
    assert_int_equal(trek_graph_train(graph, false), TREK_OK);
    assert_forward(graph, 1, 1);
    assert_false(list[0]->own->training);
    assert_int_equal(trek_graph_train(graph, true), TREK_OK);
    assert_true(list[0]->own->training);
    trek_graph_free(&graph);
}

/* --- hash, DOT ------------------------------------------------------------------------------------------- */

static void hash_of(trek_flow *flow, char hash[TREK_GRAPH_HASH_TEXT])
{
    trek_graph *graph = built(flow);
    assert_ptr_equal(trek_graph_hash(graph, hash, TREK_GRAPH_HASH_TEXT), hash);
    assert_int_equal(strlen(hash), 64);
    char few[64] = "";
    REFUSED(trek_graph_hash(graph, few, sizeof few), TREK_ERR_ARGUMENT, "graph_hash: capacity: 64 bytes; must be 65 or more");
    assert_true(few[0] == 0);
    trek_graph_free(&graph);
}

static void sha256(void **state)
{
    /* FIPS 180-4's examples, and lengths around the padding's limits (from coreutils' sha256sum). */
    static const struct {
        int length;
        const char *hex;
    } of_a[] = { { 55, "9f4390f8d30c2dd92ec9f095b65e2b9ae9b0a925a5258e241c9f1e910f734318" },
                 { 56, "b35439a4ac6f0948b6d6f9e3c6af0f5f590ce20f1bde7090ef7970686ec6738a" },
                 { 64, "ffe054fe7ae0cb6dc65c3af9b61d5209f439851db43d0ba5997337df154668eb" } };
    unsigned char digest[32];
    char hex[65], data[64];
    memset(data, 'a', sizeof data);
    for (int k = 0; k < 3; k++) {
        trek_sha256(data, (size_t)of_a[k].length, digest);
        for (int j = 0; j < 32; j++)
            snprintf(hex + 2 * j, 3, "%02x", digest[j]);
        assert_string_equal(hex, of_a[k].hex);
    }
    trek_sha256("abc", 3, digest);
    for (int j = 0; j < 32; j++)
        snprintf(hex + 2 * j, 3, "%02x", digest[j]);
    assert_string_equal(hex, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

static void hashes(void **state)
{
    char base[65], other[65];
    hash_of(trek_flow_through(trek_flow_from(scale(1)), trek_nn_linear(3, 4, trek_cpu(0))), base);
    hash_of(trek_flow_through(trek_flow_from(scale(5)), trek_nn_linear(3, 4, trek_cpu(0))), other); /* values do not count */
    assert_string_equal(base, other);
    hash_of(trek_flow_label(trek_flow_through(trek_flow_from(scale(1)), trek_nn_linear(3, 4, trek_cpu(0))), "head"), other);
    assert_string_equal(base, other); /* labels neither */
    hash_of(trek_flow_tag(trek_flow_through(trek_flow_from(scale(1)), trek_nn_linear(3, 4, trek_cpu(0))), "t"), other);
    assert_string_not_equal(base, other);
    hash_of(trek_flow_through(trek_flow_from(scale(1)), trek_nn_linear(3, 5, trek_cpu(0))), other);
    assert_string_not_equal(base, other);
    hash_of(trek_flow_through(trek_flow_from(trek_nn_relu()), trek_nn_linear(3, 4, trek_cpu(0))), other);
    assert_string_not_equal(base, other);
    hash_of(trek_flow_also(trek_flow_from(scale(1)), trek_nn_linear(3, 4, trek_cpu(0))), other);
    assert_string_not_equal(base, other);
    trek_module *shared = scale(1);
    hash_of(trek_flow_through(trek_flow_from(scale(1)), scale(1)), base);
    hash_of(trek_flow_through(trek_flow_from(shared), shared), other);
    assert_string_not_equal(base, other);
    hash_of(trek_flow_from(trek_graph_module(built(trek_flow_from(scale(1))))), base);
    hash_of(trek_flow_from(trek_graph_module(built(trek_flow_from(trek_nn_relu())))), other);
    assert_string_not_equal(base, other);
}

static void dot(void **state)
{
    trek_flow *flow = trek_flow_tag(trek_flow_label(trek_flow_from(trek_nn_linear(3, 4, trek_cpu(0))), "first"), "a\"b");
    trek_flow_also(flow, trek_module_new(&sum_class));
    trek_flow_using(flow, "later");
    trek_graph *graph = built(trek_flow_tag(flow, "later"));
    char *text = trek_graph_dot(graph);
    assert_non_null(text);
    assert_non_null(strstr(text, "v1 [label=\"first\\nlinear(3, 4)\\n#a\\\"b\", shape=box];"));
    assert_non_null(strstr(text, "v3 [label=\"+\\n#later\", shape=circle];"));
    assert_non_null(strstr(text, "v3 -> v2 [style=dashed, constraint=false];"));
    assert_non_null(strstr(text, "v3 -> out;"));
    trek_string_free(&text);
    trek_graph_free(&graph);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, begin, end)
    const struct CMUnitTest tests[] = {
        TEST(chains), TEST(residuals), TEST(forks), TEST(splits), TEST(shared_modules), TEST(backward_references),
        TEST(sizes_from_elsewhere), TEST(several_inputs), TEST(forward_references), TEST(state_gradients), TEST(nested_graphs),
        TEST(train_mode), TEST(sha256), TEST(hashes), TEST(dot),
    };
#undef TEST
    return cmocka_run_group_tests_name("graph", tests, NULL, NULL);
}
