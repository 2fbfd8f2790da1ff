/* SPDX-License-Identifier: Apache-2.0 */
/* Registers and memory of which only a part has a value: what may be done with such, through every instruction that packs and
 * takes apart, and what is a fault. */
#include <random>

#include "test_ptx.h"

/* --- every bit of instructions that only move or combine bits --- */

struct Case {
    const char *opcode;
    unsigned varied;   /* inputs of %r20, %r21, %r22 whose bits may have no value */
    const char *also;  /* further inputs */
    uint32_t mask = 0; /* of a number that follows, drawn at random; 0: none */
};
static const Case bit_cases[] = {
    { "and.b32", 2, "" },
    { "or.b32", 2, "" },
    { "xor.b32", 2, "" },
    { "not.b32", 1, "" },
    { "lop3.b32", 3, "", 255 },
    { "shl.b32", 1, "", 31 },
    { "shr.u32", 1, "", 31 },
    { "shr.s32", 1, "", 31 },
    { "shf.l.wrap.b32", 2, "", 31 },
    { "shf.r.clamp.b32", 2, "", 63 },
    { "bfe.u32", 1, ", 5", 31 },
    { "bfe.s32", 1, ", 5", 31 },
    { "bfi.b32", 2, ", 7", 31 },
    { "prmt.b32", 2, "", 0xffff },
    { "brev.b32", 1, "" },
    { "selp.b32", 2, ", %p1" },
    { "mov.b32", 1, "" },
};

static std::string text_of(const Case &c, uint32_t number)
{
    std::string text = std::string("\tsetp.lt.u32 %p1, 1, 2;\n\t") + c.opcode + " %r9";
    for (unsigned k = 0; k < c.varied; k++)
        text += ", %r2" + std::to_string(k);
    return text + c.also + (c.mask ? ", " + std::to_string(number) : "") + ";\n";
}

/* The bits of the result that depend on what is in the inputs' undefined ones, by 64 fillings */
static uint32_t bits_that_vary(const std::string &text, const uint32_t *value, const uint32_t *undefined, std::mt19937 &random)
{
    Buffer buffer(512);
    for (unsigned k = 0; k < 3; k++)
        for (unsigned t = 0; t < 64; t++)
            buffer.words[64 * k + t] = value[k] | ((uint32_t)random() & undefined[k]);
    CHECK(
        run_text(kernel("\tld.global.u32 %r20, [%rd2];\n\tld.global.u32 %r21, [%rd2+512];\n\tld.global.u32 %r22, [%rd2+1024];\n" +
                        text + "\tst.global.u32 [%rd2+1536], %r9;"),
                 buffer, 1, 64)
            .empty());
    uint32_t vary = 0;
    for (unsigned t = 1; t < 64; t++)
        vary |= (uint32_t)(buffer.words[192 + t] ^ buffer.words[192]);
    return vary;
}

static void test_every_bit()
{
    std::mt19937 random(20);
    unsigned some = 0;
    for (unsigned n = 0; n < 40 * sizeof bit_cases / sizeof *bit_cases; n++) {
        const Case &c = bit_cases[n / 40];
        uint32_t value[3], undefined[3];
        std::string parts;
        for (unsigned k = 0; k < 3; k++) {
            undefined[k] = (uint32_t)(random() & (n % 2 ? random() : ~0u));
            undefined[k] = n % 3 == 1 ? undefined[k] & 0xffff0000u : undefined[k];
            undefined[k] = k < c.varied ? undefined[k] : 0;
            value[k] = (uint32_t)random() & ~undefined[k];
            const std::string r = "%r2" + std::to_string(k);
            parts += "\tand.b32 " + r + ", %r3" + std::to_string(k) + ", " + std::to_string(undefined[k]) + ";\n\tor.b32 " + r +
                     ", " + r + ", " + std::to_string(value[k]) + ";\n";
        }
        const std::string text = text_of(c, (uint32_t)random() & c.mask);
        const uint32_t vary = bits_that_vary(text, value, undefined, random);
        auto stored = [&](uint32_t bits) {
            return run_body(parts + text + "\tand.b32 %r10, %r9, " + std::to_string(bits) + ";\n\tst.global.u32 [%rd2], %r10;", 1,
                            1);
        };
        const std::string whole = stored(~vary);
        if (!whole.empty())
            printf("%s: %s\n", text.c_str(), whole.c_str());
        CHECK(whole.empty());
        for (unsigned tries = 0; vary && tries < 3; tries++) {
            uint32_t one = 1u << random() % 32;
            while (!(one & vary))
                one = one << 1 | one >> 31;
            CHECK(says(stored(one), "no value"));
            some++;
        }
    }
    CHECK(some > 1000);
}

/* --- where parts go --- */

/* %r20: its upper half has no value, %r21: none but in its second byte, %h3: its upper byte has none, %rd9: its upper half */
static const std::string lacking =
    "\tprmt.b32 %r20, %r1, %r39, 0x5410;\n\tprmt.b32 %r21, 7, %r39, 0x4404;\n\tprmt.b32 %r22, %r1, %r39, 0x4440;\n"
    "\tmov.b32 {%h3, %h4}, %r22;\n\tmov.b64 %rd9, {%r1, %r39};\n"
    "\t.shared .align 16 .b8 s[1024];\n\tmov.u32 %r5, s;\n\tshl.b32 %r6, %r1, 4;\n\tadd.s32 %r6, %r5, %r6;\n"
    "\t.local .align 16 .b8 own[32];\n\tmov.u64 %rd8, own;\n";
static std::string with(const std::string &text) { return run_body(lacking + text); }
/* Stored to global memory: a fault that says so, or none */
static bool is_whole(const std::string &text, const std::string &store = "st.global.u32 [%rd2], %r9;")
{
    const std::string said = with(text + "\n\t" + store);
    if (!said.empty() && said.find("no value") == std::string::npos)
        printf("%s\n", said.c_str());
    return said.empty();
}

static void test_registers()
{
    CHECK(!is_whole("", "st.global.u32 [%rd2], %r20;") && is_whole("", "st.global.u16 [%rd2], %r20;") &&
          is_whole("", "st.global.u8 [%rd2], %h3;"));
    CHECK(!is_whole("", "st.global.u16 [%rd2], %h3;") && !is_whole("", "st.global.u8 [%rd2], %r21;"));
    CHECK(!is_whole("", "st.global.v2.u32 [%rd2], {%r1, %r20};") && !is_whole("", "st.global.u64 [%rd2], %rd9;"));
    CHECK(is_whole("\tmov.b64 {%r9, %r10}, %rd9;") && !is_whole("\tmov.b64 {%r10, %r9}, %rd9;"));
    CHECK(is_whole("\tmov.b32 {%h1, %h2}, %r20;", "st.global.u16 [%rd2], %h1;") &&
          !is_whole("\tmov.b32 {%h1, %h2}, %r20;", "st.global.u16 [%rd2], %h2;"));
    CHECK(is_whole("\tmov.b32 {%h1, %h2}, %r20;\n\tmov.b32 %r9, {%h1, %h1};") &&
          !is_whole("\tmov.b32 {%h1, %h2}, %r20;\n\tmov.b32 %r9, {%h1, %h2};"));
    CHECK(is_whole("\tcvt.u32.u16 %r9, %r20;") && is_whole("\tcvt.u32.u64 %r9, %rd9;") && !is_whole("\tcvt.u32.u16 %r9, %h3;"));
    CHECK(is_whole("\tcvt.u32.u8 %r9, %h3;") && is_whole("\tcvt.s32.s8 %r9, %h3;") &&
          is_whole("\tcvt.rn.f32.u8 %f1, %h3;\n\tmov.b32 %r9, %f1;"));
    CHECK(!is_whole("\tcvt.rn.f32.u32 %f1, %r20;\n\tmov.b32 %r9, %f1;") && !is_whole("\tcvt.sat.u8.u32 %r9, %r20;"));
    const std::string pair = "\tmov.f32 %f1, 0f3F800000;\n\tcvt.rn.bf16x2.f32 %r9, %f1, %f2;\n";
    CHECK(!is_whole(pair) && is_whole(pair + "\tshr.u32 %r9, %r9, 16;") && !is_whole(pair + "\tand.b32 %r9, %r9, 65535;"));
    CHECK(!is_whole("\tadd.u32 %r9, %r20, 1;") && !is_whole("\tmul.lo.u32 %r9, %r20, 65536;") &&
          !is_whole("\tpopc.b32 %r9, %r20;"));
    CHECK(!is_whole("\tshl.b32 %r9, %r1, %r20;") && !is_whole("\tprmt.b32 %r9, %r1, %r1, %r20;"));
    CHECK(!is_whole("\tsetp.lt.u32 %p1, %r20, 9;\n\tselp.u32 %r9, 1, 2, %p1;") &&
          is_whole("\tsetp.lt.u32 %p1, %r1, 99;\n\tselp.u32 %r9, 1, %r20, %p1;"));
    CHECK(says(with("\tsetp.lt.u32 %p1, %r20, 9;\n\t@%p1 bra $L1;\n$L1:\n"), "no value"));
    CHECK(says(with("\tmov.b64 %rd3, {%r20, 0};\n\tadd.s64 %rd3, %rd1, %rd3;\n\tld.global.u8 %r9, [%rd3];"), "no value"));
    CHECK(with("\tmov.b32 %r9, %r20;\n\tadd.u32 %r9, %r20, %r21;\n\tsetp.eq.u32 %p1, %r9, 0;")
              .empty()); /* computed, used for nothing */
    CHECK(is_whole("\tprmt.b32 %r9, %r20, 0, 0x5410;") && !is_whole("\tbfi.b32 %r9, %r39, %r1, 16, 8;") &&
          is_whole("\tbfi.b32 %r9, %r1, %r20, 16, 16;"));
    CHECK(is_whole("\tmov.b32 %r9, %r20;\n\tmov.b32 %r9, %r1;")); /* a whole value after one that was not */
    CHECK(!is_whole("\tmov.b32 %r9, %r1;\n\tsetp.eq.u32 %p1, %r1, 5;\n\t@%p1 mov.b32 %r9, %r20;")); /* of one lane */
    CHECK(!is_whole("\tprmt.b32 %r20, %r20, %r20, 0x3232;\n\tmov.b32 %r9, %r20;") &&
          is_whole("\tprmt.b32 %r20, %r20, %r20, 0x1010;\n\tmov.b32 %r9, %r20;"));
}

static void test_exchanged()
{
    const std::string gives = "\tshfl.sync.bfly.b32 %r9|%p1, %r20, 1, 31, -1;\n";
    CHECK(!is_whole(gives) && is_whole(gives, "st.global.u16 [%rd2], %r9;"));
    /* of one lane, which another gets */
    const std::string one = "\tmov.b32 %r9, %r1;\n\tsetp.eq.u32 %p2, %r1, 5;\n\t@%p2 mov.b32 %r9, %r20;\n\tshfl.sync.idx.b32 "
                            "%r9|%p1, %r9, LANE, 31, -1;\n";
    auto from = [&one](const char *lane) {
        std::string text = one;
        return text.replace(text.find("LANE"), 4, lane);
    };
    CHECK(is_whole(from("4")) && !is_whole(from("5")) && is_whole(from("5"), "st.global.u16 [%rd2], %r9;"));
    CHECK(says(with("\tredux.sync.add.s32 %r9, %r20, -1;"), "a part has no value"));
    CHECK(says(with("\tatom.global.add.u32 %r9, [%rd2], %r20;"), "a part has no value"));
}

static void test_memory()
{
    const std::string shared = "\tst.shared.u32 [%r6], %r20;\n";
    CHECK(with(shared).empty()); /* padding may be copied */
    CHECK(!is_whole(shared + "\tld.shared.u32 %r9, [%r6];") && is_whole(shared + "\tld.shared.u16 %r9, [%r6];"));
    CHECK(!is_whole(shared + "\tld.shared.u16 %h1, [%r6+2];", "st.global.u16 [%rd2], %h1;"));
    CHECK(!is_whole(shared + "\tst.shared.u16 [%r6+4], %h3;\n\tld.shared.s8 %r9, [%r6+5];"));
    CHECK(is_whole(shared + "\tst.shared.u16 [%r6+2], 0;\n\tld.shared.u32 %r9, [%r6];") &&
          is_whole(shared + "\tst.shared.u32 [%r6], 0;\n\tld.shared.u32 %r9, [%r6];"));
    CHECK(is_whole(shared + "\tst.shared.v2.u32 [%r6+8], {%r1, %r20};\n\tld.shared.v2.u32 {%r9, %r10}, [%r6+8];") &&
          !is_whole(shared + "\tst.shared.v2.u32 [%r6+8], {%r1, %r20};\n\tld.shared.v2.u32 {%r10, %r9}, [%r6+8];"));
    CHECK(says(with("\tst.shared.u32 [%r6], %r39;"), "no value") &&
          says(with("\tst.shared.v2.u32 [%r6], {%r1, %r39};"), "no value"));
    CHECK(says(with(shared + "\tatom.shared.add.u32 %r9, [%r6], 1;"), "without a value"));
    CHECK(
        is_whole(shared + "\tcp.async.cg.shared.global [%r6], [%rd1], 16, 16;\n\tcp.async.wait_all;\n\tld.shared.u32 %r9, [%r6];",
                 "st.global.u32 [%rd2+1024], %r9;"));
    const std::string local = "\tst.local.v2.u32 [%rd8], {%r20, %r39};\n";
    CHECK(with(local).empty());
    CHECK(!is_whole(local + "\tld.local.u32 %r9, [%rd8];") && is_whole(local + "\tld.local.u16 %r9, [%rd8];") &&
          !is_whole(local + "\tld.local.u32 %r9, [%rd8+4];") && !is_whole("\tld.local.u32 %r9, [%rd8+8];"));
    CHECK(is_whole(local + "\tst.local.u16 [%rd8+2], 1;\n\tld.local.u32 %r9, [%rd8];") &&
          is_whole("\tst.local.u32 [%rd8], %r1;\n\tld.local.u32 %r9, [%rd8];"));
    const std::string generic = "\tcvta.local.u64 %rd3, %rd8;\n";
    CHECK(!is_whole(generic + "\tst.u32 [%rd3], %r20;\n\tld.u32 %r9, [%rd3];") &&
          says(with(generic + "\tst.u32 [%rd3], %r39;"), "no value"));
    /* a block begins anew */
    Buffer buffer(2048);
    CHECK(run_text(kernel(lacking + shared +
                          "\tst.shared.u32 [%r6], %r1;\n\tld.shared.u32 %r9, [%r6];\n\tmov.u32 %r10, %ctaid.x;\n\tmul.wide.u32 "
                          "%rd3, %r10, 256;\n\tadd.s64 %rd3, %rd2, %rd3;\n\tst.global.u32 [%rd3], %r9;"),
                   buffer, 3)
              .empty());
}

static void test_calls()
{
    const std::string function = ".func (.param .b64 result) same(.param .b64 same_param_0)\n{\n\t.reg .b64 "
                                 "%rd<3>;\n\tld.param.b64 %rd1, [same_param_0];\n"
                                 "\tst.param.b64 [result+0], %rd1;\n\tret;\n}\n";
    const std::string call =
        "\t{ // callseq 0, 0\n\t.param .b64 param0;\n\tst.param.b64 [param0+0], %rd9;\n\t.param .b64 retval0;\n\tcall.uni "
        "(retval0), \n\tsame, "
        "\n\t(\n\tparam0\n\t);\n\tld.param.b64 %rd3, [retval0+0];\n\t} // callseq 0\n\tmov.b64 {%r9, %r10}, %rd3;\n";
    Buffer buffer(2048);
    CHECK(run_text(kernel(lacking + call + "\tst.global.u32 [%rd2], %r9;", function), buffer).empty());
    CHECK(says(run_text(kernel(lacking + call + "\tst.global.u32 [%rd2], %r10;", function), buffer), "no value"));
}

/* Pairs of halves, as products take them */
static void test_matrices()
{
    const std::string fill = "\tmov.b32 %r8, 0;\n\tmov.f32 %f1, 0f00000000;\n\tst.shared.v4.u32 [%r6], {%r8, %r8, %r8, %r8};\n";
    const std::string loads =
        "\tbar.warp.sync -1;\n\tldmatrix.sync.aligned.m8n8.x4.WAYshared.b16 {%r10,%r11,%r12,%r13}, [%r6];\n";
    const std::string multiplies =
        "\tmma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%f2,%f3,%f4,%f5}, {A,%r8,%r8,%r8}, {%r8,B}, {%f1,%f1,%f1,%f1};\n";
    auto product = [&multiplies](const char *a, const char *b) {
        std::string text = multiplies;
        text.replace(text.find("{A") + 1, 1, a);
        return text.replace(text.find(",B}") + 1, 1, b);
    };
    const std::string one =
        "\tsetp.eq.u32 %p1, %r1, 9;\n\t@%p1 st.shared.u32 [%r6+4], %r20;\n"; /* row 1 of matrix 1: its fourth element */
    for (const char *way : { "", "trans." }) {
        std::string text = loads;
        text.replace(text.find("WAY"), 3, way);
        CHECK(with(fill + text + product("%r10", "%r11")).empty());
        CHECK(with(fill + one + text + product("%r10", "%r12")).empty());
        CHECK(says(with(fill + one + text + product("%r11", "%r8")), "a part has no value"));
        CHECK(says(with(fill + one + text + product("%r8", "%r11")), "a part has no value"));
        /* lane 5 has elements 2 and 3 of row 1; turned, lane 12 has elements 3 of rows 0 and 1 */
        const std::string half =
            fill + one + text + "\tsetp.eq.u32 %p2, %r1, " + (*way ? "12" : "5") + ";\n\tmov.b32 {%h1, %h2}, %r11;\n";
        CHECK(is_whole(half, "@%p2 st.global.u16 [%rd2], %h1;") && !is_whole(half, "@%p2 st.global.u16 [%rd2], %h2;"));
        CHECK(is_whole(half, "@!%p2 st.global.u32 [%rd2], %r11;"));
    }
    CHECK(says(with(fill + product("%r20", "%r8")), "a part has no value") &&
          says(with(fill + product("%r8", "%r20")), "a part has no value"));
}

int main()
{
    test_every_bit();
    test_registers();
    test_exchanged();
    test_memory();
    test_calls();
    test_matrices();
    printf("%d passed, %d failed\n", passed, failed);
    return failed != 0;
}
