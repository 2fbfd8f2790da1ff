/* SPDX-License-Identifier: Apache-2.0 */
/* Random numbers and dropout: the numbers of tensor/cpu/moves/random.c, whatever the strides. A thread computes whole
 * Philox blocks. */
#include "tensor/cuda/moves/random.cuh"

#include "tensor/cuda/elementwise/elementwise.cuh"

namespace {

/* The CPU's functions of f32, so that normal numbers are the same, too. */
__device__ __forceinline__ float trek_fma_device(float x, float y, float z) { return fmaf(x, y, z); }
__device__ __forceinline__ float trek_spread_device(float x) { return x; }
__device__ __forceinline__ float trek_choose_device(float a, float b, float yes, float no) { return a < b ? yes : no; }
__device__ __forceinline__ float trek_at_most_device(float x, float limit) { return x > limit ? limit : x; }
__device__ __forceinline__ float trek_at_least_device(float x, float limit) { return x < limit ? limit : x; }
__device__ __forceinline__ uint32_t trek_as_bits_device(float x) { return trek_bits_of_f32(x); }
__device__ __forceinline__ float trek_from_bits_device(uint32_t bits) { return trek_f32_of_bits(bits); }
__device__ __forceinline__ float trek_scale_device(float p, float whole, float) { return ldexpf(p, (int)whole); }
__device__ __forceinline__ float trek_scale_down_device(float p, float whole, float) { return ldexpf(p, (int)whole); }
#define TREK_WIDE_INLINE __device__ __forceinline__
#define M(name) trek_##name##_device
#define F float
#define BITS uint32_t
#define SIGNED int32_t
#include "tensor/function_template.h"
#undef M
#undef F
#undef BITS
#undef SIGNED

/* --- what is drawn: `size` values from the four numbers of a block, which are in R -------- */

__device__ __forceinline__ double unit_f64(uint32_t high, uint32_t low)
{
    return (double)(((uint64_t)high << 32 | low) >> 11) * 0x1p-53;
}

/* bits: as many as the result's dtype has, so that rounding cannot give 1. */
struct uniform_f32 {
    static constexpr int size = 4;
    float low, high, span;
    int bits;
    __device__ __forceinline__ void operator()(const uint32_t w[4], float to[4]) const
    {
        const float unit = 1.0f / (float)(1 << bits);
#pragma unroll
        for (int k = 0; k < 4; k++) {
            float x = low + span * ((float)(int32_t)(w[k] >> (32 - bits)) * unit);
            to[k] = x < high ? x : low; /* nor may it give another open end */
        }
    }
};
struct uniform_f64 {
    static constexpr int size = 2;
    double low, high;
    __device__ __forceinline__ void operator()(const uint32_t w[4], double to[2]) const
    {
#pragma unroll
        for (int k = 0; k < 2; k++) {
            double x = low + (high - low) * unit_f64(w[2 * k], w[2 * k + 1]);
            to[k] = x < high ? x : low;
        }
    }
};

/* Box-Muller: the even position gets the cosine, the odd one the sine. */
struct normal_f32 {
    static constexpr int size = 4;
    float mean, deviation;
    __device__ __forceinline__ void operator()(const uint32_t w[4], float to[4]) const
    {
#pragma unroll
        for (int k = 0; k < 4; k += 2) {
            float u = (float)((int32_t)(w[k] >> 8) + 1) * 0x1p-24f; /* (0, 1] */
            float quarters = (float)(int32_t)(w[k + 1] >> 8) * 0x1p-22f;
            float radius = deviation * sqrtf(-2.0f * trek_log_device(u));
            /* whole quarters are exact; the rest is within an eighth of a turn */
            float shifted = quarters + 0x1.8p23f;
            int32_t quarter = (int32_t)(trek_bits_of_f32(shifted) - 0x4b400000u);
            float angle = (quarters - (shifted - 0x1.8p23f)) * 0x1.921fb6p0f;
            to[k] = mean + radius * trek_sin_quarter_device(quarter + 1, angle);
            to[k + 1] = mean + radius * trek_sin_quarter_device(quarter, angle);
        }
    }
};
struct normal_f64 {
    static constexpr int size = 2;
    double mean, deviation;
    __device__ __forceinline__ void operator()(const uint32_t w[4], double to[2]) const
    {
        double u = 1.0 - unit_f64(w[0], w[1]); /* (0, 1] */
        double radius = deviation * sqrt(-2.0 * log(u)), angle = 6.283185307179586477 * unit_f64(w[2], w[3]);
        to[0] = mean + radius * cos(angle);
        to[1] = mean + radius * sin(angle);
    }
};

/* Integers in [low, low + range): 32 bits are scaled to a narrow range, 64 bits to a wide one. */
struct narrow_integers {
    static constexpr int size = 4;
    int64_t low;
    uint64_t range;
    __device__ __forceinline__ void operator()(const uint32_t w[4], int64_t to[4]) const
    {
#pragma unroll
        for (int k = 0; k < 4; k++)
            to[k] = (int64_t)((uint64_t)low + (w[k] * range >> 32));
    }
};
struct wide_integers {
    static constexpr int size = 2;
    int64_t low;
    uint64_t range;
    __device__ __forceinline__ void operator()(const uint32_t w[4], int64_t to[2]) const
    {
#pragma unroll
        for (int k = 0; k < 2; k++)
            to[k] = (int64_t)((uint64_t)low + __umul64hi((uint64_t)w[2 * k] << 32 | w[2 * k + 1], range));
    }
};

/* What is stored of a drawn value. */
template <typename T> struct drawn {
    template <typename W> __device__ __forceinline__ static T of(W x) { return trek_store<T>::of(x); }
};
template <> struct drawn<bool> {
    template <typename W> __device__ __forceinline__ static bool of(W x) { return x != 0; }
};

/* --- kernels ------------------------------------------------------------------------------- */

/* Elements by their row-major position. */
struct by_place {
    bool contiguous;
    int ndim;
    int64_t sizes[TREK_MAX_DIMS], strides[TREK_MAX_DIMS];
    __device__ __forceinline__ int64_t operator()(int64_t place) const
    {
        if (contiguous)
            return place;
        int64_t offset = 0;
        for (int d = ndim - 1; d >= 0; d--) {
            int64_t rest = place / sizes[d];
            offset += (place - rest * sizes[d]) * strides[d];
            place = rest;
        }
        return offset;
    }
};

by_place places_of(const trek_tensor *t)
{
    by_place p;
    p.contiguous = t->contiguous;
    p.ndim = t->ndim;
    for (int d = 0; d < t->ndim; d++)
        p.sizes[d] = t->sizes[d], p.strides[d] = t->strides[d];
    return p;
}

template <typename W, typename T, typename D>
__global__ void __launch_bounds__(256) fill_kernel(D distribution, trek_cuda_draw draw, T *to, by_place places, int64_t n,
                                                   bool aligned)
{
    constexpr int size = D::size;
    int64_t place = draw.at();
    int64_t block = place / size + (int64_t)blockIdx.x * blockDim.x + threadIdx.x, first = block * size - place;
    if (first >= n)
        return;
    uint32_t words[4];
    trek_cuda_philox(draw.seed, (uint64_t)block, draw.number, draw.step.now(), words);
    W values[size];
    distribution(words, values);
    if (aligned && first >= 0 && first + size <= n) {
        trek_vector<T, size> all;
#pragma unroll
        for (int k = 0; k < size; k++)
            all.x[k] = drawn<T>::of(values[k]);
        *(trek_vector<T, size> *)(to + first) = all;
        return;
    }
#pragma unroll
    for (int k = 0; k < size; k++)
        if (first + k >= 0 && first + k < n)
            to[places(first + k)] = drawn<T>::of(values[k]);
}

/* Returns how many Philox blocks n elements use, with `size` elements in each; in a capture, wherever it will be replayed. */
int64_t blocks_of(const trek_cuda_draw &draw, int64_t n, int size)
{
    bool moves = draw.step.base && draw.place % size != 0;
    return moves ? (n + size - 2) / size + 1 : (draw.place + n - 1) / size - draw.place / size + 1;
}

/* Returns whether whole blocks can be stored at once, also at a multiple of the place. */
bool whole_blocks(const trek_tensor *t, int64_t place, int size)
{
    return t->contiguous && place % size == 0 && trek_aligned(t->data, (size_t)(trek_item_size[t->dtype] * size));
}

template <typename W, typename T, typename D> trek_status fill_randomly(const trek_op_call *call, const D &distribution)
{
    trek_tensor *out = call->outputs[0];
    if (out->numel == 0)
        return TREK_OK;
    trek_cuda_queue *queue = trek_queue_of(call);
    if (!queue)
        return trek_error_status();
    trek_cuda_draw draw = trek_draw_of(call, queue);
    return trek_launch(call, queue, trek_loop(blocks_of(draw, out->numel, D::size)), fill_kernel<W, T, D>, distribution,
                       draw,
                       (T *)out->data, places_of(out), out->numel, whole_blocks(out, draw.place, D::size));
}

template <typename T> trek_status run_uniform(const trek_op_call *call)
{
    const double low = call->attrs.f[0], high = call->attrs.f[1];
    if constexpr (std::is_same<T, double>::value) {
        return fill_randomly<double, T>(call, uniform_f64{ low, high });
    } else {
        int bits = std::is_same<T, float>::value ? 24 : std::is_same<T, trek_f16>::value ? 11 : 8;
        return fill_randomly<float, T>(call, uniform_f32{ (float)low, (float)high, (float)(high - low), bits });
    }
}

template <typename T> trek_status run_normal(const trek_op_call *call)
{
    const double mean = call->attrs.f[0], deviation = call->attrs.f[1];
    if constexpr (std::is_same<T, double>::value)
        return fill_randomly<double, T>(call, normal_f64{ mean, deviation });
    else
        return fill_randomly<float, T>(call, normal_f32{ (float)mean, (float)deviation });
}

template <typename T> trek_status run_random_integers(const trek_op_call *call)
{
    int64_t low = trek_i64_from_f64(call->attrs.f[0]);
    uint64_t range = (uint64_t)trek_i64_from_f64(call->attrs.f[1]) - (uint64_t)low;
    range = range == 0 ? 1 : range;
    return range <= UINT32_MAX ? fill_randomly<int64_t, T>(call, narrow_integers{ low, range })
                               : fill_randomly<int64_t, T>(call, wide_integers{ low, range });
}

/* --- dropout ---------------------------------------------------------------------------------- */

#define UNROLL 4 /* Philox blocks of a thread whose elements are contiguous */

template <typename T, typename W> __device__ __forceinline__ T dropped(T x, uint32_t word, int32_t limit, W scale)
{
    return trek_store<T>::of((int32_t)(word >> 8) >= limit ? trek_get(x) * scale : (W)0);
}

template <typename T>
__global__ void __launch_bounds__(256) dropout_whole_kernel(T *to, const T *from, trek_cuda_draw draw, int64_t n, int32_t limit,
                                                            typename trek_work<T>::type scale)
{
    trek_loaded<T, 4> x[UNROLL];
    uint32_t step = draw.step.now();
    int64_t block = draw.at() / 4;
    int64_t first = (int64_t)blockIdx.x * blockDim.x * UNROLL + threadIdx.x;
#pragma unroll
    for (int u = 0; u < UNROLL; u++) {
        int64_t i = first + (int64_t)u * blockDim.x;
        if (4 * i + 4 <= n)
            x[u].load(from + 4 * i);
    }
#pragma unroll
    for (int u = 0; u < UNROLL; u++) {
        int64_t i = first + (int64_t)u * blockDim.x;
        if (4 * i >= n)
            continue;
        uint32_t words[4];
        trek_cuda_philox(draw.seed, (uint64_t)(block + i), draw.number, step, words);
        if (4 * i + 4 <= n) {
            trek_vector<T, 4> y = x[u].get();
#pragma unroll
            for (int k = 0; k < 4; k++)
                y.x[k] = dropped(y.x[k], words[k], limit, scale);
            ((trek_vector<T, 4> *)to)[i] = y;
        } else {
#pragma unroll
            for (int k = 0; k < 4; k++)
                if (4 * i + k < n)
                    to[4 * i + k] = dropped(from[4 * i + k], words[k], limit, scale);
        }
    }
}

template <typename T>
__global__ void __launch_bounds__(256) dropout_kernel(T *to, by_place to_places, const T *from, by_place from_places,
                                                      trek_cuda_draw draw,
                                                      int64_t n, int32_t limit, typename trek_work<T>::type scale)
{
    int64_t place = draw.at();
    int64_t block = place / 4 + (int64_t)blockIdx.x * blockDim.x + threadIdx.x, first = block * 4 - place;
    if (first >= n)
        return;
    uint32_t words[4];
    trek_cuda_philox(draw.seed, (uint64_t)block, draw.number, draw.step.now(), words);
#pragma unroll
    for (int k = 0; k < 4; k++) {
        if (first + k < 0 || first + k >= n)
            continue;
        to[to_places(first + k)] = dropped(from[from_places(first + k)], words[k], limit, scale);
    }
}

template <typename T> trek_status run_dropout(const trek_op_call *call)
{
    typedef typename trek_work<T>::type W;
    trek_tensor *out = call->outputs[0], *in = call->inputs[0];
    if (out->numel == 0)
        return TREK_OK;
    trek_cuda_queue *queue = trek_queue_of(call);
    if (!queue)
        return trek_error_status();
    trek_cuda_draw draw = trek_draw_of(call, queue);
    trek_cuda_dropout d = trek_dropout_of(call->attrs.f[0]);
    int64_t blocks = blocks_of(draw, out->numel, 4);
    if (whole_blocks(out, draw.place, 4) && whole_blocks(in, draw.place, 4))
        return trek_launch(call, queue, trek_loop((blocks + UNROLL - 1) / UNROLL), dropout_whole_kernel<T>, (T *)out->data,
                           (const T *)in->data, draw, out->numel, d.limit, (W)d.scale);
    return trek_launch(call, queue, trek_loop(blocks), dropout_kernel<T>, (T *)out->data, places_of(out), (const T *)in->data,
                       places_of(in), draw, out->numel, d.limit, (W)d.scale);
}

} // namespace

extern "C" void trek_cuda_register_random(trek_backend *b)
{
    TREK_ENTER_FLOATS(b, TREK_OP_uniform, run_uniform)
    TREK_ENTER_FLOATS(b, TREK_OP_normal, run_normal)
    TREK_ENTER_FLOATS(b, TREK_OP_random_integers, run_random_integers)
    TREK_ENTER_INTEGERS(b, TREK_OP_random_integers, run_random_integers)
    TREK_ENTER(b, TREK_OP_random_integers, BOOL, run_random_integers<bool>)
    TREK_ENTER_FLOATS(b, TREK_OP_dropout, run_dropout)
}
