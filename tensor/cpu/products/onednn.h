/* SPDX-License-Identifier: Apache-2.0 */
/* Convolutions by oneDNN, where it is clearly faster than loops of our own. */
#ifndef TREK_TENSOR_CPU_PRODUCTS_ONEDNN_H
#define TREK_TENSOR_CPU_PRODUCTS_ONEDNN_H

#include "tensor/cpu/conv/conv.h"
#ifdef TREK_HAVE_ONEDNN
#include <oneapi/dnnl/dnnl_version.h>
#endif

typedef enum trek_onednn_pass { TREK_ONEDNN_FORWARD, TREK_ONEDNN_INPUT_GRAD, TREK_ONEDNN_WEIGHT_GRAD } trek_onednn_pass;

#if defined(TREK_HAVE_ONEDNN) && DNNL_VERSION_MAJOR == 2 /* 3 has no operation descriptors */
#define TREK_ONEDNN_CONV 1
/* f32, and bf16, for CPUs that multiply pairs of it fast; many channels, much work. Cheap; touches nothing of oneDNN. */
bool trek_onednn_conv_suits(const trek_conv *c, trek_onednn_pass pass);
/* The same where x and y lie channels last: also 1 x 1, and fewer channels, whose other ways copy both. */
bool trek_onednn_conv_suits_last(const trek_conv *c);
/* last: x and y lie channels last; weights are row-major. first, second -> result: x, weight -> y; dy, weight -> dx; dy, x ->
 * dweight; a bias is of f32.
 * UNSUPPORTED, without an error set, where oneDNN cannot: take another way. */
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
