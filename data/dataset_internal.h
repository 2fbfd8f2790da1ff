/* SPDX-License-Identifier: Apache-2.0 */
/* What the datasets of this folder share. */
#ifndef TREK_DATA_DATASET_INTERNAL_H
#define TREK_DATA_DATASET_INTERNAL_H

#include "data/dataset.h"
#include "tensor/memory_internal.h"
#include "tensor/status_internal.h"

/* A new uninitialised host tensor [n, sample...]; NULL and MEMORY. */
trek_tensor *trek_dataset_tensor(int64_t n, trek_shape sample, trek_dtype dtype);

/* Takes over a reference of the caller's. STATE, and nothing taken, if each reference is some other holder's. */
trek_status trek_dataset_hold(trek_dataset *dataset, const char *function);
/* Gives it back; what is there may be NULL. */
void trek_dataset_let_go(trek_dataset **dataset);

/* What a subset (of a subset ...) is of. */
const trek_dataset *trek_dataset_root(const trek_dataset *dataset);

/* A sticky error's status, for a function that has just failed to make something. */
static inline trek_status trek_status_or(trek_status status)
{
    trek_status now = trek_error_status();
    return now != TREK_OK ? now : status;
}

/* Bytes of images with labels, in memory: sample i has its pixels at pixels + i *
 * pixel_stride and its label at labels + i * label_stride. */
typedef struct trek_byte_images {
    const unsigned char *pixels, *labels;
    size_t pixel_stride, label_stride;
    trek_shape sample; /* [channels, height, width] */
} trek_byte_images;

/* A batch of them: out[0] f32 [n, sample...] = byte / 255, out[1] i64 [n]. */
trek_status trek_byte_images_get(const trek_byte_images *images, const int64_t *indices, int64_t n, trek_tensor **out);

/* "image", "label": the fields of such datasets. */
extern const char *const trek_image_fields[2];

#endif
