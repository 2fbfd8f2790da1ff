/* SPDX-License-Identifier: Apache-2.0 */
/* Reductions over any set of dimensions with any strides. In the one kernel, a block's threads are assigned along the
 * dimension where memory is nearest, whether it is reduced or kept. Long reductions are split over blocks, whose partial
 * results a second kernel joins. The order of everything follows from shape and strides alone.
 *
 * An Op (a value, copied to the device) has
 *   element, partial       what is loaded; what is gathered (trivial, a multiple of 4 bytes)
 *   load<V>(offset)        V neighbours as trek_vector<element, V>; offset in units of V
 *   aligned(V)             on the host: whether V may be loaded at once
 *   most                   the V of its table's rows; with 1 there is no other kernel
 *   start(output)          a partial of nothing
 *   step(a, x, place)      adds an element; place is its index among the elements of its output
 *   join(a, b)             adds partial b to a
 *   store(offset, a)       finishes and writes */
#ifndef TREK_TENSOR_CUDA_REDUCE_REDUCE_CUH
#define TREK_TENSOR_CUDA_REDUCE_REDUCE_CUH

#include <type_traits>

#include "tensor/cuda/dense.cuh"

struct trek_reduce_dim {
    int64_t size, in, out; /* strides; in: in units of what is loaded at once */
    trek_quotient by;
};

struct trek_reduce_walk {
    trek_reduce_dim kept[TREK_MAX_DIMS], reduced[TREK_MAX_DIMS];
    int n_kept, n_reduced;
    int64_t outputs, count;  /* in units of what is loaded at once, along the nearest dimension */
    int64_t each, out_step;  /* of a split; between the outputs of one load */
    int splits;
    bool wide;               /* numbers need 64 bits */
    trek_block_layout layout;
};

__device__ __forceinline__ void trek_reduce_locate(const trek_reduce_dim *dims, int n, bool wide, int64_t index, int64_t *in,
                                                   int64_t *out)
{
#pragma unroll 1 /* most have one or two dimensions, and each kernel contains this six times */
    for (int d = n - 1; d > 0; d--) {
        int64_t next = wide ? index / dims[d].size : (int64_t)dims[d].by((uint32_t)index);
        int64_t at = index - next * dims[d].size;
        *in += at * dims[d].in;
        *out += at * dims[d].out;
        index = next;
    }
    if (n > 0) {
        *in += index * dims[0].in;
        *out += index * dims[0].out;
    }
}

__device__ __forceinline__ int64_t trek_reduce_offset(const trek_reduce_walk &w, int64_t index)
{
    int64_t in = 0, out = 0;
    trek_reduce_locate(w.reduced, w.n_reduced, w.wide, index, &in, &out);
    return in;
}

/* Gathers elements begin, begin + step, ... below end of one output (or of V neighbouring ones). */
template <typename Op, int V>
__device__ __forceinline__ void trek_reduce_gather(const Op &op, const trek_reduce_walk &w, typename Op::partial *a, int64_t base,
                                                   int64_t begin, int64_t end, int64_t step)
{
    typedef trek_vector<typename Op::element, V> piece;
    const bool along = w.layout.along;
    int64_t i = begin;
#pragma unroll 1
    for (; i + 3 * step < end; i += 4 * step) {
        piece x[4];
#pragma unroll
        for (int u = 0; u < 4; u++)
            x[u] = op.template load<V>(base + trek_reduce_offset(w, i + u * step));
#pragma unroll
        for (int u = 0; u < 4; u++)
#pragma unroll
            for (int k = 0; k < V; k++)
                op.step(a[k], x[u].x[k], along ? (i + u * step) * V + k : i + u * step);
    }
#pragma unroll 1
    for (; i < end; i += step) {
        piece x = op.template load<V>(base + trek_reduce_offset(w, i));
#pragma unroll
        for (int k = 0; k < V; k++)
            op.step(a[k], x.x[k], along ? i * V + k : i);
    }
}

template <typename Op> struct trek_reduce_join {
    const Op *op;
    __device__ __forceinline__ void operator()(typename Op::partial &a, const typename Op::partial &b) const { op->join(a, b); }
};

template <typename Op, int V>
__global__ void __launch_bounds__(TREK_BLOCK_THREADS) trek_reduce_kernel(Op op, trek_reduce_walk w,
                                                                         typename Op::partial *partials)
{
    typedef typename Op::partial A;
    TREK_SHARED(A, shared, TREK_BLOCK_THREADS);
    const trek_block_layout layout = w.layout;
    const int r = trek_block_r(layout);
    const int64_t o = ((int64_t)blockIdx.x << layout.log_c) + trek_block_c(layout);
    const bool inside = o < w.outputs;
    const trek_reduce_join<Op> join = { &op };
    int64_t in = 0, out = 0;
    A a[V];
    for (int k = 0; k < V; k++)
        a[k] = op.start(layout.along ? o : o * V + k, inside);
    if (inside) {
        int64_t begin = (int64_t)blockIdx.y * w.each, end = begin + w.each < w.count ? begin + w.each : w.count;
        trek_reduce_locate(w.kept, w.n_kept, w.wide, o, &in, &out);
        trek_reduce_gather<Op, V>(op, w, a, in, begin + r, end, (int64_t)1 << layout.log_r);
    }
    if (layout.along)
#pragma unroll
        for (int k = 1; k < V; k++)
            op.join(a[0], a[k]);
#pragma unroll
    for (int k = 0; k < V; k++) {
        if (k > 0 && layout.along)
            break;
        trek_block_reduce(a[k], layout, shared, join);
        if (r != 0 || !inside)
            continue;
        if (w.splits == 1)
            op.store(out + k * w.out_step, a[k]);
        else
            partials[((layout.along ? o : o * V + k)) * w.splits + blockIdx.y] = a[k];
    }
}

/* A warp joins the partial results of one output; v neighbouring outputs share one position among the kept ones. */
template <typename Op>
__global__ void __launch_bounds__(TREK_BLOCK_THREADS) trek_reduce_splits(Op op, trek_reduce_walk w,
                                                                         const typename Op::partial *partials,
                                                                          int v)
{
    typedef typename Op::partial A;
    int64_t o = (int64_t)blockIdx.x * (TREK_BLOCK_THREADS / 32) + (threadIdx.x >> 5);
    int lane = (int)threadIdx.x & 31;
    bool inside = o < w.outputs * v;
    A a = op.start(o, inside);
    if (inside)
        for (int k = lane; k < w.splits; k += 32)
            op.join(a, partials[o * w.splits + k]);
    for (int lanes = 16; lanes > 0; lanes /= 2)
        op.join(a, trek_shuffle_down(a, lanes));
    if (lane != 0 || !inside)
        return;
    int64_t in = 0, out = 0;
    trek_reduce_locate(w.kept, w.n_kept, w.wide, o / v, &in, &out);
    op.store(out + o % v * w.out_step, a);
}

/* --- the plan (reduce_plan.cu) ---------------------------------------------------------------- */

/* Collects the dimensions of `in`, where those in the mask are reduced. out_strides are those of the dimensions of
 * `in` that are kept. With `ordered`, positions are counted in row-major order of the reduced dimensions. */
void trek_reduce_dims(trek_reduce_walk *w, const trek_tensor *in, uint64_t mask, const int64_t *out_strides, bool ordered);
/* Returns whether v neighbours can be loaded at once, judging by the strides. */
bool trek_reduce_can_load(const trek_reduce_walk *w, int v);
/* Assigns threads and blocks for loads of v. */
void trek_reduce_lay(trek_reduce_walk *w, int v);
/* Computes out_strides for a reduction's output. */
void trek_reduce_out_strides(const trek_op_call *call, int64_t *out_strides);

template <typename Op, int V>
trek_status trek_reduce_launch(const trek_op_call *call, trek_cuda_queue *queue, const Op &op, trek_reduce_walk *w)
{
    typedef typename Op::partial A;
    trek_reduce_lay(w, V);
    int v = w->layout.along ? 1 : V;
    trek_cuda_scratch scratch = { NULL, NULL };
    if (w->splits > 1) {
        trek_status status = trek_cuda_scratch_take(queue, (size_t)(w->outputs * v * w->splits) * sizeof(A), &scratch);
        if (status != TREK_OK)
            return status;
    }
    dim3 blocks((unsigned)((w->outputs - 1) / ((int64_t)1 << w->layout.log_c) + 1), (unsigned)w->splits);
    trek_status status = trek_launch(call, queue, trek_blocks(blocks, dim3(1u << (w->layout.log_r + w->layout.log_c))),
                                     trek_reduce_kernel<Op, V>, op, *w, (A *)scratch.data);
    if (status == TREK_OK && w->splits > 1)
        status = trek_launch(call, queue, trek_blocks(dim3((unsigned)((w->outputs * v - 1) / 8 + 1)), dim3(TREK_BLOCK_THREADS)),
                             trek_reduce_splits<Op>, op, *w, (const A *)scratch.data, v);
    trek_cuda_scratch_give(queue, &scratch);
    return status;
}

/* Runs an op over dimensions that trek_reduce_dims has collected; outputs > 0. */
template <typename Op, int V>
trek_status trek_reduce_run(const trek_op_call *call, trek_cuda_queue *queue, const Op &op, trek_reduce_walk *w)
{
    if (V > 1 && trek_reduce_can_load(w, V) && op.aligned(V))
        return trek_reduce_launch<Op, V>(call, queue, op, w);
    return trek_reduce_launch<Op, 1>(call, queue, op, w);
}

/* Runs a row of the op table, from input 0 to output 0. */
template <typename Op>
trek_status trek_reduce_call(const trek_op_call *call, const Op &op, bool ordered)
{
    if (call->outputs[0]->numel == 0)
        return TREK_OK;
    trek_cuda_queue *queue = trek_queue_of(call);
    if (!queue)
        return TREK_ERR_DEVICE;
    trek_reduce_walk w;
    int64_t out_strides[TREK_MAX_DIMS];
    trek_reduce_out_strides(call, out_strides);
    trek_reduce_dims(&w, call->inputs[0], (uint64_t)call->attrs.i[0], out_strides, ordered);
    return trek_reduce_run<Op, Op::most>(call, queue, op, &w);
}

/* Loads from one array. */
template <typename T> struct trek_reduce_input {
    typedef T element;
    static constexpr int most = sizeof(T) == 8 ? 2 : 4;
    const T *x;
    template <int V> __device__ __forceinline__ trek_vector<T, V> load(int64_t offset) const
    {
        return reinterpret_cast<const trek_vector<T, V> *>(x)[offset];
    }
    bool aligned(int v) const { return (uintptr_t)x % (sizeof(T) * (size_t)v) == 0; }
};

/* From an array whose dtype is determined at run time to another, for rare cases: floats in W, or whole numbers and
 * bool in i64. */
template <typename W> struct trek_reduce_any {
    typedef W element;
    static constexpr int most = 1;
    const void *x;
    void *out;
    int dtype, out_dtype;
    template <int> __device__ __forceinline__ trek_vector<W, 1> load(int64_t offset) const
    {
        if constexpr (std::is_integral<W>::value)
            return { { trek_load_integer(x, dtype, offset) } };
        else
            return { { trek_load_float<W>(x, dtype, offset) } };
    }
    bool aligned(int) const { return false; }
    __device__ __forceinline__ void put(int64_t at, W value) const
    {
        if constexpr (std::is_integral<W>::value)
            trek_store_integer(out, out_dtype, at, value);
        else
            trek_store_float(out, out_dtype, at, value);
    }
};

template <typename Op> Op trek_reduce_any_of(const trek_op_call *call)
{
    Op op = {};
    op.x = call->inputs[0]->data;
    op.out = call->outputs[0]->data;
    op.dtype = call->inputs[0]->dtype;
    op.out_dtype = call->outputs[0]->dtype;
    return op;
}

/* The statistics of a set of numbers: sums of distances from the first one. This is exact enough, because few numbers
 * are gathered before sets are joined (Chan, Golub and LeVeque 1983). */
struct trek_moments {
    double n, shift, sum, squares;
    __device__ __forceinline__ void add(double x)
    {
        shift = n == 0 ? x : shift;
        double d = x - shift;
        n += 1;
        sum += d;
        squares = fma(d, d, squares);
    }
    /* shift becomes the mean, and squares the sum of squared distances from it. */
    __device__ __forceinline__ void centre()
    {
        double distance = n > 0 ? sum / n : 0;
        squares -= distance * sum;
        shift += distance;
        sum = 0;
    }
    __device__ __forceinline__ void join(trek_moments b)
    {
        if (b.n == 0)
            return;
        if (n == 0) {
            *this = b;
            return;
        }
        centre();
        b.centre();
        double total = n + b.n, d = b.shift - shift;
        squares += b.squares + d * d * (n * b.n / total);
        shift += d * (b.n / total);
        n = total;
    }
};

#endif
