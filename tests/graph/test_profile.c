/* SPDX-License-Identifier: Apache-2.0 */
/* Timelines with ops: what is recorded of ops, modules and backwards, its FLOPs and bytes against counts by hand,
 * the sums, their limits and their text, threads and ranks. */
#include <locale.h>
#include <pthread.h>
#include <unistd.h>

#include "autograd/autocast.h"
#include "autograd/backward.h"
#include "autograd/function.h"
#include "autograd/ops.h"
#include "autograd/var_internal.h"
#include "distributed/trainer.h"
#include "graph/flow.h"
#include "graph/flow_branches.h"
#include "graph/settings.h"
#include "graph/timeline.h"
#include "graph/tree.h"
#include "nn/layers.h"
#include "nn/module_internal.h"
#include "tensor/op.h"
#include "tensor/op_cost.h"
#include "tensor/peak.h"
#include "tensor/print.h"
#include "tensor/rank_context.h"
#include "tensor/scope.h"
#include "tensor/trace.h"
#include "tests/support/scoped.h"
#include "tests/support/support.h"

#define SAME assert_string_equal

static trek_timeline *profile(int64_t rows)
{
    trek_timeline *t = trek_timeline_new(&(trek_timeline_opts){ .ops = true, .rows = rows });
    assert_non_null(t);
    assert_int_equal(trek_timeline_attach(t), TREK_OK);
    return t;
}

static trek_var *filled(double value, trek_shape shape, trek_dtype dtype, bool requires_grad)
{
    trek_tensor *tensor = trek_tensor_full(shape, value, dtype, trek_cpu(0));
    trek_var *var = trek_var_new(tensor, requires_grad);
    trek_tensor_release(tensor);
    assert_non_null(var);
    return var;
}

/* Of the present scope. */
static trek_var *zeros(trek_shape shape) { return trek_var_from(trek_tensor_zeros(shape, TREK_F32, trek_cpu(0))); }
static trek_var *indices(int64_t n) { return trek_var_from(trek_tensor_zeros(trek_dims(n), TREK_I64, trek_cpu(0))); }

/* The last entry of that name. */
static trek_timeline_entry entry_of(trek_timeline *t, const char *name)
{
    trek_timeline_entry entry, found = { .rank = -1 };
    for (int64_t k = 0; trek_timeline_get(t, k, &entry); k++)
        if (strcmp(entry.name, name) == 0)
            found = entry;
    if (found.rank < 0)
        fail_msg("there is no entry %s", name);
    return found;
}

enum { ROOM = 512 };
static trek_timeline_row rows[ROOM];

static int64_t averages(trek_timeline *t, trek_timeline_summary_opts opts)
{
    int64_t n = trek_timeline_averages(t, &opts, rows, ROOM);
    assert_in_range(n, 0, ROOM);
    return n;
}

static const trek_timeline_row *row_of(int64_t n, const char *name, bool backward)
{
    for (int64_t k = 0; k < n; k++)
        if (strcmp(rows[k].name, name) == 0 && rows[k].backward == backward)
            return &rows[k];
    fail_msg("there is no row %s", name);
    return NULL;
}

/* --- costs ------------------------------------------------------------------------------ */

static void expect_cost(trek_timeline *t, const char *name, const char *shapes, double flops, double bytes)
{
    trek_timeline_entry entry = entry_of(t, name);
    assert_null(trek_error_status() ? trek_error() : NULL);
    assert_int_equal(entry.kind, TREK_TIMELINE_KIND_OP);
    SAME(entry.shapes, shapes);
    if (entry.flops != flops || entry.bytes != bytes)
        fail_msg("%s %s: %g FLOPs, %g bytes; by hand %g, %g", name, shapes, entry.flops, entry.bytes, flops, bytes);
}

static void costs_of_products(void **state)
{
    trek_timeline *t = profile(0);
    trek_scope scope = trek_scope_begin();
    trek_matmul(zeros(trek_dims(3, 4)), zeros(trek_dims(4, 5)));
    expect_cost(t, "matmul", "f32[3, 4] f32[4, 5] -> f32[3, 5]", 2 * 3 * 4 * 5, 4 * (12 + 20 + 15));
    trek_matmul(zeros(trek_dims(2, 1, 3, 4)), zeros(trek_dims(6, 4, 5)));
    expect_cost(t, "matmul", "f32[2, 1, 3, 4] f32[6, 4, 5] -> f32[2, 6, 3, 5]", 2 * 12 * 3 * 4 * 5, 4 * (24 + 120 + 180));
    trek_matmul(zeros(trek_dims(4)), zeros(trek_dims(4)));
    expect_cost(t, "matmul", "f32[1, 4] f32[4, 1] -> f32[1, 1]", 8, 4 * 9); /* as it is done */
    trek_matmul(zeros(trek_dims(0, 4)), zeros(trek_dims(4, 5)));
    expect_cost(t, "matmul", "f32[0, 4] f32[4, 5] -> f32[0, 5]", 0, 4 * 20);
    trek_linear(zeros(trek_dims(2, 7, 4)), zeros(trek_dims(6, 4)), zeros(trek_dims(6)));
    expect_cost(t, "linear", "f32[2, 7, 4] f32[6, 4] f32[6] -> f32[2, 7, 6]", 2 * 14 * 4 * 6, 4 * (56 + 24 + 6 + 84));
    trek_linear_cross_entropy(zeros(trek_dims(5, 4)), zeros(trek_dims(9, 4)), NULL, indices(5), NULL);
    assert_true(entry_of(t, "linear_cross_entropy").flops == 2 * 5 * 4 * 9);
    trek_scope_end(scope);
    trek_timeline_free(&t);
}

static void costs_of_convolutions(void **state)
{
    trek_timeline *t = profile(0);
    trek_scope scope = trek_scope_begin();
    trek_var *x = filled(1, trek_dims(2, 3, 8, 8), TREK_F32, true), *w = filled(1, trek_dims(4, 3, 3, 3), TREK_F32, true);
    trek_var *y = trek_conv2d(x, w, NULL, NULL);
    expect_cost(t, "conv2d", "f32[2, 3, 8, 8] f32[4, 3, 3, 3] -> f32[2, 4, 6, 6]", 2 * 2 * 4 * 36 * 27,
                4 * (384 + 108 + 288));
    assert_int_equal(trek_backward(trek_sum(y, trek_dims(0), false)), TREK_ERR_SHAPE);
        /* no scalar: a failed call leaves nothing */
    trek_error_clear();
    assert_int_equal(trek_backward(trek_sum(y, (trek_dims_list){ 0 }, false)), TREK_OK);
    assert_true(entry_of(t, "conv2d_input_grad").flops == 2 * 2 * 4 * 36 * 27);
    assert_true(entry_of(t, "conv2d_weight_grad").flops == 2 * 2 * 4 * 36 * 27);
    trek_conv2d(zeros(trek_dims(1, 6, 5, 5)), zeros(trek_dims(6, 1, 3, 3)), NULL, &(trek_conv_opts){ .groups = 6 });
    assert_true(entry_of(t, "conv2d").flops == 2 * 6 * 9 * 9);
    trek_conv_transpose2d(zeros(trek_dims(1, 3, 4, 4)), zeros(trek_dims(3, 5, 2, 2)), NULL, NULL);
    assert_true(entry_of(t, "conv_transpose2d").flops == 2 * 3 * 16 * 5 * 4);
    trek_var_release(x);
    trek_var_release(w);
    trek_scope_end(scope);
    trek_timeline_free(&t);
}

static void costs_of_attention(void **state)
{
    trek_timeline *t = profile(0);
    trek_scope scope = trek_scope_begin();
    trek_var *q = filled(1, trek_dims(1, 2, 5, 4), TREK_F32, true), *k = filled(1, trek_dims(1, 2, 7, 4), TREK_F32, true);
    trek_var *y = trek_attention(q, k, k, NULL);
    assert_true(entry_of(t, "attention").flops == 4 * 2 * 5 * 7 * 4);
    assert_int_equal(trek_backward(trek_sum(y, (trek_dims_list){ 0 }, false)), TREK_OK);
    assert_true(entry_of(t, "attention_backward").flops == 10 * 2 * 5 * 7 * 4);
    trek_attention(q, k, k, &(trek_attention_opts){ .causal = true });
    assert_true(entry_of(t, "attention").flops == 4 * 2 * (1 + 2 + 3 + 4 + 5) * 4);
    trek_attention(k, q, q, &(trek_attention_opts){ .causal = true });
    assert_true(entry_of(t, "attention").flops == 4 * 2 * (1 + 2 + 3 + 4 + 5 + 5 + 5) * 4);
    trek_var_release(q);
    trek_var_release(k);
    trek_scope_end(scope);
    trek_timeline_free(&t);
}

static void costs_of_recurrences(void **state)
{
    trek_timeline *t = profile(0);
    trek_scope scope = trek_scope_begin();
    trek_var *gates = filled(0.1, trek_dims(3, 2, 20), TREK_F32, true), *w = filled(0.1, trek_dims(20, 5), TREK_F32, true);
    trek_var *y = trek_apply_lstm(gates, w, NULL, NULL, NULL, false, true);
    assert_true(entry_of(t, "lstm").flops == 2 * 3 * 2 * 20 * 5);
    assert_int_equal(trek_backward(trek_sum(y, (trek_dims_list){ 0 }, false)), TREK_OK);
    assert_true(entry_of(t, "lstm_backward").flops == 2 * 3 * 2 * 20 * 5);
    trek_apply_gru(zeros(trek_dims(3, 2, 15)), zeros(trek_dims(15, 5)), NULL, NULL, NULL, false, false);
    assert_true(entry_of(t, "gru").flops == 2 * 3 * 2 * 15 * 5);
    trek_var_release(gates);
    trek_var_release(w);
    trek_scope_end(scope);
    trek_timeline_free(&t);
}

static void costs_of_moves(void **state)
{
    trek_timeline *t = profile(0);
    trek_scope scope = trek_scope_begin();
    trek_var *x = zeros(trek_dims(4, 6));
    trek_add(x, zeros(trek_dims(6)));
    expect_cost(t, "add", "f32[4, 6] f32[6] -> f32[4, 6]", 0, 4 * (24 + 6 + 24));
    trek_var *turned = trek_transpose(x, 0, 1);
    expect_cost(t, "transpose", "f32[4, 6] -> f32[6, 4]", 0, 0);
    trek_reshape(turned, trek_dims(24)); /* no view can be */
    expect_cost(t, "reshape", "f32[6, 4] -> f32[24]", 0, 4 * 48);
    trek_neg(trek_expand(zeros(trek_dims(1, 6)), trek_dims(4, 6)));
    expect_cost(t, "neg", "f32[4, 6] -> f32[4, 6]", 0, 4 * (6 + 24));
    trek_embedding(indices(3), zeros(trek_dims(1000, 8)), -1);
    expect_cost(t, "embedding", "f32[1000, 8] i64[3] -> f32[3, 8]", 0, 4 * 24 + 4 * 24 + 8 * 3);
    trek_var *many[100];
    for (int k = 0; k < 100; k++)
        many[k] = x;
    trek_cat(many, 100, 0);
    trek_timeline_entry cat = entry_of(t, "cat");
    assert_non_null(strstr(cat.shapes, " ... -> f32[400, 6]"));
    assert_true(cat.bytes == 4 * 24 * 200);
    /* What promotion makes of an input is an op inside the op. */
    trek_add(x, trek_var_from(trek_tensor_zeros(trek_dims(4, 6), TREK_F64, trek_cpu(0))));
    trek_timeline_entry add = entry_of(t, "add"), convert = entry_of(t, "convert");
    int64_t n = averages(t, (trek_timeline_summary_opts){ .group = TREK_TIMELINE_GROUP_OP });
    assert_true(row_of(n, "convert", false)->made_bytes == 0 && row_of(n, "add", false)->made_bytes >= 4 * 6 * 8);
    SAME(add.shapes, "f32[4, 6] f64[4, 6] -> f64[4, 6]");
    assert_true(convert.start_ns >= add.start_ns && convert.end_ns <= add.end_ns);
    assert_int_equal(add.self_ns, add.end_ns - add.start_ns - (convert.end_ns - convert.start_ns));
    trek_scope_end(scope);
    trek_timeline_free(&t);
}

/* --- modules and backwards --------------------------------------------------------------- */

static trek_module *net(trek_device device)
{
    trek_module *inner[] = { trek_nn_linear(8, 8, device), trek_nn_tanh() };
    trek_module *outer[] = { trek_nn_linear(4, 8, device), trek_nn_relu(), trek_nn_sequential(inner, 2),
                             trek_nn_linear(8, 2, device) };
    return trek_nn_sequential(outer, 4);
}

static void check_paths(trek_timeline *t, int passes)
{
    int64_t n = averages(t, (trek_timeline_summary_opts){ .group = TREK_TIMELINE_GROUP_MODULE });
    static const char *const paths[] = { "sequential", "sequential.0", "sequential.2", "sequential.2.0", "sequential.2.1",
                                         "sequential.3" }; /* 1 runs with 0 */
    static const double flops[] = { 2 * 3 * (32 + 64 + 16), 2 * 3 * 32, 2 * 3 * 64, 2 * 3 * 64, 0, 2 * 3 * 16 };
    static const char *const results[] = { "f32[3, 2]", "f32[3, 8]", "f32[3, 8]", "f32[3, 8]", "f32[3, 8]", "f32[3, 2]" };
    static const double given[] = { 24, 96, 96, 96, 96, 24 }, made[] = { 96 + 2 * 96 + 24, 96, 2 * 96, 96, 96, 24 };
    for (size_t k = 0; k < sizeof paths / sizeof *paths; k++) {
        const trek_timeline_row *forward = row_of(n, paths[k], false), *backward = row_of(n, paths[k], true);
        assert_int_equal(forward->calls, passes);
        assert_true(forward->flops == passes * flops[k]);
        SAME(forward->result, results[k]);
        SAME(backward->result, "");
        assert_true(forward->result_bytes == passes * given[k] && forward->made_bytes == passes * made[k]);
        assert_true(forward->total_ns >= forward->self_ns && forward->self_ns >= 0);
        /* The first layer's input needs no gradient: one product, else two. */
        double expected = k == 1 ? flops[k] : k == 0 ? 2 * flops[0] - flops[1] : 2 * flops[k];
        assert_true(backward->flops == passes * expected);
        assert_true(backward->total_ns > 0);
    }
    const trek_timeline_row *outer = row_of(n, "sequential.2", false), *inner = row_of(n, "sequential.2.0", false);
    assert_true(outer->total_ns >= inner->total_ns);
    assert_int_equal(row_of(n, "sequential.2.0", true)->calls, passes); /* one op */
    SAME(entry_of(t, "linear").path, "sequential.3");
    SAME(entry_of(t, "tanh").path, "sequential.2.1");
    assert_false(entry_of(t, "tanh").backward);
    trek_timeline_entry back = entry_of(t, "tanh_backward");
    assert_true(back.backward);
    SAME(back.path, "sequential.2.1");
    trek_timeline_entry node = entry_of(t, "linear backward");
    assert_int_equal(node.kind, TREK_TIMELINE_KIND_BACKWARD);
    SAME(node.path, "sequential.0"); /* the last that ran */
    SAME(entry_of(t, "pointwise_loss").path, "");
    assert_int_equal(entry_of(t, "sequential.2.1").kind, TREK_TIMELINE_KIND_MODULE);
}

static void one_pass(trek_module *m)
{
    trek_scope scope = trek_scope_begin();
    trek_var *y = trek_forward(m, zeros(trek_dims(3, 4)));
    assert_int_equal(trek_backward(trek_mse_loss(y, zeros(trek_dims(3, 2)))), TREK_OK);
    trek_scope_end(scope);
}

static void nested_modules(void **state)
{
    trek_module *m = net(trek_cpu(0));
    trek_timeline *t = profile(0);
    one_pass(m);
    one_pass(m);
    check_paths(t, 2);
    int64_t n = averages(t, (trek_timeline_summary_opts){ 0 });
    assert_int_equal(row_of(n, "linear", false)->calls, 6);
    assert_int_equal(row_of(n, "linear backward", false)->calls, 6);
    assert_true(row_of(n, "linear backward", false)->flops == row_of(n, "matmul", false)->flops); /* what is inside counts */
    assert_int_equal(row_of(n, "(modules)", false)->calls, 12);
    n = averages(t, (trek_timeline_summary_opts){ .group = TREK_TIMELINE_GROUP_SHAPES });
    int linears = 0;
    double share = 0;
    int64_t self = 0;
    for (int64_t k = 0; k < n; k++) {
        linears += strcmp(rows[k].name, "linear") == 0;
        share += rows[k].share;
        self += rows[k].self_ns;
    }
    assert_int_equal(linears, 3);
    assert_true(share > 0.999 && share < 1.001);
    assert_true(self > 0);
    /* A tape that was recorded before knows of no module. */
    trek_timeline_detach(t);
    trek_scope scope = trek_scope_begin();
    trek_var *loss = trek_mse_loss(trek_forward(m, zeros(trek_dims(3, 4))), zeros(trek_dims(3, 2)));
    trek_timeline_clear(t);
    trek_timeline_attach(t);
    assert_int_equal(trek_backward(loss), TREK_OK);
    SAME(entry_of(t, "tanh_backward").path, "");
    trek_scope_end(scope);
    trek_module_free(&m);
    trek_timeline_free(&t);
}

/* Under autocast, gradients of gradients, functions of a program's own. */
static trek_status twice(trek_function_context *context, trek_var *const *in, int n_in, trek_var **out, int n_out)
{
    out[0] = trek_mul_scalar(in[0], 2);
    return TREK_OK;
}
static trek_status twice_backward(trek_function_context *context, trek_var *const *out, int n_out, trek_var **in, int n_in)
{
    in[0] = trek_mul_scalar(out[0], 2);
    return TREK_OK;
}

static void odd_backwards(void **state)
{
    static const trek_function function = { .name = "twice", .forward = twice, .backward = twice_backward };
    trek_timeline *t = profile(0);
    trek_scope scope = trek_scope_begin();
    trek_var *x = filled(2, trek_dims(3), TREK_F32, true), *grad;
    trek_var *y = trek_sum(trek_function_apply_one(&function, NULL, (trek_var *[]){ trek_square(x) }, 1), (trek_dims_list){ 0 },
                           false);
    assert_int_equal(trek_grad(&y, 1, &x, 1, NULL, &(trek_backward_opts){ .create_graph = true }, &grad), TREK_OK);
    assert_int_equal(trek_backward(trek_sum(grad, (trek_dims_list){ 0 }, false)), TREK_OK);
    assert_int_equal(entry_of(t, "twice backward").kind, TREK_TIMELINE_KIND_BACKWARD);
    assert_int_equal(entry_of(t, "square backward").kind, TREK_TIMELINE_KIND_BACKWARD);
    /* An op that fails is told, without shapes; frames stay in order. */
    assert_null(trek_matmul(zeros(trek_dims(2, 3)), zeros(trek_dims(2, 3))));
    trek_error_clear();
    SAME(entry_of(t, "matmul").shapes, "");
    trek_neg(x);
    SAME(entry_of(t, "neg").path, "");
    trek_var_release(x);
    trek_scope_end(scope);
    trek_timeline_free(&t);
}

/* A module whose parts are not reached by trek_forward alone, and one that runs a part of a part. */
typedef struct odd_module {
    trek_module base;
    trek_module *lstm, *net;
} odd_module;

static trek_var *odd_forward(trek_module *self, trek_var *x)
{
    odd_module *m = (odd_module *)self;
    trek_var *y = trek_nn_lstm_forward(m->lstm, x, NULL, NULL, NULL, NULL, NULL);
    return trek_forward(m->net->own->children[2].module, y);
}

static const trek_module_class odd_class = { .name = "odd", .size = sizeof(odd_module), .forward = odd_forward };

static void odd_modules(void **state)
{
    odd_module *m = (odd_module *)trek_module_new(&odd_class);
    trek_module_add(&m->base, "lstm", offsetof(odd_module, lstm), trek_nn_lstm(4, 8, trek_cpu(0)));
    trek_module_add(&m->base, "net", offsetof(odd_module, net), net(trek_cpu(0)));
    trek_timeline *t = profile(0);
    trek_scope scope = trek_scope_begin();
    assert_non_null(trek_forward(&m->base, zeros(trek_dims(3, 2, 4))));
    SAME(entry_of(t, "lstm").path, "odd.lstm");
    SAME(entry_of(t, "tanh").path, "odd.net.2.1");
    trek_forward(m->lstm, zeros(trek_dims(3, 2, 4))); /* alone, it has its class's name */
    SAME(entry_of(t, "lstm").path, "lstm");
    trek_scope_end(scope);
    trek_module *module = &m->base;
    trek_module_free(&module);
    trek_timeline_free(&t);
}

static trek_graph *build(trek_device device, void *arg)
{
    trek_flow *flow = trek_flow_from(trek_nn_linear(4, 4, device));
    trek_flow_through(flow, trek_nn_gelu());
    trek_flow_label(trek_flow_through(flow, net(device)), "head");
    return trek_flow_build(flow);
}

static void graph_step(trek_graph *graph, int64_t samples)
{
    trek_scope scope = trek_scope_begin();
    trek_var *loss = trek_mse_loss(trek_graph_forward(graph, zeros(trek_dims(samples, 4))), zeros(trek_dims(samples, 2)));
    assert_int_equal(trek_graph_backward(graph, loss), TREK_OK);
    assert_int_equal(trek_graph_step(graph), TREK_OK);
    trek_scope_end(scope);
}

static void graphs(void **state)
{
    trek_graph *graph = build(trek_cpu(0), NULL);
    assert_int_equal(trek_graph_set_optimizer(graph, trek_adam(NULL)), TREK_OK);
    trek_timeline *t = profile(0);
    graph_step(graph, 3);
    graph_step(graph, 3);
    int64_t n = averages(t, (trek_timeline_summary_opts){ 0 });
    const trek_timeline_row *forward = row_of(n, "forward", false), *optimizer = row_of(n, "optimizer", false);
    assert_int_equal(forward->calls, 2);
    assert_int_equal(forward->kind, TREK_TIMELINE_KIND_PHASE);
    assert_true(forward->flops == 2 * 2 * 3 * (16 + 32 + 64 + 16)); /* of all that ran in it */
    assert_true(forward->self_ns < forward->total_ns && forward->self_ns >= 0);
    assert_int_equal(optimizer->calls, 2);
    assert_int_equal(row_of(n, "backward", false)->calls, 2);
    const trek_timeline_row *adam = row_of(n, "adam", false);
    assert_int_equal(adam->kind, TREK_TIMELINE_KIND_OP);
    double one = 4 * (double)trek_module_param_count(trek_graph_module(graph)); /* parameters, two states: in and out; gradients:
                                                                                   read and cleared */
    assert_true(adam->calls == 2 && adam->bytes >= 2 * 8 * one && adam->bytes < 2 * 8 * (one + 8 * 1024)); /* with padding */
    assert_true(optimizer->bytes == adam->bytes);
    n = averages(t, (trek_timeline_summary_opts){ .group = TREK_TIMELINE_GROUP_MODULE });
    assert_int_equal(row_of(n, "graph", false)->calls, 2);
    assert_int_equal(row_of(n, "graph.0", false)->calls, 2);
    assert_true(row_of(n, "graph.0", false)->flops == 2 * 2 * 3 * 16);
    assert_int_equal(row_of(n, "graph.head.2.0", true)->calls, 2);
    assert_int_equal(row_of(n, "optimizer", false)->kind, TREK_TIMELINE_KIND_PHASE);
    assert_true(row_of(n, "(outside modules)", false)->calls > 0); /* the loss */
    trek_graph_free(&graph);
    trek_timeline_free(&t);
}

/* --- threads and ranks --------------------------------------------------------------------------- */

enum { THREADS = 4 };
static int each(void) { return test_short() ? 100 : 300; }

static void *work(void *arg)
{
    trek_rank_here.rank = (int)(intptr_t)arg;
    trek_module *m = net(trek_cpu(0));
    for (int k = 0; k < each(); k++)
        one_pass(m);
    trek_module_free(&m);
    return NULL;
}

static void threads(void **state)
{
    trek_timeline *t = trek_timeline_new(&(trek_timeline_opts){ .ops = true, .capacity = 1000 });
    trek_timeline_attach(t);
    pthread_t ids[THREADS];
    for (int k = 0; k < THREADS; k++)
        assert_int_equal(pthread_create(&ids[k], NULL, work, (void *)(intptr_t)k), 0);
    for (int k = 0; k < 20; k++) { /* while they record */
        char *text = trek_timeline_summary(t, NULL);
        assert_non_null(text);
        trek_string_free(&text);
    }
    for (int k = 0; k < THREADS; k++)
        pthread_join(ids[k], NULL);
    assert_int_equal(trek_timeline_count(t), 1000);
    assert_true(trek_timeline_dropped(t) > 0);
    int64_t n = averages(t, (trek_timeline_summary_opts){ 0 });
    assert_int_equal(row_of(n, "tanh", false)->calls, THREADS * each()); /* the sums lost nothing */
    for (int rank = 0; rank < THREADS; rank++) {
        n = averages(t, (trek_timeline_summary_opts){ .group = TREK_TIMELINE_GROUP_MODULE, .one_rank = true, .rank = rank });
        assert_int_equal(row_of(n, "sequential.2.1", false)->calls, each());
        assert_int_equal(row_of(n, "sequential.2.1", true)->calls, each());
    }
    assert_int_equal(averages(t, (trek_timeline_summary_opts){ .one_rank = true, .rank = THREADS }), 0);
    /* On and off and freed while they work. */
    for (int k = 0; k < THREADS; k++)
        assert_int_equal(pthread_create(&ids[k], NULL, work, (void *)(intptr_t)k), 0);
    for (int k = 0; k < 200; k++) {
        trek_timeline_detach(t);
        trek_timeline_clear(t);
        trek_timeline_attach(t);
    }
    trek_timeline_free(&t);
    for (int k = 0; k < THREADS; k++)
        pthread_join(ids[k], NULL);
}

static void ranks(void **state)
{
    trek_timeline *t = trek_timeline_new(&(trek_timeline_opts){ .ops = true });
    trek_graph *graph = build(trek_cpu(0), NULL);
    trek_trainer_opts opts = { .build_replica = build, .ranks = 2, .optimizer = trek_adam(NULL), .timeline = t };
    assert_int_equal(trek_trainer_setup(graph, &opts), TREK_OK);
    graph_step(graph, 8);
    graph_step(graph, 8);
    double flops = 0;
    for (int rank = 0; rank < 2; rank++) {
        int64_t n = averages(t, (trek_timeline_summary_opts){ .group = TREK_TIMELINE_GROUP_MODULE, .one_rank = true,
                                                              .rank = rank });
        assert_int_equal(row_of(n, "graph.head.2.1", false)->calls, 2);
        assert_int_equal(row_of(n, "graph.head.2.0", true)->calls, 2);
        flops += row_of(n, "graph.head.2", false)->flops;
    }
    assert_true(flops == 2 * 2 * 8 * 64);
    int64_t n = averages(t, (trek_timeline_summary_opts){ 0 });
    assert_int_equal(row_of(n, "tanh", false)->calls, 4);
    assert_true(row_of(n, "reduce", false)->calls > 0);
    trek_graph_free(&graph);
    trek_timeline_free(&t);
}

/* --- times of modules, and of devices --------------------------------------------------------------- */

static trek_graph *labelled(trek_device device)
{
    trek_flow *inner = trek_flow_label(trek_flow_from(trek_nn_linear(64, 64, device)), "deep");
    trek_flow *flow = trek_flow_label(trek_flow_from(trek_nn_linear(64, 64, device)), "first");
    trek_flow_label(trek_flow_through(flow, trek_graph_module(trek_flow_build(inner))), "second");
    return trek_flow_build(flow);
}

static void train(trek_graph *graph, int passes)
{
    for (int k = 0; k < passes; k++) {
        trek_scope scope = trek_scope_begin();
        trek_var *x = trek_var_from(trek_tensor_ones(trek_dims(32, 64), TREK_F32, test_device()));
        trek_var *y = trek_graph_forward(graph, x);
        assert_int_equal(trek_graph_backward(graph, trek_mean(y, (trek_dims_list){ 0 }, false)), TREK_OK);
        assert_int_equal(trek_graph_step(graph), TREK_OK);
        trek_scope_end(scope);
    }
}

/* A timing trend: what each epoch's modules took. */
static void recorded_times(void **state)
{
    trek_graph *graph = labelled(test_device());
    assert_int_equal(trek_graph_set_optimizer(graph, trek_sgd(&(trek_sgd_opts){ .lr = 0.1 })), TREK_OK);
    trek_timeline *t = profile(0), *plain = trek_timeline_new(NULL);
    for (int epoch = 0; epoch < 3; epoch++) {
        train(graph, 4);
        trek_graph_forward(graph, NULL); /* a call that fails is none */
        trek_error_clear();
        int64_t n = averages(t, (trek_timeline_summary_opts){ .group = TREK_TIMELINE_GROUP_MODULE });
        const trek_timeline_row *first = row_of(n, "graph.first", false), *back = row_of(n, "graph.first", true);
        assert_int_equal(first->calls, 4);
        double ms = (double)first->total_ns / 4e6, back_ms = (double)back->total_ns / 4e6;
        assert_int_equal(trek_graph_record_times(graph, t, epoch == 2 ? TREK_OFF : 0), TREK_OK);
        trek_timeline_clear(t);
        assert_int_equal(trek_graph_flush(graph), TREK_OK);
        assert_float_equal(trek_graph_latest(graph, "ms.first"), ms, 1e-9);
        assert_float_equal(trek_graph_latest(graph, "ms.first.backward"), back_ms, 1e-9);
    }
    assert_int_equal(trek_trend_count(trek_graph_trend_at(graph, "ms.first")), 3);
    assert_int_equal(trek_trend_count(trek_graph_trend_at(graph, "ms.second")), 3);
    assert_int_equal(trek_trend_count(trek_graph_trend_at(graph, "ms.second.deep")), 1); /* asked for once */
    FAILS(trek_graph_record_times(graph, plain, 0), TREK_ERR_STATE, "");
    FAILS(trek_graph_record_times(graph, t, -2), TREK_ERR_ARGUMENT, "");
    FAILS(trek_graph_record_times(graph, NULL, 0), TREK_ERR_ARGUMENT, "");
    trek_timeline_free(&plain);
    trek_timeline_free(&t);
    trek_graph_free(&graph);
}

/* On a GPU each op is measured once, by its outermost call, whatever the number of ops; on CPUs nothing is. */
static void device_times(void **state)
{
    trek_graph *graph = labelled(test_device());
    assert_int_equal(trek_graph_set_optimizer(graph, trek_adam(&(trek_adam_opts){ .lr = 0.1 })), TREK_OK);
    trek_timeline *t = trek_timeline_new(&(trek_timeline_opts){ .ops = true, .device_times = true });
    assert_int_equal(trek_timeline_attach(t), TREK_OK);
    train(graph, test_on_cpu() ? 4 : 400); /* more ops than there are pairs of events */
    trek_timeline_detach(t);
    int64_t by_op = 0, n = averages(t, (trek_timeline_summary_opts){ .sort = TREK_TIMELINE_SORT_DEVICE });
    for (int64_t k = 0; k < n; k++) {
        by_op += rows[k].device_ns;
        assert_true(rows[k].device_ns >= 0 && (k == 0 || rows[k].device_ns <= rows[k - 1].device_ns));
    }
    int64_t again = 0;
    n = averages(t, (trek_timeline_summary_opts){ .sort = TREK_TIMELINE_SORT_DEVICE });
    for (int64_t k = 0; k < n; k++)
        again += rows[k].device_ns;
    assert_int_equal(by_op, again); /* read once */
    n = averages(t, (trek_timeline_summary_opts){ .group = TREK_TIMELINE_GROUP_MODULE });
    const trek_timeline_row first = *row_of(n, "graph.first", false), back = *row_of(n, "graph.first", true),
        all = *row_of(n, "graph", false);
    char *text = trek_timeline_summary(t, NULL);
    if (test_on_cpu()) {
        assert_int_equal(by_op, 0);
        assert_null(strstr(text, "device ms"));
    } else {
        assert_true(first.device_ns > 0 && back.device_ns > 0 && all.device_ns >= first.device_ns && by_op >= all.device_ns);
        assert_non_null(strstr(text, "device ms"));
        assert_non_null(strstr(text, "on devices: "));
        assert_int_equal(trek_graph_record_times(graph, t, 0), TREK_OK);
        assert_int_equal(trek_graph_flush(graph), TREK_OK);
        assert_float_equal(trek_graph_latest(graph, "ms.first"), (double)first.device_ns / 1e6 / (double)first.calls, 1e-9);
    }
    trek_string_free(&text);
    trek_timeline_clear(t);
    assert_int_equal(averages(t, (trek_timeline_summary_opts){ 0 }), 0);
    trek_timeline_attach(t);
    train(graph, 1);
    trek_timeline_free(&t); /* with events that nobody has read */
    trek_graph_free(&graph);
    assert_int_equal(trek_error_status(), TREK_OK);
}

/* --- off, limits, mistakes ------------------------------------------------------------------------- */

static void off(void **state)
{
    trek_var *x = zeros(trek_dims(3));
    trek_timeline *t = profile(0), *plain = trek_timeline_new(NULL);
    assert_true(trek_trace_records());
    trek_neg(x);
    int64_t count = trek_timeline_count(t);
    assert_int_equal(count, 1);
    trek_timeline_detach(t);
    assert_false(trek_trace_records());
    trek_neg(x);
    assert_int_equal(trek_timeline_count(t), count);
    trek_timeline_attach(plain); /* without ops: as ever */
    assert_false(trek_trace_records());
    trek_neg(x);
    trek_trace_end("phase", trek_trace_enter("phase"), 7);
    assert_int_equal(trek_timeline_count(plain), 1);
    trek_timeline_attach(t);
    trek_timeline_attach(plain); /* takes its place */
    trek_neg(x);
    assert_int_equal(trek_timeline_count(t), count);
    trek_timeline_free(&plain);
    /* A span that began before, one of a program's own with ops in it, one that is never ended. */
    int64_t start = trek_clock_ns();
    trek_timeline_attach(t);
    trek_timeline_clear(t);
    trek_trace_end("early", start, 0);
    trek_timeline_span span = trek_timeline_begin(t);
    trek_trace_enter("lost");
    trek_neg(x);
    trek_timeline_end(t, "mine", span);
    trek_neg(x);
    int64_t n = averages(t, (trek_timeline_summary_opts){ .sort = TREK_TIMELINE_SORT_NAME });
    assert_int_equal(n, 3);
    SAME(rows[0].name, "early");
    SAME(rows[1].name, "mine");
    assert_int_equal(rows[2].calls, 2);
    for (int k = 0; k < 5000; k++)
        trek_trace_enter("lost");
    span = trek_timeline_begin(t);
    trek_neg(x);
    trek_timeline_end(t, "deep", span);
    trek_timeline_entry deep = entry_of(t, "deep");
    assert_int_equal(deep.self_ns, deep.end_ns - deep.start_ns); /* nothing is known of its inside */
    trek_timeline_free(&t);
}

static void limits(void **state)
{
    enum { ROWS = 8, LENGTHS = 40 };
    trek_timeline *t = trek_timeline_new(&(trek_timeline_opts){ .ops = true, .rows = ROWS, .capacity = 10 });
    trek_scope scope = trek_scope_begin();
    trek_var *x = zeros(trek_dims(LENGTHS));
    trek_timeline_attach(t);
    for (int k = 1; k <= LENGTHS; k++)
        trek_neg(trek_narrow(x, 0, 0, k));
    for (int k = 0; k < 100; k++) { /* names without end */
        char name[32];
        snprintf(name, sizeof name, "span %d", k);
        trek_timeline_end(t, name, trek_timeline_begin(t));
    }
    trek_scope_end(scope);
    assert_int_equal(trek_timeline_count(t), 10);
    int64_t n = averages(t, (trek_timeline_summary_opts){ .group = TREK_TIMELINE_GROUP_SHAPES }), calls = 0, negs = 0;
    double bytes = 0;
    bool other = false;
    for (int64_t k = 0; k < n; k++) {
        calls += rows[k].calls;
        negs += strcmp(rows[k].name, "neg") == 0 ? rows[k].calls : 0;
        bytes += rows[k].bytes;
        other |= strcmp(rows[k].shapes, "(other)") == 0;
    }
    assert_true(n <= 3 * ROWS + 16);
    assert_true(other);
    assert_int_equal(calls, 2 * LENGTHS + 100); /* nothing is lost */
    assert_int_equal(negs, LENGTHS);
    assert_true(bytes == 8 * LENGTHS * (LENGTHS + 1) / 2);
    trek_timeline_clear(t);
    assert_int_equal(averages(t, (trek_timeline_summary_opts){ 0 }), 0);
    trek_timeline_free(&t);
}

static void expect_mistake(trek_timeline *t, trek_timeline_summary_opts opts, trek_status status, const char *part)
{
    assert_int_equal(trek_timeline_averages(t, &opts, rows, ROOM), -1);
    assert_int_equal(trek_error_status(), status);
    assert_non_null(strstr(trek_error(), part));
    trek_error_clear();
    REFUSED(trek_timeline_summary(t, &opts), status, "");
}

static void mistakes(void **state)
{
    trek_timeline *t = profile(0), *plain = trek_timeline_new(NULL);
    expect_mistake(NULL, (trek_timeline_summary_opts){ 0 }, TREK_ERR_ARGUMENT, "timeline: NULL");
    expect_mistake(plain, (trek_timeline_summary_opts){ 0 }, TREK_ERR_STATE, "without .ops");
    expect_mistake(t, (trek_timeline_summary_opts){ .group = (trek_timeline_group)3 }, TREK_ERR_ARGUMENT, ".group: 3");
    expect_mistake(t, (trek_timeline_summary_opts){ .sort = (trek_timeline_sort)-1 }, TREK_ERR_ARGUMENT, ".sort: -1");
    expect_mistake(t, (trek_timeline_summary_opts){ .rows = -2 }, TREK_ERR_ARGUMENT, ".rows: -2");
    expect_mistake(t, (trek_timeline_summary_opts){ .one_rank = true, .rank = -1 }, TREK_ERR_ARGUMENT, ".rank: -1");
    assert_int_equal(trek_timeline_averages(t, NULL, rows, -1), -1);
    trek_error_clear();
    assert_int_equal(trek_timeline_averages(t, NULL, NULL, 1), -1);
    trek_error_clear();
    assert_int_equal(trek_timeline_averages(t, NULL, NULL, 0), 0);
    REFUSED(trek_timeline_new(&(trek_timeline_opts){ .ops = true, .rows = -1 }), TREK_ERR_ARGUMENT, "");
    assert_null(trek_timeline_new(&(trek_timeline_opts){ .ops = true, .rows = (int64_t)1 << 40 }));
    trek_error_clear();
    FAILS(trek_measure_peak(NULL), TREK_ERR_ARGUMENT, "");
    trek_timeline_free(&plain);
    trek_timeline_free(&t);
}

/* --- sorting, text, trace, peak ----------------------------------------------------------------------- */

static void sorting(void **state)
{
    trek_timeline *t = profile(0);
    trek_module *m = net(trek_cpu(0));
    one_pass(m);
    for (int sort = 0; sort <= TREK_TIMELINE_SORT_NAME; sort++) {
        int64_t n = averages(t, (trek_timeline_summary_opts){ .sort = (trek_timeline_sort)sort });
        assert_true(n > 5);
        for (int64_t k = 1; k < n; k++) {
            const trek_timeline_row *a = &rows[k - 1], *b = &rows[k];
            bool ordered[] = { a->self_ns >= b->self_ns, a->total_ns >= b->total_ns,
                               (double)a->total_ns / (double)a->calls >= (double)b->total_ns / (double)b->calls,
                               a->calls >= b->calls, a->flops >= b->flops, a->bytes >= b->bytes, strcmp(a->name, b->name) < 0 };
            assert_true(ordered[sort]);
        }
    }
    assert_int_equal(trek_timeline_averages(t, NULL, rows, 2), trek_timeline_averages(t, NULL, NULL, 0)); /* all are counted */
    trek_module_free(&m);
    trek_timeline_free(&t);
}

static int lines_of(const char *text)
{
    int n = 0;
    for (; (text = strchr(text, '\n')); text++)
        n++;
    return n;
}

static void text(void **state)
{
    setlocale(LC_ALL, "de_DE.UTF-8"); /* where it is installed, the decimal point is a comma */
    trek_timeline *t = profile(0);
    trek_module *m = net(trek_cpu(0));
    one_pass(m);
    trek_timeline_detach(t);
    char *table = trek_timeline_summary(t, &(trek_timeline_summary_opts){ .rows = 3 });
    assert_non_null(table);
    assert_int_equal(lines_of(table), 1 + 3 + 2);
    assert_non_null(strstr(table, "GFLOP/s"));
    assert_null(strstr(table, "% peak"));
    assert_non_null(strstr(table, " more, together "));
    for (const char *c = table; (c = strchr(c, ',')); c++)
        assert_int_equal(c[1], ' ');
    trek_string_free(&table);
    table = trek_timeline_summary(t, &(trek_timeline_summary_opts){ .group = TREK_TIMELINE_GROUP_MODULE, .rows = TREK_OFF,
                                                                    .peak = true });
    setlocale(LC_ALL, "C");
    assert_non_null(table);
    assert_non_null(strstr(table, "\nsequential.2.0 (backward) "));
    assert_non_null(strstr(table, "% peak"));
    assert_non_null(strstr(table, "\npeak: "));
    trek_string_free(&table);
    table = trek_timeline_summary(t, &(trek_timeline_summary_opts){ .group = TREK_TIMELINE_GROUP_SHAPES, .rows = TREK_OFF });
    assert_non_null(strstr(table, "  f32[3, 8] f32[8, 8] f32[8] -> f32[3, 8]\n"));
    trek_string_free(&table);
    trek_module_free(&m);
    trek_timeline_free(&t);
}

static void trace(void **state)
{
    char folder[] = "/tmp/trek-profile-XXXXXX", path[64];
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/trace.json", folder);
    trek_timeline *t = profile(0);
    trek_module *m = net(trek_cpu(0));
    one_pass(m);
    assert_int_equal(trek_timeline_save(t, path), TREK_OK);
    static char data[1 << 18];
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    data[fread(data, 1, sizeof data - 1, file)] = 0;
    fclose(file);
    assert_non_null(strstr(data, "\"cat\":\"op\",\"args\":{\"module\":\"sequential.2.0\",\"pass\":\"forward\","
                                 "\"shapes\":\"f32[3, 8] f32[8, 8] f32[8] -> f32[3, 8]\",\"flops\":384,\"bytes\":480}}"));
    assert_non_null(strstr(data, "{\"name\":\"linear backward\",\"ph\":\"X\""));
    assert_non_null(strstr(data, "\"cat\":\"module\",\"args\":{\"module\":\"sequential.2.1\",\"pass\":\"forward\"}}"));
    remove(path);
    rmdir(folder);
    trek_module_free(&m);
    trek_timeline_free(&t);
}

static void peak(void **state)
{
    trek_peak first, second;
    assert_int_equal(trek_measure_peak(&first), TREK_OK);
    assert_true(first.threads >= 1 && first.flops > 1e8 && first.bytes > 1e7);
    assert_int_equal(trek_measure_peak(&second), TREK_OK);
    assert_memory_equal(&first, &second, sizeof first); /* remembered */
}

/* Every allocation fails: an error or a whole answer, and nothing is lost. */
static void no_memory(void **state)
{
    test_memory.fail_count = 2; /* it is asked twice */
    trek_timeline *t = NULL;
    int64_t k = 0;
    while (!t) {
        test_allocator_restart(++k);
        t = trek_timeline_new(&(trek_timeline_opts){ .ops = true, .rows = 64, .capacity = 8 });
        assert_int_equal(trek_error_status(), t ? TREK_OK : TREK_ERR_MEMORY);
        trek_error_clear();
    }
    assert_in_range(k, 4, 8);
    test_allocator_restart(0);
    trek_timeline_end(t, "mine", trek_timeline_begin(t));
    char *table = NULL;
    for (k = 0; !table;) {
        test_allocator_restart(++k);
        table = trek_timeline_summary(t, &(trek_timeline_summary_opts){ .peak = true });
        assert_int_equal(trek_error_status(), table ? TREK_OK : TREK_ERR_MEMORY);
        trek_error_clear();
    }
    assert_in_range(k, 5, 100);
    test_allocator_restart(0);
    assert_int_equal(trek_timeline_averages(t, NULL, NULL, 0), 1);
    trek_string_free(&table);
    trek_timeline_free(&t);
}

/* What a GPU works off later has the host's times, and no rates. */
static void on_device(void **state)
{
    trek_timeline *t = profile(0);
    trek_trace_end_pass(trek_trace_begin_op("adam"), 1e6, true);
    assert_int_equal(averages(t, (trek_timeline_summary_opts){ 0 }), 1);
    assert_true(rows[0].on_device && rows[0].bytes == 1e6);
    char *table = trek_timeline_summary(t, NULL);
    assert_non_null(strstr(table, "        -        -\n"));
    assert_non_null(strstr(table, "ops on a GPU: "));
    trek_string_free(&table);
    trek_timeline_free(&t);
}

int main(void)
{
    test_allocator_use();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(costs_of_products), cmocka_unit_test(costs_of_convolutions), cmocka_unit_test(costs_of_attention),
        cmocka_unit_test(costs_of_recurrences), cmocka_unit_test(costs_of_moves), cmocka_unit_test(nested_modules),
        cmocka_unit_test(odd_backwards), cmocka_unit_test(odd_modules), cmocka_unit_test(on_device), cmocka_unit_test(graphs),
        cmocka_unit_test(threads), cmocka_unit_test(ranks), cmocka_unit_test(recorded_times), cmocka_unit_test(device_times),
        TEST(off), cmocka_unit_test(limits), cmocka_unit_test(mistakes), cmocka_unit_test(sorting),
        cmocka_unit_test(text), cmocka_unit_test(trace), cmocka_unit_test(no_memory), cmocka_unit_test(peak),
    };
    return cmocka_run_group_tests_name("profile", tests, NULL, NULL);
}
