/* SPDX-License-Identifier: Apache-2.0 */
/* L-BFGS, as torch.optim.LBFGS. A step evaluates the loss several times by a function of the program, so L-BFGS is an object of
 * its own and not an optimizer that a graph can use. It is meant for small problems with exact gradients: each step needs the
 * whole batch. */
#ifndef TREK_OPTIM_LBFGS_H
#define TREK_OPTIM_LBFGS_H

#include "nn/module.h"
#include "nn/state.h"

TREK_BEGIN

/* Options of trek_lbfgs_new. */
typedef struct trek_lbfgs_opts {
    double lr;               /* learning rate; default 1, TREK_ZERO for 0 */
    int max_iter;            /* largest number of iterations in a step; default 20 */
    int max_eval;            /* largest number of evaluations of the loss in a step; default max_iter * 5 / 4 */
    double tolerance_grad;   /* ends a step when no element of the gradient is larger; default 1e-7, TREK_ZERO for 0 */
    double tolerance_change; /* ends a step when the parameters or the loss change less; default 1e-9, TREK_ZERO for 0 */
    /* Number of pairs of vectors that are kept, each as long as all parameters together; default 100. */
    int history_size;
    bool strong_wolfe; /* uses a line search; otherwise each step has the length lr */
    bool maximize;     /* maximises the objective instead of minimising it */
} trek_lbfgs_opts;

/* Evaluates the loss: zeroes the gradients, computes the loss and writes it to *loss, and runs backward. In a job it also sums
 * loss and gradients over the processes, so that all processes take the same steps. */
typedef trek_status (*trek_closure_fn)(void *arg, double *loss);

/* An L-BFGS optimizer with its history. */
typedef struct trek_lbfgs trek_lbfgs;

/* Returns a new L-BFGS optimizer over the parameters, or NULL on failure. opts may be NULL. The caller owns it.
 * Dtypes: f32 and f64 parameters, all on one device.
 * Errors: DTYPE for other dtypes, ARGUMENT if an option is out of range, MEMORY. */
TREK_API trek_lbfgs *trek_lbfgs_new(const trek_params *params, const trek_lbfgs_opts *opts);

/* Frees the optimizer. *lbfgs may be NULL and is NULL afterwards. */
TREK_API void trek_lbfgs_free(trek_lbfgs **lbfgs);

/* Makes up to max_iter iterations and writes the loss of the first evaluation to *loss unless loss is NULL. On failure, also of
 * the closure, the parameters have values of an intermediate point. */
TREK_API trek_status trek_lbfgs_step(trek_lbfgs *lbfgs, trek_closure_fn closure, void *arg, double *loss);

/* Sets the gradients of all parameters to zero. */
TREK_API void trek_lbfgs_zero_grad(trek_lbfgs *lbfgs);

/* Sets the learning rate. */
TREK_API trek_status trek_lbfgs_set_lr(trek_lbfgs *lbfgs, double lr);

/* Returns copies of the optimizer's state on the CPU, or NULL on failure. It contains the rate, the counts, the last direction
 * and gradient and the history, which are vectors as long as all parameters together ("d", "prev_grad", "dirs.0", "steps.0" and
 * so on). It does not contain the parameters. The caller owns it (trek_state_free); trek_state_write writes it to a file.
 * Errors: MEMORY, and those of the device. */
TREK_API trek_state *trek_lbfgs_state(trek_lbfgs *lbfgs);

/* Replaces the optimizer's state by a saved one. If the parameters have the values that they had, the next steps have the same
 * bits as those of the optimizer that was saved. Options other than the rate are not saved.
 * Errors: FORMAT, with a message that names the entry, if the state is of another optimizer or of other parameters (names,
 * shapes, dtype, order), has a history longer than history_size or is incomplete. MEMORY. Nothing has changed then. */
TREK_API trek_status trek_lbfgs_load(trek_lbfgs *lbfgs, const trek_state *state);

TREK_END

#endif
