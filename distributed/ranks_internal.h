/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TREK_DISTRIBUTED_RANKS_INTERNAL_H
#define TREK_DISTRIBUTED_RANKS_INTERNAL_H

#include "distributed/comm/comm_internal.h"
#include "distributed/ranks.h"

/* trek_ranks_run without the sums: layers find what fn itself enters, or are alone. */
trek_status trek_ranks_call(trek_ranks *ranks, trek_rank_fn fn, void *arg);
trek_ranks *trek_ranks_retain(trek_ranks *ranks);
trek_device trek_ranks_device(const trek_ranks *ranks, int rank);
/* The sums that layers of its ranks make (rank_sums.h). */
struct trek_rank_sums *trek_ranks_sums(trek_ranks *ranks);
/* Who watches the present backward through split forwards (step/split_forward.h), during it; NULL: nobody. */
const struct trek_split_watch **trek_ranks_split_watch(trek_ranks *ranks);
/* The rank of the group that the calling thread runs as, inside trek_ranks_run; -1: none. */
int trek_ranks_rank_here(const trek_ranks *ranks);

#endif
