/* SPDX-License-Identifier: Apache-2.0 */
/* What the tests of the shim share: checks that are counted, and a child process
 * for what ends one. */
#ifndef TREK_TEST_SHIM_H
#define TREK_TEST_SHIM_H

#include <cstdio>
#include <cstring>
#include <functional>
#include <vector>

#include "cuda_runtime.h"
#include "fake_control.h"

extern int failures;

#define CHECK(condition)                                                            \
    do {                                                                            \
        if (!(condition)) {                                                         \
            fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition); \
            failures++;                                                             \
        }                                                                           \
    } while (0)
#define OK(call) CHECK((call) == cudaSuccess)

/* TSan rightly complains of races, those that a test makes on purpose too. */
#if defined(__SANITIZE_THREAD__)
constexpr bool may_race = false;
#else
constexpr bool may_race = true;
#endif

/* This program, run again to do `what` alone, dies, and says the words. */
bool dies_of(const char *what, const char *words);
void die_out_of_bounds(void); /* test_kernels.cc */
void race(bool waits);

void test_kernels(void); /* test_kernels.cc */
void test_libraries(void); /* test_libraries.cc */

#endif
