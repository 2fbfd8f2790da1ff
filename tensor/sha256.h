/* SPDX-License-Identifier: Apache-2.0 */
/* SHA-256 (FIPS 180-4) and HMAC-SHA256 (RFC 2104), of one piece and of several. Internal. */
#ifndef TREK_TENSOR_SHA256_H
#define TREK_TENSOR_SHA256_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct trek_sha256_state {
    uint32_t words[8];
    uint64_t bytes;          /* so many have been added */
    unsigned char block[64]; /* the last of them, as long as they do not fill it */
} trek_sha256_state;

void trek_sha256(const void *data, size_t bytes, unsigned char digest[32]);
void trek_sha256_begin(trek_sha256_state *state);
void trek_sha256_add(trek_sha256_state *state, const void *data, size_t bytes);
void trek_sha256_end(trek_sha256_state *state, unsigned char digest[32]);

/* For tests: without the instructions that some processors have for it. */
void trek_sha256_set_portable(bool portable);

/* What a secret comes to in HMAC: the states behind its two blocks. */
typedef struct trek_hmac_key {
    uint32_t inner[8], outer[8];
} trek_hmac_key;

void trek_hmac_key_of(const void *secret, size_t bytes, trek_hmac_key *key);
/* Between them trek_sha256_add adds what the code is of. */
void trek_hmac_begin(trek_sha256_state *state, const trek_hmac_key *key);
void trek_hmac_end(trek_sha256_state *state, const trek_hmac_key *key, unsigned char digest[32]);

#endif
