/* SPDX-License-Identifier: Apache-2.0 */
/* What several test programs share: numbers that need no generator, a counting
 * allocator that fails on demand, where the data lie. */
#ifndef TREK_TESTS_SUPPORT_H
#define TREK_TESTS_SUPPORT_H

#include <stdbool.h>
#include <stdint.h>

#include "autograd/var.h"
#include "tensor/memory.h"

/* Number k of a stream: an integer hash, the same in tests/vectors/make.py. In [-1, 1), a multiple of 2^-24. */
float test_number(uint32_t stream, uint32_t k);
/* A tensor (f32) of scale * test_number(stream, 0..). A new reference. */
trek_tensor *test_tensor(uint32_t stream, trek_shape shape, double scale);

/* An allocator over malloc that counts, and fails where it is told to. */
typedef struct test_allocator {
    int64_t calls;        /* allocations asked for since it was set or restarted */
    int64_t fail_at;      /* this call (from 1) fails; 0: none */
    int64_t fail_count;   /* and so many in all from there on; 0: one */
    int64_t blocks, bytes; /* alive */
} test_allocator;
extern test_allocator test_memory;
trek_status test_allocator_use(void);
void test_allocator_restart(int64_t fail_at);

/* Path of a file in the folder of data sets (TREK_DATA, else beside the tree): NULL if it is not there. Static memory. */
const char *test_data_path(const char *name);

#endif
