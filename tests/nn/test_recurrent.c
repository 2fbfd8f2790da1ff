/* SPDX-License-Identifier: Apache-2.0 */
/* nn/: LSTM and GRU of every option, drawn at random, against one that is written out in doubles; their states, lengths,
 * gradients, cells; bad input. */
#include "autograd/autocast.h"
#include "autograd/backward.h"
#include "autograd/ops.h"
#include "autograd/var_internal.h"
#include "graph/flow.h"
#include "graph/graph.h"
#include "nn/layers.h"
#include "nn/module_internal.h"
#include "nn/module_tree.h"
#include "nn/state.h"
#include "tensor/print.h"
#include "tests/nn/values.h"
#include "tests/support/refused.h"
#include "tests/support/support.h"

static uint64_t seed = 12345;

static int64_t draw(int64_t below)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (int64_t)((seed >> 33) % (uint64_t)below);
}

static double draw_unit(void) { return (double)draw(20001) / 10000 - 1; }

/* --- the reference ------------------------------------------------------------------------- */

typedef struct drawn {
    trek_lstm_opts opts;
    bool lstm, rnn, relu, states, some_lengths;
    int64_t steps, rows, places;   /* places: layers times directions */
    double *x, *h0, *c0;           /* x [steps, rows, in]; states [places, rows, hidden] */
    int64_t *lengths;
    double *y, *hn, *cn;           /* results, y [steps, rows, width] */
    double **params;
} drawn;

/* Features of h, and weights of a direction. */
static int64_t out_of(const drawn *d) { return d->opts.proj_size ? d->opts.proj_size : d->opts.hidden; }
static int64_t weights_each(const drawn *d) { return (d->opts.no_bias ? 2 : 4) + (d->opts.proj_size > 0); }

static double sigmoid(double x) { return 1 / (1 + exp(-x)); }

static double dot(const double *weight, const double *x, int64_t n)
{
    double sum = 0;
    for (int64_t k = 0; k < n; k++)
        sum += weight[k] * x[k];
    return sum;
}

/* One step of one row; h and c are replaced. */
static void reference_step(const drawn *d, double **p, const double *x, int64_t in, double *h, double *c)
{
    int64_t n = d->opts.hidden, out = out_of(d);
    double next[64];
    for (int64_t j = 0; j < n; j++) {
        double a[4], b[4];
        for (int64_t g = 0; g < (d->lstm ? 4 : d->rnn ? 1 : 3); g++) {
            a[g] = dot(p[0] + (g * n + j) * in, x, in) + (d->opts.no_bias ? 0 : p[2][g * n + j]);
            b[g] = dot(p[1] + (g * n + j) * out, h, out) + (d->opts.no_bias ? 0 : p[3][g * n + j]);
        }
        if (d->lstm) {
            c[j] = sigmoid(a[1] + b[1]) * c[j] + sigmoid(a[0] + b[0]) * tanh(a[2] + b[2]);
            next[j] = sigmoid(a[3] + b[3]) * tanh(c[j]);
        } else if (d->rnn) {
            next[j] = d->relu ? fmax(a[0] + b[0], 0) : tanh(a[0] + b[0]);
        } else {
            double z = sigmoid(a[1] + b[1]), new = tanh(a[2] + sigmoid(a[0] + b[0]) * b[2]);
            next[j] = (1 - z) * new + z * h[j];
        }
    }
    const double *projection = d->opts.proj_size ? p[weights_each(d) - 1] : NULL;
    for (int64_t k = 0; k < out; k++)
        h[k] = projection ? dot(projection + k * n, next, n) : next[k];
}

static void reference_direction(drawn *d, int64_t place, const double *x, int64_t in, double *y, int64_t width)
{
    int64_t n = d->opts.hidden, out = out_of(d), each = weights_each(d);
    bool reverse = d->opts.bidirectional && place % 2 == 1;
    for (int64_t row = 0; row < d->rows; row++) {
        double *h = d->hn + (place * d->rows + row) * out, *c = d->cn + (place * d->rows + row) * n;
        memcpy(h, d->h0 + (place * d->rows + row) * out, (size_t)out * sizeof *h);
        memcpy(c, d->c0 + (place * d->rows + row) * n, (size_t)n * sizeof *c);
        for (int64_t s = 0; s < d->lengths[row]; s++) {
            int64_t t = reverse ? d->lengths[row] - 1 - s : s, at = t * d->rows + row;
            reference_step(d, d->params + place * each, x + at * in, in, h, c);
            memcpy(y + at * width + (reverse ? out : 0), h, (size_t)out * sizeof *h);
        }
    }
}

static void reference_run(drawn *d)
{
    int64_t directions = d->opts.bidirectional ? 2 : 1, width = directions * out_of(d), in = d->opts.in;
    double *x = d->x;
    for (int64_t layer = 0; layer < d->places / directions; layer++) {
        double *y = calloc((size_t)(d->steps * d->rows * width + 1), sizeof *y);
        for (int64_t k = 0; k < directions; k++)
            reference_direction(d, layer * directions + k, x, in, y, width);
        if (x != d->x)
            free(x);
        x = y;
        in = width;
    }
    d->y = x;
}

/* --- a drawn layer ---------------------------------------------------------------------------- */

static double *random_numbers(int64_t n)
{
    double *to = calloc((size_t)n + 1, sizeof *to);
    for (int64_t k = 0; k < n; k++)
        to[k] = draw_unit();
    return to;
}

static void draw_layer(drawn *d)
{
    memset(d, 0, sizeof *d);
    d->opts = (trek_lstm_opts){ .in = 1 + draw(6), .hidden = 1 + draw(7), .layers = draw(4), .no_bias = draw(4) == 0,
                                .batch_first = draw(2), .bidirectional = draw(2), .dtype = TREK_F64, .device = test_device() };
    int64_t kind = draw(4);
    d->lstm = kind == 0;
    d->rnn = kind > 1;
    d->relu = kind == 3;
    if (d->lstm && d->opts.hidden > 1 && draw(2))
        d->opts.proj_size = 1 + draw(d->opts.hidden - 1);
    d->steps = draw(4) == 0 ? 1 : 1 + draw(6);
    d->rows = draw(5) == 0 ? 1 : draw(8) == 0 ? 0 : 1 + draw(6);
    d->states = draw(2);
    d->some_lengths = draw(2);
    d->places = (d->opts.layers > 0 ? d->opts.layers : 1) * (d->opts.bidirectional ? 2 : 1);
    int64_t state = d->places * d->rows * d->opts.hidden;
    d->x = random_numbers(d->steps * d->rows * d->opts.in);
    d->h0 = d->states ? random_numbers(state) : calloc((size_t)state + 1, sizeof *d->h0);
    d->c0 = d->states ? random_numbers(state) : calloc((size_t)state + 1, sizeof *d->c0);
    d->hn = calloc((size_t)state + 1, sizeof *d->hn);
    d->cn = calloc((size_t)state + 1, sizeof *d->cn);
    d->lengths = calloc((size_t)d->rows + 1, sizeof *d->lengths);
    for (int64_t row = 0; row < d->rows; row++)
        d->lengths[row] = d->some_lengths ? draw(d->steps + 1) : d->steps;
}

static void drawn_free(drawn *d)
{
    double *all[] = { d->x, d->h0, d->c0, d->hn, d->cn, d->y };
    for (size_t k = 0; k < sizeof all / sizeof all[0]; k++)
        free(all[k]);
    for (int64_t k = 0; k < d->places * weights_each(d); k++)
        free(d->params[k]);
    free(d->params);
    free(d->lengths);
}

/* The layer's own initial values, for the reference. */
static void read_params(drawn *d, trek_module *module)
{
    d->params = calloc((size_t)module->own->n_params, sizeof *d->params);
    for (int k = 0; k < module->own->n_params; k++) {
        trek_var *var = module->own->params[k].var;
        d->params[k] = calloc((size_t)trek_var_numel(var), sizeof **d->params);
        for (int64_t i = 0; i < trek_var_numel(var); i++)
            d->params[k][i] = at(var, i);
    }
}

/* Values [T, N, ..], what is beyond a length NaN, as a variable of the layer's order. */
static trek_var *input_var(const drawn *d, bool requires_grad)
{
    int64_t in = d->opts.in;
    bool first = d->opts.batch_first;
    trek_shape shape = first ? trek_dims(d->rows, d->steps, in) : trek_dims(d->steps, d->rows, in);
    double *values = calloc((size_t)trek_shape_numel(shape) + 1, sizeof *values);
    for (int64_t t = 0; t < d->steps; t++)
        for (int64_t row = 0; row < d->rows; row++)
            for (int64_t k = 0; k < in; k++)
                values[(first ? row * d->steps + t : t * d->rows + row) * in + k] =
                    t < d->lengths[row] ? d->x[(t * d->rows + row) * in + k] : NAN;
    trek_tensor *tensor = trek_tensor_from_data(values, shape, TREK_F64, test_device());
    trek_var *var = trek_var_from(tensor);
    if (requires_grad)
        assert_int_equal(trek_var_set_requires_grad(var, true), TREK_OK);
    free(values);
    return var;
}

static trek_var *state_var(const drawn *d, const double *values, int64_t size)
{
    if (!d->states)
        return NULL;
    trek_shape shape = trek_dims(d->places, d->rows, size);
    return trek_var_from(trek_tensor_from_data(values, shape, TREK_F64, test_device()));
}

static trek_var *lengths_var(const drawn *d)
{
    trek_dtype dtype = (const trek_dtype[]){ TREK_I64, TREK_I32, TREK_U8 }[d->rows % 3];
    if (!d->some_lengths)
        return NULL;
    trek_var *lengths = trek_var_from(trek_tensor_from_data(d->lengths, trek_dims(d->rows), TREK_I64, trek_cpu(0)));
    return trek_cast(lengths, dtype);
}

static trek_module *make_layer(const drawn *d)
{
    const trek_lstm_opts *o = &d->opts;
    if (d->rnn)
        return trek_nn_rnn_with(&(trek_rnn_opts){ o->in, o->hidden, o->layers, o->no_bias, o->batch_first, o->dropout,
                                                  o->bidirectional, o->dtype, o->device, d->relu });
    return d->lstm ? trek_nn_lstm_with(o) : trek_nn_gru_with(o);
}

static trek_var *run_layer(const drawn *d, trek_module *m, trek_var *x, trek_var **hn, trek_var **cn)
{
    *cn = NULL;
    if (d->lstm)
        return trek_nn_lstm_forward(m, x, lengths_var(d), state_var(d, d->h0, out_of(d)), state_var(d, d->c0, d->opts.hidden), hn,
                                    cn);
    return d->rnn ? trek_nn_rnn_forward(m, x, lengths_var(d), state_var(d, d->h0, out_of(d)), hn)
                  : trek_nn_gru_forward(m, x, lengths_var(d), state_var(d, d->h0, out_of(d)), hn);
}

static void expect_numbers(const trek_var *have, const double *want, int64_t n)
{
    assert_non_null(have);
    assert_int_equal(trek_var_numel(have), n);
    for (int64_t k = 0; k < n; k++)
        expect_near(at(have, k), want[k], 1e-12);
}

static void compare_results(const drawn *d, trek_var *y, trek_var *hn, trek_var *cn)
{
    int64_t width = out_of(d) * (d->opts.bidirectional ? 2 : 1);
    assert_non_null(y);
    y = d->opts.batch_first ? trek_contiguous(trek_transpose(y, 0, 1)) : y;
    assert_true(trek_shape_equal(trek_var_shape(y), trek_dims(d->steps, d->rows, width)));
    expect_numbers(y, d->y, d->steps * d->rows * width);
    expect_numbers(hn, d->hn, d->places * d->rows * out_of(d));
    if (d->lstm)
        expect_numbers(cn, d->cn, d->places * d->rows * d->opts.hidden);
}

static void test_random_layers(void **state)
{
    for (int round = 0; round < 200; round++) {
        drawn d;
        draw_layer(&d);
        trek_module *m = make_layer(&d);
        assert_non_null(m);
        read_params(&d, m);
        reference_run(&d);
        trek_scope scope = trek_scope_begin();
        trek_var *hn, *cn, *y = run_layer(&d, m, input_var(&d, false), &hn, &cn);
        compare_results(&d, y, hn, cn);
        trek_no_grad_begin(); /* nothing is kept for backward: other memory, the same numbers */
        y = run_layer(&d, m, input_var(&d, false), &hn, &cn);
        trek_no_grad_end();
        compare_results(&d, y, hn, cn);
        if (!d.states) { /* the plain forward of a module, and that of several inputs */
            trek_var *inputs[2] = { input_var(&d, false), lengths_var(&d) };
            y = trek_forward_many(m, inputs, 2);
            compare_results(&d, y, hn, cn);
            y = d.some_lengths ? NULL : trek_forward(m, inputs[0]);
            if (y)
                compare_results(&d, y, hn, cn);
        }
        assert_int_equal(trek_error_status(), TREK_OK);
        trek_scope_end(scope);
        trek_module_free(&m);
        drawn_free(&d);
    }
}

/* --- gradients: of results and states, against finite differences --------------------------------- */

/* A sum of everything that comes out, each number with a weight of its own. */
static trek_var *objective(const drawn *d, trek_module *m, trek_var *x)
{
    trek_var *hn, *cn, *y = run_layer(d, m, x, &hn, &cn), *parts[3] = { y, hn, cn }, *sum = NULL;
    for (int k = 0; k < 3; k++) {
        if (!parts[k])
            continue;
        trek_var *flat = trek_reshape(parts[k], trek_dims(-1));
        trek_tensor *weights = trek_tensor_arange(1, (double)trek_var_numel(flat) + 1, 1, TREK_F64, test_device());
        trek_var *part = trek_sum(trek_mul(trek_sin(trek_var_from(weights)), flat), trek_dims_all(), false);
        sum = sum ? trek_add(sum, part) : part;
    }
    return sum;
}

static double objective_value(const drawn *d, trek_module *m, trek_var *x)
{
    trek_scope scope = trek_scope_begin();
    trek_no_grad_begin();
    double value = trek_var_item(objective(d, m, x));
    trek_no_grad_end();
    trek_scope_end(scope);
    return value;
}

/* A few elements of var, which is written to and restored. */
static void compare_differences(const drawn *d, trek_module *m, trek_var *x, trek_var *var, trek_var *grad)
{
    double *values = trek_tensor_data(trek_var_data(var));
    for (int64_t count = 0; count < 5 && trek_var_numel(var) > 0; count++) {
        int64_t k = draw(trek_var_numel(var));
        double kept = values[k], h = 1e-6;
        if (isnan(kept)) { /* beyond a length */
            expect_near(at(grad, k), 0, 0);
            continue;
        }
        values[k] = kept + h;
        double above = objective_value(d, m, x);
        values[k] = kept - h;
        double below = objective_value(d, m, x);
        values[k] = kept;
        expect_near(grad ? at(grad, k) : 0, (above - below) / (2 * h), 1e-6);
    }
}

static void test_random_gradients(void **state)
{
    if (!test_on_cpu())
        return; /* values are written through a pointer; the ops' own gradients are compared there */
    for (int round = 0; round < 60; round++) {
        drawn d;
        draw_layer(&d);
        d.rows = d.rows > 0 ? d.rows : 0;
        trek_module *m = make_layer(&d);
        for (int k = 0; k < m->own->n_params; k++) /* some are frozen */
            assert_int_equal(trek_var_set_requires_grad(m->own->params[k].var, draw(5) > 0), TREK_OK);
        trek_scope scope = trek_scope_begin();
        trek_var *x = input_var(&d, true), *sum = objective(&d, m, x);
        assert_non_null(sum);
        bool create = draw(3) == 0; /* through the plain ops */
        assert_int_equal(trek_backward_with(sum, NULL, &(trek_backward_opts){ .create_graph = create }), TREK_OK);
        compare_differences(&d, m, x, x, trek_var_grad(x));
        for (int k = 0; k < m->own->n_params; k++) {
            trek_var *param = m->own->params[k].var, *grad = trek_var_grad(param);
            if (trek_var_requires_grad(param))
                compare_differences(&d, m, x, param, grad);
            else
                assert_null(grad);
            trek_var_zero_grad(param);
        }
        trek_var_zero_grad(x);
        assert_int_equal(trek_error_status(), TREK_OK);
        trek_scope_end(scope);
        assert_int_equal(trek_tape_size(), 0);
        trek_module_free(&m);
        d.params = calloc((size_t)(d.places * weights_each(&d)), sizeof *d.params);
        drawn_free(&d);
    }
}

/* --- one sequence, cells, dtypes --------------------------------------------------------------------- */

static double sum_of(const trek_var *var)
{
    double sum = 0;
    for (int64_t k = 0; k < trek_var_numel(var); k++)
        sum += at(var, k) * (double)(k + 1);
    return sum;
}

static trek_var *random_var(trek_shape shape, trek_dtype dtype)
{
    double *values = random_numbers(trek_shape_numel(shape));
    trek_var *var = trek_var_from(trek_tensor_from_data(values, shape, TREK_F64, test_device()));
    free(values);
    return trek_cast(var, dtype);
}

/* [T, in] is a batch of one sequence without its dimension. */
static void test_one_sequence(void **state)
{
    for (int first = 0; first < 2; first++) {
        trek_lstm_opts opts = { .in = 3, .hidden = 4, .layers = 2, .bidirectional = true, .batch_first = first,
                                .device = test_device() };
        trek_module *m = trek_nn_lstm_with(&opts);
        trek_scope scope = trek_scope_begin();
        trek_var *x = random_var(trek_dims(5, 3), TREK_F32), *h0 = random_var(trek_dims(4, 4), TREK_F32), *hn, *cn;
        trek_var *y = trek_nn_lstm_forward(m, x, NULL, h0, h0, &hn, &cn);
        assert_true(trek_shape_equal(trek_var_shape(y), trek_dims(5, 8)));
        assert_true(trek_shape_equal(trek_var_shape(cn), trek_dims(4, 4)));
        trek_var *whole[2], *state0 = trek_unsqueeze(h0, 1);
        trek_var *yb = trek_nn_lstm_forward(m, trek_unsqueeze(x, first ? 0 : 1), NULL, state0, state0, &whole[0], &whole[1]);
        expect_near(sum_of(yb), sum_of(y), 1e-5);
        expect_near(sum_of(whole[0]), sum_of(hn), 1e-6);
        trek_scope_end(scope);
        trek_module_free(&m);
    }
}

/* A cell, step after step, is a layer with its weights. */
static void test_cells(void **state)
{
    for (int kind = 0; kind < 3; kind++) {
        bool lstm = kind == 1, rnn = kind == 2;
        trek_module *m = lstm ? trek_nn_lstm(3, 4, test_device()) : rnn ? trek_nn_rnn(3, 4, test_device())
                                                                        : trek_nn_gru(3, 4, test_device());
        trek_module *cell = lstm ? trek_nn_lstm_cell(3, 4, test_device()) : rnn ? trek_nn_rnn_cell(3, 4, test_device())
                                                                                : trek_nn_gru_cell(3, 4, test_device());
        assert_int_equal(cell->own->n_params, 4);
        assert_string_equal(cell->own->params[1].name, "weight_hh");
        for (int k = 0; k < 4; k++)
            trek_tensor_copy_from(trek_var_data(cell->own->params[k].var), trek_var_data(m->own->params[k].var));
        trek_scope scope = trek_scope_begin();
        trek_var *x = random_var(trek_dims(3, 2, 3), TREK_F32), *h = NULL, *c = NULL, *y = trek_forward(m, x);
        for (int t = 0; t < 3; t++) {
            trek_var *now = trek_select(x, 0, t);
            h = lstm ? trek_nn_lstm_cell_forward(cell, now, h, c, &c) : rnn ? trek_nn_rnn_cell_forward(cell, now, h)
                                                                            : trek_nn_gru_cell_forward(cell, now, h);
            assert_true(trek_shape_equal(trek_var_shape(h), trek_dims(2, 4)));
            expect_near(sum_of(trek_select(y, 0, t)), sum_of(h), 1e-5);
        }
        trek_var *one = lstm ? trek_forward(cell, trek_select(trek_select(x, 0, 0), 0, 1)) : NULL;
        if (one) {
            assert_true(trek_shape_equal(trek_var_shape(one), trek_dims(4)));
            expect_near(at(one, 2), at(y, 4 + 2), 1e-6);
        }
        trek_scope_end(scope);
        trek_module_free(&cell);
        trek_module_free(&m);
    }
}

static void test_dtypes(void **state)
{
    trek_seed(3);
    trek_module *wide = trek_nn_lstm_with(&(trek_lstm_opts){ .in = 5, .hidden = 6, .dtype = TREK_F64, .device = test_device() });
    for (int d = 0; d < 3; d++) {
        trek_dtype dtype = (const trek_dtype[]){ TREK_F32, TREK_BF16, TREK_F16 }[d];
        double unit = d == 0 ? 1e-6 : d == 1 ? 0.02 : 0.003;
        trek_module *m = trek_nn_lstm_with(&(trek_lstm_opts){ .in = 5, .hidden = 6, .dtype = dtype, .device = test_device() });
        for (int k = 0; k < 4; k++)
            trek_tensor_copy_from(trek_var_data(m->own->params[k].var), trek_var_data(wide->own->params[k].var));
        trek_scope scope = trek_scope_begin();
        trek_var *x = random_var(trek_dims(4, 3, 5), TREK_F64), *hn, *cn;
        trek_var *want = trek_forward(wide, x), *y = trek_nn_lstm_forward(m, trek_cast(x, dtype), NULL, NULL, NULL, &hn, &cn);
        assert_int_equal(trek_var_dtype(y), dtype);
        assert_int_equal(trek_var_dtype(cn), dtype);
        for (int64_t k = 0; k < trek_var_numel(y); k++)
            expect_near(at(y, k), at(want, k), unit);
        trek_scope_end(scope);
        trek_module_free(&m);
    }
    trek_module_free(&wide);
}

static void test_autocast(void **state)
{
    trek_module *m = trek_nn_gru(4, 5, test_device());
    trek_scope scope = trek_scope_begin();
    trek_var *x = random_var(trek_dims(3, 2, 4), TREK_F32), *want = trek_forward(m, x);
    trek_autocast_begin(TREK_BF16);
    trek_var *y = trek_forward(m, x);
    trek_autocast_end();
    assert_int_equal(trek_var_dtype(y), TREK_BF16);
    for (int64_t k = 0; k < trek_var_numel(y); k++)
        expect_near(at(y, k), at(want, k), 0.02);
    assert_int_equal(trek_backward(trek_sum(trek_cast(y, TREK_F32), trek_dims_all(), false)), TREK_OK);
    for (int k = 0; k < m->own->n_params; k++)
        assert_int_equal(trek_var_dtype(trek_var_grad(m->own->params[k].var)), TREK_F32);
    trek_scope_end(scope);
    trek_module_free(&m);
}

/* --- as a module --------------------------------------------------------------------------------------- */

static void test_module(void **state)
{
    trek_lstm_opts opts = { .in = 3, .hidden = 4, .layers = 2, .bidirectional = true, .dropout = 0.5, .device = test_device() };
    trek_module *m = trek_nn_lstm_with(&opts);
    static const char *const names[] = { "weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0", "weight_ih_l0_reverse",
                                         "weight_hh_l0_reverse", "bias_ih_l0_reverse", "bias_hh_l0_reverse", "weight_ih_l1",
                                         "weight_hh_l1", "bias_ih_l1", "bias_hh_l1", "weight_ih_l1_reverse" };
    assert_int_equal(m->own->n_params, 16);
    for (size_t k = 0; k < sizeof names / sizeof names[0]; k++)
        assert_string_equal(m->own->params[k].name, names[k]);
    assert_int_equal(trek_module_param_count(m), 2 * (16 * 3 + 16 * 4 + 32) + 2 * (16 * 8 + 16 * 4 + 32));
    for (int64_t k = 0; k < trek_var_numel(m->own->params[8].var); k++)
        assert_true(fabs(at(m->own->params[8].var, k)) <= 0.5);
    char *summary = trek_module_summary(m);
    assert_non_null(strstr(summary, "3, 4, layers 2, dropout 0.5, bidirectional"));
    trek_string_free(&summary);

    trek_scope scope = trek_scope_begin();
    trek_var *x = random_var(trek_dims(5, 2, 3), TREK_F32), *first = trek_forward(m, x);
    assert_true(sum_of(first) != sum_of(trek_forward(m, x))); /* masks between the layers */
    assert_int_equal(trek_module_train(m, false), TREK_OK);
    double eval = sum_of(trek_forward(m, x));
    expect_near(sum_of(trek_forward(m, x)), eval, 0);
    trek_tensor *zeros = trek_tensor_zeros(trek_var_shape(m->own->params[1].var), TREK_F32, test_device());
    trek_tensor_copy_from(trek_var_data(m->own->params[1].var), zeros); /* weights are read at each forward */
    trek_tensor_release(zeros);
    assert_true(fabs(sum_of(trek_forward(m, x)) - eval) > 1e-4);
    trek_scope_end(scope);
    trek_module_free(&m);
}

/* A step of a model in a graph: embedding, recurrent layer, linear. */
static void test_graph(void **state)
{
    trek_flow *flow = trek_flow_from(trek_nn_embedding(7, 4, test_device()));
    trek_flow_through(flow, trek_nn_gru_with(&(trek_gru_opts){ .in = 4, .hidden = 5, .batch_first = true, .bidirectional = true,
                                                               .device = test_device() }));
    trek_flow_through(flow, trek_nn_linear(10, 7, test_device()));
    trek_graph *graph = trek_flow_build(flow);
    assert_non_null(graph);
    trek_scope scope = trek_scope_begin();
    const int64_t tokens[6] = { 0, 3, 6, 2, 2, 1 };
    trek_var *x = trek_var_from(trek_tensor_from_data(tokens, trek_dims(2, 3), TREK_I64, test_device()));
    trek_var *y = trek_graph_forward(graph, x);
    assert_true(trek_shape_equal(trek_var_shape(y), trek_dims(2, 3, 7)));
    trek_var *loss = trek_cross_entropy(trek_reshape(y, trek_dims(6, 7)), trek_reshape(x, trek_dims(6)));
    assert_int_equal(trek_graph_backward(graph, loss), TREK_OK);
    trek_scope_end(scope);
    trek_graph_free(&graph);
}

static void test_rnn_bad_input(void **state)
{
    REFUSED(trek_nn_rnn_with(NULL), TREK_ERR_ARGUMENT, "rnn: options: NULL");
    REFUSED(trek_nn_rnn_cell_with(NULL), TREK_ERR_ARGUMENT, "rnn_cell: options: NULL");
    REFUSED(trek_nn_rnn(3, 0, test_device()), TREK_ERR_ARGUMENT, "rnn: hidden: ");
    trek_scope scope = trek_scope_begin();
    trek_module *m = trek_nn_rnn_with(&(trek_rnn_opts){ .in = 3, .hidden = 4, .relu = true, .device = test_device() });
    char *text = trek_module_summary(m);
    assert_non_null(strstr(text, "3, 4, relu"));
    trek_string_free(&text);
    trek_var *x = random_var(trek_dims(5, 2, 3), TREK_F32), *hn = x;
    REFUSED(trek_nn_rnn_forward(m, x, random_var(trek_dims(2), TREK_F32), NULL, &hn), TREK_ERR_DTYPE,
            "rnn: lengths: dtype f32; must be an integer dtype");
    assert_null(hn);
    const int64_t numbers[] = { 2, 6, 1 };
    trek_var *lengths = trek_var_from(trek_tensor_from_data(numbers, trek_dims(3), TREK_I64, test_device()));
    REFUSED(trek_nn_rnn_forward(m, x, lengths, NULL, &hn), TREK_ERR_SHAPE, "rnn: lengths: [3]; must be [2]");
    REFUSED(trek_nn_rnn_forward(m, x, NULL, random_var(trek_dims(1, 3, 4), TREK_F32), &hn), TREK_ERR_SHAPE, "must be [1, 2, 4]");
    REFUSED(trek_nn_gru_forward(m, x, NULL, NULL, NULL), TREK_ERR_ARGUMENT, "module: it is a rnn");
    trek_nn_rnn_forward(m, x, trek_narrow(lengths, 0, 0, 2), NULL, NULL); /* 6 of 5 steps */
    assert_int_not_equal(test_settle(trek_error_status()), TREK_OK);
    trek_error_clear();
    trek_var *y = trek_nn_rnn_forward(m, random_var(trek_dims(0, 2, 3), TREK_F32), NULL, NULL, &hn); /* no steps */
    assert_true(trek_shape_equal(trek_var_shape(y), trek_dims(0, 2, 4)) && at(hn, 3) == 0);
    trek_scope_end(scope);
    trek_module_free(&m);
}

static void test_bad_input(void **state)
{
    REFUSED(trek_nn_lstm(0, 4, test_device()), TREK_ERR_ARGUMENT, "lstm: in: ");
    REFUSED(trek_nn_gru(4, -1, test_device()), TREK_ERR_ARGUMENT, "gru: hidden: ");
    REFUSED(trek_nn_lstm_with(NULL), TREK_ERR_ARGUMENT, "options");
    REFUSED(trek_nn_lstm_cell_with(NULL), TREK_ERR_ARGUMENT, "options");
    REFUSED(trek_nn_gru_cell_with(NULL), TREK_ERR_ARGUMENT, "options");
    REFUSED(trek_nn_lstm_with(&(trek_lstm_opts){ .in = 2, .hidden = 2, .layers = -1, .device = trek_cpu(0) }), TREK_ERR_ARGUMENT,
            "layers");
    REFUSED(trek_nn_lstm_with(&(trek_lstm_opts){ .in = 2, .hidden = 2, .proj_size = 2, .device = trek_cpu(0) }),
            TREK_ERR_ARGUMENT,
            "lstm: .proj_size: 2");
    REFUSED(trek_nn_gru_with(&(trek_gru_opts){ .in = 2, .hidden = 3, .proj_size = 2 }), TREK_ERR_ARGUMENT, "gru: .proj_size: 2");
    REFUSED(trek_nn_lstm_with(&(trek_lstm_opts){ .in = 2, .hidden = 2, .dropout = 1.5, .device = trek_cpu(0) }),
            TREK_ERR_ARGUMENT, "dropout");

    trek_module *m = trek_nn_lstm(3, 4, test_device()), *gru = trek_nn_gru(3, 4, test_device());
    trek_scope scope = trek_scope_begin();
    trek_var *x = random_var(trek_dims(5, 2, 3), TREK_F32), *state0 = random_var(trek_dims(1, 2, 4), TREK_F32), *hn = x, *cn = x;
    REFUSED(trek_forward(m, random_var(trek_dims(5, 2, 4), TREK_F32)), TREK_ERR_SHAPE, "[T, N, 3]");
    REFUSED(trek_forward(m, random_var(trek_dims(3), TREK_F32)), TREK_ERR_SHAPE, "[T, N, 3]");
    assert_null(trek_nn_lstm_forward(m, x, NULL, random_var(trek_dims(2, 2, 4), TREK_F32), NULL, &hn, &cn));
    assert_true(!hn && !cn);
    expect_error(TREK_ERR_SHAPE, "must be [1, 2, 4]");
    REFUSED(trek_nn_lstm_forward(m, x, NULL, state0, random_var(trek_dims(2, 4), TREK_F32), NULL, NULL), TREK_ERR_SHAPE, "c0");
    REFUSED(trek_nn_lstm_forward(m, random_var(trek_dims(5, 2, 3), TREK_F64), NULL, NULL, NULL, NULL, NULL), TREK_ERR_DTYPE, "");
    REFUSED(trek_nn_lstm_forward(m, x, random_var(trek_dims(2), TREK_F32), NULL, NULL, NULL, NULL), TREK_ERR_DTYPE, "lengths");
    REFUSED(trek_nn_lstm_forward(gru, x, NULL, NULL, NULL, NULL, NULL), TREK_ERR_ARGUMENT, "gru");
    REFUSED(trek_nn_gru_forward(gru, NULL, NULL, NULL, NULL), TREK_ERR_ARGUMENT, "");
    trek_recurrent_opts projected = { .weight_hr = random_var(trek_dims(2, 4), TREK_F32) };
    trek_var *wide = random_var(trek_dims(16, 3), TREK_F32), *narrow = random_var(trek_dims(16, 2), TREK_F32);
    REFUSED(trek_lstm(x, wide, random_var(trek_dims(16, 4), TREK_F32), NULL, NULL, &projected, NULL, NULL), TREK_ERR_SHAPE,
            "lstm: weight_hr: [2, 4] does not fit weight_hh [16, 4]");
    REFUSED(trek_gru(x, wide, narrow, NULL, NULL, &projected, NULL), TREK_ERR_ARGUMENT, "gru: weight_hr: given");
    projected.h0 = random_var(trek_dims(2, 4), TREK_F32);
    REFUSED(trek_lstm(x, wide, narrow, NULL, NULL, &projected, NULL, NULL), TREK_ERR_SHAPE, "must be [2, 2]");
    const int64_t lengths[3] = { 1, 6, 2 };
    trek_var *three = trek_var_from(trek_tensor_from_data(lengths, trek_dims(3), TREK_I64, trek_cpu(0)));
    REFUSED(trek_nn_gru_forward(gru, x, three, NULL, NULL), TREK_ERR_SHAPE, "must be [2]");
    REFUSED(trek_nn_gru_forward(gru, trek_select(x, 1, 0), three, NULL, NULL), TREK_ERR_ARGUMENT, "lengths");
    trek_var *y = trek_nn_gru_forward(gru, x, trek_narrow(three, 0, 0, 2), NULL, NULL);
    if (y && !test_on_cpu()) /* a GPU says so when it is asked for the numbers */
        assert_int_equal(trek_device_sync(test_device()), TREK_ERR_ARGUMENT);
    expect_error(TREK_ERR_ARGUMENT, "length 6");
    trek_scope_end(scope);
    trek_module_free(&gru);
    trek_module_free(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_random_layers, teardown), cmocka_unit_test_teardown(test_random_gradients, teardown),
        cmocka_unit_test_teardown(test_one_sequence, teardown), cmocka_unit_test_teardown(test_cells, teardown),
        cmocka_unit_test_teardown(test_dtypes, teardown), cmocka_unit_test_teardown(test_autocast, teardown),
        cmocka_unit_test_teardown(test_module, teardown), cmocka_unit_test_teardown(test_graph, teardown),
        cmocka_unit_test_teardown(test_rnn_bad_input, teardown), cmocka_unit_test_teardown(test_bad_input, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
