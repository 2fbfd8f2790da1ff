/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels that move elements without reading their values: flip, cat, tril, triu. */
#include "tensor/cpu/elementwise/map.h"

/* Makes a tensor header for a part of another tensor's memory, for the copy kernel. It owns nothing. */
static void describe(trek_tensor *view, const trek_tensor *t, char *data)
{
    view->dtype = t->dtype;
    view->ndim = t->ndim;
    view->contiguous = false;
    view->device = t->device;
    view->data = data;
    view->storage = t->storage;
    view->numel = t->numel;
    memcpy(view->sizes, t->sizes, sizeof view->sizes);
    memcpy(view->strides, t->strides, sizeof view->strides);
}

static trek_status copy_into(trek_tensor *to, trek_tensor *from)
{
    trek_op_call copy = { .op = &trek_ops[TREK_OP_copy], .n_inputs = 1, .n_outputs = 1, .inputs = &from, .outputs = { to } };
    return trek_cpu_backend()->kernels[TREK_OP_copy][from->dtype](&copy);
}

typedef struct reversal {
    char *to;
    const char *from;
    int64_t n;
    int width;
} reversal;

#define REVERSE(T)                                                                                     \
    for (int64_t row = begin; row < end; row++) {                                                      \
        T *restrict to = (T *)r->to + row * n;                                                         \
        const T *restrict from = (const T *)r->from + row * n + n - 1;                                 \
        for (int64_t i = 0; i < n; i++)                                                                \
            to[i] = from[-i];                                                                          \
    }

static void reverse_rows(void *arg, int64_t begin, int64_t end)
{
    const reversal *r = arg;
    const int64_t n = r->n;
    switch (r->width) {
    case 1: REVERSE(uint8_t) break;
    case 2: REVERSE(uint16_t) break;
    case 4: REVERSE(uint32_t) break;
    default: REVERSE(uint64_t) break;
    }
}

/* Flips only the last dimension of a contiguous tensor. Returns false if the call is another one. */
static bool flip_rows(const trek_op_call *call)
{
    const trek_tensor *in = call->inputs[0], *out = call->outputs[0];
    int last = in->ndim - 1;
    if (last < 0 || call->attrs.i[0] != (int64_t)1 << last || !in->contiguous || !out->contiguous)
        return false;
    reversal r = { out->data, in->data, in->sizes[last], (int)trek_dtype_size((trek_dtype)in->dtype) };
    trek_parallel(in->numel / r.n, TREK_GRAIN_CHEAP / r.n + 1, reverse_rows, &r);
    return true;
}

/* Reads backwards along the dimensions whose bits are set in i[0]. */
static trek_status flip(const trek_op_call *call)
{
    const trek_tensor *in = call->inputs[0];
    if (in->numel == 0 || flip_rows(call))
        return TREK_OK;
    trek_tensor view = { .ndim = 0 };
    int64_t bytes = (int64_t)trek_dtype_size((trek_dtype)in->dtype);
    describe(&view, in, in->data);
    for (int d = 0; d < in->ndim; d++) {
        if (!(call->attrs.i[0] >> d & 1))
            continue;
        view.data += (in->sizes[d] - 1) * in->strides[d] * bytes;
        view.strides[d] = -in->strides[d];
    }
    return copy_into(call->outputs[0], &view);
}

/* Returns the bytes between neighbours along a dimension of a contiguous tensor. */
static int64_t step_bytes(const trek_tensor *t, int dim)
{
    int64_t bytes = (int64_t)trek_dtype_size((trek_dtype)t->dtype);
    for (int d = dim + 1; d < t->ndim; d++)
        bytes *= t->sizes[d];
    return bytes;
}

/* Copies rows of the output, of which each input provides a piece. */
static void cat_rows(void *arg, int64_t begin, int64_t end)
{
    const trek_op_call *call = arg;
    const trek_tensor *out = call->outputs[0];
    int dim = (int)call->attrs.i[0];
    int64_t bytes = step_bytes(out, dim);
    char *to = out->data + begin * out->sizes[dim] * bytes;
    for (int64_t row = begin; row < end; row++)
        for (int k = 0; k < call->n_inputs; k++) {
            const trek_tensor *in = call->inputs[k];
            int64_t piece = in->sizes[dim] * bytes;
            memcpy(to, in->data + row * piece, (size_t)piece);
            to += piece;
        }
}

/* Copies if everything is contiguous and rows are long enough to be copied one after the other. Returns false
 * otherwise. */
static bool cat_contiguous(const trek_op_call *call)
{
    const trek_tensor *out = call->outputs[0];
    int dim = (int)call->attrs.i[0];
    bool contiguous = out->contiguous && dim > 0;
    for (int k = 0; contiguous && k < call->n_inputs; k++)
        contiguous = call->inputs[k]->contiguous && call->inputs[k]->numel > 0;
    if (!contiguous)
        return false;
    trek_op_call rows = *call; /* the pool's argument is not const */
    int64_t length = out->sizes[dim] * step_bytes(out, dim) / (int64_t)trek_dtype_size((trek_dtype)out->dtype);
    if (length < 16 * call->n_inputs)
        return false;
    trek_parallel(out->numel / length, TREK_GRAIN_CHEAP / length + 1, cat_rows, &rows);
    return true;
}

/* Copies each input to its part of the output along dimension i[0]. */
static trek_status cat(const trek_op_call *call)
{
    const trek_tensor *out = call->outputs[0];
    if (cat_contiguous(call))
        return TREK_OK;
    int dim = (int)call->attrs.i[0];
    int64_t bytes = (int64_t)trek_dtype_size((trek_dtype)out->dtype), place = 0;
    for (int k = 0; k < call->n_inputs; k++) {
        trek_tensor *in = call->inputs[k], part = { .ndim = 0 };
        if (in->numel == 0)
            continue;
        describe(&part, out, out->data + place * out->strides[dim] * bytes);
        part.sizes[dim] = in->sizes[dim];
        part.numel = in->numel;
        part.contiguous = out->contiguous && (dim == 0 || in->sizes[dim] == out->sizes[dim]);
        trek_status status = copy_into(&part, in);
        if (status != TREK_OK)
            return status;
        place += in->sizes[dim];
    }
    return TREK_OK;
}

/* --- triangles --- */

typedef struct triangle {
    const trek_tensor *in, *out;
    int64_t diagonal;
    bool lower, copied;
    int width;
} triangle;

/* Writes a row of the result. If `copied`, the part that is kept has been written already. */
static void triangle_row(const triangle *t, char *to, const char *from, int64_t first, int64_t last)
{
    int nd = t->in->ndim;
    int64_t columns = t->in->sizes[nd - 1], in_step = t->in->strides[nd - 1] * t->width, out_step = t->out->strides[nd - 1];
    first = first < 0 ? 0 : first > columns ? columns : first;
    last = last > columns ? columns : last < first ? first : last;
    if (out_step == 1) {
        memset(to, 0, (size_t)(first * t->width));
        if (!t->copied)
            TREK_ISA_NAME(trek_lane_load)((trek_lane)t->width, to + first * t->width, from + first * in_step, in_step,
                                          last - first);
        memset(to + last * t->width, 0, (size_t)((columns - last) * t->width));
        return;
    }
    for (int64_t c = 0; c < columns; c++, to += out_step * t->width, from += in_step)
        if (c < first || c >= last)
            memset(to, 0, (size_t)t->width);
        else if (!t->copied)
            memcpy(to, from, (size_t)t->width);
}

static void triangle_rows(void *arg, int64_t begin, int64_t end)
{
    const triangle *t = arg;
    int nd = t->in->ndim;
    int64_t rows = t->in->sizes[nd - 2], columns = t->in->sizes[nd - 1];
    for (int64_t row = begin; row < end; row++) {
        int64_t r = row % rows, index = row, in = 0, out = 0;
        for (int d = nd - 2; d >= 0; d--) {
            in += index % t->in->sizes[d] * t->in->strides[d];
            out += index % t->in->sizes[d] * t->out->strides[d];
            index /= t->in->sizes[d];
        }
        /* kept: column <= r + diagonal for lower, column >= r + diagonal for upper */
        int64_t edge = r + t->diagonal;
        triangle_row(t, t->out->data + out * t->width, t->in->data + in * t->width, t->lower ? 0 : edge,
                     t->lower ? edge + 1 : columns);
    }
}

static trek_status keep_triangle(const trek_op_call *call, bool lower)
{
    const trek_tensor *in = call->inputs[0];
    if (in->numel == 0)
        return TREK_OK;
    int64_t rows = in->sizes[in->ndim - 2], columns = in->sizes[in->ndim - 1], diagonal = call->attrs.i[0];
    diagonal = diagonal > columns ? columns : diagonal < -rows ? -rows : diagonal; /* larger diagonals change nothing */
    triangle t = { in, call->outputs[0], diagonal, lower, in->strides[in->ndim - 1] > 2, /* columns far apart: copied in tiles */
                   (int)trek_dtype_size((trek_dtype)in->dtype) };
    trek_status status = t.copied && t.in->data != t.out->data ? copy_into(call->outputs[0], call->inputs[0]) : TREK_OK;
    if (status != TREK_OK)
        return status;
    trek_parallel(in->numel / columns, TREK_GRAIN_CHEAP / columns + 1, triangle_rows, &t);
    return TREK_OK;
}

static trek_status tril(const trek_op_call *call) { return keep_triangle(call, true); }
static trek_status triu(const trek_op_call *call) { return keep_triangle(call, false); }

void TREK_ISA_NAME(trek_cpu_register_arrange)(trek_backend *b)
{
    for (int d = 0; d < TREK_DTYPE_COUNT; d++) {
        b->kernels[TREK_OP_flip][d] = flip;
        b->kernels[TREK_OP_cat][d] = cat;
        b->kernels[TREK_OP_tril][d] = tril;
        b->kernels[TREK_OP_triu][d] = triu;
    }
}
