/* SPDX-License-Identifier: Apache-2.0 */
/* Libraries that are opened when they are needed: found, not there, another one under the name, by several threads at once. */
#include <pthread.h>

#include "data/image.h"
#include "monitor/monitor.h"
#include "tensor/late.h"
#include "tests/support/scoped.h"
#include "tests/support/support.h"

typedef double real_fn(double);
static struct { real_fn *cos, *sin; } math;
static const char *const names[] = { "cos", "sin" }, *const others[] = { "cos", "trek_is_not_there" };
#define MATH(...) { .package = "mathematics", .names = names, .functions = &math, .n = 2, .files = { __VA_ARGS__ } }

static void test_found(void **state)
{
    trek_late late = MATH("libtrek-nowhere.so.7", "libm.so.6"); /* the second of them */
    assert_true(trek_late_there(&late, "a wave") && trek_late_there(&late, "a wave"));
    assert_true(math.cos(0) == 1 && math.sin(0) == 0);
    assert_int_equal(trek_error_status(), TREK_OK);
}

static void expect_absent(trek_late *late, const char *text)
{
    for (int k = 0; k < 2; k++) { /* said again, and not tried again */
        assert_false(trek_late_there(late, "a wave"));
        expect_error(TREK_ERR_UNSUPPORTED, text);
    }
}

static void test_absent(void **state)
{
    trek_late nowhere = MATH("libtrek-nowhere.so.7"), lacking = MATH("libm.so.6"), named = MATH("libm.so.6");
    expect_absent(&nowhere, "a wave: it needs mathematics (libtrek-nowhere.so.7: ");
    lacking.names = others;
    expect_absent(&lacking, "libm.so.6: it has no trek_is_not_there");
    named.variable = "TREK_TEST_LATE";
    setenv("TREK_TEST_LATE", "/nowhere/libm.so", 1);
    expect_absent(&named, "a file named in TREK_TEST_LATE (/nowhere/libm.so: ");
    trek_late again = MATH("libm.so.6");
    again.variable = "TREK_TEST_LATE";
    setenv("TREK_TEST_LATE", "", 1);
    assert_true(trek_late_there(&again, "a wave"));
}

static trek_late shared = MATH("libm.so.6");

static void *call(void *arg)
{
    return trek_late_there(&shared, "a wave") && math.cos(0) == 1 ? &shared : NULL;
}

static void test_at_once(void **state)
{
    pthread_t threads[8];
    void *good;
    for (int k = 0; k < 8; k++)
        assert_int_equal(pthread_create(&threads[k], NULL, call, NULL), 0);
    for (int k = 0; k < 8; k++) {
        pthread_join(threads[k], &good);
        assert_non_null(good);
    }
}

/* One of the library's own: an image, where libpng is not. */
static void test_image(void **state)
{
    setenv("TREK_LIBPNG", "/nowhere/libpng.so", 1);
    trek_tensor *image = trek_tensor_zeros(trek_dims(3, 2, 2), TREK_U8, trek_cpu(0));
    FAILS(trek_image_write_png("late.png", image), TREK_ERR_UNSUPPORTED, "late.png: it needs libpng");
    FILE *file = fopen("late.png", "rb");
    assert_null(file);
    trek_monitor *monitor = trek_monitor_new(&(trek_monitor_opts){ .folder = "late", .name = "run" });
    FAILS(trek_monitor_image(monitor, "none", 0, image), TREK_ERR_UNSUPPORTED, "trek_monitor_image: it needs libpng");
    trek_monitor_free(&monitor);
    assert_int_equal(system("rm -r late"), 0);
    trek_tensor_release(image);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_found), cmocka_unit_test(test_absent),
                                        cmocka_unit_test(test_at_once),
                                        cmocka_unit_test(test_image) };
    return cmocka_run_group_tests_name("late", tests, NULL, NULL);
}
