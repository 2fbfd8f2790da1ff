/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of a table by index. */
#include "tensor/cuda/dense.cuh"


struct table {
    int64_t rows, columns;       /* columns and steps are in units of what is copied at once */
    int64_t row_step, column_step;
    int64_t places;
    trek_quotient by_columns;
    bool wide;
    trek_indices indices;
    trek_cuda_fault_record *faults;
    int op;
};

template <typename U> static __global__ void embedding_kernel(U *to, const U *from, table t)
{
    int64_t count = t.places * t.columns, threads = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += threads) {
        int64_t place = t.wide ? i / t.columns : (int64_t)t.by_columns((uint32_t)i), column = i - place * t.columns;
        int64_t index = t.indices[place];
        if (index >= 0 && index < t.rows) {
            to[i] = from[index * t.row_step + column * t.column_step];
            continue;
        }
        if (column == 0)
            trek_note_fault(t.faults, t.op, TREK_CUDA_FAULT_INDEX, index, place, t.rows);
        to[i] = U();
    }
}

/* Copies `unit` elements at once. */
template <typename U> static trek_status copy(const trek_op_call *call, trek_cuda_queue *queue, void *to, const void *from,
                                              table t, int unit)
{
    t.columns /= unit;
    t.row_step /= unit;
    t.by_columns = trek_quotient_of(t.columns);
    t.wide = t.places * t.columns > 0x7fffffff;
    return trek_launch(call, queue, trek_loop(t.places * t.columns, 1 << 22), embedding_kernel<U>, (U *)to, (const U *)from, t);
}

static trek_status embedding(const trek_op_call *call)
{
    const trek_tensor *weight = call->inputs[0], *indices = call->inputs[1];
    trek_cuda_queue *queue = trek_queue_of(call);
    if (!queue)
        return TREK_ERR_DEVICE;
    trek_dense places, y;
    TRY(places.read(call, queue, indices));
    TRY(y.write(queue, call->outputs[0]));
    if (call->outputs[0]->numel == 0)
        return TREK_OK;
    table t = { weight->sizes[0], weight->sizes[1], weight->strides[0], weight->strides[1], indices->numel, {}, false,
                { places.data, 1, indices->dtype }, queue->device->faults_device, call->op->id };
    const int size = weight->dtype == TREK_F64 ? 8 : weight->dtype == TREK_F32 ? 4 : 2, unit = 16 / size;
    const bool rows = t.columns == 1 || t.column_step == 1;
    trek_status status;
    if (rows && t.columns % unit == 0 && t.row_step % unit == 0 && trek_is_aligned(weight->data, 16) &&
        trek_is_aligned(y.data, 16))
        status = copy<trek_vector<uint32_t, 4>>(call, queue, y.data, weight->data, t, unit);
    else if (size == 8)
        status = copy<uint64_t>(call, queue, y.data, weight->data, t, 1);
    else if (size == 4)
        status = copy<uint32_t>(call, queue, y.data, weight->data, t, 1);
    else
        status = copy<uint16_t>(call, queue, y.data, weight->data, t, 1);
    return status == TREK_OK ? y.finish(call, call->outputs[0]) : status;
}

extern "C" void trek_cuda_register_embedding(trek_backend *b)
{
    b->kernels[TREK_OP_embedding][TREK_F32] = b->kernels[TREK_OP_embedding][TREK_F64] = embedding;
    b->kernels[TREK_OP_embedding][TREK_BF16] = b->kernels[TREK_OP_embedding][TREK_F16] = embedding;
}
