/* SPDX-License-Identifier: Apache-2.0 */
/* What layers share, and the classes that others recognise (fusion, what data parallelism warns about). Internal. */
#ifndef TREK_NN_LAYERS_INTERNAL_H
#define TREK_NN_LAYERS_INTERNAL_H

#include "nn/init.h"
#include "nn/layers.h"
#include "tensor/option_internal.h"
#include "tensor/status_internal.h"

typedef struct trek_linear_layer {
    trek_module base;
    trek_var *weight, *bias; /* bias NULL: none */
    int64_t in, out;
    struct trek_lora_adapter *lora; /* owned; NULL: none */
} trek_linear_layer;

/* What lora.c puts beside a linear layer's weight. */
typedef struct trek_lora_adapter {
    trek_module *a, *b;       /* the layer's children lora_A and lora_B */
    int64_t r;
    double alpha, scale, dropout;
    trek_dtype dtype;         /* of both */
} trek_lora_adapter;

/* What the module `second` is to the op of `first` when it follows it directly: NONE where the two run apart. */
trek_activation trek_layer_fuses(const trek_module *first, const trek_module *second);
/* The forward of a layer that fuses, with the activation behind it in the same op. */
trek_var *trek_layer_run_fused(trek_module *layer, trek_var *x, trek_activation activation);
/* linear.c, conv.c: the same, of a layer whose weights are in place. */
trek_var *trek_linear_layer_forward(trek_module *linear, trek_var *x, trek_activation activation);
trek_var *trek_conv2d_layer_forward(trek_module *conv, trek_var *x, trek_activation activation);

/* recompute.c: so many forwards of the calling thread that record nothing will be run again, in backward. */
extern _Thread_local int trek_runs_again;

/* fp8_layer.c: trek_linear as a product of the module, which may be one of 8-bit numbers. */
trek_var *trek_module_linear(trek_module *module, trek_var *x, trek_var *weight, trek_var *bias);

extern const trek_module_class trek_multihead_attention_class;
extern const trek_module_class trek_linear_class, trek_conv2d_class, trek_relu_class, trek_gelu_class, trek_sequential_class;
extern const trek_module_class trek_spectral_norm_class, trek_sync_batch_norm_class, trek_batch_norm1d_class,
    trek_batch_norm2d_class, trek_dropout_class;

/* The end of a layer's constructor: checks, gives the initial values; NULL after freeing it on failure. */
trek_module *trek_layer_finish(trek_module *module);
/* ARGUMENT, naming the layer, unless value >= 1. */
trek_status trek_layer_positive(const char *layer, const char *what, int64_t value);
/* What convolutions of any dimension check: sizes, channels that groups divide, a known mode of padding. */
trek_status trek_conv_check(const char *layer, int64_t in, int64_t out, int64_t groups, const int64_t kernel[2],
                            const int64_t *padding, int dims, trek_pad_mode mode);
/* The kind of padding of a convolution of `dims` dimensions: known, and with numbers and strides that it can be had with. */
trek_status trek_conv_check_kind(const char *layer, trek_padding kind, const int64_t *padding, const int64_t *stride, int dims);
/* x with the padding of a mode other than zeros, which *opts then have none of; x itself for zeros. */
trek_var *trek_conv_padded(trek_var *x, const int64_t *kernel, int dims, trek_pad_mode mode, trek_conv_opts *opts);
/* ", same", or "". */
const char *trek_conv_kind_text(trek_padding kind);
/* The result of a max pool, and where its elements come from, of a layer that takes x alone. */
trek_status trek_layer_pool_results(const char *layer, trek_var *(*pool)(trek_var *, const trek_pool_opts *, trek_var **),
                                    const trek_pool_opts *opts, trek_var *const *inputs, int n, trek_var **results, int count);
extern const char *const trek_layer_pool_result_names[];
/* Initial values of weight and bias, which may be NULL. */
trek_status trek_conv_reset(trek_var *weight, trek_var *bias);
/* ", reflect" and so on; "" of zeros. */
const char *trek_conv_padding_text(trek_pad_mode mode);
/* "0.1", whatever the locale; text holds at least 32 bytes. Returns text. */
char *trek_layer_number(double value, char *text);

#endif
