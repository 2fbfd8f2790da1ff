/* SPDX-License-Identifier: Apache-2.0 */
/* Moving a saved storage between device and host (offload_move.c). offload.c decides which one moves when. */
#ifndef TREK_AUTOGRAD_OFFLOAD_MOVE_H
#define TREK_AUTOGRAD_OFFLOAD_MOVE_H

#include "tensor/backend.h"
#include "tensor/tensor_internal.h"

/* The copies of one tape on one device. It is kept as long as the tape, which is forever. */
typedef struct trek_lane {
    struct trek_lane *next;
    trek_device device;
    const trek_backend *backend;
    trek_device_stream *stream;
    trek_event *given;         /* the thread's own work, up to where a copy has to wait for it */
    trek_event **spare;        /* of values that no longer exist */
    int n_spare, cap_spare;
} trek_lane;

/* Returns the lane of a device, appending it to the list when first needed, or NULL on failure. */
trek_lane *trek_lane_of(trek_lane **lanes, trek_device device);

typedef enum trek_value_place { TREK_ON_DEVICE, TREK_LEAVING, TREK_ON_HOST } trek_value_place;

/* A tensor over the storage, and the number of saved entries that hold it. */
typedef struct trek_value_holder {
    trek_tensor *tensor;
    int uses;
    ptrdiff_t offset;          /* of its first element, in bytes */
} trek_value_holder;

typedef struct trek_value {
    struct trek_value *in_bucket;
    struct trek_value *before, *after; /* neighbours in the list of its state, if that has one */
    trek_storage *storage;     /* the holders' */
    trek_lane *lane;           /* NULL if it has not been sent yet */
    trek_value_place place;
    bool listed;
    bool copied;               /* host has the storage's content at `version` */
    bool moving, returning;    /* the thread's work has not waited for the last copy; it has to before using the value */
    void *host;                /* pinned; NULL if there is none */
    trek_event *moved;         /* its last copy */
    uint32_t version;
    uint64_t first;            /* serial of the oldest node that saved it */
    int n, capacity;
    trek_value_holder *holders;
    trek_value_holder few[2];
} trek_value;

/* Returns whether the thread's work on the value's device is being captured. A capture cannot wait for anything
 * outside itself. */
bool trek_value_is_captured(const trek_value *value);
/* Returns whether the holders have the only references. */
bool trek_value_is_sole(const trek_value *value);
/* Begins the copy to the host (TREK_LEAVING). On failure the value is unchanged. */
trek_status trek_value_send(trek_value *value, trek_lane *lane);
/* Gives up a sole value's memory on the device, ordered after its last copy (TREK_ON_HOST). On failure it stays. */
trek_status trek_value_evict(trek_value *value);
/* Begins the copy back if the value is not on the device. On failure it stays on the host. */
trek_status trek_value_return(trek_value *value);
/* Makes the thread's work from now on wait for the value. */
trek_status trek_value_await(trek_value *value);
/* Releases the host's copy, shortly before the holders are released. */
void trek_value_drop_copy(trek_value *value);

#endif
