/* SPDX-License-Identifier: Apache-2.0 */
/* TREK_TEST_CASE: runs only the cases of that name ("*" and "?" stand for others). In every program of cmocka's. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

__attribute__((constructor)) static void choose_case(void)
{
    const char *chosen = getenv("TREK_TEST_CASE");
    if (chosen && *chosen)
        cmocka_set_test_filter(chosen);
}
