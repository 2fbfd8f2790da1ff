/* SPDX-License-Identifier: Apache-2.0 */
/* matmul, and how a product is run: by cuBLASLt, or by a kernel on tiles that supports any strides, dtypes and
 * batches. */
#include "tensor/cuda/elementwise/activation.cuh"
#include "tensor/cuda/paths.h"
#include "tensor/cuda/products/blas.h"
#include "tensor/cuda/products/linear.h"
#include "tensor/cuda/products/tile.cuh"

/* --- the kernel of our own ------------------------------------------------------------ */

template <typename T, typename W> struct matrix_lines {
    typedef const T *place;
    const T *data;
    int64_t line, step;
    bool along_p;
    __device__ __forceinline__ place at(int64_t k) const { return data + k * line; }
    __device__ __forceinline__ W load(place p, int64_t k) const { return (W)trek_get(p[k * step]); }
};

template <typename T, typename O, typename W> struct matrix_store {
    const trek_cuda_gemm &g;
    O *c, *pre;
    __device__ __forceinline__ void operator()(int64_t row, int64_t column, W sum) const
    {
        int64_t at = row * g.c_row + column * g.c_col;
        if (g.accumulate)
            sum = (W)trek_get(c[at]) + sum;
        if (g.bias)
            sum = sum + (W)trek_get(((const T *)g.bias)[column * g.bias_col]);
        if (pre)
            pre[at] = trek_store<O>::of(sum);
        c[at] = trek_store<O>::of(activate(sum));
    }
    __device__ __forceinline__ float activate(float x) const { return trek_activate<sizeof(O) == 2>(g.activation, x); }
    __device__ __forceinline__ double activate(double x) const { return trek_activate<sizeof(O) == 2>(g.activation, x); }
    template <typename I> __device__ __forceinline__ I activate(I x) const { return x; }
};

template <typename T, typename O>
static __global__ void __launch_bounds__(TREK_TILE_THREADS) product_kernel(trek_cuda_gemm g, int64_t count)
{
    typedef typename trek_sum_of<T>::type W;
    int64_t tiles_n = (g.n + TREK_TILE - 1) / TREK_TILE;
    int64_t row0 = (int64_t)blockIdx.x / tiles_n * TREK_TILE, column0 = (int64_t)blockIdx.x % tiles_n * TREK_TILE;
    for (int64_t i = blockIdx.y; i < count; i += gridDim.y) {
        int64_t a = 0, b = 0, c = 0, rest = i;
        for (int d = g.ndim - 1; d >= 0; d--) {
            int64_t index = rest % g.sizes[d];
            rest /= g.sizes[d];
            a += index * g.a_batch[d];
            b += index * g.b_batch[d];
            c += index * g.c_batch[d];
        }
        matrix_lines<T, W> left = { (const T *)g.a + a, g.a_row, g.a_col, g.a_col == 1 };
        matrix_lines<T, W> right = { (const T *)g.b + b, g.b_col, g.b_row, g.b_row == 1 };
        matrix_store<T, O, W> store = { g, (O *)g.c + c, g.pre ? (O *)g.pre + c : nullptr };
        trek_tile_product<W>(left, right, store, row0, column0, g.m, g.n, (int64_t)0, g.k);
    }
}

template <typename T, typename O>
static trek_status run_own(const trek_op_call *call, trek_cuda_queue *queue, const trek_cuda_gemm &g)
{
    int64_t count = 1;
    for (int d = 0; d < g.ndim; d++)
        count *= g.sizes[d];
    return trek_launch(call, queue, trek_tile_grid(g.m, g.n, count), product_kernel<T, O>, g, count);
}

static trek_status run_own_of_dtype(const trek_op_call *call, trek_cuda_queue *queue, const trek_cuda_gemm &g)
{
    switch (g.dtype) {
    case TREK_F32: return run_own<float, float>(call, queue, g);
    case TREK_F64: return run_own<double, double>(call, queue, g);
    case TREK_BF16:
        return g.c_dtype == TREK_F32 ? run_own<trek_bf16, float>(call, queue, g) : run_own<trek_bf16, trek_bf16>(call, queue, g);
    case TREK_F16:
        return g.c_dtype == TREK_F32 ? run_own<trek_f16, float>(call, queue, g) : run_own<trek_f16, trek_f16>(call, queue, g);
    case TREK_I64: return run_own<int64_t, int64_t>(call, queue, g);
    case TREK_I32: return run_own<int32_t, int32_t>(call, queue, g);
    default: return run_own<uint8_t, uint8_t>(call, queue, g);
    }
}

static trek_status run_own_of(const trek_op_call *call, trek_cuda_queue *queue, const trek_cuda_gemm &g)
{
    const trek_status status = run_own_of_dtype(call, queue, g);
    if (status == TREK_OK)
        trek_cuda_gemm_served(queue, TREK_CUDA_PATH_MATMUL_OWN, &g);
    return status;
}

/* --- cuBLASLt ---------------------------------------------------------------------------- */

/* Products for which cuBLASLt is not even asked. */
static trek_status refuse(const trek_cuda_queue *queue, const char *why)
{
    const trek_status status = trek_cuda_refuse(why);
    trek_cuda_path_refused(queue, TREK_CUDA_PATH_MATMUL_CUBLASLT);
    return status;
}

/* Joins batch dimensions whose strides are regular in all three operands; with a single y for all x, their rows
 * become one matrix. */
static void join_batch(trek_cuda_gemm *g)
{
    int to = 0;
    for (int d = 0; d < g->ndim; d++) {
        if (g->sizes[d] == 1)
            continue;
        bool even = to > 0 && g->a_batch[to - 1] == g->a_batch[d] * g->sizes[d] &&
                    g->b_batch[to - 1] == g->b_batch[d] * g->sizes[d] && g->c_batch[to - 1] == g->c_batch[d] * g->sizes[d];
        int64_t size = even ? g->sizes[--to] * g->sizes[d] : g->sizes[d];
        g->sizes[to] = size;
        g->a_batch[to] = g->a_batch[d];
        g->b_batch[to] = g->b_batch[d];
        g->c_batch[to++] = g->c_batch[d];
    }
    g->ndim = to;
    if (to == 0)
        return;
    int d = to - 1;
    bool one_row = g->m == 1 && g->b_batch[d] == 0;
    if (one_row || (g->b_batch[d] == 0 && g->a_batch[d] == g->a_row * g->m && g->c_batch[d] == g->c_row * g->m)) {
        if (one_row)
            g->a_row = g->a_batch[d], g->c_row = g->c_batch[d];
        g->m *= g->sizes[d];
        g->ndim--;
    }
}

/* Matrices with no dense side are first copied to scratch memory, if the product is large enough. */
static trek_status blas_dense(const trek_op_call *call, trek_cuda_queue *queue, const trek_cuda_gemm *g)
{
    trek_status status = trek_cuda_blas_run(call, queue, g);
    if (status != TREK_ERR_UNSUPPORTED || !trek_cuda_blas_ready(queue) || g->ndim || g->dtype > TREK_F16 || g->k < 16 ||
        g->m < 16 || g->n < 16)
        return status;
    bool pack_a = g->a_row != 1 && g->a_col != 1, pack_b = g->b_row != 1 && g->b_col != 1;
    if (!pack_a && !pack_b)
        return status;
    trek_cuda_gemm dense = *g;
    trek_cuda_scratch a = { nullptr, nullptr }, b = { nullptr, nullptr };
    size_t size = trek_item_size[g->dtype];
    status = TREK_OK;
    if (pack_a) {
        const int64_t sizes[2] = { g->m, g->k }, strides[2] = { g->a_row, g->a_col };
        status = trek_cuda_scratch_take(queue, (size_t)(g->m * g->k) * size, &a);
        if (status == TREK_OK)
            status = trek_cuda_pack(call, queue, a.data, g->a, size, 2, sizes, strides);
        dense.a = a.data, dense.a_row = g->k, dense.a_col = 1;
    }
    if (pack_b && status == TREK_OK) {
        const int64_t sizes[2] = { g->k, g->n }, strides[2] = { g->b_row, g->b_col };
        status = trek_cuda_scratch_take(queue, (size_t)(g->k * g->n) * size, &b);
        if (status == TREK_OK)
            status = trek_cuda_pack(call, queue, b.data, g->b, size, 2, sizes, strides);
        dense.b = b.data, dense.b_row = g->n, dense.b_col = 1;
    }
    if (status == TREK_OK)
        status = trek_cuda_blas_run(call, queue, &dense);
    trek_cuda_scratch_give(queue, &b);
    trek_cuda_scratch_give(queue, &a);
    return status;
}

/* If the library does not support the product with its bias and ReLU (f64, for example): without, followed by a pass
 * over the result. */
static trek_status blas_biased(const trek_op_call *call, trek_cuda_queue *queue, const trek_cuda_gemm *g)
{
    trek_status status = blas_dense(call, queue, g);
    bool ends = g->bias || g->activation != TREK_ACTIVATION_NONE;
    if (status != TREK_ERR_UNSUPPORTED || !ends || g->ndim || g->c_dtype != g->dtype || g->pre)
        return status;
    trek_cuda_gemm plain = *g;
    plain.bias = nullptr;
    plain.activation = TREK_ACTIVATION_NONE;
    status = blas_dense(call, queue, &plain);
    if (status != TREK_OK)
        return status;
    return trek_cuda_add_bias(call, queue, g->c_dtype, g->c, g->m, g->n, g->c_row, g->c_col, g->bias, g->bias_col, g->activation);
}

/* One call for the innermost batch dimension, repeated for the outer ones; a few of them, or none. */
static trek_status blas_batches(const trek_op_call *call, trek_cuda_queue *queue, const trek_cuda_gemm *g)
{
    if (g->ndim <= 1)
        return blas_biased(call, queue, g);
    int64_t calls = 1;
    int inner = g->ndim - 1;
    for (int d = 0; d < inner; d++)
        calls *= g->sizes[d];
    if (calls > 64)
        return refuse(queue, "the batch would take more than 64 calls of cuBLASLt");
    if (!trek_cuda_blas_ready(queue))
        return trek_cuda_blas_run(call, queue, g); /* which says why */
    int64_t a_size = (int64_t)trek_item_size[g->dtype], c_size = (int64_t)trek_item_size[g->c_dtype];
    trek_status status = TREK_OK;
    for (int64_t i = 0; i < calls && status == TREK_OK; i++) {
        trek_cuda_gemm part = *g;
        int64_t rest = i;
        for (int d = inner - 1; d >= 0; d--) {
            int64_t index = rest % g->sizes[d];
            rest /= g->sizes[d];
            part.a = (const char *)part.a + index * g->a_batch[d] * a_size;
            part.b = (const char *)part.b + index * g->b_batch[d] * a_size;
            part.c = (char *)part.c + index * g->c_batch[d] * c_size;
        }
        part.ndim = 1;
        part.sizes[0] = g->sizes[inner];
        part.a_batch[0] = g->a_batch[inner], part.b_batch[0] = g->b_batch[inner], part.c_batch[0] = g->c_batch[inner];
        status = trek_cuda_blas_run(call, queue, &part);
        if (status == TREK_ERR_UNSUPPORTED && i > 0)
            status = run_own_of(call, queue, part); /* earlier parts are already done */
    }
    return status;
}

/* With GELU: the product and its bias into pre (or the result itself), then the activation in a separate pass. */
static trek_status blas_gelu(const trek_op_call *call, trek_cuda_queue *queue, const trek_cuda_gemm *g)
{
    bool dense = g->ndim == 0 && g->c_col == 1 && g->c_row == g->n;
    if (!dense)
        return refuse(queue, "GELU of a result that is not one dense matrix");
    trek_cuda_gemm linear = *g;
    linear.c = g->pre ? g->pre : g->c;
    linear.pre = nullptr;
    linear.activation = TREK_ACTIVATION_NONE;
    trek_status status = blas_biased(call, queue, &linear);
    return status == TREK_OK ? trek_cuda_gelu(call, queue, g->c_dtype, linear.c, g->c, g->m * g->n) : status;
}

extern "C" trek_status trek_cuda_gemm_run(const trek_op_call *call, trek_cuda_queue *queue, const trek_cuda_gemm *given)
{
    trek_cuda_gemm g = *given;
    if (g.m == 0 || g.n == 0)
        return TREK_OK;
    for (int d = 0; d < g.ndim; d++)
        if (g.sizes[d] == 0)
            return TREK_OK;
    join_batch(&g);
    trek_status status = TREK_ERR_UNSUPPORTED;
    if (g.dtype <= TREK_F16 && g.k > 0)
        status = g.activation == TREK_ACTIVATION_GELU ? blas_gelu(call, queue, &g) : blas_batches(call, queue, &g);
    return status == TREK_ERR_UNSUPPORTED ? run_own_of(call, queue, g) : status;
}

/* --- matmul ---------------------------------------------------------------------------------- */

static void batch_strides(const trek_tensor *t, int own, int ndim, int64_t *strides)
{
    for (int d = 0; d < ndim; d++) {
        int place = d - (ndim - own);
        strides[d] = place >= 0 && t->sizes[place] > 1 ? t->strides[place] : 0;
    }
}

/* For 16 bits the sums of x's rows come from the product, if cuBLASLt has one that computes them: it sums in f32, as
 * the kernel of sum does. Wider ones are summed in f64, in a separate pass. */
static trek_status with_sums(const trek_op_call *call, trek_cuda_queue *queue, const trek_cuda_gemm *g)
{
    trek_tensor *sums = call->outputs[1];
    trek_status status = TREK_ERR_UNSUPPORTED;
    if (trek_dtype_is_16bit(g->dtype) && g->m && g->n && g->k && (sums->strides[0] == 1 || g->m == 1)) {
        trek_cuda_gemm summed = *g;
        summed.row_sums = sums->data;
        status = blas_dense(call, queue, &summed);
    }
    if (status != TREK_ERR_UNSUPPORTED)
        return status;
    status = trek_cuda_gemm_run(call, queue, g);
    trek_op_call sum = *call;
    sum.n_inputs = sum.n_outputs = 1;
    sum.outputs[0] = sums;
    sum.attrs = {};
    sum.attrs.i[0] = 2; /* over dimension 1, by its bit */
    return status == TREK_OK ? trek_cuda_sum(&sum) : status;
}

static trek_status matmul(const trek_op_call *call)
{
    const trek_tensor *x = call->inputs[0], *y = call->inputs[1], *c = call->outputs[0];
    trek_cuda_path_begin();
    bool x_vector = x->ndim == 1, y_vector = y->ndim == 1;
    trek_cuda_queue *queue = trek_queue_of(call);
    if (!queue)
        return trek_error_status();
    trek_cuda_gemm g = {};
    g.a = x->data, g.b = y->data, g.c = c->data;
    g.dtype = (trek_dtype)x->dtype, g.c_dtype = (trek_dtype)c->dtype;
    g.accumulate = (call->attrs.i[0] & 1) != 0;
    g.k = x->sizes[x->ndim - 1];
    g.m = x_vector ? 1 : x->sizes[x->ndim - 2];
    g.n = y_vector ? 1 : y->sizes[y->ndim - 1];
    g.a_col = x->strides[x->ndim - 1];
    g.a_row = x_vector ? g.k : x->strides[x->ndim - 2];
    g.b_row = y->strides[y_vector ? 0 : y->ndim - 2];
    g.b_col = y_vector ? 1 : y->strides[y->ndim - 1];
    g.c_col = y_vector ? 1 : c->strides[c->ndim - 1];
    g.c_row = x_vector ? g.n : c->strides[c->ndim - (y_vector ? 1 : 2)];
    g.ndim = c->ndim - !x_vector - !y_vector;
    for (int d = 0; d < g.ndim; d++)
        g.sizes[d] = c->sizes[d];
    batch_strides(x, x_vector ? 0 : x->ndim - 2, g.ndim, g.a_batch);
    batch_strides(y, y_vector ? 0 : y->ndim - 2, g.ndim, g.b_batch);
    batch_strides(c, g.ndim, g.ndim, g.c_batch);
    return call->attrs.i[0] & 2 ? with_sums(call, queue, &g) : trek_cuda_gemm_run(call, queue, &g);
}

extern "C" void trek_cuda_register_matmul(trek_backend *backend)
{
    for (int dtype = 0; dtype < TREK_DTYPE_COUNT; dtype++)
        if (TREK_NUMBERS >> dtype & 1)
            backend->kernels[TREK_OP_matmul][dtype] = matmul;
}
