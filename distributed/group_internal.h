/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TREK_DISTRIBUTED_GROUP_INTERNAL_H
#define TREK_DISTRIBUTED_GROUP_INTERNAL_H

#include "distributed/comm_internal.h"
#include "distributed/group.h"

/* Something that a rank made and that should be freed on its thread: its tape. */
typedef struct trek_rank_garbage {
    struct trek_rank_garbage *next;
    void (*free)(struct trek_rank_garbage *garbage);
} trek_rank_garbage;

trek_ranks *trek_ranks_retain(trek_ranks *ranks);
/* From any thread: freed by the rank before its next run, or when the group ends. Rank 0: at once. */
void trek_ranks_free_later(trek_ranks *ranks, int rank, trek_rank_garbage *garbage);

#endif
