/* SPDX-License-Identifier: Apache-2.0 */
/* What a thread has of its own ends with it. A subject keeps one word in the static TLS block, which is small and shared
 * by all libraries of a process, and the rest in memory that it asks for at need and gives back here. Internal. */
#ifndef TREK_TENSOR_THREAD_END_H
#define TREK_TENSOR_THREAD_END_H

#include "tensor/common.h"

/* In the order in which they end: who may release variables comes before who holds their memory, errors go last. */
typedef enum trek_thread_part {
    TREK_THREAD_AUTOCAST,
    TREK_THREAD_SCOPES,
    TREK_THREAD_TAPE,
    TREK_THREAD_CACHE,
    TREK_THREAD_RANGES,
    TREK_THREAD_TRACE,
    TREK_THREAD_PLACE,
    TREK_THREAD_ERROR,
    TREK_THREAD_PARTS
} trek_thread_part;

/* `end` is called on this thread when it ends, once for this call and any others with the same part; where the system
 * has no key left, never. Needs no memory of trek's. The main thread's parts end with the process. */
void trek_thread_at_end(trek_thread_part part, void (*end)(void));
/* Ends the parts of this thread now: for who runs several threads of a program on one of the system's. */
void trek_thread_end(void);

#endif
