/* SPDX-License-Identifier: Apache-2.0 */
/* wgmma.mma_async of 16-bit operands (PTX ISA, "Asynchronous Warpgroup Level Matrix Instructions"): each of four warps makes 16
 * of the 64 rows. Products are made when they are waited for, or at once; in between their registers are nobody's. */
#include <cstring>

#include "ptx_machine.h"

namespace ptx {

float f32_of_f16(uint16_t bits);                     /* ptx_convert.cc */
uint64_t swizzled(uint64_t address, unsigned mode); /* ptx_bulk.cc */

enum : uint8_t { IS_F16 = 1, LEFT_IN_REGISTERS = 2 };

/* --- operands in shared memory --- */

/* "Matrix descriptor": bits 0-13 the address, 16-29 and 32-45 offsets, all in units of 16 bytes, 49-51 the base offset,
 * 62-63 the swizzle mode: none, 128, 64, 32 bytes. */
struct Descriptor {
    uint64_t start, leading, stride;
    unsigned mode; /* as of `swizzled` */
    Descriptor(Machine &m, uint64_t bits)
        : start((bits & 0x3fff) << 4), leading((bits >> 16 & 0x3fff) << 4), stride((bits >> 32 & 0x3fff) << 4),
          mode((4u - (unsigned)(bits >> 62)) & 3u)
    {
        if (bits >> 49 & 7u)
            m.fail("a base offset, which this machine does not know");
        if (bits & (0xc000ull | 3ull << 30 | 7ull << 46 | 0x3ffull << 52))
            m.fail("a matrix descriptor with bits that mean nothing");
        /* the pattern repeats after 8 rows of 32, 64, 128 bytes, and must begin where the matrix does, but for steps along K */
        if (mode && (start >> 7 & ((1u << mode) - 1)))
            m.fail("a matrix that begins within its swizzle pattern");
    }
    /* Where the 8 elements lie that begin at row mn (of M or N), column k: along K, or turned along M or N; "Strides" */
    uint64_t at(unsigned mn, unsigned k, bool turned) const
    {
        const unsigned row = mode ? 16u << mode : 16u; /* bytes of a row of the pattern */
        uint64_t address = start;
        if (!turned) /* 8 rows, then `stride` on; not swizzled, each 8 columns are `leading` apart */
            address += mn / 8 * stride + mn % 8 * row + (mode ? 2u * k : k / 8 * leading);
        else if (mode) /* rows of the pattern go along M or N, those of K follow; 8 of them, then `stride` on */
            address += mn / (row / 2) * leading + mn % (row / 2) * 2 + k / 8 * stride + k % 8 * row;
        else
            address += mn / 8 * stride + k / 8 * leading + k % 8 * 16;
        return swizzled(address, mode);
    }
};

/* The pieces of 16 bytes of `rows` rows from `first` on by 16 columns, each given with its row and column */
template <typename F> static void each_piece(const Descriptor &d, unsigned first, unsigned rows, bool turned, F f)
{
    if (!turned) {
        for (unsigned r = 0; r < rows; r++)
            for (unsigned k = 0; k < 16; k += 8)
                f(d.at(first + r, k, false), r, k);
    } else {
        for (unsigned r = 0; r < rows; r += 8)
            for (unsigned k = 0; k < 16; k++)
                f(d.at(first + r, k, true), r, k);
    }
}

static float number_of(uint16_t half, bool is_f16)
{
    uint32_t bits = (uint32_t)half << 16;
    float x;
    memcpy(&x, &bits, 4);
    return is_f16 ? f32_of_f16(half) : x;
}

static const unsigned char *piece_at(Machine &m, uint64_t address)
{
    if (address < SHARED_BASE || address + 16 > m.shared_end)
        m.fail("a matrix outside the block's shared memory");
    return &m.shared[address - SHARED_BASE];
}

/* to[row][column], of a matrix of 16 columns */
static void load(Machine &m, const Descriptor &d, unsigned first, unsigned rows, bool turned, bool is_f16, double (*to)[16])
{
    const bool whole = m.shared_valid.empty();
    each_piece(d, first, rows, turned, [&](uint64_t address, unsigned r, unsigned k) {
        uint16_t halves[8];
        memcpy(halves, piece_at(m, address), 16);
        if (!whole)
            m.need_shared(address, 16);
        for (unsigned e = 0; e < 8; e++)
            (turned ? to[r + e][k] : to[r][k + e]) = number_of(halves[e], is_f16);
    });
}

/* --- an instruction's operands --- */

struct Shape {
    unsigned columns;       /* N */
    bool in_registers, is_f16, turned_left, turned_right;
    double sign;
    const Operand *sums, *left, *right, *adds;
};
static Shape shape_of(const Warp &w, const Instruction &i)
{
    Shape s;
    s.sums = &operand(w, i, 0);
    s.left = s.sums + i.outputs;
    s.in_registers = i.kind & LEFT_IN_REGISTERS;
    s.is_f16 = i.kind & IS_F16;
    s.columns = i.outputs * 2u;
    s.right = s.left + (s.in_registers ? 4 : 1);
    s.adds = s.right + 1;
    auto number = [&](unsigned k) { return (int32_t)bits_of(w, s.adds[k], 0); };
    s.sign = number(1) * number(2);
    s.turned_left = !s.in_registers && number(3);
    s.turned_right = number(s.in_registers ? 3 : 4);
    return s;
}

/* For f of all pieces of shared memory that the warp's part of a product reads */
template <typename F> static void each_read(Warp &w, const TensorProduct &p, F f)
{
    const Shape s = shape_of(w, *p.at);
    Machine &m = *w.machine;
    auto piece = [&](uint64_t address, unsigned, unsigned) {
        piece_at(m, address);
        f(address);
    };
    if (!s.in_registers)
        each_piece(Descriptor(m, p.a), w.index % 4 * 16, 16, s.turned_left, piece);
    each_piece(Descriptor(m, p.b), 0, s.columns, s.turned_right, piece);
}

/* d [16 x N] (+)= a [16 x 16] b [16 x N], rounded once. Fragments: "Matrix Fragments for wgmma.mma_async.m64nNk16", for each warp
 * those of mma.m16n8k16. */
static void multiply(Warp &w, const TensorProduct &p)
{
    double a[16][16], b[256][16]; /* storage of threads has little room */
    const Shape s = shape_of(w, *p.at);
    Machine &m = *w.machine;
    if (s.in_registers)
        for (unsigned l = 0; l < LANES; l++)
            for (unsigned k = 0; k < 4; k++) {
                const uint32_t pair = (uint32_t)bits_of(w, s.left[k], l);
                for (unsigned h = 0; h < 2; h++)
                    a[l / 4 + 8 * (k % 2)][l % 4 * 2 + h + 8 * (k / 2)] = number_of((uint16_t)(pair >> 16 * h), s.is_f16);
            }
    else
        load(m, Descriptor(m, p.a), w.index % 4 * 16, 16, s.turned_left, s.is_f16, a);
    load(m, Descriptor(m, p.b), 0, s.columns, s.turned_right, s.is_f16, b);
    for (unsigned k = 0; k < p.at->outputs; k++) {
        float *d = (float *)(w.registers + s.sums[k].at);
        for (unsigned l = 0; l < LANES; l++) {
            const double *x = a[l / 4 + 8 * (k / 2 % 2)], *y = b[k / 4 * 8 + l % 4 * 2 + k % 2];
            double sum = 0;
            for (unsigned c = 0; c < 16; c++)
                sum += x[c] * y[c];
            d[l] = (float)((p.adds ? (double)d[l] : 0.0) + s.sign * sum);
        }
        if (s.sums[k].reg >= 0)
            w.defined[(size_t)s.sums[k].reg] = ALL;
    }
}

/* --- in flight --- */

static void mark_busy(Warp &w, const TensorProduct &p)
{
    const Shape s = shape_of(w, *p.at);
    for (unsigned k = 0; k < p.at->outputs; k++)
        if (s.sums[k].reg >= 0)
            w.busy[(size_t)s.sums[k].reg] |= IS_SUM;
    for (unsigned k = 0; s.in_registers && k < 4; k++)
        if (s.left[k].reg >= 0)
            w.busy[(size_t)s.left[k].reg] |= IS_LEFT;
}

/* A register of a new product: has a value, was touched before the fence, belongs to no product but as it does here */
static void see_register(Warp &w, const Operand &o, uint8_t as, bool read)
{
    if (o.reg < 0)
        return;
    Machine &m = *w.machine;
    const size_t r = (size_t)o.reg;
    if (w.busy[r] & ~as)
        m.fail("a wgmma whose sums are another's left operand");
    if (!w.multiply_fence || w.touched[r] > w.multiply_fence) /* "wgmma.fence": read or written */
        m.fail("a wgmma with a register that was touched after the last wgmma.fence");
    if (read && !(w.busy[r] & IS_SUM) && w.defined[r] != ALL)
        m.fail("reads a register that has no value");
}

static void begin_multiply(Warp &w, const Instruction &i, uint32_t mask)
{
    Machine &m = *w.machine;
    const Shape s = shape_of(w, i);
    m.lane = 0;
    if (mask != ALL || (w.index / 4 + 1) * 4 * LANES > m.threads)
        m.fail("a wgmma without four whole warps");
    TensorProduct p = { &i, 0, 0, false, w.multiply_groups };
    if (s.adds->reg >= 0 && w.defined[(size_t)s.adds->reg] != ALL)
        m.fail("reads a register that has no value");
    p.adds = bits_of(w, *s.adds, 0);
    p.a = s.in_registers ? 0 : bits_of(w, *s.left, 0);
    p.b = bits_of(w, *s.right, 0);
    for (unsigned l = 1; l < LANES; l++)
        if ((bits_of(w, *s.adds, l) != 0) != p.adds || bits_of(w, *s.right, l) != p.b ||
            (!s.in_registers && bits_of(w, *s.left, l) != p.a))
            m.fail("a wgmma whose lanes differ in its descriptors or in whether it adds");
    for (unsigned k = 0; k < i.outputs; k++)
        see_register(w, s.sums[k], IS_SUM, p.adds);
    for (unsigned k = 0; s.in_registers && k < 4; k++)
        see_register(w, s.left[k], IS_LEFT, true);
    each_read(w, p, [&](uint64_t address) {
        if (m.options.races)
            m.read_by_wgmma(w, address);
        m.multiplied[(address - SHARED_BASE) / 16]++;
    });
    if (!m.options.copy_late)
        multiply(w, p);
    m.multiplies++;
    w.multiplied = w.multiplied * 31 + i.place;
    mark_busy(w, p);
    w.multiplies.push_back(p);
}

void Warp::end_multiplies(uint32_t pending)
{
    std::vector<TensorProduct> left;
    for (const TensorProduct &p : multiplies) {
        if (p.group + pending >= multiply_groups) {
            left.push_back(p);
            continue;
        }
        if (machine->options.copy_late)
            multiply(*this, p);
        each_read(*this, p, [&](uint64_t address) {
            machine->multiplied[(address - SHARED_BASE) / 16]--;
            if (machine->options.races)
                machine->note(*this, SHARED, address, 16, false, false, nullptr, nullptr);
        });
        machine->multiplies--;
    }
    multiplies = std::move(left);
    busy.assign(busy.size(), 0);
    for (const TensorProduct &p : multiplies)
        mark_busy(*this, p);
}

static void fence_registers(Warp &w, const Instruction &, uint32_t) { w.multiply_fence = w.turn; }
static void commit(Warp &w, const Instruction &, uint32_t) { w.multiply_groups++; }
static void wait(Warp &w, const Instruction &i, uint32_t)
{
    w.machine->lane = 0;
    w.end_multiplies((uint32_t)bits_of(w, operand(w, i, 0), 0));
}

/* --- from opcodes --- */

bool decode_wgmma(const Opcode &o, Instruction *i)
{
    if (o.base != "wgmma" || !o.has("sync") || !o.has("aligned"))
        return false;
    i->control = MEET;
    i->aligned = true;
    i->wgmma = true;
    i->handler = o.has("fence") ? fence_registers : o.has("commit_group") ? commit : o.has("wait_group") ? wait : nullptr;
    if (!o.has("mma_async") || o.suffixes.size() != 7)
        return i->handler != nullptr;
    const std::string &shape = o.suffixes[3];
    const size_t n = shape.find('n'), k = shape.find('k');
    const bool is_f16 = o.type() == "f16";
    if (shape.compare(0, 3, "m64") || n != 3 || k == std::string::npos || shape.substr(k) != "k16" || o.suffixes[4] != "f32" ||
        o.type2() != o.type() || !(is_f16 || o.type() == "bf16"))
        return false;
    i->handler = begin_multiply;
    i->kind = is_f16 ? IS_F16 : 0;
    i->tensor = true;
    i->number = atoi(shape.c_str() + 4); /* N, which `finish_wgmma` compares */
    i->flops = (uint16_t)(2 * 16 * i->number * 16 / LANES);
    return i->number % 8 == 0 && i->number >= 8 && i->number <= 256;
}

/* When operands are known: whether there are as many as N asks for, and whether the left one is in registers. */
bool finish_wgmma(Instruction *i)
{
    if (i->handler != begin_multiply)
        return true;
    if (i->outputs * 2 != i->number)
        return false;
    /* descriptor, descriptor, scale-d, two signs, two majors; or four registers, descriptor, scale-d, two signs, one major */
    i->kind |= i->inputs == 9 ? LEFT_IN_REGISTERS : 0;
    i->number = 0;
    return i->inputs == 7 || i->inputs == 9;
}

} // namespace ptx
