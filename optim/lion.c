/* SPDX-License-Identifier: Apache-2.0 */
/* Lion: the sign of a moving average (Chen and others, "Symbolic discovery of optimization algorithms", 2023). */
#include "optim/class_internal.h"
#include "optim/optimizers.h"

enum { LR, BETA1, BETA2, WEIGHT_DECAY, MAXIMIZE };
enum { N_STEP, N_KEEP, N_BETA1, N_REST1, N_BETA2, N_REST2 };

TREK_UPDATE_NUMBERS(lion)
{
    const double *o = s->options;
    n[N_STEP] = -o[LR];
    n[N_KEEP] = 1 - o[LR] * o[WEIGHT_DECAY];
    n[N_BETA1] = o[BETA1];
    n[N_REST1] = 1 - o[BETA1];
    n[N_BETA2] = o[BETA2];
    n[N_REST2] = 1 - o[BETA2];
    return 0;
}

TREK_UPDATE_ELEMENT(lion, 1, 1, 1, {
    T way = s[0] * n[N_BETA1] + n[N_REST1] * d;
    T mean = s[0] * n[N_BETA2] + n[N_REST2] * d;
    mean *= (T)(trek_magnitude(mean) >= TREK_LEAST); /* as in Adam */
    T sign = way > 0 ? 1 : way < 0 ? -1 : way;       /* NaN stays NaN */
    *x = *x * n[N_KEEP] + n[N_STEP] * sign;
    s[0] = mean;
})

#ifdef TREK_OPTIMIZER_HOME
static bool keeps_zeros(const double *options)
{
    (void)options;
    return true;
}

static const trek_optimizer_class lion_class = {
    .name = "lion",
    .options = { [LR] = { "lr", .otherwise = 1e-4 }, [BETA1] = { "beta1", 0.9, TREK_OPTION_RANGE_FRACTION, false },
                 [BETA2] = { "beta2", 0.99, TREK_OPTION_RANGE_FRACTION, false }, [WEIGHT_DECAY] = { .name = "weight_decay" },
                 [MAXIMIZE] = { .name = "maximize" } },
    .states = { { .name = "exp_avg" } },
    .maximize = MAXIMIZE,
    .keeps_zeros = keeps_zeros,
    .update = lion_update,
    .gpu = "lion",
};

trek_optimizer_spec trek_lion(const trek_lion_opts *opts)
{
    trek_lion_opts o = opts ? *opts : (trek_lion_opts){ 0 };
    return (trek_optimizer_spec){ .klass = &lion_class, { [LR] = o.lr, [BETA1] = o.beta1, [BETA2] = o.beta2,
                                                 [WEIGHT_DECAY] = o.weight_decay, [MAXIMIZE] = o.maximize } };
}
#endif
