/* SPDX-License-Identifier: Apache-2.0 */
/* The backends of this process, which are opened when they are first needed. */
#include "tensor/backend.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tensor/plugin.h"
#include "tensor/ranges.h"

const trek_backend *trek_backends[TREK_DEVICE_TYPE_COUNT];

/* The CPU's table is always available; filling it costs microseconds. */
__attribute__((constructor)) static void open_cpu(void) { trek_backends[TREK_CPU] = trek_cpu_backend(); }

/* --- CUDA: a plug-in, tried once --------------------------------------------------- */

static trek_backend cuda_backend;
static char cuda_problem[512];

static void open_cuda(void)
{
    char why[400] = "";
    void *library = trek_plugin_open("trek-cuda", why, sizeof why);
    if (!library) {
        snprintf(cuda_problem, sizeof cuda_problem, "no CUDA device: the plug-in libtrek-cuda cannot be opened: %s", why);
        return;
    }
    trek_backend_open_fn open;
    void *symbol = dlsym(library, TREK_BACKEND_OPEN);
    memcpy(&open, &symbol, sizeof open);
    if (!symbol) {
        snprintf(cuda_problem, sizeof cuda_problem, "no CUDA device: libtrek-cuda is no plug-in of trek");
    } else if (open(TREK_BACKEND_ABI, &trek_host_table, &cuda_backend, why, sizeof why) != TREK_OK) {
        snprintf(cuda_problem, sizeof cuda_problem, "no CUDA device: %s", why);
    } else if (cuda_backend.abi != TREK_BACKEND_ABI) {
        snprintf(cuda_problem, sizeof cuda_problem, "no CUDA device: libtrek-cuda is of another version of trek");
    } else {
        trek_backends[TREK_CUDA] = &cuda_backend;
        trek_ranges_start();
        return; /* never closed, because its kernels are in the table */
    }
    dlclose(library);
}

const trek_backend *trek_backend_find(trek_device_type type, char *why, size_t size)
{
    static pthread_once_t cuda_once = PTHREAD_ONCE_INIT;
    if (type == TREK_CPU)
        return trek_cpu_backend(); /* also before the constructor has run */
    if (type != TREK_CUDA) {
        if (why)
            snprintf(why, size, "there is no device type %d", (int)type);
        return NULL;
    }
    pthread_once(&cuda_once, open_cuda);
    if (!trek_backends[TREK_CUDA] && why)
        snprintf(why, size, "%s", cuda_problem);
    return trek_backends[TREK_CUDA];
}

const trek_backend *trek_backend_get(trek_device_type type)
{
    char why[512] = "";
    const trek_backend *backend = trek_backend_find(type, why, sizeof why);
    if (!backend)
        trek_fail(TREK_ERR_DEVICE, "%s", why);
    return backend;
}
