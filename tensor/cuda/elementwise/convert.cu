/* SPDX-License-Identifier: Apache-2.0 */
/* Copies, fills, and conversions between all dtypes. */
#include "tensor/cuda/dense.cuh"
#include "tensor/cuda/moves/copying.cuh"
#include "tensor/cuda/elementwise/elementwise.cuh"

namespace {

trek_status run_copy(const trek_op_call *call)
{
    if (call->outputs[0]->numel == 0)
        return TREK_OK;
    trek_cuda_queue *queue = trek_queue_of(call);
    return queue ? trek_cuda_copy_tensor(call, queue, call->outputs[0], call->inputs[0]) : trek_error_status();
}

/* --- conversions ---------------------------------------------------------------------- */

/* Rounds to f32 so that a second rounding, to 16 bits, gives the result of a single one: inexact results get an odd
 * last bit. */
__device__ __forceinline__ float odd_f32(double x)
{
    float near = (float)x;
    uint32_t bits = trek_bits_of_f32(near);
    bool inexact = (double)near != x && near - near == 0, away = inexact && fabs((double)near) > fabs(x);
    return trek_f32_of_bits(inexact && !(bits & 1) ? (away ? bits - 1 : bits + 1) : bits);
}
__device__ __forceinline__ int32_t i32_from_f64(double x)
{
    x = x < -2147483648.0 ? -2147483648.0 : x;
    x = x > 2147483647.0 ? 2147483647.0 : x;
    return x == x ? (int32_t)x : 0;
}

/* What is stored for a W as To: for 16-bit floats another value, because the store rounds again. */
template <typename To, typename W> struct conversion {
    __device__ __forceinline__ static To of(W x) { return (To)x; }
};
template <typename W> struct conversion<trek_bf16, W> {
    __device__ __forceinline__ static float of(W x) { return odd_f32((double)x); }
};
template <typename W> struct conversion<trek_f16, W> : conversion<trek_bf16, W> {};
template <> struct conversion<trek_bf16, float> {
    __device__ __forceinline__ static float of(float x) { return x; }
};
template <> struct conversion<trek_f16, float> : conversion<trek_bf16, float> {};
template <typename W> struct conversion<bool, W> {
    __device__ __forceinline__ static uint8_t of(W x) { return x != 0; }
};
#define FROM_FLOATS(To, expression)                                                                    \
    template <> struct conversion<To, float> {                                                         \
        __device__ __forceinline__ static To of(float x) { return (To)expression; }                    \
    };                                                                                                 \
    template <> struct conversion<To, double> {                                                        \
        __device__ __forceinline__ static To of(double x) { return (To)expression; }                   \
    };
FROM_FLOATS(int64_t, trek_i64_from_f64((double)x))
FROM_FLOATS(int32_t, i32_from_f64((double)x))
FROM_FLOATS(uint8_t, trek_i64_from_f64((double)x))

/* Between f32 and 16 bits, where the store rounds. */
struct convert_functor {
    static constexpr int weight = TREK_LIGHT;
    __device__ __forceinline__ float operator()(float x) const { return x; }
};

template <typename To, typename From> trek_status convert_flat(const trek_op_call *call, trek_cuda_queue *queue)
{
    return trek_map_flat(call, queue, convert_functor(), (To *)call->outputs[0]->data, (const From *)call->inputs[0]->data);
}

/* For any strides: dtypes are determined at run time. Floats go through f64 and integers through i64, both exactly. */
__device__ __forceinline__ double load_real(const char *from, int32_t at, int dtype)
{
    switch (dtype) {
    case TREK_F64: return ((const double *)from)[at];
    case TREK_BF16: return trek_get(((const trek_bf16 *)from)[at]);
    case TREK_F16: return trek_get(((const trek_f16 *)from)[at]);
    default: return ((const float *)from)[at];
    }
}
__device__ __forceinline__ int64_t load_whole(const char *from, int32_t at, int dtype)
{
    return dtype == TREK_I64 ? ((const int64_t *)from)[at]
         : dtype == TREK_I32 ? ((const int32_t *)from)[at] : ((const uint8_t *)from)[at];
}
template <typename W> __device__ __forceinline__ void store_as(char *to, int32_t at, int dtype, W x)
{
    switch (dtype) {
    case TREK_F32: ((float *)to)[at] = conversion<float, W>::of(x); break;
    case TREK_F64: ((double *)to)[at] = conversion<double, W>::of(x); break;
    case TREK_BF16: ((trek_bf16 *)to)[at] = trek_to_bf16(conversion<trek_bf16, W>::of(x)); break;
    case TREK_F16: ((trek_f16 *)to)[at] = trek_to_f16(conversion<trek_f16, W>::of(x)); break;
    case TREK_I64: ((int64_t *)to)[at] = conversion<int64_t, W>::of(x); break;
    case TREK_I32: ((int32_t *)to)[at] = conversion<int32_t, W>::of(x); break;
    case TREK_U8: ((uint8_t *)to)[at] = conversion<uint8_t, W>::of(x); break;
    default: ((uint8_t *)to)[at] = conversion<bool, W>::of(x); break;
    }
}

__global__ void __launch_bounds__(256) convert_kernel(char *to, int to_dtype, const char *from, int from_dtype, bool real,
                                                      trek_layout<2> l, uint32_t n)
{
    for (uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
        int32_t at[2];
        l.offsets(i, at);
        if (real)
            store_as(to, at[0], to_dtype, load_real(from, at[1], from_dtype));
        else
            store_as(to, at[0], to_dtype, load_whole(from, at[1], from_dtype));
    }
}

trek_status convert_strided(const trek_op_call *call, trek_cuda_queue *queue)
{
    const trek_tensor *out = call->outputs[0], *in = call->inputs[0];
    const bool real = trek_is_float(in->dtype);
    return trek_plan_run(trek_plan_of_call(call, 1), [&](const trek_plan &p) {
        int64_t n = trek_plan_numel(&p);
        return trek_launch(call, queue, trek_strided_grid(n), convert_kernel, out->data + p.base[0] * trek_item_size[out->dtype],
                           (int)out->dtype, (const char *)in->data + p.base[1] * trek_item_size[in->dtype], (int)in->dtype, real,
                           trek_layout_of<2>(p), (uint32_t)n);
    });
}

/* By source and target dtypes: the conversions of mixed precision. */
typedef trek_status (*flat_conversion)(const trek_op_call *call, trek_cuda_queue *queue);
flat_conversion flat_of(int from, int to)
{
    switch (from * TREK_DTYPE_COUNT + to) {
    case TREK_F32 * TREK_DTYPE_COUNT + TREK_BF16: return convert_flat<trek_bf16, float>;
    case TREK_F32 * TREK_DTYPE_COUNT + TREK_F16: return convert_flat<trek_f16, float>;
    case TREK_BF16 * TREK_DTYPE_COUNT + TREK_F32: return convert_flat<float, trek_bf16>;
    case TREK_F16 * TREK_DTYPE_COUNT + TREK_F32: return convert_flat<float, trek_f16>;
    default: return nullptr;
    }
}

trek_status run_convert(const trek_op_call *call)
{
    trek_tensor *out = call->outputs[0];
    if (out->dtype == call->inputs[0]->dtype) /* no conversion: bits are kept */
        return run_copy(call);
    if (out->numel == 0)
        return TREK_OK;
    trek_cuda_queue *queue = trek_queue_of(call);
    if (!queue)
        return trek_error_status();
    const flat_conversion flat = flat_of(call->inputs[0]->dtype, out->dtype);
    return flat && trek_call_flat(call, 1) ? flat(call, queue) : convert_strided(call, queue);
}

/* --- fills --------------------------------------------------------------------------------- */

template <typename T> struct fill_functor {
    static constexpr int weight = TREK_LIGHT;
    T value;
    __device__ __forceinline__ T operator()() const { return value; }
};

/* As bits. */
uint64_t filling(trek_dtype dtype, double v)
{
    uint64_t bits = 0;
    switch (dtype) {
    case TREK_F32: return trek_bits_of_f32((float)v);
    case TREK_F64: memcpy(&bits, &v, sizeof bits); return bits;
    case TREK_BF16: return trek_to_bf16((float)v).bits;
    case TREK_F16: return trek_to_f16((float)v).bits;
    case TREK_BOOL: return v != 0;
    default: return (uint64_t)trek_i64_from_f64(v);
    }
}

template <typename T> trek_status run_fill(const trek_op_call *call)
{
    trek_tensor *out = call->outputs[0];
    if (out->numel == 0)
        return TREK_OK;
    trek_cuda_queue *queue = trek_queue_of(call);
    if (!queue)
        return trek_error_status();
    fill_functor<T> f = { (T)filling((trek_dtype)out->dtype, call->attrs.f[0]) };
    if (trek_call_flat(call, 0))
        return trek_map_flat(call, queue, f, (T *)out->data);
    return trek_plan_run(trek_plan_of_call(call, 0), [&](const trek_plan &p) {
        int64_t n = trek_plan_numel(&p);
        trek_operand<trek_none> none = { nullptr, 0 };
        return trek_launch(call, queue, trek_strided_grid(n),
                           trek_strided_kernel<0, fill_functor<T>, T, trek_none, trek_none, trek_none>, f,
                           trek_operand_of<T>(out, p.base[0]), none, none, none, trek_layout_of<1>(p), (uint32_t)n);
    });
}

} // namespace

extern "C" void trek_cuda_register_convert(trek_backend *b)
{
    for (int d = 0; d < TREK_DTYPE_COUNT; d++) {
        b->kernels[TREK_OP_copy][d] = run_copy;
        b->kernels[TREK_OP_convert][d] = run_convert;
    }
    TREK_ENTER_BITS(b, TREK_OP_fill, run_fill)
}
