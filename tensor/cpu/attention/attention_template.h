/* SPDX-License-Identifier: Apache-2.0 */
/* Attention by blocks for one real type. Included by attention.c. */
#include "tensor/cpu/vector.h"

/* Elements of working memory of a unit: two blocks of scores and a row of the mask. */
#define SCRATCH (2 * QUERIES * PITCH + KEYS)

static bool TREK_R(product)(attention_job *job, trek_gemm g)
{
    trek_status status = sizeof(T) == 8 ? TREK_ISA_NAME(trek_gemm_f64)(&g) : TREK_ISA_NAME(trek_gemm_f32)(&g);
    if (status != TREK_OK)
        job->failed = true;
    return status == TREK_OK;
}

static T *TREK_R(scratch)(attention_job *job, int64_t elements)
{
    T *scratch = trek_block_alloc((size_t)elements * sizeof(T));
    if (!scratch)
        job->failed = true;
    return scratch;
}

/* Returns how many of the keys from j0 on the row's query sees. */
static int64_t TREK_R(seen)(const attention_job *job, const int64_t at[4], int64_t r, int64_t cols)
{
    int64_t n = at[2] + r - at[3] + 1;
    return !job->causal || n > cols ? cols : n > 0 ? n : 0;
}

/* Names the triangle of a product if a causal mask hides some of the keys from j0 on from query i0. */
static trek_gemm TREK_R(with_triangle)(const attention_job *job, const int64_t at[4], int64_t cols, trek_gemm_triangle triangle,
                                       trek_gemm g)
{
    if (TREK_R(seen)(job, at, 0, cols) < cols)
        g.triangle = triangle, g.diagonal = at[2] - at[3];
    return g;
}

/* to[r][c] = x (b, h, i0 + r) . w (b, g, j0 + c), over the depth, of the keys that a query sees. */
static bool TREK_R(rows_by_rows)(attention_job *job, const trek_tensor *x, const trek_tensor *w, const int64_t at[4],
                                 int64_t rows,
                                 int64_t cols, T *to)
{
    trek_gemm g = { .m = rows, .n = cols, .k = job->depth, .a = place_of(x, at[0], at[1], at[2]),
                    .a_dtype = (trek_dtype)x->dtype, .a_row = x->strides[2], .a_col = x->strides[3],
                    .b = place_of(w, at[0], at[1] / job->group, at[3]), .b_dtype = (trek_dtype)w->dtype,
                    .b_row = w->strides[3], .b_col = w->strides[2], .c = to, .c_row = PITCH, .c_col = 1, .alone = true };
    return TREK_R(product)(job, TREK_R(with_triangle)(job, at, cols, TREK_GEMM_C_LOWER, g));
}

/* Computes C (+)= s w, for rows of w at (b, g, j0), and C of `to`. It adds from the second block of keys on. */
static bool TREK_R(rows_by_keys)(attention_job *job, const T *s, const trek_tensor *w, const int64_t at[4], int64_t rows,
                                 int64_t cols, const trek_gemm *to)
{
    trek_gemm g = { .m = rows, .n = job->depth, .k = cols, .a = s, .a_dtype = sizeof(T) == 8 ? TREK_F64 : TREK_F32,
                    .a_row = PITCH, .a_col = 1, .b = place_of(w, at[0], at[1] / job->group, at[3]),
                    .b_dtype = (trek_dtype)w->dtype, .b_row = w->strides[2], .b_col = w->strides[3], .c = to->c,
                    .c_row = to->c_row, .c_col = to->c_col, .accumulate = at[3] > 0, .alone = true };
    return TREK_R(product)(job, TREK_R(with_triangle)(job, at, cols, TREK_GEMM_A_LOWER, g));
}

/* --- few queries: a decoder's step, at the speed of memory -------------------------- */

/* Computes s[r][j] = q row r . k row j, for `rows` and `keys` in parallel; each adds in the same order as alone. It
 * prefetches the next rows, because rows end where the machine's own prefetching ends. */
TREK_INLINE void TREK_R(few_dots)(const int rows, const int keys, const T *q, int64_t q_step, const T *k, int64_t k_step,
                                  int64_t depth, T *s)
{
    V sum[FEW][FEW];
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++) {
#pragma GCC unroll 4
        for (int j = 0; j < keys; j++)
            sum[r][j] = (V){ 0 };
    }
    for (int64_t p = 0; p < depth; p += W) {
        trek_lanes lanes = TREK_R(lanes)(depth - p < W ? (int)(depth - p) : W);
        V key[FEW];
#pragma GCC unroll 4
        for (int j = 0; j < keys; j++) {
            __builtin_prefetch(k + j * k_step + AHEAD / (int)sizeof(T) + p);
            key[j] = TREK_R(load_part)(k + j * k_step + p, lanes);
        }
#pragma GCC unroll 4
        for (int r = 0; r < rows; r++) {
            V query = TREK_R(load_part)(q + r * q_step + p, lanes);
#pragma GCC unroll 4
            for (int j = 0; j < keys; j++)
                sum[r][j] = TREK_R(fma)(query, key[j], sum[r][j]);
        }
    }
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++) {
#pragma GCC unroll 4
        for (int j = 0; j < keys; j++)
            s[r * PITCH + j] = TREK_R(sum)(sum[r][j]);
    }
}

/* Computes acc[r] += sum over n keys of p[r][j] v row j, for 4 vectors of the depth from d on; each element adds keys
 * in order. */
TREK_INLINE void TREK_R(few_add)(const int rows, const T *p, const T *v, int64_t v_step, int64_t n, int64_t d, int64_t depth,
                                 T *acc)
{
    trek_lanes lanes[FEW];
    V sum[FEW][FEW];
#pragma GCC unroll 4
    for (int c = 0; c < FEW; c++) {
        int64_t left = depth - d - c * W;
        lanes[c] = TREK_R(lanes)(left < 0 ? 0 : left < W ? (int)left : W);
#pragma GCC unroll 4
        for (int r = 0; r < rows; r++)
            sum[r][c] = TREK_R(load_part)(acc + r * depth + d + c * W, lanes[c]);
    }
    for (int64_t j = 0; j < n; j++, v += v_step) {
#pragma GCC unroll 4
        for (int c = 0; c < FEW; c++) {
            __builtin_prefetch(v + AHEAD / (int)sizeof(T) + d + c * W);
            V value = TREK_R(load_part)(v + d + c * W, lanes[c]);
#pragma GCC unroll 4
            for (int r = 0; r < rows; r++)
                sum[r][c] = TREK_R(fma)(TREK_R(spread)(p[r * PITCH + j]), value, sum[r][c]);
        }
    }
#pragma GCC unroll 4
    for (int c = 0; c < FEW; c++) {
#pragma GCC unroll 4
        for (int r = 0; r < rows; r++)
            TREK_R(store_part)(acc + r * depth + d + c * W, lanes[c], sum[r][c]);
    }
}

#define TREK_FEW(rows)                                                                                                   \
    static void TREK_R(few_scores_##rows)(const T *q, int64_t q_step, const T *k, int64_t k_step, int64_t depth,         \
                                          int64_t n, T *s)                                                               \
    {                                                                                                                    \
        int64_t j = 0;                                                                                                   \
        for (; j + FEW <= n; j += FEW)                                                                                   \
            TREK_R(few_dots)(rows, FEW, q, q_step, k + j * k_step, k_step, depth, s + j);                                \
        for (; j < n; j++)                                                                                               \
            TREK_R(few_dots)(rows, 1, q, q_step, k + j * k_step, k_step, depth, s + j);                                  \
    }                                                                                                                    \
    static void TREK_R(few_values_##rows)(const T *p, const T *v, int64_t v_step, int64_t n, int64_t depth, T *acc)      \
    {                                                                                                                    \
        for (int64_t d = 0; d < depth; d += FEW * W)                                                                     \
            TREK_R(few_add)(rows, p, v, v_step, n, d, depth, acc);                                                       \
    }
TREK_FEW(1) TREK_FEW(2) TREK_FEW(3) TREK_FEW(4)
#undef TREK_FEW

static void (*const TREK_R(few_scores)[])(const T *, int64_t, const T *, int64_t, int64_t, int64_t, T *) = {
    TREK_R(few_scores_1), TREK_R(few_scores_2), TREK_R(few_scores_3), TREK_R(few_scores_4)
};
static void (*const TREK_R(few_values)[])(const T *, const T *, int64_t, int64_t, int64_t, T *) = {
    TREK_R(few_values_1), TREK_R(few_values_2), TREK_R(few_values_3), TREK_R(few_values_4)
};

/* Computes `scores` before scale and mask, for all queries. */
static void TREK_R(few_products)(const attention_job *job, const int64_t at[4], int64_t cols, T *s)
{
    const T *q = (const T *)(const void *)place_of(job->q, at[0], at[1], 0);
    const T *k = (const T *)(const void *)place_of(job->k, at[0], at[1] / job->group, at[3]);
    int64_t q_step = job->q->strides[2];
    for (int64_t r = 0; r < job->queries; r += FEW)
        TREK_R(few_scores)[(job->queries - r < FEW ? job->queries - r : FEW) - 1](q + r * q_step, q_step, k, job->k->strides[2],
                                                                                  job->depth, cols, s + r * PITCH);
}

/* Computes acc += p v. */
static void TREK_R(few_sums)(const attention_job *job, const int64_t at[4], int64_t cols, const T *p, T *acc)
{
    const T *v = (const T *)(const void *)place_of(job->v, at[0], at[1] / job->group, at[3]);
    for (int64_t r = 0; r < job->queries; r += FEW)
        TREK_R(few_values)[(job->queries - r < FEW ? job->queries - r : FEW) - 1](p + r * PITCH, v, job->v->strides[2], cols,
                                                                                  job->depth, acc + r * job->depth);
}

/* Computes s[j] = s[j] scale + mask, for row (b, h, i) and keys [j0, j0 + n), which a causal mask does not hide; keys that
 * another mask hides become -infinity. */
static void TREK_R(mask_row)(const attention_job *job, int64_t b, int64_t h, int64_t i, int64_t j0, int64_t n, T *s)
{
    const trek_tensor *mask = job->mask;
    const T scale = (T)job->scale;
    for (int64_t j = 0; j < n; j++)
        s[j] *= scale;
    if (mask) {
        int64_t at = mask_offset(mask, b, h, i, j0), step = mask_offset(mask, b, h, i, j0 + 1) - at;
        if (mask->dtype == TREK_BOOL) {
            for (int64_t j = 0; j < n; j++)
                s[j] = mask->data[at + j * step] ? s[j] : -(T)INFINITY;
        } else {
            for (int64_t j = 0; j < n; j++)
                s[j] += (T)number_at(mask, at + j * step);
        }
    }
}

/* Computes the scores of queries [i0, i0 + rows) and keys [j0, j0 + cols), as far as a query sees a key. */
static bool TREK_R(scores)(attention_job *job, const int64_t at[4], int64_t rows, int64_t cols, T *s)
{
    if (few_queries(job))
        TREK_R(few_products)(job, at, cols, s);
    else if (!TREK_R(rows_by_rows)(job, job->q, job->k, at, rows, cols, s))
        return false;
    for (int64_t r = 0; r < rows; r++)
        TREK_R(mask_row)(job, at[0], at[1], at[2] + r, at[3], TREK_R(seen)(job, at, r, cols), s + r * PITCH);
    return true;
}

/* Sets keep[j] to 1 / (1 - p), or to 0 if the probability is dropped. */
static void TREK_R(keep_row)(const attention_job *job, int64_t b, int64_t h, int64_t i, int64_t j0, int64_t n, T *keep)
{
    uint32_t room[KEYS + 8];
    const uint32_t *words = dropout_words(job, b, h, i, j0, n, room);
    const int32_t limit = (int32_t)ceil((double)(float)job->p * 0x1p24);
    const T factor = (T)(job->p < 1 ? 1 / (1 - job->p) : 0);
    for (int64_t j = 0; j < n; j++)
        keep[j] = (int32_t)(words[j] >> 8) >= limit ? factor : 0;
}

static void TREK_R(multiply_row)(T *to, const T *by, int64_t n)
{
    for (int64_t j = 0; j < n; j++)
        to[j] *= by[j];
}

static void TREK_R(scale_row)(T *to, T factor, int64_t n)
{
    for (int64_t j = 0; j < n; j++)
        to[j] *= factor;
}

/* The state of the softmax of a block's rows. */
typedef struct TREK_R(rows_state) {
    T top[QUERIES];           /* largest score so far */
    double sum[QUERIES];      /* of e^(score - top) */
} TREK_R(rows_state);

static void TREK_R(clear)(T *x, int64_t begin, int64_t end)
{
    memset(x + begin, 0, (size_t)(end - begin) * sizeof(T));
}

/* Turns a block of scores into e^(score - top), 0 for keys that a query does not see, and scales earlier sums to the new
 * top. */
static void TREK_R(next_block)(const attention_job *job, const int64_t at[4], int64_t rows, int64_t cols,
                               TREK_R(rows_state) *state,
                               T *s, T *acc, T *keep)
{
    for (int64_t r = 0; r < rows; r++) {
        int64_t n = TREK_R(seen)(job, at, r, cols);
        T *row = s + r * PITCH, before = state->top[r], top = TREK_R(largest)(row, n);
        top = top > before ? top : before;
        T shift = top > -(T)INFINITY ? top : 0;
        state->top[r] = top;
        if (at[3] > 0 && before > -(T)INFINITY && before != top) {
            T factor = (T)exp((double)(before - top));
            state->sum[r] *= (double)factor;
            TREK_R(scale_row)(acc + r * job->depth, factor, job->depth);
        }
        state->sum[r] += TREK_R(exp_sum)(row, n, shift);
        if (job->p > 0 && n > 0) {
            TREK_R(keep_row)(job, at[0], at[1], at[2] + r, at[3], n, keep);
            TREK_R(multiply_row)(row, keep, n);
        }
        TREK_R(clear)(row, n, cols);
    }
}

static void TREK_R(store_row)(const trek_tensor *y, char *to, const T *from, int64_t n)
{
    int64_t step = y->strides[3];
    uint16_t *half = (uint16_t *)(void *)to;
    if (step == 1 && y->dtype == TREK_BF16 && sizeof(T) == 4)
        trek_bf16_from_f32_row(half, (const float *)from, n);
    else if (step == 1 && y->dtype == TREK_F16 && sizeof(T) == 4)
        trek_f16_from_f32_row(half, (const float *)from, n);
    else if (y->dtype == TREK_BF16)
        for (int64_t d = 0; d < n; d++)
            half[d * step] = trek_bf16_from_f32((float)from[d]);
    else if (y->dtype == TREK_F16)
        for (int64_t d = 0; d < n; d++)
            half[d * step] = trek_f16_from_f32((float)from[d]);
    else
        for (int64_t d = 0; d < n; d++)
            ((T *)(void *)to)[d * step] = from[d];
}

/* Computes y = acc / sum and the logsumexp; rows that saw no key are 0. */
static void TREK_R(finish_rows)(const attention_job *job, const int64_t at[4], int64_t rows, const TREK_R(rows_state) *state,
                                T *acc)
{
    const trek_tensor *lse = job->lse;
    for (int64_t r = 0; r < rows; r++) {
        T *row = acc + r * job->depth;
        double sum = state->sum[r];
        if (sum == 0)
            memset(row, 0, (size_t)job->depth * sizeof(T));
        else
            TREK_R(scale_row)(row, (T)(1 / sum), job->depth);
        TREK_R(store_row)(job->y, (char *)(uintptr_t)place_of(job->y, at[0], at[1], at[2] + r), row, job->depth);
        ((T *)(void *)lse->data)[at[0] * lse->strides[0] + at[1] * lse->strides[1] + (at[2] + r) * lse->strides[2]] =
            sum == 0 ? -(T)INFINITY : (T)((double)(state->top[r] > -(T)INFINITY ? state->top[r] : 0) + log(sum));
    }
}

/* Runs one block of queries against all keys. */
static void TREK_R(forward_unit)(attention_job *job, int64_t b, int64_t h, int64_t i0, T *s, T *acc, T *keep)
{
    int64_t rows = job->queries - i0 < QUERIES ? job->queries - i0 : QUERIES;
    int64_t last = job->causal && i0 + rows < job->keys ? i0 + rows : job->keys;
    TREK_R(rows_state) state;
    for (int64_t r = 0; r < rows; r++) {
        state.top[r] = -(T)INFINITY;
        state.sum[r] = 0;
    }
    if (few_queries(job))
        memset(acc, 0, (size_t)(rows * job->depth) * sizeof(T));
    for (int64_t j0 = 0; j0 < last; j0 += KEYS) {
        int64_t cols = last - j0 < KEYS ? last - j0 : KEYS, at[4] = { b, h, i0, j0 };
        if (!TREK_R(scores)(job, at, rows, cols, s))
            return;
        TREK_R(next_block)(job, at, rows, cols, &state, s, acc, keep);
        if (few_queries(job))
            TREK_R(few_sums)(job, at, cols, s, acc);
        else if (!TREK_R(rows_by_keys)(job, s, job->v, at, rows, cols, &(trek_gemm){ .c = acc, .c_row = job->depth, .c_col = 1 }))
            return;
    }
    TREK_R(finish_rows)(job, (int64_t[4]){ b, h, i0, 0 }, rows, &state, acc);
}

static void TREK_R(forward_units)(void *arg, int64_t begin, int64_t end)
{
    attention_job *job = arg;
    T *s = TREK_R(scratch)(job, SCRATCH + QUERIES * job->depth);
    for (int64_t unit = begin; s && unit < end; unit++) {
        int64_t block = unit % job->query_blocks, pair = unit / job->query_blocks;
        TREK_R(forward_unit)(job, pair / job->heads, pair % job->heads, block * QUERIES, s, s + SCRATCH, s + 2 * QUERIES * PITCH);
    }
    trek_block_free(s);
}

/* --- backward ----------------------------------------------------------------------- */

static T TREK_R(element)(const trek_tensor *t, const char *at, int64_t step)
{
    const void *data = at;
    switch (t->dtype) {
    case TREK_BF16: return (T)trek_f32_from_bf16(((const uint16_t *)data)[step]);
    case TREK_F16: return (T)trek_f32_from_f16(((const uint16_t *)data)[step]);
    default: return ((const T *)data)[step];
    }
}

/* Reads elements [first, first + n) of a row. */
static void TREK_R(elements)(const trek_tensor *t, const char *row, int64_t first, int64_t n, T *to)
{
    const uint16_t *halves = (const uint16_t *)(const void *)row + first;
    if (t->strides[3] == 1 && t->dtype == TREK_BF16 && sizeof(T) == 4)
        trek_f32_from_bf16_row((float *)to, halves, n);
    else if (t->strides[3] == 1 && t->dtype == TREK_F16 && sizeof(T) == 4)
        trek_f32_from_f16_row((float *)to, halves, n);
    else
        for (int64_t d = 0; d < n; d++)
            to[d] = TREK_R(element)(t, row, (first + d) * t->strides[3]);
}

/* Computes delta, the sum over the depth of dy y, which is the sum over the keys of p dp. */
static void TREK_R(delta_rows)(void *arg, int64_t begin, int64_t end)
{
    enum { PART = 128 };
    const attention_job *job = arg;
    for (int64_t row = begin; row < end; row++) {
        int64_t i = row % job->queries, h = row / job->queries % job->heads, b = row / job->queries / job->heads;
        const char *y = place_of(job->y, b, h, i), *dy = place_of(job->dy, b, h, i);
        double sum = 0;
        T first[PART], second[PART];
        for (int64_t d = 0; d < job->depth; d += PART) {
            int64_t n = job->depth - d < PART ? job->depth - d : PART;
            TREK_R(elements)(job->y, y, d, n, first);
            TREK_R(elements)(job->dy, dy, d, n, second);
            for (int64_t e = 0; e < n; e++)
                sum += (double)first[e] * (double)second[e];
        }
        ((T *)job->delta)[row] = (T)sum;
    }
}

/* From scores and dp: s becomes the probabilities that made y (p after dropout), d the gradient of the unscaled
 * scores. */
static void TREK_R(gradient_rows)(const attention_job *job, const int64_t at[4], int64_t rows, int64_t cols, T *s, T *d, T *keep)
{
    const int64_t first = (at[0] * job->heads + at[1]) * job->queries + at[2];
    const T scale = (T)job->scale;
    for (int64_t r = 0; r < rows; r++) {
        T *p = s + r * PITCH, *dp = d + r * PITCH;
        T lse = ((const T *)(const void *)job->lse->data)[first + r], delta = ((const T *)job->delta)[first + r];
        int64_t n = lse == -(T)INFINITY ? 0 : TREK_R(seen)(job, at, r, cols);
        TREK_R(exponentials)(p, n, lse);
        TREK_R(clear)(p, n, cols);
        TREK_R(clear)(dp, n, cols);
        if (job->p == 0 || n == 0) {
            for (int64_t j = 0; j < n; j++)
                dp[j] = p[j] * (dp[j] - delta) * scale;
            continue;
        }
        TREK_R(keep_row)(job, at[0], at[1], at[2] + r, at[3], n, keep);
        for (int64_t j = 0; j < n; j++)
            dp[j] = p[j] * (dp[j] * keep[j] - delta) * scale;
        TREK_R(multiply_row)(p, keep, n);
    }
}

/* Computes to (b, g, [j0, j0 + cols), :) (+)= s^T x, for rows of x at (b, h, i0). */
static bool TREK_R(add_to_keys)(attention_job *job, const T *s, const trek_tensor *x, const int64_t at[4], int64_t rows,
                                int64_t cols, const trek_tensor *to, bool add)
{
    trek_gemm g = { .m = cols, .n = job->depth, .k = rows, .a = s, .a_dtype = sizeof(T) == 8 ? TREK_F64 : TREK_F32,
                    .a_row = 1, .a_col = PITCH, .b = place_of(x, at[0], at[1], at[2]), .b_dtype = (trek_dtype)x->dtype,
                    .b_row = x->strides[2], .b_col = x->strides[3],
                    .c = (void *)(uintptr_t)place_of(to, at[0], at[1] / job->group, at[3]), .c_row = to->strides[2],
                    .c_col = to->strides[3], .accumulate = add, .alone = true };
    return TREK_R(product)(job, TREK_R(with_triangle)(job, at, cols, TREK_GEMM_A_UPPER, g));
}

/* Computes dq of the block (+)= d k. */
static bool TREK_R(add_to_queries)(attention_job *job, const T *d, const int64_t at[4], int64_t rows, int64_t cols)
{
    const trek_tensor *to = job->dq;
    return TREK_R(rows_by_keys)(job, d, job->k, at, rows, cols,
                                &(trek_gemm){ .c = (void *)(uintptr_t)place_of(to, at[0], at[1], at[2]),
                                              .c_row = to->strides[2], .c_col = to->strides[3] });
}

/* Runs backward for one block of queries and one of keys. *reached is the number of keys whose gradients have been
 * written. */
static bool TREK_R(backward_block)(attention_job *job, const int64_t at[4], bool to_keys, bool to_queries, int64_t *reached,
                                   T *scratch)
{
    int64_t rows = job->queries - at[2] < QUERIES ? job->queries - at[2] : QUERIES;
    int64_t cols = job->keys - at[3] < KEYS ? job->keys - at[3] : KEYS;
    T *s = scratch, *d = s + QUERIES * PITCH, *keep = d + QUERIES * PITCH;
    if (job->causal && at[2] + rows - at[3] < cols)
        cols = at[2] + rows - at[3]; /* the others are after all queries */
    if (cols <= 0)
        return true;
    if (!TREK_R(scores)(job, at, rows, cols, s) || !TREK_R(rows_by_rows)(job, job->dy, job->v, at, rows, cols, d))
        return false;
    TREK_R(gradient_rows)(job, at, rows, cols, s, d, keep);
    if (to_keys && !(TREK_R(add_to_keys)(job, s, job->dy, at, rows, cols, job->dv, *reached > 0) &&
                     TREK_R(add_to_keys)(job, d, job->q, at, rows, cols, job->dk, *reached > 0)))
        return false;
    *reached = *reached > 0 ? *reached : cols;
    return !to_queries || TREK_R(add_to_queries)(job, d, at, rows, cols);
}

/* Runs backward for keys [j0, ...) of one pair of sample and head of k and v against all queries of its group. */
static bool TREK_R(backward_key_block)(attention_job *job, int64_t b, int64_t head, int64_t j0, bool to_queries, T *scratch)
{
    int64_t reached = 0, cols = job->keys - j0 < KEYS ? job->keys - j0 : KEYS;
    for (int64_t h = head * job->group; h < (head + 1) * job->group; h++)
        for (int64_t block = job->query_blocks - 1; block >= 0; block--)
            if (!TREK_R(backward_block)(job, (int64_t[4]){ b, h, block * QUERIES, j0 }, true, to_queries, &reached, scratch))
                return false;
    clear_rows(job->dk, b, head, j0 + reached, cols - reached);
    clear_rows(job->dv, b, head, j0 + reached, cols - reached);
    return true;
}

static void TREK_R(backward_pairs)(void *arg, int64_t begin, int64_t end)
{
    attention_job *job = arg;
    T *scratch = TREK_R(scratch)(job, SCRATCH);
    for (int64_t pair = begin; scratch && pair < end; pair++) {
        int64_t b = pair / job->kv_heads, head = pair % job->kv_heads;
        for (int64_t h = head * job->group; job->keys == 0 && h < (head + 1) * job->group; h++)
            clear_rows(job->dq, b, h, 0, job->queries); /* no key contributes */
        for (int64_t j0 = 0; j0 < job->keys; j0 += KEYS)
            TREK_R(backward_key_block)(job, b, head, j0, true, scratch);
    }
    trek_block_free(scratch);
}

static void TREK_R(backward_keys)(void *arg, int64_t begin, int64_t end)
{
    attention_job *job = arg;
    T *scratch = TREK_R(scratch)(job, SCRATCH);
    for (int64_t unit = begin; scratch && unit < end; unit++) {
        int64_t pair = unit / job->key_blocks;
        TREK_R(backward_key_block)(job, pair / job->kv_heads, pair % job->kv_heads, unit % job->key_blocks * KEYS, false,
                                   scratch);
    }
    trek_block_free(scratch);
}

static void TREK_R(backward_queries)(void *arg, int64_t begin, int64_t end)
{
    attention_job *job = arg;
    T *scratch = TREK_R(scratch)(job, SCRATCH);
    for (int64_t unit = begin; scratch && unit < end; unit++) {
        int64_t pair = unit / job->query_blocks, b = pair / job->heads, h = pair % job->heads;
        int64_t i0 = unit % job->query_blocks * QUERIES, reached = 0;
        bool fine = true;
        if (job->keys == 0)
            clear_rows(job->dq, b, h, i0, job->queries - i0 < QUERIES ? job->queries - i0 : QUERIES);
        for (int64_t j0 = 0; fine && j0 < job->keys; j0 += KEYS)
            fine = TREK_R(backward_block)(job, (int64_t[4]){ b, h, i0, j0 }, false, true, &reached, scratch);
    }
    trek_block_free(scratch);
}

#undef SCRATCH
