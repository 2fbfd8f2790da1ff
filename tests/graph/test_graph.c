/* SPDX-License-Identifier: Apache-2.0 */
/* graph/: the flow builder's verbs and mistakes, the route against plain ops,
 * states, tags, step, freezing, hash, DOT, trends, and lack of memory. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "autograd/ops.h"
#include "autograd/var_internal.h"
#include "distributed/trainer.h"
#include "graph/flow.h"
#include "graph/graph_internal.h"
#include "graph/observe.h"
#include "nn/layers.h"
#include "tensor/memory.h"
#include "tensor/place.h"

/* --- an allocator that can be told to fail -------------------------------- */

static long fail_in = -1; /* allocations that still succeed; -1: all do */

static void *test_allocate(size_t bytes, size_t alignment, void *arg)
{
    (void)arg;
    if (fail_in == 0)
        return NULL;
    if (fail_in > 0)
        fail_in--;
    void *memory = NULL;
    return posix_memalign(&memory, alignment < sizeof(void *) ? sizeof(void *) : alignment, bytes ? bytes : 1) ? NULL : memory;
}

static void test_release(void *memory, size_t bytes, void *arg)
{
    (void)bytes, (void)arg;
    free(memory);
}

/* --- modules whose arithmetic is easy to follow ------------------------------ */

typedef struct scale_module {
    trek_module base;
    trek_var *factor;
} scale_module;

static int alive; /* scale modules that were not freed yet */

static trek_var *scale_forward(trek_module *self, trek_var *x) { return trek_mul(x, ((scale_module *)self)->factor); }
static void scale_free(trek_module *self) { (void)self, alive--; }

static const trek_module_class scale_class = {
    .name = "scale", .size = sizeof(scale_module), .forward = scale_forward, .free = scale_free,
};

/* x -> factor * x, factor a parameter of one element. */
static trek_module *scale(double factor)
{
    trek_module *m = trek_module_new(&scale_class);
    if (!m)
        return NULL;
    alive++;
    trek_module_param(m, "factor", offsetof(scale_module, factor), trek_tensor_full(factor, trek_dims(1), TREK_F32, trek_cpu(0)));
    return trek_module_check(m);
}

static trek_var *sum_forward(trek_module *self, trek_var *const *inputs, int n)
{
    (void)self;
    trek_var *sum = inputs[0];
    for (int k = 1; k < n; k++)
        sum = trek_add(sum, inputs[k]);
    return sum;
}

static const trek_module_class sum_class = { .name = "sum", .size = sizeof(trek_module), .forward_many = sum_forward };

/* inputs[0] - 10 inputs[1] + 100 inputs[2]: shows which came where. */
static trek_var *ports_forward(trek_module *self, trek_var *const *inputs, int n)
{
    (void)self;
    trek_var *y = inputs[0];
    if (n > 1)
        y = trek_sub(y, trek_mul_scalar(inputs[1], 10));
    return n > 2 ? trek_add(y, trek_mul_scalar(inputs[2], 100)) : y;
}

static const char *const port_names[] = { "minus", "plus", NULL };
static const trek_module_class ports_class = {
    .name = "ports", .size = sizeof(trek_module), .forward_many = ports_forward, .input_names = port_names,
};

static trek_var *silent_forward(trek_module *self, trek_var *x)
{
    (void)self, (void)x;
    return NULL;
}

static const trek_module_class silent_class = { .name = "silent", .size = sizeof(trek_module), .forward = silent_forward };
static const trek_module_class mute_class = { .name = "mute", .size = sizeof(trek_module) };

/* --- helpers ------------------------------------------------------------------- */

static trek_scope scope;

static int begin(void **state)
{
    (void)state;
    alive = 0;
    trek_error_clear();
    scope = trek_scope_begin();
    return 0;
}

static int end(void **state)
{
    (void)state;
    trek_scope_end(scope);
    int64_t nodes = trek_tape_size();
    if (trek_status_get() != TREK_OK)
        print_error("left: %s\n", trek_error());
    if (alive || nodes)
        print_error("%d modules and %lld tape nodes alive\n", alive, (long long)nodes);
    return trek_status_get() != TREK_OK || alive != 0 || nodes != 0;
}

static trek_var *filled(double value) { return trek_var_from(trek_tensor_full(value, trek_dims(2, 3), TREK_F32, trek_cpu(0))); }

/* All elements of v are `value`. */
static void assert_all(trek_var *v, double value)
{
    if (!v)
        fail_msg("no value: %s", trek_error());
    float data[64];
    int64_t n = trek_var_numel(v);
    assert_in_range(n, 1, 64);
    assert_int_equal(trek_tensor_to_host(trek_var_data(v), TREK_F32, data, (size_t)n * sizeof *data), TREK_OK);
    for (int64_t k = 0; k < n; k++)
        if (!(fabs((double)data[k] - value) <= 1e-5 * (1 + fabs(value))))
            fail_msg("element %lld is %g, not %g", (long long)k, (double)data[k], value);
}

static trek_graph *built(trek_flow *flow)
{
    trek_graph *graph = trek_flow_build(flow);
    if (!graph)
        fail_msg("%s", trek_error());
    return graph;
}

static void assert_forward(trek_graph *graph, double x, double y) { assert_all(trek_graph_forward(graph, filled(x)), y); }

/* Builds, which must fail with a message that contains the text; clears the error. */
static void assert_mistake(trek_flow *flow, const char *text)
{
    assert_null(trek_flow_build(flow));
    assert_int_equal(trek_status_get(), TREK_ERR_ARGUMENT);
    if (!strstr(trek_error(), text))
        fail_msg("\"%s\" does not say \"%s\"", trek_error(), text);
    assert_int_equal(alive, 0);
    trek_error_clear();
}

static double grad_of(trek_graph *graph, const char *name)
{
    trek_var *param = trek_module_find(trek_graph_module(graph), name);
    if (!param)
        fail_msg("there is no parameter %s", name);
    trek_var *grad = trek_var_grad(param);
    return grad ? trek_var_item(grad) : (double)NAN;
}

static double value_of(trek_graph *graph, const char *name)
{
    trek_var *param = trek_module_find(trek_graph_module(graph), name);
    if (!param)
        fail_msg("there is no parameter %s", name);
    return trek_var_item(param);
}

static trek_var *total(trek_var *v) { return trek_sum(v, trek_dims_none(), false); }

/* --- verbs ----------------------------------------------------------------------- */

static void chains(void **state)
{
    (void)state;
    trek_graph *graph = built(trek_flow_through(trek_flow_from(scale(2)), scale(3)));
    assert_forward(graph, 1, 6);
    assert_forward(graph, 2, 12);
    assert_non_null(trek_module_find(trek_graph_module(graph), "1.factor"));
    trek_graph_free(&graph);
    assert_null(graph);
}

static void residuals(void **state)
{
    (void)state;
    trek_graph *graph = built(trek_flow_also_with(trek_flow_also(trek_flow_new(), scale(3)), scale(10), scale(1)));
    assert_forward(graph, 1, 44); /* (1 + 3) * (10 + 1) */
    trek_graph_free(&graph);
}

static void forks(void **state)
{
    (void)state;
    trek_flow *flow = trek_flow_from(scale(2));
    trek_flow_tag(trek_flow_fork(flow, scale(5)), "five");
    trek_flow_fork(flow, scale(7));
    trek_flow_fork(flow, scale(9));
    trek_flow_tag(flow, "nine");
    trek_flow_tag(flow, "stream");
    trek_graph *graph = built(trek_flow_through(flow, scale(1)));
    assert_null(trek_graph_tagged(graph, "five"));
    assert_int_equal(trek_status_get(), TREK_OK);
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
    (void)state;
    trek_graph *graph = built(trek_flow_merge(trek_flow_split(trek_flow_new(), (trek_module *[]){ scale(1), scale(2), scale(6) },
                                                              3),
                                              TREK_MERGE_ADD));
    assert_forward(graph, 2, 18);
    assert_int_equal(trek_graph_backward(graph, total(trek_graph_forward(graph, filled(2)))), TREK_OK);
    for (int k = 0; k < 3; k++) {
        char name[16];
        snprintf(name, sizeof name, "%d.factor", k);
        assert_float_equal(grad_of(graph, name), 12, 1e-4);
    }
    trek_graph_free(&graph);

    graph = built(trek_flow_merge(trek_flow_split(trek_flow_new(), (trek_module *[]){ scale(1), scale(2), scale(6) }, 3),
                                  TREK_MERGE_MEAN));
    assert_forward(graph, 2, 6);
    assert_int_equal(trek_graph_backward(graph, total(trek_graph_forward(graph, filled(2)))), TREK_OK);
    assert_float_equal(grad_of(graph, "1.factor"), 4, 1e-4);
    trek_graph_free(&graph);

    trek_flow *flow = trek_flow_split(trek_flow_new(), (trek_module *[]){ scale(1), scale(1) }, 2);
    trek_flow_tag_group(flow, "part");
    graph = built(trek_flow_merge(flow, TREK_MERGE_CAT));
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
    (void)state;
    trek_module *twice = scale(3);
    trek_graph *graph = built(trek_flow_through(trek_flow_through(trek_flow_from(twice), scale(2)), twice));
    assert_forward(graph, 1, 18);
    assert_int_equal(trek_module_param_count(trek_graph_module(graph)), 2);
    assert_non_null(trek_module_find(trek_graph_module(graph), "0.factor"));
    assert_null(trek_module_find(trek_graph_module(graph), "2.factor"));
    trek_graph_free(&graph);
    /* Handed in beside its own parent, by a flow that fails. */
    trek_module *inner = scale(1), *outer = trek_nn_sequential(1, &inner);
    assert_mistake(trek_flow_through(trek_flow_through(trek_flow_from(inner), outer), NULL), "NULL");
}

/* --- inputs, backward and forward references ---------------------------------------- */

static void backward_references(void **state)
{
    (void)state;
    trek_flow *flow = trek_flow_tag(trek_flow_from(scale(2)), "two");
    trek_flow_through(flow, scale(5));
    trek_graph *graph = built(trek_flow_using(trek_flow_through(flow, trek_module_new(&sum_class)), "two"));
    assert_forward(graph, 1, 12);
    assert_int_equal(graph->layout.n_states, 0);
    assert_int_equal(trek_graph_backward(graph, total(trek_graph_forward(graph, filled(1)))), TREK_OK);
    assert_float_equal(grad_of(graph, "0.factor"), 6 * 6, 1e-4);
    trek_graph_free(&graph);
}

static void several_inputs(void **state)
{
    (void)state;
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
    assert_int_equal(trek_status_get(), TREK_ERR_ARGUMENT);
    assert_string_equal(trek_error(), "graph: takes 3 inputs, got 1");
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
    (void)state;
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
    assert_null(trek_graph_forward(graph, wrong));
    assert_int_equal(trek_status_get(), TREK_ERR_SHAPE);
    trek_error_clear();
    assert_forward(graph, 3, 6);
    trek_graph_free(&graph);
}

/* h = f (x + h'): gradients flow through the passes until the step cuts them. */
static void state_gradients(void **state)
{
    (void)state;
    trek_flow *flow = trek_flow_using(trek_flow_from(trek_module_new(&sum_class)), "h");
    trek_graph *graph = built(trek_flow_tag(trek_flow_through(flow, scale(2)), "h"));
    assert_int_equal(trek_graph_set_optimizer(graph, trek_sgd((trek_sgd_opts){ .lr = 0.5 })), TREK_OK);
    assert_forward(graph, 1, 2);
    trek_var *h = trek_graph_forward(graph, filled(1));
    assert_all(h, 6); /* f (x + f x): f + f^2, derivative 1 + 2 f = 5 */
    assert_int_equal(trek_graph_backward(graph, trek_mean(h, trek_dims_none(), false)), TREK_OK);
    assert_float_equal(grad_of(graph, "1.factor"), 5, 1e-5);
    assert_int_equal(trek_graph_step(graph), TREK_OK);
    assert_float_equal(value_of(graph, "1.factor"), -0.5, 1e-6);
    h = trek_graph_forward(graph, filled(1)); /* -0.5 (1 + 6), where 6 is a constant by now */
    assert_all(h, -3.5);
    assert_int_equal(trek_graph_backward(graph, trek_mean(h, trek_dims_none(), false)), TREK_OK);
    assert_float_equal(grad_of(graph, "1.factor"), 7, 1e-5);
    trek_graph_free(&graph);
}

static void nested_graphs(void **state)
{
    (void)state;
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
    assert_null(trek_graph_from_module(trek_graph_at(graph, "encoder.double")));
    assert_null(trek_graph_at(graph, "encoder.single"));
    assert_string_equal(trek_error(), "graph: there is no module at \"encoder.single\"");
    trek_error_clear();

    assert_int_equal(trek_graph_freeze(graph, "encoder"), TREK_OK);
    assert_int_equal(trek_graph_backward(graph, total(trek_graph_forward(graph, filled(1)))), TREK_OK);
    assert_false(grad_of(graph, "encoder.double.factor") > 0);
    assert_float_equal(grad_of(graph, "0.factor"), 3 * 6, 1e-4);
    assert_int_equal(trek_graph_thaw(graph, "encoder.double"), TREK_OK);
    assert_int_equal(trek_graph_backward(graph, total(trek_graph_forward(graph, filled(1)))), TREK_OK);
    assert_float_equal(grad_of(graph, "encoder.double.factor"), 3 * 6, 1e-4);
    assert_int_equal(trek_graph_freeze(graph, "nowhere"), TREK_ERR_ARGUMENT);
    trek_error_clear();

    trek_graph *owned = trek_graph_from_module(trek_graph_at(graph, "encoder"));
    trek_graph_free(&owned);
    assert_int_equal(trek_status_get(), TREK_ERR_STATE);
    assert_non_null(owned);
    trek_error_clear();
    trek_graph_free(&graph);
}

static void train_mode(void **state)
{
    (void)state;
    trek_module *list[] = { trek_nn_dropout(0.5), scale(1) };
    trek_graph *graph = built(trek_flow_from(trek_nn_sequential(2, list)));
    assert_int_equal(trek_graph_train(graph, false), TREK_OK);
    assert_forward(graph, 1, 1);
    assert_false(list[0]->training);
    assert_int_equal(trek_graph_train(graph, true), TREK_OK);
    assert_true(list[0]->training);
    trek_graph_free(&graph);
}

/* --- mistakes --------------------------------------------------------------------------- */

static void mistakes(void **state)
{
    (void)state;
    trek_module *pair[] = { NULL, NULL };
#define PAIR (pair[0] = scale(1), pair[1] = scale(2), pair)
    assert_mistake(trek_flow_new(), "no module was added");
    assert_mistake(trek_flow_split(trek_flow_new(), PAIR, 2), "2 streams are open");
    assert_mistake(trek_flow_through(trek_flow_split(trek_flow_new(), PAIR, 2), scale(1)), "through(scale): 2 streams are open");
    trek_module *alone = scale(1);
    assert_mistake(trek_flow_split(trek_flow_new(), &alone, 1), "split: needs at least 2 modules, has 1");
    assert_mistake(trek_flow_split(trek_flow_new(), NULL, 2), "split: needs at least 2 modules, has 0");
    assert_mistake(trek_flow_through(trek_flow_from(scale(1)), NULL), "through: the module is NULL");
    assert_mistake(trek_flow_merge(trek_flow_from(scale(1)), TREK_MERGE_ADD), "only one stream is open");
    assert_mistake(trek_flow_tag(trek_flow_tag(trek_flow_from(scale(1)), "a"), "a"), "the name \"a\" is taken");
    assert_mistake(trek_flow_tag(trek_flow_from(scale(1)), "input"), "the name \"input\" is taken");
    assert_mistake(trek_flow_tag(trek_flow_from(scale(1)), ""), "tag: the name is empty");
    assert_mistake(trek_flow_using(trek_flow_from(scale(1)), "input"), "module scale takes one input only");
    assert_mistake(trek_flow_using(trek_flow_from(trek_module_new(&sum_class)), "never"),
                   "\"never\" (sum): nothing was tagged so");
    assert_mistake(trek_flow_using(trek_flow_new(), "input"), "no module was added just before");
    assert_mistake(trek_flow_tag_group(trek_flow_from(scale(1)), "g"), "at least 2 open streams");
    trek_flow *flow = trek_flow_tag_group(trek_flow_split(trek_flow_new(), PAIR, 2), "g");
    assert_mistake(trek_flow_merge(trek_flow_tag_group(flow, "g"), TREK_MERGE_ADD), "\"g_0\" is taken");
    assert_mistake(trek_flow_tag(trek_flow_split(trek_flow_new(), PAIR, 2), "t"), "use tag_group");
    assert_mistake(trek_flow_label(trek_flow_from(scale(1)), "a.b"), "has a dot");
    assert_mistake(trek_flow_label(trek_flow_from(scale(1)), "12"), "is a number");
    assert_mistake(trek_flow_label(trek_flow_through(trek_flow_label(trek_flow_from(scale(1)), "l"), scale(1)), "l"),
                   "\"l\": is taken");
    assert_mistake(trek_flow_label(trek_flow_new(), "l"), "no single module");
    assert_mistake(trek_flow_from(trek_module_new(&mute_class)), "module mute has no forward");
    flow = trek_flow_using(trek_flow_from(trek_module_new(&ports_class)), "plus");
    assert_mistake(trek_flow_input(flow, "plus"), "input \"minus\" of ports is left out");
    flow = trek_flow_from(trek_module_new(&ports_class));
    trek_flow *nested = trek_flow_input(trek_flow_input(trek_flow_using(trek_flow_using(flow, "plus"), "minus"), "plus"),
                                        "minus");
    assert_mistake(trek_flow_from(trek_graph_module(built(nested))), "has 3 inputs, got 1");
    assert_mistake(trek_flow_input(trek_flow_from(scale(1)), "second"), "nobody reads the input \"second\"");
    assert_mistake(trek_flow_merge(trek_flow_split(trek_flow_new(), PAIR, 2), (trek_merge)9), "9 is no way to merge");
#undef PAIR
}

static trek_module *blocks(void)
{
    trek_device cpu = trek_cpu(0);
    trek_module *inner = trek_nn_sequential(3, (trek_module *[]){ trek_nn_linear(4, 5, cpu), trek_nn_relu(),
                                                                  trek_nn_linear(6, 2, cpu) });
    return trek_nn_sequential(2, (trek_module *[]){ trek_nn_identity(), inner });
}

/* A forward with ones of the given width fails with `message`. */
static void assert_fails(trek_graph *graph, int64_t width, const char *message)
{
    trek_scope scope = trek_scope_begin();
    assert_null(trek_graph_forward(graph, trek_var_from(trek_tensor_ones(trek_dims(2, width), TREK_F32, trek_cpu(0)))));
    assert_string_equal(trek_error(), message);
    trek_error_clear();
    trek_scope_end(scope);
}

static void errors_name_where(void **state)
{
    (void)state;
    trek_graph *graph = built(trek_flow_label(trek_flow_through(trek_flow_from(trek_nn_relu()), blocks()), "body"));
    assert_fails(graph, 4, "body.1.2 (linear): input [2, 5] does not fit weight [2, 6]");
    assert_fails(graph, 3, "body.1.0 (linear): input [2, 3] does not fit weight [5, 4]"); /* in one op with the relu */
    trek_graph *outer = built(trek_flow_from(trek_graph_module(graph)));
    assert_fails(outer, 4, "0.body.1.2 (linear): input [2, 5] does not fit weight [2, 6]");
    trek_scope scope = trek_scope_begin();
    trek_var *x = trek_var_from(trek_tensor_ones(trek_dims(2, 3), TREK_F32, trek_cpu(0)));
    trek_module *alone = trek_nn_linear(4, 2, trek_cpu(0));
    assert_null(trek_forward(alone, x));
    assert_string_equal(trek_error(), "linear: input [2, 3] does not fit weight [2, 4]");
    assert_null(trek_graph_forward(outer, x)); /* an error that was there before is not moved */
    assert_string_equal(trek_error(), "linear: input [2, 3] does not fit weight [2, 4]");
    trek_error_clear();
    trek_scope_end(scope);
    trek_module_free(&alone);
    trek_graph_free(&outer);
    trek_flow *split = trek_flow_split(trek_flow_new(),
                                       (trek_module *[]){ trek_nn_linear(3, 2, trek_cpu(0)), trek_nn_linear(3, 5, trek_cpu(0)) },
                                       2);
    graph = built(trek_flow_tag(trek_flow_merge(split, TREK_MERGE_ADD), "joined"));
    scope = trek_scope_begin();
    assert_null(trek_graph_forward(graph, trek_var_from(trek_tensor_ones(trek_dims(2, 3), TREK_F32, trek_cpu(0)))));
    assert_ptr_equal(strstr(trek_error(), "joined (merge): "), trek_error());
    trek_error_clear();
    trek_scope_end(scope);
    trek_graph_free(&graph);
}

static void all_mistakes_at_once(void **state)
{
    (void)state;
    trek_flow *flow = trek_flow_from(scale(1));
    trek_flow_using(flow, "x");
    trek_flow_merge(flow, TREK_MERGE_MEAN);
    trek_flow_label(flow, "p.q");
    assert_null(trek_flow_build(flow));
    assert_string_equal(trek_error(), "flow: 3 mistakes:\nusing \"x\": module scale takes one input only\n"
                                      "merge: only one stream is open; split first\nlabel \"p.q\": has a dot");
    trek_error_clear();
    flow = trek_flow_from(scale(1));
    for (int k = 0; k < 1000; k++)
        trek_flow_label(flow, "p.q");
    assert_null(trek_flow_build(flow));
    assert_non_null(strstr(trek_error(), "flow: 1000 mistakes:\n"));
    assert_non_null(strstr(trek_error(), " more"));
    trek_error_clear();
}

static void earlier_failures(void **state)
{
    (void)state;
    /* A module that could not be made: its own message is what the user reads. */
    assert_null(trek_flow_build(trek_flow_through(trek_flow_from(scale(1)), trek_nn_linear(-1, 3, trek_cpu(0)))));
    assert_non_null(strstr(trek_error(), "linear"));
    trek_error_clear();
    /* No flow: what is handed in is freed all the same. */
    assert_null(trek_flow_through(NULL, scale(1)));
    assert_null(trek_flow_also_with(NULL, scale(1), scale(2)));
    assert_null(trek_flow_split(NULL, (trek_module *[]){ scale(1), scale(2) }, 2));
    assert_null(trek_flow_build(NULL));
    assert_int_equal(alive, 0);
    trek_error_clear();
    trek_flow *flow = trek_flow_from(scale(1));
    trek_flow_free(&flow);
    assert_null(flow);
    assert_int_equal(alive, 0);
    assert_null(trek_graph_forward(NULL, NULL));
    assert_int_equal(trek_graph_step(NULL), TREK_ERR_ARGUMENT);
    trek_error_clear();
}

static void failing_modules(void **state)
{
    (void)state;
    trek_graph *graph = built(trek_flow_tag(trek_flow_through(trek_flow_from(scale(1)), trek_module_new(&silent_class)), "t"));
    assert_null(trek_graph_forward(graph, filled(1)));
    assert_int_equal(trek_status_get(), TREK_ERR_CALLBACK);
    assert_non_null(strstr(trek_error(), "silent"));
    assert_null(trek_graph_tagged(graph, "t"));
    trek_error_clear();
    assert_null(trek_graph_tagged(graph, "u"));
    assert_int_equal(trek_status_get(), TREK_ERR_ARGUMENT);
    trek_error_clear();
    trek_var *x = filled(1);
    trek_var_retain(x);
    trek_scope_end(scope);
    assert_null(trek_graph_forward(graph, x));
    assert_int_equal(trek_status_get(), TREK_ERR_SCOPE);
    trek_error_clear();
    trek_var_release(x);
    scope = trek_scope_begin();
    trek_graph_free(&graph);
}

/* Every allocation of building, running and training may fail: a status, nothing leaked, and it works afterwards. */
static trek_status build_and_train(void)
{
    trek_scope inner = trek_scope_begin();
    trek_flow *flow = trek_flow_label(trek_flow_tag(trek_flow_from(scale(1)), "one"), "first");
    trek_flow_split(flow, (trek_module *[]){ scale(1), scale(2) }, 2);
    trek_flow_merge(flow, TREK_MERGE_MEAN);
    trek_flow_tag(trek_flow_using(trek_flow_through(flow, trek_module_new(&sum_class)), "later"), "later");
    trek_graph *graph = trek_flow_build(flow);
    trek_graph_set_optimizer(graph, trek_adam((trek_adam_opts){ .lr = 0.1 }));
    trek_graph_set_clip(graph, 1, 0.5);
    for (int k = 0; k < 2; k++) {
        trek_var *y = trek_graph_forward(graph, filled(1));
        trek_graph_backward(graph, y ? total(y) : NULL);
        trek_graph_step(graph);
    }
    char hash[TREK_GRAPH_HASH_TEXT];
    trek_graph_hash(graph, hash);
    trek_string_free(trek_graph_dot(graph));
    trek_graph_record(graph, "loss", 1);
    trek_graph_flush(graph);
    trek_graph_free(&graph);
    trek_scope_end(inner);
    return trek_status_get();
}

static void no_memory(void **state)
{
    (void)state;
    trek_scope_end(scope);
    trek_memory_release_cached(trek_cpu(0));
    trek_status replaced = trek_allocator_set(&(trek_allocator){ test_allocate, test_release, NULL });
    trek_error_clear();
    long failures = 0;
    for (long k = 0; replaced == TREK_OK && k < 3000; k++) {
        trek_memory_release_cached(trek_cpu(0));
        fail_in = k;
        trek_status status = build_and_train();
        fail_in = -1;
        trek_error_clear();
        assert_int_equal(alive, 0);
        assert_int_equal(trek_tape_size(), 0);
        if (status == TREK_OK)
            break;
        assert_int_equal(status, TREK_ERR_MEMORY);
        failures++;
    }
    assert_int_equal(build_and_train(), TREK_OK);
    scope = trek_scope_begin();
    if (replaced != TREK_OK)
        skip();
    assert_true(failures > 10);
}

/* --- training -------------------------------------------------------------------------------- */

static void steps(void **state)
{
    (void)state;
    trek_graph *graph = built(trek_flow_from(scale(2)));
    assert_int_equal(trek_graph_step(graph), TREK_ERR_STATE);
    trek_error_clear();
    assert_true(isnan(trek_graph_lr(graph)));
    assert_null(trek_graph_optimizer(graph));
    assert_int_equal(trek_graph_set_optimizer(graph, trek_sgd((trek_sgd_opts){ .lr = 0.25 })), TREK_OK);
    assert_float_equal(trek_graph_lr(graph), 0.25, 0);
    uint64_t rng = trek_place_here.rng_step;
    assert_int_equal(trek_graph_backward(graph, trek_mean(trek_graph_forward(graph, filled(3)), trek_dims_none(), false)),
                     TREK_OK);
    /* Passes add up. */
    assert_int_equal(trek_graph_backward(graph, trek_mean(trek_graph_forward(graph, filled(1)), trek_dims_none(), false)),
                     TREK_OK);
    assert_int_equal(trek_graph_backward_weighted(graph, trek_mean(trek_graph_forward(graph, filled(9)), trek_dims_none(), false),
                                                  0),
                     TREK_OK);
    assert_int_equal(trek_graph_reduce(graph), TREK_OK);
    assert_float_equal(grad_of(graph, "0.factor"), 4, 1e-6);
    /* While there is an error nothing changes. */
    trek_fail(TREK_ERR_IO, "the test's own");
    assert_int_equal(trek_graph_step(graph), TREK_ERR_IO);
    assert_int_equal(trek_graph_zero_grad(graph), TREK_ERR_IO);
    trek_error_clear();
    assert_float_equal(value_of(graph, "0.factor"), 2, 0);
    assert_float_equal(grad_of(graph, "0.factor"), 4, 1e-6);
    assert_int_equal(trek_graph_step(graph), TREK_OK);
    assert_float_equal(value_of(graph, "0.factor"), 1, 1e-6);
    assert_false(grad_of(graph, "0.factor") != 0 && !isnan(grad_of(graph, "0.factor")));
    assert_int_equal(trek_graph_steps(graph), 1);
    assert_int_equal(trek_place_here.rng_step, rng + 1);
    assert_int_equal(trek_place_here.rng_draw, 0);
    assert_true(isnan(trek_graph_grad_norm(graph)));

    double shares[2] = { 7, 7 };
    assert_int_equal(trek_graph_shares(graph, shares, 2), 1);
    assert_float_equal(shares[0], 1, 0);
    assert_float_equal(shares[1], 7, 0);
    assert_int_equal(trek_graph_world_size(graph), 1);
    assert_int_equal(trek_graph_parameters_changed(graph), TREK_OK);
    assert_int_equal(trek_graph_replicate_input(graph, "input"), TREK_OK);
    assert_int_equal(trek_graph_replicate_input(graph, "nothing"), TREK_ERR_ARGUMENT);
    trek_error_clear();
    /* Another optimizer takes the place of the first. */
    assert_int_equal(trek_graph_set_optimizer(graph, trek_adam((trek_adam_opts){ .lr = -1 })), TREK_ERR_ARGUMENT);
    trek_error_clear();
    assert_float_equal(trek_graph_lr(graph), 0.25, 0);
    assert_int_equal(trek_graph_set_optimizer(graph, trek_adam((trek_adam_opts){ .lr = 0.5 })), TREK_OK);
    assert_int_equal(trek_graph_backward(graph, total(trek_graph_forward(graph, filled(1)))), TREK_OK);
    assert_int_equal(trek_graph_step(graph), TREK_OK);
    assert_float_equal(value_of(graph, "0.factor"), 0.5, 1e-5); /* Adam's first step is lr */
    trek_graph_free(&graph);
}

static void other_graphs_parameters(void **state)
{
    (void)state;
    trek_graph *first = built(trek_flow_from(scale(2))), *second = built(trek_flow_from(scale(3)));
    trek_var *y = trek_graph_forward(second, trek_graph_forward(first, filled(1)));
    assert_int_equal(trek_graph_backward(second, total(y)), TREK_OK);
    assert_float_equal(grad_of(second, "0.factor"), 12, 1e-4);
    assert_false(grad_of(first, "0.factor") > 0);
    assert_int_equal(trek_graph_backward(first, trek_graph_forward(first, filled(1))), TREK_ERR_SHAPE);
    trek_error_clear();
    assert_int_equal(trek_graph_zero_grad(second), TREK_OK);
    assert_false(grad_of(second, "0.factor") > 0);
    trek_graph_free(&first);
    trek_graph_free(&second);
}

static void one_pass(trek_graph *graph, double x)
{
    assert_int_equal(trek_graph_backward(graph, trek_mean(trek_graph_forward(graph, filled(x)), trek_dims_none(), false)),
                     TREK_OK);
    assert_int_equal(trek_graph_step(graph), TREK_OK);
}

static void schedules(void **state)
{
    (void)state;
    trek_graph *graph = built(trek_flow_from(scale(0)));
    assert_int_equal(trek_graph_set_optimizer(graph, trek_sgd((trek_sgd_opts){ .lr = 9 })), TREK_OK);
    trek_schedule schedule = trek_step_lr(1, 2, 0.5);
    assert_int_equal(trek_graph_set_schedule(graph, &schedule), TREK_OK);
    static const double expected[] = { 1, 1, 0.5, 0.5, 0.25 };
    double sum = 0;
    for (int k = 0; k < 5; k++) {
        one_pass(graph, 1);
        assert_float_equal(trek_graph_lr(graph), expected[k], 1e-12);
        sum -= expected[k];
        assert_float_equal(value_of(graph, "0.factor"), sum, 1e-5);
    }
    assert_int_equal(trek_graph_set_lr(graph, 0.125), TREK_OK); /* ends the schedule */
    one_pass(graph, 1);
    assert_float_equal(trek_graph_lr(graph), 0.125, 0);
    assert_int_equal(trek_graph_set_schedule(graph, &(trek_schedule){ .kind = TREK_SCHEDULE_NONE }), TREK_ERR_ARGUMENT);
    trek_error_clear();
    trek_graph_free(&graph);
}

static void clipping(void **state)
{
    (void)state;
    /* Gradients 3 and 4 of two parameters: norm 5. */
    trek_flow *flow = trek_flow_split(trek_flow_new(), (trek_module *[]){ scale(0), scale(0) }, 2);
    trek_flow_merge(flow, TREK_MERGE_ADD);
    trek_graph *graph = built(flow);
    assert_int_equal(trek_graph_set_optimizer(graph, trek_sgd((trek_sgd_opts){ .lr = 1 })), TREK_OK);
    trek_var *a = trek_module_find(trek_graph_module(graph), "0.factor"),
        *b = trek_module_find(trek_graph_module(graph), "1.factor");
    static const double limits[][4] = { /* max_norm, max_value, update of a, of b */
        { 1, 0, 0.6, 0.8 }, { 0, 3.5, 3, 3.5 }, { 2.5, 1.75, 1.5, 1.75 }, { 50, 0, 3, 4 }, { 0, 0, 3, 4 } };
    double value_a = 0, value_b = 0;
    for (int k = 0; k < 5; k++) {
        assert_int_equal(trek_graph_set_clip(graph, limits[k][0], limits[k][1]), TREK_OK);
        trek_var *loss = trek_add(trek_mul_scalar(a, 3), trek_mul_scalar(b, 4));
        assert_int_equal(trek_graph_backward(graph, total(loss)), TREK_OK);
        assert_int_equal(trek_graph_step(graph), TREK_OK);
        value_a -= limits[k][2];
        value_b -= limits[k][3];
        assert_float_equal(trek_var_item(a), value_a, 2e-5);
        assert_float_equal(trek_var_item(b), value_b, 2e-5);
        if (limits[k][0] > 0)
            assert_float_equal(trek_graph_grad_norm(graph), 5, 1e-5);
    }
    assert_int_equal(trek_graph_set_clip(graph, (double)NAN, 0), TREK_ERR_ARGUMENT);
    trek_error_clear();
    trek_graph_free(&graph);
}

/* Linear and activation in one step give what the modules give one after the other. */
/* A pass of one label and one of three: with .accumulate their joint mean, without it their sum. */
static void passes_of_a_step(void **state)
{
    (void)state;
    for (int way = 0; way < 3; way++) { /* as the loss knows; stated; added up */
        trek_graph *graph = built(trek_flow_from(scale(1)));
        trek_optimizer_spec sgd = trek_sgd((trek_sgd_opts){ .lr = 1 });
        assert_int_equal(trek_trainer_setup(graph, &(trek_trainer_opts){ .optimizer = sgd, .accumulate = way < 2 ? 2 : 0 }),
                         TREK_OK);
        trek_var *a = trek_module_find(trek_graph_module(graph), "0.factor");
        static const double xs[] = { 1, 0 }, rows[] = { 1, 3 };
        for (int pass = 0; pass < 2; pass++) {
            trek_var *loss = trek_mean(trek_graph_forward(graph, filled(xs[pass])), trek_dims_none(), false);
            if (way == 0)
                assert_int_equal(trek_loss_set_weight(loss, rows[pass]), TREK_OK);
            assert_int_equal(way == 0 ? trek_graph_backward(graph, loss) : trek_graph_backward_weighted(graph, loss, rows[pass]),
                             TREK_OK);
        }
        double before = trek_var_item(a);
        assert_int_equal(trek_graph_reduce(graph), TREK_OK);
        assert_float_equal(trek_var_item(trek_var_grad(a)), way < 2 ? 0.25 : 1, 1e-6);
        assert_int_equal(trek_graph_step(graph), TREK_OK);
        assert_float_equal(trek_var_item(a), before - (way < 2 ? 0.25 : 1), 1e-6);
        trek_graph_free(&graph);
    }
}

static void fused_steps(void **state)
{
    (void)state;
    trek_seed(1);
    trek_module *first = trek_nn_linear(3, 8, trek_cpu(0)), *relu = trek_nn_relu(), *second = trek_nn_linear(8, 4, trek_cpu(0));
    trek_module *gelu = trek_nn_gelu(), *third = trek_nn_linear(4, 2, trek_cpu(0)), *last = trek_nn_relu();
    trek_flow *flow = trek_flow_through(trek_flow_through(trek_flow_through(trek_flow_from(first), relu), second), gelu);
    trek_flow_tag(trek_flow_through(flow, third), "before"); /* tagged: must not disappear */
    trek_graph *graph = built(trek_flow_through(flow, last));
    assert_int_equal(graph->route.n_steps, 4);
    trek_var *x = trek_var_from(trek_tensor_randn(trek_dims(5, 3), TREK_F32, trek_cpu(0)));
    trek_var *y = trek_graph_forward(graph, x), *plain = x;
    trek_module *all[] = { first, relu, second, gelu, third, last };
    for (int k = 0; k < 6; k++)
        plain = trek_forward(all[k], plain);
    assert_all(trek_sum(trek_abs(trek_sub(y, plain)), trek_dims_none(), false), 0);
    assert_non_null(trek_graph_tagged(graph, "before"));
    assert_int_equal(trek_graph_backward(graph, total(y)), TREK_OK);
    trek_var *grad = trek_var_retain(trek_var_grad(trek_module_find(trek_graph_module(graph), "0.weight")));
    trek_var *list[] = { trek_module_find(trek_graph_module(graph), "0.weight") }, *fresh;
    trek_var *loss = total(plain);
    assert_int_equal(trek_grad(&loss, 1, list, 1, NULL, NULL, &fresh), TREK_OK);
    assert_all(trek_sum(trek_abs(trek_sub(grad, fresh)), trek_dims_none(), false), 0);
    trek_var_release(grad);
    trek_graph_free(&graph);
}

/* A value is dropped after its last use: without recording, a long chain holds few values at a time. */
static void values_are_dropped(void **state)
{
    (void)state;
    trek_flow *flow = trek_flow_new();
    for (int k = 0; k < 50; k++)
        trek_flow_through(flow, scale(1));
    trek_graph *graph = built(flow);
    trek_var *x = trek_var_from(trek_tensor_ones(trek_dims(1 << 16), TREK_F32, trek_cpu(0)));
    trek_no_grad_begin();
    trek_memory_reset_peak(trek_cpu(0));
    int64_t before = trek_memory_stats(trek_cpu(0)).allocated;
    assert_non_null(trek_graph_forward(graph, x));
    int64_t peak = trek_memory_stats(trek_cpu(0)).allocated_peak - before;
    trek_no_grad_end();
    assert_true(peak < 4 * (4 << 16));
    trek_graph_free(&graph);
}

/* --- hash, DOT ------------------------------------------------------------------------------- */

static void hash_of(trek_flow *flow, char *hash)
{
    trek_graph *graph = built(flow);
    assert_ptr_equal(trek_graph_hash(graph, hash), hash);
    assert_int_equal(strlen(hash), 64);
    trek_graph_free(&graph);
}

static void sha256(void **state)
{
    (void)state;
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
    (void)state;
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
    (void)state;
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
    trek_string_free(text);
    trek_graph_free(&graph);
}

/* --- observation ------------------------------------------------------------------------------- */

static void observation(void **state)
{
    (void)state;
    trek_graph *inner = built(trek_flow_from(scale(1)));
    trek_graph *graph = built(trek_flow_tag(trek_flow_from(trek_graph_module(inner)), "out"));
    assert_int_equal(trek_graph_collect(graph, "out"), TREK_ERR_STATE);
    trek_error_clear();
    assert_forward(graph, 2, 2);
    assert_int_equal(trek_graph_collect(graph, "out"), TREK_ERR_SHAPE);
    trek_error_clear();
    assert_int_equal(trek_graph_collect_with(graph, "out", TREK_COLLECT_SUM), TREK_OK);
    assert_int_equal(trek_graph_collect_with(graph, "out", TREK_COLLECT_MEAN), TREK_OK);
    assert_true(isnan(trek_graph_latest(graph, "out")));
    assert_int_equal(trek_graph_record(inner, "deep", 5), TREK_OK);
    assert_int_equal(trek_graph_flush(graph), TREK_OK);
    assert_float_equal(trek_graph_latest(graph, "out"), 7, 1e-5); /* (12 + 2) / 2 */
    assert_float_equal(trek_graph_latest(inner, "deep"), 5, 0);
    assert_int_equal(trek_graph_flush(graph), TREK_OK); /* nothing new: no point */
    assert_int_equal(trek_trend_count(trek_graph_trend(graph, "out")), 1);
    static const double reduced[] = { 2, 12, 2, 2, 4.898979486 };
    for (int how = 0; how < 5; how++) {
        assert_int_equal(trek_graph_collect_with(graph, "out", (trek_collect)how), TREK_OK);
        assert_int_equal(trek_graph_flush(graph), TREK_OK);
        assert_float_equal(trek_graph_latest(graph, "out"), reduced[how], 1e-5);
    }
    trek_var *one = trek_var_from(trek_tensor_full(4, trek_dims(1), TREK_F32, trek_cpu(0)));
    assert_non_null(trek_graph_forward(graph, one));
    assert_int_equal(trek_graph_collect(graph, "out"), TREK_OK);
    assert_int_equal(trek_graph_flush(graph), TREK_OK);
    assert_float_equal(trek_graph_latest(graph, "out"), 4, 1e-6);
    assert_null(trek_graph_trend(graph, "nothing"));
    assert_int_equal(trek_status_get(), TREK_OK);
    trek_graph_free(&graph);
}

static void trends(void **state)
{
    (void)state;
    trek_graph *graph = built(trek_flow_from(scale(1)));
    assert_int_equal(trek_trend_count(NULL), 0);
    assert_float_equal(trek_trend_slope(NULL, 0), 0, 0);
    assert_true(isnan(trek_trend_latest(NULL)));
    static const double points[] = { 10, 8, 6, 4, 2, 2, 2 };
    const trek_trend *trend = NULL;
    for (int k = 0; k < 7; k++) {
        assert_int_equal(trek_graph_record(graph, "loss", points[k] - 1), TREK_OK);
        assert_int_equal(trek_graph_record(graph, "loss", points[k] + 1), TREK_OK);
        assert_int_equal(trek_graph_flush(graph), TREK_OK);
        trend = trek_graph_trend(graph, "loss");
        assert_float_equal(trek_trend_latest(trend), points[k], 1e-12);
        if (k == 0) {
            assert_float_equal(trek_trend_slope(trend, 0), 0, 0);
            assert_false(trek_trend_stalled(trend, 3, 1e-3));
            assert_false(trek_trend_converged(trend, 0, 1e-3));
            assert_false(trek_trend_improving(trend, 0));
        }
        if (k == 4) {
            assert_float_equal(trek_trend_slope(trend, 0), -2, 1e-12);
            assert_true(trek_trend_improving(trend, 0));
            assert_false(trek_trend_stalled(trend, 3, 1));
        }
    }
    assert_float_equal(trek_trend_slope(trend, 3), 0, 1e-12);
    assert_true(trek_trend_stalled(trend, 3, 1e-6));
    assert_false(trek_trend_stalled(trend, 8, 1e6)); /* fewer points than asked for */
    assert_true(trek_trend_converged(trend, 3, 1e-6));
    assert_false(trek_trend_converged(trend, 5, 1e-6));
    assert_float_equal(trek_trend_mean(trend, 4), 2.5, 1e-12);
    assert_float_equal(trek_trend_min(trend, 0), 2, 0);
    assert_float_equal(trek_trend_max(trend, 5), 6, 0);
    assert_float_equal(trek_trend_value(trend, 1), 8, 1e-12);
    assert_true(isnan(trek_trend_value(trend, 7)));
    trek_graph_free(&graph);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, begin, end)
    const struct CMUnitTest tests[] = {
        TEST(no_memory), TEST(chains), TEST(residuals), TEST(forks), TEST(splits), TEST(shared_modules),
            TEST(backward_references),
        TEST(several_inputs), TEST(forward_references), TEST(state_gradients), TEST(nested_graphs), TEST(train_mode),
        TEST(mistakes), TEST(all_mistakes_at_once), TEST(errors_name_where), TEST(earlier_failures), TEST(failing_modules),
        TEST(steps),
        TEST(other_graphs_parameters), TEST(schedules), TEST(clipping), TEST(passes_of_a_step), TEST(fused_steps),
        TEST(values_are_dropped),
        TEST(sha256), TEST(hashes), TEST(dot), TEST(observation), TEST(trends),
    };
#undef TEST
    return cmocka_run_group_tests_name("graph", tests, NULL, NULL);
}
