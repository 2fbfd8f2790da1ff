/* SPDX-License-Identifier: Apache-2.0 */
/* Values of all replicas: rank 0's are copied to all, or all ranks' buffers are merged. */
#include <string.h>

#include "autograd/var_internal.h"
#include "distributed/team/replica.h"
#include "tensor/tensor_internal.h"

enum { SMALL_TENSOR = 64 * 1024, PARCEL_BYTES = 512 * 1024 };

static size_t bytes_of(const trek_tensor *t) { return (size_t)t->numel * trek_dtype_size((trek_dtype)t->dtype); }

/* --- rank 0's to all ----------------------------------------------------------------------- */

/* A rank without memory calls this, so that the others learn of it. */
static trek_status meet_without(trek_comm *comm)
{
    trek_status status = trek_error_status();
    trek_comm_run(comm, (trek_comm_call){ .kind = TREK_COMM_INVALID });
    return status;
}

static trek_status take_tensor(trek_comm *comm, trek_tensor *tensor, int root)
{
    if (tensor->numel == 0)
        return TREK_OK;
    if (tensor->contiguous)
        return trek_comm_broadcast(comm, tensor, root);
    trek_tensor *dense = trek_tensor_contiguous(tensor);
    if (!dense)
        return meet_without(comm);
    trek_status status = trek_comm_broadcast(comm, dense, root);
    if (status == TREK_OK && comm->rank != root)
        status = trek_tensor_copy_from(tensor, dense);
    trek_tensor_release(dense);
    return status;
}

trek_status trek_replica_take_tensor(trek_comm *comm, trek_tensor *tensor) { return take_tensor(comm, tensor, 0); }

/* Small tensors that are sent together. */
typedef struct parcel {
    trek_replica *r;
    trek_comm *comm;
    bool packs;
    int root;
    size_t bytes;
    int n;
    trek_tensor *tensors[256];
} parcel;

static trek_status fill(const parcel *p, bool out)
{
    char *at = p->r->parcel;
    trek_status status = TREK_OK;
    for (int k = 0; k < p->n && status == TREK_OK; k++) {
        trek_tensor *t = p->tensors[k];
        size_t bytes = bytes_of(t);
        if (!out) {
            status = trek_tensor_to_host(t, (trek_dtype)t->dtype, at, bytes);
        } else if (t->contiguous) {
            memcpy(t->data, at, bytes);
            trek_tensor_bump(t);
        } else {
            trek_tensor *dense = trek_tensor_from_data(at, trek_tensor_shape(t), (trek_dtype)t->dtype, t->device);
            status = dense ? trek_tensor_copy_from(t, dense) : trek_error_status();
            trek_tensor_release(dense);
        }
        at += bytes;
    }
    return status;
}

static trek_status send_parcel(parcel *p)
{
    if (p->n == 0)
        return TREK_OK;
    trek_status status = p->comm->rank == p->root ? fill(p, false) : TREK_OK;
    if (status != TREK_OK)
        return meet_without(p->comm);
    status = trek_comm_run(p->comm, (trek_comm_call){ .kind = TREK_COMM_BROADCAST, .dtype = TREK_U8, .root = p->root,
                                                      .count = (int64_t)p->bytes, .in = p->r->parcel, .out = p->r->parcel });
    if (status == TREK_OK && p->comm->rank != p->root)
        status = fill(p, true);
    p->n = 0;
    p->bytes = 0;
    return status;
}

static trek_status add(parcel *p, trek_tensor *tensor)
{
    size_t bytes = bytes_of(tensor);
    if (!p->packs || bytes > SMALL_TENSOR)
        return take_tensor(p->comm, tensor, p->root);
    if (bytes == 0)
        return TREK_OK;
    trek_status status = p->n == 256 || p->bytes + bytes > PARCEL_BYTES ? send_parcel(p) : TREK_OK;
    p->tensors[p->n++] = tensor;
    p->bytes += bytes;
    return status;
}

trek_status trek_replica_take_first(trek_replica *r, trek_comm *comm, trek_replica_values values, trek_status own)
{
    if (!comm || comm->world == 1)
        return own;
    if (own == TREK_OK && values.on_host && !r->parcel && !(r->parcel = trek_alloc(PARCEL_BYTES)))
        own = trek_error_status();
    trek_status status = trek_replica_agree(comm, own, "values of one rank for all");
    if (status != TREK_OK)
        return status;
    parcel p = { .r = r, .comm = comm, .packs = values.on_host, .root = values.root };
    for (int k = 0; k < r->n_params && values.params && status == TREK_OK; k++)
        status = add(&p, r->params[k]->data);
    for (int k = 0; k < r->n_buffers && values.buffers && status == TREK_OK; k++)
        status = add(&p, r->buffers[k]->data);
    return status == TREK_OK ? send_parcel(&p) : status;
}

/* --- all ranks' buffers merged ------------------------------------------------------------------ */

static size_t padded(const trek_tensor *t) { return (bytes_of(t) + 7) & ~(size_t)7; }

/* Returns the bytes of a rank's part of `room`: its count, followed by its buffers. */
static size_t part_bytes(const trek_replica *r)
{
    size_t bytes = sizeof(double);
    for (int k = 0; k < r->n_buffers; k++)
        bytes += padded(r->buffers[k]->data);
    return bytes;
}

static trek_status pack(const trek_replica *r, char *part, bool back)
{
    trek_status status = TREK_OK;
    char *at = part + sizeof(double);
    for (int k = 0; k < r->n_buffers && status == TREK_OK; k++) {
        trek_tensor *x = r->buffers[k]->data;
        size_t bytes = bytes_of(x);
        if (back) {
            trek_tensor *merged = trek_tensor_from_data(at, trek_tensor_shape(x), (trek_dtype)x->dtype, x->device);
            status = merged ? trek_tensor_copy_from(x, merged) : trek_error_status();
            trek_tensor_release(merged);
        } else {
            status = trek_tensor_to_host(x, (trek_dtype)x->dtype, at, bytes);
        }
        at += padded(x);
    }
    return status;
}

/* The parts of all ranks, which follow this rank's own part. */
typedef struct gathered {
    trek_buffer_space base;
    char *all;
    size_t bytes;
    size_t *places;
} gathered;

static char *copy_of(const trek_buffer_space *room, int rank, int k)
{
    const gathered *g = (const gathered *)room;
    return g->all + (size_t)rank * g->bytes + g->places[k];
}

static trek_status make_room(trek_replica *r, int world_size, size_t bytes)
{
    if (r->room && r->room_for == world_size)
        return TREK_OK;
    trek_free(r->room);
    r->room_for = world_size;
    r->room = trek_calloc((size_t)world_size + 1, bytes);
    return r->room ? TREK_OK : trek_error_status();
}

static void merge_all(const trek_replica *r, int world_size, size_t bytes, size_t *places, double *counts, bool apart)
{
    gathered g = { .base = { .replica = r, .n_ranks = world_size, .counts = counts, .apart = apart, .copy = copy_of },
                   .all = r->room + bytes, .bytes = bytes, .places = places };
    size_t at = sizeof(double);
    for (int k = 0; k < r->n_buffers; k++) {
        places[k] = at;
        at += padded(r->buffers[k]->data);
    }
    trek_buffers_merge(&g.base, 0, 1);
}

trek_status trek_replica_merge(trek_replica *r, trek_comm *comm, double count, bool apart, double *total, trek_status own)
{
    size_t bytes = r ? part_bytes(r) : 0;
    int world_size = trek_comm_world_size(comm);
    if (total)
        *total = count;
    if (world_size == 1)
        return own;
    size_t *places = trek_calloc(r ? (size_t)r->n_buffers : 0, sizeof *places);
    double *counts = trek_calloc((size_t)world_size, sizeof *counts);
    if (own == TREK_OK)
        own = places && counts ? make_room(r, world_size, bytes) : trek_error_status();
    if (own == TREK_OK)
        own = pack(r, r->room, false);
    trek_status status = trek_replica_agree(comm, own, "merging buffers");
    if (status == TREK_OK) {
        memcpy(r->room, &count, sizeof count);
        status = trek_comm_gather_bytes(comm, r->room, bytes, r->room + bytes);
    }
    double sum = 0;
    for (int q = 0; q < world_size && status == TREK_OK; q++) {
        memcpy(&counts[q], r->room + (size_t)(q + 1) * bytes, sizeof *counts);
        sum += counts[q];
    }
    if (status == TREK_OK && sum > 0) {
        merge_all(r, world_size, bytes, places, counts, apart);
        status = pack(r, r->room + bytes, true); /* all parts hold what was merged */
    }
    if (total)
        *total = sum;
    trek_free(places);
    trek_free(counts);
    return status;
}
