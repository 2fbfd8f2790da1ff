/* SPDX-License-Identifier: Apache-2.0 */
/* Sums, means and maxima of rows of a table for each bag, without storing the rows. */
#include "tensor/cpu/dense.h"
#include "tensor/cpu/kernels.h"

typedef struct bag_job {
    const trek_tensor *indices;
    const int64_t *offsets;
    const void *factors; /* NULL: 1; double for double rows, otherwise float */
    const char *from;
    char *to;
    int64_t *largest;    /* for maxima: rows of the table */
    int64_t columns, padding;
    int mode;
    size_t element;
    trek_dtype dtype;
} bag_job;

static trek_status check_bags(const trek_op_call *call, const trek_tensor *indices, const trek_tensor *offsets, int64_t rows)
{
    const int64_t *at = (const int64_t *)(const void *)offsets->data, bags = offsets->numel - 1;
    for (int64_t b = 0; b <= bags; b++)
        if (at[b] > indices->numel || (b == 0 ? at[b] != 0 : at[b] < at[b - 1]))
            return trek_op_fail(
                call, TREK_ERR_ARGUMENT,
                "offset %lld at position %lld: must begin with 0, never fall, and be at most %lld, the number of indices",
                (long long)at[b], (long long)b, (long long)indices->numel);
    for (int64_t i = 0; i < at[bags]; i++) {
        int64_t index = trek_cpu_integer(indices, i);
        if (index < 0 || index >= rows)
            return trek_op_fail(call, TREK_ERR_ARGUMENT, "index %lld at position %lld is outside [0, %lld)", (long long)index,
                                (long long)i, (long long)rows);
    }
    return TREK_OK;
}

/* Adds factor times the columns of a row. */
#define ADD(T, sum, from, factor, n)                                                                   \
    do {                                                                                               \
        T *restrict sum_ = sum;                                                                        \
        const T *restrict from_ = from, factor_ = factor;                                              \
        for (int64_t j = 0; j < (n); j++)                                                              \
            sum_[j] += factor_ * from_[j];                                                             \
    } while (0)

#define SUM_BAG(T)                                                                                     \
    {                                                                                                  \
        T *sum = (T *)(void *)to;                                                                      \
        for (int64_t k = begin; k < end; k++) {                                                        \
            int64_t row = trek_cpu_integer(job->indices, k);                                           \
            if (row != job->padding)                                                                   \
                ADD(T, sum, (const T *)(const void *)job->from + row * job->columns,                   \
                    job->factors ? ((const T *)job->factors)[k] : 1, job->columns);                    \
        }                                                                                              \
        for (int64_t j = 0; mean > 1 && j < job->columns; j++)                                         \
            sum[j] /= (T)mean;                                                                         \
    }

/* Sums 16-bit rows in f32 and rounds once. */
static void sum_half_bag(const bag_job *job, uint16_t *to, int64_t begin, int64_t end, int64_t mean)
{
    enum { PART = 512 };
    bool bf16 = job->dtype == TREK_BF16;
    for (int64_t column = 0, n; column < job->columns; column += n) {
        float sum[PART] = { 0 }, wide[PART];
        n = job->columns - column < PART ? job->columns - column : PART;
        for (int64_t k = begin; k < end; k++) {
            int64_t row = trek_cpu_integer(job->indices, k);
            if (row == job->padding)
                continue;
            const uint16_t *from = (const uint16_t *)(const void *)job->from + row * job->columns + column;
            (bf16 ? trek_f32_from_bf16_row : trek_f32_from_f16_row)(wide, from, n);
            ADD(float, sum, wide, job->factors ? ((const float *)job->factors)[k] : 1, n);
        }
        for (int64_t j = 0; mean > 1 && j < n; j++)
            sum[j] /= (float)mean;
        (bf16 ? trek_bf16_from_f32_row : trek_f16_from_f32_row)(to + column, sum, n);
    }
}

/* The first of equal elements; a NaN that is not the first is not larger than anything. Two loops, each of which can
 * be vectorised. */
#define LARGEST(T, value)                                                                              \
    {                                                                                                  \
        T *restrict best = (T *)(void *)to;                                                            \
        const T *restrict from = (const T *)(const void *)job->from + row * job->columns;              \
        TREK_INDEPENDENT                                                                               \
        for (int64_t j = 0; j < job->columns; j++)                                                     \
            largest[j] = value(from[j]) > value(best[j]) ? row : largest[j];                           \
        TREK_INDEPENDENT                                                                               \
        for (int64_t j = 0; j < job->columns; j++)                                                     \
            best[j] = value(from[j]) > value(best[j]) ? from[j] : best[j];                             \
    }
#define PLAIN(x) (x)

static void largest_of_two(const bag_job *job, char *to, int64_t *restrict largest, int64_t row)
{
    switch (job->dtype) {
    case TREK_F32: LARGEST(float, PLAIN) break;
    case TREK_F64: LARGEST(double, PLAIN) break;
    case TREK_BF16: LARGEST(uint16_t, trek_f32_from_bf16) break;
    default: LARGEST(uint16_t, trek_f32_from_f16) break;
    }
}

static void largest_of_bag(const bag_job *job, char *to, int64_t *largest, int64_t begin, int64_t end)
{
    size_t bytes = (size_t)job->columns * job->element;
    bool first = true;
    for (int64_t j = 0; j < job->columns; j++)
        largest[j] = -1;
    for (int64_t k = begin; k < end; k++) {
        int64_t row = trek_cpu_integer(job->indices, k);
        if (row == job->padding)
            continue;
        if (!first) {
            largest_of_two(job, to, largest, row);
            continue;
        }
        first = false;
        memcpy(to, job->from + (size_t)row * bytes, bytes);
        for (int64_t j = 0; j < job->columns; j++)
            largest[j] = row;
    }
}

/* Returns the number of elements by which a mean is divided. */
static int64_t members(const bag_job *job, int64_t begin, int64_t end)
{
    int64_t count = 0;
    for (int64_t k = begin; k < end; k++)
        count += trek_cpu_integer(job->indices, k) != job->padding;
    return count;
}

static void fill_bags(void *arg, int64_t first, int64_t last)
{
    const bag_job *job = arg;
    for (int64_t bag = first; bag < last; bag++) {
        int64_t begin = job->offsets[bag], end = job->offsets[bag + 1];
        int64_t mean = job->mode == TREK_REDUCTION_MEAN ? members(job, begin, end) : 1;
        char *to = job->to + (size_t)(bag * job->columns) * job->element;
        memset(to, 0, (size_t)job->columns * job->element);
        if (job->mode == TREK_REDUCTION_MAX)
            largest_of_bag(job, to, job->largest + bag * job->columns, begin, end);
        else if (job->dtype == TREK_F64)
            SUM_BAG(double)
        else if (job->dtype == TREK_F32)
            SUM_BAG(float)
        else
            sum_half_bag(job, (uint16_t *)(void *)to, begin, end, mean);
    }
}

static trek_status bags_dense(const trek_op_call *call)
{
    const trek_tensor *weight = call->inputs[0], *indices = call->inputs[1], *offsets = call->inputs[2];
    const trek_tensor *factors = call->n_inputs > 3 ? call->inputs[3] : NULL;
    trek_status status = check_bags(call, indices, offsets, weight->sizes[0]);
    if (status != TREK_OK)
        return status;
    int64_t bags = offsets->numel - 1, each = indices->numel / (bags > 0 ? bags : 1) + 1;
    bag_job job = { .indices = indices, .offsets = (const int64_t *)(const void *)offsets->data,
                    .factors = factors ? factors->data : NULL, .from = weight->data, .to = call->outputs[0]->data,
                    .largest = (int64_t *)(void *)call->outputs[1]->data, .columns = weight->sizes[1],
                    .padding = call->attrs.i[0], .mode = (int)call->attrs.i[1],
                    .element = trek_dtype_size((trek_dtype)weight->dtype), .dtype = (trek_dtype)weight->dtype };
    trek_parallel(bags, 16384 / (each * (job.columns + 1)) + 1, fill_bags, &job);
    return TREK_OK;
}

static trek_status embedding_bag(const trek_op_call *call)
{
    return trek_cpu_dense_halves(call, 15, 1 | TREK_CPU_HALF_RESULTS, bags_dense);
}

void TREK_ISA_NAME(trek_cpu_register_embedding_bag)(trek_backend *b)
{
    for (int dtype = 0; dtype < TREK_DTYPE_COUNT; dtype++)
        if (TREK_FLOATS >> dtype & 1)
            b->kernels[TREK_OP_embedding_bag][dtype] = embedding_bag;
}
