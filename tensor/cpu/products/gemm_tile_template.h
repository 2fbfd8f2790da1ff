/* SPDX-License-Identifier: Apache-2.0 */
/* The inner loops of the product for one real type: tiles of C in registers, and packing. Included by gemm_template.h. */

/* A tile has TILE_ROWS rows of TILE_VECTORS vectors: as many accumulators as possible with registers left for a row
 * of B and a broadcast element of A. */
#if defined(__AVX512F__)
#define TILE_ROWS 14
#define TREK_TILE_VARIANTS(X, vectors, unit)                                                                        \
    X(1, vectors, unit) X(2, vectors, unit) X(3, vectors, unit) X(4, vectors, unit) X(5, vectors, unit)             \
    X(6, vectors, unit) X(7, vectors, unit) X(8, vectors, unit) X(9, vectors, unit) X(10, vectors, unit)            \
    X(11, vectors, unit) X(12, vectors, unit) X(13, vectors, unit) X(14, vectors, unit)
#elif defined(__AVX2__)
#define TILE_ROWS 6
#define TREK_TILE_VARIANTS(X, vectors, unit)                                                                        \
    X(1, vectors, unit) X(2, vectors, unit) X(3, vectors, unit) X(4, vectors, unit) X(5, vectors, unit)             \
    X(6, vectors, unit)
#else
#define TILE_ROWS 4
#define TREK_TILE_VARIANTS(X, vectors, unit)                                                                        \
    X(1, vectors, unit) X(2, vectors, unit) X(3, vectors, unit) X(4, vectors, unit)
#endif
#define TILE_VECTORS 2
#define AHEAD 8 /* rows of B that are prefetched into the first-level cache */
#define TILE_COLS (TILE_VECTORS * W)

/* Computes c[i][j] (+)= sum over p of a[i, p] b[p, j]: `rows` rows, the last vector only in the lanes of `last`. */
typedef struct TREK_R(tile_call) {
    int64_t k;
    const T *a;
    int64_t a_row, a_col;
    const T *b;
    int64_t b_row;
    T *c;
    int64_t c_row;
    trek_lanes last;
    bool add;
} TREK_R(tile_call);

/* Adds a column of A times a row of B. */
TREK_INLINE void TREK_R(tile_step)(const int rows, const int vectors, V (*sum)[TILE_VECTORS], const T *a, int64_t a_row,
                                   const T *b, trek_lanes last)
{
    V first = vectors == 1 ? TREK_R(load_part)(b, last) : TREK_R(load)(b);
    V second = vectors == 1 ? first : TREK_R(load_part)(b + W, last);
#pragma GCC unroll 16
    for (int i = 0; i < rows; i++) {
        V x = TREK_R(spread)(a[i * a_row]);
        sum[i][0] = TREK_R(fma)(x, first, sum[i][0]);
        if (vectors == 2)
            sum[i][1] = TREK_R(fma)(x, second, sum[i][1]);
    }
}

TREK_INLINE void TREK_R(tile)(const int rows, const int vectors, const bool unit, const TREK_R(tile_call) *t)
{
    V sum[TILE_ROWS][TILE_VECTORS];
    const T *a = t->a, *b = t->b, *ahead = t->c;
    const int64_t a_row = unit ? 1 : t->a_row, a_col = t->a_col, b_row = t->b_row;
    const trek_lanes last = t->last;
    int64_t p = t->k;
#pragma GCC unroll 16
    for (int i = 0; i < rows; i++)
        sum[i][0] = sum[i][1] = (V){ 0 };
    if (p >= 64) /* C is prefetched while the first products are added, because its rows are far apart */
        for (int i = 0; i < rows; i++, ahead += t->c_row) {
            __builtin_prefetch(ahead, 1, 2);
            if (vectors == 2)
                __builtin_prefetch(ahead + W, 1, 2);
            for (int64_t end = p - 2; p > end; p--, a += a_col, b += b_row)
                TREK_R(tile_step)(rows, vectors, sum, a, a_row, b, last);
        }
    for (; p > 0; p--, a += a_col, b += b_row) {
        __builtin_prefetch(b + AHEAD * b_row);
        if (vectors == 2)
            __builtin_prefetch(b + AHEAD * b_row + W);
        TREK_R(tile_step)(rows, vectors, sum, a, a_row, b, last);
    }
#pragma GCC unroll 16
    for (int i = 0; i < rows; i++) {
        T *c = t->c + i * t->c_row;
        if (vectors == 2)
            TREK_R(store)(c, t->add ? TREK_R(load)(c) + sum[i][0] : sum[i][0]);
        T *end = c + (vectors - 1) * W;
        V value = sum[i][vectors - 1];
        TREK_R(store_part)(end, last, t->add ? TREK_R(load_part)(end, last) + value : value);
    }
}

#define TREK_TILE_FUNCTION(rows, vectors, unit)                                                                     \
    static void TREK_R(tile_##rows##_##vectors##_##unit)(const TREK_R(tile_call) *t)                                \
    {                                                                                                               \
        TREK_R(tile)(rows, vectors, unit, t);                                                                       \
    }
TREK_TILE_VARIANTS(TREK_TILE_FUNCTION, 1, 0)
TREK_TILE_VARIANTS(TREK_TILE_FUNCTION, 1, 1)
TREK_TILE_VARIANTS(TREK_TILE_FUNCTION, 2, 0)
TREK_TILE_VARIANTS(TREK_TILE_FUNCTION, 2, 1)

#define TREK_TILE_NAME(rows, vectors, unit) TREK_R(tile_##rows##_##vectors##_##unit),
/* [a_row is 1][vectors - 1][rows - 1] */
static void (*const TREK_R(tiles)[2][2][TILE_ROWS])(const TREK_R(tile_call) *t) = {
    { { TREK_TILE_VARIANTS(TREK_TILE_NAME, 1, 0) }, { TREK_TILE_VARIANTS(TREK_TILE_NAME, 2, 0) } },
    { { TREK_TILE_VARIANTS(TREK_TILE_NAME, 1, 1) }, { TREK_TILE_VARIANTS(TREK_TILE_NAME, 2, 1) } },
};
#undef TREK_TILE_NAME
#undef TREK_TILE_FUNCTION
#undef TREK_TILE_VARIANTS

TREK_INLINE void TREK_R(run_tile)(int rows, int cols, TREK_R(tile_call) *t)
{
    int vectors = cols > W ? 2 : 1;
    t->last = TREK_R(lanes)(cols - (vectors - 1) * W);
    TREK_R(tiles)[t->a_row == 1][vectors - 1][rows - 1](t);
}

/* Computes to[p * to_row + l] = from[l * lane + p] for l < lanes <= W, p < k, with zeros in lanes..fill. The lanes after these,
 * which are usually the next ones, are fetched into the second-level cache meanwhile: each lane begins far from where the last
 * one ended. */
static void TREK_R(pack_transposed)(T *to, int64_t to_row, int lanes, int fill, const T *from, int64_t lane, int64_t k)
{
    const trek_lanes written = TREK_R(lanes)(fill);
    for (int64_t p = 0; p < k; p += W) {
        int count = k - p < W ? (int)(k - p) : W;
        V r[W];
        for (int l = 0; l < lanes; l++)
            __builtin_prefetch(from + (lanes + l) * lane + p, 0, 2);
        if (lanes == W && count == W) {
#pragma GCC unroll 16
            for (int l = 0; l < W; l++)
                r[l] = TREK_R(load)(from + l * lane + p);
        } else { /* lanes after the last one repeat it, and are not written */
            const trek_lanes read = TREK_R(lanes)(count);
#pragma GCC unroll 16
            for (int l = 0; l < W; l++)
                r[l] = TREK_R(load_part)(from + (l < lanes ? l : lanes - 1) * lane + p, read);
            for (int l = lanes; l < fill; l++)
                r[l] = (V){ 0 };
        }
        TREK_R(transpose)(r);
        if (count == W) {
#pragma GCC unroll 16
            for (int l = 0; l < W; l++)
                TREK_R(store_part)(to + (p + l) * to_row, written, r[l]);
        } else {
            for (int l = 0; l < count; l++)
                TREK_R(store_part)(to + (p + l) * to_row, written, r[l]);
        }
    }
}

/* Computes to[p * to_row + l] = from[l * lane + p * step] for l < lanes, p < k, with zeros in lanes..fill. */
static void TREK_R(pack)(T *to, int64_t to_row, int lanes, int fill, const T *from, int64_t lane, int64_t step, int64_t k)
{
    if (lane == 1) {
        for (; fill > 0; lanes -= W, fill -= W, to += W, from += W) {
            const trek_lanes read = TREK_R(lanes)(lanes > W ? W : lanes > 0 ? lanes : 0);
            const trek_lanes written = TREK_R(lanes)(fill > W ? W : fill);
            for (int64_t p = 0; p < k; p++)
                TREK_R(store_part)(to + p * to_row, written, TREK_R(load_part)(from + p * step, read));
        }
    } else if (step == 1) {
        for (; fill > 0; lanes -= W, fill -= W, to += W, from += W * lane) {
            if (lanes > 0)
                TREK_R(pack_transposed)(to, to_row, lanes > W ? W : lanes, fill > W ? W : fill, from, lane, k);
            else
                for (int64_t p = 0; p < k; p++)
                    TREK_R(store_part)(to + p * to_row, TREK_R(lanes)(fill > W ? W : fill), (V){ 0 });
        }
    } else {
        for (int64_t p = 0; p < k; p++)
            for (int l = 0; l < fill; l++)
                to[p * to_row + l] = l < lanes ? from[l * lane + p * step] : 0;
    }
}

#define PACKED_AT_ONCE 4
#define PACKED_AHEAD 8 /* rows that are fetched ahead: the CPU's own fetching ends with a page */

/* Packs panels (or tiles) that are adjacent in rows of `from`: to[q][p * lanes[q] + l], up to `vectors` vectors wide.
 * A row is read at once, because rows are far apart, often each in its own page. */
TREK_INLINE void TREK_R(pack_side_by_side)(const int vectors, T *const *to, const int *lanes, const T *from, int64_t step,
                                           int64_t k)
{
    trek_lanes part[PACKED_AT_ONCE][2];
    const T *at[PACKED_AT_ONCE];
    for (int q = 0; q < PACKED_AT_ONCE; q++) {
        at[q] = q > 0 ? at[q - 1] + lanes[q - 1] : from;
        part[q][0] = TREK_R(lanes)(lanes[q] < W ? lanes[q] : W);
        part[q][1] = TREK_R(lanes)(lanes[q] > W ? lanes[q] - W : 0);
    }
    for (int64_t p = 0; p < k; p++) {
        for (int q = 0; q < PACKED_AT_ONCE; q++)
            __builtin_prefetch(at[q] + (p + PACKED_AHEAD) * step);
#pragma GCC unroll 4
        for (int q = 0; q < PACKED_AT_ONCE; q++) {
#pragma GCC unroll 2
            for (int v = 0; v < vectors; v++)
                TREK_R(store_part)(to[q] + p * lanes[q] + v * W, part[q][v],
                                   TREK_R(load_part)(at[q] + p * step + v * W, part[q][v]));
        }
    }
}
