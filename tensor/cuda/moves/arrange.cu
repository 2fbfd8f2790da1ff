/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels that move elements without reading their values: flip, cat, tril, triu. */
#include "tensor/cuda/moves/copying.cuh"
#include "tensor/cuda/elementwise/elementwise.cuh"

namespace {

/* Reads backwards along the dimensions whose bits are set in i[0]. */
trek_status run_flip(const trek_op_call *call)
{
    const trek_tensor *in = call->inputs[0], *out = call->outputs[0];
    if (in->numel == 0)
        return TREK_OK;
    trek_cuda_queue *queue = trek_queue_of(call);
    if (!queue)
        return trek_error_status();
    int64_t strides[TREK_MAX_DIMS], first = 0;
    for (int d = 0; d < in->ndim; d++) {
        bool flipped = call->attrs.i[0] >> d & 1;
        strides[d] = flipped ? -in->strides[d] : in->strides[d];
        first += flipped ? (in->sizes[d] - 1) * in->strides[d] : 0;
    }
    trek_plan p = trek_plan_begin(out);
    trek_plan_add_strides(&p, strides);
    p.base[1] = first;
    return trek_cuda_copy_plan(call, queue, p, out->data, in->data, trek_item_size[in->dtype]);
}

/* Copies each input to its part of the output along dimension i[0]. */
trek_status run_cat(const trek_op_call *call)
{
    const trek_tensor *out = call->outputs[0];
    if (out->numel == 0)
        return TREK_OK;
    trek_cuda_queue *queue = trek_queue_of(call);
    if (!queue)
        return trek_error_status();
    int dim = (int)call->attrs.i[0];
    int64_t place = 0;
    for (int k = 0; k < call->n_inputs; k++) {
        const trek_tensor *in = call->inputs[k];
        trek_plan p = trek_plan_begin(out);
        p.sizes[out->ndim - 1 - dim] = in->sizes[dim];
        p.base[0] = place * out->strides[dim];
        trek_plan_add(&p, in);
        trek_status status = trek_cuda_copy_plan(call, queue, p, out->data, in->data, trek_item_size[in->dtype]);
        if (status != TREK_OK)
            return status;
        place += in->sizes[dim];
    }
    return TREK_OK;
}

/* --- triangles --- */

/* Processes V contiguous elements at once. Operand 2 has no data: its offset is column - row. */
template <typename T, int V>
__global__ void __launch_bounds__(256) triangle_kernel(T *to, const T *from, trek_layout<3> l, uint32_t n, int32_t diagonal,
                                                       bool lower)
{
    for (uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
        int32_t at[3];
        l.offsets(i, at);
        trek_vector<T, V> x = *(const trek_vector<T, V> *)(from + at[1]);
#pragma unroll
        for (int v = 0; v < V; v++)
            if (lower ? at[2] + v > diagonal : at[2] + v < diagonal)
                x.x[v] = 0;
        *(trek_vector<T, V> *)(to + at[0]) = x;
    }
}

template <typename T, int V>
trek_status launch_triangle(const trek_op_call *call, trek_cuda_queue *queue, trek_plan p, int64_t diagonal, bool lower)
{
    T *to = (T *)call->outputs[0]->data + p.base[0];
    const T *from = (const T *)call->inputs[0]->data + p.base[1];
    diagonal -= p.base[2];
    diagonal = diagonal > INT32_MAX ? INT32_MAX : diagonal < INT32_MIN ? INT32_MIN : diagonal;
    p.sizes[0] /= V;
    for (int k = 0; k < 3; k++)
        p.strides[k][0] *= V;
    int64_t n = trek_plan_numel(&p);
    return trek_launch(call, queue, trek_strided_grid(n), triangle_kernel<T, V>, to, from, trek_layout_of<3>(p), (uint32_t)n,
                       (int32_t)diagonal, lower);
}

template <typename T> trek_status triangle_part(const trek_op_call *call, trek_cuda_queue *queue, const trek_plan &p,
                                                       int64_t diagonal, bool lower)
{
    constexpr int V = 16 / (int)sizeof(T);
    bool rows = p.sizes[0] % V == 0 && p.strides[2][0] == 1;
    for (int k = 0; rows && k < 2; k++) {
        const trek_tensor *t = k == 0 ? call->outputs[0] : call->inputs[0];
        rows = p.strides[k][0] == 1 && p.base[k] % V == 0 && trek_aligned(t->data);
        for (int d = 1; rows && d < p.ndim; d++)
            rows = p.strides[k][d] % V == 0;
    }
    return rows ? launch_triangle<T, V>(call, queue, p, diagonal, lower) : launch_triangle<T, 1>(call, queue, p, diagonal, lower);
}

/* Kept: column <= row + i[0] for lower, column >= row + i[0] for upper. */
template <typename T> trek_status keep_triangle(const trek_op_call *call, bool lower)
{
    const trek_tensor *in = call->inputs[0], *out = call->outputs[0];
    if (in->numel == 0)
        return TREK_OK;
    trek_cuda_queue *queue = trek_queue_of(call);
    if (!queue)
        return trek_error_status();
    int64_t rows = in->sizes[in->ndim - 2], columns = in->sizes[in->ndim - 1], diagonal = call->attrs.i[0];
    diagonal = diagonal > columns ? columns : diagonal < -rows ? -rows : diagonal; /* larger diagonals change nothing */
    int64_t difference[TREK_MAX_DIMS] = { 0 };
    difference[in->ndim - 2] = -1;
    difference[in->ndim - 1] = 1;
    trek_plan p = trek_plan_begin(out);
    trek_plan_add(&p, in);
    trek_plan_add_strides(&p, difference);
    p.base[2] = 0;
    trek_plan_finish(&p, !out->contiguous);
    return trek_plan_run(p, [&](const trek_plan &part) { return triangle_part<T>(call, queue, part, diagonal, lower); });
}
template <typename T> trek_status run_tril(const trek_op_call *call) { return keep_triangle<T>(call, true); }
template <typename T> trek_status run_triu(const trek_op_call *call) { return keep_triangle<T>(call, false); }

} // namespace

extern "C" void trek_cuda_register_arrange(trek_backend *b)
{
    for (int d = 0; d < TREK_DTYPE_COUNT; d++) {
        b->kernels[TREK_OP_flip][d] = run_flip;
        b->kernels[TREK_OP_cat][d] = run_cat;
    }
    TREK_ENTER_BITS(b, TREK_OP_tril, run_tril)
    TREK_ENTER_BITS(b, TREK_OP_triu, run_triu)
}
