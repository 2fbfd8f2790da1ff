/* SPDX-License-Identifier: Apache-2.0 */
/* Reading files that may be gzip'd, from front to end. Built without zlib, plain ones only. */
#ifndef TREK_DATA_UNPACK_INTERNAL_H
#define TREK_DATA_UNPACK_INTERNAL_H

#include "tensor/memory_internal.h"
#include "tensor/status_internal.h"

typedef struct trek_unpack {
    const char *path; /* the caller's */
    void *file;
    uint64_t got, most; /* bytes so far; of a packed file, that it may become */
} trek_unpack;

/* IO, MEMORY; UNSUPPORTED for a gzip'd file without zlib. */
trek_status trek_unpack_open(trek_unpack *r, const char *path);
/* Reads up to `bytes`; *got tells how many there were. IO, MEMORY, FORMAT: also for a packed file that becomes more than 64 MiB
 * and a hundred times its own size, or more than 16 GiB: it was made to fill the memory of who reads it. */
trek_status trek_unpack_read(trek_unpack *r, unsigned char *to, size_t bytes, size_t *got);
bool trek_unpack_is_packed(const trek_unpack *r);
void trek_unpack_close(trek_unpack *r);

#endif
