/* SPDX-License-Identifier: Apache-2.0 */
/* Pools of one, two and three dimensions: maxima, averages and power averages, of windows and of parts of a given number, and max
 * unpooling. Each kind is one layer. */
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

char *trek_layer_list(const int64_t *list, int n, char *text, size_t size)
{
    int64_t number = list[0];
    int length = snprintf(text, size, "%" PRId64, trek_option_integer(number, 0));
    for (int d = 1; d < n && length > 0 && (size_t)length < size; d++) {
        number = list[d] ? list[d] : number;
        length += snprintf(text + length, size - (size_t)length, "x%" PRId64, trek_option_integer(number, 0));
    }
    return text;
}

static void window_text(const int64_t *kernel, const int64_t *stride, int dims, char *text, size_t size)
{
    char kernels[72], strides[72];
    snprintf(text, size, "kernel %s, stride %s", trek_layer_list(kernel, dims, kernels, sizeof kernels),
             trek_layer_list(stride[0] ? stride : kernel, dims, strides, sizeof strides));
}

static window_layer *window_new(const trek_module_class *classes, int dims)
{
    window_layer *m = (window_layer *)trek_module_new(&classes[dims - 1]);
    if (m)
        m->dims = dims;
    return m;
}

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

static trek_status fail_inputs(const trek_module *self, int n)
{
    return trek_fail(TREK_ERR_ARGUMENT, "%s: inputs: %d; it takes one", self->own->klass->name, n);
}

/* --- maxima and averages of windows ---------------------------------------------------------- */

static trek_var *max_forward(trek_module *self, trek_var *x)
{
    static trek_var *(*const run[3])(trek_var *, const trek_pool_opts *) = { trek_max_pool1d, trek_max_pool2d, trek_max_pool3d };
    const window_layer *m = (const window_layer *)self;
    return run[m->dims - 1](x, &m->opts);
}

static trek_status max_forward_results(trek_module *self, trek_var *const *inputs, int n, trek_var **results, int count)
{
    static trek_var *(*const run[3])(trek_var *, const trek_pool_opts *, trek_var **) = { trek_max_pool1d_with_indices,
                                                                                          trek_max_pool2d_with_indices,
                                                                                          trek_max_pool3d_with_indices };
    const window_layer *m = (const window_layer *)self;
    if (n > 1)
        return fail_inputs(self, n);
    results[0] = run[m->dims - 1](inputs[0], &m->opts, count > 1 ? &results[1] : NULL);
    return results[0] ? TREK_OK : trek_error_status();
}

static trek_var *avg_forward(trek_module *self, trek_var *x)
{
    static trek_var *(*const run[3])(trek_var *, const trek_pool_opts *) = { trek_avg_pool1d, trek_avg_pool2d, trek_avg_pool3d };
    const window_layer *m = (const window_layer *)self;
    return run[m->dims - 1](x, &m->opts);
}

static void pool_describe(const trek_module *self, char *text, size_t size)
{
    const window_layer *m = (const window_layer *)self;
    window_text(m->opts.kernel, m->opts.stride, m->dims, text, size);
}

static const char *const max_results[] = { "output", "indices", NULL };

#define MAX(name_)                                                                                                               \
    {                                                                                                                            \
        .name = name_, .size = sizeof(window_layer), .forward = max_forward, .forward_results = max_forward_results,             \
        .result_names = max_results, .describe = pool_describe, .rowwise = true \
    }
#define AVG(name_)                                                                                                               \
    {                                                                                                                            \
        .name = name_, .size = sizeof(window_layer), .forward = avg_forward, .describe = pool_describe, .rowwise = true \
    }
static const trek_module_class max_classes[3] = { MAX("max_pool1d"), MAX("max_pool2d"), MAX("max_pool3d") };
static const trek_module_class avg_classes[3] = { AVG("avg_pool1d"), AVG("avg_pool2d"), AVG("avg_pool3d") };

static trek_module *pool_new(const trek_module_class *classes, int dims, const trek_pool_opts *opts)
{
    const char *name = classes[dims - 1].name;
    if (!opts)
        return trek_fail_null(TREK_ERR_ARGUMENT, "%s: options: NULL; they must be given", name);
    if (check_windows(name, opts->kernel, opts->stride, opts->padding, dims) != TREK_OK)
        return NULL;
    for (int d = 0; d < dims; d++)
        if (opts->dilation[d] < 0)
            return trek_fail_null(TREK_ERR_ARGUMENT, "%s: dilation: %" PRId64 "; must be 0 or more", name, opts->dilation[d]);
    window_layer *m = window_new(classes, dims);
    if (m)
        m->opts = *opts;
    return m ? &m->base : NULL;
}

trek_module *trek_nn_max_pool1d_with(const trek_pool_opts *opts) { return pool_new(max_classes, 1, opts); }
trek_module *trek_nn_max_pool2d_with(const trek_pool_opts *opts) { return pool_new(max_classes, 2, opts); }
trek_module *trek_nn_max_pool3d_with(const trek_pool_opts *opts) { return pool_new(max_classes, 3, opts); }
trek_module *trek_nn_max_pool1d(int64_t kernel) { return trek_nn_max_pool1d_with(&(trek_pool_opts){ .kernel = { kernel } }); }
trek_module *trek_nn_max_pool2d(int64_t kernel) { return trek_nn_max_pool2d_with(&(trek_pool_opts){ .kernel = { kernel } }); }
trek_module *trek_nn_max_pool3d(int64_t kernel) { return trek_nn_max_pool3d_with(&(trek_pool_opts){ .kernel = { kernel } }); }
trek_module *trek_nn_avg_pool1d_with(const trek_pool_opts *opts) { return pool_new(avg_classes, 1, opts); }
trek_module *trek_nn_avg_pool2d_with(const trek_pool_opts *opts) { return pool_new(avg_classes, 2, opts); }
trek_module *trek_nn_avg_pool3d_with(const trek_pool_opts *opts) { return pool_new(avg_classes, 3, opts); }
trek_module *trek_nn_avg_pool1d(int64_t kernel) { return trek_nn_avg_pool1d_with(&(trek_pool_opts){ .kernel = { kernel } }); }
trek_module *trek_nn_avg_pool2d(int64_t kernel) { return trek_nn_avg_pool2d_with(&(trek_pool_opts){ .kernel = { kernel } }); }
trek_module *trek_nn_avg_pool3d(int64_t kernel) { return trek_nn_avg_pool3d_with(&(trek_pool_opts){ .kernel = { kernel } }); }

/* --- to a given size --------------------------------------------------------------------- */

static trek_var *adaptive_max(const window_layer *m, trek_var *x, trek_var **indices)
{
    const int64_t *s = m->sizes;
    return m->dims == 1   ? trek_adaptive_max_pool1d(x, s[0], indices)
           : m->dims == 2 ? trek_adaptive_max_pool2d(x, s[0], s[1], indices)
                          : trek_adaptive_max_pool3d(x, s[0], s[1], s[2], indices);
}

static trek_var *adaptive_max_forward(trek_module *self, trek_var *x) { return adaptive_max((window_layer *)self, x, NULL); }

static trek_status adaptive_max_results(trek_module *self, trek_var *const *inputs, int n, trek_var **results, int count)
{
    if (n > 1)
        return fail_inputs(self, n);
    results[0] = adaptive_max((window_layer *)self, inputs[0], count > 1 ? &results[1] : NULL);
    return results[0] ? TREK_OK : trek_error_status();
}

static trek_var *adaptive_avg_forward(trek_module *self, trek_var *x)
{
    const window_layer *m = (const window_layer *)self;
    const int64_t *s = m->sizes;
    return m->dims == 1   ? trek_adaptive_avg_pool1d(x, s[0])
           : m->dims == 2 ? trek_adaptive_avg_pool2d(x, s[0], s[1])
                          : trek_adaptive_avg_pool3d(x, s[0], s[1], s[2]);
}

static void adaptive_describe(const trek_module *self, char *text, size_t size)
{
    const window_layer *m = (const window_layer *)self;
    trek_layer_list(m->sizes, m->dims, text, size);
}

#define ADAPTIVE_MAX(name_)                                                                                                      \
    {                                                                                                                            \
        .name = name_, .size = sizeof(window_layer), .forward = adaptive_max_forward, .forward_results = adaptive_max_results,   \
        .result_names = max_results, .describe = adaptive_describe                                                               \
    }
#define ADAPTIVE_AVG(name_)                                                                                                      \
    {                                                                                                                            \
        .name = name_, .size = sizeof(window_layer), .forward = adaptive_avg_forward, .describe = adaptive_describe              \
    }
static const trek_module_class adaptive_max_classes[3] = { ADAPTIVE_MAX("adaptive_max_pool1d"),
                                                           ADAPTIVE_MAX("adaptive_max_pool2d"),
                                                           ADAPTIVE_MAX("adaptive_max_pool3d") };
static const trek_module_class adaptive_avg_classes[3] = { ADAPTIVE_AVG("adaptive_avg_pool1d"),
                                                           ADAPTIVE_AVG("adaptive_avg_pool2d"),
                                                           ADAPTIVE_AVG("adaptive_avg_pool3d") };

static trek_module *adaptive_new(const trek_module_class *classes, int dims, const int64_t *sizes)
{
    static const char *const names[3][3] = { { "length" }, { "height", "width" }, { "depth", "height", "width" } };
    for (int d = 0; d < dims; d++)
        if (trek_layer_positive(classes[dims - 1].name, names[dims - 1][d], sizes[d]) != TREK_OK)
            return NULL;
    window_layer *m = window_new(classes, dims);
    for (int d = 0; m && d < dims; d++)
        m->sizes[d] = sizes[d];
    return m ? &m->base : NULL;
}

trek_module *trek_nn_adaptive_max_pool1d(int64_t length)
{
    return adaptive_new(adaptive_max_classes, 1, (const int64_t[]){ length });
}
trek_module *trek_nn_adaptive_max_pool2d(int64_t height, int64_t width)
{
    return adaptive_new(adaptive_max_classes, 2, (const int64_t[]){ height, width });
}
trek_module *trek_nn_adaptive_max_pool3d(int64_t depth, int64_t height, int64_t width)
{
    return adaptive_new(adaptive_max_classes, 3, (const int64_t[]){ depth, height, width });
}
trek_module *trek_nn_adaptive_avg_pool1d(int64_t length)
{
    return adaptive_new(adaptive_avg_classes, 1, (const int64_t[]){ length });
}
trek_module *trek_nn_adaptive_avg_pool2d(int64_t height, int64_t width)
{
    return adaptive_new(adaptive_avg_classes, 2, (const int64_t[]){ height, width });
}
trek_module *trek_nn_adaptive_avg_pool3d(int64_t depth, int64_t height, int64_t width)
{
    return adaptive_new(adaptive_avg_classes, 3, (const int64_t[]){ depth, height, width });
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
    {                                                                                                                            \
        .name = name_, .size = sizeof(window_layer), .forward_many = unpool_forward, .describe = unpool_describe,                \
        .input_names = unpool_inputs                                                                                             \
    }
static const trek_module_class unpool_classes[3] = { UNPOOL_CLASS("max_unpool1d"), UNPOOL_CLASS("max_unpool2d"),
                                                     UNPOOL_CLASS("max_unpool3d") };

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

#define LP_CLASS(name_)                                                                                                          \
    {                                                                                                                            \
        .name = name_, .size = sizeof(window_layer), .forward = lp_forward, .describe = lp_describe                              \
    }
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
