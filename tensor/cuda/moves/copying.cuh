/* SPDX-License-Identifier: Apache-2.0 */
/* Copies of elements as bits between any strides, for all kernels that need one. */
#ifndef TREK_TENSOR_CUDA_MOVES_COPYING_CUH
#define TREK_TENSOR_CUDA_MOVES_COPYING_CUH

#include "tensor/cuda/layout.cuh"

/* Elements of `width` bytes from operand 1 of a plan to operand 0, both at their data; the order is free. */
trek_status trek_cuda_copy_plan(const trek_op_call *call, trek_cuda_queue *queue, trek_plan p, char *to, const char *from,
                                int width);
/* out = in: same sizes, or in broadcast; dtypes of one width. */
trek_status trek_cuda_copy_tensor(const trek_op_call *call, trek_cuda_queue *queue, const trek_tensor *out,
                                  const trek_tensor *in);

/* Units of 16 bytes. */
struct alignas(16) trek_bits128 {
    uint64_t x[2];
};

/* The widest unit (bytes; at least `width`) that rows of the plan can be moved in: all operands of `moved` (bits) lie
 * end to end and aligned along the innermost dimension, all others stand still. extra: one more stride in elements
 * that must be whole. The plan is changed to count in units. */
int trek_plan_widen(trek_plan *p, unsigned moved, const char *const *data, int width, int64_t *extra);

/* Calls f with a null pointer to the integer type of so many bytes. */
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
