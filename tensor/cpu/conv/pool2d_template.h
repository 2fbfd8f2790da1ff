/* SPDX-License-Identifier: Apache-2.0 */
/* Pooling of planes for one type. TREK_TYPE names it, TREK_TYPE_C is its C type, TREK_PLACE_C an integer of its size.
 * TREK_AVERAGE is defined for floating types, TREK_LOWEST (the lowest number) for the others. Included by pool2d.c. */
#define E TREK_TYPE_C
#define TREK_P_JOIN_(name, type) name##_##type
#define TREK_P_JOIN(name, type) TREK_P_JOIN_(name, type)
#define TREK_P(name) TREK_P_JOIN(name, TREK_TYPE)
#ifdef TREK_AVERAGE
#define TREK_LOWEST (-(E)INFINITY)
#endif
#define PLACE TREK_PLACE_C

#ifndef TREK_AVERAGE
/* Adjacent windows of 2 x 2 without padding: the common case. */
static void TREK_P(max_plane_2x2)(const pool_job *job, const E *x, E *y, int64_t *index)
{
    const int64_t width = job->width;
    for (int64_t row = 0; row < job->out_h; row++, y += job->out_w, index += job->out_w) {
        const E *upper = x + 2 * row * width, *lower = upper + width;
        for (int64_t c = 0; c < job->out_w; c++) {
            E best = upper[2 * c], next = upper[2 * c + 1], third = lower[2 * c], fourth = lower[2 * c + 1];
            int64_t place = 2 * c, at = place;
            at = next > best ? place + 1 : at;
            best = next > best ? next : best;
            at = third > best ? place + width : at;
            best = third > best ? third : best;
            at = fourth > best ? place + width + 1 : at;
            y[c] = fourth > best ? fourth : best;
            index[c] = 2 * row * width + at;
        }
    }
}
#endif

/* Finds, for each column, the largest of rows [top, bottom) in steps, and its row. */
static void TREK_P(largest_of_columns)(const pool_job *job, const E *x, int64_t top, int64_t bottom, E *best, PLACE *place)
{
    const int64_t width = job->width;
    memcpy(best, x + top * width, (size_t)width * sizeof *best);
    memset(place, 0, (size_t)width * sizeof *place);
    PLACE step = 1;
    for (int64_t v = top + job->dilation_h; v < bottom; v += job->dilation_h, step++) {
        const E *row = x + v * width;
        TREK_INDEPENDENT
        for (int64_t u = 0; u < width; u++) {
            E value = row[u], so_far = best[u];
            PLACE at = place[u];
            at = value > so_far ? step : at;
            so_far = value > so_far ? value : so_far;
#ifdef TREK_AVERAGE
            at = value != value ? step : at;
            so_far = value != value ? value : so_far;
#endif
            best[u] = so_far;
            place[u] = at;
        }
    }
}

/* Finds the largest of columns [left, right) in steps: of equal elements the first in memory, of NaNs the last. */
static inline E TREK_P(largest_of_row)(const pool_job *job, int64_t top, int64_t left, int64_t right, const E *best,
                                       const PLACE *place, int64_t *at)
{
    int64_t found = left;
    for (int64_t u = left + job->dilation_w; u < right; u += job->dilation_w) {
        bool better = best[u] > best[found] || (best[u] == best[found] && place[u] < place[found]);
#ifdef TREK_AVERAGE
        if (best[u] != best[u])
            better = best[found] == best[found] || place[u] >= place[found];
#endif
        found = better ? u : found;
    }
    *at = (top + (int64_t)place[found] * job->dilation_h) * job->width + found;
    return best[found];
}

/* Finds input rows (or columns) from *begin in steps, before *end, of an output position of a max pool. */
static inline void TREK_P(max_span)(const pool_job *job, bool horizontal, int64_t at, int64_t *begin, int64_t *end)
{
    if (job->adaptive) {
        span(job, horizontal, at, begin, end);
        return;
    }
    int64_t size = horizontal ? job->width : job->height, dilation = horizontal ? job->dilation_w : job->dilation_h;
    *begin = horizontal ? at * job->stride_w - job->pad_w : at * job->stride_h - job->pad_h;
    *end = low(*begin + ((horizontal ? job->kernel_w : job->kernel_h) - 1) * dilation + 1, size);
    while (*begin < 0)
        *begin += dilation;
}

/* Combines rows first, then columns. best and place have a row of the input each. */
static void TREK_P(max_plane)(const pool_job *job, const E *x, E *y, int64_t *index, E *best, PLACE *place)
{
    for (int64_t row = 0; row < job->out_h; row++) {
        int64_t top, bottom, left, right;
        TREK_P(max_span)(job, false, row, &top, &bottom);
        if (top < bottom)
            TREK_P(largest_of_columns)(job, x, top, bottom, best, place);
        for (int64_t c = 0; c < job->out_w; c++, y++, index++) {
            TREK_P(max_span)(job, true, c, &left, &right);
            bool any = top < bottom && left < right; /* otherwise the window is in the padding */
            *index = -1;
            *y = any ? TREK_P(largest_of_row)(job, top, left, right, best, place, index) : TREK_LOWEST;
        }
    }
}

static void TREK_P(max_planes)(void *arg, int64_t begin, int64_t end)
{
    const pool_job *job = arg;
    bool simple = !job->adaptive && job->kernel_h == 2 && job->kernel_w == 2 && job->stride_h == 2 && job->stride_w == 2 &&
                  job->pad_h == 0 && job->pad_w == 0 && job->dilation_h == 1 && job->dilation_w == 1 &&
                  2 * job->out_h <= job->height && 2 * job->out_w <= job->width && job->width < INT32_MAX;
    char *rows = (char *)job->rows + begin * job->row_bytes; /* of this call only */
    for (int64_t plane = begin; plane < end; plane++) {
        const E *x = (const E *)job->from + plane * job->height * job->width;
        int64_t place = plane * job->out_h * job->out_w;
        if (simple)
            TREK_P(max_plane_2x2)(job, x, (E *)job->to + place, job->index + place);
        else
            TREK_P(max_plane)(job, x, (E *)job->to + place, job->index + place, (E *)(void *)rows,
                              (PLACE *)(void *)(rows + job->width * (int64_t)sizeof(int64_t)));
    }
}

static void TREK_P(max_grad_planes)(void *arg, int64_t begin, int64_t end)
{
    const pool_job *job = arg;
    int64_t size = job->height * job->width, out = job->out_h * job->out_w;
    for (int64_t plane = begin; plane < end; plane++) {
        const E *dy = (const E *)job->from + plane * out;
        const int64_t *index = job->given_index + plane * out;
        E *dx = (E *)job->to + plane * size;
        memset(dx, 0, (size_t)size * sizeof(E));
        for (int64_t i = 0; i < out; i++)
            if (index[i] >= 0)
                dx[index[i]] = (E)(dx[index[i]] + dy[i]);
    }
}

#ifdef TREK_AVERAGE
/* Adds rows first, then columns. */
static void TREK_P(average_planes)(void *arg, int64_t begin, int64_t end)
{
    const pool_job *job = arg;
    E *sum = (E *)job->rows + begin * job->width;
    for (int64_t plane = begin; plane < end; plane++) {
        const E *x = (const E *)job->from + plane * job->height * job->width;
        E *y = (E *)job->to + plane * job->out_h * job->out_w;
        const double *scale = job->scale;
        for (int64_t row = 0; row < job->out_h; row++) {
            for (int64_t u = 0; u < job->width; u++)
                sum[u] = 0;
            for (int64_t v = job->spans[2 * row]; v < job->spans[2 * row + 1]; v++)
                for (int64_t u = 0; u < job->width; u++)
                    sum[u] += x[v * job->width + u];
            const int64_t *columns = job->spans + 2 * job->out_h;
            for (int64_t c = 0; c < job->out_w; c++, columns += 2) {
                E total = 0;
                for (int64_t u = columns[0]; u < columns[1]; u++)
                    total += sum[u];
                *y++ = (E)(total * *scale++);
            }
        }
    }
}

static void TREK_P(average_grad_planes)(void *arg, int64_t begin, int64_t end)
{
    const pool_job *job = arg;
    int64_t size = job->height * job->width;
    E *sum = (E *)job->rows + begin * job->width;
    for (int64_t plane = begin; plane < end; plane++) {
        const E *dy = (const E *)job->from + plane * job->out_h * job->out_w;
        E *dx = (E *)job->to + plane * size;
        const double *scale = job->scale;
        memset(dx, 0, (size_t)size * sizeof(E));
        for (int64_t row = 0; row < job->out_h; row++) {
            for (int64_t u = 0; u < job->width; u++)
                sum[u] = 0;
            const int64_t *columns = job->spans + 2 * job->out_h;
            for (int64_t c = 0; c < job->out_w; c++, columns += 2) {
                E grad = (E)(*dy++ * *scale++);
                for (int64_t u = columns[0]; u < columns[1]; u++)
                    sum[u] += grad;
            }
            for (int64_t v = job->spans[2 * row]; v < job->spans[2 * row + 1]; v++)
                for (int64_t u = 0; u < job->width; u++)
                    dx[v * job->width + u] += sum[u];
        }
    }
}
#endif

#undef E
#undef PLACE
#undef TREK_PLACE_C
#undef TREK_P
#undef TREK_P_JOIN
#undef TREK_P_JOIN_
#undef TREK_TYPE
#undef TREK_TYPE_C
#undef TREK_AVERAGE
#undef TREK_LOWEST
