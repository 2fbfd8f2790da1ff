/* SPDX-License-Identifier: Apache-2.0 */
/* Samplers determine the order of the samples in an epoch. The epoch is an argument and a sampler keeps no state between
 * calls. So a position in an epoch is one integer, and starting in the middle costs nothing.
 *
 * A sampler of the user is a struct that begins with trek_sampler, with a constant class. An object that takes a sampler over
 * (a loader) owns it, also on failure. */
#ifndef TREK_DATA_SAMPLER_H
#define TREK_DATA_SAMPLER_H

#include "tensor/status.h"

TREK_BEGIN

/* A sampler. */
typedef struct trek_sampler trek_sampler;

/* The class of a sampler: its functions and properties. */
typedef struct trek_sampler_class {
    const char *name; /* the name of the class */
    size_t size;      /* the size of the whole struct in bytes */
    /* Returns the number of positions in an epoch, which must never change. */
    int64_t (*length)(const trek_sampler *self);
    /* Writes the samples at the positions first, ..., first + count - 1 of `epoch` to `indices`. The positions are valid. The
     * result must depend on the arguments only. Any thread calls it, several at once. On failure it calls trek_fail. */
    trek_status (*at)(const trek_sampler *self, int64_t epoch, int64_t first, int64_t count, int64_t *indices);
    void (*free)(trek_sampler *self); /* frees the contents of the struct; may be NULL */
    /* Returns a number that is above every index of a sample. A loader refuses a sampler for more samples than its dataset
     * has. NULL: the loader checks the indices when samples are fetched. */
    int64_t (*over)(const trek_sampler *self);
    /* Returns the batch size for which the positions are arranged. A loader of another batch size is refused. NULL: any size. */
    int64_t (*batch_size)(const trek_sampler *self);
} trek_sampler_class;

/* The first member of every sampler. */
struct trek_sampler {
    const trek_sampler_class *klass; /* the class */
};

/* Returns a new sampler of a class. The part of the struct after trek_sampler is filled with zeros.
 * Errors: ARGUMENT if the class lacks length or at. MEMORY. NULL is returned. */
TREK_API trek_sampler *trek_sampler_new(const trek_sampler_class *klass);
/* Frees the sampler and sets *sampler to NULL. */
TREK_API void trek_sampler_free(trek_sampler **sampler);

/* Returns a sampler that gives 0, 1, ..., n - 1 in every epoch. Errors: ARGUMENT if n < 0. */
TREK_API trek_sampler *trek_sampler_sequential(int64_t n);

/* Returns a sampler that gives each of 0, ..., n - 1 exactly once in an epoch, in an order that depends on seed and epoch. It
 * needs no table: the position of a sample is computed in O(log n) by the swap-or-not shuffle (Hoang, Morris, Rogaway, "An
 * enciphering scheme based on a card shuffle", CRYPTO 2012).
 * Errors: ARGUMENT if n < 0. */
TREK_API trek_sampler *trek_sampler_random(int64_t n, uint64_t seed);

/* Returns a sampler that draws `samples` of 0, ..., n - 1 in an epoch with probabilities proportional to `weights`, [n], as
 * PyTorch's WeightedRandomSampler does. The weights are copied; they need not add up to 1. With replacement the draws are
 * independent, and one draw costs O(log n). Without replacement each sample comes at most once, in the order of successive
 * draws (Efraimidis and Spirakis, "Weighted random sampling with a reservoir", 2006), and the first use of an epoch sorts all
 * samples.
 * Errors: ARGUMENT if n < 1 or `samples` < 1, if a weight is negative or not finite, if all weights are 0, or if `samples`
 * without replacement are more than the samples with a positive weight. */
TREK_API trek_sampler *trek_sampler_weighted(const double *weights, int64_t n, int64_t samples, bool replacement, uint64_t seed);

/* Returns a sampler that gives each class equally often. The classes are the distinct values of `labels`, [n]. If K is their
 * number, each block of K positions has every class once, in a random order. Each sample of a class comes once, in a random
 * order, before any of them comes again. An epoch has `samples` positions, or n if `samples` is 0. One draw costs O(log n).
 * Errors: ARGUMENT if n < 1 or `samples` < 0. */
TREK_API trek_sampler *trek_sampler_balanced(const int64_t *labels, int64_t n, int64_t samples, uint64_t seed);

/* Returns a sampler that gives each of 0, ..., n - 1 once in an epoch, in batches of similar lengths, so that little padding
 * is needed. The samples are shuffled, each group of `window` batches is sorted by `lengths`, [n], and the batches are
 * shuffled. A last batch that is smaller stays last, with the longest samples of its group. `window` 0 stands for 50, as in
 * group_by_length of transformers. With a window of all batches, all samples are sorted. It is for loaders of this
 * `batch_size`. The first use of an epoch sorts all samples.
 * Errors: ARGUMENT if n < 1, `batch_size` < 1 or `window` < 0. */
TREK_API trek_sampler *trek_sampler_buckets(const int64_t *lengths, int64_t n, int64_t batch_size, int64_t window, uint64_t seed);

/* Returns the number of positions in an epoch. If `sampler` is NULL, it returns -1 and sets an error. */
TREK_API int64_t trek_sampler_length(const trek_sampler *sampler);
/* Writes the samples at the positions first, ..., first + count - 1 of `epoch` to `indices`.
 * Errors: ARGUMENT if the epoch is negative or a position is outside of the epoch. Errors of the sampler. */
TREK_API trek_status trek_sampler_at(const trek_sampler *sampler, int64_t epoch, int64_t first, int64_t count, int64_t *indices);

TREK_END

#endif
