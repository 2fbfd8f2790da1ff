/* SPDX-License-Identifier: Apache-2.0 */
/* The backward pass over the tape, and how to stop recording. */
#ifndef TREK_AUTOGRAD_BACKWARD_H
#define TREK_AUTOGRAD_BACKWARD_H

#include "autograd/var.h"

TREK_BEGIN

/* Adds d var / d leaf to the gradient of each leaf that var depends on. Fails with SHAPE if var has more than one element. Fails
 * with STATE if var needs no gradient, was recorded on another thread, was freed by an earlier pass, or if a saved tensor has
 * been overwritten. It also fails with STATE if it is called inside a backward pass (in a hook, or in a function's backward) and
 * reaches results that this pass itself has still to process. */
TREK_API trek_status trek_backward(trek_var *var);

/* Stops recording on this thread until the matching trek_no_grad_end. Pairs nest. */
TREK_API void trek_no_grad_begin(void);
/* Ends the innermost trek_no_grad_begin of this thread. */
TREK_API void trek_no_grad_end(void);

TREK_END

#endif
