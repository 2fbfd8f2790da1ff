/* SPDX-License-Identifier: Apache-2.0 */
/* Further activations as layers. The rules of nn/layers.h apply. The formulas are in autograd/pointwise.h and
 * autograd/ops.h; names and defaults are PyTorch's. */
#ifndef TREK_NN_ACTIVATIONS_H
#define TREK_NN_ACTIVATIONS_H

#include "nn/module.h"

TREK_BEGIN

/* Returns a layer that computes min(max(0, x), 6), as trek_relu6. */
TREK_API trek_module *trek_nn_relu6(void);

/* Returns a layer that computes the scaled exponential linear unit, as trek_selu. */
TREK_API trek_module *trek_nn_selu(void);

/* Returns a layer that computes x / (1 + |x|), as trek_softsign. */
TREK_API trek_module *trek_nn_softsign(void);

/* Returns a layer that computes x min(max(0, x + 3), 6) / 6, as trek_hardswish. */
TREK_API trek_module *trek_nn_hardswish(void);

/* Returns a layer that computes min(max(0, x + 3), 6) / 6, as trek_hardsigmoid. */
TREK_API trek_module *trek_nn_hardsigmoid(void);

/* Returns a layer that computes x - tanh(x), as trek_tanhshrink. */
TREK_API trek_module *trek_nn_tanhshrink(void);

/* Returns a layer that computes x tanh(log(1 + exp(x))), as trek_mish. */
TREK_API trek_module *trek_nn_mish(void);

/* Returns a layer that computes log(1 / (1 + exp(-x))), as trek_logsigmoid. */
TREK_API trek_module *trek_nn_logsigmoid(void);

/* Returns a layer that computes the softmax over the channels of [N, C, H, W] or [C, H, W].
 * Errors: SHAPE in forward for other inputs. */
TREK_API trek_module *trek_nn_softmax2d(void);

/* Options of trek_nn_elu_with. */
typedef struct trek_elu_opts {
    double alpha; /* the result approaches -alpha for large negative x; default 1, TREK_ZERO for 0 */
} trek_elu_opts;

/* Options of trek_nn_celu_with. An alpha of 0 is refused. */
typedef trek_elu_opts trek_celu_opts;

/* Returns a layer that computes x where x > 0 and alpha (exp(x) - 1) elsewhere, as trek_elu. */
TREK_API trek_module *trek_nn_elu(void);

/* Returns the layer of trek_nn_elu with all options. */
TREK_API trek_module *trek_nn_elu_with(const trek_elu_opts *opts);

/* Returns a layer that computes max(0, x) + min(0, alpha (exp(x / alpha) - 1)), as trek_celu. */
TREK_API trek_module *trek_nn_celu(void);

/* Returns the layer of trek_nn_celu with all options. */
TREK_API trek_module *trek_nn_celu_with(const trek_celu_opts *opts);

/* Options of trek_nn_softplus_with. */
typedef struct trek_softplus_opts {
    double beta;      /* the steepness, which is not 0; default 1 */
    double threshold; /* above this value of beta x the result is x; default 20, TREK_ZERO for 0 */
} trek_softplus_opts;

/* Returns a layer that computes log(1 + exp(beta x)) / beta, as trek_softplus. */
TREK_API trek_module *trek_nn_softplus(void);

/* Returns the layer of trek_nn_softplus with all options. */
TREK_API trek_module *trek_nn_softplus_with(const trek_softplus_opts *opts);

/* Options of trek_nn_hardtanh_with. */
typedef struct trek_hardtanh_opts {
    double low;  /* smallest result; default -1, TREK_ZERO for 0 */
    double high; /* largest result, at least low; default 1, TREK_ZERO for 0 */
} trek_hardtanh_opts;

/* Returns a layer that limits x to the range from low to high, as trek_hardtanh. */
TREK_API trek_module *trek_nn_hardtanh(void);

/* Returns the layer of trek_nn_hardtanh with all options. */
TREK_API trek_module *trek_nn_hardtanh_with(const trek_hardtanh_opts *opts);

/* Options of trek_nn_hardshrink_with and trek_nn_softshrink_with. */
typedef struct trek_shrink_opts {
    double lambda; /* half the width of the range that becomes 0; default 0.5. trek_nn_softshrink_with refuses negative numbers */
} trek_shrink_opts;

/* Returns a layer that sets elements in [-lambda, lambda] to 0, as trek_hardshrink. */
TREK_API trek_module *trek_nn_hardshrink(void);

/* Returns the layer of trek_nn_hardshrink with all options. */
TREK_API trek_module *trek_nn_hardshrink_with(const trek_shrink_opts *opts);

/* Returns a layer that moves each element towards 0 by lambda and sets elements in [-lambda, lambda] to 0, as trek_softshrink. */
TREK_API trek_module *trek_nn_softshrink(void);

/* Returns the layer of trek_nn_softshrink with all options. */
TREK_API trek_module *trek_nn_softshrink_with(const trek_shrink_opts *opts);

/* Returns a layer that replaces each element that is not above the threshold by `value`, as trek_threshold. */
TREK_API trek_module *trek_nn_threshold(double threshold, double value);

/* Options of trek_nn_rrelu_with. */
typedef struct trek_rrelu_opts {
    double lower; /* smallest slope; default 1 / 8, TREK_ZERO for 0 */
    double upper; /* largest slope, at least lower; default 1 / 3, TREK_ZERO for 0 */
} trek_rrelu_opts;

/* Returns a layer that multiplies negative elements by a slope. In training the slope is drawn for each element from U(lower,
 * upper); in eval mode it is the mean of both. */
TREK_API trek_module *trek_nn_rrelu(void);

/* Returns the layer of trek_nn_rrelu with all options. */
TREK_API trek_module *trek_nn_rrelu_with(const trek_rrelu_opts *opts);

/* Returns a layer that computes the softmax of -x along a dimension; a negative dim counts from the end. */
TREK_API trek_module *trek_nn_softmin(int dim);

/* Returns a gated linear unit, as trek_glu: it halves x along a dimension and multiplies the first half by the sigmoid of the
 * second. A negative dim counts from the end. */
TREK_API trek_module *trek_nn_glu(int dim);

/* Options of trek_nn_prelu_with. */
typedef struct trek_prelu_opts {
    int64_t parameters; /* number of slopes: 1, or one for each channel; default 1 */
    double init;        /* initial value of the slopes; default 0.25 */
    trek_dtype dtype;   /* of the parameters; default f32 */
    trek_device device; /* of the parameters; default trek_device_default() */
} trek_prelu_opts;

/* Returns a layer that multiplies negative elements by a learned slope, as trek_prelu.
 * Parameter: weight [parameters], the slopes. */
TREK_API trek_module *trek_nn_prelu(trek_device device);

/* Returns the layer of trek_nn_prelu with all options. */
TREK_API trek_module *trek_nn_prelu_with(const trek_prelu_opts *opts);

/* Options of trek_nn_swiglu_with. */
typedef struct trek_swiglu_opts {
    int64_t in;         /* features of the input; required */
    int64_t hidden;     /* features between the products; required */
    int64_t out;        /* features of the result; default in */
    bool bias;          /* adds biases to the three linear layers */
    trek_dtype dtype;   /* of the parameters; default f32 */
    trek_device device; /* of the parameters; default trek_device_default() */
} trek_swiglu_opts;

/* Returns the feed-forward part of Llama (Shazeer 2020), which computes down_proj(silu(gate_proj(x)) up_proj(x)).
 * Shapes: x [..., in] -> [..., out].
 * Parameters: those of the linear layers gate_proj, up_proj and down_proj, without biases unless .bias is set. */
TREK_API trek_module *trek_nn_swiglu(int64_t in, int64_t hidden, trek_device device);

/* Returns the layer of trek_nn_swiglu with all options. */
TREK_API trek_module *trek_nn_swiglu_with(const trek_swiglu_opts *opts);

TREK_END

#endif
