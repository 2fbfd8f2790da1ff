/* SPDX-License-Identifier: Apache-2.0 */
/* Images in files, and folders of them. More kinds of files stand in tests/checks/check_images.py, which Pillow writes. */
#include <sys/stat.h>
#include <unistd.h>

#include "data/dataset_class.h"
#include "data/image.h"
#include "data/transform.h"
#include "tensor/creation.h"
#include "tensor/shapes.h"
#include "tests/support/files.h"
#include "tests/support/scoped.h"
#include "tests/support/support.h"

static char folder[] = "/tmp/trek-images-XXXXXX";

/* 16 x 24, gray; its first row is about 0, 10, 20 ... */
static const unsigned char jpeg[] = {
    0xff, 0xd8, 0xff, 0xe0, 0x00, 0x10, 0x4a, 0x46, 0x49, 0x46, 0x00, 0x01, 0x01, 0x00, 0x00, 0x01, 0x00, 0x01, 0x00, 0x00,
    0xff, 0xdb, 0x00, 0x43, 0x00, 0x1b, 0x12, 0x14, 0x17, 0x14, 0x11, 0x1b, 0x17, 0x16, 0x17, 0x1e, 0x1c, 0x1b, 0x20, 0x28,
    0x42, 0x2b, 0x28, 0x25, 0x25, 0x28, 0x51, 0x3a, 0x3d, 0x30, 0x42, 0x60, 0x55, 0x65, 0x64, 0x5f, 0x55, 0x5d, 0x5b, 0x6a,
    0x78, 0x99, 0x81, 0x6a, 0x71, 0x90, 0x73, 0x5b, 0x5d, 0x85, 0xb5, 0x86, 0x90, 0x9e, 0xa3, 0xab, 0xad, 0xab, 0x67, 0x80,
    0xbc, 0xc9, 0xba, 0xa6, 0xc7, 0x99, 0xa8, 0xab, 0xa4, 0xff, 0xc0, 0x00, 0x0b, 0x08, 0x00, 0x10, 0x00, 0x18, 0x01, 0x01,
    0x11, 0x00, 0xff, 0xc4, 0x00, 0x15, 0x00, 0x01, 0x01, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
    0x00, 0x00, 0x00, 0x05, 0x06, 0xff, 0xc4, 0x00, 0x16, 0x10, 0x00, 0x03, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
    0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x04, 0x41, 0xff, 0xda, 0x00, 0x08, 0x01, 0x01, 0x00, 0x00, 0x3f, 0x00, 0x0d,
    0x58, 0x30, 0xac, 0x18, 0x56, 0x11, 0xea, 0xc1, 0x85, 0x60, 0xc2, 0xb0, 0xff, 0xd9,
};

static const char *in_folder(const char *name)
{
    static char paths[4][256];
    static int turn;
    turn = (turn + 1) % 4;
    snprintf(paths[turn], sizeof paths[turn], "%s/%s", folder, name);
    return paths[turn];
}

static void write_png(const char *name, int channels, int height, int width, int first)
{
    trek_tensor *image = trek_tensor_empty(trek_dims(channels, height, width), TREK_U8, trek_cpu(0));
    unsigned char *bytes = trek_tensor_data(image);
    for (int k = 0; k < channels * height * width; k++)
        bytes[k] = (unsigned char)(first + k * 7);
    assert_int_equal(trek_image_write_png(in_folder(name), image), TREK_OK);
    trek_tensor_release(image);
}

static int make_folder(void **state)
{
    assert_non_null(mkdtemp(folder));
    const char *inside[] = { "set", "set/zebra", "set/ant", "set/ant/more", "set/ant/a-b", "none", "empty", "empty/void", "one",
                             "one/x" };
    for (size_t k = 0; k < sizeof inside / sizeof *inside; k++)
        assert_int_equal(mkdir(in_folder(inside[k]), 0700), 0);
    write_png("set/zebra/b.png", 3, 5, 6, 1);
    write_png("set/zebra/a.PNG", 3, 5, 6, 2);
    write_png("set/ant/more/1.png", 1, 5, 6, 3);
    write_png("set/ant/a-b/2.png", 4, 5, 6, 4);
    write_png("set/ant/z.png", 3, 7, 6, 5);
    test_write_bytes(in_folder("set/ant/notes.txt"), "x", 1);
    test_write_bytes(in_folder("set/file.png"), "x", 1);
    test_write_bytes(in_folder("one/x/gray.jpg"), jpeg, sizeof jpeg);
    test_write_bytes(in_folder("one/x/no.jpeg"), "no image", 8);
    return 0;
}

static int remove_folder(void **state)
{
    return test_remove(folder);
}

static void test_folder(void **state)
{
    static const char *const order[] = { "set/ant/z.png", "set/ant/a-b/2.png", "set/ant/more/1.png", "set/zebra/a.PNG",
                                         "set/zebra/b.png" };
    trek_dataset *set = trek_dataset_image_folder(in_folder("set"), NULL);
    assert_int_equal(trek_dataset_length(set), 5);
    int n = 0;
    const char *const *classes = trek_image_folder_classes(set, &n);
    assert_int_equal(n, 2);
    assert_string_equal(classes[0], "ant");
    assert_string_equal(classes[1], "zebra");
    for (int k = 0; k < 5; k++)
        assert_string_equal(trek_image_folder_path(set, k), in_folder(order[k]));
    trek_tensor *out[2];
    assert_int_equal(trek_dataset_get(set, (int64_t[]){ 3, 1, 2, 4 }, 4, out), TREK_OK); /* gray and alpha become RGB */
    assert_true(trek_shape_equal(trek_tensor_shape(out[0]), trek_dims(4, 3, 5, 6)));
    const unsigned char *p = trek_tensor_data(out[0]);
    assert_int_equal(p[0], 2);
    assert_int_equal(p[1 * 90 + 31], (unsigned char)(4 + 31 * 7));
    assert_true(p[2 * 90 + 4] == 3 + 4 * 7 && p[2 * 90 + 34] == 3 + 4 * 7 && p[2 * 90 + 64] == 3 + 4 * 7);
    assert_memory_equal(trek_tensor_data(out[1]), ((int64_t[]){ 1, 0, 0, 1 }), 32);
    trek_tensor_release(out[0]);
    trek_tensor_release(out[1]);
    FAILS(trek_dataset_get(set, (int64_t[]){ 1, 0 }, 2, out), TREK_ERR_SHAPE, "a-b/2.png is of 5 x 6");
    REFUSED(trek_image_folder_path(set, 5), TREK_ERR_ARGUMENT, "index: 5; there are 5 samples");
    trek_dataset *alike = trek_dataset_transform(set, "image", trek_transform_resize(4, 4, NULL), 0);
    assert_int_equal(trek_dataset_get(alike, (int64_t[]){ 0, 1, 2, 3, 4 }, 5, out), TREK_OK);
    assert_true(trek_shape_equal(trek_tensor_shape(out[0]), trek_dims(5, 3, 4, 4)));
    trek_tensor_release(out[0]);
    trek_tensor_release(out[1]);
    assert_ptr_equal(trek_image_folder_classes(alike, &n), classes);
    REFUSED(trek_image_folder_path(alike, 0), TREK_ERR_ARGUMENT, "dataset: transform");
    trek_tensor *row = trek_tensor_zeros(trek_dims(1), TREK_I64, trek_cpu(0));
    trek_dataset *other = trek_dataset_tensors((const char *[]){ "label" }, &row, 1);
    trek_tensor_release(row);
    REFUSED(trek_image_folder_classes(other, &n), TREK_ERR_ARGUMENT, "must be an image_folder");
    trek_dataset_free(&other);
    trek_dataset_free(&alike);
}

static void test_bad_folders(void **state)
{
    REFUSED(trek_dataset_image_folder(NULL, NULL), TREK_ERR_ARGUMENT, "folder: NULL");
    REFUSED(trek_dataset_image_folder(in_folder("nowhere"), NULL), TREK_ERR_IO, "nowhere");
    REFUSED(trek_dataset_image_folder(in_folder("none"), NULL), TREK_ERR_FORMAT, "no folders of classes");
    REFUSED(trek_dataset_image_folder(in_folder("empty"), NULL), TREK_ERR_FORMAT, "empty/void: there is no image");
    trek_dataset *set = trek_dataset_image_folder(in_folder("one"), NULL);
    trek_tensor *out[2];
    FAILS(trek_dataset_get(set, (int64_t[]){ 0, 1 }, 2, out), TREK_ERR_FORMAT, "one/x/no.jpeg: it is neither PNG nor JPEG");
    trek_dataset_free(&set);
}

static void test_jpeg(void **state)
{
    trek_tensor *image = trek_image_decode(jpeg, sizeof jpeg, NULL, NULL), *gray = NULL;
    if (!image && trek_error_status() == TREK_ERR_UNSUPPORTED) {
        trek_error_clear();
        skip();
    }
    assert_true(trek_shape_equal(trek_tensor_shape(image), trek_dims(3, 16, 24)));
    const unsigned char *p = trek_tensor_data(image);
    for (int x = 0; x < 24; x++)
        assert_true(p[x] > 10 * x - 8 && p[x] < 10 * x + 8 && p[384 + x] == p[x] && p[768 + x] == p[x]);
    gray = trek_image_read(in_folder("one/x/gray.jpg"), &(trek_image_read_opts){ .channels = 1, .shrink_to = 8 });
    assert_true(trek_shape_equal(trek_tensor_shape(gray), trek_dims(1, 8, 12)));
    assert_true(((unsigned char *)trek_tensor_data(gray))[11] > 215);
    trek_tensor_release(image);
    trek_tensor_release(gray);
    for (size_t length = 3; length < sizeof jpeg; length++) { /* cut off anywhere */
        image = trek_image_decode(jpeg, length, "cut", NULL);
        if (length < sizeof jpeg - 2)
            assert_null(image);
        if (!image)
            expect_error(TREK_ERR_FORMAT, "cut: ");
        trek_tensor_release(image);
    }
}

/* A progressive picture of one block, whose first scan is there `scans` times. */
static size_t make_scans(unsigned char *to, int scans)
{
    static const unsigned char begin[] = { 0xff, 0xd8, 0xff, 0xdb, 0, 67, 0 };
    static const unsigned char frame[] = { 0xff, 0xc2, 0, 11, 8, 0, 8, 0, 8, 1, 1, 0x11, 0,
                                           0xff, 0xc4, 0, 20, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 };
    static const unsigned char scan[] = { 0xff, 0xda, 0, 8, 1, 1, 0, 0, 0, 0, 0x7f };
    size_t n = sizeof begin;
    memcpy(to, begin, n);
    memset(to + n, 1, 64);
    memcpy(to + (n += 64), frame, sizeof frame);
    n += sizeof frame;
    for (int k = 0; k < scans; k++, n += sizeof scan)
        memcpy(to + n, scan, sizeof scan);
    to[n++] = 0xff;
    to[n++] = 0xd9;
    return n;
}

static void test_scans(void **state)
{
    static unsigned char bytes[20000];
    trek_tensor *image = trek_image_decode(bytes, make_scans(bytes, 400), "scans", NULL);
    if (!image && trek_error_status() == TREK_ERR_UNSUPPORTED) {
        trek_error_clear();
        skip();
    }
    assert_non_null(image);
    assert_int_equal(((unsigned char *)trek_tensor_data(image))[0], 128);
    trek_tensor_release(image);
    REFUSED(trek_image_decode(bytes, make_scans(bytes, 1000), "scans", NULL), TREK_ERR_FORMAT,
            "scans: the JPEG cannot be read: it has more than 500 scans");
}

static void test_png(void **state)
{
    static unsigned char bytes[4096];
    FILE *file = fopen(in_folder("set/zebra/b.png"), "rb");
    size_t whole = fread(bytes, 1, sizeof bytes, file);
    fclose(file);
    trek_tensor *image = trek_image_decode(bytes, whole, NULL, &(trek_image_read_opts){ .channels = 4 });
    assert_true(trek_shape_equal(trek_tensor_shape(image), trek_dims(4, 5, 6)));
    const unsigned char *p = trek_tensor_data(image);
    for (int k = 0; k < 90; k++)
        assert_int_equal(p[k], (unsigned char)(1 + k * 7));
    assert_int_equal(p[90], 255);
    trek_tensor_release(image);
    for (size_t length = 8; length < whole; length++) {
        REFUSED(trek_image_decode(bytes, length, "cut", NULL), TREK_ERR_FORMAT, "cut: the PNG cannot be read");
    }
    REFUSED(trek_image_decode(bytes, whole, "large", &(trek_image_read_opts){ .most_pixels = 29 }), TREK_ERR_FORMAT,
            "large: an image of 5 x 6; must have at most 29");
    bytes[16] = 0x7f; /* a width of 2^31 */
    REFUSED(trek_image_decode(bytes, whole, "huge", NULL), TREK_ERR_FORMAT, "huge");
}

static void test_bad_calls(void **state)
{
    REFUSED(trek_image_read(NULL, NULL), TREK_ERR_ARGUMENT, "path: NULL");
    REFUSED(trek_image_read(in_folder("nothing.png"), NULL), TREK_ERR_IO, "nothing.png");
    REFUSED(trek_image_decode(NULL, 5, NULL, NULL), TREK_ERR_ARGUMENT, "bytes");
    REFUSED(trek_image_decode("", 0, NULL, NULL), TREK_ERR_FORMAT, "image: it is neither");
    REFUSED(trek_image_decode(jpeg, sizeof jpeg, NULL, &(trek_image_read_opts){ .channels = 2 }), TREK_ERR_ARGUMENT,
            ".channels: 2");
    trek_tensor *floats = trek_tensor_zeros(trek_dims(3, 2, 2), TREK_F32, trek_cpu(0)),
        *five = trek_tensor_zeros(trek_dims(5, 2, 2), TREK_U8, trek_cpu(0)),
                *one = trek_tensor_zeros(trek_dims(1, 2, 2), TREK_U8, trek_cpu(0));
    FAILS(trek_image_write_png(in_folder("w.png"), floats), TREK_ERR_DTYPE, "f32");
    FAILS(trek_image_write_png(in_folder("w.png"), five), TREK_ERR_SHAPE, "[5, 2, 2]");
    FAILS(trek_image_write_png(in_folder("no/w.png"), one), TREK_ERR_IO, "no/w.png");
    assert_int_equal(trek_image_write_png(in_folder("set"), one), TREK_ERR_IO); /* a folder */
    expect_error(TREK_ERR_IO, "set");
    FAILS(trek_image_write_png(NULL, one), TREK_ERR_ARGUMENT, "");
    trek_tensor_release(floats);
    trek_tensor_release(five);
    trek_tensor_release(one);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_folder), cmocka_unit_test(test_bad_folders), cmocka_unit_test(test_jpeg),
            cmocka_unit_test(test_scans),
        cmocka_unit_test(test_png), cmocka_unit_test(test_bad_calls),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
