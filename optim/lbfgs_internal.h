/* SPDX-License-Identifier: Apache-2.0 */
/* What L-BFGS and its line search share. A function that fails sets the thread's error; the functions called after it
 * then do nothing. */
#ifndef TREK_OPTIM_LBFGS_INTERNAL_H
#define TREK_OPTIM_LBFGS_INTERNAL_H

#include "optim/lbfgs.h"

struct trek_lbfgs {
    trek_params *params;
    trek_lbfgs_opts opts;    /* defaults filled in */
    trek_dtype dtype;        /* of the vectors */
    trek_device device;
    int64_t total;
    int64_t evaluations, iterations;
    double t, h_diag, prev_loss;
    trek_tensor *d, *prev_grad; /* NULL if there are none yet */
    int n_old;
    trek_tensor **dirs, **steps; /* [history_size] */
    double *ro, *al;
};

/* A point on a line. */
typedef struct trek_lbfgs_point {
    double t, loss, slope;
    trek_tensor *grad;       /* owned */
} trek_lbfgs_point;

typedef struct trek_lbfgs_line {
    /* Computes loss and gradient at x + t d. */
    trek_lbfgs_point (*evaluate)(struct trek_lbfgs_line *line, double t);
    trek_lbfgs *lbfgs;
    trek_closure_fn closure;
    void *arg;
    trek_tensor *x;          /* where the line begins */
    const trek_tensor *d;
    double largest;          /* magnitude in d */
    int evaluations;
} trek_lbfgs_line;

/* Forgets the curvature information, except for plain numbers. */
void trek_lbfgs_forget(trek_lbfgs *lbfgs);

/* Returns a point that satisfies the strong Wolfe conditions, or the best one found. The search begins at `start`, at
 * t 0, with t as the first guess. */
trek_lbfgs_point trek_lbfgs_search(trek_lbfgs_line *line, trek_lbfgs_point start, double t, int most);

#endif
