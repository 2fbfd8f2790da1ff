/* SPDX-License-Identifier: Apache-2.0 */
/* A dataset for tests that says what it was asked: "index" i64 [n], and "draw" i64 [n], a number of (seed, epoch, index). */
#ifndef TREK_TESTS_DATA_TOLD_H
#define TREK_TESTS_DATA_TOLD_H

#include "data/loader.h"
#include "tests/support/scoped.h"

trek_dataset *told_new(int64_t n);
int64_t told_draw(uint64_t seed, int64_t epoch, int64_t index);
int told_samples(const trek_dataset *told); /* fetched so far */
void told_fail_at(trek_dataset *told, int64_t index);
int told_alive(void); /* how many were made and not freed */

/* A field of a batch in host memory. */
const int64_t *numbers(const trek_batch *batch, const char *field);

#endif
