/* SPDX-License-Identifier: Apache-2.0 */
/* Synchronised batch norm on N ranks against plain batch norm on one device, with shards of all sizes; slopes, what cannot
 * be normalised, ranks that fail. */
#include "autograd/backward.h"
#include "autograd/ops.h"
#include "distributed/stepper_internal.h"
#include "graph/flow.h"
#include "nn/module_tree.h"
#include "tensor/rank_context.h"
#include "tests/distributed/team/sync_net.h"
#include "tests/support/refused.h"
#include "tests/support/support.h"

/* --- a model with two of the layer: [N, WIDTH] -> norm over [N, C] -> [N, C, 2, 1] -> norm -> classes ---- */

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
        .optimizer = optimizer, .deadline_s = 20, .share_params = separate ? TREK_OFF : 0 });
    SUCCEEDS(status);
    return graph;
}

/* --- a record of a run ----------------------------------------------------------------------------------- */

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

static void against_one_device(trek_dtype dtype, bool separate, bool cumulative, bool own)
{
    static const int worlds[] = { 1, 2, 3, 5 };
    static const int64_t sizes[] = { 11, 10, 3, 2 }; /* fewer rows than ranks, too */
    static record one, many;
    trek_optimizer_spec sgd = trek_sgd(&(trek_sgd_opts){ .lr = 0.1, .momentum = 0.9 });
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
    char *line = arg;
    if (strstr(message, "exact"))
        snprintf(line, 512, "%s", message);
}

typedef struct centre {
    trek_module base;
} centre;

static trek_var *centre_forward(trek_module *self, trek_var *x)
{
    return trek_module_is_training(self) ? trek_sub(x, trek_mean(x, trek_dims(0), true)) : trek_mul_scalar(x, 1);
}

static trek_graph *build_centred(trek_device device, void *arg)
{
    static trek_module_class klass = { .name = "centre", .size = sizeof(centre), .forward = centre_forward };
    klass.couples_samples = *(const bool *)arg;
    trek_linear_opts linear = { .in = WIDTH, .out = CLASSES, .device = device };
    trek_module *modules[2] = { trek_nn_linear_with(&linear), trek_module_new(&klass) };
    return trek_flow_build(trek_flow_from(trek_nn_sequential(modules, 2)));
}

static void setup_names_layers_that_couple_samples(void **state)
{
    for (int couples = 0; couples < 2; couples++) {
        bool arg = couples;
        char line[512] = "";
        trek_device devices[2] = { test_device_of_rank(0), test_device_of_rank(1) };
        trek_graph *graph = build_centred(devices[0], &arg);
        trek_log_set(TREK_LOG_LEVEL_INFO, keep_line, line);
        trek_status status = trek_trainer_setup(graph,
                                                &(trek_trainer_opts){ .build_replica = build_centred, .arg = &arg,
                                                                      .devices = devices,
            .ranks = 2, .optimizer = trek_sgd(&(trek_sgd_opts){ .lr = 0.1 }) });
        trek_log_set(TREK_LOG_LEVEL_WARNING, NULL, NULL);
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
            SUCCEEDS(trek_graph_backward(graph, trek_cross_entropy(trek_graph_forward(graph, x),
                                                                   labels_of(rows[step][k], k))));
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
    static record one, many;
    model_opts plain = { .dtype = TREK_F64 }, sync = { .sync = true, .dtype = TREK_F64 };
    trek_graph *graph = set_up(&plain, 1, trek_sgd(&(trek_sgd_opts){ .lr = 0.1 }), false);
    train_passes(graph, &one);
    trek_graph_free(&graph);
    for (int world = 2; world <= 5; world += 3) {
        graph = set_up(&sync, world, trek_sgd(&(trek_sgd_opts){ .lr = 0.1 }), world == 2);
        train_passes(graph, &many);
        expect_close(&many, &one, 1e-11, "several passes");
        trek_graph_free(&graph);
    }
}

/* --- slopes, and what cannot be normalised --------------------------------------------------------------- */

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
    enum { ROWS = 7 };
    model_opts o = { .sync = true, .dtype = TREK_F64 };
    trek_graph *graph = set_up(&o, 3, trek_sgd(NULL), false);
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

static void one_value_is_an_error(void **state)
{
    model_opts o = { .sync = true, .dtype = TREK_F32 };
    trek_graph *graph = set_up(&o, 3, trek_sgd(NULL), false);
    trek_scope scope = trek_scope_begin();
    REFUSED(trek_graph_forward(graph, typed(1, trek_dims(1, WIDTH), TREK_F32)), TREK_ERR_SHAPE, "more than 1 value");
    assert_non_null(trek_graph_forward(graph, typed(1, trek_dims(2, WIDTH), TREK_F32))); /* on two ranks 1 each */
    trek_module *layer = trek_nn_sync_batch_norm(CHANNELS, test_device());
    REFUSED(trek_forward(layer, typed(1, trek_dims(4, CHANNELS + 1), TREK_F32)), TREK_ERR_SHAPE, "must be [N, 3, ...]");
    REFUSED(trek_forward(layer, typed(1, trek_dims(CHANNELS), TREK_F32)), TREK_ERR_SHAPE, "must be [N, 3, ...]");
    trek_module_free(&layer);
    trek_scope_end(scope);
    trek_graph_free(&graph);
}

/* --- a rank that fails does not hang the others ---------------------------------------------------------- */

static net *net_of(trek_graph *graph, int rank)
{
    return (net *)trek_graph_module(trek_graph_replica(graph, rank))->own->children[0].module;
}

static void a_rank_that_fails(void **state)
{
    model_opts o = { .sync = true, .dtype = TREK_F64 };
    trek_graph *graph = set_up(&o, 3, trek_sgd(NULL), false);
    static record before, after;
    for (int round = 0; round < 6; round++) {
        int rank = round % 3;
        char who[16];
        snprintf(who, sizeof who, "rank %d:", rank);
        net *victim = net_of(graph, rank);
        assert_ptr_equal(victim->base.own->klass, &net_class);
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
        assert_int_equal(trek_error_status(), TREK_ERR_STATE);
        expect_error(TREK_ERR_STATE, who);
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
    model_opts o = { .sync = true, .dtype = TREK_F32 };
    trek_graph *graph = set_up(&o, 2, trek_sgd(NULL), false);
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

int main(void)
{
    setenv("TREK_CACHE", "off", 1); /* so that each allocation can fail */
    if (test_allocator_use() != TREK_OK)
        return 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(f64_is_exact, begin_test), cmocka_unit_test_setup(f32_too, begin_test),
        cmocka_unit_test_setup(with_parameters_of_their_own, begin_test),
        cmocka_unit_test_setup(a_class_of_ones_own_meets, begin_test),
        cmocka_unit_test_setup(setup_names_layers_that_couple_samples, begin_test),
        cmocka_unit_test_setup(several_passes, begin_test), cmocka_unit_test_setup(slopes, begin_test),
        cmocka_unit_test_setup(one_value_is_an_error, begin_test), cmocka_unit_test_setup(a_rank_that_fails, begin_test),
        cmocka_unit_test_setup(no_memory, begin_test),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
