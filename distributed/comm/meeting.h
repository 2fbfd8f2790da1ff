/* SPDX-License-Identifier: Apache-2.0 */
/* How the ranks of a group meet: what every engine stands on. Calls are compared, the first reason for the end of
 * a group counts, whoever is late is named; and, for ranks that see the same memory (threads, or processes of one
 * machine), the meeting itself and calls that are passed in it. Internal.
 *
 * A meeting in memory is a count of who has come, and one word on which all wait: its low bits count meetings, its high
 * bit says that the group has ended. Whether a meeting took place is decided by one compare-and-swap, so all ranks
 * see the same. */
#ifndef TREK_DISTRIBUTED_COMM_MEETING_H
#define TREK_DISTRIBUTED_COMM_MEETING_H

#include <stdatomic.h>

#include "distributed/comm/comm_internal.h"
#include "distributed/control/control.h"
#include "distributed/control/wait.h"

/* --- calls ------------------------------------------------------------------------------------ */

trek_call_note trek_comm_note(const trek_comm_call *call);
/* Whether the notes of all ranks, `stride` bytes apart, are of the same call. Else message says which differ, on every
 * rank the same. */
bool trek_comm_notes_agree(const void *notes, size_t stride, int world, char message[TREK_ERROR_SIZE]);
/* The text that says so. */
void trek_comm_notes_differ(int rank, const trek_call_note *note, int other_rank, const trek_call_note *other, char *text,
                            size_t size);
/* The whole result of an all_reduce, broadcast or all_gather, from all ranks' data. */
void trek_comm_finish_small(const trek_comm_call *call, const void *const *ins, int world);

/* --- the end of a group --------------------------------------------------------------------------- */

/* Zeroed. May lie in memory that processes share. */
typedef struct trek_comm_end {
    atomic_int state;       /* 1: the reason is being written, 2: it stands here */
    int status;
    char message[TREK_ERROR_SIZE];
} trek_comm_end;

/* Whether this reason is the first. */
bool trek_comm_end_by(trek_comm_end *end, trek_status status, const char *message);
static inline bool trek_comm_end_is_known(const trek_comm_end *end) { return atomic_load(&end->state) == 2; }
/* Sets the thread's error to the reason, with `more` behind it. control: of processes, one of which may have died while
 * it wrote the reason; NULL: within one. */
trek_status trek_comm_end_fail(trek_comm_end *end, trek_control *control, const char *more);

/* --- who is late ------------------------------------------------------------------------------------ */

typedef struct trek_comm_late {
    int count;
    size_t used;
    char ranks[256];        /* "1, 3" */
} trek_comm_late;

void trek_comm_late_add(trek_comm_late *late, int rank);
/* "CALL, call 7 of rank 0: rank 1 did not come within 2 s". did: "come", or "go on" with a call that all have come to. */
void trek_comm_late_text(const trek_comm_late *late, const trek_comm *comm, const trek_call_note *call, const char *did,
                         char message[TREK_ERROR_SIZE]);

/* --- meetings in memory ----------------------------------------------------------------------------- */

#define TREK_MEETING_SMALL 64

/* What a rank shows the others. Two of each, used in turn: a rank that is one call ahead does not overwrite what a
 * slower one still reads. */
typedef struct trek_meeting_slot {
    _Alignas(64) char small[2][TREK_MEETING_SMALL];
    trek_call_note note[2];
    _Alignas(64) _Atomic uint64_t entered; /* the number of the last call that it has come to */
    _Atomic uint64_t meetings;             /* that it has come to */
} trek_meeting_slot;

/* Zeroed, but for gate.shared and spin. */
typedef struct trek_meeting {
    trek_gate gate;
    _Alignas(64) atomic_int arrived;
    atomic_bool spin;                      /* whether there is a core for each rank */
    _Alignas(64) trek_comm_end end;
} trek_meeting;

/* A rank's handle; those of engines begin with it. */
typedef struct trek_meeting_comm trek_meeting_comm;
struct trek_meeting_comm {
    trek_comm base;
    trek_meeting *meeting;
    trek_meeting_slot *slots;              /* [world] */
    const void **ins;                      /* [world] tables of the rank's own */
    void **outs;                           /* [world], at least 2 */
    /* What does not fit into slots. Before the meeting: shows the call's memory to the others. After it: carries the
     * call out; false: the group has ended in the middle. turn: number & 1. */
    void (*show)(trek_meeting_comm *self, const trek_comm_call *call, int turn);
    bool (*exchange)(trek_meeting_comm *self, const trek_comm_call *call, int turn);
};

/* Tables for a handle whose base is there. MEMORY; whatever was made is freed by the second. */
trek_status trek_meeting_tables_new(trek_meeting_comm *self);
void trek_meeting_tables_free(trek_meeting_comm *self);

/* Of the engines: a call from its beginning to its end; the end of the group, of which the control channel is told. */
trek_status trek_meeting_run(trek_comm *comm, const trek_comm_call *call);
void trek_meeting_end(trek_comm *comm, trek_status status, const char *message);
bool trek_meeting_ended(const trek_comm *comm);
/* The same end for those who share the memory alone: this rank has left. */
void trek_meeting_leave_group(trek_meeting_comm *self);
/* On the channel's thread: the group has ended there. */
void trek_meeting_end_with_channel(void *self);

/* Within a call: meets the others; false: the group has ended. */
bool trek_meeting_come(trek_meeting_comm *self, uint64_t number);
/* The same where all ranks are threads that only have memory to copy: it cannot be interrupted, and all will come. */
void trek_meeting_come_surely(trek_meeting_comm *self);

/* Where rank's part of `count` elements begins, in whole cache lines. */
int64_t trek_meeting_slice(int64_t count, int rank, int world);

#endif
