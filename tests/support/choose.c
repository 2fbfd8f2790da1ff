/* SPDX-License-Identifier: Apache-2.0 */
/* TREK_TEST_CASE: runs only the cases of that name ("*" and "?" stand for others; "-": none). In every program of cmocka's, whose
 * groups the linker begins here. cmocka itself passes if no case has that name. */
#include <fnmatch.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

int __real__cmocka_run_group_tests(const char *group, const struct CMUnitTest *tests, size_t n, CMFixtureFunction setup,
                                   CMFixtureFunction teardown);
int __wrap__cmocka_run_group_tests(const char *group, const struct CMUnitTest *tests, size_t n, CMFixtureFunction setup,
                                   CMFixtureFunction teardown);

int __wrap__cmocka_run_group_tests(const char *group, const struct CMUnitTest *tests, size_t n, CMFixtureFunction setup,
                                   CMFixtureFunction teardown)
{
    const char *chosen = getenv("TREK_TEST_CASE");
    if (!chosen || !*chosen)
        return __real__cmocka_run_group_tests(group, tests, n, setup, teardown);
    bool has = strcmp(chosen, "-") == 0;
    for (size_t k = 0; k < n && !has; k++)
        has = fnmatch(chosen, tests[k].name, 0) == 0;
    if (!has) {
        fprintf(stderr, "[  FAILED  ] TREK_TEST_CASE: %s; none of the %zu cases has that name\n\n 1 FAILED TEST(S)\n", chosen, n);
        return 1;
    }
    cmocka_set_test_filter(chosen);
    return __real__cmocka_run_group_tests(group, tests, n, setup, teardown);
}
