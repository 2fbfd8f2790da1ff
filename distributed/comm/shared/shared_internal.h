/* SPDX-License-Identifier: Apache-2.0 */
/* The shared engine from inside: the segment that all processes map, and the windows
 * through which each shows pages of its own memory. */
#ifndef TREK_DISTRIBUTED_COMM_SHARED_SHARED_INTERNAL_H
#define TREK_DISTRIBUTED_COMM_SHARED_SHARED_INTERNAL_H

#include "distributed/comm/meeting.h"
#include "distributed/comm/shared/shared.h"

#define TREK_SHARED_HUGE ((size_t)2 << 20) /* bytes of a huge page, where pages are of 4 KiB */

/* --- pages.c: this process's window, a file in memory that has no name ---------- */

/* Where the memory of a call lies in its process's window. Only whole pages are shared. */
typedef struct trek_shared_span {
    int64_t offset;  /* of the memory's first byte, which may lie in front of what is shared */
    int64_t head;    /* bytes before the first shared page */
    int64_t tail;    /* where the shared pages end, in bytes from the memory's beginning; 0: nothing is shared */
} trek_shared_span;

typedef struct trek_shared_window {
    int fd;              /* -1: there is none, and there will be none */
    uint64_t bytes;
    uint64_t nonce[2];   /* stand at its beginning */
} trek_shared_window;

/* The window of this process, made when it is first asked for. */
trek_shared_window trek_shared_window_open(void);
/* A file in memory; -1: the system has none. */
int trek_shared_file_new(const char *name, uint64_t bytes);
/* Replaces the pages of memory, which lies in a block and which nobody else may use meanwhile, by pages of the window
 * with the same contents, if memory is large and has been asked for before: whether it is shared now. */
bool trek_shared_pages_find(void *block, void *memory, size_t bytes, trek_shared_span *span);
/* Gives memory pages of its own for good, which hold zeros: whoever writes to the shared ones late writes to nobody's. */
void trek_shared_pages_leave(void *block, void *memory, size_t bytes);

/* --- segment.c ------------------------------------------------------------------ */

/* What begins the segment. */
typedef struct trek_shared_segment {
    uint64_t nonce[2];
    trek_meeting meeting;
} trek_shared_segment;

/* Sizes and places in the segment, the same in all processes. */
typedef struct trek_shared_layout {
    size_t page, chunk;                    /* bytes: of a page, of what a process puts in at once */
    size_t slots, spans, edges, parts, results, bytes;
} trek_shared_layout;

typedef struct trek_comm_shared {
    trek_meeting_comm met;
    trek_shared_layout layout;
    trek_shared_segment *segment;
    bool windows;                          /* whether pages are shared */
    uint64_t direct;
    char **window;                         /* [world] of the others, mapped; NULL: this process's */
    uint64_t *window_bytes;
} trek_comm_shared;

/* Where a rank's memory of a call lies, if it is shared. */
trek_shared_span *trek_shared_span_of(const trek_comm_shared *self, int turn, int rank);
/* Two pages for the bytes of a call that lie outside of whole pages. */
char *trek_shared_edge(const trek_comm_shared *self, int turn, int rank);
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
