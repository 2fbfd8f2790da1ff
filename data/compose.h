/* SPDX-License-Identifier: Apache-2.0 */
/* Datasets made of others. Each takes those it is made of over, also on failure (trek_dataset_retain for each further
 * holder), and frees them with itself. NULL and the first error for a NULL dataset; MEMORY. Epoch and seed reach what they are
 * made of; a sample's index there is the one it has there. */
#ifndef TREK_DATA_COMPOSE_H
#define TREK_DATA_COMPOSE_H

#include "data/dataset.h"

TREK_BEGIN

/* Sample i is sample indices[i] of the dataset; one may come several times. The list is copied. ARGUMENT for an index that does
 * not exist, n < 0. */
TREK_API trek_dataset *trek_dataset_indices(trek_dataset *dataset, const int64_t *indices, int64_t n);

/* Parts of a dataset, drawn at random by seed: disjoint, together all of it, each in a random order (PyTorch's random_split).
 * sizes[n_parts] are numbers of samples, whose sum is the dataset's length, or shares, whose sum is 1 (within 1e-6): then part
 * k gets floor(sizes[k] * length), and what is left goes to the first parts, one each. Writes n_parts datasets to parts,
 * each a new reference; takes the dataset over. ARGUMENT, and NULLs in parts, for other sizes. */
TREK_API trek_status trek_dataset_split(trek_dataset *dataset, const double *sizes, int n_parts, uint64_t seed,
                                        trek_dataset **parts);

/* All samples of the first one, then those of the second, and so on. Takes all over. ARGUMENT unless all have the same fields, in
 * the same order; SHAPE, when a batch is fetched, if its samples differ in shape or dtype. */
TREK_API trek_dataset *trek_dataset_concat(trek_dataset *const *datasets, int n);

/* Some fields of a dataset or a stream, in this order: field k is fields[k], called names[k] (names NULL: as before). ARGUMENT
 * for a field that it does not have, a name that occurs twice. */
TREK_API trek_dataset *trek_dataset_select(trek_dataset *dataset, const char *const *fields, const char *const *names, int n);

/* A function over samples: in[k] is field k of the dataset, [n, ...] in host memory, row-major, borrowed; writes to out[k] a
 * new tensor [n, ...] for each of its own fields. `of` says which samples: numbers drawn for one are to follow from of->seed,
 * of->epoch and its index. Called from several threads at once, within a scope that ends with the call. Failures are reported
 * through trek_fail; what it had put into out is released. */
typedef trek_status (*trek_map_fn)(const trek_fetch *of, trek_tensor *const *in, trek_tensor **out, void *arg);

typedef struct trek_dataset_map_opts {
    const char *const *fields; /* of what fn makes; copied; default: the dataset's */
    int n_fields;
    bool one_by_one; /* fn is given one sample at a time (n = 1); all it makes of a batch has to be of one shape */
    void *arg;
    void (*free_arg)(void *arg); /* called when the dataset ends, also if it could not be made; NULL: not */
} trek_dataset_map_opts;

/* What fn makes of the samples. opts may be NULL. Also of a stream (data/stream.h): its samples are counted, from 0 on. */
TREK_API trek_dataset *trek_dataset_map(trek_dataset *dataset, trek_map_fn fn, const trek_dataset_map_opts *opts);

/* Keeps samples in host memory when they are first used, at most `bytes` of them, and never lets them go; others are fetched
 * each time. What is kept is what the first use gave, in whatever epoch: random transforms belong around a cache.
 * ARGUMENT for bytes < 0, and for a dataset whose samples follow from their batch (padding belongs around it, too). */
TREK_API trek_dataset *trek_dataset_cache(trek_dataset *dataset, int64_t bytes);
/* Samples that a cache holds, and their bytes (either may be NULL). ARGUMENT for another dataset. */
TREK_API trek_status trek_dataset_cached(trek_dataset *cache, int64_t *samples, int64_t *bytes);

TREK_END

#endif
