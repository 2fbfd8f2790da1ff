/* SPDX-License-Identifier: Apache-2.0 */
/* argmax, argmin: the first index of the extreme along one dimension, or in the row-major order of all; the index of
 * the first NaN, if there is one. */
#include <math.h>

#include "tensor/cpu/elementwise/elementwise.h"
#include "tensor/cpu/row_math.h"

#define PIECE 512      /* elements that are searched together */
#define PARTS 64       /* one long line is searched in this many parts */
#define LONG_LINE 65536

/* Finds the extreme of n contiguous elements. If it is better than *best (or there is no best yet), stores it and its
 * index. */
typedef void (*search_fn)(void *best, int64_t *place, const void *row, int64_t n, int64_t first);

#define SEARCH_FLOAT(name, T, extreme, compare, start)                                                 \
    static void name(void *best, int64_t *place, const void *row, int64_t n, int64_t first)            \
    {                                                                                                  \
        const T *x = row;                                                                              \
        T *held = best, found = extreme(x, n, start);                                                  \
        if (*place >= 0 && (*held != *held || !(found compare *held || found != found)))               \
            return;                                                                                    \
        int64_t i = 0;                                                                                 \
        while (i < n - 1 && !(x[i] == found || (x[i] != x[i] && found != found)))                      \
            i++;                                                                                       \
        *held = found;                                                                                 \
        *place = first + i;                                                                            \
    }
#define SEARCH_INTEGER(name, T, compare)                                                               \
    static void name(void *best, int64_t *place, const void *row, int64_t n, int64_t first)            \
    {                                                                                                  \
        const T *x = row;                                                                              \
        T *held = best, found = x[0];                                                                  \
        for (int64_t i = 1; i < n; i++)                                                                \
            found = x[i] compare found ? x[i] : found;                                                 \
        if (*place >= 0 && !(found compare *held))                                                     \
            return;                                                                                    \
        int64_t i = 0;                                                                                 \
        while (x[i] != found)                                                                          \
            i++;                                                                                       \
        *held = found;                                                                                 \
        *place = first + i;                                                                            \
    }
SEARCH_FLOAT(argmax_f32, float, trek_row_max_f32, >, -HUGE_VALF)
SEARCH_FLOAT(argmin_f32, float, trek_row_min_f32, <, HUGE_VALF)
SEARCH_FLOAT(argmax_f64, double, trek_row_max_f64, >, -HUGE_VAL)
SEARCH_FLOAT(argmin_f64, double, trek_row_min_f64, <, HUGE_VAL)
SEARCH_INTEGER(argmax_i64, int64_t, >)
SEARCH_INTEGER(argmin_i64, int64_t, <)
SEARCH_INTEGER(argmax_i32, int32_t, >)
SEARCH_INTEGER(argmin_i32, int32_t, <)
SEARCH_INTEGER(argmax_u8, uint8_t, >)
SEARCH_INTEGER(argmin_u8, uint8_t, <)

typedef struct search {
    search_fn fn;
    trek_lane lane;
    const trek_tensor *in, *out;
    uint64_t mask;         /* dimensions that are searched */
    bool keepdim, flat;    /* flat: the searched elements have a single stride */
    int64_t n;             /* elements of a line */
    int64_t run, stride;   /* this many elements are `stride` bytes apart; all, if flat */
    int64_t parts;         /* of a line */
    char best[PARTS][8];
    int64_t places[PARTS];
} search;

/* Returns the offset in bytes of the searched element `place` of a line. */
static int64_t place_offset(const search *s, int64_t place)
{
    int64_t offset = 0;
    for (int d = s->in->ndim - 1; d >= 0; d--) {
        if (!(s->mask >> d & 1))
            continue;
        offset += place % s->in->sizes[d] * s->in->strides[d];
        place /= s->in->sizes[d];
    }
    return offset * trek_lane_bytes(s->lane);
}

/* Loads n elements of a line from `place` on. */
static void load_piece(const search *s, char *buffer, const char *line, int64_t place, int64_t n)
{
    if (s->flat) {
        TREK_ISA_NAME(trek_lane_load)(s->lane, buffer, line + place * s->stride, s->stride, n);
        return;
    }
    int bytes = trek_lane_row_bytes(s->lane);
    for (int64_t i = 0, run; i < n; i += run) {
        run = s->run - (place + i) % s->run;
        run = run < n - i ? run : n - i;
        TREK_ISA_NAME(trek_lane_load)(s->lane, buffer + i * bytes, line + place_offset(s, place + i), s->stride, run);
    }
}

static void search_range(const search *s, const char *line, int64_t begin, int64_t end, char *best, int64_t *place)
{
    _Alignas(64) char buffer[PIECE * 8];
    *place = -1;
    for (int64_t i = begin; i < end; i += PIECE) {
        int64_t n = end - i < PIECE ? end - i : PIECE;
        const char *row = line + i * s->stride;
        if (!s->flat || s->stride != (int)s->lane) {
            load_piece(s, buffer, line, i, n);
            row = buffer;
        }
        s->fn(best, place, row, n, i);
    }
}

static void search_lines(void *arg, int64_t begin, int64_t end)
{
    const search *s = arg;
    for (int64_t line = begin; line < end; line++) {
        int64_t index = line, in = 0, out = 0, place;
        int out_dim = s->out->ndim - 1;
        for (int d = s->in->ndim - 1; d >= 0; d--) {
            if (s->mask >> d & 1) {
                out_dim -= s->keepdim;
                continue;
            }
            int64_t at = index % s->in->sizes[d];
            index /= s->in->sizes[d];
            in += at * s->in->strides[d];
            out += at * s->out->strides[out_dim--];
        }
        _Alignas(8) char best[8];
        search_range(s, s->in->data + in * trek_lane_bytes(s->lane), 0, s->n, best, &place);
        ((int64_t *)s->out->data)[out] = place;
    }
}

static void search_parts(void *arg, int64_t begin, int64_t end)
{
    search *s = arg;
    for (int64_t part = begin; part < end; part++) {
        int64_t each = (s->n + s->parts - 1) / s->parts, first = part * each, last = first + each < s->n ? first + each : s->n;
        search_range(s, s->in->data, first, last, s->best[part], &s->places[part]);
    }
}

/* Searches one long line: its parts, then the parts' extremes in order. */
static void search_one(search *s)
{
    s->parts = PARTS;
    trek_parallel(PARTS, 1, search_parts, s);
    int64_t place = -1;
    char best[8] = { 0 };
    for (int part = 0; part < PARTS; part++) {
        int64_t before = place;
        if (s->places[part] < 0)
            continue;
        s->fn(best, &place, s->best[part], 1, s->places[part]);
        if (place != before)
            memcpy(best, s->best[part], sizeof best);
    }
    *(int64_t *)s->out->data = place;
}

/* --- lines whose neighbours are adjacent: all of a block of columns at once --- */

#define COLUMNS 256

/* Finds the indices of the extremes of `columns` neighbouring lines of n elements, `step` elements apart. */
typedef void (*columns_fn)(int64_t *places, const void *from, int64_t n, int64_t step, int64_t columns);

#define SEARCH_COLUMNS(name, T, P, better)                                                             \
    static void name##_columns(int64_t *places, const void *from, int64_t n, int64_t step, int64_t columns) \
    {                                                                                                  \
        T best[COLUMNS];                                                                               \
        P found[COLUMNS];                                                                              \
        memcpy(best, from, (size_t)columns * sizeof(T));                                               \
        memset(found, 0, sizeof found);                                                                \
        for (int64_t i = 1; i < n; i++) {                                                              \
            const T *row = (const T *)from + i * step;                                                 \
            const P here = (P)i;                                                                       \
            for (int64_t j = 0; j < columns; j++) {                                                    \
                const T x = row[j], held = best[j];                                                    \
                const P before = found[j];                                                             \
                best[j] = (better) ? x : held;                                                         \
                found[j] = (better) ? here : before;                                                   \
            }                                                                                          \
        }                                                                                              \
        for (int64_t j = 0; j < columns; j++)                                                          \
            places[j] = found[j];                                                                      \
    }
SEARCH_COLUMNS(argmax_f32, float, int32_t, (x > held) | ((x != x) & (held == held)))
SEARCH_COLUMNS(argmin_f32, float, int32_t, (x < held) | ((x != x) & (held == held)))
SEARCH_COLUMNS(argmax_f64, double, int64_t, (x > held) | ((x != x) & (held == held)))
SEARCH_COLUMNS(argmin_f64, double, int64_t, (x < held) | ((x != x) & (held == held)))
SEARCH_COLUMNS(argmax_i64, int64_t, int64_t, x > held)
SEARCH_COLUMNS(argmin_i64, int64_t, int64_t, x < held)
SEARCH_COLUMNS(argmax_i32, int32_t, int32_t, x > held)
SEARCH_COLUMNS(argmin_i32, int32_t, int32_t, x < held)
SEARCH_COLUMNS(argmax_u8, uint8_t, int32_t, x > held)
SEARCH_COLUMNS(argmin_u8, uint8_t, int32_t, x < held)

typedef struct search_block {
    const search *s;
    columns_fn fn;
    int64_t inner, blocks; /* size of the last dimension, which is kept; blocks of it */
} search_block;

static void search_blocks(void *arg, int64_t begin, int64_t end)
{
    const search_block *b = arg;
    const search *s = b->s;
    for (int64_t unit = begin; unit < end; unit++) {
        int64_t column = unit % b->blocks * COLUMNS, outer = unit / b->blocks, index = outer, in = column;
        int64_t columns = b->inner - column < COLUMNS ? b->inner - column : COLUMNS;
        for (int d = s->in->ndim - 2; d >= 0; d--) {
            if (s->mask >> d & 1)
                continue;
            in += index % s->in->sizes[d] * s->in->strides[d];
            index /= s->in->sizes[d];
        }
        int64_t bytes = trek_lane_bytes(s->lane);
        b->fn((int64_t *)s->out->data + outer * b->inner + column, s->in->data + in * bytes, s->n, s->stride / bytes, columns);
    }
}

/* Searches if the last dimension is kept and contiguous, in a contiguous output. Returns false otherwise. */
static bool search_columns(const search *s, columns_fn fn)
{
    int last = s->in->ndim - 1;
    if (last < 1 || (s->mask >> last & 1) || s->in->strides[last] != 1 || s->in->sizes[last] < 8 || !s->flat ||
        s->n > INT32_MAX || s->lane >= TREK_LANE_BF16 || !s->out->contiguous)
        return false;
    int64_t inner = s->in->sizes[last];
    search_block b = { s, fn, inner, (inner - 1) / COLUMNS + 1 };
    trek_parallel(s->out->numel / inner * b.blocks, TREK_GRAIN_CHEAP / (s->n * (inner < COLUMNS ? inner : COLUMNS)) + 1,
                  search_blocks, &b);
    return true;
}

static trek_status search_tensor(const trek_op_call *call, search_fn fn, columns_fn columns)
{
    static const uint8_t lanes[TREK_DTYPE_COUNT] = {
        [TREK_F32] = TREK_LANE_4, [TREK_F64] = TREK_LANE_8, [TREK_BF16] = TREK_LANE_BF16, [TREK_F16] = TREK_LANE_F16,
        [TREK_I64] = TREK_LANE_8, [TREK_I32] = TREK_LANE_4, [TREK_U8] = TREK_LANE_1,      [TREK_BOOL] = TREK_LANE_1,
    };
    const trek_tensor *in = call->inputs[0], *out = call->outputs[0];
    if (out->numel == 0)
        return TREK_OK;
    search s = { .fn = fn, .lane = (trek_lane)lanes[in->dtype], .in = in, .out = out, .mask = (uint64_t)call->attrs.i[0],
                 .keepdim = call->attrs.i[9] != 0, .flat = true, .n = 1, .run = 1 };
    int64_t bytes = trek_lane_bytes(s.lane), expected = 0;
    s.stride = bytes;
    for (int d = in->ndim - 1; d >= 0; d--) {
        if (!(s.mask >> d & 1) || in->sizes[d] == 1)
            continue;
        if (s.n == 1) {
            s.stride = in->strides[d] * bytes;
            s.run = in->sizes[d];
        } else
            s.flat = s.flat && in->strides[d] * bytes == expected;
        s.n *= in->sizes[d];
        expected = in->strides[d] * bytes * in->sizes[d];
    }
    if (out->numel == 1 && s.n >= LONG_LINE)
        search_one(&s);
    else if (!search_columns(&s, columns))
        trek_parallel(out->numel, TREK_GRAIN_FUNCTION / s.n + 1, search_lines, &s);
    return TREK_OK;
}

#define SEARCH(suffix)                                                                                 \
    static trek_status run_argmax_##suffix(const trek_op_call *call)                                   \
    {                                                                                                  \
        return search_tensor(call, argmax_##suffix, argmax_##suffix##_columns);                     \
    }                                                                                                  \
    static trek_status run_argmin_##suffix(const trek_op_call *call)                                   \
    {                                                                                                  \
        return search_tensor(call, argmin_##suffix, argmin_##suffix##_columns);                     \
    }
SEARCH(f32)
SEARCH(f64)
SEARCH(i64)
SEARCH(i32)
SEARCH(u8)

void TREK_ISA_NAME(trek_cpu_register_reduce_argument)(trek_backend *b)
{
#define ENTER(op)                                                                                                                \
    b->kernels[TREK_OP_##op][TREK_F32] = b->kernels[TREK_OP_##op][TREK_BF16] = b->kernels[TREK_OP_##op][TREK_F16] =              \
        run_##op##_f32;                                                                                                          \
    b->kernels[TREK_OP_##op][TREK_F64] = run_##op##_f64;                                                                         \
    b->kernels[TREK_OP_##op][TREK_I64] = run_##op##_i64;                                                                         \
    b->kernels[TREK_OP_##op][TREK_I32] = run_##op##_i32;                                                                         \
    b->kernels[TREK_OP_##op][TREK_U8] = run_##op##_u8;
    ENTER(argmax)
    ENTER(argmin)
#undef ENTER
}
