/* SPDX-License-Identifier: Apache-2.0 */
#include "distributed/team/copier.h"

#include <string.h>

#include "tensor/devices.h"
#include "tensor/memory_internal.h"
#include "tensor/try_internal.h"

struct trek_copier {
    trek_device device;
    const trek_backend *backend;
    trek_device_stream *stream;
    trek_event *taken, *copied; /* memory was taken; the last copies */
    trek_event *updated, *rested;
};

trek_status trek_copier_new(trek_device device, trek_copier **result)
{
    *result = NULL;
    if (device.type == TREK_CPU)
        return TREK_OK;
    trek_copier *c = *result = trek_calloc(1, sizeof *c);
    if (!c)
        return TREK_ERR_MEMORY;
    c->device = device;
    c->backend = trek_backends[device.type];
    TRY(c->backend->stream_new(device, &c->stream));
    TRY(c->backend->event_new(device, &c->taken));
    TRY(c->backend->event_new(device, &c->copied));
    TRY(c->backend->event_new(device, &c->updated));
    return c->backend->event_new(device, &c->rested);
}

void trek_copier_free(trek_copier **address)
{
    trek_copier *c = *address;
    *address = NULL;
    if (!c)
        return;
    c->backend->stream_free(c->stream);
    c->backend->event_free(c->taken);
    c->backend->event_free(c->copied);
    c->backend->event_free(c->updated);
    c->backend->event_free(c->rested);
    trek_free(c);
}

trek_status trek_copier_begin(trek_copier *c)
{
    trek_status status = c ? c->backend->event_record(c->taken, NULL) : TREK_OK;
    return c && status == TREK_OK ? c->backend->stream_wait(c->device, c->stream, c->taken) : status;
}

trek_status trek_copier_end(trek_copier *c) { return c ? c->backend->event_record(c->copied, c->stream) : TREK_OK; }

void *trek_copier_room(trek_copier *c, size_t bytes)
{
    void *room = NULL;
    c->backend->pinned_allocate(bytes, &room);
    return room;
}

trek_status trek_copier_send(trek_copier *c, void *to, void *room, size_t bytes)
{
    trek_status status = to ? c->backend->copy_bytes(to, c->device, room, trek_cpu(0), bytes, c->stream) : TREK_OK;
    c->backend->pinned_release_after(room, c->device, c->stream);
    return status;
}

trek_status trek_copier_bring(trek_copier *c, void *room, const void *from, size_t bytes)
{
    return c->backend->copy_bytes(room, trek_cpu(0), from, c->device, bytes, c->stream);
}

trek_status trek_copier_wait(trek_copier *c) { return c->backend->event_sync(c->copied); }

void trek_copier_put_away(trek_copier *c, void *room) { c->backend->pinned_release(room); }

trek_status trek_copier_fetch(trek_copier *c, void *to, const void *from, size_t bytes)
{
    return c->backend->copy_bytes(to, trek_cpu(0), from, c->device, bytes, NULL);
}

trek_status trek_copier_copy(trek_copier *c, void *to, const void *from, trek_copier *keeper, size_t bytes)
{
    if (c && keeper)
        return c->backend->copy_bytes(to, c->device, from, keeper->device, bytes, c->stream);
    if (keeper)
        return trek_copier_fetch(keeper, to, from, bytes);
    void *room = c ? trek_copier_room(c, bytes) : to;
    if (!room)
        return trek_error_status();
    memcpy(room, from, bytes);
    return c ? trek_copier_send(c, to, room, bytes) : TREK_OK;
}

trek_status trek_copier_use(trek_copier *c) { return c ? c->backend->stream_wait(c->device, NULL, c->copied) : TREK_OK; }

trek_status trek_copier_finish(trek_copier *c) { return c ? c->backend->sync(c->device) : TREK_OK; }

trek_status trek_copier_updated(trek_copier *c) { return c ? c->backend->event_record(c->updated, NULL) : TREK_OK; }

trek_status trek_copier_follow(trek_copier *c, trek_copier *keeper)
{
    return keeper ? keeper->backend->stream_wait(keeper->device, c ? c->stream : NULL, keeper->updated) : TREK_OK;
}

trek_status trek_copier_rest(trek_copier *c) { return c ? c->backend->event_record(c->rested, c->stream) : TREK_OK; }

trek_status trek_copier_wait_for_reader(trek_copier *c, trek_copier *reader)
{
    return c && reader ? c->backend->stream_wait(c->device, NULL, reader->rested) : TREK_OK;
}
