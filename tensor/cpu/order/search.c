/* SPDX-License-Identifier: Apache-2.0 */
/* searchsorted: the positions of values in sorted lines. */
#include "tensor/cpu/elementwise/map.h"

typedef struct search {
    const trek_tensor *lines, *x, *out;
    bool right;
    int64_t n, step; /* of a line */
    int64_t (*find)(const char *line, int64_t step, int64_t n, const char *x, bool right);
} search;

/* The first index whose element is not below x (right: is above it). A NaN is above everything, as in PyTorch. */
#define FIND(name, T, V, value)                                                                        \
    static int64_t find_##name(const char *line, int64_t step, int64_t n, const char *x, bool right)   \
    {                                                                                                  \
        const V wanted = value(*(const T *)x);                                                         \
        int64_t low = 0;                                                                               \
        while (n > 0) { /* without a branch, which could not be predicted */                                \
            const int64_t half = n / 2;                                                                \
            const V here = value(((const T *)line)[(low + half) * step]);                              \
            const bool behind = !(right ? here > wanted : here >= wanted);                             \
            low = behind ? low + half + 1 : low;                                                       \
            n = behind ? n - half - 1 : half;                                                          \
        }                                                                                              \
        return low;                                                                                    \
    }
#define PLAIN(x) (x)
FIND(f32, float, float, PLAIN)
FIND(f64, double, double, PLAIN)
FIND(bf16, uint16_t, float, trek_f32_from_bf16)
FIND(f16, uint16_t, float, trek_f32_from_f16)
FIND(i64, int64_t, int64_t, PLAIN)
FIND(i32, int32_t, int32_t, PLAIN)
FIND(u8, uint8_t, uint8_t, PLAIN)

/* Where row number `row` of values begins: in x, in the result, and its line, in elements. */
typedef struct search_row {
    int64_t x, out, line;
} search_row;
static search_row row_of(const search *s, int64_t row)
{
    search_row at = { 0 };
    for (int d = s->x->ndim - 2; d >= 0; d--) {
        int64_t place = row % s->x->sizes[d];
        row /= s->x->sizes[d];
        at.x += place * s->x->strides[d];
        at.out += place * s->out->strides[d];
        at.line += s->lines->ndim > 1 ? place * s->lines->strides[d] : 0;
    }
    return at;
}

static void search_part(void *arg, int64_t begin, int64_t end)
{
    const search *s = arg;
    const int width = trek_item_size[s->x->dtype], last = s->x->ndim - 1;
    const int64_t inner = last < 0 ? 1 : s->x->sizes[last], x_step = last < 0 ? 0 : s->x->strides[last];
    const int64_t out_step = last < 0 ? 0 : s->out->strides[last];
    for (int64_t place = begin, stop; place < end; place = stop) {
        int64_t row = place / inner;
        search_row at = row_of(s, row);
        const char *line = s->lines->data + at.line * width;
        stop = (row + 1) * inner < end ? (row + 1) * inner : end;
        for (int64_t k = place - row * inner; k < stop - row * inner; k++)
            ((int64_t *)s->out->data)[at.out + k * out_step] =
                s->find(line, s->step, s->n, s->x->data + (at.x + k * x_step) * width, s->right);
    }
}

static trek_status run_searchsorted(const trek_op_call *call)
{
    static int64_t (*const finds[TREK_DTYPE_COUNT])(const char *, int64_t, int64_t, const char *, bool) = {
        [TREK_F32] = find_f32, [TREK_F64] = find_f64, [TREK_BF16] = find_bf16, [TREK_F16] = find_f16,
        [TREK_I64] = find_i64, [TREK_I32] = find_i32, [TREK_U8] = find_u8,
    };
    const trek_tensor *lines = call->inputs[0];
    search s = { .lines = lines, .x = call->inputs[1], .out = call->outputs[0], .right = call->attrs.i[0] != 0,
                 .n = lines->sizes[lines->ndim - 1], .step = lines->strides[lines->ndim - 1], .find = finds[lines->dtype] };
    trek_parallel(s.x->numel, TREK_GRAIN_CALL, search_part, &s);
    return TREK_OK;
}

void trek_cpu_register_search(trek_backend *b)
{
    for (int d = 0; d < TREK_DTYPE_COUNT; d++)
        if (d != TREK_BOOL)
            b->kernels[TREK_OP_searchsorted][d] = run_searchsorted;
}
