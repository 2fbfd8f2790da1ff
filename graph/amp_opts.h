/* SPDX-License-Identifier: Apache-2.0 */
/* Options of mixed precision: graph/amp.h. */
#ifndef TREK_GRAPH_AMP_OPTS_H
#define TREK_GRAPH_AMP_OPTS_H

#include "nn/fp8_opts.h"
#include "optim/scaler_opts.h"
#include "tensor/types.h"

TREK_BEGIN

/* How mixed precision computes the matrix products of linear layers. */
typedef enum trek_amp_products {
    TREK_AMP_PRODUCTS_DEFAULT, /* in trek_amp_opts.dtype */
    TREK_AMP_PRODUCTS_FP8,     /* with operands of 8 bits (nn/fp8.h); all other ops run in bf16 */
} trek_amp_products;

/* Options of mixed precision: trek_graph_set_amp. */
typedef struct trek_amp_opts {
    /* TREK_BF16 or TREK_F16: the forward runs under autocast in this dtype. A 16-bit result is converted to f32, so that a loss
     * that the program computes from it is f32. Default TREK_F32: no autocast. */
    trek_dtype dtype;
    int scaling;                  /* loss scaling: 0 (default) only with TREK_F16, 1 always, TREK_OFF never */
    trek_grad_scaler_opts scaler; /* options of the scaler of the loss; the field .no_scaling is not used */
    trek_amp_products products; /* with TREK_AMP_PRODUCTS_FP8, .dtype must be TREK_BF16 or left out, which then means TREK_BF16 */
    trek_fp8_opts fp8; /* used with TREK_AMP_PRODUCTS_FP8: options of trek_fp8_enable, which is called for the graph's modules */
} trek_amp_opts;

TREK_END

#endif
