/* SPDX-License-Identifier: Apache-2.0 */
/* Packing for products of 16-bit numbers. Units of four bytes are adjacent, one for each lane (row of A or column of
 * B), for one index along k: a number widened to f32, or the pair of two consecutive bf16 along k. Included by
 * gemm_half.c. */

/* Computes to[u * to_row + l], lanes l < lanes, from numbers from[l * lane + p * step], p < k; an odd last number is
 * paired with zero. The contents of lanes..fill do not matter: they are multiplied, but not read. */
typedef struct packing {
    float *to;
    int64_t to_row;
    int lanes, fill;
    int64_t readable;      /* lanes in memory from the first on: those after `lanes` may be read */
    const char *from;
    int64_t lane, step, k;
} packing;

/* For lanes that are adjacent in memory. */
TREK_INLINE void pack_side_by_side(const packing *c, const trek_dtype dtype, const bool pairs)
{
    const int size = dtype == TREK_F32 ? 4 : 2;
    const int64_t k = c->k, step = c->step, to_row = c->to_row; /* local copies, so that they are not read again after each
                                                                 * store */
    const char *from = c->from;
    float *to = c->to;
    if (c->lanes == 2 * W && !pairs) { /* most of B */
        for (int64_t p = 0; p < k; p++, from += step * size, to += to_row) {
            store_f32(to, load_whole(dtype, from));
            store_f32(to + W, load_whole(dtype, from + W * size));
        }
        return;
    }
    for (int l = 0; l < c->lanes; l += W) {
        const int n = c->readable - l > W ? W : (int)(c->readable - l);
        const trek_lanes written = lanes_f32(c->fill - l > W ? W : c->fill - l);
        from = c->from + l * size;
        to = c->to + l;
        if (!pairs && n == W) {
            for (int64_t p = 0; p < k; p++, from += step * size, to += to_row)
                store_part_f32(to, written, load_whole(dtype, from));
        } else if (!pairs) {
            for (int64_t p = 0; p < k; p++, from += step * size, to += to_row)
                store_part_f32(to, written, load_numbers(dtype, from, n));
        } else {
            for (int64_t p = 0; p < k; p += 2, from += 2 * step * size, to += to_row) {
                half_words low = to_words(load_halves((const uint16_t *)(const void *)from, n)), high = { 0 };
                if (p + 1 < k)
                    high = to_words(load_halves((const uint16_t *)(const void *)from + step, n));
                store_part_f32(to, written, (V)(low | high << 16));
            }
        }
    }
}

/* Loads W words of each of W lanes, transposed: pairs, or numbers of four bytes. `per` numbers in a word, n numbers
 * left. */
TREK_INLINE void load_transposed(V *r, const char *from, int64_t lane_bytes, int lanes, const int per, int64_t n)
{
    const int count = n < per * W ? (int)n : per * W;
    const char *last = from + (lanes - 1) * lane_bytes;
#pragma GCC unroll 16
    for (int l = 0; l < W; l++, from += lane_bytes) { /* lanes after the last one repeat it */
        const void *at = l < lanes ? from : last;
        if (count == per * W)
            memcpy(&r[l], at, sizeof r[l]);
        else
            r[l] = per == 2 ? (V)load_pairs(at, count) : load_part_f32(at, lanes_f32(count));
    }
    transpose_f32(r);
}

/* Stores the units of W transposed words below each other; `left` numbers along k are left. Indices are constants
 * after unrolling, so that r stays in registers. */
TREK_INLINE void store_transposed(float *to, const int64_t to_row, const trek_lanes written, const V *r, const trek_dtype dtype,
                                  const bool whole, const int per, const int64_t left)
{
#pragma GCC unroll 16
    for (int u = 0; u < W; u++) {
        if (whole && per * u < left)
            store_part_f32(to + u * to_row, written, r[u]);
        if (!whole && 2 * u < left)
            store_part_f32(to + 2 * u * to_row, written, widen_low(dtype, (half_words)r[u]));
        if (!whole && 2 * u + 1 < left)
            store_part_f32(to + (2 * u + 1) * to_row, written, widen_high(dtype, (half_words)r[u]));
    }
}

/* For lanes whose numbers are contiguous in memory. */
TREK_INLINE void pack_transposed_numbers(const packing *c, const trek_dtype dtype, const bool pairs)
{
    const int per = dtype == TREK_F32 ? 1 : 2, size = 4 / per;
    const bool whole = per == 1 || pairs;
    const int64_t k = c->k, lane_bytes = c->lane * size, to_row = c->to_row; /* local copies, so that they are not read again
                                                                              * after each store */
    for (int l = 0; l < c->lanes; l += W) {
        const int lanes = c->lanes - l > W ? W : c->lanes - l;
        const trek_lanes written = lanes_f32(c->fill - l > W ? W : c->fill - l);
        const char *from = c->from + l * lane_bytes;
        float *to = c->to + l;
        for (int64_t p = 0; p < k; p += per * W, from += 4 * W, to += (whole ? W : 2 * W) * to_row) {
            V r[W];
            load_transposed(r, from, lane_bytes, lanes, per, k - p);
            if (k - p >= per * W)
                store_transposed(to, to_row, written, r, dtype, whole, per, per * W);
            else
                store_transposed(to, to_row, written, r, dtype, whole, per, k - p);
        }
    }
}

/* Copies numbers of 16 bits that lie `stride` apart. Every second one is the first half of a word; the last word may end behind
 * what may be read. */
TREK_INLINE void copy_halves(uint16_t *to, const uint16_t *from, int64_t stride, int64_t n)
{
    int64_t i = 0;
    for (; stride == 2 && i < n - 1; i++) {
        uint32_t word;
        memcpy(&word, from + 2 * i, sizeof word);
        to[i] = (uint16_t)word;
    }
    for (; i < n; i++)
        to[i] = from[i * stride];
}

/* For lanes that follow each other in memory, each with numbers of 16 bits that do not. */
TREK_INLINE void pack_apart_along_k(const packing *c, const trek_dtype dtype, const bool pairs)
{
    enum { PIECE = 256 };
    for (int l = 0; l < c->lanes; l += W) {
        packing adjacent = { .to_row = c->to_row, .lanes = c->lanes - l > W ? W : c->lanes - l,
                             .fill = c->fill - l > W ? W : c->fill - l, .lane = PIECE, .step = 1 };
        for (int64_t p = 0; p < c->k; p += PIECE) {
            uint16_t piece[W * PIECE];
            const uint16_t *from = (const uint16_t *)(const void *)c->from + l * c->lane + p * c->step;
            adjacent.k = c->k - p > PIECE ? PIECE : c->k - p;
            adjacent.from = (const char *)piece;
            adjacent.to = c->to + (pairs ? p / 2 : p) * c->to_row + l;
            for (int i = 0; i < adjacent.lanes; i++)
                copy_halves(piece + i * PIECE, from + i * c->lane, c->step, adjacent.k);
            pack_transposed_numbers(&adjacent, dtype, pairs);
        }
    }
}

/* Returns n numbers of 16 bits that lie `stride` apart, as words. If `inside`, what follows the last one may be read. */
TREK_INLINE half_words load_apart(const uint16_t *from, int64_t stride, int n, bool inside)
{
    uint16_t some[W] = { 0 };
    if (stride == 2 && inside)
        return (half_words)load_part_f32((const float *)(const void *)from, lanes_f32(n)) & 0xffff;
    copy_halves(some, from, stride, n);
    return to_words(load_halves(some, W));
}

/* For lanes that lie nearer to each other than the numbers of one. */
TREK_INLINE void pack_apart_across(const packing *c, const trek_dtype dtype, const bool pairs)
{
    const uint16_t *all = (const uint16_t *)(const void *)c->from;
    const int per = pairs ? 2 : 1;
    for (int l = 0; l < c->lanes; l += W) {
        const int n = c->lanes - l > W ? W : c->lanes - l;
        const trek_lanes written = lanes_f32(c->fill - l > W ? W : c->fill - l);
        const uint16_t *from = all + l * c->lane;
        float *to = c->to + l;
        for (int64_t p = 0; p < c->k; p += per, from += per * c->step, to += c->to_row) {
            half_words low = load_apart(from, c->lane, n, p + 1 < c->k), high = { 0 };
            if (pairs && p + 1 < c->k)
                high = load_apart(from + c->step, c->lane, n, p + 2 < c->k);
            store_part_f32(to, written, pairs ? (V)(low | high << 16) : widen_low(dtype, low));
        }
    }
}

static void pack_strided_f32(const packing *c)
{
    for (int l = 0; l < c->lanes; l++)
        for (int64_t p = 0; p < c->k; p++)
            c->to[p * c->to_row + l] = number_at(TREK_F32, c->from, l * c->lane + p * c->step);
}

TREK_INLINE void pack_as(const packing *c, const trek_dtype dtype, const bool pairs)
{
    if (c->lane == 1)
        pack_side_by_side(c, dtype, pairs);
    else if (c->step == 1)
        pack_transposed_numbers(c, dtype, pairs);
    else if (dtype == TREK_F32)
        pack_strided_f32(c);
    else if (c->step < c->lane)
        pack_apart_along_k(c, dtype, pairs);
    else
        pack_apart_across(c, dtype, pairs);
}

static void pack_f32(const packing *c) { pack_as(c, TREK_F32, false); }
static void pack_f16(const packing *c) { pack_as(c, TREK_F16, false); }
static void pack_bf16(const packing *c) { pack_as(c, TREK_BF16, false); }
static void pack_bf16_pairs(const packing *c) { pack_as(c, TREK_BF16, true); }

static void pack_units(trek_dtype dtype, bool pairs, const packing *c)
{
    if (pairs)
        pack_bf16_pairs(c);
    else if (dtype == TREK_F32)
        pack_f32(c);
    else if (dtype == TREK_BF16)
        pack_bf16(c);
    else
        pack_f16(c);
}
