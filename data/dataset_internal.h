/* SPDX-License-Identifier: Apache-2.0 */
/* What the datasets of this folder share. */
#ifndef TREK_DATA_DATASET_INTERNAL_H
#define TREK_DATA_DATASET_INTERNAL_H

#include "data/dataset_class.h"
#include "data/stream.h"
#include "tensor/memory_internal.h"
#include "tensor/status_internal.h"

/* Returns a new uninitialised host tensor [n, sample...], or NULL with MEMORY. */
trek_tensor *trek_dataset_tensor(int64_t n, trek_shape sample, trek_dtype dtype);

/* Takes over one of the caller's references. Fails with STATE, taking nothing, if every reference is held by another
 * holder. */
trek_status trek_dataset_hold(trek_dataset *dataset, const char *function);
/* Gives the reference back. *dataset may be NULL. */
void trek_dataset_let_go(trek_dataset **dataset);

/* Returns whether the class of the dataset, or of any dataset it is made from, has needs_batch. */
bool trek_dataset_needs_batch(const trek_dataset *dataset);
void trek_dataset_set_needs_batch(trek_dataset *dataset); /* sets it for this object, whatever its class says */
/* A dataset made from others needs what they need. */
void trek_dataset_needs_as(trek_dataset *dataset, const trek_dataset *part);

/* A dataset made around another one; it is the head of its struct. It owns a reference to `inner` and starts with
 * inner's fields. */
typedef struct trek_around {
    trek_dataset base;
    trek_dataset *inner;
} trek_around;
/* Takes ownership of `inner`. Fails with inner's errors or MEMORY. */
trek_around *trek_dataset_around(const trek_dataset_class *klass, trek_dataset *inner, const char *function);
int64_t trek_around_length(const trek_dataset *self); /* inner's */
void trek_around_free(trek_dataset *self);

/* For classes that can be around streams: their reading is a reading of `inner` (open, skip, close). */
trek_status trek_around_open(trek_dataset *self, int64_t epoch, uint64_t seed, void **reading);
trek_status trek_around_skip(trek_dataset *self, void *reading, int64_t n, int64_t *skipped);
void trek_around_close(trek_dataset *self, void *reading);
struct trek_stream;
void trek_stream_key(const struct trek_stream *stream, int64_t *epoch, uint64_t *seed);

/* Checks what get has produced: one tensor of n rows for each field. Fails with CALLBACK or SHAPE. */
trek_status trek_batch_check(const trek_dataset *dataset, int64_t n, trek_tensor *const *out);
/* Replaces a tensor by a row-major one in host memory. */
trek_status trek_tensor_settle(trek_tensor **tensor);
/* Copies sample `row` of a settled tensor to position `at` of *to, which is made for n samples if it is NULL. Fails
 * with SHAPE if their shapes differ; the message names the dataset's field. */
trek_status trek_rows_put(const trek_dataset *dataset, int field, trek_tensor **to, int64_t n, int64_t at, trek_tensor *from,
                          int64_t row);
trek_tensor **trek_tensors_new(int n); /* all NULL */
void trek_tensors_clear(trek_tensor **tensors, int n); /* releases them; NULL is allowed */

/* Returns the dataset at the bottom of subsets, caches and so on. */
const trek_dataset *trek_dataset_root(const trek_dataset *dataset);

/* Returns the sticky error's status, for a function that has just failed to make something. */
static inline trek_status trek_status_or(trek_status status)
{
    trek_status now = trek_error_status();
    return now != TREK_OK ? now : status;
}

/* Images as bytes with labels, in memory: the pixels of sample i are at pixels + i * pixel_stride and its label at
 * labels + i * label_stride. */
typedef struct trek_byte_images {
    const unsigned char *pixels, *labels;
    size_t pixel_stride, label_stride;
    trek_shape sample; /* [channels, height, width] */
} trek_byte_images;

/* Makes a batch of them: out[0] is f32 [n, sample...] = byte / 255, out[1] is i64 [n]. */
trek_status trek_byte_images_get(const trek_byte_images *images, const trek_fetch *fetch, trek_tensor **out);

/* "image" and "label", the fields of such datasets. */
extern const char *const trek_image_fields[2];

#endif
