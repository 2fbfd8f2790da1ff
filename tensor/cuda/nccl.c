/* SPDX-License-Identifier: Apache-2.0 */
/* NCCL behind the table of tensor/device_comm.h, opened at run time (library.h).
 *
 * Communicators do not block: NCCL's calls return at once, and are then asked whether they have ended, so that a
 * deadline or an abort from another thread can end the waiting. A communicator's lock is held only for single calls. */
#include "tensor/device_comm.h"
#include "tensor/thread_start.h"

#include "tensor/cuda/capture.h"
#include "tensor/cuda/gate.h"
#include "tensor/cuda/library.h"

#include <stdio.h>

#if defined(TREK_NO_NCCL) || !__has_include(<nccl.h>)

const trek_device_comm *trek_cuda_nccl(void) { return NULL; }
void trek_cuda_nccl_version(char *text, size_t size) { snprintf(text, size, "no NCCL: this libtrek-cuda was built without it"); }
trek_status trek_cuda_nccl_replay_begin(trek_device_rank *rank) { return rank ? TREK_OK : TREK_ERR_COMM; }
void trek_cuda_nccl_replay_end(trek_device_rank *rank, bool given) { (void)rank, (void)given; }

#else

#include <dlfcn.h>
#include <nccl.h>
#include <pthread.h>
#include <sched.h>
#include <string.h>
#include <time.h>

/* --- the library ---------------------------------------------------------------------- */

/* X(name): the functions needed of the library. */
#define NCCL_FUNCTIONS(X)                                                                                               \
    X(GetVersion) X(GetUniqueId) X(CommInitRankConfig) X(CommFinalize) X(CommDestroy) X(CommAbort) X(CommGetAsyncError) \
    X(GetErrorString) X(GetLastError) X(GroupStart) X(GroupEnd) X(AllReduce) X(Reduce) X(Broadcast) X(AllGather) X(ReduceScatter)
/* Newer than the others; NULL if the library lacks them. */
#define NCCL_OPTIONAL_FUNCTIONS(X) X(CommRegister) X(CommDeregister)

#define NCCL_DECLARE(name) __typeof__(nccl##name) *name;
static struct library {
    void *handle;
    int version;
    char why[300]; /* why it cannot be used */
    NCCL_FUNCTIONS(NCCL_DECLARE)
    NCCL_OPTIONAL_FUNCTIONS(NCCL_DECLARE)
} nccl;
#undef NCCL_DECLARE

static bool fill_table(void)
{
#define NCCL_LOOK_UP(name)                                                       \
    if (!trek_cuda_find_function(nccl.handle, "nccl" #name, &nccl.name)) {        \
        snprintf(nccl.why, sizeof nccl.why, "NCCL lacks the function nccl" #name); \
        return false;                                                            \
    }
    NCCL_FUNCTIONS(NCCL_LOOK_UP)
#undef NCCL_LOOK_UP
#define NCCL_LOOK_FOR(name) trek_cuda_find_function(nccl.handle, "nccl" #name, &nccl.name);
    NCCL_OPTIONAL_FUNCTIONS(NCCL_LOOK_FOR)
#undef NCCL_LOOK_FOR
    return true;
}

static void open_library(void)
{
    static const char *const names[] = { "libnccl.so.2", NULL };
    char why[sizeof nccl.why - 32];
    nccl.handle = trek_cuda_open_library("TREK_NCCL_LIBRARY", names, why, sizeof why);
    if (!nccl.handle) {
        snprintf(nccl.why, sizeof nccl.why, "NCCL cannot be opened: %s", why);
        return;
    }
    if (fill_table() && nccl.GetVersion(&nccl.version) == ncclSuccess && nccl.version >= 21400)
        return;
    if (!nccl.why[0])
        snprintf(nccl.why, sizeof nccl.why, "NCCL is of version %d; 2.14 is the first whose communicators need not block",
                 nccl.version);
    dlclose(nccl.handle);
    nccl.handle = NULL;
}

static bool available(char *why, size_t size)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, open_library);
    if (why && nccl.handle)
        snprintf(why, size, "NCCL %d.%d.%d", nccl.version / 10000, nccl.version / 100 % 100, nccl.version % 100);
    else if (why)
        snprintf(why, size, "%s", nccl.why);
    return nccl.handle != NULL;
}

void trek_cuda_nccl_version(char *text, size_t size)
{
    char found[sizeof nccl.why];
    bool there = available(found, sizeof found);
    snprintf(text, size, "%s%s", there ? "" : "no NCCL: ", found);
}

static trek_status need_library(void)
{
    return available(NULL, 0) ? TREK_OK : trek_fail(TREK_ERR_COMM, "%s", nccl.why);
}

/* --- ranks ------------------------------------------------------------------------------ */

enum { ABORT_SECONDS = 1 }; /* how long an abort waits for a running call of NCCL, which takes microseconds */

struct trek_device_rank {
    trek_device device;
    int64_t timeout_ns;
    bool (*cancelled)(void *arg); /* asked while it is being made; may be NULL */
    void *cancelled_arg;
    pthread_mutex_t lock; /* guards comm and NCCL's calls with it */
    ncclComm_t comm;      /* NULL: not made, or aborted */
    bool aborted;         /* atomic: set before the lock is taken for it */
    trek_cuda_gate *gate; /* of all ranks of its group in this process; NULL: it is the only one */
    int place;            /* among them */
};

static bool is_aborted(const trek_device_rank *rank) { return __atomic_load_n(&rank->aborted, __ATOMIC_ACQUIRE); }

/* Returns its communicator; NULL: it was aborted. An abort also takes it away if the lock is held for too long. */
static ncclComm_t live(const trek_device_rank *rank)
{
    return is_aborted(rank) ? NULL : __atomic_load_n(&rank->comm, __ATOMIC_ACQUIRE);
}

static int64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static trek_status fail_aborted(const char *what)
{
    return trek_fail(TREK_ERR_CANCELLED, "%s: the communicator was aborted", what);
}

/* Called with the lock held, if there is a communicator. */
static trek_status fail_nccl(const trek_device_rank *rank, const char *what, ncclResult_t result)
{
    ncclComm_t comm = rank ? live(rank) : NULL;
    const char *text = nccl.GetErrorString(result), *last = comm ? nccl.GetLastError(comm) : NULL;
    return trek_fail(TREK_ERR_COMM, "%s: NCCL: %s%s%s", what, text ? text : "?", last && *last ? "; " : "", last ? last : "");
}

/* Waits until what was begun with the communicator has ended. */
static trek_status settle(trek_device_rank *rank, const char *what)
{
    int64_t start = now_ns();
    for (;;) {
        ncclResult_t state = ncclSuccess;
        pthread_mutex_lock(&rank->lock);
        ncclComm_t comm = live(rank);
        ncclResult_t asked = comm ? nccl.CommGetAsyncError(comm, &state) : ncclSuccess;
        bool aborted = is_aborted(rank);
        trek_status status = TREK_OK;
        if (!aborted && (asked != ncclSuccess || (state != ncclSuccess && state != ncclInProgress)))
            status = fail_nccl(rank, what, asked != ncclSuccess ? asked : state);
        pthread_mutex_unlock(&rank->lock);
        if (aborted)
            return fail_aborted(what);
        if (status != TREK_OK || state == ncclSuccess)
            return status;
        if (rank->cancelled && rank->cancelled(rank->cancelled_arg))
            return fail_aborted(what);
        if (rank->timeout_ns && now_ns() - start > rank->timeout_ns)
            return trek_fail(TREK_ERR_TIMEOUT, "%s: NCCL has not finished within %g s", what, (double)rank->timeout_ns * 1e-9);
        sched_yield();
    }
}

/* How long to wait for what NCCL has begun. */
typedef struct patience {
    int64_t timeout_ns;
    bool (*cancelled)(void *arg);
    void *arg;
} patience;

static trek_device_rank *new_rank(trek_device device, patience wait)
{
    trek_device_rank *rank = trek_calloc(1, sizeof *rank);
    if (!rank)
        return NULL;
    rank->device = device;
    rank->timeout_ns = wait.timeout_ns;
    rank->cancelled = wait.cancelled;
    rank->cancelled_arg = wait.arg;
    pthread_mutex_init(&rank->lock, NULL);
    return rank;
}

/* It does not wait for a call that NCCL does not return from, because the abort is what ends it. */
static void abort_rank(trek_device_rank *rank)
{
    struct timespec until;
    bool before = __atomic_exchange_n(&rank->aborted, true, __ATOMIC_ACQ_REL);
    trek_cuda_gate_open(rank->gate);
    if (before)
        return;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += ABORT_SECONDS;
    bool locked = trek_mutex_lock_until(&rank->lock, &until) == 0;
    ncclComm_t comm = __atomic_exchange_n(&rank->comm, NULL, __ATOMIC_ACQ_REL);
    if (comm)
        nccl.CommAbort(comm);
    if (locked)
        pthread_mutex_unlock(&rank->lock);
}

/* All together, because NCCL may let the ranks of a process wait for each other. */
static void free_ranks(trek_device_rank **ranks, int n)
{
    for (int r = 0; r < n; r++)
        if (ranks[r] && !is_aborted(ranks[r]) && trek_cuda_queue_here(ranks[r]->device.index))
            nccl.CommFinalize(ranks[r]->comm);
    trek_status before = trek_error_status();
    trek_cuda_gate *gate = NULL;
    for (int r = 0; r < n; r++)
        if (ranks[r] && !is_aborted(ranks[r]) && settle(ranks[r], "the end of a group") != TREK_OK)
            abort_rank(ranks[r]);
    if (before == TREK_OK)
        trek_error_clear(); /* a communicator that cannot end in order has been aborted */
    for (int r = 0; r < n; r++) {
        if (!ranks[r])
            continue;
        if (ranks[r]->comm && trek_cuda_queue_here(ranks[r]->device.index))
            nccl.CommDestroy(ranks[r]->comm);
        gate = ranks[r]->gate;
        pthread_mutex_destroy(&ranks[r]->lock);
        trek_free(ranks[r]);
        ranks[r] = NULL;
    }
    trek_cuda_gate_free(gate);
}

static ncclConfig_t config(void)
{
    ncclConfig_t c = NCCL_CONFIG_INITIALIZER;
    c.blocking = 0;
    return c;
}

static bool went(ncclResult_t result) { return result == ncclSuccess || result == ncclInProgress; }

/* Frees the ranks' communicators if not all could be made. */
static void drop_ranks(trek_device_rank **ranks, int n)
{
    for (int r = 0; r < n; r++)
        if (ranks[r])
            abort_rank(ranks[r]);
    free_ranks(ranks, n);
}

static trek_status init_ranks(const ncclUniqueId *id, int first, int world, trek_device_rank **ranks, int n)
{
    ncclConfig_t c = config();
    ncclResult_t result = nccl.GroupStart(), ended;
    trek_status status = went(result) ? TREK_OK : fail_nccl(NULL, "ncclGroupStart", result);
    if (status != TREK_OK)
        return status;
    for (int r = 0; r < n && status == TREK_OK; r++) {
        if (!trek_cuda_queue_here(ranks[r]->device.index))
            status = trek_error_status();
        else if (!went(result = nccl.CommInitRankConfig(&ranks[r]->comm, world, *id, first + r, &c)))
            status = fail_nccl(NULL, "ncclCommInitRankConfig", result);
    }
    if (!went(ended = nccl.GroupEnd()) && status == TREK_OK)
        status = fail_nccl(NULL, "ncclCommInitRankConfig", ended);
    for (int r = 0; r < n && status == TREK_OK; r++)
        status = ranks[r]->comm ? settle(ranks[r], "ncclCommInitRankConfig")
                                : trek_fail(TREK_ERR_COMM, "ncclCommInitRankConfig: no communicator was made");
    return status;
}

static trek_status init_group(const ncclUniqueId *id, int first, int world, const trek_device *devices, int n, patience wait,
                              trek_device_rank **ranks)
{
    trek_status status = TREK_OK;
    for (int r = 0; r < n; r++)
        ranks[r] = NULL;
    for (int r = 0; r < n && status == TREK_OK; r++)
        if (!(ranks[r] = new_rank(devices[r], wait)))
            status = trek_error_status();
    trek_cuda_gate *gate = status == TREK_OK && n > 1 ? trek_cuda_gate_new(n) : NULL;
    if (status == TREK_OK && n > 1 && !gate)
        status = trek_error_status();
    for (int r = 0; r < n && gate; r++) {
        ranks[r]->gate = gate;
        ranks[r]->place = r;
    }
    if (status == TREK_OK)
        status = init_ranks(id, first, world, ranks, n);
    if (status != TREK_OK)
        drop_ranks(ranks, n);
    for (int r = 0; r < n && status == TREK_OK; r++)
        ranks[r]->cancelled = NULL;
    return status;
}

static trek_status new_id(ncclUniqueId *id)
{
    trek_status status = need_library();
    if (status != TREK_OK)
        return status;
    ncclResult_t result = nccl.GetUniqueId(id);
    return result == ncclSuccess ? TREK_OK : fail_nccl(NULL, "ncclGetUniqueId", result);
}

static trek_status init_all(const trek_device *devices, int n, int64_t timeout_ns, trek_device_rank **ranks)
{
    ncclUniqueId id;
    trek_status status = new_id(&id);
    return status == TREK_OK ? init_group(&id, 0, n, devices, n, (patience){ timeout_ns, NULL, NULL }, ranks) : status;
}

_Static_assert(sizeof(ncclUniqueId) == sizeof(trek_device_comm_id), "NCCL's id");

static trek_status make_id(trek_device_comm_id *id)
{
    ncclUniqueId own;
    trek_status status = new_id(&own);
    if (status == TREK_OK)
        memcpy(id, &own, sizeof own);
    return status;
}

static trek_status init_one(trek_device device, const trek_device_comm_id *id, int rank, int world, int64_t timeout_ns,
                            bool (*cancelled)(void *arg), void *arg, trek_device_rank **result)
{
    ncclUniqueId own;
    trek_status status = need_library();
    memcpy(&own, id, sizeof own);
    return status == TREK_OK ? init_group(&own, rank, world, &device, 1, (patience){ timeout_ns, cancelled, arg }, result)
        : status;
}

/* --- collectives -------------------------------------------------------------------------- */

enum { ALL_REDUCE, REDUCE, BROADCAST, ALL_GATHER, REDUCE_SCATTER };

typedef struct collective {
    int kind;
    const char *name;
    const void *in;
    void *out;
    int64_t count;
    trek_dtype dtype;
    trek_device_reduce op;
    int root;
} collective;

static ncclDataType_t type_of(trek_dtype dtype)
{
    static const ncclDataType_t types[TREK_DTYPE_COUNT] = { [TREK_F32] = ncclFloat32,  [TREK_F64] = ncclFloat64,
                                                            [TREK_BF16] = ncclBfloat16,
                                                            [TREK_F16] = ncclFloat16,  [TREK_I64] = ncclInt64,
                                                            [TREK_I32] = ncclInt32,
                                                            [TREK_U8] = ncclUint8,     [TREK_BOOL] = ncclUint8 };
    return types[dtype];
}

static ncclRedOp_t reduction(trek_device_reduce op)
{
    static const ncclRedOp_t ops[] = { [TREK_DEVICE_SUM] = ncclSum, [TREK_DEVICE_PROD] = ncclProd, [TREK_DEVICE_MAX] = ncclMax,
                                       [TREK_DEVICE_MIN] = ncclMin };
    return ops[op];
}

/* NCCL rounds 16-bit sums at every rank, and its MAX and MIN lose NaN. */
static bool combines(trek_dtype dtype, trek_device_reduce op)
{
    if (trek_dtype_is_16bit(dtype))
        return false;
    return (dtype != TREK_F32 && dtype != TREK_F64) || op == TREK_DEVICE_SUM || op == TREK_DEVICE_PROD;
}

static ncclResult_t begin(ncclComm_t comm, const collective *c, cudaStream_t stream)
{
    size_t count = (size_t)c->count;
    ncclDataType_t type = type_of(c->dtype);
    switch (c->kind) {
    case ALL_REDUCE:
        return nccl.AllReduce(c->in, c->out, count, type, reduction(c->op), comm, stream);
    case REDUCE:
        return nccl.Reduce(c->in, c->out, count, type, reduction(c->op), c->root, comm, stream);
    case BROADCAST:
        return nccl.Broadcast(c->in, c->out, count, type, c->root, comm, stream);
    case ALL_GATHER:
        return nccl.AllGather(c->in, c->out, count, type, comm, stream);
    default:
        return nccl.ReduceScatter(c->in, c->out, count, type, reduction(c->op), comm, stream);
    }
}

/* The work is on the stream only after the communicator has completed the call. */
static trek_status run(trek_device_rank *rank, const collective *c, trek_device_stream *stream)
{
    if (c->count == 0)
        return TREK_OK;
    trek_cuda_queue *queue = trek_cuda_queue_here(rank->device.index);
    if (!queue)
        return trek_error_status();
    trek_cuda_gate_begin(rank->gate, rank->place);
    pthread_mutex_lock(&rank->lock);
    ncclComm_t comm = live(rank);
    ncclResult_t result = comm ? begin(comm, c, trek_cuda_stream_of(queue, stream)) : ncclSuccess;
    bool aborted = is_aborted(rank); /* meanwhile, too */
    trek_status status = aborted || went(result) ? TREK_OK : fail_nccl(rank, c->name, result);
    pthread_mutex_unlock(&rank->lock);
    if (aborted)
        return fail_aborted(c->name);
    if (status == TREK_OK && result == ncclInProgress)
        status = settle(rank, c->name);
    if (status == TREK_OK && queue->capture)
        trek_cuda_capture_meets(queue->capture, rank);
    if (status == TREK_OK)
        trek_cuda_gate_end(rank->gate, rank->place);
    else
        trek_cuda_gate_open(rank->gate);
    return status;
}

static trek_status all_reduce(trek_device_rank *rank, const void *in, void *out, int64_t count, trek_dtype dtype,
                              trek_device_reduce op, trek_device_stream *stream)
{
    return run(rank, &(collective){ ALL_REDUCE, "ncclAllReduce", in, out, count, dtype, op, 0 }, stream);
}

static trek_status reduce(trek_device_rank *rank, const void *in, void *out, int64_t count, trek_dtype dtype,
                          trek_device_reduce op, int root, trek_device_stream *stream)
{
    return run(rank, &(collective){ REDUCE, "ncclReduce", in, out, count, dtype, op, root }, stream);
}

static trek_status broadcast(trek_device_rank *rank, const void *in, void *out, int64_t count, trek_dtype dtype, int root,
                             trek_device_stream *stream)
{
    return run(rank, &(collective){ BROADCAST, "ncclBroadcast", in, out, count, dtype, TREK_DEVICE_SUM, root }, stream);
}

static trek_status all_gather(trek_device_rank *rank, const void *in, void *out, int64_t count, trek_dtype dtype,
                              trek_device_stream *stream)
{
    return run(rank, &(collective){ ALL_GATHER, "ncclAllGather", in, out, count, dtype, TREK_DEVICE_SUM, 0 }, stream);
}

static trek_status reduce_scatter(trek_device_rank *rank, const void *in, void *out, int64_t count, trek_dtype dtype,
                                  trek_device_reduce op, trek_device_stream *stream)
{
    return run(rank, &(collective){ REDUCE_SCATTER, "ncclReduceScatter", in, out, count, dtype, op, 0 }, stream);
}

/* --- buffers, errors ------------------------------------------------------------------------ */

static trek_status register_buffer(trek_device_rank *rank, void *data, size_t bytes, void **handle)
{
    *handle = NULL;
    if (!nccl.CommRegister || !nccl.CommDeregister || bytes == 0)
        return TREK_OK;
    if (!trek_cuda_queue_here(rank->device.index))
        return trek_error_status();
    pthread_mutex_lock(&rank->lock);
    ncclComm_t comm = live(rank);
    ncclResult_t result = comm ? nccl.CommRegister(comm, data, bytes, handle) : ncclSuccess;
    trek_status status = went(result) ? TREK_OK : fail_nccl(rank, "ncclCommRegister", result);
    pthread_mutex_unlock(&rank->lock);
    return status == TREK_OK && result == ncclInProgress ? settle(rank, "ncclCommRegister") : status;
}

static trek_status deregister_buffer(trek_device_rank *rank, void *handle)
{
    if (!handle)
        return TREK_OK;
    pthread_mutex_lock(&rank->lock);
    ncclComm_t comm = live(rank);
    ncclResult_t result = comm ? nccl.CommDeregister(comm, handle) : ncclSuccess;
    trek_status status = went(result) ? TREK_OK : fail_nccl(rank, "ncclCommDeregister", result);
    pthread_mutex_unlock(&rank->lock);
    return status;
}

static trek_status async_error(trek_device_rank *rank)
{
    ncclResult_t state = ncclSuccess;
    pthread_mutex_lock(&rank->lock);
    ncclComm_t comm = live(rank);
    bool aborted = !comm;
    ncclResult_t asked = comm ? nccl.CommGetAsyncError(comm, &state) : ncclSuccess;
    trek_status status = TREK_OK;
    if (asked != ncclSuccess || !went(state))
        status = fail_nccl(rank, "communication", asked != ncclSuccess ? asked : state);
    pthread_mutex_unlock(&rank->lock);
    return aborted ? fail_aborted("communication") : status;
}

/* --- replays --------------------------------------------------------------------------------- */

trek_status trek_cuda_nccl_replay_begin(trek_device_rank *rank)
{
    trek_status status = async_error(rank);
    if (status == TREK_OK)
        trek_cuda_gate_begin(rank->gate, rank->place);
    return status;
}

void trek_cuda_nccl_replay_end(trek_device_rank *rank, bool given)
{
    if (given)
        trek_cuda_gate_end(rank->gate, rank->place);
    else
        trek_cuda_gate_open(rank->gate);
}

const trek_device_comm *trek_cuda_nccl(void)
{
    static const trek_device_comm table = {
        .name = "nccl", .available = available, .init_all = init_all, .make_id = make_id, .init_one = init_one,
            .combines = combines,
        .all_reduce = all_reduce, .reduce = reduce, .broadcast = broadcast, .all_gather = all_gather,
        .reduce_scatter = reduce_scatter,
        .register_buffer = register_buffer, .deregister_buffer = deregister_buffer, .async_error = async_error,
        .abort = abort_rank, .free = free_ranks,
        .capture_pause = trek_cuda_capture_pause, .capture_resume = trek_cuda_capture_resume,
        .capture_has = trek_cuda_capture_has, .capture_replay = trek_cuda_capture_replay_piece,
    };
    return &table;
}

#endif
