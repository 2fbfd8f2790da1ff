/* SPDX-License-Identifier: Apache-2.0 */
#include "nn/offload.h"

#include "nn/layers_internal.h"
#include "nn/module_internal.h"

typedef struct offload_layer {
    trek_module base;
    trek_module *module;
    trek_offload_opts opts;
} offload_layer;

static trek_var *offload_forward_many(trek_module *self, trek_var *const *inputs, int n)
{
    const offload_layer *layer = (const offload_layer *)self;
    if (!self->own->training)
        return trek_forward_many(layer->module, inputs, n);
    trek_offload_begin(&layer->opts);
    trek_var *y = trek_forward_many(layer->module, inputs, n);
    trek_offload_end();
    return y;
}

static trek_var *offload_forward(trek_module *self, trek_var *x) { return offload_forward_many(self, &x, 1); }

static const trek_module_class offload_class = { .name = "offload", .size = sizeof(offload_layer), .forward = offload_forward,
                                                 .forward_many = offload_forward_many };

trek_module *trek_nn_offload(trek_module *module, const trek_offload_opts *opts)
{
    trek_offload_opts asked = opts ? *opts : (trek_offload_opts){ 0 };
    if (module && (asked.min_bytes < TREK_OFF || asked.ahead < 0))
        trek_fail(TREK_ERR_ARGUMENT, "nn_offload: .min_bytes: %lld, .ahead: %d; must be 0 or more", (long long)asked.min_bytes,
                  asked.ahead);
    trek_module *layer = module && asked.min_bytes >= TREK_OFF && asked.ahead >= 0 ? trek_module_new(&offload_class) : NULL;
    if (!layer) {
        if (module)
            trek_module_free(&module);
        return NULL;
    }
    ((offload_layer *)layer)->opts = asked;
    trek_module_add(layer, "module", offsetof(offload_layer, module), module);
    return trek_module_check(layer);
}
