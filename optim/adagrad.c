/* SPDX-License-Identifier: Apache-2.0 */
/* Adagrad (Duchi, Hazan and Singer, 2011). The formulas and their order are PyTorch's. */
#include "optim/class_internal.h"
#include "optim/optimizers.h"

enum { LR, LR_DECAY, WEIGHT_DECAY, INITIAL, EPS, MAXIMIZE };
enum { N_STEP, N_DECAY, N_EPS, N_INITIAL, N_FIRST };

TREK_UPDATE_NUMBERS(adagrad)
{
    const double *o = s->options;
    n[N_STEP] = -(o[LR] / (1 + (double)(s->step - 1) * o[LR_DECAY]));
    n[N_DECAY] = o[WEIGHT_DECAY];
    n[N_EPS] = o[EPS];
    n[N_INITIAL] = o[INITIAL];
    n[N_FIRST] = s->fresh & 1;
    return 0;
}

TREK_UPDATE_ELEMENT(adagrad, 1, 1, 1, {
    d = n[N_DECAY] != 0 ? d + n[N_DECAY] * *x : d;
    T sum = (n[N_FIRST] != 0 ? n[N_INITIAL] : s[0]) + d * d;
    *x = *x + n[N_STEP] * d / (trek_root(sum) + n[N_EPS]);
    s[0] = sum;
})

#ifdef TREK_OPTIMIZER_HOME
static bool keeps_zeros(const double *options) { return options[EPS] > 0 || options[INITIAL] > 0; /* otherwise 0 / 0 */ }

static const trek_optimizer_class adagrad_class = {
    .name = "adagrad",
    .options = { [LR] = { "lr", .otherwise = 0.01 }, [LR_DECAY] = { .name = "lr_decay" },
                 [WEIGHT_DECAY] = { .name = "weight_decay" }, [INITIAL] = { .name = "initial_accumulator_value" },
                 [EPS] = { "eps", .otherwise = 1e-10 }, [MAXIMIZE] = { .name = "maximize" } },
    .states = { { .name = "sum", .positive = true } },
    .maximize = MAXIMIZE,
    .by_step = true,
    .keeps_zeros = keeps_zeros,
    .update = adagrad_update,
    .gpu = "adagrad",
};

trek_optimizer_spec trek_adagrad(const trek_adagrad_opts *opts)
{
    trek_adagrad_opts o = opts ? *opts : (trek_adagrad_opts){ 0 };
    return (trek_optimizer_spec){ .klass = &adagrad_class,
                                  { [LR] = o.lr, [LR_DECAY] = o.lr_decay, [WEIGHT_DECAY] = o.weight_decay,
                                    [INITIAL] = o.initial_accumulator_value, [EPS] = o.eps,
                                    [MAXIMIZE] = o.maximize } };
}
#endif
