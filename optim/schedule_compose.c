/* SPDX-License-Identifier: Apache-2.0 */
/* Schedules made of others: the library's, those the program computes, and schedules run one after the other or
 * multiplied. */
#include <math.h>
#include <string.h>

#include "optim/schedule_internal.h"
#include "optim/schedules.h"
#include "tensor/status_internal.h"

static const trek_schedule none = { .kind = TREK_SCHEDULE_KIND_NONE };

/* --- constructors ---------------------------------------------------------- */

static bool check_number(const char *function, const char *name, double value)
{
    if (isfinite(value) && value >= 0)
        return true;
    trek_fail(TREK_ERR_ARGUMENT, "%s: %s: %g; must be finite and at least 0", function, name, value);
    return false;
}

static bool check_steps(const char *function, const char *name, int64_t steps, int64_t least)
{
    if (steps >= least)
        return true;
    trek_fail(TREK_ERR_ARGUMENT, "%s: %s: %lld; must be at least %d", function, name, (long long)steps, (int)least);
    return false;
}

trek_schedule trek_linear_lr(double lr, double start, double end, int64_t total)
{
    const char *function = "linear_lr";
    if (!check_number(function, "lr", lr) || !check_number(function, "start", start) || !check_number(function, "end", end) ||
        !check_steps(function, "total", total, 1))
        return none;
    return (trek_schedule){ .kind = TREK_SCHEDULE_KIND_LINEAR, .lr = lr, .steps = { total }, .numbers = { start, end } };
}

trek_schedule trek_cosine_restarts_lr(double lr, int64_t first, int64_t mult, double min)
{
    const char *function = "cosine_restarts_lr";
    if (!check_number(function, "lr", lr) || !check_steps(function, "first", first, 1) ||
        !check_steps(function, "mult", mult, 1) || !check_number(function, "min", min))
        return none;
    return (trek_schedule){ .kind = TREK_SCHEDULE_KIND_RESTARTS, .lr = lr, .steps = { first, mult }, .numbers = { min } };
}

trek_schedule trek_wsd_lr(double lr, int64_t warmup, int64_t stable, int64_t decay, double min, trek_anneal anneal)
{
    const char *function = "wsd_lr";
    if (!check_number(function, "lr", lr) || !check_steps(function, "warmup", warmup, 0) ||
        !check_steps(function, "stable", stable, 0) || !check_steps(function, "decay", decay, 0) ||
        !check_number(function, "min", min))
        return none;
    if ((int)anneal < TREK_ANNEAL_COSINE || (int)anneal > TREK_ANNEAL_SQRT) {
        trek_fail(TREK_ERR_ARGUMENT, "%s: anneal: %d; must be a value of trek_anneal", function, (int)anneal);
        return none;
    }
    return (trek_schedule){ .kind = TREK_SCHEDULE_KIND_STABLE, .lr = lr, .mode = (int)anneal, .warmup = warmup,
                            .steps = { stable, decay }, .numbers = { min } };
}

trek_schedule trek_lambda_lr(double lr, trek_schedule_fn factor, void *arg)
{
    if (!check_number("lambda_lr", "lr", lr))
        return none;
    if (!factor) {
        trek_fail_missing("lambda_lr", "factor");
        return none;
    }
    return (trek_schedule){ .kind = TREK_SCHEDULE_KIND_LAMBDA, .lr = lr, .fn = factor, .arg = arg };
}

static bool add_part(const char *function, trek_schedule *whole, const trek_schedule *s, int64_t begin)
{
    if (s->kind == TREK_SCHEDULE_KIND_NONE || s->kind == TREK_SCHEDULE_KIND_SEQUENTIAL || s->kind == TREK_SCHEDULE_KIND_CHAINED) {
        trek_fail(TREK_ERR_ARGUMENT, "%s: schedule %d: it is %s; must be a single schedule", function, whole->n_parts,
                  s->kind == TREK_SCHEDULE_KIND_NONE ? "empty" : "made of several");
        return false;
    }
    if (whole->n_milestones + s->n_milestones > TREK_SCHEDULE_MILESTONES) {
        trek_fail(TREK_ERR_ARGUMENT, "%s: milestones: more than %d in all schedules; must be fewer", function,
                  TREK_SCHEDULE_MILESTONES);
        return false;
    }
    trek_schedule_part *part = &whole->parts[whole->n_parts++];
    *part = (trek_schedule_part){ .kind = s->kind, .mode = s->mode, .first_milestone = whole->n_milestones,
                                  .n_milestones = s->n_milestones, .begin = begin, .warmup = s->warmup, .lr = s->lr,
                                  .scale = s->scale, .fn = s->fn, .arg = s->arg };
    memcpy(part->steps, s->steps, sizeof part->steps);
    memcpy(part->numbers, s->numbers, sizeof part->numbers);
    memcpy(whole->milestones + whole->n_milestones, s->milestones, (size_t)s->n_milestones * sizeof *s->milestones);
    whole->n_milestones += s->n_milestones;
    return true;
}

static trek_schedule compose(const char *function, trek_schedule_kind kind, const trek_schedule *schedules,
                             const int64_t *milestones, int n)
{
    trek_schedule whole = { .kind = kind };
    if (n < 1 || n > TREK_SCHEDULE_PARTS || !schedules) {
        trek_fail(TREK_ERR_ARGUMENT, "%s: n: %d schedules; must be 1 to %d", function, schedules ? n : 0, TREK_SCHEDULE_PARTS);
        return none;
    }
    for (int k = 0; k < n; k++) {
        int64_t begin = k > 0 && milestones ? milestones[k - 1] : 0, before = k > 1 && milestones ? milestones[k - 2] : 0;
        if (k > 0 && milestones && !check_steps(function, "a milestone", begin, before + 1))
            return none;
        if (!add_part(function, &whole, &schedules[k], begin))
            return none;
    }
    whole.lr = whole.parts[0].lr;
    return whole;
}

trek_schedule trek_sequential_lr(const trek_schedule *schedules, const int64_t *milestones, int n)
{
    if (n > 1 && !milestones) {
        trek_fail_missing("sequential_lr", "milestones");
        return none;
    }
    return compose("sequential_lr", TREK_SCHEDULE_KIND_SEQUENTIAL, schedules, milestones, n);
}

trek_schedule trek_chained_lr(const trek_schedule *schedules, int n)
{
    return compose("chained_lr", TREK_SCHEDULE_KIND_CHAINED, schedules, NULL, n);
}

/* --- values ---------------------------------------------------------------- */

static double half_cosine(double from, double to, double part)
{
    return to + (from - to) * 0.5 * (1.0 + cos(3.14159265358979323846 * part));
}

static double restarts(const trek_schedule *s, int64_t step)
{
    int64_t length = s->steps[0];
    if (s->steps[1] == 1)
        step %= length;
    for (; step >= length; length *= s->steps[1])
        step -= length;
    return half_cosine(s->lr, s->numbers[0], (double)step / (double)length);
}

static double stable(const trek_schedule *s, int64_t step)
{
    if (step < s->steps[0])
        return s->lr;
    double part = s->steps[1] > 0 ? fmin((double)(step - s->steps[0]) / (double)s->steps[1], 1) : 1, min = s->numbers[0];
    switch ((trek_anneal)s->mode) {
    case TREK_ANNEAL_COSINE:
        return half_cosine(s->lr, min, part);
    case TREK_ANNEAL_LINEAR:
        return s->lr + (min - s->lr) * part;
    case TREK_ANNEAL_SQRT:
        break;
    }
    return s->lr + (min - s->lr) * sqrt(part);
}

static double lambda(const trek_schedule *s, int64_t step)
{
    double factor = s->fn(step, s->arg);
    if (isfinite(factor) && factor >= 0)
        return s->lr * factor;
    trek_fail(TREK_ERR_ARGUMENT,
              "schedule_lr: the function of trek_lambda_lr returned %g for step %lld; must be finite and not negative", factor,
              (long long)step);
    return NAN;
}

static double part_at(const trek_schedule *s, int k, int64_t step, trek_schedule_value value)
{
    const trek_schedule_part *p = &s->parts[k];
    trek_schedule one = { .kind = p->kind, .mode = p->mode, .n_milestones = p->n_milestones, .warmup = p->warmup, .lr = p->lr,
                          .scale = p->scale, .fn = p->fn, .arg = p->arg };
    memcpy(one.steps, p->steps, sizeof one.steps);
    memcpy(one.numbers, p->numbers, sizeof one.numbers);
    memcpy(one.milestones, s->milestones + p->first_milestone, (size_t)p->n_milestones * sizeof *one.milestones);
    return value(&one, step - p->begin);
}

static double sequential(const trek_schedule *s, int64_t step, trek_schedule_value value)
{
    int k = s->n_parts - 1;
    while (k > 0 && step < s->parts[k].begin)
        k--;
    return part_at(s, k, step, value);
}

double trek_schedule_composed(const trek_schedule *s, int64_t step, trek_schedule_value value)
{
    double product = 1;
    switch (s->kind) {
    case TREK_SCHEDULE_KIND_RESTARTS:
        return restarts(s, step);
    case TREK_SCHEDULE_KIND_STABLE:
        return stable(s, step);
    case TREK_SCHEDULE_KIND_LAMBDA:
        return lambda(s, step);
    case TREK_SCHEDULE_KIND_SEQUENTIAL:
        return sequential(s, step, value);
    default:
        break;
    }
    for (int k = 0; k < s->n_parts; k++)
        product *= part_at(s, k, step, value);
    return product;
}
