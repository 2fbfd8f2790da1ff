/* SPDX-License-Identifier: Apache-2.0 */
#include "autograd/blocks.h"

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
    int64_t row;              /* elements of an input for one of the result */
    int64_t step;             /* elements of the result in a block */
} blocks;

/* Returns whether the function can be computed by blocks, and how. `rows`: the last dimension is reduced. */
static bool plan(blocks *b, trek_var *const *in, int n, bool rows)
{
    const trek_tensor *whole = in[0]->data;
    for (int k = 1; k < n; k++)
        whole = in[k]->data->numel > whole->numel ? in[k]->data : whole;
    int64_t most = (int64_t)BLOCK * trek_pool_threads(trek_pool_here());
    if ((rows && whole->ndim == 0) || whole->numel < LEAST * most ||
        atomic_load_explicit(&trek_trace_now, memory_order_relaxed) || trek_debug)
        return false;
    for (int k = 0; k < n; k++) {
        const trek_tensor *t = in[k]->data;
        bool one = !rows && t->numel == 1 && t->ndim == 0;
        if (t->device.type != TREK_CPU || !(one || (t->contiguous && trek_same_sizes(t, whole))) ||
            (in[k]->requires_grad && trek_recording()))
            return false;
    }
    int64_t row = rows ? whole->sizes[whole->ndim - 1] : 1;
    *b = (blocks){ .in = in, .n = n, .whole = whole, .row = row, .step = row < most ? most / row : 1 };
    return true;
}

/* Returns rows [at, at + count) of a contiguous tensor, as a variable of the innermost scope: [count, row], or [count] if ndim
 * is 1. */
static trek_var *block_of(trek_tensor *t, int64_t at, int64_t count, int64_t row, int ndim)
{
    const int64_t sizes[] = { count, row }, strides[] = { row, 1 };
    trek_tensor *part = trek_tensor_make_view(t, t->data + at * row * trek_item_size[t->dtype], ndim, sizes, strides);
    return part ? trek_var_from(part) : NULL;
}

/* Computes one block. The first one makes *out, because it knows the dtype. */
static bool run_block(const blocks *b, trek_blocks_fn f, const double *numbers, int64_t at, int64_t count, bool rows,
                      trek_tensor **out)
{
    trek_var *parts[TREK_BLOCKS_INPUTS];
    for (int k = 0; k < b->n; k++) {
        parts[k] = b->in[k]->data->ndim == 0 ? b->in[k] : block_of(b->in[k]->data, at, count, b->row, rows ? 2 : 1);
        if (!parts[k])
            return false;
    }
    trek_var *result = f(parts, numbers);
    if (result && !*out)
        *out = trek_tensor_make(b->whole->ndim - rows, b->whole->sizes, (trek_dtype)result->data->dtype, b->whole->device);
    trek_var *place = result && *out ? block_of(*out, at, count, 1, 1) : NULL;
    return place && trek_tensor_copy_from(place->data, result->data) == TREK_OK;
}

static trek_var *by_blocks(trek_blocks_fn f, trek_var *const *in, int n, const double *numbers, bool rows)
{
    blocks b;
    for (int k = 0; k < n; k++)
        if (!in[k])
            return NULL;
    if (!plan(&b, in, n, rows))
        return f(in, numbers);
    trek_tensor *out = NULL;
    bool done = true;
    for (int64_t at = 0, all = b.whole->numel / b.row; done && at < all; at += b.step) {
        trek_scope scope = trek_scope_begin();
        done = scope.depth > 0 && run_block(&b, f, numbers, at, all - at < b.step ? all - at : b.step, rows, &out);
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
