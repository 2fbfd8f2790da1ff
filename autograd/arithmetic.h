/* SPDX-License-Identifier: Apache-2.0 */
/* Arithmetic: of elements, and products of matrices. The rules of autograd/ops.h, which includes this header, apply. */
#ifndef TREK_AUTOGRAD_ARITHMETIC_H
#define TREK_AUTOGRAD_ARITHMETIC_H

#include "autograd/var.h"

TREK_BEGIN

/* -- element-wise, any shape. The result has x's shape and, on the CPU, x's layout in memory. Where a comment says that integers
 *    give f32, bool does so, too. -- */
/* Computes -x. Dtypes: numbers, not bool. */
TREK_API trek_var *trek_neg(trek_var *x);
/* Computes |x|. Dtypes: numbers, not bool. The derivative at 0 is 0. */
TREK_API trek_var *trek_abs(trek_var *x);
/* Computes e^x. Integers give f32. */
TREK_API trek_var *trek_exp(trek_var *x);
/* Computes the natural logarithm of x. Integers give f32. */
TREK_API trek_var *trek_log(trek_var *x);
/* Computes the square root of x. Integers give f32. */
TREK_API trek_var *trek_sqrt(trek_var *x);

/* -- two inputs, which broadcast and are promoted by PyTorch's table -- */
/* Computes x + y. For two bools it is "or". */
TREK_API trek_var *trek_add(trek_var *x, trek_var *y);
/* Computes x - y. Fails with DTYPE if an input is bool. */
TREK_API trek_var *trek_sub(trek_var *x, trek_var *y);
/* Computes x times y. For two bools it is "and". */
TREK_API trek_var *trek_mul(trek_var *x, trek_var *y);
/* Computes x / y. Integers give f32. */
TREK_API trek_var *trek_div(trek_var *x, trek_var *y);

/* -- with a number. An integer x stays an integer if the number is whole, and gives f32 if it has a fraction. They fail
 *    with ARGUMENT if x has an integer dtype and the number is whole but beyond i64. -- */
/* Computes x + value. A bool x gives i64 or f32. */
TREK_API trek_var *trek_add_scalar(trek_var *x, double value);
/* Computes x times value. A bool x gives i64 or f32. */
TREK_API trek_var *trek_mul_scalar(trek_var *x, double value);
/* Computes x^value. A bool x gives i64 or f32. Derivatives are those of trek_pow. Fails with ARGUMENT if x has an integer dtype
 * and value is a negative whole number, or if x's floating dtype cannot hold value (1e38 in f16). */
TREK_API trek_var *trek_pow_scalar(trek_var *x, double value);

/* -- products of matrices. Both inputs have one dtype; otherwise the call fails with DTYPE, and one of them must be cast.
 *    Autocast does that by itself. -- */
/* Computes matrix products as torch.matmul: [..., m, k] x [..., k, n] gives [..., m, n], and batch dimensions broadcast. A 1-D
 * operand is a row on the left and a column on the right. Dtypes: all but bool (torch accepts bool if there are no elements). */
TREK_API trek_var *trek_matmul(trek_var *x, trek_var *y);

TREK_END

#endif
