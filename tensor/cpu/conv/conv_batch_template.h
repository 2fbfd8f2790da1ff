/* SPDX-License-Identifier: Apache-2.0 */
/* Convolution with a lane for each image, for one real type. Included by conv_batch.c. A "team" is W images. "Lined
 * up" means that one element of each of them is in one vector, so that neither narrow rows nor few channels leave
 * lanes unused, and every load is aligned. */
#include "tensor/cpu/vector.h"

#define TEAM_PLACES (TREK_VECTOR_BYTES == 64 ? 4 : 2)
#define TEAM_FILTERS 6
#if TREK_VECTOR_BYTES == 64
#define TEAM_TAPS 5
#else
#define TEAM_TAPS 3
#endif

/* Returns how many lanes of the team have an image, or a band of one. */
static int TREK_R(team_size)(const trek_conv *c, int64_t team)
{
    return c->images - team * W < W ? (int)(c->images - team * W) : W;
}

/* Lines up `count` elements for each of the first `used` lanes. Rows of `width` are placed `pitch` apart; after each `height`
 * rows, `gap` elements are left out. */
static void TREK_R(line_up)(const T *const *from, int used, int64_t count, const batch_frame *f, V *to)
{
    int64_t x = 0, y = 0;
    for (int64_t e = 0; e < count; e += W) {
        int rows = count - e < W ? (int)(count - e) : W;
        trek_lanes read = TREK_R(lanes)(rows);
        V r[W];
        if (used == W && rows == W) {
#pragma GCC unroll 16
            for (int i = 0; i < W; i++)
                r[i] = TREK_R(load)(from[i] + e);
        } else {
            for (int i = 0; i < W; i++)
                r[i] = i < used ? TREK_R(load_part)(from[i] + e, read) : (V){ 0 };
        }
        TREK_R(transpose)(r);
        for (int i = 0; i < rows; i++) {
            *to++ = r[i];
            if (++x == f->width) {
                x = 0;
                to += f->pitch - f->width;
                if (++y == f->height) {
                    y = 0;
                    to += f->gap;
                }
            }
        }
    }
}

/* Copies back, without frames: counts[i] elements of lane i, at most `count`. */
static void TREK_R(line_off)(const V *from, int64_t count, int used, T *const *to, const int64_t *counts)
{
    for (int64_t e = 0; e < count; e += W) {
        V r[W];
        for (int i = 0; i < W; i++)
            r[i] = e + i < count ? from[e + i] : (V){ 0 };
        TREK_R(transpose)(r);
        for (int i = 0; i < used; i++) {
            int64_t left = counts[i] - e;
            if (left > 0)
                TREK_R(store_part)(to[i] + e, TREK_R(lanes)(left < W ? (int)left : W), r[i]);
        }
    }
}

/* Lines up planes of `height` rows, of which each lane has `rows`: those from `step` times its band's number, plus `shift`, on.
 * Rows outside of the plane are zeros. `bands` has room for the rows of all lanes. */
static void TREK_R(line_up_bands)(const batch_job *job, int64_t team, const T *planes, int64_t image, int64_t channels,
                                  int64_t height,
                                  int64_t rows, int64_t step, int64_t shift, const batch_frame *f, T *bands, V *to)
{
    int used = TREK_R(team_size)(job->c, team);
    for (int64_t channel = 0; channel < channels; channel++, planes += height * f->width, to += f->size) {
        const T *from[W];
        for (int i = 0; i < used; i++) {
            int64_t lane = team * W + i, first = lane % job->bands * step + shift;
            int64_t begin = first < 0 ? -first : 0, end = height - first < rows ? height - first : rows;
            const T *plane = planes + lane / job->bands * image;
            T *band = bands + i * rows * f->width;
            from[i] = begin == 0 && end == rows ? plane + first * f->width : band;
            if (from[i] != band)
                continue;
            begin = begin < rows ? begin : rows, end = end > begin ? end : begin;
            memset(band, 0, (size_t)(begin * f->width) * sizeof(T));
            if (end > begin)
                memcpy(band + begin * f->width, plane + (first + begin) * f->width,
                       (size_t)((end - begin) * f->width) * sizeof(T));
            memset(band + end * f->width, 0, (size_t)((rows - end) * f->width) * sizeof(T));
        }
        TREK_R(line_up)(from, used, rows * f->width, f, to);
    }
}

/* The same where lanes have whole images. */
static void TREK_R(line_up_images)(const batch_job *job, int64_t team, const T *planes, int64_t image, int64_t count,
                                   const batch_frame *f, V *to)
{
    int used = TREK_R(team_size)(job->c, team);
    const T *from[W];
    for (int i = 0; i < used; i++)
        from[i] = planes + (team * W + i) * image;
    TREK_R(line_up)(from, used, count, f, to);
}

/* Computes y[f][q] = bias[f] + sum over `count` steps of weight[step.weight * filters + f] x[step.x + q * stride]. */
TREK_INLINE void TREK_R(team_places)(const int filters, const int places, const batch_step *step, int64_t count, const V *x,
                                     int64_t stride, const T *weight, const T *bias, V *y, int64_t y_line)
{
    V sum[TEAM_FILTERS][TEAM_PLACES];
    const int64_t apart = stride * (int64_t)sizeof(V);
#pragma GCC unroll 8
    for (int f = 0; f < filters; f++) {
#pragma GCC unroll 4
        for (int q = 0; q < places; q++)
            sum[f][q] = TREK_R(spread)(bias ? bias[f] : 0);
    }
    for (const batch_step *end = step + count; step < end; step++) {
        const char *from = (const char *)(x + step->x);
        const T *w = weight + step->weight * filters;
        V value[TEAM_PLACES];
#pragma GCC unroll 4
        for (int q = 0; q < places; q++)
            value[q] = *(const V *)(const void *)(from + q * apart);
#pragma GCC unroll 8
        for (int f = 0; f < filters; f++) {
            V factor = TREK_R(spread)(w[f]);
#pragma GCC unroll 4
            for (int q = 0; q < places; q++)
                sum[f][q] = TREK_R(fma)(value[q], factor, sum[f][q]);
        }
    }
#pragma GCC unroll 8
    for (int f = 0; f < filters; f++) {
#pragma GCC unroll 4
        for (int q = 0; q < places; q++)
            y[f * y_line + q] = sum[f][q];
    }
}

#define TREK_TEAM_PARAMETERS                                                                                        \
    const batch_step *step, int64_t count, const V *x, int64_t stride, const T *weight, const T *bias, V *y, int64_t y_line
#define TREK_TEAM(filters, places)                                                                                  \
    static void TREK_R(team_places_##filters##_##places)(TREK_TEAM_PARAMETERS)                                      \
    {                                                                                                               \
        TREK_R(team_places)(filters, places, step, count, x, stride, weight, bias, y, y_line);                     \
    }
#if TREK_VECTOR_BYTES == 64
#define TREK_TEAM_LIST(X, filters) X(filters, 1) X(filters, 2) X(filters, 3) X(filters, 4)
#else
#define TREK_TEAM_LIST(X, filters) X(filters, 1) X(filters, 2)
#endif
#define TREK_TEAM_ALL(filters) TREK_TEAM_LIST(TREK_TEAM, filters)
TREK_TEAM_ALL(1) TREK_TEAM_ALL(2) TREK_TEAM_ALL(3) TREK_TEAM_ALL(4) TREK_TEAM_ALL(5) TREK_TEAM_ALL(6)
#define TREK_TEAM_NAME(filters, places) TREK_R(team_places_##filters##_##places),
#define TREK_TEAM_ROW(filters) { TREK_TEAM_LIST(TREK_TEAM_NAME, filters) },
/* [filters - 1][places - 1] */
static void (*const TREK_R(team_table)[TEAM_FILTERS][TEAM_PLACES])(TREK_TEAM_PARAMETERS) = {
    TREK_TEAM_ROW(1) TREK_TEAM_ROW(2) TREK_TEAM_ROW(3) TREK_TEAM_ROW(4) TREK_TEAM_ROW(5) TREK_TEAM_ROW(6)
};
#undef TREK_TEAM_ROW
#undef TREK_TEAM_NAME
#undef TREK_TEAM_ALL
#undef TREK_TEAM_LIST
#undef TREK_TEAM
#undef TREK_TEAM_PARAMETERS

/* Computes one block of filters over a team's lined-up group of channels. */
static void TREK_R(team_block)(const batch_job *job, const V *x, const T *weight, const T *bias, int filters, V *y)
{
    const trek_conv *c = job->c;
    int64_t y_line = c->out_h * c->out_w;
    for (int64_t row = 0; row < c->out_h; row++)
        for (int64_t tile = 0; tile < job->tiles; tile++) {
            const batch_list *list = &job->lists[job->row_class[row] * job->tile_classes + job->tile_class[tile]];
            int64_t column = job->tile_start[tile], places = job->tile_start[tile + 1] - column;
            TREK_R(team_table)[filters - 1][places - 1](list->step, list->count,
                                                        x + row * c->stride_h * job->frame.pitch + column * c->stride_w,
                                                        c->stride_w, weight, bias, y + row * c->out_w + column, y_line);
        }
}

/* Lines up one group of channels of a team, surrounded by zeros. */
static void TREK_R(team_input)(const batch_job *job, int64_t team, int64_t group, T *bands, V *to)
{
    const trek_conv *c = job->c, *whole = job->whole;
    const batch_frame *f = &job->frame;
    int64_t plane = whole->height * whole->width, image = whole->channels * plane;
    const T *x = (const T *)job->x + group * c->group_channels * plane;
    if (f->size != c->height * c->width)
        memset(to, 0, (size_t)(c->group_channels * f->size) * sizeof(V));
    if (job->bands == 1)
        TREK_R(line_up_images)(job, team, x, image, c->group_channels * plane, f, to + f->first);
    else
        TREK_R(line_up_bands)(job, team, x, image, c->group_channels, whole->height, c->height, c->out_h * c->stride_h,
                              -whole->pad_h, f, bands, to + f->first);
}

/* Copies `filters` lines of a team to where they belong, beginning with that filter. */
static void TREK_R(team_output)(const batch_job *job, int64_t team, int64_t filter, int filters, const V *y)
{
    const trek_conv *c = job->c, *whole = job->whole;
    int64_t y_line = c->out_h * c->out_w, plane = whole->out_h * whole->out_w, counts[W];
    int64_t at_once = job->bands == 1 ? filters : 1; /* whole images: their filters are one after the other */
    int used = TREK_R(team_size)(c, team);
    for (int64_t o = 0; o < filters; o += at_once, y += at_once * y_line) {
        T *to[W];
        for (int i = 0; i < used; i++) {
            int64_t lane = team * W + i, first = lane % job->bands * y_line;
            to[i] = (T *)job->y + (lane / job->bands * whole->filters + filter + o) * plane + first;
            counts[i] = plane - first < y_line ? plane - first : at_once * y_line;
        }
        TREK_R(line_off)(y, at_once * y_line, used, to, counts);
    }
}

/* Returns how many vectors the bands of a team need before they are lined up. */
static int64_t TREK_R(band_size)(const batch_job *job)
{
    const trek_conv *c = job->c;
    int64_t x = c->height * c->width, y = c->out_h * c->out_w;
    return job->bands == 1 ? 0 : x > y ? x : y;
}

/* A task is a team, a group of channels and a block of filters. The input is lined up again when the team or the
 * group changes. */
static void TREK_R(forward_tasks)(void *arg, int64_t begin, int64_t end)
{
    batch_job *job = arg;
    const trek_conv *c = job->c;
    int64_t y_line = c->out_h * c->out_w, x_size = c->group_channels * job->frame.size, at = -1;
    int64_t y_size = TEAM_FILTERS * y_line;
    V *x = trek_block_alloc((size_t)(x_size + y_size + TREK_R(band_size)(job)) * sizeof(V)), *y = x + x_size;
    if (!x) {
        job->failed = true;
        return;
    }
    for (int64_t task = begin; task < end; task++) {
        int64_t block = task % job->blocks, group = task / job->blocks % c->groups, team = task / job->blocks / c->groups;
        if (task / job->blocks != at) {
            at = task / job->blocks;
            TREK_R(team_input)(job, team, group, (T *)(void *)(y + y_size), x);
        }
        int64_t first = batch_block_start(c->group_filters, TEAM_FILTERS, block);
        int filters = (int)(batch_block_start(c->group_filters, TEAM_FILTERS, block + 1) - first);
        int64_t filter = group * c->group_filters + first;
        TREK_R(team_block)(job, x, (const T *)job->weight + filter * job->steps, job->bias ? (const T *)job->bias + filter : NULL,
                           filters, y);
        TREK_R(team_output)(job, team, filter, filters, y);
    }
    trek_block_free(x);
}

/* Arranges the weights of each block of filters as [step][filter of the block]. */
static void TREK_R(arrange)(const trek_conv *c, int64_t steps, const T *weight, T *to)
{
    for (int64_t group = 0; group < c->groups; group++)
        for (int64_t first = 0, count; first < c->group_filters; first += count) {
            count = batch_block(c->group_filters - first, TEAM_FILTERS);
            const T *from = weight + (group * c->group_filters + first) * steps;
            for (int64_t s = 0; s < steps; s++)
                for (int64_t o = 0; o < count; o++)
                    *to++ = from[o * steps + s];
        }
}

/* Computes partial[f][t] = sum over positions and images of dy[f][position] x[shift[t] + position]. */
TREK_INLINE void TREK_R(team_taps)(const int filters, const int taps, const batch_job *job, const V *dy, const V *x,
                                   const int64_t *shift, V *sums)
{
    const trek_conv *c = job->c;
    const int64_t dy_line = c->out_h * c->out_w, stride = c->stride_w;
    V sum[TEAM_TAPS][TEAM_TAPS];
#pragma GCC unroll 8
    for (int f = 0; f < filters; f++) {
#pragma GCC unroll 8
        for (int t = 0; t < taps; t++)
            sum[f][t] = (V){ 0 };
    }
    for (int64_t row = 0; row < c->out_h; row++) {
        const V *from[TEAM_TAPS];
#pragma GCC unroll 8
        for (int t = 0; t < taps; t++)
            from[t] = x + shift[t] + row * c->stride_h * job->frame.pitch;
        for (int64_t column = 0; column < c->out_w; column++, dy++) {
            V grad[TEAM_TAPS];
#pragma GCC unroll 8
            for (int f = 0; f < filters; f++)
                grad[f] = dy[f * dy_line];
#pragma GCC unroll 8
            for (int t = 0; t < taps; t++) {
                V value = from[t][column * stride];
#pragma GCC unroll 8
                for (int f = 0; f < filters; f++)
                    sum[f][t] = TREK_R(fma)(grad[f], value, sum[f][t]);
            }
        }
    }
#pragma GCC unroll 8
    for (int f = 0; f < filters; f++) {
#pragma GCC unroll 8
        for (int t = 0; t < taps; t++)
            sums[f * taps + t] = sum[f][t];
    }
}

#define TREK_TAPS_PARAMETERS const batch_job *job, const V *dy, const V *x, const int64_t *shift, V *sums
#define TREK_TAPS(filters, taps)                                                                                    \
    static void TREK_R(team_taps_##filters##_##taps)(TREK_TAPS_PARAMETERS)                                          \
    {                                                                                                               \
        TREK_R(team_taps)(filters, taps, job, dy, x, shift, sums);                                                  \
    }
#define TREK_TAPS_NAME(filters, taps) TREK_R(team_taps_##filters##_##taps),
#if TREK_VECTOR_BYTES == 64
#define TREK_TAPS_LIST(X, filters) X(filters, 1) X(filters, 2) X(filters, 3) X(filters, 4) X(filters, 5)
#define TREK_TAPS_ROWS(X) X(1) X(2) X(3) X(4) X(5)
#else
#define TREK_TAPS_LIST(X, filters) X(filters, 1) X(filters, 2) X(filters, 3)
#define TREK_TAPS_ROWS(X) X(1) X(2) X(3)
#endif
#define TREK_TAPS_ALL(filters) TREK_TAPS_LIST(TREK_TAPS, filters)
TREK_TAPS_ROWS(TREK_TAPS_ALL)
#define TREK_TAPS_ROW(filters) { TREK_TAPS_LIST(TREK_TAPS_NAME, filters) },
/* [filters - 1][taps - 1] */
static void (*const TREK_R(taps_table)[TEAM_TAPS][TEAM_TAPS])(TREK_TAPS_PARAMETERS) = { TREK_TAPS_ROWS(TREK_TAPS_ROW) };
#undef TREK_TAPS_ROW
#undef TREK_TAPS_ALL
#undef TREK_TAPS_ROWS
#undef TREK_TAPS_LIST
#undef TREK_TAPS_NAME
#undef TREK_TAPS
#undef TREK_TAPS_PARAMETERS

/* Computes to[i] = sum of the lanes of from[i]. */
static void TREK_R(sum_lanes)(T *to, V *from, int count)
{
    int i = 0;
    for (; i + W <= count; i += W) {
        V *r = from + i;
        TREK_R(transpose)(r);
        for (int half = W / 2; half > 0; half /= 2)
            for (int l = 0; l < half; l++)
                r[l] += r[l + half];
        TREK_R(store)(to + i, r[0]);
    }
    for (; i < count; i++)
        to[i] = TREK_R(sum)(from[i]);
}

/* Lines up the gradients of `filters` filters, beginning with that one, without frames. */
static void TREK_R(team_grad)(const batch_job *job, int64_t team, int64_t filter, int filters, T *bands, V *to)
{
    const trek_conv *c = job->c, *whole = job->whole;
    batch_frame flat = { .width = c->out_w, .height = c->out_h, .pitch = c->out_w, .size = c->out_h * c->out_w };
    int64_t plane = whole->out_h * whole->out_w, image = whole->filters * plane;
    const T *dy = (const T *)job->dy + filter * plane;
    if (job->bands == 1)
        TREK_R(line_up_images)(job, team, dy, image, filters * plane, &flat, to);
    else
        TREK_R(line_up_bands)(job, team, dy, image, filters, whole->out_h, c->out_h, c->out_h, 0, &flat, bands, to);
}

/* Tasks as in the forward pass; each team has its own partial sum. */
static void TREK_R(weight_grad_tasks)(void *arg, int64_t begin, int64_t end)
{
    batch_job *job = arg;
    const trek_conv *c = job->c;
    int64_t y_line = c->out_h * c->out_w, x_size = c->group_channels * job->frame.size, at = -1;
    int64_t dy_size = TEAM_TAPS * y_line;
    V *x = trek_block_alloc((size_t)(x_size + dy_size + TREK_R(band_size)(job)) * sizeof(V)), *dy = x + x_size;
    if (!x) {
        job->failed = true;
        return;
    }
    for (int64_t task = begin; task < end; task++) {
        int64_t block = task % job->blocks, group = task / job->blocks % c->groups, team = task / job->blocks / c->groups;
        if (task / job->blocks != at) {
            at = task / job->blocks;
            TREK_R(team_input)(job, team, group, (T *)(void *)(dy + dy_size), x);
        }
        int64_t first = batch_block_start(c->group_filters, TEAM_TAPS, block);
        int filters = (int)(batch_block_start(c->group_filters, TEAM_TAPS, block + 1) - first);
        int64_t filter = group * c->group_filters + first;
        TREK_R(team_grad)(job, team, filter, filters, (T *)(void *)(dy + dy_size), dy);
        T *partial = (T *)job->partials + (team * c->filters + filter) * job->steps;
        for (int64_t s = 0, left; (left = job->steps - s) > 0;) {
            int taps = (int)batch_block(left, TEAM_TAPS);
            V sums[TEAM_TAPS * TEAM_TAPS];
            T totals[TEAM_TAPS * TEAM_TAPS];
            TREK_R(taps_table)[filters - 1][taps - 1](job, dy, x, job->shift + s, sums);
            TREK_R(sum_lanes)(totals, sums, filters * taps);
            for (int f = 0; f < filters; f++)
                for (int t = 0; t < taps; t++)
                    partial[f * job->steps + s + t] = totals[f * taps + t];
            s += taps;
        }
    }
    trek_block_free(x);
}
#undef TEAM_PLACES
#undef TEAM_FILTERS
#undef TEAM_TAPS
