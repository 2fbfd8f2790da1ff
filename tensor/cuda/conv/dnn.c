/* SPDX-License-Identifier: Apache-2.0 */
/* Convolutions by cuDNN's operation graphs: which calls they support, and how operands are prepared. */
#include "tensor/cuda/conv/dnn.h"

#include "tensor/channels_last.h"
#include "tensor/cuda/conv/dnn_graphs.h"
#include "tensor/cuda/dnn/plans.h"
#include "tensor/cuda/paths.h"
#include "tensor/cuda/products/linear.h"

#ifdef TREK_HAVE_CUDNN
#include <string.h>

static void compose(trek_dnn_graph *graph, const void *key) { trek_dnn_conv_compose(graph, key); }

static const trek_dnn_sort convolutions = { sizeof(trek_dnn_conv_key), (size_t)512 << 20, compose };
_Static_assert(sizeof(trek_dnn_conv_key) <= TREK_DNN_KEY, "a plan holds its key");
_Static_assert((int)TREK_DNN_FORWARD == (int)TREK_CUDA_CONV_FORWARD && (int)TREK_DNN_OF_INPUT == (int)TREK_CUDA_CONV_INPUT_GRAD &&
                   (int)TREK_DNN_OF_WEIGHT == (int)TREK_CUDA_CONV_WEIGHT_GRAD, "passes are kinds");

/* An operand as the graph needs it: in place, or in scratch memory. */
typedef struct place {
    const trek_tensor *t;
    trek_cuda_scratch scratch;
    void *data;
} place;

static bool lies_well(const trek_tensor *t, bool last)
{
    return (last ? trek_fits_channels_last(t) : t->contiguous) && ((uintptr_t)t->data & 15) == 0;
}

/* Returns a tensor's sizes and strides in the order of the graph's memory. */
static void order_dims(const trek_tensor *t, bool last, int64_t sizes[4], int64_t strides[4])
{
    const int order[2][4] = { { 0, 1, 2, 3 }, { 0, 2, 3, 1 } };
    for (int d = 0; d < 4; d++) {
        sizes[d] = t->sizes[order[last][d]];
        strides[d] = t->strides[order[last][d]];
    }
}

static trek_status bring(const trek_op_call *call, trek_cuda_queue *queue, bool last, bool is_result, place *p)
{
    const trek_tensor *t = p->t;
    size_t size = trek_item_size[t->dtype];
    int64_t sizes[4], strides[4];
    p->data = t->data;
    if (lies_well(t, last))
        return TREK_OK;
    trek_status status = trek_cuda_scratch_take(queue, (size_t)t->numel * size, &p->scratch);
    p->data = p->scratch.data;
    if (status != TREK_OK || is_result)
        return status;
    order_dims(t, last, sizes, strides);
    return trek_cuda_pack(call, queue, p->data, t->data, size, 4, sizes, strides);
}

static trek_status bring_back(const trek_op_call *call, trek_cuda_queue *queue, bool last, const place *p)
{
    int64_t sizes[4], strides[4];
    if (p->data == p->t->data)
        return TREK_OK;
    order_dims(p->t, last, sizes, strides);
    return trek_cuda_unpack(call, queue, p->t->data, p->data, trek_item_size[p->t->dtype], 4, sizes, strides);
}

static bool fill_sizes(int64_t to[4], const trek_tensor *t)
{
    memcpy(to, t->sizes, 4 * sizeof *to);
    return t->numel > 0 && t->numel <= 0x7fffffff;
}

/* Returns false by trek_cuda_refuse. */
static bool fill_key(const trek_op_call *call, const trek_cuda_queue *queue, const trek_tensor *x, const trek_tensor *weight,
                     const trek_tensor *y, trek_dnn_conv_key *key)
{
    memset(key, 0, sizeof *key);
    key->dtype = x->dtype;
    key->last = trek_lies_channels_last(x) || trek_lies_channels_last(y);
    key->exact = x->dtype == TREK_F32 && trek_plugin_host->matmul_precision() == TREK_MATMUL_PRECISION_HIGHEST;
    key->device = queue->device->index;
    memcpy(key->numbers, call->attrs.i, sizeof key->numbers);
    if (x->dtype == TREK_F64 || x->dtype != weight->dtype || x->dtype != y->dtype)
        return trek_cuda_refuse_it("f64, or several dtypes");
    return (fill_sizes(key->x, x) && fill_sizes(key->weight, weight) && fill_sizes(key->y, y)) ||
        trek_cuda_refuse_it("no elements, or more than 2^31 - 1");
}

/* Runs the convolution with the operations that follow it in its graph; if that is not supported and images are
 * channels last, with a separate pass after it. */
static trek_status run(const trek_op_call *call, trek_cuda_queue *queue, trek_dnn_conv_key *key, void **addresses,
                       const trek_tensor *bias)
{
    trek_status status = trek_dnn_run(call, queue, &convolutions, key, addresses, TREK_DNN_CONV_TENSORS);
    bool relu = key->relu;
    if (status != TREK_ERR_UNSUPPORTED || !key->last || (!key->bias && !relu))
        return status;
    key->bias = key->relu = 0;
    addresses[TREK_DNN_CONV_BIAS] = NULL;
    status = trek_dnn_run(call, queue, &convolutions, key, addresses, TREK_DNN_CONV_TENSORS);
    if (status != TREK_OK)
        return status;
    int64_t rows = key->y[0] * key->y[2] * key->y[3], channels = key->y[1];
    return trek_cuda_add_bias(call, queue, (trek_dtype)key->dtype, addresses[TREK_DNN_CONV_Y], rows, channels, channels, 1,
                              bias ? bias->data : NULL, bias ? bias->strides[0] : 0,
                              relu ? TREK_ACTIVATION_RELU : TREK_ACTIVATION_NONE);
}

trek_status trek_cuda_dnn_conv(const trek_op_call *call, trek_cuda_queue *queue, trek_cuda_conv_kind kind, const trek_tensor *x,
                               const trek_tensor *weight, const trek_tensor *bias, bool relu, const trek_tensor *y)
{
    trek_dnn_conv_key key;
    if (!fill_key(call, queue, x, weight, y, &key))
        return TREK_ERR_UNSUPPORTED;
    if (!key.last && !relu)
        return trek_cuda_refuse("images that lie row by row, without an activation");
    if (!trek_dnn_queue_of(queue))
        return trek_dnn_refuse(queue);
    key.pass = (int32_t)kind;
    key.relu = relu;
    key.bias = bias && bias->strides[0] == 1 && ((uintptr_t)bias->data & 15) == 0;
    if (bias && !key.bias)
        return trek_cuda_refuse("a bias that is not dense or does not begin at a multiple of 16 bytes");
    place places[3] = { { .t = x }, { .t = weight }, { .t = y } };
    const int result = kind == TREK_CUDA_CONV_FORWARD ? 2 : kind == TREK_CUDA_CONV_INPUT_GRAD ? 0 : 1;
    trek_status status = TREK_OK;
    for (int k = 0; k < 3 && status == TREK_OK; k++)
        status = bring(call, queue, key.last, k == result, &places[k]);
    if (status == TREK_OK) {
        void *addresses[TREK_DNN_CONV_TENSORS] = { NULL };
        addresses[TREK_DNN_CONV_X] = places[0].data, addresses[TREK_DNN_CONV_WEIGHT] = places[1].data;
        addresses[TREK_DNN_CONV_Y] = places[2].data, addresses[TREK_DNN_CONV_BIAS] = bias ? bias->data : NULL;
        status = run(call, queue, &key, addresses, bias);
    }
    if (status == TREK_OK)
        status = bring_back(call, queue, key.last, &places[result]);
    for (int k = 2; k >= 0; k--)
        trek_cuda_scratch_give(queue, &places[k].scratch);
    return status;
}

#else

trek_status trek_cuda_dnn_conv(const trek_op_call *call, trek_cuda_queue *queue, trek_cuda_conv_kind kind, const trek_tensor *x,
                               const trek_tensor *weight, const trek_tensor *bias, bool relu, const trek_tensor *y)
{
    (void)call;
    (void)queue;
    (void)kind;
    (void)x;
    (void)weight;
    (void)bias;
    (void)relu;
    (void)y;
    return trek_cuda_refuse("this libtrek-cuda was built without cuDNN");
}

#endif
