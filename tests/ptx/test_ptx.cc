/* SPDX-License-Identifier: Apache-2.0 */
/* The machine that executes PTX, by kernels written for it: results of instructions to the bit, and every fault that it
 * is to find beside a kernel that has none. */
#include <cmath>
#include <cstdio>
#include <cstring>

#include "test_ptx.h"

/* What the body leaves in %rd9 of thread 0. */
static uint64_t value_of(const std::string &body)
{
    Buffer buffer(64);
    std::string fault = run_text(kernel("\tmov.u64 %rd9, 0;\n" + body + "\n\tst.global.u64 [%rd2], %rd9;"), buffer);
    if (!fault.empty())
        printf("%s\n", fault.c_str());
    return fault.empty() ? buffer.words[0] : 0xdeadull;
}
static std::string hex(float x)
{
    char text[16];
    snprintf(text, sizeof text, "0f%08X", bits32(x));
    return text;
}
/* op of f32, of s32, to bits */
static uint32_t f32_of(const std::string &op, const std::string &arguments)
{
    return (uint32_t)value_of("\t" + op + " %f1, " + arguments + ";\n\tmov.b32 %r9, %f1;\n\tcvt.u64.u32 %rd9, %r9;");
}
static uint32_t r_of(const std::string &op, const std::string &arguments)
{
    return (uint32_t)value_of("\t" + op + " %r9, " + arguments + ";\n\tcvt.u64.u32 %rd9, %r9;");
}
static uint64_t rd_of(const std::string &op, const std::string &arguments)
{
    return value_of("\t" + op + " %rd9, " + arguments + ";");
}

static void test_floats()
{
    CHECK(f32_of("add.f32", hex(1) + ", " + hex(2)) == bits32(3));
    CHECK(f32_of("fma.rn.f32", hex(1 + 0x1p-12f) + ", " + hex(1 + 0x1p-12f) + ", " + hex(-1)) == bits32(0x1p-11f + 0x1p-24f));
    CHECK(f32_of("add.rz.f32", hex(1) + ", " + hex(-0x1p-30f)) == bits32(1 - 0x1p-24f));
    CHECK(f32_of("add.rn.f32", hex(1) + ", " + hex(-0x1p-30f)) == bits32(1));
    CHECK(f32_of("add.rp.f32", hex(1) + ", " + hex(0x1p-30f)) == bits32(1 + 0x1p-23f));
    CHECK(f32_of("fma.rm.f32", hex(1) + ", " + hex(1) + ", " + hex(-0x1p-30f)) == bits32(1 - 0x1p-24f));
    CHECK(f32_of("sub.f32", hex(INFINITY) + ", " + hex(INFINITY)) == 0x7fffffffu);
    CHECK(f32_of("min.f32", hex(NAN) + ", " + hex(2)) == bits32(2));
    CHECK(f32_of("min.NaN.f32", hex(NAN) + ", " + hex(2)) == 0x7fffffffu);
    CHECK(f32_of("max.f32", hex(-0.0f) + ", " + hex(0.0f)) == 0);
    CHECK(f32_of("min.f32", hex(0.0f) + ", " + hex(-0.0f)) == 0x80000000u);
    CHECK(f32_of("mul.f32", hex(0x1p-100f) + ", " + hex(0x1p-40f)) == bits32(0x1p-140f));
    CHECK(f32_of("mul.ftz.f32", hex(0x1p-100f) + ", " + hex(-0x1p-40f)) == 0x80000000u);
    CHECK(f32_of("ex2.approx.ftz.f32", hex(3)) == bits32(8));
    CHECK(f32_of("rsqrt.approx.f32", hex(4)) == bits32(0.5f));
    CHECK(f32_of("cvt.sat.f32.f32", hex(1.5f)) == bits32(1));
    CHECK(f32_of("cvt.sat.f32.f32", hex(NAN)) == 0);
    CHECK(f32_of("copysign.f32", hex(-1) + ", " + hex(3)) == bits32(-3));
    CHECK(f32_of("neg.f32", hex(0)) == 0x80000000u);
    CHECK(rd_of("fma.rn.f64", "0d3FF0000000000000, 0d4000000000000000, 0d3FF0000000000000") == 0x4008000000000000ull);
    CHECK((rd_of("rcp.approx.ftz.f64", "0d4008000000000000") & 0xffffffffu) == 0);
}

static void test_integers()
{
    CHECK(r_of("add.s32", "-1, 2") == 1);
    CHECK(r_of("mul.hi.u32", "-1, -1") == 0xfffffffeu);
    CHECK(r_of("mul.hi.s32", "-2, 3") == ~0u);
    CHECK(rd_of("mul.wide.s32", "-2, 3") == (uint64_t)-6);
    CHECK(rd_of("mul.hi.u64", "-1, -1") == ~1ull);
    CHECK(rd_of("mul.hi.s64", "-1, 1") == ~0ull);
    CHECK(rd_of("xor.b64", "1, -9223372036854775808") == (1ull << 63 | 1));
    CHECK(r_of("mad.lo.s32", "3, 4, -5") == 7);
    CHECK(r_of("shl.b32", "1, 32") == 0 && r_of("shr.s32", "-8, 40") == ~0u && r_of("shr.u32", "-8, 40") == 0 &&
          r_of("shr.s32", "-8, 1") == (uint32_t)-4);
    CHECK(r_of("shf.l.wrap.b32", "0x80000000, 1, 33") == 3 && r_of("shf.r.clamp.b32", "1, 7, 40") == 7);
    CHECK(r_of("prmt.b32", "0x33221100, 0x77665544, 0x7531") == 0x77553311u && r_of("prmt.b32", "0x80, 0, 8") == 0x808080ffu);
    CHECK(r_of("bfi.b32", "5, 0xffffffff, 4, 4") == 0xffffff5fu && r_of("bfi.b32", "1, 0, 31, 8") == 0x80000000u);
    CHECK(r_of("bfe.u32", "0x12345678, 8, 8") == 0x56 && r_of("bfe.s32", "0x0000f000, 12, 4") == ~0u);
    CHECK(r_of("popc.b32", "0xf0f0") == 8 && r_of("clz.b32", "1") == 31 && r_of("brev.b32", "1") == 0x80000000u);
    CHECK(r_of("bfind.u32", "16") == 4 && r_of("bfind.shiftamt.u32", "16") == 27 && r_of("bfind.u32", "0") == ~0u &&
          r_of("bfind.s32", "-1") == ~0u);
    CHECK(r_of("div.s32", "-7, 2") == (uint32_t)-3 && r_of("rem.s32", "-7, 2") == (uint32_t)-1 &&
          r_of("div.s32", "0x80000000, -1") == 0x80000000u);
    CHECK(r_of("lop3.b32", "12, 10, 9, 0x80") == 8 && r_of("abs.s32", "-3") == 3 && r_of("min.s32", "-1, 1") == ~0u &&
          r_of("min.u32", "-1, 1") == 1);
    CHECK(value_of("\tmov.u32 %r5, -1;\n\tadd.cc.u32 %r6, %r5, 1;\n\taddc.u32 %r7, 0, 0;\n\tcvt.u64.u32 %rd9, %r7;") == 1);
    CHECK(value_of("\tsub.cc.u32 %r6, 0, 1;\n\tsubc.u32 %r7, 5, 0;\n\tcvt.u64.u32 %rd9, %r7;") == 4);
    CHECK(value_of("\tmad.lo.cc.u32 %r6, -1, -1, -1;\n\tmadc.hi.u32 %r7, -1, -1, 0;\n\tmov.b64 %rd9, {%r6, %r7};") ==
          0xffffffff00000000ull);
    CHECK(value_of("\tmov.b64 {%r6, %r7}, 0x0000000500000003;\n\tsub.s32 %r6, %r7, %r6;\n\tcvt.u64.u32 %rd9, %r6;") == 2);
    CHECK(value_of("\tsetp.eq.s32 %p1, 1, 1;\n\tsetp.gt.and.s32 %p2|%p3, 3, 2, %p1;\n\tselp.b64 %rd9, 1, 2, %p2;\n\t@%p3 mov.u64 "
                   "%rd9, 3;") == 1);
}

static void test_conversions()
{
    CHECK(r_of("cvt.rzi.s32.f32", hex(-2.7f)) == (uint32_t)-2 && r_of("cvt.rni.s32.f32", hex(2.5f)) == 2 &&
          r_of("cvt.rzi.u32.f32", hex(-1)) == 0);
    CHECK(r_of("cvt.rzi.s32.f32", hex(1e20f)) == 0x7fffffffu && r_of("cvt.rzi.s32.f32", hex(NAN)) == 0);
    CHECK(rd_of("cvt.rzi.s64.f32", hex(NAN)) == 1ull << 63);
    CHECK(f32_of("cvt.rn.f32.s32", "16777217") == bits32(16777216) && f32_of("cvt.rp.f32.s32", "16777217") == bits32(16777218));
    CHECK(f32_of("cvt.rn.f32.f64", "0d3FF0000010000000") == bits32(1) && f32_of("cvt.rmi.f32.f32", hex(-0.5f)) == bits32(-1));
    auto half = [](const char *to, float x) {
        return (unsigned)value_of(std::string("\tcvt.rn.") + to + ".f32 %h1, " + hex(x) + ";\n\tcvt.u64.u16 %rd9, %h1;");
    };
    CHECK(half("f16", 1) == 0x3c00 && half("f16", 65504) == 0x7bff && half("f16", 65520) == 0x7c00 &&
          half("f16", -0x1p-24f) == 0x8001 && half("f16", 0x1p-25f) == 0);
    CHECK(half("f16", NAN) == 0x7fff && half("bf16", NAN) == 0x7fff && half("bf16", 1 + 0x1p-8f) == 0x3f80 &&
          half("bf16", 1 + 3 * 0x1p-8f) == 0x3f82);
    CHECK(half("bf16", 3.4e38f) == 0x7f80 && half("bf16", 0x1p-133f) == 1);
    for (unsigned b = 0; b < 0x7c00; b += 37) { /* there and back */
        float x = 0;
        uint32_t bits = (uint32_t)value_of("\tmov.b16 %h1, " + std::to_string(b) +
                                           ";\n\tcvt.f32.f16 %f1, %h1;\n\tmov.b32 %r9, %f1;\n\tcvt.u64.u32 %rd9, %r9;");
        memcpy(&x, &bits, 4);
        CHECK(half("f16", x) == b);
    }
    CHECK(r_of("cvt.rn.bf16x2.f32", hex(1) + ", " + hex(2)) == 0x3f804000u);
    CHECK(value_of("\tmov.b16 %h1, 0x80;\n\tcvt.s32.s8 %r9, %h1;\n\tcvt.s64.s32 %rd9, %r9;") == (uint64_t)-128);
    CHECK(r_of("cvt.sat.u8.s32", "300") == 255 && r_of("cvt.sat.u8.s32", "-3") == 0);
}

/* --- control --- */

static void test_control()
{
    Buffer buffer(64);
    /* each lane counts to its own number; odd and even lanes part and meet */
    const char *loops =
        "\tmov.u32 %r2, 0;\n$L1:\n\tsetp.ge.u32 %p1, %r2, %r1;\n\t@%p1 bra $L2;\n\tadd.u32 %r2, %r2, 1;\n\tbra $L1;\n$L2:\n"
        "\tand.b32 %r3, %r1, 1;\n\tsetp.eq.u32 %p2, %r3, 0;\n\t@%p2 bra $L3;\n\tadd.u32 %r2, %r2, 100;\n$L3:\n"
        "\tshfl.sync.bfly.b32 %r4|%p3, %r2, 1, 31, -1;\n\tcvt.u64.u32 %rd3, %r4;\n\tst.global.u64 [%rd2], %rd3;";
    for (Order order : { Order::forward, Order::backward, Order::random }) {
        Options options;
        options.order = order;
        CHECK(run_text(kernel(loops), buffer, 1, 32, options).empty());
        bool right = true;
        for (unsigned l = 0; l < 32; l++)
            right = right && buffer.words[l] == (l ^ 1u) + ((l ^ 1u) & 1u ? 100 : 0);
        CHECK(right);
    }
    const char *function =
        ".func (.param .b32 result) twice(.param .b32 twice_param_0)\n{\n\t.reg .b32 %r<3>;\n"
        "\tld.param.b32 %r1, [twice_param_0];\n\tadd.s32 %r2, %r1, %r1;\n\tst.param.b32 [result+0], %r2;\n\tret;\n}\n";
    const char *calls =
        "\tsetp.gt.u32 %p1, %r1, 3;\n\tmov.u32 %r3, %r1;\n\t@%p1 bra $L1;\n"
        "\t{ // callseq 0, 0\n\t.param .b32 param0;\n\tst.param.b32 [param0+0], %r1;\n\t.param .b32 retval0;\n"
        "\tcall.uni (retval0), \n\ttwice, \n\t(\n\tparam0\n\t);\n\tld.param.b32 %r3, [retval0+0];\n\t} // callseq 0\n$L1:\n"
        "\tcvt.u64.u32 %rd3, %r3;\n\tst.global.u64 [%rd2], %rd3;";
    CHECK(run_text(kernel(calls, function), buffer).empty() && buffer.words[3] == 6 && buffer.words[4] == 4);
    CHECK(says(run_body("\tsetp.lt.u32 %p1, %r1, 7;\n\t@%p1 bra $L1;\n\tbar.sync 0;\n$L1:\n\tbar.warp.sync -1;"),
               "wait for each other"));
    CHECK(says(run_body("\tsetp.lt.u32 %p1, %r1, 7;\n\t@%p1 ret;\n\tshfl.sync.idx.b32 %r2|%p2, %r1, 3, 31, -1;"),
               "takes no part"));
    CHECK(says(run_body("\tshfl.sync.idx.b32 %r2|%p2, %r1, 3, 31, 15;"), "leaves out"));
    CHECK(says(run_body("\tsetp.lt.u32 %p1, %r1, 32;\n\t@%p1 bra $L1;\n\tbar.sync 0;\n$L1:\n\tbar.sync 1;", 1, 64),
               "waits forever"));
    CHECK(says(run_body("\tsetp.lt.u32 %p1, %r1, 7;\n\t@%p1 bra $L1;\n\tmov.u32 %r2, 1;\n$L1:\n\tadd.s32 %r3, %r2, "
                        "1;\n\tst.global.u32 [%rd2], %r3;"),
               "no value"));
    Options few;
    few.most = 1000;
    CHECK(says(run_body("$L1:\n\tbra $L1;", 1, 32, few), "does not end"));
    CHECK(says(run_body("\tfrob.u32 %r1, %r2;"), "not known"));
}

static void test_exchanges()
{
    CHECK(value_of("\tsetp.lt.u32 %p1, %r1, 5;\n\tvote.sync.ballot.b32 %r9, %p1, -1;\n\tcvt.u64.u32 %rd9, %r9;") == 31);
    CHECK(value_of("\tredux.sync.add.s32 %r9, %r1, -1;\n\tcvt.u64.u32 %rd9, %r9;") == 31 * 16);
    CHECK(value_of("\tand.b32 %r3, %r1, 3;\n\tmatch.any.sync.b32 %r9, %r3, -1;\n\tcvt.u64.u32 %rd9, %r9;") == 0x11111111u);
    CHECK(value_of("\tshfl.sync.down.b32 %r9|%p1, %r1, 4, 31, -1;\n\tcvt.u64.u32 %rd9, %r9;") == 4);
    CHECK(value_of("\tadd.u32 %r3, %r1, 1;\n\tshfl.sync.up.b32 %r9|%p1, %r3, 4, 0, -1;\n\tcvt.u64.u32 %rd9, %r9;") == 1);
    CHECK(value_of("\tshfl.sync.idx.b32 %r9|%p1, %r1, 9, 31, -1;\n\tcvt.u64.u32 %rd9, %r9;") == 9);
    Buffer buffer(64);
    CHECK(run_text(kernel("\tbar.red.popc.u32 %r2, 0, %p1;"), buffer).find("no value") != std::string::npos);
    CHECK(run_text(kernel("\tsetp.lt.u32 %p1, %r1, 40;\n\tbar.red.popc.u32 %r2, 0, %p1;\n\tcvt.u64.u32 %rd3, "
                          "%r2;\n\tst.global.u64 [%rd2], %rd3;"),
                   buffer, 1, 64)
              .empty());
    CHECK(buffer.words[0] == 40 && buffer.words[63] == 40);
}

/* --- memory --- */

static void test_faults()
{
    CHECK(run_body("\tst.global.u64 [%rd2], %rd1;").empty());
    CHECK(says(run_body("\tst.global.v2.u64 [%rd1+16376], {%rd1, %rd1};"), "multiple of 16"));
    CHECK(says(run_body("\tst.global.u64 [%rd2+16384], %rd1;"), "no memory"));
    CHECK(says(run_body("\tld.global.v2.u64 {%rd3, %rd4}, [%rd2+8];"), "multiple of 16"));
    CHECK(says(run_body("\tst.global.u32 [%rd1], %r1;"), "races"));
    CHECK(run_body("\tst.global.u32 [%rd1], 5;").empty()); /* all the same */
    CHECK(says(run_body("\tst.global.u32 [%rd1], 5;", 2), "races"));
    CHECK(run_body("\tatom.global.add.u32 %r2, [%rd1], 1;", 9, 64).empty());
    CHECK(says(run_body("\tatom.global.add.u32 %r2, [%rd1], 1;\n\tld.global.u32 %r3, [%rd1];", 2), "races"));
    CHECK(says(run_body("\tst.global.u64 [%rd2], %rd1;\n\tld.global.nc.u64 %rd3, [%rd2];"), "ld.global.nc"));
    const std::string shared =
        "\t.shared .align 8 .b8 s[512];\n\tmov.u32 %r5, s;\n\tshl.b32 %r6, %r1, 2;\n\tadd.s32 %r6, %r5, %r6;\n";
    CHECK(says(run_body(shared + "\tld.shared.u32 %r2, [%r6];"), "nothing has written"));
    CHECK(says(run_body(shared + "\tst.shared.u32 [%r6+512], %r1;"), "outside the block's shared"));
    const std::string exchange = shared + "\tst.shared.u32 [%r6], 0;\n\tbar.sync 0;\n\tst.shared.u32 [%r6], "
                                          "%r1;\n\tBARRIER\txor.b32 %r7, %r6, 128;\n\tld.shared.u32 %r2, [%r7];\n";
    auto with = [&exchange](const char *barrier) {
        std::string text = exchange;
        return text.replace(text.find("BARRIER"), 7, barrier);
    };
    CHECK(run_body(with("bar.sync 0;\n"), 1, 128).empty());
    CHECK(says(run_body(with("\n"), 1, 128), "races"));
    const std::string within = shared + "\tst.shared.u32 [%r6], 0;\n\tbar.sync 0;\n\tst.shared.u32 [%r6], "
                                        "%r1;\n\tBARRIER\txor.b32 %r7, %r6, 4;\n\tld.shared.u32 %r2, [%r7];\n";
    std::string good = within, bad = within;
    CHECK(run_body(good.replace(good.find("BARRIER"), 7, "bar.warp.sync -1;\n")).empty());
    CHECK(says(run_body(bad.replace(bad.find("BARRIER"), 7, "\n")), "races"));
    CHECK(says(run_body(shared + "\tst.shared.u32 [%r6], %r1;\n\tmov.u64 %rd3, s;\n\tcvta.shared.u64 %rd4, "
                                 "%rd3;\n\tcvta.to.global.u64 %rd5, %rd4;\n\tld.global.u32 %r2, [%rd5];"),
               "of another space"));
}

/* The last block to arrive sums what all have left: right with a fence, a race without. */
static void test_blocks()
{
    const std::string text = "\tmov.u32 %r2, %ctaid.x;\n\tmul.wide.u32 %rd3, %r2, 8;\n\tadd.s64 %rd3, %rd1, %rd3;\n\tsetp.ne.u32 "
                             "%p1, %r1, 0;\n\t@%p1 ret;\n"
                             "\tadd.u32 %r3, %r2, 1;\n\tst.global.u32 [%rd3+64], %r3;\n\tFENCE\n\tatom.global.add.u32 %r4, "
                             "[%rd1], 1;\n\tsetp.ne.u32 %p2, %r4, 3;\n"
                             "\t@%p2 ret;\n\tld.global.u32 %r5, [%rd1+64];\n\tld.global.u32 %r6, [%rd1+72];\n\tadd.u32 %r5, %r5, "
                             "%r6;\n\tst.global.u32 [%rd1+512], %r5;\n";
    std::string fenced = text, bare = text;
    fenced.replace(fenced.find("FENCE"), 5, "membar.gl;");
    bare.replace(bare.find("FENCE"), 5, "");
    for (Order order : { Order::forward, Order::backward, Order::random }) {
        Options options;
        options.order = order;
        Buffer buffer(128);
        CHECK(run_text(kernel(fenced), buffer, 4, 32, options).empty() && buffer.words[64] == 3);
    }
    CHECK(says(run_body(bare, 4), "races"));
}

static void test_copies()
{
    const std::string text =
        "\t.shared .align 16 .b8 s[512];\n\tmov.u32 %r5, s;\n\tshl.b32 %r6, %r1, 4;\n\tadd.s32 %r6, %r5, %r6;\n\tmul.wide.u32 "
        "%rd3, %r1, 16;\n\tadd.s64 %rd3, %rd1, %rd3;\n"
        "\tcp.async.cg.shared.global [%r6], [%rd3], 16, 16;\n\tcp.async.commit_group;\n\tcp.async.wait_group "
        "PENDING;\n\tbar.sync 0;\n\txor.b32 %r6, %r6, 16;\n"
        "\tld.shared.u32 %r7, [%r6];\n\tst.global.u32 [%rd2+1024], %r7;\n";
    std::string waits = text, weak = text;
    waits.replace(waits.find("PENDING"), 7, "0");
    weak.replace(weak.find("PENDING"), 7, "1");
    for (bool late : { false, true }) {
        Options options;
        options.copy_late = late;
        Buffer buffer(1024);
        for (size_t k = 0; k < 64; k++)
            buffer.words[k] = k;
        CHECK(run_text(kernel(waits), buffer, 1, 32, options).empty() && buffer.words[128] == 2 && buffer.words[129] == 0);
        CHECK(says(run_text(kernel(weak), buffer, 1, 32, options), "may not have written yet"));
    }
}

/* A row-major 16 x 16 by a 16 x 8 of which ldmatrix.trans makes columns. */
static void test_matrices()
{
    const std::string text =
        "\t.shared .align 16 .b8 s[768];\n\tmov.u32 %r5, s;\n\tshl.b32 %r6, %r1, 4;\n\tadd.s32 %r6, %r5, %r6;\n"
        "\tmul.wide.u32 %rd3, %r1, 16;\n\tadd.s64 %rd3, %rd1, %rd3;\n\tld.global.v2.u64 {%rd4, %rd5}, "
        "[%rd3];\n\tst.shared.v2.u64 [%r6], {%rd4, %rd5};\n"
        "\tsetp.lt.u32 %p1, %r1, 16;\n\t@%p1 ld.global.v2.u64 {%rd6, %rd7}, [%rd3+512];\n\t@%p1 st.shared.v2.u64 [%r6+512], "
        "{%rd6, %rd7};\n\tbar.sync 0;\n"
        /* rows of A are 32 bytes: matrix 1 is rows 8 on, matrix 2 columns 8 on */
        "\tand.b32 %r7, %r1, 15;\n\tshr.u32 %r8, %r1, 4;\n\tshl.b32 %r7, %r7, 5;\n\tshl.b32 %r8, %r8, 4;\n\tadd.s32 %r7, %r7, "
        "%r8;\n\tadd.s32 %r7, %r5, %r7;\n"
        "\tldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r10,%r11,%r12,%r13}, [%r7];\n\tand.b32 %r9, %r1, 15;\n\tshl.b32 %r9, %r9, "
        "4;\n\tadd.s32 %r9, %r5, %r9;\n"
        "\tldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%r14,%r15}, [%r9+512];\n"
        "\tmov.f32 %f1, 0f3F800000;\n\tmma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%f2,%f3,%f4,%f5}, "
        "{%r10,%r11,%r12,%r13}, {%r14,%r15}, {%f1,%f1,%f1,%f1};\n"
        "\tst.global.v4.f32 [%rd3+1024], {%f2,%f3,%f4,%f5};\n";
    Buffer buffer(256);
    uint16_t *in = (uint16_t *)buffer.words.data();
    auto a = [](unsigned r, unsigned c) { return (float)((r * 7 + c * 3) % 11) - 5; };
    auto b = [](unsigned r, unsigned c) { return (float)((r * 5 + c * 2) % 7) - 3; };
    for (unsigned r = 0; r < 16; r++) {
        for (unsigned c = 0; c < 16; c++)
            in[r * 16 + c] = (uint16_t)(bits32(a(r, c)) >> 16);
        for (unsigned c = 0; c < 8; c++)
            in[256 + r * 8 + c] = (uint16_t)(bits32(b(r, c)) >> 16);
    }
    Counts counts;
    CHECK(run_text(kernel(text), buffer, 1, 32, {}, &counts).empty());
    CHECK(counts.tensor_flops == 2 * 16 * 8 * 16);
    const float *out = (const float *)&buffer.words[128];
    bool right = true;
    for (unsigned l = 0; l < 32; l++)
        for (unsigned k = 0; k < 4; k++) {
            float sum = 1;
            for (unsigned q = 0; q < 16; q++)
                sum += a(l / 4 + 8 * (k / 2), q) * b(q, l % 4 * 2 + k % 2);
            right = right && out[4 * l + k] == sum;
        }
    CHECK(right);
    CHECK(says(run_body("\tmov.u32 %r2, 0;\n\tmov.f32 %f1, 0f00000000;\n\tsetp.lt.u32 %p1, %r1, 9;\n\t@%p1 bra "
                        "$L1;\n\tmma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
                        "{%f1,%f1,%f1,%f1}, {%r2,%r2,%r2,%r2}, {%r2,%r2}, {%f1,%f1,%f1,%f1};\n$L1:\n\tbar.warp.sync -1;"),
               "wait for each other"));
}

static void test_counts()
{
    Options options;
    options.measure = true;
    Counts near, far;
    Buffer buffer(2048);
    CHECK(run_text(kernel("\tst.global.u64 [%rd2], %rd1;"), buffer, 1, 32, options, &near).empty());
    CHECK(near.stored == 256 && near.sectors <= 9 && near.least_sectors == 8);
    CHECK(run_text(kernel("\tmul.wide.u32 %rd3, %r1, 64;\n\tadd.s64 %rd3, %rd1, %rd3;\n\tst.global.u64 [%rd3], %rd1;"), buffer, 1,
                   32, options, &far).empty());
    CHECK(far.sectors == 32 && far.least_sectors == 8);
    for (unsigned shift : { 2u, 3u, 7u }) {
        Counts counts;
        std::string text = "\t.shared .align 8 .b8 s[4096];\n\tmov.u32 %r5, s;\n\tshl.b32 %r6, %r1, " + std::to_string(shift) +
                           ";\n\tadd.s32 %r6, %r5, %r6;\n\tst.shared.u32 [%r6], %r1;";
        CHECK(run_text(kernel(text), buffer, 1, 32, options, &counts).empty());
        CHECK(counts.shared == 1 && counts.conflicts == (1u << (shift - 2)) - 1);
    }
}

static void test_room()
{
    Buffer buffer(4);
    const void *p = buffer.words.data();
    Counts counts;
    Launch launch = { { 3, 1, 1 }, { 64, 1, 1 }, 1000, (const unsigned char *)&p, sizeof p };
    Module module("test.ptx", kernel("\tmov.u32 %r5, s;", ".shared .align 8 .b8 s[24];\n.extern .shared .align 8 .b8 more[];\n"));
    launch.most_shared = 1128;
    run(module.program("k"), launch, buffer, {}, &counts);
    CHECK(counts.threads == 64 && counts.block_shared == 1128 && counts.blocks == 3);
    launch.shared_bytes = 100; /* the most of two launches */
    run(module.program("k"), launch, buffer, {}, &counts);
    CHECK(counts.threads == 64 && counts.block_shared == 1128 && counts.blocks == 6);
    launch.most_shared = 227;
    std::string said;
    try {
        run(module.program("k"), launch, buffer, {}, &counts);
    } catch (const Fault &fault) {
        said = fault.what();
    }
    CHECK(said.find("228 bytes of shared memory") != std::string::npos);
}

int main()
{
    test_floats();
    test_integers();
    test_conversions();
    test_control();
    test_exchanges();
    test_faults();
    test_blocks();
    test_copies();
    test_matrices();
    test_counts();
    test_room();
    printf("%d passed, %d failed\n", passed, failed);
    return failed != 0;
}
