/* SPDX-License-Identifier: Apache-2.0 */
/* Runs that offload what backward needs beside runs that do not: what they come to, and what is left. */
#ifndef TREK_TESTS_AUTOGRAD_OFFLOADED_H
#define TREK_TESTS_AUTOGRAD_OFFLOADED_H

#include "autograd/offload.h"
#include "nn/module.h"
#include "tensor/log.h"
#include "tensor/status.h"

extern const trek_offload_opts everything; /* of one byte or more */

enum { WIDTH = 16, ROWS = 12 };
enum { DEEP = 8, BROAD = 256, TALL = 32 }; /* one value: 32 KiB */
/* Pairs of a linear layer and a relu. */
trek_module *deep_model(void);

/* Values of f32 one after another. */
typedef struct numbers {
    float *at;
    int64_t n;
} numbers;
void add_numbers(numbers *to, trek_var *x);
/* And drops them. */
void add_grads(numbers *to, trek_module *m);
/* The same bits; both are freed. */
void assert_same(numbers *a, numbers *b, const char *what);

int64_t in_use(void); /* of the device's memory */
/* A teardown: no error, no node, nothing in host memory. */
int nothing_left(void **state);
/* A log that counts warnings of offloading in *arg, an int. */
void quiet(trek_log_level level, const char *message, void *arg);

#endif
