/* SPDX-License-Identifier: Apache-2.0 */
/* Adadelta (Zeiler, 2012). The formulas and their order are PyTorch's. */
#include "optim/class_internal.h"
#include "optim/optimizers.h"

enum { LR, RHO, EPS, WEIGHT_DECAY, MAXIMIZE };
enum { SQUARE, DELTA }; /* states */
enum { N_STEP, N_DECAY, N_RHO, N_REST, N_EPS };

TREK_UPDATE_NUMBERS(adadelta)
{
    const double *o = s->options;
    n[N_STEP] = -o[LR];
    n[N_DECAY] = o[WEIGHT_DECAY];
    n[N_RHO] = o[RHO];
    n[N_REST] = 1 - o[RHO];
    n[N_EPS] = o[EPS];
    return 0;
}

/* As in Adam, averages of elements that no longer get a gradient become 0 instead of denormal. */
TREK_UPDATE_ELEMENT(adadelta, 2, 3, 1, {
    const T tiny = n[N_EPS] > 0 ? TREK_LEAST : 0;
    d = n[N_DECAY] != 0 ? d + n[N_DECAY] * *x : d;
    T square = s[SQUARE] * n[N_RHO] + n[N_REST] * d * d;
    square *= (T)(square >= tiny); /* NaN stays NaN */
    T delta = trek_root(s[DELTA] + n[N_EPS]) / trek_root(square + n[N_EPS]) * d;
    T moved = s[DELTA] * n[N_RHO] + n[N_REST] * delta * delta;
    moved *= (T)(moved >= tiny);
    *x = *x + n[N_STEP] * delta;
    s[SQUARE] = square;
    s[DELTA] = moved;
})

#ifdef TREK_OPTIMIZER_HOME
static bool keeps_zeros(const double *options) { return options[EPS] > 0; /* otherwise zeros become 0 / 0 */ }

static const trek_optimizer_class adadelta_class = {
    .name = "adadelta",
    .options = { [LR] = { "lr", .otherwise = 1 }, [RHO] = { "rho", 0.9, TREK_OPTION_RANGE_FRACTION, false },
                 [EPS] = { "eps", .otherwise = 1e-6 }, [WEIGHT_DECAY] = { .name = "weight_decay" },
                 [MAXIMIZE] = { .name = "maximize" } },
    .states = { [SQUARE] = { .name = "square_avg", .positive = true }, [DELTA] = { .name = "acc_delta", .positive = true } },
    .maximize = MAXIMIZE,
    .keeps_zeros = keeps_zeros,
    .update = adadelta_update,
    .gpu = "adadelta",
};

trek_optimizer_spec trek_adadelta(const trek_adadelta_opts *opts)
{
    trek_adadelta_opts o = opts ? *opts : (trek_adadelta_opts){ 0 };
    return (trek_optimizer_spec){ .klass = &adadelta_class, { [LR] = o.lr, [RHO] = o.rho, [EPS] = o.eps,
                                                     [WEIGHT_DECAY] = o.weight_decay, [MAXIMIZE] = o.maximize } };
}
#endif
