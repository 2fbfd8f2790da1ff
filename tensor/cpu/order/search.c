/* SPDX-License-Identifier: Apache-2.0 */
/* searchsorted: where values belong in sorted lines. */
#include "tensor/cpu/elementwise/map.h"

typedef struct search {
    const trek_tensor *lines, *x, *out;
    bool right;
    int64_t n, step; /* of a line */
    int64_t (*find)(const char *line, int64_t step, int64_t n, const char *x, bool right);
} search;

/* The first place whose element is not below x (right: is above it); a NaN is above all, as PyTorch has it. */
#define FIND(name, T, V, value)                                                                        \
    static int64_t find_##name(const char *line, int64_t step, int64_t n, const char *x, bool right)   \
    {                                                                                                  \
        const V wanted = value(*(const T *)x);                                                         \
        int64_t low = 0;                                                                               \
        while (n > 0) { /* without a branch that nobody can foretell */                                \
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

static void search_part(void *arg, int64_t begin, int64_t end)
{
    const search *s = arg;
    int width = trek_item_size[s->x->dtype];
    for (int64_t place = begin; place < end; place++) {
        int64_t rest = place, x = 0, out = 0, line = 0;
        for (int d = s->x->ndim - 1; d >= 0; d--) {
            int64_t at = rest % s->x->sizes[d];
            rest /= s->x->sizes[d];
            x += at * s->x->strides[d];
            out += at * s->out->strides[d];
            line += s->lines->ndim > 1 && d < s->x->ndim - 1 ? at * s->lines->strides[d] : 0;
        }
        ((int64_t *)s->out->data)[out] = s->find(s->lines->data + line * width, s->step, s->n, s->x->data + x * width, s->right);
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
