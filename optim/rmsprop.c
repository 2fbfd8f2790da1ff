/* SPDX-License-Identifier: Apache-2.0 */
/* RMSprop (Tieleman and Hinton, 2012), optionally centred (Graves, 2013) and with momentum. The formulas and their
 * order are PyTorch's, with one exception: a variance that rounding makes negative counts as 0, where PyTorch's
 * parameters become NaN. */
#include "optim/class_internal.h"
#include "optim/optimizers.h"

enum { LR, ALPHA, EPS, WEIGHT_DECAY, MOMENTUM, CENTERED, MAXIMIZE };
enum { SQUARE, BUFFER, MEAN }; /* states */
enum { N_STEP, N_DECAY, N_ALPHA, N_REST, N_EPS, N_MOMENTUM, N_FAR, N_WEIGHT };

TREK_UPDATE_NUMBERS(rmsprop)
{
    const double *o = s->options;
    n[N_STEP] = -o[LR];
    n[N_DECAY] = o[WEIGHT_DECAY];
    n[N_ALPHA] = o[ALPHA];
    n[N_REST] = 1 - o[ALPHA];
    n[N_EPS] = o[EPS];
    n[N_MOMENTUM] = o[MOMENTUM];
    n[N_FAR] = o[ALPHA] <= 0.5; /* interpolates the mean from the other end, as lerp does, which is exact at both */
    n[N_WEIGHT] = n[N_FAR] != 0 ? -o[ALPHA] : 1 - o[ALPHA];
    return 0;
}

/* As in Adam, averages of elements that no longer get a gradient become 0 instead of denormal. */
TREK_UPDATE_ELEMENT(rmsprop, 3, 1, 1, {
    const T tiny = n[N_EPS] > 0 ? TREK_LEAST : 0;
    d = n[N_DECAY] != 0 ? d + n[N_DECAY] * *x : d;
    T square = s[SQUARE] * n[N_ALPHA] + n[N_REST] * d * d;
    square *= (T)(square >= tiny);
    T spread = s[SQUARE] = square;
    if (kept >> MEAN & 1) {
        T mean = (n[N_FAR] != 0 ? d : s[MEAN]) + n[N_WEIGHT] * (d - s[MEAN]);
        mean *= (T)(trek_magnitude(mean) >= tiny);
        s[MEAN] = mean;
        spread = square - mean * mean;
        spread = spread < 0 ? 0 : spread; /* NaN stays NaN */
    }
    T width = trek_root(spread) + n[N_EPS];
    if (kept >> BUFFER & 1) {
        T moving = s[BUFFER] * n[N_MOMENTUM] + d / width;
        moving *= (T)(trek_magnitude(moving) >= TREK_LEAST);
        s[BUFFER] = moving;
        *x = *x + n[N_STEP] * moving;
    } else {
        *x = *x + n[N_STEP] * d / width;
    }
})

#ifdef TREK_OPTIMIZER_HOME
static bool keeps_zeros(const double *options) { return options[EPS] > 0; /* otherwise zeros become 0 / 0 */ }

static const trek_optimizer_class rmsprop_class = {
    .name = "rmsprop",
    .options = { [LR] = { "lr", .otherwise = 0.01 }, [ALPHA] = { "alpha", .otherwise = 0.99 },
                 [EPS] = { "eps", .otherwise = 1e-8 },
                 [WEIGHT_DECAY] = { .name = "weight_decay" }, [MOMENTUM] = { .name = "momentum" },
                 [CENTERED] = { .name = "centered" },
                 [MAXIMIZE] = { .name = "maximize" } },
    .states = { [SQUARE] = { .name = "square_avg", .positive = true },
                [BUFFER] = { "momentum_buffer", .kept_with = MOMENTUM }, [MEAN] = { "grad_avg", .kept_with = CENTERED } },
    .maximize = MAXIMIZE,
    .keeps_zeros = keeps_zeros,
    .update = rmsprop_update,
    .gpu = "rmsprop",
};

trek_optimizer_spec trek_rmsprop(const trek_rmsprop_opts *opts)
{
    trek_rmsprop_opts o = opts ? *opts : (trek_rmsprop_opts){ 0 };
    return (trek_optimizer_spec){ .klass = &rmsprop_class,
                                  { [LR] = o.lr, [ALPHA] = o.alpha, [EPS] = o.eps, [WEIGHT_DECAY] = o.weight_decay,
                                                    [MOMENTUM] = o.momentum, [CENTERED] = o.centered, [MAXIMIZE] = o.maximize } };
}
#endif
