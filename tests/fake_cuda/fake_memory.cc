/* SPDX-License-Identifier: Apache-2.0 */
/* The fake runtime's memory. Every device allocation is a mapping of its own that
 * ends at a page which faults, and carries the device's protection key: only
 * threads that run work of the device hold the right to touch it. Freed addresses
 * are not given out again. */
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <shared_mutex>
#include <sys/mman.h>
#include <unistd.h>

#include "fake_internal.h"

namespace fake {

struct Registry {
    std::shared_timed_mutex mutex;
    std::map<uintptr_t, Block> blocks; /* by base */
    std::atomic<size_t> pinned{0};
};
static Registry &registry()
{
    static Registry *r = new Registry;
    return *r;
}

/* -- protection keys -- */

void make_keys(State &s)
{
    const char *wanted = getenv("TREK_FAKE_PROTECT");
    if (wanted && atoi(wanted) == 0) {
        s.unprotected = "switched off by TREK_FAKE_PROTECT";
        return;
    }
#ifdef PKEY_DISABLE_ACCESS
    for (int d = 0; d < s.devices; d++) {
        s.device[d].key = pkey_alloc(0, PKEY_DISABLE_ACCESS);
        if (s.device[d].key < 0 && d > 0)
            s.device[d].key = s.device[d - 1].key; /* out of keys: the last one is shared */
    }
    if (s.devices && s.device[0].key < 0)
        s.unprotected = "this machine has no protection keys";
#else
    s.unprotected = "this machine has no protection keys";
#endif
}

void open_memory(unsigned devices)
{
#ifdef PKEY_DISABLE_ACCESS
    State &s = state();
    if (!s.unprotected.empty())
        return;
    for (int d = 0; d < s.devices; d++)
        pkey_set(s.device[d].key, PKEY_DISABLE_ACCESS);
    for (int d = 0; d < s.devices; d++)
        if (devices >> d & 1u)
            pkey_set(s.device[d].key, 0);
#else
    (void)devices;
#endif
}

unsigned reach(int device) { return 1u << device | state().device[device].peers.load(std::memory_order_relaxed); }

/* -- blocks -- */

static size_t page() { return (size_t)sysconf(_SC_PAGESIZE); }

static bool map_block(size_t bytes, int device, Block *block)
{
    size_t p = page(), aligned = (bytes + 255) / 256 * 256, body = (aligned + p - 1) / p * p;
    char *mapped = (char *)mmap(nullptr, body + 2 * p, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapped == MAP_FAILED)
        return false;
    if (mprotect(mapped + p, body, PROT_READ | PROT_WRITE)) {
        munmap(mapped, body + 2 * p);
        return false;
    }
    memset(mapped + p, POISON, body);
    block->mapped = mapped;
    block->mapped_bytes = body + 2 * p;
    block->base = mapped + p + (body - aligned);
    block->bytes = bytes;
    block->device = device;
    ASAN_POISON_MEMORY_REGION(mapped + p, (size_t)(block->base - (mapped + p)));
    ASAN_POISON_MEMORY_REGION(block->base + bytes, aligned - bytes);
#ifdef PKEY_DISABLE_ACCESS
    if (device >= 0 && state().unprotected.empty())
        pkey_mprotect(mapped + p, body, PROT_READ | PROT_WRITE, state().device[device].key);
#endif
    return true;
}

static void unmap_block(const Block &block)
{
    ASAN_UNPOISON_MEMORY_REGION(block.mapped, block.mapped_bytes);
    /* the addresses stay taken, and fault */
    if (mmap(block.mapped, block.mapped_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1,
             0) == MAP_FAILED)
        munmap(block.mapped, block.mapped_bytes);
}

bool find_block(const void *pointer, Block *block)
{
    Registry &r = registry();
    std::shared_lock<std::shared_timed_mutex> lock(r.mutex);
    auto at = r.blocks.upper_bound((uintptr_t)pointer);
    if (at == r.blocks.begin())
        return false;
    --at;
    if ((uintptr_t)pointer >= at->first + at->second.bytes)
        return false;
    *block = at->second;
    return true;
}

int where(const void *pointer, size_t bytes, Block *block)
{
    const char *p = (const char *)pointer;
    if (!find_block(p, block)) {
        Block other;
        return bytes && find_block(p + bytes - 1, &other) ? -1 : 0;
    }
    if (bytes > block->bytes - (size_t)(p - block->base))
        return -1;
    return block->device >= 0 ? 1 : 2;
}

cudaError_t add_block(const Block &block)
{
    Registry &r = registry();
    std::unique_lock<std::shared_timed_mutex> lock(r.mutex);
    r.blocks[(uintptr_t)block.base] = block;
    return cudaSuccess;
}

bool take_block(void *pointer, bool of_device, bool registered, Block *block)
{
    Registry &r = registry();
    std::unique_lock<std::shared_timed_mutex> lock(r.mutex);
    auto at = r.blocks.find((uintptr_t)pointer);
    if (at == r.blocks.end() || (at->second.device >= 0) != of_device || at->second.registered != registered)
        return false;
    *block = at->second;
    r.blocks.erase(at);
    return true;
}

bool use_device(int device, size_t bytes)
{
    Device &d = state().device[device];
    if (bytes <= d.limit && d.used.fetch_add(bytes) <= d.limit - bytes)
        return true;
    if (bytes <= d.limit)
        d.used -= bytes;
    return false;
}

static cudaError_t allocate_on(int device, void **pointer, size_t bytes)
{
    *pointer = nullptr;
    if (bytes == 0)
        return cudaSuccess;
    Block block;
    if (!use_device(device, bytes))
        return cudaErrorMemoryAllocation;
    if (!map_block(bytes, device, &block)) {
        state().device[device].used -= bytes;
        return cudaErrorMemoryAllocation;
    }
    *pointer = block.base;
    return add_block(block);
}

static cudaError_t free_block(void *pointer)
{
    Block block;
    if (!take_block(pointer, true, false, &block))
        return cudaErrorInvalidValue;
    unmap_block(block);
    state().device[block.device].used -= block.bytes;
    return cudaSuccess;
}

} // namespace fake

using namespace fake;

extern "C" {

size_t trek_fake_device_bytes(int device)
{
    if (device < 0)
        return registry().pinned;
    return device < state().devices ? state().device[device].used.load() : 0;
}

bool trek_fake_memory_protected(const char **why)
{
    if (why)
        *why = state().unprotected.c_str();
    return state().unprotected.empty();
}

cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes)
{
    FAKE_ENTER();
    Device &d = state().device[current_device()];
    *total_bytes = d.limit;
    *free_bytes = d.limit - d.used.load();
    return cudaSuccess;
}

cudaError_t cudaMalloc(void **pointer, size_t bytes)
{
    FAKE_ENTER();
    if (cudaError_t error = unsafe_call())
        return give(error);
    return give(allocate_on(current_device(), pointer, bytes));
}

/* As the real one, it waits for the device first. */
cudaError_t cudaFree(void *pointer)
{
    FAKE_ENTER();
    if (!pointer)
        return cudaSuccess;
    if (cudaError_t error = unsafe_call())
        return give(error);
    Block block;
    if (!find_block(pointer, &block) || block.base != pointer || block.device < 0)
        return give(cudaErrorInvalidValue);
    wait_device(block.device);
    return give(free_block(pointer));
}

cudaError_t cudaMallocAsync(void **pointer, size_t bytes, cudaStream_t stream)
{
    FAKE_ENTER();
    CUstream_st *s;
    cudaError_t error = find_stream(stream, &s);
    if (!error)
        error = captures(s) ? cudaErrorNotSupported : allocate_on(s->device, pointer, bytes);
    return give(error);
}

cudaError_t cudaFreeAsync(void *pointer, cudaStream_t stream)
{
    FAKE_ENTER();
    if (!pointer)
        return cudaSuccess;
    CUstream_st *s;
    Block block;
    cudaError_t error = find_stream(stream, &s);
    if (error)
        return give(error);
    if (captures(s))
        return give(cudaErrorNotSupported);
    if (!find_block(pointer, &block) || block.base != pointer || block.device < 0)
        return give(cudaErrorInvalidValue);
    Task task;
    task.name = "cudaFreeAsync";
    task.device = s->device;
    task.run = [pointer] { free_block(pointer); };
    push(s, std::move(task));
    return cudaSuccess;
}

cudaError_t cudaHostAlloc(void **pointer, size_t bytes, unsigned int flags)
{
    FAKE_ENTER();
    (void)flags;
    *pointer = nullptr;
    if (cudaError_t error = unsafe_call())
        return give(error);
    if (bytes == 0)
        return cudaSuccess;
    Block block;
    if (!map_block(bytes, -1, &block))
        return give(cudaErrorMemoryAllocation);
    registry().pinned += bytes;
    __lsan_register_root_region(block.base, block.bytes); /* what only pinned memory points to has not leaked */
    *pointer = block.base;
    return add_block(block);
}

cudaError_t cudaMallocHost(void **pointer, size_t bytes) { return cudaHostAlloc(pointer, bytes, cudaHostAllocDefault); }

cudaError_t cudaFreeHost(void *pointer)
{
    FAKE_ENTER();
    if (!pointer)
        return cudaSuccess;
    if (cudaError_t error = unsafe_call())
        return give(error);
    for (int d = 0; d < state().devices; d++)
        wait_device(d);
    Block block;
    if (!take_block(pointer, false, false, &block))
        return give(cudaErrorInvalidValue);
    __lsan_unregister_root_region(block.base, block.bytes);
    unmap_block(block);
    registry().pinned -= block.bytes;
    return cudaSuccess;
}

cudaError_t cudaHostRegister(void *pointer, size_t bytes, unsigned int flags)
{
    FAKE_ENTER();
    (void)flags;
    Block block;
    if (!pointer || !bytes)
        return give(cudaErrorInvalidValue);
    if (where(pointer, bytes, &block) != 0)
        return give(cudaErrorHostMemoryAlreadyRegistered);
    block = Block();
    block.base = (char *)pointer;
    block.bytes = bytes;
    block.registered = true;
    return add_block(block);
}

cudaError_t cudaHostUnregister(void *pointer)
{
    FAKE_ENTER();
    Block block;
    return take_block(pointer, false, true, &block) ? cudaSuccess : give(cudaErrorHostMemoryNotRegistered);
}

cudaError_t cudaHostGetDevicePointer(void **device, void *host, unsigned int flags)
{
    FAKE_ENTER();
    (void)flags;
    Block block;
    if (where(host, 1, &block) != 2)
        return give(cudaErrorInvalidValue);
    *device = host;
    return cudaSuccess;
}

cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *attributes, const void *pointer)
{
    FAKE_ENTER();
    Block block;
    int kind = where(pointer, 1, &block);
    memset(attributes, 0, sizeof *attributes);
    attributes->type = kind == 1 ? cudaMemoryTypeDevice : kind == 2 ? cudaMemoryTypeHost : cudaMemoryTypeUnregistered;
    attributes->device = kind == 1 ? block.device : kind == 2 ? current_device() : -2;
    attributes->devicePointer = kind > 0 ? const_cast<void *>(pointer) : nullptr;
    attributes->hostPointer = kind != 1 ? const_cast<void *>(pointer) : nullptr;
    return cudaSuccess;
}

} // extern "C"
