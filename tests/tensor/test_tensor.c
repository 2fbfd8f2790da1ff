/* SPDX-License-Identifier: Apache-2.0 */
/* Tensors at the edges: made, viewed, copied, converted, printed, exchanged. */
#include <locale.h>

#include "tensor/dlpack.h"
#include "tensor/op.h"
#include "tensor/print.h"
#include "tensor/tensor.h"
#include "tensor/tensor_internal.h"
#include "tests/support/refused.h"
#include "tests/support/support.h"

static void expect(trek_status status)
{
    if (trek_error_status() != status)
        fail_msg("%s, should be %s (%s)", trek_status_name(trek_error_status()), trek_status_name(status), trek_error());
    trek_error_clear();
}

/* Element k, row-major, of a tensor on any device. */
static double at(const trek_tensor *t, int64_t k)
{
    double *values = test_read(t), value = values ? values[k] : NAN;
    free(values);
    return value;
}

static void dtypes(void **state)
{
#define CHECK(NAME, name, size, kind)                                          \
    assert_int_equal(trek_dtype_size(TREK_##NAME), size);                      \
    assert_string_equal(trek_dtype_name(TREK_##NAME), #name);                  \
    assert_int_equal(trek_dtype_is_float(TREK_##NAME), kind == 'f');
    TREK_DTYPE_LIST(CHECK)
#undef CHECK
    assert_int_equal(trek_dtype_size((trek_dtype)77), 0);
    assert_int_equal(trek_dtype_promote(TREK_BF16, TREK_F16), TREK_F32);
    assert_int_equal(trek_dtype_promote(TREK_I64, TREK_F16), TREK_F16);
    assert_int_equal(trek_dtype_promote(TREK_U8, TREK_BOOL), TREK_U8);
    for (int a = 0; a < TREK_DTYPE_COUNT; a++)
        for (int b = 0; b < TREK_DTYPE_COUNT; b++)
            assert_int_equal(trek_dtype_promote((trek_dtype)a, (trek_dtype)b), trek_dtype_promote((trek_dtype)b, (trek_dtype)a));
}

static void devices(void **state)
{
    trek_device d = trek_cpu(7);
    char text[16];
    assert_int_equal(trek_device_parse("cpu", &d), TREK_OK);
    assert_true(trek_device_equal(d, trek_cpu(0)));
    assert_int_equal(trek_device_parse("cpu:3", &d), TREK_OK);
    assert_string_equal(trek_device_name(d, text, sizeof text), "cpu:3");
    assert_string_equal(trek_device_name(d, text, 3), "cp");
    assert_string_equal(trek_shape_format(trek_dims(64, 784), text, sizeof text), "[64, 784]");
    assert_string_equal(trek_shape_format(trek_dims(64, 784), text, 6), "[64, ");
    const char *bad[] = { "", "gpu", "cpu:", "cpu:x", "cpu:-1", "cpu:1x", "cuda:99999999999" };
    for (int k = 0; k < 7; k++) {
        assert_int_equal(trek_device_parse(bad[k], &d), TREK_ERR_ARGUMENT);
        assert_true(trek_device_equal(d, trek_cpu(3)));
        trek_error_clear();
    }
    assert_true(trek_device_count(TREK_CPU) >= 1);
    trek_device_info info;
    assert_int_equal(trek_device_info_get(trek_cpu(0), &info), TREK_OK);
    assert_true(info.name[0] && info.multiprocessors == trek_device_count(TREK_CPU) && info.major == 0);
    assert_true(info.memory > 0 && info.memory_free > 0 && info.memory_free <= info.memory);
    assert_int_equal(trek_device_info_get((trek_device){ TREK_CUDA, 4000 }, &info), TREK_ERR_DEVICE);
    assert_true(!info.name[0] && info.memory == 0);
    trek_error_clear();
    assert_int_equal(trek_device_info_get(trek_cpu(0), NULL), TREK_ERR_ARGUMENT);
    trek_error_clear();
    assert_int_equal(trek_device_sync(trek_cpu(0)), TREK_OK);
    assert_int_equal(trek_device_sync(test_device()), TREK_OK);
}

static void making(void **state)
{
    for (int dtype = 0; dtype < TREK_DTYPE_COUNT; dtype++) {
        trek_tensor *t = trek_tensor_full(trek_dims(2, 3), 1, (trek_dtype)dtype, test_device());
        double values[6];
        assert_int_equal(trek_tensor_to_host(t, TREK_F64, values, sizeof values), TREK_OK);
        for (int k = 0; k < 6; k++)
            assert_true(values[k] == 1);
        trek_tensor_release(t);
    }
    trek_tensor *t = trek_tensor_arange(0, 1, 0.25, TREK_F32, test_device());
    assert_int_equal(trek_tensor_numel(t), 4);
    assert_true(at(t, 3) == 0.75);
    trek_tensor_release(t);
    t = trek_tensor_arange(5, 0, -2, TREK_I64, test_device());
    assert_int_equal(trek_tensor_numel(t), 3);
    assert_true(at(t, 2) == 1);
    trek_tensor_release(t);
    static const struct { double numbers[3]; bool line; double values[5]; } whole[] = { /* of fractions, PyTorch's */
        { { -0.5, 3, 1 }, false, { 0, 1, 2, 3 } }, { { 1.7, 4, 0.5 }, false, { 1, 1, 1, 1, 1 } },
        { { 5.5, 1.2, -1 }, false, { 5, 4, 3, 2, 1 } }, { { 0.5, 5, 4 }, true, { 0, 1, 3, 5 } },
        { { -1.5, 2.5, 5 }, true, { -1, 0, 0, 1, 2 } }, { { 0.9, 3.9, 3 }, true, { 0, 1, 3 } },
    };
    for (size_t c = 0; c < sizeof whole / sizeof *whole; c++) {
        const double *n = whole[c].numbers;
        t = whole[c].line ? trek_tensor_linspace(n[0], n[1], (int64_t)n[2], TREK_I64, test_device())
                          : trek_tensor_arange(n[0], n[1], n[2], TREK_I64, test_device());
        for (int64_t k = 0; k < trek_tensor_numel(t); k++)
            assert_true(at(t, k) == whole[c].values[k]);
        trek_tensor_release(t);
    }
    assert_null(trek_tensor_arange(0, -3, 2, TREK_F32, test_device()));
    expect(TREK_ERR_ARGUMENT);
    t = trek_tensor_linspace(-1, 1, 5, TREK_F64, test_device());
    assert_true(at(t, 4) == 1 && at(t, 2) == 0);
    trek_tensor_release(t);
    t = trek_tensor_logspace(-1, 3, 3, 2, TREK_F32, test_device());
    assert_true(at(t, 0) == 0.5 && at(t, 1) == 2 && at(t, 2) == 8);
    trek_tensor_release(t);
    t = trek_tensor_logspace(0.5, 3.9, 4, 2, TREK_I64, test_device()); /* PyTorch's, of whole powers */
    for (int k = 0; k < 4; k++)
        assert_true(at(t, k) == 1 << k);
    trek_tensor_release(t);
    assert_null(trek_tensor_logspace(0, 1, -1, 10, TREK_F32, test_device()));
    expect(TREK_ERR_SHAPE);
    for (int dtype = TREK_F32; dtype < TREK_DTYPE_COUNT; dtype++)
        for (int n = 0; n < 4; n++) {
            t = trek_tensor_eye(n, (trek_dtype)dtype, test_device());
            assert_true(trek_tensor_dtype(t) == (trek_dtype)dtype && trek_tensor_numel(t) == n * n);
            for (int k = 0; k < n * n; k++)
                assert_true(at(t, k) == (k % (n + 1) == 0));
            trek_tensor_release(t);
        }
    assert_null(trek_tensor_eye(-1, TREK_F32, test_device()));
    expect(TREK_ERR_SHAPE);
    t = trek_tensor_zeros(trek_dims(3, 0, 2), TREK_F32, test_device());
    assert_int_equal(trek_tensor_numel(t), 0);
    trek_tensor_release(t);
}

static void bad_making(void **state)
{
    assert_null(trek_tensor_zeros(trek_dims(2, -1), TREK_F32, test_device()));
    expect(TREK_ERR_SHAPE);
    assert_null(trek_tensor_zeros(trek_dims(2), (trek_dtype)42, test_device()));
    expect(TREK_ERR_DTYPE);
    assert_null(trek_tensor_zeros(trek_dims(2), TREK_F32, trek_cuda(99)));
    expect(TREK_ERR_DEVICE);
    assert_null(trek_tensor_zeros(trek_dims(1, 1, 1, 1, 1, 1, 1, 1, 1), TREK_F32, test_device()));
    expect(TREK_ERR_SHAPE);
    assert_null(trek_tensor_zeros(trek_dims(INT64_MAX, INT64_MAX), TREK_F32, test_device()));
    assert_true(trek_error_status() == TREK_ERR_SHAPE || trek_error_status() == TREK_ERR_MEMORY);
    trek_error_clear();
    trek_tensor *t = trek_tensor_ones(trek_dims(2), TREK_F32, test_device());
    assert_true(isnan(trek_tensor_item(t)));
    assert_int_not_equal(trek_error_status(), TREK_OK);
    trek_error_clear();
    float values[3];
    FAILS(trek_tensor_to_host(t, TREK_F32, values, sizeof values), TREK_ERR_ARGUMENT, "");
    trek_tensor *other = trek_tensor_ones(trek_dims(3), TREK_F32, test_device());
    FAILS(trek_tensor_copy_from(t, other), TREK_ERR_SHAPE, "");
    trek_tensor_release(t);
    trek_tensor_release(other);
    trek_tensor_release(NULL);
}

static int released;
static void count_release(void *data, void *arg)
{
    released += *(int *)arg;
}

static void wrapping(void **state)
{
    float data[6] = { 0, 1, 2, 3, 4, 5 };
    int one = 1;
    released = 0;
    trek_tensor *t = trek_tensor_wrap(data, trek_dims(2, 3), TREK_F32, count_release, &one);
    assert_ptr_equal(trek_tensor_data(t), data);
    trek_tensor *v = trek_tensor_view(t, trek_dims(3, -1));
    assert_int_equal(trek_tensor_shape(v).sizes[1], 2);
    trek_tensor_release(t);
    assert_int_equal(released, 0);
    ((float *)trek_tensor_data(v))[5] = 7;
    assert_true(data[5] == 7);
    trek_tensor_release(v);
    assert_int_equal(released, 1);
    assert_null(trek_tensor_wrap(data, trek_dims(-1), TREK_F32, count_release, &one));
    assert_int_equal(released, 1);
    trek_error_clear();
}

static void copies(void **state)
{
    double values[6] = { -2.5, -1, 0, 1, 2.5, 300 };
    trek_tensor *t = trek_tensor_from_data(values, trek_dims(2, 3), TREK_F64, test_device());
    trek_tensor *same = trek_tensor_cast(t, TREK_F64), *f32 = trek_tensor_cast(t, TREK_F32), *copy = trek_tensor_clone(t);
    assert_ptr_equal(same, t);
    assert_ptr_not_equal(copy->data, t->data);
    assert_true((trek_tensor_data(t) == NULL) == !test_on_cpu());
    assert_true(at(f32, 4) == 2.5);
    int32_t whole[6];
    assert_int_equal(trek_tensor_to_host(t, TREK_I32, whole, sizeof whole), TREK_OK);
    assert_int_equal(whole[0], -2); /* toward zero */
    assert_int_equal(whole[5], 300);
    assert_int_equal(trek_tensor_copy_from(copy, f32), TREK_OK);
    assert_true(at(copy, 0) == -2.5);
    trek_tensor *there = trek_tensor_to(t, test_device_other());
    assert_true(trek_device_equal(trek_tensor_device(there), test_device_other()) && at(there, 5) == 300);
    trek_tensor *all[] = { t, same, f32, copy, there };
    for (int k = 0; k < 5; k++)
        trek_tensor_release(all[k]);
}

static void views_of_strided(void **state)
{
    float data[6] = { 0, 1, 2, 3, 4, 5 };
    trek_tensor *t = trek_tensor_from_data(data, trek_dims(2, 3), TREK_F32, test_device());
    int64_t sizes[] = { 3, 2 }, strides[] = { 1, 3 };
    trek_tensor *transposed = trek_tensor_make_view(t, t->data, 2, sizes, strides);
    assert_false(trek_tensor_is_contiguous(transposed));
    assert_null(trek_tensor_view(transposed, trek_dims(6)));
    expect(TREK_ERR_SHAPE);
    trek_tensor *packed = trek_tensor_contiguous(transposed);
    assert_true(trek_tensor_is_contiguous(packed));
    assert_true(at(packed, 1) == 3);
    trek_tensor *nothing = trek_tensor_zeros(trek_dims(0, 3), TREK_F32, test_device());
    assert_null(trek_tensor_view(nothing, trek_dims(0, INT64_MAX, 4))); /* strides that no number holds */
    expect(TREK_ERR_SHAPE);
    trek_tensor_release(nothing);
    trek_tensor_release(packed);
    trek_tensor_release(transposed);
    trek_tensor_release(t);
}

static void expect_strides(const trek_tensor *t, trek_shape strides)
{
    trek_shape found = trek_tensor_strides(t);
    assert_int_equal(found.ndim, strides.ndim);
    for (int d = 0; d < strides.ndim; d++)
        assert_int_equal(found.sizes[d], strides.sizes[d]);
}

/* In elements, whatever their size. */
static void strides(void **state)
{
    static const trek_dtype dtypes_[] = { TREK_F64, TREK_F16, TREK_BOOL };
    for (int d = 0; d < 3; d++) {
        trek_tensor *t = trek_tensor_zeros(trek_dims(2, 3, 4), dtypes_[d], test_device()),
                    *scalar = trek_tensor_zeros(trek_dims_none(), dtypes_[d], test_device());
        expect_strides(t, trek_dims(12, 4, 1));
        expect_strides(scalar, trek_dims_none());
        int64_t sizes[] = { 4, 2, 5 }, steps[] = { 1, 12, 0 };
        trek_tensor *turned = trek_tensor_make_view(t, t->data, 3, sizes, steps), *row = trek_tensor_view(t, trek_dims(24)),
                    *packed = trek_tensor_contiguous(turned);
        expect_strides(turned, trek_dims(1, 12, 0));
        expect_strides(row, trek_dims(1));
        expect_strides(packed, trek_dims(10, 5, 1));
        trek_tensor *all[] = { t, scalar, turned, row, packed };
        for (int k = 0; k < 5; k++)
            trek_tensor_release(all[k]);
    }
    assert_int_equal(trek_tensor_strides(NULL).ndim, 0);
}

/* A setting of the process; on CPUs it changes nothing. */
static void matmul_precision(void **state)
{
    assert_int_equal(trek_matmul_precision_get(), TREK_MATMUL_PRECISION_HIGHEST);
    for (int k = TREK_MATMUL_PRECISION_MEDIUM; k >= TREK_MATMUL_PRECISION_HIGHEST; k--) {
        assert_int_equal(trek_matmul_precision_set((trek_matmul_precision)k), TREK_OK);
        assert_int_equal(trek_matmul_precision_get(), k);
    }
    assert_int_equal(trek_matmul_precision_set((trek_matmul_precision)3), TREK_ERR_ARGUMENT);
    assert_non_null(strstr(trek_error(), "matmul_precision_set: precision: 3;"));
    trek_error_clear();
    assert_int_equal(trek_matmul_precision_get(), TREK_MATMUL_PRECISION_HIGHEST);
}

static void text(void **state)
{
    int64_t values[4] = { 1, -2, 30, 4 };
    trek_tensor *t = trek_tensor_from_data(values, trek_dims(2, 2), TREK_I64, test_device());
    char *printed = trek_tensor_text(t);
    assert_non_null(printed);
    assert_non_null(strstr(printed, "-2"));
    assert_non_null(strstr(printed, "30"));
    trek_string_free(&printed);
    assert_null(printed);
    trek_string_free(&printed);
    trek_string_free(NULL);
    trek_tensor_release(t);
    t = trek_tensor_full(trek_dims(100, 100), 0.5, TREK_F32, test_device());
    printed = trek_tensor_text(t);
    assert_non_null(strstr(printed, "..."));
    assert_true(strlen(printed) < 2000);
    trek_string_free(&printed);
    trek_tensor_release(t);
}

/* The head of a DLManagedTensorVersioned, as its specification has it. */
typedef struct dlpack_head {
    uint32_t major, minor;
    void *manager_ctx;
    void (*deleter)(void *self);
    uint64_t flags;
    void *data;
    int32_t device_type, device_id, ndim;
    uint8_t code, bits;
    uint16_t lanes;
    int64_t *shape, *strides;
    uint64_t byte_offset;
} dlpack_head;

static void dlpack(void **state)
{
    float data[6] = { 0, 1, 2, 3, 4, 5 };
    trek_tensor *t = trek_tensor_from_data(data, trek_dims(2, 3), TREK_F32, trek_cpu(0));
    dlpack_head *managed = trek_tensor_to_dlpack(t);
    assert_non_null(managed);
    assert_int_equal(managed->major, 1);
    assert_int_equal(managed->device_type, 1);
    assert_int_equal(managed->ndim, 2);
    assert_int_equal(managed->code, 2);
    assert_int_equal(managed->bits, 32);
    assert_int_equal(managed->shape[1], 3);
    assert_int_equal(managed->strides[0], 3);
    trek_tensor *back = trek_tensor_from_dlpack(managed);
    assert_ptr_equal(trek_tensor_data(back), trek_tensor_data(t));
    trek_tensor_release(t);
    assert_true(((float *)trek_tensor_data(back))[5] == 5);
    trek_tensor_release(back);
    t = trek_tensor_from_data(data, trek_dims(6), TREK_F32, trek_cpu(0));
    managed = trek_tensor_to_dlpack(t);
    managed->flags = 1; /* read-only: what is written to the tensor is not theirs */
    back = trek_tensor_from_dlpack(managed);
    assert_true(((float *)trek_tensor_data(back))[5] == 5);
    ((float *)trek_tensor_data(back))[5] = 7;
    assert_true(((float *)trek_tensor_data(t))[5] == 5);
    trek_tensor_release(t);
    trek_tensor_release(back);
    t = trek_tensor_ones(trek_dims(4), TREK_BOOL, trek_cpu(0));
    managed = trek_tensor_to_dlpack(t);
    managed->deleter(managed);
    trek_tensor_release(t);
    assert_null(trek_tensor_from_dlpack(NULL));
    trek_error_clear();
}

/* In [0, 1), evenly, in each floating dtype: also where rounding would reach 1. */
static void uniform_tensors(void **state)
{
    enum { N = 40000, BINS = 16 };
    static const trek_dtype floating[] = { TREK_F64, TREK_F32, TREK_F16, TREK_BF16 };
    for (int d = 0; d < 4; d++) {
        trek_seed(9);
        trek_tensor *a = trek_tensor_rand(trek_dims(N), floating[d], test_device()),
                    *b = trek_tensor_rand(trek_dims(N), floating[d], test_device());
        trek_seed(9);
        trek_tensor *c = trek_tensor_rand(trek_dims(N), floating[d], test_device());
        assert_true(test_same_bits(a, c) && !test_same_bits(a, b));
        double *values = test_read(a), chi = 0;
        int bins[BINS] = { 0 };
        for (int k = 0; k < N; k++) {
            if (!(values[k] >= 0 && values[k] < 1))
                fail_msg("%s: element %d is %.17g", trek_dtype_name(floating[d]), k, values[k]);
            bins[(int)(values[k] * BINS)]++;
        }
        for (int k = 0; k < BINS; k++)
            chi += pow(bins[k] - N / BINS, 2) / (N / BINS);
        assert_true(chi < 50); /* 15 degrees of freedom; beyond 50 once in 80,000 */
        free(values);
        trek_tensor *all[] = { a, b, c };
        for (int k = 0; k < 3; k++)
            trek_tensor_release(all[k]);
    }
    assert_null(trek_tensor_rand(trek_dims(3), TREK_I32, test_device()));
    expect(TREK_ERR_DTYPE);
}

static void random_tensors(void **state)
{
    trek_seed(5);
    trek_tensor *a = trek_tensor_randn(trek_dims(1000), TREK_F32, test_device()),
        *b = trek_tensor_randn(trek_dims(1000), TREK_F32, test_device());
    assert_false(test_same_bits(a, b));
    trek_seed(5);
    trek_tensor *c = trek_tensor_randn(trek_dims(1000), TREK_F32, test_device());
    assert_true(test_same_bits(a, c));
    trek_tensor_release(a);
    trek_tensor_release(b);
    trek_tensor_release(c);
    trek_tensor *p = trek_tensor_randperm(500, test_device());
    bool seen[500] = { false };
    int moved = 0;
    double *order = test_read(p);
    for (int k = 0; k < 500; k++) {
        int place = (int)order[k];
        assert_true(place >= 0 && place < 500 && !seen[place]);
        seen[place] = true;
        moved += place != k;
    }
    free(order);
    assert_true(moved > 400);
    trek_tensor_release(p);
    trek_tensor *i = trek_tensor_randint(-3, 4, trek_dims(2000), TREK_I32, test_device());
    int counts[7] = { 0 };
    double *drawn = test_read(i);
    for (int k = 0; k < 2000; k++) {
        assert_true(drawn[k] >= -3 && drawn[k] < 4);
        counts[(int)drawn[k] + 3]++;
    }
    free(drawn);
    for (int k = 0; k < 7; k++)
        assert_true(counts[k] > 200 && counts[k] < 380);
    trek_tensor_release(i);
    assert_null(trek_tensor_randint(3, 3, trek_dims(2), TREK_I32, test_device()));
    trek_error_clear();
}

/* Results of element-wise ops have the layout of the first input that is all there; a copy is row-major. */
static void layouts_of_results(void **state)
{
    trek_tensor *x = trek_tensor_arange(1, 25, 1, TREK_F32, trek_cpu(0)),
        *whole = trek_tensor_reshape(x, trek_shape_make((const int64_t[]){ 2, 3, 4 }, 3));
    trek_tensor *turned = trek_tensor_transpose(whole, 0, 2), *row = trek_tensor_select(whole, 1, 0),
        *flat = trek_tensor_contiguous(turned);
    trek_tensor *results[] = { trek_tensor_neg(turned), trek_tensor_add(turned, turned), trek_tensor_lt(turned, flat),
                               trek_tensor_cast(turned, TREK_F64) };
    for (int k = 0; k < 4; k++) {
        assert_non_null(results[k]);
        assert_false(results[k]->contiguous);
        for (int d = 0; d < 3; d++)
            assert_int_equal(results[k]->strides[d], turned->strides[d]);
    }
    for (int k = 0; k < 24; k++) {
        assert_float_equal(at(results[0], k), -at(flat, k), 0);
        assert_float_equal(at(results[1], k), 2 * at(flat, k), 0);
        assert_float_equal(at(results[2], k), 0, 0);
        assert_float_equal(at(results[3], k), at(flat, k), 0);
    }
    trek_tensor *dense[] = { trek_tensor_add(flat, turned), trek_tensor_neg(row), trek_tensor_copy(turned) };
    for (int k = 0; k < 3; k++) {
        assert_non_null(dense[k]);
        assert_true(dense[k]->contiguous);
        trek_tensor_release(dense[k]);
    }
    for (int k = 0; k < 4; k++)
        trek_tensor_release(results[k]);
    trek_tensor_release(flat);
    trek_tensor_release(row);
    trek_tensor_release(turned);
    trek_tensor_release(whole);
    trek_tensor_release(x);
    expect(TREK_OK);
}

/* A view of `base` with these sizes, its dimensions in memory in the order of `order`, the last one with `gap` elements between.
 */
static trek_tensor *strided(trek_tensor *base, int ndim, const int64_t *sizes, const int *order, int64_t gap)
{
    int64_t strides[TREK_MAX_DIMS], step = 1;
    for (int k = ndim - 1; k >= 0; k--) {
        strides[order[k]] = step;
        step *= sizes[order[k]] + (k == ndim - 1 ? gap : 0);
    }
    return trek_tensor_make_view(base, base->data, ndim, sizes, strides);
}

static uint32_t draw(uint32_t *seed, uint32_t below)
{
    *seed = *seed * 1664525u + 1013904223u;
    return (*seed >> 8) % below;
}

/* Sizes and the order of their dimensions in memory; the number of elements. */
static int64_t draw_layout(uint32_t *seed, int ndim, int64_t *sizes, int *order)
{
    static const int64_t some[] = { 1, 2, 3, 4, 5, 7, 9, 17, 33, 70 };
    int64_t n = 1;
    for (int d = 0; d < ndim; d++) {
        sizes[d] = some[draw(seed, 10)];
        sizes[d] = n * sizes[d] > 12000 ? 2 : sizes[d];
        n *= sizes[d], order[d] = d;
    }
    for (int d = ndim - 1; d > 0; d--) {
        int e = (int)draw(seed, (uint32_t)d + 1), kept = order[d];
        order[d] = order[e], order[e] = kept;
    }
    return n;
}

/* Copies from any layout and into any: long rows, short ones, thin dimensions, transpositions. What lies between stays. */
static void copies_between_layouts(void **state)
{
    static const trek_dtype dtypes_[] = { TREK_U8, TREK_BF16, TREK_F32, TREK_I64 };
    static uint8_t numbers[100000], have[100000], around[300100];
    for (size_t k = 0; k < sizeof numbers; k++)
        numbers[k] = (uint8_t)(k % 251);
    uint32_t seed = 1;
    for (int k = 0; k < 400; k++) {
        int ndim = 2 + (int)draw(&seed, 4), order[TREK_MAX_DIMS];
        int64_t sizes[TREK_MAX_DIMS], n = draw_layout(&seed, ndim, sizes, order), room = 3 * n + 8, kept = 0;
        trek_tensor *x = trek_tensor_from_data(numbers, trek_shape_make(sizes, ndim), TREK_U8, test_device()),
                    *there = trek_tensor_cast(x, dtypes_[k % 4]),
                    *base = trek_tensor_full(trek_dims(room), 255, dtypes_[k % 4], test_device());
        trek_tensor *view = strided(base, ndim, sizes, order, draw(&seed, 3));
        assert_int_equal(trek_tensor_copy_from(view, there), TREK_OK);
        trek_tensor *packed = trek_tensor_contiguous(view);
        assert_int_equal(trek_tensor_to_host(packed, TREK_U8, have, (size_t)n), TREK_OK);
        assert_memory_equal(numbers, have, (size_t)n);
        assert_int_equal(trek_tensor_to_host(base, TREK_U8, around, (size_t)room), TREK_OK);
        for (int64_t i = 0; i < room; i++)
            kept += around[i] == 255;
        assert_int_equal(kept, room - n);
        trek_tensor *all[] = { x, there, base, view, packed };
        for (int i = 0; i < 5; i++)
            trek_tensor_release(all[i]);
    }
}

/* Inputs that repeat themselves along some dimensions, in any order: the bits of their contiguous copies' results. */
static void same_as_whole(trek_tensor *x, trek_tensor *y)
{
    trek_tensor *xs = trek_tensor_contiguous(x), *ys = trek_tensor_contiguous(y);
    trek_tensor *got[] = { trek_tensor_neg(x), trek_tensor_add(x, y), trek_tensor_mul(x, x), trek_tensor_lt(x, y),
                           trek_tensor_cast(x, TREK_F64) };
    trek_tensor *want[] = { trek_tensor_neg(xs), trek_tensor_add(xs, ys), trek_tensor_mul(xs, xs), trek_tensor_lt(xs, ys),
                            trek_tensor_cast(xs, TREK_F64) };
    for (int k = 0; k < 5; k++) {
        trek_tensor *whole = trek_tensor_contiguous(got[k]);
        assert_non_null(whole);
        assert_int_equal(whole->numel, want[k]->numel);
        assert_memory_equal(whole->data, want[k]->data, (size_t)whole->numel * trek_dtype_size(whole->dtype));
        trek_tensor_release(whole);
        trek_tensor_release(got[k]);
        trek_tensor_release(want[k]);
    }
    trek_tensor_release(xs);
    trek_tensor_release(ys);
}

static void repeated_inputs(void **state)
{
    static const int64_t sizes[][3] = { { 17, 40, 61 }, { 130, 9, 7 }, { 3, 2, 1500 } };
    static const trek_dtype kinds[] = { TREK_F32, TREK_BF16, TREK_F64, TREK_F16 };
    trek_seed(5);
    for (int k = 0; k < 3; k++) {
        for (int mask = 0; mask < 8 * 8 * 3; mask++) { /* which dimensions of x and y repeat, and which two are exchanged */
            trek_tensor *t[2];
            for (int of = 0; of < 2; of++) {
                int64_t base[3];
                for (int d = 0; d < 3; d++)
                    base[d] = mask >> (3 * of + d) & 1 ? 1 : sizes[k][d];
                trek_tensor *few = trek_tensor_randn(trek_shape_make(base, 3), kinds[mask % 4], trek_cpu(0));
                trek_tensor *many = trek_tensor_expand(few, trek_shape_make(sizes[k], 3));
                t[of] = trek_tensor_transpose(many, 0, mask / 64);
                trek_tensor_release(many);
                trek_tensor_release(few);
            }
            same_as_whole(t[0], t[1]);
            trek_tensor_release(t[0]);
            trek_tensor_release(t[1]);
        }
    }
    trek_tensor *x = trek_tensor_zeros(trek_shape_make((const int64_t[]){ 90, 200 }, 2), TREK_BF16, trek_cpu(0)),
        *columns = trek_tensor_narrow(x, 1, 3, 100);
    trek_tensor_release(trek_tensor_fill(columns, 1.5));
    double *values = test_read(x);
    for (int k = 0; k < 90 * 200; k++)
        assert_float_equal(values[k], (k % 200 >= 3 && k % 200 < 103 ? 1.5 : 0), 0);
    free(values);
    trek_tensor_release(columns);
    trek_tensor_release(x);
    expect(TREK_OK);
}

int main(void)
{
    setlocale(LC_ALL, "de_DE.UTF-8"); /* numbers must not care, where it is there */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(dtypes), cmocka_unit_test(devices), cmocka_unit_test(making), cmocka_unit_test(bad_making),
        cmocka_unit_test(wrapping), cmocka_unit_test(copies), cmocka_unit_test(copies_between_layouts),
        cmocka_unit_test(views_of_strided), cmocka_unit_test(strides), cmocka_unit_test(layouts_of_results),
        cmocka_unit_test(repeated_inputs), cmocka_unit_test(text), cmocka_unit_test(matmul_precision), cmocka_unit_test(dlpack),
        cmocka_unit_test(uniform_tensors), cmocka_unit_test(random_tensors),
    };
    return cmocka_run_group_tests_name("tensor", tests, NULL, NULL);
}
