/* SPDX-License-Identifier: Apache-2.0 */
/* The driver's management of virtual memory: addresses, frames of memory, and which frame is at which addresses. A frame may be
 * at several. Addresses without one fault, and so do those that nobody was allowed to use. Frames lie in a file of memory for
 * each device. */
#include <fcntl.h>
#include <map>
#include <sys/mman.h>
#include <unistd.h>

#include "fake_internal.h"

namespace fake {

enum { DONE = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NOT_SUPPORTED = 801, ON_DEVICE = 1, PINNED = 1, READ_WRITE = 3 };

struct Frame {
    int device = 0;
    size_t bytes = 0;
    off_t offset = 0;         /* in its device's file */
    int uses = 1;             /* the handle, and each mapping */
    bool released = false;
};

struct Mapping {
    unsigned long long frame;
    size_t bytes;
};

struct Pages {
    std::mutex mutex;
    std::map<unsigned long long, Frame> frames;
    std::map<Address, Mapping> mappings;
    unsigned long long last = 0;
    int file[MAX_DEVICES];
    off_t end[MAX_DEVICES] = {};
    Pages()
    {
        for (int &fd : file)
            fd = -1;
    }
};
static Pages &pages()
{
    static Pages *p = new Pages;
    return *p;
}

static size_t page() { return (size_t)sysconf(_SC_PAGESIZE); }

static bool fails(const char *function)
{
    cudaError_t error;
    return fails_now(function, &error);
}

static bool is_kind(const FrameKind *kind)
{
    return kind && kind->type == PINNED && kind->handle_types == 0 && kind->where.type == ON_DEVICE && kind->where.id >= 0 &&
        kind->where.id < state().devices;
}

static bool hide(void *at, size_t bytes)
{
    return mmap(at, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) != MAP_FAILED;
}

int frame_granularity(size_t *bytes, const FrameKind *kind, int which)
{
    if (!bytes || !is_kind(kind) || which < 0 || which > 1)
        return INVALID_VALUE;
    if (fails("cuMemGetAllocationGranularity"))
        return NOT_SUPPORTED;
    *bytes = page();
    return DONE;
}

int reserve_addresses(Address *at, size_t bytes, size_t alignment, Address wish, unsigned long long flags)
{
    if (!at || !bytes || bytes % page() || alignment || wish || flags)
        return INVALID_VALUE;
    if (fails("cuMemAddressReserve"))
        return OUT_OF_MEMORY;
    void *memory = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED)
        return OUT_OF_MEMORY;
    Block block;
    block.base = block.mapped = (char *)memory;
    block.bytes = block.mapped_bytes = bytes;
    block.device = current_device();
    add_block(block);
    *at = (Address)(uintptr_t)memory;
    return DONE;
}

/* The addresses stay taken, and fault. */
int free_addresses(Address at, size_t bytes)
{
    Block block;
    std::lock_guard<std::mutex> lock(pages().mutex);
    auto next = pages().mappings.lower_bound(at);
    if (next != pages().mappings.end() && next->first < at + bytes)
        return INVALID_VALUE; /* something is mapped there */
    if (!find_block((void *)(uintptr_t)at, &block) || block.bytes != bytes ||
        !take_block((void *)(uintptr_t)at, true, false, &block))
        return INVALID_VALUE;
    return DONE;
}

int create_frame(unsigned long long *frame, size_t bytes, const FrameKind *kind, unsigned long long flags)
{
    if (!frame || !bytes || bytes % page() || !is_kind(kind) || flags)
        return INVALID_VALUE;
    int device = kind->where.id;
    if (fails("cuMemCreate") || !use_device(device, bytes))
        return OUT_OF_MEMORY;
    Pages &p = pages();
    std::lock_guard<std::mutex> lock(p.mutex);
    if (p.file[device] < 0)
        p.file[device] = memfd_create("fake device", MFD_CLOEXEC);
    Frame made;
    made.device = device;
    made.bytes = bytes;
    made.offset = p.end[device];
    std::vector<char> fresh(bytes, (char)POISON);
    if (pwrite(p.file[device], fresh.data(), bytes, made.offset) != (ssize_t)bytes) {
        state().device[device].used -= bytes;
        return OUT_OF_MEMORY;
    }
    p.end[device] += (off_t)bytes;
    p.frames[++p.last] = made;
    *frame = p.last;
    return DONE;
}

/* Called with the lock. */
static void drop_use(Pages &p, unsigned long long frame)
{
    Frame &f = p.frames[frame];
    if (--f.uses > 0)
        return;
    fallocate(p.file[f.device], FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, f.offset, (off_t)f.bytes);
    state().device[f.device].used -= f.bytes;
    p.frames.erase(frame);
}

int release_frame(unsigned long long frame)
{
    Pages &p = pages();
    std::lock_guard<std::mutex> lock(p.mutex);
    auto found = p.frames.find(frame);
    if (found == p.frames.end() || found->second.released)
        return INVALID_VALUE;
    found->second.released = true;
    drop_use(p, frame);
    return DONE;
}

int map_frame(Address at, size_t bytes, size_t offset, unsigned long long frame, unsigned long long flags)
{
    Pages &p = pages();
    Block block;
    if (fails("cuMemMap"))
        return OUT_OF_MEMORY;
    std::lock_guard<std::mutex> lock(p.mutex);
    auto found = p.frames.find(frame);
    auto next = p.mappings.lower_bound(at);
    if (found == p.frames.end() || found->second.released || offset || flags || bytes != found->second.bytes ||
        where((void *)(uintptr_t)at, bytes, &block) != 1 || at % page() ||
        (next != p.mappings.end() && next->first < at + bytes))
        return INVALID_VALUE;
    if (block.device != found->second.device)
        return NOT_SUPPORTED; /* the real one can do it; here addresses belong to the device of who has reserved them */
    p.mappings[at] = { frame, bytes };
    found->second.uses++;
    return DONE;
}

int unmap_frame(Address at, size_t bytes)
{
    Pages &p = pages();
    std::lock_guard<std::mutex> lock(p.mutex);
    auto found = p.mappings.find(at);
    if (found == p.mappings.end() || found->second.bytes != bytes || !hide((void *)(uintptr_t)at, bytes))
        return INVALID_VALUE;
    unsigned long long frame = found->second.frame;
    p.mappings.erase(found);
    drop_use(p, frame);
    return DONE;
}

/* Whoever may touch the device's memory may touch this; peers are asked for, so that they are not forgotten. */
int allow_access(Address at, size_t bytes, const Access *who, size_t n)
{
    Pages &p = pages();
    std::lock_guard<std::mutex> lock(p.mutex);
    auto found = p.mappings.find(at);
    if (found == p.mappings.end() || found->second.bytes != bytes || !who || !n)
        return INVALID_VALUE;
    const Frame &f = p.frames[found->second.frame];
    bool own = false;
    for (size_t k = 0; k < n; k++) {
        if (who[k].who.type != ON_DEVICE || who[k].flags != READ_WRITE || who[k].who.id < 0 || who[k].who.id >= state().devices ||
            (who[k].who.id != f.device && !state().peer))
            return INVALID_VALUE;
        own |= who[k].who.id == f.device;
    }
    void *to = (void *)(uintptr_t)at;
    if (!own || mmap(to, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, p.file[f.device], f.offset) == MAP_FAILED)
        return INVALID_VALUE;
#ifdef PKEY_DISABLE_ACCESS
    if (state().unprotected.empty())
        pkey_mprotect(to, bytes, PROT_READ | PROT_WRITE, state().device[f.device].key);
#endif
    return DONE;
}

} // namespace fake
