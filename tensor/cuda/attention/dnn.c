/* SPDX-License-Identifier: Apache-2.0 */
/* Attention by cuDNN: which calls it supports. */
#include "tensor/cuda/attention/dnn.h"

#include "tensor/cuda/attention/dnn_graphs.h"
#include "tensor/cuda/dnn/plans.h"
#include "tensor/cuda/paths.h"

#ifdef TREK_HAVE_CUDNN
#include <float.h>
#include <pthread.h>
#include <string.h>

/* --- whether it is available, if it was requested --------------------------------------------- */

static pthread_once_t asked_once = PTHREAD_ONCE_INIT;

static void warn_of_absence(void)
{
    if (!trek_dnn()->there)
        trek_log_message(TREK_LOG_LEVEL_WARNING, "TREK_CUDA_ATTENTION asks for cuDNN, which is not available: %s",
                         trek_dnn()->why);
}

static void compose(trek_dnn_graph *graph, const void *key) { trek_dnn_attention_compose(graph, key); }

/* backward has [B, H, T, S] numbers of 16 bits: 1.5 GiB for 64 sequences of 1024 tokens and 12 heads. */
static const trek_dnn_sort attentions = { sizeof(trek_dnn_attention_key), (size_t)4 << 30, compose };
_Static_assert(sizeof(trek_dnn_attention_key) <= TREK_DNN_KEY, "a plan holds its key");

/* --- calls --------------------------------------------------------------------------------------- */

/* Accepts rows of neighbouring elements, each of which begins at a multiple of 16 bytes. */
static bool take(int64_t strides[4], const trek_tensor *t)
{
    bool fits = ((uintptr_t)t->data & 15) == 0 && t->strides[3] == 1;
    for (int d = 0; d < 4; d++) {
        strides[d] = t->strides[d];
        bool matters = d < 3 && t->sizes[d] > 1;
        fits = fits && (!matters || (strides[d] > 0 && strides[d] % 8 == 0));
    }
    for (int d = 2; d >= 0; d--) /* with one element the stride has no meaning: use what the next dimension's would be */
        if (t->sizes[d] == 1)
            strides[d] = strides[d + 1] * t->sizes[d + 1];
    return fits;
}

static const char askew[] = "rows that are not dense or do not begin at multiples of 16 bytes";

/* Returns false by trek_cuda_refuse. */
static bool fill_key(const trek_op_call *call, const trek_cuda_queue *queue, const trek_tensor *q, const trek_tensor *k,
                     const trek_tensor *v, const trek_tensor *mask, const trek_tensor *y, trek_dnn_attention_key *key)
{
    memset(key, 0, sizeof *key);
    key->batch = q->sizes[0], key->heads = q->sizes[1], key->queries = q->sizes[2], key->depth = q->sizes[3];
    key->kv_heads = k->sizes[1], key->keys = k->sizes[2];
    key->dtype = q->dtype;
    key->causal = call->attrs.i[4] != 0;
    key->device = queue->device->index;
    const int64_t most = 0x7fffffff;
    bool alike = trek_dtype_is_16bit((trek_dtype)q->dtype) && k->dtype == q->dtype && v->dtype == q->dtype &&
        y->dtype == q->dtype;
    bool sizes = q->numel > 0 && k->numel > 0 && q->numel <= most && k->numel <= most && key->depth % 8 == 0;
    if (mask)
        return trek_cuda_refuse_it("a mask");
    if (call->attrs.f[0] > 0)
        return trek_cuda_refuse_it("dropout");
    if (!alike)
        return trek_cuda_refuse_it("dtypes other than bf16 or f16 alone");
    if (!sizes)
        return trek_cuda_refuse_it("no elements, more than 2^31 - 1, or a depth that is not a multiple of 8");
    return (take(key->q, q) && take(key->k, k) && take(key->v, v) && take(key->y, y)) || trek_cuda_refuse_it(askew);
}

/* Sets the addresses that both directions read. */
static void fill_addresses(void **addresses, const trek_tensor *q, const trek_tensor *k, const trek_tensor *v,
                           const trek_tensor *y, void *lse, float *scale, float *lowest)
{
    addresses[TREK_DNN_Q] = q->data, addresses[TREK_DNN_K] = k->data, addresses[TREK_DNN_V] = v->data;
    addresses[TREK_DNN_Y] = y->data, addresses[TREK_DNN_LSE] = lse;
    addresses[TREK_DNN_SCALE] = scale, addresses[TREK_DNN_LOWEST] = lowest;
}

trek_status trek_cuda_dnn_attention(const trek_op_call *call, trek_cuda_queue *queue, void *lse)
{
    trek_tensor *const *in = call->inputs;
    trek_dnn_attention_key key;
    pthread_once(&asked_once, warn_of_absence);
    if (!fill_key(call, queue, in[0], in[1], in[2], call->n_inputs > 3 ? in[3] : NULL, call->outputs[0], &key))
        return TREK_ERR_UNSUPPORTED;
    float scale = (float)call->attrs.f[1], lowest = -FLT_MAX;
    void *addresses[TREK_DNN_ATTENTION_TENSORS] = { NULL };
    fill_addresses(addresses, in[0], in[1], in[2], call->outputs[0], lse, &scale, key.causal ? &lowest : NULL);
    return trek_dnn_run(call, queue, &attentions, &key, addresses, TREK_DNN_ATTENTION_TENSORS);
}

trek_status trek_cuda_dnn_attention_backward(const trek_op_call *call, trek_cuda_queue *queue, void *lse, void *delta)
{
    trek_tensor *const *in = call->inputs, *const *out = call->outputs;
    trek_dnn_attention_key key;
    pthread_once(&asked_once, warn_of_absence);
    if (!fill_key(call, queue, in[1], in[2], in[3], call->n_inputs > 6 ? in[6] : NULL, in[4], &key))
        return TREK_ERR_UNSUPPORTED;
    bool alike = in[0]->dtype == key.dtype && out[0]->dtype == key.dtype && out[1]->dtype == key.dtype &&
        out[2]->dtype == key.dtype;
    if (!alike || !take(key.dy, in[0]) || !take(key.dq, out[0]) || !take(key.dk, out[1]) || !take(key.dv, out[2]))
        return trek_cuda_refuse(alike ? askew : "gradients of another dtype");
    key.backward = 1;
    float scale = (float)call->attrs.f[1], lowest = -FLT_MAX, one = 1;
    void *addresses[TREK_DNN_ATTENTION_TENSORS] = { NULL };
    fill_addresses(addresses, in[1], in[2], in[3], in[4], lse, &scale, key.causal ? &lowest : NULL);
    addresses[TREK_DNN_DY] = in[0]->data;
    addresses[TREK_DNN_DQ] = out[0]->data, addresses[TREK_DNN_DK] = out[1]->data, addresses[TREK_DNN_DV] = out[2]->data;
    addresses[TREK_DNN_DELTA] = delta, addresses[TREK_DNN_ONE] = &one;
    return trek_dnn_run(call, queue, &attentions, &key, addresses, TREK_DNN_ATTENTION_TENSORS);
}

#else

trek_status trek_cuda_dnn_attention(const trek_op_call *call, trek_cuda_queue *queue, void *lse)
{
    (void)call;
    (void)queue;
    (void)lse;
    return trek_cuda_refuse("this libtrek-cuda was built without cuDNN");
}

trek_status trek_cuda_dnn_attention_backward(const trek_op_call *call, trek_cuda_queue *queue, void *lse, void *delta)
{
    (void)delta;
    return trek_cuda_dnn_attention(call, queue, lse);
}

#endif
