/* SPDX-License-Identifier: Apache-2.0 */
/* Rotates pairs of elements of the last dimension by the angles of a table, with a thread for each pair. */
#include "tensor/cuda/dense.cuh"
#include "tensor/cuda/layout.cuh"

/* From the first of a pair to its second, in elements; and from the cosine to the sine. */
struct pair_steps {
    int64_t to, from, sine;
    bool back;
};

template <typename T>
static __global__ void turn_kernel(T *to, const T *from, const typename trek_wide<T>::type *table, uint32_t n,
                                   trek_layout<3> layout,
                                   pair_steps steps)
{
    typedef typename trek_wide<T>::type W;
    for (uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
        int32_t at[3];
        layout.offsets(i, at);
        const W a = trek_get(from[at[1]]), b = trek_get(from[at[1] + steps.from]);
        const W c = table[at[2]], s = steps.back ? -table[at[2] + steps.sine] : table[at[2] + steps.sine];
        to[at[0]] = trek_store<T>::of(a * c - b * s);
        to[at[0] + steps.to] = trek_store<T>::of(b * c + a * s);
    }
}

template <typename T> static __global__ void keep_kernel(T *to, const T *from, uint32_t n, trek_layout<2> layout)
{
    for (uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
        int32_t at[2];
        layout.offsets(i, at);
        to[at[0]] = from[at[1]];
    }
}

/* Plans `columns` of each row from element `first` on, `step` apart. */
static trek_plan columns_of(const trek_tensor *y, const trek_tensor *x, const trek_tensor *table, int64_t first, int64_t columns,
                            int64_t step)
{
    trek_plan p = {};
    const trek_tensor *tensors[3] = { y, x, table };
    p.operands = table ? 3 : 2;
    p.ndim = x->ndim;
    for (int d = 0; d < x->ndim; d++) {
        int from_end = x->ndim - 1 - d;
        p.sizes[d] = d == 0 ? columns : x->sizes[from_end];
        for (int k = 0; k < p.operands; k++) {
            int own = tensors[k]->ndim - 1 - d;
            bool there = own >= 0 && (d == 0 || tensors[k]->sizes[own] != 1);
            p.strides[k][d] = there ? tensors[k]->strides[own] * (d == 0 && k < 2 ? step : 1) : 0;
        }
    }
    for (int k = 0; k < 2; k++)
        p.base[k] = first * tensors[k]->strides[tensors[k]->ndim - 1];
    trek_plan_finish(&p, false);
    return p;
}

template <typename T> static trek_status rotary(const trek_op_call *call)
{
    typedef typename trek_wide<T>::type W;
    const trek_tensor *x = call->inputs[0], *table = call->inputs[1], *y = call->outputs[0];
    trek_cuda_queue *queue = trek_queue_of(call);
    if (!queue)
        return TREK_ERR_DEVICE;
    if (y->numel == 0)
        return TREK_OK;
    const int last = x->ndim - 1;
    const int64_t turned = table->sizes[table->ndim - 1], pairs = turned / 2, distance = call->attrs.i[0] ? 1 : pairs;
    const pair_steps steps = { distance * y->strides[last], distance * x->strides[last],
                               pairs * table->strides[table->ndim - 1], call->attrs.i[1] != 0 };
    if (pairs > 0)
        TRY(trek_plan_run(columns_of(y, x, table, 0, pairs, call->attrs.i[0] ? 2 : 1), [&](const trek_plan &p) {
            uint32_t n = (uint32_t)trek_plan_numel(&p);
            return trek_launch(call, queue, trek_loop(n), turn_kernel<T>, (T *)y->data + p.base[0],
                               (const T *)x->data + p.base[1],
                               (const W *)table->data + p.base[2], n, trek_layout_of<3>(p), steps);
        }));
    if (turned == x->sizes[last])
        return TREK_OK;
    return trek_plan_run(columns_of(y, x, NULL, turned, x->sizes[last] - turned, 1), [&](const trek_plan &p) {
        uint32_t n = (uint32_t)trek_plan_numel(&p);
        return trek_launch(call, queue, trek_loop(n), keep_kernel<T>, (T *)y->data + p.base[0], (const T *)x->data + p.base[1], n,
                           trek_layout_of<2>(p));
    });
}

extern "C" void trek_cuda_register_rotary(trek_backend *b)
{
    b->kernels[TREK_OP_rotary][TREK_F32] = rotary<float>;
    b->kernels[TREK_OP_rotary][TREK_F64] = rotary<double>;
    b->kernels[TREK_OP_rotary][TREK_BF16] = rotary<trek_bf16>;
    b->kernels[TREK_OP_rotary][TREK_F16] = rotary<trek_f16>;
}
