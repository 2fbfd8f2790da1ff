/* SPDX-License-Identifier: Apache-2.0 */
/* A management library for the fake devices: it knows them by their UUIDs alone, and numbers them the other way round, as the
 * real one's order has nothing to do with CUDA's. What it tells of a device comes of the last byte of its UUID, k: (k + 1) GiB
 * used of 80, 60 + k degrees, 300.5 + k W, 90 + k percent, slowed down by power (even) or heat (odd). TREK_FAKE_NVML=mig: they
 * are parts of GPUs, which have memory and nothing else; denied: this user may ask nothing of a GPU but its memory; broken: it
 * cannot begin; bare: clocks are not told. */
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {

enum { SUCCESS, UNINITIALIZED, INVALID_ARGUMENT, NOT_SUPPORTED, NO_PERMISSION, NOT_FOUND = 6, DRIVER_NOT_LOADED = 9 };
enum { DEVICES = 16 };

struct Device {
    int k;
} devices[DEVICES]; /* from the last to the first */

bool begun;

bool mode(const char *name)
{
    const char *wanted = getenv("TREK_FAKE_NVML");
    return wanted && strcmp(wanted, name) == 0;
}

int beyond_memory() { return mode("mig") ? NOT_SUPPORTED : mode("denied") ? NO_PERMISSION : SUCCESS; }

} // namespace

extern "C" {

typedef struct Device *Handle;
struct Memory {
    unsigned long long total, free, used;
};
struct Utilization {
    unsigned gpu, memory;
};

int nvmlInit_v2()
{
    if (mode("broken"))
        return DRIVER_NOT_LOADED;
    for (int k = 0; k < DEVICES; k++)
        devices[k].k = DEVICES - 1 - k;
    begun = true;
    return SUCCESS;
}

int nvmlDeviceGetHandleByUUID(const char *uuid, Handle *device)
{
    if (!begun)
        return UNINITIALIZED;
    for (Device &d : devices) {
        char own[64];
        snprintf(own, sizeof own, "%s-66616b65-2d67-7075-0000-0000000000%02x", mode("mig") ? "MIG" : "GPU", d.k);
        if (strcmp(uuid, own) == 0) {
            *device = &d;
            return SUCCESS;
        }
    }
    return NOT_FOUND;
}

int nvmlDeviceGetMemoryInfo(Handle device, Memory *memory)
{
    memory->total = 80ull << 30;
    memory->used = (unsigned long long)(device->k + 1) << 30;
    memory->free = memory->total - memory->used;
    return SUCCESS;
}

int nvmlDeviceGetTemperature(Handle device, int sensor, unsigned *celsius)
{
    if (sensor != 0)
        return INVALID_ARGUMENT;
    *celsius = 60 + (unsigned)device->k;
    return beyond_memory();
}

int nvmlDeviceGetPowerUsage(Handle device, unsigned *milliwatts)
{
    *milliwatts = 300500 + 1000 * (unsigned)device->k;
    return beyond_memory();
}

int nvmlDeviceGetUtilizationRates(Handle device, Utilization *busy)
{
    *busy = { 90 + (unsigned)device->k, 10 };
    return beyond_memory();
}

int nvmlDeviceGetCurrentClocksThrottleReasons(Handle device, unsigned long long *reasons)
{
    *reasons = device->k % 2 ? 0x40 | 0x8 : 0x4;
    return mode("bare") ? NOT_SUPPORTED : beyond_memory();
}

} // extern "C"
