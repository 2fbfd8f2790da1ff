/* SPDX-License-Identifier: Apache-2.0 */
/* Stochastic gradient descent, with momentum. The formulas and their order are PyTorch's. */
#include "optim/class_internal.h"

enum { LR, MOMENTUM, DAMPENING, WEIGHT_DECAY, NESTEROV, MAXIMIZE };
enum { N_STEP, N_DECAY, N_MOMENTUM, N_REST, N_FIRST, N_NESTEROV };

TREK_UPDATE_NUMBERS(sgd)
{
    n[N_STEP] = -s->options[LR];
    n[N_DECAY] = s->options[WEIGHT_DECAY];
    n[N_MOMENTUM] = s->options[MOMENTUM];
    n[N_REST] = 1 - s->options[DAMPENING];
    n[N_FIRST] = s->fresh & 1; /* the buffer starts with the gradient itself */
    n[N_NESTEROV] = s->options[NESTEROV];
    return 0;
}

TREK_UPDATE_ELEMENT(sgd, 1, 0, 1, {
    d = n[N_DECAY] != 0 ? d + n[N_DECAY] * *x : d;
    if (kept) {
        T moving = n[N_FIRST] != 0 ? d : s[0] * n[N_MOMENTUM] + n[N_REST] * d;
        moving *= (T)(trek_magnitude(moving) >= TREK_LEAST); /* as in Adam */
        d = n[N_NESTEROV] != 0 ? d + n[N_MOMENTUM] * moving : moving;
        s[0] = moving;
    }
    *x = *x + n[N_STEP] * d;
})

#ifdef TREK_OPTIMIZER_HOME
static trek_status check(const double *options)
{
    if (options[NESTEROV] != 0 && (options[MOMENTUM] == 0 || options[DAMPENING] != 0))
        return trek_fail(TREK_ERR_ARGUMENT,
                         "sgd: nesterov: set, with momentum %g and dampening %g; it needs momentum above 0 and dampening 0",
                         options[MOMENTUM], options[DAMPENING]);
    return TREK_OK;
}

static bool keeps_zeros(const double *options)
{
    (void)options;
    return true;
}

static const trek_optimizer_class sgd_class = {
    .name = "sgd",
    .options = { [LR] = { "lr", .otherwise = 1e-3 }, [MOMENTUM] = { .name = "momentum" },
                 [DAMPENING] = { "dampening", .range = TREK_OPTION_RANGE_FINITE },
                 [WEIGHT_DECAY] = { .name = "weight_decay" }, [NESTEROV] = { .name = "nesterov" },
                 [MAXIMIZE] = { .name = "maximize" } },
    .states = { { "momentum_buffer", .kept_with = MOMENTUM } },
    .maximize = MAXIMIZE,
    .check = check,
    .keeps_zeros = keeps_zeros,
    .update = sgd_update,
    .gpu = "sgd",
};

trek_optimizer_spec trek_sgd(const trek_sgd_opts *opts)
{
    trek_sgd_opts o = opts ? *opts : (trek_sgd_opts){ 0 };
    return (trek_optimizer_spec){ .klass = &sgd_class, { [LR] = o.lr, [MOMENTUM] = o.momentum, [DAMPENING] = o.dampening,
                                                [WEIGHT_DECAY] = o.weight_decay, [NESTEROV] = o.nesterov,
                                                [MAXIMIZE] = o.maximize } };
}
#endif
