/* SPDX-License-Identifier: Apache-2.0 */
/* Max pools with places, of given sizes and undone, and power means; their layers. Against loops, and numbers told by hand. */
#include "autograd/backward.h"
#include "autograd/ops.h"
#include "nn/layers.h"
#include "nn/module_tree.h"
#include "tensor/creation.h"
#include "tensor/print.h"
#include "tensor/shapes.h"
#include "tests/autograd/differences.h"
#include "tests/support/scoped.h"
#include "tests/support/support.h"

static void read_all(trek_var *v, double *to)
{
    if (!v || trek_tensor_to_host(trek_var_data(v), TREK_F64, to, (size_t)trek_var_numel(v) * sizeof *to) != TREK_OK)
        fail_msg("%s", trek_error());
}

/* --- places -------------------------------------------------------------------------------- */

/* One of three dimensions of a channel [D, H, W] by loops: the last NaN, or the first largest; its place, or -1. */
static double largest(const double *x, const int64_t *size, const int64_t *first, const int64_t *last, const int64_t *step,
                      double *place)
{
    double best = -INFINITY;
    *place = -1;
    for (int64_t a = first[0]; a < last[0]; a += step[0])
        for (int64_t b = first[1]; b < last[1]; b += step[1])
            for (int64_t c = first[2]; c < last[2]; c += step[2]) {
                if (a < 0 || b < 0 || c < 0 || a >= size[0] || b >= size[1] || c >= size[2])
                    continue;
                int64_t at = (a * size[1] + b) * size[2] + c;
                if (*place < 0 || x[at] > best || isnan(x[at]))
                    best = x[at], *place = (double)at;
            }
    return best;
}

typedef struct pool_case {
    int64_t size[3], kernel[3], stride[3], padding[3], dilation[3];
    bool adaptive; /* kernel: the sizes of the result */
} pool_case;

static void list_of(int64_t *to, const int64_t *from, int dims)
{
    for (int d = 0; d < dims; d++)
        to[d] = from[3 - dims + d] ? from[3 - dims + d] : TREK_ZERO;
}

/* The pool of the last `dims` dimensions of a case; those before them are 1. */
static trek_var *pool(const pool_case *p, int dims, trek_var *x, trek_var **places)
{
    const int64_t *k = p->kernel + 3 - dims;
    if (p->adaptive)
        return dims == 1 ? trek_adaptive_max_pool1d(x, k[0], places) : dims == 2
            ? trek_adaptive_max_pool2d(x, k[0], k[1], places) : trek_adaptive_max_pool3d(x, k[0], k[1], k[2], places);
    trek_pool_opts o = { .ceil_mode = true };
    list_of(o.kernel, p->kernel, dims), list_of(o.stride, p->stride, dims);
    list_of(o.padding, p->padding, dims), list_of(o.dilation, p->dilation, dims);
    return (dims == 1 ? trek_max_pool1d_with_indices : dims == 2 ? trek_max_pool2d_with_indices : trek_max_pool3d_with_indices)(
        x, &o, places);
}

static void compare(const pool_case *p, int dims, trek_var *x, const double *numbers)
{
    static double values[4096], places[4096];
    trek_shape shape = trek_dims(trek_var_size(x, 0), trek_var_size(x, 1));
    for (int d = 3 - dims; d < 3; d++)
        shape.sizes[shape.ndim++] = p->size[d];
    trek_var *at = NULL, *y = pool(p, dims, trek_reshape(x, shape), &at);
    read_all(y, values), read_all(at, places);
    assert_int_equal(trek_var_dtype(at), TREK_I64);
    int64_t out[3] = { 1, 1, 1 }, plane = p->size[0] * p->size[1] * p->size[2];
    for (int d = 0; d < dims; d++)
        out[3 - dims + d] = trek_var_size(y, 2 + d);
    for (int64_t i = 0; i < trek_var_numel(y); i++) {
        int64_t index[3] = { i / (out[2] * out[1]) % out[0], i / out[2] % out[1], i % out[2] }, first[3], last[3], step[3];
        for (int d = 0; d < 3; d++) {
            bool whole = p->adaptive;
            first[d] = whole ? index[d] * p->size[d] / out[d] : index[d] * p->stride[d] - p->padding[d];
            last[d] = whole ? ((index[d] + 1) * p->size[d] + out[d] - 1) / out[d]
                            : first[d] + (p->kernel[d] - 1) * p->dilation[d] + 1;
            step[d] = whole ? 1 : p->dilation[d];
        }
        double place, value = largest(numbers + i / (out[0] * out[1] * out[2]) * plane, p->size, first, last, step, &place);
        assert_true(value == values[i] || (isnan(value) && isnan(values[i])));
        assert_true(place == places[i]);
    }
}

static void places_of_maxima(void **state)
{
    static const pool_case cases[] = {
        { { 1, 1, 11 }, { 1, 1, 3 }, { 1, 1, 2 }, { 0, 0, 1 }, { 1, 1, 1 }, false },
        { { 1, 1, 5 }, { 1, 1, 2 }, { 1, 1, 1 }, { 0, 0, 1 }, { 1, 1, 5 }, false }, /* a window wholly in the padding */
        { { 1, 5, 7 }, { 1, 2, 3 }, { 1, 2, 2 }, { 0, 1, 1 }, { 1, 1, 2 }, false },
        { { 4, 5, 6 }, { 2, 3, 2 }, { 1, 2, 3 }, { 1, 1, 0 }, { 1, 1, 1 }, false },
        { { 5, 4, 6 }, { 2, 2, 3 }, { 2, 1, 1 }, { 1, 0, 1 }, { 2, 1, 2 }, false },
        { { 3, 1, 5 }, { 2, 2, 2 }, { 1, 3, 1 }, { 1, 1, 1 }, { 3, 1, 1 }, false },
        { { 1, 1, 7 }, { 1, 1, 3 }, { 0 }, { 0 }, { 0 }, true },
        { { 1, 5, 7 }, { 1, 3, 9 }, { 0 }, { 0 }, { 0 }, true },
        { { 5, 4, 7 }, { 3, 4, 2 }, { 0 }, { 0 }, { 0 }, true },
    };
    static double numbers[1024];
    for (int k = 0; k < (int)(sizeof cases / sizeof cases[0]); k++)
        for (int special = 0; special < 2; special++) {
            const pool_case *p = &cases[k];
            trek_shape shape = trek_dims(2, 2, p->size[0], p->size[1], p->size[2]);
            for (int64_t i = 0; i < trek_shape_numel(shape); i++) {
                numbers[i] = floor(sin(3.0 * (double)i + k) * 4); /* many are equal */
                if (special)
                    numbers[i] = i % 5 == 0 ? NAN : i % 3 == 0 ? -INFINITY : numbers[i];
            }
            trek_var *x = values_of(shape, TREK_F32, numbers);
            for (int dims = p->size[0] > 1 ? 3 : p->size[1] > 1 ? 2 : 1; dims <= 3; dims++)
                if (p->adaptive || dims == 3 || p->stride[2 - dims] == 1)
                    compare(p, dims, x, numbers);
        }
}

static trek_var *all_adaptive(trek_var *const *in)
{
    trek_var *x = in[0], *a = trek_adaptive_max_pool3d(x, 2, 2, 3, NULL);
    trek_var *b = trek_adaptive_max_pool2d(trek_select(x, 1, 0), 2, 2, NULL);
    trek_var *c = trek_adaptive_max_pool1d(trek_select(trek_select(x, 1, 1), 1, 0), 2, NULL);
    trek_var *parts[3] = { trek_flatten(a, 0, -1), trek_flatten(b, 0, -1), trek_flatten(c, 0, -1) };
    return trek_square(trek_cat(parts, 3, 0));
}

static trek_var *undone(trek_var *const *in)
{
    trek_var *places = NULL, *y = trek_max_pool3d_with_indices(in[0], &(trek_pool_opts){ .kernel = { 2 } }, &places);
    return trek_max_unpool3d(trek_square(y), places, &(trek_unpool_opts){ .kernel = { 2 }, .output_size = { 4, 2, 5 } });
}

static void gradients(void **state)
{
    check_gradients(all_adaptive, 1, (trek_shape[]){ trek_dims(2, 2, 3, 4, 5) }, true);
    check_gradients(undone, 1, (trek_shape[]){ trek_dims(1, 2, 4, 2, 5) }, true);
}

/* Other dtypes, layouts, nothing at all. */
static void kinds(void **state)
{
    trek_var *x = VALUES(trek_dims(1, 1, 2, 3), TREK_I32, 1, 5, 2, 7, 3, 4), *places = NULL;
    ASSERT_VALUES(trek_adaptive_max_pool2d(trek_transpose(x, 2, 3), 1, 2, &places), 5, 7);
    ASSERT_VALUES(places, 2, 1);
    ASSERT_VALUES(trek_adaptive_max_pool2d(trek_cast(x, TREK_F16), 2, 1, NULL), 5, 7);
    ASSERT_VALUES(trek_max_pool2d_with_indices(trek_cast(x, TREK_BF16), &(trek_pool_opts){ .kernel = { 2 } }, &places), 7);
    ASSERT_VALUES(places, 3);
    trek_var *none = values_of(trek_dims(0, 2, 4, 4), TREK_F32, (double[]){ 0 });
    assert_int_equal(trek_var_numel(trek_adaptive_max_pool2d(none, 2, 2, &places)), 0);
    assert_int_equal(trek_var_size(places, 2), 2);
    assert_int_equal(trek_var_size(trek_adaptive_max_pool3d(trek_unsqueeze(none, 0), 1, 2, 2, NULL), 0), 1);
    assert_int_equal(trek_var_numel(trek_lp_pool2d(none, 2, &(trek_pool_opts){ .kernel = { 2 } })), 0);
    places = trek_var_from(trek_tensor_zeros(trek_dims(0, 2, 4, 4), TREK_I64, test_device()));
    assert_int_equal(trek_var_size(trek_max_unpool2d(none, places, &(trek_unpool_opts){ .kernel = { 2 } }), 3), 8);
}

/* --- averages over a number of one's own ------------------------------------------------------ */

static trek_var *averaged(trek_var *const *in)
{
    const trek_pool_opts o = { .kernel = { 2 }, .stride = { 2 }, .padding = { 1, 1, 1 }, .ceil_mode = true,
                               .divisor_override = -3 };
    trek_var *a = trek_avg_pool3d(in[0], &o), *b = trek_avg_pool2d(trek_select(in[0], 1, 0), &o);
    trek_var *c = trek_avg_pool1d(trek_select(trek_select(in[0], 1, 1), 1, 0), &o);
    trek_var *parts[3] = { trek_flatten(a, 0, -1), trek_flatten(b, 0, -1), trek_flatten(c, 0, -1) };
    return trek_square(trek_cat(parts, 3, 0));
}

static void divisors(void **state)
{
    trek_var *x = VALUES(trek_dims(1, 1, 2, 3), TREK_BF16, 1, 2, 3, 4, 5, 6);
    trek_pool_opts o = { .kernel = { 2 }, .stride = { 2 }, .ceil_mode = true, .exclude_padding = true, .divisor_override = 8 };
    ASSERT_VALUES(trek_avg_pool2d(x, &o), 1.5, 1.125);
    ASSERT_VALUES(trek_avg_pool3d(trek_unsqueeze(x, 2), &(trek_pool_opts){ .kernel = { 1, 2, 2 }, .divisor_override = -1 }), -12);
    ASSERT_VALUES(trek_avg_pool1d(trek_select(x, 1, 0), &(trek_pool_opts){ .kernel = { 3 }, .divisor_override = 2 }), 3, 7.5);
    ASSERT_REFUSED(trek_lp_pool2d(x, 2, &o), TREK_ERR_ARGUMENT);
    check_gradients(averaged, 1, (trek_shape[]){ trek_dims(1, 2, 2, 3, 3) }, true);
}

/* --- places drawn by chance: values and places are PyTorch's -------------------------------------- */

static trek_var *fractional(trek_var *const *in)
{
    trek_var *samples = VALUES(trek_dims(1, 2, 3), TREK_F64, 0.3, 0.9, 0.5, 0.1, 0, 0.7);
    trek_var *flat = VALUES(trek_dims(1, 2, 2), TREK_F64, 0.3, 0.9, 0.5, 0.1);
    trek_fractional_pool_opts deep = { .kernel = { 2, 1 }, .output_size = { 2, 3, 2 }, .random_samples = samples };
    trek_fractional_pool_opts two = { .kernel = { 2 }, .output_ratio = { 0.7 }, .random_samples = flat };
    trek_var *a = trek_fractional_max_pool3d(in[0], &deep, NULL),
             *b = trek_fractional_max_pool2d(trek_select(in[0], 2, 1), &two, NULL);
    return trek_square(trek_cat((trek_var *[]){ trek_flatten(a, 0, -1), trek_flatten(b, 0, -1) }, 2, 0));
}

static trek_var *counted(trek_shape shape, int64_t modulus)
{
    trek_tensor *line = trek_tensor_arange(0, (double)trek_shape_numel(shape), 1, TREK_I64, test_device());
    trek_var *rest = trek_remainder(trek_var_from(line), LIST(TREK_I64, (double)modulus));
    return trek_reshape(trek_cast(rest, TREK_F64), shape);
}

static void windows_by_chance(void **state)
{
    trek_var *x = counted(trek_dims(1, 1, 5, 6), 7), *at, *samples = VALUES(trek_dims(1, 1, 2), TREK_F64, 0.3, 0.9);
    trek_fractional_pool_opts o = { .kernel = { 2 }, .output_size = { 3, 4 }, .random_samples = samples };
    ASSERT_VALUES(trek_fractional_max_pool2d(x, &o, &at), 6, 2, 4, 5, 6, 6, 3, 4, 5, 6, 6, 2);
    ASSERT_VALUES(at, 6, 2, 4, 5, 6, 13, 10, 11, 19, 20, 27, 23);
    trek_fractional_pool_opts deep = { .kernel = { 2, 2, 3 },
                                       .output_size = { 2, 3, 2 },
                                       .random_samples = VALUES(trek_dims(1, 1, 3), TREK_F64, 0.3, 0.9, 0.5) };
    ASSERT_VALUES(trek_fractional_max_pool3d(counted(trek_dims(1, 1, 4, 5, 6), 11), &deep, &at), 10, 10, 10, 10, 10, 10, 10, 10,
                  10, 10, 10, 10);
    ASSERT_VALUES(at, 32, 10, 43, 10, 54, 21, 98, 65, 98, 76, 109, 87);
    trek_var *drawn = trek_fractional_max_pool2d(
        trek_cast(x, TREK_BF16), &(trek_fractional_pool_opts){ .kernel = { 2 }, .output_ratio = { 0.5, 0.4 } }, &at);
    assert_true(trek_var_size(drawn, 2) == 2 && trek_var_size(drawn, 3) == 2 && trek_var_dtype(drawn) == TREK_BF16);
    ASSERT_VALUES(trek_sub(trek_gather(trek_reshape(x, trek_dims(30)), 0, trek_reshape(at, trek_dims(4))),
                           trek_reshape(trek_cast(drawn, TREK_F64), trek_dims(4))),
                  0, 0, 0, 0);
    check_gradients(fractional, 1, (trek_shape[]){ trek_dims(1, 2, 3, 4, 5) }, true);
    const trek_fractional_pool_opts bad[] = {
        { .kernel = { 2 } },
        { .kernel = { 2 }, .output_size = { 2 }, .output_ratio = { 0.5 } },
        { .output_size = { 2 } },
        { .kernel = { 2 }, .output_size = { 5 } },
        { .kernel = { 2 }, .output_ratio = { 1 } },
        { .kernel = { 6 }, .output_size = { 1 } },
        { .kernel = { 2 }, .output_size = { 2 }, .random_samples = VALUES(trek_dims(1, 1, 2), TREK_F64, 0.5, 1) },
    };
    for (size_t k = 0; k < sizeof bad / sizeof *bad; k++)
        ASSERT_REFUSED(trek_fractional_max_pool2d(x, &bad[k], &at), TREK_ERR_ARGUMENT);
    assert_null(at);
    ASSERT_REFUSED(trek_fractional_max_pool2d(x, NULL, NULL), TREK_ERR_ARGUMENT);
    ASSERT_REFUSED(trek_fractional_max_pool3d(x, &o, NULL), TREK_ERR_SHAPE);
    ASSERT_REFUSED(trek_fractional_max_pool2d(trek_cast(x, TREK_I64), &o, NULL), TREK_ERR_DTYPE);
    ASSERT_REFUSED(trek_fractional_max_pool2d(trek_cast(x, TREK_F32), &o, NULL), TREK_ERR_DTYPE);
    o.random_samples = LIST(TREK_F64, 0.5, 0.5);
    ASSERT_REFUSED(trek_fractional_max_pool2d(x, &o, NULL), TREK_ERR_SHAPE);
}

/* --- undoing --------------------------------------------------------------------------------- */

static void undoing(void **state)
{
    trek_var *x = VALUES(trek_dims(1, 1, 7), TREK_F32, 1, 5, 2, 7, 3, 4, 9), *places = NULL;
    trek_var *y = trek_max_pool1d_with_indices(x, &(trek_pool_opts){ .kernel = { 2 } }, &places);
    ASSERT_VALUES(y, 5, 7, 4);
    ASSERT_VALUES(places, 1, 3, 5);
    trek_unpool_opts two = { .kernel = { 2 } };
    ASSERT_VALUES(trek_max_unpool1d(y, places, &two), 0, 5, 0, 7, 0, 4);
    two.output_size[0] = 7;
    ASSERT_VALUES(trek_max_unpool1d(y, places, &two), 0, 5, 0, 7, 0, 4, 0);
    trek_var *twice = VALUES(trek_dims(1, 1, 2), TREK_I64, 1, 1), *pair = VALUES(trek_dims(1, 1, 2), TREK_F64, 3, 4);
    pair = trek_var_new(trek_var_data(pair), true);
    ASSERT_VALUES(trek_max_unpool1d(pair, twice, &(trek_unpool_opts){ .kernel = { 2 } }), 0, 4, 0, 0); /* the last one */
    trek_var *sum = trek_sum(trek_max_unpool1d(pair, twice, &(trek_unpool_opts){ .kernel = { 2 } }), trek_dims_all(), false);
    assert_int_equal(trek_backward(sum), TREK_OK);
    ASSERT_VALUES(trek_var_grad(pair), 1, 1);
    trek_var_release(pair);
    trek_var *image = VALUES(trek_dims(1, 2, 1, 2), TREK_F16, 1, 2, 3, 4),
        *at = VALUES(trek_dims(1, 2, 1, 2), TREK_I64, 0, 2, 1, 3);
    ASSERT_VALUES(trek_max_unpool2d(image, at, &(trek_unpool_opts){ .kernel = { 1, 2 } }), 1, 0, 2, 0, 0, 3, 0, 4);
    ASSERT_VALUES(trek_max_unpool2d(image, at, &(trek_unpool_opts){ .kernel = { 2 }, .padding = { TREK_ZERO, 1 },
                                                                    .output_size = { 3, 2 } }), 1, 0, 2, 0, 0, 0, 0, 3, 0, 4, 0,
                                                                    0);
}

static void undoing_refused(void **state)
{
    trek_var *x = VALUES(trek_dims(1, 1, 2), TREK_F32, 1, 2), *at = VALUES(trek_dims(1, 1, 2), TREK_I64, 0, 2);
    trek_unpool_opts two = { .kernel = { 2 } };
    REFUSED(trek_max_unpool1d(x, at, NULL), TREK_ERR_ARGUMENT, "max_unpool1d: kernel: ");
    REFUSED(trek_max_unpool1d(x, NULL, &two), TREK_ERR_ARGUMENT, "indices");
    REFUSED(trek_max_unpool2d(x, at, &two), TREK_ERR_SHAPE, "max_unpool2d: x: ");
    REFUSED(trek_max_unpool1d(x, trek_narrow(at, 2, 0, 1), &two), TREK_ERR_SHAPE,
            "max_unpool1d: indices: [1, 1, 1]; must have the shape of x, [1, 1, 2]");
    REFUSED(trek_max_unpool1d(x, trek_cast(at, TREK_I32), &two), TREK_ERR_DTYPE, "max_unpool1d: indices: dtype i32");
    REFUSED(trek_max_unpool1d(x, at, &(trek_unpool_opts){ .kernel = { 2 }, .output_size = { 6 } }), TREK_ERR_ARGUMENT,
            "max_unpool1d: size: 6 along dimension 2; must be 3 to 5");
    REFUSED(trek_max_unpool1d(x, at, &(trek_unpool_opts){ .kernel = { 2 }, .padding = { 3 } }), TREK_ERR_SHAPE,
            "max_unpool1d: result: it has 0 elements along dimension 2");
    REFUSED(trek_max_unpool1d(x, at, &(trek_unpool_opts){ .kernel = { 2 }, .stride = { -1 } }), TREK_ERR_ARGUMENT,
            "max_unpool1d: kernel, stride");
    if (test_on_cpu()) {
        REFUSED(trek_max_unpool1d(x, trek_mul_scalar(at, 2), &two), TREK_ERR_ARGUMENT, "4");
    }
    trek_var *places = x;
    assert_null(trek_max_pool3d_with_indices(x, &(trek_pool_opts){ .kernel = { 2 } }, &places));
    REFUSED(places, TREK_ERR_SHAPE, "max_pool3d: x: ");
    REFUSED(trek_adaptive_max_pool1d(x, 0, &places), TREK_ERR_ARGUMENT, "sizes: [1, 0]; must be positive");
    REFUSED(trek_adaptive_max_pool2d(x, 1, 1, &places), TREK_ERR_SHAPE, "adaptive_max_pool2d: input: ");
}

/* --- power means --------------------------------------------------------------------------------- */

static trek_var *powers(trek_var *const *in)
{
    trek_var *x = trek_add_scalar(trek_square(in[0]), 0.3);
    trek_var *a = trek_lp_pool3d(x, 3, &(trek_pool_opts){ .kernel = { 2, 1, 2 }, .stride = { 1 } });
    trek_var *b = trek_lp_pool2d(trek_select(x, 1, 0), 1.5, &(trek_pool_opts){ .kernel = { 2 }, .ceil_mode = true });
    trek_var *parts[2] = { trek_flatten(a, 0, -1), trek_flatten(b, 0, -1) };
    return trek_cat(parts, 2, 0);
}

static void power_means(void **state)
{
    trek_var *x = VALUES(trek_dims(1, 1, 5), TREK_F32, 3, -4, 0, 0, 2);
    trek_pool_opts two = { .kernel = { 2 }, .ceil_mode = true };
    ASSERT_VALUES(trek_lp_pool1d(x, 2, &two), 5, 0, sqrt(8)); /* the last window counts as a whole one, of twice its mean */
    two.ceil_mode = false;
    ASSERT_VALUES(trek_lp_pool1d(x, 1, &two), -1, 0);
    ASSERT_VALUES(trek_lp_pool1d(x, 3, &(trek_pool_opts){ .kernel = { 2 }, .stride = { 3 } }), NAN, 2); /* of a negative sum */
    trek_var *leaf = trek_var_new(trek_var_data(trek_cast(x, TREK_F64)), true);
    assert_int_equal(trek_backward(trek_sum(trek_lp_pool1d(leaf, 2, &two), trek_dims_all(), false)), TREK_OK);
    ASSERT_VALUES(trek_var_grad(leaf), 0.6, -0.8, 0, 0, 0);
    trek_var_release(leaf);
    assert_int_equal(trek_var_dtype(trek_lp_pool1d(trek_cast(x, TREK_BF16), 2, &two)), TREK_BF16);
    check_gradients(powers, 1, (trek_shape[]){ trek_dims(1, 2, 3, 2, 3) }, true);
    REFUSED(trek_lp_pool1d(x, 0, &two), TREK_ERR_ARGUMENT, "lp_pool1d: norm: 0");
    REFUSED(trek_lp_pool1d(x, 2, NULL), TREK_ERR_ARGUMENT, "lp_pool1d: kernel: ");
    two.padding[0] = 1;
    REFUSED(trek_lp_pool1d(x, 2, &two), TREK_ERR_ARGUMENT, "lp_pool1d: padding or dilation: set");
    two.padding[0] = 0;
    REFUSED(trek_lp_pool1d(trek_cast(x, TREK_I64), 2, &two), TREK_ERR_DTYPE, "lp_pool1d: x: dtype i64");
    REFUSED(trek_lp_pool2d(x, 2, &two), TREK_ERR_SHAPE, "must have 4");
}

/* --- layers ---------------------------------------------------------------------------------------- */

static trek_var *once(trek_module *module, trek_var *x)
{
    trek_var *y = module ? trek_forward(module, x) : NULL;
    trek_module_free(&module);
    return y;
}

/* A pool's layer, and its undoing by another's. */
static void there_and_back(trek_module *pool_, trek_module *unpool, trek_var *x, trek_var *wanted)
{
    trek_var *made[2], *back = NULL;
    char *text = trek_module_summary(pool_);
    if (!text || trek_forward_results(pool_, &x, 1, made, 2) != TREK_OK)
        fail_msg("%s", trek_error());
    trek_string_free(&text);
    back = trek_forward_many(unpool, made, 2);
    double a[64], b[64];
    read_all(back, a), read_all(wanted, b);
    assert_memory_equal(a, b, (size_t)trek_var_numel(wanted) * sizeof *a);
    FAILS(trek_forward_results(pool_, made, 2, made, 1), TREK_ERR_ARGUMENT, "");
    REFUSED(trek_forward(unpool, x), TREK_ERR_ARGUMENT, "inputs: 1; it takes x and indices");
    trek_module_free(&pool_);
    trek_module_free(&unpool);
}

static void layers(void **state)
{
    trek_var *line = VALUES(trek_dims(1, 1, 4), TREK_F32, 1, 3, 4, 2), *image = trek_unsqueeze(line, 2);
    trek_var *volume = trek_unsqueeze(image, 2), *kept = VALUES(trek_dims(1, 1, 4), TREK_F32, 0, 3, 4, 0);
    there_and_back(trek_nn_max_pool1d(2), trek_nn_max_unpool1d(2), line, kept);
    trek_unpool_opts flat = { .kernel = { 1, 2 } }, deep = { .kernel = { 1, 1, 2 } };
    there_and_back(trek_nn_max_pool2d_with(&(trek_pool_opts){ .kernel = { 1, 2 } }), trek_nn_max_unpool2d_with(&flat), image,
                   kept);
    there_and_back(trek_nn_max_pool3d_with(&(trek_pool_opts){ .kernel = { 1, 1, 2 } }), trek_nn_max_unpool3d_with(&deep), volume,
                   kept);
    there_and_back(trek_nn_adaptive_max_pool1d(2), trek_nn_max_unpool1d_with(&(trek_unpool_opts){ .kernel = { 2 } }), line, kept);
    there_and_back(trek_nn_adaptive_max_pool2d(1, 2), trek_nn_max_unpool2d_with(&flat), image, kept);
    there_and_back(trek_nn_adaptive_max_pool3d(1, 1, 2), trek_nn_max_unpool3d_with(&deep), volume, kept);
    ASSERT_VALUES(once(trek_nn_adaptive_max_pool1d(1), line), 4);
    ASSERT_VALUES(once(trek_nn_lp_pool1d(2, 2), line), sqrt(10), sqrt(20));
    ASSERT_VALUES(once(trek_nn_lp_pool2d_with(1, &(trek_pool_opts){ .kernel = { 1, 4 } }), image), 10);
    ASSERT_VALUES(once(trek_nn_lp_pool3d_with(1, &(trek_pool_opts){ .kernel = { 1, 1, 3 } }), volume), 8);
    trek_module *some[] = { trek_nn_max_unpool2d(2), trek_nn_max_unpool3d(2), trek_nn_lp_pool2d(2, 3), trek_nn_lp_pool3d(2, 3),
                            trek_nn_lp_pool1d_with(2, &(trek_pool_opts){ .kernel = { 2 } }) };
    for (int k = 0; k < 5; k++) {
        assert_non_null(some[k]);
        trek_module_free(&some[k]);
    }
    REFUSED(trek_nn_adaptive_max_pool3d(1, 0, 1), TREK_ERR_ARGUMENT, "adaptive_max_pool3d: height: ");
    REFUSED(trek_nn_max_unpool1d(0), TREK_ERR_ARGUMENT, "max_unpool1d: kernel: ");
    REFUSED(trek_nn_max_unpool2d_with(NULL), TREK_ERR_ARGUMENT, "max_unpool2d: options: NULL");
    REFUSED(trek_nn_lp_pool1d(0, 2), TREK_ERR_ARGUMENT, "lp_pool1d: norm: 0");
    REFUSED(trek_nn_lp_pool2d_with(2, &(trek_pool_opts){ .kernel = { 2 }, .dilation = { 2 } }), TREK_ERR_ARGUMENT,
            "lp_pool2d: padding or dilation: set");
    REFUSED(trek_nn_lp_pool3d_with(2, NULL), TREK_ERR_ARGUMENT, "lp_pool3d: options: NULL");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(places_of_maxima), TEST(gradients),   TEST(divisors), TEST(windows_by_chance), TEST(kinds), TEST(undoing),
        TEST(undoing_refused),  TEST(power_means), TEST(layers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
