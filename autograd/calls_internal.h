/* SPDX-License-Identifier: Apache-2.0 */
/* For functions made from several ops: their name in error messages, and results in another dtype. */
#ifndef TREK_AUTOGRAD_CALLS_INTERNAL_H
#define TREK_AUTOGRAD_CALLS_INTERNAL_H

#include "autograd/var_internal.h"
#include "tensor/op_caller_internal.h"

/* Ends what trek_op_calling began. */
static inline trek_var *trek_op_called_end(const char *before, trek_var *result)
{
    trek_op_caller = before;
    return result;
}

/* Applies an op with one result into a given tensor, which becomes the result's and is released on failure (apply.c). */
trek_var *trek_apply_into(const trek_op *op, trek_var *const *inputs, int n_inputs, trek_tensor *given);

#endif
