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
    double flops, bytes, inside_flops, inside_bytes;
} trek_timeline_cell;

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
    bool ranges, ops;
    trek_timeline_table table;   /* of one with ops */
};

/* MEMORY. */
trek_status trek_timeline_table_init(trek_timeline_table *table, int64_t rows);
void trek_timeline_table_clear(trek_timeline_table *table);
/* Under the timeline's lock. */
void trek_timeline_table_add(trek_timeline_table *table, const trek_timeline_key *key, const trek_trace_record *record,
                             bool on_device);

/* The name of what the table cannot tell apart any more, as a number. */
uint32_t trek_timeline_other(void);

#endif
