/* SPDX-License-Identifier: Apache-2.0 */
/* Floats in fewer bits: against a plain reference in f64, values that are none, error feedback over many rounds. */
#include <float.h>

#include "distributed/outer/compress.h"
#include "tests/support/support.h"
#include "tests/support/unit.h"

enum { MOST = 3000, SIZES = 12 };

static const int all_bits[] = { 4, 8, 16, 32 };
static const int64_t sizes[SIZES] = { 0, 1, 2, 7, 63, 64, 65, 255, 256, 257, 1000, MOST };

static int64_t block_of(int bits) { return bits == 4 ? 64 : bits == 8 ? 256 : 1; }
static int most_of(int bits) { return bits == 4 ? 7 : 127; }

/* What others get of v, and half a step of it at most is lost. */
static double reference(const double *v, int64_t n, int64_t i, int bits, double *step)
{
    *step = 0;
    if (bits == 32)
        return (float)v[i];
    if (bits == 16) {
        int exponent;
        frexp(v[i], &exponent);
        *step = ldexp(1, exponent - 8); /* 8 bits of mantissa */
        return *step * rint(v[i] / *step);
    }
    int64_t first = i / block_of(bits) * block_of(bits), last = first + block_of(bits);
    double largest = 0;
    for (int64_t k = first; k < last && k < n; k++)
        largest = fmax(largest, fabs(v[k]));
    *step = largest / most_of(bits);
    return largest < 0x1p-100 ? 0 : *step * rint(v[i] / *step);
}

/* Over a wire of any alignment, between guards. */
static void send(const float *values, float *error, int64_t n, int bits, float weight, float *sum)
{
    static unsigned char wire[5 * MOST + 64];
    unsigned char *at = wire + 1 + n % 4;
    int64_t bytes = trek_compress_bytes(n, bits);
    memset(wire, 0xa5, sizeof wire);
    trek_compress(values, error, n, bits, at);
    assert_int_equal(at[-1], 0xa5);
    for (int64_t k = 0; k < 4; k++)
        assert_int_equal(at[bytes + k], 0xa5);
    if (bits == 4 && n % 2)
        assert_int_equal(at[bytes - 1] >> 4, 8); /* the code that nothing has: 0 */
    trek_compress_add(at, n, bits, weight, sum);
}

static void test_bytes(void **state)
{
    static const struct { int64_t n, of_4, of_8, of_16, of_32; } rows[] = {
        { 0, 0, 0, 0, 0 }, { 1, 5, 5, 2, 4 }, { 2, 5, 6, 4, 8 }, { 64, 36, 68, 128, 256 }, { 65, 41, 69, 130, 260 },
        { 256, 144, 260, 512, 1024 }, { 257, 149, 265, 514, 1028 },
    };
    for (size_t k = 0; k < sizeof rows / sizeof *rows; k++) {
        assert_int_equal(trek_compress_bytes(rows[k].n, 4), rows[k].of_4);
        assert_int_equal(trek_compress_bytes(rows[k].n, 8), rows[k].of_8);
        assert_int_equal(trek_compress_bytes(rows[k].n, 16), rows[k].of_16);
        assert_int_equal(trek_compress_bytes(rows[k].n, 32), rows[k].of_32);
    }
    for (int bits = -1; bits < 40; bits++)
        assert_int_equal(trek_compress_takes(bits), bits == 4 || bits == 8 || bits == 16 || bits == 32);
}

static void test_sent(void **state)
{
    static float values[MOST], error[MOST], sum[MOST];
    static double v[MOST];
    for (int b = 0; b < 4; b++)
        for (int s = 0; s < SIZES; s++)
            for (uint32_t with_error = 0; with_error < 2; with_error++) {
                int64_t n = sizes[s];
                int bits = all_bits[b];
                uint32_t stream = (uint32_t)(100 * b + s);
                for (uint32_t i = 0; i < n; i++) {
                    double scale = pow(10, 6 * test_number(stream + 1000, i / 256)); /* another for each block */
                    values[i] = i % 17 == 3 ? 0 : (float)(scale * test_number(stream, i));
                    error[i] = with_error ? (float)(0.1 * scale * test_number(stream + 2000, i)) : 0;
                    sum[i] = 10 * test_number(stream + 3000, i);
                    v[i] = values[i] + error[i];
                }
                static float before[MOST], kept[MOST];
                memcpy(before, sum, sizeof sum);
                memcpy(kept, values, sizeof values);
                send(values, with_error ? error : NULL, n, bits, 0.375f, sum);
                assert_memory_equal(kept, values, sizeof values);
                for (int64_t i = 0; i < n; i++) {
                    double step, sent = reference(v, n, i, bits, &step), got = (sum[i] - (double)before[i]) / 0.375;
                    double slack = 1e-6 * (fabs(v[i]) + fabs(before[i])) + 1e-30;
                    if (!(fabs(got - sent) <= slack || fabs(fabs(got - sent) - step) <= slack) ||
                        !(fabs(got - v[i]) <= 0.5 * step + slack))
                        fail_msg("%d bits, %d of %d: %g became %g instead of %g", bits, (int)i, (int)n, v[i], got, sent);
                    if (with_error && !(fabs(error[i] - (v[i] - got)) <= slack))
                        fail_msg("%d bits, %d of %d: the error of %g is %g", bits, (int)i, (int)n, v[i], error[i]);
                }
            }
}

/* Zeros, denormals, the largest; what is not finite must not become finite, and does no harm to the next round. */
static void test_odd_values(void **state)
{
    static const float bad[] = { NAN, INFINITY, -INFINITY };
    for (int b = 0; b < 4; b++) {
        int bits = all_bits[b];
        float values[600], error[600], sum[600] = { 0 };
        for (int i = 0; i < 600; i++)
            values[i] = i % 2 ? 1e-42f : 0, error[i] = 0;
        send(values, error, 600, bits, 1, sum);
        for (int i = 0; i < 600; i++)
            assert_true(sum[i] + error[i] == values[i]);
        for (int i = 0; i < 600; i++)
            values[i] = i % 3 ? FLT_MAX : -FLT_MAX, sum[i] = 0, error[i] = 0;
        send(values, error, 600, bits, 1, sum);
        for (int i = 0; i < 600 && bits != 16; i++)
            assert_true(isfinite(sum[i]) && fabs(sum[i] / values[i] - 1) < 1e-3);
        for (int i = 0; i < 600 && bits == 16; i++)
            assert_true(sum[i] == (i % 3 ? INFINITY : -INFINITY) && error[i] == 0);
        for (int k = 0; k < 3; k++) {
            for (int i = 0; i < 600; i++)
                values[i] = i == 300 ? bad[k] : 1, sum[i] = 0, error[i] = 0.25f;
            send(values, error, 600, bits, 1, sum);
            for (int i = 0; i < 600; i++) {
                bool same = i / block_of(bits) == 300 / block_of(bits);
                assert_true(isfinite(error[i]));
                assert_int_equal(isfinite(sum[i]) != 0, !same);
                assert_true(!same || (error[i] == 0 && (bits >= 16 || isnan(sum[i]))));
            }
            assert_true(isnan(bad[k]) ? isnan(sum[300]) : bits < 16 || sum[300] == bad[k]);
        }
        values[300] = error[300] = FLT_MAX; /* their sum is infinite */
        memset(sum, 0, sizeof sum);
        send(values, error, 600, bits, 1, sum);
        assert_true(!isfinite(sum[300]) && error[300] == 0);
    }
}

/* Many rounds, all that was sent against all that was to be: one rounding step apart, where without it they drift. */
static void test_error_feedback(void **state)
{
    enum { N = 300, ROUNDS = 500 };
    for (int b = 0; b < 3; b++) {
        int bits = all_bits[b];
        double wanted[N] = { 0 }, got[N] = { 0 }, without[N] = { 0 }, most = 0, drift = 0, step = bits == 4 ? 1.5 / 7 : bits == 8
            ? 1.5 / 127 : 1.0 / 128;
        float error[N] = { 0 };
        for (uint32_t r = 0; r < ROUNDS; r++) {
            float values[N], sum[N] = { 0 }, plain[N] = { 0 };
            for (uint32_t i = 0; i < N; i++) {
                values[i] = 0.01f + 0.003f * (float)(i % 5) + (i % 64 == 0 ? test_number(r, i) : 0);
                wanted[i] += values[i];
            }
            send(values, error, N, bits, 1, sum);
            send(values, NULL, N, bits, 1, plain);
            for (int i = 0; i < N; i++)
                got[i] += sum[i], without[i] += plain[i];
        }
        for (int i = 0; i < N; i++) {
            most = fmax(most, fabs(got[i] - wanted[i]));
            drift = fmax(drift, fabs(without[i] - wanted[i]));
        }
        if (!(most <= 0.5 * step + 1e-4) || !(drift > (bits == 4 ? 3 : bits == 8 ? 0.3 : 0.01)))
            fail_msg("%d bits: %g apart, %g without error feedback", bits, most, drift);
    }
}

/* Codes from anywhere give some value. */
static void test_any_bytes(void **state)
{
    unsigned char wire[800];
    float sum[200];
    for (uint32_t round = 0; round < 200; round++)
        for (int b = 0; b < 4; b++) {
            for (uint32_t k = 0; k < sizeof wire; k++)
                wire[k] = (unsigned char)(int)(127 * test_number(round, k));
            memset(sum, 0, sizeof sum);
            trek_compress_add(wire, (int64_t)round, all_bits[b], 1, sum);
            for (uint32_t i = round; i < 200; i++)
                assert_true(sum[i] == 0);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bytes), cmocka_unit_test(test_sent), cmocka_unit_test(test_odd_values),
            cmocka_unit_test(test_error_feedback), cmocka_unit_test(test_any_bytes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
