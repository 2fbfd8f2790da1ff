/* SPDX-License-Identifier: Apache-2.0 */
/* FNV-1a: a hash for tables and for comparing what processes have. It does not resist intent; tensor/sha256.h does. */
#ifndef TREK_TENSOR_BYTE_HASH_H
#define TREK_TENSOR_BYTE_HASH_H

#include <stddef.h>
#include <stdint.h>

#define TREK_HASH_BEGIN UINT64_C(14695981039346656037)

/* Returns the hash of what `hash` stands for, followed by these bytes. Begin with TREK_HASH_BEGIN. */
static inline uint64_t trek_hash_bytes(uint64_t hash, const void *bytes, size_t count)
{
    const unsigned char *at = bytes;
    for (size_t k = 0; k < count; k++)
        hash = (hash ^ at[k]) * UINT64_C(1099511628211);
    return hash;
}

#endif
