/* SPDX-License-Identifier: Apache-2.0 */
/* Softmax, its logarithm, and their gradients. Contiguous rows stay in registers; very long ones and other strides
 * are read twice, with the maximum and the sum computed in one pass (Milakov and Gimelshein 2018). */
#include "tensor/cuda/lines.cuh"
#include "tensor/cuda/rows.cuh"

#define FORWARD_THREADS 512
#define BACKWARD_THREADS 256

template <typename T, int V>
static __global__ void __launch_bounds__(FORWARD_THREADS) forward_rows(T *out, const T *in, int64_t rows, int n, int log_width,
                                                                       bool log)
{
    typedef typename trek_wide<T>::type W;
    TREK_SHARED(W, shared, 32);
    trek_team team = trek_team_here(log_width, rows);
    trek_row<T, V, trek_row_sizes<T>::values> x;
    x.load(in + team.row * n, n, team.thread, team.width, (W)-INFINITY);
    W top = x.v[0] == x.v[0] ? x.v[0] : (W)-INFINITY, sum = 0;
#pragma unroll
    for (int i = 1; i < trek_row_sizes<T>::values; i++)
        top = x.v[i] > top ? x.v[i] : top;
    top = trek_team_max(top, team.width, shared);
    if (log) {
#pragma unroll
        for (int i = 0; i < trek_row_sizes<T>::values; i++)
            sum += trek_exp(x.v[i] - top);
    } else {
#pragma unroll
        for (int i = 0; i < trek_row_sizes<T>::values; i++)
            sum += x.v[i] = trek_exp(x.v[i] - top);
    }
    sum = trek_team_sum(sum, team.width, shared);
    const W factor = 1 / sum, logarithm = log ? trek_log(sum) : 0;
#pragma unroll
    for (int i = 0; i < trek_row_sizes<T>::values; i++)
        x.v[i] = log ? x.v[i] - top - logarithm : x.v[i] * factor;
    if (team.inside)
        x.store(out + team.row * n, n, team.thread, team.width);
}

/* softmax: y (g - sum of g y); its logarithm: g - e^y (sum of g) */
template <typename T, int V>
static __global__ void __launch_bounds__(BACKWARD_THREADS) backward_rows(T *out, const T *grad, const T *y, int64_t rows, int n,
                                                                         int log_width,
                                                                  bool log)
{
    typedef typename trek_wide<T>::type W;
    TREK_SHARED(W, shared, 32);
    trek_team team = trek_team_here(log_width, rows);
    trek_row<T, V, trek_row_sizes<T>::values> g, p;
    g.load(grad + team.row * n, n, team.thread, team.width, (W)0);
    p.load(y + team.row * n, n, team.thread, team.width, (W)0);
    W sum = 0;
#pragma unroll
    for (int i = 0; i < trek_row_sizes<T>::values; i++)
        sum = log ? sum + g.v[i] : trek_fma(g.v[i], p.v[i], sum);
    sum = trek_team_sum(sum, team.width, shared);
#pragma unroll
    for (int i = 0; i < trek_row_sizes<T>::values; i++)
        g.v[i] = log ? g.v[i] - trek_exp(p.v[i]) * sum : p.v[i] * (g.v[i] - sum);
    if (team.inside)
        g.store(out + team.row * n, n, team.thread, team.width);
}

/* --- any strides, any length ------------------------------------------------------------- */

/* The largest number so far, and the sum of e^(x - top); NaN is in the sum. */
template <typename W> struct softmax_sums {
    W top, sum;
};
template <typename W> struct softmax_join {
    __device__ __forceinline__ void operator()(softmax_sums<W> &a, const softmax_sums<W> &b) const
    {
        if (b.top > a.top) {
            a.sum = a.sum * trek_exp(a.top - b.top) + b.sum;
            a.top = b.top;
        } else {
            a.sum += b.top == a.top ? b.sum : b.sum * trek_exp(b.top - a.top);
        }
    }
};
template <typename W> struct add_join {
    __device__ __forceinline__ void operator()(W &a, const W &b) const { a += b; }
};

template <typename T>
static __global__ void __launch_bounds__(TREK_BLOCK_THREADS) forward_lines(T *out, const T *in, trek_lines l, bool log)
{
    typedef typename trek_wide<T>::type W;
    TREK_SHARED(softmax_sums<W>, shared, TREK_BLOCK_THREADS);
    const int64_t index = ((int64_t)blockIdx.x << l.layout.log_c) + trek_block_c(l.layout), step = (int64_t)1 << l.layout.log_r;
    const bool inside = index < l.lines;
    const trek_line line = trek_line_at(l, inside ? index : 0);
    softmax_sums<W> s;
    s.top = -INFINITY;
    s.sum = 0;
    for (int64_t i = trek_block_r(l.layout); inside && i < l.n; i += step) {
        W x = trek_get(in[line.at[1] + i * l.step[1]]);
        softmax_sums<W> b;
        b.top = x == x ? x : (W)-INFINITY;
        b.sum = x == (W)-INFINITY ? (W)0 : x == x ? (W)1 : x;
        softmax_join<W>()(s, b);
    }
    trek_block_reduce(s, l.layout, shared, softmax_join<W>());
    s = trek_block_spread(s, l.layout, shared);
    const W factor = 1 / s.sum, logarithm = log ? trek_log(s.sum) : 0;
    for (int64_t i = trek_block_r(l.layout); inside && i < l.n; i += step) {
        W d = trek_get(in[line.at[1] + i * l.step[1]]) - s.top;
        out[line.at[0] + i * l.step[0]] = trek_store<T>::of(log ? d - logarithm : trek_exp(d) * factor);
    }
}

template <typename T>
static __global__ void __launch_bounds__(TREK_BLOCK_THREADS) backward_lines(T *out, const T *grad, const T *y, trek_lines l,
                                                                            bool log)
{
    typedef typename trek_wide<T>::type W;
    TREK_SHARED(W, shared, TREK_BLOCK_THREADS);
    const int64_t index = ((int64_t)blockIdx.x << l.layout.log_c) + trek_block_c(l.layout), step = (int64_t)1 << l.layout.log_r;
    const bool inside = index < l.lines;
    const trek_line line = trek_line_at(l, inside ? index : 0);
    W sum = 0;
    for (int64_t i = trek_block_r(l.layout); inside && i < l.n; i += step) {
        W g = trek_get(grad[line.at[1] + i * l.step[1]]);
        sum = log ? sum + g : trek_fma(g, trek_get(y[line.at[2] + i * l.step[2]]), sum);
    }
    trek_block_reduce(sum, l.layout, shared, add_join<W>());
    sum = trek_block_spread(sum, l.layout, shared);
    for (int64_t i = trek_block_r(l.layout); inside && i < l.n; i += step) {
        W g = trek_get(grad[line.at[1] + i * l.step[1]]), p = trek_get(y[line.at[2] + i * l.step[2]]);
        out[line.at[0] + i * l.step[0]] = trek_store<T>::of(log ? g - trek_exp(p) * sum : p * (g - sum));
    }
}

/* --- calls ---------------------------------------------------------------------------------- */

/* Plans rows of the last dimension in contiguous operands that fit into registers. */
static trek_row_plan plan_rows(const trek_tensor *const *tensors, int operands, int dim, int size, int values, int most)
{
    const trek_tensor *out = tensors[0];
    bool aligned = true, contiguous = dim == out->ndim - 1;
    for (int k = 0; k < operands; k++) {
        contiguous = contiguous && tensors[k]->contiguous;
        aligned = aligned && (uintptr_t)tensors[k]->data % 16 == 0;
    }
    if (!contiguous)
        return {};
    return trek_plan_rows(out->numel / out->sizes[dim], out->sizes[dim], size, values, most, aligned);
}

template <typename T, bool log> static trek_status forward(const trek_op_call *call)
{
    const trek_tensor *tensors[2] = { call->outputs[0], call->inputs[0] };
    const trek_tensor *y = tensors[0];
    int dim = (int)call->attrs.i[0];
    trek_cuda_queue *queue = trek_queue_of(call);
    if (!queue)
        return TREK_ERR_DEVICE;
    if (y->numel == 0)
        return TREK_OK;
    T *out = (T *)(void *)y->data;
    const T *in = (const T *)(const void *)tensors[1]->data;
    trek_row_plan p = plan_rows(tensors, 2, dim, sizeof(T), trek_row_sizes<T>::values, FORWARD_THREADS);
    if (!p.fits) {
        trek_lines l = trek_lines_of(tensors, 2, dim);
        return trek_launch(call, queue, trek_lines_grid(l), forward_lines<T>, out, in, l, log);
    }
    return trek_launch(call, queue, trek_blocks(dim3(p.blocks), dim3(p.threads)),
                       p.vector ? forward_rows<T, trek_row_sizes<T>::vector> : forward_rows<T, 1>, out, in,
                       y->numel / y->sizes[dim], (int)y->sizes[dim], p.log_width, log);
}

template <typename T, bool log> static trek_status backward(const trek_op_call *call)
{
    const trek_tensor *tensors[3] = { call->outputs[0], call->inputs[0], call->inputs[1] };
    const trek_tensor *dx = tensors[0];
    int dim = (int)call->attrs.i[0];
    trek_cuda_queue *queue = trek_queue_of(call);
    if (!queue)
        return TREK_ERR_DEVICE;
    if (dx->numel == 0)
        return TREK_OK;
    T *out = (T *)(void *)dx->data;
    const T *grad = (const T *)(const void *)tensors[1]->data, *y = (const T *)(const void *)tensors[2]->data;
    trek_row_plan p = plan_rows(tensors, 3, dim, sizeof(T), trek_row_sizes<T>::values, BACKWARD_THREADS);
    if (!p.fits) {
        trek_lines l = trek_lines_of(tensors, 3, dim);
        return trek_launch(call, queue, trek_lines_grid(l), backward_lines<T>, out, grad, y, l, log);
    }
    return trek_launch(call, queue, trek_blocks(dim3(p.blocks), dim3(p.threads)),
                       p.vector ? backward_rows<T, trek_row_sizes<T>::vector> : backward_rows<T, 1>, out, grad, y,
                       dx->numel / dx->sizes[dim], (int)dx->sizes[dim], p.log_width, log);
}

template <typename T> static void enter(trek_backend *b, trek_dtype dtype)
{
    b->kernels[TREK_OP_softmax][dtype] = forward<T, false>;
    b->kernels[TREK_OP_log_softmax][dtype] = forward<T, true>;
    b->kernels[TREK_OP_softmax_backward][dtype] = backward<T, false>;
    b->kernels[TREK_OP_log_softmax_backward][dtype] = backward<T, true>;
}

extern "C" void trek_cuda_register_softmax(trek_backend *b)
{
    enter<float>(b, TREK_F32);
    enter<double>(b, TREK_F64);
    enter<trek_bf16>(b, TREK_BF16);
    enter<trek_f16>(b, TREK_F16);
}
