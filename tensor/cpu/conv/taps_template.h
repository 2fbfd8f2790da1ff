/* SPDX-License-Identifier: Apache-2.0 */
/* Sums of weighted elements that an index selects, for one real type (tensor/cpu/vector.h). Resampling and sampling
 * at positions of a grid spend most of their time in them. */
#include "tensor/cpu/vector.h"

/* Loads x[index[l]] for each lane; 0 if the index is negative, without reading. */
TREK_INLINE V TREK_R(gather)(const T *x, const int32_t *index)
{
#if defined(__AVX512F__)
    if (sizeof(T) == 4) {
        __m512i at = _mm512_loadu_si512(index);
        __m512 found = _mm512_mask_i32gather_ps(_mm512_setzero_ps(), _mm512_movepi32_mask(~at), at, x, 4);
        return (V)found;
    }
    __m256i at = _mm256_loadu_si256((const __m256i *)(const void *)index);
    return (V)_mm512_mask_i32gather_pd(_mm512_setzero_pd(), _mm256_movepi32_mask(~at), at, x, 8);
#elif defined(__AVX2__)
    if (sizeof(T) == 4) {
        __m256i at = _mm256_loadu_si256((const __m256i *)(const void *)index);
        return (V)_mm256_mask_i32gather_ps(_mm256_setzero_ps(), (const float *)(const void *)x, at, (__m256)~at, 4);
    }
    __m128i at = _mm_loadu_si128((const __m128i *)(const void *)index);
    __m256i all = ~_mm256_cvtepi32_epi64(at);
    return (V)_mm256_mask_i32gather_pd(_mm256_setzero_pd(), (const double *)(const void *)x, at, (__m256d)all, 8);
#else
    V v = { 0 };
    for (int l = 0; l < W; l++)
        v[l] = index[l] >= 0 ? x[index[l]] : 0;
    return v;
#endif
}

TREK_INLINE void TREK_R(weigh_some)(T *y, int64_t n, const T *x, const int32_t *index, const T *weight, int64_t taps,
                                    int64_t step)
{
    for (int64_t i = 0; i < n; i += W) {
        V sum = TREK_R(gather)(x, index + i) * TREK_R(load)(weight + i);
        for (int64_t t = 1; t < taps; t++)
            sum = TREK_R(fma)(TREK_R(gather)(x, index + t * step + i), TREK_R(load)(weight + t * step + i), sum);
        TREK_R(store_part)(y + i, TREK_R(lanes)(n - i < W ? (int)(n - i) : W), sum);
    }
}

/* Computes y[i] = sum over t of weight[t step + i] x[index[t step + i]]. The tables are padded to whole vectors. */
static void TREK_R(weigh)(T *y, int64_t n, const T *x, const int32_t *index, const T *weight, int64_t taps, int64_t step)
{
    switch (taps) { /* the usual numbers are unrolled */
    case 1: TREK_R(weigh_some)(y, n, x, index, weight, 1, step); break;
    case 2: TREK_R(weigh_some)(y, n, x, index, weight, 2, step); break;
    case 4: TREK_R(weigh_some)(y, n, x, index, weight, 4, step); break;
    default: TREK_R(weigh_some)(y, n, x, index, weight, taps, step); break;
    }
}
