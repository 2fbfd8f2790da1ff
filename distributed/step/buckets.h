/* SPDX-License-Identifier: Apache-2.0 */
/* Gradients in buckets: how an arena is cut for reductions, the same on all ranks. Internal. */
#ifndef TREK_DISTRIBUTED_STEP_BUCKETS_H
#define TREK_DISTRIBUTED_STEP_BUCKETS_H

#include "distributed/comm/comm_internal.h"
#include "optim/arena.h"

typedef struct trek_bucket {
    int number, part;
    int64_t begin, count;    /* elements */
} trek_bucket;

/* Calls fn (NULL: nobody) for each bucket of at most `bytes`, in arena order, the first one of 1 MiB at most, so that an engine
 * is soon at work; until it fails. *n (may be NULL): how many there are. */
typedef trek_status (*trek_bucket_fn)(const trek_bucket *bucket, void *arg);
trek_status trek_buckets_each(const trek_arena *arena, int64_t bytes, trek_bucket_fn fn, void *arg, int *n);
/* The sum of a bucket's gradients over the ranks of a communicator, in place. */
trek_comm_call trek_bucket_call(const trek_arena *arena, const trek_bucket *bucket);

#endif
