/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of a table by index, and the sum of their gradients. */
#include "tensor/cpu/dense.h"
#include "tensor/cpu/kernels.h"
#include "tensor/half_internal.h"

typedef struct embedding_job {
    const trek_tensor *indices;   /* contiguous */
    const char *from;
    char *to;
    int64_t rows, columns, padding;
    size_t element;
    trek_dtype dtype;
    const int64_t *order, *start; /* backward: positions of the gradients, sorted by row */
    const int64_t *bags;          /* the gradient's row of each position; NULL: its own */
    const void *factors;          /* of each position; NULL: 1; double for double gradients, otherwise float */
} embedding_job;

static trek_status check_indices(const trek_op_call *call, const trek_tensor *indices, int64_t rows)
{
    for (int64_t i = 0; i < indices->numel; i++) {
        int64_t index = trek_cpu_integer(indices, i);
        if (index < 0 || index >= rows)
            return trek_op_fail(call, TREK_ERR_ARGUMENT, "index %lld at position %lld is outside [0, %lld)", (long long)index,
                                (long long)i, (long long)rows);
    }
    return TREK_OK;
}

static void copy_rows(void *arg, int64_t begin, int64_t end)
{
    const embedding_job *job = arg;
    size_t bytes = (size_t)job->columns * job->element;
    for (int64_t i = begin; i < end; i++)
        memcpy(job->to + (size_t)i * bytes, job->from + (size_t)trek_cpu_integer(job->indices, i) * bytes, bytes);
}

/* For any dtype: rows are copied as bytes. Outputs made by the shape rule are contiguous; given outputs may not be. */
static trek_status embedding_rows(const trek_op_call *call, const trek_tensor *weight, const trek_tensor *indices)
{
    trek_tensor *y = call->outputs[0];
    trek_status status = check_indices(call, indices, weight->sizes[0]);
    if (status != TREK_OK)
        return status;
    trek_tensor *to = y->contiguous ? y : trek_tensor_make(y->ndim, y->sizes, (trek_dtype)y->dtype, y->device);
    if (!to)
        return trek_error_status();
    embedding_job job = { .indices = indices, .from = weight->data, .to = to->data, .columns = weight->sizes[1],
                          .element = trek_dtype_size((trek_dtype)weight->dtype) };
    trek_parallel(indices->numel, 16384 / (job.columns + 1) + 1, copy_rows, &job);
    if (to != y) {
        status = trek_tensor_copy_from(y, to);
        trek_tensor_release(to);
    }
    return status;
}

static trek_status embedding(const trek_op_call *call)
{
    trek_tensor *weight = trek_tensor_contiguous(call->inputs[0]), *indices = trek_tensor_contiguous(call->inputs[1]);
    trek_status status = weight && indices ? embedding_rows(call, weight, indices) : trek_error_status();
    trek_tensor_release(weight);
    trek_tensor_release(indices);
    return status;
}

static int64_t source_row(const embedding_job *job, int64_t place) { return job->bags ? job->bags[place] : place; }

#define SUM_ROW(T)                                                                                     \
    {                                                                                                  \
        T *restrict sum = (T *)(void *)to;                                                             \
        for (int64_t k = 0; k < count; k++) {                                                          \
            const T *restrict from = (const T *)(const void *)job->from + source_row(job, places[k]) * job->columns; \
            const T factor = job->factors ? ((const T *)job->factors)[places[k]] : 1;                  \
            for (int64_t j = 0; j < job->columns; j++)                                                 \
                sum[j] = (k == 0 ? 0 : sum[j]) + factor * from[j]; /* -0 gives 0 */                    \
        }                                                                                              \
    }

/* Sums 16-bit rows in f32 and rounds once. */
static void sum_half_row(const embedding_job *job, uint16_t *to, const int64_t *places, int64_t count)
{
    enum { PART = 512 };
    bool bf16 = job->dtype == TREK_BF16;
    for (int64_t column = 0, n; column < job->columns; column += n) {
        float sum[PART] = { 0 }, wide[PART];
        n = job->columns - column < PART ? job->columns - column : PART;
        for (int64_t k = 0; k < count; k++) {
            const uint16_t *from = (const uint16_t *)(const void *)job->from + source_row(job, places[k]) * job->columns + column;
            const float factor = job->factors ? ((const float *)job->factors)[places[k]] : 1;
            (bf16 ? trek_f32_from_bf16_row : trek_f32_from_f16_row)(wide, from, n);
            for (int64_t j = 0; j < n; j++)
                sum[j] += factor * wide[j];
        }
        (bf16 ? trek_bf16_from_f32_row : trek_f16_from_f32_row)(to + column, sum, n);
    }
}

/* Processes rows [begin, end) of the table: each adds its gradients in the order of their positions. */
static void sum_rows(void *arg, int64_t begin, int64_t end)
{
    const embedding_job *job = arg;
    size_t bytes = (size_t)job->columns * job->element;
    for (int64_t row = begin; row < end; row++) {
        char *to = job->to + (size_t)row * bytes;
        const int64_t *places = job->order + job->start[row], count = job->start[row + 1] - job->start[row];
        if (count == 0 || row == job->padding)
            memset(to, 0, bytes);
        else if (job->dtype == TREK_F64)
            SUM_ROW(double)
        else if (job->dtype == TREK_F32)
            SUM_ROW(float)
        else
            sum_half_row(job, (uint16_t *)(void *)to, places, count);
    }
}

/* Sorts the positions by row (counting sort): those of a row are start[row] .. start[row + 1], in order. Positions in
 * no bag are left out. */
static void sort_places(const trek_tensor *indices, const int64_t *bags, int64_t n_bags, int64_t rows, int64_t *start,
                        int64_t *order)
{
    memset(start, 0, (size_t)(rows + 2) * sizeof *start);
    for (int64_t i = 0; i < indices->numel; i++)
        if (!bags || (bags[i] >= 0 && bags[i] < n_bags))
            start[trek_cpu_integer(indices, i) + 2]++;
    for (int64_t row = 0; row < rows; row++)
        start[row + 2] += start[row + 1];
    for (int64_t i = 0; i < indices->numel; i++)
        if (!bags || (bags[i] >= 0 && bags[i] < n_bags))
            order[start[trek_cpu_integer(indices, i) + 1]++] = i;
}

static trek_status backward_dense(const trek_op_call *call)
{
    const trek_tensor *grad = call->inputs[0], *indices = call->inputs[1];
    const trek_tensor *bags = call->n_inputs > 2 ? call->inputs[2] : NULL, *factors = call->n_inputs > 3 ? call->inputs[3] : NULL;
    trek_tensor *dweight = call->outputs[0];
    int64_t rows = dweight->sizes[0];
    trek_status status = check_indices(call, indices, rows);
    if (status != TREK_OK)
        return status;
    int64_t *start = trek_block_alloc((size_t)(rows + 2 + indices->numel) * sizeof *start), *order = start + rows + 2;
    if (!start)
        return TREK_ERR_MEMORY;
    embedding_job job = { .from = grad->data, .to = dweight->data, .rows = rows, .columns = dweight->sizes[1],
                          .padding = call->attrs.i[0], .element = trek_dtype_size((trek_dtype)dweight->dtype),
                          .dtype = (trek_dtype)dweight->dtype, .order = order, .start = start,
                          .bags = bags ? (const int64_t *)(const void *)bags->data : NULL,
                          .factors = factors ? factors->data : NULL };
    sort_places(indices, job.bags, grad->sizes[0], rows, start, order);
    trek_parallel(rows, 16384 / (job.columns + 1) + 1, sum_rows, &job);
    trek_block_free(start);
    return TREK_OK;
}

static trek_status embedding_backward(const trek_op_call *call)
{
    const trek_tensor *grad = call->inputs[0], *dweight = call->outputs[0];
    bool plain = trek_cpu_is_half(grad) && grad->contiguous && dweight->dtype == grad->dtype && dweight->contiguous;
    return trek_cpu_dense_halves(call, 15, plain ? 1 | TREK_CPU_HALF_RESULTS : 0, backward_dense);
}

void TREK_ISA_NAME(trek_cpu_register_embedding)(trek_backend *b)
{
    for (int dtype = 0; dtype < TREK_DTYPE_COUNT; dtype++)
        if (TREK_FLOATS >> dtype & 1) {
            b->kernels[TREK_OP_embedding][dtype] = embedding;
            b->kernels[TREK_OP_embedding_backward][dtype] = embedding_backward;
        }
}
