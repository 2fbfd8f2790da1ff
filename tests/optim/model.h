/* SPDX-License-Identifier: Apache-2.0 */
/* A model of a few parameters, of which each also has plain doubles, and memory that runs out. */
#ifndef TREK_TESTS_OPTIM_MODEL_H
#define TREK_TESTS_OPTIM_MODEL_H

#include "optim/optimizer_internal.h"
#include "tests/support/refused.h"

extern long fail_in; /* allocations that still succeed; -1: all do */
/* The allocator that obeys it. */
void *test_allocate(size_t bytes, size_t alignment, void *arg);
void test_release(void *memory, size_t bytes, void *arg);
enum { MODEL = 5, BIG = 300 };
extern const int64_t counts[MODEL];

typedef struct model {
    trek_params *params;
    trek_var *vars[MODEL];
    double values[MODEL][BIG], m[MODEL][BIG], v[MODEL][BIG], w[MODEL][BIG]; /* what they should be */
    int steps[MODEL];
} model;

extern uint64_t random_state;
double number(void);
trek_var *new_var(const double *values, int64_t n, trek_dtype dtype, bool requires_grad);
void read_tensor(const trek_tensor *tensor, double *values);
void set_grad(trek_var *var, const double *values);
void model_begin(model *m, trek_dtype dtype);
void model_end(model *m);
void check_values(const model *m, double tolerance);

/* New random gradients for the parameters in `mask`, and the update they should make. */
void feed(model *m, unsigned mask, const trek_optimizer_spec *spec);

trek_optimizer_spec some_adamw(void);

#endif
