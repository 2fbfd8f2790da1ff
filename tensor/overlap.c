/* SPDX-License-Identifier: Apache-2.0 */
/* Whether elements of tensors share bytes. Offsets are sums of strides times indices, so the question is whether such
 * a sum reaches a given range. It is a search over the strides, largest first, each bounded by what the smaller ones
 * can still reach. For views made by slicing, permuting and expanding it ends after a few steps. */
#include "tensor/tensor_internal.h"

enum { TERMS = 2 * TREK_MAX_DIMS, PATIENCE = 20000 };

/* stride * index for 0 <= index <= count, in bytes; `rest` is the most that the smaller ones can reach. */
typedef struct term {
    int64_t stride, count, rest;
} term;

typedef struct sums {
    term terms[TERMS];
    int n;
    int64_t shift; /* added to every sum */
    int patience;
} sums;

/* Adds an index of 0..count; a negative stride is reversed. */
static void add_term(sums *s, int64_t stride, int64_t count)
{
    if (stride == 0 || count == 0)
        return;
    if (stride < 0)
        s->shift += stride * count;
    stride = stride < 0 ? -stride : stride;
    int at = 0;
    while (at < s->n && s->terms[at].stride > stride)
        at++;
    if (at < s->n && s->terms[at].stride == stride) {
        s->terms[at].count += count;
        return;
    }
    for (int k = s->n++; k > at; k--)
        s->terms[k] = s->terms[k - 1];
    s->terms[at] = (term){ .stride = stride, .count = count };
}

static void finish(sums *s)
{
    int64_t rest = 0;
    for (int k = s->n - 1; k >= 0; k--) {
        s->terms[k].rest = rest;
        rest += s->terms[k].stride * s->terms[k].count;
    }
    s->patience = PATIENCE;
}

/* Returns whether a sum of terms from k on is in [low, high]; true if the search takes too long. */
static bool reaches(sums *s, int k, int64_t low, int64_t high)
{
    if (high < 0)
        return false;
    if (low <= 0 || s->patience-- <= 0)
        return true;
    if (k == s->n)
        return false;
    const term *t = &s->terms[k];
    int64_t least = low > t->rest ? (low - t->rest - 1) / t->stride + 1 : 0, most = high / t->stride;
    for (int64_t index = most < t->count ? most : t->count; index >= least; index--)
        if (reaches(s, k + 1, low - index * t->stride, high - index * t->stride))
            return true;
    return false;
}

static int64_t item_size(const trek_tensor *t) { return trek_item_size[t->dtype]; }

bool trek_overlaps_itself(const trek_tensor *t)
{
    if (t->contiguous || t->numel < 2)
        return false;
    int64_t item = item_size(t);
    for (int first = 0; first < t->ndim; first++) { /* two elements whose indices first differ there */
        if (t->sizes[first] == 1)
            continue;
        sums s = { .shift = t->strides[first] * item };
        if (s.shift == 0)
            return true;
        add_term(&s, t->strides[first] * item, t->sizes[first] - 2);
        for (int d = first + 1; d < t->ndim; d++) {
            add_term(&s, t->strides[d] * item, t->sizes[d] - 1);
            add_term(&s, -t->strides[d] * item, t->sizes[d] - 1);
        }
        finish(&s);
        if (reaches(&s, 0, 1 - item - s.shift, item - 1 - s.shift))
            return true;
    }
    return false;
}

/* Returns the bytes from the first element to the end of the last. */
static void extent(const trek_tensor *t, int64_t *begin, int64_t *end)
{
    int64_t item = item_size(t);
    *begin = (int64_t)(intptr_t)t->data;
    *end = *begin + item;
    for (int d = 0; d < t->ndim; d++) {
        int64_t reach = (t->sizes[d] - 1) * t->strides[d] * item;
        *(reach < 0 ? begin : end) += reach;
    }
}

static bool same_places(const trek_tensor *a, const trek_tensor *b)
{
    bool same = a->data == b->data && a->dtype == b->dtype && trek_same_sizes(a, b);
    for (int d = 0; same && d < a->ndim; d++)
        same = a->sizes[d] == 1 || a->strides[d] == b->strides[d];
    return same;
}

bool trek_overlaps_partly(const trek_tensor *to, const trek_tensor *from)
{
    if (to->numel == 0 || from->numel == 0 || to->device.type != from->device.type)
        return false;
    int64_t to_begin, to_end, from_begin, from_end;
    extent(to, &to_begin, &to_end);
    extent(from, &from_begin, &from_end);
    if (to_end <= from_begin || from_end <= to_begin || same_places(to, from))
        return false;
    if (to->contiguous && from->contiguous)
        return true;
    sums s = { .shift = (int64_t)(intptr_t)to->data - (int64_t)(intptr_t)from->data };
    for (int d = 0; d < to->ndim; d++)
        add_term(&s, to->strides[d] * item_size(to), to->sizes[d] - 1);
    for (int d = 0; d < from->ndim; d++)
        add_term(&s, -from->strides[d] * item_size(from), from->sizes[d] - 1);
    finish(&s);
    return reaches(&s, 0, 1 - item_size(to) - s.shift, item_size(from) - 1 - s.shift);
}

trek_status trek_check_overwrite(const char *what, const trek_tensor *to, const trek_tensor *from)
{
    char text[TREK_SHAPE_TEXT];
    if (trek_overlaps_itself(to))
        return trek_fail(TREK_ERR_ARGUMENT,
                         "%s: output: several elements of %s share memory (an expanded view?); clone it first", what,
                         trek_tensor_shape_text(to, text));
    if (from && trek_overlaps_partly(to, from))
        return trek_fail(TREK_ERR_ARGUMENT, "%s: output: %s lies in part where the other input is read; clone that first", what,
                         trek_tensor_shape_text(to, text));
    return TREK_OK;
}
