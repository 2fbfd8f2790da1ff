/* SPDX-License-Identifier: Apache-2.0 */
/* The trace sink: lower floors report spans here, graph/timeline reads them.
 * Costs one load and a branch while nobody listens. Internal. */
#ifndef TREK_TENSOR_TRACE_H
#define TREK_TENSOR_TRACE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "tensor/debug.h"
#include "tensor/types.h"

struct trek_op_call;
struct trek_tensor;

/* What lies on a thread's stack of frames: what it is in the middle of. */
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
    int64_t start_ns, end_ns, inside_ns; /* inside: what frames inside it took */
    int64_t detail;
    const struct trek_op_call *call; /* of an op that succeeded; else NULL */
    const struct trek_tensor *result; /* of a module that succeeded, its first one; else NULL */
    bool inside_op;                  /* some frame around it is an op's */
    bool on_device;                  /* asynchronous: its time is the host's */
    double flops, bytes;             /* its own: of a call the listener puts them there */
    double inside_flops, inside_bytes; /* of the frames inside it */
    int mark;                        /* the listener's, of trek_trace_mark; 0: none */
} trek_trace_record;

typedef struct trek_trace_sink {
    /* name must be a string that lives as long as the program. Times are
     * nanoseconds of trek_clock_ns(). Called from any thread. */
    void (*span)(const char *name, int rank, int64_t start_ns, int64_t end_ns, int64_t detail, void *arg);
    void (*event)(const char *name, int rank, int64_t at_ns, double value, void *arg);
    void *arg;
    /* On the thread of a span, where it begins and where it ends; may be NULL. */
    void (*enter)(const char *name);
    void (*leave)(const char *name);
    /* NULL, or whom frames are told to, spans as well; ops, modules and nodes come while trek_trace_records() says so. */
    void (*frame)(trek_trace_record *record, void *arg);
    /* Before the work of an op on a device: a number for its record, or 0; NULL: nobody measures devices. */
    int (*mark)(trek_device device, void *arg);
} trek_trace_sink;

extern _Atomic(const trek_trace_sink *) trek_trace_now; /* NULL: off */

/* Whom what trek reports of a step is told beside the sink, and whether there is one or not: lanes of a watched run. Without
 * enter and leave, spans are not told, and cost as little as with nobody there. */
typedef struct trek_trace_watch {
    void (*enter)(const char *name);
    void (*leave)(const char *name, int64_t start_ns, int64_t end_ns);
    void (*samples)(int64_t n);
} trek_trace_watch;
extern _Atomic(const trek_trace_watch *) trek_trace_watcher; /* NULL: nobody */

/* Monotonic nanoseconds. */
int64_t trek_clock_ns(void);
/* The calling thread's number, as threads first ask; 0, too, where there is no memory to remember it. */
int trek_trace_thread(void);

int64_t trek_trace_entered(const char *name);
/* Begins a span, under the name that it will be ended by; its start, or 0 while nobody listens. */
static inline int64_t trek_trace_enter(const char *name)
{
    const trek_trace_watch *watch = atomic_load_explicit(&trek_trace_watcher, memory_order_acquire);
    bool told = atomic_load_explicit(&trek_trace_now, memory_order_relaxed) || (watch && watch->enter);
    return told ? trek_trace_entered(name) : 0;
}
/* Reports a span of the calling thread's rank that began at start_ns (0: nothing). */
void trek_trace_end(const char *name, int64_t start_ns, int64_t detail);
void trek_trace_event(const char *name, double value);
/* Whether somebody counts samples; so many went through a forward of the calling thread's rank. */
static inline bool trek_trace_counts(void) { return atomic_load_explicit(&trek_trace_watcher, memory_order_relaxed); }
void trek_trace_samples(int64_t n);

/* --- frames -------------------------------------------------------------------------- */

/* Whether ops, modules and nodes are recorded. */
extern atomic_bool trek_trace_recording;
static inline bool trek_trace_records(void)
{
    return __builtin_expect(atomic_load_explicit(&trek_trace_recording, memory_order_relaxed), 0);
}

/* All of the calling thread, and while trek_trace_records() only. Begin gives the frame, for end; 0 without memory, for
 * which end does nothing. What was begun inside a frame and never ended, because it failed, ends with it untold. */
TREK_SELDOM int trek_trace_begin_op(const char *name);
TREK_SELDOM void trek_trace_end_op(int frame, const struct trek_op_call *call); /* NULL: the op failed */
/* The op's work on that device begins now: for listeners that measure it. Nothing inside another op that is measured. */
TREK_SELDOM void trek_trace_mark(int frame, trek_device device);
/* The same for what is no call of an op, but a pass over so many bytes. */
void trek_trace_end_pass(int frame, double bytes, bool on_device);
/* A module's forward, under its name in the module around it (or its class's name). `module` is only compared. */
int trek_trace_begin_module(const char *name, const void *module);
TREK_SELDOM void trek_trace_end_module(int frame, const struct trek_tensor *result); /* NULL: it failed */
TREK_SELDOM int trek_trace_begin_node(const char *name, uint32_t path);
TREK_SELDOM void trek_trace_end_frame(int frame);
/* A span of a program's own: found again by its start. */
int64_t trek_trace_begin_span(const char *name);
/* Takes the span that began then off the stack into *record, with what was inside it; false if there is none. */
bool trek_trace_take_span(int64_t start_ns, trek_trace_record *record);

/* The innermost module that runs on this thread; NULL: none. */
const void *trek_trace_module_here(void);
/* Its path, or that of the node whose backward runs: what a node of the tape remembers. */
TREK_SELDOM uint32_t trek_trace_path_here(void);

/* From here on frames are new: what is left of an earlier recording on any thread is forgotten. */
void trek_trace_start_recording(bool on);

#endif
