/* SPDX-License-Identifier: Apache-2.0 */
/* Variables, the one type of value that ops compute with. A variable holds a tensor and, if it needs a gradient, its position on
 * the calling thread's tape.
 *
 * Results of ops belong to the innermost open scope; what must outlive the scope is retained. Ops never consume their arguments.
 * An op that is given NULL returns NULL. */
#ifndef TREK_AUTOGRAD_VAR_H
#define TREK_AUTOGRAD_VAR_H

#include <stdio.h>

#include "tensor/scope.h"
#include "tensor/tensor.h"

TREK_BEGIN

/* A variable. */
typedef struct trek_var trek_var;

/* Makes a leaf over `tensor`, which is retained and shared, not copied. The caller owns the leaf and gives it back by
 * trek_var_release. Fails with DTYPE if requires_grad is true and the dtype is not floating, and with MEMORY. */
TREK_API trek_var *trek_var_new(trek_tensor *tensor, bool requires_grad);
/* Makes a leaf without a gradient over `tensor`, which is retained and shared, not copied. The innermost scope owns the leaf. It
 * is for constants inside expressions. */
TREK_API trek_var *trek_var_constant(trek_tensor *tensor);
/* Makes a leaf without a gradient and takes over the caller's reference of the tensor, also on failure, so that
 * trek_var_from(trek_tensor_ones(...)) leaks nothing. The innermost scope owns the leaf. */
TREK_API trek_var *trek_var_from(trek_tensor *tensor);

/* Adds a reference to the variable and returns it. NULL is accepted. */
TREK_API trek_var *trek_var_retain(trek_var *var);
/* Drops a reference to the variable and frees it with the last one. NULL is accepted. */
TREK_API void trek_var_release(trek_var *var);

/* Returns the variable's tensor. The tensor is borrowed and valid as long as the variable. */
TREK_API trek_tensor *trek_var_data(const trek_var *var);
/* Returns the gradient that a leaf has accumulated, or NULL if it has none so far. The gradient is borrowed and has the
 * variable's dtype. A 16-bit parameter of an optimizer accumulates its gradient in f32. */
TREK_API trek_var *trek_var_grad(const trek_var *var);

/* Returns the variable's shape, which has no dimensions if var is NULL. */
TREK_API trek_shape trek_var_shape(const trek_var *var);
/* Returns the number of dimensions, 0 if var is NULL. */
TREK_API int trek_var_ndim(const trek_var *var);
/* Returns the size of dimension dim, which may be negative. Returns -1 and sets the error if the variable has no such
 * dimension. */
TREK_API int64_t trek_var_size(const trek_var *var, int dim);
/* Returns the dtype of the elements, TREK_DTYPE_COUNT if var is NULL. */
TREK_API trek_dtype trek_var_dtype(const trek_var *var);
/* Returns the device on which the tensor is, cpu:0 if var is NULL. */
TREK_API trek_device trek_var_device(const trek_var *var);
/* Returns the number of elements, 0 if var is NULL. */
TREK_API int64_t trek_var_numel(const trek_var *var);
/* Returns the only element as a double, as trek_tensor_item. The call synchronises with the device. Returns NaN and fails with
 * SHAPE if there is not exactly one element. */
TREK_API double trek_var_item(const trek_var *var);
/* Prints the tensor to `stream` (NULL for stdout), as trek_tensor_print. */
TREK_API trek_status trek_var_print(const trek_var *var, FILE *stream);

/* Returns a leaf without a gradient that shares the variable's data. The innermost scope owns it. */
TREK_API trek_var *trek_var_detach(trek_var *var);

TREK_END

#endif
