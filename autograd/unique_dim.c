/* SPDX-License-Identifier: Apache-2.0 */
/* The distinct slices of a tensor along a dimension. */
#include <string.h>

#include "autograd/calls_internal.h"
#include "autograd/ops.h"
#include "autograd/tape_internal.h"
#include "tensor/memory.h"

/* --- the order of rows of integers ----------------------------------------------------------------- */

typedef struct rows {
    const int64_t *data;
    int64_t width;
} rows;

static int compare(const rows *r, int64_t a, int64_t b)
{
    const int64_t *x = r->data + a * r->width, *y = r->data + b * r->width;
    for (int64_t k = 0; k < r->width; k++)
        if (x[k] != y[k])
            return x[k] < y[k] ? -1 : 1;
    return 0;
}

/* Merges sorted runs of `run` rows into runs twice as long. The sort is stable. */
static void merge(const rows *r, const int64_t *from, int64_t *to, int64_t n, int64_t run)
{
    for (int64_t begin = 0; begin < n; begin += 2 * run) {
        int64_t middle = begin + run < n ? begin + run : n, end = begin + 2 * run < n ? begin + 2 * run : n;
        int64_t a = begin, b = middle;
        for (int64_t k = begin; k < end; k++) {
            bool first = a < middle && (b >= end || compare(r, from[a], from[b]) <= 0);
            to[k] = first ? from[a++] : from[b++];
        }
    }
}

/* Returns the rows in order; `room` holds 2 n. */
static int64_t *sorted(const rows *r, int64_t n, int64_t *room)
{
    int64_t *order = room, *other = room + n;
    for (int64_t k = 0; k < n; k++)
        order[k] = k;
    for (int64_t run = 1; run < n; run *= 2) {
        merge(r, order, other, n, run);
        int64_t *swapped = order;
        order = other;
        other = swapped;
    }
    return order;
}

/* --- the op ---------------------------------------------------------------------------------------------- */

/* Makes an i64 tensor on the CPU that belongs to the scope, and returns its numbers. */
static trek_var *integers(int64_t n, int64_t **data)
{
    trek_tensor *t = trek_tensor_empty(trek_dims(n), TREK_I64, trek_cpu(0));
    *data = t ? (int64_t *)(void *)t->data : NULL;
    return t ? trek_var_from(t) : NULL;
}

typedef struct found {
    trek_var *firsts, *inverse, *counts; /* one slice of each kind; the kind of every slice; the number of each kind */
} found;

/* Works on ranks [n, width], which have the order of the elements: equal ranks mean equal elements. */
static trek_status find(trek_var *ranks, int64_t n, int64_t width, found *f)
{
    int64_t *firsts, *inverse, *counts, *room = trek_alloc((2 * (size_t)n + 1) * sizeof *room), kinds = 0;
    f->firsts = integers(n, &firsts);
    f->inverse = integers(n, &inverse);
    f->counts = integers(n, &counts);
    if (!room || !f->firsts || !f->inverse || !f->counts) {
        trek_free(room);
        return trek_error_status();
    }
    rows r = { (const int64_t *)(const void *)ranks->data->data, width };
    const int64_t *order = sorted(&r, n, room);
    for (int64_t k = 0; k < n; k++) {
        if (k == 0 || compare(&r, order[k - 1], order[k]) != 0) {
            firsts[kinds] = order[k];
            counts[kinds++] = 0;
        }
        counts[kinds - 1]++;
        inverse[order[k]] = kinds - 1;
    }
    trek_free(room);
    f->firsts = trek_narrow(f->firsts, 0, 0, kinds);
    f->counts = trek_clone(trek_narrow(f->counts, 0, 0, kinds));
    return trek_error_status();
}

trek_var *trek_unique_dim(trek_var *x, int dim, trek_var **inverse, trek_var **counts)
{
    if (inverse)
        *inverse = NULL;
    if (counts)
        *counts = NULL;
    TREK_NEEDED("unique_dim", x);
    int ndim = trek_var_ndim(x), at = trek_normalize_dim(dim, ndim, "unique_dim");
    if (at < 0)
        return NULL;
    if (ndim == 0)
        return trek_fail_null(TREK_ERR_SHAPE, "unique_dim: x: it is a scalar; must have a dimension");
    for (int d = 0; d < ndim; d++)
        if (d != at && trek_var_size(x, d) == 0)
            return trek_fail_null(TREK_ERR_SHAPE, "unique_dim: x: its slices have 0 elements, since dimension %d has none", d);
    int64_t n = trek_var_size(x, at), width = n > 0 ? trek_var_numel(x) / n : 0;
    const char *before = trek_op_calling("unique_dim");
    trek_var *ranks = NULL, *taken = NULL;
    trek_device device = trek_var_device(x);
    found f = { NULL, NULL, NULL };
    x = trek_var_detach(x);
    trek_var *front = at == 0 ? x : trek_movedim(x, trek_dims(at), trek_dims(0));
    trek_var *values = trek_unique(trek_contiguous(front), &ranks, NULL);
    ranks = values ? trek_contiguous(trek_to(ranks, trek_cpu(0))) : NULL;
    if (ranks && find(ranks, n, width, &f) == TREK_OK)
        taken = trek_index_select(x, at, trek_to(f.firsts, device));
    trek_var *places = taken ? trek_to(f.inverse, device) : NULL, *sizes = places ? trek_to(f.counts, device) : NULL;
    trek_op_called_end(before, NULL);
    if (inverse)
        *inverse = sizes ? places : NULL;
    if (counts)
        *counts = sizes;
    return sizes ? taken : NULL;
}
