/* SPDX-License-Identifier: Apache-2.0 */
/* graph/: what is refused when a graph is built or run, with the place where, and lack of memory. */
#include "autograd/ops.h"
#include "autograd/var_internal.h"
#include "graph/flow.h"
#include "graph/flow_branches.h"
#include "graph/inspect.h"
#include "graph/observe.h"
#include "graph/settings.h"
#include "optim/optimizer.h"
#include "tensor/memory.h"
#include "tensor/print.h"
#include "tests/graph/modules.h"
#include "tests/support/refused.h"

/* --- an allocator that can be told to fail --------------------------------------------------------------- */

static long fail_in = -1; /* allocations that still succeed; -1: all do */

static void *test_allocate(size_t bytes, size_t alignment, void *arg)
{
    if (fail_in == 0)
        return NULL;
    if (fail_in > 0)
        fail_in--;
    void *memory = NULL;
    return posix_memalign(&memory, alignment < sizeof(void *) ? sizeof(void *) : alignment, bytes ? bytes : 1) ? NULL : memory;
}

static void test_release(void *memory, size_t bytes, void *arg)
{
    free(memory);
}

/* --- modules whose arithmetic is easy to follow ---------------------------------------------------------- */

static trek_var *silent_forward(trek_module *self, trek_var *x)
{
    return NULL;
}

static const trek_module_class silent_class = { .name = "silent", .size = sizeof(trek_module), .forward = silent_forward };
static const trek_module_class mute_class = { .name = "mute", .size = sizeof(trek_module) };

/* --- mistakes -------------------------------------------------------------------------------------------- */

static void mistakes(void **state)
{
    trek_module *pair[] = { NULL, NULL };
#define PAIR (pair[0] = scale(1), pair[1] = scale(2), pair)
    assert_mistake(trek_flow_new(), "no module was added");
    assert_mistake(trek_flow_split(trek_flow_new(), PAIR, 2), "2 streams are open");
    assert_mistake(trek_flow_through(trek_flow_split(trek_flow_new(), PAIR, 2), scale(1)), "through(scale): 2 streams are open");
    trek_module *alone = scale(1);
    assert_mistake(trek_flow_split(trek_flow_new(), &alone, 1), "split: modules: 1; must be at least 2");
    assert_mistake(trek_flow_split(trek_flow_new(), NULL, 2), "split: modules: 0; must be at least 2");
    assert_mistake(trek_flow_through(trek_flow_from(scale(1)), NULL), "through: module: NULL");
    assert_mistake(trek_flow_merge(trek_flow_from(scale(1)), TREK_REDUCTION_SUM), "only one stream is open");
    assert_mistake(trek_flow_tag(trek_flow_tag(trek_flow_from(scale(1)), "a"), "a"), "name: \"a\" is in use");
    assert_mistake(trek_flow_tag(trek_flow_from(scale(1)), "input"), "name: \"input\" is in use");
    assert_mistake(trek_flow_tag(trek_flow_from(scale(1)), ""), "tag: the name is empty");
    assert_mistake(trek_flow_using(trek_flow_from(scale(1)), "input"), "module scale takes one input only");
    assert_mistake(trek_flow_using(trek_flow_from(trek_module_new(&sum_class)), "never"),
                   "\"never\" (sum): nothing has this tag");
    assert_mistake(trek_flow_using(trek_flow_new(), "input"), "no module was added just before");
    assert_mistake(trek_flow_tag_group(trek_flow_from(scale(1)), "g"), "it needs at least 2");
    trek_flow *flow = trek_flow_tag_group(trek_flow_split(trek_flow_new(), PAIR, 2), "g");
    assert_mistake(trek_flow_merge(trek_flow_tag_group(flow, "g"), TREK_REDUCTION_SUM), "\"g_0\" is in use");
    assert_mistake(trek_flow_tag(trek_flow_split(trek_flow_new(), PAIR, 2), "t"), "use tag_group");
    assert_mistake(trek_flow_label(trek_flow_from(scale(1)), "a.b"), "contains a dot");
    assert_mistake(trek_flow_label(trek_flow_from(scale(1)), "12"), "is a number");
    assert_mistake(trek_flow_label(trek_flow_through(trek_flow_label(trek_flow_from(scale(1)), "l"), scale(1)), "l"),
                   "\"l\": is in use");
    assert_mistake(trek_flow_label(trek_flow_new(), "l"), "no single module");
    assert_mistake(trek_flow_from(trek_module_new(&mute_class)), "module: mute has no forward");
    flow = trek_flow_using(trek_flow_from(trek_module_new(&ports_class)), "plus");
    assert_mistake(trek_flow_input(flow, "plus"), "input \"minus\" of ports is missing");
    flow = trek_flow_from(trek_module_new(&ports_class));
    trek_flow *nested = trek_flow_input(trek_flow_input(trek_flow_using(trek_flow_using(flow, "plus"), "minus"), "plus"),
                                        "minus");
    assert_mistake(trek_flow_from(trek_graph_module(built(nested))), "got 1 inputs; it takes 3");
    assert_mistake(trek_flow_input(trek_flow_from(scale(1)), "second"), "nobody reads the input \"second\"");
    assert_mistake(trek_flow_merge(trek_flow_split(trek_flow_new(), PAIR, 2), (trek_reduction)9), "merge: reduction: 9; must be");
    assert_mistake(trek_flow_merge(trek_flow_split(trek_flow_new(), PAIR, 2), TREK_REDUCTION_MAX),
                   "merge: reduction: 2; must be TREK_REDUCTION_SUM or _MEAN; trek_flow_merge_cat concatenates");
#undef PAIR
}

static trek_module *blocks(void)
{
    trek_device cpu = trek_cpu(0);
    trek_module *inner = trek_nn_sequential((trek_module *[]){ trek_nn_linear(4, 5, cpu), trek_nn_relu(),
                                                               trek_nn_linear(6, 2, cpu) }, 3);
    return trek_nn_sequential((trek_module *[]){ trek_nn_identity(), inner }, 2);
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
    trek_graph *graph = built(trek_flow_label(trek_flow_through(trek_flow_from(trek_nn_relu()), blocks()), "body"));
    assert_fails(graph, 4, "body.1.2 (linear): input: [2, 5] does not fit weight [2, 6]");
    assert_fails(graph, 3, "body.1.0 (linear): input: [2, 3] does not fit weight [5, 4]"); /* in one op with the relu */
    trek_graph *outer = built(trek_flow_from(trek_graph_module(graph)));
    assert_fails(outer, 4, "0.body.1.2 (linear): input: [2, 5] does not fit weight [2, 6]");
    trek_scope scope = trek_scope_begin();
    trek_var *x = trek_var_from(trek_tensor_ones(trek_dims(2, 3), TREK_F32, trek_cpu(0)));
    trek_module *alone = trek_nn_linear(4, 2, trek_cpu(0));
    assert_null(trek_forward(alone, x));
    assert_string_equal(trek_error(), "linear: input: [2, 3] does not fit weight [2, 4]");
    assert_null(trek_graph_forward(outer, x)); /* an error that was there before is not moved */
    assert_string_equal(trek_error(), "linear: input: [2, 3] does not fit weight [2, 4]");
    trek_error_clear();
    trek_scope_end(scope);
    trek_module_free(&alone);
    trek_graph_free(&outer);
    trek_flow *split = trek_flow_split(trek_flow_new(),
                                       (trek_module *[]){ trek_nn_linear(3, 2, trek_cpu(0)), trek_nn_linear(3, 5, trek_cpu(0)) },
                                       2);
    graph = built(trek_flow_tag(trek_flow_merge(split, TREK_REDUCTION_SUM), "joined"));
    scope = trek_scope_begin();
    assert_null(trek_graph_forward(graph, trek_var_from(trek_tensor_ones(trek_dims(2, 3), TREK_F32, trek_cpu(0)))));
    assert_ptr_equal(strstr(trek_error(), "joined (merge): "), trek_error());
    trek_error_clear();
    trek_scope_end(scope);
    trek_graph_free(&graph);
}

static void all_mistakes_at_once(void **state)
{
    trek_flow *flow = trek_flow_from(scale(1));
    trek_flow_using(flow, "x");
    trek_flow_merge(flow, TREK_REDUCTION_MEAN);
    trek_flow_label(flow, "p.q");
    assert_null(trek_flow_build(flow));
    assert_string_equal(trek_error(),
                        "flow_build: 3 mistakes:\nusing \"x\": module scale takes one input only\n"
                        "merge: only one stream is open; split first\nlabel \"p.q\": contains a dot; a label must not");
    trek_error_clear();
    flow = trek_flow_from(scale(1));
    for (int k = 0; k < 1000; k++)
        trek_flow_label(flow, "p.q");
    assert_null(trek_flow_build(flow));
    assert_non_null(strstr(trek_error(), "flow_build: 1000 mistakes:\n"));
    assert_non_null(strstr(trek_error(), " more"));
    trek_error_clear();
}

static void earlier_failures(void **state)
{
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
    FAILS(trek_graph_step(NULL), TREK_ERR_ARGUMENT, "");
}

static void failing_modules(void **state)
{
    trek_graph *graph = built(trek_flow_tag(trek_flow_through(trek_flow_from(scale(1)), trek_module_new(&silent_class)), "t"));
    assert_null(trek_graph_forward(graph, filled(1)));
    assert_int_equal(trek_error_status(), TREK_ERR_CALLBACK);
    assert_non_null(strstr(trek_error(), "silent"));
    assert_null(trek_graph_tagged(graph, "t"));
    trek_error_clear();
    REFUSED(trek_graph_tagged(graph, "u"), TREK_ERR_ARGUMENT, "");
    trek_var *x = filled(1);
    trek_var_retain(x);
    trek_scope_end(scope);
    REFUSED(trek_graph_forward(graph, x), TREK_ERR_SCOPE, "");
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
    trek_flow_merge(flow, TREK_REDUCTION_MEAN);
    trek_flow_tag(trek_flow_using(trek_flow_through(flow, trek_module_new(&sum_class)), "later"), "later");
    trek_graph *graph = trek_flow_build(flow);
    trek_graph_set_optimizer(graph, trek_adam(&(trek_adam_opts){ .lr = 0.1 }));
    trek_graph_set_clip(graph, 1, 0.5);
    for (int k = 0; k < 2; k++) {
        trek_var *y = trek_graph_forward(graph, filled(1));
        trek_graph_backward(graph, y ? total(y) : NULL);
        trek_graph_step(graph);
    }
    char hash[TREK_GRAPH_HASH_TEXT];
    trek_graph_hash(graph, hash, sizeof hash);
    char *dot = trek_graph_dot(graph);
    trek_string_free(&dot);
    trek_graph_record(graph, "loss", 1);
    trek_graph_flush(graph);
    trek_graph_free(&graph);
    trek_scope_end(inner);
    return trek_error_status();
}

static void no_memory(void **state)
{
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

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, begin, end)
    const struct CMUnitTest tests[] = {
        TEST(no_memory), TEST(mistakes), TEST(all_mistakes_at_once), TEST(errors_name_where), TEST(earlier_failures),
        TEST(failing_modules),
    };
#undef TEST
    return cmocka_run_group_tests_name("graph_mistakes", tests, NULL, NULL);
}
