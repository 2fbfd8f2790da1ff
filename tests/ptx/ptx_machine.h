/* SPDX-License-Identifier: Apache-2.0 */
/* The state of a launch: the block that runs, its warps, and who touched which memory when. */
#ifndef TREK_TESTS_PTX_MACHINE_H
#define TREK_TESTS_PTX_MACHINE_H

#include <random>

#include "ptx_program.h"

namespace ptx {

/* Times are numbers that grow with every barrier, fence and block: of two accesses at or after the last barrier of
 * both threads neither comes first. */
enum : uint8_t { ATOMIC = 1, IN_FLIGHT = 2, SEVERAL = 4, SEVERAL_WARPS = 8, BULK = 16 };
struct Mark {
    uint32_t time = 0;
    uint16_t thread = 0; /* BULK: that of a bulk copy's mbarrier */
    uint8_t flags = 0;
};
struct Cell {
    Mark writer, reader;
};

/* Cells of 4 bytes, a page at a time; of 2 or 1 in pages where a launch has touched something smaller. Pages outlive launches:
 * what an earlier one left in them is older than all that counts. */
class Shadow {
public:
    struct Cells {
        Cell *first;
        unsigned count, bytes; /* of each */
    };
    /* Those of an aligned access of at most 32 bytes. Marks from before `since` say nothing any more. */
    Cells cells(uint64_t address, unsigned bytes, uint32_t since)
    {
        Slot &slot = slots_[(address >> 12) % SLOTS];
        if (slot.number != address >> 12)
            find(address >> 12, &slot);
        Page &p = *slot.page;
        if (p.since < since) {
            p.since = since;
            p.shift = 2;
        }
        unsigned low = (unsigned)(address | bytes) & 3u, shift = low & 1u ? 0 : low ? 1 : 2;
        if (shift < p.shift)
            refine(p, shift);
        return { &p.cells[(address & 4095) >> p.shift], bytes >> p.shift, 1u << p.shift };
    }
    void trim(); /* gives memory back if it is much */

private:
    struct Page {
        std::vector<Cell> cells;
        uint32_t since = 0; /* the launch, or the block, that found its cells' size */
        uint8_t shift = 2;
    };
    enum { SLOTS = 64 };
    struct Slot {
        uint64_t number = ~0ull;
        Page *page = nullptr;
    };
    void find(uint64_t number, Slot *slot);
    static void refine(Page &p, unsigned shift);
    std::unordered_map<uint64_t, Page> pages_;
    Slot slots_[SLOTS];
};

/* What launches of a thread of the host leave to the next: marks and the time, which goes on. */
struct History {
    Shadow global, shared;
    uint32_t time = 0;
};

struct Warp;

/* What a warp, or who waits at an mbarrier, knows to be over: by warp, accesses of all its lanes before one time, and of some
 * lanes before a later one. Beyond the warps of a block come its mbarriers, for the copies that each has completed. */
enum { MOST_WARPS = 32 };
struct Known {
    uint32_t all = 0, some = 0, lanes = 0;
};
struct Clock {
    std::vector<Known> of;
    void take(const Clock &other);
    void take(size_t who, const Known &what);
    bool covers(size_t who, uint32_t time, unsigned lane, bool several) const;
};

/* An object of mbarrier.init. A phase ends when no arrival and no byte is outstanding. */
struct Meeting {
    uint32_t expected = 0, pending = 0;
    int64_t bytes = 0; /* expected less what copies have written */
    uint64_t phase = 0;
    unsigned number = 0; /* of those that the block has made */
    bool visible = false; /* to the async proxy, by a fence of who made it */
    uint16_t maker = 0;
    Clock gathered, done; /* of who has arrived; of all who had when the last phase ended */
};

/* A cp.async.bulk whose bytes may not be there yet: `to` of each piece of 16 bytes, and where from; 0: zeros. */
struct Bulk {
    std::vector<std::pair<uint64_t, uint64_t>> pieces;
    uint64_t meeting;
};

struct Machine {
    History &history;
    const Program *program;
    const Launch *launch;
    const Memory *memory;
    Options options;
    Counts counts;
    std::mt19937_64 random;
    std::vector<unsigned char> parameters, shared;
    std::vector<unsigned char> shared_valid; /* of each bit of shared memory whether it has a value; empty: all that is written */
    uint32_t shared_end = 0; /* the first address that the block has not */
    uint32_t time, launch_first, block_first, phase_first;
    uint64_t block = 0;
    unsigned threads = 0;
    std::vector<uint32_t> block_times;                       /* of the launch: when each began */
    std::vector<uint64_t> block_numbers;
    uint32_t fenced = 0;                                     /* the block's last fence; 0: none */
    typedef std::map<size_t, uint32_t> Released;             /* by a block's place in block_times: its last fence before */
    std::unordered_map<uint64_t, Released> released;         /* by the address of an atomic */
    std::vector<uint64_t> acquired;                          /* addresses of the block's atomics */
    Range ranges[8] = {};
    unsigned next_range = 0;
    const char *doing = "";
    Warp *running = nullptr;
    const Instruction *at = nullptr;
    unsigned lane = 0;
    bool constant_data = false; /* the access is an ld.global.nc */
    std::vector<Range> module_ranges; /* variables of the module */
    std::map<uint64_t, Meeting> meetings; /* of the block, by their addresses in shared memory */
    unsigned meetings_made = 0;
    uint64_t events = 0;                  /* phases that ended: what a warp that waits at an mbarrier waits for */
    std::vector<Bulk> bulks;              /* that are in flight */
    std::vector<uint32_t> proxied;        /* of each thread of the block: its last fence.proxy.async */
    std::vector<uint16_t> multiplied;     /* of each 16 bytes of shared memory: wgmmas in flight that read them */
    unsigned multiplies = 0;              /* in flight */
    std::vector<uint32_t> read_times; /* where there are mbarriers: of each 4 bytes of shared memory, by warp: its last read */
    uint64_t noted = 0;                   /* in shared memory: the cell at hand */

    explicit Machine(History &h);
    ~Machine() { history.time = time; }
    bool in_one_range(uint64_t begin, uint64_t end) const;
    unsigned char *validity(Warp &w, Space space, const unsigned char *at); /* of the byte; null: it has a value */
    void fill_shared(uint64_t address, unsigned bytes);
    void need_shared(uint64_t address, unsigned bytes); /* fails if a bit of them has none */
    unsigned char *locate(Warp &w, Space space, uint64_t address, unsigned bytes, uint64_t *shadow_address, Space *found);
    void note(Warp &w, Space space, uint64_t address, unsigned bytes, bool writes, bool atomic, const unsigned char *before,
              const unsigned char *after);
    void note_read(Warp &w, Space space, Cell &cell, bool atomic);
    void note_write(Warp &w, Space space, Cell &cell, bool atomic, bool same);
    void note_copy(Warp &w, uint64_t address, unsigned bytes, bool begins);
    void note_atomic(uint64_t address);
    void note_bulk(Warp &w, uint64_t address, const Meeting &meeting, bool begins);
    void see_by_proxy(Warp &w, uint64_t address);
    void read_by_wgmma(Warp &w, uint64_t address);
    void end_bulk(size_t k);
    bool end_some_bulk();
    std::string what_is_missing() const; /* of mbarriers' phases */
    void end_block(std::vector<Warp> &warps);
    [[noreturn]] void fail(const std::string &why);
    void run_block(std::vector<Warp> &warps);
    void begin_block(std::vector<Warp> &warps);

private:
    bool is_calm(const Mark &mark, uint32_t oldest, uint16_t me) const;
    bool ordered(const Warp &w, const Mark &mark);
    bool knows_several(const Warp &w) const;
    bool released_to_us(uint32_t when);
    std::string teller(const Mark &mark) const, in_flight(const Mark &writer) const;
    unsigned char *global(uint64_t address, unsigned bytes);
};

struct Copy { /* a cp.async that has not been waited for */
    uint8_t lane, bytes;
    uint32_t group;
    uint64_t to, from;
};

struct Group { /* lanes of a warp that are at the same place */
    uint32_t mask, pc;
    bool waits = false;
    std::vector<uint32_t> stack; /* where calls return to */
    uint64_t tried = 0;          /* events when it last found an mbarrier's phase going on, plus 1 */
};

enum class State { ready, barrier, stalled, done }; /* stalled: all groups wait at mbarriers */

struct TensorProduct { /* a wgmma.mma_async that has not been waited for */
    const Instruction *at;
    uint64_t a, b; /* descriptors */
    bool adds;
    uint32_t group;
};

/* Operands of `run_on_undefined`, which lie after all registers */
enum { SCRATCH_OPERANDS = 12, SCRATCH_BYTES = 8 * LANES };

struct Warp {
    Machine *machine;
    unsigned index;
    uint32_t alive;
    std::vector<unsigned char> file, frame, local;
    std::vector<unsigned char> local_valid, frame_valid; /* of each bit whether it has a value */
    std::vector<uint32_t> defined; /* of each register: the lanes whose bits all have values */
    std::vector<uint32_t> partly;  /* and those, of the others, of which some do: `valid` says which, as `registers` lie */
    std::vector<unsigned char> valid;
    Program scratch;               /* for `run_on_undefined`: operands in a place of their own */
    unsigned char *registers;
    const unsigned char *constants;
    uint32_t carry = 0, last_sync = 0;
    std::vector<Group> groups;
    std::vector<Copy> copies;
    uint32_t commits[LANES] = {};
    Clock known, known_of_some;         /* the second: of `knowing` lanes, until the warp meets */
    uint32_t knowing = 0;
    const Instruction *tried_at = nullptr;
    bool found_going_on = false;        /* the instruction at hand: an mbarrier's phase */
    std::vector<TensorProduct> multiplies;
    uint32_t multiply_groups = 0;
    std::vector<uint8_t> busy;          /* of each register: IS_SUM, IS_LEFT of a multiply in flight */
    std::vector<uint64_t> touched;      /* of each register: when, in instructions that are no wgmma; for wgmma.fence */
    uint64_t turn = 1, multiply_fence = 0; /* 0: there was none */
    uint64_t multiplied = 0;            /* wgmmas, as a sum over their places: four warps' are the same */
    State state = State::ready;
    unsigned barrier = 0;      /* its number */
    unsigned barrier_count = 0; /* threads that meet there; 0: all */
    const Instruction *barrier_at = nullptr;

    void begin(Machine *m, unsigned number);
    void run(uint64_t most);
    void end_copies(uint32_t mask, uint32_t pending, bool all);
    void end_multiplies(uint32_t pending);
    bool all_stalled() const;
    void meet_all(); /* the warp's lanes know what some knew */
    uint64_t undefined_bits(const Operand &o, unsigned l) const; /* of a register's lane, as many as it has */
    void set_undefined(const Operand &o, unsigned l, uint64_t bits);

private:
    void fill_specials();
    size_t choose();
    void merge(size_t k);
    void step(size_t k);
    void branch(size_t k, const Instruction &i, uint32_t mask);
    void leave(size_t k, uint32_t mask, bool exits);
    void call(size_t k, const Instruction &i, uint32_t mask);
    bool meet(size_t k, const Instruction &i, uint32_t *mask);
    void move_group(size_t k, uint32_t mask, uint32_t pc);
    void need(const Instruction &i, uint32_t mask);
    void give(const Instruction &i, uint32_t mask);
    void lacks(const Operand &o, uint32_t lanes);
    void give_parts(const Instruction &i, uint32_t mask);
    void run_on_undefined(const Instruction &i, uint32_t mask);
    uint64_t undefined_of(const Instruction &i, unsigned l, unsigned width) const;
    void execute(const Instruction &i, uint32_t mask);
    void see_busy(const Instruction &i);
};
enum : uint8_t { IS_SUM = 1, IS_LEFT = 2 };

/* Counts what an access of n lanes costs, if that is wanted. */
void measure(Machine &m, Space space, const uint64_t *addresses, unsigned n, unsigned bytes, bool writes);

/* What handlers read and write. */
template <typename T> static inline const T *input(const Warp &w, const Instruction &i, unsigned k)
{
    const Operand &o = w.machine->program->operands[i.first + i.outputs + k];
    return (const T *)((o.reg == CONSTANT ? w.constants : w.registers) + o.at);
}
template <typename T> static inline T *output(Warp &w, const Instruction &i, unsigned k = 0)
{
    return (T *)(w.registers + w.machine->program->operands[i.first + k].at);
}
static inline const Operand &operand(const Warp &w, const Instruction &i, unsigned k)
{
    return w.machine->program->operands[i.first + k];
}
/* The bits of an input in lane l, whatever its width. */
static inline uint64_t bits_of(const Warp &w, const Operand &o, unsigned l)
{
    const unsigned char *at = (o.reg == CONSTANT ? w.constants : w.registers) + o.at;
    switch (o.width) {
    case 2: return ((const uint16_t *)at)[l];
    case 4: return ((const uint32_t *)at)[l];
    case 8: return ((const uint64_t *)at)[l];
    default: return *(const uint32_t *)at >> l & 1u;
    }
}
static inline void put_bits(Warp &w, const Operand &o, unsigned l, uint64_t value)
{
    unsigned char *at = w.registers + o.at;
    switch (o.width) {
    case 2: ((uint16_t *)at)[l] = (uint16_t)value; break;
    case 4: ((uint32_t *)at)[l] = (uint32_t)value; break;
    case 8: ((uint64_t *)at)[l] = value; break;
    default: *(uint32_t *)at = (*(uint32_t *)at & ~(1u << l)) | (uint32_t)(value & 1u) << l;
    }
}
template <typename F> static inline void each_lane(uint32_t mask, F f)
{
    if (mask == ALL)
        for (unsigned l = 0; l < LANES; l++)
            f(l);
    else
        for (uint32_t rest = mask; rest; rest &= rest - 1)
            f((unsigned)__builtin_ctz(rest));
}

} // namespace ptx

#endif
