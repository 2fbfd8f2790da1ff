/* SPDX-License-Identifier: Apache-2.0 */
/* The description of a tensor in global memory for the tensor copies of sm_90 (cp.async.bulk.tensor): a CUtensorMap
 * of the driver. */
#ifndef TREK_TENSOR_CUDA_TENSOR_MAP_H
#define TREK_TENSOR_CUDA_TENSOR_MAP_H

#include "tensor/cuda/cuda.h"

TREK_BEGIN

/* Passed to kernels by value, as a __grid_constant__. */
typedef struct trek_tensor_map {
    uint64_t words[16];
    int32_t row_at, head_at; /* which of a box's coordinates after the column, from 0 to 2, are the row and the head; the third
                              * is the batch's */
} __attribute__((aligned(64))) trek_tensor_map;

/* Describes 16-bit elements [batch, heads, rows, columns], with `sizes` and `strides` (in elements) in this order,
 * the last one dense. Boxes have `rows` rows of 64 elements of one head of one batch; in shared memory a row has 128
 * bytes, swizzled over 128 bytes, with zeros outside the sizes. The data must begin at a multiple of 16 bytes. The
 * dimensions of the map are ordered by their strides, as the driver requires. Returns false, by trek_cuda_refuse, if
 * the driver is too old or does not accept the strides (multiples of 8, neither 0 nor negative if there is more than
 * one element). */
bool trek_tensor_map_rows(trek_tensor_map *map, void *data, trek_dtype dtype, const int64_t sizes[4], const int64_t strides[4],
                          int rows);

TREK_END

#endif
