/* SPDX-License-Identifier: Apache-2.0 */
/* Copies around kernels that need contiguous operands. */
#include "tensor/cuda/dense.cuh"

struct copy_dims {
    int n;
    bool wide;
    int64_t count;
    struct {
        int64_t size, step; /* of the side with strides */
        trek_quotient by;
    } dims[TREK_MAX_DIMS];
};

/* Copies row-major elements from (gather) or to positions with strides. */
template <typename T> static __global__ void copy_kernel(const T *from, T *to, copy_dims c, bool gather)
{
    int64_t threads = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < c.count; i += threads) {
        int64_t index = i, at = 0;
        for (int d = c.n - 1; d >= 0; d--) {
            int64_t next = d == 0 ? 0 : c.wide ? index / c.dims[d].size : (int64_t)c.dims[d].by((uint32_t)index);
            at += (index - next * c.dims[d].size) * c.dims[d].step;
            index = next;
        }
        if (gather)
            to[i] = from[at];
        else
            to[at] = from[i];
    }
}

static copy_dims dims_of(const trek_tensor *t)
{
    copy_dims c = {};
    for (int d = 0; d < t->ndim; d++) {
        if (t->sizes[d] == 1)
            continue;
        if (c.n > 0 && c.dims[c.n - 1].step == t->strides[d] * t->sizes[d]) {
            c.dims[c.n - 1].size *= t->sizes[d];
            c.dims[c.n - 1].step = t->strides[d];
        } else {
            c.dims[c.n].size = t->sizes[d];
            c.dims[c.n++].step = t->strides[d];
        }
    }
    for (int d = 0; d < c.n; d++)
        c.dims[d].by = trek_quotient_of(c.dims[d].size);
    c.count = t->numel;
    c.wide = t->numel > 0x7fffffff;
    return c;
}

template <typename T>
static trek_status copy(const trek_op_call *call, trek_cuda_queue *queue, const trek_tensor *t, const void *from, void *to,
                        bool gather)
{
    return trek_launch(call, queue, trek_loop(t->numel, 1 << 20), copy_kernel<T>, (const T *)from, (T *)to, dims_of(t), gather);
}

static trek_status copy_tensor(const trek_op_call *call, trek_cuda_queue *queue, const trek_tensor *t, const void *from, void *to,
                               bool gather)
{
    switch (t->dtype) {
    case TREK_F64:
    case TREK_I64: return copy<uint64_t>(call, queue, t, from, to, gather);
    case TREK_F32:
    case TREK_I32: return copy<uint32_t>(call, queue, t, from, to, gather);
    case TREK_BF16:
    case TREK_F16: return copy<uint16_t>(call, queue, t, from, to, gather);
    default: return copy<uint8_t>(call, queue, t, from, to, gather);
    }
}

static size_t bytes_of(const trek_tensor *t)
{
    static const uint8_t sizes[TREK_DTYPE_COUNT] = { 4, 8, 2, 2, 8, 4, 1, 1 };
    static_assert(TREK_F32 == 0 && TREK_F64 == 1 && TREK_BF16 == 2 && TREK_F16 == 3 && TREK_I64 == 4 && TREK_I32 == 5,
                  "their order");
    return (size_t)t->numel * sizes[t->dtype];
}

trek_status trek_dense::read(const trek_op_call *call, trek_cuda_queue *queue, const trek_tensor *t)
{
    if (!t || t->contiguous || t->numel == 0) {
        data = t ? t->data : NULL;
        return TREK_OK;
    }
    trek_status status = held.take(queue, bytes_of(t));
    data = held.scratch.data;
    return status == TREK_OK ? copy_tensor(call, queue, t, t->data, data, true) : status;
}

trek_status trek_dense::write(trek_cuda_queue *queue, trek_tensor *t)
{
    if (t->contiguous || t->numel == 0) {
        data = t->data;
        return TREK_OK;
    }
    trek_status status = held.take(queue, bytes_of(t));
    data = held.scratch.data;
    return status;
}

trek_status trek_dense::finish(const trek_op_call *call, trek_tensor *t)
{
    return held.scratch.handle ? copy_tensor(call, held.queue, t, data, t->data, false) : TREK_OK;
}

/* --- conversion of small vectors --------------------------------------------------------- */

template <typename W> static __global__ void convert_kernel(const void *from, int dtype, W *to, int64_t n)
{
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        to[i] = (W)trek_load_float(from, dtype, i);
}

trek_status trek_converted::read(const trek_op_call *call, trek_cuda_queue *queue, const trek_tensor *t, trek_dtype dtype)
{
    if (!t || t->numel == 0 || (t->contiguous && t->dtype == dtype)) {
        data = t ? t->data : NULL;
        return TREK_OK;
    }
    trek_dense dense;
    trek_status status = dense.read(call, queue, t);
    if (status == TREK_OK)
        status = held.take(queue, (size_t)t->numel * (dtype == TREK_F64 ? 8 : 4));
    data = held.scratch.data;
    if (status != TREK_OK)
        return status;
    if (dtype == TREK_F64)
        return trek_launch(call, queue, trek_loop(t->numel), convert_kernel<double>, (const void *)dense.data, (int)t->dtype,
                           held.as<double>(), t->numel);
    return trek_launch(call, queue, trek_loop(t->numel), convert_kernel<float>, (const void *)dense.data, (int)t->dtype,
                       held.as<float>(), t->numel);
}
