/* SPDX-License-Identifier: Apache-2.0 */
/* What a program of tests begins with: cmocka, the headers that have to stand before it, and those of C's that nearly all use. */
#ifndef TREK_TESTS_SUPPORT_UNIT_H
#define TREK_TESTS_SUPPORT_UNIT_H

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* Cases have cmocka's state, and what is called back an argument, which few of them read. */
#pragma GCC diagnostic ignored "-Wunused-parameter"

#endif
