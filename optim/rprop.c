/* SPDX-License-Identifier: Apache-2.0 */
/* Rprop: each element has its own step size and moves in the direction of the gradient's sign (Riedmiller and Braun,
 * 1993). The formulas and their order are PyTorch's. */
#include "optim/class_internal.h"
#include "optim/optimizers.h"

enum { LR, LESS, MORE, LEAST, MOST, MAXIMIZE };
enum { BEFORE, SIZE }; /* states */
enum { N_FIRST, N_LR, N_LESS, N_MORE, N_LEAST, N_MOST };

TREK_UPDATE_NUMBERS(rprop)
{
    const double *o = s->options;
    n[N_FIRST] = s->fresh >> SIZE & 1;
    n[N_LR] = o[LR];
    n[N_LESS] = o[LESS];
    n[N_MORE] = o[MORE];
    n[N_LEAST] = o[LEAST];
    n[N_MOST] = o[MOST];
    return 0;
}

TREK_UPDATE_ELEMENT(rprop, 2, 3, 1, {
    T both = d * s[BEFORE];
    T factor = both > 0 ? n[N_MORE] : both < 0 ? n[N_LESS] : both == 0 ? 1 : both; /* NaN stays NaN */
    T size = (n[N_FIRST] != 0 ? n[N_LR] : s[SIZE]) * factor;
    size = size < n[N_LEAST] ? n[N_LEAST] : size;
    size = size > n[N_MOST] ? n[N_MOST] : size;
    T way = both < 0 ? 0 : d; /* where the sign has changed, this step is left out */
    T sign = way > 0 ? 1 : way < 0 ? -1 : way;
    *x = *x - sign * size;
    s[BEFORE] = way;
    s[SIZE] = size;
})

#ifdef TREK_OPTIMIZER_HOME
static bool keeps_zeros(const double *options)
{
    (void)options;
    return true;
}

static trek_status check(const double *o)
{
    if (!(o[LESS] > 0 && o[LESS] < 1 && o[MORE] > 1))
        return trek_fail(TREK_ERR_ARGUMENT, "rprop: eta_minus and eta_plus: %g and %g; must be inside (0, 1), and above 1",
                         o[LESS], o[MORE]);
    if (!(o[LEAST] <= o[MOST]))
        return trek_fail(TREK_ERR_ARGUMENT, "rprop: step_min and step_max: %g and %g; must ascend", o[LEAST], o[MOST]);
    return TREK_OK;
}

static const trek_optimizer_class rprop_class = {
    .name = "rprop",
    .options = { [LR] = { "lr", .otherwise = 0.01 }, [LESS] = { "eta_minus", .otherwise = 0.5 },
                 [MORE] = { "eta_plus", .otherwise = 1.2 }, [LEAST] = { "step_min", .otherwise = 1e-6 },
                 [MOST] = { "step_max", .otherwise = 50 }, [MAXIMIZE] = { .name = "maximize" } },
    .states = { [BEFORE] = { .name = "prev" }, [SIZE] = { .name = "step_size", .positive = true } },
    .maximize = MAXIMIZE,
    .check = check,
    .keeps_zeros = keeps_zeros,
    .update = rprop_update,
    .gpu = "rprop",
};

trek_optimizer_spec trek_rprop(const trek_rprop_opts *opts)
{
    trek_rprop_opts o = opts ? *opts : (trek_rprop_opts){ 0 };
    return (trek_optimizer_spec){ .klass = &rprop_class,
                                  { [LR] = o.lr, [LESS] = o.eta_minus, [MORE] = o.eta_plus, [LEAST] = o.step_min,
                                    [MOST] = o.step_max, [MAXIMIZE] = o.maximize } };
}
#endif
