/* SPDX-License-Identifier: Apache-2.0 */
/* How the passes of a step are combined. Without trek_trainer_opts.accumulate they add up. With it they are one large
 * batch, whatever device or rank makes them: gradients are kept as the sum of weight * gradient, divided by a
 * denominator that the first pass chooses, and the step multiplies them by denominator / (sum of weights). So nothing
 * need be known of later passes, and numbers keep the size of a gradient. */
#ifndef TREK_GRAPH_ACCUMULATE_H
#define TREK_GRAPH_ACCUMULATE_H

#include "autograd/var.h"
#include "graph/graph.h"
#include "optim/scaler.h"

struct trek_graph;

typedef struct trek_accumulation {
    int passes;          /* of a step, as the program has set; at most 1: passes add up */
    double denominator;  /* 0: no pass has counted yet */
    double weight;       /* of the passes of all ranks and processes since the last step */
    int64_t rows;        /* of the last forward; -1: there was none */
} trek_accumulation;

static inline bool trek_accumulation_weighs(const trek_accumulation *a) { return a->passes > 1; }
/* Begins a pass of all ranks that counts. `planned` becomes the denominator if there is none. Returns the denominator. */
double trek_accumulation_denominator(trek_accumulation *a, double planned);
/* Returns the factor that gradients must be multiplied by before they are used; 1 if passes add up. */
double trek_accumulation_factor(const trek_accumulation *a);
/* Notes that gradients were multiplied by the factor: further passes add to the mean. */
void trek_accumulation_settled(trek_accumulation *a);
/* Notes that no gradients are left. */
void trek_accumulation_clear(trek_accumulation *a);

/* Returns the rows of a graph's inputs, those of the first input that is split; 0 if none is. */
int64_t trek_graph_input_rows(const struct trek_graph *graph, trek_var *const *inputs, int n);
/* Returns the number of samples that the loss is the mean of: `stated` (>= 0), or as the loss knows it, otherwise the
 * rows of the last forward. Returns NaN on failure. */
double trek_graph_loss_weight(const struct trek_graph *graph, trek_var *loss, double stated);

/* Computes what backward begins with. *seed becomes factor, multiplied by the scale of the scaler (NULL: none). *loss
 * becomes f32 if it has 16 bits and either matters. *seed NULL stands for 1. The variables belong to the current
 * scope. */
trek_status trek_graph_seed(trek_grad_scaler *scaler, double factor, trek_var **loss, trek_var **seed);

/* Does the same with a factor that only the loss's device knows: a scalar there. */
trek_status trek_graph_seed_by(trek_grad_scaler *scaler, trek_var *factor, trek_var **loss, trek_var **seed);

#endif
