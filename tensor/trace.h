/* SPDX-License-Identifier: Apache-2.0 */
/* The trace sink: lower floors report spans here, graph/timeline reads them.
 * Costs one load and a branch while nobody listens. Internal. */
#ifndef TREK_TENSOR_TRACE_H
#define TREK_TENSOR_TRACE_H

#include <stdatomic.h>
#include <stdint.h>

typedef struct trek_trace_sink {
    /* name must be a string that lives as long as the program. Times are
     * nanoseconds of trek_clock_ns(). Called from any thread. */
    void (*span)(const char *name, int rank, int64_t start_ns, int64_t end_ns, int64_t detail, void *arg);
    void (*event)(const char *name, int rank, int64_t at_ns, double value, void *arg);
    void *arg;
    /* On the thread of a span, where it begins and where it ends; may be NULL. */
    void (*enter)(const char *name);
    void (*leave)(const char *name);
} trek_trace_sink;

extern _Atomic(const trek_trace_sink *) trek_trace; /* NULL: off */

/* Monotonic nanoseconds. */
int64_t trek_clock_ns(void);

int64_t trek_trace_entered(const char *name);
/* Begins a span, under the name that it will be ended by; its start, or 0 while nobody listens. */
static inline int64_t trek_trace_enter(const char *name)
{
    return atomic_load_explicit(&trek_trace, memory_order_relaxed) ? trek_trace_entered(name) : 0;
}
/* Reports a span of the calling thread's rank that began at start_ns (0: nothing). */
void trek_trace_end(const char *name, int64_t start_ns, int64_t detail);
void trek_trace_event(const char *name, double value);

#endif
