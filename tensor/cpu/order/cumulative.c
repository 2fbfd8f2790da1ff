/* SPDX-License-Identifier: Apache-2.0 */
/* cummax, cummin and cumprod: neighbouring lines are processed together. */
#include "tensor/cpu/elementwise/elementwise.h"
#include "tensor/cpu/order/order.h"

#define NEIGHBOURS 64

/* A single line is kept in registers. */
#define LINES(name)                                                                                    \
    static void name(const trek_order *o, char *const *data, int64_t columns, void *scratch)           \
    {                                                                                                  \
        const trek_order own = { .n = o->n, .along = { o->along[0], o->along[1], o->along[2] },        \
                                 .across = { o->across[0], o->across[1], o->across[2] } };              \
        char *const at[TREK_ORDER_OPERANDS] = { data[0], data[1], data[2] };                           \
        (void)scratch;                                                                                 \
        if (columns == 1)                                                                              \
            name##_of(&own, at, 1);                                                                    \
        else                                                                                           \
            name##_of(&own, at, columns);                                                              \
    }

/* A NaN remains; of equal elements the last one counts. V: the value of an element x that is compared. */
#define EXTREME(name, T, V, value, compare)                                                            \
    static inline void name##_of(const trek_order *o, char *const *data, const int64_t columns)        \
    {                                                                                                  \
        V best[NEIGHBOURS];                                                                            \
        int64_t at[NEIGHBOURS] = { 0 };                                                                \
        T held[NEIGHBOURS];                                                                            \
        for (int64_t c = 0; c < columns; c++)                                                          \
            held[c] = ((const T *)data[0])[c * o->across[0]], best[c] = value(held[c]);                \
        for (int64_t i = 0; i < o->n; i++)                                                             \
            for (int64_t c = 0; c < columns; c++) {                                                    \
                const T x = ((const T *)data[0])[i * o->along[0] + c * o->across[0]];                  \
                const V v = value(x);                                                                  \
                if ((v != v) | ((best[c] == best[c]) & (v compare best[c])))                           \
                    best[c] = v, held[c] = x, at[c] = i;                                               \
                ((T *)data[1])[i * o->along[1] + c * o->across[1]] = held[c];                          \
                ((int64_t *)data[2])[i * o->along[2] + c * o->across[2]] = at[c];                      \
            }                                                                                          \
    }                                                                                                  \
    LINES(name)
#define PLAIN(x) (x)
#define BOTH(name, T, V, value)             \
    EXTREME(cummax_##name, T, V, value, >=) \
    EXTREME(cummin_##name, T, V, value, <=)
BOTH(f32, float, float, PLAIN)
BOTH(f64, double, double, PLAIN)
BOTH(bf16, uint16_t, float, trek_f32_from_bf16)
BOTH(f16, uint16_t, float, trek_f32_from_f16)
BOTH(i64, int64_t, int64_t, PLAIN)
BOTH(i32, int32_t, int32_t, PLAIN)
BOTH(u8, uint8_t, uint8_t, PLAIN)

typedef void (*lines_fn)(const trek_order *o, char *const *data, int64_t columns, void *scratch);
static const lines_fn extremes[TREK_DTYPE_COUNT][2] = {
    [TREK_F32] = { cummax_f32, cummin_f32 },    [TREK_F64] = { cummax_f64, cummin_f64 },
    [TREK_BF16] = { cummax_bf16, cummin_bf16 }, [TREK_F16] = { cummax_f16, cummin_f16 },
    [TREK_I64] = { cummax_i64, cummin_i64 },    [TREK_I32] = { cummax_i32, cummin_i32 },
    [TREK_U8] = { cummax_u8, cummin_u8 },       [TREK_BOOL] = { cummax_u8, cummin_u8 },
};

/* Products are computed in f64, those of integers in i64. */
#define PRODUCT(name, T, R, A, value, stored)                                                          \
    static inline void cumprod_##name##_of(const trek_order *o, char *const *data, const int64_t columns) \
    {                                                                                                  \
        A product[NEIGHBOURS];                                                                         \
        for (int64_t c = 0; c < columns; c++)                                                          \
            product[c] = 1;                                                                            \
        for (int64_t i = 0; i < o->n; i++)                                                             \
            for (int64_t c = 0; c < columns; c++) {                                                    \
                product[c] *= (A)value(((const T *)data[0])[i * o->along[0] + c * o->across[0]]);      \
                ((R *)data[1])[i * o->along[1] + c * o->across[1]] = stored(product[c]);               \
            }                                                                                          \
    }                                                                                                  \
    LINES(cumprod_##name)
#define AS_FLOAT(x) (float)(x)
#define AS_BF16(x) trek_bf16_from_f32((float)(x))
#define AS_F16(x) trek_f16_from_f32((float)(x))
PRODUCT(f32, float, float, double, PLAIN, AS_FLOAT)
PRODUCT(f64, double, double, double, PLAIN, PLAIN)
PRODUCT(bf16, uint16_t, uint16_t, float, trek_f32_from_bf16, AS_BF16)
PRODUCT(f16, uint16_t, uint16_t, float, trek_f32_from_f16, AS_F16)
PRODUCT(i64, int64_t, int64_t, int64_t, PLAIN, PLAIN)
PRODUCT(i32, int32_t, int64_t, int64_t, PLAIN, PLAIN)
PRODUCT(u8, uint8_t, int64_t, int64_t, PLAIN, PLAIN)

static const lines_fn products[TREK_DTYPE_COUNT] = {
    [TREK_F32] = cumprod_f32, [TREK_F64] = cumprod_f64, [TREK_BF16] = cumprod_bf16, [TREK_F16] = cumprod_f16,
    [TREK_I64] = cumprod_i64, [TREK_I32] = cumprod_i32, [TREK_U8] = cumprod_u8,     [TREK_BOOL] = cumprod_u8,
};

static trek_status run_cumulative(const trek_op_call *call)
{
    trek_order o;
    if (call->outputs[0]->numel == 0)
        return TREK_OK;
    trek_order_begin(&o, call, NEIGHBOURS);
    trek_dtype dtype = (trek_dtype)call->inputs[0]->dtype;
    o.run = call->op->id == TREK_OP_cumprod ? products[dtype] : extremes[dtype][call->op->id == TREK_OP_cummin];
    return trek_order_run(&o, 4 * o.n);
}

void trek_cpu_register_cumulative(trek_backend *b)
{
    for (int d = 0; d < TREK_DTYPE_COUNT; d++) {
        b->kernels[TREK_OP_cummax][d] = run_cumulative;
        b->kernels[TREK_OP_cummin][d] = run_cumulative;
        b->kernels[TREK_OP_cumprod][d] = run_cumulative;
    }
}
