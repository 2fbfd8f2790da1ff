/* SPDX-License-Identifier: Apache-2.0 */
/* The ways in which the CPU computes one result: its instruction sets, products of bf16 with and without the dot product of
 * pairs, one thread and two. Tests go through them in one process, with inputs and references made once. */
#ifndef TREK_TESTS_WAYS_H
#define TREK_TESTS_WAYS_H

#include <stdbool.h>

#include "tensor/types.h"

int ways(void); /* 1 on a GPU, and while a test has put a table of its own in the CPU's place */
/* Whether results of that dtype are to be compared in way k, too: where `threads` matter by both numbers of them, else by one,
 * which alternates with `turn`. */
bool way_taken(int k, trek_dtype dtype, bool threads, int turn);
void way_use(int k);           /* of this thread; -1: as the program began */
const char *way_name(int k);   /* "avx2, 2 threads"; "" where there is one way */

#endif
