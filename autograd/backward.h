/* SPDX-License-Identifier: Apache-2.0 */
/* The backward pass over the tape, and how to stop recording. */
#ifndef TREK_AUTOGRAD_BACKWARD_H
#define TREK_AUTOGRAD_BACKWARD_H

#include "autograd/var.h"

TREK_BEGIN

/* Options of a backward pass. */
typedef struct trek_backward_opts {
    bool retain_graph; /* keeps what backward needs, for another pass; default false */
    bool create_graph; /* records the computation of the gradients, for higher derivatives; implies retain_graph; default false */
} trek_backward_opts;

/* Adds d var / d leaf to the gradient of each leaf that var depends on. Fails with SHAPE if var has more than one element. Fails
 * with STATE if var needs no gradient, was recorded on another thread, was freed by an earlier pass, or if a saved tensor has
 * been overwritten. It also fails with STATE if it is called inside a backward pass (in a hook, or in a function's backward) and
 * reaches results that this pass itself has still to process. */
TREK_API trek_status trek_backward(trek_var *var);
/* Computes trek_backward with `seed` as the gradient of var. seed has var's shape; NULL stands for 1 and needs a var of one
 * element. opts may be NULL. */
TREK_API trek_status trek_backward_with(trek_var *var, trek_var *seed, const trek_backward_opts *opts);

/* Computes the gradients of sum_k <outputs[k], seeds[k]> with respect to inputs and leaves the gradients of all leaves alone. It
 * writes them to grads, which has n_inputs elements: the current scope owns them, and NULL stands for an input that is not
 * reached. seeds may be NULL or hold NULL for outputs of one element. opts may be NULL. Fails with ARGUMENT if another list is
 * NULL or a number is negative, and otherwise as trek_backward. */
TREK_API trek_status trek_grad(trek_var *const *outputs, int n_outputs, trek_var *const *inputs, int n_inputs,
                               trek_var *const *seeds, const trek_backward_opts *opts, trek_var **grads);

/* Stops recording on this thread until the matching trek_no_grad_end. Pairs nest. */
TREK_API void trek_no_grad_begin(void);
/* Ends the innermost trek_no_grad_begin of this thread. */
TREK_API void trek_no_grad_end(void);
/* Returns whether this thread records. */
TREK_API bool trek_grad_enabled(void);

/* Returns the number of nodes that are alive on the calling thread's tape: 0 if nothing leaks. */
TREK_API int64_t trek_tape_size(void);

TREK_END

#endif
