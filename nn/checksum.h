/* SPDX-License-Identifier: Apache-2.0 */
/* The checksum of files: XXH64 with seed 0 (Yann Collet, "XXH64 algorithm description", version 0.2.0), which
 * xxhsum -H1 and Python's xxhash compute too. It finds damage, not intent. Internal. */
#ifndef TREK_NN_CHECKSUM_H
#define TREK_NN_CHECKSUM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define TREK_CHECKSUM_DIGITS 16

typedef struct trek_checksum {
    uint64_t lanes[4], length;
    unsigned char rest[32];   /* length % 32 bytes that make no whole stripe yet */
} trek_checksum;

void trek_checksum_begin(trek_checksum *sum);
void trek_checksum_add(trek_checksum *sum, const void *data, size_t bytes);
uint64_t trek_checksum_end(const trek_checksum *sum);
uint64_t trek_checksum_of(const void *data, size_t bytes);

/* 16 hexadecimal digits, without an end. */
void trek_checksum_write(uint64_t value, char *digits);
/* The reverse, of lower-case digits; false: these are none. */
bool trek_checksum_read(const char *digits, uint64_t *value);
/* Whether what was read is what was written. Fuzzers, who cannot guess checksums, get past it. */
bool trek_checksum_holds(uint64_t found, uint64_t noted);

#endif
