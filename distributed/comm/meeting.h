/* SPDX-License-Identifier: Apache-2.0 */
/* How the ranks of a group meet. All engines use it: calls are compared, the first reason for the end of a group
 * counts, and late ranks are named. For ranks that see the same memory (threads, or processes of one machine) it also
 * has the meeting itself, and carries out small calls in it.
 *
 * A meeting in memory is a count of the ranks that have come, and one word on which all wait: its low bits count
 * meetings, its high bit says that the group has ended. One compare-and-swap decides whether a meeting took place, so
 * that all ranks see the same. */
#ifndef TREK_DISTRIBUTED_COMM_MEETING_H
#define TREK_DISTRIBUTED_COMM_MEETING_H

#include <stdatomic.h>

#include "distributed/comm/comm_internal.h"
#include "distributed/control/control.h"
#include "distributed/control/wait.h"

/* --- calls ------------------------------------------------------------------------------------ */

trek_call_note trek_comm_note(const trek_comm_call *call);
/* Returns whether the notes of all ranks, `stride` bytes apart, describe the same call. Otherwise message says which
 * differ; it is the same on every rank. */
bool trek_comm_notes_agree(const void *notes, size_t stride, int world, char message[TREK_ERROR_SIZE]);
/* Writes that message. */
void trek_comm_notes_differ(int rank, const trek_call_note *note, int other_rank, const trek_call_note *other, char *text,
                            size_t size);
/* Computes the whole result of an all_reduce, broadcast or all_gather from the data of all ranks. */
void trek_comm_finish_small(const trek_comm_call *call, const void *const *ins, int world);

/* --- the end of a group --------------------------------------------------------------------------- */

/* The end of a group and its reason. It begins with zeros and may lie in memory that processes share. */
typedef struct trek_comm_end {
    atomic_int state;       /* 1: the reason is being written; 2: it has been written */
    int status;
    char message[TREK_ERROR_SIZE];
} trek_comm_end;

/* Sets the reason, and returns whether it is the first. */
bool trek_comm_end_by(trek_comm_end *end, trek_status status, const char *message);
static inline bool trek_comm_end_is_known(const trek_comm_end *end) { return atomic_load(&end->state) == 2; }
/* Sets the thread's error to the reason, followed by `more`. control is given between processes, because one may have
 * died while it wrote the reason; NULL: within one process. */
trek_status trek_comm_end_fail(trek_comm_end *end, trek_control *control, const char *more);

/* --- who is late ------------------------------------------------------------------------------------ */

typedef struct trek_comm_late {
    int count;
    size_t used;
    char ranks[256];        /* "1, 3" */
} trek_comm_late;

void trek_comm_late_add(trek_comm_late *late, int rank);
/* Writes e.g. "CALL, call 7 of rank 0: rank 1 did not come within 2 s". did: "come", or "go on" with a call that all
 * have come to. */
void trek_comm_late_text(const trek_comm_late *late, const trek_comm *comm, const trek_call_note *call, const char *did,
                         char message[TREK_ERROR_SIZE]);

/* --- meetings in memory ----------------------------------------------------------------------------- */

#define TREK_MEETING_SMALL 64

/* What a rank shows the others. There are two of each, used alternately: a rank that is one call ahead must not
 * overwrite what a slower rank still reads. */
typedef struct trek_meeting_slot {
    _Alignas(64) char small[2][TREK_MEETING_SMALL];
    trek_call_note note[2];
    _Alignas(64) _Atomic uint64_t entered; /* number of the last call that it has entered */
    _Atomic uint64_t meetings;             /* number of meetings that it has entered */
} trek_meeting_slot;

/* A meeting. It begins with zeros, except gate.shared and spin. */
typedef struct trek_meeting {
    trek_gate gate;
    _Alignas(64) atomic_int arrived;
    atomic_bool spin;                      /* whether each rank has a core of its own */
    _Alignas(64) trek_comm_end end;
} trek_meeting;

/* A rank's handle. The handles of engines begin with it. */
typedef struct trek_meeting_comm trek_meeting_comm;
struct trek_meeting_comm {
    trek_comm base;
    trek_meeting *meeting;
    trek_meeting_slot *slots;              /* [world] */
    const void **ins;                      /* [world] arrays of the rank's own */
    void **outs;                           /* [world], at least 2 */
    /* For data that do not fit into slots. show is called before the meeting and shows the call's memory to the
     * others. exchange is called after it and carries the call out; it returns false if the group has ended in the
     * middle. turn: number & 1. */
    void (*show)(trek_meeting_comm *self, const trek_comm_call *call, int turn);
    bool (*exchange)(trek_meeting_comm *self, const trek_comm_call *call, int turn);
};

/* Make and free the arrays of a handle whose base is set. new fails with MEMORY; free also frees arrays after a
 * failure. */
trek_status trek_meeting_tables_new(trek_meeting_comm *self);
void trek_meeting_tables_free(trek_meeting_comm *self);

/* For engines: run a call from its beginning to its end, and end the group, which is also announced on the control
 * channel. */
trek_status trek_meeting_run(trek_comm *comm, const trek_comm_call *call);
void trek_meeting_end(trek_comm *comm, trek_status status, const char *message);
bool trek_meeting_ended(const trek_comm *comm);
/* Ends the group for those who share the memory, without the control channel: this rank has left. */
void trek_meeting_leave_group(trek_meeting_comm *self);
/* Runs on the channel's thread when the group has ended on the channel. */
void trek_meeting_end_with_channel(void *self);

/* Meets the others within a call. Returns false if the group has ended. */
bool trek_meeting_come(trek_meeting_comm *self, uint64_t number);
/* Meets the others if all ranks are threads that only have memory to copy: it cannot be interrupted, and all will
 * come. */
void trek_meeting_come_surely(trek_meeting_comm *self);

/* Returns where the rank's part of `count` elements begins, in whole cache lines. */
int64_t trek_meeting_slice(int64_t count, int rank, int world);

#endif
