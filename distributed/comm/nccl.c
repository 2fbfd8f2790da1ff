/* SPDX-License-Identifier: Apache-2.0 */
#include "distributed/comm/nccl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "distributed/comm/nested.h"
#include "distributed/control/control.h"
#include "distributed/system/system.h"
#include "tensor/device_comm.h"
#include "tensor/environment.h"
#include "tensor/memory_internal.h"
#include "tensor/trace.h"

/* The ranks of this process, which are made and freed together. */
typedef struct nccl_group {
    trek_lock lock;        /* guards `attached`, because other threads may abort */
    int attached, n;
    trek_device_rank **ranks;
} nccl_group;

typedef struct buffer {
    void *data, *handle;
} buffer;

struct trek_comm_nccl {
    nccl_group *group;
    const trek_backend *backend;
    const trek_device_comm *library;
    trek_device_rank *rank;
    struct trek_control *control; /* of processes: its end aborts the library */
    trek_device_stream *stream;        /* the communication stream */
    trek_event *ready, *done;   /* of the thread's queue before a call; of the communication stream after it */
    bool waits;                 /* the queue does not wait yet for what the stream was given */
    int n_buffers, cap_buffers;
    buffer *buffers;
};

/* --- attaching ---------------------------------------------------------------------- */

/* Returns the library for a kind of devices and a group of n ranks, or NULL. */
static const trek_device_comm *library_for(trek_device_type type, int n)
{
    long wish = trek_process_number("TREK_NCCL", 0, 1, -1);
    if (type == TREK_CPU || wish == 0 || (n < 2 && wish != 1))
        return NULL;
    const trek_backend *backend = trek_backends[type];
    const trek_device_comm *library = backend ? backend->comm : NULL;
    char why[400];
    if (!library || library->available(why, sizeof why))
        return library;
    trek_log_message(TREK_LOG_LEVEL_INFO, "%d ranks exchange gradients through host memory: %s", n, why);
    return NULL;
}

/* Returns the library that serves these devices, or NULL. */
static const trek_device_comm *library_of(const trek_device *devices, int n)
{
    if (!devices)
        return NULL;
    for (int r = 0; r < n; r++) {
        if (devices[r].type == TREK_CPU || devices[r].type != devices[0].type)
            return NULL;
        for (int k = 0; k < r; k++)
            if (devices[k].index == devices[r].index)
                return NULL; /* NCCL refuses two ranks on one device */
    }
    return library_for(devices[0].type, n);
}

static void free_group(nccl_group *group, const trek_device_comm *library)
{
    library->free(group->ranks, group->n);
    trek_lock_destroy(&group->lock);
    trek_free(group->ranks);
    trek_free(group);
}

static nccl_group *new_empty_group(int n)
{
    nccl_group *group = trek_calloc(1, sizeof *group);
    if (!group)
        return NULL;
    group->ranks = trek_calloc((size_t)n, sizeof *group->ranks);
    if (!group->ranks) {
        trek_free(group);
        return NULL;
    }
    trek_lock_init(&group->lock);
    return group;
}

static nccl_group *new_group(const trek_device_comm *library, const trek_device *devices, int n)
{
    nccl_group *group = new_empty_group(n);
    if (!group)
        return NULL;
    group->n = n;
    if (library->init_all(devices, n, 600000000000, group->ranks) == TREK_OK)
        return group;
    free_group(group, library);
    return NULL;
}

static void free_part(struct trek_comm_nccl *part)
{
    for (int k = 0; k < part->n_buffers; k++)
        part->library->deregister_buffer(part->rank, part->buffers[k].handle);
    trek_free(part->buffers);
    part->backend->stream_free(part->stream);
    part->backend->event_free(part->ready);
    part->backend->event_free(part->done);
    trek_free(part);
}

/* Makes the objects of one rank: everything that can fail for lack of memory. */
static struct trek_comm_nccl *new_part(const trek_backend *backend, trek_device device)
{
    struct trek_comm_nccl *part = trek_calloc(1, sizeof *part);
    if (!part)
        return NULL;
    part->backend = backend;
    part->library = backend->comm;
    if (backend->stream_new(device, &part->stream) == TREK_OK && backend->event_new(device, &part->ready) == TREK_OK &&
        backend->event_new(device, &part->done) == TREK_OK)
        return part;
    free_part(part);
    return NULL;
}

static const trek_comm_device_engine nccl_engine;

static void use(trek_comm *comm, struct trek_comm_nccl *part)
{
    comm->nccl = part;
    comm->devices = part ? &nccl_engine : NULL;
}

static trek_status attach_all(trek_comm **comms, const trek_device *devices, int n, const trek_device_comm *library)
{
    const trek_backend *backend = trek_backends[devices[0].type];
    int made = 0;
    for (struct trek_comm_nccl *part; made < n && (part = new_part(backend, devices[made])); made++)
        use(comms[made], part);
    nccl_group *group = made == n ? new_group(library, devices, n) : NULL;
    for (int r = 0; r < made; r++) {
        if (group) {
            comms[r]->nccl->group = group;
            comms[r]->nccl->rank = group->ranks[r];
        } else {
            free_part(comms[r]->nccl);
            use(comms[r], NULL);
        }
    }
    if (!group)
        return trek_error_status();
    group->attached = n;
    return TREK_OK;
}

trek_status trek_comm_nccl_attach(trek_comm **comms, const trek_device *devices, int n)
{
    const trek_device_comm *library = library_of(devices, n);
    if (!library)
        return TREK_OK;
    trek_status status = attach_all(comms, devices, n, library);
    if (status != TREK_ERR_COMM && status != TREK_ERR_TIMEOUT)
        return status;
    char message[TREK_ERROR_SIZE];
    trek_error_take(&status, message);
    trek_log_message(TREK_LOG_LEVEL_WARNING, "%d ranks exchange gradients through host memory: %s", n, message);
    return TREK_OK;
}

static void abort_group(nccl_group *group, const trek_device_comm *library);

/* --- operations under way when a rank leaves ------------------------------------------------- */

#define POLL_NS 20000000
#define PATIENCE_NS 3000000000 /* how long to wait with processes that have left: operations that they took part in end very
                                * soon */

typedef struct draining {
    struct trek_comm_nccl *part;
    trek_lock lock;
    trek_condition changed;
    bool over;
} draining;

static void *drain_stream(void *arg)
{
    draining *d = arg;
    d->part->backend->event_sync(d->part->done);
    trek_error_clear();
    trek_lock_acquire(&d->lock);
    d->over = true;
    trek_condition_wake_one(&d->changed);
    trek_lock_release(&d->lock);
    return NULL;
}

static bool waits_in_vain(const struct trek_comm_nccl *part, int64_t waited_ns, int64_t deadline_ns)
{
    return trek_control_ended(part->control) || (deadline_ns && waited_ns > deadline_ns) ||
        (waited_ns > PATIENCE_NS && trek_control_some_left(part->control));
}

/* Between processes an operation on a device ends when all have come to it. A process that failed may have left
 * before. Then the library is aborted, because freeing the stream would wait for ever. Returns whether the device has done
 * everything. */
static bool drain(struct trek_comm_nccl *part, trek_device device, int64_t deadline_ns)
{
    draining d = { .part = part };
    trek_thread thread;
    int64_t start = trek_now_ns();
    /* replayed work is on the thread's own queue */
    if (part->backend->event_record(part->ready, NULL) != TREK_OK ||
        part->backend->stream_wait(device, part->stream, part->ready) != TREK_OK ||
        part->backend->event_record(part->done, part->stream) != TREK_OK)
        return false;
    bool over = false;
    trek_lock_init(&d.lock);
    trek_condition_init(&d.changed);
    if (trek_thread_begin(&thread, drain_stream, &d) == 0) {
        trek_lock_acquire(&d.lock);
        while (!d.over && !waits_in_vain(part, trek_now_ns() - start, deadline_ns))
            trek_condition_wait_until(&d.changed, &d.lock, trek_now_ns() + POLL_NS);
        over = d.over;
        trek_lock_release(&d.lock);
        if (!over)
            abort_group(part->group, part->library);
        trek_thread_join(thread);
    }
    trek_condition_destroy(&d.changed);
    trek_lock_destroy(&d.lock);
    return over;
}

void trek_comm_nccl_drain(trek_comm *comm)
{
    if (comm->nccl && comm->nccl->control)
        drain(comm->nccl, comm->device, comm->deadline_ns);
}

/* The last rank frees the communicators of all. */
static void detach(trek_comm *comm)
{
    struct trek_comm_nccl *part = comm->nccl;
    nccl_group *group = part->group;
    const trek_device_comm *library = part->library;
    if (part->control) {
        drain(part, comm->device, comm->deadline_ns);
        trek_control_forget(part->control, part);
    }
    use(comm, NULL);
    free_part(part);
    trek_lock_acquire(&group->lock);
    bool last = --group->attached == 0;
    trek_lock_release(&group->lock);
    if (last)
        free_group(group, library);
}

/* --- between processes ------------------------------------------------------------------- */

/* Returns the control channel of the processes; NULL: the ranks are threads of one. */
static struct trek_control *control_of(const trek_comm *comm)
{
    return comm->control ? comm->control : trek_comm_nested_control(comm);
}

/* What a process announces before all make a communicator. */
typedef struct process_card {
    unsigned char uuid[16];
    int32_t ready, type;
    trek_device_comm_id id; /* of process 0 */
} process_card;

/* Returns whether this process could take part: library, device and memory are available. */
static bool make_card(const trek_comm *comm, trek_device device, process_card *card)
{
    memset(card, 0, sizeof *card);
    card->type = (int32_t)device.type;
    const trek_device_comm *library = library_for(device.type, comm->world);
    trek_device_info info;
    memset(&info, 0, sizeof info);
    if (!library || trek_backends[device.type]->info(device.index, &info) != TREK_OK)
        return false;
    memcpy(card->uuid, info.uuid, sizeof card->uuid);
    if (comm->rank == 0 && library->make_id(&card->id) != TREK_OK)
        return false;
    card->ready = 1;
    return true;
}

static void log_error(const char *what)
{
    trek_status status;
    char message[TREK_ERROR_SIZE];
    trek_error_take(&status, message);
    if (message[0])
        trek_log_message(TREK_LOG_LEVEL_WARNING, "%s: %s", what, message);
}

/* Returns whether the cards allow a communicator. All processes get the same answer. */
static bool cards_fit(const process_card *cards, int n)
{
    static const unsigned char none[16];
    for (int r = 0; r < n; r++) {
        if (!cards[r].ready || cards[r].type != cards[0].type)
            return false;
        for (int k = 0; k < r && memcmp(cards[r].uuid, none, sizeof none) != 0; k++) {
            if (memcmp(cards[r].uuid, cards[k].uuid, sizeof none) != 0)
                continue;
            trek_log_message(TREK_LOG_LEVEL_WARNING, "processes %d and %d use the same GPU: all tensors go through host memory",
                             k, r);
            return false;
        }
    }
    return true;
}

static trek_status gather_bytes(trek_comm *comm, const void *mine, size_t bytes, void *all)
{
    return trek_comm_run(comm, (trek_comm_call){ .kind = TREK_COMM_ALL_GATHER, .dtype = TREK_U8, .count = (int64_t)bytes,
                                                 .in = mine,
                                                 .out = all });
}

static bool has_ended(void *comm) { return trek_comm_ended(comm); }

/* Makes the part of one process, while all others make theirs. */
static trek_status make_part(trek_comm *comm, trek_device device, const trek_device_comm_id *id, struct trek_comm_nccl **result)
{
    struct trek_comm_nccl *part = new_part(trek_backends[device.type], device);
    nccl_group *group = part ? new_empty_group(1) : NULL;
    trek_status status = group ? part->library->init_one(device, id, comm->rank, comm->world,
                                                         comm->deadline_ns ? comm->deadline_ns : 600000000000, has_ended, comm,
                                                         group->ranks)
                               : trek_error_status();
    if (status == TREK_OK) {
        group->n = group->attached = 1;
        part->group = group;
        part->rank = group->ranks[0];
        *result = part;
        return TREK_OK;
    }
    if (group)
        free_group(group, part->library);
    if (part)
        free_part(part);
    return status;
}

/* Runs on the control thread. */
static void group_ended(void *arg)
{
    struct trek_comm_nccl *part = arg;
    abort_group(part->group, part->library);
}

static void drop_part(struct trek_comm_nccl *part)
{
    nccl_group *group = part->group;
    const trek_device_comm *library = part->library;
    abort_group(group, library); /* the other processes may not have made theirs */
    free_part(part);
    free_group(group, library);
}

/* Attaches the library if all processes have made their part. */
static trek_status join_made(trek_comm *comm, trek_device device, const process_card *cards, int32_t *made)
{
    struct trek_comm_nccl *part = NULL;
    int32_t own = make_part(comm, device, &cards[0].id, &part) == TREK_OK;
    if (!own && trek_comm_ended(comm)) /* the next call has the reason */
        trek_error_clear();
    else if (!own)
        log_error("tensors on GPUs go through host memory");
    trek_status status = gather_bytes(comm, &own, sizeof own, made);
    for (int r = 0; r < comm->world; r++)
        own = own && status == TREK_OK && made[r];
    if (own && control_of(comm))
        status = trek_control_on_end(control_of(comm), group_ended, part);
    if (own && status == TREK_OK) {
        part->control = control_of(comm);
        use(comm, part);
    } else if (part) {
        drop_part(part);
    }
    return status;
}

trek_status trek_comm_nccl_join(trek_comm *comm, trek_device device)
{
    const trek_backend *backend = trek_backend_get(device.type);
    char why[256];
    if (!backend)
        return trek_error_status();
    if (!backend->usable(device.index, why, sizeof why))
        return trek_fail(TREK_ERR_DEVICE, "comm_init: %s", why);
    if (comm->nccl)
        return TREK_OK;
    comm->device = device;
    process_card own, *cards = trek_calloc((size_t)comm->world, sizeof *cards);
    int32_t *made = trek_calloc((size_t)comm->world, sizeof *made);
    if (!cards || !made) {
        trek_free(cards);
        trek_free(made);
        comm->engine->run(comm, &(trek_comm_call){ .number = ++comm->calls, .kind = TREK_COMM_INVALID });
            /* the others learn of it */
        return trek_error_status();
    }
    if (!make_card(comm, device, &own))
        log_error("tensors on GPUs go through host memory");
    trek_status status = gather_bytes(comm, &own, sizeof own, cards);
    if (status == TREK_OK && cards_fit(cards, comm->world))
        status = join_made(comm, device, cards, made);
    trek_free(cards);
    trek_free(made);
    return status;
}

/* --- calls ------------------------------------------------------------------------------ */

static bool reduction_of(trek_reduction op, trek_device_reduce *reduction)
{
    switch (op) {
    case TREK_REDUCTION_SUM:
        *reduction = TREK_DEVICE_SUM;
        return true;
    case TREK_REDUCTION_MAX:
        *reduction = TREK_DEVICE_MAX;
        return true;
    case TREK_REDUCTION_MIN:
        *reduction = TREK_DEVICE_MIN;
        return true;
    case TREK_REDUCTION_PROD:
        *reduction = TREK_DEVICE_PROD;
        return true;
    default:
        return false; /* the library's average would be slow, and no important call needs it */
    }
}

static bool takes(const trek_comm *comm, const trek_comm_call *call)
{
    trek_device_reduce reduction;
    if (!call->on_device)
        return false;
    if (call->kind == TREK_COMM_BROADCAST || call->kind == TREK_COMM_ALL_GATHER)
        return true;
    bool reduces = call->kind == TREK_COMM_ALL_REDUCE || call->kind == TREK_COMM_REDUCE_SCATTER || call->kind == TREK_COMM_REDUCE;
    return reduces && reduction_of(call->op, &reduction) && comm->nccl->library->combines(call->dtype, reduction);
}

static trek_status begin(const struct trek_comm_nccl *part, const trek_comm_call *call, trek_device_stream *stream)
{
    const trek_device_comm *library = part->library;
    trek_device_reduce reduction = TREK_DEVICE_SUM;
    reduction_of(call->op, &reduction);
    switch (call->kind) {
    case TREK_COMM_ALL_REDUCE:
        return library->all_reduce(part->rank, call->in, call->out, call->count, call->dtype, reduction, stream);
    case TREK_COMM_REDUCE:
        return library->reduce(part->rank, call->in, call->out, call->count, call->dtype, reduction, call->root, stream);
    case TREK_COMM_BROADCAST:
        return library->broadcast(part->rank, call->in, call->out, call->count, call->dtype, call->root, stream);
    case TREK_COMM_ALL_GATHER:
        return library->all_gather(part->rank, call->in, call->out, call->count, call->dtype, stream);
    default:
        return library->reduce_scatter(part->rank, call->in, call->out, call->count, call->dtype, reduction, stream);
    }
}

static bool processes_ended(const trek_comm *comm) { return control_of(comm) && trek_control_ended(control_of(comm)); }

/* The library may notice the death of a process before the control channel, which names it. */
#define NOTICE_NS 1000000000

static void await_end(const trek_comm *comm)
{
    int64_t until = trek_now_ns() + NOTICE_NS;
    while (control_of(comm) && !processes_ended(comm) && !comm->engine->ended(comm) && trek_now_ns() < until)
        trek_sleep_ns(1000000);
}

/* Fails a call if the library was aborted because the group has ended, or has failed by itself. The reason of the end is the
 * error, not a time-out of the call. */
static trek_status fail_by_end(trek_comm *comm, const trek_comm_call *call, trek_status own)
{
    if (own == TREK_ERR_COMM)
        await_end(comm);
    bool by_processes = processes_ended(comm);
    if (!by_processes && !comm->engine->ended(comm))
        return own;
    trek_error_clear();
    return by_processes ? trek_control_fail(control_of(comm)) : comm->engine->run(comm, call);
}

trek_status trek_comm_nccl_give(trek_comm *comm, const trek_comm_call *call)
{
    struct trek_comm_nccl *part = comm->nccl;
    trek_status before = trek_error_status(), status = part->library->async_error(part->rank);
    if (status == TREK_OK)
        status = part->backend->event_record(part->ready, NULL);
    if (status == TREK_OK)
        status = part->backend->stream_wait(comm->device, part->stream, part->ready);
    if (status == TREK_OK)
        status = begin(part, call, part->stream);
    part->waits = true;
    bool ended = status == TREK_ERR_CANCELLED || status == TREK_ERR_COMM;
    return ended && before == TREK_OK ? fail_by_end(comm, call, status) : status;
}

static trek_status start(trek_comm *comm, const trek_comm_call *call)
{
    trek_status status = comm->engine->run(comm, call); /* on_device: the engine only lets them meet and compare their calls */
    if (status != TREK_OK)
        return status;
    status = trek_comm_nccl_give(comm, call);
    if (status == TREK_OK || processes_ended(comm))
        return status;
    if (control_of(comm) && comm->nccl->backend->capturing()) /* the call was recorded, so nobody waits for it */
        return status;
    char reason[256]; /* the others' devices would wait for this rank's device in vain */
    snprintf(reason, sizeof reason, "%s", trek_error());
    trek_comm_abort(comm, reason);
    return status;
}

/* Makes the queue wait for what was started. In a captured step this happens once for everything, because the stream
 * takes no part in the capture before it is given something. */
static trek_status wait_started(trek_comm *comm)
{
    struct trek_comm_nccl *part = comm->nccl;
    if (!part->waits && part->backend->capturing())
        return TREK_OK;
    part->waits = false;
    trek_status status = part->backend->event_record(part->done, part->stream);
    return status == TREK_OK ? part->backend->stream_wait(comm->device, NULL, part->done) : status;
}

/* The device has not done everything. If the group has not ended, the reason is this rank's. */
static trek_status fail_unsettled(trek_comm *comm, trek_status status)
{
    char reason[256];
    if (status == TREK_ERR_COMM)
        await_end(comm);
    snprintf(reason, sizeof reason, "%s", trek_error());
    if (status == TREK_ERR_TIMEOUT)
        snprintf(reason, sizeof reason, "rank %d: its device waits for a collective that does not end", comm->rank);
    if (!processes_ended(comm) && !comm->engine->ended(comm))
        comm->engine->end(comm, status, reason);
    trek_error_clear();
    return fail_by_end(comm, &(trek_comm_call){ .number = ++comm->calls, .kind = TREK_COMM_BARRIER }, status);
}

/* An abort says so before it ends the work, so work that has ended without an abort is complete. */
static trek_status settle(trek_comm *comm)
{
    struct trek_comm_nccl *part = comm->nccl;
    if (!part->control)
        return TREK_OK;
    bool over = drain(part, comm->device, comm->deadline_ns);
    trek_status status = trek_error_status();
    if (status == TREK_OK)
        status = over ? part->library->async_error(part->rank) : TREK_ERR_TIMEOUT;
    return status == TREK_OK ? TREK_OK : fail_unsettled(comm, status);
}

/* --- buffers, aborts ----------------------------------------------------------------------- */

trek_status trek_comm_nccl_register(trek_comm *comm, void *data, size_t bytes)
{
    struct trek_comm_nccl *part = comm->nccl;
    if (!part || !bytes)
        return TREK_OK;
    trek_status status = trek_array_grow(&part->buffers, &part->cap_buffers, part->n_buffers + 1, sizeof *part->buffers);
    void *handle = NULL;
    if (status == TREK_OK)
        status = part->library->register_buffer(part->rank, data, bytes, &handle);
    if (status == TREK_OK && handle)
        part->buffers[part->n_buffers++] = (buffer){ data, handle };
    return status;
}

void trek_comm_nccl_forget(trek_comm *comm, void *data)
{
    struct trek_comm_nccl *part = comm->nccl;
    for (int k = 0; part && k < part->n_buffers; k++) {
        if (part->buffers[k].data != data)
            continue;
        part->library->deregister_buffer(part->rank, part->buffers[k].handle);
        part->buffers[k--] = part->buffers[--part->n_buffers];
    }
}

static void abort_group(nccl_group *group, const trek_device_comm *library)
{
    trek_lock_acquire(&group->lock);
    for (int r = 0; r < group->n; r++)
        library->abort(group->ranks[r]);
    trek_lock_release(&group->lock);
}

static void abort_all(trek_comm *comm) { abort_group(comm->nccl->group, comm->nccl->library); }

static const trek_comm_device_engine nccl_engine = { .takes = takes, .start = start, .wait = wait_started, .settle = settle,
                                                     .abort = abort_all, .detach = detach };
