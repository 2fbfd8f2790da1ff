/* SPDX-License-Identifier: Apache-2.0 */
/* linear: y = act(x W^T + bias), one product with its epilogue. */
#include "tensor/cuda/products/linear.h"

#include "tensor/cuda/elementwise/activation.cuh"
#include "tensor/cuda/paths.h"
#include "tensor/cuda/products/blas.h"

/* --- copies ------------------------------------------------------------------------------ */

struct strided {
    int ndim;
    int64_t sizes[TREK_MAX_DIMS], strides[TREK_MAX_DIMS];
};

template <typename T, bool out> static __global__ void strided_copy_kernel(T *to, const T *from, strided s, int64_t n)
{
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (int64_t)gridDim.x * blockDim.x) {
        int64_t rest = i, offset = 0;
        for (int d = s.ndim - 1; d >= 0; d--) {
            offset += rest % s.sizes[d] * s.strides[d];
            rest /= s.sizes[d];
        }
        to[out ? offset : i] = from[out ? i : offset];
    }
}

template <typename T>
static trek_status strided_copy(const trek_op_call *call, trek_cuda_queue *queue, bool out, void *to, const void *from,
                                const strided &s, int64_t n)
{
    trek_grid grid = trek_loop(n, 1 << 20);
    return out ? trek_launch(call, queue, grid, strided_copy_kernel<T, true>, (T *)to, (const T *)from, s, n)
               : trek_launch(call, queue, grid, strided_copy_kernel<T, false>, (T *)to, (const T *)from, s, n);
}

static trek_status strided_copy_of(const trek_op_call *call, trek_cuda_queue *queue, bool out, void *to, const void *from,
                                   size_t size, int ndim, const int64_t *sizes, const int64_t *strides)
{
    strided s = {};
    int64_t n = 1;
    s.ndim = ndim;
    for (int d = 0; d < ndim; d++) {
        s.sizes[d] = sizes[d];
        s.strides[d] = strides[d];
        n *= sizes[d];
    }
    if (n == 0)
        return TREK_OK;
    switch (size) {
    case 1: return strided_copy<uint8_t>(call, queue, out, to, from, s, n);
    case 2: return strided_copy<uint16_t>(call, queue, out, to, from, s, n);
    case 4: return strided_copy<uint32_t>(call, queue, out, to, from, s, n);
    default: return strided_copy<uint64_t>(call, queue, out, to, from, s, n);
    }
}

extern "C" trek_status trek_cuda_pack(const trek_op_call *call, trek_cuda_queue *queue, void *to, const void *from, size_t size,
                                      int ndim, const int64_t *sizes, const int64_t *strides)
{
    return strided_copy_of(call, queue, false, to, from, size, ndim, sizes, strides);
}

extern "C" trek_status trek_cuda_unpack(const trek_op_call *call, trek_cuda_queue *queue, void *to, const void *from, size_t size,
                                        int ndim, const int64_t *sizes, const int64_t *strides)
{
    return strided_copy_of(call, queue, true, to, from, size, ndim, sizes, strides);
}

/* --- GELU ----------------------------------------------------------------------------------- */

/* Vectors of up to 16 bytes; the last elements one by one. */
template <typename T, int width> static __global__ void gelu_kernel(const T *from, T *to, int64_t n)
{
    typedef trek_vector<T, width> vector;
    typedef typename trek_wide<T>::type W;
    int64_t first = (int64_t)blockIdx.x * blockDim.x + threadIdx.x, step = (int64_t)gridDim.x * blockDim.x, whole = n / width;
    for (int64_t i = first; i < whole; i += step) {
        vector v = ((const vector *)from)[i];
#pragma unroll
        for (int k = 0; k < width; k++)
            v.x[k] = trek_store<T>::of(trek_gelu<sizeof(T) == 2>((W)trek_get(v.x[k])));
        ((vector *)to)[i] = v;
    }
    for (int64_t i = whole * width + first; i < n; i += step)
        to[i] = trek_store<T>::of(trek_gelu<sizeof(T) == 2>((W)trek_get(from[i])));
}

template <typename T>
static trek_status gelu(const trek_op_call *call, trek_cuda_queue *queue, const void *from, void *to, int64_t n)
{
    const int width = 16 / (int)sizeof(T);
    bool aligned = (((uintptr_t)from | (uintptr_t)to) & 15) == 0;
    if (aligned)
        return trek_launch(call, queue, trek_loop((n + width - 1) / width), gelu_kernel<T, width>, (const T *)from, (T *)to, n);
    return trek_launch(call, queue, trek_loop(n), gelu_kernel<T, 1>, (const T *)from, (T *)to, n);
}

extern "C" trek_status trek_cuda_gelu(const trek_op_call *call, trek_cuda_queue *queue, trek_dtype dtype, const void *from,
                                      void *to, int64_t n)
{
    switch (dtype) {
    case TREK_F64: return gelu<double>(call, queue, from, to, n);
    case TREK_BF16: return gelu<trek_bf16>(call, queue, from, to, n);
    case TREK_F16: return gelu<trek_f16>(call, queue, from, to, n);
    default: return gelu<float>(call, queue, from, to, n);
    }
}

/* --- bias and ReLU in a separate pass ----------------------------------------------------------- */

template <typename T>
static __global__ void add_bias_kernel(T *c, int64_t n, int64_t c_row, int64_t c_col, const T *bias, int64_t bias_step,
                                       int activation,
                                int64_t count)
{
    typedef typename trek_wide<T>::type W;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += (int64_t)gridDim.x * blockDim.x) {
        T *at = c + i / n * c_row + i % n * c_col;
        W x = trek_get(*at);
        if (bias)
            x += trek_get(bias[i % n * bias_step]);
        *at = trek_store<T>::of(trek_activate<sizeof(T) == 2>(activation, x));
    }
}

template <typename T>
static trek_status add_bias(const trek_op_call *call, trek_cuda_queue *queue, void *c, int64_t m, int64_t n, int64_t c_row,
                            int64_t c_col, const void *bias, int64_t bias_step, int activation)
{
    return trek_launch(call, queue, trek_loop(m * n), add_bias_kernel<T>, (T *)c, n, c_row, c_col, (const T *)bias, bias_step,
                       activation, m * n);
}

extern "C" trek_status trek_cuda_add_bias(const trek_op_call *call, trek_cuda_queue *queue, trek_dtype dtype, void *c, int64_t m,
                                          int64_t n, int64_t c_row, int64_t c_col, const void *bias, int64_t bias_step,
                                          int activation)
{
    switch (dtype) {
    case TREK_F64: return add_bias<double>(call, queue, c, m, n, c_row, c_col, bias, bias_step, activation);
    case TREK_BF16: return add_bias<trek_bf16>(call, queue, c, m, n, c_row, c_col, bias, bias_step, activation);
    case TREK_F16: return add_bias<trek_f16>(call, queue, c, m, n, c_row, c_col, bias, bias_step, activation);
    default: return add_bias<float>(call, queue, c, m, n, c_row, c_col, bias, bias_step, activation);
    }
}

/* --- linear ------------------------------------------------------------------------------------ */

/* Rows of x are the batch; if their strides are regular, trek_cuda_gemm_run joins them. Both outputs have the same
 * strides; otherwise the product first goes to contiguous scratch memory. */
static trek_status linear_into(const trek_op_call *call, trek_cuda_queue *queue, void *y, void *pre, const int64_t *y_strides)
{
    const trek_tensor *x = call->inputs[0], *weight = call->inputs[1], *bias = call->n_inputs > 2 ? call->inputs[2] : nullptr;
    int last = x->ndim - 1;
    trek_cuda_path_begin();
    trek_cuda_gemm g = {};
    g.a = x->data, g.b = weight->data, g.c = y;
    g.dtype = (trek_dtype)x->dtype, g.c_dtype = (trek_dtype)call->outputs[0]->dtype;
    g.n = weight->sizes[0], g.k = weight->sizes[1];
    g.a_col = x->strides[last];
    g.b_row = weight->strides[1], g.b_col = weight->strides[0];
    g.c_col = y_strides[last];
    g.bias = bias ? bias->data : nullptr;
    g.bias_col = bias ? bias->strides[0] : 0;
    g.activation = (int)call->attrs.i[0];
    g.pre = pre;
    g.m = last > 0 ? x->sizes[last - 1] : 1;
    g.a_row = last > 0 ? x->strides[last - 1] : g.k;
    g.c_row = last > 0 ? y_strides[last - 1] : g.n;
    g.ndim = last > 1 ? last - 1 : 0;
    for (int d = 0; d < g.ndim; d++) {
        g.sizes[d] = x->sizes[d];
        g.a_batch[d] = x->strides[d];
        g.c_batch[d] = y_strides[d];
    }
    return trek_cuda_gemm_run(call, queue, &g);
}

static trek_status linear(const trek_op_call *call)
{
    trek_tensor *y = call->outputs[0], *pre = nullptr;
    trek_cuda_queue *queue = trek_queue_of(call);
    if (!queue)
        return trek_error_status();
    if (call->attrs.i[0] == TREK_ACTIVATION_GELU && call->n_outputs > 1)
        pre = call->outputs[1];
    bool alike = true;
    for (int d = 0; pre && d < y->ndim; d++)
        alike = alike && (y->sizes[d] == 1 || y->strides[d] == pre->strides[d]);
    if (alike)
        return linear_into(call, queue, y->data, pre ? pre->data : nullptr, y->strides);
    int64_t dense[TREK_MAX_DIMS], step = 1;
    for (int d = y->ndim - 1; d >= 0; d--) {
        dense[d] = step;
        step *= y->sizes[d] ? y->sizes[d] : 1;
    }
    size_t size = trek_item_size[y->dtype], bytes = (size_t)y->numel * size;
    trek_cuda_scratch both = { nullptr, nullptr };
    trek_status status = trek_cuda_scratch_take(queue, 2 * ((bytes + 255) / 256 * 256), &both);
    if (status != TREK_OK)
        return status;
    char *own_y = (char *)both.data, *own_pre = own_y + (bytes + 255) / 256 * 256;
    status = linear_into(call, queue, own_y, own_pre, dense);
    if (status == TREK_OK)
        status = trek_cuda_unpack(call, queue, y->data, own_y, size, y->ndim, y->sizes, y->strides);
    if (status == TREK_OK)
        status = trek_cuda_unpack(call, queue, pre->data, own_pre, size, y->ndim, y->sizes, pre->strides);
    trek_cuda_scratch_give(queue, &both);
    return status;
}

extern "C" void trek_cuda_register_linear(trek_backend *backend)
{
    for (int dtype = 0; dtype < TREK_DTYPE_COUNT; dtype++)
        if (TREK_FLOATS >> dtype & 1)
            backend->kernels[TREK_OP_linear][dtype] = linear;
}
