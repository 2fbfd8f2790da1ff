/* SPDX-License-Identifier: Apache-2.0 */
/* Tensors print as NumPy prints arrays, to the letter: print.txt holds
 * NumPy's text of the same cases in the same order (make_print.py). */
#include <locale.h>
#include <unistd.h>

#include "autograd/var.h"
#include "tensor/copies.h"
#include "tensor/print.h"
#include "tensor/tensor.h"
#include "tests/support/refused.h"

static FILE *expected;

/* The next entry of the file, without its end. */
static void next_entry(char *text, size_t size)
{
    char line[512];
    size_t length = 0;
    text[0] = '\0';
    while (fgets(line, sizeof line, expected) && strcmp(line, "--\n") != 0) {
        size_t n = strlen(line);
        assert_true(length + n + 1 < size);
        memcpy(text + length, line, n + 1);
        length += n;
    }
    if (length > 0)
        text[length - 1] = '\0';
}

static void show(const double *values, trek_shape shape, trek_dtype dtype)
{
    static char text[1 << 16];
    next_entry(text, sizeof text);
    trek_tensor *wide = trek_tensor_from_data(values, shape, TREK_F64, trek_cpu(0)), *t = trek_tensor_cast(wide, dtype);
    char *printed = trek_tensor_text(t);
    assert_non_null(printed);
    assert_string_equal(printed, text);
    trek_string_free(&printed);
    trek_tensor_release(t);
    trek_tensor_release(wide);
}

static void show_range(int n, trek_shape shape, trek_dtype dtype)
{
    double *values = malloc((size_t)n * sizeof *values);
    assert_non_null(values);
    for (int k = 0; k < n; k++)
        values[k] = k;
    show(values, shape, dtype);
    free(values);
}

static void as_numpy(void **state)
{
    char path[4096];
    const char *root = getenv("TREK_TEST_ROOT");
    snprintf(path, sizeof path, "%s/tests/tensor/print.txt", root ? root : ".");
    expected = fopen(path, "r");
    assert_non_null(expected);
    const double a[] = { 1, 2, 3, 4.5, -1, 0.25 }, mixed[] = { 1e-10, 1, 1000, NAN, INFINITY, -INFINITY };
    const double thirds[] = { 1.0 / 3, 2.0 / 3, 1e5 }, few[] = { 1, 2, 3 }, flags[] = { 1, 0, 3 }, one[] = { 1 };
    const double large[] = { 0.1, 0.12, 123456789.0 }, small[] = { 0.1, 0.2, 0.3, 1e-5 }, pi[] = { 3.14159265358979 };
    const double bytes[] = { 200, 7, 0 };
    show(a, trek_dims(2, 3), TREK_F32);
    show(a, trek_dims(6), TREK_I64);
    show(mixed, trek_dims(6), TREK_F64);
    show(thirds, trek_dims(3), TREK_F64);
    show(thirds, trek_dims(3), TREK_F32);
    show(few, trek_dims(3), TREK_F32);
    show(flags, trek_dims(3, 1), TREK_BOOL);
    show(one, trek_dims(1), TREK_F32);
    show(one, trek_dims_none(), TREK_F32);
    show(one, trek_dims(0, 3), TREK_F32);
    show(large, trek_dims(3), TREK_F64);
    show(small, trek_dims(2, 1, 2), TREK_F32);
    show(pi, trek_dims_none(), TREK_F64);
    show(pi, trek_dims(1), TREK_F16);
    show_range(100, trek_dims(100), TREK_F32);
    show_range(100, trek_dims(2, 2, 25), TREK_F32);
    show_range(2000, trek_dims(20, 100), TREK_F32);
    show_range(3000, trek_dims(10, 10, 30), TREK_I64);
    show(bytes, trek_dims(3), TREK_U8);
    fclose(expected);
}

/* Where the locale writes a comma, a point is printed all the same. */
static void without_locale(void **state)
{
    const char *found = setlocale(LC_NUMERIC, "de_DE.UTF-8");
    as_numpy(state);
    if (found)
        setlocale(LC_NUMERIC, "C");
}

static void expect_printed(FILE *stream, const trek_tensor *t)
{
    char printed[256] = "", *wanted = trek_tensor_text(t);
    rewind(stream);
    size_t size = fread(printed, 1, sizeof printed - 1, stream);
    printed[size] = '\0';
    assert_true(size == strlen(wanted) + 1 && strncmp(printed, wanted, size - 1) == 0 && printed[size - 1] == '\n');
    trek_string_free(&wanted);
}

/* The same text and the end of a line, to a stream or to stdout; of variables as of tensors. */
static void to_streams(void **state)
{
    trek_scope scope = trek_scope_begin();
    trek_tensor *t = trek_tensor_from_data((double[]){ 1, -2.5, 1e-9, NAN }, trek_dims(2, 2), TREK_F64, trek_cpu(0));
    trek_var *v = trek_var_new(t, false);
    for (int k = 0; k < 4; k++) {
        FILE *stream = tmpfile();
        int out = dup(STDOUT_FILENO);
        fflush(stdout);
        if (k >= 2)
            dup2(fileno(stream), STDOUT_FILENO);
        trek_status status = k % 2 ? trek_var_print(v, k < 2 ? stream : NULL) : trek_tensor_print(t, k < 2 ? stream : NULL);
        fflush(stdout);
        dup2(out, STDOUT_FILENO);
        close(out);
        assert_int_equal(status, TREK_OK);
        expect_printed(stream, t);
        fclose(stream);
    }
    trek_var_release(v);
    trek_tensor_release(t);
    assert_int_equal(trek_scope_end(scope), TREK_OK);
}

static void to_nowhere(void **state)
{
    FILE *closed = fopen("/dev/null", "r"); /* cannot be written to */
    assert_non_null(closed);
    setvbuf(closed, NULL, _IONBF, 0);
    trek_tensor *t = trek_tensor_ones(trek_dims(3), TREK_F32, trek_cpu(0));
    FAILS(trek_tensor_print(t, closed), TREK_ERR_IO, "");
    fclose(closed);
    FAILS(trek_tensor_print(NULL, NULL), TREK_ERR_ARGUMENT, "");
    FAILS(trek_var_print(NULL, NULL), TREK_ERR_ARGUMENT, "");
    trek_tensor_release(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(as_numpy), cmocka_unit_test(without_locale),
                                        cmocka_unit_test(to_streams), cmocka_unit_test(to_nowhere) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
