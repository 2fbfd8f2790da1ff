/* SPDX-License-Identifier: Apache-2.0 */
/* What errors of ops name where a function is made of several. Internal. */
#ifndef TREK_TENSOR_OP_CALLER_INTERNAL_H
#define TREK_TENSOR_OP_CALLER_INTERNAL_H

#include "tensor/op.h"

/* The function that was called; NULL: the op itself. The outermost counts: what trek_op_calling returns is put back. */
extern _Thread_local const char *trek_op_caller;

static inline const char *trek_op_calling(const char *name)
{
    const char *before = trek_op_caller;
    if (!before)
        trek_op_caller = name;
    return before;
}

/* What errors of a call name: the caller, the kind of a row that has kinds, or the row. */
const char *trek_op_called(const trek_op *op, const trek_attrs *attrs);

#endif
