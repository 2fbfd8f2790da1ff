/* SPDX-License-Identifier: Apache-2.0 */
/* What becomes of finished sums in f32: C, of any dtype but F64. Included after half_vectors.h by the files whose tiles lie in
 * memory of their own until they are complete. */

static int64_t divide_up(int64_t x, int64_t by) { return (x + by - 1) / by; }

static const char *element(const void *base, trek_dtype dtype, int64_t offset)
{
    return (const char *)base + offset * (dtype == TREK_F32 ? 4 : 2);
}

/* For `n` columns from col on, in one row. */
TREK_INLINE V bias_of(const trek_gemm *g, int64_t row, int64_t col, int n)
{
    if (!g->bias)
        return (V){ 0 };
    if (!g->bias_col)
        return spread_f32(number_at(g->bias_dtype, g->bias, row * g->bias_row));
    return load_numbers(g->bias_dtype, element(g->bias, g->bias_dtype, row * g->bias_row + col), n);
}

/* GELU as the op of C's dtype computes it. */
TREK_INLINE V gelu_for(const trek_dtype dtype, V x)
{
    return (V)(dtype == TREK_F32 ? trek_gelu_wide((trek_wide)x) : trek_gelu_short_wide((trek_wide)x));
}

/* Completes n <= W sums: adds what C has, bias, activation; stores `pre`. C's columns are contiguous, and its dtype
 * is a constant. */
TREK_INLINE V finished(const trek_gemm *g, const trek_dtype dtype, int64_t place, int n, V x, V bias)
{
    if (g->accumulate)
        x = load_numbers(dtype, element(g->c, dtype, place), n) + x;
    if (g->bias)
        x += bias;
    if (g->pre)
        store_numbers(dtype, (char *)element(g->pre, dtype, place), n, x);
    if (g->activation == TREK_ACTIVATION_RELU)
        x = (V)(~(half_words)(x < 0) & (half_words)x);
    else if (g->activation == TREK_ACTIVATION_GELU)
        x = gelu_for(dtype, x);
    return x;
}

/* The same with GELU for two whole vectors of a column in some rows, through which its constants stay in registers. */
TREK_INLINE void finish_gelu(const trek_gemm *g, const trek_dtype dtype, const int64_t at[2], int rows, const float *sums,
                             int64_t sum_row)
{
    const int64_t c_row = g->c_row;
    const V first = bias_of(g, at[0], at[1], W), second = bias_of(g, at[0], at[1] + W, W);
    char *to = (char *)element(g->c, dtype, at[0] * c_row + at[1]);
    char *pre = g->pre ? (char *)element(g->pre, dtype, at[0] * c_row + at[1]) : NULL;
    const int64_t step = c_row * (dtype == TREK_F32 ? 4 : 2);
    for (int i = 0; i < rows; i++, to += step) {
        const V x = load_f32(sums + i * sum_row) + first, y = load_f32(sums + i * sum_row + W) + second;
        if (pre)
            store_two(dtype, pre + i * step, x, y);
        store_two(dtype, to, gelu_for(dtype, x), gelu_for(dtype, y));
    }
}

TREK_INLINE void finish_side_by_side(const trek_gemm *g, const trek_dtype dtype, const int64_t at[2], int rows, int cols,
                                     const float *sums, int64_t sum_row)
{
    const bool plain = !g->accumulate && !g->bias && !g->pre && !g->activation;
    const bool gelu = g->activation == TREK_ACTIVATION_GELU && !g->accumulate && g->bias && !g->bias_row;
    const int64_t c_row = g->c_row;
    int j = 0;
    for (; gelu && j + 2 * W <= cols; j += 2 * W)
        finish_gelu(g, dtype, (int64_t[]){ at[0], at[1] + j }, rows, sums + j, sum_row);
    for (; j + 2 * W <= cols; j += 2 * W) {
        const int64_t col = at[1] + j;
        V first = bias_of(g, at[0], col, W), second = bias_of(g, at[0], col + W, W);
        for (int i = 0; i < rows; i++) {
            int64_t place = (at[0] + i) * c_row + col;
            V x = load_f32(sums + i * sum_row + j), y = load_f32(sums + i * sum_row + j + W);
            if (g->bias_row)
                first = bias_of(g, at[0] + i, col, W), second = bias_of(g, at[0] + i, col + W, W);
            x = plain ? x : finished(g, dtype, place, W, x, first);
            y = plain ? y : finished(g, dtype, place + W, W, y, second);
            store_two(dtype, (char *)element(g->c, dtype, place), x, y);
        }
    }
    for (; j < cols; j += W) {
        const int n = cols - j < W ? cols - j : W;
        for (int i = 0; i < rows; i++) {
            int64_t place = (at[0] + i) * c_row + at[1] + j;
            V x = load_part_f32(sums + i * sum_row + j, lanes_f32(n));
            x = plain ? x : finished(g, dtype, place, n, x, bias_of(g, at[0] + i, at[1] + j, n));
            store_numbers(dtype, (char *)element(g->c, dtype, place), n, x);
        }
    }
}

static void finish_strided(const trek_gemm *g, int64_t row, int64_t col, int cols, const float *sums)
{
    for (int j = 0; j < cols; j++) {
        int64_t place = row * g->c_row + (col + j) * g->c_col;
        float x = sums[j];
        if (g->accumulate)
            x = number_at(g->c_dtype, g->c, place) + x;
        if (g->bias)
            x += number_at(g->bias_dtype, g->bias, row * g->bias_row + (col + j) * g->bias_col);
        if (g->pre)
            put_number(g->c_dtype, g->pre, place, x);
        if (g->activation == TREK_ACTIVATION_RELU)
            x = x < 0 ? 0 : x;
        else if (g->activation == TREK_ACTIVATION_GELU)
            x = trek_gelu_f32(x);
        put_number(g->c_dtype, g->c, place, x);
    }
}

/* Writes a tile of C whose sums are complete, with everything that follows. */
static void finish(const trek_gemm *g, int64_t row, int64_t col, int rows, int cols, const float *sums, int64_t sum_row)
{
    const int64_t at[2] = { row, col };
    if (g->c_col != 1)
        for (int i = 0; i < rows; i++)
            finish_strided(g, row + i, col, cols, sums + i * sum_row);
    else if (g->c_dtype == TREK_F32)
        finish_side_by_side(g, TREK_F32, at, rows, cols, sums, sum_row);
    else if (g->c_dtype == TREK_BF16)
        finish_side_by_side(g, TREK_BF16, at, rows, cols, sums, sum_row);
    else
        finish_side_by_side(g, TREK_F16, at, rows, cols, sums, sum_row);
}
