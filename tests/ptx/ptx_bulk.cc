/* SPDX-License-Identifier: Apache-2.0 */
/* Hopper's asynchronous copies: mbarriers (PTX ISA, "mbarrier"), cp.async.bulk and cp.async.bulk.tensor, whose bytes an
 * mbarrier counts, and the fences between what threads do and what the async proxy does. */
#include <algorithm>
#include <cstring>

#include "ptx_machine.h"

namespace ptx {

/* --- mbarriers --- */

static uint64_t shared_address(Warp &w, const Instruction &i, unsigned l, unsigned k, unsigned bytes, unsigned alignment)
{
    Machine &m = *w.machine;
    uint64_t address = bits_of(w, operand(w, i, i.outputs + k), l) + (k == 0 ? (uint64_t)i.number : 0), shadow;
    Space space;
    m.lane = l;
    m.locate(w, i.space == SHARED ? SHARED : GENERIC, address, bytes, &shadow, &space);
    if (space != SHARED)
        m.fail("an address outside the block's shared memory");
    if (shadow % alignment)
        m.fail("an address that is not a multiple of " + std::to_string(alignment));
    return shadow;
}

/* The mbarrier at the address; whoever uses it must have met who made it. */
static Meeting &meeting_at(Warp &w, uint64_t address)
{
    Machine &m = *w.machine;
    auto found = m.meetings.find(address);
    if (found == m.meetings.end())
        m.fail("an mbarrier that nothing has initialised");
    if (m.options.races)
        m.note(w, SHARED, address, 8, false, true, nullptr, nullptr);
    return found->second;
}

static void begin_meeting(Warp &w, const Instruction &i, uint32_t mask)
{
    Machine &m = *w.machine;
    each_lane(mask, [&](unsigned l) {
        uint64_t address = shared_address(w, i, l, 0, 8, 8), count = bits_of(w, operand(w, i, 1), l);
        if (!count || count >= 1u << 20)
            m.fail("an mbarrier of " + std::to_string(count) + " arrivals");
        if (m.meetings.count(address))
            m.fail("initialises an mbarrier that is one already");
        if (m.options.races)
            m.note(w, SHARED, address, 8, true, false, nullptr, nullptr);
        Meeting meeting;
        meeting.expected = meeting.pending = (uint32_t)count;
        meeting.number = m.meetings_made++;
        meeting.maker = (uint16_t)(w.index * LANES + l);
        m.meetings[address] = std::move(meeting);
    });
}

static void end_meeting(Warp &w, const Instruction &i, uint32_t mask)
{
    Machine &m = *w.machine;
    each_lane(mask, [&](unsigned l) {
        uint64_t address = shared_address(w, i, l, 0, 8, 8);
        meeting_at(w, address);
        if (m.options.races)
            m.note(w, SHARED, address, 8, true, false, nullptr, nullptr);
        m.meetings.erase(address);
    });
}

static void end_phase_if_due(Machine &m, Meeting &b)
{
    if (b.pending || b.bytes)
        return;
    b.phase++;
    b.pending = b.expected;
    b.done = b.gathered;
    m.events++;
}

enum : uint8_t { ARRIVES = 1, EXPECTS = 2 };
static void arrive(Warp &w, const Instruction &i, uint32_t mask)
{
    Machine &m = *w.machine;
    const bool arrives = i.kind & ARRIVES, expects = i.kind & EXPECTS;
    const uint32_t now = ++m.time;
    each_lane(mask, [&](unsigned l) {
        Meeting &b = meeting_at(w, shared_address(w, i, l, 0, 8, 8));
        const uint64_t number = i.inputs > 1 ? bits_of(w, operand(w, i, i.outputs + 1u), l) & 0xffffffffu : 1;
        if (i.outputs && operand(w, i, 0).reg != SINK)
            put_bits(w, operand(w, i, 0), l, b.phase);
        if (expects)
            b.bytes += (int64_t)number;
        if (b.bytes >= 1 << 20)
            m.fail("an mbarrier that expects more bytes than it can count");
        if (arrives) {
            const uint32_t count = expects ? 1 : (uint32_t)number;
            if (count > b.pending)
                m.fail("more arrivals at an mbarrier than its phase has left");
            b.pending -= count;
            b.gathered.take(w.known);
            if (w.knowing >> l & 1u)
                b.gathered.take(w.known_of_some);
            /* all that lanes did before the warp last met, or before now if they are all here; this lane's until now */
            b.gathered.take(w.index, { mask == w.alive ? now : w.last_sync, now, mask });
        }
        end_phase_if_due(m, b);
    });
}

/* Whether the phase is over: of the parity that is asked for, or of the state that an arrival gave */
static void look(Warp &w, const Instruction &i, uint32_t mask)
{
    Machine &m = *w.machine;
    const Operand &to = operand(w, i, 0);
    uint32_t over = 0;
    each_lane(mask, [&](unsigned l) {
        Meeting &b = meeting_at(w, shared_address(w, i, l, 0, 8, 8));
        const uint64_t asked = bits_of(w, operand(w, i, i.outputs + 1u), l);
        if (i.kind && asked > 1)
            m.fail("a parity that is neither 0 nor 1");
        const bool is = i.kind ? (b.phase & 1) != asked : b.phase > asked;
        put_bits(w, to, l, is);
        over |= (uint32_t)is << l;
        if (!is)
            return;
        if (mask == w.alive) {
            w.known.take(b.done);
        } else {
            w.known_of_some.take(b.done);
            w.knowing = mask;
        }
    });
    w.found_going_on = over != mask;
    w.tried_at = &i;
}

void Warp::meet_all()
{
    known.take(known_of_some);
    known_of_some.of.clear();
    knowing = 0;
}

std::string Machine::what_is_missing() const
{
    std::string text;
    for (const auto &b : meetings)
        if (b.second.pending != b.second.expected || b.second.bytes)
            text += "; the one at " + std::to_string(b.first - SHARED_BASE) + " lacks " + std::to_string(b.second.pending) +
                    " arrivals, " + std::to_string(b.second.bytes) + " bytes";
    return text;
}

/* --- copies --- */

void Machine::end_bulk(size_t k)
{
    Bulk copy = std::move(bulks[k]);
    bulks.erase(bulks.begin() + (long)k);
    auto found = meetings.find(copy.meeting);
    if (found == meetings.end())
        fail("a bulk copy whose mbarrier is no longer there");
    Meeting &b = found->second;
    time++;
    for (const auto &piece : copy.pieces) {
        unsigned char *to = &shared[piece.first - SHARED_BASE];
        if (piece.second)
            memcpy(to, (const void *)(uintptr_t)piece.second, 16);
        else
            memset(to, 0, 16);
        fill_shared(piece.first, 16);
        if (options.races)
            note_bulk(*running, piece.first, b, false);
    }
    b.gathered.take(MOST_WARPS + b.number, { time + 1, 0, 0 });
    b.bytes -= (int64_t)copy.pieces.size() * 16;
    end_phase_if_due(*this, b);
}

/* When nobody can go on one copy's bytes come: which is nobody's to know. */
bool Machine::end_some_bulk()
{
    if (bulks.empty())
        return false;
    end_bulk(options.order == Order::random ? random() % bulks.size() : options.order == Order::backward ? bulks.size() - 1 : 0);
    return true;
}

static void start(Warp &w, Bulk copy)
{
    Machine &m = *w.machine;
    const Meeting &b = meeting_at(w, copy.meeting);
    if (!b.visible)
        m.fail("a bulk copy uses an mbarrier that no fence has shown to the async proxy since it was initialised");
    uint64_t read = 0;
    for (const auto &piece : copy.pieces) {
        if (piece.second) {
            read += 16;
            if (m.options.races)
                m.note(w, GLOBAL, piece.second, 16, false, false, nullptr, nullptr);
        }
        if (m.options.races)
            m.note_bulk(w, piece.first, b, true);
    }
    if (m.options.measure) {
        m.counts.loaded += read;
        m.counts.sectors += (read + 31) / 32;
        m.counts.least_sectors += (read + 31) / 32;
    }
    m.bulks.push_back(std::move(copy));
    if (!m.options.copy_late)
        m.end_bulk(m.bulks.size() - 1);
}

static void copy_bulk(Warp &w, const Instruction &i, uint32_t mask)
{
    Machine &m = *w.machine;
    each_lane(mask, [&](unsigned l) {
        const uint64_t bytes = bits_of(w, operand(w, i, 2), l) & 0xffffffffu, from = bits_of(w, operand(w, i, 1), l);
        m.lane = l;
        if (!bytes || bytes % 16 || from % 16)
            m.fail("a bulk copy of what is not a multiple of 16 bytes");
        Bulk copy;
        const uint64_t to = shared_address(w, i, l, 0, (unsigned)bytes, 16);
        copy.meeting = shared_address(w, i, l, 3, 8, 8);
        Space space;
        uint64_t shadow;
        for (uint64_t k = 0; k < bytes; k += 16) {
            m.locate(w, GLOBAL, from + k, 16, &shadow, &space);
            copy.pieces.push_back({ to + k, from + k });
        }
        start(w, std::move(copy));
    });
}

/* Where 16 bytes lie that without swizzling lay at the address (PTX ISA, "Swizzling modes" of tensors): bits 4 on differ by
 * bits 7 on, one for 32 bytes, two for 64, three for 128. */
uint64_t swizzled(uint64_t address, unsigned mode) { return address ^ (address >> 7 & ((1u << mode) - 1)) << 4; }

static TensorMap map_at(Warp &w, const Instruction &i, unsigned l)
{
    Machine &m = *w.machine;
    uint64_t address = bits_of(w, operand(w, i, 1), l), shadow;
    Space space;
    m.lane = l;
    const unsigned char *at = m.locate(w, GENERIC, address, 128, &shadow, &space);
    TensorMap map;
    memcpy(&map, at, sizeof map);
    if (shadow % 64 || (space != PARAM && space != GLOBAL))
        m.fail("a tensor map that is not in parameters or global memory at a multiple of 64");
    if (map.magic != TensorMap::MAGIC)
        m.fail("a tensor map that nothing has encoded");
    return map;
}

static void copy_tensor(Warp &w, const Instruction &i, uint32_t mask)
{
    Machine &m = *w.machine;
    each_lane(mask, [&](unsigned l) {
        const TensorMap map = map_at(w, i, l);
        if (map.rank != i.kind)
            m.fail("a tensor map of " + std::to_string(map.rank) + " dimensions");
        uint64_t rows = 1, row = (uint64_t)map.box[0] * map.element;
        int64_t from[5] = {};
        for (unsigned d = 0; d < map.rank; d++) {
            rows *= d ? map.box[d] : 1;
            from[d] = (int32_t)bits_of(w, operand(w, i, 2 + d), l);
        }
        const uint64_t to = shared_address(w, i, l, 0, (unsigned)(rows * row), 128);
        Bulk copy;
        copy.meeting = shared_address(w, i, l, 2u + map.rank, 8, 8);
        for (uint64_t r = 0; r < rows; r++) {
            uint64_t rest = r, address = map.address;
            bool there = true;
            for (unsigned d = 1; d < map.rank; d++) {
                const int64_t at = from[d] + (int64_t)(rest % map.box[d]);
                rest /= map.box[d];
                there = there && at >= 0 && at <= (int64_t)map.last[d];
                address += (uint64_t)at * map.strides[d - 1];
            }
            for (uint64_t k = 0; k < row; k += 16) { /* neighbours' size is a multiple of 16 bytes here */
                const int64_t at = from[0] + (int64_t)(k / map.element);
                const bool piece = there && at >= 0 && at <= (int64_t)map.last[0];
                const uint64_t source = piece ? address + (uint64_t)at * map.element : 0;
                if (piece && (source % 16 || at + 16 / map.element - 1 > (int64_t)map.last[0]))
                    m.fail(
                        "a tensor's row that does not begin and end at a multiple of 16 bytes, which this machine does not know");
                uint64_t shadow;
                Space space;
                if (piece)
                    m.locate(w, GLOBAL, source, 16, &shadow, &space);
                copy.pieces.push_back({ swizzled(to + r * row + k, map.swizzle), source });
            }
        }
        start(w, std::move(copy));
    });
}

/* At a block's end nothing may be on its way into its memory. */
void Machine::end_block(std::vector<Warp> &warps)
{
    if (!bulks.empty())
        fail("ends before a bulk copy into its shared memory has been waited for");
    for (unsigned w = 0; program->multiplies && w < (threads + LANES - 1) / LANES; w++) {
        running = &warps[w];
        if (!warps[w].multiplies.empty())
            fail("ends before a wgmma has been waited for");
        if (warps[w].multiplied != warps[w / 4 * 4].multiplied)
            fail("warps of a warpgroup that do not multiply alike");
    }
}

/* --- fences and the rest --- */

static void fence_proxy(Warp &w, const Instruction &i, uint32_t mask)
{
    Machine &m = *w.machine;
    const uint32_t now = ++m.time;
    for (auto &b : m.meetings)
        if (b.second.maker / LANES == w.index && (mask >> b.second.maker % LANES & 1u))
            b.second.visible = true;
    if (!i.kind)
        each_lane(mask, [&](unsigned l) { m.proxied[w.index * LANES + l] = now; });
}

/* One of the lanes, always the same */
static void elect(Warp &w, const Instruction &i, uint32_t mask)
{
    const unsigned leader = (unsigned)__builtin_ctz(mask);
    each_lane(mask, [&](unsigned l) {
        if (operand(w, i, 0).reg != SINK)
            put_bits(w, operand(w, i, 0), l, leader);
        if (operand(w, i, 1).reg != SINK)
            put_bits(w, operand(w, i, 1), l, l == leader);
    });
}

static void set_registers(Warp &w, const Instruction &i, uint32_t mask)
{
    const uint64_t n = bits_of(w, operand(w, i, 0), (unsigned)__builtin_ctz(mask));
    if (n < 24 || n > 256 || n % 8)
        w.machine->fail("setmaxnreg of what is no multiple of 8 from 24 to 256");
}

/* --- from opcodes --- */

static bool decode_meeting_object(const Opcode &o, Instruction *i)
{
    if (o.has("shared::cluster") || o.has("noComplete"))
        return false;
    i->space = o.has("shared") || o.has("shared::cta") ? SHARED : GENERIC;
    i->kind = o.has("parity");
    if (o.has("init"))
        i->handler = begin_meeting;
    else if (o.has("inval"))
        i->handler = end_meeting;
    else if (o.has("try_wait") || o.has("test_wait"))
        i->handler = look;
    else if (o.has("arrive") || o.has("expect_tx")) {
        i->kind = (uint8_t)((o.has("arrive") ? ARRIVES : 0) | (o.has("expect_tx") ? EXPECTS : 0));
        i->handler = arrive;
    }
    return i->handler != nullptr;
}

bool decode_bulk(const Opcode &o, Instruction *i)
{
    static const char *const ranks[] = { "1d", "2d", "3d", "4d", "5d" };
    if (o.base == "mbarrier")
        return decode_meeting_object(o, i);
    if (o.base == "fence" && (o.has("mbarrier_init") || (o.has("proxy") && o.has("async")))) {
        i->kind = o.has("mbarrier_init");
        i->handler = fence_proxy;
        return true;
    }
    if (o.base == "elect" && o.has("sync")) {
        i->control = MEET;
        i->handler = elect;
        return true;
    }
    if (o.base == "setmaxnreg") {
        i->control = MEET;
        i->aligned = true;
        i->handler = set_registers;
        return true;
    }
    if (o.base != "cp" || !o.has("bulk") || !(o.has("shared::cluster") || o.has("shared::cta")) ||
        !o.has("mbarrier::complete_tx::bytes") || o.has("multicast::cluster") || o.has("im2col"))
        return false;
    i->space = SHARED;
    i->handler = o.has("tensor") ? copy_tensor : copy_bulk;
    for (uint8_t d = 0; d < 5; d++)
        if (o.has(ranks[d]))
            i->kind = (uint8_t)(d + 1);
    return !o.has("tensor") || i->kind;
}

} // namespace ptx
