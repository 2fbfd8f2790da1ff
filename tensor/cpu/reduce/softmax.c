/* SPDX-License-Identifier: Apache-2.0 */
/* Softmax, its logarithm, their gradients, and cumulative sums: ops that need all elements along one dimension and
 * give one for each. */
#include <math.h>
#include <stdatomic.h>

#include "tensor/cpu/elementwise/map.h"
#include "tensor/cpu/row_math.h"

#define PIECE 512       /* of a row whose exponentials are stored temporarily */
#define COLUMNS 256     /* in a block, if another dimension is the contiguous one */
#define STACK_BYTES 16384 /* a row up to this size is copied to the stack */
#define BLOCK_BYTES 393216 /* a block of columns that is copied: what a core's own cache holds */

/* out, a and b (the second input, or NULL) have n elements; out may be a or b. */
typedef void (*row_fn)(void *out, const void *a, const void *b, int64_t n);
/* For `columns` neighbouring rows, whose elements are `out_step`, ... elements apart. */
typedef void (*columns_fn)(void *out, const void *a, const void *b, int64_t n, int64_t out_step, int64_t a_step, int64_t b_step,
                           int64_t columns);

static double exponentials_f64(double *to, const double *x, int64_t n, double maximum)
{
    trek_row_exp_f64(to, x, n, maximum);
    return trek_row_sum_f64(to, n);
}
/* In place, for numbers of at most 0. */
static inline void exp_row_f64(double *x, int64_t n) { trek_row_exp_f64(x, x, n, 0); }
static inline void exp_row_f32(float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        x[i] = trek_exp_negative_f32(x[i]);
}
static double exponentials_f32(float *to, const float *x, int64_t n, float maximum)
{
    return trek_row_exp_sum_f32(to, x, n, maximum);
}
/* NaN in x reaches the result through the exponentials; the maximum may ignore it. */
static float maximum_f32(const float *x, int64_t n) { return trek_row_max_number_f32(x, n); }
static double maximum_f64(const double *x, int64_t n) { return trek_row_max_f64(x, n, -HUGE_VAL); }

/* T: the element; sums are in f64. */
#define SOFTMAX(suffix, T, row_sum)                                                                    \
    static void softmax_##suffix##_row(void *out, const void *a, const void *b, int64_t n)             \
    {                                                                                                  \
        T *to = out;                                                                                   \
        T maximum = maximum_##suffix(a, n);                                                          \
        T scale = (T)(1.0 / exponentials_##suffix(to, a, n, maximum));                                 \
        (void)b;                                                                                       \
        for (int64_t i = 0; i < n; i++)                                                                \
            to[i] *= scale;                                                                            \
    }                                                                                                  \
    static void log_softmax_##suffix##_row(void *out, const void *a, const void *b, int64_t n)         \
    {                                                                                                  \
        T *to = out, piece[512];                                                                       \
        const T *x = a;                                                                                \
        T maximum = maximum_##suffix(x, n);                                                          \
        double sum = 0;                                                                                \
        (void)b;                                                                                       \
        for (int64_t i = 0; i < n; i += 512)                                                           \
            sum += exponentials_##suffix(piece, x + i, n - i < 512 ? n - i : 512, maximum);            \
        T logarithm = (T)log(sum);                                                                     \
        TREK_INDEPENDENT                                                                               \
        for (int64_t i = 0; i < n; i++)                                                                \
            to[i] = x[i] - maximum - logarithm;                                                        \
    }                                                                                                  \
    static void softmax_backward_##suffix##_row(void *out, const void *a, const void *b, int64_t n)    \
    {                                                                                                  \
        T *to = out;                                                                                   \
        const T *grad = a, *y = b;                                                                     \
        T dot = (T)row_sum##_of_products(grad, y, n);                                                  \
        TREK_INDEPENDENT                                                                               \
        for (int64_t i = 0; i < n; i++)                                                                \
            to[i] = y[i] * (grad[i] - dot);                                                            \
    }                                                                                                  \
    static void log_softmax_backward_##suffix##_row(void *out, const void *a, const void *b, int64_t n) \
    {                                                                                                  \
        T *to = out, e[PIECE];                                                                         \
        const T *grad = a, *y = b;                                                                     \
        T sum = (T)row_sum(grad, n);                                                                   \
        for (int64_t begin = 0, count; begin < n; begin += count) {                                    \
            count = n - begin < PIECE ? n - begin : PIECE;                                             \
            memcpy(e, y + begin, (size_t)count * sizeof *e);                                           \
            exp_row_##suffix(e, count);                                                                \
            TREK_INDEPENDENT                                                                           \
            for (int64_t i = 0; i < count; i++)                                                        \
                to[begin + i] = grad[begin + i] - e[i] * sum;                                          \
        }                                                                                              \
    }                                                                                                  \
    static void softmax_##suffix##_columns(void *out, const void *a, const void *b, int64_t n, int64_t out_step, int64_t a_step, \
                                           int64_t b_step, int64_t columns)                            \
    {                                                                                                  \
        T maxima[COLUMNS], scales[COLUMNS];                                                            \
        double sums[COLUMNS];                                                                          \
        column_maxima_##suffix(maxima, a, n, a_step, columns);                                         \
        (void)b, (void)b_step;                                                                         \
        for (int64_t j = 0; j < columns; j++)                                                          \
            sums[j] = 0;                                                                               \
        for (int64_t i = 0; i < n; i++) {                                                              \
            const T *x = (const T *)a + i * a_step;                                                    \
            T *to = (T *)out + i * out_step;                                                           \
            TREK_INDEPENDENT                                                                           \
            for (int64_t j = 0; j < columns; j++)                                                      \
                to[j] = x[j] - maxima[j];                                                              \
            exp_row_##suffix(to, columns);                                                             \
            for (int64_t j = 0; j < columns; j++)                                                      \
                sums[j] += (double)to[j];                                                              \
        }                                                                                              \
        for (int64_t j = 0; j < columns; j++)                                                          \
            scales[j] = (T)(1.0 / sums[j]);                                                            \
        for (int64_t i = 0; i < n; i++) {                                                              \
            T *to = (T *)out + i * out_step;                                                           \
            for (int64_t j = 0; j < columns; j++)                                                      \
                to[j] *= scales[j];                                                                    \
        }                                                                                              \
    }                                                                                                  \
    static void log_softmax_##suffix##_columns(void *out, const void *a, const void *b, int64_t n, int64_t out_step, \
                                               int64_t a_step, int64_t b_step, int64_t columns)        \
    {                                                                                                  \
        T maxima[COLUMNS], logarithms[COLUMNS], e[COLUMNS];                                            \
        double sums[COLUMNS];                                                                          \
        column_maxima_##suffix(maxima, a, n, a_step, columns);                                         \
        (void)b, (void)b_step;                                                                         \
        for (int64_t j = 0; j < columns; j++)                                                          \
            sums[j] = 0;                                                                               \
        for (int64_t i = 0; i < n; i++) {                                                              \
            const T *x = (const T *)a + i * a_step;                                                    \
            for (int64_t j = 0; j < columns; j++)                                                      \
                e[j] = x[j] - maxima[j];                                                               \
            exp_row_##suffix(e, columns);                                                              \
            for (int64_t j = 0; j < columns; j++)                                                      \
                sums[j] += (double)e[j];                                                               \
        }                                                                                              \
        for (int64_t j = 0; j < columns; j++)                                                          \
            logarithms[j] = (T)log(sums[j]);                                                           \
        for (int64_t i = 0; i < n; i++) {                                                              \
            const T *x = (const T *)a + i * a_step;                                                    \
            T *to = (T *)out + i * out_step;                                                           \
            TREK_INDEPENDENT                                                                           \
            for (int64_t j = 0; j < columns; j++)                                                      \
                to[j] = x[j] - maxima[j] - logarithms[j];                                              \
        }                                                                                              \
    }                                                                                                  \
    static void softmax_backward_##suffix##_columns(void *out, const void *a, const void *b, int64_t n, int64_t out_step, \
                                                    int64_t a_step, int64_t b_step, int64_t columns)   \
    {                                                                                                  \
        double dots[COLUMNS];                                                                          \
        for (int64_t j = 0; j < columns; j++)                                                          \
            dots[j] = 0;                                                                               \
        for (int64_t i = 0; i < n; i++) {                                                              \
            const T *grad = (const T *)a + i * a_step, *y = (const T *)b + i * b_step;                 \
            for (int64_t j = 0; j < columns; j++)                                                      \
                dots[j] += (double)grad[j] * (double)y[j];                                             \
        }                                                                                              \
        for (int64_t i = 0; i < n; i++) {                                                              \
            const T *grad = (const T *)a + i * a_step, *y = (const T *)b + i * b_step;                 \
            T *to = (T *)out + i * out_step;                                                           \
            TREK_INDEPENDENT                                                                           \
            for (int64_t j = 0; j < columns; j++)                                                      \
                to[j] = y[j] * (grad[j] - (T)dots[j]);                                                 \
        }                                                                                              \
    }                                                                                                  \
    static void log_softmax_backward_##suffix##_columns(void *out, const void *a, const void *b, int64_t n, int64_t out_step, \
                                                        int64_t a_step, int64_t b_step, int64_t columns) \
    {                                                                                                  \
        double sums[COLUMNS];                                                                          \
        for (int64_t j = 0; j < columns; j++)                                                          \
            sums[j] = 0;                                                                               \
        for (int64_t i = 0; i < n; i++) {                                                              \
            const T *grad = (const T *)a + i * a_step;                                                 \
            for (int64_t j = 0; j < columns; j++)                                                      \
                sums[j] += (double)grad[j];                                                            \
        }                                                                                              \
        for (int64_t i = 0; i < n; i++) {                                                              \
            const T *grad = (const T *)a + i * a_step, *y = (const T *)b + i * b_step;                 \
            T *to = (T *)out + i * out_step;                                                           \
            T e[COLUMNS];                                                                              \
            memcpy(e, y, (size_t)columns * sizeof *e);                                                 \
            exp_row_##suffix(e, columns);                                                              \
            TREK_INDEPENDENT                                                                           \
            for (int64_t j = 0; j < columns; j++)                                                      \
                to[j] = grad[j] - e[j] * (T)sums[j];                                                   \
        }                                                                                              \
    }

#define COLUMN_MAXIMA(suffix, T)                                                                       \
    static void column_maxima_##suffix(T *maxima, const void *a, int64_t n, int64_t step, int64_t columns) \
    {                                                                                                  \
        for (int64_t j = 0; j < columns; j++)                                                          \
            maxima[j] = (T)-HUGE_VAL;                                                                  \
        for (int64_t i = 0; i < n; i++) {                                                              \
            const T *x = (const T *)a + i * step;                                                      \
            for (int64_t j = 0; j < columns; j++)                                                      \
                maxima[j] = ((x[j] > maxima[j]) | (x[j] != x[j])) ? x[j] : maxima[j];                    \
        }                                                                                              \
    }
COLUMN_MAXIMA(f32, float)
COLUMN_MAXIMA(f64, double)
SOFTMAX(f32, float, trek_row_sum_f32)
SOFTMAX(f64, double, trek_row_sum_f64)

/* Computes running sums of the first elements, eight at a time, so that eight elements wait for one addition. Returns
 * the last sum, which is not yet stored; *done: the number of elements processed. */
#if defined(__AVX512F__)
#define SHIFTED(x, places) (trek_f64x8) _mm512_alignr_epi64((__m512i)(x), _mm512_setzero_si512(), 8 - (places))
static inline void store_eight_f32(float *to, trek_f64x8 x)
{
    trek_f32x8 narrow = TREK_NARROWED(x);
    memcpy(to, &narrow, sizeof narrow);
}
static inline void store_eight_f64(double *to, trek_f64x8 x) { memcpy(to, &x, sizeof x); }
#define CUMSUM_EIGHTS(suffix, T)                                                                       \
    static double cumsum_eights_##suffix(T *to, const T *x, int64_t n, int64_t *done)                  \
    {                                                                                                  \
        trek_f64x8 total = { 0 };                                                                      \
        int64_t i = 0;                                                                                 \
        for (; i + 8 <= n; i += 8) {                                                                   \
            trek_f64x8 sums;                                                                           \
            TREK_EIGHT_##suffix(sums, x + i)                                                           \
            sums += SHIFTED(sums, 1);                                                                  \
            sums += SHIFTED(sums, 2);                                                                  \
            sums += SHIFTED(sums, 4);                                                                  \
            store_eight_##suffix(to + i, total + sums);                                                \
            total += (trek_f64x8)_mm512_permutexvar_pd(_mm512_set1_epi64(7), (__m512d)sums);           \
        }                                                                                              \
        *done = i;                                                                                     \
        return total[0];                                                                               \
    }
CUMSUM_EIGHTS(f32, float)
CUMSUM_EIGHTS(f64, double)
#else
#define cumsum_eights_f32(to, x, n, done) (*(done) = 0, (void)(to), 0.0)
#define cumsum_eights_f64(to, x, n, done) (*(done) = 0, (void)(to), 0.0)
#endif
#define cumsum_eights_i64(to, x, n, done) (*(done) = 0, 0)
#define cumsum_eights_i32(to, x, n, done) (*(done) = 0, 0)
#define cumsum_eights_u8(to, x, n, done) (*(done) = 0, 0)

/* Sums are computed in f64 or i64. `total` is the sum so far in the element's type. */
#define CUMSUM(suffix, T, A, R)                                                                        \
    static void cumsum_##suffix##_row(void *out, const void *a, const void *b, int64_t n)              \
    {                                                                                                  \
        R *to = out;                                                                                   \
        const T *x = a;                                                                                \
        int64_t i;                                                                                     \
        A total = cumsum_eights_##suffix(to, x, n, &i);                                                \
        (void)b;                                                                                       \
        for (; i < n; i++) {                                                                           \
            total += (A)x[i];                                                                          \
            to[i] = (R)total;                                                                          \
        }                                                                                              \
    }                                                                                                  \
    static void cumsum_##suffix##_columns(void *out, const void *a, const void *b, int64_t n, int64_t out_step, int64_t a_step, \
                                          int64_t b_step, int64_t columns)                             \
    {                                                                                                  \
        A totals[COLUMNS];                                                                             \
        (void)b, (void)b_step;                                                                         \
        for (int64_t j = 0; j < columns; j++)                                                          \
            totals[j] = 0;                                                                             \
        for (int64_t i = 0; i < n; i++) {                                                              \
            const T *x = (const T *)a + i * a_step;                                                    \
            R *to = (R *)out + i * out_step;                                                           \
            TREK_INDEPENDENT                                                                           \
            for (int64_t j = 0; j < columns; j++) {                                                    \
                totals[j] += (A)x[j];                                                                  \
                to[j] = (R)totals[j];                                                                  \
            }                                                                                          \
        }                                                                                              \
    }
CUMSUM(f32, float, double, float)
CUMSUM(f64, double, double, double)
CUMSUM(i64, int64_t, int64_t, int64_t)
CUMSUM(i32, int32_t, int64_t, int64_t)
CUMSUM(u8, uint8_t, int64_t, int64_t)

/* --- the loop over the other dimensions --- */

typedef struct line_op {
    row_fn row;
    columns_fn columns;
    int n_in;
    int64_t grain;
} line_op;

typedef struct lines {
    const line_op *op;
    const trek_tensor *tensors[3]; /* out, a, b */
    trek_lane lanes[3];
    int dim, inner;                /* inner: processed in blocks of columns; -1: row by row */
    int64_t n, blocks;             /* blocks of columns */
    int64_t width;                 /* columns of a block */
    bool gathered;                 /* blocks are converted, or their columns are not neighbours */
    bool direct;                   /* rows are contiguous and need no conversion */
    bool flat;                     /* and follow each other in memory */
    atomic_bool failed;            /* no memory for a row */
} lines;

/* Returns the bytes to the first element of line `index` in tensor k, where `column` is the position along inner. */
static int64_t line_offset(const lines *l, int k, int64_t index, int64_t column)
{
    const trek_tensor *t = l->tensors[k];
    int64_t offset = l->inner >= 0 ? column * t->strides[l->inner] : 0;
    for (int d = t->ndim - 1; d >= 0; d--) {
        if (d == l->dim || d == l->inner)
            continue;
        offset += index % t->sizes[d] * t->strides[d];
        index /= t->sizes[d];
    }
    return offset * trek_lane_bytes(l->lanes[k]);
}

/* Returns the bytes of a copied element of all operands together; the result replaces an input of the same width. */
static int64_t gathered_bytes(const lines *l)
{
    int64_t bytes = trek_lane_row_bytes(l->lanes[0]) == trek_lane_row_bytes(l->lanes[1]) ? 0 : trek_lane_row_bytes(l->lanes[0]);
    for (int k = 1; k <= l->op->n_in; k++)
        bytes += trek_lane_row_bytes(l->lanes[k]);
    return bytes;
}

/* Processes a block of columns that is not stored as the op needs it. */
static void gathered_block(const lines *l, char *const *at, int64_t columns, char *scratch)
{
    char *block[3] = { scratch, NULL, NULL }, *free_place = scratch;
    int64_t steps[3], inner[3], out_bytes = columns * trek_lane_row_bytes(l->lanes[0]);
    if (trek_lane_row_bytes(l->lanes[0]) != trek_lane_row_bytes(l->lanes[1]))
        free_place += l->n * out_bytes; /* the wider one first */
    for (int k = 0; k <= l->op->n_in; k++) {
        int64_t bytes = trek_lane_bytes(l->lanes[k]), row_bytes = columns * trek_lane_row_bytes(l->lanes[k]);
        steps[k] = l->tensors[k]->strides[l->dim] * bytes;
        inner[k] = l->tensors[k]->strides[l->inner] * bytes;
        if (k == 0)
            continue;
        block[k] = free_place;
        free_place += l->n * row_bytes;
        for (int64_t i = 0; i < l->n; i++)
            TREK_ISA_NAME(trek_lane_load)(l->lanes[k], block[k] + i * row_bytes, at[k] + i * steps[k], inner[k], columns);
    }
    l->op->columns(block[0], block[1], block[2], l->n, columns, columns, columns, columns);
    for (int64_t i = 0; i < l->n; i++)
        TREK_ISA_NAME(trek_lane_store)(l->lanes[0], at[0] + i * steps[0], inner[0], block[0] + i * out_bytes, columns);
}

static void columns_part(void *arg, int64_t begin, int64_t end)
{
    lines *l = arg;
    int64_t width = l->tensors[0]->sizes[l->inner];
    char *scratch = l->gathered ? trek_block_alloc((size_t)(l->n * l->width * gathered_bytes(l))) : NULL;
    if (l->gathered && !scratch) {
        atomic_store(&l->failed, true);
        return;
    }
    for (int64_t unit = begin; unit < end; unit++) {
        int64_t column = unit % l->blocks * l->width, steps[3] = { 0 };
        int64_t columns = width - column < l->width ? width - column : l->width;
        char *at[3] = { NULL };
        for (int k = 0; k <= l->op->n_in; k++) {
            at[k] = l->tensors[k]->data + line_offset(l, k, unit / l->blocks, column);
            steps[k] = l->tensors[k]->strides[l->dim];
        }
        if (l->gathered)
            gathered_block(l, at, columns, scratch);
        else
            l->op->columns(at[0], at[1], at[2], l->n, steps[0], steps[1], steps[2], columns);
    }
    trek_block_free(scratch);
}

/* Returns the bytes between the elements of a row; a scalar is a row of one. */
static int64_t row_stride(const lines *l, int k)
{
    return l->dim < 0 ? 0 : l->tensors[k]->strides[l->dim] * trek_lane_bytes(l->lanes[k]);
}

/* Processes rows that must be copied: into `scratch`, which holds one row for each operand. */
static void gathered_row(const lines *l, int64_t index, char *scratch, int64_t row_bytes)
{
    char *rows[3] = { NULL }, *to = l->tensors[0]->data + line_offset(l, 0, index, 0);
    for (int k = 0; k <= l->op->n_in; k++) {
        char *at = k == 0 ? to : l->tensors[k]->data + line_offset(l, k, index, 0);
        bool direct = row_stride(l, k) == (int)l->lanes[k];
        rows[k] = direct ? at : scratch + k * row_bytes;
        if (k > 0 && !direct)
            TREK_ISA_NAME(trek_lane_load)(l->lanes[k], rows[k], at, row_stride(l, k), l->n);
    }
    l->op->row(rows[0], rows[1], rows[2], l->n);
    if (rows[0] != to)
        TREK_ISA_NAME(trek_lane_store)(l->lanes[0], to, row_stride(l, 0), rows[0], l->n);
}

static void rows_part(void *arg, int64_t begin, int64_t end)
{
    lines *l = arg;
    if (l->direct) {
        for (int64_t row = begin; row < end; row++) {
            char *at[3] = { NULL };
            for (int k = 0; k <= l->op->n_in; k++)
                at[k] = l->tensors[k]->data + (l->flat ? row * l->n * (int)l->lanes[k] : line_offset(l, k, row, 0));
            l->op->row(at[0], at[1], at[2], l->n);
        }
        return;
    }
    _Alignas(64) char stack[STACK_BYTES];
    int64_t row_bytes = (l->n * 8 + 63) / 64 * 64, bytes = row_bytes * (l->op->n_in + 1);
    char *scratch = bytes <= STACK_BYTES ? stack : trek_block_alloc((size_t)bytes);
    if (!scratch) {
        atomic_store(&l->failed, true);
        return;
    }
    for (int64_t row = begin; row < end; row++)
        gathered_row(l, row, scratch, row_bytes);
    if (scratch != stack)
        trek_block_free(scratch);
}

static int64_t magnitude(int64_t x) { return x < 0 ? -x : x; }

/* Returns the other dimension with the smallest stride in one input (and with `both` in the result), if it is smaller
 * than that of the lines and blocks of a few columns are not too large; otherwise -1. */
static int find_gathered(lines *l, bool both)
{
    const trek_tensor *out = l->tensors[0], *in = l->tensors[1], *nearest = both ? out : in;
    int inner = -1;
    for (int d = 0; d < out->ndim; d++)
        if (d != l->dim && out->sizes[d] >= 16 && magnitude(in->strides[d]) < magnitude(in->strides[l->dim]) &&
            (both ? magnitude(out->strides[d]) < magnitude(out->strides[l->dim]) : in->strides[d] != 0) &&
            (inner < 0 || magnitude(nearest->strides[d]) < magnitude(nearest->strides[inner])))
            inner = d;
    int64_t width = BLOCK_BYTES / (l->n * gathered_bytes(l)) / 16 * 16;
    if (inner < 0 || width < 16)
        return -1;
    int64_t most = both ? COLUMNS : 32; /* of the result's lines, each in a page of its own */
    l->width = width < most ? width : most;
    l->gathered = true;
    return inner;
}

/* Finds whether another dimension is the contiguous one in all operands. */
static int find_inner(lines *l)
{
    const trek_tensor *out = l->tensors[0];
    l->width = COLUMNS;
    for (int d = out->ndim - 1; d >= 0; d--) {
        bool inner = d != l->dim && out->sizes[d] >= 8;
        for (int k = 0; inner && k <= l->op->n_in; k++)
            inner = l->tensors[k]->strides[d] == 1 && l->lanes[k] < TREK_LANE_BF16;
        if (inner)
            return d;
    }
    int gathered = find_gathered(l, true);
    return gathered >= 0 ? gathered : find_gathered(l, false);
}

static trek_status run_lines(const trek_op_call *call, const line_op *op)
{
    static const uint8_t lanes[TREK_DTYPE_COUNT] = {
        [TREK_F32] = TREK_LANE_4, [TREK_F64] = TREK_LANE_8, [TREK_BF16] = TREK_LANE_BF16, [TREK_F16] = TREK_LANE_F16,
        [TREK_I64] = TREK_LANE_8, [TREK_I32] = TREK_LANE_4, [TREK_U8] = TREK_LANE_1,      [TREK_BOOL] = TREK_LANE_1,
    };
    lines l = { .op = op, .dim = (int)call->attrs.i[0], .inner = -1, .n = 1, .direct = true, .flat = true };
    const trek_tensor *out = call->outputs[0];
    if (out->numel == 0)
        return TREK_OK;
    bool scalar = out->ndim == 0;
    for (int k = 0; k <= op->n_in; k++) {
        const trek_tensor *t = l.tensors[k] = k == 0 ? out : call->inputs[k - 1];
        l.lanes[k] = (trek_lane)lanes[t->dtype];
        l.flat = l.flat && t->contiguous && (scalar || l.dim == t->ndim - 1);
        l.direct = l.direct && l.lanes[k] < TREK_LANE_BF16 && (scalar || t->strides[l.dim] == 1 || t->sizes[l.dim] == 1);
    }
    if (scalar) {
        l.dim = -1;
        l.direct = l.lanes[0] < TREK_LANE_BF16;
    }
    l.n = scalar ? 1 : out->sizes[l.dim];
    int64_t count = out->numel / l.n;
    l.inner = l.direct || scalar ? -1 : find_inner(&l);
    if (l.inner >= 0) {
        l.blocks = (out->sizes[l.inner] - 1) / l.width + 1;
        int64_t units = count / out->sizes[l.inner] * l.blocks,
            width = out->sizes[l.inner] < l.width ? out->sizes[l.inner] : l.width;
        trek_parallel(units, (op->grain - 1) / (l.n * width) + 1, columns_part, &l);
    } else {
        trek_parallel(count, (op->grain - 1) / l.n + 1, rows_part, &l);
    }
    if (atomic_load(&l.failed))
        return trek_op_fail(call, TREK_ERR_MEMORY, "no memory for a row of %lld elements", (long long)l.n);
    return TREK_OK;
}

#define LINES(op, suffix, n_in, grain)                                                                 \
    static trek_status op##_##suffix(const trek_op_call *call)                                         \
    {                                                                                                  \
        static const line_op line = { op##_##suffix##_row, op##_##suffix##_columns, n_in, grain };     \
        return run_lines(call, &line);                                                                 \
    }
#define LINES_FLOATS(op, n_in, grain) LINES(op, f32, n_in, grain) LINES(op, f64, n_in, grain)
LINES_FLOATS(softmax, 1, TREK_GRAIN_FUNCTION)
LINES_FLOATS(log_softmax, 1, TREK_GRAIN_FUNCTION)
LINES_FLOATS(softmax_backward, 2, TREK_GRAIN_CHEAP)
LINES_FLOATS(log_softmax_backward, 2, TREK_GRAIN_FUNCTION)
LINES_FLOATS(cumsum, 1, TREK_GRAIN_FUNCTION)
LINES(cumsum, i64, 1, TREK_GRAIN_FUNCTION)
LINES(cumsum, i32, 1, TREK_GRAIN_FUNCTION)
LINES(cumsum, u8, 1, TREK_GRAIN_FUNCTION)

void TREK_ISA_NAME(trek_cpu_register_softmax)(trek_backend *b)
{
    /* f32 also serves the 16-bit floats, whose rows are copied as f32; u8 serves bool. */
#define FLOATS(op)                                                                                     \
    b->kernels[TREK_OP_##op][TREK_F32] = b->kernels[TREK_OP_##op][TREK_BF16] = b->kernels[TREK_OP_##op][TREK_F16] = op##_f32; \
    b->kernels[TREK_OP_##op][TREK_F64] = op##_f64;
    FLOATS(softmax) FLOATS(log_softmax) FLOATS(softmax_backward) FLOATS(log_softmax_backward) FLOATS(cumsum)
#undef FLOATS
    b->kernels[TREK_OP_cumsum][TREK_I64] = cumsum_i64;
    b->kernels[TREK_OP_cumsum][TREK_I32] = cumsum_i32;
    b->kernels[TREK_OP_cumsum][TREK_U8] = b->kernels[TREK_OP_cumsum][TREK_BOOL] = cumsum_u8;
}
