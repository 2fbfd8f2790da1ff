/* SPDX-License-Identifier: Apache-2.0 */
/* Functions of one number that are kinds of one op (pointwise), with its numbers s and t. */
#ifndef TREK_TENSOR_POINTWISE_H
#define TREK_TENSOR_POINTWISE_H

#define TREK_POINTWISE(X)                                                                                                        \
    /* activations */                                                                                                            \
    X(hardshrink)  /* |x| > s ? x : 0 */                                                                                         \
    X(hardsigmoid) /* min(max(x + 3, 0), 6) / 6 */                                                                               \
    X(hardtanh)    /* min(max(x, s), t) */                                                                                       \
    X(hardswish)   /* x hardsigmoid(x) */                                                                                        \
    X(logsigmoid)  /* log(1 / (1 + e^-x)) */                                                                                     \
    X(selu)        /* 1.0507.. (x > 0 ? x : 1.6732.. (e^x - 1)) */                                                               \
    X(celu)        /* x > 0 ? x : s (e^(x / s) - 1) */                                                                           \
    X(elu)         /* x > 0 ? x : s (e^x - 1) */                                                                                 \
    X(leaky_relu)  /* x > 0 ? x : s x */                                                                                         \
    X(mish)        /* x tanh(softplus(x)) */                                                                                     \
    X(softshrink)  /* x > s ? x - s : x < -s ? x + s : 0 */                                                                      \
    X(softsign)    /* x / (1 + |x|) */                                                                                           \
    X(tanhshrink)  /* x - tanh(x) */                                                                                             \
    X(threshold)   /* x > s ? x : t */                                                                                           \
    /* Inverses and special functions. */                                                                                        \
    X(asinh)                                                                                                                     \
    X(acosh) X(atanh) X(erfc) X(erfinv) X(lgamma) X(exp2) /* 2^x */                                                              \
        X(polygamma)                                      /* of order s */                                                       \
        X(i0) X(i0e) X(i1) X(i1e)                         /* Bessel functions, and these times e^-|x| */                      \
        X(log_ndtr)                                       /* log of the area under the normal density up to x */

typedef enum trek_pointwise_kind {
#define TREK_POINTWISE_KIND(name) TREK_POINTWISE_##name,
    TREK_POINTWISE(TREK_POINTWISE_KIND)
#undef TREK_POINTWISE_KIND
    TREK_POINTWISE_KINDS
} trek_pointwise_kind;

#define TREK_SELU_SCALE 1.0507009873554804934193349852946
#define TREK_SELU_ALPHA 1.6732632423543772848170429916717

#endif
