/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/support.h"

#include <dlfcn.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "tensor/copies.h"
#include "tensor/devices.h"
#include "tensor/dtypes.h"
#include "tensor/layout.h"
#include "tensor/shapes.h"

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

/* --- devices ------------------------------------------------------------------ */

trek_device test_device(void)
{
    const char *text = getenv("TREK_TEST_DEVICE");
    trek_device device = trek_cpu(0);
    if (text && *text && trek_device_parse(text, &device) != TREK_OK) {
        fprintf(stderr, "TREK_TEST_DEVICE: %s\n", trek_error());
        exit(99);
    }
    return device.type == TREK_CUDA && getenv("TREK_RANK") ? trek_device_default() : device; /* a process of a job has its own */
}

trek_device test_device_of_rank(int rank)
{
    return test_on_cpu() ? trek_cpu(test_device().index + rank) : test_device();
}

const trek_device *test_devices(void)
{
    static _Thread_local trek_device devices[16];
    for (int r = 0; r < 16; r++)
        devices[r] = test_device_of_rank(r);
    return devices;
}

bool test_on_cpu(void)
{
    return test_device().type == TREK_CPU;
}

bool test_short(void) { return getenv("TREK_TEST_SHORT") != NULL; }

bool test_long(void) { return getenv("TREK_TEST_LONG") != NULL; }

uint64_t test_seed(void)
{
    const char *one = getenv("TREK_TEST_SEED"), *first = getenv("TREK_RANDOM_SEED");
    return one ? strtoull(one, NULL, 0) : first ? strtoull(first, NULL, 0) : 1;
}

uint64_t test_draw(uint64_t *state, uint64_t below)
{
    uint64_t x = *state += UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    x ^= x >> 31;
    return below ? x % below : x;
}

uint32_t test_hash(uint32_t number)
{
    uint32_t x = number * UINT32_C(0x9e3779b9);
    x = (x ^ x >> 15) * UINT32_C(0x85ebca6b);
    return x ^ x >> 13;
}

bool test_wait(double *since)
{
    struct timespec now;
    nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
    clock_gettime(CLOCK_MONOTONIC, &now);
    double seconds = (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
    *since = *since > 0 ? *since : seconds;
    return seconds - *since < 120;
}

bool test_short_on_device(void) { return test_short() && !test_on_cpu(); }

void *test_fake(const char *function)
{
    void *runtime = trek_device_count(TREK_CUDA) > 0 ? dlopen("libfake_cudart.so", RTLD_LAZY | RTLD_NOLOAD) : NULL;
    return runtime ? dlsym(runtime, function) : NULL;
}

trek_device test_device_other(void)
{
    return test_on_cpu() ? trek_cpu(test_device().index + 1) : trek_cpu(0);
}

trek_status test_settle(trek_status status)
{
    return status == TREK_OK && !test_on_cpu() ? trek_device_sync(test_device()) : status;
}

/* --- tensors -------------------------------------------------------------------- */

trek_tensor *test_tensor(uint32_t stream, trek_shape shape, double scale)
{
    int64_t count = trek_shape_numel(shape);
    float *data = malloc(sizeof *data * (size_t)count + 1);
    for (int64_t i = 0; data && i < count; i++)
        data[i] = (float)scale * test_number(stream, (uint32_t)i);
    trek_tensor *t = data ? trek_tensor_from_data(data, shape, TREK_F32, test_device()) : NULL;
    free(data);
    return t;
}

trek_tensor *test_values(const double *values, trek_shape shape, trek_dtype dtype)
{
    trek_tensor *wide = trek_tensor_from_data(values, shape, TREK_F64, trek_cpu(0)), *cast = trek_tensor_cast(wide, dtype);
    trek_tensor *there = trek_tensor_to(cast, test_device());
    trek_tensor_release(wide);
    trek_tensor_release(cast);
    return there;
}

double *test_read(const trek_tensor *tensor)
{
    size_t bytes = tensor ? sizeof(double) * (size_t)trek_tensor_numel(tensor) : 0;
    double *values = tensor ? malloc(bytes + 1) : NULL;
    if (values && trek_tensor_to_host(tensor, TREK_F64, values, bytes) == TREK_OK)
        return values;
    free(values);
    return NULL;
}

bool test_same_bits(const trek_tensor *a, const trek_tensor *b)
{
    trek_dtype dtype = trek_tensor_dtype(a);
    if (dtype != trek_tensor_dtype(b) || !trek_shape_equal(trek_tensor_shape(a), trek_tensor_shape(b)))
        return false;
    size_t bytes = trek_dtype_size(dtype) * (size_t)trek_tensor_numel(a);
    char *both = malloc(2 * bytes + 1);
    bool same = both && trek_tensor_to_host(a, dtype, both, bytes) == TREK_OK &&
                trek_tensor_to_host(b, dtype, both + bytes, bytes) == TREK_OK && memcmp(both, both + bytes, bytes) == 0;
    free(both);
    return same;
}

bool test_any_marked(const trek_var *x)
{
    double *values = test_read(trek_var_data(x));
    bool found = false;
    for (int64_t i = 0; values && i < trek_var_size(x, 0); i++)
        found |= values[i * trek_var_size(x, 1)] > 1.5;
    free(values);
    return found;
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

static int remove_one(const char *path, const struct stat *info, int kind, struct FTW *where)
{
    (void)info, (void)kind, (void)where;
    return remove(path);
}

int test_remove(const char *path) { return nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS); }

int64_t test_allocator_blocks(void)
{
    trek_memory_release_cached(trek_cpu(0));
    return test_memory.blocks;
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
