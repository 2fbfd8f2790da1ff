/* SPDX-License-Identifier: Apache-2.0 */
/* NAdam: Adam with Nesterov's momentum (Dozat, 2016). The formulas and their order are PyTorch's, which keeps the
 * product of the momenta in f32. */
#include "optim/class_internal.h"
#include "optim/optimizers.h"

enum { LR, BETA1, BETA2, EPS, WEIGHT_DECAY, MOMENTUM_DECAY, DECOUPLED, MAXIMIZE };
enum { N_DECAY, N_KEEP, N_WEIGHT, N_FAR, N_BETA2, N_REST2, N_GRAD, N_MEAN, N_CORRECTION, N_EPS };

/* The momentum of step t is beta1 (1 - 0.96^(t decay) / 2), and the update needs the product of all momenta so far.
 * It is computed again each time, so that it needs no state; after some tens of factors it is negligible compared with 1. */
TREK_UPDATE_NUMBERS(nadam)
{
    const double *o = s->options;
    double product = 1;
    for (int64_t t = 1; t <= s->step && product > 1e-18; t++)
        product *= o[BETA1] * (1 - 0.5 * pow(0.96, (double)t * o[MOMENTUM_DECAY]));
    double mu = o[BETA1] * (1 - 0.5 * pow(0.96, (double)s->step * o[MOMENTUM_DECAY]));
    double next = o[BETA1] * (1 - 0.5 * pow(0.96, (double)(s->step + 1) * o[MOMENTUM_DECAY]));
    bool decoupled = o[DECOUPLED] != 0;
    n[N_DECAY] = decoupled ? 0 : o[WEIGHT_DECAY];
    n[N_KEEP] = decoupled ? 1 - o[LR] * o[WEIGHT_DECAY] : 1;
    n[N_FAR] = o[BETA1] <= 0.5; /* as in Adam */
    n[N_WEIGHT] = n[N_FAR] != 0 ? -o[BETA1] : 1 - o[BETA1];
    n[N_BETA2] = o[BETA2];
    n[N_REST2] = 1 - o[BETA2];
    n[N_GRAD] = -o[LR] * (1 - mu) / (1 - product);
    n[N_MEAN] = -o[LR] * next / (1 - product * next);
    n[N_CORRECTION] = 1 / sqrt(s->correction[0]);
    n[N_EPS] = o[EPS];
    return 0;
}

TREK_UPDATE_ELEMENT(nadam, 2, 3, 1, {
    const T tiny = n[N_EPS] > 0 ? TREK_LEAST : 0;
    d = n[N_DECAY] != 0 ? d + n[N_DECAY] * *x : d;
    T mean = (n[N_FAR] != 0 ? d : s[0]) + n[N_WEIGHT] * (d - s[0]);
    T square = s[1] * n[N_BETA2] + n[N_REST2] * d * d;
    mean *= (T)(trek_magnitude(mean) >= tiny); /* as in Adam */
    square *= (T)(square >= tiny);
    T width = trek_root(square) * n[N_CORRECTION] + n[N_EPS];
    *x = *x * n[N_KEEP] + n[N_GRAD] * d / width + n[N_MEAN] * mean / width;
    s[0] = mean;
    s[1] = square;
})

#ifdef TREK_OPTIMIZER_HOME
static bool keeps_zeros(const double *options) { return options[EPS] > 0; /* otherwise zeros become 0 / 0 */ }

static const trek_optimizer_class nadam_class = {
    .name = "nadam",
    .options = { [LR] = { "lr", .otherwise = 2e-3 }, [BETA1] = { "beta1", 0.9, TREK_OPTION_RANGE_FRACTION, false },
                 [BETA2] = { "beta2", 0.999, TREK_OPTION_RANGE_FRACTION, .corrected = true },
                 [EPS] = { "eps", .otherwise = 1e-8 },
                 [WEIGHT_DECAY] = { .name = "weight_decay" }, [MOMENTUM_DECAY] = { "momentum_decay", .otherwise = 4e-3 },
                 [DECOUPLED] = { .name = "decoupled_weight_decay" }, [MAXIMIZE] = { .name = "maximize" } },
    .states = { { .name = "exp_avg" }, { .name = "exp_avg_sq", .positive = true } },
    .maximize = MAXIMIZE,
    .by_step = true,
    .keeps_zeros = keeps_zeros,
    .update = nadam_update,
    .gpu = "nadam",
};

trek_optimizer_spec trek_nadam(const trek_nadam_opts *opts)
{
    trek_nadam_opts o = opts ? *opts : (trek_nadam_opts){ 0 };
    return (trek_optimizer_spec){ .klass = &nadam_class, { [LR] = o.lr, [BETA1] = o.beta1, [BETA2] = o.beta2, [EPS] = o.eps,
                                                  [WEIGHT_DECAY] = o.weight_decay, [MOMENTUM_DECAY] = o.momentum_decay,
                                                  [DECOUPLED] = o.decoupled_weight_decay, [MAXIMIZE] = o.maximize } };
}
#endif
