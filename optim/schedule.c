/* SPDX-License-Identifier: Apache-2.0 */
/* Learning-rate schedules as closed forms, so that the rate of any step is available at any time, on any rank and
 * after any resume. */
#include "optim/schedule.h"

#include <math.h>

#include "optim/schedule_internal.h"
#include "optim/schedules.h"
#include "tensor/option_internal.h"

static const double pi = 3.14159265358979323846;

static bool is_finite_from(double value, double least) { return isfinite(value) && value >= least; }

/* --- constructors ---------------------------------------------------------- */

static trek_schedule bad(const char *function, const char *name, double value, const char *must)
{
    trek_fail(TREK_ERR_ARGUMENT, "%s: %s: %g; must be %s", function, name, value, must);
    return (trek_schedule){ .kind = TREK_SCHEDULE_KIND_NONE };
}

static bool check_lr(const char *function, const char *name, double lr)
{
    if (is_finite_from(lr, 0.0))
        return true;
    bad(function, name, lr, "finite and at least 0");
    return false;
}

static bool check_length(const char *function, const char *name, int64_t length)
{
    if (length >= 1)
        return true;
    bad(function, name, (double)length, "at least 1");
    return false;
}

static bool check_positive(const char *function, const char *name, double value)
{
    if (isfinite(value) && value > 0.0)
        return true;
    bad(function, name, value, "finite and above 0");
    return false;
}

trek_schedule trek_constant_lr(double lr)
{
    trek_schedule s = { .kind = TREK_SCHEDULE_KIND_NONE };
    if (check_lr("constant_lr", "lr", lr))
        s = (trek_schedule){ .kind = TREK_SCHEDULE_KIND_CONSTANT, .lr = lr };
    return s;
}

trek_schedule trek_step_lr(double lr, int64_t step_size, double gamma)
{
    const char *function = "step_lr";
    trek_schedule s = { .kind = TREK_SCHEDULE_KIND_NONE };
    if (check_lr(function, "lr", lr) && check_length(function, "step_size", step_size) &&
        check_positive(function, "gamma", gamma))
        s = (trek_schedule){ .kind = TREK_SCHEDULE_KIND_STEP, .lr = lr, .steps = { step_size }, .numbers = { gamma } };
    return s;
}

trek_schedule trek_multistep_lr(double lr, const int64_t *milestones, int n, double gamma)
{
    const char *function = "multistep_lr";
    trek_schedule none = { .kind = TREK_SCHEDULE_KIND_NONE };
    if (!check_lr(function, "lr", lr) || !check_positive(function, "gamma", gamma))
        return none;
    if (n < 0 || n > TREK_SCHEDULE_MILESTONES || (n > 0 && !milestones)) {
        trek_fail(TREK_ERR_ARGUMENT, "%s: n: %d milestones; must be 0 to %d", function, n, TREK_SCHEDULE_MILESTONES);
        return none;
    }
    trek_schedule s = { .kind = TREK_SCHEDULE_KIND_MULTISTEP, .lr = lr, .numbers = { gamma }, .n_milestones = n };
    for (int k = 0; k < n; k++) {
        if (milestones[k] < 0)
            return bad(function, "milestone", (double)milestones[k], "at least 0");
        s.milestones[k] = milestones[k];
    }
    return s;
}

trek_schedule trek_cosine_lr(double lr, int64_t total, double min)
{
    const char *function = "cosine_lr";
    trek_schedule s = { .kind = TREK_SCHEDULE_KIND_NONE };
    if (check_lr(function, "lr", lr) && check_length(function, "total", total) && check_lr(function, "min", min))
        s = (trek_schedule){ .kind = TREK_SCHEDULE_KIND_COSINE, .lr = lr, .steps = { total }, .numbers = { min } };
    return s;
}

trek_schedule trek_exponential_lr(double lr, double gamma)
{
    trek_schedule s = { .kind = TREK_SCHEDULE_KIND_NONE };
    if (check_lr("exponential_lr", "lr", lr) && check_positive("exponential_lr", "gamma", gamma))
        s = (trek_schedule){ .kind = TREK_SCHEDULE_KIND_EXPONENTIAL, .lr = lr, .numbers = { gamma } };
    return s;
}

trek_schedule trek_polynomial_lr(double lr, int64_t total, double power)
{
    const char *function = "polynomial_lr";
    trek_schedule s = { .kind = TREK_SCHEDULE_KIND_NONE };
    if (check_lr(function, "lr", lr) && check_length(function, "total", total) && check_positive(function, "power", power))
        s = (trek_schedule){ .kind = TREK_SCHEDULE_KIND_POLYNOMIAL, .lr = lr, .steps = { total }, .numbers = { power } };
    return s;
}

trek_schedule trek_inverse_sqrt_lr(double lr, int64_t timescale)
{
    const char *function = "inverse_sqrt_lr";
    trek_schedule s = { .kind = TREK_SCHEDULE_KIND_NONE };
    if (check_lr(function, "lr", lr) && check_length(function, "timescale", timescale))
        s = (trek_schedule){ .kind = TREK_SCHEDULE_KIND_INVERSE_SQRT, .lr = lr, .steps = { timescale } };
    return s;
}

enum { ONECYCLE_LINEAR = 1, ONECYCLE_THREE_PHASE = 2 };

trek_schedule trek_onecycle_lr(double max, int64_t total, const trek_onecycle_opts *opts)
{
    const char *function = "onecycle_lr";
    trek_onecycle_opts o = opts ? *opts : (trek_onecycle_opts){ 0 };
    double pct = trek_option(o.pct_start, 0.3), div = trek_option(o.div_factor, 25.0);
    double final_div = trek_option(o.final_div_factor, 1e4);
    trek_schedule none = { .kind = TREK_SCHEDULE_KIND_NONE };
    if (!check_lr(function, "max", max) || !check_length(function, "total", total) ||
        !check_positive(function, "div_factor", div) || !check_positive(function, "final_div_factor", final_div))
        return none;
    if (!(pct > 0.0 && pct < 1.0))
        return bad(function, "pct_start", pct, "between 0 and 1");
    if (o.three_phase && !(pct <= 0.5))
        return bad(function, "pct_start", pct, "at most 0.5 with three phases");
    return (trek_schedule){ .kind = TREK_SCHEDULE_KIND_ONECYCLE,
                            .mode = (o.anneal == TREK_ANNEAL_LINEAR ? ONECYCLE_LINEAR : 0) |
                                    (o.three_phase ? ONECYCLE_THREE_PHASE : 0),
                            .lr = max,
                            .steps = { total },
                            .numbers = { pct, div, final_div } };
}

trek_schedule trek_cyclic_lr(double base, double max, const trek_cyclic_opts *opts)
{
    const char *function = "cyclic_lr";
    trek_cyclic_opts o = opts ? *opts : (trek_cyclic_opts){ 0 };
    int64_t up = o.step_size_up ? o.step_size_up : 2000, down = o.step_size_down ? o.step_size_down : up;
    double gamma = trek_option(o.gamma, 1.0);
    trek_schedule none = { .kind = TREK_SCHEDULE_KIND_NONE };
    if (!check_lr(function, "base", base) || !check_lr(function, "max", max) || !check_length(function, "step_size_up", up) ||
        !check_length(function, "step_size_down", down) || !check_positive(function, "gamma", gamma))
        return none;
    if ((int)o.mode < TREK_CYCLIC_MODE_TRIANGULAR || (int)o.mode > TREK_CYCLIC_MODE_EXP_RANGE)
        return bad(function, "mode", (double)o.mode, "a value of trek_cyclic_mode");
    return (trek_schedule){ .kind = TREK_SCHEDULE_KIND_CYCLIC,
                            .mode = (int)o.mode,
                            .lr = base,
                            .steps = { up, down },
                            .numbers = { max, gamma } };
}

trek_schedule trek_warmup_lr(int64_t steps, trek_schedule then)
{
    const char *function = "warmup_lr";
    trek_schedule none = { .kind = TREK_SCHEDULE_KIND_NONE };
    if (then.kind == TREK_SCHEDULE_KIND_NONE) {
        trek_fail(TREK_ERR_ARGUMENT, "%s: then: it is empty; must be a schedule", function);
        return none;
    }
    if (steps < 0)
        return bad(function, "steps", (double)steps, "at least 0");
    if (then.warmup > 0) {
        trek_fail(TREK_ERR_ARGUMENT, "%s: then: it already has a warm-up; must have none", function);
        return none;
    }
    then.warmup = steps;
    return then;
}

/* --- values ---------------------------------------------------------------- */

static double multistep(const trek_schedule *s, int64_t step)
{
    int passed = 0;
    for (int k = 0; k < s->n_milestones; k++)
        passed += s->milestones[k] <= step;
    return s->lr * pow(s->numbers[0], passed);
}

static double anneal(bool linear, double from, double to, double part)
{
    return linear ? from + (to - from) * part : to + (from - to) * 0.5 * (1.0 + cos(pi * part));
}

/* The phases end at fractional steps, as in OneCycleLR. A phase of length zero is skipped. */
static double onecycle(const trek_schedule *s, int64_t step)
{
    double total = (double)s->steps[0], pct = s->numbers[0];
    double first = s->lr / s->numbers[1], last = first / s->numbers[2];
    bool three = s->mode & ONECYCLE_THREE_PHASE;
    double ends[3] = { pct * total - 1.0, three ? 2.0 * pct * total - 2.0 : total - 1.0, total - 1.0 };
    double values[4] = { first, s->lr, three ? first : last, last };
    double at = (double)step, start = 0.0;
    for (int phase = 0; phase < (three ? 3 : 2); phase++) {
        if (at <= ends[phase] && ends[phase] > start)
            return anneal(s->mode & ONECYCLE_LINEAR, values[phase], values[phase + 1], (at - start) / (ends[phase] - start));
        start = fmax(ends[phase], 0.0);
    }
    return last;
}

static double cyclic(const trek_schedule *s, int64_t step)
{
    int64_t up = s->steps[0], length = up + s->steps[1];
    int64_t cycle = step / length, within = step % length;
    double height = within <= up ? (double)within / (double)up : (double)(length - within) / (double)s->steps[1];
    if (s->mode == TREK_CYCLIC_MODE_TRIANGULAR2)
        height *= pow(0.5, (double)cycle);
    else if (s->mode == TREK_CYCLIC_MODE_EXP_RANGE)
        height *= pow(s->numbers[1], (double)step);
    return s->lr + (s->numbers[0] - s->lr) * height;
}

static double value_at(const trek_schedule *s, int64_t step)
{
    double part = s->steps[0] > 0 ? fmin((double)step / (double)s->steps[0], 1.0) : 0.0;
    switch (s->kind) {
    case TREK_SCHEDULE_KIND_CONSTANT:
        return s->lr;
    case TREK_SCHEDULE_KIND_STEP:
        return s->lr * pow(s->numbers[0], (double)(step / s->steps[0]));
    case TREK_SCHEDULE_KIND_MULTISTEP:
        return multistep(s, step);
    case TREK_SCHEDULE_KIND_COSINE:
        return s->numbers[0] + (s->lr - s->numbers[0]) * 0.5 * (1.0 + cos(pi * part));
    case TREK_SCHEDULE_KIND_EXPONENTIAL:
        return s->lr * pow(s->numbers[0], (double)step);
    case TREK_SCHEDULE_KIND_ONECYCLE:
        return onecycle(s, step);
    case TREK_SCHEDULE_KIND_CYCLIC:
        return cyclic(s, step);
    case TREK_SCHEDULE_KIND_POLYNOMIAL:
        return s->lr * pow(1.0 - part, s->numbers[0]);
    case TREK_SCHEDULE_KIND_INVERSE_SQRT:
        return s->lr * sqrt((double)s->steps[0] / ((double)step + (double)s->steps[0]));
    case TREK_SCHEDULE_KIND_LINEAR:
        return s->lr * (s->numbers[0] + (s->numbers[1] - s->numbers[0]) * part);
    case TREK_SCHEDULE_KIND_RESTARTS:
    case TREK_SCHEDULE_KIND_STABLE:
    case TREK_SCHEDULE_KIND_LAMBDA:
    case TREK_SCHEDULE_KIND_SEQUENTIAL:
    case TREK_SCHEDULE_KIND_CHAINED:
        return trek_schedule_composed(s, step, trek_schedule_lr);
    case TREK_SCHEDULE_KIND_NONE:
        break;
    }
    trek_fail(TREK_ERR_ARGUMENT, "schedule_lr: schedule: it was not made by a function of optim/schedule.h");
    return NAN;
}

double trek_schedule_lr(const trek_schedule *schedule, int64_t step)
{
    if (!schedule || step < 0) {
        trek_fail(TREK_ERR_ARGUMENT, schedule ? "schedule_lr: step: negative; must be 0 or more"
                  : "schedule_lr: schedule: NULL; it must be given");
        return NAN;
    }
    double scale = schedule->scale != 0 ? schedule->scale : 1;
    if (step < schedule->warmup)
        return scale * (value_at(schedule, 0) * ((double)(step + 1) / (double)schedule->warmup));
    return scale * value_at(schedule, step - schedule->warmup);
}

trek_schedule trek_scaled_lr(trek_schedule schedule, double factor)
{
    if (schedule.kind == TREK_SCHEDULE_KIND_NONE)
        return schedule;
    if (!is_finite_from(factor, 0.0) || factor == 0) {
        bad("scaled_lr", "factor", factor, "finite and above 0");
        return (trek_schedule){ .kind = TREK_SCHEDULE_KIND_NONE };
    }
    schedule.scale = (schedule.scale != 0 ? schedule.scale : 1) * factor;
    return schedule;
}

/* --- plateau --------------------------------------------------------------- */

trek_plateau trek_plateau_lr(const trek_plateau_opts *opts)
{
    trek_plateau_opts o = opts ? *opts : (trek_plateau_opts){ 0 };
    const char *function = "plateau_lr";
    trek_plateau p = { .valid = false };
    o.lr = trek_option(o.lr, 1e-3);
    o.factor = trek_option(o.factor, 0.1);
    o.patience = trek_option_integer(o.patience, 10);
    o.cooldown = trek_option_integer(o.cooldown, 0);
    o.min_lr = trek_option(o.min_lr, 0.0);
    o.threshold = trek_option(o.threshold, 1e-4);
    if (!check_lr(function, "lr", o.lr) || !check_lr(function, "min_lr", o.min_lr))
        return p;
    if (!(o.factor > 0.0 && o.factor < 1.0)) {
        bad(function, "factor", o.factor, "between 0 and 1");
    } else if (o.patience < 0) {
        bad(function, "patience", (double)o.patience, "at least 0");
    } else if (o.cooldown < 0) {
        bad(function, "cooldown", (double)o.cooldown, "at least 0");
    } else if (!is_finite_from(o.threshold, 0.0)) {
        bad(function, "threshold", o.threshold, "finite and at least 0");
    } else {
        p.valid = true;
        p.opts = o;
        p.lr = o.lr;
    }
    return p;
}

static bool improves(const trek_plateau *p, double metric)
{
    if (!p->seen)
        return p->opts.maximize ? metric > -INFINITY : metric < INFINITY;
    double margin = p->opts.absolute ? p->opts.threshold : p->best * p->opts.threshold;
    return p->opts.maximize ? metric > p->best + margin : metric < p->best - margin;
}

double trek_plateau_observe(trek_plateau *p, double metric)
{
    if (!p || !p->valid) {
        trek_fail(TREK_ERR_ARGUMENT,
                  "plateau_observe: plateau: it was not made by trek_plateau_lr, or with options that were refused");
        return NAN;
    }
    if (improves(p, metric)) {
        p->seen = true;
        p->best = metric;
        p->bad = 0;
    } else {
        p->bad++;
    }
    if (p->cooling > 0) {
        p->cooling--;
        p->bad = 0;
    }
    if (p->bad > p->opts.patience) {
        double lowered = fmax(p->lr * p->opts.factor, p->opts.min_lr);
        if (p->lr - lowered > 1e-8) /* as in PyTorch, smaller changes are ignored */
            p->lr = lowered;
        p->cooling = p->opts.cooldown;
        p->bad = 0;
    }
    return p->lr;
}
