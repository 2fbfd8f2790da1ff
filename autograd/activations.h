/* SPDX-License-Identifier: Apache-2.0 */
/* The activations that most models use; autograd/pointwise.h has further ones. The rules of autograd/ops.h, which includes
 * this header, hold. */
#ifndef TREK_AUTOGRAD_ACTIVATIONS_H
#define TREK_AUTOGRAD_ACTIVATIONS_H

#include "autograd/var.h"

TREK_BEGIN

/* -- element-wise, any shape. The result has x's shape and, on the CPU, x's layout in memory. -- */
/* Computes max(x, 0). Dtypes: numbers, not bool. A NaN stays NaN, and the derivative at 0 is 0. */
TREK_API trek_var *trek_relu(trek_var *x);
/* Computes x Phi(x), where Phi is the normal cumulative distribution function, exactly, with erf. Dtypes: floating. At the
 * infinities the result is the limit, where PyTorch gives NaN. */
TREK_API trek_var *trek_gelu(trek_var *x);
/* Computes x / (1 + e^-x), also known as swish. Dtypes: floating. */
TREK_API trek_var *trek_silu(trek_var *x);
/* Computes the hyperbolic tangent of x. Integers give f32. */
TREK_API trek_var *trek_tanh(trek_var *x);
/* Computes the logistic function 1 / (1 + e^-x). Integers give f32. */
TREK_API trek_var *trek_sigmoid(trek_var *x);

/* -- along a dimension -- */
/* Computes e^x / sum of e^x along dim. Dtypes: floating, also if x has no elements (torch then accepts other dtypes). */
TREK_API trek_var *trek_softmax(trek_var *x, int dim);
/* Computes log(softmax(x)) along dim in one precise step. Dtypes: floating, as in trek_softmax. */
TREK_API trek_var *trek_log_softmax(trek_var *x, int dim);

TREK_END

#endif
