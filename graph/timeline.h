/* SPDX-License-Identifier: Apache-2.0 */
/* Timeline: spans and events of a run in bounded memory, written as a Chrome
 * trace (chrome://tracing, Perfetto).
 *
 * While attached it hears what trek itself reports: "forward", "backward",
 * "optimizer", each gradient bucket, "loader wait", changes of the shares. A
 * program adds spans and events of its own. When the memory is full, the oldest
 * entries are dropped and counted. All functions but free may be called from
 * any thread. */
#ifndef TREK_GRAPH_TIMELINE_H
#define TREK_GRAPH_TIMELINE_H

#include "tensor/status.h"

TREK_BEGIN

typedef struct trek_timeline trek_timeline;

typedef struct trek_timeline_opts {
    int64_t capacity; /* entries held; default 65536 (about 6 MB), at least 1 */
    bool nvtx;        /* while attached, spans are ranges for NVIDIA's profilers, too, where the CUDA plug-in is there
                         (without a timeline: TREK_NVTX=1 in the environment) */
} trek_timeline_opts;

/* opts may be NULL. NULL and ARGUMENT or MEMORY. */
TREK_API trek_timeline *trek_timeline_new(const trek_timeline_opts *opts);
/* Detaches it and frees it. */
TREK_API void trek_timeline_free(trek_timeline **timeline);

/* Makes it hear what trek reports. One timeline of the process at a time; attaching another takes its place. */
TREK_API trek_status trek_timeline_attach(trek_timeline *timeline);
/* Nothing happens unless it is the attached one. When it returns, no thread is writing for trek any more. */
TREK_API void trek_timeline_detach(trek_timeline *timeline);

/* A value: where a span began. */
typedef struct trek_timeline_span {
    int64_t start_ns;
} trek_timeline_span;

TREK_API trek_timeline_span trek_timeline_begin(trek_timeline *timeline);
/* Adds the span from begin to now, on the calling thread and its rank. The name
 * is copied, up to TREK_TIMELINE_NAME - 1 bytes. A NULL timeline: nothing. */
#define TREK_TIMELINE_NAME 48
TREK_API void trek_timeline_end(trek_timeline *timeline, const char *name, trek_timeline_span span);
/* Adds a point in time with a number. */
TREK_API void trek_timeline_event(trek_timeline *timeline, const char *name, double value);

/* One entry, as a value. */
typedef struct trek_timeline_entry {
    char name[TREK_TIMELINE_NAME];
    bool is_span;
    int rank, thread;         /* threads are numbered as they first appear */
    int64_t start_ns, end_ns; /* of a monotonic clock; equal for an event */
    int64_t detail;           /* of spans that trek reports: what the name's document says (bytes, step) */
    double value;             /* of events */
} trek_timeline_entry;

TREK_API int64_t trek_timeline_count(trek_timeline *timeline);   /* entries held now */
TREK_API int64_t trek_timeline_dropped(trek_timeline *timeline); /* entries that had to make room */
/* Entry k, the oldest being 0, in order of their ends; false if there is none. */
TREK_API bool trek_timeline_get(trek_timeline *timeline, int64_t k, trek_timeline_entry *entry);
TREK_API void trek_timeline_clear(trek_timeline *timeline);

/* Writes a Chrome trace (JSON object format; process = rank, times in
 * microseconds from the first entry) to a temporary file beside `path`, then renames it. IO,
 * MEMORY; an earlier file at `path` then stays. */
TREK_API trek_status trek_timeline_save(trek_timeline *timeline, const char *path);

TREK_END

#endif
