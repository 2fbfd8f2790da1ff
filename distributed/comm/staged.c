/* SPDX-License-Identifier: Apache-2.0 */
/* Collectives on device memory through the host. They are slow, but work for any mixture of ranks (a CPU and a GPU,
 * the same GPU twice) and give the bits of the host. */
#include "distributed/comm/comm_internal.h"
#include "tensor/backend.h"

/* Computes how many elements the rank gives and gets. */
static void sizes_of(const trek_comm *comm, const trek_comm_call *call, int64_t *given, int64_t *got)
{
    *given = call->kind == TREK_COMM_REDUCE_SCATTER ? call->count * comm->world : call->count;
    *got = call->kind == TREK_COMM_ALL_GATHER ? call->count * comm->world : call->count;
}

/* A rank that cannot bring its part still meets the others, so that they learn of it. */
static trek_status run_without(trek_comm *comm, const trek_comm_call *call, trek_status status)
{
    comm->engine->run(comm, &(trek_comm_call){ .number = call->number, .kind = TREK_COMM_INVALID });
    return status;
}

trek_status trek_comm_staged_run(trek_comm *comm, const trek_comm_call *call)
{
    const trek_backend *backend = trek_backend_get(comm->device.type);
    int64_t given, got;
    sizes_of(comm, call, &given, &got);
    size_t item = trek_dtype_size(call->dtype), in_bytes = (size_t)given * item, out_bytes = (size_t)got * item;
    void *in = NULL, *out = NULL;
    trek_status status = backend ? backend->pinned_allocate(in_bytes, &in) : trek_error_status();
    if (status == TREK_OK)
        status = backend->pinned_allocate(out_bytes, &out);
    if (status == TREK_OK)
        status = backend->copy_bytes(in, trek_cpu(0), call->in, comm->device, in_bytes, NULL);
    if (status != TREK_OK) {
        status = run_without(comm, call, status);
    } else {
        trek_comm_call host = *call;
        host.on_device = false;
        host.in = in;
        host.out = out;
        status = comm->engine->run(comm, &host);
        if (status == TREK_OK && (call->kind != TREK_COMM_REDUCE || call->root == comm->rank))
            status = backend->copy_bytes(call->out, comm->device, out, trek_cpu(0), out_bytes, NULL);
    }
    if (in)
        backend->pinned_release(in);
    if (out)
        backend->pinned_release(out);
    return status;
}
