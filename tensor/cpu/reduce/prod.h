/* SPDX-License-Identifier: Apache-2.0 */
/* Products of f32. Converting each element to f64 takes longer than multiplying it, so four elements are multiplied in f32 first,
 * in pairs, as four are added in sums; the products of these in f64. Where a pair is not within 2^+-60, so that digits could be
 * lost or a product of four could be too large, the elements are multiplied in f64 alone. */
#ifndef TREK_TENSOR_CPU_REDUCE_PROD_H
#define TREK_TENSOR_CPU_REDUCE_PROD_H

#include "tensor/cpu/row_math.h"

typedef int32_t trek_i32x8 __attribute__((vector_size(32)));

/* The largest and the smallest magnitude of pairs so far, as bits. */
typedef struct trek_pair_range {
    trek_i32x8 largest, smallest;
} trek_pair_range;

#define TREK_PAIR_BITS(power) ((power + 127) << 23)
#define TREK_PAIR_RANGE { .largest = { 0 }, .smallest = (trek_i32x8){ 0 } + INT32_MAX }

/* Multiplies eight elements by eight others; `range` then includes the products. */
static inline __attribute__((always_inline)) void trek_pair_product(trek_f32x8 *to, const void *from, const void *other,
                                                                    trek_pair_range *range)
{
    trek_f32x8 a, b;
    memcpy(&a, from, sizeof a);
    memcpy(&b, other, sizeof b);
    const trek_f32x8 product = a * b;
    const trek_i32x8 size = (trek_i32x8)product & INT32_MAX;
#if defined(__AVX2__)
    range->largest = (trek_i32x8)_mm256_max_epi32((__m256i)size, (__m256i)range->largest);
    range->smallest = (trek_i32x8)_mm256_min_epi32((__m256i)size, (__m256i)range->smallest);
#else
    const trek_i32x8 above = size > range->largest, below = size < range->smallest;
    range->largest = (size & above) | (range->largest & ~above);
    range->smallest = (size & below) | (range->smallest & ~below);
#endif
    *to = product;
}

static inline bool trek_pairs_fit(const trek_pair_range *range)
{
    const trek_i32x8 off = (range->largest > TREK_PAIR_BITS(60)) | (range->smallest < TREK_PAIR_BITS(-60));
#if defined(__AVX2__)
    return _mm256_testz_si256((__m256i)off, (__m256i)off);
#else
    return !trek_any_set(&off, sizeof off);
#endif
}

/* Returns the product of n elements, and sets *fit. */
static inline double trek_row_prod_of_fours(const float *x, int64_t n, bool *fit)
{
    trek_f64x8 products[4], eight;
    trek_f32x8 first, second;
    trek_pair_range range = TREK_PAIR_RANGE;
    int64_t i = 0;
    for (int k = 0; k < 4; k++)
        products[k] = (trek_f64x8){ 0 } + 1;
    for (; i + 128 <= n; i += 128)
        for (int k = 0; k < 4; k++) {
            const float *from = x + i + 32 * k;
            trek_pair_product(&first, from, from + 8, &range);
            trek_pair_product(&second, from + 16, from + 24, &range);
            products[k] *= TREK_WIDENED(first * second);
        }
    for (; i + 32 <= n; i += 32) {
        trek_pair_product(&first, x + i, x + i + 8, &range);
        trek_pair_product(&second, x + i + 16, x + i + 24, &range);
        products[0] *= TREK_WIDENED(first * second);
    }
    for (; i + 8 <= n; i += 8) {
        TREK_EIGHT_f32(eight, x + i)
        products[1] *= eight;
    }
    products[0] = (products[0] * products[1]) * (products[2] * products[3]);
    TREK_JOIN_EIGHT(products[0], product, *)
    for (; i < n; i++)
        product *= (double)x[i];
    *fit = n < 32 || trek_pairs_fit(&range);
    return product;
}

/* products[i] *= element i of four rows, n a multiple of 8. */
static inline void trek_prod_fours_of_rows(double *products, const char *row, int64_t stride, int64_t n, trek_pair_range *range)
{
    trek_pair_range own = *range;
    for (int64_t i = 0; i < n; i += 8) {
        const char *from = row + i * (int64_t)sizeof(float);
        trek_f32x8 first, second;
        trek_f64x8 product;
        trek_pair_product(&first, from, from + stride, &own);
        trek_pair_product(&second, from + 2 * stride, from + 3 * stride, &own);
        memcpy(&product, products + i, sizeof product);
        product *= TREK_WIDENED(first * second);
        memcpy(products + i, &product, sizeof product);
    }
    *range = own;
}

#endif
