/* SPDX-License-Identifier: Apache-2.0 */
/* Texts as numbers of tokens: byte-level byte-pair encoding, as of GPT-2 (Radford and others 2019) and of Hugging Face's
 * tokenizers with a ByteLevel pre-tokenizer. A text is divided into words by GPT-2's pattern (letters and numbers of Unicode 16),
 * words into bytes, and of neighbours the pair that stands first in the list of merges is joined, the leftmost first, until there
 * is none (Sennrich and others 2016). Any bytes can be encoded, and decoded to the same: those that are not UTF-8 count as
 * characters that are neither letter, number nor space.
 *
 *     trek_tokenizer *t = trek_tokenizer_read("gpt2");       // a folder with tokenizer.json, or vocab.json and merges.txt
 *     trek_tensor *ids = trek_tokenizer_encode(t, text, strlen(text), NULL);
 *     char *again = trek_tokenizer_decode(t, trek_tensor_data(ids), trek_tensor_numel(ids), false, NULL);
 *
 * A tokenizer changes only in trek_tokenizer_add_special; but for that, threads may share it. */
#ifndef TREK_DATA_TOKENIZER_H
#define TREK_DATA_TOKENIZER_H

#include "tensor/tensor.h"

TREK_BEGIN

typedef struct trek_tokenizer trek_tokenizer;

/* GPT-2's two files: {"token": number, ...}, and lines of two tokens, of which the first may be a "#version" line.
 * "<|endoftext|>" is special if it is there. FORMAT: a file is not well-formed, two tokens have one number, a merge of tokens
 * that are not there or twice, a byte without a token; IO, MEMORY. */
TREK_API trek_tokenizer *trek_tokenizer_gpt2(const char *vocab, const char *merges);
/* A tokenizer.json, or a folder that has one, or else vocab.json and merges.txt. UNSUPPORTED: another model than BPE, another
 * pre-tokenizer than ByteLevel with its pattern and without a prefix space, a normaliser, added tokens that take in spaces; then
 * the errors above. What it does with whole texts besides (post-processors, padding, truncation) is not applied. */
TREK_API trek_tokenizer *trek_tokenizer_read(const char *path);
TREK_API void trek_tokenizer_free(trek_tokenizer **tokenizer);

/* Numbers are below this (there may be gaps): the rows that a table of embeddings needs. */
TREK_API int64_t trek_tokenizer_size(const trek_tokenizer *tokenizer);
/* The token of these bytes; -1: there is none. */
TREK_API int64_t trek_tokenizer_id(const trek_tokenizer *tokenizer, const char *token, size_t bytes);
/* Its bytes, borrowed until a token is added, without an end; NULL and ARGUMENT: no token has this number. */
TREK_API const char *trek_tokenizer_token(const trek_tokenizer *tokenizer, int64_t id, size_t *bytes);
/* A token that is found in texts as a whole, before they are divided; a new number if there is none yet. Returns its number; -1
 * and ARGUMENT (an empty text), MEMORY. */
TREK_API int64_t trek_tokenizer_add_special(trek_tokenizer *tokenizer, const char *token);

typedef struct trek_encode_opts {
    bool plain;               /* special tokens in the text are texts as any other: for texts that others have written */
} trek_encode_opts;

/* i64 [numbers], on the CPU. opts may be NULL. */
TREK_API trek_tensor *trek_tokenizer_encode(const trek_tokenizer *tokenizer, const char *text, size_t bytes,
                                            const trek_encode_opts *opts);
/* The same into memory of the caller's: returns how many there are, of which the first `room` are written (as many as bytes are
 * always enough); -1 and an error. */
TREK_API int64_t trek_tokenizer_encode_to(const trek_tokenizer *tokenizer, const char *text, size_t bytes,
                                          const trek_encode_opts *opts, int64_t *ids, int64_t room);
/* A new string (trek_string_free), ended by a NUL; *bytes (may be NULL) is its length without that: tokens may hold NULs, and cut
 * characters in two. skip_special: special tokens are left out. NULL and ARGUMENT: a number that is no token's. */
TREK_API char *trek_tokenizer_decode(const trek_tokenizer *tokenizer, const int64_t *ids, int64_t n, bool skip_special,
                                     size_t *bytes);

TREK_END

#endif
