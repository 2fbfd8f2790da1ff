/* SPDX-License-Identifier: Apache-2.0 */
/* GPUs through NVIDIA's management library (libnvidia-ml), which comes with the driver and is opened when a GPU is
 * first queried. It numbers GPUs on its own, regardless of CUDA_VISIBLE_DEVICES, so a GPU is found by its UUID.
 * Values that are not available, not to this user, or not for a part of a GPU, are left out. */
#include <math.h>
#include <stdio.h>

#include "monitor/monitor_internal.h"
#include "tensor/late.h"

/* The declarations used here, from its public interface. */
typedef struct nvmlDevice_st *nvml_device;
typedef struct nvml_memory {
    unsigned long long total, free, used;
} nvml_memory;
typedef struct nvml_utilization {
    unsigned gpu, memory; /* percent of the recent time in which there was work */
} nvml_utilization;
enum { NVML_SUCCESS = 0, NVML_TEMPERATURE_GPU = 0 };
enum { SW_POWER_CAP = 0x4, HW_SLOWDOWN = 0x8, SW_THERMAL = 0x20, HW_THERMAL = 0x40, HW_POWER_BRAKE = 0x80 };

static struct {
    int (*init)(void);
    int (*by_uuid)(const char *uuid, nvml_device *device);
    int (*memory)(nvml_device device, nvml_memory *memory);
    int (*temperature)(nvml_device device, int sensor, unsigned *celsius);
    int (*power)(nvml_device device, unsigned *milliwatts);
    int (*utilization)(nvml_device device, nvml_utilization *utilization);
} nvml;
static const char *const names[] = { "nvmlInit_v2", "nvmlDeviceGetHandleByUUID", "nvmlDeviceGetMemoryInfo",
                                     "nvmlDeviceGetTemperature", "nvmlDeviceGetPowerUsage", "nvmlDeviceGetUtilizationRates" };
_Static_assert(sizeof nvml == sizeof names, "a function for each name");
static trek_late library = { .variable = "TREK_NVML_LIBRARY", .package = "NVIDIA's driver (libnvidia-ml1)", .names = names,
                             .functions = &nvml, .n = sizeof names / sizeof *names, .files = { "libnvidia-ml.so.1" } };

/* Loaded separately: of all these functions, only this one had another name before and has another one since. */
static struct {
    int (*reasons)(nvml_device device, unsigned long long *reasons);
} clocks;
static const char *const clock_names[] = { "nvmlDeviceGetCurrentClocksThrottleReasons" };
static trek_late clock_library = { .variable = "TREK_NVML_LIBRARY", .package = "NVIDIA's driver (libnvidia-ml1)",
                                   .names = clock_names, .functions = &clocks, .n = 1, .files = { "libnvidia-ml.so.1" } };

static pthread_once_t once = PTHREAD_ONCE_INIT;
static bool begun;

static void begin(void) { begun = trek_late_there(&library, "the state of GPUs") && nvml.init() == NVML_SUCCESS; }

/* Tries "GPU-66616b65-..." with all bytes, and "MIG-..." for a part of a GPU. */
static bool find(const unsigned char uuid[16], nvml_device *device)
{
    char digits[48], text[64], *at = digits;
    for (int k = 0; k < 16; k++)
        at += snprintf(at, 4, k == 4 || k == 6 || k == 8 || k == 10 ? "-%02x" : "%02x", uuid[k]);
    for (int k = 0; k < 2; k++) {
        snprintf(text, sizeof text, "%s-%s", k ? "MIG" : "GPU", digits);
        if (nvml.by_uuid(text, device) == NVML_SUCCESS)
            return true;
    }
    return false;
}

static const char *throttled(nvml_device device)
{
    unsigned long long reasons;
    if (!trek_late_there(&clock_library, "the state of clocks") || clocks.reasons(device, &reasons) != NVML_SUCCESS)
        return NULL;
    return reasons & (SW_THERMAL | HW_THERMAL)  ? "heat"
        : reasons & (SW_POWER_CAP | HW_POWER_BRAKE) ? "power"
        : reasons & HW_SLOWDOWN                     ? "hardware"
                                                    : "no";
}

trek_nvml_told trek_nvml_look(const unsigned char uuid[16])
{
    trek_nvml_told told = { (double)NAN, (double)NAN, (double)NAN, (double)NAN, (double)NAN, NULL };
    nvml_device device;
    nvml_memory memory;
    nvml_utilization busy;
    unsigned number;
    pthread_once(&once, begin);
    if (!begun || !find(uuid, &device))
        return told;
    if (nvml.memory(device, &memory) == NVML_SUCCESS) {
        told.memory_bytes = (double)memory.used;
        told.memory_total_bytes = (double)memory.total;
    }
    if (nvml.temperature(device, NVML_TEMPERATURE_GPU, &number) == NVML_SUCCESS)
        told.temperature_c = number;
    if (nvml.power(device, &number) == NVML_SUCCESS)
        told.power_w = number * 1e-3;
    if (nvml.utilization(device, &busy) == NVML_SUCCESS)
        told.utilization_percent = busy.gpu;
    told.throttled = throttled(device);
    return told;
}
