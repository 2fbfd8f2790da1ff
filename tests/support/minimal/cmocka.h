/* SPDX-License-Identifier: Apache-2.0 */
/* Stands in for cmocka where it is not installed: those parts of its interface
 * that the tests use, with the summary that tests/count.py reads. An assertion
 * that fails ends its test by longjmp, so assertions belong to the test's thread. */
#ifndef TREK_TESTS_MINIMAL_CMOCKA_H
#define TREK_TESTS_MINIMAL_CMOCKA_H

#include <float.h>
#include <fnmatch.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef void (*CMUnitTestFunction)(void **state);
typedef int (*CMFixtureFunction)(void **state);

struct CMUnitTest {
    const char *name;
    CMUnitTestFunction test_func;
    CMFixtureFunction setup_func;
    CMFixtureFunction teardown_func;
    void *initial_state;
};

#define cmocka_unit_test(test) { #test, test, NULL, NULL, NULL }
#define cmocka_unit_test_setup(test, setup) { #test, test, setup, NULL, NULL }
#define cmocka_unit_test_teardown(test, teardown) { #test, test, NULL, teardown, NULL }
#define cmocka_unit_test_setup_teardown(test, setup, teardown) { #test, test, setup, teardown, NULL }
#define cmocka_unit_test_prestate(test, state) { #test, test, NULL, NULL, state }

enum { MINIMAL_PASSED, MINIMAL_FAILED, MINIMAL_SKIPPED };

static jmp_buf minimal_end; /* where a failing assertion goes */

#if defined(__GNUC__)
#define MINIMAL_PRINTF(text, first) __attribute__((format(printf, text, first), unused))
#define MINIMAL_UNUSED __attribute__((unused))
#else
#define MINIMAL_PRINTF(text, first)
#define MINIMAL_UNUSED
#endif

MINIMAL_PRINTF(1, 2) static void print_message(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vprintf(format, arguments);
    va_end(arguments);
    fflush(stdout);
}

MINIMAL_PRINTF(1, 2) static void print_error(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fflush(stderr);
}

MINIMAL_PRINTF(3, 4) _Noreturn static void minimal_fail(const char *file, int line, const char *format, ...)
{
    char text[2048];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    print_error("[  ERROR   ] --- %s\n[   LINE   ] --- %s:%d: error: Failure!\n", text, file, line);
    longjmp(minimal_end, MINIMAL_FAILED);
}

MINIMAL_UNUSED _Noreturn static void minimal_skip(void)
{
    longjmp(minimal_end, MINIMAL_SKIPPED);
}

MINIMAL_UNUSED static void minimal_integers(uintmax_t a, uintmax_t b, int equal, const char *file, int line)
{
    if ((a == b) != equal)
        minimal_fail(file, line, "%jd (%#jx) %s %jd (%#jx)", (intmax_t)a, a, equal ? "!=" : "==", (intmax_t)b, b);
}

MINIMAL_UNUSED static void minimal_pointers(const void *a, const void *b, int equal, const char *file, int line)
{
    if ((a == b) != equal)
        minimal_fail(file, line, "%p %s %p", (void *)(uintptr_t)a, equal ? "!=" : "==", (void *)(uintptr_t)b);
}

MINIMAL_UNUSED static void minimal_strings(const char *a, const char *b, int equal, const char *file, int line)
{
    if ((strcmp(a, b) == 0) != equal)
        minimal_fail(file, line, "\"%s\" %s \"%s\"", a, equal ? "!=" : "==", b);
}

MINIMAL_UNUSED static void minimal_memory(const void *a, const void *b, size_t size, int equal, const char *file, int line)
{
    size_t at = 0;
    while (at < size && ((const unsigned char *)a)[at] == ((const unsigned char *)b)[at])
        at++;
    if (equal && at < size)
        minimal_fail(file, line, "byte %zu of %zu differs: %#x, %#x", at, size, ((const unsigned char *)a)[at],
                     ((const unsigned char *)b)[at]);
    if (!equal && at == size)
        minimal_fail(file, line, "%zu bytes are the same", size);
}

/* NaN is equal to nothing. */
MINIMAL_UNUSED static void minimal_floats(double a, double b, double tolerance, double epsilon, int equal, const char *file,
                                          int line)
{
    double size = fmax(fabs(a), fabs(b)), apart = fabs(a - b);
    int same = apart <= tolerance || apart <= size * epsilon || (isinf(a) && a == b);
    if (same != equal)
        minimal_fail(file, line, "%.17g %s %.17g", a, equal ? "!=" : "==", b);
}

MINIMAL_UNUSED static void minimal_range(uintmax_t value, uintmax_t low, uintmax_t high, int inside, const char *file, int line)
{
    if ((value >= low && value <= high) != inside)
        minimal_fail(file, line, "%ju is %s %ju-%ju", value, inside ? "not within" : "within", low, high);
}

#define MINIMAL_HERE __FILE__, __LINE__
#define assert_true(x) ((x) ? (void)0 : minimal_fail(MINIMAL_HERE, "%s", #x))
#define assert_false(x) ((x) ? minimal_fail(MINIMAL_HERE, "!(%s)", #x) : (void)0)
#define assert_non_null(x) ((x) != NULL ? (void)0 : minimal_fail(MINIMAL_HERE, "%s is NULL", #x))
#define assert_null(x) ((x) == NULL ? (void)0 : minimal_fail(MINIMAL_HERE, "%s is not NULL", #x))
#define assert_int_equal(a, b) minimal_integers((uintmax_t)(a), (uintmax_t)(b), 1, MINIMAL_HERE)
#define assert_int_not_equal(a, b) minimal_integers((uintmax_t)(a), (uintmax_t)(b), 0, MINIMAL_HERE)
#define assert_ptr_equal(a, b) minimal_pointers(a, b, 1, MINIMAL_HERE)
#define assert_ptr_not_equal(a, b) minimal_pointers(a, b, 0, MINIMAL_HERE)
#define assert_string_equal(a, b) minimal_strings(a, b, 1, MINIMAL_HERE)
#define assert_string_not_equal(a, b) minimal_strings(a, b, 0, MINIMAL_HERE)
#define assert_memory_equal(a, b, size) minimal_memory(a, b, size, 1, MINIMAL_HERE)
#define assert_memory_not_equal(a, b, size) minimal_memory(a, b, size, 0, MINIMAL_HERE)
#define assert_float_equal(a, b, tolerance)                                                                                      \
    minimal_floats((float)(a), (float)(b), (float)(tolerance), FLT_EPSILON, 1, MINIMAL_HERE)
#define assert_float_not_equal(a, b, tolerance)                                                                                  \
    minimal_floats((float)(a), (float)(b), (float)(tolerance), FLT_EPSILON, 0, MINIMAL_HERE)
#define assert_double_equal(a, b, tolerance) minimal_floats(a, b, tolerance, DBL_EPSILON, 1, MINIMAL_HERE)
#define assert_in_range(x, low, high) minimal_range((uintmax_t)(x), (uintmax_t)(low), (uintmax_t)(high), 1, MINIMAL_HERE)
#define assert_not_in_range(x, low, high) minimal_range((uintmax_t)(x), (uintmax_t)(low), (uintmax_t)(high), 0, MINIMAL_HERE)
#define fail() minimal_fail(MINIMAL_HERE, "fail()")
#define fail_msg(...) minimal_fail(MINIMAL_HERE, __VA_ARGS__)
#define skip() minimal_skip()

/* One fixture or test function; what it came to. */
static int minimal_call(CMFixtureFunction fixture, CMUnitTestFunction test, void **state)
{
    int ended = setjmp(minimal_end);
    if (ended)
        return ended;
    if (test)
        test(state);
    else if (fixture && fixture(state) != 0)
        return MINIMAL_FAILED;
    return MINIMAL_PASSED;
}

static int minimal_one(const struct CMUnitTest *test, void *group_state)
{
    static const char *const words[] = { "      OK", " FAILED ", "SKIPPED " };
    void *state = test->initial_state ? test->initial_state : group_state;
    print_message("[ RUN      ] %s\n", test->name);
    int result = minimal_call(test->setup_func, NULL, &state);
    if (result == MINIMAL_PASSED)
        result = minimal_call(NULL, test->test_func, &state);
    int ended = minimal_call(test->teardown_func, NULL, &state);
    if (ended != MINIMAL_PASSED)
        result = MINIMAL_FAILED;
    print_message("[ %s ] %s\n", words[result], test->name);
    return result;
}

static void minimal_list(const char *word, const struct CMUnitTest *tests, size_t n, const unsigned char *results, int wanted)
{
    size_t count = 0;
    for (size_t k = 0; k < n; k++)
        count += results[k] == wanted;
    if (count == 0)
        return;
    print_error("[  %-7s ] %zu test(s), listed below:\n", word, count);
    for (size_t k = 0; k < n; k++)
        if (results[k] == wanted)
            print_error("[  %-7s ] %s\n", word, tests[k].name);
    print_error("\n %zu %s TEST(S)\n", count, word);
}

/* Whether TREK_TEST_CASE chooses this test (tests/support/choose.c): all, if it is not set. */
static int minimal_chooses(const char *name)
{
    const char *chosen = getenv("TREK_TEST_CASE");
    return !chosen || !*chosen || fnmatch(chosen, name, 0) == 0;
}

/* The number of tests that failed, at most 100; -1 if the group could not be set up. */
MINIMAL_UNUSED static int _cmocka_run_group_tests(const char *group, const struct CMUnitTest *tests, size_t n,
                                                  CMFixtureFunction setup,
                                                  CMFixtureFunction teardown)
{
    enum { MOST = 4096 };
    static unsigned char results[MOST];
    const char *chosen = getenv("TREK_TEST_CASE");
    void *state = NULL;
    size_t passed = 0, failed = 0, run = 0;
    if (n > MOST)
        return -1;
    for (size_t k = 0; k < n; k++)
        run += minimal_chooses(tests[k].name);
    if (run == 0 && chosen && *chosen && strcmp(chosen, "-") != 0) {
        print_error("[  FAILED  ] TREK_TEST_CASE: %s; none of the %zu cases has that name\n\n 1 FAILED TEST(S)\n", chosen, n);
        return 1;
    }
    print_message("[==========] %s: Running %zu test(s).\n", group, run);
    int ready = minimal_call(setup, NULL, &state) == MINIMAL_PASSED;
    for (size_t k = 0; k < n; k++) {
        results[k] = MINIMAL_PASSED;
        if (!minimal_chooses(tests[k].name))
            continue;
        results[k] = (unsigned char)(ready ? minimal_one(&tests[k], state) : MINIMAL_FAILED);
        passed += results[k] == MINIMAL_PASSED;
        failed += results[k] == MINIMAL_FAILED;
    }
    if (ready && minimal_call(teardown, NULL, &state) != MINIMAL_PASSED) {
        print_error("[  FAILED  ] GROUP TEARDOWN\n");
        failed++;
    }
    print_message("[==========] %s: %zu test(s) run.\n[  PASSED  ] %zu test(s).\n", group, run, passed);
    minimal_list("SKIPPED", tests, n, results, MINIMAL_SKIPPED);
    minimal_list("FAILED", tests, n, results, MINIMAL_FAILED);
    return !ready ? -1 : failed < 100 ? (int)failed : 100; /* an exit status keeps 8 bits */
}

#define cmocka_run_group_tests(tests, setup, teardown)                                                                          \
    _cmocka_run_group_tests(#tests, tests, sizeof(tests) / sizeof((tests)[0]), setup, teardown)
#define cmocka_run_group_tests_name(group, tests, setup, teardown)                                                              \
    _cmocka_run_group_tests(group, tests, sizeof(tests) / sizeof((tests)[0]), setup, teardown)

#endif
