/* SPDX-License-Identifier: Apache-2.0 */
/* The calling thread's rank: what lower floors need to know of the ranks.
 * distributed/ fills it; on a thread it never touched, one rank of one. Internal. */
#ifndef TREK_TENSOR_RANK_CONTEXT_H
#define TREK_TENSOR_RANK_CONTEXT_H

#include "tensor/types.h"

struct trek_pool;
struct trek_tensor;
struct trek_op_call;
struct trek_compound;

/* Who wants to know which tensors the thread's work on devices touches (graph/capture.c), or what its ops are (onnx/). With `see`
 * also that of ranks which it runs meanwhile, at a time. */
typedef struct trek_rank_watch {
    uint32_t run;              /* storages made meanwhile carry it */
    void (*see)(struct trek_tensor *tensor, bool written, void *arg); /* of an op: an input, or a result it was given; or NULL */
    /* Instead of every op whose inputs are as its row wants them: runs it by go, looks at it, may make it fail; or NULL. */
    trek_status (*around)(struct trek_op_call *call, trek_status (*go)(struct trek_op_call *call), void *arg);
    /* Around what is several ops here and one elsewhere (tensor/compound.h); or NULL, both. */
    void (*enter)(void *arg);
    void (*leave)(const struct trek_compound *compound, void *arg);
    void (*refuse)(const char *why, void *arg); /* something is done that cannot be done again by replaying; or NULL */
    void *arg;
} trek_rank_watch;

typedef struct trek_rank_context {
    int rank, world;           /* in the group; 0 of 1 */
    trek_device device;
    int64_t first_sample;      /* of this rank's part of the global batch */
    int64_t rows;              /* samples of this rank in the present forward; -1: not split */
    int64_t global_rows;       /* samples of all ranks; -1: not split */
    uint64_t rng_step;         /* step of the RNG: set by step() */
    uint64_t rng_draw;         /* random ops so far in this step, or in the stream */
    uint64_t rng_stream;       /* of a part of the forward that not every rank runs (tensor/row_map.h); 0: the step's own */
    const struct trek_row_map *row_map; /* rows that the present part of the forward works on; NULL: all that the rank has */
    const char *op;            /* the op that runs on a device now: whom memory is asked for */
    struct trek_pool *pool;    /* threads of this rank; NULL: the process's default pool */
    const struct trek_rank_collectives *collectives; /* NULL with one rank */
    const trek_rank_watch *watch; /* NULL: nobody */
    int64_t batch_rows;        /* of the loader's present batch in this process; -1: none */
    int64_t batch_first;       /* its first sample's place in the global batch */
    int64_t batch_global;      /* samples of the global batch */
    const void *batch_loader;  /* the trek_loader that gave it; NULL: none */
    uint64_t batch_digest;     /* in a job of several processes: what its loader gives; 0: not to be compared */
    const void *recording;     /* the trek_graph whose training function runs; NULL: none */
    double recording_rows;     /* samples of the batch that it runs on */
    int64_t waited_ns;         /* that this thread has waited for other ranks inside a layer, since ever */
    int64_t fed_ns;            /* that it has waited for a reader's batches, or fetched them; */
    int64_t loader_ns;         /* and for a loader's, which may be all ranks' of the process */
} trek_rank_context;

/* This process's part of `total` samples. */
typedef void (*trek_job_cut)(int64_t total, int64_t *first, int64_t *rows);

#ifndef __cplusplus
/* How the processes of a job divide a global batch; one process's record, changed between steps by distributed/. */
typedef struct trek_job_context {
    int process, processes;
    uint64_t version;            /* another one when cut gives other parts */
    _Atomic(trek_job_cut) cut;   /* NULL: there is one process. Loaders' threads read it at any time */
} trek_job_context;
#endif

/* What a layer may ask of the other ranks while it runs (synchronised batch norm). */
typedef struct trek_rank_collectives {
    /* Sums `count` doubles over the ranks that have rows, in rank order. */
    trek_status (*sum)(double *values, int64_t count, void *arg);
    void *arg;
    /* Counts one holder more, or less, where a layer or a tape may outlive whoever made them; NULL: they are the thread's rank
     * context's.
     */
    void (*hold)(const struct trek_rank_collectives *collectives, int more);
} trek_rank_collectives;

#ifndef __cplusplus
extern _Thread_local trek_rank_context *trek_rank_context_mine; /* NULL: nobody has asked yet, all is as on a single rank */
extern trek_job_context trek_job_here;

/* Never NULL. Without memory for it: error MEMORY, and one that such threads share. */
trek_rank_context *trek_rank_context_make(void);
static inline trek_rank_context *trek_rank_context_get(void)
{
    return __builtin_expect(!trek_rank_context_mine, 0) ? trek_rank_context_make() : trek_rank_context_mine;
}
#define trek_rank_here (*trek_rank_context_get()) /* to be read and written */
/* trek_rank_here.watch, for the way of every op. */
static inline const trek_rank_watch *trek_rank_watched(void)
{
    return trek_rank_context_mine ? trek_rank_context_mine->watch : NULL;
}
#endif

#endif
