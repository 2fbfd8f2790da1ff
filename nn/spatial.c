/* SPDX-License-Identifier: Apache-2.0 */
/* Padding, and shuffling of pixels and channels. */
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>

#include "autograd/ops.h"
#include "nn/layers_internal.h"
#include "nn/spatial.h"
#include "tensor/shapes.h"

/* --- padding ------------------------------------------------------------------------ */

typedef struct pad_layer {
    trek_module base;
    trek_dims_list sizes;
    trek_pad_mode mode;
    double value;
} pad_layer;

static trek_var *pad_forward(trek_module *self, trek_var *x)
{
    const pad_layer *m = (const pad_layer *)self;
    return trek_pad(x, m->sizes, m->mode, m->value);
}

static void pad_describe(const trek_module *self, char *text, size_t size)
{
    static const char *const modes[] = { "constant", "reflect", "replicate", "circular" };
    const pad_layer *m = (const pad_layer *)self;
    char sizes[TREK_SHAPE_TEXT], value[32];
    snprintf(text, size, "%s, %s, %s", trek_shape_format(m->sizes, sizes, sizeof sizes), modes[m->mode],
             trek_layer_number(m->value, value));
}

static const trek_module_class pad_class = {
    .name = "pad",
    .size = sizeof(pad_layer),
    .forward = pad_forward,
    .describe = pad_describe,
};

trek_module *trek_nn_pad(trek_dims_list sizes, trek_pad_mode mode, double value)
{
    if (sizes.ndim < 0 || sizes.ndim > TREK_MAX_DIMS || sizes.ndim % 2 != 0)
        return trek_fail_null(TREK_ERR_ARGUMENT, "pad: sizes: %d; must be two for each of at most %d dimensions", sizes.ndim,
                              TREK_MAX_DIMS / 2);
    if (mode < TREK_PAD_MODE_CONSTANT || mode > TREK_PAD_MODE_CIRCULAR)
        return trek_fail_null(TREK_ERR_ARGUMENT, "pad: mode: %d; must be a value of trek_pad_mode", (int)mode);
    trek_module *base = trek_module_new(&pad_class);
    if (base) {
        ((pad_layer *)base)->sizes = sizes;
        ((pad_layer *)base)->mode = mode;
        ((pad_layer *)base)->value = value;
    }
    return base;
}

/* --- layers of one number ----------------------------------------------------------------- */

typedef struct number_layer {
    trek_module base;
    int64_t number;
} number_layer;

static trek_var *pixel_shuffle_forward(trek_module *self, trek_var *x)
{
    return trek_pixel_shuffle(x, ((number_layer *)self)->number);
}

static trek_var *pixel_unshuffle_forward(trek_module *self, trek_var *x)
{
    return trek_pixel_unshuffle(x, ((number_layer *)self)->number);
}

static trek_var *channel_shuffle_forward(trek_module *self, trek_var *x)
{
    return trek_channel_shuffle(x, ((number_layer *)self)->number);
}

static void number_describe(const trek_module *self, char *text, size_t size)
{
    snprintf(text, size, "%" PRId64, ((const number_layer *)self)->number);
}

#define NUMBER_CLASS(name_, run)                                                                                                 \
    {                                                                                                                            \
        .name = name_, .size = sizeof(number_layer), .forward = run, .describe = number_describe                                 \
    }
static const trek_module_class pixel_shuffle_class = NUMBER_CLASS("pixel_shuffle", pixel_shuffle_forward);
static const trek_module_class pixel_unshuffle_class = NUMBER_CLASS("pixel_unshuffle", pixel_unshuffle_forward);
static const trek_module_class channel_shuffle_class = NUMBER_CLASS("channel_shuffle", channel_shuffle_forward);

static trek_module *number_new(const trek_module_class *klass, const char *what, int64_t number)
{
    if (trek_layer_positive(klass->name, what, number) != TREK_OK)
        return NULL;
    trek_module *base = trek_module_new(klass);
    if (base)
        ((number_layer *)base)->number = number;
    return base;
}

trek_module *trek_nn_pixel_shuffle(int64_t factor) { return number_new(&pixel_shuffle_class, "factor", factor); }
trek_module *trek_nn_pixel_unshuffle(int64_t factor) { return number_new(&pixel_unshuffle_class, "factor", factor); }
trek_module *trek_nn_channel_shuffle(int64_t groups) { return number_new(&channel_shuffle_class, "groups", groups); }
