/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/support.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

float test_number(uint32_t stream, uint32_t k)
{
    uint32_t x = stream * 0x9E3779B1u + k * 0x85EBCA77u + 0xC2B2AE3Du;
    x ^= x >> 15;
    x *= 0x2C1B3C6Du;
    x ^= x >> 12;
    x *= 0x297A2D39u;
    x ^= x >> 15;
    return (float)((int32_t)(x >> 7) - (1 << 24)) * 0x1p-24f;
}

trek_tensor *test_tensor(uint32_t stream, trek_shape shape, double scale)
{
    trek_tensor *t = trek_tensor_empty(shape, TREK_F32, trek_cpu(0));
    float *data = t ? trek_tensor_data(t) : NULL;
    for (int64_t i = 0; t && i < trek_tensor_numel(t); i++)
        data[i] = (float)scale * test_number(stream, (uint32_t)i);
    return t;
}

test_allocator test_memory;

static void *counted_allocate(size_t bytes, size_t alignment, void *arg)
{
    test_allocator *a = arg;
    int64_t call = __atomic_add_fetch(&a->calls, 1, __ATOMIC_RELAXED);
    if (a->fail_at > 0 && call >= a->fail_at && call < a->fail_at + (a->fail_count ? a->fail_count : 1))
        return NULL;
    void *memory = NULL;
    if (posix_memalign(&memory, alignment < sizeof(void *) ? sizeof(void *) : alignment, bytes ? bytes : 1) != 0)
        return NULL;
    __atomic_add_fetch(&a->blocks, 1, __ATOMIC_RELAXED);
    __atomic_add_fetch(&a->bytes, (int64_t)bytes, __ATOMIC_RELAXED);
    return memory;
}

static void counted_release(void *memory, size_t bytes, void *arg)
{
    test_allocator *a = arg;
    if (!memory)
        return;
    __atomic_sub_fetch(&a->blocks, 1, __ATOMIC_RELAXED);
    __atomic_sub_fetch(&a->bytes, (int64_t)bytes, __ATOMIC_RELAXED);
    free(memory);
}

trek_status test_allocator_use(void)
{
    test_memory = (test_allocator){ 0 };
    return trek_allocator_set(&(trek_allocator){ .allocate = counted_allocate, .release = counted_release, .arg = &test_memory });
}

void test_allocator_restart(int64_t fail_at)
{
    test_memory.calls = 0;
    test_memory.fail_at = fail_at;
}

const char *test_data_path(const char *name)
{
    static char path[4096];
    const char *data = getenv("TREK_DATA"), *root = getenv("TREK_TEST_ROOT");
    if (data)
        snprintf(path, sizeof path, "%s/%s", data, name);
    else
        snprintf(path, sizeof path, "%s/../shared/data/%s", root ? root : ".", name);
    return access(path, R_OK) == 0 ? path : NULL;
}
