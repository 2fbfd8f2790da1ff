/* SPDX-License-Identifier: Apache-2.0 */
/* Tensor cores through mma.sync (from sm_80 on) and what supplies them: ldmatrix and cp.async. Fragments are in
 * registers as PTX's ISA defines. In the tests' shim the same functions exchange values between the lanes, so that
 * layouts are tested without a GPU. */
#ifndef TREK_TENSOR_CUDA_PRODUCTS_MMA_CUH
#define TREK_TENSOR_CUDA_PRODUCTS_MMA_CUH

#include "tensor/cuda/approximate.cuh"

#if defined(TREK_FAKE_CUDA) || (defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800)
#define TREK_MMA 1 /* available in this pass */
#endif

#ifdef TREK_MMA

template <typename T> __device__ __forceinline__ uint32_t trek_pack2(float low, float high)
{
    return (uint32_t)trek_store<T>::of(low).bits | (uint32_t)trek_store<T>::of(high).bits << 16;
}

#ifndef TREK_FAKE_CUDA

template <> __device__ __forceinline__ uint32_t trek_pack2<trek_bf16>(float low, float high)
{
    uint32_t packed;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
    return packed;
}
template <> __device__ __forceinline__ uint32_t trek_pack2<trek_f16>(float low, float high)
{
    uint32_t packed;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
    return packed;
}

/* d [16 x 8] += a [16 x 16] b [16 x 8] */
template <typename T> __device__ __forceinline__ void trek_mma(float d[4], const uint32_t a[4], uint32_t b0, uint32_t b1);
template <> __device__ __forceinline__ void trek_mma<trek_bf16>(float d[4], const uint32_t a[4], uint32_t b0, uint32_t b1)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
template <> __device__ __forceinline__ void trek_mma<trek_f16>(float d[4], const uint32_t a[4], uint32_t b0, uint32_t b1)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* Loads four 8 x 8 matrices of 16-bit elements. Lane l gives the address of row l % 8 of matrix l / 8. */
__device__ __forceinline__ void trek_load_matrices(uint32_t r[4], const uint16_t *row)
{
    uint32_t at = (uint32_t)__cvta_generic_to_shared(row);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at)
                 : "memory");
}
/* The same with each matrix transposed. */
__device__ __forceinline__ void trek_load_turned(uint32_t r[4], const uint16_t *row)
{
    uint32_t at = (uint32_t)__cvta_generic_to_shared(row);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at)
                 : "memory");
}

/* Copies 16 bytes from global to shared memory, or zeros. They have arrived after a commit and a wait. */
__device__ __forceinline__ void trek_copy_async(void *to, const void *from, bool there)
{
    uint32_t at = (uint32_t)__cvta_generic_to_shared(to);
    int bytes = there ? 16 : 0;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(at), "l"(from), "r"(bytes) : "memory");
}
__device__ __forceinline__ void trek_copy_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
/* Waits until all except the last `pending` commits have arrived (for this thread; a barrier tells the others). */
template <int pending> __device__ __forceinline__ void trek_copy_wait()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(pending) : "memory");
}

#else /* the shim: lanes exchange what the hardware would */

/* What the lanes of a warp show each other in one instruction. There are two of these, used in turn: a lane may reach
 * the next instruction before all lanes have read what was shown in this one, but not the one after it. */
struct trek_shown {
    float a[16][16], b[16][8]; /* by column and row, by row and column */
    const uint16_t *rows[32];
};
struct trek_warp_shown {
    uint32_t turn[32]; /* of each lane */
    trek_shown shown[2];
};
inline trek_shown *trek_show()
{
    TREK_SHARED(trek_warp_shown, warps, 8);
    if (threadIdx.x >= 256)
        trek_shim_trap("products of matrices in a block of more than 8 warps: the shim has no room for them");
    trek_warp_shown *mine = &warps[threadIdx.x / 32];
    return &mine->shown[++mine->turn[threadIdx.x % 32] % 2];
}

template <typename T> inline float trek_half_of(uint32_t packed, int k) { return trek_get(T{ (uint16_t)(packed >> (16 * k)) }); }

template <typename T> inline void trek_mma(float d[4], const uint32_t a[4], uint32_t b0, uint32_t b1)
{
    trek_shown *s = trek_show();
    int lane = (int)threadIdx.x % 32, group = lane / 4, pair = lane % 4 * 2;
    for (int k = 0; k < 2; k++) {
        for (int r = 0; r < 4; r++)
            s->a[pair + k + r / 2 * 8][group + r % 2 * 8] = trek_half_of<T>(a[r], k);
        s->b[pair + k][group] = trek_half_of<T>(b0, k);
        s->b[pair + k + 8][group] = trek_half_of<T>(b1, k);
    }
    __syncwarp();
    float sums[4] = { d[0], d[1], d[2], d[3] };
    for (int k = 0; k < 16; k++)
        for (int e = 0; e < 4; e++)
            sums[e] += s->a[k][group + e / 2 * 8] * s->b[k][pair + e % 2];
    memcpy(d, sums, sizeof sums);
}

inline void trek_load_matrices(uint32_t r[4], const uint16_t *row)
{
    trek_shown *s = trek_show();
    int lane = (int)threadIdx.x % 32;
    s->rows[lane] = row;
    __syncwarp();
    for (int m = 0; m < 4; m++) {
        const uint16_t *from = s->rows[m * 8 + lane / 4] + lane % 4 * 2;
        r[m] = (uint32_t)from[0] | (uint32_t)from[1] << 16;
    }
}

inline void trek_load_turned(uint32_t r[4], const uint16_t *row)
{
    trek_shown *s = trek_show();
    int lane = (int)threadIdx.x % 32;
    s->rows[lane] = row;
    __syncwarp();
    for (int m = 0; m < 4; m++) {
        const uint16_t *const *from = s->rows + m * 8 + lane % 4 * 2;
        r[m] = (uint32_t)from[0][lane / 4] | (uint32_t)from[1][lane / 4] << 16;
    }
}

inline void trek_copy_async(void *to, const void *from, bool there)
{
    if (there)
        memcpy(to, from, 16);
    else
        memset(to, 0, 16);
}
inline void trek_copy_commit() {}
template <int pending> inline void trek_copy_wait() {}

#endif

/* Reduces over the four lanes that share a row of sums. */
__device__ __forceinline__ float trek_quad_largest(float x)
{
    x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
    return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
}
__device__ __forceinline__ float trek_quad_sum(float x)
{
    x += __shfl_xor_sync(0xffffffffu, x, 1);
    return x + __shfl_xor_sync(0xffffffffu, x, 2);
}
#endif /* TREK_MMA */

#endif
