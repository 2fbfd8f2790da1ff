/* SPDX-License-Identifier: Apache-2.0 */
/* The inner loops of products of 16-bit numbers: a tile of C in registers, over packed units (gemm_half_pack.h).
 * Included by gemm_half.c. */

#if defined(__AVX512F__)
#define TILE_ROWS 14
#define TREK_TILE_VARIANTS(X, vectors)                                                                              \
    X(1, vectors) X(2, vectors) X(3, vectors) X(4, vectors) X(5, vectors) X(6, vectors) X(7, vectors)               \
    X(8, vectors) X(9, vectors) X(10, vectors) X(11, vectors) X(12, vectors) X(13, vectors) X(14, vectors)
#elif defined(__AVX2__)
#define TILE_ROWS 6
#define TREK_TILE_VARIANTS(X, vectors)                                                                              \
    X(1, vectors) X(2, vectors) X(3, vectors) X(4, vectors) X(5, vectors) X(6, vectors)
#else
#define TILE_ROWS 4
#define TREK_TILE_VARIANTS(X, vectors) X(1, vectors) X(2, vectors) X(3, vectors) X(4, vectors)
#endif
#define TILE_COLS (2 * W)

/* Computes c[i * c_row + j] (+)= sum over u of a[u * rows + i] b[u * TILE_COLS + j], in whole vectors. */
typedef struct tile_call {
    int64_t units;
    const float *a, *b;
    float *c;
    int64_t c_row;
    bool add;
} tile_call;

/* `step` adds the product of two vectors of units to a third. It is a macro because it is also used in functions that
 * are compiled for more instructions than this file, into which no function of this file can be inlined. */
#define TREK_TILE_BODY(rows, vectors, step)                                                                         \
    V sum[TILE_ROWS][2];                                                                                            \
    const float *a = t->a, *b = t->b;                                                                               \
    _Pragma("GCC unroll 16") for (int i = 0; i < rows; i++) sum[i][0] = sum[i][1] = (V){ 0 };                       \
    for (int64_t u = t->units; u > 0; u--, a += rows, b += TILE_COLS) {                                             \
        V first, second;                                                                                            \
        memcpy(&first, b, sizeof first);                                                                            \
        if (vectors == 2)                                                                                           \
            memcpy(&second, b + W, sizeof second);                                                                  \
        _Pragma("GCC unroll 16") for (int i = 0; i < rows; i++)                                                     \
        {                                                                                                           \
            V x = a[i] - (V){ 0 };                                                                                  \
            sum[i][0] = step(x, first, sum[i][0]);                                                                  \
            if (vectors == 2)                                                                                       \
                sum[i][1] = step(x, second, sum[i][1]);                                                             \
        }                                                                                                           \
    }                                                                                                               \
    _Pragma("GCC unroll 16") for (int i = 0; i < rows; i++)                                                         \
    {                                                                                                               \
        _Pragma("GCC unroll 2") for (int v = 0; v < vectors; v++)                                                   \
        {                                                                                                           \
            float *c = t->c + i * t->c_row + v * W;                                                                 \
            V before = { 0 };                                                                                       \
            if (t->add)                                                                                             \
                memcpy(&before, c, sizeof before);                                                                  \
            V value = t->add ? before + sum[i][v] : sum[i][v];                                                      \
            memcpy(c, &value, sizeof value);                                                                        \
        }                                                                                                           \
    }

#define TREK_TILE_FUNCTION(rows, vectors)                                                                           \
    static void tile_##rows##_##vectors(const tile_call *t) { TREK_TILE_BODY(rows, vectors, fma_f32) }
TREK_TILE_VARIANTS(TREK_TILE_FUNCTION, 1)
TREK_TILE_VARIANTS(TREK_TILE_FUNCTION, 2)
#undef TREK_TILE_FUNCTION

#define TREK_TILE_NAME(rows, vectors) tile_##rows##_##vectors,
typedef void (*tile_fn)(const tile_call *t);
/* [vectors - 1][rows - 1] */
static const tile_fn tiles[2][TILE_ROWS] = { { TREK_TILE_VARIANTS(TREK_TILE_NAME, 1) },
                                             { TREK_TILE_VARIANTS(TREK_TILE_NAME, 2) } };
#undef TREK_TILE_NAME
