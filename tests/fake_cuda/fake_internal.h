/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of the fake runtime among themselves. State lives on the heap and is
 * never freed, so that calls at exit find it. Locks are many and small: TSan must
 * see only the order that streams and events really give. */
#ifndef TREK_FAKE_INTERNAL_H
#define TREK_FAKE_INTERNAL_H

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "cuda_runtime.h"
#include "fake_control.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/lsan_interface.h>
#else
#define __lsan_register_root_region(p, n) ((void)(p), (void)(n))
#define __lsan_unregister_root_region(p, n) ((void)(p), (void)(n))
#define ASAN_POISON_MEMORY_REGION(p, n) ((void)(p), (void)(n))
#define ASAN_UNPOISON_MEMORY_REGION(p, n) ((void)(p), (void)(n))
#endif

namespace fake {

enum { MAX_DEVICES = 16, POISON = 0xff, MOST_SHARED = 227 << 10 };
enum { MAGIC_STREAM = 0x57524541, MAGIC_EVENT = 0x45564e54, MAGIC_GRAPH = 0x47524146, MAGIC_EXEC = 0x45584543,
       MAGIC_DEAD = 0xdead };

struct Device {
    size_t limit = 0;
    std::atomic<size_t> used{0};
    std::atomic<int> sticky{0};   /* cudaError_t */
    std::atomic<unsigned> peers{0};
    std::atomic<bool> held{false};
    std::atomic<bool> context{false};
    std::atomic<long> kernels{0};
    int key = -1;                 /* protection key */
    std::mutex mutex;             /* of the default stream's making */
    CUstream_st *stream = nullptr;
};

struct State {
    int devices = 0;
    bool no_driver = false, peer = true, races = false;
    size_t shared = 0;            /* bytes that a block may opt in to */
    int major = 9, minor = 0;
    bool sm_90a = false;          /* C++ passes for code of sm_90a, where it does nothing */
    size_t l2 = 0;                /* bytes */
    std::string unprotected;      /* why memory is not protected; "" if it is */
    std::atomic<long> pageable{0}; /* bytes copied to devices from host memory that is not pinned */
    std::atomic<long> pretended_ms{0};      /* that events see go by beside the real time */
    std::atomic<unsigned> asked[5] = {}; /* of cuBLASLt: alignments, and how many candidates */
    std::atomic<bool> quitting{false};
    std::atomic<bool> forked{false}; /* a child: nothing works there, as with the real one */
    std::atomic<unsigned> late{0};
    std::atomic<bool> late_set{false};
    Device device[MAX_DEVICES];
};
State &state();

/* -- errors (fake_error.cc) -- */
cudaError_t give(cudaError_t error);              /* remembers it for cudaGetLastError */
cudaError_t enter(const char *function);          /* what every call begins with */
bool fails_now(const char *function, cudaError_t *error);
void set_sticky(int device, cudaError_t error);
void report(const char *format, ...) __attribute__((format(printf, 1, 2)));
void in_host_function(bool yes);
int current_device();
#define FAKE_ENTER()                                \
    do {                                            \
        cudaError_t error_ = fake::enter(__func__); \
        if (error_ != cudaSuccess)                  \
            return error_;                          \
    } while (0)

/* -- memory (fake_memory.cc) -- */
struct Block {
    char *base = nullptr;     /* what was asked for */
    size_t bytes = 0;
    char *mapped = nullptr;   /* with its guard pages */
    size_t mapped_bytes = 0;
    int device = -1;          /* -1: pinned host memory */
    bool registered = false;
};
bool find_block(const void *pointer, Block *block);
/* 1: bytes in one device block; 0: outside all blocks; -1: neither wholly in nor wholly out; 2: pinned */
int where(const void *pointer, size_t bytes, Block *block);
cudaError_t add_block(const Block &block);
/* Takes the block that begins there out of the register. */
bool take_block(void *pointer, bool of_device, bool registered, Block *block);
/* Notes that so many bytes of a device are used; false: there are not so many. */
bool use_device(int device, size_t bytes);
void make_keys(State &s);
/* Lets the calling thread touch the memory of the devices in the set, and of no others. */
void open_memory(unsigned devices);
unsigned reach(int device); /* the device and its peers */
constexpr unsigned ALL_DEVICES = ~0u;

/* -- the driver's functions (fake_tensor_map.cc, fake_pages.cc) -- */
struct Location {
    int type, id;
};
struct FrameKind {
    int type, handle_types;
    Location where;
    void *meta_data;
    unsigned char flags[8];
};
struct Access {
    Location who;
    int flags;
};
using Address = unsigned long long;
int encode_tiled(void *to, int type, uint32_t rank, void *data, const uint64_t *sizes, const uint64_t *strides,
                 const uint32_t *box, const uint32_t *steps, int interleave, int swizzle, int promotion, int fill);
int reserve_addresses(Address *at, size_t bytes, size_t alignment, Address wish, unsigned long long flags);
int free_addresses(Address at, size_t bytes);
int create_frame(unsigned long long *frame, size_t bytes, const FrameKind *kind, unsigned long long flags);
int release_frame(unsigned long long frame);
int map_frame(Address at, size_t bytes, size_t offset, unsigned long long frame, unsigned long long flags);
int unmap_frame(Address at, size_t bytes);
int allow_access(Address at, size_t bytes, const Access *who, size_t n);
int frame_granularity(size_t *bytes, const FrameKind *kind, int which);

/* -- faults (fake_launch.cc) -- */
void watch_faults(); /* says whose a fault is, before what else happens */
void fault_stack();  /* for the calling thread */

/* -- streams (fake_stream.cc) -- */
enum class Kind { kernel, copy, set, host, graph, control };

struct Task {
    Kind kind = Kind::control;
    const char *name = "";
    int device = 0;
    std::function<void()> run;
};
void run_task(const Task &task); /* with the rights of its device; nothing after a sticky error */

struct Point { /* a recorded event */
    std::mutex mutex;
    std::condition_variable changed;
    bool done = false;
    double milliseconds = 0;
    void set();
    bool wait(bool worker); /* false: the process ends */
};

struct Capture;
struct Node;

cudaError_t find_stream(cudaStream_t handle, CUstream_st **stream);
cudaError_t submit(cudaStream_t handle, Task task); /* or into the capture */
void push(CUstream_st *stream, Task task);          /* past any capture */
void wake_streams();                                /* wakes those that sleep over work: called before waiting for them */
void wait_stream(CUstream_st *stream);
void wait_device(int device);
void end_streams();
unsigned late_random(CUstream_st *stream);

/* -- capture and graphs (fake_capture.cc, fake_graph.cc) -- */
bool anything_captured();
bool captures(CUstream_st *stream);
cudaError_t capture_task(CUstream_st *stream, Task task);
cudaError_t capture_record(CUstream_st *stream, CUevent_st *event);
cudaError_t capture_wait(CUstream_st *stream, CUevent_st *event, bool *taken);
cudaError_t unsafe_call();                          /* not allowed while anything is captured */
cudaError_t unsafe_on(CUstream_st *stream);         /* not allowed on a capturing stream */

} // namespace fake

struct CUstream_st {
    unsigned magic = fake::MAGIC_STREAM;
    int device = 0, priority = 0;
    unsigned flags = 0;
    unsigned long long id = 0;
    std::mutex mutex;
    std::condition_variable changed, ended; /* what its thread waits for, and what others do */
    std::deque<fake::Task> tasks;
    unsigned long submitted = 0, completed = 0, wanted = ~0ul; /* the first that somebody waits for */
    bool asleep = false, helped = false, closing = false, finished = false;
    std::minstd_rand random;
    std::thread thread;
    fake::Capture *capture = nullptr;
    std::vector<fake::Node *> tips; /* what the next captured work follows */
};

struct CUevent_st {
    unsigned magic = fake::MAGIC_EVENT;
    int device = 0;
    unsigned flags = 0;
    std::mutex mutex;
    std::shared_ptr<fake::Point> point; /* the last record; null: never recorded */
    unsigned long long capture_id = 0;  /* recorded in that capture; 0: outside */
    std::vector<fake::Node *> tips;
};

namespace fake {

struct Node {
    Task task;
    std::vector<Node *> after;
    size_t index = 0;
};

struct Program { /* an instantiated graph: nodes in an order that respects the edges */
    struct Step {
        Task task;
        std::vector<size_t> after;
    };
    std::vector<Step> steps;
    std::mutex running;
    std::minstd_rand random;
    void run();
};

} // namespace fake

struct CUgraph_st {
    unsigned magic = fake::MAGIC_GRAPH;
    std::vector<std::unique_ptr<fake::Node>> nodes;
};

struct CUgraphExec_st {
    unsigned magic = fake::MAGIC_EXEC;
    std::mutex mutex;
    std::shared_ptr<fake::Program> program;
};

#endif
