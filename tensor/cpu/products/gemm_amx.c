/* SPDX-License-Identifier: Apache-2.0 */
#include "tensor/cpu/products/gemm_amx.h"

#include <pthread.h>
#include <stdatomic.h>

#include "tensor/cpu/products/blas.h"
#include "tensor/cpu/products/gemm_half.h"
#include "tensor/cpu/vector_math.h"
#include "tensor/products_way.h"
#include "tensor/trace.h"

#define TREK_REAL f32
#include "tensor/cpu/vector.h"

#include "tensor/cpu/products/half_vectors.h"

#include "tensor/cpu/products/gemm_finish.h"

#include "tensor/cpu/products/gemm_amx_pack.h"

enum {
    BLOCK = 2 * TREK_AMX_LANES, /* rows and columns of C that are computed at once */
    EDGE = 128,                 /* of the block of C that one task computes, if C is large */
    CHUNK = 24,                 /* tiles of a strip whose products are added up before they are added to those before them */
    GROUP = 4,                  /* strips that a task packs */
    PACKED_BYTES = 96 << 20,    /* packed at a time */
};

/* The smallest and the largest magnitude of a strip, as bits of f32; `least` is less by one, so that zeros do not count. */
typedef struct strip_range {
    uint32_t most, least;
} strip_range;

/* One operand, packed: strips of 16 lanes from lane `first` on. */
typedef struct packed_operand {
    amx_source source;
    int64_t first, strips;
    uint16_t *tiles;
    strip_range *ranges;
} packed_operand;

/* How one call is carried out: slabs of rows and columns whose packed operands fit into PACKED_BYTES, one after another. */
typedef struct amx_plan {
    const trek_gemm *g;
    const trek_amx *amx;
    int terms;
    int64_t steps; /* tiles along k */
    double log2_k;
    int64_t slab[2];          /* strips of A and of B in a slab */
    packed_operand a, b;      /* of the present slab */
    int64_t a_groups;         /* of the strips of A that are packed for it */
    int64_t edge, col_blocks; /* of its tasks */
    atomic_bool failed;
} amx_plan;

/* Returns how many bf16 numbers a number of such operands becomes. */
static int terms_for(trek_dtype dtype) { return dtype == TREK_BF16 ? 1 : TREK_AMX_MOST_TERMS - (int)trek_matmul_precision_get(); }

/* Returns how many bf16 numbers a number of the operands becomes, or 0 if tiles do not multiply them. */
static int terms_of(const trek_gemm *g)
{
    if (g->a_dtype == TREK_BF16 && g->b_dtype == TREK_BF16)
        return terms_for(TREK_BF16);
    return trek_gemm_has_half(g) ? 0 : terms_for(TREK_F32);
}

/* -- packing -- */

static uint16_t *strip_tiles(const amx_plan *plan, const packed_operand *o, int64_t strip, int64_t step)
{
    return o->tiles + (strip * plan->steps + step) * plan->terms * TREK_AMX_NUMBERS;
}

static void store_range(strip_range *to, const amx_range *range)
{
    uint32_t most[W], least[W];
    memcpy(most, &range->most, sizeof most);
    memcpy(least, &range->least, sizeof least);
    *to = (strip_range){ 0, UINT32_MAX };
    for (int l = 0; l < W; l++) {
        to->most = most[l] > to->most ? most[l] : to->most;
        to->least = least[l] < to->least ? least[l] : to->least;
    }
}

/* Packs strips [begin, end), at most GROUP: step after step along k if their lanes share cache lines. */
static void pack_strips(const amx_plan *plan, packed_operand *o, int64_t begin, int64_t end)
{
    amx_range ranges[GROUP];
    for (int q = 0; q < GROUP; q++)
        ranges[q] = (amx_range){ (half_words){ 0 }, ~(half_words){ 0 } };
    const int64_t together = o->source.lane == 1 ? 1 : plan->steps;
    for (int64_t first = 0; first < plan->steps; first += together)
        for (int64_t strip = begin; strip < end; strip++)
            for (int64_t step = first; step < first + together; step++)
                pack_tile(&o->source, o->first + strip * TREK_AMX_LANES, step * TREK_AMX_DEPTH, strip_tiles(plan, o, strip, step),
                          &ranges[strip - begin]);
    for (int64_t strip = begin; strip < end; strip++)
        store_range(&o->ranges[strip], &ranges[strip - begin]);
}

static void pack_groups(void *arg, int64_t begin, int64_t end)
{
    amx_plan *plan = arg;
    const int64_t a_groups = plan->a_groups;
    for (int64_t i = begin; i < end; i++) {
        packed_operand *o = i < a_groups ? &plan->a : &plan->b;
        int64_t first = (i < a_groups ? i : i - a_groups) * GROUP;
        pack_strips(plan, o, first, first + GROUP < o->strips ? first + GROUP : o->strips);
    }
}

/* -- blocks -- */

/* The exponent of a magnitude. */
static int exponent(uint32_t magnitude) { return (int)(magnitude >> 23) - 127; }

static strip_range range_of(const packed_operand *o, int64_t strip)
{
    strip_range r = o->ranges[strip];
    if (strip + 1 < o->strips) {
        const strip_range *next = &o->ranges[strip + 1];
        r.most = next->most > r.most ? next->most : r.most;
        r.least = next->least < r.least ? next->least : r.least;
    }
    return r;
}

/* Returns whether sums of bf16 numbers carry the two strips of A and the two of B: no sum of products can become infinite. The
 * lowest part of each number is normal, and what is lost of a product where its parts' products are subnormal is below 2^-26 of
 * it. */
static bool carried(const amx_plan *plan, int64_t a_strip, int64_t b_strip)
{
    if (plan->terms == 1)
        return true;
    const strip_range a = range_of(&plan->a, a_strip), b = range_of(&plan->b, b_strip);
    if (exponent(a.most) > 126 || exponent(b.most) > 126)
        return false;
    if (a.most == 0 || b.most == 0) /* all are zeros */
        return true;
    const int least_a = exponent(a.least + 1), least_b = exponent(b.least + 1);
    const double largest = exponent(a.most) + exponent(b.most) + 2 + plan->log2_k;
    return largest < 127 && least_a >= -103 && least_b >= -103 && least_a + least_b >= -96;
}

/* The rows and columns of C that a task computes; `sums` has rows of EDGE if k takes several chunks. */
typedef struct amx_task {
    int64_t row, col, row_end, col_end; /* relative to the slab */
    float *sums;
} amx_task;

static void by_multiply_add(amx_plan *plan, int64_t row, int64_t col, int64_t rows, int64_t cols)
{
    trek_gemm g = *plan->g;
    const int64_t place = row * g.c_row + col * g.c_col;
    g.m = rows, g.n = cols;
    g.a = (const float *)g.a + row * g.a_row;
    g.b = (const float *)g.b + col * g.b_col;
    g.c = (float *)g.c + place;
    g.pre = g.pre ? (float *)g.pre + place : NULL;
    g.bias = g.bias ? (const float *)g.bias + row * g.bias_row + col * g.bias_col : NULL;
    g.alone = true;
    g.triangle = TREK_GEMM_FULL; /* its diagonal is that of the whole */
    if (TREK_ISA_NAME(trek_gemm_fma)(&g) != TREK_OK)
        plan->failed = true;
}

/* Adds a block to the sums of the chunks before it. */
static void add_sums(float *sums, const float *block, int rows, int cols)
{
    for (int i = 0; i < rows; i++, sums += EDGE, block += BLOCK)
        for (int j = 0; j < cols; j += W)
            store_f32(sums + j, load_f32(sums + j) + load_f32(block + j));
}

/* Adds `steps` tiles along k to the block at (row, col); the last ones complete it. */
static void one_block(amx_plan *plan, const amx_task *task, int64_t row, int64_t col, int64_t step, int64_t steps)
{
    const trek_gemm *g = plan->g;
    const int64_t a = row / TREK_AMX_LANES, b = col / TREK_AMX_LANES;
    const int64_t at[2] = { plan->a.first + row, plan->b.first + col };
    const int rows = within(task->row_end - row, BLOCK), cols = within(task->col_end - col, BLOCK);
    const bool last = step + steps >= plan->steps, fits = carried(plan, a, b);
    _Alignas(64) float own[BLOCK * BLOCK];
    trek_amx_block block = { .depth = steps, .terms = plan->terms, .c = own, .c_row = BLOCK };
    float *sums = task->sums ? task->sums + (row - task->row) * EDGE + (col - task->col) : own;
    const int64_t sum_row = task->sums ? EDGE : BLOCK;
    block.a[0] = strip_tiles(plan, &plan->a, a, step);
    block.a[1] = a + 1 < plan->a.strips ? strip_tiles(plan, &plan->a, a + 1, step) : NULL;
    block.b[0] = strip_tiles(plan, &plan->b, b, step);
    block.b[1] = b + 1 < plan->b.strips ? strip_tiles(plan, &plan->b, b + 1, step) : NULL;
    if (step == 0)
        block.c = sums, block.c_row = sum_row;
    if (fits)
        plan->amx->multiply(&block);
    if (fits && step > 0)
        add_sums(sums, own, rows, cols);
    if (last && fits)
        finish(g, at[0], at[1], rows, cols, sums, sum_row);
    else if (last)
        by_multiply_add(plan, at[0], at[1], rows, cols);
}

static void run_task(amx_plan *plan, const amx_task *task)
{
    const int64_t chunk = CHUNK / plan->terms;
    int64_t step = 0;
    do { /* once even if k is 0 */
        const int64_t steps = plan->steps - step < chunk ? plan->steps - step : chunk;
        for (int64_t col = task->col; col < task->col_end; col += BLOCK)
            for (int64_t row = task->row; row < task->row_end; row += BLOCK)
                one_block(plan, task, row, col, step, steps);
        step += steps;
    } while (step < plan->steps);
}

static int64_t lanes_of(const packed_operand *o)
{
    int64_t rest = o->source.lanes - o->first, whole = o->strips * TREK_AMX_LANES;
    return rest < whole ? rest : whole;
}

static void run_tasks(void *arg, int64_t begin, int64_t end)
{
    amx_plan *plan = arg;
    const int64_t rows = lanes_of(&plan->a), cols = lanes_of(&plan->b);
    const bool chunks = plan->steps > CHUNK / plan->terms;
    float *sums = chunks ? trek_block_alloc(sizeof(float) * EDGE * EDGE) : NULL;
    if (chunks && !sums) {
        plan->failed = true;
        return;
    }
    plan->amx->begin();
    for (int64_t i = begin; i < end; i++) {
        amx_task task = { .row = i / plan->col_blocks * plan->edge, .col = i % plan->col_blocks * plan->edge, .sums = sums };
        task.row_end = rows - task.row < plan->edge ? rows : task.row + plan->edge;
        task.col_end = cols - task.col < plan->edge ? cols : task.col + plan->edge;
        run_task(plan, &task);
    }
    plan->amx->end();
    trek_block_free(sums);
}

/* -- plans -- */

static void divide(amx_plan *plan, int64_t count, void (*fn)(void *arg, int64_t begin, int64_t end), int64_t threads)
{
    if (threads == 1 || count < 2)
        fn(plan, 0, count);
    else
        trek_parallel(count, 1, fn, plan);
}

/* Packs the operands that the slab does not share with the one before it, and computes the slab. */
static void run_slab(amx_plan *plan, bool pack_a, bool pack_b, int64_t threads)
{
    const int64_t rows = lanes_of(&plan->a), cols = lanes_of(&plan->b);
    plan->a_groups = pack_a ? divide_up(plan->a.strips, GROUP) : 0;
    divide(plan, plan->a_groups + (pack_b ? divide_up(plan->b.strips, GROUP) : 0), pack_groups, threads);
    plan->edge = EDGE;
    while (plan->edge > BLOCK && divide_up(rows, plan->edge) * divide_up(cols, plan->edge) < 2 * threads)
        plan->edge /= 2;
    plan->col_blocks = divide_up(cols, plan->edge);
    divide(plan, divide_up(rows, plan->edge) * plan->col_blocks, run_tasks, threads);
}

static void run_slabs(amx_plan *plan)
{
    const trek_gemm *g = plan->g;
    const double work = (double)g->m * (double)g->n * (double)g->k;
    const int64_t threads = g->alone || work < 4e5 ? 1 : trek_pool_threads(trek_pool_here());
    const int64_t rows = divide_up(g->m, TREK_AMX_LANES), cols = divide_up(g->n, TREK_AMX_LANES);
    for (int64_t row = 0; row < rows; row += plan->slab[0])
        for (int64_t col = 0; col < cols; col += plan->slab[1]) {
            plan->a.first = row * TREK_AMX_LANES, plan->b.first = col * TREK_AMX_LANES;
            plan->a.strips = rows - row < plan->slab[0] ? rows - row : plan->slab[0];
            plan->b.strips = cols - col < plan->slab[1] ? cols - col : plan->slab[1];
            run_slab(plan, col == 0, row == 0 || plan->slab[1] < cols, threads);
        }
}

/* Divides what may be packed at a time between the operands; whole blocks each. */
static void plan_slabs(amx_plan *plan)
{
    const int64_t rows = divide_up(plan->g->m, TREK_AMX_LANES), cols = divide_up(plan->g->n, TREK_AMX_LANES);
    const int64_t bytes = plan->steps * plan->terms * TREK_AMX_NUMBERS * 2, least = 2 * GROUP;
    int64_t all = bytes > 0 ? PACKED_BYTES / bytes : rows + cols;
    all = all < 2 * least ? 2 * least : all / (2 * GROUP) * (2 * GROUP);
    int64_t of_a = all / 2 / GROUP * GROUP;
    of_a = all - of_a > cols ? all - divide_up(cols, GROUP) * GROUP : of_a;
    plan->slab[0] = rows < of_a ? rows : of_a;
    plan->slab[1] = all - divide_up(plan->slab[0], GROUP) * GROUP;
    plan->slab[1] = plan->slab[1] < cols ? plan->slab[1] : cols;
}

trek_status TREK_ISA_NAME(trek_gemm_amx)(const trek_gemm *g, const trek_amx *amx)
{
    const trek_gemm turned = trek_gemm_swapped(g);
    amx_plan plan = { .g = g->c_col != 1 && g->c_row == 1 ? &turned : g, .amx = amx, .terms = terms_of(g) };
    g = plan.g;
    if (g->m == 0 || g->n == 0)
        return TREK_OK;
    atomic_init(&plan.failed, false);
    plan.steps = divide_up(g->k, TREK_AMX_DEPTH);
    plan.log2_k = g->k > 0 ? log2((double)g->k) : 0;
    plan_slabs(&plan);
    const size_t strip = (size_t)(plan.steps * plan.terms) * TREK_AMX_NUMBERS * sizeof(uint16_t);
    const size_t strips = (size_t)(plan.slab[0] + plan.slab[1]);
    char *workspace = trek_block_alloc(strips * (strip + sizeof(strip_range)));
    if (!workspace)
        return TREK_ERR_MEMORY;
    plan.a = (packed_operand){ .source = { g->a, g->a_dtype, plan.terms, g->a_row, g->a_col, g->m, g->k, false } };
    plan.b = (packed_operand){ .source = { g->b, g->b_dtype, plan.terms, g->b_col, g->b_row, g->n, g->k, true } };
    plan.a.tiles = (uint16_t *)(void *)workspace;
    plan.b.tiles = (uint16_t *)(void *)(workspace + (size_t)plan.slab[0] * strip);
    plan.a.ranges = (strip_range *)(void *)(workspace + strips * strip);
    plan.b.ranges = plan.a.ranges + plan.slab[0];
    run_slabs(&plan);
    trek_block_free(workspace);
    return plan.failed ? TREK_ERR_MEMORY : TREK_OK;
}

/* -- the choice -- */

/* Nanoseconds of one product by each way: the best of several turns. */
typedef struct amx_times {
    int64_t other, tiles;
} amx_times;

static trek_status by_other_way(const trek_gemm *g)
{
    return g->a_dtype == TREK_BF16 ? TREK_ISA_NAME(trek_gemm_half_vectors)(g) : TREK_ISA_NAME(trek_gemm_fma)(g);
}

static amx_times time_product(trek_dtype dtype, const trek_amx *amx)
{
    enum { M = 128, N = 128, K = 256, TURNS = 6 };
    amx_times best = { INT64_MAX, INT64_MAX };
    float *memory = trek_block_alloc(sizeof(float) * (M * K + N * K + M * N));
    if (!memory)
        return best;
    memset(memory, 0, sizeof(float) * (M * K + N * K + M * N));
    trek_gemm g = { .m = M,
                    .n = N,
                    .k = K,
                    .a_dtype = dtype,
                    .b_dtype = dtype,
                    .a_row = K,
                    .a_col = 1,
                    .b_row = N,
                    .b_col = 1,
                    .c_row = N,
                    .c_col = 1,
                    .alone = true };
    g.a = memory, g.b = memory + M * K, g.c = memory + M * K + N * K;
    for (int turn = 0; turn < TURNS; turn++) {
        int64_t begin = trek_clock_ns(), middle, end;
        bool done = by_other_way(&g) == TREK_OK;
        middle = trek_clock_ns();
        done = TREK_ISA_NAME(trek_gemm_amx)(&g, amx) == TREK_OK && done;
        end = trek_clock_ns();
        best.other = done && middle - begin < best.other ? middle - begin : best.other;
        best.tiles = done && end - middle < best.tiles ? end - middle : best.tiles;
    }
    trek_block_free(memory);
    return best;
}

static const trek_amx *own_hardware(void)
{
#if defined(__AVX512F__)
    return trek_amx_hardware();
#else
    return NULL; /* TREK_ISA asks for less */
#endif
}

static struct {
    amx_times times;
    int terms;
} measured[2]; /* of f32 and of BF16 */

static void measure(void)
{
    for (int k = 0; k < 2; k++) {
        const trek_dtype dtype = k ? TREK_BF16 : TREK_F32;
        measured[k].terms = terms_for(dtype);
        measured[k].times = time_product(dtype, own_hardware());
        if (dtype == TREK_F32 && trek_blas_asked_for()) /* it is what the user wants */
            measured[k].times.tiles = INT64_MAX;
    }
}

/* The time is taken to grow with the number of products of terms. */
bool TREK_ISA_NAME(trek_gemm_amx_faster)(trek_dtype dtype)
{
    static const double products[] = { 0, 1, 3, 6 };
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    const int k = dtype == TREK_BF16;
    if (!own_hardware())
        return false;
    pthread_once(&once, measure);
    double expected = (double)measured[k].times.tiles * products[terms_for(dtype)] / products[measured[k].terms];
    return expected < (double)measured[k].times.other;
}

const trek_amx *TREK_ISA_NAME(trek_gemm_amx_serving)(const trek_gemm *g)
{
    const int terms = terms_of(g);
    if (terms == 0 || g->m < 2 || g->n < 2)
        return NULL;
    const trek_products_way way = trek_products_chosen(g->a_dtype);
    if (way == TREK_PRODUCTS_WAY_TILES)
        return own_hardware() ? own_hardware() : &trek_amx_plain;
    const bool large = g->m >= 16 && g->n >= 16 && g->k >= 32 && (double)g->m * (double)g->n * (double)g->k >= 1 << 17;
    return way == TREK_PRODUCTS_WAY_MEASURED && large && TREK_ISA_NAME(trek_gemm_amx_faster)(g->a_dtype) ? own_hardware() : NULL;
}
