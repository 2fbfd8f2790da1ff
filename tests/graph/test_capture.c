/* SPDX-License-Identifier: Apache-2.0 */
/* Captured steps against the same steps called one by one, bit for bit; changes
 * that a record must notice; functions that cannot be recorded. On a CPU nothing
 * is recorded, and everything must come out alike. */
#include "autograd/ops.h"
#include "autograd/var_internal.h"
#include "distributed/trainer.h"
#include "graph/amp.h"
#include "graph/capture.h"
#include "graph/flow.h"
#include "graph/settings.h"
#include "nn/layers.h"
#include "nn/module_tree.h"
#include "nn/params.h"
#include "optim/groups.h"
#include "optim/optimizer_state.h"
#include "optim/optimizers.h"
#include "optim/scaler.h"
#include "tensor/rank_context.h"
#include "tests/support/clean.h"
#include "tests/support/refused.h"
#include "tests/support/support.h"

enum { BATCH = 24, FEATURES = 12, HIDDEN = 40, CLASSES = 5, STEPS = 20 };

/* --- a model and its step ---------------------------------------------------------- */

static trek_graph *new_model(void)
{
    trek_device device = test_device();
    trek_flow *flow = trek_flow_from(trek_nn_linear(FEATURES, HIDDEN, device));
    flow = trek_flow_through(flow, trek_nn_batch_norm1d(HIDDEN, device));
    flow = trek_flow_through(flow, trek_nn_relu());
    flow = trek_flow_through(flow, trek_nn_dropout(0.3));
    flow = trek_flow_tag(flow, "hidden");
    flow = trek_flow_through(flow, trek_nn_linear(HIDDEN, CLASSES, device));
    trek_graph *graph = trek_flow_build(flow);
    assert_non_null(graph);
    return graph;
}

static trek_graph *new_trained(uint64_t seed)
{
    trek_seed(seed);
    trek_graph *graph = new_model();
    trek_schedule schedule = trek_cosine_lr(0.05, STEPS, 1e-4);
    assert_int_equal(trek_graph_set_optimizer(graph, trek_adamw(&(trek_adam_opts){ .lr = 0.05 })), TREK_OK);
    assert_int_equal(trek_graph_set_schedule(graph, &schedule), TREK_OK);
    assert_int_equal(trek_graph_set_clip(graph, 0.4, 0.3), TREK_OK);
    trek_amp_opts amp = { .scaling = 1, .scaler = { .init_scale = 1024, .growth_interval = 4 } };
    assert_int_equal(trek_graph_set_amp(graph, &amp), TREK_OK);
    return graph;
}

typedef struct job {
    trek_var *x, *y;           /* for a run without capture; NULL: the captured inputs */
    trek_var *loss;            /* of a run without capture, retained */
    int calls, passes;
} job;

static trek_status one_step(trek_graph *graph, void *arg)
{
    job *j = arg;
    j->calls++;
    for (int pass = 0; pass < j->passes; pass++) {
        trek_var *x = j->x ? j->x : trek_graph_captured_input(graph, 0), *y = j->y ? j->y : trek_graph_captured_input(graph, 1);
        trek_var *loss = trek_cross_entropy(trek_graph_forward(graph, x), y);
        if (j->x) {
            trek_var_release(j->loss);
            j->loss = loss ? trek_var_retain(trek_var_detach(loss)) : NULL;
        } else {
            trek_graph_capture_output(graph, 0, loss);
        }
        trek_graph_backward(graph, loss);
    }
    return trek_graph_step(graph);
}

static void make_batch(int k, int rows, trek_var **x, trek_var **y)
{
    trek_tensor *data = test_tensor(100u + (uint32_t)k, trek_dims(rows, FEATURES), 2);
    int64_t labels[BATCH];
    for (int i = 0; i < rows; i++)
        labels[i] = (i * 7 + k) % CLASSES;
    *x = trek_var_constant(data);
    *y = trek_var_from(trek_tensor_from_data(labels, trek_dims(rows), TREK_I64, test_device()));
    trek_tensor_release(data);
    assert_non_null(*x);
    assert_non_null(*y);
}

typedef struct trace {
    float loss[STEPS];
    double lr[STEPS], norm[STEPS];
} trace;

static float item_of(trek_var *loss)
{
    float value = NAN;
    assert_non_null(loss);
    assert_int_equal(trek_tensor_to_host(trek_var_data(loss), TREK_F32, &value, sizeof value), TREK_OK);
    return value;
}

static int thaws_at = -1; /* the step before which the first module is thawed */

static void train(trek_graph *graph, bool captured, int passes, const int *rows, trace *t, job *j)
{
    *j = (job){ .passes = passes };
    for (int k = 0; k < STEPS; k++) {
        trek_scope scope = trek_scope_begin();
        trek_var *x, *y;
        make_batch(k, rows ? rows[k] : BATCH, &x, &y);
        if (k == thaws_at)
            assert_int_equal(trek_graph_thaw(graph, "0"), TREK_OK);
        if (captured) {
            assert_int_equal(trek_graph_capture_input(graph, 0, x), TREK_OK);
            assert_int_equal(trek_graph_capture_input(graph, 1, y), TREK_OK);
            trek_status status = trek_graph_capture(graph, one_step, j);
            if (status != TREK_OK)
                fail_msg("step %d: %s", k, trek_error());
            t->loss[k] = item_of(trek_graph_captured_output(graph, 0));
        } else {
            j->x = x;
            j->y = y;
            assert_int_equal(one_step(graph, j), TREK_OK);
            t->loss[k] = item_of(j->loss);
        }
        t->lr[k] = trek_graph_lr(graph);
        t->norm[k] = trek_graph_grad_norm(graph);
        trek_scope_end(scope);
    }
    trek_var_release(j->loss);
    j->loss = NULL;
}

static void assert_same_values(trek_graph *a, trek_graph *b)
{
    trek_params *of_a = trek_module_params(trek_graph_module(a)), *of_b = trek_module_params(trek_graph_module(b));
    assert_int_equal(trek_params_count(of_a), trek_params_count(of_b));
    for (int k = 0; k < trek_params_count(of_a); k++)
        if (!test_same_bits(trek_var_data(trek_params_var(of_a, k)), trek_var_data(trek_params_var(of_b, k))))
            fail_msg("parameter %s differs", trek_params_name(of_a, k));
    const char *const buffers[] = { "1.running_mean", "1.running_var", "1.num_batches_tracked" };
    for (int k = 0; k < 3; k++)
        if (!test_same_bits(trek_var_data(trek_module_find(trek_graph_module(a), buffers[k])),
                            trek_var_data(trek_module_find(trek_graph_module(b), buffers[k]))))
            fail_msg("buffer %s differs", buffers[k]);
    trek_params_free(&of_a);
    trek_params_free(&of_b);
}

static void assert_same_traces(const trace *a, const trace *b)
{
    for (int k = 0; k < STEPS; k++) {
        if (memcmp(&a->loss[k], &b->loss[k], sizeof a->loss[k]) != 0)
            fail_msg("step %d: the losses are %.9g and %.9g", k, (double)a->loss[k], (double)b->loss[k]);
        if (a->lr[k] != b->lr[k])
            fail_msg("step %d: the learning rates are %.17g and %.17g", k, a->lr[k], b->lr[k]);
        if (a->norm[k] != b->norm[k])
            fail_msg("step %d: the norms are %.17g and %.17g", k, a->norm[k], b->norm[k]);
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

static void compare(int passes, const int *rows, int64_t replays, int calls)
{
    trace plain, captured;
    job a, b;
    trek_graph *one = new_trained(41);
    train(one, false, passes, rows, &plain, &a);
    uint64_t rng_step = trek_rank_here.rng_step;
    trek_graph *other = new_trained(41);
    train(other, true, passes, rows, &captured, &b);
    assert_int_equal(trek_rank_here.rng_step, rng_step);
    assert_int_equal(trek_graph_steps(other), STEPS);
    assert_int_equal(trek_graph_steps(one), STEPS);
    assert_same_traces(&plain, &captured);
    assert_same_values(one, other);
    assert_recorded(other, replays);
    if (!test_on_cpu())
        assert_int_equal(b.calls, calls);
    assert_true(plain.loss[0] != plain.loss[STEPS - 1]);
    assert_true(trek_grad_scaler_value(trek_graph_scaler(one)) == trek_grad_scaler_value(trek_graph_scaler(other)));
    assert_true(trek_grad_scaler_value(trek_graph_scaler(one)) != 1024);
    trek_graph_free(&one);
    trek_graph_free(&other);
}

static void test_same_bits_as_called(void **state)
{
    compare(1, NULL, STEPS - 4, 4); /* three runs, one that is recorded and done by its first replay */
}

static void test_passes_that_add_up(void **state)
{
    compare(2, NULL, STEPS - 4, 4);
}

/* The last batch of an epoch is smaller: a record of its own, after a run of its own. */
static void test_shapes(void **state)
{
    int rows[STEPS];
    for (int k = 0; k < STEPS; k++)
        rows[k] = k % 5 == 4 ? BATCH / 2 : BATCH;
    /* full: 16 calls, 3 + 1 of them not replayed; half: 4 calls, 1 + 1 */
    compare(1, rows, 12 + 2, 6);
}

/* --- what a record must notice ------------------------------------------------------------ */

static void test_changes(void **state)
{
    trace plain, captured;
    job a, b;
    trek_graph *graphs[2];
    for (int g = 0; g < 2; g++) {
        trek_graph *graph = graphs[g] = new_trained(17);
        trace *t = g ? &captured : &plain;
        job *j = g ? &b : &a;
        train(graph, g, 1, NULL, t, j);
        assert_int_equal(trek_graph_freeze(graph, "0"), TREK_OK);
        train(graph, g, 1, NULL, t, j);
        assert_int_equal(trek_graph_thaw(graph, "0"), TREK_OK);
        assert_int_equal(trek_graph_set_lr(graph, 0.02), TREK_OK);
        assert_int_equal(trek_graph_set_clip(graph, 0, 0.2), TREK_OK);
        train(graph, g, 1, NULL, t, j);
        assert_int_equal(trek_graph_set_clip(graph, 0, 0.1), TREK_OK); /* a number on the device: the record stays */
        train(graph, g, 1, NULL, t, j);
        assert_int_equal(trek_graph_set_optimizer(graph, trek_sgd(&(trek_sgd_opts){ .lr = 0.1, .momentum = 0.9 })), TREK_OK);
        trek_seed(5);
        train(graph, g, 1, NULL, t, j);
    }
    for (int k = 0; k < STEPS; k++)
        assert_true(memcmp(&plain.loss[k], &captured.loss[k], sizeof plain.loss[k]) == 0);
    assert_same_values(graphs[0], graphs[1]);
    /* calls with another job begin a record of their own: 1 run, 1 recorded; the first of all 3 and 1 */
    assert_recorded(graphs[1], trek_graph_replays(graphs[1]));
    if (!test_on_cpu())
        assert_true(trek_graph_replays(graphs[1]) > 3 * STEPS);
    trek_graph_free(&graphs[0]);
    trek_graph_free(&graphs[1]);
}

/* A change where the step would have been recorded: it is called once more, since it uses tensors that the calls before have not.
 */
static void test_change_before_recording(void **state)
{
    trace plain, captured;
    job j;
    trek_graph *graphs[2];
    thaws_at = 3;
    for (int g = 0; g < 2; g++) {
        graphs[g] = new_trained(17);
        assert_int_equal(trek_graph_freeze(graphs[g], "0"), TREK_OK);
        train(graphs[g], g, 1, NULL, g ? &captured : &plain, &j);
    }
    thaws_at = -1;
    assert_same_traces(&plain, &captured);
    assert_same_values(graphs[0], graphs[1]);
    assert_recorded(graphs[1], STEPS - 3 - 2);
    trek_graph_free(&graphs[0]);
    trek_graph_free(&graphs[1]);
}

/* Optimizers that look at whole parameters, with their norms and products, are in the record; and rounding of states, which goes
 * by the device's counts, and codes of blocks. */
static void test_other_optimizers(void **state)
{
    const trek_optimizer_spec specs[] = { trek_lamb(&(trek_lamb_opts){ .lr = 0.02, .weight_decay = 0.1 }),
                                          trek_lars(&(trek_lars_opts){ .lr = 0.5, .trust_coefficient = 0.1 }),
                                          trek_adafactor(&(trek_adafactor_opts){ .lr = 0.05 }),
                                          trek_muon(&(trek_muon_opts){ .lr = 0.02 }),
                                          trek_with_state(trek_adamw(&(trek_adam_opts){ .lr = 0.05, .amsgrad = true }),
                                                          TREK_BF16),
                                          trek_with_state(trek_adamw(&(trek_adam_opts){ .lr = 0.05, .amsgrad = true }),
                                                          TREK_U8) };
    for (int k = 0; k < 6; k++) {
        trace plain, captured;
        job a, b;
        trek_graph *graphs[2];
        for (int g = 0; g < 2; g++) {
            graphs[g] = new_trained(29);
            assert_int_equal(trek_graph_set_optimizer(graphs[g], specs[k]), TREK_OK);
            trek_optimizer_spec vectors = k == 3 ? trek_muon(&(trek_muon_opts){ .lr = 0.02, .adam = true }) : specs[k];
            assert_true(trek_optimizer_vectors(trek_graph_optimizer(graphs[g]), vectors) > 0);
            trek_seed(7);
            train(graphs[g], g, 1, NULL, g ? &captured : &plain, g ? &b : &a);
        }
        assert_same_traces(&plain, &captured);
        assert_same_values(graphs[0], graphs[1]);
        assert_recorded(graphs[1], STEPS - 4);
        trek_graph_free(&graphs[0]);
        trek_graph_free(&graphs[1]);
    }
}

/* Calls between replays: a forward of one's own draws random numbers, changes the tagged value; a step as usual changes
 * counts on the device. */
static void test_mixed_with_calls(void **state)
{
    float losses[2][STEPS];
    trek_graph *graphs[2];
    for (int g = 0; g < 2; g++) {
        trek_graph *graph = graphs[g] = new_trained(23);
        job plain = { .passes = 1 }, captured = { .passes = 1 };
        for (int k = 0; k < STEPS; k++) {
            trek_scope scope = trek_scope_begin();
            make_batch(k, BATCH, &plain.x, &plain.y);
            if (k % 6 == 5) {
                trek_graph_train(graph, false);
                assert_non_null(trek_graph_forward(graph, plain.x));
                trek_graph_train(graph, true);
            }
            if (k % 7 == 6)
                assert_non_null(trek_graph_forward(graph, plain.x)); /* with dropout */
            if (g == 0 || k % 8 == 7) {
                assert_int_equal(one_step(graph, &plain), TREK_OK);
                losses[g][k] = item_of(plain.loss);
            } else {
                trek_graph_capture_input(graph, 0, plain.x);
                trek_graph_capture_input(graph, 1, plain.y);
                assert_int_equal(trek_graph_capture(graph, one_step, &captured), TREK_OK);
                losses[g][k] = item_of(trek_graph_captured_output(graph, 0));
            }
            trek_var *hidden = trek_graph_tagged(graph, "hidden");
            assert_non_null(hidden);
            losses[g][k] += (float)trek_var_item(trek_sum(hidden, trek_dims_all(), false));
            trek_scope_end(scope);
        }
        trek_var_release(plain.loss);
    }
    for (int k = 0; k < STEPS; k++)
        if (memcmp(&losses[0][k], &losses[1][k], sizeof(float)) != 0)
            fail_msg("step %d: %.9g and %.9g", k, (double)losses[0][k], (double)losses[1][k]);
    assert_same_values(graphs[0], graphs[1]);
    if (!test_on_cpu())
        assert_true(trek_graph_replays(graphs[1]) > STEPS / 3);
    trek_graph_free(&graphs[0]);
    trek_graph_free(&graphs[1]);
}

/* --- functions that cannot be recorded ------------------------------------------------------ */

typedef struct odd_job {
    job base;
    double value;              /* read inside */
    trek_var *outside;         /* another one at each call */
    trek_graph *other;
    int kind;
} odd_job;

enum { READS, TAKES_OUTSIDE, STEPS_TWICE, STEPS_ANOTHER, ON_HOST, GIVES_UP };

static trek_status odd_step(trek_graph *graph, void *arg)
{
    odd_job *o = arg;
    trek_var *x = trek_graph_captured_input(graph, 0), *y = trek_graph_captured_input(graph, 1);
    if (o->kind == TAKES_OUTSIDE)
        x = trek_add(x, o->outside);
    trek_var *loss = trek_cross_entropy(trek_graph_forward(graph, x), y);
    trek_graph_capture_output(graph, 0, loss);
    trek_graph_backward(graph, loss);
    trek_status status = trek_graph_step(graph);
    if (o->kind == READS)
        o->value = trek_var_item(loss);
    if (o->kind == STEPS_TWICE)
        status = one_step(graph, &o->base);
    if (o->kind == STEPS_ANOTHER)
        trek_graph_step(o->other);
    if (o->kind == ON_HOST)
        o->value += trek_var_item(trek_exp(trek_var_from(trek_tensor_ones(trek_dims(1), TREK_F32, trek_cpu(0)))));
    if (o->kind == GIVES_UP && o->base.calls++ >= 3)
        return TREK_ERR_CALLBACK;
    return status;
}

static void run_odd(trek_graph *graph, odd_job *o, bool captured, float *losses)
{
    for (int k = 0; k < 8; k++) {
        trek_scope scope = trek_scope_begin();
        trek_var *x, *y;
        make_batch(k, BATCH, &x, &y);
        trek_tensor *outside = test_tensor(300u + (uint32_t)k, trek_dims(FEATURES), 1);
        o->outside = trek_var_constant(outside);
        trek_tensor_release(outside);
        trek_graph_capture_input(graph, 0, x);
        trek_graph_capture_input(graph, 1, y);
        if (!captured) /* a record that is never made: each call has another function's argument */
            trek_graph_capture_reset(graph);
        if (!captured) {
            trek_graph_capture_input(graph, 0, x);
            trek_graph_capture_input(graph, 1, y);
        }
        if (trek_graph_capture(graph, odd_step, o) != TREK_OK)
            fail_msg("call %d of kind %d: %s", k, o->kind, trek_error());
        losses[k] = item_of(trek_graph_captured_output(graph, 0));
        trek_scope_end(scope);
    }
}

static void silent(trek_log_level level, const char *message, void *arg)
{
    *(int *)arg += level == TREK_LOG_LEVEL_WARNING;
}

static void check_odd(int kind, const char *reason)
{
    float losses[2][8];
    trek_graph *graphs[2], *others[2] = { NULL, NULL };
    int warnings = 0;
    trek_log_set(TREK_LOG_LEVEL_WARNING, silent, &warnings);
    for (int g = 0; g < 2; g++) {
        odd_job o = { .base = { .passes = 1 }, .kind = kind };
        graphs[g] = new_trained(3);
        if (kind == STEPS_ANOTHER) {
            others[g] = new_trained(4);
            o.other = others[g];
            trek_seed(3);
        }
        run_odd(graphs[g], &o, g, losses[g]);
    }
    trek_log_set(TREK_LOG_LEVEL_WARNING, NULL, NULL);
    for (int k = 0; k < 8; k++)
        if (memcmp(&losses[0][k], &losses[1][k], sizeof(float)) != 0)
            fail_msg("kind %d, call %d: %.9g and %.9g", kind, k, (double)losses[0][k], (double)losses[1][k]);
    assert_same_values(graphs[0], graphs[1]);
    assert_int_equal(trek_graph_steps(graphs[1]), trek_graph_steps(graphs[0]));
    if (!test_on_cpu()) {
        assert_int_equal(trek_graph_replays(graphs[1]), 0);
        if (!strstr(trek_graph_capture_problem(graphs[1]), reason))
            fail_msg("kind %d: the reason is \"%s\"", kind, trek_graph_capture_problem(graphs[1]));
        assert_true(warnings >= 1);
    }
    for (int g = 0; g < 2; g++) {
        trek_graph_free(&graphs[g]);
        if (others[g])
            trek_graph_free(&others[g]);
    }
}

static void test_reads_inside(void **state)
{
    check_odd(READS, "cannot be read on the host");
}

static void test_takes_from_outside(void **state)
{
    check_odd(TAKES_OUTSIDE, "trek_graph_capture_input");
}

static void test_steps_twice(void **state)
{
    check_odd(STEPS_TWICE, "more than once");
}

static void test_steps_another(void **state)
{
    check_odd(STEPS_ANOTHER, "another optimizer");
}

static void test_computes_on_host(void **state)
{
    check_odd(ON_HOST, "on the host");
}

/* A function that fails while it is recorded fails the call, and the graph stays usable. */
static void test_fails_inside(void **state)
{
    trek_graph *graph = new_trained(9);
    odd_job o = { .base = { .passes = 1 }, .kind = GIVES_UP };
    int warnings = 0;
    trek_log_set(TREK_LOG_LEVEL_WARNING, silent, &warnings);
    trek_scope scope = trek_scope_begin();
    trek_var *x, *y;
    make_batch(1, BATCH, &x, &y);
    trek_graph_capture_input(graph, 0, x);
    trek_graph_capture_input(graph, 1, y);
    for (int k = 0; k < 3; k++)
        assert_int_equal(trek_graph_capture(graph, odd_step, &o), TREK_OK);
    FAILS(trek_graph_capture(graph, odd_step, &o), TREK_ERR_CALLBACK, "");
    assert_int_equal(trek_graph_capture_reset(graph), TREK_OK);
    trek_graph_capture_input(graph, 0, x);
    trek_graph_capture_input(graph, 1, y);
    job j = { .passes = 1 };
    for (int k = 0; k < 6; k++)
        assert_int_equal(trek_graph_capture(graph, one_step, &j), TREK_OK);
    assert_recorded(graph, 2);
    trek_scope_end(scope);
    trek_log_set(TREK_LOG_LEVEL_WARNING, NULL, NULL);
    trek_graph_free(&graph);
}

static trek_status nested_step(trek_graph *graph, void *arg)
{
    trek_status status = trek_graph_capture(graph, nested_step, arg);
    FAILS(status, TREK_ERR_STATE, "");
    FAILS(trek_graph_capture_reset(graph), TREK_ERR_STATE, "");
    return TREK_OK;
}

static void test_mistakes(void **state)
{
    trek_graph *graph = new_trained(9);
    REFUSED(trek_graph_captured_input(graph, 0), TREK_ERR_STATE, "");
    FAILS(trek_graph_capture(graph, NULL, NULL), TREK_ERR_ARGUMENT, "");
    trek_scope scope = trek_scope_begin();
    trek_var *x, *y;
    make_batch(1, BATCH, &x, &y);
    FAILS(trek_graph_capture_input(graph, 64, x), TREK_ERR_ARGUMENT, "");
    FAILS(trek_graph_capture_output(graph, 0, x), TREK_ERR_STATE, "");
    trek_scope_end(scope);
    assert_int_equal(trek_graph_capture(graph, nested_step, NULL), TREK_OK);
    trek_graph_free(&graph);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_same_bits_as_called, clean, no_error),
        cmocka_unit_test_setup_teardown(test_passes_that_add_up, clean, no_error),
        cmocka_unit_test_setup_teardown(test_shapes, clean, no_error),
        cmocka_unit_test_setup_teardown(test_changes, clean, no_error),
        cmocka_unit_test_setup_teardown(test_change_before_recording, clean, no_error),
        cmocka_unit_test_setup_teardown(test_other_optimizers, clean, no_error),
        cmocka_unit_test_setup_teardown(test_mixed_with_calls, clean, no_error),
        cmocka_unit_test_setup_teardown(test_reads_inside, clean, no_error),
        cmocka_unit_test_setup_teardown(test_takes_from_outside, clean, no_error),
        cmocka_unit_test_setup_teardown(test_steps_twice, clean, no_error),
        cmocka_unit_test_setup_teardown(test_steps_another, clean, no_error),
        cmocka_unit_test_setup_teardown(test_computes_on_host, clean, no_error),
        cmocka_unit_test_setup_teardown(test_fails_inside, clean, no_error),
        cmocka_unit_test_setup_teardown(test_mistakes, clean, no_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
