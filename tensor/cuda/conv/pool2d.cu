/* SPDX-License-Identifier: Apache-2.0 */
/* Max and average pooling, also to a given size, and their gradients. One thread computes each position of the
 * result, in a fixed order. */
#include "tensor/cuda/products/blas.h"
#include "tensor/channels_last.h"
#include "tensor/cuda/device.cuh"

#define CHUNK 128 /* positions whose gradients a block distributes at once */

/* x: the larger side, y: the pooled one; strides in elements. */
struct pool {
    int64_t images, channels, height, width, out_h, out_w;
    int64_t kernel_h, kernel_w, stride_h, stride_w, pad_h, pad_w, dilation_h, dilation_w;
    bool count_padding, adaptive, last; /* last: threads process channels first */
    int64_t x[4], y[4], index[4];
    double divisor; /* of averages; 0: the number of elements in a window */
};

static pool pool_of(const trek_op_call *call, const trek_tensor *x, const trek_tensor *y)
{
    const int64_t *a = call->attrs.i;
    pool p = {};
    p.images = x->sizes[0], p.channels = x->sizes[1], p.height = x->sizes[2], p.width = x->sizes[3];
    p.out_h = y->sizes[2], p.out_w = y->sizes[3];
    p.kernel_h = a[0], p.kernel_w = a[1], p.stride_h = a[2], p.stride_w = a[3];
    p.pad_h = a[4], p.pad_w = a[5], p.dilation_h = a[6], p.dilation_w = a[7];
    p.count_padding = a[9] != 0;
    p.last = trek_lies_channels_last(call->outputs[0]);
    for (int d = 0; d < 4; d++) {
        p.x[d] = x->strides[d];
        p.y[d] = y->strides[d];
    }
    return p;
}

/* Element i, row-major or channels last, of [images, channels, rows, columns]. */
struct element {
    int64_t image, channel, row, column;
    __device__ __forceinline__ element(int64_t i, int64_t channels, int64_t rows, int64_t columns, bool last)
    {
        if (last) {
            uint32_t size = (uint32_t)channels;
            int64_t pixel = i < 0x7fffffff ? (int64_t)((uint32_t)i / size) : i / channels, line = pixel / columns;
            channel = i - pixel * channels;
            column = pixel - line * columns;
            row = line % rows;
            image = line / rows;
        } else if (i < 0x7fffffff) {
            uint32_t q = (uint32_t)i, line = q / (uint32_t)columns, plane = line / (uint32_t)rows;
            column = q - line * (uint32_t)columns;
            row = line - plane * (uint32_t)rows;
            image = plane / (uint32_t)channels;
            channel = plane % (uint32_t)channels;
        } else {
            column = i % columns;
            row = i / columns % rows;
            channel = i / (columns * rows) % channels;
            image = i / (columns * rows * channels);
        }
    }
    __device__ __forceinline__ int64_t offset(const int64_t *strides) const
    {
        return image * strides[0] + channel * strides[1] + row * strides[2] + column * strides[3];
    }
};

__device__ __forceinline__ int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
__device__ __forceinline__ int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

/* --- maxima --------------------------------------------------------------------------------- */

template <typename T> __device__ __forceinline__ bool beats(T value, T best) { return value > best || value != value; }

template <typename T> __device__ __forceinline__ T lowest(T) { return (T)-INFINITY; }
template <> __device__ __forceinline__ int64_t lowest(int64_t) { return INT64_MIN; }
template <> __device__ __forceinline__ int32_t lowest(int32_t) { return INT32_MIN; }
template <> __device__ __forceinline__ uint8_t lowest(uint8_t) { return 0; }

/* Finds input rows (or columns) [*begin, *end) of a position of an adaptive pool. */
__device__ __forceinline__ void share_of(int64_t place, int64_t size, int64_t places, int64_t *begin, int64_t *end)
{
    *begin = place * size / places;
    *end = ((place + 1) * size + places - 1) / places;
}

/* A window that is wholly in the padding gives the lowest number, and -1 as its index. */
template <typename T> static __global__ void max_kernel(pool p, const T *x, T *y, int64_t *index, int64_t n)
{
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (int64_t)gridDim.x * blockDim.x) {
        element e(i, p.channels, p.out_h, p.out_w, p.last);
        int64_t top = e.row * p.stride_h - p.pad_h, left = e.column * p.stride_w - p.pad_w;
        int64_t bottom = smaller(top + (p.kernel_h - 1) * p.dilation_h + 1, p.height);
        int64_t right = smaller(left + (p.kernel_w - 1) * p.dilation_w + 1, p.width);
        top = top < 0 ? top + (-top + p.dilation_h - 1) / p.dilation_h * p.dilation_h : top;
        left = left < 0 ? left + (-left + p.dilation_w - 1) / p.dilation_w * p.dilation_w : left;
        if (p.adaptive) {
            share_of(e.row, p.height, p.out_h, &top, &bottom);
            share_of(e.column, p.width, p.out_w, &left, &right);
        }
        const T *plane = x + e.image * p.x[0] + e.channel * p.x[1];
        const bool any = top < bottom && left < right;
        int64_t row = top, column = left;
        typename trek_wide<T>::type best = lowest(typename trek_wide<T>::type());
        if (any)
            best = trek_get(plane[row * p.x[2] + column * p.x[3]]);
        for (int64_t v = top; v < bottom; v += p.dilation_h)
            for (int64_t u = left; u < right; u += p.dilation_w) {
                typename trek_wide<T>::type value = trek_get(plane[v * p.x[2] + u * p.x[3]]);
                if (beats(value, best)) {
                    best = value;
                    row = v;
                    column = u;
                }
            }
        y[e.offset(p.y)] = any ? plane[row * p.x[2] + column * p.x[3]] : trek_store<T>::of(best);
        index[e.offset(p.index)] = any ? row * p.width + column : -1;
    }
}

template <typename T> static trek_status max_pool2d(const trek_op_call *call)
{
    const trek_tensor *x = call->inputs[0], *y = call->outputs[0], *index = call->outputs[1];
    trek_cuda_queue *queue = trek_queue_of(call);
    if (!queue)
        return trek_error_status();
    if (y->numel == 0)
        return TREK_OK;
    pool p = pool_of(call, x, y);
    p.adaptive = call->op->id == TREK_OP_adaptive_max_pool2d;
    if (p.adaptive)
        p.dilation_h = p.dilation_w = 1;
    for (int d = 0; d < 4; d++)
        p.index[d] = index->strides[d];
    return trek_launch(call, queue, trek_loop(y->numel), max_kernel<T>, p, (const T *)x->data, (T *)y->data,
                       (int64_t *)index->data, y->numel);
}

/* A block has a plane and processes its positions in order, CHUNK at a time. Of the positions of a chunk that chose
 * one pixel, the first adds for all: no two threads write to a pixel, and the order is always the same. */
template <typename T, typename W>
static __global__ void max_grad_kernel(pool p, const T *dy, const int64_t *index, W *dx, trek_cuda_fault_record *faults, int op)
{
    TREK_SHARED(int64_t, chosen, CHUNK);
    TREK_SHARED(W, grads, CHUNK);
    int64_t planes = p.images * p.channels, places = p.out_h * p.out_w, size = p.height * p.width;
    for (int64_t plane = blockIdx.x; plane < planes; plane += gridDim.x) {
        int64_t image = plane / p.channels, channel = plane % p.channels;
        W *to = dx + image * p.x[0] + channel * p.x[1];
        for (int64_t i = threadIdx.x; i < size; i += blockDim.x)
            to[i / p.width * p.x[2] + i % p.width * p.x[3]] = (W)0;
        for (int64_t first = 0; first < places; first += CHUNK) {
            int64_t i = first + threadIdx.x, at = -1;
            if (i < places) {
                int64_t row = i / p.out_w, column = i % p.out_w;
                at = index[image * p.index[0] + channel * p.index[1] + row * p.index[2] + column * p.index[3]];
                if ((uint64_t)at + 1 > (uint64_t)size) { /* -1: no position */
                    trek_note_fault(faults, op, TREK_CUDA_FAULT_PLANE, at, plane * places + i, size);
                    at = -1;
                }
                grads[threadIdx.x] = (W)trek_get(dy[image * p.y[0] + channel * p.y[1] + row * p.y[2] + column * p.y[3]]);
            }
            chosen[threadIdx.x] = at;
            __syncthreads();
            bool leads = at >= 0;
            for (int k = 0; leads && k < (int)threadIdx.x; k++)
                leads = chosen[k] != at;
            if (leads) {
                W *pixel = to + at / p.width * p.x[2] + at % p.width * p.x[3], sum = *pixel;
                for (int k = (int)threadIdx.x; k < CHUNK; k++)
                    if (chosen[k] == at)
                        sum = (W)(sum + grads[k]);
                *pixel = sum;
            }
            __syncthreads();
        }
    }
}

template <typename T, typename W> static __global__ void narrow_kernel(pool p, const W *from, T *to, int64_t n)
{
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (int64_t)gridDim.x * blockDim.x)
        to[element(i, p.channels, p.height, p.width, false).offset(p.x)] = trek_store<T>::of(from[i]);
}

template <typename T, typename W>
static trek_status max_grad(const trek_op_call *call, trek_cuda_queue *queue, const pool &p, W *dx)
{
    const trek_tensor *dy = call->inputs[0], *index = call->inputs[1];
    int64_t planes = p.images * p.channels;
    trek_grid grid = trek_blocks(dim3((unsigned)(planes < 65536 ? planes : 65536)), dim3(CHUNK));
    return trek_launch(call, queue, grid, max_grad_kernel<T, W>, p, (const T *)dy->data, (const int64_t *)index->data, dx,
                       queue->device->faults_device, call->op->id);
}

/* 16-bit gradients are added in f32. */
template <typename T> static trek_status max_grad_half(const trek_op_call *call, trek_cuda_queue *queue, const pool &p)
{
    const trek_tensor *dx = call->outputs[0];
    pool wide = p;
    trek_cuda_scratch sums = { nullptr, nullptr };
    trek_status status = trek_cuda_scratch_take(queue, (size_t)dx->numel * sizeof(float), &sums);
    if (status != TREK_OK)
        return status;
    wide.x[3] = 1, wide.x[2] = p.width, wide.x[1] = p.width * p.height, wide.x[0] = wide.x[1] * p.channels;
    status = max_grad<T, float>(call, queue, wide, (float *)sums.data);
    if (status == TREK_OK)
        status = trek_launch(call, queue, trek_loop(dx->numel), narrow_kernel<T, float>, p, (const float *)sums.data,
                             (T *)dx->data, dx->numel);
    trek_cuda_scratch_give(queue, &sums);
    return status;
}

static trek_status max_pool2d_backward(const trek_op_call *call)
{
    const trek_tensor *dy = call->inputs[0], *index = call->inputs[1], *dx = call->outputs[0];
    trek_cuda_queue *queue = trek_queue_of(call);
    if (!queue)
        return trek_error_status();
    pool p = pool_of(call, dx, dy);
    for (int d = 0; d < 4; d++)
        p.index[d] = index->strides[d];
    if (p.images * p.channels == 0 || (dx->numel == 0 && dy->numel == 0))
        return TREK_OK;
    switch (dy->dtype) {
    case TREK_F32: return max_grad<float, float>(call, queue, p, (float *)dx->data);
    case TREK_F64: return max_grad<double, double>(call, queue, p, (double *)dx->data);
    case TREK_BF16: return max_grad_half<trek_bf16>(call, queue, p);
    case TREK_F16: return max_grad_half<trek_f16>(call, queue, p);
    case TREK_I64: return max_grad<int64_t, int64_t>(call, queue, p, (int64_t *)dx->data);
    case TREK_I32: return max_grad<int32_t, int32_t>(call, queue, p, (int32_t *)dx->data);
    default: return max_grad<uint8_t, uint8_t>(call, queue, p, (uint8_t *)dx->data);
    }
}

/* --- averages ---------------------------------------------------------------------------------- */

/* Finds input rows (or columns) [*begin, *end) of a position, clipped. Returns how many count for the average. */
__device__ __forceinline__ int64_t span(const pool &p, bool horizontal, int64_t place, int64_t *begin, int64_t *end)
{
    int64_t size = horizontal ? p.width : p.height, places = horizontal ? p.out_w : p.out_h;
    if (p.adaptive) {
        share_of(place, size, places, begin, end);
        return *end - *begin;
    }
    int64_t kernel = horizontal ? p.kernel_w : p.kernel_h, padding = horizontal ? p.pad_w : p.pad_h;
    int64_t first = place * (horizontal ? p.stride_w : p.stride_h) - padding, last = smaller(first + kernel, size + padding);
    *begin = larger(first, 0);
    *end = larger(smaller(last, size), *begin);
    return p.count_padding ? last - first : *end - *begin;
}

/* Finds the positions [*begin, *end) to which a row (or column) of the input contributes. */
__device__ __forceinline__ void places_of(const pool &p, bool horizontal, int64_t at, int64_t *begin, int64_t *end)
{
    int64_t size = horizontal ? p.width : p.height, places = horizontal ? p.out_w : p.out_h;
    if (p.adaptive) {
        *begin = at * places / size;
        *end = ((at + 1) * places + size - 1) / size;
        return;
    }
    int64_t kernel = horizontal ? p.kernel_w : p.kernel_h, stride = horizontal ? p.stride_w : p.stride_h;
    int64_t padded = at + (horizontal ? p.pad_w : p.pad_h);
    *begin = padded < kernel ? 0 : (padded - kernel) / stride + 1;
    *end = smaller(padded / stride + 1, places);
}

/* Divides an average's sum, or a gradient, by the number of elements in the window, unless there is one divisor for
 * all. */
template <typename W> __device__ __forceinline__ W divided(const pool &p, W sum, int64_t covered)
{
    if (p.divisor != 0)
        return (W)(sum / (W)p.divisor);
    return covered > 0 ? (W)(sum / (W)covered) : (W)0;
}

template <typename T> static __global__ void average_kernel(pool p, const T *x, T *y, int64_t n)
{
    typedef typename trek_wide<T>::type W;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (int64_t)gridDim.x * blockDim.x) {
        element e(i, p.channels, p.out_h, p.out_w, p.last);
        int64_t top, bottom, left, right;
        int64_t rows = span(p, false, e.row, &top, &bottom), columns = span(p, true, e.column, &left, &right);
        const T *plane = x + e.image * p.x[0] + e.channel * p.x[1];
        W sum = 0;
        for (int64_t v = top; v < bottom; v++)
            for (int64_t u = left; u < right; u++)
                sum += trek_get(plane[v * p.x[2] + u * p.x[3]]);
        y[e.offset(p.y)] = trek_store<T>::of(divided(p, sum, rows * columns));
    }
}

template <typename T> static __global__ void average_grad_kernel(pool p, const T *dy, T *dx, int64_t n)
{
    typedef typename trek_wide<T>::type W;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (int64_t)gridDim.x * blockDim.x) {
        element e(i, p.channels, p.height, p.width, p.last);
        int64_t top, bottom, left, right, begin, end;
        places_of(p, false, e.row, &top, &bottom);
        places_of(p, true, e.column, &left, &right);
        const T *plane = dy + e.image * p.y[0] + e.channel * p.y[1];
        W sum = 0;
        for (int64_t v = top; v < bottom; v++) {
            int64_t rows = span(p, false, v, &begin, &end);
            for (int64_t u = left; u < right; u++) {
                int64_t columns = span(p, true, u, &begin, &end);
                sum += divided(p, (W)trek_get(plane[v * p.y[2] + u * p.y[3]]), rows * columns);
            }
        }
        dx[e.offset(p.x)] = trek_store<T>::of(sum);
    }
}

template <typename T> static trek_status average(const trek_op_call *call)
{
    int id = call->op->id;
    bool backward = id == TREK_OP_avg_pool2d_backward || id == TREK_OP_adaptive_avg_pool2d_backward;
    const trek_tensor *in = call->inputs[0], *out = call->outputs[0];
    trek_cuda_queue *queue = trek_queue_of(call);
    if (!queue)
        return trek_error_status();
    if (out->numel == 0)
        return TREK_OK;
    pool p = pool_of(call, backward ? out : in, backward ? in : out);
    p.adaptive = id == TREK_OP_adaptive_avg_pool2d || id == TREK_OP_adaptive_avg_pool2d_backward;
    p.divisor = p.adaptive ? 0 : call->attrs.f[0];
    return trek_launch(call, queue, trek_loop(out->numel), backward ? average_grad_kernel<T> : average_kernel<T>, p,
                       (const T *)in->data, (T *)out->data, out->numel);
}

template <trek_dtype D> static void enter(trek_backend *backend)
{
    typedef typename trek_element<D>::type T;
    backend->kernels[TREK_OP_max_pool2d][D] = max_pool2d<T>;
    backend->kernels[TREK_OP_adaptive_max_pool2d][D] = max_pool2d<T>;
    backend->kernels[TREK_OP_max_pool2d_backward][D] = max_pool2d_backward;
}

template <trek_dtype D> static void enter_average(trek_backend *backend)
{
    typedef typename trek_element<D>::type T;
    enter<D>(backend);
    backend->kernels[TREK_OP_avg_pool2d][D] = average<T>;
    backend->kernels[TREK_OP_avg_pool2d_backward][D] = average<T>;
    backend->kernels[TREK_OP_adaptive_avg_pool2d][D] = average<T>;
    backend->kernels[TREK_OP_adaptive_avg_pool2d_backward][D] = average<T>;
}

extern "C" void trek_cuda_register_pool2d(trek_backend *backend)
{
    enter_average<TREK_F32>(backend);
    enter_average<TREK_F64>(backend);
    enter_average<TREK_BF16>(backend);
    enter_average<TREK_F16>(backend);
    enter<TREK_I64>(backend);
    enter<TREK_I32>(backend);
    enter<TREK_U8>(backend);
}
