/* SPDX-License-Identifier: Apache-2.0 */
/* What the copies of tensors of sm_90 (cp.async.bulk.tensor) are told of one in global memory: a CUtensorMap of the driver. */
#ifndef TREK_TENSOR_CUDA_TENSOR_MAP_H
#define TREK_TENSOR_CUDA_TENSOR_MAP_H

#include "tensor/cuda/cuda.h"

TREK_BEGIN

/* By value to kernels, as a __grid_constant__. */
typedef struct trek_tensor_map {
    uint64_t words[16];
    int32_t row_at, head_at; /* which of a box's coordinates behind the column, from 0 to 2, are the row and the head; the third
                                is the batch's */
} __attribute__((aligned(64))) trek_tensor_map;

/* Of 16-bit elements [batch, heads, rows, columns], `sizes` and `strides` (in elements) in this order, the last one dense: boxes
 * of `rows` rows of 64 elements of one head of one batch, in shared memory 128 bytes a row, swizzled over 128 bytes; zeros beyond
 * sizes. The data begins at a multiple of 16 bytes. The dimensions of the map are in the order of their strides, as the driver
 * asks for. False, by trek_cuda_refuse: the driver cannot (is too old, or does not take the strides: multiples of 8, neither 0
 * nor negative where there is more than one). */
bool trek_tensor_map_rows(trek_tensor_map *map, void *data, trek_dtype dtype, const int64_t sizes[4], const int64_t strides[4],
                          int rows);

TREK_END

#endif
