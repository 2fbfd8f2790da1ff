/* SPDX-License-Identifier: Apache-2.0 */
/* The loader: batches of a dataset, epoch by epoch, fetched ahead by threads of
 * its own.
 *
 *     trek_loader_start(loader, epoch);
 *     for (trek_batch *batch; (batch = trek_loader_next(loader)); )
 *         ... trek_batch_get(batch, "image") ...
 *
 * The outermost active loader of a thread opens a scope for each batch: results
 * of ops in the loop's body end with it. Further loaders in the body open none:
 * results made in an inner loop belong to the outer batch, so an inner loop over
 * many batches does well to open a scope of its own. A loader is used by one
 * thread at a time, and an epoch ends on the thread that began it.
 *
 * In a job of several processes that trek_trainer_setup has joined, a batch is this
 * process's part of the global one (batch_size samples, in the same order on any number of
 * processes): possibly none, so that all processes see the same number of batches. `whole` turns that off.
 *
 * A stream (data/stream.h) is read by one thread, in each process all of it: batches come until it ends, and each process
 * keeps its part of them. Ranks do not read windows of one. */
#ifndef TREK_DATA_LOADER_H
#define TREK_DATA_LOADER_H

#include "data/dataset.h"
#include "data/sampler.h"

TREK_BEGIN

typedef struct trek_loader trek_loader;
typedef struct trek_batch trek_batch;

typedef struct trek_loader_opts {
    int64_t batch_size;    /* required, >= 1; of all ranks together */
    bool shuffle;          /* a new order in each epoch; default: in order */
    uint64_t seed;         /* of the shuffle, and of the dataset's random transforms (trek_fetch) */
    trek_sampler *sampler; /* in place of shuffle; owned by the loader, also on failure */
    bool drop_last;        /* leave out a last batch that is smaller; default: it is given */
    int prefetch; /* batches fetched ahead by each worker; default 2; TREK_ZERO: fetched by the call itself */
    trek_device device;    /* where batches are put; default (and cpu:0): trek_device_default() */
    bool whole; /* in a job of several processes, too, each gets whole batches, as one that evaluates alone needs them */
    bool host;             /* keep batches in host memory, whatever the default device is */
    /* Threads that fetch, a batch each, and copy to the device, if that is a GPU, on streams of their own; default 1. Batches
     * come in the same order, with the same samples, from any number; a failure comes with its batch. At most (prefetch + 1)
     * * workers batches lie in memory beside the present one. A rank that reads its own rows has as many threads of its own. */
    int workers;
} trek_loader_opts;

/* Takes over the dataset (and the sampler), also on failure. NULL for a NULL
 * dataset, which reports nothing new. ARGUMENT: a batch size below 1, an empty
 * dataset, drop_last with no full batch, a sampler over more samples or of other batches, shuffle beside a sampler; for a stream:
 * shuffle, sampler, several workers. STATE: the dataset is another loader's or a subset's (trek_dataset_retain for each); it
 * stays theirs. */
TREK_API trek_loader *trek_loader_new(trek_dataset *dataset, const trek_loader_opts *opts);
/* Stops the threads (waiting for the fetches that they are in) and ends the present batch. */
TREK_API void trek_loader_free(trek_loader **loader);

/* Begins an epoch, also in the middle of another, whose rest is dropped. What the
 * epoch gives follows from seed and epoch alone. ARGUMENT for a negative epoch;
 * STATE if a thread cannot be started; while an error is set, that error. */
TREK_API trek_status trek_loader_start(trek_loader *loader, int64_t epoch);
/* Ends the batch given before and gives the next; NULL at the end of the epoch,
 * on an error (the dataset's own, wherever it happened), and while one is set.
 * STATE if no epoch was ever begun. The batch belongs to the loader. */
TREK_API trek_batch *trek_loader_next(trek_loader *loader);

/* Batches of an epoch; -1 and an error for NULL; -1 for a stream. */
TREK_API int64_t trek_loader_batches(const trek_loader *loader);
/* Samples of an epoch, those that drop_last leaves out excepted; -1 for a stream. */
TREK_API int64_t trek_loader_samples(const trek_loader *loader);
/* Borrowed. */
TREK_API trek_dataset *trek_loader_dataset(const trek_loader *loader);

/* The epoch, and how many of its batches were given; for checkpoints. Either may be NULL. */
TREK_API void trek_loader_position(const trek_loader *loader, int64_t *epoch, int64_t *batch);
/* trek_loader_start that goes on with batch number `batch` (0 .. batches). Costs
 * nothing; of a stream, the samples before it are skipped (trek_stream_skip). ARGUMENT beyond the end, where it is known. */
TREK_API trek_status trek_loader_seek(trek_loader *loader, int64_t epoch, int64_t batch);

/* A field, on the loader's device; borrowed, as long as the batch unless
 * retained. NULL and ARGUMENT, listing the names, if there is none. */
TREK_API trek_var *trek_batch_get(const trek_batch *batch, const char *name);
TREK_API int64_t trek_batch_size(const trek_batch *batch); /* samples, of this process; -1 and an error for NULL */
/* The samples' numbers in the dataset, or places in the stream, trek_batch_size of them. */
TREK_API const int64_t *trek_batch_indices(const trek_batch *batch);

TREK_END

#endif
