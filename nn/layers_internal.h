/* SPDX-License-Identifier: Apache-2.0 */
/* What layers share, and the classes that other code recognises (for fusion, and for the warnings of data
 * parallelism). */
#ifndef TREK_NN_LAYERS_INTERNAL_H
#define TREK_NN_LAYERS_INTERNAL_H

#include "nn/init.h"
#include "nn/layers.h"
#include "nn/module_tree.h"
#include "tensor/option_internal.h"
#include "tensor/status_internal.h"

typedef struct trek_linear_layer {
    trek_module base;
    trek_var *weight, *bias; /* bias may be NULL */
    int64_t in, out;
    struct trek_lora_adapter *lora; /* owned; may be NULL */
} trek_linear_layer;

/* What lora.c attaches to a linear layer. */
typedef struct trek_lora_adapter {
    trek_module *a, *b;       /* the layer's children lora_A and lora_B */
    int64_t r;
    double alpha, scale, dropout;
    trek_dtype dtype;         /* of both */
} trek_lora_adapter;

/* Returns the activation that `second` becomes in the op of `first` when it follows directly, or NONE if the two run
 * apart. */
trek_activation trek_layer_fuses(const trek_module *first, const trek_module *second);
/* Runs a layer that fuses, with the following activation in the same op. */
trek_var *trek_layer_run_fused(trek_module *layer, trek_var *x, trek_activation activation);
/* The same for a layer whose weights are in place (linear.c, conv.c). Convolutions of one and three dimensions take no
 * activation. */
trek_var *trek_linear_layer_forward(trek_module *linear, trek_var *x, trek_activation activation);
trek_var *trek_conv_layer_forward(trek_module *conv, trek_var *x, trek_activation activation);

/* The number of nested forwards on the calling thread that record nothing because backward will run them again
 * (recompute.c). */
extern _Thread_local int trek_runs_again;

/* Computes trek_linear as a product of the module, possibly with 8-bit operands (fp8_layer.c). */
trek_var *trek_module_linear(trek_module *module, trek_var *x, trek_var *weight, trek_var *bias);

extern const trek_module_class trek_multihead_attention_class;
extern const trek_module_class trek_conv_classes[3]; /* of one, two and three dimensions */
extern const trek_module_class trek_linear_class, trek_relu_class, trek_gelu_class, trek_sequential_class;
extern const trek_module_class trek_spectral_norm_class, trek_sync_batch_norm_class, trek_batch_norm1d_class,
    trek_batch_norm2d_class, trek_dropout_class;

/* The end of a layer's constructor: checks the module and sets the initial values. On failure it frees the module and
 * returns NULL. */
trek_module *trek_layer_finish(trek_module *module);
/* Fails with ARGUMENT, naming the layer, unless value >= 1. */
trek_status trek_layer_positive(const char *layer, const char *what, int64_t value);
/* Writes the numbers of a list, such as "2x3". A number that was left 0 is the one before it, and TREK_ZERO is 0. Returns text.
 */
char *trek_layer_list(const int64_t *list, int n, char *text, size_t size);
/* Writes a number such as "0.1", independent of the locale. `text` holds at least 32 bytes and is returned. */
char *trek_layer_number(double value, char *text);

#endif
