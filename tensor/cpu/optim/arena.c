/* SPDX-License-Identifier: Apache-2.0 */
/* Loops over flat arenas: norms, sums of gradients, scaling, 16-bit copies. Nothing
 * here allocates or fails. */
#include "tensor/cpu/row_math.h"

#define GRAIN 16384
#define SUM_BLOCK 4096 /* elements that are summed in lanes */
#define SUM_PARTS 256  /* at most this many parts, which depends only on the count */

/* Writes the 16-bit parameters of master copies that were updated. */
static void write_low(void *low, trek_dtype dtype, const float *master, int64_t begin, int64_t n)
{
    if (dtype == TREK_BF16)
        trek_bf16_from_f32_row((uint16_t *)low + begin, master, n);
    else
        trek_f16_from_f32_row((uint16_t *)low + begin, master, n);
}

/* --- norms --- */

typedef struct squares {
    trek_dtype dtype;
    const void *data;
    int64_t count, part; /* elements of a part: whole blocks */
    double sums[SUM_PARTS];
    bool finite[SUM_PARTS];
} squares;

/* A finite number minus itself is 0. In f64 squares may overflow although the elements are finite. */
static bool all_finite_f64(const double *x, int64_t n)
{
    int bad = 0;
    for (int64_t i = 0; i < n; i++)
        bad |= x[i] - x[i] != 0;
    return !bad;
}

static void squares_part(void *arg, int64_t begin, int64_t end)
{
    squares *s = arg;
    for (int64_t part = begin; part < end; part++) {
        int64_t from = part * s->part, to = from + s->part < s->count ? from + s->part : s->count;
        double sum = 0;
        bool finite = true;
        for (int64_t i = from; i < to; i += SUM_BLOCK) {
            int64_t n = to - i < SUM_BLOCK ? to - i : SUM_BLOCK;
            if (s->dtype == TREK_F64) {
                const double *x = (const double *)s->data + i;
                sum += trek_row_sum_f64_of_squares(x, n);
                finite = all_finite_f64(x, n) && finite;
            } else {
                const float *x = (const float *)s->data + i;
                sum += trek_row_sum_f32_of_squares(x, n);
            }
        }
        s->sums[part] = sum;
        s->finite[part] = s->dtype == TREK_F64 ? finite : sum - sum == 0; /* squares of f32 do not overflow f64 */
    }
}

static void sum_squares(trek_device device, trek_dtype dtype, const void *data, int64_t count, double *sum, bool *finite)
{
    (void)device;
    squares s = { .dtype = dtype, .data = data, .count = count };
    int64_t blocks = (count + SUM_BLOCK - 1) / SUM_BLOCK;
    s.part = (blocks + SUM_PARTS - 1) / SUM_PARTS * SUM_BLOCK;
    int64_t parts = count == 0 ? 0 : (count - 1) / s.part + 1;
    trek_parallel(parts, GRAIN / (s.part + 1) + 1, squares_part, &s);
    *sum = 0;
    *finite = true;
    for (int64_t k = 0; k < parts; k++) {
        *sum += s.sums[k];
        *finite = *finite && s.finite[k];
    }
}

/* --- sums of arrays, scaling, clamping --- */

typedef struct arrays {
    void *to;
    const void *const *from;
    int n;
    double number;
} arrays;

/* Goes through a block on the stack, because `to` may be any of the sources. */
#define SUM_ARRAYS(T, suffix)                                                                          \
    static void sum_arrays_part_##suffix(void *arg, int64_t begin, int64_t end)                        \
    {                                                                                                  \
        const arrays *a = arg;                                                                         \
        T sum[512];                                                                                    \
        for (int64_t at = begin; at < end; at += 512) {                                                \
            int64_t n = end - at < 512 ? end - at : 512;                                               \
            memcpy(sum, (const T *)a->from[0] + at, (size_t)n * sizeof(T));                            \
            for (int k = 1; k < a->n; k++) {                                                           \
                const T *x = (const T *)a->from[k] + at;                                               \
                for (int64_t i = 0; i < n; i++)                                                        \
                    sum[i] += x[i];                                                                    \
            }                                                                                          \
            memcpy((T *)a->to + at, sum, (size_t)n * sizeof(T));                                       \
        }                                                                                              \
    }
SUM_ARRAYS(float, f32)
SUM_ARRAYS(double, f64)

static void sum_arrays(trek_device device, trek_dtype dtype, void *to, const void *const *from, int n, int64_t count)
{
    (void)device;
    arrays a = { .to = to, .from = from, .n = n };
    if (n > 0)
        trek_parallel(count, GRAIN, dtype == TREK_F64 ? sum_arrays_part_f64 : sum_arrays_part_f32, &a);
}

#define SCALE(T, suffix)                                                                               \
    static void scale_part_##suffix(void *arg, int64_t begin, int64_t end)                             \
    {                                                                                                  \
        const arrays *a = arg;                                                                         \
        T *x = a->to;                                                                                  \
        const T factor = (T)a->number;                                                                 \
        for (int64_t i = begin; i < end; i++)                                                          \
            x[i] *= factor;                                                                            \
    }                                                                                                  \
    static void clamp_part_##suffix(void *arg, int64_t begin, int64_t end)                             \
    {                                                                                                  \
        const arrays *a = arg;                                                                         \
        T *x = a->to;                                                                                  \
        const T limit = (T)a->number;                                                                  \
        for (int64_t i = begin; i < end; i++) {                                                        \
            T low = x[i] < -limit ? -limit : x[i];                                                     \
            x[i] = low > limit ? limit : low; /* NaN passes */                                         \
        }                                                                                              \
    }
SCALE(float, f32)
SCALE(double, f64)

static void scale(trek_device device, trek_dtype dtype, void *data, int64_t count, double factor)
{
    (void)device;
    arrays a = { .to = data, .number = factor };
    trek_parallel(count, GRAIN, dtype == TREK_F64 ? scale_part_f64 : scale_part_f32, &a);
}

static void clamp_abs(trek_device device, trek_dtype dtype, void *data, int64_t count, double limit)
{
    (void)device;
    arrays a = { .to = data, .number = limit };
    trek_parallel(count, GRAIN, dtype == TREK_F64 ? clamp_part_f64 : clamp_part_f32, &a);
}

void TREK_ISA_NAME(trek_cpu_register_arena)(trek_backend *b)
{
    b->write_low = write_low;
    b->sum_squares = sum_squares;
    b->sum_arrays = sum_arrays;
    b->scale = scale;
    b->clamp_abs = clamp_abs;
}
