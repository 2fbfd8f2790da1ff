/* SPDX-License-Identifier: Apache-2.0 */
/* Layers that change sizes, and sliding windows. */
#include <inttypes.h>
#include <stdio.h>

#include "autograd/ops.h"
#include "nn/layers_internal.h"
#include "nn/resample.h"

typedef struct upsample_layer {
    trek_module base;
    trek_interpolate_opts opts;
} upsample_layer;

static trek_var *upsample_forward(trek_module *self, trek_var *x) { return trek_interpolate(x, &((upsample_layer *)self)->opts); }

static void upsample_describe(const trek_module *self, char *text, size_t size)
{
    static const char *const modes[] = { "nearest", "nearest exact", "linear", "cubic", "area" };
    const trek_interpolate_opts *o = &((const upsample_layer *)self)->opts;
    char number[32];
    snprintf(text, size, "%s %s, %s%s", o->size[0] ? "size" : "scale",
             trek_layer_number(o->size[0] ? (double)o->size[0] : o->scale[0], number), modes[o->mode],
             o->antialias ? ", antialiased" : "");
}

static const trek_module_class upsample_class = {
    .name = "upsample",
    .size = sizeof(upsample_layer),
    .forward = upsample_forward,
    .describe = upsample_describe,
};

trek_module *trek_nn_upsample(const trek_interpolate_opts *opts)
{
    if (!opts || (opts->size[0] != 0) == (opts->scale[0] != 0))
        return trek_fail_null(TREK_ERR_ARGUMENT, "upsample: .size and .scale: neither is set; one must be");
    if (opts->mode < TREK_INTERPOLATE_MODE_NEAREST || opts->mode > TREK_INTERPOLATE_MODE_AREA)
        return trek_fail_null(TREK_ERR_ARGUMENT, "upsample: .mode: %d; must be a value of trek_interpolate_mode",
                              (int)opts->mode);
    trek_module *base = trek_module_new(&upsample_class);
    if (base)
        ((upsample_layer *)base)->opts = *opts;
    return base;
}

typedef struct window_layer {
    trek_module base;
    trek_unfold_opts opts;
    int64_t height, width;
} window_layer;

static trek_var *unfold_forward(trek_module *self, trek_var *x) { return trek_unfold(x, &((window_layer *)self)->opts); }

static trek_var *fold_forward(trek_module *self, trek_var *x)
{
    const window_layer *m = (const window_layer *)self;
    return trek_fold(x, m->height, m->width, &m->opts);
}

static void window_describe(const trek_module *self, char *text, size_t size)
{
    const trek_unfold_opts *o = &((const window_layer *)self)->opts;
    snprintf(text, size, "kernel %" PRId64 ", stride %" PRId64, o->kernel[0], o->stride[0] ? o->stride[0] : 1);
}

static const trek_module_class unfold_class = {
    .name = "unfold",
    .size = sizeof(window_layer),
    .forward = unfold_forward,
    .describe = window_describe,
};

static const trek_module_class fold_class = {
    .name = "fold",
    .size = sizeof(window_layer),
    .forward = fold_forward,
    .describe = window_describe,
};

static trek_module *window_new(const trek_module_class *klass, int64_t height, int64_t width, const trek_unfold_opts *opts)
{
    if (!opts)
        return trek_fail_null(TREK_ERR_ARGUMENT, "%s: options: NULL; they must be given", klass->name);
    if (trek_layer_positive(klass->name, "kernel", opts->kernel[0]) != TREK_OK)
        return NULL;
    window_layer *m = (window_layer *)trek_module_new(klass);
    if (!m)
        return NULL;
    m->opts = *opts;
    m->height = height;
    m->width = width;
    return &m->base;
}

trek_module *trek_nn_unfold(const trek_unfold_opts *opts) { return window_new(&unfold_class, 0, 0, opts); }

trek_module *trek_nn_fold(int64_t height, int64_t width, const trek_unfold_opts *opts)
{
    if (trek_layer_positive("fold", "height", height) != TREK_OK || trek_layer_positive("fold", "width", width) != TREK_OK)
        return NULL;
    return window_new(&fold_class, height, width, opts);
}
