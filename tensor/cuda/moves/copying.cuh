/* SPDX-License-Identifier: Apache-2.0 */
/* Copies of elements as bits between any strides, for all kernels that need them. */
#ifndef TREK_TENSOR_CUDA_MOVES_COPYING_CUH
#define TREK_TENSOR_CUDA_MOVES_COPYING_CUH

#include "tensor/cuda/layout.cuh"

/* Copies elements of `width` bytes from operand 1 of a plan to operand 0, both at their data, in any order. */
trek_status trek_cuda_copy_plan(const trek_op_call *call, trek_cuda_queue *queue, trek_plan p, char *to, const char *from,
                                int width);
/* Computes out = in, with equal sizes or broadcast, for dtypes of one width. */
trek_status trek_cuda_copy_tensor(const trek_op_call *call, trek_cuda_queue *queue, const trek_tensor *out,
                                  const trek_tensor *in);

/* Units of 16 bytes. */
struct alignas(16) trek_bits128 {
    uint64_t x[2];
};

/* Returns the widest unit (in bytes; at least `width`) in which rows of the plan can be moved: all operands of
 * `moved` (bits) are contiguous and aligned along the innermost dimension, and all others are constant along it.
 * `extra` is one more stride in elements that must be divisible. The plan is changed to count in units. */
int trek_plan_widen(trek_plan *p, unsigned moved, const char *const *data, int width, int64_t *extra);

/* Calls f with a null pointer to the integer type of this many bytes. */
template <typename F> trek_status trek_by_width(int width, const F &f)
{
    switch (width) {
    case 1: return f((uint8_t *)nullptr);
    case 2: return f((uint16_t *)nullptr);
    case 4: return f((uint32_t *)nullptr);
    case 8: return f((uint64_t *)nullptr);
    default: return f((trek_bits128 *)nullptr);
    }
}

#endif
