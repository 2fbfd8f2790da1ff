/* SPDX-License-Identifier: Apache-2.0 */
/* The ops of random sequences: every public row of ops.def, with arguments that its signature asks for (a signature
 * that is new needs its TAKES_ here, or this does not compile), and the functions of autograd/ops.h that are no rows. */
#include "autograd/var_internal.h"
#include "tensor/op.h"
#include "tests/sequences/sequence.h"

/* x is the first input, drawn for each call. */
#define TAKES_UNARY x
#define TAKES_BINARY x, pool_like(p, x)
#define TAKES_TERNARY pool_mask(p, x), x, pool_like(p, x)
#define TAKES_SCALAR x, pool_number(p)
#define TAKES_SCALAR2 x, pool_number(p), pool_number(p)
#define TAKES_BINARY_SCALAR x, pool_like(p, x), pool_number(p)
#define TAKES_BINARY_SCALAR2 x, pool_like(p, x), pool_number(p), pool_number(p)
#define TAKES_UNARY_FLAG x, pool_chance(p, 50)
#define TAKES_BINARY_FLAG x, pool_like(p, x), pool_chance(p, 50)
#define TAKES_REDUCE x, pool_dims(p), pool_chance(p, 50)
#define TAKES_REDUCE_SCALAR x, pool_dims(p), pool_chance(p, 50), 1
#define TAKES_DIM x, pool_dim(p)
#define TAKES_BINARY_DIM x, pool_index(p), pool_dim(p)
#define TAKES_TERNARY_DIM x, pool_index(p), pool_like(p, x), pool_dim(p)
#define TAKES_DIM2 x, pool_dim(p), pool_dim(p)
#define TAKES_DIM_RANGE x, pool_dim(p), pool_integer(p), pool_integer(p)
#define TAKES_DIM_INDEX x, pool_dim(p), pool_integer(p)
#define TAKES_SHAPE x, pool_sizes(p, x)
#define TAKES_BINARY_SHAPE x, pool_like(p, x), pool_sizes(p, x)
#define TAKES_LIST (pool_list(p), p->list), pool_below(p, POOL_LIST + 1), pool_dim(p)
#define TAKES_DTYPE x, pool_dtype(p)
#define TAKES_NUMBER x, pool_integer(p) % 4096
#define TAKES_NUMBER2 x, pool_integer(p) % 64, pool_integer(p) % 64
#define TAKES_BINARY_NUMBER x, pool_index(p), pool_integer(p)
#define TAKES_BINARY_NUMBER2 x, pool_index(p), pool_integer(p), pool_integer(p)
#define TAKES_LINEAR x, pool_matrix(p, x), pool_bias(p), pool_below(p, 3)
#define TAKES_CONV pool_image(p), pool_filter(p), pool_filter_bias(p), pool_conv(p)
#define TAKES_CONV_TRANSPOSE pool_image(p), pool_transposed_filter(p), pool_filter_bias(p), pool_conv_transpose(p)
#define TAKES_POOL pool_image(p), pool_pooling(p)
#define TAKES_LAYER_NORM x, pool_row(p, x), pool_row(p, x), pool_normalized(p), pool_eps(p)
#define TAKES_ADD_LAYER_NORM x, pool_like(p, x), pool_row(p, x), pool_row(p, x), pool_normalized(p), pool_eps(p)
#define TAKES_RMS_NORM x, pool_row(p, x), pool_normalized(p), pool_eps(p)
#define TAKES_BATCH_NORM                                                                                                         \
    x, pool_channels(p, x), pool_channels(p, x), pool_channels(p, x), pool_channels(p, x), pool_chance(p, 50), pool_number(p),   \
        pool_eps(p)
#define TAKES_CROSS_ENTROPY x, pool_index(p), pool_row(p, x), pool_integer(p), pool_below(p, 3), pool_number(p)
#define TAKES_LINEAR_CROSS_ENTROPY                                                                                               \
    x, pool_matrix(p, x), pool_row(p, x), pool_index(p), pool_integer(p), pool_below(p, 3), pool_number(p)
/* Of rows that are internal, or whose public function is called below: not taken. */
static const trek_attrs no_numbers;
#define TAKES_CONV_GRAD NULL, NULL, &no_numbers, trek_dims_none()
#define TAKES_POOL_GRAD NULL, &no_numbers, 0, 0
#define TAKES_UNFOLD NULL, &no_numbers, 0, 0
#define TAKES_FOLD NULL, &no_numbers, 0, 0
#define TAKES_LAYER_NORM_GRAD NULL, NULL, NULL, NULL, NULL, 0
#define TAKES_ADD_LAYER_NORM_GRAD NULL, NULL, NULL, NULL, NULL, NULL, 0
#define TAKES_RMS_NORM_GRAD NULL, NULL, NULL, NULL, 0
#define TAKES_BATCH_NORM_GRAD NULL, NULL, NULL, NULL, NULL, false
#define TAKES_DROPOUT NULL, 0, &no_numbers
#define TAKES_ATTENTION NULL, NULL, NULL, NULL, &no_numbers
#define TAKES_ATTENTION_GRAD NULL, NULL, NULL, NULL, NULL, NULL, NULL, &no_numbers
#define TAKES_CROSS_ENTROPY_GRAD NULL, NULL, NULL, NULL, NULL, NULL, &no_numbers
#define TAKES_LINEAR_CROSS_ENTROPY_GRAD NULL, NULL, NULL, NULL, NULL, NULL, NULL, &no_numbers
#define TAKES_POINTWISE_LOSS NULL, NULL, 0, 0
#define TAKES_POINTWISE_LOSS_GRAD NULL, NULL, NULL, &no_numbers
#define TAKES_LSTM NULL, NULL, NULL, NULL, NULL, false, false
#define TAKES_LSTM_GRAD NULL, NULL, NULL, NULL, NULL, NULL, &no_numbers
#define TAKES_GRU NULL, NULL, NULL, NULL, NULL, false, false
#define TAKES_GRU_GRAD NULL, NULL, NULL, NULL, NULL, NULL, NULL, &no_numbers
#define TAKES_FILL NULL, 0
#define TAKES_RANDOM NULL, 0, 0, &no_numbers

#define TREK_OP(name, signature, infer, dtypes, flags, ...) \
    static outcome run_##name(pool *p) \
    { \
        trek_var *x = pool_var(p); \
        (void)x; \
        return sequence_var(p, trek_apply_##name(TAKES_##signature)); \
    }
#include "tensor/ops.def"
#undef TREK_OP

/* Rows that are internal, or are called through their public function below, run nothing. */
#define RUNS(flags) (!((flags) & (TREK_OP_INTERNAL | TREK_OP_FILL | TREK_OP_RANDOM)))
const sequence_call sequence_ops[] = {
#define TREK_OP(name_, signature, infer, dtypes, flags, ...) { #name_, RUNS(flags) ? run_##name_ : NULL },
#include "tensor/ops.def"
#undef TREK_OP
};
const int sequence_n_ops = (int)(sizeof sequence_ops / sizeof sequence_ops[0]);

/* --- the public functions ----------------------------------------------------------------- */

#define CALL(name, ...) \
    static outcome call_##name(pool *p) \
    { \
        trek_var *x = pool_var(p); \
        (void)x; \
        return sequence_var(p, trek_##name(__VA_ARGS__)); \
    }
#define FUNCTIONS(X) \
    X(gelu, x) X(gelu_tanh, x) X(softplus, x, pool_number(p), pool_number(p)) X(clamp, x, pool_number(p), pool_number(p)) \
    X(sub_scalar, x, pool_number(p)) X(div_scalar, x, pool_number(p)) X(masked_fill, x, pool_mask(p, x), pool_number(p)) \
    X(variance, x, pool_dims(p), pool_chance(p, 50)) X(std, x, pool_dims(p), pool_chance(p, 50)) \
    X(norm, x, pool_number(p), pool_dims(p), pool_chance(p, 50)) X(flatten, x, pool_dim(p), pool_dim(p)) \
    X(contiguous, x) X(clone, x) X(cast, x, pool_dtype(p)) X(to, x, pool_device(p)) \
    X(add_, x, pool_like(p, x)) X(sub_, x, pool_like(p, x)) X(mul_, x, pool_like(p, x)) X(div_, x, pool_like(p, x)) \
    X(copy_, x, pool_like(p, x)) X(fill_, x, pool_number(p)) \
    X(cat, pool_list(p), pool_below(p, POOL_LIST + 1), pool_dim(p)) \
    X(stack, pool_list(p), pool_below(p, POOL_LIST + 1), pool_dim(p)) X(matmul, x, pool_chance(p, 50) ? x : pool_var(p)) \
    X(linear, x, pool_matrix(p, x), pool_bias(p)) \
    X(linear_activation, x, pool_matrix(p, x), pool_bias(p), (trek_activation)pool_below(p, pool_chance(p, 95) ? 3 : 9)) \
    X(layer_norm, x, pool_row(p, x), pool_row(p, x), pool_normalized(p), pool_eps(p)) \
    X(rms_norm, x, pool_row(p, x), pool_normalized(p), pool_eps(p)) X(dropout, x, pool_number(p), pool_chance(p, 70)) \
    X(attention, pool_image(p), pool_image(p), pool_image(p), pool_attention(p)) \
    X(cross_entropy, x, pool_chance(p, 70) ? pool_labels(p, x) : pool_like(p, x)) \
    X(cross_entropy_with, x, pool_chance(p, 70) ? pool_labels(p, x) : pool_like(p, x), pool_entropy(p)) \
    X(linear_cross_entropy, x, pool_matrix(p, x), pool_bias(p), pool_labels(p, x), pool_entropy(p)) \
    X(nll_loss, x, pool_labels(p, x)) X(mse_loss, x, pool_like(p, x)) X(l1_loss, x, pool_like(p, x)) \
    X(smooth_l1_loss, x, pool_like(p, x), pool_number(p)) X(bce_with_logits, x, pool_like(p, x)) \
    X(kl_div, x, pool_like(p, x)) X(accuracy, x, pool_labels(p, x))
FUNCTIONS(CALL)

static outcome call_add_layer_norm(pool *p)
{
    trek_var *x = pool_var(p), *residual = NULL;
    trek_var *made = trek_add_layer_norm(x, pool_like(p, x), pool_row(p, x), pool_row(p, x), pool_normalized(p), pool_eps(p),
                                         pool_chance(p, 70) ? &residual : NULL);
    pool_keep(p, residual);
    return sequence_var(p, made);
}

/* x and weights that mostly do not fit; layers, whose do, are among the modules. */
static outcome call_recurrent(pool *p, bool lstm)
{
    trek_var *x = pool_var(p), *hn = NULL, *cn = NULL, **h = pool_chance(p, 70) ? &hn : NULL;
    trek_recurrent_opts opts = { .h0 = pool_chance(p, 20) ? pool_var(p) : NULL, .c0 = pool_chance(p, 20) ? pool_var(p) : NULL,
                                 .lengths = pool_chance(p, 20) ? pool_index(p) : NULL, .reverse = pool_chance(p, 50) };
    trek_var *ih = pool_matrix(p, x), *hh = pool_chance(p, 50) ? pool_matrix(p, x) : pool_var(p), *bias = pool_bias(p);
    trek_var *made = lstm ? trek_lstm(x, ih, hh, bias, NULL, &opts, h, pool_chance(p, 70) ? &cn : NULL)
                          : trek_gru(x, ih, hh, bias, NULL, pool_chance(p, 90) ? &opts : NULL, h);
    pool_keep(p, hn);
    pool_keep(p, cn);
    return sequence_var(p, made);
}
static outcome call_lstm(pool *p) { return call_recurrent(p, true); }
static outcome call_gru(pool *p) { return call_recurrent(p, false); }

static outcome parts_of(pool *p, int n)
{
    for (int k = 0; k < n && k < POOL_LIST; k++)
        pool_keep(p, p->parts[k]);
    p->number = n;
    return n < 0 ? OUTCOME_FAILED : OUTCOME_MADE;
}
static outcome call_split(pool *p)
{
    return parts_of(p, trek_split(pool_var(p), pool_integer(p), pool_dim(p), pool_chance(p, 95) ? p->parts : NULL, POOL_LIST));
}
static outcome call_chunk(pool *p)
{
    return parts_of(p, trek_chunk(pool_var(p), pool_dim(p), pool_dim(p), pool_chance(p, 95) ? p->parts : NULL, POOL_LIST));
}
static outcome call_unbind(pool *p)
{
    return parts_of(p, trek_unbind(pool_var(p), pool_dim(p), pool_chance(p, 95) ? p->parts : NULL, POOL_LIST));
}
static outcome call_loss_weight(pool *p)
{
    trek_var *x = pool_var(p);
    p->number = x ? trek_loss_weight(x) : 0;
    return OUTCOME_EITHER;
}
static outcome call_loss_set_weight(pool *p) { return sequence_status(trek_loss_set_weight(pool_var(p), pool_number(p))); }

#define NAMED(name, ...) { #name, call_##name },
const sequence_call sequence_functions[] = {
    FUNCTIONS(NAMED) { "add_layer_norm", call_add_layer_norm }, { "lstm", call_lstm }, { "gru", call_gru },
    { "split", call_split }, { "chunk", call_chunk }, { "unbind", call_unbind },
    { "loss_weight", call_loss_weight }, { "loss_set_weight", call_loss_set_weight },
};
const int sequence_n_functions = (int)(sizeof sequence_functions / sizeof sequence_functions[0]);
