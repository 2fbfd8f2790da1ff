/* SPDX-License-Identifier: Apache-2.0 */
#include <stdatomic.h>

#include "data/dataset_class.h"
#include "data/told.h"
#include "tensor/creation.h"
#include "tests/support/unit.h"

typedef struct told {
    trek_dataset base;
    int64_t n;
    atomic_int samples;
    _Atomic int64_t fail_at;
} told;

static atomic_int alive;

int64_t told_draw(uint64_t seed, int64_t epoch, int64_t index)
{
    uint64_t x = seed * 0x9E3779B97F4A7C15u ^ (uint64_t)epoch << 40 ^ (uint64_t)index;
    x = (x ^ x >> 31) * 0xBF58476D1CE4E5B9u;
    return (int64_t)(x ^ x >> 29);
}

static int64_t told_length(const trek_dataset *self) { return ((const told *)self)->n; }

static trek_status told_get(trek_dataset *self, const trek_fetch *fetch, trek_tensor **out)
{
    told *set = (told *)self;
    atomic_fetch_add(&set->samples, (int)fetch->n);
    out[0] = trek_tensor_from_data(fetch->indices, trek_dims(fetch->n), TREK_I64, trek_cpu(0));
    out[1] = trek_tensor_empty(trek_dims(fetch->n), TREK_I64, trek_cpu(0));
    if (!out[0] || !out[1])
        return trek_error_status();
    for (int64_t i = 0; i < fetch->n; i++) {
        if (fetch->indices[i] == atomic_load(&set->fail_at))
            return trek_fail(TREK_ERR_CALLBACK, "sample %d is broken", (int)fetch->indices[i]);
        ((int64_t *)trek_tensor_data(out[1]))[i] = told_draw(fetch->seed, fetch->epoch, fetch->indices[i]);
    }
    return TREK_OK;
}

static void told_free(trek_dataset *self) { (void)self, atomic_fetch_sub(&alive, 1); }

static const char *const fields[] = { "index", "draw" };
static const trek_dataset_class told_class = {
    .name = "told", .size = sizeof(told), .length = told_length, .get = told_get, .free = told_free, .n_fields = 2,
    .fields = fields,
};

trek_dataset *told_new(int64_t n)
{
    told *set = (told *)trek_dataset_new(&told_class);
    assert_non_null(set);
    atomic_fetch_add(&alive, 1);
    set->n = n;
    atomic_store(&set->fail_at, -1);
    return &set->base;
}

int told_samples(const trek_dataset *set) { return atomic_load(&((const told *)set)->samples); }
void told_fail_at(trek_dataset *set, int64_t index) { atomic_store(&((told *)set)->fail_at, index); }
int told_alive(void) { return atomic_load(&alive); }

const int64_t *numbers(const trek_batch *batch, const char *field)
{
    trek_var *var = trek_batch_get(batch, field);
    if (!var)
        fail_msg("%s", trek_error());
    return trek_tensor_data(trek_var_data(var));
}

