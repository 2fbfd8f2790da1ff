/* SPDX-License-Identifier: Apache-2.0 */
/* Data sets of characters and tokens. Errors are those of data/dataset.h. */
#ifndef TREK_DATA_TEXT_SETS_H
#define TREK_DATA_TEXT_SETS_H

#include "data/dataset.h"

TREK_BEGIN

/* Options of trek_dataset_text_windows. */
typedef struct trek_text_windows_opts {
    int64_t stride;            /* characters from the start of a window to the next start; default: window, no overlap */
} trek_text_windows_opts;

/* Returns a dataset of the windows of a text file, for language models of characters. Its fields are "input", i64 [n, window],
 * and "target", i64 [n, window], which is the text one character later. A character is a byte. Its number is its index in the
 * sorted list of the distinct bytes of the file. `opts` may be NULL.
 * Errors: FORMAT if the file is shorter than window + 1. */
TREK_API trek_dataset *trek_dataset_text_windows(const char *path, int64_t window, const trek_text_windows_opts *opts);
/* Returns the distinct characters of a dataset of text windows in the order of their numbers, and writes how many they are to
 * *size. The dataset may also be a subset, an index list or a cache of one. The list is valid as long as the dataset.
 * Errors: ARGUMENT for any other dataset; NULL is returned. */
TREK_API const unsigned char *trek_text_vocabulary(const trek_dataset *dataset, int *size);
/* Converts `count` characters of `text` to numbers and writes these to `ids`, [count].
 * Errors: ARGUMENT for a character that the file does not contain. */
TREK_API trek_status trek_text_encode(const trek_dataset *dataset, const char *text, int64_t count, int64_t *ids);
/* Returns a dataset of the windows of files of token numbers. Its fields are "input" and "target", i64 [n, window], where the
 * target is one token later. Windows do not overlap and do not cross the end of a file. Numbers are little-endian, of 16 bits,
 * or of 32 bits if the file has a header that says so. A header has 1024 bytes and begins with 20240520 for 16 bits or
 * 20240801 for 32 bits. Files stay on disk and are read when samples are fetched.
 * Errors: FORMAT if no file has a whole window. */
TREK_API trek_dataset *trek_dataset_token_shards(const char *const *paths, int n_paths, int64_t window);

/* Options of trek_dataset_token_shards_with. */
typedef struct trek_token_shards_opts {
    int bits; /* size of a token number in files without a header: 16 or 32; default 16 */
} trek_token_shards_opts;

/* Returns a dataset as trek_dataset_token_shards does, with options. `opts` may be NULL. */
TREK_API trek_dataset *trek_dataset_token_shards_with(const char *const *paths, int n_paths, int64_t window,
                                                      const trek_token_shards_opts *opts);

TREK_END

#endif
