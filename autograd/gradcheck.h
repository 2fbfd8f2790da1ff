/* SPDX-License-Identifier: Apache-2.0 */
/* Whether derivatives are right: those of functions of one's own above all. */
#ifndef TREK_AUTOGRAD_GRADCHECK_H
#define TREK_AUTOGRAD_GRADCHECK_H

#include "autograd/var.h"

TREK_BEGIN

/* What is checked: a result of the inputs (f64, any shape), in the present scope. It gives the same result each time (a
 * function that draws numbers calls trek_seed first). NULL: failure. */
typedef trek_var *(*trek_gradcheck_fn)(trek_var *const *inputs, int n, void *arg);

typedef struct trek_gradcheck_opts {
    double eps;        /* the inputs are moved by it both ways; default 1e-6 */
    double atol, rtol; /* right: within atol + rtol |difference quotient|; default 1e-5, 1e-3; TREK_ZERO for 0 */
    bool second;       /* gradients of gradients, too */
    uint64_t seed;     /* of the cotangents */
} trek_gradcheck_opts;

/* Compares the gradient of every input that requires one, element by element, with central differences, for a random
 * cotangent in [-1, 1] (so that a gradient that is right for a sum alone does not pass). Inputs: leaves; those that require a
 * gradient in f64, others of any dtype. They are moved in place and have their values again afterwards; their gradients are not
 * touched. It runs fn twice for each element. opts may be NULL. Of a function of several results each is checked by itself, or
 * trek_cat of all.
 *
 * TREK_OK, or CALLBACK and which element of which input is how far off; also where fn gives two results for the same inputs.
 * ARGUMENT: something is NULL or out of range, or no input requires a gradient; DTYPE: not f64; STATE: an input is no leaf; what
 * fn reports. */
TREK_API trek_status trek_gradcheck(trek_gradcheck_fn fn, trek_var *const *inputs, int n, void *arg,
                                    const trek_gradcheck_opts *opts);

TREK_END

#endif
