/* SPDX-License-Identifier: Apache-2.0 */
/* Attention as operation graphs of cuDNN. */
#ifndef TREK_TENSOR_CUDA_ATTENTION_DNN_GRAPHS_H
#define TREK_TENSOR_CUDA_ATTENTION_DNN_GRAPHS_H

#include "tensor/cuda/dnn/graph.h"

#ifdef TREK_HAVE_CUDNN

/* The numbers of the tensors in a run. */
enum trek_dnn_attention_tensor {
    TREK_DNN_Q = 1,
    TREK_DNN_K,
    TREK_DNN_V,
    TREK_DNN_Y,
    TREK_DNN_LSE,    /* f32 [B, H, T], contiguous */
    TREK_DNN_SCALE,  /* in host memory: f32 */
    TREK_DNN_LOWEST, /* in host memory: f32, the score of a key that is not seen; only with causal */
    TREK_DNN_DY,     /* from here on only backward */
    TREK_DNN_DQ,
    TREK_DNN_DK,
    TREK_DNN_DV,
    TREK_DNN_DELTA,  /* f32 [B, H, T], contiguous: scratch memory */
    TREK_DNN_ONE,    /* in host memory: f32 1 */
    TREK_DNN_ATTENTION_TENSORS
};

/* Everything that a graph depends on. It is zeroed before it is filled, because keys are compared by bytes. q, y, dy
 * and dq are [B, H, T, D]; k, v, dk and dv [B, G, S, D] with H a multiple of G; strides in elements. */
typedef struct trek_dnn_attention_key {
    int64_t batch, heads, kv_heads, queries, keys, depth;
    int64_t q[4], k[4], v[4], y[4], dy[4], dq[4], dk[4], dv[4];
    int32_t dtype, causal, backward, device; /* dtype: TREK_BF16 or TREK_F16; device: an index, for the cache */
} trek_dnn_attention_key;

/* Composes the graph; a failure is stored in it. The operations have the order of NVIDIA's cudnn-frontend
 * (scaled_dot_product_flash_attention.h), which the library's engines look for: softmax(q k^T scale) v with the
 * logarithm of its sums; causal: query i sees keys 0..i. Backward has the form in which sums have the same order in
 * each run: dq is one product and not parts that are added as they arrive. */
void trek_dnn_attention_compose(trek_dnn_graph *graph, const trek_dnn_attention_key *key);

#endif
#endif
