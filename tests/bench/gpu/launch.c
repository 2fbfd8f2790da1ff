/* SPDX-License-Identifier: Apache-2.0 */
/* What the driver itself costs: a launch of an empty kernel, and a launch of a
 * graph of such kernels. trek's host costs are what exceeds these. The driver is
 * opened at run time, and the kernel is PTX that it compiles, so no toolkit is needed. */
#include "bench.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

enum { LAUNCHES = 100, NODES = 20, NON_BLOCKING = 1 };

static const char empty_kernel[] =
    ".version 6.3\n.target sm_75\n.address_size 64\n"
    ".visible .entry nothing(.param .u64 a, .param .u64 b, .param .u64 c, .param .u64 n)\n{\n    ret;\n}\n";

/* CUDA_KERNEL_NODE_PARAMS of the driver's first graph interface. */
typedef struct node_params {
    void *function;
    unsigned grid[3], block[3], shared;
    void **arguments, **extra;
} node_params;

static struct driver {
    void *library, *context, *module, *kernel, *stream, *graph, *executable;
    int (*launch)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);
    int (*graph_launch)(void *, void *);
    int (*synchronize)(void *);
    int (*destroy_stream)(void *);
} driver;

static uint64_t numbers[4];
static void *arguments[4] = { &numbers[0], &numbers[1], &numbers[2], &numbers[3] };

/* Finds a function of the driver; false and an error. */
static bool find(void *function, const char *name)
{
    void *symbol = driver.library ? dlsym(driver.library, name) : NULL;
    memcpy(function, &symbol, sizeof symbol); /* ISO C has no cast from object to function pointers */
    return symbol || trek_fail(TREK_ERR_UNSUPPORTED, driver.library ? "the driver has no %s" : "no CUDA driver (%s)",
                               name) == TREK_OK;
}

static bool fine(int code, const char *what)
{
    return !code || trek_fail(TREK_ERR_CUDA, "%s: driver error %d", what, code) == TREK_OK;
}

/* The device's primary context (trek's own), the kernel, and a stream beside trek's. */
static bool open_driver(void)
{
    int (*init)(unsigned), (*device_get)(int *, int), (*retain)(void **, int), (*set)(void *), (*load)(void **, const void *);
    int (*function)(void **, void *, const char *), (*stream)(void **, unsigned), device;
    driver.library = dlopen("libcuda.so.1", RTLD_NOW);
    return find(&init, "cuInit") && find(&device_get, "cuDeviceGet") && find(&retain, "cuDevicePrimaryCtxRetain") &&
           find(&set, "cuCtxSetCurrent") && find(&load, "cuModuleLoadData") && find(&function, "cuModuleGetFunction") &&
           find(&stream, "cuStreamCreate") && find(&driver.launch, "cuLaunchKernel") &&
           find(&driver.graph_launch, "cuGraphLaunch") &&
           find(&driver.synchronize, "cuStreamSynchronize") && find(&driver.destroy_stream, "cuStreamDestroy_v2") &&
           fine(init(0), "cuInit") && fine(device_get(&device, gpu_device.index), "cuDeviceGet") &&
           fine(retain(&driver.context, device), "cuDevicePrimaryCtxRetain") && fine(set(driver.context), "cuCtxSetCurrent") &&
           fine(load(&driver.module, empty_kernel), "cuModuleLoadData") &&
           fine(function(&driver.kernel, driver.module, "nothing"), "cuModuleGetFunction") &&
           fine(stream(&driver.stream, NON_BLOCKING), "cuStreamCreate");
}

/* A chain of NODES launches. */
static bool build_graph(void)
{
    int (*create)(void **, unsigned), (*add)(void **, void *, void *const *, size_t, const node_params *);
    int (*instantiate)(void **, void *, unsigned long long);
    node_params params = { .function = driver.kernel, .grid = { 1, 1, 1 }, .block = { 64, 1, 1 }, .arguments = arguments };
    void *last = NULL;
    bool done = find(&create, "cuGraphCreate") && find(&add, "cuGraphAddKernelNode") &&
        find(&instantiate, "cuGraphInstantiateWithFlags") &&
                fine(create(&driver.graph, 0), "cuGraphCreate");
    for (int k = 0; done && k < NODES; k++) {
        void *node = NULL;
        done = fine(add(&node, driver.graph, &last, k > 0, &params), "cuGraphAddKernelNode");
        last = node;
    }
    return done && fine(instantiate(&driver.executable, driver.graph, 0), "cuGraphInstantiateWithFlags");
}

static void launches(void *state)
{
    (void)state;
    for (int k = 0; k < LAUNCHES; k++)
        driver.launch(driver.kernel, 1, 1, 1, 64, 1, 1, 0, driver.stream, arguments, NULL);
}

static void launch_graph(void *state)
{
    (void)state;
    driver.graph_launch(driver.executable, driver.stream);
}

static void rest(void) { driver.synchronize(driver.stream); }

/* What is opened here stays until the process ends: a benchmark of its own, made once. */
void gpu_work_launch(void)
{
    char text[64];
    if (!open_driver()) {
        gpu_report_failure("launch of an empty kernel, host");
        return;
    }
    gpu_report("launch of an empty kernel, host", gpu_time_host(launches, rest, NULL), LAUNCHES, 0, 0);
    snprintf(text, sizeof text, "launch of a graph of %d, host", NODES);
    if (build_graph())
        gpu_report(text, gpu_time_host(launch_graph, rest, NULL), 1, 0, 0);
    else
        gpu_report_failure(text);
    driver.destroy_stream(driver.stream);
}
