/* SPDX-License-Identifier: Apache-2.0 */
/* Samples kept in memory. A kept sample is never changed or freed before the dataset ends, so rows are read without
 * the lock. */
#include <inttypes.h>
#include <pthread.h>

#include "data/compose.h"
#include "data/dataset_internal.h"
#include "tensor/dtypes.h"
#include "tensor/layout.h"

typedef struct cache {
    trek_around around;
    int64_t limit;
    pthread_mutex_t lock; /* guards the following fields */
    bool locks;           /* the lock was made */
    trek_tensor ***kept;  /* [length] a sample's fields as batches of one; NULL if not kept */
    int64_t samples, bytes;
} cache;

/* A fetch: where each sample is, and which ones still have to be fetched. */
typedef struct look {
    trek_tensor ***kept; /* [n] */
    int64_t *missing, *places, n; /* indices of the missing ones, and their positions in the batch */
} look;

static void look_up(cache *c, const trek_fetch *fetch, look *l)
{
    pthread_mutex_lock(&c->lock);
    for (int64_t i = 0; i < fetch->n; i++) {
        l->kept[i] = c->kept[fetch->indices[i]];
        if (l->kept[i])
            continue;
        l->missing[l->n] = fetch->indices[i];
        l->places[l->n++] = i;
    }
    pthread_mutex_unlock(&c->lock);
}

static int64_t sample_bytes(const trek_dataset *dataset, trek_tensor *const *tensors, int64_t n)
{
    int64_t bytes = 0;
    for (int k = 0; k < dataset->n_fields; k++)
        bytes += trek_tensor_numel(tensors[k]) / n * (int64_t)trek_dtype_size(trek_tensor_dtype(tensors[k]));
    return bytes;
}

/* Keeps a copy of row i if there is still room for it and no other thread was faster. */
static trek_status keep(cache *c, int64_t index, trek_tensor *const *some, int64_t i, int64_t bytes)
{
    const trek_dataset *self = &c->around.base;
    pthread_mutex_lock(&c->lock);
    bool wanted = !c->kept[index] && c->bytes + bytes <= c->limit;
    c->bytes += wanted ? bytes : 0; /* reserves the room */
    pthread_mutex_unlock(&c->lock);
    if (!wanted)
        return TREK_OK;
    trek_tensor **sample = trek_tensors_new(self->n_fields);
    trek_status status = sample ? TREK_OK : TREK_ERR_MEMORY;
    for (int k = 0; k < self->n_fields && status == TREK_OK; k++)
        status = trek_rows_put(self, k, &sample[k], 1, 0, some[k], i);
    pthread_mutex_lock(&c->lock);
    bool first = status == TREK_OK && !c->kept[index];
    if (first) {
        c->kept[index] = sample;
        c->samples++;
    } else {
        c->bytes -= bytes;
    }
    pthread_mutex_unlock(&c->lock);
    if (!first) {
        trek_tensors_clear(sample, self->n_fields);
        trek_free(sample);
    }
    return status;
}

static trek_status fetch_missing(cache *c, const trek_fetch *fetch, look *l, trek_tensor **some, trek_tensor **out)
{
    const trek_dataset *self = &c->around.base;
    trek_fetch inner = { .indices = l->missing, .n = l->n, .epoch = fetch->epoch, .seed = fetch->seed };
    trek_status status = trek_dataset_fetch(c->around.inner, &inner, some);
    for (int k = 0; k < self->n_fields && status == TREK_OK; k++) {
        status = trek_tensor_settle(&some[k]);
        for (int64_t i = 0; i < l->n && status == TREK_OK; i++)
            status = trek_rows_put(self, k, &out[k], fetch->n, l->places[i], some[k], i);
    }
    int64_t bytes = status == TREK_OK ? sample_bytes(self, some, l->n) : 0;
    for (int64_t i = 0; i < l->n && status == TREK_OK; i++)
        status = keep(c, l->missing[i], some, i, bytes);
    trek_tensors_clear(some, self->n_fields);
    return status;
}

static trek_status cache_get(trek_dataset *self, const trek_fetch *fetch, trek_tensor **out)
{
    cache *c = (cache *)self;
    size_t n = (size_t)fetch->n;
    look l = { .kept = trek_calloc(n, sizeof(*l.kept)), .missing = trek_alloc(2 * n * sizeof(*l.missing)) };
    trek_tensor **some = trek_tensors_new(self->n_fields);
    trek_status status = l.kept && l.missing && some ? TREK_OK : TREK_ERR_MEMORY;
    if (status == TREK_OK) {
        l.places = l.missing + n;
        look_up(c, fetch, &l);
    }
    if (status == TREK_OK && l.n > 0)
        status = fetch_missing(c, fetch, &l, some, out);
    for (int64_t i = 0; i < fetch->n; i++)
        for (int k = 0; k < self->n_fields && status == TREK_OK && l.kept[i]; k++)
            status = trek_rows_put(self, k, &out[k], fetch->n, i, l.kept[i][k], 0);
    trek_free(l.kept);
    trek_free(l.missing);
    trek_free(some);
    return status;
}

static void cache_free(trek_dataset *self)
{
    cache *c = (cache *)self;
    int64_t length = c->kept ? trek_around_length(self) : 0;
    for (int64_t i = 0; i < length; i++)
        if (c->kept[i]) {
            trek_tensors_clear(c->kept[i], self->n_fields);
            trek_free(c->kept[i]);
        }
    trek_free(c->kept);
    if (c->locks)
        pthread_mutex_destroy(&c->lock);
    trek_around_free(self);
}

static const trek_dataset_class cache_class = {
    .name = "cache", .size = sizeof(cache), .length = trek_around_length, .get = cache_get, .free = cache_free,
};

static trek_status cache_fill(cache *c, int64_t bytes)
{
    const trek_dataset *inner = c->around.inner;
    int64_t length = trek_dataset_length(inner);
    if (bytes < 0)
        return trek_fail(TREK_ERR_ARGUMENT, "dataset_cache: bytes: %" PRId64 "; must be 0 or more", bytes);
    if (trek_dataset_needs_batch(inner))
        return trek_fail(TREK_ERR_ARGUMENT,
                         "dataset_cache: dataset: samples of %s depend on their batch, so that a kept one would be wrong in "
                         "another batch; cache the inner dataset",
                         inner->klass->name);
    pthread_mutex_init(&c->lock, NULL);
    c->locks = true;
    c->limit = bytes;
    c->kept = length >= 0 ? trek_calloc((size_t)(length > 0 ? length : 1), sizeof(*c->kept)) : NULL;
    return c->kept ? TREK_OK : trek_status_or(TREK_ERR_MEMORY);
}

trek_dataset *trek_dataset_cache(trek_dataset *dataset, int64_t bytes)
{
    cache *c = (cache *)trek_dataset_around(&cache_class, dataset, "dataset_cache");
    trek_dataset *base = (trek_dataset *)c;
    if (c && cache_fill(c, bytes) != TREK_OK)
        trek_dataset_free(&base);
    return base;
}

trek_status trek_dataset_cached(trek_dataset *dataset, int64_t *samples, int64_t *bytes)
{
    if (!dataset)
        return trek_fail_missing("dataset_cached", "dataset");
    if (dataset->klass != &cache_class)
        return trek_fail(TREK_ERR_ARGUMENT, "dataset_cached: dataset: %s is not a cache; must be one of trek_dataset_cache",
                         dataset->klass->name);
    cache *c = (cache *)dataset;
    pthread_mutex_lock(&c->lock);
    if (samples)
        *samples = c->samples;
    if (bytes)
        *bytes = c->bytes;
    pthread_mutex_unlock(&c->lock);
    return TREK_OK;
}
