/* SPDX-License-Identifier: Apache-2.0 */
/* Transforms: what a chain draws, and that it draws it whoever asks; what each does to pixels stands in
 * tests/checks/check_images.py, beside Pillow and torchvision. */
#include <pthread.h>

#include "data/loader_internal.h"
#include "data/loader_position.h"
#include "data/stream.h"
#include "data/transform.h"
#include "tensor/creation.h"
#include "tensor/layout.h"
#include "tensor/shapes.h"
#include "tests/support/scoped.h"

enum { N = 24, C = 3, H = 13, W = 17, OUT = 8 };

/* n images whose byte at (c, y, x) of image i is a hash of all, and their labels i % 5. */
static trek_dataset *pictures(int n, int channels, int height, int width)
{
    trek_tensor *images = trek_tensor_empty(trek_dims(n, channels, height, width), TREK_U8, trek_cpu(0));
    trek_tensor *labels = trek_tensor_empty(trek_dims(n), TREK_I64, trek_cpu(0));
    unsigned char *bytes = trek_tensor_data(images);
    for (int k = 0; k < n * channels * height * width; k++)
        bytes[k] = (unsigned char)((unsigned)k * 2654435761u >> 24);
    for (int i = 0; i < n; i++)
        ((int64_t *)trek_tensor_data(labels))[i] = i % 5;
    trek_dataset *set = trek_dataset_tensors((const char *[]){ "image", "label" }, (trek_tensor *[]){ images, labels }, 2);
    trek_tensor_release(images);
    trek_tensor_release(labels);
    assert_non_null(set);
    return set;
}

static trek_tensor *shifted(trek_tensor *image, trek_transform_random *random, void *arg)
{
    unsigned char *bytes = trek_tensor_data(image);
    int by = (int)(trek_transform_uniform(random) * 256) + *(int *)arg;
    for (int64_t k = 0; k < trek_tensor_numel(image); k++)
        bytes[k] = (unsigned char)(bytes[k] + by);
    return trek_tensor_retain(image);
}

static int three = 3;

/* Everything that draws, and an end in f32. */
static trek_transform *long_chain(void)
{
    trek_image_pad_opts pad = { .left = 2, .top = 1, .right = 2, .bottom = 1, .mode = TREK_IMAGE_PADDING_REFLECT };
    trek_transform *either[] = { trek_transform_gaussian_blur(3, 0.1, 2), trek_transform_random_grayscale(0.5),
                                 trek_transform_function(shifted, &three, NULL) };
    trek_random_affine_opts affine = { .degrees = { -20, 20 }, .translate = { 0.2, 0.2 }, .scale = { 0.8, 1.2 },
                                       .shear_x = { -5, 5 }, .shear_y = { -5, 5 } };
    trek_transform *all[] = {
        trek_transform_random_crop(12, 12, &pad),
        trek_transform_random_resized_crop(OUT, OUT, NULL),
        trek_transform_random_horizontal_flip(0.5),
        trek_transform_random_vertical_flip(0.5),
        trek_transform_random_apply(trek_transform_random_rotation(-10, 10, TREK_IMAGE_FILTER_NEAREST, 0), 0.5),
        trek_transform_random_affine(&affine),
        trek_transform_random_choice(either, (double[]){ 1, 2, 1 }, 3),
        trek_transform_color_jitter(&(trek_color_jitter_opts){ 0.4, 0.4, 0.4, 0.1 }),
        trek_transform_to_float(),
        trek_transform_random_erasing(&(trek_random_erasing_opts){ .noise = true }),
        trek_transform_normalize((double[]){ 0.5, 0.4, 0.3 }, (double[]){ 0.2, 0.3, 0.4 }, 3),
    };
    return trek_transform_chain(all, sizeof all / sizeof *all);
}

static trek_dataset *transformed(uint64_t seed)
{
    return trek_dataset_transform(pictures(N, C, H, W), "image", long_chain(), seed);
}

/* Samples in any order, `at_once` in a call, into rows of their own. */
static void fetch_rows(trek_dataset *set, uint64_t seed, int64_t epoch, int64_t at_once, int step, float *rows)
{
    int64_t order[N];
    for (int i = 0; i < N; i++)
        order[i] = i * step % N;
    for (int64_t i = 0; i < N; i += at_once) {
        trek_tensor *out[2];
        trek_fetch fetch = { .indices = order + i, .n = i + at_once < N ? at_once : N - i, .epoch = epoch, .seed = seed };
        assert_int_equal(trek_dataset_fetch(set, &fetch, out), TREK_OK);
        assert_int_equal(trek_tensor_dtype(out[0]), TREK_F32);
        assert_true(trek_shape_equal(trek_tensor_shape(out[0]), trek_dims(fetch.n, C, OUT, OUT)));
        for (int64_t k = 0; k < fetch.n; k++) {
            memcpy(rows + order[i + k] * C * OUT * OUT, (float *)trek_tensor_data(out[0]) + k * C * OUT * OUT,
                   C * OUT * OUT * sizeof(float));
            assert_int_equal(((int64_t *)trek_tensor_data(out[1]))[k], order[i + k] % 5);
        }
        trek_tensor_release(out[0]);
        trek_tensor_release(out[1]);
    }
}

typedef float rows[N * C * OUT * OUT];

static int same_rows(const float *a, const float *b)
{
    int same = 0;
    for (int i = 0; i < N; i++)
        same += memcmp((const char *)(a + i * C * OUT * OUT), (const char *)(b + i * C * OUT * OUT),
                       C * OUT * OUT * sizeof(float)) == 0;
    return same;
}

static void test_keys(void **state)
{
    static rows want, have;
    trek_dataset *set = transformed(7), *other = transformed(8), *again = transformed(7);
    expect_no_error();
    fetch_rows(set, 1, 2, N, 1, want);
    for (int at_once = 1; at_once < N; at_once += 4) { /* any split, any order */
        fetch_rows(set, 1, 2, at_once, 7, have);
        assert_int_equal(same_rows(want, have), N);
    }
    fetch_rows(again, 1, 2, N, 1, have);
    assert_int_equal(same_rows(want, have), N);
    fetch_rows(set, 1, 3, N, 1, have); /* another epoch */
    assert_int_equal(same_rows(want, have), 0);
    fetch_rows(set, 2, 2, N, 1, have); /* another seed of the loader */
    assert_int_equal(same_rows(want, have), 0);
    fetch_rows(other, 1, 2, N, 1, have); /* and of its own */
    assert_int_equal(same_rows(want, have), 0);
    trek_dataset_free(&set);
    trek_dataset_free(&other);
    trek_dataset_free(&again);
    expect_no_error();
}

/* What a transform draws does not depend on those after it, and two chains of one form draw alike. */
static void test_place(void **state)
{
    trek_tensor *image = trek_tensor_arange(0, 2 * 9 * 9, 1, TREK_F32, trek_cpu(0));
    trek_tensor *view = trek_tensor_view(image, trek_dims(2, 9, 9));
    for (int sample = 0; sample < 20; sample++) {
        trek_transform *one[] = { trek_transform_random_crop(4, 4, NULL) };
        trek_transform *two[] = { trek_transform_random_crop(4, 4, NULL),
                                  trek_transform_normalize((double[]){ 1 }, (double[]){ 2 }, 1) };
        trek_transform *a = trek_transform_chain(one, 1), *b = trek_transform_chain(two, 2);
        trek_tensor *x = trek_transform_apply(a, view, 5, 0, sample), *y = trek_transform_apply(b, view, 5, 0, sample);
        for (int k = 0; k < 32; k++)
            assert_true(((float *)trek_tensor_data(y))[k] == (((float *)trek_tensor_data(x))[k] - 1) / 2);
        trek_tensor_release(x);
        trek_tensor_release(y);
        trek_transform_free(&a);
        trek_transform_free(&b);
    }
    trek_tensor_release(view);
    trek_tensor_release(image);
}

/* The pictures as a stream. */
static trek_status pictures_open(trek_dataset *self, int64_t epoch, uint64_t seed, void **reading)
{
    *reading = calloc(1, sizeof(int64_t));
    return TREK_OK;
}

static trek_status pictures_next(trek_dataset *self, void *reading, int64_t n, trek_tensor **out, int64_t *got)
{
    int64_t *at = reading, order[N];
    *got = N - *at < n ? N - *at : n;
    for (int64_t k = 0; k < *got; k++)
        order[k] = (*at)++;
    trek_dataset *set = pictures(N, C, H, W);
    trek_status status = *got > 0 ? trek_dataset_get(set, order, *got, out) : TREK_OK;
    trek_dataset_free(&set);
    return status;
}

static void pictures_close(trek_dataset *self, void *reading)
{
    free(reading);
}

/* Samples of a stream are keyed by their places in it: the same pixels as of a dataset in that order, whatever the batches. */
static void test_stream(void **state)
{
    static const trek_stream_class stream_class = { .open = pictures_open, .next = pictures_next, .close = pictures_close };
    static const char *const fields[] = { "image", "label" };
    static const trek_dataset_class klass = { .name = "picture_stream", .size = sizeof(trek_dataset), .stream = &stream_class,
                                              .n_fields = 2, .fields = fields };
    static rows want, have;
    trek_dataset *set = transformed(3), *stream = trek_dataset_transform(trek_dataset_new(&klass), "image", long_chain(), 3);
    fetch_rows(set, 11, 2, 5, 1, want);
    trek_stream *reading = trek_stream_open(stream, 2, 11);
    assert_int_equal(trek_stream_skip(reading, 4, NULL), TREK_OK);
    memcpy(have, want, 4 * sizeof have / N);
    for (int64_t at = 4, got; at < N; at += got) {
        trek_tensor *out[2];
        assert_int_equal(trek_stream_next(reading, 7, out, &got), TREK_OK);
        assert_int_equal(got, N - at < 7 ? N - at : 7);
        memcpy(have + at * C * OUT * OUT, trek_tensor_data(out[0]), (size_t)(got * C * OUT * OUT) * sizeof(float));
        assert_int_equal(((int64_t *)trek_tensor_data(out[1]))[0], at % 5);
        trek_tensor_release(out[0]);
        trek_tensor_release(out[1]);
    }
    assert_true(same_rows(want, have));
    trek_stream_close(&reading);
    trek_dataset_free(&set);
    REFUSED(trek_dataset_mix(stream, "image", "label", 5, &(trek_mix_opts){ .mixup = 1 }), TREK_ERR_UNSUPPORTED, "is a stream");
}

typedef struct job {
    trek_dataset *set;
    int step;
    trek_status status;
    rows have;
} job;

static void *fetch_all(void *arg)
{
    job *j = arg;
    int64_t order[N];
    for (int i = 0; i < N; i++)
        order[i] = i * j->step % N;
    for (int i = 0; i < N && j->status == TREK_OK; i++) {
        trek_tensor *out[2];
        j->status = trek_dataset_fetch(j->set, &(trek_fetch){ .indices = order + i, .n = 1, .epoch = 2, .seed = 1 }, out);
        if (j->status == TREK_OK)
            memcpy(j->have + order[i] * C * OUT * OUT, trek_tensor_data(out[0]), C * OUT * OUT * sizeof(float));
        trek_tensor_release(out[0]);
        trek_tensor_release(out[1]);
    }
    return NULL;
}

static void test_threads(void **state)
{
    static rows want;
    static job jobs[4];
    trek_dataset *set = transformed(7);
    fetch_rows(set, 1, 2, N, 1, want);
    pthread_t threads[4];
    for (int k = 0; k < 4; k++) {
        jobs[k] = (job){ .set = set, .step = k % 2 ? 5 : 1 };
        assert_int_equal(pthread_create(&threads[k], NULL, fetch_all, &jobs[k]), 0);
    }
    for (int k = 0; k < 4; k++) {
        pthread_join(threads[k], NULL);
        assert_int_equal(jobs[k].status, TREK_OK);
        assert_int_equal(same_rows(want, jobs[k].have), N);
    }
    trek_dataset_free(&set);
}

enum { BATCH = 5, BATCHES = 5 };

static trek_loader *mixing_loader(int workers, int prefetch)
{
    trek_dataset *set = trek_dataset_mix(transformed(0), "image", "label", 5, &(trek_mix_opts){ .mixup = 1, .cutmix = 1 });
    trek_loader_opts opts = { .batch_size = BATCH, .shuffle = true, .seed = 3, .prefetch = prefetch, .workers = workers,
                              .device = trek_cpu(0) };
    trek_loader *loader = trek_loader_new(set, &opts);
    assert_non_null(loader);
    return loader;
}

static void keep(const trek_batch *batch, float *to)
{
    trek_tensor *x = trek_var_data(trek_batch_get(batch, "image"));
    memcpy(to, trek_tensor_data(x), (size_t)trek_tensor_numel(x) * sizeof(float));
}

/* A loader that does not read ahead, one with several threads, and one that goes on in the middle: the same batches. */
static void test_loader(void **state)
{
    static rows have[3];
    for (int way = 0; way < 3; way++) {
        trek_loader *loader = mixing_loader(way ? 3 : 1, way ? 2 : TREK_ZERO);
        int at = way == 2 ? 2 : 0;
        memset(have[way], 0, sizeof have[way]);
        assert_int_equal(trek_loader_seek(loader, 1, at), TREK_OK);
        for (trek_batch *batch; (batch = trek_loader_next(loader)); at++)
            keep(batch, have[way] + at * BATCH * C * OUT * OUT);
        assert_int_equal(at, BATCHES);
        trek_loader_free(&loader);
    }
    assert_int_equal(same_rows(have[0], have[1]), N);
    assert_int_equal(same_rows(have[0], have[2]), N - 2 * BATCH);
    expect_no_error();
}

/* Ranks that read their own rows of each batch, unequal shares: together the batches that one reads. */
static void test_ranks(void **state)
{
    static rows want, have;
    trek_loader *loader = mixing_loader(2, 2);
    assert_int_equal(trek_loader_start(loader, 1), TREK_OK);
    for (int at = 0; at < BATCHES; at++)
        keep(trek_loader_next(loader), want + at * BATCH * C * OUT * OUT);
    const int shares[3] = { 2, 0, 3 }, last[3] = { 1, 2, 1 };
    for (int rank = 0, first = 0, last_first = 0; rank < 3; first += shares[rank], last_first += last[rank], rank++) {
        trek_batch_cut cut = { .first = first, .rows = shares[rank], .last_first = last_first, .last_rows = last[rank] };
        trek_reader *reader = trek_reader_new(loader, trek_cpu(0));
        assert_non_null(reader);
        assert_int_equal(trek_reader_begin_part(reader, 1, 0, &cut), TREK_OK);
        for (int at = 0; at < BATCHES; at++) {
            trek_batch *batch = trek_reader_next(reader);
            assert_non_null(batch);
            keep(batch, have + (at * BATCH + (at < BATCHES - 1 ? first : last_first)) * C * OUT * OUT);
        }
        trek_reader_free(&reader);
    }
    assert_int_equal(same_rows(want, have), N);
    trek_loader_free(&loader);
    expect_no_error();
}

/* Any rows of any batch, in any order: those of the batch that a loader gives. */
static void test_any_rows(void **state)
{
    static rows want, have;
    trek_loader *loader = mixing_loader(2, 2);
    trek_reader *reader = trek_reader_new(loader, trek_cpu(0));
    assert_int_equal(trek_loader_start(loader, 1), TREK_OK);
    for (int at = 0; at < BATCHES; at++) {
        trek_batch *batch = trek_loader_next(loader);
        keep(batch, want + at * BATCH * C * OUT * OUT);
        int64_t rows = trek_batch_size(batch);
        for (int64_t first = rows - 1; first >= 0; first -= 2) { /* while the loader reads ahead */
            int64_t n = first + 2 < rows ? 2 : rows - first;
            trek_batch *part = trek_reader_rows(reader, 1, at, first, n);
            assert_non_null(part);
            assert_true(part->first == first && part->n == n && part->global == rows);
            for (int64_t k = 0; k < n; k++)
                assert_int_equal(trek_batch_indices(part)[k], trek_batch_indices(batch)[first + k]);
            keep(part, have + (at * BATCH + first) * C * OUT * OUT);
        }
        if (rows % 2 == 0) {
            assert_non_null(trek_reader_rows(reader, 1, at, 0, 1));
            keep(trek_reader_rows(reader, 1, at, 0, 1), have + at * BATCH * C * OUT * OUT);
        }
    }
    assert_int_equal(same_rows(want, have), N);
    trek_loader_free(&loader);
    REFUSED(trek_reader_rows(reader, 1, 0, 0, 1), TREK_ERR_STATE, "the loader has ended");
    trek_reader_free(&reader);
    expect_no_error();
}

/* --- what is drawn ----------------------------------------------------------------- */

static void test_rates(void **state)
{
    enum { DRAWS = 4000 };
    unsigned char pixels[2] = { 10, 20 };
    trek_tensor *image = trek_tensor_from_data(pixels, trek_dims(1, 1, 2), TREK_U8, trek_cpu(0));
    trek_transform *flip = trek_transform_random_horizontal_flip(0.3), *never = trek_transform_random_horizontal_flip(0);
    trek_transform *choices[] = { trek_transform_crop(0, 0, 1, 1), trek_transform_crop(0, 1, 1, 1) };
    trek_transform *choice = trek_transform_random_choice(choices, (double[]){ 1, 3 }, 2);
    int flips = 0, nevers = 0, rights = 0;
    for (int i = 0; i < DRAWS; i++) {
        trek_tensor *a = trek_transform_apply(flip, image, 0, 0, i), *b = trek_transform_apply(never, image, 0, 0, i),
                    *c = trek_transform_apply(choice, image, 0, 0, i);
        flips += ((unsigned char *)trek_tensor_data(a))[0] == 20;
        nevers += ((unsigned char *)trek_tensor_data(b))[0] == 20;
        rights += ((unsigned char *)trek_tensor_data(c))[0] == 20;
        trek_tensor_release(a);
        trek_tensor_release(b);
        trek_tensor_release(c);
    }
    assert_int_equal(nevers, 0);
    assert_true(fabs(flips / (double)DRAWS - 0.3) < 0.03);   /* four deviations */
    assert_true(fabs(rights / (double)DRAWS - 0.75) < 0.03);
    trek_transform_free(&flip);
    trek_transform_free(&never);
    trek_transform_free(&choice);
    trek_tensor_release(image);
}

/* Every place of a crop is as likely as the others. */
static void test_crop_places(void **state)
{
    trek_tensor *line = trek_tensor_arange(0, 30, 1, TREK_U8, trek_cpu(0)), *image = trek_tensor_view(line, trek_dims(1, 5, 6));
    trek_transform *crop = trek_transform_random_crop(2, 3, NULL);
    int seen[30] = { 0 };
    for (int i = 0; i < 4000; i++) {
        trek_tensor *x = trek_transform_apply(crop, image, 0, 0, i);
        const unsigned char *p = trek_tensor_data(x);
        assert_true(p[1] == p[0] + 1 && p[3] == p[0] + 6 && p[5] == p[0] + 8);
        seen[p[0]]++;
        trek_tensor_release(x);
    }
    for (int y = 0; y < 5; y++)
        for (int x = 0; x < 6; x++) {
            if (y < 4 && x < 4)
                assert_true(seen[y * 6 + x] > 180 && seen[y * 6 + x] < 320); /* of 250 */
            else
                assert_int_equal(seen[y * 6 + x], 0);
        }
    trek_transform_free(&crop);
    trek_tensor_release(image);
    trek_tensor_release(line);
}

/* Of an image whose pixels are their places, the result tells which rectangle it is of. */
static void test_resized_crop(void **state)
{
    enum { SIDE = 64, TO = 16 };
    trek_tensor *image = trek_tensor_empty(trek_dims(2, SIDE, SIDE), TREK_F32, trek_cpu(0));
    float *p = trek_tensor_data(image);
    for (int k = 0; k < SIDE * SIDE; k++) {
        p[k] = (float)(k % SIDE);
        p[SIDE * SIDE + k] = (float)(k / SIDE);
    }
    trek_transform *crop = trek_transform_random_resized_crop(TO, TO, NULL);
    double areas = 0, least = 1, most = 0;
    for (int i = 0; i < 500; i++) {
        trek_tensor *x = trek_transform_apply(crop, image, 0, 0, i);
        const float *q = trek_tensor_data(x);
        double wide = (double)(q[TO - 3] - q[2]) * TO / (TO - 5),
            high = (double)(q[TO * TO + TO * (TO - 3)] - q[TO * TO + TO * 2]) * TO / (TO - 5);
        double area = wide * high / (SIDE * SIDE), ratio = wide / high;
        assert_true(area > 0.07 && area < 1.02 && ratio > 0.70 && ratio < 1.42);
        areas += area / 500;
        least = area < least ? area : least;
        most = area > most ? area : most;
        trek_tensor_release(x);
    }
    assert_true(fabs(areas - 0.52) < 0.06 && least < 0.12 && most > 0.9);
    trek_transform_free(&crop);
    trek_tensor_release(image);
}

static void test_erasing(void **state)
{
    trek_tensor *image = trek_tensor_ones(trek_dims(2, 40, 50), TREK_F32, trek_cpu(0));
    trek_transform *plain = trek_transform_random_erasing(&(trek_random_erasing_opts){ .p = 1, .value = TREK_ZERO });
    trek_transform *noise = trek_transform_random_erasing(&(trek_random_erasing_opts){ .p = 1, .noise = true });
    trek_transform *none = trek_transform_random_erasing(&(trek_random_erasing_opts){ .p = TREK_ZERO });
    double sum = 0, squares = 0, count = 0;
    for (int i = 0; i < 60; i++) {
        trek_tensor *a = trek_transform_apply(plain, image, 0, 0, i), *b = trek_transform_apply(noise, image, 0, 0, i),
                    *c = trek_transform_apply(none, image, 0, 0, i);
        const float *p = trek_tensor_data(a), *q = trek_tensor_data(b), *r = trek_tensor_data(c);
        int erased = 0;
        for (int k = 0; k < 2000; k++) {
            assert_true((p[k] == 0) == (q[k] != 1) && p[k] == p[2000 + k] && r[k] == 1); /* the same place in all */
            erased += p[k] == 0;
            if (p[k] == 0) {
                sum += (double)q[k];
                squares += (double)q[k] * (double)q[k];
                count++;
            }
        }
        assert_true(erased >= 2000 * 0.015 && erased <= 2000 * 0.36);
        trek_tensor_release(a);
        trek_tensor_release(b);
        trek_tensor_release(c);
    }
    assert_true(fabs(sum / count) < 0.05 && fabs(squares / count - 1) < 0.08);
    trek_transform_free(&plain);
    trek_transform_free(&noise);
    trek_transform_free(&none);
    REFUSED(trek_transform_apply(noise, image, 0, 0, 0), TREK_ERR_ARGUMENT, "");
    trek_tensor_release(image);
}

/* --- values ---------------------------------------------------------------------------- */

static trek_tensor *applied(trek_transform *t, trek_tensor *image)
{
    trek_tensor *x = trek_transform_apply(t, image, 0, 0, 0);
    trek_transform_free(&t);
    return x;
}

static void test_values(void **state)
{
    unsigned char bytes[12] = { 0, 51, 102, 255, 10, 20, 30, 40, 200, 100, 0, 50 };
    trek_tensor *image = trek_tensor_from_data(bytes, trek_dims(3, 2, 2), TREK_U8, trek_cpu(0));
    trek_tensor *x = applied(trek_transform_to_float(), image);
    assert_true(((float *)trek_tensor_data(x))[1] == 0.2f && ((float *)trek_tensor_data(x))[3] == 1);
    trek_tensor_release(x);
    x = applied(trek_transform_normalize((double[]){ 0.5, 0, 1 }, (double[]){ 0.5, 1, 2 }, 3), image);
    assert_true(((float *)trek_tensor_data(x))[3] == 1 && ((float *)trek_tensor_data(x))[10] == -0.5f);
    trek_tensor_release(x);
    x = applied(trek_transform_grayscale(1), image);
    assert_int_equal(((unsigned char *)trek_tensor_data(x))[0], (int)(10 * 0.587 + 200 * 0.114));
    assert_int_equal(trek_tensor_shape(x).sizes[0], 1);
    trek_tensor_release(x);
    x = applied(trek_transform_adjust(2, 1, 1, 0), image);
    assert_int_equal(((unsigned char *)trek_tensor_data(x))[1], 102);
    assert_int_equal(((unsigned char *)trek_tensor_data(x))[3], 255);
    trek_tensor_release(x);
    x = applied(trek_transform_crop(-1, 1, 2, 2), image); /* beyond the edge: 0 */
    assert_memory_equal(trek_tensor_data(x), ((unsigned char[]){ 0, 0, 51, 0, 0, 0, 20, 0, 0, 0, 100, 0 }), 12);
    trek_tensor_release(x);
    x = applied(trek_transform_pad(&(trek_image_pad_opts){ .left = 1, .fill = 9 }), image);
    assert_memory_equal(trek_tensor_data(x), ((unsigned char[]){ 9, 0, 51, 9, 102, 255 }), 6);
    trek_tensor_release(x);
    x = applied(trek_transform_center_crop(1, 1), image); /* torchvision's halves: 0 */
    assert_memory_equal(trek_tensor_data(x), ((unsigned char[]){ 0, 10, 200 }), 3);
    trek_tensor_release(x);
    x = applied(trek_transform_resize(4, 0, &(trek_image_resize_opts){ .filter = TREK_IMAGE_FILTER_NEAREST }), image);
    assert_memory_equal(trek_tensor_data(x), ((unsigned char[]){ 0, 0, 51, 51, 0, 0, 51, 51, 102, 102, 255, 255 }), 12);
    trek_tensor_release(x);
    x = applied(trek_transform_chain(NULL, 0), image); /* nothing: a copy */
    assert_memory_equal(trek_tensor_data(x), bytes, 12);
    trek_tensor_release(x);
    assert_memory_equal(trek_tensor_data(image), bytes, 12); /* was never written */
    trek_tensor_release(image);
    expect_no_error();
}

/* --- mixing --------------------------------------------------------------------------------- */

static trek_dataset *mixture(double mixup, double cutmix)
{
    return trek_dataset_mix(pictures(N, C, H, W), "image", "label", 5,
                            &(trek_mix_opts){ .mixup = mixup, .cutmix = cutmix, .seed = 4 });
}

/* Of a batch in two parts, each told of the whole, the rows are those of one. */
static void test_mix_parts(void **state)
{
    int64_t batch[9] = { 4, 11, 3, 20, 7, 7, 0, 15, 4 }; /* some twice */
    for (int kind = 0; kind < 3; kind++) {
        trek_dataset *set = mixture(kind != 1, kind != 0),
            *wrapped = trek_dataset_transform(set, "image", trek_transform_random_horizontal_flip(0.5), 1);
        for (int64_t epoch = 0; epoch < 6; epoch++)
            for (int64_t cut = 1; cut < 9; cut += 3) {
                trek_tensor *whole[2], *part[2];
                assert_int_equal(trek_dataset_fetch(wrapped, &(trek_fetch){ .indices = batch, .n = 9, .epoch = epoch }, whole),
                                 TREK_OK);
                for (int side = 0; side < 2; side++) {
                    int64_t first = side ? cut : 0, n = side ? 9 - cut : cut;
                    trek_fetch fetch = { .indices = batch + first, .n = n, .epoch = epoch, .batch = batch, .n_batch = 9 };
                    assert_int_equal(trek_dataset_fetch(wrapped, &fetch, part), TREK_OK);
                    assert_memory_equal((float *)trek_tensor_data(whole[0]) + first * C * H * W, trek_tensor_data(part[0]),
                                        (size_t)n * C * H * W * 4);
                    assert_memory_equal((float *)trek_tensor_data(whole[1]) + first * 5, trek_tensor_data(part[1]),
                                        (size_t)n * 20);
                    trek_tensor_release(part[0]);
                    trek_tensor_release(part[1]);
                }
                trek_tensor_release(whole[0]);
                trek_tensor_release(whole[1]);
            }
        trek_dataset_free(&wrapped);
    }
    expect_no_error();
}

static void test_mixup_values(void **state)
{
    trek_dataset *plain = pictures(N, C, H, W), *set = mixture(0.4, 0);
    int64_t batch[4] = { 6, 2, 9, 18 };
    trek_tensor *x[2], *y[2];
    assert_int_equal(trek_dataset_get(plain, batch, 4, x), TREK_OK);
    assert_int_equal(trek_dataset_get(set, batch, 4, y), TREK_OK);
    const unsigned char *from = trek_tensor_data(x[0]);
    const float *to = trek_tensor_data(y[0]), *labels = trek_tensor_data(y[1]);
    float lambda = labels[6 % 5]; /* 6 and 18: classes 1 and 3 */
    assert_true(lambda > 0 && lambda < 1 && fabsf(labels[18 % 5] - (1 - lambda)) < 1e-6f);
    for (int i = 0; i < 4; i++)
        for (int k = 0; k < C * H * W; k++) {
            float a = (float)from[i * C * H * W + k] / 255, b = (float)from[(i + 3) % 4 * C * H * W + k] / 255;
            assert_true(fabsf(to[i * C * H * W + k] - (lambda * a + (1 - lambda) * b)) < 1e-5f);
        }
    for (int k = 0; k < 2; k++) {
        trek_tensor_release(x[k]);
        trek_tensor_release(y[k]);
    }
    trek_dataset_free(&set);
    trek_dataset_free(&plain);
}

/* Each pixel is one's or the other's, as many as the label says; lambda is spread as Beta(1, 1) is: evenly. */
static void test_cutmix_values(void **state)
{
    trek_dataset *plain = pictures(N, C, H, W), *set = mixture(0, 1);
    double mean = 0;
    for (int64_t epoch = 0; epoch < 200; epoch++) {
        int64_t batch[2] = { 1, 3 };
        trek_tensor *x[2], *y[2];
        assert_int_equal(trek_dataset_get(plain, batch, 2, x), TREK_OK);
        assert_int_equal(trek_dataset_fetch(set, &(trek_fetch){ .indices = batch, .n = 2, .epoch = epoch }, y), TREK_OK);
        const unsigned char *from = trek_tensor_data(x[0]);
        const float *to = trek_tensor_data(y[0]), *labels = trek_tensor_data(y[1]);
        int own = 0, same = 0;
        for (int k = 0; k < H * W; k++) {
            float a = (float)from[k] / 255, b = (float)from[C * H * W + k] / 255;
            assert_true(to[k] == a || to[k] == b);
            own += to[k] == a;
            same += a == b;
        }
        assert_true(fabs((double)labels[1] * H * W - own) <= same + 0.01 && fabsf(labels[1] + labels[3] - 1) < 1e-6f);
        mean += (double)labels[1] / 200;
        for (int k = 0; k < 2; k++) {
            trek_tensor_release(x[k]);
            trek_tensor_release(y[k]);
        }
    }
    assert_true(mean > 0.5 && mean < 0.8); /* 1/2, and what of the rectangles lies outside */
    trek_dataset_free(&set);
    trek_dataset_free(&plain);
}

/* --- refusals ---------------------------------------------------------------------------------- */

static void refused(trek_transform *t, const char *part)
{
    REFUSED(t, TREK_ERR_ARGUMENT, part);
}

static void test_bad_numbers(void **state)
{
    refused(trek_transform_crop(0, 0, 0, 3), "0 x 3");
    refused(trek_transform_center_crop(-1, 3), "-1 x 3");
    refused(trek_transform_random_crop(3, 3, &(trek_image_pad_opts){ .left = -1 }), "padding: -1");
    refused(trek_transform_pad(&(trek_image_pad_opts){ .mode = (trek_image_padding)9 }), ".mode: 9");
    refused(trek_transform_random_horizontal_flip(1.5), "1.5");
    refused(trek_transform_random_vertical_flip(NAN), "nan");
    refused(trek_transform_resize(0, 0, NULL), "0 x 0");
    refused(trek_transform_resize(3, 3, &(trek_image_resize_opts){ .filter = (trek_image_filter)7 }), "filter: 7");
    refused(trek_transform_random_resized_crop(3, 0, NULL), "3 x 0");
    refused(trek_transform_random_resized_crop(3, 3, &(trek_resized_crop_opts){ .scale = { 0.5, 0.2 } }), "0.5 .. 0.2");
    refused(trek_transform_random_affine(&(trek_random_affine_opts){ .degrees = { 5, -5 } }), "5 .. -5");
    refused(trek_transform_random_affine(NULL), "options");
    refused(trek_transform_random_rotation(0, 1, TREK_IMAGE_FILTER_BICUBIC, 0), "filter: 2");
    refused(trek_transform_color_jitter(&(trek_color_jitter_opts){ .hue = 0.7 }), "hue 0.7");
    refused(trek_transform_color_jitter(NULL), "options");
    refused(trek_transform_adjust(-1, 1, 1, 0), "brightness -1");
    refused(trek_transform_grayscale(2), "channels: 2; must be 1 or 3");
    refused(trek_transform_random_grayscale(-0.1), "-0.1");
    refused(trek_transform_gaussian_blur(4, 1, 1), "kernel: 4");
    refused(trek_transform_gaussian_blur(3, 0, 1), "sigma: 0");
    refused(trek_transform_random_erasing(&(trek_random_erasing_opts){ .ratio = { -1, 2 } }), ".ratio: -1");
    refused(trek_transform_normalize((double[]){ 0 }, (double[]){ 0 }, 1), "std: 0");
    refused(trek_transform_normalize(NULL, NULL, 1), "means");
    refused(trek_transform_random_apply(trek_transform_to_float(), 2), "2");
    refused(trek_transform_random_apply(NULL, 0.5), "transform: NULL");
    refused(trek_transform_random_choice(NULL, NULL, 0), "transform: NULL");
    refused(trek_transform_random_choice((trek_transform *[]){ trek_transform_to_float() }, (double[]){ 0 }, 1), "weights");
    refused(trek_transform_random_choice((trek_transform *[]){ trek_transform_to_float() }, (double[]){ -1 }, 1), "weight: -1");
}

static int released;

static void count_release(void *arg)
{
    released++;
}

static trek_tensor *make_nothing(trek_tensor *image, trek_transform_random *random, void *arg)
{
    trek_fail(TREK_ERR_CALLBACK, "%s", (const char *)arg);
    return NULL;
}

static trek_tensor *make_line(trek_tensor *image, trek_transform_random *random, void *arg)
{
    return trek_tensor_view(image, trek_dims(-1));
}

/* What is taken over is given back, whatever fails. */
static void test_ownership(void **state)
{
    released = 0;
    trek_transform *list[] = { trek_transform_function(shifted, &three, count_release), trek_transform_crop(0, 0, -1, 1),
                               trek_transform_function(shifted, &three, count_release) };
    trek_error_clear();
    assert_null(trek_transform_chain(list, 3));
    assert_int_equal(released, 2);
    expect_error(TREK_ERR_ARGUMENT, "transform: NULL");
    assert_null(trek_dataset_transform(pictures(2, 1, 3, 3), "picture", trek_transform_function(shifted, &three, count_release),
                                       0));
    assert_int_equal(released, 3);
    expect_error(TREK_ERR_ARGUMENT, "image, label");
    assert_null(trek_dataset_transform(NULL, "image", trek_transform_function(shifted, &three, count_release), 0));
    assert_int_equal(released, 4);
    trek_error_clear();
    REFUSED(trek_dataset_transform(pictures(2, 1, 3, 3), "image", NULL, 0), TREK_ERR_ARGUMENT, "transform: NULL");
    assert_null(trek_transform_function(NULL, NULL, count_release));
    assert_int_equal(released, 5);
    expect_error(TREK_ERR_ARGUMENT, "function: NULL");
    trek_transform_free(NULL);
}

static void fails(trek_transform *t, const char *field, trek_status status, const char *part)
{
    trek_dataset *set = trek_dataset_transform(pictures(3, 2, 5, 4), field, t, 0);
    trek_tensor *out[2];
    assert_non_null(set);
    assert_int_equal(trek_dataset_get(set, (int64_t[]){ 0, 2 }, 2, out), status);
    assert_true(!out[0] && !out[1]);
    expect_error(status, part);
    trek_dataset_free(&set);
}

static void test_bad_images(void **state)
{
    fails(trek_transform_random_crop(6, 2, NULL), "image", TREK_ERR_SHAPE, "5 x 4; must be at least 6 x 2");
    fails(trek_transform_to_float(), "label", TREK_ERR_SHAPE, "must be [channels, height, width]");
    fails(trek_transform_color_jitter(&(trek_color_jitter_opts){ .hue = 0.1 }), "image", TREK_ERR_SHAPE,
          "2 channels; must be 1 or 3");
    fails(trek_transform_normalize((double[]){ 0, 0, 0 }, (double[]){ 1, 1, 1 }, 3), "image", TREK_ERR_SHAPE, "3 values");
    fails(trek_transform_gaussian_blur(11, 1, 1), "image", TREK_ERR_SHAPE, "kernel of 11");
    fails(trek_transform_random_erasing(&(trek_random_erasing_opts){ .noise = true }), "image", TREK_ERR_DTYPE, "f32");
    fails(trek_transform_function(make_nothing, "on purpose", NULL), "image", TREK_ERR_CALLBACK, "on purpose");
    fails(trek_transform_function(make_line, NULL, NULL), "image", TREK_ERR_SHAPE, "must be [channels, height, width]");
    trek_transform *sizes[] = { trek_transform_crop(0, 0, 1, 1), trek_transform_crop(0, 0, 2, 1) };
    trek_dataset *set = trek_dataset_transform(pictures(30, 1, 3, 3), "image", trek_transform_random_choice(sizes, NULL, 2), 0);
    trek_tensor *out[2];
    int64_t all[30];
    for (int i = 0; i < 30; i++)
        all[i] = i;
    FAILS(trek_dataset_get(set, all, 30, out), TREK_ERR_SHAPE, "a batch needs one shape and dtype");
    trek_dataset_free(&set);
    trek_tensor *wide = trek_tensor_zeros(trek_dims(1, 2, 2), TREK_F64, trek_cpu(0));
    REFUSED(applied(trek_transform_to_float(), wide), TREK_ERR_DTYPE, "f64");
    trek_tensor_release(wide);
}

static void test_bad_mixtures(void **state)
{
    REFUSED(mixture(0, 0), TREK_ERR_ARGUMENT, "one of the first two must be above 0");
    REFUSED(trek_dataset_mix(pictures(3, 1, 2, 2), "image", "image", 5, &(trek_mix_opts){ .mixup = 1 }), TREK_ERR_ARGUMENT,
            "cannot hold both");
    assert_null(trek_dataset_mix(NULL, "image", "label", 5, &(trek_mix_opts){ .mixup = 1 }));
    trek_error_clear();
    trek_dataset *set = trek_dataset_mix(pictures(5, 1, 2, 2), "image", "label", 3, &(trek_mix_opts){ .mixup = 1 });
    trek_tensor *out[2];
    FAILS(trek_dataset_get(set, (int64_t[]){ 0, 4 }, 2, out), TREK_ERR_ARGUMENT, "label: 4; must be below 3");
    int64_t batch[2] = { 0, 1 };
    FAILS(trek_dataset_fetch(set, &(trek_fetch){ .indices = (int64_t[]){ 2 }, .n = 1, .batch = batch, .n_batch = 2 },
                             out), TREK_ERR_ARGUMENT, "not in its batch");
    trek_dataset_free(&set);
    set = trek_dataset_mix(pictures(5, 1, 2, 2), "label", "image", 3, &(trek_mix_opts){ .mixup = 1 });
    FAILS(trek_dataset_get(set, batch, 2, out), TREK_ERR_SHAPE, "images: [2]");
    trek_dataset_free(&set);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_keys), cmocka_unit_test(test_place), cmocka_unit_test(test_stream), cmocka_unit_test(test_threads),
        cmocka_unit_test(test_loader), cmocka_unit_test(test_ranks), cmocka_unit_test(test_any_rows),
        cmocka_unit_test(test_rates),
        cmocka_unit_test(test_crop_places), cmocka_unit_test(test_resized_crop), cmocka_unit_test(test_erasing),
        cmocka_unit_test(test_values), cmocka_unit_test(test_mix_parts), cmocka_unit_test(test_mixup_values),
        cmocka_unit_test(test_cutmix_values), cmocka_unit_test(test_bad_numbers), cmocka_unit_test(test_ownership),
        cmocka_unit_test(test_bad_images), cmocka_unit_test(test_bad_mixtures),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
