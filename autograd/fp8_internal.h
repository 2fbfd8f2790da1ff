/* SPDX-License-Identifier: Apache-2.0 */
/* A linear layer's products with 8-bit operands. */
#ifndef TREK_AUTOGRAD_FP8_INTERNAL_H
#define TREK_AUTOGRAD_FP8_INTERNAL_H

#include "autograd/var.h"

/* How the operands are scaled. */
typedef struct trek_fp8_scaling {
    trek_var *record;         /* magnitudes of past steps (tensor/fp8.h), i32 [3, 1 + H]; NULL if each tensor's own are used */
    int margin;
    bool training;            /* magnitudes enter the record; otherwise its scales are used unchanged for the input, and the
                               * weight is scaled by its own magnitude */
    bool roll;                /* a step of the record begins */
    bool calibrates;          /* scales are not known: operands stay in bf16, and their magnitudes enter the record */
} trek_fp8_scaling;

/* Returns x W^T + bias in bf16. x [..., in] and W [out, in], in f32 or bf16, are rounded to E4M3, and in backward the
 * gradient to E5M2; products are accumulated in f32. bias [out], which may be NULL, is added as bf16. There are only
 * first-order gradients, and those of x and W have their dtypes. */
trek_var *trek_fp8_linear(trek_var *x, trek_var *weight, trek_var *bias, const trek_fp8_scaling *scaling);

#endif
