/* SPDX-License-Identifier: Apache-2.0 */
/* Readings of streams: whole batches assembled from pieces. */
#include "data/stream.h"

#include <inttypes.h>

#include "data/dataset_internal.h"
#include "tensor/debug.h"
#include "tensor/scope.h"
#include "tensor/tensor_internal.h"

struct trek_stream {
    trek_dataset *dataset;
    void *reading;
    bool opened;
    int64_t epoch, position;
    uint64_t seed;
    bool over;           /* it has ended */
    trek_status failed;  /* or it has failed with this status */
    trek_tensor **piece; /* [n_fields] */
};

trek_stream *trek_stream_open(trek_dataset *dataset, int64_t epoch, uint64_t seed)
{
    if (!dataset)
        return trek_fail_missing("stream_open", "dataset"), NULL;
    if (trek_gone(dataset, "stream_open", "the dataset"))
        return NULL;
    if (!trek_dataset_is_stream(dataset))
        return trek_fail_null(TREK_ERR_ARGUMENT, "stream_open: dataset: %s is not a stream", dataset->klass->name);
    if (epoch < 0)
        return trek_fail_null(TREK_ERR_ARGUMENT, "stream_open: epoch: %" PRId64 "; must be 0 or more", epoch);
    trek_stream *s = trek_calloc(1, sizeof(*s));
    if (!s)
        return NULL;
    s->dataset = trek_dataset_retain(dataset);
    s->epoch = epoch;
    s->seed = seed;
    s->piece = trek_tensors_new(dataset->n_fields);
    trek_status status = s->piece ? dataset->klass->stream->open(dataset, epoch, seed, &s->reading) : TREK_ERR_MEMORY;
    s->opened = status == TREK_OK;
    if (status != TREK_OK) {
        trek_fail_after(status, "dataset %s: open failed (%s)", dataset->klass->name, trek_status_description(status));
        trek_stream_close(&s);
    }
    return s;
}

void trek_stream_close(trek_stream **stream)
{
    if (!stream || !*stream)
        return;
    trek_stream *s = *stream;
    *stream = NULL;
    if (s->opened && s->dataset->klass->stream->close)
        s->dataset->klass->stream->close(s->dataset, s->reading);
    trek_free(s->piece);
    trek_dataset_free(&s->dataset);
    trek_free(s);
}

int64_t trek_stream_position(const trek_stream *stream)
{
    if (stream)
        return stream->position;
    trek_fail_missing("stream_position", "stream");
    return -1;
}

void trek_stream_key(const trek_stream *stream, int64_t *epoch, uint64_t *seed)
{
    *epoch = stream->epoch;
    *seed = stream->seed;
}

static trek_status fail_again(const trek_stream *s)
{
    return trek_fail_after(s->failed, "dataset %s: reading has failed before (%s)", s->dataset->klass->name,
                           trek_status_description(s->failed));
}

/* Reads the class's next samples into s->piece, checked and settled. */
static trek_status next_piece(trek_stream *s, int64_t n, int64_t *got)
{
    trek_dataset *d = s->dataset;
    *got = 0;
    trek_scope scope = trek_scope_begin();
    if (scope.depth == 0)
        return TREK_ERR_MEMORY;
    trek_status status = d->klass->stream->next(d, s->reading, n, s->piece, got);
    if (status != TREK_OK)
        trek_fail_after(status, "dataset %s: next failed (%s)", d->klass->name, trek_status_description(status));
    else if (*got < 0 || *got > n)
        status = trek_fail(TREK_ERR_CALLBACK, "dataset %s: next: %" PRId64 " samples instead of %" PRId64 ", or fewer at the end",
                           d->klass->name, *got, n);
    else if (*got > 0)
        status = trek_batch_check(d, *got, s->piece);
    trek_scope_end(scope);
    for (int k = 0; k < d->n_fields && status == TREK_OK && *got > 0; k++)
        status = trek_tensor_settle(&s->piece[k]);
    return status;
}

/* Keeps only the first rows of a tensor. */
static trek_status cut_rows(trek_tensor **tensor, int64_t rows)
{
    trek_tensor *x = *tensor;
    int64_t sizes[TREK_MAX_DIMS];
    for (int d = 0; d < x->ndim; d++)
        sizes[d] = d == 0 ? rows : x->sizes[d];
    *tensor = trek_tensor_make_view(x, x->data, x->ndim, sizes, x->strides);
    trek_tensor_release(x);
    return *tensor ? TREK_OK : trek_status_or(TREK_ERR_MEMORY);
}

/* Puts a piece behind the `have` rows that are there. A whole batch in one piece is taken as it is. */
static trek_status add_piece(trek_stream *s, int64_t n, int64_t have, int64_t got, trek_tensor **out)
{
    trek_status status = TREK_OK;
    for (int k = 0; k < s->dataset->n_fields && status == TREK_OK; k++) {
        if (got == n) {
            out[k] = s->piece[k];
            s->piece[k] = NULL;
        }
        for (int64_t i = 0; i < got && got < n && status == TREK_OK; i++)
            status = trek_rows_put(s->dataset, k, &out[k], n, have + i, s->piece[k], i);
    }
    return status;
}

static trek_status read_batch(trek_stream *s, int64_t n, trek_tensor **out, int64_t *have)
{
    trek_status status = TREK_OK;
    while (*have < n && !s->over && status == TREK_OK) {
        int64_t got;
        status = next_piece(s, n - *have, &got);
        s->over = status == TREK_OK && got == 0;
        if (status == TREK_OK && got > 0)
            status = add_piece(s, n, *have, got, out);
        trek_tensors_clear(s->piece, s->dataset->n_fields);
        *have += status == TREK_OK ? got : 0;
    }
    for (int k = 0; k < s->dataset->n_fields && status == TREK_OK && *have > 0 && *have < n; k++)
        status = cut_rows(&out[k], *have);
    return status;
}

trek_status trek_stream_next(trek_stream *stream, int64_t n, trek_tensor **out, int64_t *got)
{
    trek_stream *s = stream;
    if (!s || !out || !got)
        return trek_fail_missing("stream_next", s ? "array for the samples" : "stream");
    *got = 0;
    for (int k = 0; k < s->dataset->n_fields; k++)
        out[k] = NULL;
    if (n < 1)
        return trek_fail(TREK_ERR_ARGUMENT, "stream_next: n: %" PRId64 " samples; must be at least 1", n);
    if (s->failed != TREK_OK)
        return fail_again(s);
    int64_t have = 0;
    s->failed = read_batch(s, n, out, &have);
    if (s->failed != TREK_OK) {
        trek_tensors_clear(out, s->dataset->n_fields);
        return s->failed;
    }
    s->position += have;
    *got = have;
    return TREK_OK;
}

static trek_status read_and_drop(trek_stream *s, int64_t n, int64_t *skipped)
{
    trek_status status = next_piece(s, n, skipped);
    trek_tensors_clear(s->piece, s->dataset->n_fields);
    return status;
}

trek_status trek_stream_skip(trek_stream *stream, int64_t n, int64_t *skipped)
{
    trek_stream *s = stream;
    if (skipped)
        *skipped = 0;
    if (!s)
        return trek_fail_missing("stream_skip", "stream");
    if (n < 0)
        return trek_fail(TREK_ERR_ARGUMENT, "stream_skip: n: %" PRId64 " samples; must be 0 or more", n);
    if (s->failed != TREK_OK)
        return fail_again(s);
    const trek_stream_class *klass = s->dataset->klass->stream;
    int64_t done = 0;
    while (done < n && !s->over && s->failed == TREK_OK) {
        int64_t step = 0;
        s->failed = klass->skip ? klass->skip(s->dataset, s->reading, n - done, &step) : read_and_drop(s, n - done, &step);
        if (s->failed != TREK_OK)
            return trek_fail_after(s->failed, "dataset %s: skip failed (%s)", s->dataset->klass->name,
                                   trek_status_description(s->failed));
        s->over = step <= 0;
        done += step > 0 ? step : 0;
    }
    s->position += done;
    if (skipped)
        *skipped = done;
    return TREK_OK;
}

/* -- classes around streams ----------------------------------------------------------------- */

trek_status trek_around_open(trek_dataset *self, int64_t epoch, uint64_t seed, void **reading)
{
    *reading = trek_stream_open(((trek_around *)self)->inner, epoch, seed);
    return *reading ? TREK_OK : trek_status_or(TREK_ERR_MEMORY);
}

trek_status trek_around_skip(trek_dataset *self, void *reading, int64_t n, int64_t *skipped)
{
    (void)self;
    return trek_stream_skip(reading, n, skipped);
}

void trek_around_close(trek_dataset *self, void *reading)
{
    (void)self;
    trek_stream *inner = reading;
    trek_stream_close(&inner);
}
