/* SPDX-License-Identifier: Apache-2.0 */
/* Adamax (Kingma and Ba, 2015). The formulas and their order are PyTorch's. */
#include "optim/class_internal.h"
#include "optim/optimizers.h"

enum { LR, BETA1, BETA2, EPS, WEIGHT_DECAY, MAXIMIZE };
enum { N_STEP, N_DECAY, N_WEIGHT, N_FAR, N_BETA2, N_EPS };

TREK_UPDATE_NUMBERS(adamax)
{
    const double *o = s->options;
    n[N_STEP] = -(o[LR] / s->correction[0]);
    n[N_DECAY] = o[WEIGHT_DECAY];
    n[N_FAR] = o[BETA1] <= 0.5; /* as in Adam */
    n[N_WEIGHT] = n[N_FAR] != 0 ? -o[BETA1] : 1 - o[BETA1];
    n[N_BETA2] = o[BETA2];
    n[N_EPS] = o[EPS];
    return 0;
}

TREK_UPDATE_ELEMENT(adamax, 2, 3, 1, {
    const T tiny = n[N_EPS] > 0 ? TREK_LEAST : 0;
    d = n[N_DECAY] != 0 ? d + n[N_DECAY] * *x : d;
    T mean = (n[N_FAR] != 0 ? d : s[0]) + n[N_WEIGHT] * (d - s[0]);
    mean *= (T)(trek_magnitude(mean) >= tiny); /* NaN stays NaN */
    T old = s[1] * n[N_BETA2];
    T size = trek_magnitude(d) + n[N_EPS];
    T most = ((old >= size) | (old != old)) ? old : size;
    *x = *x + n[N_STEP] * mean / most;
    s[0] = mean;
    s[1] = most;
})

#ifdef TREK_OPTIMIZER_HOME
static bool keeps_zeros(const double *options) { return options[EPS] > 0; /* otherwise zeros become 0 / 0 */ }

static const trek_optimizer_class adamax_class = {
    .name = "adamax",
    .options = { [LR] = { "lr", .otherwise = 2e-3 }, [BETA1] = { "beta1", 0.9, TREK_OPTION_RANGE_FRACTION, .corrected = true },
                 [BETA2] = { "beta2", 0.999, TREK_OPTION_RANGE_FRACTION, false }, [EPS] = { "eps", .otherwise = 1e-8 },
                 [WEIGHT_DECAY] = { .name = "weight_decay" }, [MAXIMIZE] = { .name = "maximize" } },
    .states = { { .name = "exp_avg" }, { .name = "exp_inf", .positive = true } },
    .maximize = MAXIMIZE,
    .by_step = true,
    .keeps_zeros = keeps_zeros,
    .update = adamax_update,
    .gpu = "adamax",
};

trek_optimizer_spec trek_adamax(const trek_adamax_opts *opts)
{
    trek_adamax_opts o = opts ? *opts : (trek_adamax_opts){ 0 };
    return (trek_optimizer_spec){ .klass = &adamax_class, { [LR] = o.lr, [BETA1] = o.beta1, [BETA2] = o.beta2, [EPS] = o.eps,
                                                   [WEIGHT_DECAY] = o.weight_decay, [MAXIMIZE] = o.maximize } };
}
#endif
