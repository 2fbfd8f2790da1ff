/* SPDX-License-Identifier: Apache-2.0 */
/* The product for one real type: TREK_REAL is f32 or f64. Included by gemm.c. */
#include "tensor/cpu/vector.h"

#include "tensor/cpu/products/gemm_tile_template.h"

#include "tensor/cpu/products/gemv_template.h"

/* Columns and depth of a packed block of B, which remains in the second-level cache while the panel of A that is
 * multiplied by it remains in the first. */
#if TREK_VECTOR_BYTES == 64
#define BLOCK_DEPTH (TREK_REAL_BYTES == 4 ? 512 : 256)
#define BLOCK_COLS (TREK_REAL_BYTES == 4 ? 384 : 320)
#else
#define BLOCK_DEPTH 256
#define BLOCK_COLS (TREK_REAL_BYTES == 4 ? 320 : 160)
#endif

/* How one call is carried out; it depends only on sizes and strides. */
typedef struct TREK_R(gemm_plan) {
    const trek_gemm *g;
    bool pack_a, pack_b;
    bool a_once; /* a packed panel of A is multiplied by one block of B only, and its place serves again */
    int64_t depth;                       /* of a block along k */
    int64_t cols;                        /* of a block of B */
    int64_t tile_rows, tile_cols;        /* rows and columns of C that one part computes */
    int64_t row_parts, col_parts;
    int64_t a_size, b_size;              /* elements of a part's workspace */
    T *workspace;
} TREK_R(gemm_plan);

/* Copy between a row-major tile and C of any strides. */
static void TREK_R(scatter)(T *c, int64_t c_row, int64_t c_col, const T *tile, int rows, int cols)
{
    if (c_row == 1)
        for (; rows > 0; rows -= W, c += W, tile += W * TILE_COLS)
            TREK_R(pack_transposed)(c, c_col, rows > W ? W : rows, rows > W ? W : rows, tile, TILE_COLS, cols);
    else
        for (int i = 0; i < rows; i++)
            for (int j = 0; j < cols; j++)
                c[i * c_row + j * c_col] = tile[i * TILE_COLS + j];
}

static void TREK_R(collect)(T *tile, const T *c, int64_t c_row, int64_t c_col, int rows, int cols)
{
    if (c_row == 1) {
        for (; cols > 0; cols -= W, c += W * c_col, tile += W)
            TREK_R(pack_transposed)(tile, TILE_COLS, cols > W ? W : cols, cols > W ? W : cols, c, c_col, rows);
        return;
    }
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < cols; j++)
            tile[i * TILE_COLS + j] = c[i * c_row + j * c_col];
}

/* Computes one tile of C at (row, col): its sum over a block of k, and the epilogue after the last block. */
static void TREK_R(one_tile)(const trek_gemm *g, TREK_R(tile_call) *t, int64_t row, int64_t col, int rows, int cols, bool last)
{
    int64_t place = row * g->c_row + col * g->c_col;
    T *c = (T *)g->c + place, *pre = g->pre ? (T *)g->pre + place : NULL;
    bool finish = last && (g->bias || g->activation || g->pre);
    if (g->c_col == 1) {
        t->c = c;
        t->c_row = g->c_row;
        TREK_R(run_tile)(rows, cols, t);
        if (finish)
            TREK_R(epilogue)(g, row, col, rows, cols, c, g->c_row, pre);
        return;
    }
    T tile[TILE_ROWS * TILE_COLS], tile_pre[TILE_ROWS * TILE_COLS];
    if (t->add)
        TREK_R(collect)(tile, c, g->c_row, g->c_col, rows, cols);
    t->c = tile;
    t->c_row = TILE_COLS;
    TREK_R(run_tile)(rows, cols, t);
    if (finish)
        TREK_R(epilogue)(g, row, col, rows, cols, tile, TILE_COLS, pre ? tile_pre : NULL);
    TREK_R(scatter)(c, g->c_row, g->c_col, tile, rows, cols);
    if (finish && pre)
        TREK_R(scatter)(pre, g->c_row, g->c_col, tile_pre, rows, cols);
}

/* Returns the rows of the panel that begins at `row`; heights are as equal as possible. */
TREK_INLINE int TREK_R(panel_rows)(int64_t row, int64_t m1, int64_t panel, int64_t panels)
{
    return panels == 1 ? (int)(m1 - row) : (int)((m1 - row + panels - panel - 1) / (panels - panel));
}

/* Packs the panel that begins at `row` and the PACKED_AT_ONCE - 1 panels after it. */
static void TREK_R(pack_panels)(const trek_gemm *g, T *to, int64_t row, int64_t m1, int64_t panel, int64_t panels, int64_t p0,
                                int64_t depth)
{
    const T *a = (const T *)g->a + row * g->a_row + p0 * g->a_col;
    T *place[PACKED_AT_ONCE];
    int rows[PACKED_AT_ONCE], count = 0;
    for (; count < PACKED_AT_ONCE && panel + count < panels; row += rows[count++]) {
        rows[count] = TREK_R(panel_rows)(row, m1, panel + count, panels);
        place[count] = count > 0 ? place[count - 1] + rows[count - 1] * depth : to;
    }
    if (g->a_row == 1 && count == PACKED_AT_ONCE)
        TREK_R(pack_side_by_side)((TILE_ROWS + W - 1) / W, place, rows, a, g->a_col, depth);
    else
        for (int q = 0; q < count; a += rows[q++] * g->a_row)
            TREK_R(pack)(place[q], rows[q], rows[q], rows[q], a, g->a_row, g->a_col, depth);
}

/* Packs columns [j0, j1) of B, k in [p0, p0 + depth). */
static void TREK_R(pack_columns)(const trek_gemm *g, T *to, int64_t j0, int64_t j1, int64_t p0, int64_t depth)
{
    const T *b = (const T *)g->b + p0 * g->b_row + j0 * g->b_col;
    int64_t cols = j1 - j0, col = 0;
    if (g->b_col == 1)
        for (; col + PACKED_AT_ONCE * TILE_COLS <= cols; col += PACKED_AT_ONCE * TILE_COLS) {
            T *place[PACKED_AT_ONCE];
            int wide[PACKED_AT_ONCE];
            for (int q = 0; q < PACKED_AT_ONCE; q++)
                wide[q] = TILE_COLS, place[q] = to + (col + q * TILE_COLS) * depth;
            TREK_R(pack_side_by_side)(TILE_VECTORS, place, wide, b + col, g->b_row, depth);
        }
    for (; col < cols; col += TILE_COLS)
        TREK_R(pack)(to + col * depth, TILE_COLS, cols - col < TILE_COLS ? (int)(cols - col) : TILE_COLS, TILE_COLS,
                     b + col * g->b_col, g->b_col, g->b_row, depth);
}

/* Restricts rows [row, row + rows) to what a triangle leaves of columns [.., *j1) and of the block's k: a and b of the
 * tile begin at p0. */
TREK_INLINE void TREK_R(within_triangle)(const trek_gemm *g, int64_t row, int rows, int64_t p0, TREK_R(tile_call) *t,
                                         int64_t *first, int64_t *j1)
{
    int64_t end = row + rows + g->diagonal, begin = row - g->diagonal - p0;
    if (g->triangle == TREK_GEMM_C_LOWER)
        *j1 = end < *j1 ? end : *j1;
    else if (g->triangle == TREK_GEMM_A_LOWER)
        t->k = end - p0 < t->k ? (end > p0 ? end - p0 : 0) : t->k;
    else if (begin > 0)
        *first = begin < t->k ? begin : t->k;
    t->k -= *first;
    t->a += *first * t->a_col;
}

/* Multiplies rows [m0, m1) by one block of B: columns [j0, j1), k in [p0, p0 + depth). */
static void TREK_R(block)(const TREK_R(gemm_plan) *plan, int64_t m0, int64_t m1, int64_t j0, int64_t j1, int64_t p0,
                          int64_t depth, const T *packed_b, T *packed_a, bool a_is_packed)
{
    const trek_gemm *g = plan->g;
    int64_t panels = (m1 - m0 + TILE_ROWS - 1) / TILE_ROWS, row = m0;
    TREK_R(tile_call) t = { .add = g->accumulate || p0 > 0 };
    T *next = packed_a;
    for (int64_t panel = 0; panel < panels; panel++) {
        int rows = TREK_R(panel_rows)(row, m1, panel, panels);
        int64_t first = 0, end = j1; /* of k and of the columns that a triangle leaves */
        t.k = depth;
        t.a = (const T *)g->a + row * g->a_row + p0 * g->a_col;
        t.a_row = g->a_row;
        t.a_col = g->a_col;
        if (plan->pack_a) {
            T *to = plan->a_once && panel % PACKED_AT_ONCE == 0 ? packed_a : next;
            next = to + rows * depth;
            if (!a_is_packed && panel % PACKED_AT_ONCE == 0)
                TREK_R(pack_panels)(g, to, row, m1, panel, panels, p0, depth);
            t.a = to;
            t.a_row = 1;
            t.a_col = rows;
        }
        if (g->triangle)
            TREK_R(within_triangle)(g, row, rows, p0, &t, &first, &end);
        for (int64_t col = j0; col < end; col += TILE_COLS) {
            int cols = j1 - col < TILE_COLS ? (int)(j1 - col) : TILE_COLS;
            if (plan->pack_b) {
                t.b = packed_b + (col - j0) * depth + first * TILE_COLS;
                t.b_row = TILE_COLS;
            } else {
                t.b = (const T *)g->b + (p0 + first) * g->b_row + col;
                t.b_row = g->b_row;
            }
            TREK_R(one_tile)(g, &t, row, col, rows, cols, p0 + depth >= g->k);
        }
        row += rows;
    }
}

/* Computes rows [m0, m1) and columns [n0, n1) of C. */
static void TREK_R(part)(const TREK_R(gemm_plan) *plan, int64_t m0, int64_t m1, int64_t n0, int64_t n1, T *workspace)
{
    const trek_gemm *g = plan->g;
    T *packed_a = workspace, *packed_b = packed_a + plan->a_size;
    int64_t p0 = 0;
    do {
        int64_t depth = g->k - p0 < plan->depth ? g->k - p0 : plan->depth;
        for (int64_t j0 = n0; j0 < n1; j0 += plan->cols) {
            int64_t j1 = n1 - j0 < plan->cols ? n1 : j0 + plan->cols;
            if (plan->pack_b)
                TREK_R(pack_columns)(g, packed_b, j0, j1, p0, depth);
            TREK_R(block)(plan, m0, m1, j0, j1, p0, depth, packed_b, packed_a, j0 > n0);
        }
        p0 += depth;
    } while (p0 < g->k);
}

static void TREK_R(gemm_parts)(void *arg, int64_t begin, int64_t end)
{
    const TREK_R(gemm_plan) *plan = arg;
    const trek_gemm *g = plan->g;
    int64_t size = plan->a_size + plan->b_size;
    for (int64_t part = begin; part < end; part++) {
        int64_t m0 = part / plan->col_parts * plan->tile_rows, n0 = part % plan->col_parts * plan->tile_cols;
        int64_t m1 = g->m - m0 < plan->tile_rows ? g->m : m0 + plan->tile_rows;
        int64_t n1 = g->n - n0 < plan->tile_cols ? g->n : n0 + plan->tile_cols;
        if (m0 < m1 && n0 < n1)
            TREK_R(part)(plan, m0, m1, n0, n1, plan->workspace ? plan->workspace + part * size : NULL);
    }
}

/* Returns whether rows map to few sets of the caches, as at multiples of 1 KiB, or to one set, as at multiples of 4
 * KiB. */
static bool TREK_R(crowded)(int64_t stride, int64_t bytes)
{
    return stride * (int64_t)sizeof(T) % bytes == 0;
}

/* Unpacked B is read in place, which is good if few tiles read it again, or if it fits into the first-level cache. */
static bool TREK_R(packs_b)(const trek_gemm *g)
{
    bool large = g->n * g->k * (int64_t)sizeof(T) > 96 * 1024;
    return g->b_col != 1 ||
        (g->m > 2 * TILE_ROWS && (large || (TREK_R(crowded)(g->b_row, 1024) && g->k > 32)));
}

/* In place, rows are read as a few streams; columns only if all of a panel's fit into the first-level cache. 16-byte
 * vectors gain nothing by it (measured). */
static bool TREK_R(packs_a)(const trek_gemm *g)
{
    bool again = g->n > 3 * TILE_COLS && g->k > 16; /* read by enough tiles */
    bool packed = g->a_row == 1 || TREK_VECTOR_BYTES == 16; /* faster when packed: repeatedly read from the same memory */
    bool crowded = packed ? TREK_R(crowded)(g->a_row == 1 ? g->a_col : g->a_row, 1024) : TREK_R(crowded)(g->a_row, 4096);
    return (g->a_row != 1 && g->a_col != 1) ||
           (again && (g->n > (packed ? 8 : 16) * TILE_COLS || crowded));
}

static int64_t TREK_R(depth_blocks)(const trek_gemm *g) { return g->k > 0 ? (g->k + BLOCK_DEPTH - 1) / BLOCK_DEPTH : 1; }

static void TREK_R(plan_packing)(TREK_R(gemm_plan) *plan)
{
    const trek_gemm *g = plan->g;
    int64_t blocks = TREK_R(depth_blocks)(g);
    plan->depth = blocks == 1 ? g->k : ((g->k + blocks - 1) / blocks + 3) / 4 * 4;
    plan->cols = BLOCK_COLS;
    plan->pack_b = TREK_R(packs_b)(g);
    plan->pack_a = TREK_R(packs_a)(g);
}

/* Estimates the cycles of a product: arithmetic on whole vectors, packing, a transposed C. */
static double TREK_R(gemm_cost)(const trek_gemm *g)
{
    double m = (double)g->m, n = (double)g->n, k = (double)g->k;
    double rows = g->m < 4 ? 4 : m, vectors = (double)((g->n + W - 1) / W);
    double cost = rows * vectors * k * 0.6;
    if (TREK_R(packs_b)(g))
        cost += n * k * (g->b_col == 1 ? 0.1 : g->b_row == 1 ? 0.45 : 2.0);
    if (TREK_R(packs_a)(g))
        cost += m * k * (g->a_row == 1 ? 0.2 : g->a_col == 1 ? 0.5 : 2.0);
    if (g->c_col != 1)
        cost += m * n * (double)(2 * TREK_R(depth_blocks)(g) - !g->accumulate) * (g->c_row == 1 ? 0.8 : 2.0);
    return cost;
}

/* Divides C into parts, about as many as threads, so that little is packed twice. */
static void TREK_R(plan_parts)(TREK_R(gemm_plan) *plan)
{
    const trek_gemm *g = plan->g;
    int64_t rows = (g->m + TILE_ROWS - 1) / TILE_ROWS, cols = (g->n + TILE_COLS - 1) / TILE_COLS;
    double work = (double)g->m * (double)g->n * (double)g->k;
    int64_t threads = work < 4e5 || g->alone ? 1 : trek_pool_threads(trek_pool_here());
    if ((double)threads > work / 2e5)
        threads = (int64_t)(work / 2e5);
    if (threads <= 1) { /* without the divisions below, which cost more than a very small product */
        plan->row_parts = plan->col_parts = 1;
        plan->tile_rows = rows * TILE_ROWS;
        plan->tile_cols = cols * TILE_COLS;
        return;
    }
    int64_t best_rows = 1, best_cols = 1;
    double best = 1e300;
    for (int64_t by_row = 1; by_row <= threads; by_row++) {
        int64_t by_col = threads / by_row;
        int64_t tall = (rows + by_row - 1) / by_row, wide = (cols + by_col - 1) / by_col;
        double cost = (double)(tall * wide) * TILE_ROWS * TILE_COLS * (double)g->k * 0.04 +
                      (double)g->k * (double)(tall * TILE_ROWS + wide * TILE_COLS) * 0.4;
        if (cost < best)
            best = cost, best_rows = by_row, best_cols = by_col;
    }
    int64_t tall = (rows + best_rows - 1) / best_rows, wide = (cols + best_cols - 1) / best_cols;
    plan->row_parts = (rows + tall - 1) / tall;
    plan->col_parts = (cols + wide - 1) / wide;
    plan->tile_rows = tall * TILE_ROWS;
    plan->tile_cols = wide * TILE_COLS;
}

static trek_status TREK_R(gemm_tiled)(const trek_gemm *g)
{
    TREK_R(gemm_plan) plan = { .g = g };
    TREK_R(plan_packing)(&plan);
    TREK_R(plan_parts)(&plan);
    int64_t rows = plan.tile_rows < g->m ? plan.tile_rows : g->m;
    int64_t cols = plan.tile_cols < plan.cols ? plan.tile_cols : plan.cols;
    plan.a_once = cols == plan.tile_cols;
    if (plan.a_once && rows > PACKED_AT_ONCE * TILE_ROWS)
        rows = PACKED_AT_ONCE * TILE_ROWS;
    plan.a_size = plan.pack_a ? (rows * plan.depth + 2 * W) / W * W : 0;
    plan.b_size = plan.pack_b ? (cols + TILE_COLS - 1) / TILE_COLS * TILE_COLS * plan.depth : 0;
    int64_t parts = plan.row_parts * plan.col_parts, size = plan.a_size + plan.b_size;
    if (size > 0 && !(plan.workspace = trek_block_alloc((size_t)(parts * size) * sizeof(T))))
        return TREK_ERR_MEMORY;
    if (parts == 1)
        TREK_R(gemm_parts)(&plan, 0, 1);
    else
        trek_parallel(parts, 1, TREK_R(gemm_parts), &plan);
    trek_block_free(plan.workspace);
    return TREK_OK;
}

/* Applies the epilogue to what a BLAS library has summed. */
static void TREK_R(finish)(const trek_gemm *g, int64_t row, int64_t col, int64_t rows, int64_t cols)
{
    int64_t place = row * g->c_row + col;
    TREK_R(epilogue)(g, row, col, (int)rows, (int)cols, (T *)g->c + place, g->c_row, g->pre ? (T *)g->pre + place : NULL);
}

static trek_status TREK_R(gemm)(const trek_gemm *g)
{
    if (g->m == 0 || g->n == 0)
        return TREK_OK;
    if (g->m == 1 || g->n == 1) {
        trek_status status = TREK_R(gemv)(g);
        if (status != TREK_ERR_UNSUPPORTED)
            return status;
    }
    if (TREK_R(outer_suits)(g))
        return TREK_R(outer)(g);
    if (g->m * g->n * g->k <= 65536 && g->b_col == 1 && g->c_col == 1) {
        TREK_R(gemm_plan) plan; /* small, and nothing to pack: only g and the flags of the plan are read */
        plan.g = g;
        plan.pack_a = plan.pack_b = plan.a_once = false;
        TREK_R(block)(&plan, 0, g->m, 0, g->n, 0, g->k, NULL, NULL, false);
        return TREK_OK;
    }
    trek_gemm s = trek_gemm_swapped(g);
    bool finish = g->bias || g->activation || g->pre;
    if (trek_blas_gemm(g->c_col == 1 ? g : &s, sizeof(T) == 4 ? TREK_F32 : TREK_F64, finish ? TREK_R(finish) : NULL))
        return TREK_OK;
    if (TREK_R(few_suits)(g) || TREK_R(few_suits)(&s))
        return TREK_R(few)(TREK_R(few_suits)(g) ? g : &s);
    bool swap = !g->triangle && TREK_R(gemm_cost)(&s) < TREK_R(gemm_cost)(g);
    return TREK_R(gemm_tiled)(swap ? &s : g);
}

/* Computes several units at once, if an element then has the bits that it has in a product of one unit. Returns UNSUPPORTED
 * without an error, and computes nothing, if that is not so. An element's bits do not depend on the number of rows in the
 * tiles, nor among few rows; they may elsewhere, and in a library. */
static trek_status TREK_R(gemm_units)(const trek_gemm *g)
{
    trek_gemm one = *g, one_swapped, s;
    one.m = g->unit;
    bool small = one.m * g->n * g->k <= 65536 && g->b_col == 1 && g->c_col == 1;
    if (one.m == 1 || g->n == 1 || TREK_R(outer_suits)(&one) || (small && g->k > BLOCK_DEPTH) || g->triangle ||
        trek_blas_asked_for())
        return TREK_ERR_UNSUPPORTED;
    one_swapped = trek_gemm_swapped(&one);
    s = trek_gemm_swapped(g);
    if (!small && (TREK_R(few_suits)(&one) || TREK_R(few_suits)(&one_swapped)))
        return TREK_R(few)(TREK_R(few_suits)(&one) ? g : &s);
    return TREK_R(gemm_tiled)(TREK_R(gemm_cost)(&s) < TREK_R(gemm_cost)(g) ? &s : g);
}

/* -- B packed once, for many products with few rows each -- */

static int64_t TREK_R(packed_cols)(int64_t n) { return (n + TILE_COLS - 1) / TILE_COLS * TILE_COLS; }

/* One block of depth after another, in each one tile after another. */
static void TREK_R(pack_b)(const trek_gemm *g, T *to)
{
    TREK_R(gemm_plan) plan = { .g = g };
    TREK_R(plan_packing)(&plan);
    for (int64_t p0 = 0; p0 < g->k; p0 += plan.depth) {
        int64_t depth = g->k - p0 < plan.depth ? g->k - p0 : plan.depth;
        TREK_R(pack_columns)(g, to + p0 * TREK_R(packed_cols)(g->n), 0, g->n, p0, depth);
    }
}

/* Runs on the calling thread only; C's columns are contiguous; `workspace` holds m k elements. */
static void TREK_R(gemm_packed)(const trek_gemm *g, const T *packed, T *workspace)
{
    TREK_R(gemm_plan) plan = { .g = g };
    TREK_R(plan_packing)(&plan);
    plan.pack_a = plan.pack_b = true;
    for (int64_t p0 = 0; p0 < g->k; p0 += plan.depth) {
        int64_t depth = g->k - p0 < plan.depth ? g->k - p0 : plan.depth;
        for (int64_t j0 = 0; j0 < g->n; j0 += plan.cols) {
            int64_t j1 = g->n - j0 < plan.cols ? g->n : j0 + plan.cols;
            TREK_R(block)(&plan, 0, g->m, j0, j1, p0, depth, packed + p0 * TREK_R(packed_cols)(g->n) + j0 * depth, workspace,
                          j0 > 0);
        }
    }
}

#undef BLOCK_DEPTH
#undef BLOCK_COLS
#undef TILE_ROWS
#undef TILE_VECTORS
#undef AHEAD
#undef PACKED_AT_ONCE
#undef PACKED_AHEAD
#undef TILE_COLS
