/* SPDX-License-Identifier: Apache-2.0 */
/* Stream capture: work of capturing streams becomes nodes of a graph; events carry
 * the edges from stream to stream. What the real runtime refuses during a capture
 * is refused, and spoils it, here too. */
#include <algorithm>
#include <set>

#include "fake_internal.h"

namespace fake {

struct Capture {
    unsigned long long id = 0;
    cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
    std::thread::id thread;
    bool spoiled = false;
    CUgraph_st *graph = nullptr;
    CUstream_st *origin = nullptr;
    std::set<CUstream_st *> streams;
};

struct Captures {
    std::mutex mutex;
    std::vector<Capture *> active;
    unsigned long long next = 1;
    std::atomic<int> count{0}; /* so that nobody locks while there is none */
};
static Captures &all()
{
    static Captures *c = new Captures;
    return *c;
}
static thread_local cudaStreamCaptureMode thread_mode = cudaStreamCaptureModeGlobal;

bool anything_captured() { return all().count.load(std::memory_order_acquire) > 0; }

bool captures(CUstream_st *stream)
{
    if (!anything_captured())
        return false;
    std::lock_guard<std::mutex> lock(all().mutex);
    return stream->capture != nullptr;
}

/* A call that may wait for other work, or allocate: forbidden to every thread by a
 * capture of global mode, to its own thread by any but a relaxed one. */
cudaError_t unsafe_call()
{
    if (!anything_captured() || thread_mode == cudaStreamCaptureModeRelaxed)
        return cudaSuccess;
    std::lock_guard<std::mutex> lock(all().mutex);
    cudaError_t error = cudaSuccess;
    for (Capture *c : all().active) {
        bool own = c->thread == std::this_thread::get_id();
        bool forbids = (c->mode == cudaStreamCaptureModeGlobal && (own || thread_mode == cudaStreamCaptureModeGlobal)) ||
                       (c->mode == cudaStreamCaptureModeThreadLocal && own);
        if (forbids) {
            c->spoiled = true;
            error = cudaErrorStreamCaptureUnsupported;
        }
    }
    return error;
}

cudaError_t unsafe_on(CUstream_st *stream)
{
    if (!anything_captured())
        return cudaSuccess;
    {
        std::lock_guard<std::mutex> lock(all().mutex);
        if (stream->capture) {
            stream->capture->spoiled = true;
            return cudaErrorStreamCaptureUnsupported;
        }
    }
    return unsafe_call();
}

cudaError_t capture_task(CUstream_st *stream, Task task)
{
    std::lock_guard<std::mutex> lock(all().mutex);
    Capture *c = stream->capture;
    if (!c)
        return cudaErrorIllegalState;
    if (c->spoiled)
        return cudaErrorStreamCaptureInvalidated;
    auto node = std::make_unique<Node>();
    node->task = std::move(task);
    node->after = stream->tips;
    node->index = c->graph->nodes.size();
    stream->tips.assign(1, node.get());
    c->graph->nodes.push_back(std::move(node));
    return cudaSuccess;
}

cudaError_t capture_record(CUstream_st *stream, CUevent_st *event)
{
    std::lock_guard<std::mutex> lock(all().mutex);
    Capture *c = stream->capture;
    if (!c)
        return cudaErrorIllegalState;
    if (c->spoiled)
        return cudaErrorStreamCaptureInvalidated;
    std::lock_guard<std::mutex> inner(event->mutex);
    event->capture_id = c->id;
    event->tips = stream->tips;
    event->point.reset();
    return cudaSuccess;
}

static Capture *by_id(unsigned long long id)
{
    for (Capture *c : all().active)
        if (c->id == id)
            return c;
    return nullptr;
}

/* taken: the wait belongs to a capture, or came to nothing. */
cudaError_t capture_wait(CUstream_st *stream, CUevent_st *event, bool *taken)
{
    *taken = false;
    if (!anything_captured() && !event->capture_id)
        return cudaSuccess;
    std::lock_guard<std::mutex> lock(all().mutex);
    Capture *own = stream->capture;
    if (own && own->spoiled)
        return cudaErrorStreamCaptureInvalidated;
    if (!event->capture_id) {
        if (!own)
            return cudaSuccess;
        own->spoiled = true; /* it would wait for work outside the capture */
        return cudaErrorStreamCaptureIsolation;
    }
    *taken = true;
    Capture *c = by_id(event->capture_id);
    if (!c)
        return cudaErrorCapturedEvent;
    if (c->spoiled)
        return cudaErrorStreamCaptureInvalidated;
    if (own && own != c) {
        own->spoiled = c->spoiled = true;
        return cudaErrorStreamCaptureMerge;
    }
    if (!own) {
        stream->capture = c;
        stream->tips.clear();
        c->streams.insert(stream);
    }
    for (Node *tip : event->tips)
        if (std::find(stream->tips.begin(), stream->tips.end(), tip) == stream->tips.end())
            stream->tips.push_back(tip);
    return cudaSuccess;
}

/* Whether every stream that joined has been waited for by the origin. */
static bool joined(const Capture *c)
{
    std::vector<bool> before(c->graph->nodes.size(), false);
    std::vector<Node *> open = c->origin->tips;
    while (!open.empty()) {
        Node *node = open.back();
        open.pop_back();
        if (before[node->index])
            continue;
        before[node->index] = true;
        open.insert(open.end(), node->after.begin(), node->after.end());
    }
    for (CUstream_st *s : c->streams)
        for (Node *tip : s->tips)
            if (!before[tip->index])
                return false;
    return true;
}

static void finish(Capture *c)
{
    for (CUstream_st *s : c->streams) {
        s->capture = nullptr;
        s->tips.clear();
    }
    all().active.erase(std::find(all().active.begin(), all().active.end(), c));
    all().count--;
    delete c;
}

} // namespace fake

using namespace fake;

extern "C" {

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode)
{
    FAKE_ENTER();
    CUstream_st *s;
    if (!stream || stream == cudaStreamLegacy || stream == cudaStreamPerThread)
        return give(cudaErrorStreamCaptureUnsupported);
    cudaError_t error = find_stream(stream, &s);
    if (error)
        return give(error);
    std::lock_guard<std::mutex> lock(all().mutex);
    if (s->capture)
        return give(cudaErrorIllegalState);
    Capture *c = new Capture;
    c->id = all().next++;
    c->mode = mode;
    c->thread = std::this_thread::get_id();
    c->graph = new CUgraph_st;
    c->origin = s;
    c->streams.insert(s);
    s->capture = c;
    s->tips.clear();
    all().active.push_back(c);
    all().count++;
    return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph)
{
    FAKE_ENTER();
    CUstream_st *s;
    *graph = nullptr;
    cudaError_t error = find_stream(stream, &s);
    if (error)
        return give(error);
    std::lock_guard<std::mutex> lock(all().mutex);
    Capture *c = s->capture;
    if (!c)
        return give(cudaErrorIllegalState);
    if (c->origin != s)
        return give(cudaErrorStreamCaptureUnmatched);
    if (c->mode != cudaStreamCaptureModeRelaxed && c->thread != std::this_thread::get_id())
        return give(cudaErrorStreamCaptureWrongThread);
    if (c->spoiled)
        error = cudaErrorStreamCaptureInvalidated;
    else if (!joined(c))
        error = cudaErrorStreamCaptureUnjoined;
    if (error)
        delete c->graph;
    else
        *graph = c->graph;
    finish(c);
    return give(error);
}

cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, enum cudaStreamCaptureStatus *status, unsigned long long *id,
                                     cudaGraph_t *graph, const cudaGraphNode_t **dependencies, const cudaGraphEdgeData **edges,
                                     size_t *count)
{
    FAKE_ENTER();
    CUstream_st *s;
    cudaError_t error = find_stream(stream, &s);
    if (error)
        return give(error);
    std::lock_guard<std::mutex> lock(all().mutex);
    Capture *c = s->capture;
    *status = !c ? cudaStreamCaptureStatusNone : c->spoiled ? cudaStreamCaptureStatusInvalidated : cudaStreamCaptureStatusActive;
    if (id)
        *id = c ? c->id : 0;
    if (graph)
        *graph = c ? c->graph : nullptr;
    if (dependencies)
        *dependencies = reinterpret_cast<const cudaGraphNode_t *>(s->tips.data());
    if (edges)
        *edges = nullptr;
    if (count)
        *count = s->tips.size();
    return cudaSuccess;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus *status)
{
    FAKE_ENTER();
    return cudaStreamGetCaptureInfo(stream, status, nullptr, nullptr, nullptr, nullptr, nullptr);
}

cudaError_t cudaThreadExchangeStreamCaptureMode(enum cudaStreamCaptureMode *mode)
{
    FAKE_ENTER();
    std::swap(*mode, thread_mode);
    return cudaSuccess;
}

} // extern "C"
