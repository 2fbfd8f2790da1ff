/* SPDX-License-Identifier: Apache-2.0 */
/* A forward over ranks as its own files see it: what it keeps until its backward, and what they share. */
#ifndef TREK_DISTRIBUTED_STEP_SPLIT_PASS_H
#define TREK_DISTRIBUTED_STEP_SPLIT_PASS_H

#include "autograd/function.h"
#include "distributed/step/split_forward.h"

/* Where one rank's part of a tensor of all ranks lies. */
typedef struct trek_split_span {
    int64_t first, rows;    /* its rows of the whole, if that is divided */
    double factor;          /* outputs: of the rank's seed; leaves: of its gradient, before parts are joined */
} trek_split_span;

/* A tensor of all ranks. */
typedef struct trek_split_place {
    int64_t total;          /* rows that are divided along dimension 0; -1: every rank has it as a whole */
    trek_device device;     /* leaves: of the joined gradient */
} trek_split_place;

/* What one rank has of it. */
typedef struct trek_split_side {
    bool runs;
    int64_t first, rows;
    uint64_t rng_draw;      /* after the forward */
    trek_replica *replica;  /* retained */
    trek_var **leaves;      /* [sources] its own leaves, retained; NULL: not its own, or it needs no gradient */
    trek_var **outputs;     /* [outputs] retained: they hold the rank's segment of tape; NULL: it has none */
    trek_split_span *of_leaf, *of_output; /* [sources], [outputs] */
    trek_var **roots, **seeds; /* [outputs] scratch memory of its thread */
    trek_var **watched;     /* [sources + params] the same */
} trek_split_side;

/* The ranks' segments between leaves and outputs: a forward, or the gradients of one. On the caller's tape that is one
 * node from the sources to the joined outputs. It lives as long as its backward may come. Only the caller's thread
 * retains and releases it. */
typedef struct trek_split_pass {
    int refs;
    const trek_function *function; /* of the node: trek_split_outputs, and what its backward calls */
    trek_ranks *ranks;
    trek_stopwatches *watches; /* may be NULL */
    trek_var *tape_leaf;    /* a leaf of no replica: with it the tape records a forward whose inputs need no gradient */
    int local_ranks, n_outputs, n_sources, n_params;
    bool interprocess;      /* there are other processes */
    bool shares_tape;       /* its segments are a part of another pass's, whose backward may follow: they are kept */
    int64_t total;          /* number of rows */
    double scale;           /* the gradients of leaves and parameters are this times the true ones, until they are joined */
    trek_split_side *of;
    trek_var **sources;     /* [sources] the caller's, retained; NULL: no gradient goes through it */
    trek_split_place *leaf, *output; /* [sources], [outputs] */
    bool *recorded;         /* [outputs] */
    bool *reached;          /* [params] that get gradients in the current backward */
    trek_tensor **joined;   /* [outputs] until they are variables */
} trek_split_pass;

/* Allocates a pass with its arrays, on the ranks and replicas, with one reference. Returns NULL on failure. */
trek_split_pass *trek_split_pass_new(trek_ranks *ranks, int n_sources, int n_outputs, trek_replica *const *replicas);
/* Releases one reference. What the ranks recorded returns to their tapes with the last one. */
void trek_split_pass_release(void *pass);

/* Runs fn on all ranks. Those that run can make sums with one another. goes_back: it goes backward through the run
 * before it. */
trek_status trek_split_run(const trek_split_pass *pass, trek_rank_fn fn, void *arg, bool goes_back);

/* Returns rows [first, first + rows) of x on `device`, as a new reference: CPUs share memory, GPUs get copies of what
 * is elsewhere. */
trek_tensor *trek_split_rows(trek_tensor *x, int64_t first, int64_t rows, trek_device device);
/* Writes `part` to rows [first, ...) of `whole`. */
trek_status trek_split_put_rows(trek_tensor *whole, int64_t first, trek_tensor *part);

/* Gives the recorded outputs, which are joined, to the caller's tape as a node, and writes those variables to `outputs`,
 * in the current scope. Takes over the pass, also on failure. */
trek_status trek_split_record(trek_split_pass *pass, trek_var **outputs);

/* The node's forward: gives the joined outputs, which the ranks have computed before. */
trek_status trek_split_outputs(trek_function_context *context, trek_var *const *inputs, int n_inputs, trek_var **outputs,
                               int n_outputs);

/* The node's backward, which adds gradients to leaves (split_backward.c). */
trek_status trek_split_backward(trek_function_context *context, trek_var *const *grads, trek_var **input_grads);
/* Runs fn on a rank as a part of a backward: in a scope, with sums and a trace. Seeds that it makes have no history. */
trek_status trek_split_on_rank(const trek_split_pass *pass, int rank, trek_status (*fn)(void *arg, int rank), void *arg);
/* Sets the rank's roots and seeds, in the current scope: the outputs at which a gradient arrives. grads: of the recorded
 * outputs; NULL where none arrived. Returns how many, or -1. */
int trek_split_seeds(const trek_split_pass *pass, int rank, trek_var *const *grads);
/* Joins the ranks' parts of the gradient of source k, parts[rank] or NULL. Returns the whole, without history, in the
 * current scope; NULL: no rank has a part, or an error. */
trek_var *trek_split_join(const trek_split_pass *pass, int k, trek_var *const *parts);
/* Sums what the ranks have as a whole, in rank order; as trek_split_join. */
trek_var *trek_split_sum(const trek_split_pass *pass, trek_var *const *parts, trek_device device);

/* The node's backward for trek_grad, which makes the gradients results instead (split_grad.c). They have a history if the
 * caller records one. */
trek_status trek_split_grad(trek_function_context *context, trek_var *const *grads, trek_var **input_grads);
/* Says whether the calling thread adds up the gradients of parameters over the processes (job_grad.c); otherwise those are
 * refused if there are other processes. */
bool *trek_split_grad_joins(void);

#endif
