/* SPDX-License-Identifier: Apache-2.0 */
/* sort, topk, kthvalue. Elements become keys, integers in the requested order (NaN is the largest, -0 and 0 are
 * equal), followed by their indices. A key of up to 32 bits and an index fill 64 bits. */
#include "tensor/cpu/order/order.h"

#define FEW 40 /* up to here insertion is faster */
#define FEW_FIRST 24 /* for topk */
#define TILE 64 /* elements of a line that are processed before its neighbours */
#define NEIGHBOURS 16
#define MOST_BYTES (2 << 20) /* of the keys of neighbouring lines */

typedef struct pair {
    uint64_t key, place;
} pair;

#define E uint64_t
#define N(name) name##_narrow
#define BYTE(e, b) ((uint8_t)((e) >> (32 + 8 * (b))))
#define BEFORE(x, y) ((x) < (y))
#include "tensor/cpu/order/order_template.h"

static inline bool pair_before(pair x, pair y) { return x.key < y.key || (x.key == y.key && x.place < y.place); }
#define E pair
#define N(name) name##_wide
#define BYTE(e, b) ((uint8_t)((e).key >> (8 * (b))))
#define BEFORE(x, y) pair_before(x, y)
#include "tensor/cpu/order/order_template.h"

/* --- keys of each dtype ----------------------------------------------------------------- */

/* Makes a key of the bits of a float: negative numbers are inverted, the others are above them. There is no branch,
 * because signs cannot be predicted. */
#define FLOAT_KEY(name, U)                                                                             \
    static inline U name(U bits, U sign, U infinity, U all)                                            \
    {                                                                                                  \
        const U size = bits & ~sign, negative = (U)0 - (U)((bits & sign) != 0);                        \
        const U key = bits ^ ((negative & all) | sign);                                                \
        const U number = size == 0 ? sign : key;                                                       \
        return size > infinity ? all : number;                                                         \
    }
FLOAT_KEY(float_key_32, uint32_t)
FLOAT_KEY(float_key_64, uint64_t)
#define KEY_F32(bits) float_key_32(bits, 0x80000000u, 0x7f800000u, 0xffffffffu)
#define KEY_BF16(bits) float_key_32(bits, 0x8000u, 0x7f80u, 0xffffu)
#define KEY_F16(bits) float_key_32(bits, 0x8000u, 0x7c00u, 0xffffu)
#define KEY_F64(bits) float_key_64(bits, (uint64_t)1 << 63, (uint64_t)0x7ff << 52, ~(uint64_t)0)
#define KEY_I32(bits) ((bits) ^ 0x80000000u)
#define KEY_U8(bits) ((uint32_t)(bits))
#define KEY_I64(bits) ((bits) ^ (uint64_t)1 << 63)

/* Loads n elements that are `step` apart, from index `first` on. flip: all bits of a key if the order is reversed. */
#define LOAD_NARROW(name, T, KEY)                                                                      \
    static void load_##name(void *to, const void *from, int64_t step, int64_t first, int64_t n, uint64_t flip) \
    {                                                                                                  \
        uint64_t *keys = (uint64_t *)to + first;                                                       \
        const T *x = (const T *)from + first * step;                                                   \
        for (int64_t i = 0; i < n; i++)                                                                \
            keys[i] = ((uint64_t)KEY(x[i * step]) ^ flip) << 32 | (uint64_t)(first + i);                         \
    }
#define LOAD_WIDE(name, KEY)                                                                           \
    static void load_##name(void *to, const void *from, int64_t step, int64_t first, int64_t n, uint64_t flip) \
    {                                                                                                  \
        pair *keys = (pair *)to + first;                                                               \
        const uint64_t *x = (const uint64_t *)from + first * step;                                     \
        for (int64_t i = 0; i < n; i++)                                                                \
            keys[i] = (pair){ KEY(x[i * step]) ^ flip, (uint64_t)(first + i) };                        \
    }
LOAD_NARROW(f32, uint32_t, KEY_F32)
LOAD_NARROW(bf16, uint16_t, KEY_BF16)
LOAD_NARROW(f16, uint16_t, KEY_F16)
LOAD_NARROW(i32, uint32_t, KEY_I32)
LOAD_NARROW(u8, uint8_t, KEY_U8)
LOAD_WIDE(f64, KEY_F64)
LOAD_WIDE(i64, KEY_I64)

/* Stores sorted elements from `first` on to the results from `first` on. Values are found by their indices. */
#define STORE(name, E, T, PLACE)                                                                       \
    static void store_##name(void *values, int64_t values_step, int64_t *places, int64_t places_step, const void *keys, \
                             const void *from, int64_t step, int64_t first, int64_t n)                 \
    {                                                                                                  \
        const E *sorted = keys;                                                                        \
        const T *x = from;                                                                             \
        T *to = values;                                                                                \
        for (int64_t i = first; i < first + n; i++) {                                                  \
            int64_t place = (int64_t)PLACE(sorted[i]);                                                 \
            to[i * values_step] = x[place * step];                                                     \
            places[i * places_step] = place;                                                           \
        }                                                                                              \
    }
#define PLACE_NARROW(e) (uint32_t)(e)
#define PLACE_WIDE(e) (e).place
STORE(1, uint64_t, uint8_t, PLACE_NARROW)
STORE(2, uint64_t, uint16_t, PLACE_NARROW)
STORE(4, uint64_t, uint32_t, PLACE_NARROW)
STORE(8, pair, uint64_t, PLACE_WIDE)

/* Returns whether n elements that are `step` apart are in order already. */
#define ORDERED(name, T, U, KEY)                                                                       \
    static bool ordered_##name(const void *from, int64_t step, int64_t n, uint64_t flip)               \
    {                                                                                                  \
        const T *x = from;                                                                             \
        const U mask = (U)flip;                                                                        \
        for (int64_t i = 1; i < n && step != 0;) {                                                     \
            const int64_t end = n - i < TILE ? n : i + TILE;                                           \
            U wrong = 0;                                                                               \
            for (; i < end; i++)                                                                       \
                wrong |= (U)((U)((U)KEY(x[i * step]) ^ mask) < (U)((U)KEY(x[(i - 1) * step]) ^ mask)); \
            if (wrong)                                                                                 \
                return false;                                                                          \
        }                                                                                              \
        return true;                                                                                   \
    }
ORDERED(f32, uint32_t, uint32_t, KEY_F32)
ORDERED(f64, uint64_t, uint64_t, KEY_F64)
ORDERED(bf16, uint16_t, uint32_t, KEY_BF16)
ORDERED(f16, uint16_t, uint32_t, KEY_F16)
ORDERED(i64, uint64_t, uint64_t, KEY_I64)
ORDERED(i32, uint32_t, uint32_t, KEY_I32)
ORDERED(u8, uint8_t, uint32_t, KEY_U8)

/* Stores the first n elements of such a line and their places. */
#define STORE_ORDERED(name, T)                                                                         \
    static void store_ordered_##name(void *values, int64_t values_step, const void *from, int64_t step, int64_t n) \
    {                                                                                                  \
        T *to = values;                                                                                \
        const T *x = from, first = *x;                                                                 \
        if (values_step == 1 && step == 1)                                                             \
            memcpy(to, x, (size_t)n * sizeof *to);                                                     \
        else if (values_step == 1 && step == 0)                                                        \
            for (int64_t i = 0; i < n; i++)                                                            \
                to[i] = first;                                                                         \
        else                                                                                           \
            for (int64_t i = 0; i < n; i++)                                                            \
                to[i * values_step] = x[i * step];                                                     \
    }
STORE_ORDERED(1, uint8_t)
STORE_ORDERED(2, uint16_t)
STORE_ORDERED(4, uint32_t)
STORE_ORDERED(8, uint64_t)

static void store_places(int64_t *places, int64_t step, int64_t n)
{
    if (step == 1)
        for (int64_t i = 0; i < n; i++)
            places[i] = i;
    else
        for (int64_t i = 0; i < n; i++)
            places[i * step] = i;
}

typedef struct kind {
    bool (*ordered)(const void *from, int64_t step, int64_t n, uint64_t flip);
    void (*store_ordered)(void *values, int64_t values_step, const void *from, int64_t step, int64_t n);
    void (*load)(void *to, const void *from, int64_t step, int64_t first, int64_t n, uint64_t flip);
    void (*store)(void *values, int64_t values_step, int64_t *places, int64_t places_step, const void *keys, const void *from,
                  int64_t step, int64_t first, int64_t n);
    int bytes; /* of a key */
    bool floats;
} kind;

#define KIND(name, width, bytes, floats)                                                               \
    {                                                                                                  \
        ordered_##name, store_ordered_##width, load_##name, store_##width, bytes, floats               \
    }
static const kind kinds[TREK_DTYPE_COUNT] = {
    [TREK_F32] = KIND(f32, 4, 4, true),   [TREK_F64] = KIND(f64, 8, 8, true),
    [TREK_BF16] = KIND(bf16, 2, 2, true), [TREK_F16] = KIND(f16, 2, 2, true),
    [TREK_I64] = KIND(i64, 8, 8, false),  [TREK_I32] = KIND(i32, 4, 4, false),
    [TREK_U8] = KIND(u8, 1, 1, false),    [TREK_BOOL] = KIND(u8, 1, 1, false),
};

static const kind *kind_of(const trek_order *o) { return &kinds[o->call->inputs[0]->dtype]; }
static size_t key_size(const trek_order *o) { return kind_of(o)->bytes == 8 ? sizeof(pair) : sizeof(uint64_t); }

/* Returns the bits of a key that are inverted. */
static uint64_t flip_of(const trek_order *o, bool descending)
{
    return descending ? ~(uint64_t)0 >> (64 - 8 * kind_of(o)->bytes) : 0;
}

/* Loads keys of neighbouring lines, one after the other. */
static void load_keys(const trek_order *o, char *const *data, int64_t columns, char *keys, bool descending)
{
    const kind *k = kind_of(o);
    const uint64_t flip = flip_of(o, descending);
    for (int64_t first = 0; first < o->n; first += TILE)
        for (int64_t c = 0; c < columns; c++)
            k->load(keys + (size_t)(c * o->n) * key_size(o), data[0] + c * o->across[0] * o->width, o->along[0], first,
                    o->n - first < TILE ? o->n - first : TILE, flip);
}

/* Stores the first n sorted keys of each line. */
static void store_sorted(const trek_order *o, char *const *data, int64_t columns, const void *const *sorted, int64_t n)
{
    for (int64_t first = 0; first < n; first += TILE)
        for (int64_t c = 0; c < columns; c++)
            kind_of(o)->store(data[1] + c * o->across[1] * o->width, o->along[1], (int64_t *)data[2] + c * o->across[2],
                              o->along[2],
                              sorted[c], data[0] + c * o->across[0] * o->width, o->along[0], first,
                              n - first < TILE ? n - first : TILE);
}

static bool is_descending(const trek_order *o)
{
    return o->call->op->id == TREK_OP_sort ? o->call->attrs.i[1] != 0 : o->call->attrs.i[2] != 0;
}

/* Stores the first n elements of lines that are in order already. Returns false if one is not, or if its elements have gaps
 * between them, so that looking at one line fetches others. */
static bool keep_order(const trek_order *o, char *const *data, int64_t columns, int64_t n)
{
    const kind *k = kind_of(o);
    const uint64_t flip = flip_of(o, is_descending(o));
    bool ordered = o->along[0] == 0 || o->along[0] == 1;
    for (int64_t c = 0; c < columns && ordered; c++)
        ordered = k->ordered(data[0] + c * o->across[0] * o->width, o->along[0], o->n, flip);
    for (int64_t c = 0; c < columns && ordered; c++) {
        k->store_ordered(data[1] + c * o->across[1] * o->width, o->along[1], data[0] + c * o->across[0] * o->width, o->along[0],
                         n);
        store_places((int64_t *)(void *)data[2] + c * o->across[2], o->along[2], n);
    }
    return ordered;
}

static void sort_lines(const trek_order *o, char *const *data, int64_t columns, void *scratch)
{
    const void *sorted[NEIGHBOURS];
    size_t line = (size_t)o->n * key_size(o);
    int bytes = kind_of(o)->bytes;
    char *keys = scratch, *room = keys + (size_t)o->block * line;
    int64_t count = o->call->op->id == TREK_OP_topk ? o->call->attrs.i[1] : o->n;
    if (keep_order(o, data, columns, count))
        return;
    load_keys(o, data, columns, keys, is_descending(o));
    for (int64_t c = 0; c < columns; c++) {
        void *a = keys + (size_t)c * line, *own = room + (size_t)c * line;
        if (count < o->n)
            sorted[c] = bytes == 8 ? (const void *)first_wide(a, own, o->n, count, bytes)
                : first_narrow(a, own, o->n, count, bytes);
        else
            sorted[c] = bytes == 8 ? (const void *)sorted_wide(a, own, o->n, bytes) : sorted_narrow(a, own, o->n, bytes);
    }
    store_sorted(o, data, columns, sorted, count);
}

/* Returns the position in order that kthvalue asks for. */
static int64_t wanted_place(const trek_order *o, const void *keys)
{
    const kind *k = kind_of(o);
    const trek_attrs *a = &o->call->attrs;
    if (a->i[2] == TREK_ORDER_KTH)
        return a->i[1] - 1;
    uint64_t nan = ~(uint64_t)0 >> (64 - 8 * k->bytes);
    int64_t numbers = o->n;
    for (int64_t i = 0; i < o->n && k->floats; i++)
        numbers -= k->bytes == 8 ? ((const pair *)keys)[i].key == nan : ((const uint64_t *)keys)[i] >> 32 == nan;
    if (a->i[2] == TREK_ORDER_MEDIAN && numbers < o->n)
        return numbers; /* the first NaN */
    return numbers > 0 ? (numbers - 1) / 2 : 0;
}

static void choose_in_lines(const trek_order *o, char *const *data, int64_t columns, void *scratch)
{
    size_t line = (size_t)o->n * key_size(o);
    int bytes = kind_of(o)->bytes;
    char *keys = scratch, *room = keys + (size_t)o->block * line;
    const void *chosen[NEIGHBOURS];
    pair found[NEIGHBOURS];
    load_keys(o, data, columns, keys, false);
    for (int64_t c = 0; c < columns; c++) {
        void *a = keys + (size_t)c * line;
        int64_t k = wanted_place(o, a);
        if (bytes == 8)
            found[c] = chosen_wide(a, (pair *)room, o->n, k, bytes);
        else
            found[c].key = chosen_narrow(a, (uint64_t *)room, o->n, k, bytes);
        chosen[c] = &found[c];
    }
    store_sorted(o, data, columns, chosen, 1);
}

static trek_status run_sort(const trek_op_call *call)
{
    trek_order o;
    int64_t n = call->inputs[0]->ndim > 0 ? call->inputs[0]->sizes[call->attrs.i[0]] : 1;
    if (call->outputs[0]->numel == 0)
        return TREK_OK;
    if (n > UINT32_MAX)
        return trek_op_fail(call, TREK_ERR_UNSUPPORTED, "x: a line of %lld elements; must be shorter", (long long)n);
    int64_t neighbours = MOST_BYTES / (n * (int64_t)sizeof(uint64_t)) + 1;
    trek_order_begin(&o, call, neighbours < NEIGHBOURS ? neighbours : NEIGHBOURS);
    o.run = call->op->id == TREK_OP_kthvalue ? choose_in_lines : sort_lines;
    o.scratch = 2 * (size_t)o.block * (size_t)n * key_size(&o);
    return trek_order_run(&o, 16 * n);
}

void trek_cpu_register_sort(trek_backend *b)
{
    for (int d = 0; d < TREK_DTYPE_COUNT; d++) {
        b->kernels[TREK_OP_sort][d] = run_sort;
        b->kernels[TREK_OP_topk][d] = run_sort;
        if (d != TREK_BOOL)
            b->kernels[TREK_OP_kthvalue][d] = run_sort;
    }
}
