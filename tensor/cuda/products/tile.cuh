/* SPDX-License-Identifier: Apache-2.0 */
/* A matrix product on tiles for any operands: matrices with any strides, and the image windows that a convolution
 * multiplies. It supports every dtype and device. */
#ifndef TREK_TENSOR_CUDA_PRODUCTS_TILE_CUH
#define TREK_TENSOR_CUDA_PRODUCTS_TILE_CUH

#include "tensor/cuda/device.cuh"

#define TREK_TILE 64      /* rows and columns of a block's tile of C */
#define TREK_TILE_DEPTH 16
#define TREK_TILE_THREADS 256

/* The type in which elements of T are summed; integers wrap. */
template <typename T> struct trek_sum_of { typedef float type; };
template <> struct trek_sum_of<double> { typedef double type; };
template <> struct trek_sum_of<int64_t> { typedef uint64_t type; };
template <> struct trek_sum_of<int32_t> { typedef uint32_t type; };
template <> struct trek_sum_of<uint8_t> { typedef uint32_t type; };

/* a * b + c, with a single rounding on a GPU. */
__device__ __forceinline__ float trek_multiply_add(float a, float b, float c)
{
#ifdef __CUDA_ARCH__
    return __fmaf_rn(a, b, c);
#else
    return a * b + c;
#endif
}
__device__ __forceinline__ double trek_multiply_add(double a, double b, double c)
{
#ifdef __CUDA_ARCH__
    return __fma_rn(a, b, c);
#else
    return a * b + c;
#endif
}
__device__ __forceinline__ uint32_t trek_multiply_add(uint32_t a, uint32_t b, uint32_t c) { return a * b + c; }
__device__ __forceinline__ uint64_t trek_multiply_add(uint64_t a, uint64_t b, uint64_t c) { return a * b + c; }

/* Computes one tile: rows from row0 below m, columns from column0 below n, and sums over p in [begin, end) in order.
 * A and B have `place at(int64_t line)`, which prepares a row of A or a column of B, `W load(place, int64_t p)`,
 * which reads its element p, and `along_p`, which tells whether elements with neighbouring p are neighbours in
 * memory. store(row, column, sum) is called once for each element of the tile. */
template <typename W, typename A, typename B, typename Store>
__device__ __forceinline__ void trek_tile_product(const A &a, const B &b, const Store &store, int64_t row0, int64_t column0,
                                                  int64_t m, int64_t n, int64_t begin, int64_t end)
{
    TREK_SHARED(W, a_tile, TREK_TILE_DEPTH * (TREK_TILE + 1));
    TREK_SHARED(W, b_tile, TREK_TILE_DEPTH * (TREK_TILE + 1));
    const int t = (int)threadIdx.x, tx = t % 16, ty = t / 16;
    W sum[4][4];
    int a_line[4], a_depth[4], b_line[4], b_depth[4];
    typename A::place a_place[4];
    typename B::place b_place[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
#pragma unroll
        for (int j = 0; j < 4; j++)
            sum[i][j] = 0;
        a_line[i] = a.along_p ? t / 16 + 16 * i : t % 64;
        a_depth[i] = a.along_p ? t % 16 : t / 64 + 4 * i;
        b_line[i] = b.along_p ? t / 16 + 16 * i : t % 64;
        b_depth[i] = b.along_p ? t % 16 : t / 64 + 4 * i;
        if (row0 + a_line[i] < m)
            a_place[i] = a.at(row0 + a_line[i]);
        if (column0 + b_line[i] < n)
            b_place[i] = b.at(column0 + b_line[i]);
    }
    for (int64_t p = begin; p < end; p += TREK_TILE_DEPTH) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            bool in_a = row0 + a_line[i] < m && p + a_depth[i] < end, in_b = column0 + b_line[i] < n && p + b_depth[i] < end;
            a_tile[a_depth[i] * (TREK_TILE + 1) + a_line[i]] = in_a ? a.load(a_place[i], p + a_depth[i]) : (W)0;
            b_tile[b_depth[i] * (TREK_TILE + 1) + b_line[i]] = in_b ? b.load(b_place[i], p + b_depth[i]) : (W)0;
        }
        __syncthreads();
#pragma unroll 4
        for (int q = 0; q < TREK_TILE_DEPTH; q++) {
            W x[4], y[4];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                x[i] = a_tile[q * (TREK_TILE + 1) + ty * 4 + i];
                y[i] = b_tile[q * (TREK_TILE + 1) + tx + 16 * i];
            }
#pragma unroll
            for (int i = 0; i < 4; i++)
#pragma unroll
                for (int j = 0; j < 4; j++)
                    sum[i][j] = trek_multiply_add(x[i], y[j], sum[i][j]);
        }
        __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int j = 0; j < 4; j++)
            if (row0 + ty * 4 + i < m && column0 + tx + 16 * j < n)
                store(row0 + ty * 4 + i, column0 + tx + 16 * j, sum[i][j]);
}

/* The grid has the tiles of C in one dimension, and a batch (at most 65535 at a time) in another. */
inline trek_grid trek_tile_grid(int64_t m, int64_t n, int64_t batch)
{
    int64_t tiles = ((m + TREK_TILE - 1) / TREK_TILE) * ((n + TREK_TILE - 1) / TREK_TILE);
    return trek_blocks(dim3((unsigned)tiles, (unsigned)(batch < 65535 ? batch : 65535)), dim3(TREK_TILE_THREADS));
}

#endif
