/* SPDX-License-Identifier: Apache-2.0 */
/* Layers that only change the shape or the layout. */
#include <stdio.h>

#include "autograd/ops.h"
#include "nn/layers_internal.h"
#include "tensor/shapes.h"

/* --- several dimensions as one -------------------------------------------------- */

typedef struct flatten_layer {
    trek_module base;
    int first, last;
} flatten_layer;

static trek_var *flatten_forward(trek_module *self, trek_var *x)
{
    const flatten_layer *m = (const flatten_layer *)self;
    return trek_flatten(x, m->first, m->last);
}

static void flatten_describe(const trek_module *self, char *text, size_t size)
{
    const flatten_layer *m = (const flatten_layer *)self;
    snprintf(text, size, "%d, %d", m->first, m->last);
}

static const trek_module_class flatten_class = {
    .name = "flatten",
    .size = sizeof(flatten_layer),
    .forward = flatten_forward,
    .rowwise = true,
    .describe = flatten_describe,
};

trek_module *trek_nn_flatten_with(const trek_flatten_opts *opts)
{
    flatten_layer *m = (flatten_layer *)trek_module_new(&flatten_class);
    if (!m)
        return NULL;
    m->first = (int)trek_option_integer(opts ? opts->start_dim : 0, 1);
    m->last = (int)trek_option_integer(opts ? opts->end_dim : 0, -1);
    return &m->base;
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
    .rowwise = true,
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

static const trek_module_class identity_class = { .name = "identity", .size = sizeof(trek_module), .forward = identity_forward,
                                                 .rowwise = true };

trek_module *trek_nn_identity(void) { return trek_module_new(&identity_class); }

/* --- another layout ------------------------------------------------------------- */

static trek_var *channels_last_forward(trek_module *self, trek_var *x) { return (void)self, trek_channels_last(x); }

static const trek_module_class channels_last_class = {
    .name = "channels_last",
    .size = sizeof(trek_module),
    .forward = channels_last_forward,
};

trek_module *trek_nn_channels_last(void) { return trek_module_new(&channels_last_class); }
