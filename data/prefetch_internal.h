/* SPDX-License-Identifier: Apache-2.0 */
/* Fetching batches, either on the calling thread or ahead of it on other threads. */
#ifndef TREK_DATA_PREFETCH_INTERNAL_H
#define TREK_DATA_PREFETCH_INTERNAL_H

#include "data/dataset_internal.h"
#include "data/sampler.h"

/* The position in a stream; used by one thread at a time. */
typedef struct trek_feed {
    struct trek_stream *stream; /* NULL if none is open */
    int64_t epoch, next;        /* the epoch it belongs to, and the batch that comes next */
} trek_feed;

/* What makes an epoch's batches; its parts are borrowed. */
typedef struct trek_batch_plan {
    trek_dataset *dataset;
    trek_sampler *sampler;
    int64_t batch_size, samples, batches; /* samples: of an epoch, without dropped ones */
    trek_feed *feed; /* of a stream, which has no sampler and as many samples and batches as can be counted; otherwise NULL */
    bool drop_last;
    uint64_t seed;         /* of random transforms */
    bool whole;            /* whole batches, however the processes of the job divide them */
    trek_device device;    /* for a GPU, the loader's thread copies what it has fetched there; for a CPU it stays where it is */
} trek_batch_plan;

/* What a rank reads of each batch in an epoch: rows [first, first + rows), and other rows of the last batch, which
 * may be smaller. */
typedef struct trek_batch_cut {
    int64_t first, rows;
    int64_t last_first, last_rows;
} trek_batch_cut;

/* One batch, fetched or about to be. It is allocated once and filled many times. */
typedef struct trek_fetched {
    trek_status status;
    int64_t n;             /* the number of wanted samples: this process's or a rank's */
    int64_t first, global; /* the first one's position in the whole batch, and the size of that */
    int64_t *indices;      /* [batch_size] of the n samples */
    int64_t *batch;        /* [batch_size] those of the whole batch, if the dataset needs them; NULL if not made yet */
    trek_tensor **tensors; /* [n_fields], owned; NULLs when empty */
    char *message;         /* of a failure on the loader's thread, TREK_ERROR_SIZE bytes */
    struct trek_event *sent; /* the thread's copies to the plan's device; NULL if it has made none */
    bool is_sent;          /* the tensors are such copies */
    bool end;              /* of a stream that has no such batch any more: there are no tensors */
} trek_fetched;

trek_fetched *trek_fetched_new(const trek_batch_plan *plan);
void trek_fetched_free(trek_fetched *fetched, const trek_batch_plan *plan);
/* Releases the tensors. */
void trek_fetched_clear(trek_fetched *fetched, const trek_batch_plan *plan);

/* Lists the samples of one batch. `indices` has room for batch_size, and *n is their number. */
trek_status trek_batch_plan_indices(const trek_batch_plan *plan, int64_t epoch, int64_t batch, int64_t *indices, int64_t *n);
/* Returns the size of a batch, and the rows of it that are wanted. With a NULL cut those are this process's rows, or
 * all rows if the plan is whole. */
int64_t trek_batch_plan_cut(const trek_batch_plan *plan, int64_t batch, const trek_batch_cut *cut, int64_t *first, int64_t *n);
/* Fetches on the calling thread. Failures are reported there and in fetched->status. */
trek_status trek_fetched_fill(trek_fetched *fetched, const trek_batch_plan *plan, int64_t epoch, int64_t batch,
                              const trek_batch_cut *cut);

/* The threads, and the ring of batches that they keep full. */
typedef struct trek_prefetch trek_prefetch;

/* Starts the threads, at most `depth` of them; they wait for a start. Fails with MEMORY, or with STATE if a thread
 * cannot start. `plan` is borrowed. */
trek_prefetch *trek_prefetch_new(const trek_batch_plan *plan, int depth, int workers);
void trek_prefetch_free(trek_prefetch **prefetch);
/* Drops what was fetched and continues with this batch, up to but not including `end`. A fetch in progress is dropped
 * when it ends. `cut` is as in trek_fetched_fill, and is copied. */
void trek_prefetch_start(trek_prefetch *prefetch, int64_t epoch, int64_t batch, int64_t end, const trek_batch_cut *cut);
/* Continues beyond the earlier end. */
void trek_prefetch_extend(trek_prefetch *prefetch, int64_t end);
/* Drops what was fetched. Nothing more is fetched until the next start. */
void trek_prefetch_stop(trek_prefetch *prefetch);
/* Waits for the next batch and exchanges *fetched (which the caller has cleared) for it. Copies to a GPU may still be
 * in progress: what the calling thread does there from now on comes after them. A failure of the thread becomes the
 * calling thread's. Do not call it beyond the end. */
trek_status trek_prefetch_take(trek_prefetch *prefetch, trek_fetched **fetched);

#endif
