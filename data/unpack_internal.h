/* SPDX-License-Identifier: Apache-2.0 */
/* Reading files that may be gzip'd, from front to back. A build without zlib reads plain ones only. */
#ifndef TREK_DATA_UNPACK_INTERNAL_H
#define TREK_DATA_UNPACK_INTERNAL_H

#include "tensor/memory_internal.h"
#include "tensor/status_internal.h"

typedef struct trek_unpack {
    const char *path; /* the caller's */
    void *file;
    uint64_t got, most; /* bytes so far; most: the limit for a packed file */
} trek_unpack;

/* Fails with IO or MEMORY, or with UNSUPPORTED for a gzip'd file without zlib. */
trek_status trek_unpack_open(trek_unpack *r, const char *path);
/* Reads up to `bytes`; *got is how many there were. Fails with IO, MEMORY or FORMAT. FORMAT includes a packed file
 * that expands to more than 64 MiB and a hundred times its own size, or to more than 16 GiB, because it was made to
 * exhaust the reader's memory. */
trek_status trek_unpack_read(trek_unpack *r, unsigned char *to, size_t bytes, size_t *got);
bool trek_unpack_is_packed(const trek_unpack *r);
void trek_unpack_close(trek_unpack *r);

#endif
