/* SPDX-License-Identifier: Apache-2.0 */
/* Layers. Parameter names, buffer names, initial values and defaults are
 * PyTorch's, so that state files fit.
 *
 * Each constructor gives a module that the caller owns (until a parent, a
 * Sequential or a flow takes it over), or NULL. The short form covers the common
 * case, `_with` all options: a field left 0 means its default, and the device
 * left out means cpu:0. Errors: ARGUMENT (a size below 1, an option out of
 * range), DTYPE, DEVICE, MEMORY.
 *
 * Sizes [h, w]: where [1] is 0 it takes [0]'s value, as in trek_conv_opts. */
#ifndef TREK_NN_LAYERS_H
#define TREK_NN_LAYERS_H

#include "nn/module.h"
#include "nn/resample.h"
#include "nn/spatial.h"
#include "tensor/op_opts.h"

TREK_BEGIN

/* --- products ------------------------------------------------------------- */

typedef struct trek_linear_opts {
    int64_t in, out;          /* required */
    bool no_bias;
    trek_dtype dtype;         /* default f32 */
    trek_device device;
} trek_linear_opts;

/* [..., in] -> [..., out]; weight [out, in], bias [out], both U(-b, b) with b = 1 / sqrt(in). */
TREK_API trek_module *trek_nn_linear(int64_t in, int64_t out, trek_device device);
TREK_API trek_module *trek_nn_linear_with(const trek_linear_opts *opts);

typedef struct trek_bilinear_opts {
    int64_t in1, in2, out;    /* required */
    bool no_bias;
    trek_dtype dtype;         /* default f32 */
    trek_device device;
} trek_bilinear_opts;

/* trek_bilinear of two inputs, [..., in1] and [..., in2] -> [..., out]: trek_forward_many takes both (ARGUMENT without the
 * second; "second" in graphs). weight [out, in1, in2], bias [out], both U(-b, b) with b = 1 / sqrt(in1). */
TREK_API trek_module *trek_nn_bilinear(int64_t in1, int64_t in2, int64_t out, trek_device device);
TREK_API trek_module *trek_nn_bilinear_with(const trek_bilinear_opts *opts);

typedef struct trek_conv2d_opts {
    int64_t in, out;          /* channels; required */
    int64_t kernel[2];        /* required */
    int64_t stride[2];        /* default 1 */
    int64_t padding[2];       /* default 0; the width, left 0, is the height's: TREK_ZERO for 0 */
    int64_t dilation[2];      /* default 1 */
    int64_t groups;           /* default 1; divides in and out */
    bool no_bias;
    trek_dtype dtype;         /* default f32 */
    trek_device device;
    trek_pad_mode padding_mode; /* what the padding holds; default zeros */
    trek_padding padding_kind;  /* as in trek_conv_opts: none, or as gives x's size; default the numbers above */
} trek_conv2d_opts;

/* [N, in, H, W] -> [N, out, H', W']; weight [out, in / groups, kh, kw], bias [out], both U(-b, b) with
 * b = 1 / sqrt(in / groups kh kw). */
TREK_API trek_module *trek_nn_conv2d(int64_t in, int64_t out, int64_t kernel, trek_device device);
TREK_API trek_module *trek_nn_conv2d_with(const trek_conv2d_opts *opts);

typedef struct trek_conv_transpose2d_opts {
    int64_t in, out;           /* channels; required */
    int64_t kernel[2];         /* required */
    int64_t stride[2];         /* default 1 */
    int64_t padding[2];        /* default 0; the width, left 0, is the height's: TREK_ZERO for 0 */
    int64_t output_padding[2]; /* default 0; below stride or dilation; a width as above */
    int64_t dilation[2];       /* default 1 */
    int64_t groups;            /* default 1; divides in and out */
    bool no_bias;
    trek_dtype dtype;          /* default f32 */
    trek_device device;
} trek_conv_transpose2d_opts;

/* [N, in, H, W] -> [N, out, H', W'], sizes as trek_conv_transpose2d's (ops.h); weight [in, out / groups, kh, kw], bias [out],
 * both U(-b, b) with b = 1 / sqrt(out / groups kh kw). With a second input (trek_forward_many; "like" in graphs) the result has
 * its height and width, as with PyTorch's output_size, and output_padding is not looked at. */
TREK_API trek_module *trek_nn_conv_transpose2d(int64_t in, int64_t out, int64_t kernel, trek_device device);
TREK_API trek_module *trek_nn_conv_transpose2d_with(const trek_conv_transpose2d_opts *opts);

/* --- normalisation -------------------------------------------------------- */

typedef struct trek_batch_norm_opts {
    int64_t features;         /* C; required */
    double eps;               /* default 1e-5; TREK_ZERO for 0 */
    double momentum;          /* default 0.1; TREK_ZERO for 0; TREK_OFF: running averages of all batches, each the same weight */
    bool no_affine;           /* no weight and bias */
    bool no_running_stats;    /* the batch's own statistics in eval, too */
    trek_dtype dtype;         /* default f32 */
    trek_device device;
} trek_batch_norm_opts;

/* Over all dimensions but C. 1d: [N, C] or [N, C, L]; 2d: [N, C, H, W]; 3d: [N, C, D, H, W] (SHAPE otherwise). weight 1, bias 0;
 * buffers running_mean, running_var [C] and num_batches_tracked (i64 scalar). In training one value for each
 * channel is an error (SHAPE). Samples of a batch depend on each other: split over ranks, each normalises its own part
 * (trek_nn_sync_batch_norm: the whole). */
TREK_API trek_module *trek_nn_batch_norm1d(int64_t features, trek_device device);
TREK_API trek_module *trek_nn_batch_norm1d_with(const trek_batch_norm_opts *opts);
TREK_API trek_module *trek_nn_batch_norm2d(int64_t features, trek_device device);
TREK_API trek_module *trek_nn_batch_norm2d_with(const trek_batch_norm_opts *opts);
TREK_API trek_module *trek_nn_batch_norm3d(int64_t features, trek_device device);
TREK_API trek_module *trek_nn_batch_norm3d_with(const trek_batch_norm_opts *opts);

/* Batch norm over the batch of all ranks, of any shape [N, C, ...]; parameters, buffers and options as above. Where a
 * forward is split over ranks, they exchange count, mean and squared deviations of their parts, and in backward two sums
 * (Chan, Golub and LeVeque 1979, in f64), so that outputs, gradients and running statistics are those of one device
 * however unequal the parts are; one value for each channel among all ranks is an error (SHAPE). All ranks with rows run
 * it equally often, in one order: a rank that fails, or does not come, fails the others (PEER, COMM). On GPUs each
 * exchange waits for the device, and cannot be captured. In windows (trainer.h), where ranks run batches of their own at their
 * own pace, and in evaluation it is plain batch norm; setup's line in the log names it if there are windows. Gradients of
 * gradients only there. With trek_ddp: see ddp.h; inside trek_ranks_run all ranks of the group meet. */
TREK_API trek_module *trek_nn_sync_batch_norm(int64_t features, trek_device device);
TREK_API trek_module *trek_nn_sync_batch_norm_with(const trek_batch_norm_opts *opts);

typedef struct trek_layer_norm_opts {
    trek_shape shape;         /* of the last dimensions, which are normalised; required */
    double eps;               /* default 1e-5; TREK_ZERO for 0 */
    bool no_affine;           /* no weight and bias */
    bool no_bias;
    trek_dtype dtype;         /* default f32 */
    trek_device device;
} trek_layer_norm_opts;

/* Over the last dimension, of `size`; weight 1, bias 0. */
TREK_API trek_module *trek_nn_layer_norm(int64_t size, trek_device device);
TREK_API trek_module *trek_nn_layer_norm_with(const trek_layer_norm_opts *opts);

typedef struct trek_rms_norm_opts {
    trek_shape shape;         /* of the last dimensions, which are normalised; required */
    double eps;               /* default the dtype's epsilon (f32's for 16-bit dtypes); TREK_ZERO for 0 */
    bool no_affine;           /* no weight */
    trek_dtype dtype;         /* default f32 */
    trek_device device;
} trek_rms_norm_opts;

/* x / sqrt(mean(x^2) + eps) weight over the last dimension, of `dim`; weight 1. */
TREK_API trek_module *trek_nn_rms_norm(int64_t dim, trek_device device);
TREK_API trek_module *trek_nn_rms_norm_with(const trek_rms_norm_opts *opts);

/* --- attention -------------------------------------------------------------- */

typedef struct trek_multihead_attention_opts {
    int64_t embed_dim, heads; /* required; embed_dim a multiple of heads */
    bool no_bias;
    bool causal;              /* position t sees positions 0..t of the key */
    double dropout;           /* on the attention's weights, in training; default 0 */
    trek_dtype dtype;         /* default f32 */
    trek_device device;
    bool add_bias_kv;         /* a learned key and value behind all others, which every query sees */
    bool add_zero_attn;       /* a key and a value of zeros behind these, likewise */
} trek_multihead_attention_opts;

/* Batch first: [N, T, embed_dim] attends to itself. trek_forward_many takes query [N, T, E], key and value [N, S, E]
 * (value left out: the key), and a mask that broadcasts to [N, heads, T, S]: bool, true where a key may be seen (the
 * opposite of torch.nn.MultiheadAttention's), or floating, added to the scores. No matrix of weights is made, unless
 * it is asked for: trek_forward_results gives the output, and the weights. in_proj_weight [3 E, E] (query, key, value) Xavier
 * uniform, in_proj_bias [3 E] 0, out_proj.weight [E, E] as trek_nn_linear's, out_proj.bias [E] 0; bias_k and bias_v [1, 1, E]
 * Xavier normal. UNSUPPORTED: keys that are added, or weights, in a cached forward (nn/kv_cache.h). */
TREK_API trek_module *trek_nn_multihead_attention(int64_t embed_dim, int64_t heads, trek_device device);
TREK_API trek_module *trek_nn_multihead_attention_with(const trek_multihead_attention_opts *opts);
/* Forward of query, key, value and mask (NULL as there), and through *weights (may be NULL; NULL on failure) the weights of each
 * head [N, heads, T, S] (and of keys that are added), after dropout, as trek_attention_weights: torch's need_weights, which
 * averages over the heads unless told otherwise (trek_mean over dimension 1). ARGUMENT: the module is another layer. */
TREK_API trek_var *trek_nn_multihead_attention_forward(trek_module *attention, trek_var *query, trek_var *key, trek_var *value,
                                                       trek_var *mask, trek_var **weights);

/* --- recurrent layers --------------------------------------------------------- */

typedef struct trek_lstm_opts {
    int64_t in, hidden;       /* features of x, and of the state; required */
    int64_t layers;           /* one upon the other; default 1 */
    bool no_bias;
    bool batch_first;         /* x is [N, T, in], not [T, N, in]; states are [.., N, H] all the same */
    double dropout;           /* between the layers, in training; default 0 */
    bool bidirectional;       /* a second set of weights reads from the end; results side by side */
    trek_dtype dtype;         /* default f32 */
    trek_device device;
    int64_t proj_size;        /* of an LSTM: features that each step's h is projected to, below hidden; default none */
} trek_lstm_opts;
typedef trek_lstm_opts trek_gru_opts;

typedef struct trek_rnn_opts {
    int64_t in, hidden;       /* as above, to: */
    int64_t layers;
    bool no_bias, batch_first;
    double dropout;
    bool bidirectional;
    trek_dtype dtype;
    trek_device device;
    bool relu;                /* max(0, .) in place of tanh */
} trek_rnn_opts;

/* x [T, N, in] -> [T, N, D hidden], with D = 2 if bidirectional, else 1; batch first [N, T, ..]; [T, in] is one sequence.
 * weight_ih_l0 [4 hidden, in] (3 of a GRU, 1 of an RNN), of further layers weight_ih_lk [4 hidden, D hidden], weight_hh_lk [4
 * hidden, hidden], bias_ih_lk, bias_hh_lk [4 hidden], and the same with _reverse; all U(-b, b), b = 1 / sqrt(hidden). With
 * proj_size P (trek_recurrent_opts' weight_hr) also weight_hr_lk [P, hidden]; results, h0 and hn have P features where others
 * have hidden, and weight_hh_lk is [4 hidden, P]. trek_forward_many takes x, lengths, h0, c0 (NULL: none), trek_forward_results
 * gives output, hn, cn (of an LSTM alone): see the next ones. A forward that is split over ranks wants the batch first, and no
 * state in or out: its first dimension is not the batch (a cell's is). */
TREK_API trek_module *trek_nn_lstm(int64_t in, int64_t hidden, trek_device device);
TREK_API trek_module *trek_nn_lstm_with(const trek_lstm_opts *opts);
TREK_API trek_module *trek_nn_gru(int64_t in, int64_t hidden, trek_device device);
TREK_API trek_module *trek_nn_gru_with(const trek_gru_opts *opts);
/* Elman's: h = tanh(weight_ih x + bias_ih + weight_hh h + bias_hh), a few ops for each step, in x's dtype. */
TREK_API trek_module *trek_nn_rnn(int64_t in, int64_t hidden, trek_device device);
TREK_API trek_module *trek_nn_rnn_with(const trek_rnn_opts *opts);

/* Forward with the state: h0 and c0 [layers D, N, hidden] (without N as x is), NULL: zeros; lengths [N] or NULL as in
 * trek_recurrent_opts (they need not be sorted). Gives the result, and through *hn and *cn (may be NULL; NULL on failure) the
 * states at the end: they belong to the caller's scope. ARGUMENT: the module is another layer; lengths of one sequence. */
TREK_API trek_var *trek_nn_lstm_forward(trek_module *lstm, trek_var *x, trek_var *lengths, trek_var *h0, trek_var *c0,
                                        trek_var **hn, trek_var **cn);
TREK_API trek_var *trek_nn_gru_forward(trek_module *gru, trek_var *x, trek_var *lengths, trek_var *h0, trek_var **hn);
TREK_API trek_var *trek_nn_rnn_forward(trek_module *rnn, trek_var *x, trek_var *lengths, trek_var *h0, trek_var **hn);

typedef struct trek_lstm_cell_opts {
    int64_t in, hidden;       /* required */
    bool no_bias;
    trek_dtype dtype;         /* default f32 */
    trek_device device;
} trek_lstm_cell_opts;
typedef trek_lstm_cell_opts trek_gru_cell_opts;
typedef struct trek_rnn_cell_opts {
    int64_t in, hidden;       /* required */
    bool no_bias;
    trek_dtype dtype;         /* default f32 */
    trek_device device;
    bool relu;                /* max(0, .) in place of tanh */
} trek_rnn_cell_opts;

/* One step: x [N, in] or [in], h and c [N, hidden] or [hidden], NULL: zeros; gives the new h, and c through *cn (may be
 * NULL). trek_forward_many takes x, h, c, trek_forward_results gives h, c. weight_ih, weight_hh, bias_ih, bias_hh as above. */
TREK_API trek_module *trek_nn_lstm_cell(int64_t in, int64_t hidden, trek_device device);
TREK_API trek_module *trek_nn_lstm_cell_with(const trek_lstm_cell_opts *opts);
TREK_API trek_module *trek_nn_gru_cell(int64_t in, int64_t hidden, trek_device device);
TREK_API trek_module *trek_nn_gru_cell_with(const trek_gru_cell_opts *opts);
TREK_API trek_module *trek_nn_rnn_cell(int64_t in, int64_t hidden, trek_device device);
TREK_API trek_module *trek_nn_rnn_cell_with(const trek_rnn_cell_opts *opts);
TREK_API trek_var *trek_nn_lstm_cell_forward(trek_module *cell, trek_var *x, trek_var *h, trek_var *c, trek_var **cn);
TREK_API trek_var *trek_nn_gru_cell_forward(trek_module *cell, trek_var *x, trek_var *h);
TREK_API trek_var *trek_nn_rnn_cell_forward(trek_module *cell, trek_var *x, trek_var *h);

/* --- embedding and dropout -------------------------------------------------- */

typedef struct trek_embedding_opts {
    int64_t num, dim;         /* rows and their length; required */
    int64_t padding_idx;      /* a row that is zero and gets no gradient; default (and TREK_OFF): none;
                               * TREK_ZERO: row 0; below TREK_OFF: from the end */
    trek_dtype dtype;         /* default f32 */
    trek_device device;
    double max_norm, norm_type; /* as trek_lookup_opts' (autograd/embedding.h), as the next; default: none, and 2 */
    bool scale_grad_by_freq;
} trek_embedding_opts;

/* Indices [...] of any integer dtype -> [..., dim]; weight [num, dim], N(0, 1). */
TREK_API trek_module *trek_nn_embedding(int64_t num, int64_t dim, trek_device device);
TREK_API trek_module *trek_nn_embedding_with(const trek_embedding_opts *opts);

typedef struct trek_dropout_opts {
    double p;                 /* default 0.5; TREK_ZERO for 0; at most 1 */
} trek_dropout_opts;

/* In training zeroes elements with probability p and divides the others by 1 - p; in eval x itself. */
TREK_API trek_module *trek_nn_dropout(double p);
TREK_API trek_module *trek_nn_dropout_with(const trek_dropout_opts *opts);

/* trek_dropout1d and its kin; options as trek_nn_dropout's. */
TREK_API trek_module *trek_nn_dropout1d(double p);
TREK_API trek_module *trek_nn_dropout1d_with(const trek_dropout_opts *opts);
TREK_API trek_module *trek_nn_dropout2d(double p);
TREK_API trek_module *trek_nn_dropout2d_with(const trek_dropout_opts *opts);
TREK_API trek_module *trek_nn_dropout3d(double p);
TREK_API trek_module *trek_nn_dropout3d_with(const trek_dropout_opts *opts);
TREK_API trek_module *trek_nn_alpha_dropout(double p);
TREK_API trek_module *trek_nn_alpha_dropout_with(const trek_dropout_opts *opts);
TREK_API trek_module *trek_nn_feature_alpha_dropout(double p);
TREK_API trek_module *trek_nn_feature_alpha_dropout_with(const trek_dropout_opts *opts);

/* --- activations ------------------------------------------------------------ */

typedef struct trek_gelu_opts {
    bool tanh;                /* the tanh approximation */
} trek_gelu_opts;

typedef struct trek_leaky_relu_opts {
    double negative_slope;    /* default 0.01; TREK_ZERO for 0 */
} trek_leaky_relu_opts;

typedef struct trek_softmax_opts {
    int dim;                  /* default -1, the last; TREK_ZERO for 0 */
} trek_softmax_opts;

TREK_API trek_module *trek_nn_relu(void);
TREK_API trek_module *trek_nn_gelu(void);   /* x Phi(x), exact */
TREK_API trek_module *trek_nn_gelu_with(const trek_gelu_opts *opts);
TREK_API trek_module *trek_nn_silu(void);
TREK_API trek_module *trek_nn_tanh(void);
TREK_API trek_module *trek_nn_sigmoid(void);
TREK_API trek_module *trek_nn_leaky_relu(double negative_slope);
TREK_API trek_module *trek_nn_leaky_relu_with(const trek_leaky_relu_opts *opts);
TREK_API trek_module *trek_nn_softmax(int dim);
TREK_API trek_module *trek_nn_softmax_with(const trek_softmax_opts *opts);
TREK_API trek_module *trek_nn_log_softmax(int dim);
TREK_API trek_module *trek_nn_log_softmax_with(const trek_softmax_opts *opts);

/* --- pooling and shapes ----------------------------------------------------- */

/* [N, C, H, W]; the stride is the kernel unless given. The second result of max pooling (trek_forward_results), of one and three
 * dimensions, too, are indices as trek_max_pool2d_with_indices's. */
TREK_API trek_module *trek_nn_max_pool2d(int64_t kernel);
TREK_API trek_module *trek_nn_max_pool2d_with(const trek_pool_opts *opts);
TREK_API trek_module *trek_nn_avg_pool2d(int64_t kernel);
TREK_API trek_module *trek_nn_avg_pool2d_with(const trek_pool_opts *opts);
/* [N, C, H, W] -> [N, C, height, width]. */
TREK_API trek_module *trek_nn_adaptive_avg_pool2d(int64_t height, int64_t width);

typedef struct trek_flatten_opts {
    int start_dim;            /* default 1; TREK_ZERO for 0 */
    int end_dim;              /* default -1, the last; TREK_ZERO for 0 */
} trek_flatten_opts;

/* [N, ...] -> [N, product]. */
TREK_API trek_module *trek_nn_flatten(void);
TREK_API trek_module *trek_nn_flatten_with(const trek_flatten_opts *opts);
/* trek_unflatten: dim (-1: the last) as dimensions of these sizes. ARGUMENT: no sizes, or two of -1. */
TREK_API trek_module *trek_nn_unflatten(int dim, trek_shape sizes);
/* x itself. */
TREK_API trek_module *trek_nn_identity(void);
/* trek_channels_last: before the first convolution of a model it makes the whole of it compute channels last. */
TREK_API trek_module *trek_nn_channels_last(void);

/* --- containers -------------------------------------------------------------- */

/* Runs the modules one after the other and drops each value after its last
 * use; children are named "0", "1", ... Takes all modules over, also on failure;
 * a NULL among them gives NULL (and frees the others). A linear layer directly
 * followed by ReLU or exact GELU runs as one op, and a conv2d followed by ReLU. */
TREK_API trek_module *trek_nn_sequential(int n, trek_module *const *modules);
/* Appends a module, which is taken over, also on failure. ARGUMENT if it is no Sequential. */
TREK_API trek_status trek_nn_sequential_add(trek_module *sequential, trek_module *module);

TREK_END

#include "nn/activations.h"
#include "nn/embedding.h"
#include "nn/norms.h"
#include "nn/routers.h"
#include "nn/transformer.h"

#endif
