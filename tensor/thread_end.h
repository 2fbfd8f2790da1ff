/* SPDX-License-Identifier: Apache-2.0 */
/* Data of a thread that end with it. Each subject keeps one word in the static TLS block, which is small and shared
 * by all libraries of a process, and the rest in memory that it allocates when needed and frees here. */
#ifndef TREK_TENSOR_THREAD_END_H
#define TREK_TENSOR_THREAD_END_H

#include "tensor/common.h"

/* In the order in which they end: parts that release variables come before those that hold their memory; errors are
 * last. */
typedef enum trek_thread_part {
    TREK_THREAD_AUTOCAST,
    TREK_THREAD_SCOPES,
    TREK_THREAD_TAPE,
    TREK_THREAD_CACHE,
    TREK_THREAD_RANGES,
    TREK_THREAD_TRACE,
    TREK_THREAD_PLACE,
    TREK_THREAD_BATCH,
    TREK_THREAD_ERROR,
    TREK_THREAD_PARTS
} trek_thread_part;

/* Registers `end`, which is called on this thread when it ends, once for all calls with the same part; never, if the
 * system has no key left. It needs no memory of trek. The main thread's parts end with the process. */
void trek_thread_at_end(trek_thread_part part, void (*end)(void));
/* Ends the parts of this thread now, for code that runs several threads of a program on one of the system's. */
void trek_thread_end(void);

#endif
