/* SPDX-License-Identifier: Apache-2.0 */
/* Lines along one dimension of operands with any strides, for ops that give a value for each element of a line.
 * Threads are assigned along the line or across neighbouring lines, whichever is closer in memory. */
#ifndef TREK_TENSOR_CUDA_LINES_CUH
#define TREK_TENSOR_CUDA_LINES_CUH

#include "tensor/cuda/block.cuh"

#define TREK_LINE_OPERANDS 3

struct trek_lines {
    int n_dims, operands;
    bool wide;
    int64_t lines, n;                  /* n: elements of a line */
    int64_t step[TREK_LINE_OPERANDS];  /* along the line */
    struct {
        int64_t size, step[TREK_LINE_OPERANDS];
        trek_quotient by;
    } dims[TREK_MAX_DIMS];             /* the others */
    trek_block_layout layout;
};

/* First elements of a line. */
struct trek_line {
    int64_t at[TREK_LINE_OPERANDS];
};
__device__ __forceinline__ trek_line trek_line_at(const trek_lines &l, int64_t index)
{
    trek_line line = { { 0, 0, 0 } };
    for (int d = l.n_dims - 1; d >= 0; d--) {
        int64_t next = d == 0 ? 0 : l.wide ? index / l.dims[d].size : (int64_t)l.dims[d].by((uint32_t)index);
        int64_t at = index - next * l.dims[d].size;
#pragma unroll
        for (int k = 0; k < TREK_LINE_OPERANDS; k++)
            line.at[k] += at * l.dims[d].step[k];
        index = next;
    }
    return line;
}

/* Makes lines along `dim` of tensors of one shape (operand 0: the output), and assigns threads accordingly (lines.cu). */
trek_lines trek_lines_of(const trek_tensor *const *tensors, int operands, int dim);

inline trek_grid trek_lines_grid(const trek_lines &l)
{
    int64_t blocks = (l.lines - 1) / ((int64_t)1 << l.layout.log_c) + 1;
    return trek_blocks(dim3((unsigned)blocks), dim3(1u << (l.layout.log_r + l.layout.log_c)));
}

#endif
