/* SPDX-License-Identifier: Apache-2.0 */
/* What a rank is about to do, as it announces it to the others: everything that must be equal for a call to take
 * place. */
#ifndef TREK_DISTRIBUTED_CONTROL_CALL_H
#define TREK_DISTRIBUTED_CONTROL_CALL_H

#include <stddef.h>
#include <stdint.h>

/* The largest number of ranks of a group, and of processes of a job. */
#define TREK_MAX_RANKS 1024

typedef enum trek_comm_kind {
    TREK_COMM_INVALID, /* a rank whose own arguments were wrong sends this, so that the others need not wait */
    TREK_COMM_ALL_REDUCE,
    TREK_COMM_BROADCAST,
    TREK_COMM_ALL_GATHER,
    TREK_COMM_REDUCE_SCATTER,
    TREK_COMM_REDUCE,  /* the root gets the result; `out` of the others is left alone */
    TREK_COMM_BARRIER,
} trek_comm_kind;

/* Has no padding, so that two notes are equal if their bytes are. */
typedef struct trek_call_note {
    uint64_t number;  /* counts the rank's calls, from 1 */
    int64_t count;    /* elements of the tensor; of a part for all_gather and reduce_scatter */
    int32_t kind, op, dtype, root, on_device, unused;
} trek_call_note;

/* Return a name; "?" if the value is not one of trek's kinds or operations. */
const char *trek_call_kind_name(int kind);
const char *trek_call_op_name(int op);
/* Writes e.g. "all_reduce(sum, f32, 1024 elements)", at most `size` bytes. Returns text. The note may contain any
 * values. */
char *trek_call_text(const trek_call_note *note, char *text, size_t size);

#endif
