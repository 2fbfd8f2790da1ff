/* SPDX-License-Identifier: Apache-2.0 */
/* The public functions of communicators. They check arguments and then call the engine. */
#include "distributed/comm/comm.h"

#include <math.h>
#include <stdio.h>

#include "distributed/comm/meeting.h"
#include "tensor/backend.h"
#include "tensor/dlpack.h"
#include "tensor/memory_internal.h"
#include "tensor/pages.h"
#include "tensor/tensor_internal.h"

/* Tensors of at least this many bytes get memory of the engine. */
#define LEAST_OWN (32 << 10)

/* Returns whether the call has data on a device. */
static bool is_on_device(const trek_comm_call *call)
{
    return call->on_device && call->kind != TREK_COMM_BARRIER && call->kind != TREK_COMM_INVALID;
}

/* Returns whether the devices carry the call out themselves. */
static bool takes(const trek_comm *comm, const trek_comm_call *call) { return comm->devices && comm->devices->takes(comm, call); }

/* Numbers the call and announces it on the control channel. */
static void begin(trek_comm *comm, trek_comm_call *call)
{
    call->number = ++comm->calls;
    trek_call_note note = trek_comm_note(call);
    if (comm->control)
        trek_control_call(comm->control, &note);
}

static trek_status run_numbered(trek_comm *comm, const trek_comm_call *call)
{
    if (!is_on_device(call))
        return comm->engine->run(comm, call);
    if (!takes(comm, call))
        return trek_comm_staged_run(comm, call);
    trek_status status = comm->devices->start(comm, call);
    return status == TREK_OK ? comm->devices->wait(comm) : status;
}

/* The error of a call in a split group names ranks of that group. This adds the ranks of the first communicator. */
static void name_origins(const trek_comm *comm)
{
    char message[TREK_ERROR_SIZE], list[160] = "";
    size_t used = 0;
    trek_status status;
    for (int r = 0; r < comm->world && used + 16 < sizeof list; r++)
        used += (size_t)snprintf(list + used, sizeof list - used, r == 0 ? "%d" : used + 32 < sizeof list ? ", %d" : ", ...",
                                 comm->origins[r]);
    trek_error_take(&status, message);
    trek_fail(status, "%.800s; ranks of this group from 0 on are ranks %s of the communicator that was split", message, list);
}

/* Returns the status of a call, given the thread's error when the call began. */
static trek_status ended_as(const trek_comm *comm, trek_status status, trek_status before)
{
    if (status != TREK_OK && before == TREK_OK && comm->origins && trek_error_status() != TREK_OK)
        name_origins(comm);
    return status;
}

/* Called when a call has ended. Ranks that share memory may know the end of the group before the channel does: it is told before
 * this process leaves, so that the others get the reason. */
static void tell_channel(trek_comm *comm, trek_status status, bool complete)
{
    if (comm->control && status == TREK_OK && complete)
        trek_control_called(comm->control);
    else if (comm->control && status != TREK_OK && comm->engine->ended(comm))
        trek_control_end(comm->control, status, trek_error());
}

/* Runs a call. Memory that processes share is also visible to the child of a fork, whose calls must not reach the
 * others. */
trek_status trek_comm_run(trek_comm *comm, trek_comm_call call)
{
    if (trek_forked)
        return trek_fail_forked();
    trek_status before = trek_error_status();
    begin(comm, &call);
    trek_status status = run_numbered(comm, &call);
    tell_channel(comm, status, true);
    return ended_as(comm, status, before);
}

trek_status trek_comm_gather_bytes(trek_comm *comm, const void *mine, size_t bytes, void *all)
{
    return trek_comm_run(comm, (trek_comm_call){ .kind = TREK_COMM_ALL_GATHER, .dtype = TREK_U8, .count = (int64_t)bytes,
                                                 .in = mine, .out = all });
}

bool trek_comm_overlaps(const trek_comm *comm) { return comm->engine->start != NULL; }

bool trek_comm_fills(const trek_comm *comm) { return comm->engine->fills || comm->engine->start; }

trek_status trek_comm_start(trek_comm *comm, trek_comm_call call)
{
    bool on_device = is_on_device(&call), by_library = on_device && takes(comm, &call);
    if (trek_forked || (on_device ? !by_library : !comm->engine->start))
        return trek_comm_run(comm, call);
    begin(comm, &call);
    trek_status status = by_library ? comm->devices->start(comm, &call) : comm->engine->start(comm, &call);
    tell_channel(comm, status, false);
    return status;
}

trek_status trek_comm_finish(trek_comm *comm)
{
    if (trek_forked)
        return trek_fail_forked();
    trek_status before = trek_error_status(), status = comm->engine->finish ? comm->engine->finish(comm) : TREK_OK;
    if (comm->devices && status == TREK_OK)
        status = comm->devices->wait(comm);
    tell_channel(comm, status, true);
    return ended_as(comm, status, before);
}

trek_status trek_comm_settle(trek_comm *comm)
{
    if (trek_forked)
        return trek_fail_forked();
    trek_status status = comm->devices ? comm->devices->settle(comm) : TREK_OK;
    tell_channel(comm, status, false);
    return status;
}

/* Runs a call that this rank has made wrongly; `status` is set already. The rank still meets the others, so that they
 * learn of it at once. */
static trek_status run_invalid(trek_comm *comm, trek_status status)
{
    trek_comm_run(comm, (trek_comm_call){ .kind = TREK_COMM_INVALID });
    return status;
}

static trek_status check_tensor(const trek_comm *comm, trek_comm_kind kind, const trek_tensor *tensor)
{
    if (!tensor)
        return trek_fail_missing(trek_call_kind_name(kind), "tensor");
    char text[TREK_SHAPE_TEXT];
    char own[16];
    if (tensor->device.type != TREK_CPU && !trek_device_equal(tensor->device, comm->device))
        return trek_fail(TREK_ERR_DEVICE, "%s: tensor: rank %d's is on %s; must be in host memory or on %s",
                         trek_call_kind_name(kind),
                         comm->rank,
                         trek_device_name(tensor->device, text, sizeof text), trek_device_name(comm->device, own, sizeof own));
    if (trek_tensor_is_kept(tensor))
        return trek_fail(TREK_ERR_STATE,
                         "%s: tensor: rank %d's is divided over ranks (TREK_SHARD_PARAMETERS), so its memory comes and "
                         "goes; send a copy (trek_tensor_clone)",
                         trek_call_kind_name(kind), comm->rank);
    if (!tensor->contiguous)
        return trek_fail(TREK_ERR_SHAPE, "%s: tensor: rank %d's %s is not contiguous; must be", trek_call_kind_name(kind),
                         comm->rank, trek_tensor_shape_text(tensor, text));
    return TREK_OK;
}

static trek_status check_op(const trek_comm *comm, trek_comm_kind kind, const trek_tensor *tensor, trek_reduction op)
{
    if ((int)op < 0 || op > TREK_REDUCTION_PROD)
        return trek_fail(TREK_ERR_ARGUMENT, "%s: op: rank %d gave %d; must be TREK_REDUCTION_MEAN, _SUM, _MAX, _MIN or _PROD",
                         trek_call_kind_name(kind), comm->rank, (int)op);
    bool fits = tensor->dtype == TREK_BOOL ? op == TREK_REDUCTION_MAX || op == TREK_REDUCTION_MIN : op != TREK_REDUCTION_MEAN ||
        trek_dtype_is_float(tensor->dtype);
    return fits ? TREK_OK
                : trek_fail(TREK_ERR_DTYPE, "%s: op: rank %d asked for the %s of %s, which is not possible",
                            trek_call_kind_name(kind), comm->rank, trek_call_op_name(op), trek_dtype_name(tensor->dtype));
}

trek_tensor *trek_comm_zeros(trek_comm *comm, trek_shape shape, trek_dtype dtype, trek_device device)
{
    int64_t bytes = (int64_t)trek_dtype_size(dtype);
    device = trek_device_resolve(device);
    bool fits = comm && comm->engine->alloc && device.type == TREK_CPU;
    for (int d = 0; d < shape.ndim && fits; d++)
        fits = !__builtin_mul_overflow(bytes, shape.sizes[d], &bytes);
    void *memory = fits && bytes >= LEAST_OWN ? comm->engine->alloc(comm, (size_t)bytes) : NULL;
    if (!memory)
        return trek_tensor_zeros(shape, dtype, device);
    trek_tensor *tensor = trek_tensor_wrap(memory, shape, dtype, comm->engine->release, NULL);
    if (!tensor)
        comm->engine->release(memory, NULL);
    return tensor;
}

trek_status trek_comm_all_reduce(trek_comm *comm, trek_tensor *tensor, trek_reduction op)
{
    if (!comm)
        return trek_fail_missing("all_reduce", "communicator");
    trek_status status = check_tensor(comm, TREK_COMM_ALL_REDUCE, tensor);
    if (status == TREK_OK)
        status = check_op(comm, TREK_COMM_ALL_REDUCE, tensor, op);
    if (status != TREK_OK)
        return run_invalid(comm, status);
    status = trek_comm_run(comm, (trek_comm_call){ .kind = TREK_COMM_ALL_REDUCE, .op = op, .dtype = tensor->dtype,
                                                   .count = tensor->numel, .in = tensor->data, .out = tensor->data,
                                                   .on_device = tensor->device.type != TREK_CPU });
    if (status == TREK_OK)
        trek_tensor_bump(tensor);
    return status;
}

trek_status trek_comm_broadcast(trek_comm *comm, trek_tensor *tensor, int root)
{
    if (!comm)
        return trek_fail_missing("broadcast", "communicator");
    trek_status status = check_tensor(comm, TREK_COMM_BROADCAST, tensor);
    if (status == TREK_OK && (root < 0 || root >= comm->world))
        status = trek_fail(TREK_ERR_ARGUMENT, "broadcast: root: rank %d; must be 0 to %d", root, comm->world - 1);
    if (status != TREK_OK)
        return run_invalid(comm, status);
    status = trek_comm_run(comm, (trek_comm_call){ .kind = TREK_COMM_BROADCAST, .root = root, .dtype = tensor->dtype,
                                                   .count = tensor->numel, .in = tensor->data, .out = tensor->data,
                                                   .on_device = tensor->device.type != TREK_CPU });
    if (status == TREK_OK && root != comm->rank)
        trek_tensor_bump(tensor);
    return status;
}

/* Checks what all_gather and reduce_scatter have in common: a part for each rank, and the whole. */
static trek_status check_parts(const trek_comm *comm, trek_comm_kind kind, const trek_tensor *part, const trek_tensor *all)
{
    trek_status status = check_tensor(comm, kind, part);
    if (status == TREK_OK)
        status = check_tensor(comm, kind, all);
    if (status != TREK_OK)
        return status;
    if (part->device.type != all->device.type)
        return trek_fail(TREK_ERR_DEVICE, "%s: tensors: rank %d's part and whole are on different devices; must be on one",
                         trek_call_kind_name(kind), comm->rank);
    if (part->dtype != all->dtype)
        return trek_fail(TREK_ERR_DTYPE, "%s: tensors: rank %d's part is %s and its whole %s; the dtypes must be equal",
                         trek_call_kind_name(kind), comm->rank, trek_dtype_name(part->dtype), trek_dtype_name(all->dtype));
    if (all->numel != part->numel * comm->world)
        return trek_fail(TREK_ERR_SHAPE, "%s: tensors: rank %d's whole has %lld elements; must be %d parts of %lld",
                         trek_call_kind_name(kind), comm->rank, (long long)all->numel, comm->world, (long long)part->numel);
    return TREK_OK;
}

trek_status trek_comm_all_gather(trek_comm *comm, const trek_tensor *part, trek_tensor *all)
{
    if (!comm)
        return trek_fail_missing("all_gather", "communicator");
    trek_status status = check_parts(comm, TREK_COMM_ALL_GATHER, part, all);
    if (status != TREK_OK)
        return run_invalid(comm, status);
    status = trek_comm_run(comm, (trek_comm_call){ .kind = TREK_COMM_ALL_GATHER, .dtype = part->dtype, .count = part->numel,
                                                   .in = part->data, .out = all->data,
                                                   .on_device = part->device.type != TREK_CPU });
    if (status == TREK_OK)
        trek_tensor_bump(all);
    return status;
}

trek_status trek_comm_reduce_scatter(trek_comm *comm, const trek_tensor *all, trek_tensor *part, trek_reduction op)
{
    if (!comm)
        return trek_fail_missing("reduce_scatter", "communicator");
    trek_status status = check_parts(comm, TREK_COMM_REDUCE_SCATTER, part, all);
    if (status == TREK_OK)
        status = check_op(comm, TREK_COMM_REDUCE_SCATTER, part, op);
    if (status != TREK_OK)
        return run_invalid(comm, status);
    status = trek_comm_run(comm, (trek_comm_call){ .kind = TREK_COMM_REDUCE_SCATTER, .op = op, .dtype = part->dtype,
                                                   .count = part->numel, .in = all->data, .out = part->data,
                                                   .on_device = part->device.type != TREK_CPU });
    if (status == TREK_OK)
        trek_tensor_bump(part);
    return status;
}

trek_status trek_comm_barrier(trek_comm *comm)
{
    if (!comm)
        return trek_fail_missing("barrier", "communicator");
    return trek_comm_run(comm, (trek_comm_call){ .kind = TREK_COMM_BARRIER });
}

trek_status trek_comm_all_reduce_scalar(trek_comm *comm, double *value, trek_reduction op)
{
    if (!comm)
        return trek_fail_missing("all_reduce_scalar", "communicator");
    if (!value || (int)op < 0 || op > TREK_REDUCTION_PROD)
        return run_invalid(
            comm,
            value ? trek_fail(TREK_ERR_ARGUMENT,
                              "all_reduce_scalar: op: rank %d gave %d; must be TREK_REDUCTION_MEAN, _SUM, _MAX, _MIN or _PROD",
                              comm->rank, (int)op)
                  : trek_fail_missing("all_reduce_scalar", "value"));
    double number = *value;
    trek_status status = trek_comm_run(comm, (trek_comm_call){ .kind = TREK_COMM_ALL_REDUCE, .op = op, .dtype = TREK_F64,
                                                               .count = 1,
                                                               .in = &number, .out = &number });
    if (status == TREK_OK)
        *value = number;
    return status;
}

trek_status trek_comm_samples(const trek_comm *comm, int64_t total, int64_t *first, int64_t *count)
{
    if (!first || !count)
        return trek_fail_missing("comm_samples", first ? "count" : "first");
    if (total < 0)
        return trek_fail(TREK_ERR_ARGUMENT, "comm_samples: total: %lld; must be 0 or more", (long long)total);
    int64_t rank = trek_comm_rank(comm), world = trek_comm_world_size(comm), each = total / world, more = total % world;
    *first = rank * each + (rank < more ? rank : more);
    *count = each + (rank < more);
    return TREK_OK;
}

void trek_comm_abort(trek_comm *comm, const char *reason)
{
    if (!comm || trek_forked)
        return;
    char message[TREK_ERROR_SIZE];
    snprintf(message, sizeof message, "the group was aborted through rank %d%s%s", comm->rank, reason && *reason ? ": " : "",
             reason ? reason : "");
    comm->engine->end(comm, TREK_ERR_CANCELLED, message);
    if (comm->devices)
        comm->devices->abort(comm);
}

bool trek_comm_ended(const trek_comm *comm) { return comm->engine->ended(comm); }

/* --- handles ---------------------------------------------------------------------------------- */

bool trek_comm_retain(trek_comm *comm)
{
    int more = atomic_load(&comm->more);
    while (more >= 0 && !atomic_compare_exchange_weak(&comm->more, &more, more + 1))
        ;
    return more >= 0;
}

void trek_comm_destroy(trek_comm *comm)
{
    if (!trek_forked)
        comm->engine->leave(comm);
    if (comm->devices && !trek_forked)
        comm->devices->detach(comm);
    trek_free(comm->origins);
    comm->origins = NULL;
    comm->engine->free(comm);
}

void trek_comm_free(trek_comm **address)
{
    trek_comm *comm = address ? *address : NULL;
    if (!comm)
        return;
    *address = NULL;
    if (atomic_fetch_sub(&comm->more, 1) == 0)
        (comm->freed ? comm->freed : trek_comm_destroy)(comm);
}

int trek_comm_rank(const trek_comm *comm) { return comm ? comm->rank : 0; }
int trek_comm_world_size(const trek_comm *comm) { return comm ? comm->world : 1; }

trek_status trek_comm_set_deadline(trek_comm *comm, double seconds)
{
    if (!comm)
        return trek_fail_missing("comm_set_deadline", "communicator");
    if (seconds == TREK_OFF) {
        comm->deadline_ns = 0;
        return TREK_OK;
    }
    if (seconds == 0)
        seconds = 600;
    if (!(seconds > 0) || seconds > 1e9)
        return trek_fail(TREK_ERR_ARGUMENT, "comm_set_deadline: seconds: %g; must be TREK_OFF, or 0 (the default) to 10^9",
                         seconds);
    comm->deadline_ns = (int64_t)ceil(seconds * 1e9);
    return TREK_OK;
}
