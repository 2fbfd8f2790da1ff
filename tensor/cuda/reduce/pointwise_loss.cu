/* SPDX-License-Identifier: Apache-2.0 */
/* Losses of one element and its target, and their slopes. For 16-bit inputs the loss is f32. */
#include "tensor/cuda/elementwise/elementwise.cuh"
#include "tensor/cuda/elementwise/functions.cuh"

namespace {

/* NaN remains. */
template <typename W> __device__ __forceinline__ W at_least(W x, W limit) { return x < limit ? limit : x; }

template <typename W> struct loss_functor {
    static constexpr int weight = TREK_HEAVY;
    int kind;
    W beta;
    __device__ __forceinline__ W operator()(W x, W y) const
    {
        W d = x - y, distance = of_abs(d);
        switch (kind) {
        case TREK_LOSS_SQUARED: return d * d;
        case TREK_LOSS_ABSOLUTE: return distance;
        case TREK_LOSS_SMOOTH: return distance >= beta ? distance - (W)0.5 * beta : d * d * ((W)0.5 / beta);
        case TREK_LOSS_LOGISTIC: return x * ((x > 0 ? (W)1 : (W)0) - y) + of_log1p(of_exp(-of_abs(x)));
        default: return (y - 1) * at_least(of_log1p(-x), (W)-100) - y * at_least(of_log(x), (W)-100);
        }
    }
};

template <typename W> struct slope_functor {
    static constexpr int weight = TREK_HEAVY;
    int kind;
    W beta;
    __device__ __forceinline__ W operator()(W grad, W x, W y) const
    {
        W d = x - y, sign = d > 0 ? (W)1 : d < 0 ? (W)-1 : (W)0;
        if (kind == TREK_LOSS_SQUARED)
            return grad * (d + d);
        if (kind == TREK_LOSS_ABSOLUTE)
            return grad * sign;
        if (kind == TREK_LOSS_SMOOTH)
            return grad * (of_abs(d) >= beta ? sign : d / beta);
        if (kind == TREK_LOSS_BINARY)
            return grad * d / at_least((1 - x) * x, (W)1e-12);
        W e = of_exp(-of_abs(x)), tail = e / (1 + e);
        return grad * (x > 0 ? (1 - y) - tail : tail - y);
    }
};

template <typename T> trek_status run_pointwise_loss(const trek_op_call *call)
{
    typedef typename trek_work<T>::type W;
    loss_functor<W> f = { (int)call->attrs.i[0], (W)call->attrs.f[0] };
    return trek_map2<W, T>(call, f);
}

template <typename T>
trek_status slope_part(const trek_op_call *call, trek_cuda_queue *queue, const slope_functor<typename trek_work<T>::type> &f,
                       const trek_plan &p)
{
    typedef typename trek_work<T>::type W;
    typedef slope_functor<W> F;
    typedef trek_span<F, T, W, T, T> span;
    trek_tensor **in = call->inputs, *out = call->outputs[0];
    char *data[4] = { out->data, in[0]->data, in[1]->data, in[2]->data };
    int bytes[4] = { (int)sizeof(T), (int)sizeof(W), (int)sizeof(T), (int)sizeof(T) };
    unsigned repeats;
    int64_t n = trek_plan_numel(&p);
    if (!trek_plan_has_rows(&p, data, bytes, span::size, &repeats))
        return trek_launch(call, queue, trek_strided_grid(n), trek_strided_kernel<3, F, W, W, W, W>, f,
                           trek_operand_of<W>(out, p.base[0]), trek_operand_of<W>(in[0], p.base[1]),
                           trek_operand_of<W>(in[1], p.base[2]), trek_operand_of<W>(in[2], p.base[3]),
                           trek_layout_of<4>(p), (uint32_t)n);
    n /= span::size;
    return trek_launch(call, queue, trek_loop((n + span::unroll - 1) / span::unroll), trek_rows_kernel<F, T, W, T, T>, f,
                       (T *)data[0] + p.base[0], (const W *)data[1] + p.base[1], (const T *)data[2] + p.base[2],
                       (const T *)data[3] + p.base[3], trek_row_layout(p, span::size), (uint32_t)n, repeats);
}

template <typename T> trek_status run_pointwise_loss_backward(const trek_op_call *call)
{
    typedef typename trek_work<T>::type W;
    slope_functor<W> f = { (int)call->attrs.i[0], (W)call->attrs.f[0] };
    trek_tensor **in = call->inputs, *out = call->outputs[0];
    if (out->numel == 0)
        return TREK_OK;
    trek_cuda_queue *queue = trek_queue_of(call);
    if (!queue)
        return trek_error_status();
    if (trek_call_flat(call, 3))
        return trek_map_flat(call, queue, f, (T *)out->data, (const W *)in[0]->data, (const T *)in[1]->data,
                             (const T *)in[2]->data);
    return trek_plan_run(trek_plan_of_call(call, 3), [&](const trek_plan &p) { return slope_part<T>(call, queue, f, p); });
}

} // namespace

extern "C" void trek_cuda_register_pointwise_loss(trek_backend *b)
{
    TREK_ENTER_FLOATS(b, TREK_OP_pointwise_loss, run_pointwise_loss)
    TREK_ENTER_FLOATS(b, TREK_OP_pointwise_loss_backward, run_pointwise_loss_backward)
}
