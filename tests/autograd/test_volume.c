/* SPDX-License-Identifier: Apache-2.0 */
/* Convolution, its transpose and pooling over three dimensions, against plain loops. */
#include "autograd/backward.h"
#include "autograd/gradcheck.h"
#include "autograd/ops.h"
#include "nn/layers.h"
#include "tensor/copies.h"
#include "tensor/shapes.h"
#include "tests/support/scoped.h"
#include "tests/support/support.h"

enum { MOST = 4096 };
/* Numbers in [-1, 1), none twice. */
static trek_var *numbers(uint32_t seed, trek_shape shape, bool grad)
{
    double values[MOST];
    int64_t n = trek_shape_numel(shape);
    assert_true(n <= MOST);
    for (int64_t k = 0; k < n; k++) {
        seed = seed * 1664525u + 1013904223u;
        values[k] = (double)(seed >> 12) / 524288.0 - 1 + (double)k * 1e-9;
    }
    trek_tensor *t = trek_tensor_from_data(values, shape, TREK_F64, test_device());
    trek_var *v = trek_var_new(t, grad);
    trek_tensor_release(t);
    return v;
}

static void read(trek_var *v, double *to)
{
    if (!v)
        fail_msg("%s", trek_error());
    assert_true(trek_var_numel(v) <= MOST);
    assert_int_equal(trek_tensor_to_host(trek_var_data(v), TREK_F64, to, (size_t)trek_var_numel(v) * sizeof *to), TREK_OK);
}

typedef struct volume_case {
    int64_t n, groups, in, out, size[3], kernel[3], stride[3], padding[3], dilation[3];
} volume_case;

static const volume_case volumes[] = {
    { 2, 1, 2, 3, { 4, 5, 3 }, { 2, 3, 1 }, { 1, 1, 1 }, { 0, 0, 0 }, { 1, 1, 1 } },
    { 1, 2, 4, 2, { 5, 4, 6 }, { 3, 2, 3 }, { 2, 1, 3 }, { 1, 0, 2 }, { 1, 2, 1 } },
    { 2, 3, 3, 6, { 3, 3, 3 }, { 1, 3, 3 }, { 1, 2, 1 }, { 0, 1, 1 }, { 1, 1, 1 } },
    { 1, 1, 1, 2, { 6, 2, 2 }, { 2, 1, 2 }, { 1, 1, 1 }, { 2, 1, 0 }, { 3, 1, 1 } },
    { 0, 1, 2, 2, { 3, 3, 3 }, { 2, 2, 2 }, { 1, 1, 1 }, { 0, 0, 0 }, { 1, 1, 1 } },
    { 2, 1, 1, 1, { 1, 1, 1 }, { 1, 1, 1 }, { 2, 2, 2 }, { 0, 0, 0 }, { 1, 1, 1 } },
};
enum { VOLUMES = sizeof volumes / sizeof *volumes };

/* An option's list: 0 behind another number is that number, so zeros are said. */
static void list(int64_t to[3], const int64_t from[3])
{
    for (int d = 0; d < 3; d++)
        to[d] = from[d] ? from[d] : TREK_ZERO;
}

static trek_conv_opts opts_of(const volume_case *c)
{
    trek_conv_opts o = { .groups = c->groups };
    list(o.stride, c->stride);
    list(o.padding, c->padding);
    list(o.dilation, c->dilation);
    return o;
}

static int64_t place(const volume_case *c, int d, int64_t out, int64_t k)
{
    int64_t at = out * c->stride[d] + k * c->dilation[d] - c->padding[d];
    return at >= 0 && at < c->size[d] ? at : -1;
}

/* One element of the convolution. */
static double convolved(const volume_case *c, const double *x, const double *w, int64_t n, int64_t o, const int64_t at[3])
{
    int64_t per = c->in / c->groups, first = o / (c->out / c->groups) * per, volume = c->size[0] * c->size[1] * c->size[2];
    double sum = 0;
    for (int64_t i = 0; i < per; i++)
        for (int64_t a = 0; a < c->kernel[0]; a++)
            for (int64_t b = 0; b < c->kernel[1]; b++)
                for (int64_t e = 0; e < c->kernel[2]; e++) {
                    int64_t p = place(c, 0, at[0], a), q = place(c, 1, at[1], b), r = place(c, 2, at[2], e);
                    if (p < 0 || q < 0 || r < 0)
                        continue;
                    sum += x[(n * c->in + first + i) * volume + (p * c->size[1] + q) * c->size[2] + r] *
                           w[(((o * per + i) * c->kernel[0] + a) * c->kernel[1] + b) * c->kernel[2] + e];
                }
    return sum;
}

static void test_convolution(void **state)
{
    static double x_[MOST], w_[MOST], b_[MOST], y_[MOST];
    for (int k = 0; k < VOLUMES; k++) {
        const volume_case *c = &volumes[k];
        trek_conv_opts o = opts_of(c);
        trek_var *x = numbers(1, trek_dims(c->n, c->in, c->size[0], c->size[1], c->size[2]), false);
        trek_var *w = numbers(2, trek_dims(c->out, c->in / c->groups, c->kernel[0], c->kernel[1], c->kernel[2]), false);
        trek_var *b = numbers(3, trek_dims(c->out), false), *y = trek_conv3d(x, w, b, &o);
        read(x, x_), read(w, w_), read(b, b_), read(y, y_);
        trek_shape s = trek_var_shape(y);
        assert_true(s.ndim == 5 && s.sizes[0] == c->n && s.sizes[1] == c->out);
        int64_t volume = s.sizes[2] * s.sizes[3] * s.sizes[4];
        for (int d = 0; d < 3; d++)
            assert_int_equal(s.sizes[2 + d],
                             (c->size[d] + 2 * c->padding[d] - c->dilation[d] * (c->kernel[d] - 1) - 1) / c->stride[d] + 1);
        for (int64_t i = 0; i < trek_var_numel(y); i++) {
            int64_t at[3] = { i % volume / (s.sizes[3] * s.sizes[4]), i / s.sizes[4] % s.sizes[3], i % s.sizes[4] };
            int64_t channel = i / volume % c->out;
            assert_true(fabs(y_[i] - b_[channel] - convolved(c, x_, w_, i / volume / c->out, channel, at)) < 1e-12);
        }
    }
}

static double dot(trek_var *a, trek_var *b)
{
    return trek_tensor_item(trek_var_data(trek_sum(trek_mul(a, b), trek_dims_all(), false)));
}

/* <conv(x), y> = <x, transpose(y)>, with the weight as it is. */
static void test_transpose(void **state)
{
    for (int k = 0; k < VOLUMES; k++) {
        const volume_case *c = &volumes[k];
        if (c->n == 0)
            continue;
        trek_conv_opts o = opts_of(c);
        trek_var *x = numbers(1, trek_dims(c->n, c->in, c->size[0], c->size[1], c->size[2]), false);
        trek_var *w = numbers(2, trek_dims(c->out, c->in / c->groups, c->kernel[0], c->kernel[1], c->kernel[2]), false);
        trek_var *made = trek_conv3d(x, w, NULL, &o), *y = numbers(4, trek_var_shape(made), false);
        trek_conv_transpose_opts t = { .groups = c->groups, .output_size = { c->size[0], c->size[1], c->size[2] } };
        list(t.stride, c->stride);
        list(t.padding, c->padding);
        list(t.dilation, c->dilation);
        trek_var *back = trek_conv_transpose3d(y, w, NULL, &t);
        if (!back)
            fail_msg("%s", trek_error());
        assert_true(fabs(dot(made, y) - dot(x, back)) < 1e-11);
        trek_var *bias = numbers(5, trek_dims(c->in), false), *biased = trek_conv_transpose3d(y, w, bias, &t);
        assert_true(fabs(dot(trek_sub(biased, back), biased) -
                         dot(trek_reshape(bias, trek_dims(c->in, 1, 1, 1)), biased)) < 1e-9);
    }
    trek_var *x = numbers(1, trek_dims(1, 1, 2, 1, 1), false), *w = numbers(2, trek_dims(1, 1, 2, 1, 1), false);
    trek_conv_transpose_opts t = { .stride = { 3, 1, 1 }, .output_padding = { 2, TREK_ZERO, TREK_ZERO } };
    double x_[2], w_[2], y_[7];
    trek_var *y = trek_conv_transpose3d(x, w, NULL, &t);
    read(x, x_), read(w, w_), read(y, y_);
    assert_int_equal(trek_var_numel(y), 7);
    for (int64_t k = 0; k < 7; k++)
        assert_true(fabs(y_[k] - (k < 2 ? x_[0] * w_[k] : k >= 3 && k < 5 ? x_[1] * w_[k - 3] : 0)) < 1e-15);
}

static trek_var *convolve(trek_var *const *in, int n, void *arg)
{
    trek_conv_opts o = opts_of(arg);
    return trek_conv3d(in[0], in[1], n > 2 ? in[2] : NULL, &o);
}
static trek_var *transpose(trek_var *const *in, int n, void *arg)
{
    trek_conv_transpose_opts o = { .groups = 1, .stride = { 2, 1, 1 }, .padding = { 1, TREK_ZERO, TREK_ZERO } };
    return (void)arg, trek_conv_transpose3d(in[0], in[1], n > 2 ? in[2] : NULL, &o);
}
static trek_var *largest(trek_var *const *in, int n, void *arg)
{
    return (void)n, (void)arg, trek_max_pool3d(in[0],
                                               &(trek_pool_opts){ .kernel = { 2 }, .stride = { 1 }, .padding = { 1, 1, 1 } });
}
static trek_var *average(trek_var *const *in, int n, void *arg)
{
    return (void)n, trek_avg_pool3d(in[0], arg);
}
static trek_var *adaptive(trek_var *const *in, int n, void *arg)
{
    return (void)n, (void)arg, trek_adaptive_avg_pool3d(in[0], 2, 3, 1);
}

static void check(trek_gradcheck_fn fn, trek_var **inputs, int n, void *arg)
{
    SUCCEEDS(trek_gradcheck(fn, inputs, n, arg, &(trek_gradcheck_opts){ .second = true }));
}

static void test_gradients(void **state)
{
    volume_case c = volumes[1];
    c.size[1] = 3, c.size[2] = 3;
    trek_var *in[3] = { numbers(1, trek_dims(1, 4, 5, 3, 3), true), numbers(2, trek_dims(2, 2, 3, 2, 3), true),
                        numbers(3, trek_dims(2), true) };
    check(convolve, in, 3, &c);
    trek_var *back[3] = { numbers(1, trek_dims(2, 2, 2, 2, 1), true), numbers(2, trek_dims(2, 3, 3, 1, 2), true),
                          numbers(3, trek_dims(3), true) };
    check(transpose, back, 3, NULL);
    trek_var *x = numbers(4, trek_dims(1, 2, 3, 4, 2), true);
    check(largest, &x, 1, NULL);
    check(average, &x, 1, &(trek_pool_opts){ .kernel = { 2, 3, 1 }, .padding = { 1, 1, TREK_ZERO }, .exclude_padding = true });
    check(adaptive, &x, 1, NULL);
}

/* Windows by loops: their largest number, or their mean over all of the kernel, or over what is inside. */
static double window(const double *x, const int64_t size[3], const int64_t first[3], const int64_t kernel[3], int kind)
{
    double largest_ = -INFINITY, sum = 0, inside = 0;
    for (int64_t a = first[0]; a < first[0] + kernel[0]; a++)
        for (int64_t b = first[1]; b < first[1] + kernel[1]; b++)
            for (int64_t c = first[2]; c < first[2] + kernel[2]; c++) {
                if (a < 0 || b < 0 || c < 0 || a >= size[0] || b >= size[1] || c >= size[2])
                    continue;
                double v = x[(a * size[1] + b) * size[2] + c];
                largest_ = fmax(largest_, v);
                sum += v, inside++;
            }
    return kind == 0 ? largest_ : kind == 1 ? sum / (double)(kernel[0] * kernel[1] * kernel[2]) : sum / inside;
}

static void test_pooling(void **state)
{
    static double x_[MOST], y_[MOST];
    const int64_t size[3] = { 5, 4, 6 }, kernel[3] = { 3, 2, 2 }, stride[3] = { 2, 1, 3 }, padding[3] = { 1, 1, 0 };
    trek_var *x = numbers(1, trek_dims(2, 3, size[0], size[1], size[2]), false);
    read(x, x_);
    for (int kind = 0; kind < 3; kind++) {
        trek_pool_opts o = { .exclude_padding = kind == 2 };
        list(o.kernel, kernel), list(o.stride, stride), list(o.padding, padding);
        trek_var *y = kind == 0 ? trek_max_pool3d(x, &o) : trek_avg_pool3d(x, &o);
        read(y, y_);
        trek_shape s = trek_var_shape(y);
        int64_t volume = s.sizes[2] * s.sizes[3] * s.sizes[4];
        assert_true(s.sizes[2] == 3 && s.sizes[3] == 5 && s.sizes[4] == 2);
        for (int64_t i = 0; i < trek_var_numel(y); i++) {
            int64_t first[3] = { i % volume / (s.sizes[3] * s.sizes[4]), i / s.sizes[4] % s.sizes[3], i % s.sizes[4] };
            for (int d = 0; d < 3; d++)
                first[d] = first[d] * stride[d] - padding[d];
            assert_true(fabs(y_[i] - window(x_ + i / volume * 120, size, first, kernel, kind)) < 1e-14);
        }
    }
    trek_var *y = trek_adaptive_avg_pool3d(x, 2, 4, 3);
    read(y, y_);
    for (int64_t i = 0; i < trek_var_numel(y); i++) { /* depths 0 to 2 and 2 to 4, each row, two columns */
        int64_t first[3] = { i / 12 % 2 * 2, i / 3 % 4, i % 3 * 2 };
        assert_true(fabs(y_[i] - window(x_ + i / 24 * 120, size, first, (const int64_t[]){ 3, 1, 2 }, 1)) < 1e-14);
    }
    trek_var *halves = trek_avg_pool3d(trek_cast(x, TREK_BF16), &(trek_pool_opts){ .kernel = { 2 } });
    assert_int_equal(trek_var_dtype(halves), TREK_BF16);
}

static trek_var *run(trek_module *module, trek_var *x)
{
    if (!module)
        fail_msg("%s", trek_error());
    trek_var *y = trek_forward(module, x);
    trek_module_free(&module);
    return y;
}

static void test_layers(void **state)
{
    double y_[MOST], z_[MOST];
    trek_var *x = trek_cast(numbers(1, trek_dims(2, 2, 4, 4, 4), false), TREK_F32);
    trek_pool_opts pool = { .kernel = { 2 }, .stride = { 1 } };
    read(run(trek_nn_max_pool3d_with(&pool), x), y_), read(trek_max_pool3d(x, &pool), z_);
    assert_memory_equal(y_, z_, 2 * 2 * 27 * sizeof *y_);
    read(run(trek_nn_avg_pool3d_with(&pool), x), y_), read(trek_avg_pool3d(x, &pool), z_);
    assert_memory_equal(y_, z_, 2 * 2 * 27 * sizeof *y_);
    assert_int_equal(trek_var_numel(run(trek_nn_max_pool3d(2), x)), 2 * 2 * 8);
    assert_int_equal(trek_var_numel(run(trek_nn_avg_pool3d(4), x)), 2 * 2);
    assert_int_equal(trek_var_numel(run(trek_nn_adaptive_avg_pool3d(1, 2, 3), x)), 2 * 2 * 6);
    trek_module *conv = trek_nn_conv3d_with(&(trek_conv3d_opts){ .in = 2, .out = 4, .kernel = { 3 }, .padding = { 1, 1, 1 },
                                                                 .groups = 2,
                                                                 .padding_mode = TREK_PAD_MODE_CIRCULAR,
                                                                 .device = test_device() });
    assert_int_equal(trek_module_param_count(conv), 4 * 27 + 4);
    assert_int_equal(trek_var_numel(run(conv, x)), 2 * 4 * 64);
    assert_int_equal(trek_var_numel(run(trek_nn_conv3d(2, 3, 2, test_device()), x)), 2 * 3 * 27);
    assert_int_equal(trek_var_numel(run(trek_nn_conv_transpose3d(2, 3, 2, test_device()), x)), 2 * 3 * 125);
    trek_conv_transpose3d_opts more = { .in = 2, .out = 2, .kernel = { 3 }, .stride = { 2 }, .padding = { 1, 1, 1 },
                                        .output_padding = { 1, 1, 1 },
                                        .no_bias = true, .device = test_device() };
    conv = trek_nn_conv_transpose3d_with(&more);
    assert_int_equal(trek_module_param_count(conv), 2 * 2 * 27);
    assert_int_equal(trek_var_numel(run(conv, x)), 2 * 2 * 512);
}

static void test_refused(void **state)
{
    trek_var *x = numbers(1, trek_dims(1, 2, 2, 2, 2), false), *w = numbers(2, trek_dims(2, 2, 3, 1, 1), false);
    REFUSED(trek_conv3d(trek_select(x, 0, 0), w, NULL, NULL), TREK_ERR_SHAPE, "conv3d: x: ");
    REFUSED(trek_conv3d(x, w, NULL, NULL), TREK_ERR_SHAPE, "a kernel of depth 3 does not fit into 2");
    REFUSED(trek_conv3d(x, NULL, NULL, NULL), TREK_ERR_ARGUMENT, "weight");
    REFUSED(trek_conv3d(x, w, NULL, &(trek_conv_opts){ .stride = { -1 }, .padding = { 1, 1, 1 } }), TREK_ERR_ARGUMENT,
            "stride and dilation");
    REFUSED(trek_conv_transpose3d(x, w, NULL, &(trek_conv_transpose_opts){ .output_padding = { 1, 1, 1 } }), TREK_ERR_ARGUMENT,
            "in depth; must not be negative");
    REFUSED(trek_conv_transpose3d(x, w, NULL, &(trek_conv_transpose_opts){ .padding = { 4, 4, 4 } }), TREK_ERR_SHAPE,
            "give an empty result");
    REFUSED(trek_conv_transpose3d(x, w, numbers(1, trek_dims(3), false), NULL), TREK_ERR_SHAPE, "must have 2 elements");
    REFUSED(trek_max_pool3d(x, NULL), TREK_ERR_ARGUMENT, "max_pool3d: kernel: ");
    REFUSED(trek_avg_pool3d(x, &(trek_pool_opts){ .kernel = { 3 } }), TREK_ERR_SHAPE, "");
    REFUSED(trek_adaptive_avg_pool3d(x, 0, 1, 1), TREK_ERR_ARGUMENT, "");
    REFUSED(trek_nn_conv3d(2, 3, 0, test_device()), TREK_ERR_ARGUMENT, "kernel");
    REFUSED(trek_nn_conv3d_with(NULL), TREK_ERR_ARGUMENT, "options: NULL");
    REFUSED(trek_nn_conv_transpose3d_with( &(trek_conv_transpose3d_opts){ .in = 1, .out = 1, .kernel = { 2 },
                                                                          .output_padding = { TREK_ZERO, 1 },
                                                                          .device = trek_cpu(0) }), TREK_ERR_ARGUMENT,
                                                                          "output padding");
    REFUSED(trek_nn_max_pool3d(0), TREK_ERR_ARGUMENT, "kernel");
    REFUSED(trek_nn_adaptive_avg_pool3d(1, 0, 1), TREK_ERR_ARGUMENT, "height");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_convolution), TEST(test_transpose), TEST(test_gradients), TEST(test_pooling), TEST(test_layers),
        TEST(test_refused),
    };
    return cmocka_run_group_tests_name("volume", tests, NULL, NULL);
}
