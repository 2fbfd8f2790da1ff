/* SPDX-License-Identifier: Apache-2.0 */
/* Which bits of registers and memory have a value. Registers say in a mask whose lanes are whole, which nearly all are; of the
 * others each bit is known, as it goes through shifts, logic, packing and memory. */
#include <algorithm>
#include <cstring>

#include "ptx_machine.h"

namespace ptx
{

static inline uint64_t all_bits(unsigned width) { return ~0ull >> (width ? 64 - 8 * width : 63); }

/* --- registers --- */

uint64_t Warp::undefined_bits(const Operand &o, unsigned l) const
{
    if (o.reg < 0 || (defined[(size_t)o.reg] >> l & 1u))
        return 0;
    if (!(partly[(size_t)o.reg] >> l & 1u))
        return all_bits(o.width);
    uint64_t bits = 0;
    memcpy(&bits, &valid[o.at + (size_t)l * o.width], o.width);
    return ~bits & all_bits(o.width);
}

void Warp::set_undefined(const Operand &o, unsigned l, uint64_t bits)
{
    if (o.reg < 0)
        return;
    const uint64_t has = ~bits & all_bits(o.width);
    const uint32_t me = 1u << l;
    uint32_t &whole = defined[(size_t)o.reg], &part = partly[(size_t)o.reg];
    whole = has == all_bits(o.width) ? whole | me : whole & ~me;
    part = has && o.width ? part | me : part & ~me;
    if (!has || !o.width || (whole & me))
        return;
    if (valid.size() < machine->program->register_bytes)
        valid.resize(machine->program->register_bytes);
    memcpy(&valid[o.at + (size_t)l * o.width], &has, o.width);
}

/* --- instructions --- */

void Warp::lacks(const Operand &o, uint32_t lanes)
{
    machine->lane = (unsigned)__builtin_ctz(lanes);
    machine->fail((lanes & -lanes & partly[(size_t)o.reg]) ? "reads a register of which a part has no value"
                                                           : "reads a register that has no value");
}

/* Of a result's bits in lane l those that have no value */
uint64_t Warp::undefined_of(const Instruction &i, unsigned l, unsigned width) const
{
    const Operand *in = &machine->program->operands[i.first + i.outputs];
    if (i.table) { /* a bit is known if it is the same whatever the inputs' bits are that are not */
        const unsigned table = i.inputs > 3 ? (unsigned)bits_of(*this, in[3], l) : i.table;
        uint64_t can[2] = {}, is[3] = {}, not_known[3] = {};
        for (unsigned k = 0; k < 3 && k < i.inputs; k++) {
            is[k] = bits_of(*this, in[k], l);
            not_known[k] = undefined_bits(in[k], l);
        }
        for (unsigned k = 0; k < 8; k++)
            can[table >> k & 1u] |= (not_known[0] | (k & 4 ? is[0] : ~is[0])) & (not_known[1] | (k & 2 ? is[1] : ~is[1])) &
                                    (not_known[2] | (k & 1 ? is[2] : ~is[2]));
        return can[0] & can[1];
    }
    if (i.pairs)
        return (undefined_bits(in[0], l) ? 0xffff0000u : 0) | (undefined_bits(in[1], l) ? 0xffffu : 0);
    for (unsigned k = 0; k < i.inputs; k++)
        if (undefined_bits(in[k], l) & all_bits(i.reads ? i.reads : 8))
            return all_bits(width);
    return 0;
}

/* The results of lanes to whom a part of the inputs is lacking */
void Warp::give_parts(const Instruction &i, uint32_t mask)
{
    const Operand *o = &machine->program->operands[i.first];
    if (i.shifts)
        return run_on_undefined(i, mask);
    each_lane(mask, [&](unsigned l) {
        uint64_t undefined[4];
        for (unsigned k = 0; k < i.outputs; k++)
            undefined[k] = undefined_of(i, l, o[k].width);
        for (unsigned k = i.carries; k < i.outputs; k++)
            set_undefined(o[k], l, undefined[k]);
    });
}

/* Bits that only go elsewhere do so if they have no value, too: the instruction itself says where, executed on ones for those
 * that have none. What its other inputs tell it must be whole. */
void Warp::run_on_undefined(const Instruction &i, uint32_t mask)
{
    const Program *const program = machine->program;
    const Operand *const o = &program->operands[i.first];
    const unsigned n = (unsigned)i.outputs + i.inputs, moved = i.outputs + std::min<unsigned>(i.shifts, i.inputs);
    const uint64_t read = all_bits(i.reads ? i.reads : 8);
    uint32_t lost = 0; /* lanes that are not told where */
    scratch.operands.resize(SCRATCH_OPERANDS);
    for (unsigned k = 0; k < n; k++) {
        const Operand to = { program->register_bytes + k * SCRATCH_BYTES, (int32_t)k, o[k].width };
        scratch.operands[k] = to;
        if (k >= i.outputs)
            each_lane(mask, [&](unsigned l) {
                const uint64_t undefined = undefined_bits(o[k], l) & read;
                put_bits(*this, to, l, k < moved ? undefined : bits_of(*this, o[k], l));
                lost |= (uint32_t)(k >= moved && undefined) << l;
            });
    }
    Instruction again = i;
    again.first = 0;
    machine->program = &scratch;
    i.handler(*this, again, mask);
    machine->program = program;
    for (unsigned k = 0; k < i.outputs; k++)
        each_lane(mask,
                  [&](unsigned l) { set_undefined(o[k], l, lost >> l & 1u ? ~0ull : bits_of(*this, scratch.operands[k], l)); });
}

/* --- memory --- */

/* Global memory has values, as what is stored there must have. */
unsigned char *Machine::validity(Warp &w, Space space, const unsigned char *at)
{
    switch (space) {
    case SHARED:
        return shared_valid.empty() ? nullptr : &shared_valid[(size_t)(at - shared.data())];
    case LOCAL:
        return &w.local_valid[(size_t)(at - w.local.data())];
    case CALL_PARAM:
        return &w.frame_valid[(size_t)(at - w.frame.data())];
    default:
        return nullptr;
    }
}

void Machine::need_shared(uint64_t address, unsigned bytes)
{
    for (unsigned k = 0; k < bytes && !shared_valid.empty(); k++)
        if (shared_valid[address - SHARED_BASE + k] != 0xff)
            fail("uses a byte of shared memory that was stored without a value");
}

/* What async copies write has values. */
void Machine::fill_shared(uint64_t address, unsigned bytes)
{
    if (!shared_valid.empty())
        memset(&shared_valid[address - SHARED_BASE], 0xff, bytes);
}

} // namespace ptx
