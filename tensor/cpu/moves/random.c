/* SPDX-License-Identifier: Apache-2.0 */
/* Fills, random numbers, dropout.
 *
 * Element e of a tensor (row-major) is at position p = i[3] + e. It uses number p % 4 of Philox block p / 4, however
 * rows, threads or ranks divide the work. f64 needs 53 bits: element p uses two numbers, 2p % 4 and 2p % 4 + 1, of
 * block p / 2. Normal numbers come in pairs (Box-Muller) from neighbouring positions of one block: the even position
 * gets the cosine, the odd one the sine. */
#include <math.h>

#include "tensor/cpu/elementwise/elementwise.h"
#include "tensor/cpu/moves/philox.h"
#include "tensor/cpu/vector_math.h"

#define BLOCK 512 /* elements at once; a multiple of 4 */

static trek_draw draw_of(const trek_op_call *call)
{
    return (trek_draw){ (uint64_t)call->attrs.i[0], (uint32_t)call->attrs.i[1], (uint32_t)call->attrs.i[2], call->attrs.i[3] };
}

/* Memory for the numbers of BLOCK positions that do not begin with a block, in whole groups. */
typedef struct numbers {
    uint32_t words[BLOCK + 8 + 4 * TREK_PHILOX_LANES];
} numbers;

/* Draws one word for each of the positions [place, place + n), n <= BLOCK (+ 2 from an even position). Returns where
 * the first is. */
static const uint32_t *draw_words(const trek_draw *d, int64_t place, int64_t n, numbers *room)
{
    uint64_t first = (uint64_t)place / 4, last = (uint64_t)(place + n - 1) / 4;
    trek_philox_blocks(d, first, (int)(last - first + 1), room->words);
    return room->words + place % 4;
}

/* --- what is drawn: n elements from `place` on, as f32 or f64 --- */

typedef void (*draw_fn)(void *row, const trek_draw *d, int64_t place, int64_t n, const trek_attrs *attrs);

/* bits: as many as the result's dtype has, so that rounding cannot give 1. */
static inline void uniform_row(float *to, const trek_draw *d, int64_t place, int64_t n, const trek_attrs *attrs, int bits)
{
    numbers room;
    const uint32_t *words = draw_words(d, place, n, &room);
    const float low = (float)attrs->f[0], high = (float)attrs->f[1], span = (float)(attrs->f[1] - attrs->f[0]);
    const float unit = 1.0f / (float)(1 << bits);
    for (int64_t i = 0; i < n; i++) {
        float x = low + span * ((float)(int32_t)(words[i] >> (32 - bits)) * unit);
        to[i] = x < high ? x : low; /* nor may it give another open end */
    }
}
static void uniform_f32_row(void *row, const trek_draw *d, int64_t place, int64_t n, const trek_attrs *attrs)
{
    uniform_row(row, d, place, n, attrs, 24);
}
static void uniform_bf16_row(void *row, const trek_draw *d, int64_t place, int64_t n, const trek_attrs *attrs)
{
    uniform_row(row, d, place, n, attrs, 8);
}
static void uniform_f16_row(void *row, const trek_draw *d, int64_t place, int64_t n, const trek_attrs *attrs)
{
    uniform_row(row, d, place, n, attrs, 11);
}

static void uniform_f64_row(void *row, const trek_draw *d, int64_t place, int64_t n, const trek_attrs *attrs)
{
    double *to = row, low = attrs->f[0], high = attrs->f[1];
    numbers room;
    for (int64_t k = 0; k < n; k += BLOCK / 2) {
        int64_t part = n - k < BLOCK / 2 ? n - k : BLOCK / 2;
        const uint32_t *words = draw_words(d, 2 * (place + k), 2 * part, &room);
        for (int64_t i = 0; i < part; i++) {
            double x = low + (high - low) * trek_uniform_f64(words[2 * i], words[2 * i + 1]);
            to[k + i] = x < high ? x : low;
        }
    }
}

/* Box-Muller: radii and angles of `pairs` pairs; to[0] gets the cosines, to[1] the sines. */
static void normal_pairs(const uint32_t *words, int64_t pairs, const trek_attrs *attrs, float to[2][BLOCK / 2 + TREK_WIDE])
{
    float u[BLOCK / 2 + TREK_WIDE], turns[BLOCK / 2 + TREK_WIDE];
    const float mean = (float)attrs->f[0], deviation = (float)attrs->f[1];
    for (int64_t i = 0; i < pairs; i++) {
        u[i] = (float)((int32_t)(words[2 * i] >> 8) + 1) * 0x1p-24f; /* (0, 1] */
        turns[i] = (float)(int32_t)(words[2 * i + 1] >> 8) * 0x1p-22f; /* quarter turns, [0, 4) */
    }
    for (int64_t i = pairs; i < (pairs + TREK_WIDE - 1) / TREK_WIDE * TREK_WIDE; i++)
        u[i] = 1, turns[i] = 0;
    for (int64_t i = 0; i < pairs; i += TREK_WIDE)
        trek_store_wide(u + i, -2.0f * trek_log_wide(trek_load_wide(u + i)));
    for (int64_t i = 0; i < pairs; i++)
        u[i] = deviation * sqrtf(u[i]);
    for (int64_t i = 0; i < pairs; i += TREK_WIDE) {
        /* whole quarters are exact; the rest is within an eighth of a turn */
        trek_wide quarters = trek_load_wide(turns + i), shifted = quarters + 0x1.8p23f, radius = trek_load_wide(u + i);
        trek_wide_int quarter = (trek_wide_int)(trek_as_bits_wide(shifted) - 0x4b400000u);
        trek_wide angle = (quarters - (shifted - 0x1.8p23f)) * 0x1.921fb6p0f;
        trek_store_wide(to[0] + i, mean + radius * trek_sin_quarter_wide(quarter + 1, angle));
        trek_store_wide(to[1] + i, mean + radius * trek_sin_quarter_wide(quarter, angle));
    }
}

/* Computes whole pairs around the requested positions. */
static void normal_f32_row(void *row, const trek_draw *d, int64_t place, int64_t n, const trek_attrs *attrs)
{
    numbers room;
    int64_t lead = place & 1, pairs = (lead + n + 1) / 2;
    float values[2][BLOCK / 2 + TREK_WIDE], *to = row;
    normal_pairs(draw_words(d, place - lead, 2 * pairs, &room), pairs, attrs, values);
    if (lead == 0)
        for (int64_t i = 0; i < n / 2; i++)
            to[2 * i] = values[0][i], to[2 * i + 1] = values[1][i];
    for (int64_t i = lead == 0 ? n / 2 * 2 : 0; i < n; i++)
        to[i] = values[(lead + i) & 1][(lead + i) / 2];
}

static void normal_f64_row(void *row, const trek_draw *d, int64_t place, int64_t n, const trek_attrs *attrs)
{
    double *to = row, mean = attrs->f[0], deviation = attrs->f[1];
    numbers room;
    int64_t lead = place & 1;
    for (int64_t i = -lead; i < n; i += 2) {
        const uint32_t *words = draw_words(d, 2 * (place + i), 4, &room);
        double u = 1.0 - trek_uniform_f64(words[0], words[1]); /* (0, 1] */
        double radius = deviation * sqrt(-2.0 * log(u)), angle = 6.283185307179586477 * trek_uniform_f64(words[2], words[3]);
        if (i >= 0)
            to[i] = mean + radius * cos(angle);
        if (i + 1 < n)
            to[i + 1] = mean + radius * sin(angle);
    }
}

/* Integers in [f0, f1), as i64: 32 bits are scaled to a narrow range, 64 bits to a wide one. */
static void integers_row(void *row, const trek_draw *d, int64_t place, int64_t n, const trek_attrs *attrs)
{
    int64_t *to = row, low = trek_i64_from_f64(attrs->f[0]);
    uint64_t range = (uint64_t)trek_i64_from_f64(attrs->f[1]) - (uint64_t)low;
    range = range == 0 ? 1 : range;
    numbers room;
    if (range <= UINT32_MAX) {
        const uint32_t *words = draw_words(d, place, n, &room);
        for (int64_t i = 0; i < n; i++)
            to[i] = low + (int64_t)(words[i] * range >> 32);
        return;
    }
    for (int64_t k = 0; k < n; k += BLOCK / 2) {
        int64_t part = n - k < BLOCK / 2 ? n - k : BLOCK / 2;
        const uint32_t *words = draw_words(d, 2 * (place + k), 2 * part, &room);
        for (int64_t i = 0; i < part; i++) {
            uint64_t high = words[2 * i], rest = words[2 * i + 1]; /* (high:rest * range) >> 64 */
            uint64_t low_half = (rest * (range & 0xffffffffu)) >> 32;
            uint64_t middle = high * (range & 0xffffffffu) + low_half, other = rest * (range >> 32);
            uint64_t carry = ((middle & 0xffffffffu) + (other & 0xffffffffu)) >> 32;
            to[k + i] = low + (int64_t)(high * (range >> 32) + (middle >> 32) + (other >> 32) + carry);
        }
    }
}

/* --- tensors of any strides and dtypes --- */

typedef struct filling {
    const trek_op_call *call;
    const trek_tensor *out;
    trek_draw drawn;
    draw_fn fn;
    trek_row_fn narrow; /* from i64 rows to narrower ones; NULL: stored directly */
    trek_lane lane;
} filling;

/* Stores elements [begin, begin + n) of a tensor of any strides, row by row. */
static void store_elements(const trek_tensor *t, trek_lane lane, int64_t begin, int64_t n, const char *row)
{
    int last = t->ndim - 1, bytes = trek_lane_bytes(lane);
    for (int64_t run; n > 0; n -= run, begin += run, row += run * trek_lane_row_bytes(lane)) {
        int64_t place = begin, offset = 0;
        run = t->contiguous ? n : t->sizes[last] - begin % t->sizes[last];
        run = run < n ? run : n;
        if (t->contiguous)
            offset = begin;
        for (int d = last; !t->contiguous && d >= 0; d--) {
            offset += place % t->sizes[d] * t->strides[d];
            place /= t->sizes[d];
        }
        int64_t stride = t->contiguous ? bytes : t->strides[last] * bytes;
        TREK_ISA_NAME(trek_lane_store)(lane, t->data + offset * bytes, stride, row, run);
    }
}

static void load_elements(const trek_tensor *t, trek_lane lane, int64_t begin, int64_t n, char *row)
{
    int last = t->ndim - 1, bytes = trek_lane_bytes(lane);
    for (int64_t run; n > 0; n -= run, begin += run, row += run * trek_lane_row_bytes(lane)) {
        int64_t place = begin, offset = 0;
        run = t->contiguous ? n : t->sizes[last] - begin % t->sizes[last];
        run = run < n ? run : n;
        if (t->contiguous)
            offset = begin;
        for (int d = last; !t->contiguous && d >= 0; d--) {
            offset += place % t->sizes[d] * t->strides[d];
            place /= t->sizes[d];
        }
        int64_t stride = t->contiguous ? bytes : t->strides[last] * bytes;
        TREK_ISA_NAME(trek_lane_load)(lane, row, t->data + offset * bytes, stride, run);
    }
}

static void fill_part(void *arg, int64_t begin, int64_t end)
{
    const filling *f = arg;
    _Alignas(64) char row[BLOCK * 8], narrowed[BLOCK * 8];
    for (int64_t n; begin < end; begin += n) {
        n = end - begin < BLOCK ? end - begin : BLOCK;
        f->fn(row, &f->drawn, f->drawn.place + begin, n, &f->call->attrs);
        const void *source = row;
        if (f->narrow)
            f->narrow(narrowed, &source, n, &f->call->attrs);
        store_elements(f->out, f->lane, begin, n, f->narrow ? narrowed : row);
    }
}

static trek_status fill_randomly(const trek_op_call *call, draw_fn fn, trek_row_fn narrow, trek_lane lane)
{
    filling f = { call, call->outputs[0], draw_of(call), fn, narrow, lane };
    trek_parallel(f.out->numel, TREK_GRAIN_FUNCTION, fill_part, &f);
    return TREK_OK;
}

#define RANDOM(op, dtype, fn, narrow, width)                                                           \
    static trek_status op##_##dtype(const trek_op_call *call) { return fill_randomly(call, fn, narrow, TREK_LANE_##width); }
RANDOM(uniform, f32, uniform_f32_row, NULL, 4)
RANDOM(uniform, f64, uniform_f64_row, NULL, 8)
RANDOM(uniform, bf16, uniform_bf16_row, NULL, BF16)
RANDOM(uniform, f16, uniform_f16_row, NULL, F16)
RANDOM(normal, f32, normal_f32_row, NULL, 4)
RANDOM(normal, f64, normal_f64_row, NULL, 8)
RANDOM(normal, bf16, normal_f32_row, NULL, BF16)
RANDOM(normal, f16, normal_f32_row, NULL, F16)

TREK_UNARY_ROW(narrow_f32, i64, f32, x)
TREK_UNARY_ROW(narrow_f64, i64, f64, x)
TREK_UNARY_ROW(narrow_i32, i64, i32, x)
TREK_UNARY_ROW(narrow_u8, i64, u8, x)
TREK_UNARY_ROW(narrow_boolean, i64, boolean, x != 0)
RANDOM(random_integers, f32, integers_row, narrow_f32_i64_row, 4)
RANDOM(random_integers, f64, integers_row, narrow_f64_i64_row, 8)
RANDOM(random_integers, bf16, integers_row, narrow_f32_i64_row, BF16)
RANDOM(random_integers, f16, integers_row, narrow_f32_i64_row, F16)
RANDOM(random_integers, i64, integers_row, NULL, 8)
RANDOM(random_integers, i32, integers_row, narrow_i32_i64_row, 4)
RANDOM(random_integers, u8, integers_row, narrow_u8_i64_row, 1)
RANDOM(random_integers, boolean, integers_row, narrow_boolean_i64_row, 1)

/* --- dropout --- */

/* A number of 24 bits is at least p if, as an integer, it is at least p 2^24 rounded up. */
#define DROPOUT_ROW(suffix, T)                                                                         \
    static void dropout_##suffix##_row(void *to, const void *from, const uint32_t *words, int64_t n, double p) \
    {                                                                                                  \
        T *result = to;                                                                                \
        const T *x = from;                                                                             \
        const int32_t limit = (int32_t)ceil((double)(float)p * 0x1p24);                                \
        const T scale = (T)(p < 1 ? 1 / (1 - p) : 0);                                                  \
        TREK_INDEPENDENT                                                                               \
        for (int64_t i = 0; i < n; i++) {                                                              \
            T kept = x[i] * scale;                                                                     \
            result[i] = (int32_t)(words[i] >> 8) >= limit ? kept : 0;                                  \
        }                                                                                              \
    }
DROPOUT_ROW(f32, float)
DROPOUT_ROW(f64, double)

static void dropout_part(void *arg, int64_t begin, int64_t end)
{
    const filling *f = arg;
    const trek_tensor *in = f->call->inputs[0], *out = f->out;
    bool direct = in->contiguous && out->contiguous && f->lane < TREK_LANE_BF16;
    _Alignas(64) char row[BLOCK * 8];
    numbers room;
    for (int64_t n; begin < end; begin += n) {
        n = end - begin < BLOCK ? end - begin : BLOCK;
        const uint32_t *words = draw_words(&f->drawn, f->drawn.place + begin, n, &room);
        const void *from = direct ? in->data + begin * (int)f->lane : row;
        void *to = direct ? out->data + begin * (int)f->lane : row;
        if (!direct)
            load_elements(in, f->lane, begin, n, row);
        if (f->lane == TREK_LANE_8)
            dropout_f64_row(to, from, words, n, f->call->attrs.f[0]);
        else
            dropout_f32_row(to, from, words, n, f->call->attrs.f[0]);
        if (!direct)
            store_elements(out, f->lane, begin, n, row);
    }
}

static trek_status drop(const trek_op_call *call, trek_lane lane)
{
    filling f = { .call = call, .out = call->outputs[0], .drawn = draw_of(call), .lane = lane };
    trek_parallel(f.out->numel, TREK_GRAIN_FUNCTION, dropout_part, &f);
    return TREK_OK;
}
static trek_status dropout_f32(const trek_op_call *call) { return drop(call, TREK_LANE_4); }
static trek_status dropout_f64(const trek_op_call *call) { return drop(call, TREK_LANE_8); }
static trek_status dropout_bf16(const trek_op_call *call) { return drop(call, TREK_LANE_BF16); }
static trek_status dropout_f16(const trek_op_call *call) { return drop(call, TREK_LANE_F16); }

/* --- fill --- */

#define FILL(suffix)                                                                                   \
    static void fill_##suffix##_row(void *to, const void *const *from, int64_t n, const trek_attrs *attrs) \
    {                                                                                                  \
        TREK_TYPE_##suffix *result = to;                                                               \
        TREK_ROW_NUMBERS(suffix);                                                                      \
        (void)from;                                                                                    \
        for (int64_t i = 0; i < n; i++)                                                                \
            result[i] = (TREK_TYPE_##suffix)s;                                                         \
    }
#define FILL_KERNEL(dtype, suffix, width)                                                              \
    TREK_MAP_KERNEL(fill_##dtype, fill_##suffix##_row, TREK_GRAIN_CHEAP, 0, TREK_LANE_##width, TREK_LANE_1)
FILL(f32)
FILL(f64)
FILL(i64)
FILL(i32)
FILL(u8)
FILL(boolean)
FILL_KERNEL(f32, f32, 4)
FILL_KERNEL(f64, f64, 8)
FILL_KERNEL(bf16, f32, BF16)
FILL_KERNEL(f16, f32, F16)
FILL_KERNEL(i64, i64, 8)
FILL_KERNEL(i32, i32, 4)
FILL_KERNEL(u8, u8, 1)
FILL_KERNEL(boolean, boolean, 1)

void TREK_ISA_NAME(trek_cpu_register_random)(trek_backend *b)
{
    TREK_ENTER_FLOATS(b, fill);
    TREK_ENTER_INTEGERS(b, fill);
    TREK_ENTER_BOOL(b, fill);
    TREK_ENTER_FLOATS(b, uniform);
    TREK_ENTER_FLOATS(b, normal);
    TREK_ENTER_FLOATS(b, random_integers);
    TREK_ENTER_INTEGERS(b, random_integers);
    TREK_ENTER_BOOL(b, random_integers);
    TREK_ENTER_FLOATS(b, dropout);
}
