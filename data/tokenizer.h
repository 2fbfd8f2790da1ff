/* SPDX-License-Identifier: Apache-2.0 */
/* Tokenizers convert text to token numbers and back, by byte-level byte-pair encoding as GPT-2 (Radford and others 2019) and
 * Hugging Face's tokenizers with a ByteLevel pre-tokenizer do. The text is divided into words by GPT-2's pattern, with the
 * letters and numbers of Unicode 16, and words into bytes. Then neighbours are joined: again and again the leftmost pair that
 * comes first in the list of merges, until no neighbours are in the list (Sennrich and others 2016). Any bytes can be encoded
 * and decoded to the same bytes. Bytes that are not UTF-8 are treated as characters that are neither letter, number nor space.
 *
 *     trek_tokenizer *t = trek_tokenizer_read("gpt2");       // a folder with tokenizer.json, or vocab.json and merges.txt
 *     trek_tensor *ids = trek_tokenizer_encode(t, text, strlen(text), NULL);
 *     char *again = trek_tokenizer_decode(t, trek_tensor_data(ids), trek_tensor_numel(ids), false, NULL);
 *
 * Threads may share a tokenizer, except while trek_tokenizer_add_special changes it. */
#ifndef TREK_DATA_TOKENIZER_H
#define TREK_DATA_TOKENIZER_H

#include "tensor/tensor.h"

TREK_BEGIN

/* A tokenizer. */
typedef struct trek_tokenizer trek_tokenizer;

/* Returns a tokenizer from the two files of GPT-2: {"token": number, ...}, and lines of two tokens, where the first line may
 * be a "#version" line. The token "<|endoftext|>" is special if the files have it. The caller frees the tokenizer.
 * Errors: FORMAT if a file is malformed, two tokens have one number, a merge occurs twice or uses unknown tokens, or a byte
 * has no token. IO, MEMORY. */
TREK_API trek_tokenizer *trek_tokenizer_gpt2(const char *vocab, const char *merges);
/* Returns a tokenizer from a file tokenizer.json, or from a folder that has one, or that has vocab.json and merges.txt. The
 * caller frees it. Processing of whole texts that the file describes (post-processors, padding, truncation) is not applied.
 * Errors: UNSUPPORTED for another model than BPE, another pre-tokenizer than ByteLevel with its pattern and without a prefix
 * space, a normaliser, and added tokens that include spaces. Otherwise as trek_tokenizer_gpt2. */
TREK_API trek_tokenizer *trek_tokenizer_read(const char *path);
/* Frees the tokenizer and sets *tokenizer to NULL. */
TREK_API void trek_tokenizer_free(trek_tokenizer **tokenizer);

/* Returns the number of rows that a table of embeddings needs: every token number is below it. Not all numbers below it need
 * be used. */
TREK_API int64_t trek_tokenizer_size(const trek_tokenizer *tokenizer);
/* Returns the number of the token with these bytes, or -1 if no such token exists. */
TREK_API int64_t trek_tokenizer_id(const trek_tokenizer *tokenizer, const char *token, size_t bytes);
/* Returns the bytes of a token, without a terminating 0, and writes their number to *bytes. They are borrowed until a token is
 * added.
 * Errors: ARGUMENT if no token has this number; NULL is returned. */
TREK_API const char *trek_tokenizer_token(const trek_tokenizer *tokenizer, int64_t id, size_t *bytes);
/* Adds a special token and returns its number. It gets a new number if the tokenizer does not have it yet. Special tokens are
 * found in a text as a whole before the text is divided.
 * Errors: ARGUMENT if the token is empty. MEMORY. -1 is returned. */
TREK_API int64_t trek_tokenizer_add_special(trek_tokenizer *tokenizer, const char *token);

/* Options of encoding. */
typedef struct trek_encode_opts {
    bool plain; /* treats special tokens in the text as ordinary text, for texts of other people; default false */
} trek_encode_opts;

/* Returns the token numbers of a text as a new tensor, i64 [numbers] on the CPU. `opts` may be NULL. */
TREK_API trek_tensor *trek_tokenizer_encode(const trek_tokenizer *tokenizer, const char *text, size_t bytes,
                                            const trek_encode_opts *opts);
/* Writes the token numbers of a text to `ids`, at most `capacity` of them, and returns how many the text has, or -1 on failure.
 * The numbers are never more than the bytes of the text. `opts` may be NULL. */
TREK_API int64_t trek_tokenizer_encode_to(const trek_tokenizer *tokenizer, const char *text, size_t bytes,
                                          const trek_encode_opts *opts, int64_t *ids, int64_t capacity);
/* Returns the text of n token numbers as a new string with a terminating 0, and writes its length without that to *bytes,
 * which may be NULL. A token can contain a 0 or a part of a character. With `skip_special` special tokens are left out. The
 * caller frees the string with trek_string_free.
 * Errors: ARGUMENT if a number does not belong to a token; NULL is returned. */
TREK_API char *trek_tokenizer_decode(const trek_tokenizer *tokenizer, const int64_t *ids, int64_t n, bool skip_special,
                                     size_t *bytes);

TREK_END

#endif
