/* SPDX-License-Identifier: Apache-2.0 */
/* L-BFGS: torch.optim.LBFGS. Its step evaluates the loss several times, by a function of the program's; so it is an object of its
 * own, beside the optimizers that a graph drives. For small problems with exact gradients: every step wants the whole batch. */
#ifndef TREK_OPTIM_LBFGS_H
#define TREK_OPTIM_LBFGS_H

#include "nn/module.h"
#include "nn/state.h"

TREK_BEGIN

typedef struct trek_lbfgs_opts {
    double lr;               /* default 1; TREK_ZERO for 0 */
    int max_iter;            /* of a step; default 20 */
    int max_eval;            /* of the loss, of a step; default max_iter * 5 / 4 */
    double tolerance_grad;   /* default 1e-7; TREK_ZERO for 0 */
    double tolerance_change; /* default 1e-9; TREK_ZERO for 0 */
    int history_size;        /* default 100: so many pairs of vectors as long as all parameters */
    bool strong_wolfe;       /* a line search; else each step is lr long */
    bool maximize;
} trek_lbfgs_opts;

/* Zeroes the gradients, computes the loss, runs backward, and in a job sums loss and gradients over the processes: all then do
 * the same. */
typedef trek_status (*trek_closure_fn)(void *arg, double *loss);

typedef struct trek_lbfgs trek_lbfgs;

/* Over f32 and f64 parameters (DTYPE for others), on one device. opts may be NULL. */
TREK_API trek_lbfgs *trek_lbfgs_new(const trek_params *params, const trek_lbfgs_opts *opts);
TREK_API void trek_lbfgs_free(trek_lbfgs **lbfgs);
/* Up to max_iter iterations; *loss (may be NULL) is that of the first evaluation. On failure, the closure's too, parameters are
 * somewhere on the way. */
TREK_API trek_status trek_lbfgs_step(trek_lbfgs *lbfgs, trek_closure_fn closure, void *arg, double *loss);
TREK_API void trek_lbfgs_zero_grad(trek_lbfgs *lbfgs);
TREK_API trek_status trek_lbfgs_set_lr(trek_lbfgs *lbfgs, double lr);

/* Copies on the CPU of what it knows: the rate, how far it has come, and of the curvature the last direction and gradient and the
 * history, vectors as long as all parameters ("d", "prev_grad", "dirs.0", "steps.0", ..). The caller's (trek_state_free);
 * trek_state_write makes a file of it. Parameters are not in it. NULL: MEMORY, or the device's error. */
TREK_API trek_state *trek_lbfgs_state(trek_lbfgs *lbfgs);
/* Takes all of it over: with the parameters as they were, next steps are to the bit those of the one that was saved. Options
 * other than the rate are not in it. FORMAT, naming what it is, for another optimizer's state, one of other parameters (names,
 * shapes, dtype, order), of a history longer than history_size, and one that is not whole; MEMORY. Then nothing has changed. */
TREK_API trek_status trek_lbfgs_load(trek_lbfgs *lbfgs, const trek_state *state);

TREK_END

#endif
