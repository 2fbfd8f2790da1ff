/* SPDX-License-Identifier: Apache-2.0 */
/* Copies of saved storages to pinned memory and back, on a stream of their own.
 *
 * Order on the streams: a copy out begins after the thread's earlier work with the storage. Once the thread's own
 * stream has waited for the copy, the memory is returned to the allocator in the order of that stream. So memory
 * becomes free at points of the program and not of time, and a host that is far ahead of its device does not ask the
 * driver for more. A copy back waits for earlier uses of the memory that it gets. If something intervenes (an error,
 * a tape that is dropped), the allocators are told which stream still uses the memory. */
#include <stdlib.h>

#include "autograd/offload_move.h"

/* --- lanes: plain memory, which outlives any allocator ------------------------------------------- */

static trek_lane *new_lane(trek_device device)
{
    const trek_backend *backend = trek_backends[device.type];
    trek_lane *lane = calloc(1, sizeof *lane);
    if (!lane) {
        trek_fail(TREK_ERR_MEMORY, "offload: out of memory: no stream for copies to the host");
        return NULL;
    }
    lane->device = device;
    lane->backend = backend;
    if (backend->stream_new(device, &lane->stream) == TREK_OK && backend->event_new(device, &lane->given) == TREK_OK)
        return lane;
    if (lane->stream)
        backend->stream_free(lane->stream);
    free(lane);
    return NULL;
}

trek_lane *trek_lane_of(trek_lane **lanes, trek_device device)
{
    while (*lanes && !trek_device_equal((*lanes)->device, device))
        lanes = &(*lanes)->next;
    if (!*lanes)
        *lanes = new_lane(device);
    return *lanes;
}

static trek_event *take_event(trek_lane *lane)
{
    trek_event *event = NULL;
    if (lane->n_spare > 0)
        return lane->spare[--lane->n_spare];
    return lane->backend->event_new(lane->device, &event) == TREK_OK ? event : NULL;
}

static void give_event(trek_lane *lane, trek_event *event)
{
    if (lane->n_spare == lane->cap_spare) {
        int wanted = lane->cap_spare ? 2 * lane->cap_spare : 64;
        trek_event **larger = realloc(lane->spare, (size_t)wanted * sizeof *larger);
        if (!larger) {
            lane->backend->event_free(event);
            return;
        }
        lane->spare = larger;
        lane->cap_spare = wanted;
    }
    lane->spare[lane->n_spare++] = event;
}

/* Makes the lane's next copy wait for the thread's work on its own stream so far. */
static trek_status wait_for_thread(trek_lane *lane)
{
    trek_status status = lane->backend->event_record(lane->given, NULL);
    return status == TREK_OK ? lane->backend->stream_wait(lane->device, lane->stream, lane->given) : status;
}

/* --- values ---------------------------------------------------------------------------------------- */

bool trek_value_is_captured(const trek_value *v)
{
    const trek_backend *backend = trek_backends[v->storage->device.type];
    return backend->capturing && backend->capturing();
}

static trek_status refuse_capture(void)
{
    return trek_fail(TREK_ERR_STATE, "offload: values in host memory cannot be brought back while work is being captured");
}

bool trek_value_is_sole(const trek_value *v)
{
    if (atomic_load_explicit(&v->storage->refs, memory_order_acquire) != v->n)
        return false;
    for (int k = 0; k < v->n; k++)
        if (atomic_load_explicit(&v->holders[k].tensor->refs, memory_order_acquire) != v->holders[k].uses)
            return false;
    return true;
}

static void place_at(trek_value *v, char *data, void *handle)
{
    v->storage->data = data;
    v->storage->handle = handle;
    for (int k = 0; k < v->n; k++)
        v->holders[k].tensor->data = data ? data + v->holders[k].offset : NULL;
}

/* Gives the value pinned memory and an event on that lane. */
static trek_status equip(trek_value *v, trek_lane *lane)
{
    v->lane = lane;
    if (!v->host && lane->backend->pinned_allocate(v->storage->bytes, &v->host) != TREK_OK)
        return trek_error_status();
    return v->moved || (v->moved = take_event(lane)) ? TREK_OK : trek_error_status();
}

trek_status trek_value_send(trek_value *v, trek_lane *lane)
{
    trek_storage *s = v->storage;
    trek_status status = equip(v, lane);
    if (status == TREK_OK)
        status = wait_for_thread(lane);
    if (status == TREK_OK)
        status = lane->backend->copy_bytes(v->host, trek_cpu(0), s->data, s->device, s->bytes, lane->stream);
    if (status == TREK_OK)
        status = lane->backend->event_record(v->moved, lane->stream);
    if (status != TREK_OK) {
        lane->backend->record_use(s->handle, lane->stream);
        trek_value_drop_copy(v);
        return status;
    }
    v->version = s->version;
    v->copied = v->moving = true;
    v->place = TREK_LEAVING;
    return TREK_OK;
}

trek_status trek_value_evict(trek_value *v)
{
    trek_storage *s = v->storage;
    trek_status status = v->lane->backend->stream_wait(s->device, NULL, v->moved);
    if (status != TREK_OK)
        return status;
    v->lane->backend->release(s->device, s->data, s->handle);
    place_at(v, NULL, NULL);
    v->place = TREK_ON_HOST;
    v->moving = v->returning = false;
    return TREK_OK;
}

trek_status trek_value_return(trek_value *v)
{
    trek_lane *lane = v->lane;
    void *data = NULL, *handle = NULL;
    if (v->place != TREK_ON_HOST)
        return TREK_OK;
    if (trek_value_is_captured(v))
        return refuse_capture();
    trek_status status = lane->backend->allocate(lane->device, v->storage->bytes, &data, &handle);
    if (status != TREK_OK)
        return status;
    status = wait_for_thread(lane);
    if (status == TREK_OK)
        status = lane->backend->copy_bytes(data, lane->device, v->host, trek_cpu(0), v->storage->bytes, lane->stream);
    if (status == TREK_OK)
        status = lane->backend->event_record(v->moved, lane->stream);
    if (status != TREK_OK) {
        lane->backend->record_use(handle, lane->stream);
        lane->backend->release(lane->device, data, handle);
        return status;
    }
    place_at(v, data, handle);
    v->place = TREK_ON_DEVICE;
    v->moving = v->returning = true;
    return TREK_OK;
}

trek_status trek_value_await(trek_value *v)
{
    if (!v->returning)
        return TREK_OK;
    if (trek_value_is_captured(v))
        return refuse_capture();
    trek_status status = v->lane->backend->stream_wait(v->lane->device, NULL, v->moved);
    if (status == TREK_OK)
        v->moving = v->returning = false;
    return status;
}

void trek_value_drop_copy(trek_value *v)
{
    if (!v->lane)
        return;
    if (v->moving)
        v->lane->backend->record_use(v->storage->handle, v->lane->stream);
    if (v->host)
        v->lane->backend->pinned_release_after(v->host, v->lane->device, v->lane->stream);
    if (v->moved)
        give_event(v->lane, v->moved);
    v->host = NULL;
    v->moved = NULL;
    v->copied = v->moving = v->returning = false;
}
