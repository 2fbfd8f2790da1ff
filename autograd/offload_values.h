/* SPDX-License-Identifier: Apache-2.0 */
/* A tape's state for offloading. */
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
    int ahead;                 /* as last requested */
    bool stopped, warned;      /* out of host memory, or copies failed: not tried again in this step; a warning was given */
    trek_value **buckets;      /* by storage */
    int n_buckets;             /* a power of two */
    trek_value_list staying;   /* on the device and not copied: other holders exist or existed */
    trek_value_list leaving;   /* in the order in which their copies end */
    trek_lane *lanes;
    int64_t sent;              /* bytes, since it was made */
};

/* Returns the tape's state, made when first needed, or NULL with MEMORY. Returns NULL for a NULL tape. */
struct trek_offload *trek_offload_of(trek_tape *tape);

#endif
