/* SPDX-License-Identifier: Apache-2.0 */
/* Runs a launch: blocks one after the other, the warps of a block in turns from barrier to barrier, the lanes of a warp
 * together where they are at the same place. */
#include <algorithm>
#include <cstring>

#include "ptx_machine.h"

namespace ptx {

void Machine::fail(const std::string &why)
{
    std::string text = "kernel " + program->name + ": " + why;
    if (at)
        text += "\n    " + program->where(*at);
    if (running) {
        unsigned thread = running->index * LANES + lane;
        text += "\n    block " + std::to_string(block) + ", thread " + std::to_string(thread);
    }
    throw Fault(text);
}

/* --- warps --- */

void Warp::begin(Machine *m, unsigned number)
{
    const Program &p = *m->program;
    machine = m;
    index = number;
    unsigned count = std::min(m->threads - number * LANES, (unsigned)LANES);
    alive = count == LANES ? ALL : (1u << count) - 1;
    file.resize(p.register_bytes + 64 + SCRATCH_OPERANDS * SCRATCH_BYTES);
    registers = file.data() + (64 - (uintptr_t)file.data() % 64) % 64;
    constants = p.constants.data();
    frame.assign((size_t)p.frame_bytes * LANES, 0xff);
    local.assign((size_t)p.local_bytes * LANES, 0xff);
    frame_valid.assign(frame.size(), 0);
    local_valid.assign(local.size(), 0);
    defined.assign(p.registers, 0);
    partly.assign(p.registers, 0);
    carry = 0;
    last_sync = 0;
    copies.clear();
    memset(commits, 0, sizeof commits);
    state = State::ready;
    known.of.clear();
    known_of_some.of.clear();
    knowing = 0;
    found_going_on = false;
    multiplies.clear();
    multiply_groups = 0;
    busy.assign(p.multiplies ? p.registers : 0, 0);
    touched.assign(p.multiplies ? p.registers : 0, 0);
    turn = 1;
    multiply_fence = multiplied = 0;
    groups.assign(1, Group{ alive, 0, false, {}, 0 });
    fill_specials();
}

/* The registers that say where a thread is */
void Warp::fill_specials()
{
    const Program &p = *machine->program;
    const unsigned *g = machine->launch->grid, *b = machine->launch->block;
    const uint64_t n = machine->block;
    const unsigned at[3] = { (unsigned)(n % g[0]), (unsigned)(n / g[0] % g[1]), (unsigned)(n / g[0] / g[1]) };
    const unsigned same[] = { b[0], b[1], b[2], at[0], at[1], at[2], g[0], g[1], g[2] }; /* NTID_X and those that follow */
    for (unsigned s = 0; s < SPECIALS; s++) {
        const Operand &o = p.special[s];
        if (o.reg == SINK)
            continue;
        defined[(size_t)o.reg] = ALL;
        uint32_t *d = (uint32_t *)(registers + o.at);
        for (unsigned l = 0; l < LANES; l++) {
            const unsigned t = index * LANES + l, below = (1u << l) - 1;
            switch (s) {
            case TID_X: d[l] = b[0] == machine->threads ? t : t % b[0]; break;
            case TID_Y: d[l] = t / b[0] % b[1]; break;
            case TID_Z: d[l] = t / b[0] / b[1]; break;
            case LANEID: d[l] = l; break;
            case WARPID: d[l] = index; break;
            case LANEMASK_LT: d[l] = below; break;
            case LANEMASK_LE: d[l] = below | 1u << l; break;
            case LANEMASK_GT: d[l] = ~(below | 1u << l); break;
            case LANEMASK_GE: d[l] = ~below; break;
            case LANEMASK_EQ: d[l] = 1u << l; break;
            default: d[l] = same[s - NTID_X];
            }
        }
    }
}

/* Which lanes go on: those deepest in calls, of them those at the lowest place, so that others wait for them. */
size_t Warp::choose()
{
    size_t best = groups.size();
    if (machine->options.order == Order::random && groups.size() > 1)
        for (unsigned tries = 0; tries < 4; tries++) {
            size_t k = machine->random() % groups.size();
            if (!groups[k].waits && groups[k].tried != machine->events + 1)
                return k;
        }
    for (size_t k = 0; k < groups.size(); k++) {
        if (groups[k].waits || groups[k].tried == machine->events + 1)
            continue;
        if (best == groups.size() || groups[k].stack.size() > groups[best].stack.size() ||
            (groups[k].stack.size() == groups[best].stack.size() && groups[k].pc < groups[best].pc))
            best = k;
    }
    if (best == groups.size()) {
        machine->at = &machine->program->code[groups[0].pc];
        machine->lane = (unsigned)__builtin_ctz(groups[0].mask);
        machine->fail("lanes of a warp wait for each other at different places");
    }
    return best;
}

/* Group k goes on together with one that is at the same place. */
void Warp::merge(size_t k)
{
    for (size_t other = 0; other < groups.size(); other++) {
        if (other == k || groups[other].pc != groups[k].pc || groups[other].stack != groups[k].stack)
            continue;
        groups[std::min(k, other)].mask |= groups[std::max(k, other)].mask;
        groups[std::min(k, other)].waits = false;
        groups.erase(groups.begin() + (long)std::max(k, other));
        return merge(std::min(k, other));
    }
}

/* These lanes of group k go to pc, the others stay. */
void Warp::move_group(size_t k, uint32_t mask, uint32_t pc)
{
    Group &g = groups[k];
    if (mask == g.mask) {
        g.pc = pc;
        return;
    }
    Group parted = { mask, pc, false, g.stack, 0 };
    g.mask &= ~mask;
    groups.push_back(std::move(parted));
}

void Warp::branch(size_t k, const Instruction &i, uint32_t mask)
{
    Group &g = groups[k];
    if (mask == g.mask) {
        g.pc = (uint32_t)i.number;
        return;
    }
    g.pc++;
    move_group(k, mask, (uint32_t)i.number);
}

void Warp::leave(size_t k, uint32_t mask, bool exits)
{
    Group &g = groups[k];
    if (!exits && !g.stack.empty()) {
        uint32_t back = g.stack.back();
        for (const CallCopy &c : machine->program->calls[machine->program->code[back - 1].call].after)
            each_lane(mask, [&](unsigned l) {
                unsigned char *f = &frame[l * machine->program->frame_bytes];
                memcpy(f + c.to, f + c.from, c.bytes);
                f = &frame_valid[l * machine->program->frame_bytes];
                memcpy(f + c.to, f + c.from, c.bytes);
            });
        if (mask == g.mask) {
            g.stack.pop_back();
            g.pc = back;
            return;
        }
        Group parted = { mask, back, false, g.stack, 0 };
        parted.stack.pop_back();
        g.mask &= ~mask;
        g.pc++;
        groups.push_back(std::move(parted));
        return;
    }
    alive &= ~mask;
    g.mask &= ~mask;
    g.pc++;
    if (!g.mask)
        groups.erase(groups.begin() + (long)k);
    for (Group &other : groups) /* for those who have left nobody waits */
        other.waits = false;
}

void Warp::call(size_t k, const Instruction &i, uint32_t mask)
{
    const Call &c = machine->program->calls[i.call];
    for (const CallCopy &copy : c.before)
        each_lane(mask, [&](unsigned l) {
            unsigned char *f = &frame[l * machine->program->frame_bytes];
            memcpy(f + copy.to, f + copy.from, copy.bytes);
            f = &frame_valid[l * machine->program->frame_bytes];
            memcpy(f + copy.to, f + copy.from, copy.bytes);
        });
    Group &g = groups[k];
    if (mask == g.mask) {
        g.stack.push_back(g.pc + 1);
        g.pc = c.target;
        return;
    }
    Group parted = { mask, c.target, false, g.stack, 0 };
    parted.stack.push_back(g.pc + 1);
    g.mask &= ~mask;
    g.pc++;
    groups.push_back(std::move(parted));
}

/* Whether the lanes that the instruction names are all here; they become *mask. */
bool Warp::meet(size_t k, const Instruction &i, uint32_t *mask)
{
    uint32_t need = alive;
    if (!i.aligned) {
        const uint32_t *members = input<uint32_t>(*this, i, i.inputs - 1u);
        uint32_t named = members[__builtin_ctz(*mask)], same = 0;
        each_lane(*mask, [&](unsigned l) { same |= (uint32_t)(members[l] == named) << l; });
        if (same & ~named) {
            machine->lane = (unsigned)__builtin_ctz(same & ~named);
            machine->fail("a lane that the instruction's mask leaves out");
        }
        need = named & alive;
        *mask = same;
    }
    if (!(need & ~*mask))
        return true;
    groups[k].waits = true;
    return false;
}

/* Values that were never given are no values. Compilers compute with such and throw the result away, so that they
 * are a fault only where something is done by them: an address, what is stored, who goes where. */
void Warp::need(const Instruction &i, uint32_t mask)
{
    const Operand *o = &machine->program->operands[i.first + i.outputs];
    const unsigned most = i.stores ? 1 : i.inputs; /* `store` looks at its data: where it goes says what they need */
    for (unsigned k = i.carries; k < most; k++) {
        const uint32_t lacking = o[k].reg < 0 ? 0 : mask & ~defined[(size_t)o[k].reg];
        if (lacking)
            lacks(o[k], lacking);
    }
}

/* What the instruction's results are, before it makes them */
void Warp::give(const Instruction &i, uint32_t mask)
{
    const Operand *o = &machine->program->operands[i.first];
    uint32_t given = mask;
    if (i.moves)
        for (unsigned k = i.outputs; k < (unsigned)i.outputs + i.inputs; k++)
            if (o[k].reg >= 0)
                given &= defined[(size_t)o[k].reg];
    if (given != mask)
        give_parts(i, mask & ~given);
    for (unsigned k = i.carries; k < i.outputs; k++)
        if (o[k].reg >= 0)
            defined[(size_t)o[k].reg] |= given;
    turn++;
    if (machine->program->multiplies)
        for (unsigned k = 0; k < (unsigned)i.outputs + i.inputs; k++)
            if (o[k].reg >= 0)
                touched[(size_t)o[k].reg] = turn;
}

/* Sums of a wgmma and what it multiplies are nobody's until it has been waited for. */
void Warp::see_busy(const Instruction &i)
{
    const Operand *o = &machine->program->operands[i.first];
    for (unsigned k = 0; k < (unsigned)i.outputs + i.inputs; k++)
        if (o[k].reg >= 0 && busy[(size_t)o[k].reg])
            machine->fail(k < i.outputs ? "writes a register that a wgmma has not given back" :
                                          "reads a register that a wgmma has not given back");
}

/* Whether no group can go on before an mbarrier's phase ends. */
bool Warp::all_stalled() const
{
    bool one = false;
    for (const Group &g : groups) {
        if (!g.waits && g.tried != machine->events + 1)
            return false;
        one = one || !g.waits;
    }
    return one;
}

void Warp::execute(const Instruction &i, uint32_t mask)
{
    if (i.wgmma) { /* looks itself */
        i.handler(*this, i, mask);
    } else {
        if (!i.moves)
            need(i, mask);
        if (!multiplies.empty())
            see_busy(i);
        give(i, mask); /* before: the handler overwrites inputs, and knows better what it loads */
        i.handler(*this, i, mask);
    }
    unsigned lanes = (unsigned)__builtin_popcount(mask);
    machine->counts.lanes += lanes;
    (i.tensor ? machine->counts.tensor_flops : machine->counts.flops) += (uint64_t)lanes * i.flops;
}

void Warp::step(size_t k)
{
    const Instruction &i = machine->program->code[groups[k].pc];
    uint32_t mask = groups[k].mask;
    machine->at = &i;
    machine->counts.instructions++;
    if (i.has_predicate) {
        if (i.predicate.reg >= 0 && (mask & ~defined[(size_t)i.predicate.reg])) {
            machine->lane = (unsigned)__builtin_ctz(mask & ~defined[(size_t)i.predicate.reg]);
            machine->fail("a predicate that has no value");
        }
        uint32_t p = *(const uint32_t *)((i.predicate.reg == CONSTANT ? constants : registers) + i.predicate.at);
        mask &= i.negated ? ~p : p;
        if (!mask) {
            groups[k].pc++;
            return;
        }
    }
    switch (i.control) {
    case NEXT:
        execute(i, mask);
        groups[k].pc++;
        if (found_going_on)
            groups[k].tried = machine->events + 1;
        found_going_on = false;
        return;
    case BRANCH: return branch(k, i, mask);
    case RETURN:
    case EXIT: return leave(k, mask, i.control == EXIT);
    case CALL: return call(k, i, mask);
    case MEET:
        if (!meet(k, i, &mask))
            return;
        execute(i, mask);
        if (mask == groups[k].mask || i.has_predicate)
            groups[k].pc++;
        else
            move_group(k, mask, groups[k].pc + 1);
        return;
    case BARRIER:
        if (mask != alive) {
            groups[k].waits = true;
            return;
        }
        need(i, mask);
        state = State::barrier;
        barrier_at = &i;
        barrier = *input<uint32_t>(*this, i, 0);
        barrier_count = i.inputs > (i.kind ? 2u : 1u) ? *input<uint32_t>(*this, i, 1) : 0;
        groups[k].pc++;
        machine->counts.barriers++;
        return;
    }
}

/* Until it ends or waits at a barrier, or for so many instructions. */
void Warp::run(uint64_t most)
{
    machine->running = this;
    most = std::min(most, machine->options.most + 1 - std::min(machine->counts.instructions, machine->options.most));
    while (state == State::ready && most--) {
        if (groups.empty()) {
            state = State::done;
            break;
        }
        if (groups.size() == 1) {
            if (groups[0].waits) {
                choose(); /* says so */
            }
            step(0);
            if (!groups.empty() && groups[0].tried == machine->events + 1)
                state = State::stalled;
            continue;
        }
        if (all_stalled()) {
            state = State::stalled;
            continue;
        }
        size_t k = choose();
        step(k);
        if (k < groups.size())
            merge(k);
    }
    if (machine->counts.instructions > machine->options.most)
        machine->fail("does not end");
}

/* --- blocks --- */

static void release(std::vector<Warp *> &at, Machine &m, bool everyone)
{
    const Instruction &first = *at[0]->barrier_at;
    uint32_t sum = 0;
    bool every = true;
    for (Warp *w : at) {
        if (w->barrier_at->kind != first.kind)
            m.fail("different kinds of barriers meet");
        if (!first.kind)
            continue;
        uint32_t p = *input<uint32_t>(*w, *w->barrier_at, w->barrier_at->inputs - 1u) & w->alive;
        sum += (uint32_t)__builtin_popcount(p);
        every = every && p == w->alive;
    }
    for (Warp *w : at) {
        if (first.kind) {
            const Operand &o = operand(*w, *w->barrier_at, 0);
            each_lane(w->alive, [&](unsigned l) { put_bits(*w, o, l, first.kind == 1 ? sum : first.kind == 2 ? every : sum != 0);
                                                  });
            if (o.reg >= 0)
                w->defined[(size_t)o.reg] |= w->alive;
        }
        w->state = State::ready;
    }
    const uint32_t now = ++m.time;
    if (everyone)
        m.phase_first = now;
    if (everyone && m.meetings.empty())
        return;
    Clock all; /* who was not there knows nothing of it */
    for (Warp *w : at) {
        w->meet_all();
        all.take(w->known);
        all.take(w->index, { now, 0, 0 });
    }
    for (Warp *w : at) {
        w->last_sync = now;
        w->known.take(all);
    }
}

/* Lets go the warps of a barrier that all who are to come have reached. */
static bool release_some(std::vector<Warp> &warps, unsigned n, Machine &m)
{
    unsigned live = 0;
    for (unsigned w = 0; w < n; w++)
        live += warps[w].state != State::done;
    for (unsigned w = 0; w < n; w++) {
        if (warps[w].state != State::barrier)
            continue;
        std::vector<Warp *> at;
        for (unsigned v = 0; v < n; v++)
            if (warps[v].state == State::barrier && warps[v].barrier == warps[w].barrier)
                at.push_back(&warps[v]);
        unsigned wanted = warps[w].barrier_count ? (warps[w].barrier_count + LANES - 1) / LANES : live;
        if (at.size() >= wanted) {
            release(at, m, at.size() == live);
            return true;
        }
    }
    return false;
}

void Machine::begin_block(std::vector<Warp> &warps)
{
    block_first = phase_first = ++time;
    block_times.push_back(time);
    block_numbers.push_back(block);
    fenced = 0;
    acquired.clear();
    meetings.clear();
    meetings_made = 0;
    bulks.clear();
    multiplies = 0;
    proxied.assign((threads + LANES - 1) / LANES * LANES, 0);
    multiplied.assign(program->multiplies ? shared.size() / 16 + 1 : 0, 0);
    read_times.assign(program->meets && options.races ? (shared.size() / 4 + 1) * ((threads + LANES - 1) / LANES) : 0, 0);
    memset(shared.data(), 0xff, shared.size());
    shared_valid.clear();
    unsigned n = (threads + LANES - 1) / LANES;
    if (warps.size() < n)
        warps.resize(n);
    for (unsigned w = 0; w < n; w++)
        warps[w].begin(this, w);
}

void Machine::run_block(std::vector<Warp> &warps)
{
    begin_block(warps);
    unsigned n = (threads + LANES - 1) / LANES;
    std::vector<unsigned> order(n);
    for (unsigned w = 0; w < n; w++)
        order[w] = options.order == Order::backward ? n - 1 - w : w;
    for (;;) {
        bool ready = false;
        for (unsigned w = 0; w < n; w++) /* a phase has ended since */
            if (warps[w].state == State::stalled && !warps[w].all_stalled())
                warps[w].state = State::ready;
        if (options.order == Order::random)
            std::shuffle(order.begin(), order.end(), random);
        for (unsigned w : order)
            if (warps[w].state == State::ready) {
                ready = true;
                warps[w].run(options.order == Order::random ? 1 + random() % 300 : ~0ull);
            }
        if (ready)
            continue;
        bool done = true;
        for (unsigned w = 0; w < n; w++)
            done = done && warps[w].state == State::done;
        if (!done && (release_some(warps, n, *this) || end_some_bulk()))
            continue;
        for (unsigned w = 0; w < n; w++)
            if (warps[w].state == State::stalled) {
                running = &warps[w];
                lane = (unsigned)__builtin_ctz(running->groups[0].mask);
                at = running->tried_at;
                fail("waits forever at an mbarrier whose phase does not end" + what_is_missing());
            }
        for (unsigned w = 0; w < n; w++)
            if (warps[w].state == State::barrier) {
                running = &warps[w];
                at = warps[w].barrier_at;
                fail("waits forever at a barrier that not all threads reach");
            }
        end_block(warps);
        return;
    }
}

/* --- launches --- */

Machine::Machine(History &h) : history(h)
{
    h.global.trim();
    time = launch_first = block_first = phase_first = h.time + 1;
}

static void give_arguments(Machine &m, const Program &p, const Launch &launch)
{
    size_t from = 0;
    m.parameters.assign(p.parameter_bytes + 16, 0xff);
    for (const Parameter &a : p.parameters) {
        if (from + a.bytes > launch.argument_bytes)
            m.fail("is launched with fewer bytes of arguments than it has parameters");
        memcpy(&m.parameters[a.offset], launch.arguments + from, a.bytes);
        from += a.bytes;
    }
    if (from != launch.argument_bytes)
        m.fail("is launched with more bytes of arguments than it has parameters");
}

void run(const Program &program, const Launch &launch, const Memory &memory, const Options &options, Counts *counts)
{
    static thread_local std::vector<Warp> warps;
    static thread_local std::unique_ptr<History> history; /* storage of threads has little room */
    if (!history || history->time > 1u << 31) /* long before times would begin again */
        history = std::make_unique<History>();
    Machine m(*history);
    m.program = &program;
    m.launch = &launch;
    m.memory = &memory;
    m.options = options;
    m.random.seed(options.seed);
    m.module_ranges = program.variables;
    m.threads = launch.block[0] * launch.block[1] * launch.block[2];
    size_t bytes = (launch.shared_bytes ? program.dynamic_offset - SHARED_BASE + launch.shared_bytes : program.static_shared);
    if (bytes > launch.most_shared)
        m.fail("needs " + std::to_string(bytes) + " bytes of shared memory, a block has " + std::to_string(launch.most_shared));
    m.shared.resize(bytes + 64);
    m.shared_end = (uint32_t)(SHARED_BASE + bytes);
    give_arguments(m, program, launch);
    uint64_t blocks = (uint64_t)launch.grid[0] * launch.grid[1] * launch.grid[2];
    std::vector<uint64_t> order(blocks);
    for (uint64_t b = 0; b < blocks; b++)
        order[b] = options.order == Order::backward ? blocks - 1 - b : b;
    if (options.order == Order::random)
        std::shuffle(order.begin(), order.end(), m.random);
    for (uint64_t b : order) {
        m.block = b;
        m.run_block(warps);
    }
    m.counts.launches = 1;
    m.counts.blocks = blocks;
    m.counts.threads = m.threads;
    m.counts.block_shared = bytes;
    if (counts)
        counts->add(m.counts);
}

} // namespace ptx
