/* SPDX-License-Identifier: Apache-2.0 */
/* Streams: datasets whose samples come one after another, without indices, until they end. A loader gives their batches
 * (trek_loader_new). trek_dataset_map, trek_dataset_select, trek_dataset_transform and trek_dataset_shuffle can be applied to
 * streams. */
#ifndef TREK_DATA_STREAM_H
#define TREK_DATA_STREAM_H

#include "data/dataset.h"

TREK_BEGIN

/* The functions of a stream. A dataset whose class has them in its field `stream` is a stream. A reading is one pass over the
 * stream. Only one thread at a time uses it. Several readings can be open at once, each from the beginning. Equal epoch and
 * seed must give equal samples. On failure the functions call trek_fail. */
typedef struct trek_stream_class {
    /* Begins a reading of an epoch and stores its state in *reading. */
    trek_status (*open)(trek_dataset *self, int64_t epoch, uint64_t seed, void **reading);
    /* Writes the next 1 to n samples, as many as it likes, to `out`: a tensor [*got, ...] in host memory for each field. At
     * the end it sets *got to 0. It runs in a scope that ends with the call. After a failure the tensors in `out` are
     * released. */
    trek_status (*next)(trek_dataset *self, void *reading, int64_t n, trek_tensor **out, int64_t *got);
    /* Skips n samples, or the remaining ones, without making them. NULL: samples are read and dropped. */
    trek_status (*skip)(trek_dataset *self, void *reading, int64_t n, int64_t *skipped);
    /* Ends a reading. It may be NULL. */
    void (*close)(trek_dataset *self, void *reading);
} trek_stream_class;

/* Returns true if the dataset is a stream. Returns false for NULL. */
TREK_API bool trek_dataset_is_stream(const trek_dataset *dataset);

/* A stream that has been opened for reading. */
typedef struct trek_stream trek_stream;

/* Begins a reading of a stream and returns it. It retains the dataset. The caller ends it with trek_stream_close.
 * Errors: ARGUMENT if the dataset is not a stream or the epoch is negative. MEMORY. Errors of the stream. NULL is returned. */
TREK_API trek_stream *trek_stream_open(trek_dataset *dataset, int64_t epoch, uint64_t seed);
/* Reads the next n samples, fewer only at the end, and writes their number to *got, which is 0 if no sample is left. `out`
 * gets a tensor [*got, ...] in host memory for each field, each a new reference, or NULLs if no sample is left and on failure.
 * After a failure the reading has ended, and each further call fails in the same way.
 * Errors: ARGUMENT if n < 1. SHAPE if samples differ. Errors of the stream. */
TREK_API trek_status trek_stream_next(trek_stream *stream, int64_t n, trek_tensor **out, int64_t *got);
/* Skips n samples, fewer only at the end, and writes their number to *skipped, which may be NULL. */
TREK_API trek_status trek_stream_skip(trek_stream *stream, int64_t n, int64_t *skipped);
/* Returns how many samples were read and skipped. If `stream` is NULL, it returns -1 and sets an error. */
TREK_API int64_t trek_stream_position(const trek_stream *stream);
/* Ends the reading and sets *stream to NULL. NULL is allowed. */
TREK_API void trek_stream_close(trek_stream **stream);

/* Returns a stream with the samples of another in a random order. It holds a buffer of `capacity` samples: it gives one of
 * them at random and replaces it by the next, as the shuffle of WebDataset and tf.data does. The order depends on seed and
 * epoch. It takes the stream over, also on failure.
 * Errors: ARGUMENT if `capacity` < 1, or if the dataset is not a stream (use the loader's shuffle then). */
TREK_API trek_dataset *trek_dataset_shuffle(trek_dataset *stream, int64_t capacity);

TREK_END

#endif
