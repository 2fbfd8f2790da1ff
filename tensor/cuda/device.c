/* SPDX-License-Identifier: Apache-2.0 */
/* Devices. They are listed once, by their properties only, without those for which the library has no code. A device
 * is opened when it is first used, with a very small kernel, so that a process has no contexts on others. Also CUDA's
 * errors as statuses, and the faults that kernels find in their data. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tensor/cuda/gate.h"
#include "tensor/cuda/small.h"

static trek_cuda_device devices[TREK_CUDA_MAX_DEVICES]; /* all except those left out */
static int n_devices;
static pthread_mutex_t opening = PTHREAD_MUTEX_INITIALIZER;
static char left_out[200]; /* the last device that was left out, and why */
bool trek_cuda_sync_each;

trek_status trek_cuda_check(cudaError_t error, const char *what)
{
    if (error == cudaSuccess)
        return TREK_OK;
    cudaGetLastError(); /* which clears an error that is not sticky */
    return trek_fail(error == cudaErrorMemoryAllocation ? TREK_ERR_MEMORY : TREK_ERR_CUDA, "%s: %s (%s)", what,
                     cudaGetErrorString(error), cudaGetErrorName(error));
}

trek_status trek_cuda_launched(const trek_op_call *call, trek_cuda_queue *queue, cudaError_t error)
{
    if (error == cudaSuccess && trek_cuda_sync_each && !queue->capture) {
        error = cudaStreamSynchronize(queue->stream);
        if (error == cudaSuccess)
            return trek_cuda_take_fault(queue->device);
    }
    if (error == cudaSuccess)
        return TREK_OK;
    cudaGetLastError();
    return trek_op_fail(call, TREK_ERR_CUDA, "%s (%s)", cudaGetErrorString(error), cudaGetErrorName(error));
}

/* --- finding ---------------------------------------------------------------------- */

static bool note_problem(trek_cuda_device *d, cudaError_t error, const char *what)
{
    if (error == cudaSuccess)
        return false;
    cudaGetLastError();
    if (error == cudaErrorNoKernelImageForDevice)
        snprintf(d->why, sizeof d->why, "compute capability %d.%d, and this library has code for %s", d->info.major,
                 d->info.minor,
                 trek_cuda_architectures());
    else
        snprintf(d->why, sizeof d->why, "%s: %s", what, cudaGetErrorString(error));
    return true;
}

static bool read_properties(trek_cuda_device *d)
{
    struct cudaDeviceProp p;
    if (note_problem(d, cudaGetDeviceProperties(&p, d->ordinal), "its properties"))
        return false;
    snprintf(d->info.name, sizeof d->info.name, "%.127s", p.name);
    memcpy(d->info.uuid, p.uuid.bytes, sizeof d->info.uuid);
    d->info.major = p.major;
    d->info.minor = p.minor;
    d->info.multiprocessors = p.multiProcessorCount;
    d->info.memory = (int64_t)p.totalGlobalMem;
    d->max_shared = (int)p.sharedMemPerBlockOptin;
    d->max_threads = p.maxThreadsPerMultiProcessor;
    d->l2 = (size_t)p.l2CacheSize;
    return true;
}

/* Returns whether there is code for it among "sm_90 compute_90": code of a generation for the same and later minor
 * numbers, or intermediate code for all later devices. */
static bool has_code(const trek_device_info *info)
{
    int own = info->major * 10 + info->minor, known = 0;
    for (const char *at = trek_cuda_architectures(); at && *at; at += strcspn(at, " "), at += strspn(at, " ")) {
        int number;
        char letter = ' ';
        if (sscanf(at, "sm_%d%c", &number, &letter) >= 1) {
            known++;
            if (letter != ' ' ? number == own : number / 10 == info->major && number <= own)
                return true;
        } else if (sscanf(at, "compute_%d", &number) == 1) {
            known++;
            if (number <= own)
                return true;
        }
    }
    return known == 0;
}

static bool can_list(trek_cuda_device *d)
{
    if (!read_properties(d))
        return false;
    if (!has_code(&d->info))
        return !note_problem(d, cudaErrorNoKernelImageForDevice, "a kernel");
    return true;
}

/* Writes a number through a kernel into the fault record and checks that it arrives. */
static bool probe(trek_cuda_device *d)
{
    void *host = NULL, *device = NULL;
    if (note_problem(d, cudaSetDevice(d->ordinal), "it cannot be opened") ||
        note_problem(d, cudaHostAlloc(&host, sizeof *d->faults, cudaHostAllocMapped | cudaHostAllocPortable), "pinned memory"))
        return false;
    memset(host, 0, sizeof *d->faults);
    d->faults = host;
    cudaStream_t stream = NULL;
    if (note_problem(d, cudaHostGetDevicePointer(&device, host, 0), "mapped memory") ||
        note_problem(d, cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "a stream"))
        return false;
    d->faults_device = device;
    bool failed = note_problem(d, trek_cuda_probe(&d->faults_device->value, 4711, stream), "a kernel") ||
                  note_problem(d, cudaStreamSynchronize(stream), "a kernel");
    cudaStreamDestroy(stream);
    if (failed)
        return false;
    if (d->faults->value != 4711) {
        snprintf(d->why, sizeof d->why, "a kernel's result did not arrive");
        return false;
    }
    d->faults->value = 0;
    return true;
}

/* Opens its context when it is first used. Later callers get the same answer. Afterwards it is the calling thread's
 * device. */
static bool opened(trek_cuda_device *d)
{
    int state = __atomic_load_n(&d->state, __ATOMIC_ACQUIRE);
    if (state == TREK_CUDA_LISTED) {
        pthread_mutex_lock(&opening);
        if ((state = __atomic_load_n(&d->state, __ATOMIC_ACQUIRE)) == TREK_CUDA_LISTED) {
            trek_cuda_pass();
            state = probe(d) ? TREK_CUDA_OPEN : TREK_CUDA_BROKEN;
            trek_cuda_passed();
            __atomic_store_n(&d->state, state, __ATOMIC_RELEASE);
            trek_cuda_forget_current();
        }
        pthread_mutex_unlock(&opening);
    }
    return state == TREK_CUDA_OPEN;
}

trek_cuda_device *trek_cuda_device_open(void)
{
    for (int k = 0; k < n_devices; k++)
        if (__atomic_load_n(&devices[k].state, __ATOMIC_ACQUIRE) == TREK_CUDA_OPEN)
            return &devices[k];
    return NULL;
}

int trek_cuda_open_ordinal(int index)
{
    return __atomic_load_n(&devices[index].state, __ATOMIC_ACQUIRE) == TREK_CUDA_OPEN ? devices[index].ordinal : -1;
}

trek_status trek_cuda_open_devices(char *why, size_t size)
{
    int count = 0;
    const char *each = getenv("TREK_CUDA_SYNC");
    trek_cuda_sync_each = each && strcmp(each, "1") == 0;
    const char *cache = getenv("TREK_CACHE");
    trek_cuda_set_caching(!cache || strcmp(cache, "off") != 0);
    cudaError_t error = cudaGetDeviceCount(&count);
    if (error != cudaSuccess || count == 0) {
        cudaGetLastError();
        snprintf(why, size, "%s", error == cudaSuccess ? "the driver lists none" : cudaGetErrorString(error));
        return TREK_ERR_DEVICE;
    }
    for (int k = 0; k < count && k < TREK_CUDA_MAX_DEVICES; k++) {
        trek_cuda_device *d = &devices[n_devices];
        memset(d, 0, sizeof *d);
        d->index = n_devices;
        d->ordinal = k;
        if (can_list(d)) {
            n_devices++;
            continue;
        }
        snprintf(left_out, sizeof left_out, "GPU %d (%.40s): %.120s", k, d->info.name[0] ? d->info.name : "?", d->why);
        trek_log_message(TREK_LOG_LEVEL_WARNING, "%s; it is left out", left_out);
    }
    if (n_devices > 0)
        return TREK_OK;
    snprintf(why, size, "%s", left_out);
    return TREK_ERR_DEVICE;
}

int trek_cuda_device_count(void) { return n_devices; }

bool trek_cuda_usable(int index, char *why, size_t size)
{
    bool listed = index >= 0 && index < n_devices;
    if (listed && opened(&devices[index]))
        return true;
    if (listed)
        snprintf(why, size, "cuda:%d (%.40s) cannot be used: %s", index, devices[index].info.name, devices[index].why);
    else
        snprintf(why, size, "cuda:%d is no device: there %s %d%s%s", index, n_devices == 1 ? "is" : "are", n_devices,
                 left_out[0] ? ", and one that was left out: " : "", left_out);
    return false;
}

trek_cuda_device *trek_cuda_device_at(int index)
{
    char why[320];
    if (trek_cuda_usable(index, why, sizeof why))
        return &devices[index];
    trek_fail(TREK_ERR_DEVICE, "%s", why);
    return NULL;
}

trek_status trek_cuda_info(int index, trek_device_info *info)
{
    trek_cuda_device *d = trek_cuda_device_at(index);
    if (!d)
        return TREK_ERR_DEVICE;
    *info = d->info;
    size_t unused = 0, total = 0;
    if (!trek_cuda_queue_here(index))
        return trek_error_status();
    trek_status status = trek_cuda_check(cudaMemGetInfo(&unused, &total), "cudaMemGetInfo");
    info->memory_free = (int64_t)unused;
    return status;
}

trek_status trek_cuda_describe(int index, trek_device_info *info)
{
    if (index < 0 || index >= n_devices)
        return trek_fail(TREK_ERR_DEVICE, "device_info_get: device: cuda:%d does not exist", index);
    *info = devices[index].info;
    return TREK_OK;
}

/* --- shared memory of kernels --------------------------------------------------------------- */

enum { KERNELS = 4096 }; /* a hash table by address, several times as large as the number of kernels */

static struct {
    const void *kernel;
    uint64_t devices; /* one bit for each CUDA device on which it may use all of the shared memory */
} allowed[KERNELS];
static pthread_mutex_t allowing = PTHREAD_MUTEX_INITIALIZER;

/* Returns the kernel's entry, or a free one for it; without the lock another thread may take that meanwhile. KERNELS:
 * there is none. */
static size_t place_of(const void *kernel)
{
    size_t first = (size_t)(((uint64_t)(uintptr_t)kernel >> 4) * UINT64_C(0x9e3779b97f4a7c15) >> 52);
    for (size_t n = 0; n < KERNELS; n++) {
        size_t at = (first + n) % KERNELS;
        const void *there = __atomic_load_n(&allowed[at].kernel, __ATOMIC_ACQUIRE);
        if (!there || there == kernel)
            return at;
    }
    return KERNELS;
}

static bool is_allowed(size_t at, const void *kernel, int ordinal)
{
    return at < KERNELS && __atomic_load_n(&allowed[at].kernel, __ATOMIC_ACQUIRE) == kernel &&
           (__atomic_load_n(&allowed[at].devices, __ATOMIC_ACQUIRE) >> ordinal & 1);
}

static cudaError_t allow_all(const void *kernel, int ordinal)
{
    int most = 0;
    struct cudaFuncAttributes own;
    cudaError_t error = cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, ordinal);
    if (error == cudaSuccess)
        error = cudaFuncGetAttributes(&own, kernel);
    if (error == cudaSuccess)
        error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, most - (int)own.sharedSizeBytes);
    return error;
}

cudaError_t trek_cuda_allow_shared(const void *kernel)
{
    int ordinal = 0;
    cudaError_t error = cudaGetDevice(&ordinal);
    if (error != cudaSuccess || is_allowed(place_of(kernel), kernel, ordinal))
        return error;
    pthread_mutex_lock(&allowing);
    size_t at = place_of(kernel);
    if (!is_allowed(at, kernel, ordinal) && (error = allow_all(kernel, ordinal)) == cudaSuccess && at < KERNELS) {
        __atomic_fetch_or(&allowed[at].devices, UINT64_C(1) << ordinal, __ATOMIC_RELEASE);
        __atomic_store_n(&allowed[at].kernel, kernel, __ATOMIC_RELEASE);
    }
    pthread_mutex_unlock(&allowing);
    return error;
}

/* --- faults --------------------------------------------------------------------------- */

trek_status trek_cuda_take_fault(trek_cuda_device *d)
{
    trek_cuda_fault_record *r = d->faults;
    if (!__atomic_load_n(&r->written, __ATOMIC_ACQUIRE))
        return TREK_OK;
    const char *op = r->op >= 0 && r->op < TREK_OP_COUNT ? trek_plugin_host->ops[r->op].name : "?";
    trek_status status = TREK_ERR_ARGUMENT;
    if (r->fault == TREK_CUDA_FAULT_DIVISION)
        trek_fail(status, "%s: division of integers by zero", op);
    else if (r->fault == TREK_CUDA_FAULT_PLANE)
        trek_fail(status, "%s: indices: one is outside of the plane: %lld of %lld", op, r->value, r->limit);
    else if (r->fault == TREK_CUDA_FAULT_LENGTH)
        trek_fail(status, "%s: length %lld of row %lld is outside [0, %lld]", op, r->value, r->place, r->limit);
    else if (r->fault == TREK_CUDA_FAULT_OFFSET)
        trek_fail(status,
                  "%s: offset %lld at position %lld: must begin with 0, never fall, and be at most %lld, the number of indices",
                  op, r->value, r->place, r->limit);
    else
        trek_fail(status, "%s: %s %lld at %s %lld is outside [0, %lld)", op,
                  r->fault == TREK_CUDA_FAULT_LABEL ? "label" : "index",
                  r->value, r->fault == TREK_CUDA_FAULT_LABEL ? "row" : "position", r->place, r->limit);
    __atomic_store_n(&r->written, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&r->taken, 0, __ATOMIC_RELEASE);
    return status;
}
