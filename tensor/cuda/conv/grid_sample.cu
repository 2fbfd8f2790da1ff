/* SPDX-License-Identifier: Apache-2.0 */
/* grid_sample and its gradients. One thread processes a position of the grid, in all channels. For x's gradient a
 * block has a channel and processes the positions in order: no two threads write to an element, and sums always have
 * the same order. */
#include "tensor/cuda/dense.cuh"
#include "tensor/cuda/elementwise/elementwise.cuh"
#include "tensor/resample.h"

namespace {

#define CHUNK 128 /* positions whose gradients a block distributes at once */

#define PLACE_REAL float
#define PLACE(name) name##_f32
#include "tensor/grid_place.h"
#undef PLACE_REAL
#undef PLACE
#define PLACE_REAL double
#define PLACE(name) name##_f64
#include "tensor/grid_place.h"
#undef PLACE_REAL
#undef PLACE

template <typename W> struct place;
template <> struct place<float> {
    __device__ __forceinline__ static float of(float at, float size, bool align) { return place_of_f32(at, size, align); }
    __device__ __forceinline__ static float padded(float at, float size, int padding, bool align, float *slope)
    {
        return place_padded_f32(at, size, padding, align, slope);
    }
    __device__ __forceinline__ static int32_t inside(float from, int tap,
                                                     int32_t size) { return place_inside_f32(from, tap, size);
                                                                                        }
    __device__ __forceinline__ static float cubic(float past, int tap, float *slope) { return place_cubic_f32(past, tap, slope); }
    __device__ __forceinline__ static float below(float x) { return place_floor_f32(x); }
    __device__ __forceinline__ static float nearest(float x) { return place_round_f32(x); }
};
template <> struct place<double> {
    __device__ __forceinline__ static double of(double at, double size, bool align) { return place_of_f64(at, size, align); }
    __device__ __forceinline__ static double padded(double at, double size, int padding, bool align, double *slope)
    {
        return place_padded_f64(at, size, padding, align, slope);
    }
    __device__ __forceinline__ static int32_t inside(double from, int tap,
                                                     double size) { return place_inside_f64(from, tap, size); }
    __device__ __forceinline__ static double cubic(double past, int tap,
                                                   double *slope) { return place_cubic_f64(past, tap, slope); }
    __device__ __forceinline__ static double below(double x) { return place_floor_f64(x); }
    __device__ __forceinline__ static double nearest(double x) { return place_round_f64(x); }
};

/* Everything is dense. sizes: of a channel, in the order of the grid's coordinates: width first. */
struct sampling {
    int64_t samples, channels, points, plane, sizes[3];
    int dims, mode, padding, each; /* entries of a position along a dimension */
    bool align;
};

/* The elements that a position uses along the dimensions. */
template <typename W> struct taps_of {
    int32_t index[3][4];
    W weight[3][4], slope[3][4];

    __device__ __forceinline__ taps_of(const sampling &s, const W *numbers)
    {
        for (int d = 0; d < s.dims; d++) {
            W size = (W)s.sizes[d], scale = (s.align ? size - 1 : size) / 2, at = place<W>::of(numbers[d], size, s.align);
            if (s.mode == TREK_GRID_MODE_BICUBIC)
                cubic(s, d, at, size, scale);
            else
                plain(s, d, at, size, scale);
        }
    }
    __device__ __forceinline__ void plain(const sampling &s, int d, W at, W size, W scale)
    {
        at = place<W>::padded(at, size, s.padding, s.align, &scale);
        bool nearest = s.mode == TREK_GRID_MODE_NEAREST;
        W from = nearest ? place<W>::nearest(at) : place<W>::below(at), past = nearest ? 0 : at - from;
        for (int k = 0; k < s.each; k++) {
            index[d][k] = place<W>::inside(from, k, (int32_t)s.sizes[d]);
            weight[d][k] = k == 0 ? 1 - past : past;
            slope[d][k] = nearest ? 0 : k == 0 ? -scale : scale;
        }
    }
    __device__ __forceinline__ void cubic(const sampling &s, int d, W at, W size, W scale)
    {
        W from = place<W>::below(at);
        for (int k = 0; k < 4; k++) {
            W none = 0, rise = 0;
            weight[d][k] = place<W>::cubic(at - from, k, &rise);
            slope[d][k] = rise * scale;
            W padded = place<W>::padded(from + (W)(k - 1), size, s.padding, s.align, &none);
            index[d][k] = place<W>::inside(place<W>::below(padded + (W)0.5), 0, (int32_t)s.sizes[d]);
        }
    }
    /* Entry t of all dimensions together: its element of a channel, or -1. without: the dimension whose slope
     * replaces its weight. */
    __device__ __forceinline__ int64_t entry(const sampling &s, int t, int without, W *product) const
    {
        int64_t at = 0, step = 1;
        *product = 1;
        for (int d = 0; d < s.dims; d++) {
            int k = t % s.each;
            t /= s.each;
            if (index[d][k] < 0)
                return -1;
            at += index[d][k] * step;
            step *= s.sizes[d];
            *product *= d == without ? slope[d][k] : weight[d][k];
        }
        return at;
    }
};

__device__ __forceinline__ int entries(const sampling &s) { return s.each * s.each * (s.dims == 3 ? s.each : 1); }

template <typename T, typename W> __device__ __forceinline__ taps_of<W> read_place(const sampling &s, const T *grid, int64_t at)
{
    W numbers[3] = { 0, 0, 0 };
    for (int d = 0; d < s.dims; d++)
        numbers[d] = trek_get(grid[at * s.dims + d]);
    return taps_of<W>(s, numbers);
}

template <typename T> __global__ void sample_kernel(sampling s, const T *x, const T *grid, T *y)
{
    typedef typename trek_wide<T>::type W;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < s.samples * s.points;
         i += (int64_t)gridDim.x * blockDim.x) {
        int64_t sample = i / s.points, point = i % s.points;
        taps_of<W> taps = read_place<T, W>(s, grid, i);
        for (int64_t c = sample * s.channels; c < (sample + 1) * s.channels; c++) {
            W sum = 0, weight;
            for (int t = 0; t < entries(s); t++) {
                int64_t at = taps.entry(s, t, -1, &weight);
                if (at >= 0)
                    sum += weight * trek_get(x[c * s.plane + at]);
            }
            y[c * s.points + point] = trek_store<T>::of(sum);
        }
    }
}

template <typename T> __global__ void grid_grad_kernel(sampling s, const T *dy, const T *x, const T *grid, T *dgrid)
{
    typedef typename trek_wide<T>::type W;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < s.samples * s.points;
         i += (int64_t)gridDim.x * blockDim.x) {
        int64_t sample = i / s.points, point = i % s.points;
        taps_of<W> taps = read_place<T, W>(s, grid, i);
        W sums[3] = { 0, 0, 0 };
        for (int t = 0; t < entries(s); t++) {
            W weight, product = 0;
            int64_t at = taps.entry(s, t, -1, &weight);
            if (at < 0)
                continue;
            for (int64_t c = sample * s.channels; c < (sample + 1) * s.channels; c++)
                product += trek_get(x[c * s.plane + at]) * trek_get(dy[c * s.points + point]);
            for (int d = 0; d < s.dims; d++) {
                taps.entry(s, t, d, &weight);
                sums[d] += weight * product;
            }
        }
        for (int d = 0; d < s.dims; d++)
            dgrid[i * s.dims + d] = trek_store<T>::of(sums[d]);
    }
}

/* Of the positions of a chunk that use one element, the first adds for all. */
template <typename T, typename W> __global__ void input_grad_kernel(sampling s, const T *dy, const T *grid, W *dx)
{
    TREK_SHARED(int64_t, chosen, CHUNK);
    TREK_SHARED(W, grads, CHUNK);
    for (int64_t plane = blockIdx.x; plane < s.samples * s.channels; plane += gridDim.x) {
        int64_t sample = plane / s.channels;
        W *to = dx + plane * s.plane;
        for (int64_t i = threadIdx.x; i < s.plane; i += blockDim.x)
            to[i] = 0;
        for (int64_t first = 0; first < s.points; first += CHUNK) {
            int64_t point = first + threadIdx.x;
            bool there = point < s.points;
            taps_of<W> taps = read_place<T, W>(s, grid, sample * s.points + (there ? point : 0));
            W grad = there ? (W)trek_get(dy[plane * s.points + point]) : (W)0;
            for (int t = 0; t < entries(s); t++) {
                W weight = 0;
                int64_t at = there ? taps.entry(s, t, -1, &weight) : -1;
                chosen[threadIdx.x] = at;
                grads[threadIdx.x] = at >= 0 ? weight * grad : (W)0;
                __syncthreads();
                bool leads = at >= 0;
                for (int k = 0; leads && k < (int)threadIdx.x; k++)
                    leads = chosen[k] != at;
                if (leads) {
                    W sum = to[at];
                    for (int k = (int)threadIdx.x; k < CHUNK; k++)
                        if (chosen[k] == at)
                            sum += grads[k];
                    to[at] = sum;
                }
                __syncthreads();
            }
        }
    }
}

template <typename T, typename W> __global__ void round_kernel(const W *from, T *to, int64_t n)
{
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (int64_t)gridDim.x * blockDim.x)
        to[i] = trek_store<T>::of(from[i]);
}

static sampling sampling_of(const trek_op_call *call, const trek_tensor *x, const trek_tensor *grid)
{
    sampling s = {};
    s.samples = x->sizes[0], s.channels = x->sizes[1], s.points = 1, s.plane = 1;
    s.dims = x->ndim - 2, s.mode = (int)call->attrs.i[0], s.padding = (int)call->attrs.i[1], s.align = call->attrs.i[2] != 0;
    s.each = s.mode == TREK_GRID_MODE_NEAREST ? 1 : s.mode == TREK_GRID_MODE_BILINEAR ? 2 : 4;
    for (int d = 0; d < s.dims; d++) {
        s.sizes[d] = x->sizes[x->ndim - 1 - d];
        s.plane *= s.sizes[d];
        s.points *= grid->sizes[1 + d];
    }
    return s;
}

template <typename T> trek_status run_sample(const trek_op_call *call)
{
    trek_tensor *y = call->outputs[0];
    trek_cuda_queue *queue = trek_queue_of(call);
    if (!queue)
        return trek_error_status();
    if (y->numel == 0)
        return TREK_OK;
    sampling s = sampling_of(call, call->inputs[0], call->inputs[1]);
    trek_dense x, grid, to;
    TRY(x.read(call, queue, call->inputs[0]));
    TRY(grid.read(call, queue, call->inputs[1]));
    TRY(to.write(queue, y));
    TRY(trek_launch(call, queue, trek_loop(s.samples * s.points), sample_kernel<T>, s, (const T *)x.data, (const T *)grid.data,
                    to.as<T>()));
    return to.finish(call, y);
}

/* Sums of 16 bits are computed in f32. */
template <typename T> trek_status input_grad(const trek_op_call *call, trek_cuda_queue *queue, const sampling &s, const T *dy,
                                                    const T *grid)
{
    typedef typename trek_wide<T>::type W;
    trek_tensor *dx = call->outputs[0];
    int64_t planes = s.samples * s.channels;
    trek_held sums;
    trek_dense to;
    TRY(to.write(queue, dx));
    W *wide = (W *)to.data;
    if (sizeof(T) != sizeof(W)) {
        TRY(sums.take(queue, (size_t)dx->numel * sizeof(W)));
        wide = sums.as<W>();
    }
    trek_grid blocks = trek_blocks(dim3((unsigned)(planes < 65536 ? planes : 65536)), dim3(CHUNK));
    TRY(trek_launch(call, queue, blocks, input_grad_kernel<T, W>, s, dy, grid, wide));
    if (sizeof(T) != sizeof(W))
        TRY(trek_launch(call, queue, trek_loop(dx->numel), round_kernel<T, W>, (const W *)wide, to.as<T>(), dx->numel));
    return to.finish(call, dx);
}

template <typename T> trek_status run_backward(const trek_op_call *call)
{
    trek_cuda_queue *queue = trek_queue_of(call);
    if (!queue)
        return trek_error_status();
    sampling s = sampling_of(call, call->inputs[1], call->inputs[2]);
    trek_tensor *dgrid = call->outputs[1];
    trek_dense dy, x, grid, to;
    TRY(dy.read(call, queue, call->inputs[0]));
    TRY(grid.read(call, queue, call->inputs[2]));
    if (call->outputs[0]->numel > 0)
        TRY(input_grad<T>(call, queue, s, (const T *)dy.data, (const T *)grid.data));
    if (dgrid->numel == 0)
        return TREK_OK;
    TRY(x.read(call, queue, call->inputs[1]));
    TRY(to.write(queue, dgrid));
    TRY(trek_launch(call, queue, trek_loop(s.samples * s.points), grid_grad_kernel<T>, s, (const T *)dy.data, (const T *)x.data,
                    (const T *)grid.data, to.as<T>()));
    return to.finish(call, dgrid);
}

} // namespace

extern "C" void trek_cuda_register_grid_sample(trek_backend *b)
{
    TREK_ENTER_FLOATS(b, TREK_OP_grid_sample, run_sample)
    TREK_ENTER_FLOATS(b, TREK_OP_grid_sample_backward, run_backward)
}
