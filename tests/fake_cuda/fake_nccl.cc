/* SPDX-License-Identifier: Apache-2.0 */
/* The fake NCCL's interface. A communicator that does not block answers "in progress"
 * to every second call, and then puts the work on the stream only when it is asked
 * for its state the second time: who records an event too early has recorded nothing.
 * Failures asked for with TREK_FAKE_FAIL hit the functions here too; the function
 * "ncclAsync" is an error that a rank meets while its n-th piece of work runs, and
 * "ncclHang" a call that does not come back before the communicator is aborted. */
#include "fake_nccl.h"

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <sys/socket.h>
#include <unistd.h>

struct ncclComm {
    unsigned magic;
    std::shared_ptr<fake::Rank> rank;
};

namespace fake {

enum { MAGIC_COMM = 0x4e43, POLLS = 2 };

struct Worlds {
    std::mutex mutex;
    std::map<std::string, std::shared_ptr<World>> by_id; /* until all ranks have come */
    std::atomic<unsigned long> made{0};
};
static Worlds &worlds()
{
    static Worlds *w = new Worlds;
    return *w;
}

struct Grouped {
    ncclComm *comm;
    Call call;
    cudaStream_t stream;
};
struct Joining {
    ncclComm_t *to;
    ncclComm *comm;
};
static thread_local int group_depth;
static thread_local std::vector<Grouped> grouped;
static thread_local std::vector<Joining> joining;

static bool refused_now(const char *function, ncclResult_t *result)
{
    cudaError_t error;
    if (!fails_now(function, &error))
        return false;
    *result = error < cudaErrorStartupFailure && (int)error < ncclNumResults && error != cudaErrorMemoryAllocation
                  ? (ncclResult_t)error
                  : ncclSystemError;
    return true;
}

static bool good(const ncclComm *comm) { return comm && comm->magic == MAGIC_COMM; }

static ncclResult_t wrong_locked(Rank &rank, ncclResult_t result, const char *why)
{
    rank.last_error = why;
    return result;
}

static ncclResult_t wrong(Rank &rank, ncclResult_t result, const char *why)
{
    std::lock_guard<std::mutex> lock(rank.world->mutex);
    return wrong_locked(rank, result, why);
}

/* -- ranks come together -- */

static std::shared_ptr<World> world_of(const ncclUniqueId &id, int size)
{
    Worlds &all = worlds();
    std::lock_guard<std::mutex> lock(all.mutex);
    std::shared_ptr<World> &world = all.by_id[std::string(id.internal, sizeof id.internal)];
    if (!world) {
        world = std::make_shared<World>();
        world->size = size;
        world->ranks.resize((size_t)size);
        world->here.resize((size_t)size);
    }
    return world;
}

static void forget_world(const World *world)
{
    Worlds &all = worlds();
    std::lock_guard<std::mutex> lock(all.mutex);
    for (auto at = all.by_id.begin(); at != all.by_id.end(); ++at)
        if (at->second.get() == world) {
            all.by_id.erase(at);
            return;
        }
}

/* All are there: the same device twice is refused, to every rank. */
static void all_joined(World &w)
{
    std::vector<std::shared_ptr<Rank>> present;
    for (auto &place : w.ranks)
        if (auto rank = place.lock())
            present.push_back(rank);
    for (size_t a = 0; a < present.size(); a++)
        for (size_t b = 0; b < a; b++)
            if (present[a]->device == present[b]->device)
                w.error = ncclInvalidUsage;
    for (auto &rank : present)
        if (w.error != ncclSuccess) {
            rank->error = w.error;
            rank->last_error = "the same GPU is there twice";
        }
    w.changed.notify_all();
}

std::shared_ptr<Rank> new_rank(const std::shared_ptr<World> &world, int index, int device, bool blocking)
{
    auto rank = std::make_shared<Rank>();
    rank->world = world;
    rank->rank = index;
    rank->device = device;
    rank->blocking = blocking;
    rank->polls = blocking ? 0 : POLLS;
    return rank;
}

/* nullptr: no such place in it. */
std::shared_ptr<Rank> join_world(const ncclUniqueId &id, int size, int index, int device, bool blocking, ncclResult_t *result)
{
    std::shared_ptr<World> world = world_of(id, size);
    std::shared_ptr<Rank> rank = new_rank(world, index, device, blocking);
    bool complete;
    {
        std::lock_guard<std::mutex> lock(world->mutex);
        if (world->size != size || world->here[(size_t)index]) {
            *result = ncclInvalidArgument;
            return nullptr;
        }
        world->ranks[(size_t)index] = rank;
        world->here[(size_t)index] = true;
        complete = ++world->joined == world->size;
        if (complete)
            all_joined(*world);
    }
    if (complete)
        forget_world(world.get());
    return rank;
}

static ncclResult_t wait_joined(Rank &rank)
{
    World &w = *rank.world;
    std::unique_lock<std::mutex> lock(w.mutex);
    w.changed.wait(lock, [&w] { return w.joined == w.size; });
    return rank.error;
}

/* -- work -- */

static void ended(const std::shared_ptr<Rank> &rank)
{
    std::lock_guard<std::mutex> lock(rank->world->mutex);
    rank->outstanding--;
    rank->world->changed.notify_all();
}

/* One task for all sends and receives, one for each collective. */
static ncclResult_t enqueue(const std::shared_ptr<Rank> &rank, const Rank::Pending &work)
{
    cudaStreamCaptureStatus capturing = cudaStreamCaptureStatusNone;
    cudaStreamIsCapturing(work.stream, &capturing);
    bool counted = capturing == cudaStreamCaptureStatusNone;
    std::vector<Call> letters;
    std::vector<std::function<void()>> tasks;
    for (const Call &call : work.calls)
        if (call.what == What::send || call.what == What::receive)
            letters.push_back(call);
        else
            tasks.push_back([rank, call] { run_collective(rank, call); });
    if (!letters.empty())
        tasks.push_back([rank, letters] { run_letters(rank, letters); });
    for (auto &task : tasks) {
        if (counted) {
            std::lock_guard<std::mutex> lock(rank->world->mutex);
            rank->outstanding++;
        }
        cudaError_t error = trek_shim_enqueue(work.stream, "nccl", [rank, task, counted] {
            task();
            if (counted)
                ended(rank);
        });
        if (error != cudaSuccess) {
            if (counted)
                ended(rank);
            return ncclUnhandledCudaError;
        }
    }
    return ncclSuccess;
}

static ncclResult_t check_call(Rank &rank, const Call &c, cudaStream_t stream)
{
    World &w = *rank.world;
    Block block;
    int device = -1;
    {
        std::lock_guard<std::mutex> lock(w.mutex);
        if (rank.polls > 0 || !rank.pending.empty() || w.joined < w.size)
            return wrong_locked(rank, ncclInvalidArgument, "the communicator is used before its last call was through");
        if (rank.error != ncclSuccess)
            return rank.error;
        if (rank.finalized)
            return wrong_locked(rank, ncclInvalidUsage, "the communicator is finalized");
    }
    if (c.root < 0 || c.root >= w.size || (int)c.type < 0 || c.type > ncclBfloat16 || (int)c.op < 0 || c.op >= ncclNumOps)
        return wrong(rank, ncclInvalidArgument, "root, type or operation out of range");
    size_t in = elements_in(c, w.size, rank.rank) * size_of(c.type), out = elements_out(c, w.size, rank.rank) * size_of(c.type);
    if ((in && where(c.in, in, &block) <= 0) || (out && where(c.out, out, &block) <= 0))
        return wrong(rank, ncclInvalidArgument, "a buffer is not in device memory");
    if (cudaStreamGetDevice(stream, &device) != cudaSuccess)
        return ncclUnhandledCudaError;
    if (stream && device != rank.device)
        return wrong(rank, ncclInvalidUsage, "the stream belongs to another device");
    return ncclSuccess;
}

/* Now, or when the state is asked for. */
static ncclResult_t start(const std::shared_ptr<Rank> &rank, Rank::Pending work)
{
    {
        std::lock_guard<std::mutex> lock(rank->world->mutex);
        if (!rank->blocking && rank->begun++ % 2 == 0) {
            rank->polls = POLLS;
            rank->pending.push_back(std::move(work));
            return ncclInProgress;
        }
    }
    return enqueue(rank, work);
}

/* Like a library that waits for the network: until another thread aborts the communicator, which is gone then. */
static ncclResult_t hang(std::shared_ptr<Rank> rank)
{
    std::unique_lock<std::mutex> lock(rank->world->mutex);
    wait_for(lock, *rank, [] { return false; });
    return ncclRemoteError;
}

static ncclResult_t submit_call(const char *function, ncclComm_t comm, const Call &call, cudaStream_t stream)
{
    ncclResult_t result;
    if (!good(comm))
        return ncclInvalidArgument;
    if (refused_now(function, &result))
        return wrong(*comm->rank, result, "a failure that was asked for");
    if (refused_now("ncclHang", &result))
        return hang(comm->rank);
    result = check_call(*comm->rank, call, stream);
    if (result != ncclSuccess)
        return result;
    if (comm->rank->world->link >= 0 && (call.what == What::send || call.what == What::receive))
        return wrong(*comm->rank, ncclInvalidUsage, "the fake sends nothing from rank to rank between processes");
    if (call.count == 0)
        return ncclSuccess;
    if (group_depth > 0) {
        grouped.push_back({comm, call, stream});
        return ncclSuccess;
    }
    return start(comm->rank, {{call}, stream});
}

static ncclResult_t finish_joining()
{
    ncclResult_t result = ncclSuccess;
    std::vector<Joining> list;
    list.swap(joining);
    for (const Joining &j : list)
        *j.to = j.comm;
    for (const Joining &j : list) {
        ncclResult_t one = j.comm->rank->blocking ? wait_joined(*j.comm->rank) : ncclInProgress;
        result = one == ncclSuccess ? result : one;
    }
    return result;
}

static ncclResult_t finish_group()
{
    ncclResult_t result = finish_joining();
    std::vector<Grouped> list;
    list.swap(grouped);
    std::vector<std::pair<ncclComm *, Rank::Pending>> works; /* by communicator and stream, in order of first call */
    for (const Grouped &g : list) {
        auto at = works.begin();
        while (at != works.end() && !(at->first == g.comm && at->second.stream == g.stream))
            ++at;
        if (at == works.end())
            at = works.insert(at, {g.comm, {{}, g.stream}});
        at->second.calls.push_back(g.call);
    }
    for (auto &work : works) {
        ncclResult_t one = start(work.first->rank, std::move(work.second));
        result = one == ncclSuccess || result > ncclSuccess ? result : one;
    }
    return result;
}

/* Until what is on streams has ended; false: aborted. */
static void wait_idle(Rank &rank)
{
    std::unique_lock<std::mutex> lock(rank.world->mutex);
    rank.world->changed.wait(lock, [&rank] { return rank.outstanding == 0 || rank.aborted; });
}

/* Until all have what their ranks came to here: this process may end next. */
static void wait_told(World &w)
{
    std::unique_lock<std::mutex> lock(w.mutex);
    w.changed.wait(lock, [&w] {
        for (auto &place : w.ranks)
            if (auto rank = place.lock(); rank && rank->owed)
                return false;
        return true;
    });
}

} // namespace fake

using namespace fake;

extern "C" {

ncclResult_t ncclGetVersion(int *version)
{
    *version = NCCL_VERSION_CODE;
    return ncclSuccess;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId *id)
{
    ncclResult_t result;
    if (refused_now(__func__, &result))
        return result;
    if (!listen_for_ranks())
        return ncclSystemError;
    memset(id, 0, sizeof *id);
    snprintf(id->internal, sizeof id->internal, "fake nccl %d %lu", (int)getpid(), ++worlds().made);
    return ncclSuccess;
}

const char *ncclGetErrorString(ncclResult_t result)
{
    static const char *const texts[] = {"no error", "unhandled cuda error", "unhandled system error", "internal error",
                                        "invalid argument", "invalid usage", "remote process exited or there was a network error",
                                        "NCCL operation in progress"};
    return (int)result >= 0 && result < ncclNumResults ? texts[result] : "unknown result code";
}

const char *ncclGetLastError(ncclComm_t comm)
{
    static thread_local std::string text;
    if (!good(comm))
        return "";
    std::lock_guard<std::mutex> lock(comm->rank->world->mutex);
    text = comm->rank->last_error;
    return text.c_str();
}

/* -- life -- */

ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int ranks, ncclUniqueId id, int rank, ncclConfig_t *config)
{
    ncclResult_t result;
    int device = 0;
    if (!comm || ranks < 1 || rank < 0 || rank >= ranks || (config && config->magic != NCCL_CONFIG_MAGIC))
        return ncclInvalidArgument;
    *comm = nullptr;
    if (refused_now(__func__, &result))
        return result;
    if (cudaGetDevice(&device) != cudaSuccess)
        return ncclUnhandledCudaError;
    bool blocking = !config || config->blocking == NCCL_CONFIG_UNDEF_INT || config->blocking != 0;
    auto join = is_elsewhere(id) ? join_elsewhere : join_world;
    std::shared_ptr<Rank> made = join(id, ranks, rank, device, blocking, &result);
    if (!made)
        return result;
    joining.push_back({comm, new ncclComm{MAGIC_COMM, made}});
    return group_depth > 0 ? ncclSuccess : finish_joining();
}

ncclResult_t ncclCommInitRank(ncclComm_t *comm, int ranks, ncclUniqueId id, int rank)
{
    return ncclCommInitRankConfig(comm, ranks, id, rank, nullptr);
}

ncclResult_t ncclCommInitAll(ncclComm_t *comms, int count, const int *devices)
{
    int before = 0;
    ncclUniqueId id;
    ncclResult_t result = ncclGetUniqueId(&id);
    if (result != ncclSuccess || cudaGetDevice(&before) != cudaSuccess)
        return result != ncclSuccess ? result : ncclUnhandledCudaError;
    ncclGroupStart();
    for (int r = 0; r < count && result == ncclSuccess; r++) {
        if (cudaSetDevice(devices ? devices[r] : r) != cudaSuccess)
            result = ncclUnhandledCudaError;
        else
            result = ncclCommInitRank(&comms[r], count, id, r);
    }
    ncclResult_t end = ncclGroupEnd();
    cudaSetDevice(before);
    return result != ncclSuccess ? result : end;
}

ncclResult_t ncclCommFinalize(ncclComm_t comm)
{
    if (!good(comm))
        return ncclInvalidArgument;
    Rank &rank = *comm->rank;
    {
        std::lock_guard<std::mutex> lock(rank.world->mutex);
        if (rank.finalized)
            return wrong_locked(rank, ncclInvalidArgument, "finalized twice");
        rank.finalized = true;
        if (!rank.blocking) {
            rank.polls = POLLS;
            return ncclInProgress;
        }
    }
    wait_idle(rank);
    return ncclSuccess;
}

ncclResult_t ncclCommDestroy(ncclComm_t comm)
{
    if (!comm)
        return ncclSuccess;
    if (!good(comm))
        return ncclInvalidArgument;
    wait_idle(*comm->rank);
    wait_told(*comm->rank->world);
    comm->magic = 0;
    delete comm;
    return ncclSuccess;
}

/* Lets go of whatever streams wait for in this communicator, and of it. */
ncclResult_t ncclCommAbort(ncclComm_t comm)
{
    if (!comm)
        return ncclSuccess;
    if (!good(comm))
        return ncclInvalidArgument;
    World &w = *comm->rank->world;
    bool incomplete;
    {
        std::lock_guard<std::mutex> lock(w.mutex);
        comm->rank->aborted = true;
        comm->rank->pending.clear();
        if (w.link >= 0)
            shutdown(w.link, SHUT_RDWR);
        incomplete = w.joined < w.size;
        w.changed.notify_all();
    }
    if (incomplete)
        forget_world(&w);
    comm->magic = 0;
    delete comm;
    return ncclSuccess;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *error)
{
    if (!good(comm))
        return ncclInvalidArgument;
    std::shared_ptr<Rank> rank = comm->rank;
    std::vector<Rank::Pending> due;
    {
        std::lock_guard<std::mutex> lock(rank->world->mutex);
        *error = rank->error;
        if (rank->error != ncclSuccess)
            return ncclSuccess;
        bool waits = rank->world->joined < rank->world->size || (rank->finalized && rank->outstanding > 0);
        if (waits || --rank->polls > 0) {
            *error = ncclInProgress;
            return ncclSuccess;
        }
        rank->polls = 0;
        due.swap(rank->pending);
    }
    for (const Rank::Pending &work : due)
        if (*error == ncclSuccess)
            *error = enqueue(rank, work);
    std::lock_guard<std::mutex> lock(rank->world->mutex);
    rank->error = *error;
    return ncclSuccess;
}

ncclResult_t ncclCommCount(const ncclComm_t comm, int *count)
{
    if (!good(comm))
        return ncclInvalidArgument;
    *count = comm->rank->world->size;
    return ncclSuccess;
}

ncclResult_t ncclCommCuDevice(const ncclComm_t comm, int *device)
{
    if (!good(comm))
        return ncclInvalidArgument;
    *device = comm->rank->device;
    return ncclSuccess;
}

ncclResult_t ncclCommUserRank(const ncclComm_t comm, int *rank)
{
    if (!good(comm))
        return ncclInvalidArgument;
    *rank = comm->rank->rank;
    return ncclSuccess;
}

/* -- memory -- */

ncclResult_t ncclCommRegister(const ncclComm_t comm, void *data, size_t bytes, void **handle)
{
    ncclResult_t result;
    Block block;
    *handle = nullptr;
    if (!good(comm) || where(data, bytes, &block) != 1)
        return ncclInvalidArgument;
    if (refused_now(__func__, &result))
        return result;
    std::lock_guard<std::mutex> lock(comm->rank->world->mutex);
    comm->rank->registered.push_back(std::make_unique<Block>(block));
    *handle = comm->rank->registered.back().get();
    return ncclSuccess;
}

ncclResult_t ncclCommDeregister(const ncclComm_t comm, void *handle)
{
    if (!good(comm))
        return ncclInvalidArgument;
    std::lock_guard<std::mutex> lock(comm->rank->world->mutex);
    auto &list = comm->rank->registered;
    for (size_t i = 0; i < list.size(); i++)
        if (list[i].get() == handle) {
            list.erase(list.begin() + (long)i);
            return ncclSuccess;
        }
    return wrong_locked(*comm->rank, ncclInvalidUsage, "memory that is not registered is given up");
}

ncclResult_t ncclMemAlloc(void **pointer, size_t bytes)
{
    return cudaMalloc(pointer, bytes) == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
}

ncclResult_t ncclMemFree(void *pointer) { return cudaFree(pointer) == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError; }

/* -- calls -- */

ncclResult_t ncclAllReduce(const void *in, void *out, size_t count, ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm,
                           cudaStream_t stream)
{
    return submit_call(__func__, comm, {What::all_reduce, in, out, count, type, op, 0}, stream);
}

ncclResult_t ncclReduce(const void *in, void *out, size_t count, ncclDataType_t type, ncclRedOp_t op, int root, ncclComm_t comm,
                        cudaStream_t stream)
{
    return submit_call(__func__, comm, {What::reduce, in, out, count, type, op, root}, stream);
}

ncclResult_t ncclBroadcast(const void *in, void *out, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                           cudaStream_t stream)
{
    return submit_call(__func__, comm, {What::broadcast, in, out, count, type, ncclSum, root}, stream);
}

ncclResult_t ncclAllGather(const void *in, void *out, size_t count, ncclDataType_t type, ncclComm_t comm, cudaStream_t stream)
{
    return submit_call(__func__, comm, {What::all_gather, in, out, count, type, ncclSum, 0}, stream);
}

ncclResult_t ncclReduceScatter(const void *in, void *out, size_t count, ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm,
                               cudaStream_t stream)
{
    return submit_call(__func__, comm, {What::reduce_scatter, in, out, count, type, op, 0}, stream);
}

ncclResult_t ncclSend(const void *in, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream)
{
    return submit_call(__func__, comm, {What::send, in, nullptr, count, type, ncclSum, peer}, stream);
}

ncclResult_t ncclRecv(void *out, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream)
{
    return submit_call(__func__, comm, {What::receive, nullptr, out, count, type, ncclSum, peer}, stream);
}

ncclResult_t ncclGroupStart(void)
{
    group_depth++;
    return ncclSuccess;
}

ncclResult_t ncclGroupEnd(void)
{
    if (group_depth == 0)
        return ncclInvalidUsage;
    return --group_depth == 0 ? finish_group() : ncclSuccess;
}

} // extern "C"
