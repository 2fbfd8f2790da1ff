/* SPDX-License-Identifier: Apache-2.0 */
/* What kernels for sorting and selecting share: elements by their row-major position, and how they are compared. */
#ifndef TREK_TENSOR_CUDA_ORDER_ORDER_CUH
#define TREK_TENSOR_CUDA_ORDER_ORDER_CUH

#include "tensor/cuda/dense.cuh"
#include "tensor/cuda/elementwise/elementwise.cuh"
#include "tensor/cuda/lines.cuh"

/* Sizes and strides of a tensor; `but` is a dimension to leave out (-1 for none). */
struct trek_places {
    int ndim;
    int64_t sizes[TREK_MAX_DIMS], strides[TREK_MAX_DIMS];
    __device__ __forceinline__ int64_t offset(int64_t place) const
    {
        int64_t at = 0;
        for (int d = ndim - 1; d >= 0; d--) {
            int64_t rest = place / sizes[d];
            at += (place - rest * sizes[d]) * strides[d];
            place = rest;
        }
        return at;
    }
};
inline trek_places trek_places_of(const trek_tensor *t, int but = -1)
{
    trek_places p;
    p.ndim = 0;
    for (int d = 0; d < t->ndim; d++)
        if (d != but)
            p.sizes[p.ndim] = t->sizes[d], p.strides[p.ndim++] = t->strides[d];
    return p;
}

#endif
