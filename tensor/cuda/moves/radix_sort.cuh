/* SPDX-License-Identifier: Apache-2.0 */
/* A stable radix sort of key-value pairs, 8 bits at a time. */
#ifndef TREK_TENSOR_CUDA_MOVES_RADIX_SORT_CUH
#define TREK_TENSOR_CUDA_MOVES_RADIX_SORT_CUH

#include "tensor/cuda/dense.cuh"

/* n pairs (key, value), twice: the data, and room to move it. */
struct trek_sort {
    uint32_t *keys, *values, *other_keys, *other_values;
    uint32_t n;
};

/* Sorts by keys below `limit`. The result is in keys and values; the pointers may have been exchanged. */
trek_status trek_sort_pairs(const trek_op_call *call, trek_cuda_queue *queue, trek_sort *s, uint64_t limit);

#endif
