/* SPDX-License-Identifier: Apache-2.0 */
/* Loads, stores, atomics and asynchronous copies, and the checks that go with them. */
#include <algorithm>
#include <cmath>
#include <cstring>

#include "ptx_machine.h"

namespace ptx {

/* --- where it lies --- */

/* Whether [begin, end) lies in one of the ranges that were met last */
bool Machine::in_one_range(uint64_t begin, uint64_t end) const
{
    for (const Range &r : ranges)
        if (begin >= r.begin && end <= r.end)
            return true;
    return false;
}

unsigned char *Machine::global(uint64_t address, unsigned bytes)
{
    if (in_one_range(address, address + bytes))
        return (unsigned char *)(uintptr_t)address;
    Range r = memory->find((uintptr_t)address);
    for (const auto &v : module_ranges)
        if (address >= v.begin && address < v.end)
            r = v;
    if (!r.end || address + bytes > r.end)
        fail(r.end ? "an address that reaches over the end of its memory" : "an address where there is no memory");
    ranges[next_range++ % 8] = r;
    return (unsigned char *)(uintptr_t)address;
}

unsigned char *Machine::locate(Warp &w, Space space, uint64_t address, unsigned bytes, uint64_t *shadow_address, Space *found)
{
    if (space == GENERIC) {
        uint64_t window = address & WINDOW_MASK;
        space = window == SHARED_WINDOW ? SHARED : window == LOCAL_WINDOW ? LOCAL : window == PARAM_WINDOW ? PARAM : GLOBAL;
        address = space == GLOBAL ? address : address & ~WINDOW_MASK;
    }
    *found = space;
    *shadow_address = address;
    switch (space) {
    case SHARED:
        if (address < SHARED_BASE || address + bytes > shared_end)
            fail("an address outside the block's shared memory");
        return &shared[address - SHARED_BASE];
    case LOCAL:
        if (address < 16 || address - 16 + bytes > program->local_bytes)
            fail("an address outside the thread's local memory");
        return &w.local[lane * program->local_bytes + (address - 16)];
    case PARAM:
        if (address + bytes > program->parameter_bytes)
            fail("an address outside the kernel's parameters");
        return &parameters[address];
    case CALL_PARAM:
        if (address + bytes > program->frame_bytes)
            fail("an address outside a call's parameters");
        return &w.frame[lane * program->frame_bytes + address];
    default: return global(address, bytes);
    }
}

/* --- what it costs --- */

static unsigned distinct(uint64_t *values, unsigned n)
{
    std::sort(values, values + n);
    return (unsigned)(std::unique(values, values + n) - values);
}

void measure(Machine &m, Space space, const uint64_t *addresses, unsigned n, unsigned bytes, bool writes)
{
    uint64_t units[LANES * 2];
    if (space == GLOBAL) {
        unsigned k = 0;
        for (unsigned l = 0; l < n; l++)
            units[k++] = addresses[l] / 32;
        m.counts.sectors += distinct(units, k) * (bytes > 32 ? 2u : 1u);
        for (unsigned l = 0; l < n; l++)
            units[l] = addresses[l];
        uint64_t asked = (uint64_t)distinct(units, n) * bytes;
        m.counts.least_sectors += (asked + 31) / 32;
        (writes ? m.counts.stored : m.counts.loaded) += asked;
    } else if (space == SHARED) { /* lanes go in turns that move at most 128 bytes */
        unsigned per_turn = bytes <= 4 ? 32 : 128 / bytes;
        for (unsigned from = 0; from < n; from += per_turn) {
            uint64_t words[LANES * 4];
            unsigned k = 0, most = 0, banks[32] = {};
            for (unsigned l = from; l < std::min(n, from + per_turn); l++)
                for (unsigned b = 0; b < std::max(bytes, 4u); b += 4)
                    words[k++] = addresses[l] / 4 + b / 4;
            k = distinct(words, k);
            for (unsigned q = 0; q < k; q++)
                most = std::max(most, ++banks[words[q] % 32]);
            m.counts.shared++;
            m.counts.conflicts += most ? most - 1 : 0;
        }
    }
}

/* --- loads and stores --- */

struct Access {
    unsigned char *at;
    uint64_t shadow;
    Space space;
};

static uint64_t address_of(Warp &w, const Instruction &i, unsigned l, unsigned k = 0)
{
    return bits_of(w, operand(w, i, i.outputs + k), l) + (k == 0 ? (uint64_t)i.number : 0);
}

static Access accessed(Warp &w, const Instruction &i, uint64_t address, unsigned l, unsigned bytes)
{
    Machine &m = *w.machine;
    Access a;
    m.lane = l;
    if (address % bytes)
        m.fail("an address that is not a multiple of " + std::to_string(bytes));
    a.at = m.locate(w, i.space, address, bytes, &a.shadow, &a.space);
    return a;
}

static inline bool is_watched(const Machine &m, Space space) { return m.options.races && (space == SHARED || space == GLOBAL); }

/* The lanes' accesses, each at its lane's place */
struct Places {
    unsigned char *at[LANES];
    uint64_t shadow[LANES];
    Space space[LANES];
};

/* All lanes at once, if they are in one space, in one range, aligned: what a lane at a time would find. */
static bool place_together(Warp &w, const Instruction &i, uint32_t mask, unsigned bytes, Places *p)
{
    Machine &m = *w.machine;
    const Operand &o = operand(w, i, i.outputs);
    const unsigned char *registers = (o.reg == CONSTANT ? w.constants : w.registers) + o.at;
    uint64_t *const to = p->shadow, number = (uint64_t)i.number, lowest = ~0ull, highest = 0, all = 0;
    if (o.width == 8)
        each_lane(mask, [&](unsigned l) { to[l] = ((const uint64_t *)registers)[l] + number; });
    else
        each_lane(mask, [&](unsigned l) { to[l] = bits_of(w, o, l) + number; });
    each_lane(mask, [&](unsigned l) {
        lowest = std::min(lowest, to[l]);
        highest = std::max(highest, to[l]);
        all |= to[l];
    });
    if (all & (bytes - 1))
        return false;
    Space space = i.space;
    uint64_t window = 0;
    if (space == GENERIC) {
        window = lowest & WINDOW_MASK;
        if (window != (highest & WINDOW_MASK))
            return false;
        space = window == SHARED_WINDOW ? SHARED : window == LOCAL_WINDOW ? LOCAL : window == PARAM_WINDOW ? PARAM : GLOBAL;
        window = space == GLOBAL ? 0 : window;
    }
    lowest -= window;
    highest -= window;
    uintptr_t origin = 0, between = 0; /* of address 0 in the first lane; from lane to lane */
    uint64_t first = 0, last = 0;
    switch (space) {
    case SHARED: first = SHARED_BASE, last = m.shared_end, origin = (uintptr_t)m.shared.data() - SHARED_BASE; break;
    case LOCAL:
        first = 16, last = 16 + m.program->local_bytes, origin = (uintptr_t)w.local.data() - 16, between = m.program->local_bytes;
        break;
    case PARAM: last = m.program->parameter_bytes, origin = (uintptr_t)m.parameters.data(); break;
    case CALL_PARAM: last = between = m.program->frame_bytes, origin = (uintptr_t)w.frame.data(); break;
    default:
        if (!m.in_one_range(lowest, highest + bytes))
            return false;
        first = lowest, last = ~0ull;
    }
    if (lowest < first || highest + bytes > last)
        return false;
    memset(p->space, space, sizeof p->space);
    each_lane(mask, [&](unsigned l) {
        to[l] -= window;
        p->at[l] = (unsigned char *)(origin + l * between + to[l]);
    });
    return true;
}

/* fails at the first lane whose access is a fault */
static void place(Warp &w, const Instruction &i, uint32_t mask, unsigned bytes, Places *p)
{
    if (place_together(w, i, mask, bytes, p))
        return;
    each_lane(mask, [&](unsigned l) {
        Access a = accessed(w, i, address_of(w, i, l), l, bytes);
        p->at[l] = a.at;
        p->shadow[l] = a.shadow;
        p->space[l] = a.space;
    });
}

static void measure_places(Machine &m, const Places &p, uint32_t mask, unsigned bytes, bool writes)
{
    uint64_t addresses[LANES];
    unsigned n = 0;
    each_lane(mask, [&](unsigned l) { addresses[n++] = p.shadow[l]; });
    measure(m, p.space[31 - __builtin_clz(mask)], addresses, n, bytes, writes);
}

static uint64_t fetched(const unsigned char *at, unsigned bytes, bool is_signed)
{
    uint64_t v = 0;
    memcpy(&v, at, bytes);
    if (is_signed && bytes < 8)
        v = (uint64_t)((int64_t)(v << (64 - 8 * bytes)) >> (64 - 8 * bytes));
    return v;
}

/* Elements of type T into registers of type R */
template <typename T, typename R> static void fetch(Warp &w, const Instruction &i, uint32_t mask, const Places &p)
{
    for (unsigned k = 0; k < i.vector; k++) {
        R *d = output<R>(w, i, k);
        each_lane(mask, [&](unsigned l) {
            T x;
            memcpy(&x, p.at[l] + k * sizeof(T), sizeof x);
            d[l] = (R)x;
        });
    }
}

static void note_reads(Warp &w, const Instruction &i, uint32_t mask, unsigned bytes, const Places &p)
{
    Machine &m = *w.machine;
    unsigned before = LANES, again = 0; /* the lane before, and how many have read the same since another */
    m.constant_data = i.constant_data;
    each_lane(mask, [&](unsigned l) {
        again = before < LANES && p.shadow[l] == p.shadow[before] && p.space[l] == p.space[before] ? again + 1 : 0;
        before = l;
        if (again > 1 || !is_watched(m, p.space[l])) /* a third one says no more than two: several lanes read it */
            return;
        m.lane = l;
        m.note(w, p.space[l], p.shadow[l], bytes, false, i.is_volatile, nullptr, nullptr);
    });
    m.constant_data = false;
}

/* What was loaded has values where its memory has. */
static void load_validity(Warp &w, const Instruction &i, uint32_t mask, const Places &p)
{
    Machine &m = *w.machine;
    each_lane(mask, [&](unsigned l) {
        const unsigned char *valid = m.validity(w, p.space[l], p.at[l]);
        for (unsigned k = 0; valid && k < i.vector; k++) {
            uint64_t undefined = ~fetched(valid + k * i.size, i.size, true); /* a sign that has none gives none */
            if (!i.is_signed && i.size < 8)
                undefined &= (1ull << 8 * i.size) - 1;
            if (undefined)
                w.set_undefined(operand(w, i, k), l, undefined);
        }
    });
}

static void load(Warp &w, const Instruction &i, uint32_t mask)
{
    Machine &m = *w.machine;
    const unsigned bytes = i.size * i.vector;
    Places p;
    place(w, i, mask, bytes, &p);
    note_reads(w, i, mask, bytes, p);
    const unsigned width = operand(w, i, 0).width;
    if (i.size == 4 && width == 4)
        fetch<uint32_t, uint32_t>(w, i, mask, p);
    else if (i.size == 2 && width == 2)
        fetch<uint16_t, uint16_t>(w, i, mask, p);
    else if (i.size == 8 && width == 8)
        fetch<uint64_t, uint64_t>(w, i, mask, p);
    else
        each_lane(mask, [&](unsigned l) {
            for (unsigned k = 0; k < i.vector; k++)
                put_bits(w, operand(w, i, k), l, fetched(p.at[l] + k * i.size, i.size, i.is_signed));
        });
    if (!m.shared_valid.empty() || m.program->local_bytes || m.program->frame_bytes)
        load_validity(w, i, mask, p);
    if (m.options.measure)
        measure_places(m, p, mask, bytes, false);
}

/* What lane l stores: the elements of its registers, one after the other */
static void collect(Warp &w, const Instruction &i, unsigned l, unsigned char *data)
{
    for (unsigned k = 0; k < i.vector; k++) {
        const Operand &o = operand(w, i, 1 + k);
        const unsigned char *from = (o.reg == CONSTANT ? w.constants : w.registers) + o.at + l * o.width;
        switch (i.size) {
        case 1: data[k] = *from; break;
        case 2: memcpy(data + 2 * k, from, 2); break;
        case 4: memcpy(data + 4 * k, from, 4); break;
        default: memcpy(data + 8 * k, from, 8);
        }
    }
}

/* Whether all that the lanes store has a value */
static bool stores_values(const Warp &w, const Instruction &i, uint32_t mask)
{
    for (unsigned k = 0; k < i.vector; k++) {
        const Operand &o = operand(w, i, 1 + k);
        if (o.reg >= 0 && (mask & ~w.defined[(size_t)o.reg]))
            return false;
    }
    return true;
}

/* Shared and local memory keep which bits have none, so that padding may be copied; outputs must have all. A register without any
 * is a fault but in the thread's own memory, where calls hand on parts that are not used. */
static void store_validity(Warp &w, const Instruction &i, unsigned l, Space space, const unsigned char *at)
{
    Machine &m = *w.machine;
    const bool own = space == CALL_PARAM || (space == LOCAL && i.space == LOCAL);
    const uint64_t all = ~0ull >> (64 - 8 * i.size);
    for (unsigned k = 0; k < i.vector; k++) {
        const uint64_t undefined = w.undefined_bits(operand(w, i, 1 + k), l) & all, has = ~undefined & all;
        if (!own && !has)
            m.fail("reads a register that has no value");
        if (undefined && space != SHARED && space != LOCAL && !own)
            m.fail("stores a register of which a part has no value");
        if (undefined && space == SHARED && m.shared_valid.empty())
            m.shared_valid.assign(m.shared.size(), 0xff);
        if (unsigned char *valid = m.validity(w, space, at + k * i.size))
            memcpy(valid, &has, i.size);
    }
}

static void store(Warp &w, const Instruction &i, uint32_t mask)
{
    Machine &m = *w.machine;
    const unsigned bytes = i.size * i.vector;
    Places p;
    place(w, i, mask, bytes, &p);
    const bool looks = !m.shared_valid.empty() || m.program->local_bytes || m.program->frame_bytes || !stores_values(w, i, mask);
    each_lane(mask, [&](unsigned l) {
        unsigned char data[32];
        m.lane = l;
        collect(w, i, l, data);
        if (p.space[l] == PARAM)
            m.fail("writes a parameter of the kernel");
        if (looks)
            store_validity(w, i, l, p.space[l], p.at[l]);
        if (is_watched(m, p.space[l]))
            m.note(w, p.space[l], p.shadow[l], bytes, true, i.is_volatile, p.at[l], data);
        switch (bytes) {
        case 2: memcpy(p.at[l], data, 2); break;
        case 4: memcpy(p.at[l], data, 4); break;
        case 8: memcpy(p.at[l], data, 8); break;
        default: memcpy(p.at[l], data, bytes);
        }
    });
    if (m.options.measure)
        measure_places(m, p, mask, bytes, true);
}

/* --- atomics --- */

enum Atomic : uint8_t { ATOM_ADD, ATOM_EXCH, ATOM_CAS, ATOM_MIN, ATOM_MAX, ATOM_AND, ATOM_OR, ATOM_XOR, ATOM_INC, ATOM_DEC };

template <typename T> static T changed_bits(uint8_t kind, T old, T a, T b)
{
    switch (kind) {
    case ATOM_EXCH: return a;
    case ATOM_CAS: return old == a ? b : old;
    case ATOM_AND: return old & a;
    case ATOM_OR: return old | a;
    case ATOM_XOR: return old ^ a;
    case ATOM_INC: return old >= a ? 0 : old + 1;
    case ATOM_DEC: return old == 0 || old > a ? a : old - 1;
    case ATOM_MIN: return std::min(old, a);
    case ATOM_MAX: return std::max(old, a);
    default: return old + a;
    }
}
template <typename T> static uint64_t changed(uint8_t kind, uint64_t old, uint64_t a, uint64_t b)
{
    T x, y, z, r;
    uint64_t bits = 0;
    memcpy(&x, &old, sizeof x);
    memcpy(&y, &a, sizeof y);
    memcpy(&z, &b, sizeof z);
    if constexpr (std::is_floating_point<T>::value)
        r = kind == ATOM_MIN ? std::fmin(x, y) : kind == ATOM_MAX ? std::fmax(x, y) : x + y;
    else
        r = changed_bits(kind, x, y, z);
    memcpy(&bits, &r, sizeof r);
    return bits;
}

template <typename T> static void atomic(Warp &w, const Instruction &i, uint32_t mask)
{
    Machine &m = *w.machine;
    uint32_t order[LANES];
    unsigned n = 0;
    each_lane(mask, [&](unsigned l) { order[n++] = l; });
    if (m.options.order != Order::forward)
        std::reverse(order, order + n);
    uint64_t addresses[LANES];
    Space space = i.space;
    for (unsigned q = 0; q < n; q++) {
        unsigned l = order[q];
        Access a = accessed(w, i, address_of(w, i, l), l, sizeof(T));
        space = a.space;
        addresses[q] = a.shadow;
        if (a.space == SHARED)
            m.need_shared(a.shadow, sizeof(T));
        if (is_watched(m, a.space)) {
            m.note(w, a.space, a.shadow, sizeof(T), false, true, nullptr, nullptr);
            m.note(w, a.space, a.shadow, sizeof(T), true, true, nullptr, nullptr);
            if (a.space == GLOBAL)
                m.note_atomic(a.shadow);
        }
        uint64_t old = fetched(a.at, sizeof(T), false), b = i.inputs > 2 ? bits_of(w, operand(w, i, i.outputs + 2), l) : 0;
        uint64_t now = changed<T>(i.kind, old, bits_of(w, operand(w, i, i.outputs + 1), l), b);
        memcpy(a.at, &now, sizeof(T));
        if (i.outputs)
            put_bits(w, operand(w, i, 0), l, old);
    }
    m.counts.atomics += n;
    if (m.options.measure)
        measure(m, space, addresses, n, sizeof(T), true);
}

/* --- asynchronous copies --- */

static void carry_out(Warp &w, const Copy &c)
{
    Machine &m = *w.machine;
    unsigned char *to = &m.shared[c.to - SHARED_BASE];
    memset(to, 0, 16);
    memcpy(to, (const void *)(uintptr_t)c.from, c.bytes);
    m.fill_shared(c.to, 16);
}

static void copy_async(Warp &w, const Instruction &i, uint32_t mask)
{
    Machine &m = *w.machine;
    uint64_t addresses[LANES], from[LANES];
    unsigned n = 0, read = 0;
    each_lane(mask, [&](unsigned l) {
        unsigned size = (unsigned)bits_of(w, operand(w, i, 2), l);
        unsigned bytes = i.inputs > 3 ? (unsigned)bits_of(w, operand(w, i, 3), l) : size;
        m.lane = l;
        if (size != 16 || bytes > size)
            m.fail("a cp.async of another size than 16 bytes");
        Copy c = { (uint8_t)l, (uint8_t)bytes, w.commits[l], 0, address_of(w, i, l, 1) };
        Instruction to = i;
        to.space = SHARED;
        c.to = accessed(w, to, address_of(w, i, l), l, 16).shadow;
        if (bytes) {
            Instruction source = i;
            source.space = GLOBAL;
            Access a = accessed(w, source, c.from, l, 16);
            from[read++] = a.shadow;
            if (m.options.races)
                m.note(w, GLOBAL, a.shadow, bytes, false, false, nullptr, nullptr);
        }
        if (m.options.races)
            m.note_copy(w, c.to, 16, true);
        if (!m.options.copy_late)
            carry_out(w, c);
        w.copies.push_back(c);
        addresses[n++] = c.to;
    });
    if (m.options.measure) {
        measure(m, GLOBAL, from, read, 16, false);
        measure(m, SHARED, addresses, n, 16, true);
    }
}

void Warp::end_copies(uint32_t mask, uint32_t pending, bool all)
{
    std::vector<Copy> left;
    for (const Copy &c : copies) {
        if (!(mask >> c.lane & 1u) || !(all || c.group + pending < commits[c.lane])) {
            left.push_back(c);
            continue;
        }
        machine->lane = c.lane;
        if (machine->options.copy_late)
            carry_out(*this, c);
        if (machine->options.races)
            machine->note_copy(*this, c.to, 16, false);
    }
    copies = std::move(left);
}

static void commit(Warp &w, const Instruction &, uint32_t mask)
{
    each_lane(mask, [&](unsigned l) { w.commits[l]++; });
}
static void wait_copies(Warp &w, const Instruction &i, uint32_t mask)
{
    w.end_copies(mask, i.inputs ? *input<uint32_t>(w, i, 0) : 0, i.kind);
}

static void fence(Warp &w, const Instruction &i, uint32_t)
{
    if (i.kind)
        w.machine->fenced = ++w.machine->time;
}
static void nothing(Warp &, const Instruction &, uint32_t) {}
static void trap(Warp &w, const Instruction &, uint32_t mask)
{
    w.machine->lane = (unsigned)__builtin_ctz(mask);
    w.machine->fail("a trap");
}

/* --- from opcodes --- */

static Space space_of(const Opcode &o)
{
    return o.has("global") || o.has("const") ? GLOBAL : o.has("shared") ||
        o.has("shared::cta") ? SHARED : o.has("local") ? LOCAL :
        o.has("param") || o.has("param::entry") || o.has("param::func") ? PARAM : GENERIC;
}

static Handler atomic_handler(const Opcode &o, Instruction *i)
{
    static const char *names[] = { "add", "exch", "cas", "min", "max", "and", "or", "xor", "inc", "dec" };
    bool known = false;
    for (uint8_t k = 0; k < 10; k++)
        if (o.has(names[k])) {
            i->kind = k;
            known = true;
        }
    const std::string &t = o.type();
    if (!known)
        return nullptr;
    return t == "f32" ? atomic<float> : t == "f64" ? atomic<double> : t == "s32" ? atomic<int32_t>
        : t == "s64" ? atomic<int64_t> :
        t == "u32" || t == "b32" ? atomic<uint32_t> : t == "u64" || t == "b64" ? atomic<uint64_t> : nullptr;
}

bool decode_memory(const Opcode &o, Instruction *i)
{
    i->moves = false;
    const std::string &b = o.base;
    if (b == "membar" || b == "fence") {
        i->handler = fence;
        i->kind = !o.has("cta");
        return true;
    }
    if (b == "prefetch" || b == "nanosleep" || b == "trap") {
        i->handler = b == "trap" ? trap : nothing;
        return true;
    }
    if (b == "cp") {
        if (o.suffixes.empty() || o.suffixes[0] != "async")
            return false;
        i->kind = o.has("wait_all");
        i->handler = o.has("commit_group") ? commit : o.has("wait_group") || o.has("wait_all") ? wait_copies : o.has("shared") ||
            o.has("shared::cta") ? copy_async : nullptr;
        return i->handler != nullptr;
    }
    i->space = space_of(o);
    if (b == "atom" || b == "red") {
        i->handler = atomic_handler(o, i);
        return i->handler != nullptr;
    }
    if (b != "ld" && b != "st")
        return false;
    i->size = (uint8_t)bytes_of(o.type());
    i->is_signed = o.type()[0] == 's';
    i->vector = o.has("v4") ? 4 : o.has("v2") ? 2 : 1;
    i->is_volatile = o.has("volatile") || o.has("relaxed") || o.has("acquire") || o.has("release") || o.has("mmio");
    i->constant_data = o.has("nc");
    i->handler = b == "ld" ? load : store;
    i->stores = b == "st";
    return i->size != 0;
}

} // namespace ptx
