/* SPDX-License-Identifier: Apache-2.0 */
/* The backends of this process, which are opened when they are first needed. */
#include "tensor/backend.h"

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
    char why[450] = "";
    if (!trek_plugin_fill("trek-cuda", TREK_BACKEND_OPEN, TREK_BACKEND_ABI, &cuda_backend, why, sizeof why)) {
        snprintf(cuda_problem, sizeof cuda_problem, "no CUDA device: %s", why);
        return;
    }
    trek_backends[TREK_CUDA] = &cuda_backend;
    trek_ranges_start();
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
