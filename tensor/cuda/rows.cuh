/* SPDX-License-Identifier: Apache-2.0 */
/* Contiguous rows, each kept in the registers of a team of threads: part of a warp, a warp, or a block. Memory is
 * read once and written once, 16 bytes at a time if rows are aligned. */
#ifndef TREK_TENSOR_CUDA_ROWS_CUH
#define TREK_TENSOR_CUDA_ROWS_CUH

#include "tensor/cuda/block.cuh"

/* Elements of T at once: 16 bytes. Elements of a row in one thread's registers: 32 f32 or 16 f64. */
template <typename T> struct trek_row_sizes {
    static const int vector = 16 / (int)sizeof(T);
    static const int values = 128 / (int)sizeof(typename trek_wide<T>::type);
};

/* A thread's part of a row of n: vectors thread, thread + width, ... Outside the row the value is `fill`. */
template <typename T, int V, int values> struct trek_row {
    typedef typename trek_wide<T>::type W;
    W v[values];
    template <typename S> __device__ __forceinline__ void load(const S *row, int n, int thread, int width, W fill)
    {
#pragma unroll
        for (int k = 0; k < values / V; k++) {
            int j = (k * width + thread) * V;
            if (j < n) {
                trek_vector<S, V> x = *reinterpret_cast<const trek_vector<S, V> *>(row + j);
#pragma unroll
                for (int i = 0; i < V; i++)
                    v[k * V + i] = trek_get(x.x[i]);
            } else {
#pragma unroll
                for (int i = 0; i < V; i++)
                    v[k * V + i] = fill;
            }
        }
    }
    __device__ __forceinline__ void store(T *row, int n, int thread, int width) const
    {
#pragma unroll
        for (int k = 0; k < values / V; k++) {
            int j = (k * width + thread) * V;
            if (j >= n)
                continue;
            trek_vector<T, V> x;
#pragma unroll
            for (int i = 0; i < V; i++)
                x.x[i] = trek_store<T>::of(v[k * V + i]);
            *reinterpret_cast<trek_vector<T, V> *>(row + j) = x;
        }
    }
};

/* How rows are assigned to teams. */
struct trek_row_plan {
    bool fits;     /* in registers */
    bool vector;   /* 16 bytes at once */
    int log_width; /* threads of a team */
    int teams;     /* of a block */
    unsigned blocks, threads;
};

/* Plans rows of n elements of `size` bytes, with at most `values` in a thread and at most `most` threads. */
inline trek_row_plan trek_plan_rows(int64_t rows, int64_t n, int size, int values, int most, bool aligned)
{
    trek_row_plan p = {};
    int vector = 16 / size;
    p.vector = aligned && n % vector == 0;
    int64_t pieces = p.vector ? n / vector : n, each = p.vector ? values / vector : values;
    int64_t needed = (pieces + each - 1) / each;
    int full = trek_log2_up(pieces < 1 ? 1 : pieces);
    p.log_width = full < 5 ? full : trek_log2_up(needed) > 5 ? trek_log2_up(needed) : 5;
    p.fits = ((int64_t)1 << p.log_width) <= most;
    if (!p.fits)
        return p;
    p.teams = p.log_width <= 5 ? 128 >> p.log_width : 1;
    p.threads = (unsigned)(p.teams << p.log_width);
    int64_t blocks = (rows + p.teams - 1) / p.teams;
    p.fits = blocks <= 0x7fffffff;
    p.blocks = (unsigned)(blocks < 1 ? 1 : blocks);
    return p;
}

/* This thread's position in its team, and its team's row (among the rows of the grid's next teams). */
struct trek_team {
    int width, thread;
    int64_t row;
    bool inside; /* otherwise row is the last one, and nothing may be written */
};
__device__ __forceinline__ trek_team trek_team_here(int log_width, int64_t rows)
{
    trek_team t;
    t.width = 1 << log_width;
    t.thread = (int)threadIdx.x & (t.width - 1);
    t.row = (int64_t)blockIdx.x * (blockDim.x >> log_width) + (threadIdx.x >> log_width);
    t.inside = t.row < rows;
    t.row = t.inside ? t.row : rows - 1;
    return t;
}

#endif
