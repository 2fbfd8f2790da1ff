/* SPDX-License-Identifier: Apache-2.0 */
/* What tests of modules ask: numbers in, numbers out, memory that runs out. */
#ifndef TREK_TESTS_NN_VALUES_H
#define TREK_TESTS_NN_VALUES_H

#include "nn/layers.h"
#include "tests/support/refused.h"

extern long fail_in, in_use; /* allocations that still succeed (-1: all do); blocks alive */
/* The allocator that obeys it. */
void *test_allocate(size_t bytes, size_t alignment, void *arg);
void test_release(void *memory, size_t bytes, void *arg);
void fine(trek_status status); /* OK; else the error is printed */
void refuse(trek_status status, trek_status wanted, const char *part);
double *read_of(const trek_var *var); /* its numbers; free() them. NULL: the error is printed */
trek_var *numbers(const double *values, trek_shape shape);
double at(const trek_var *var, int64_t k);
void expect_near(double value, double wanted, double tolerance);
void fill(trek_module *module, const char *name, const double *values);
int teardown(void **state);
extern int freed;
void block_free(trek_module *self);
extern const trek_module_class bare_class;
trek_status join_name(const char *name, trek_var *var, void *arg);

#endif
