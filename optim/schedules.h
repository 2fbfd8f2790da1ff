/* SPDX-License-Identifier: Apache-2.0 */
/* Further schedules of the learning rate, their composition, and the plateau. The rules of optim/schedule.h apply. */
#ifndef TREK_OPTIM_SCHEDULES_H
#define TREK_OPTIM_SCHEDULES_H

#include "optim/schedule.h"

TREK_BEGIN

/* Returns a schedule that is lr at every step. */
TREK_API trek_schedule trek_constant_lr(double lr);

/* Returns lr times a factor that goes linearly from `start` to `end` in `total` steps and then stays, as LinearLR. */
TREK_API trek_schedule trek_linear_lr(double lr, double start, double end, int64_t total);

/* Returns lr * gamma^m, where m is the number of milestones that are at or before the step, as MultiStepLR. The n milestones, at
 * most TREK_SCHEDULE_MILESTONES, may be in any order. */
TREK_API trek_schedule trek_multistep_lr(double lr, const int64_t *milestones, int n, double gamma);

/* Returns lr * gamma^step, as ExponentialLR. */
TREK_API trek_schedule trek_exponential_lr(double lr, double gamma);

/* Returns lr * (1 - step / total)^power, and 0 from step `total` on, as PolynomialLR. */
TREK_API trek_schedule trek_polynomial_lr(double lr, int64_t total, double power);

/* Returns lr * sqrt(timescale / (step + timescale)). With trek_warmup_lr(timescale, ...) before it this is the schedule of
 * Vaswani et al. (2017) with the peak lr. */
TREK_API trek_schedule trek_inverse_sqrt_lr(double lr, int64_t timescale);

/* Returns half a cosine from lr to min in `first` steps, which then restarts from lr, each time `mult` times as long, as
 * CosineAnnealingWarmRestarts (Loshchilov and Hutter, SGDR, 2017). mult is at least 1. */
TREK_API trek_schedule trek_cosine_restarts_lr(double lr, int64_t first, int64_t mult, double min);

/* Returns lr * factor(step, arg), as LambdaLR.
 * Errors: ARGUMENT from trek_schedule_lr if a factor is negative or not finite. The processes of a job cannot compare functions:
 * each of them has to pass the same one. */
TREK_API trek_schedule trek_lambda_lr(double lr, trek_schedule_fn factor, void *arg);

/* Returns the first schedule until step milestones[0], then the second from its own step 0, and so on, as SequentialLR. There are
 * n schedules, at most TREK_SCHEDULE_PARTS, and n - 1 milestones, which increase.
 * Errors: ARGUMENT also if one of the schedules is itself made by this function or by trek_chained_lr. */
TREK_API trek_schedule trek_sequential_lr(const trek_schedule *schedules, const int64_t *milestones, int n);

/* Returns the product of the rates of n schedules, as ChainedScheduler. Make all schedules but one with lr 1. The limits and
 * errors are those of trek_sequential_lr. */
TREK_API trek_schedule trek_chained_lr(const trek_schedule *schedules, int n);

/* The curve along which a rate falls or rises. */
typedef enum trek_anneal {
    TREK_ANNEAL_COSINE, /* half a cosine */
    TREK_ANNEAL_LINEAR, /* a straight line */
    TREK_ANNEAL_SQRT,   /* 1 - sqrt(part); for trek_wsd_lr only */
} trek_anneal;

/* Returns a schedule of warm-up, stable phase and decay (Hu and others, 2024): lr * (step + 1) / warmup, then lr for `stable`
 * steps, then a decay to min in `decay` steps, then min. Each length may be 0. */
TREK_API trek_schedule trek_wsd_lr(double lr, int64_t warmup, int64_t stable, int64_t decay, double min, trek_anneal anneal);

/* Options of trek_onecycle_lr. */
typedef struct trek_onecycle_opts {
    double pct_start;        /* part of the steps in which the rate rises, in (0, 1); default 0.3 */
    double div_factor;       /* the first rate is max / div_factor; default 25 */
    double final_div_factor; /* the last rate is the first one divided by this; default 1e4 */
    trek_anneal anneal;      /* the curve; default TREK_ANNEAL_COSINE */
    bool three_phase;        /* falls to the first rate in as many steps as it rose, then to the last rate */
} trek_onecycle_opts;

/* Returns a schedule that rises from max / div_factor to max and then falls over the rest of `total` steps to its last rate,
 * where it stays, as OneCycleLR (Smith and Topin, 2018). opts may be NULL. */
TREK_API trek_schedule trek_onecycle_lr(double max, int64_t total, const trek_onecycle_opts *opts);

/* How the height of the cycles changes. */
typedef enum trek_cyclic_mode {
    TREK_CYCLIC_MODE_TRIANGULAR,  /* all cycles have the same height */
    TREK_CYCLIC_MODE_TRIANGULAR2, /* the height is halved after each cycle */
    TREK_CYCLIC_MODE_EXP_RANGE,   /* the height is multiplied by gamma^step */
} trek_cyclic_mode;

/* Options of trek_cyclic_lr. */
typedef struct trek_cyclic_opts {
    int64_t step_size_up;   /* steps from base to max; default 2000 */
    int64_t step_size_down; /* steps from max to base; default step_size_up */
    trek_cyclic_mode mode;  /* how the height changes; default TREK_CYCLIC_MODE_TRIANGULAR */
    double gamma;           /* factor of TREK_CYCLIC_MODE_EXP_RANGE; default 1 */
} trek_cyclic_opts;

/* Returns a schedule that goes linearly from base to max and back in every cycle, as CyclicLR (Smith, 2017). opts may be NULL. */
TREK_API trek_schedule trek_cyclic_lr(double base, double max, const trek_cyclic_opts *opts);

/* Returns the schedule with every rate multiplied by the factor, which is above 0. */
TREK_API trek_schedule trek_scaled_lr(trek_schedule schedule, double factor);

/* Returns the learning rate of a step. It depends on its arguments alone, except that trek_lambda_lr calls the program's
 * function.
 * Errors: NaN with ARGUMENT if the schedule is NULL or of kind TREK_SCHEDULE_KIND_NONE, or if the step is negative. */
TREK_API double trek_schedule_lr(const trek_schedule *schedule, int64_t step);

/* Options of trek_plateau_lr. */
typedef struct trek_plateau_opts {
    double lr;        /* initial rate; default 1e-3, TREK_ZERO for 0 */
    double factor;    /* factor of a reduction, in (0, 1); default 0.1 */
    int64_t patience; /* number of observations without improvement that are accepted; default 10, TREK_ZERO for 0 */
    double threshold; /* improvement counts from best * (1 -+ threshold); default 1e-4, TREK_ZERO for 0 */
    bool absolute;    /* improvement counts from best -+ threshold instead */
    bool maximize;    /* a larger metric is better */
    int64_t cooldown; /* number of observations after a reduction that are ignored; default 0 */
    double min_lr;    /* smallest rate; default 0 */
} trek_plateau_opts;

/* A schedule that lowers the rate when a metric stops improving, as ReduceLROnPlateau. It is a value with memory; nothing has to
 * be freed. Programs may read the fields. */
typedef struct trek_plateau {
    trek_plateau_opts opts; /* the options, with defaults filled in */
    bool valid;             /* false if the options were refused */
    bool seen;              /* true after the first improvement */
    double lr;              /* current rate */
    double best;            /* best metric */
    int64_t bad;            /* observations without improvement */
    int64_t cooling;        /* observations left of the cooldown */
} trek_plateau;

/* Returns a plateau schedule with these options. NULL stands for the defaults.
 * Errors: ARGUMENT if options are out of range; trek_plateau_observe then refuses the result. */
TREK_API trek_plateau trek_plateau_lr(const trek_plateau_opts *opts);

/* Records the metric of an evaluation and returns the learning rate from now on. A metric that is NaN is not an improvement.
 * Errors: NaN with ARGUMENT if the plateau is NULL or its options were refused. */
TREK_API double trek_plateau_observe(trek_plateau *plateau, double metric);

TREK_END

#endif
