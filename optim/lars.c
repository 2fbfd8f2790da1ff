/* SPDX-License-Identifier: Apache-2.0 */
/* LARS: SGD with momentum whose rate depends on the norms of each parameter and its gradient (You, Gitman and
 * Ginsburg, "Large batch training of convolutional networks", 2017). */
#include "optim/class_internal.h"
#include "optim/optimizers.h"
#include "tensor/update.h"

enum { LR, MOMENTUM, WEIGHT_DECAY, TRUST, EPS, MAXIMIZE };
enum { RATE }; /* of the parameter, where other classes have a correction */
enum { N_RATE, N_DECAY, N_MOMENTUM };

TREK_UPDATE_NUMBERS(lars)
{
    n[N_RATE] = s->correction[RATE];
    n[N_DECAY] = s->options[WEIGHT_DECAY];
    n[N_MOMENTUM] = s->options[MOMENTUM];
    return 0;
}

TREK_UPDATE_ELEMENT(lars, 1, 0, 1, {
    d = n[N_DECAY] != 0 ? d + n[N_DECAY] * *x : d;
    T moving = n[N_RATE] * d;
    if (kept) {
        moving = s[0] * n[N_MOMENTUM] + moving;
        moving *= (T)(trek_magnitude(moving) >= TREK_LEAST); /* as in Adam */
        s[0] = moving;
    }
    *x = *x - moving;
})

/* Computes the rate from the norms of a parameter and its gradient. */
TREK_ON_BOTH double lars_rate(const double *o, double param, double grad)
{
    if (o[TRUST] == 0 || param == 0 || grad == 0)
        return o[LR];
    return o[LR] * (o[TRUST] * param / (grad + o[WEIGHT_DECAY] * param + o[EPS]));
}

#ifdef TREK_PLUGIN
struct lars_measures {
    struct rule { /* nothing moves */
        static const int states = 0;
        static const uint32_t always_kept = 0;
        static __device__ int numbers(const trek_update_slice *, double *) { return 0; }
        template <typename T> static __device__ void element(T *, T, T *, const T *, uint32_t, int) {}
    };
    static const int stored = 0, place = RATE;
    static const bool zeroes = false;
    template <typename T> static __device__ void sums(T x, T d, const T *, double *param, double *grad)
    {
        *param += (double)x * (double)x;
        *grad += (double)d * (double)d;
    }
    static __device__ double number(const trek_update_slice &s, double param, double grad)
    {
        return lars_rate(s.options, sqrt(param), sqrt(grad));
    }
};
TREK_GPU_WHOLE(lars_whole, (trek_measured_apply<lars_measures, lars_rule>))
#endif

#ifdef TREK_OPTIMIZER_HOME
#include "optim/whole.h"

static void whole(trek_dtype dtype, const trek_update_whole *w)
{
    trek_update_slice s = trek_whole_slice(w);
    double param = trek_whole_norm(dtype, s.param, s.count);
    double grad = trek_whole_norm(dtype, s.grad, s.count) * fabs(s.grad_scale);
    s.correction[RATE] = lars_rate(s.options, param, grad);
    trek_whole_elements(lars_update, dtype, &s);
}

static const trek_optimizer_class lars_class = {
    .name = "lars",
    .options = { [LR] = { "lr", .otherwise = 0.1 }, [MOMENTUM] = { "momentum", .otherwise = 0.9 },
                 [WEIGHT_DECAY] = { .name = "weight_decay" }, [TRUST] = { "trust_coefficient", .otherwise = 1e-3 },
                 [EPS] = { "eps", .otherwise = 1e-8 }, [MAXIMIZE] = { .name = "maximize" } },
    .states = { { "momentum_buffer", .kept_with = MOMENTUM } },
    .maximize = MAXIMIZE,
    .whole = whole,
    .gpu = "lars_whole",
};

trek_optimizer_spec trek_lars(const trek_lars_opts *opts)
{
    trek_lars_opts o = opts ? *opts : (trek_lars_opts){ 0 };
    return (trek_optimizer_spec){ .klass = &lars_class, { [LR] = o.lr, [MOMENTUM] = o.momentum, [WEIGHT_DECAY] = o.weight_decay,
                                                 [TRUST] = o.trust_coefficient, [EPS] = o.eps, [MAXIMIZE] = o.maximize } };
}
#endif
