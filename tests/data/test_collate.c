/* SPDX-License-Identifier: Apache-2.0 */
/* Batches of unequal samples: padded, or put together by a function; the same rows whoever has which part of a batch. */
#include <stdatomic.h>

#include "data/collate.h"
#include "data/compose.h"
#include "data/loader_internal.h"
#include "data/loader_position.h"
#include "data/stream.h"
#include "data/told.h"
#include "tensor/creation.h"
#include "tensor/layout.h"
#include "tensor/shapes.h"
#include "tests/support/unit.h"

/* Sample i: "tokens" i64 [tokens_of(i)] = 100 i + place, "image" f32 [2, high, wide] = i + place / 100, "label" i64 = i. */
enum { N = 37, BATCH = 8 };

typedef struct ragged {
    trek_dataset base;
    atomic_int fetched;
} ragged;

static int64_t tokens_of(int64_t i) { return i * 7 % 13; } /* 0 of samples 0, 13, 26 */
static int64_t high_of(int64_t i) { return 1 + i * 3 % 5; }
static int64_t wide_of(int64_t i) { return 2 + i * 5 % 4; }

static trek_status make(int64_t i, trek_tensor **out)
{
    int64_t tokens[16], h = high_of(i), w = wide_of(i);
    float pixels[2 * 8 * 8];
    for (int64_t t = 0; t < tokens_of(i); t++)
        tokens[t] = 100 * i + t;
    for (int64_t p = 0; p < 2 * h * w; p++)
        pixels[p] = (float)i + (float)p / 100;
    out[0] = tokens_of(i) ? trek_tensor_from_data(tokens, trek_dims(1, tokens_of(i)), TREK_I64, trek_cpu(0))
        : trek_tensor_empty(trek_dims(1, 0), TREK_I64, trek_cpu(0));
    out[1] = trek_tensor_from_data(pixels, trek_dims(1, 2, h, w), TREK_F32, trek_cpu(0));
    out[2] = trek_tensor_from_data(&i, trek_dims(1), TREK_I64, trek_cpu(0));
    return trek_error_status();
}

static int64_t ragged_length(const trek_dataset *self) { return (void)self, N; }

static trek_status ragged_get(trek_dataset *self, const trek_fetch *fetch, trek_tensor **out)
{
    atomic_fetch_add(&((ragged *)self)->fetched, 1);
    return fetch->n == 1 ? make(fetch->indices[0], out) : trek_fail(TREK_ERR_UNSUPPORTED, "one at a time");
}

static trek_status ragged_open(trek_dataset *self, int64_t epoch, uint64_t seed, void **reading)
{
    *reading = calloc(1, sizeof(int64_t));
    return (void)self, (void)epoch, (void)seed, TREK_OK;
}

static trek_status ragged_next(trek_dataset *self, void *reading, int64_t n, trek_tensor **out, int64_t *got)
{
    int64_t *at = reading;
    *got = *at < N;
    return *got ? make((*at)++, out) : TREK_OK;
}

static void ragged_close(trek_dataset *self, void *reading) { (void)self, free(reading); }

static const char *const fields[] = { "tokens", "image", "label" };
static const trek_stream_class streaming = { .open = ragged_open, .next = ragged_next, .close = ragged_close };
static const trek_dataset_class classes[] = {
    { .name = "ragged", .size = sizeof(ragged), .length = ragged_length, .get = ragged_get, .n_fields = 3, .fields = fields },
    { .name = "ragged", .size = sizeof(ragged), .n_fields = 3, .fields = fields, .stream = &streaming },
};

static int64_t max(int64_t a, int64_t b) { return a > b ? a : b; }

/* Rows [first, first + n) of a batch of the samples `all`, padded as the longest of them; tokens to a multiple. */
static void expect_rows(trek_tensor *const *out, const int64_t *all, int64_t n_all, int64_t first, int64_t n, int64_t multiple,
                        int64_t least, int64_t fill)
{
    int64_t t = least, h = 0, w = 0;
    for (int64_t i = 0; i < n_all; i++) {
        t = max(t, tokens_of(all[i]));
        h = max(h, high_of(all[i]));
        w = max(w, wide_of(all[i]));
    }
    t = (t + multiple - 1) / multiple * multiple;
    assert_true(trek_shape_equal(trek_tensor_shape(out[0]), trek_dims(n, t)));
    assert_true(trek_shape_equal(trek_tensor_shape(out[1]), trek_dims(n, 2, h, w)));
    assert_true(trek_shape_equal(trek_tensor_shape(out[3]), trek_dims(n, t)));
    assert_int_equal(trek_tensor_dtype(out[3]), TREK_BOOL);
    for (int64_t i = 0; i < n; i++) {
        int64_t s = all[first + i];
        for (int64_t k = 0; k < t; k++) {
            bool own = k < tokens_of(s);
            assert_int_equal(((int64_t *)trek_tensor_data(out[0]))[i * t + k], own ? 100 * s + k : fill);
            assert_int_equal(((bool *)trek_tensor_data(out[3]))[i * t + k], own);
        }
        for (int64_t k = 0; k < 2 * h * w; k++) {
            int64_t c = k / (h * w), y = k / w % h, x = k % w;
            bool own = y < high_of(s) && x < wide_of(s);
            float expected = own ? (float)s + (float)((c * high_of(s) + y) * wide_of(s) + x) / 100 : -1;
            assert_true(((float *)trek_tensor_data(out[1]))[i * 2 * h * w + k] == expected);
        }
        assert_int_equal(((int64_t *)trek_tensor_data(out[2]))[i], s);
        assert_int_equal(((int64_t *)trek_tensor_data(out[4]))[i], tokens_of(s));
    }
}

static void expect_batch(const trek_batch *batch, const int64_t *all, int64_t n_all, int64_t multiple, int64_t least,
                         int64_t fill)
{
    trek_tensor *out[5];
    static const char *const names[] = { "tokens", "image", "label", "own", "tokens in it" };
    for (int k = 0; k < 5; k++) {
        trek_var *var = trek_batch_get(batch, names[k]);
        if (!var)
            fail_msg("%s", trek_error());
        out[k] = trek_var_data(var);
    }
    expect_rows(out, all, n_all, batch->first, trek_batch_size(batch), multiple, least, fill);
}

static const char *const padded[] = { "tokens", "image" };
static const double values[] = { -100, -1 };

static const int64_t fours[] = { 4, 0 }, tens[] = { 10, 0 };

static trek_pad_opts pad_opts(int way)
{
    return (trek_pad_opts){ .fields = padded, .n_fields = 2, .values = values, .mask = "own", .length = "tokens in it",
                            .multiples = way & 1 ? fours : NULL, .leasts = way & 2 ? tens : NULL };
}

static void batches_are_padded(void **state)
{
    for (int way = 0; way < 16; way++) {
        bool stream = way & 4, workers = way & 8 && !stream;
        trek_pad_opts opts = pad_opts(way);
        trek_dataset *set = trek_dataset_pad(trek_dataset_new(&classes[stream]), &opts);
        trek_loader *loader = trek_loader_new(set, &(trek_loader_opts){ .batch_size = BATCH, .shuffle = !stream, .seed = 1,
                                                                        .workers = workers ? 3 : 1 });
        for (int epoch = 0; epoch < 2; epoch++) {
            trek_loader_seek(loader, epoch, epoch);
            int64_t n = 0;
            for (trek_batch *batch; (batch = trek_loader_next(loader)); n += trek_batch_size(batch))
                expect_batch(batch, trek_batch_indices(batch), trek_batch_size(batch), way & 1 ? 4 : 1, way & 2 ? 10 : 0, -100);
            assert_int_equal(n, N - epoch * BATCH);
            expect_no_error();
        }
        trek_loader_free(&loader);
    }
}

/* All fields alike, by default and with one rule. */
static void one_rule_for_all(void **state)
{
    for (int ruled = 0; ruled < 2; ruled++) {
        trek_dataset *set = trek_dataset_select(trek_dataset_new(&classes[0]), (const char *[]){ "tokens", "label" }, NULL, 2);
        set = trek_dataset_pad(set, ruled ? &(trek_pad_opts){ .value = 5, .multiple_of = 4, .at_least = 9 } : NULL);
        trek_tensor *out[2];
        int64_t width = ruled ? 12 : 7, some[] = { 1, 2 };
        assert_int_equal(trek_dataset_get(set, some, 2, out), TREK_OK);
        assert_true(trek_shape_equal(trek_tensor_shape(out[0]), trek_dims(2, width)));
        for (int64_t k = 0; k < 2 * width; k++)
            assert_int_equal(((int64_t *)trek_tensor_data(out[0]))[k], k < 7 ? 100 + k : k == width ? 200 : ruled ? 5 : 0);
        assert_true(trek_shape_equal(trek_tensor_shape(out[1]), trek_dims(2)));
        assert_int_equal(((int64_t *)trek_tensor_data(out[1]))[1], 2);
        trek_tensor_release(out[0]);
        trek_tensor_release(out[1]);
        trek_dataset_free(&set);
    }
    expect_no_error();
}

/* What a rank reads of a batch, of any share, is padded as the whole; with a list of lengths, other samples are not fetched. */
static void parts_are_padded_as_the_whole(void **state)
{
    static const int cuts[][4] = { { 0, 8, 8, 8 }, { 0, 3, 8, 8 }, { 0, 1, 2, 8 }, { 0, 0, 5, 8 } }; /* of three ranks */
    int64_t lengths[N], all[BATCH], n_all;
    for (int64_t i = 0; i < N; i++)
        lengths[i] = tokens_of(i);
    for (int way = 0; way < 16; way++) {
        const int *cut = cuts[way % 4];
        bool listed = way & 4, ahead = way & 8;
        trek_pad_opts opts = pad_opts(way);
        opts.lengths = listed ? lengths : NULL;
        opts.n_fields = listed ? 1 : 2; /* images differ in more than their first dimension */
        trek_dataset *inner = trek_dataset_new(&classes[0]);
        trek_dataset *set = listed ? trek_dataset_select(inner, (const char *[]){ "tokens", "label" }, NULL, 2) : inner;
        trek_loader *loader = trek_loader_new(trek_dataset_subset(trek_dataset_pad(set, &opts), 0, N),
                                              &(trek_loader_opts){ .batch_size = BATCH, .shuffle = true, .seed = 4,
                                                                   .workers = ahead ? 2 : 1 });
        for (int rank = 0; rank < 3; rank++) {
            trek_reader *reader = trek_reader_new(loader, trek_cpu(0));
            int64_t rows = cut[rank + 1] - cut[rank], last = N % BATCH, at = cut[rank] < last ? cut[rank] : last;
            trek_batch_cut own = { cut[rank], rows, at, (cut[rank + 1] < last ? cut[rank + 1] : last) - at };
            trek_reader_begin_part(reader, 2, 0, &own);
            for (int64_t b = 0; b < 5 && (b < 4 || own.last_rows > 0); b++) {
                trek_batch *batch = trek_reader_next(reader);
                if (!batch)
                    fail_msg("%s", trek_error());
                assert_int_equal(trek_loader_indices(loader, 2, b, all, &n_all), TREK_OK);
                if (!listed) {
                    expect_batch(batch, all, n_all, way & 1 ? 4 : 1, way & 2 ? 10 : 0, -100);
                    continue;
                }
                int64_t t = way & 2 ? 10 : 0;
                for (int64_t i = 0; i < n_all; i++)
                    t = max(t, tokens_of(all[i]));
                t = way & 1 ? (t + 3) / 4 * 4 : t;
                assert_true(trek_shape_equal(trek_tensor_shape(trek_var_data(trek_batch_get(batch, "tokens"))),
                                             trek_dims(b < 4 ? rows : own.last_rows, t)));
                for (int64_t i = 0; i < trek_batch_size(batch); i++)
                    for (int64_t k = 0; k < t; k++)
                        assert_int_equal(numbers(batch, "tokens")[i * t + k], k < tokens_of(all[batch->first + i])
                                             ? 100 * all[batch->first + i] + k : -100);
            }
            trek_reader_free(&reader);
            expect_no_error();
        }
        if (listed) /* all once, and one for each batch of a rank without rows */
            assert_in_range(atomic_load(&((ragged *)inner)->fetched), N, N + 12);
        trek_loader_free(&loader);
    }
}

static void padding_refuses(void **state)
{
    const struct {
        trek_pad_opts opts;
        const char *part;
    } cases[] = {
        { { .fields = (const char *[]){ "token" }, .n_fields = 1 }, "no field \"token\"" },
        { { .fields = padded, .n_fields = 0 }, "no fields" },
        { { .values = values }, "NULL, but a list for each field is set" },
        { { .multiple_of = -1 }, ".multiple_of: -1" },
        { { .at_least = -2 }, ".at_least: -2" },
        { { .mask = "label" }, "\"label\" occurs twice" },
        { { .mask = "m", .length = "m" }, "\"m\" occurs twice" },
    };
    for (size_t k = 0; k < sizeof(cases) / sizeof(cases[0]); k++) {
        REFUSED(trek_dataset_pad(trek_dataset_new(&classes[0]), &cases[k].opts), TREK_ERR_ARGUMENT, cases[k].part);
    }
    int64_t lengths[N] = { 0 }, some[] = { 1, 2 };
    REFUSED(trek_dataset_pad(trek_dataset_new(&classes[1]), &(trek_pad_opts){ .lengths = lengths }), TREK_ERR_ARGUMENT,
            "is a stream");
    REFUSED(trek_dataset_pad(NULL, NULL), TREK_ERR_ARGUMENT, "dataset: NULL");
    trek_tensor *out[4];
    trek_dataset *set = trek_dataset_pad(trek_dataset_new(&classes[0]), &(trek_pad_opts){ .fields = padded, .n_fields = 1 });
    FAILS(trek_dataset_get(set, some, 2, out), TREK_ERR_SHAPE, "samples of \"image\" differ");
    assert_null(out[0]);
    REFUSED(trek_dataset_cache(trek_dataset_retain(set), 100), TREK_ERR_ARGUMENT, "depend on their batch");
    REFUSED(trek_dataset_concat(&(trek_dataset *){ trek_dataset_retain(set) }, 1), TREK_ERR_ARGUMENT, "depend on their batch");
    trek_dataset_free(&set);
    set = trek_dataset_pad(trek_dataset_select(trek_dataset_new(&classes[0]), fields, NULL, 1),
                           &(trek_pad_opts){ .lengths = lengths });
    FAILS(trek_dataset_get(set, some, 2, out), TREK_ERR_ARGUMENT, "\"tokens\" of sample 1 has 7 rows; .lengths says 0");
    trek_dataset_free(&set);
}

/* The number of the batch's samples, their labels' sum, and the row's own label. arg: how it is to fail, which changes while
 * workers still read ahead. */
static trek_status join(const trek_fetch *of, trek_tensor *const *const *samples, trek_tensor **out, void *arg)
{
    int64_t rows[64 * 3], sum = 0;
    int fails = atomic_load((atomic_int *)arg);
    if (fails == 1)
        return trek_fail(TREK_ERR_CALLBACK, "no");
    for (int64_t i = 0; i < of->n; i++)
        sum += *(int64_t *)trek_tensor_data(samples[i][2]);
    for (int64_t i = 0; i < of->n; i++) {
        const int64_t row[] = { of->n, sum, *(int64_t *)trek_tensor_data(samples[i][2]) + 1000 * of->epoch };
        memcpy(rows + i * 3, row, sizeof(row));
    }
    out[0] = fails == 2 ? NULL : trek_tensor_from_data(rows, trek_dims(of->n, 3), TREK_I64, trek_cpu(0));
    return trek_error_status();
}

static atomic_int ended;
static void end(void *arg) { (void)arg, atomic_fetch_add(&ended, 1); }

static void functions_of_ones_own(void **state)
{
    atomic_int fails = 0;
    for (int by_rows = 0; by_rows < 2; by_rows++) {
        trek_collate_opts opts = { .fields = (const char *[]){ "row" }, .n_fields = 1, .by_rows = by_rows, .arg = &fails,
                                   .free_arg = end };
        trek_loader *loader = trek_loader_new(trek_dataset_collate(trek_dataset_new(&classes[0]), join, &opts),
                                              &(trek_loader_opts){ .batch_size = BATCH, .shuffle = true, .workers = 2 });
        trek_reader *reader = trek_reader_new(loader, trek_cpu(0));
        trek_batch_cut own = { 2, 4, 2, 2 };
        trek_reader_begin_part(reader, 3, 0, &own);
        for (int64_t b = 0; b < 5; b++) {
            int64_t all[BATCH], n, sum = 0, rows = b < 4 ? 4 : 2;
            trek_batch *batch = trek_reader_next(reader);
            if (!batch)
                fail_msg("%s", trek_error());
            trek_loader_indices(loader, 3, b, all, &n);
            for (int64_t i = by_rows ? 2 : 0; i < (by_rows ? 2 + rows : n); i++)
                sum += all[i];
            for (int64_t i = 0; i < rows; i++) {
                const int64_t *row = numbers(batch, "row") + 3 * i;
                assert_int_equal(row[0], by_rows ? rows : n);
                assert_int_equal(row[1], sum);
                assert_int_equal(row[2], all[2 + i] + 3000);
            }
        }
        trek_reader_free(&reader);
        for (fails = 1; fails < 3; fails++) {
            trek_loader_start(loader, 0);
            REFUSED(trek_loader_next(loader), TREK_ERR_CALLBACK, fails == 1 ? "no" : "no tensor for \"row\"");
        }
        fails = 0;
        trek_loader_free(&loader);
        assert_int_equal(ended, by_rows + 1);
    }
    trek_collate_opts opts = { .free_arg = end };
    REFUSED(trek_dataset_collate(trek_dataset_new(&classes[0]), NULL, &opts), TREK_ERR_ARGUMENT, "function: NULL");
    REFUSED(trek_dataset_collate(trek_dataset_new(&classes[1]), join, &opts), TREK_ERR_UNSUPPORTED, "is a stream");
    assert_int_equal(ended, 4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(batches_are_padded, clear_error), cmocka_unit_test_setup(one_rule_for_all, clear_error),
        cmocka_unit_test_setup(parts_are_padded_as_the_whole, clear_error), cmocka_unit_test_setup(padding_refuses, clear_error),
        cmocka_unit_test_setup(functions_of_ones_own, clear_error),
    };
    return cmocka_run_group_tests_name("collate", tests, NULL, NULL);
}
