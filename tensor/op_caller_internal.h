/* SPDX-License-Identifier: Apache-2.0 */
/* Which function errors of ops name if it consists of several ops. */
#ifndef TREK_TENSOR_OP_CALLER_INTERNAL_H
#define TREK_TENSOR_OP_CALLER_INTERNAL_H

#include "tensor/op.h"

/* The function that was called; NULL: the op itself. The outermost function counts: the value that trek_op_calling
 * returns is set again afterwards. */
extern _Thread_local const char *trek_op_caller;

static inline const char *trek_op_calling(const char *name)
{
    const char *before = trek_op_caller;
    if (!before)
        trek_op_caller = name;
    return before;
}

/* Returns what errors of a call name: the caller, or the row. */
const char *trek_op_called(const trek_op *op);

#endif
