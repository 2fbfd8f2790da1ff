/* SPDX-License-Identifier: Apache-2.0 */
/* References of views and of ops that move elements. */
#include <math.h>
#include <string.h>

#include "tests/ops/suite.h"

#define REFERENCE(name) int reference_##name(const op_array *const *in, int n, const trek_attrs *a, op_array *out)

static int64_t positive_dim(int64_t dim, int ndim)
{
    return dim < 0 ? dim + ndim : dim;
}

static void copy_values(op_array *out, const op_array *x)
{
    memcpy(out->v, x->v, sizeof *x->v * (size_t)x->numel);
}

/* --- views ----------------------------------------------------------------------- */

REFERENCE(reshape)
{
    int ndim = (int)a->i[0];
    int64_t sizes[TREK_MAX_DIMS], known = 1;
    int open = -1;
    for (int d = 0; d < ndim; d++) {
        sizes[d] = a->i[1 + d];
        if (sizes[d] < 0)
            open = d;
        else
            known *= sizes[d];
    }
    if (open >= 0)
        sizes[open] = in[0]->numel / known;
    array_make(&out[0], in[0]->dtype, ndim, sizes);
    copy_values(&out[0], in[0]);
    return 1;
}

REFERENCE(expand)
{
    int ndim = (int)a->i[0], added = ndim - in[0]->ndim;
    int64_t sizes[TREK_MAX_DIMS], index[TREK_MAX_DIMS] = { 0 };
    for (int d = 0; d < ndim; d++)
        sizes[d] = a->i[1 + d] < 0 ? in[0]->sizes[d - added] : a->i[1 + d];
    array_make(&out[0], in[0]->dtype, ndim, sizes);
    for (int64_t i = 0; i < out[0].numel; i++) {
        out[0].v[i] = in[0]->v[array_broadcast_index(in[0], index, ndim)];
        array_next(index, ndim, sizes);
    }
    return 1;
}

static int permuted(const op_array *x, const int64_t *order, op_array *out)
{
    int64_t sizes[TREK_MAX_DIMS], index[TREK_MAX_DIMS] = { 0 }, from[TREK_MAX_DIMS];
    for (int d = 0; d < x->ndim; d++)
        sizes[d] = x->sizes[order[d]];
    array_make(&out[0], x->dtype, x->ndim, sizes);
    for (int64_t i = 0; i < out[0].numel; i++) {
        for (int d = 0; d < x->ndim; d++)
            from[order[d]] = index[d];
        out[0].v[i] = x->v[array_index(x, from)];
        array_next(index, x->ndim, sizes);
    }
    return 1;
}

REFERENCE(permute)
{
    int64_t order[TREK_MAX_DIMS];
    for (int d = 0; d < in[0]->ndim; d++)
        order[d] = positive_dim(a->i[1 + d], in[0]->ndim);
    return permuted(in[0], order, out);
}

REFERENCE(transpose)
{
    int64_t order[TREK_MAX_DIMS];
    for (int d = 0; d < in[0]->ndim; d++)
        order[d] = d;
    int64_t first = positive_dim(a->i[0], in[0]->ndim), second = positive_dim(a->i[1], in[0]->ndim);
    order[first] = second;
    order[second] = first;
    return permuted(in[0], order, out);
}

REFERENCE(squeeze)
{
    int64_t sizes[TREK_MAX_DIMS], dim = positive_dim(a->i[0], in[0]->ndim);
    int ndim = 0;
    for (int d = 0; d < in[0]->ndim; d++)
        if (d != dim || in[0]->sizes[d] != 1)
            sizes[ndim++] = in[0]->sizes[d];
    array_make(&out[0], in[0]->dtype, ndim, sizes);
    copy_values(&out[0], in[0]);
    return 1;
}

REFERENCE(unsqueeze)
{
    int64_t sizes[TREK_MAX_DIMS], dim = positive_dim(a->i[0], in[0]->ndim + 1);
    for (int d = 0; d <= in[0]->ndim; d++)
        sizes[d] = d == dim ? 1 : in[0]->sizes[d - (d > dim)];
    array_make(&out[0], in[0]->dtype, in[0]->ndim + 1, sizes);
    copy_values(&out[0], in[0]);
    return 1;
}

REFERENCE(narrow)
{
    int64_t sizes[TREK_MAX_DIMS], index[TREK_MAX_DIMS] = { 0 }, dim = positive_dim(a->i[0], in[0]->ndim);
    int64_t start = a->i[1] < 0 ? a->i[1] + in[0]->sizes[dim] : a->i[1];
    memcpy(sizes, in[0]->sizes, sizeof sizes);
    sizes[dim] = a->i[2];
    array_make(&out[0], in[0]->dtype, in[0]->ndim, sizes);
    for (int64_t i = 0; i < out[0].numel; i++) {
        int64_t from[TREK_MAX_DIMS];
        memcpy(from, index, sizeof from);
        from[dim] += start;
        out[0].v[i] = in[0]->v[array_index(in[0], from)];
        array_next(index, out[0].ndim, sizes);
    }
    return 1;
}

REFERENCE(select)
{
    int64_t sizes[TREK_MAX_DIMS], index[TREK_MAX_DIMS] = { 0 }, dim = positive_dim(a->i[0], in[0]->ndim);
    int64_t chosen = a->i[1] < 0 ? a->i[1] + in[0]->sizes[dim] : a->i[1];
    int ndim = 0;
    for (int d = 0; d < in[0]->ndim; d++)
        if (d != dim)
            sizes[ndim++] = in[0]->sizes[d];
    array_make(&out[0], in[0]->dtype, ndim, sizes);
    for (int64_t i = 0, to = 0; i < in[0]->numel; i++) {
        if (index[dim] == chosen)
            out[0].v[to++] = in[0]->v[i];
        array_next(index, in[0]->ndim, in[0]->sizes);
    }
    return 1;
}

/* --- moves ------------------------------------------------------------------------ */

REFERENCE(flip)
{
    int64_t index[TREK_MAX_DIMS] = { 0 };
    array_like(&out[0], in[0], in[0]->dtype);
    for (int64_t i = 0; i < in[0]->numel; i++) {
        int64_t from[TREK_MAX_DIMS];
        memcpy(from, index, sizeof from);
        for (int k = 0; k < a->i[0]; k++) {
            int64_t d = positive_dim(a->i[1 + k], in[0]->ndim);
            from[d] = in[0]->sizes[d] - 1 - index[d];
        }
        out[0].v[i] = in[0]->v[array_index(in[0], from)];
        array_next(index, in[0]->ndim, in[0]->sizes);
    }
    return 1;
}

REFERENCE(cat)
{
    int64_t sizes[TREK_MAX_DIMS], dim = positive_dim(a->i[0], in[0]->ndim), start = 0;
    trek_dtype dtype = in[0]->dtype;
    memcpy(sizes, in[0]->sizes, sizeof sizes);
    sizes[dim] = 0;
    for (int k = 0; k < n; k++) {
        sizes[dim] += in[k]->sizes[dim];
        dtype = dtype_promote(dtype, in[k]->dtype);
    }
    array_make(&out[0], dtype, in[0]->ndim, sizes);
    for (int k = 0; k < n; k++) {
        int64_t index[TREK_MAX_DIMS] = { 0 };
        for (int64_t i = 0; i < in[k]->numel; i++) {
            int64_t to[TREK_MAX_DIMS];
            memcpy(to, index, sizeof to);
            to[dim] += start;
            out[0].v[array_index(&out[0], to)] = in[k]->v[i];
            array_next(index, in[k]->ndim, in[k]->sizes);
        }
        start += in[k]->sizes[dim];
    }
    return 1;
}

static int triangle(const op_array *x, const trek_attrs *a, op_array *out, bool lower)
{
    int64_t index[TREK_MAX_DIMS] = { 0 };
    array_like(&out[0], x, x->dtype);
    for (int64_t i = 0; i < x->numel; i++) {
        int64_t above = index[x->ndim - 1] - index[x->ndim - 2];
        out[0].v[i] = (lower ? above <= a->i[0] : above >= a->i[0]) ? x->v[i] : 0;
        array_next(index, x->ndim, x->sizes);
    }
    return 1;
}

REFERENCE(tril)
{
    return triangle(in[0], a, out, true);
}

REFERENCE(triu)
{
    return triangle(in[0], a, out, false);
}

REFERENCE(index_select)
{
    int64_t sizes[TREK_MAX_DIMS], index[TREK_MAX_DIMS] = { 0 }, dim = positive_dim(a->i[0], in[0]->ndim);
    memcpy(sizes, in[0]->sizes, sizeof sizes);
    sizes[dim] = in[1]->numel;
    array_make(&out[0], in[0]->dtype, in[0]->ndim, sizes);
    for (int64_t i = 0; i < out[0].numel; i++) {
        int64_t from[TREK_MAX_DIMS];
        memcpy(from, index, sizeof from);
        from[dim] = (int64_t)in[1]->v[index[dim]];
        out[0].v[i] = in[0]->v[array_index(in[0], from)];
        array_next(index, out[0].ndim, sizes);
    }
    return 1;
}

/* out[place(index)] += source[index], on top of x */
static int add_at(const op_array *const *in, const trek_attrs *a, op_array *out, bool elementwise)
{
    const op_array *x = in[0], *where = in[1], *source = in[2];
    int64_t index[TREK_MAX_DIMS] = { 0 }, dim = positive_dim(a->i[0], x->ndim);
    array_like(&out[0], x, x->dtype);
    array_scaled(&out[0]);
    for (int64_t i = 0; i < x->numel; i++) {
        out[0].v[i] = x->v[i];
        out[0].scale[i] = fabs(x->v[i]);
    }
    const op_array *walk = elementwise ? where : source;
    for (int64_t i = 0; i < walk->numel; i++) {
        int64_t to[TREK_MAX_DIMS];
        memcpy(to, index, sizeof to);
        to[dim] = (int64_t)(elementwise ? where->v[i] : where->v[index[dim]]);
        double value = source->v[array_index(source, index)];
        int64_t at = array_index(x, to);
        array_set(&out[0], at, out[0].v[at] + value);
        out[0].scale[at] += fabs(value);
        array_next(index, walk->ndim, walk->sizes);
    }
    return 1;
}

REFERENCE(index_add)
{
    return add_at(in, a, out, false);
}

REFERENCE(scatter_add)
{
    return add_at(in, a, out, true);
}

REFERENCE(gather)
{
    int64_t index[TREK_MAX_DIMS] = { 0 }, dim = positive_dim(a->i[0], in[0]->ndim);
    array_like(&out[0], in[1], in[0]->dtype);
    for (int64_t i = 0; i < in[1]->numel; i++) {
        int64_t from[TREK_MAX_DIMS];
        memcpy(from, index, sizeof from);
        from[dim] = (int64_t)in[1]->v[i];
        out[0].v[i] = in[0]->v[array_index(in[0], from)];
        array_next(index, in[1]->ndim, in[1]->sizes);
    }
    return 1;
}

REFERENCE(one_hot)
{
    int64_t sizes[TREK_MAX_DIMS], classes = a->i[0];
    memcpy(sizes, in[0]->sizes, sizeof sizes);
    if (classes < 0) {
        classes = 0;
        for (int64_t i = 0; i < in[0]->numel; i++)
            classes = in[0]->v[i] + 1 > (double)classes ? (int64_t)in[0]->v[i] + 1 : classes;
    }
    sizes[in[0]->ndim] = classes;
    array_make(&out[0], TREK_I64, in[0]->ndim + 1, sizes);
    for (int64_t i = 0; i < in[0]->numel; i++)
        out[0].v[i * classes + (int64_t)in[0]->v[i]] = 1;
    return 1;
}

REFERENCE(fill)
{
    for (int64_t i = 0; i < out[0].numel; i++)
        array_set(&out[0], i, a->f[0]);
    return 1;
}

/* --- embedding -------------------------------------------------------------------- */

REFERENCE(embedding)
{
    int64_t sizes[TREK_MAX_DIMS], width = in[0]->sizes[1];
    memcpy(sizes, in[1]->sizes, sizeof sizes);
    sizes[in[1]->ndim] = width;
    array_make(&out[0], in[0]->dtype, in[1]->ndim + 1, sizes);
    for (int64_t i = 0; i < out[0].numel; i++)
        out[0].v[i] = in[0]->v[(int64_t)in[1]->v[i / width] * width + i % width];
    return 1;
}

REFERENCE(embedding_backward)
{
    int64_t width = in[0]->sizes[in[0]->ndim - 1], sizes[2] = { a->i[1], width };
    const op_array *bags = n > 2 ? in[2] : NULL, *factors = n > 3 ? in[3] : NULL;
    array_make(&out[0], in[0]->dtype, 2, sizes);
    array_scaled(&out[0]);
    for (int64_t k = 0; k < in[1]->numel; k++) {
        int64_t row = (int64_t)in[1]->v[k], from = bags ? (int64_t)bags->v[k] : k;
        if (row == a->i[0] || from * width >= in[0]->numel)
            continue;
        for (int64_t j = 0; j < width; j++) {
            double term = in[0]->v[from * width + j] * (factors ? factors->v[k] : 1);
            out[0].v[row * width + j] += term;
            out[0].scale[row * width + j] += fabs(term);
        }
    }
    return 1;
}

REFERENCE(embedding_bag)
{
    const op_array *factors = n > 3 ? in[3] : NULL;
    int64_t width = in[0]->sizes[1], bags = in[2]->numel - 1, mode = a->i[1];
    array_make(&out[0], in[0]->dtype, 2, (int64_t[]){ bags, width });
    array_make(&out[1], TREK_I64, 2, (int64_t[]){ mode == TREK_REDUCTION_MAX ? bags : 0, width });
    array_scaled(&out[0]);
    for (int64_t at = 0; at < bags * width; at++) {
        double sum = 0, count = 0, most = -INFINITY, where = -1, size = 0;
        for (int64_t k = (int64_t)in[2]->v[at / width]; k < (int64_t)in[2]->v[at / width + 1]; k++) {
            double x = in[0]->v[(int64_t)in[1]->v[k] * width + at % width], factor = factors ? factors->v[k] : 1;
            if ((int64_t)in[1]->v[k] == a->i[0])
                continue;
            count++;
            sum += x * factor;
            size += fabs(x * factor);
            where = x > most ? in[1]->v[k] : where;
            most = x > most ? x : most;
        }
        double divisor = mode == TREK_REDUCTION_MEAN && count > 0 ? count : 1;
        out[0].v[at] = mode == TREK_REDUCTION_MAX ? (count > 0 ? most : 0) : sum / divisor;
        out[0].scale[at] = mode == TREK_REDUCTION_MAX ? fabs(out[0].v[at]) : size / divisor;
        if (mode == TREK_REDUCTION_MAX)
            out[1].v[at] = where;
    }
    return 2;
}

/* --- positions --------------------------------------------------------------------- */

REFERENCE(rotary)
{
    const op_array *x = in[0], *table = in[1];
    int last = x->ndim - 1;
    int64_t turned = table->sizes[table->ndim - 1], pairs = turned / 2, index[TREK_MAX_DIMS] = { 0 };
    array_like(&out[0], x, x->dtype);
    array_scaled(&out[0]);
    if (x->numel == 0)
        return 1;
    do {
        int64_t at = array_index(x, index), j = index[last], first = a->i[0] ? j / 2 * 2 : j % (pairs ? pairs : 1);
        int64_t angle = a->i[0] ? j / 2 : first, second = a->i[0] ? first + 1 : first + pairs;
        out[0].v[at] = x->v[at];
        if (j >= turned)
            continue;
        int64_t row = at - j, line = 0;
        for (int d = 0; d < table->ndim - 1; d++)
            line = line * table->sizes[d] + (table->sizes[d] == 1 ? 0 : index[d + x->ndim - table->ndim]);
        double c = table->v[line * turned + angle], s = table->v[line * turned + pairs + angle] * (a->i[1] ? -1 : 1);
        double p = x->v[row + first], q = x->v[row + second];
        out[0].v[at] = j == first ? p * c - q * s : q * c + p * s;
        out[0].scale[at] = j == first ? fabs(p * c) + fabs(q * s) : fabs(q * c) + fabs(p * s);
    } while (array_next(index, x->ndim, x->sizes));
    return 1;
}
