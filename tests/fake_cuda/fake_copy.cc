/* SPDX-License-Identifier: Apache-2.0 */
/* Copies and fills. Where pointers lie is checked against what the call says.
 * Pageable memory is read when the call is made and written before it returns, as
 * by the real runtime; pinned memory is read and written when the stream gets there. */
#include "fake_internal.h"

namespace fake {

struct Copy { /* rows of `width` bytes; a plain copy has one row */
    char *to;
    const char *from;
    size_t to_pitch, from_pitch, width, height;
    size_t to_bytes() const { return height ? (height - 1) * to_pitch + width : 0; }
    size_t from_bytes() const { return height ? (height - 1) * from_pitch + width : 0; }
};

static void do_copy(const Copy &c)
{
    for (size_t y = 0; y < c.height; y++)
        memcpy(c.to + y * c.to_pitch, c.from + y * c.from_pitch, c.width);
}

/* Pointers outside every block are taken for pageable memory. */
static cudaError_t check_sides(const Copy &c, cudaMemcpyKind kind, int *to, int *from)
{
    Block block;
    *to = where(c.to, c.to_bytes(), &block);
    *from = where(c.from, c.from_bytes(), &block);
    if (*to < 0 || *from < 0 || c.width > c.to_pitch || c.width > c.from_pitch)
        return cudaErrorInvalidValue;
    if (kind == cudaMemcpyDefault)
        return cudaSuccess;
    if ((int)kind < 0 || kind > cudaMemcpyDefault)
        return cudaErrorInvalidMemcpyDirection;
    bool to_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
    bool from_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
    /* pinned memory has a device address, so it may stand for device memory */
    bool fits = (to_device ? *to != 0 : *to != 1) && (from_device ? *from != 0 : *from != 1);
    return fits ? cudaSuccess : cudaErrorInvalidValue;
}

static cudaError_t start_copy(const Copy &c, cudaMemcpyKind kind, cudaStream_t stream, bool synchronous)
{
    int to, from;
    CUstream_st *s;
    if (c.width == 0 || c.height == 0)
        return cudaSuccess;
    cudaError_t error = check_sides(c, kind, &to, &from);
    if (!error)
        error = find_stream(stream, &s);
    if (error)
        return error;
    if ((to == 0 || from == 0) && captures(s))
        return unsafe_on(s);
    Task task;
    task.kind = Kind::copy;
    task.name = "copy";
    task.run = [c] { do_copy(c); };
    if (from == 0 && to != 0) {
        state().pageable += (long)(c.width * c.height);
        auto staged = std::make_shared<std::vector<char>>(c.width * c.height);
        do_copy({staged->data(), c.from, c.width, c.from_pitch, c.width, c.height});
        task.run = [c, staged] { do_copy({c.to, staged->data(), c.to_pitch, c.width, c.width, c.height}); };
    }
    error = submit(stream, std::move(task));
    if (error || (to != 0 && !synchronous))
        return error;
    wait_stream(s);
    return (cudaError_t)state().device[s->device].sticky.load(std::memory_order_relaxed);
}

static cudaError_t start_fill(void *pointer, int value, size_t bytes, cudaStream_t stream)
{
    Block block;
    if (bytes == 0)
        return cudaSuccess;
    int kind = where(pointer, bytes, &block);
    if (kind <= 0)
        return cudaErrorInvalidValue;
    Task task;
    task.kind = Kind::set;
    task.name = "fill";
    task.run = [pointer, value, bytes] { memset(pointer, value, bytes); };
    return submit(stream, std::move(task));
}

static cudaError_t check_peers(int to_device, int from_device)
{
    int n = state().devices;
    return to_device >= 0 && to_device < n && from_device >= 0 && from_device < n ? cudaSuccess : cudaErrorInvalidDevice;
}

static bool lies_on(const void *pointer, int device)
{
    Block block;
    return find_block(pointer, &block) && (block.device == device || block.device < 0);
}

} // namespace fake

using namespace fake;

extern "C" {

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind, cudaStream_t stream)
{
    FAKE_ENTER();
    return give(start_copy({(char *)to, (const char *)from, bytes, bytes, bytes, 1}, kind, stream, false));
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind)
{
    FAKE_ENTER();
    if (cudaError_t error = unsafe_call())
        return give(error);
    return give(start_copy({(char *)to, (const char *)from, bytes, bytes, bytes, 1}, kind, nullptr, true));
}

cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width, size_t height,
                              enum cudaMemcpyKind kind, cudaStream_t stream)
{
    FAKE_ENTER();
    return give(start_copy({(char *)to, (const char *)from, to_pitch, from_pitch, width, height}, kind, stream, false));
}

cudaError_t cudaMemcpyPeerAsync(void *to, int to_device, const void *from, int from_device, size_t bytes, cudaStream_t stream)
{
    FAKE_ENTER();
    cudaError_t error = check_peers(to_device, from_device);
    if (!error && bytes && !(lies_on(to, to_device) && lies_on(from, from_device)))
        error = cudaErrorInvalidValue;
    if (!error)
        error = start_copy({(char *)to, (const char *)from, bytes, bytes, bytes, 1}, cudaMemcpyDefault, stream, false);
    return give(error);
}

cudaError_t cudaMemcpyPeer(void *to, int to_device, const void *from, int from_device, size_t bytes)
{
    FAKE_ENTER();
    cudaError_t error = unsafe_call();
    if (!error)
        error = cudaMemcpyPeerAsync(to, to_device, from, from_device, bytes, nullptr);
    return error ? give(error) : cudaStreamSynchronize(nullptr);
}

cudaError_t cudaMemsetAsync(void *pointer, int value, size_t bytes, cudaStream_t stream)
{
    FAKE_ENTER();
    return give(start_fill(pointer, value, bytes, stream));
}

/* On device memory the real one returns before the fill has happened; so does this. */
cudaError_t cudaMemset(void *pointer, int value, size_t bytes)
{
    FAKE_ENTER();
    if (cudaError_t error = unsafe_call())
        return give(error);
    return give(start_fill(pointer, value, bytes, nullptr));
}

} // extern "C"
