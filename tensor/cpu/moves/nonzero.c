/* SPDX-License-Identifier: Apache-2.0 */
/* nonzero: counts in chunks, so that each chunk knows where its positions go. */
#include "tensor/cpu/elementwise/map.h"

#define CHUNK 16384

typedef struct places {
    const trek_tensor *x, *out;
    int64_t chunks, *starts; /* counts of the chunks, then where each begins, and the end */
    bool write;
} places;

/* Returns whether an element is 0; the sign of a float does not matter. */
static inline bool is_zero(const char *at, trek_dtype dtype)
{
    switch (dtype) {
    case TREK_F32: return (*(const uint32_t *)at << 1) == 0;
    case TREK_F64: return (*(const uint64_t *)at << 1) == 0;
    case TREK_BF16:
    case TREK_F16: return (*(const uint16_t *)at & 0x7fff) == 0;
    case TREK_I64: return *(const uint64_t *)at == 0;
    case TREK_I32: return *(const uint32_t *)at == 0;
    default: return *at == 0;
    }
}

/* Processes elements [begin, end) in row-major order: counts those that are not 0, or writes the coordinates of
 * `count` of them from `to` on. */
static inline int64_t go_through(const places *p, int64_t begin, int64_t end, int64_t *to, int64_t count, trek_dtype dtype)
{
    const trek_tensor *x = p->x;
    int ndim = x->ndim, last = ndim - 1;
    int64_t at[TREK_MAX_DIMS] = { 0 }, found = 0, width = trek_item_size[dtype], length = ndim > 0 ? x->sizes[last] : 1;
    int64_t step = ndim > 0 ? x->strides[last] * width : 0, row_step = p->out->strides[0], column_step = p->out->strides[1];
    for (int64_t i = begin, run; i < end; i += run) {
        int64_t rest = i / length, first = i % length;
        const char *row = x->data + first * step;
        for (int d = last - 1; d >= 0; d--) {
            at[d] = rest % x->sizes[d];
            rest /= x->sizes[d];
            row += at[d] * x->strides[d] * width;
        }
        run = length - first < end - i ? length - first : end - i;
        if (!to) {
            for (int64_t j = 0; j < run; j++)
                found += !is_zero(row + j * step, dtype);
            continue;
        }
        for (int64_t j = 0; j < run && found < count; j++) { /* also if the element is 0: then it is overwritten */
            for (int d = 0; d < last; d++)
                to[found * row_step + d * column_step] = at[d];
            to[found * row_step + last * column_step] = first + j;
            found += !is_zero(row + j * step, dtype);
        }
    }
    return found;
}

static void go_through_chunks(void *arg, int64_t begin, int64_t end)
{
    const places *p = arg;
    for (int64_t chunk = begin; chunk < end; chunk++) {
        int64_t first = chunk * CHUNK, last = first + CHUNK < p->x->numel ? first + CHUNK : p->x->numel, count = 0;
        int64_t found = p->write ? p->starts[chunk + 1] - p->starts[chunk] : 0;
        int64_t *to = p->write ? (int64_t *)p->out->data + p->starts[chunk] * p->out->strides[0] : NULL;
        switch (p->x->dtype) { /* a loop for each dtype */
        case TREK_F32: count = go_through(p, first, last, to, found, TREK_F32); break;
        case TREK_F64: count = go_through(p, first, last, to, found, TREK_F64); break;
        case TREK_BF16:
        case TREK_F16: count = go_through(p, first, last, to, found, TREK_F16); break;
        case TREK_I64: count = go_through(p, first, last, to, found, TREK_I64); break;
        case TREK_I32: count = go_through(p, first, last, to, found, TREK_I32); break;
        default: count = go_through(p, first, last, to, found, TREK_BOOL); break;
        }
        if (!p->write)
            p->starts[chunk] = count;
    }
}

static trek_status run_nonzero(const trek_op_call *call)
{
    places p = { .x = call->inputs[0], .out = call->outputs[0] };
    p.chunks = (p.x->numel + CHUNK - 1) / CHUNK;
    if (p.out->numel == 0)
        return TREK_OK;
    p.starts = trek_calloc((size_t)p.chunks + 1, sizeof *p.starts);
    if (!p.starts)
        return trek_error_status();
    trek_parallel(p.chunks, 1, go_through_chunks, &p);
    for (int64_t chunk = 0, sum = 0; chunk <= p.chunks; chunk++) {
        int64_t count = p.starts[chunk];
        p.starts[chunk] = sum;
        sum += count;
    }
    p.write = true;
    trek_parallel(p.chunks, 1, go_through_chunks, &p);
    trek_free(p.starts);
    return TREK_OK;
}

void trek_cpu_register_nonzero(trek_backend *b)
{
    for (int d = 0; d < TREK_DTYPE_COUNT; d++)
        b->kernels[TREK_OP_nonzero][d] = run_nonzero;
}
