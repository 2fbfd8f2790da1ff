/* SPDX-License-Identifier: Apache-2.0 */
/* Copies between strides and between dtypes. */
#include <math.h>

#include "tensor/cpu/elementwise/elementwise.h"

#define CHEAP TREK_GRAIN_CHEAP

/* --- copies: elements are moved as bits --- */

#define COPY_ROW(width)                                                                                \
    static void copy_##width##_row(void *to, const void *const *from, int64_t n, const trek_attrs *attrs) \
    {                                                                                                  \
        (void)attrs;                                                                                   \
        if (to != from[0])                                                                             \
            memcpy(to, from[0], (size_t)n * width);                                                    \
    }                                                                                                  \
    static trek_status copy_##width##_any(const trek_op_call *call)                                    \
    {                                                                                                  \
        static const trek_map map = { copy_##width##_row, CHEAP, 1, TREK_LANE_##width, { TREK_LANE_##width }, .moves = true }; \
        return trek_map_run(call, &map);                                                               \
    }
COPY_ROW(1)
COPY_ROW(2)
COPY_ROW(4)
COPY_ROW(8)

#define TILE 32

/* A copy that exchanges two dimensions: `inner` is innermost in the output, `row` in the input. */
typedef struct transposition {
    const trek_tensor *out, *in;
    int row, inner, width;
    int64_t row_tiles; /* of `row` */
} transposition;

/* Transposes a block of N x N elements, N of 16 bytes: each of log2 N rounds zips the first half of the rows with the
 * second. */
#if defined(__clang__)
#define ZIP(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define ZIP(a, b, ...) __builtin_shuffle(a, b, (__typeof__(a)){ __VA_ARGS__ })
#endif
#define ZIP_LOW_uint8_t(a, b) ZIP(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23)
#define ZIP_HIGH_uint8_t(a, b) ZIP(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31)
#define ZIP_LOW_uint16_t(a, b) ZIP(a, b, 0, 8, 1, 9, 2, 10, 3, 11)
#define ZIP_HIGH_uint16_t(a, b) ZIP(a, b, 4, 12, 5, 13, 6, 14, 7, 15)
#define ZIP_LOW_uint32_t(a, b) ZIP(a, b, 0, 4, 1, 5)
#define ZIP_HIGH_uint32_t(a, b) ZIP(a, b, 2, 6, 3, 7)
#define ZIP_LOW_uint64_t(a, b) ZIP(a, b, 0, 2)
#define ZIP_HIGH_uint64_t(a, b) ZIP(a, b, 1, 3)
#define TRANSPOSE_BLOCK(T)                                                                             \
    typedef T vector_##T __attribute__((vector_size(16)));                                             \
    static inline void transpose_block_##T(T *to, int64_t to_row, const T *from, int64_t from_column)  \
    {                                                                                                  \
        enum { N = 16 / sizeof(T) };                                                                   \
        vector_##T r[N], s[N];                                                                         \
        _Pragma("GCC unroll 16") for (int l = 0; l < N; l++) memcpy(&r[l], from + l * from_column, 16); \
        _Pragma("GCC unroll 4") for (int round = 1; round < N; round *= 2)                             \
        {                                                                                              \
            _Pragma("GCC unroll 8") for (int l = 0; l < N / 2; l++)                                    \
            {                                                                                          \
                s[2 * l] = ZIP_LOW_##T(r[l], r[l + N / 2]);                                            \
                s[2 * l + 1] = ZIP_HIGH_##T(r[l], r[l + N / 2]);                                       \
            }                                                                                          \
            _Pragma("GCC unroll 16") for (int l = 0; l < N; l++) r[l] = s[l];                          \
        }                                                                                              \
        _Pragma("GCC unroll 16") for (int l = 0; l < N; l++) memcpy(to + l * to_row, &r[l], 16);       \
    }
TRANSPOSE_BLOCK(uint8_t)
TRANSPOSE_BLOCK(uint16_t)
TRANSPOSE_BLOCK(uint32_t)
TRANSPOSE_BLOCK(uint64_t)

/* Source lines that lie this far apart share a few of the cache's sets and drive each other out before all of their elements are
 * used: such a tile is read into a buffer first. */
#define SHARES_SETS 2048 /* bytes */

#define COPY_TILE(T)                                                                                   \
    {                                                                                                  \
        const int64_t block = 16 / sizeof(T), whole_rows = rows / block * block, whole_columns = columns / block * block; \
        T near[TILE * TILE], *restrict target = (T *)to;                                               \
        const T *source = (const T *)from;                                                             \
        if (from_column % (SHARES_SETS / (int64_t)sizeof(T)) == 0) {                                   \
            for (int64_t j = 0; j < columns; j++)                                                      \
                if (rows == TILE)                                                                      \
                    memcpy(near + j * TILE, source + j * from_column, TILE * sizeof(T));               \
                else                                                                                   \
                    memcpy(near + j * TILE, source + j * from_column, (size_t)rows * sizeof(T));       \
            source = near, from_column = TILE;                                                         \
        }                                                                                              \
        for (int64_t i = 0; i < whole_rows; i += block)                                                \
            for (int64_t j = 0; j < whole_columns; j += block)                                         \
                transpose_block_##T(target + i * to_row + j, to_row, source + j * from_column + i, from_column); \
        for (int64_t i = 0; i < rows; i++)                                                             \
            for (int64_t j = i < whole_rows ? whole_columns : 0; j < columns; j++)                     \
                target[i * to_row + j] = source[j * from_column + i];                                  \
    }

static void copy_tile(const transposition *c, char *to, const char *from, int64_t rows, int64_t columns)
{
    int64_t to_row = c->out->strides[c->row], from_column = c->in->strides[c->inner];
    switch (c->width) {
    case 1: COPY_TILE(uint8_t) break;
    case 2: COPY_TILE(uint16_t) break;
    case 4: COPY_TILE(uint32_t) break;
    default: COPY_TILE(uint64_t) break;
    }
}

/* One unit is TILE rows of one plane of the two dimensions. */
static void transpose_part(void *arg, int64_t begin, int64_t end)
{
    const transposition *c = arg;
    const trek_tensor *in = c->in;
    for (int64_t unit = begin; unit < end; unit++) {
        int64_t plane = unit / c->row_tiles, row = unit % c->row_tiles * TILE;
        char *to = c->out->data;
        const char *from = in->data;
        for (int d = in->ndim - 1; d >= 0; d--) {
            int64_t at = d == c->row ? row : 0;
            if (d != c->row && d != c->inner) {
                at = plane % in->sizes[d];
                plane /= in->sizes[d];
            }
            to += at * c->out->strides[d] * c->width;
            from += at * in->strides[d] * c->width;
        }
        int64_t rows = in->sizes[c->row] - row < TILE ? in->sizes[c->row] - row : TILE;
        for (int64_t column = 0; column < in->sizes[c->inner]; column += TILE) {
            int64_t columns = in->sizes[c->inner] - column < TILE ? in->sizes[c->inner] - column : TILE;
            copy_tile(c, to + column * c->out->strides[c->inner] * c->width, from + column * in->strides[c->inner] * c->width,
                      rows, columns);
        }
    }
}

/* For two dimensions of which one is `thin`: it has 2 to 7 elements, which are adjacent on one side. Pixels to
 * channels and back. */
#define COPY_THIN(T, long_to, thin_to, long_from, thin_from)                                           \
    for (int64_t i = 0; i < n; i++)                                                                    \
        for (int64_t j = 0; j < thin; j++)                                                             \
            ((T *restrict)to)[i * (long_to) + j * (thin_to)] = ((const T *restrict)from)[i * (long_from) + j * (thin_from)];
#define COPY_LONG(T)                                                                                   \
    static void copy_long_##T(void *to, int64_t to_thin, const void *from, int64_t from_thin, int64_t n, int64_t thin) \
    {                                                                                                  \
        if (from_thin == 1) {                                                                          \
            COPY_THIN(T, 1, to_thin, thin, 1)                                                          \
        } else {                                                                                       \
            COPY_THIN(T, thin, 1, 1, from_thin)                                                        \
        }                                                                                              \
    }
#define COPY_LONG_BY(T, count)                                                                         \
    static void copy_long_##T##_##count(void *to, int64_t to_thin, const void *from, int64_t from_thin, int64_t n) \
    {                                                                                                  \
        const int64_t thin = count; /* a constant for the compiler, which zips and unzips */                 \
        if (from_thin == 1) {                                                                          \
            COPY_THIN(T, 1, to_thin, thin, 1)                                                          \
        } else {                                                                                       \
            COPY_THIN(T, thin, 1, 1, from_thin)                                                        \
        }                                                                                              \
    }
COPY_LONG(uint8_t)
COPY_LONG(uint16_t)
COPY_LONG(uint32_t)
COPY_LONG(uint64_t)
COPY_LONG_BY(uint16_t, 2)
COPY_LONG_BY(uint32_t, 2)
COPY_LONG_BY(uint16_t, 4)
COPY_LONG_BY(uint32_t, 4)

static void copy_long(const transposition *c, char *to, const char *from, int thin_dim, int64_t n)
{
    int64_t to_thin = c->out->strides[thin_dim], from_thin = c->in->strides[thin_dim], thin = c->in->sizes[thin_dim];
    switch (c->width) {
    case 1: copy_long_uint8_t(to, to_thin, from, from_thin, n, thin); break;
    case 2:
        if (thin == 2)
            copy_long_uint16_t_2(to, to_thin, from, from_thin, n);
        else if (thin == 4)
            copy_long_uint16_t_4(to, to_thin, from, from_thin, n);
        else
            copy_long_uint16_t(to, to_thin, from, from_thin, n, thin);
        break;
    case 4:
        if (thin == 2)
            copy_long_uint32_t_2(to, to_thin, from, from_thin, n);
        else if (thin == 4)
            copy_long_uint32_t_4(to, to_thin, from, from_thin, n);
        else
            copy_long_uint32_t(to, to_thin, from, from_thin, n, thin);
        break;
    default: copy_long_uint64_t(to, to_thin, from, from_thin, n, thin); break;
    }
}

/* One unit is a plane of the two dimensions. */
static void thin_part(void *arg, int64_t begin, int64_t end)
{
    const transposition *c = arg;
    const trek_tensor *in = c->in;
    int thin_dim = in->sizes[c->row] < in->sizes[c->inner] ? c->row : c->inner, long_dim = c->row + c->inner - thin_dim;
    int64_t at[TREK_MAX_DIMS] = { 0 }, rest = begin;
    char *to = c->out->data;
    const char *from = in->data;
    for (int d = in->ndim - 1; d >= 0; d--) {
        if (d == c->row || d == c->inner)
            continue;
        at[d] = rest % in->sizes[d];
        rest /= in->sizes[d];
        to += at[d] * c->out->strides[d] * c->width;
        from += at[d] * in->strides[d] * c->width;
    }
    for (int64_t plane = begin; plane < end; plane++) {
        copy_long(c, to, from, thin_dim, in->sizes[long_dim]);
        for (int d = in->ndim - 1; d >= 0; d--) { /* the next position */
            if (d == c->row || d == c->inner)
                continue;
            int64_t step = ++at[d] < in->sizes[d] ? 1 : 1 - at[d];
            at[d] = step == 1 ? at[d] : 0;
            to += step * c->out->strides[d] * c->width;
            from += step * in->strides[d] * c->width;
            if (step == 1)
                break;
        }
    }
}

/* Copies if one dimension is thin and its elements are adjacent on one side, with the other dimension stepping by
 * that number. Returns false otherwise. */
static bool copy_thin(transposition *c)
{
    const int64_t *sizes = c->in->sizes, *to = c->out->strides, *from = c->in->strides;
    int64_t rows = sizes[c->row], columns = sizes[c->inner];
    if (rows < columns ? rows < 2 || to[c->inner] != 1 || from[c->inner] != rows : columns < 2 || to[c->row] != columns)
        return false;
    int64_t grain = TREK_GRAIN_CHEAP / (rows * columns);
    trek_parallel(c->in->numel / (rows * columns), grain < 1 ? 1 : grain, thin_part, c);
    return true;
}

/* Copies a transposition that is large enough for tiles, or thin. Returns false otherwise. */
static bool copy_transposed(const trek_op_call *call, int width)
{
    const trek_tensor *in = call->inputs[0], *out = call->outputs[0];
    if (out->numel < 4096 || in->contiguous || !trek_same_sizes(in, out))
        return false;
    transposition c = { .out = out, .in = in, .row = -1, .inner = -1, .width = width };
    for (int d = 0; d < in->ndim; d++) {
        if (in->strides[d] == 1 && in->sizes[d] > 1)
            c.row = d;
        if (out->strides[d] == 1 && in->sizes[d] > 1)
            c.inner = d;
    }
    if (c.row < 0 || c.inner < 0 || c.row == c.inner || in->strides[c.inner] == 0)
        return false;
    if (in->sizes[c.row] < 8 || in->sizes[c.inner] < 8)
        return (in->sizes[c.row] >= 8 || in->sizes[c.inner] >= 8) && copy_thin(&c);
    c.row_tiles = (in->sizes[c.row] + TILE - 1) / TILE;
    int64_t planes = in->numel / (in->sizes[c.row] * in->sizes[c.inner]);
    int64_t grain = TREK_GRAIN_CHEAP / (TILE * in->sizes[c.inner]);
    trek_parallel(planes * c.row_tiles, grain < 1 ? 1 : grain, transpose_part, &c);
    return true;
}

#define COPY(width)                                                                                    \
    static trek_status copy_##width(const trek_op_call *call)                                          \
    {                                                                                                  \
        return copy_transposed(call, width) ? TREK_OK : copy_##width##_any(call);                      \
    }
COPY(1)
COPY(2)
COPY(4)
COPY(8)

/* --- conversions --- */

/* Rounds to f32 so that a second rounding, to 16 bits, gives the result of a single one: inexact results get an odd
 * last bit. */
static inline float f32_odd(double x)
{
    float near = (float)x;
    uint32_t bits = trek_bits_f32(near);
    bool inexact = (double)near != x && near - near == 0, away = inexact && fabs((double)near) > fabs(x);
    return trek_f32_bits(inexact && !(bits & 1) ? (away ? bits - 1 : bits + 1) : bits);
}

#define TO_FLOATS(from)                                                                                \
    TREK_UNARY_ROW(to_f32, from, f32, (float)x)                                                        \
    TREK_UNARY_ROW(to_f64, from, f64, (double)x)                                                       \
    TREK_UNARY_ROW(to_odd, from, f32, f32_odd((double)x))
#define TO_BOOL(from) TREK_UNARY_ROW(to_boolean, from, boolean, x != 0)
TO_FLOATS(f32)
TO_FLOATS(f64)
TO_FLOATS(i64)
TO_FLOATS(i32)
TO_FLOATS(u8)
TO_BOOL(f32)
TO_BOOL(f64)
TO_BOOL(i64)
TO_BOOL(i32)
TO_BOOL(u8)
#define FLOAT_TO_INTEGERS(from)                                                                        \
    TREK_UNARY_ROW(to_i64, from, i64, trek_i64_from_f64((double)x))                                    \
    TREK_UNARY_ROW(to_i32, from, i32, trek_i32_from_f64((double)x))                                    \
    TREK_UNARY_ROW(to_u8, from, u8, trek_i64_from_f64((double)x))
FLOAT_TO_INTEGERS(f32)
FLOAT_TO_INTEGERS(f64)
#define INTEGER_TO_INTEGERS(from)                                                                      \
    TREK_UNARY_ROW(to_i64, from, i64, x)                                                               \
    TREK_UNARY_ROW(to_i32, from, i32, x)                                                               \
    TREK_UNARY_ROW(to_u8, from, u8, x)
INTEGER_TO_INTEGERS(i64)
INTEGER_TO_INTEGERS(i32)
INTEGER_TO_INTEGERS(u8)

/* Row functions by source, then by target: f32, f64, i64, i32, u8, bool, and 16-bit floats last. */
enum { FORM_F32, FORM_F64, FORM_I64, FORM_I32, FORM_U8, FORM_BOOL, FORM_16, FORMS };
#define ROWS_FROM(from)                                                                                \
    { to_f32_##from##_row, to_f64_##from##_row, to_i64_##from##_row, to_i32_##from##_row, to_u8_##from##_row, \
      to_boolean_##from##_row, to_odd_##from##_row }
static const trek_row_fn convert_rows[][FORMS] = {
    [FORM_F32] = ROWS_FROM(f32), [FORM_F64] = ROWS_FROM(f64), [FORM_I64] = ROWS_FROM(i64),
    [FORM_I32] = ROWS_FROM(i32), [FORM_U8] = ROWS_FROM(u8),   [FORM_BOOL] = ROWS_FROM(u8),
    [FORM_16] = ROWS_FROM(f32),
};
static const uint8_t forms[TREK_DTYPE_COUNT] = {
    [TREK_F32] = FORM_F32, [TREK_F64] = FORM_F64, [TREK_BF16] = FORM_16, [TREK_F16] = FORM_16,
    [TREK_I64] = FORM_I64, [TREK_I32] = FORM_I32, [TREK_U8] = FORM_U8,   [TREK_BOOL] = FORM_BOOL,
};
static const uint8_t lanes[TREK_DTYPE_COUNT] = {
    [TREK_F32] = TREK_LANE_4,  [TREK_F64] = TREK_LANE_8, [TREK_BF16] = TREK_LANE_BF16, [TREK_F16] = TREK_LANE_F16,
    [TREK_I64] = TREK_LANE_8,  [TREK_I32] = TREK_LANE_4, [TREK_U8] = TREK_LANE_1,      [TREK_BOOL] = TREK_LANE_1,
};

/* Converts f32 to and from 16 bits, contiguous, in one step without a buffer. */
typedef struct half_conversion {
    const trek_tensor *in, *out;
} half_conversion;

static void convert_halves_part(void *arg, int64_t begin, int64_t end)
{
    const half_conversion *c = arg;
    int64_t n = end - begin;
    const uint16_t *from = (const uint16_t *)(const void *)c->in->data + begin;
    uint16_t *to = (uint16_t *)(void *)c->out->data + begin;
    if (c->in->dtype == TREK_BF16)
        trek_f32_from_bf16_row((float *)(void *)c->out->data + begin, from, n);
    else if (c->in->dtype == TREK_F16)
        trek_f32_from_f16_row((float *)(void *)c->out->data + begin, from, n);
    else if (c->out->dtype == TREK_BF16)
        trek_bf16_from_f32_row(to, (const float *)(const void *)c->in->data + begin, n);
    else
        trek_f16_from_f32_row(to, (const float *)(const void *)c->in->data + begin, n);
}

/* Returns whether the elements of both lie in the same order, without gaps. */
static bool lie_alike(const trek_tensor *a, const trek_tensor *b)
{
    int64_t span = 1;
    bool alike = trek_same_sizes(a, b);
    for (int d = 0; alike && d < a->ndim; d++) {
        alike = a->sizes[d] == 1 || (a->strides[d] == b->strides[d] && a->strides[d] > 0);
        span += (a->sizes[d] - 1) * (a->sizes[d] == 1 ? 0 : a->strides[d]);
    }
    return alike && span == a->numel;
}

/* Does so if the call asks for it. Returns false otherwise. */
static bool convert_halves(const trek_op_call *call)
{
    const trek_tensor *in = call->inputs[0], *out = call->outputs[0];
    bool narrows = in->dtype == TREK_F32 && trek_dtype_is_16bit((trek_dtype)out->dtype);
    bool widens = trek_dtype_is_16bit((trek_dtype)in->dtype) && out->dtype == TREK_F32;
    if (!(narrows || widens) || in->numel != out->numel || !((in->contiguous && out->contiguous) || lie_alike(in, out)))
        return false;
    half_conversion c = { .in = in, .out = out };
    trek_parallel(out->numel, CHEAP, convert_halves_part, &c);
    return true;
}

static trek_status convert(const trek_op_call *call)
{
    if (convert_halves(call))
        return TREK_OK;
    trek_dtype from = (trek_dtype)call->inputs[0]->dtype, to = (trek_dtype)call->outputs[0]->dtype;
    int width = trek_lane_bytes((trek_lane)lanes[from]);
    if (from == to) /* no conversion: bits are kept */
        return width == 1 ? copy_1(call) : width == 2 ? copy_2(call) : width == 4 ? copy_4(call) : copy_8(call);
    trek_row_fn row = convert_rows[forms[from]][forms[to]];
    if (forms[to] == FORM_16 && (from == TREK_F32 || forms[from] == FORM_16))
        row = copy_4_row; /* f32 to f32: storing does the only rounding */
    trek_map map = { row, CHEAP, 1, (trek_lane)lanes[to], .in = { (trek_lane)lanes[from] } };
    return trek_map_run(call, &map);
}

void TREK_ISA_NAME(trek_cpu_register_copy)(trek_backend *b)
{
    trek_kernel *copy = b->kernels[TREK_OP_copy];
    copy[TREK_F32] = copy[TREK_I32] = copy_4;
    copy[TREK_F64] = copy[TREK_I64] = copy_8;
    copy[TREK_BF16] = copy[TREK_F16] = copy_2;
    copy[TREK_U8] = copy[TREK_BOOL] = copy_1;
    for (int d = 0; d < TREK_DTYPE_COUNT; d++)
        b->kernels[TREK_OP_convert][d] = convert;
}
