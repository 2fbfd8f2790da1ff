/* SPDX-License-Identifier: Apache-2.0 */
/* What the tests of the machine share: a kernel of its body, run, and what its fault says. */
#ifndef TREK_TESTS_TEST_PTX_H
#define TREK_TESTS_TEST_PTX_H

#include <cstdio>
#include <cstring>

#include "ptx.h"

using namespace ptx;

static int passed, failed;
#define CHECK(condition)                                                     \
    do {                                                                     \
        if (condition) {                                                     \
            passed++;                                                        \
        } else {                                                             \
            failed++;                                                        \
            printf("%s:%d: %s\n", __FILE__, __LINE__, #condition);           \
        }                                                                    \
    } while (0)

/* --- a kernel of its body: %rd1 is what it gets, %r1 its thread, %rd2 = %rd1 + 8 * thread --- */

static inline std::string kernel(const std::string &body, const std::string &module = "")
{
    return ".version 8.0\n.target sm_90\n.address_size 64\n" + module +
           "\n.visible .entry k(\n\t.param .u64 k_param_0\n)\n{\n"
           "\t.reg .pred %p<9>;\n\t.reg .b16 %h<9>;\n\t.reg .b32 %r<40>;\n\t.reg .b64 %rd<20>;\n\t.reg .f32 %f<20>;\n\t.reg .f64 "
           "%fd<9>;\n"
           "\tld.param.u64 %rd1, [k_param_0];\n\tmov.u32 %r1, %tid.x;\n\tmul.wide.u32 %rd2, %r1, 8;\n\tadd.s64 %rd2, %rd1, "
           "%rd2;\n" +
           body + "\n\tret;\n}\n";
}

struct Buffer : Memory {
    std::vector<uint64_t> words;
    explicit Buffer(size_t n) : words(n) {}
    Range find(uintptr_t address) const override
    {
        uintptr_t begin = (uintptr_t)words.data(), end = begin + words.size() * 8;
        return address >= begin && address < end ? Range{ begin, end } : Range{ 0, 0 };
    }
};

/* What the fault says; "" if there is none. */
static inline std::string run_text(const std::string &text, Buffer &buffer, unsigned blocks = 1, unsigned threads = 32,
                            Options options = {}, Counts *counts = nullptr,
                            size_t shared = 0)
{
    const void *p = buffer.words.data();
    Launch launch = { { blocks, 1, 1 }, { threads, 1, 1 }, shared, (const unsigned char *)&p, sizeof p };
    try {
        Module module("test.ptx", text);
        run(module.program("k"), launch, buffer, options, counts);
    } catch (const Fault &fault) {
        return fault.what();
    }
    return "";
}
static inline std::string run_body(const std::string &body, unsigned blocks = 1, unsigned threads = 32, Options options = {})
{
    Buffer buffer(2048);
    return run_text(kernel(body), buffer, blocks, threads, options);
}
static inline bool says(const std::string &fault, const char *what)
{
    bool is = fault.find(what) != std::string::npos;
    if (!is)
        printf("says \"%s\", not \"%s\"\n", fault.c_str(), what);
    return is;
}

static inline uint32_t bits32(float x)
{
    uint32_t b;
    memcpy(&b, &x, 4);
    return b;
}

#endif
