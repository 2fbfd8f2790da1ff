/* SPDX-License-Identifier: Apache-2.0 */
/* Gradients in buckets: they are cut in the same way on all ranks, and sent in one order, as a backward pass
 * completes them or all at once. */
#ifndef TREK_DISTRIBUTED_TEAM_BUCKETS_H
#define TREK_DISTRIBUTED_TEAM_BUCKETS_H

#include "tensor/tensor.h"

struct trek_reducer;

/* Items [first, end), from the beginning of the first to the end of the last, or a piece of an item that is too
 * large. In an arena that sharers cut at any element it is a stretch, which contains items as a whole, in part or not
 * at all (then `first` is the next item). If the sharers have weights, it lies in the stretch of one of them. */
typedef struct trek_bucket {
    int part, first, end;
    int owner;               /* the sharer that has all of it; -1: each has an even part, or there are no sharers */
    int second;              /* the sharer that keeps it, too (trek_arena_keepers_at); -1: none */
    int64_t begin, count;    /* number of elements */
} trek_bucket;

typedef struct trek_buckets {
    int n;
    trek_bucket *list;
    int *first_of;           /* [items] the first bucket that contains an item */
    int *waiting;            /* [buckets] items that are not complete in this pass */
    int next;                /* the next one to be sent */
} trek_buckets;

/* Cuts the reducer's items into buckets of at most `bytes`. The first bucket has at most 1 MiB, so that an engine
 * starts early. owner: [items] the owner of each among an arena's sharers; NULL: items have no owners. Fails with
 * MEMORY. */
trek_status trek_buckets_cut(trek_buckets *buckets, const struct trek_reducer *reducer, int64_t bytes, const int *owner);
void trek_buckets_clear(trek_buckets *buckets);

/* Elements [begin, end) of a part that one sharer keeps, and a second one (-1: none). */
typedef struct trek_bucket_piece {
    int owner, second;
    int64_t begin, end;
} trek_bucket_piece;
/* Finds the next piece among elements [*at, end) of a part, and moves *at behind it. What lies in no bucket is padding. Returns
 * false if there is none. sharers: of the arena, which has cuts. */
bool trek_buckets_next_piece(const trek_buckets *buckets, int sharers, int part, int64_t *at, int64_t end,
                             trek_bucket_piece *piece);
/* Returns the first bucket that ends behind an element of a part, or their number. Buckets lie in the order of parts and
 * elements. */
int trek_buckets_find(const trek_buckets *buckets, int part, int64_t at);

typedef void (*trek_bucket_fn)(const trek_bucket *bucket, void *arg);
/* Begins a pass. */
void trek_buckets_begin(trek_buckets *buckets);
/* Notes that an item is complete, and sends the buckets that are complete and next in order. */
void trek_buckets_complete(trek_buckets *buckets, int item, trek_bucket_fn send, void *arg);
/* Sends what is left. */
void trek_buckets_rest(trek_buckets *buckets, trek_bucket_fn send, void *arg);

#endif
