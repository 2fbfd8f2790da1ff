/* SPDX-License-Identifier: Apache-2.0 */
/* Resampling along a dimension, and its transpose. One thread computes each element of the result, in a fixed order. */
#include "tensor/cuda/dense.cuh"
#include "tensor/cuda/elementwise/elementwise.cuh"
#include "tensor/resample.h"

namespace {

/* Windows are monotone, so that the first and the last position to which element i contributes are found by bisection. */
struct reach {
    int32_t first, last; /* elements of x that a position uses */
};

__global__ void reach_kernel(trek_resample_plan plan, reach *reaches)
{
    for (int64_t o = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; o < plan.out; o += (int64_t)gridDim.x * blockDim.x) {
        trek_resample_window w = trek_resample_window_of(&plan, o);
        int64_t first = trek_resample_place(&plan, &w, 0), last = trek_resample_place(&plan, &w, w.count - 1);
        reaches[o] = { (int32_t)first, (int32_t)last };
    }
}

/* x dense [outer, in, inner] */
template <typename T>
__global__ void resample_kernel(trek_resample_plan plan, int64_t inner, const T *x, T *y, int64_t n)
{
    typedef typename trek_wide<T>::type W;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (int64_t)gridDim.x * blockDim.x) {
        int64_t line = i / inner / plan.out, o = i / inner % plan.out;
        const T *from = x + line * plan.in * inner + i % inner;
        trek_resample_window w = trek_resample_window_of(&plan, o);
        W sum = 0;
        for (int k = 0; k < w.count; k++)
            sum += (W)trek_resample_weight(&plan, &w, k) * trek_get(from[trek_resample_place(&plan, &w, k) * inner]);
        y[i] = trek_store<T>::of(sum);
    }
}

template <typename T>
__global__ void resample_grad_kernel(trek_resample_plan plan, const reach *reaches, int64_t inner, const T *dy, T *dx, int64_t n)
{
    typedef typename trek_wide<T>::type W;
    for (int64_t at = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; at < n; at += (int64_t)gridDim.x * blockDim.x) {
        int64_t line = at / inner / plan.in, i = at / inner % plan.in;
        const T *from = dy + line * plan.out * inner + at % inner;
        int64_t low = 0, high = plan.out; /* the first position that uses i or a later element */
        while (low < high) {
            int64_t middle = (low + high) / 2;
            if (reaches[middle].last < i)
                low = middle + 1;
            else
                high = middle;
        }
        W sum = 0;
        for (int64_t o = low; o < plan.out && reaches[o].first <= i; o++) {
            trek_resample_window w = trek_resample_window_of(&plan, o);
            for (int k = 0; k < w.count; k++)
                if (trek_resample_place(&plan, &w, k) == i)
                    sum += (W)trek_resample_weight(&plan, &w, k) * trek_get(from[o * inner]);
        }
        dx[at] = trek_store<T>::of(sum);
    }
}

template <typename T> trek_status run_resample(const trek_op_call *call)
{
    const trek_tensor *x = call->inputs[0];
    trek_tensor *y = call->outputs[0];
    trek_cuda_queue *queue = trek_queue_of(call);
    if (!queue)
        return trek_error_status();
    if (y->numel == 0)
        return TREK_OK;
    const int64_t *a = call->attrs.i;
    bool backward = call->op->id == TREK_OP_resample_backward;
    int64_t in = x->sizes[a[0]], out = y->sizes[a[0]], inner = 1;
    for (int d = (int)a[0] + 1; d < x->ndim; d++)
        inner *= x->sizes[d];
    trek_resample_plan plan = trek_resample_planned(backward ? out : in, backward ? in : out, (int)a[2], a[3] != 0,
                                                    x->dtype == TREK_F64, call->attrs.f[0]);
    trek_dense from, to;
    trek_held reaches;
    TRY(from.read(call, queue, x));
    TRY(to.write(queue, y));
    if (backward) {
        TRY(reaches.take(queue, (size_t)plan.out * sizeof(reach)));
        TRY(trek_launch(call, queue, trek_loop(plan.out), reach_kernel, plan, reaches.as<reach>()));
        TRY(trek_launch(call, queue, trek_loop(y->numel), resample_grad_kernel<T>, plan, (const reach *)reaches.as<reach>(),
                        inner,
                        (const T *)from.data, to.as<T>(), y->numel));
    } else
        TRY(trek_launch(call, queue, trek_loop(y->numel), resample_kernel<T>, plan, inner, (const T *)from.data, to.as<T>(),
                        y->numel));
    return to.finish(call, y);
}

} // namespace

extern "C" void trek_cuda_register_resample(trek_backend *b)
{
    TREK_ENTER_FLOATS(b, TREK_OP_resample, run_resample)
    TREK_ENTER_FLOATS(b, TREK_OP_resample_backward, run_resample)
}
