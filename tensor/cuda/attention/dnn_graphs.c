/* SPDX-License-Identifier: Apache-2.0 */
/* Attention, forward and backward, as operation graphs. */
#include "tensor/cuda/attention/dnn_graphs.h"

#ifdef TREK_HAVE_CUDNN
#include <string.h>

typedef cudnnBackendDescriptor_t descriptor;

/* What both directions are built with. */
typedef struct builder {
    trek_dnn_graph *graph;
    const trek_dnn_attention_key *key;
    cudnnDataType_t type; /* of q, k, v */
} builder;

/* --- tensors -------------------------------------------------------------------------------- */

static descriptor in_memory(const builder *b, int number, const int64_t strides[4], bool of_keys, bool turned)
{
    const trek_dnn_attention_key *key = b->key;
    trek_dnn_shape s = { { key->batch, of_keys ? key->kv_heads : key->heads, of_keys ? key->keys : key->queries, key->depth },
                         { strides[0], strides[1], strides[2], strides[3] } };
    if (turned) {
        int64_t size = s.sizes[2], stride = s.strides[2];
        s.sizes[2] = s.sizes[3], s.strides[2] = s.strides[3];
        s.sizes[3] = size, s.strides[3] = stride;
    }
    return trek_dnn_tensor(b->graph, TREK_DNN_MEMORY, number, b->type, &s);
}

static trek_dnn_shape dense(int64_t batch, int64_t heads, int64_t rows, int64_t columns)
{
    return (trek_dnn_shape){ { batch, heads, rows, columns }, { heads * rows * columns, rows * columns, columns, 1 } };
}

static descriptor between(const builder *b, cudnnDataType_t type, int64_t rows, int64_t columns)
{
    trek_dnn_shape s = dense(b->key->batch, b->key->heads, rows, columns);
    return trek_dnn_tensor(b->graph, TREK_DNN_BETWEEN, 0, type, &s);
}

static descriptor scores(const builder *b, cudnnDataType_t type) { return between(b, type, b->key->queries, b->key->keys); }

/* One number for each query. */
static descriptor per_query(const builder *b) { return between(b, CUDNN_DATA_FLOAT, b->key->queries, 1); }

static descriptor per_query_in_memory(const builder *b, int number)
{
    trek_dnn_shape s = dense(b->key->batch, b->key->heads, b->key->queries, 1);
    return trek_dnn_tensor(b->graph, TREK_DNN_MEMORY, number, CUDNN_DATA_FLOAT, &s);
}

static descriptor number_of_host(const builder *b, int number)
{
    const trek_dnn_shape s = { { 1, 1, 1, 1 }, { 1, 1, 1, 1 } };
    return trek_dnn_tensor(b->graph, TREK_DNN_NUMBER, number, CUDNN_DATA_FLOAT, &s);
}

/* --- operations ------------------------------------------------------------------------------ */

static descriptor pointwise(const builder *b, cudnnPointwiseMode_t mode, descriptor x, descriptor other, descriptor y)
{
    trek_dnn_pointwise(b->graph, mode, CUDNN_DATA_FLOAT, 0, x, other, NULL, y);
    return y;
}

static descriptor place_along(const builder *b, descriptor s, int64_t axis)
{
    descriptor place = scores(b, CUDNN_DATA_INT32);
    trek_dnn_pointwise(b->graph, CUDNN_POINTWISE_GEN_INDEX, CUDNN_DATA_FLOAT, axis, s, NULL, NULL, place);
    return place;
}

/* Sets scores of keys after the query to the lowest number. */
static descriptor masked(const builder *b, descriptor s)
{
    if (!b->key->causal)
        return s;
    descriptor row = place_along(b, s, 2), column = place_along(b, s, 3), seen = scores(b, CUDNN_DATA_BOOLEAN);
    descriptor lowest = number_of_host(b, TREK_DNN_LOWEST), y = scores(b, CUDNN_DATA_FLOAT);
    trek_dnn_pointwise(b->graph, CUDNN_POINTWISE_CMP_GE, CUDNN_DATA_BOOLEAN, 0, row, column, NULL, seen);
    trek_dnn_pointwise(b->graph, CUDNN_POINTWISE_BINARY_SELECT, CUDNN_DATA_FLOAT, 0, s, lowest, seen, y);
    return y;
}

static descriptor scaled_scores(const builder *b, descriptor q, descriptor k_turned, descriptor scale)
{
    descriptor s = scores(b, CUDNN_DATA_FLOAT);
    trek_dnn_matmul(b->graph, q, k_turned, s);
    return pointwise(b, CUDNN_POINTWISE_MUL, s, scale, scores(b, CUDNN_DATA_FLOAT));
}

static void compose_forward(const builder *b)
{
    const trek_dnn_attention_key *key = b->key;
    descriptor q = in_memory(b, TREK_DNN_Q, key->q, false, false), k = in_memory(b, TREK_DNN_K, key->k, true, true);
    descriptor s = masked(b, scaled_scores(b, q, k, number_of_host(b, TREK_DNN_SCALE)));
    descriptor largest = per_query(b), sum = per_query(b);
    trek_dnn_reduction(b->graph, CUDNN_REDUCE_TENSOR_MAX, s, largest);
    descriptor below = pointwise(b, CUDNN_POINTWISE_SUB, s, largest, scores(b, CUDNN_DATA_FLOAT));
    descriptor power = pointwise(b, CUDNN_POINTWISE_EXP, below, NULL, scores(b, CUDNN_DATA_FLOAT));
    trek_dnn_reduction(b->graph, CUDNN_REDUCE_TENSOR_ADD, power, sum);
    descriptor logarithm = pointwise(b, CUDNN_POINTWISE_LOG, sum, NULL, per_query(b));
    pointwise(b, CUDNN_POINTWISE_ADD, largest, logarithm, per_query_in_memory(b, TREK_DNN_LSE));
    descriptor p = pointwise(b, CUDNN_POINTWISE_DIV, power, sum, scores(b, b->type));
    descriptor v = in_memory(b, TREK_DNN_V, key->v, true, false);
    trek_dnn_matmul(b->graph, p, v, in_memory(b, TREK_DNN_Y, key->y, false, false));
}

/* Transposes [B, H, T, S] to [B, H, S, T] in the inputs' type; it is multiplied by the rows of all queries. */
static descriptor turned(const builder *b, descriptor x)
{
    const trek_dnn_attention_key *key = b->key;
    trek_dnn_shape s = dense(key->batch, key->heads, key->keys, key->queries);
    s.strides[2] = 1, s.strides[3] = key->keys;
    descriptor y = trek_dnn_tensor(b->graph, TREK_DNN_BETWEEN, 0, b->type, &s);
    trek_dnn_reshape(b->graph, x, y);
    return y;
}

/* Computes to [B, G, S, D] = x^T [B, H, S, T] rows [B, H, T, D], summed over the heads that share one head of keys
 * and values. */
static void gradient_of_keys(const builder *b, descriptor x, descriptor rows, descriptor to)
{
    if (b->key->heads == b->key->kv_heads) {
        trek_dnn_matmul(b->graph, turned(b, x), rows, to);
        return;
    }
    descriptor turned_x = turned(b, x), each = between(b, b->type, b->key->keys, b->key->depth);
    trek_dnn_matmul(b->graph, turned_x, rows, each);
    trek_dnn_reduction(b->graph, CUDNN_REDUCE_TENSOR_ADD, each, to);
}

/* Computes delta, the sum of dy y for each query. */
static descriptor delta_of(const builder *b, descriptor dy)
{
    const trek_dnn_attention_key *key = b->key;
    descriptor y = in_memory(b, TREK_DNN_Y, key->y, false, false);
    descriptor each = pointwise(b, CUDNN_POINTWISE_MUL, dy, y, between(b, CUDNN_DATA_FLOAT, key->queries, key->depth));
    descriptor sum = per_query(b);
    trek_dnn_reduction(b->graph, CUDNN_REDUCE_TENSOR_ADD, each, sum);
    return pointwise(b, CUDNN_POINTWISE_MUL, sum, number_of_host(b, TREK_DNN_ONE), per_query_in_memory(b, TREK_DNN_DELTA));
}

static void compose_backward(const builder *b)
{
    const trek_dnn_attention_key *key = b->key;
    descriptor q = in_memory(b, TREK_DNN_Q, key->q, false, false), k = in_memory(b, TREK_DNN_K, key->k, true, true);
    descriptor v = in_memory(b, TREK_DNN_V, key->v, true, true), dy = in_memory(b, TREK_DNN_DY, key->dy, false, false);
    descriptor scale = number_of_host(b, TREK_DNN_SCALE), delta = delta_of(b, dy);
    descriptor s = scaled_scores(b, q, k, scale), lse = per_query_in_memory(b, TREK_DNN_LSE);
    s = masked(b, pointwise(b, CUDNN_POINTWISE_SUB, s, lse, scores(b, CUDNN_DATA_FLOAT)));
    descriptor p = pointwise(b, CUDNN_POINTWISE_EXP, s, NULL, scores(b, CUDNN_DATA_FLOAT));
    gradient_of_keys(b, p, dy, in_memory(b, TREK_DNN_DV, key->dv, true, false));

    descriptor dp = scores(b, CUDNN_DATA_FLOAT);
    trek_dnn_matmul(b->graph, dy, v, dp);
    dp = pointwise(b, CUDNN_POINTWISE_SUB, dp, delta, scores(b, CUDNN_DATA_FLOAT));
    dp = pointwise(b, CUDNN_POINTWISE_MUL, dp, p, scores(b, CUDNN_DATA_FLOAT));
    descriptor ds = pointwise(b, CUDNN_POINTWISE_MUL, dp, scale, scores(b, CUDNN_DATA_FLOAT));
    gradient_of_keys(b, ds, q, in_memory(b, TREK_DNN_DK, key->dk, true, false));

    trek_dnn_shape rows = { { key->batch, key->kv_heads, key->keys, key->depth },
                            { key->k[0], key->k[1], key->k[2], key->k[3] } };
    descriptor k_rows = trek_dnn_tensor(b->graph, TREK_DNN_BETWEEN, 0, b->type, &rows);
    trek_dnn_reshape(b->graph, k, k_rows);
    trek_dnn_matmul(b->graph, ds, k_rows, in_memory(b, TREK_DNN_DQ, key->dq, false, false));
}

void trek_dnn_attention_compose(trek_dnn_graph *graph, const trek_dnn_attention_key *key)
{
    const builder b = { graph, key, key->dtype == TREK_F16 ? CUDNN_DATA_HALF : CUDNN_DATA_BFLOAT16 };
    if (key->backward)
        compose_backward(&b);
    else
        compose_forward(&b);
}

#endif
