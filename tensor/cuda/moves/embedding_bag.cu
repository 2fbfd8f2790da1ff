/* SPDX-License-Identifier: Apache-2.0 */
/* Sums, means and maxima of rows of a table for each bag, with a thread for each column of a bag. */
#include "tensor/cuda/dense.cuh"
#include "tensor/op_opts.h"

template <typename T> struct bags {
    T *to;
    int64_t *largest;                                     /* of maxima: rows of the table */
    const T *from, *factors;                              /* factors NULL: 1 */
    int64_t rows, columns, row_step, column_step, places; /* steps in elements */
    int64_t count, padding;
    const int64_t *offsets;
    trek_indices indices;
    int mode;
    trek_cuda_fault_record *faults;
    int op;
};

/* Returns whether position k counts; *row gets its row. */
template <typename T> static __device__ __forceinline__ bool counts(const bags<T> &a, int64_t k, bool tells, int64_t *row)
{
    *row = a.indices[k];
    bool inside = *row >= 0 && *row < a.rows;
    if (!inside && tells)
        trek_note_fault(a.faults, a.op, TREK_CUDA_FAULT_INDEX, *row, k, a.rows);
    return inside && *row != a.padding;
}

template <typename T> static __global__ void bags_kernel(bags<T> a)
{
    typedef typename trek_wide<T>::type W;
    int64_t elements = a.count * a.columns, threads = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < elements; i += threads) {
        const int64_t bag = i / a.columns, column = i - bag * a.columns;
        int64_t begin = a.offsets[bag], end = a.offsets[bag + 1], members = 0, row, best = -1;
        bool starts = bag > 0 || begin == 0;
        if (!starts || begin < 0 || end < begin || end > a.places) {
            if (column == 0)
                trek_note_fault(a.faults, a.op, TREK_CUDA_FAULT_OFFSET, starts ? end : begin, bag + starts, a.places);
            begin = end = 0;
        }
        W sum = 0;
        for (int64_t k = begin; k < end; k++) {
            if (!counts(a, k, column == 0, &row))
                continue;
            const W x = trek_get(a.from[row * a.row_step + column * a.column_step]);
            if (a.mode != TREK_REDUCTION_MAX)
                sum += a.factors ? trek_get(a.factors[k]) * x : x;
            else if (members == 0 || x > sum) {
                sum = x;
                best = row;
            }
            members++;
        }
        if (a.mode == TREK_REDUCTION_MEAN && members > 1)
            sum /= (W)members;
        a.to[i] = trek_store<T>::of(sum);
        if (a.mode == TREK_REDUCTION_MAX)
            a.largest[i] = best;
    }
}

template <typename T> static trek_status embedding_bag(const trek_op_call *call)
{
    const trek_tensor *weight = call->inputs[0], *indices = call->inputs[1], *offsets = call->inputs[2];
    trek_cuda_queue *queue = trek_queue_of(call);
    if (!queue)
        return TREK_ERR_DEVICE;
    trek_dense places, ends, factors, y, largest;
    TRY(places.read(call, queue, indices));
    TRY(ends.read(call, queue, offsets));
    TRY(factors.read(call, queue, trek_input_of(call, 3)));
    TRY(y.write(queue, call->outputs[0]));
    TRY(largest.write(queue, call->outputs[1]));
    if (call->outputs[0]->numel == 0)
        return TREK_OK;
    const int64_t count = call->outputs[0]->sizes[0], columns = weight->sizes[1];
    bags<T> a = { y.as<T>(), largest.as<int64_t>(), (const T *)weight->data, factors.as<T>(), weight->sizes[0], columns,
                  weight->strides[0], weight->strides[1], indices->numel, count, call->attrs.i[0], ends.as<int64_t>(),
                  { places.data, 1, indices->dtype }, (int)call->attrs.i[1], queue->device->faults_device, call->op->id };
    TRY(trek_launch(call, queue, trek_loop(count * columns, 1 << 22), bags_kernel<T>, a));
    TRY(y.finish(call, call->outputs[0]));
    return largest.finish(call, call->outputs[1]);
}

extern "C" void trek_cuda_register_embedding_bag(trek_backend *b)
{
    b->kernels[TREK_OP_embedding_bag][TREK_F32] = embedding_bag<float>;
    b->kernels[TREK_OP_embedding_bag][TREK_F64] = embedding_bag<double>;
    b->kernels[TREK_OP_embedding_bag][TREK_BF16] = embedding_bag<trek_bf16>;
    b->kernels[TREK_OP_embedding_bag][TREK_F16] = embedding_bag<trek_f16>;
}
