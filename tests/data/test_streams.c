/* SPDX-License-Identifier: Apache-2.0 */
/* Streams: read in pieces, by a loader, in another order, through functions; ends, failures, resuming. */
#include <stdatomic.h>

#include "data/compose.h"
#include "data/dataset_class.h"
#include "data/loader_position.h"
#include "data/sampler.h"
#include "data/stream.h"
#include "data/told.h"
#include "tensor/creation.h"
#include "tests/support/unit.h"

/* Samples 0 .. n - 1, "index" and "draw" as of told.h, in pieces of 1, 2, 3, ... */
typedef struct counter {
    trek_dataset base;
    int64_t n, fail_at;
    bool wild; /* gives more than it is asked for */
    atomic_int made, open;
} counter;

typedef struct place {
    int64_t at, piece, epoch;
    uint64_t seed;
} place;

static trek_status counter_open(trek_dataset *self, int64_t epoch, uint64_t seed, void **reading)
{
    if (epoch == 99)
        return trek_fail(TREK_ERR_IO, "no such epoch");
    place *p = calloc(1, sizeof(*p));
    p->epoch = epoch;
    p->seed = seed;
    *reading = p;
    atomic_fetch_add(&((counter *)self)->open, 1);
    return TREK_OK;
}

static trek_status counter_next(trek_dataset *self, void *reading, int64_t n, trek_tensor **out, int64_t *got)
{
    counter *set = (counter *)self;
    place *p = reading;
    int64_t many = p->piece++ % 4 + 1;
    many = many < n || set->wild ? many : n;
    many = many < set->n - p->at ? many : set->n - p->at;
    if (p->at <= set->fail_at && set->fail_at < p->at + many)
        return trek_fail(TREK_ERR_CALLBACK, "sample %d is broken", (int)set->fail_at);
    int64_t indices[8], draws[8];
    for (int64_t i = 0; i < many; i++, p->at++) {
        indices[i] = p->at;
        draws[i] = told_draw(p->seed, p->epoch, p->at);
    }
    atomic_fetch_add(&set->made, (int)many);
    *got = many;
    out[0] = many ? trek_tensor_from_data(indices, trek_dims(many), TREK_I64, trek_cpu(0)) : NULL;
    out[1] = many ? trek_tensor_from_data(draws, trek_dims(many), TREK_I64, trek_cpu(0)) : NULL;
    return trek_error_status();
}

static trek_status counter_skip(trek_dataset *self, void *reading, int64_t n, int64_t *skipped)
{
    place *p = reading;
    int64_t left = ((counter *)self)->n - p->at;
    *skipped = n < left ? n : left;
    p->at += *skipped;
    return TREK_OK;
}

static void counter_close(trek_dataset *self, void *reading)
{
    atomic_fetch_sub(&((counter *)self)->open, 1);
    free(reading);
}

static const char *const fields[] = { "index", "draw" };
static const trek_stream_class skipping = { counter_open, counter_next, counter_skip, counter_close };
static const trek_stream_class reading = { counter_open, counter_next, NULL, counter_close };
static const trek_dataset_class classes[] = {
    { .name = "counter", .size = sizeof(counter), .n_fields = 2, .fields = fields, .stream = &reading },
    { .name = "counter", .size = sizeof(counter), .n_fields = 2, .fields = fields, .stream = &skipping },
};

static counter *counter_new(int64_t n, int skips)
{
    counter *set = (counter *)trek_dataset_new(&classes[skips]);
    assert_non_null(set);
    set->n = n;
    set->fail_at = -1;
    return set;
}

static void release(trek_tensor **out)
{
    trek_tensor_release(out[0]);
    trek_tensor_release(out[1]);
}

static void readings(void **state)
{
    for (int skips = 0; skips < 2; skips++) {
        counter *set = counter_new(25, skips);
        trek_dataset *base = &set->base;
        assert_true(trek_dataset_is_stream(base));
        assert_int_equal(trek_dataset_length(base), -1);
        expect_no_error();
        trek_stream *a = trek_stream_open(base, 2, 5), *b = trek_stream_open(base, 0, 0);
        int64_t got, skipped, next = 0;
        trek_tensor *out[2];
        static const int64_t asked[] = { 7, 1, 10, 4, 9, 1 }, given[] = { 7, 1, 10, 4, 3, 0 };
        for (int k = 0; k < 6; k++) {
            assert_int_equal(trek_stream_next(a, asked[k], out, &got), TREK_OK);
            assert_int_equal(got, given[k]);
            for (int64_t i = 0; i < got; i++, next++) {
                assert_int_equal(((int64_t *)trek_tensor_data(out[0]))[i], next);
                assert_true(((int64_t *)trek_tensor_data(out[1]))[i] == told_draw(5, 2, next));
            }
            if (got == 0)
                assert_true(!out[0] && !out[1]);
            else
                assert_int_equal(trek_tensor_shape(out[0]).sizes[0], got);
            assert_int_equal(trek_stream_position(a), next);
            release(out);
        }
        int made = atomic_load(&set->made);
        assert_int_equal(trek_stream_skip(b, 11, &skipped), TREK_OK);
        assert_int_equal(skipped, 11);
        assert_int_equal(atomic_load(&set->made) - made, skips ? 0 : 11);
        assert_int_equal(trek_stream_next(b, 2, out, &got), TREK_OK);
        assert_int_equal(((int64_t *)trek_tensor_data(out[0]))[1], 12);
        release(out);
        assert_int_equal(trek_stream_skip(b, 100, &skipped), TREK_OK);
        assert_int_equal(skipped, 12);
        assert_int_equal(trek_stream_skip(b, 1, NULL), TREK_OK);
        assert_int_equal(trek_stream_position(b), 25);
        trek_dataset_free(&base); /* the readings hold it */
        trek_stream_close(&a);
        assert_int_equal(atomic_load(&set->open), 1);
        trek_stream_close(&b);
        trek_stream_close(&b);
        expect_no_error();
    }
}

static void readings_refuse(void **state)
{
    counter *set = counter_new(25, 1);
    trek_dataset *base = &set->base, *plain = told_new(3);
    trek_tensor *out[2];
    int64_t got = 7, index = 0;
    assert_false(trek_dataset_is_stream(plain) || trek_dataset_is_stream(NULL));
    REFUSED(trek_stream_open(plain, 0, 0), TREK_ERR_ARGUMENT, "told is not a stream");
    REFUSED(trek_stream_open(NULL, 0, 0), TREK_ERR_ARGUMENT, "dataset: NULL");
    REFUSED(trek_stream_open(base, -1, 0), TREK_ERR_ARGUMENT, "epoch: -1");
    REFUSED(trek_stream_open(base, 99, 0), TREK_ERR_IO, "no such epoch");
    FAILS(trek_dataset_get(base, &index, 1, out), TREK_ERR_UNSUPPORTED, "is a stream");
    trek_stream *s = trek_stream_open(base, 0, 0);
    FAILS(trek_stream_next(s, 0, out, &got), TREK_ERR_ARGUMENT, "0 samples");
    FAILS(trek_stream_skip(s, -1, NULL), TREK_ERR_ARGUMENT, "-1 samples");
    set->fail_at = 5;
    for (int again = 0; again < 2; again++) {
        FAILS(trek_stream_next(s, 8, out, &got), TREK_ERR_CALLBACK, again ? "has failed" : "sample 5 is broken");
        assert_true(got == 0 && !out[0] && !out[1]);
    }
    FAILS(trek_stream_skip(s, 1, NULL), TREK_ERR_CALLBACK, "has failed");
    trek_stream_close(&s);
    set->fail_at = -1;
    set->wild = true;
    s = trek_stream_open(base, 0, 0);
    for (int n = 1; n < 3; n++) { /* pieces of 1 and 2 */
        assert_int_equal(trek_stream_next(s, n, out, &got), TREK_OK);
        release(out);
    }
    FAILS(trek_stream_next(s, 2, out, &got), TREK_ERR_CALLBACK, "next: 3 samples instead of 2");
    trek_stream_close(&s);
    REFUSED(trek_dataset_subset(trek_dataset_retain(base), 0, 1), TREK_ERR_UNSUPPORTED, "is a stream");
    REFUSED(trek_dataset_cache(trek_dataset_retain(base), 100), TREK_ERR_UNSUPPORTED, "is a stream");
    REFUSED(trek_dataset_concat((trek_dataset *[]){ trek_dataset_retain(base), told_new(1) }, 2), TREK_ERR_UNSUPPORTED,
            "is a stream");
    trek_dataset *parts[1];
    FAILS(trek_dataset_split(trek_dataset_retain(base), (double[]){ 1 }, 1, 0, parts), TREK_ERR_UNSUPPORTED, "is a stream");
    REFUSED(trek_dataset_shuffle(trek_dataset_retain(plain), 4), TREK_ERR_ARGUMENT, "told is not a stream");
    REFUSED(trek_dataset_shuffle(trek_dataset_retain(base), 0), TREK_ERR_ARGUMENT, "capacity: 0");
    REFUSED(trek_loader_new(trek_dataset_retain(base), &(trek_loader_opts){ .batch_size = 2, .shuffle = true }),
            TREK_ERR_ARGUMENT, "trek_dataset_shuffle");
    REFUSED(trek_loader_new(trek_dataset_retain(base),
                            &(trek_loader_opts){ .batch_size = 2, .sampler = trek_sampler_sequential(3) }), TREK_ERR_ARGUMENT,
                            "sampler");
    REFUSED(trek_loader_new(trek_dataset_retain(base), &(trek_loader_opts){ .batch_size = 2, .workers = 2 }), TREK_ERR_ARGUMENT,
            "one worker reads");
    REFUSED(trek_dataset_new(&(trek_dataset_class){ .name = "none", .size = sizeof(counter) }), TREK_ERR_ARGUMENT,
            "open and next");
    trek_dataset_free(&base);
    trek_dataset_free(&plain);
    assert_int_equal(told_alive(), 0);
}

/* What is left of an epoch from a batch on; returns how many samples. */
static int64_t drain(trek_loader *loader, int64_t *samples)
{
    int64_t count = 0, epoch, at;
    for (trek_batch *batch; (batch = trek_loader_next(loader));)
        for (int64_t i = 0; i < trek_batch_size(batch); i++, count++) {
            trek_loader_position(loader, &epoch, &at);
            samples[count] = numbers(batch, "index")[i];
            assert_true(numbers(batch, "draw")[i] == told_draw(3, epoch, samples[count]));
            assert_int_equal(trek_batch_indices(batch)[i], (at - 1) * 4 + i);
        }
    return count;
}

static void loaders(void **state)
{
    int64_t samples[64];
    for (int way = 0; way < 16; way++) {
        bool drop = way & 1, skips = way & 2;
        int length = way & 4 ? 24 : 26;
        counter *set = counter_new(length, skips);
        trek_loader *loader = trek_loader_new(trek_dataset_retain(&set->base), &(trek_loader_opts){
            .batch_size = 4, .seed = 3, .drop_last = drop, .prefetch = way & 8 ? 3 : TREK_ZERO });
        assert_non_null(loader);
        assert_true(trek_loader_batches(loader) == -1 && trek_loader_samples(loader) == -1);
        expect_no_error();
        int expected = drop ? length / 4 * 4 : length;
        for (int epoch = 0; epoch < 3; epoch++) {
            assert_int_equal(trek_loader_start(loader, epoch), TREK_OK);
            assert_int_equal(drain(loader, samples), expected);
            for (int i = 0; i < expected; i++)
                assert_int_equal(samples[i], i);
            assert_null(trek_loader_next(loader)); /* stays at the end */
            expect_no_error();
            assert_int_equal(trek_loader_seek(loader, epoch, 5), TREK_OK);
            assert_int_equal(drain(loader, samples), expected - 20);
            assert_int_equal(samples[0], 20);
            assert_int_equal(trek_loader_seek(loader, epoch, 50), TREK_OK);
            assert_null(trek_loader_next(loader));
            assert_int_equal(trek_loader_start(loader, epoch), TREK_OK); /* left in the middle by the next start */
            assert_non_null(trek_loader_next(loader));
        }
        trek_loader_free(&loader);
        assert_int_equal(atomic_load(&set->open), 0);
        trek_dataset *base = &set->base;
        trek_dataset_free(&base);
        expect_no_error();
    }
}

static void failures(void **state)
{
    int64_t samples[64];
    for (int way = 0; way < 4; way++) {
        counter *set = counter_new(26, way & 1);
        trek_loader *loader = trek_loader_new(&set->base, &(trek_loader_opts){
            .batch_size = 4, .seed = 3, .prefetch = way & 2 ? 2 : TREK_ZERO });
        for (int round = 0; round < 3; round++) {
            set->fail_at = 13;
            assert_int_equal(trek_loader_start(loader, round), TREK_OK);
            assert_int_equal(drain(loader, samples), 12);
            expect_error(TREK_ERR_CALLBACK, "sample 13 is broken");
            set->fail_at = -1;
            assert_int_equal(trek_loader_seek(loader, round, 3), TREK_OK); /* goes on where it failed */
            assert_int_equal(drain(loader, samples), 14);
            expect_no_error();
        }
        assert_int_equal(trek_loader_start(loader, 99), TREK_OK);
        REFUSED(trek_loader_next(loader), TREK_ERR_IO, "no such epoch");
        trek_loader_free(&loader);
    }
}

/* Each sample once; no sample more than `capacity` places early; the order is that of (seed, epoch), also after a resume. */
static void shuffled(void **state)
{
    static const int64_t capacities[] = { 1, 2, 10, 39, 40, 1000 };
    for (int c = 0; c < 6; c++) {
        int64_t order[4][64], part[64];
        for (int run = 0; run < 4; run++) { /* seed 3: epochs 0, 0, 1; then seed 4 */
            trek_loader *loader = trek_loader_new(trek_dataset_shuffle(&counter_new(40, 0)->base, capacities[c]),
                                                  &(trek_loader_opts){ .batch_size = 4, .seed = run == 3 ? 4 : 3,
                                                                       .prefetch = run == 1 ? TREK_ZERO : 0 });
            bool seen[40] = { false };
            int64_t at = 0;
            trek_loader_start(loader, run == 2);
            for (trek_batch *batch; (batch = trek_loader_next(loader));)
                for (int64_t i = 0; i < trek_batch_size(batch); i++, at++) {
                    int64_t sample = numbers(batch, "index")[i];
                    assert_false(seen[sample]);
                    seen[sample] = true;
                    assert_true(sample - at < capacities[c]);
                    order[run][at] = sample;
                }
            assert_int_equal(at, 40);
            trek_loader_seek(loader, run == 2, 6);
            for (at = 0; at < 16; at += 4)
                memcpy(part + at, numbers(trek_loader_next(loader), "index"), 4 * sizeof(*part));
            assert_memory_equal(part, order[run] + 24, sizeof(*part) * 16);
            trek_loader_free(&loader);
            expect_no_error();
        }
        assert_memory_equal(order[0], order[1], sizeof(*part) * 40);
        if (capacities[c] > 2) {
            assert_memory_not_equal(order[0], order[2], sizeof(*part) * 40);
            assert_memory_not_equal(order[0], order[3], sizeof(*part) * 40);
        }
    }
}

/* A full buffer gives all orders equally often. */
static void the_buffer_is_even(void **state)
{
    int counts[64] = { 0 }, kinds = 0;
    double chi = 0;
    trek_dataset *set = trek_dataset_shuffle(&counter_new(3, 0)->base, 3);
    for (int epoch = 100; epoch < 6100; epoch++) {
        trek_stream *s = trek_stream_open(set, epoch, 1);
        trek_tensor *out[2];
        int64_t got;
        assert_int_equal(trek_stream_next(s, 3, out, &got), TREK_OK);
        const int64_t *x = trek_tensor_data(out[0]);
        counts[x[0] * 16 + x[1] * 4 + x[2]]++;
        release(out);
        trek_stream_close(&s);
    }
    for (int k = 0; k < 64; k++) {
        kinds += counts[k] > 0;
        chi += counts[k] ? (counts[k] - 1000.0) * (counts[k] - 1000.0) / 1000 : 0;
    }
    assert_int_equal(kinds, 6);
    assert_true(chi < 30); /* 5 degrees of freedom: beyond it once in 70,000 */
    trek_dataset_free(&set);
}

static trek_status sum_up(const trek_fetch *of, trek_tensor *const *in, trek_tensor **out, void *arg)
{
    out[0] = trek_tensor_empty(trek_dims(of->n), TREK_I64, trek_cpu(0));
    for (int64_t i = 0; i < of->n; i++)
        ((int64_t *)trek_tensor_data(out[0]))[i] =
            ((const int64_t *)trek_tensor_data(in[0]))[i] - told_draw(of->seed, of->epoch, of->indices[i]);
    return TREK_OK;
}

/* A function over a stream is told the places of its samples, whatever pieces they come in, also after a seek. */
static void functions(void **state)
{
    for (int one = 0; one < 2; one++) {
        trek_dataset *drawn = trek_dataset_select(&counter_new(26, 1)->base, (const char *[]){ "draw" }, (const char *[]){ "x" },
                                                  1);
        trek_dataset_map_opts opts = { .fields = (const char *[]){ "zero" }, .n_fields = 1, .one_by_one = one };
        trek_loader *loader = trek_loader_new(trek_dataset_map(drawn, sum_up, &opts),
                                              &(trek_loader_opts){ .batch_size = 4, .seed = 3 });
        for (int from = 0; from < 7; from++) {
            assert_int_equal(trek_loader_seek(loader, from, from), TREK_OK);
            int64_t n = 0;
            for (trek_batch *batch; (batch = trek_loader_next(loader));)
                for (int64_t i = 0; i < trek_batch_size(batch); i++, n++)
                    assert_int_equal(numbers(batch, "zero")[i], 0);
            assert_int_equal(n, 26 - from * 4);
        }
        trek_loader_free(&loader);
        expect_no_error();
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(readings, clear_error), cmocka_unit_test_setup(readings_refuse, clear_error),
        cmocka_unit_test_setup(loaders, clear_error), cmocka_unit_test_setup(failures, clear_error),
        cmocka_unit_test_setup(shuffled, clear_error), cmocka_unit_test_setup(the_buffer_is_even, clear_error),
        cmocka_unit_test_setup(functions, clear_error),
    };
    return cmocka_run_group_tests_name("streams", tests, NULL, NULL);
}
