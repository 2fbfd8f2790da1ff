/* SPDX-License-Identifier: Apache-2.0 */
/* Further optimizers. The rules of optim/optimizer.h apply. */
#ifndef TREK_OPTIM_OPTIMIZERS_H
#define TREK_OPTIM_OPTIMIZERS_H

#include "optim/optimizer.h"

TREK_BEGIN

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
    bool no_nesterov;      /* uses plain momentum instead of Nesterov momentum */
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

TREK_END

#endif
