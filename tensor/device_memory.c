/* SPDX-License-Identifier: Apache-2.0 */
/* The public functions on memory: of the host (memory.c), or of a device's backend. */
#include "tensor/backend.h"
#include "tensor/memory_internal.h"
#include "tensor/scope_internal.h"

void trek_memory_release_cached(trek_device device)
{
    device = trek_device_resolve(device);
    const trek_backend *backend = device.type == TREK_CPU ? NULL : trek_backend_find(device.type, NULL, 0);
    if (device.type == TREK_CPU)
        trek_host_release_cached();
    else if (backend)
        backend->release_cached(device);
}

/* The calling thread's stack of scopes is an allocation, too. */
trek_status trek_allocator_set(const trek_allocator *allocator)
{
    if (allocator && (!allocator->allocate || !allocator->release))
        return trek_fail(TREK_ERR_ARGUMENT, "allocator_set: allocate and release: one is NULL; both must be given");
    if (trek_scopes.depth == 0)
        trek_scope_thread_end();
    return trek_host_allocator_set(allocator);
}

trek_memory_stats trek_memory_usage(trek_device device)
{
    device = trek_device_resolve(device);
    if (device.type == TREK_CPU)
        return trek_host_memory_stats();
    const trek_backend *backend = trek_backend_get(device.type);
    return backend && backend->stats ? backend->stats(device) : (trek_memory_stats){ 0 };
}

void trek_memory_reset_peak(trek_device device)
{
    device = trek_device_resolve(device);
    const trek_backend *backend = device.type == TREK_CPU ? NULL : trek_backend_find(device.type, NULL, 0);
    if (device.type == TREK_CPU)
        trek_host_reset_peak();
    else if (backend)
        backend->reset_peak(device);
}
