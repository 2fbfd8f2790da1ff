/* SPDX-License-Identifier: Apache-2.0 */
/* Optimizers over flat arenas, with one fused, multi-threaded loop for a step. Formulas and defaults are PyTorch's.
 *
 * Parameters in 16 bits (bf16, f16) are updated in f32 master copies and rewritten from them. New values that are given to them
 * from outside are taken over at the next step, if they come from trek_tensor_copy_from, loading or initialising, and not through
 * trek_tensor_data. The parameters of one optimizer are all on one GPU, or all on CPUs. */
#ifndef TREK_OPTIM_OPTIMIZER_H
#define TREK_OPTIM_OPTIMIZER_H

#include "nn/module.h"
#include "tensor/update_slice.h"

TREK_BEGIN

/* Options of trek_sgd. */
typedef struct trek_sgd_opts {
    double lr;           /* learning rate; default 1e-3, TREK_ZERO for 0 */
    double momentum;     /* weight of the earlier steps; default 0 */
    double dampening;    /* the part of the gradient that is left out of the momentum; default 0 */
    double weight_decay; /* L2 penalty: this times the parameter is added to the gradient; default 0 */
    bool nesterov;       /* uses Nesterov momentum, which requires a momentum above 0 and dampening 0 (ARGUMENT) */
    bool maximize;       /* maximises the objective instead of minimising it */
} trek_sgd_opts;

/* Options of trek_adam and trek_adamw. */
typedef struct trek_adam_opts {
    double lr;    /* learning rate; default 1e-3, TREK_ZERO for 0 */
    double beta1; /* decay of the average of gradients, in [0, 1); default 0.9, TREK_ZERO for 0 */
    double beta2; /* decay of the average of squared gradients, in [0, 1); default 0.999, TREK_ZERO for 0 */
    double eps;   /* added to the denominator; default 1e-8, TREK_ZERO for 0 */
    /* Trek_adam: L2 penalty, default 0. trek_adamw: decoupled weight decay, default 0.01, TREK_ZERO for 0. */
    double weight_decay;
    bool maximize; /* maximises the objective instead of minimising it */
    bool amsgrad;  /* divides by the largest average of squares so far */
} trek_adam_opts;

/* What an optimizer does. optim/optimizer_class.h describes it and how to write one. */
typedef struct trek_optimizer_class trek_optimizer_class;

/* A value that names an optimizer and its options. Each rank makes its own optimizer from it. */
typedef struct trek_optimizer_spec {
    const trek_optimizer_class *klass; /* the optimizer; NULL: not set */
    /* The options in the order of the class, the learning rate first. 0 stands for the default, TREK_ZERO for 0. */
    double options[TREK_UPDATE_OPTIONS];
    trek_dtype state_dtype; /* dtype of the state; see trek_with_state */
} trek_optimizer_spec;

/* Returns the spec of SGD with momentum, as torch.optim.SGD.
 * NULL stands for the defaults. Errors: options out of range are reported where an optimizer is made from the spec. */
TREK_API trek_optimizer_spec trek_sgd(const trek_sgd_opts *opts);

/* Returns the spec of Adam (Kingma and Ba 2015), as torch.optim.Adam.
 * NULL stands for the defaults. Errors: options out of range are reported where an optimizer is made from the spec. */
TREK_API trek_optimizer_spec trek_adam(const trek_adam_opts *opts);

/* Returns the spec of AdamW (Loshchilov and Hutter 2019), Adam with decoupled weight decay, as torch.optim.AdamW.
 * NULL stands for the defaults. Errors: options out of range are reported where an optimizer is made from the spec. */
TREK_API trek_optimizer_spec trek_adamw(const trek_adam_opts *opts);

/* An optimizer with its state. */
typedef struct trek_optimizer trek_optimizer;

/* Returns a new optimizer over the parameters of the list, which become group 0 and move into a flat arena. Returns NULL on
 * failure. The caller owns it.
 * Errors: ARGUMENT if options are out of range or the list is empty. UNSUPPORTED if parameters are on a GPU and the class has no
 * kernel there. MEMORY. */
TREK_API trek_optimizer *trek_optimizer_new(trek_optimizer_spec spec, const trek_params *params);

/* Frees the optimizer. *optimizer may be NULL and is NULL afterwards. */
TREK_API void trek_optimizer_free(trek_optimizer **optimizer);

/* Updates every parameter that has a gradient, once. Frozen parameters and parameters without a gradient stay as they are; they
 * get no weight decay either. Gradients are kept (trek_optimizer_zero_grad). Nothing changes while an error is set. */
TREK_API trek_status trek_optimizer_step(trek_optimizer *optimizer);

/* Sets the gradients of all parameters to zero. */
TREK_API trek_status trek_optimizer_zero_grad(trek_optimizer *optimizer);

/* Sets the learning rate of all groups. */
TREK_API trek_status trek_optimizer_set_lr(trek_optimizer *optimizer, double lr);

/* Scales all gradients so that their joint 2-norm is at most max_norm, and returns the norm before in f64. If the norm is not
 * finite the gradients stay as they are. Returns NaN with an error set on failure.
 * Errors: ARGUMENT if max_norm is negative or NaN. */
TREK_API double trek_clip_grad_norm(const trek_params *params, double max_norm);

TREK_END

#endif
