/* SPDX-License-Identifier: Apache-2.0 */
/* What attention forward and backward on sm_90a share: the shape of a block, its mbarriers and tensor copies,
 * products of tiles, and which calls they accept. A block owns 128 rows of one side, 64 for each of two warpgroups. A
 * ninth warp requests tiles of the other side, in two stages. This is compiled for compute_90a in addition to the library's
 * architectures, for which the code of these kernels is empty (tensor/cuda/meson.build). */
#ifndef TREK_TENSOR_CUDA_ATTENTION_ATTENTION_WGMMA_CUH
#define TREK_TENSOR_CUDA_ATTENTION_ATTENTION_WGMMA_CUH

#include "tensor/cuda/attention/attention.cuh"
#include "tensor/cuda/products/wgmma.cuh"

enum { OWN_ROWS = 128, STAGES = 2, COMPUTING = 8, THREADS = 32 * (COMPUTING + 1) };

/* Tiles are stored in chunks of 64 columns, a row of which has 128 bytes. */
template <int D, int ROWS> static constexpr int tile_bytes = D / 64 * ROWS * 128;
enum { HALF = OWN_ROWS / 2 * 128 }; /* bytes from one warpgroup's rows to the other's */

/* The mbarriers of a block: one tells that what it owns has arrived, and for each stage and each kind, two tell that
 * it has arrived and that it has been read. */
template <int KINDS> static constexpr int meeting_bytes = 8 * (1 + 2 * KINDS * STAGES);

#ifdef TREK_WGMMA

template <int KINDS> struct meeting_places {
    uint32_t base;
    __device__ __forceinline__ uint32_t own() const { return base; }
    __device__ __forceinline__ uint32_t there(int kind, int stage) const { return base + 8 * (1 + KINDS * stage + kind); }
    __device__ __forceinline__ uint32_t read(int kind, int stage) const { return there(kind, STAGES + stage); }
    /* Called by one thread before a barrier. `arrivals` are those of the data that has arrived. */
    __device__ __forceinline__ void make(int arrivals) const
    {
        trek_meeting_init(own(), 1);
        for (int stage = 0; stage < STAGES; stage++)
            for (int kind = 0; kind < KINDS; kind++) {
                trek_meeting_init(there(kind, stage), arrivals);
                trek_meeting_init(read(kind, stage), COMPUTING);
            }
        trek_meetings_made();
    }
};

/* Returns where shared memory begins for swizzled data. */
__device__ __forceinline__ char *shared_begin()
{
    char *shared = (char *)trek_dynamic_shared();
    return shared + ((1024 - ((uint32_t)__cvta_generic_to_shared(shared) & 1023)) & 1023);
}

/* Returns a coordinate of a box; the dimensions are in the map's order. */
__device__ __forceinline__ int place_in(const trek_tensor_map &map, int at, int row, int head, int batch)
{
    return map.row_at == at ? row : map.head_at == at ? head : batch;
}

/* Called by one thread: requests ROWS rows from `row` on. */
template <int D, int ROWS>
__device__ __forceinline__ void send_tile(uint32_t to, const trek_tensor_map &map, int row, int head, int batch, uint32_t meeting)
{
    const int second = place_in(map, 0, row, head, batch), third = place_in(map, 1, row, head, batch),
              fourth = place_in(map, 2, row, head, batch);
    for (int c = 0; c < D / 64; c++)
        trek_copy_box(to + c * ROWS * 128, map, c * 64, second, third, fourth, meeting);
}

/* All lanes have what a stage contained, and one of them reports it. */
__device__ __forceinline__ void give_back(uint32_t meeting)
{
    __syncwarp();
    if (threadIdx.x % 32 == 0)
        trek_meeting_arrive(meeting);
}

/* Computes s = a warpgroup's own 64 rows at x times the rows of a tile at y, over the depth. It does not wait for the
 * result. */
template <typename T, int D, int A> __device__ __forceinline__ void scores(float (&s)[A], uint32_t x, uint32_t y)
{
#pragma unroll
    for (int c = 0; c < D / 16; c++) /* 16 columns are 32 bytes of a row */
        trek_wgmma_rows<T>(s, trek_rows_descriptor(x + c / 4 * tile_bytes<64, OWN_ROWS> + c % 4 * 32, 16),
                           trek_rows_descriptor(y + c / 4 * tile_bytes<64, 2 * A> + c % 4 * 32, 16), c > 0);
}

/* Computes acc += weights, in pairs as a product left them, times the rows of a tile at y. It does not wait for the
 * result. */
template <typename T, int A, int W> __device__ __forceinline__ void weigh(float (&acc)[A], const uint32_t (&w)[W], uint32_t y)
{
#pragma unroll
    for (int c = 0; c < W / 4; c++) /* 16 rows are 2048 bytes */
        trek_wgmma_weights<T>(acc, w + 4 * c, trek_rows_descriptor(y + c * 2048, tile_bytes<64, 4 * W>));
}

/* Sets the scores of hidden keys to -infinity. `row` is the first of a thread's two rows, and `column` its first
 * column. With of_keys, rows are keys and columns are queries. */
template <bool of_keys, int A> __device__ __forceinline__ void hide(float (&s)[A], bool causal, int row, int column, int keys)
{
#pragma unroll
    for (int n = 0; n < A / 4; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const int own = row + e / 2 * 8, other = column + n * 8 + e % 2;
            const int i = of_keys ? other : own, j = of_keys ? own : other;
            if (j >= keys || (causal && j > i))
                s[4 * n + e] = -INFINITY;
        }
}

/* Writes one of a thread's two rows, times a factor. */
template <typename T, int A>
__device__ __forceinline__ void write_row(uint16_t *to, const float (&acc)[A], int half, float factor, int depth)
{
#pragma unroll
    for (int n = 0; n < A / 4; n++) {
        const int column = n * 8 + (int)threadIdx.x % 4 * 2;
        if (column < depth)
            *(uint32_t *)(to + column) = trek_pack2<T>(acc[4 * n + 2 * half] * factor, acc[4 * n + 2 * half + 1] * factor);
    }
}

#endif /* TREK_WGMMA */

/* --- calls ---------------------------------------------------------------------------------------------- */

/* Returns whether the sm_90a kernel exists: for other architectures its code in the library is empty. This is
 * determined once for each device. */
static inline bool is_there(const trek_cuda_queue *queue, const void *kernel, int *known)
{
    const trek_device_info &info = queue->device->info;
    const int index = queue->device->index;
    if (info.major != 9 || info.minor != 0 || index < 0 || index >= 16)
        return trek_cuda_refuse_it("a compute capability other than 9.0, or a device beyond the sixteenth");
    int seen = __atomic_load_n(known, __ATOMIC_ACQUIRE) >> 2 * index & 3;
    if (!seen) {
        cudaFuncAttributes attributes;
        const bool there = cudaFuncGetAttributes(&attributes, kernel) == cudaSuccess && attributes.ptxVersion >= 90;
        if (!there)
            (void)cudaGetLastError();
        seen = there ? 1 : 2;
        __atomic_fetch_or(known, seen << 2 * index, __ATOMIC_RELEASE);
    }
    return seen == 1 || trek_cuda_refuse_it("the device has no code of the kernel for sm_90a");
}

/* For tiles of `rows` rows. */
static inline bool map_of(trek_tensor_map *map, const attention_operand &o, const attention_job &job, bool of_keys, int rows,
                          trek_dtype dtype)
{
    const int64_t sizes[4] = { job.batch, of_keys ? job.kv_heads : job.heads, of_keys ? job.keys : job.queries, job.depth };
    return trek_tensor_map_rows(map, o.data, dtype, sizes, o.strides, rows);
}

#endif
