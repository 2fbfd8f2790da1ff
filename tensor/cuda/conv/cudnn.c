/* SPDX-License-Identifier: Apache-2.0 */
/* Convolutions by cuDNN's calls for single convolutions. What a shape needs is kept; only deterministic algorithms
 * are used. */
#include "tensor/cuda/conv/cudnn.h"

#include "tensor/cuda/dnn/library.h"
#include "tensor/cuda/library.h"
#include "tensor/cuda/paths.h"

#if defined(TREK_HAVE_CUDNN) && !defined(TREK_FAKE_CUDA) /* the tests' library only has operation graphs */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "tensor/cuda/products/blas.h"
#include "tensor/cuda/products/linear.h"

#define WORKSPACE_LIMIT ((size_t)512 << 20)
#define CANDIDATES 8
#define TIMED 4 /* how many of them are timed at most */

/* --- the library -------------------------------------------------------------------------- */

#define DNN_FUNCTIONS(X)                                                       \
    X(CreateTensorDescriptor)                                                  \
    X(DestroyTensorDescriptor)                                                 \
    X(SetTensor4dDescriptor)                                                   \
    X(CreateFilterDescriptor)                                                  \
    X(DestroyFilterDescriptor)                                                 \
    X(SetFilter4dDescriptor)                                                   \
    X(CreateConvolutionDescriptor)                                             \
    X(DestroyConvolutionDescriptor)                                            \
    X(SetConvolution2dDescriptor)                                              \
    X(SetConvolutionMathType)                                                  \
    X(SetConvolutionGroupCount)                                                \
    X(GetConvolutionForwardAlgorithm_v7)                                       \
    X(GetConvolutionBackwardDataAlgorithm_v7)                                  \
    X(GetConvolutionBackwardFilterAlgorithm_v7)                                \
    X(ConvolutionForward)                                                      \
    X(ConvolutionBackwardData)                                                 \
    X(ConvolutionBackwardFilter)

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations" /* the calls for single convolutions are deprecated, but suit */

typedef struct conv_library {
    bool there, tune;
#define DECLARE(name) __typeof__(cudnn##name) *name;
    DNN_FUNCTIONS(DECLARE)
#undef DECLARE
} conv_library;

static conv_library dnn;
static pthread_once_t dnn_once = PTHREAD_ONCE_INIT;

static void open_dnn(void)
{
    const char *tune = getenv("TREK_CUDA_TUNE");
    dnn.tune = !(tune && strcmp(tune, "0") == 0);
    dnn.there = trek_dnn()->there;
#define FIND(name)                                                                              \
    if (dnn.there && !trek_cuda_find_function(trek_dnn()->library, "cudnn" #name, &dnn.name)) { \
        dnn.there = false;                                                                      \
        trek_log_message(TREK_LOG_LEVEL_WARNING, "convolutions go without cuDNN: it lacks cudnn" #name); \
    }
    DNN_FUNCTIONS(FIND)
#undef FIND
}

/* --- plans ------------------------------------------------------------------------------------ */

/* Zeroed before it is filled, because keys are compared by bytes. */
typedef struct dnn_key {
    int32_t x[4], weight[4], y[4], numbers[7]; /* numbers: stride, padding, dilation, groups */
    int32_t kind, dtype, tf32, device, alignment;
    int32_t fixed;             /* nothing is timed */
} dnn_key;

typedef struct dnn_choice {
    int algorithm;
    cudnnMathType_t math;
    size_t workspace;
} dnn_choice;

typedef struct dnn_plan {
    dnn_key key;
    bool refused;
    dnn_choice choice;
    cudnnTensorDescriptor_t x, y;
    cudnnFilterDescriptor_t weight;
    cudnnConvolutionDescriptor_t convolution;
    struct dnn_plan *next; /* ordered by last use, the latest first */
} dnn_plan;

typedef struct dnn_call {
    trek_cuda_queue *queue;
    void *x, *weight, *y;
    void *workspace;
} dnn_call;

/* The choices of the process, so that all threads get the same bits. */
typedef struct dnn_known {
    dnn_key key;
    dnn_choice choice;
    bool refused;
    struct dnn_known *next;
} dnn_known;
static pthread_mutex_t known_lock = PTHREAD_MUTEX_INITIALIZER;
static dnn_known *known;

static cudnnDataType_t data_type(int32_t dtype)
{
    switch (dtype) {
    case TREK_F64: return CUDNN_DATA_DOUBLE;
    case TREK_BF16: return CUDNN_DATA_BFLOAT16;
    case TREK_F16: return CUDNN_DATA_HALF;
    default: return CUDNN_DATA_FLOAT;
    }
}

static cudnnMathType_t math_of(const dnn_key *key)
{
    if (trek_dtype_is_16bit((trek_dtype)key->dtype))
        return CUDNN_TENSOR_OP_MATH;
    return key->dtype == TREK_F32 && !key->tf32 ? CUDNN_FMA_MATH : CUDNN_DEFAULT_MATH;
}

static bool fine(cudnnStatus_t status) { return trek_dnn_fine(status); }

static bool make_descriptors(dnn_plan *plan)
{
    const dnn_key *key = &plan->key;
    const int32_t *n = key->numbers;
    cudnnDataType_t type = data_type(key->dtype), sums = key->dtype == TREK_F64 ? CUDNN_DATA_DOUBLE : CUDNN_DATA_FLOAT;
    return fine(dnn.CreateTensorDescriptor(&plan->x)) && fine(dnn.CreateTensorDescriptor(&plan->y)) &&
           fine(dnn.CreateFilterDescriptor(&plan->weight)) && fine(dnn.CreateConvolutionDescriptor(&plan->convolution)) &&
           fine(dnn.SetTensor4dDescriptor(plan->x, CUDNN_TENSOR_NCHW, type, key->x[0], key->x[1], key->x[2], key->x[3])) &&
           fine(dnn.SetTensor4dDescriptor(plan->y, CUDNN_TENSOR_NCHW, type, key->y[0], key->y[1], key->y[2], key->y[3])) &&
           fine(dnn.SetFilter4dDescriptor(plan->weight, type, CUDNN_TENSOR_NCHW, key->weight[0], key->weight[1], key->weight[2],
                                          key->weight[3])) &&
           fine(dnn.SetConvolution2dDescriptor(plan->convolution, n[2], n[3], n[0], n[1], n[4], n[5], CUDNN_CROSS_CORRELATION,
                                               sums)) &&
           fine(dnn.SetConvolutionGroupCount(plan->convolution, n[6])) &&
           fine(dnn.SetConvolutionMathType(plan->convolution, math_of(key)));
}

static void drop_descriptors(dnn_plan *plan)
{
    if (plan->x)
        dnn.DestroyTensorDescriptor(plan->x);
    if (plan->y)
        dnn.DestroyTensorDescriptor(plan->y);
    if (plan->weight)
        dnn.DestroyFilterDescriptor(plan->weight);
    if (plan->convolution)
        dnn.DestroyConvolutionDescriptor(plan->convolution);
    plan->x = plan->y = NULL;
    plan->weight = NULL;
    plan->convolution = NULL;
}

/* --- the choice of an algorithm ------------------------------------------------------------------- */

/* Keeps the candidates that are deterministic, within the limit, and of the requested precision. */
#define KEEP_CANDIDATES(results, n)                                                                                          \
    for (int k_ = 0; k_ < (n); k_++) {                                                                                       \
        bool precise = plan->key.dtype != TREK_F32 || plan->key.tf32 || (results)[k_].mathType == CUDNN_FMA_MATH;            \
        if (fine((results)[k_].status) && (results)[k_].determinism == CUDNN_DETERMINISTIC && precise &&                     \
            (results)[k_].memory <= WORKSPACE_LIMIT)                                                                         \
            to[kept++] = (dnn_choice){ (int)(results)[k_].algo, (results)[k_].mathType, (results)[k_].memory };              \
    }

static int ask_candidates(trek_dnn_queue *own, const dnn_plan *plan, dnn_choice *to)
{
    int n = 0, kept = 0;
    if (plan->key.kind == TREK_CUDA_CONV_FORWARD) {
        cudnnConvolutionFwdAlgoPerf_t results[CANDIDATES];
        if (fine(dnn.GetConvolutionForwardAlgorithm_v7(own->handle, plan->x, plan->weight, plan->convolution, plan->y, CANDIDATES,
                                                       &n, results)))
            KEEP_CANDIDATES(results, n)
    } else if (plan->key.kind == TREK_CUDA_CONV_INPUT_GRAD) {
        cudnnConvolutionBwdDataAlgoPerf_t results[CANDIDATES];
        if (fine(dnn.GetConvolutionBackwardDataAlgorithm_v7(own->handle, plan->weight, plan->y, plan->convolution, plan->x,
                                                            CANDIDATES, &n, results)))
            KEEP_CANDIDATES(results, n)
    } else {
        cudnnConvolutionBwdFilterAlgoPerf_t results[CANDIDATES];
        if (fine(dnn.GetConvolutionBackwardFilterAlgorithm_v7(own->handle, plan->x, plan->y, plan->convolution, plan->weight,
                                                              CANDIDATES, &n, results)))
            KEEP_CANDIDATES(results, n)
    }
    return kept;
}

static cudnnStatus_t run(trek_dnn_queue *own, const dnn_plan *plan, const dnn_choice *choice, const dnn_call *call)
{
    const float one = 1, zero = 0;
    const double one_wide = 1, zero_wide = 0;
    bool wide = plan->key.dtype == TREK_F64;
    const void *alpha = wide ? (const void *)&one_wide : &one, *beta = wide ? (const void *)&zero_wide : &zero;
    switch (plan->key.kind) {
    case TREK_CUDA_CONV_FORWARD:
        return dnn.ConvolutionForward(own->handle, alpha, plan->x, call->x, plan->weight, call->weight, plan->convolution,
                                      (cudnnConvolutionFwdAlgo_t)choice->algorithm, call->workspace, choice->workspace, beta,
                                      plan->y, call->y);
    case TREK_CUDA_CONV_INPUT_GRAD:
        return dnn.ConvolutionBackwardData(own->handle, alpha, plan->weight, call->weight, plan->y, call->y, plan->convolution,
                                           (cudnnConvolutionBwdDataAlgo_t)choice->algorithm, call->workspace, choice->workspace,
                                           beta, plan->x, call->x);
    default:
        return dnn.ConvolutionBackwardFilter(own->handle, alpha, plan->x, call->x, plan->y, call->y, plan->convolution,
                                             (cudnnConvolutionBwdFilterAlgo_t)choice->algorithm, call->workspace,
                                             choice->workspace, beta, plan->weight, call->weight);
    }
}

/* Returns the milliseconds of one run after a warm-up run; negative: it does not run. */
static float time_choice(trek_dnn_queue *own, const dnn_plan *plan, const dnn_choice *choice, dnn_call call,
                         const cudaEvent_t events[2])
{
    float elapsed = -1;
    cudaStream_t stream = call.queue->stream;
    trek_cuda_scratch workspace = { 0 };
    if (trek_cuda_scratch_take(call.queue, choice->workspace, &workspace) != TREK_OK)
        return -1;
    call.workspace = workspace.data;
    bool went = fine(dnn.SetConvolutionMathType(plan->convolution, choice->math)) && fine(run(own, plan, choice, &call)) &&
                cudaEventRecord(events[0], stream) == cudaSuccess && fine(run(own, plan, choice, &call)) &&
                cudaEventRecord(events[1], stream) == cudaSuccess && cudaEventSynchronize(events[1]) == cudaSuccess &&
                cudaEventElapsedTime(&elapsed, events[0], events[1]) == cudaSuccess;
    trek_cuda_scratch_give(call.queue, &workspace);
    return went ? elapsed : -1;
}

static int fastest(trek_dnn_queue *own, const dnn_plan *plan, const dnn_choice *candidates, int n, const dnn_call *call)
{
    cudaEvent_t events[2] = { NULL, NULL };
    int best = 0;
    float best_time = -1;
    trek_status before = trek_error_status();
    bool ready = cudaEventCreateWithFlags(&events[0], cudaEventDefault) == cudaSuccess &&
                 cudaEventCreateWithFlags(&events[1], cudaEventDefault) == cudaSuccess;
    for (int k = 0; ready && k < n && k < TIMED; k++) {
        float elapsed = time_choice(own, plan, &candidates[k], *call, events);
        if (elapsed >= 0 && (best_time < 0 || elapsed < best_time)) {
            best = k;
            best_time = elapsed;
        }
    }
    for (int k = 0; k < 2; k++)
        if (events[k])
            cudaEventDestroy(events[k]);
    if (before == TREK_OK)
        trek_error_clear(); /* candidates without memory for their workspace were skipped */
    return best;
}

static void choose(trek_dnn_queue *own, dnn_plan *plan, const dnn_call *call)
{
    pthread_mutex_lock(&known_lock);
    dnn_known *k = known;
    while (k && memcmp(&k->key, &plan->key, sizeof k->key) != 0)
        k = k->next;
    if (k) {
        plan->choice = k->choice;
        plan->refused = k->refused;
    } else {
        dnn_choice candidates[CANDIDATES];
        int n = ask_candidates(own, plan, candidates);
        plan->refused = n == 0;
        if (n > 0)
            plan->choice = candidates[n > 1 && dnn.tune && !plan->key.fixed &&
                                      !call->queue->capture ? fastest(own, plan, candidates, n, call) : 0];
        k = trek_alloc(sizeof *k);
        if (k) {
            *k = (dnn_known){ plan->key, plan->choice, plan->refused, known };
            known = k;
        }
    }
    pthread_mutex_unlock(&known_lock);
    if (!plan->refused)
        plan->refused = !fine(dnn.SetConvolutionMathType(plan->convolution, plan->choice.math));
}

/* --- a convolution ------------------------------------------------------------------------------------ */

static trek_dnn_queue *queue_state(trek_cuda_queue *queue)
{
    pthread_once(&dnn_once, open_dnn);
    return dnn.there ? trek_dnn_queue_of(queue) : NULL;
}

static bool fill_sizes(int32_t *to, const trek_tensor *t)
{
    for (int d = 0; d < 4; d++) {
        if (t->sizes[d] < 1 || t->sizes[d] > 0x7fffffff)
            return false;
        to[d] = (int32_t)t->sizes[d];
    }
    return t->numel <= 0x7fffffff;
}

static dnn_plan *plan_of(trek_dnn_queue *own, const dnn_key *key, const dnn_call *call)
{
    dnn_plan *plans = own->convolutions;
    for (dnn_plan **at = &plans; *at; at = &(*at)->next)
        if (memcmp(&(*at)->key, key, sizeof *key) == 0) {
            dnn_plan *plan = *at;
            *at = plan->next;
            plan->next = plans;
            return own->convolutions = plan;
        }
    dnn_plan *plan = trek_calloc(1, sizeof *plan);
    if (!plan)
        return NULL;
    plan->key = *key;
    if (make_descriptors(plan))
        choose(own, plan, call);
    else
        plan->refused = true;
    if (plan->refused)
        drop_descriptors(plan);
    plan->next = plans;
    return own->convolutions = plan;
}

/* Returns the address of a contiguous copy of an operand in scratch memory, or of the operand if it is contiguous. */
static trek_status dense_input(const trek_op_call *call, trek_cuda_queue *queue, const trek_tensor *t, trek_cuda_scratch *scratch,
                               void **data)
{
    *data = t->data;
    if (t->contiguous)
        return TREK_OK;
    size_t size = trek_item_size[t->dtype];
    trek_status status = trek_cuda_scratch_take(queue, (size_t)t->numel * size, scratch);
    *data = scratch->data;
    return status == TREK_OK ? trek_cuda_pack(call, queue, scratch->data, t->data, size, t->ndim, t->sizes, t->strides) : status;
}

static trek_status run_plan(const trek_op_call *call, trek_dnn_queue *own, const dnn_key *key, dnn_call *operands)
{
    trek_cuda_scratch workspace = { 0 };
    dnn_plan *plan = plan_of(own, key, operands);
    if (!plan)
        return TREK_ERR_MEMORY;
    if (plan->refused)
        return trek_cuda_refuse("cuDNN has no algorithm of equal bits in each run for the convolution");
    trek_status status = trek_cuda_scratch_take(operands->queue, plan->choice.workspace, &workspace);
    if (status != TREK_OK)
        return status;
    operands->workspace = workspace.data;
    cudnnStatus_t result = run(own, plan, &plan->choice, operands);
    trek_cuda_scratch_give(operands->queue, &workspace);
    if (!fine(result))
        return trek_op_fail(call, TREK_ERR_CUDA, "cuDNN failed with status %d", (int)result);
    return trek_cuda_sync_each ? trek_cuda_launched(call, operands->queue, cudaPeekAtLastError()) : TREK_OK;
}

trek_status trek_cuda_cudnn_conv(const trek_op_call *call, trek_cuda_queue *queue, trek_cuda_conv_kind kind, const trek_tensor *x,
                                 const trek_tensor *weight, const trek_tensor *y)
{
    const trek_tensor *operands[3] = { x, weight, y };
    int result = kind == TREK_CUDA_CONV_FORWARD ? 2 : kind == TREK_CUDA_CONV_INPUT_GRAD ? 0 : 1;
    trek_dnn_queue *own = queue_state(queue);
    dnn_key key;
    memset(&key, 0, sizeof key);
    if (!own)
        return dnn.there || !trek_dnn()->there ? trek_dnn_refuse(queue)
                                               : trek_cuda_refuse("cuDNN lacks its calls for single convolutions");
    if (x->dtype != weight->dtype || x->dtype != y->dtype || !operands[result]->contiguous)
        return trek_cuda_refuse("several dtypes, or a result that is not contiguous");
    if (!fill_sizes(key.x, x) || !fill_sizes(key.weight, weight) || !fill_sizes(key.y, y))
        return trek_cuda_refuse("no elements, or more than 2^31 - 1");
    for (int k = 0; k < 7; k++)
        key.numbers[k] = (int32_t)call->attrs.i[k];
    key.kind = (int32_t)kind;
    key.dtype = x->dtype;
    key.fixed = trek_plugin_host->products_are_fixed();
    key.tf32 = trek_plugin_host->matmul_precision() != TREK_MATMUL_PRECISION_HIGHEST;
    key.device = queue->device->index;
    trek_cuda_scratch scratch[3] = { { 0 } };
    void *data[3];
    trek_status status = TREK_OK;
    for (int k = 0; k < 3 && status == TREK_OK; k++)
        status = dense_input(call, queue, operands[k], &scratch[k], &data[k]);
    if (status == TREK_OK) {
        uintptr_t addresses = (uintptr_t)data[0] | (uintptr_t)data[1] | (uintptr_t)data[2];
        key.alignment = (addresses & 15) == 0; /* unaligned data have their own choice of algorithm */
        dnn_call c = { .queue = queue, .x = data[0], .weight = data[1], .y = data[2] };
        status = key.alignment ? run_plan(call, own, &key, &c)
            : trek_cuda_refuse("an operand that does not begin at a multiple of 16 bytes");
    }
    for (int k = 2; k >= 0; k--)
        trek_cuda_scratch_give(queue, &scratch[k]);
    return status;
}

#pragma GCC diagnostic pop

#else

trek_status trek_cuda_cudnn_conv(const trek_op_call *call, trek_cuda_queue *queue, trek_cuda_conv_kind kind, const trek_tensor *x,
                                 const trek_tensor *weight, const trek_tensor *y)
{
    (void)call;
    (void)queue;
    (void)kind;
    (void)x;
    (void)weight;
    (void)y;
    return trek_cuda_refuse("this libtrek-cuda was built without cuDNN's calls for single convolutions");
}

#endif
