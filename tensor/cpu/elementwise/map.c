/* SPDX-License-Identifier: Apache-2.0 */
/* Element-wise kernels over tensors of any strides: see map.h. */
#include "tensor/cpu/elementwise/map.h"

#include <stdlib.h>
#if defined(__AVX512F__)
#include <immintrin.h>
#endif

#define OPERANDS (TREK_MAP_INPUTS + 1) /* the output first */
#define BLOCK 512                      /* elements that go through a buffer at once */
#define BLOCK_OF_SEVERAL 128           /* the same if several inputs have gaps between their elements */
#define AHEAD 4096                     /* bytes between a block of theirs and what is fetched meanwhile */
#define LINE 64                        /* bytes of the cache */
#define SHORT_ROW 32                   /* shorter innermost dimensions are gathered into blocks */
#define REPEATED 4096                  /* number of results from which on repeated values are computed once */

/* The common index space, with dimensions merged as far as the strides allow. */
typedef struct walk {
    const trek_map *map;
    const trek_attrs *attrs;
    int operands, ndim;
    int64_t sizes[TREK_MAX_DIMS];
    int64_t strides[OPERANDS][TREK_MAX_DIMS]; /* bytes */
    char *data[OPERANDS];
    trek_lane lanes[OPERANDS];
    bool by_rows;                             /* blocks end with a row */
    bool direct[OPERANDS];                    /* rows are in memory as the row function needs them */
    bool repeats[OPERANDS];                   /* all rows are the same */
} walk;

/* Fills n elements by whole lines of the cache, because a vector that crosses their border is stored in two steps. What stands
 * before the first border and after the last one is filled by lines that overlap others. */
#define FILL(T)                                                                                        \
    static void fill_##T(T *to, T value, int64_t n)                                                    \
    {                                                                                                  \
        enum { IN_LINE = LINE / sizeof(T) };                                                           \
        T line[IN_LINE];                                                                               \
        for (int i = 0; i < IN_LINE; i++)                                                              \
            line[i] = value;                                                                           \
        if (n < IN_LINE) {                                                                             \
            memcpy(to, line, (size_t)n * sizeof(T));                                                   \
            return;                                                                                    \
        }                                                                                              \
        memcpy(to, line, LINE);                                                                        \
        for (int64_t i = IN_LINE - (int64_t)((uintptr_t)to % LINE / sizeof(T)); i + IN_LINE <= n; i += IN_LINE) \
            memcpy(to + i, line, LINE);                                                                \
        memcpy(to + n - IN_LINE, line, LINE);                                                          \
    }
FILL(uint8_t)
FILL(uint16_t)
FILL(uint32_t)
FILL(uint64_t)

#define STRIDED(T)                                                                                     \
    do {                                                                                               \
        T *t_ = row;                                                                                   \
        if (stride == 0) {                                                                             \
            fill_##T(t_, *(const T *)from, n);                                                         \
        } else if (stride == 2 * (int64_t)sizeof(T)) { /* every second element: vectors, because the stride is known */ \
            for (int64_t i = 0; i < n; i++)                                                            \
                t_[i] = ((const T *)from)[2 * i];                                                      \
        } else if (stride == -(int64_t)sizeof(T)) { /* backwards: vectors, too */                          \
            for (int64_t i = 0; i < n; i++)                                                            \
                t_[i] = ((const T *)from)[-i];                                                         \
        } else {                                                                                       \
            for (int64_t i = 0; i < n; i++, from += stride)                                            \
                t_[i] = *(const T *)from;                                                              \
        }                                                                                              \
    } while (0)

/* Gathered as bits, because conversions take whole vectors. */
static void load_strided_f16(float *to, const char *from, int64_t stride, int64_t n)
{
    uint16_t bits[BLOCK];
    for (int64_t begin = 0, count; begin < n; begin += count) {
        count = n - begin < BLOCK ? n - begin : BLOCK;
        TREK_ISA_NAME(trek_lane_load)(TREK_LANE_2, bits, from + begin * stride, stride, count);
        trek_f32_from_f16_row(to + begin, bits, count);
    }
}

void TREK_ISA_NAME(trek_lane_load)(trek_lane lane, void *row, const char *from, int64_t stride, int64_t n)
{
    if (stride == (int)lane) {
        memcpy(row, from, (size_t)(n * stride));
        return;
    }
    float *floats = row;
    switch (lane) {
    case TREK_LANE_1: STRIDED(uint8_t); break;
    case TREK_LANE_2: STRIDED(uint16_t); break;
    case TREK_LANE_4: STRIDED(uint32_t); break;
    case TREK_LANE_8: STRIDED(uint64_t); break;
    case TREK_LANE_BF16:
        if (stride == 2)
            trek_f32_from_bf16_row(floats, (const uint16_t *)from, n);
        else if (stride == 4)
            for (int64_t i = 0; i < n; i++)
                floats[i] = trek_f32_from_bf16(((const uint16_t *)from)[2 * i]);
        else
            for (int64_t i = 0; i < n; i++, from += stride)
                floats[i] = trek_f32_from_bf16(*(const uint16_t *)from);
        break;
    case TREK_LANE_F16:
        if (stride == 2)
            trek_f32_from_f16_row(floats, (const uint16_t *)from, n);
        else
            load_strided_f16(floats, from, stride, n);
        break;
    }
}

#define STRIDED_STORE(T, convert)                                                                      \
    for (int64_t i = 0; i < n; i++, to += stride)                                                      \
        *(T *)to = convert

static void store_strided_f16(char *to, int64_t stride, const float *from, int64_t n)
{
    uint16_t bits[BLOCK];
    for (int64_t begin = 0, count; begin < n; begin += count) {
        count = n - begin < BLOCK ? n - begin : BLOCK;
        trek_f16_from_f32_row(bits, from + begin, count);
        TREK_ISA_NAME(trek_lane_store)(TREK_LANE_2, to + begin * stride, stride, bits, count);
    }
}

#if defined(__AVX512F__)
/* Store four bytes, leave four, and so on, a vector at a time; the same with two bytes. */
static void store_every_second_4(char *to, const float *from, int64_t n)
{
    const __m512i low = _mm512_setr_epi32(0, 0, 1, 0, 2, 0, 3, 0, 4, 0, 5, 0, 6, 0, 7, 0);
    const __m512i high = _mm512_add_epi32(low, _mm512_set1_epi32(8));
    float *out = (float *)(void *)to;
    int64_t i = 0;
    for (; i + 16 <= n; i += 16) {
        const __m512 x = _mm512_loadu_ps(from + i);
        _mm512_mask_storeu_ps(out + 2 * i, 0x5555, _mm512_permutexvar_ps(low, x));
        _mm512_mask_storeu_ps(out + 2 * i + 16, 0x5555, _mm512_permutexvar_ps(high, x));
    }
    for (; i < n; i++)
        out[2 * i] = from[i];
}
static void store_every_second_2(char *to, const uint16_t *from, int64_t n)
{
    uint16_t *out = (uint16_t *)(void *)to;
    int64_t i = 0;
    for (; i + 32 <= n; i += 32) {
        const __m512i low = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(const void *)(from + i)));
        const __m512i high = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(const void *)(from + i + 16)));
        _mm512_mask_storeu_epi16(out + 2 * i, 0x55555555, low);
        _mm512_mask_storeu_epi16(out + 2 * i + 32, 0x55555555, high);
    }
    for (; i < n; i++)
        out[2 * i] = from[i];
}
#endif

void TREK_ISA_NAME(trek_lane_store)(trek_lane lane, char *to, int64_t stride, const void *row, int64_t n)
{
    if (stride == (int)lane) {
        memcpy(to, row, (size_t)(n * stride));
        return;
    }
    const float *floats = row;
#if defined(__AVX512F__)
    if (lane == TREK_LANE_4 && stride == 8) {
        store_every_second_4(to, row, n);
        return;
    }
    if (lane == TREK_LANE_2 && stride == 4) {
        store_every_second_2(to, row, n);
        return;
    }
#endif
    switch (lane) {
    case TREK_LANE_1: STRIDED_STORE(uint8_t, ((const uint8_t *)row)[i]); break;
    case TREK_LANE_2: STRIDED_STORE(uint16_t, ((const uint16_t *)row)[i]); break;
    case TREK_LANE_4: STRIDED_STORE(uint32_t, ((const uint32_t *)row)[i]); break;
    case TREK_LANE_8: STRIDED_STORE(uint64_t, ((const uint64_t *)row)[i]); break;
    case TREK_LANE_BF16:
        if (stride == 2)
            trek_bf16_from_f32_row((uint16_t *)to, floats, n);
        else
            STRIDED_STORE(uint16_t, trek_bf16_from_f32(floats[i]));
        break;
    case TREK_LANE_F16:
        if (stride == 2)
            trek_f16_from_f32_row((uint16_t *)to, floats, n);
        else
            store_strided_f16(to, stride, floats, n);
        break;
    }
}

void TREK_ISA_NAME(trek_row_rest_16)(trek_row_fn row, uint16_t *to, const void *const *from, int n_in, int64_t n,
                                     const trek_attrs *attrs)
{
    uint16_t inputs[TREK_MAP_INPUTS][TREK_ROW_VECTOR] = { { 0 } }, result[TREK_ROW_VECTOR];
    if (n == 0)
        return;
    for (int k = 0; k < n_in; k++)
        memcpy(inputs[k], from[k], (size_t)n * sizeof *to);
    row(result, (const void *[]){ inputs[0], inputs[1], inputs[2] }, TREK_ROW_VECTOR, attrs);
    memcpy(to, result, (size_t)n * sizeof *to);
}

static int64_t magnitude(int64_t x) { return x < 0 ? -x : x; }

static void swap_dims(walk *w, int d, int e)
{
    int64_t size = w->sizes[d];
    w->sizes[d] = w->sizes[e];
    w->sizes[e] = size;
    for (int k = 0; k < w->operands; k++) {
        int64_t stride = w->strides[k][d];
        w->strides[k][d] = w->strides[k][e];
        w->strides[k][e] = stride;
    }
}

/* Drops sizes of 1, orders dimensions by the output's memory, and merges adjacent dimensions. */
static void merge_dims(walk *w, bool sort)
{
    for (int d = 1; sort && d < w->ndim; d++)
        for (int e = d; e > 0 && magnitude(w->strides[0][e]) > magnitude(w->strides[0][e - 1]); e--)
            swap_dims(w, e, e - 1);
    int last = -1;
    for (int d = 0; d < w->ndim; d++) {
        int64_t size = w->sizes[d];
        if (size == 1)
            continue;
        bool merge = last >= 0;
        for (int k = 0; merge && k < w->operands; k++)
            merge = w->strides[k][last] == w->strides[k][d] * size;
        if (merge)
            w->sizes[last] *= size;
        else
            w->sizes[++last] = size; /* may be dimension d itself */
        for (int k = 0; k < w->operands; k++)
            w->strides[k][last] = w->strides[k][d];
    }
    if (last < 0) {
        w->sizes[++last] = 1;
        for (int k = 0; k < w->operands; k++)
            w->strides[k][last] = 0;
    }
    w->ndim = last + 1;
}

/* Decides how rows and blocks are processed, when sizes and strides are known. */
static void settle(walk *w, bool sort)
{
    merge_dims(w, sort);
    w->by_rows = w->ndim == 1 || w->sizes[w->ndim - 1] >= SHORT_ROW;
    for (int k = 0; k < w->operands; k++) {
        bool flat = true, same = true; /* flat: contiguous through all dimensions, not only along a row */
        for (int d = w->ndim - 2; d >= 0; d--)
            flat = flat && w->strides[k][d] == w->strides[k][d + 1] * w->sizes[d + 1], same = same && w->strides[k][d] == 0;
        w->direct[k] = w->strides[k][w->ndim - 1] == (int)w->lanes[k] && (w->by_rows || flat);
        w->repeats[k] = same && !w->by_rows;
    }
}

static void begin_walk(walk *w, const trek_op_call *call, const trek_map *map)
{
    const trek_tensor *out = call->outputs[0];
    w->map = map;
    w->attrs = &call->attrs;
    w->operands = map->n_in + 1;
    w->ndim = out->ndim;
    for (int d = 0; d < out->ndim; d++)
        w->sizes[d] = out->sizes[d];
    for (int k = 0; k < w->operands; k++) {
        const trek_tensor *t = k == 0 ? out : call->inputs[k - 1];
        w->lanes[k] = k == 0 ? map->out : map->in[k - 1];
        w->data[k] = t->data;
        int bytes = trek_lane_bytes(w->lanes[k]), lead = out->ndim - t->ndim;
        for (int d = 0; d < out->ndim; d++)
            w->strides[k][d] = d < lead || t->sizes[d - lead] == 1 ? 0 : t->strides[d - lead] * bytes;
    }
    settle(w, !out->contiguous);
}

/* Returns where an operand's element with these coordinates is. */
static char *locate(const walk *w, int operand, const int64_t *at)
{
    char *data = w->data[operand];
    for (int d = 0; d < w->ndim; d++)
        data += at[d] * w->strides[operand][d];
    return data;
}

static void advance(const walk *w, int64_t *at, int64_t n)
{
    int d = w->ndim - 1;
    at[d] += n;
    while (d > 0 && at[d] >= w->sizes[d]) {
        at[d - 1] += at[d] / w->sizes[d];
        at[d] %= w->sizes[d];
        d--;
    }
}

/* Moves n elements, beginning at `at`, between memory and the operand's buffer, row by row. */
static void transfer(const walk *w, int operand, const int64_t *at, char *buffer, int64_t n, bool store)
{
    int64_t place[TREK_MAX_DIMS], inner = w->sizes[w->ndim - 1], stride = w->strides[operand][w->ndim - 1];
    int bytes = trek_lane_row_bytes(w->lanes[operand]);
    memcpy(place, at, (size_t)w->ndim * sizeof *place);
    while (n > 0) {
        int64_t run = inner - place[w->ndim - 1];
        run = run < n ? run : n;
        char *data = locate(w, operand, place);
        if (store)
            TREK_ISA_NAME(trek_lane_store)(w->lanes[operand], data, stride, buffer, run);
        else
            TREK_ISA_NAME(trek_lane_load)(w->lanes[operand], buffer, data, stride, run);
        buffer += run * bytes;
        n -= run;
        advance(w, place, run);
    }
}

/* Rows of `bytes` each. The two moves of a short row overlap, so that no loop over its length is needed. */
#define COPY_ROWS(...)                                                                                 \
    for (int64_t row = 0; row < rows; row++, to += to_row, from += from_row) {                         \
        __VA_ARGS__                                                                                    \
    }
#define COPY_ENDS(size) COPY_ROWS(memcpy(to, from, size); memcpy(to + bytes - (size), from + bytes - (size), size);)
static void copy_rows(char *restrict to, int64_t to_row, const char *restrict from, int64_t from_row, int64_t rows, int64_t bytes)
{
    if (bytes > 256)
        COPY_ROWS(memcpy(to, from, (size_t)bytes);)
    else if (bytes > 64)
        COPY_ROWS(for (int64_t at = 0; at + 64 < bytes; at += 64) memcpy(to + at, from + at, 64);
                  memcpy(to + bytes - 64, from + bytes - 64, 64);)
    else if (bytes >= 32)
        COPY_ENDS(32)
    else if (bytes >= 16)
        COPY_ENDS(16)
    else if (bytes >= 8)
        COPY_ENDS(8)
    else if (bytes >= 4)
        COPY_ENDS(4)
    else if (bytes >= 2)
        COPY_ENDS(2)
    else
        COPY_ROWS(*to = *from;)
}

/* Copies rows that are contiguous on both sides, as bits. */
static void copy_part(const walk *w, int64_t begin, int64_t end)
{
    int64_t at[TREK_MAX_DIMS] = { 0 }, last = w->ndim - 1, inner = w->sizes[last], bytes = trek_lane_bytes(w->lanes[0]);
    advance(w, at, begin);
    for (int64_t n; begin < end; begin += n, advance(w, at, n)) {
        char *to = locate(w, 0, at), *from = locate(w, 1, at);
        int64_t rows = at[last] > 0 || end - begin < inner ? 0 : (end - begin) / inner; /* whole rows */
        int64_t above = last > 0 ? w->sizes[last - 1] - at[last - 1] : 1;
        rows = rows < above ? rows : above;
        n = rows > 0 ? rows * inner : end - begin < inner - at[last] ? end - begin : inner - at[last];
        if (to == from) /* in place */
            continue;
        copy_rows(to, last > 0 ? w->strides[0][last - 1] : 0, from, last > 0 ? w->strides[1][last - 1] : 0, rows > 0 ? rows : 1,
                  rows > 0 ? inner * bytes : n * bytes);
    }
}

/* Moves rows from where they are to where they are needed; through a buffer if there are gaps on both sides. */
static void move_part(const walk *w, int64_t begin, int64_t end)
{
    _Alignas(64) char buffer[BLOCK * 8];
    int64_t at[TREK_MAX_DIMS] = { 0 }, last = w->ndim - 1, inner = w->sizes[last];
    const bool through = !w->direct[0] && !w->direct[1];
    advance(w, at, begin);
    for (int64_t n; begin < end; begin += n, advance(w, at, n)) {
        n = end - begin < inner - at[last] ? end - begin : inner - at[last];
        n = through && n > BLOCK ? BLOCK : n;
        char *to = locate(w, 0, at), *from = locate(w, 1, at);
        if (w->direct[0] && to != from)
            TREK_ISA_NAME(trek_lane_load)(w->lanes[1], to, from, w->strides[1][last], n);
        if (through) {
            TREK_ISA_NAME(trek_lane_load)(w->lanes[1], buffer, from, w->strides[1][last], n);
            from = buffer;
        }
        if (!w->direct[0])
            TREK_ISA_NAME(trek_lane_store)(w->lanes[0], to, w->strides[0][last], from, n);
    }
}

/* Returns the function for inputs as they are in memory, if there is one: of which the last one is one element for the whole row,
 * or of which each is every second element. */
static trek_row_fn row_without_buffers(const walk *w)
{
    const int last = w->operands - 1, inner = w->ndim - 1;
    bool one = w->map->one != NULL && w->strides[last][inner] == 0, pairs = w->map->pairs != NULL;
    for (int k = 1; k <= last; k++) {
        one = one && (k == last || w->direct[k]);
        pairs = pairs && w->strides[k][inner] == 2 * (int64_t)w->lanes[k];
    }
    return !w->by_rows ? NULL : one ? w->map->one : pairs ? w->map->pairs : NULL;
}

/* Asks for the memory of a later block, of which all lines will be needed. */
static void fetch_ahead(const char *from, int64_t bytes)
{
    for (int64_t at = 0; at < bytes; at += LINE)
        __builtin_prefetch(from + AHEAD + at);
}

/* Returns how many elements of a row go through the buffers at once. Where several inputs have gaps, blocks are short: the CPU
 * then fetches from all of them at the same time. With long blocks it fetches from one after the other, which took twice as long.
 */
static int64_t row_block(const walk *w)
{
    int apart = 0;
    for (int k = 1; k < w->operands; k++) {
        int64_t stride = w->strides[k][w->ndim - 1];
        apart += stride != 0 && stride != trek_lane_bytes(w->lanes[k]);
    }
    return apart > 1 ? BLOCK_OF_SEVERAL : BLOCK;
}

static void walk_part(void *arg, int64_t begin, int64_t end)
{
    const walk *w = arg;
    int bytes = trek_lane_bytes(w->lanes[0]);
    if (w->map->moves && w->strides[0][w->ndim - 1] == bytes && w->strides[1][w->ndim - 1] == bytes) {
        copy_part(w, begin, end);
        return;
    }
    if (w->map->moves && w->by_rows) {
        move_part(w, begin, end);
        return;
    }
    const trek_row_fn as_they_are = row_without_buffers(w), row = as_they_are ? as_they_are : w->map->row;
    _Alignas(64) char buffers[OPERANDS][BLOCK * 8];
    const char *filled[OPERANDS] = { NULL }; /* the element with which a whole buffer is filled */
    int64_t at[TREK_MAX_DIMS] = { 0 }, inner = w->sizes[w->ndim - 1];
    int64_t block = w->by_rows ? row_block(w) : BLOCK / inner * inner;
    bool buffered = !w->direct[0];
    for (int k = 1; k < w->operands && !as_they_are; k++)
        buffered = buffered || !w->direct[k];
    advance(w, at, begin);
    for (int64_t n; begin < end; begin += n, advance(w, at, n)) {
        n = end - begin;
        if (w->by_rows && n > inner - at[w->ndim - 1])
            n = inner - at[w->ndim - 1];
        if (buffered && n > block)
            n = w->by_rows || at[w->ndim - 1] == 0 ? block : inner - at[w->ndim - 1]; /* short rows: whole rows */
        const void *in[TREK_MAP_INPUTS];
        for (int k = 1; k < w->operands; k++) {
            if (w->direct[k] || as_they_are) {
                in[k - 1] = locate(w, k, at);
                continue;
            }
            in[k - 1] = buffers[k];
            if (w->by_rows && w->strides[k][w->ndim - 1] == 0) { /* one value along the row: kept while it does not change */
                const char *element = locate(w, k, at);
                if (element != filled[k])
                    TREK_ISA_NAME(trek_lane_load)(w->lanes[k], buffers[k], element, 0, inner < BLOCK ? inner : BLOCK);
                filled[k] = element;
            } else if (w->repeats[k] && at[w->ndim - 1] == 0) {
                if (!filled[k])
                    transfer(w, k, at, buffers[k], block, false);
                filled[k] = buffers[k];
            } else {
                filled[k] = NULL;
                if (block == BLOCK_OF_SEVERAL && llabs(w->strides[k][w->ndim - 1]) < LINE)
                    fetch_ahead(locate(w, k, at), n * w->strides[k][w->ndim - 1]);
                transfer(w, k, at, buffers[k], n, false);
            }
        }
        row(w->direct[0] ? locate(w, 0, at) : buffers[0], in, n, w->attrs);
        if (!w->direct[0])
            transfer(w, 0, at, buffers[0], n, true);
    }
}

/* Returns whether t, contiguous, repeats over `out`: its sizes are the last sizes of out. */
static bool is_suffix(const trek_tensor *t, const trek_tensor *out)
{
    int lead = 0;
    while (lead < t->ndim && t->sizes[lead] == 1)
        lead++;
    for (int d = lead; d < t->ndim; d++)
        if (t->sizes[d] != out->sizes[out->ndim - t->ndim + d])
            return false;
    return t->contiguous;
}

/* For a small contiguous operand and one that repeats (a bias, a number): rows without a walk. */
static bool map_repeated(const trek_op_call *call, const trek_map *map)
{
    const trek_tensor *out = call->outputs[0];
    if (map->n_in != 2 || !out->contiguous || out->numel > map->grain || map->out >= TREK_LANE_BF16 ||
        map->in[0] >= TREK_LANE_BF16)
        return false;
    int whole = call->inputs[0]->contiguous && call->inputs[0]->numel == out->numel ? 0 : 1, other = 1 - whole;
    const trek_tensor *x = call->inputs[whole], *y = call->inputs[other];
    if (!x->contiguous || x->numel != out->numel || !is_suffix(y, out))
        return false;
    int64_t n = y->numel, x_bytes = map->in[whole], out_bytes = map->out;
    _Alignas(64) char repeated[BLOCK * 8];
    const void *in[TREK_MAP_INPUTS];
    in[other] = y->data;
    if (n == 1) {
        n = out->numel < BLOCK ? out->numel : BLOCK;
        TREK_ISA_NAME(trek_lane_load)(map->in[other], repeated, y->data, 0, n);
        in[other] = repeated;
    } else if (n < 4) {
        return false;
    }
    for (int64_t at = 0; at < out->numel; at += n) {
        in[whole] = x->data + at * x_bytes;
        map->row(out->data + at * out_bytes, in, out->numel - at < n ? out->numel - at : n, &call->attrs);
    }
    return true;
}

#define BITS(width)                                                                                    \
    static void bits_##width(void *to, const void *const *from, int64_t n, const trek_attrs *attrs)    \
    {                                                                                                  \
        (void)attrs;                                                                                   \
        memcpy(to, from[0], (size_t)n * width);                                                        \
    }
BITS(1) BITS(2) BITS(4) BITS(8)

/* Sets dimensions along which all inputs repeat to 1. Returns how many elements are left. */
static int64_t without_repeats(const walk *w, walk *once)
{
    int64_t numel = 1;
    *once = *w;
    for (int d = 0; d < w->ndim; d++) {
        bool repeats = true;
        for (int k = 1; k < w->operands; k++)
            repeats = repeats && w->strides[k][d] == 0;
        once->sizes[d] = repeats ? 1 : w->sizes[d];
        numel *= once->sizes[d];
    }
    return numel;
}

/* If all inputs repeat, computes the `left` different elements, in the order of `once`, into separate memory and
 * copies them from there. */
static trek_status map_expanded(const walk *w, walk *once, int64_t numel, int64_t left)
{
    static const trek_row_fn rows[] = { [1] = bits_1, [2] = bits_2, [4] = bits_4, [8] = bits_8 };
    int bytes = trek_lane_bytes(w->map->out);
    const trek_map copy = { rows[bytes], TREK_GRAIN_CHEAP, 1, (trek_lane)bytes, { (trek_lane)bytes }, .moves = true };
    walk copies = *w;
    _Alignas(64) char few[BLOCK];
    char *results = left * bytes <= BLOCK ? few : trek_block_alloc((size_t)left * (size_t)bytes);
    if (!results)
        return TREK_ERR_MEMORY;
    int64_t stride = bytes;
    for (int d = w->ndim - 1; d >= 0; d--) {
        once->strides[0][d] = stride;
        copies.strides[1][d] = once->sizes[d] == w->sizes[d] ? stride : 0;
        stride *= once->sizes[d];
    }
    once->data[0] = copies.data[1] = results;
    settle(once, true);
    trek_parallel(left, w->map->grain, walk_part, once);
    copies.map = &copy, copies.operands = 2, copies.lanes[0] = copies.lanes[1] = (trek_lane)bytes;
    settle(&copies, false);
    trek_parallel(numel, TREK_GRAIN_CHEAP, walk_part, &copies);
    if (results != few)
        trek_block_free(results);
    return TREK_OK;
}

trek_status TREK_ISA_NAME(trek_map_any)(const trek_op_call *call, const trek_map *map)
{
    int64_t numel = call->outputs[0]->numel;
    if (numel == 0 || map_repeated(call, map))
        return TREK_OK;
    walk w;
    begin_walk(&w, call, map);
    walk once;
    int64_t left = numel < REPEATED || map->moves ? numel : without_repeats(&w, &once);
    if (left <= numel / 4)
        return map_expanded(&w, &once, numel, left);
    trek_parallel(numel, map->grain, walk_part, &w);
    return TREK_OK;
}

trek_status TREK_ISA_NAME(trek_map_call)(const trek_op_call *call, trek_row_fn row, int grain, int n_in, uint32_t lanes)
{
    trek_map map = { .row = row, .grain = grain, .n_in = n_in, .out = (trek_lane)(lanes & 255) };
    for (int k = 0; k < TREK_MAP_INPUTS; k++)
        map.in[k] = (trek_lane)(lanes >> (8 * (k + 1)) & 255);
    return trek_map_run(call, &map);
}
