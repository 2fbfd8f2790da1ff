/* SPDX-License-Identifier: Apache-2.0 */
/* Averaged stochastic gradient descent (Polyak and Juditsky, "Acceleration of stochastic approximation by averaging",
 * 1992). The formulas and their order are PyTorch's, except that the rate is computed from the current learning rate. */
#include "optim/class_internal.h"
#include "optim/optimizers.h"

enum { LR, LAMBD, ALPHA, T0, WEIGHT_DECAY, MAXIMIZE };
enum { N_STEP, N_DECAY, N_KEEP, N_PART };

/* The rate and the averaging depend on the number of steps before this one. */
TREK_UPDATE_NUMBERS(asgd)
{
    const double *o = s->options;
    const double before = (double)(s->step - 1), rate = o[LR] / pow(1 + o[LAMBD] * o[LR] * before, o[ALPHA]);
    const double averaged = before - o[T0];
    n[N_STEP] = -rate;
    n[N_DECAY] = o[WEIGHT_DECAY];
    n[N_KEEP] = 1 - o[LAMBD] * rate;
    n[N_PART] = averaged > 1 ? 1 / averaged : 1;
    return 0;
}

TREK_UPDATE_ELEMENT(asgd, 1, 1, 1, {
    d = n[N_DECAY] != 0 ? d + n[N_DECAY] * *x : d;
    T moved = *x * n[N_KEEP] + n[N_STEP] * d;
    s[0] = n[N_PART] == 1 ? moved : s[0] + (moved - s[0]) * n[N_PART];
    *x = moved;
})

#ifdef TREK_OPTIMIZER_HOME
static bool keeps_zeros(const double *options)
{
    (void)options;
    return true;
}

static const trek_optimizer_class asgd_class = {
    .name = "asgd",
    .options = { [LR] = { "lr", .otherwise = 1e-2 },
                 [LAMBD] = { "lambd", .otherwise = 1e-4 },
                 [ALPHA] = { "alpha", .otherwise = 0.75 },
                 [T0] = { "t0", .otherwise = 1e6 },
                 [WEIGHT_DECAY] = { .name = "weight_decay" },
                 [MAXIMIZE] = { .name = "maximize" } },
    .states = { { .name = "ax" } },
    .maximize = MAXIMIZE,
    .by_step = true,
    .keeps_zeros = keeps_zeros,
    .update = asgd_update,
    .gpu = "asgd",
};

trek_optimizer_spec trek_asgd(const trek_asgd_opts *opts)
{
    trek_asgd_opts o = opts ? *opts : (trek_asgd_opts){ 0 };
    return (trek_optimizer_spec){ .klass = &asgd_class,
                                  { [LR] = o.lr,
                                    [LAMBD] = o.lambd,
                                    [ALPHA] = o.alpha,
                                    [T0] = o.t0,
                                    [WEIGHT_DECAY] = o.weight_decay,
                                    [MAXIMIZE] = o.maximize } };
}
#endif
