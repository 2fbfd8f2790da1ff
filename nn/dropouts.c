/* SPDX-License-Identifier: Apache-2.0 */
/* Dropout of whole channels, and dropout for SELU. */
#include <stdio.h>

#include "autograd/ops.h"
#include "nn/layers_internal.h"
#include "nn/module_internal.h"

typedef struct channel_dropout_layer {
    trek_module base;
    trek_var *(*run)(trek_var *x, double p, bool training);
    double p;
} channel_dropout_layer;

static trek_var *channel_dropout_forward(trek_module *self, trek_var *x)
{
    channel_dropout_layer *m = (channel_dropout_layer *)self;
    return m->run(x, m->p, self->own->training);
}

static void channel_dropout_describe(const trek_module *self, char *text, size_t size)
{
    char number[32];
    snprintf(text, size, "%s", trek_layer_number(((const channel_dropout_layer *)self)->p, number));
}

#define CLASS(name_)                                                                                                             \
    {                                                                                                                            \
        .name = name_, .size = sizeof(channel_dropout_layer), .forward = channel_dropout_forward,                                \
        .describe = channel_dropout_describe                                                                                     \
    }
static const trek_module_class classes[] = { CLASS("dropout1d"), CLASS("dropout2d"), CLASS("dropout3d"), CLASS("alpha_dropout"),
                                             CLASS("feature_alpha_dropout") };

static trek_module *dropout_new(int kind, double p)
{
    static trek_var *(*const runs[])(trek_var *, double, bool) = { trek_dropout1d, trek_dropout2d, trek_dropout3d,
                                                                   trek_alpha_dropout, trek_feature_alpha_dropout };
    char number[32];
    if (p == TREK_ZERO)
        p = 0;
    if (!(p >= 0 && p <= 1))
        return trek_fail_null(TREK_ERR_ARGUMENT, "%s: p: %s; must be inside [0, 1]", classes[kind].name,
                              trek_layer_number(p, number));
    trek_module *base = trek_module_new(&classes[kind]);
    if (base) {
        ((channel_dropout_layer *)base)->run = runs[kind];
        ((channel_dropout_layer *)base)->p = p;
    }
    return base;
}

static double option_p(const trek_dropout_opts *opts) { return trek_option(opts ? opts->p : 0, 0.5); }

trek_module *trek_nn_dropout1d(double p) { return dropout_new(0, p); }
trek_module *trek_nn_dropout1d_with(const trek_dropout_opts *opts) { return dropout_new(0, option_p(opts)); }
trek_module *trek_nn_dropout2d(double p) { return dropout_new(1, p); }
trek_module *trek_nn_dropout2d_with(const trek_dropout_opts *opts) { return dropout_new(1, option_p(opts)); }
trek_module *trek_nn_dropout3d(double p) { return dropout_new(2, p); }
trek_module *trek_nn_dropout3d_with(const trek_dropout_opts *opts) { return dropout_new(2, option_p(opts)); }
trek_module *trek_nn_alpha_dropout(double p) { return dropout_new(3, p); }
trek_module *trek_nn_alpha_dropout_with(const trek_dropout_opts *opts) { return dropout_new(3, option_p(opts)); }
trek_module *trek_nn_feature_alpha_dropout(double p) { return dropout_new(4, p); }
trek_module *trek_nn_feature_alpha_dropout_with(const trek_dropout_opts *opts) { return dropout_new(4, option_p(opts)); }
