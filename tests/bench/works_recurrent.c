/* SPDX-License-Identifier: Apache-2.0 */
/* Forward and backward of a recurrent layer over a whole sequence. */
#include "bench.h"
#include "nn/module_internal.h"

#include <math.h>
#include <stdlib.h>

enum { STEPS = 128, SIZE = 256 };

typedef struct recurrent_case {
    bool lstm;
    int64_t rows;
} recurrent_case;

typedef struct recurrent_state {
    trek_module *layer;
    trek_var *x, *grad;
} recurrent_state;

static trek_var *filled(int64_t rows, uint32_t seed, bool requires_grad)
{
    trek_tensor *tensor = trek_tensor_empty(trek_dims(rows, STEPS, SIZE), TREK_F32, trek_cpu(0));
    if (tensor)
        bench_fill(trek_tensor_data(tensor), rows * STEPS * SIZE, seed, 0, 1);
    trek_var *var = tensor ? trek_var_new(tensor, requires_grad) : NULL;
    trek_tensor_release(tensor);
    return var;
}

/* As digest of peer.py. */
static double digest(const trek_var *var)
{
    double sum = 0, count = 0;
    trek_tensor *dense = trek_tensor_contiguous(trek_var_data(var));
    const float *values = dense ? trek_tensor_data(dense) : NULL;
    for (int64_t i = 0; values && i < trek_var_numel(var); i += 97, count++)
        sum += (double)values[i] * (double)bench_uniform(9, (uint32_t)i);
    trek_tensor_release(dense);
    return count > 0 ? sum / sqrt(count) : 0;
}

static void step(recurrent_state *s, bool check)
{
    trek_scope scope = trek_scope_begin();
    trek_var *y = trek_forward(s->layer, s->x);
    trek_var_zero_grad(s->x);
    for (int k = 0; k < s->layer->own->n_params; k++)
        trek_var_zero_grad(s->layer->own->params[k].var);
    if (trek_backward_with(y, s->grad, NULL) == TREK_OK && check) {
        bench_check(digest(y));
        bench_check(digest(trek_var_grad(s->x)));
        for (int k = 0; k < s->layer->own->n_params; k++)
            bench_check(digest(trek_var_grad(s->layer->own->params[k].var)));
    }
    trek_scope_end(scope);
}

static void recurrent_run(void *state, int64_t times)
{
    for (int64_t t = 0; t < times; t++)
        step(state, false);
}

static void recurrent_close(void *state)
{
    recurrent_state *s = state;
    trek_module_free(&s->layer);
    trek_var_release(s->x);
    trek_var_release(s->grad);
    free(s);
}

static void *recurrent_open(const bench_work *work)
{
    const recurrent_case *c = work->arg;
    trek_lstm_opts opts = { .in = SIZE, .hidden = SIZE, .batch_first = true, .device = trek_cpu(0) };
    recurrent_state *s = calloc(1, sizeof *s);
    if (!s)
        return NULL;
    *s = (recurrent_state){ c->lstm ? trek_nn_lstm_with(&opts) : trek_nn_gru_with(&opts), filled(c->rows, 1000, true),
                            filled(c->rows, 2000, false) };
    if (!s->layer || !s->x || !s->grad) {
        recurrent_close(s);
        return NULL;
    }
    for (int k = 0; k < s->layer->own->n_params; k++) {
        trek_var *param = s->layer->own->params[k].var;
        bench_fill(trek_tensor_data(trek_var_data(param)), trek_var_numel(param), (uint32_t)k + 1, 0, 0.0625f);
    }
    step(s, true);
    return s;
}

static const recurrent_case lstm64 = { true, 64 }, lstm1 = { true, 1 }, gru64 = { false, 64 }, gru1 = { false, 1 };

#define RECURRENT_WORK(work, text, which) \
    { .name = work, .what = text, .open = recurrent_open, .run = recurrent_run, .close = recurrent_close, .arg = which }

const bench_work bench_works_recurrent[] = {
    RECURRENT_WORK("lstm-64", "LSTM of 256 from 256, 64 rows of 128 steps, forward and backward", &lstm64),
    RECURRENT_WORK("lstm-1", "the same of one row", &lstm1),
    RECURRENT_WORK("gru-64", "GRU of 256 from 256, 64 rows of 128 steps, forward and backward", &gru64),
    RECURRENT_WORK("gru-1", "the same of one row", &gru1),
    { 0 },
};
