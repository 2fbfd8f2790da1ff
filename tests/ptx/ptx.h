/* SPDX-License-Identifier: Apache-2.0 */
/* Executes PTX, a GPU's virtual machine code as nvcc writes it, on the CPU: a warp is
 * 32 lanes, one instruction at a time for all of them. What a GPU leaves undefined is
 * a fault here: races, uninitialised registers and shared memory, addresses outside
 * what was allocated, misaligned ones, barriers and exchanges that not all lanes reach. */
#ifndef TREK_TESTS_PTX_H
#define TREK_TESTS_PTX_H

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <vector>

namespace ptx {

/* What a kernel did that a GPU does not define, or what this machine does not know. */
struct Fault : std::runtime_error {
    using std::runtime_error::runtime_error;
};

struct Program;

/* The text of one .ptx file; kernels are translated when they are first asked for. */
class Module {
public:
    Module(const std::string &name, std::string text);
    ~Module();
    const Program &program(const std::string &entry); /* Fault: unknown, or uses what this machine lacks */
    const std::vector<std::string> &entries() const { return entries_; }
    const std::string &name() const { return name_; }

private:
    friend struct Translator;
    struct Function {
        size_t header, body, end; /* in the text: its name's line, after its brace, at the last one */
        bool entry;
    };
    struct Variable {
        std::string space;
        size_t bytes, alignment;
        std::vector<uint8_t> value;
        std::unique_ptr<uint64_t[]> memory; /* of .global and .const */
    };
    void index();
    void add_function(size_t at, size_t name, bool entry);
    void add_variable(size_t at, size_t end);
    std::string name_, text_;
    size_t skip_to_ = 0;
    std::vector<std::string> entries_;
    std::unordered_map<std::string, Function> functions_;
    std::map<std::string, Variable> variables_;
    std::unordered_map<std::string, std::unique_ptr<Program>> programs_;
};

/* What a kernel may touch. */
struct Range {
    uintptr_t begin, end; /* end 0: nothing is there */
};
class Memory {
public:
    virtual ~Memory() = default;
    virtual Range find(uintptr_t address) const = 0;
};

/* What cp.async.bulk.tensor is told of a tensor in global memory. A GPU's own form is nobody's to know: this is the one that the
 * fake driver's cuTensorMapEncodeTiled writes into the same 128 bytes. Sizes and the like from the dimension of neighbours on. */
struct TensorMap {
    enum : uint64_t { MAGIC = 0x70616d726f736e65ull };
    uint64_t magic, address;
    uint64_t strides[4];  /* bytes from one to the next of dimension d + 1 */
    uint32_t last[5];     /* sizes less one */
    uint16_t box[5];
    uint8_t rank, element; /* its bytes */
    uint8_t swizzle;      /* 0; 1, 2, 3: over 32, 64, 128 bytes */
};
static_assert(sizeof(TensorMap) <= 128, "a CUtensorMap has 128 bytes");

enum class Order { forward, backward, random };

struct Options {
    Order order = Order::forward; /* of blocks, warps and the halves of a warp that has parted */
    uint64_t seed = 1;
    bool copy_late = true;        /* cp.async, cp.async.bulk, wgmma: written when waited for, or at once */
    bool races = true;
    bool measure = false;         /* fills in what Counts has of memory */
    uint64_t most = 4000000000u;  /* warp instructions of a launch */
};

struct Launch {
    unsigned grid[3], block[3];
    size_t shared_bytes;
    const unsigned char *arguments; /* side by side, without padding */
    size_t argument_bytes;
    size_t most_shared = ~(size_t)0; /* that a block of the device can have, static and dynamic */
};

struct Counts {
    uint64_t launches = 0, blocks = 0, instructions = 0, lanes = 0; /* lanes: instructions of threads */
    uint64_t flops = 0, tensor_flops = 0;
    uint64_t loaded = 0, stored = 0;          /* bytes of global memory that lanes asked for */
    uint64_t sectors = 0, least_sectors = 0;  /* of 32 bytes that warps touched; that the bytes would fill */
    uint64_t shared = 0, conflicts = 0;       /* accesses of warps to shared memory; turns beyond the first */
    uint64_t barriers = 0, atomics = 0;
    uint64_t threads = 0, block_shared = 0;   /* the most of a launch: of a block, its bytes of shared memory */
    void add(const Counts &other);
};

/* Runs all blocks of a launch. Fault: what it found, with the instruction, its line and the thread. */
void run(const Program &program, const Launch &launch, const Memory &memory, const Options &options, Counts *counts);

} // namespace ptx

#endif
