/* SPDX-License-Identifier: Apache-2.0 */
/* Datasets made of others: lists, splits, rows of several, fields, functions, caches; alone, in one another, from any number
 * of threads. */
#include <stdatomic.h>

#include "data/compose.h"
#include "data/dataset_class.h"
#include "data/loader_position.h"
#include "data/text_sets.h"
#include "data/told.h"
#include "tensor/creation.h"
#include "tests/support/unit.h"

enum { SEED = 11, EPOCH = 3 };

/* Sample i of the dataset is sample expected[i] of the told one it is made of. */
static void expect_samples(trek_dataset *set, const int64_t *expected, int64_t n)
{
    assert_non_null(set);
    assert_int_equal(trek_dataset_length(set), n);
    for (int64_t i = 0; i < n; i++) {
        trek_tensor *out[2];
        int64_t some[3] = { i, n - 1 - i, i };
        assert_int_equal(trek_dataset_fetch(set, &(trek_fetch){ .indices = some, .n = 3, .epoch = EPOCH, .seed = SEED }, out),
                         TREK_OK);
        for (int j = 0; j < 3; j++) {
            assert_int_equal(((int64_t *)trek_tensor_data(out[0]))[j], expected[some[j]]);
            assert_true(((int64_t *)trek_tensor_data(out[1]))[j] == told_draw(SEED, EPOCH, expected[some[j]]));
        }
        trek_tensor_release(out[0]);
        trek_tensor_release(out[1]);
    }
}

static void lists(void **state)
{
    int64_t list[] = { 7, 0, 7, 3, 9 };
    const int64_t expected[] = { 7, 0, 7, 3, 9 };
    trek_dataset *set = trek_dataset_indices(told_new(10), list, 5);
    list[0] = 1; /* it has a copy */
    expect_samples(set, expected, 5);
    trek_dataset *part = trek_dataset_indices(trek_dataset_subset(trek_dataset_retain(set), 2, 3), (int64_t[]){ 2, 0 }, 2);
    expect_samples(part, (int64_t[]){ 9, 7 }, 2);
    trek_dataset_free(&set);
    trek_dataset_free(&part);
    part = trek_dataset_indices(told_new(4), NULL, 0);
    assert_int_equal(trek_dataset_length(part), 0);
    trek_dataset_free(&part);
    expect_no_error();
    REFUSED(trek_dataset_indices(told_new(4), list, -1), TREK_ERR_ARGUMENT, "-1 indices");
    REFUSED(trek_dataset_indices(told_new(4), NULL, 2), TREK_ERR_ARGUMENT, "no list");
    REFUSED(trek_dataset_indices(told_new(4), (int64_t[]){ 3, 4 }, 2), TREK_ERR_ARGUMENT, "sample 4 does not exist; there are 4");
    REFUSED(trek_dataset_indices(NULL, list, 2), TREK_ERR_ARGUMENT, "dataset: NULL");
    assert_int_equal(told_alive(), 0);
}

/* Parts are disjoint, all of it, of the sizes that PyTorch's random_split gives, and another order with another seed. */
static void splits(void **state)
{
    static const struct {
        int64_t length;
        int n;
        double sizes[4];
        int64_t counts[4];
    } cases[] = {
        { 10, 2, { 7, 3 }, { 7, 3 } },
        { 10, 2, { .7, .3 }, { 7, 3 } },
        { 11, 3, { 1 / 3., 1 / 3., 1 / 3. }, { 4, 4, 3 } },
        { 103, 4, { .5, .25, .125, .125 }, { 52, 26, 13, 12 } },
        { 1, 1, { 1 }, { 1 } },
        { 5, 3, { 0, 5, 0 }, { 0, 5, 0 } },
        { 5, 1, { 1 }, { 5 } },
    };
    for (size_t k = 0; k < sizeof(cases) / sizeof(cases[0]); k++) {
        int64_t orders[2][103];
        for (int seed = 0; seed < 2; seed++) {
            trek_dataset *parts[4], *whole = told_new(cases[k].length);
            assert_int_equal(trek_dataset_split(whole, cases[k].sizes, cases[k].n, (uint64_t)seed, parts), TREK_OK);
            bool seen[103] = { false };
            int64_t at = 0;
            for (int p = 0; p < cases[k].n; p++) {
                assert_int_equal(trek_dataset_length(parts[p]), cases[k].counts[p]);
                for (int64_t i = 0; i < cases[k].counts[p]; i++) {
                    trek_tensor *out[2];
                    assert_int_equal(trek_dataset_get(parts[p], &i, 1, out), TREK_OK);
                    int64_t sample = *(int64_t *)trek_tensor_data(out[0]);
                    assert_false(seen[sample]);
                    seen[sample] = true;
                    orders[seed][at++] = sample;
                    trek_tensor_release(out[0]);
                    trek_tensor_release(out[1]);
                }
                trek_dataset_free(&parts[p]);
            }
            assert_int_equal(at, cases[k].length);
        }
        if (cases[k].length > 20)
            assert_memory_not_equal(orders[0], orders[1], sizeof(orders[0]));
    }
    assert_int_equal(told_alive(), 0);
    trek_dataset *parts[2] = { (trek_dataset *)&cases, (trek_dataset *)&cases };
    static const double wrong[][2] = { { 4, 5 }, { .5, .4 }, { -1, 11 }, { 2.5, 7.5 } };
    for (int k = 0; k < 4; k++) {
        FAILS(trek_dataset_split(told_new(10), wrong[k], 2, 0, parts), TREK_ERR_ARGUMENT, "dataset_split");
        assert_true(!parts[0] && !parts[1]);
    }
    FAILS(trek_dataset_split(told_new(10), NULL, 2, 0, parts), TREK_ERR_ARGUMENT, "sizes");
    FAILS(trek_dataset_split(NULL, wrong[0], 2, 0, parts), TREK_ERR_ARGUMENT, "dataset: NULL");
    assert_int_equal(told_alive(), 0);
}

static void one_after_another(void **state)
{
    trek_dataset *sets[] = { told_new(3), trek_dataset_subset(told_new(9), 4, 0), trek_dataset_subset(told_new(9), 4, 2),
                             told_new(1) };
    trek_dataset *set = trek_dataset_concat(sets, 4);
    expect_samples(set, (int64_t[]){ 0, 1, 2, 4, 5, 0 }, 6);
    trek_dataset_free(&set);
    assert_int_equal(told_alive(), 0);
    trek_dataset *twice = told_new(2);
    set = trek_dataset_concat((trek_dataset *[]){ twice, trek_dataset_retain(twice) }, 2);
    expect_samples(set, (int64_t[]){ 0, 1, 0, 1 }, 4);
    trek_dataset_free(&set);

    REFUSED(trek_dataset_concat(NULL, 2), TREK_ERR_ARGUMENT, "datasets");
    REFUSED(trek_dataset_concat((trek_dataset *[]){ told_new(2), trek_dataset_digits(2, 0) }, 2), TREK_ERR_ARGUMENT,
            "dataset 1: the fields of digits");
    REFUSED(trek_dataset_concat((trek_dataset *[]){ told_new(2), NULL, told_new(3) }, 3), TREK_ERR_ARGUMENT, "dataset: NULL");
    trek_tensor *narrow = trek_tensor_zeros(trek_dims(2, 3), TREK_F32, trek_cpu(0));
    trek_tensor *wide = trek_tensor_zeros(trek_dims(2, 4), TREK_F32, trek_cpu(0));
    const char *const x[] = { "x" };
    set = trek_dataset_concat((trek_dataset *[]){ trek_dataset_tensors(x, &narrow, 1), trek_dataset_tensors(x, &wide, 1) }, 2);
    trek_tensor *out;
    FAILS(trek_dataset_get(set, (int64_t[]){ 0, 3 }, 2, &out), TREK_ERR_SHAPE, "samples of \"x\" differ: [3] f32 and [4] f32");
    assert_null(out);
    assert_int_equal(trek_dataset_get(set, (int64_t[]){ 2, 3 }, 2, &out), TREK_OK); /* of one kind */
    trek_tensor_release(out);
    trek_dataset_free(&set);
    trek_tensor_release(narrow);
    trek_tensor_release(wide);
    assert_int_equal(told_alive(), 0);
}

static void some_fields(void **state)
{
    trek_dataset *set = trek_dataset_select(told_new(4), (const char *[]){ "draw", "index" }, (const char *[]){ "y", "x" }, 2);
    assert_string_equal(trek_dataset_field_name(set, 0), "y");
    trek_tensor *out[2];
    assert_int_equal(trek_dataset_get(set, (int64_t[]){ 2 }, 1, out), TREK_OK);
    assert_int_equal(*(int64_t *)trek_tensor_data(out[1]), 2);
    assert_true(*(int64_t *)trek_tensor_data(out[0]) == told_draw(0, 0, 2));
    trek_tensor_release(out[0]);
    trek_tensor_release(out[1]);
    trek_dataset_free(&set);
    set = trek_dataset_select(told_new(4), (const char *[]){ "draw" }, NULL, 1);
    assert_int_equal(trek_dataset_field_count(set), 1);
    assert_int_equal(trek_dataset_field(set, "draw"), 0);
    trek_dataset_free(&set);
    REFUSED(trek_dataset_select(told_new(4), (const char *[]){ "drawn" }, NULL, 1), TREK_ERR_ARGUMENT, "no field \"drawn\"");
    REFUSED(trek_dataset_select(told_new(4), (const char *[]){ "draw", "draw" }, NULL, 2), TREK_ERR_ARGUMENT, "occurs twice");
    REFUSED(trek_dataset_select(told_new(4), NULL, NULL, 0), TREK_ERR_ARGUMENT, "no fields");
    assert_int_equal(told_alive(), 0);
}

/* "index" as it was, "draw" minus what it ought to be, plus the number of samples of the call. */
static trek_status checked(const trek_fetch *of, trek_tensor *const *in, trek_tensor **out, void *arg)
{
    out[0] = trek_tensor_retain(in[0]);
    out[1] = trek_tensor_empty(trek_dims(of->n, 1), TREK_F32, trek_cpu(0));
    for (int64_t i = 0; i < of->n; i++) {
        int64_t index = ((const int64_t *)trek_tensor_data(in[0]))[i], draw = ((const int64_t *)trek_tensor_data(in[1]))[i];
        if (index == 8)
            return trek_fail(TREK_ERR_CALLBACK, "eight");
        ((float *)trek_tensor_data(out[1]))[i] =
            (float)(draw - told_draw(of->seed, of->epoch, of->indices[i] + *(int *)arg) + of->n);
    }
    return TREK_OK;
}

static atomic_int ended;
static void end(void *arg) { (void)arg, atomic_fetch_add(&ended, 1); }

static trek_status makes_nothing(const trek_fetch *of, trek_tensor *const *in, trek_tensor **out, void *arg)
{
    out[0] = *(int *)arg ? trek_tensor_zeros(trek_dims(of->n + 1), TREK_F32, trek_cpu(0)) : NULL;
    return (void)in, TREK_OK;
}

static void functions(void **state)
{
    int shift = 2, none = 0;
    const char *const names[] = { "number", "rest" };
    for (int one = 0; one < 2; one++) {
        trek_dataset_map_opts opts = { .fields = names, .n_fields = 2, .one_by_one = one, .arg = &shift, .free_arg = end };
        trek_dataset *set = trek_dataset_map(trek_dataset_subset(told_new(9), 2, 7), checked, &opts);
        trek_loader *loader = trek_loader_new(set, &(trek_loader_opts){ .batch_size = 3, .seed = SEED, .workers = 2 });
        for (int epoch = 0; epoch < 3; epoch++) {
            assert_int_equal(trek_loader_start(loader, epoch), TREK_OK);
            int batches = 0;
            for (trek_batch *batch; (batch = trek_loader_next(loader)); batches++)
                for (int64_t i = 0; i < trek_batch_size(batch); i++) {
                    assert_int_equal(numbers(batch, "number")[i], trek_batch_indices(batch)[i] + 2);
                    assert_true(((const float *)numbers(batch, "rest"))[i] == (one ? 1 : 3));
                }
            assert_int_equal(batches, 2); /* the third has sample 8 */
            expect_error(TREK_ERR_CALLBACK, "eight");
        }
        trek_loader_free(&loader);
        assert_int_equal(ended, one + 1);
    }
    trek_dataset_map_opts opts = { .fields = names, .n_fields = 1, .arg = &none };
    for (none = 0; none < 2; none++) {
        trek_dataset *set = trek_dataset_map(told_new(9), makes_nothing, &opts);
        trek_tensor *out[2];
        assert_int_not_equal(trek_dataset_get(set, (int64_t[]){ 1 }, 1, out), TREK_OK);
        expect_error(none ? TREK_ERR_SHAPE : TREK_ERR_CALLBACK, none ? "of shape [2] for 1 samples" : "no tensor for \"number\"");
        trek_dataset_free(&set);
    }
    opts.free_arg = end;
    REFUSED(trek_dataset_map(NULL, checked, &opts), TREK_ERR_ARGUMENT, "dataset: NULL");
    REFUSED(trek_dataset_map(told_new(3), NULL, &opts), TREK_ERR_ARGUMENT, "function: NULL");
    assert_int_equal(ended, 4);
    trek_dataset *set = trek_dataset_map(told_new(8), checked, &(trek_dataset_map_opts){ .arg = &(int){ 0 } });
        /* fields as before */
    assert_string_equal(trek_dataset_field_name(set, 1), "draw");
    trek_dataset_free(&set);
    assert_int_equal(told_alive(), 0);
}

/* The first use keeps; room for some; many threads; the first epoch's numbers stay. */
static void caches(void **state)
{
    for (int room = 0; room < 3; room++)
        for (int workers = 1; workers < 5; workers += 3) {
            int64_t samples, bytes, limit = room == 2 ? INT64_MAX : room * 10 * 16 + 5;
            trek_dataset *inner = told_new(50), *set = trek_dataset_cache(trek_dataset_retain(inner), limit);
            trek_loader *loader = trek_loader_new(trek_dataset_retain(set), &(trek_loader_opts){
                .batch_size = 4, .shuffle = true, .seed = SEED, .workers = workers });
            for (int epoch = 0; epoch < 4; epoch++) {
                bool seen[50] = { false };
                int64_t kept_before = told_samples(inner);
                trek_loader_start(loader, epoch);
                for (trek_batch *batch; (batch = trek_loader_next(loader));)
                    for (int64_t i = 0; i < trek_batch_size(batch); i++) {
                        int64_t index = numbers(batch, "index")[i];
                        assert_int_equal(index, trek_batch_indices(batch)[i]);
                        seen[index] = true;
                        assert_true(numbers(batch, "draw")[i] == told_draw(SEED, epoch, index) ||
                                    (room && numbers(batch, "draw")[i] == told_draw(SEED, 0, index)));
                    }
                for (int k = 0; k < 50; k++)
                    assert_true(seen[k]);
                expect_no_error();
                if (epoch > 0)
                    assert_int_equal(told_samples(inner) - kept_before, room == 2 ? 0 : room ? 40 : 50);
            }
            assert_int_equal(trek_dataset_cached(set, &samples, &bytes), TREK_OK);
            assert_int_equal(samples, room == 2 ? 50 : room * 10);
            assert_int_equal(bytes, samples * 16);
            trek_loader_free(&loader);
            trek_dataset_free(&set);
            trek_dataset_free(&inner);
        }
    REFUSED(trek_dataset_cache(told_new(2), -1), TREK_ERR_ARGUMENT, "bytes: -1");
    trek_dataset *plain = told_new(2);
    FAILS(trek_dataset_cached(plain, NULL, NULL), TREK_ERR_ARGUMENT, "told is not a cache");
    FAILS(trek_dataset_cached(NULL, NULL, NULL), TREK_ERR_ARGUMENT, "dataset: NULL");
    trek_dataset_free(&plain);
    assert_int_equal(told_alive(), 0);
}

/* A failure below leaves nothing behind, and what was kept before stays right. */
static void failures_below(void **state)
{
    trek_dataset *inner = told_new(6), *parts[2];
    trek_dataset *cache = trek_dataset_cache(trek_dataset_retain(inner), 1 << 20);
    trek_dataset *set = trek_dataset_concat((trek_dataset *[]){ cache, told_new(3) }, 2);
    assert_int_equal(trek_dataset_split(set, (double[]){ 4, 5 }, 2, 1, parts), TREK_OK);
    for (int round = 0; round < 2; round++)
        for (int k = 0; k < 2; k++) {
            trek_tensor *out[2] = { NULL, NULL };
            told_fail_at(inner, round ? -1 : 2);
            trek_status status = trek_dataset_get(parts[k], (int64_t[]){ 0, 1, 2, 3 }, 4, out);
            if (status != TREK_OK)
                expect_error(TREK_ERR_CALLBACK, "sample 2 is broken");
            assert_true((status == TREK_OK) == (out[0] != NULL && out[1] != NULL));
            assert_true(status == TREK_OK || round == 0);
            trek_tensor_release(out[0]);
            trek_tensor_release(out[1]);
        }
    trek_dataset_free(&parts[0]);
    trek_dataset_free(&parts[1]);
    trek_dataset_free(&inner);
    assert_int_equal(told_alive(), 0);
}

static void vocabulary_through_others(void **state)
{
    char path[] = "/tmp/trek-compose-XXXXXX";
    int file = mkstemp(path), size = 0;
    assert_true(file >= 0);
    FILE *text = fdopen(file, "w");
    fputs("abracadabra", text);
    fclose(text);
    trek_dataset *set = trek_dataset_cache(trek_dataset_indices(trek_dataset_text_windows(path, 2, NULL), (int64_t[]){ 1 }, 1),
                                           99);
    assert_memory_equal(trek_text_vocabulary(set, &size), "abcdr", 5);
    assert_int_equal(size, 5);
    trek_dataset_free(&set);
    remove(path);
    expect_no_error();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(lists, clear_error), cmocka_unit_test_setup(splits, clear_error),
        cmocka_unit_test_setup(one_after_another, clear_error), cmocka_unit_test_setup(some_fields, clear_error),
        cmocka_unit_test_setup(functions, clear_error), cmocka_unit_test_setup(caches, clear_error),
        cmocka_unit_test_setup(failures_below, clear_error), cmocka_unit_test_setup(vocabulary_through_others, clear_error),
    };
    return cmocka_run_group_tests_name("compose", tests, NULL, NULL);
}
