/* SPDX-License-Identifier: Apache-2.0 */
/* 8-bit products of linear layers: the formats bit by bit, products and gradients against f64, the record of magnitudes, what
 * stays in bf16, modes, options together, training beside bf16's, ranks, captured steps, refused calls. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "autograd/autocast.h"
#include "autograd/ops.h"
#include "autograd/var_internal.h"
#include "distributed/checkpoint.h"
#include "distributed/trainer.h"
#include "graph/capture.h"
#include "graph/flow.h"
#include "nn/fp8.h"
#include "nn/layers.h"
#include "nn/recompute.h"
#include "nn/state.h"
#include "nn/transformer.h"
#include "optim/optimizer.h"
#include "tensor/fp8.h"
#include "tests/nn/values.h"
#include "tests/support/fp8.h"
#include "tests/support/support.h"

static void fine(trek_status status)
{
    if (status != TREK_OK)
        fail_msg("%s", trek_error());
}

static void refuse(trek_status status, trek_status wanted, const char *part)
{
    assert_int_equal(status, wanted);
    expect_error(wanted, part);
}

static double *read_of(trek_var *var)
{
    if (!var)
        fail_msg("%s", trek_error());
    double *values = test_read(trek_var_data(var));
    assert_non_null(values);
    return values;
}

static float float_of(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static uint32_t bits_of(double x)
{
    float narrow = (float)x;
    uint32_t bits;
    memcpy(&bits, &narrow, sizeof bits);
    return bits;
}

/* --- the formats ------------------------------------------------------------------------------- */

/* A record that asks for a scale of 1: the largest number of the format. */
static trek_var *scale_of_one(int format)
{
    const double row[2] = { 0, (double)bits_of(format == TREK_E5M2 ? 57344 : 448) };
    return trek_var_from(test_values(row, trek_dims(1, 2), TREK_I32));
}

static uint64_t digest_of(trek_var *x, int format)
{
    trek_attrs attrs = { .i = { format, 0, 0, 0 } };
    trek_var *outs[3];
    fine(trek_apply_many(&trek_ops[TREK_OP_fp8_quantise], (trek_var *[]){ x, scale_of_one(format) }, 2, &attrs, outs, 3));
    double *codes = read_of(outs[0]);
    uint64_t digest = 0xcbf29ce484222325u; /* FNV-1a */
    for (int64_t i = 0; i < trek_var_numel(outs[0]); i++)
        digest = (digest ^ (uint64_t)codes[i]) * 0x100000001b3u;
    free(codes);
    return digest;
}

/* Every bf16, and f32 around every tie and with a sparse pattern of bits: the digests are those of the casts of another library
 * (ml_dtypes 0.5 under NumPy, of values clamped to the format; what is not finite NaN). */
static void test_formats(void **state)
{
    (void)state;
    static const uint64_t expected[2][2] = { { 0x6a3fbaa9cb61df95u, 0xff398b9d4ba7d9e5u },
                                               { 0xe4fc47f9506e7885u, 0xee3c4c604519c1a5u } };
    enum { ALL = 65536, SPARSE = 1 << 18 };
    uint16_t *half = malloc(ALL * sizeof *half);
    float *sparse = malloc(SPARSE * sizeof *sparse);
    assert_true(half && sparse);
    for (int i = 0; i < ALL; i++)
        half[i] = (uint16_t)i;
    for (uint32_t i = 0; i < SPARSE; i++)
        sparse[i] = float_of((i >> 4) << 18 | (i & 15) * 0x1249u % 0x40000u);
    trek_scope scope = trek_scope_begin();
    trek_var *x = trek_var_from(trek_tensor_from_data(half, trek_dims(256, 256), TREK_BF16, test_device()));
    trek_var *y = trek_var_from(trek_tensor_from_data(sparse, trek_dims(512, 512), TREK_F32, test_device()));
    for (int format = 0; format < 2; format++) {
        uint64_t got[2] = { digest_of(x, format), digest_of(y, format) };
        for (int k = 0; k < 2; k++)
            if (got[k] != expected[format][k])
                fail_msg("format %d, kind %d: digest %llx", format, k, (unsigned long long)got[k]);
    }
    trek_scope_end(scope);
    free(half);
    free(sparse);
}

/* --- products and gradients ---------------------------------------------------------------------- */

/* Each number as its code says, with the scale of the tensor's own magnitude, or of `magnitude` where that is above 0. */
static void round_to(bool e5m2, double *x, int64_t n, double magnitude)
{
    for (int64_t i = 0; magnitude <= 0 && i < n; i++)
        magnitude = fmin(magnitude, -fabs(x[i]));
    double scale = test_fp8_scale(e5m2, fabs(magnitude), 0);
    for (int64_t i = 0; i < n; i++)
        x[i] = test_fp8_number(e5m2, test_fp8_nearest(e5m2, x[i] * scale)) / scale;
}

/* out [m, n] = a [m, k] b [n, k]^T, by steps of any size */
static void multiply(const double *a, int64_t a_row, int64_t a_col, const double *b, int64_t b_row, int64_t b_col, int64_t m,
                     int64_t n, int64_t k, double *out)
{
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j++) {
            out[i * n + j] = 0;
            for (int64_t l = 0; l < k; l++)
                out[i * n + j] += a[i * a_row + l * a_col] * b[j * b_row + l * b_col];
        }
}

static void expect_close(trek_var *got, const double *expected, int64_t n, double relative, const char *what)
{
    double *values = read_of(got), most = 0;
    for (int64_t i = 0; i < n; i++)
        most = fmax(most, fabs(expected[i]));
    for (int64_t i = 0; i < n; i++)
        if (!(fabs(values[i] - expected[i]) <= relative * most))
            fail_msg("%s[%lld] is %g, should be %g", what, (long long)i, values[i], expected[i]);
    free(values);
}

typedef struct layer_case {
    int64_t rows, in, out;
    bool bias;
    trek_dtype x, weight;
} layer_case;

static trek_var *leaf(uint32_t stream, trek_shape shape, trek_dtype dtype)
{
    trek_tensor *wide = test_tensor(stream, shape, 1.5), *cast = trek_tensor_cast(wide, dtype);
    trek_tensor_release(wide);
    trek_var *var = trek_var_new(cast, true);
    trek_tensor_release(cast);
    assert_non_null(var);
    return var; /* to be released */
}

static void run_layer(const layer_case *c)
{
    enum { MOST = 64 * 64 };
    static double y[MOST], dx[MOST], dw[MOST], db[64];
    int64_t rows = c->rows, in = c->in, out = c->out;
    trek_scope scope = trek_scope_begin();
    trek_module *m = trek_nn_linear_with(&(trek_linear_opts){ .in = in, .out = out, .no_bias = !c->bias, .dtype = c->weight,
                                                              .device = test_device() });
    fine(trek_fp8_enable(m, NULL));
    trek_var *x = leaf(5, rows % 2 ? trek_dims(rows, in) : trek_dims(2, rows / 2, in), c->x);
    trek_tensor *cotangent = test_tensor(6, trek_dims(rows * out), 1e-3); /* small, as gradients are */
    trek_autocast_begin(TREK_BF16);
    trek_var *result = trek_forward(m, x);
    trek_autocast_end();
    if (!result)
        fail_msg("%s", trek_error());
    assert_int_equal(trek_var_dtype(result), TREK_BF16);
    trek_var *g = trek_cast(trek_reshape(trek_var_constant(cotangent), trek_var_shape(result)), TREK_BF16);
    fine(trek_backward_with(result, g, NULL));
    double *rx = read_of(x), *rw = read_of(trek_module_find(m, "weight")), *rg = read_of(g);
    double *bias = c->bias ? read_of(trek_cast(trek_module_find(m, "bias"), TREK_BF16)) : NULL;
    for (int64_t o = 0; o < out; o++) {
        db[o] = 0;
        for (int64_t r = 0; r < rows; r++)
            db[o] += rg[r * out + o];
    }
    round_to(false, rx, rows * in, 0);
    round_to(false, rw, out * in, 0);
    round_to(true, rg, rows * out, 0);
    multiply(rx, in, 1, rw, in, 1, rows, out, in, y);
    for (int64_t i = 0; i < rows * out && bias; i++)
        y[i] += bias[i % out];
    multiply(rg, out, 1, rw, 1, in, rows, in, out, dx);
    multiply(rg, 1, out, rx, 1, in, out, in, rows, dw);
    expect_close(result, y, rows * out, 0x1p-8, "the result");
    expect_close(trek_var_grad(x), dx, rows * in, c->x == TREK_BF16 ? 0x1p-8 : 1e-6, "dx");
    expect_close(trek_var_grad(trek_module_find(m, "weight")), dw, out * in, c->weight == TREK_BF16 ? 0x1p-8 : 1e-6, "dweight");
    if (bias)
        expect_close(trek_var_grad(trek_module_find(m, "bias")), db, out, 0x1p-7, "dbias");
    free(rx), free(rw), free(rg), free(bias);
    trek_tensor_release(cotangent);
    trek_var_release(x);
    trek_module_free(&m);
    trek_scope_end(scope);
}

static void test_products(void **state)
{
    (void)state;
    static const layer_case cases[] = {
        { 16, 32, 48, true, TREK_F32, TREK_F32 },  { 1, 16, 16, true, TREK_BF16, TREK_F32 },
            { 3, 48, 16, false, TREK_F32, TREK_F32 },
        { 32, 16, 64, false, TREK_BF16, TREK_BF16 }, { 10, 64, 32, true, TREK_F32, TREK_BF16 },
    };
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++)
        run_layer(&cases[k]);
}

/* --- the record -------------------------------------------------------------------------------------- */

static trek_module *layer_with(int64_t history)
{
    trek_seed(11);
    trek_module *m = trek_nn_linear(16, 32, test_device());
    assert_non_null(m);
    fine(trek_fp8_enable(m, &(trek_fp8_opts){ .history = history }));
    return m;
}

static void expect_row(trek_module *m, int role, const double *expected, int n)
{
    double *rows = read_of(trek_module_find(m, "fp8_amax"));
    for (int k = 0; k < n; k++)
        if (rows[role * n + k] != (double)bits_of(expected[k]))
            fail_msg("role %d, place %d: %g, should be %g", role, k, (double)float_of((uint32_t)rows[role * n + k]), expected[k]);
    free(rows);
}

/* y of an input of which element k is `large`, the others small. */
static double *forward(trek_module *m, double large)
{
    double values[4 * 16];
    for (int i = 0; i < 64; i++)
        values[i] = 0.01 * (i % 7 - 3);
    values[20] = large;
    trek_autocast_begin(TREK_BF16);
    trek_var *y = trek_forward(m, numbers(values, trek_dims(4, 16)));
    trek_autocast_end();
    return read_of(y);
}

/* As if an optimizer had stepped. */
static void write_weight(trek_module *m)
{
    trek_tensor_bump(trek_var_data(trek_module_find(m, "weight")));
}

static void test_record(void **state)
{
    (void)state;
    trek_scope scope = trek_scope_begin();
    trek_module *m = layer_with(3);
    free(forward(m, 2));
    free(forward(m, 4)); /* the same step */
    expect_row(m, TREK_FP8_INPUT, (double[]){ 4, 0, 0, 0 }, 4);
    write_weight(m);
    free(forward(m, 1));
    expect_row(m, TREK_FP8_INPUT, (double[]){ 1, 4, 0, 0 }, 4);
    write_weight(m);
    double *y = forward(m, INFINITY), *again;
    assert_true(isnan(y[32])); /* what is not finite is seen in its row, and there alone */
    assert_true(isfinite(y[0]));
    free(y);
    write_weight(m);
    free(forward(m, 0.5));
    expect_row(m, TREK_FP8_INPUT, (double[]){ 0.5, 0, 1, 4 }, 4);
    double *weight = read_of(trek_module_find(m, "weight")), most = 0;
    for (int i = 0; i < 16 * 32; i++)
        most = fmax(most, fabs(weight[i]));
    free(weight);
    expect_row(m, TREK_FP8_WEIGHT, (double[]){ most, most, most, most }, 4);
    expect_row(m, TREK_FP8_GRAD, (double[]){ 0, 0, 0, 0 }, 4);
    fine(trek_module_train(m, false)); /* 1000 saturates at what 4 allows: 448 / 64 = 7 */
    y = forward(m, 1000);
    again = forward(m, 7);
    for (int i = 0; i < 4 * 32; i++)
        assert_true(y[i] == again[i]);
    expect_row(m, TREK_FP8_INPUT, (double[]){ 0.5, 0, 1, 4 }, 4);
    free(y), free(again);
    trek_module_free(&m);
    trek_scope_end(scope);
}

/* A step's input is rounded by what came before it: by hand, of two steps. */
static void test_delay(void **state)
{
    (void)state;
    trek_scope scope = trek_scope_begin();
    trek_module *delayed = layer_with(2), *own = layer_with(TREK_OFF);
    assert_null(trek_module_find(own, "fp8_amax"));
    double *first = forward(delayed, 2), *same = forward(own, 2);
    for (int i = 0; i < 128; i++)
        assert_true(first[i] == same[i]); /* nothing is known yet */
    write_weight(delayed);
    double *second = forward(delayed, 300), *other = forward(own, 300), *clipped = forward(own, 3.5);
    assert_true(fabs(second[32] - clipped[32]) < 0.05 * fabs(clipped[32]) + 0.05); /* 448 / 128 */
    assert_true(fabs(other[32] - clipped[32]) > 10 * fabs(clipped[32]));
    free(first), free(same), free(second), free(other), free(clipped);
    trek_module_free(&delayed);
    trek_module_free(&own);
    trek_scope_end(scope);
}

/* --- what stays as it was ------------------------------------------------------------------------------- */

static void expect_same_forward(int64_t in, int64_t out, trek_dtype dtype, trek_dtype cast, int64_t rows, bool differs)
{
    trek_scope scope = trek_scope_begin();
    trek_linear_opts opts = { .in = in, .out = out, .dtype = dtype, .device = test_device() };
    trek_module *both = trek_nn_sequential(0, NULL);
    trek_module *m = trek_nn_linear_with(&opts);
    fine(trek_nn_sequential_add(both, m));
    fine(trek_nn_sequential_add(both, trek_nn_linear(16, 16, test_device())));
    trek_tensor *wide = test_tensor(9, trek_dims(rows, in), 1), *narrow = trek_tensor_cast(wide, dtype);
    trek_var *x = trek_var_from(narrow);
    trek_tensor_release(wide);
    trek_autocast_begin(cast);
    trek_var *before = trek_forward(m, x);
    fine(trek_fp8_enable(both, NULL));
    trek_var *after = trek_forward(m, x);
    trek_autocast_end();
    assert_true(before && after);
    assert_int_equal(trek_var_dtype(before), trek_var_dtype(after));
    assert_true(test_same_bits(trek_var_data(before), trek_var_data(after)) != differs);
    trek_module_free(&both);
    trek_scope_end(scope);
}

static void test_stays(void **state)
{
    (void)state;
    expect_same_forward(16, 32, TREK_F32, TREK_BF16, 4, true);
    expect_same_forward(20, 32, TREK_F32, TREK_BF16, 4, false);
    expect_same_forward(16, 24, TREK_F32, TREK_BF16, 4, false);
    expect_same_forward(16, 32, TREK_F64, TREK_BF16, 4, false);
    expect_same_forward(16, 32, TREK_F32, TREK_F16, 4, false);
    expect_same_forward(16, 32, TREK_F32, TREK_F32, 4, false);
    expect_same_forward(16, 32, TREK_F32, TREK_BF16, 0, false);
}

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
                                                         .optimizer = s->plain ? trek_sgd((trek_sgd_opts){ .lr = 0.1 })
                                                                              : trek_adamw((trek_adam_opts){ .lr = 0.003 }),
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

static const trek_amp_opts in_fp8 = { .products = TREK_FP8 }, in_bf16 = { .dtype = TREK_BF16 };

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
    (void)state;
    static double low[STEPS], half[STEPS], own[STEPS];
    setting kinds[] = { { .amp = in_bf16, .world = 1 }, { .amp = in_fp8, .world = 1 },
                        { .amp = { .products = TREK_FP8, .fp8 = { .history = TREK_OFF, .margin = 1 } }, .world = 1 } };
    double *losses[] = { half, low, own };
    int steps = test_short_on_device() ? 6 : STEPS; /* as far as 40 it falls below a half */
    double falls_to = steps < STEPS ? 1 : 0.5;
    for (int k = 0; k < 3; k++) {
        trek_graph *graph = train(&kinds[k], steps, losses[k]);
        trek_graph_free(&graph);
    }
    for (int k = 1; k < 3; k++) {
        assert_true(losses[k][0] != half[0]);
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
    (void)name;
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
    (void)state;
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
            double a = (double)float_of((uint32_t)merged.params[i]), b = (double)float_of((uint32_t)record.params[i]);
            if (!(i < 17 ? a == b : fabs(a - b) <= 0.02 * b)) /* the first row: what the first layer is given */
                fail_msg("%d ranks: record %lld is %g, on one %g", world, (long long)i, a, b);
        }
        free(other.params), free(other_half.params), free(merged.params);
    }
    free(half.params), free(low.params), free(record.params);
    trek_state_free(&from);
}

enum { FEW = 8 };

/* A fake device takes seconds for a step. */
static int few_steps(void) { return test_short_on_device() ? 6 : FEW; }

/* What runs again in backward, and passes of a step, by the same scales. */
static void test_options(void **state)
{
    (void)state;
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
    (void)state;
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

/* --- states, and being told -------------------------------------------------------------------------------- */

static void test_states(void **state)
{
    (void)state;
    trek_scope scope = trek_scope_begin();
    trek_module *m = layer_with(4), *same = layer_with(4), *bare = trek_nn_linear(16, 32, test_device());
    free(forward(m, 3));
    write_weight(m);
    free(forward(m, 2));
    trek_state *saved = trek_state_of(m), *plain = trek_state_of(bare);
    assert_true(saved && plain);
    fine(trek_state_apply(saved, same));
    expect_row(same, TREK_FP8_INPUT, (double[]){ 2, 3, 0, 0, 0 }, 5);
    refuse(trek_state_apply(plain, same), TREK_ERR_ARGUMENT, "fp8_amax");
    fine(trek_state_apply_with(plain, same, &(trek_state_load_opts){ .allow_missing = true }, NULL));
    expect_row(same, TREK_FP8_INPUT, (double[]){ 2, 3, 0, 0, 0 }, 5);
    fine(trek_fp8_disable(same));
    assert_int_equal(same->n_buffers, 0);
    fine(trek_state_apply(plain, same));
    fine(trek_fp8_disable(same)); /* once more: nothing to do */
    trek_state_free(&saved);
    trek_state_free(&plain);
    trek_module_free(&m);
    trek_module_free(&same);
    trek_module_free(&bare);
    trek_scope_end(scope);
}

/* A run that goes on from a checkpoint has the bits of one that was not interrupted. */
static void test_resumed(void **state)
{
    (void)state;
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
    (void)state;
    trek_module *m = layer_with(4), *odd = trek_nn_linear(17, 32, test_device());
    refuse(trek_fp8_enable(NULL, NULL), TREK_ERR_ARGUMENT, "module");
    refuse(trek_fp8_disable(NULL), TREK_ERR_ARGUMENT, "module");
    refuse(trek_fp8_enable(odd, NULL), TREK_ERR_ARGUMENT, "multiples of 16");
    refuse(trek_fp8_enable(m, &(trek_fp8_opts){ .history = -2 }), TREK_ERR_ARGUMENT, ".history is -2");
    refuse(trek_fp8_enable(m, &(trek_fp8_opts){ .history = 65537 }), TREK_ERR_ARGUMENT, ".history is 65537");
    refuse(trek_fp8_enable(m, &(trek_fp8_opts){ .margin = 65 }), TREK_ERR_ARGUMENT, ".margin is 65");
    refuse(trek_fp8_enable(m, NULL), TREK_ERR_STATE, "looks back on 4 steps, not 16");
    fine(trek_fp8_enable(m, &(trek_fp8_opts){ .history = 4, .margin = 2 }));
    assert_int_equal(m->n_buffers, 1);
    trek_scope scope = trek_scope_begin();
    trek_autocast_begin(TREK_BF16);
    trek_var *x = leaf(5, trek_dims(4, 16), TREK_F32), *y = trek_forward(m, x);
    trek_autocast_end();
    assert_non_null(y);
    refuse(trek_backward_with(trek_sum(trek_cast(y, TREK_F32), trek_dims_none(), false), NULL,
                              &(trek_backward_opts){ .create_graph = true }),
           TREK_ERR_UNSUPPORTED, "first derivatives");
    trek_var_release(x);
    trek_scope_end(scope);
    trek_module_free(&m);
    trek_module_free(&odd);

    setting bf16 = { .amp = in_bf16, .world = 2 };
    trek_graph *graph = set_up(&bf16);
    refuse(trek_graph_set_amp(graph, &in_fp8), TREK_ERR_STATE, "before trek_trainer_setup");
    refuse(trek_graph_set_amp(graph, &(trek_amp_opts){ .products = (trek_amp_products)7 }), TREK_ERR_ARGUMENT, ".products is 7");
    refuse(trek_graph_set_amp(graph, &(trek_amp_opts){ .products = TREK_FP8, .dtype = TREK_F16 }), TREK_ERR_ARGUMENT, "not f16");
    trek_graph_free(&graph);
    setting fp8 = { .amp = in_fp8, .world = 2 };
    graph = set_up(&fp8);
    fine(trek_graph_set_amp(graph, &in_fp8));
    refuse(trek_graph_set_amp(graph, &in_bf16), TREK_ERR_STATE, "a trainer has the graph");
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

/* Without memory at any one point: an error, and a layer that is as it was. */
static void test_no_memory(void **state)
{
    (void)state;
    trek_module *m = trek_nn_sequential(0, NULL);
    fine(trek_nn_sequential_add(m, trek_nn_linear(16, 16, test_device())));
    fine(trek_nn_sequential_add(m, trek_nn_linear(16, 32, test_device())));
    trek_status status = TREK_ERR_MEMORY;
    int failures = 0;
    for (int64_t k = 1; status == TREK_ERR_MEMORY; k++) {
        trek_memory_release_cached(trek_cpu(0));
        test_allocator_restart(k);
        test_memory.fail_count = 1 << 20; /* one that fails is asked for again */
        status = trek_fp8_enable(m, &(trek_fp8_opts){ .history = 60000 }); /* no cache has such blocks */
        test_allocator_restart(0);
        test_memory.fail_count = 0;
        trek_error_clear();
        failures += status != TREK_OK;
        if (status != TREK_OK)
            assert_null(trek_module_find(m, "0.fp8_amax"));
        else
            assert_non_null(trek_module_find(m, "1.fp8_amax"));
    }
    fine(status);
    assert_true(failures > 0);
    trek_module_free(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_formats), cmocka_unit_test(test_products), cmocka_unit_test(test_record),
        cmocka_unit_test(test_delay),   cmocka_unit_test(test_stays),    cmocka_unit_test(test_training),
        cmocka_unit_test(test_ranks),   cmocka_unit_test(test_options), cmocka_unit_test(test_captured),
        cmocka_unit_test(test_states),
        cmocka_unit_test(test_refused), cmocka_unit_test(test_no_memory), cmocka_unit_test(test_resumed),
    };
    return test_allocator_use() == TREK_OK ? cmocka_run_group_tests(tests, NULL, NULL) : 1;
}
