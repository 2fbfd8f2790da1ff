/* SPDX-License-Identifier: Apache-2.0 */
/* Layers that take the following activation into their op. */
#include "nn/layers_internal.h"
#include "nn/module_internal.h"
#include "nn/watch.h"

trek_activation trek_layer_fuses(const trek_module *first, const trek_module *second)
{
    bool linear = first->own->klass == &trek_linear_class, conv = first->own->klass == &trek_conv_classes[1];
    if (second->own->klass == &trek_relu_class)
        return linear || conv ? TREK_ACTIVATION_RELU : TREK_ACTIVATION_NONE;
    return linear && second->own->klass == &trek_gelu_class ? TREK_ACTIVATION_GELU : TREK_ACTIVATION_NONE;
}

static trek_var *forward(trek_module *layer, trek_var *x, trek_activation activation)
{
    if (layer->own->klass == &trek_conv_classes[1])
        return trek_conv_layer_forward(layer, x, activation);
    return trek_linear_layer_forward(layer, x, activation);
}

trek_var *trek_layer_run_fused(trek_module *layer, trek_var *x, trek_activation activation)
{
    const trek_module_watch *watch = trek_module_watched() ? trek_module_watch_here() : NULL;
    if (watch)
        watch->begin(layer, &x, 1, watch->arg);
    trek_var *y = trek_weights_make(layer) == TREK_OK ? forward(layer, x, activation) : NULL;
    trek_weights_drop(layer);
    if (watch)
        watch->end(layer, y, watch->arg);
    return y;
}
