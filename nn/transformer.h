/* SPDX-License-Identifier: Apache-2.0 */
/* Layers of the transformer (Vaswani and others 2017). The names of parameters are PyTorch's, so that state files fit; the batch
 * is the first dimension. The rules of nn/layers.h apply. */
#ifndef TREK_NN_TRANSFORMER_H
#define TREK_NN_TRANSFORMER_H

#include "nn/module.h"
#include "tensor/op_opts.h"

TREK_BEGIN

/* Options of all layers and stacks below. */
typedef struct trek_transformer_opts {
    int64_t d_model;         /* features E; required */
    int64_t heads;           /* number of heads, which must divide d_model; required */
    int64_t dim_feedforward; /* features between the two linear layers; default 2048 */
    /* Probability of dropping an attention weight or an element that a sublayer adds, in training; default 0.1, TREK_ZERO for
     * 0. */
    double dropout;
    trek_activation activation; /* default ReLU; TREK_ACTIVATION_GELU is the other choice */
    bool norm_first;            /* puts the norm before each sublayer instead of after its addition */
    bool no_bias;               /* leaves out the biases */
    double eps;                 /* added to the variance in the norms; default 1e-5, TREK_ZERO for 0 */
    bool causal;                /* lets position t see only positions 0..t of its own sequence */
    int64_t layers;             /* number of layers of a stack; default 6 */
    bool final_norm;            /* adds a layer norm after the last layer of a stack ("norm") */
    trek_dtype dtype;           /* of the parameters; default f32 */
    trek_device device;         /* of the parameters; default trek_device_default() */
} trek_transformer_opts;

/* Returns an encoder layer: self-attention, then a linear layer, the activation and a linear layer. The result of each of these
 * two sublayers is added to its input and normalised.
 * Shapes: x [N, T, E] -> the same.
 * Inputs: trek_forward_many takes x and the mask of self-attention, as trek_nn_multihead_attention takes it; NULL means no mask.
 * Children: self_attn, linear1, linear2, norm1, norm2. */
TREK_API trek_module *trek_nn_transformer_encoder_layer(int64_t d_model, int64_t heads, trek_device device);

/* Returns the layer of trek_nn_transformer_encoder_layer with all options; .layers and .final_norm are ignored. */
TREK_API trek_module *trek_nn_transformer_encoder_layer_with(const trek_transformer_opts *opts);

/* Returns a decoder layer. Between the two sublayers of an encoder layer it has attention to the result of the encoder, the
 * memory [N, S, E].
 * Shapes: x [N, T, E] -> the same.
 * Inputs: trek_forward_many takes x, memory, mask and memory_mask. Both masks broadcast as in trek_nn_multihead_attention,
 * memory_mask to [N, heads, T, S]; NULL means no mask. Children: self_attn, multihead_attn, linear1, linear2, norm1, norm2,
 * norm3.
 * Errors: ARGUMENT in a forward without a memory. */
TREK_API trek_module *trek_nn_transformer_decoder_layer(int64_t d_model, int64_t heads, trek_device device);

/* Returns the layer of trek_nn_transformer_decoder_layer with all options; .layers and .final_norm are ignored. */
TREK_API trek_module *trek_nn_transformer_decoder_layer_with(const trek_transformer_opts *opts);

/* Returns a stack of encoder layers, each with initial values of its own. The inputs are those of one layer; the mask goes to
 * each layer. Children: layers.0, layers.1 and so on. */
TREK_API trek_module *trek_nn_transformer_encoder(int64_t d_model, int64_t heads, int64_t layers, trek_device device);

/* Returns the layer of trek_nn_transformer_encoder with all options. */
TREK_API trek_module *trek_nn_transformer_encoder_with(const trek_transformer_opts *opts);

/* Returns a stack of decoder layers, each with initial values of its own. The inputs are those of one layer; memory and masks go
 * to each layer. Children: layers.0, layers.1 and so on. */
TREK_API trek_module *trek_nn_transformer_decoder(int64_t d_model, int64_t heads, int64_t layers, trek_device device);

/* Returns the layer of trek_nn_transformer_decoder with all options. */
TREK_API trek_module *trek_nn_transformer_decoder_with(const trek_transformer_opts *opts);

TREK_END

#endif
