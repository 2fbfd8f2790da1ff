/* SPDX-License-Identifier: Apache-2.0 */
/* What runs kernels: blocks and threads, barriers, exchanges within warps, shared
 * memory. Threads of a block run on fibers: one after the other on the same one until a
 * thread has to wait, which keeps it; the next that can go on is passed to directly, those of
 * the same warp first. A wait that can never end is found and reported. TSan looks at the
 * kernels, but not at this file: fibers share its data without the order that barriers give. */
#include <cstdio>
#include <ctime>
#include <sys/mman.h>
#include <unistd.h>

#include "fake_fiber.h"
#include "fake_kernel.h"

__thread __attribute__((tls_model("initial-exec"))) uint3 threadIdx;
__thread __attribute__((tls_model("initial-exec"))) uint3 blockIdx;
__thread __attribute__((tls_model("initial-exec"))) uint3 blockDim;
__thread __attribute__((tls_model("initial-exec"))) uint3 gridDim;

namespace fake {

enum { STATIC_SHARED = 48 << 10, WARP = 32 };

enum Wait { READY, AT_BARRIER, AT_EXCHANGE, DONE };

namespace { /* of this file alone: called without a detour, and inlined */

struct Runner;

struct Thread { /* of the block that runs */
    Fiber *fiber = nullptr;        /* that it waits on; null: it has not begun */
    Wait wait = DONE;
    int kind = 0;                  /* of the barrier or exchange */
    int predicate = 0;
    unsigned mask = 0;
    int source = 0;
    unsigned long long value = 0, result = 0;
};

/* One per stream thread: its fibers and its shared memory. */
struct Runner {
    const Kernel *kernel = nullptr;
    std::vector<Thread> threads;
    std::vector<std::unique_ptr<Fiber>> fibers;
    std::vector<Fiber *> idle;     /* those that no thread has begun on, the last one used at the end */
    Fiber *on = nullptr;           /* the one that runs */
    unsigned count = 0;            /* threads of the block */
    unsigned at = 0;               /* the one that runs */
    unsigned warp = 0;             /* whose threads are asked first */
    unsigned ready[MAX_BLOCK / WARP] = {};   /* lanes that can go on, or begin */
    unsigned live = 0, at_barrier = 0;
    unsigned alive[MAX_BLOCK / WARP] = {};   /* lanes of each warp that have not ended */
    unsigned waiting[MAX_BLOCK / WARP] = {}; /* those in an exchange */
    bool failed = false, turned = false;
    char *dynamic_end = nullptr, *dynamic_low = nullptr, *statics = nullptr;
    struct Static {
        const void *tag;
        char *data;
    };
    Static tags[64];
    unsigned tag_count = 0;
    char block_meeting = 0, barrier_meeting = 0, warp_meeting[MAX_BLOCK / WARP] = {}; /* what TSan knows the order by */
    size_t static_used = 0;

    Runner();
    ~Runner();
    void run(const Kernel &k);
    void run_block();
    void run_fibers();
    void begin_threads();
    bool choose();
    Fiber *fiber_of(unsigned thread);
    void next();
    void wait();
    void drop_fibers();
    void fresh_shared();
    void fail(const char *why);
    void release_barrier(int kind);
    bool release_exchange(unsigned of);
    void stuck();
};

} // namespace

static __thread __attribute__((tls_model("initial-exec"))) Runner *running; /* null outside kernels */

/* Not itself thread-local: there is little room for that in a library that is opened late. */
static Runner &runner()
{
    static thread_local std::unique_ptr<Runner> r(new Runner);
    return *r;
}

/* -- memory of blocks -- */

static char *map_guarded(size_t bytes)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE), body = (bytes + page - 1) / page * page;
    char *p = (char *)mmap(nullptr, body + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED)
        return nullptr;
    mprotect(p + body, page, PROT_NONE);
    return p;
}

Runner::Runner()
{
    statics = map_guarded(2 * STATIC_SHARED);
    dynamic_low = map_guarded(DYNAMIC_SHARED);
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    dynamic_end = dynamic_low ? dynamic_low + (DYNAMIC_SHARED + page - 1) / page * page : nullptr;
}

Runner::~Runner()
{
    ASAN_UNPOISON_MEMORY_REGION(statics, 2 * STATIC_SHARED);
    ASAN_UNPOISON_MEMORY_REGION(dynamic_low, (size_t)(dynamic_end - dynamic_low));
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    if (statics)
        munmap(statics, 2 * STATIC_SHARED + page);
    if (dynamic_low)
        munmap(dynamic_low, (size_t)(dynamic_end - dynamic_low) + page);
}

/* A thread of the block does it for all: memset would be a race to TSan. data is aligned. */
static void fill_unseen(char *data, size_t bytes)
{
    size_t i = 0;
    for (; i + 8 <= bytes; i += 8)
        *(volatile unsigned long long *)(data + i) = POISON * 0x0101010101010101ull;
    for (; i < bytes; i++)
        ((volatile unsigned char *)data)[i] = POISON;
}

static char *dynamic_start(const Runner &r)
{
    return (char *)((uintptr_t)(r.dynamic_end - r.kernel->shared_bytes) & ~(uintptr_t)127);
}

void Runner::fresh_shared()
{
    tag_count = 0;
    static_used = 0;
    ASAN_POISON_MEMORY_REGION(statics, 2 * STATIC_SHARED);
    if (kernel->shared_bytes) {
        char *start = dynamic_start(*this);
        ASAN_UNPOISON_MEMORY_REGION(start, kernel->shared_bytes);
        memset(start, POISON, kernel->shared_bytes);
    }
}

/* -- threads of a block -- */

static void tell(const Runner &r, const char *why)
{
    report("kernel %s: block (%u,%u,%u) thread (%u,%u,%u): %s", r.kernel->name, blockIdx.x, blockIdx.y, blockIdx.z, threadIdx.x,
           threadIdx.y, threadIdx.z, why);
}

void Runner::fail(const char *why)
{
    if (!failed)
        tell(*this, why);
    failed = true;
    set_sticky(kernel->device, cudaErrorLaunchFailure);
}

static void set_thread(unsigned i)
{
    if (blockDim.y == 1 && blockDim.z == 1) { /* nearly all: no divisions */
        threadIdx = {i, 0, 0};
        return;
    }
    threadIdx.x = i % blockDim.x;
    threadIdx.y = i / blockDim.x % blockDim.y;
    threadIdx.z = i / (blockDim.x * blockDim.y);
}

/* One thread of a block after the other; next() comes back when this fiber is to begin another. */
static void fiber_main(void *argument)
{
    Runner &r = *(Runner *)argument;
    for (;;) {
        order_after(&r.block_meeting);
        r.kernel->body();
        order_before(&r.block_meeting);
        r.threads[r.at].wait = DONE;
        r.alive[r.at / WARP] &= ~(1u << r.at % WARP);
        r.live--;
        if (r.live && r.at_barrier == r.live)
            r.release_barrier(-1);
        if (!Fiber::may_race())
            r.idle.push_back(r.on);
        r.next();
    }
}

void Runner::begin_threads()
{
    if (threads.empty())
        threads = std::vector<Thread>(MAX_BLOCK);
    for (unsigned w = 0; w * WARP < count; w++) {
        alive[w] = ready[w] = count - w * WARP < WARP ? (1u << (count - w * WARP)) - 1 : ~0u;
        waiting[w] = 0;
    }
    for (unsigned i = 0; i < count; i++) {
        threads[i].fiber = nullptr;
        threads[i].wait = READY;
    }
    live = count;
    at_barrier = 0;
    warp = turned ? (count - 1) / WARP : 0;
}

/* The next thread that can go on becomes the one that runs; false: there is none. */
bool Runner::choose()
{
    unsigned warps = (count + WARP - 1) / WARP;
    for (unsigned n = 0; n < warps; n++) {
        if (unsigned lanes = ready[warp]) {
            unsigned lane = turned ? 31 - (unsigned)__builtin_clz(lanes) : (unsigned)__builtin_ctz(lanes);
            ready[warp] &= ~(1u << lane);
            at = warp * WARP + lane;
            set_thread(at);
            return true;
        }
        warp = turned ? (warp ? warp : warps) - 1 : warp + 1 < warps ? warp + 1 : 0;
    }
    return false;
}

/* Where the thread goes on or begins; null: no memory. To TSan, what one fiber does is in order: if it is to see races, each
 * thread has its own. */
Fiber *Runner::fiber_of(unsigned thread)
{
    bool own = Fiber::may_race();
    if (threads[thread].fiber)
        return threads[thread].fiber;
    if (own && fibers.size() > thread)
        return fibers[thread].get();
    if (!own && !idle.empty()) {
        Fiber *last = idle.back();
        idle.pop_back();
        return last;
    }
    do
        fibers.push_back(std::make_unique<Fiber>(fiber_main, this));
    while (own && fibers.size() <= thread);
    return fibers.back()->good() ? fibers.back().get() : nullptr;
}

/* The running fiber is done with its thread, or that waits: another goes on. Comes back when this fiber is to. */
void Runner::next()
{
    Fiber *self = on, *to = !failed && choose() ? fiber_of(at) : nullptr;
    if (to == self)
        return;
    if (to) {
        on = to;
        self->pass(*to);
    } else {
        if (live && !failed && threads[at].wait == READY)
            fail("no memory for the stacks of its threads");
        self->leave();
    }
}

/* The running thread cannot go on. */
void Runner::wait()
{
    threads[at].fiber = on;
    next();
}

/* After a failure: fibers stopped somewhere are not to be entered again. */
void Runner::drop_fibers()
{
    fibers.clear();
    idle.clear();
    Fiber::forget();
}

/* Everyone who still runs waits at the barrier: they go on. */
void Runner::release_barrier(int kind)
{
    int any = 0, every = 1, sum = 0;
    for (unsigned i = 0; i < count; i++) {
        Thread &t = threads[i];
        if (t.wait != AT_BARRIER)
            continue;
        if (kind < 0)
            kind = t.kind;
        if (t.kind != kind) {
            fail("different kinds of __syncthreads meet");
            return;
        }
        any |= t.predicate != 0;
        every &= t.predicate != 0;
        sum += t.predicate != 0;
    }
    for (unsigned i = 0; i < count; i++)
        if (threads[i].wait == AT_BARRIER) {
            threads[i].wait = READY;
            ready[i / WARP] |= 1u << i % WARP;
            threads[i].result = (unsigned)(kind == TREK_SHIM_OR ? any : kind == TREK_SHIM_AND ? every : sum);
        }
    at_barrier = 0;
}

static unsigned long long fold(int kind, unsigned long long a, unsigned long long b)
{
    switch (kind) {
    case TREK_SHIM_ADD_S:
    case TREK_SHIM_ADD_U: return a + b;
    case TREK_SHIM_MIN_S: return (long long)b < (long long)a ? b : a;
    case TREK_SHIM_MAX_S: return (long long)b > (long long)a ? b : a;
    case TREK_SHIM_MIN_U: return b < a ? b : a;
    case TREK_SHIM_MAX_U: return b > a ? b : a;
    case TREK_SHIM_BIT_AND: return a & b;
    case TREK_SHIM_BIT_OR: return a | b;
    default: return a ^ b;
    }
}

/* The answers of one exchange; t are the threads of a warp. */
static void answer(Thread *t, unsigned mask)
{
    unsigned first = (unsigned)__builtin_ctz(mask);
    unsigned long long all = 0;
    bool started = false;
    int kind = t[first].kind;
    for (unsigned lane = 0; lane < WARP; lane++) {
        if (!(mask >> lane & 1u))
            continue;
        unsigned long long v = t[lane].value;
        if (kind == TREK_SHIM_BALLOT)
            all |= v << lane;
        else
            all = started ? fold(kind, all, v) : v;
        started = true;
    }
    for (unsigned lane = 0; lane < WARP; lane++) {
        if (!(mask >> lane & 1u))
            continue;
        Thread &me = t[lane];
        me.result = all;
        if (kind == TREK_SHIM_SHUFFLE) /* from a lane that takes no part: nothing sensible */
            me.result = mask >> (me.source & 31) & 1u ? t[me.source & 31].value : ~0ull;
        if (kind == TREK_SHIM_MATCH_ANY) {
            me.result = 0;
            for (unsigned other = 0; other < WARP; other++)
                if ((mask >> other & 1u) && t[other].value == me.value)
                    me.result |= 1ull << other;
        }
    }
}

/* The running thread has come to an exchange: if it was the last of its mask, all go on. */
bool Runner::release_exchange(unsigned of)
{
    Thread *t = &threads[of * WARP], &me = threads[at];
    unsigned mask = me.mask & alive[of];
    if (mask & ~waiting[of])
        return false;
    for (unsigned lane = 0; lane < WARP; lane++)
        if ((mask >> lane & 1u) && (t[lane].mask != me.mask || t[lane].kind != me.kind))
            return false;
    answer(t, mask);
    waiting[of] &= ~mask;
    ready[of] |= mask;
    for (unsigned lane = 0; lane < WARP; lane++)
        if (mask >> lane & 1u)
            t[lane].wait = READY;
    return true;
}

/* Nobody can go on. A lane that ended after others began to wait for it may be all that is missing. */
void Runner::stuck()
{
    for (unsigned i = 0; i < count; i++)
        if (threads[i].wait == AT_EXCHANGE) {
            at = i;
            if (release_exchange(i / WARP))
                return;
        }
    unsigned shown = count;
    for (unsigned i = 0; i < count && shown == count; i++)
        if (threads[i].wait != DONE)
            shown = i;
    set_thread(shown);
    char why[160];
    snprintf(why, sizeof why,
             "waits forever: %u of %u threads that still run are at __syncthreads, the rest in a warp's exchange", at_barrier,
             live);
    fail(why);
}

void Runner::run_fibers()
{
    turned = !turned; /* who goes first must not matter */
    begin_threads();
    order_before(&block_meeting);
    while (live && !failed) {
        if (!choose())
            stuck();
        else if ((on = fiber_of(at)))
            on->enter();
        else
            fail("no memory for the stacks of its threads");
    }
    order_after(&block_meeting);
    if (failed)
        drop_fibers();
}

void Runner::run_block()
{
    fresh_shared();
    if (!kernel->barriers) {
        for (unsigned i = 0; i < count && !failed; i++) {
            set_thread(turned ? count - 1 - i : i);
            kernel->body();
        }
        return;
    }
    run_fibers();
}

void Runner::run(const Kernel &k)
{
    kernel = &k;
    count = k.block.x * k.block.y * k.block.z;
    failed = false;
    running = this;
    Fiber::let_race(state().races);
    blockDim = k.block;
    gridDim = k.grid;
    if (!statics || !dynamic_low)
        fail("no memory for its shared memory");
    ASAN_POISON_MEMORY_REGION(dynamic_low, (size_t)(dynamic_end - dynamic_low));
    unsigned long long blocks = (unsigned long long)k.grid.x * k.grid.y * k.grid.z;
    bool backward = k.random & 1u; /* nor which block does */
    turned = k.random & 2u;
    for (unsigned long long n = 0; n < blocks && !failed; n++) {
        unsigned long long b = backward ? blocks - 1 - n : n;
        blockIdx.x = (unsigned)(b % k.grid.x);
        blockIdx.y = (unsigned)(b / k.grid.x % k.grid.y);
        blockIdx.z = (unsigned)(b / k.grid.x / k.grid.y);
        run_block();
    }
    running = nullptr;
}

void run_kernel(const Kernel &kernel) { runner().run(kernel); }
const char *running_kernel() { return running ? running->kernel->name : nullptr; }

} // namespace fake

using namespace fake;

void *trek_shim_dynamic_shared(void)
{
    if (!running->kernel->shared_bytes)
        running->fail("asks for dynamic shared memory, but was launched with none");
    return dynamic_start(*running);
}

void *trek_shim_static_shared(const void *tag, size_t bytes, size_t alignment)
{
    Runner &r = *running;
    for (unsigned i = 0; i < r.tag_count; i++)
        if (r.tags[i].tag == tag)
            return r.tags[i].data;
    size_t at = (r.static_used + 64 + alignment - 1) / alignment * alignment; /* a gap before each */
    at = (at + 15) / 16 * 16;
    if (at + bytes > STATIC_SHARED + 64 * (r.tag_count + 1) || r.tag_count == 64) {
        r.fail("has more than 48 KiB of static shared memory");
        at = 0;
        r.tag_count = 0;
    }
    char *data = r.statics + at;
    ASAN_UNPOISON_MEMORY_REGION(data, bytes);
    fill_unseen(data, bytes);
    r.static_used = at + bytes;
    r.tags[r.tag_count++] = {tag, data};
    return data;
}

int trek_shim_block_barrier(int kind, int predicate)
{
    Runner &r = *running;
    if (!r.kernel->barriers) {
        r.fail("__syncthreads in a kernel that was launched as one without barriers");
        return 0;
    }
    Thread &me = r.threads[r.at];
    me.wait = AT_BARRIER;
    me.kind = kind;
    me.predicate = predicate;
    order_before(&r.barrier_meeting);
    if (++r.at_barrier == r.live)
        r.release_barrier(kind);
    if (me.wait != READY)
        r.wait();
    else
        r.ready[r.at / WARP] &= ~(1u << r.at % WARP); /* it goes on at once */
    order_after(&r.barrier_meeting);
    return (int)me.result;
}

unsigned long long trek_shim_warp_exchange(unsigned mask, int kind, unsigned long long value, int source)
{
    Runner &r = *running;
    if (!r.kernel->barriers) {
        r.fail("an exchange within a warp in a kernel that was launched as one without barriers");
        return value;
    }
    Thread &me = r.threads[r.at];
    if (!(mask >> (r.at % WARP) & 1u)) {
        r.fail("a lane calls for an exchange whose mask leaves it out");
        r.on->leave();
    }
    me.wait = AT_EXCHANGE;
    r.waiting[r.at / WARP] |= 1u << r.at % WARP;
    me.mask = mask;
    me.kind = kind;
    me.value = value;
    me.source = source;
    char *meeting = &r.warp_meeting[r.at / WARP];
    order_before(meeting);
    if (!r.release_exchange(r.at / WARP))
        r.wait();
    else
        r.ready[r.at / WARP] &= ~(1u << r.at % WARP); /* it goes on at once */
    order_after(meeting);
    return me.result;
}

unsigned trek_shim_active_lanes(void)
{
    Runner &r = *running;
    if (r.kernel->barriers)
        return r.alive[r.at / WARP];
    return 1u << trek_shim_lane(); /* of a plain loop: it alone */
}

int trek_shim_lane(void) { return (int)((threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z)) % 32u); }

void trek_shim_trap(const char *why)
{
    running->fail(why);
    if (running->kernel->barriers)
        running->on->leave();
}

long long trek_shim_clock(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (long long)t.tv_sec * 1000000000ll + t.tv_nsec;
}
