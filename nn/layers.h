/* SPDX-License-Identifier: Apache-2.0 */
/* Layers. The names of parameters and buffers, the initial values and the defaults are PyTorch's, so that state files fit.
 *
 * Rules that hold for every constructor here and in the headers that this one includes:
 *   - It returns a new layer that the caller owns, until a parent, a Sequential or a flow takes it over; or NULL on failure.
 *   - The short form sets what most programs need. The form that ends in _with takes all options. A field that is left 0 has its
 *     default, and a device that is left out is trek_device_default(). opts may be NULL where no option is required.
 *   - Errors: ARGUMENT if a size is below 1, an option is out of range or required options are missing; DTYPE, DEVICE, MEMORY.
 *   - A list of sizes [h, w] may leave [1] at 0: it then has the value of [0], as in trek_conv_opts.
 *   - U(a, b) is the uniform distribution from a to b, N(m, s^2) the normal distribution with mean m and standard deviation s. */
#ifndef TREK_NN_LAYERS_H
#define TREK_NN_LAYERS_H

#include "nn/basic_layers.h"
#include "nn/resample.h"
#include "nn/spatial.h"

TREK_BEGIN

/* --- products ------------------------------------------------------------- */

/* Options of trek_nn_linear_with. */
typedef struct trek_linear_opts {
    int64_t in;         /* features of the input; required */
    int64_t out;        /* features of the result; required */
    bool no_bias;       /* leaves out the bias */
    trek_dtype dtype;   /* of the parameters; default f32 */
    trek_device device; /* of the parameters; default trek_device_default() */
} trek_linear_opts;

/* Returns the layer of trek_nn_linear with all options. */
TREK_API trek_module *trek_nn_linear_with(const trek_linear_opts *opts);

/* Options of trek_nn_bilinear_with. */
typedef struct trek_bilinear_opts {
    int64_t in1;        /* features of the first input; required */
    int64_t in2;        /* features of the second input; required */
    int64_t out;        /* features of the result; required */
    bool no_bias;       /* leaves out the bias */
    trek_dtype dtype;   /* of the parameters; default f32 */
    trek_device device; /* of the parameters; default trek_device_default() */
} trek_bilinear_opts;

/* Returns a layer that computes trek_bilinear of two inputs. trek_forward_many passes both; the second is called "second" in
 * graphs, and a forward without it fails with ARGUMENT.
 * Shapes: [..., in1] and [..., in2] -> [..., out].
 * Parameters: weight [out, in1, in2] and bias [out], both U(-b, b) with b = 1 / sqrt(in1). */
TREK_API trek_module *trek_nn_bilinear(int64_t in1, int64_t in2, int64_t out, trek_device device);

/* Returns the layer of trek_nn_bilinear with all options. */
TREK_API trek_module *trek_nn_bilinear_with(const trek_bilinear_opts *opts);

/* Options of trek_nn_conv_transpose2d_with. Lists are [height, width]. */
typedef struct trek_conv_transpose2d_opts {
    int64_t in;         /* channels of the input; required */
    int64_t out;        /* channels of the result; required */
    int64_t kernel[2];  /* size of the window; required */
    int64_t stride[2];  /* elements from window to window in the result; default 1 */
    int64_t padding[2]; /* elements removed on each side, two numbers; default 0, TREK_ZERO for 0 */
    int64_t output_padding[2]; /* elements added at the end, fewer than stride or dilation; default 0, as in padding */
    int64_t dilation[2];       /* elements from one element of the window to the next; default 1 */
    int64_t groups;            /* must divide in and out; default 1 */
    bool no_bias;              /* leaves out the bias */
    trek_dtype dtype;          /* of the parameters; default f32 */
    trek_device device;        /* of the parameters; default trek_device_default() */
} trek_conv_transpose2d_opts;

/* Returns a two-dimensional transposed convolution. A second input (trek_forward_many; "like" in graphs) sets the result's height
 * and width to its own, as PyTorch's output_size does, and output_padding is then ignored.
 * Shapes: x [N, in, H, W] -> [N, out, H', W'], where H' and W' are those of trek_conv_transpose2d (autograd/ops.h).
 * Parameters: weight [in, out / groups, kh, kw] and bias [out], both U(-b, b) with b = 1 / sqrt(out / groups kh kw). */
TREK_API trek_module *trek_nn_conv_transpose2d(int64_t in, int64_t out, int64_t kernel, trek_device device);

/* Returns the layer of trek_nn_conv_transpose2d with all options. */
TREK_API trek_module *trek_nn_conv_transpose2d_with(const trek_conv_transpose2d_opts *opts);

/* --- normalisation -------------------------------------------------------- */

/* Options of all batch norms. */
typedef struct trek_batch_norm_opts {
    int64_t features;      /* channels C; required */
    double eps;            /* added to the variance; default 1e-5, TREK_ZERO for 0 */
    double momentum;       /* weight of a new batch in the running statistics; default 0.1, TREK_ZERO for 0. TREK_OFF makes
                            * them plain averages over all batches */
    bool no_affine;        /* leaves out weight and bias */
    bool no_running_stats; /* keeps no running statistics: the batch's own are used in eval mode, too */
    trek_dtype dtype;      /* of the parameters; default f32 */
    trek_device device;    /* of the parameters; default trek_device_default() */
} trek_batch_norm_opts;

/* Returns a batch norm, which normalises each channel over all other dimensions (torch.nn.BatchNorm1d).
 * Shapes: x [N, C] or [N, C, L]; SHAPE for others.
 * Parameters: weight [C], all 1, and bias [C], all 0.
 * Buffers: running_mean and running_var [C], num_batches_tracked (i64 scalar).
 * Ranks: if a batch is split over ranks, each rank normalises its own part; trek_nn_sync_batch_norm normalises the whole.
 * Errors: SHAPE in training if a channel has a single value. */
TREK_API trek_module *trek_nn_batch_norm1d(int64_t features, trek_device device);

/* Returns the layer of trek_nn_batch_norm1d with all options. */
TREK_API trek_module *trek_nn_batch_norm1d_with(const trek_batch_norm_opts *opts);

/* Returns the layer of trek_nn_batch_norm2d with all options. */
TREK_API trek_module *trek_nn_batch_norm2d_with(const trek_batch_norm_opts *opts);

/* Returns a batch norm of volumes, x [N, C, D, H, W]; the rest is as in trek_nn_batch_norm1d. */
TREK_API trek_module *trek_nn_batch_norm3d(int64_t features, trek_device device);

/* Returns the layer of trek_nn_batch_norm3d with all options. */
TREK_API trek_module *trek_nn_batch_norm3d_with(const trek_batch_norm_opts *opts);

/* Returns a batch norm over the batch of all ranks (torch.nn.SyncBatchNorm). Outputs, gradients and running statistics are those
 * of one device, also if the ranks' parts have different sizes. In evaluation and in windows (trainer.h), where ranks run batches
 * of their own at their own pace, it is a plain batch norm; if there are windows, setup names the layer in the log.
 * Shapes: x [N, C, ...]. Parameters, buffers and options are those of trek_nn_batch_norm1d.
 * Ranks: in forward they exchange the count, the mean and the squared deviations of their parts, in backward two sums (Chan,
 * Golub and LeVeque 1979, in f64). All ranks that have rows must run the layer equally often and in the same order. With trek_ddp
 * see ddp.h; inside trek_ranks_run all ranks of the group take part.
 * GPUs: each exchange waits for the device and cannot be captured.
 * Errors: SHAPE if a channel has a single value on all ranks together; PEER or COMM if a rank fails or does not come. Gradients
 * of gradients are supported only where it is a plain batch norm. */
TREK_API trek_module *trek_nn_sync_batch_norm(int64_t features, trek_device device);

/* Returns the layer of trek_nn_sync_batch_norm with all options. */
TREK_API trek_module *trek_nn_sync_batch_norm_with(const trek_batch_norm_opts *opts);

/* Options of trek_nn_layer_norm_with. */
typedef struct trek_layer_norm_opts {
    trek_shape shape;   /* sizes of the last dimensions, which are normalised; required */
    double eps;         /* added to the variance; default 1e-5, TREK_ZERO for 0 */
    bool no_affine;     /* leaves out weight and bias */
    bool no_bias;       /* leaves out the bias, but not the weight */
    trek_dtype dtype;   /* of the parameters; default f32 */
    trek_device device; /* of the parameters; default trek_device_default() */
} trek_layer_norm_opts;

/* Returns the layer of trek_nn_layer_norm with all options. */
TREK_API trek_module *trek_nn_layer_norm_with(const trek_layer_norm_opts *opts);

/* Options of trek_nn_rms_norm_with. */
typedef struct trek_rms_norm_opts {
    trek_shape shape;   /* sizes of the last dimensions, which are normalised; required */
    double eps;         /* added to the mean of squares; default: the epsilon of the dtype, f32's for 16-bit dtypes. TREK_ZERO
                         * for 0 */
    bool no_affine;     /* leaves out the weight */
    trek_dtype dtype;   /* of the parameters; default f32 */
    trek_device device; /* of the parameters; default trek_device_default() */
} trek_rms_norm_opts;

/* Returns an RMS norm, which computes x / sqrt(mean(x^2) + eps) weight over the last dimension.
 * Shapes: x [..., dim] -> the same.
 * Parameter: weight [dim], all 1. */
TREK_API trek_module *trek_nn_rms_norm(int64_t dim, trek_device device);

/* Returns the layer of trek_nn_rms_norm with all options. */
TREK_API trek_module *trek_nn_rms_norm_with(const trek_rms_norm_opts *opts);

/* --- attention -------------------------------------------------------------- */

/* Options of trek_nn_multihead_attention_with. */
typedef struct trek_multihead_attention_opts {
    int64_t embed_dim;  /* features E; required */
    int64_t heads;      /* must divide embed_dim; required */
    bool no_bias;       /* leaves out the biases of the projections */
    bool causal;        /* lets position t see only positions 0..t of the key */
    double dropout;     /* probability of dropping an attention weight in training, in [0, 1]; default 0 */
    trek_dtype dtype;   /* of the parameters; default f32 */
    trek_device device; /* of the parameters; default trek_device_default() */
    bool add_bias_kv;   /* appends a learned key and value, which every query sees */
    bool add_zero_attn; /* appends a key and a value of zeros after these, which every query sees */
} trek_multihead_attention_opts;

/* Returns the layer of trek_nn_multihead_attention with all options. */
TREK_API trek_module *trek_nn_multihead_attention_with(const trek_multihead_attention_opts *opts);

/* Runs the attention and returns its output; writes the attention weights to *weights unless weights is NULL. The inputs are
 * those of trek_nn_multihead_attention and may be NULL as there. *weights: [N, heads, T, S] after dropout, appended keys
 * included, as trek_attention_weights gives them; NULL on failure. PyTorch averages them over the heads by default: trek_mean
 * over dimension 1.
 * Ownership: the results belong to the caller's scope.
 * Errors: ARGUMENT if the module is another kind of layer. */
TREK_API trek_var *trek_nn_multihead_attention_forward(trek_module *attention, trek_var *query, trek_var *key, trek_var *value,
                                                       trek_var *mask, trek_var **weights);

/* --- recurrent layers --------------------------------------------------------- */

/* Options of trek_nn_lstm_with. */
typedef struct trek_lstm_opts {
    int64_t in;         /* features of x; required */
    int64_t hidden;     /* features of the state; required */
    int64_t layers;     /* number of layers, each of which reads the results of the previous one; default 1 */
    bool no_bias;       /* leaves out the biases */
    bool batch_first;   /* x and the result are [N, T, ...] instead of [T, N, ...]; states stay [..., N, hidden] */
    double dropout;     /* probability of dropping an element between layers in training, in [0, 1]; default 0 */
    bool bidirectional; /* adds weights that read the sequence from its end; both results are concatenated */
    trek_dtype dtype;   /* of the parameters; default f32 */
    trek_device device; /* of the parameters; default trek_device_default() */
    int64_t proj_size;  /* features that each step's h is projected to, fewer than hidden; LSTM only. Default: no projection */
} trek_lstm_opts;

/* Options of trek_nn_gru_with: those of trek_lstm_opts without proj_size, which must be 0. */
typedef trek_lstm_opts trek_gru_opts;

/* Options of trek_nn_rnn_with. */
typedef struct trek_rnn_opts {
    int64_t in;         /* features of x; required */
    int64_t hidden;     /* features of the state; required */
    int64_t layers;     /* number of layers, each of which reads the results of the previous one; default 1 */
    bool no_bias;       /* leaves out the biases */
    bool batch_first;   /* as in trek_lstm_opts */
    double dropout;     /* as in trek_lstm_opts */
    bool bidirectional; /* as in trek_lstm_opts */
    trek_dtype dtype;   /* of the parameters; default f32 */
    trek_device device; /* of the parameters; default trek_device_default() */
    bool relu;          /* uses max(0, .) instead of tanh */
} trek_rnn_opts;

/* Returns the layer of trek_nn_lstm with all options. */
TREK_API trek_module *trek_nn_lstm_with(const trek_lstm_opts *opts);

/* Returns a GRU. It is like trek_nn_lstm, but has no c0, no cn and no projection, and its parameters have 3 hidden rows instead
 * of 4 hidden. */
TREK_API trek_module *trek_nn_gru(int64_t in, int64_t hidden, trek_device device);

/* Returns the layer of trek_nn_gru with all options. */
TREK_API trek_module *trek_nn_gru_with(const trek_gru_opts *opts);

/* Returns an Elman RNN, which computes h = tanh(weight_ih x + bias_ih + weight_hh h + bias_hh) at each step. It is as
 * trek_nn_lstm, but has no c0, no cn and no projection, and its parameters have `hidden` rows instead of 4 hidden. It runs a few
 * ops for each step, in x's dtype. */
TREK_API trek_module *trek_nn_rnn(int64_t in, int64_t hidden, trek_device device);

/* Returns the layer of trek_nn_rnn with all options. */
TREK_API trek_module *trek_nn_rnn_with(const trek_rnn_opts *opts);

/* Runs an LSTM from a given state and returns its output; writes the final states to *hn and *cn unless hn or cn is NULL.
 * Shapes: h0, c0, *hn and *cn are [layers D, N, hidden], without N if x has none. h0 or c0 NULL stands for zeros. lengths [N] or
 * NULL is as in trek_recurrent_opts; the lengths need not be sorted.
 * Ownership: the results belong to the caller's scope. On failure NULL is returned and *hn and *cn are NULL.
 * Errors: ARGUMENT if the module is another kind of layer, or if lengths are given for one sequence without N. */
TREK_API trek_var *trek_nn_lstm_forward(trek_module *lstm, trek_var *x, trek_var *lengths, trek_var *h0, trek_var *c0,
                                        trek_var **hn, trek_var **cn);

/* Runs a GRU from a given state, as trek_nn_lstm_forward runs an LSTM, without c0 and cn. */
TREK_API trek_var *trek_nn_gru_forward(trek_module *gru, trek_var *x, trek_var *lengths, trek_var *h0, trek_var **hn);

/* Runs an Elman RNN from a given state, as trek_nn_lstm_forward runs an LSTM, without c0 and cn. */
TREK_API trek_var *trek_nn_rnn_forward(trek_module *rnn, trek_var *x, trek_var *lengths, trek_var *h0, trek_var **hn);

/* Options of trek_nn_lstm_cell_with. */
typedef struct trek_lstm_cell_opts {
    int64_t in;         /* features of x; required */
    int64_t hidden;     /* features of the state; required */
    bool no_bias;       /* leaves out the biases */
    trek_dtype dtype;   /* of the parameters; default f32 */
    trek_device device; /* of the parameters; default trek_device_default() */
} trek_lstm_cell_opts;

/* Options of trek_nn_gru_cell_with. */
typedef trek_lstm_cell_opts trek_gru_cell_opts;

/* Options of trek_nn_rnn_cell_with. */
typedef struct trek_rnn_cell_opts {
    int64_t in;         /* features of x; required */
    int64_t hidden;     /* features of the state; required */
    bool no_bias;       /* leaves out the biases */
    trek_dtype dtype;   /* of the parameters; default f32 */
    trek_device device; /* of the parameters; default trek_device_default() */
    bool relu;          /* uses max(0, .) instead of tanh */
} trek_rnn_cell_opts;

/* Returns an LSTM cell, which computes one step. trek_forward_many takes x, h and c; trek_forward_results gives h and c.
 * Shapes: x [N, in] or [in]. h and c are [N, hidden] or [hidden], NULL for zeros; the results have the same shapes.
 * Parameters: weight_ih [4 hidden, in], weight_hh [4 hidden, hidden], bias_ih and bias_hh [4 hidden], all U(-b, b) with b = 1 /
 * sqrt(hidden). */
TREK_API trek_module *trek_nn_lstm_cell(int64_t in, int64_t hidden, trek_device device);

/* Returns the layer of trek_nn_lstm_cell with all options. */
TREK_API trek_module *trek_nn_lstm_cell_with(const trek_lstm_cell_opts *opts);

/* Returns a GRU cell. It is like trek_nn_lstm_cell, but has no cell state c, and its parameters have 3 hidden rows instead of 4
 * hidden. */
TREK_API trek_module *trek_nn_gru_cell(int64_t in, int64_t hidden, trek_device device);

/* Returns the layer of trek_nn_gru_cell with all options. */
TREK_API trek_module *trek_nn_gru_cell_with(const trek_gru_cell_opts *opts);

/* Returns the cell of an Elman RNN. It is like trek_nn_lstm_cell, but has no cell state c, and its parameters have `hidden` rows
 * instead of 4 hidden. */
TREK_API trek_module *trek_nn_rnn_cell(int64_t in, int64_t hidden, trek_device device);

/* Returns the layer of trek_nn_rnn_cell with all options. */
TREK_API trek_module *trek_nn_rnn_cell_with(const trek_rnn_cell_opts *opts);

/* Runs one step of an LSTM cell and returns the new h; writes the new c to *cn unless cn is NULL. Inputs are those of
 * trek_nn_lstm_cell. The results belong to the caller's scope and are NULL on failure.
 * Errors: ARGUMENT if the module is another kind of layer. */
TREK_API trek_var *trek_nn_lstm_cell_forward(trek_module *cell, trek_var *x, trek_var *h, trek_var *c, trek_var **cn);

/* Runs one step of a GRU cell and returns the new h, as trek_nn_lstm_cell_forward does. */
TREK_API trek_var *trek_nn_gru_cell_forward(trek_module *cell, trek_var *x, trek_var *h);

/* Runs one step of an Elman RNN cell and returns the new h, as trek_nn_lstm_cell_forward does. */
TREK_API trek_var *trek_nn_rnn_cell_forward(trek_module *cell, trek_var *x, trek_var *h);

/* --- embedding and dropout -------------------------------------------------- */

/* Options of trek_nn_embedding_with. */
typedef struct trek_embedding_opts {
    int64_t num;             /* number of rows; required */
    int64_t dim;             /* elements of a row; required */
    int64_t padding_idx;     /* a row that is zero and gets no gradient; default, and with TREK_OFF: no row. TREK_ZERO is row 0;
                              * numbers below TREK_OFF count from the end */
    trek_dtype dtype;        /* of the table; default f32 */
    trek_device device;      /* of the table; default trek_device_default() */
    double max_norm;         /* rows with a larger norm are scaled to it, as in trek_lookup_opts (autograd/embedding.h); default:
                              * no limit */
    double norm_type;        /* p of that norm; default 2, TREK_ZERO for 0 */
    bool scale_grad_by_freq; /* divides a row's gradient by its number of occurrences, as in trek_lookup_opts */
} trek_embedding_opts;

/* Returns the layer of trek_nn_embedding with all options. */
TREK_API trek_module *trek_nn_embedding_with(const trek_embedding_opts *opts);

/* Options of all dropout layers. */
typedef struct trek_dropout_opts {
    double p; /* probability of dropping, in [0, 1]; default 0.5, TREK_ZERO for 0 */
} trek_dropout_opts;

/* Returns the layer of trek_nn_dropout with all options. */
TREK_API trek_module *trek_nn_dropout_with(const trek_dropout_opts *opts);

/* Returns a dropout layer for whole channels of sequences, as trek_dropout1d. */
TREK_API trek_module *trek_nn_dropout1d(double p);

/* Returns the layer of trek_nn_dropout1d with all options. */
TREK_API trek_module *trek_nn_dropout1d_with(const trek_dropout_opts *opts);

/* Returns a dropout layer for whole channels of images, as trek_dropout2d. */
TREK_API trek_module *trek_nn_dropout2d(double p);

/* Returns the layer of trek_nn_dropout2d with all options. */
TREK_API trek_module *trek_nn_dropout2d_with(const trek_dropout_opts *opts);

/* Returns a dropout layer for whole channels of volumes, as trek_dropout3d. */
TREK_API trek_module *trek_nn_dropout3d(double p);

/* Returns the layer of trek_nn_dropout3d with all options. */
TREK_API trek_module *trek_nn_dropout3d_with(const trek_dropout_opts *opts);

/* Returns an alpha dropout layer, which keeps mean and variance of SELU networks, as trek_alpha_dropout. */
TREK_API trek_module *trek_nn_alpha_dropout(double p);

/* Returns the layer of trek_nn_alpha_dropout with all options. */
TREK_API trek_module *trek_nn_alpha_dropout_with(const trek_dropout_opts *opts);

/* Returns an alpha dropout layer for whole channels, as trek_feature_alpha_dropout. */
TREK_API trek_module *trek_nn_feature_alpha_dropout(double p);

/* Returns the layer of trek_nn_feature_alpha_dropout with all options. */
TREK_API trek_module *trek_nn_feature_alpha_dropout_with(const trek_dropout_opts *opts);

/* --- activations ------------------------------------------------------------ */

/* Options of trek_nn_gelu_with. */
typedef struct trek_gelu_opts {
    bool tanh; /* uses the tanh approximation; default: the exact function */
} trek_gelu_opts;

/* Options of trek_nn_leaky_relu_with. */
typedef struct trek_leaky_relu_opts {
    double negative_slope; /* slope below 0; default 0.01, TREK_ZERO for 0 */
} trek_leaky_relu_opts;

/* Options of trek_nn_softmax_with and trek_nn_log_softmax_with. */
typedef struct trek_softmax_opts {
    int dim; /* the dimension that sums to 1; default -1, the last, TREK_ZERO for 0 */
} trek_softmax_opts;

/* Returns the layer of trek_nn_gelu with all options. */
TREK_API trek_module *trek_nn_gelu_with(const trek_gelu_opts *opts);

/* Returns a layer that computes x sigmoid(x), also called swish. */
TREK_API trek_module *trek_nn_silu(void);

/* Returns a layer that computes 1 / (1 + exp(-x)). */
TREK_API trek_module *trek_nn_sigmoid(void);

/* Returns a layer that computes x where x > 0 and negative_slope x elsewhere. */
TREK_API trek_module *trek_nn_leaky_relu(double negative_slope);

/* Returns the layer of trek_nn_leaky_relu with all options. */
TREK_API trek_module *trek_nn_leaky_relu_with(const trek_leaky_relu_opts *opts);

/* Returns a layer that computes the softmax along a dimension; a negative dim counts from the end. */
TREK_API trek_module *trek_nn_softmax(int dim);

/* Returns the layer of trek_nn_softmax with all options. */
TREK_API trek_module *trek_nn_softmax_with(const trek_softmax_opts *opts);

/* Returns a layer that computes the logarithm of the softmax along a dimension; a negative dim counts from the end. */
TREK_API trek_module *trek_nn_log_softmax(int dim);

/* Returns the layer of trek_nn_log_softmax with all options. */
TREK_API trek_module *trek_nn_log_softmax_with(const trek_softmax_opts *opts);

/* --- pooling and shapes ----------------------------------------------------- */

/* Returns the layer of trek_nn_max_pool2d with all options. */
TREK_API trek_module *trek_nn_max_pool2d_with(const trek_pool_opts *opts);

/* Returns a two-dimensional average pooling, whose stride is the kernel.
 * Shapes: x [N, C, H, W] -> [N, C, H', W']. */
TREK_API trek_module *trek_nn_avg_pool2d(int64_t kernel);

/* Returns the layer of trek_nn_avg_pool2d with all options. */
TREK_API trek_module *trek_nn_avg_pool2d_with(const trek_pool_opts *opts);

/* Returns an average pooling to a given size.
 * Shapes: x [N, C, H, W] -> [N, C, height, width]. */
TREK_API trek_module *trek_nn_adaptive_avg_pool2d(int64_t height, int64_t width);

/* Options of trek_nn_flatten_with. */
typedef struct trek_flatten_opts {
    int start_dim; /* the first dimension that is flattened; default 1, TREK_ZERO for 0 */
    int end_dim;   /* the last dimension that is flattened; default -1, the last, TREK_ZERO for 0 */
} trek_flatten_opts;

/* Returns the layer of trek_nn_flatten with all options. */
TREK_API trek_module *trek_nn_flatten_with(const trek_flatten_opts *opts);

/* Returns a layer that makes one dimension several with these sizes, as trek_unflatten; one size may be -1. A dim of -1 is the
 * last.
 * Errors: ARGUMENT if there are no sizes, or two sizes of -1. */
TREK_API trek_module *trek_nn_unflatten(int dim, trek_shape sizes);

/* Returns a layer that returns x. */
TREK_API trek_module *trek_nn_identity(void);

/* Returns a layer that stores x with its channels last, as trek_channels_last. Before the first convolution of a model it makes
 * the whole model compute with channels last. */
TREK_API trek_module *trek_nn_channels_last(void);

/* --- containers -------------------------------------------------------------- */

/* Appends a module, which is taken over, also on failure.
 * Errors: ARGUMENT if the first argument is not a Sequential. */
TREK_API trek_status trek_nn_sequential_add(trek_module *sequential, trek_module *module);

TREK_END

#include "nn/activations.h"
#include "nn/embedding.h"
#include "nn/norms.h"
#include "nn/routers.h"
#include "nn/transformer.h"

#endif
