/* SPDX-License-Identifier: Apache-2.0 */
/* The trace sink: lower folders report spans here, and graph/timeline reads them. It costs one load and a branch
 * while nobody listens. */
#ifndef TREK_TENSOR_TRACE_H
#define TREK_TENSOR_TRACE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "tensor/debug.h"
#include "tensor/types.h"

struct trek_op_call;
struct trek_tensor;

/* The frames on a thread's stack: what the thread is doing. */
typedef enum trek_trace_kind {
    TREK_TRACE_SPAN,
    TREK_TRACE_OP,
    TREK_TRACE_MODULE,   /* a module's forward */
    TREK_TRACE_NODE,     /* the backward of an op, or of a program's function, on the tape */
} trek_trace_kind;

/* A frame that has ended. */
typedef struct trek_trace_record {
    trek_trace_kind kind;
    const char *name;
    uint32_t path;       /* the module that it is part of (trek_interned); 0: none */
    bool backward;       /* inside a node's backward: path is that of the op's forward */
    int rank;
    int64_t start_ns, end_ns, inside_ns; /* inside: the time of frames inside it */
    int64_t detail;
    const struct trek_op_call *call; /* of an op that succeeded; otherwise NULL */
    const struct trek_tensor *result; /* the first result of a module that succeeded; otherwise NULL */
    bool inside_op;                  /* some frame around it is an op's */
    bool on_device;                  /* asynchronous: its time is the host's */
    double flops, bytes;             /* its own; for a call the listener sets them */
    double inside_flops, inside_bytes; /* of the frames inside it */
    int mark;                        /* the listener's, from trek_trace_mark; 0: none */
} trek_trace_record;

typedef struct trek_trace_sink {
    /* name must be a string that lives as long as the program. Times are nanoseconds of trek_clock_ns(). Called from
     * any thread. */
    void (*span)(const char *name, int rank, int64_t start_ns, int64_t end_ns, int64_t detail, void *arg);
    void (*event)(const char *name, int rank, int64_t at_ns, double value, void *arg);
    void *arg;
    /* Called on the thread of a span, at its beginning and at its end; may be NULL. */
    void (*enter)(const char *name);
    void (*leave)(const char *name);
    /* Receives frames, including spans; ops, modules and nodes are reported while trek_trace_records() is true. May
     * be NULL. */
    void (*frame)(trek_trace_record *record, void *arg);
    /* Called before the work of an op on a device. Returns a number for its record, or 0. NULL: devices are not
     * measured. */
    int (*mark)(trek_device device, void *arg);
} trek_trace_sink;

extern _Atomic(const trek_trace_sink *) trek_trace_now; /* NULL: off */

/* A second receiver of what trek reports about a step, in addition to the sink or without one: lanes of a watched
 * run. Without enter and leave, spans are not reported and cost as little as without a receiver. */
typedef struct trek_trace_watch {
    void (*enter)(const char *name);
    void (*leave)(const char *name, int64_t start_ns, int64_t end_ns);
    void (*samples)(int64_t n);
} trek_trace_watch;
extern _Atomic(const trek_trace_watch *) trek_trace_watcher; /* NULL: none */

/* Returns monotonic nanoseconds. */
int64_t trek_clock_ns(void);
/* Returns the calling thread's number, in the order in which threads first call this. Also 0 if there is no memory to
 * store it. */
int trek_trace_thread(void);

int64_t trek_trace_entered(const char *name);
/* Begins a span with the name by which it will be ended. Returns its start, or 0 while nobody listens. */
static inline int64_t trek_trace_enter(const char *name)
{
    const trek_trace_watch *watch = atomic_load_explicit(&trek_trace_watcher, memory_order_acquire);
    bool told = atomic_load_explicit(&trek_trace_now, memory_order_relaxed) || (watch && watch->enter);
    return told ? trek_trace_entered(name) : 0;
}
/* Reports a span of the calling thread's rank that began at start_ns (0: nothing). */
void trek_trace_end(const char *name, int64_t start_ns, int64_t detail);
void trek_trace_event(const char *name, double value);
/* Return whether somebody counts samples, and report how many went through a forward of the calling thread's rank. */
static inline bool trek_trace_counts(void) { return atomic_load_explicit(&trek_trace_watcher, memory_order_relaxed); }
void trek_trace_samples(int64_t n);

/* --- frames -------------------------------------------------------------------------- */

/* Returns whether ops, modules and nodes are recorded. */
extern atomic_bool trek_trace_recording;
static inline bool trek_trace_records(void)
{
    return __builtin_expect(atomic_load_explicit(&trek_trace_recording, memory_order_relaxed), 0);
}

/* All of these are for the calling thread, and only while trek_trace_records(). begin returns the frame for end; 0
 * without memory, for which end does nothing. Frames that were begun inside a frame and never ended, because they
 * failed, end with it and are not reported. */
TREK_SELDOM int trek_trace_begin_op(const char *name);
TREK_SELDOM void trek_trace_end_op(int frame, const struct trek_op_call *call); /* NULL: the op failed */
/* Marks the beginning of the op's work on that device, for listeners that measure it. Nothing inside another measured
 * op is marked. */
TREK_SELDOM void trek_trace_mark(int frame, trek_device device);
/* Ends the frame of a pass over a number of bytes, which is not a call of an op. */
void trek_trace_end_pass(int frame, double bytes, bool on_device);
/* Begins a module's forward, under its name in the module around it (or its class's name). `module` is only compared. */
int trek_trace_begin_module(const char *name, const void *module);
TREK_SELDOM void trek_trace_end_module(int frame, const struct trek_tensor *result); /* NULL: it failed */
TREK_SELDOM int trek_trace_begin_node(const char *name, uint32_t path);
TREK_SELDOM void trek_trace_end_frame(int frame);
/* Begins a span of the program, which is found again by its start. */
int64_t trek_trace_begin_span(const char *name);
/* Moves the span that began then from the stack to *record, with what was inside it. Returns false if there is none. */
bool trek_trace_take_span(int64_t start_ns, trek_trace_record *record);

/* Returns the innermost module that runs on this thread, or NULL. */
const void *trek_trace_module_here(void);
/* Returns its path, or that of the node whose backward runs; nodes of the tape store it. */
TREK_SELDOM uint32_t trek_trace_path_here(void);

/* Starts a new recording: what is left of an earlier one on any thread is dropped. */
void trek_trace_start_recording(bool on);

#endif
