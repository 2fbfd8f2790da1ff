/* SPDX-License-Identifier: Apache-2.0 */
/* Optimizers over flat arenas, with one fused, multi-threaded loop for a step. Formulas and defaults are PyTorch's.
 *
 * Parameters in 16 bits (bf16, f16) are updated in f32 master copies and rewritten from them. New values that are given to them
 * from outside are taken over at the next step, if they come from trek_tensor_copy_from, loading or initialising, and not through
 * trek_tensor_data. The parameters of one optimizer are all on one GPU, or all on CPUs. */
#ifndef TREK_OPTIM_OPTIMIZER_H
#define TREK_OPTIM_OPTIMIZER_H

#include "nn/module.h"
#include "nn/state.h"
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

/* Options of trek_adagrad. */
typedef struct trek_adagrad_opts {
    double lr;                        /* learning rate; default 0.01, TREK_ZERO for 0 */
    double lr_decay;                  /* the rate is lr / (1 + (step - 1) lr_decay); default 0 */
    double weight_decay;              /* L2 penalty: this times the parameter is added to the gradient; default 0 */
    double initial_accumulator_value; /* initial sum of squares; default 0 */
    double eps;                       /* added to the denominator; default 1e-10, TREK_ZERO for 0 */
    bool maximize;                    /* maximises the objective instead of minimising it */
} trek_adagrad_opts;

/* Options of trek_adadelta. */
typedef struct trek_adadelta_opts {
    double lr;           /* learning rate; default 1, TREK_ZERO for 0 */
    double rho;          /* decay of the averages of squares, in [0, 1); default 0.9, TREK_ZERO for 0 */
    double eps;          /* added to the averages of squares before their roots are taken; default 1e-6, TREK_ZERO for 0 */
    double weight_decay; /* L2 penalty: this times the parameter is added to the gradient; default 0 */
    bool maximize;       /* maximises the objective instead of minimising it */
} trek_adadelta_opts;

/* Options of trek_adamax. */
typedef struct trek_adamax_opts {
    double lr;           /* learning rate; default 2e-3, TREK_ZERO for 0 */
    double beta1;        /* decay of the average of gradients, in [0, 1); default 0.9, TREK_ZERO for 0 */
    double beta2;        /* decay of the largest magnitude, in [0, 1); default 0.999, TREK_ZERO for 0 */
    double eps;          /* added to the denominator; default 1e-8, TREK_ZERO for 0 */
    double weight_decay; /* L2 penalty: this times the parameter is added to the gradient; default 0 */
    bool maximize;       /* maximises the objective instead of minimising it */
} trek_adamax_opts;

/* Options of trek_nadam. */
typedef struct trek_nadam_opts {
    double lr;                   /* learning rate; default 2e-3, TREK_ZERO for 0 */
    double beta1;                /* decay of the average of gradients, in [0, 1); default 0.9, TREK_ZERO for 0 */
    double beta2;                /* decay of the average of squared gradients, in [0, 1); default 0.999, TREK_ZERO for 0 */
    double eps;                  /* added to the denominator; default 1e-8, TREK_ZERO for 0 */
    double weight_decay;         /* weight decay: an L2 penalty unless decoupled_weight_decay is set; default 0 */
    double momentum_decay;       /* decay of the momentum schedule; default 4e-3, TREK_ZERO for 0 */
    bool decoupled_weight_decay; /* makes weight_decay decoupled, as in AdamW */
    bool maximize;               /* maximises the objective instead of minimising it */
} trek_nadam_opts;

/* Options of trek_asgd. */
typedef struct trek_asgd_opts {
    double lr;           /* learning rate; default 1e-2, TREK_ZERO for 0 */
    double lambd;        /* decay of the parameters and of the rate; default 1e-4, TREK_ZERO for 0 */
    double alpha;        /* power of the decay of the rate; default 0.75, TREK_ZERO for 0 */
    double t0;           /* steps before the average begins; default 1e6, TREK_ZERO for 0 */
    double weight_decay; /* L2 penalty; default 0 */
    bool maximize;       /* maximizes the objective instead of minimizing it; default false */
} trek_asgd_opts;

/* Options of trek_radam. */
typedef struct trek_radam_opts {
    double lr;                   /* learning rate; default 1e-3, TREK_ZERO for 0 */
    double beta1;                /* decay of the average of gradients, in [0, 1); default 0.9, TREK_ZERO for 0 */
    double beta2;                /* decay of the average of squared gradients, in [0, 1); default 0.999, TREK_ZERO for 0 */
    double eps;                  /* added to the denominator; default 1e-8, TREK_ZERO for 0 */
    double weight_decay;         /* weight decay: an L2 penalty unless decoupled_weight_decay is set; default 0 */
    bool decoupled_weight_decay; /* makes weight_decay decoupled, as in AdamW */
    bool maximize;               /* maximises the objective instead of minimising it */
} trek_radam_opts;

/* Options of trek_lion. */
typedef struct trek_lion_opts {
    double lr;           /* learning rate, a third to a tenth of the one of AdamW; default 1e-4, TREK_ZERO for 0 */
    double beta1;        /* weight of the average in the step, in [0, 1); default 0.9, TREK_ZERO for 0 */
    double beta2;        /* decay of the average of gradients, in [0, 1); default 0.99, TREK_ZERO for 0 */
    double weight_decay; /* decoupled weight decay; default 0 */
    bool maximize;       /* maximises the objective instead of minimising it */
} trek_lion_opts;

/* Options of trek_rmsprop. */
typedef struct trek_rmsprop_opts {
    double lr;           /* learning rate; default 0.01, TREK_ZERO for 0 */
    double alpha;        /* decay of the average of squares; default 0.99, TREK_ZERO for 0 */
    double eps;          /* added to the denominator; default 1e-8, TREK_ZERO for 0 */
    double weight_decay; /* L2 penalty: this times the parameter is added to the gradient; default 0 */
    double momentum;     /* weight of the earlier steps; default 0 */
    bool centered;       /* divides by the root of the variance instead of the root of the mean of squares */
    bool maximize;       /* maximises the objective instead of minimising it */
} trek_rmsprop_opts;

/* Options of trek_rprop. */
typedef struct trek_rprop_opts {
    /* Size of the first step; default 0.01, TREK_ZERO for 0. Learning rates that are set later have no effect. */
    double lr;
    double eta_minus; /* factor of a step size when the sign has changed, in (0, 1); default 0.5 */
    double eta_plus;  /* factor of a step size when the sign has not changed, above 1; default 1.2 */
    double step_min;  /* smallest step size; default 1e-6, TREK_ZERO for 0 */
    double step_max;  /* largest step size; default 50, TREK_ZERO for 0 */
    bool maximize;    /* maximises the objective instead of minimising it */
} trek_rprop_opts;

/* Options of trek_lamb. */
typedef struct trek_lamb_opts {
    double lr;    /* learning rate; default 1e-3, TREK_ZERO for 0 */
    double beta1; /* decay of the average of gradients, in [0, 1); default 0.9, TREK_ZERO for 0 */
    double beta2; /* decay of the average of squared gradients, in [0, 1); default 0.999, TREK_ZERO for 0 */
    double eps;   /* added to the denominator; default 1e-6, TREK_ZERO for 0 */
    /* Decoupled weight decay, which is part of the update that is scaled to the norm of the parameter; default 0. */
    double weight_decay;
    bool maximize; /* maximises the objective instead of minimising it */
} trek_lamb_opts;

/* Options of trek_lars. */
typedef struct trek_lars_opts {
    double lr;           /* learning rate; default 0.1, TREK_ZERO for 0 */
    double momentum;     /* weight of the earlier steps; default 0.9, TREK_ZERO for 0 */
    double weight_decay; /* L2 penalty: this times the parameter is added to the gradient; default 0 */
    /* Factor of the ratio of norms; default 1e-3. TREK_ZERO uses lr as it is, as is usual for biases and norms. */
    double trust_coefficient;
    double eps;    /* added to the denominator; default 1e-8, TREK_ZERO for 0 */
    bool maximize; /* maximises the objective instead of minimising it */
} trek_lars_opts;

/* Options of trek_adafactor. */
typedef struct trek_adafactor_opts {
    double lr;          /* upper limit of the relative step 1 / sqrt(step); default 0.01, TREK_ZERO for 0 */
    double beta2_decay; /* exponent of the decay of the averages, at most 0; default -0.8, TREK_ZERO for 0 */
    /* Added to squared gradients; default: the epsilon of the dtype that is updated, which is f32 for 16-bit parameters. */
    double eps1;
    double eps2;         /* smallest root mean square of a parameter that scales its step; default 1e-3 */
    double d;            /* largest root mean square of an update, at least 1; larger updates are shortened to it. Default 1 */
    double weight_decay; /* decoupled weight decay; default 0 */
    bool maximize;       /* maximises the objective instead of minimising it */
} trek_adafactor_opts;

/* How Muon scales the learning rate of a matrix. */
typedef enum trek_muon_adjust {
    TREK_MUON_ADJUST_ORIGINAL,        /* lr sqrt(max(1, rows / columns)) */
    TREK_MUON_ADJUST_MATCH_RMS_ADAMW, /* lr 0.2 sqrt(max(rows, columns)): learning rates and weight decay of AdamW fit */
    TREK_MUON_ADJUST_SPECTRAL,        /* lr sqrt(rows / columns) */
} trek_muon_adjust;

/* Options of trek_muon. Muon itself updates matrices only; a step fails with SHAPE for others. Put other parameters, embeddings
 * and output heads into groups with adam. */
typedef struct trek_muon_opts {
    double lr;                  /* learning rate; default 1e-3, TREK_ZERO for 0 */
    double weight_decay;        /* decoupled weight decay; default 0.1, TREK_ZERO for 0 */
    double momentum;            /* decay of the average of gradients; default 0.95, TREK_ZERO for 0 */
    bool no_nesterov;           /* uses plain momentum instead of Nesterov momentum */
    double ns_coefficients[3];  /* coefficients of the Newton-Schulz iteration; default 3.4445, -4.775, 2.0315 */
    double eps;                 /* smallest norm that is divided by; default 1e-7, or 1e-8 with adam, TREK_ZERO for 0 */
    double ns_steps;            /* number of Newton-Schulz iterations, an integer below 100; default 5, TREK_ZERO for 0 */
    trek_muon_adjust adjust_lr; /* how the learning rate is scaled; default TREK_MUON_ADJUST_ORIGINAL */
    bool adam;                  /* updates this group by AdamW instead, with lr, weight_decay, eps, beta1 and beta2 */
    /* Only with adam: decay of the average of gradients, in [0, 1); default 0.9, TREK_ZERO for 0. */
    double beta1;
    /* Only with adam: decay of the average of squares, in [0, 1); default 0.999, TREK_ZERO for 0. */
    double beta2;
} trek_muon_opts;

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

/* Returns the spec of RMSprop, as torch.optim.RMSprop.
 * NULL stands for the defaults. Errors: options out of range are reported where an optimizer is made from the spec. */
TREK_API trek_optimizer_spec trek_rmsprop(const trek_rmsprop_opts *opts);

/* Returns the spec of Adagrad, as torch.optim.Adagrad.
 * NULL stands for the defaults. Errors: options out of range are reported where an optimizer is made from the spec. */
TREK_API trek_optimizer_spec trek_adagrad(const trek_adagrad_opts *opts);

/* Returns the spec of Adadelta, as torch.optim.Adadelta.
 * NULL stands for the defaults. Errors: options out of range are reported where an optimizer is made from the spec. */
TREK_API trek_optimizer_spec trek_adadelta(const trek_adadelta_opts *opts);

/* Returns the spec of Adamax, as torch.optim.Adamax.
 * NULL stands for the defaults. Errors: options out of range are reported where an optimizer is made from the spec. */
TREK_API trek_optimizer_spec trek_adamax(const trek_adamax_opts *opts);

/* Returns the spec of NAdam, as torch.optim.NAdam.
 * NULL stands for the defaults. Errors: options out of range are reported where an optimizer is made from the spec. */
TREK_API trek_optimizer_spec trek_nadam(const trek_nadam_opts *opts);

/* Returns the spec of averaged SGD (Polyak and Juditsky 1992), as torch.optim.ASGD. The rate after t steps is
 * lr / (1 + lambd lr t)^alpha (PyTorch takes lr of the step before, which differs if lr changes). It also keeps the average of
 * each parameter over the steps after t0, which trek_optimizer_export writes as "<parameter>.ax".
 * NULL stands for the defaults. Errors: options out of range are reported where an optimizer is made from the spec. */
TREK_API trek_optimizer_spec trek_asgd(const trek_asgd_opts *opts);

/* Returns the spec of RAdam, as torch.optim.RAdam.
 * NULL stands for the defaults. Errors: options out of range are reported where an optimizer is made from the spec. */
TREK_API trek_optimizer_spec trek_radam(const trek_radam_opts *opts);

/* Returns the spec of Rprop (Riedmiller and Braun 1993), as torch.optim.Rprop. It is for gradients of the whole data set: only
 * the sign of a gradient counts, and the step of an element grows as long as its sign stays the same.
 * NULL stands for the defaults. Errors: options out of range are reported where an optimizer is made from the spec. */
TREK_API trek_optimizer_spec trek_rprop(const trek_rprop_opts *opts);

/* Returns the spec of Lion. The sign of an average of gradients gives the direction.
 * NULL stands for the defaults. Errors: options out of range are reported where an optimizer is made from the spec. */
TREK_API trek_optimizer_spec trek_lion(const trek_lion_opts *opts);

/* Returns the spec of LAMB. On a GPU it takes three passes over all parameters.
 * NULL stands for the defaults. Errors: options out of range are reported where an optimizer is made from the spec. */
TREK_API trek_optimizer_spec trek_lamb(const trek_lamb_opts *opts);

/* Returns the spec of LARS. On a GPU it takes three passes over all parameters.
 * NULL stands for the defaults. Errors: options out of range are reported where an optimizer is made from the spec. */
TREK_API trek_optimizer_spec trek_lars(const trek_lars_opts *opts);

/* Returns the spec of Adafactor, as torch.optim.Adafactor. On a GPU it runs a dozen small kernels for each parameter: capture the
 * step (graph/capture.h).
 * NULL stands for the defaults. Errors: options out of range are reported where an optimizer is made from the spec. */
TREK_API trek_optimizer_spec trek_adafactor(const trek_adafactor_opts *opts);

/* Returns the spec of Muon, as torch.optim.Muon. On a GPU it runs a dozen small kernels for each parameter, with products by
 * cuBLASLt: capture the step (graph/capture.h).
 * NULL stands for the defaults. Errors: options out of range are reported where an optimizer is made from the spec. */
TREK_API trek_optimizer_spec trek_muon(const trek_muon_opts *opts);

/* Returns the spec of the same optimizer with its state (moments, momentum) kept in `dtype`.
 *
 *   - TREK_F32: the state as it is without this function.
 *   - TREK_BF16: 2 bytes less for each number.
 *   - TREK_U8: 3 bytes less for each number.
 *
 * AdamW with f32 parameters takes 16, 12 or 10 bytes for each parameter with its gradient and state.
 * Example: trek_with_state(trek_adamw(&(trek_adam_opts){ .lr = 3e-4 }), TREK_BF16).
 *
 * Updates are computed in f32. The state of f64 parameters stays f64, and 16-bit parameters keep their f32 master copies. All
 * groups use the same dtype: a group whose spec sets none takes the optimizer's. The results have the same bits for any number of
 * threads or ranks and after resuming.
 *
 * bf16 numbers are rounded up or down at random, in proportion (stochastic rounding; Gupta and others, "Deep learning with
 * limited numerical precision", 2015). Rounding to nearest would keep averages from changing by less than half of bf16's spacing,
 * 0.4 %. The random numbers depend only on the parameter's position and its count of updates.
 *
 * u8 numbers are 8-bit codes of blocks (after Dettmers and others, "8-bit Optimizers via Block-wise Quantization", 2022). The 256
 * neighbouring elements of a block, fewer in small parameters, share an f32 scale. Each is the nearest of 256 numbers times this
 * scale, which are a few percent apart and span seven decades (tensor/state_code.h). Averages keep following the gradients near a
 * block's maximum; smaller ones move in steps of a few percent. A block that contains inf or NaN becomes NaN. Parameters of all
 * sizes use it. It cannot be used for averaged parameters (.average, and policies that average: UNSUPPORTED at the first batch),
 * unless an outer optimizer keeps the states separate for each rank.
 *
 * Saved states keep their dtype, u8 as codes "NAME.exp_avg" and scales "NAME.exp_avg.scale". A state of any of these dtypes can
 * be loaded into any other; it is rounded to nearest.
 *
 * Errors, reported where an optimizer or a group is made from the spec: ARGUMENT for another dtype, or if a group has another
 * dtype than the optimizer. UNSUPPORTED for LAMB, LARS, Adafactor, Muon and other classes that update whole parameters. */
TREK_API trek_optimizer_spec trek_with_state(trek_optimizer_spec spec, trek_dtype dtype);

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

/* Sets the learning rate of one group.
 * Errors: ARGUMENT if the optimizer has no group with this index. */
TREK_API trek_status trek_optimizer_set_group_lr(trek_optimizer *optimizer, int group, double lr);

/* Returns the learning rate of group 0, or NaN on failure. */
TREK_API double trek_optimizer_lr(const trek_optimizer *optimizer);

/* Returns the learning rate of one group, or NaN on failure.
 * Errors: ARGUMENT if the optimizer has no group with this index. */
TREK_API double trek_optimizer_group_lr(const trek_optimizer *optimizer, int group);

/* Moves the listed parameters, which are the optimizer's already, into a new group with its own options. Returns the index of the
 * group, or -1 on failure.
 * Errors: ARGUMENT if the spec is of another class or state dtype, an option is out of range, or a parameter is not one of the
 * optimizer's. */
TREK_API int trek_optimizer_add_group(trek_optimizer *optimizer, const trek_params *params, trek_optimizer_spec spec);

/* Moves all parameters with fewer than two dimensions (biases and the scales of norms) into a new group. Returns the index of the
 * group, or -1 on failure. Weight decay, LARS and Muon are not meant for such parameters.
 * Example: trek_optimizer_vectors(optimizer, trek_adamw(&(trek_adam_opts){ .lr = 3e-4, .weight_decay = TREK_ZERO })). */
TREK_API int trek_optimizer_vectors(trek_optimizer *optimizer, trek_optimizer_spec spec);

/* Returns the new spec of a parameter, given its current spec `now`. */
typedef trek_optimizer_spec (*trek_regroup_fn)(const char *name, trek_var *param, trek_optimizer_spec now, void *arg);

/* Calls fn for each parameter; the parameters of one group for which fn returns the same new spec form a new group. For learning
 * rates by layer, return `now` with now.options[0] multiplied by decay^(layers above). On failure nothing has changed, except
 * when memory runs out. */
TREK_API trek_status trek_optimizer_regroup(trek_optimizer *optimizer, trek_regroup_fn fn, void *arg);

/* Resets moments and step counts. Groups, learning rates and the f32 master copies of 16-bit parameters stay. */
TREK_API trek_status trek_optimizer_reset(trek_optimizer *optimizer);

/* Returns copies of the optimizer's state on the CPU, as state_dict() in PyTorch. Returns NULL on failure. The caller owns it
 * (trek_state_free); trek_state_write writes it to a file. trek_checkpoint_save saves the optimizer of a graph.
 *
 * The state contains:
 *   - "lr", f64 [groups].
 *   - "NAME.step", an i64 scalar, for each parameter that has been updated.
 *   - The numbers of its class in the shape of the parameter, for example "NAME.exp_avg". They are f32 for 16-bit parameters; see
 *     also trek_with_state.
 *   - "NAME.master", f32, for 16-bit parameters; it stays after trek_optimizer_reset.
 *
 * Errors: MEMORY, and those of the device. */
TREK_API trek_state *trek_optimizer_save(trek_optimizer *optimizer);

/* Replaces the optimizer's state by a saved one; parameters without entries start with no state. Options other than learning
 * rates are not saved: make the optimizer with the same options and groups.
 *
 * Ranks: the optimizer of a graph (trek_graph_optimizer) loads it on all ranks of the process, each its part if it has only a
 * part (.shard_optimizer). In a job of several processes the call is collective: all processes call it with the same state, each
 * with its own copy. All of them load it or none does.
 *
 * Errors: FORMAT, with a message that names the entry, if an entry is of no parameter or has another shape, if the state of a
 * parameter is incomplete, if the number of groups differs or if a learning rate is invalid. PEER if another process has failed,
 * ARGUMENT if the processes' states differ, MEMORY. On errors nothing has changed. */
TREK_API trek_status trek_optimizer_load(trek_optimizer *optimizer, const trek_state *state);

/* Scales all gradients so that their joint 2-norm is at most max_norm, and returns the norm before in f64. If the norm is not
 * finite the gradients stay as they are. Returns NaN with an error set on failure.
 * Errors: ARGUMENT if max_norm is negative or NaN. */
TREK_API double trek_clip_grad_norm(const trek_params *params, double max_norm);

/* Limits each element of all gradients to [-max_value, max_value].
 * Errors: ARGUMENT if max_value is negative or NaN. */
TREK_API trek_status trek_clip_grad_value(const trek_params *params, double max_value);

/* Returns the p-norm of the p-norms of `count` floating tensors, for example gradients or parameters, as
 * torch.nn.utils.get_total_norm. For p > 0 this is the norm of all their elements together; p may be infinite. NULL tensors are
 * ignored.
 * Shapes: a scalar that belongs to the current scope, with gradients.
 * Dtypes: the widest dtype of the tensors; 16-bit tensors are summed in f32. Without any tensor the result is 0 (f32, on cpu:0).
 * Errors: DTYPE if a tensor is not floating. The tensors must be on one device. */
TREK_API trek_var *trek_total_norm(trek_var *const *tensors, int count, double norm_type);

TREK_END

#endif
