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
} trek_sampler_class;

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

TREK_API int64_t trek_sampler_length(const trek_sampler *sampler); /* -1 and an error for NULL */
/* ARGUMENT for a negative epoch, or positions outside the length. */
TREK_API trek_status trek_sampler_at(const trek_sampler *sampler, int64_t epoch, int64_t first, int64_t count, int64_t *indices);

TREK_END

#endif
