/* SPDX-License-Identifier: Apache-2.0 */
/* Products of 8-bit numbers, exactly. CPUs do not multiply them, so the codes become bf16, which can represent all of
 * them, and the product is one of bf16 with sums in f32. */
#include <stdatomic.h>

#include "tensor/cpu/dense.h"
#include "tensor/cpu/products/gemm.h"
#include "tensor/fp8.h"

enum { BLOCK = 256, TILE = 32 };

/* --- quantising ---------------------------------------------------------------------------- */

typedef struct quantise_job {
    const trek_tensor *x;
    uint8_t *codes, *turned;
    int64_t rows, columns;
    int format;
    float scale;
    _Atomic uint32_t magnitude; /* bits of the largest magnitude: a maximum does not depend on the order */
} quantise_job;

static void load(const trek_tensor *x, int64_t at, int64_t n, float *to)
{
    if (x->dtype == TREK_F32)
        memcpy(to, (const float *)(const void *)x->data + at, (size_t)n * sizeof *to);
    else if (x->dtype == TREK_BF16)
        trek_f32_from_bf16_row(to, (const uint16_t *)(const void *)x->data + at, n);
    else
        trek_f32_from_f16_row(to, (const uint16_t *)(const void *)x->data + at, n);
}

static void raise_to(_Atomic uint32_t *most, uint32_t value)
{
    uint32_t old = atomic_load_explicit(most, memory_order_relaxed);
    while (old < value && !atomic_compare_exchange_weak_explicit(most, &old, value, memory_order_relaxed, memory_order_relaxed))
        ;
}

static void find_magnitude(void *arg, int64_t begin, int64_t end)
{
    quantise_job *job = arg;
    float values[BLOCK];
    uint32_t most = 0;
    for (int64_t at = begin; at < end; at += BLOCK) {
        int64_t n = end - at < BLOCK ? end - at : BLOCK;
        load(job->x, at, n, values);
        for (int64_t i = 0; i < n; i++) {
            uint32_t bits = trek_fp8_bits(values[i]) & 0x7fffffffu;
            most = bits > most ? bits : most;
        }
    }
    raise_to(&job->magnitude, most);
}

static void encode(void *arg, int64_t begin, int64_t end)
{
    const quantise_job *job = arg;
    float values[BLOCK];
    for (int64_t at = begin; at < end; at += BLOCK) {
        int64_t n = end - at < BLOCK ? end - at : BLOCK;
        load(job->x, at, n, values);
        for (int64_t i = 0; i < n; i++)
            job->codes[at + i] = trek_fp8_encode(values[i], job->scale, job->format);
    }
}

/* Processes bands of TILE columns of the codes. */
static void turn(void *arg, int64_t begin, int64_t end)
{
    const quantise_job *job = arg;
    for (int64_t row = 0; row < job->rows; row += TILE) {
        int64_t last = row + TILE < job->rows ? row + TILE : job->rows;
        for (int64_t c = begin; c < end; c++)
            for (int64_t r = row; r < last; r++)
                job->turned[c * job->rows + r] = job->codes[r * job->columns + c];
    }
}

static trek_status quantise_dense(const trek_op_call *call)
{
    trek_tensor *x = call->inputs[0], *record = call->n_inputs > 1 ? call->inputs[1] : NULL, *codes = call->outputs[0];
    int flags = (int)call->attrs.i[2];
    int32_t *rows = record ? (int32_t *)(void *)record->data : NULL;
    int64_t length = record ? record->sizes[1] : 0;
    quantise_job job = { .x = x, .codes = (uint8_t *)codes->data, .rows = codes->sizes[0], .columns = codes->sizes[1],
                         .format = (int)call->attrs.i[0] };
    for (int64_t role = 0; rows && (flags & TREK_FP8_ROLL) && role < record->sizes[0]; role++)
        trek_fp8_roll(rows + role * length, length);
    int32_t *row = rows ? rows + call->attrs.i[1] * length : NULL;
    uint32_t known = row ? trek_fp8_recorded(row, length, flags) : 0;
    if (!known || (flags & TREK_FP8_OBSERVE))
        trek_parallel(x->numel, 4 * BLOCK, find_magnitude, &job);
    uint32_t magnitude = job.magnitude, by = known ? known : magnitude;
    int e = by && by < TREK_FP8_INFINITE ? trek_fp8_exponent(by, job.format, (int)call->attrs.i[3]) : 0;
    job.scale = trek_fp8_power(e);
    trek_parallel(x->numel, 4 * BLOCK, encode, &job);
    if (call->outputs[1]) {
        job.turned = (uint8_t *)call->outputs[1]->data;
        trek_parallel(job.columns, TILE, turn, &job);
    }
    if (row && (flags & TREK_FP8_OBSERVE) && magnitude > (uint32_t)row[0])
        row[0] = (int32_t)magnitude;
    if (record && (flags & (TREK_FP8_ROLL | TREK_FP8_OBSERVE)))
        trek_tensor_bump(record);
    *(float *)(void *)call->outputs[2]->data = trek_fp8_power(-e);
    return TREK_OK;
}

static trek_status quantise(const trek_op_call *call)
{
    return trek_cpu_dense_halves(call, 1, 1 | TREK_CPU_HALF_RESULTS, quantise_dense);
}

/* --- products ---------------------------------------------------------------------------------- */

typedef struct product_job {
    const uint8_t *codes;
    uint16_t *numbers; /* bf16 */
    int format;
    /* The result: */
    float *sums;
    const trek_tensor *bias;
    trek_tensor *result;
    float x_inverse, y_inverse; /* applied one after the other: their product may exceed f32 */
} product_job;

static void decode(void *arg, int64_t begin, int64_t end)
{
    const product_job *job = arg;
    for (int64_t i = begin; i < end; i++)
        job->numbers[i] = (uint16_t)(trek_fp8_bits(trek_fp8_decode(job->codes[i], job->format)) >> 16);
}

static uint16_t *decoded(const trek_tensor *codes, int64_t format)
{
    uint16_t *numbers = trek_block_alloc((size_t)(codes->numel + 1) * sizeof *numbers);
    if (numbers)
        trek_parallel(codes->numel, 4096, decode,
                      &(product_job){ .codes = (const uint8_t *)codes->data, .numbers = numbers, .format = (int)format });
    return numbers;
}

/* Scales rows of sums and adds the bias, in the result's dtype. */
static void finish(void *arg, int64_t begin, int64_t end)
{
    const product_job *job = arg;
    int64_t n = job->result->sizes[1];
    bool half = job->result->dtype == TREK_BF16;
    for (int64_t r = begin; r < end; r++)
        for (int64_t c = 0; c < n; c++) {
            float value = job->sums[r * n + c] * job->x_inverse * job->y_inverse;
            if (job->bias && half)
                value += trek_f32_from_bf16(((const uint16_t *)(const void *)job->bias->data)[c]);
            else if (job->bias)
                value += ((const float *)(const void *)job->bias->data)[c];
            if (half)
                ((uint16_t *)(void *)job->result->data)[r * n + c] = trek_bf16_from_f32(value);
            else
                ((float *)(void *)job->result->data)[r * n + c] = value;
        }
}

static trek_status multiply(const trek_op_call *call, const uint16_t *x, const uint16_t *y)
{
    trek_tensor *result = call->outputs[0];
    int64_t m = result->sizes[0], n = result->sizes[1], k = call->inputs[0]->sizes[1];
    bool half = result->dtype == TREK_BF16;
    float *sums = half ? trek_block_alloc((size_t)(m * n + 1) * sizeof *sums) : (float *)(void *)result->data;
    if (!sums)
        return TREK_ERR_MEMORY;
    trek_gemm g = { .m = m, .n = n, .k = k, .a = x, .a_dtype = TREK_BF16, .a_row = k, .a_col = 1, .b = y, .b_dtype = TREK_BF16,
                    .b_row = 1, .b_col = k, .c = sums, .c_dtype = TREK_F32, .c_row = n, .c_col = 1 };
    trek_status status = TREK_ISA_NAME(trek_gemm_f32)(&g);
    product_job job = { .sums = sums, .result = result, .bias = call->n_inputs > 4 ? call->inputs[4] : NULL };
    job.x_inverse = *(const float *)(const void *)call->inputs[2]->data;
    job.y_inverse = *(const float *)(const void *)call->inputs[3]->data;
    if (status == TREK_OK)
        trek_parallel(m, 16384 / (n + 1) + 1, finish, &job);
    if (half)
        trek_block_free(sums);
    return status;
}

static trek_status product_dense(const trek_op_call *call)
{
    uint16_t *x = decoded(call->inputs[0], call->attrs.i[0]);
    uint16_t *y = x ? decoded(call->inputs[1], call->attrs.i[1]) : NULL;
    trek_status status = y ? multiply(call, x, y) : TREK_ERR_MEMORY;
    trek_block_free(x);
    trek_block_free(y);
    return status == TREK_OK ? TREK_OK : trek_op_fail(call, TREK_ERR_MEMORY, "no memory for numbers of 16 bits");
}

static trek_status product(const trek_op_call *call)
{
    return trek_cpu_dense_halves(call, 31, 31 | TREK_CPU_HALF_RESULTS, product_dense);
}

void TREK_ISA_NAME(trek_cpu_register_fp8)(trek_backend *b)
{
    b->kernels[TREK_OP_fp8_quantise][TREK_F32] = quantise;
    b->kernels[TREK_OP_fp8_quantise][TREK_BF16] = quantise;
    b->kernels[TREK_OP_fp8_quantise][TREK_F16] = quantise;
    b->kernels[TREK_OP_fp8_product][TREK_U8] = product;
}
