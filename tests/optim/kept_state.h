/* SPDX-License-Identifier: Apache-2.0 */
/* Optimizers whose state is kept in fewer bits: a model of parameters of several dtypes in two groups, all classes that have it,
 * and a training that needs moments to move. */
#ifndef TREK_TESTS_KEPT_STATE_H
#define TREK_TESTS_KEPT_STATE_H

#include "optim/optimizer_internal.h"
#include "tests/support/refused.h"


enum { PARAMS = 6 };
extern const char *const names[PARAMS];

typedef struct model {
    trek_var *vars[PARAMS];
    trek_optimizer *optimizer;
} model;

/* The parameters of odd place make a group of their own, updated by `odd`. */
model make(trek_optimizer_spec spec, trek_optimizer_spec odd);
void drop(model *m);
/* Which parameters have a gradient in step k; and gradients for those of `mask`. */
unsigned mask_of(int k);
void feed(const model *m, int k, unsigned mask);
/* A step with both, clipped where k is odd. */
void step(model *m, int k);
/* A step without clipping by gradients times `scale`, cut as threads and ranks do: anywhere, by what is drawn. */
void step_in_slices(model *m, double scale, uint32_t *drawn);
void copy_values(model *to, const model *from);
/* That parameters have the same bits. */
void assert_same(const model *a, const model *b, const char *what, int k);

/* Classes that update elements, with a second group's options. */
enum { SPECS = 13 };
trek_optimizer_spec spec_at(int k, bool odd);

/* The loss of a sample in the last epoch, on the CPU. */
double train(trek_optimizer_spec spec, int epochs);

#endif
