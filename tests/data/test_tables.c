/* SPDX-License-Identifier: Apache-2.0 */
/* NumPy's files and tables of text: options, and refusals. What NumPy and Python's csv write and read stands in
 * tests/checks/check_tables.py. */
#include <locale.h>
#include <unistd.h>

#include "data/compose.h"
#include "data/csv.h"
#include "data/dataset_class.h"
#include "data/npy.h"
#include "tensor/copies.h"
#include "tensor/creation.h"
#include "tensor/dtypes.h"
#include "tensor/layout.h"
#include "tensor/shapes.h"
#include "tests/support/scoped.h"
#include "tests/support/support.h"

static char folder[] = "/tmp/trek-tables-XXXXXX";

static const char *in_folder(const char *name)
{
    static char paths[4][256];
    static int turn;
    turn = (turn + 1) % 4;
    snprintf(paths[turn], sizeof paths[turn], "%s/%s", folder, name);
    return paths[turn];
}

static const char *write_bytes(const char *name, const void *bytes, size_t length)
{
    const char *path = in_folder(name);
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, length, file), length);
    fclose(file);
    return path;
}

static const char *write_text(const char *text) { return write_bytes("x.csv", text, strlen(text)); }

static int make_folder(void **state)
{
    assert_non_null(mkdtemp(folder));
    return 0;
}

static int remove_folder(void **state)
{
    return test_remove(folder);
}

/* --- NumPy's files ------------------------------------------------------------------- */

static size_t read_bytes(const char *path, unsigned char *bytes, size_t room)
{
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    size_t n = fread(bytes, 1, room, file);
    fclose(file);
    return n;
}

/* Of any strides, and back. */
static void test_npy(void **state)
{
    for (int dtype = 0; dtype < TREK_DTYPE_COUNT; dtype++) {
        trek_tensor *x = trek_tensor_arange(0, 6, 1, TREK_F32, trek_cpu(0)), *y = trek_tensor_cast(x, (trek_dtype)dtype),
                    *z = trek_tensor_view(y, trek_dims(3, 2));
        const char *path = in_folder("x.npy");
        if (dtype == TREK_BF16) {
            FAILS(trek_npy_write(path, z), TREK_ERR_DTYPE, "bf16");
        } else {
            assert_int_equal(trek_npy_write(path, z), TREK_OK);
            trek_tensor *back = trek_npy_read(path);
            assert_int_equal(trek_tensor_dtype(back), dtype);
            assert_true(trek_shape_equal(trek_tensor_shape(back), trek_dims(3, 2)));
            assert_memory_equal(trek_tensor_data(back), trek_tensor_data(z), 6 * trek_dtype_size((trek_dtype)dtype));
            trek_tensor_release(back);
        }
        trek_tensor_release(x);
        trek_tensor_release(y);
        trek_tensor_release(z);
    }
}

static void refuses_npy(const char *header, size_t data, trek_status status, const char *part)
{
    unsigned char file[400] = "\x93NUMPY\1\0";
    size_t length = strlen(header);
    file[8] = (unsigned char)length;
    snprintf((char *)file + 10, sizeof file - 10, "%s", header);
    REFUSED(trek_npy_read(write_bytes("bad.npy", file, 10 + length + data)), status, part);
    if (!trek_npy_read(in_folder("bad.npy")))
        expect_error(status, "bad.npy");
}

static void test_bad_npy(void **state)
{
    refuses_npy("{'descr': '<f4', 'fortran_order': False, 'shape': (3,), }", 11, TREK_ERR_FORMAT, "promises [3]");
    refuses_npy("{'descr': '<f4', 'fortran_order': False, 'shape': (3,), }", 13, TREK_ERR_FORMAT, "1 bytes follow");
    refuses_npy("{'descr': '<f4', 'fortran_order': False, 'shape': (4611686018427387904, 4), }", 16, TREK_ERR_FORMAT, "promises");
    refuses_npy("{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999,), }", 16, TREK_ERR_FORMAT, "header");
    refuses_npy("{'descr': '<f4', 'fortran_order': False, 'shape': (1,1,1,1,1,1,1,1,1), }", 4, TREK_ERR_FORMAT, "8 dimensions");
    refuses_npy("{'descr': '<f4', 'fortran_order': False}", 4, TREK_ERR_FORMAT, "header");
    refuses_npy("{'descr': '<f4', 'fortran_order': Maybe, 'shape': (1,)}", 4, TREK_ERR_FORMAT, "header");
    refuses_npy("{'descr': '<f4', 'order': False, 'shape': (1,)}", 4, TREK_ERR_FORMAT, "header");
    refuses_npy("{'descr': '<c8', 'fortran_order': False, 'shape': (1,)}", 8, TREK_ERR_DTYPE, "<c8");
    refuses_npy("{'descr': '<f', 'fortran_order': False, 'shape': (1,)}", 8, TREK_ERR_DTYPE, "<f");
    refuses_npy("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (1,)}", 8, TREK_ERR_DTYPE, "records");
    REFUSED(trek_npy_read(write_bytes("bad.npy", "\x93NUMPX\1\0\0\0", 10)), TREK_ERR_FORMAT, "it is not an array of NumPy");
    REFUSED(trek_npy_read(write_bytes("bad.npy", "\x93NUMPY\4\0\0\0", 10)), TREK_ERR_FORMAT, "format 4");
    REFUSED(trek_npy_read(write_bytes("bad.npy", "\x93NUM", 4)), TREK_ERR_FORMAT, "ends early");
    REFUSED(trek_npy_read(in_folder("none.npy")), TREK_ERR_IO, "none.npy");
    REFUSED(trek_npy_read(folder), TREK_ERR_IO, "not a regular file");
    REFUSED(trek_npy_read(NULL), TREK_ERR_ARGUMENT, "path: NULL");
    FAILS(trek_npy_write(in_folder("x.npy"), NULL), TREK_ERR_ARGUMENT, "tensor: NULL");
}

static void test_npz(void **state)
{
    static unsigned char bytes[20000];
    trek_tensor *x[2] = { trek_tensor_arange(0, 300, 1, TREK_F32, trek_cpu(0)),
                          trek_tensor_arange(0, 300, 1, TREK_I64, trek_cpu(0)) };
    trek_tensor *wide = trek_tensor_view(x[0], trek_dims(30, 10)), *tall = trek_tensor_view(x[1], trek_dims(30, 10));
    for (int compress = 0; compress < 2; compress++) {
        const char *path = in_folder("x.npz");
        trek_status status = trek_npz_write(path, (const char *[]){ "wide", "tall" }, (trek_tensor *[]){ wide, tall }, 2,
                                            compress);
        if (status == TREK_ERR_UNSUPPORTED) {
            trek_error_clear();
            skip();
        }
        assert_int_equal(status, TREK_OK);
        trek_dataset *set = trek_dataset_npz(path);
        trek_tensor *out[2];
        assert_int_equal(trek_dataset_length(set), 30);
        assert_string_equal(trek_dataset_field_name(set, 1), "tall");
        assert_int_equal(trek_dataset_get(set, (int64_t[]){ 7 }, 1, out), TREK_OK);
        assert_true(((float *)trek_tensor_data(out[0]))[3] == 73 && ((int64_t *)trek_tensor_data(out[1]))[9] == 79);
        trek_tensor_release(out[0]);
        trek_tensor_release(out[1]);
        trek_dataset_free(&set);
        size_t length = read_bytes(path, bytes, sizeof bytes);
        assert_true(length < sizeof bytes);
        for (size_t k = 0; k < length; k += 1 + k / 40) { /* one byte is another, or the end is missing: never a wrong array */
            for (int way = 0; way < 2; way++) {
                bytes[k] ^= (unsigned char)(way ? 0 : 0x41);
                trek_npz *npz = trek_npz_open(write_bytes("y.npz", bytes, way ? k : length));
                bytes[k] ^= (unsigned char)(way ? 0 : 0x41);
                trek_tensor *y = npz ? trek_npz_read(npz, "wide") : NULL;
                if (y)
                    assert_memory_equal(trek_tensor_data(y), trek_tensor_data(wide), 1200);
                else
                    assert_true(trek_error_status() != TREK_OK && strstr(trek_error(), "y.npz"));
                trek_error_clear();
                trek_tensor_release(y);
                trek_npz_close(&npz);
            }
        }
    }
    trek_npz *npz = trek_npz_open(in_folder("x.npz"));
    assert_int_equal(trek_npz_count(npz), 2);
    assert_string_equal(trek_npz_name(npz, 0), "wide");
    assert_null(trek_npz_name(npz, 2));
    REFUSED(trek_npz_read(npz, "deep"), TREK_ERR_ARGUMENT, "wide, tall");
    assert_null(trek_npz_read(npz, NULL));
    trek_error_clear();
    trek_npz_close(&npz);
    trek_npz_close(&npz);
    assert_int_equal(trek_npz_count(NULL), -1);
    trek_error_clear();
    FAILS(trek_npz_write(in_folder("z.npz"), (const char *[]){ "a", "a" }, x, 2, false), TREK_ERR_ARGUMENT,
          "\"a\" occurs twice");
    FAILS(trek_npz_write(in_folder("z.npz"), (const char *[]){ "" }, x, 1, false), TREK_ERR_ARGUMENT, "name of array 0: missing");
    FAILS(trek_npz_write(in_folder("no/z.npz"), (const char *[]){ "a" }, x, 1, false), TREK_ERR_IO, "");
    REFUSED(trek_npz_open(write_text("a,b\n1,2\n")), TREK_ERR_FORMAT, "no zip archive");
    REFUSED(trek_npz_open(in_folder("none.npz")), TREK_ERR_IO, "none.npz");
    assert_int_equal(trek_npz_write(in_folder("z.npz"), NULL, NULL, 0, true), TREK_OK);
    REFUSED(trek_dataset_npz(in_folder("z.npz")), TREK_ERR_FORMAT, "no arrays");
    trek_tensor_release(wide);
    trek_tensor_release(tall);
    trek_tensor_release(x[0]);
    trek_tensor_release(x[1]);
}

/* --- tables ------------------------------------------------------------------------------ */

static trek_dataset *table(const char *text, const trek_csv_field *fields, int n)
{
    return trek_dataset_csv(write_text(text), fields ? &(trek_csv_opts){ .fields = fields, .n_fields = n } : NULL);
}

static void test_inferred(void **state)
{
    setlocale(LC_ALL, "de_DE.UTF-8"); /* a comma, where it is installed */
    trek_dataset *set = table("\xef\xbb\xbf"
                              "id,size,kind,,some\r\n3,1.5,b,1,\r\n\r\n-9223372036854775808,2,\"a\"\"x,\n\",0,4\r\n5,-3e2,b,1,NA",
                              NULL, 0);
    assert_int_equal(trek_dataset_length(set), 3);
    static const char *const names[] = { "id", "size", "kind", "3", "some" };
    for (int k = 0; k < 5; k++)
        assert_string_equal(trek_dataset_field_name(set, k), names[k]);
    trek_tensor *out[5];
    assert_int_equal(trek_dataset_get(set, (int64_t[]){ 1, 2 }, 2, out), TREK_OK);
    assert_true(((int64_t *)trek_tensor_data(out[0]))[0] == INT64_MIN && ((int64_t *)trek_tensor_data(out[0]))[1] == 5);
    assert_true(((float *)trek_tensor_data(out[1]))[0] == 2 && ((float *)trek_tensor_data(out[1]))[1] == -300);
    assert_memory_equal(trek_tensor_data(out[2]), ((int64_t[]){ 0, 1 }), 16);
    assert_int_equal(trek_tensor_dtype(out[3]), TREK_I64);
    assert_true(((float *)trek_tensor_data(out[4]))[0] == 4 && isnan(((float *)trek_tensor_data(out[4]))[1]));
    for (int k = 0; k < 5; k++)
        trek_tensor_release(out[k]);
    int n = 0;
    trek_dataset *part = trek_dataset_subset(set, 0, 1);
    const char *const *words = trek_csv_words(part, "kind", &n);
    assert_int_equal(n, 2);
    assert_string_equal(words[0], "a\"x,\n");
    assert_string_equal(words[1], "b");
    REFUSED(trek_csv_words(part, "size", &n), TREK_ERR_ARGUMENT, "not a category");
    assert_null(trek_csv_words(NULL, "size", &n));
    trek_error_clear();
    trek_dataset_free(&part);
    setlocale(LC_ALL, "C");
}

static void test_typed(void **state)
{
    const char *const pair[] = { "b", "a" }, *const colours[] = { "red", "green", "blue" };
    const trek_csv_field fields[] = {
        { .name = "x", .columns = pair, .n_columns = 2, .dtype = TREK_F64 },
        { .name = "flag", .dtype = TREK_BOOL },
        { .name = "n", .dtype = TREK_U8, .fill = true, .missing = 7 },
        { .name = "colour", .category = true, .words = colours, .n_words = 3 },
        { .columns = pair, .n_columns = 1, .dtype = TREK_I32 },
        { .name = "half", .columns = pair + 1, .n_columns = 1, .dtype = TREK_BF16 },
    };
    trek_dataset *set = table("a,b,flag,n,colour\n1,2,true,255,blue\n-4,5,0,,red\n6,7,FALSE,3,\n", fields, 6);
    trek_tensor *out[6];
    assert_int_equal(trek_dataset_get(set, (int64_t[]){ 0, 1, 2 }, 3, out), TREK_OK);
    assert_memory_equal(trek_tensor_data(out[0]), ((double[]){ 2, 1, 5, -4, 7, 6 }), 48);
    assert_memory_equal(trek_tensor_data(out[1]), ((unsigned char[]){ 1, 0, 0 }), 3);
    assert_memory_equal(trek_tensor_data(out[2]), ((unsigned char[]){ 255, 7, 3 }), 3);
    assert_memory_equal(trek_tensor_data(out[3]), ((int64_t[]){ 2, 0, -1 }), 24);
    assert_memory_equal(trek_tensor_data(out[4]), ((int32_t[]){ 2, 5, 7 }), 12);
    assert_int_equal(trek_tensor_dtype(out[5]), TREK_BF16);
    assert_string_equal(trek_dataset_field_name(set, 4), "b");
    for (int k = 0; k < 6; k++)
        trek_tensor_release(out[k]);
    trek_dataset_free(&set);
    set = trek_dataset_csv(write_text("1;2\n3;x\n"), &(trek_csv_opts){ .delimiter = ';', .no_header = true, .missing = "x" });
    assert_int_equal(trek_dataset_length(set), 2);
    assert_string_equal(trek_dataset_field_name(set, 1), "1");
    trek_dataset_free(&set);
    set = table("a,b\n", NULL, 0); /* no rows */
    assert_int_equal(trek_dataset_length(set), 0);
    trek_dataset_free(&set);
}

static void refuses(const char *text, const trek_csv_field *field, trek_status status, const char *part)
{
    REFUSED(table(text, field, 1), status, part);
}

static void test_bad_tables(void **state)
{
    const char *const words[] = { "a", "a" };
    refuses("a,b\n1,2\n3\n", NULL, TREK_ERR_FORMAT, "line 3: 1 values; the first row has 2");
    refuses("a,b\n1,2\n\n\"3\n\n\",4,5\n", NULL, TREK_ERR_FORMAT, "line 4: 3 values");
    refuses("a,b\n1,\"2\n", NULL, TREK_ERR_FORMAT, "line 2: a quote that does not end");
    refuses("a,b\n1,\"2\"3\n", NULL, TREK_ERR_FORMAT, "text follows");
    refuses("", NULL, TREK_ERR_FORMAT, "the file is empty");
    refuses("\n\n", NULL, TREK_ERR_FORMAT, "the file is empty");
    refuses("a,a\n1,2\n", NULL, TREK_ERR_ARGUMENT, "\"a\" occurs twice");
    refuses("a,b\n1,2\n", &(trek_csv_field){ .name = "c" }, TREK_ERR_ARGUMENT, "the columns are: a, b");
    refuses("a,b\n1,0x12\n", &(trek_csv_field){ .name = "b" }, TREK_ERR_FORMAT, "line 2, column b: \"0x12\" is not a number");
    refuses("a,b\n1,1.5\n", &(trek_csv_field){ .name = "b", .dtype = TREK_I32 }, TREK_ERR_FORMAT, "not a whole number");
    refuses("a,b\n1,256\n", &(trek_csv_field){ .name = "b", .dtype = TREK_U8 }, TREK_ERR_FORMAT, "out of the range of u8");
    refuses("a,b\n1,2\n", &(trek_csv_field){ .name = "b", .dtype = TREK_BOOL }, TREK_ERR_FORMAT, "out of the range of bool");
    refuses("a,b\n1,\n", &(trek_csv_field){ .name = "b", .dtype = TREK_I64 }, TREK_ERR_FORMAT, "missing from a field of i64");
    refuses("a,b\n1,x\n", &(trek_csv_field){ .name = "b", .category = true, .words = words, .n_words = 1 }, TREK_ERR_FORMAT,
            "not one of the words");
    refuses("a\na\n", &(trek_csv_field){ .name = "a", .category = true, .words = words, .n_words = 2 }, TREK_ERR_ARGUMENT,
            "occurs twice");
    refuses("a\na\n", &(trek_csv_field){ .name = "a", .category = true, .fill = true }, TREK_ERR_ARGUMENT,
            "without .words");
    refuses("a\n1\n", &(trek_csv_field){ .name = "a", .dtype = TREK_U8, .fill = true, .missing = -1 }, TREK_ERR_ARGUMENT,
            "a value that u8 can hold");
    refuses("a\n1\n", &(trek_csv_field){ .dtype = TREK_U8 }, TREK_ERR_ARGUMENT, "it has no column");
    REFUSED(trek_dataset_csv(NULL, NULL), TREK_ERR_ARGUMENT, "path: NULL");
    REFUSED(trek_dataset_csv(in_folder("none.csv"), NULL), TREK_ERR_IO, "none.csv");
    REFUSED(trek_dataset_csv(write_text("a"), &(trek_csv_opts){ .delimiter = '"' }), TREK_ERR_ARGUMENT, ".n_fields: 0");
    REFUSED(trek_dataset_csv(write_bytes("x.csv", "a\n\0\n", 4), NULL), TREK_ERR_FORMAT, "a byte 0");
}

/* Longer than the pieces that a file is read in; many words. */
static void test_long_table(void **state)
{
    enum { ROWS = 30000 };
    FILE *file = fopen(in_folder("long.csv"), "wb");
    fprintf(file, "i,word,half\n");
    for (int i = 0; i < ROWS; i++)
        fprintf(file, "%d,w%05d,%d.5\n", i, i * 7919 % ROWS, i);
    fclose(file);
    trek_dataset *set = trek_dataset_csv(in_folder("long.csv"), NULL);
    assert_int_equal(trek_dataset_length(set), ROWS);
    for (int64_t i = 0; i < ROWS; i += 997) {
        trek_tensor *out[3];
        assert_int_equal(trek_dataset_get(set, &i, 1, out), TREK_OK);
        assert_int_equal(*(int64_t *)trek_tensor_data(out[0]), i);
        assert_int_equal(*(int64_t *)trek_tensor_data(out[1]), i * 7919 % ROWS);
        assert_true(*(float *)trek_tensor_data(out[2]) == (float)i + 0.5f);
        for (int k = 0; k < 3; k++)
            trek_tensor_release(out[k]);
    }
    trek_dataset_free(&set);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_npy), cmocka_unit_test(test_bad_npy), cmocka_unit_test(test_npz), cmocka_unit_test(test_inferred),
        cmocka_unit_test(test_typed), cmocka_unit_test(test_bad_tables), cmocka_unit_test(test_long_table),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
