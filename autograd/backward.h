/* SPDX-License-Identifier: Apache-2.0 */
/* Running the tape backward, and switching it off. */
#ifndef TREK_AUTOGRAD_BACKWARD_H
#define TREK_AUTOGRAD_BACKWARD_H

#include "autograd/var.h"

TREK_BEGIN

typedef struct trek_backward_opts {
    bool retain_graph; /* keep what backward needs, for another pass */
    bool create_graph; /* record the gradients' own computation; implies retain_graph */
} trek_backward_opts;

/* Adds d var / d leaf to the gradient of each leaf that var depends on. var must
 * be a scalar (one element): SHAPE otherwise. STATE if var needs no gradient,
 * if the tape was freed by an earlier pass, if a saved tensor was overwritten, or if, called within a backward pass (in a
 * hook, in a function's backward), it comes to results that the pass itself is to go over. */
TREK_API trek_status trek_backward(trek_var *var);
/* The same with the cotangent `seed` (shape of var; NULL: ones, scalars only). opts may be NULL. */
TREK_API trek_status trek_backward_with(trek_var *var, trek_var *seed, const trek_backward_opts *opts);

/* Gradients of sum_k <outputs[k], seeds[k]> with respect to inputs, written to
 * grads (owned by the present scope; NULL where an input is not reached) without
 * touching any leaf's gradient. seeds may be NULL, or hold NULLs, for scalars. ARGUMENT
 * where another list is NULL or a number negative; else as trek_backward. */
TREK_API trek_status trek_grad(trek_var *const *outputs, int n_outputs, trek_var *const *inputs, int n_inputs,
                               trek_var *const *seeds, const trek_backward_opts *opts, trek_var **grads);

/* Nothing is recorded on this thread between begin and end. They nest. */
TREK_API void trek_no_grad_begin(void);
TREK_API void trek_no_grad_end(void);
TREK_API bool trek_grad_enabled(void);

/* Nodes alive on the calling thread's tape: 0 when nothing leaks. */
TREK_API int64_t trek_tape_size(void);

TREK_END

#endif
