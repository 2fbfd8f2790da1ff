/* SPDX-License-Identifier: Apache-2.0 */
/* A check of derivatives, above all of functions that a program defines. */
#ifndef TREK_AUTOGRAD_GRADCHECK_H
#define TREK_AUTOGRAD_GRADCHECK_H

#include "autograd/var.h"

TREK_BEGIN

/* Computes the result that is checked from the inputs: f64, of any shape, in the current scope. It must give the same result each
 * time; a function that draws random numbers calls trek_seed first. NULL means failure. */
typedef trek_var *(*trek_gradcheck_fn)(trek_var *const *inputs, int n, void *arg);

/* Options of trek_gradcheck. */
typedef struct trek_gradcheck_opts {
    double eps;    /* the inputs are moved by this in both directions; default 1e-6 */
    double atol;   /* largest absolute error; default 1e-5, TREK_ZERO for 0 */
    double rtol;   /* largest error relative to the difference quotient, in addition to atol; default 1e-3, TREK_ZERO for 0 */
    bool second;   /* checks gradients of gradients as well */
    uint64_t seed; /* seed of the cotangents */
} trek_gradcheck_opts;

/* Compares the gradient of every input that requires one with central differences, element by element. The comparison uses a
 * random cotangent in [-1, 1], so that a gradient that is right only for a sum does not pass. If a function has several results,
 * check each of them, or trek_cat of all. opts may be NULL.
 *
 * The inputs are leaves. Those that require a gradient are f64; others have any dtype. They are moved in place and have their
 * values again afterwards; their gradients are not touched. fn runs twice for each element.
 *
 * Errors: CALLBACK, with the element and its error, if a gradient is wrong, and if fn gives two results for the same inputs.
 * ARGUMENT if an argument is NULL or out of range, or no input requires a gradient. DTYPE if such an input is not f64. STATE if
 * an input is not a leaf. Errors of fn. */
TREK_API trek_status trek_gradcheck(trek_gradcheck_fn fn, trek_var *const *inputs, int n, void *arg,
                                    const trek_gradcheck_opts *opts);

TREK_END

#endif
