/* SPDX-License-Identifier: Apache-2.0 */
/* One model, run by several threads at once without gradients: the same bits as one thread's; tags and states of the graph's own
 * thread stay as they are. */
#include <pthread.h>

#include "autograd/backward.h"
#include "autograd/leaf.h"
#include "autograd/ops.h"
#include "graph/flow.h"
#include "graph/flow_branches.h"
#include "graph/passes.h"
#include "graph/tree.h"
#include "nn/generate.h"
#include "nn/layers.h"
#include "nn/norms.h"
#include "nn/parametrize.h"
#include "tensor/devices.h"
#include "tests/nn/decoder.h"
#include "tests/support/support.h"
#include "tests/support/unit.h"

enum { THREADS = 8, INPUTS = 3, ROWS = 2 };

/* The fake device under the thread sanitizer is slow. */
static int turns(void) { return test_device().type == TREK_CPU ? 6 : 2; }
static int n_threads(void) { return test_device().type == TREK_CPU ? THREADS : 3; }

/* [N, C, H, W] -> [N, H W, C] */
static trek_var *lines_forward(trek_module *self, trek_var *x)
{
    return trek_transpose(trek_flatten(x, 2, -1), 1, 2);
}

static const trek_module_class lines_class = { .name = "lines", .size = sizeof(trek_module), .forward = lines_forward };

static trek_module *normed(trek_module *linear, bool spectral)
{
    assert_int_equal(spectral ? trek_spectral_norm(linear, "weight", NULL) : trek_weight_norm(linear, "weight", 0), TREK_OK);
    return linear;
}

static trek_graph *built(trek_flow *flow)
{
    trek_graph *graph = trek_flow_build(flow);
    if (!graph)
        fail_msg("%s", trek_error());
    return graph;
}

/* Attention and made weights, with a tag inside. */
static trek_graph *inner_graph(trek_device device)
{
    trek_flow *flow = trek_flow_new();
    trek_flow_also(flow, trek_nn_multihead_attention(8, 2, device));
    trek_flow_tag(flow, "attended");
    trek_flow_through(flow, normed(trek_nn_linear(8, 8, device), false));
    trek_flow_through(flow, trek_nn_relu());
    return built(trek_flow_through(flow, normed(trek_nn_linear(8, 8, device), true)));
}

/* Convolution, batch norm, dropout, a nested graph, an LSTM that goes on where it ended, a linear with its activation. */
static trek_graph *outer_graph(void)
{
    trek_device device = test_device();
    trek_seed(11);
    trek_flow *flow = trek_flow_from(trek_nn_conv2d(3, 8, 3, device));
    trek_flow_through(flow, trek_nn_batch_norm2d(8, device));
    trek_flow_through(flow, trek_nn_dropout(0.5));
    trek_flow_through(flow, trek_module_new(&lines_class));
    trek_flow_through(flow, trek_graph_module(inner_graph(device)));
    trek_flow_tag(flow, "inner");
    trek_flow_through(flow, trek_nn_lstm_with(&(trek_lstm_opts){ .in = 8, .hidden = 6, .layers = 2, .batch_first = true,
                                                                 .device = device }));
    trek_flow_tag_result(flow, "hn", "h0"), trek_flow_using(flow, "h0");
    trek_flow_tag_result(flow, "cn", "c0"), trek_flow_using(flow, "c0");
    trek_flow_through(flow, trek_nn_linear(6, 5, device));
    trek_graph *graph = built(trek_flow_through(flow, trek_nn_gelu()));
    assert_int_equal(trek_graph_train(graph, false), TREK_OK);
    return graph;
}

static trek_var *picture(uint32_t k) { return trek_var_from(test_tensor(k, trek_dims(ROWS, 3, 6, 6), 1)); }

typedef struct shared {
    trek_graph *graph;
    trek_module *decoder;
    trek_tensor *expected[INPUTS], *tagged[INPUTS]; /* of each input */
    int64_t tokens[ROWS * 10];
    int way;
} shared;

typedef struct worker {
    shared *all;
    int number;
    char problem[256];        /* empty: none */
} worker;

static trek_var *run_one(shared *all, trek_var *x, int turn, trek_var **tag)
{
    *tag = NULL;
    switch ((all->way + turn) % 4) {
    case 0: return trek_graph_forward(all->graph, x);
    case 1: return trek_graph_forward_many(all->graph, &x, 1);
    case 2: return trek_forward(trek_graph_module(all->graph), x);
    default: return trek_graph_infer(all->graph, &x, 1, (const char *[]){ "inner" }, tag, 1);
    }
}

static void *work(void *arg)
{
    worker *w = arg;
    for (int turn = 0; turn < turns() && !*w->problem; turn++) {
        int k = (w->number + turn) % INPUTS;
        trek_scope scope = trek_scope_begin();
        trek_no_grad_begin();
        trek_var *tag, *y = run_one(w->all, picture((uint32_t)k), turn, &tag);
        if (!y)
            snprintf(w->problem, sizeof w->problem, "%s", trek_error());
        else if (!test_same_bits(trek_var_data(y), w->all->expected[k]))
            snprintf(w->problem, sizeof w->problem, "another result in turn %d", turn);
        else if (tag && !test_same_bits(trek_var_data(tag), w->all->tagged[k]))
            snprintf(w->problem, sizeof w->problem, "another tag in turn %d", turn);
        trek_no_grad_end();
        trek_scope_end(scope);
    }
    return NULL;
}

static void run_workers(shared *all, void *(*main)(void *arg), void (*meanwhile)(shared *all))
{
    worker workers[THREADS];
    pthread_t threads[THREADS];
    assert_int_equal(trek_device_sync(test_device()), TREK_OK); /* a GPU's work of this thread is no order for others' */
    for (int k = 0; k < n_threads(); k++) {
        workers[k] = (worker){ .all = all, .number = k };
        assert_int_equal(pthread_create(&threads[k], NULL, main, &workers[k]), 0);
    }
    if (meanwhile)
        meanwhile(all);
    for (int k = 0; k < n_threads(); k++)
        pthread_join(threads[k], NULL);
    for (int k = 0; k < n_threads(); k++)
        if (*workers[k].problem)
            fail_msg("thread %d: %s", k, workers[k].problem);
}

/* From the beginning of the states, as threads without any see it. */
static void expect_results(shared *all)
{
    trek_no_grad_begin();
    for (int k = 0; k < INPUTS; k++) {
        trek_scope scope = trek_scope_begin();
        trek_graph_reset_state(all->graph);
        trek_var *y = trek_graph_forward(all->graph, picture((uint32_t)k));
        if (!y)
            fail_msg("%s", trek_error());
        all->expected[k] = trek_tensor_retain(trek_var_data(y));
        all->tagged[k] = trek_tensor_retain(trek_var_data(trek_graph_tagged(all->graph, "inner")));
        trek_scope_end(scope);
    }
    trek_no_grad_end();
}

/* The graph's own thread, which sees its tags and carries its states on while the others run. */
static void own_forwards(shared *all)
{
    trek_no_grad_begin();
    trek_tensor *first = NULL;
    for (int turn = 0; turn < turns(); turn++) {
        trek_scope scope = trek_scope_begin();
        trek_var *y = trek_graph_forward(all->graph, picture(0));
        assert_non_null(y);
        assert_true(test_same_bits(trek_var_data(trek_graph_tagged(all->graph, "inner")), all->tagged[0]));
        assert_non_null(trek_graph_tagged_at(all->graph, "4.attended")); /* nor do they take what nested graphs have */
        if (turn == 0)
            first = trek_tensor_retain(trek_var_data(y));
        else
            assert_false(test_same_bits(trek_var_data(y), first)); /* the LSTM is further on */
        trek_scope_end(scope);
    }
    trek_tensor_release(first);
    trek_no_grad_end();
}

static void test_threads(void **state)
{
    shared all = { .graph = outer_graph() };
    expect_results(&all);
    for (all.way = 0; all.way < 4; all.way++) {
        run_workers(&all, work, NULL);
        assert_int_equal(trek_graph_reset_state(all.graph), TREK_OK);
        run_workers(&all, work, own_forwards);
    }
    for (int k = 0; k < INPUTS; k++) {
        trek_tensor_release(all.expected[k]);
        trek_tensor_release(all.tagged[k]);
    }
    trek_graph_free(&all.graph);
}

/* On the graph's own thread: it leaves tags and states alone, those of graphs inside, too. */
static void test_infer(void **state)
{
    trek_graph *graph = outer_graph();
    trek_scope scope = trek_scope_begin();
    trek_var *x = picture(1), *other = picture(2), *values[2] = { x, x };
    const char *const names[] = { "h0", "inner" };
    assert_non_null(trek_graph_infer(graph, &x, 1, NULL, NULL, 0));
    assert_null(trek_graph_tagged(graph, "inner"));
    trek_var *y = trek_graph_forward(graph, x), *tag = trek_var_retain(trek_graph_tagged(graph, "inner"));
    assert_true(trek_var_requires_grad(y));
    trek_var *again = trek_graph_infer(graph, &x, 1, names, values, 2);
    assert_false(trek_var_requires_grad(again));
    assert_true(test_same_bits(trek_var_data(y), trek_var_data(again))); /* the first forward's states */
    assert_true(test_same_bits(trek_var_data(values[1]), trek_var_data(tag)));
    assert_int_equal(trek_var_size(values[0], 0), 2);
    assert_non_null(trek_graph_infer(graph, &other, 1, NULL, NULL, 0));
    assert_ptr_equal(trek_graph_tagged(graph, "inner"), tag);
    trek_var_release(tag);
    assert_false(test_same_bits(trek_var_data(trek_graph_forward(graph, x)), trek_var_data(y)));
    assert_null(trek_graph_infer(graph, &x, 1, (const char *[]){ "none" }, values, 1));
    assert_null(values[0]);
    assert_non_null(strstr(trek_error(), "nothing is tagged \"none\""));
    trek_error_clear();
    assert_null(trek_graph_infer(graph, (trek_var *[]){ x, x }, 2, names, values, 2));
    assert_int_equal(trek_error_status(), TREK_ERR_ARGUMENT);
    assert_null(values[1]);
    trek_error_clear();
    assert_null(trek_graph_infer(NULL, &x, 1, NULL, NULL, 0));
    trek_error_clear();
    assert_null(trek_graph_infer(graph, &x, 1, names, NULL, 2));
    trek_error_clear();
    assert_null(trek_graph_infer(graph, &x, 1, names, values, 65));
    trek_error_clear();
    trek_scope_end(scope);
    trek_graph_free(&graph);
}

/* A thread that records takes the graph over. */
static void *train_elsewhere(void *arg)
{
    trek_graph *graph = arg;
    trek_scope scope = trek_scope_begin();
    trek_var *x = picture(0);
    bool fine = trek_graph_forward(graph, x) != NULL;
    trek_no_grad_begin();
    fine = fine && trek_graph_forward(graph, picture(1)) && trek_graph_tagged(graph, "inner");
    trek_no_grad_end();
    trek_scope_end(scope);
    return fine && trek_device_sync(test_device()) == TREK_OK ? graph : NULL;
}

static void test_owner(void **state)
{
    trek_graph *graph = outer_graph();
    pthread_t thread;
    void *result;
    assert_int_equal(trek_device_sync(test_device()), TREK_OK);
    assert_int_equal(pthread_create(&thread, NULL, train_elsewhere, graph), 0);
    pthread_join(thread, &result);
    assert_ptr_equal(result, graph);
    trek_scope scope = trek_scope_begin();
    trek_tensor *seen = trek_tensor_retain(trek_var_data(trek_graph_tagged(graph, "inner")));
    trek_no_grad_begin();
    assert_non_null(trek_graph_forward(graph, picture(2)));
    trek_no_grad_end();
    assert_ptr_equal(trek_var_data(trek_graph_tagged(graph, "inner")), seen); /* the other thread's still */
    assert_non_null(trek_graph_forward(graph, picture(2)));
    assert_ptr_not_equal(trek_var_data(trek_graph_tagged(graph, "inner")), seen);
    trek_tensor_release(seen);
    trek_scope_end(scope);
    trek_graph_free(&graph);
}

/* --- generation ---------------------------------------------------------------------------------------- */

static const int64_t prompt_a[] = { 3, 14, 1, 5 }, prompt_b[] = { 9 };
static const int64_t *const prompts[] = { prompt_a, prompt_b };

static trek_status generate(shared *all, int64_t *tokens)
{
    int64_t counts[ROWS];
    trek_generate_opts o = { .sample = { .seed = 3, .top_k = 10 }, .max_new_tokens = 10 };
    return trek_generate(all->decoder, prompts, (int64_t[]){ 4, 1 }, ROWS, &o, tokens, counts);
}

static void *write_text(void *arg)
{
    worker *w = arg;
    int64_t tokens[ROWS * 10];
    if (generate(w->all, tokens) != TREK_OK)
        snprintf(w->problem, sizeof w->problem, "%s", trek_error());
    else if (memcmp(tokens, w->all->tokens, sizeof tokens) != 0)
        snprintf(w->problem, sizeof w->problem, "another text");
    return NULL;
}

static void test_generate_threads(void **state)
{
    for (int kind = 0; kind < DECODERS; kind++) {
        shared all = { .decoder = decoder_new(kind, 2, TREK_F32) };
        assert_int_equal(generate(&all, all.tokens), TREK_OK);
        run_workers(&all, write_text, NULL);
        trek_module_free(&all.decoder);
    }
}

/* A decoder as a graph, whose own cache goes with the call. */
static void test_cached_graph(void **state)
{
    trek_graph *graph = built(trek_flow_from(decoder_new(WAVES, 2, TREK_F64)));
    assert_int_equal(trek_graph_train(graph, false), TREK_OK);
    trek_scope scope = trek_scope_begin();
    trek_var *tokens = decoder_tokens(1, 2, 9), *whole = trek_graph_forward(graph, tokens);
    trek_kv_cache *cache = trek_kv_cache_new(&(trek_kv_cache_opts){ .batch = 2 });
    for (int64_t t = 0; t < 9; t++) {
        trek_var *x = trek_narrow(tokens, 1, t, 1), *y = trek_forward_cached(trek_graph_module(graph), cache, &x, 1, NULL);
        assert_non_null(y);
        trek_var *off = trek_max(trek_abs(trek_sub(y, trek_narrow(whole, 1, t, 1))), trek_dims_all(), false);
        assert_true(trek_var_item(off) < 1e-12);
    }
    trek_kv_cache_free(&cache);
    trek_scope_end(scope);
    trek_graph_free(&graph);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_threads), cmocka_unit_test(test_infer), cmocka_unit_test(test_owner),
        cmocka_unit_test(test_generate_threads), cmocka_unit_test(test_cached_graph),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
