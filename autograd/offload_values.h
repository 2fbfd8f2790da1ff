/* SPDX-License-Identifier: Apache-2.0 */
/* What a tape has of its own for offloading. */
#ifndef TREK_AUTOGRAD_OFFLOAD_VALUES_H
#define TREK_AUTOGRAD_OFFLOAD_VALUES_H

#include "autograd/offload_move.h"
#include "autograd/tape_internal.h"

enum { TREK_OFFLOAD_DEEPEST = 64 };

typedef struct trek_value_list {
    trek_value *first, *last;
    int n;
} trek_value_list;

struct trek_offload {
    int depth;
    trek_offload_opts before[TREK_OFFLOAD_DEEPEST];
    int ahead;                 /* as last asked for */
    bool stopped, warned;      /* no host memory, or no copies: not tried again in this step; it was said */
    trek_value **buckets;      /* by storage */
    int n_buckets;             /* a power of two */
    trek_value_list staying;   /* on the device, not copied: somebody else holds them, or did */
    trek_value_list leaving;   /* in the order in which their copies end */
    trek_lane *lanes;
};

/* The tape's, made at need; NULL and MEMORY. NULL for no tape. */
struct trek_offload *trek_offload_of(trek_tape *tape);

#endif
