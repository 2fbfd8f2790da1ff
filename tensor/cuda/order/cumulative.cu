/* SPDX-License-Identifier: Apache-2.0 */
/* cummax, cummin, cumprod, logcumsumexp: a thread processes a line. */
#include "tensor/cuda/order/order.cuh"

namespace {

template <typename T, bool SMALLEST>
__global__ void __launch_bounds__(256) extreme_kernel(T *values, int64_t *places, const T *x, trek_lines l)
{
    int64_t index = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (index >= l.lines)
        return;
    const trek_line line = trek_line_at(l, index);
    T held = T();
    int64_t at = 0;
    for (int64_t i = 0; i < l.n; i++) {
        const T here = x[line.at[2] + i * l.step[2]];
        const auto v = trek_get(here), best = trek_get(held);
        if (i == 0 || v != v || (best == best && (SMALLEST ? v <= best : v >= best)))
            held = here, at = i;
        values[line.at[0] + i * l.step[0]] = held;
        places[line.at[1] + i * l.step[1]] = at;
    }
}

template <typename T, bool SMALLEST> trek_status run_extreme(const trek_op_call *call)
{
    const trek_tensor *tensors[3] = { call->outputs[0], call->outputs[1], call->inputs[0] };
    if (tensors[0]->numel == 0)
        return TREK_OK;
    trek_cuda_queue *queue = trek_queue_of(call);
    if (!queue)
        return trek_error_status();
    trek_lines l = trek_lines_of(tensors, 3, (int)call->attrs.i[0]);
    return trek_launch(call, queue, trek_loop(l.lines), extreme_kernel<T, SMALLEST>, (T *)tensors[0]->data,
                       (int64_t *)tensors[1]->data,
                       (const T *)tensors[2]->data, l);
}
template <typename T> trek_status run_cummax(const trek_op_call *call) { return run_extreme<T, false>(call); }
template <typename T> trek_status run_cummin(const trek_op_call *call) { return run_extreme<T, true>(call); }

/* The type in which products are computed, and that of the result. */
template <typename T> struct product_type { typedef int64_t gathered, result; };
template <> struct product_type<float> { typedef double gathered; typedef float result; };
template <> struct product_type<double> { typedef double gathered; typedef double result; };
template <> struct product_type<trek_bf16> { typedef float gathered; typedef trek_bf16 result; };
template <> struct product_type<trek_f16> { typedef float gathered; typedef trek_f16 result; };

template <typename T>
__global__ void __launch_bounds__(256) product_kernel(typename product_type<T>::result *to, const T *x, trek_lines l)
{
    typedef typename product_type<T>::gathered A;
    int64_t index = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (index >= l.lines)
        return;
    const trek_line line = trek_line_at(l, index);
    A product = 1;
    for (int64_t i = 0; i < l.n; i++) {
        product = trek_wrap_mul<A>(product, (A)trek_get(x[line.at[1] + i * l.step[1]]));
        to[line.at[0] + i * l.step[0]] = trek_store<typename product_type<T>::result>::of(product);
    }
}

template <typename T> trek_status run_cumprod(const trek_op_call *call)
{
    const trek_tensor *tensors[2] = { call->outputs[0], call->inputs[0] };
    if (tensors[0]->numel == 0)
        return TREK_OK;
    trek_cuda_queue *queue = trek_queue_of(call);
    if (!queue)
        return trek_error_status();
    trek_lines l = trek_lines_of(tensors, 2, (int)call->attrs.i[0]);
    return trek_launch(call, queue, trek_loop(l.lines), product_kernel<T>, (typename product_type<T>::result *)tensors[0]->data,
                       (const T *)tensors[1]->data, l);
}

/* The log of the running sum of exponentials, in f64 relative to the largest so far. */
template <typename T> __global__ void __launch_bounds__(256) exponentials_kernel(T *to, const T *x, trek_lines l)
{
    int64_t index = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (index >= l.lines)
        return;
    const trek_line line = trek_line_at(l, index);
    double largest = -HUGE_VAL, total = 0;
    for (int64_t i = 0; i < l.n; i++) {
        const double here = (double)trek_get(x[line.at[1] + i * l.step[1]]);
        if (here > largest) {
            total = total * exp(largest - here) + 1;
            largest = here;
        } else if (here != -HUGE_VAL) { /* -infinity adds nothing; an infinity minus itself is not a difference */
            total += here == largest ? 1 : exp(here - largest);
        }
        to[line.at[0] + i * l.step[0]] = trek_store<T>::of((typename trek_wide<T>::type)(largest + log(total)));
    }
}

template <typename T> trek_status run_logcumsumexp(const trek_op_call *call)
{
    const trek_tensor *tensors[2] = { call->outputs[0], call->inputs[0] };
    if (tensors[0]->numel == 0)
        return TREK_OK;
    trek_cuda_queue *queue = trek_queue_of(call);
    if (!queue)
        return trek_error_status();
    trek_lines l = trek_lines_of(tensors, 2, (int)call->attrs.i[0]);
    return trek_launch(call, queue, trek_loop(l.lines), exponentials_kernel<T>, (T *)tensors[0]->data,
                       (const T *)tensors[1]->data,
                       l);
}

} // namespace

#define ENTER(b, id, kernel)              \
    TREK_ENTER_FLOATS(b, id, kernel)      \
    TREK_ENTER_INTEGERS(b, id, kernel)    \
    TREK_ENTER_BOOL(b, id, kernel)

extern "C" void trek_cuda_register_cumulative(trek_backend *b)
{
    ENTER(b, TREK_OP_cummax, run_cummax)
    ENTER(b, TREK_OP_cummin, run_cummin)
    ENTER(b, TREK_OP_cumprod, run_cumprod)
    TREK_ENTER_FLOATS(b, TREK_OP_logcumsumexp, run_logcumsumexp)
}
