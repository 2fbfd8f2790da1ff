/* SPDX-License-Identifier: Apache-2.0 */
/* A class of optimizers that the library does not have, as a program writes one: steps along a moving average whose elements
 * are brought below 1. With a correction by steps, a state that only some groups keep, and one that starts with what it is given.
 */
#ifndef TREK_TESTS_TAMED_H
#define TREK_TESTS_TAMED_H

#include "optim/optimizer_class.h"
#include "optim/update_element.h"
#include "tests/support/optimizer_options.h"

enum { TAMED_LR, TAMED_BETA, TAMED_EPS, TAMED_DECAY, TAMED_MOMENTUM, TAMED_MAXIMIZE };
enum { TAMED_STEP, TAMED_KEEP, TAMED_OLD, TAMED_NEW, TAMED_UNBIAS, TAMED_FLOOR, TAMED_TRAIL, TAMED_FRESH };

TREK_UPDATE_NUMBERS(tamed)
{
    const double *o = s->options;
    n[TAMED_STEP] = -o[TAMED_LR];
    n[TAMED_KEEP] = 1 - o[TAMED_LR] * o[TAMED_DECAY];
    n[TAMED_OLD] = o[TAMED_BETA];
    n[TAMED_NEW] = 1 - o[TAMED_BETA];
    n[TAMED_UNBIAS] = 1 / s->correction[0];
    n[TAMED_FLOOR] = o[TAMED_EPS];
    n[TAMED_TRAIL] = o[TAMED_MOMENTUM];
    n[TAMED_FRESH] = s->fresh >> 1 & 1;
    return 0;
}

TREK_UPDATE_ELEMENT(tamed, 2, 1, 1, {
    T average = n[TAMED_OLD] * s[0] + n[TAMED_NEW] * d, whole = average * n[TAMED_UNBIAS];
    T direction = whole / (trek_magnitude(whole) + n[TAMED_FLOOR]);
    if (kept & 2)
        s[1] = direction = n[TAMED_FRESH] != 0 ? direction : n[TAMED_TRAIL] * s[1] + direction;
    *x = *x * n[TAMED_KEEP] + n[TAMED_STEP] * direction;
    s[0] = average;
})

static const trek_optimizer_class tamed_class = {
    .name = "tamed",
    .options = { [TAMED_LR] = { "lr", .otherwise = 1e-2 },
                 [TAMED_BETA] = { "beta", 0.8, TREK_OPTION_RANGE_FRACTION, .corrected = true },
                 [TAMED_EPS] = { "eps", .otherwise = 0.1 }, [TAMED_DECAY] = { .name = "weight_decay" },
                 [TAMED_MOMENTUM] = { .name = "momentum" },
                 [TAMED_MAXIMIZE] = { .name = "maximize" } },
    .states = { { .name = "average" }, { "trail", .kept_with = TAMED_MOMENTUM } },
    .maximize = TAMED_MAXIMIZE,
    .by_step = true,
    .update = tamed_update,
};

static inline trek_optimizer_spec tamed(double lr, double momentum)
{
    return (trek_optimizer_spec){ .klass = &tamed_class, { [TAMED_LR] = lr, [TAMED_DECAY] = 0.01, [TAMED_MOMENTUM] = momentum } };
}

/* The same in f64, for a spec with the defaults filled in; t counts from 1. */
static inline void tamed_plain(const trek_optimizer_spec *spec, int t, double g, double *p, double *average, double *trail)
{
    double beta = test_option(spec, "beta"), lr = test_option(spec, "lr"), momentum = test_option(spec, "momentum");
    *average = beta * *average + (1 - beta) * (test_option(spec, "maximize") != 0 ? -g : g);
    double whole = *average / (1 - pow(beta, t)), direction = whole / (fabs(whole) + test_option(spec, "eps"));
    if (momentum > 0)
        *trail = direction = t == 1 ? direction : momentum * *trail + direction;
    *p = *p * (1 - lr * test_option(spec, "weight_decay")) - lr * direction;
}

#endif
