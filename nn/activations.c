/* SPDX-License-Identifier: Apache-2.0 */
/* Activations as layers: a table of functions, and the layers that have options or parameters. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "autograd/ops.h"
#include "autograd/var_internal.h"
#include "nn/layers_internal.h"
#include "nn/module_internal.h"
#include "tensor/creation.h"
#include "tensor/shapes.h"

/* --- without numbers ----------------------------------------------------------------------------- */

#define PLAIN(kind)                                                                                                              \
    static trek_var *kind##_forward(trek_module *self, trek_var *x) { return (void)self, trek_##kind(x); }                       \
    static const trek_module_class kind##_class = {                                                                              \
        .name = #kind, .size = sizeof(trek_module), .forward = kind##_forward, .rowwise = true                                   \
    };                                                                                                                           \
    trek_module *trek_nn_##kind(void) { return trek_module_new(&kind##_class); }
PLAIN(relu6)
PLAIN(selu)
PLAIN(softsign)
PLAIN(hardswish)
PLAIN(hardsigmoid)
PLAIN(tanhshrink)
PLAIN(mish)
PLAIN(logsigmoid)

static trek_var *softmax2d_forward(trek_module *self, trek_var *x)
{
    char text[TREK_SHAPE_TEXT];
    (void)self;
    if (trek_var_ndim(x) == 3 || trek_var_ndim(x) == 4)
        return trek_softmax(x, -3);
    return trek_fail_null(TREK_ERR_SHAPE, "softmax2d: input: %s; must be [N, C, H, W] or [C, H, W]",
                          trek_shape_format(trek_var_shape(x), text, sizeof text));
}

static const trek_module_class softmax2d_class = { .name = "softmax2d", .size = sizeof(trek_module),
                                                   .forward = softmax2d_forward };
trek_module *trek_nn_softmax2d(void) { return trek_module_new(&softmax2d_class); }

/* --- of one or two numbers -------------------------------------------------------------------------- */

typedef struct numbers_layer {
    trek_module base;
    double first, second;
} numbers_layer;

static void describe_first(const trek_module *self, char *text, size_t size)
{
    char number[32];
    snprintf(text, size, "%s", trek_layer_number(((const numbers_layer *)self)->first, number));
}

static void describe_both(const trek_module *self, char *text, size_t size)
{
    const numbers_layer *m = (const numbers_layer *)self;
    char first[32], second[32];
    snprintf(text, size, "%s, %s", trek_layer_number(m->first, first), trek_layer_number(m->second, second));
}

static trek_module *numbers_new(const trek_module_class *klass, double first, double second)
{
    trek_module *base = trek_module_new(klass);
    if (base)
        ((numbers_layer *)base)->first = first, ((numbers_layer *)base)->second = second;
    return base;
}

#define NUMBERS(kind, describes, call)                                                                 \
    static trek_var *kind##_forward(trek_module *self, trek_var *x)                                    \
    {                                                                                                  \
        const numbers_layer *m = (const numbers_layer *)self;                                          \
        return call;                                                                                   \
    }                                                                                                  \
    static const trek_module_class kind##_class = { .name = #kind, .size = sizeof(numbers_layer), .forward = kind##_forward, \
                                                    .describe = describes };
NUMBERS(elu, describe_first, trek_elu(x, m->first))
NUMBERS(celu, describe_first, trek_celu(x, m->first))
NUMBERS(softplus, describe_both, trek_softplus(x, m->first, m->second))
NUMBERS(hardtanh, describe_both, trek_hardtanh(x, m->first, m->second))
NUMBERS(hardshrink, describe_first, trek_hardshrink(x, m->first))
NUMBERS(softshrink, describe_first, trek_softshrink(x, m->first))
NUMBERS(threshold, describe_both, trek_threshold(x, m->first, m->second))
NUMBERS(rrelu, describe_both, trek_rrelu(x, m->first, m->second, self->own->training))
NUMBERS(softmin, describe_first, trek_softmin(x, (int)m->first))
NUMBERS(glu, describe_first, trek_glu(x, (int)m->first))

static trek_module *refused(const char *name, const char *what, double value, const char *allowed)
{
    char number[32];
    return trek_fail_null(TREK_ERR_ARGUMENT, "%s: %s: %s; must be %s", name, what, trek_layer_number(value, number), allowed);
}

trek_module *trek_nn_elu_with(const trek_elu_opts *opts)
{
    return numbers_new(&elu_class, trek_option(opts ? opts->alpha : 0, 1), 0);
}
trek_module *trek_nn_elu(void) { return trek_nn_elu_with(NULL); }

trek_module *trek_nn_celu_with(const trek_celu_opts *opts)
{
    double alpha = trek_option(opts ? opts->alpha : 0, 1);
    return alpha == 0 ? refused("celu", "alpha", alpha, "another number") : numbers_new(&celu_class, alpha, 0);
}
trek_module *trek_nn_celu(void) { return trek_nn_celu_with(NULL); }

trek_module *trek_nn_softplus_with(const trek_softplus_opts *opts)
{
    double beta = trek_option(opts ? opts->beta : 0, 1);
    return beta == 0 ? refused("softplus", "beta", beta, "another number")
                     : numbers_new(&softplus_class, beta, trek_option(opts ? opts->threshold : 0, 20));
}
trek_module *trek_nn_softplus(void) { return trek_nn_softplus_with(NULL); }

trek_module *trek_nn_hardtanh_with(const trek_hardtanh_opts *opts)
{
    double low = trek_option(opts ? opts->low : 0, -1), high = trek_option(opts ? opts->high : 0, 1);
    return low <= high ? numbers_new(&hardtanh_class, low, high) : refused("hardtanh", "high", high, "at least low");
}
trek_module *trek_nn_hardtanh(void) { return trek_nn_hardtanh_with(NULL); }

trek_module *trek_nn_hardshrink_with(const trek_shrink_opts *opts)
{
    return numbers_new(&hardshrink_class, trek_option(opts ? opts->lambda : 0, 0.5), 0);
}
trek_module *trek_nn_hardshrink(void) { return trek_nn_hardshrink_with(NULL); }

trek_module *trek_nn_softshrink_with(const trek_shrink_opts *opts)
{
    double lambda = trek_option(opts ? opts->lambda : 0, 0.5);
    return lambda >= 0 ? numbers_new(&softshrink_class, lambda, 0) : refused("softshrink", "lambda", lambda, "at least 0");
}
trek_module *trek_nn_softshrink(void) { return trek_nn_softshrink_with(NULL); }

trek_module *trek_nn_threshold(double threshold, double value)
{
    return numbers_new(&threshold_class, threshold == TREK_ZERO ? 0 : threshold, value == TREK_ZERO ? 0 : value);
}

trek_module *trek_nn_rrelu_with(const trek_rrelu_opts *opts)
{
    double lower = trek_option(opts ? opts->lower : 0, 1.0 / 8), upper = trek_option(opts ? opts->upper : 0, 1.0 / 3);
    return lower <= upper ? numbers_new(&rrelu_class, lower, upper) : refused("rrelu", "upper", upper, "at least lower");
}
trek_module *trek_nn_rrelu(void) { return trek_nn_rrelu_with(NULL); }

trek_module *trek_nn_softmin(int dim) { return numbers_new(&softmin_class, dim == (int)TREK_ZERO ? 0 : dim, 0); }
trek_module *trek_nn_glu(int dim) { return numbers_new(&glu_class, dim == (int)TREK_ZERO ? 0 : dim, 0); }

/* --- a learned slope --------------------------------------------------------------------------------- */

typedef struct prelu_layer {
    trek_module base;
    trek_var *weight;
    double init;
} prelu_layer;

static trek_var *prelu_forward(trek_module *self, trek_var *x) { return trek_prelu(x, ((prelu_layer *)self)->weight); }

static trek_status prelu_reset(trek_module *self)
{
    return trek_init_constant(((prelu_layer *)self)->weight, ((prelu_layer *)self)->init);
}

static void prelu_describe(const trek_module *self, char *text, size_t size)
{
    snprintf(text, size, "%" PRId64, trek_var_numel(((const prelu_layer *)self)->weight));
}

static const trek_module_class prelu_class = { .name = "prelu", .size = sizeof(prelu_layer), .forward = prelu_forward,
                                               .reset = prelu_reset, .describe = prelu_describe };

trek_module *trek_nn_prelu_with(const trek_prelu_opts *opts)
{
    trek_prelu_opts o = opts ? *opts : (trek_prelu_opts){ 0 };
    o.parameters = o.parameters ? o.parameters : 1;
    if (trek_layer_positive("prelu", "parameters", o.parameters) != TREK_OK)
        return NULL;
    trek_module *base = trek_module_new(&prelu_class);
    if (!base)
        return NULL;
    ((prelu_layer *)base)->init = trek_option(o.init, 0.25);
    trek_module_param(base, "weight", offsetof(prelu_layer, weight),
                      trek_tensor_empty(trek_dims(o.parameters), o.dtype, o.device));
    return trek_layer_finish(base);
}

trek_module *trek_nn_prelu(trek_device device) { return trek_nn_prelu_with(&(trek_prelu_opts){ .device = device }); }

/* --- a gated feed-forward part ------------------------------------------------------------------------ */

typedef struct swiglu_layer {
    trek_module base;
    trek_module *gate, *up, *down;
} swiglu_layer;

static trek_var *swiglu_forward(trek_module *self, trek_var *x)
{
    swiglu_layer *m = (swiglu_layer *)self;
    trek_var *gate = trek_forward(m->gate, x), *up = trek_forward(m->up, x);
    return trek_forward(m->down, trek_apply_silu_mul(up, gate));
}

static const trek_module_class swiglu_class = { .name = "swiglu", .size = sizeof(swiglu_layer), .forward = swiglu_forward };

trek_module *trek_nn_swiglu_with(const trek_swiglu_opts *opts)
{
    if (!opts)
        return trek_fail_null(TREK_ERR_ARGUMENT, "swiglu: options: NULL; they must be given");
    int64_t out = opts->out ? opts->out : opts->in;
    if (trek_layer_positive("swiglu", "in", opts->in) != TREK_OK ||
        trek_layer_positive("swiglu", "hidden", opts->hidden) != TREK_OK ||
        trek_layer_positive("swiglu", "out", out) != TREK_OK)
        return NULL;
    trek_module *base = trek_module_new(&swiglu_class);
    if (!base)
        return NULL;
    trek_linear_opts wide = { .in = opts->in, .out = opts->hidden, .no_bias = !opts->bias, .dtype = opts->dtype,
                              .device = opts->device };
    trek_linear_opts narrow = wide;
    narrow.in = opts->hidden, narrow.out = out;
    trek_module_add(base, "gate_proj", offsetof(swiglu_layer, gate), trek_nn_linear_with(&wide));
    trek_module_add(base, "up_proj", offsetof(swiglu_layer, up), trek_nn_linear_with(&wide));
    trek_module_add(base, "down_proj", offsetof(swiglu_layer, down), trek_nn_linear_with(&narrow));
    return trek_module_check(base);
}

trek_module *trek_nn_swiglu(int64_t in, int64_t hidden, trek_device device)
{
    return trek_nn_swiglu_with(&(trek_swiglu_opts){ .in = in, .hidden = hidden, .device = device });
}
