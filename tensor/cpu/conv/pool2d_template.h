/* SPDX-License-Identifier: Apache-2.0 */
/* Pooling of planes for one type: TREK_TYPE names it, TREK_TYPE_C is C's name for
 * it, TREK_AVERAGE is defined for the floating ones, TREK_LOWEST for the others:
 * their lowest number. Included by pool2d.c. */
#define E TREK_TYPE_C
#define TREK_P_JOIN_(name, type) name##_##type
#define TREK_P_JOIN(name, type) TREK_P_JOIN_(name, type)
#define TREK_P(name) TREK_P_JOIN(name, TREK_TYPE)
#ifdef TREK_AVERAGE
#define BEATS(value, best) ((value) > (best) || (value) != (value)) /* NaN wins */
#define TREK_LOWEST (-(E)INFINITY)
#else
#define BEATS(value, best) ((value) > (best))
#endif

#ifndef TREK_AVERAGE
/* Windows of 2 x 2 side by side, without padding: the common case. */
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

static void TREK_P(max_plane)(const pool_job *job, const E *x, E *y, int64_t *index)
{
    for (int64_t row = 0; row < job->out_h; row++)
        for (int64_t c = 0; c < job->out_w; c++) {
            int64_t top = row * job->stride_h - job->pad_h, left = c * job->stride_w - job->pad_w;
            int64_t bottom = low(top + (job->kernel_h - 1) * job->dilation_h + 1, job->height);
            int64_t right = low(left + (job->kernel_w - 1) * job->dilation_w + 1, job->width);
            while (top < 0)
                top += job->dilation_h;
            while (left < 0)
                left += job->dilation_w;
            bool any = top < bottom && left < right; /* else the window lies in the padding: the place is -1 */
            int64_t at = any ? top * job->width + left : -1;
            E best = any ? x[at] : TREK_LOWEST;
            for (int64_t v = top; v < bottom; v += job->dilation_h)
                for (int64_t u = left; u < right; u += job->dilation_w) {
                    E value = x[v * job->width + u];
                    if (BEATS(value, best)) {
                        best = value;
                        at = v * job->width + u;
                    }
                }
            *y++ = best;
            *index++ = at;
        }
}

static void TREK_P(max_planes)(void *arg, int64_t begin, int64_t end)
{
    const pool_job *job = arg;
    bool simple = job->kernel_h == 2 && job->kernel_w == 2 && job->stride_h == 2 && job->stride_w == 2 && job->pad_h == 0 &&
                  job->pad_w == 0 && job->dilation_h == 1 && job->dilation_w == 1 && 2 * job->out_h <= job->height &&
                  2 * job->out_w <= job->width && job->width < INT32_MAX;
    for (int64_t plane = begin; plane < end; plane++) {
        const E *x = (const E *)job->from + plane * job->height * job->width;
        int64_t place = plane * job->out_h * job->out_w;
        (simple ? TREK_P(max_plane_2x2) : TREK_P(max_plane))(job, x, (E *)job->to + place, job->index + place);
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
/* Rows are added up first, then what lies side by side. */
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
#undef BEATS
#undef TREK_P
#undef TREK_P_JOIN
#undef TREK_P_JOIN_
#undef TREK_TYPE
#undef TREK_TYPE_C
#undef TREK_AVERAGE
#undef TREK_LOWEST
