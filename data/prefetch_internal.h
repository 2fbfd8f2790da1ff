/* SPDX-License-Identifier: Apache-2.0 */
/* Fetching batches: by the calling thread, or ahead of it by threads. */
#ifndef TREK_DATA_PREFETCH_INTERNAL_H
#define TREK_DATA_PREFETCH_INTERNAL_H

#include "data/dataset_internal.h"
#include "data/sampler.h"

/* Where the reading of a stream is; used by one thread at a time. */
typedef struct trek_feed {
    struct trek_stream *stream; /* NULL: none is open */
    int64_t epoch, next;        /* what it is of, and the batch that it gives next */
} trek_feed;

/* What makes an epoch's batches; borrowed parts. */
typedef struct trek_batch_plan {
    trek_dataset *dataset;
    trek_sampler *sampler;
    int64_t batch_size, samples, batches; /* samples: of an epoch, dropped ones excepted */
    trek_feed *feed; /* of a stream: there is no sampler, and samples and batches are as many as can be counted; else NULL */
    bool drop_last;
    uint64_t seed;         /* of random transforms */
    bool whole;            /* whole batches, however the processes of the job divide them */
    trek_device device;    /* a GPU: the loader's thread copies there what it has fetched; a CPU: it stays where it is */
} trek_batch_plan;

/* What a rank reads of each batch of an epoch: rows [first, first + rows); of the last one, which may be smaller, others. */
typedef struct trek_batch_cut {
    int64_t first, rows;
    int64_t last_first, last_rows;
} trek_batch_cut;

/* One batch, fetched or about to be; allocated once, filled many times. */
typedef struct trek_fetched {
    trek_status status;
    int64_t n;             /* the samples of it that are wanted: this process's, or a rank's */
    int64_t first, global; /* the first one's place in the whole batch, and the samples of that */
    int64_t *indices;      /* [batch_size] of the n samples */
    int64_t *batch;        /* [batch_size] those of the whole batch, where the dataset needs them; NULL: not yet */
    trek_tensor **tensors; /* [n_fields], owned; NULLs when empty */
    char *message;         /* of a failure on the loader's thread, TREK_ERROR_SIZE bytes */
    struct trek_event *sent; /* the thread's copies to the plan's device; NULL: it has made none */
    bool is_sent;          /* the tensors are such copies */
    bool end;              /* of a stream, which has no such batch any more: there are no tensors */
} trek_fetched;

trek_fetched *trek_fetched_new(const trek_batch_plan *plan);
void trek_fetched_free(trek_fetched *fetched, const trek_batch_plan *plan);
/* Releases the tensors. */
void trek_fetched_clear(trek_fetched *fetched, const trek_batch_plan *plan);

/* The samples of one batch: indices has room for batch_size; *n is their number. */
trek_status trek_batch_plan_indices(const trek_batch_plan *plan, int64_t epoch, int64_t batch, int64_t *indices, int64_t *n);
/* The samples of a batch, and the rows of it that are wanted. cut NULL: this process's, or all where the plan is whole. */
int64_t trek_batch_plan_cut(const trek_batch_plan *plan, int64_t batch, const trek_batch_cut *cut, int64_t *first, int64_t *n);
/* Fetches on the calling thread; failures are reported there and in fetched->status. */
trek_status trek_fetched_fill(trek_fetched *fetched, const trek_batch_plan *plan, int64_t epoch, int64_t batch,
                              const trek_batch_cut *cut);

/* The threads, and the ring of batches that they keep full. */
typedef struct trek_prefetch trek_prefetch;

/* Starts the threads, which wait, no more of them than depth. MEMORY; STATE if one cannot start. plan is borrowed. */
trek_prefetch *trek_prefetch_new(const trek_batch_plan *plan, int depth, int workers);
void trek_prefetch_free(trek_prefetch **prefetch);
/* Drops what was fetched and goes on with this batch, up to but not including `end`; a fetch that is under way is
 * dropped when it ends. cut: as of trek_fetched_fill, copied. */
void trek_prefetch_start(trek_prefetch *prefetch, int64_t epoch, int64_t batch, int64_t end, const trek_batch_cut *cut);
/* Goes on beyond the end given before. */
void trek_prefetch_extend(trek_prefetch *prefetch, int64_t end);
/* Drops what was fetched; nothing more is fetched until the next start. */
void trek_prefetch_stop(trek_prefetch *prefetch);
/* Waits for the next batch and exchanges *fetched (cleared by the caller) for it. Copies on a GPU may be under way: what the
 * calling thread does there from now on comes after them.
 * A failure of the thread becomes the calling thread's. Not beyond the end. */
trek_status trek_prefetch_take(trek_prefetch *prefetch, trek_fetched **fetched);

#endif
