/* SPDX-License-Identifier: Apache-2.0 */
/* A timeline: the ring of entries, and the table of what ops have recorded, whose rows are never dropped. */
#ifndef TREK_GRAPH_TIMELINE_INTERNAL_H
#define TREK_GRAPH_TIMELINE_INTERNAL_H

#include <pthread.h>

#include "graph/timeline.h"
#include "tensor/trace.h"

/* What distinguishes rows; the numbers are those of trek_interned. Keys are compared as bytes, so everything must be
 * set. */
typedef struct trek_timeline_key {
    uint32_t kind; /* trek_trace_kind */
    uint32_t backward, name, path, shapes;
    int32_t rank;
} trek_timeline_key;

typedef struct trek_timeline_cell {
    trek_timeline_key key;
    bool on_device;              /* some call was asynchronous: its time is that of the host */
    int64_t calls;               /* 0: the entry is free */
    int64_t total_ns, self_ns, least_ns, most_ns;
    double flops, bytes, inside_flops, inside_bytes, made_bytes, result_bytes;
    uint32_t result;             /* of a module: the result of its last call, "f32[64, 10]"; 0: not known */
    int64_t device_ns;           /* of outermost ops whose events were read */
} trek_timeline_cell;

/* Events around ops on devices (timeline_marks.c), guarded by the timeline's lock. */
typedef struct trek_timeline_mark trek_timeline_mark;
typedef struct trek_timeline_marks {
    trek_timeline_mark *all;
    int count, free, pending;    /* free, pending: the first of a list, or -1 */
    bool failed;
} trek_timeline_marks;

/* Marks the beginning of an op on the device, in the calling thread's order. Returns a number, or 0 if it is not
 * measured. */
int trek_timeline_mark_begin(trek_timeline_marks *marks, trek_device device);
/* Marks its end. NULL: the op failed. */
void trek_timeline_mark_end(trek_timeline_marks *marks, int number, trek_timeline_cell *cell);
/* Waits for ops that have ended on the host, and adds their times to their cells, or drops them if counts is false. */
void trek_timeline_marks_read(trek_timeline_marks *marks, bool counts);
void trek_timeline_marks_free(trek_timeline_marks *marks);

/* A hash table with open addressing. It is allocated once, so that recording needs no memory. */
typedef struct trek_timeline_table {
    trek_timeline_cell *cells;
    int64_t slots, used, rows;   /* rows: when the table has this many, new entries are distinguished less finely */
    int64_t first_ns, last_ns;   /* when what was recorded began and ended; 0: nothing was recorded */
} trek_timeline_table;

struct trek_timeline {
    pthread_mutex_t lock;
    trek_timeline_entry *ring;
    int64_t capacity, first, count, dropped;
    bool ranges, ops, devices;
    trek_timeline_marks marks;
    trek_timeline_table table;   /* of a timeline with ops */
};

/* borrow attaches a timeline with ops if none is attached. return detaches it and says whether it was attached all
 * the time; then it has recorded everything in between. */
bool trek_timeline_borrow(trek_timeline *timeline);
bool trek_timeline_return(trek_timeline *timeline);

/* Returns a copy of the entries, the oldest first, so that nobody waits for the disk or the network. The caller frees
 * it with trek_free. Returns NULL on failure (MEMORY). */
trek_timeline_entry *trek_timeline_snapshot(trek_timeline *timeline, int64_t *count, int64_t *dropped);

/* Fails with MEMORY. */
trek_status trek_timeline_table_init(trek_timeline_table *table, int64_t rows);
void trek_timeline_table_clear(trek_timeline_table *table);
/* Returns the key's cell. Called with the timeline's lock held. */
trek_timeline_cell *trek_timeline_table_add(trek_timeline_table *table, const trek_timeline_key *key,
                                            const trek_trace_record *record, bool on_device);

/* Returns the number of the name for everything that the table can no longer distinguish. */
uint32_t trek_timeline_other(void);

#endif
