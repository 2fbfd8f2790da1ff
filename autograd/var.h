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
/* Replaces the gradient; NULL drops it. Fails with SHAPE or DTYPE if the gradient's shape or dtype differs from the
 * variable's. */
TREK_API trek_status trek_var_set_grad(trek_var *var, trek_var *grad);
/* Drops the gradient, or zeroes it if it is stored in an optimizer's arena. */
TREK_API void trek_var_zero_grad(trek_var *var);

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

/* Returns whether the variable needs a gradient; a result of an op does if one of its inputs did. */
TREK_API bool trek_var_requires_grad(const trek_var *var);
/* Returns whether the variable is a leaf, which no op has made: a parameter, or data. */
TREK_API bool trek_var_is_leaf(const trek_var *var);
/* Sets whether a leaf needs a gradient. Fails with STATE if the variable is not a leaf, and with DTYPE if requires_grad is true
 * and the dtype is not floating. */
TREK_API trek_status trek_var_set_requires_grad(trek_var *var, bool requires_grad);
/* Returns a leaf without a gradient that shares the variable's data. The innermost scope owns it. */
TREK_API trek_var *trek_var_detach(trek_var *var);

/* A function that is called when a gradient is complete, on the thread of the backward pass. It may return a replacement for the
 * gradient, or NULL to leave it unchanged. An error that it sets ends the pass.
 *
 * For a leaf it is called once for each backward call (not by trek_grad), wherever the leaf was used, also in segments that run
 * again (nn/recompute.h); grad is what has been accumulated. A backward call inside a function's backward adds its part before
 * that call or, if the outer call has passed the leaf's last use, makes a call of its own.
 *
 * For another result it is called before the gradient goes on to earlier ops; var is then NULL. */
typedef trek_var *(*trek_grad_hook)(trek_var *var, trek_var *grad, void *arg);
/* Registers a hook on the variable's gradient; arg is passed to it. Returns a handle above 0 for trek_var_remove_hook, or 0 on
 * failure. Fails with STATE if the variable needs no gradient, and with MEMORY. */
TREK_API int trek_var_on_grad(trek_var *var, trek_grad_hook hook, void *arg);
/* Removes the hook of this handle. An unknown handle does nothing. */
TREK_API void trek_var_remove_hook(trek_var *var, int handle);

TREK_END

#endif
