/* SPDX-License-Identifier: Apache-2.0 */
/* Ops of one's own. */
#ifndef TREK_AUTOGRAD_FUNCTION_H
#define TREK_AUTOGRAD_FUNCTION_H

#include "autograd/var.h"

TREK_BEGIN

typedef struct trek_function_context trek_function_context;

/* What a user's op does. forward computes outputs from inputs with recording
 * off; backward gets the outputs' gradients (NULL where none arrived) and fills
 * the inputs' (NULL: none). Variables made inside belong to a scope that ends
 * with the call; results are kept. Both may report through trek_fail. */
typedef struct trek_function {
    const char *name;
    trek_status (*forward)(trek_function_context *context, trek_var *const *inputs, int n_inputs, trek_var **outputs,
                           int n_outputs);
    trek_status (*backward)(trek_function_context *context, trek_var *const *grads, int n_grads, trek_var **input_grads,
                            int n_inputs);
    void (*free)(void *data); /* frees trek_function_data when the tape lets go; may be NULL */
} trek_function;

/* Runs the op: outputs (n_outputs of them) belong to the present scope. `function`
 * must live as long as the tape; `data` is passed on through the context (and
 * freed by function->free also when this fails). A function without backward gives an error there (UNSUPPORTED).
 * Errors: ARGUMENT (something is NULL, or a number is out of range), SCOPE, MEMORY, and what forward reports. */
TREK_API trek_status trek_function_apply(const trek_function *function, void *data, trek_var *const *inputs, int n_inputs,
                                         trek_var **outputs, int n_outputs);
/* For the usual case of one output. */
TREK_API trek_var *trek_function_apply_one(const trek_function *function, void *data, trek_var *const *inputs, int n_inputs);

/* In forward: keeps variables for backward; overwriting them later is an error there. At most 16 in all. */
TREK_API trek_status trek_save_for_backward(trek_function_context *context, trek_var *const *vars, int n);
/* In backward: the k-th saved variable, borrowed. */
TREK_API trek_var *trek_saved(trek_function_context *context, int k);
TREK_API void *trek_function_data(trek_function_context *context);
/* In backward: whether input k needs a gradient. */
TREK_API bool trek_needs_grad(trek_function_context *context, int k);

TREK_END

#endif
