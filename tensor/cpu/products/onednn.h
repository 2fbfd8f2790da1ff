/* SPDX-License-Identifier: Apache-2.0 */
/* Convolutions by oneDNN, if it is clearly faster than trek's own loops. */
#ifndef TREK_TENSOR_CPU_PRODUCTS_ONEDNN_H
#define TREK_TENSOR_CPU_PRODUCTS_ONEDNN_H

#include "tensor/cpu/conv/conv.h"
#ifdef TREK_HAVE_ONEDNN
#include <oneapi/dnnl/dnnl_version.h>
#endif

typedef enum trek_onednn_pass { TREK_ONEDNN_FORWARD, TREK_ONEDNN_INPUT_GRAD, TREK_ONEDNN_WEIGHT_GRAD } trek_onednn_pass;

#if defined(TREK_HAVE_ONEDNN) && DNNL_VERSION_MAJOR == 2 /* version 3 has no operation descriptors */
#define TREK_ONEDNN_CONV 1
/* Returns whether oneDNN suits: f32, and bf16 on CPUs that multiply pairs of it fast; many channels, much work. It is
 * cheap and does not call oneDNN. */
bool trek_onednn_conv_suits(const trek_conv *c, trek_onednn_pass pass);
/* Returns whether it suits x and y that are stored channels last: also 1 x 1, and fewer channels, because other
 * methods copy both. */
bool trek_onednn_conv_suits_last(const trek_conv *c);
/* last: x and y are stored channels last; weights are row-major. first, second -> result is x, weight -> y; dy,
 * weight -> dx; or dy, x -> dweight. A bias is f32. Returns UNSUPPORTED, without setting an error, if oneDNN cannot
 * do it; then use another method. */
trek_status trek_onednn_conv(const trek_conv *c, trek_onednn_pass pass, bool last, const void *first, const void *second,
                             const void *bias, void *result);
#else
static inline bool trek_onednn_conv_suits(const trek_conv *c, trek_onednn_pass pass)
{
    (void)c, (void)pass;
    return false;
}
static inline bool trek_onednn_conv_suits_last(const trek_conv *c)
{
    (void)c;
    return false;
}
static inline trek_status trek_onednn_conv(const trek_conv *c, trek_onednn_pass pass, bool last, const void *first,
                                           const void *second, const void *bias, void *result)
{
    (void)c, (void)pass, (void)last, (void)first, (void)second, (void)bias, (void)result;
    return TREK_ERR_UNSUPPORTED;
}
#endif

#endif
