/* SPDX-License-Identifier: Apache-2.0 */
/* Matrix times vector at the speed of memory, for one real type, and the
 * activation of a row. Included by gemm_template.h. */

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

/* y[i] = sum over p of matrix[i, p] x[p], then bias and activation. */
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

/* `rows` dot products with x side by side; each adds up in the same order as alone. */
TREK_INLINE void TREK_R(dots)(const int rows, const T *matrix, int64_t row, const T *x, int64_t k, T *y, bool add)
{
    V sum[8];
    int64_t p = 0;
#pragma GCC unroll 8
    for (int i = 0; i < rows; i++)
        sum[i] = (V){ 0 };
    for (; p + W <= k; p += W) {
        V value = TREK_R(load)(x + p);
#pragma GCC unroll 8
        for (int i = 0; i < rows; i++)
            sum[i] = TREK_R(fma)(TREK_R(load)(matrix + i * row + p), value, sum[i]);
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
    for (; i + 8 <= end; i += 8)
        TREK_R(dots)(8, v->matrix + i * v->row, v->row, v->x, v->k, v->y + i, v->add);
    for (; i < end; i++)
        TREK_R(dots)(1, v->matrix + i * v->row, v->row, v->x, v->k, v->y + i, v->add);
}

/* The matrix's columns are contiguous: x[p] times column p is added to y, four columns at a time. */
static void TREK_R(gemv_by_columns)(const TREK_R(gemv_call) *v, int64_t begin, int64_t end)
{
    T *y = v->y + begin;
    const T *matrix = v->matrix + begin;
    int64_t n = end - begin, p = 0;
    if (!v->add)
        memset(y, 0, (size_t)n * sizeof(T));
    for (; p < v->k; p += 4) {
        int count = v->k - p < 4 ? (int)(v->k - p) : 4;
        const T *column[4];
        V x[4];
        for (int c = 0; c < 4; c++) {
            column[c] = matrix + (p + (c < count ? c : 0)) * v->col;
            x[c] = TREK_R(spread)(c < count ? v->x[p + c] : 0);
        }
        for (int64_t i = 0; i < n; i += W) {
            trek_lanes lanes = TREK_R(lanes)(n - i < W ? (int)(n - i) : W);
            V sum = TREK_R(load_part)(y + i, lanes);
            for (int c = 0; c < count; c++)
                sum = TREK_R(fma)(TREK_R(load_part)(column[c] + i, lanes), x[c], sum);
            TREK_R(store_part)(y + i, lanes, sum);
        }
    }
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

/* For m == 1 or n == 1; UNSUPPORTED (without an error) where the strides suit the tiles better. */
static trek_status TREK_R(gemv)(const trek_gemm *g, trek_dtype own)
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
    if (g->a_dtype != own || g->b_dtype != own || (x_step != 1 && g->k > 1) || (y_step != 1 && v.n > 1) ||
        (v.row != 1 && v.col != 1))
        return TREK_ERR_UNSUPPORTED;
    int64_t size = v.n * v.k;
    if (size < 65536) {
        TREK_R(gemv_range)(&v, 0, v.n);
        return TREK_OK;
    }
    int64_t grain = (32768 / (v.k > 0 ? v.k : 1) + 7) / 8 * 8 + 8; /* multiples of the 8 rows taken at once */
    trek_parallel(v.n, v.col == 1 ? grain : (grain + 63) / 64 * 64, TREK_R(gemv_range), &v);
    return TREK_OK;
}
