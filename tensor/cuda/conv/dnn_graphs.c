/* SPDX-License-Identifier: Apache-2.0 */
/* Convolutions, followed by bias and ReLU, as operation graphs. */
#include "tensor/cuda/conv/dnn_graphs.h"

#ifdef TREK_HAVE_CUDNN
#include <string.h>

typedef cudnnBackendDescriptor_t descriptor;

static cudnnDataType_t type_of(int32_t dtype)
{
    return dtype == TREK_F32 ? CUDNN_DATA_FLOAT : dtype == TREK_BF16 ? CUDNN_DATA_BFLOAT16 : CUDNN_DATA_HALF;
}

static trek_dnn_shape shape_of(const int64_t sizes[4], bool last)
{
    trek_dnn_shape s;
    memcpy(s.sizes, sizes, sizeof s.sizes);
    const int order[2][4] = { { 3, 2, 1, 0 }, { 1, 3, 2, 0 } }; /* innermost first */
    int64_t stride = 1;
    for (int d = 0; d < 4; d++) {
        s.strides[order[last][d]] = stride;
        stride *= sizes[order[last][d]];
    }
    return s;
}

static descriptor operand(trek_dnn_graph *graph, const trek_dnn_conv_key *key, int number, const int64_t sizes[4])
{
    trek_dnn_shape s = shape_of(sizes, key->last);
    return trek_dnn_tensor(graph, TREK_DNN_MEMORY, number, type_of(key->dtype), &s);
}

/* y, or an intermediate tensor before it. */
static descriptor result(trek_dnn_graph *graph, const trek_dnn_conv_key *key, bool is_last)
{
    trek_dnn_shape s = shape_of(key->y, key->last);
    return is_last ? trek_dnn_tensor(graph, TREK_DNN_MEMORY, TREK_DNN_CONV_Y, type_of(key->dtype), &s)
                   : trek_dnn_tensor(graph, TREK_DNN_BETWEEN, 0, CUDNN_DATA_FLOAT, &s);
}

void trek_dnn_conv_compose(trek_dnn_graph *graph, const trek_dnn_conv_key *key)
{
    graph->exact = key->exact;
    descriptor x = operand(graph, key, TREK_DNN_CONV_X, key->x), weight = operand(graph, key, TREK_DNN_CONV_WEIGHT, key->weight);
    descriptor y = result(graph, key, !key->bias && !key->relu);
    trek_dnn_convolution(graph, (trek_dnn_pass)key->pass, key->numbers, x, weight, y);
    if (key->bias) {
        const int64_t sizes[4] = { 1, key->y[1], 1, 1 };
        descriptor bias = operand(graph, key, TREK_DNN_CONV_BIAS, sizes), sum = result(graph, key, !key->relu);
        trek_dnn_pointwise(graph, CUDNN_POINTWISE_ADD, CUDNN_DATA_FLOAT, 0, y, bias, NULL, sum);
        y = sum;
    }
    if (key->relu)
        trek_dnn_pointwise(graph, CUDNN_POINTWISE_RELU_FWD, CUDNN_DATA_FLOAT, 0, y, NULL, NULL, result(graph, key, true));
}

#else
typedef int trek_dnn_conv_graphs_are_absent; /* C does not allow an empty translation unit */
#endif
