/* SPDX-License-Identifier: Apache-2.0 */
/* A byte-level BPE tokenizer and its parts. */
#ifndef TREK_DATA_TOKENIZER_INTERNAL_H
#define TREK_DATA_TOKENIZER_INTERNAL_H

#include "data/tokenizer.h"

/* --- characters ---------------------------------------------------------------------- */

typedef struct trek_code_range {
    uint32_t first, last;
} trek_code_range;

extern const trek_code_range trek_unicode_letters[], trek_unicode_numbers[];
extern const int trek_unicode_letters_count, trek_unicode_numbers_count;

enum { TREK_CHAR_OTHER, TREK_CHAR_LETTER, TREK_CHAR_NUMBER, TREK_CHAR_SPACE };
enum { TREK_CHAR_CLASSES = 0x40000 }; /* there is no letter, number or space above it */

/* Returns the class of each code point; the table is made at the first call. */
const uint8_t *trek_char_classes(void);
/* Returns the end of the word that begins at p (p < end), by GPT-2's pattern
 *   's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
 * A byte that is not part of valid UTF-8 counts as a character that is no letter, number or space. */
const unsigned char *trek_word_end(const uint8_t *classes, const unsigned char *p, const unsigned char *end);

/* --- tables ----------------------------------------------------------------------------- */

typedef struct trek_token {
    uint32_t at, length;      /* in `bytes` */
    bool used, special;       /* used: there is a token of this number */
} trek_token;

typedef struct trek_merge {
    int32_t left, right;      /* left is -1 if the slot is free */
    int32_t rank, to;
} trek_merge;

struct trek_tokenizer {
    trek_token *tokens;       /* by number */
    int n_tokens, cap_tokens;
    unsigned char *bytes;
    size_t n_bytes, cap_bytes;
    int32_t *slots;           /* open addressing, of numbers + 1; 0 for free */
    int n_slots, n_used;
    int32_t of_byte[256];
    trek_merge *merges;       /* open addressing */
    int n_merge_slots, n_merges;
    int32_t *added;           /* tokens that are searched in texts first: specials, and others from a tokenizer.json */
    int n_added, cap_added;
    bool begins_added[256];   /* bytes */
    const uint8_t *classes;
};

trek_tokenizer *trek_tokenizer_empty(void);
/* Returns the number of a token, or -1. */
int32_t trek_tokenizer_lookup(const trek_tokenizer *t, const void *bytes, size_t length);
/* Adds a token. Fails with FORMAT, naming path, if its number or its bytes are taken, or if the number is far above
 * the rest. */
trek_status trek_tokenizer_put(trek_tokenizer *t, const void *bytes, size_t length, int64_t id, const char *path);
/* Allocates memory for `count` merges, or for fewer: the existing tokens limit how many merges there can be. Called before
 * the first merge. Fails with MEMORY. */
trek_status trek_tokenizer_room_for_merges(trek_tokenizer *t, int64_t count);
/* Adds the pair that becomes `to`. Fails with FORMAT if the pair exists already or there is no room. */
trek_status trek_tokenizer_put_merge(trek_tokenizer *t, int32_t left, int32_t right, int32_t to, const char *path);
/* From now on the token is found in texts as a whole. */
trek_status trek_tokenizer_put_added(trek_tokenizer *t, int32_t id, bool special);
/* Called after all tokens are there. Fails with FORMAT if a byte has no token. */
trek_status trek_tokenizer_finish(trek_tokenizer *t, const char *path);

static inline uint32_t trek_merge_hash(int32_t left, int32_t right)
{
    uint64_t pair = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
    return (uint32_t)((pair * UINT64_C(0x9E3779B97F4A7C15)) >> 32);
}

#endif
