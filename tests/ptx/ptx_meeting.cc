/* SPDX-License-Identifier: Apache-2.0 */
/* What lanes of a warp do together: shuffles, votes, reductions, matrices in registers. The warp has made sure that all
 * who take part are there. */
#include <cstring>

#include "ptx_machine.h"

namespace ptx {

/* d|p = a of another lane; c holds the segment's mask above bit 8 and where it ends */
enum Shuffle : uint8_t { SHUFFLE_UP, SHUFFLE_DOWN, SHUFFLE_BUTTERFLY, SHUFFLE_INDEX };
static void shuffle(Warp &w, const Instruction &i, uint32_t mask)
{
    const uint32_t *a = input<uint32_t>(w, i, 0), *b = input<uint32_t>(w, i, 1), *c = input<uint32_t>(w, i, 2);
    const Operand &source = operand(w, i, i.outputs), &target = operand(w, i, 0);
    const uint32_t whole = source.reg < 0 ? ALL : w.defined[(size_t)source.reg];
    uint32_t old[LANES], undefined[LANES], inside = 0, given = 0, *d = output<uint32_t>(w, i);
    memcpy(old, a, sizeof old);
    for (uint32_t rest = mask & ~whole; rest; rest &= rest - 1) {
        const unsigned l = (unsigned)__builtin_ctz(rest);
        undefined[l] = (uint32_t)w.undefined_bits(source, l);
    }
    each_lane(mask, [&](unsigned l) {
        int by = (int)(b[l] & 31u), limit = (int)(c[l] & 31u), segment = (int)(c[l] >> 8 & 31u);
        int last = ((int)l & segment) | (limit & ~segment), first = (int)l & segment, me = (int)l, from;
        bool is;
        switch (i.kind) {
        case SHUFFLE_UP: from = me - by; is = from >= last; break;
        case SHUFFLE_DOWN: from = me + by; is = from <= last; break;
        case SHUFFLE_BUTTERFLY: from = me ^ by; is = from <= last; break;
        default: from = first | (by & ~segment); is = from <= last;
        }
        from = is ? from : me;
        if (!(mask >> from & 1u)) {
            w.machine->lane = l;
            w.machine->fail("a shuffle from lane " + std::to_string(from) + ", which takes no part");
        }
        d[l] = old[from];
        given |= (whole >> from & 1u) << l;
        if (!(whole >> from & 1u))
            w.set_undefined(target, l, undefined[from]);
        inside |= (uint32_t)is << l;
    });
    if (target.reg >= 0)
        w.defined[(size_t)target.reg] |= given;
    if (i.outputs > 1 && operand(w, i, 1).reg != SINK) {
        uint32_t *p = output<uint32_t>(w, i, 1);
        *p = (*p & ~mask) | inside;
    }
}

enum Vote : uint8_t { VOTE_ALL, VOTE_ANY, VOTE_UNIFORM, VOTE_BALLOT };
static void vote(Warp &w, const Instruction &i, uint32_t mask)
{
    uint32_t yes = *input<uint32_t>(w, i, 0) & mask, *d = output<uint32_t>(w, i);
    if (i.kind == VOTE_BALLOT) {
        each_lane(mask, [&](unsigned l) { d[l] = yes; });
        return;
    }
    bool r = i.kind == VOTE_ALL ? yes == mask : i.kind == VOTE_ANY ? yes != 0 : yes == mask || !yes;
    *d = (*d & ~mask) | (r ? mask : 0);
}

/* match.any, match.all of 32 or 64 bits */
static void match(Warp &w, const Instruction &i, uint32_t mask)
{
    const Operand &value = operand(w, i, i.outputs);
    uint32_t r[LANES] = {}, *d = output<uint32_t>(w, i);
    bool all = true;
    for (uint32_t rest = mask; rest;) { /* those who have what the first one has, then of the others */
        const uint64_t wanted = bits_of(w, value, (unsigned)__builtin_ctz(rest));
        uint32_t same = 0;
        each_lane(rest, [&](unsigned l) { same |= (uint32_t)(bits_of(w, value, l) == wanted) << l; });
        each_lane(same, [&](unsigned l) { r[l] = same; });
        all = all && same == mask;
        rest &= ~same;
    }
    each_lane(mask, [&](unsigned l) { d[l] = !i.kind ? r[l] : all ? mask : 0; });
    if (i.kind && i.outputs > 1) {
        uint32_t *p = output<uint32_t>(w, i, 1);
        *p = (*p & ~mask) | (all ? mask : 0);
    }
}

enum Reduction : uint8_t { REDUCE_ADD, REDUCE_MIN, REDUCE_MAX, REDUCE_AND, REDUCE_OR, REDUCE_XOR };
template <typename T> static void reduce(Warp &w, const Instruction &i, uint32_t mask)
{
    const T *a = input<T>(w, i, 0);
    T *d = output<T>(w, i), r = a[__builtin_ctz(mask)];
    each_lane(mask & (mask - 1), [&](unsigned l) {
        T x = a[l];
        switch (i.kind) {
        case REDUCE_ADD: r = (T)((uint32_t)r + (uint32_t)x); break;
        case REDUCE_MIN: r = std::min(r, x); break;
        case REDUCE_MAX: r = std::max(r, x); break;
        case REDUCE_AND: r &= x; break;
        case REDUCE_OR: r |= x; break;
        default: r ^= x;
        }
    });
    each_lane(mask, [&](unsigned l) { d[l] = r; });
}

static void sync_warp(Warp &w, const Instruction &, uint32_t mask)
{
    w.last_sync = ++w.machine->time;
    if (mask == w.alive)
        w.meet_all();
}
static void active(Warp &w, const Instruction &i, uint32_t mask)
{
    uint32_t *d = output<uint32_t>(w, i);
    each_lane(mask, [&](unsigned l) { d[l] = mask; });
}

/* --- matrices --- */

float f32_of_f16(uint16_t bits); /* ptx_convert.cc */

/* What lane l gets of a matrix: two neighbours of a row, or of a column */
static inline uint32_t pair_of(const uint16_t (*rows)[8], unsigned l, bool turned)
{
    const unsigned row = l / 4, column = l % 4 * 2;
    const uint16_t low = turned ? rows[column][row] : rows[row][column];
    const uint16_t high = turned ? rows[column + 1][row] : rows[row][column + 1];
    return (uint32_t)low | (uint32_t)high << 16;
}

/* Matrices of 8 x 8 elements of 16 bits: lane l gives the address of row l % 8 of the l / 8-th, gets two neighbours. */
static void load_matrices(Warp &w, const Instruction &i, uint32_t mask)
{
    Machine &m = *w.machine;
    uint16_t rows[LANES][8] = {}, valid[LANES][8];
    const bool whole = m.shared_valid.empty();
    uint64_t addresses[LANES];
    unsigned n = 0;
    each_lane(mask, [&](unsigned l) {
        if (l >= 8u * i.outputs)
            return;
        uint64_t address = bits_of(w, operand(w, i, i.outputs), l) + (uint64_t)i.number, shadow;
        m.lane = l;
        if (address % 16)
            m.fail("an address that is not a multiple of 16");
        Space space;
        unsigned char *at = m.locate(w, SHARED, address, 16, &shadow, &space);
        if (m.options.races)
            m.note(w, SHARED, shadow, 16, false, false, nullptr, nullptr);
        memcpy(rows[l], at, 16);
        if (!whole)
            memcpy(valid[l], m.validity(w, SHARED, at), 16);
        addresses[n++] = shadow;
    });
    for (unsigned q = 0; q < i.outputs; q++) {
        uint32_t *d = output<uint32_t>(w, i, q);
        for (unsigned l = 0; l < LANES; l++)
            d[l] = pair_of(rows + 8 * q, l, i.kind);
        for (unsigned l = 0; l < LANES && !whole; l++)
            w.set_undefined(operand(w, i, q), l, ~pair_of(valid + 8 * q, l, i.kind));
    }
    if (m.options.measure)
        measure(m, SHARED, addresses, n, 16, false);
}

static float half_of(uint32_t pair, unsigned k, bool is_f16)
{
    uint32_t bits = pair >> 16 * k << 16;
    float x;
    memcpy(&x, &bits, 4);
    return is_f16 ? f32_of_f16((uint16_t)(bits >> 16)) : x;
}

/* d [16 x 8] = a [16 x 16] b [16 x 8] + c, sums rounded once */
static void multiply(Warp &w, const Instruction &i, uint32_t)
{
    double a[16][16], b[16][8], d[16][8]; /* products of two halves are exact */
    for (unsigned l = 0; l < LANES; l++) {
        unsigned group = l / 4, pair = l % 4 * 2;
        for (unsigned k = 0; k < 4; k++) {
            uint32_t x = input<uint32_t>(w, i, k)[l];
            for (unsigned h = 0; h < 2; h++)
                a[group + 8 * (k % 2)][pair + h + 8 * (k / 2)] = half_of(x, h, i.kind);
            d[group + 8 * (k / 2)][pair + k % 2] = input<float>(w, i, 6 + k)[l];
        }
        for (unsigned k = 0; k < 2; k++)
            for (unsigned h = 0; h < 2; h++)
                b[pair + h + 8 * k][group] = half_of(input<uint32_t>(w, i, 4 + k)[l], h, i.kind);
    }
    for (unsigned row = 0; row < 16; row++) {
        double sums[8];
        memcpy(sums, d[row], sizeof sums);
        for (unsigned k = 0; k < 16; k++)
            for (unsigned column = 0; column < 8; column++)
                sums[column] += a[row][k] * b[k][column];
        memcpy(d[row], sums, sizeof sums);
    }
    for (unsigned l = 0; l < LANES; l++)
        for (unsigned k = 0; k < 4; k++)
            output<float>(w, i, k)[l] = (float)d[l / 4 + 8 * (k / 2)][l % 4 * 2 + k % 2];
}

/* --- from opcodes --- */

/* The place in `names` of the one that the opcode has; n: none */
static uint8_t place_of(const Opcode &o, const char *const *names, uint8_t n)
{
    uint8_t k = 0;
    while (k < n && !o.has(names[k]))
        k++;
    return k;
}

static bool decode_barrier(const Opcode &o, Instruction *i)
{
    static const char *const reductions[] = { "popc", "and", "or" };
    if (o.has("warp")) {
        i->handler = sync_warp;
        i->control = MEET;
        return true;
    }
    i->control = BARRIER;
    i->kind = o.has("red") ? (uint8_t)(1 + place_of(o, reductions, 3)) : 0;
    return (o.has("sync") || o.has("red")) && i->kind < 4;
}

bool decode_meeting(const Opcode &o, Instruction *i)
{
    static const char *const shuffles[] = { "up", "down", "bfly", "idx" }, *const votes[] = { "all", "any", "uni", "ballot" },
                      *const sums[] = { "add", "min", "max", "and", "or", "xor" };
    const std::string &b = o.base;
    if (b == "bar" || b == "barrier")
        return decode_barrier(o, i);
    if (b == "activemask") {
        i->handler = active;
        return true;
    }
    i->control = MEET;
    if (b == "shfl" && o.has("sync")) {
        i->kind = place_of(o, shuffles, 4);
        i->handler = shuffle;
        i->carries = true;
    } else if (b == "vote" && o.has("sync")) {
        i->kind = place_of(o, votes, 4);
        i->handler = vote;
    } else if (b == "match") {
        i->kind = o.has("all");
        i->handler = match;
    } else if (b == "redux") {
        i->kind = place_of(o, sums, 6);
        i->handler = o.type() == "s32" ? reduce<int32_t> : reduce<uint32_t>;
    } else if (b == "ldmatrix" && o.has("m8n8") && o.has("b16") && o.has("shared")) {
        i->aligned = true;
        i->kind = o.has("trans");
        i->handler = load_matrices;
    } else if (b == "mma" && o.has("m16n8k16") && o.has("row") && o.has("col") && o.suffixes[o.suffixes.size() - 4] == "f32" &&
               o.type() == "f32" &&
               (o.type2() == "f16" || o.type2() == "bf16")) {
        i->aligned = true;
        i->kind = o.type2() == "f16";
        i->handler = multiply;
        i->tensor = true;
        i->flops = 2 * 16 * 8 * 16 / LANES;
    }
    return i->handler != nullptr;
}

} // namespace ptx
