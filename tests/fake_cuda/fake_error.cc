/* SPDX-License-Identifier: Apache-2.0 */
/* The fake runtime's state, errors of both kinds (of one call; of the device, for
 * good), failures asked for by tests, and reports about kernels. */
#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <map>

#include <cstring>

#include "fake_internal.h"

namespace fake {

static thread_local cudaError_t last_error = cudaSuccess;
static thread_local int device_now = 0;
static thread_local bool host_function = false;

/* -- the state, made at first use -- */

static size_t size_from(const char *text, size_t otherwise)
{
    if (!text || !*text)
        return otherwise;
    char *end;
    double n = strtod(text, &end);
    switch (*end) {
    case 'k': case 'K': n *= 1024.0; break;
    case 'm': case 'M': n *= 1048576.0; break;
    case 'g': case 'G': n *= 1073741824.0; break;
    default: break;
    }
    return n > 0 ? (size_t)n : otherwise;
}

static State *make_state()
{
    State *s = new State;
    const char *gpus = getenv("TREK_FAKE_GPUS"), *late = getenv("TREK_FAKE_LATE"), *peer = getenv("TREK_FAKE_PEER");
    int n = gpus && *gpus ? atoi(gpus) : 2;
    s->no_driver = n < 0;
    s->devices = n < 0 ? 0 : n > MAX_DEVICES ? (int)MAX_DEVICES : n;
    s->peer = !(peer && atoi(peer) == 0);
    const char *races = getenv("TREK_FAKE_RACES");
    s->races = races && atoi(races) != 0;
    if (late && *late) {
        s->late_set = true;
        s->late = (unsigned)strtoul(late, nullptr, 10);
    }
    size_t limit = size_from(getenv("TREK_FAKE_GPU_MEMORY"), (size_t)1 << 30);
    for (int d = 0; d < s->devices; d++)
        s->device[d].limit = limit;
    const size_t most = MOST_SHARED;
    s->shared = std::min(size_from(getenv("TREK_FAKE_SHARED"), most), most);
    const char *capability = getenv("TREK_FAKE_CAPABILITY"), *sm_90a = getenv("TREK_FAKE_SM_90A");
    if (capability && sscanf(capability, "%d.%d", &s->major, &s->minor) != 2)
        s->major = 9, s->minor = 0;
    s->sm_90a = sm_90a && atoi(sm_90a) != 0;
    s->l2 = size_from(getenv("TREK_FAKE_L2"), (size_t)4 << 20);
    make_keys(*s);
    if (const char *fail = getenv("TREK_FAKE_FAIL"))
        trek_fake_fail(fail);
    watch_faults();
    pthread_atfork(nullptr, nullptr, [] { state().forked = true; });
    atexit(end_streams);
    return s;
}

State &state()
{
    static State *s = make_state();
    return *s;
}

/* -- failures asked for -- */

struct Failure {
    std::string function;
    long at;
    int error;
    bool on; /* and all that follow */
};
struct Failures {
    std::mutex mutex;
    std::vector<Failure> list;
    std::map<std::string, long> calls;
    std::atomic<bool> any{false};
};
static Failures &failures()
{
    static Failures *f = new Failures;
    return *f;
}

static cudaError_t likely_error(const std::string &function)
{
    if (function == "kernel")
        return cudaErrorIllegalAddress;
    if (function.find("Alloc") != std::string::npos || function.find("cudaMalloc") == 0 ||
        function.find("Create") != std::string::npos)
        return cudaErrorMemoryAllocation;
    if (function == "cudaLaunchKernel")
        return cudaErrorLaunchOutOfResources;
    return cudaErrorUnknown;
}

bool fails_now(const char *function, cudaError_t *error)
{
    Failures &f = failures();
    if (!f.any.load(std::memory_order_relaxed))
        return false;
    std::lock_guard<std::mutex> lock(f.mutex);
    long call = ++f.calls[function];
    for (const Failure &failure : f.list)
        if ((failure.at == call || (failure.on && call > failure.at)) && failure.function == function) {
            *error = failure.error ? (cudaError_t)failure.error : likely_error(failure.function);
            return true;
        }
    return false;
}

/* -- what calls begin and end with -- */

cudaError_t give(cudaError_t error)
{
    if (error != cudaSuccess)
        last_error = error;
    return error;
}

/* What only asks makes no context; all else makes one on the thread's device. */
static void note_context(const char *function)
{
    static const char *const queries[] = { "cudaGetDevice", "cudaGetDeviceProperties", "cudaDeviceGetAttribute",
                                           "cudaDeviceGetPCIBusId", "cudaDeviceCanAccessPeer" };
    Device &d = state().device[device_now];
    if (d.context.load(std::memory_order_relaxed))
        return;
    for (const char *query : queries)
        if (!strcmp(function, query))
            return;
    d.context = true;
}

cudaError_t enter(const char *function)
{
    State &s = state();
    cudaError_t error;
    if (s.quitting.load(std::memory_order_relaxed))
        return cudaErrorCudartUnloading;
    if (s.forked.load(std::memory_order_relaxed))
        return give(cudaErrorInitializationError);
    if (s.no_driver)
        return give(cudaErrorInsufficientDriver);
    if (s.devices == 0)
        return give(cudaErrorNoDevice);
    if (host_function)
        return give(cudaErrorNotPermitted);
    note_context(function);
    if (fails_now(function, &error))
        return give(error);
    int sticky = s.device[device_now].sticky.load(std::memory_order_relaxed);
    return sticky ? give((cudaError_t)sticky) : cudaSuccess;
}

void set_sticky(int device, cudaError_t error)
{
    int none = 0;
    state().device[device].sticky.compare_exchange_strong(none, error);
}

void in_host_function(bool yes) { host_function = yes; }
int current_device() { return device_now; }

/* -- reports -- */

struct Report {
    std::mutex mutex;
    std::string text;
};
static Report &last_report()
{
    static Report *r = new Report;
    return *r;
}

void report(const char *format, ...)
{
    char text[512];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    fprintf(stderr, "fake cuda: %s\n", text);
    Report &r = last_report();
    std::lock_guard<std::mutex> lock(r.mutex);
    r.text = text;
}

static const char *name_of(cudaError_t error)
{
    switch (error) {
#define NAME(name) case name: return #name;
        NAME(cudaSuccess) NAME(cudaErrorInvalidValue) NAME(cudaErrorMemoryAllocation) NAME(cudaErrorInitializationError)
        NAME(cudaErrorCudartUnloading) NAME(cudaErrorInvalidConfiguration) NAME(cudaErrorInvalidPitchValue)
        NAME(cudaErrorInvalidSymbol) NAME(cudaErrorInvalidHostPointer) NAME(cudaErrorInvalidDevicePointer)
        NAME(cudaErrorInvalidMemcpyDirection) NAME(cudaErrorStubLibrary) NAME(cudaErrorInsufficientDriver)
        NAME(cudaErrorCallRequiresNewerDriver) NAME(cudaErrorDevicesUnavailable) NAME(cudaErrorInvalidDeviceFunction)
        NAME(cudaErrorNoDevice) NAME(cudaErrorInvalidDevice) NAME(cudaErrorDeviceNotLicensed) NAME(cudaErrorStartupFailure)
        NAME(cudaErrorInvalidKernelImage) NAME(cudaErrorDeviceUninitialized) NAME(cudaErrorNoKernelImageForDevice)
        NAME(cudaErrorECCUncorrectable) NAME(cudaErrorUnsupportedLimit) NAME(cudaErrorDeviceAlreadyInUse)
        NAME(cudaErrorPeerAccessUnsupported) NAME(cudaErrorInvalidPtx) NAME(cudaErrorNvlinkUncorrectable)
        NAME(cudaErrorUnsupportedPtxVersion) NAME(cudaErrorJitCompilationDisabled) NAME(cudaErrorSharedObjectSymbolNotFound)
        NAME(cudaErrorSharedObjectInitFailed) NAME(cudaErrorOperatingSystem) NAME(cudaErrorInvalidResourceHandle)
        NAME(cudaErrorIllegalState) NAME(cudaErrorSymbolNotFound) NAME(cudaErrorNotReady) NAME(cudaErrorIllegalAddress)
        NAME(cudaErrorLaunchOutOfResources) NAME(cudaErrorLaunchTimeout) NAME(cudaErrorPeerAccessAlreadyEnabled)
        NAME(cudaErrorPeerAccessNotEnabled) NAME(cudaErrorSetOnActiveProcess) NAME(cudaErrorContextIsDestroyed)
        NAME(cudaErrorAssert) NAME(cudaErrorTooManyPeers) NAME(cudaErrorHostMemoryAlreadyRegistered)
        NAME(cudaErrorHostMemoryNotRegistered) NAME(cudaErrorHardwareStackError) NAME(cudaErrorIllegalInstruction)
        NAME(cudaErrorMisalignedAddress) NAME(cudaErrorInvalidAddressSpace) NAME(cudaErrorInvalidPc)
        NAME(cudaErrorLaunchFailure) NAME(cudaErrorCooperativeLaunchTooLarge) NAME(cudaErrorNotPermitted)
        NAME(cudaErrorNotSupported) NAME(cudaErrorSystemNotReady) NAME(cudaErrorSystemDriverMismatch)
        NAME(cudaErrorCompatNotSupportedOnDevice) NAME(cudaErrorStreamCaptureUnsupported)
        NAME(cudaErrorStreamCaptureInvalidated) NAME(cudaErrorStreamCaptureMerge) NAME(cudaErrorStreamCaptureUnmatched)
        NAME(cudaErrorStreamCaptureUnjoined) NAME(cudaErrorStreamCaptureIsolation) NAME(cudaErrorStreamCaptureImplicit)
        NAME(cudaErrorCapturedEvent) NAME(cudaErrorStreamCaptureWrongThread) NAME(cudaErrorTimeout)
        NAME(cudaErrorGraphExecUpdateFailure) NAME(cudaErrorUnknown)
#undef NAME
    }
    return "unrecognized error code";
}

} // namespace fake

using namespace fake;

extern "C" {

void trek_fake_fail(const char *specification)
{
    Failures &f = failures();
    std::lock_guard<std::mutex> lock(f.mutex);
    f.list.clear();
    f.calls.clear();
    std::string all = specification ? specification : "";
    for (size_t at = 0; at < all.size();) {
        size_t end = all.find(',', at);
        std::string one = all.substr(at, end == std::string::npos ? end : end - at);
        at = end == std::string::npos ? all.size() : end + 1;
        size_t colon = one.find(':');
        if (colon == std::string::npos)
            continue;
        size_t second = one.find(':', colon + 1);
        f.list.push_back({one.substr(0, colon), atol(one.c_str() + colon + 1),
                          second == std::string::npos ? 0 : atoi(one.c_str() + second + 1),
                          one.find('+', colon) != std::string::npos});
    }
    f.any = !f.list.empty();
}

unsigned trek_fake_contexts(void)
{
    unsigned set = 0;
    for (int k = 0; k < state().devices; k++)
        set |= (unsigned)state().device[k].context.load() << k;
    return set;
}

long trek_fake_pageable(void) { return state().pageable; }
unsigned trek_fake_asked(int what) { return what >= 0 && what < 5 ? state().asked[what].load() : 0; }

long trek_fake_calls(const char *function)
{
    Failures &f = failures();
    std::lock_guard<std::mutex> lock(f.mutex);
    auto found = f.calls.find(function);
    return found == f.calls.end() ? 0 : found->second;
}

void trek_fake_report(char *text, size_t size)
{
    Report &r = last_report();
    std::lock_guard<std::mutex> lock(r.mutex);
    snprintf(text, size, "%s", r.text.c_str());
    r.text.clear();
}

void trek_fake_late(unsigned seed)
{
    state().late = seed;
    state().late_set = true;
}

cudaError_t cudaGetLastError(void)
{
    cudaError_t error = last_error;
    last_error = cudaSuccess;
    int sticky = state().devices ? state().device[device_now].sticky.load(std::memory_order_relaxed) : 0;
    return sticky ? (cudaError_t)sticky : error;
}

cudaError_t cudaPeekAtLastError(void)
{
    int sticky = state().devices ? state().device[device_now].sticky.load(std::memory_order_relaxed) : 0;
    return sticky ? (cudaError_t)sticky : last_error;
}

const char *cudaGetErrorName(cudaError_t error) { return name_of(error); }

const char *cudaGetErrorString(cudaError_t error)
{
    switch (error) {
    case cudaSuccess: return "no error";
    case cudaErrorMemoryAllocation: return "out of memory";
    case cudaErrorInvalidValue: return "invalid argument";
    case cudaErrorNoDevice: return "no CUDA-capable device is detected";
    case cudaErrorInsufficientDriver: return "CUDA driver version is insufficient for CUDA runtime version";
    case cudaErrorIllegalAddress: return "an illegal memory access was encountered";
    case cudaErrorLaunchFailure: return "unspecified launch failure";
    case cudaErrorNotReady: return "device not ready";
    case cudaErrorStreamCaptureUnsupported: return "operation not permitted when stream is capturing";
    default: return name_of(error);
    }
}

/* -- devices, as far as they are only facts about the calling thread -- */

cudaError_t cudaGetDeviceCount(int *count)
{
    *count = 0;
    cudaError_t error = cudaSuccess;
    if (state().no_driver)
        return give(cudaErrorInsufficientDriver);
    if (state().devices == 0)
        return give(cudaErrorNoDevice);
    if (fails_now(__func__, &error))
        return give(error);
    *count = state().devices;
    return cudaSuccess;
}

cudaError_t cudaSetDevice(int device)
{
    cudaError_t error = cudaSuccess;
    if (fails_now(__func__, &error))
        return give(error);
    if (state().no_driver)
        return give(cudaErrorInsufficientDriver);
    if (device < 0 || device >= state().devices)
        return give(state().devices ? cudaErrorInvalidDevice : cudaErrorNoDevice);
    device_now = device;
    state().device[device].context = true; /* as since CUDA 12 */
    int sticky = state().device[device].sticky.load(std::memory_order_relaxed);
    return sticky ? give((cudaError_t)sticky) : cudaSuccess;
}

cudaError_t cudaInitDevice(int device, unsigned int device_flags, unsigned int flags)
{
    (void)device_flags;
    (void)flags;
    return cudaSetDevice(device);
}

cudaError_t cudaGetDevice(int *device)
{
    FAKE_ENTER();
    *device = device_now;
    return cudaSuccess;
}

} // extern "C"
