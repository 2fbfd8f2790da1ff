/* SPDX-License-Identifier: Apache-2.0 */
/* A loop, and one run of it. */
#ifndef TREK_GRAPH_LOOP_INTERNAL_H
#define TREK_GRAPH_LOOP_INTERNAL_H

#include <pthread.h>

#include "graph/verbs.h"

/* The values published under one name. */
typedef struct loop_trace {
    char *name;
    int n, capacity;
    trek_var **values;        /* owned */
    int64_t pass;             /* of the last value */
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
    char *trace;              /* name for the stream after each pass; NULL: not published */
    pthread_mutex_t lock;     /* guards the traces, which are those of the last forward on any thread */
    loop_traces traces;
} trek_loop;

/* One forward of a loop. Variables are owned unless stated otherwise. */
typedef struct loop_run {
    const trek_loop *loop;
    trek_var *const *inputs;  /* of the caller */
    int n;
    int64_t pass, rows, live; /* rows, live: with a condition */
    trek_var *x;
    bool *halted;             /* [rows] */
    int64_t *places;          /* [rows] the row whose values the body gets at each index */
    double *numbers, *spent;  /* [rows] the condition's numbers; the passes, or the sum of h */
    trek_var *mask, *index;   /* halted and places as variables; NULL while all rows are live */
    trek_var *sum, *result, *cost; /* adaptive: sums of h [rows], of p x, and N + p_N [rows] */
    loop_traces traces;
    struct loop_run *around;  /* the enclosing loop's run on this thread */
} loop_run;

/* Moves the traces of the forward that ends to the loop. */
void trek_loop_keep_traces(trek_loop *loop, loop_traces *traces);
void trek_loop_free_traces(loop_traces *traces);
/* Makes `run` the innermost loop of the thread, and returns the one before. */
loop_run *trek_loop_enter(loop_run *run);
trek_status trek_loop_record(loop_run *run, const char *name, trek_var *value);

#endif
