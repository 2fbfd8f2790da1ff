/* SPDX-License-Identifier: Apache-2.0 */
/* Order-independent sums (tensor/binned.h) and digests of a GPU against the CPU's, bit for bit: digits, bins and results of any
 * numbers, among them the smallest, inf and NaN; blocks of zeros, and sizes that end anywhere. On TREK_TEST_DEVICE, a GPU; on the
 * CPU there is nothing to compare. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "distributed/grains/digest.h"
#include "tensor/backend.h"
#include "tests/support/refused.h"
#include "tests/support/support.h"

enum { MOST_COUNT = 5 * TREK_BINNED_BLOCK + 91, MOST_BLOCKS = 6 };

static trek_device gpu;

static uint64_t drawn;
static uint64_t draw(void) { return test_draw(&drawn, 0); }
static int below(int n) { return (int)test_draw(&drawn, (uint64_t)n); }

static const trek_backend *device(void) { return trek_backend_get(gpu.type); }

/* --- the same sums on both --- */

typedef struct both {
    trek_binned host, on_device;
    trek_tensor *digits[TREK_BINNED_DIGITS], *bins, *data, *bounds; /* of the device */
} both;

static trek_tensor *device_zeros(trek_dtype dtype, int64_t count)
{
    trek_tensor *x = trek_tensor_zeros(trek_dims(count), dtype, gpu);
    assert_non_null(x);
    return x;
}

static void to_device(trek_tensor *to, const void *from, size_t bytes)
{
    assert_int_equal(device()->copy_bytes(to->data, gpu, from, trek_cpu(0), bytes, NULL), TREK_OK);
}

static void from_device(void *to, const void *from, size_t bytes)
{
    assert_int_equal(device()->copy_bytes(to, trek_cpu(0), from, gpu, bytes, NULL), TREK_OK);
    expect_no_error();
}

static both both_new(trek_dtype dtype, int64_t count)
{
    int64_t blocks = trek_binned_blocks(count);
    both b = { .host = { .dtype = dtype, .count = count }, .on_device = { .dtype = dtype, .count = count } };
    char undefined[MOST_COUNT * 8];
    memset(undefined, 0x5a, sizeof undefined);
    for (int k = 0; k < trek_binned_digits(dtype); k++) {
        b.host.digits[k] = malloc((size_t)count * sizeof(int64_t));
        memcpy(b.host.digits[k], undefined, (size_t)count * sizeof(int64_t));
        b.digits[k] = device_zeros(TREK_I64, count);
        to_device(b.digits[k], undefined, (size_t)count * sizeof(int64_t));
        b.on_device.digits[k] = (int64_t *)(void *)b.digits[k]->data;
    }
    b.host.bins = malloc((size_t)blocks * sizeof(int32_t));
    for (int64_t k = 0; k < blocks; k++)
        b.host.bins[k] = TREK_BINNED_EMPTY;
    b.bins = device_zeros(TREK_I32, blocks);
    b.bounds = device_zeros(TREK_I32, blocks);
    b.data = device_zeros(dtype, count);
    to_device(b.bins, b.host.bins, (size_t)blocks * sizeof(int32_t));
    b.on_device.bins = (int32_t *)(void *)b.bins->data;
    return b;
}

static void both_free(both *b)
{
    for (int k = 0; k < TREK_BINNED_DIGITS; k++) {
        free(b->host.digits[k]);
        trek_tensor_release(b->digits[k]);
    }
    free(b->host.bins);
    trek_tensor_release(b->bins);
    trek_tensor_release(b->bounds);
    trek_tensor_release(b->data);
}

/* Digits of empty blocks are undefined. */
static void expect_equal(const both *b, const char *after)
{
    static int64_t digits[MOST_COUNT];
    int32_t bins[MOST_BLOCKS];
    int64_t blocks = trek_binned_blocks(b->host.count);
    from_device(bins, b->on_device.bins, (size_t)blocks * sizeof *bins);
    for (int64_t k = 0; k < blocks; k++)
        if (bins[k] != b->host.bins[k])
            fail_msg("after %s block %lld has bin %d, not %d", after, (long long)k, bins[k], b->host.bins[k]);
    for (int k = 0; k < trek_binned_digits(b->host.dtype); k++) {
        from_device(digits, b->on_device.digits[k], (size_t)b->host.count * sizeof *digits);
        for (int64_t i = 0; i < b->host.count; i++)
            if (bins[i / TREK_BINNED_BLOCK] != TREK_BINNED_EMPTY && digits[i] != b->host.digits[k][i])
                fail_msg("after %s element %lld has %lld as digit %d, not %lld", after, (long long)i, (long long)digits[i], k,
                         (long long)b->host.digits[k][i]);
    }
}

/* --- terms --- */

static void put(void *to, trek_dtype dtype, int64_t at, double value)
{
    if (dtype == TREK_F64)
        ((double *)to)[at] = value;
    else
        ((float *)to)[at] = (float)value;
}

/* Magnitudes around 2^centre, or bits of any number; zeros, whole blocks of them, inf and NaN. */
static void draw_term(void *to, trek_dtype dtype, int64_t count, int centre)
{
    static const double oddities[] = { INFINITY, -INFINITY, NAN, 0x1p-149, -0x1p-1074, 0x1.fffffep127, -0x1.fffffffffffffp1023 };
    int spread = 1 + below(below(3) ? 8 : 90), zeros = below(4), odd = below(4) == 0;
    bool any = below(8) == 0;
    for (int64_t i = 0; i < count; i++) {
        uint64_t bits = draw();
        double mantissa = 1 + (double)(bits >> 12) * 0x1p-52;
        put(to, dtype, i, ldexp(bits & 1 ? mantissa : -mantissa, centre + below(spread) - spread / 2));
        if (any)
            memcpy((char *)to + (size_t)i * trek_dtype_size(dtype), &bits, trek_dtype_size(dtype));
        if ((zeros == 1 && below(10) == 0) || (zeros == 2 && (i / TREK_BINNED_BLOCK + centre) % 2 == 0))
            put(to, dtype, i, bits & 1 ? 0.0 : -0.0);
        if (odd && below(40) == 0)
            put(to, dtype, i, oddities[below(7)]);
    }
}

/* Adds a term to some blocks of both. */
static void add_to_both(both *b, int centre)
{
    static double term[MOST_COUNT], left[MOST_COUNT];
    int64_t blocks = trek_binned_blocks(b->host.count), first = below((int)blocks), n = 1 + below((int)(blocks - first));
    size_t bytes = (size_t)b->host.count * trek_dtype_size(b->host.dtype);
    bool zero = below(2);
    draw_term(term, b->host.dtype, b->host.count, centre);
    to_device(b->data, term, bytes);
    device()->binned_add(&b->on_device, (void *[]){ b->data->data }, 1, first, n, zero);
    trek_cpu_backend()->binned_add(&b->host, (void *[]){ term }, 1, first, n, zero);
    from_device(left, b->data->data, bytes);
    assert_memory_equal(term, left, bytes);
}

static void raise_both(both *b)
{
    int32_t bins[MOST_BLOCKS];
    int64_t blocks = trek_binned_blocks(b->host.count);
    for (int64_t k = 0; k < blocks; k++)
        bins[k] = b->host.bins[k] == TREK_BINNED_EMPTY ? (below(2) ? TREK_BINNED_EMPTY : below(5) - 2)
            : b->host.bins[k] + below(5) - 1;
    to_device(b->bounds, bins, (size_t)blocks * sizeof *bins);
    device()->binned_raise(&b->on_device, (const int32_t *)(const void *)b->bounds->data);
    trek_cpu_backend()->binned_raise(&b->host, bins);
}

/* NaN of any kind are equal: which of them a conversion gives is not the same everywhere. */
static bool same(const void *a, const void *b, trek_dtype dtype, int64_t at)
{
    if (dtype == TREK_F64) {
        const double *x = a, *y = b;
        return memcmp(&x[at], &y[at], sizeof *x) == 0 || (isnan(x[at]) && isnan(y[at]));
    }
    const float *x = a, *y = b;
    return memcmp(&x[at], &y[at], sizeof *x) == 0 || (isnan(x[at]) && isnan(y[at]));
}

static void read_both(both *b)
{
    static double want[MOST_COUNT], have[MOST_COUNT];
    int64_t blocks = trek_binned_blocks(b->host.count), first = below((int)blocks), n = 1 + below((int)(blocks - first));
    size_t bytes = (size_t)b->host.count * trek_dtype_size(b->host.dtype);
    double factor = below(2) ? 1 : (double)(1 + below(1000)) / 77;
    memset(want, 0x33, sizeof want);
    to_device(b->data, want, bytes);
    device()->binned_read(&b->on_device, factor, b->data->data, first, n);
    trek_cpu_backend()->binned_read(&b->host, factor, want, first, n);
    from_device(have, b->data->data, bytes);
    for (int64_t i = 0; i < b->host.count; i++)
        if (!same(want, have, b->host.dtype, i))
            fail_msg("element %lld of %lld is read as other bits than on the CPU", (long long)i, (long long)b->host.count);
}

static void sums_have_the_digits_of_the_cpu(void **state)
{
    drawn = test_seed();
    for (int round = 0; round < (test_short() ? 40 : 400); round++) {
        trek_dtype dtype = below(2) ? TREK_F32 : TREK_F64;
        int reach = dtype == TREK_F32 ? 140 : 1000, centre = below(2 * reach) - reach;
        both b = both_new(dtype, 1 + below(MOST_COUNT));
        for (int k = 1 + below(6); k > 0; k--) {
            add_to_both(&b, centre + (below(3) ? 0 : below(120) - 60));
            expect_equal(&b, "adding");
            if (below(4))
                continue;
            raise_both(&b);
            expect_equal(&b, "raising");
        }
        read_both(&b);
        both_free(&b);
    }
}

/* Nothing is done where there is nothing to do, and no element beyond the count is touched. */
static void no_blocks_are_no_work(void **state)
{
    both b = both_new(TREK_F32, 300);
    device()->binned_add(&b.on_device, (void *[]){ b.data->data }, 1, 1, 0, true);
    device()->binned_read(&b.on_device, 1, b.data->data, 0, 0);
    expect_equal(&b, "nothing");
    assert_int_equal(device()->digest(gpu, NULL, 0, (trek_digest *)(void *)b.digits[0]->data), TREK_OK);
    read_both(&b); /* zeros */
    both_free(&b);
}

/* --- digests --- */

/* Returns the digest of a span, on the CPU. */
static void add_span(trek_digest *digest, const unsigned char *data, const trek_digest_span *span)
{
    static unsigned char copy[4 * MOST_COUNT];
    memcpy(copy, data, (size_t)span->bytes);
    for (int64_t k = 0; span->floats == 4 && k + 4 <= span->bytes; k += 4)
        if (*(float *)(void *)(copy + k) == 0)
            memset(copy + k, 0, 4);
    for (int64_t k = 0; span->floats == 8 && k + 8 <= span->bytes; k += 8)
        if (*(double *)(void *)(copy + k) == 0)
            memset(copy + k, 0, 8);
    trek_digest_add(digest, span->key, copy, (size_t)span->bytes);
}

static void digests_are_those_of_the_cpu(void **state)
{
    drawn = test_seed() + 1;
    static unsigned char bytes[8 * MOST_COUNT];
    trek_tensor *data = device_zeros(TREK_U8, sizeof bytes), *result = device_zeros(TREK_I64, 2);
    for (int round = 0; round < (test_short() ? 20 : 200); round++) {
        int n = 1 + below(TREK_DIGEST_SPANS);
        trek_digest_span spans[TREK_DIGEST_SPANS];
        trek_digest want = { { draw(), draw() } }, have;
        for (size_t k = 0; k + 4 <= sizeof bytes; k += 4) {
            float x = below(4) ? test_number(5, (uint32_t)draw()) : below(2) ? 0.0f : -0.0f;
            memcpy(bytes + k, &x, sizeof x);
        }
        to_device(data, bytes, sizeof bytes);
        to_device(result, &want, sizeof want);
        for (int k = 0; k < n; k++) {
            int floats = 4 * below(3), unit = floats ? floats : 1;
            int64_t at = 8 * below(MOST_COUNT / 2), size = below(3) ? below(4 * MOST_COUNT) : below(40);
            spans[k] = (trek_digest_span){ data->data + at, size / unit * unit, draw() >> 8, floats };
            add_span(&want, bytes + at, &spans[k]);
        }
        assert_int_equal(device()->digest(gpu, spans, n, (trek_digest *)(void *)result->data), TREK_OK);
        from_device(&have, result->data, sizeof have);
        assert_true(trek_digest_equal(&want, &have));
    }
    trek_tensor_release(data);
    trek_tensor_release(result);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sums_have_the_digits_of_the_cpu),
        cmocka_unit_test(no_blocks_are_no_work),
        cmocka_unit_test(digests_are_those_of_the_cpu),
    };
    gpu = test_device();
    if (test_on_cpu()) {
        printf("TREK_TEST_DEVICE is the CPU: nothing to compare\n");
        return 0;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
