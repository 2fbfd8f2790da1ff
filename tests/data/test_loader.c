/* SPDX-License-Identifier: Apache-2.0 */
/* Samplers and the loader: every sample once, errors, scopes, threads. */
#include <pthread.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <unistd.h>

#include "autograd/ops.h"
#include "data/compose.h"
#include "data/dataset_class.h"
#include "data/loader.h"
#include "data/loader_position.h"
#include "data/sampler.h"
#include "tests/support/scoped.h"
#include "tests/support/support.h"

/* -- a dataset for the loader: "value" f32 [n, 1] = index, may fail or be slow --- */

typedef struct counting {
    trek_dataset base;
    int64_t n, fail_at;
    int delay_us;
    atomic_int calls;
    atomic_int *freed;
} counting;

static int64_t counting_length(const trek_dataset *self) { return ((const counting *)self)->n; }

static trek_status counting_get(trek_dataset *self, const trek_fetch *fetch, trek_tensor **out)
{
    const int64_t *indices = fetch->indices;
    int64_t n = fetch->n;
    counting *set = (counting *)self;
    atomic_fetch_add(&set->calls, 1);
    if (set->delay_us)
        usleep((useconds_t)set->delay_us);
    float values[512];
    for (int64_t i = 0; i < n; i++) {
        if (indices[i] == set->fail_at)
            return trek_fail(TREK_ERR_CALLBACK, "sample %d is broken", (int)indices[i]);
        values[i] = (float)indices[i];
    }
    out[0] = trek_tensor_from_data(values, trek_dims(n, 1), TREK_F32, trek_cpu(0));
    return out[0] ? TREK_OK : trek_error_status();
}

static void counting_free(trek_dataset *self)
{
    counting *set = (counting *)self;
    if (set->freed)
        atomic_fetch_add(set->freed, 1);
}

static const char *const counting_fields[] = { "value" };
static const trek_dataset_class counting_class = {
    .name = "counting", .size = sizeof(counting), .length = counting_length, .get = counting_get, .free = counting_free,
    .n_fields = 1, .fields = counting_fields,
};

static counting *counting_new(int64_t n)
{
    counting *set = (counting *)trek_dataset_new(&counting_class);
    assert_non_null(set);
    set->n = n;
    set->fail_at = -1;
    return set;
}

static float value_of(trek_batch *batch, int64_t row)
{
    trek_var *value = trek_batch_get(batch, "value");
    assert_non_null(value);
    return ((const float *)trek_tensor_data(trek_var_data(value)))[row];
}

/* Runs an epoch to its end and appends the values; returns how many. */
static int drain(trek_loader *loader, float *values, int count)
{
    for (trek_batch *batch; (batch = trek_loader_next(loader));)
        for (int64_t i = 0; i < trek_batch_size(batch); i++)
            values[count++] = value_of(batch, i);
    return count;
}

/* -- samplers -------------------------------------------------------------------- */

static void every_sample_exactly_once(void **state)
{
    static const int64_t sizes[] = { 1, 2, 3, 5, 16, 17, 100, 1023, 60000 };
    static int64_t order[60000];
    static char seen[60000];
    for (size_t k = 0; k < sizeof(sizes) / sizeof(sizes[0]); k++)
        for (int64_t epoch = 0; epoch < 3; epoch++) {
            trek_sampler *sampler = trek_sampler_random(sizes[k], 42);
            assert_int_equal(trek_sampler_at(sampler, epoch, 0, sizes[k], order), TREK_OK);
            memset(seen, 0, sizeof(seen));
            for (int64_t i = 0; i < sizes[k]; i++) {
                assert_in_range(order[i], 0, sizes[k] - 1);
                assert_int_equal(seen[order[i]]++, 0);
            }
            int64_t middle = sizes[k] / 2, again = -1; /* any part is the same as of the whole */
            assert_int_equal(trek_sampler_at(sampler, epoch, middle, 1, &again), TREK_OK);
            assert_int_equal(again, order[middle]);
            trek_sampler_free(&sampler);
        }
}

/* All 24 orders of 4 samples come up equally often; in a large set neighbours are
 * unrelated, few samples stay, and epochs and seeds differ. */
static void the_shuffle_is_even(void **state)
{
    enum { TRIALS = 24000, N = 20000 };
    int counts[256] = { 0 };
    trek_sampler *small = trek_sampler_random(4, 3);
    for (int64_t epoch = 0; epoch < TRIALS; epoch++) {
        int64_t o[4];
        assert_int_equal(trek_sampler_at(small, epoch, 0, 4, o), TREK_OK);
        counts[o[0] * 64 + o[1] * 16 + o[2] * 4 + o[3]]++;
    }
    trek_sampler_free(&small);
    double chi = 0;
    int kinds = 0;
    for (int k = 0; k < 256; k++) {
        kinds += counts[k] > 0;
        chi += counts[k] ? pow(counts[k] - 1000.0, 2) / 1000.0 : 0;
    }
    assert_int_equal(kinds, 24);
    assert_true(chi < 60); /* 23 degrees of freedom; beyond 60 once in 30,000 */

    static int64_t a[N], b[N], c[N];
    trek_sampler *s = trek_sampler_random(N, 1), *t = trek_sampler_random(N, 2);
    trek_sampler_at(s, 0, 0, N, a);
    trek_sampler_at(s, 1, 0, N, b);
    trek_sampler_at(t, 0, 0, N, c);
    int fixed = 0, equal_epochs = 0, equal_seeds = 0;
    double place = 0, neighbour = 0, sigma2 = (double)N * N / 12;
    for (int i = 0; i < N; i++) {
        fixed += a[i] == i;
        equal_epochs += a[i] == b[i];
        equal_seeds += a[i] == c[i];
        place += ((double)a[i] - N / 2.0) * (i - N / 2.0) / sigma2 / N;
        neighbour += i ? ((double)a[i] - N / 2.0) * ((double)a[i - 1] - N / 2.0) / sigma2 / N : 0;
    }
    assert_in_range(fixed, 0, 8); /* about 1 of each expected */
    assert_in_range(equal_epochs, 0, 8);
    assert_in_range(equal_seeds, 0, 8);
    assert_true(fabs(place) < 0.03 && fabs(neighbour) < 0.03); /* 4 sigma */
    trek_sampler_free(&s);
    trek_sampler_free(&t);
}

static void sampler_refusals(void **state)
{
    int64_t out[4];
    REFUSED(trek_sampler_random(-1, 0), TREK_ERR_ARGUMENT, "-1 samples");
    trek_sampler *s = trek_sampler_sequential(3);
    assert_int_equal(trek_sampler_at(s, 0, 0, 3, out), TREK_OK);
    assert_int_equal(out[2], 2);
    FAILS(trek_sampler_at(s, 0, 1, 3, out), TREK_ERR_ARGUMENT, "3 positions from 1 on");
    FAILS(trek_sampler_at(s, -1, 0, 1, out), TREK_ERR_ARGUMENT, "epoch: -1");
    trek_sampler_free(&s);
    trek_sampler_free(&s);
}

static void sampler_lengths(void **state)
{
    static const int64_t sizes[] = { 0, 1, 7, INT64_C(1) << 40 };
    for (int k = 0; k < 4; k++) {
        trek_sampler *s = trek_sampler_sequential(sizes[k]), *r = trek_sampler_random(sizes[k], 3);
        assert_true(trek_sampler_length(s) == sizes[k] && trek_sampler_length(r) == sizes[k]);
        trek_sampler_free(&s);
        trek_sampler_free(&r);
    }
    assert_int_equal(trek_sampler_length(NULL), -1);
    expect_error(TREK_ERR_ARGUMENT, "sampler: NULL");
}

/* -- datasets of one's own ---------------------------------------------------------- */

/* Fields of an object instead of its class: copied, checked as a whole before they take the place of others. */
static void fields_of_an_object(void **state)
{
    trek_dataset *set = &counting_new(5)->base;
    char first[] = "number", second[] = "twice";
    const char *const names[] = { first, second };
    assert_string_equal(trek_dataset_field_name(set, 0), "value");
    assert_int_equal(trek_dataset_set_fields(set, names, 2), TREK_OK);
    first[0] = second[0] = 'x';
    assert_int_equal(trek_dataset_field_count(set), 2);
    assert_string_equal(trek_dataset_field_name(set, 0), "number");
    assert_int_equal(trek_dataset_field(set, "twice"), 1);
    FAILS(trek_dataset_set_fields(set, NULL, 1), TREK_ERR_ARGUMENT, "fields: none; must be at least one");
    FAILS(trek_dataset_set_fields(set, names, 0), TREK_ERR_ARGUMENT, "fields: none; must be at least one");
    FAILS(trek_dataset_set_fields(set, (const char *[]){ "a", "" }, 2), TREK_ERR_ARGUMENT, "field 1 has no name");
    FAILS(trek_dataset_set_fields(set, (const char *[]){ NULL }, 1), TREK_ERR_ARGUMENT, "field 0 has no name");
    FAILS(trek_dataset_set_fields(set, (const char *[]){ "a", "b", "a" }, 3), TREK_ERR_ARGUMENT, "\"a\" occurs twice");
    FAILS(trek_dataset_set_fields(NULL, names, 2), TREK_ERR_ARGUMENT, "dataset: NULL");
    assert_string_equal(trek_dataset_field_name(set, 1), "twice"); /* as they were */
    assert_int_equal(trek_dataset_set_fields(set, (const char *[]){ "index" }, 1), TREK_OK);
    assert_int_equal(trek_dataset_field_count(set), 1);
    trek_loader *loader = trek_loader_new(set, &(trek_loader_opts){ .batch_size = 5 });
    assert_int_equal(trek_loader_start(loader, 0), TREK_OK);
    trek_batch *batch = trek_loader_next(loader);
    assert_non_null(trek_batch_get(batch, "index"));
    REFUSED(trek_batch_get(batch, "value"), TREK_ERR_ARGUMENT, "index");
    trek_loader_free(&loader);
}

/* Rows of what it was told: index, epoch, seed, samples of the whole batch, the sum of their indices. */
enum { TOLD = 5 };

static trek_status told_get(trek_dataset *self, const trek_fetch *fetch, trek_tensor **out)
{
    int64_t values[64 * TOLD], sum = 0;
    for (int64_t i = 0; i < fetch->n_batch; i++)
        sum += fetch->batch[i];
    for (int64_t i = 0; i < fetch->n; i++) {
        const int64_t row[TOLD] = { fetch->indices[i], fetch->epoch, (int64_t)fetch->seed, fetch->n_batch, sum };
        memcpy(values + i * TOLD, row, sizeof(row));
    }
    out[0] = trek_tensor_from_data(values, trek_dims(fetch->n, TOLD), TREK_I64, trek_cpu(0));
    return out[0] ? TREK_OK : trek_error_status();
}

static int64_t told_length(const trek_dataset *self) { return (void)self, 40; }

/* Epoch and seed of the loader, wherever it was begun and through a subset; the whole batch if the class asks for it. */
static void datasets_hear_of_epoch_and_seed(void **state)
{
    for (int way = 0; way < 8; way++) {
        bool needs = way & 1, subset = way & 2;
        const trek_dataset_class told = { .name = "told", .size = sizeof(trek_dataset), .length = told_length, .get = told_get,
                                          .n_fields = 1, .fields = counting_fields, .needs_batch = needs };
        trek_dataset *set = trek_dataset_new(&told);
        set = subset ? trek_dataset_subset(trek_dataset_subset(set, 1, 39), 2, 10) : set;
        trek_loader *loader = trek_loader_new(set, &(trek_loader_opts){
            .batch_size = 4, .seed = 77, .shuffle = !subset, .prefetch = way & 4 ? 3 : TREK_ZERO });
        for (int64_t epoch = 0; epoch < 3; epoch++) {
            assert_int_equal(trek_loader_seek(loader, epoch, epoch), TREK_OK);
            for (trek_batch *batch; (batch = trek_loader_next(loader));) {
                const int64_t *row = trek_tensor_data(trek_var_data(trek_batch_get(batch, "value")));
                int64_t n = trek_batch_size(batch), sum = 0;
                for (int64_t i = 0; i < n; i++)
                    sum += trek_batch_indices(batch)[i] + (subset ? 3 : 0);
                for (int64_t i = 0; i < n; i++, row += TOLD) {
                    assert_int_equal(row[0], trek_batch_indices(batch)[i] + (subset ? 3 : 0));
                    assert_int_equal(row[1], epoch);
                    assert_int_equal(row[2], 77);
                    assert_int_equal(row[3], needs ? n : 0);
                    assert_int_equal(row[4], needs ? sum : 0);
                }
            }
        }
        trek_loader_free(&loader);
        expect_no_error();
    }
}

static void fetching_outside_of_a_loader(void **state)
{
    static const trek_dataset_class told = { .name = "told", .size = sizeof(trek_dataset), .length = told_length, .get = told_get,
                                             .n_fields = 1, .fields = counting_fields };
    trek_dataset *set = trek_dataset_new(&told);
    trek_tensor *out = NULL;
    int64_t index = 6, wrong = 40;
    assert_int_equal(trek_dataset_get(set, &index, 1, &out), TREK_OK);
    assert_int_equal(((int64_t *)trek_tensor_data(out))[1] | ((int64_t *)trek_tensor_data(out))[2], 0);
    trek_tensor_release(out);
    assert_int_equal(trek_dataset_fetch(set, &(trek_fetch){ &index, 1, 5, 9, &index, 1, 0 }, &out), TREK_OK);
    const int64_t expected[TOLD] = { 6, 5, 9, 1, 6 };
    assert_memory_equal(trek_tensor_data(out), expected, sizeof(expected));
    trek_tensor_release(out);
    FAILS(trek_dataset_fetch(set, &(trek_fetch){ .indices = &index, .n = 1, .epoch = -1 }, &out), TREK_ERR_ARGUMENT, "epoch: -1");
    FAILS(trek_dataset_fetch(set, &(trek_fetch){ &index, 1, 0, 9, &wrong, 1, 0 }, &out), TREK_ERR_ARGUMENT,
          "sample 40 does not exist; there are 40");
    FAILS(trek_dataset_fetch(set, NULL, &out), TREK_ERR_ARGUMENT, "indices");
    FAILS(trek_dataset_fetch(set, &(trek_fetch){ 0 }, &out), TREK_ERR_ARGUMENT, "indices");
    trek_dataset_free(&set);
}

/* -- the loader ------------------------------------------------------------------- */

static void loader_gives_every_sample(void **state)
{
    for (int way = 0; way < 24; way++) {
        int prefetch = way % 6 - 1;
        trek_loader *loader = trek_loader_new(&counting_new(103)->base, &(trek_loader_opts){
            .batch_size = 10, .shuffle = true, .seed = 5, .prefetch = prefetch < 0 ? TREK_ZERO : prefetch,
            .workers = prefetch < 0 ? 1 : way / 6 });
        expect_no_error();
        assert_int_equal(trek_loader_batches(loader), 11);
        float first[103], values[103];
        for (int epoch = 0; epoch < 3; epoch++) {
            bool seen[103] = { false };
            assert_int_equal(trek_loader_start(loader, epoch), TREK_OK);
            assert_int_equal(drain(loader, values, 0), 103);
            assert_null(trek_loader_next(loader));
            for (int i = 0; i < 103; i++) {
                assert_false(seen[(int)values[i]]);
                seen[(int)values[i]] = true;
            }
            if (epoch == 0)
                memcpy(first, values, sizeof(first));
            else
                assert_memory_not_equal(first, values, sizeof(first));
        }
        assert_int_equal(trek_loader_start(loader, 0), TREK_OK);
        assert_int_equal(drain(loader, values, 0), 103);
        assert_memory_equal(first, values, sizeof(first));
        expect_no_error();
        trek_loader_free(&loader);
        assert_null(loader);
    }
}

static void loader_drop_last(void **state)
{
    float values[64];
    trek_loader *loader = trek_loader_new(&counting_new(23)->base, &(trek_loader_opts){ .batch_size = 5, .drop_last = true });
    assert_int_equal(trek_loader_batches(loader), 4);
    assert_int_equal(trek_loader_samples(loader), 20);
    trek_loader_start(loader, 0);
    assert_int_equal(drain(loader, values, 0), 20);
    for (int i = 0; i < 20; i++)
        assert_true(values[i] == (float)i);
    trek_loader_free(&loader);
    loader = trek_loader_new(&counting_new(3)->base, &(trek_loader_opts){ .batch_size = 64 });
    trek_loader_start(loader, 0);
    assert_int_equal(trek_batch_size(trek_loader_next(loader)), 3);
    assert_null(trek_loader_next(loader));
    trek_loader_free(&loader);
    expect_no_error();
}

static void loader_refusals(void **state)
{
    atomic_int freed = 0;
    counting *set = counting_new(5);
    set->freed = &freed;
    REFUSED(trek_loader_new(&set->base, &(trek_loader_opts){ .batch_size = 6, .drop_last = true }), TREK_ERR_ARGUMENT,
            "no batch would remain");
    assert_int_equal(freed, 1); /* owned also on failure */
    REFUSED(trek_loader_new(&counting_new(5)->base, &(trek_loader_opts){ 0 }), TREK_ERR_ARGUMENT, ".batch_size: 0");
    REFUSED(trek_loader_new(&counting_new(5)->base, &(trek_loader_opts){ .batch_size = -4 }), TREK_ERR_ARGUMENT,
            ".batch_size: -4");
    REFUSED(trek_loader_new(&counting_new(5)->base, NULL), TREK_ERR_ARGUMENT, "batch_size");
    REFUSED(trek_loader_new(&counting_new(0)->base, &(trek_loader_opts){ .batch_size = 4 }), TREK_ERR_ARGUMENT, "no samples");
    REFUSED(trek_loader_new(&counting_new(5)->base, &(trek_loader_opts){
    .batch_size = 4, .shuffle = true, .sampler = trek_sampler_sequential(5) }), TREK_ERR_ARGUMENT, "sampler");
    assert_null(trek_loader_new(trek_dataset_mnist("/nowhere", TREK_DATA_SPLIT_TRAIN), &(trek_loader_opts){
        .batch_size = 4, .sampler = trek_sampler_sequential(5) }));
    assert_null(trek_loader_next(NULL));
    assert_int_not_equal(trek_loader_start(NULL, 0), TREK_OK);
    REFUSED(trek_batch_get(NULL, "image"), TREK_ERR_IO, "/nowhere"); /* the first error, not a later one */
    trek_loader *loader = trek_loader_new(&counting_new(5)->base, &(trek_loader_opts){ .batch_size = 2 });
    REFUSED(trek_loader_next(loader), TREK_ERR_STATE, "call trek_loader_start first");
    FAILS(trek_loader_start(loader, -1), TREK_ERR_ARGUMENT, "");
    FAILS(trek_loader_seek(loader, 0, 4), TREK_ERR_ARGUMENT, "batch: 4 does not exist");
    trek_loader_start(loader, 0);
    trek_batch *batch = trek_loader_next(loader);
    REFUSED(trek_batch_get(batch, "values"), TREK_ERR_ARGUMENT, "no field \"values\"; the fields are: value");
    trek_loader_free(&loader);
    trek_loader_free(&loader);
    trek_loader_free(NULL);
}

static void loader_stops_at_errors(void **state)
{
    for (int prefetch = -1; prefetch < 4; prefetch++) {
        counting *set = counting_new(20);
        set->fail_at = 9;
        trek_loader *loader = trek_loader_new(&set->base,
                                              &(trek_loader_opts){ .batch_size = 4,
                                                                   .prefetch = prefetch < 0 ? TREK_ZERO : prefetch });
        float values[32];
        trek_loader_start(loader, 0);
        assert_int_equal(drain(loader, values, 0), 8);
        assert_int_equal(trek_loader_start(loader, 1), TREK_ERR_CALLBACK); /* nothing goes on while it is set */
        REFUSED(trek_loader_next(loader), TREK_ERR_CALLBACK, "sample 9 is broken");
        trek_loader_start(loader, 2);
        assert_int_equal(value_of(trek_loader_next(loader), 0), 0);
        trek_fail(TREK_ERR_SHAPE, "the user's own");
        REFUSED(trek_loader_next(loader), TREK_ERR_SHAPE, "the user's own");
        trek_loader_free(&loader); /* with an untaken failure in the ring */
        expect_no_error();
    }
}

static void loader_cancels_in_the_middle(void **state)
{
    for (int prefetch = -1; prefetch < 4; prefetch++) {
        counting *set = counting_new(64);
        set->delay_us = 300;
        trek_loader *loader = trek_loader_new(&set->base, &(trek_loader_opts){
            .batch_size = 4, .shuffle = true, .prefetch = prefetch < 0 ? TREK_ZERO : prefetch });
        float whole[64], values[64];
        trek_loader_start(loader, 3);
        assert_int_equal(drain(loader, whole, 0), 64);
        for (int round = 0; round < 20; round++) {
            trek_loader_start(loader, round);
            for (int k = 0; k < round % 5; k++)
                assert_non_null(trek_loader_next(loader));
        }
        trek_loader_start(loader, 3);
        assert_int_equal(drain(loader, values, 0), 64);
        assert_memory_equal(whole, values, sizeof(whole));
        trek_loader_start(loader, 4);
        trek_loader_next(loader);
        trek_loader_free(&loader);
        expect_no_error();
    }
}

static void loader_resumes(void **state)
{
    trek_loader_opts opts = { .batch_size = 8, .shuffle = true, .seed = 11 };
    trek_loader *a = trek_loader_new(&counting_new(50)->base, &opts), *b = trek_loader_new(&counting_new(50)->base, &opts);
    float whole[50], rest[50];
    trek_loader_start(a, 6);
    assert_int_equal(drain(a, whole, 0), 50);
    trek_loader_start(a, 6);
    for (int k = 0; k < 3; k++)
        trek_loader_next(a);
    int64_t epoch = -1, batch = -1;
    trek_loader_position(a, &epoch, &batch);
    assert_int_equal(epoch, 6);
    assert_int_equal(batch, 3);
    trek_loader_free(&a);
    trek_loader_seek(b, epoch, batch);
    assert_int_equal(drain(b, rest, 0), 26);
    assert_memory_equal(rest, whole + 24, 26 * sizeof(float));
    trek_loader_seek(b, 6, 7);
    assert_null(trek_loader_next(b));
    trek_loader_free(&b);
    expect_no_error();
}

static void loader_fetches_ahead(void **state)
{
    counting *set = counting_new(40);
    trek_loader *loader = trek_loader_new(trek_dataset_retain(&set->base), &(trek_loader_opts){ .batch_size = 4, .prefetch = 3 });
    trek_loader_start(loader, 0);
    for (double since = 0; atomic_load(&set->calls) < 3 && test_wait(&since);)
        continue;
    usleep(20000);
    assert_int_equal(atomic_load(&set->calls), 3); /* no more than asked for */
    trek_batch *batch = trek_loader_next(loader);
    assert_int_equal(trek_batch_indices(batch)[1], 1);
    for (double since = 0; atomic_load(&set->calls) < 4 && test_wait(&since);)
        continue;
    assert_int_equal(atomic_load(&set->calls), 4);
    trek_loader_free(&loader);
    trek_dataset *rest = &set->base;
    trek_dataset_free(&rest);
}

static int64_t reversed_length(const trek_sampler *self)
{
    return 6;
}

static trek_status reversed_at(const trek_sampler *self, int64_t epoch, int64_t first, int64_t count, int64_t *indices)
{
    for (int64_t i = 0; i < count; i++)
        indices[i] = epoch == 9 ? 1000 : 5 - (first + i);
    return TREK_OK;
}

static void loader_takes_a_sampler_of_ones_own(void **state)
{
    static const trek_sampler_class reversed = { .name = "reversed", .size = sizeof(trek_sampler), .length = reversed_length,
                                                 .at = reversed_at };
    trek_loader *loader = trek_loader_new(&counting_new(50)->base, &(trek_loader_opts){
        .batch_size = 4, .sampler = trek_sampler_new(&reversed) });
    float values[16];
    trek_loader_start(loader, 0);
    assert_int_equal(drain(loader, values, 0), 6);
    for (int i = 0; i < 6; i++)
        assert_true(values[i] == (float)(5 - i));
    trek_loader_start(loader, 9);
    REFUSED(trek_loader_next(loader), TREK_ERR_ARGUMENT, "sample 1000 does not exist; there are 50");
    trek_loader_free(&loader);
}

/* -- scopes ------------------------------------------------------------------------ */

static void ops_need_no_scope_in_a_loop(void **state)
{
    trek_loader *loader = trek_loader_new(&counting_new(12)->base, &(trek_loader_opts){ .batch_size = 4 });
    trek_loader_start(loader, 0);
    double sum = 0;
    trek_var *kept = NULL, *field = NULL;
    for (trek_batch *batch; (batch = trek_loader_next(loader));) {
        trek_var *twice = trek_mul_scalar(trek_batch_get(batch, "value"), 2);
        expect_no_error();
        for (int i = 0; i < 4; i++)
            sum += ((float *)trek_tensor_data(trek_var_data(twice)))[i];
        if (!kept) {
            kept = trek_var_retain(twice);
            field = trek_var_retain(trek_batch_get(batch, "value"));
        }
    }
    assert_true(sum == 132);
    assert_true(((float *)trek_tensor_data(trek_var_data(kept)))[3] == 6);
    assert_true(((float *)trek_tensor_data(trek_var_data(field)))[3] == 3);
    assert_null(trek_mul_scalar(kept, 2)); /* the epoch has ended, and with it the scope */
    expect_error(TREK_ERR_SCOPE, "scope");
    trek_var_release(kept);
    trek_var_release(field);
    trek_loader_start(loader, 1);
    trek_loader_next(loader);
    trek_loader_free(&loader); /* ends the batch, too */
    trek_tensor *one = trek_tensor_from_data(&(float){ 1 }, trek_dims(1), TREK_F32, trek_cpu(0));
    trek_var *var = trek_var_new(one, false);
    REFUSED(trek_mul_scalar(var, 2), TREK_ERR_SCOPE, "scope");
    trek_var_release(var);
    trek_tensor_release(one);
}

/* An evaluation inside a training loop: the training batch and what was made of it stay. */
static void loaders_nest(void **state)
{
    trek_loader *train = trek_loader_new(&counting_new(12)->base, &(trek_loader_opts){ .batch_size = 4 });
    trek_loader *test = trek_loader_new(&counting_new(6)->base, &(trek_loader_opts){ .batch_size = 2 });
    int batches = 0;
    for (int epoch = 0; epoch < 2; epoch++) {
        trek_loader_start(train, epoch);
        for (trek_batch *batch; (batch = trek_loader_next(train));) {
            trek_var *made = trek_add_scalar(trek_batch_get(batch, "value"), 1);
            trek_loader_start(test, 0);
            for (trek_batch *inner; (inner = trek_loader_next(test)); batches++) {
                trek_var *both = trek_add(made, trek_sum(trek_batch_get(inner, "value"), trek_dims_all(), false));
                expect_no_error();
                assert_non_null(both);
            }
            assert_true(value_of(batch, 0) + 1 == ((float *)trek_tensor_data(trek_var_data(made)))[0]);
        }
        trek_loader_start(test, 0); /* and between epochs: now it is the outermost */
        while (trek_loader_next(test))
            expect_no_error();
    }
    assert_int_equal(batches, 18);
    expect_no_error();
    trek_loader_free(&train);
    trek_loader_free(&test);
}

/* Two loaders side by side, as adversarial training has them. */
static void loaders_interleave(void **state)
{
    trek_loader *a = trek_loader_new(&counting_new(12)->base, &(trek_loader_opts){ .batch_size = 2 });
    trek_loader *b = trek_loader_new(&counting_new(40)->base, &(trek_loader_opts){ .batch_size = 2 });
    trek_loader_start(a, 0);
    trek_loader_start(b, 0);
    int seen = 0;
    for (trek_batch *x; (x = trek_loader_next(a)); seen++) {
        trek_batch *y = trek_loader_next(b);
        trek_var *first = trek_add(trek_batch_get(x, "value"), trek_batch_get(y, "value"));
        y = trek_loader_next(b);
        trek_var *second = trek_add(first, trek_batch_get(y, "value"));
        expect_no_error();
        assert_true(((float *)trek_tensor_data(trek_var_data(second)))[0] == (float)(2 * seen + 4 * seen + 4 * seen + 2));
    }
    assert_int_equal(seen, 6);
    assert_non_null(trek_loader_next(b)); /* a is over: b's batches have the scope now */
    trek_batch *y = trek_loader_next(b);
    assert_non_null(trek_neg(trek_batch_get(y, "value")));
    trek_loader_free(&a);
    trek_loader_free(&b);
    expect_no_error();
}

static void outer_scopes_may_end_early(void **state)
{
    trek_loader *loader = trek_loader_new(&counting_new(12)->base, &(trek_loader_opts){ .batch_size = 4 });
    trek_scope outer = trek_scope_begin();
    trek_loader_start(loader, 0);
    trek_batch *batch = trek_loader_next(loader);
    assert_int_equal(trek_scope_end(outer), TREK_OK);
    assert_true(value_of(batch, 1) == 1); /* the batch is the loader's */
    outer = trek_scope_begin();
    batch = trek_loader_next(loader);
    assert_non_null(trek_neg(trek_batch_get(batch, "value")));
    trek_scope inner = trek_scope_begin(); /* left open: ends with the batch */
    (void)inner;
    assert_non_null(trek_loader_next(loader));
    assert_null(trek_loader_next(loader));
    expect_no_error();
    assert_int_equal(trek_scope_end(outer), TREK_OK);
    trek_loader_free(&loader);
    expect_no_error();
}

/* -- several workers --------------------------------------------------------------- */

/* The sample's number is in the batch; who fetches waits until `together` are at it, for seconds at most. */
typedef struct meeting {
    trek_dataset base;
    int together;
    atomic_int inside, most;
} meeting;

static int64_t meeting_length(const trek_dataset *self) { return (void)self, 60; }

static trek_status meeting_get(trek_dataset *self, const trek_fetch *fetch, trek_tensor **out)
{
    meeting *set = (meeting *)self;
    int inside = atomic_fetch_add(&set->inside, 1) + 1, most = atomic_load(&set->most);
    while (inside > most && !atomic_compare_exchange_weak(&set->most, &most, inside))
        continue;
    for (double since = 0; atomic_load(&set->most) < set->together && test_wait(&since);)
        continue;
    atomic_fetch_sub(&set->inside, 1);
    out[0] = trek_tensor_from_data(fetch->indices, trek_dims(fetch->n), TREK_I64, trek_cpu(0));
    return out[0] ? TREK_OK : trek_error_status();
}

static const trek_dataset_class meeting_class = {
    .name = "meeting", .size = sizeof(meeting), .length = meeting_length, .get = meeting_get,
    .n_fields = 1, .fields = counting_fields,
};

static void workers_fetch_at_the_same_time(void **state)
{
    meeting *set = (meeting *)trek_dataset_new(&meeting_class);
    set->together = 3;
    trek_loader *loader = trek_loader_new(&set->base, &(trek_loader_opts){ .batch_size = 4, .prefetch = 1, .workers = 3 });
    trek_loader_start(loader, 0);
    int64_t next = 0;
    for (trek_batch *batch; (batch = trek_loader_next(loader));)
        for (int64_t i = 0; i < trek_batch_size(batch); i++)
            assert_int_equal(((int64_t *)trek_tensor_data(trek_var_data(trek_batch_get(batch, "value"))))[i], next++);
    assert_int_equal(next, 60);
    assert_int_equal(atomic_load(&set->most), 3); /* all three, and no more */
    trek_loader_free(&loader);
    expect_no_error();
}

/* Failures come with their batch, after all before it; the loader can be begun anew, and left at any time. */
static void failures_of_workers_keep_their_place(void **state)
{
    for (int workers = 1; workers < 5; workers++)
        for (int fail_at = 0; fail_at < 40; fail_at += 7) {
            counting *set = counting_new(40);
            set->fail_at = fail_at;
            set->delay_us = fail_at % 3 * 100;
            trek_loader *loader = trek_loader_new(&set->base, &(trek_loader_opts){ .batch_size = 2, .workers = workers });
            float values[40];
            for (int again = 0; again < 2; again++) {
                assert_int_equal(trek_loader_start(loader, again), TREK_OK);
                assert_int_equal(drain(loader, values, 0), fail_at / 2 * 2);
                expect_error(TREK_ERR_CALLBACK, "is broken");
            }
            assert_int_equal(trek_loader_seek(loader, 3, fail_at / 2 + 1), TREK_OK);
            int rest = drain(loader, values, 0);
            assert_int_equal(rest, 40 - (fail_at / 2 + 1) * 2);
            for (int i = 0; i < rest; i++)
                assert_true(values[i] == (float)(40 - rest + i));
            assert_int_equal(trek_loader_seek(loader, 4, 0), TREK_OK);
            trek_loader_free(&loader);
            expect_no_error();
        }
}

/* A bounded number of batches ahead, however slow the program. */
static void workers_stop_when_the_ring_is_full(void **state)
{
    counting *set = counting_new(400);
    trek_loader *loader = trek_loader_new(&set->base, &(trek_loader_opts){ .batch_size = 1, .prefetch = 2, .workers = 4 });
    trek_loader_start(loader, 0);
    assert_non_null(trek_loader_next(loader));
    for (double since = 0; atomic_load(&set->calls) < 9 && test_wait(&since);)
        continue;
    usleep(20000);
    assert_int_equal(atomic_load(&set->calls), 9); /* the one given, and 2 * 4 */
    trek_loader_free(&loader);
    REFUSED(trek_loader_new(&counting_new(9)->base, &(trek_loader_opts){ .batch_size = 1, .workers = -1 }), TREK_ERR_ARGUMENT,
            ".workers: -1");
    REFUSED(trek_loader_new(&counting_new(9)->base, &(trek_loader_opts){ .batch_size = 1, .workers = 2, .prefetch = TREK_ZERO }),
            TREK_ERR_ARGUMENT, ".workers: 2");
}

/* -- threads, processes ------------------------------------------------------------ */

static void *run_epochs(void *arg)
{
    trek_loader *loader = trek_loader_new(arg, &(trek_loader_opts){ .batch_size = 16, .shuffle = true });
    static _Thread_local float values[300];
    intptr_t total = 0;
    for (int epoch = 0; epoch < 5; epoch++) {
        trek_loader_start(loader, epoch);
        total += drain(loader, values, 0);
    }
    trek_loader_free(&loader);
    return (void *)total;
}

static void threads_share_a_dataset(void **state)
{
    trek_dataset *set = &counting_new(300)->base;
    pthread_t threads[3];
    for (int k = 0; k < 3; k++)
        assert_int_equal(pthread_create(&threads[k], NULL, run_epochs, trek_dataset_retain(set)), 0);
    for (int k = 0; k < 3; k++) {
        void *total = NULL;
        pthread_join(threads[k], &total);
        assert_int_equal((intptr_t)total, 1500);
    }
    trek_dataset_free(&set);
}

static void children_of_a_fork_get_an_error(void **state)
{
    trek_loader *loader = trek_loader_new(&counting_new(12)->base, &(trek_loader_opts){ .batch_size = 4 });
    trek_loader_start(loader, 0);
    assert_non_null(trek_loader_next(loader));
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        bool refused = !trek_loader_next(loader) && trek_error_status() == TREK_ERR_STATE;
        trek_error_clear();
        refused = refused && trek_loader_start(loader, 1) == TREK_ERR_STATE;
        trek_loader_free(&loader); /* returns, although the thread is not here */
        _exit(refused && !loader ? 0 : 1);
    }
    int result = -1;
    waitpid(child, &result, 0);
    assert_true(WIFEXITED(result) && WEXITSTATUS(result) == 0);
    assert_non_null(trek_loader_next(loader)); /* the parent goes on */
    trek_loader_free(&loader);
    expect_no_error();
}

/* A failed test leaves its error; the next begins without. */
int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(every_sample_exactly_once, clear_error), cmocka_unit_test_setup(the_shuffle_is_even, clear_error),
        cmocka_unit_test_setup(sampler_refusals, clear_error), cmocka_unit_test_setup(sampler_lengths, clear_error),
        cmocka_unit_test_setup(fields_of_an_object, clear_error),
        cmocka_unit_test_setup(datasets_hear_of_epoch_and_seed, clear_error),
        cmocka_unit_test_setup(fetching_outside_of_a_loader, clear_error),
        cmocka_unit_test_setup(loader_gives_every_sample, clear_error), cmocka_unit_test_setup(loader_drop_last, clear_error),
        cmocka_unit_test_setup(loader_refusals, clear_error), cmocka_unit_test_setup(loader_stops_at_errors, clear_error),
        cmocka_unit_test_setup(loader_cancels_in_the_middle, clear_error), cmocka_unit_test_setup(loader_resumes, clear_error),
        cmocka_unit_test_setup(loader_fetches_ahead, clear_error),
        cmocka_unit_test_setup(loader_takes_a_sampler_of_ones_own, clear_error),
        cmocka_unit_test_setup(ops_need_no_scope_in_a_loop, clear_error), cmocka_unit_test_setup(loaders_nest, clear_error),
        cmocka_unit_test_setup(loaders_interleave, clear_error), cmocka_unit_test_setup(outer_scopes_may_end_early, clear_error),
        cmocka_unit_test_setup(workers_fetch_at_the_same_time, clear_error),
        cmocka_unit_test_setup(failures_of_workers_keep_their_place, clear_error),
        cmocka_unit_test_setup(workers_stop_when_the_ring_is_full, clear_error),
        cmocka_unit_test_setup(threads_share_a_dataset, clear_error),
        cmocka_unit_test_setup(children_of_a_fork_get_an_error, clear_error),
    };
    return cmocka_run_group_tests_name("loader", tests, NULL, NULL);
}
