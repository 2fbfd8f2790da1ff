/* SPDX-License-Identifier: Apache-2.0 */
/* Parameters in arrays, and states with something else in them: what tests of optimizers' states have in common. */
#ifndef TREK_TESTS_OPTIM_VARS_H
#define TREK_TESTS_OPTIM_VARS_H

#include "autograd/var.h"
#include "nn/state.h"

/* A leaf of test_tensor(stream, shape, 1)'s numbers; to be released. */
trek_var *numbered_var(uint32_t stream, trek_shape shape, trek_dtype dtype);
/* Its gradient, scale times the stream's numbers in its dtype. */
void set_numbered_grad(trek_var *var, uint32_t stream, double scale);
void copy_vars(trek_var *const *to, trek_var *const *from, int n);
/* That the values have the same bits; what: for the message, with the name of one that has not. */
void assert_same_vars(trek_var *const *a, trek_var *const *b, const char *const *names, int n, const char *what);

/* The same state with a tensor left out (NULL: none), and one added (NULL: none), which is taken over, and with the text of a key
 * (NULL: without). */
trek_state *state_with(const trek_state *from, const char *leave, const char *add, trek_tensor *tensor, const char *key);

#endif
