/* SPDX-License-Identifier: Apache-2.0 */
/* Sampling at positions of a grid for one real type. Included by grid_sample.c. */
#include "tensor/cpu/conv/taps_template.h"

#define PLACE_REAL T
#define PLACE(name) TREK_R(name)
#include "tensor/grid_place.h"
#undef PLACE_REAL
#undef PLACE

/* The elements of a channel that the positions of a part of the grid use: entry t of position p is [t][p]. */
typedef struct TREK_R(grid_taps) {
    int32_t index[TAPS][PART];
    T weight[TAPS][PART];
    T slope[3][TAPS][PART]; /* the weight's derivative by each coordinate of the grid */
} TREK_R(grid_taps);

/* The elements along one dimension. */
typedef struct TREK_R(line_taps) {
    int32_t index[LINE_TAPS][PART];
    T weight[LINE_TAPS][PART], slope[LINE_TAPS][PART];
} TREK_R(line_taps);

/* at[n]: positions along a dimension of `size`, which are moved into it; slope[n] is multiplied by the derivative of
 * that. */
static void TREK_R(pad_places)(const grid_job *job, T *at, T *slope, int n, T size)
{
    if (job->padding == TREK_GRID_PADDING_REFLECTION) {
        const bool align = job->align;
        TREK_INDEPENDENT
        for (int p = 0; p < n; p++)
            at[p] = TREK_R(place_mirrored)(at[p], size, align, &slope[p]);
    }
    if (job->padding != TREK_GRID_PADDING_ZEROS) {
        TREK_INDEPENDENT
        for (int p = 0; p < n; p++)
            at[p] = TREK_R(place_held)(at[p], size, &slope[p]);
    }
}

/* scale: the derivative of positions by the grid's coordinates. */
static void TREK_R(nearest_taps)(const grid_job *job, T *at, int n, int32_t count, TREK_R(line_taps) *to)
{
    const T size = (T)count;
    TREK_R(pad_places)(job, at, to->slope[0], n, size);
    TREK_INDEPENDENT
    for (int p = 0; p < n; p++) {
        to->index[0][p] = TREK_R(place_inside)(TREK_R(place_round)(at[p]), 0, count);
        to->weight[0][p] = 1;
        to->slope[0][p] = 0;
    }
}

/* Computes place_floor of whole vectors. */
static void TREK_R(floors)(const T *at, int n, T *to)
{
    const V most = TREK_R(spread)((T)(1 << 30)), one = TREK_R(spread)(1);
    typedef TREK_R(trek_indices) I;
    for (int p = 0; p < n; p += W) {
        V x = TREK_R(load_part)(at + p, TREK_R(lanes)(n - p < W ? n - p : W));
        I fits = (x < most) & (x > -most);
        x = (V)(((I)x & fits) | ((I)-most & ~fits));
        V whole = __builtin_convertvector(__builtin_convertvector(x, I), V);
        TREK_R(store)(to + p, whole - (V)((I)one & (I)(whole > x)));
    }
}

static void TREK_R(linear_taps)(const grid_job *job, T *at, int n, int32_t count, T scale, TREK_R(line_taps) *to)
{
    const T size = (T)count;
    for (int p = 0; p < n; p++)
        to->slope[1][p] = scale;
    TREK_R(pad_places)(job, at, to->slope[1], n, size);
    T below[PART];
    TREK_R(floors)(at, n, below);
    TREK_INDEPENDENT
    for (int p = 0; p < n; p++) {
        T from = below[p], past = at[p] - from;
        to->index[0][p] = TREK_R(place_inside)(from, 0, count);
        to->index[1][p] = TREK_R(place_inside)(from, 1, count);
        to->weight[0][p] = 1 - past;
        to->weight[1][p] = past;
        to->slope[0][p] = -to->slope[1][p];
    }
}

/* Each of the four taps is moved into the line separately. */
static void TREK_R(cubic_taps)(const grid_job *job, const T *at, int n, int32_t count, T scale, TREK_R(line_taps) *to)
{
    const T size = (T)count;
    T place[PART], none[PART];
    for (int t = 0; t < 4; t++) {
        TREK_INDEPENDENT
        for (int p = 0; p < n; p++) {
            T from = TREK_R(place_floor)(at[p]), slope = 0;
            to->weight[t][p] = TREK_R(place_cubic)(at[p] - from, t, &slope);
            to->slope[t][p] = slope * scale;
            place[p] = from + (T)(t - 1);
            none[p] = 0;
        }
        TREK_R(pad_places)(job, place, none, n, size);
        TREK_INDEPENDENT
        for (int p = 0; p < n; p++)
            to->index[t][p] = TREK_R(place_inside)(TREK_R(place_floor)(place[p] + (T)0.5), 0, count);
    }
}

static void TREK_R(line_of)(const grid_job *job, const T *grid, int n, int d, TREK_R(line_taps) *to)
{
    const int32_t count = (int32_t)job->sizes[d];
    T at[PART], size = (T)count, scale = (job->align ? size - 1 : size) / 2;
    const bool align = job->align;
    if (job->dims == 2) /* copying is worth it because the stride is known */
        for (int p = 0; p < n; p++)
            at[p] = TREK_R(place_of)(grid[p * 2 + d], size, align);
    else
        for (int p = 0; p < n; p++)
            at[p] = TREK_R(place_of)(grid[p * 3 + d], size, align);
    if (job->mode == TREK_GRID_MODE_NEAREST)
        TREK_R(nearest_taps)(job, at, n, count, to);
    else if (job->mode == TREK_GRID_MODE_BILINEAR)
        TREK_R(linear_taps)(job, at, n, count, scale, to);
    else
        TREK_R(cubic_taps)(job, at, n, count, scale, to);
}

/* Combines entry k of each dimension into entry t; with two dimensions the third has one element. */
static void TREK_R(join)(const grid_job *job, const TREK_R(line_taps) *lines, int n, int t, const int *k, bool slopes,
                         TREK_R(grid_taps) *to)
{
    const int32_t *i = lines[0].index[k[0]], *j = lines[1].index[k[1]], *l = lines[2].index[k[2]];
    const T *u = lines[0].weight[k[0]], *v = lines[1].weight[k[1]], *w = lines[2].weight[k[2]];
    const int32_t width = (int32_t)job->sizes[0], area = width * (int32_t)job->sizes[1];
    int32_t *index = to->index[t];
    T *weight = to->weight[t];
    TREK_INDEPENDENT
    for (int p = 0; p < n; p++) {
        int32_t at = i[p] + j[p] * width + l[p] * area;
        T product = u[p] * v[p] * w[p];
        bool inside = (i[p] | j[p] | l[p]) >= 0;
        index[p] = inside ? at : -1;
        weight[p] = inside ? product : 0;
    }
    for (int p = n; p < PART; p++) { /* whole vectors are read */
        index[p] = -1;
        weight[p] = 0;
    }
    for (int d = 0; slopes && d < job->dims; d++) {
        const T *first = d == 0 ? lines[0].slope[k[0]] : u, *second = d == 1 ? lines[1].slope[k[1]] : v;
        const T *third = d == 2 ? lines[2].slope[k[2]] : w;
        T *slope = to->slope[d][t];
        TREK_INDEPENDENT
        for (int p = 0; p < n; p++) {
            T product = first[p] * second[p] * third[p];
            slope[p] = index[p] >= 0 ? product : 0;
        }
    }
}

static void TREK_R(fill_taps)(const grid_job *job, const T *grid, int n, bool slopes, TREK_R(grid_taps) *to)
{
    TREK_R(line_taps) lines[3];
    for (int d = 0; d < job->dims; d++)
        TREK_R(line_of)(job, grid, n, d, &lines[d]);
    for (int p = 0; job->dims == 2 && p < n; p++) {
        lines[2].index[0][p] = 0;
        lines[2].weight[0][p] = 1;
    }
    int each = line_taps_of(job), k[3];
    for (int t = 0; t < job->taps; t++) {
        k[0] = t % each;
        k[1] = t / each % each;
        k[2] = t / each / each;
        TREK_R(join)(job, lines, n, t, k, slopes, to);
    }
}

/* Units are parts of samples' grids. */
static void TREK_R(sample_units)(void *arg, int64_t begin, int64_t end)
{
    const grid_job *job = arg;
    TREK_R(grid_taps) taps;
    for (int64_t unit = begin; unit < end; unit++) {
        int64_t sample = unit / job->parts, first = unit % job->parts * PART;
        int n = (int)(job->points - first < PART ? job->points - first : PART);
        TREK_R(fill_taps)(job, (const T *)job->grid + (sample * job->points + first) * job->dims, n, false, &taps);
        const T *x = (const T *)job->x + sample * job->channels * job->plane;
        T *y = (T *)job->y + sample * job->channels * job->points + first;
        for (int64_t c = 0; c < job->channels; c++)
            TREK_R(weigh)(y + c * job->points, n, x + c * job->plane, taps.index[0], taps.weight[0], job->taps, PART);
    }
}

/* Computes sums[t][p] += dy[p] x[index[t][p]]. */
TREK_INLINE void TREK_R(add_some)(int count, const TREK_R(grid_taps) *taps, const T *x, const T *dy, int n, T (*sums)[PART])
{
    for (int i = 0; i < n; i += W) {
        V g = TREK_R(load_part)(dy + i, TREK_R(lanes)(n - i < W ? n - i : W));
        for (int t = 0; t < count; t++)
            TREK_R(store)(&sums[t][i], TREK_R(fma)(TREK_R(gather)(x, &taps->index[t][i]), g, TREK_R(load)(&sums[t][i])));
    }
}

static void TREK_R(add_products)(const grid_job *job, const TREK_R(grid_taps) *taps, const T *x, const T *dy, int n,
                                 T (*sums)[PART])
{
    if (job->taps == 4) /* unrolled */
        TREK_R(add_some)(4, taps, x, dy, n, sums);
    else
        TREK_R(add_some)(job->taps, taps, x, dy, n, sums);
}

/* Computes gradients of the grid; units as above. */
static void TREK_R(grid_grad_units)(void *arg, int64_t begin, int64_t end)
{
    const grid_job *job = arg;
    TREK_R(grid_taps) taps;
    T sums[TAPS][PART];
    for (int64_t unit = begin; unit < end; unit++) {
        int64_t sample = unit / job->parts, first = unit % job->parts * PART, at = (sample * job->points + first) * job->dims;
        int n = (int)(job->points - first < PART ? job->points - first : PART);
        TREK_R(fill_taps)(job, (const T *)job->grid + at, n, true, &taps);
        memset(sums, 0, (size_t)job->taps * sizeof sums[0]);
        for (int64_t c = sample * job->channels; c < (sample + 1) * job->channels; c++)
            TREK_R(add_products)(job, &taps, (const T *)job->x + c * job->plane, (const T *)job->dy + c * job->points + first, n,
                                 sums);
        T *dgrid = (T *)job->dgrid + at;
        for (int d = 0; d < job->dims; d++) {
            T sum[PART] = { 0 };
            for (int t = 0; t < job->taps; t++)
                for (int p = 0; p < n; p++)
                    sum[p] += taps.slope[d][t][p] * sums[t][p];
            for (int p = 0; p < n; p++)
                dgrid[p * job->dims + d] = sum[p];
        }
    }
}

/* Computes gradients of x; units are groups of a sample's channels. */
static void TREK_R(input_grad_units)(void *arg, int64_t begin, int64_t end)
{
    const grid_job *job = arg;
    TREK_R(grid_taps) taps;
    for (int64_t unit = begin; unit < end; unit++) {
        int64_t sample = unit / job->groups, group = unit % job->groups * GROUP;
        int64_t channels = job->channels - group < GROUP ? job->channels - group : GROUP;
        T *dx = (T *)job->dx + (sample * job->channels + group) * job->plane;
        const T *dy = (const T *)job->dy + (sample * job->channels + group) * job->points;
        memset(dx, 0, (size_t)(channels * job->plane) * sizeof *dx);
        for (int64_t first = 0; first < job->points; first += PART) {
            int n = (int)(job->points - first < PART ? job->points - first : PART);
            TREK_R(fill_taps)(job, (const T *)job->grid + (sample * job->points + first) * job->dims, n, false, &taps);
            for (int64_t c = 0; c < channels; c++)
                for (int t = 0; t < job->taps; t++)
                    for (int p = 0; p < n; p++)
                        if (taps.index[t][p] >= 0)
                            dx[c * job->plane + taps.index[t][p]] += taps.weight[t][p] * dy[c * job->points + first + p];
        }
    }
}
