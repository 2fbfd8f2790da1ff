/* SPDX-License-Identifier: Apache-2.0 */
/* Tiles by the CPU's dot product of pairs of bf16 (AVX512-BF16), and whether it is faster: its rate is twice that of
 * f32's multiply-add on some CPUs and half of it on others, and no feature bit tells which. It treats subnormal
 * numbers as zeros. Included by gemm_half.c. */

#if defined(__AVX512F__) && (defined(__clang__) || __GNUC__ >= 10)
#include <pthread.h>

#include "tensor/products_way.h"
#include "tensor/trace.h"

#define DOT_TARGET __attribute__((target("avx512bf16"), noinline))
#define DOT_STEP(x, y, sum) ((V)_mm512_dpbf16_ps((__m512)(sum), (__m512bh)(x), (__m512bh)(y)))

#define TREK_TILE_FUNCTION(rows, vectors)                                                                           \
    DOT_TARGET static void dot_tile_##rows##_##vectors(const tile_call *t) { TREK_TILE_BODY(rows, vectors, DOT_STEP) }
TREK_TILE_VARIANTS(TREK_TILE_FUNCTION, 1)
TREK_TILE_VARIANTS(TREK_TILE_FUNCTION, 2)
#undef TREK_TILE_FUNCTION

#define TREK_TILE_NAME(rows, vectors) dot_tile_##rows##_##vectors,
static const tile_fn dot_tiles[2][TILE_ROWS] = { { TREK_TILE_VARIANTS(TREK_TILE_NAME, 1) },
                                                 { TREK_TILE_VARIANTS(TREK_TILE_NAME, 2) } };
#undef TREK_TILE_NAME

/* Measures the nanoseconds of a whole tile, the best of several times, alternating both kinds. */
static void time_tiles(int64_t *number, int64_t *pair)
{
    enum { UNITS = 64, TURNS = 8 };
    _Alignas(64) float a[UNITS * TILE_ROWS] = { 0 }, b[UNITS * TILE_COLS] = { 0 }, c[TILE_ROWS * TILE_COLS];
    tile_call t = { .units = UNITS, .a = a, .b = b, .c = c, .c_row = TILE_COLS };
    *number = *pair = INT64_MAX;
    for (int turn = 0; turn < TURNS; turn++) {
        int64_t begin = trek_clock_ns(), middle, end;
        tiles[1][TILE_ROWS - 1](&t);
        middle = trek_clock_ns();
        dot_tiles[1][TILE_ROWS - 1](&t);
        end = trek_clock_ns();
        *number = middle - begin < *number ? middle - begin : *number;
        *pair = end - middle < *pair ? end - middle : *pair;
    }
}

static bool dot_is_there, dot_is_fast;

static void decide_dot(void)
{
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("avx512bf16"))
        return;
    int64_t number, pair;
    time_tiles(&number, &pair);
    dot_is_fast = 4 * pair < 6 * number; /* a pair does the work of two numbers */
    dot_is_there = true;
}

/* Measured when it is first needed (30 microseconds); a choice overrides it. */
static const tile_fn (*dot_tiles_if_fast(void))[TILE_ROWS]
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    const trek_products_way way = trek_products_chosen(TREK_BF16);
    pthread_once(&once, decide_dot);
    return dot_is_there && (way == TREK_PRODUCTS_WAY_MEASURED ? dot_is_fast : way == TREK_PRODUCTS_WAY_DOTS) ? dot_tiles : NULL;
}
#else
static const tile_fn (*dot_tiles_if_fast(void))[TILE_ROWS] { return NULL; }
#endif
