/* SPDX-License-Identifier: Apache-2.0 */
/* Samplers: in order, shuffled without a table, or a user's own. */
#include "data/sampler_internal.h"

#include <inttypes.h>

#include "tensor/debug.h"
#include "tensor/memory_internal.h"
#include "tensor/random_internal.h"
#include "tensor/status_internal.h"

trek_sampler *trek_sampler_new(const trek_sampler_class *klass)
{
    if (!klass || !klass->name || !klass->length || !klass->at || klass->size < sizeof(trek_sampler))
        return trek_fail_null(TREK_ERR_ARGUMENT, "sampler_new: class: incomplete; it must have a name, a size, length and at");
    trek_sampler *sampler = trek_calloc(1, klass->size);
    if (!sampler)
        return NULL;
    sampler->klass = klass;
    if (trek_debug)
        trek_debug_made(sampler, "sampler", klass->name, 0);
    return sampler;
}

void trek_sampler_free(trek_sampler **sampler)
{
    if (!sampler || !*sampler || trek_gone(*sampler, "sampler_free", "the sampler"))
        return;
    trek_sampler *s = *sampler;
    *sampler = NULL;
    if (s->klass->free)
        s->klass->free(s);
    if (trek_debug)
        trek_debug_ended(s, "sampler", s->klass->name);
    trek_free(s);
}

int64_t trek_sampler_length(const trek_sampler *sampler)
{
    if (!sampler) {
        trek_fail_missing("sampler_length", "sampler");
        return -1;
    }
    return sampler->klass->length(sampler);
}

trek_status trek_sampler_at(const trek_sampler *sampler, int64_t epoch, int64_t first, int64_t count, int64_t *indices)
{
    if (!sampler || !indices)
        return trek_fail_missing("sampler_at", sampler ? "array for the indices" : "sampler");
    if (trek_gone(sampler, "sampler_at", "the sampler"))
        return TREK_ERR_STATE;
    int64_t length = sampler->klass->length(sampler);
    if (epoch < 0)
        return trek_fail(TREK_ERR_ARGUMENT, "sampler %s: epoch: %" PRId64 "; must be 0 or more", sampler->klass->name, epoch);
    if (first < 0 || count < 0 || first > length || count > length - first)
        return trek_fail(TREK_ERR_ARGUMENT, "sampler %s: %" PRId64 " positions from %" PRId64 " on; an epoch has %" PRId64,
                         sampler->klass->name, count, first, length);
    trek_status status = sampler->klass->at(sampler, epoch, first, count, indices);
    if (status != TREK_OK)
        trek_fail_after(status, "sampler %s: at failed (%s)", sampler->klass->name, trek_status_description(status));
    return status;
}

typedef struct counted {
    trek_sampler base;
    int64_t n;
    uint64_t seed;
} counted;

static int64_t counted_length(const trek_sampler *self) { return ((const counted *)self)->n; }

static trek_status sequential_at(const trek_sampler *self, int64_t epoch, int64_t first, int64_t count, int64_t *indices)
{
    (void)self, (void)epoch;
    for (int64_t i = 0; i < count; i++)
        indices[i] = first + i;
    return TREK_OK;
}

/* Rounds of the shuffle for n up to 2^63: 6 log2 n, as its analysis requires, and enough for the smallest sets. */
#define MOST_ROUNDS (6 * 63 + 32)

typedef struct round_key {
    uint64_t mirror; /* x and mirror - x (mod n) are partners */
    uint64_t salt;   /* of the function that decides whether they are exchanged */
} round_key;

static int make_keys(uint64_t seed, int64_t epoch, uint64_t n, round_key *keys)
{
    int rounds = 32;
    for (uint64_t m = n; m > 1; m >>= 1)
        rounds += 6;
    for (int r = 0; r < rounds; r++) {
        uint32_t words[4];
        trek_philox(seed, (uint64_t)epoch, (uint32_t)r, 0x73616d70u, words);
        keys[r].mirror = ((uint64_t)words[0] << 32 | words[1]) % n; /* not quite uniform, by n / 2^64 */
        keys[r].salt = (uint64_t)words[2] << 32 | words[3];
    }
    return rounds;
}

/* A 64-bit finaliser (Stafford's variant 13 of MurmurHash3's). */
static uint64_t mix(uint64_t x)
{
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
    x = (x ^ x >> 27) * 0x94D049BB133111EBu;
    return x ^ x >> 31;
}

uint64_t trek_sampler_mix(uint64_t a, uint64_t b) { return mix(mix(a + 0x9E3779B97F4A7C15u) ^ b); }

static uint64_t shuffle(uint64_t x, uint64_t n, const round_key *keys, int rounds)
{
    for (int r = 0; r < rounds; r++) {
        uint64_t partner = keys[r].mirror >= x ? keys[r].mirror - x : keys[r].mirror + (n - x);
        uint64_t larger = x > partner ? x : partner;
        if (mix(larger ^ keys[r].salt) >> 63)
            x = partner;
    }
    return x;
}

int64_t trek_sampler_place(int64_t at, int64_t n, uint64_t seed, int64_t epoch)
{
    round_key keys[MOST_ROUNDS];
    int rounds = make_keys(seed, epoch, (uint64_t)n, keys);
    return (int64_t)shuffle((uint64_t)at, (uint64_t)n, keys, rounds);
}

static trek_status random_at(const trek_sampler *self, int64_t epoch, int64_t first, int64_t count, int64_t *indices)
{
    const counted *s = (const counted *)self;
    if (count == 0)
        return TREK_OK;
    round_key keys[MOST_ROUNDS];
    int rounds = make_keys(s->seed, epoch, (uint64_t)s->n, keys);
    for (int64_t i = 0; i < count; i++)
        indices[i] = (int64_t)shuffle((uint64_t)(first + i), (uint64_t)s->n, keys, rounds);
    return TREK_OK;
}

static const trek_sampler_class sequential_class = {
    .name = "sequential", .size = sizeof(counted), .length = counted_length, .at = sequential_at,
    .over = counted_length,
};

static const trek_sampler_class random_class = {
    .name = "random", .size = sizeof(counted), .length = counted_length, .at = random_at,
    .over = counted_length,
};

static trek_sampler *counted_new(const trek_sampler_class *klass, int64_t n, uint64_t seed)
{
    if (n < 0)
        return trek_fail_null(TREK_ERR_ARGUMENT, "sampler %s: n: %" PRId64 " samples; must be at least 1", klass->name, n);
    counted *s = (counted *)trek_sampler_new(klass);
    if (!s)
        return NULL;
    s->n = n;
    s->seed = seed;
    return &s->base;
}

trek_sampler *trek_sampler_sequential(int64_t n) { return counted_new(&sequential_class, n, 0); }

trek_sampler *trek_sampler_random(int64_t n, uint64_t seed) { return counted_new(&random_class, n, seed); }
