/* SPDX-License-Identifier: Apache-2.0 */
/* Optimizers over flat arenas: one fused, multi-threaded loop a step. Formulas
 * and defaults are PyTorch's. 16-bit parameters (bf16, f16) are updated in f32 master
 * copies and rewritten from them; new values given to them from outside (trek_tensor_copy_from,
 * loading, initialising; not through trek_tensor_data) are taken over at the next step.
 * Parameters of one optimizer are on one GPU, or on CPUs. */
#ifndef TREK_OPTIM_OPTIMIZER_H
#define TREK_OPTIM_OPTIMIZER_H

#include "nn/module.h"
#include "tensor/update_slice.h"

TREK_BEGIN

typedef struct trek_sgd_opts {
    double lr;             /* default 1e-3; TREK_ZERO for 0, at which nothing is learnt */
    double momentum;       /* default 0 */
    double dampening;      /* default 0 */
    double weight_decay;   /* default 0 (L2) */
    bool nesterov;         /* needs momentum > 0 and dampening 0: ARGUMENT */
    bool maximize;
} trek_sgd_opts;

typedef struct trek_adam_opts {
    double lr;             /* default 1e-3; TREK_ZERO for 0, at which nothing is learnt */
    double beta1, beta2;   /* default 0.9, 0.999; TREK_ZERO for 0 */
    double eps;            /* default 1e-8; TREK_ZERO for 0 */
    double weight_decay;   /* trek_adam: L2, default 0; trek_adamw: decoupled, default 0.01, TREK_ZERO for 0 */
    bool maximize;
} trek_adam_opts;

typedef struct trek_rmsprop_opts {
    double lr;             /* default 0.01; TREK_ZERO for 0 */
    double alpha;          /* default 0.99, of the average of squares; TREK_ZERO for 0 */
    double eps;            /* default 1e-8; TREK_ZERO for 0 */
    double weight_decay;   /* default 0 (L2) */
    double momentum;       /* default 0 */
    bool centered;         /* gradients are divided by the root of their variance instead */
    bool maximize;
} trek_rmsprop_opts;

/* What an optimizer is: optim/optimizer_class.h, which also says how to write one. */
typedef struct trek_optimizer_class trek_optimizer_class;

/* A value that says which optimizer with which options; each rank makes its own from it. Options are in the order of the class,
 * the learning rate first; 0 stands for the default, TREK_ZERO for 0. */
typedef struct trek_optimizer_spec {
    const trek_optimizer_class *klass; /* NULL: none */
    double options[TREK_UPDATE_OPTIONS];
} trek_optimizer_spec;

TREK_API trek_optimizer_spec trek_sgd(trek_sgd_opts opts);
TREK_API trek_optimizer_spec trek_adam(trek_adam_opts opts);
TREK_API trek_optimizer_spec trek_adamw(trek_adam_opts opts);
TREK_API trek_optimizer_spec trek_rmsprop(trek_rmsprop_opts opts);

typedef struct trek_optimizer trek_optimizer;

/* Over the listed parameters (moved into a flat arena), which make group 0. Errors: ARGUMENT for options out of range;
 * UNSUPPORTED for parameters on a GPU and a class that has no kernel there. */
TREK_API trek_optimizer *trek_optimizer_new(trek_optimizer_spec spec, const trek_params *params);
TREK_API void trek_optimizer_free(trek_optimizer **optimizer);
/* One update of every parameter that has a gradient; frozen and unused ones are
 * untouched, by weight decay too. Gradients stay (see zero_grad). Changes nothing while an error is set. */
TREK_API trek_status trek_optimizer_step(trek_optimizer *optimizer);
TREK_API trek_status trek_optimizer_zero_grad(trek_optimizer *optimizer);
TREK_API trek_status trek_optimizer_set_lr(trek_optimizer *optimizer, double lr);             /* all groups */
TREK_API trek_status trek_optimizer_set_group_lr(trek_optimizer *optimizer, int group, double lr);
TREK_API double trek_optimizer_lr(const trek_optimizer *optimizer);                           /* group 0 */
TREK_API double trek_optimizer_group_lr(const trek_optimizer *optimizer, int group);
/* Moves parameters of the optimizer (those listed) into a new group with options of its own, of the same class. Returns its
 * index, -1 on failure. */
TREK_API int trek_optimizer_add_group(trek_optimizer *optimizer, const trek_params *params, trek_optimizer_spec spec);

/* Scales all gradients so that their joint 2-norm is at most max_norm; returns the
 * norm before (f64; NaN and an error on failure). Gradients with a norm that is not finite: left alone. */
TREK_API double trek_clip_grad_norm(const trek_params *params, double max_norm);
TREK_API trek_status trek_clip_grad_value(const trek_params *params, double max_value);

TREK_END

#endif
