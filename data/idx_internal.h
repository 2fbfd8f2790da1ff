/* SPDX-License-Identifier: Apache-2.0 */
/* Files read whole, plain or gzip'd, without trusting what they say about their size. */
#ifndef TREK_DATA_IDX_INTERNAL_H
#define TREK_DATA_IDX_INTERNAL_H

#include "data/dataset_internal.h"

/* The IDX format of MNIST: two zero bytes, the element type, the number of dimensions, the sizes (32 bits,
 * big-endian), and the elements (big-endian, row-major). */
typedef struct trek_idx {
    unsigned char type;     /* 0x08 u8, 0x09 i8, 0x0B i16, 0x0C i32, 0x0D f32, 0x0E f64 */
    trek_shape shape;
    size_t element;         /* bytes */
    unsigned char *bytes;   /* as they are in the file; free with trek_free */
} trek_idx;

/* Fails with IO, FORMAT or MEMORY; every message names the path. After a failure *idx holds nothing. */
trek_status trek_idx_load(const char *path, trek_idx *idx);

/* Reads a whole plain file into memory (free with trek_free). Fails with IO or MEMORY. */
trek_status trek_file_load(const char *path, bool packed, unsigned char **bytes, size_t *length);

/* Returns folder + "/" + name as a new string. */
char *trek_path_join(const char *folder, const char *name);

#endif
