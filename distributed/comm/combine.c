/* SPDX-License-Identifier: Apache-2.0 */
/* The arithmetic of collectives. The ranks' values are combined block by block in rank order, so that bits do not
 * depend on who computes which part. */
#include <string.h>

#include "distributed/comm/comm_internal.h"
#include "tensor/dtypes.h"
#include "tensor/half_internal.h"

/* How many elements are combined at once. A block of this size stays in the first-level cache. */
#define BLOCK 1024

/* Computes acc[i] = acc[i] op in[i]. SUM also serves MEAN; integers wrap around. */
#define DEFINE_FOLD(name, type, wrapping, is_nan)                                                                      \
    static void fold_##name(type *restrict acc, const type *restrict in, int64_t n, trek_reduction op)                 \
    {                                                                                                                  \
        switch (op) {                                                                                                  \
        case TREK_REDUCTION_SUM:                                                                                       \
        case TREK_REDUCTION_MEAN:                                                                                      \
            for (int64_t i = 0; i < n; i++)                                                                            \
                acc[i] = (type)((wrapping)acc[i] + (wrapping)in[i]);                                                   \
            break;                                                                                                     \
        case TREK_REDUCTION_PROD:                                                                                      \
            for (int64_t i = 0; i < n; i++)                                                                            \
                acc[i] = (type)((wrapping)acc[i] * (wrapping)in[i]);                                                   \
            break;                                                                                                     \
        case TREK_REDUCTION_MAX:                                                                                       \
            for (int64_t i = 0; i < n; i++)                                                                            \
                acc[i] = in[i] > acc[i] || is_nan(in[i]) ? in[i] : acc[i];                                             \
            break;                                                                                                     \
        case TREK_REDUCTION_MIN:                                                                                       \
            for (int64_t i = 0; i < n; i++)                                                                            \
                acc[i] = in[i] < acc[i] || is_nan(in[i]) ? in[i] : acc[i];                                             \
            break;                                                                                                     \
        default: /* refused by trek_comm_all_reduce and its like */                                                    \
            break;                                                                                                     \
        }                                                                                                              \
    }
#define FLOAT_NAN(x) ((x) != (x))
#define NEVER_NAN(x) 0
DEFINE_FOLD(f32, float, float, FLOAT_NAN)
DEFINE_FOLD(f64, double, double, FLOAT_NAN)
DEFINE_FOLD(i64, int64_t, uint64_t, NEVER_NAN)
DEFINE_FOLD(i32, int32_t, uint32_t, NEVER_NAN)
DEFINE_FOLD(u8, uint8_t, uint32_t, NEVER_NAN)

/* The accumulator of a block. 16-bit floats are widened to f32. */
typedef union block {
    float f32[BLOCK];
    double f64[BLOCK];
    int64_t i64[BLOCK];
    int32_t i32[BLOCK];
    uint8_t u8[BLOCK];
} block;

static void widen(trek_dtype dtype, float *to, const void *from, int64_t n)
{
    if (dtype == TREK_BF16)
        trek_f32_from_bf16_row(to, from, n);
    else
        trek_f32_from_f16_row(to, from, n);
}

static void first(trek_dtype dtype, block *acc, const char *in, int64_t n)
{
    if (trek_dtype_is_16bit(dtype))
        widen(dtype, acc->f32, in, n);
    else
        memcpy(acc, in, (size_t)n * trek_dtype_size(dtype));
}

static void fold(trek_dtype dtype, block *acc, const char *in, int64_t n, trek_reduction op)
{
    float wide[BLOCK];
    switch (dtype) {
    case TREK_F32:
        fold_f32(acc->f32, (const float *)in, n, op);
        break;
    case TREK_F64:
        fold_f64(acc->f64, (const double *)in, n, op);
        break;
    case TREK_BF16:
    case TREK_F16:
        widen(dtype, wide, in, n);
        fold_f32(acc->f32, wide, n, op);
        break;
    case TREK_I64:
        fold_i64(acc->i64, (const int64_t *)in, n, op);
        break;
    case TREK_I32:
        fold_i32(acc->i32, (const int32_t *)in, n, op);
        break;
    default:
        fold_u8(acc->u8, (const uint8_t *)in, n, op);
    }
}

static void divide(trek_dtype dtype, block *acc, int64_t n, int ranks)
{
    if (dtype == TREK_F64)
        for (int64_t i = 0; i < n; i++)
            acc->f64[i] /= ranks;
    else
        for (int64_t i = 0; i < n; i++)
            acc->f32[i] /= (float)ranks;
}

static void store(trek_dtype dtype, char *out, const block *acc, int64_t n)
{
    if (dtype == TREK_BF16)
        trek_bf16_from_f32_row((uint16_t *)out, acc->f32, n);
    else if (dtype == TREK_F16)
        trek_f16_from_f32_row((uint16_t *)out, acc->f32, n);
    else
        memcpy(out, acc, (size_t)n * trek_dtype_size(dtype));
}

/* Sums of floats, which are nearly all data, in one pass that reads and writes each array once, because large arrays
 * are limited by the memory's speed. The additions and their order are the same as by blocks. Returns where it
 * stopped; the caller does the rest. */
typedef float vector __attribute__((vector_size(64), aligned(4), may_alias));
enum { LINES = 4, STEP = LINES * 16, AHEAD = 512 }; /* cache lines of each array at once; how many floats ahead data are
                                                     * prefetched */

static inline __attribute__((always_inline)) int64_t sum_rows(bool mean, const void *const *ins, int n_ins, void *const *outs,
                                                              int n_outs, int64_t begin, int64_t end)
{
    for (; begin + STEP <= end; begin += STEP) {
        vector acc[LINES];
        for (int r = 0; r < n_ins; r++)
            for (int k = 0; k < LINES; k++)
                __builtin_prefetch((const float *)ins[r] + begin + AHEAD + 16 * k, 1);
        memcpy(acc, (const float *)ins[0] + begin, sizeof acc);
        for (int r = 1; r < n_ins; r++) {
            const vector *in = (const vector *)(const void *)((const float *)ins[r] + begin);
            for (int k = 0; k < LINES; k++)
                acc[k] += in[k];
        }
        for (int k = 0; k < LINES && mean; k++)
            acc[k] /= (float)n_ins;
        for (int r = 0; r < n_outs; r++)
            memcpy((float *)outs[r] + begin, acc, sizeof acc);
    }
    return begin;
}

static int64_t sum_f32(bool mean, const void *const *ins, int n_ins, void *const *outs, int n_outs, int64_t begin, int64_t end)
{
    return sum_rows(mean, ins, n_ins, outs, n_outs, begin, end);
}

#if defined(__x86_64__)
/* Works line by line: fewer instructions are then in flight for each line, and so more lines at once. */
static __attribute__((target("avx512f"))) int64_t sum_f32_lines(bool mean, const void *const *ins, int n_ins, void *const *outs,
                                                                int n_outs, int64_t begin, int64_t end)
{
    return sum_rows(mean, ins, n_ins, outs, n_outs, begin, end);
}
#else
#define sum_f32_lines sum_f32
#endif

static bool has_lines(void)
{
#if defined(__x86_64__)
    return __builtin_cpu_supports("avx512f");
#else
    return false;
#endif
}

void trek_comm_combine(trek_dtype dtype, trek_reduction op, const void *const *ins, int n_ins, void *const *outs, int n_outs,
                       int64_t begin, int64_t end)
{
    block acc;
    size_t size = trek_dtype_size(dtype);
    if (dtype == TREK_F32 && (op == TREK_REDUCTION_SUM || op == TREK_REDUCTION_MEAN))
        begin = (has_lines() ? sum_f32_lines : sum_f32)(op == TREK_REDUCTION_MEAN, ins, n_ins, outs, n_outs, begin, end);
    for (int64_t i = begin; i < end; i += BLOCK) {
        int64_t n = end - i < BLOCK ? end - i : BLOCK;
        size_t at = (size_t)i * size;
        first(dtype, &acc, (const char *)ins[0] + at, n);
        for (int r = 1; r < n_ins; r++)
            fold(dtype, &acc, (const char *)ins[r] + at, n, op);
        if (op == TREK_REDUCTION_MEAN)
            divide(dtype, &acc, n, n_ins);
        for (int k = 0; k < n_outs; k++)
            store(dtype, (char *)outs[k] + at, &acc, n);
    }
}
