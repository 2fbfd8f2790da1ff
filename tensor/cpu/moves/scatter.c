/* SPDX-License-Identifier: Apache-2.0 */
/* scatter and scatter_reduce: elements of a source go to positions of an index, in its order. */
#include "tensor/cpu/elementwise/elementwise.h"
#include "tensor/cpu/moves/index.h"

/* body: what a (in the result) becomes, given b (of the source). */
#define LINE(name, T, body)                                                                                      \
    static void name(const trek_lookup *l, char *indexed, char *other, const char *index, int64_t n, int64_t columns) \
    {                                                                                                            \
        const int64_t a_dim = l->indexed.dim, a_step = l->indexed.last, b_dim = l->other.dim, b_step = l->other.last;   \
        const int64_t at_dim = l->index.dim, at_step = l->index.last;                                            \
        const trek_dtype dtype = l->index_dtype;                                                                 \
        if (columns == 1 && dtype == TREK_I64) { /* the usual line */                                            \
            for (int64_t i = 0; i < n; i++) {                                                                    \
                T *a = (T *)indexed + ((const int64_t *)index)[i * at_dim] * a_dim;                              \
                const T b = ((const T *)other)[i * b_dim];                                                       \
                *a = (T)(body);                                                                                  \
            }                                                                                                    \
            return;                                                                                              \
        }                                                                                                        \
        if (at_step == 0) { /* one index for a whole row */                                                      \
            for (int64_t i = 0; i < n; i++) {                                                                    \
                T *restrict to = (T *)indexed + trek_index_at(index, i * at_dim, dtype) * a_dim;                 \
                const T *restrict from = (const T *)other + i * b_dim;                                           \
                for (int64_t j = 0; a_step == 1 && b_step == 1 && j < columns; j++) {                            \
                    T *a = to + j;                                                                               \
                    const T b = from[j];                                                                         \
                    *a = (T)(body);                                                                              \
                }                                                                                                \
                for (int64_t j = 0; (a_step != 1 || b_step != 1) && j < columns; j++) {                          \
                    T *a = to + j * a_step;                                                                      \
                    const T b = from[j * b_step];                                                                \
                    *a = (T)(body);                                                                              \
                }                                                                                                \
            }                                                                                                    \
            return;                                                                                              \
        }                                                                                                        \
        for (int64_t i = 0; i < n; i++)                                                                          \
            for (int64_t j = 0; j < columns; j++) {                                                              \
                int64_t place = trek_index_at(index, i * at_dim + j * at_step, dtype);                           \
                T *a = (T *)indexed + place * a_dim + j * a_step;                                                \
                const T b = ((const T *)other)[i * b_dim + j * b_step];                                          \
                *a = (T)(body);                                                                                  \
            }                                                                                                    \
    }
LINE(put_1, uint8_t, b)
LINE(put_2, uint16_t, b)
LINE(put_4, uint32_t, b)
LINE(put_8, uint64_t, b)

/* A NaN wins. The code selects a value without branching, because branches could not be predicted. */
#define EXTREMES(name, T, value)                                                                       \
    LINE(amax_##name, T, *(((int)(value(*a) >= value(b)) | (int)(value(*a) != value(*a))) ? (const T *)a : &b))         \
    LINE(amin_##name, T, *(((int)(value(*a) <= value(b)) | (int)(value(*a) != value(*a))) ? (const T *)a : &b))
#define KINDS(name, T, value, product)                                                                 \
    LINE(prod_##name, T, product)                                                                      \
    EXTREMES(name, T, value)
#define PLAIN(x) (x)
KINDS(f32, float, PLAIN, *a * b)
KINDS(f64, double, PLAIN, *a * b)
EXTREMES(bf16, uint16_t, trek_f32_from_bf16)
EXTREMES(f16, uint16_t, trek_f32_from_f16)
KINDS(i64, int64_t, PLAIN, *a * b)
KINDS(i32, int32_t, PLAIN, *a * b)
KINDS(u8, uint8_t, PLAIN, *a * b)
KINDS(boolean, uint8_t, PLAIN, *a & b)

static trek_status run_scatter(const trek_op_call *call)
{
    int width = trek_item_size[call->inputs[0]->dtype];
    return trek_scatter_through_baseline(call, true, width == 1 ? put_1 : width == 2 ? put_2 : width == 4 ? put_4 : put_8);
}

static trek_status run_scatter_reduce(const trek_op_call *call)
{
    static const trek_lookup_line lines[TREK_DTYPE_COUNT][TREK_SCATTER_KINDS] = {
        [TREK_F32] = { prod_f32, amax_f32, amin_f32 },       [TREK_F64] = { prod_f64, amax_f64, amin_f64 },
        [TREK_BF16] = { NULL, amax_bf16, amin_bf16 },        [TREK_F16] = { NULL, amax_f16, amin_f16 },
        [TREK_I64] = { prod_i64, amax_i64, amin_i64 },       [TREK_I32] = { prod_i32, amax_i32, amin_i32 },
        [TREK_U8] = { prod_u8, amax_u8, amin_u8 },           [TREK_BOOL] = { prod_boolean, amax_boolean, amin_boolean },
    };
    trek_dtype dtype = (trek_dtype)call->inputs[0]->dtype;
    trek_lookup_line line = lines[dtype][call->attrs.i[1]];
    return trek_scatter_through_baseline(call, true, line ? line : trek_halves_line_baseline);
}

void trek_cpu_register_scatter(trek_backend *b)
{
    for (int d = 0; d < TREK_DTYPE_COUNT; d++) {
        b->kernels[TREK_OP_scatter][d] = run_scatter;
        b->kernels[TREK_OP_scatter_reduce][d] = run_scatter_reduce;
    }
}
