/* SPDX-License-Identifier: Apache-2.0 */
/* Digests of memory (tensor/digest_lanes.h, distributed/grains/digest.h). They are sums of integers, so threads may add blocks in
 * any order. */
#include "tensor/cpu/kernels.h"

#include <stdatomic.h>

enum { LANES = TREK_DIGEST_LANES, STRIPE = LANES * 8, GRAIN = 64 }; /* blocks that are worth a thread */

static const uint64_t keys[LANES] = TREK_DIGEST_KEYS;

typedef uint64_t stripe __attribute__((vector_size(STRIPE)));

/* The words of all stripes. A lane's arithmetic is trek_digest_word's; compilers find no vectors where lanes read their
 * neighbours. */
static void add_stripes(uint64_t *lanes, const unsigned char *bytes, size_t n, uint64_t salt)
{
    stripe sum, key, words;
    memcpy(&sum, lanes, STRIPE);
    memcpy(&key, keys, STRIPE);
    key += salt;
    for (size_t k = 0; k < n; k++, bytes += STRIPE, key += TREK_DIGEST_M) {
        memcpy(&words, bytes, STRIPE);
        stripe x = words ^ key;
        sum += (x & UINT32_MAX) * (x >> 32) + __builtin_shufflevector(words, words, 1, 0, 3, 2, 5, 4, 7, 6);
    }
    memcpy(lanes, &sum, STRIPE);
}

static void add_block(trek_digest *digest, uint64_t key, const unsigned char *bytes, size_t size)
{
    uint64_t lanes[LANES] = { 0 };
    unsigned char last[STRIPE] = { 0 };
    size_t whole = size / STRIPE, rest = size % STRIPE;
    add_stripes(lanes, bytes, whole, 0);
    if (rest > 0) {
        memcpy(last, bytes + size - rest, rest);
        add_stripes(lanes, last, 1, whole * TREK_DIGEST_M);
    }
    digest->half[0] += trek_digest_half(lanes, 0, key, size);
    digest->half[1] += trek_digest_half(lanes, 1, key, size);
}

/* The same with -0 as 0. */
static void add_numbers(trek_digest *digest, uint64_t key, const unsigned char *bytes, size_t size, int width)
{
    union {
        float f32[TREK_DIGEST_BLOCK / sizeof(float)];
        double f64[TREK_DIGEST_BLOCK / sizeof(double)];
    } block;
    memcpy(&block, bytes, size);
    for (size_t k = 0; k < size / sizeof(double) && width == sizeof(double); k++)
        block.f64[k] += 0.0;
    for (size_t k = 0; k < size / sizeof(float) && width == sizeof(float); k++)
        block.f32[k] += 0.0f;
    add_block(digest, key, (const unsigned char *)&block, size);
}

typedef struct digest_work {
    const trek_digest_span *span;
    _Atomic uint64_t half[2];
} digest_work;

static void add_part(void *arg, int64_t begin, int64_t end)
{
    digest_work *w = arg;
    trek_digest sum = { { 0, 0 } };
    for (int64_t k = begin; k < end; k++) {
        const unsigned char *bytes = (const unsigned char *)w->span->data + k * TREK_DIGEST_BLOCK;
        int64_t left = w->span->bytes - k * TREK_DIGEST_BLOCK;
        size_t size = left < TREK_DIGEST_BLOCK ? (size_t)left : TREK_DIGEST_BLOCK;
        if (w->span->floats)
            add_numbers(&sum, w->span->key + (uint64_t)k, bytes, size, w->span->floats);
        else
            add_block(&sum, w->span->key + (uint64_t)k, bytes, size);
    }
    for (int h = 0; h < 2; h++)
        atomic_fetch_add_explicit(&w->half[h], sum.half[h], memory_order_relaxed);
}

static trek_status digest(trek_device device, const trek_digest_span *spans, int n, trek_digest *to)
{
    (void)device;
    digest_work w;
    atomic_init(&w.half[0], to->half[0]);
    atomic_init(&w.half[1], to->half[1]);
    for (int k = 0; k < n; k++) {
        w.span = &spans[k];
        trek_parallel((spans[k].bytes + TREK_DIGEST_BLOCK - 1) / TREK_DIGEST_BLOCK, GRAIN, add_part, &w);
    }
    to->half[0] = atomic_load_explicit(&w.half[0], memory_order_relaxed);
    to->half[1] = atomic_load_explicit(&w.half[1], memory_order_relaxed);
    return TREK_OK;
}

void TREK_ISA_NAME(trek_cpu_register_digest)(trek_backend *b) { b->digest = digest; }
