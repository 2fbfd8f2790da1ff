/* SPDX-License-Identifier: Apache-2.0 */
/* What the fake devices say of themselves: properties, attributes, peers, limits of
 * kernels. They are modelled on a GPU of compute capability 9.0, only smaller. */
#include <cstdio>
#include <map>

#include "fake_kernel.h"

namespace fake {

enum { MULTIPROCESSORS = 4, SHARED = 48 << 10, RESERVED = 1024 };
enum { THREADS_OF_MULTIPROCESSOR = 2048, BLOCKS_OF_MULTIPROCESSOR = 32 };

struct Functions {
    std::mutex mutex;
    std::map<std::pair<const void *, int>, int> dynamic_shared; /* of a kernel on a device */
};
static Functions &functions()
{
    static Functions *f = new Functions;
    return *f;
}

/* Dynamic shared memory that a kernel may have; null stands for one that has opted in. */
size_t allowed_shared(const void *function)
{
    if (!function)
        return state().shared;
    std::lock_guard<std::mutex> lock(functions().mutex);
    auto found = functions().dynamic_shared.find({function, current_device()});
    return found == functions().dynamic_shared.end() ? (size_t)SHARED : (size_t)found->second;
}

static bool there(int device) { return device >= 0 && device < state().devices; }

static int attribute_of(enum cudaDeviceAttr attribute, int device)
{
    switch (attribute) {
    case cudaDevAttrMaxThreadsPerBlock: case cudaDevAttrMaxBlockDimX: case cudaDevAttrMaxBlockDimY: return 1024;
    case cudaDevAttrMaxBlockDimZ: return 64;
    case cudaDevAttrMaxGridDimX: return 2147483647;
    case cudaDevAttrMaxGridDimY: case cudaDevAttrMaxGridDimZ: return 65535;
    case cudaDevAttrMaxSharedMemoryPerBlock: return SHARED;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: return (int)state().shared;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor: return (int)state().shared + RESERVED;
    case cudaDevAttrReservedSharedMemoryPerBlock: return RESERVED;
    case cudaDevAttrTotalConstantMemory: return 65536;
    case cudaDevAttrWarpSize: return 32;
    case cudaDevAttrMaxRegistersPerBlock: case cudaDevAttrMaxRegistersPerMultiprocessor: return 65536;
    case cudaDevAttrClockRate: return 1500000;
    case cudaDevAttrMemoryClockRate: return 2000000;
    case cudaDevAttrGlobalMemoryBusWidth: return 512;
    case cudaDevAttrL2CacheSize: return (int)state().l2;
    case cudaDevAttrMultiProcessorCount: return MULTIPROCESSORS;
    case cudaDevAttrMaxThreadsPerMultiProcessor: return THREADS_OF_MULTIPROCESSOR;
    case cudaDevAttrMaxBlocksPerMultiprocessor: return BLOCKS_OF_MULTIPROCESSOR;
    case cudaDevAttrComputeCapabilityMajor: return state().major;
    case cudaDevAttrComputeCapabilityMinor: return state().minor;
    case cudaDevAttrPciBusId: return device + 1;
    case cudaDevAttrAsyncEngineCount: return 2;
    case cudaDevAttrCanMapHostMemory: case cudaDevAttrConcurrentKernels: case cudaDevAttrUnifiedAddressing:
    case cudaDevAttrStreamPrioritiesSupported: case cudaDevAttrCanUseHostPointerForRegisteredMem:
    case cudaDevAttrHostRegisterSupported: return 1;
    default: return 0;
    }
}

} // namespace fake

using namespace fake;

extern "C" {

cudaError_t cudaDriverGetVersion(int *version)
{
    *version = state().no_driver ? 0 : CUDART_VERSION;
    return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int *version)
{
    *version = CUDART_VERSION;
    return cudaSuccess;
}

cudaError_t cudaGetDeviceFlags(unsigned int *flags)
{
    FAKE_ENTER();
    *flags = cudaDeviceScheduleAuto | cudaDeviceMapHost;
    return cudaSuccess;
}

cudaError_t cudaSetDeviceFlags(unsigned int flags)
{
    FAKE_ENTER();
    (void)flags;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device)
{
    FAKE_ENTER();
    if (!there(device))
        return give(cudaErrorInvalidDevice);
    *value = attribute_of(attribute, device);
    return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *p, int device)
{
    FAKE_ENTER();
    if (!there(device))
        return give(cudaErrorInvalidDevice);
    *p = cudaDeviceProp();
    snprintf(p->name, sizeof p->name, "Fake GPU"); /* all of one kind */
    memcpy(p->uuid.bytes, "fake-gpu", 8);
    p->uuid.bytes[15] = (char)device;
    p->totalGlobalMem = state().device[device].limit;
    p->sharedMemPerBlock = SHARED;
    p->sharedMemPerBlockOptin = state().shared;
    p->sharedMemPerMultiprocessor = state().shared + RESERVED;
    p->reservedSharedMemPerBlock = RESERVED;
    p->regsPerBlock = p->regsPerMultiprocessor = 65536;
    p->warpSize = 32;
    p->memPitch = 2147483647;
    p->maxThreadsPerBlock = p->maxThreadsDim[0] = p->maxThreadsDim[1] = 1024;
    p->maxThreadsDim[2] = 64;
    p->maxGridSize[0] = 2147483647;
    p->maxGridSize[1] = p->maxGridSize[2] = 65535;
    p->totalConstMem = 65536;
    p->major = state().major;
    p->minor = state().minor;
    p->multiProcessorCount = MULTIPROCESSORS;
    p->canMapHostMemory = p->concurrentKernels = p->unifiedAddressing = p->streamPrioritiesSupported = 1;
    p->canUseHostPointerForRegisteredMem = p->hostRegisterSupported = 1;
    p->pciBusID = device + 1;
    p->asyncEngineCount = 2;
    p->memoryBusWidth = 512;
    p->l2CacheSize = (int)state().l2;
    p->maxThreadsPerMultiProcessor = THREADS_OF_MULTIPROCESSOR;
    p->maxBlocksPerMultiProcessor = BLOCKS_OF_MULTIPROCESSOR;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetPCIBusId(char *text, int size, int device)
{
    FAKE_ENTER();
    if (!there(device) || size < 13)
        return give(there(device) ? cudaErrorInvalidValue : cudaErrorInvalidDevice);
    snprintf(text, (size_t)size, "0000:%02x:00.0", (unsigned)device + 1);
    return cudaSuccess;
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest)
{
    FAKE_ENTER();
    if (least)
        *least = 0;
    if (greatest)
        *greatest = -5;
    return cudaSuccess;
}

/* -- peers -- */

cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int peer)
{
    FAKE_ENTER();
    if (!there(device) || !there(peer))
        return give(cudaErrorInvalidDevice);
    *can = state().peer && device != peer;
    return cudaSuccess;
}

cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned int flags)
{
    FAKE_ENTER();
    if (flags)
        return give(cudaErrorInvalidValue);
    if (!there(peer) || peer == current_device())
        return give(cudaErrorInvalidDevice);
    if (!state().peer)
        return give(cudaErrorPeerAccessUnsupported);
    unsigned before = state().device[current_device()].peers.fetch_or(1u << peer);
    return before >> peer & 1u ? give(cudaErrorPeerAccessAlreadyEnabled) : cudaSuccess;
}

cudaError_t cudaDeviceDisablePeerAccess(int peer)
{
    FAKE_ENTER();
    if (!there(peer))
        return give(cudaErrorInvalidDevice);
    unsigned before = state().device[current_device()].peers.fetch_and(~(1u << peer));
    return before >> peer & 1u ? cudaSuccess : give(cudaErrorPeerAccessNotEnabled);
}

/* -- kernels -- */

cudaError_t cudaFuncSetAttribute(const void *function, enum cudaFuncAttribute attribute, int value)
{
    FAKE_ENTER();
    if (!function)
        return give(cudaErrorInvalidDeviceFunction);
    if (attribute == cudaFuncAttributeMaxDynamicSharedMemorySize) {
        if (value < 0 || (size_t)value > state().shared)
            return give(cudaErrorInvalidValue);
        std::lock_guard<std::mutex> lock(functions().mutex);
        functions().dynamic_shared[{function, current_device()}] = value;
    }
    return cudaSuccess;
}

/* What is static is not known here: each array comes when a thread gets to it. */
cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *attributes, const void *function)
{
    FAKE_ENTER();
    if (!function)
        return give(cudaErrorInvalidDeviceFunction);
    *attributes = cudaFuncAttributes();
    attributes->maxThreadsPerBlock = 1024;
    attributes->maxDynamicSharedSizeBytes = (int)allowed_shared(function);
    attributes->ptxVersion = runs_ptx() || state().sm_90a ? 90 : 80; /* C++ has nothing that an older one had not */
    return cudaSuccess;
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, const void *function, int block_size, size_t shared_bytes)
{
    FAKE_ENTER();
    if (!function || block_size <= 0 || block_size > 1024)
        return give(cudaErrorInvalidValue);
    int by_threads = THREADS_OF_MULTIPROCESSOR / ((block_size + 31) / 32 * 32);
    int by_shared = (int)((state().shared + RESERVED) / (shared_bytes + RESERVED));
    *blocks = by_threads < by_shared ? by_threads : by_shared;
    if (*blocks > BLOCKS_OF_MULTIPROCESSOR)
        *blocks = BLOCKS_OF_MULTIPROCESSOR;
    return cudaSuccess;
}

} // extern "C"
