/* SPDX-License-Identifier: Apache-2.0 */
/* References of products, convolution and pooling: the sums written out. */
#include <math.h>
#include <string.h>

#include "tests/ops/suite.h"

#define REFERENCE(name) int reference_##name(const op_array *const *in, int n, const trek_attrs *a, op_array *out)

static void add_term(op_array *out, int64_t at, double term)
{
    out->v[at] += term;
    out->scale[at] += fabs(term);
}

/* Size of a batch dimension counted from the right; vectors and absent ones count as 1. */
static int64_t batch_size(const op_array *x, int from_right)
{
    int d = x->ndim - 3 - from_right;
    return d >= 0 ? x->sizes[d] : 1;
}

/* Place of element (row, column) of the batch matrix; a 1-D x is a row, a 1-D y a column. */
static int64_t matrix_place(const op_array *x, const int64_t *batch, int n_batch, int64_t row, int64_t column, bool right)
{
    if (x->ndim == 1)
        return right ? row : column;
    int64_t at = 0;
    for (int d = 0; d < x->ndim - 2; d++)
        at = at * x->sizes[d] + (x->sizes[d] == 1 ? 0 : batch[n_batch - (x->ndim - 2) + d]);
    return (at * x->sizes[x->ndim - 2] + row) * x->sizes[x->ndim - 1] + column;
}

REFERENCE(matmul)
{
    const op_array *x = in[0], *y = in[1];
    int n_batch = (x->ndim > y->ndim ? x->ndim : y->ndim) - 2, ndim;
    int64_t sizes[TREK_MAX_DIMS], batch[TREK_MAX_DIMS] = { 0 }, inner = x->sizes[x->ndim - 1];
    n_batch = n_batch < 0 ? 0 : n_batch;
    ndim = n_batch;
    for (int d = 0; d < n_batch; d++) {
        int64_t sx = batch_size(x, n_batch - 1 - d), sy = batch_size(y, n_batch - 1 - d);
        sizes[d] = sx == 1 ? sy : sx;
    }
    int64_t rows = x->ndim > 1 ? x->sizes[x->ndim - 2] : 1, columns = y->ndim > 1 ? y->sizes[y->ndim - 1] : 1;
    if (x->ndim > 1)
        sizes[ndim++] = rows;
    if (y->ndim > 1)
        sizes[ndim++] = columns;
    array_make(&out[0], dtype_promote(x->dtype, y->dtype), ndim, sizes);
    array_scaled(&out[0]);
    for (int64_t i = 0; i < out[0].numel; i++) {
        int64_t row = i / columns % rows, column = i % columns;
        for (int64_t k = 0; k < inner; k++)
            add_term(&out[0], i, x->v[matrix_place(x, batch, n_batch, row, k, false)] *
                                     y->v[matrix_place(y, batch, n_batch, k, column, true)]);
        array_set(&out[0], i, out[0].v[i]);
        if ((i + 1) % (rows * columns) == 0)
            array_next(batch, n_batch, sizes);
    }
    if (!(a->i[0] & 2))
        return 1;
    array_make(&out[1], x->dtype, 1, sizes);
    array_scaled(&out[1]);
    for (int64_t row = 0; row < rows; row++) {
        for (int64_t k = 0; k < inner; k++)
            add_term(&out[1], row, x->v[row * inner + k]);
        array_set(&out[1], row, out[1].v[row]);
    }
    return 2;
}

static double gelu_of(double x)
{
    return 0.5 * x * erfc(-x / sqrt(2));
}

REFERENCE(linear)
{
    const op_array *x = in[0], *w = in[1], *b = in[2];
    trek_dtype dtype = dtype_promote(x->dtype, w->dtype);
    int64_t sizes[TREK_MAX_DIMS], width = w->sizes[1], outs = w->sizes[0];
    memcpy(sizes, x->sizes, sizeof sizes);
    sizes[x->ndim - 1] = outs;
    array_make(&out[0], b ? dtype_promote(dtype, b->dtype) : dtype, x->ndim, sizes);
    array_scaled(&out[0]);
    for (int64_t i = 0; i < out[0].numel; i++) {
        for (int64_t k = 0; k < width; k++)
            add_term(&out[0], i, x->v[i / outs * width + k] * w->v[i % outs * width + k]);
        if (b)
            add_term(&out[0], i, b->v[i % outs]);
    }
    if (a->i[0] == TREK_ACTIVATION_GELU) { /* output 1: before the activation */
        array_like(&out[1], &out[0], out[0].dtype);
        array_scaled(&out[1]);
    }
    for (int64_t i = 0; i < out[0].numel; i++) {
        double y = out[0].v[i];
        if (a->i[0] == TREK_ACTIVATION_RELU)
            out[0].v[i] = y < 0 ? 0 : y;
        if (a->i[0] != TREK_ACTIVATION_GELU)
            continue;
        out[1].v[i] = y;
        out[1].scale[i] = out[0].scale[i];
        out[0].v[i] = gelu_of(y);
    }
    return a->i[0] == TREK_ACTIVATION_GELU ? 2 : 1;
}

/* --- convolution ------------------------------------------------------------------ */

/* stride, padding, dilation (h, w each), groups */
static int64_t conv_size(int64_t size, int64_t kernel, const trek_attrs *a, int side)
{
    return (size + 2 * a->i[2 + side] - a->i[4 + side] * (kernel - 1) - 1) / a->i[0 + side] + 1;
}

/* One line of a convolution's products, x[i step] and y[i] with one weight, added to what is asked for: most of the suite's time
 * goes by here. */
typedef void (*conv_line)(op_array *out, const double *x, int64_t step, const double *w, const double *y, int64_t count,
                          int64_t at);

static void line_to_y(op_array *out, const double *x, int64_t step, const double *w, const double *y, int64_t count, int64_t at)
{
    double *restrict v = out->v + at, *restrict scale = out->scale + at, weight = *w;
    (void)y;
    for (int64_t i = 0; i < count; i++) {
        v[i] += x[i * step] * weight;
        scale[i] += fabs(x[i * step] * weight);
    }
}

static void line_to_x(op_array *out, const double *x, int64_t step, const double *w, const double *y, int64_t count, int64_t at)
{
    double *restrict v = out->v + at, *restrict scale = out->scale + at, weight = *w;
    (void)x;
    for (int64_t i = 0; i < count; i++) {
        v[i * step] += y[i] * weight;
        scale[i * step] += fabs(y[i] * weight);
    }
}

static void line_to_w(op_array *out, const double *x, int64_t step, const double *w, const double *y, int64_t count, int64_t at)
{
    double sum = 0, size = 0;
    (void)w;
    for (int64_t i = 0; i < count; i++) {
        sum += x[i * step] * y[i];
        size += fabs(x[i * step] * y[i]);
    }
    out->v[at] += sum;
    out->scale[at] += size;
}

typedef struct conv_walk {
    const int64_t *xs, *ws, *ys; /* sizes */
    const double *x, *w, *y;     /* NULL: what is asked for */
    const trek_attrs *a;
    op_array *out;
    conv_line line;
} conv_walk;

/* All products of one weight with an image: place: of the weight; x, y: of the image's channels */
static void walk_weight(const conv_walk *c, int64_t kh, int64_t kw, int64_t place, int64_t x, int64_t y)
{
    const trek_attrs *a = c->a;
    int64_t left = a->i[3] - kw * a->i[5], low = left > 0 ? (left + a->i[1] - 1) / a->i[1] : 0;
    int64_t high = c->xs[3] - 1 + left < 0 ? 0 : (c->xs[3] - 1 + left) / a->i[1] + 1;
    high = high < c->ys[3] ? high : c->ys[3];
    for (int64_t o = 0; o < c->ys[2] && low < high; o++) {
        int64_t h = o * a->i[0] - a->i[2] + kh * a->i[4];
        if (h < 0 || h >= c->xs[2])
            continue;
        int64_t from = (x * c->xs[2] + h) * c->xs[3] + low * a->i[1] - left, to = (y * c->ys[2] + o) * c->ys[3] + low;
        c->line(c->out, c->x ? c->x + from : NULL, a->i[1], c->w ? c->w + place : NULL, c->y ? c->y + to : NULL, high - low,
                !c->x   ? from
                : !c->w ? place
                        : to);
    }
}

static void walk_all(const conv_walk *c)
{
    int64_t image[2] = { 0 }, kernel[3] = { 0 }, per_group = c->a->i[6] > 0 ? c->ws[0] / c->a->i[6] : 0;
    if (c->ys[0] * c->ys[1] * c->ys[2] * c->ys[3] == 0 || c->ws[1] * c->ws[2] * c->ws[3] == 0)
        return;
    do {
        int64_t first = image[0] * c->xs[1] + image[1] / per_group * c->ws[1], place = image[1] * c->ws[1] * c->ws[2] * c->ws[3];
        do
            walk_weight(c, kernel[1], kernel[2], place++, first + kernel[0], image[0] * c->ys[1] + image[1]);
        while (array_next(kernel, 3, c->ws + 1));
    } while (array_next(image, 2, c->ys));
}

REFERENCE(conv2d)
{
    const op_array *x = in[0], *w = in[1], *b = in[2];
    int64_t sizes[4] = { x->sizes[0], w->sizes[0], conv_size(x->sizes[2], w->sizes[2], a, 0),
                         conv_size(x->sizes[3], w->sizes[3], a, 1) };
    array_make(&out[0], x->dtype, 4, sizes);
    array_scaled(&out[0]);
    walk_all(&(conv_walk){ x->sizes, w->sizes, sizes, x->v, w->v, NULL, a, &out[0], line_to_y });
    for (int64_t i = 0; b && i < out[0].numel; i++)
        add_term(&out[0], i, b->v[i / (sizes[2] * sizes[3]) % sizes[1]]);
    for (int64_t i = 0; a->i[7] == TREK_ACTIVATION_RELU && i < out[0].numel; i++)
        out[0].v[i] = out[0].v[i] < 0 ? 0 : out[0].v[i];
    return 1;
}

/* The sum of conv2d's products with x and y exchanged; output padding in i[7..8], or sizes asked for in i[9..10]. */
REFERENCE(conv_transpose2d)
{
    const op_array *x = in[0], *w = in[1], *b = in[2];
    int64_t sizes[4] = { x->sizes[0], w->sizes[1] * a->i[6] };
    for (int side = 0; side < 2; side++)
        sizes[2 + side] = a->i[9 + side] ? a->i[9 + side]
                                         : (x->sizes[2 + side] - 1) * a->i[side] - 2 * a->i[2 + side] +
                                               a->i[4 + side] * (w->sizes[2 + side] - 1) + a->i[7 + side] + 1;
    array_make(&out[0], x->dtype, 4, sizes);
    array_scaled(&out[0]);
    walk_all(&(conv_walk){ sizes, w->sizes, x->sizes, NULL, w->v, x->v, a, &out[0], line_to_x });
    for (int64_t i = 0; b && i < out[0].numel; i++)
        add_term(&out[0], i, b->v[i / (sizes[2] * sizes[3]) % sizes[1]]);
    return 1;
}

REFERENCE(conv2d_input_grad)
{
    array_make(&out[0], in[0]->dtype, 4, &a->i[7]);
    array_scaled(&out[0]);
    walk_all(&(conv_walk){ out[0].sizes, in[1]->sizes, in[0]->sizes, NULL, in[1]->v, in[0]->v, a, &out[0], line_to_x });
    return 1;
}

REFERENCE(conv2d_weight_grad)
{
    array_make(&out[0], in[0]->dtype, 4, &a->i[7]);
    array_scaled(&out[0]);
    walk_all(&(conv_walk){ in[1]->sizes, out[0].sizes, in[0]->sizes, in[1]->v, NULL, in[0]->v, a, &out[0], line_to_w });
    return 1;
}

/* Columns of an image: fn gets places in x [N, C, H, W] and in the columns [N, C kh kw, L]. */
static void unfold_walk(const int64_t *xs, const trek_attrs *a, void (*fn)(const op_array *, op_array *, int64_t, int64_t),
                        const op_array *from, op_array *to)
{
    int64_t kh = a->i[7], kw = a->i[8], oh = conv_size(xs[2], kh, a, 0), ow = conv_size(xs[3], kw, a, 1);
    int64_t sizes[6] = { xs[0], xs[1], kh, kw, oh, ow }, i[TREK_MAX_DIMS] = { 0 };
    for (int64_t at = 0, total = xs[0] * xs[1] * kh * kw * oh * ow; at < total; at++) {
        int64_t h = i[4] * a->i[0] - a->i[2] + i[2] * a->i[4], w = i[5] * a->i[1] - a->i[3] + i[3] * a->i[5];
        if (h >= 0 && h < xs[2] && w >= 0 && w < xs[3])
            fn(from, to, ((i[0] * xs[1] + i[1]) * xs[2] + h) * xs[3] + w, at);
        array_next(i, 6, sizes);
    }
}

static void unfold_one(const op_array *from, op_array *to, int64_t x, int64_t column)
{
    to->v[column] = from->v[x];
}

static void fold_one(const op_array *from, op_array *to, int64_t x, int64_t column)
{
    add_term(to, x, from->v[column]);
}

REFERENCE(unfold)
{
    const int64_t *xs = in[0]->sizes;
    int64_t sizes[3] = { xs[0], xs[1] * a->i[7] * a->i[8], conv_size(xs[2], a->i[7], a, 0) * conv_size(xs[3], a->i[8], a, 1) };
    array_make(&out[0], in[0]->dtype, 3, sizes);
    unfold_walk(xs, a, unfold_one, in[0], &out[0]);
    return 1;
}

REFERENCE(fold)
{
    int64_t sizes[4] = { in[0]->sizes[0], in[0]->sizes[1] / (a->i[7] * a->i[8]), a->i[9], a->i[10] };
    array_make(&out[0], in[0]->dtype, 4, sizes);
    array_scaled(&out[0]);
    unfold_walk(sizes, a, fold_one, in[0], &out[0]);
    return 1;
}

/* --- pooling ------------------------------------------------------------------------ */

/* kernel, stride, padding, dilation (h, w each), ceil_mode, count_include_pad */
static int64_t pool_size(int64_t size, const trek_attrs *a, int side)
{
    int64_t kernel = a->i[side], stride = a->i[2 + side], padding = a->i[4 + side], dilation = a->i[6 + side];
    int64_t span = size + 2 * padding - dilation * (kernel - 1) - 1;
    int64_t count = (a->i[8] ? span + stride - 1 : span) / stride + 1;
    if (a->i[8] && (count - 1) * stride >= size + padding)
        count--; /* the last window must start inside the input or its left padding */
    return count;
}

static double lowest_of(trek_dtype dtype)
{
    switch (dtype) {
    case TREK_I64: return (double)INT64_MIN;
    case TREK_I32: return (double)INT32_MIN;
    case TREK_U8: return 0;
    default: return -INFINITY;
    }
}

REFERENCE(max_pool2d)
{
    const op_array *x = in[0];
    int64_t sizes[4] = { x->sizes[0], x->sizes[1], pool_size(x->sizes[2], a, 0), pool_size(x->sizes[3], a, 1) };
    array_make(&out[0], x->dtype, 4, sizes);
    array_make(&out[1], TREK_I64, 4, sizes);
    int64_t i[TREK_MAX_DIMS] = { 0 };
    for (int64_t at = 0; at < out[0].numel; at++, array_next(i, 4, sizes)) {
        bool found = false;
        for (int64_t k = 0; k < a->i[0] * a->i[1]; k++) {
            int64_t h = i[2] * a->i[2] - a->i[4] + k / a->i[1] * a->i[6], w = i[3] * a->i[3] - a->i[5] + k % a->i[1] * a->i[7];
            if (h < 0 || h >= x->sizes[2] || w < 0 || w >= x->sizes[3])
                continue;
            double value = x->v[((i[0] * x->sizes[1] + i[1]) * x->sizes[2] + h) * x->sizes[3] + w];
            if (!found || value > out[0].v[at] || (isnan(value) && !isnan(out[0].v[at]))) {
                out[0].v[at] = value;
                out[1].v[at] = (double)(h * x->sizes[3] + w);
                found = true;
            }
        }
        if (!found) { /* a window wholly in the padding */
            out[0].v[at] = lowest_of((trek_dtype)x->dtype);
            out[1].v[at] = -1;
        }
    }
    return 2;
}

REFERENCE(max_pool2d_backward)
{
    const op_array *g = in[0], *places = in[1];
    array_make(&out[0], g->dtype, (int)a->i[0], &a->i[1]);
    array_scaled(&out[0]);
    int64_t plane = out[0].sizes[2] * out[0].sizes[3], from = g->sizes[2] * g->sizes[3];
    for (int64_t i = 0; i < g->numel; i++)
        if (places->v[i] >= 0)
            add_term(&out[0], i / from * plane + (int64_t)places->v[i], g->v[i]);
    for (int64_t i = 0; i < out[0].numel; i++)
        array_set(&out[0], i, out[0].v[i]);
    return 1;
}

/* Adds value x weight of every window element: forward (x to y) or its transpose. */
static void avg_walk(const int64_t *xs, const int64_t *ys, const trek_attrs *a, const op_array *from, op_array *to, bool forward)
{
    int64_t i[TREK_MAX_DIMS] = { 0 };
    int64_t total = ys[0] * ys[1] * ys[2] * ys[3];
    for (int64_t at = 0; at < total; at++, array_next(i, 4, ys)) {
        int64_t h0 = i[2] * a->i[2] - a->i[4], w0 = i[3] * a->i[3] - a->i[5];
        int64_t h1 = h0 + a->i[0], w1 = w0 + a->i[1];
        /* the padded window, cut at the padded input's end, or its part inside */
        int64_t padded = ((h1 < xs[2] + a->i[4] ? h1 : xs[2] + a->i[4]) - h0) * ((w1 < xs[3] + a->i[5] ? w1
                                                                                  : xs[3] + a->i[5]) - w0);
        h0 = h0 < 0 ? 0 : h0, w0 = w0 < 0 ? 0 : w0;
        h1 = h1 > xs[2] ? xs[2] : h1, w1 = w1 > xs[3] ? xs[3] : w1;
        double divisor = (double)(a->i[9] ? padded : (h1 - h0) * (w1 - w0));
        for (int64_t h = h0; h < h1; h++)
            for (int64_t w = w0; w < w1; w++) {
                int64_t x = ((i[0] * xs[1] + i[1]) * xs[2] + h) * xs[3] + w;
                add_term(to, forward ? at : x, from->v[forward ? x : at] / divisor);
            }
    }
}

REFERENCE(avg_pool2d)
{
    const int64_t *xs = in[0]->sizes;
    int64_t sizes[4] = { xs[0], xs[1], pool_size(xs[2], a, 0), pool_size(xs[3], a, 1) };
    array_make(&out[0], in[0]->dtype, 4, sizes);
    array_scaled(&out[0]);
    avg_walk(xs, sizes, a, in[0], &out[0], true);
    return 1;
}

REFERENCE(avg_pool2d_backward)
{
    const int64_t *ys = in[0]->sizes;
    int64_t sizes[4] = { ys[0], ys[1], a->i[10], a->i[11] };
    array_make(&out[0], in[0]->dtype, 4, sizes);
    array_scaled(&out[0]);
    avg_walk(sizes, ys, a, in[0], &out[0], false);
    return 1;
}

/* Output o of O covers floor(o S / O) .. ceil((o + 1) S / O) of the S inputs. */
static void adaptive_walk(const int64_t *xs, const int64_t *ys, const op_array *from, op_array *to, bool forward)
{
    int64_t i[TREK_MAX_DIMS] = { 0 };
    int64_t total = ys[0] * ys[1] * ys[2] * ys[3];
    for (int64_t at = 0; at < total; at++, array_next(i, 4, ys)) {
        int64_t h0 = i[2] * xs[2] / ys[2], h1 = ((i[2] + 1) * xs[2] + ys[2] - 1) / ys[2];
        int64_t w0 = i[3] * xs[3] / ys[3], w1 = ((i[3] + 1) * xs[3] + ys[3] - 1) / ys[3];
        for (int64_t h = h0; h < h1; h++)
            for (int64_t w = w0; w < w1; w++) {
                int64_t x = ((i[0] * xs[1] + i[1]) * xs[2] + h) * xs[3] + w;
                add_term(to, forward ? at : x, from->v[forward ? x : at] / (double)((h1 - h0) * (w1 - w0)));
            }
    }
}

REFERENCE(adaptive_avg_pool2d)
{
    int64_t sizes[4] = { in[0]->sizes[0], in[0]->sizes[1], a->i[0], a->i[1] };
    array_make(&out[0], in[0]->dtype, 4, sizes);
    array_scaled(&out[0]);
    adaptive_walk(in[0]->sizes, sizes, in[0], &out[0], true);
    return 1;
}

REFERENCE(adaptive_avg_pool2d_backward)
{
    int64_t sizes[4] = { in[0]->sizes[0], in[0]->sizes[1], a->i[0], a->i[1] };
    array_make(&out[0], in[0]->dtype, 4, sizes);
    array_scaled(&out[0]);
    adaptive_walk(sizes, in[0]->sizes, in[0], &out[0], false);
    return 1;
}

/* The first largest of what adaptive_walk adds up; of NaNs the last. */
REFERENCE(adaptive_max_pool2d)
{
    const int64_t *xs = in[0]->sizes;
    int64_t sizes[4] = { xs[0], xs[1], a->i[0], a->i[1] }, i[TREK_MAX_DIMS] = { 0 };
    array_make(&out[0], in[0]->dtype, 4, sizes);
    array_make(&out[1], TREK_I64, 4, sizes);
    for (int64_t at = 0; at < out[0].numel; at++, array_next(i, 4, sizes)) {
        int64_t h0 = i[2] * xs[2] / sizes[2], h1 = ((i[2] + 1) * xs[2] + sizes[2] - 1) / sizes[2], found = -1;
        int64_t w0 = i[3] * xs[3] / sizes[3], w1 = ((i[3] + 1) * xs[3] + sizes[3] - 1) / sizes[3];
        const double *plane = in[0]->v + (i[0] * xs[1] + i[1]) * xs[2] * xs[3];
        for (int64_t h = h0; h < h1; h++)
            for (int64_t w = w0; w < w1; w++)
                if (found < 0 || plane[h * xs[3] + w] > plane[found] || isnan(plane[h * xs[3] + w]))
                    found = h * xs[3] + w;
        out[0].v[at] = plane[found];
        out[1].v[at] = (double)found;
    }
    return 2;
}
