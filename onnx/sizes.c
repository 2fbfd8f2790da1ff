/* SPDX-License-Identifier: Apache-2.0 */
/* Sizes that depend on the inputs': their values in each run reveal how they are composed. */
#include "onnx/onnx_internal.h"

#include <string.h>

const char *trek_onnx_dim_of(trek_onnx *x, const char *name, int d)
{
    const char *size = trek_onnx_1(x, "Shape", name);
    trek_onnx_attr_int(x, "start", d);
    trek_onnx_attr_int(x, "end", d + 1);
    return size;
}

/* a value + b, where a is a whole number or one over it; tells whether it gives the sizes. */
typedef struct line {
    int64_t times, over, plus;
} line;

static bool fit(const trek_onnx *x, const int64_t *from, const int64_t *sizes, line *l)
{
    int r = 1;
    while (r < x->n_runs && from[r] == from[0])
        r++;
    if (r == x->n_runs)
        return false;
    int64_t more = sizes[r] - sizes[0], by = from[r] - from[0];
    if (more == 0 || (more % by != 0 && by % more != 0))
        return false;
    *l = more % by == 0 ? (line){ more / by, 1, sizes[0] - more / by * from[0] } : (line){ 1, by / more, 0 };
    if (l->over != 1) { /* only if it divides evenly */
        l->times = l->over < 0 ? -1 : 1;
        l->over = l->over < 0 ? -l->over : l->over;
        l->plus = sizes[0] - l->times * from[0] / l->over;
    }
    for (r = 0; r < x->n_runs; r++)
        if (from[r] % l->over != 0 || l->times * from[r] / l->over + l->plus != sizes[r])
            return false;
    return true;
}

static const char *on_line(trek_onnx *x, const char *from, line l)
{
    if (l.times != 1)
        from = trek_onnx_2(x, "Mul", from, trek_onnx_int(x, l.times));
    if (l.over != 1)
        from = trek_onnx_2(x, "Div", from, trek_onnx_int(x, l.over));
    return l.plus != 0 ? trek_onnx_2(x, "Add", from, trek_onnx_int(x, l.plus)) : from;
}

/* A size that can be read: dimension d of an input of the call (k) or of the model (~k). */
typedef struct source {
    int k, d;
} source;

static const int64_t *source_sizes(const trek_onnx *x, source s, int64_t *sizes)
{
    for (int r = 0; r < x->n_runs; r++)
        sizes[r] = s.k >= 0 ? trek_onnx_seen(x, r, trek_onnx_input_value(x, s.k))->sizes[s.d] : x->symbols[~s.k].sizes[r];
    return sizes;
}

static const char *source_read(trek_onnx *x, source s)
{
    if (s.k >= 0)
        return trek_onnx_dim_of(x, trek_onnx_in(x, s.k), s.d);
    return trek_onnx_dim_of(x, x->input_names[x->symbols[~s.k].input], x->symbols[~s.k].dim);
}

/* Open ones only. */
static int all_sources(const trek_onnx *x, source *sources, int room)
{
    int n = 0;
    int64_t sizes[TREK_ONNX_RUNS];
    for (int k = 0; x->call >= 0 && k < trek_onnx_at(x, 0)->n_inputs && k < TREK_MAX_FIXED_INPUTS; k++)
        for (int d = 0; trek_onnx_has(x, k) && d < trek_onnx_in_seen(x, k)->ndim && n < room; d++)
            if (trek_onnx_in(((trek_onnx *)(uintptr_t)x), k) && !trek_onnx_same(x, source_sizes(x, (source){ k, d }, sizes)))
                sources[n++] = (source){ k, d };
    for (int k = 0; k < x->n_symbols && n < room; k++)
        sources[n++] = (source){ ~k, 0 };
    return n;
}

const char *trek_onnx_size(trek_onnx *x, const int64_t *sizes)
{
    if (trek_onnx_same(x, sizes))
        return trek_onnx_int(x, sizes[0]);
    source sources[64];
    int n = all_sources(x, sources, 64);
    int64_t a[TREK_ONNX_RUNS], b[TREK_ONNX_RUNS];
    line l;
    for (int pass = 0; pass < 2; pass++) /* tries an equal size first */
        for (int k = 0; k < n; k++)
            if (fit(x, source_sizes(x, sources[k], a), sizes, &l) && (pass || (l.times == 1 && l.over == 1 && l.plus == 0)))
                return on_line(x, source_read(x, sources[k]), l);
    for (int k = 0; k < n; k++)
        for (int j = k; j < n; j++) {
            source_sizes(x, sources[k], a);
            source_sizes(x, sources[j], b);
            for (int r = 0; r < x->n_runs; r++)
                a[r] *= b[r];
            if (fit(x, a, sizes, &l))
                return on_line(x, trek_onnx_2(x, "Mul", source_read(x, sources[k]), source_read(x, sources[j])), l);
        }
    return NULL;
}

const char *trek_onnx_need_size(trek_onnx *x, const int64_t *sizes, const char *what)
{
    const char *size = trek_onnx_size(x, sizes);
    if (!size)
        trek_onnx_refuse(x, "%s depends on the open sizes in a way that is not a sum or product of them (%lld, then %lld)", what,
                         (long long)sizes[0], (long long)sizes[1]);
    return size ? size : "";
}

/* Joins pieces, [1] each, to one vector; adjacent fixed ones become one constant. */
static const char *joined(trek_onnx *x, int n, const char **pieces)
{
    if (n == 0)
        return trek_onnx_ints(x, 0, (const int64_t[]){ 0 });
    if (n == 1)
        return pieces[0];
    const char *all = trek_onnx_node(x, "Concat", n, pieces);
    trek_onnx_attr_int(x, "axis", 0);
    return all;
}

const char *trek_onnx_shape(trek_onnx *x, int ndim, int64_t (*sizes)[TREK_ONNX_RUNS])
{
    const char *pieces[TREK_MAX_DIMS];
    int64_t fixed[TREK_MAX_DIMS];
    bool all = true;
    for (int d = 0; d < ndim; d++) {
        fixed[d] = sizes[d][0];
        all &= trek_onnx_same(x, sizes[d]);
    }
    if (all)
        return trek_onnx_ints(x, ndim, fixed);
    for (int d = 0; d < ndim; d++)
        pieces[d] = trek_onnx_need_size(x, sizes[d], "a size of its result");
    return joined(x, ndim, pieces);
}

/* Fixed sizes are written as they are, 0 for a size equal to the input's at the same place, and -1 for one of them;
 * others need arithmetic. */
const char *trek_onnx_reshaped(trek_onnx *x, const char *a, int input_value, int output_value)
{
    const trek_onnx_value *in = trek_onnx_seen(x, 0, input_value), *out = trek_onnx_seen(x, 0, output_value);
    int64_t fixed[TREK_MAX_DIMS], sizes[TREK_MAX_DIMS][TREK_ONNX_RUNS];
    int open[TREK_MAX_DIMS], n_open = 0;
    for (int d = 0; d < out->ndim; d++) {
        bool stays = d < in->ndim;
        for (int r = 0; r < x->n_runs; r++) {
            sizes[d][r] = trek_onnx_seen(x, r, output_value)->sizes[d];
            stays = stays && sizes[d][r] == trek_onnx_seen(x, r, input_value)->sizes[d];
        }
        fixed[d] = trek_onnx_same(x, sizes[d]) ? sizes[d][0] : 0;
        if (!trek_onnx_same(x, sizes[d]) && !stays)
            open[n_open++] = d;
    }
    if (n_open == 1)
        fixed[open[0]] = -1;
    if (n_open <= 1)
        return trek_onnx_2(x, "Reshape", a, trek_onnx_ints(x, out->ndim, fixed));
    const char *pieces[TREK_MAX_DIMS];
    int unknown = -1;
    for (int k = 0; k < n_open; k++) {
        pieces[open[k]] = trek_onnx_size(x, sizes[open[k]]);
        if (!pieces[open[k]] && unknown >= 0)
            trek_onnx_need_size(x, sizes[open[k]], "a size of its result");
        unknown = pieces[open[k]] ? unknown : open[k];
        pieces[open[k]] = pieces[open[k]] ? pieces[open[k]] : trek_onnx_int(x, -1);
    }
    for (int d = 0, k = 0; d < out->ndim; d++)
        if (k < n_open && open[k] == d)
            k++;
        else
            pieces[d] = trek_onnx_int(x, fixed[d]);
    return trek_onnx_2(x, "Reshape", a, joined(x, out->ndim, pieces));
}

const char *trek_onnx_sliced(trek_onnx *x, const char *a, int64_t from, int64_t to, int dim, int64_t step)
{
    return trek_onnx_node(x, "Slice", 5, (const char *[]){ a, trek_onnx_int(x, from), trek_onnx_int(x, to), trek_onnx_int(x, dim),
                                                           trek_onnx_int(x, step) });
}
