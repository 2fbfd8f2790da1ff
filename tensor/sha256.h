/* SPDX-License-Identifier: Apache-2.0 */
/* SHA-256 (FIPS 180-4) and HMAC-SHA256 (RFC 2104), of data in one piece or in several. */
#ifndef TREK_TENSOR_SHA256_H
#define TREK_TENSOR_SHA256_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct trek_sha256_state {
    uint32_t words[8];
    uint64_t bytes;          /* number of bytes added so far */
    unsigned char block[64]; /* the last bytes, which do not fill a block yet */
} trek_sha256_state;

/* Writes the digest of `bytes` bytes. */
void trek_sha256(const void *data, size_t bytes, unsigned char digest[32]);
/* Computes the digest of data in several pieces: begin, add each piece, end. */
void trek_sha256_begin(trek_sha256_state *state);
void trek_sha256_add(trek_sha256_state *state, const void *data, size_t bytes);
void trek_sha256_end(trek_sha256_state *state, unsigned char digest[32]);

/* For tests: turns off the SHA instructions of the processor. */
void trek_sha256_set_portable(bool portable);

/* A secret prepared for HMAC: the hash states after its two padded blocks. */
typedef struct trek_hmac_key {
    uint32_t inner[8], outer[8];
} trek_hmac_key;

void trek_hmac_key_of(const void *secret, size_t bytes, trek_hmac_key *key);
/* Computes a code in pieces: begin, add the data with trek_sha256_add, end. */
void trek_hmac_begin(trek_sha256_state *state, const trek_hmac_key *key);
void trek_hmac_end(trek_sha256_state *state, const trek_hmac_key *key, unsigned char digest[32]);

#endif
