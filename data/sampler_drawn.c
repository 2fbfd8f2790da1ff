/* SPDX-License-Identifier: Apache-2.0 */
/* Samplers that draw by weight, by class or by length. */
#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "data/sampler_internal.h"
#include "tensor/memory_internal.h"
#include "tensor/random_internal.h"
#include "tensor/status_internal.h"

/* Uniform in (0, 1). */
static double uniform(uint64_t seed, int64_t epoch, int64_t at)
{
    uint32_t words[4];
    trek_philox(seed, (uint64_t)at, (uint32_t)epoch, 0x64726177u, words);
    return trek_uniform_f64(words[0], words[1]) + 0x1p-54;
}

/* -- an order that is made for an epoch ------------------------------------------------------- */

/* A sample and its sort key. */
typedef struct keyed {
    double key;
    int64_t sample;
} keyed;

typedef struct ordered {
    trek_sampler base;
    int64_t n, samples;
    uint64_t seed;
    double *keys;              /* [n] weights, or lengths */
    int64_t batch_size, window;
    pthread_mutex_t lock;      /* guards the following fields */
    bool locks;
    int64_t epoch;             /* of the order; -1 if there is none yet */
    int64_t *order;            /* [samples] */
    keyed *room;               /* [n] */
} ordered;

static int64_t ordered_length(const trek_sampler *self) { return ((const ordered *)self)->samples; }
static int64_t ordered_over(const trek_sampler *self) { return ((const ordered *)self)->n; }
static int64_t ordered_batch(const trek_sampler *self) { return ((const ordered *)self)->batch_size; }

static void ordered_free(trek_sampler *self)
{
    ordered *s = (ordered *)self;
    trek_free(s->keys);
    trek_free(s->order);
    trek_free(s->room);
    if (s->locks)
        pthread_mutex_destroy(&s->lock);
}

static int by_key(const void *a, const void *b)
{
    const keyed *x = a, *y = b;
    if (x->key != y->key)
        return x->key < y->key ? -1 : 1;
    return x->sample < y->sample ? -1 : x->sample > y->sample;
}

static trek_status give(ordered *s, int64_t epoch, int64_t first, int64_t count, int64_t *indices,
                        void (*make)(ordered *s, int64_t epoch))
{
    pthread_mutex_lock(&s->lock);
    if (s->epoch != epoch)
        make(s, epoch);
    s->epoch = epoch;
    memcpy(indices, s->order + first, (size_t)count * sizeof(*indices));
    pthread_mutex_unlock(&s->lock);
    return TREK_OK;
}

static ordered *ordered_new(const trek_sampler_class *klass, int64_t n, int64_t samples, uint64_t seed)
{
    ordered *s = (ordered *)trek_sampler_new(klass);
    if (!s)
        return NULL;
    s->n = n;
    s->samples = samples;
    s->seed = seed;
    s->epoch = -1;
    pthread_mutex_init(&s->lock, NULL);
    s->locks = true;
    s->keys = trek_alloc((size_t)n * sizeof(*s->keys));
    s->order = trek_alloc((size_t)samples * sizeof(*s->order));
    s->room = trek_alloc((size_t)n * sizeof(*s->room));
    if (!s->keys || !s->order || !s->room) {
        trek_sampler *base = &s->base;
        trek_sampler_free(&base);
        return NULL;
    }
    return s;
}

/* -- by weight ---------------------------------------------------------------------------------- */

/* Sorts by the first events of exponential clocks whose rates are the weights. */
static void draw_all(ordered *s, int64_t epoch)
{
    int64_t have = 0;
    for (int64_t i = 0; i < s->n; i++)
        if (s->keys[i] > 0)
            s->room[have++] = (keyed){ -log(uniform(s->seed, epoch, i)) / s->keys[i], i };
    qsort(s->room, (size_t)have, sizeof(*s->room), by_key);
    for (int64_t i = 0; i < s->samples; i++)
        s->order[i] = s->room[i].sample;
}

static trek_status without_at(const trek_sampler *self, int64_t epoch, int64_t first, int64_t count, int64_t *indices)
{
    return give((ordered *)self, epoch, first, count, indices, draw_all);
}

static const trek_sampler_class without_class = {
    .name = "weighted", .size = sizeof(ordered), .length = ordered_length, .at = without_at, .free = ordered_free,
    .over = ordered_over,
};

typedef struct weighted {
    trek_sampler base;
    int64_t n, samples;
    uint64_t seed;
    double *ends; /* [n] cumulative sums of the weights */
} weighted;

static int64_t weighted_length(const trek_sampler *self) { return ((const weighted *)self)->samples; }
static int64_t weighted_over(const trek_sampler *self) { return ((const weighted *)self)->n; }
static void weighted_free(trek_sampler *self) { trek_free(((weighted *)self)->ends); }

/* Returns the first sample whose end is above x; x is below the last end. A sample without weight ends where the
 * previous one does. */
static int64_t find(const weighted *s, double x)
{
    int64_t low = 0, high = s->n - 1;
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        if (s->ends[middle] > x)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

static trek_status with_at(const trek_sampler *self, int64_t epoch, int64_t first, int64_t count, int64_t *indices)
{
    const weighted *s = (const weighted *)self;
    double total = s->ends[s->n - 1];
    for (int64_t i = 0; i < count; i++) {
        double x = uniform(s->seed, epoch, first + i) * total;
        indices[i] = find(s, x < total ? x : nextafter(total, 0));
    }
    return TREK_OK;
}

static const trek_sampler_class with_class = {
    .name = "weighted", .size = sizeof(weighted), .length = weighted_length, .at = with_at, .free = weighted_free,
    .over = weighted_over,
};

static trek_status weights_check(const double *weights, int64_t n, int64_t samples, bool replacement)
{
    if (!weights)
        return trek_fail_missing("sampler_weighted", "weights");
    if (n < 1 || samples < 1)
        return trek_fail(TREK_ERR_ARGUMENT, "sampler_weighted: samples: %" PRId64 " of %" PRId64 "; both must be at least 1",
                         samples, n);
    double total = 0;
    int64_t positive = 0;
    for (int64_t i = 0; i < n; i++) {
        if (!(weights[i] >= 0) || isinf(weights[i]))
            return trek_fail(TREK_ERR_ARGUMENT,
                             "sampler_weighted: weight of sample %" PRId64 ": %g; must be finite and not negative", i,
                             weights[i]);
        total += weights[i];
        positive += weights[i] > 0;
    }
    if (positive == 0 || isinf(total))
        return trek_fail(TREK_ERR_ARGUMENT, "sampler_weighted: weights: their sum is %g; must be finite and above 0", total);
    if (!replacement && samples > positive)
        return trek_fail(TREK_ERR_ARGUMENT,
                         "sampler_weighted: samples: %" PRId64 " without replacement, but only %" PRId64 " have a weight",
                         samples, positive);
    return TREK_OK;
}

static trek_sampler *with_new(const double *weights, int64_t n, int64_t samples, uint64_t seed)
{
    weighted *s = (weighted *)trek_sampler_new(&with_class);
    trek_sampler *base = (trek_sampler *)s;
    if (!s)
        return NULL;
    s->n = n;
    s->samples = samples;
    s->seed = seed;
    s->ends = trek_alloc((size_t)n * sizeof(*s->ends));
    if (!s->ends)
        trek_sampler_free(&base);
    double sum = 0;
    for (int64_t i = 0; base && i < n; i++)
        s->ends[i] = sum += weights[i];
    return base;
}

trek_sampler *trek_sampler_weighted(const double *weights, int64_t n, int64_t samples, bool replacement, uint64_t seed)
{
    if (weights_check(weights, n, samples, replacement) != TREK_OK)
        return NULL;
    if (replacement)
        return with_new(weights, n, samples, seed);
    ordered *s = ordered_new(&without_class, n, samples, seed);
    if (s)
        memcpy(s->keys, weights, (size_t)n * sizeof(*weights));
    return (trek_sampler *)s;
}

/* -- by length -------------------------------------------------------------------------------------- */

/* Sorts the window's samples and distributes its whole batches to their positions. The incomplete batch of the last
 * window stays last. */
static void deal(ordered *s, int64_t epoch, int64_t first, int64_t count)
{
    int64_t whole = s->n / s->batch_size, size = s->batch_size;
    qsort(s->room, (size_t)count, sizeof(*s->room), by_key);
    for (int64_t at = 0; at < count; at += size) {
        int64_t batch = (first + at) / size;
        int64_t to = batch < whole ? trek_sampler_place(batch, whole, trek_sampler_mix(s->seed, 1), epoch) : batch;
        for (int64_t k = 0; k < size && at + k < count; k++)
            s->order[to * size + k] = s->room[at + k].sample;
    }
}

static void make_buckets(ordered *s, int64_t epoch)
{
    int64_t window = s->window < (s->n - 1) / s->batch_size + 1 ? s->window * s->batch_size : s->n;
    for (int64_t first = 0; first < s->n; first += window) {
        int64_t count = s->n - first < window ? s->n - first : window;
        for (int64_t i = 0; i < count; i++) {
            int64_t sample = trek_sampler_place(first + i, s->n, s->seed, epoch);
            s->room[i] = (keyed){ s->keys[sample], sample };
        }
        deal(s, epoch, first, count);
    }
}

static trek_status buckets_at(const trek_sampler *self, int64_t epoch, int64_t first, int64_t count, int64_t *indices)
{
    return give((ordered *)self, epoch, first, count, indices, make_buckets);
}

static const trek_sampler_class buckets_class = {
    .name = "buckets", .size = sizeof(ordered), .length = ordered_length, .at = buckets_at, .free = ordered_free,
    .over = ordered_over, .batch_size = ordered_batch,
};

trek_sampler *trek_sampler_buckets(const int64_t *lengths, int64_t n, int64_t batch_size, int64_t window, uint64_t seed)
{
    if (!lengths)
        return trek_fail_missing("sampler_buckets", "lengths"), NULL;
    if (n < 1 || batch_size < 1 || window < 0)
        return trek_fail_null(TREK_ERR_ARGUMENT,
                              "sampler_buckets: n: %" PRId64 ", batch_size: %" PRId64 ", window: %" PRId64
                              "; must be at least 1, 1 and 0",
                              n, batch_size, window);
    ordered *s = ordered_new(&buckets_class, n, n, seed);
    if (!s)
        return NULL;
    s->batch_size = batch_size;
    s->window = window ? window : 50;
    for (int64_t i = 0; i < n; i++)
        s->keys[i] = (double)lengths[i];
    return &s->base;
}

/* -- by class ------------------------------------------------------------------------------------------ */

typedef struct balanced {
    trek_sampler base;
    int64_t n, samples, classes;
    uint64_t seed;
    int64_t *members; /* [n] samples, class by class */
    int64_t *begins;  /* [classes + 1] where each class begins in members */
} balanced;

static int64_t balanced_length(const trek_sampler *self) { return ((const balanced *)self)->samples; }
static int64_t balanced_over(const trek_sampler *self) { return ((const balanced *)self)->n; }

static void balanced_free(trek_sampler *self)
{
    trek_free(((balanced *)self)->members);
    trek_free(((balanced *)self)->begins);
}

static trek_status balanced_at(const trek_sampler *self, int64_t epoch, int64_t first, int64_t count, int64_t *indices)
{
    const balanced *s = (const balanced *)self;
    for (int64_t i = 0; i < count; i++) {
        int64_t round = (first + i) / s->classes, place = (first + i) % s->classes;
        int64_t kind = trek_sampler_place(place, s->classes, trek_sampler_mix(s->seed, (uint64_t)round), epoch);
        int64_t begin = s->begins[kind], size = s->begins[kind + 1] - begin; /* takes the round-th member, modulo their number */
        uint64_t seed = trek_sampler_mix(trek_sampler_mix(~s->seed, (uint64_t)kind), (uint64_t)(round / size));
        indices[i] = s->members[begin + trek_sampler_place(round % size, size, seed, epoch)];
    }
    return TREK_OK;
}

static const trek_sampler_class balanced_class = {
    .name = "balanced", .size = sizeof(balanced), .length = balanced_length, .at = balanced_at, .free = balanced_free,
    .over = balanced_over,
};

typedef struct labelled {
    int64_t label, sample;
} labelled;

static int by_label(const void *a, const void *b)
{
    const labelled *x = a, *y = b;
    if (x->label != y->label)
        return x->label < y->label ? -1 : 1;
    return x->sample < y->sample ? -1 : x->sample > y->sample;
}

static trek_status sort_classes(balanced *s, const int64_t *labels)
{
    labelled *all = trek_alloc((size_t)s->n * sizeof(*all));
    s->members = trek_alloc((size_t)s->n * sizeof(*s->members));
    s->begins = trek_alloc(((size_t)s->n + 1) * sizeof(*s->begins));
    if (!all || !s->members || !s->begins) {
        trek_free(all);
        return TREK_ERR_MEMORY;
    }
    for (int64_t i = 0; i < s->n; i++)
        all[i] = (labelled){ labels[i], i };
    qsort(all, (size_t)s->n, sizeof(*all), by_label);
    for (int64_t i = 0; i < s->n; i++) {
        if (i == 0 || all[i].label != all[i - 1].label)
            s->begins[s->classes++] = i;
        s->members[i] = all[i].sample;
    }
    s->begins[s->classes] = s->n;
    trek_free(all);
    return TREK_OK;
}

trek_sampler *trek_sampler_balanced(const int64_t *labels, int64_t n, int64_t samples, uint64_t seed)
{
    if (!labels)
        return trek_fail_missing("sampler_balanced", "labels"), NULL;
    if (n < 1 || samples < 0)
        return trek_fail_null(TREK_ERR_ARGUMENT, "sampler_balanced: samples: %" PRId64 " of %" PRId64 "; both must be at least 1",
                              samples, n);
    balanced *s = (balanced *)trek_sampler_new(&balanced_class);
    trek_sampler *base = (trek_sampler *)s;
    if (!s)
        return NULL;
    s->n = n;
    s->samples = samples ? samples : n;
    s->seed = seed;
    if (sort_classes(s, labels) != TREK_OK)
        trek_sampler_free(&base);
    return base;
}
