/* SPDX-License-Identifier: Apache-2.0 */
/* A loop, and one run of it. Internal. */
#ifndef TREK_GRAPH_LOOP_INTERNAL_H
#define TREK_GRAPH_LOOP_INTERNAL_H

#include <pthread.h>

#include "graph/verbs.h"

/* The values under one name. */
typedef struct loop_trace {
    char *name;
    int n, capacity;
    trek_var **values;        /* owned */
    int64_t pass;             /* of the last one */
} loop_trace;

typedef struct loop_traces {
    int n, capacity;
    loop_trace *list;
} loop_traces;

typedef struct trek_loop {
    trek_module base;
    trek_module *body, *condition; /* condition NULL: none */
    int64_t times;
    bool before, adaptive;
    double epsilon;
    char *trace;              /* name for the stream after each pass; NULL: none */
    pthread_mutex_t lock;     /* of traces: the last forward's, whichever thread ran it */
    loop_traces traces;
} trek_loop;

/* One forward of a loop. Variables are owned where nothing else is said. */
typedef struct loop_run {
    const trek_loop *loop;
    trek_var *const *inputs;  /* the caller's */
    int n;
    int64_t pass, rows, live; /* rows, live: with a condition */
    trek_var *x;
    bool *halted;             /* [rows] */
    int64_t *places;          /* [rows] the row whose values the body sees in each place */
    double *numbers, *spent;  /* [rows] the condition's; passes, or the sum of h */
    trek_var *mask, *index;   /* halted, places; NULL while all rows are live */
    trek_var *sum, *result, *cost; /* adaptive: of h [rows], of p x, N + p_N [rows] */
    loop_traces traces;
    struct loop_run *around;  /* of this thread */
} loop_run;

/* The traces of the forward that ends become the loop's. */
void trek_loop_keep_traces(trek_loop *loop, loop_traces *traces);
void trek_loop_free_traces(loop_traces *traces);
/* The innermost loop that the thread runs: `run` from here on; returns the one before. */
loop_run *trek_loop_enter(loop_run *run);
trek_status trek_loop_record(loop_run *run, const char *name, trek_var *value);

#endif
