/* SPDX-License-Identifier: Apache-2.0 */
/* The fake NCCL's ranks and what they do together (fake_nccl_run.cc), apart from its
 * interface (fake_nccl.cc). */
#ifndef TREK_FAKE_NCCL_H
#define TREK_FAKE_NCCL_H

#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

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
    std::mutex mutex;
    std::condition_variable changed;
    int size = 0, joined = 0;
    ncclResult_t error = ncclSuccess; /* of the initialisation */
    std::vector<std::weak_ptr<Rank>> ranks;
    std::vector<bool> here;
    std::map<unsigned long, std::shared_ptr<Meeting>> meetings;
    std::map<std::pair<int, int>, std::deque<std::shared_ptr<Letter>>> letters; /* from, to */
};

struct Rank { /* everything under the world's mutex */
    std::shared_ptr<World> world;
    int rank = 0, device = 0;
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
};

size_t size_of(ncclDataType_t type);
/* What a rank's part of a call reads and writes, in elements. */
size_t elements_in(const Call &call, int size, int rank);
size_t elements_out(const Call &call, int size, int rank);
/* On the stream's thread: meets the other ranks, or hangs until the rank is aborted. */
void run_collective(const std::shared_ptr<Rank> &rank, const Call &call);
void run_letters(const std::shared_ptr<Rank> &rank, const std::vector<Call> &calls);

} // namespace fake

#endif
