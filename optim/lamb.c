/* SPDX-License-Identifier: Apache-2.0 */
/* LAMB: Adam whose step is scaled to the norm of the parameter (You and others, "Large batch optimization for deep
 * learning: training BERT in 76 minutes", 2020). */
#include "optim/class_internal.h"
#include "optim/optimizers.h"
#include "tensor/update.h"

enum { LR, BETA1, BETA2, EPS, WEIGHT_DECAY, MAXIMIZE };
enum { MEAN, SQUARE, WAY }; /* states; the direction is in scratch memory */
enum { N_WEIGHT, N_FAR, N_BETA2, N_REST2, N_MEAN, N_SQUARE, N_EPS, N_DECAY, N_RATE };
enum { RATIO = 2 }; /* among the corrections, after those of beta1 and beta2: of a GPU's parameter */

TREK_UPDATE_NUMBERS(lamb)
{
    const double *o = s->options;
    n[N_FAR] = o[BETA1] <= 0.5; /* as in Adam */
    n[N_WEIGHT] = n[N_FAR] != 0 ? -o[BETA1] : 1 - o[BETA1];
    n[N_BETA2] = o[BETA2];
    n[N_REST2] = 1 - o[BETA2];
    n[N_MEAN] = 1 / s->correction[0];
    n[N_SQUARE] = 1 / sqrt(s->correction[1]);
    n[N_EPS] = o[EPS];
    n[N_DECAY] = o[WEIGHT_DECAY];
    return 0;
}

/* In precision T. */
#define LAMB_WAY(mean, square) ((mean) * n[N_MEAN] / (trek_root(square) * n[N_SQUARE] + n[N_EPS]))

TREK_UPDATE_ELEMENT(lamb, 3, 7, 1, {
    const T tiny = n[N_EPS] > 0 ? TREK_LEAST : 0;
    T mean = (n[N_FAR] != 0 ? d : s[MEAN]) + n[N_WEIGHT] * (d - s[MEAN]);
    T square = s[SQUARE] * n[N_BETA2] + n[N_REST2] * d * d;
    mean *= (T)(trek_magnitude(mean) >= tiny); /* as in Adam */
    square *= (T)(square >= tiny);
    T way = LAMB_WAY(mean, square);
    s[WAY] = n[N_DECAY] != 0 ? way + n[N_DECAY] * *x : way;
    s[MEAN] = mean;
    s[SQUARE] = square;
})

/* Returns the norm of the parameter over that of its direction, or 1 if either is 0. NaN stays NaN. */
TREK_ON_BOTH double lamb_ratio(double param, double way) { return param == 0 || way == 0 ? 1 : param / way; }

#ifdef TREK_PLUGIN
/* The GPU keeps no direction: it is computed twice, once to be measured. */
TREK_UPDATE_NUMBERS(lamb_last)
{
    lamb_numbers(s, n);
    n[N_RATE] = -s->options[LR] * s->correction[RATIO];
    return 0;
}

TREK_UPDATE_ELEMENT(lamb_last, 2, 3, 1, {
    T way = LAMB_WAY(s[MEAN], s[SQUARE]);
    *x = *x + n[N_RATE] * (n[N_DECAY] != 0 ? way + n[N_DECAY] * *x : way);
})

struct lamb_measures {
    typedef lamb_rule rule;
    static const int stored = 2, place = RATIO;
    static const bool zeroes = true;
    template <typename T> static __device__ void sums(T x, T, const T *s, double *param, double *way)
    {
        *param += (double)x * (double)x;
        *way += (double)s[WAY] * (double)s[WAY];
    }
    static __device__ double number(const trek_update_slice &, double param, double way)
    {
        return lamb_ratio(sqrt(param), sqrt(way));
    }
};
TREK_GPU_WHOLE(lamb_whole, (trek_measured_apply<lamb_measures, lamb_last_rule>))
#endif

#ifdef TREK_OPTIMIZER_HOME
#include "optim/whole.h"

static void whole(trek_dtype dtype, const trek_update_whole *w)
{
    trek_update_slice s = trek_whole_slice(w);
    s.state[WAY] = w->workspace;
    trek_whole_elements(lamb_update, dtype, &s);
    double ratio = lamb_ratio(trek_whole_norm(dtype, s.param, s.count), trek_whole_norm(dtype, w->workspace, s.count));
    trek_whole_step(dtype, s.param, w->workspace, s.count, 1, -s.options[LR] * ratio);
}

static size_t workspace(trek_dtype dtype, trek_shape shape, const double *options)
{
    (void)options;
    return (size_t)trek_shape_numel(shape) * trek_dtype_size(dtype);
}

static const trek_optimizer_class lamb_class = {
    .name = "lamb",
    .options = { [LR] = { "lr", .otherwise = 1e-3 }, [BETA1] = { "beta1", 0.9, TREK_OPTION_RANGE_FRACTION, .corrected = true },
                 [BETA2] = { "beta2", 0.999, TREK_OPTION_RANGE_FRACTION, .corrected = true },
                 [EPS] = { "eps", .otherwise = 1e-6 },
                 [WEIGHT_DECAY] = { .name = "weight_decay" }, [MAXIMIZE] = { .name = "maximize" } },
    .states = { [MEAN] = { .name = "exp_avg" }, [SQUARE] = { .name = "exp_avg_sq" } },
    .maximize = MAXIMIZE,
    .by_step = true,
    .whole = whole,
    .workspace = workspace,
    .gpu = "lamb_whole",
};

trek_optimizer_spec trek_lamb(const trek_lamb_opts *opts)
{
    trek_lamb_opts o = opts ? *opts : (trek_lamb_opts){ 0 };
    return (trek_optimizer_spec){ .klass = &lamb_class, { [LR] = o.lr, [BETA1] = o.beta1, [BETA2] = o.beta2, [EPS] = o.eps,
                                                 [WEIGHT_DECAY] = o.weight_decay, [MAXIMIZE] = o.maximize } };
}
#endif
