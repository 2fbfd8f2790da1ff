/* SPDX-License-Identifier: Apache-2.0 */
/* Autocast: which dtype ops choose, casts that are kept, gradients; and mixed
 * precision of graphs, scaled losses that overflow included, over ranks. */
#include "autograd/autocast.h"
#include "autograd/backward.h"
#include "autograd/ops.h"
#include "autograd/tape_internal.h"
#include "distributed/stepper_internal.h"
#include "distributed/trainer.h"
#include "graph/amp.h"
#include "graph/flow.h"
#include "nn/layers.h"
#include "nn/module_tree.h"
#include "tests/support/refused.h"
#include "tests/support/support.h"

static void read_into(const trek_tensor *tensor, double *values)
{
    assert_int_equal(trek_tensor_to_host(tensor, TREK_F64, values, (size_t)trek_tensor_numel(tensor) * sizeof *values), TREK_OK);
}

/* --- autocast ------------------------------------------------------------------------------------------ */

static trek_var *leaf(uint32_t stream, trek_shape shape, trek_dtype dtype)
{
    trek_tensor *wide = test_tensor(stream, shape, 1), *tensor = trek_tensor_cast(wide, dtype);
    trek_var *var = trek_var_new(tensor, true);
    trek_tensor_release(wide);
    trek_tensor_release(tensor);
    return var;
}

static void ops_choose_their_dtype(void **state)
{
    const trek_dtype low[] = { TREK_BF16, TREK_F16 };
    for (int c = 0; c < 2; c++) {
        trek_dtype d = low[c];
        trek_var *w = leaf(1, trek_dims(4, 6), TREK_F32), *bias = leaf(2, trek_dims(4), TREK_F32),
            *wide = leaf(3, trek_dims(5, 6), TREK_F64);
        trek_var *kernel = leaf(4, trek_dims(2, 3, 3, 3), TREK_F32);
        trek_scope scope = trek_scope_begin();
        trek_var *x = trek_var_from(test_tensor(5, trek_dims(5, 6), 1)),
            *image = trek_var_from(test_tensor(6, trek_dims(1, 3, 8, 8), 1));
        assert_int_equal(trek_var_dtype(trek_linear(x, w, bias)), TREK_F32);
        trek_autocast_begin(d);
        assert_int_equal(trek_autocast_dtype(), d);
        trek_var *y = trek_linear(x, w, bias);
        assert_int_equal(trek_var_dtype(y), d);
        assert_int_equal(trek_var_dtype(trek_matmul(x, trek_transpose(w, 0, 1))), d);
        assert_int_equal(trek_var_dtype(trek_conv2d(image, kernel, NULL, NULL)), d);
        assert_int_equal(trek_var_dtype(trek_conv_transpose2d(image, trek_transpose(kernel, 0, 1), NULL, NULL)), d);
        assert_int_equal(trek_var_dtype(trek_matmul(wide, trek_transpose(wide, 0, 1))), TREK_F64);
        assert_int_equal(trek_var_dtype(trek_relu(y)), d);
        assert_int_equal(trek_var_dtype(trek_softmax(y, 1)), TREK_F32);
        assert_int_equal(trek_var_dtype(trek_log_softmax(y, 1)), TREK_F32);
        assert_int_equal(trek_var_dtype(trek_exp(y)), TREK_F32);
        assert_int_equal(trek_var_dtype(trek_pow_scalar(y, 2)), TREK_F32);
        assert_int_equal(trek_var_dtype(trek_sum(y, trek_dims(1), false)), TREK_F32);
        assert_int_equal(trek_var_dtype(trek_mean(y, trek_dims_all(), false)), TREK_F32);
        assert_int_equal(trek_var_dtype(trek_cumsum(y, 0)), TREK_F32);
        assert_int_equal(trek_var_dtype(trek_layer_norm(y, 1, NULL, NULL, 1e-5)), TREK_F32);
        assert_int_equal(trek_var_dtype(trek_mse_loss(y, y)), TREK_F32);
        assert_int_equal(trek_var_dtype(trek_add(y, bias)), TREK_F32);
        assert_int_equal(trek_var_dtype(trek_cat((trek_var *[]){ y, trek_softmax(y, 1) }, 2, 0)), TREK_F32);
        assert_int_equal(trek_var_dtype(trek_cat((trek_var *[]){ y, y }, 2, 0)), d);
        assert_int_equal(trek_var_dtype(trek_sum(trek_argmax(y, trek_dims(1), false), trek_dims_all(), false)), TREK_I64);
        trek_autocast_begin(TREK_F32);
        assert_int_equal(trek_var_dtype(trek_linear(x, w, bias)), TREK_F32);
        trek_autocast_end();
        trek_autocast_begin(d == TREK_BF16 ? TREK_F16 : TREK_BF16);
        assert_int_equal(trek_var_dtype(trek_linear(x, w, bias)), d == TREK_BF16 ? TREK_F16 : TREK_BF16);
        trek_autocast_end();
        assert_int_equal(trek_var_dtype(trek_linear(x, w, bias)), d);
        trek_autocast_end();
        assert_int_equal(trek_var_dtype(trek_linear(x, w, bias)), TREK_F32);
        trek_scope_end(scope);
        trek_var_release(w);
        trek_var_release(bias);
        trek_var_release(wide);
        trek_var_release(kernel);
        assert_int_equal(trek_error_status(), TREK_OK);
    }
}

static int64_t converts_on_tape(void)
{
    int64_t n = 0;
    for (const trek_node *node = trek_tape_here ? trek_tape_here->last : NULL; node; node = node->prev)
        n += node->op && node->op->id == TREK_OP_convert;
    return n;
}

/* One cast of a weight for the region; a new one after it was written, after its tape was freed, and for the tape after
 * a use without it. */
static void casts_of_parameters_are_kept(void **state)
{
    trek_var *w = leaf(1, trek_dims(6, 6), TREK_F32);
    trek_scope scope = trek_scope_begin();
    trek_var *x = trek_var_from(test_tensor(5, trek_dims(5, 6), 1));
    trek_autocast_begin(TREK_BF16);
    trek_no_grad_begin();
    trek_linear(x, w, NULL);
    trek_no_grad_end();
    assert_int_equal(converts_on_tape(), 0);
    trek_var *y = trek_linear(trek_linear(x, w, NULL), w, NULL);
    trek_autocast_begin(TREK_BF16);
    y = trek_linear(y, w, NULL);
    trek_autocast_end();
    assert_int_equal(converts_on_tape(), 1);
    trek_var *loss = trek_sum(y, trek_dims_all(), false);
    assert_int_equal(converts_on_tape(), 2); /* y in f32 */
    assert_int_equal(trek_backward(loss), TREK_OK);
    assert_int_equal(trek_var_dtype(trek_var_grad(w)), TREK_F32);
    loss = trek_sum(trek_linear(x, w, NULL), trek_dims_all(), false); /* the cast's tape has gone */
    assert_int_equal(trek_backward(loss), TREK_OK);
    trek_var *before = trek_linear(x, w, NULL);
    trek_no_grad_begin();
    trek_add_(w, w);
    trek_no_grad_end();
    trek_var *after = trek_linear(x, w, NULL);
    double a[30], b[30];
    read_into(trek_var_data(before), a);
    read_into(trek_var_data(after), b);
    for (int i = 0; i < 30; i++)
        assert_true(b[i] == 2 * a[i]);
    trek_autocast_end();
    trek_scope_end(scope);
    trek_var_release(w);
    assert_int_equal(trek_error_status(), TREK_OK);
    assert_int_equal(trek_tape_size(), 0);
}

/* Against the same chain with casts written out: the same bits of value and gradient. */
static void gradients_equal_written_casts(void **state)
{
    trek_var *w[2], *b[2], *v[2];
    double losses[2];
    for (int k = 0; k < 2; k++) {
        w[k] = leaf(1, trek_dims(16, 8), TREK_F32);
        b[k] = leaf(2, trek_dims(16), TREK_F32);
        v[k] = leaf(3, trek_dims(4, 16), TREK_F32);
        trek_scope scope = trek_scope_begin();
        trek_var *x = trek_var_from(test_tensor(5, trek_dims(9, 8), 1));
        trek_var *labels = trek_var_from(test_values((double[]){ 0, 1, 2, 3, 0, 1, 2, 3, 0 }, trek_dims(9), TREK_I64)), *loss;
        if (k == 0) {
            trek_autocast_begin(TREK_BF16);
            loss = trek_cross_entropy(trek_linear(trek_relu(trek_linear(x, w[k], b[k])), v[k], NULL), labels);
            trek_autocast_end();
        } else {
            trek_var *h = trek_linear(trek_cast(x, TREK_BF16), trek_cast(w[k], TREK_BF16), trek_cast(b[k], TREK_BF16));
            loss = trek_cross_entropy(trek_cast(trek_linear(trek_relu(h), trek_cast(v[k], TREK_BF16), NULL), TREK_F32), labels);
        }
        assert_int_equal(trek_backward(loss), TREK_OK);
        losses[k] = trek_var_item(loss);
        trek_scope_end(scope);
    }
    assert_true(losses[0] == losses[1] && losses[0] > 0);
    trek_var **all[] = { w, b, v };
    for (int k = 0; k < 3; k++) {
        assert_true(test_same_bits(trek_var_data(trek_var_grad(all[k][0])), trek_var_data(trek_var_grad(all[k][1]))));
        trek_var_release(all[k][0]);
        trek_var_release(all[k][1]);
    }
    assert_int_equal(trek_error_status(), TREK_OK);
}

static trek_var *count_call(trek_var *var, trek_var *grad, void *arg)
{
    ++*(int *)arg;
    return NULL;
}

/* A weight's gradient is made from 16-bit operands, but is not itself rounded to 16 bits; it adds up over uses and passes, and
 * hooks see it once a pass. */
static void weight_gradients_are_full(void **state)
{
    for (int c = 0; c < 2; c++) {
        trek_dtype d = c ? TREK_F16 : TREK_BF16;
        trek_var *w = leaf(1, trek_dims(7, 6), TREK_F32);
        int calls = 0;
        assert_true(trek_var_on_grad(w, count_call, &calls) >= 0);
        double want[42] = { 0 }, got[42];
        for (int pass = 0; pass < 2; pass++) {
            trek_scope scope = trek_scope_begin();
            trek_var *x = trek_var_from(test_tensor(5, trek_dims(9, 6), 1)),
                *u = trek_var_from(test_tensor(6, trek_dims(9, 7), 1));
            double a[54], b[63];
            read_into(trek_var_data(trek_cast(x, d)), a);
            read_into(trek_var_data(trek_cast(u, d)), b);
            trek_autocast_begin(d);
            trek_var *y = trek_add(trek_linear(x, w, NULL), trek_linear(x, w, NULL));
            trek_autocast_end();
            assert_int_equal(trek_backward_with(y, trek_cast(u, d), NULL), TREK_OK);
            trek_scope_end(scope);
            for (int i = 0; i < 42; i++)
                for (int r = 0; r < 9; r++)
                    want[i] += 2 * a[r * 6 + i % 6] * b[r * 7 + i / 6];
        }
        read_into(trek_var_data(trek_var_grad(w)), got);
        for (int i = 0; i < 42; i++)
            assert_true(fabs(got[i] - want[i]) < 1e-5);
        assert_int_equal(calls, 2);
        trek_var_release(w);
    }
    assert_int_equal(trek_error_status(), TREK_OK);
}

/* Weight and bias at once, of multiples of 1/16, whose sums f32 holds exactly and 16 bits do not. */
static void gradients_of_both_are_full(void **state)
{
    enum { ROWS = 301, FROM = 24, TO = 16 };
    static double x[ROWS * FROM], u[ROWS * TO], got[TO * FROM];
    for (int i = 0; i < ROWS * FROM; i++)
        x[i] = round(16 * test_number(5, (uint32_t)i)) / 16 + 1;
    for (int i = 0; i < ROWS * TO; i++)
        u[i] = round(16 * test_number(6, (uint32_t)i)) / 16 + 1;
    for (int c = 0; c < 2; c++) {
        trek_dtype d = c ? TREK_F16 : TREK_BF16;
        trek_var *w = leaf(1, trek_dims(TO, FROM), TREK_F32), *b = leaf(2, trek_dims(TO), TREK_F32);
        for (int pass = 0; pass < 2; pass++) { /* the second adds */
            trek_scope scope = trek_scope_begin();
            trek_var *rows = trek_var_from(test_values(x, trek_dims(ROWS, FROM), d));
            trek_autocast_begin(d);
            trek_var *y = trek_linear(rows, w, b);
            trek_autocast_end();
            assert_int_equal(trek_backward_with(y, trek_var_from(test_values(u, trek_dims(ROWS, TO), d)), NULL), TREK_OK);
            trek_scope_end(scope);
            read_into(trek_var_data(trek_var_grad(w)), got);
            for (int i = 0; i < TO * FROM; i++) {
                double want = 0;
                for (int r = 0; r < ROWS; r++)
                    want += (1 + pass) * u[r * TO + i / FROM] * x[r * FROM + i % FROM];
                assert_true(got[i] == want);
            }
            read_into(trek_var_data(trek_var_grad(b)), got);
            for (int i = 0; i < TO; i++) {
                double want = 0;
                for (int r = 0; r < ROWS; r++)
                    want += (1 + pass) * u[r * TO + i];
                bool rounded = pass || trek_var_device(b).type == TREK_CPU; /* a sum of its own, or one that is added */
                assert_true(fabs(got[i] - want) <= (rounded ? 0x1p-8 * want : 0));
            }
        }
        trek_var_release(w);
        trek_var_release(b);
    }
    assert_int_equal(trek_error_status(), TREK_OK);
}

/* --- graphs and ranks ------------------------------------------------------------------------------------ */

enum { IN = 10, HIDDEN = 24, CLASSES = 5, BATCH = 30 };

typedef struct model_case {
    trek_dtype dtype;       /* of the parameters */
    trek_amp_opts amp;
    int world;
    bool separate;
    double max_norm;
} model_case;

static trek_graph *build(trek_device device, void *arg)
{
    const model_case *c = arg;
    trek_module *layers[] = { trek_nn_linear_with(&(trek_linear_opts){ .in = IN, .out = HIDDEN, .dtype = c->dtype,
                                                                       .device = device }),
                              trek_nn_gelu(),
                              trek_nn_layer_norm_with(&(trek_layer_norm_opts){ .shape = trek_dims(HIDDEN), .dtype = c->dtype,
                                                                               .device = device }),
                              trek_nn_linear_with(&(trek_linear_opts){ .in = HIDDEN, .out = CLASSES, .dtype = c->dtype,
                                                                       .device = device }) };
    trek_flow *flow = trek_flow_from(layers[0]);
    for (int k = 1; k < 4; k++)
        trek_flow_through(flow, layers[k]);
    return trek_flow_build(flow);
}

typedef struct listed {
    double *values;
    bool grads;
} listed;

static trek_status list_one(const char *name, trek_var *param, void *arg)
{
    listed *l = arg;
    trek_var *from = l->grads ? trek_var_grad(param) : param;
    if (from)
        read_into(trek_var_data(from), l->values);
    l->values += trek_var_numel(param);
    return TREK_OK;
}

enum { ELEMENTS = HIDDEN * IN + HIDDEN + 2 * HIDDEN + CLASSES * HIDDEN + CLASSES };

static void list(trek_graph *graph, double *values, bool grads)
{
    listed l = { values, grads };
    assert_int_equal(trek_module_each_param(trek_graph_module(graph), list_one, &l), TREK_OK);
    assert_int_equal(l.values - values, ELEMENTS);
}

static trek_graph *set_up(model_case *c)
{
    trek_seed(3);
    trek_device devices[8];
    for (int r = 0; r < c->world; r++)
        devices[r] = test_device_of_rank(r);
    trek_graph *graph = build(devices[0], c);
    assert_non_null(graph);
    assert_int_equal(trek_trainer_setup(graph, &(trek_trainer_opts){ .build_replica = build, .arg = c, .ranks = c->world,
                                                                     .devices = devices,
                                                                     .optimizer = trek_adamw(&(trek_adam_opts){ .lr = 0.01 }),
                                                                     .max_grad_norm = c->max_norm, .amp = c->amp,
                                                                     .share_params = c->separate ? TREK_OFF : 0,
                                                                     .bucket_bytes = 1024 }),
                     TREK_OK);
    assert_int_equal(trek_graph_world_size(graph), c->world);
    return graph;
}

/* poison: the loss becomes inf. */
static double pass(trek_graph *graph, const model_case *c, int step, bool poison)
{
    trek_scope scope = trek_scope_begin();
    trek_tensor *wide = test_tensor(50 + (uint32_t)step, trek_dims(BATCH, IN), 1);
    int64_t classes[BATCH];
    for (int i = 0; i < BATCH; i++)
        classes[i] = (int64_t)((test_number(80 + (uint32_t)step, (uint32_t)i) + 1) * CLASSES / 2);
    trek_var *x = trek_var_from(trek_tensor_cast(wide, c->dtype));
    trek_var *labels = trek_var_from(trek_tensor_from_data(classes, trek_dims(BATCH), TREK_I64, test_device()));
    trek_tensor_release(wide);
    trek_var *loss = trek_cross_entropy(trek_graph_forward(graph, x), labels);
    double value = trek_var_item(loss);
    if (poison)
        loss = trek_mul_scalar(loss, INFINITY);
    assert_int_equal(trek_graph_backward(graph, loss), TREK_OK);
    trek_scope_end(scope);
    return value;
}

static double difference(const double *got, const double *expected)
{
    double error = 0, size = 0;
    for (int i = 0; i < ELEMENTS; i++) {
        error += (got[i] - expected[i]) * (got[i] - expected[i]);
        size += expected[i] * expected[i];
    }
    return sqrt(error / size);
}

static void ranks_agree_under_autocast(void **state)
{
    static double expected[4][ELEMENTS], reference[4][ELEMENTS], got[ELEMENTS], zero[ELEMENTS];
    const trek_dtype low[] = { TREK_BF16, TREK_F16 };
    for (int d = 0; d < 2; d++)
        for (int world = 0; world < 4; world++)
            for (int separate = 0; separate < 2; separate++) {
                model_case c = { .amp = { .dtype = low[d], .scaler = { .init_scale = 1024 } }, .world = world ? world : 1,
                                 .separate = separate };
                bool plain = world == 0;
                if (plain)
                    c.amp.dtype = TREK_F32;
                trek_graph *graph = set_up(&c);
                assert_true((trek_graph_scaler(graph) != NULL) == (!plain && low[d] == TREK_F16));
                for (int step = 0; step < 4; step++) {
                    pass(graph, &c, step, false);
                    assert_int_equal(trek_graph_reduce(graph), TREK_OK);
                    memset(got, 0, sizeof got);
                    list(graph, got, true);
                    double scale = trek_graph_scaler(graph) ? trek_grad_scaler_value(trek_graph_scaler(graph)) : 1;
                    assert_true(scale == (trek_graph_scaler(graph) ? 1024 : 1));
                    for (int i = 0; i < ELEMENTS; i++)
                        got[i] /= scale;
                    if (plain)
                        memcpy(reference[step], got, sizeof got);
                    else if (world == 1)
                        memcpy(expected[step], got, sizeof got);
                    double tolerance = low[d] == TREK_BF16 ? 4e-3 : 5e-4;
                    if (!plain && step == 0) { /* from the same parameters */
                        assert_true(difference(got, expected[0]) <= (world == 1 ? 0 : tolerance));
                        assert_true(difference(got, reference[0]) <= 4 * tolerance &&
                                    difference(got, reference[0]) > tolerance / 100);
                        assert_true(difference(got, zero) == INFINITY);
                    }
                    assert_int_equal(trek_graph_step(graph), TREK_OK);
                }
                assert_int_equal(trek_graph_skipped(graph), 0);
                trek_graph_free(&graph);
                assert_int_equal(trek_error_status(), TREK_OK);
            }
}

/* A loss that is inf: nothing but the scale changes, on all ranks; afterwards training goes on as without it. */
static void overflow_skips_the_step_everywhere(void **state)
{
    static double before[ELEMENTS], after[ELEMENTS], of_rank[ELEMENTS], clean[ELEMENTS];
    for (int c = 0; c < 20; c++) {
        model_case m = { .dtype = c % 2 ? TREK_BF16 : TREK_F32, .amp = { .dtype = TREK_F16, .scaler = { .init_scale = 256 } },
                         .world = c / 4 % 5 ? c / 4 % 5 : 1, .separate = c / 2 % 2, .max_norm = c % 3 ? 0 : 0.5 };
        for (int poisoned = 0; poisoned < 2; poisoned++) {
            trek_graph *graph = set_up(&m);
            double first = 0, last = 0;
            for (int step = 0; step < 8; step++) {
                if (poisoned && (step == 0 || step == 3)) {
                    list(graph, before, false);
                    pass(graph, &m, step, true);
                    assert_int_equal(trek_graph_step(graph), TREK_OK);
                    list(graph, after, false);
                    assert_memory_equal(before, after, sizeof before);
                }
                double loss = pass(graph, &m, step % 2, false);
                first = step == 0 ? loss : first;
                last = loss;
                assert_int_equal(trek_graph_step(graph), TREK_OK);
            }
            assert_true(last < first);
            assert_int_equal(trek_graph_skipped(graph), 2 * poisoned);
            assert_true(trek_grad_scaler_value(trek_graph_scaler(graph)) == (poisoned ? 64 : 256));
            list(graph, after, false);
            if (!poisoned)
                memcpy(clean, after, sizeof clean);
            for (int r = 1; r < m.world; r++) {
                list(trek_graph_replica(graph, r), of_rank, false);
                assert_memory_equal(of_rank, after, sizeof after);
            }
            trek_graph_free(&graph);
        }
        assert_true(difference(after, clean) < 2e-2); /* other scales, other roundings in f16 */
        assert_int_equal(trek_error_status(), TREK_OK);
    }
}

/* 16-bit parameters without autocast, over ranks: the masters progress alike. */
static void ranks_train_16_bit_parameters(void **state)
{
    static double one[ELEMENTS], many[ELEMENTS], of_rank[ELEMENTS];
    for (int c = 0; c < 6; c++) {
        model_case m = { .dtype = TREK_BF16, .world = 1 + c % 3, .separate = c / 3 };
        trek_graph *graph = set_up(&m);
        double first = 0, last = 0;
        for (int step = 0; step < 30; step++) {
            last = pass(graph, &m, step % 3, false);
            first = step == 0 ? last : first;
            assert_int_equal(trek_graph_step(graph), TREK_OK);
        }
        assert_true(last < 0.8 * first);
        list(graph, c == 0 ? one : many, false);
        if (c > 0)
            assert_true(difference(many, one) < 5e-2);
        for (int r = 1; r < m.world; r++) {
            list(trek_graph_replica(graph, r), of_rank, false);
            assert_memory_equal(of_rank, many, sizeof many);
        }
        trek_graph_free(&graph);
        assert_int_equal(trek_error_status(), TREK_OK);
    }
}

static void unbalanced_and_wrong_calls_are_refused(void **state)
{
    trek_autocast_begin(TREK_I64);
    expect_error(TREK_ERR_ARGUMENT, "i64");
    assert_int_equal(trek_autocast_dtype(), TREK_F32);
    trek_autocast_end();
    trek_autocast_end();
    expect_error(TREK_ERR_STATE, "autocast_end");
    for (int k = 0; k < 70; k++)
        trek_autocast_begin(k % 2 ? TREK_F16 : TREK_BF16);
    expect_error(TREK_ERR_STATE, "64");
    for (int k = 0; k < 70; k++)
        trek_autocast_end();
    assert_int_equal(trek_autocast_dtype(), TREK_F32);
    model_case c = { .world = 1 };
    trek_graph *graph = build(test_device(), &c);
    FAILS(trek_graph_set_amp(graph, &(trek_amp_opts){ .dtype = TREK_I64 }), TREK_ERR_ARGUMENT, "i64");
    FAILS(trek_graph_set_amp(graph, &(trek_amp_opts){ .dtype = TREK_F16, .scaling = 2 }), TREK_ERR_ARGUMENT, "scaling");
    FAILS(trek_graph_set_amp(graph, &(trek_amp_opts){ .dtype = TREK_F16, .scaler = { .growth_factor = 0.5 } }),
          TREK_ERR_ARGUMENT, "growth_factor");
    assert_null(trek_graph_scaler(graph));
    assert_int_equal(trek_graph_set_amp(graph, &(trek_amp_opts){ .dtype = TREK_BF16, .scaling = 1 }), TREK_OK);
    assert_non_null(trek_graph_scaler(graph));
    assert_int_equal(trek_graph_set_amp(graph, NULL), TREK_OK);
    assert_null(trek_graph_scaler(graph));
    trek_graph_free(&graph);
}

int main(void)
{
    trek_log_set(TREK_LOG_LEVEL_ERROR, NULL, NULL);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(unbalanced_and_wrong_calls_are_refused), cmocka_unit_test(ops_choose_their_dtype),
        cmocka_unit_test(casts_of_parameters_are_kept), cmocka_unit_test(gradients_equal_written_casts),
        cmocka_unit_test(weight_gradients_are_full), cmocka_unit_test(gradients_of_both_are_full),
        cmocka_unit_test(ranks_agree_under_autocast), cmocka_unit_test(overflow_skips_the_step_everywhere),
        cmocka_unit_test(ranks_train_16_bit_parameters),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
