/* SPDX-License-Identifier: Apache-2.0 */
/* Digests of blocks of memory of the host. */
#include "distributed/grains/digest.h"

#include "tensor/backend.h"

void trek_digest_add(trek_digest *digest, uint64_t key, const void *bytes, size_t size)
{
    trek_cpu_backend()->digest(trek_cpu(0), &(trek_digest_span){ .data = bytes, .bytes = (int64_t)size, .key = key }, 1, digest);
}

void trek_digest_add_floats(trek_digest *digest, uint64_t key, const void *numbers, int64_t count, size_t width)
{
    trek_cpu_backend()->digest(trek_cpu(0), &(trek_digest_span){ .data = numbers, .bytes = count * (int64_t)width, .key = key,
                                                                 .floats = (int)width }, 1, digest);
}
