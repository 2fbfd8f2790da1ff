/* SPDX-License-Identifier: Apache-2.0 */
/* Options of optimizers by name. */
#ifndef TREK_TESTS_OPTIMIZER_OPTIONS_H
#define TREK_TESTS_OPTIMIZER_OPTIONS_H

#include <math.h>
#include <string.h>

#include "optim/optimizer_class.h"
#include "optim/optimizers.h"

static inline bool test_is_class(const trek_optimizer_spec *spec, const char *name)
{
    return strcmp(spec->klass->name, name) == 0;
}

/* NULL: the class has no such option. */
static inline double *test_option_at(trek_optimizer_spec *spec, const char *name)
{
    for (int k = 0; k < TREK_UPDATE_OPTIONS; k++)
        if (spec->klass->options[k].name && strcmp(spec->klass->options[k].name, name) == 0)
            return &spec->options[k];
    return NULL;
}

/* The value in the spec; 0 where the class has no such option. */
static inline double test_option(const trek_optimizer_spec *spec, const char *name)
{
    trek_optimizer_spec copy = *spec;
    const double *value = test_option_at(&copy, name);
    return value ? *value : 0;
}

static inline trek_optimizer_spec test_with_option(trek_optimizer_spec spec, const char *name, double value)
{
    *test_option_at(&spec, name) = value;
    return spec;
}

static inline trek_sgd_opts test_sgd_opts(const trek_optimizer_spec *spec)
{
    return (trek_sgd_opts){ .lr = test_option(spec, "lr"), .momentum = test_option(spec, "momentum"),
                            .dampening = test_option(spec, "dampening"), .weight_decay = test_option(spec, "weight_decay"),
                            .nesterov = test_option(spec, "nesterov") != 0, .maximize = test_option(spec, "maximize") != 0 };
}

static inline trek_adam_opts test_adam_opts(const trek_optimizer_spec *spec)
{
    return (trek_adam_opts){ .lr = test_option(spec, "lr"), .beta1 = test_option(spec, "beta1"),
                             .beta2 = test_option(spec, "beta2"),
                             .eps = test_option(spec, "eps"), .weight_decay = test_option(spec, "weight_decay"),
                             .maximize = test_option(spec, "maximize") != 0 };
}

static inline trek_rmsprop_opts test_rmsprop_opts(const trek_optimizer_spec *spec)
{
    return (trek_rmsprop_opts){ .lr = test_option(spec, "lr"), .alpha = test_option(spec, "alpha"),
                                .eps = test_option(spec, "eps"),
                                .weight_decay = test_option(spec, "weight_decay"), .momentum = test_option(spec, "momentum"),
                                .centered = test_option(spec, "centered") != 0, .maximize = test_option(spec, "maximize") != 0 };
}

/* One element in f64. */
static inline void test_plain_rmsprop(const trek_optimizer_spec *spec, double g, double *p, double *square, double *buffer,
                                      double *mean)
{
    const trek_rmsprop_opts o = test_rmsprop_opts(spec);
    g = (o.maximize ? -g : g) + o.weight_decay * *p;
    *square = o.alpha * *square + (1 - o.alpha) * g * g;
    *mean = o.alpha * *mean + (1 - o.alpha) * g;
    double move = g / (sqrt(o.centered ? *square - *mean * *mean : *square) + o.eps);
    *buffer = o.momentum * *buffer + move;
    *p -= o.lr * (o.momentum > 0 ? *buffer : move);
}

#endif
