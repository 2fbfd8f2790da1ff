/* SPDX-License-Identifier: Apache-2.0 */
/* The calling thread's rank: what the folders below distributed/ need to know of the ranks. distributed/ fills it. On
 * a thread that nothing has prepared it is rank 0 of 1. */
#ifndef TREK_TENSOR_RANK_CONTEXT_H
#define TREK_TENSOR_RANK_CONTEXT_H

#include "tensor/tensor.h"
#include "tensor/types.h"

struct trek_pool;
struct trek_tensor;
struct trek_op_call;
struct trek_compound;

/* A watcher of the tensors that the thread's work on devices uses (graph/capture.c), or of its ops (onnx/). `see` is
 * also called for ranks that the thread runs meanwhile, one at a time. */
typedef struct trek_rank_watch {
    uint32_t run;              /* storages made meanwhile are marked with it */
    void (*see)(struct trek_tensor *tensor, bool written, void *arg); /* called for an input of an op, or a result given to it;
                                                                       * may be NULL */
    /* Called instead of every op whose inputs are as its row needs them: runs it by `go`, inspects it, and may make
     * it fail. May be NULL. */
    trek_status (*around)(struct trek_op_call *call, trek_status (*go)(struct trek_op_call *call), void *arg);
    /* Called around functions that are several ops here and one elsewhere (tensor/compound.h). Both may be NULL. */
    void (*enter)(void *arg);
    void (*leave)(const struct trek_compound *compound, void *arg);
    void (*refuse)(const char *why, void *arg); /* something is done that a replay cannot do again; may be NULL */
    void *arg;
} trek_rank_watch;

typedef struct trek_rank_context {
    int rank, world;           /* in the group; otherwise rank 0 of 1 */
    trek_device device;
    int64_t first_sample;      /* of this rank's part of the global batch */
    int64_t rows;              /* samples of this rank in the current forward; -1: not divided */
    int64_t global_rows;       /* samples of all ranks; -1: not divided */
    uint64_t rng_step;         /* step of the RNG, set by step() */
    uint64_t rng_draw;         /* random ops so far in this step, or in the stream */
    uint64_t rng_stream;       /* of a part of the forward that not every rank runs (tensor/row_map.h); 0: the step's own */
    const struct trek_row_map *row_map; /* rows that the current part of the forward works on; NULL: all rows of the rank */
    const char *op;            /* the op that runs on a device now, to which memory is attributed */
    struct trek_pool *pool;    /* threads of this rank; NULL: the process's default pool */
    const struct trek_rank_collectives *collectives; /* NULL with one rank */
    const trek_rank_watch *watch; /* NULL: nobody watches */
    bool joins_grads;          /* trek_graph_grad runs, which adds up the gradients of parameters over the processes */
    int64_t waited_ns;         /* how long this thread has waited for other ranks inside layers, in total */
    int64_t grain;             /* the grain of the global batch that runs, counted from 1; 0: the batch is not cut into grains */
    int64_t grains;            /* how many equal grains run at once, the first of which it is; 0 stands for 1 */
    uint64_t grain_run;        /* then, the number of this run of a grain among all that the process has begun; 0: none */
} trek_rank_context;

/* Returns this process's part of `total` samples. */
typedef void (*trek_job_cut)(int64_t total, int64_t *first, int64_t *rows);

#ifndef __cplusplus
/* How the processes of a job divide a global batch. There is one record in each process, which distributed/ changes
 * between steps. */
typedef struct trek_job_context {
    int process, processes;
    uint64_t version;            /* changes when cut gives other parts */
    _Atomic(trek_job_cut) cut;   /* NULL: there is one process. Loaders' threads read it at any time */
} trek_job_context;
#endif

/* What a layer may request of the other ranks while it runs (synchronised batch norm). */
typedef struct trek_rank_collectives {
    /* Sums `count` doubles over the ranks that have rows, in rank order. */
    trek_status (*sum)(double *values, int64_t count, void *arg);
    void *arg;
    /* Counts one holder more, or less, for layers or tapes that may outlive the maker. NULL: they belong to the
     * thread's rank context. */
    void (*hold)(const struct trek_rank_collectives *collectives, int more);
} trek_rank_collectives;

#ifndef __cplusplus
extern _Thread_local trek_rank_context *trek_rank_context_mine; /* NULL: not used yet, which means a single rank */
extern trek_job_context trek_job_here;

/* Never returns NULL. Without memory it sets MEMORY and returns a context that such threads share. */
trek_rank_context *trek_rank_context_make(void);
static inline trek_rank_context *trek_rank_context_get(void)
{
    return __builtin_expect(!trek_rank_context_mine, 0) ? trek_rank_context_make() : trek_rank_context_mine;
}
#define trek_rank_here (*trek_rank_context_get()) /* can be read and written */
/* trek_rank_here.watch, for the way of every op. */
static inline const trek_rank_watch *trek_rank_watched(void)
{
    return trek_rank_context_mine ? trek_rank_context_mine->watch : NULL;
}
#endif

#endif
