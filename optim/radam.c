/* SPDX-License-Identifier: Apache-2.0 */
/* RAdam: Adam that accounts for the uncertainty of its first steps (Liu and others, 2020). The formulas and their
 * order are PyTorch's. */
#include "optim/class_internal.h"
#include "optim/optimizers.h"

enum { LR, BETA1, BETA2, EPS, WEIGHT_DECAY, DECOUPLED, MAXIMIZE };
enum { N_DECAY, N_KEEP, N_WEIGHT, N_FAR, N_BETA2, N_REST2, N_STEP, N_ADAPTS, N_EPS };

TREK_UPDATE_NUMBERS(radam)
{
    const double *o = s->options;
    bool decoupled = o[DECOUPLED] != 0;
    double most = 2 / (1 - o[BETA2]) - 1;
    double rho = most - 2 * (double)s->step * (1 - s->correction[1]) / s->correction[1];
    double rectified = sqrt((rho - 4) * (rho - 2) * most / ((most - 4) * (most - 2) * rho)) * sqrt(s->correction[1]);
    n[N_ADAPTS] = rho > 5;
    n[N_DECAY] = decoupled ? 0 : o[WEIGHT_DECAY];
    n[N_KEEP] = decoupled ? 1 - o[LR] * o[WEIGHT_DECAY] : 1;
    n[N_FAR] = o[BETA1] <= 0.5; /* as in Adam */
    n[N_WEIGHT] = n[N_FAR] != 0 ? -o[BETA1] : 1 - o[BETA1];
    n[N_BETA2] = o[BETA2];
    n[N_REST2] = 1 - o[BETA2];
    n[N_STEP] = -(o[LR] / s->correction[0]) * (rho > 5 ? rectified : 1);
    n[N_EPS] = o[EPS];
    return 0;
}

TREK_UPDATE_ELEMENT(radam, 2, 3, 1, {
    const T tiny = n[N_EPS] > 0 ? TREK_LEAST : 0;
    d = n[N_DECAY] != 0 ? d + n[N_DECAY] * *x : d;
    T mean = (n[N_FAR] != 0 ? d : s[0]) + n[N_WEIGHT] * (d - s[0]);
    T square = s[1] * n[N_BETA2] + n[N_REST2] * d * d;
    mean *= (T)(trek_magnitude(mean) >= tiny); /* as in Adam */
    square *= (T)(square >= tiny);
    T width = n[N_ADAPTS] != 0 ? trek_root(square) + n[N_EPS] : 1;
    *x = *x * n[N_KEEP] + n[N_STEP] * mean / width;
    s[0] = mean;
    s[1] = square;
})

#ifdef TREK_OPTIMIZER_HOME
static bool keeps_zeros(const double *options) { return options[EPS] > 0; /* otherwise zeros become 0 / 0 */ }

static const trek_optimizer_class radam_class = {
    .name = "radam",
    .options = { [LR] = { "lr", .otherwise = 1e-3 }, [BETA1] = { "beta1", 0.9, TREK_OPTION_RANGE_FRACTION, .corrected = true },
                 [BETA2] = { "beta2", 0.999, TREK_OPTION_RANGE_FRACTION, .corrected = true },
                 [EPS] = { "eps", .otherwise = 1e-8 },
                 [WEIGHT_DECAY] = { .name = "weight_decay" }, [DECOUPLED] = { .name = "decoupled_weight_decay" },
                 [MAXIMIZE] = { .name = "maximize" } },
    .states = { { .name = "exp_avg" }, { .name = "exp_avg_sq", .positive = true } },
    .maximize = MAXIMIZE,
    .by_step = true,
    .keeps_zeros = keeps_zeros,
    .update = radam_update,
    .gpu = "radam",
};

trek_optimizer_spec trek_radam(const trek_radam_opts *opts)
{
    trek_radam_opts o = opts ? *opts : (trek_radam_opts){ 0 };
    return (trek_optimizer_spec){ .klass = &radam_class, { [LR] = o.lr, [BETA1] = o.beta1, [BETA2] = o.beta2, [EPS] = o.eps,
                                                  [WEIGHT_DECAY] = o.weight_decay, [DECOUPLED] = o.decoupled_weight_decay,
                                                  [MAXIMIZE] = o.maximize } };
}
#endif
