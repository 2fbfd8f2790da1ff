/* SPDX-License-Identifier: Apache-2.0 */
/* Streams: datasets of samples that come one after another, without numbers, until they end. A loader gives their batches until
 * then (trek_loader_new); trek_dataset_map, trek_dataset_select and trek_dataset_transform go around them, and
 * trek_dataset_shuffle. */
#ifndef TREK_DATA_STREAM_H
#define TREK_DATA_STREAM_H

#include "data/dataset.h"

TREK_BEGIN

/* A dataset class whose `stream` is this is a stream. A reading is used by one thread at a time; several can be open at once,
 * each from the start. The same epoch and seed give the same samples. Failures are reported through trek_fail. */
typedef struct trek_stream_class {
    /* Begins a reading of an epoch; what it needs goes to *reading. */
    trek_status (*open)(trek_dataset *self, int64_t epoch, uint64_t seed, void **reading);
    /* The next samples, 1 .. n of them as it likes: a tensor [*got, ...] in host memory for each field to out. *got = 0: it has
     * ended. Within a scope that ends with the call; what is in out after a failure is released. */
    trek_status (*next)(trek_dataset *self, void *reading, int64_t n, trek_tensor **out, int64_t *got);
    /* Goes past n samples, or as many as there are, without making them. NULL: they are read and dropped. */
    trek_status (*skip)(trek_dataset *self, void *reading, int64_t n, int64_t *skipped);
    void (*close)(trek_dataset *self, void *reading); /* may be NULL */
} trek_stream_class;

TREK_API bool trek_dataset_is_stream(const trek_dataset *dataset); /* NULL is none */

/* A reading of a stream. */
typedef struct trek_stream trek_stream;

/* Begins one; retains the dataset. NULL and ARGUMENT (no stream, a negative epoch), MEMORY, what the stream reports. */
TREK_API trek_stream *trek_stream_open(trek_dataset *dataset, int64_t epoch, uint64_t seed);
/* The next n samples, fewer only at the end (*got: how many; 0: none is left): out has room for one tensor [*got, ...] per
 * field, in host memory, each a new reference; NULLs if none is left, and on failure. After a failure the reading is over: the
 * same again. ARGUMENT for n < 1; SHAPE if samples differ; what the stream reports. */
TREK_API trek_status trek_stream_next(trek_stream *stream, int64_t n, trek_tensor **out, int64_t *got);
/* Goes past n samples, fewer only at the end. *skipped may be NULL. */
TREK_API trek_status trek_stream_skip(trek_stream *stream, int64_t n, int64_t *skipped);
TREK_API int64_t trek_stream_position(const trek_stream *stream); /* samples given and skipped; -1 and an error for NULL */
TREK_API void trek_stream_close(trek_stream **stream); /* ends it; NULL is fine; sets NULL */

/* A stream in another order: from a buffer of `capacity` samples, one drawn at random is given and replaced by the next one
 * (as WebDataset's and tf.data's shuffle). The order follows from seed and epoch. Takes the stream over, also on failure.
 * ARGUMENT for capacity < 1 and for a dataset that is no stream (a loader shuffles those). */
TREK_API trek_dataset *trek_dataset_shuffle(trek_dataset *stream, int64_t capacity);

TREK_END

#endif
