/* SPDX-License-Identifier: Apache-2.0 */
/* Runs one batch through a graph on the calling thread. Steppers make passes of such runs. */
#ifndef TREK_GRAPH_BATCH_RUN_H
#define TREK_GRAPH_BATCH_RUN_H

#include "graph/graph_loader_internal.h"
#include "optim/scaler.h"

/* The sum of a rank's batches of one pass. */
typedef struct trek_pass_sum {
    double weight;           /* sum of the losses' weights */
    double loss;             /* sum of weight * loss, as far as the host knows it */
    trek_tensor *on_device;  /* the rest of that sum, a scalar (owned); NULL: none */
    trek_tensor *weight_on_device; /* the rest of the weight, which is that of on_device (owned); NULL: none */
    int64_t rows;
} trek_pass_sum;

typedef struct trek_batch_run {
    const trek_graph_loader *graph_loader;
    trek_grad_scaler *scaler; /* NULL: none */
    trek_var *const *leaves; /* the only variables that get gradients */
    int n_leaves;
    double denominator;      /* backward is seeded with weight / denominator; <= 0: with 1 */
    bool backward;
    trek_var **counted; /* gets the weight of a loss that only its device knows, an F64 scalar there, in the scope of the loss; it
                         * is the sum's only loss. NULL: the host reads it */
    bool meets; /* its layers meet those of other ranks: their losses reach its leaves, even if its own loss has weight 0 */
    void (*complete)(int k, void *arg); /* callbacks of trek_backward_watch; NULL: none */
    bool (*product)(int k, trek_tensor *grad, trek_tensor *x, void *arg);
    void *arg;
} trek_batch_run;

/* Runs the graph on the calling rank under its autocast, and casts a 16-bit result to f32. */
trek_var *trek_graph_forward_here(trek_graph *graph, trek_var *const *inputs, int n);
/* Runs forward and loss, in the current scope, and gets the weight of the loss. Adds to *sum. */
trek_status trek_graph_batch_loss(trek_graph *graph, const trek_batch *batch, const trek_batch_run *run, trek_pass_sum *sum,
                                  trek_var **loss, double *weight);
/* Runs backward from that loss, in the current scope. */
trek_status trek_graph_batch_backward(trek_var *loss, double weight, int64_t rows, const trek_batch_run *run);
/* Runs both in a scope of its own. */
trek_status trek_graph_run_batch(trek_graph *graph, const trek_batch *batch, const trek_batch_run *run, trek_pass_sum *sum);
/* Returns the sum as an f32 mean in the current scope, on the graph's device, and releases what the sum holds. */
trek_var *trek_pass_mean(trek_pass_sum *sums, int n, trek_device device);
void trek_pass_sum_clear(trek_pass_sum *sum);
/* Returns the rows of a graph's inputs, those of the first input that is split; 0 if none is. */
int64_t trek_graph_input_rows(const trek_graph *graph, trek_var *const *inputs, int n);
/* Returns the number of samples that the loss is the mean of: `stated` (>= 0), or as the loss knows it, otherwise the
 * rows of the last forward. Returns NaN on failure. */
double trek_graph_loss_weight(const trek_graph *graph, trek_var *loss, double stated);

/* Computes what backward begins with. *seed becomes factor, multiplied by the scale of the scaler (NULL: none). *loss
 * becomes f32 if it has 16 bits and either matters. *seed NULL stands for 1. The variables belong to the current
 * scope. */
trek_status trek_graph_seed(trek_grad_scaler *scaler, double factor, trek_var **loss, trek_var **seed);

/* Does the same with a factor that only the loss's device knows: a scalar there. */
trek_status trek_graph_seed_by(trek_grad_scaler *scaler, trek_var *factor, trek_var **loss, trek_var **seed);

/* Returns the weight of a loss on its device, if it stays there (trek_batch_run.counted); adds a loss with such a weight to an
 * empty sum; and returns what backward begins with then. NULL also with an error. */
trek_var *trek_graph_count_there(const trek_batch_run *run, trek_var *loss);
trek_status trek_graph_add_up_there(trek_pass_sum *sum, trek_var *loss, trek_var *weight);
trek_var *trek_graph_factor_there(trek_var *weight, double denominator);

/* Returns whether a pass would add gradients now. */
bool trek_graph_learns(const trek_graph *graph);

#endif
