/* SPDX-License-Identifier: Apache-2.0 */
/* Products of 16-bit numbers, with the blocking of gemm.h over packed units of four bytes. C is divided into parts.
 * The division does not change what is summed: each element is summed over k in one order. */
#include "tensor/cpu/products/gemm_half.h"

#include <stdatomic.h>

#include "tensor/cpu/vector_math.h"

#define TREK_REAL f32
#include "tensor/cpu/vector.h"

#include "tensor/cpu/products/half_vectors.h"

#include "tensor/cpu/products/gemm_finish.h"

#include "tensor/cpu/products/gemm_half_pack.h"
#include "tensor/cpu/products/gemm_half_tile.h"

#include "tensor/cpu/products/gemm_half_dot.h"
#include "tensor/cpu/products/gemm_half_few.h"

enum {
    BLOCK_UNITS = 768,            /* of a block along k */
    BLOCK_ELEMENTS = 448 * 384,   /* of a packed block of B, for the second-level cache */
    PART_ELEMENTS = 1 << 20,      /* of a part's packed A, and of its sums */
};

/* How one call is carried out. */
typedef struct half_plan {
    const trek_gemm *g;
    bool pairs;                        /* units are pairs of bf16 */
    const tile_fn (*tiles)[TILE_ROWS];
    int64_t depth;                     /* units of a block along k */
    int64_t cols;                      /* of a block of B */
    int64_t part_rows, part_cols;      /* of C */
    int64_t row_parts, col_parts;
    int64_t a_size, b_size, sum_size;  /* elements of a part's workspace */
    atomic_bool failed;
} half_plan;

static int64_t units_of(const half_plan *plan) { return plan->pairs ? (plan->g->k + 1) / 2 : plan->g->k; }

/* -- blocks -- */

/* A part of C and its workspace. */
typedef struct half_part {
    int64_t m0, m1, n0, n1;
    float *a, *b, *sums;   /* sums: [rows][sum_row], if k takes several blocks */
    int64_t sum_row;
} half_part;

/* An operand as packing sees it. */
typedef struct panel_source {
    const char *base;
    trek_dtype dtype;
    int64_t lane, step, lanes;
} panel_source;

/* Packs lanes [lane, lane + lanes), units [first, last). */
static void pack_panel(const half_plan *plan, const panel_source *s, float *to, int64_t lane, int lanes, int fill, int64_t first,
                       int64_t last)
{
    int64_t per = plan->pairs ? 2 : 1, p0 = first * per, k = plan->g->k < last * per ? plan->g->k - p0 : last * per - p0;
    packing c = { .to = to, .to_row = fill, .lanes = lanes, .fill = fill, .readable = s->lanes - lane, .lane = s->lane,
                  .step = s->step, .k = k,
                  .from = element(s->base, s->dtype, lane * s->lane + p0 * s->step) };
    pack_units(s->dtype, plan->pairs, &c);
}

/* Returns how many units are packed for all panels before the next ones: if lanes are adjacent, or nearly, several panels
 * read the same cache lines. */
static int64_t pack_stretch(const panel_source *s, int64_t units)
{
    return s->lane < s->step && units > 32 ? 32 : units;
}

static void pack_block_b(const half_plan *plan, const half_part *part, int64_t j0, int64_t j1, int64_t u0, int64_t units)
{
    const trek_gemm *g = plan->g;
    const panel_source s = { g->b, g->b_dtype, g->b_col, g->b_row, g->n };
    const int64_t stretch = pack_stretch(&s, units);
    for (int64_t u = 0; u < units; u += stretch) {
        for (int64_t col = j0; col < j1; col += TILE_COLS)
            pack_panel(plan, &s, part->b + (col - j0) * units + u * TILE_COLS, col,
                       j1 - col < TILE_COLS ? (int)(j1 - col) : TILE_COLS,
                       TILE_COLS, u0 + u, u0 + (units - u < stretch ? units : u + stretch));
    }
}

/* Returns the height of the panel that begins at a row; heights are as equal as possible. */
static int panel_rows(const half_part *part, int64_t row)
{
    int64_t rows = part->m1 - part->m0, panels = (rows + TILE_ROWS - 1) / TILE_ROWS, whole = rows / panels;
    int64_t tall = rows % panels; /* panels with one row more, which come first */
    return (int)(row - part->m0 < tall * (whole + 1) ? whole + 1 : whole);
}

static panel_source source_a(const trek_gemm *g) { return (panel_source){ g->a, g->a_dtype, g->a_row, g->a_col, g->m }; }

/* Packs all of a part's A if its rows are adjacent; otherwise each panel is packed when it is first needed. */
static void pack_block_a(const half_plan *plan, const half_part *part, int64_t u0, int64_t units)
{
    const panel_source s = source_a(plan->g);
    const int64_t stretch = pack_stretch(&s, units);
    for (int64_t u = 0; u < units; u += stretch) {
        for (int64_t row = part->m0; row < part->m1;) {
            int rows = panel_rows(part, row);
            pack_panel(plan, &s, part->a + (row - part->m0) * units + u * rows, row, rows, rows, u0 + u,
                       u0 + (units - u < stretch ? units : u + stretch));
            row += rows;
        }
    }
}

/* Multiplies all rows of the part by one block of B: columns [j0, j1), units [u0, u0 + units). */
static void half_block(const half_plan *plan, const half_part *part, int64_t j0, int64_t j1, int64_t u0, int64_t units)
{
    const trek_gemm *g = plan->g;
    const bool last = u0 + units >= units_of(plan);
    const panel_source source = source_a(g);
    for (int64_t row = part->m0; row < part->m1;) {
        int rows = panel_rows(part, row);
        float *a = part->a + (row - part->m0) * units;
        if (j0 == part->n0 && source.lane != 1)
            pack_panel(plan, &source, a, row, rows, rows, u0, u0 + units);
        for (int64_t col = j0; col < j1; col += TILE_COLS) {
            int cols = j1 - col < TILE_COLS ? (int)(j1 - col) : TILE_COLS;
            _Alignas(64) float own[TILE_ROWS * TILE_COLS];
            float *sums = part->sums ? part->sums + (row - part->m0) * part->sum_row + (col - part->n0) : own;
            int64_t sum_row = part->sums ? part->sum_row : TILE_COLS;
            tile_call t = { .units = units, .a = a, .b = part->b + (col - j0) * units, .c = sums, .c_row = sum_row,
                            .add = u0 > 0 };
            plan->tiles[cols > W][rows - 1](&t);
            if (last)
                finish(g, row, col, rows, cols, sums, sum_row);
        }
        row += rows;
    }
}

static void run_part(const half_plan *plan, const half_part *part)
{
    int64_t all = units_of(plan), u0 = 0;
    do { /* once even if k is 0 */
        int64_t units = all - u0 < plan->depth ? all - u0 : plan->depth;
        for (int64_t j0 = part->n0; j0 < part->n1; j0 += plan->cols) {
            int64_t j1 = part->n1 - j0 < plan->cols ? part->n1 : j0 + plan->cols;
            pack_block_b(plan, part, j0, j1, u0, units);
            if (j0 == part->n0 && plan->g->a_row == 1)
                pack_block_a(plan, part, u0, units);
            half_block(plan, part, j0, j1, u0, units);
        }
        u0 += units;
    } while (u0 < all);
}

static void run_parts(void *arg, int64_t begin, int64_t end)
{
    half_plan *plan = arg;
    const trek_gemm *g = plan->g;
    float *workspace = trek_block_alloc((size_t)(plan->a_size + plan->b_size + plan->sum_size) * sizeof *workspace);
    if (!workspace) {
        plan->failed = true;
        return;
    }
    for (int64_t i = begin; i < end; i++) {
        half_part part = { .m0 = i / plan->col_parts * plan->part_rows, .n0 = i % plan->col_parts * plan->part_cols };
        part.m1 = g->m - part.m0 < plan->part_rows ? g->m : part.m0 + plan->part_rows;
        part.n1 = g->n - part.n0 < plan->part_cols ? g->n : part.n0 + plan->part_cols;
        part.a = workspace;
        part.b = part.a + plan->a_size;
        part.sums = plan->sum_size ? part.b + plan->b_size : NULL;
        part.sum_row = (plan->part_cols + TILE_COLS - 1) / TILE_COLS * TILE_COLS;
        if (part.m0 < part.m1 && part.n0 < part.n1)
            run_part(plan, &part);
    }
    trek_block_free(workspace);
}

/* -- plans -- */

/* Divides C so that each thread gets a few parts, little is packed twice, and workspaces remain small. */
static void plan_parts(half_plan *plan, int64_t blocks)
{
    const trek_gemm *g = plan->g;
    double work = (double)g->m * (double)g->n * (double)g->k;
    int64_t rows = divide_up(g->m, TILE_ROWS), cols = divide_up(g->n, TILE_COLS);
    int64_t threads = g->alone || work < 4e5 ? 1 : trek_pool_threads(trek_pool_here());
    int64_t wanted = threads == 1 ? 1 : work < 2e5 * (double)threads ? (int64_t)(work / 2e5) : threads;
    if (threads > 1 && work > 5e7 * (double)threads)
        wanted = 2 * threads; /* a thread that is delayed leaves some to others */
    int64_t best_rows = 1, best_cols = 1;
    double best = 1e300;
    for (int64_t by_row = 1; by_row <= wanted; by_row++) {
        int64_t by_col = wanted / by_row, tall = divide_up(rows, by_row), wide = divide_up(cols, by_col);
        double cost = (double)(tall * wide) * TILE_ROWS * TILE_COLS * (double)g->k * 0.04 +
                      (double)g->k * (double)(tall * TILE_ROWS + wide * TILE_COLS) * 0.3;
        if (cost < best)
            best = cost, best_rows = by_row, best_cols = by_col;
    }
    int64_t tall = divide_up(rows, best_rows), wide = divide_up(cols, best_cols);
    int64_t limit = PART_ELEMENTS / TILE_ROWS / (plan->depth > 0 ? plan->depth : 1);
    if (tall > limit)
        tall = divide_up(rows, divide_up(rows, limit));
    limit = PART_ELEMENTS / (tall * TILE_ROWS * TILE_COLS);
    if (blocks > 1 && wide > limit)
        wide = divide_up(cols, divide_up(cols, limit));
    plan->part_rows = tall * TILE_ROWS;
    plan->part_cols = wide * TILE_COLS;
    plan->row_parts = divide_up(g->m, plan->part_rows);
    plan->col_parts = divide_up(g->n, plan->part_cols);
}

static void plan_sizes(half_plan *plan)
{
    const trek_gemm *g = plan->g;
    int64_t units = units_of(plan), blocks = units > BLOCK_UNITS ? divide_up(units, BLOCK_UNITS) : 1;
    plan->depth = divide_up(divide_up(units, blocks), 4) * 4;
    if (blocks == 1)
        plan->depth = units;
    plan->cols = BLOCK_ELEMENTS / (plan->depth > 448 ? plan->depth : 448) / TILE_COLS * TILE_COLS;
    plan_parts(plan, blocks);
    int64_t rows = plan->part_rows < g->m ? plan->part_rows : g->m;
    int64_t cols = divide_up(plan->part_cols < plan->cols ? plan->part_cols : plan->cols, TILE_COLS) * TILE_COLS;
    plan->a_size = divide_up(rows * plan->depth + W, W) * W;
    plan->b_size = cols * plan->depth;
    plan->sum_size = blocks > 1 ? plan->part_rows * plan->part_cols : 0;
}

static trek_status tiled(const trek_gemm *g)
{
    half_plan plan = { .g = g, .tiles = tiles };
    if (g->a_dtype == TREK_BF16 && g->b_dtype == TREK_BF16 && dot_tiles_if_fast()) {
        plan.tiles = dot_tiles_if_fast();
        plan.pairs = true;
    }
    atomic_init(&plan.failed, false);
    plan_sizes(&plan);
    int64_t parts = plan.row_parts * plan.col_parts;
    if (parts == 1 || g->alone)
        run_parts(&plan, 0, parts);
    else
        trek_parallel(parts, 1, run_parts, &plan);
    return plan.failed ? TREK_ERR_MEMORY : TREK_OK;
}

bool TREK_ISA_NAME(trek_gemm_dots)(void) { return dot_tiles_if_fast() != NULL; }

/* Estimates cycles for each element of C: arithmetic on whole vectors, and results that are not contiguous. */
static double cost(const trek_gemm *g)
{
    double vectors = (double)divide_up(g->n, W) * (double)(g->m < 4 ? 4 : g->m) * (double)g->k * 0.6;
    return vectors + (double)g->m * (double)g->n * (g->c_col == 1 ? 0.3 : 4.0);
}

trek_status TREK_ISA_NAME(trek_gemm_half_vectors)(const trek_gemm *g)
{
    if (g->m == 0 || g->n == 0)
        return TREK_OK;
    trek_gemm s = trek_gemm_swapped(g);
    if (few_suits(g) || few_suits(&s))
        return few(few_suits(g) ? g : &s);
    if (sum_suits(g) || sum_suits(&s))
        return sum_rows(sum_suits(g) ? g : &s);
    return tiled(cost(&s) < cost(g) ? &s : g);
}
