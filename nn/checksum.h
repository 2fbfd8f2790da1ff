/* SPDX-License-Identifier: Apache-2.0 */
/* The checksum of files: XXH64 with seed 0 (Yann Collet, "XXH64 algorithm description", version 0.2.0), which xxhsum
 * -H1 and Python's xxhash compute too. It detects damage, not intent. */
#ifndef TREK_NN_CHECKSUM_H
#define TREK_NN_CHECKSUM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define TREK_CHECKSUM_DIGITS 16

typedef struct trek_checksum {
    uint64_t lanes[4], length;
    unsigned char rest[32];   /* the length % 32 bytes that do not make a whole stripe yet */
} trek_checksum;

void trek_checksum_begin(trek_checksum *sum);
void trek_checksum_add(trek_checksum *sum, const void *data, size_t bytes);
uint64_t trek_checksum_end(const trek_checksum *sum);
uint64_t trek_checksum_of(const void *data, size_t bytes);

/* Writes 16 hexadecimal digits without a terminating NUL. */
void trek_checksum_write(uint64_t value, char *digits);
/* Reads 16 lower-case hexadecimal digits. Returns false if the text is anything else. */
bool trek_checksum_read(const char *digits, uint64_t *value);
/* Returns whether the two checksums agree. Fuzzing builds always say yes, because fuzzers cannot guess checksums. */
bool trek_checksum_holds(uint64_t found, uint64_t noted);

#endif
