/* SPDX-License-Identifier: Apache-2.0 */
/* Variables: the one value type for computing. A variable holds a tensor and,
 * where it needs a gradient, its place on the calling thread's tape.
 *
 * Results of ops belong to the innermost open scope; what must outlive it is
 * retained. Ops never consume their arguments. An op given NULL returns NULL. */
#ifndef TREK_AUTOGRAD_VAR_H
#define TREK_AUTOGRAD_VAR_H

#include "tensor/scope.h"
#include "tensor/tensor.h"

TREK_BEGIN

typedef struct trek_var trek_var;

/* A leaf over `tensor` (retained, shared, not copied), owned by the caller: give
 * it back by trek_var_release. Errors: DTYPE (a gradient needs a floating dtype), MEMORY. */
TREK_API trek_var *trek_var_new(trek_tensor *tensor, bool requires_grad);
/* The same, but owned by the innermost scope. For constants inside expressions. */
TREK_API trek_var *trek_var_constant(trek_tensor *tensor);
/* trek_var_constant that takes over the caller's reference of the tensor: trek_var_from(trek_tensor_ones(...)). */
TREK_API trek_var *trek_var_from(trek_tensor *tensor);

TREK_API trek_var *trek_var_retain(trek_var *var);  /* returns var */
TREK_API void trek_var_release(trek_var *var);      /* NULL is fine */

/* Borrowed; valid as long as the variable. */
TREK_API trek_tensor *trek_var_data(const trek_var *var);
/* Borrowed; the gradient accumulated so far, or NULL. Leaves only. Of the variable's dtype, but f32 for a 16-bit
 * parameter that an optimizer has: there gradients are added up in f32. */
TREK_API trek_var *trek_var_grad(const trek_var *var);
/* Replaces the gradient (NULL drops it). Same shape; SHAPE, DTYPE. */
TREK_API trek_status trek_var_set_grad(trek_var *var, trek_var *grad);
/* Drops the gradient, or zeroes it where it lives in an arena. */
TREK_API void trek_var_zero_grad(trek_var *var);

TREK_API trek_shape trek_var_shape(const trek_var *var); /* of NULL no dimensions */
TREK_API int trek_var_ndim(const trek_var *var); /* how many dimensions */
TREK_API int64_t trek_var_size(const trek_var *var, int dim); /* dim may be negative; -1 and an error if there is none */
TREK_API trek_dtype trek_var_dtype(const trek_var *var); /* of the value, as the next one */
TREK_API trek_device trek_var_device(const trek_var *var); /* where the value is */
TREK_API int64_t trek_var_numel(const trek_var *var); /* elements */
TREK_API double trek_var_item(const trek_var *var); /* as trek_tensor_item: waits for the device */
TREK_API trek_status trek_var_print(const trek_var *var, void *stream); /* the value, as trek_tensor_print */

TREK_API bool trek_var_requires_grad(const trek_var *var); /* of a result: whether an input did */
TREK_API bool trek_var_is_leaf(const trek_var *var); /* made by no op: a parameter, or data */
/* Leaves only; STATE otherwise, DTYPE for dtypes without gradients. */
TREK_API trek_status trek_var_set_requires_grad(trek_var *var, bool requires_grad);
/* The same data without a place on the tape. */
TREK_API trek_var *trek_var_detach(trek_var *var);

/* Called on the thread of the backward pass. For a leaf: once per backward
 * call, when its gradient is complete, wherever it was used, in segments that run again (nn/recompute.h), too;
 * grad is what was accumulated. A backward call within a function's backward adds to it before or, where the outer
 * call has passed the leaf's last use, with a call of its own. For other
 * results: when the gradient of the result is complete, before it goes on; a
 * replacement may be returned (NULL: unchanged). Returns 0, or a handle > 0
 * for trek_var_remove_hook. Errors: STATE, MEMORY (then 0). */
typedef trek_var *(*trek_grad_hook)(trek_var *var, trek_var *grad, void *arg);
TREK_API int trek_var_on_grad(trek_var *var, trek_grad_hook hook, void *arg);
TREK_API void trek_var_remove_hook(trek_var *var, int handle);

TREK_END

#endif
