/* SPDX-License-Identifier: Apache-2.0 */
/* A byte-level BPE and its parts. Internal. */
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
enum { TREK_CHAR_CLASSES = 0x40000 }; /* no letter, number or space lies above */

/* The class of each code point, made at the first call. */
const uint8_t *trek_char_classes(void);
/* The end of the word that begins at p (p < end), by GPT-2's pattern
 * 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+. A byte that is no part of UTF-8 is a character that
 * is no letter, number or space. */
const unsigned char *trek_word_end(const uint8_t *classes, const unsigned char *p, const unsigned char *end);

/* --- tables ----------------------------------------------------------------------------- */

typedef struct trek_token {
    uint32_t at, length;      /* in `bytes` */
    bool used, special;       /* used: there is a token of this number */
} trek_token;

typedef struct trek_merge {
    int32_t left, right;      /* left -1: free */
    int32_t rank, to;
} trek_merge;

struct trek_tokenizer {
    trek_token *tokens;       /* by number */
    int n_tokens, cap_tokens;
    unsigned char *bytes;
    size_t n_bytes, cap_bytes;
    int32_t *slots;           /* open addressing, of numbers + 1; 0: free */
    int n_slots, n_used;
    int32_t of_byte[256];
    trek_merge *merges;       /* open addressing */
    int n_merge_slots, n_merges;
    int32_t *added;           /* what is found in texts first: specials, and others of a tokenizer.json */
    int n_added, cap_added;
    bool begins_added[256];   /* bytes */
    const uint8_t *classes;
};

trek_tokenizer *trek_tokenizer_empty(void);
/* The number of a token, or -1. */
int32_t trek_tokenizer_lookup(const trek_tokenizer *t, const void *bytes, size_t length);
/* A further token; FORMAT, naming path, if its number or its bytes are taken or the number is far above the rest. */
trek_status trek_tokenizer_put(trek_tokenizer *t, const void *bytes, size_t length, int64_t id, const char *path);
/* Room for so many merges, or as many as the tokens that there are can come of: before the first one. MEMORY. */
trek_status trek_tokenizer_room_for_merges(trek_tokenizer *t, int64_t count);
/* The pair that becomes `to`. FORMAT: it is there already, or there is no room. */
trek_status trek_tokenizer_put_merge(trek_tokenizer *t, int32_t left, int32_t right, int32_t to, const char *path);
/* Is found in texts as a whole from here on. */
trek_status trek_tokenizer_put_added(trek_tokenizer *t, int32_t id, bool special);
/* After all tokens are there. FORMAT: a byte has none. */
trek_status trek_tokenizer_finish(trek_tokenizer *t, const char *path);

static inline uint32_t trek_merge_hash(int32_t left, int32_t right)
{
    uint64_t pair = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
    return (uint32_t)((pair * UINT64_C(0x9E3779B97F4A7C15)) >> 32);
}

#endif
