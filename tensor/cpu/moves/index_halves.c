/* SPDX-License-Identifier: Apache-2.0 */
/* Sums and products of 16-bit elements by an index: in f32, in the order of the index, rounded once. */
#include "tensor/cpu/elementwise/elementwise.h"
#include "tensor/cpu/moves/index.h"

#define RUN 512         /* elements that are read together */
#define WORKED_ON 131072 /* results in f32, of many columns at once: what half a second-level cache holds */
#define SOME_COLUMNS 16 /* fewer are processed one by one */

static void widen_row(bool bf16, float *to, const uint16_t *from, int64_t n)
{
    (bf16 ? trek_f32_from_bf16_row : trek_f32_from_f16_row)(to, from, n);
}
static void round_row(bool bf16, uint16_t *to, const float *from, int64_t n)
{
    (bf16 ? trek_bf16_from_f32_row : trek_f16_from_f32_row)(to, from, n);
}

/* --- an index of its own for each element -------------------------------------------------------- */

/* n positions along the dimension, with `columns` elements each; the results of each position in f32 are adjacent. */
typedef struct half_line {
    const trek_lookup *l;
    uint16_t *to;
    const uint16_t *from;
    const char *index;
    int64_t n, columns;
    float *results;
} half_line;

/* Processes count elements, at least one: the index of each among the results and in the line; those of the source
 * are `step` apart. */
typedef void (*half_step)(const half_line *h, const int64_t *result, const int64_t *place, const uint16_t *from, int64_t step,
                          int64_t count);

static void fetch(const half_line *h, const int64_t *result, const int64_t *place, const uint16_t *from, int64_t step,
                  int64_t count)
{
    (void)from, (void)step;
    uint16_t narrow[RUN];
    float wide[RUN];
    narrow[0] = h->to[place[0]];
    for (int64_t i = 1; i < count; i++)
        narrow[i] = h->to[place[i]];
    widen_row(h->l->bf16, wide, narrow, count);
    for (int64_t i = 0; i < count; i++)
        h->results[result[i]] = wide[i];
}

static void combine(const half_line *h, const int64_t *result, const int64_t *place, const uint16_t *from, int64_t step,
                    int64_t count)
{
    (void)place;
    uint16_t narrow[RUN];
    float wide[RUN];
    narrow[0] = from[0];
    for (int64_t i = 1; step != 1 && i < count; i++)
        narrow[i] = from[i * step];
    widen_row(h->l->bf16, wide, step == 1 ? from : narrow, count);
    if (h->l->product)
        for (int64_t i = 0; i < count; i++)
            h->results[result[i]] *= wide[i];
    else
        for (int64_t i = 0; i < count; i++)
            h->results[result[i]] += wide[i];
}

static void put_back(const half_line *h, const int64_t *result, const int64_t *place, const uint16_t *from, int64_t step,
                     int64_t count)
{
    (void)from, (void)step;
    uint16_t narrow[RUN];
    float wide[RUN];
    wide[0] = h->results[result[0]];
    for (int64_t i = 1; i < count; i++)
        wide[i] = h->results[result[i]];
    round_row(h->l->bf16, narrow, wide, count);
    for (int64_t i = 0; i < count; i++)
        h->to[place[i]] = narrow[i];
}

/* Processes one column along the dimension. */
static void along(const half_line *h, half_step step)
{
    const trek_lookup *l = h->l;
    const int64_t a_dim = l->indexed.dim, b_dim = l->other.dim;
    const bool plain = l->index_dtype == TREK_I64 && l->index.dim == 1;
    int64_t result[RUN], place[RUN];
    for (int64_t first = 0; first < h->n; first += RUN) {
        const int64_t count = h->n - first < RUN ? h->n - first : RUN;
        const int64_t *results = plain ? (const int64_t *)(const void *)h->index + first : result;
        for (int64_t i = 0; results == result && i < count; i++)
            result[i] = trek_index_at(h->index, (first + i) * l->index.dim, l->index_dtype);
        for (int64_t i = 0; a_dim != 1 && i < count; i++)
            place[i] = results[i] * a_dim;
        step(h, results, a_dim == 1 ? results : place, h->from + first * b_dim, b_dim, count);
    }
}

/* Processes row by row. */
static void across(const half_line *h, half_step step)
{
    const trek_lookup *l = h->l;
    int64_t result[RUN], place[RUN];
    for (int64_t i = 0; i < h->n; i++)
        for (int64_t first = 0; first < h->columns; first += RUN) {
            const int64_t count = h->columns - first < RUN ? h->columns - first : RUN;
            for (int64_t k = 0; k < count; k++) {
                int64_t at = trek_index_at(h->index, i * l->index.dim + (first + k) * l->index.last, l->index_dtype);
                result[k] = at * h->columns + first + k;
                place[k] = at * l->indexed.dim + (first + k) * l->indexed.last;
            }
            step(h, result, place, h->from + i * l->other.dim + first * l->other.last, l->other.last, count);
        }
}

static void add_row_across(const half_line *h, int64_t row, int64_t first, const float *wide, int64_t count)
{
    const int64_t *at = (const int64_t *)(const void *)h->index + row * h->l->index.dim + first, columns = h->columns;
    float *results = h->results + first;
    for (int64_t k = 0; k < count; k++)
        results[at[k] * columns + k] += wide[k];
}

/* Computes only sums, if index and source are contiguous in each row: `combine` across without tables of positions. */
static void add_across(const half_line *h)
{
    const trek_lookup *l = h->l;
    float wide[RUN];
    /* rows of the source that lie one after the other are widened together */
    const int64_t together = l->other.dim == h->columns && h->columns < RUN ? RUN / h->columns : 1;
    for (int64_t i = 0; i < h->n; i += together) {
        const int64_t rows = h->n - i < together ? h->n - i : together;
        for (int64_t first = 0; first < h->columns; first += RUN) {
            const int64_t count = h->columns - first < RUN ? h->columns - first : RUN;
            widen_row(l->bf16, wide, h->from + i * l->other.dim + first, rows * count);
            for (int64_t r = 0; r < rows; r++)
                add_row_across(h, i + r, first, wide + r * count, count);
        }
    }
}

/* Converts whole rows of results at the beginning and at the end, which is done if positions occur often enough. */
static void whole_rows(const half_line *h, bool back)
{
    const trek_lookup *l = h->l;
    for (int64_t p = 0; p < (h->columns == 1 ? 1 : l->bound); p++) {
        int64_t n = h->columns == 1 ? l->bound : h->columns;
        if (back)
            round_row(l->bf16, h->to + p * l->indexed.dim, h->results + p * n, n);
        else
            widen_row(l->bf16, h->results + p * n, h->to + p * l->indexed.dim, n);
    }
}

static void run_part(const half_line *h)
{
    void (*const walk)(const half_line *h, half_step step) = h->columns == 1 ? along : across;
    const bool rows = h->l->bound <= 2 * h->n && (h->columns == 1 ? h->l->indexed.dim : h->l->indexed.last) == 1;
    if (rows)
        whole_rows(h, false);
    else
        walk(h, fetch);
    const bool side_by_side = h->l->index_dtype == TREK_I64 && h->l->index.last == 1 && h->l->other.last == 1;
    if (h->columns > 1 && side_by_side && !h->l->product)
        add_across(h);
    else
        walk(h, combine);
    if (rows)
        whole_rows(h, true);
    else
        walk(h, put_back);
}

/* Returns the number of columns whose results are processed together, and the memory that they take. */
static int64_t columns_at_once(const trek_lookup *l)
{
    int64_t most = WORKED_ON / l->bound > SOME_COLUMNS ? WORKED_ON / l->bound / SOME_COLUMNS * SOME_COLUMNS : SOME_COLUMNS;
    if (l->columns < SOME_COLUMNS)
        return l->columns * l->bound <= WORKED_ON && l->index.last == 1 ? l->columns : 1;
    return l->columns < most ? l->columns : most;
}
int64_t TREK_ISA_NAME(trek_halves_room)(const trek_lookup *l) { return l->bound * columns_at_once(l); }

void TREK_ISA_NAME(trek_halves_line)(const trek_lookup *l, char *indexed, char *other, const char *index, int64_t n,
                                     int64_t columns)
{
    int64_t width = columns_at_once(l);
    for (int64_t j = 0; j < columns; j += width) {
        const half_line part = { l, (uint16_t *)(void *)indexed + j * l->indexed.last,
                                 (const uint16_t *)(const void *)other + j * l->other.last,
                                 index + j * l->index.last * trek_item_size[l->index_dtype], n,
                                 columns - j < width ? columns - j : width, l->results };
        run_part(&part);
    }
}

/* --- one index for all rows ------------------------------------------------------------------------- */

/* Adds elements to a position's row; all are contiguous. */
static void add_row(const trek_lookup *l, uint16_t *to, const uint16_t *from, const int64_t *entries, int64_t count, int64_t n)
{
    float sum[RUN], wide[RUN];
    widen_row(l->bf16, sum, to, n);
    for (int64_t k = 0; k < count; k++) {
        widen_row(l->bf16, wide, from + entries[k] * l->entry, n);
        for (int64_t j = 0; j < n; j++)
            sum[j] += wide[j];
    }
    round_row(l->bf16, to, sum, n);
}

/* index: where the entries of n positions begin. */
static void add_places(const trek_lookup *l, char *indexed, char *other, const char *index, int64_t n, int64_t columns)
{
    const int64_t *start = (const int64_t *)(const void *)index;
    uint16_t *row = (uint16_t *)(void *)indexed + (start - (const int64_t *)(const void *)l->index.data) * l->indexed.dim;
    const uint16_t *from = (const uint16_t *)(const void *)other;
    for (int64_t p = 0; p < n; p++, row += l->indexed.dim) {
        const int64_t *entries = l->order + start[p], count = start[p + 1] - start[p];
        for (int64_t j = 0; count > 0 && j < columns; j += RUN)
            add_row(l, row + j, from + j, entries, count, columns - j < RUN ? columns - j : RUN);
    }
}

bool TREK_ISA_NAME(trek_halves_are_rows)(const trek_lookup *l, int64_t columns)
{
    return columns >= SOME_COLUMNS && l->indexed.last == 1 && l->other.last == 1;
}

/* Sorts the index's entries by position (counting sort); those of a position keep their order. start has bound + 2
 * elements. */
static void sort_entries(const trek_lookup *l, int64_t n, int64_t *start, int64_t *order)
{
    memset(start, 0, (size_t)(l->bound + 2) * sizeof *start);
    for (int64_t i = 0; i < n; i++)
        start[trek_index_at(l->index.data, i * l->index.dim, l->index_dtype) + 2]++;
    for (int64_t place = 0; place < l->bound; place++)
        start[place + 2] += start[place + 1];
    for (int64_t i = 0; i < n; i++)
        order[start[trek_index_at(l->index.data, i * l->index.dim, l->index_dtype) + 1]++] = i;
}

int64_t *TREK_ISA_NAME(trek_halves_by_place)(trek_lookup *l, int64_t n)
{
    int64_t *start = trek_block_alloc((size_t)(l->bound + 2 + n) * sizeof *start);
    if (!start)
        return NULL;
    sort_entries(l, n, start, start + l->bound + 2);
    l->order = start + l->bound + 2;
    l->entry = l->other.dim;
    l->other.dim = 0;
    l->index = (trek_operand){ .data = (char *)start, .dim = 1 };
    l->index_dtype = TREK_I64;
    l->line = add_places;
    return start;
}
