/* SPDX-License-Identifier: Apache-2.0 */
/* Adaptive max pools, max unpooling and power-average pools of one, two and three dimensions. Each kind is one layer. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>

#include "autograd/ops.h"
#include "nn/layers_internal.h"
#include "nn/module_internal.h"
#include "nn/spatial.h"

typedef struct window_layer {
    trek_module base;
    int dims;
    int64_t sizes[3];      /* of an adaptive pool's result */
    trek_unpool_opts undo; /* for unpooling */
    trek_pool_opts opts;
    double norm;
} window_layer;

/* Writes the effective numbers of a list, such as "2 x 3". */
static void list_text(const int64_t *list, int dims, char *text, size_t size)
{
    int n = snprintf(text, size, "%" PRId64, list[0]);
    int64_t number = list[0];
    for (int d = 1; d < dims && n > 0 && (size_t)n < size; d++) {
        number = list[d] ? list[d] : number;
        n += snprintf(text + n, size - (size_t)n, "x%" PRId64, number);
    }
}

static void window_text(const int64_t *kernel, const int64_t *stride, int dims, char *text, size_t size)
{
    char kernels[64], strides[64];
    list_text(kernel, dims, kernels, sizeof kernels);
    list_text(stride[0] ? stride : kernel, dims, strides, sizeof strides);
    snprintf(text, size, "kernel %s, stride %s", kernels, strides);
}

/* --- to a given size --------------------------------------------------------------------- */

static trek_var *adaptive(const window_layer *m, trek_var *x, trek_var **indices)
{
    const int64_t *s = m->sizes;
    return m->dims == 1 ? trek_adaptive_max_pool1d(x, s[0], indices) : m->dims == 2
        ? trek_adaptive_max_pool2d(x, s[0], s[1], indices) : trek_adaptive_max_pool3d(x, s[0], s[1], s[2], indices);
}

static trek_var *adaptive_forward(trek_module *self, trek_var *x) { return adaptive((window_layer *)self, x, NULL); }

static trek_status adaptive_results(trek_module *self, trek_var *const *inputs, int n, trek_var **results, int count)
{
    if (n > 1)
        return trek_fail(TREK_ERR_ARGUMENT, "%s: inputs: %d; it takes one", self->own->klass->name, n);
    results[0] = adaptive((window_layer *)self, inputs[0], count > 1 ? &results[1] : NULL);
    return results[0] ? TREK_OK : trek_error_status();
}

static void adaptive_describe(const trek_module *self, char *text, size_t size)
{
    const window_layer *m = (const window_layer *)self;
    list_text(m->sizes, m->dims, text, size);
}

#define ADAPTIVE_CLASS(name_)                                                                                                    \
    { .name = name_, .size = sizeof(window_layer), .forward = adaptive_forward, .forward_results = adaptive_results,             \
      .result_names = trek_layer_pool_result_names, .describe = adaptive_describe }
static const trek_module_class adaptive_classes[3] = { ADAPTIVE_CLASS("adaptive_max_pool1d"),
                                                       ADAPTIVE_CLASS("adaptive_max_pool2d"),
                                                       ADAPTIVE_CLASS("adaptive_max_pool3d") };

static window_layer *window_new(const trek_module_class *classes, int dims)
{
    window_layer *m = (window_layer *)trek_module_new(&classes[dims - 1]);
    if (m)
        m->dims = dims;
    return m;
}

static trek_module *adaptive_new(int dims, const int64_t *sizes)
{
    static const char *const names[3][3] = { { "length" }, { "height", "width" }, { "depth", "height", "width" } };
    for (int d = 0; d < dims; d++)
        if (trek_layer_positive(adaptive_classes[dims - 1].name, names[dims - 1][d], sizes[d]) != TREK_OK)
            return NULL;
    window_layer *m = window_new(adaptive_classes, dims);
    for (int d = 0; m && d < dims; d++)
        m->sizes[d] = sizes[d];
    return m ? &m->base : NULL;
}

trek_module *trek_nn_adaptive_max_pool1d(int64_t length) { return adaptive_new(1, (const int64_t[]){ length }); }
trek_module *trek_nn_adaptive_max_pool2d(int64_t height, int64_t width)
{
    return adaptive_new(2, (const int64_t[]){ height, width });
}
trek_module *trek_nn_adaptive_max_pool3d(int64_t depth, int64_t height, int64_t width)
{
    return adaptive_new(3, (const int64_t[]){ depth, height, width });
}

/* --- undoing max pools --------------------------------------------------------------------- */

/* The inputs are x and the indices of the pool. */
static trek_var *unpool_forward(trek_module *self, trek_var *const *inputs, int n)
{
    static trek_var *(*const run[3])(trek_var *, trek_var *, const trek_unpool_opts *) = { trek_max_unpool1d, trek_max_unpool2d,
                                                                                          trek_max_unpool3d };
    const window_layer *m = (const window_layer *)self;
    if (n != 2)
        return trek_fail_null(TREK_ERR_ARGUMENT, "%s: inputs: %d; it takes x and indices", self->own->klass->name, n);
    return run[m->dims - 1](inputs[0], inputs[1], &m->undo);
}

static void unpool_describe(const trek_module *self, char *text, size_t size)
{
    const window_layer *m = (const window_layer *)self;
    window_text(m->undo.kernel, m->undo.stride, m->dims, text, size);
}

static const char *const unpool_inputs[] = { "indices", NULL };
#define UNPOOL_CLASS(name_)                                                                                                      \
    { .name = name_, .size = sizeof(window_layer), .forward_many = unpool_forward, .describe = unpool_describe,                  \
      .input_names = unpool_inputs }
static const trek_module_class unpool_classes[3] = { UNPOOL_CLASS("max_unpool1d"), UNPOOL_CLASS("max_unpool2d"),
                                                     UNPOOL_CLASS("max_unpool3d") };

/* Checks a list of numbers, each of which may be 0 except the first one of a kernel. */
static trek_status check_windows(const char *layer, const int64_t *kernel, const int64_t *stride, const int64_t *padding,
                                 int dims)
{
    if (trek_layer_positive(layer, "kernel", kernel[0]) != TREK_OK)
        return trek_error_status();
    for (int d = 0; d < dims; d++)
        if (kernel[d] < 0 || stride[d] < 0)
            return trek_fail(TREK_ERR_ARGUMENT, "%s: kernel, stride: one is negative; must be 0 or more", layer);
    int64_t written[3];
    trek_option_paddings(written, padding, dims);
    return trek_option_check_paddings(layer, "padding", written, dims);
}

static trek_module *unpool_new(int dims, const trek_unpool_opts *opts)
{
    const char *name = unpool_classes[dims - 1].name;
    if (!opts)
        return trek_fail_null(TREK_ERR_ARGUMENT, "%s: options: NULL; they must be given", name);
    if (check_windows(name, opts->kernel, opts->stride, opts->padding, dims) != TREK_OK)
        return NULL;
    window_layer *m = window_new(unpool_classes, dims);
    if (m)
        m->undo = *opts;
    return m ? &m->base : NULL;
}

trek_module *trek_nn_max_unpool1d_with(const trek_unpool_opts *opts) { return unpool_new(1, opts); }
trek_module *trek_nn_max_unpool2d_with(const trek_unpool_opts *opts) { return unpool_new(2, opts); }
trek_module *trek_nn_max_unpool3d_with(const trek_unpool_opts *opts) { return unpool_new(3, opts); }
trek_module *trek_nn_max_unpool1d(int64_t kernel) { return unpool_new(1, &(trek_unpool_opts){ .kernel = { kernel } }); }
trek_module *trek_nn_max_unpool2d(int64_t kernel) { return unpool_new(2, &(trek_unpool_opts){ .kernel = { kernel } }); }
trek_module *trek_nn_max_unpool3d(int64_t kernel) { return unpool_new(3, &(trek_unpool_opts){ .kernel = { kernel } }); }

/* --- power means -------------------------------------------------------------------------------- */

static trek_var *lp_forward(trek_module *self, trek_var *x)
{
    static trek_var *(*const run[3])(trek_var *, double, const trek_pool_opts *) = { trek_lp_pool1d, trek_lp_pool2d,
                                                                                    trek_lp_pool3d };
    const window_layer *m = (const window_layer *)self;
    return run[m->dims - 1](x, m->norm, &m->opts);
}

static void lp_describe(const trek_module *self, char *text, size_t size)
{
    const window_layer *m = (const window_layer *)self;
    char number[32], windows[160];
    window_text(m->opts.kernel, m->opts.stride, m->dims, windows, sizeof windows);
    snprintf(text, size, "norm %s, %s", trek_layer_number(m->norm, number), windows);
}

#define LP_CLASS(name_) { .name = name_, .size = sizeof(window_layer), .forward = lp_forward, .describe = lp_describe }
static const trek_module_class lp_classes[3] = { LP_CLASS("lp_pool1d"), LP_CLASS("lp_pool2d"), LP_CLASS("lp_pool3d") };

static trek_module *lp_new(int dims, double norm, const trek_pool_opts *opts)
{
    const char *name = lp_classes[dims - 1].name;
    if (!opts)
        return trek_fail_null(TREK_ERR_ARGUMENT, "%s: options: NULL; they must be given", name);
    if (norm == 0 || isnan(norm))
        return trek_fail_null(TREK_ERR_ARGUMENT, "%s: norm: %g; must be a number other than 0", name, norm);
    if (check_windows(name, opts->kernel, opts->stride, opts->padding, dims) != TREK_OK)
        return NULL;
    for (int d = 0; d < dims; d++)
        if (trek_option_integer(opts->padding[d], 0) != 0 || opts->dilation[d] < 0 || opts->dilation[d] > 1)
            return trek_fail_null(TREK_ERR_ARGUMENT, "%s: padding or dilation: set; this pooling has neither", name);
    window_layer *m = window_new(lp_classes, dims);
    if (m) {
        m->norm = norm;
        m->opts = *opts;
    }
    return m ? &m->base : NULL;
}

trek_module *trek_nn_lp_pool1d_with(double norm, const trek_pool_opts *opts) { return lp_new(1, norm, opts); }
trek_module *trek_nn_lp_pool2d_with(double norm, const trek_pool_opts *opts) { return lp_new(2, norm, opts); }
trek_module *trek_nn_lp_pool3d_with(double norm, const trek_pool_opts *opts) { return lp_new(3, norm, opts); }
trek_module *trek_nn_lp_pool1d(double norm, int64_t kernel) { return lp_new(1, norm, &(trek_pool_opts){ .kernel = { kernel } }); }
trek_module *trek_nn_lp_pool2d(double norm, int64_t kernel) { return lp_new(2, norm, &(trek_pool_opts){ .kernel = { kernel } }); }
trek_module *trek_nn_lp_pool3d(double norm, int64_t kernel) { return lp_new(3, norm, &(trek_pool_opts){ .kernel = { kernel } }); }
