/* SPDX-License-Identifier: Apache-2.0 */
/* Learning rates as functions of the step. A schedule is a value: it is copied by assignment and nothing has to be freed. Every
 * rank computes the same rates from it. Its only state is the step, which a checkpoint contains, so that resumed training
 * continues every schedule where it was.
 *
 * Rules of the constructors, trek_constant_lr and the others that return a trek_schedule:
 *   - Steps count from 0 and are updates of the optimizer. If trek_schedule_lr is called with epochs, they are epochs.
 *   - Formulas are those of torch.optim.lr_scheduler where it has the schedule.
 *   - Errors: ARGUMENT, with a message that names the number, if a rate is negative or not finite, a length is below 1 or gamma
 *     is not above 0. The result then has the kind TREK_SCHEDULE_KIND_NONE, which all functions that take a schedule refuse. */
#ifndef TREK_OPTIM_SCHEDULE_H
#define TREK_OPTIM_SCHEDULE_H

#include "tensor/status.h"

TREK_BEGIN

/* The formula of a schedule. Each constructor below makes one kind. */
typedef enum trek_schedule_kind {
    TREK_SCHEDULE_KIND_NONE,         /* no schedule; constructors return it on failure */
    TREK_SCHEDULE_KIND_CONSTANT,     /* trek_constant_lr */
    TREK_SCHEDULE_KIND_STEP,         /* trek_step_lr */
    TREK_SCHEDULE_KIND_MULTISTEP,    /* trek_multistep_lr */
    TREK_SCHEDULE_KIND_COSINE,       /* trek_cosine_lr */
    TREK_SCHEDULE_KIND_EXPONENTIAL,  /* trek_exponential_lr */
    TREK_SCHEDULE_KIND_ONECYCLE,     /* trek_onecycle_lr */
    TREK_SCHEDULE_KIND_CYCLIC,       /* trek_cyclic_lr */
    TREK_SCHEDULE_KIND_POLYNOMIAL,   /* trek_polynomial_lr */
    TREK_SCHEDULE_KIND_INVERSE_SQRT, /* trek_inverse_sqrt_lr */
    TREK_SCHEDULE_KIND_LINEAR,       /* trek_linear_lr */
    TREK_SCHEDULE_KIND_RESTARTS,     /* trek_cosine_restarts_lr */
    TREK_SCHEDULE_KIND_STABLE,       /* trek_wsd_lr */
    TREK_SCHEDULE_KIND_LAMBDA,       /* trek_lambda_lr */
    TREK_SCHEDULE_KIND_SEQUENTIAL,   /* trek_sequential_lr */
    TREK_SCHEDULE_KIND_CHAINED,      /* trek_chained_lr */
} trek_schedule_kind;

/* The largest number of milestones of one schedule. */
#define TREK_SCHEDULE_MILESTONES 16

/* The largest number of schedules that one schedule is composed of. */
#define TREK_SCHEDULE_PARTS 6

/* Returns a factor for the learning rate of a step. It must depend on nothing that changes except the step, and be equal on all
 * ranks. */
typedef double (*trek_schedule_fn)(int64_t step, void *arg);

/* One schedule of a composed schedule. Most fields are as in trek_schedule. */
typedef struct trek_schedule_part {
    trek_schedule_kind kind; /* as in trek_schedule */
    int mode;                /* as in trek_schedule */
    int first_milestone;     /* index of its first milestone in the milestones of the whole */
    int n_milestones;        /* number of its milestones */
    int64_t begin;           /* step of the whole at which it has its step 0 */
    int64_t warmup;          /* as in trek_schedule */
    int64_t steps[2];        /* as in trek_schedule */
    double lr;               /* as in trek_schedule */
    double numbers[3];       /* as in trek_schedule */
    double scale;            /* as in trek_schedule */
    trek_schedule_fn fn;     /* as in trek_schedule */
    void *arg;               /* as in trek_schedule */
} trek_schedule_part;

/* A schedule, made by one of the functions below. What a field means depends on the kind. */
typedef struct trek_schedule {
    trek_schedule_kind kind;                       /* the formula */
    int mode;                                      /* variant of the formula */
    int n_milestones;                              /* number of milestones */
    int64_t warmup;                                /* steps of linear warm-up before step 0 of the formula */
    int64_t steps[2];                              /* lengths */
    double lr;                                     /* the rate that the formula starts from */
    double numbers[3];                             /* other numbers of the formula */
    double scale;                                  /* factor of every rate; 0 stands for 1 */
    int64_t milestones[TREK_SCHEDULE_MILESTONES];  /* steps at which the formula changes */
    trek_schedule_fn fn;                           /* the function of trek_lambda_lr */
    void *arg;                                     /* passed to fn */
    int n_parts;                                   /* number of schedules in parts */
    trek_schedule_part parts[TREK_SCHEDULE_PARTS]; /* the schedules that it is composed of */
} trek_schedule;

/* Returns lr * gamma^floor(step / step_size), as StepLR. */
TREK_API trek_schedule trek_step_lr(double lr, int64_t step_size, double gamma);

/* Returns half a cosine from lr at step 0 to min at step `total`, then min, as CosineAnnealingLR within `total` steps (Loshchilov
 * and Hutter, SGDR, 2017). */
TREK_API trek_schedule trek_cosine_lr(double lr, int64_t total, double min);

/* Returns a schedule that is the first rate of `then` times (step + 1) / steps for step < steps, and afterwards `then` from its
 * own step 0. With 0 steps it is `then`.
 * Errors: ARGUMENT also if `then` has a warm-up already. */
TREK_API trek_schedule trek_warmup_lr(int64_t steps, trek_schedule then);

TREK_END

#endif
