/* SPDX-License-Identifier: Apache-2.0 */
/* 8-bit products of linear layers: the formats bit by bit, products and gradients against f64, the record of magnitudes, what
 * stays in bf16, modes, states, refused calls. */
#include "autograd/autocast.h"
#include "autograd/ops.h"
#include "autograd/var_internal.h"
#include "nn/fp8.h"
#include "nn/layers.h"
#include "nn/module_internal.h"
#include "nn/module_tree.h"
#include "nn/recompute.h"
#include "nn/state.h"
#include "nn/state_modules.h"
#include "tensor/fp8.h"
#include "tests/nn/values.h"
#include "tests/support/fp8.h"
#include "tests/support/scoped.h"
#include "tests/support/support.h"

static uint32_t bits_of(double x)
{
    float narrow = (float)x;
    uint32_t bits;
    memcpy(&bits, &narrow, sizeof bits);
    return bits;
}

/* --- the formats ------------------------------------------------------------------------------- */

/* A record that asks for a scale of 1: the largest number of the format. */
static trek_var *scale_of_one(int format)
{
    const double row[2] = { 0, (double)bits_of(format == TREK_E5M2 ? 57344 : 448) };
    return trek_var_from(test_values(row, trek_dims(1, 2), TREK_I32));
}

static uint64_t digest_of(trek_var *x, int format)
{
    trek_attrs attrs = { .i = { format, 0, 0, 0 } };
    trek_var *outs[3];
    fine(trek_apply_many(&trek_ops[TREK_OP_fp8_quantise], (trek_var *[]){ x, scale_of_one(format) }, 2, &attrs, outs, 3));
    double *codes = read_of(outs[0]);
    uint64_t digest = 0xcbf29ce484222325u; /* FNV-1a */
    for (int64_t i = 0; i < trek_var_numel(outs[0]); i++)
        digest = (digest ^ (uint64_t)codes[i]) * 0x100000001b3u;
    free(codes);
    return digest;
}

/* Every bf16, and f32 around every tie and with a sparse pattern of bits: the digests are those of the casts of another library
 * (ml_dtypes 0.5 under NumPy, of values clamped to the format; what is not finite NaN). */
static void test_formats(void **state)
{
    static const uint64_t expected[2][2] = { { 0x6a3fbaa9cb61df95u, 0xff398b9d4ba7d9e5u },
                                               { 0xe4fc47f9506e7885u, 0xee3c4c604519c1a5u } };
    enum { ALL = 65536, SPARSE = 1 << 18 };
    uint16_t *half = malloc(ALL * sizeof *half);
    float *sparse = malloc(SPARSE * sizeof *sparse);
    assert_true(half && sparse);
    for (int i = 0; i < ALL; i++)
        half[i] = (uint16_t)i;
    for (uint32_t i = 0; i < SPARSE; i++)
        sparse[i] = test_float_of((i >> 4) << 18 | (i & 15) * 0x1249u % 0x40000u);
    trek_scope scope = trek_scope_begin();
    trek_var *x = trek_var_from(trek_tensor_from_data(half, trek_dims(256, 256), TREK_BF16, test_device()));
    trek_var *y = trek_var_from(trek_tensor_from_data(sparse, trek_dims(512, 512), TREK_F32, test_device()));
    for (int format = 0; format < 2; format++) {
        uint64_t got[2] = { digest_of(x, format), digest_of(y, format) };
        for (int k = 0; k < 2; k++)
            if (got[k] != expected[format][k])
                fail_msg("format %d, kind %d: digest %llx", format, k, (unsigned long long)got[k]);
    }
    trek_scope_end(scope);
    free(half);
    free(sparse);
}

/* --- products and gradients ---------------------------------------------------------------------- */

/* Each number as its code says, with the scale of the tensor's own magnitude, or of `magnitude` where that is above 0. */
static void round_to(bool e5m2, double *x, int64_t n, double magnitude)
{
    for (int64_t i = 0; magnitude <= 0 && i < n; i++)
        magnitude = fmin(magnitude, -fabs(x[i]));
    double scale = test_fp8_scale(e5m2, fabs(magnitude), 0);
    for (int64_t i = 0; i < n; i++)
        x[i] = test_fp8_number(e5m2, test_fp8_nearest(e5m2, x[i] * scale)) / scale;
}

/* out [m, n] = a [m, k] b [n, k]^T, by steps of any size */
static void multiply(const double *a, int64_t a_row, int64_t a_col, const double *b, int64_t b_row, int64_t b_col, int64_t m,
                     int64_t n, int64_t k, double *out)
{
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j++) {
            out[i * n + j] = 0;
            for (int64_t l = 0; l < k; l++)
                out[i * n + j] += a[i * a_row + l * a_col] * b[j * b_row + l * b_col];
        }
}

static void expect_close(trek_var *got, const double *expected, int64_t n, double relative, const char *what)
{
    double *values = read_of(got), most = 0;
    for (int64_t i = 0; i < n; i++)
        most = fmax(most, fabs(expected[i]));
    for (int64_t i = 0; i < n; i++)
        if (!(fabs(values[i] - expected[i]) <= relative * most))
            fail_msg("%s[%lld] is %g, should be %g", what, (long long)i, values[i], expected[i]);
    free(values);
}

typedef struct layer_case {
    int64_t rows, in, out;
    bool bias;
    trek_dtype x, weight;
} layer_case;

static trek_var *leaf(uint32_t stream, trek_shape shape, trek_dtype dtype)
{
    trek_tensor *wide = test_tensor(stream, shape, 1.5), *cast = trek_tensor_cast(wide, dtype);
    trek_tensor_release(wide);
    trek_var *var = trek_var_new(cast, true);
    trek_tensor_release(cast);
    assert_non_null(var);
    return var; /* to be released */
}

static trek_status drop_grad(const char *name, trek_var *param, void *arg)
{
    trek_var_zero_grad(param);
    return TREK_OK;
}

static void round_to_half(double *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        uint32_t bits = bits_of(x[i]);
        x[i] = (double)test_float_of((bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000u);
    }
}

/* As if an optimizer had stepped. */
static void write_weight(trek_module *m)
{
    trek_tensor_bump(trek_var_data(trek_module_find(m, "weight")));
}

/* A first step of bf16 operands, from whose magnitudes the second has its scales. */
static void run_layer(const layer_case *c, bool first)
{
    enum { MOST = 64 * 64 };
    static double y[MOST], dx[MOST], dw[MOST], db[64];
    int64_t rows = c->rows, in = c->in, out = c->out;
    trek_scope scope = trek_scope_begin();
    trek_module *m = trek_nn_linear_with(&(trek_linear_opts){ .in = in, .out = out, .no_bias = !c->bias, .dtype = c->weight,
                                                              .device = test_device() });
    fine(trek_fp8_enable(m, NULL));
    trek_var *x = leaf(5, rows % 2 ? trek_dims(rows, in) : trek_dims(2, rows / 2, in), c->x);
    trek_tensor *cotangent = test_tensor(6, trek_dims(rows * out), 1e-3); /* small, as gradients are */
    trek_var *result = NULL, *g = NULL;
    for (int step = 0; step < (first ? 1 : 2); step++) {
        trek_module_each_param(m, drop_grad, NULL);
        trek_var_zero_grad(x);
        write_weight(m);
        trek_autocast_begin(TREK_BF16);
        result = trek_forward(m, x);
        trek_autocast_end();
        if (!result)
            fail_msg("%s", trek_error());
        assert_int_equal(trek_var_dtype(result), TREK_BF16);
        g = trek_cast(trek_reshape(trek_var_constant(cotangent), trek_var_shape(result)), TREK_BF16);
        fine(trek_backward_with(result, g, NULL));
    }
    double *rx = read_of(x), *rw = read_of(trek_module_find(m, "weight")), *rg = read_of(g);
    double *bias = c->bias ? read_of(trek_cast(trek_module_find(m, "bias"), TREK_BF16)) : NULL;
    for (int64_t o = 0; o < out; o++) {
        db[o] = 0;
        for (int64_t r = 0; r < rows; r++)
            db[o] += rg[r * out + o];
    }
    if (first) {
        round_to_half(rx, rows * in);
        round_to_half(rw, out * in);
    } else {
        round_to(false, rx, rows * in, 0);
        round_to(false, rw, out * in, 0);
        round_to(true, rg, rows * out, 0);
    }
    multiply(rx, in, 1, rw, in, 1, rows, out, in, y);
    for (int64_t i = 0; i < rows * out && bias; i++)
        y[i] += bias[i % out];
    multiply(rg, out, 1, rw, 1, in, rows, in, out, dx);
    multiply(rg, 1, out, rx, 1, in, out, in, rows, dw);
    expect_close(result, y, rows * out, 0x1p-8, "the result");
    expect_close(trek_var_grad(x), dx, rows * in, c->x == TREK_BF16 ? 0x1p-8 : 1e-6, "dx");
    expect_close(trek_var_grad(trek_module_find(m, "weight")), dw, out * in, c->weight == TREK_BF16 ? 0x1p-8 : 1e-6, "dweight");
    if (bias)
        expect_close(trek_var_grad(trek_module_find(m, "bias")), db, out, 0x1p-7, "dbias");
    free(rx), free(rw), free(rg), free(bias);
    trek_tensor_release(cotangent);
    trek_var_release(x);
    trek_module_free(&m);
    trek_scope_end(scope);
}

static void test_products(void **state)
{
    static const layer_case cases[] = {
        { 16, 32, 48, true, TREK_F32, TREK_F32 },  { 1, 16, 16, true, TREK_BF16, TREK_F32 },
            { 3, 48, 16, false, TREK_F32, TREK_F32 },
        { 32, 16, 64, false, TREK_BF16, TREK_BF16 }, { 10, 64, 32, true, TREK_F32, TREK_BF16 },
    };
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++)
        for (int first = 0; first < 2; first++)
            run_layer(&cases[k], first);
}

/* --- the record -------------------------------------------------------------------------------------- */

static trek_module *layer_with(int64_t history)
{
    trek_seed(11);
    trek_module *m = trek_nn_linear(16, 32, test_device());
    assert_non_null(m);
    fine(trek_fp8_enable(m, &(trek_fp8_opts){ .history = history }));
    return m;
}

static void expect_row(trek_module *m, int role, const double *expected, int n)
{
    double *rows = read_of(trek_module_find(m, "fp8_amax"));
    for (int k = 0; k < n; k++)
        if (rows[role * n + k] != (double)bits_of(expected[k]))
            fail_msg("role %d, place %d: %g, should be %g", role, k, (double)test_float_of((uint32_t)rows[role * n + k]),
                     expected[k]);
    free(rows);
}

/* y of an input of which element k is `large`, the others small; of which nothing goes back. */
static double *forward(trek_module *m, double large)
{
    double values[4 * 16];
    for (int i = 0; i < 64; i++)
        values[i] = 0.01 * (i % 7 - 3);
    values[20] = large;
    trek_no_grad_begin();
    trek_autocast_begin(TREK_BF16);
    trek_var *y = trek_forward(m, numbers(values, trek_dims(4, 16)));
    trek_autocast_end();
    trek_no_grad_end();
    return read_of(y);
}

static void test_record(void **state)
{
    trek_module *m = layer_with(3);
    free(forward(m, 2));
    free(forward(m, 4)); /* the same step */
    expect_row(m, TREK_FP8_INPUT, (double[]){ 4, 0, 0, 0 }, 4);
    write_weight(m);
    free(forward(m, 1));
    expect_row(m, TREK_FP8_INPUT, (double[]){ 1, 4, 0, 0 }, 4);
    write_weight(m);
    double *y = forward(m, INFINITY), *again;
    assert_true(isnan(y[32])); /* what is not finite is seen in its row, and there alone */
    assert_true(isfinite(y[0]));
    free(y);
    write_weight(m);
    free(forward(m, 0.5));
    expect_row(m, TREK_FP8_INPUT, (double[]){ 0.5, 0, 1, 4 }, 4);
    double *weight = read_of(trek_module_find(m, "weight")), most = 0;
    for (int i = 0; i < 16 * 32; i++)
        most = fmax(most, fabs(weight[i]));
    free(weight);
    expect_row(m, TREK_FP8_WEIGHT, (double[]){ most, most, most, most }, 4);
    expect_row(m, TREK_FP8_GRAD, (double[]){ 0, 0, 0, 0 }, 4);
    fine(trek_module_train(m, false)); /* 1000 saturates at what 4 allows: 448 / 64 = 7 */
    y = forward(m, 1000);
    again = forward(m, 7);
    for (int i = 0; i < 4 * 32; i++)
        assert_true(y[i] == again[i]);
    expect_row(m, TREK_FP8_INPUT, (double[]){ 0.5, 0, 1, 4 }, 4);
    free(y), free(again);
    trek_module_free(&m);
}

/* A step's input is rounded by what came before it: by hand, of two steps. */
static void test_delay(void **state)
{
    trek_module *delayed = layer_with(2), *own = layer_with(TREK_OFF), *plain = layer_with(2);
    assert_null(trek_module_find(own, "fp8_amax"));
    fine(trek_fp8_disable(plain));
    double *first = forward(delayed, 2), *same = forward(plain, 2);
    for (int i = 0; i < 128; i++)
        assert_true(first[i] == same[i]); /* nothing is known yet */
    write_weight(delayed);
    double *second = forward(delayed, 300), *other = forward(own, 300), *clipped = forward(own, 3.5);
    assert_true(fabs(second[32] - clipped[32]) < 0.05 * fabs(clipped[32]) + 0.05); /* 448 / 128 */
    assert_true(fabs(other[32] - clipped[32]) > 10 * fabs(clipped[32]));
    free(first), free(same), free(second), free(other), free(clipped);
    trek_module_free(&delayed);
    trek_module_free(&own);
    trek_module_free(&plain);
}

/* A layer whose gradient is 0 at first, as behind one that begins with zeros, stays in bf16 until it has seen one; run again in
 * backward or not. */
static void test_waits_for_gradients(void **state)
{
    for (int again = 0; again < 2; again++) {
        trek_scope scope = trek_scope_begin();
        trek_module *m = layer_with(4), *plain = layer_with(4);
        fine(trek_fp8_disable(plain));
        trek_tensor *values = test_tensor(3, trek_dims(5, 16), 1);
        trek_var *x = trek_var_constant(values);
        trek_tensor_release(values);
        for (int step = 0; step < 4; step++) {
            write_weight(m);
            trek_autocast_begin(TREK_BF16);
            trek_var *y = again ? trek_forward_recomputed(m, &x, 1) : trek_forward(m, x), *z = trek_forward(plain, x);
            trek_autocast_end();
            assert_true(y && z);
            assert_true(test_same_bits(trek_var_data(y), trek_var_data(z)) == (step < 3));
            trek_tensor *seed = trek_tensor_full(trek_dims(5, 32), step == 2 ? 0.1 : 0, TREK_BF16, test_device());
            fine(trek_backward_with(y, trek_var_from(seed), NULL));
        }
        trek_module_free(&m);
        trek_module_free(&plain);
        trek_scope_end(scope);
    }
}

/* --- what stays as it was ------------------------------------------------------------------------------- */

static void expect_same_forward(int64_t in, int64_t out, trek_dtype dtype, trek_dtype cast, int64_t rows, bool differs)
{
    trek_scope scope = trek_scope_begin();
    trek_linear_opts opts = { .in = in, .out = out, .dtype = dtype, .device = test_device() };
    trek_module *both = trek_nn_sequential(NULL, 0);
    trek_module *m = trek_nn_linear_with(&opts);
    fine(trek_nn_sequential_add(both, m));
    fine(trek_nn_sequential_add(both, trek_nn_linear(16, 16, test_device())));
    trek_tensor *wide = test_tensor(9, trek_dims(rows, in), 1), *narrow = trek_tensor_cast(wide, dtype);
    trek_var *x = trek_var_from(narrow);
    trek_tensor_release(wide);
    trek_autocast_begin(cast);
    trek_var *before = trek_forward(m, x);
    fine(trek_fp8_enable(both, NULL));
    trek_var *first = trek_forward(m, x);
    fine(trek_module_train(both, false));
    trek_var *after = trek_forward(m, x);
    trek_autocast_end();
    assert_true(before && first && after);
    assert_true(test_same_bits(trek_var_data(before), trek_var_data(first))); /* a first step in training */
    assert_int_equal(trek_var_dtype(before), trek_var_dtype(after));
    assert_true(test_same_bits(trek_var_data(before), trek_var_data(after)) != differs);
    trek_module_free(&both);
    trek_scope_end(scope);
}

static void test_stays(void **state)
{
    expect_same_forward(16, 32, TREK_F32, TREK_BF16, 4, true);
    expect_same_forward(20, 32, TREK_F32, TREK_BF16, 4, false);
    expect_same_forward(16, 24, TREK_F32, TREK_BF16, 4, false);
    expect_same_forward(16, 32, TREK_F64, TREK_BF16, 4, false);
    expect_same_forward(16, 32, TREK_F32, TREK_F16, 4, false);
    expect_same_forward(16, 32, TREK_F32, TREK_F32, 4, false);
    expect_same_forward(16, 32, TREK_F32, TREK_BF16, 0, false);
}

/* --- states, and being told -------------------------------------------------------------------------------- */

static void test_states(void **state)
{
    trek_module *m = layer_with(4), *same = layer_with(4), *bare = trek_nn_linear(16, 32, test_device());
    free(forward(m, 3));
    write_weight(m);
    free(forward(m, 2));
    trek_state *saved = trek_state_of(m), *plain = trek_state_of(bare);
    assert_true(saved && plain);
    fine(trek_state_apply(saved, same));
    expect_row(same, TREK_FP8_INPUT, (double[]){ 2, 3, 0, 0, 0 }, 5);
    refuse(trek_state_apply(plain, same), TREK_ERR_ARGUMENT, "fp8_amax");
    fine(trek_state_apply_with(plain, same, &(trek_state_load_opts){ .allow_missing = true }, NULL));
    expect_row(same, TREK_FP8_INPUT, (double[]){ 2, 3, 0, 0, 0 }, 5);
    fine(trek_fp8_disable(same));
    assert_int_equal(same->own->n_buffers, 0);
    fine(trek_state_apply(plain, same));
    fine(trek_fp8_disable(same)); /* once more: nothing to do */
    trek_state_free(&saved);
    trek_state_free(&plain);
    trek_module_free(&m);
    trek_module_free(&same);
    trek_module_free(&bare);
}

static void test_refused(void **state)
{
    trek_module *m = layer_with(4), *odd = trek_nn_linear(17, 32, test_device());
    refuse(trek_fp8_enable(NULL, NULL), TREK_ERR_ARGUMENT, "module");
    refuse(trek_fp8_disable(NULL), TREK_ERR_ARGUMENT, "module");
    refuse(trek_fp8_enable(odd, NULL), TREK_ERR_ARGUMENT, "multiples of 16");
    refuse(trek_fp8_enable(m, &(trek_fp8_opts){ .history = -2 }), TREK_ERR_ARGUMENT, ".history: -2");
    refuse(trek_fp8_enable(m, &(trek_fp8_opts){ .history = 65537 }), TREK_ERR_ARGUMENT, ".history: 65537");
    refuse(trek_fp8_enable(m, &(trek_fp8_opts){ .margin = 65 }), TREK_ERR_ARGUMENT, ".margin: 65");
    refuse(trek_fp8_enable(m, NULL), TREK_ERR_STATE, "already keeps 4 steps, not 16");
    fine(trek_fp8_enable(m, &(trek_fp8_opts){ .history = 4, .margin = 2 }));
    assert_int_equal(m->own->n_buffers, 1);
    trek_scope scope = trek_scope_begin();
    trek_autocast_begin(TREK_BF16);
    trek_var *x = leaf(5, trek_dims(4, 16), TREK_F32), *y = trek_forward(m, x);
    trek_autocast_end();
    assert_non_null(y);
    refuse(trek_backward_with(trek_sum(trek_cast(y, TREK_F32), trek_dims_all(), false), NULL,
                              &(trek_backward_opts){ .create_graph = true }),
           TREK_ERR_UNSUPPORTED, "first derivatives");
    trek_var_release(x);
    trek_scope_end(scope);
    trek_module_free(&m);
    trek_module_free(&odd);
}

/* Without memory at any one point: an error, and a layer that is as it was. */
static void test_no_memory(void **state)
{
    trek_module *m = trek_nn_sequential(NULL, 0);
    fine(trek_nn_sequential_add(m, trek_nn_linear(16, 16, test_device())));
    fine(trek_nn_sequential_add(m, trek_nn_linear(16, 32, test_device())));
    trek_status status = TREK_ERR_MEMORY;
    int failures = 0;
    for (int64_t k = 1; status == TREK_ERR_MEMORY; k++) {
        trek_memory_release_cached(trek_cpu(0));
        test_allocator_restart(k);
        test_memory.fail_count = 1 << 20; /* one that fails is asked for again */
        status = trek_fp8_enable(m, &(trek_fp8_opts){ .history = 60000 }); /* no cache has such blocks */
        test_allocator_restart(0);
        test_memory.fail_count = 0;
        trek_error_clear();
        failures += status != TREK_OK;
        if (status != TREK_OK)
            assert_null(trek_module_find(m, "0.fp8_amax"));
        else
            assert_non_null(trek_module_find(m, "1.fp8_amax"));
    }
    fine(status);
    assert_true(failures > 0);
    trek_module_free(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_formats), cmocka_unit_test(test_products), TEST(test_record),
        TEST(test_delay), cmocka_unit_test(test_waits_for_gradients), cmocka_unit_test(test_stays),
        TEST(test_states), cmocka_unit_test(test_refused), cmocka_unit_test(test_no_memory),
    };
    return test_allocator_use() == TREK_OK ? cmocka_run_group_tests(tests, NULL, NULL) : 1;
}
