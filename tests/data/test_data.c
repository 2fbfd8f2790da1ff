/* SPDX-License-Identifier: Apache-2.0 */
/* Datasets: what they give, and how they refuse. */
#include <unistd.h>
#include <zlib.h>

#include "data/compose.h"
#include "data/dataset.h"
#include "data/dataset_class.h"
#include "data/image.h"
#include "data/image_sets.h"
#include "data/text_sets.h"
#include "tensor/copies.h"
#include "tensor/creation.h"
#include "tensor/layout.h"
#include "tensor/shapes.h"
#include "tests/support/files.h"
#include "tests/support/scoped.h"
#include "tests/support/support.h"

static char folder[] = "/tmp/trek-data-XXXXXX";

static char *in_folder(const char *name)
{
    static char paths[4][256];
    static int turn;
    turn = (turn + 1) % 4;
    snprintf(paths[turn], sizeof(paths[turn]), "%s/%s", folder, name);
    return paths[turn];
}

static void write_gzip(const char *path, const void *bytes, size_t length)
{
    gzFile file = gzopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(gzwrite(file, bytes, (unsigned)length), (int)length);
    gzclose(file);
}

static size_t read_bytes(const char *path, unsigned char *bytes, size_t capacity)
{
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    size_t length = fread(bytes, 1, capacity, file);
    fclose(file);
    return length;
}

/* n images of 28 x 28 whose byte p of image i is (i * 7 + p) % 256, and labels i % 10. */
static size_t make_images(unsigned char *to, int n)
{
    unsigned char head[16] = { 0, 0, 8, 3, 0, 0, (unsigned char)(n >> 8), (unsigned char)n, 0, 0, 0, 28, 0, 0, 0, 28 };
    memcpy(to, head, 16);
    for (int i = 0; i < n * 784; i++)
        to[16 + i] = (unsigned char)(i / 784 * 7 + i % 784);
    return 16 + (size_t)n * 784;
}

static size_t make_labels(unsigned char *to, int n)
{
    unsigned char head[8] = { 0, 0, 8, 1, 0, 0, (unsigned char)(n >> 8), (unsigned char)n };
    memcpy(to, head, 8);
    for (int i = 0; i < n; i++)
        to[8 + i] = (unsigned char)(i % 10);
    return 8 + (size_t)n;
}

static unsigned char buffer[1 << 18];

/* -- IDX ------------------------------------------------------------------------ */

static void check_images(trek_dataset *set, int n)
{
    expect_no_error();
    assert_non_null(set);
    assert_int_equal(trek_dataset_length(set), n);
    assert_string_equal(trek_dataset_field_name(set, 0), "image");
    assert_string_equal(trek_dataset_field_name(set, 1), "label");
    assert_null(trek_dataset_field_name(set, 2));
    int64_t indices[3] = { n - 1, 0, 3 };
    trek_tensor *out[2];
    assert_int_equal(trek_dataset_get(set, indices, 3, out), TREK_OK);
    assert_true(trek_shape_equal(trek_tensor_shape(out[0]), trek_dims(3, 1, 28, 28)));
    assert_true(trek_shape_equal(trek_tensor_shape(out[1]), trek_dims(3)));
    assert_int_equal(trek_tensor_dtype(out[0]), TREK_F32);
    assert_int_equal(trek_tensor_dtype(out[1]), TREK_I64);
    const float *pixels = trek_tensor_data(out[0]);
    const int64_t *labels = trek_tensor_data(out[1]);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(labels[i], indices[i] % 10);
        for (int p = 0; p < 784; p++)
            assert_true(pixels[i * 784 + p] == (float)((indices[i] * 7 + p) % 256) / 255.0f);
    }
    trek_tensor_release(out[0]);
    trek_tensor_release(out[1]);
    trek_dataset_free(&set);
    assert_null(set);
}

static void idx_plain_and_gzip(void **state)
{
    size_t images = make_images(buffer, 25);
    test_write_bytes(in_folder("t10k-images-idx3-ubyte"), buffer, images);
    write_gzip(in_folder("train-images-idx3-ubyte.gz"), buffer, images);
    size_t labels = make_labels(buffer, 25);
    test_write_bytes(in_folder("t10k-labels-idx1-ubyte"), buffer, labels);
    write_gzip(in_folder("train-labels-idx1-ubyte.gz"), buffer, labels);
    check_images(trek_dataset_mnist(folder, TREK_DATA_SPLIT_TEST), 25);
    check_images(trek_dataset_mnist(folder, TREK_DATA_SPLIT_TRAIN), 25);
    check_images(trek_dataset_idx(in_folder("train-images-idx3-ubyte.gz"), in_folder("t10k-labels-idx1-ubyte")), 25);
}

static void idx_refusals(void **state)
{
    char *images = in_folder("images"), *labels = in_folder("labels");
    size_t n_labels = make_labels(buffer, 25);
    test_write_bytes(labels, buffer, n_labels);
    REFUSED(trek_dataset_mnist("/nowhere", TREK_DATA_SPLIT_TRAIN), TREK_ERR_IO,
            "/nowhere/train-images-idx3-ubyte.gz can be opened: No such file");
    REFUSED(trek_dataset_idx("/nowhere/a", labels), TREK_ERR_IO, "/nowhere/a: cannot be opened: No such file");
    REFUSED(trek_dataset_idx(folder, labels), TREK_ERR_IO, "directory");
    REFUSED(trek_dataset_idx(NULL, labels), TREK_ERR_ARGUMENT, "images");

    size_t n = make_images(buffer, 24);
    test_write_bytes(images, buffer, n);
    REFUSED(trek_dataset_idx(images, labels), TREK_ERR_FORMAT, "24 images");
    test_write_bytes(images, buffer, n - 5);
    REFUSED(trek_dataset_idx(images, labels), TREK_ERR_FORMAT, "truncated");
    buffer[n] = 1;
    test_write_bytes(images, buffer, n + 1);
    REFUSED(trek_dataset_idx(images, labels), TREK_ERR_FORMAT, "holds more than");
    test_write_bytes(images, buffer, 3);
    REFUSED(trek_dataset_idx(images, labels), TREK_ERR_FORMAT, "inside its header");
    test_write_bytes(images, buffer, 10);
    REFUSED(trek_dataset_idx(images, labels), TREK_ERR_FORMAT, "inside its header");
    test_write_bytes(images, "", 0);
    REFUSED(trek_dataset_idx(images, labels), TREK_ERR_FORMAT, "after 0 bytes");
    test_write_bytes(images, "PNG\r\n and more", 14);
    REFUSED(trek_dataset_idx(images, labels), TREK_ERR_FORMAT, "it begins with 50 4e 47 0d; it is not an IDX file");
    REFUSED(trek_dataset_idx(labels, labels), TREK_ERR_FORMAT, "must be images");
    n = make_images(buffer, 25);
    test_write_bytes(images, buffer, n);
    REFUSED(trek_dataset_idx(images, images), TREK_ERR_FORMAT, "must be labels");
}

/* Headers that promise the earth are refused before memory is asked for. */
static void idx_hostile_sizes(void **state)
{
    char *labels = in_folder("labels"), *images = in_folder("images");
    unsigned char head[36] = { 0, 0, 8, 8 };
    memset(head + 4, 0xff, 32);
    test_write_bytes(images, head, 36);
    REFUSED(trek_idx_read(images), TREK_ERR_FORMAT, "more than the file can hold");
    unsigned char large[16] = { 0, 0, 8, 3, 0x7f, 0xff, 0xff, 0xff, 0, 0, 0, 28, 0, 0, 0, 28 };
    test_write_bytes(images, large, 16);
    REFUSED(trek_dataset_idx(images, labels), TREK_ERR_FORMAT, "more than the file can hold");
    write_gzip(images, large, 16);
    REFUSED(trek_dataset_idx(images, labels), TREK_ERR_FORMAT, "more than the file can hold");
    unsigned char many[4] = { 0, 0, 8, 9 };
    test_write_bytes(images, many, 4);
    REFUSED(trek_idx_read(images), TREK_ERR_FORMAT, "9 dimensions");
}

/* A small file that becomes a large one fills no memory; what is no array or text is not unpacked at all. */
static void bombs(void **state)
{
    enum { SIZE = 80 << 20 };
    char *bomb = in_folder("bomb");
    unsigned char head[16] = { 0, 0, 8, 1, SIZE >> 24, SIZE >> 16 & 255, SIZE >> 8 & 255, SIZE & 255 };
    unsigned char *zeros = calloc(1, SIZE);
    assert_non_null(zeros);
    memcpy(zeros, head, 8);
    write_gzip(bomb, zeros, SIZE);
    REFUSED(trek_idx_read(bomb), TREK_ERR_FORMAT, "far more than such a file holds");
    REFUSED(trek_dataset_text_windows(bomb, 8, NULL), TREK_ERR_FORMAT, "far more than such a file holds");
    write_gzip(bomb, zeros, 100);
    REFUSED(trek_image_read(bomb, NULL), TREK_ERR_FORMAT, "it is compressed with gzip; must be uncompressed");
    free(zeros);
}

static void idx_damaged_gzip(void **state)
{
    static unsigned char packed[1 << 17];
    char *images = in_folder("packed"), *labels = in_folder("labels");
    size_t n = make_images(buffer, 25);
    write_gzip(images, buffer, n);
    size_t length = read_bytes(images, packed, sizeof(packed));
    test_write_bytes(images, packed, length - 9);
    REFUSED(trek_dataset_idx(images, labels), TREK_ERR_FORMAT, "truncated");
    test_write_bytes(images, packed, length - 4); /* all data is there, the trailer is not */
    REFUSED(trek_dataset_idx(images, labels), TREK_ERR_FORMAT, "truncated");
    packed[length - 8] ^= 1; /* the checksum */
    test_write_bytes(images, packed, length);
    REFUSED(trek_dataset_idx(images, labels), TREK_ERR_FORMAT, "corrupt (incorrect data check)");
    packed[length - 8] ^= 1;
    packed[12] = 0xff; /* the compressed data */
    test_write_bytes(images, packed, length);
    REFUSED(trek_dataset_idx(images, labels), TREK_ERR_FORMAT, images);
}

static void idx_element_types(void **state)
{
    unsigned char shorts[] = { 0, 0, 0x0B, 1, 0, 0, 0, 2, 0xff, 0xfe, 0x01, 0x00 };
    unsigned char bytes[] = { 0, 0, 0x09, 2, 0, 0, 0, 1, 0, 0, 0, 2, 0x80, 0x7f };
    unsigned char floats[] = { 0, 0, 0x0D, 1, 0, 0, 0, 1, 0xc0, 0x20, 0, 0 };
    unsigned char doubles[] = { 0, 0, 0x0E, 1, 0, 0, 0, 1, 0x3f, 0xe0, 0, 0, 0, 0, 0, 0 };
    char *path = in_folder("typed");
    test_write_bytes(path, shorts, sizeof(shorts));
    trek_tensor *t = trek_idx_read(path);
    assert_non_null(t);
    assert_int_equal(trek_tensor_dtype(t), TREK_I32);
    assert_int_equal(((int32_t *)trek_tensor_data(t))[0], -2);
    assert_int_equal(((int32_t *)trek_tensor_data(t))[1], 256);
    trek_tensor_release(t);
    test_write_bytes(path, bytes, sizeof(bytes));
    t = trek_idx_read(path);
    assert_true(trek_shape_equal(trek_tensor_shape(t), trek_dims(1, 2)));
    assert_int_equal(((int32_t *)trek_tensor_data(t))[0], -128);
    trek_tensor_release(t);
    test_write_bytes(path, floats, sizeof(floats));
    t = trek_idx_read(path);
    assert_true(trek_tensor_item(t) == -2.5);
    trek_tensor_release(t);
    test_write_bytes(path, doubles, sizeof(doubles));
    t = trek_idx_read(path);
    assert_int_equal(trek_tensor_dtype(t), TREK_F64);
    assert_true(trek_tensor_item(t) == 0.5);
    trek_tensor_release(t);
}

/* -- other datasets --------------------------------------------------------------- */

static void real_mnist(void **state)
{
    const char *data = getenv("TREK_DATA");
    char path[512];
    snprintf(path, sizeof(path), "%s/mnist", data ? data : "../shared/data");
    if (access(path, R_OK) != 0) {
        print_message("no MNIST at %s: its counts are not checked\n", path);
        return;
    }
    trek_dataset *set = trek_dataset_mnist(path, TREK_DATA_SPLIT_TEST);
    expect_no_error();
    assert_int_equal(trek_dataset_length(set), 10000);
    static const int of_digit[10] = { 980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009 };
    int counts[10] = { 0 };
    double sum = 0;
    for (int64_t i = 0; i < 10000; i++) {
        trek_tensor *out[2];
        assert_int_equal(trek_dataset_get(set, &i, 1, out), TREK_OK);
        counts[*(int64_t *)trek_tensor_data(out[1])]++;
        for (int p = 0; p < 784; p++)
            sum += ((float *)trek_tensor_data(out[0]))[p];
        trek_tensor_release(out[0]);
        trek_tensor_release(out[1]);
    }
    assert_memory_equal(counts, of_digit, sizeof(counts));
    assert_true(fabs(sum / 7840000 - 0.1325) < 0.0005); /* the known mean of the test images */
    trek_dataset_free(&set);
    set = trek_dataset_mnist(path, TREK_DATA_SPLIT_TRAIN);
    if (!set)
        expect_error(TREK_ERR_IO, "train-images-idx3-ubyte");
    trek_dataset_free(&set);
}

static void digits_are_a_function_of_seed_and_index(void **state)
{
    trek_dataset *a = trek_dataset_digits(1000, 7), *b = trek_dataset_digits(50, 7), *c = trek_dataset_digits(50, 8);
    int64_t some[4] = { 3, 49, 0, 17 }, one = 49;
    trek_tensor *x[2], *y[2], *z[2], *w[2];
    assert_int_equal(trek_dataset_get(a, some, 4, x), TREK_OK);
    assert_int_equal(trek_dataset_get(b, some, 4, y), TREK_OK);
    assert_int_equal(trek_dataset_get(c, some, 4, z), TREK_OK);
    assert_int_equal(trek_dataset_get(b, &one, 1, w), TREK_OK);
    assert_true(trek_shape_equal(trek_tensor_shape(x[0]), trek_dims(4, 1, 28, 28)));
    size_t bytes = 784 * sizeof(float);
    const char *xs = trek_tensor_data(x[0]);
    assert_memory_equal(xs, trek_tensor_data(y[0]), 4 * bytes);
    assert_memory_equal(trek_tensor_data(x[1]), trek_tensor_data(y[1]), 4 * sizeof(int64_t));
    assert_memory_equal(xs + bytes, trek_tensor_data(w[0]), bytes);
    assert_memory_not_equal(xs, trek_tensor_data(z[0]), 4 * bytes);
    for (int k = 0; k < 2; k++) {
        trek_tensor_release(x[k]);
        trek_tensor_release(y[k]);
        trek_tensor_release(z[k]);
        trek_tensor_release(w[k]);
    }
    trek_dataset_free(&a);
    trek_dataset_free(&b);
    trek_dataset_free(&c);
}

/* All digits occur about equally often, pixels lie in [0, 1], and the nearest
 * class mean is far better than chance yet far from solving the task. */
static void digits_are_learnable_but_not_trivial(void **state)
{
    enum { N = 3000, TEST = 1000 };
    static float images[N + TEST][784], means[10][784];
    static int64_t labels[N + TEST];
    int counts[10] = { 0 };
    trek_dataset *set = trek_dataset_digits(N + TEST, 1);
    for (int64_t i = 0; i < N + TEST; i++) {
        trek_tensor *out[2];
        assert_int_equal(trek_dataset_get(set, &i, 1, out), TREK_OK);
        memcpy(images[i], trek_tensor_data(out[0]), sizeof(images[i]));
        labels[i] = *(int64_t *)trek_tensor_data(out[1]);
        trek_tensor_release(out[0]);
        trek_tensor_release(out[1]);
        for (int p = 0; p < 784; p++)
            assert_true(images[i][p] >= 0 && images[i][p] <= 1);
    }
    trek_dataset_free(&set);
    for (int i = 0; i < N; i++) {
        counts[labels[i]]++;
        for (int p = 0; p < 784; p++)
            means[labels[i]][p] += images[i][p];
    }
    int right = 0;
    for (int i = N; i < N + TEST; i++) {
        int best = -1;
        double least = INFINITY;
        for (int d = 0; d < 10; d++) {
            double distance = 0;
            for (int p = 0; p < 784; p++)
                distance += pow(images[i][p] - means[d][p] / (float)counts[d], 2);
            if (distance < least) {
                least = distance;
                best = d;
            }
        }
        right += best == labels[i];
    }
    for (int d = 0; d < 10; d++)
        assert_in_range(counts[d], 230, 370); /* 300 +- 4 sigma */
    assert_in_range(right, 400, 850);
}

static void tensors_and_subsets(void **state)
{
    float x[12];
    int64_t y[6] = { 0, 10, 20, 30, 40, 50 };
    for (int i = 0; i < 12; i++)
        x[i] = (float)i;
    trek_tensor *list[2] = { trek_tensor_from_data(x, trek_dims(6, 2), TREK_F32, trek_cpu(0)),
                             trek_tensor_from_data(y, trek_dims(6), TREK_I64, trek_cpu(0)) };
    const char *names[2] = { "x", "y" };
    trek_dataset *all = trek_dataset_tensors(names, list, 2);
    trek_tensor_release(list[0]);
    trek_tensor_release(list[1]);
    trek_dataset *first = trek_dataset_subset(trek_dataset_retain(all), 0, 4);
    trek_dataset *rest = trek_dataset_subset(all, 4, 2);
    expect_no_error();
    assert_int_equal(trek_dataset_length(first), 4);
    trek_dataset_free(&first);
    int64_t indices[2] = { 1, 0 };
    trek_tensor *out[2];
    assert_int_equal(trek_dataset_get(rest, indices, 2, out), TREK_OK);
    const float expected[4] = { 10, 11, 8, 9 };
    assert_memory_equal(trek_tensor_data(out[0]), expected, sizeof(expected));
    assert_int_equal(((int64_t *)trek_tensor_data(out[1]))[0], 50);
    trek_tensor_release(out[0]);
    trek_tensor_release(out[1]);
    indices[0] = 2;
    FAILS(trek_dataset_get(rest, indices, 2, out), TREK_ERR_ARGUMENT, "sample 2 does not exist; there are 2");
    FAILS(trek_dataset_get(rest, indices, 0, out), TREK_ERR_ARGUMENT, "");

    trek_scope scope = trek_scope_begin();
    trek_var *sample = trek_dataset_sample(rest, 0, "x", trek_cpu(0));
    assert_true(trek_shape_equal(trek_var_shape(sample), trek_dims(1, 2)));
    REFUSED(trek_dataset_sample(rest, 0, "z", trek_cpu(0)), TREK_ERR_ARGUMENT, "no field \"z\"; the fields are: x, y");
    trek_scope_end(scope);
    REFUSED(trek_dataset_subset(rest, 1, 2), TREK_ERR_ARGUMENT, "2 samples from 1 on");
    assert_null(trek_dataset_subset(NULL, 0, 1));
    trek_error_clear();
}

static void tensors_refusals(void **state)
{
    trek_tensor *list[2] = { trek_tensor_empty(trek_dims(3, 2), TREK_F32, trek_cpu(0)),
                             trek_tensor_empty(trek_dims(4), TREK_I64, trek_cpu(0)) };
    const char *names[2] = { "x", "y" }, *same[2] = { "x", "x" };
    REFUSED(trek_dataset_tensors(names, list, 2), TREK_ERR_SHAPE, "\"x\" [3, 2], \"y\" [4]");
    trek_tensor *twice[2] = { list[0], list[0] };
    REFUSED(trek_dataset_tensors(same, twice, 2), TREK_ERR_ARGUMENT, "\"x\" occurs twice");
    REFUSED(trek_dataset_tensors(names, list, 0), TREK_ERR_ARGUMENT, "tensors");
    trek_tensor_release(list[0]);
    trek_tensor_release(list[1]);
}

static void text_windows_and_vocabulary(void **state)
{
    char *path = in_folder("text");
    test_write_bytes(path, "hello world", 11);
    trek_dataset *set = trek_dataset_text_windows(path, 3, NULL);
    expect_no_error();
    assert_int_equal(trek_dataset_length(set), 3);
    int size = 0;
    const unsigned char *vocabulary = trek_text_vocabulary(set, &size);
    assert_int_equal(size, 8);
    assert_memory_equal(vocabulary, " dehlorw", 8);
    int64_t index = 2, ids[3], expected[3];
    trek_tensor *out[2];
    assert_int_equal(trek_dataset_get(set, &index, 1, out), TREK_OK);
    assert_int_equal(trek_text_encode(set, "wor", 3, expected), TREK_OK);
    assert_memory_equal(trek_tensor_data(out[0]), expected, sizeof(expected));
    assert_int_equal(trek_text_encode(set, "orl", 3, expected), TREK_OK);
    assert_memory_equal(trek_tensor_data(out[1]), expected, sizeof(expected));
    trek_tensor_release(out[0]);
    trek_tensor_release(out[1]);
    FAILS(trek_text_encode(set, "xyz", 3, ids), TREK_ERR_ARGUMENT, "0x78");
    set = trek_dataset_subset(set, 1, 2);
    assert_non_null(trek_text_vocabulary(set, &size));
    trek_dataset_free(&set);
    set = trek_dataset_text_windows(path, 3, &(trek_text_windows_opts){ .stride = 1 });
    assert_int_equal(trek_dataset_length(set), 8);
    trek_dataset_free(&set);
    REFUSED(trek_dataset_text_windows(path, 11, NULL), TREK_ERR_FORMAT, "11 characters; too short for a window of 11");
    REFUSED(trek_dataset_text_windows(path, 0, NULL), TREK_ERR_ARGUMENT, "window: 0");
    REFUSED(trek_dataset_text_windows(in_folder("absent"), 3, NULL), TREK_ERR_IO, "/absent: cannot be opened");
}

static void cifar10_batches(void **state)
{
    static unsigned char records[2 * 3073];
    for (int i = 0; i < 2 * 3073; i++)
        records[i] = (unsigned char)(i % 251);
    records[0] = 9;
    records[3073] = 4;
    test_write_bytes(in_folder("test_batch.bin"), records, sizeof(records));
    trek_dataset *set = trek_dataset_cifar10(folder, TREK_DATA_SPLIT_TEST);
    expect_no_error();
    int64_t index = 1;
    trek_tensor *out[2];
    assert_int_equal(trek_dataset_get(set, &index, 1, out), TREK_OK);
    assert_true(trek_shape_equal(trek_tensor_shape(out[0]), trek_dims(1, 3, 32, 32)));
    assert_int_equal(*(int64_t *)trek_tensor_data(out[1]), 4);
    assert_true(((float *)trek_tensor_data(out[0]))[5] == (float)(3079 % 251) / 255.0f);
    trek_tensor_release(out[0]);
    trek_tensor_release(out[1]);
    trek_dataset_free(&set);
    REFUSED(trek_dataset_cifar10(folder, TREK_DATA_SPLIT_TRAIN), TREK_ERR_IO, "data_batch_1.bin");
    test_write_bytes(in_folder("test_batch.bin"), records, 4000);
    REFUSED(trek_dataset_cifar10(folder, TREK_DATA_SPLIT_TEST), TREK_ERR_FORMAT, "4000 bytes");
    records[0] = 10;
    test_write_bytes(in_folder("test_batch.bin"), records, sizeof(records));
    REFUSED(trek_dataset_cifar10(folder, TREK_DATA_SPLIT_TEST), TREK_ERR_FORMAT, "label of record 0: 10");
}

static void cifar100_records(void **state)
{
    static unsigned char records[3 * 3074];
    for (int i = 0; i < 3 * 3074; i++)
        records[i] = (unsigned char)(i % 251);
    for (int i = 0; i < 3; i++) {
        records[i * 3074] = (unsigned char)(19 - i);
        records[i * 3074 + 1] = (unsigned char)(99 - i);
    }
    test_write_bytes(in_folder("train.bin"), records, sizeof(records));
    trek_dataset *set = trek_dataset_cifar100(folder, TREK_DATA_SPLIT_TRAIN);
    expect_no_error();
    int64_t indices[2] = { 2, 0 };
    trek_tensor *out[3];
    assert_int_equal(trek_dataset_length(set), 3);
    assert_string_equal(trek_dataset_field_name(set, 2), "coarse");
    assert_int_equal(trek_dataset_get(set, indices, 2, out), TREK_OK);
    assert_memory_equal(trek_tensor_data(out[1]), ((int64_t[]){ 97, 99 }), 16);
    assert_memory_equal(trek_tensor_data(out[2]), ((int64_t[]){ 17, 19 }), 16);
    assert_true(((float *)trek_tensor_data(out[0]))[5] == (float)((2 * 3074 + 7) % 251) / 255.0f);
    for (int k = 0; k < 3; k++)
        trek_tensor_release(out[k]);
    trek_dataset_free(&set);
    REFUSED(trek_dataset_cifar100(folder, TREK_DATA_SPLIT_TEST), TREK_ERR_IO, "test.bin");
    records[3074 + 1] = 100;
    test_write_bytes(in_folder("train.bin"), records, sizeof(records));
    REFUSED(trek_dataset_cifar100(folder, TREK_DATA_SPLIT_TRAIN), TREK_ERR_FORMAT, "label of record 1: 100; must be 0 .. 99");
    REFUSED(trek_dataset_cifar100(NULL, TREK_DATA_SPLIT_TRAIN), TREK_ERR_ARGUMENT, "folder: NULL");
}

static void wide_token_shards(void **state)
{
    static unsigned char file[1024 + 16];
    unsigned char head[12] = { 0xA1, 0xD9, 0x34, 0x01, 7, 0, 0, 0, 4, 0, 0, 0 };
    memcpy(file, head, 12);
    for (int i = 0; i < 4; i++) {
        file[1024 + 4 * i] = (unsigned char)i;
        file[1024 + 4 * i + 2] = 1; /* 65536 + i */
        file[1024 + 4 * i + 3] = (unsigned char)(i == 3 ? 0x80 : 0);
    }
    char *paths[2] = { in_folder("wide.bin"), in_folder("raw.bin") };
    test_write_bytes(paths[0], file, sizeof(file));
    test_write_bytes(paths[1], file + 1024, 16);
    trek_dataset *set = trek_dataset_token_shards_with((const char *const *)paths, 2, 3, &(trek_token_shards_opts){ .bits = 32 });
    expect_no_error();
    assert_int_equal(trek_dataset_length(set), 2);
    int64_t indices[2] = { 1, 0 };
    trek_tensor *out[2];
    assert_int_equal(trek_dataset_get(set, indices, 2, out), TREK_OK);
    const int64_t input[6] = { 65536, 65537, 65538, 65536, 65537, 65538 }, last = 65539 + ((int64_t)1 << 31);
    assert_memory_equal(trek_tensor_data(out[0]), input, sizeof(input));
    assert_int_equal(((int64_t *)trek_tensor_data(out[1]))[2], last);
    trek_tensor_release(out[0]);
    trek_tensor_release(out[1]);
    trek_dataset_free(&set);
    set = trek_dataset_token_shards((const char *const *)paths, 1, 3); /* the header says it */
    assert_int_equal(trek_dataset_length(set), 1);
    trek_dataset_free(&set);
    REFUSED(trek_dataset_token_shards_with((const char *const *)paths, 1, 3, &(trek_token_shards_opts){ .bits = 8 }),
            TREK_ERR_ARGUMENT, ".bits: 8");
    test_write_bytes(paths[1], file + 1024, 14);
    REFUSED(trek_dataset_token_shards_with((const char *const *)paths + 1, 1, 3, &(trek_token_shards_opts){ .bits = 32 }),
            TREK_ERR_FORMAT, "32-bit tokens");
}

static void token_shards(void **state)
{
    static unsigned char file[1024 + 14];
    unsigned char raw[22];
    for (int i = 0; i < 11; i++)
        raw[2 * i] = (unsigned char)i, raw[2 * i + 1] = 1; /* 256 + i */
    unsigned char head[12] = { 0x88, 0xD8, 0x34, 0x01, 1, 0, 0, 0, 7, 0, 0, 0 };
    memcpy(file, head, 12);
    for (int i = 0; i < 7; i++)
        file[1024 + 2 * i] = (unsigned char)(100 + i);
    char *paths[3] = { in_folder("a.bin"), in_folder("short.bin"), in_folder("b.bin") };
    test_write_bytes(paths[0], raw, 22);
    test_write_bytes(paths[1], raw, 4);
    test_write_bytes(paths[2], file, sizeof(file));
    trek_dataset *set = trek_dataset_token_shards((const char *const *)paths, 3, 3);
    expect_no_error();
    assert_int_equal(trek_dataset_length(set), 3 + 0 + 2);
    int64_t indices[2] = { 2, 4 };
    trek_tensor *out[2];
    assert_int_equal(trek_dataset_get(set, indices, 2, out), TREK_OK);
    const int64_t input[6] = { 262, 263, 264, 103, 104, 105 }, target[6] = { 263, 264, 265, 104, 105, 106 };
    assert_memory_equal(trek_tensor_data(out[0]), input, sizeof(input));
    assert_memory_equal(trek_tensor_data(out[1]), target, sizeof(target));
    trek_tensor_release(out[0]);
    trek_tensor_release(out[1]);
    assert_int_equal(truncate(paths[0], 6), 0);
    FAILS(trek_dataset_get(set, indices, 1, out), TREK_ERR_IO, "shorter");
    trek_dataset_free(&set);
    file[8] = 8;
    test_write_bytes(paths[2], file, sizeof(file));
    REFUSED(trek_dataset_token_shards((const char *const *)paths + 2, 1, 3), TREK_ERR_FORMAT,
            "promises 8 tokens, but the file holds 7");
    REFUSED(trek_dataset_token_shards((const char *const *)paths + 1, 1, 3), TREK_ERR_FORMAT, "no window of 3");
}

/* A failed test leaves its error; the next begins without. */
static int make_folder(void **state)
{
    return mkdtemp(folder) ? 0 : -1;
}

static int remove_folder(void **state)
{
    return test_remove(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(idx_plain_and_gzip, clear_error), cmocka_unit_test_setup(idx_refusals, clear_error),
        cmocka_unit_test_setup(idx_hostile_sizes, clear_error), cmocka_unit_test_setup(idx_damaged_gzip, clear_error),
        cmocka_unit_test_setup(bombs, clear_error),
        cmocka_unit_test_setup(idx_element_types, clear_error), cmocka_unit_test_setup(real_mnist, clear_error),
        cmocka_unit_test_setup(digits_are_a_function_of_seed_and_index, clear_error),
        cmocka_unit_test_setup(digits_are_learnable_but_not_trivial, clear_error),
        cmocka_unit_test_setup(tensors_and_subsets, clear_error), cmocka_unit_test_setup(tensors_refusals, clear_error),
        cmocka_unit_test_setup(text_windows_and_vocabulary, clear_error), cmocka_unit_test_setup(cifar10_batches, clear_error),
        cmocka_unit_test_setup(cifar100_records, clear_error), cmocka_unit_test_setup(token_shards, clear_error),
        cmocka_unit_test_setup(wide_token_shards, clear_error),
    };
    return cmocka_run_group_tests_name("data", tests, make_folder, remove_folder);
}
