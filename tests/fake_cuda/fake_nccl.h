/* SPDX-License-Identifier: Apache-2.0 */
/* The fake NCCL's ranks, what they do together (fake_nccl_run.cc) and how they reach the
 * world in another process (fake_nccl_processes.cc), apart from its interface (fake_nccl.cc). */
#ifndef TREK_FAKE_NCCL_H
#define TREK_FAKE_NCCL_H

#include <chrono>
#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "fake_internal.h"
#include "nccl.h"

namespace fake {

enum class What { all_reduce, reduce, broadcast, all_gather, reduce_scatter, send, receive };

struct Call { /* of one rank */
    What what;
    const void *in;
    void *out;
    size_t count;
    ncclDataType_t type;
    ncclRedOp_t op;
    int root; /* or the peer */
};

struct Rank;

struct Meeting { /* one collective */
    std::vector<Call> calls;
    std::vector<bool> here;
    int arrived = 0, left = 0;
    bool done = false;
};

struct Letter { /* one send that waits for its receive */
    Call call;
    bool taken = false;
};

struct World { /* all ranks of one id */
    World() = default;
    World(const World &) = delete;
    World &operator=(const World &) = delete;
    ~World();
    std::mutex mutex;
    std::condition_variable changed;
    int size = 0, joined = 0;
    int link = -1; /* to the process that has the world, if that is another */
    ncclResult_t error = ncclSuccess; /* of the initialisation */
    std::vector<std::weak_ptr<Rank>> ranks;
    std::vector<bool> here;
    std::map<unsigned long, std::shared_ptr<Meeting>> meetings;
    std::map<std::pair<int, int>, std::deque<std::shared_ptr<Letter>>> letters; /* from, to */
};

struct Rank { /* everything under the world's mutex */
    std::shared_ptr<World> world;
    int rank = 0, device = 0;
    int peer = -1; /* to the process that this rank is in, if that is another */
    bool owed = false; /* what a collective came to, which that process has not been told yet */
    bool blocking = true, aborted = false, finalized = false;
    ncclResult_t error = ncclSuccess;
    std::string last_error;
    unsigned long next = 0;    /* collectives this rank has come to */
    int outstanding = 0;       /* on streams, not yet done */
    int polls = 0;             /* how often the state is still "in progress" */
    struct Pending {
        std::vector<Call> calls;
        cudaStream_t stream;
    };
    std::vector<Pending> pending; /* to be enqueued when the polls are over */
    unsigned long begun = 0;
    std::vector<std::unique_ptr<Block>> registered; /* memory; what is left of it goes with the rank, also of an aborted one */
};

size_t size_of(ncclDataType_t type);
/* What a rank's part of a call reads and writes, in elements. */
size_t elements_in(const Call &call, int size, int rank);
size_t elements_out(const Call &call, int size, int rank);
/* On the stream's thread: meets the other ranks, or hangs until the rank is aborted. */
void run_collective(const std::shared_ptr<Rank> &rank, const Call &call);
void spoil(const Rank &rank, const Call &call);
void run_letters(const std::shared_ptr<Rank> &rank, const std::vector<Call> &calls);

/* -- processes (fake_nccl_processes.cc) -- */
bool listen_for_ranks();
bool is_elsewhere(const ncclUniqueId &id);
bool is_gone(int fd);
std::shared_ptr<Rank> join_elsewhere(const ncclUniqueId &id, int size, int index, int device, bool blocking,
                                     ncclResult_t *result);
void run_elsewhere(const std::shared_ptr<Rank> &rank, const Call &call);

/* -- ranks come together (fake_nccl.cc) -- */
std::shared_ptr<Rank> new_rank(const std::shared_ptr<World> &world, int index, int device, bool blocking);
std::shared_ptr<Rank> join_world(const ncclUniqueId &id, int size, int index, int device, bool blocking, ncclResult_t *result);

/* Waits for `over`, the rank's abort, its process's end or this one's. */
template <typename Over> static bool wait_for(std::unique_lock<std::mutex> &lock, Rank &rank, Over over)
{
    while (!over() && !rank.aborted && !state().quitting.load(std::memory_order_relaxed)) {
        rank.aborted = rank.peer >= 0 && is_gone(rank.peer);
        rank.world->changed.wait_until(lock, std::chrono::system_clock::now() +
                                                 std::chrono::milliseconds(rank.world->link >= 0 ? 1 : 20));
    }
    return over();
}

} // namespace fake

#endif
