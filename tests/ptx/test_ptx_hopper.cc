/* SPDX-License-Identifier: Apache-2.0 */
/* The machine on what sm_90a adds: mbarriers, bulk and tensor copies, wgmma, against plain references that lay matrices out by
 * their own formulas; and each fault beside a kernel that has none. */
#include <cmath>
#include <random>

#include "test_ptx.h"

static Options with(Order order, bool late)
{
    Options options;
    options.order = order;
    options.copy_late = late;
    return options;
}
/* All orders, and both extremes of when asynchronous results come */
template <typename F> static void each_way(F f)
{
    for (Order order : { Order::forward, Order::backward, Order::random })
        for (bool late : { true, false })
            f(with(order, late));
}
static std::string replaced(std::string text, const std::string &what, const std::string &by)
{
    size_t at = text.find(what);
    if (at == std::string::npos)
        printf("no \"%s\" to replace\n", what.c_str());
    return at == std::string::npos ? text : text.replace(at, what.size(), by);
}

/* --- mbarriers --- */

static const char *const MEETS =
    "\t.shared .align 8 .b8 b[16];\n\t.shared .align 16 .b8 s[512];\n\tmov.u32 %r5, b;\n\tmov.u32 %r6, s;\n"
    "\tsetp.ne.u32 %p1, %r1, 0;\n\t@%p1 bra $INIT;\n\tmbarrier.init.shared::cta.b64 [%r5], 1;\n"
    "\tmbarrier.init.shared::cta.b64 [%r5+8], 32;\n$INIT:\n\tbar.sync 0;\n"
    "\tsetp.ge.u32 %p2, %r1, 32;\n\t@%p2 bra $OTHER;\n"
    /* warp 0 writes, one lane arrives for all; then waits until all lanes of warp 1 have read, and writes again */
    "\tshl.b32 %r7, %r1, 2;\n\tadd.s32 %r7, %r7, %r6;\n\tst.shared.u32 [%r7], %r1;\n\tbar.warp.sync -1;\n"
    "\t@!%p1 mbarrier.arrive.shared::cta.b64 _, [%r5];\n"
    "$W0:\n\tmbarrier.try_wait.parity.shared::cta.b64 %p3, [%r5+8], 0;\n\t@!%p3 bra $W0;\n"
    "\tst.shared.u32 [%r7], 7;\n\tret;\n"
    "$OTHER:\n\tmbarrier.test_wait.parity.shared::cta.b64 %p3, [%r5], 0;\n\t@!%p3 bra $OTHER;\n"
    "\tsub.u32 %r8, 63, %r1;\n\tshl.b32 %r8, %r8, 2;\n\tadd.s32 %r8, %r8, %r6;\n\tld.shared.u32 %r9, [%r8];\n"
    "\tmbarrier.arrive.shared::cta.b64 %rd9, [%r5+8];\n\tcvt.u64.u32 %rd3, %r9;\n\tst.global.u64 [%rd2], %rd3;\n";

static void test_meetings()
{
    const std::string text = kernel(MEETS);
    each_way([&](const Options &options) {
        Buffer buffer(64);
        CHECK(run_text(text, buffer, 1, 64, options).empty());
        bool right = true;
        for (unsigned l = 0; l < 32; l++)
            right = right && buffer.words[32 + l] == 31 - l;
        CHECK(right);
        auto fault = [&](const char *what, const char *by) { return run_text(replaced(text, what, by), buffer, 1, 64, options); };
        CHECK(says(fault("[%r5+8], 32", "[%r5+8], 33"), "waits forever at an mbarrier"));
        CHECK(!fault("[%r5], 0;\n\t@!%p3 bra $OTHER", "[%r5], 1;\n\t@!%p3 bra $OTHER").empty()); /* a race, or it waits forever */
        CHECK(says(fault("[%r5+8], 0;", "[%r5+8], 1;"), "races"));
        CHECK(says(fault("\tbar.warp.sync -1;\n", ""), "races: reads"));
        CHECK(says(fault("mbarrier.init.shared::cta.b64 [%r5], 1;", "mov.u32 %r9, 0;"), "nothing has initialised"));
        CHECK(says(fault("mbarrier.init.shared::cta.b64 [%r5], 1;", "mbarrier.init.shared::cta.b64 [%r5], 0;"), "of 0 arrivals"));
        CHECK(says(fault("b64 _, [%r5];", "b64 _, [%r5], 2;"), "more arrivals"));
        CHECK(says(fault("[%r5+8], 32", "[%r5+4], 32"), "multiple of 8"));
    });
    CHECK(says(run_body("\t.shared .align 8 .b8 b[8];\n\tmov.u32 %r5, b;\n\tmbarrier.init.shared.b64 [%r5], 1;"),
               "is one already"));
    CHECK(says(
        run_body("\telect.sync _|%p1, -1;\n\t@!%p1 ret;\n\tst.global.u64 [%rd1], %rd1;\n\tsetmaxnreg.dec.sync.aligned.u32 20;"),
        "setmaxnreg"));
    CHECK(run_body("\telect.sync _|%p1, -1;\n\t@!%p1 ret;\n\tst.global.u64 [%rd1], %rd1;").empty());
    /* who was not at a barrier of some warps has met nobody */
    const char *some =
        "\t.shared .align 8 .b8 s[8];\n\tmov.u32 %r5, s;\n\tsetp.ge.u32 %p1, %r1, 64;\n\t@%p1 bra $THIRD;\n"
        "\tsetp.eq.u32 %p2, %r1, 0;\n\t@%p2 st.shared.u32 [%r5], 5;\n\tbar.sync 1, 64;\n\tld.shared.u32 %r6, [%r5];\n"
        "\tbar.sync 0;\n\tret;\n$THIRD:\n\tTHIRD\n\tbar.sync 0;\n";
    CHECK(run_body(replaced(some, "THIRD\n\tbar", "\n\tbar"), 1, 96).empty());
    CHECK(says(run_body(replaced(some, "\tTHIRD", "\tst.shared.u32 [%r5], 5;"), 1, 96), "races"));
}

/* --- bulk copies --- */

static void test_bulk()
{
    const std::string text = kernel(
        "\t.shared .align 8 .b8 b[8];\n\t.shared .align 128 .b8 s[512];\n\tmov.u32 %r5, b;\n\tmov.u32 %r6, s;\n"
        "\tsetp.ne.u32 %p1, %r1, 0;\n\t@%p1 bra $INIT;\n\tmbarrier.init.shared::cta.b64 [%r5], 1;\n"
        "\tfence.mbarrier_init.release.cluster;\n\tmbarrier.arrive.expect_tx.shared::cta.b64 _, [%r5], 512;\n"
        "\tcp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r6], [%rd1], 512, [%r5];\n"
        "$INIT:\n\tbar.sync 0;\n"
        "$W:\n\tmbarrier.try_wait.parity.shared::cta.b64 %p3, [%r5], 0;\n\t@!%p3 bra $W;\n"
        "\tshl.b32 %r7, %r1, 3;\n\tadd.s32 %r7, %r7, %r6;\n\tld.shared.u64 %rd3, [%r7];\n\tst.global.u64 [%rd2+1024], %rd3;\n");
    each_way([&](const Options &options) {
        Buffer buffer(256);
        for (size_t k = 0; k < 64; k++)
            buffer.words[k] = k * k;
        CHECK(run_text(text, buffer, 1, 64, options).empty());
        CHECK(!memcmp(&buffer.words[128], &buffer.words[0], 512));
        auto fault = [&](const char *what, const char *by) { return run_text(replaced(text, what, by), buffer, 1, 64, options); };
        CHECK(says(fault("\tfence.mbarrier_init.release.cluster;\n", ""), "no fence has shown"));
        CHECK(fault("fence.mbarrier_init.release.cluster", "fence.proxy.async.shared::cta").empty());
        CHECK(says(fault("_, [%r5], 512", "_, [%r5], 528"), "lacks 0 arrivals, 16 bytes"));
        CHECK(says(fault("_, [%r5], 512", "_, [%r5], 496"), "lacks 0 arrivals, -16 bytes"));
        CHECK(says(run_text(replaced(replaced(text, "bar.sync 0;\n$W:", "bar.sync 0;\n\tbra $PAST;\n$W:"),
                                     "\tshl.b32 %r7, %r1, 3",
                                     "$PAST:\n\tshl.b32 %r7, %r1, 3"),
                            buffer, 1, 64, options),
                   options.copy_late ? "may not have written yet" : "races"));
        CHECK(says(fault("[%rd1], 512", "[%rd1], 504"), "multiple of 16"));
        CHECK(says(fault("\tcp.async.bulk", "\tst.shared.u32 [%r6], 1;\n\tcp.async.bulk"), "without a fence.proxy.async"));
        CHECK(fault("\tcp.async.bulk", "\tst.shared.u32 [%r6], 1;\n\tfence.proxy.async;\n\tcp.async.bulk").empty());
        CHECK(says(fault("$INIT:", "\tst.shared.u32 [%r6], 1;\n$INIT:"), options.copy_late ? "may not have written" : "races"));
    });
    CHECK(says(run_text(replaced(text, "$W:\n", "\tret;\n$W:\n"), *std::make_unique<Buffer>(256), 1, 64), "ends before"));
}

/* --- tensors --- */

struct Tensor { /* of 16-bit elements */
    unsigned rank, sizes[5], box[5], swizzle;
    int at[5];
};

/* Copies a box of a tensor to shared memory and that to the end of the buffer; "" and right, or what is wrong. */
static std::string copy_box(const Tensor &t, const Options &options)
{
    uint16_t data[4096 * 4];
    for (unsigned k = 0; k < 4096 * 4; k++)
        data[k] = (uint16_t)(k + 1);
    TensorMap map = {};
    map.magic = TensorMap::MAGIC;
    map.rank = (uint8_t)t.rank;
    map.element = 2;
    map.swizzle = (uint8_t)t.swizzle;
    uint64_t stride = 2, bytes = 2;
    std::string coordinates;
    for (unsigned d = 0; d < t.rank; d++) {
        stride = (stride * t.sizes[d] + 15) / 16 * 16;
        if (d + 1 < t.rank)
            map.strides[d] = stride;
        map.last[d] = t.sizes[d] - 1;
        map.box[d] = (uint16_t)t.box[d];
        bytes *= t.box[d];
        coordinates += (d ? ", " : "") + std::to_string(t.at[d]);
    }
    Buffer whole(16 + 8 + 4096 + 4096 + 16); /* the map lies before the data; 64 bytes may be lost to alignment */
    const size_t first = ((64 - (uintptr_t)whole.words.data() % 64) % 64) / 8;
    memcpy(&whole.words[first + 16], data, 4096 * 8);
    map.address = (uint64_t)(uintptr_t)&whole.words[first + 16];
    memcpy(&whole.words[first], &map, sizeof map);
    const std::string text = kernel(
        "\t.shared .align 8 .b8 b[8];\n\t.shared .align 1024 .b8 s[16384];\n\tmov.u32 %r5, b;\n\tmov.u32 %r6, s;\n"
        "\tadd.s64 %rd1, %rd1, " +
        std::to_string(first * 8) + ";\n\tadd.s64 %rd2, %rd2, " + std::to_string(first * 8) +
        ";\n"
        "\tsetp.ne.u32 %p1, %r1, 0;\n\t@%p1 bra $INIT;\n\tmbarrier.init.shared::cta.b64 [%r5], 1;\n\tfence.proxy.async;\n"
        "\tmbarrier.arrive.expect_tx.shared::cta.b64 _, [%r5], " +
        std::to_string(bytes) +
        ";\n"
        "\tcp.async.bulk.tensor." +
        std::to_string(t.rank) + "d.shared::cluster.global.mbarrier::complete_tx::bytes [%r6], [%rd1, {" + coordinates +
        "}], [%r5];\n$INIT:\n\tbar.sync 0;\n$W:\n\tmbarrier.try_wait.parity.shared::cta.b64 %p3, [%r5], 0;\n"
        "\t@!%p3 bra $W;\n\tshl.b32 %r7, %r1, 3;\n\tadd.s32 %r7, %r7, %r6;\n\tshl.b32 %r8, %r1, 3;\n\tadd.s64 %rd2, %rd2, " +
        std::to_string(16 * 8 + 4096 * 8) + ";\n$L:\n\tsetp.ge.u32 %p4, %r8, " + std::to_string(bytes) +
        ";\n\t@%p4 ret;\n\tld.shared.u64 %rd3, [%r7];\n\tst.global.u64 [%rd2], %rd3;\n\tadd.s32 %r7, %r7, 256;\n"
        "\tadd.s32 %r8, %r8, 256;\n\tadd.s64 %rd2, %rd2, 256;\n\tbra $L;\n");
    std::string fault = run_text(text, whole, 1, 32, options);
    if (!fault.empty())
        return fault;
    const uint16_t *out = (const uint16_t *)&whole.words[first + 16 + 4096];
    const unsigned row = t.box[0] * 2, units = row / 16;
    for (unsigned r = 0, n = (unsigned)bytes / row; r < n; r++)
        for (unsigned c = 0; c < t.box[0]; c++) {
            unsigned rest = r;
            bool there = t.at[0] + (int)c >= 0 && t.at[0] + (int)c < (int)t.sizes[0];
            uint64_t from = (uint64_t)(t.at[0] + (int)c);
            for (unsigned d = 1; d < t.rank; d++) {
                const int k = t.at[d] + (int)(rest % t.box[d]);
                rest /= t.box[d];
                there = there && k >= 0 && k < (int)t.sizes[d];
                from += (uint64_t)k * (map.strides[d - 1] / 2);
            }
            /* 16-byte units of the rows that share 128 bytes change places with how many 128 bytes went before */
            const unsigned turn = t.swizzle ? r * row / 128 % (1u << t.swizzle) : 0;
            const unsigned unit = units ? (c / 8) ^ turn : 0;
            if (out[r * t.box[0] + unit * 8 + c % 8] != (there ? data[from] : 0))
                return "row " + std::to_string(r) + ", column " + std::to_string(c);
        }
    return "";
}

static void test_tensors()
{
    each_way([](const Options &options) {
        CHECK(copy_box({ 2, { 64, 20 }, { 64, 16 }, 3, { 0, 0 } }, options) == "");
        CHECK(copy_box({ 2, { 64, 20 }, { 64, 16 }, 3, { 0, 8 } }, options) == "");   /* rows beyond the end */
        CHECK(copy_box({ 2, { 80, 20 }, { 64, 16 }, 3, { 64, 0 } }, options) == "");  /* columns beyond it */
        CHECK(copy_box({ 2, { 64, 20 }, { 32, 16 }, 2, { 32, -5 } }, options) == ""); /* rows before the first */
        CHECK(copy_box({ 2, { 64, 20 }, { 16, 16 }, 1, { 16, 3 } }, options) == "");
        CHECK(copy_box({ 2, { 64, 20 }, { 24, 4 }, 0, { 8, 3 } }, options) == "");
        CHECK(copy_box({ 3, { 16, 5, 7 }, { 16, 3, 2 }, 1, { 0, 4, 6 } }, options) == "");
        CHECK(copy_box({ 4, { 64, 5, 3, 2 }, { 64, 4, 1, 1 }, 3, { 0, 2, 1, 1 } }, options) == "");
        CHECK(copy_box({ 5, { 8, 3, 3, 3, 3 }, { 8, 2, 2, 2, 2 }, 0, { 0, 2, 1, 0, 2 } }, options) == "");
    });
    CHECK(says(copy_box({ 2, { 64, 9000 }, { 64, 16 }, 3, { 0, 8000 } }, {}), "memory"));
}

/* --- wgmma --- */

struct Product {
    unsigned n;
    bool f16, left_in_registers, turned_left, turned_right;
    unsigned left_swizzle, right_swizzle; /* 0: none; 1, 2, 3: 32, 64, 128 bytes */
    bool adds;
    int sign_a, sign_b;
};

static uint16_t half_bits(int x, bool f16) /* of small integers, exact in both */
{
    uint32_t b = bits32((float)x);
    if (!f16)
        return (uint16_t)(b >> 16);
    return x == 0 ? 0 : (uint16_t)((b >> 16 & 0x8000) | ((b >> 23 & 255) - 127 + 15) << 10 | (b >> 13 & 1023));
}

/* Lays out a matrix of `rows` (of M or N) by 16, in atoms; *leading and *stride: what its descriptor is to say. */
static void lay_out(std::vector<uint16_t> &to, const std::vector<int> &x, unsigned rows, unsigned swizzle, bool turned, bool f16,
                    unsigned *leading, unsigned *stride)
{
    const unsigned span = 8u << swizzle; /* elements of an atom's row: 8, 16, 32, 64 */
    to.assign(64 * 64 * 8, 0xffff);
    for (unsigned r = 0; r < rows; r++)
        for (unsigned k = 0; k < 16; k++) {
            unsigned atom, line, column; /* which atom of 8 lines, the line, the place in the line */
            if (!turned) {
                atom = swizzle ? r / 8 : r / 8 * 2 + k / 8;
                line = r % 8, column = swizzle ? k : k % 8;
            } else {
                atom = r / span * 2 + k / 8; /* two of K for each of M or N */
                line = k % 8, column = r % span;
            }
            const unsigned bytes = span * 2, before = line * bytes / 128;
            const unsigned unit = swizzle ? (column / 8) ^ (before % (1u << swizzle)) : column / 8;
            to[atom * 8 * span + line * span + unit * 8 + column % 8] = half_bits(x[r * 16 + k], f16);
        }
    const unsigned one = 8 * span * 2; /* bytes of an atom */
    if (!turned) {
        *stride = swizzle ? one : 2 * one; /* to the next 8 rows */
        *leading = swizzle ? 16 : one;     /* to the next 8 columns */
    } else if (swizzle) {
        *leading = 2 * one; /* to the next rows */
        *stride = one;      /* to the next 8 of K */
    } else {
        *stride = 2 * one;
        *leading = one;
    }
}

static std::string registers_of(const char *name, unsigned n)
{
    std::string text = "{";
    for (unsigned k = 0; k < n; k++)
        text += (k ? "," : "") + std::string(name) + std::to_string(k);
    return text + "}";
}

enum { LEFT_BYTES = 16384, RIGHT_BYTES = 65536 };

static std::string text_of(const Product &p, unsigned leading_a, unsigned stride_a, unsigned leading_b, unsigned stride_b)
{
    auto descriptor = [](unsigned leading, unsigned stride, unsigned swizzle) {
        const uint64_t mode = swizzle ? 4 - swizzle : 0;
        return (uint64_t)leading / 16 << 16 | (uint64_t)stride / 16 << 32 | mode << 62;
    };
    std::string text =
        "\t.shared .align 1024 .b8 s[" + std::to_string(LEFT_BYTES + RIGHT_BYTES) +
        "];\n\t.reg .f32 %d<128>;\n\t.reg .b32 %a<4>;\n"
        "\t.reg .b64 %q<2>;\n\tmov.u32 %r5, s;\n\tshl.b32 %r6, %r1, 4;\n\tadd.s32 %r7, %r5, %r6;\n\tcvt.u64.u32 %rd3, %r6;\n"
        "\tadd.s64 %rd4, %rd1, %rd3;\n$COPY:\n\tld.global.v2.u64 {%rd5, %rd6}, [%rd4];\n\tst.shared.v2.u64 [%r7], {%rd5, %rd6};\n"
        "\tadd.s32 %r7, %r7, 2048;\n\tadd.s32 %r6, %r6, 2048;\n\tadd.s64 %rd4, %rd4, 2048;\n\tsetp.lt.u32 %p1, %r6, " +
        std::to_string(LEFT_BYTES + RIGHT_BYTES) +
        ";\n\t@%p1 bra $COPY;\n\tfence.proxy.async;\n\tbar.sync 0;\n"
        /* rows of A from its plain image behind the two others: 32 bytes each */
        "\tshr.u32 %r8, %r1, 5;\n\tand.b32 %r9, %r1, 31;\n\tshr.u32 %r10, %r9, 2;\n\tand.b32 %r11, %r9, 3;\n\tshl.b32 %r8, %r8, "
        "4;\n"
        "\tadd.s32 %r8, %r8, %r10;\n\tshl.b32 %r8, %r8, 5;\n\tshl.b32 %r11, %r11, 2;\n\tadd.s32 %r8, %r8, %r11;\n\tcvt.u64.u32 "
        "%rd3, %r8;\n"
        "\tadd.s64 %rd3, %rd3, %rd1;\n";
    const unsigned plain = LEFT_BYTES + RIGHT_BYTES;
    const unsigned places[4] = { plain, plain + 256, plain + 16, plain + 272 };
    for (unsigned k = 0; k < 4; k++)
        text += "\tld.global.u32 %a" + std::to_string(k) + ", [%rd3+" + std::to_string(places[k]) + "];\n";
    for (unsigned k = 0; k < p.n / 2; k++)
        text += "\tmov.f32 %d" + std::to_string(k) + ", 0f3FC00000;\n";
    text += "\tshr.u32 %r12, %r5, 4;\n\tcvt.u64.u32 %rd7, %r12;\n\tadd.s64 %q0, %rd7, " +
            std::to_string(descriptor(leading_a, stride_a, p.left_swizzle)) + ";\n\tadd.s64 %q1, %rd7, " +
            std::to_string(descriptor(leading_b, stride_b, p.right_swizzle) + LEFT_BYTES / 16) + ";\n\tsetp.eq.u32 %p2, 1, " +
            std::to_string(p.adds) + ";\n\twgmma.fence.sync.aligned;\n\twgmma.mma_async.sync.aligned.m64n" + std::to_string(p.n) +
            "k16.f32." + (p.f16 ? "f16.f16 " : "bf16.bf16 ") + registers_of("%d", p.n / 2) + ", " +
            (p.left_in_registers ? registers_of("%a", 4) : "%q0") + ", %q1, %p2, " + std::to_string(p.sign_a) + ", " +
            std::to_string(p.sign_b) + ", " +
            (p.left_in_registers ? ""
             : p.turned_left     ? "1, "
                                 : "0, ") +
            (p.turned_right ? "1" : "0") +
            ";\n\twgmma.commit_group.sync.aligned;\n\twgmma.wait_group.sync.aligned 0;\n\tmul.lo.u32 %r13, %r1, "
            "512;\n\tcvt.u64.u32 %rd8, "
            "%r13;\n\tadd.s64 %rd8, %rd8, %rd1;\n";
    for (unsigned k = 0; k < p.n / 2; k++)
        text += "\tst.global.f32 [%rd8+" + std::to_string(LEFT_BYTES + RIGHT_BYTES + 2048 + 4 * k) + "], %d" + std::to_string(k) +
                ";\n";
    return kernel(text);
}

/* The buffer of a product's operands, and what it is to give */
struct Multiplied {
    Buffer buffer;
    std::string text;
    std::vector<int> a, b;
    explicit Multiplied(const Product &p) : buffer((LEFT_BYTES + RIGHT_BYTES + 2048 + 128 * 512) / 8), a(64 * 16), b(p.n * 16)
    {
        std::mt19937 random(p.n);
        for (int &x : a)
            x = (int)(random() % 9) - 4;
        for (int &x : b)
            x = (int)(random() % 7) - 3;
        std::vector<uint16_t> image;
        unsigned la, sa, lb, sb;
        lay_out(image, a, 64, p.left_swizzle, p.turned_left, p.f16, &la, &sa);
        memcpy(&buffer.words[0], image.data(), LEFT_BYTES);
        lay_out(image, b, p.n, p.right_swizzle, p.turned_right, p.f16, &lb, &sb);
        memcpy(&buffer.words[LEFT_BYTES / 8], image.data(), RIGHT_BYTES);
        uint16_t *plain = (uint16_t *)&buffer.words[(LEFT_BYTES + RIGHT_BYTES) / 8];
        for (unsigned k = 0; k < 64 * 16; k++)
            plain[k] = half_bits(a[k], p.f16);
        text = text_of(p, la, sa, lb, sb);
    }
    bool is_right(const Product &p) const
    {
        const float *out = (const float *)&buffer.words[(LEFT_BYTES + RIGHT_BYTES + 2048) / 8];
        for (unsigned row = 0; row < 64; row++)
            for (unsigned column = 0; column < p.n; column++) {
                float sum = 0;
                for (unsigned k = 0; k < 16; k++)
                    sum += (float)(a[row * 16 + k] * b[column * 16 + k]);
                const unsigned thread = row / 16 * 32 + row % 8 * 4 + column % 8 / 2,
                    k = column / 8 * 4 + row % 16 / 8 * 2 + column % 2;
                if (out[thread * 128 + k] != (p.adds ? 1.5f : 0) + (float)(p.sign_a * p.sign_b) * sum)
                    return false;
            }
        return true;
    }
};

static void test_products()
{
    std::mt19937 random(5);
    for (unsigned n = 8; n <= 256; n = n < 32 ? n + 8 : n * 2)
        for (unsigned left = 0; left < 4; left++)
            for (unsigned right = 0; right < 4; right++) {
                Product p = { n, random() % 2 == 0, random() % 4 == 0, random() % 2 == 0, random() % 2 == 0, left, right,
                              random() % 2 == 0,
                              random() % 2 ? 1 : -1, random() % 2 ? 1 : -1 };
                if (p.turned_right && n % (8u << right)) /* not whole atoms */
                    p.turned_right = false;
                p.turned_left = p.turned_left && !p.left_in_registers;
                Multiplied m(p);
                std::string fault = run_text(m.text, m.buffer, 1, 128, with(Order::random, random() % 2));
                CHECK(fault.empty() && m.is_right(p));
                if (!fault.empty() || !m.is_right(p))
                    printf("n %u, %s, left %u%s%s, right %u%s: %s\n", n, p.f16 ? "f16" : "bf16", left,
                           p.turned_left ? " turned" : "",
                           p.left_in_registers ? " in registers" : "", right, p.turned_right ? " turned" : "", fault.c_str());
            }
}

static void test_product_faults()
{
    const Product p = { 64, false, true, false, true, 0, 3, true, 1, 1 },
        q = { 64, false, false, false, false, 3, 3, false, 1, 1 };
    each_way([&](const Options &options) {
        Multiplied m(p), shared(q);
        Counts counts;
        CHECK(run_text(m.text, m.buffer, 1, 128, options, &counts).empty() && counts.tensor_flops == 2 * 64 * 64 * 16);
        auto fault = [&](const char *what, const char *by) { return run_text(replaced(m.text, what, by), m.buffer, 1, 128,
                                                                             options); };
        const char *const WAIT = "\twgmma.wait_group.sync.aligned 0;\n", *const FENCE = "\twgmma.fence.sync.aligned;\n",
                   *const COMMIT = "\twgmma.commit_group.sync.aligned;\n";
        CHECK(says(fault(WAIT, ""), "has not given back"));
        CHECK(says(fault(WAIT, "\twgmma.wait_group.sync.aligned 1;\n"), "has not given back"));
        CHECK(says(fault(COMMIT, ""), "has not given back"));
        CHECK(says(fault(WAIT, "\tmov.f32 %d3, 0f00000000;\n\twgmma.wait_group.sync.aligned 0;\n"), "writes a register"));
        CHECK(says(fault(WAIT, "\tmov.u32 %a1, 0;\n\twgmma.wait_group.sync.aligned 0;\n"), "writes a register"));
        CHECK(says(fault(FENCE, ""), "touched after the last wgmma.fence"));
        CHECK(says(fault(FENCE, "\twgmma.fence.sync.aligned;\n\tmov.f32 %d5, 0f00000000;\n"),
                   "touched after the last wgmma.fence"));
        CHECK(says(fault(FENCE, "\twgmma.fence.sync.aligned;\n\tadd.f32 %f1, %d5, %d5;\n"),
                   "touched after the last wgmma.fence"));
        CHECK(says(fault("\tfence.proxy.async;\n", ""), "without a fence.proxy.async"));
        CHECK(fault("\tfence.proxy.async;\n\tbar.sync 0;\n", "\tbar.sync 0;\n\tfence.proxy.async;\n").empty());
        CHECK(says(fault(WAIT, "\tst.shared.u32 [%r5+16384], 0;\n\twgmma.wait_group.sync.aligned 0;\n"), "may still read"));
        CHECK(says(fault("\tbar.sync 0;\n", ""), "reads "));
        CHECK(says(run_text(m.text, m.buffer, 1, 96, options), "four whole warps"));
        CHECK(run_text(shared.text, shared.buffer, 1, 128, options).empty() && shared.is_right(q));
        CHECK(says(run_text(replaced(shared.text, WAIT, "\tret;\n"), shared.buffer, 1, 128, options), "ends before a wgmma"));
        const char *part = "\tsetp.ge.u32 %p3, %r1, 96;\n\t@%p3 ret;\n\twgmma.fence.sync.aligned;\n";
        CHECK(says(run_text(replaced(shared.text, FENCE, part), shared.buffer, 1, 128, options), "do not multiply alike"));
    });
    Multiplied wrong(p);
    CHECK(says(run_text(replaced(wrong.text, "m64n64k16", "m64n72k16"), wrong.buffer, 1, 128), "other operands"));
}

int main()
{
    test_meetings();
    test_bulk();
    test_tensors();
    test_products();
    test_product_faults();
    printf("%d passed, %d failed\n", passed, failed);
    return failed != 0;
}
