/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks of the fake NCCL in several processes. The process that made the id has the
 * world; a rank elsewhere connects to it by a socket that the id names, and a thread
 * there stands in for it: it joins, meets and is aborted as the rank would be. A
 * process that dies leaves the others waiting, as with the real library. */
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <thread>
#include <unistd.h>

#include "fake_internal.h"
#include "fake_nccl.h"

namespace fake {

struct Hello {
    ncclUniqueId id;
    int size, rank, device;
};

struct Answer {
    ncclResult_t result;
    char why[60];
};

World::~World()
{
    if (link >= 0)
        close(link);
}

static bool send_all(int fd, const void *data, size_t bytes)
{
    const char *at = static_cast<const char *>(data);
    while (bytes > 0) {
        ssize_t n = send(fd, at, bytes, MSG_NOSIGNAL);
        if (n <= 0 && errno != EINTR)
            return false;
        at += n > 0 ? n : 0;
        bytes -= n > 0 ? (size_t)n : 0;
    }
    return true;
}

static bool receive_all(int fd, void *data, size_t bytes)
{
    char *at = static_cast<char *>(data);
    while (bytes > 0) {
        ssize_t n = recv(fd, at, bytes, 0);
        if (n == 0 || (n < 0 && errno != EINTR))
            return false;
        at += n > 0 ? n : 0;
        bytes -= n > 0 ? (size_t)n : 0;
    }
    return true;
}

static socklen_t address_of(int pid, sockaddr_un *address)
{
    memset(address, 0, sizeof *address);
    address->sun_family = AF_UNIX;
    int n = snprintf(address->sun_path + 1, sizeof address->sun_path - 1, "trek-fake-nccl-%d", pid);
    return (socklen_t)(offsetof(sockaddr_un, sun_path) + 1 + (size_t)n);
}

/* -- where the id was made -- */

/* Collectives of a rank elsewhere, until it goes. */
static void stand_in(int fd, const std::shared_ptr<Rank> &rank)
{
    World &w = *rank->world;
    Call call;
    while (receive_all(fd, &call, sizeof call)) {
        std::vector<char> in(elements_in(call, w.size, rank->rank) * size_of(call.type));
        std::vector<char> out(elements_out(call, w.size, rank->rank) * size_of(call.type));
        if (!receive_all(fd, in.data(), in.size()))
            return;
        call.in = in.data();
        call.out = out.data();
        run_collective(rank, call);
        Answer answer = {};
        {
            std::lock_guard<std::mutex> lock(w.mutex);
            if (rank->aborted)
                return;
            answer.result = rank->error;
        }
        if (!send_all(fd, &answer, sizeof answer) || !send_all(fd, out.data(), out.size()))
            return;
        std::lock_guard<std::mutex> lock(w.mutex);
        rank->owed = false;
        w.changed.notify_all();
    }
}

static void serve(int fd)
{
    Hello hello;
    Answer answer = {};
    std::shared_ptr<Rank> rank;
    if (receive_all(fd, &hello, sizeof hello))
        rank = join_world(hello.id, hello.size, hello.rank, hello.device, true, &answer.result);
    if (rank) {
        std::unique_lock<std::mutex> lock(rank->world->mutex);
        rank->peer = fd;
        wait_for(lock, *rank, [&rank] { return rank->world->joined == rank->world->size; });
        answer.result = rank->error;
        snprintf(answer.why, sizeof answer.why, "%s", rank->last_error.c_str());
    }
    if (send_all(fd, &answer, sizeof answer) && answer.result == ncclSuccess)
        stand_in(fd, rank);
    if (rank) { /* nobody asks it any more whether the connection stands */
        std::lock_guard<std::mutex> lock(rank->world->mutex);
        rank->aborted = true;
        rank->peer = -1;
        rank->owed = false;
        rank->world->changed.notify_all();
    }
    close(fd);
}

static int listener()
{
    sockaddr_un address;
    socklen_t length = address_of(getpid(), &address);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return -1;
    if (bind(fd, (sockaddr *)&address, length) == 0 && listen(fd, 64) == 0)
        return fd;
    close(fd);
    return -1;
}

/* One listener for all ids of this process; a forked child is another process. */
bool listen_for_ranks()
{
    static std::mutex mutex;
    static int pid;
    std::lock_guard<std::mutex> lock(mutex);
    if (pid == getpid())
        return true;
    int fd = listener();
    if (fd < 0)
        return false;
    pid = getpid();
    std::thread([fd] {
        for (;;) {
            int one = accept4(fd, nullptr, nullptr, SOCK_CLOEXEC);
            if (one >= 0)
                std::thread(serve, one).detach();
        }
    }).detach();
    return true;
}

/* -- elsewhere -- */

static int connect_to(int pid)
{
    sockaddr_un address;
    socklen_t length = address_of(pid, &address);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd >= 0 && connect(fd, (sockaddr *)&address, length) == 0)
        return fd;
    if (fd >= 0)
        close(fd);
    return -1;
}

static bool has_answer(int fd, short events)
{
    pollfd p = {fd, events, 0};
    return poll(&p, 1, 0) > 0;
}

bool is_gone(int fd)
{
    char byte;
    return has_answer(fd, POLLIN) && recv(fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 0;
}

bool is_elsewhere(const ncclUniqueId &id)
{
    int pid = 0;
    return sscanf(id.internal, "fake nccl %d", &pid) == 1 && pid != getpid();
}

/* The rank is in progress until the world is complete. */
std::shared_ptr<Rank> join_elsewhere(const ncclUniqueId &id, int size, int index, int device, bool blocking, ncclResult_t *result)
{
    int pid = 0;
    sscanf(id.internal, "fake nccl %d", &pid);
    auto world = std::make_shared<World>();
    world->size = size;
    world->link = connect_to(pid);
    Hello hello = {id, size, index, device};
    if (world->link < 0 || !send_all(world->link, &hello, sizeof hello)) {
        *result = ncclRemoteError;
        return nullptr;
    }
    std::shared_ptr<Rank> rank = new_rank(world, index, device, blocking);
    std::thread([rank] {
        Answer answer = {ncclRemoteError, "the process that made the id has gone"};
        receive_all(rank->world->link, &answer, sizeof answer);
        std::lock_guard<std::mutex> lock(rank->world->mutex);
        rank->world->joined = rank->world->size;
        rank->error = answer.result;
        rank->last_error = answer.why;
        rank->world->changed.notify_all();
    }).detach();
    return rank;
}

/* On the stream's thread, without the lock while it talks; hangs if the others do not come. */
void run_elsewhere(const std::shared_ptr<Rank> &rank, const Call &call)
{
    World &w = *rank->world;
    size_t in = elements_in(call, w.size, rank->rank) * size_of(call.type);
    size_t out = elements_out(call, w.size, rank->rank) * size_of(call.type);
    Answer answer = {};
    open_memory(ALL_DEVICES);
    bool sent = send_all(w.link, &call, sizeof call) && send_all(w.link, call.in, in);
    std::unique_lock<std::mutex> lock(w.mutex);
    if (!sent || !wait_for(lock, *rank, [&w] { return has_answer(w.link, POLLIN); })) {
        wait_for(lock, *rank, [] { return false; });
        spoil(*rank, call);
        return;
    }
    lock.unlock();
    if (!receive_all(w.link, &answer, sizeof answer) || !receive_all(w.link, call.out, out)) {
        lock.lock();
        wait_for(lock, *rank, [] { return false; });
        spoil(*rank, call);
        return;
    }
    lock.lock();
    rank->error = answer.result != ncclSuccess ? answer.result : rank->error;
}

} // namespace fake
