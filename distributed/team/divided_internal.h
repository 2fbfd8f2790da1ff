/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of divided.h have in common: the record of a rank, whose pages these are, and where their values come from. */
#ifndef TREK_DISTRIBUTED_TEAM_DIVIDED_INTERNAL_H
#define TREK_DISTRIBUTED_TEAM_DIVIDED_INTERNAL_H

#include "distributed/comm/shared/lent.h"
#include "distributed/system/system.h"
#include "distributed/team/ahead.h"
#include "distributed/team/copier.h"
#include "distributed/team/divided.h"
#include "tensor/pages.h"
#include "tensor/rank_context.h"

/* Of one bucket. */
typedef struct trek_divided_bucket {
    bool gathered;           /* its pieces of others are here, */
    bool coming;             /* or are being copied ahead of their use; */
    bool ahead;              /* they were, and it was not read since */
    uint64_t use, order;     /* by which it was read last; when it was gathered */
} trek_divided_bucket;

struct trek_divided {
    const trek_team *team;
    int rank;
    trek_pages_keeper keeper;
    int capacity, n_gathered; /* n_gathered: with what is coming */
    trek_ahead *ahead;       /* NULL: nothing is copied ahead of its use */
    trek_copier *copier;     /* of a GPU rank; NULL: of a CPU rank */
    trek_tensor **shown;     /* [parts] what other processes read of a GPU rank's parameters, in host memory; NULL: nothing */
    const trek_rank_context *thread; /* the rank's own */
    bool blank;              /* no rank has values yet that it could read (trek_divided_begin) */
    bool follows;            /* copies follow the last update of all ranks */
    trek_divided_bucket *buckets; /* [capacity], by the number of the reducer's bucket */
    trek_lock lock;          /* of all below, since several threads may read rank 0's parameters (trek_graph_infer) */
    int readers;             /* ops that are reading: nothing is given back that is not theirs alone */
    uint64_t gatherings;
    int64_t gathered[2];     /* buckets, when they were needed, and ahead of that */
    bool keeps;              /* what it has gathered stays until the next update */
    bool updates;            /* the rank's optimizer may write its own cuts */
    bool written;            /* of rank 0: the program has written, and everything is here */
};

static inline const rank_replica *trek_divided_own(const trek_divided *d) { return &d->team->replicas[d->rank]; }

static inline size_t trek_divided_item(const trek_arena *arena, int part) { return trek_dtype_size(arena->parts[part].dtype); }

/* divided_pieces.c: who has which elements, and their memory. Returns where an element is. */
char *trek_divided_place_of(const trek_arena *arena, int part, int64_t at);
/* Returns the elements of a part in which bytes lie. */
trek_arena_cut trek_divided_range_of(const trek_arena *arena, const void *from, size_t bytes);
/* Returns whether all elements of a range are the rank's own. */
bool trek_divided_is_own(const trek_arena *arena, const trek_arena_cut *range);
/* Takes the memory of a range. surely: whatever the account may have. */
trek_status trek_divided_take(const trek_arena *arena, const trek_arena_cut *range, bool surely);
/* Lets as much memory stay as a range needs, of what is given back from now on, for what is taken next; range NULL: no more. */
void trek_divided_keep_spare(const trek_arena *arena, const trek_arena_cut *range);
/* Gives back what is not the rank's own: of pages that have a part's layout, or of the parameters. */
void trek_divided_give_back_in(const trek_arena *arena, int part, trek_pages *pages, int64_t begin, int64_t end);
void trek_divided_give_back(const trek_arena *arena, int part, int64_t begin, int64_t end);
/* Makes what other processes read of a GPU's parameters: a copy of its own cuts in host memory. */
trek_status trek_divided_make_shown(trek_divided *d);
/* Copies cuts there, if there is such a copy. */
trek_status trek_divided_show_own(const trek_divided *d, const trek_arena_cut *cuts, int n);

/* divided_copy.c: copies what others keep to memory that was taken. The first is called before the second. */
trek_status trek_divided_begin_copies(trek_divided *d);
trek_status trek_divided_copy_elements(const trek_divided *d, const trek_arena_cut *range);
/* Does both, and waits for it. */
trek_status trek_divided_copy_range(trek_divided *d, const trek_arena_cut *range);

/* divided_read.c: what an op is about to read is gathered. The keeper's functions, with `arg` a trek_divided: */
trek_status trek_divided_read_bytes(void *arg, const void *from, size_t bytes, uint64_t use, bool first);
void trek_divided_leave_op(void *arg);
/* What the thread that gathers ahead calls (trek_ahead_work). */
trek_status trek_divided_copy_bucket(void *arg, int k);
void trek_divided_end_copy(void *arg, int k, trek_status status);
/* Gives back what was gathered. Called with the lock held. An op of another thread that reads meanwhile keeps what it has.
 * readers: those that do not count. */
void trek_divided_drop_copies(trek_divided *d, int readers);
/* Does that at the end of what was noted for gathering ahead, and takes the lock. */
void trek_divided_forget_now(trek_divided *d);
/* Takes everything, and copies it. Other processes do not see it. Called with the lock held; readers: as above. */
trek_status trek_divided_take_all(trek_divided *d, int readers);
/* Waits until nothing is being copied. */
void trek_divided_rest_of(trek_divided *d);

/* divided_write.c: what a program, or the optimizer, is about to write. Of the keeper, too. */
trek_status trek_divided_write_bytes(void *arg, const void *from, size_t bytes, uint64_t use, bool first);

#endif
