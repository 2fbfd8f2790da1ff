/* SPDX-License-Identifier: Apache-2.0 */
#include "distributed/control/call.h"

#include <stdio.h>

#include "tensor/dtypes.h"
#include "tensor/tensor.h"

static const char *const kind_names[] = { "a call with wrong arguments", "all_reduce", "broadcast", "all_gather",
                                          "reduce_scatter", "reduce", "barrier" };
static const char *const op_names[] = { "mean", "sum", "max", "min", "prod" }; /* in the order of trek_reduction */

static const char *name_of(const char *const *names, int n, int k) { return k >= 0 && k < n ? names[k] : "?"; }

const char *trek_call_kind_name(int kind) { return name_of(kind_names, sizeof kind_names / sizeof *kind_names, kind); }
const char *trek_call_op_name(int op) { return name_of(op_names, sizeof op_names / sizeof *op_names, op); }

char *trek_call_text(const trek_call_note *note, char *text, size_t size)
{
    const char *kind = trek_call_kind_name(note->kind), *where = note->on_device ? ", on the device" : "";
    const char *dtype = note->dtype >= 0 && note->dtype <= TREK_BOOL ? trek_dtype_name((trek_dtype)note->dtype) : "?";
    long long count = (long long)note->count;
    switch (note->kind) {
    case TREK_COMM_ALL_REDUCE:
    case TREK_COMM_REDUCE_SCATTER:
        snprintf(text, size, "%s(%s, %s, %lld elements%s)", kind, trek_call_op_name(note->op), dtype, count, where);
        break;
    case TREK_COMM_REDUCE:
        snprintf(text, size, "%s(%s, to rank %d, %s, %lld elements%s)", kind, trek_call_op_name(note->op), note->root, dtype,
                 count, where);
        break;
    case TREK_COMM_BROADCAST:
        snprintf(text, size, "%s(from rank %d, %s, %lld elements%s)", kind, note->root, dtype, count, where);
        break;
    case TREK_COMM_ALL_GATHER:
        snprintf(text, size, "%s(%s, %lld elements%s)", kind, dtype, count, where);
        break;
    default:
        snprintf(text, size, "%s", kind);
    }
    return text;
}
