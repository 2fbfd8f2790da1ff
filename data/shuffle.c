/* SPDX-License-Identifier: Apache-2.0 */
/* A stream in shuffled order, through a buffer of its samples. */
#include <inttypes.h>

#include "data/dataset_internal.h"
#include "data/stream.h"
#include "tensor/random_internal.h"

typedef struct shuffled {
    trek_around around;
    int64_t capacity;
} shuffled;

typedef struct reading {
    trek_stream *inner;
    int64_t epoch, given; /* given: samples */
    uint64_t seed;
    trek_tensor ***buffer; /* [capacity] samples: batches of one, all fields */
    int64_t capacity, n;
    bool over;             /* nothing comes after the buffer's content */
} reading;

static void sample_free(trek_tensor **sample, int n_fields)
{
    trek_tensors_clear(sample, n_fields);
    trek_free(sample);
}

static void shuffle_close(trek_dataset *self, void *at)
{
    reading *r = at;
    for (int64_t i = 0; r->buffer && i < r->n; i++)
        sample_free(r->buffer[i], self->n_fields);
    trek_free(r->buffer);
    trek_stream_close(&r->inner);
    trek_free(r);
}

static trek_status shuffle_open(trek_dataset *self, int64_t epoch, uint64_t seed, void **at)
{
    const shuffled *s = (const shuffled *)self;
    reading *r = trek_calloc(1, sizeof(*r));
    if (!r)
        return TREK_ERR_MEMORY;
    r->epoch = epoch;
    r->seed = seed;
    r->capacity = s->capacity;
    r->buffer = trek_calloc((size_t)s->capacity, sizeof(*r->buffer));
    r->inner = r->buffer ? trek_stream_open(s->around.inner, epoch, seed) : NULL;
    if (!r->inner) {
        shuffle_close(self, r);
        return trek_status_or(TREK_ERR_MEMORY);
    }
    *at = r;
    return TREK_OK;
}

/* Reads until the buffer is full or the stream is over. */
static trek_status fill(const trek_dataset *self, reading *r)
{
    trek_status status = TREK_OK;
    while (r->n < r->capacity && !r->over && status == TREK_OK) {
        int64_t got = 0;
        trek_tensor **sample = trek_tensors_new(self->n_fields);
        status = sample ? trek_stream_next(r->inner, 1, sample, &got) : TREK_ERR_MEMORY;
        r->over = status == TREK_OK && got == 0;
        if (got == 1)
            r->buffer[r->n++] = sample;
        else
            sample_free(sample, self->n_fields);
    }
    return status;
}

/* Returns the position of the next sample. It is uniform up to n / 2^64. */
static int64_t draw(const reading *r)
{
    uint32_t words[4];
    trek_philox(r->seed, (uint64_t)r->given, (uint32_t)r->epoch, 0x73687566u, words);
    return (int64_t)(((uint64_t)words[0] << 32 | words[1]) % (uint64_t)r->n);
}

static trek_tensor **take(reading *r)
{
    int64_t place = draw(r);
    trek_tensor **sample = r->buffer[place];
    r->buffer[place] = r->buffer[--r->n];
    r->given++;
    return sample;
}

static trek_status shuffle_next(trek_dataset *self, void *at, int64_t n, trek_tensor **out, int64_t *got)
{
    reading *r = at;
    trek_status status = fill(self, r);
    if (status != TREK_OK || r->n == 0)
        return status;
    (void)n; /* gives one sample: the reader assembles batches */
    trek_tensor **sample = take(r);
    for (int k = 0; k < self->n_fields; k++) {
        out[k] = sample[k];
        sample[k] = NULL;
    }
    sample_free(sample, self->n_fields);
    *got = 1;
    return TREK_OK;
}

static trek_status shuffle_skip(trek_dataset *self, void *at, int64_t n, int64_t *skipped)
{
    reading *r = at;
    trek_status status = TREK_OK;
    for (*skipped = 0; *skipped < n && (status = fill(self, r)) == TREK_OK && r->n > 0; ++*skipped)
        sample_free(take(r), self->n_fields);
    return status;
}

static const trek_stream_class shuffle_stream = {
    .open = shuffle_open, .next = shuffle_next, .skip = shuffle_skip, .close = shuffle_close,
};

static const trek_dataset_class shuffle_class = {
    .name = "shuffle", .size = sizeof(shuffled), .free = trek_around_free, .stream = &shuffle_stream,
};

trek_dataset *trek_dataset_shuffle(trek_dataset *stream, int64_t capacity)
{
    shuffled *s = (shuffled *)trek_dataset_around(&shuffle_class, stream, "dataset_shuffle");
    trek_dataset *base = (trek_dataset *)s;
    if (!s)
        return NULL;
    s->capacity = capacity;
    if (capacity < 1)
        trek_fail(TREK_ERR_ARGUMENT, "dataset_shuffle: capacity: %" PRId64 " samples; must be at least 1", capacity);
    else if (!trek_dataset_is_stream(s->around.inner))
        trek_fail(TREK_ERR_ARGUMENT, "dataset_shuffle: dataset: %s is not a stream; .shuffle of a loader gives it another order",
                  s->around.inner->klass->name);
    else
        return base;
    trek_dataset_free(&base);
    return NULL;
}
