/* SPDX-License-Identifier: Apache-2.0 */
/* Reductions, norms, softmax, embedding and losses of a GPU against the CPU's, at
 * sizes that reach every way through their kernels (the op suite's are small):
 * teams of every width, vectors and single elements, rows too long for registers,
 * splits over blocks. Each call is made twice and must give the same bits. On
 * TREK_TEST_DEVICE, a GPU; on the CPU there is nothing to compare. */
#include "tensor/op.h"
#include "tensor/op_opts.h"
#include "tests/support/support.h"
#include "tests/support/unit.h"

#define MOST 8

static trek_device gpu;
static const trek_dtype floats[] = { TREK_F32, TREK_BF16, TREK_F64, TREK_F16 };
static int n_floats = 4; /* with TREK_TEST_SHORT: the first two */

/* Values of a stream on the CPU. */
static trek_tensor *numbers(uint32_t stream, trek_shape shape, trek_dtype dtype, double scale, double offset)
{
    int64_t n = 1;
    for (int d = 0; d < shape.ndim; d++)
        n *= shape.sizes[d];
    double *values = malloc((size_t)(n + 1) * sizeof *values);
    assert_non_null(values);
    for (int64_t k = 0; k < n; k++)
        values[k] = scale * (double)test_number(stream, (uint32_t)k) + offset;
    trek_tensor *wide = trek_tensor_from_data(values, shape, TREK_F64, trek_cpu(0)), *t = trek_tensor_cast(wide, dtype);
    assert_non_null(t);
    trek_tensor_release(wide);
    free(values);
    return t;
}

static trek_tensor *integers(uint32_t stream, trek_shape shape, int64_t limit, bool skewed)
{
    int64_t n = 1;
    for (int d = 0; d < shape.ndim; d++)
        n *= shape.sizes[d];
    int64_t *values = malloc((size_t)(n + 1) * sizeof *values);
    assert_non_null(values);
    for (int64_t k = 0; k < n; k++) {
        double u = ((double)test_number(stream, (uint32_t)k) + 1) / 2;
        values[k] = (int64_t)((skewed ? u * u * u * u : u) * (double)limit);
    }
    trek_tensor *t = trek_tensor_from_data(values, shape, TREK_I64, trek_cpu(0));
    assert_non_null(t);
    free(values);
    return t;
}

/* from: the dtype of what it was computed from, which is computed in f32 but for f64 */
static void check_close(const char *label, int output, const trek_tensor *want, const trek_tensor *got, trek_dtype from)
{
    double *a = test_read(want), *b = test_read(got), most = 0;
    assert_true(a && b);
    int64_t n = trek_tensor_numel(want);
    trek_dtype dtype = trek_tensor_dtype(want);
    double tolerance = dtype == TREK_F64    ? from == TREK_F64 ? 1e-11 : 2e-5
                       : dtype == TREK_F32  ? 2e-5
                       : dtype == TREK_BF16 ? 0.009
                       : dtype == TREK_F16  ? 0.002
                                            : 0;
    for (int64_t k = 0; k < n; k++)
        most = fabs(a[k]) > most && isfinite(a[k]) ? fabs(a[k]) : most;
    for (int64_t k = 0; k < n; k++)
        if (!(fabs(a[k] - b[k]) <= tolerance * most || a[k] == b[k]))
            fail_msg("%s, output %d, element %lld of %lld: %.9g, should be %.9g", label, output, (long long)k, (long long)n,
                     b[k], a[k]);
    free(a);
    free(b);
}

static void run(const char *label, trek_op_call *call)
{
    if (trek_op_run(call) != TREK_OK || trek_device_sync(call->outputs[0]->device) != TREK_OK)
        fail_msg("%s: %s", label, trek_error());
}

/* Runs an op on both; inputs are released. moved: inputs 0 and 1 lie transposed (first two dims) on the device. */
static void compare(const char *label, enum trek_op_id op, trek_attrs attrs, int n, trek_tensor **in, bool moved)
{
    trek_tensor *there[MOST] = { NULL };
    for (int k = 0; k < n; k++)
        if (in[k] && moved && k < 2 && in[k]->ndim >= 2) {
            trek_tensor *turned = trek_tensor_transpose(in[k], 0, 1), *flat = trek_tensor_contiguous(turned);
            trek_tensor *on = trek_tensor_to(flat, gpu);
            there[k] = trek_tensor_transpose(on, 0, 1);
            trek_tensor_release(turned);
            trek_tensor_release(flat);
            trek_tensor_release(on);
            assert_non_null(there[k]);
        } else if (in[k]) {
            there[k] = trek_tensor_to(in[k], gpu);
            if (!there[k])
                fail_msg("%s: %s", label, trek_error());
        }
    trek_op_call calls[3];
    for (int c = 0; c < 3; c++) {
        calls[c] = (trek_op_call){ .op = &trek_ops[op], .n_inputs = n, .inputs = c == 0 ? in : there, .attrs = attrs };
        run(label, &calls[c]);
    }
    for (int k = 0; k < TREK_MAX_OUTPUTS; k++) {
        if (!calls[0].outputs[k])
            continue;
        check_close(label, k, calls[0].outputs[k], calls[1].outputs[k], trek_tensor_dtype(in[0]));
        if (!test_same_bits(calls[1].outputs[k], calls[2].outputs[k]))
            fail_msg("%s, output %d: other bits the second time", label, k);
        for (int c = 0; c < 3; c++)
            trek_tensor_release(calls[c].outputs[k]);
    }
    for (int k = 0; k < n; k++) {
        trek_tensor_release(in[k]);
        trek_tensor_release(there[k]);
    }
}

/* --- reductions ------------------------------------------------------------------------- */

static void reduce(enum trek_op_id op, trek_shape shape, int64_t mask, trek_dtype dtype, bool moved)
{
    trek_attrs a = { { 0 }, { 0 } };
    for (int d = 0; d < shape.ndim; d++)
        if (mask >> d & 1)
            a.i[1 + a.i[0]++] = d;
    a.f[0] = op == TREK_OP_variance;
    char label[120];
    snprintf(label, sizeof label, "%s of [%lld, %lld, ...], dims %lld, %s%s", trek_ops[op].name, (long long)shape.sizes[0],
             (long long)(shape.ndim > 1 ? shape.sizes[1] : 1), (long long)mask, trek_dtype_name(dtype),
             moved ? ", transposed" : "");
    trek_tensor *in[1] = { numbers(3, shape, dtype, 1, op == TREK_OP_variance ? 30 : op == TREK_OP_mean ? 1 : 0) };
    compare(label, op, a, 1, in, moved);
}

static void test_reductions(void **state)
{
    static const enum trek_op_id ops[] = { TREK_OP_sum, TREK_OP_mean, TREK_OP_max, TREK_OP_min, TREK_OP_argmax, TREK_OP_variance,
                                           TREK_OP_logsumexp };
    for (size_t k = 0; k < sizeof ops / sizeof *ops; k++) {
        bool one = ops[k] == TREK_OP_argmax;
        for (int d = 0; d < n_floats; d++) {
            reduce(ops[k], trek_dims(70001), 1, floats[d], false);
            reduce(ops[k], trek_dims(3, 40000), 2, floats[d], false);
            reduce(ops[k], trek_dims(40000, 3), 1, floats[d], false);
        }
        reduce(ops[k], trek_dims(5000, 64), 1, TREK_F32, false);
        reduce(ops[k], trek_dims(64, 5000), 2, TREK_F32, true);
        reduce(ops[k], trek_dims(9000, 40), 2, TREK_F32, false);
        reduce(ops[k], trek_dims(2, 2100, 12), 2, TREK_BF16, false);
        if (!one) {
            reduce(ops[k], trek_dims(7, 33, 65), 5, TREK_F32, false);
            reduce(ops[k], trek_dims(16, 12, 20, 20), 13, TREK_F16, false);
            reduce(ops[k], trek_dims(6, 50, 31), 3, TREK_F64, true);
        }
    }
}

static void sum_along(trek_shape shape, int dim, trek_dtype dtype, bool moved)
{
    trek_attrs a = { { dim }, { 0 } };
    char label[100];
    snprintf(label, sizeof label, "cumsum of %lld x %lld, dim %d, %s", (long long)shape.sizes[0],
             (long long)(shape.ndim > 1 ? shape.sizes[1] : 1), dim, trek_dtype_name(dtype));
    trek_tensor *in[1] = { dtype == TREK_I64 ? integers(9, shape, 50, false) : numbers(9, shape, dtype, 1, 0) };
    compare(label, TREK_OP_cumsum, a, 1, in, moved);
}

static void test_cumulative_sums(void **state)
{
    for (int d = 0; d < n_floats; d++)
        sum_along(trek_dims(40001), 0, floats[d], false);
    sum_along(trek_dims(100003), 0, TREK_I64, false);
    sum_along(trek_dims(3, 20000), 1, TREK_F32, false);
    sum_along(trek_dims(3, 20000), 1, TREK_F32, true);
    sum_along(trek_dims(20000, 5), 0, TREK_I64, false);
    sum_along(trek_dims(300, 70), 1, TREK_BF16, false);
}

/* --- rows -------------------------------------------------------------------------------------- */

static void soft(enum trek_op_id op, trek_shape shape, int dim, trek_dtype dtype, bool moved)
{
    trek_attrs a = { { dim }, { 0 } };
    char label[100];
    snprintf(label, sizeof label, "%s of %lld x %lld, dim %d, %s%s", trek_ops[op].name, (long long)shape.sizes[0],
             (long long)shape.sizes[1],
             dim, trek_dtype_name(dtype), moved ? ", transposed" : "");
    bool two = op == TREK_OP_softmax_backward || op == TREK_OP_log_softmax_backward;
    double offset = op == TREK_OP_softmax_backward ? 0.5 : -3;
    trek_tensor *in[2] = { numbers(1, shape, dtype, 4, 0), two ? numbers(2, shape, dtype, 0.5, offset) : NULL };
    compare(label, op, a, two ? 2 : 1, in, moved);
}

static void test_softmax(void **state)
{
    static const enum trek_op_id ops[] = { TREK_OP_softmax, TREK_OP_log_softmax, TREK_OP_softmax_backward,
                                           TREK_OP_log_softmax_backward };
    static const int64_t lengths[] = { 1, 5, 8, 40, 96, 768, 1000, 1001, 1024, 2048, 5000, 8200, 20000 };
    for (int k = 0; k < 4; k++) {
        for (size_t n = 0; n < sizeof lengths / sizeof *lengths; n++)
            for (int d = 0; d < n_floats; d++)
                soft(ops[k], trek_dims(9, lengths[n]), 1, floats[d], false);
        soft(ops[k], trek_dims(300, 50), 0, TREK_F32, false);
        soft(ops[k], trek_dims(300, 50), 1, TREK_BF16, true);
        soft(ops[k], trek_dims(5000, 3), 0, TREK_F32, false);
    }
}

/* Forward and backward of the three norms, over n columns. */
static void norms(int64_t rows, int64_t n, trek_dtype dtype, trek_dtype weight_dtype, bool moved)
{
    trek_attrs a = { { 1 }, { 1e-5 } };
    trek_shape shape = trek_dims(rows, n);
    trek_dtype wide = dtype == TREK_F64 ? TREK_F64 : TREK_F32;
    char label[100];
    snprintf(label, sizeof label, "norms of %lld x %lld, %s%s", (long long)rows, (long long)n, trek_dtype_name(dtype),
             moved ? ", transposed" : "");
#define X numbers(1, shape, dtype, 2, 0.5)
#define Y numbers(2, shape, dtype, 1, 0)
#define WEIGHT(dtype) numbers(3, trek_dims(n), dtype, 0.5, 1)
#define BIAS numbers(4, trek_dims(n), weight_dtype, 1, 0)
#define MEAN numbers(5, trek_dims(rows), wide, 0.1, 0.5)
#define RSTD numbers(6, trek_dims(rows), wide, 0.1, 0.9)
    compare(label, TREK_OP_layer_norm, a, 3, (trek_tensor *[]){ X, WEIGHT(weight_dtype), BIAS }, moved);
    compare(label, TREK_OP_rms_norm, a, 2, (trek_tensor *[]){ X, WEIGHT(weight_dtype) }, moved);
    compare(label, TREK_OP_add_layer_norm, a, 4,
            (trek_tensor *[]){ X, Y, dtype == weight_dtype ? NULL : WEIGHT(weight_dtype), NULL }, moved);
    compare(label, TREK_OP_layer_norm_backward, a, 5, (trek_tensor *[]){ Y, X, MEAN, RSTD, WEIGHT(weight_dtype) }, moved);
    compare(label, TREK_OP_rms_norm_backward, a, 4, (trek_tensor *[]){ Y, X, RSTD, WEIGHT(weight_dtype) }, moved);
    compare(label, TREK_OP_add_layer_norm_backward, a, 6, (trek_tensor *[]){ Y, numbers(7, shape, dtype, 1, 0), X, MEAN, RSTD,
                                                                             WEIGHT(weight_dtype) }, false);
}

static void test_norms(void **state)
{
    static const int64_t lengths[] = { 1, 4, 8, 40, 96, 768, 1000, 1001, 1024, 1600, 3000, 4096, 9000, 17000 };
    for (size_t k = 0; k < sizeof lengths / sizeof *lengths; k++)
        for (int d = 0; d < n_floats; d++)
            norms(7, lengths[k], floats[d], floats[d], false);
    norms(2500, 12, TREK_F32, TREK_F32, false); /* more rows than teams */
    norms(2200, 96, TREK_BF16, TREK_F32, false);
    norms(130, 768, TREK_F16, TREK_F32, true);
    norms(100, 9000, TREK_BF16, TREK_BF16, false);
    norms(5, 40000, TREK_F16, TREK_F32, false); /* too long for registers */
}

static void batch(trek_shape shape, trek_dtype dtype, bool training)
{
    char label[100];
    snprintf(label, sizeof label, "batch norm of %lld x %lld ..., %s", (long long)shape.sizes[0], (long long)shape.sizes[1],
             trek_dtype_name(dtype));
    trek_attrs a = { { training }, { 0.1, 1e-5 } };
    int64_t channels = shape.sizes[1];
    trek_dtype wide = dtype == TREK_F64 ? TREK_F64 : TREK_F32;
    trek_shape vector = trek_dims(channels);
    compare(label, TREK_OP_batch_norm, a, 5,
            (trek_tensor *[]){ numbers(1, shape, dtype, 2, 3), numbers(3, vector, wide, 0.5, 1), numbers(4, vector, wide, 1, 0),
                               numbers(5, vector, wide, 1, 0), numbers(6, vector, wide, 0.5, 1) }, false);
    compare(label, TREK_OP_batch_norm_backward, a, 5,
            (trek_tensor *[]){ numbers(2, shape, dtype, 1, 0), numbers(1, shape, dtype, 2, 3), numbers(5, vector, wide, 0.1, 3),
                               numbers(6, vector, wide, 0.1, 0.9), numbers(3, vector, dtype, 0.5, 1) }, false);
}

static void test_batch_norm(void **state)
{
    for (int d = 0; d < n_floats; d++) {
        batch(trek_dims(8, 6, 16, 16), floats[d], true);
        batch(trek_dims(500, 40), floats[d], true);
        batch(trek_dims(4, 3, 7, 5), floats[d], d % 2 == 0);
    }
    batch(trek_dims(2, 2, 130, 130), TREK_F32, true);
    batch(trek_dims(3000, 4), TREK_F32, true);
}

/* --- indices and losses ------------------------------------------------------------------------- */

static void test_embedding(void **state)
{
    static const int64_t tables[][3] = { { 1000, 96, 5000 }, { 70000, 5, 3000 }, { 40, 64, 2500 }, { 3, 1, 10 },
                                         { 300, 1100, 70 } };
    for (size_t k = 0; k < sizeof tables / sizeof *tables; k++)
        for (int d = 0; d < n_floats; d++) {
            const int64_t *t = tables[k];
            trek_attrs a = { { 1, t[0] }, { 0 } };
            char label[100];
            snprintf(label, sizeof label, "embedding %lld x %lld, %lld places, %s", (long long)t[0], (long long)t[1],
                     (long long)t[2],
                     trek_dtype_name(floats[d]));
            compare(label, TREK_OP_embedding, a, 2,
                    (trek_tensor *[]){ numbers(1, trek_dims(t[0], t[1]), floats[d], 1, 0),
                                       integers(2, trek_dims(t[2]), t[0], true) }, false);
            compare(label, TREK_OP_embedding_backward, a, 2,
                    (trek_tensor *[]){ numbers(1, trek_dims(t[2], t[1]), floats[d], 1, 0),
                                       integers(2, trek_dims(t[2]), t[0], true) }, false);
        }
}

static void loss(int64_t rows, int64_t classes, trek_dtype dtype, int reduction, double smoothing, bool weighted)
{
    trek_attrs a = { { 2, reduction }, { smoothing } };
    trek_dtype wide = dtype == TREK_F64 ? TREK_F64 : TREK_F32;
    char label[100];
    snprintf(label, sizeof label, "cross entropy of %lld x %lld, %s", (long long)rows, (long long)classes,
             trek_dtype_name(dtype));
    trek_shape shape = trek_dims(rows, classes), grad = reduction == TREK_REDUCTION_NONE ? trek_dims(rows) : trek_dims_none();
#define LOGITS numbers(1, shape, dtype, 3, 0)
#define LABELS integers(2, trek_dims(rows), classes, false)
#define CLASSES (weighted ? numbers(3, trek_dims(classes), wide, 0.5, 1) : NULL)
    compare(label, TREK_OP_cross_entropy, a, 3, (trek_tensor *[]){ LOGITS, LABELS, CLASSES }, false);
    compare(label, TREK_OP_cross_entropy_backward, a, 6,
            (trek_tensor *[]){ numbers(4, grad, dtype, 1, 2), LOGITS, LABELS, CLASSES,
                               numbers(5, trek_dims(rows), TREK_F64, 0.1, log((double)classes) + 3),
                               numbers(6, trek_dims_none(), wide, 0, (double)rows) }, false);
}

static void test_losses(void **state)
{
    for (int d = 0; d < n_floats; d++) {
        loss(5000, 10, floats[d], TREK_REDUCTION_MEAN, 0, false);
        loss(64, 1000, floats[d], TREK_REDUCTION_SUM, 0.1, false);
        loss(64, 999, floats[d], TREK_REDUCTION_NONE, 0.1, true);
        loss(5, 30000, floats[d], TREK_REDUCTION_MEAN, 0, true);
    }
}

/* --- GELU ------------------------------------------------------------------------------------------------ */

/* Every number of 16 bits; of f32, of each sign and exponent some, many where GELU bends, and what is not finite. */
static int64_t gelu_inputs(trek_dtype dtype, double *x)
{
    int64_t n = 0;
    if (dtype == TREK_F32) {
        for (int e = -149; e < 128; e++)
            for (int k = 0; k < 64; k++)
                x[n++] = (float)ldexp((k % 2 ? -1 : 1) * (1 + test_number(1, (uint32_t)k) / 2 + 0.5), e);
        for (int k = -40000; k <= 40000; k++)
            x[n++] = (float)(k / 2503.0);
        x[n++] = INFINITY, x[n++] = -INFINITY, x[n++] = NAN, x[n++] = 0;
        return n;
    }
    uint16_t bits[65536];
    for (int k = 0; k < 65536; k++)
        bits[k] = (uint16_t)k;
    trek_tensor *t = trek_tensor_from_data(bits, trek_dims(65536), dtype, trek_cpu(0));
    assert_int_equal(trek_tensor_to_host(t, TREK_F64, x, 65536 * sizeof *x), TREK_OK);
    trek_tensor_release(t);
    return 65536;
}

static double gelu_in_f64(double x, bool slope)
{
    const double below = 0.5 * erfc(-x / sqrt(2)), bell = exp(-0.5 * x * x) / sqrt(2 * M_PI);
    if (isinf(x))
        return x < 0 ? 0 : slope ? 1 : x;
    return slope ? below + x * bell : x * below;
}

/* Against f64: within 2 % more than half a unit of 16 bits, within 1.5e-6 of f32; the slope to 3e-7 where it crosses 0. Of bf16
 * the exponential may be 0 below 2^-126, which is where the result is below 7e-38. */
static void test_gelu(void **state)
{
    enum { SIZE = 110000 };
    static double x[SIZE], got[SIZE];
    for (int c = 0; c < 6; c++) {
        const trek_dtype dtype = c < 2 ? TREK_F32 : c < 4 ? TREK_BF16 : TREK_F16;
        const bool slope = c % 2;
        const double relative = dtype == TREK_F32 ? 1.5e-6 : dtype == TREK_BF16 ? 1.02 * 0x1p-9 : 1.02 * 0x1p-12;
        const double least = dtype == TREK_F32 ? 1e-42 : dtype == TREK_BF16 ? 7e-38 : 1.02 * 0x1p-25;
        int64_t n = gelu_inputs(dtype, x);
        assert_true(n <= SIZE);
        trek_tensor *wide = trek_tensor_from_data(x, trek_dims(n), TREK_F64, gpu), *in[2] = { NULL, NULL };
        in[slope] = trek_tensor_cast(wide, dtype);
        if (slope)
            in[0] = trek_tensor_full(trek_dims(n), 1, dtype, gpu);
        trek_op_call call = { .op = &trek_ops[slope ? TREK_OP_gelu_backward : TREK_OP_gelu], .n_inputs = 1 + slope, .inputs = in,
                              .n_outputs = 1 };
        assert_int_equal(trek_op_run(&call), TREK_OK);
        assert_int_equal(trek_tensor_to_host(call.outputs[0], TREK_F64, got, (size_t)n * sizeof *got), TREK_OK);
        for (int64_t i = 0; i < n; i++) {
            const double want = gelu_in_f64(x[i], slope), unit = fabs(want) < INFINITY ? exp2(ilogb(want ? want : 1) + 1) : 0;
            const double size = dtype == TREK_F32 ? fabs(want) : unit, near = slope && fabs(x[i] + 0.75) < 0.3 ? 3e-7 : 0;
            const bool right = isnan(x[i]) ? isnan(got[i])
                                           : got[i] == want || fabs(got[i] - want) <= relative * size + least + near;
            if (!right)
                fail_msg("%s of %.9g, %s: %.9g, should be %.9g", slope ? "slope" : "gelu", x[i], trek_dtype_name(dtype), got[i],
                         want);
        }
        trek_tensor_release(call.outputs[0]);
        for (int k = 0; k < 2; k++)
            trek_tensor_release(in[k]);
        trek_tensor_release(wide);
    }
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reductions), cmocka_unit_test(test_cumulative_sums), cmocka_unit_test(test_softmax),
        cmocka_unit_test(test_norms),      cmocka_unit_test(test_batch_norm),      cmocka_unit_test(test_embedding),
        cmocka_unit_test(test_losses),     cmocka_unit_test(test_gelu),
    };
    gpu = test_device();
    n_floats = getenv("TREK_TEST_SHORT") ? 2 : 4;
    if (test_on_cpu()) {
        printf("TREK_TEST_DEVICE is the CPU: nothing to compare\n");
        return 0;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
