/* SPDX-License-Identifier: Apache-2.0 */
/* The plug-in libtrek-gloo: trek's calls in terms of the installed Gloo. Gloo's collectives
 * wait for the other processes, so each group has a thread that carries out what was
 * started, in order. Gloo says by exceptions what goes wrong: none leaves this file. */
#include <arpa/inet.h>
#include <dirent.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gloo/allgather.h>
#include <gloo/allreduce.h>
#include <gloo/broadcast.h>
#include <gloo/common/error.h>
#include <gloo/context.h>
#include <gloo/transport/context.h>
#include <gloo/transport/pair.h>
#include <gloo/transport/tcp/address.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/transport/unbound_buffer.h>
#include <gloo/types.h>

#include "distributed/comm/async/async_table.h"

namespace {

using gloo::transport::UnboundBuffer;

const trek_async_host *host;

/* Deadlines are the core's, which ends the group; Gloo itself waits for as long as any program runs. */
constexpr std::chrono::milliseconds kForever = std::chrono::hours(24 * 365);
/* How long the thread may take to leave its call after the connections were closed under it. */
constexpr std::chrono::milliseconds kLeave(2000);
/* What is no larger goes by halving and doubling, whose steps are fewer, where the ranks are a power of two. */
constexpr int64_t kFewSteps = 128 << 10;
/* A prefix of slots that Gloo's collectives do not have. */
constexpr uint8_t kNotes = 0x70, kSpread = 0x71, kScatter = 0x72, kChain = 0x73;
/* Elements of a link of a chain. */
constexpr int64_t kLink = 32 << 10;

/* Writing to a connection that its other side has closed must not end the program: Gloo's threads are started, and
 * what they do not do is done, with all signals blocked. */
class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

 private:
  sigset_t before_;
};

/* Closes what is open. A wait that fails for its time closes all connections of its group: those who wait in other calls leave
 * them. */
void close_all(gloo::transport::Context &transport) {
  try {
    char byte = 0;
    transport.createUnboundBuffer(&byte, 1)->waitRecv(std::chrono::milliseconds(0));
  } catch (...) {
  }
}

/* A call that fails closes all connections before its exception gives buffers up: where a connection lives on, and what a buffer
 * that is gone had asked for comes in, Gloo's own thread throws, which ends the program. */
class Buffer : public UnboundBuffer {
 public:
  Buffer(std::unique_ptr<UnboundBuffer> real, gloo::transport::Context &transport)
      : UnboundBuffer(real->ptr, real->size), real_(std::move(real)), transport_(transport) {}
  using UnboundBuffer::waitRecv;
  using UnboundBuffer::waitSend;
  bool waitRecv(int *rank, std::chrono::milliseconds timeout) override {
    return closing([&] { return real_->waitRecv(rank, timeout); });
  }
  bool waitSend(int *rank, std::chrono::milliseconds timeout) override {
    return closing([&] { return real_->waitSend(rank, timeout); });
  }
  void abortWaitRecv() override { real_->abortWaitRecv(); }
  void abortWaitSend() override { real_->abortWaitSend(); }
  void send(int rank, uint64_t slot, size_t offset, size_t bytes) override {
    closing([&] { real_->send(rank, slot, offset, bytes); });
  }
  void recv(int rank, uint64_t slot, size_t offset, size_t bytes) override {
    closing([&] { real_->recv(rank, slot, offset, bytes); });
  }
  void recv(std::vector<int> ranks, uint64_t slot, size_t offset, size_t bytes) override {
    closing([&] { real_->recv(ranks, slot, offset, bytes); });
  }

 private:
  template <typename Fn>
  auto closing(Fn fn) -> decltype(fn()) {
    try {
      return fn();
    } catch (...) {
      close_all(transport_);
      throw;
    }
  }

  std::unique_ptr<UnboundBuffer> real_;
  gloo::transport::Context &transport_;
};

/* The transport as Gloo's collectives see it: with such buffers. */
class Transport : public gloo::transport::Context {
 public:
  explicit Transport(std::shared_ptr<gloo::transport::Context> real)
      : gloo::transport::Context(real->rank, real->size), real_(std::move(real)) {
    setTimeout(real_->getTimeout());
  }
  std::unique_ptr<gloo::transport::Pair> &getPair(int rank) override { return real_->getPair(rank); }
  std::unique_ptr<gloo::transport::Pair> &createPair(int rank) override { return real_->createPair(rank); }
  std::unique_ptr<UnboundBuffer> createUnboundBuffer(void *data, size_t bytes) override {
    return std::make_unique<Buffer>(real_->createUnboundBuffer(data, bytes), *real_);
  }

 private:
  std::shared_ptr<gloo::transport::Context> real_;
};

struct Name { /* of one end of a connection */
  sockaddr_in address{};
  bool found;
  Name(int fd, int (*of)(int, sockaddr *, socklen_t *)) {
    socklen_t length = sizeof address;
    found = of(fd, reinterpret_cast<sockaddr *>(&address), &length) == 0 && address.sin_family == AF_INET;
  }
  bool operator==(const Name &other) const {
    return found && other.found && address.sin_port == other.address.sin_port &&
           address.sin_addr.s_addr == other.address.sin_addr.s_addr;
  }
};

/* This process's other end of a connection that it has accepted; -1: that is another one's. */
int other_end(int accepted) {
  int found = -1;
  DIR *all = opendir("/proc/self/fd");
  const Name own(accepted, getsockname), peer(accepted, getpeername);
  for (const dirent *one; all && found < 0 && (one = readdir(all));) {
    const int fd = atoi(one->d_name);
    if (fd != accepted && Name(fd, getsockname) == peer && Name(fd, getpeername) == own)
      found = fd;
  }
  if (all)
    closedir(all);
  return found;
}

/* Gives Gloo's pairs connections that the core has made, between two who have shown each other who they are. Gloo's own pair
 * listens, takes whoever connects first, and ends the program by what a stranger sends. So here it only ever connects, on the
 * loopback, to this process itself, which it does where its own address is the greater one; then the descriptor that it has is
 * made to be the other connection. */
class Adoption {
 public:
  static constexpr const char *kDevice = "127.0.0.2", *kHere = "127.0.0.1";

  Adoption() : listening_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in own{};
    own.sin_family = AF_INET;
    inet_pton(AF_INET, kHere, &own.sin_addr);
    if (listening_ < 0 || bind(listening_, reinterpret_cast<sockaddr *>(&own), sizeof own) != 0 || listen(listening_, 64) != 0) {
      const int why = errno;
      if (listening_ >= 0)
        close(listening_);
      errno = why;
      give_up("the loopback");
    }
    socklen_t length = sizeof address_;
    getsockname(listening_, reinterpret_cast<sockaddr *>(&address_), &length);
  }
  ~Adoption() { close(listening_); }
  Adoption(const Adoption &) = delete;
  Adoption &operator=(const Adoption &) = delete;

  /* fd is taken in any case. */
  void adopt(gloo::transport::tcp::Device &device, gloo::transport::Pair &pair, int fd) {
    int taken = -1, accepted = -1;
    try {
      pair.connect(gloo::transport::tcp::Address(address_).bytes());
      while (taken < 0) { /* ours is among those that wait */
        if (accepted >= 0)
          close(accepted);
        accepted = accept4(listening_, nullptr, nullptr, SOCK_CLOEXEC);
        if (accepted < 0)
          give_up("accept");
        taken = other_end(accepted);
      }
      if (fcntl(fd, F_SETFL, O_NONBLOCK) != 0 || dup3(fd, taken, O_CLOEXEC) < 0)
        give_up("dup3");
    } catch (...) {
      close(fd);
      if (accepted >= 0)
        close(accepted);
      throw;
    }
    close(fd);
    close(accepted);
    device.registerDescriptor(taken, EPOLLIN, &dynamic_cast<gloo::transport::tcp::Handler &>(pair));
  }

 private:
  [[noreturn]] void give_up(const char *what) { throw std::runtime_error(std::string(what) + ": " + strerror(errno)); }

  int listening_;
  sockaddr_storage address_{};
};

/* Gloo's own makes connections by a store; here they are made already. */
class Context : public gloo::Context {
 public:
  Context(int rank, int world, std::shared_ptr<gloo::transport::Device> device,
          std::shared_ptr<gloo::transport::Context> transport)
      : gloo::Context(rank, world) {
    device_ = std::move(device);
    transportContext_ = std::make_shared<Transport>(std::move(transport));
    setTimeout(kForever);
  }
};

struct Task {
  enum Kind { CONNECT, EXCHANGE, ALL_REDUCE, BROADCAST, ALL_GATHER, REDUCE_SCATTER, REDUCE } kind;
  const void *in;
  void *out;
  int64_t count; /* elements; else bytes */
  size_t stride;
  trek_dtype dtype;
  trek_reduction op;
  int root;
};

size_t size_of(trek_dtype dtype) {
  switch (dtype) {
  case TREK_F64:
  case TREK_I64:
    return 8;
  case TREK_F32:
  case TREK_I32:
    return 4;
  case TREK_BF16:
    return 2;
  default:
    return 1;
  }
}

bool is_power_of_two(int n) { return (n & (n - 1)) == 0; }

} // namespace

struct trek_async_group {
  void *owner;
  int rank, world;
  std::shared_ptr<gloo::transport::tcp::Device> device;
  std::shared_ptr<gloo::transport::Context> transport;
  std::shared_ptr<Context> context;
  std::vector<int> sockets;               /* not yet taken; -1: none */
  std::mutex adopting; /* held where Gloo's thread does not watch a pair's descriptor: it is not to be closed */

  std::thread thread;
  std::mutex lock;                        /* of tasks, leaving, left, message */
  std::condition_variable changed;
  std::deque<Task> tasks;
  bool leaving = false, left = false;
  std::string message;
  uint32_t given = 0;                     /* tasks; the driver's own */
  std::atomic<uint32_t> finished{0}, exchange{0};
  std::atomic<bool> failed{false};
  std::unique_ptr<std::atomic<uint32_t>[]> heard; /* [world]: the last exchange in which a rank's note has come */

  uint32_t tag = 0;                       /* the thread's own */
  const void *outbox_memory = nullptr;
  std::unique_ptr<UnboundBuffer> outbox;
  const void *inbox_memory = nullptr;
  std::vector<std::unique_ptr<UnboundBuffer>> inbox;

  void run();
  void perform(const Task &task);
  void connect();
  void exchange_notes(const Task &task);
  void all_reduce(void *data, int64_t count, trek_dtype dtype, trek_reduction op);
  void spread(void *data, int64_t count, trek_dtype dtype, trek_reduction op);
  void reduce(void *data, int64_t count, trek_dtype dtype, trek_reduction op, int root);
  void reduce_scatter(const void *all, void *part, int64_t count, trek_dtype dtype, trek_reduction op);
};

/* --- the group's thread ---------------------------------------------------------------------------- */

void trek_async_group::connect() {
  Adoption adoption;
  for (int r = 0; r < world; r++)
    if (r != rank) {
      std::lock_guard<std::mutex> held(adopting);
      adoption.adopt(*device, *transport->createPair(r), std::exchange(sockets[r], -1));
    }
  context = std::make_shared<Context>(rank, world, device, transport);
}

/* Everybody's notes are asked for and sent at once; then they are waited for in rank order. */
void trek_async_group::exchange_notes(const Task &task) {
  const uint64_t slot = gloo::Slot::build(kNotes, 0);
  char *notes = static_cast<char *>(task.out);
  if (inbox_memory != task.out) {
    inbox.clear();
    inbox.resize(world);
    for (int r = 0; r < world; r++)
      inbox[r] = context->createUnboundBuffer(notes + r * task.stride, task.stride);
    inbox_memory = task.out;
  }
  if (outbox_memory != task.in) {
    outbox = context->createUnboundBuffer(const_cast<void *>(task.in), task.stride);
    outbox_memory = task.in;
  }
  uint32_t number = finished + 1;
  for (int k = 1; k < world; k++)
    inbox[(rank + world - k) % world]->recv((rank + world - k) % world, slot);
  for (int k = 1; k < world; k++) /* not all to the same rank first */
    outbox->send((rank + k) % world, slot, 0, static_cast<size_t>(task.count));
  for (int r = 0; r < world; r++) {
    if (r == rank)
      continue;
    inbox[r]->waitRecv(kForever);
    heard[r].store(number, std::memory_order_release);
  }
  for (int k = 1; k < world; k++)
    outbox->waitSend(kForever);
}

/* Maxima and minima, which may count a rank twice: after each step a rank knows those of twice as many. */
void trek_async_group::spread(void *data, int64_t count, trek_dtype dtype, trek_reduction op) {
  const size_t bytes = static_cast<size_t>(count) * size_of(dtype);
  const uint64_t slot = gloo::Slot::build(kSpread, tag++);
  std::vector<char> theirs(bytes);
  auto out = context->createUnboundBuffer(data, bytes), in = context->createUnboundBuffer(theirs.data(), bytes);
  for (int step = 1; step < world; step *= 2) {
    in->recv((rank + world - step) % world, slot);
    out->send((rank + step) % world, slot);
    out->waitSend(kForever);
    in->waitRecv(kForever);
    host->fold(dtype, op, theirs.data(), data, count);
  }
}

void trek_async_group::all_reduce(void *data, int64_t count, trek_dtype dtype, trek_reduction op) {
  const size_t item = size_of(dtype);
  const int64_t bytes = count * static_cast<int64_t>(item);
  if ((op == TREK_REDUCTION_MAX || op == TREK_REDUCTION_MIN) && bytes <= 4096) {
    spread(data, count, dtype, op);
    return;
  }
  gloo::AllreduceOptions options(context);
  switch (item) {
  case 8:
    options.setOutput(static_cast<uint64_t *>(data), static_cast<size_t>(count));
    break;
  case 4:
    options.setOutput(static_cast<uint32_t *>(data), static_cast<size_t>(count));
    break;
  default:
    options.setOutput(static_cast<uint8_t *>(data), static_cast<size_t>(count));
  }
  options.setReduceFunction([this, dtype, op, item](void *to, const void *a, const void *b, size_t n) {
    host->progressed(owner);
    if (to == b) { /* sums, products, extrema: the order of two does not matter */
      host->fold(dtype, op, a, to, static_cast<int64_t>(n));
      return;
    }
    if (to != a)
      memcpy(to, a, n * item);
    host->fold(dtype, op, b, to, static_cast<int64_t>(n));
  });
  bool few = bytes <= kFewSteps && is_power_of_two(world) && count >= 4 * world;
  options.setAlgorithm(few ? gloo::AllreduceOptions::Algorithm::BCUBE : gloo::AllreduceOptions::Algorithm::RING);
  options.setTag(tag++);
  options.setTimeout(kForever);
  gloo::allreduce(options);
}

/* Adds what ranks have sent in bf16, in f32, and rounds the sum once (to nearest, ties to even; NaN stays NaN). */
static void add_bf16(const char *theirs, int world, void *part, int64_t count) {
  for (int64_t i = 0; i < count; i++) {
    float sum = 0;
    for (int r = 0; r < world; r++) {
      uint16_t number;
      memcpy(&number, theirs + static_cast<size_t>(r * count + i) * sizeof number, sizeof number);
      const uint32_t bits = static_cast<uint32_t>(number) << 16;
      float wide;
      memcpy(&wide, &bits, sizeof wide);
      sum = r == 0 ? wide : sum + wide;
    }
    uint32_t bits;
    memcpy(&bits, &sum, sizeof bits);
    const bool nan = sum != sum;
    const uint16_t rounded = static_cast<uint16_t>(nan ? (bits >> 16) | 0x40 : (bits + 0x7fff + (bits >> 16 & 1)) >> 16);
    memcpy(static_cast<char *>(part) + static_cast<size_t>(i) * sizeof rounded, &rounded, sizeof rounded);
  }
}

/* Gloo has none that serves all worlds and dtypes. Each rank sends the others their parts, and combines what it gets in rank
 * order: half the bytes of an all-reduce. */
void trek_async_group::reduce_scatter(const void *all, void *part, int64_t count, trek_dtype dtype, trek_reduction op) {
  const size_t bytes = static_cast<size_t>(count) * size_of(dtype);
  const uint64_t slot = gloo::Slot::build(kScatter, tag++);
  if (bytes == 0)
    return;
  std::vector<char> theirs(bytes * static_cast<size_t>(world));
  auto out = context->createUnboundBuffer(const_cast<void *>(all), bytes * static_cast<size_t>(world));
  auto in = context->createUnboundBuffer(theirs.data(), theirs.size());
  for (int k = 1; k < world; k++) {
    const int from = (rank + world - k) % world;
    in->recv(from, slot, static_cast<size_t>(from) * bytes, bytes);
  }
  for (int k = 1; k < world; k++) /* not all to the same rank first */
    out->send((rank + k) % world, slot, static_cast<size_t>((rank + k) % world) * bytes, bytes);
  for (int k = 1; k < world; k++) {
    in->waitRecv(kForever);
    host->progressed(owner);
  }
  for (int k = 1; k < world; k++)
    out->waitSend(kForever);
  memcpy(theirs.data() + static_cast<size_t>(rank) * bytes, static_cast<const char *>(all) + static_cast<size_t>(rank) * bytes,
         bytes);
  if (dtype == TREK_BF16) {
    add_bf16(theirs.data(), world, part, count);
    return;
  }
  memcpy(part, theirs.data(), bytes);
  for (int r = 1; r < world; r++)
    host->fold(dtype, op, theirs.data() + static_cast<size_t>(r) * bytes, part, count);
}

/* A chain of all ranks that ends at the root: each adds its own to what comes, link by link, and sends it on. So every connection
 * carries the data once, all at the same time, and an all-reduce's twice. */
void trek_async_group::reduce(void *data, int64_t count, trek_dtype dtype, trek_reduction op, int root) {
  const size_t item = size_of(dtype), bytes = static_cast<size_t>(count) * item;
  const uint64_t slot = gloo::Slot::build(kChain, tag++);
  const auto in_chain = [&](int place) { return place == world - 1 ? root : place < root ? place : place + 1; };
  const int place = rank == root ? world - 1 : rank < root ? rank : rank - 1;
  const int before = place > 0 ? in_chain(place - 1) : -1, after = place + 1 < world ? in_chain(place + 1) : -1;
  const std::unique_ptr<char[]> theirs(before < 0 ? nullptr : new char[bytes]);
  auto out = context->createUnboundBuffer(data, bytes), in = context->createUnboundBuffer(theirs.get(), theirs ? bytes : 0);
  const auto each_link = [&](auto fn) {
    for (int64_t first = 0; first < count; first += kLink)
      fn(static_cast<size_t>(first) * item, std::min(kLink, count - first));
  };
  if (before >= 0)
    each_link([&](size_t at, int64_t n) { in->recv(before, slot, at, static_cast<size_t>(n) * item); });
  each_link([&](size_t at, int64_t n) {
    if (before >= 0) {
      in->waitRecv(kForever);
      host->progressed(owner);
      host->fold(dtype, op, theirs.get() + at, static_cast<char *>(data) + at, n);
    }
    if (after >= 0)
      out->send(after, slot, at, static_cast<size_t>(n) * item);
  });
  if (after >= 0)
    each_link([&](size_t, int64_t) { out->waitSend(kForever); });
}

void trek_async_group::perform(const Task &task) {
  const size_t count = static_cast<size_t>(task.count);
  switch (task.kind) {
  case Task::CONNECT:
    connect();
    break;
  case Task::EXCHANGE:
    exchange_notes(task);
    break;
  case Task::ALL_REDUCE:
    all_reduce(task.out, task.count, task.dtype, task.op);
    break;
  case Task::BROADCAST: {
    gloo::BroadcastOptions options(context);
    options.setOutput(static_cast<uint8_t *>(task.out), count);
    options.setRoot(task.root);
    options.setTag(tag++);
    options.setTimeout(kForever);
    gloo::broadcast(options);
    break;
  }
  case Task::ALL_GATHER: {
    gloo::AllgatherOptions options(context);
    options.setInput(static_cast<uint8_t *>(const_cast<void *>(task.in)), count);
    options.setOutput(static_cast<uint8_t *>(task.out), count * static_cast<size_t>(world));
    options.setTag(tag++);
    options.setTimeout(kForever);
    gloo::allgather(options);
    break;
  }
  case Task::REDUCE:
    reduce(task.out, task.count, task.dtype, task.op, task.root);
    break;
  case Task::REDUCE_SCATTER:
    reduce_scatter(task.in, task.out, task.count, task.dtype, task.op);
    break;
  }
}

void trek_async_group::run() {
  std::unique_lock<std::mutex> held(lock);
  for (;;) {
    changed.wait(held, [this] { return leaving || !tasks.empty(); });
    if (leaving)
      break;
    const Task task = tasks.front();
    tasks.pop_front();
    held.unlock();
    std::string why;
    try {
      perform(task);
    } catch (const std::exception &error) {
      why = error.what();
    } catch (...) {
      why = "an exception of an unknown kind";
    }
    held.lock();
    if (!why.empty()) {
      message = why;
      failed = true;
    } else {
      finished++;
    }
    held.unlock();
    host->moved(owner);
    held.lock();
    if (failed)
      break;
  }
  left = true;
  changed.notify_all();
}

/* --- the table ------------------------------------------------------------------------------------------ */

namespace {

/* Calls fn; an exception becomes the thread's error. */
template <typename Fn>
trek_status guarded(trek_status status, const char *what, Fn fn) {
  std::string message(what);
  try {
    fn();
    return TREK_OK;
  } catch (const std::bad_alloc &) {
    return host->fail(TREK_ERR_MEMORY, "Gloo has no memory");
  } catch (const std::exception &error) {
    message += std::string(": ") + error.what();
  } catch (...) {
    message += ": an exception of an unknown kind";
  }
  return host->fail(status, message.c_str());
}

trek_status begin(bool *ours) {
  *ours = true;
  return TREK_OK;
}

void end(void) {}

void close_sockets(std::vector<int> &sockets) {
  for (int &fd : sockets)
    if (fd >= 0)
      ::close(std::exchange(fd, -1));
}

bool group_free(trek_async_group *group, bool done) {
  SignalsBlocked blocked;
  bool out = true;
  if (group->thread.joinable()) {
    {
      std::lock_guard<std::mutex> held(group->lock);
      group->leaving = true;
      group->changed.notify_all();
    }
    if (!done && group->transport) {
      std::lock_guard<std::mutex> held(group->adopting);
      close_all(*group->transport);
    }
    std::unique_lock<std::mutex> held(group->lock);
    out = group->changed.wait_for(held, kLeave, [group] { return group->left; });
  }
  if (!out) {
    group->thread.detach(); /* it keeps the group */
    return false;
  }
  if (group->thread.joinable())
    group->thread.join();
  close_sockets(group->sockets);
  try {
    delete group;
  } catch (...) {
  }
  return true;
}

trek_status group_open(void *owner, int rank, int world, trek_async_group **result) {
  SignalsBlocked blocked;
  trek_async_group *group = nullptr;
  trek_status status = guarded(TREK_ERR_UNSUPPORTED, "Gloo has no network", [&] {
    group = new trek_async_group{};
    group->owner = owner;
    group->rank = rank;
    group->world = world;
    group->heard.reset(new std::atomic<uint32_t>[world]());
    group->device = std::dynamic_pointer_cast<gloo::transport::tcp::Device>(
        gloo::transport::tcp::CreateDevice(gloo::transport::tcp::attr(Adoption::kDevice)));
    group->transport = group->device->createContext(rank, world);
    group->transport->setTimeout(kForever);
    group->thread = std::thread([group] { group->run(); });
  });
  if (status == TREK_OK)
    *result = group;
  else if (group)
    group_free(group, false);
  return status;
}

trek_status give(trek_async_group *group, const Task &task, trek_async_request *request) {
  return guarded(TREK_ERR_COMM, "Gloo", [&] {
    std::lock_guard<std::mutex> held(group->lock);
    group->tasks.push_back(task);
    group->given++;
    request->word = group->given;
    group->changed.notify_all();
  });
}

trek_status group_connect(trek_async_group *group, const int *sockets, trek_async_request *request) {
  trek_status status = guarded(TREK_ERR_COMM, "Gloo", [&] { group->sockets.assign(sockets, sockets + group->world); });
  if (status == TREK_OK)
    return give(group, Task{ Task::CONNECT, nullptr, nullptr, 0, 0, TREK_U8, TREK_REDUCTION_SUM, 0 }, request);
  for (int r = 0; r < group->world; r++)
    if (sockets[r] >= 0)
      ::close(sockets[r]);
  return status;
}

/* A request: the number of its task, and above that rank + 1 of whom a note is to come. */
trek_status exchange(trek_async_group *group, const void *mine, size_t bytes, void *notes, size_t stride,
                     trek_async_request *requests) {
  trek_async_request whole;
  Task task{ Task::EXCHANGE, mine, notes, static_cast<int64_t>(bytes), stride, TREK_U8, TREK_REDUCTION_SUM, 0 };
  trek_status status = give(group, task, &whole);
  for (int r = 0; r < group->world && status == TREK_OK; r++) {
    if (r == group->rank)
      continue;
    requests[r].word = whole.word | static_cast<uint64_t>(r + 1) << 32;
    requests[group->world + r] = whole;
  }
  return status;
}

trek_status all_reduce(trek_async_group *group, void *data, int64_t count, trek_dtype dtype, trek_reduction op,
                       trek_async_request *request) {
  return give(group, Task{ Task::ALL_REDUCE, nullptr, data, count, 0, dtype, op, 0 }, request);
}

trek_status reduce(trek_async_group *group, void *data, int64_t count, trek_dtype dtype, trek_reduction op, int root,
                   trek_async_request *request) {
  return give(group, Task{ Task::REDUCE, nullptr, data, count, 0, dtype, op, root }, request);
}

trek_status broadcast(trek_async_group *group, void *data, int64_t bytes, int root, trek_async_request *request) {
  return give(group, Task{ Task::BROADCAST, nullptr, data, bytes, 0, TREK_U8, TREK_REDUCTION_SUM, root }, request);
}

trek_status all_gather(trek_async_group *group, const void *part, int64_t bytes, void *all, trek_async_request *request) {
  return give(group, Task{ Task::ALL_GATHER, part, all, bytes, 0, TREK_U8, TREK_REDUCTION_SUM, 0 }, request);
}

trek_status reduce_scatter(trek_async_group *group, void *all, void *part, int64_t count, trek_dtype dtype, trek_reduction op,
                           trek_async_request *request) {
  return give(group, Task{ Task::REDUCE_SCATTER, all, part, count, 0, dtype, op, 0 }, request);
}

bool is_done(trek_async_group *group, uint64_t word) {
  const uint32_t number = static_cast<uint32_t>(word), rank = static_cast<uint32_t>(word >> 32);
  if (static_cast<int32_t>(group->finished.load(std::memory_order_acquire) - number) >= 0)
    return true;
  return rank && group->heard[rank - 1].load(std::memory_order_acquire) == number;
}

trek_status test(trek_async_group *group, int n, trek_async_request *requests, bool *done) {
  *done = true;
  for (int k = 0; k < n; k++) {
    if (requests[k].word && !is_done(group, requests[k].word))
      *done = false;
    else
      requests[k].word = 0;
  }
  if (*done || !group->failed)
    return TREK_OK;
  char message[512];
  {
    std::lock_guard<std::mutex> held(group->lock);
    snprintf(message, sizeof message, "Gloo: %.480s", group->message.c_str());
  }
  return host->fail(TREK_ERR_PEER, message);
}

} // namespace

extern "C" __attribute__((visibility("default"))) trek_status trek_gloo_open(int abi, const trek_async_host *given,
                                                                             trek_async_table *table,
                                                                             char *why, size_t size) {
  if (abi != TREK_ASYNC_ABI || given->abi != TREK_ASYNC_ABI) {
    snprintf(why, size, "libtrek-gloo was built for another version of trek (%d, not %d)", TREK_ASYNC_ABI, abi);
    return TREK_ERR_UNSUPPORTED;
  }
  host = given;
  table->adds_bf16 = true;
  table->abi = TREK_ASYNC_ABI;
  snprintf(table->library, sizeof table->library, "Gloo");
  table->begin = begin;
  table->end = end;
  table->any_thread = true;
  table->tells = true;
  table->group_open = group_open;
  table->group_connect = group_connect;
  table->group_free = group_free;
  table->exchange = exchange;
  table->all_reduce = all_reduce;
  table->reduce = reduce;
  table->broadcast = broadcast;
  table->all_gather = all_gather;
  table->reduce_scatter = reduce_scatter;
  table->test = test;
  return TREK_OK;
}
