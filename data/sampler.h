/* SPDX-License-Identifier: Apache-2.0 */
/* Samplers say which sample comes when. The epoch is an argument, nothing is
 * remembered between calls: a position in an epoch is one integer, and starting
 * in the middle costs nothing.
 *
 * A sampler of one's own is a struct that begins with trek_sampler and a
 * constant class. Whoever takes a sampler over (a loader) owns it, also on failure. */
#ifndef TREK_DATA_SAMPLER_H
#define TREK_DATA_SAMPLER_H

#include "tensor/status.h"

TREK_BEGIN

typedef struct trek_sampler trek_sampler;

typedef struct trek_sampler_class {
    const char *name;
    size_t size; /* of the whole struct */
    int64_t (*length)(const trek_sampler *self); /* positions in an epoch; constant */
    /* Writes the samples at positions first .. first + count - 1 of `epoch` (within
     * the length) to indices. A function of its arguments; called from any thread,
     * several at once. Failures are reported through trek_fail. */
    trek_status (*at)(const trek_sampler *self, int64_t epoch, int64_t first, int64_t count, int64_t *indices);
    void (*free)(trek_sampler *self); /* may be NULL */
    /* All samples are below this: a loader refuses a sampler of more than its dataset has. NULL: seen when they are fetched. */
    int64_t (*over)(const trek_sampler *self);
    /* The positions go together in batches of so many: a loader of others is refused. NULL: it is all the same. */
    int64_t (*batch_size)(const trek_sampler *self);
} trek_sampler_class;

/* The head of every sampler. */
struct trek_sampler {
    const trek_sampler_class *klass;
};

/* Zeroed and begun. NULL and ARGUMENT (a class without length or at), MEMORY. */
TREK_API trek_sampler *trek_sampler_new(const trek_sampler_class *klass);
TREK_API void trek_sampler_free(trek_sampler **sampler);

/* 0, 1, ..., n - 1 in every epoch. ARGUMENT for n < 0. */
TREK_API trek_sampler *trek_sampler_sequential(int64_t n);

/* Each of 0 .. n - 1 exactly once an epoch, in an order that follows from (seed,
 * epoch). No table: the place of one sample is computed by the swap-or-not
 * shuffle (Hoang, Morris, Rogaway, "An enciphering scheme based on a card
 * shuffle", CRYPTO 2012) in O(log n). ARGUMENT for n < 0. */
TREK_API trek_sampler *trek_sampler_random(int64_t n, uint64_t seed);

/* `samples` of 0 .. n - 1 an epoch, drawn in proportion to weights[n] (copied; they need not sum to 1), as PyTorch's
 * WeightedRandomSampler does. With replacement the draws are independent, and one costs O(log n). Without, each comes at most
 * once, in the order of successive draws (Efraimidis and Spirakis, "Weighted random sampling with a reservoir", 2006); the
 * first use of an epoch sorts all. ARGUMENT for n < 1, samples < 1, a weight that is negative or not finite, weights that are
 * all 0, and without replacement for more samples than have a weight. */
TREK_API trek_sampler *trek_sampler_weighted(const double *weights, int64_t n, int64_t samples, bool replacement, uint64_t seed);

/* Each class equally often: of the classes that occur in labels[n] (any numbers), every K positions that begin at a multiple
 * of K, the number of classes, have each once, in a random order; of a class, each sample comes once, in a random order,
 * before any comes again. `samples` positions an epoch; 0: n. One costs O(log n). ARGUMENT for n < 1, samples < 0. */
TREK_API trek_sampler *trek_sampler_balanced(const int64_t *labels, int64_t n, int64_t samples, uint64_t seed);

/* Each of 0 .. n - 1 once an epoch, in batches of similar lengths (so that padding is little): samples are shuffled, each
 * `window` batches of them are sorted by lengths[n], and the batches are shuffled; a last batch that is smaller stays last, with
 * the longest samples of its window. window 0: 50, as transformers' group_by_length; a window of all batches sorts all.
 * For loaders of this batch_size. The first use of an epoch sorts all. ARGUMENT for n < 1, batch_size < 1, window < 0. */
TREK_API trek_sampler *trek_sampler_buckets(const int64_t *lengths, int64_t n, int64_t batch_size, int64_t window, uint64_t seed);

TREK_API int64_t trek_sampler_length(const trek_sampler *sampler); /* -1 and an error for NULL */
/* ARGUMENT for a negative epoch, or positions outside the length. */
TREK_API trek_status trek_sampler_at(const trek_sampler *sampler, int64_t epoch, int64_t first, int64_t count, int64_t *indices);

TREK_END

#endif
