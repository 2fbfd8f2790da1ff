/* SPDX-License-Identifier: Apache-2.0 */
/* Direct convolution (stride 1) for one real type. Included by conv_direct.c.
 *
 * An image is padded, and its rows are placed one after the other as a line. An output position is a position of that
 * line, and each element of the kernel is a fixed shift along it, so that whole vectors of positions are computed at
 * once. Results in the gaps between rows are discarded (forward) or multiplied by zeros (weight gradient). */
#include "tensor/cpu/vector.h"

/* How many elements of the kernel, and filters, the weight's gradient processes at once: as many as registers hold. */
#ifndef DIRECT_TAPS
#define DIRECT_TAPS (TREK_VECTOR_BYTES == 64 ? 5 : 3)
#endif
#define PLACE_VECTORS (TREK_VECTOR_BYTES == 64 ? 4 : 2)
#define FILTER_ROWS 6
#define SLACK (4 * W)   /* elements after a line that may be read */

/* Copies `channels` planes into lines, with zeros between and around their rows. */
static void TREK_R(lay_out)(const direct_lines *l, int64_t channels, int64_t height, int64_t width, const T *image, T *line)
{
    for (int64_t channel = 0; channel < channels; channel++, line += l->size) {
        if (l->size != height * width)
            memset(line, 0, (size_t)l->size * sizeof(T));
        T *row = line + l->pad_h * l->pitch + l->pad_w;
        for (int64_t y = 0; y < height; y++, row += l->pitch, image += width) {
            int64_t x = 0;
            for (; x + W <= width; x += W)
                TREK_R(store)(row + x, TREK_R(load)(image + x));
            if (x < width) {
                trek_lanes rest = TREK_R(lanes)((int)(width - x));
                TREK_R(store_part)(row + x, rest, TREK_R(load_part)(image + x, rest));
            }
        }
    }
}

/* Computes out[o][p] = bias[o] + sum over steps s of weight[s * filters + o] line[shift[s] + p], for `filters`
 * filters and `vectors` vectors of positions p. */
TREK_INLINE void TREK_R(places)(const int filters, const int vectors, int64_t steps, const int64_t *shift, const T *line,
                                const T *weight, const T *bias, T *out, int64_t out_line)
{
    V sum[FILTER_ROWS][PLACE_VECTORS];
#pragma GCC unroll 8
    for (int o = 0; o < filters; o++) {
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++)
            sum[o][v] = TREK_R(spread)(bias ? bias[o] : 0);
    }
    for (int64_t s = 0; s < steps; s++, weight += filters) {
        const T *from = line + shift[s];
        V value[PLACE_VECTORS];
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++)
            value[v] = TREK_R(load)(from + v * W);
#pragma GCC unroll 8
        for (int o = 0; o < filters; o++) {
            V w = TREK_R(spread)(weight[o]);
#pragma GCC unroll 4
            for (int v = 0; v < vectors; v++)
                sum[o][v] = TREK_R(fma)(value[v], w, sum[o][v]);
        }
    }
#pragma GCC unroll 8
    for (int o = 0; o < filters; o++) {
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++)
            TREK_R(store)(out + o * out_line + v * W, sum[o][v]);
    }
}

#define TREK_PLACES_PARAMETERS                                                                                      \
    int64_t steps, const int64_t *shift, const T *line, const T *weight, const T *bias, T *out, int64_t out_line
#define TREK_PLACES(filters, vectors)                                                                               \
    static void TREK_R(places_##filters##_##vectors)(TREK_PLACES_PARAMETERS)                                        \
    {                                                                                                               \
        TREK_R(places)(filters, vectors, steps, shift, line, weight, bias, out, out_line);                          \
    }
#if TREK_VECTOR_BYTES == 64
#define TREK_PLACES_LIST(X, filters) X(filters, 1) X(filters, 2) X(filters, 3) X(filters, 4)
#else
#define TREK_PLACES_LIST(X, filters) X(filters, 1) X(filters, 2)
#endif
#define TREK_PLACES_ALL(filters) TREK_PLACES_LIST(TREK_PLACES, filters)
TREK_PLACES_ALL(1) TREK_PLACES_ALL(2) TREK_PLACES_ALL(3) TREK_PLACES_ALL(4) TREK_PLACES_ALL(5) TREK_PLACES_ALL(6)
#define TREK_PLACES_NAME(filters, vectors) TREK_R(places_##filters##_##vectors),
#define TREK_PLACES_ROW(filters) { TREK_PLACES_LIST(TREK_PLACES_NAME, filters) },
/* [filters - 1][vectors - 1] */
static void (*const TREK_R(places_table)[FILTER_ROWS][PLACE_VECTORS])(TREK_PLACES_PARAMETERS) = {
    TREK_PLACES_ROW(1) TREK_PLACES_ROW(2) TREK_PLACES_ROW(3) TREK_PLACES_ROW(4) TREK_PLACES_ROW(5) TREK_PLACES_ROW(6)
};
#undef TREK_PLACES_ROW
#undef TREK_PLACES_NAME
#undef TREK_PLACES_ALL
#undef TREK_PLACES_LIST
#undef TREK_PLACES
#undef TREK_PLACES_PARAMETERS

/* Arranges the weights of each block of filters: [step][filter of the block]. */
static void TREK_R(arrange_weight)(const trek_conv *c, const T *weight, T *to)
{
    int64_t steps = c->group_channels * c->kernel_h * c->kernel_w;
    for (int64_t group = 0; group < c->groups; group++)
        for (int64_t first = 0, left; (left = c->group_filters - first) > 0;) {
            int64_t count = direct_block(left, FILTER_ROWS);
            const T *from = weight + (group * c->group_filters + first) * steps;
            for (int64_t s = 0; s < steps; s++)
                for (int64_t o = 0; o < count; o++)
                    *to++ = from[o * steps + s];
            first += count;
        }
}

/* Copies the rows of `filters` lines without the gaps. */
static void TREK_R(take_rows)(const trek_conv *c, int64_t pitch, int filters, const T *out, int64_t out_line, T *y)
{
    for (int o = 0; o < filters; o++, out += out_line)
        for (int64_t row = 0; row < c->out_h; row++, y += c->out_w) {
            const T *from = out + row * pitch;
            int64_t x = 0;
            for (; x + W <= c->out_w; x += W)
                TREK_R(store)(y + x, TREK_R(load)(from + x));
            if (x < c->out_w) {
                trek_lanes rest = TREK_R(lanes)((int)(c->out_w - x));
                TREK_R(store_part)(y + x, rest, TREK_R(load_part)(from + x, rest));
            }
        }
}

/* Computes one group of one image, whose lines are at `line`. */
static void TREK_R(direct_group)(const trek_conv *c, const direct_lines *l, const T *line, const T *weight, const T *bias,
                                 T *out, T *y)
{
    int64_t steps = c->group_channels * c->kernel_h * c->kernel_w;
    int64_t vectors = ((c->out_h - 1) * l->pitch + c->out_w + W - 1) / W, out_line = vectors * W;
    for (int64_t first = 0, left; (left = c->group_filters - first) > 0;) {
        int filters = (int)direct_block(left, FILTER_ROWS);
        for (int64_t v = 0, rest; (rest = vectors - v) > 0;) {
            int count = (int)direct_block(rest, PLACE_VECTORS);
            TREK_R(places_table)[filters - 1][count - 1](steps, l->shift, line + v * W, weight, bias ? bias + first : NULL,
                                                         out + v * W, out_line);
            v += count;
        }
        TREK_R(take_rows)(c, l->pitch, filters, out, out_line, y + first * c->out_h * c->out_w);
        weight += steps * filters;
        first += filters;
    }
}

static void TREK_R(direct_images)(void *arg, int64_t begin, int64_t end)
{
    direct_job *job = arg;
    const trek_conv *c = job->c;
    const direct_lines *l = job->lines;
    int64_t plane = c->height * c->width, steps = c->group_channels * c->kernel_h * c->kernel_w;
    int64_t line_size = c->group_channels * l->size + SLACK;
    int64_t out_size = FILTER_ROWS * (((c->out_h - 1) * l->pitch + c->out_w + W - 1) / W) * W;
    T *line = trek_block_alloc((size_t)(line_size + out_size) * sizeof(T));
    if (!line) {
        job->failed = true;
        return;
    }
    memset(line + line_size - SLACK, 0, SLACK * sizeof(T));
    for (int64_t i = begin; i < end; i++)
        for (int64_t group = 0; group < c->groups; group++) {
            const T *image = (const T *)job->x + (i * c->channels + group * c->group_channels) * plane;
            /* an image without padding is already a line, except for the slack at its end */
            bool as_it_is = l->size == plane && (i + 1 < c->images || group + 1 < c->groups) &&
                            (c->images - i) * c->channels * plane - (group + 1) * c->group_channels * plane >= SLACK;
            if (!as_it_is)
                TREK_R(lay_out)(l, c->group_channels, c->height, c->width, image, line);
            TREK_R(direct_group)(c, l, as_it_is ? image : line, (const T *)job->weight + group * c->group_filters * steps,
                                 job->bias ? (const T *)job->bias + group * c->group_filters : NULL, line + line_size,
                                 (T *)job->y + (i * c->filters + group * c->group_filters) * c->out_h * c->out_w);
        }
    trek_block_free(line);
}

/* Computes sum[o][t] += over p of dy[o][p] line[shift[t] + p], as vectors over p. */
TREK_INLINE void TREK_R(correlate)(const int filters, const int taps, int64_t vectors, const T *dy, int64_t dy_line,
                                   const T *line, const int64_t *shift, V *sums)
{
    V sum[FILTER_ROWS][DIRECT_TAPS];
    const T *from[DIRECT_TAPS];
#pragma GCC unroll 8
    for (int t = 0; t < taps; t++)
        from[t] = line + shift[t];
#pragma GCC unroll 8
    for (int o = 0; o < filters; o++) {
#pragma GCC unroll 8
        for (int t = 0; t < taps; t++)
            sum[o][t] = sums[o * taps + t];
    }
    for (int64_t v = 0; v < vectors * W; v += W) {
        V grad[FILTER_ROWS];
#pragma GCC unroll 8
        for (int o = 0; o < filters; o++)
            grad[o] = TREK_R(load)(dy + o * dy_line + v);
#pragma GCC unroll 8
        for (int t = 0; t < taps; t++) {
            V x = TREK_R(load)(from[t] + v);
#pragma GCC unroll 8
            for (int o = 0; o < filters; o++)
                sum[o][t] = TREK_R(fma)(grad[o], x, sum[o][t]);
        }
    }
#pragma GCC unroll 8
    for (int o = 0; o < filters; o++) {
#pragma GCC unroll 8
        for (int t = 0; t < taps; t++)
            sums[o * taps + t] = sum[o][t];
    }
}

#define TREK_CORRELATE_PARAMETERS int64_t vectors, const T *dy, int64_t dy_line, const T *line, const int64_t *shift, V *sums
#define TREK_CORRELATE(filters, taps)                                                                               \
    static void TREK_R(correlate_##filters##_##taps)(TREK_CORRELATE_PARAMETERS)                                     \
    {                                                                                                               \
        TREK_R(correlate)(filters, taps, vectors, dy, dy_line, line, shift, sums);                                  \
    }
#define TREK_CORRELATE_NAME(filters, taps) TREK_R(correlate_##filters##_##taps),
#if TREK_VECTOR_BYTES == 64
#define TREK_CORRELATE_LIST(X, filters) X(filters, 1) X(filters, 2) X(filters, 3) X(filters, 4) X(filters, 5)
#define TREK_CORRELATE_ROWS(X) X(1) X(2) X(3) X(4) X(5)
#else
#define TREK_CORRELATE_LIST(X, filters) X(filters, 1) X(filters, 2) X(filters, 3)
#define TREK_CORRELATE_ROWS(X) X(1) X(2) X(3)
#endif
#define TREK_CORRELATE_ALL(filters) TREK_CORRELATE_LIST(TREK_CORRELATE, filters)
TREK_CORRELATE_ROWS(TREK_CORRELATE_ALL)
#define TREK_CORRELATE_ROW(filters) { TREK_CORRELATE_LIST(TREK_CORRELATE_NAME, filters) },
/* [filters - 1][taps - 1] */
static void (*const TREK_R(correlate_table)[DIRECT_TAPS][DIRECT_TAPS])(TREK_CORRELATE_PARAMETERS) = {
    TREK_CORRELATE_ROWS(TREK_CORRELATE_ROW)
};
#undef TREK_CORRELATE_ROW
#undef TREK_CORRELATE_ALL
#undef TREK_CORRELATE_ROWS
#undef TREK_CORRELATE_LIST
#undef TREK_CORRELATE_NAME
#undef TREK_CORRELATE
#undef TREK_CORRELATE_PARAMETERS

/* Computes to[i] = sum of the lanes of from[i], a vector of them at a time by transposing. */
static void TREK_R(sum_lanes)(T *to, const V *from, int count)
{
    for (int i = 0; i < count; i++)
        to[i] = TREK_R(sum)(from[i]);
}

/* Computes one group for all images of a block: lines of x at `lines`, those of dy (zeros in the gaps) at `grads`. */
static void TREK_R(correlate_group)(const trek_conv *c, const direct_lines *l, int64_t images, const T *lines, int64_t image_line,
                                    const T *grads, int64_t vectors, T *partial)
{
    int64_t steps = c->group_channels * c->kernel_h * c->kernel_w, dy_line = vectors * W;
    for (int64_t first = 0, left; (left = c->group_filters - first) > 0;) {
        int filters = (int)direct_block(left, DIRECT_TAPS);
        for (int64_t s = 0, rest; (rest = steps - s) > 0;) {
            int taps = (int)direct_block(rest, DIRECT_TAPS);
            V sums[DIRECT_TAPS * DIRECT_TAPS];
            T totals[DIRECT_TAPS * DIRECT_TAPS];
            for (int i = 0; i < filters * taps; i++)
                sums[i] = (V){ 0 };
            for (int64_t i = 0; i < images; i++)
                TREK_R(correlate_table)[filters - 1][taps - 1](vectors, grads + (i * c->group_filters + first) * dy_line, dy_line,
                                                               lines + i * image_line, l->shift + s, sums);
            TREK_R(sum_lanes)(totals, sums, filters * taps);
            for (int o = 0; o < filters; o++)
                for (int t = 0; t < taps; t++)
                    partial[(first + o) * steps + s + t] = totals[o * taps + t];
            s += taps;
        }
        first += filters;
    }
}

/* Processes blocks of images, each with its own partial sum. */
static void TREK_R(direct_grad_blocks)(void *arg, int64_t begin, int64_t end)
{
    direct_job *job = arg;
    const trek_conv *c = job->c;
    const direct_lines *l = job->lines;
    int64_t plane = c->height * c->width, out_plane = c->out_h * c->out_w, steps = c->group_channels * c->kernel_h * c->kernel_w;
    int64_t vectors = ((c->out_h - 1) * l->pitch + c->out_w + W - 1) / W, image_line = c->group_channels * l->size;
    int64_t x_size = job->block * image_line + SLACK, dy_size = job->block * c->group_filters * vectors * W;
    direct_lines gaps = { .pitch = l->pitch, .size = vectors * W };
    T *lines = trek_block_alloc((size_t)(x_size + dy_size) * sizeof(T)), *grads = lines + x_size;
    if (!lines) {
        job->failed = true;
        return;
    }
    for (int64_t block = begin; block < end; block++) {
        int64_t first = block * job->block, images = c->images - first < job->block ? c->images - first : job->block;
        for (int64_t group = 0; group < c->groups; group++) {
            memset(lines + images * image_line, 0, SLACK * sizeof(T));
            for (int64_t i = 0; i < images; i++) {
                const T *image = (const T *)job->x + ((first + i) * c->channels + group * c->group_channels) * plane;
                const T *dy = (const T *)job->dy + ((first + i) * c->filters + group * c->group_filters) * out_plane;
                TREK_R(lay_out)(l, c->group_channels, c->height, c->width, image, lines + i * image_line);
                TREK_R(lay_out)(&gaps, c->group_filters, c->out_h, c->out_w, dy, grads + i * c->group_filters * vectors * W);
            }
            T *partial = (T *)job->partials + (block * c->filters + group * c->group_filters) * steps;
            TREK_R(correlate_group)(c, l, images, lines, image_line, grads, vectors, partial);
        }
    }
    trek_block_free(lines);
}
#undef PLACE_VECTORS
#undef FILTER_ROWS
#undef SLACK
