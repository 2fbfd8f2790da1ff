/* SPDX-License-Identifier: Apache-2.0 */
/* What the passes of a step come to. Without trek_trainer_opts.accumulate they add
 * up. With it they are one large batch, whatever device or rank made them: gradients
 * are kept as the sum of weight * gradient, over a denominator that the first pass
 * chooses, and the step multiplies them by denominator / (sum of weights). So nothing
 * has to be known of passes to come, and numbers stay of the size of a gradient. Internal. */
#ifndef TREK_GRAPH_ACCUMULATE_H
#define TREK_GRAPH_ACCUMULATE_H

#include "autograd/var.h"
#include "optim/scaler.h"

struct trek_graph;

typedef struct trek_accumulation {
    int passes;          /* of a step, as the program has said; at most 1: passes add up */
    double denominator;  /* 0: no pass has counted yet */
    double weight;       /* of the passes since the last step, those of all ranks and processes */
    int64_t rows;        /* of the last forward; -1: there was none */
} trek_accumulation;

static inline bool trek_accumulation_weighs(const trek_accumulation *a) { return a->passes > 1; }
/* A pass of all ranks begins to count: `planned` becomes the denominator if there is none. Returns the denominator. */
double trek_accumulation_denominator(trek_accumulation *a, double planned);
/* What gradients are to be multiplied by before they are used; 1 where passes add up. */
double trek_accumulation_factor(const trek_accumulation *a);
/* Gradients have been multiplied by the factor: further passes add to the mean. */
void trek_accumulation_settled(trek_accumulation *a);
/* There are no gradients any more. */
void trek_accumulation_clear(trek_accumulation *a);

/* Rows of a graph's inputs: of the first one that is split; 0 if there is none. */
int64_t trek_graph_input_rows(const struct trek_graph *graph, trek_var *const *inputs, int n);
/* What the loss of a backward is the mean of: stated (>= 0), as the loss knows it, else the rows of the last forward.
 * NaN and an error. */
double trek_graph_loss_weight(const struct trek_graph *graph, trek_var *loss, double stated);

/* What backward begins with: *seed is factor, times the scaler's scale if there is one (NULL: none), for *loss, which
 * becomes f32 if it is 16-bit and either matters. *seed NULL: 1. In the present scope. */
trek_status trek_graph_seed(trek_grad_scaler *scaler, double factor, trek_var **loss, trek_var **seed);

/* The same with a factor that is known on the loss's device alone: a scalar there. */
trek_status trek_graph_seed_by(trek_grad_scaler *scaler, trek_var *factor, trek_var **loss, trek_var **seed);

#endif
