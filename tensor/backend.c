/* SPDX-License-Identifier: Apache-2.0 */
/* The backends of this process, opened when first asked for. */
#include "tensor/backend.h"

#include <stdio.h>

const trek_backend *trek_backends[TREK_DEVICE_TYPE_COUNT];

/* The CPU's table is always there; filling it costs microseconds. */
__attribute__((constructor)) static void open_cpu(void) { trek_backends[TREK_CPU] = trek_cpu_backend(); }

const trek_backend *trek_backend_find(trek_device_type type, char *why, size_t size)
{
    if ((unsigned)type < TREK_DEVICE_TYPE_COUNT && trek_backends[type])
        return trek_backends[type];
    if (type == TREK_CPU)
        return trek_backends[TREK_CPU] = trek_cpu_backend();
    if (why)
        snprintf(why, size, "no CUDA device: the plug-in libtrek-cuda is not installed");
    return NULL;
}

const trek_backend *trek_backend_get(trek_device_type type)
{
    char why[256] = "";
    const trek_backend *backend = trek_backend_find(type, why, sizeof why);
    if (!backend)
        trek_fail(TREK_ERR_DEVICE, "%s", why);
    return backend;
}
