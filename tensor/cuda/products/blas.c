/* SPDX-License-Identifier: Apache-2.0 */
/* cuBLASLt: opened at run time; what a product needs (descriptors and algorithm) is kept for each shape. A shape's
 * algorithm is chosen once for the process and device, so that all threads, eager steps and captured steps have the
 * same bits. */
#include "tensor/cuda/products/blas.h"

#include "tensor/cuda/library.h"
#include "tensor/cuda/paths.h"
#include "tensor/fp8.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void trek_cuda_gemm_served(const trek_cuda_queue *queue, int path, const trek_cuda_gemm *g)
{
    const trek_cuda_path_shape shape = { "m n k batch wide_result transposed bias_or_activation accumulate row_sums", g->dtype,
                                         { g->m, g->n, g->k, g->ndim ? g->sizes[0] : 1, g->c_dtype != g->dtype,
                                           (g->a_col != 1) + 2 * (g->b_col != 1), g->bias || g->activation, g->accumulate,
                                           g->row_sums != NULL } };
    trek_cuda_path_served(queue, (trek_cuda_path)path, &shape);
}

/* Warns once for the process, when the first product would have used the library. */
static void warn_of_absence(const char *why)
{
    trek_log_message(TREK_LOG_LEVEL_WARNING,
                     "products of matrices on GPUs go without cuBLASLt, by kernels that are a fraction as fast: %s", why);
}

#if __has_include(<cublasLt.h>)
#include <cublasLt.h>

#define WORKSPACE_LIMIT ((size_t)32 << 20)
#define ALIGNMENT_LIMIT 256 /* bytes: the largest alignment that the library asks about */

/* Choosing takes at most CANDIDATES (2 + TIMED_RUNS) runs of a shape's product, once for the process: a second if one
 * run takes 8 ms. For larger products CHOICE_LIMIT ends it. */
#define CANDIDATES 24
#define TIMED_RUNS 3
#define WORTH_TIMING 1.5f    /* slower candidates, relative to the fastest one, are run only once */
#define CHOICE_LIMIT 1000.0f /* milliseconds of timed runs after which no further candidate is tried */

/* --- the library -------------------------------------------------------------------------- */

#define BLAS_FUNCTIONS(X)                                                      \
    X(Create)                                                                  \
    X(Destroy)                                                                 \
    X(Matmul)                                                                  \
    X(MatmulDescCreate)                                                        \
    X(MatmulDescDestroy)                                                       \
    X(MatmulDescSetAttribute)                                                  \
    X(MatrixLayoutCreate)                                                      \
    X(MatrixLayoutDestroy)                                                     \
    X(MatrixLayoutSetAttribute)                                                \
    X(MatmulPreferenceCreate)                                                  \
    X(MatmulPreferenceDestroy)                                                 \
    X(MatmulPreferenceSetAttribute)                                            \
    X(MatmulAlgoGetHeuristic)                                                  \
    X(GetVersion)

typedef struct blas_library {
    bool there;
    bool tune; /* TREK_CUDA_TUNE is not 0 */
    char why[300]; /* why it is not available */
#define DECLARE(name) __typeof__(cublasLt##name) *name;
    BLAS_FUNCTIONS(DECLARE)
#undef DECLARE
} blas_library;

static blas_library blas;
static pthread_once_t blas_once = PTHREAD_ONCE_INIT;

static void open_blas(void)
{
    static const char *const names[] = { "libcublasLt.so.13", "libcublasLt.so.12", NULL };
    const char *tune = getenv("TREK_CUDA_TUNE");
    blas.tune = !(tune && strcmp(tune, "0") == 0);
    void *library = trek_cuda_open_library("TREK_CUBLASLT_LIBRARY", names, blas.why, sizeof blas.why);
    blas.there = library != NULL;
#define FIND(name)                                                                        \
    if (blas.there && !trek_cuda_find_function(library, "cublasLt" #name, &blas.name)) {  \
        blas.there = false;                                                               \
        snprintf(blas.why, sizeof blas.why, "the library lacks cublasLt" #name);          \
    }
    BLAS_FUNCTIONS(FIND)
#undef FIND
    if (!blas.there)
        warn_of_absence(blas.why);
}

void trek_cuda_blas_version(char *text, size_t size)
{
    pthread_once(&blas_once, open_blas);
    size_t version = blas.there ? blas.GetVersion() : 0;
    if (blas.there)
        snprintf(text, size, "cuBLASLt %zu.%zu.%zu", version / 10000, version / 100 % 100, version % 100);
    else
        snprintf(text, size, "no cuBLASLt: %s", blas.why);
}

/* Clears the error of a way that was only tried; an earlier error of the thread stays. */
static void forget_error(trek_status before)
{
    if (before == TREK_OK)
        trek_error_clear();
}

/* --- plans ------------------------------------------------------------------------------------ */

/* One operand as cuBLASLt sees it: columns of `rows` elements, ld apart. */
typedef struct blas_operand {
    int64_t ld, batch_stride;
    int32_t turned, alignment; /* alignment of the address in bytes, at most ALIGNMENT_LIMIT */
} blas_operand;

/* Everything that an algorithm depends on. It is zeroed before it is filled, because keys are compared by bytes. */
typedef struct blas_key {
    int64_t m, n, k, batch; /* D [m, n] in columns */
    blas_operand a, b, c;
    int32_t device, dtype, c_dtype, compute, epilogue;
    int32_t bias_alignment; /* in bytes, at most ALIGNMENT_LIMIT */
    int16_t accumulate;
    int16_t fixed;          /* nothing is timed */
    int32_t wide_codes;     /* of 8-bit operands: 1: A has format E5M2, 2: B has */
} blas_key;

typedef struct blas_choice {
    blas_key key;
    cublasLtMatmulAlgo_t algorithm;
    size_t workspace;
    bool refused;
} blas_choice;

typedef struct blas_plan {
    blas_choice choice;
    bool used;
    cublasLtMatmulDesc_t descriptor;
    cublasLtMatrixLayout_t a, b, c;
} blas_plan;

/* A queue's own handle and plans: open addressing, at most half full. */
typedef struct blas_queue {
    cublasLtHandle_t handle;
    bool broken;
    blas_plan *plans;
    size_t capacity, count;
    blas_plan *last;
} blas_queue;

/* The choices of the process. */
static pthread_mutex_t choices_lock = PTHREAD_MUTEX_INITIALIZER;
static blas_choice *choices;
static size_t n_choices, cap_choices;

static size_t hash_of(const blas_key *key)
{
    const unsigned char *bytes = (const unsigned char *)key;
    uint64_t hash = 1469598103934665603u; /* FNV-1a by words */
    for (size_t i = 0; i + 8 <= sizeof *key; i += 8) {
        uint64_t word;
        memcpy(&word, bytes + i, 8);
        hash = (hash ^ word) * 1099511628211u;
        hash ^= hash >> 29;
    }
    return (size_t)hash;
}

static blas_plan *slot_of(blas_plan *plans, size_t capacity, const blas_key *key)
{
    size_t at = hash_of(key) & (capacity - 1);
    while (plans[at].used && memcmp(&plans[at].choice.key, key, sizeof *key) != 0)
        at = (at + 1) & (capacity - 1);
    return &plans[at];
}

static bool grow_plans(blas_queue *queue)
{
    size_t capacity = queue->capacity ? 2 * queue->capacity : 64;
    blas_plan *plans = trek_calloc(capacity, sizeof *plans);
    if (!plans)
        return false;
    for (size_t i = 0; i < queue->capacity; i++)
        if (queue->plans[i].used)
            *slot_of(plans, capacity, &queue->plans[i].choice.key) = queue->plans[i];
    trek_free(queue->plans);
    queue->plans = plans;
    queue->capacity = capacity;
    queue->last = NULL;
    return true;
}

/* --- descriptors --------------------------------------------------------------------------------- */

static cudaDataType_t data_type(int32_t dtype)
{
    switch (dtype) {
    case TREK_F64: return CUDA_R_64F;
    case TREK_BF16: return CUDA_R_16BF;
    case TREK_F16: return CUDA_R_16F;
    default: return CUDA_R_32F;
    }
}

/* Returns the type of operand A (0) or B (1). */
static cudaDataType_t operand_type(const blas_key *key, int which)
{
    if (key->dtype != TREK_U8)
        return data_type(key->dtype);
    return key->wide_codes >> which & 1 ? CUDA_R_8F_E5M2 : CUDA_R_8F_E4M3;
}

static void set_layout(cublasLtMatrixLayout_t *layout, cudaDataType_t type, int64_t rows, int64_t columns,
                       const blas_operand *operand,
                       int64_t batch, bool *fine)
{
    *fine = *fine && blas.MatrixLayoutCreate(layout, type, (uint64_t)rows, (uint64_t)columns, operand->ld) ==
                         CUBLAS_STATUS_SUCCESS;
    if (!*fine || batch == 1)
        return;
    int32_t count = (int32_t)batch;
    *fine = blas.MatrixLayoutSetAttribute(*layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count, sizeof count) ==
                CUBLAS_STATUS_SUCCESS &&
            blas.MatrixLayoutSetAttribute(*layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &operand->batch_stride,
                                          sizeof operand->batch_stride) == CUBLAS_STATUS_SUCCESS;
}

static bool set_descriptor(blas_plan *plan, cublasLtMatmulDescAttributes_t attribute, int32_t value)
{
    return blas.MatmulDescSetAttribute(plan->descriptor, attribute, &value, sizeof value) == CUBLAS_STATUS_SUCCESS;
}

static void drop_descriptors(blas_plan *plan)
{
    if (plan->descriptor)
        blas.MatmulDescDestroy(plan->descriptor);
    if (plan->a)
        blas.MatrixLayoutDestroy(plan->a);
    if (plan->b)
        blas.MatrixLayoutDestroy(plan->b);
    if (plan->c)
        blas.MatrixLayoutDestroy(plan->c);
    plan->descriptor = NULL;
    plan->a = plan->b = plan->c = NULL;
}

static bool make_descriptors(blas_plan *plan)
{
    const blas_key *key = &plan->choice.key;
    bool wide = key->dtype == TREK_F64;
    bool fine = blas.MatmulDescCreate(&plan->descriptor, (cublasComputeType_t)key->compute, wide ? CUDA_R_64F : CUDA_R_32F) ==
                CUBLAS_STATUS_SUCCESS;
    fine = fine && set_descriptor(plan, CUBLASLT_MATMUL_DESC_TRANSA, key->a.turned ? CUBLAS_OP_T : CUBLAS_OP_N);
    fine = fine && set_descriptor(plan, CUBLASLT_MATMUL_DESC_TRANSB, key->b.turned ? CUBLAS_OP_T : CUBLAS_OP_N);
    fine = fine && set_descriptor(plan, CUBLASLT_MATMUL_DESC_EPILOGUE, key->epilogue);
    set_layout(&plan->a, operand_type(key, 0), key->a.turned ? key->k : key->m, key->a.turned ? key->m : key->k, &key->a,
               key->batch,
               &fine);
    set_layout(&plan->b, operand_type(key, 1), key->b.turned ? key->n : key->k, key->b.turned ? key->k : key->n, &key->b,
               key->batch,
               &fine);
    set_layout(&plan->c, data_type(key->c_dtype), key->m, key->n, &key->c, key->batch, &fine);
    if (!fine)
        drop_descriptors(plan);
    return fine;
}

/* --- the choice of an algorithm ------------------------------------------------------------------- */

/* One call: what its plan does not contain. */
typedef struct blas_call {
    trek_cuda_queue *queue;
    const void *a, *b, *bias; /* bias: or where the sums of rows are written */
    const float *a_inverse, *b_inverse; /* of 8-bit operands; otherwise NULL */
    void *c, *d;
    void *workspace;
    size_t workspace_bytes;
} blas_call;

static cublasStatus_t multiply(const blas_queue *own, const blas_plan *plan, const cublasLtMatmulAlgo_t *algorithm,
                               const blas_call *call)
{
    const blas_key *key = &plan->choice.key;
    const float one = 1, beta = key->accumulate ? 1 : 0;
    const double one_wide = 1, beta_wide = key->accumulate ? 1 : 0;
    bool wide = key->dtype == TREK_F64;
    return blas.Matmul(own->handle, plan->descriptor, wide ? (const void *)&one_wide : &one, call->a, plan->a, call->b, plan->b,
                       wide ? (const void *)&beta_wide : &beta, call->c, plan->c, call->d, plan->c, algorithm, call->workspace,
                       call->workspace_bytes, call->queue->stream);
}

/* Called before candidates are requested, too: without an address the library offers none that add a bias (or compute
 * its gradient), or they fail. */
static bool set_bias(const blas_plan *plan, const blas_call *call)
{
    return !call->bias || blas.MatmulDescSetAttribute(plan->descriptor, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &call->bias,
                                                      sizeof call->bias) == CUBLAS_STATUS_SUCCESS;
}

/* Sets the factors of the operands, which are read from device memory when the product runs. */
static bool set_scales(const blas_plan *plan, const blas_call *call)
{
    if (plan->choice.key.dtype != TREK_U8)
        return true;
    return blas.MatmulDescSetAttribute(plan->descriptor, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, &call->a_inverse,
                                       sizeof call->a_inverse) == CUBLAS_STATUS_SUCCESS &&
           blas.MatmulDescSetAttribute(plan->descriptor, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, &call->b_inverse,
                                       sizeof call->b_inverse) == CUBLAS_STATUS_SUCCESS;
}

static int ask_candidates(const blas_queue *own, const blas_plan *plan, cublasLtMatmulHeuristicResult_t *results)
{
    const blas_key *key = &plan->choice.key;
    cublasLtMatmulPreference_t preference = NULL;
    if (blas.MatmulPreferenceCreate(&preference) != CUBLAS_STATUS_SUCCESS)
        return 0;
    uint64_t limit = WORKSPACE_LIMIT;
    int32_t result = key->c.alignment < key->bias_alignment ? key->c.alignment : key->bias_alignment;
        /* there is no attribute for the bias */
    const uint32_t alignments[4] = { (uint32_t)key->a.alignment, (uint32_t)key->b.alignment, (uint32_t)key->c.alignment,
                                     (uint32_t)result };
    static const cublasLtMatmulPreferenceAttributes_t attributes[4] = {
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES,
    };
    int found = 0;
    bool fine = blas.MatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &limit, sizeof limit) ==
                CUBLAS_STATUS_SUCCESS;
    for (int k = 0; k < 4; k++)
        fine = fine && blas.MatmulPreferenceSetAttribute(preference, attributes[k], &alignments[k], sizeof alignments[k]) ==
                           CUBLAS_STATUS_SUCCESS;
    if (!fine || blas.MatmulAlgoGetHeuristic(own->handle, plan->descriptor, plan->a, plan->b, plan->c, plan->c, preference,
                                             CANDIDATES, results, &found) != CUBLAS_STATUS_SUCCESS)
        found = 0;
    blas.MatmulPreferenceDestroy(preference);
    int usable = 0;
    for (int k = 0; k < found; k++)
        if (results[k].state == CUBLAS_STATUS_SUCCESS && results[k].workspaceSize <= WORKSPACE_LIMIT)
            results[usable++] = results[k];
    return usable;
}

/* Returns the milliseconds of a run, the mean of several; negative: the algorithm does not run. */
static float time_runs(const blas_queue *own, const blas_plan *plan, const cublasLtMatmulAlgo_t *algorithm,
                       const blas_call *call, const cudaEvent_t events[2], int runs)
{
    float elapsed = -1;
    bool fine = cudaEventRecord(events[0], call->queue->stream) == cudaSuccess;
    for (int k = 0; fine && k < runs; k++)
        fine = multiply(own, plan, algorithm, call) == CUBLAS_STATUS_SUCCESS;
    if (!fine || cudaEventRecord(events[1], call->queue->stream) != cudaSuccess ||
        cudaEventSynchronize(events[1]) != cudaSuccess || cudaEventElapsedTime(&elapsed, events[0], events[1]) != cudaSuccess)
        return -1;
    return elapsed / (float)runs;
}

/* The first run of a candidate loads its kernel and is not timed; the second shows whether it is worth TIMED_RUNS
 * more. */
static int fastest_of(const blas_queue *own, const blas_plan *plan, const cublasLtMatmulHeuristicResult_t *results, int n,
                      const blas_call *call, const cudaEvent_t events[2])
{
    float first[CANDIDATES], least = -1, best_time = -1, used = 0;
    int best = 0;
    for (int k = 0; k < n; k++) {
        const cublasLtMatmulAlgo_t *algorithm = &results[k].algo;
        bool runs = used < CHOICE_LIMIT && multiply(own, plan, algorithm, call) == CUBLAS_STATUS_SUCCESS;
        first[k] = runs ? time_runs(own, plan, algorithm, call, events, 1) : -1;
        used += first[k] > 0 ? 2 * first[k] : 0;
        if (first[k] >= 0 && (least < 0 || first[k] < least))
            least = first[k], best = k;
    }
    for (int k = 0; k < n; k++) {
        if (first[k] < 0 || first[k] > WORTH_TIMING * least || used >= CHOICE_LIMIT)
            continue;
        float elapsed = time_runs(own, plan, &results[k].algo, call, events, TIMED_RUNS);
        used += elapsed > 0 ? TIMED_RUNS * elapsed : 0;
        if (elapsed >= 0 && (best_time < 0 || elapsed < best_time))
            best_time = elapsed, best = k;
    }
    return best;
}

/* Returns the index of the fastest. Its results go to D if that is overwritten anyway, otherwise to scratch memory. */
static int fastest(const blas_queue *own, const blas_plan *plan, const cublasLtMatmulHeuristicResult_t *results, int n,
                   blas_call call, size_t d_bytes)
{
    cudaEvent_t events[2] = { NULL, NULL };
    trek_cuda_scratch workspace = { 0 }, result = { 0 };
    trek_status before = trek_error_status();
    bool fine = cudaEventCreateWithFlags(&events[0], cudaEventDefault) == cudaSuccess &&
                cudaEventCreateWithFlags(&events[1], cudaEventDefault) == cudaSuccess;
    for (int k = 0; k < n; k++)
        call.workspace_bytes = results[k].workspaceSize > call.workspace_bytes ? results[k].workspaceSize : call.workspace_bytes;
    fine = fine && trek_cuda_scratch_take(call.queue, call.workspace_bytes, &workspace) == TREK_OK;
    call.workspace = workspace.data;
    if (fine && plan->choice.key.accumulate) {
        fine = trek_cuda_scratch_take(call.queue, d_bytes, &result) == TREK_OK;
        call.d = result.data;
    }
    int best = fine ? fastest_of(own, plan, results, n, &call, events) : 0;
    trek_cuda_scratch_give(call.queue, &result);
    trek_cuda_scratch_give(call.queue, &workspace);
    for (int k = 0; k < 2; k++)
        if (events[k])
            cudaEventDestroy(events[k]);
    if (!fine)
        forget_error(before); /* no memory for timing: the library's own first choice is used */
    return best;
}

static void remember(const blas_choice *choice)
{
    if (n_choices == cap_choices) {
        size_t capacity = cap_choices ? 2 * cap_choices : 64;
        trek_status before = trek_error_status();
        blas_choice *larger = trek_calloc(capacity, sizeof *larger);
        if (!larger) {
            forget_error(before);
            return;
        }
        if (n_choices)
            memcpy(larger, choices, n_choices * sizeof *choices);
        trek_free(choices);
        choices = larger;
        cap_choices = capacity;
    }
    choices[n_choices++] = *choice;
}

static bool recall(blas_choice *choice)
{
    for (size_t i = 0; i < n_choices; i++)
        if (memcmp(&choices[i].key, &choice->key, sizeof choice->key) == 0) {
            *choice = choices[i];
            return true;
        }
    return false;
}

/* The lock is held while candidates are timed, because two threads would disturb each other's timing. */
static void choose(const blas_queue *own, blas_plan *plan, const blas_call *call, size_t d_bytes)
{
    const blas_key *key = &plan->choice.key;
    cublasLtMatmulHeuristicResult_t results[CANDIDATES];
    pthread_mutex_lock(&choices_lock);
    if (!recall(&plan->choice)) {
        int n = ask_candidates(own, plan, results), best = 0;
        double work = (double)key->m * (double)key->n * (double)key->k * (double)key->batch;
        bool capturing = call->queue->capture != NULL;
        if (n > 1 && blas.tune && !plan->choice.key.fixed && !capturing && work > 1e6)
            best = fastest(own, plan, results, n, *call, d_bytes);
        plan->choice.refused = n == 0;
        if (n > 0) {
            plan->choice.algorithm = results[best].algo;
            plan->choice.workspace = results[best].workspaceSize;
        }
        remember(&plan->choice);
    }
    pthread_mutex_unlock(&choices_lock);
}

/* --- a product ---------------------------------------------------------------------------------------- */

/* Expresses a matrix of these strides as one of cuBLASLt's: with contiguous rows (as columns), or transposed. */
static bool orient(int64_t rows, int64_t columns, int64_t row, int64_t column, blas_operand *operand)
{
    bool row_major = (column == 1 || columns == 1) && (rows == 1 || row >= columns);
    bool column_major = (row == 1 || rows == 1) && (columns == 1 || column >= rows);
    if (!row_major && !column_major)
        return false;
    operand->turned = !row_major;
    operand->ld = row_major ? (rows == 1 ? columns : row) : (columns == 1 ? rows : column);
    return operand->ld <= INT64_C(0x7fffffff);
}

static int32_t alignment_of(const void *data)
{
    uintptr_t address = (uintptr_t)data | ALIGNMENT_LIMIT;
    return (int32_t)(address & -address);
}

static bool takes_dtypes(const trek_cuda_gemm *g)
{
    bool half = trek_dtype_is_16bit((trek_dtype)g->dtype);
    if (g->codes)
        return g->dtype == TREK_U8 && (g->c_dtype == TREK_BF16 || (g->c_dtype == TREK_F32 && !g->bias));
    return half ? g->c_dtype == g->dtype || g->c_dtype == TREK_F32
                : (g->dtype == TREK_F32 || g->dtype == TREK_F64) && g->c_dtype == g->dtype;
}

/* How products of a dtype are computed; those of f32 as exactly as is set. */
static cublasComputeType_t compute_type(trek_dtype dtype)
{
    if (dtype == TREK_F64)
        return CUBLAS_COMPUTE_64F;
    if (dtype != TREK_F32)
        return CUBLAS_COMPUTE_32F;
    switch (trek_plugin_host->matmul_precision()) {
    case TREK_MATMUL_PRECISION_HIGH: return CUBLAS_COMPUTE_32F_FAST_TF32;
    case TREK_MATMUL_PRECISION_MEDIUM: return CUBLAS_COMPUTE_32F_FAST_16BF;
    default: return CUBLAS_COMPUTE_32F;
    }
}

/* cuBLASLt's matrices have contiguous columns: it is asked for C^T = B^T A^T. */
static bool fill_key(const trek_cuda_queue *queue, const trek_cuda_gemm *g, blas_key *key)
{
    memset(key, 0, sizeof *key);
    const int64_t most = 0x7fffffff;
    bool sizes = g->m > 0 && g->n > 0 && g->k > 0 && g->m <= most && g->n <= most && g->k <= most && g->ndim <= 1;
    if (!sizes || !takes_dtypes(g) || (g->row_sums && (g->ndim || g->bias || g->activation != TREK_ACTIVATION_NONE)) ||
        g->activation == TREK_ACTIVATION_GELU || g->pre ||
        (g->bias && ((g->bias_col != 1 && g->n > 1) || (g->c_dtype != g->dtype && !g->codes))))
        return false;
    key->m = g->n;
    key->n = g->m;
    key->k = g->k;
    key->batch = g->ndim ? g->sizes[0] : 1;
    if (key->batch < 1 || key->batch > 65535 || !orient(g->k, g->n, g->b_row, g->b_col, &key->a) ||
        !orient(g->m, g->k, g->a_row, g->a_col, &key->b) || !orient(g->m, g->n, g->c_row, g->c_col, &key->c) || key->c.turned)
        return false;
    if (g->ndim) {
        key->a.batch_stride = g->b_batch[0];
        key->b.batch_stride = g->a_batch[0];
        key->c.batch_stride = g->c_batch[0];
        if (key->a.batch_stride < 0 || key->b.batch_stride < 0 || key->c.batch_stride < 0)
            return false;
    }
    key->a.alignment = alignment_of(g->b);
    key->b.alignment = alignment_of(g->a);
    key->c.alignment = alignment_of(g->c);
    key->bias_alignment = alignment_of(g->bias ? g->bias : g->row_sums);
    key->device = queue->device->index;
    key->dtype = (int32_t)g->dtype;
    key->c_dtype = (int32_t)g->c_dtype;
    key->compute = compute_type(g->dtype);
    key->fixed = trek_plugin_host->products_are_fixed();
    bool relu = g->activation == TREK_ACTIVATION_RELU;
    key->epilogue = g->bias ? (relu ? CUBLASLT_EPILOGUE_RELU_BIAS : CUBLASLT_EPILOGUE_BIAS)
                            : (relu ? CUBLASLT_EPILOGUE_RELU : CUBLASLT_EPILOGUE_DEFAULT);
    if (g->row_sums)
        key->epilogue = CUBLASLT_EPILOGUE_BGRADB; /* over k, for the operand that is B here */
    key->accumulate = g->accumulate;
    if (g->codes) /* B^T is its A */
        key->wide_codes = (g->codes->b_format == TREK_E5M2) | (g->codes->a_format == TREK_E5M2) << 1;
    return true;
}

/* C^T: the same product with operands exchanged, for a C with contiguous columns. */
static trek_cuda_gemm turned(const trek_cuda_gemm *g)
{
    trek_cuda_gemm t = *g;
    t.m = g->n, t.n = g->m;
    t.a = g->b, t.a_row = g->b_col, t.a_col = g->b_row;
    t.b = g->a, t.b_row = g->a_col, t.b_col = g->a_row;
    t.c_row = g->c_col, t.c_col = g->c_row;
    memcpy(t.a_batch, g->b_batch, sizeof t.a_batch);
    memcpy(t.b_batch, g->a_batch, sizeof t.b_batch);
    return t;
}

static blas_queue *queue_state(trek_cuda_queue *queue)
{
    pthread_once(&blas_once, open_blas);
    if (!blas.there)
        return NULL;
    blas_queue *own = queue->blas;
    if (own)
        return own->broken ? NULL : own;
    trek_status before = trek_error_status();
    own = queue->blas = trek_calloc(1, sizeof *own);
    if (!own) {
        forget_error(before);
        return NULL;
    }
    if (blas.Create(&own->handle) != CUBLAS_STATUS_SUCCESS) {
        own->broken = true;
        trek_log_message(TREK_LOG_LEVEL_WARNING, "cublasLt: no handle could be made on device %d; products go without it",
                         queue->device->index);
        return NULL;
    }
    return own;
}

bool trek_cuda_blas_ready(trek_cuda_queue *queue) { return queue_state(queue) != NULL; }

static blas_plan *plan_of(blas_queue *own, const blas_key *key, const blas_call *call, size_t d_bytes)
{
    if (own->last && memcmp(&own->last->choice.key, key, sizeof *key) == 0)
        return own->last;
    trek_status before = trek_error_status();
    if (2 * own->count >= own->capacity && !grow_plans(own)) {
        forget_error(before);
        return NULL;
    }
    blas_plan *plan = slot_of(own->plans, own->capacity, key);
    if (!plan->used) {
        plan->choice.key = *key;
        if (!make_descriptors(plan) || !set_bias(plan, call) || !set_scales(plan, call))
            plan->choice.refused = true;
        else
            choose(own, plan, call, d_bytes);
        if (plan->choice.refused)
            drop_descriptors(plan);
        plan->used = true;
        own->count++;
    }
    return own->last = plan;
}

/* Returns why the library is not used on a queue without a state. */
static const char *why_absent(const trek_cuda_queue *queue)
{
    if (!blas.there)
        return blas.why[0] ? blas.why : "there is no cuBLASLt";
    return queue->blas ? "no handle of cuBLASLt could be made on the device" : "out of memory";
}

static trek_status run(const trek_op_call *call, trek_cuda_queue *queue, const trek_cuda_gemm *g)
{
    blas_queue *own = queue_state(queue);
    blas_key key;
    trek_cuda_gemm other;
    if (!own)
        return trek_cuda_refuse(why_absent(queue));
    if (!fill_key(queue, g, &key)) {
        other = turned(g);
        if (g->bias || g->codes || g->row_sums || !fill_key(queue, &other, &key))
            return trek_cuda_refuse("cuBLASLt has no form of these sizes, strides, dtypes and what follows the product");
        g = &other;
    }
    blas_call operands = { .queue = queue, .a = g->b, .b = g->a, .bias = g->bias ? g->bias : g->row_sums,
                           .c = g->c, .d = g->c };
    if (g->codes)
        operands.a_inverse = g->codes->b_inverse, operands.b_inverse = g->codes->a_inverse;
    size_t d_bytes =
        (size_t)((key.batch - 1) * key.c.batch_stride + (key.n - 1) * key.c.ld + key.m) * trek_item_size[key.c_dtype];
    blas_plan *plan = plan_of(own, &key, &operands, d_bytes);
    if (!plan)
        return trek_cuda_refuse("out of memory");
    if (plan->choice.refused)
        return trek_cuda_refuse("cuBLASLt has no algorithm for the product");
    if (!set_bias(plan, &operands) || !set_scales(plan, &operands))
        return trek_cuda_refuse("cuBLASLt does not take the bias or the scales");
    trek_cuda_scratch workspace = { 0 };
    trek_status status = trek_cuda_scratch_take(queue, plan->choice.workspace, &workspace);
    if (status != TREK_OK)
        return status;
    operands.workspace = workspace.data;
    operands.workspace_bytes = plan->choice.workspace;
    cublasStatus_t result = multiply(own, plan, &plan->choice.algorithm, &operands);
    trek_cuda_scratch_give(queue, &workspace);
    if (result != CUBLAS_STATUS_SUCCESS)
        return trek_op_fail(call, TREK_ERR_CUDA, "cublasLtMatmul failed with status %d", (int)result);
    return trek_cuda_sync_each ? trek_cuda_launched(call, queue, cudaPeekAtLastError()) : TREK_OK;
}

trek_status trek_cuda_blas_run(const trek_op_call *call, trek_cuda_queue *queue, const trek_cuda_gemm *g)
{
    const trek_status status = run(call, queue, g);
    const trek_cuda_path path = g->codes ? TREK_CUDA_PATH_MATMUL_FP8_CUBLASLT : TREK_CUDA_PATH_MATMUL_CUBLASLT;
    if (status == TREK_ERR_UNSUPPORTED)
        trek_cuda_path_refused(queue, path);
    else if (status == TREK_OK)
        trek_cuda_gemm_served(queue, path, g);
    return status;
}

#else /* built without the toolkit's headers */

static const char without[] = "this libtrek-cuda was built where cublasLt.h is not";

bool trek_cuda_blas_ready(trek_cuda_queue *queue)
{
    (void)queue;
    return false;
}

static void warn(void) { warn_of_absence(without); }

trek_status trek_cuda_blas_run(const trek_op_call *call, trek_cuda_queue *queue, const trek_cuda_gemm *g)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, warn);
    (void)call;
    const trek_status status = trek_cuda_refuse(without);
    trek_cuda_path_refused(queue, g->codes ? TREK_CUDA_PATH_MATMUL_FP8_CUBLASLT : TREK_CUDA_PATH_MATMUL_CUBLASLT);
    return status;
}

void trek_cuda_blas_version(char *text, size_t size) { snprintf(text, size, "no cuBLASLt: %s", without); }

#endif
