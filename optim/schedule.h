/* SPDX-License-Identifier: Apache-2.0 */
/* Learning rates as functions of the step. A schedule is a value: nothing to free,
 * copied by assignment; every rank computes the same from it. Its only state is the
 * step, which a checkpoint has: training that goes on finds every schedule where it was. */
#ifndef TREK_OPTIM_SCHEDULE_H
#define TREK_OPTIM_SCHEDULE_H

#include "tensor/status.h"

TREK_BEGIN

typedef enum trek_schedule_kind {
    TREK_SCHEDULE_NONE, /* no schedule; also what a constructor returns that was given bad numbers */
    TREK_SCHEDULE_CONSTANT,
    TREK_SCHEDULE_STEP,
    TREK_SCHEDULE_MULTISTEP,
    TREK_SCHEDULE_COSINE,
    TREK_SCHEDULE_EXPONENTIAL,
    TREK_SCHEDULE_ONECYCLE,
    TREK_SCHEDULE_CYCLIC,
    TREK_SCHEDULE_POLYNOMIAL,
    TREK_SCHEDULE_INVERSE_SQRT,
    TREK_SCHEDULE_LINEAR,
    TREK_SCHEDULE_RESTARTS,
    TREK_SCHEDULE_STABLE, /* trek_wsd_lr */
    TREK_SCHEDULE_LAMBDA,
    TREK_SCHEDULE_SEQUENTIAL,
    TREK_SCHEDULE_CHAINED,
} trek_schedule_kind;

#define TREK_SCHEDULE_MILESTONES 16 /* of one schedule, at most */
#define TREK_SCHEDULE_PARTS 6 /* schedules that one is made of, at most */

/* A function of the program's: of the step, and of nothing else that changes, the same on every rank. */
typedef double (*trek_schedule_fn)(int64_t step, void *arg);

/* One schedule among several. */
typedef struct trek_schedule_part {
    trek_schedule_kind kind;
    int mode;
    int first_milestone, n_milestones; /* of those of the whole */
    int64_t begin;       /* its step 0 */
    int64_t warmup;
    int64_t steps[2];
    double lr;
    double numbers[3];
    double scale;
    trek_schedule_fn fn;
    void *arg;
} trek_schedule_part;

/* Made by the functions below; the fields' meaning depends on the kind. */
typedef struct trek_schedule {
    trek_schedule_kind kind;
    int mode;
    int n_milestones;
    int64_t warmup;      /* steps of linear warm-up before step 0 of the rest */
    int64_t steps[2];
    double lr;
    double numbers[3];
    double scale;        /* of every rate; 0: 1 */
    int64_t milestones[TREK_SCHEDULE_MILESTONES];
    trek_schedule_fn fn;
    void *arg;
    int n_parts;
    trek_schedule_part parts[TREK_SCHEDULE_PARTS];
} trek_schedule;

/* Constructors. Steps count from 0 and are updates of the optimizer (call it
 * with epochs, and they are epochs). Bad numbers (lr negative or not finite, a
 * length below 1, gamma not above 0): error ARGUMENT that names the number, and
 * a schedule of kind NONE, which whoever is given it refuses. Formulas are those
 * of torch.optim.lr_scheduler where it has them. */

TREK_API trek_schedule trek_constant_lr(double lr); /* lr at every step */
/* lr * gamma^floor(step / step_size): StepLR. */
TREK_API trek_schedule trek_step_lr(double lr, int64_t step_size, double gamma);
/* lr * gamma^(milestones <= step), at most TREK_SCHEDULE_MILESTONES of them, in any order: MultiStepLR. */
TREK_API trek_schedule trek_multistep_lr(double lr, const int64_t *milestones, int n, double gamma);
/* Half a cosine from lr at step 0 to min at step `total`, where it stays: CosineAnnealingLR within `total`
 * (Loshchilov and Hutter, SGDR, 2017). */
TREK_API trek_schedule trek_cosine_lr(double lr, int64_t total, double min);
/* lr * gamma^step: ExponentialLR. */
TREK_API trek_schedule trek_exponential_lr(double lr, double gamma);
/* lr * (1 - step / total)^power, 0 from `total` on: PolynomialLR. */
TREK_API trek_schedule trek_polynomial_lr(double lr, int64_t total, double power);
/* lr * sqrt(timescale / (step + timescale)). With trek_warmup_lr(timescale, ...) before it,
 * the schedule of Vaswani et al. (2017) with peak lr. */
TREK_API trek_schedule trek_inverse_sqrt_lr(double lr, int64_t timescale);

/* lr times a factor that goes from `start` to `end` in `total` steps, and stays: LinearLR. */
TREK_API trek_schedule trek_linear_lr(double lr, double start, double end, int64_t total);
/* Half a cosine from lr to min in `first` steps, then from lr again, each time `mult` (>= 1) times as long:
 * CosineAnnealingWarmRestarts (Loshchilov and Hutter, SGDR, 2017). */
TREK_API trek_schedule trek_cosine_restarts_lr(double lr, int64_t first, int64_t mult, double min);
/* lr * factor(step, arg): LambdaLR. A factor that is negative or not finite is ARGUMENT when it is asked for. Processes of a job
 * cannot compare functions: each has to give the same. */
TREK_API trek_schedule trek_lambda_lr(double lr, trek_schedule_fn factor, void *arg);
/* The first schedule until step milestones[0], then the second from its own step 0, and so on: SequentialLR. n, at most
 * TREK_SCHEDULE_PARTS, has n - 1 milestones, which increase. None of them may be sequential or chained itself. */
TREK_API trek_schedule trek_sequential_lr(const trek_schedule *schedules, const int64_t *milestones, int n);
/* The product of the rates of n schedules, as ChainedScheduler's: make all but one with lr 1. The rest as above. */
TREK_API trek_schedule trek_chained_lr(const trek_schedule *schedules, int n);

/* The last is 1 - sqrt(part), for trek_wsd_lr alone. */
typedef enum trek_anneal { TREK_ANNEAL_COSINE, TREK_ANNEAL_LINEAR, TREK_ANNEAL_SQRT } trek_anneal;

/* Warm-up, stable, decay (Hu and others, 2024): lr * (step + 1) / warmup, then lr for `stable` steps, then in `decay` steps down
 * to min, where it stays. Each length may be 0. */
TREK_API trek_schedule trek_wsd_lr(double lr, int64_t warmup, int64_t stable, int64_t decay, double min, trek_anneal anneal);

typedef struct trek_onecycle_opts {
    double pct_start;        /* part of the steps that rises; default 0.3, in (0, 1) */
    double div_factor;       /* first lr = max / div_factor; default 25 */
    double final_div_factor; /* last lr = first / final_div_factor; default 1e4 */
    trek_anneal anneal;      /* default cosine */
    bool three_phase;        /* down to the first lr as long as up, then to the last; default false */
} trek_onecycle_opts;

/* From max / div_factor up to max, then down over the rest of `total` steps, where it stays
 * (Smith and Topin, 2018): OneCycleLR. opts may be NULL. */
TREK_API trek_schedule trek_onecycle_lr(double max, int64_t total, const trek_onecycle_opts *opts);

/* How a cycle's height goes on: see trek_cyclic_opts. */
typedef enum trek_cyclic_mode { TREK_CYCLIC_TRIANGULAR, TREK_CYCLIC_TRIANGULAR2, TREK_CYCLIC_EXP_RANGE } trek_cyclic_mode;

typedef struct trek_cyclic_opts {
    int64_t step_size_up;    /* steps from base to max; default 2000 */
    int64_t step_size_down;  /* steps back; default step_size_up */
    trek_cyclic_mode mode;   /* triangular; its height halved each cycle; its height times gamma^step */
    double gamma;            /* of exp_range; default 1 */
} trek_cyclic_opts;

/* Between base and max and back, again and again (Smith, 2017): CyclicLR. opts may be NULL. */
TREK_API trek_schedule trek_cyclic_lr(double base, double max, const trek_cyclic_opts *opts);

/* then's first lr times (step + 1) / steps for step < steps; afterwards `then` from its own step 0.
 * A `then` that has a warm-up itself: ARGUMENT. steps 0: then as it is. */
TREK_API trek_schedule trek_warmup_lr(int64_t steps, trek_schedule then);

/* The same with every rate times factor (> 0). */
TREK_API trek_schedule trek_scaled_lr(trek_schedule schedule, double factor);

/* The learning rate of a step: a pure function. NaN and ARGUMENT for NULL, kind NONE or a negative step. */
TREK_API double trek_schedule_lr(const trek_schedule *schedule, int64_t step);

typedef struct trek_plateau_opts {
    double lr;               /* default 1e-3; TREK_ZERO for 0 */
    double factor;           /* default 0.1; in (0, 1) */
    int64_t patience;        /* observations without improvement that are borne; default 10, TREK_ZERO for 0 */
    double threshold;        /* improvement counts from best * (1 -+ threshold); default 1e-4, TREK_ZERO for 0 */
    bool absolute;           /* ... from best -+ threshold */
    bool maximize;           /* the metric is better when larger */
    int64_t cooldown;        /* observations after a reduction that do not count; default 0 */
    double min_lr;           /* default 0 */
} trek_plateau_opts;

/* Lowers the rate when a metric stops improving: ReduceLROnPlateau. A value with memory; nothing to free. */
typedef struct trek_plateau {
    trek_plateau_opts opts;  /* defaults filled in */
    bool valid, seen;
    double lr, best;
    int64_t bad, cooling;    /* observations */
} trek_plateau;

/* Bad options: error ARGUMENT and a plateau that trek_plateau_observe refuses. */
TREK_API trek_plateau trek_plateau_lr(trek_plateau_opts opts);
/* Takes the metric of an evaluation in; returns the learning rate from here on. A
 * metric that is NaN is no improvement. NaN and ARGUMENT for NULL or one that is not valid. */
TREK_API double trek_plateau_observe(trek_plateau *plateau, double metric);

TREK_END

#endif
