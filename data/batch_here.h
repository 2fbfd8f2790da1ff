/* SPDX-License-Identifier: Apache-2.0 */
/* What loaders and readers note of the calling thread: its current batch, and how long it has waited for data. */
#ifndef TREK_DATA_BATCH_HERE_H
#define TREK_DATA_BATCH_HERE_H

#include "data/loader.h"
#include "tensor/scope.h"

typedef struct trek_batch_slot {
    const trek_loader *loader; /* the one that gave the current batch; NULL: none */
    int64_t rows;              /* samples of the batch in this process; -1: no forward of the caller covers it, or none */
    int64_t first;             /* the position of its first sample in the global batch */
    int64_t global;            /* samples of the global batch */
    uint64_t digest;           /* in a job of several processes: a digest of what its loader gives; 0: not compared */
    int64_t fed_ns;            /* how long the thread has waited for a reader's batches, or fetched them, in total; */
    int64_t loader_ns;         /* and for a loader's, which may serve all ranks of the process */
    uint64_t outermost;        /* the id of the thread's outermost active loader, which is active as long as its batch's scope */
    trek_scope scope;          /* is open; 0: none. The slot's address identifies the thread */
} trek_batch_slot;

extern _Thread_local trek_batch_slot *trek_batch_here_mine; /* NULL: not used yet */

/* Makes the calling thread's. Without memory it sets MEMORY and returns one that such threads share. */
trek_batch_slot *trek_batch_here_make(void);
/* Returns the calling thread's, never NULL. */
static inline trek_batch_slot *trek_batch_here(void)
{
    return trek_batch_here_mine ? trek_batch_here_mine : trek_batch_here_make();
}

#endif
