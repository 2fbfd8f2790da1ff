/* SPDX-License-Identifier: Apache-2.0 */
/* Grain mode: a step of any number of ranks has the bits of one rank's step.
 *
 * A grain is a fixed number of consecutive samples of the global batch; the last one may be smaller. It is a micro-batch
 * of its own: what it computes depends on its samples, the parameters, the buffers at the step's beginning, the seed and
 * the number of the step. What grains give is put together independently of who ran them:
 *
 * - Gradients are added to sums that do not depend on the order of their terms (tensor/binned.h). Backward begins with
 *   weight / D, where D is the planned number of samples; the sum is multiplied by D / W. W is the sum of all weights, in
 *   the order of grains.
 * - Weights and buffers are recorded for each grain. Before an update, all processes gather the records, and merge them in
 *   the order of grains. */
#ifndef TREK_DISTRIBUTED_GRAINS_GRAINS_H
#define TREK_DISTRIBUTED_GRAINS_GRAINS_H

#include <stdatomic.h>

#include "autograd/var_internal.h"
#include "data/loader_internal.h"
#include "distributed/comm/shared/shared.h"
#include "distributed/digests.h"
#include "distributed/grains/digest.h"
#include "distributed/grains/pace.h"
#include "distributed/system/system.h"
#include "distributed/team/passes.h"
#include "distributed/team/team.h"
#include "tensor/binned.h"

typedef struct trek_step trek_step;

/* Sums of processes are added in pieces of at most this many elements, a multiple of TREK_BINNED_BLOCK. */
#define TREK_GRAIN_PIECE ((int64_t)1 << 20)

/* A weight's gradient in a grain, grad^T x, while nobody has computed it. */
typedef struct trek_grain_product {
    trek_tensor *grad, *x;   /* owned copies */
} trek_grain_product;

/* A parameter's gradients, while the rank runs grains (slots.c). */
typedef struct trek_grain_place {
    int64_t at;              /* in a slot, in bytes; < 0: they are added at the end of their grain */
    char *own;               /* in the arena */
    uint32_t has;            /* which slots have one, a bit for each */
    bool had;                /* in the step */
    trek_grain_product products[TREK_BINNED_TERMS]; /* in which slots there is one instead */
    uint32_t waiting;
    bool dirty;              /* what the arena has is of no use any more */
    trek_tensor *kept;       /* instead of a slot: gradients of grains that run at once; owned */
    uint32_t keeps;          /* which of them are there, a bit for each */
} trek_grain_place;

/* Where gradients of grains wait until they are added to the sums together. */
typedef struct trek_grain_slots {
    int n, used;             /* slots [0, used) have gradients; those of the next grain go to slot `used` */
    bool full;               /* all products of earlier grains wait as well, and are added before the next grain */
    int at_once;             /* grains that run at once; 0: one, by itself */
    int64_t bytes;           /* of a slot */
    int64_t product_bytes;   /* of products that wait at a time, as far as a dry pass has seen them; */
    int64_t product_room;    /* and what adding them needs for itself */
    int64_t shared_bytes; /* of a grain: gradients of parameters without slots that got several of each, when some ran at once */
    int64_t least_product;   /* elements of a weight whose gradient may wait as a product; tests make it smaller */
    trek_tensor *more;       /* slots 1 to n - 1, owned */
    trek_grain_place *places; /* [n_places] of the segments */
    int n_places;
    int *segment_of;         /* [numbers] of a parameter by its number, -1: none */
    int numbers;
} trek_grain_slots;

/* What a rank knows of running several grains in one forward and backward (policy/grain_together.c). */
typedef struct trek_grain_together {
    bool known, alone;       /* the model was looked at; each grain is a pass of its own */
    int64_t bytes;           /* of memory that backward needs for one; 0: not known yet */
} trek_grain_together;

/* A bucket of a GPU's gradients on its way to divided sums (stage.c), and the parts of the norm of divided gradients. */
typedef struct trek_grain_stage {
    struct trek_copier *copier; /* NULL: gradients are in host memory, or whole on each rank */
    char *room;              /* [end - begin] elements, pinned; NULL: nothing is on its way */
    int part;
    int64_t begin, end;
    trek_tensor *norm;       /* [2 n_norm] on the device, as of trek_backend.norm_parts; owned */
    int64_t n_norm;
} trek_grain_stage;

/* The sums of a rank's gradients, for each part of its arena. */
typedef struct trek_grain_sums {
    trek_binned parts[TREK_DTYPE_COUNT];
    trek_tensor *digits[TREK_DTYPE_COUNT][TREK_BINNED_DIGITS]; /* their memory, owned */
    trek_tensor *bins[TREK_DTYPE_COUNT];
    trek_lock lock;          /* if gradients are divided, all ranks of the process add to the blocks that this one keeps */
    bool has_lock;
    trek_grain_slots slots;
    trek_grain_together together;
    trek_grain_stage stage;
    /* On a GPU, if there are other ranks: room for the bins of all ranks, and for a piece of the sums of all (device_sums.c). */
    trek_tensor *all_bins, *piece[TREK_BINNED_DIGITS];
} trek_grain_sums;

/* Room for summing a part with other processes, a piece at a time (exchange.c). */
typedef struct trek_grain_exchange {
    int32_t *bounds;         /* [3][blocks of the largest part]: of all processes: bins, tops, lows */
    trek_tensor *sums[TREK_BINNED_DIGITS], *sent; /* [the largest piece] */
} trek_grain_exchange;

/* What is known of a grain that was trained, followed by its buffers. */
typedef struct trek_grain_record {
    int64_t pass, number, rows; /* number: of the grain in the batch of all processes */
    double weight;           /* of its loss */
    double loss;             /* times that weight */
    int64_t rank;            /* that has run it, of its process: a death gives ranks of the job other numbers */
    trek_digest samples, gradients; /* gradients: only if somebody asks for those of grains */
    double denominator;      /* D of the step */
} trek_grain_record;

typedef struct trek_grains {
    int64_t size;            /* samples of a grain */
    trek_grain_sums *sums;   /* [local_ranks] */
    struct trek_grain_recorder **recorders; /* [local_ranks] of captured grains (policy/grain_capture.c); NULL: none yet */
    trek_grain_exchange exchange; /* with other processes */
    struct trek_lent *lent;  /* if gradients are divided among several processes: the sums of all, to which all add; otherwise
                              * NULL */
    int64_t piece;           /* TREK_GRAIN_PIECE; tests make it smaller after set-up, in all processes alike */

    size_t *buffer_at;       /* [buffers] where each is in what follows a record */
    size_t record_bytes;     /* of a record with its buffers */
    char *first_buffers;     /* the buffers with which every grain of the step begins */

    trek_shared_words words; /* in which the processes of one machine take grains (ranges.h) */
    trek_grain_pace pace_of_all; /* of the ranks that do so, in words behind these */
    trek_grain_pace pace;    /* of the ranks of this process, if they take its own grains only */
    struct trek_grain_counter *counter; /* hands out grains among machines; NULL: memory is shared, or parts are fixed */

    /* of a step */
    trek_step_passes passes; /* those with a backward pass; the grains of each begin after it was added */
    char *records;           /* of this process's grains since gradients were read from the sums last */
    _Atomic int64_t n_records; /* ranks take places for theirs */
    _Atomic uint64_t begun;  /* runs of grains that ranks of this process have begun */
    int64_t n_room;
    double factor;           /* D / W */
    bool pending;            /* the sums of some process have gradients that are not in the arenas */
    bool emptied; /* divided sums are empty, or what they have is already of the next step, in which other processes may be */
    struct trek_digests *digests; /* of its steps (digests.h) */
    double audit;            /* share of the grains that are audited (policy/audit.c) */
    bool audit_removes;      /* a process with a rank that was wrong leaves the job */
    trek_audit_report audit_report;
    /* For tests: may change the gradients that a grain has just given. NULL: nothing. */
    void (*fault)(int rank, int64_t step, int64_t number, const trek_arena *arena);
    bool broken;             /* a pass or a reduction has failed: the sums are of no use any more */
} trek_grains;

/* grains.c */
/* Allocates what grain mode needs, when the stepper has its arenas. Fails with UNSUPPORTED, and says why, if the graph
 * cannot be trained in grains. */
trek_status trek_grains_make(trek_step *s);
void trek_grains_free(trek_step *s);
/* Drops what the step has so far. */
void trek_grains_reset(trek_step *s);
/* Empties the sums of this process's ranks. Divided sums that are empty are left alone, because other processes may already add
 * to them again. */
void trek_grains_empty(trek_step *s);
/* Fails with UNSUPPORTED: a program's own forward and backward are not divided into grains. */
trek_status trek_grains_refuse(const char *function);

/* Returns the number of grains of a batch of so many rows. */
static inline int64_t trek_grains_count(const trek_grains *grains, int64_t rows)
{
    return (rows + grains->size - 1) / grains->size;
}

/* Returns whether a grain of the current step is audited. It is the same in all processes. */
bool trek_grains_is_audited(const trek_step *s, int64_t pass, int64_t number);

/* records.c */
/* Returns the record with index k. */
trek_grain_record *trek_grains_record(const trek_grains *grains, int64_t k);
/* Makes room for n further records. */
trek_status trek_grains_reserve(trek_grains *grains, int64_t n);
/* Returns the place of a further one, for which there is room. Ranks may call it at the same time. */
trek_grain_record *trek_grains_new_record(trek_grains *grains);
/* Copy the buffers of a replica from and to the bytes that follow a record. From a GPU this waits for its work. They set an error
 * if a device fails. */
void trek_grains_keep_buffers(const trek_grains *grains, const trek_replica *replica, char *to);
void trek_grains_put_buffers(const trek_grains *grains, const trek_replica *replica, const char *from);
/* Returns a copy of the buffers of a replica on a GPU, which stays there, or NULL with an error. */
trek_tensor *trek_grains_copy_buffers(const trek_grains *grains, const trek_replica *replica);
/* Copies that to the bytes that follow a record. */
trek_status trek_grains_fetch_buffers(const trek_grains *grains, const trek_tensor *copy, char *to);
/* Merges the records of all processes: finds the factor of the step, and gives all ranks the merged buffers. It is a
 * collective. In a job that outlives some of its processes (job/survival.h), grains that died with a process are divided among
 * the others first, which compute them by `run` (trek_grains_run). It may be called again until gradients have been read from the
 * sums. */
typedef trek_status (*trek_grains_run_fn)(trek_step *s, int64_t pass, const int64_t *numbers, int64_t n);
trek_status trek_grains_merge(trek_step *s, trek_grains_run_fn run);

/* sums.c */
trek_status trek_grain_sums_make(trek_step *s);
void trek_grain_sums_free(trek_step *s);
/* Empties a rank's sums. On a GPU it may set an error. */
void trek_grain_sums_clear(trek_grain_sums *sums);
/* If gradients are divided: adds a bucket of a rank's gradients to the sums of those who keep it, as soon as a backward of its
 * grain has completed it. `on` is a trek_grain_bucket. At the end of the grain trek_grain_sums_add has nothing left to add. */
typedef struct trek_grain_bucket {
    trek_step *s;
    int rank;
} trek_grain_bucket;
void trek_grain_sums_add_bucket(const trek_bucket *bucket, void *on);
/* Gives memory to the blocks of a rank's sums that it keeps, and to no others. The sums are empty. */
void trek_grain_sums_hold(trek_step *s, int rank);
/* Ends lending, and drops all that grains of the step have given, because a process has died with a part of it. trek_grains_merge
 * finds that all grains are lost. */
trek_status trek_grain_sums_lose(trek_step *s);
/* Returns whether the sums of the step are those of a single rank on a CPU, which has them whole. */
bool trek_grain_sums_alone(const trek_step *s);
/* squares.c: computes the sum of squares of divided gradients, with the bits that it has if they are not divided. Every rank of
 * every process calls it after trek_grain_sums_read. */
trek_status trek_grain_sums_squares(trek_step *s, int rank, double *sum);
/* Returns the sharer that has all elements [begin, end) of a part, or -1: several have some. */
int trek_grain_squares_owner(const trek_step *s, const rank_replica *own, int part, int64_t begin, int64_t end);
/* Called by every rank: replaces the gradients in all arenas by those of the step, from the sums of all ranks and
 * processes. The sums are of no use afterwards; trek_grains_reset empties them. */
trek_status trek_grain_sums_read(trek_step *s, int rank);
/* keepers.c: adds elements [begin, end) of a part, whole blocks, which begin at `data`, to the sums of those who keep them. Ranks
 * begin with different ones. What two keep is added to the sums of both. zero: they become zeros. */
trek_status trek_grain_sums_add_to_keepers(const trek_grain_bucket *on, int part, int64_t begin, int64_t end, char *data,
                                           bool zero);
/* Lets the ranks of all processes add to each other's sums, if gradients are divided among several processes. A collective of
 * these. Fails as trek_lent_new does. */
trek_status trek_grain_sums_lend(trek_step *s);
/* stage.c: gradients of GPUs and divided sums. Called by the rank: makes what it needs for that. */
trek_status trek_grain_stage_make(trek_step *s, int rank);
void trek_grain_stage_free(trek_grain_stage *stage);
/* Begins to copy a bucket to host memory. A failure is the thread's error, as of the next one. */
void trek_grain_stage_bucket(const trek_grain_bucket *on, const trek_bucket *bucket);
/* Adds that bucket to the sums, before its memory is given back. `on` is a trek_grain_bucket. */
void trek_grain_stage_settle(void *on);
/* Writes sums that the rank keeps to its gradients on the device. */
trek_status trek_grain_stage_read(trek_step *s, int rank, const trek_arena_cut *cut);
/* device_squares.c: the same as trek_grain_sums_squares on GPUs, whose norm has the bits that update_norm gives if gradients are
 * not divided. The rank's update takes it from stage.norm. */
trek_status trek_grain_device_squares(trek_step *s, int rank);
/* slots.c, products.c and several.c: a rank's gradients, on their way to its sums. */
trek_status trek_grain_slots_make(trek_grain_slots *slots, const trek_arena *arena);
void trek_grain_slots_free(trek_grain_slots *slots);
/* Called before and after a rank runs grains. alone: the step has no other ranks; then products wait until the sums are read, if
 * they are all that is known of a gradient. In between no parameter has a gradient when a backward begins: products that add to
 * gradients may have other bits than products that replace them, and which grains a rank has run before must not show. Before the
 * end not all gradients are in the sums. */
void trek_grain_sums_open(trek_grain_sums *sums, const trek_arena *arena);
void trek_grain_sums_close(trek_grain_sums *sums, trek_arena *arena, bool alone);
/* Called before a grain. shown: somebody will look at its gradients, which therefore come to the arena. */
void trek_grain_sums_begin(trek_grain_sums *sums, const trek_arena *arena, bool shown);
/* The callback of backward (trek_backward_watch.product); `on` is a trek_grain_taker. It takes gradients of weights that would
 * take longer to write to memory than to compute. */
typedef struct trek_grain_taker {
    trek_grain_sums *sums;
    const trek_arena *arena;
    int group;               /* of the grains that run at once; otherwise 0 */
    bool shared;             /* its parameter gets several gradients of each of them */
} trek_grain_taker;
bool trek_grain_sums_take(int k, trek_tensor *grad, trek_tensor *x, void *on);
/* Returns how many bytes that would keep until the gradient is added, and notes what adding it needs; 0: it would not take it. */
int64_t trek_grain_sums_foresee(int k, const trek_tensor *grad, const trek_tensor *x, const trek_grain_taker *taker);
/* Returns the gradient that has just been taken, computed into a tensor of its own, which the caller owns; NULL with an error. */
trek_tensor *trek_grain_sums_product(const trek_grain_taker *taker, int k);
/* Completes the arena's gradients, if somebody looks at them: computes what the grain has left to be computed, and sets what it
 * has not given to zero. */
trek_status trek_grain_sums_show(trek_grain_sums *sums, trek_arena *arena);
/* Called after a grain: adds its gradients to the sums, now or later. On a GPU it may set an error, as the one before. */
void trek_grain_sums_add(trek_grain_sums *sums, const trek_arena *arena);
/* Several grains at once: the first is called before them, and makes room for the gradients of n; the next two are those of
 * trek_backward_groups, where `on` is a trek_grain_taker; the last is called after them, with
 * their number, or with 0 if they have given nothing. */
void trek_grain_sums_begin_grains(trek_grain_sums *sums, const trek_arena *arena, int n);
trek_status trek_grain_sums_begin_group(int k, int group, bool shared, void *on);
void trek_grain_sums_end_group(int k, int group, bool shared, void *on);
void trek_grain_sums_end_grains(trek_grain_sums *sums, const trek_arena *arena, int n);
/* Drops products that wait. */
void trek_grain_sums_forget(trek_grain_sums *sums);
/* Adds products that wait. A failure is the thread's error. */
void trek_grain_sums_settle(trek_grain_sums *sums, const trek_arena *arena);
/* Turns the sums of a part into gradients, in the arena, and products that wait, which were not added to them. */
trek_status trek_grain_sums_read_part(trek_grain_sums *sums, const trek_arena *arena, int part, double factor);
/* Or drops them, which are in the arena. */
void trek_grain_sums_drop(trek_arena *arena);

/* exchange.c, for jobs of several processes. Makes the room, if it is not there. */
trek_status trek_grain_exchange_make(trek_step *s);
void trek_grain_exchange_free(trek_grains *grains);
/* Called by every rank when rank 0 has the sums of the process: turns the sums of all processes into gradients. The sums of the
 * process remain what they are. */
trek_status trek_grain_exchange_read(trek_step *s, int rank);
/* Copies gradients [begin, end) of a part from the first arena to those of the other ranks of the process, and adds them to the
 * digest of the step. */
void trek_grain_spread(trek_step *s, int rank, int part, int64_t begin, int64_t end);
/* Makes room for the exchange of a rank's sums. */
trek_status trek_grain_device_sums_make(trek_step *s, int rank);
/* Does trek_grain_sums_read's work on a rank's GPU (device_sums.c). */
trek_status trek_grain_device_sums_read(trek_step *s, int rank);
/* Returns the rank's slice of the blocks of a part. */
static inline int64_t trek_grain_sums_slice(const trek_team *team, int rank, int part, int64_t *first)
{
    int64_t blocks = trek_binned_blocks(team->replicas[0].arena->parts[part].count);
    *first = blocks * rank / team->local_ranks;
    return blocks * (rank + 1) / team->local_ranks - *first;
}

#endif
