/* SPDX-License-Identifier: Apache-2.0 */
/* Internals of the shared engine: the segment that all processes map, and the windows through which each process
 * shows pages of its own memory. */
#ifndef TREK_DISTRIBUTED_COMM_SHARED_SHARED_INTERNAL_H
#define TREK_DISTRIBUTED_COMM_SHARED_SHARED_INTERNAL_H

#include "distributed/comm/meeting.h"
#include "distributed/comm/shared/shared.h"

/* --- window.c: this process's window, a file in memory that has no name ------------------------ */

typedef struct trek_shared_window {
    int fd;              /* -1: there is no window, and there will not be one */
    uint64_t bytes;
    uint64_t nonce[2];   /* are written at its beginning */
} trek_shared_window;

/* Makes a file in memory. Returns -1 if the system does not support it. */
int trek_shared_file_new(const char *name, uint64_t bytes);
/* Maps the file at the beginning of a huge page, so that its memory can be one. Returns NULL if it cannot be mapped. */
void *trek_shared_file_map(int fd, uint64_t offset, uint64_t bytes);

/* Maps the file that process pid has open as fd, if it has so many bytes and begins with the nonce. Returns NULL if it cannot be
 * reached or is another file. */
void *trek_shared_file_open(int pid, int fd, uint64_t bytes, const uint64_t nonce[2]);

/* Returns the window of this process, which is made at the first call. */
trek_shared_window trek_shared_window_open(void);
/* Allocates zeroed memory in the window, in pages of its own, and frees it. Returns NULL without an error if none is
 * left. */
void *trek_shared_window_alloc(size_t bytes);
void trek_shared_window_free(void *memory);
/* Returns the offset of memory in the window; 0: it is elsewhere. */
uint64_t trek_shared_window_find(const void *memory);
/* Replaces the pages of all memory from the window by private pages with the same contents. A process that writes
 * late then writes to pages that nobody uses. */
void trek_shared_window_retire(const void *memory);

/* --- segment.c ------------------------------------------------------------------ */

/* The beginning of the segment. */
typedef struct trek_shared_segment {
    uint64_t nonce[2];
    trek_meeting meeting;
} trek_shared_segment;

/* Sizes and offsets in the segment, the same in all processes. */
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
    char **window;                         /* [world] the mapped windows of the others; NULL for this process */
    uint64_t *window_bytes;
} trek_comm_shared;

/* Returns the offset of a rank's memory of a call in its window; 0: it is elsewhere. */
uint64_t *trek_shared_offset(const trek_comm_shared *self, int turn, int rank);
/* Return where a rank puts its data and where the result is, layout.chunk bytes each. */
char *trek_shared_part(const trek_comm_shared *self, int turn, int rank);
char *trek_shared_result(const trek_comm_shared *self, int turn);

/* Make, announce and map segment and windows, and undo that. All processes must call join, and get the same status. */
trek_status trek_shared_segment_join(trek_comm_shared *self);
void trek_shared_segment_leave(trek_comm_shared *self);

/* --- data.c: show and exchange of a trek_meeting_comm ------------------------------------------- */

void trek_shared_show(trek_meeting_comm *self, const trek_comm_call *call, int turn);
bool trek_shared_exchange(trek_meeting_comm *self, const trek_comm_call *call, int turn);

#endif
