/* SPDX-License-Identifier: Apache-2.0 */
/* Products by the BLAS that TREK_BLAS names. TREK_TEST_BLAS says which one that is: the stand-in of this folder, one that
 * cannot be used, one of the machine's, which need not be there, or that products are computed by tiles instead. */
#include <dlfcn.h>

#include "tensor/cpu/products/gemm.h"
#include "tests/support/unit.h"
#include "trek.h"

static int warnings, served;

static void count_message(trek_log_level level, const char *message, void *arg)
{
    warnings += level == TREK_LOG_LEVEL_WARNING && strstr(message, "is not used") != NULL;
    served += level == TREK_LOG_LEVEL_INFO && strstr(message, "are computed by the BLAS") != NULL;
}

static bool role(const char *name)
{
    const char *text = getenv("TREK_TEST_BLAS");
    return text && strcmp(text, name) == 0;
}

static int stand_in(const char *function)
{
    void *library = dlopen(getenv("TREK_BLAS"), RTLD_NOW | RTLD_LOCAL), *address = dlsym(library, function);
    assert_non_null(address);
    int (*call)(void);
    memcpy(&call, &address, sizeof call);
    int result = call();
    dlclose(library);
    return result;
}

/* A product whose operands are multiples of 1/8, so that every way gives the same sums in f64, and in f32 all but the same. */
typedef struct product {
    int64_t m, n, k;
    bool transpose_a, transpose_b, transpose_c, accumulate, bias;
    trek_activation activation;
    int64_t wider;   /* by so many elements than their rows are A, B and C in memory */
} product;

static float number(int64_t i) { return (float)((i * 37 + i / 11) % 33 - 16) / 8; }

static float *numbers(int64_t count)
{
    float *x = malloc((size_t)count * sizeof *x);
    assert_non_null(x);
    for (int64_t i = 0; i < count; i++)
        x[i] = number(i);
    return x;
}

static void set_strides(trek_gemm *g, const product *p)
{
    g->a_row = p->transpose_a ? 1 : p->k + p->wider, g->a_col = p->transpose_a ? p->m + p->wider : 1;
    g->b_row = p->transpose_b ? 1 : p->n + p->wider, g->b_col = p->transpose_b ? p->k + p->wider : 1;
    g->c_row = p->transpose_c ? 1 : p->n + p->wider, g->c_col = p->transpose_c ? p->m + p->wider : 1;
}

/* Compares C, and what was before the activation, with plain sums. */
static void check_sums(const trek_gemm *g, const product *p, const float *before)
{
    const float *a = g->a, *b = g->b, *bias = g->bias, *c = g->c, *pre = g->pre;
    for (int64_t i = 0; i < g->m; i += 7)
        for (int64_t j = 0; j < g->n; j += j < 40 ? 1 : 13) {
            double sum = 0;
            int64_t place = i * g->c_row + j * g->c_col;
            for (int64_t q = 0; q < g->k; q++)
                sum += (double)a[i * g->a_row + q * g->a_col] * (double)b[q * g->b_row + j * g->b_col];
            sum += (p->accumulate ? (double)before[place] : 0) + (bias ? (double)bias[j] : 0);
            if (pre)
                assert_true(fabs((double)pre[place] - sum) <= 1e-3);
            if (g->activation == TREK_ACTIVATION_RELU)
                sum = sum < 0 ? 0 : sum;
            else if (g->activation == TREK_ACTIVATION_GELU)
                sum = 0.5 * sum * erfc(-sum * 0.70710678118654752);
            assert_true(fabs((double)c[place] - sum) <= 1e-3);
        }
}

static void run_product(const product *p)
{
    int64_t size = (p->m + p->n + p->k + p->wider) * (p->m + p->n + p->k + p->wider);
    trek_gemm g = { .m = p->m, .n = p->n, .k = p->k, .accumulate = p->accumulate, .activation = p->activation, .bias_col = 1 };
    set_strides(&g, p);
    float *before = numbers(size), *c = numbers(size), *pre = numbers(size);
    g.a = numbers(size), g.b = numbers(size), g.c = c, g.bias = p->bias ? numbers(p->n) : NULL;
    g.pre = p->activation == TREK_ACTIVATION_GELU ? pre : NULL;
    for (int64_t i = 0; !p->accumulate && i < size; i++)
        c[i] = NAN; /* must not be read */
    assert_int_equal(TREK_ISA_NAME(trek_gemm_f32)(&g), TREK_OK);
    check_sums(&g, p, before);
    for (int64_t i = 0; p->wider > 0 && i < p->m; i++) /* nor written beyond its rows */
        assert_true(p->accumulate || isnan(c[i * g.c_row + p->n * g.c_col]) || g.c_col != 1);
    free((void *)(uintptr_t)g.a), free((void *)(uintptr_t)g.b), free((void *)(uintptr_t)g.bias);
    free(before), free(c), free(pre);
}

static void large_products_are_right(void **state)
{
    static const product products[] = {
        { .m = 400, .n = 400, .k = 410 },
        { .m = 701, .n = 411, .k = 233, .transpose_b = true, .bias = true, .activation = TREK_ACTIVATION_RELU },
        { .m = 97, .n = 1003, .k = 690, .transpose_a = true, .wider = 3 },
        { .m = 410, .n = 430, .k = 390, .transpose_a = true, .transpose_b = true, .accumulate = true, .wider = 1 },
        { .m = 533, .n = 450, .k = 300, .transpose_c = true, .transpose_b = true },
        { .m = 400, .n = 500, .k = 350, .bias = true, .activation = TREK_ACTIVATION_GELU, .wider = 5 },
    };
    for (size_t k = 0; k < sizeof products / sizeof *products; k++) {
        int before = role("stand-in") ? stand_in("stand_in_calls") : 0;
        run_product(&products[k]);
        if (role("stand-in"))
            assert_true(stand_in("stand_in_calls") > before);
    }
    assert_int_equal(warnings, role("refused"));
    assert_int_equal(served, !role("refused") && !role("tiles"));
}

static void it_uses_one_thread(void **state)
{
    if (role("stand-in"))
        assert_int_equal(stand_in("stand_in_threads"), 1);
}

/* Small ones, and operands that no BLAS takes: broadcast rows, steps within a row. */
static void other_products_are_our_own(void **state)
{
    static const product small[] = { { .m = 63, .n = 1200, .k = 1200 }, { .m = 1200, .n = 1200, .k = 63 },
                                     { .m = 300, .n = 300, .k = 300 } };
    int before = role("stand-in") ? stand_in("stand_in_calls") : 0;
    for (size_t k = 0; k < sizeof small / sizeof *small; k++)
        run_product(&small[k]);
    enum { N = 448 };
    trek_gemm g = { .m = N, .n = N, .k = N, .a_row = 0, .a_col = 1, .b_row = 2 * N, .b_col = 2, .c_row = N, .c_col = 1 };
    float *a = numbers(N), *b = numbers(2 * N * N), *c = numbers(N * N);
    g.a = a, g.b = b, g.c = c;
    assert_int_equal(TREK_ISA_NAME(trek_gemm_f32)(&g), TREK_OK);
    check_sums(&g, &small[0], c);
    free(a), free(b), free(c);
    if (role("stand-in"))
        assert_int_equal(stand_in("stand_in_calls"), before);
}

/* What is not a number stays in its row and its column. */
static void special_values_spread_as_they_must(void **state)
{
    enum { N = 448 };
    trek_gemm g = { .m = N, .n = N, .k = N, .a_row = N, .a_col = 1, .b_row = N, .b_col = 1, .c_row = N, .c_col = 1 };
    double *a = calloc(N * N, sizeof *a), *b = calloc(N * N, sizeof *b), *c = calloc(N * N, sizeof *c);
    assert_true(a && b && c);
    a[3 * N + 5] = NAN, a[7 * N + 5] = INFINITY;
    b[5 * N + 9] = 2;
    g.a = a, g.b = b, g.c = c;
    assert_int_equal(TREK_ISA_NAME(trek_gemm_f64)(&g), TREK_OK);
    for (int i = 0; i < N; i++)
        for (int j = 0; j < N; j++)
            assert_true(i == 3 || (i == 7 && j != 9) ? isnan(c[i * N + j]) : c[i * N + j] == (i == 7 ? (double)INFINITY : 0));
    free(a), free(b), free(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(large_products_are_right), cmocka_unit_test(it_uses_one_thread),
        cmocka_unit_test(other_products_are_our_own), cmocka_unit_test(special_values_spread_as_they_must),
    };
    trek_log_set(TREK_LOG_LEVEL_INFO, count_message, NULL);
    if (role("installed")) {
        run_product(&(product){ .m = 416, .n = 416, .k = 416 });
        if (warnings > 0)
            return 77; /* not on this machine */
    }
    return cmocka_run_group_tests_name("blas", tests, NULL, NULL);
}
