/* SPDX-License-Identifier: Apache-2.0 */
/* The layout of a kernel's operands over one index space: dimensions are merged on the host, and offsets are computed
 * on the device in 32 bits. Work that needs more than 32 bits is divided into several launches. */
#ifndef TREK_TENSOR_CUDA_LAYOUT_CUH
#define TREK_TENSOR_CUDA_LAYOUT_CUH

#include "tensor/cuda/device.cuh"

#define TREK_OPERANDS 4 /* the output first */

/* The index space on the host, innermost dimension first. Strides are in elements. */
struct trek_plan {
    int operands, ndim;
    int64_t sizes[TREK_MAX_DIMS];
    int64_t strides[TREK_OPERANDS][TREK_MAX_DIMS];
    int64_t base[TREK_OPERANDS]; /* position of the first element, relative to the operand's data */
};

/* Starts with only the output's sizes: operand 0 is `out`. */
trek_plan trek_plan_begin(const trek_tensor *out);
/* Adds an operand, broadcast to the output. */
void trek_plan_add(trek_plan *p, const trek_tensor *t);
/* Adds an operand with the given strides, outermost first. */
void trek_plan_add_strides(trek_plan *p, const int64_t *strides);
/* Drops sizes of 1 and merges dimensions that are contiguous in all operands. With `sort`, the order of elements is
 * free, and the output's memory is traversed in its order. At least one dimension is left. */
void trek_plan_finish(trek_plan *p, bool sort);
int64_t trek_plan_numel(const trek_plan *p);
/* Returns whether positions and offsets fit into 31 bits. */
bool trek_plan_narrow(const trek_plan *p);
/* Divides the largest dimension in two; *p keeps the first part. */
trek_plan trek_plan_cut(trek_plan *p);

/* Launches over all parts of a plan: calls launch(const trek_plan &) once for each narrow one. */
template <typename L> trek_status trek_plan_run(trek_plan p, const L &launch)
{
    while (!trek_plan_narrow(&p)) {
        trek_plan rest = trek_plan_cut(&p);
        trek_status status = trek_plan_run(p, launch);
        if (status != TREK_OK)
            return status;
        p = rest;
    }
    return launch(p);
}

/* n / divisor without a division, for n < 2^31 (Granlund and Montgomery, "Division by invariant integers using
 * multiplication", PLDI 1994). */
struct trek_divider {
    uint32_t divisor, factor, shift;
    __device__ __forceinline__ uint32_t quotient(uint32_t n) const { return (__umulhi(n, factor) + n) >> shift; }
};
trek_divider trek_divider_of(int64_t divisor);

/* A plan as kernels see it. */
template <int N> struct trek_layout {
    int ndim;
    trek_divider sizes[TREK_MAX_DIMS]; /* innermost first */
    int32_t strides[N][TREK_MAX_DIMS];

    /* Computes the operands' offsets at position i, where the innermost dimension counts fastest. */
    __device__ __forceinline__ void offsets(uint32_t i, int32_t (&at)[N]) const
    {
#pragma unroll
        for (int k = 0; k < N; k++)
            at[k] = 0;
#pragma unroll 1
        for (int d = 0; d < ndim - 1; d++) {
            uint32_t q = sizes[d].quotient(i), r = i - q * sizes[d].divisor;
#pragma unroll
            for (int k = 0; k < N; k++)
                at[k] += (int32_t)r * strides[k][d];
            i = q;
        }
#pragma unroll
        for (int k = 0; k < N; k++)
            at[k] += (int32_t)i * strides[k][ndim - 1];
    }
};

template <int N> trek_layout<N> trek_layout_of(const trek_plan &p)
{
    trek_layout<N> l;
    l.ndim = p.ndim;
    for (int d = 0; d < p.ndim; d++) {
        l.sizes[d] = trek_divider_of(p.sizes[d]);
        for (int k = 0; k < N; k++)
            l.strides[k][d] = k < p.operands ? (int32_t)p.strides[k][d] : 0;
    }
    return l;
}

inline bool trek_aligned(const void *data, size_t bytes = 16) { return ((uintptr_t)data & (bytes - 1)) == 0; }

#endif
