/* SPDX-License-Identifier: Apache-2.0 */
/* What the works of the benchmark program share. A work is opened once, runs
 * any number of times and is closed; what it computed is reported as check
 * values that peer.py must reproduce. */
#ifndef TREK_TESTS_BENCH_BENCH_H
#define TREK_TESTS_BENCH_BENCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "trek.h"

enum { BENCH_STREAM = 32 << 20 }; /* elements of the stream's arrays: far beyond any cache */

typedef struct bench_work {
    const char *name, *what;
    double per;              /* what one time counts for: 100 multiplications; 0 is 1 */
    double bytes;            /* memory traffic of one time; 0: not compared with the stream rate */
    bool near;               /* what it touches fits into caches: the stream rate of arrays of that size is measured, too */
    void *(*open)(const struct bench_work *work); /* NULL on failure, with trek's error set */
    void (*run)(void *state, int64_t times);
    void (*close)(void *state);
    const void *arg;         /* the work's own parameters */
} bench_work;

/* Lists of works, ended by one without a name. */
extern const bench_work bench_works_small[], bench_works_training[], bench_works_memory[], bench_works_recurrent[],
    bench_works_start[];

/* A value to be compared with the peer's; at most 64. */
void bench_check(double value);
/* A named number to be printed with the result; a later one of the same name replaces it. The name is borrowed. */
void bench_note(const char *name, double value);

/* Leaves so much time out of the repetition that is being measured: cleaning up after a process. */
void bench_leave_out(int64_t ns);

/* Same numbers in C and Python: uniform in [-1, 1), exact in f32, from an integer hash of (seed, index). */
float bench_uniform(uint32_t seed, uint32_t index);
uint32_t bench_hash(uint32_t seed, uint32_t index);
/* values[i] = shift + scale * uniform(seed, i), rounded to f32 after each operation. */
void bench_fill(float *values, int64_t count, uint32_t seed, float shift, float scale);

/* A GPT over tokens [B, T <= context]: [B, T, vocabulary]; the table of tokens is the head, too (gpt.c). */
trek_module *bench_gpt_new(int layers, int64_t width, int64_t heads, int64_t context, int64_t vocabulary, trek_device device);

/* The most memory the process has held so far; 0 where the system does not say. */
double bench_peak_resident(void);

int64_t bench_now_ns(void);
int bench_cores(void);
/* GB/s of a[i] += b[i] (12 bytes an element) over arrays of that size on all cores, `passes` times. */
double bench_stream(int64_t elements, int passes);

/* ResNet-18 over images [N, 3, H, W]: 1, 2, 4 and 8 times `width` channels. */
trek_module *bench_resnet18(int64_t width, int64_t classes);

/* The child of the work "start": one step, then a line with its resident memory. Exit status. */
int bench_first_step(void);

#endif
