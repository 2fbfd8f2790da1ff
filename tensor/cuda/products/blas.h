/* SPDX-License-Identifier: Apache-2.0 */
/* Matrix products on a GPU: by cuBLASLt if it is available and supports the shape (blas.c), otherwise by trek's own
 * kernel, which supports all (matmul.cu). */
#ifndef TREK_TENSOR_CUDA_PRODUCTS_BLAS_H
#define TREK_TENSOR_CUDA_PRODUCTS_BLAS_H

#include "tensor/cuda/cuda.h"
#include "tensor/op_opts.h"

TREK_BEGIN

#ifdef __cplusplus
extern const uint8_t trek_item_size[TREK_DTYPE_COUNT]; /* bytes */
#endif

/* For operands that are codes of 8 bits (tensor/fp8.h): their formats, and the inverses of their scales, in device
 * memory. */
typedef struct trek_cuda_codes {
    int a_format, b_format;
    const float *a_inverse, *b_inverse;
} trek_cuda_codes;

/* C [m, n] = act(A [m, k] B [k, n] + bias [n]), or C + A B; or a batch of such products. Strides are in elements and
 * may have any values; those of the batch are 0 if an operand is the same for all. */
typedef struct trek_cuda_gemm {
    int64_t m, n, k;
    const void *a, *b;
    void *c;
    int64_t a_row, a_col, b_row, b_col, c_row, c_col;
    trek_dtype dtype, c_dtype;   /* of A, B and the bias; of C: the same, or F32 for 16-bit ones */
    const trek_cuda_codes *codes; /* with dtype U8, only for trek_cuda_blas_run: C is BF16 or F32, and so is the bias */
    bool accumulate;             /* C + A B; without bias and activation */
    const void *bias;            /* NULL: none */
    int64_t bias_col;
    int activation;              /* trek_activation */
    void *row_sums; /* [m], of C's dtype, contiguous: the sums of A's rows; only by trek_cuda_blas_run. NULL: not wanted */
    void *pre;                   /* the values before the activation, with C's strides; NULL: not stored */
    int ndim;                    /* of the batch, 0: one product */
    int64_t sizes[TREK_MAX_DIMS], a_batch[TREK_MAX_DIMS], b_batch[TREK_MAX_DIMS], c_batch[TREK_MAX_DIMS];
} trek_cuda_gemm;

/* Runs it by the best way. Fails with MEMORY (scratch memory) or CUDA. */
trek_status trek_cuda_gemm_run(const trek_op_call *call, trek_cuda_queue *queue, const trek_cuda_gemm *g);

/* Runs it by cuBLASLt: at most one batch dimension, no GELU, row_sums of one product without a bias. Returns
 * UNSUPPORTED by trek_cuda_refuse, without any effect, if there is no library or it does not support this product. It
 * is counted. */
trek_status trek_cuda_blas_run(const trek_op_call *call, trek_cuda_queue *queue, const trek_cuda_gemm *g);

/* Counts a product that a way (trek_cuda_path) has served. */
void trek_cuda_gemm_served(const trek_cuda_queue *queue, int path, const trek_cuda_gemm *g);

/* Returns whether trek_cuda_blas_run can use a library on this queue. */
bool trek_cuda_blas_ready(trek_cuda_queue *queue);

TREK_END

#endif
