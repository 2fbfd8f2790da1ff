/* SPDX-License-Identifier: Apache-2.0 */
/* Further activations as layers; formulas in autograd/pointwise.h and ops.h, names and defaults PyTorch's. A field of options
 * left 0 means its default, TREK_ZERO is 0. NULL and ARGUMENT where the function refuses the number. Part of nn/layers.h. */
#ifndef TREK_NN_ACTIVATIONS_H
#define TREK_NN_ACTIVATIONS_H

#include "nn/module.h"

TREK_BEGIN

/* Without parameters, of any shape but for the last one. The caller's, or NULL and MEMORY. */
TREK_API trek_module *trek_nn_relu6(void);
TREK_API trek_module *trek_nn_selu(void);
TREK_API trek_module *trek_nn_softsign(void);
TREK_API trek_module *trek_nn_hardswish(void);
TREK_API trek_module *trek_nn_hardsigmoid(void);
TREK_API trek_module *trek_nn_tanhshrink(void);
TREK_API trek_module *trek_nn_mish(void);
TREK_API trek_module *trek_nn_logsigmoid(void);
TREK_API trek_module *trek_nn_softmax2d(void); /* over the channels of [N, C, H, W] or [C, H, W]; SHAPE */

/* Of up to two numbers. */
typedef struct trek_elu_opts {
    double alpha;             /* default 1 */
} trek_elu_opts;
typedef trek_elu_opts trek_celu_opts; /* the same number */
TREK_API trek_module *trek_nn_elu(void);
TREK_API trek_module *trek_nn_elu_with(const trek_elu_opts *opts);
TREK_API trek_module *trek_nn_celu(void);
TREK_API trek_module *trek_nn_celu_with(const trek_celu_opts *opts);

typedef struct trek_softplus_opts {
    double beta;              /* default 1 */
    double threshold;         /* default 20: x itself where beta x is above it */
} trek_softplus_opts;
/* log(1 + exp(beta x)) / beta. */
TREK_API trek_module *trek_nn_softplus(void);
TREK_API trek_module *trek_nn_softplus_with(const trek_softplus_opts *opts);

typedef struct trek_hardtanh_opts {
    double low, high;         /* default -1, 1 */
} trek_hardtanh_opts;
/* x within low and high. */
TREK_API trek_module *trek_nn_hardtanh(void);
TREK_API trek_module *trek_nn_hardtanh_with(const trek_hardtanh_opts *opts);

typedef struct trek_shrink_opts {
    double lambda;            /* default 0.5 */
} trek_shrink_opts;
/* trek_hardshrink and trek_softshrink: 0 within lambda of 0; the second one moves the rest towards 0. */
TREK_API trek_module *trek_nn_hardshrink(void);
TREK_API trek_module *trek_nn_hardshrink_with(const trek_shrink_opts *opts);
TREK_API trek_module *trek_nn_softshrink(void);
TREK_API trek_module *trek_nn_softshrink_with(const trek_shrink_opts *opts);

/* `value` where x is not above the threshold. */
TREK_API trek_module *trek_nn_threshold(double threshold, double value);

typedef struct trek_rrelu_opts {
    double lower, upper;      /* default 1 / 8, 1 / 3 */
} trek_rrelu_opts;
/* In training the slope below 0 is drawn for each element; in eval it is their mean. */
TREK_API trek_module *trek_nn_rrelu(void);
TREK_API trek_module *trek_nn_rrelu_with(const trek_rrelu_opts *opts);

/* Along a dimension (TREK_ZERO for 0). */
TREK_API trek_module *trek_nn_softmin(int dim);
TREK_API trek_module *trek_nn_glu(int dim);

typedef struct trek_prelu_opts {
    int64_t parameters;       /* 1 or the channels; default 1 */
    double init;              /* default 0.25 */
    trek_dtype dtype;         /* default f32 */
    trek_device device;
} trek_prelu_opts;
/* weight [parameters], the slope below 0. */
TREK_API trek_module *trek_nn_prelu(trek_device device);
TREK_API trek_module *trek_nn_prelu_with(const trek_prelu_opts *opts);

typedef struct trek_swiglu_opts {
    int64_t in, hidden;       /* required */
    int64_t out;              /* default in */
    bool bias;
    trek_dtype dtype;         /* default f32 */
    trek_device device;
} trek_swiglu_opts;
/* The feed-forward part of Llama (Shazeer 2020): down_proj(silu(gate_proj(x)) up_proj(x)), [..., in] -> [..., out]. */
TREK_API trek_module *trek_nn_swiglu(int64_t in, int64_t hidden, trek_device device);
TREK_API trek_module *trek_nn_swiglu_with(const trek_swiglu_opts *opts);

TREK_END

#endif
