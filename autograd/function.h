/* SPDX-License-Identifier: Apache-2.0 */
/* Ops that a program defines. */
#ifndef TREK_AUTOGRAD_FUNCTION_H
#define TREK_AUTOGRAD_FUNCTION_H

#include "autograd/var.h"

TREK_BEGIN

/* One call of a program's op. It connects the forward of the call with its backward. */
typedef struct trek_function_context trek_function_context;

/* An op that a program defines. Variables that its functions make belong to a scope that ends with the call; the results are
 * kept. Both functions may report errors with trek_fail. */
typedef struct trek_function {
    const char *name; /* name of the op, for messages */
    /* Computes the outputs from the inputs. Nothing is recorded in it. */
    trek_status (*forward)(trek_function_context *context, trek_var *const *inputs, int n_inputs, trek_var **outputs,
                           int n_outputs);
    /* Computes the gradients of the inputs from those of the outputs. A gradient of an output is NULL if none arrived; a gradient
     * of an input that is left NULL means no gradient. May be NULL. */
    trek_status (*backward)(trek_function_context *context, trek_var *const *grads, int n_grads, trek_var **input_grads,
                            int n_inputs);
    /* Frees trek_function_data when the tape no longer needs it. May be NULL. */
    void (*free)(void *data);
} trek_function;

/* Runs the op and writes its outputs, which belong to the current scope.
 * Ownership: `function` must live as long as the tape. `data` is available through trek_function_data; function->free frees it,
 * also if this call fails.
 * Errors: ARGUMENT if an argument is NULL or a number is out of range, SCOPE, MEMORY, and those of forward. Backward of a
 * function without backward fails with UNSUPPORTED. */
TREK_API trek_status trek_function_apply(const trek_function *function, void *data, trek_var *const *inputs, int n_inputs,
                                         trek_var **outputs, int n_outputs);

/* Runs an op that has one output and returns it, or NULL on failure. The rest is as in trek_function_apply. */
TREK_API trek_var *trek_function_apply_one(const trek_function *function, void *data, trek_var *const *inputs, int n_inputs);

/* Keeps variables for backward; forward calls it. A call of the op may keep at most 16 variables. If a kept variable is
 * overwritten later, backward fails with STATE.
 * Errors: ARGUMENT for more than 16 variables, STATE outside of forward. */
TREK_API trek_status trek_save_for_backward(trek_function_context *context, trek_var *const *vars, int n);

/* Returns the k-th kept variable, borrowed; backward calls it.
 * Errors: NULL with ARGUMENT if k is out of range, with STATE if the variable was overwritten. */
TREK_API trek_var *trek_saved(trek_function_context *context, int k);

/* Returns the data that was passed to trek_function_apply. */
TREK_API void *trek_function_data(trek_function_context *context);

/* Returns true if input k needs a gradient; backward calls it. */
TREK_API bool trek_needs_grad(trek_function_context *context, int k);

TREK_END

#endif
