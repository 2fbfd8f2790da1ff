/* SPDX-License-Identifier: Apache-2.0 */
/* Gradients of weights that are added to sums (tensor/binned.h) as they are computed, a tile at a time, which stays in the
 * cache. Elements have the same bits however many terms are added together, and if they are only computed. */
#include "tensor/cpu/kernels.h"

#include <limits.h>
#include <math.h>
#include <stdatomic.h>

#include "tensor/binned_room.h"
#include "tensor/cpu/optim/binned_here.h"
#include "tensor/cpu/products/gemm.h"
#include "tensor/memory_internal.h"

#define TILE_ROWS TREK_BINNED_TILE_ROWS /* a tile of registers */
#define TILE TREK_BINNED_TILE
#define RESULTS TREK_BINNED_RESULTS
#define PITCH TREK_BINNED_PITCH

/* The weight is computed in tiles of whole blocks: some columns of a block's width, or some of its rows. */
typedef struct products_work {
    const trek_binned *to;       /* NULL: the result is written to `place` */
    float *place;
    bool reads;                  /* then it is what sums of the terms give; otherwise the product of a single term */
    double factor;
    const trek_binned_product *terms;
    int n;
    int64_t rows, columns;       /* of the weight */
    int64_t tile_rows, tile_columns;
    int64_t across, down;        /* tiles side by side, and below each other */
    _Atomic int status;
} products_work;

/* A tile, and room for it. */
typedef struct products_tile {
    int64_t row, column, rows, columns;
    int64_t size;                /* of a result, whole blocks */
    int together;                /* terms whose results are added at once */
    const trek_binned *to;       /* the sums, of which the tile begins with element `first`; */
    int64_t first;
    int64_t pitch;               /* between its rows */
    float *results;              /* [together][size] */
    float *grad;                 /* of one term: [samples][rows + PITCH] */
    float *x;                    /* of each term: [samples][columns + PITCH], in `x_size` elements */
    int64_t x_size;
    double norms[TREK_BINNED_TERMS]; /* with tiles side by side: of each term, the largest norm of a column of x; */
    double bounds[TILE_ROWS];    /* and of the results that are added at once, an upper bound for each row */
} products_tile;

static void copy_columns(float *to, const float *from, int64_t samples, int64_t columns, int64_t stride)
{
    for (int64_t s = 0; s < samples; s++)
        memcpy(to + s * (columns + PITCH), from + s * stride, (size_t)columns * sizeof *to);
}

/* Copies the few columns of grad that most tiles have, and fetches those of the tile below, which lie in other lines of the
 * cache. */
static void copy_rows(float *to, const float *from, int64_t samples, int64_t stride)
{
    for (int64_t s = 0; s < samples; s++) {
        memcpy(to + s * (TILE_ROWS + PITCH), from + s * stride, TILE_ROWS * sizeof *to);
        __builtin_prefetch(from + s * stride + 2 * TILE_ROWS - 1);
    }
}

/* Computes the sums of squares of columns, at most a block of them. */
static void square_columns(const float *x, int64_t samples, int64_t columns, double *squares)
{
    for (int64_t i = 0; i < columns; i++)
        squares[i] = 0;
    for (int64_t s = 0; s < samples; s++, x += columns + PITCH)
        for (int64_t i = 0; i < columns; i++)
            squares[i] += (double)x[i] * (double)x[i];
}

/* NaN is the largest. */
static double larger(double x, double y) { return y > x || y != y ? y : x; }

/* Copies the columns of x that tiles below each other read. Without tiles side by side, rows of x are no multiples of blocks, and
 * are read as they are. */
static void copy_x(const products_work *w, products_tile *t)
{
    double squares[TREK_BINNED_BLOCK];
    for (int k = 0; k < w->n && w->across > 1; k++) {
        float *x = t->x + k * t->x_size;
        copy_columns(x, w->terms[k].x + t->column, w->terms[k].samples, t->columns, w->columns);
        square_columns(x, w->terms[k].samples, t->columns, squares);
        t->norms[k] = 0;
        for (int64_t i = 0; i < t->columns; i++)
            t->norms[k] = larger(t->norms[k], squares[i]);
        t->norms[k] = sqrt(t->norms[k]);
    }
}

/* Bounds a term's results: by the norms of what is multiplied (Cauchy and Schwarz), and a little more for rounding. */
static void bound_rows(products_tile *t, int k, int64_t samples)
{
    double squares[TILE_ROWS];
    square_columns(t->grad, samples, t->rows, squares);
    for (int64_t i = 0; i < t->rows; i++) {
        double bound = sqrt(squares[i]) * t->norms[k] * 1.01;
        t->bounds[i] = larger(t->bounds[i], bound);
    }
}

/* Returns an exponent: the numbers are below 2^(exponent + 1). */
static int exponent_of(double bound)
{
    int exponent;
    if (!(bound < INFINITY))
        return INT_MAX;
    frexp(bound, &exponent);
    return exponent - 1 > -127 ? exponent - 1 : -127;
}

/* Computes a tile of a term. */
static trek_status compute(const products_work *w, int k, const products_tile *t, float *to, int64_t to_row)
{
    const trek_binned_product *term = &w->terms[k];
    bool copies = w->across > 1;
    if (t->rows == TILE_ROWS)
        copy_rows(t->grad, term->grad + t->row, term->samples, w->rows);
    else
        copy_columns(t->grad, term->grad + t->row, term->samples, t->rows, w->rows);
    trek_gemm g = { .m = t->rows, .n = t->columns, .k = term->samples, .a = t->grad, .b = copies ? t->x + k * t->x_size : term->x,
                    .a_dtype = TREK_F32, .b_dtype = TREK_F32, .a_row = 1, .a_col = t->rows + PITCH,
                    .b_row = t->columns + (copies ? PITCH : 0), .b_col = 1, .c = to, .c_dtype = TREK_F32, .c_row = to_row,
                    .c_col = 1, .alone = true };
    return TREK_ISA_NAME(trek_gemm_f32)(&g);
}

/* Adds n results to elements [at, at + count) of the sums, from element `from` of each result on. bound: of a block; < 0: none is
 * known. */
static void add_results(const products_tile *t, int n, int64_t at, int64_t from, int64_t count, double bound)
{
    void *terms[TREK_BINNED_TERMS];
    trek_binned to = { .dtype = TREK_F32, .count = count < t->to->count - at ? count : t->to->count - at,
                       .bins = t->to->bins + at / TREK_BINNED_BLOCK };
    for (int k = 0; k < trek_binned_digits(TREK_F32); k++)
        to.digits[k] = t->to->digits[k] + at;
    for (int k = 0; k < n; k++)
        terms[k] = t->results + k * t->size + from;
    if (bound < 0)
        TREK_ISA_NAME(trek_binned_add_here)(&to, terms, n);
    else
        TREK_ISA_NAME(trek_binned_add_below)(&to, terms, n, exponent_of(bound));
}

/* Adds a tile of all terms. */
static trek_status add_tile(const products_work *w, products_tile *t)
{
    int64_t count = t->rows * t->columns;
    for (int k = 0, n; k < w->n; k += n) {
        for (int64_t i = 0; i < t->rows && w->across > 1; i++)
            t->bounds[i] = 0;
        for (n = 0; n < t->together && k + n < w->n; n++) {
            float *result = t->results + n * t->size;
            trek_status status = compute(w, k + n, t, result, t->columns);
            if (status != TREK_OK)
                return status;
            memset(result + count, 0, (size_t)(t->size - count) * sizeof *result);
            if (w->across > 1)
                bound_rows(t, k + n, w->terms[k + n].samples);
        }
        if (w->across == 1)
            add_results(t, n, t->first, 0, trek_binned_blocks(count) * TREK_BINNED_BLOCK, -1);
        for (int64_t i = 0; i < t->rows && w->across > 1; i++)
            add_results(t, n, t->first + i * t->pitch, i * t->columns, t->columns, t->bounds[i]);
    }
    return TREK_OK;
}

/* Adds a tile of all terms to sums of its own, which stay in the cache, and writes what they give. digits: room for both. */
static trek_status read_tile(const products_work *w, products_tile *t, int64_t *digits)
{
    int32_t bins[RESULTS / TREK_BINNED_BLOCK];
    trek_binned sums = { .dtype = TREK_F32, .count = t->rows * t->columns, .digits = { digits, digits + t->size }, .bins = bins };
    for (int64_t block = 0; block < trek_binned_blocks(sums.count); block++)
        bins[block] = TREK_BINNED_EMPTY;
    t->to = &sums;
    t->first = 0;
    t->pitch = t->columns;
    trek_status status = add_tile(w, t);
    if (status == TREK_OK && w->across == 1)
        TREK_ISA_NAME(trek_binned_read_here)(&sums, w->factor, w->place + t->row * w->columns);
    for (int64_t i = 0; i < t->rows && w->across > 1 && status == TREK_OK; i++) {
        trek_binned row = { .dtype = TREK_F32, .count = t->columns, .bins = bins + i,
                            .digits = { digits + i * t->columns, digits + t->size + i * t->columns } };
        TREK_ISA_NAME(trek_binned_read_here)(&row, w->factor, w->place + (t->row + i) * w->columns + t->column);
    }
    return status;
}

/* Does what the work wants of a tile. */
static trek_status run_tile(const products_work *w, products_tile *t, int64_t *digits)
{
    if (w->reads)
        return read_tile(w, t, digits);
    if (!w->to)
        return compute(w, 0, t, w->place + t->row * w->columns + t->column, w->columns);
    t->to = w->to;
    t->first = t->row * w->columns + t->column;
    t->pitch = w->columns;
    return add_tile(w, t);
}

static void tiles(void *arg, int64_t begin, int64_t end)
{
    products_work *w = arg;
    int64_t samples = 0;
    for (int k = 0; k < w->n; k++)
        samples = w->terms[k].samples > samples ? w->terms[k].samples : samples;
    products_tile t = { .size = trek_binned_blocks(w->tile_rows * w->tile_columns) * TREK_BINNED_BLOCK };
    t.together = t.size < RESULTS / TREK_BINNED_TERMS ? TREK_BINNED_TERMS : t.size < RESULTS ? (int)(RESULTS / t.size) : 1;
    int64_t results = w->to || w->reads ? t.together * t.size : 0, grad = samples * (w->tile_rows + PITCH), column = -1;
    t.x_size = samples * (w->tile_columns + PITCH);
    size_t bytes = w->reads ? (size_t)(2 * t.size) * sizeof(int64_t) : 0;
    int64_t *digits = trek_block_alloc(bytes + (size_t)(results + grad + w->n * t.x_size) * sizeof(float));
    float *room = digits ? (float *)(void *)((char *)digits + bytes) : NULL;
    trek_status status = room ? TREK_OK : TREK_ERR_MEMORY;
    for (int64_t tile = begin; tile < end && status == TREK_OK; tile++) {
        t.row = tile % w->down * w->tile_rows; /* tiles below each other read the same columns of x */
        t.column = tile / w->down * w->tile_columns;
        t.rows = w->rows - t.row < w->tile_rows ? w->rows - t.row : w->tile_rows;
        t.columns = w->columns - t.column < w->tile_columns ? w->columns - t.column : w->tile_columns;
        t.results = room;
        t.grad = room + results;
        t.x = t.grad + grad;
        if (t.column != column)
            copy_x(w, &t);
        column = t.column;
        status = run_tile(w, &t, digits);
    }
    trek_block_free(digits);
    if (status != TREK_OK)
        atomic_store_explicit(&w->status, (int)status, memory_order_relaxed);
}

/* The tiles depend on the size of the weight alone. */
static trek_status run(products_work *w)
{
    int64_t least = trek_binned_band(w->columns), some = TILE / (least * w->columns);
    bool across = w->columns % TREK_BINNED_BLOCK == 0;
    w->tile_columns = across ? TREK_BINNED_BLOCK : w->columns;
    w->tile_rows = across ? TILE_ROWS : least * (some > 1 ? some : 1);
    w->across = w->columns / w->tile_columns;
    w->down = (w->rows + w->tile_rows - 1) / w->tile_rows;
    atomic_init(&w->status, TREK_OK);
    trek_parallel(w->across * w->down, 1, tiles, w);
    return (trek_status)atomic_load_explicit(&w->status, memory_order_relaxed);
}

static trek_status add_products(const trek_binned *to, int64_t rows, int64_t columns, const trek_binned_product *terms, int n)
{
    products_work w = { .to = to, .terms = terms, .n = n, .rows = rows, .columns = columns };
    return run(&w);
}

static trek_status write_product(float *place, int64_t rows, int64_t columns, const trek_binned_product *term)
{
    products_work w = { .place = place, .terms = term, .n = 1, .rows = rows, .columns = columns };
    return run(&w);
}

static trek_status read_products(float *place, int64_t rows, int64_t columns, const trek_binned_product *terms, int n,
                                 double factor)
{
    products_work w = { .place = place, .reads = true, .factor = factor, .terms = terms, .n = n, .rows = rows,
                        .columns = columns };
    return run(&w);
}

void TREK_ISA_NAME(trek_cpu_register_binned_products)(trek_backend *b)
{
    b->binned_add_products = add_products;
    b->binned_write_product = write_product;
    b->binned_read_products = read_products;
}
