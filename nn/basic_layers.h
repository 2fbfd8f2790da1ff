/* SPDX-License-Identifier: Apache-2.0 */
/* The layers that most models use. The rules of nn/layers.h apply. */
#ifndef TREK_NN_BASIC_LAYERS_H
#define TREK_NN_BASIC_LAYERS_H

#include "nn/module.h"
#include "tensor/op_opts.h"

TREK_BEGIN

/* --- products ------------------------------------------------------------- */

/* Returns a linear layer, which computes x weight^T + bias.
 * Shapes: x [..., in] -> [..., out].
 * Parameters: weight [out, in] and bias [out], both U(-b, b) with b = 1 / sqrt(in). */
TREK_API trek_module *trek_nn_linear(int64_t in, int64_t out, trek_device device);

/* Options of trek_nn_conv2d_with. Lists are [height, width]. */
typedef struct trek_conv2d_opts {
    int64_t in;                 /* channels of the input; required */
    int64_t out;                /* channels of the result; required */
    int64_t kernel[2];          /* size of the window; required */
    int64_t stride[2];          /* elements from window to window; default 1 */
    int64_t padding[2];         /* elements added on each side, two numbers; default 0, TREK_ZERO for 0 */
    int64_t dilation[2];        /* elements from one element of the window to the next; default 1 */
    int64_t groups;             /* must divide in and out; default 1 */
    bool no_bias;               /* leaves out the bias */
    trek_dtype dtype;           /* of the parameters; default f32 */
    trek_device device;         /* of the parameters; default trek_device_default() */
    trek_pad_mode padding_mode; /* the values of the padding; default zeros */
    trek_padding padding_kind;  /* default: the numbers in padding; or no padding, or as much as keeps the size (trek_padding) */
} trek_conv2d_opts;

/* Returns a two-dimensional convolution.
 * Shapes: x [N, in, H, W] -> [N, out, H', W'], where H' and W' are those of trek_conv2d.
 * Parameters: weight [out, in / groups, kh, kw] and bias [out], both U(-b, b) with b = 1 / sqrt(in / groups kh kw). */
TREK_API trek_module *trek_nn_conv2d(int64_t in, int64_t out, int64_t kernel, trek_device device);

/* Returns the layer of trek_nn_conv2d with all options. */
TREK_API trek_module *trek_nn_conv2d_with(const trek_conv2d_opts *opts);

/* --- normalisation, sequences --------------------------------------------- */

/* Returns a batch norm of images, x [N, C, H, W]; the rest is as in trek_nn_batch_norm1d. */
TREK_API trek_module *trek_nn_batch_norm2d(int64_t features, trek_device device);

/* Returns a layer norm, which normalises over the last dimension.
 * Shapes: x [..., size] -> the same.
 * Parameters: weight [size], all 1, and bias [size], all 0. */
TREK_API trek_module *trek_nn_layer_norm(int64_t size, trek_device device);

/* Returns an embedding: a table of vectors that are looked up by number.
 * Shapes: indices [...] of any integer dtype -> [..., dim].
 * Parameter: weight [num, dim], N(0, 1). */
TREK_API trek_module *trek_nn_embedding(int64_t num, int64_t dim, trek_device device);

/* Returns a multi-head attention; the batch is the first dimension. trek_forward applies self-attention to x [N, T, E].
 * Inputs of trek_forward_many: query [N, T, E], key [N, S, E], value [N, S, E] (NULL or left out: the key), and a mask that
 * broadcasts to [N, heads, T, S]. A bool mask is true where a key may be seen, which is the opposite of
 * torch.nn.MultiheadAttention; a floating mask is added to the scores.
 * Results of trek_forward_results: the output [N, T, E] and the weights. The matrix of weights is made only if it is requested.
 * Parameters: in_proj_weight [3 E, E] (query, key, value), Xavier uniform. in_proj_bias [3 E], all 0. out_proj.weight [E, E] as
 * in trek_nn_linear. out_proj.bias [E], all 0. bias_k and bias_v [1, 1, E], Xavier normal.
 * Errors: UNSUPPORTED in a cached forward (nn/kv_cache.h) if keys are appended or the weights are requested. */
TREK_API trek_module *trek_nn_multihead_attention(int64_t embed_dim, int64_t heads, trek_device device);

/* Returns an LSTM.
 * Shapes: x [T, N, in] -> [T, N, D hidden], where D is 2 if bidirectional and 1 otherwise. With batch_first both begin [N, T].
 * One sequence may be [T, in]. trek_forward_many takes x, lengths, h0 and c0; trek_forward_results gives output, hn and cn.
 * trek_nn_lstm_forward describes them.
 * Parameters of layer k: weight_ih_lk [4 hidden, in] ([4 hidden, D hidden] if k > 0), weight_hh_lk [4 hidden, hidden], bias_ih_lk
 * and bias_hh_lk [4 hidden]; the backward direction has the same with the suffix _reverse. All are U(-b, b) with b = 1 /
 * sqrt(hidden). With proj_size P there is also weight_hr_lk [P, hidden] (weight_hr of trek_recurrent_opts); results, h0 and hn
 * then have P features where they otherwise have hidden, and weight_hh_lk is [4 hidden, P].
 * Ranks: a forward that is split over ranks needs batch_first and no state as input or result. */
TREK_API trek_module *trek_nn_lstm(int64_t in, int64_t hidden, trek_device device);

/* --- activations, dropout, pooling ---------------------------------------- */

/* Returns a layer that computes max(0, x). */
TREK_API trek_module *trek_nn_relu(void);

/* Returns a layer that computes x Phi(x), where Phi is the normal cumulative distribution function. */
TREK_API trek_module *trek_nn_gelu(void);

/* Returns a layer that computes tanh(x). */
TREK_API trek_module *trek_nn_tanh(void);

/* Returns a dropout layer. In training it sets each element to zero with probability p and divides the others by 1 - p; in eval
 * mode it returns x. */
TREK_API trek_module *trek_nn_dropout(double p);

/* Returns a two-dimensional max pooling, whose stride is the kernel. The second result of trek_forward_results is the indices of
 * trek_max_pool2d_with_indices.
 * Shapes: x [N, C, H, W] -> [N, C, H', W']. */
TREK_API trek_module *trek_nn_max_pool2d(int64_t kernel);

/* Returns a layer that makes all dimensions after the first one dimension.
 * Shapes: x [N, ...] -> [N, product]. */
TREK_API trek_module *trek_nn_flatten(void);

/* --- containers ----------------------------------------------------------- */

/* Returns a module that runs n modules one after the other; its children are named "0", "1", and so on. Each value is dropped
 * after its last use. A linear layer directly followed by ReLU or exact GELU runs as one op, and so does a conv2d followed by
 * ReLU.
 * Ownership: all modules are taken over, also on failure. A NULL among them is a failure; the others are freed then. */
TREK_API trek_module *trek_nn_sequential(trek_module *const *modules, int n);

TREK_END

#endif
