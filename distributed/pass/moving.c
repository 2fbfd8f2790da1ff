/* SPDX-License-Identifier: Apache-2.0 */
#include "distributed/pass/moving.h"

#include "autograd/offload_internal.h"
#include "distributed/system/system.h"
#include "distributed/team/copier.h"
#include "distributed/team/step.h"
#include "tensor/creation.h"
#include "tensor/try_internal.h"

/* As many values as the allocators surely have room for; the best of several tries counts, since the first may wait for memory.
 */
enum { BYTES = 8 << 20, TRIES = 4 };

double trek_moving_slow;

typedef struct measuring {
    trek_step *s;
    trek_moving *of;
    int64_t *bytes;
} measuring;

/* Copies out and back once, and keeps the times if they are the best ones. */
static trek_status try_once(trek_copier *copier, trek_tensor *on_device, trek_moving *best)
{
    void *room = trek_copier_room(copier, BYTES);
    if (!room)
        return trek_error_status();
    int64_t start = trek_now_ns(), middle = start;
    trek_status status = trek_copier_fetch(copier, room, on_device->data, BYTES), copied = trek_copier_finish(copier);
    status = status == TREK_OK ? copied : status;
    middle = trek_now_ns();
    copied = trek_copier_begin(copier);
    status = status == TREK_OK ? copied : status;
    copied = trek_copier_send(copier, status == TREK_OK ? on_device->data : NULL, room, BYTES); /* releases the room, too */
    status = status == TREK_OK ? copied : status;
    copied = trek_copier_finish(copier);
    TRY(status == TREK_OK ? copied : status);
    double out = (double)(middle - start) / BYTES, back = (double)(trek_now_ns() - middle) / BYTES;
    best->out = best->out == 0 || out < best->out ? out : best->out;
    best->back = best->back == 0 || back < best->back ? back : best->back;
    return TREK_OK;
}

static trek_status measure(int rank, void *arg)
{
    const measuring *m = arg;
    trek_device device = trek_ranks_device(m->s->team->ranks, rank);
    trek_moving *best = &m->of[rank];
    *best = (trek_moving){ 0 };
    if (trek_backends[device.type]->host_accessible)
        return TREK_OK;
    if (trek_moving_slow > 0) {
        *best = (trek_moving){ trek_moving_slow, trek_moving_slow };
        return TREK_OK;
    }
    trek_copier *copier = NULL;
    trek_tensor *on_device = trek_tensor_zeros(trek_dims(BYTES), TREK_U8, device);
    trek_status status = on_device ? trek_copier_new(device, &copier) : trek_error_status();
    for (int k = 0; k < TRIES && status == TREK_OK; k++)
        status = try_once(copier, on_device, best);
    trek_copier_free(&copier);
    trek_tensor_release(on_device);
    return status;
}

trek_status trek_moving_measure(trek_step *s, trek_moving *of)
{
    return trek_ranks_call(s->team->ranks, measure, &(measuring){ .s = s, .of = of });
}

static trek_status count(int rank, void *arg)
{
    ((const measuring *)arg)->bytes[rank] = trek_offload_sent_here();
    return TREK_OK;
}

trek_status trek_moving_count(trek_step *s, int64_t *bytes)
{
    return trek_ranks_call(s->team->ranks, count, &(measuring){ .s = s, .bytes = bytes });
}
