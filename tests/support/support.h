/* SPDX-License-Identifier: Apache-2.0 */
/* What several test programs share: numbers that need no generator, a counting
 * allocator that fails on demand, where the data lie. */
#ifndef TREK_TESTS_SUPPORT_H
#define TREK_TESTS_SUPPORT_H

#include <stdbool.h>
#include <stdint.h>

#include "autograd/var.h"
#include "tensor/memory.h"

/* Where tests run: TREK_TEST_DEVICE, e.g. "cuda:0"; by default trek_device_default(). Ends the program where the text is no
 * device. */
trek_device test_device(void);
/* Device of the same type for each rank: the one of test_device for all of them on GPUs, the next CPU for each else. */
trek_device test_device_of_rank(int rank);
/* Those of up to 16 ranks, for as long as the thread lives. */
const trek_device *test_devices(void);
bool test_on_cpu(void); /* the host may read the device's memory, and errors in the data are reported at once */
/* TREK_TEST_SHORT is set: cases that differ in numbers alone are drawn more thinly (sanitizers, emulated CPUs). */
bool test_short(void);
/* TREK_TEST_LONG is set: a night has time for all cases of a long table, of which the gate runs some. */
bool test_long(void);
/* test_short, on a device: a fake one takes minutes for what a CPU does in seconds. */
bool test_short_on_device(void);
/* Where a test that draws at random begins: TREK_TEST_SEED, which runs one draw again, or TREK_RANDOM_SEED, by which a night's
 * draws differ from those of all others. Without both it is 1. */
uint64_t test_seed(void);
/* Draws the next number below `below` (SplitMix64; 0: any of 64 bits). The same states give the same numbers. */
uint64_t test_draw(uint64_t *state, uint64_t below);
/* 32 bits that follow from a number. */
uint32_t test_hash(uint32_t number);
/* Another device than test_device, to which calls on it do not fit. */
trek_device test_device_other(void);
/* A function of the fake device (tests/fake_cuda/fake_control.h); NULL where tests run on another. */
void *test_fake(const char *function);
/* What the call that lies behind has come to: its status, or on a GPU, where mistakes in the data show at the
 * device's next synchronisation, the status of that one. */
trek_status test_settle(trek_status status);

/* For a loop that waits for what others do: sleeps for a millisecond; false when two minutes are over since the first call, which
 * takes a defect, not a busy machine. *since is 0 before the first call. */
bool test_wait(double *since);

/* Number k of a stream: an integer hash, the same in tests/zoo/numbers_of_tests.py. In [-1, 1), a multiple of 2^-24. */
float test_number(uint32_t stream, uint32_t k);
/* A tensor (f32, on test_device) of scale * test_number(stream, 0..). A new reference. */
trek_tensor *test_tensor(uint32_t stream, trek_shape shape, double scale);
/* Values of that dtype, given as doubles, on test_device. A new reference. */
trek_tensor *test_values(const double *values, trek_shape shape, trek_dtype dtype);
/* All elements as doubles, row-major, in memory to be freed by free(); NULL and an error. */
double *test_read(const trek_tensor *tensor);
/* Whether two tensors of one dtype and shape have the same bits. */
bool test_same_bits(const trek_tensor *a, const trek_tensor *b);
/* Whether a row of x [rows, columns] is marked: begins with more than 1.5. */
bool test_any_marked(const trek_var *x);

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
/* Returns how many blocks are in use. Freed ones that wait, in a cache or for TREK_DEBUG, are released before. */
int64_t test_allocator_blocks(void);

/* Removes a file, or a folder with all that is in it. Returns 0, or -1 if something stays. */
int test_remove(const char *path);
/* Path of a file in the folder of data sets (TREK_DATA, else beside the tree): NULL if it is not there. Static memory. */
const char *test_data_path(const char *name);

#endif
