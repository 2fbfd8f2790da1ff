/* SPDX-License-Identifier: Apache-2.0 */
/* Layers of the transformer (Vaswani and others 2017). Names of parameters are PyTorch's, so that state files fit; the batch
 * comes first. Part of nn/layers.h. */
#ifndef TREK_NN_TRANSFORMER_H
#define TREK_NN_TRANSFORMER_H

#include "nn/module.h"
#include "tensor/op_opts.h"

TREK_BEGIN

typedef struct trek_transformer_opts {
    int64_t d_model, heads;    /* required; d_model a multiple of heads */
    int64_t dim_feedforward;   /* default 2048 */
    double dropout;            /* in training, of attention's weights and of what each part adds; default 0.1; TREK_ZERO for 0 */
    trek_activation activation; /* default ReLU; TREK_ACTIVATION_GELU */
    bool norm_first;           /* norms before the parts (and none behind), not behind what they add to */
    bool no_bias;
    double eps;                /* of the norms; default 1e-5; TREK_ZERO for 0 */
    bool causal;               /* position t sees positions 0..t of its own sequence */
    int64_t layers;            /* of a stack; default 6 */
    bool final_norm;           /* of a stack: a layer norm behind the last layer ("norm") */
    trek_dtype dtype;          /* default f32 */
    trek_device device;
} trek_transformer_opts;

/* x [N, T, E] -> [N, T, E]: self attention, then linear, activation, linear, each added to what it reads and normalised.
 * trek_forward_many takes x and a mask (of self attention, as trek_nn_multihead_attention takes it; NULL: none). Parts:
 * self_attn, linear1, linear2, norm1, norm2. */
TREK_API trek_module *trek_nn_transformer_encoder_layer(int64_t d_model, int64_t heads, trek_device device);
TREK_API trek_module *trek_nn_transformer_encoder_layer_with(const trek_transformer_opts *opts);

/* Between the two of an encoder's, attention to the encoder's result, the memory [N, S, E]. trek_forward_many takes x, memory,
 * mask, memory_mask (to [N, heads, T, S]); masks NULL: none. ARGUMENT without a memory. Parts: self_attn, multihead_attn,
 * linear1, linear2, norm1, norm2, norm3. */
TREK_API trek_module *trek_nn_transformer_decoder_layer(int64_t d_model, int64_t heads, trek_device device);
TREK_API trek_module *trek_nn_transformer_decoder_layer_with(const trek_transformer_opts *opts);

/* Stacks of `layers` of them, each with initial values of its own: "layers.0", "layers.1", ..; inputs as of one layer, masks and
 * memory go to each. */
TREK_API trek_module *trek_nn_transformer_encoder(int64_t d_model, int64_t heads, int64_t layers, trek_device device);
TREK_API trek_module *trek_nn_transformer_encoder_with(const trek_transformer_opts *opts);
TREK_API trek_module *trek_nn_transformer_decoder(int64_t d_model, int64_t heads, int64_t layers, trek_device device);
TREK_API trek_module *trek_nn_transformer_decoder_with(const trek_transformer_opts *opts);

TREK_END

#endif
