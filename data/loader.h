/* SPDX-License-Identifier: Apache-2.0 */
/* The loader gives the batches of a dataset, epoch by epoch. Its own threads fetch them ahead.
 *
 *     trek_loader_start(loader, epoch);
 *     for (trek_batch *batch; (batch = trek_loader_next(loader)); )
 *         ... trek_batch_get(batch, "image") ...
 *
 * The outermost active loader of a thread opens a scope for each batch: the results of ops in the body of the loop end with
 * the batch. Further loaders in the body open no scopes, so results in an inner loop belong to the outer batch. An inner loop
 * over many batches should therefore open a scope itself. Only one thread at a time may use a loader, and an epoch must end on
 * the thread that began it.
 *
 * In a job of several processes that trek_trainer_setup has joined, a batch is this process's part of the global batch. The
 * global batch has batch_size samples, in the same order with any number of processes. The part can be empty, so that all
 * processes see the same number of batches. The option `whole` turns this off.
 *
 * A stream (data/stream.h) is read by one thread, and completely by each process. Batches come until the stream ends, and each
 * process keeps its part of them. Ranks cannot read windows of a stream. */
#ifndef TREK_DATA_LOADER_H
#define TREK_DATA_LOADER_H

#include "data/dataset.h"

TREK_BEGIN

/* A loader. */
typedef struct trek_loader trek_loader;
/* A batch of samples. */
typedef struct trek_batch trek_batch;

/* Options of a loader. */
typedef struct trek_loader_opts {
    int64_t batch_size;    /* samples of a batch, of all ranks together, >= 1; required */
    bool shuffle;          /* a new random order in each epoch; default false: the order of the dataset */
    uint64_t seed;         /* seed of the shuffle and of the dataset's random transforms (trek_fetch) */
    struct trek_sampler *sampler; /* the order of the samples, instead of shuffle; the loader owns it, also on failure */
    bool drop_last;        /* drops a last batch that is smaller than batch_size; default false */
    int prefetch;          /* batches that each worker fetches ahead; TREK_ZERO: trek_loader_next fetches itself; default 2 */
    trek_device device;    /* the device of the batches; default trek_device_default() */
    bool whole;            /* gives each process the full batch instead of its part, e.g. for evaluation on one process */
    /* Threads that fetch one batch each and copy it to a GPU on their own streams; default 1. The number changes neither order
     * nor samples, and an error comes with its batch. At most (prefetch + 1) * workers batches are in memory in addition to
     * the current one. A rank that reads its own rows has this number of threads. */
    int workers;
} trek_loader_opts;

/* Returns a new loader. It takes over the dataset and the sampler, also on failure. If `dataset` is NULL, NULL is returned and
 * no further error is set.
 * Errors: ARGUMENT if the batch size is below 1, if the dataset is empty, if drop_last leaves no batch, if the sampler is for
 * more samples or for another batch size, or if both shuffle and a sampler are given. ARGUMENT for a stream with shuffle, a
 * sampler or several workers. STATE if the dataset belongs to another loader or a subset, which keeps it; call
 * trek_dataset_retain for each. */
TREK_API trek_loader *trek_loader_new(trek_dataset *dataset, const trek_loader_opts *opts);
/* Frees the loader and sets *loader to NULL. It waits until its threads have finished their current fetch, and ends the current
 * batch. */
TREK_API void trek_loader_free(trek_loader **loader);

/* Begins an epoch. If another epoch has not ended, the rest of it is dropped. The batches depend only on seed and epoch.
 * Errors: ARGUMENT if the epoch is negative. STATE if a thread cannot be started. If the thread has an error, that error. */
TREK_API trek_status trek_loader_start(trek_loader *loader, int64_t epoch);
/* Ends the previous batch and returns the next one, which belongs to the loader. Returns NULL at the end of the epoch, on an
 * error, and while the thread has an error.
 * Errors: STATE if no epoch was begun. Errors of the dataset, from any thread. */
TREK_API trek_batch *trek_loader_next(trek_loader *loader);

/* Returns the number of batches of an epoch, or -1 for a stream. If `loader` is NULL, it returns -1 and sets an error. */
TREK_API int64_t trek_loader_batches(const trek_loader *loader);

/* Returns a field of the batch on the loader's device. It is borrowed and valid as long as the batch, unless it is retained.
 * Errors: ARGUMENT, with a list of the names, if the batch has no such field; NULL is returned. */
TREK_API trek_var *trek_batch_get(const trek_batch *batch, const char *name);
/* Returns the number of samples of this process. If `batch` is NULL, it returns -1 and sets an error. */
TREK_API int64_t trek_batch_size(const trek_batch *batch);

TREK_END

#endif
