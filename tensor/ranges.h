/* SPDX-License-Identifier: Apache-2.0 */
/* Spans of the trace sink as named ranges for a device's profiler (NVTX): while
 * TREK_NVTX=1 is in the environment, or a timeline asks for them. Internal. */
#ifndef TREK_TENSOR_RANGES_H
#define TREK_TENSOR_RANGES_H

#include <stdbool.h>

#include "tensor/trace.h"

/* Whether some backend has them; opens the CUDA plug-in. */
bool trek_ranges_available(void);
/* Whether the environment asks for them and the CUDA plug-in, already open, has them. */
bool trek_ranges_wanted(void);
/* What a sink's enter and leave are made of: ranges of the calling thread, which stay nested also where a span
 * that failed was never ended. */
void trek_ranges_enter(const char *name);
void trek_ranges_leave(const char *name);
/* A sink that does nothing else. */
extern const trek_trace_sink trek_ranges_sink;
/* Puts it in place if ranges are wanted and nobody listens yet. */
void trek_ranges_start(void);

#endif
