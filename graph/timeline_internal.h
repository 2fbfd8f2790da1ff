/* SPDX-License-Identifier: Apache-2.0 */
/* A timeline: the ring of entries, and the table of what was recorded of ops, whose rows are never dropped. */
#ifndef TREK_GRAPH_TIMELINE_INTERNAL_H
#define TREK_GRAPH_TIMELINE_INTERNAL_H

#include <pthread.h>

#include "graph/timeline.h"
#include "tensor/trace.h"

/* What is told apart; numbers are trek_interned's. Compared as bytes: all of it is set. */
typedef struct trek_timeline_key {
    uint32_t kind; /* trek_trace_kind */
    uint32_t backward, name, path, shapes;
    int32_t rank;
} trek_timeline_key;

typedef struct trek_timeline_cell {
    trek_timeline_key key;
    bool on_device;              /* some call was asynchronous: its time is the host's */
    int64_t calls;               /* 0: the place is free */
    int64_t total_ns, self_ns, least_ns, most_ns;
    double flops, bytes, inside_flops, inside_bytes, made_bytes, result_bytes;
    uint32_t result;             /* of a module: what its last call gave, "f32[64, 10]"; 0: not known */
    int64_t device_ns;           /* of outermost ops, as far as their events were read */
} trek_timeline_cell;

/* Events around ops on devices (timeline_marks.c). Under the timeline's lock. */
typedef struct trek_timeline_mark trek_timeline_mark;
typedef struct trek_timeline_marks {
    trek_timeline_mark *all;
    int count, free, pending;    /* free, pending: the first of a list, -1: none */
    bool failed;
} trek_timeline_marks;

/* An op's work begins on the device, in the calling thread's order: a number, 0: it is not measured. */
int trek_timeline_mark_begin(trek_timeline_marks *marks, trek_device device);
/* It ends; NULL: it failed. */
void trek_timeline_mark_end(trek_timeline_marks *marks, int number, trek_timeline_cell *cell);
/* Waits for what has ended on the hosts' side, and adds its time to its cell; not counts: forgets it. */
void trek_timeline_marks_read(trek_timeline_marks *marks, bool counts);
void trek_timeline_marks_free(trek_timeline_marks *marks);

/* Open addressing, made once: recording needs no memory. */
typedef struct trek_timeline_table {
    trek_timeline_cell *cells;
    int64_t slots, used, rows;   /* rows: from so many on, what is new is told apart more coarsely */
    int64_t first_ns, last_ns;   /* what was recorded began and ended then; 0: nothing was */
} trek_timeline_table;

struct trek_timeline {
    pthread_mutex_t lock;
    trek_timeline_entry *ring;
    int64_t capacity, first, count, dropped;
    bool ranges, ops, devices;
    trek_timeline_marks marks;
    trek_timeline_table table;   /* of one with ops */
};

/* Attaches one with ops where none is attached; and whether it is attached still, as nobody's has taken its place: then it is
 * detached. Between the two it has heard of everything. */
bool trek_timeline_borrow(trek_timeline *timeline);
bool trek_timeline_return(trek_timeline *timeline);

/* A copy of the entries, the oldest first, so that nobody waits for the disk or the network; the caller's (trek_free). NULL and
 * MEMORY. */
trek_timeline_entry *trek_timeline_snapshot(trek_timeline *timeline, int64_t *count, int64_t *dropped);

/* MEMORY. */
trek_status trek_timeline_table_init(trek_timeline_table *table, int64_t rows);
void trek_timeline_table_clear(trek_timeline_table *table);
/* Under the timeline's lock. Returns the key's cell. */
trek_timeline_cell *trek_timeline_table_add(trek_timeline_table *table, const trek_timeline_key *key,
                                            const trek_trace_record *record, bool on_device);

/* The name of what the table cannot tell apart any more, as a number. */
uint32_t trek_timeline_other(void);

#endif
