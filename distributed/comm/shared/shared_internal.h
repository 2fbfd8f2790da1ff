/* SPDX-License-Identifier: Apache-2.0 */
/* The shared engine from inside: the segment that all processes map, and the windows
 * through which each shows pages of its own memory. */
#ifndef TREK_DISTRIBUTED_COMM_SHARED_SHARED_INTERNAL_H
#define TREK_DISTRIBUTED_COMM_SHARED_SHARED_INTERNAL_H

#include "distributed/comm/meeting.h"
#include "distributed/comm/shared/shared.h"

/* --- window.c: this process's window, a file in memory that has no name ------------------------ */

typedef struct trek_shared_window {
    int fd;              /* -1: there is none, and there will be none */
    uint64_t bytes;
    uint64_t nonce[2];   /* stand at its beginning */
} trek_shared_window;

/* A file in memory; -1: the system has none. */
int trek_shared_file_new(const char *name, uint64_t bytes);
/* At the beginning of a huge page, so that what lies there can be one. NULL: it cannot be mapped. */
void *trek_shared_file_map(int fd, uint64_t offset, uint64_t bytes);

/* The window of this process, made when it is first asked for. */
trek_shared_window trek_shared_window_open(void);
/* Zeroed memory in it, in pages of its own; NULL without an error: there is none left. */
void *trek_shared_window_alloc(size_t bytes);
void trek_shared_window_free(void *memory);
/* Where memory lies in the window; 0: elsewhere. */
uint64_t trek_shared_window_find(const void *memory);
/* Gives all that memory was taken with pages that nobody else has, with the same contents: whoever writes late writes
 * to nobody's. */
void trek_shared_window_retire(const void *memory);

/* --- segment.c ------------------------------------------------------------------ */

/* What begins the segment. */
typedef struct trek_shared_segment {
    uint64_t nonce[2];
    trek_meeting meeting;
} trek_shared_segment;

/* Sizes and places in the segment, the same in all processes. */
typedef struct trek_shared_layout {
    size_t chunk;                          /* bytes that a process puts in at once */
    size_t slots, offsets, parts, results, bytes;
} trek_shared_layout;

typedef struct trek_comm_shared {
    trek_meeting_comm met;
    trek_shared_layout layout;
    trek_shared_segment *segment;
    bool windows;                          /* whether all have mapped all windows */
    uint64_t direct;
    char **window;                         /* [world] of the others, mapped; NULL: this process's */
    uint64_t *window_bytes;
} trek_comm_shared;

/* Where a rank's memory of a call lies in its window; 0: elsewhere. */
uint64_t *trek_shared_offset(const trek_comm_shared *self, int turn, int rank);
/* layout.chunk bytes: what a rank has put in, and what has come out. */
char *trek_shared_part(const trek_comm_shared *self, int turn, int rank);
char *trek_shared_result(const trek_comm_shared *self, int turn);

/* Makes, passes on and maps segment and windows: a meeting of all, who get the same status. */
trek_status trek_shared_segment_join(trek_comm_shared *self);
void trek_shared_segment_leave(trek_comm_shared *self);

/* --- data.c: show and exchange of a trek_meeting_comm ------------------------------------------- */

void trek_shared_show(trek_meeting_comm *self, const trek_comm_call *call, int turn);
bool trek_shared_exchange(trek_meeting_comm *self, const trek_comm_call *call, int turn);

#endif
