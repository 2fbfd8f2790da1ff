/* SPDX-License-Identifier: Apache-2.0 */
/* Spans of the trace sink as named ranges for a device's profiler (NVTX): if TREK_NVTX=1 is in the environment, or a
 * timeline requests them. */
#ifndef TREK_TENSOR_RANGES_H
#define TREK_TENSOR_RANGES_H

#include <stdbool.h>

#include "tensor/trace.h"

/* Returns whether some backend supports them; opens the CUDA plug-in. */
bool trek_ranges_available(void);
/* Returns whether the environment requests them and the CUDA plug-in, already open, supports them. */
bool trek_ranges_wanted(void);
/* Begin and end a range of the calling thread, for a sink's enter and leave. Ranges remain nested even if a span that
 * failed was never ended. */
void trek_ranges_enter(const char *name);
void trek_ranges_leave(const char *name);
/* A sink that does only this. */
extern const trek_trace_sink trek_ranges_sink;
/* Installs it if ranges are requested and no sink is installed yet. */
void trek_ranges_start(void);

#endif
