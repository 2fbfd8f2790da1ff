/* SPDX-License-Identifier: Apache-2.0 */
/* Gradients in buckets: how they are cut for reductions, the same on all ranks, and sending
 * them in one order, as a backward completes them or all at once. Internal. */
#ifndef TREK_DISTRIBUTED_STEP_BUCKETS_H
#define TREK_DISTRIBUTED_STEP_BUCKETS_H

#include "distributed/comm/comm_internal.h"
#include "optim/arena.h"

/* A parameter's place: gradients lie dtype by dtype, each part in order of its items. */
typedef struct trek_bucket_item {
    int part;
    trek_dtype wide;         /* of what is sent */
    int64_t offset, count;   /* elements, in its part */
} trek_bucket_item;

/* Items [first, end), from the begin of the first to the end of the last; or a piece of one that is too large. */
typedef struct trek_bucket {
    int part, first, end;
    int64_t begin, count;    /* elements */
} trek_bucket;

typedef struct trek_buckets {
    int n, n_items;
    trek_bucket *list;
    int *first_of;           /* [items] the first bucket that an item is in */
    int *waiting;            /* [buckets] items that are not complete in this pass */
    int next;                /* the next one to be sent */
} trek_buckets;

/* Buckets of at most `bytes`, the first one of 1 MiB at most, so that an engine is soon at work. MEMORY. */
trek_status trek_buckets_cut(trek_buckets *buckets, const trek_bucket_item *items, int n, int64_t bytes);
/* Those of an arena's gradients: an item for each segment. */
trek_status trek_buckets_cut_arena(trek_buckets *buckets, const trek_arena *arena, int64_t bytes);
void trek_buckets_clear(trek_buckets *buckets);

typedef void (*trek_bucket_fn)(const trek_bucket *bucket, void *arg);
/* A pass begins. */
void trek_buckets_begin(trek_buckets *buckets);
/* An item is complete: buckets that have become so, and whose turn it is, are sent. */
void trek_buckets_complete(trek_buckets *buckets, int item, trek_bucket_fn send, void *arg);
/* What is left. */
void trek_buckets_rest(trek_buckets *buckets, trek_bucket_fn send, void *arg);

/* The sum of a bucket's gradients over the ranks of a communicator, in place. */
trek_comm_call trek_bucket_call(const trek_arena *arena, const trek_bucket *bucket);
/* All of an arena's. start: calls are started; the caller finishes. The first failure; all are made, so that nobody waits. */
trek_status trek_buckets_reduce(const trek_buckets *buckets, const trek_arena *arena, trek_comm *comm, bool start);

#endif
