/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/distributed/comm/reductions.h"

#include <stdlib.h>
#include <string.h>

#include "tensor/tensor_internal.h"

static double value_of(trek_dtype dtype, int rank, int64_t i)
{
    uint32_t h = (uint32_t)i * 2654435761u + (uint32_t)rank * 40503u;
    h ^= h >> 15;
    if (dtype == TREK_BOOL)
        return h & 1;
    if (dtype == TREK_U8)
        return h % 250;
    if (dtype == TREK_I32 || dtype == TREK_I64)
        return (double)(h % 2001) - 1000;
    return ((double)(h % 20011) - 10005.0) / 997.0;
}

static trek_tensor *in_dtype(trek_dtype dtype, const double *values, int64_t count)
{
    trek_tensor *wide = trek_tensor_from_data(values, trek_shape_make(&count, 1), TREK_F64, trek_cpu(0));
    trek_tensor *cast = trek_tensor_cast(wide, dtype), *own = trek_tensor_clone(cast);
    trek_tensor_release(wide);
    trek_tensor_release(cast);
    return own;
}

trek_tensor *rank_values(trek_dtype dtype, int rank, int64_t first, int64_t count)
{
    double *values = malloc((size_t)(count + 1) * sizeof *values);
    for (int64_t i = 0; i < count; i++)
        values[i] = value_of(dtype, rank, first + i);
    trek_tensor *tensor = in_dtype(dtype, values, count);
    free(values);
    return tensor;
}

#define FOLD(a, b, op)                                                                                                           \
    ((op) == TREK_REDUCTION_PROD  ? (a) * (b)                                                                                    \
     : (op) == TREK_REDUCTION_MAX ? ((b) > (a) ? (b) : (a))                                                                      \
     : (op) == TREK_REDUCTION_MIN ? ((b) < (a) ? (b) : (a))                                                                      \
                                  : (a) + (b))

static double combine(trek_dtype dtype, trek_reduction op, double *const *values, int world, int64_t i)
{
    if (dtype == TREK_F64) {
        double all = values[0][i];
        for (int r = 1; r < world; r++)
            all = FOLD(all, values[r][i], op);
        return op == TREK_REDUCTION_MEAN ? all / world : all;
    }
    if (trek_dtype_is_float(dtype)) {
        float all = (float)values[0][i];
        for (int r = 1; r < world; r++)
            all = FOLD(all, (float)values[r][i], op);
        return op == TREK_REDUCTION_MEAN ? all / (float)world : all;
    }
    int64_t all = (int64_t)values[0][i];
    for (int r = 1; r < world; r++) {
        int64_t other = (int64_t)values[r][i];
        all = op == TREK_REDUCTION_SUM ? (int64_t)((uint64_t)all + (uint64_t)other)
            : op == TREK_REDUCTION_PROD ? (int64_t)((uint64_t)all * (uint64_t)other) : FOLD(all, other, op);
    }
    return dtype == TREK_I32 ? (double)(int32_t)(uint32_t)all : dtype == TREK_U8 ? (double)(uint8_t)all : (double)all;
}

trek_tensor *combined_values(trek_dtype dtype, trek_reduction op, int world, int64_t first, int64_t count)
{
    double *values[16], *all = malloc((size_t)(count + 1) * sizeof *all);
    for (int r = 0; r < world; r++) { /* as the dtype rounds them */
        trek_tensor *own = rank_values(dtype, r, first, count);
        values[r] = malloc((size_t)(count + 1) * sizeof **values);
        trek_tensor_to_host(own, TREK_F64, values[r], (size_t)count * sizeof **values);
        trek_tensor_release(own);
    }
    for (int64_t i = 0; i < count; i++)
        all[i] = combine(dtype, op, values, world, i);
    for (int r = 0; r < world; r++)
        free(values[r]);
    trek_tensor *tensor = in_dtype(dtype, all, count);
    free(all);
    return tensor;
}

bool op_fits(trek_dtype dtype, trek_reduction op)
{
    return dtype == TREK_BOOL ? op == TREK_REDUCTION_MAX || op == TREK_REDUCTION_MIN : op != TREK_REDUCTION_MEAN ||
        trek_dtype_is_float(dtype);
}

bool same_bytes(const trek_tensor *a, const trek_tensor *b)
{
    return a->numel == b->numel &&
           (a->numel == 0 || memcmp(a->data, b->data, (size_t)a->numel * trek_dtype_size((trek_dtype)a->dtype)) == 0);
}
