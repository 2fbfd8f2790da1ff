/* SPDX-License-Identifier: Apache-2.0 */
/* Adam (Kingma and Ba, 2015), AdamW (Loshchilov and Hutter, 2019) and AMSGrad of both (Reddi, Kale and Kumar, 2018).
 * The formulas and their order are PyTorch's. */
#include "optim/class_internal.h"

enum { LR, BETA1, BETA2, EPS, WEIGHT_DECAY, MAXIMIZE, AMSGRAD, DECOUPLED };
enum { N_DECAY, N_KEEP, N_WEIGHT, N_BETA2, N_REST2, N_STEP, N_CORRECTION, N_EPS, N_FAR };

TREK_UPDATE_NUMBERS(adam)
{
    const double *o = s->options;
    bool decoupled = o[DECOUPLED] != 0;
    n[N_DECAY] = decoupled ? 0 : o[WEIGHT_DECAY];
    n[N_KEEP] = decoupled ? 1 - o[LR] * o[WEIGHT_DECAY] : 1;
    n[N_FAR] = o[BETA1] <= 0.5; /* interpolates from the other end, as lerp does, which is exact at both */
    n[N_WEIGHT] = n[N_FAR] != 0 ? -o[BETA1] : 1 - o[BETA1];
    n[N_BETA2] = o[BETA2];
    n[N_REST2] = 1 - o[BETA2];
    n[N_STEP] = -(o[LR] / s->correction[0]);
    n[N_CORRECTION] = 1 / sqrt(s->correction[1]);
    n[N_EPS] = o[EPS];
    return 0;
}

/* Moments of elements that no longer get a gradient (a dead unit's weights) decay until they are denormal, and would
 * then cost some hundred cycles in every step. They are set to 0, which changes no update because eps is much larger. */
TREK_UPDATE_ELEMENT(adam, 3, 3, 1, {
    const T tiny = n[N_EPS] > 0 ? TREK_LEAST : 0;
    d = n[N_DECAY] != 0 ? d + n[N_DECAY] * *x : d;
    T mean = (n[N_FAR] != 0 ? d : s[0]) + n[N_WEIGHT] * (d - s[0]);
    T square = s[1] * n[N_BETA2] + n[N_REST2] * d * d;
    mean *= (T)(trek_magnitude(mean) >= tiny); /* NaN stays NaN */
    square *= (T)(square >= tiny);
    T spread = square;
    if (kept & 4) {
        spread = ((s[2] >= square) | (s[2] != s[2])) ? s[2] : square;
        s[2] = spread;
    }
    *x = *x * n[N_KEEP] + n[N_STEP] * mean / (trek_root(spread) * n[N_CORRECTION] + n[N_EPS]);
    s[0] = mean;
    s[1] = square;
})

#ifdef TREK_OPTIMIZER_HOME
static bool keeps_zeros(const double *options) { return options[EPS] > 0; /* otherwise zeros become 0 / 0 */ }

#define ADAM_CLASS(text, decay, is_decoupled)                                                                                    \
    {                                                                                                                            \
        .name = text,                                                                                                            \
        .options = { [LR] = { "lr", .otherwise = 1e-3 },                                                                         \
                     [BETA1] = { "beta1", 0.9, TREK_OPTION_RANGE_FRACTION, .corrected = true },                                  \
                     [BETA2] = { "beta2", 0.999, TREK_OPTION_RANGE_FRACTION, .corrected = true },                                \
                     [EPS] = { "eps", .otherwise = 1e-8 },                                                                       \
                     [WEIGHT_DECAY] = { "weight_decay", .otherwise = decay },                                                    \
                     [MAXIMIZE] = { .name = "maximize" },                                                                        \
                     [AMSGRAD] = { .name = "amsgrad" },                                                                          \
                     [DECOUPLED] = { "decoupled", .otherwise = is_decoupled } },                                                 \
        .states = { { .name = "exp_avg" },                                                                                       \
                    { .name = "exp_avg_sq", .positive = true },                                                                  \
                    { "max_exp_avg_sq", .kept_with = AMSGRAD, .positive = true } },                                              \
        .maximize = MAXIMIZE, .by_step = true, .keeps_zeros = keeps_zeros, .update = adam_update, .gpu = "adam",                 \
    }
static const trek_optimizer_class adam_class = ADAM_CLASS("adam", 0, 0), adamw_class = ADAM_CLASS("adamw", 0.01, 1);

static trek_optimizer_spec spec_of(const trek_optimizer_class *klass, const trek_adam_opts *opts)
{
    trek_adam_opts o = opts ? *opts : (trek_adam_opts){ 0 };
    return (trek_optimizer_spec){ .klass = klass, { [LR] = o.lr, [BETA1] = o.beta1, [BETA2] = o.beta2, [EPS] = o.eps,
                                           [WEIGHT_DECAY] = o.weight_decay, [MAXIMIZE] = o.maximize, [AMSGRAD] = o.amsgrad } };
}

trek_optimizer_spec trek_adam(const trek_adam_opts *opts) { return spec_of(&adam_class, opts); }

trek_optimizer_spec trek_adamw(const trek_adam_opts *opts) { return spec_of(&adamw_class, opts); }
#endif
