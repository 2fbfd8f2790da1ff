/* SPDX-License-Identifier: Apache-2.0 */
/* Leaves and their gradients: which variables need one, setting a gradient, and hooks on it. */
#ifndef TREK_AUTOGRAD_LEAF_H
#define TREK_AUTOGRAD_LEAF_H

#include "autograd/var.h"

TREK_BEGIN

/* Returns whether the variable needs a gradient; a result of an op does if one of its inputs did. */
TREK_API bool trek_var_requires_grad(const trek_var *var);
/* Returns whether the variable is a leaf, which no op has made: a parameter, or data. */
TREK_API bool trek_var_is_leaf(const trek_var *var);
/* Sets whether a leaf needs a gradient. Fails with STATE if the variable is not a leaf, and with DTYPE if requires_grad is true
 * and the dtype is not floating. */
TREK_API trek_status trek_var_set_requires_grad(trek_var *var, bool requires_grad);
/* Replaces the gradient; NULL drops it. Fails with SHAPE or DTYPE if the gradient's shape or dtype differs from the
 * variable's. */
TREK_API trek_status trek_var_set_grad(trek_var *var, trek_var *grad);
/* Drops the gradient, or zeroes it if it is stored in an optimizer's arena. */
TREK_API void trek_var_zero_grad(trek_var *var);

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
