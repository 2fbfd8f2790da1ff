/* SPDX-License-Identifier: Apache-2.0 */
/* A module that tells what happens to it, on replicas of which each can fail, and memory that runs out. */
#ifndef TREK_TESTS_DISTRIBUTED_PROBE_H
#define TREK_TESTS_DISTRIBUTED_PROBE_H

#include <stdatomic.h>

#include "distributed/stepper_internal.h"
#include "distributed/trainer.h"
#include "nn/layers.h"
#include "tests/support/refused.h"

extern atomic_long allocations, alive, fail_at; /* fail_at 0: never */
/* The allocator that counts, and obeys it. */
void *test_allocate(size_t bytes, size_t alignment, void *arg);
void test_release(void *memory, size_t bytes, void *arg);
enum { MAX_WORLD = 8, FEATURES = 3 };

/* What replicas saw in their last forward, by rank; and whose next one is to fail. */
typedef struct sightings {
    atomic_int training[MAX_WORLD], requires_grad[MAX_WORLD], runs[MAX_WORLD], rows[MAX_WORLD];
    atomic_int fail_forward, fail_backward; /* rank, -1: none */
} sightings;

extern sightings seen;

typedef struct probe {
    trek_module base;
    trek_var *weight, *bias, *running_mean, *running_var, *count, *trace;
} probe;

/* Numbers of a stream. */
trek_tensor *values(uint32_t stream, trek_shape shape, trek_device device);
/* The module, a graph around it (for replicas), a graph on `world` ranks with an optimizer. */
trek_module *probe_new(int64_t out, trek_device device);
trek_graph *build(trek_device device, void *arg);
probe *probe_of(trek_graph *graph);
trek_graph *trained(int world, int share);
int set_up(void **state);
void expect_clear(void);
/* A batch of the stream, and a step over it. */
trek_var *batch(uint32_t stream, int64_t rows);
void train_once(trek_graph *graph, int64_t rows, uint32_t stream);

#endif
