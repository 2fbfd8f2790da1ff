/* SPDX-License-Identifier: Apache-2.0 */
#include "autograd/blocks.h"

#include <stdlib.h>

#include "autograd/tape_internal.h"
#include "tensor/pool.h"
#include "tensor/trace.h"

enum {
    BLOCK = 32768, /* elements for each thread: with fewer, cheap ops do not use another one */
    LEAST = 4      /* blocks; fewer are not worth it */
};

typedef struct blocks {
    trek_var *const *in;
    int n;
    const trek_tensor *whole; /* an input of the largest shape */
    bool rows;                /* the last dimension is reduced */
    bool flat;                /* all inputs are contiguous: blocks are parts of one line of elements, or of rows */
    int dim;                  /* otherwise blocks are parts of this dimension */
    int64_t row;              /* elements of an input for one of the result */
    int64_t length, step;     /* of what is divided, and of a block */
} blocks;

/* Returns the dimension whose elements are farthest apart. */
static int outermost(const trek_tensor *t)
{
    int dim = 0;
    for (int d = 1; d < t->ndim; d++)
        if (t->sizes[d] > 1 && (t->sizes[dim] == 1 || llabs(t->strides[d]) > llabs(t->strides[dim])))
            dim = d;
    return dim;
}

/* Returns the elements of a block, for all threads. */
static int64_t most_of_block(void) { return (int64_t)BLOCK * trek_pool_threads(trek_pool_here()); }

/* Returns an input of the largest shape, or NULL if the function is computed as it is. */
static const trek_tensor *largest(trek_var *const *in, int n, bool rows)
{
    const trek_tensor *whole = in[0]->data;
    for (int k = 1; k < n; k++)
        whole = in[k]->data->numel > whole->numel ? in[k]->data : whole;
    if ((rows && whole->ndim == 0) || whole->numel < LEAST * most_of_block() ||
        atomic_load_explicit(&trek_trace_now, memory_order_relaxed) || trek_debug)
        return NULL;
    for (int k = 0; k < n; k++) {
        const trek_tensor *t = in[k]->data;
        bool one = !rows && t->ndim == 0;
        if (t->device.type != TREK_CPU || !(one || trek_same_sizes(t, whole)) || (in[k]->requires_grad && trek_recording()))
            return NULL;
    }
    return whole;
}

/* Returns whether the function can be computed by blocks, and how. */
static bool plan(blocks *b, trek_var *const *in, int n, const trek_tensor *whole, bool rows)
{
    const int64_t most = most_of_block();
    bool flat = true;
    for (int k = 0; k < n; k++)
        flat = flat && in[k]->data->contiguous;
    const int64_t row = rows ? whole->sizes[whole->ndim - 1] : 1;
    *b = (blocks){ .in = in, .n = n, .whole = whole, .rows = rows, .flat = flat, .row = row, .length = whole->numel / row };
    if (!flat) {
        b->dim = outermost(whole);
        b->length = whole->sizes[b->dim];
    }
    if (!flat && rows && (whole->ndim == 1 || b->dim == whole->ndim - 1))
        return false; /* lines that are not divided may lie side by side: blocks of few lines would fetch all memory again */
    const int64_t each = whole->numel / b->length;
    b->step = each < most ? most / each : 1;
    return flat || b->length >= LEAST * b->step;
}

/* Returns part [at, at + count) of an input or of the result, as a variable of the innermost scope. */
static trek_var *block_of(const blocks *b, trek_tensor *t, int64_t at, int64_t count)
{
    const int64_t item = (int64_t)trek_item_size[t->dtype];
    int64_t sizes[TREK_MAX_DIMS] = { count, b->row };
    trek_tensor *part;
    if (b->flat) {
        const bool reduced = t->ndim < b->whole->ndim || !b->rows;
        const int64_t row = reduced ? 1 : b->row, strides[] = { row, 1 };
        part = trek_tensor_make_view(t, t->data + at * row * item, reduced ? 1 : 2, sizes, strides);
    } else {
        trek_copy_dims(sizes, t->sizes, t->ndim);
        sizes[b->dim] = count;
        part = trek_tensor_make_view(t, t->data + at * t->strides[b->dim] * item, t->ndim, sizes, t->strides);
    }
    return part ? trek_var_from(part) : NULL;
}

/* Makes the result, whose dimensions lie in memory in the order of those of the largest input. */
static trek_tensor *make_result(const blocks *b, trek_dtype dtype)
{
    const trek_tensor *whole = b->whole;
    const int ndim = whole->ndim - b->rows;
    if (b->flat)
        return trek_tensor_make(ndim, whole->sizes, dtype, whole->device);
    int order[TREK_MAX_DIMS];
    int64_t sizes[TREK_MAX_DIMS], strides[TREK_MAX_DIMS], stride = 1;
    for (int d = 0; d < ndim; d++) {
        int at = d;
        for (; at > 0 && llabs(whole->strides[order[at - 1]]) < llabs(whole->strides[d]); at--)
            order[at] = order[at - 1];
        order[at] = d;
    }
    for (int at = ndim - 1; at >= 0; at--) {
        sizes[at] = whole->sizes[order[at]];
        strides[order[at]] = stride;
        stride *= sizes[at];
    }
    trek_tensor *memory = trek_tensor_make(ndim, sizes, dtype, whole->device);
    trek_tensor *result = memory ? trek_tensor_make_view(memory, memory->data, ndim, whole->sizes, strides) : NULL;
    trek_tensor_release(memory);
    return result;
}

/* Computes one block. The first one makes *out, because it knows the dtype. */
static bool run_block(const blocks *b, trek_blocks_fn f, const double *numbers, int64_t at, int64_t count, trek_tensor **out)
{
    trek_var *parts[TREK_BLOCKS_INPUTS];
    for (int k = 0; k < b->n; k++) {
        parts[k] = b->in[k]->data->ndim == 0 ? b->in[k] : block_of(b, b->in[k]->data, at, count);
        if (!parts[k])
            return false;
    }
    trek_var *result = f(parts, numbers);
    if (result && !*out)
        *out = make_result(b, (trek_dtype)result->data->dtype);
    trek_var *place = result && *out ? block_of(b, *out, at, count) : NULL;
    return place && trek_tensor_copy_from(place->data, result->data) == TREK_OK;
}

/* Returns the dimensions along which all inputs of the largest shape repeat, as bits. */
static uint64_t repeated_dims(trek_var *const *in, int n, const trek_tensor *whole, bool rows)
{
    uint64_t repeated = 0;
    for (int d = 0; d < whole->ndim - rows; d++) {
        bool repeats = whole->sizes[d] > 1;
        for (int k = 0; k < n; k++)
            repeats = repeats && (in[k]->data->ndim == 0 || in[k]->data->strides[d] == 0);
        repeated |= (uint64_t)repeats << d;
    }
    return repeated;
}

static trek_var *by_blocks(trek_blocks_fn f, trek_var *const *in, int n, const double *numbers, bool rows);

/* Computes what repeats along these dimensions once, and copies it. */
static trek_var *once(trek_blocks_fn f, trek_var *const *in, int n, const double *numbers, const trek_tensor *whole,
                      uint64_t repeated, bool rows)
{
    trek_var *first[TREK_BLOCKS_INPUTS] = { NULL };
    int64_t sizes[TREK_MAX_DIMS], strides[TREK_MAX_DIMS];
    trek_scope scope = trek_scope_begin();
    for (int k = 0; k < n && scope.depth > 0; k++) {
        trek_tensor *t = in[k]->data;
        for (int d = 0; d < t->ndim; d++)
            sizes[d] = repeated >> d & 1 ? 1 : t->sizes[d];
        trek_tensor *part = trek_tensor_make_view(t, t->data, t->ndim, sizes, t->strides);
        first[k] = part ? trek_var_from(part) : NULL;
    }
    trek_var *result = by_blocks(f, first, n, numbers, rows);
    trek_tensor *view = NULL, *out = NULL;
    for (int d = 0; result && d < result->data->ndim; d++) {
        sizes[d] = whole->sizes[d];
        strides[d] = repeated >> d & 1 ? 0 : result->data->strides[d];
    }
    if (result)
        view = trek_tensor_make_view(result->data, result->data->data, result->data->ndim, sizes, strides);
    if (view)
        out = trek_tensor_contiguous(view);
    trek_tensor_release(view);
    trek_scope_end(scope);
    return out ? trek_var_from(out) : NULL;
}

static trek_var *by_blocks(trek_blocks_fn f, trek_var *const *in, int n, const double *numbers, bool rows)
{
    blocks b;
    for (int k = 0; k < n; k++)
        if (!in[k])
            return NULL;
    const trek_tensor *whole = largest(in, n, rows);
    const uint64_t repeated = whole ? repeated_dims(in, n, whole, rows) : 0;
    if (repeated)
        return once(f, in, n, numbers, whole, repeated, rows);
    if (!whole || !plan(&b, in, n, whole, rows))
        return f(in, numbers);
    trek_tensor *out = NULL;
    bool done = true;
    for (int64_t at = 0; done && at < b.length; at += b.step) {
        trek_scope scope = trek_scope_begin();
        done = scope.depth > 0 && run_block(&b, f, numbers, at, b.length - at < b.step ? b.length - at : b.step, &out);
        trek_scope_end(scope);
    }
    if (done)
        return trek_var_from(out);
    trek_tensor_release(out);
    return NULL;
}

trek_var *trek_by_blocks(trek_blocks_fn f, trek_var *const *in, int n, const double *numbers)
{
    return by_blocks(f, in, n, numbers, false);
}
trek_var *trek_by_rows(trek_blocks_fn f, trek_var *const *in, int n, const double *numbers)
{
    return by_blocks(f, in, n, numbers, true);
}
