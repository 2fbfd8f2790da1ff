/* SPDX-License-Identifier: Apache-2.0 */
/* Datasets that are made of other datasets. Each function takes over the datasets it is given, also on failure (call
 * trek_dataset_retain for each further holder), and frees them with the result. If a dataset is NULL, the function returns
 * NULL and keeps the first error. All functions can fail with MEMORY. Epoch and seed are passed on to the inner datasets. A
 * sample has the index there that it has in the inner dataset. */
#ifndef TREK_DATA_COMPOSE_H
#define TREK_DATA_COMPOSE_H

#include "data/dataset_class.h"

TREK_BEGIN

/* Returns a dataset of the samples first, ..., first + count - 1 of another dataset, with indices from 0. It takes the other
 * dataset over.
 * Errors: ARGUMENT if the other dataset does not have all of them. */
TREK_API trek_dataset *trek_dataset_subset(trek_dataset *dataset, int64_t first, int64_t count);

/* Returns a dataset whose sample i is sample indices[i] of another dataset. An index may occur several times. The list is
 * copied.
 * Errors: ARGUMENT if an index does not exist or n < 0. */
TREK_API trek_dataset *trek_dataset_indices(trek_dataset *dataset, const int64_t *indices, int64_t n);

/* Divides a dataset into random disjoint parts that together have all its samples, each in a random order, as PyTorch's
 * random_split does. It takes the dataset over and writes n_parts new references to `parts`. The numbers `sizes`, [n_parts],
 * are either numbers of samples, whose sum is the length, or fractions, whose sum is 1 (within 1e-6). With fractions part k
 * gets floor(sizes[k] * length) samples, and the samples that remain go to the first parts, one to each.
 * Errors: ARGUMENT for other sizes; `parts` then holds NULLs. */
TREK_API trek_status trek_dataset_split(trek_dataset *dataset, const double *sizes, int n_parts, uint64_t seed,
                                        trek_dataset **parts);

/* Returns a dataset of all samples of the first dataset, then all of the second, and so on. It takes all of them over.
 * Errors: ARGUMENT unless all have the same fields in the same order. When a batch is fetched: SHAPE if its samples differ in
 * shape or dtype. */
TREK_API trek_dataset *trek_dataset_concat(trek_dataset *const *datasets, int n);

/* Returns a dataset or stream with n fields of another: its field k is fields[k] with the name names[k]. If `names` is NULL,
 * fields keep their names.
 * Errors: ARGUMENT if a field does not exist or a name occurs twice. */
TREK_API trek_dataset *trek_dataset_select(trek_dataset *dataset, const char *const *fields, const char *const *names, int n);

/* A function of the user that maps samples. in[k] is field k of the dataset, [n, ...], row-major in host memory and borrowed.
 * The function writes a new tensor [n, ...] to out[k] for each of its own fields. `of` describes the samples: random numbers
 * of a sample should depend only on of->seed, of->epoch and its index. Several threads call it at once, in a scope that ends
 * with the call. On failure it calls trek_fail and returns the status; tensors that are already in `out` are then released. */
typedef trek_status (*trek_map_fn)(const trek_fetch *of, trek_tensor *const *in, trek_tensor **out, void *arg);

/* Options of trek_dataset_map. */
typedef struct trek_dataset_map_opts {
    const char *const *fields;   /* the names of the fields that the function makes, copied; default: those of the dataset */
    int n_fields;                /* number of `fields` */
    bool one_by_one;             /* calls the function with one sample at a time; results must have one shape; default false */
    void *arg;                   /* passed to the function */
    void (*free_arg)(void *arg); /* called when the dataset is freed or cannot be made; default NULL */
} trek_dataset_map_opts;

/* Returns a dataset or stream whose samples `fn` makes of the samples of another. `opts` may be NULL. The indices of the
 * samples of a stream (data/stream.h) are counted from 0. */
TREK_API trek_dataset *trek_dataset_map(trek_dataset *dataset, trek_map_fn fn, const trek_dataset_map_opts *opts);

/* Returns a dataset that keeps samples in host memory when they are first used, at most `bytes` of them. They are never removed.
 * Samples that do not fit are fetched each time. A kept sample is the result of its first use in any epoch, so random transforms
 * must be applied to the cache, not inside it.
 * Errors: ARGUMENT if `bytes` < 0, or if samples depend on their batch (padding must be applied to the cache, too). */
TREK_API trek_dataset *trek_dataset_cache(trek_dataset *dataset, int64_t bytes);
/* Writes how many samples a cache holds and their size in bytes. Either pointer may be NULL.
 * Errors: ARGUMENT if the dataset is not a cache. */
TREK_API trek_status trek_dataset_cached(trek_dataset *cache, int64_t *samples, int64_t *bytes);

TREK_END

#endif
