/* SPDX-License-Identifier: Apache-2.0 */
/* Arrays in NumPy's format, independent of where the bytes come from or go to. */
#ifndef TREK_DATA_NPY_INTERNAL_H
#define TREK_DATA_NPY_INTERNAL_H

#include "data/dataset_internal.h"
#include "data/npy.h"

/* Bytes read from front to back. */
typedef struct trek_npy_source {
    const char *name;  /* for errors */
    uint64_t left;     /* how many bytes may still come */
    trek_status (*read)(struct trek_npy_source *self, void *to, size_t bytes); /* reads all of them or fails with FORMAT; at
                                                                                * most what is left */
} trek_npy_source;

/* Reads up to the end of the array; the remaining bytes stay unread. */
trek_tensor *trek_npy_from(trek_npy_source *source);

enum { TREK_NPY_HEADER = 256 };
/* Writes the header of *size bytes. Fails with DTYPE. */
trek_status trek_npy_header(const trek_tensor *tensor, unsigned char header[TREK_NPY_HEADER], size_t *size);
/* Returns the elements row-major in host memory: the tensor itself or a new one, to be released. Returns NULL with
 * MEMORY. */
trek_tensor *trek_npy_rows(trek_tensor *tensor);

#endif
