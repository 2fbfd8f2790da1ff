/* SPDX-License-Identifier: Apache-2.0 */
/* Streams of the fake runtime: one thread and one queue each. Work runs late, in
 * the order of the stream, with the rights to touch its device's memory. A stream that
 * has had nothing to do mostly sleeps on until somebody waits, who then does its work himself: that work comes even later
 * finds the same mistakes of the host, and costs no switches of threads, which were a third of the time of many tests. */
#include <algorithm>
#include <climits>
#include <ctime>
#include <unistd.h>

#include "fake_internal.h"

namespace fake {

struct Streams {
    std::mutex mutex;
    std::vector<CUstream_st *> live, ending, ended;
    std::atomic<unsigned long long> next{1};
    std::mutex idle_mutex;
    std::condition_variable watch;     /* what wakes streams for whom nobody waits */
    std::vector<CUstream_st *> unwoken; /* that sleep and have work */
    bool watched = false, watching = false;
};
static Streams &streams()
{
    static Streams *s = new Streams;
    return *s;
}

/* -- running work -- */

void run_task(const Task &task)
{
    Device &d = state().device[task.device];
    if (d.sticky.load(std::memory_order_relaxed) && task.kind != Kind::control)
        return;
    switch (task.kind) {
    case Kind::kernel: {
        cudaError_t error;
        d.kernels.fetch_add(1, std::memory_order_relaxed);
        if (fails_now("kernel", &error)) {
            set_sticky(task.device, error);
            return;
        }
        open_memory(reach(task.device));
        break;
    }
    case Kind::copy:
    case Kind::set: open_memory(ALL_DEVICES); break;
    case Kind::host: in_host_function(true); break;
    default: break;
    }
    task.run();
    in_host_function(false);
    open_memory(0);
}

unsigned late_random(CUstream_st *stream) { return (unsigned)stream->random(); }

static void delay(CUstream_st *s)
{
    State &st = state();
    while (st.device[s->device].held.load(std::memory_order_relaxed) && !st.quitting.load(std::memory_order_relaxed))
        usleep(200);
    unsigned seed = st.late.load(std::memory_order_relaxed);
    bool asked = st.late_set.load(std::memory_order_relaxed);
    if (asked && seed == 0)
        return;
    unsigned r = late_random(s);
    if (asked ? r % 2 == 0 : r % 16 == 0)
        usleep(asked ? (r / 2) % 300 : 20 + (r / 16) % 60);
}

/* -- waking -- */

/* A stream that sleeps wakes at so many tasks, and one time in eight at once: what begins early must not matter either. */
enum { MOST_UNWOKEN = 16, EAGER = 8 };

/* Not where delays are asked for, nor under TSan, to which a queue that is locked once more is order that no stream gives. */
static bool sleeps_on(unsigned long task)
{
#if defined(__SANITIZE_THREAD__)
    (void)task;
    return false;
#else
    return !state().late_set.load(std::memory_order_relaxed) && (task * 2654435761ul >> 16) % EAGER != 0;
#endif
}

static void wake_others(CUstream_st *but)
{
    Streams &all = streams();
    std::vector<CUstream_st *> list;
    {
        std::lock_guard<std::mutex> lock(all.idle_mutex);
        list.swap(all.unwoken);
    }
    for (CUstream_st *s : list)
        if (s != but) {
            s->mutex.lock(); /* it is not between looking and sleeping */
            s->mutex.unlock();
            s->changed.notify_one();
        }
}

void wake_streams() { wake_others(nullptr); }

/* Wakes what the host launched and then never asked for: a thread that looks every millisecond while there is any. */
static void watch_streams()
{
    Streams &all = streams();
    for (;;) {
        {
            std::unique_lock<std::mutex> lock(all.idle_mutex);
            all.watching = false;
            all.watch.wait(lock, [&all] { return !all.unwoken.empty(); });
            all.watching = true;
        }
        usleep(1000);
        wake_streams();
    }
}

/* The stream sleeps and got its first task. */
static void leave_asleep(CUstream_st *s)
{
    Streams &all = streams();
    std::lock_guard<std::mutex> lock(all.idle_mutex);
    if (!all.watched)
        std::thread(watch_streams).detach();
    all.watched = true;
    all.unwoken.push_back(s);
    if (!all.watching)
        all.watch.notify_one();
}

static void finish(CUstream_st *s, Task *task, std::unique_lock<std::mutex> &lock)
{
    task->run = nullptr; /* what it holds goes before the host hears of its end */
    lock.lock();
    if (++s->completed < s->wanted)
        return;
    s->wanted = ULONG_MAX;
    lock.unlock(); /* or who waits would wake to wait for this lock */
    s->ended.notify_all();
    lock.lock();
}

static void work(CUstream_st *s)
{
    open_memory(0);
    fault_stack();
    std::unique_lock<std::mutex> lock(s->mutex);
    for (;;) {
        s->asleep = s->tasks.empty();
        s->changed.wait(lock, [s] { return (!s->tasks.empty() && !s->helped) || s->closing; });
        s->asleep = false;
        if (s->tasks.empty())
            break;
        Task task = std::move(s->tasks.front());
        s->tasks.pop_front();
        lock.unlock();
        delay(s);
        if (!state().quitting.load(std::memory_order_relaxed))
            run_task(task);
        finish(s, &task, lock);
    }
    s->finished = true;
}

/* Who waits for a stream that sleeps does what it is to do, but for what is not to run on the host's thread. */
static void help(CUstream_st *s, unsigned long until, std::unique_lock<std::mutex> &lock)
{
    static thread_local bool ready = (fault_stack(), true);
    s->helped = ready;
    while (s->completed < until && !s->tasks.empty() && s->tasks.front().kind != Kind::host &&
           s->tasks.front().kind != Kind::graph && !state().device[s->device].held.load(std::memory_order_relaxed)) {
        Task task = std::move(s->tasks.front());
        s->tasks.pop_front();
        lock.unlock();
        run_task(task);
        finish(s, &task, lock);
    }
    s->helped = false;
    if (!s->tasks.empty())
        s->changed.notify_one();
}

/* -- streams -- */

static CUstream_st *make_stream(int device, unsigned flags, int priority)
{
    Streams &all = streams();
    CUstream_st *s = new CUstream_st;
    s->device = device;
    s->flags = flags;
    s->priority = priority;
    s->id = all.next++;
    s->random.seed(state().late + 7919u * (unsigned)s->id);
    std::lock_guard<std::mutex> lock(all.mutex);
    s->thread = std::thread(work, s);
    all.live.push_back(s);
    return s;
}

static CUstream_st *default_stream(int device)
{
    Device &d = state().device[device];
    std::lock_guard<std::mutex> lock(d.mutex);
    if (!d.stream)
        d.stream = make_stream(device, cudaStreamDefault, 0);
    return d.stream;
}

cudaError_t find_stream(cudaStream_t handle, CUstream_st **stream)
{
    if (handle == nullptr || handle == cudaStreamLegacy || handle == cudaStreamPerThread) {
        *stream = default_stream(current_device());
        return cudaSuccess;
    }
    if (handle->magic != MAGIC_STREAM)
        return cudaErrorInvalidResourceHandle;
    *stream = handle;
    int sticky = state().device[handle->device].sticky.load(std::memory_order_relaxed);
    return (cudaError_t)sticky;
}

void push(CUstream_st *s, Task task)
{
    {
        std::lock_guard<std::mutex> lock(s->mutex);
        s->tasks.push_back(std::move(task));
        bool later = sleeps_on(s->submitted++);
        if (!s->asleep || (later && s->tasks.size() != 1 && s->tasks.size() != MOST_UNWOKEN))
            return;
        if (!later || s->tasks.size() != 1) {
            s->changed.notify_one();
            return;
        }
    }
    leave_asleep(s);
}

cudaError_t submit(cudaStream_t handle, Task task)
{
    CUstream_st *s;
    cudaError_t error = find_stream(handle, &s);
    if (error)
        return error;
    if (task.kind == Kind::kernel && s->device != current_device())
        return cudaErrorInvalidResourceHandle;
    task.device = s->device;
    if (captures(s))
        return capture_task(s, std::move(task));
    push(s, std::move(task));
    return cudaSuccess;
}

void wait_stream(CUstream_st *s)
{
    wake_others(s);
    std::unique_lock<std::mutex> lock(s->mutex);
    unsigned long until = s->submitted;
    if (s->asleep && !s->helped && !s->tasks.empty() && !s->closing) {
        if (sleeps_on(until - s->tasks.size()))
            help(s, until, lock);
        else
            s->changed.notify_one();
    }
    while (s->completed < until) {
        s->wanted = std::min(s->wanted, until);
        s->ended.wait(lock);
    }
}

void wait_device(int device)
{
    Streams &all = streams();
    std::vector<CUstream_st *> list;
    {
        std::lock_guard<std::mutex> lock(all.mutex);
        for (CUstream_st *s : all.live)
            if (s->device == device)
                list.push_back(s);
        for (CUstream_st *s : all.ending)
            if (s->device == device)
                list.push_back(s);
    }
    for (CUstream_st *s : list)
        wait_stream(s); /* ending streams live on until they are reaped below */
}

static void close_stream(CUstream_st *s)
{
    std::lock_guard<std::mutex> lock(s->mutex);
    s->closing = true;
    s->changed.notify_one();
}

/* Joins the threads of destroyed streams that have ended; their shells stay, for waits under way. */
static void reap()
{
    Streams &all = streams();
    std::vector<CUstream_st *> still;
    std::lock_guard<std::mutex> lock(all.mutex);
    for (CUstream_st *s : all.ending) {
        std::unique_lock<std::mutex> inner(s->mutex);
        bool finished = s->finished;
        inner.unlock();
        if (finished)
            s->thread.join();
        (finished ? all.ended : still).push_back(s);
    }
    all.ending.swap(still);
}

/* At exit: what runs may end, what waits is dropped. */
void end_streams()
{
    Streams &all = streams();
    if (state().forked)
        return;
    state().quitting = true;
    std::vector<CUstream_st *> list;
    {
        std::lock_guard<std::mutex> lock(all.mutex);
        list = all.live;
        list.insert(list.end(), all.ending.begin(), all.ending.end());
    }
    for (CUstream_st *s : list)
        close_stream(s);
    for (CUstream_st *s : list)
        if (s->thread.joinable())
            s->thread.join();
}

/* -- points in streams -- */

static double now_ms()
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

void Point::set()
{
    std::lock_guard<std::mutex> lock(mutex);
    done = true;
    milliseconds = now_ms() + (double)state().pretended_ms;
    changed.notify_all();
}

/* A worker looks up now and then, so that the process can end. */
bool Point::wait(bool worker)
{
    wake_streams();
    std::unique_lock<std::mutex> lock(mutex);
    if (!worker)
        changed.wait(lock, [this] { return done; });
    while (!done && !state().quitting.load(std::memory_order_relaxed))
        changed.wait_until(lock, std::chrono::system_clock::now() + std::chrono::milliseconds(20));
    return done;
}

static std::shared_ptr<Point> point_of(CUevent_st *event)
{
    std::lock_guard<std::mutex> lock(event->mutex);
    return event->point;
}

static std::atomic<int> live_events{0};

} // namespace fake

using namespace fake;

extern "C" {

int trek_fake_streams(void)
{
    std::lock_guard<std::mutex> lock(streams().mutex);
    int n = 0;
    for (CUstream_st *s : streams().live)
        n += s != state().device[s->device].stream;
    return n;
}

int trek_fake_events(void) { return live_events; }
void trek_fake_hold(int device) { state().device[device].held = true; }
void trek_fake_let_go(int device) { state().device[device].held = false; }
long trek_fake_kernels(int device) { return state().device[device].kernels; }

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned int flags, int priority)
{
    FAKE_ENTER();
    *stream = nullptr;
    if (flags & ~(unsigned)cudaStreamNonBlocking)
        return give(cudaErrorInvalidValue);
    reap();
    *stream = make_stream(current_device(), flags, priority > 0 ? 0 : priority < -5 ? -5 : priority);
    return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned int flags)
{
    FAKE_ENTER();
    return cudaStreamCreateWithPriority(stream, flags, 0);
}

cudaError_t cudaStreamCreate(cudaStream_t *stream) { return cudaStreamCreateWithFlags(stream, cudaStreamDefault); }

cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    FAKE_ENTER();
    if (!stream || stream == cudaStreamLegacy || stream == cudaStreamPerThread || stream->magic != MAGIC_STREAM)
        return give(cudaErrorInvalidResourceHandle);
    stream->magic = MAGIC_DEAD;
    {
        Streams &all = streams();
        std::lock_guard<std::mutex> lock(all.mutex);
        for (size_t i = 0; i < all.live.size(); i++)
            if (all.live[i] == stream)
                all.live.erase(all.live.begin() + (long)i);
        all.ending.push_back(stream);
    }
    close_stream(stream);
    return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    FAKE_ENTER();
    CUstream_st *s;
    cudaError_t error = find_stream(stream, &s);
    if (!error)
        error = unsafe_on(s);
    if (error)
        return give(error);
    wait_stream(s);
    return give((cudaError_t)state().device[s->device].sticky.load(std::memory_order_relaxed));
}

cudaError_t cudaStreamQuery(cudaStream_t stream)
{
    FAKE_ENTER();
    CUstream_st *s;
    cudaError_t error = find_stream(stream, &s);
    if (!error)
        error = unsafe_on(s);
    if (error)
        return give(error);
    wake_streams();
    std::lock_guard<std::mutex> lock(s->mutex);
    return give(s->completed < s->submitted ? cudaErrorNotReady : cudaSuccess);
}

cudaError_t cudaDeviceSynchronize(void)
{
    FAKE_ENTER();
    if (cudaError_t error = unsafe_call())
        return give(error);
    wait_device(current_device());
    return give((cudaError_t)state().device[current_device()].sticky.load(std::memory_order_relaxed));
}

/* Ends sticky errors too; memory and streams stay, unlike the real one's. */
cudaError_t cudaDeviceReset(void)
{
    if (state().quitting || state().devices == 0)
        return cudaSuccess;
    wait_device(current_device());
    state().device[current_device()].sticky = 0;
    return cudaSuccess;
}

cudaError_t cudaStreamGetPriority(cudaStream_t stream, int *priority)
{
    FAKE_ENTER();
    CUstream_st *s;
    cudaError_t error = find_stream(stream, &s);
    if (!error)
        *priority = s->priority;
    return give(error);
}

cudaError_t cudaStreamGetFlags(cudaStream_t stream, unsigned int *flags)
{
    FAKE_ENTER();
    CUstream_st *s;
    cudaError_t error = find_stream(stream, &s);
    if (!error)
        *flags = s->flags;
    return give(error);
}

cudaError_t cudaStreamGetId(cudaStream_t stream, unsigned long long *id)
{
    FAKE_ENTER();
    CUstream_st *s;
    cudaError_t error = find_stream(stream, &s);
    if (!error)
        *id = s->id;
    return give(error);
}

cudaError_t cudaStreamGetDevice(cudaStream_t stream, int *device)
{
    FAKE_ENTER();
    CUstream_st *s;
    cudaError_t error = find_stream(stream, &s);
    if (!error)
        *device = s->device;
    return give(error);
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void *data)
{
    FAKE_ENTER();
    Task task;
    task.kind = Kind::host;
    task.name = "host function";
    task.run = [function, data] { function(data); };
    return give(submit(stream, std::move(task)));
}

/* -- events -- */

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned int flags)
{
    FAKE_ENTER();
    *event = new CUevent_st;
    (*event)->device = current_device();
    (*event)->flags = flags;
    live_events++;
    return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t *event) { return cudaEventCreateWithFlags(event, cudaEventDefault); }

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    FAKE_ENTER();
    if (!event || event->magic != MAGIC_EVENT)
        return give(cudaErrorInvalidResourceHandle);
    event->magic = MAGIC_DEAD;
    delete event;
    live_events--;
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    FAKE_ENTER();
    CUstream_st *s;
    cudaError_t error = event && event->magic == MAGIC_EVENT ? find_stream(stream, &s) : cudaErrorInvalidResourceHandle;
    if (!error && s->device != event->device)
        error = cudaErrorInvalidResourceHandle;
    if (error)
        return give(error);
    if (captures(s))
        return give(capture_record(s, event));
    auto point = std::make_shared<Point>();
    {
        std::lock_guard<std::mutex> lock(event->mutex);
        event->point = point;
        event->capture_id = 0;
        event->tips.clear();
    }
    Task task;
    task.name = "event record";
    task.device = s->device;
    task.run = [point] { point->set(); };
    push(s, std::move(task));
    return cudaSuccess;
}

cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned int flags)
{
    FAKE_ENTER();
    return flags ? give(cudaErrorNotSupported) : cudaEventRecord(event, stream);
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned int flags)
{
    FAKE_ENTER();
    CUstream_st *s;
    if (flags || !event || event->magic != MAGIC_EVENT)
        return give(flags ? cudaErrorInvalidValue : cudaErrorInvalidResourceHandle);
    cudaError_t error = find_stream(stream, &s);
    bool taken = false;
    if (!error)
        error = capture_wait(s, event, &taken);
    if (error || taken)
        return give(error);
    std::shared_ptr<Point> point = point_of(event);
    if (!point)
        return cudaSuccess;
    Task task;
    task.name = "event wait";
    task.device = s->device;
    task.run = [point] { point->wait(true); };
    push(s, std::move(task));
    return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t event)
{
    FAKE_ENTER();
    if (!event || event->magic != MAGIC_EVENT)
        return give(cudaErrorInvalidResourceHandle);
    if (cudaError_t error = unsafe_call())
        return give(error);
    if (event->capture_id)
        return give(cudaErrorCapturedEvent);
    std::shared_ptr<Point> point = point_of(event);
    wake_streams();
    if (point) {
        std::lock_guard<std::mutex> lock(point->mutex);
        if (!point->done)
            return give(cudaErrorNotReady);
    }
    return give((cudaError_t)state().device[event->device].sticky.load(std::memory_order_relaxed));
}

cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    FAKE_ENTER();
    if (!event || event->magic != MAGIC_EVENT)
        return give(cudaErrorInvalidResourceHandle);
    if (cudaError_t error = unsafe_call())
        return give(error);
    if (event->capture_id)
        return give(cudaErrorCapturedEvent);
    std::shared_ptr<Point> point = point_of(event);
    if (point)
        point->wait(false);
    return give((cudaError_t)state().device[event->device].sticky.load(std::memory_order_relaxed));
}

cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t start, cudaEvent_t end)
{
    FAKE_ENTER();
    if (!start || !end || start->magic != MAGIC_EVENT || end->magic != MAGIC_EVENT)
        return give(cudaErrorInvalidResourceHandle);
    std::shared_ptr<Point> a = point_of(start), b = point_of(end);
    if (!a || !b || ((start->flags | end->flags) & cudaEventDisableTiming))
        return give(cudaErrorInvalidResourceHandle);
    std::unique_lock<std::mutex> lock_a(a->mutex), lock_b(b->mutex, std::defer_lock);
    if (a != b)
        lock_b.lock();
    if (!a->done || !b->done)
        return give(cudaErrorNotReady);
    *milliseconds = (float)(b->milliseconds - a->milliseconds);
    return cudaSuccess;
}

} // extern "C"
