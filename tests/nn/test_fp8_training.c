/* SPDX-License-Identifier: Apache-2.0 */
/* Training with 8-bit products: beside bf16's, over ranks, options together, captured steps, resumed runs, refused calls. */
#include <unistd.h>

#include "autograd/ops.h"
#include "autograd/var_internal.h"
#include "distributed/checkpoint.h"
#include "distributed/trainer.h"
#include "graph/amp.h"
#include "graph/capture.h"
#include "graph/flow.h"
#include "graph/passes.h"
#include "graph/settings.h"
#include "nn/fp8.h"
#include "nn/layers.h"
#include "nn/module_tree.h"
#include "nn/recompute.h"
#include "nn/state.h"
#include "nn/state_modules.h"
#include "nn/transformer.h"
#include "optim/optimizer.h"
#include "tests/nn/values.h"
#include "tests/support/fp8.h"
#include "tests/support/support.h"
#include "tests/support/unit.h"

/* --- training -------------------------------------------------------------------------------------------- */

enum { WIDTH = 32, TOKENS = 6, CLASSES = 16, BATCH = 12, STEPS = 40 };

typedef struct model {
    trek_module base;
    trek_module *in, *block, *out;
} model;

static trek_var *model_forward(trek_module *self, trek_var *x)
{
    model *m = (model *)self;
    trek_var *y = trek_forward(m->block, trek_forward(m->in, x));
    return trek_forward(m->out, y ? trek_mean(y, trek_dims(1), false) : NULL);
}

static const trek_module_class model_class = { .name = "model", .size = sizeof(model), .forward = model_forward };

typedef struct setting {
    trek_amp_opts amp;
    int world, passes, accumulate;
    bool recompute, captured, plain; /* plain: SGD */
} setting;

static trek_graph *build(trek_device device, void *arg)
{
    const setting *s = arg;
    trek_module *m = trek_module_new(&model_class);
    trek_transformer_opts opts = { .d_model = WIDTH, .heads = 2, .dim_feedforward = 64, .dropout = TREK_ZERO,
                                   .activation = TREK_ACTIVATION_GELU, .norm_first = true, .device = device };
    trek_module_add(m, "in", offsetof(model, in), trek_nn_linear(16, WIDTH, device));
    trek_module *block = trek_nn_transformer_encoder_layer_with(&opts);
    trek_module_add(m, "block", offsetof(model, block), s->recompute ? trek_nn_recompute(block) : block);
    trek_module_add(m, "out", offsetof(model, out), trek_nn_linear(WIDTH, CLASSES, device));
    return trek_flow_build(trek_flow_from(m));
}

static trek_graph *set_up(setting *s)
{
    trek_seed(3);
    trek_device devices[8];
    for (int r = 0; r < s->world; r++)
        devices[r] = test_device_of_rank(r);
    trek_graph *graph = build(devices[0], s);
    assert_non_null(graph);
    fine(trek_trainer_setup(graph, &(trek_trainer_opts){ .build_replica = build, .arg = s, .ranks = s->world, .devices = devices,
                                                         .optimizer = s->plain ? trek_sgd(&(trek_sgd_opts){ .lr = 0.1 })
                                                                              : trek_adamw(&(trek_adam_opts){ .lr = 0.003 }),
                                                         .amp = s->amp, .accumulate = s->accumulate }));
    return graph;
}

static void make_batch(int k, trek_var **x, trek_var **labels)
{
    int64_t classes[BATCH];
    double *values = malloc(BATCH * TOKENS * 16 * sizeof *values);
    assert_non_null(values);
    for (int i = 0; i < BATCH; i++) {
        classes[i] = (int64_t)((test_number(80 + (uint32_t)k, (uint32_t)i) + 1) * CLASSES / 2);
        for (int j = 0; j < TOKENS * 16; j++)
            values[i * TOKENS * 16 + j] = 0.7 * (double)test_number(200 + (uint32_t)classes[i], (uint32_t)j) +
                                          0.5 * (double)test_number(50 + (uint32_t)k, (uint32_t)(i * TOKENS * 16 + j));
    }
    *x = trek_var_from(test_values(values, trek_dims(BATCH, TOKENS, 16), TREK_F32));
    *labels = trek_var_from(trek_tensor_from_data(classes, trek_dims(BATCH), TREK_I64, test_device()));
    free(values);
}

typedef struct job {
    const setting *s;
    trek_var *x, *labels;
    double loss;
} job;

static trek_status one_step(trek_graph *graph, void *arg)
{
    job *j = arg;
    trek_var *x = j->x ? j->x : trek_graph_captured_input(graph, 0);
    trek_var *labels = j->x ? j->labels : trek_graph_captured_input(graph, 1);
    for (int pass = 0; pass < (j->s->passes > 1 ? j->s->passes : 1); pass++) {
        int n = j->s->passes > 1 ? j->s->passes : 1, rows = BATCH / n;
        trek_var *own = n > 1 ? trek_narrow(x, 0, pass * rows, rows) : x;
        trek_var *loss = trek_cross_entropy(trek_graph_forward(graph, own),
                                            n > 1 ? trek_narrow(labels, 0, pass * rows, rows) : labels);
        if (!j->x)
            trek_graph_capture_output(graph, 0, loss);
        else
            j->loss = trek_var_item(loss);
        trek_graph_backward(graph, loss);
    }
    return trek_graph_step(graph);
}

static void go_on(trek_graph *graph, setting *s, int from, int to, double *losses)
{
    for (int k = from; k < to; k++) {
        trek_scope scope = trek_scope_begin();
        job j = { .s = s };
        make_batch(k, &j.x, &j.labels);
        if (s->captured) {
            fine(trek_graph_capture_input(graph, 0, j.x));
            fine(trek_graph_capture_input(graph, 1, j.labels));
            fine(trek_graph_capture(graph, one_step, &(job){ .s = s }));
            j.loss = trek_var_item(trek_graph_captured_output(graph, 0));
        } else {
            fine(one_step(graph, &j));
        }
        losses[k] = j.loss;
        trek_scope_end(scope);
    }
}

/* The losses of steps; the graph is the caller's. */
static trek_graph *train(setting *s, int steps, double *losses)
{
    trek_graph *graph = set_up(s);
    go_on(graph, s, 0, steps, losses);
    return graph;
}

static const trek_amp_opts in_fp8 = { .products = TREK_AMP_PRODUCTS_FP8 }, in_bf16 = { .dtype = TREK_BF16 };

static double last_mean(const double *losses, int steps)
{
    double sum = 0;
    for (int k = steps - 4; k < steps; k++)
        sum += losses[k] / 4;
    return sum;
}

/* A transformer layer between two linear ones: its loss beside bf16's. */
static void test_training(void **state)
{
    static double low[STEPS], half[STEPS], own[STEPS];
    setting kinds[] = { { .amp = in_bf16, .world = 1 }, { .amp = in_fp8, .world = 1 },
                        { .amp = { .products = TREK_AMP_PRODUCTS_FP8, .fp8 = { .history = TREK_OFF, .margin = 1 } },
                          .world = 1 } };
    double *losses[] = { half, low, own };
    int steps = test_short_on_device() ? 6 : STEPS; /* as far as 40 it falls below a half */
    double falls_to = steps < STEPS ? 1 : 0.5;
    for (int k = 0; k < 3; k++) {
        trek_graph *graph = train(&kinds[k], steps, losses[k]);
        trek_graph_free(&graph);
    }
    for (int k = 1; k < 3; k++) {
        assert_true(losses[k][1] != half[1]); /* the first step knows no scales */
        assert_true(fabs(losses[k][0] - half[0]) < 0.05 * half[0]);
        if (!(last_mean(losses[k], steps) < falls_to * half[0] &&
              fabs(last_mean(losses[k], steps) - last_mean(half, steps)) < 0.15 * last_mean(half, steps)))
            fail_msg("kind %d: from %g to %g, bf16 to %g", k, losses[k][0], last_mean(losses[k], steps), last_mean(half, steps));
    }
}

typedef struct values {
    double *params;
    int64_t n;
} values;

static trek_status append(const char *name, trek_var *var, void *arg)
{
    values *v = arg;
    double *one = read_of(var);
    int64_t n = trek_var_numel(var);
    v->params = realloc(v->params, (size_t)(v->n + n) * sizeof *v->params);
    assert_non_null(v->params);
    memcpy(v->params + v->n, one, (size_t)n * sizeof *one);
    v->n += n;
    free(one);
    return TREK_OK;
}

static values params_of(trek_graph *graph, bool buffers)
{
    values v = { NULL, 0 };
    fine(buffers ? trek_module_each_buffer(trek_graph_module(graph), append, &v)
                 : trek_module_each_param(trek_graph_module(graph), append, &v));
    return v;
}

/* Largest difference, as a part of the largest number. */
static double apart(const values *a, const values *b)
{
    double most = 0, size = 0;
    assert_int_equal(a->n, b->n);
    for (int64_t i = 0; i < a->n; i++) {
        most = fmax(most, fabs(a->params[i] - b->params[i]));
        size = fmax(size, fabs(b->params[i]));
    }
    return most / size;
}

/* The state of a graph after some steps, for others to go on from. */
static trek_state *trained_state(void)
{
    double losses[4];
    setting one = { .amp = in_fp8, .world = 1 };
    trek_graph *graph = train(&one, 4, losses);
    trek_state *state = trek_state_of(trek_graph_module(graph));
    assert_non_null(state);
    trek_graph_free(&graph);
    return state;
}

/* The change of all parameters by a step of plain SGD from that state. */
static values one_change(const trek_state *from, int world, trek_amp_opts amp, values *record)
{
    setting s = { .amp = amp, .world = world, .plain = true };
    trek_graph *graph = set_up(&s);
    trek_state_load_opts opts = { .allow_unexpected = true };
    fine(trek_state_apply_with(from, trek_graph_module(graph), &opts, NULL));
    fine(trek_graph_parameters_changed(graph));
    values before = params_of(graph, false);
    trek_scope scope = trek_scope_begin();
    job j = { .s = &s };
    make_batch(77, &j.x, &j.labels);
    fine(one_step(graph, &j));
    trek_scope_end(scope);
    values change = params_of(graph, false);
    for (int64_t i = 0; i < change.n; i++)
        change.params[i] -= before.params[i];
    if (record)
        *record = params_of(graph, true);
    free(before.params);
    trek_graph_free(&graph);
    return change;
}

/* Ranks that know past steps round by the same record: their steps are one device's as nearly as bf16's are, and the record of
 * the step is the maximum of all: to the bit, where magnitudes are the data's. */
static void test_ranks(void **state)
{
    trek_state *from = trained_state();
    values record, half = one_change(from, 1, in_bf16, NULL), low = one_change(from, 1, in_fp8, &record);
    double between = apart(&low, &half);
    assert_true(between > 0.002 && between < 0.3);
    for (int world = 2; world < 4; world++) {
        values merged, other_half = one_change(from, world, in_bf16, NULL), other = one_change(from, world, in_fp8, &merged);
        double near_half = apart(&other_half, &half), near_low = apart(&other, &low);
        if (!(near_low < 3 * near_half + 0.001 && near_low < between / 4))
            fail_msg("%d ranks: %g apart, in bf16 %g; fp8 is %g from bf16", world, near_low, near_half, between);
        assert_int_equal(merged.n, record.n);
        for (int64_t i = 0; i < record.n; i++) {
            double a = (double)test_float_of((uint32_t)merged.params[i]), b = (double)test_float_of((uint32_t)record.params[i]);
            if (!(i < 17 ? a == b : fabs(a - b) <= 0.02 * b)) /* the first row: what the first layer is given */
                fail_msg("%d ranks: record %lld is %g, on one %g", world, (long long)i, a, b);
        }
        free(other.params), free(other_half.params), free(merged.params);
    }
    free(half.params), free(low.params), free(record.params);
    trek_state_free(&from);
}

enum { LINE = 16, LINE_ROWS = 6, LINE_STEPS = 3 };

static trek_graph *build_line(trek_device device, void *arg)
{
    return trek_flow_build(trek_flow_from(trek_nn_linear_with(&(trek_linear_opts){ .in = LINE, .out = LINE, .no_bias = true,
                                                                                   .device = device })));
}

/* Results and gradients of some steps over rows whose magnitudes, and whose gradients', are decades apart. */
static void run_line(int world, double results[LINE_STEPS][LINE_ROWS * LINE], double grads[LINE_STEPS][LINE * LINE])
{
    trek_device devices[8];
    for (int r = 0; r < world; r++)
        devices[r] = test_device_of_rank(r);
    trek_seed(5);
    trek_graph *graph = build_line(devices[0], NULL);
    fine(trek_trainer_setup(graph, &(trek_trainer_opts){ .build_replica = build_line, .ranks = world, .devices = devices,
                                                         .amp = in_fp8, .optimizer = trek_sgd(&(trek_sgd_opts){ .lr = 1e-3 }) }));
    for (int step = 0; step < LINE_STEPS; step++) {
        trek_scope scope = trek_scope_begin();
        double scales[LINE_ROWS] = { 1, 1, 1e-3, 1e-6, 1e-6, 1e-6 };
        trek_var *sizes = trek_var_from(test_values(scales, trek_dims(LINE_ROWS, 1), TREK_F32));
        trek_var *x = trek_mul(trek_var_from(test_tensor(30 + (uint32_t)step, trek_dims(LINE_ROWS, LINE), 1)), sizes);
        trek_var *y = trek_graph_forward(graph, x);
        fine(trek_graph_backward(graph, trek_mean(trek_mul(trek_cast(y, TREK_F32), sizes), trek_dims_all(), false)));
        fine(trek_graph_reduce(graph));
        double *values = read_of(y), *grad = read_of(trek_var_grad(trek_module_find(trek_graph_module(graph), "0.weight")));
        memcpy(results[step], values, sizeof results[step]);
        memcpy(grads[step], grad, sizeof grads[step]);
        free(values), free(grad);
        fine(trek_graph_step(graph));
        trek_scope_end(scope);
    }
    trek_graph_free(&graph);
}

/* From the first step on, in which no rank has scales, and a part of the batch would give others than the whole. */
static void test_first_steps_on_ranks(void **state)
{
    static double one[LINE_STEPS][LINE_ROWS * LINE], one_grads[LINE_STEPS][LINE * LINE], results[LINE_STEPS][LINE_ROWS * LINE],
        grads[LINE_STEPS][LINE * LINE];
    run_line(1, one, one_grads);
    assert_true(one[0][LINE_ROWS * LINE - 1] != 0); /* in bf16 small rows are there */
    for (int world = 2; world < 4; world++) {
        run_line(world, results, grads);
        for (int step = 0; step < LINE_STEPS; step++) {
            for (int i = 0; i < LINE_ROWS * LINE; i++)
                if (!(fabs(results[step][i] - one[step][i]) <= 0x1p-7 * fabs(one[step][i])))
                    fail_msg("%d ranks, step %d: result %d is %g, on one %g", world, step, i, results[step][i], one[step][i]);
            for (int i = 0; i < LINE * LINE; i++)
                if (!(fabs(grads[step][i] - one_grads[step][i]) <= 1e-5 * fabs(one_grads[step][i])))
                    fail_msg("%d ranks, step %d: gradient %d is %g, on one %g", world, step, i, grads[step][i],
                             one_grads[step][i]);
        }
    }
}

enum { FEW = 8 };

/* A fake device takes seconds for a step. */
static int few_steps(void) { return test_short_on_device() ? 6 : FEW; }

/* What runs again in backward, and passes of a step, by the same scales. */
static void test_options(void **state)
{
    static double plain[FEW], other[FEW];
    int steps = few_steps();
    setting one = { .amp = in_fp8, .world = 1 }, again = { .amp = in_fp8, .world = 1, .recompute = true };
    trek_graph *graph = train(&one, steps, plain), *second = train(&again, steps, other);
    values a = params_of(graph, false), b = params_of(second, false), record = params_of(graph, true);
    assert_true(memcmp(plain, other, (size_t)steps * sizeof *plain) == 0);
    assert_true(a.n == b.n && memcmp(a.params, b.params, (size_t)a.n * sizeof *a.params) == 0);
    free(a.params), free(b.params);
    trek_graph_free(&second);
    trek_graph_free(&graph);
    setting parts = { .amp = in_fp8, .world = 1, .passes = 3, .accumulate = 3 };
    second = train(&parts, steps, other);
    values c = params_of(second, true);
    assert_int_equal(c.n, record.n);
    for (int64_t i = 0; i < c.n; i++) /* a step of passes is one step of the record */
        assert_true((c.params[i] > 0) == (record.params[i] > 0));
    free(c.params), free(record.params);
    trek_graph_free(&second);
}

/* Steps that are replayed have the bits of those that are called. */
static void test_captured(void **state)
{
    static double plain[FEW], other[FEW];
    int steps = few_steps();
    setting one = { .amp = in_fp8, .world = 1 }, captured = { .amp = in_fp8, .world = 1, .captured = true };
    trek_graph *graph = train(&one, steps, plain), *second = train(&captured, steps, other);
    values a = params_of(graph, false), b = params_of(second, false);
    assert_true(memcmp(plain, other, (size_t)steps * sizeof *plain) == 0);
    assert_true(a.n == b.n && memcmp(a.params, b.params, (size_t)a.n * sizeof *a.params) == 0);
    if (!test_on_cpu() && trek_graph_replays(second) < 2)
        fail_msg("%lld replays: %s", (long long)trek_graph_replays(second), trek_graph_capture_problem(second));
    free(a.params), free(b.params);
    trek_graph_free(&second);
    trek_graph_free(&graph);
}

/* A run that goes on from a checkpoint has the bits of one that was not interrupted. */
static void test_resumed(void **state)
{
    enum { WHOLE = 6, HALF = 3 };
    double whole[WHOLE], parts[WHOLE];
    char path[] = "/tmp/trek-fp8-XXXXXX", file[64];
    assert_non_null(mkdtemp(path));
    snprintf(file, sizeof file, "%s/checkpoint", path);
    setting s = { .amp = in_fp8, .world = 1 };
    trek_graph *graph = train(&s, WHOLE, whole);
    trek_graph_free(&graph);
    graph = train(&s, HALF, parts);
    fine(trek_checkpoint_save(graph, NULL, file));
    trek_graph_free(&graph);
    graph = set_up(&s);
    fine(trek_checkpoint_load(graph, NULL, file));
    go_on(graph, &s, HALF, WHOLE, parts);
    trek_graph_free(&graph);
    assert_true(memcmp(whole, parts, sizeof whole) == 0);
    unlink(file);
    rmdir(path);
}

static void test_refused(void **state)
{
    setting bf16 = { .amp = in_bf16, .world = 2 };
    trek_graph *graph = set_up(&bf16);
    refuse(trek_graph_set_amp(graph, &in_fp8), TREK_ERR_STATE, "trek_trainer_setup was called before");
    refuse(trek_graph_set_amp(graph, &(trek_amp_opts){ .products = (trek_amp_products)7 }), TREK_ERR_ARGUMENT, ".products: 7");
    refuse(trek_graph_set_amp(graph, &(trek_amp_opts){ .products = TREK_AMP_PRODUCTS_FP8, .dtype = TREK_F16 }), TREK_ERR_ARGUMENT,
           "need bf16");
    trek_graph_free(&graph);
    setting fp8 = { .amp = in_fp8, .world = 2 };
    graph = set_up(&fp8);
    fine(trek_graph_set_amp(graph, &in_fp8));
    refuse(trek_graph_set_amp(graph, &in_bf16), TREK_ERR_STATE, "a trainer already has the graph");
    fine(trek_graph_set_amp(graph, NULL));
    trek_graph_free(&graph);
    graph = build(test_device(), &fp8);
    fine(trek_graph_set_amp(graph, &in_fp8));
    assert_non_null(trek_module_find(trek_graph_module(graph), "0.block.self_attn.fp8_amax"));
    assert_non_null(trek_module_find(trek_graph_module(graph), "0.block.self_attn.out_proj.fp8_amax"));
    fine(trek_graph_set_amp(graph, &in_bf16));
    assert_null(trek_module_find(trek_graph_module(graph), "0.block.self_attn.fp8_amax"));
    trek_graph_free(&graph);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_training), cmocka_unit_test(test_ranks), cmocka_unit_test(test_first_steps_on_ranks),
        cmocka_unit_test(test_options), cmocka_unit_test(test_captured), cmocka_unit_test(test_resumed),
        cmocka_unit_test(test_refused),
    };
    return test_allocator_use() == TREK_OK ? cmocka_run_group_tests(tests, NULL, NULL) : 1;
}
