/* SPDX-License-Identifier: Apache-2.0 */
/* Matrix times vector at the speed of memory, for one real type, and the activation of a row. Included by
 * gemm_template.h. */

static void TREK_R(gelu_row)(T *x, int64_t n)
{
#if TREK_REAL_BYTES == 4
    for (int64_t j = 0; j < n; j += W) {
        trek_lanes lanes = lanes_f32(n - j < W ? (int)(n - j) : W);
        store_part_f32(x + j, lanes, trek_gelu_wide(load_part_f32(x + j, lanes)));
    }
#else
    for (int64_t j = 0; j < n; j++)
        x[j] = x[j] < -40 ? -0.0 : 0.5 * x[j] * erfc(-x[j] * 0x1.6a09e667f3bcdp-1);
#endif
}

/* Computes y[i] = sum over p of matrix[i, p] x[p], then bias and activation. */
typedef struct TREK_R(gemv_call) {
    int64_t n, k;
    const T *matrix;
    int64_t row, col;   /* one of them is 1 */
    const T *x;
    T *y, *pre;
    const T *bias;
    int64_t bias_step;
    trek_activation activation;
    bool add;
} TREK_R(gemv_call);

/* Returns whether the matrix comes from memory: then it is prefetched, because the machine's own prefetching ends
 * with each page. In caches prefetching would cost more than it gains. */
static bool TREK_R(lies_far)(const TREK_R(gemv_call) *v) { return v->n * v->k * (int64_t)sizeof(T) >= (int64_t)8 << 20; }

/* Computes `rows` dot products with x in parallel; each adds in the same order as alone. */
TREK_INLINE void TREK_R(dots)(const int rows, const bool far, const T *matrix, int64_t row, const T *x, int64_t k, T *y, bool add)
{
    V sum[8];
    int64_t p = 0;
#pragma GCC unroll 8
    for (int i = 0; i < rows; i++)
        sum[i] = (V){ 0 };
    for (; p + W <= k; p += W) {
        V value = TREK_R(load)(x + p);
#pragma GCC unroll 8
        for (int i = 0; i < rows; i++) {
            if (far)
                __builtin_prefetch(matrix + (i + rows) * row + p);
            sum[i] = TREK_R(fma)(TREK_R(load)(matrix + i * row + p), value, sum[i]);
        }
    }
    if (p < k) {
        trek_lanes rest = TREK_R(lanes)((int)(k - p));
        V value = TREK_R(load_part)(x + p, rest);
#pragma GCC unroll 8
        for (int i = 0; i < rows; i++)
            sum[i] = TREK_R(fma)(TREK_R(load_part)(matrix + i * row + p, rest), value, sum[i]);
    }
#pragma GCC unroll 8
    for (int i = 0; i < rows; i++) {
        T total = TREK_R(sum)(sum[i]);
        y[i] = add ? y[i] + total : total;
    }
}

static void TREK_R(gemv_by_rows)(const TREK_R(gemv_call) *v, int64_t begin, int64_t end)
{
    int64_t i = begin;
    for (; i + 8 <= end && TREK_R(lies_far)(v); i += 8)
        TREK_R(dots)(8, true, v->matrix + i * v->row, v->row, v->x, v->k, v->y + i, v->add);
    for (; i + 8 <= end; i += 8)
        TREK_R(dots)(8, false, v->matrix + i * v->row, v->row, v->x, v->k, v->y + i, v->add);
    for (; i < end; i++)
        TREK_R(dots)(1, false, v->matrix + i * v->row, v->row, v->x, v->k, v->y + i, v->add);
}

#define COLUMNS_AT_ONCE 8

/* Adds `count` columns from p on, multiplied by their elements of x, to y, one after the other. */
TREK_INLINE void TREK_R(add_columns)(const int count, const bool far, const TREK_R(gemv_call) *v, int64_t begin, int64_t end,
                                     int64_t p)
{
    const T *matrix = v->matrix + p * v->col;
    V x[COLUMNS_AT_ONCE];
#pragma GCC unroll 8
    for (int c = 0; c < count; c++)
        x[c] = TREK_R(spread)(v->x[p + c]);
    for (int64_t i = begin; i < end; i += W) {
        trek_lanes lanes = TREK_R(lanes)(end - i < W ? (int)(end - i) : W);
        V sum = TREK_R(load_part)(v->y + i, lanes);
#pragma GCC unroll 8
        for (int c = 0; c < count; c++) {
            if (far)
                __builtin_prefetch(matrix + (c + count) * v->col + i);
            sum = TREK_R(fma)(TREK_R(load_part)(matrix + c * v->col + i, lanes), x[c], sum);
        }
        TREK_R(store_part)(v->y + i, lanes, sum);
    }
}

/* For a matrix with contiguous columns. */
static void TREK_R(gemv_by_columns)(const TREK_R(gemv_call) *v, int64_t begin, int64_t end)
{
    int64_t p = 0;
    if (!v->add)
        memset(v->y + begin, 0, (size_t)(end - begin) * sizeof(T));
    for (; p + COLUMNS_AT_ONCE <= v->k && TREK_R(lies_far)(v); p += COLUMNS_AT_ONCE)
        TREK_R(add_columns)(COLUMNS_AT_ONCE, true, v, begin, end, p);
    for (; p + COLUMNS_AT_ONCE <= v->k; p += COLUMNS_AT_ONCE)
        TREK_R(add_columns)(COLUMNS_AT_ONCE, false, v, begin, end, p);
    for (; p < v->k; p++)
        TREK_R(add_columns)(1, false, v, begin, end, p);
}

/* Stores a whole, aligned vector without using the caches. */
TREK_INLINE void TREK_R(store_past)(T *p, V v)
{
#if defined(__AVX512F__)
    _mm512_stream_ps((float *)(void *)p, (__m512)v);
#elif defined(__AVX2__)
    _mm256_stream_ps((float *)(void *)p, (__m256)v);
#elif defined(__SSE2__)
    _mm_stream_ps((float *)(void *)p, (__m128)v);
#else
    TREK_R(store)(p, v);
#endif
}

/* Returns whether C is larger than the caches, so that it must not be fetched before it is written. */
static bool TREK_R(writes_past)(const trek_gemm *g)
{
    bool aligned = ((uintptr_t)g->c | (uintptr_t)(g->c_row * (int64_t)sizeof(T))) % TREK_VECTOR_BYTES == 0;
    return aligned && !g->accumulate && g->m * g->n * (int64_t)sizeof(T) >= (int64_t)32 << 20;
}

/* Computes rows of C for k = 1: a column times a row. */
static void TREK_R(outer_rows)(void *arg, int64_t begin, int64_t end)
{
    const trek_gemm *g = arg;
    const T *b = g->b;
    const bool past = TREK_R(writes_past)(g);
    for (int64_t i = begin; i < end; i++) {
        V x = TREK_R(spread)(((const T *)g->a)[i * g->a_row]);
        T *c = (T *)g->c + i * g->c_row;
        int64_t j = 0;
        for (; past && j + W <= g->n; j += W)
            TREK_R(store_past)(c + j, TREK_R(fma)(x, TREK_R(load)(b + j), (V){ 0 }));
        for (; j < g->n; j += W) {
            trek_lanes lanes = TREK_R(lanes)(g->n - j < W ? (int)(g->n - j) : W);
            V product = TREK_R(fma)(x, TREK_R(load_part)(b + j, lanes), (V){ 0 });
            TREK_R(store_part)(c + j, lanes, g->accumulate ? TREK_R(load_part)(c + j, lanes) + product : product);
        }
    }
#if defined(__SSE2__)
    _mm_sfence();
#endif
}

static bool TREK_R(outer_suits)(const trek_gemm *g)
{
    return g->k == 1 && g->b_col == 1 && g->c_col == 1 && g->m * g->n > 16384 && !g->bias && !g->activation && !g->pre;
}

static trek_status TREK_R(outer)(const trek_gemm *g)
{
    trek_gemm call = *g;
    trek_parallel(g->m, 16384 / g->n + 1, TREK_R(outer_rows), &call);
    return TREK_OK;
}

static void TREK_R(gemv_range)(void *arg, int64_t begin, int64_t end)
{
    const TREK_R(gemv_call) *v = arg;
    if (v->col == 1)
        TREK_R(gemv_by_rows)(v, begin, end);
    else
        TREK_R(gemv_by_columns)(v, begin, end);
    T *y = v->y + begin;
    int64_t n = end - begin;
    if (v->bias)
        for (int64_t i = 0; i < n; i++)
            y[i] += v->bias[(begin + i) * v->bias_step];
    if (v->pre)
        memcpy(v->pre + begin, y, (size_t)n * sizeof(T));
    if (v->activation == TREK_ACTIVATION_RELU)
        for (int64_t i = 0; i < n; i++)
            y[i] = y[i] < 0 ? 0 : y[i];
    else if (v->activation == TREK_ACTIVATION_GELU)
        TREK_R(gelu_row)(y, n);
}

/* For m == 1 or n == 1. Returns UNSUPPORTED (without an error) if the strides suit the tiles better. */
static trek_status TREK_R(gemv)(const trek_gemm *g)
{
    TREK_R(gemv_call) v = { .k = g->k, .pre = g->pre, .activation = g->activation, .bias = g->bias, .add = g->accumulate,
                            .y = g->c };
    int64_t x_step, y_step;
    if (g->m == 1)
        v.n = g->n, v.matrix = g->b, v.row = g->b_col, v.col = g->b_row, v.x = g->a, x_step = g->a_col, y_step = g->c_col,
        v.bias_step = g->bias_col;
    else
        v.n = g->m, v.matrix = g->a, v.row = g->a_row, v.col = g->a_col, v.x = g->b, x_step = g->b_row, y_step = g->c_row,
        v.bias_step = g->bias_row;
    if ((x_step != 1 && g->k > 1) || (y_step != 1 && v.n > 1) ||
        (v.row != 1 && v.col != 1))
        return TREK_ERR_UNSUPPORTED;
    int64_t size = v.n * v.k;
    if (size < 65536) {
        TREK_R(gemv_range)(&v, 0, v.n);
        return TREK_OK;
    }
    int64_t grain = (32768 / (v.k > 0 ? v.k : 1) + 7) / 8 * 8 + 8; /* multiples of the 8 rows that are processed at once */
    trek_parallel(v.n, v.col == 1 ? grain : (grain + 63) / 64 * 64, TREK_R(gemv_range), &v);
    return TREK_OK;
}

#if TREK_REAL_BYTES == 4
/* GELU of W columns in some rows, which its constants pass in registers. Bias and `pre` are used as in the epilogue. */
TREK_INLINE void gelu_column(const bool biased, const bool kept, int rows, float *c, int64_t c_row, const float *bias, float *pre)
{
    const V added = biased ? load_f32(bias) : (V){ 0 };
    for (int i = 0; i < rows; i++) {
        V x = load_f32(c + i * c_row);
        x = biased ? x + added : x;
        if (kept)
            store_f32(pre + i * c_row, x);
        store_f32(c + i * c_row, (V)trek_gelu_wide((trek_wide)x));
    }
}

/* Applies an epilogue with GELU whose bias is one for each column, or none, to whole vectors of a tile. Returns how many columns
 * are done. */
static int gelu_columns(int rows, int cols, float *c, int64_t c_row, const float *bias, float *pre)
{
    int j = 0;
    for (; j + W <= cols; j += W)
        if (bias && pre)
            gelu_column(true, true, rows, c + j, c_row, bias + j, pre + j);
        else if (bias)
            gelu_column(true, false, rows, c + j, c_row, bias + j, NULL);
        else if (pre)
            gelu_column(false, true, rows, c + j, c_row, NULL, pre + j);
        else
            gelu_column(false, false, rows, c + j, c_row, NULL, NULL);
    return j;
}
#endif

/* Applies bias and activation to a tile that is row-major in `c`. */
static void TREK_R(epilogue)(const trek_gemm *g, int64_t row, int64_t col, int rows, int cols, T *c, int64_t c_row, T *pre)
{
    int done = 0;
#if TREK_REAL_BYTES == 4
    if (g->activation == TREK_ACTIVATION_GELU && (!g->bias || (g->bias_col && !g->bias_row)))
        done = gelu_columns(rows, cols, c, c_row, g->bias ? (const float *)g->bias + col : NULL, pre);
#endif
    for (int i = 0; i < rows && done < cols; i++, c += c_row, pre = pre ? pre + c_row : NULL) {
        const T *bias = g->bias ? (const T *)g->bias + (row + i) * g->bias_row + col * g->bias_col : NULL;
        for (int j = done; j < cols; j += W) {
            const trek_lanes lanes = TREK_R(lanes)(cols - j < W ? cols - j : W);
            V x = TREK_R(load_part)(c + j, lanes);
            if (bias)
                x += g->bias_col ? TREK_R(load_part)(bias + j, lanes) : TREK_R(spread)(bias[0]);
            if (pre)
                TREK_R(store_part)(pre + j, lanes, x);
            if (g->activation == TREK_ACTIVATION_RELU)
                x = (V)(~(TREK_R(trek_indices))(x < 0) & (TREK_R(trek_indices))x);
#if TREK_REAL_BYTES == 4
            else if (g->activation == TREK_ACTIVATION_GELU)
                x = (V)trek_gelu_wide((trek_wide)x);
#endif
            TREK_R(store_part)(c + j, lanes, x);
        }
#if TREK_REAL_BYTES == 8
        if (g->activation == TREK_ACTIVATION_GELU)
            TREK_R(gelu_row)(c, cols);
#endif
    }
}

/* -- few rows of A with the rows of B^T, both contiguous along k: at the speed of memory -- */

#define FEW_ROWS 6
#define FEW_COLS (TREK_VECTOR_BYTES == 64 ? 4 : 2)

/* Computes c[i][j] = dot products of `rows` rows of A with `cols` rows of B^T. */
TREK_INLINE void TREK_R(few_dots)(const int rows, const int cols, const trek_gemm *g, int64_t col)
{
    const T *a = g->a, *b = (const T *)g->b + col * g->b_col;
    V sum[FEW_ROWS][FEW_COLS];
    int64_t p = 0;
#pragma GCC unroll 8
    for (int i = 0; i < rows; i++) {
#pragma GCC unroll 4
        for (int j = 0; j < cols; j++)
            sum[i][j] = (V){ 0 };
    }
    for (; p < g->k; p += W) {
        trek_lanes lanes = TREK_R(lanes)(g->k - p < W ? (int)(g->k - p) : W);
        V y[FEW_COLS];
#pragma GCC unroll 4
        for (int j = 0; j < cols; j++)
            y[j] = TREK_R(load_part)(b + j * g->b_col + p, lanes);
#pragma GCC unroll 8
        for (int i = 0; i < rows; i++) {
            V x = TREK_R(load_part)(a + i * g->a_row + p, lanes);
#pragma GCC unroll 4
            for (int j = 0; j < cols; j++)
                sum[i][j] = TREK_R(fma)(x, y[j], sum[i][j]);
        }
    }
#pragma GCC unroll 8
    for (int i = 0; i < rows; i++) {
#pragma GCC unroll 4
        for (int j = 0; j < cols; j++) {
            T *c = (T *)g->c + i * g->c_row + (col + j) * g->c_col, total = TREK_R(sum)(sum[i][j]);
            *c = g->accumulate ? *c + total : total;
        }
    }
}

#define TREK_FEW(rows)                                                                                              \
    static void TREK_R(few_##rows)(const trek_gemm *g, int64_t col, int64_t cols)                                   \
    {                                                                                                               \
        if (cols == FEW_COLS)                                                                                       \
            TREK_R(few_dots)(rows, FEW_COLS, g, col);                                                               \
        else                                                                                                        \
            for (int64_t end = col + cols; col < end; col++)                                                        \
                TREK_R(few_dots)(rows, 1, g, col);                                                                  \
    }
TREK_FEW(1) TREK_FEW(2) TREK_FEW(3) TREK_FEW(4) TREK_FEW(5) TREK_FEW(6)
#undef TREK_FEW

/* Processes rows of A in groups of at most FEW_ROWS, as equal as possible. */
static void TREK_R(few_range)(void *arg, int64_t begin, int64_t end)
{
    static void (*const table[])(const trek_gemm *, int64_t, int64_t) = { TREK_R(few_1), TREK_R(few_2), TREK_R(few_3),
                                                                           TREK_R(few_4), TREK_R(few_5), TREK_R(few_6) };
    const trek_gemm *g = arg;
    const int64_t parts = (g->m + FEW_ROWS - 1) / FEW_ROWS;
    for (int64_t col = begin; col < end; col += FEW_COLS) {
        trek_gemm rows = *g;
        for (int64_t part = 0, left = g->m; part < parts; part++, left -= rows.m) {
            rows.m = (left + parts - part - 1) / (parts - part);
            rows.a = (const T *)g->a + (g->m - left) * g->a_row;
            rows.c = (T *)g->c + (g->m - left) * g->c_row;
            table[rows.m - 1](&rows, col, end - col < FEW_COLS ? end - col : FEW_COLS);
        }
    }
    if (!g->bias && !g->activation && !g->pre)
        return;
    for (int64_t i = 0; i < g->m; i++)
        TREK_R(epilogue)(g, i, begin, 1, (int)(end - begin), (T *)g->c + i * g->c_row + begin, g->c_row,
                         g->pre ? (T *)g->pre + i * g->c_row + begin : NULL);
}

/* For matrices whose elements are each used only a few times, so that packing would take as long as the products. The sums over
 * lanes at the end of each dot product must cost less, too. */
static bool TREK_R(few_suits)(const trek_gemm *g)
{
    return g->m <= (g->k < 128 ? FEW_ROWS : 2 * FEW_ROWS) && g->a_col == 1 && g->b_row == 1 && g->c_col == 1 && g->k >= 64 &&
           g->n * g->k >= 4096;
}

static trek_status TREK_R(few)(const trek_gemm *g)
{
    trek_gemm call = *g;
    trek_parallel(g->n, (32768 / g->k + FEW_COLS) / FEW_COLS * FEW_COLS, TREK_R(few_range), &call);
    return TREK_OK;
}
#undef FEW_ROWS
#undef FEW_COLS
#undef COLUMNS_AT_ONCE
