/* SPDX-License-Identifier: Apache-2.0 */
/* Products of a GPU: what cuBLASLt is told about addresses, and how many runs it takes to choose among its algorithms. On
 * TREK_TEST_DEVICE, a GPU; on the CPU there is nothing to test. */
#include "tensor/op.h"
#include "tensor/products_way.h"
#include "tensor/tensor_internal.h"
#include "tests/support/support.h"
#include "tests/support/unit.h"

static trek_device gpu;

/* The functions of the fake runtime, all or none. */
static struct {
    unsigned (*asked)(int what);
    void (*fail_at)(const char *specification);
    long (*calls)(const char *function);
} fake;

static bool find_fakes(void)
{
    const char *blas = getenv("TREK_CUBLASLT_LIBRARY");
    void *addresses[3] = { test_fake("trek_fake_asked"), test_fake("trek_fake_fail"), test_fake("trek_fake_calls") };
    memcpy(&fake.asked, &addresses[0], sizeof fake.asked);
    memcpy(&fake.fail_at, &addresses[1], sizeof fake.fail_at);
    memcpy(&fake.calls, &addresses[2], sizeof fake.calls);
    return addresses[0] && addresses[1] && addresses[2] && !(blas && strncmp(blas, "/nowhere/", 9) == 0);
}

static trek_tensor *ones(int64_t rows, int64_t columns)
{
    trek_tensor *t = trek_tensor_full(trek_dims(rows, columns), 1, TREK_F32, gpu);
    assert_non_null(t);
    return t;
}

static void assert_all(trek_tensor *t, float expected)
{
    trek_tensor *here = trek_tensor_to(t, trek_cpu(0));
    assert_non_null(here);
    for (int64_t k = 0; k < trek_tensor_numel(here); k++)
        assert_true(((const float *)here->data)[k] == expected);
    trek_tensor_release(here);
}

/* x [m, k] times y [k, n], of ones; x begins `skip` elements into its memory. */
static void multiply_ones(int64_t m, int64_t k, int64_t n, int64_t skip)
{
    trek_tensor *all = ones(1, m * k + skip), *y = ones(k, n);
    const int64_t sizes[2] = { m, k }, strides[2] = { k, 1 };
    trek_tensor *x = trek_tensor_make_view(all, (char *)((float *)all->data + skip), 2, sizes, strides);
    assert_non_null(x);
    trek_tensor *c = trek_tensor_matmul(x, y);
    assert_non_null(c);
    assert_all(c, (float)k);
    trek_tensor *tensors[] = { c, x, y, all };
    for (int i = 0; i < 4; i++)
        trek_tensor_release(tensors[i]);
}

/* The whole alignment of each address, and no more than that: the fake library compares it with the address of each product.
 * Its A is y. */
static void alignments_are_those_of_the_addresses(void **state)
{
    static const struct {
        int64_t skip;
        unsigned alignment;
    } cases[] = { { 0, 256 }, { 32, 128 }, { 4, 16 }, { 8, 32 }, { 1, 4 }, { 64, 256 }, { 16, 64 } };
    if (!find_fakes())
        skip();
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        multiply_ones(24, 32, 40, cases[c].skip);
        if (cases[c].alignment == 256 && c > 0)
            continue; /* the algorithm has been chosen */
        assert_int_equal(fake.asked(0), 256);
        assert_int_equal(fake.asked(1), cases[c].alignment);
        assert_int_equal(fake.asked(2), 256);
        assert_int_equal(fake.asked(3), 256);
    }
}

/* Slow candidates have two runs, one that warms up and one that shows that they are slow; the others have three more. */
static void slow_candidates_are_dropped(void **state)
{
    enum { SLOW = 6, CANDIDATES = 3 + SLOW };
    if (!find_fakes())
        skip();
    fake.fail_at("cublasLtMatmul:1000000");
    setenv("TREK_FAKE_CUBLASLT_SLOW", "6", 1);
    long before = fake.calls("cublasLtMatmul");
    multiply_ones(104, 112, 120, 0);
    long calls = fake.calls("cublasLtMatmul") - before;
    unsetenv("TREK_FAKE_CUBLASLT_SLOW");
    assert_int_equal(fake.asked(4), 24);
    assert_true(calls > 3 + 2 && calls <= 2 * CANDIDATES + 3 * 3 + 1);
    before = fake.calls("cublasLtMatmul");
    multiply_ones(104, 112, 120, 0);
    assert_int_equal(fake.calls("cublasLtMatmul") - before, 1); /* the choice is kept */
    fake.fail_at(NULL);
}

/* With products that are fixed nothing is timed, also what was timed before. It lasts for the process, so it comes last. */
static void fixed_products_are_not_timed(void **state)
{
    if (!find_fakes())
        skip();
    fake.fail_at("cublasLtMatmul:1000000"); /* calls are counted while a failure is asked for */
    multiply_ones(101, 112, 120, 0);
    trek_products_fix();
    assert_true(trek_products_are_fixed());
    for (int k = 0; k < 2; k++) {
        long before = fake.calls("cublasLtMatmul");
        multiply_ones(101, 112, 120, 0);
        assert_int_equal(fake.calls("cublasLtMatmul") - before, 1);
    }
    long before = fake.calls("cublasLtMatmul");
    multiply_ones(105, 112, 120, 0);
    assert_int_equal(fake.calls("cublasLtMatmul") - before, 1);
    fake.fail_at(NULL);
}

/* 1 + 2^-14 and 1 + 2^-9 times 1: f32 keeps both, TF32's 11 bits the second one, bf16's 8 bits none. */
static void products_of_f32_are_as_exact_as_is_set(void **state)
{
    static const float kept[][2] = { { 1 + 0x1p-14f, 1 + 0x1p-9f }, { 1, 1 + 0x1p-9f }, { 1, 1 } };
    if (!find_fakes())
        skip();
    for (int precision = TREK_MATMUL_PRECISION_HIGHEST; precision <= TREK_MATMUL_PRECISION_MEDIUM; precision++)
        for (int q = 0; q < 2; q++) {
            trek_tensor *x = trek_tensor_full(trek_dims(32, 1), (double)kept[0][q], TREK_F32, gpu), *y = ones(1, 48);
            assert_int_equal(trek_matmul_precision_set((trek_matmul_precision)precision), TREK_OK);
            trek_tensor *c = trek_tensor_matmul(x, y);
            assert_int_equal(trek_matmul_precision_set(TREK_MATMUL_PRECISION_HIGHEST), TREK_OK);
            assert_non_null(c);
            assert_all(c, kept[precision][q]);
            trek_tensor_release(c), trek_tensor_release(x), trek_tensor_release(y);
        }
}

static int set_up(void **state)
{
    gpu = test_device();
    return 0;
}

int main(void)
{
    if (test_on_cpu()) {
        printf("TREK_TEST_DEVICE names no GPU: nothing to test here\n[  SKIPPED ] 1 test(s).\n");
        return 77;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(alignments_are_those_of_the_addresses),
        cmocka_unit_test(slow_candidates_are_dropped),
        cmocka_unit_test(products_of_f32_are_as_exact_as_is_set),
        cmocka_unit_test(fixed_products_are_not_timed),
    };
    return cmocka_run_group_tests_name("products of a GPU", tests, set_up, NULL);
}
