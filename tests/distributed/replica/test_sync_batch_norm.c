/* SPDX-License-Identifier: Apache-2.0 */
/* Synchronised batch norm on N ranks against plain batch norm on one device, with
 * shards of all sizes; and the sums that it is made of: bits, failures, processes. */
#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "autograd/backward.h"
#include "autograd/function.h"
#include "autograd/ops.h"
#include "distributed/ddp.h"
#include "distributed/ranks.h"
#include "distributed/balance/plan.h"
#include "distributed/step/rank_sums.h"
#include "distributed/step/stepper_ranks.h"
#include "distributed/trainer.h"
#include "graph/feed.h"
#include "graph/flow.h"
#include "nn/batch_norm_internal.h"
#include "nn/layers.h"
#include "tensor/place.h"
#include "tests/support/support.h"

enum { CHANNELS = 3, WIDTH = 4, CLASSES = 3, STEPS = 3, MOST = 4096 };

/* --- a model with two of the layer: [N, WIDTH] -> norm over [N, C] -> [N, C, 2, 1] -> norm -> classes ----- */

typedef enum failure { NOWHERE, IN_FORWARD, IN_BACKWARD } failure;

typedef struct net {
    trek_module base;
    trek_module *first, *norm, *second, *last;
    failure fails;            /* of this replica */
} net;

/* x itself, but its backward fails. */
static trek_status stumble_forward(trek_function_context *context, trek_var *const *inputs, int n_inputs, trek_var **outputs,
                                   int n_outputs)
{
    (void)context, (void)n_inputs, (void)n_outputs;
    outputs[0] = inputs[0];
    return TREK_OK;
}

static trek_status stumble_backward(trek_function_context *context, trek_var *const *grads, int n, trek_var **input_grads,
                                    int n_inputs)
{
    (void)context, (void)grads, (void)n, (void)input_grads, (void)n_inputs;
    return trek_fail(TREK_ERR_STATE, "the module was told to fail");
}

static const trek_function stumble = { "stumble", stumble_forward, stumble_backward, NULL };

static trek_var *net_forward(trek_module *self, trek_var *x)
{
    net *m = (net *)self;
    x = trek_forward(m->norm, trek_forward(m->first, x));
    if (m->fails == IN_FORWARD)
        return trek_fail_null(TREK_ERR_STATE, "the module was told to fail");
    x = trek_tanh(m->fails == IN_BACKWARD ? trek_function_apply_one(&stumble, NULL, &x, 1) : x);
    int64_t rows = trek_var_size(x, 0);
    x = trek_reshape(trek_cat((trek_var *[]){ x, trek_square(x) }, 2, 1), trek_dims(rows, 2, CHANNELS, 1));
    x = trek_forward(m->second, trek_permute(x, trek_dims(0, 2, 1, 3)));
    return trek_forward(m->last, trek_reshape(x, trek_dims(rows, 2 * CHANNELS)));
}

static const trek_module_class net_class = { .name = "net", .size = sizeof(net), .forward = net_forward };

typedef struct model_opts {
    bool sync, cumulative, own; /* own: by a class that is not the library's */
    trek_dtype dtype;
} model_opts;

/* What a program would write: a layer that meets the other ranks says so in its class. */
static const trek_module_class *own_class(void)
{
    static trek_module_class own;
    own = trek_sync_batch_norm_class;
    own.name = "own_norm";
    return &own;
}

static trek_module *norm_new(const model_opts *o, trek_device device, bool images, bool affine)
{
    trek_batch_norm_opts opts = { .features = CHANNELS, .dtype = o->dtype, .device = device, .no_affine = !affine,
                                  .momentum = o->cumulative ? TREK_OFF : 0 };
    if (o->own)
        return trek_batch_norm_layer_new(own_class(), &opts);
    return o->sync ? trek_nn_sync_batch_norm_with(&opts) : images ? trek_nn_batch_norm2d_with(&opts)
        : trek_nn_batch_norm1d_with(&opts);
}

static trek_module *net_new(const model_opts *o, trek_device device)
{
    trek_seed(5);
    trek_module *m = trek_module_new(&net_class);
    trek_linear_opts first = { .in = WIDTH, .out = CHANNELS, .dtype = o->dtype, .device = device };
    trek_linear_opts last = { .in = 2 * CHANNELS, .out = CLASSES, .dtype = o->dtype, .device = device };
    trek_module_add(m, "first", offsetof(net, first), trek_nn_linear_with(&first));
    trek_module_add(m, "norm", offsetof(net, norm), norm_new(o, device, false, true));
    trek_module_add(m, "second", offsetof(net, second), norm_new(o, device, true, false));
    trek_module_add(m, "last", offsetof(net, last), trek_nn_linear_with(&last));
    return trek_module_check(m);
}

static trek_graph *build(trek_device device, void *arg) { return trek_flow_build(trek_flow_from(net_new(arg, device))); }

static trek_graph *set_up(model_opts *o, int world, trek_optimizer_spec optimizer, bool separate)
{
    trek_device devices[5];
    for (int r = 0; r < world; r++)
        devices[r] = test_device_of_rank(r);
    trek_graph *graph = build(devices[0], o);
    assert_non_null(graph);
    trek_status status = trek_trainer_setup(graph,
                                            &(trek_trainer_opts){ .build_replica = build, .arg = o, .devices = devices,
                                                                  .ranks = world,
        .optimizer = optimizer, .deadline_s = 20, .share = separate ? TREK_OFF : 0 });
    if (status != TREK_OK)
        fail_msg("%s", trek_error());
    return graph;
}

/* --- a record of a run -------------------------------------------------------------------------- */

typedef struct record {
    int n;
    double values[MOST];
} record;

static void note(record *to, const trek_tensor *tensor)
{
    int64_t count = trek_tensor_numel(tensor);
    assert_true(to->n + count <= MOST);
    assert_int_equal(trek_tensor_to_host(tensor, TREK_F64, to->values + to->n, (size_t)count * sizeof(double)), TREK_OK);
    to->n += (int)count;
}

static trek_status note_param(const char *name, trek_var *param, void *arg)
{
    (void)name;
    note(arg, trek_var_data(param));
    if (trek_var_grad(param))
        note(arg, trek_var_data(trek_var_grad(param)));
    return TREK_OK;
}

static trek_status note_buffer(const char *name, trek_var *buffer, void *arg)
{
    (void)name;
    note(arg, trek_var_data(buffer));
    return TREK_OK;
}

static trek_var *typed(uint32_t stream, trek_shape shape, trek_dtype dtype)
{
    trek_tensor *plain = test_tensor(stream, shape, 2);
    trek_var *var = trek_var_from(trek_tensor_cast(plain, dtype));
    trek_tensor_release(plain);
    return var;
}

static trek_var *labels_of(int64_t rows, int step)
{
    double values[64];
    for (int64_t k = 0; k < rows; k++)
        values[k] = (double)((k * 5 + step) % CLASSES);
    return trek_var_from(test_values(values, trek_dims(rows), TREK_I64));
}

/* Outputs, losses, gradients of inputs and parameters, buffers after each step. */
static void train(trek_graph *graph, const model_opts *o, int64_t rows, record *to)
{
    to->n = 0;
    for (int step = 0; step < STEPS; step++) {
        trek_scope scope = trek_scope_begin();
        /* far from 0, so that a variance from plain sums of squares would be off */
        trek_var *x = trek_add_scalar(typed(20 + (uint32_t)step, trek_dims(rows, WIDTH), o->dtype), 3);
        x = trek_clone(trek_var_detach(x));
        assert_int_equal(trek_var_set_requires_grad(x, true), TREK_OK);
        trek_var *y = trek_graph_forward(graph, x);
        trek_var *loss = trek_cross_entropy(y, labels_of(rows, step));
        if (!loss || trek_backward(loss) != TREK_OK || trek_graph_reduce(graph) != TREK_OK)
            fail_msg("step %d: %s", step, trek_error());
        note(to, trek_var_data(y));
        note(to, trek_var_data(loss));
        note(to, trek_var_data(trek_var_grad(x)));
        assert_int_equal(trek_module_each_param(trek_graph_module(graph), note_param, to), TREK_OK);
        assert_int_equal(trek_graph_step(graph), TREK_OK);
        assert_int_equal(trek_module_each_buffer(trek_graph_module(graph), note_buffer, to), TREK_OK);
        trek_scope_end(scope);
    }
    /* in evaluation every rank has the same running statistics */
    assert_int_equal(trek_graph_train(graph, false), TREK_OK);
    trek_scope scope = trek_scope_begin();
    trek_no_grad_begin();
    note(to, trek_var_data(trek_graph_forward(graph, typed(40, trek_dims(7, WIDTH), o->dtype))));
    trek_no_grad_end();
    trek_scope_end(scope);
}

static void expect_close(const record *got, const record *expected, double tolerance, const char *what)
{
    assert_int_equal(got->n, expected->n);
    for (int k = 0; k < got->n; k++)
        if (!(fabs(got->values[k] - expected->values[k]) <= tolerance * (1 + fabs(expected->values[k]))))
            fail_msg("%s: number %d of %d is %.17g instead of %.17g", what, k, got->n, got->values[k], expected->values[k]);
}

static void against_one_device(trek_dtype dtype, bool separate, bool cumulative, bool own)
{
    static const int worlds[] = { 1, 2, 3, 5 };
    static const int64_t sizes[] = { 11, 10, 3, 2 }; /* fewer rows than ranks, too */
    static record one, many;
    trek_optimizer_spec sgd = trek_sgd((trek_sgd_opts){ .lr = 0.1, .momentum = 0.9 });
    for (int s = 0; s < 4; s++) {
        model_opts plain = { .dtype = dtype, .cumulative = cumulative },
            sync = { .sync = true, .own = own, .dtype = dtype, .cumulative = cumulative };
        trek_graph *graph = set_up(&plain, 1, sgd, false);
        train(graph, &plain, sizes[s], &one);
        trek_graph_free(&graph);
        for (int w = 0; w < 4; w++) {
            char what[64];
            snprintf(what, sizeof what, "%d ranks, %d rows", worlds[w], (int)sizes[s]);
            graph = set_up(&sync, worlds[w], sgd, separate);
            train(graph, &sync, sizes[s], &many);
            expect_close(&many, &one, worlds[w] == 1 ? 0 : dtype == TREK_F64 ? 1e-11 : 2e-4, what);
            trek_graph_free(&graph);
        }
    }
}

static void f64_is_exact(void **state) { (void)state, against_one_device(TREK_F64, false, false, false); }
static void f32_too(void **state) { (void)state, against_one_device(TREK_F32, false, false, false); }
static void with_parameters_of_their_own(void **state) { (void)state, against_one_device(TREK_F64, true, true, false); }

/* That layers meet is read off the class, not known of one. */
static void a_class_of_ones_own_meets(void **state) { (void)state, against_one_device(TREK_F64, true, false, true); }

/* And so is what ranks do not have as a single device has it: the line in the log names the layers. */
static void keep_line(trek_log_level level, const char *message, void *arg)
{
    (void)level;
    char *line = arg;
    if (strstr(message, "exact"))
        snprintf(line, 512, "%s", message);
}

typedef struct centre {
    trek_module base;
} centre;

static trek_var *centre_forward(trek_module *self, trek_var *x)
{
    return self->training ? trek_sub(x, trek_mean(x, trek_dims(0), true)) : trek_mul_scalar(x, 1);
}

static trek_graph *build_centred(trek_device device, void *arg)
{
    (void)device;
    static trek_module_class klass = { .name = "centre", .size = sizeof(centre), .forward = centre_forward };
    klass.couples_samples = *(const bool *)arg;
    trek_linear_opts linear = { .in = WIDTH, .out = CLASSES, .device = device };
    trek_module *modules[2] = { trek_nn_linear_with(&linear), trek_module_new(&klass) };
    return trek_flow_build(trek_flow_from(trek_nn_sequential(2, modules)));
}

static void setup_names_layers_that_couple_samples(void **state)
{
    (void)state;
    for (int couples = 0; couples < 2; couples++) {
        bool arg = couples;
        char line[512] = "";
        trek_device devices[2] = { test_device_of_rank(0), test_device_of_rank(1) };
        trek_graph *graph = build_centred(devices[0], &arg);
        trek_log_set(TREK_LOG_INFO, keep_line, line);
        trek_status status = trek_trainer_setup(graph,
                                                &(trek_trainer_opts){ .build_replica = build_centred, .arg = &arg,
                                                                      .devices = devices,
            .ranks = 2, .optimizer = trek_sgd((trek_sgd_opts){ .lr = 0.1 }) });
        trek_log_set(TREK_LOG_WARNING, NULL, NULL);
        assert_int_equal(status, TREK_OK);
        if ((strstr(line, "centre") != NULL) != couples)
            fail_msg("couples_samples %d: \"%s\"", couples, line);
        trek_graph_free(&graph);
    }
}

/* Several passes before a step: ranks that had no rows in one of them know less of the running statistics. */
static void train_passes(trek_graph *graph, record *to)
{
    static const int64_t rows[3][3] = { { 9, 2, 7 }, { 2, 9, 3 }, { 2, 2, 2 } };
    to->n = 0;
    for (int step = 0; step < 3; step++) {
        for (int k = 0; k < 3; k++) {
            trek_scope scope = trek_scope_begin();
            trek_var *x = typed(50 + 3 * (uint32_t)step + (uint32_t)k, trek_dims(rows[step][k], WIDTH), TREK_F64);
            if (trek_graph_backward(graph, trek_cross_entropy(trek_graph_forward(graph, x),
                                                              labels_of(rows[step][k], k))) != TREK_OK)
                fail_msg("%s", trek_error());
            trek_scope_end(scope);
        }
        assert_int_equal(trek_graph_step(graph), TREK_OK);
        assert_int_equal(trek_module_each_param(trek_graph_module(graph), note_param, to), TREK_OK);
        assert_int_equal(trek_module_each_buffer(trek_graph_module(graph), note_buffer, to), TREK_OK);
        for (int r = 1; r < trek_graph_world_size(graph); r++) { /* all ranks have them */
            static record own, other;
            own.n = other.n = 0;
            assert_int_equal(trek_module_each_buffer(trek_graph_module(graph), note_buffer, &own), TREK_OK);
            assert_int_equal(trek_module_each_buffer(trek_graph_module(trek_graph_replica(graph, r)), note_buffer, &other),
                             TREK_OK);
            expect_close(&other, &own, 0, "a replica");
        }
    }
}

static void several_passes(void **state)
{
    (void)state;
    static record one, many;
    model_opts plain = { .dtype = TREK_F64 }, sync = { .sync = true, .dtype = TREK_F64 };
    trek_graph *graph = set_up(&plain, 1, trek_sgd((trek_sgd_opts){ .lr = 0.1 }), false);
    train_passes(graph, &one);
    trek_graph_free(&graph);
    for (int world = 2; world <= 5; world += 3) {
        graph = set_up(&sync, world, trek_sgd((trek_sgd_opts){ .lr = 0.1 }), world == 2);
        train_passes(graph, &many);
        expect_close(&many, &one, 1e-11, "several passes");
        trek_graph_free(&graph);
    }
}

/* --- slopes, and what cannot be normalised --------------------------------------------------------- */

static double loss_of(trek_graph *graph, const double *values, int64_t rows, double *gradient)
{
    trek_scope scope = trek_scope_begin();
    trek_var *x = trek_var_from(test_values(values, trek_dims(rows, WIDTH), TREK_F64));
    assert_int_equal(trek_var_set_requires_grad(x, gradient != NULL), TREK_OK);
    trek_var *loss = trek_cross_entropy(trek_graph_forward(graph, x), labels_of(rows, 1));
    if (!loss)
        fail_msg("%s", trek_error());
    double value = trek_var_item(loss);
    if (gradient) {
        assert_int_equal(trek_backward(loss), TREK_OK);
        assert_int_equal(trek_tensor_to_host(trek_var_data(trek_var_grad(x)), TREK_F64, gradient,
                                             (size_t)(rows * WIDTH) * sizeof *gradient), TREK_OK);
    }
    trek_scope_end(scope);
    return value;
}

static void slopes(void **state)
{
    (void)state;
    enum { ROWS = 7 };
    model_opts o = { .sync = true, .dtype = TREK_F64 };
    trek_graph *graph = set_up(&o, 3, trek_sgd((trek_sgd_opts){ 0 }), false);
    double values[ROWS * WIDTH], gradient[ROWS * WIDTH];
    for (int k = 0; k < ROWS * WIDTH; k++)
        values[k] = test_number(3, (uint32_t)k);
    loss_of(graph, values, ROWS, gradient);
    for (int k = 0; k < ROWS * WIDTH; k++) {
        double kept = values[k], sides[2];
        for (int side = 0; side < 2; side++) {
            values[k] = kept + (side ? 1e-5 : -1e-5);
            sides[side] = loss_of(graph, values, ROWS, NULL);
        }
        values[k] = kept;
        double slope = (sides[1] - sides[0]) / 2e-5;
        if (!(fabs(slope - gradient[k]) <= 1e-7 * (1 + fabs(slope))))
            fail_msg("element %d: %.10g, differences say %.10g", k, gradient[k], slope);
    }
    trek_graph_free(&graph);
}

static void expect(trek_status status, const char *text)
{
    assert_int_equal(trek_status_get(), status);
    if (!strstr(trek_error(), text))
        fail_msg("\"%s\" does not say \"%s\"", trek_error(), text);
    trek_error_clear();
}

static void one_value_is_an_error(void **state)
{
    (void)state;
    model_opts o = { .sync = true, .dtype = TREK_F32 };
    trek_graph *graph = set_up(&o, 3, trek_sgd((trek_sgd_opts){ 0 }), false);
    trek_scope scope = trek_scope_begin();
    assert_null(trek_graph_forward(graph, typed(1, trek_dims(1, WIDTH), TREK_F32)));
    expect(TREK_ERR_SHAPE, "more than 1 value");
    assert_non_null(trek_graph_forward(graph, typed(1, trek_dims(2, WIDTH), TREK_F32))); /* on two ranks 1 each */
    trek_module *layer = trek_nn_sync_batch_norm(CHANNELS, test_device());
    assert_null(trek_forward(layer, typed(1, trek_dims(4, CHANNELS + 1), TREK_F32)));
    expect(TREK_ERR_SHAPE, "needs [N, 3, ...]");
    assert_null(trek_forward(layer, typed(1, trek_dims(CHANNELS), TREK_F32)));
    expect(TREK_ERR_SHAPE, "needs [N, 3, ...]");
    trek_module_free(&layer);
    trek_scope_end(scope);
    trek_graph_free(&graph);
}

/* --- a rank that fails does not hang the others ------------------------------------------------------ */

static net *net_of(trek_graph *graph, int rank)
{
    return (net *)trek_graph_module(trek_graph_replica(graph, rank))->children[0].module;
}

static void a_rank_that_fails(void **state)
{
    (void)state;
    model_opts o = { .sync = true, .dtype = TREK_F64 };
    trek_graph *graph = set_up(&o, 3, trek_sgd((trek_sgd_opts){ 0 }), false);
    static record before, after;
    for (int round = 0; round < 6; round++) {
        int rank = round % 3;
        char who[16];
        snprintf(who, sizeof who, "rank %d:", rank);
        net *victim = net_of(graph, rank);
        assert_ptr_equal(victim->base.klass, &net_class);
        before.n = after.n = 0;
        assert_int_equal(trek_module_each_param(trek_graph_module(graph), note_param, &before), TREK_OK);
        victim->fails = round < 3 ? IN_FORWARD : IN_BACKWARD;
        trek_scope scope = trek_scope_begin();
        trek_var *y = trek_graph_forward(graph, typed(1, trek_dims(8, WIDTH), TREK_F64));
        if (round < 3) {
            assert_null(y);
        } else {
            assert_non_null(y);
            assert_int_not_equal(trek_graph_backward(graph, trek_cross_entropy(y, labels_of(8, 0))), TREK_OK);
        }
        assert_int_equal(trek_status_get(), TREK_ERR_STATE);
        expect(TREK_ERR_STATE, who);
        trek_scope_end(scope);
        victim->fails = NOWHERE;
        assert_int_equal(trek_graph_zero_grad(graph), TREK_OK);
        assert_int_equal(trek_module_each_param(trek_graph_module(graph), note_param, &after), TREK_OK);
        assert_memory_equal(after.values, before.values, (size_t)(before.n < after.n ? before.n : after.n) * sizeof(double));
        scope = trek_scope_begin();
        trek_var *loss = trek_cross_entropy(trek_graph_forward(graph, typed(1, trek_dims(8, WIDTH), TREK_F64)), labels_of(8, 0));
        assert_int_equal(trek_graph_backward(graph, loss), TREK_OK);
        assert_int_equal(trek_graph_step(graph), TREK_OK);
        trek_scope_end(scope);
    }
    trek_graph_free(&graph);
}

static void no_memory(void **state)
{
    (void)state;
    model_opts o = { .sync = true, .dtype = TREK_F32 };
    trek_graph *graph = set_up(&o, 2, trek_sgd((trek_sgd_opts){ 0 }), false);
    int failed = 0;
    for (int64_t fail_at = 0; fail_at < 300; fail_at += 3) {
        trek_scope scope = trek_scope_begin();
        trek_var *x = typed(1, trek_dims(5, WIDTH), TREK_F32), *labels = labels_of(5, 0);
        test_memory.fail_count = 8; /* a second try is made after cached memory was given back, by either rank */
        test_allocator_restart(fail_at);
        trek_status status = trek_graph_backward(graph, trek_cross_entropy(trek_graph_forward(graph, x), labels));
        test_allocator_restart(0);
        if (status != TREK_OK && status != TREK_ERR_MEMORY)
            fail_msg("allocation %d: %s", (int)fail_at, trek_error());
        failed += status != TREK_OK;
        trek_error_clear();
        trek_scope_end(scope);
        assert_int_equal(trek_graph_zero_grad(graph), TREK_OK);
        assert_int_equal(trek_tape_size(), 0);
    }
    test_memory.fail_count = 0;
    assert_true(failed > 10); /* how many depends on which rank's they are */
    trek_graph_free(&graph);
}

/* --- the sums themselves ----------------------------------------------------------------------------- */

enum { WORLD = 5, COUNT = 37, ROUNDS = 50 };

typedef struct sums_test {
    trek_rank_sums *sums[2];   /* of one process, or of two */
    int per_process;
    bool takes_part[WORLD];
    int fails_at[WORLD];       /* the round in which a rank fails; -1: leaves without a word; 0: never */
    int counts_differ;         /* the rank that comes with one number fewer in round 3; 0: none */
    int late;                  /* the rank that sleeps in round 3 */
    int sleep_ms;
    trek_status results[WORLD];
    int64_t waited[WORLD];
    double last[WORLD][COUNT];
} sums_test;

static trek_status make_sums(sums_test *t, int rank)
{
    for (int round = 1; round <= ROUNDS; round++) {
        if (t->fails_at[rank] == round)
            return trek_fail(TREK_ERR_STATE, "rank %d was told to fail", rank);
        if (t->fails_at[rank] == -round)
            return TREK_OK;
        if (t->late == rank && t->sleep_ms && round == 3)
            usleep((useconds_t)t->sleep_ms * 1000);
        double *values = t->last[rank];
        for (int k = 0; k < COUNT; k++)
            values[k] = test_number(60 + (uint32_t)rank, (uint32_t)(round * COUNT + k)) * pow(10, k % 7);
        int64_t count = t->counts_differ == rank && rank > 0 && round == 3 ? COUNT - 1 : COUNT;
        const trek_place_collectives *ranks = trek_place_here.collectives;
        trek_status status = ranks->sum(values, count, ranks->arg);
        if (status != TREK_OK)
            return status;
    }
    return TREK_OK;
}

static trek_status sums_rank(int rank, void *arg)
{
    sums_test *t = arg;
    if (!t->takes_part[rank])
        return TREK_OK;
    trek_rank_sums *sums = t->sums[rank / t->per_process];
    int64_t before = trek_place_here.waited_ns;
    trek_rank_sums_enter(sums, rank % t->per_process);
    t->results[rank] = make_sums(t, rank);
    trek_rank_sums_leave(sums, rank % t->per_process, t->results[rank]);
    t->waited[rank] = trek_place_here.waited_ns - before;
    return t->results[rank];
}

static trek_status run_sums(trek_ranks *ranks, sums_test *t)
{
    bool of_process[WORLD];
    for (int p = 0; p < 2 && t->sums[p]; p++) {
        for (int r = 0; r < t->per_process; r++)
            of_process[r] = p * t->per_process + r < WORLD && t->takes_part[p * t->per_process + r];
        trek_rank_sums_begin(t->sums[p], of_process, t->sums[1] != NULL);
    }
    return trek_ranks_run(ranks, sums_rank, t);
}

/* What the last round must have come to, added in rank order, within processes first. */
static void expect_sums(const sums_test *t)
{
    for (int k = 0; k < COUNT; k++) {
        double all = 0;
        for (int p = 0; p < 2 && t->sums[p]; p++) {
            double sum = 0;
            bool first = true;
            for (int r = p * t->per_process; r < (p + 1) * t->per_process && r < WORLD; r++) {
                if (!t->takes_part[r])
                    continue;
                double value = test_number(60 + (uint32_t)r, (uint32_t)(ROUNDS * COUNT + k)) * pow(10, k % 7);
                sum = first ? value : sum + value;
                first = false;
            }
            all = p ? all + sum : sum;
        }
        for (int r = 0; r < WORLD; r++)
            if (t->takes_part[r])
                assert_true(t->last[r][k] == all);
    }
}

static void sums_in_rank_order(void **state)
{
    (void)state;
    trek_ranks *ranks = trek_ranks_new(NULL, WORLD);
    sums_test t = { .per_process = WORLD, .sums = { trek_rank_sums_new(WORLD, false) } };
    assert_non_null(ranks);
    assert_non_null(t.sums[0]);
    for (int set = 0; set < 1 << WORLD; set += 3) {
        int n = 0;
        for (int r = 0; r < WORLD; r++)
            n += t.takes_part[r] = set >> r & 1;
        if (n < 2)
            continue;
        assert_int_equal(run_sums(ranks, &t), TREK_OK);
        expect_sums(&t);
    }
    trek_rank_sums_free(&t.sums[0]);
    trek_ranks_free(&ranks);
}

static void who_is_alone_makes_none(void **state)
{
    (void)state;
    trek_rank_sums *sums = trek_rank_sums_new(3, false);
    trek_rank_sums_begin(sums, (bool[]){ false, true, false }, false);
    for (int rank = 0; rank < 3; rank++) {
        trek_rank_sums_enter(sums, rank);
        assert_null(trek_place_here.collectives);
        trek_rank_sums_leave(sums, rank, TREK_OK);
    }
    trek_rank_sums_begin(sums, (bool[]){ true, true, false }, false);
    trek_rank_sums_enter(sums, 2);
    assert_null(trek_place_here.collectives);
    trek_rank_sums_enter(sums, 1);
    assert_non_null(trek_place_here.collectives);
    trek_rank_sums_leave(sums, 1, TREK_OK);
    assert_null(trek_place_here.collectives);
    trek_rank_sums_free(&sums);
}

static sums_test fresh(trek_rank_sums *sums)
{
    return (sums_test){ .per_process = WORLD, .sums = { sums }, .takes_part = { true, true, false, true, true } };
}

static void failures_wake_the_others(void **state)
{
    (void)state;
    trek_ranks *ranks = trek_ranks_new(NULL, WORLD);
    trek_rank_sums *sums = trek_rank_sums_new(WORLD, false);
    static const int victims[] = { 0, 1, 3, 4 };
    for (int k = 0; k < 12; k++) {
        int victim = victims[k % 4];
        char who[32];
        sums_test t = fresh(sums);
        t.fails_at[victim] = 1 + 7 * (k / 4);
        snprintf(who, sizeof who, "rank %d: rank %d was told", victim, victim);
        assert_int_equal(run_sums(ranks, &t), TREK_ERR_STATE);
        expect(TREK_ERR_STATE, who);
        for (int r = 0; r < WORLD; r++)
            assert_int_equal(t.results[r], r == victim ? TREK_ERR_STATE : t.takes_part[r] ? TREK_ERR_PEER : TREK_OK);
        t = fresh(sums); /* and works again */
        assert_int_equal(run_sums(ranks, &t), TREK_OK);
        expect_sums(&t);
        t.fails_at[victim] = -5;
        assert_int_equal(run_sums(ranks, &t), TREK_ERR_COMM);
        snprintf(who, sizeof who, "rank %d ended after 4 sums", victim);
        expect(TREK_ERR_COMM, who);
    }
    sums_test t = fresh(sums);
    t.counts_differ = 3;
    assert_int_equal(run_sums(ranks, &t), TREK_ERR_COMM);
    expect(TREK_ERR_COMM, "rank 0 comes with 37 numbers, rank 3 with 36");
    trek_rank_sums_free(&sums);
    trek_ranks_free(&ranks);
}

static void late_ranks(void **state)
{
    (void)state;
    trek_ranks *ranks = trek_ranks_new(NULL, WORLD);
    trek_rank_sums *sums = trek_rank_sums_new(WORLD, false);
    sums_test t = fresh(sums);
    t.late = 3, t.sleep_ms = 100;
    assert_int_equal(run_sums(ranks, &t), TREK_OK);
    expect_sums(&t);
    assert_true(t.waited[0] > 80000000 && t.waited[1] > 80000000 && t.waited[3] < 80000000); /* those who waited know it */
    trek_rank_sums_set_deadline(sums, 50000000);
    t.sleep_ms = 300;
    assert_int_equal(run_sums(ranks, &t), TREK_ERR_TIMEOUT);
    expect(TREK_ERR_TIMEOUT, "rank 3 did not come within 0.05 s");
    assert_int_equal(t.results[3], TREK_ERR_TIMEOUT);
    trek_rank_sums_free(&sums);
    trek_ranks_free(&ranks);
}

/* Two processes, each a thread for its rank here, of 3 and 2 ranks. */
static void between_processes(void **state)
{
    (void)state;
    trek_ranks *ranks = trek_ranks_new(NULL, WORLD);
    trek_comm *comms[2];
    sums_test t = { .per_process = 3, .sums = { trek_rank_sums_new(3, false), trek_rank_sums_new(3, false) },
                    .takes_part = { true, true, true, true, true } };
    assert_int_equal(trek_comm_local(NULL, 2, comms), TREK_OK);
    for (int p = 0; p < 2; p++)
        trek_rank_sums_set_comm(t.sums[p], comms[p]);
    for (int round = 0; round < 3; round++) {
        assert_int_equal(run_sums(ranks, &t), TREK_OK);
        expect_sums(&t);
        t.takes_part[4] = false; /* the second process has one rank now, which still meets the first's */
        t.takes_part[round] = round == 2;
    }
    for (int r = 0; r < WORLD; r++) {
        t.takes_part[r] = true;
        t.fails_at[r] = r == 1 ? 9 : 0;
    }
    assert_int_equal(run_sums(ranks, &t), TREK_ERR_STATE); /* ends the sums of the other process, too */
    expect(TREK_ERR_STATE, "rank 1 was told to fail");
    for (int r = 0; r < WORLD; r++)
        assert_int_equal(t.results[r], r == 1 ? TREK_ERR_STATE : r < 3 ? TREK_ERR_PEER : TREK_ERR_CANCELLED);
    for (int p = 0; p < 2; p++) {
        trek_rank_sums_free(&t.sums[p]);
        trek_comm_free(&comms[p]);
    }
    trek_ranks_free(&ranks);
}

/* --- with a loader: losses of their own on each rank, and on processes --------------------------------- */

enum { SAMPLES = 20 };

/* The first labels of each batch of 6 are ignored, and all of the last: the first rank's loss, or all of them, weigh nothing. */
static trek_loader *loader_new(int64_t batch)
{
    static double values[SAMPLES * WIDTH];
    static int64_t labels[SAMPLES];
    for (int k = 0; k < SAMPLES * WIDTH; k++)
        values[k] = test_number(31, (uint32_t)k);
    for (int k = 0; k < SAMPLES; k++)
        labels[k] = k % 6 < 3 ? -100 : k % CLASSES;
    trek_tensor *tensors[2] = { trek_tensor_from_data(values, trek_dims(SAMPLES, WIDTH), TREK_F64, trek_cpu(0)),
                                trek_tensor_from_data(labels, trek_dims(SAMPLES), TREK_I64, trek_cpu(0)) };
    const char *names[2] = { "x", "label" };
    trek_loader *loader = trek_loader_new(trek_dataset_tensors(names, tensors, 2),
                                          &(trek_loader_opts){ .batch_size = batch, .device = test_device() });
    trek_tensor_release(tensors[0]);
    trek_tensor_release(tensors[1]);
    assert_non_null(loader);
    return loader;
}

static trek_var *label_loss(trek_graph *graph, trek_var *output, const trek_batch *batch, void *arg)
{
    (void)graph, (void)arg;
    return trek_cross_entropy(output, trek_batch_get(batch, "label"));
}

typedef struct fed_run {
    int world, batch;
    bool gathered, sync, windows;
    const trek_plan *plan;
} fed_run;

static trek_status pass(trek_graph *graph, trek_batch *batch, bool gathered)
{
    if (!gathered)
        return trek_graph_forward_batch(graph, batch) ? TREK_OK : trek_status_get();
    return trek_graph_backward(graph, trek_cross_entropy(trek_graph_forward(graph, trek_batch_get(batch, "x")),
                                                         trek_batch_get(batch, "label")));
}

/* One epoch; parameters and buffers after each step. */
static void train_fed(const fed_run *c, record *to)
{
    model_opts o = { .sync = c->sync, .dtype = TREK_F64 };
    trek_device devices[5];
    for (int r = 0; r < 5; r++)
        devices[r] = test_device_of_rank(r);
    trek_graph *graph = build(devices[0], &o);
    trek_loader *loader = loader_new(c->batch);
    assert_non_null(graph);
    assert_int_equal(trek_graph_set_loader(graph, loader, "x"), TREK_OK);
    assert_int_equal(trek_graph_set_loss(graph, c->gathered ? NULL : label_loss, NULL), TREK_OK);
    trek_status status = trek_trainer_setup(graph,
                                            &(trek_trainer_opts){ .build_replica = build, .arg = &o, .devices = devices,
                                                                  .ranks = c->world,
        .optimizer = trek_sgd((trek_sgd_opts){ .lr = 0.1, .momentum = 0.9 }), .deadline_s = 20,
        .max_anchor = c->windows ? 2 : TREK_OFF, .anchor = 1, .plan = c->plan });
    if (status != TREK_OK)
        fail_msg("%s", trek_error());
    to->n = 0;
    assert_int_equal(trek_graph_start(graph, 0), TREK_OK);
    for (trek_batch *batch; (batch = trek_graph_next(graph));) {
        if (pass(graph, batch, c->gathered) != TREK_OK || trek_graph_step(graph) != TREK_OK)
            fail_msg("%d ranks, batches of %d: %s", c->world, c->batch, trek_error());
        assert_int_equal(trek_module_each_param(trek_graph_module(graph), note_param, to), TREK_OK);
        assert_int_equal(trek_module_each_buffer(trek_graph_module(graph), note_buffer, to), TREK_OK);
    }
    assert_int_equal(trek_status_get(), TREK_OK);
    trek_graph_free(&graph);
    trek_loader_free(&loader);
}

static record fed_one, fed_many;

static void losses_of_their_own(void **state)
{
    (void)state;
    for (int batch = 4; batch <= 6; batch++) {
        train_fed(&(fed_run){ .world = 1, .batch = batch }, &fed_one);
        for (int world = 1; world <= 5; world += 2 - world % 2) {
            train_fed(&(fed_run){ .world = world, .batch = batch, .sync = true }, &fed_many);
            expect_close(&fed_many, &fed_one, 1e-11, "per rank");
        }
        train_fed(&(fed_run){ .world = 1, .batch = batch, .gathered = true }, &fed_one);
        for (int world = 1; world <= 5; world += 2 - world % 2) {
            train_fed(&(fed_run){ .world = world, .batch = batch, .sync = true, .gathered = true }, &fed_many);
            expect_close(&fed_many, &fed_one, 1e-11, "gathered");
        }
    }
}

/* Shares that leave the first rank, or others, without rows. */
static void shares_of_nothing(void **state)
{
    (void)state;
    static const double shares[][3] = { { 0.05, 0.05, 0.9 }, { 0.9, 0.05, 0.05 }, { 0.05, 0.9, 0.05 }, { 0, 0.5, 0.5 },
                                        { 0.5, 0, 0.5 } };
    for (int k = 0; k < 10; k++) {
        trek_plan *plan = trek_plan_new(3);
        bool gathered = k % 2;
        assert_int_equal(trek_plan_add_shares(plan, 0, shares[k / 2]), TREK_OK);
        train_fed(&(fed_run){ .world = 1, .batch = 4, .gathered = gathered }, &fed_one);
        train_fed(&(fed_run){ .world = 3, .batch = 4, .sync = true, .gathered = gathered, .plan = plan }, &fed_many);
        expect_close(&fed_many, &fed_one, 1e-11, gathered ? "gathered" : "per rank");
        trek_plan_free(&plan);
    }
}

static char setup_line[512];

static void keep_setup_line(trek_log_level level, const char *message, void *arg)
{
    (void)level, (void)arg;
    if (strncmp(message, "trainer:", 8) == 0)
        snprintf(setup_line, sizeof setup_line, "%s", message);
}

/* In windows ranks do not meet: it is plain batch norm there, and setup says so. */
static void windows(void **state)
{
    (void)state;
    trek_log_set(TREK_LOG_INFO, keep_setup_line, NULL);
    train_fed(&(fed_run){ .world = 2, .batch = 4, .sync = true }, &fed_many);
    assert_non_null(strstr(setup_line, "; exact"));
    assert_null(strstr(setup_line, "exact but"));
    train_fed(&(fed_run){ .world = 2, .batch = 4, .windows = true, .sync = true }, &fed_many);
    assert_non_null(strstr(
        setup_line,
        "exact but for the statistics of each rank's own part in sync_batch_norm \"0.norm\", sync_batch_norm \"0.second\""));
    trek_log_set(TREK_LOG_ERROR, NULL, NULL);
    train_fed(&(fed_run){ .world = 2, .batch = 4, .windows = true }, &fed_one);
    train_fed(&(fed_run){ .world = 2, .batch = 4, .windows = true, .sync = true }, &fed_many);
    assert_true(fed_many.n > 0 && fed_one.n > 0); /* how many steps there are follows the clock */
    for (int k = 0; k < fed_many.n; k++)
        assert_true(isfinite(fed_many.values[k]));
}

/* --- loops of one's own: trek_ddp ------------------------------------------------------------------------ */

/* Rows of each rank; all together ROWS. */
enum { ROWS = 10 };
static const int64_t rows_of_rank[4][3] = { { 0 }, { ROWS }, { 7, 3 }, { 5, 1, 4 } };

typedef enum manner { JOINED, DIVIDED, IN_RUNS, EACH_ITS_OWN, MANNERS } manner;

static struct {
    int world, step;
    manner manner;
    trek_module *models[3];
    trek_optimizer *optimizers[3];
    trek_ddp *ddp[3];        /* one of all ranks, or one of each */
    trek_comm *comms[3];
    trek_status status[3];
    char message[3][256];
} hand;

static trek_ddp *ddp_of(int rank) { return hand.ddp[hand.manner == EACH_ITS_OWN ? rank : 0]; }

/* Rows [first, first + n) of the step's batch, and their labels; n may be 0. */
static trek_var *rows_between(int64_t first, int64_t n)
{
    trek_var *x = trek_add_scalar(typed(60 + (uint32_t)hand.step, trek_dims(ROWS, WIDTH), TREK_F64), 3);
    return trek_narrow(x, 0, first, n);
}

static trek_var *mean_loss(trek_var *y, int64_t first, int64_t n)
{
    return trek_cross_entropy(y, trek_narrow(labels_of(ROWS, hand.step), 0, first, n));
}

static void take_step(int rank)
{
    trek_optimizer_step(hand.optimizers[rank]);
    trek_optimizer_zero_grad(hand.optimizers[rank]);
}

static trek_status hand_rank(int rank)
{
    trek_scope scope = trek_scope_begin();
    int64_t first = 0, n = rows_of_rank[hand.world][rank];
    for (int r = 0; r < rank; r++)
        first += rows_of_rank[hand.world][r];
    trek_var *y = trek_forward(hand.models[rank], rows_between(first, n));
    trek_ddp_backward_weighted(ddp_of(rank), mean_loss(y, first, n), (double)n);
    take_step(rank);
    trek_scope_end(scope);
    return trek_status_get();
}

static trek_status hand_in_run(int rank, void *arg) { return (void)arg, hand_rank(rank); }

static void *hand_thread(void *arg)
{
    int rank = *(int *)arg;
    if (hand.step == 0)
        hand.ddp[rank] = trek_ddp_wrap_process(hand.models[rank], hand.comms[rank], NULL);
    trek_params *params = hand.step == 0 && hand.ddp[rank] ? trek_module_params(hand.models[rank]) : NULL;
    if (params)
        hand.optimizers[rank] = trek_optimizer_new(trek_sgd((trek_sgd_opts){ .lr = 0.1, .momentum = 0.9 }), params);
    trek_params_free(&params);
    hand.status[rank] = hand_rank(rank);
    snprintf(hand.message[rank], sizeof hand.message[rank], "%.255s", trek_status_get() ? trek_error() : "");
    trek_error_clear();
    return NULL;
}

static void hand_threads(void)
{
    pthread_t threads[3];
    int ranks[3];
    for (int r = 0; r < hand.world; r++) {
        ranks[r] = r;
        assert_int_equal(pthread_create(&threads[r], NULL, hand_thread, &ranks[r]), 0);
    }
    for (int r = 0; r < hand.world; r++)
        pthread_join(threads[r], NULL);
    for (int r = 0; r < hand.world; r++)
        if (hand.status[r] != TREK_OK)
            fail_msg("rank %d: %s", r, hand.message[r]);
}

static void hand_joined(void)
{
    trek_scope scope = trek_scope_begin();
    trek_var *parts[3] = { NULL };
    int64_t first = 0;
    for (int r = 0; r < hand.world; first += rows_of_rank[hand.world][r++])
        parts[r] = rows_between(first, rows_of_rank[hand.world][r]);
    trek_var *y = hand.manner == JOINED ? trek_ddp_forward(hand.ddp[0], parts)
        : trek_forward(trek_ddp_module(hand.ddp[0]), rows_between(0, ROWS));
    assert_int_equal(trek_ddp_backward(hand.ddp[0], mean_loss(y, 0, ROWS)), TREK_OK);
    for (int r = 0; r < hand.world; r++)
        take_step(r);
    trek_scope_end(scope);
}

static void train_by_hand(int world, manner manner, bool sync, record *to)
{
    model_opts o = { .sync = sync, .dtype = TREK_F64 };
    memset(&hand, 0, sizeof hand);
    hand.world = world, hand.manner = manner;
    trek_device devices[3];
    for (int r = 0; r < world; r++) {
        devices[r] = test_device_of_rank(r);
        hand.models[r] = net_new(&o, devices[r]);
    }
    if (manner == EACH_ITS_OWN)
        assert_int_equal(trek_comm_local(devices, world, hand.comms), TREK_OK);
    else
        assert_non_null(hand.ddp[0] = trek_ddp_wrap(hand.models, world, NULL));
    for (int r = 0; r < world && manner != EACH_ITS_OWN; r++) {
        trek_params *params = trek_module_params(hand.models[r]);
        hand.optimizers[r] = trek_optimizer_new(trek_sgd((trek_sgd_opts){ .lr = 0.1, .momentum = 0.9 }), params);
        trek_params_free(&params);
    }
    to->n = 0;
    for (hand.step = 0; hand.step < STEPS; hand.step++) {
        if (manner == EACH_ITS_OWN)
            hand_threads();
        else if (manner == IN_RUNS && world > 1)
            assert_int_equal(trek_ranks_run(trek_ddp_ranks(hand.ddp[0]), hand_in_run, NULL), TREK_OK);
        else
            hand_joined();
        for (int r = 0; r < world; r++) { /* all ranks have the same, buffers by themselves */
            assert_int_equal(trek_module_each_param(hand.models[r], note_param, to), TREK_OK);
            assert_int_equal(trek_module_each_buffer(hand.models[r], note_buffer, to), TREK_OK);
        }
    }
    for (int r = 0; r < world; r++)
        trek_optimizer_free(&hand.optimizers[r]);
    for (int r = 0; r < world; r++)
        trek_ddp_free(&hand.ddp[r]);
    for (int r = 0; r < world; r++)
        trek_comm_free(&hand.comms[r]);
}

static void by_hand(void **state)
{
    (void)state;
    static record one, many, each;
    train_by_hand(1, JOINED, false, &one);
    for (int manner = 0; manner < MANNERS; manner++)
        for (int world = 2; world <= 3; world++) {
            char what[64];
            train_by_hand(world, (enum manner)manner, true, &many);
            int n = one.n / STEPS;
            assert_int_equal(many.n, world * one.n);
            for (int r = 0; r < world; r++) {
                each.n = 0;
                for (int step = 0; step < STEPS; step++, each.n += n)
                    memcpy(each.values + each.n, many.values + (step * world + r) * n, (size_t)n * sizeof(double));
                snprintf(what, sizeof what, "manner %d, rank %d of %d", manner, r, world);
                expect_close(&each, &one, 1e-11, what);
            }
        }
}

/* A replica whose wrapper has gone is a model as any other; what was recorded before says what has become of it. */
static void after_the_wrapper(void **state)
{
    (void)state;
    model_opts o = { .sync = true, .dtype = TREK_F64 };
    trek_comm *comms[2];
    assert_int_equal(trek_comm_local(NULL, 2, comms), TREK_OK);
    const trek_place_collectives *sums = trek_comm_sums_new(comms[0]);
    trek_module *layer = norm_new(&o, test_device(), false, true);
    trek_scope scope = trek_scope_begin();
    layer->klass->meet(layer, sums);
    trek_comm_sums_end(sums);
    assert_null(trek_forward(layer, typed(3, trek_dims(4, CHANNELS), TREK_F64)));
    expect(TREK_ERR_STATE, "has ended");
    layer->klass->meet(layer, NULL);
    assert_non_null(trek_forward(layer, typed(3, trek_dims(4, CHANNELS), TREK_F64)));
    trek_scope_end(scope);
    trek_module_free(&layer);
    for (int r = 0; r < 2; r++)
        trek_comm_free(&comms[r]);
}

/* --- processes, started by trek-run -------------------------------------------------------------------- */

static const char *self;

/* One of them: process 0 leaves its record in the file. */
static int child(const char *text, const char *path)
{
    int world, batch, gathered;
    if (sscanf(text, "%d,%d,%d", &world, &batch, &gathered) != 3)
        return 2;
    alarm(60);
    train_fed(&(fed_run){ .world = world, .batch = batch, .sync = true, .gathered = gathered }, &fed_many);
    if (atoi(getenv("TREK_RANK")) > 0)
        return 0;
    int file = open(path, O_WRONLY | O_TRUNC);
    bool written = file >= 0 && write(file, &fed_many, sizeof fed_many) == (ssize_t)sizeof fed_many;
    return written && close(file) == 0 ? 0 : 3;
}

static int launch(int processes, int world, int batch, bool gathered, const char *path)
{
    char text[64], count[16], launcher[4096];
    const char *build_folder = getenv("TREK_TEST_BUILD");
    snprintf(launcher, sizeof launcher, "%s/tools/trek-run", build_folder ? build_folder : ".");
    snprintf(text, sizeof text, "%d,%d,%d", world, batch, gathered);
    snprintf(count, sizeof count, "%d", processes);
    pid_t pid = fork();
    if (pid == 0) {
        setenv("TREK_TEST_CHILD", text, 1);
        setenv("TREK_TEST_FILE", path, 1);
        execl(launcher, launcher, "-n", count, self, (char *)NULL);
        _exit(127);
    }
    int status;
    return waitpid(pid, &status, 0) == pid && WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* Batches of 4 and 6, and of 2 for three processes: one of them has nothing, and still meets the others. */
static void on_processes(void **state)
{
    (void)state;
    static const struct {
        int processes, world, batch;
    } jobs[] = { { 2, 1, 6 }, { 2, 2, 6 }, { 3, 1, 2 }, { 3, 2, 4 } };
    for (int k = 0; k < 8; k++) {
        char path[] = "/tmp/trek-test-sync-XXXXXX", what[64];
        int file = mkstemp(path);
        bool gathered = k % 2;
        snprintf(what, sizeof what, "%d processes of %d ranks, batches of %d%s", jobs[k / 2].processes, jobs[k / 2].world,
                 jobs[k / 2].batch,
                 gathered ? ", gathered" : "");
        int code = launch(jobs[k / 2].processes, jobs[k / 2].world, jobs[k / 2].batch, gathered, path);
        ssize_t got = pread(file, &fed_many, sizeof fed_many, 0);
        close(file);
        unlink(path);
        if (code != 0 || got != (ssize_t)sizeof fed_many)
            fail_msg("%s: status %d", what, code);
        train_fed(&(fed_run){ .world = 1, .batch = jobs[k / 2].batch, .gathered = gathered }, &fed_one);
        expect_close(&fed_many, &fed_one, 1e-11, what);
    }
}

static int begin_test(void **state)
{
    (void)state;
    trek_error_clear();
    alarm(60);
    return 0;
}

int main(int count, char **words)
{
    (void)count;
    self = words[0];
    setenv("TREK_CACHE", "off", 1); /* so that each allocation can fail */
    if (test_allocator_use() != TREK_OK)
        return 1;
    if (getenv("TREK_TEST_CHILD"))
        return child(getenv("TREK_TEST_CHILD"), getenv("TREK_TEST_FILE"));
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(sums_in_rank_order, begin_test),
        cmocka_unit_test_setup(who_is_alone_makes_none, begin_test),
        cmocka_unit_test_setup(failures_wake_the_others, begin_test),
        cmocka_unit_test_setup(late_ranks, begin_test),
        cmocka_unit_test_setup(between_processes, begin_test),
        cmocka_unit_test_setup(f64_is_exact, begin_test),
        cmocka_unit_test_setup(f32_too, begin_test),
        cmocka_unit_test_setup(with_parameters_of_their_own, begin_test),
        cmocka_unit_test_setup(a_class_of_ones_own_meets, begin_test),
        cmocka_unit_test_setup(setup_names_layers_that_couple_samples, begin_test),
        cmocka_unit_test_setup(several_passes, begin_test),
        cmocka_unit_test_setup(slopes, begin_test),
        cmocka_unit_test_setup(one_value_is_an_error, begin_test),
        cmocka_unit_test_setup(a_rank_that_fails, begin_test),
        cmocka_unit_test_setup(no_memory, begin_test),
        cmocka_unit_test_setup(losses_of_their_own, begin_test),
        cmocka_unit_test_setup(shares_of_nothing, begin_test),
        cmocka_unit_test_setup(windows, begin_test),
        cmocka_unit_test_setup(by_hand, begin_test),
        cmocka_unit_test_setup(after_the_wrapper, begin_test),
        cmocka_unit_test_setup(on_processes, begin_test),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
