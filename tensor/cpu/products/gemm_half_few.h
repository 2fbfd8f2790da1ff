/* SPDX-License-Identifier: Apache-2.0 */
/* Few rows of A with many 16-bit numbers that are each read once: at the speed of memory, widened in registers.
 * Included by gemm_half.c. */

#define FEW_ROWS 6
#define FEW_COLS (TREK_VECTOR_BYTES == 64 ? 4 : 2)

typedef struct few_call {
    const trek_gemm *g;
    const float *a;        /* [m][pitch]: widened, in groups of 2 W numbers in the order in which those of B come */
    int64_t pitch, rows;   /* rows: processed together, at most FEW_ROWS */
} few_call;

/* Returns the position of number e of 2 W: bf16 come as even and odd ones, f16 in their order. */
static int split_place(trek_dtype dtype, int e) { return dtype == TREK_BF16 ? e / 2 + (e & 1) * W : e; }

TREK_INLINE V first_part(const trek_dtype dtype, const uint16_t *b, int n)
{
    return dtype == TREK_BF16 ? widen_low(dtype, load_pairs(b, n)) : widen_f16(load_halves(b, n < W ? n : W));
}
TREK_INLINE V second_part(const trek_dtype dtype, const uint16_t *b, int n)
{
    return dtype == TREK_BF16 ? widen_high(dtype, load_pairs(b, n)) : widen_f16(load_halves(b + W, n < W ? 0 : n - W));
}

/* Returns whether B comes from memory: then it is prefetched, because the machine's own prefetching ends with each
 * page. In caches prefetching would cost more than it gains. */
static inline bool lies_far(const trek_gemm *g) { return g->n * g->k >= 1 << 22; }

/* Computes to[i * to_row + j] = rows of A times columns of B, `rows` by `cols`. */
TREK_INLINE void few_dots(const trek_dtype dtype, const int rows, const int cols, const few_call *f, int64_t row, int64_t col,
                          float *to, int64_t to_row)
{
    const trek_gemm *g = f->g;
    const uint16_t *b = (const uint16_t *)g->b + col * g->b_col;
    const float *a = f->a + row * f->pitch;
    const bool far = lies_far(g);
    V sum[FEW_ROWS][8];
#pragma GCC unroll 8
    for (int i = 0; i < rows; i++) {
#pragma GCC unroll 8
        for (int j = 0; j < cols; j++)
            sum[i][j] = (V){ 0 };
    }
    for (int64_t p = 0; p < g->k; p += 2 * W) {
        const int n = g->k - p < 2 * W ? (int)(g->k - p) : 2 * W;
        V first[8], second[8];
#pragma GCC unroll 8
        for (int j = 0; j < cols; j++) {
            if (rows <= 2 && far)
                __builtin_prefetch(b + (j + cols) * g->b_col + p);
            first[j] = first_part(dtype, b + j * g->b_col + p, n);
            second[j] = second_part(dtype, b + j * g->b_col + p, n);
        }
#pragma GCC unroll 8
        for (int i = 0; i < rows; i++) {
            V x = load_f32(a + i * f->pitch + p), y = load_f32(a + i * f->pitch + p + W);
#pragma GCC unroll 8
            for (int j = 0; j < cols; j++)
                sum[i][j] = fma_f32(y, second[j], fma_f32(x, first[j], sum[i][j]));
        }
    }
#pragma GCC unroll 8
    for (int i = 0; i < rows; i++) {
#pragma GCC unroll 8
        for (int j = 0; j < cols; j++)
            to[i * to_row + j] = sum_f32(sum[i][j]);
    }
}

/* Computes all columns [0, cols) from `col` on of rows [row, row + rows). */
TREK_INLINE void few_rows(const trek_dtype dtype, const int rows, const few_call *f, int64_t row, int64_t col, int cols,
                          float *to, int64_t to_row)
{
    int j = 0;
    for (; j + FEW_COLS <= cols; j += FEW_COLS)
        few_dots(dtype, rows, FEW_COLS, f, row, col + j, to + j, to_row);
    for (; j < cols; j++)
        few_dots(dtype, rows, 1, f, row, col + j, to + j, to_row);
}

#define TREK_FEW(rows, name, dtype)                                                                                 \
    static void few_##name##_##rows(const few_call *f, int64_t row, int64_t col, int cols, float *to, int64_t to_row) \
    {                                                                                                               \
        few_rows(dtype, rows, f, row, col, cols, to, to_row);                                                       \
    }
#define TREK_FEW_EACH(name, dtype)                                                                                  \
    TREK_FEW(1, name, dtype) TREK_FEW(2, name, dtype) TREK_FEW(3, name, dtype) TREK_FEW(4, name, dtype)             \
    TREK_FEW(5, name, dtype) TREK_FEW(6, name, dtype)
TREK_FEW_EACH(bf16, TREK_BF16)
TREK_FEW_EACH(f16, TREK_F16)
#undef TREK_FEW
#undef TREK_FEW_EACH

enum { FEW_STRIP = 32 }; /* columns of B that are multiplied by all rows while they are in the cache */

/* Computes columns [begin, end) of C; rows in groups of at most FEW_ROWS, as equal as possible. */
static void few_range(void *arg, int64_t begin, int64_t end)
{
    typedef void (*few_fn)(const few_call *, int64_t, int64_t, int, float *, int64_t);
    static const few_fn table[2][FEW_ROWS] = { { few_bf16_1, few_bf16_2, few_bf16_3, few_bf16_4, few_bf16_5, few_bf16_6 },
                                               { few_f16_1, few_f16_2, few_f16_3, few_f16_4, few_f16_5, few_f16_6 } };
    const few_call *f = arg;
    const trek_gemm *g = f->g;
    const int64_t parts = (g->m + FEW_ROWS - 1) / FEW_ROWS;
    for (int64_t col = begin; col < end; col += FEW_STRIP) {
        int cols = end - col < FEW_STRIP ? (int)(end - col) : FEW_STRIP;
        for (int64_t part = 0, row = 0; part < parts; part++) {
            int rows = (int)((g->m - row + parts - part - 1) / (parts - part));
            float sums[FEW_ROWS * FEW_STRIP];
            table[g->b_dtype == TREK_F16][rows - 1](f, row, col, cols, sums, FEW_STRIP);
            finish(g, row, col, rows, cols, sums, FEW_STRIP);
            row += rows;
        }
    }
}

/* B's columns must be contiguous along k, and each must be read for a few rows only. */
static bool few_suits(const trek_gemm *g)
{
    const bool large = g->k >= 256 && g->n * g->k >= 1 << 20; /* from memory, for which packing would take longer */
    return g->m <= (large ? 3 : 2) * FEW_ROWS && g->b_row == 1 && g->b_dtype != TREK_F32 && g->k >= 64;
}

static void split_row(const trek_gemm *g, const char *from, float *to, int64_t pitch)
{
    int64_t whole = g->a_col == 1 && g->a_dtype == g->b_dtype ? g->k / (2 * W) * (2 * W) : 0;
    const uint16_t *halves = (const uint16_t *)(const void *)from;
    for (int64_t p = 0; p < whole; p += 2 * W) {
        bool bf16 = g->b_dtype == TREK_BF16;
        store_f32(to + p, bf16 ? first_part(TREK_BF16, halves + p, 2 * W) : first_part(TREK_F16, halves + p, 2 * W));
        store_f32(to + p + W, bf16 ? second_part(TREK_BF16, halves + p, 2 * W) : second_part(TREK_F16, halves + p, 2 * W));
    }
    memset(to + whole, 0, (size_t)(pitch - whole) * sizeof *to);
    for (int64_t p = whole; p < g->k; p++)
        to[p / (2 * W) * (2 * W) + split_place(g->b_dtype, (int)(p % (2 * W)))] = number_at(g->a_dtype, from, p * g->a_col);
}

static trek_status few(const trek_gemm *g)
{
    few_call f = { .g = g, .pitch = (g->k + 2 * W - 1) / (2 * W) * (2 * W) };
    float *a = trek_block_alloc((size_t)(g->m * f.pitch) * sizeof *a);
    if (!a)
        return TREK_ERR_MEMORY;
    for (int64_t i = 0; i < g->m; i++)
        split_row(g, (const char *)g->a + i * g->a_row * (g->a_dtype == TREK_F32 ? 4 : 2), a + i * f.pitch, f.pitch);
    f.a = a;
    int64_t grain = (65536 / (g->k * (g->m < 3 ? 1 : g->m / 2)) + FEW_COLS) / FEW_COLS * FEW_COLS;
    if (g->alone)
        few_range(&f, 0, g->n);
    else
        trek_parallel(g->n, grain, few_range, &f);
    trek_block_free(a);
    return TREK_OK;
}

/* -- few rows of A, B's rows contiguous: rows of B are added, four at a time -- */

typedef struct sum_call {
    const trek_gemm *g;
    const float *a;   /* [m][k] */
    float *sums;      /* [m][n] */
} sum_call;

/* Adds `count` rows of B from p on, multiplied by their numbers of A, to columns [begin, end) of the sums. */
TREK_INLINE void add_rows(const trek_dtype dtype, const int count, const bool far, const sum_call *s, int64_t p, int64_t begin,
                          int64_t end)
{
    const trek_gemm *g = s->g;
    const uint16_t *b = (const uint16_t *)g->b + p * g->b_row;
    const int64_t m = g->m, n = g->n, k = g->k, b_row = g->b_row; /* local copies, so that they are not read again after each
                                                                   * store */
    const float *a = s->a + p;
    float *sums = s->sums;
    for (int64_t j = begin; j < end; j += W) {
        const int lanes = end - j < W ? (int)(end - j) : W;
        V row[4];
#pragma GCC unroll 4
        for (int c = 0; c < count; c++) {
            if (far)
                __builtin_prefetch(b + (c + 2 * count) * b_row + j);
            row[c] = widen(dtype, load_halves(b + c * b_row + j, lanes));
        }
        for (int64_t i = 0; i < m; i++) {
            V sum = p == 0 ? (V){ 0 } : load_part_f32(sums + i * n + j, lanes_f32(lanes));
#pragma GCC unroll 4
            for (int c = 0; c < count; c++)
                sum = fma_f32(row[c], spread_f32(a[i * k + c]), sum);
            store_part_f32(sums + i * n + j, lanes_f32(lanes), sum);
        }
    }
}

TREK_INLINE void sum_strip(const trek_dtype dtype, const sum_call *s, int64_t begin, int64_t end)
{
    int64_t p = 0;
    for (; p + 4 <= s->g->k && lies_far(s->g); p += 4)
        add_rows(dtype, 4, true, s, p, begin, end);
    for (; p + 4 <= s->g->k; p += 4)
        add_rows(dtype, 4, false, s, p, begin, end);
    for (; p < s->g->k; p++)
        add_rows(dtype, 1, false, s, p, begin, end);
}

static void sum_range(void *arg, int64_t begin, int64_t end)
{
    const sum_call *s = arg;
    const trek_gemm *g = s->g;
    const int64_t strip = (2048 / g->m + 63) / 64 * 64; /* the sums remain in the first-level cache */
    for (int64_t j = begin, next; j < end; j = next) {
        next = end - j < strip ? end : j + strip;
        if (g->b_dtype == TREK_BF16)
            sum_strip(TREK_BF16, s, j, next);
        else
            sum_strip(TREK_F16, s, j, next);
        finish(g, 0, j, (int)g->m, (int)(next - j), s->sums + j, g->n);
    }
}

static bool sum_suits(const trek_gemm *g)
{
    return g->m <= FEW_ROWS && g->b_col == 1 && g->b_dtype != TREK_F32 && g->k > 0;
}

static trek_status sum_rows(const trek_gemm *g)
{
    sum_call s = { .g = g };
    float *buffer = trek_block_alloc((size_t)(g->m * (g->k + g->n)) * sizeof *buffer);
    if (!buffer)
        return TREK_ERR_MEMORY;
    for (int64_t i = 0; i < g->m; i++)
        for (int64_t p = 0; p < g->k; p++)
            buffer[i * g->k + p] = number_at(g->a_dtype, g->a, i * g->a_row + p * g->a_col);
    s.a = buffer;
    s.sums = buffer + g->m * g->k;
    if (g->alone)
        sum_range(&s, 0, g->n);
    else
        trek_parallel(g->n, (65536 / g->k + 64) / 64 * 64, sum_range, &s);
    trek_block_free(buffer);
    return TREK_OK;
}

#undef FEW_ROWS
#undef FEW_COLS
