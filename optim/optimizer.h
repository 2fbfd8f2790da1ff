/* SPDX-License-Identifier: Apache-2.0 */
/* Optimizers over flat arenas: one fused, multi-threaded loop a step. Formulas
 * and defaults are PyTorch's. 16-bit parameters (bf16, f16) are updated in f32 master
 * copies and rewritten from them; new values given to them from outside (trek_tensor_copy_from,
 * loading, initialising; not through trek_tensor_data) are taken over at the next step.
 * Parameters of one optimizer are on one GPU, or on CPUs. */
#ifndef TREK_OPTIM_OPTIMIZER_H
#define TREK_OPTIM_OPTIMIZER_H

#include "nn/module.h"
#include "nn/state.h"
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
    bool amsgrad;          /* gradients are divided by the root of the largest average of squares so far */
} trek_adam_opts;

typedef struct trek_adagrad_opts {
    double lr;             /* default 0.01; TREK_ZERO for 0 */
    double lr_decay;       /* default 0: lr / (1 + (step - 1) lr_decay) */
    double weight_decay;   /* default 0 (L2) */
    double initial_accumulator_value; /* default 0 */
    double eps;            /* default 1e-10; TREK_ZERO for 0 */
    bool maximize;
} trek_adagrad_opts;

typedef struct trek_adadelta_opts {
    double lr;             /* default 1; TREK_ZERO for 0 */
    double rho;            /* default 0.9, of the averages of squares; TREK_ZERO for 0 */
    double eps;            /* default 1e-6; TREK_ZERO for 0 */
    double weight_decay;   /* default 0 (L2) */
    bool maximize;
} trek_adadelta_opts;

typedef struct trek_adamax_opts {
    double lr;             /* default 2e-3; TREK_ZERO for 0 */
    double beta1, beta2;   /* default 0.9, 0.999; TREK_ZERO for 0 */
    double eps;            /* default 1e-8; TREK_ZERO for 0 */
    double weight_decay;   /* default 0 (L2) */
    bool maximize;
} trek_adamax_opts;

typedef struct trek_nadam_opts {
    double lr;             /* default 2e-3; TREK_ZERO for 0 */
    double beta1, beta2;   /* default 0.9, 0.999; TREK_ZERO for 0 */
    double eps;            /* default 1e-8; TREK_ZERO for 0 */
    double weight_decay;   /* default 0: L2, or decoupled: */
    double momentum_decay; /* default 4e-3; TREK_ZERO for 0 */
    bool decoupled_weight_decay;
    bool maximize;
} trek_nadam_opts;

/* Also keeps the average of each parameter over the steps after t0, which trek_optimizer_export gives as "<parameter>.ax". The
 * rate is lr / (1 + lambd lr t)^alpha after t steps (PyTorch takes the lr of the step before, which differs where it changes). */
typedef struct trek_asgd_opts {
    double lr;           /* default 1e-2; TREK_ZERO for 0 */
    double lambd;        /* default 1e-4, of the decay of parameters and of the rate; TREK_ZERO for 0 */
    double alpha;        /* default 0.75, the power of the rate's decay; TREK_ZERO for 0 */
    double t0;           /* default 1e6: steps before the average begins; TREK_ZERO for 0 */
    double weight_decay; /* default 0 (L2) */
    bool maximize;
} trek_asgd_opts;

typedef struct trek_radam_opts {
    double lr;             /* default 1e-3; TREK_ZERO for 0 */
    double beta1, beta2;   /* default 0.9, 0.999; TREK_ZERO for 0 */
    double eps;            /* default 1e-8; TREK_ZERO for 0 */
    double weight_decay;   /* default 0: L2, or decoupled: */
    bool decoupled_weight_decay;
    bool maximize;
} trek_radam_opts;

typedef struct trek_lion_opts {
    double lr;             /* default 1e-4, a third to a tenth of AdamW's; TREK_ZERO for 0 */
    double beta1, beta2;   /* default 0.9 (of the step), 0.99 (of the average); TREK_ZERO for 0 */
    double weight_decay;   /* default 0 (decoupled) */
    bool maximize;
} trek_lion_opts;

typedef struct trek_rmsprop_opts {
    double lr;             /* default 0.01; TREK_ZERO for 0 */
    double alpha;          /* default 0.99, of the average of squares; TREK_ZERO for 0 */
    double eps;            /* default 1e-8; TREK_ZERO for 0 */
    double weight_decay;   /* default 0 (L2) */
    double momentum;       /* default 0 */
    bool centered;         /* gradients are divided by the root of their variance instead */
    bool maximize;
} trek_rmsprop_opts;

/* For gradients of the whole set: the sign says which way, and each element's step grows while it stays. */
typedef struct trek_rprop_opts {
    double lr;             /* default 0.01: the first step; TREK_ZERO for 0. What is set later means nothing */
    double eta_minus, eta_plus; /* default 0.5, 1.2: steps are multiplied by them where the sign has changed, has not */
    double step_min, step_max;  /* default 1e-6, 50; TREK_ZERO for 0 */
    bool maximize;
} trek_rprop_opts;

/* Those that look at whole parameters. On a GPU, LAMB and LARS take three passes over all parameters, Adafactor and Muon a
 * dozen small kernels for each parameter (Muon's products are cuBLASLt's): capture the step (graph/capture.h). */

typedef struct trek_lamb_opts {
    double lr;             /* default 1e-3; TREK_ZERO for 0 */
    double beta1, beta2;   /* default 0.9, 0.999; TREK_ZERO for 0 */
    double eps;            /* default 1e-6; TREK_ZERO for 0 */
    double weight_decay;   /* default 0 (decoupled; part of what is brought to the parameter's norm) */
    bool maximize;
} trek_lamb_opts;

typedef struct trek_lars_opts {
    double lr;             /* default 0.1; TREK_ZERO for 0 */
    double momentum;       /* default 0.9; TREK_ZERO for 0 */
    double weight_decay;   /* default 0 (L2) */
    double trust_coefficient; /* default 1e-3; TREK_ZERO: the rate is lr, as for biases and norms it often is */
    double eps;            /* default 1e-8; TREK_ZERO for 0 */
    bool maximize;
} trek_lars_opts;

typedef struct trek_adafactor_opts {
    double lr;             /* default 0.01: a limit of the relative step 1 / sqrt(step); TREK_ZERO for 0 */
    double beta2_decay;    /* default -0.8; at most 0, TREK_ZERO for 0 */
    double eps1, eps2;     /* default: epsilon of the dtype that is updated (f32 for 16-bit parameters), 1e-3 */
    double d;              /* default 1, at least that: updates with a larger root mean square are shortened */
    double weight_decay;   /* default 0 (decoupled) */
    bool maximize;
} trek_adafactor_opts;

typedef enum trek_muon_adjust {
    TREK_MUON_ORIGINAL,        /* lr sqrt(max(1, rows / columns)) */
    TREK_MUON_MATCH_RMS_ADAMW, /* lr 0.2 sqrt(max(rows, columns)): rates and decay of AdamW fit */
    TREK_MUON_SPECTRAL,        /* lr sqrt(rows / columns) */
} trek_muon_adjust;

/* Matrices only (SHAPE at the step): others, and embeddings and heads, go into groups with adam. */
typedef struct trek_muon_opts {
    double lr;             /* default 1e-3; TREK_ZERO for 0 */
    double weight_decay;   /* default 0.1 (decoupled); TREK_ZERO for 0 */
    double momentum;       /* default 0.95; TREK_ZERO for 0 */
    bool without_nesterov;
    double ns_coefficients[3]; /* default 3.4445, -4.775, 2.0315 */
    double eps;            /* default 1e-7, with adam 1e-8; TREK_ZERO for 0 */
    double ns_steps;       /* default 5, below 100; an integer. TREK_ZERO for 0 */
    trek_muon_adjust adjust_lr;
    bool adam;             /* this group is updated by AdamW, with lr, weight_decay, eps and */
    double beta1, beta2;   /* default 0.9, 0.999; TREK_ZERO for 0 */
} trek_muon_opts;

/* What an optimizer is: optim/optimizer_class.h, which also says how to write one. */
typedef struct trek_optimizer_class trek_optimizer_class;

/* A value that says which optimizer with which options; each rank makes its own from it. Options are in the order of the class,
 * the learning rate first; 0 stands for the default, TREK_ZERO for 0. */
typedef struct trek_optimizer_spec {
    const trek_optimizer_class *klass; /* NULL: none */
    double options[TREK_UPDATE_OPTIONS];
    trek_dtype state_dtype; /* trek_with_state */
} trek_optimizer_spec;

/* Each the optimizer of its options; numbers out of range are errors where an optimizer is made of it. */
TREK_API trek_optimizer_spec trek_sgd(trek_sgd_opts opts);
TREK_API trek_optimizer_spec trek_adam(trek_adam_opts opts);
TREK_API trek_optimizer_spec trek_adamw(trek_adam_opts opts);
TREK_API trek_optimizer_spec trek_rmsprop(trek_rmsprop_opts opts);
TREK_API trek_optimizer_spec trek_adagrad(trek_adagrad_opts opts);
TREK_API trek_optimizer_spec trek_adadelta(trek_adadelta_opts opts);
TREK_API trek_optimizer_spec trek_adamax(trek_adamax_opts opts);
TREK_API trek_optimizer_spec trek_nadam(trek_nadam_opts opts);
TREK_API trek_optimizer_spec trek_asgd(trek_asgd_opts opts);
TREK_API trek_optimizer_spec trek_radam(trek_radam_opts opts);
TREK_API trek_optimizer_spec trek_rprop(trek_rprop_opts opts);
TREK_API trek_optimizer_spec trek_lion(trek_lion_opts opts);
TREK_API trek_optimizer_spec trek_lamb(trek_lamb_opts opts);
TREK_API trek_optimizer_spec trek_lars(trek_lars_opts opts);
TREK_API trek_optimizer_spec trek_adafactor(trek_adafactor_opts opts);
TREK_API trek_optimizer_spec trek_muon(trek_muon_opts opts);

/* The same optimizer, whose state (moments, momentum) is kept in `dtype`: TREK_F32, which it is without this; TREK_BF16, at 2
 * bytes less for each number; or TREK_U8, at 3 bytes less. AdamW of f32 parameters takes 16, 12 or 10 bytes each for parameter,
 * gradient and state. trek_with_state(trek_adamw((trek_adam_opts){ .lr = 3e-4 }), TREK_BF16)
 * Updates are made in f32. f64 parameters keep f64 state, 16-bit ones f32 masters. It is the same for all groups: one whose spec
 * does not say takes the optimizer's. Threads, ranks and resumed runs give the same bits.
 *
 * bf16 is rounded up or down by chance, in proportion (stochastic rounding; Gupta and others, "Deep learning with limited
 * numerical precision", 2015): to the nearest, averages that change by less than half of bf16's distances, 0.4 %, would stand
 * still. The chance is a function of the parameter's place and its count of updates.
 *
 * u8 is 8-bit numbers of blocks, after Dettmers and others, "8-bit Optimizers via Block-wise Quantization", 2022: 256
 * neighbouring elements of a parameter, of small ones fewer, share an f32 scale, and each is the nearest of 256 numbers by that
 * scale, which are a few percent apart and reach over seven decades (tensor/state_code.h). Averages go on where a block's largest
 * do; within a block they move in steps of those few percent, to the nearest. A block with an element that is inf or NaN is NaN.
 * Parameters of all sizes have it. Not for averaged parameters (.average, and policies that average: UNSUPPORTED at the first
 * batch), unless an outer optimizer keeps states each rank's own.
 *
 * Saved state is in the dtype it is kept in, u8 as codes "NAME.exp_avg" and scales "NAME.exp_avg.scale"; any is loaded into any
 * (rounded to the nearest). Errors, where an optimizer or a group is made of it: ARGUMENT for another dtype, and for a group with
 * another one than the optimizer's; UNSUPPORTED for LAMB, LARS, Adafactor and Muon, and other classes that update whole
 * parameters. */
TREK_API trek_optimizer_spec trek_with_state(trek_optimizer_spec spec, trek_dtype dtype);

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
TREK_API trek_status trek_optimizer_set_group_lr(trek_optimizer *optimizer, int group, double lr); /* that group */
TREK_API double trek_optimizer_lr(const trek_optimizer *optimizer);                           /* group 0 */
TREK_API double trek_optimizer_group_lr(const trek_optimizer *optimizer, int group); /* of that group */
/* Moves parameters of the optimizer (those listed) into a new group with options of its own, of the same class. Returns its
 * index, -1 on failure. */
TREK_API int trek_optimizer_add_group(trek_optimizer *optimizer, const trek_params *params, trek_optimizer_spec spec);

/* The same for all that have fewer than two dimensions, biases and scales of norms: those that weight decay, LARS and Muon are
 * not for. trek_optimizer_vectors(optimizer, trek_adamw((trek_adam_opts){ .lr = 3e-4, .weight_decay = TREK_ZERO })) */
TREK_API int trek_optimizer_vectors(trek_optimizer *optimizer, trek_optimizer_spec spec);
/* Asks for each parameter what it is to have, given what it has; those of a group that get the same make a new one together.
 * Learning rates by layer: return now with now.options[0] times decay^(layers above). All or nothing but for lack of memory. */
typedef trek_optimizer_spec (*trek_regroup_fn)(const char *name, trek_var *param, trek_optimizer_spec now, void *arg);
TREK_API trek_status trek_optimizer_regroup(trek_optimizer *optimizer, trek_regroup_fn fn, void *arg);
/* Moments and step counts begin anew; groups, learning rates and what 16-bit parameters are in f32 stay. */
TREK_API trek_status trek_optimizer_reset(trek_optimizer *optimizer);

/* Copies on the CPU of what the optimizer knows, PyTorch's state_dict(): "lr" (f64 [groups]), and of each parameter that has been
 * updated "NAME.step" (i64, a scalar), its class's numbers in its shape ("NAME.exp_avg"; 16-bit parameters': f32, and see
 * trek_with_state) and, where it is of 16 bits, "NAME.master" (f32), which stays after trek_optimizer_reset. The caller's
 * (trek_state_free); trek_state_write makes a file of it. A graph's is in trek_checkpoint_save's. NULL: MEMORY, or the device's
 * error. */
TREK_API trek_state *trek_optimizer_save(trek_optimizer *optimizer);
/* Takes all of it over; parameters without entries begin anew. Options other than learning rates are not in it: the optimizer is
 * made with the same ones, and the same groups. FORMAT, naming what it is, for an entry of no parameter, of another shape, a part
 * of a parameter's state alone, another number of groups, a rate that is none; MEMORY. Then nothing has changed.
 * A graph's optimizer (trek_graph_optimizer) takes it over on all ranks of the process, each its part where they have parts
 * (.shard_optimizer). In a job that is a collective: all processes call it, with the same state, each its own copy of it. It is
 * taken over by all or none: PEER where another process has failed, ARGUMENT where states differ. */
TREK_API trek_status trek_optimizer_load(trek_optimizer *optimizer, const trek_state *state);

/* Scales all gradients so that their joint 2-norm is at most max_norm; returns the
 * norm before (f64; NaN and an error on failure). Gradients with a norm that is not finite: left alone. */
TREK_API double trek_clip_grad_norm(const trek_params *params, double max_norm);
TREK_API trek_status trek_clip_grad_value(const trek_params *params, double max_value);
/* torch.nn.utils.get_total_norm: the p-norm of the p-norms of `count` floating tensors of one device (gradients,
 * parameters), which for p > 0 is
 * that of all their elements together; p may be infinite. A scalar of the widest dtype among them, in the present scope, with
 * gradients; 16-bit ones are summed in f32. NULL among them counts for nothing; of none at all it is 0 (f32, on cpu:0). */
TREK_API trek_var *trek_get_total_norm(trek_var *const *tensors, int count, double norm_type);

TREK_END

#endif
