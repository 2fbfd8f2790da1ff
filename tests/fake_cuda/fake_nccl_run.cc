/* SPDX-License-Identifier: Apache-2.0 */
/* What ranks of the fake NCCL do together. The last to arrive does the work for all;
 * the others' streams wait, for ever if somebody never comes, until they are aborted.
 * Sums go from rank to rank, rounded to the type at each, as in a ring. */
#include "fake_nccl.h"

#include <algorithm>

#include "fake_number.h"

namespace fake {

size_t size_of(ncclDataType_t type)
{
    switch (type) {
    case ncclInt8: case ncclUint8: return 1;
    case ncclFloat16: case ncclBfloat16: return 2;
    case ncclInt64: case ncclUint64: case ncclFloat64: return 8;
    default: return 4;
    }
}

size_t elements_in(const Call &c, int size, int rank)
{
    switch (c.what) {
    case What::broadcast: return rank == c.root ? c.count : 0;
    case What::reduce_scatter: return c.count * (size_t)size;
    case What::receive: return 0;
    default: return c.count;
    }
}

size_t elements_out(const Call &c, int size, int rank)
{
    switch (c.what) {
    case What::reduce: return rank == c.root ? c.count : 0;
    case What::all_gather: return c.count * (size_t)size;
    case What::send: return 0;
    default: return c.count;
    }
}

/* -- arithmetic -- */

template <typename T> static T combine(T a, T b, ncclRedOp_t op)
{
    switch (op) {
    case ncclProd: return (T)(a * b);
    case ncclMax: return b > a ? b : a;
    case ncclMin: return b < a ? b : a;
    default: return (T)(a + b);
    }
}

template <typename T> static void fold_plain(void *into, const void *from, size_t n, ncclRedOp_t op)
{
    T *a = static_cast<T *>(into);
    const T *b = static_cast<const T *>(from);
    for (size_t i = 0; i < n; i++)
        a[i] = combine<T>(a[i], b[i], op);
}

template <float (*Get)(uint16_t), uint16_t (*Put)(float)> static void fold_half(void *into, const void *from, size_t n,
                                                                                ncclRedOp_t op)
{
    uint16_t *a = static_cast<uint16_t *>(into);
    const uint16_t *b = static_cast<const uint16_t *>(from);
    for (size_t i = 0; i < n; i++)
        a[i] = Put(combine<float>(Get(a[i]), Get(b[i]), op));
}

static void fold_in(void *into, const void *from, size_t n, ncclDataType_t type, ncclRedOp_t op)
{
    switch (type) {
    case ncclInt8: fold_plain<int8_t>(into, from, n, op); break;
    case ncclUint8: fold_plain<uint8_t>(into, from, n, op); break;
    case ncclInt32: fold_plain<int32_t>(into, from, n, op); break;
    case ncclUint32: fold_plain<uint32_t>(into, from, n, op); break;
    case ncclInt64: fold_plain<int64_t>(into, from, n, op); break;
    case ncclUint64: fold_plain<uint64_t>(into, from, n, op); break;
    case ncclFloat32: fold_plain<float>(into, from, n, op); break;
    case ncclFloat64: fold_plain<double>(into, from, n, op); break;
    case ncclFloat16: fold_half<f16_to_float, float_to_f16>(into, from, n, op); break;
    case ncclBfloat16: fold_half<bf16_to_float, float_to_bf16>(into, from, n, op); break;
    }
}

template <typename T> static void divide_plain(void *data, size_t n, int by)
{
    T *a = static_cast<T *>(data);
    for (size_t i = 0; i < n; i++)
        a[i] = (T)(a[i] / (T)by);
}

static void divide(void *data, size_t n, ncclDataType_t type, int by)
{
    uint16_t *half = static_cast<uint16_t *>(data);
    switch (type) {
    case ncclInt8: divide_plain<int8_t>(data, n, by); break;
    case ncclUint8: divide_plain<uint8_t>(data, n, by); break;
    case ncclInt32: divide_plain<int32_t>(data, n, by); break;
    case ncclUint32: divide_plain<uint32_t>(data, n, by); break;
    case ncclInt64: divide_plain<int64_t>(data, n, by); break;
    case ncclUint64: divide_plain<uint64_t>(data, n, by); break;
    case ncclFloat32: divide_plain<float>(data, n, by); break;
    case ncclFloat64: divide_plain<double>(data, n, by); break;
    case ncclFloat16:
        for (size_t i = 0; i < n; i++)
            half[i] = float_to_f16(f16_to_float(half[i]) / (float)by);
        break;
    case ncclBfloat16:
        for (size_t i = 0; i < n; i++)
            half[i] = float_to_bf16(bf16_to_float(half[i]) / (float)by);
        break;
    }
}

/* -- collectives -- */

static std::vector<char> reduced(const Meeting &m, size_t n)
{
    const Call &c = m.calls[0];
    std::vector<char> sum(static_cast<const char *>(c.in), static_cast<const char *>(c.in) + n * size_of(c.type));
    for (size_t r = 1; r < m.calls.size(); r++)
        fold_in(sum.data(), m.calls[r].in, n, c.type, c.op);
    if (c.op == ncclAvg)
        divide(sum.data(), n, c.type, (int)m.calls.size());
    return sum;
}

/* Everything is read before anything is written: in place is fine. */
static void do_meeting(const Meeting &m)
{
    const Call &c = m.calls[0];
    size_t part = c.count * size_of(c.type), ranks = m.calls.size();
    std::vector<char> all;
    switch (c.what) {
    case What::all_reduce:
    case What::reduce: all = reduced(m, c.count); break;
    case What::reduce_scatter: all = reduced(m, c.count * ranks); break;
    case What::broadcast:
        all.assign(static_cast<const char *>(m.calls[(size_t)c.root].in),
                   static_cast<const char *>(m.calls[(size_t)c.root].in) + part);
        break;
    default:
        for (const Call &own : m.calls)
            all.insert(all.end(), static_cast<const char *>(own.in), static_cast<const char *>(own.in) + part);
    }
    for (size_t r = 0; r < ranks; r++) {
        if (c.what == What::reduce && (int)r != c.root)
            continue;
        if (c.what == What::reduce_scatter)
            memcpy(m.calls[r].out, all.data() + r * part, part);
        else
            memcpy(m.calls[r].out, all.data(), all.size());
    }
}

static bool same(const Meeting &m)
{
    const Call &c = m.calls[0];
    return std::all_of(m.calls.begin(), m.calls.end(), [&c](const Call &o) {
        return o.what == c.what && o.count == c.count && o.type == c.type && o.op == c.op && o.root == c.root;
    });
}

/* What an aborted collective leaves in the memory of its result is anything. A root that sends from there does not write. */
void spoil(const Rank &rank, const Call &call)
{
    bool sends = call.what == What::broadcast && call.root == rank.rank && call.in == call.out;
    if (sends || !rank.aborted || state().quitting.load(std::memory_order_relaxed))
        return;
    open_memory(ALL_DEVICES);
    memset(call.out, 0x5a, elements_out(call, rank.world->size, rank.rank) * size_of(call.type));
}

/* An error that a test asked for: the rank says so, and its stream hangs as the real one's. */
static bool breaks(std::unique_lock<std::mutex> &lock, Rank &rank)
{
    cudaError_t error;
    if (rank.peer >= 0 || !fails_now("ncclAsync", &error))
        return false;
    rank.error = error == cudaErrorUnknown ? ncclSystemError : (ncclResult_t)error;
    rank.last_error = "a failure that was asked for";
    wait_for(lock, rank, [] { return false; });
    return true;
}

void run_collective(const std::shared_ptr<Rank> &rank, const Call &call)
{
    World &w = *rank->world;
    std::unique_lock<std::mutex> lock(w.mutex);
    if (rank->aborted || breaks(lock, *rank)) {
        spoil(*rank, call);
        return;
    }
    if (w.link >= 0) {
        lock.unlock();
        run_elsewhere(rank, call);
        return;
    }
    unsigned long number = rank->next++;
    std::shared_ptr<Meeting> &slot = w.meetings[number];
    if (!slot) {
        slot = std::make_shared<Meeting>();
        slot->calls.resize((size_t)w.size);
    }
    std::shared_ptr<Meeting> m = slot;
    m->calls[(size_t)rank->rank] = call;
    if (++m->arrived == w.size) {
        w.meetings.erase(number);
        bool fits = same(*m);
        if (fits) {
            open_memory(ALL_DEVICES);
            do_meeting(*m);
        } else {
            report("nccl: collective %lu: the ranks do not agree on what it is", number);
            for (auto &place : w.ranks)
                if (auto other = place.lock())
                    other->error = ncclInvalidUsage;
        }
        m->done = true;
        for (auto &place : w.ranks)
            if (auto other = place.lock())
                other->owed = other->peer >= 0;
        w.changed.notify_all();
        return;
    }
    if (!wait_for(lock, *rank, [&m] { return m->done; }))
        spoil(*rank, call);
}

/* -- sends and receives -- */

static bool receive(std::unique_lock<std::mutex> &lock, Rank &rank, const Call &call)
{
    World &w = *rank.world;
    auto &box = w.letters[{call.root, rank.rank}];
    if (!wait_for(lock, rank, [&box] { return !box.empty(); }))
        return false;
    std::shared_ptr<Letter> letter = box.front();
    box.pop_front();
    if (letter->call.count != call.count || letter->call.type != call.type) {
        report("nccl: rank %d sends %zu elements, rank %d receives %zu", call.root, letter->call.count, rank.rank, call.count);
        rank.error = ncclInvalidUsage;
    } else {
        open_memory(ALL_DEVICES);
        memcpy(call.out, letter->call.in, call.count * size_of(call.type));
    }
    letter->taken = true;
    w.changed.notify_all();
    return true;
}

void run_letters(const std::shared_ptr<Rank> &rank, const std::vector<Call> &calls)
{
    World &w = *rank->world;
    std::unique_lock<std::mutex> lock(w.mutex);
    if (rank->aborted || breaks(lock, *rank))
        return;
    std::vector<std::shared_ptr<Letter>> sent;
    for (const Call &call : calls)
        if (call.what == What::send) {
            sent.push_back(std::make_shared<Letter>());
            sent.back()->call = call;
            w.letters[{rank->rank, call.root}].push_back(sent.back());
        }
    w.changed.notify_all();
    for (const Call &call : calls)
        if (call.what == What::receive && !receive(lock, *rank, call))
            return;
    for (const auto &letter : sent)
        if (!wait_for(lock, *rank, [&letter] { return letter->taken; }))
            return;
}

} // namespace fake
