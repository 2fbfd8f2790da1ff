/* SPDX-License-Identifier: Apache-2.0 */
/* Modules whose arithmetic is easy to follow, and what tests of graphs ask of them. */
#ifndef TREK_TESTS_GRAPH_MODULES_H
#define TREK_TESTS_GRAPH_MODULES_H

#include "graph/flow.h"
#include "nn/layers.h"

extern int alive; /* scale modules that were not freed yet */

/* x -> factor * x, factor a parameter of one element. */
trek_module *scale(double factor);

extern const trek_module_class sum_class;
extern const trek_module_class ports_class;
extern trek_scope scope;
/* Set-up and tear-down of a test: an open scope; no error, module or tape node is left. */
int begin(void **state);
int end(void **state);
trek_var *filled(double value);

/* All elements of v are `value`. */
void assert_all(trek_var *v, double value);

trek_graph *built(trek_flow *flow);
void assert_forward(trek_graph *graph, double x, double y);

/* Builds, which must fail with a message that contains the text; clears the error. */
void assert_mistake(trek_flow *flow, const char *text);

double grad_of(trek_graph *graph, const char *name);
double value_of(trek_graph *graph, const char *name);
trek_var *total(trek_var *v);

#endif
