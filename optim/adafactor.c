/* SPDX-License-Identifier: Apache-2.0 */
/* Adafactor (Shazeer and Stern, 2018): Adam that keeps its squares only for rows and columns. The formulas are
 * torch.optim.Adafactor's. */
#include "optim/class_internal.h"
#include "optim/optimizers.h"
#include "tensor/update.h"

enum { LR, BETA2_DECAY, EPS1, EPS2, D, WEIGHT_DECAY, MAXIMIZE };
enum { ROWS, COLUMNS, SQUARE }; /* states */

/* Returns the factor of the direction. `param` and `way` are 2-norms over this many elements. */
TREK_ON_BOTH double adafactor_factor(const double *o, double step, double elements, double param, double way)
{
    double size = param / sqrt(elements), length = way / (sqrt(elements) * o[D]);
    double alpha = (size < o[EPS2] ? o[EPS2] : size) * fmin(o[LR], 1 / sqrt(step));
    return -alpha / (length < 1 ? 1 : length);
}

TREK_ON_BOTH double adafactor_lerp(double from, double to, double weight)
{
    return weight < 0.5 ? from + weight * (to - from) : to - (to - from) * (1 - weight);
}

#ifdef TREK_OPTIMIZER_HOME
#include <float.h>
#include <math.h>
#include <string.h>

#include "optim/whole.h"
#include "tensor/pool.h"

/* One parameter: `count` matrices one after the other (a vector is a matrix of one row). */
typedef struct factors {
    trek_dtype dtype;
    const trek_update_slice *s;
    int64_t count, rows, cols;
    double weight, scale, floor; /* weight of new squares in the averages; scale of gradients; smallest divisor */
    double *means;               /* [count] means of the rows' averages */
    void *way;                   /* [elements] */
} factors;

enum { STRIP = 256, COLUMN_ROWS = 64 }; /* columns that are summed together, and rows that are summed in T */

#define ADAFACTOR_LOOPS(T, suffix)                                                                                \
    /* Updates the average of each row's mean square. */                                                          \
    static void rows_##suffix(void *arg, int64_t begin, int64_t end)                                              \
    {                                                                                                             \
        const factors *f = arg;                                                                                   \
        T *average = f->s->state[ROWS];                                                                           \
        for (int64_t r = begin; r < end; r++) {                                                                   \
            double norm = trek_whole_norm(f->dtype, (const T *)f->s->grad + r * f->cols, f->cols) * f->scale;     \
            average[r] = (T)adafactor_lerp(average[r], norm * norm / (double)f->cols, f->weight);                           \
        }                                                                                                         \
    }                                                                                                             \
    /* The same for a strip of columns, summed row by row. */                                                     \
    static void strip_##suffix(const factors *f, const T *g, T *average, int n)                                   \
    {                                                                                                             \
        double sums[STRIP] = { 0 };                                                                               \
        for (int64_t r = 0; r < f->rows;) {                                                                       \
            T part[STRIP] = { 0 };                                                                                \
            for (int64_t last = r + COLUMN_ROWS; r < f->rows && r < last; r++)                                    \
                for (int j = 0; j < n; j++)                                                                       \
                    part[j] += g[r * f->cols + j] * g[r * f->cols + j];                                           \
            for (int j = 0; j < n; j++)                                                                           \
                sums[j] += (double)part[j];                                                                       \
        }                                                                                                         \
        for (int j = 0; j < n; j++)                                                                               \
            average[j] = (T)adafactor_lerp(average[j], sums[j] * f->scale * f->scale / (double)f->rows, f->weight);         \
    }                                                                                                             \
    static void columns_##suffix(void *arg, int64_t begin, int64_t end)                                           \
    {                                                                                                             \
        const factors *f = arg;                                                                                   \
        int64_t strips = (f->cols + STRIP - 1) / STRIP;                                                           \
        for (int64_t k = begin; k < end; k++) {                                                                   \
            int64_t at = k / strips, from = k % strips * STRIP, n = f->cols - from < STRIP ? f->cols - from : STRIP; \
            strip_##suffix(f, (const T *)f->s->grad + at * f->rows * f->cols + from,                              \
                           (T *)f->s->state[COLUMNS] + at * f->cols + from, (int)n);                              \
        }                                                                                                         \
    }                                                                                                             \
    /* Divides the gradient by the root of rows times columns over the rows' mean. */                             \
    static void ways_##suffix(void *arg, int64_t begin, int64_t end)                                              \
    {                                                                                                             \
        const factors *f = arg;                                                                                   \
        const T scale = (T)f->scale, least = (T)(f->floor * f->floor);                                            \
        for (int64_t r = begin; r < end; r++) {                                                                   \
            double mean = f->means[r / f->rows];                                                                  \
            const T row = (T)(((const T *)f->s->state[ROWS])[r] / (mean < f->floor ? f->floor : mean));           \
            const T *g = (const T *)f->s->grad + r * f->cols, *column = (const T *)f->s->state[COLUMNS] + r / f->rows * f->cols; \
            T *way = (T *)f->way + r * f->cols;                                                                   \
            for (int64_t j = 0; j < f->cols; j++) {                                                               \
                T square = row * column[j];                                                                       \
                way[j] = g[j] * scale / ROOT_##suffix(square < least ? least : square);                           \
            }                                                                                                     \
        }                                                                                                         \
    }                                                                                                             \
    static void vector_##suffix(void *arg, int64_t begin, int64_t end)                                            \
    {                                                                                                             \
        const factors *f = arg;                                                                                   \
        const T scale = (T)f->scale, least = (T)(f->floor * f->floor), weight = (T)f->weight, rest = (T)(1 - f->weight); \
        T *average = f->s->state[SQUARE], *way = f->way;                                                          \
        for (int64_t i = begin; i < end; i++) {                                                                   \
            T g = ((const T *)f->s->grad)[i] * scale, new = g * g;                                                \
            T square = weight < (T)0.5 ? average[i] + weight * (new - average[i]) : new - (new - average[i]) * rest; \
            average[i] = square;                                                                                  \
            way[i] = g / ROOT_##suffix(square < least ? least : square);                                          \
        }                                                                                                         \
    }                                                                                                             \
    static void mean_##suffix(const factors *f, int64_t at)                                                       \
    {                                                                                                             \
        double sum = 0;                                                                                           \
        for (int64_t r = 0; r < f->rows; r++)                                                                     \
            sum += (double)((const T *)f->s->state[ROWS])[at * f->rows + r];                                      \
        f->means[at] = sum / (double)f->rows;                                                                     \
    }
#define ROOT_f32 sqrtf
#define ROOT_f64 sqrt
ADAFACTOR_LOOPS(float, f32)
ADAFACTOR_LOOPS(double, f64)

static void matrices(factors *f)
{
    bool wide = f->dtype == TREK_F64;
    int64_t rows = f->count * f->rows, grain = 1 + 16384 / f->cols, strips = f->count * ((f->cols + STRIP - 1) / STRIP);
    trek_parallel(rows, grain, wide ? rows_f64 : rows_f32, f);
    trek_parallel(strips, 1 + 16384 / (STRIP * f->rows), wide ? columns_f64 : columns_f32, f);
    for (int64_t at = 0; at < f->count; at++)
        (wide ? mean_f64 : mean_f32)(f, at);
    trek_parallel(rows, grain, wide ? ways_f64 : ways_f32, f);
}

static int64_t count_of(trek_shape shape)
{
    int64_t count = 1;
    for (int d = 0; d < shape.ndim - 2; d++)
        count *= shape.sizes[d];
    return count;
}

static void whole(trek_dtype dtype, const trek_update_whole *w)
{
    const trek_update_slice *s = w->slice;
    const double *o = s->options;
    double step = (double)s->step, elements = (double)s->count;
    if (s->count == 0)
        return;
    int last = w->shape.ndim - 1;
    factors f = { dtype, s, .count = count_of(w->shape), .rows = last > 0 ? w->shape.sizes[last - 1] : 1,
                  .cols = last >= 0 ? w->shape.sizes[last] : 1, .weight = pow(step, o[BETA2_DECAY]), .scale = s->grad_scale,
                  .floor = o[EPS1] > 0 ? o[EPS1] : dtype == TREK_F64 ? DBL_EPSILON : FLT_EPSILON, .means = w->workspace };
    f.way = (char *)w->workspace + (((size_t)f.count * sizeof(double) + 63) & ~(size_t)63);
    double param = trek_whole_norm(dtype, s->param, s->count);
    if (last > 0)
        matrices(&f);
    else
        trek_parallel(s->count, 16384, dtype == TREK_F64 ? vector_f64 : vector_f32, &f);
    trek_whole_step(dtype, s->param, f.way, s->count, 1 - o[LR] * o[WEIGHT_DECAY],
                    adafactor_factor(o, step, elements, param, trek_whole_norm(dtype, f.way, s->count)));
}

static size_t workspace(trek_dtype dtype, trek_shape shape, const double *options)
{
    (void)options;
    return (((size_t)count_of(shape) * sizeof(double) + 63) & ~(size_t)63) +
           (size_t)trek_shape_numel(shape) * trek_dtype_size(dtype);
}

static trek_status check(const double *o)
{
    if (!(o[BETA2_DECAY] <= 0))
        return trek_fail(TREK_ERR_ARGUMENT, "adafactor: beta2_decay: %g; must be at most 0", o[BETA2_DECAY]);
    if (!(o[D] >= 1))
        return trek_fail(TREK_ERR_ARGUMENT, "adafactor: d: %g; must be at least 1", o[D]);
    return TREK_OK;
}

static const trek_optimizer_class adafactor_class = {
    .name = "adafactor",
    .options = { [LR] = { "lr", .otherwise = 0.01 }, [BETA2_DECAY] = { "beta2_decay", -0.8, TREK_OPTION_RANGE_FINITE, false },
                 [EPS1] = { .name = "eps1" }, [EPS2] = { "eps2", .otherwise = 1e-3 }, [D] = { "d", .otherwise = 1 },
                 [WEIGHT_DECAY] = { .name = "weight_decay" }, [MAXIMIZE] = { .name = "maximize" } },
    .states = { [ROWS] = { "row_var", .extent = TREK_STATE_EXTENT_ROWS },
                [COLUMNS] = { "col_var", .extent = TREK_STATE_EXTENT_COLUMNS },
                [SQUARE] = { "variance", .extent = TREK_STATE_EXTENT_VECTORS } },
    .maximize = MAXIMIZE,
    .by_step = true,
    .check = check,
    .whole = whole,
    .workspace = workspace,
    .gpu = "adafactor_whole",
};

trek_optimizer_spec trek_adafactor(const trek_adafactor_opts *opts)
{
    trek_adafactor_opts o = opts ? *opts : (trek_adafactor_opts){ 0 };
    return (trek_optimizer_spec){ .klass = &adafactor_class,
                                  { [LR] = o.lr, [BETA2_DECAY] = o.beta2_decay, [EPS1] = o.eps1, [EPS2] = o.eps2,
                                                      [D] = o.d, [WEIGHT_DECAY] = o.weight_decay, [MAXIMIZE] = o.maximize } };
}
#endif
