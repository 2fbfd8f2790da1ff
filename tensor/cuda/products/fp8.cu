/* SPDX-License-Identifier: Apache-2.0 */
/* Products of 8-bit numbers. Quantising also computes the transpose and the largest magnitude in one pass, because
 * cuBLASLt only multiplies rows by rows, and scales are in device memory. Products use cuBLASLt if it supports them,
 * otherwise bf16, which can represent every code. */
#include "tensor/cuda/dense.cuh"
#include "tensor/cuda/paths.h"
#include "tensor/cuda/products/blas.h"
#include "tensor/cuda/storage.h"

#define TREK_FP8_FUNCTION static __device__ __forceinline__
#include "tensor/fp8.h"

/* --- quantising -------------------------------------------------------------------------- */

struct quantise_work {
    float scale;                /* 0: computed from the tensor's own magnitude */
    unsigned int magnitude;     /* that magnitude, as bits */
};

struct quantise_place {
    int32_t *record, *row;      /* NULL: none */
    int64_t roles, length;
    float *inverse;             /* of the scale: a result */
    quantise_work *work;
    int format, flags, margin;
};

/* One warp, with a thread for each role: advances the record and determines the scale. */
static __global__ void prepare_kernel(quantise_place p)
{
    int role = (int)threadIdx.x;
    if (p.record && (p.flags & TREK_FP8_ROLL))
        for (int64_t k = role; k < p.roles; k += blockDim.x)
            trek_fp8_roll(p.record + k * p.length, p.length);
    __syncthreads();
    if (role > 0)
        return;
    uint32_t known = p.row ? trek_fp8_recorded(p.row, p.length, p.flags) : 0;
    int e = known ? trek_fp8_exponent(known, p.format, p.margin) : 0;
    *p.inverse = trek_fp8_power(-e);
    p.work->scale = known ? trek_fp8_power(e) : 0;
    p.work->magnitude = 0;
}

template <typename T> static __global__ void magnitude_kernel(const T *x, int64_t n, quantise_place p)
{
    TREK_SHARED(uint32_t, shared, 32);
    if (p.work->scale != 0) /* the same for all threads */
        return;
    uint32_t most = 0;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (int64_t)gridDim.x * blockDim.x) {
        uint32_t bits = trek_fp8_bits((float)trek_get(x[i])) & 0x7fffffffu;
        most = bits > most ? bits : most;
    }
    most = trek_team_max(most, (int)blockDim.x, shared);
    if (threadIdx.x == 0)
        atomicMax(&p.work->magnitude, (unsigned int)most);
}

enum { TILE = 64, LINES = 4 }; /* 256 threads: each has four neighbours in each of four rows */

/* Quantises a tile of 64 x 64 and its transpose. x and the codes are row-major. */
template <typename T, bool turned>
static __global__ void quantise_kernel(const T *x, uint8_t *codes, uint8_t *transpose, int64_t rows, int64_t columns,
                                       int64_t across, bool whole, quantise_place p)
{
    TREK_SHARED(uint32_t, shared, 32);
    TREK_SHARED(uint8_t, tile, TILE * (TILE + 4));
    int64_t first_row = (int64_t)blockIdx.x / across * TILE, first_column = (int64_t)blockIdx.x % across * TILE;
    int quad = (int)threadIdx.x % 16 * 4, line = (int)threadIdx.x / 16;
    float scale = p.work->scale;
    if (scale == 0) {
        uint32_t own = p.work->magnitude;
        int e = own && own < TREK_FP8_INFINITE ? trek_fp8_exponent(own, p.format, p.margin) : 0;
        scale = trek_fp8_power(e);
        if (blockIdx.x == 0 && threadIdx.x == 0)
            *p.inverse = trek_fp8_power(-e);
    }
    uint32_t most = 0;
#pragma unroll
    for (int k = 0; k < LINES; k++) {
        int64_t r = first_row + line + 16 * k, c = first_column + quad;
        trek_vector<T, 4> in;
        trek_vector<uint8_t, 4> out;
        int n = r >= rows || c >= columns ? 0 : columns - c < 4 ? (int)(columns - c) : 4;
        if (n == 4 && whole)
            in = *(const trek_vector<T, 4> *)(x + r * columns + c);
        else
#pragma unroll
            for (int j = 0; j < 4; j++)
                in.x[j] = j < n ? x[r * columns + c + j] : T();
#pragma unroll
        for (int j = 0; j < 4; j++) {
            float value = (float)trek_get(in.x[j]);
            uint32_t bits = trek_fp8_bits(value) & 0x7fffffffu;
            most = bits > most ? bits : most;
            out.x[j] = trek_fp8_encode(value, scale, p.format);
            if (turned) /* outside the matrix: never read */
                tile[(quad + j) * (TILE + 4) + line + 16 * k] = out.x[j];
        }
        if (n == 4 && whole)
            *(trek_vector<uint8_t, 4> *)(codes + r * columns + c) = out;
        else
#pragma unroll
            for (int j = 0; j < 4; j++)
                if (j < n)
                    codes[r * columns + c + j] = out.x[j];
    }
    if (p.flags & TREK_FP8_OBSERVE) {
        most = trek_team_max(most, (int)blockDim.x, shared);
        if (threadIdx.x == 0 && p.row)
            atomicMax((unsigned int *)p.row, (unsigned int)most);
    }
    if (!turned)
        return;
    __syncthreads();
#pragma unroll
    for (int k = 0; k < LINES; k++) {
        int64_t c = first_column + line + 16 * k, r = first_row + quad;
#pragma unroll
        for (int j = 0; j < 4; j++)
            if (c < columns && r + j < rows)
                transpose[c * rows + r + j] = tile[(line + 16 * k) * (TILE + 4) + quad + j];
    }
}

template <typename T>
static trek_status quantise_of(const trek_op_call *call, trek_cuda_queue *queue, const void *x, uint8_t *codes, uint8_t *turned,
                               const quantise_place &p)
{
    int64_t rows = call->outputs[0]->sizes[0], columns = call->outputs[0]->sizes[1], n = rows * columns;
    trek_status status = trek_launch(call, queue, trek_blocks(dim3(1), dim3(32)), prepare_kernel, p);
    if (status != TREK_OK || n == 0)
        return status;
    int64_t blocks = (n + 1023) / 1024;
    status = trek_launch(call, queue, trek_blocks(dim3((unsigned)(blocks < 1024 ? blocks : 1024)), dim3(256)),
                         magnitude_kernel<T>,
                         (const T *)x, n, p);
    if (status != TREK_OK)
        return status;
    int64_t across = (columns + TILE - 1) / TILE, tiles = across * ((rows + TILE - 1) / TILE);
    bool whole = columns % 4 == 0 && ((uintptr_t)x & (sizeof(T) * 4 - 1)) == 0 && ((uintptr_t)codes & 3) == 0;
    trek_grid grid = trek_blocks(dim3((unsigned)tiles), dim3(256));
    return turned ? trek_launch(call, queue, grid, quantise_kernel<T, true>, (const T *)x, codes, turned, rows, columns, across,
                                whole, p)
                  : trek_launch(call, queue, grid, quantise_kernel<T, false>, (const T *)x, codes, turned, rows, columns, across,
                                whole, p);
}

static trek_status quantise_into(const trek_op_call *call, trek_cuda_queue *queue, trek_dense *results, const void *x)
{
    const trek_tensor *record = call->n_inputs > 1 ? call->inputs[1] : nullptr;
    quantise_place p = {};
    p.record = record ? (int32_t *)record->data : nullptr;
    p.roles = record ? record->sizes[0] : 0;
    p.length = record ? record->sizes[1] : 0;
    p.row = record ? p.record + call->attrs.i[1] * p.length : nullptr;
    p.inverse = results[2].as<float>();
    trek_held work;
    TRY(work.take(queue, sizeof(quantise_work)));
    p.work = work.as<quantise_work>();
    p.format = (int)call->attrs.i[0], p.flags = (int)call->attrs.i[2], p.margin = (int)call->attrs.i[3];
    uint8_t *codes = results[0].as<uint8_t>(), *turned = results[1].as<uint8_t>();
    switch (call->inputs[0]->dtype) {
    case TREK_BF16: return quantise_of<trek_bf16>(call, queue, x, codes, turned, p);
    case TREK_F16: return quantise_of<trek_f16>(call, queue, x, codes, turned, p);
    default: return quantise_of<float>(call, queue, x, codes, turned, p);
    }
}

static trek_status quantise(const trek_op_call *call)
{
    trek_cuda_queue *queue = trek_queue_of(call);
    if (!queue)
        return trek_error_status();
    trek_dense x, results[3];
    TRY(x.read(call, queue, call->inputs[0]));
    for (int k = 0; k < 3; k++)
        if (call->outputs[k])
            TRY(results[k].write(queue, call->outputs[k]));
    TRY(quantise_into(call, queue, results, x.data));
    for (int k = 0; k < 3; k++)
        if (call->outputs[k])
            TRY(results[k].finish(call, call->outputs[k]));
    if (call->n_inputs > 1 && call->inputs[1] && (call->attrs.i[2] & (TREK_FP8_ROLL | TREK_FP8_OBSERVE)))
        trek_cuda_bump(call->inputs[1]);
    return TREK_OK;
}

/* --- products -------------------------------------------------------------------------------- */

static __global__ void decode_kernel(const uint8_t *codes, trek_bf16 *numbers, int format, int64_t n)
{
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (int64_t)gridDim.x * blockDim.x)
        numbers[i].bits = (uint16_t)(trek_fp8_bits(trek_fp8_decode(codes[i], format)) >> 16);
}

template <typename T>
static __global__ void finish_kernel(const float *sums, T *to, const T *bias, const float *x_scales, const float *y_scales,
                                     int64_t columns, int64_t n)
{
    float x = x_scales[0], y = y_scales[0];
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (int64_t)gridDim.x * blockDim.x) {
        float value = sums[i] * x * y;
        if (bias)
            value += trek_get(bias[i % columns]);
        to[i] = trek_store<T>::of(value);
    }
}

/* What a product reads and writes; everything is dense. */
struct product_operands {
    trek_dense x, y, x_scales, y_scales, bias, result;
};

static trek_status decode(const trek_op_call *call, trek_cuda_queue *queue, const trek_dense &codes, int k, trek_held *numbers)
{
    int64_t n = call->inputs[k]->numel;
    TRY(numbers->take(queue, (size_t)n * sizeof(trek_bf16)));
    return trek_launch(call, queue, trek_loop(n, 1 << 20), decode_kernel, (const uint8_t *)codes.data, numbers->as<trek_bf16>(),
                       (int)call->attrs.i[k], n);
}

/* Multiplies as bf16, with sums in f32. */
static trek_status multiply_decoded(const trek_op_call *call, trek_cuda_queue *queue, const product_operands &o, trek_cuda_gemm g)
{
    trek_held x, y, sums;
    int64_t n = g.m * g.n;
    TRY(decode(call, queue, o.x, 0, &x));
    TRY(decode(call, queue, o.y, 1, &y));
    bool narrow = g.c_dtype == TREK_BF16;
    if (narrow)
        TRY(sums.take(queue, (size_t)n * sizeof(float)));
    g.a = x.as<void>(), g.b = y.as<void>();
    g.c = narrow ? sums.as<void>() : o.result.data;
    g.dtype = TREK_BF16, g.c_dtype = TREK_F32;
    g.bias = nullptr;
    g.codes = nullptr;
    TRY(trek_cuda_gemm_run(call, queue, &g));
    const float *x_scales = (const float *)o.x_scales.data, *y_scales = (const float *)o.y_scales.data;
    if (narrow)
        return trek_launch(call, queue, trek_loop(n, 1 << 20), finish_kernel<trek_bf16>, (const float *)g.c,
                           (trek_bf16 *)o.result.data, (const trek_bf16 *)o.bias.data, x_scales, y_scales, g.n, n);
    return trek_launch(call, queue, trek_loop(n, 1 << 20), finish_kernel<float>, (const float *)g.c, (float *)o.result.data,
                       (const float *)o.bias.data, x_scales, y_scales, g.n, n);
}

static trek_status multiply(const trek_op_call *call, trek_cuda_queue *queue, const product_operands &o)
{
    const trek_tensor *result = call->outputs[0];
    trek_cuda_codes codes = {};
    codes.a_format = (int)call->attrs.i[0], codes.b_format = (int)call->attrs.i[1];
    codes.a_inverse = (const float *)o.x_scales.data, codes.b_inverse = (const float *)o.y_scales.data;
    trek_cuda_gemm g = {};
    g.m = result->sizes[0], g.n = result->sizes[1], g.k = call->inputs[0]->sizes[1];
    g.a = o.x.data, g.b = o.y.data, g.c = o.result.data;
    g.a_row = g.k, g.a_col = 1, g.b_row = 1, g.b_col = g.k, g.c_row = g.n, g.c_col = 1;
    g.dtype = TREK_U8, g.c_dtype = (trek_dtype)result->dtype;
    g.bias = o.bias.data, g.bias_col = 1;
    g.codes = &codes;
    if (g.m == 0 || g.n == 0)
        return TREK_OK;
    trek_cuda_path_begin();
    trek_status status = g.k > 0 ? trek_cuda_blas_run(call, queue, &g) : TREK_ERR_UNSUPPORTED;
    if (status != TREK_ERR_UNSUPPORTED)
        return status;
    trek_cuda_gemm_served(queue, TREK_CUDA_PATH_MATMUL_FP8_OWN, &g); /* before the product of 16 bits itself is counted */
    return multiply_decoded(call, queue, o, g);
}

static trek_status product(const trek_op_call *call)
{
    trek_cuda_queue *queue = trek_queue_of(call);
    if (!queue)
        return trek_error_status();
    product_operands o;
    TRY(o.x.read(call, queue, call->inputs[0]));
    TRY(o.y.read(call, queue, call->inputs[1]));
    TRY(o.x_scales.read(call, queue, call->inputs[2]));
    TRY(o.y_scales.read(call, queue, call->inputs[3]));
    TRY(o.bias.read(call, queue, call->n_inputs > 4 ? call->inputs[4] : nullptr));
    TRY(o.result.write(queue, call->outputs[0]));
    TRY(multiply(call, queue, o));
    return o.result.finish(call, call->outputs[0]);
}

extern "C" void trek_cuda_register_fp8(trek_backend *backend)
{
    backend->kernels[TREK_OP_fp8_quantise][TREK_F32] = quantise;
    backend->kernels[TREK_OP_fp8_quantise][TREK_BF16] = quantise;
    backend->kernels[TREK_OP_fp8_quantise][TREK_F16] = quantise;
    backend->kernels[TREK_OP_fp8_product][TREK_U8] = product;
}
