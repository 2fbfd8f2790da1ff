/* SPDX-License-Identifier: Apache-2.0 */
/* One batch through a graph on the calling thread: what steppers make passes of. */
#ifndef TREK_GRAPH_GRAPH_LOADER_INTERNAL_H
#define TREK_GRAPH_GRAPH_LOADER_INTERNAL_H

#include "data/loader_internal.h"
#include "graph/graph_internal.h"
#include "graph/graph_loader.h"

#define TREK_MEASURED "trek:"

typedef struct trek_graph_loader {
    trek_loader *loader;     /* NULL: none */
    int *fields;             /* [inputs] of the dataset */
    bool by_loss;            /* the loss runs forward itself */
    bool measures;           /* losses, samples and times are observed, under names that begin TREK_MEASURED */
    trek_loss_fn loss;       /* NULL: none */
    void *arg;
    const char *loss_name;   /* what its program calls it, which lasts; NULL: the function of trek_graph_set_loss */
} trek_graph_loader;

/* What a rank's batches of one pass come to. */
typedef struct trek_pass_sum {
    double weight;           /* sum of the losses' weights */
    double loss;             /* sum of weight * loss, as far as the host knows it */
    trek_tensor *on_device;  /* the rest of it, a scalar (owned); NULL: none */
    int64_t rows;
} trek_pass_sum;

typedef struct trek_batch_run {
    const trek_graph_loader *graph_loader;
    trek_grad_scaler *scaler; /* NULL: none */
    trek_var *const *leaves; /* that get gradients, no others */
    int n_leaves;
    double denominator;      /* the seed of backward is weight / denominator; <= 0: 1 */
    bool backward;
    bool meets; /* its layers meet other ranks': what these lose reaches its leaves, though its own loss weighs nothing */
    void (*complete)(int k, void *arg); /* of trek_backward_watch; NULL: nobody asks */
    void *arg;
} trek_batch_run;

/* The graph on the calling rank, under its autocast; a 16-bit result in f32. */
trek_var *trek_graph_forward_here(trek_graph *graph, trek_var *const *inputs, int n);
/* Forward and loss, which is of the present scope, and what it is the mean of. Adds to *sum. */
trek_status trek_graph_batch_loss(trek_graph *graph, const trek_batch *batch, const trek_batch_run *run, trek_pass_sum *sum,
                                  trek_var **loss, double *weight);
/* From that loss, in the present scope. */
trek_status trek_graph_batch_backward(trek_var *loss, double weight, int64_t rows, const trek_batch_run *run);
/* Both; opens and ends a scope of its own. */
trek_status trek_graph_run_batch(trek_graph *graph, const trek_batch *batch, const trek_batch_run *run, trek_pass_sum *sum);
/* The sum as an f32 mean in the present scope, on the graph's device; releases what the sum holds. */
trek_var *trek_pass_mean(trek_pass_sum *sums, int n, trek_device device);
void trek_pass_sum_clear(trek_pass_sum *sum);
/* Whether a pass now would add gradients. */
bool trek_graph_learns(const trek_graph *graph);

#endif
