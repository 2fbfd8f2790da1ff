/* SPDX-License-Identifier: Apache-2.0 */
/* Who touched which bytes when, and whether that is a race. */
#include <algorithm>
#include <cstring>

#include "ptx_machine.h"

namespace ptx {

/* --- cells --- */

void Shadow::find(uint64_t number, Slot *slot)
{
    Page &p = pages_[number];
    if (p.cells.empty())
        p.cells.resize(4096 / 4);
    *slot = { number, &p };
}

void Shadow::refine(Page &p, unsigned shift)
{
    const unsigned by = p.shift - shift;
    p.cells.resize(std::max(p.cells.size(), (size_t)4096 >> shift));
    for (size_t k = (size_t)4096 >> shift; k-- > 0;)
        p.cells[k] = p.cells[k >> by];
    p.shift = (uint8_t)shift;
}

void Shadow::trim()
{
    if (pages_.size() < 2048)
        return;
    pages_.clear();
    for (Slot &slot : slots_)
        slot = {};
}

/* --- order --- */

/* Whether the block `when` belongs to has passed its memory on to the running one: a fence, then an atomic that we met. */
bool Machine::released_to_us(uint32_t when)
{
    size_t place = (size_t)(std::upper_bound(block_times.begin(), block_times.end(), when) - block_times.begin()) - 1;
    for (uint64_t address : acquired) {
        auto found = released.find(address);
        if (found == released.end())
            continue;
        auto by = found->second.find(place);
        if (by != found->second.end() && when < by->second)
            return true;
    }
    return false;
}

/* Whether what several warps read of the cell at hand is over for the running one. */
bool Machine::knows_several(const Warp &w) const
{
    const unsigned warps = (threads + LANES - 1) / LANES;
    if (read_times.empty() || !noted)
        return false;
    const uint32_t *times = &read_times[(noted - SHARED_BASE) / 4 * warps];
    for (unsigned v = 0; v < warps; v++) {
        const bool over = times[v] < phase_first ||
            (v == w.index ? times[v] < w.last_sync : w.known.covers(v, times[v], 0, true)) ||
            ((w.knowing >> lane & 1u) && w.known_of_some.covers(v, times[v], 0, true));
        if (!over)
            return false;
    }
    return true;
}

/* Whether what left the mark comes before what the running lane does. */
bool Machine::ordered(const Warp &w, const Mark &mark)
{
    if (mark.time < launch_first)
        return true;
    if (mark.time < block_first)
        return released_to_us(mark.time);
    if (mark.time < phase_first && !(mark.flags & BULK)) /* of a copy those know who waited, or have met one who did */
        return true;
    if (mark.flags & SEVERAL_WARPS)
        return knows_several(w);
    if (mark.thread / LANES != w.index) {
        const bool several = mark.flags & SEVERAL;
        return w.known.covers(mark.thread / LANES, mark.time, mark.thread % LANES, several) ||
            ((w.knowing >> lane & 1u) && w.known_of_some.covers(mark.thread / LANES, mark.time, mark.thread % LANES, several));
    }
    return mark.time < w.last_sync || (mark.thread % LANES == lane && !(mark.flags & SEVERAL));
}

std::string Machine::teller(const Mark &mark) const
{
    if (mark.flags & BULK)
        return "a bulk copy";
    size_t place = (size_t)(std::upper_bound(block_times.begin(), block_times.end(), mark.time) - block_times.begin()) - 1;
    return "thread " + std::to_string(mark.thread) + " of block " + std::to_string(block_numbers.at(place));
}

/* What `ordered` says of most marks without a look at more than times: nothing that counts, one from before the block's last
 * barrier, the lane's own. */
inline bool Machine::is_calm(const Mark &mark, uint32_t oldest, uint16_t me) const
{
    if (mark.time < oldest)
        return true;
    if (mark.flags)
        return false;
    return mark.time >= phase_first ? mark.thread == me : mark.time >= block_first;
}

/* --- notes --- */

std::string Machine::in_flight(const Mark &writer) const
{
    return writer.flags & BULK ? teller(writer) : "a cp.async of " + teller(writer);
}

/* A read where is_calm does not know of all that was there */
void Machine::note_read(Warp &w, Space space, Cell &cell, bool atomic)
{
    const uint32_t oldest = space == SHARED ? block_first : launch_first;
    const uint16_t me = (uint16_t)(w.index * LANES + lane);
    Mark &writer = cell.writer, &reader = cell.reader;
    bool written = writer.time >= oldest;
    if (written && (writer.flags & IN_FLIGHT))
        fail("touches what " + in_flight(writer) + " may not have written yet");
    if (!written && space == SHARED)
        fail("reads shared memory that nothing has written");
    if (written && !(atomic && (writer.flags & ATOMIC)) && !ordered(w, writer))
        fail("races: reads what " + teller(writer) + " wrote");
    if (constant_data && written)
        fail("reads by ld.global.nc what the kernel writes");
    bool fresh = reader.time < oldest || ordered(w, reader);
    uint8_t flags = atomic ? ATOMIC : 0;
    if (!fresh) {
        if (reader.time < block_first)
            return; /* what another block read stays: no barrier of this one orders it */
        bool other = reader.thread / LANES != w.index;
        flags = (uint8_t)((reader.flags & (SEVERAL | SEVERAL_WARPS)) | SEVERAL | (other ? SEVERAL_WARPS : 0) |
                          (reader.flags & flags & ATOMIC));
    }
    reader = { time, me, flags };
}

/* The same of a write; same: the bytes have its value already. */
void Machine::note_write(Warp &w, Space space, Cell &cell, bool atomic, bool same)
{
    const uint32_t oldest = space == SHARED ? block_first : launch_first;
    Mark &writer = cell.writer, &reader = cell.reader;
    bool written = writer.time >= oldest;
    if (written && (writer.flags & IN_FLIGHT))
        fail("touches what " + in_flight(writer) + " may not have written yet");
    if (written && !(atomic && (writer.flags & ATOMIC)) && !ordered(w, writer) &&
        !(same && writer.thread / LANES == w.index && writer.time >= block_first))
        fail("races: writes what " + teller(writer) + " wrote");
    if (reader.time >= oldest && !(atomic && (reader.flags & ATOMIC)) && !ordered(w, reader))
        fail("races: writes what " + teller(reader) + " reads");
    writer = { time, (uint16_t)(w.index * LANES + lane), (uint8_t)(atomic ? ATOMIC : 0) };
    reader = {};
}

void Machine::note(Warp &w, Space space, uint64_t address, unsigned bytes, bool writes, bool atomic, const unsigned char *before,
                   const unsigned char *after)
{
    const bool is_shared = space == SHARED;
    const uint32_t oldest = is_shared ? block_first : launch_first;
    const uint16_t me = (uint16_t)(w.index * LANES + lane);
    const Shadow::Cells cells = (is_shared ? history.shared : history.global).cells(address, bytes, oldest);
    const uint8_t flags = atomic ? ATOMIC : 0;
    if (writes && is_shared && multiplies && multiplied[(address - SHARED_BASE) / 16])
        fail("overwrites what a wgmma may still read");
    const unsigned warps = (threads + LANES - 1) / LANES;
    for (unsigned k = 0; k < cells.count; k++) {
        Cell &cell = cells.first[k];
        noted = is_shared ? address + k * cells.bytes : 0;
        if (is_shared && !writes && !read_times.empty())
            read_times[(noted - SHARED_BASE) / 4 * warps + w.index] = time;
        const bool calm = is_calm(cell.writer, oldest, me);
        if (writes) {
            if (calm && is_calm(cell.reader, oldest, me)) {
                cell.writer = { time, me, flags };
                cell.reader = {};
            } else {
                note_write(w, space, cell, atomic, before &&
                           !memcmp(before + k * cells.bytes, after + k * cells.bytes, cells.bytes));
            }
            continue;
        }
        const Mark &reader = cell.reader;
        if (!calm || (cell.writer.time < oldest ? is_shared : constant_data))
            note_read(w, space, cell, atomic);
        else if (is_calm(reader, oldest, me))
            cell.reader = { time, me, flags };
        else if (reader.time < block_first && acquired.empty())
            continue; /* read by a block that nothing orders against this one */
        else if (reader.time != time || (reader.flags & ATOMIC) ||
                 !(reader.flags & (reader.thread / LANES == w.index ? SEVERAL | SEVERAL_WARPS : SEVERAL_WARPS)))
            note_read(w, space, cell, atomic);
    }
}

/* The bytes that a cp.async writes belong to it from when it begins until it has been waited for. */
void Machine::note_copy(Warp &w, uint64_t address, unsigned bytes, bool begins)
{
    if (begins)
        note(w, SHARED, address, bytes, true, false, nullptr, nullptr);
    const Shadow::Cells cells = history.shared.cells(address, bytes, block_first);
    for (unsigned k = 0; k < cells.count; k++)
        cells.first[k].writer = { time, (uint16_t)(w.index * LANES + lane), (uint8_t)(begins ? IN_FLIGHT : 0) };
}

/* The 16 bytes that a bulk copy writes: in flight from its issue, when they must be free, until its mbarrier has its bytes. */
void Machine::note_bulk(Warp &w, uint64_t address, const Meeting &meeting, bool begins)
{
    if (begins) {
        see_by_proxy(w, address);
        note(w, SHARED, address, 16, true, false, nullptr, nullptr);
    }
    const Shadow::Cells cells = history.shared.cells(address, 16, block_first);
    for (unsigned k = 0; k < cells.count; k++)
        cells.first[k].writer = { time, (uint16_t)((MOST_WARPS + meeting.number) * LANES),
                                  (uint8_t)(BULK | (begins ? IN_FLIGHT : 0)) };
}

/* The async proxy touches these 16 bytes: whatever threads wrote there needs a fence between, of who wrote or of who asks. */
void Machine::see_by_proxy(Warp &w, uint64_t address)
{
    const Shadow::Cells cells = history.shared.cells(address, 16, block_first);
    const uint32_t mine = proxied[w.index * LANES + lane];
    for (unsigned k = 0; k < cells.count; k++) {
        const Mark &writer = cells.first[k].writer;
        if (writer.time < block_first || (writer.flags & (BULK | IN_FLIGHT)))
            continue;
        if (writer.time >= proxied[writer.thread] && writer.time >= mine)
            fail("the async proxy meets what " + teller(writer) + " wrote without a fence.proxy.async");
    }
}

/* 16 bytes that a wgmma reads, when it is issued and when it has ended */
void Machine::read_by_wgmma(Warp &w, uint64_t address)
{
    see_by_proxy(w, address);
    note(w, SHARED, address, 16, false, false, nullptr, nullptr);
}

/* --- what is known through mbarriers --- */

void Clock::take(size_t who, const Known &what)
{
    if (of.size() <= who)
        of.resize(who + 1);
    Known &k = of[who];
    k.all = std::max(k.all, what.all);
    if (what.some > k.some) {
        k.some = what.some;
        k.lanes = what.lanes;
    }
}

void Clock::take(const Clock &other)
{
    for (size_t who = 0; who < other.of.size(); who++)
        take(who, other.of[who]);
}

bool Clock::covers(size_t who, uint32_t when, unsigned lane, bool several) const
{
    if (who >= of.size())
        return false;
    const Known &k = of[who];
    return when < k.all || (!several && when < k.some && (k.lanes >> lane & 1u));
}

void Machine::note_atomic(uint64_t address)
{
    if (std::find(acquired.begin(), acquired.end(), address) == acquired.end() && acquired.size() < 64)
        acquired.push_back(address);
    if (fenced)
        released[address][block_times.size() - 1] = fenced;
}

} // namespace ptx
