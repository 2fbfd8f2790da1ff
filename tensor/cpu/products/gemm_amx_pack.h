/* SPDX-License-Identifier: Apache-2.0 */
/* Packing into tiles for products by tiles (amx.h). A number becomes one bf16, or the sum of two or three, the highest first:
 * each is what remains of the number, rounded, and three are exact. Included by gemm_amx.c. */

/* The magnitudes in a strip of 16 rows or columns, lane by lane: the largest, and the smallest but zero, less one. */
typedef struct amx_range {
    half_words most, least;
} amx_range;

/* An operand as packing sees it: number p of lane l is number l * lane + p * step of `base`. */
typedef struct amx_source {
    const char *base;
    trek_dtype dtype;
    int terms;
    int64_t lane, step, lanes, k;
    bool paired; /* packed as B: pairs along k below each other; otherwise as A: each lane a row */
} amx_source;

TREK_INLINE half_words smaller_words(half_words x, half_words y)
{
#if defined(__AVX512F__)
    return (half_words)_mm512_min_epu32((__m512i)x, (__m512i)y);
#elif defined(__AVX2__)
    return (half_words)_mm256_min_epu32((__m256i)x, (__m256i)y);
#else
    half_words mask = (half_words)(x < y);
    return (x & mask) | (y & ~mask);
#endif
}

TREK_INLINE half_words larger_words(half_words x, half_words y)
{
#if defined(__AVX512F__)
    return (half_words)_mm512_max_epu32((__m512i)x, (__m512i)y);
#elif defined(__AVX2__)
    return (half_words)_mm256_max_epu32((__m256i)x, (__m256i)y);
#else
    half_words mask = (half_words)(x > y);
    return (x & mask) | (y & ~mask);
#endif
}

/* Rounds to the nearest bf16, ties to even; the lower half of each word keeps other bits. Not for NaN. */
TREK_INLINE half_words rounded_words(half_words x) { return x + 0x7fffu + ((x >> 16) & 1); }

/* Reads n <= W numbers and splits them: the low half of word t is term t. Lanes from n on are zeros. */
TREK_INLINE void split_numbers(const trek_dtype dtype, const int terms, const void *from, int n, half_words *words,
                               amx_range *range)
{
    if (dtype == TREK_BF16) {
        words[0] = to_words(load_halves(from, n));
        return;
    }
    V x = load_part_f32(from, lanes_f32(n));
    half_words bits = (half_words)x, magnitude = bits & 0x7fffffffu;
    if (terms == 1) {
        half_words none = (half_words)(x != x);
        words[0] = (none & ((bits >> 16) | 0x40u)) | (~none & (rounded_words(bits) >> 16));
        return;
    }
    range->most = larger_words(range->most, magnitude);
    range->least = smaller_words(range->least, magnitude - 1);
    half_words high = rounded_words(bits) & 0xffff0000u;
    words[0] = high >> 16;
    V rest = x - (V)high;
    half_words middle = rounded_words((half_words)rest) & 0xffff0000u;
    words[1] = middle >> 16;
    if (terms == 3)
        words[2] = (half_words)(rest - (V)middle) >> 16; /* it has at most 8 bits */
}

static int within(int64_t n, int limit) { return n < 0 ? 0 : n < limit ? (int)n : limit; }

/* Packs lanes whose numbers are contiguous: row l of the tile of term t has 32 numbers along k of lane l. */
TREK_INLINE void pack_rows(const trek_dtype dtype, const int terms, const char *from, int64_t lane_bytes, int lanes, int k,
                           uint16_t *to, amx_range *range)
{
    const int size = dtype == TREK_F32 ? 4 : 2;
    for (int l = 0; l < TREK_AMX_LANES; l++, from += lane_bytes, to += TREK_AMX_DEPTH)
        for (int p = 0; p < TREK_AMX_DEPTH; p += W) {
            const int n = l < lanes ? within(k - p, W) : 0;
            half_words words[TREK_AMX_MOST_TERMS] = { { 0 } };
            if (n > 0)
                split_numbers(dtype, terms, from + p * size, n, words, range);
            for (int t = 0; t < terms; t++) {
                half_lanes halves = low_halves(words[t]);
                memcpy(to + t * TREK_AMX_NUMBERS + p, &halves, sizeof halves);
            }
        }
}

/* Packs lanes that are adjacent in memory: row u of the tile of term t has pair u along k of 16 lanes. */
TREK_INLINE void pack_pairs(const trek_dtype dtype, const int terms, const char *from, int64_t step_bytes, int lanes, int k,
                            uint16_t *to, amx_range *range)
{
    const int size = dtype == TREK_F32 ? 4 : 2;
    for (int p = 0; p < TREK_AMX_DEPTH; p += 2, from += 2 * step_bytes, to += TREK_AMX_DEPTH)
        for (int l = 0; l < TREK_AMX_LANES; l += W) {
            const int n = within(lanes - l, W);
            half_words first[TREK_AMX_MOST_TERMS] = { { 0 } }, second[TREK_AMX_MOST_TERMS] = { { 0 } };
            if (n > 0 && p < k)
                split_numbers(dtype, terms, from + l * size, n, first, range);
            if (n > 0 && p + 1 < k)
                split_numbers(dtype, terms, from + step_bytes + l * size, n, second, range);
            for (int t = 0; t < terms; t++) {
                half_words pair = (first[t] & 0xffffu) | second[t] << 16;
                memcpy(to + t * TREK_AMX_NUMBERS + 2 * l, &pair, sizeof pair);
            }
        }
}

/* Transposes the words of a tile: rows become pairs, and pairs rows. */
static void transpose_tile(const uint16_t *from, uint16_t *to)
{
    for (int i = 0; i < TREK_AMX_LANES; i += W)
        for (int j = 0; j < TREK_AMX_LANES; j += W) {
            V r[W];
#pragma GCC unroll 16
            for (int l = 0; l < W; l++)
                memcpy(&r[l], from + (i + l) * TREK_AMX_DEPTH + 2 * j, sizeof r[l]);
            transpose_f32(r);
#pragma GCC unroll 16
            for (int l = 0; l < W; l++)
                memcpy(to + (j + l) * TREK_AMX_DEPTH + 2 * i, &r[l], sizeof r[l]);
        }
}

/* Copies the numbers of a tile to where each lane's are contiguous. */
static void gather_tile(const amx_source *s, const char *from, int lanes, int k, char *to)
{
    const int64_t size = s->dtype == TREK_F32 ? 4 : 2;
    for (int l = 0; l < lanes; l++)
        for (int p = 0; p < k; p++)
            memcpy(to + (l * TREK_AMX_DEPTH + p) * size, from + (l * s->lane + p * s->step) * size, (size_t)size);
}

/* Packs `terms` tiles: numbers from p on along k of 16 lanes from `lane` on. */
TREK_INLINE void pack_tile_as(const amx_source *s, const trek_dtype dtype, const int terms, int64_t lane, int64_t p, uint16_t *to,
                              amx_range *range)
{
    _Alignas(64) uint16_t other[TREK_AMX_MOST_TERMS * TREK_AMX_NUMBERS];
    _Alignas(64) char gathered[TREK_AMX_NUMBERS * 4];
    const int64_t size = dtype == TREK_F32 ? 4 : 2;
    const int lanes = within(s->lanes - lane, TREK_AMX_LANES), k = within(s->k - p, TREK_AMX_DEPTH);
    const char *from = s->base + (lane * s->lane + p * s->step) * size;
    const bool pairs = s->lane == 1;
    int64_t lane_bytes = s->lane * size;
    uint16_t *packed = pairs == s->paired ? to : other;
    if (!pairs && s->step != 1) {
        gather_tile(s, from, lanes, k, gathered);
        from = gathered;
        lane_bytes = TREK_AMX_DEPTH * size;
    }
    if (pairs)
        pack_pairs(dtype, terms, from, s->step * size, lanes, k, packed, range);
    else
        pack_rows(dtype, terms, from, lane_bytes, lanes, k, packed, range);
    for (int t = 0; t < terms && packed != to; t++)
        transpose_tile(packed + t * TREK_AMX_NUMBERS, to + t * TREK_AMX_NUMBERS);
}

static void pack_tile(const amx_source *s, int64_t lane, int64_t p, uint16_t *to, amx_range *range)
{
    if (s->dtype == TREK_BF16)
        pack_tile_as(s, TREK_BF16, 1, lane, p, to, range);
    else if (s->terms == 1)
        pack_tile_as(s, TREK_F32, 1, lane, p, to, range);
    else if (s->terms == 2)
        pack_tile_as(s, TREK_F32, 2, lane, p, to, range);
    else
        pack_tile_as(s, TREK_F32, 3, lane, p, to, range);
}
