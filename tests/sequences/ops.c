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
#define TAKES_TERNARY_SCALAR x, pool_like(p, x), pool_like(p, x), pool_number(p)
#define TAKES_SCALAR x, pool_number(p)
#define TAKES_SCALAR2 x, pool_number(p), pool_number(p)
#define TAKES_SCALAR3 x, pool_number(p), pool_number(p), pool_number(p)
#define TAKES_BINARY_SCALAR x, pool_like(p, x), pool_number(p)
#define TAKES_BINARY_SCALAR2 x, pool_like(p, x), pool_number(p), pool_number(p)
#define TAKES_UNARY_FLAG x, pool_chance(p, 50)
#define TAKES_BINARY_FLAG x, pool_like(p, x), pool_chance(p, 50)
#define TAKES_REDUCE x, pool_dims(p), pool_chance(p, 50)
#define TAKES_REDUCE_SCALAR x, pool_dims(p), pool_chance(p, 50), 1
#define TAKES_DIM x, pool_dim(p)
#define TAKES_DIM_FLAG x, pool_dim(p), pool_chance(p, 50)
#define TAKES_DIM_COUNT x, pool_dim(p), pool_integer(p), pool_below(p, 3)
#define TAKES_TERNARY_DIM_NUMBER x, pool_index(p), pool_like(p, x), pool_dim(p), pool_below(p, 4)
#define TAKES_DIAGONAL x, pool_integer(p), pool_dim(p), pool_dim(p)
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
#define TAKES_EMBEDDING x, pool_index(p), pool_integer(p), pool_chance(p, 50)
#define TAKES_LINEAR x, pool_matrix(p, x), pool_bias(p), pool_below(p, 3)
#define TAKES_CONV pool_image(p), pool_filter(p), pool_filter_bias(p), pool_conv(p), pool_below(p, 3)
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
    x, pool_matrix(p, x), pool_row(p, x), pool_index(p), pool_integer(p), pool_below(p, 3), pool_number(p), pool_below(p, 9)
/* Of rows that are internal, or whose public function is called below: not taken. */
static const trek_attrs no_numbers;
#define TAKES_CONV_GRAD NULL, NULL, &no_numbers, trek_dims_none()
#define TAKES_POOL_GRAD NULL, &no_numbers, 0, 0
#define TAKES_UNFOLD NULL, &no_numbers, 0, 0
#define TAKES_FOLD NULL, &no_numbers, 0, 0
#define TAKES_RESAMPLE NULL, &no_numbers
#define TAKES_GRID_SAMPLE NULL, NULL, &no_numbers
#define TAKES_GRID_SAMPLE_GRAD NULL, NULL, NULL, &no_numbers
#define TAKES_GROUP_NORM x, pool_channels(p, x), pool_channels(p, x), pool_integer(p) % 8, pool_eps(p)
#define TAKES_EMBEDDING_GRAD NULL, NULL, NULL, NULL, 0, 0
#define TAKES_EMBEDDING_BAG NULL, NULL, NULL, NULL, 0, 0, false
#define TAKES_ROTARY NULL, NULL, false, false
#define TAKES_GROUP_NORM_GRAD NULL, NULL, NULL, NULL, NULL, 0
#define TAKES_LAYER_NORM_GRAD NULL, NULL, NULL, NULL, NULL, 0
#define TAKES_ADD_LAYER_NORM_GRAD NULL, NULL, NULL, NULL, NULL, NULL, 0
#define TAKES_RMS_NORM_GRAD NULL, NULL, NULL, NULL, 0
#define TAKES_BATCH_NORM_GRAD NULL, NULL, NULL, NULL, NULL, false
#define TAKES_DROPOUT NULL, 0, &no_numbers
#define TAKES_ATTENTION NULL, NULL, NULL, NULL, &no_numbers
#define TAKES_ATTENTION_GRAD NULL, NULL, NULL, NULL, NULL, NULL, NULL, &no_numbers
#define TAKES_CROSS_ENTROPY_GRAD NULL, NULL, NULL, NULL, NULL, NULL, &no_numbers
#define TAKES_LINEAR_CROSS_ENTROPY_GRAD NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, &no_numbers
#define TAKES_FP8_QUANTISE NULL, NULL, 0, 0, 0, 0
#define TAKES_FP8_PRODUCT NULL, NULL, NULL, NULL, NULL, 0, 0, TREK_F32
#define TAKES_POINTWISE_LOSS NULL, NULL, 0, 0
#define TAKES_POINTWISE_LOSS_GRAD NULL, NULL, NULL, &no_numbers
#define TAKES_LSTM NULL, NULL, NULL, NULL, NULL, false, false
#define TAKES_LSTM_GRAD NULL, NULL, NULL, NULL, NULL, NULL, &no_numbers
#define TAKES_GRU NULL, NULL, NULL, NULL, NULL, false, false
#define TAKES_GRU_GRAD NULL, NULL, NULL, NULL, NULL, NULL, NULL, &no_numbers
#define TAKES_FILL NULL, 0
#define TAKES_RANDOM NULL, 0, 0, &no_numbers

#define RUN(function, name, signature) \
    static outcome run_##name(pool *p) \
    { \
        trek_var *x = pool_var(p); \
        (void)x; \
        return sequence_var(p, function(TAKES_##signature)); \
    }
#define TREK_OP(name, signature, ...) RUN(trek_apply_##name, name, signature)
#define TREK_PUBLIC_OP(name, signature, ...) RUN(trek_##name, name, signature)
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
    X(relu6, x) X(hardtanh, x, pool_number(p), pool_number(p)) X(hardsigmoid, x) X(hardswish, x) \
    X(hardshrink, x, pool_number(p)) X(softshrink, x, pool_number(p)) X(tanhshrink, x) X(softsign, x) X(logsigmoid, x) \
    X(threshold, x, pool_number(p), pool_number(p)) X(mish, x) X(selu, x) X(celu, x, pool_number(p)) \
    X(elu, x, pool_number(p)) X(leaky_relu, x, pool_number(p)) \
    X(softmin, x, pool_dim(p)) X(prelu, x, pool_channels(p, x)) X(rrelu, x, pool_number(p), pool_number(p), pool_chance(p, 50)) \
    X(glu, x, pool_dim(p)) X(swiglu, x, pool_dim(p)) X(lerp, x, pool_like(p, x), pool_number(p)) \
    X(addcmul, x, pool_like(p, x), pool_like(p, x), pool_number(p)) \
    X(addcdiv, x, pool_like(p, x), pool_like(p, x), pool_number(p)) X(frac, x) X(exp2, x) X(asinh, x) X(acosh, x) X(atanh, x) \
    X(erfc, x) X(erfinv, x) X(lgamma, x) X(digamma, x) X(polygamma, pool_integer(p), x) \
    X(deg2rad, x) X(rad2deg, x) X(logaddexp, x, pool_like(p, x)) \
    X(nan_to_num, x, pool_number(p), pool_number(p), pool_number(p)) \
    X(isclose, x, pool_like(p, x), pool_number(p), pool_number(p), pool_chance(p, 50)) X(count_nonzero, x, pool_dims(p)) \
    X(sub_scalar, x, pool_number(p)) X(div_scalar, x, pool_number(p)) X(masked_fill, x, pool_mask(p, x), pool_number(p)) \
    X(variance, x, pool_dims(p), pool_chance(p, 50)) X(std, x, pool_dims(p), pool_chance(p, 50)) \
    X(norm, x, pool_number(p), pool_dims(p), pool_chance(p, 50)) X(flatten, x, pool_dim(p), pool_dim(p)) \
    X(contiguous, x) X(clone, x) X(cast, x, pool_dtype(p)) X(to, x, pool_device(p)) \
    X(add_, x, pool_like(p, x)) X(sub_, x, pool_like(p, x)) X(mul_, x, pool_like(p, x)) X(div_, x, pool_like(p, x)) \
    X(copy_, x, pool_like(p, x)) X(fill_, x, pool_number(p)) \
    X(cat, pool_list(p), pool_below(p, POOL_LIST + 1), pool_dim(p)) \
    X(stack, pool_list(p), pool_below(p, POOL_LIST + 1), pool_dim(p)) X(matmul, x, pool_chance(p, 50) ? x : pool_var(p)) \
    X(linear, x, pool_matrix(p, x), pool_bias(p)) \
    X(bilinear, x, pool_like(p, x), pool_var(p), pool_bias(p)) X(unflatten, x, pool_dim(p), pool_sizes(p, x)) \
    X(embedding_with, pool_index(p), x, NULL) X(embedding_bag, pool_index(p), x, NULL) X(rotary, x, NULL) \
    X(linear_activation, x, pool_matrix(p, x), pool_bias(p), (trek_activation)pool_below(p, pool_chance(p, 95) ? 3 : 9)) \
    X(layer_norm, x, pool_normalized(p), pool_row(p, x), pool_row(p, x), pool_eps(p)) \
    X(rms_norm, x, pool_normalized(p), pool_row(p, x), pool_eps(p)) X(dropout, x, pool_number(p), pool_chance(p, 70)) \
    X(group_norm, x, pool_integer(p) % 8, pool_channels(p, x), pool_channels(p, x), pool_eps(p))                                 \
    X(instance_norm, x, pool_channels(p, x), pool_channels(p, x), pool_channels(p, x), pool_channels(p, x), pool_chance(p, 50),  \
      pool_number(p), pool_eps(p))                                                                                               \
    X(local_response_norm, x, pool_integer(p) % 8, pool_number(p), pool_number(p), pool_number(p))                               \
    X(normalize, x, pool_number(p), pool_dim(p), pool_eps(p)) X(dropout1d, x, pool_number(p), pool_chance(p, 70))                \
    X(dropout2d, x, pool_number(p), pool_chance(p, 70)) X(dropout3d, x, pool_number(p), pool_chance(p, 70))                      \
    X(alpha_dropout, x, pool_number(p), pool_chance(p, 70)) X(feature_alpha_dropout, x, pool_number(p), pool_chance(p, 70))      \
    X(attention, pool_image(p), pool_image(p), pool_image(p), pool_attention(p)) \
    X(attention_weights, pool_image(p), pool_image(p), pool_attention(p)) \
    X(cross_entropy, x, pool_chance(p, 70) ? pool_labels(p, x) : pool_like(p, x)) \
    X(cross_entropy_with, x, pool_chance(p, 70) ? pool_labels(p, x) : pool_like(p, x), pool_entropy(p)) \
    X(linear_cross_entropy, x, pool_matrix(p, x), pool_bias(p), pool_labels(p, x), pool_entropy(p)) \
    X(nll_loss, x, pool_labels(p, x)) X(mse_loss, x, pool_like(p, x)) X(l1_loss, x, pool_like(p, x)) \
    X(smooth_l1_loss, x, pool_like(p, x), pool_number(p)) X(bce_with_logits, x, pool_like(p, x)) \
    X(kl_div, x, pool_like(p, x)) X(accuracy, x, pool_labels(p, x))
FUNCTIONS(CALL)

/* Quotients, functions of two numbers, along lines. */
#define ARITHMETIC(X)                                                                                                            \
    X(fmod, x, pool_like(p, x))                                                                                                  \
    X(floor_divide, x, pool_like(p, x))                                                                                          \
    X(hypot, x, pool_like(p, x)) X(copysign, x, pool_like(p, x)) X(div_mode, x, pool_like(p, x),                                 \
                                                                   (trek_rounding)pool_below(p, 4)) X(xlogy, x, pool_like(p, x)) \
        X(sinc, x) X(signbit, x) X(heaviside, x, pool_like(p, x)) X(clamp_var, x, pool_chance(p, 70) ? pool_like(p, x) : NULL,   \
                                                                    pool_like(p, x)) X(isposinf, x) X(isneginf, x)               \
            X(diff, x, pool_below(p, 4) - 1, pool_dim(p), pool_chance(p, 30) ? pool_like(p, x) : NULL, NULL)                     \
                X(trapezoid, x, pool_chance(p, 50) ? pool_like(p, x) : NULL, pool_number(p), pool_dim(p))                        \
                    X(bitwise_and, x, pool_like(p, x)) X(bitwise_or, x, pool_like(p, x)) X(bitwise_xor, x, pool_like(p, x))      \
                        X(bitwise_not, x) X(bitwise_left_shift, x, pool_like(p, x)) X(bitwise_right_shift, x, pool_like(p, x))   \
                            X(gcd, x, pool_like(p, x)) X(lcm, x, pool_like(p, x)) X(nextafter, x, pool_like(p, x))               \
                                X(fmax, x, pool_like(p, x)) X(fmin, x, pool_like(p, x)) X(logit, x, pool_number(p))              \
                                    X(logcumsumexp, x, pool_dim(p)) X(isin, x, pool_like(p, x), pool_chance(p, 50))              \
                                        X(take, x, pool_index(p)) X(put, x, pool_index(p), pool_var(p), pool_chance(p, 50))      \
                                            X(take_along_dim, x, pool_index(p), pool_dim(p)) X(index_copy, x, pool_dim(p),       \
                                                                                               pool_index(p), pool_like(p, x))   \
                                                X(masked_scatter, x, pool_mask(p, x),                                            \
                                                  pool_like(p, x)) X(rot90, x, pool_integer(p), pool_dims(p))                    \
                                                    X(diag_embed, x, pool_below(p, 5) - 2, pool_dim(p),                          \
                                                      pool_dim(p)) X(block_diag, pool_list(p), pool_below(p, POOL_LIST + 1))     \
                                                        X(vander, x, pool_below(p, 5) - 2, pool_chance(p, 50))                   \
                                                            X(cov, x, pool_below(p, 3), NULL,                                    \
                                                              pool_chance(p, 50) ? pool_row(p, x) : NULL) X(corrcoef, x)         \
                                                                X(histc, x, pool_below(p, 6), pool_number(p), pool_number(p))    \
                                                                    X(renorm, x, pool_number(p), pool_dim(p), pool_number(p))    \
                                                                        X(cumulative_trapezoid, x,                               \
                                                                          pool_chance(p, 50) ? pool_like(p, x) : NULL,           \
                                                                          pool_number(p), pool_dim(p))                           \
                                                                            X(nansum, x, pool_dims(p), pool_chance(p, 50))       \
                                                                                X(nanmean, x, pool_dims(p), pool_chance(p, 50))
ARITHMETIC(CALL)

/* Norms of matrices, frames of signals. */
#define STFT(x)                                                                                                                  \
    (&(trek_stft_opts){ .hop_length = pool_below(p, 4) - 1, .win_length = pool_below(p, 4) - 1, .no_center = pool_chance(p, 50), \
                        .window = pool_chance(p, 30) ? pool_row(p, x) : NULL, .normalized = pool_chance(p, 50),                  \
                        .two_sided = pool_chance(p, 50), .pad_mode = (trek_stft_pad)pool_below(p, 5) })
#define FRAMES(X)                                                                                                                \
    X(matrix_norm, x, (trek_matrix_order)pool_below(p, 9), pool_chance(p, 50)) X(logdet, x)                                      \
    X(cross, x, pool_like(p, x), pool_dim(p)) X(stft, x, pool_below(p, 6) - 1, STFT(x))                                          \
    X(istft, x, pool_below(p, 6) - 1, pool_below(p, 6) - 1, STFT(x))                                                             \
    X(hann_window, pool_below(p, 6) - 1, pool_chance(p, 50), pool_dtype(p), pool_device(p))                                      \
    X(hamming_window, pool_below(p, 6) - 1, pool_chance(p, 50), pool_dtype(p), pool_device(p))
FRAMES(CALL)

/* Those that sort, choose and place: more results through pointers, which may be NULL. */
#define PLACES (pool_chance(p, 70) ? &places : NULL)
#define CALL_PLACES(name, ...) \
    static outcome call_##name(pool *p) \
    { \
        trek_var *x = pool_var(p), *places = NULL; \
        trek_var *made = trek_##name(__VA_ARGS__); \
        pool_keep(p, places); \
        return sequence_var(p, made); \
    }
#define FUNCTIONS_OF_PLACES(X)                                                                                                   \
    X(max_with_indices, x, pool_dim(p), pool_chance(p, 50), PLACES)                                                              \
    X(min_with_indices, x, pool_dim(p), pool_chance(p, 50), PLACES)                                                              \
    X(median, x, pool_dim(p), pool_chance(p, 50), PLACES)                                                                        \
    X(nanmedian, x, pool_dim(p), pool_chance(p, 50), PLACES) X(unique, x, PLACES, NULL) X(unique_consecutive, x, PLACES, NULL)   \
        X(mode, x, pool_dim(p), pool_chance(p, 50), PLACES) X(aminmax, x, pool_dims(p), pool_chance(p, 50), PLACES)              \
            X(variance_mean, x, pool_dims(p), pool_chance(p, 50), PLACES)                                                        \
                X(std_mean, x, pool_dims(p), pool_chance(p, 50), PLACES)
FUNCTIONS_OF_PLACES(CALL_PLACES)

#define MORE_FUNCTIONS(X) \
    X(argsort, x, pool_dim(p), pool_chance(p, 50)) \
    X(quantile, x, pool_like(p, x), pool_dim(p), pool_chance(p, 50), (trek_interpolation)pool_below(p, 6)) \
    X(nanquantile, x, pool_like(p, x), pool_dim(p), pool_chance(p, 50), (trek_interpolation)pool_below(p, 6)) \
    X(searchsorted_by, x, pool_like(p, x), pool_chance(p, 50), pool_index(p)) \
    X(bucketize, x, pool_row(p, x), pool_chance(p, 50)) X(masked_select, x, pool_mask(p, x)) \
    X(bincount, pool_labels(p, x), pool_chance(p, 30) ? pool_like(p, x) : NULL, pool_below(p, 9) - 1) \
    X(repeat_interleave, x, pool_below(p, 5) - 1, pool_dim(p)) X(repeat_interleave_by, x, pool_labels(p, x), pool_dim(p)) \
    X(scatter_value, x, pool_dim(p), pool_index(p), pool_number(p)) X(index_fill, x, pool_dim(p), pool_index(p), pool_number(p)) \
    X(index_put, x, pool_list(p), pool_below(p, POOL_LIST + 1), pool_var(p), pool_chance(p, 50)) \
    X(repeat, x, pool_shape(p)) X(tile, x, pool_shape(p)) X(roll, x, pool_dims(p), pool_dims(p)) \
    X(movedim, x, pool_dims(p), pool_dims(p)) X(diag, x, pool_integer(p)) X(zeros_like, x) X(ones_like, x) \
    X(full_like, x, pool_number(p)) X(empty_like, x) X(rand_like, x) X(randn_like, x) X(bernoulli, x) \
    X(multinomial, x, pool_below(p, 5), pool_chance(p, 50))
MORE_FUNCTIONS(CALL)

#define OVER_SPACE(X) \
    X(pad, x, pool_dims(p), (trek_pad_mode)pool_below(p, 5), pool_number(p)) X(pixel_shuffle, x, pool_below(p, 4)) \
    X(pixel_unshuffle, x, pool_below(p, 4)) X(channel_shuffle, x, pool_below(p, 4)) \
    X(conv1d, x, pool_chance(p, 50) ? pool_var(p) : x, pool_bias(p), pool_conv(p)) \
    X(conv_transpose1d, x, pool_chance(p, 50) ? pool_var(p) : x, pool_bias(p), pool_conv_transpose(p)) \
    X(conv2d_activation, pool_image(p), pool_filter(p), pool_filter_bias(p), pool_conv(p), (trek_activation)pool_below(p, 4)) \
    X(channels_last, pool_chance(p, 50) ? pool_image(p) : x) \
    X(conv3d, x, pool_chance(p, 50) ? pool_var(p) : x, pool_bias(p), pool_conv(p)) \
    X(conv_transpose3d, x, pool_chance(p, 50) ? pool_var(p) : x, pool_bias(p), pool_conv_transpose(p)) \
    X(max_pool3d, x, pool_pooling(p)) X(avg_pool3d, x, pool_pooling(p)) \
    X(adaptive_avg_pool3d, x, pool_below(p, 4), pool_below(p, 4), pool_below(p, 3)) \
    X(max_pool1d, x, pool_pooling(p)) X(avg_pool1d, x, pool_pooling(p)) X(adaptive_avg_pool1d, x, pool_below(p, 4))
OVER_SPACE(CALL)

#define MORE_POOLS(X)                                                                                                            \
    X(max_pool1d_with_indices, x, pool_pooling(p), NULL)                                                                         \
    X(max_pool2d_with_indices, x, pool_pooling(p), NULL) X(max_pool3d_with_indices, x, pool_pooling(p), NULL)                    \
        X(adaptive_max_pool1d, x, pool_below(p, 4), NULL) X(adaptive_max_pool2d, x, pool_below(p, 4), pool_below(p, 4), NULL)    \
            X(adaptive_max_pool3d, x, pool_below(p, 4), pool_below(p, 4), pool_below(p, 3), NULL)                                \
                X(max_unpool1d, x, pool_like(p, x), &(trek_unpool_opts){ .kernel = { pool_below(p, 4) } })                       \
                    X(max_unpool2d, x, pool_labels(p, x), &(trek_unpool_opts){ .kernel = { pool_below(p, 4) } })                 \
                        X(max_unpool3d, x, pool_like(p, x),                                                                      \
                          &(trek_unpool_opts){ .kernel = { pool_below(p, 4) }, .output_size = { pool_below(p, 9) } })            \
                            X(lp_pool1d, x, pool_number(p), pool_pooling(p)) X(lp_pool2d, x, pool_number(p), pool_pooling(p))    \
                                X(lp_pool3d, x, pool_number(p), pool_pooling(p))                                                 \
                                    X(affine_grid, x, pool_shape(p), pool_chance(p, 50))                                         \
                                        X(grid_sample, x, pool_chance(p, 50) ? pool_var(p) : pool_like(p, x),                    \
                                          &(trek_grid_sample_opts){ .mode = (trek_grid_mode)pool_below(p, 4),                    \
                                                                    .padding = (trek_grid_padding)pool_below(p, 4) })
MORE_POOLS(CALL)

/* What came later: special functions, frequencies, pools by chance. */
#define LATER(X)                                                                                                                 \
    X(i0, x)                                                                                                                     \
    X(i0e, x) X(i1, x) X(i1e, x) X(log_ndtr, x) X(igamma, x, pool_like(p, x)) X(igammac, x, pool_like(p, x))                     \
        X(histogram, x, pool_below(p, 6), pool_number(p), pool_number(p), pool_chance(p, 50) ? pool_like(p, x) : NULL,           \
          pool_chance(p, 50), NULL)                                                                                              \
            X(histogram_edges, x, pool_row(p, x), pool_chance(p, 50) ? pool_like(p, x) : NULL, pool_chance(p, 50))               \
                X(unique_dim, x, pool_dim(p), NULL, NULL)                                                                        \
                    X(fractional_max_pool2d, pool_chance(p, 50) ? pool_image(p) : x,                                             \
                      &(trek_fractional_pool_opts){ .kernel = { pool_below(p, 4) },                                              \
                                                    .output_size = { pool_below(p, 4) },                                         \
                                                    .output_ratio = { pool_chance(p, 30) ? pool_number(p) : 0 } },               \
                      NULL) X(fractional_max_pool3d, x,                                                                          \
                              &(trek_fractional_pool_opts){ .kernel = { pool_below(p, 3) }, .output_ratio = { 0.6 } }, NULL)
LATER(CALL)

#define OTHER_SIZES(X) \
    X(interpolate, x, \
      &(trek_interpolate_opts){ .size = { pool_below(p, 9) - 1 }, .scale = { pool_chance(p, 20) ? pool_number(p) : 0 }, \
                                .mode = (trek_interpolate_mode)pool_below(p, 6), .align_corners = pool_chance(p, 30), \
                                .antialias = pool_chance(p, 30) }) \
    X(unfold, x, &(trek_unfold_opts){ .kernel = { pool_below(p, 4) }, .padding = { pool_below(p, 3) - 1 } }) \
    X(fold, x, pool_below(p, 6) - 1, pool_below(p, 6), &(trek_unfold_opts){ .kernel = { pool_below(p, 4) } })
OTHER_SIZES(CALL)

#define WEIGHT (pool_chance(p, 30) ? pool_like(p, x) : NULL)
#define REDUCTION pool_reduction(p)
#define OF_ELEMENTS (&(trek_loss_opts){ .reduction = REDUCTION, .weight = WEIGHT })
#define MARGIN                                                                                                                   \
    (&(trek_margin_opts){ .margin = pool_number(p), .p = pool_below(p, 4), .swap = pool_chance(p, 50), .reduction = REDUCTION })
#define LOSSES(X)                                                                                                                \
    X(nll_loss_with, x, pool_labels(p, x), pool_entropy(p))                                                                      \
    X(mse_loss_with, x, pool_like(p, x), OF_ELEMENTS) X(l1_loss_with, x, pool_like(p, x), OF_ELEMENTS)                           \
        X(smooth_l1_loss_with, x, pool_like(p, x), pool_number(p),                                                               \
          OF_ELEMENTS) X(huber_loss, x, pool_like(p, x), pool_number(p), OF_ELEMENTS) X(bce, x, pool_like(p, x), OF_ELEMENTS)    \
            X(bce_with_logits_with, x, pool_like(p, x),                                                                          \
              &(trek_bce_opts){ .reduction = REDUCTION, .weight = WEIGHT, .pos_weight = WEIGHT })                                \
                X(focal_loss, x, pool_like(p, x),                                                                                \
                  &(trek_focal_opts){ .alpha = pool_number(p), .gamma = pool_number(p), .reduction = REDUCTION })                \
                    X(soft_margin_loss, x, pool_like(p, x), OF_ELEMENTS)                                                         \
                        X(poisson_nll_loss, x, pool_like(p, x),                                                                  \
                          &(trek_poisson_nll_opts){ .rates = pool_chance(p, 50), .full = true, .reduction = REDUCTION })         \
                            X(gaussian_nll_loss, x, pool_like(p, x), pool_like(p, x),                                            \
                              &(trek_gaussian_nll_opts){ .full = true, .reduction = REDUCTION })                                 \
                                X(kl_div_with, x, pool_like(p, x),                                                               \
                                  &(trek_kl_div_opts){ .log_target = pool_chance(p, 50), .per_element = pool_chance(p, 50) })    \
                                    X(cosine_similarity, x, pool_like(p, x), pool_dim(p), pool_eps(p)) X(                        \
                                        pairwise_distance, x, pool_like(p, x), pool_number(p), pool_eps(p), pool_chance(p, 50))  \
                                        X(cosine_embedding_loss, x, pool_like(p, x), pool_labels(p, x), MARGIN)                  \
                                            X(margin_ranking_loss, x, pool_like(p, x), pool_like(p, x), MARGIN)                  \
                                                X(hinge_embedding_loss, x, pool_like(p, x), MARGIN)                              \
                                                    X(triplet_margin_loss, x, pool_like(p, x), pool_like(p, x), MARGIN)          \
                                                        X(multi_margin_loss, x, pool_labels(p, x), MARGIN)                       \
                                                            X(multilabel_soft_margin_loss, x, pool_like(p, x), OF_ELEMENTS)      \
                                                                X(info_nce, x, pool_like(p, x), pool_number(p), REDUCTION)
LOSSES(CALL)

/* Products and distances: their inputs mostly fit. */
static const char *equation(pool *p)
{
    static const char *const some[] = { "...i,...i->...", "...i,...j", "ij,kj->ik", "ij,jk", "ij,ij", "i...,i...->i...", "a,a->",
                                        "ij,ik->jk", "b" };
    return some[pool_below(p, 9)];
}
#define PRODUCTS(X)                                                                                                              \
    X(einsum, equation(p), (pool_list(p), p->list), pool_below(p, POOL_LIST + 1))                                                \
    X(tensordot, x, pool_like(p, x), pool_dims(p), pool_dims(p))                                                                 \
    X(inner, x, pool_like(p, x)) X(outer_product, x, pool_row(p, x)) X(dot, x, pool_row(p, x))                                   \
        X(kron, pool_row(p, x), pool_row(p, x)) X(addmm, pool_bias(p), x, pool_var(p), pool_number(p), pool_number(p))           \
            X(baddbmm, x, x, pool_var(p), pool_number(p), pool_number(p)) X(trace, x)                                            \
                X(cdist, x, pool_like(p, x), pool_chance(p, 50) ? 2 : pool_number(p))                                            \
                    X(pdist, x, pool_chance(p, 50) ? 2 : pool_number(p))
PRODUCTS(CALL)

#define SEQUENCES(X)                                                                                                             \
    X(ctc_loss, pool_image(p), pool_labels(p, x), pool_labels(p, x), pool_labels(p, x),                                          \
      &(trek_ctc_opts){ .blank = pool_below(p, 3), .zero_infinity = pool_chance(p, 50), .reduction = REDUCTION })                \
    X(multilabel_margin_loss, x, pool_labels(p, x), REDUCTION)
SEQUENCES(CALL)

/* Linear algebra: matrices that are regular or not; where no LAPACK is installed all are refused. */
#define MATRICES(X)                                                                                                              \
    X(solve, x, pool_like(p, x)) X(inv, x) X(cholesky, trek_matmul(x, x ? trek_transpose(x, -1, -2) : NULL), pool_chance(p, 50)) \
    X(solve_triangular, x, pool_like(p, x), pool_chance(p, 50), pool_chance(p, 50), pool_chance(p, 50))                          \
    X(cholesky_solve, x, pool_like(p, x), pool_chance(p, 50)) X(qr, x, PLACES) X(svdvals, x) X(eigh, x, PLACES) X(eigvalsh, x)   \
    X(svd, x, PLACES, NULL) X(det, x) X(slogdet, x, PLACES) X(pinv, x) X(lstsq, x, pool_like(p, x)) X(matrix_rank, x)            \
    X(matrix_power, x, pool_below(p, 7) - 2)
MATRICES(CALL_PLACES)

#define NORM (trek_fft_norm)pool_below(p, pool_chance(p, 95) ? 3 : 5)
#define TRANSFORMS(X)                                                                                                            \
    X(fft, x, pool_below(p, 6) - 1, pool_dim(p), NORM) X(ifft, x, pool_below(p, 6) - 1, pool_dim(p), NORM)                       \
    X(rfft, x, pool_below(p, 6) - 1, pool_dim(p), NORM) X(irfft, x, pool_below(p, 6) - 1, pool_dim(p), NORM) X(fft2, x, NORM)    \
    X(ifft2, x, NORM) X(rfft2, x, NORM) X(irfft2, x, NORM)
TRANSFORMS(CALL)

static outcome call_add_layer_norm(pool *p)
{
    trek_var *x = pool_var(p), *residual = NULL;
    trek_var *made = trek_add_layer_norm(x, pool_like(p, x), pool_normalized(p), pool_row(p, x), pool_row(p, x), pool_eps(p),
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
static outcome call_meshgrid(pool *p)
{
    return parts_of(p, trek_meshgrid(pool_list(p), pool_below(p, POOL_LIST + 1), pool_chance(p, 50),
                                     pool_chance(p, 95) ? p->parts : NULL, POOL_LIST));
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
    FUNCTIONS(NAMED) FUNCTIONS_OF_PLACES(NAMED) MORE_FUNCTIONS(NAMED) OVER_SPACE(NAMED) MORE_POOLS(NAMED) OTHER_SIZES(NAMED)
        LOSSES(NAMED) PRODUCTS(NAMED) SEQUENCES(NAMED) MATRICES(NAMED) ARITHMETIC(NAMED) FRAMES(NAMED) TRANSFORMS(NAMED)
            LATER(NAMED){ "meshgrid", call_meshgrid },
    { "add_layer_norm", call_add_layer_norm },
    { "lstm", call_lstm },
    { "gru", call_gru },
    { "split", call_split },
    { "chunk", call_chunk },
    { "unbind", call_unbind },
    { "loss_weight", call_loss_weight },
    { "loss_set_weight", call_loss_set_weight },
};
const int sequence_n_functions = (int)(sizeof sequence_functions / sizeof sequence_functions[0]);
