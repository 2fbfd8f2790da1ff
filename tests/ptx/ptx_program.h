/* SPDX-License-Identifier: Apache-2.0 */
/* A kernel as it is executed: instructions with their functions and operands' places. */
#ifndef TREK_TESTS_PTX_PROGRAM_H
#define TREK_TESTS_PTX_PROGRAM_H

#include "ptx.h"

namespace ptx {

enum { LANES = 32 };
constexpr uint32_t ALL = 0xffffffffu;

/* Generic addresses of what is not global memory. */
enum : uint64_t {
    SHARED_WINDOW = 0xf1ull << 48,
    LOCAL_WINDOW = 0xf2ull << 48,
    PARAM_WINDOW = 0xf3ull << 48,
    WINDOW_MASK = 0xffull << 48,
};
enum { SHARED_BASE = 1024 }; /* the first address of shared memory, as on sm_90: 0 is none */

enum Space : uint8_t { GENERIC, GLOBAL, SHARED, LOCAL, PARAM, CALL_PARAM };

/* A register (reg >= 0) or a constant: where its 32 lanes lie, each `width` bytes; predicates are one mask. */
struct Operand {
    uint32_t at;
    int32_t reg;
    uint8_t width; /* 0: a predicate */
};
enum : int32_t { CONSTANT = -1, SINK = -2 };

struct Warp;
struct Instruction;
typedef void (*Handler)(Warp &, const Instruction &, uint32_t mask);

enum Control : uint8_t { NEXT, BRANCH, RETURN, EXIT, CALL, BARRIER, MEET };

struct Instruction {
    Handler handler = nullptr;
    Control control = NEXT;
    bool negated = false;
    bool moves = false;                  /* undefined values pass through, as the next four say */
    uint8_t shifts = 0;                  /* of so many first inputs bits only go elsewhere, where the other inputs say */
    uint8_t table = 0;                   /* lop3's, of what computes a bit from bits at its place; 0: it does not */
    bool pairs = false;                  /* the first input makes the upper half, the second the lower one */
    uint8_t reads = 0;                   /* so many low bytes of each input; 0: all */
    bool stores = false;                 /* inputs but the first may lack values: where they go says what they need */
    bool carries = false; /* an undefined first input goes to the first output of some lanes, as the handler says */
    bool aligned = false;                /* MEET: of all lanes; otherwise its mask is its last source */
    uint8_t outputs = 0, inputs = 0;     /* operands, outputs first */
    Space space = GENERIC;
    uint8_t size = 0, vector = 1;        /* of a memory access: bytes of an element, elements */
    bool is_signed = false, is_volatile = false, constant_data = false;
    uint8_t kind = 0;
    uint8_t wide_in = 0, wide_out = 0;   /* what the first input and output must have; 0: anything */
    uint32_t first = 0;                  /* of its operands */
    int64_t number = 0;                  /* a memory operand's offset, a branch's target */
    Operand predicate = { 0, CONSTANT, 0 };
    uint16_t flops = 0;                  /* of a lane; of tensor cores: of a warp / 32 */
    bool tensor = false, has_predicate = false, wgmma = false;
    uint32_t place = 0;                  /* in the text */
    uint32_t call = 0;
};

struct CallCopy { /* of an argument or a result */
    uint32_t from, to, bytes;
};
struct Call {
    uint32_t target;
    std::vector<CallCopy> before, after;
};

struct Parameter {
    uint32_t offset, bytes;
};

enum Special : uint8_t { TID_X, TID_Y, TID_Z, NTID_X, NTID_Y, NTID_Z, CTAID_X, CTAID_Y, CTAID_Z, NCTAID_X, NCTAID_Y, NCTAID_Z,
                         LANEID, WARPID, LANEMASK_LT, LANEMASK_LE, LANEMASK_GT, LANEMASK_GE, LANEMASK_EQ, SPECIALS };

struct Program {
    bool multiplies = false, meets = false; /* has a wgmma, an mbarrier */
    std::string name, module;
    const std::string *text;
    std::vector<Instruction> code;
    std::vector<Operand> operands;
    std::vector<Call> calls;
    std::vector<unsigned char> constants;
    std::vector<Parameter> parameters;
    std::vector<Range> variables;         /* of the module, in memory */
    Operand special[SPECIALS];            /* reg SINK: not used */
    uint32_t registers = 0, register_bytes = 0;
    uint32_t parameter_bytes = 0, static_shared = 0, dynamic_offset = 0, local_bytes = 0, frame_bytes = 0;
    std::string where(const Instruction &i) const; /* file:line: its text */
};

/* An opcode and its suffixes, what an instruction is made of. */
struct Opcode {
    std::string base;
    std::vector<std::string> suffixes;
    bool has(const char *suffix) const;
    const std::string &type() const { return suffixes.back(); }
    const std::string &type2() const { return suffixes[suffixes.size() - 2]; }
};
/* Each knows some opcodes: fills in handler, kind, flops. false: not one of its own. */
bool decode_number(const Opcode &opcode, Instruction *i);
bool decode_convert(const Opcode &opcode, Instruction *i);
bool decode_memory(const Opcode &opcode, Instruction *i);
bool decode_bulk(const Opcode &opcode, Instruction *i);
bool decode_wgmma(const Opcode &opcode, Instruction *i);
bool finish_wgmma(Instruction *i); /* with its operands; false: not those that it can have */
bool decode_meeting(const Opcode &opcode, Instruction *i);

unsigned bytes_of(const std::string &type); /* 0: a predicate */

} // namespace ptx

#endif
