/* SPDX-License-Identifier: Apache-2.0 */
/* Tensor cores of sm_90a through wgmma.mma_async, and what supplies them: tensor copies, and mbarriers that count
 * their bytes. Names of sections are those of the PTX ISA 9.0. Code for compute_90a runs only on capability 9.0. */
#ifndef TREK_TENSOR_CUDA_PRODUCTS_WGMMA_CUH
#define TREK_TENSOR_CUDA_PRODUCTS_WGMMA_CUH

#include "tensor/cuda/products/mma.cuh"
#include "tensor/cuda/tensor_map.h"

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#define TREK_WGMMA 1 /* available in this pass */

/* --- mbarriers ("mbarrier"): by their addresses in shared memory ------------------------------------- */

__device__ __forceinline__ void trek_meeting_init(uint32_t at, int arrivals)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(at), "r"(arrivals) : "memory");
}
/* Makes the initialisation visible to copies and, after a barrier, to other threads. */
__device__ __forceinline__ void trek_meetings_made() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
__device__ __forceinline__ void trek_meeting_arrive(uint32_t at)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(at) : "memory");
}
__device__ __forceinline__ void trek_meeting_expect(uint32_t at, int bytes) /* and arrives */
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(at), "r"(bytes) : "memory");
}
/* Waits until the phase of that parity has ended. */
__device__ __forceinline__ void trek_meeting_wait(uint32_t at, int parity)
{
    uint32_t over;
    do {
        asm volatile(
            "{\n\t.reg .pred over;\n\tmbarrier.try_wait.parity.shared::cta.b64 over, [%1], %2;\n\tselp.u32 %0, 1, 0, over;\n\t}"
            : "=r"(over)
            : "r"(at), "r"(parity)
            : "memory");
    } while (!over);
}

/* Copies the map's box at (column, row, head, batch) to shared memory. The mbarrier counts its bytes. */
__device__ __forceinline__ void trek_copy_box(uint32_t to, const trek_tensor_map &map, int column, int second, int third,
                                              int fourth,
                                              uint32_t meeting)
{
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4, %5}], [%6];" ::"r"(
            to),
        "l"(&map), "r"(column), "r"(second), "r"(third), "r"(fourth), "r"(meeting)
        : "memory");
}

/* --- products ("Asynchronous Warpgroup Level Matrix Instructions") ------------------------------------- */

/* The "Matrix Descriptor" of data written by trek_copy_box: swizzled over 128 bytes (bits 62-63: 1), with 8 rows in
 * 1024 bytes (bits 32-45, in units of 16 bytes). Transposed (N-major), 64 more columns are `leading` bytes further on
 * (bits 16-29), see "Strides". */
__device__ __forceinline__ uint64_t trek_rows_descriptor(uint32_t at, int leading)
{
    return (uint64_t)(at >> 4 & 0x3fff) | (uint64_t)(leading >> 4) << 16 | (uint64_t)(1024 >> 4) << 32 | (uint64_t)1 << 62;
}

/* Required before the first product, and after registers were written: sums or left operands. */
__device__ __forceinline__ void trek_wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void trek_wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

/* "setmaxnreg", executed by a whole warpgroup: a thread gets fewer registers (returned at once) or more (waited for)
 * than it began with. */
template <int count> __device__ __forceinline__ void trek_registers_fewer()
{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(count));
}
template <int count> __device__ __forceinline__ void trek_registers_more()
{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(count));
}

template <typename T> constexpr bool trek_is_bf16 = false;
template <> constexpr bool trek_is_bf16<trek_bf16> = true;

#define SUMS_8(d, i)                                                                                                             \
    "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), "+f"(d[i + 7])
#define SUMS_32(d, i) SUMS_8(d, i), SUMS_8(d, i + 8), SUMS_8(d, i + 16), SUMS_8(d, i + 24)
#define NAMES_32 \
    "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define NAMES_64                                                                                                                 \
    NAMES_32 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59," \
             "%60,%61,%62,%63"

/* Waits for all products except those of the last `pending` commits; the sums, 64 x 128 or 64 x 64 in four warps, are
 * then final. */
template <int pending> __device__ __forceinline__ void trek_wgmma_wait(float (&d)[64])
{
    asm volatile("wgmma.wait_group.sync.aligned %64;" : SUMS_32(d, 0), SUMS_32(d, 32) : "n"(pending) : "memory");
}
template <int pending> __device__ __forceinline__ void trek_wgmma_wait(float (&d)[32])
{
    asm volatile("wgmma.wait_group.sync.aligned %32;" : SUMS_32(d, 0) : "n"(pending) : "memory");
}
/* These sums also belong to products that have been waited for. */
__device__ __forceinline__ void trek_wgmma_over(float (&d)[64]) { asm volatile("" : SUMS_32(d, 0), SUMS_32(d, 32)::"memory"); }
__device__ __forceinline__ void trek_wgmma_over(float (&d)[32]) { asm volatile("" : SUMS_32(d, 0)::"memory"); }

/* d [64 x N] (+)= rows at `left` times N rows at `right`, 16 of the depth: 128 or 64 rows */
#define ROWS_TIMES_ROWS(N, TYPE, NAMES, LEFT, RIGHT, ADDS, ...)                                                                  \
    asm volatile("{\n\t.reg .pred adds;\n\tsetp.ne.b32 adds, " ADDS ", 0;\n\twgmma.mma_async.sync.aligned.m64n" N                \
                 "k16.f32." TYPE "." TYPE " {" NAMES "}, " LEFT ", " RIGHT ", adds, 1, 1, 0, 0;\n\t}"                            \
                 : __VA_ARGS__                                                                                                   \
                 : "l"(left), "l"(right), "r"((int)adds)                                                                         \
                 : "memory")
template <typename T> __device__ __forceinline__ void trek_wgmma_rows(float (&d)[64], uint64_t left, uint64_t right, bool adds)
{
    if constexpr (trek_is_bf16<T>)
        ROWS_TIMES_ROWS("128", "bf16", NAMES_64, "%64", "%65", "%66", SUMS_32(d, 0), SUMS_32(d, 32));
    else
        ROWS_TIMES_ROWS("128", "f16", NAMES_64, "%64", "%65", "%66", SUMS_32(d, 0), SUMS_32(d, 32));
}
template <typename T> __device__ __forceinline__ void trek_wgmma_rows(float (&d)[32], uint64_t left, uint64_t right, bool adds)
{
    if constexpr (trek_is_bf16<T>)
        ROWS_TIMES_ROWS("64", "bf16", NAMES_32, "%32", "%33", "%34", SUMS_32(d, 0));
    else
        ROWS_TIMES_ROWS("64", "f16", NAMES_32, "%32", "%33", "%34", SUMS_32(d, 0));
}

/* d [64 x N] += a [64 x 16], in registers, times 16 rows at `right`: 128 or 64 columns */
#define WEIGHTS_TIMES_ROWS(N, TYPE, NAMES, A, ...)                                                                               \
    asm volatile("wgmma.mma_async.sync.aligned.m64n" N "k16.f32." TYPE "." TYPE " {" NAMES "}, " A ", 1, 1, 1, 1;"               \
                 : __VA_ARGS__                                                                                                   \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(right)                                                        \
                 : "memory")
template <typename T> __device__ __forceinline__ void trek_wgmma_weights(float (&d)[64], const uint32_t *a, uint64_t right)
{
    if constexpr (trek_is_bf16<T>)
        WEIGHTS_TIMES_ROWS("128", "bf16", NAMES_64, "{%64,%65,%66,%67}, %68", SUMS_32(d, 0), SUMS_32(d, 32));
    else
        WEIGHTS_TIMES_ROWS("128", "f16", NAMES_64, "{%64,%65,%66,%67}, %68", SUMS_32(d, 0), SUMS_32(d, 32));
}
template <typename T> __device__ __forceinline__ void trek_wgmma_weights(float (&d)[32], const uint32_t *a, uint64_t right)
{
    if constexpr (trek_is_bf16<T>)
        WEIGHTS_TIMES_ROWS("64", "bf16", NAMES_32, "{%32,%33,%34,%35}, %36", SUMS_32(d, 0));
    else
        WEIGHTS_TIMES_ROWS("64", "f16", NAMES_32, "{%32,%33,%34,%35}, %36", SUMS_32(d, 0));
}

#undef SUMS_8
#undef SUMS_32
#undef NAMES_32
#undef NAMES_64
#undef ROWS_TIMES_ROWS
#undef WEIGHTS_TIMES_ROWS

#endif /* __CUDA_ARCH_FEAT_SM90_ALL */

#endif
