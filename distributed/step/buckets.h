/* SPDX-License-Identifier: Apache-2.0 */
/* Gradients in buckets: how they are cut for reductions, the same on all ranks, and sending
 * them in one order, as a backward completes them or all at once. Internal. */
#ifndef TREK_DISTRIBUTED_STEP_BUCKETS_H
#define TREK_DISTRIBUTED_STEP_BUCKETS_H

#include "tensor/tensor.h"

struct trek_reducer;

/* Items [first, end), from the begin of the first to the end of the last; or a piece of one that is too large. Of an arena with
 * sharers' cuts anywhere: a stretch of it, in which items lie wholly, in part, or none (first is the next one then). */
typedef struct trek_bucket {
    int part, first, end;
    int owner;               /* the sharer who has all of it; -1: all have an even part, or there are none */
    int64_t begin, count;    /* elements */
} trek_bucket;

typedef struct trek_buckets {
    int n;
    trek_bucket *list;
    int *first_of;           /* [items] the first bucket that an item is in */
    int *waiting;            /* [buckets] items that are not complete in this pass */
    int next;                /* the next one to be sent */
} trek_buckets;

/* The reducer's items in buckets of at most `bytes`; the first one of 1 MiB at most, so that an engine is soon at work.
 * owner: of an arena's sharers, [items] of whom each one is; NULL: of none. MEMORY. */
trek_status trek_buckets_cut(trek_buckets *buckets, const struct trek_reducer *reducer, int64_t bytes, const int *owner);
void trek_buckets_clear(trek_buckets *buckets);

typedef void (*trek_bucket_fn)(const trek_bucket *bucket, void *arg);
/* A pass begins. */
void trek_buckets_begin(trek_buckets *buckets);
/* An item is complete: buckets that have become so, and whose turn it is, are sent. */
void trek_buckets_complete(trek_buckets *buckets, int item, trek_bucket_fn send, void *arg);
/* What is left. */
void trek_buckets_rest(trek_buckets *buckets, trek_bucket_fn send, void *arg);

#endif
