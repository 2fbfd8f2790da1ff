/* SPDX-License-Identifier: Apache-2.0 */
/* Arrays in NumPy's format, wherever the bytes come from or go. */
#ifndef TREK_DATA_NPY_INTERNAL_H
#define TREK_DATA_NPY_INTERNAL_H

#include "data/dataset_internal.h"
#include "data/npy.h"

/* Bytes from front to end. */
typedef struct trek_npy_source {
    const char *name;  /* for errors */
    uint64_t left;     /* as many may still come */
    trek_status (*read)(struct trek_npy_source *self, void *to, size_t bytes); /* all of them, or FORMAT; at most what is left */
} trek_npy_source;

/* Up to the end of the array; what is left then is left. */
trek_tensor *trek_npy_from(trek_npy_source *source);

enum { TREK_NPY_HEADER = 256 };
/* Writes the header, *size bytes of it; DTYPE. */
trek_status trek_npy_header(const trek_tensor *tensor, unsigned char header[TREK_NPY_HEADER], size_t *size);
/* Its elements, row-major, in host memory: the tensor itself or a new one (to be released). NULL and MEMORY. */
trek_tensor *trek_npy_rows(trek_tensor *tensor);

#endif
