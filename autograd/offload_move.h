/* SPDX-License-Identifier: Apache-2.0 */
/* A saved storage on its ways between device and host (offload_move.c); which goes when is offload.c's. */
#ifndef TREK_AUTOGRAD_OFFLOAD_MOVE_H
#define TREK_AUTOGRAD_OFFLOAD_MOVE_H

#include "tensor/backend.h"
#include "tensor/tensor_internal.h"

/* The copies of one tape on one device. Kept as long as the tape, which is for good. */
typedef struct trek_lane {
    struct trek_lane *next;
    trek_device device;
    const trek_backend *backend;
    trek_device_stream *stream;
    trek_event *given;         /* the thread's own work, as far as a copy has to wait for it */
    trek_event **spare;        /* of values that are gone */
    int n_spare, cap_spare;
} trek_lane;

/* The lane of a device, made at need at the end of the list; NULL and an error. */
trek_lane *trek_lane_of(trek_lane **lanes, trek_device device);

typedef enum trek_value_place { TREK_ON_DEVICE, TREK_LEAVING, TREK_ON_HOST } trek_value_place;

/* A tensor over the storage that saved entries hold, so many of them. */
typedef struct trek_value_holder {
    trek_tensor *tensor;
    int uses;
    ptrdiff_t offset;          /* of its first element, in bytes */
} trek_value_holder;

typedef struct trek_value {
    struct trek_value *in_bucket;
    struct trek_value *before, *after; /* in the list of its place, if that has one */
    trek_storage *storage;     /* the holders' */
    trek_lane *lane;           /* NULL: it has not been sent yet */
    trek_value_place place;
    bool listed;
    bool copied;               /* host holds what the storage held at `version` */
    bool moving, returning;    /* the thread's work has not waited for the last copy; and has to, before it looks */
    void *host;                /* pinned; NULL: none */
    trek_event *moved;         /* its last copy */
    uint32_t version;
    uint64_t first;            /* serial of the oldest node that saved it */
    int n, capacity;
    trek_value_holder *holders;
    trek_value_holder few[2];
} trek_value;

/* Whether the thread's work on the value's device is being captured, which waits for nothing outside itself. */
bool trek_value_is_captured(const trek_value *value);
/* Whether the holders' references are all there are. */
bool trek_value_is_sole(const trek_value *value);
/* Begins the copy to the host: TREK_LEAVING. Not OK: it stays as it was. */
trek_status trek_value_send(trek_value *value, trek_lane *lane);
/* Of a sole value: gives up its memory on the device, in order after the last copy: TREK_ON_HOST. Not OK: it stays. */
trek_status trek_value_evict(trek_value *value);
/* Begins the copy back, where it is not on the device. Not OK: it stays on the host. */
trek_status trek_value_return(trek_value *value);
/* What the thread does from here on finds it there. */
trek_status trek_value_await(trek_value *value);
/* The host's side goes; the holders are about to. */
void trek_value_drop_copy(trek_value *value);

#endif
