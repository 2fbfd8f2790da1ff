/* SPDX-License-Identifier: Apache-2.0 */
/* What an op costs beside its arithmetic: one small op, and a chain of a
 * hundred multiplications forward and backward. */
#include "bench.h"

#include <stdlib.h>

typedef struct op_state {
    trek_var *x, *y;
    trek_var *(*op)(trek_var *, trek_var *);
    bool both; /* chain: the factor needs a gradient, too */
} op_state;

enum { OPS_IN_A_SCOPE = 10, CHAIN = 100 };

static trek_var *leaf(int64_t count, uint32_t seed, float shift, float scale, bool requires_grad)
{
    float *values = malloc((size_t)count * sizeof *values);
    if (!values)
        return NULL;
    bench_fill(values, count, seed, shift, scale);
    trek_tensor *tensor = trek_tensor_from_data(values, trek_dims(count), TREK_F32, trek_cpu(0));
    trek_var *var = tensor ? trek_var_new(tensor, requires_grad) : NULL;
    trek_tensor_release(tensor);
    free(values);
    return var;
}

static void op_close(void *state)
{
    op_state *s = state;
    trek_var_release(s->x);
    trek_var_release(s->y);
    free(s);
}

typedef struct op_case {
    trek_var *(*op)(trek_var *, trek_var *);
    int64_t count;
} op_case;

static void *op_open(const bench_work *work)
{
    const op_case *c = work->arg;
    op_state *s = calloc(1, sizeof *s);
    if (!s)
        return NULL;
    *s = (op_state){ leaf(c->count, 1, 0, 1, false), leaf(c->count, 2, 0, 1, false), c->op, false };
    trek_scope scope = trek_scope_begin();
    trek_var *result = s->op(s->x, s->y);
    for (int64_t k = 0; result && k < c->count; k++)
        bench_check(((float *)trek_tensor_data(trek_var_data(result)))[k]);
    trek_scope_end(scope);
    return s;
}

static void op_run(void *state, int64_t times)
{
    op_state *s = state;
    for (int64_t t = 0; t < times; t++) {
        trek_scope scope = trek_scope_begin();
        for (int k = 0; k < OPS_IN_A_SCOPE; k++)
            s->op(s->x, s->y);
        trek_scope_end(scope);
    }
}

static void chain_run(void *state, int64_t times)
{
    op_state *s = state;
    for (int64_t t = 0; t < times; t++) {
        trek_scope scope = trek_scope_begin();
        trek_var *y = s->x;
        for (int k = 0; k < CHAIN; k++)
            y = trek_mul(y, s->y);
        trek_var_zero_grad(s->x);
        trek_var_zero_grad(s->y);
        trek_backward(y);
        trek_scope_end(scope);
    }
}

static void *chain_open(const bench_work *work)
{
    op_state *s = calloc(1, sizeof *s);
    if (!s)
        return NULL;
    bool both = work->arg != NULL;
    *s = (op_state){ leaf(1, 1, 0, 1, true), leaf(1, 2, 1, 0.01f, both), trek_mul, both };
    chain_run(s, 1);
    if (trek_var_grad(s->x))
        bench_check(trek_var_item(trek_var_grad(s->x)));
    if (both && trek_var_grad(s->y))
        bench_check(trek_var_item(trek_var_grad(s->y)));
    return s;
}

static const op_case add1 = { trek_add, 1 }, add4 = { trek_add, 4 }, mul4 = { trek_mul, 4 };

const bench_work bench_works_small[] = {
    { .name = "add-1", .what = "x + y of one number each, no gradient", .per = OPS_IN_A_SCOPE,
      .open = op_open, .run = op_run, .close = op_close, .arg = &add1 },
    { .name = "add-4", .what = "x + y of four numbers each, no gradient", .per = OPS_IN_A_SCOPE,
      .open = op_open, .run = op_run, .close = op_close, .arg = &add4 },
    { .name = "mul-4", .what = "x y of four numbers each, no gradient", .per = OPS_IN_A_SCOPE,
      .open = op_open, .run = op_run, .close = op_close, .arg = &mul4 },
    { .name = "chain", .what = "100 multiplications by a constant, forward and backward, per op", .per = CHAIN,
      .open = chain_open, .run = chain_run, .close = op_close },
    { .name = "chain-both", .what = "the same with a gradient for the factor, too", .per = CHAIN,
      .open = chain_open, .run = chain_run, .close = op_close, .arg = &add1 },
    { 0 },
};
