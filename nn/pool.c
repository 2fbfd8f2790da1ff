/* SPDX-License-Identifier: Apache-2.0 */
/* Pooling, and layers that only change the shape. */
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>

#include "autograd/ops.h"
#include "nn/layers_internal.h"

/* --- windows ---------------------------------------------------------------- */

typedef struct pool_layer {
    trek_module base;
    trek_pool_opts opts;
} pool_layer;

static trek_var *max_pool2d_forward(trek_module *self, trek_var *x) { return trek_max_pool2d(x, &((pool_layer *)self)->opts); }
static trek_var *avg_pool2d_forward(trek_module *self, trek_var *x) { return trek_avg_pool2d(x, &((pool_layer *)self)->opts); }

const char *const trek_layer_pool_result_names[] = { "output", "indices", NULL };

trek_status trek_layer_pool_results(const char *layer, trek_var *(*pool)(trek_var *, const trek_pool_opts *, trek_var **),
                                    const trek_pool_opts *opts, trek_var *const *inputs, int n, trek_var **results, int count)
{
    if (n > 1)
        return trek_fail(TREK_ERR_ARGUMENT, "%s: inputs: %d; it takes one", layer, n);
    results[0] = pool(inputs[0], opts, count > 1 ? &results[1] : NULL);
    return results[0] ? TREK_OK : trek_error_status();
}

static trek_status max_pool2d_results(trek_module *self, trek_var *const *inputs, int n, trek_var **results, int count)
{
    return trek_layer_pool_results("max_pool2d", trek_max_pool2d_with_indices, &((pool_layer *)self)->opts, inputs, n, results,
                                   count);
}

static void pool_describe(const trek_module *self, char *text, size_t size)
{
    const trek_pool_opts *o = &((const pool_layer *)self)->opts;
    int64_t width = o->kernel[1] ? o->kernel[1] : o->kernel[0];
    int64_t down = o->stride[0] ? o->stride[0] : o->kernel[0];
    int64_t across = o->stride[1] ? o->stride[1] : o->stride[0] ? o->stride[0] : width;
    snprintf(text, size, "kernel %" PRId64 "x%" PRId64 ", stride %" PRId64 "x%" PRId64, o->kernel[0], width, down, across);
}

static const trek_module_class max_pool2d_class = {
    .name = "max_pool2d",
    .size = sizeof(pool_layer),
    .forward = max_pool2d_forward,
    .forward_results = max_pool2d_results,
    .result_names = trek_layer_pool_result_names,
    .describe = pool_describe,
};

static const trek_module_class avg_pool2d_class = {
    .name = "avg_pool2d",
    .size = sizeof(pool_layer),
    .forward = avg_pool2d_forward,
    .describe = pool_describe,
};

static trek_module *pool_new(const trek_module_class *klass, const trek_pool_opts *opts)
{
    if (!opts)
        return trek_fail_null(TREK_ERR_ARGUMENT, "%s: options: NULL; they must be given", klass->name);
    if (trek_layer_positive(klass->name, "kernel", opts->kernel[0]) != TREK_OK)
        return NULL;
    for (int d = 0; d < 2; d++)
        if (opts->kernel[d] < 0 || opts->stride[d] < 0 || opts->dilation[d] < 0)
            return trek_fail_null(TREK_ERR_ARGUMENT, "%s: kernel, stride, dilation: one is negative; must be 0 or more",
                                  klass->name);
    int64_t padding[2];
    trek_option_paddings(padding, opts->padding, 2);
    if (trek_option_check_paddings(klass->name, "padding", padding, 2) != TREK_OK)
        return NULL;
    trek_module *base = trek_module_new(klass);
    if (base)
        ((pool_layer *)base)->opts = *opts;
    return base;
}

trek_module *trek_nn_max_pool2d_with(const trek_pool_opts *opts) { return pool_new(&max_pool2d_class, opts); }
trek_module *trek_nn_avg_pool2d_with(const trek_pool_opts *opts) { return pool_new(&avg_pool2d_class, opts); }
trek_module *trek_nn_max_pool2d(int64_t kernel) { return trek_nn_max_pool2d_with(&(trek_pool_opts){ .kernel = { kernel } }); }
trek_module *trek_nn_avg_pool2d(int64_t kernel) { return trek_nn_avg_pool2d_with(&(trek_pool_opts){ .kernel = { kernel } }); }

/* --- a fixed output size ------------------------------------------------------ */

typedef struct pair_layer {
    trek_module base;
    int64_t first, second;
} pair_layer;

static trek_var *adaptive_forward(trek_module *self, trek_var *x)
{
    pair_layer *m = (pair_layer *)self;
    return trek_adaptive_avg_pool2d(x, m->first, m->second);
}

static trek_var *flatten_forward(trek_module *self, trek_var *x)
{
    pair_layer *m = (pair_layer *)self;
    return trek_flatten(x, (int)m->first, (int)m->second);
}

static void pair_describe(const trek_module *self, char *text, size_t size)
{
    const pair_layer *m = (const pair_layer *)self;
    snprintf(text, size, "%" PRId64 ", %" PRId64, m->first, m->second);
}

static const trek_module_class adaptive_avg_pool2d_class = {
    .name = "adaptive_avg_pool2d",
    .size = sizeof(pair_layer),
    .forward = adaptive_forward,
    .describe = pair_describe,
};

static const trek_module_class flatten_class = {
    .name = "flatten",
    .size = sizeof(pair_layer),
    .forward = flatten_forward,
    .describe = pair_describe,
};

static trek_module *pair_new(const trek_module_class *klass, int64_t first, int64_t second)
{
    trek_module *base = trek_module_new(klass);
    if (base) {
        ((pair_layer *)base)->first = first;
        ((pair_layer *)base)->second = second;
    }
    return base;
}

trek_module *trek_nn_adaptive_avg_pool2d(int64_t height, int64_t width)
{
    if (trek_layer_positive("adaptive_avg_pool2d", "height", height) != TREK_OK ||
        trek_layer_positive("adaptive_avg_pool2d", "width", width) != TREK_OK)
        return NULL;
    return pair_new(&adaptive_avg_pool2d_class, height, width);
}

static int option_dim(int dim, int otherwise) { return (int)trek_option_integer(dim, otherwise); }

trek_module *trek_nn_flatten_with(const trek_flatten_opts *opts)
{
    return pair_new(&flatten_class, option_dim(opts ? opts->start_dim : 0, 1), option_dim(opts ? opts->end_dim : 0, -1));
}

trek_module *trek_nn_flatten(void) { return trek_nn_flatten_with(NULL); }

/* --- one dimension as several --------------------------------------------------- */

typedef struct unflatten_layer {
    trek_module base;
    int dim;
    trek_shape sizes;
} unflatten_layer;

static trek_var *unflatten_forward(trek_module *self, trek_var *x)
{
    unflatten_layer *m = (unflatten_layer *)self;
    return trek_unflatten(x, m->dim, m->sizes);
}

static void unflatten_describe(const trek_module *self, char *text, size_t size)
{
    const unflatten_layer *m = (const unflatten_layer *)self;
    char shape[TREK_SHAPE_TEXT];
    snprintf(text, size, "%d, %s", m->dim, trek_shape_format(m->sizes, shape, sizeof shape));
}

static const trek_module_class unflatten_class = {
    .name = "unflatten",
    .size = sizeof(unflatten_layer),
    .forward = unflatten_forward,
    .describe = unflatten_describe,
};

trek_module *trek_nn_unflatten(int dim, trek_shape sizes)
{
    char text[TREK_SHAPE_TEXT];
    int open = 0;
    bool fits = sizes.ndim >= 1 && sizes.ndim <= TREK_MAX_DIMS;
    for (int d = 0; fits && d < sizes.ndim; d++) {
        open += sizes.sizes[d] == -1;
        fits = sizes.sizes[d] >= -1 && open < 2;
    }
    if (!fits)
        return trek_fail_null(TREK_ERR_ARGUMENT, "unflatten: sizes: %s; must be 0 or more, and at most one -1",
                              trek_shape_format(sizes, text, sizeof text));
    trek_module *base = trek_module_new(&unflatten_class);
    if (base) {
        ((unflatten_layer *)base)->dim = dim;
        ((unflatten_layer *)base)->sizes = sizes;
    }
    return base;
}

/* --- nothing -------------------------------------------------------------------- */

static trek_var *identity_forward(trek_module *self, trek_var *x) { return (void)self, x; }

static const trek_module_class identity_class = { .name = "identity", .size = sizeof(trek_module), .forward = identity_forward };

trek_module *trek_nn_identity(void) { return trek_module_new(&identity_class); }

/* --- another layout ------------------------------------------------------------- */

static trek_var *channels_last_forward(trek_module *self, trek_var *x) { return (void)self, trek_channels_last(x); }

static const trek_module_class channels_last_class = {
    .name = "channels_last",
    .size = sizeof(trek_module),
    .forward = channels_last_forward,
};

trek_module *trek_nn_channels_last(void) { return trek_module_new(&channels_last_class); }
