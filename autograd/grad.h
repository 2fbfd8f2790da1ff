/* SPDX-License-Identifier: Apache-2.0 */
/* Gradients beyond trek_backward: with a seed, of chosen inputs, of gradients. */
#ifndef TREK_AUTOGRAD_GRAD_H
#define TREK_AUTOGRAD_GRAD_H

#include "autograd/backward.h"

TREK_BEGIN

/* Options of a backward pass. */
typedef struct trek_backward_opts {
    bool retain_graph; /* keeps what backward needs, for another pass; default false */
    bool create_graph; /* records the computation of the gradients, for higher derivatives; implies retain_graph; default false */
} trek_backward_opts;

/* Computes trek_backward with `seed` as the gradient of var. seed has var's shape; NULL stands for 1 and needs a var of one
 * element. opts may be NULL. */
TREK_API trek_status trek_backward_with(trek_var *var, trek_var *seed, const trek_backward_opts *opts);
/* Computes the gradients of sum_k <outputs[k], seeds[k]> with respect to inputs and leaves the gradients of all leaves alone. It
 * writes them to grads, which has n_inputs elements: the current scope owns them, and NULL stands for an input that is not
 * reached. seeds may be NULL or hold NULL for outputs of one element. opts may be NULL. Fails with ARGUMENT if another list is
 * NULL or a number is negative, and otherwise as trek_backward. */
TREK_API trek_status trek_grad(trek_var *const *outputs, int n_outputs, trek_var *const *inputs, int n_inputs,
                               trek_var *const *seeds, const trek_backward_opts *opts, trek_var **grads);
/* Returns whether this thread records. */
TREK_API bool trek_grad_enabled(void);
/* Returns the number of nodes that are alive on the calling thread's tape: 0 if nothing leaks. */
TREK_API int64_t trek_tape_size(void);

TREK_END

#endif
