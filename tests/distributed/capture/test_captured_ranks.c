/* SPDX-License-Identifier: Apache-2.0 */
/* Captured steps over several GPUs of a process against the same steps called one by one, bit for bit, on every
 * rank; what a record over ranks must notice; failures of one rank. On CPU ranks nothing is recorded, and everything must
 * come out alike. */
#include "autograd/function.h"
#include "autograd/ops.h"
#include "autograd/var_internal.h"
#include "distributed/balance/plan.h"
#include "distributed/stepper_internal.h"
#include "distributed/trainer.h"
#include "graph/amp.h"
#include "graph/capture.h"
#include "graph/flow.h"
#include "nn/layers.h"
#include "nn/module_tree.h"
#include "optim/scaler.h"
#include "tensor/rank_context.h"
#include "tests/support/clean.h"
#include "tests/support/refused.h"
#include "tests/support/support.h"

enum { BATCH = 26, FEATURES = 12, HIDDEN = 40, CLASSES = 5, STEPS = 18, MOST_RANKS = 3 };
enum { FIRST = 4 };            /* calls before replays */

static int ranks_there(void)
{
    int n = test_on_cpu() ? MOST_RANKS : trek_device_count(TREK_CUDA);
    return n < MOST_RANKS ? n : MOST_RANKS;
}

/* --- a layer that one rank fails in, or to which it brings something of its own ------------------- */

static struct {
    bool on;                  /* rank 1's forwards fail */
    trek_var *factor;         /* of rank 1's forwards, on its device; NULL: 1 */
} failing;

static trek_status same_forward(trek_function_context *context, trek_var *const *inputs, int n_inputs, trek_var **outputs,
                                int n_outputs)
{
    if (failing.on && trek_rank_here.rank == 1)
        return trek_fail(TREK_ERR_CALLBACK, "it was told to fail");
    bool has = failing.factor && trek_rank_here.rank == 1;
    outputs[0] = has ? trek_mul(inputs[0], failing.factor) : trek_mul_scalar(inputs[0], 1);
    return trek_error_status();
}

static trek_status same_backward(trek_function_context *context, trek_var *const *grads, int n_grads, trek_var **input_grads,
                                 int n_inputs)
{
    input_grads[0] = trek_mul_scalar(grads[0], 1);
    return trek_error_status();
}

static const trek_function same = { "same", same_forward, same_backward, NULL };

static trek_var *forward_same(trek_module *self, trek_var *x)
{
    return trek_function_apply_one(&same, NULL, &x, 1);
}

static const trek_module_class same_class = { .name = "same", .size = sizeof(trek_module), .forward = forward_same };

/* --- models and their step ---------------------------------------------------------------------- */

typedef struct kind {
    int world;
    bool norm, overflows;      /* norm: batch norm, whose buffers are merged; overflows: a step is skipped */
    bool sgd;
    trek_dtype dtype;
    const int *rows;           /* [STEPS] NULL: BATCH */
    const trek_plan *plan;     /* of shares; NULL: equal ones */
} kind;

static trek_graph *build(trek_device device, void *arg)
{
    const kind *c = arg;
    trek_linear_opts first = { .in = FEATURES, .out = HIDDEN, .device = device, .dtype = c->dtype };
    trek_linear_opts middle = { .in = HIDDEN, .out = HIDDEN, .device = device, .dtype = c->dtype };
    trek_linear_opts last = { .in = HIDDEN, .out = CLASSES, .device = device, .dtype = c->dtype };
    trek_flow *flow = trek_flow_from(trek_nn_linear_with(&first));
    if (c->norm)
        flow = trek_flow_through(flow, trek_nn_batch_norm1d_with(&(trek_batch_norm_opts){ .features = HIDDEN, .device = device,
                                                                                          .dtype = c->dtype }));
    flow = trek_flow_through(flow, trek_nn_relu());
    flow = trek_flow_through(flow, trek_nn_dropout(0.3));
    flow = trek_flow_tag(flow, "hidden");
    flow = trek_flow_through(flow, trek_nn_linear_with(&middle));
    flow = trek_flow_through(flow, trek_module_new(&same_class));
    flow = trek_flow_through(flow, trek_nn_relu());
    return trek_flow_build(trek_flow_through(flow, trek_nn_linear_with(&last)));
}

static trek_device device_of(int rank) { return test_on_cpu() ? trek_cpu(rank) : trek_cuda(rank); }

static trek_graph *new_trained(const kind *c)
{
    trek_device devices[MOST_RANKS];
    for (int r = 0; r < c->world; r++)
        devices[r] = device_of(r);
    trek_seed(41);
    trek_graph *graph = build(devices[0], (void *)(uintptr_t)c);
    assert_non_null(graph);
    trek_trainer_opts opts = { .build_replica = build, .arg = (void *)(uintptr_t)c, .devices = devices, .ranks = c->world,
                               .plan = c->plan, .balance = TREK_OFF, .max_anchor = TREK_OFF, .bucket_bytes = 1500,
                               .max_grad_norm = 0.4,
                               .optimizer = c->sgd ? trek_sgd(&(trek_sgd_opts){ .lr = 0.05, .momentum = 0.9 })
                               : trek_adamw(&(trek_adam_opts){ .lr = 0.05 }),
                               .amp = { .scaling = 1, .scaler = { .init_scale = 1024, .growth_interval = 4 } } };
    SUCCEEDS(trek_trainer_setup(graph, &opts));
    trek_schedule schedule = trek_cosine_lr(0.05, STEPS, 1e-4);
    assert_int_equal(trek_graph_set_schedule(graph, &schedule), TREK_OK);
    return graph;
}

typedef struct job {
    trek_var *x, *y;           /* for a run without capture; NULL: the captured inputs */
    trek_var *loss;            /* of a run without capture, retained */
    int calls;
    bool fails;                /* before its step */
} job;

static trek_status one_step(trek_graph *graph, void *arg)
{
    job *j = arg;
    j->calls++;
    trek_var *x = j->x ? j->x : trek_graph_captured_input(graph, 0), *y = j->y ? j->y : trek_graph_captured_input(graph, 1);
    trek_var *loss = trek_cross_entropy(trek_cast(trek_graph_forward(graph, x), TREK_F32), y);
    if (j->x) {
        trek_var_release(j->loss);
        j->loss = loss ? trek_var_retain(trek_var_detach(loss)) : NULL;
    } else {
        trek_graph_capture_output(graph, 0, loss);
    }
    trek_graph_backward(graph, loss);
    return j->fails ? trek_fail(TREK_ERR_CALLBACK, "it was told to fail") : trek_graph_step(graph);
}

static void make_batch(const kind *c, int k, int rows, trek_var **x, trek_var **y)
{
    float *data = malloc((size_t)(rows * FEATURES + 1) * sizeof *data);
    int64_t labels[BATCH];
    assert_non_null(data);
    for (int i = 0; i < rows * FEATURES; i++)
        data[i] = 2 * test_number(100u + (uint32_t)k, (uint32_t)i);
    if (c->overflows && k == STEPS - 5)
        data[rows * FEATURES - 1] = INFINITY; /* of the last rank */
    for (int i = 0; i < rows; i++)
        labels[i] = (i * 7 + k) % CLASSES;
    *x = trek_cast(trek_var_from(trek_tensor_from_data(data, trek_dims(rows, FEATURES), TREK_F32, device_of(0))), c->dtype);
    *y = trek_var_from(trek_tensor_from_data(labels, trek_dims(rows), TREK_I64, device_of(0)));
    free(data);
    assert_non_null(*x);
    assert_non_null(*y);
}

typedef struct trace {
    float loss[STEPS];
    double lr[STEPS], norm[STEPS], scale[STEPS], hidden[STEPS];
} trace;

static float item_of(trek_var *loss)
{
    float value = NAN;
    assert_non_null(loss);
    assert_int_equal(trek_tensor_to_host(trek_var_data(loss), TREK_F32, &value, sizeof value), TREK_OK);
    return value;
}

static trek_status call_step(trek_graph *graph, bool captured, trek_var *x, trek_var *y, job *j)
{
    if (!captured) {
        j->x = x;
        j->y = y;
        return one_step(graph, j);
    }
    assert_int_equal(trek_graph_capture_input(graph, 0, x), TREK_OK);
    assert_int_equal(trek_graph_capture_input(graph, 1, y), TREK_OK);
    return trek_graph_capture(graph, one_step, j);
}

/* Steps [from, to). */
static void train(trek_graph *graph, const kind *c, bool captured, int from, int to, trace *t, job *j)
{
    for (int k = from; k < to; k++) {
        trek_scope scope = trek_scope_begin();
        trek_var *x, *y;
        make_batch(c, k, c->rows ? c->rows[k] : BATCH, &x, &y);
        if (call_step(graph, captured, x, y, j) != TREK_OK)
            fail_msg("step %d: %s", k, trek_error());
        t->loss[k] = item_of(captured ? trek_graph_captured_output(graph, 0) : j->loss);
        t->lr[k] = trek_graph_lr(graph);
        t->norm[k] = trek_graph_grad_norm(graph);
        t->scale[k] = trek_grad_scaler_value(trek_graph_scaler(graph));
        trek_var *hidden = trek_graph_tagged(graph, "hidden");
        assert_non_null(hidden);
        t->hidden[k] = trek_var_item(trek_sum(trek_cast(hidden, TREK_F32), trek_dims_all(), false));
        trek_scope_end(scope);
    }
}

static void end_job(job *j)
{
    trek_var_release(j->loss);
    j->loss = NULL;
}

typedef struct values {
    const char *names[32];
    trek_var *of[32];
    int n;
} values;

static trek_status list_value(const char *name, trek_var *var, void *arg)
{
    values *v = arg;
    assert_true(v->n < 32);
    v->names[v->n] = name;
    v->of[v->n++] = var;
    return TREK_OK;
}

/* Of both graphs, on all ranks: parameters and buffers, each rank's against rank 0's, too. */
static void assert_same_values(trek_graph *a, trek_graph *b, int world)
{
    for (int r = 0; r < world; r++) {
        values one = { .n = 0 }, other = { .n = 0 }, first = { .n = 0 };
        trek_graph *graphs[3] = { trek_graph_replica(a, r), trek_graph_replica(b, r), a };
        values *lists[3] = { &one, &other, &first };
        for (int g = 0; g < 3; g++) {
            trek_module_each_param(trek_graph_module(graphs[g]), list_value, lists[g]);
            trek_module_each_buffer(trek_graph_module(graphs[g]), list_value, lists[g]);
        }
        assert_true(one.n > 3 && one.n == other.n);
        for (int k = 0; k < one.n; k++) {
            if (!test_same_bits(trek_var_data(one.of[k]), trek_var_data(other.of[k])))
                fail_msg("rank %d: %d of the graphs differs", r, k);
            if (!test_same_bits(trek_var_data(one.of[k]), trek_var_data(first.of[k])))
                fail_msg("rank %d: %d differs from rank 0's", r, k);
        }
    }
}

static bool same_number(double a, double b) { return a == b || (isnan(a) && isnan(b)); }

static void assert_same_traces(const trace *a, const trace *b)
{
    for (int k = 0; k < STEPS; k++) {
        if (!same_number((double)a->loss[k], (double)b->loss[k]))
            fail_msg("step %d: the losses are %.9g and %.9g", k, (double)a->loss[k], (double)b->loss[k]);
        if (!same_number(a->lr[k], b->lr[k]) || !same_number(a->norm[k], b->norm[k]) || !same_number(a->scale[k], b->scale[k]))
            fail_msg("step %d: rates %.17g, %.17g, norms %.17g, %.17g, scales %g, %g", k, a->lr[k], b->lr[k], a->norm[k],
                     b->norm[k], a->scale[k], b->scale[k]);
        if (!same_number(a->hidden[k], b->hidden[k]))
            fail_msg("step %d: sums of what is tagged are %.17g and %.17g", k, a->hidden[k], b->hidden[k]);
    }
}

static void assert_recorded(trek_graph *graph, int64_t replays)
{
    if (test_on_cpu()) {
        assert_int_equal(trek_graph_replays(graph), 0);
        assert_string_equal(trek_graph_capture_problem(graph), "the device is a CPU");
        return;
    }
    assert_string_equal(trek_graph_capture_problem(graph), "");
    assert_int_equal(trek_graph_replays(graph), replays);
}

/* Steps that were called and captured ones have come to the same. Frees the graphs. */
static void end_alike(trek_graph **graphs, const trace *t, int world)
{
    assert_same_traces(&t[0], &t[1]);
    assert_same_values(graphs[0], graphs[1], world);
    trek_graph_free(&graphs[0]);
    trek_graph_free(&graphs[1]);
}

static void compare(const kind *c, int64_t replays, int calls)
{
    static trace plain, captured;
    job a = { 0 }, b = { 0 };
    trek_graph *one = new_trained(c);
    train(one, c, false, 0, STEPS, &plain, &a);
    uint64_t rng_step = trek_rank_here.rng_step;
    trek_graph *other = new_trained(c);
    train(other, c, true, 0, STEPS, &captured, &b);
    assert_int_equal(trek_rank_here.rng_step, rng_step);
    assert_int_equal(trek_graph_steps(other), STEPS);
    assert_same_traces(&plain, &captured);
    assert_same_values(one, other, c->world);
    assert_recorded(other, replays);
    if (!test_on_cpu())
        assert_int_equal(b.calls, calls);
    assert_true(plain.loss[0] != plain.loss[STEPS - 1]);
    if (c->overflows)
        assert_true(plain.scale[STEPS - 5] < plain.scale[STEPS - 6]);
    end_job(&a);
    trek_graph_free(&one);
    trek_graph_free(&other);
}

static void test_same_bits_as_called(void **state)
{
    if (ranks_there() < 2)
        skip();
    for (int world = 2; world <= ranks_there(); world++)
        compare(&(kind){ .world = world }, STEPS - FIRST, FIRST);
}

/* The host merges the statistics after each replay. */
static void test_buffers(void **state)
{
    if (ranks_there() < 2)
        skip();
    for (int world = 2; world <= ranks_there(); world++)
        compare(&(kind){ .world = world, .norm = true }, STEPS - FIRST, FIRST);
}

static void test_overflow(void **state)
{
    if (ranks_there() < 2)
        skip();
    compare(&(kind){ .world = 2, .overflows = true }, STEPS - FIRST, FIRST);
}

static void test_low_precision(void **state)
{
    if (ranks_there() < 2)
        skip();
    compare(&(kind){ .world = 2, .dtype = TREK_BF16 }, STEPS - FIRST, FIRST);
}

/* The last batch of an epoch is smaller, and one has fewer rows than there are ranks: records of their own. */
static void test_shapes(void **state)
{
    int rows[STEPS];
    for (int k = 0; k < STEPS; k++)
        rows[k] = k % 5 == 4 ? BATCH / 2 - 2 : k == 11 || k == 12 || k == 13 ? 1 : BATCH;
    /* whole ones: 12, 4 of them called; halves: 3; single rows: 3; of these one is called and one recorded */
    if (ranks_there() < 2)
        skip();
    compare(&(kind){ .world = ranks_there(), .rows = rows }, 8 + 1 + 1, 4 + 2 + 2);
}

/* Shares by a plan: it goes on while steps are replayed, and where it has others, the step is recorded anew. */
static void test_plan(void **state)
{
    if (ranks_there() < 2)
        skip();
    trek_plan *plan = trek_plan_new(2);
    const int64_t from[] = { 0, 9, 15 };
    const double shares[][2] = { { 0.5, 0.5 }, { 0.25, 0.75 }, { 0.5, 0.5 } };
    for (int k = 0; k < 3; k++)
        assert_int_equal(trek_plan_add_shares(plan, from[k], shares[k]), TREK_OK);
    /* of 9 steps 4 are called, the recorded one with them; then 2 of 6; then 2 of 3 */
    compare(&(kind){ .world = 2, .norm = true, .plan = plan }, 5 + 4 + 1, 4 + 2 + 2);
    trek_plan_free(&plan);
}

/* --- changes between replays -------------------------------------------------------------------------- */

static void test_changes(void **state)
{
    static trace t[2];
    kind c = { .world = ranks_there() };
    trek_graph *graphs[2];
    if (c.world < 2)
        skip();
    for (int g = 0; g < 2; g++) {
        job j = { 0 }, called = { 0 };
        trek_graph *graph = graphs[g] = new_trained(&c);
        train(graph, &c, g, 0, 8, &t[g], &j);
        train(graph, &c, false, 8, 9, &t[g], &called);                      /* a step as usual between replays */
        train(graph, &c, g, 9, 11, &t[g], &j);
        assert_int_equal(trek_graph_freeze(graph, "0"), TREK_OK);
        train(graph, &c, g, 11, 14, &t[g], &j);
        assert_int_equal(trek_graph_thaw(graph, "0"), TREK_OK);
        train(graph, &c, g, 14, 16, &t[g], &j);
        trek_grad_scaler_state scaler; /* whose new scale all ranks' devices must have */
        assert_int_equal(trek_grad_scaler_save(trek_graph_scaler(graph), &scaler), TREK_OK);
        scaler.scale = 64;
        assert_int_equal(trek_grad_scaler_load(trek_graph_scaler(graph), &scaler), TREK_OK);
        assert_int_equal(trek_graph_set_clip(graph, 0.1, 0.05), TREK_OK);
        train(graph, &c, g, 16, STEPS, &t[g], &j);
        end_job(&j);
        end_job(&called);
    }
    /* 4 + 4; then 2; frozen: called, recorded, replayed; thawed: the same, and one more */
    assert_recorded(graphs[1], 4 + 2 + 1 + 2);
    end_alike(graphs, t, c.world);
}

/* Who trains the graph goes, and what was recorded with it; ranks of another number come. */
static void test_set_up_again(void **state)
{
    static trace t[2];
    kind c = { .world = 2 };
    trek_graph *graphs[2];
    if (ranks_there() < 2)
        skip();
    for (int g = 0; g < 2; g++) {
        job j = { 0 };
        graphs[g] = new_trained(&c);
        train(graphs[g], &c, g, 0, 8, &t[g], &j);
        trek_device devices[2] = { device_of(0), device_of(1) };
        trek_trainer_opts opts = { .build_replica = build, .arg = &c, .devices = devices, .ranks = 2, .balance = TREK_OFF,
                                   .max_anchor = TREK_OFF, .optimizer = trek_sgd(&(trek_sgd_opts){ .lr = 0.05 }) };
        assert_int_equal(trek_trainer_setup(graphs[g], &opts), TREK_OK);
        train(graphs[g], &c, g, 8, STEPS, &t[g], &j);
        end_job(&j);
    }
    if (!test_on_cpu())
        assert_true(trek_graph_replays(graphs[1]) > 4);
    end_alike(graphs, t, c.world);
}

/* --- failures ---------------------------------------------------------------------------------------- */

static void silent(trek_log_level level, const char *message, void *arg) { (void)level, (void)message, (void)arg; }

/* A rank fails in a step's forward: in a called one, and in the one that is recorded. Then it goes on. */
static void test_rank_fails(void **state)
{
    static trace t[2];
    kind c = { .world = ranks_there() };
    trek_graph *graphs[2];
    if (c.world < 2)
        skip();
    trek_log_set(TREK_LOG_LEVEL_WARNING, silent, NULL);
    for (int g = 0; g < 2; g++) {
        job j = { 0 };
        graphs[g] = new_trained(&c);
        for (int at = 2; at <= 3; at++) {
            train(graphs[g], &c, g, at == 2 ? 0 : 2, at, &t[g], &j);
            trek_scope scope = trek_scope_begin();
            trek_var *x, *y;
            make_batch(&c, at, BATCH, &x, &y);
            failing.on = true;
            assert_int_equal(call_step(graphs[g], g, x, y, &j), TREK_ERR_CALLBACK);
            failing.on = false;
            assert_non_null(strstr(trek_error(), "it was told to fail"));
            trek_error_clear();
            trek_scope_end(scope);
            assert_int_equal(trek_graph_steps(graphs[g]), at);
        }
        if (g)
            assert_int_equal(trek_graph_capture_reset(graphs[g]), TREK_OK);
        train(graphs[g], &c, g, 3, STEPS, &t[g], &j);
        end_job(&j);
    }
    trek_log_set(TREK_LOG_LEVEL_WARNING, NULL, NULL);
    assert_recorded(graphs[1], STEPS - 3 - FIRST);
    end_alike(graphs, t, c.world);
}

/* What another rank than the caller's takes from outside, another one each time, is noticed, too. */
static void test_rank_takes_from_outside(void **state)
{
    static trace t[2];
    kind c = { .world = ranks_there() };
    trek_graph *graphs[2];
    if (c.world < 2)
        skip();
    trek_log_set(TREK_LOG_LEVEL_WARNING, silent, NULL);
    for (int g = 0; g < 2; g++) {
        job j = { 0 };
        graphs[g] = new_trained(&c);
        for (int k = 0; k < STEPS; k++) {
            trek_scope scope = trek_scope_begin();
            failing.factor = trek_var_from(trek_tensor_full(trek_dims(1), 1 + 0.1 * k, TREK_F32, device_of(1)));
            assert_non_null(failing.factor);
            train(graphs[g], &c, g, k, k + 1, &t[g], &j);
            failing.factor = NULL;
            trek_scope_end(scope);
        }
        end_job(&j);
    }
    trek_log_set(TREK_LOG_LEVEL_WARNING, NULL, NULL);
    assert_int_equal(trek_graph_replays(graphs[1]), 0);
    if (!test_on_cpu())
        assert_non_null(strstr(trek_graph_capture_problem(graphs[1]), "did not exist in the call before"));
    end_alike(graphs, t, c.world);
}

/* The function fails when it is recorded, its gradients on their way: they are there once, as if it had been called. */
static void test_function_fails(void **state)
{
    static trace t[2];
    kind c = { .world = ranks_there() };
    trek_graph *graphs[2];
    if (c.world < 2)
        skip();
    trek_log_set(TREK_LOG_LEVEL_WARNING, silent, NULL);
    for (int g = 0; g < 2; g++) {
        job j = { 0 };
        graphs[g] = new_trained(&c);
        train(graphs[g], &c, g, 0, 3, &t[g], &j);
        trek_scope scope = trek_scope_begin();
        trek_var *x, *y;
        make_batch(&c, 3, BATCH, &x, &y);
        j.fails = true;
        assert_int_equal(call_step(graphs[g], g, x, y, &j), TREK_ERR_CALLBACK);
        j.fails = false;
        trek_error_clear();
        trek_scope_end(scope);
        if (g)
            assert_int_equal(trek_graph_capture_reset(graphs[g]), TREK_OK);
        train(graphs[g], &c, g, 3, STEPS, &t[g], &j);
        end_job(&j);
    }
    trek_log_set(TREK_LOG_LEVEL_WARNING, NULL, NULL);
    assert_recorded(graphs[1], STEPS - 3 - FIRST);
    end_alike(graphs, t, c.world);
}

typedef struct fake {
    void (*fails)(const char *specification);
    long (*calls)(const char *function);
} fake;

/* false: the devices are real, or CPUs. */
static bool find_fake(fake *f)
{
    void *addresses[2] = { test_fake("trek_fake_fail"), test_fake("trek_fake_calls") };
    if (test_on_cpu() || !addresses[0] || !addresses[1] || ranks_there() < 2)
        return false;
    memcpy(&f->fails, &addresses[0], sizeof f->fails);
    memcpy(&f->calls, &addresses[1], sizeof f->calls);
    return true;
}

/* Before a replay rank 1's device does not take its numbers: nothing has been changed, and the call can be made again. */
static void test_numbers_fail(void **state)
{
    static trace t[2];
    kind c = { .world = 2 };
    trek_graph *graphs[2];
    fake f = { 0 };
    if (!find_fake(&f))
        skip();
    for (int g = 0; g < 2; g++) {
        job j = { 0 };
        graphs[g] = new_trained(&c);
        train(graphs[g], &c, g, 0, 10, &t[g], &j);
        if (g) {
            trek_scope scope = trek_scope_begin();
            trek_var *x, *y;
            make_batch(&c, 10, BATCH, &x, &y);
            assert_int_equal(trek_device_sync(device_of(0)), TREK_OK);
            f.fails("cudaLaunchKernel:2");
            assert_int_equal(call_step(graphs[g], true, x, y, &j), TREK_ERR_CUDA);
            f.fails(NULL);
            trek_error_clear();
            trek_scope_end(scope);
        }
        assert_int_equal(trek_graph_steps(graphs[g]), 10);
        train(graphs[g], &c, g, 10, STEPS, &t[g], &j);
        end_job(&j);
    }
    assert_recorded(graphs[1], STEPS - FIRST);
    end_alike(graphs, t, c.world);
}

/* Eight steps and one of batch 10, whose n-th launch fails. true: there was one. `again`: the call could be made again. */
static bool fail_launch(const fake *f, const kind *c, trek_graph *graph, int n, bool *again)
{
    static trace t;
    job j = { 0 };
    char which[40];
    train(graph, c, true, 0, 8, &t, &j);
    trek_scope scope = trek_scope_begin();
    trek_var *x, *y;
    make_batch(c, 10, BATCH, &x, &y);
    snprintf(which, sizeof which, "cudaGraphLaunch:%d", n);
    f->fails(which);
    trek_status status = call_step(graph, true, x, y, &j);
    bool failed = f->calls("cudaGraphLaunch") >= n;
    f->fails(NULL);
    assert_int_equal(status == TREK_OK, !failed);
    trek_error_clear();
    *again = failed && call_step(graph, true, x, y, &j) == TREK_OK;
    trek_error_clear();
    if (failed && !*again)
        assert_int_not_equal(call_step(graph, true, x, y, &j), TREK_OK);
    trek_error_clear();
    trek_scope_end(scope);
    return failed;
}

/* One rank's device does not take its part of a replay: the other's would wait for it for ever. The step fails, and so do all
 * that follow; nobody waits. Where nothing had been done before, the call can be made again. */
static void test_launch_fails(void **state)
{
    static trace t;
    kind c = { .world = 2 };
    fake f = { 0 };
    if (!find_fake(&f))
        skip();
    job j = { 0 };
    trek_graph *good = new_trained(&c);
    train(good, &c, false, 0, 8, &t, &j);
    trek_scope scope = trek_scope_begin();
    trek_var *x, *y;
    make_batch(&c, 10, BATCH, &x, &y);
    assert_int_equal(call_step(good, false, x, y, &j), TREK_OK);
    trek_scope_end(scope);
    end_job(&j);
    int ends = 0;
    bool failed = true;
    for (int n = 1; failed; n++) {
        bool again = false;
        trek_graph *graph = new_trained(&c);
        failed = fail_launch(&f, &c, graph, n, &again);
        ends += failed && !again;
        if (again)
            assert_same_values(good, graph, c.world);
        trek_graph_free(&graph);
        trek_error_clear();
    }
    assert_true(ends > 3);
    trek_graph_free(&good);
}

/* How often a step asks the driver for something: a replay is a handful of graphs. */
static void test_host_calls(void **state)
{
    static const char *const functions[] = { "cudaLaunchKernel", "cudaMemcpyAsync", "cudaMemcpyPeerAsync", "cudaMemsetAsync",
                                             "cudaEventRecord", "cudaStreamWaitEvent", "cudaEventCreateWithFlags",
                                             "cudaEventQuery", "ncclAllReduce", "cudaGraphLaunch" };
    enum { N = sizeof functions / sizeof functions[0] };
    static trace t;
    fake f = { 0 };
    long of[2][N], sum[2] = { 0, 0 };
    if (!find_fake(&f))
        skip();
    for (int world = 2; world <= ranks_there(); world++) {
        kind c = { .world = world };
        for (int g = 0; g < 2; g++) {
            job j = { 0 };
            trek_graph *graph = new_trained(&c);
            train(graph, &c, g, 0, 8, &t, &j);
            trek_scope scope = trek_scope_begin();
            trek_var *x, *y;
            make_batch(&c, 8, BATCH, &x, &y);
            f.fails("none:1");
            assert_int_equal(call_step(graph, g, x, y, &j), TREK_OK);
            sum[g] = 0;
            for (int k = 0; k < N; k++)
                sum[g] += of[g][k] = f.calls(functions[k]);
            f.fails(NULL);
            trek_scope_end(scope);
            end_job(&j);
            trek_graph_free(&graph);
        }
        for (int k = 0; k < N; k++)
            print_message("%d ranks: %-26s %5ld in a called step, %5ld in a replayed one\n", world, functions[k], of[0][k],
                          of[1][k]);
        print_message("%d ranks: %-26s %5ld in a called step, %5ld in a replayed one\n", world, "in all", sum[0], sum[1]);
        assert_int_equal(of[1][N - 2], 0);
        assert_true(of[0][N - 2] > 2 * world); /* several buckets */
        assert_true(of[1][N - 1] >= 2 * world);
        assert_true(4 * sum[1] < sum[0]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_same_bits_as_called, clean, no_error),
        cmocka_unit_test_setup_teardown(test_buffers, clean, no_error),
        cmocka_unit_test_setup_teardown(test_overflow, clean, no_error),
        cmocka_unit_test_setup_teardown(test_low_precision, clean, no_error),
        cmocka_unit_test_setup_teardown(test_shapes, clean, no_error),
        cmocka_unit_test_setup_teardown(test_plan, clean, no_error),
        cmocka_unit_test_setup_teardown(test_changes, clean, no_error),
        cmocka_unit_test_setup_teardown(test_set_up_again, clean, no_error),
        cmocka_unit_test_setup_teardown(test_rank_fails, clean, no_error),
        cmocka_unit_test_setup_teardown(test_rank_takes_from_outside, clean, no_error),
        cmocka_unit_test_setup_teardown(test_function_fails, clean, no_error),
        cmocka_unit_test_setup_teardown(test_numbers_fail, clean, no_error),
        cmocka_unit_test_setup_teardown(test_launch_fails, clean, no_error),
        cmocka_unit_test_setup_teardown(test_host_calls, clean, no_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
