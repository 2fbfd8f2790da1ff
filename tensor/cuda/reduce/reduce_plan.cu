/* SPDX-License-Identifier: Apache-2.0 */
/* How the threads and blocks of a reduction are arranged over its elements. */
#include "tensor/cuda/reduce/reduce.cuh"

#define BLOCKS 1024 /* the fewest blocks aimed for; it does not depend on the device, so that results are the same on all */

typedef struct sort_dim {
    int64_t size, in, out;
} sort_dim;

/* Nothing moves along a broadcast dimension, so it counts as far. */
static int64_t span_of(int64_t stride) { return stride == 0 ? INT64_MAX : stride < 0 ? -stride : stride; }

static void sort_dims(sort_dim *dims, int n)
{
    for (int k = 1; k < n; k++)
        for (int j = k; j > 0 && span_of(dims[j - 1].in) < span_of(dims[j].in); j--) {
            sort_dim held = dims[j];
            dims[j] = dims[j - 1];
            dims[j - 1] = held;
        }
}

/* Joins adjacent dimensions. Returns their number. */
static int join_dims(trek_reduce_dim *to, const sort_dim *dims, int n)
{
    int joined = 0;
    for (int k = 0; k < n; k++) {
        trek_reduce_dim *last = joined > 0 ? &to[joined - 1] : NULL;
        if (last && last->in == dims[k].in * dims[k].size && last->out == dims[k].out * dims[k].size) {
            last->size *= dims[k].size;
            last->in = dims[k].in;
            last->out = dims[k].out;
        } else {
            to[joined].size = dims[k].size;
            to[joined].in = dims[k].in;
            to[joined++].out = dims[k].out;
        }
    }
    return joined;
}

void trek_reduce_out_strides(const trek_op_call *call, int64_t *out_strides)
{
    const trek_tensor *in = call->inputs[0], *out = call->outputs[0];
    int at = 0;
    for (int d = 0; d < in->ndim; d++) {
        bool reduced = call->attrs.i[0] >> d & 1;
        out_strides[d] = reduced ? 0 : out->strides[at];
        at += !reduced || call->attrs.i[9] != 0;
    }
}

void trek_reduce_dims(trek_reduce_walk *w, const trek_tensor *in, uint64_t mask, const int64_t *out_strides, bool ordered)
{
    sort_dim kept[TREK_MAX_DIMS], reduced[TREK_MAX_DIMS];
    int n_kept = 0, n_reduced = 0;
    memset(w, 0, sizeof *w);
    w->outputs = w->count = 1;
    for (int d = 0; d < in->ndim; d++) {
        bool is_reduced = mask >> d & 1;
        (is_reduced ? w->count : w->outputs) *= in->sizes[d];
        if (in->sizes[d] == 1)
            continue;
        sort_dim dim = { in->sizes[d], in->strides[d], is_reduced ? 0 : out_strides[d] };
        if (is_reduced)
            reduced[n_reduced++] = dim;
        else
            kept[n_kept++] = dim;
    }
    sort_dims(kept, n_kept);
    if (!ordered)
        sort_dims(reduced, n_reduced);
    w->n_kept = join_dims(w->kept, kept, n_kept);
    w->n_reduced = join_dims(w->reduced, reduced, n_reduced);
    /* lanes go along the nearer dimension, unless it is too short */
    const trek_reduce_dim *k = w->n_kept ? &w->kept[w->n_kept - 1] : NULL;
    const trek_reduce_dim *r = w->n_reduced ? &w->reduced[w->n_reduced - 1] : NULL;
    if (!k || !r)
        w->layout.along = r != NULL;
    else
        w->layout.along = span_of(r->in) < span_of(k->in) ? r->size >= 8 || k->size < 4 * r->size
                                                          : k->size < 8 && r->size >= 4 * k->size;
}

static trek_reduce_dim *nearest(const trek_reduce_walk *w)
{
    const trek_reduce_dim *dims = w->layout.along ? w->reduced : w->kept;
    int n = w->layout.along ? w->n_reduced : w->n_kept;
    return n > 0 ? (trek_reduce_dim *)&dims[n - 1] : NULL;
}

bool trek_reduce_can_load(const trek_reduce_walk *w, int v)
{
    const trek_reduce_dim *near = nearest(w);
    if (!near || near->in != 1 || near->size % v != 0 || near->size == 0)
        return false;
    for (int d = 0; d < w->n_kept; d++)
        if (&w->kept[d] != near && w->kept[d].in % v != 0)
            return false;
    for (int d = 0; d < w->n_reduced; d++)
        if (&w->reduced[d] != near && w->reduced[d].in % v != 0)
            return false;
    return true;
}

/* Expresses strides and sizes in units of v elements. */
static void count_vectors(trek_reduce_walk *w, int v)
{
    trek_reduce_dim *near = nearest(w);
    for (int d = 0; d < w->n_kept; d++)
        if (&w->kept[d] != near)
            w->kept[d].in /= v;
    for (int d = 0; d < w->n_reduced; d++)
        if (&w->reduced[d] != near)
            w->reduced[d].in /= v;
    near->size /= v;
    if (w->layout.along) {
        w->count /= v;
    } else {
        w->outputs /= v;
        w->out_step = near->out;
        near->out *= v;
    }
}

void trek_reduce_lay(trek_reduce_walk *w, int v)
{
    if (v > 1)
        count_vectors(w, v);
    for (int d = 0; d < w->n_kept; d++)
        w->kept[d].by = trek_quotient_of(w->kept[d].size);
    for (int d = 0; d < w->n_reduced; d++)
        w->reduced[d].by = trek_quotient_of(w->reduced[d].size);
    w->wide = w->outputs > 0x7fffffff || w->count > 0x7fffffff;
    const int most = 8; /* log2 of TREK_BLOCK_THREADS */
    int log_count = trek_log2_up(w->count), log_outputs = trek_log2_up(w->outputs), log_r;
    if (w->layout.along) {
        log_r = log_count > 2 ? log_count - 2 : 0; /* at least 4 for each thread */
        if (w->outputs < BLOCKS * 8)
            log_r = log_count;
        else if (log_r > 5 && log_r < most)
            log_r = 5; /* a warp */
    } else {
        int log_c = log_outputs < 5 ? log_outputs : 5;
        log_r = most - log_c < log_count ? most - log_c : log_count;
    }
    w->layout.log_r = log_r < most ? log_r : most;
    w->layout.log_c = most - w->layout.log_r;
    int64_t blocks = (w->outputs - 1) / ((int64_t)1 << w->layout.log_c) + 1, smallest = (int64_t)8 << w->layout.log_r;
    int64_t splits = (BLOCKS - 1) / blocks + 1, most_splits = w->count / smallest;
    splits = splits < most_splits ? splits : most_splits;
    splits = splits < 1 ? 1 : splits;
    w->each = w->count > 0 ? (w->count - 1) / splits + 1 : 0;
    w->splits = w->count > 0 ? (int)((w->count - 1) / w->each + 1) : 1;
}
