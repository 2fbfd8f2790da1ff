/* SPDX-License-Identifier: Apache-2.0 */
/* Batch norm for one real type. Included by batch_norm.c. x is [images, channels, pixels]; a channel's elements are
 * always processed image by image in this order. */
#include "tensor/cpu/vector.h"

/* Adds a row: deviations of x (forward), or dy and dy times x's deviation (backward), into vectors. In the forward
 * pass the elements that do not fill a vector are added to doubles. */
TREK_INLINE void TREK_R(add_row)(const bool backward, const T *x, const T *dy, int64_t n, int64_t ahead, T mean, V *into,
                                 double *rest)
{
    V sums[2] = { into[0], { 0 } }, products[2] = { into[1], { 0 } }, centre = TREK_R(spread)(mean);
    int64_t whole = backward ? n : n - n % W;
    for (int64_t j = 0, v = 0; j < whole; j += W, v ^= 1) {
        trek_lanes lanes = TREK_R(lanes)(n - j < W ? (int)(n - j) : W);
        if (ahead) {
            __builtin_prefetch(x + j + ahead);
            if (backward)
                __builtin_prefetch(dy + j + ahead);
        }
        V d = TREK_R(load_part)(x + j, lanes) - centre, grad = backward ? TREK_R(load_part)(dy + j, lanes) : d;
        sums[v] += grad;
        products[v] = TREK_R(fma)(grad, d, products[v]);
    }
    for (int64_t j = whole; j < n; j++) { /* unused lanes would count as -mean */
        rest[0] += x[j] - mean;
        rest[1] += (double)(x[j] - mean) * (x[j] - mean);
    }
    into[0] = sums[0] + sums[1];
    into[1] = products[0] + products[1];
}

/* Computes the two sums of channels [c, c + channels), at most SIDE, image by image, and adds them to sum and
 * product. Vectors sum up about CHUNK elements before they are added in double. */
TREK_INLINE void TREK_R(channel_sums)(const bool backward, const norm_job *job, int64_t c, int64_t channels, const T *means,
                                      double *sum, double *product)
{
    T buffers[2][TREK_R(BUFFER)];
    V vectors[SIDE][2] = { { { 0 } } };
    const int64_t pixels = job->pixels;
    for (int64_t i = 0, held = 0; i < job->images; i++)
        for (int64_t start = 0, n; start < pixels; start += n) {
            n = pixels - start < CHUNK ? pixels - start : CHUNK;
            held += n;
            for (int64_t k = 0; k < channels; k++) {
                int64_t at = (i * job->channels + c + k) * pixels + start;
                const T *x = TREK_R(read)(job, job->x, at, n, buffers[0]);
                const T *dy = backward ? TREK_R(read)(job, job->dy, at, n, buffers[1]) : NULL;
                double rest[2] = { 0, 0 };
                bool in_place = trek_dtype_size(job->stored) == sizeof(T);
                int64_t ahead = i + 1 < job->images && in_place ? job->channels * pixels : 0; /* too far for prefetchers */
                TREK_R(add_row)(backward, x, dy, n, ahead, means[k], vectors[k], rest);
                sum[k] += rest[0];
                product[k] += rest[1];
            }
            bool last = i + 1 == job->images && start + n == pixels;
            for (int64_t k = 0; k < channels && (held >= CHUNK || last); k++) {
                sum[k] += TREK_R(sum)(vectors[k][0]);
                product[k] += TREK_R(sum)(vectors[k][1]);
                vectors[k][0] = vectors[k][1] = (V){ 0 };
            }
            held = held >= CHUNK ? 0 : held;
        }
}

/* Returns a value near the mean of channel c (the mean of the first image), which is near enough that a variance of
 * deviations from it loses no significant accuracy. */
static T TREK_R(guessed_mean)(const norm_job *job, int64_t c)
{
    const int64_t sampled = job->pixels < 64 ? job->pixels : 64;
    T guess = 0, buffer[64];
    const T *x = job->images > 0 ? TREK_R(read)(job, job->x, c * job->pixels, sampled, buffer) : NULL;
    for (int64_t j = 0; x && j < sampled; j++)
        guess += x[j] / (T)sampled;
    return guess - guess == 0 ? guess : 0;
}

/* Computes means and variances of channels [c, c + channels), at most SIDE. */
static __attribute__((noinline)) void TREK_R(statistics)(const norm_job *job, int64_t c, int64_t channels)
{
    const double count = (double)(job->images * job->pixels);
    double sums[SIDE] = { 0 }, squares[SIDE] = { 0 };
    T guesses[SIDE];
    for (int64_t k = 0; k < channels; k++)
        guesses[k] = TREK_R(guessed_mean)(job, c + k);
    TREK_R(channel_sums)(false, job, c, channels, guesses, sums, squares);
    for (int64_t k = 0; k < channels; k++) {
        job->mean[c + k] = count > 0 ? (double)guesses[k] + sums[k] / count : 0;
        double variance = count > 0 ? squares[k] / count - sums[k] / count * (sums[k] / count) : 0;
        job->variance[c + k] = variance < 0 ? 0 : variance;
    }
}

/* For images of one pixel: sums over all of them an expression of a channel's deviation d and gradient g, for at most
 * NARROW_CHANNELS channels. A number of rows are summed as T before they are added to doubles. */
enum { TREK_R(ROWS) = 64 };
#define TREK_LINE_SUMS(g_, ...)                                                                        \
    for (int64_t first = 0; first < job->images; first += TREK_R(ROWS)) {                              \
        int64_t last = first + TREK_R(ROWS) < job->images ? first + TREK_R(ROWS) : job->images;        \
        T s[NARROW_CHANNELS] = { 0 }, p[NARROW_CHANNELS] = { 0 };                                      \
        for (int64_t i = first; i < last; i++) {                                                       \
            const T *x = TREK_R(read)(job, job->x, i * job->channels + begin, channels, buffers[0]);   \
            const T *dy = job->dy ? TREK_R(read)(job, job->dy, i * job->channels + begin, channels, buffers[1]) : x; \
            for (int64_t c = 0; c < channels; c++) {                                                   \
                T d = x[c] - centre[c], g = g_;                                                        \
                __VA_ARGS__                                                                            \
            }                                                                                          \
        }                                                                                              \
        for (int64_t c = 0; c < channels; c++)                                                         \
            sum[c] += s[c], product[c] += p[c];                                                        \
    }

static void TREK_R(line_centre)(const norm_job *job, int64_t begin, int64_t channels, T *centre)
{
    for (int64_t c = 0; c < channels; c++)
        centre[c] = (T)job->mean[begin + c];
}

static void TREK_R(line_statistics)(const norm_job *job, int64_t begin, int64_t channels)
{
    const double count = (double)job->images;
    double product[NARROW_CHANNELS] = { 0 }, *restrict sum = job->mean + begin;
    T buffers[2][TREK_R(BUFFER)], centre[NARROW_CHANNELS] = { 0 };
    for (int64_t c = 0; c < channels; c++)
        sum[c] = 0;
    TREK_LINE_SUMS(dy[c], (void)d; s[c] += g;) /* dy is x */
    for (int64_t c = 0; c < channels; c++)
        job->mean[begin + c] = count > 0 ? sum[c] / count : 0;
    TREK_R(line_centre)(job, begin, channels, centre);
    double rest[NARROW_CHANNELS] = { 0 };
    sum = rest; /* of the rounding of the centre */
    TREK_LINE_SUMS(dy[c] - centre[c], s[c] += g; p[c] += g * d;)
    for (int64_t c = 0; c < channels; c++) {
        double off = count > 0 ? rest[c] / count : 0, variance = count > 0 ? product[c] / count - off * off : 0;
        job->mean[begin + c] = (double)centre[c] + off; /* equal numbers have this number as their mean */
        job->variance[begin + c] = variance < 0 ? 0 : variance;
    }
}

static void TREK_R(line_grad)(const norm_job *job, int64_t begin, int64_t channels)
{
    double *restrict sum = job->sum + begin, *restrict product = job->product + begin;
    T buffers[2][TREK_R(BUFFER)], centre[NARROW_CHANNELS];
    TREK_R(line_centre)(job, begin, channels, centre);
    TREK_LINE_SUMS(dy[c], s[c] += g; p[c] += g * d;)
}
#undef TREK_LINE_SUMS

/* Converts coefficients of channels [c, c + n) to T. */
static void TREK_R(as_real)(const double *from, int64_t c, int64_t n, T *to)
{
    for (int64_t k = 0; k < n; k++)
        to[k] = (T)from[c + k];
}

/* Computes y, or dx, of images [begin, end) of one pixel. */
static void TREK_R(line_results)(const norm_job *job, bool backward, int64_t begin, int64_t end)
{
    for (int64_t c = 0, n; c < job->channels; c += n) {
        T mean[NARROW_CHANNELS], scale[NARROW_CHANNELS], shift[NARROW_CHANNELS], slope[NARROW_CHANNELS];
        T buffers[3][TREK_R(BUFFER)];
        n = job->channels - c < NARROW_CHANNELS ? job->channels - c : NARROW_CHANNELS;
        TREK_R(as_real)(job->mean, c, n, mean);
        TREK_R(as_real)(job->scale, c, n, scale);
        TREK_R(as_real)(job->shift, c, n, shift);
        if (backward)
            TREK_R(as_real)(job->slope, c, n, slope);
        for (int64_t i = begin; i < end; i++) {
            int64_t at = i * job->channels + c;
            const T *x = TREK_R(read)(job, job->x, at, n, buffers[0]);
            const T *dy = backward ? TREK_R(read)(job, job->dy, at, n, buffers[1]) : NULL;
            T *restrict y = TREK_R(place)(job, at, buffers[2]);
            if (backward)
                for (int64_t k = 0; k < n; k++)
                    y[k] = dy[k] * scale[k] - shift[k] - (x[k] - mean[k]) * slope[k];
            else
                for (int64_t k = 0; k < n; k++)
                    y[k] = (x[k] - mean[k]) * scale[k] + shift[k];
            TREK_R(write)(job, at, n, y);
        }
    }
}

/* For images with few pixels: at most NARROW_CHANNELS channels together, in two passes. */
static void TREK_R(narrow_statistics)(const norm_job *job, int64_t begin, int64_t channels)
{
    const int64_t pixels = job->pixels, row = job->channels * pixels;
    const double count = (double)(job->images * pixels), *mean = job->mean + begin;
    T buffer[TREK_R(BUFFER)];
    for (int64_t c = begin; c < begin + channels; c++)
        job->mean[c] = job->variance[c] = 0;
    for (int pass = 0; pass < 2; pass++) {
        double *restrict to = (pass ? job->variance : job->mean) + begin;
        for (int64_t i = 0; i < job->images; i++) {
            const T *x = TREK_R(read)(job, job->x, i * row + begin * pixels, channels * pixels, buffer);
            for (int64_t c = 0; c < channels; c++)
                for (int64_t j = 0; j < pixels; j++) {
                    double d = x[c * pixels + j] - (pass ? mean[c] : 0);
                    to[c] += pass ? d * d : d;
                }
        }
        for (int64_t c = 0; c < channels; c++)
            to[c] = count > 0 ? to[c] / count : 0;
    }
}

static void TREK_R(statistics_channels)(void *arg, int64_t begin, int64_t end)
{
    const norm_job *job = arg;
    const int64_t side = side_by_side(job);
    if (job->pixels >= NARROW)
        for (int64_t c = begin; c < end; c += side)
            TREK_R(statistics)(job, c, end - c < side ? end - c : side);
    else
        for (int64_t c = begin; c < end; c += NARROW_CHANNELS)
            (job->pixels == 1 ? TREK_R(line_statistics) : TREK_R(narrow_statistics))(
                job, c, end - c < NARROW_CHANNELS ? end - c : NARROW_CHANNELS);
}

TREK_INLINE void TREK_R(normalize_row)(const norm_job *job, int64_t c, int64_t n, const T *x, T *restrict y)
{
    T mean = (T)job->mean[c], scale = (T)job->scale[c], shift = (T)job->shift[c];
    for (int64_t j = 0; j < n; j++)
        y[j] = (x[j] - mean) * scale + shift;
}

/* Computes y = (x - mean) scale + shift for one image's channels [c, c + channels), or CHUNK and more elements of one. */
static void TREK_R(normalize)(const norm_job *job, int64_t image, int64_t c, int64_t channels)
{
    const int64_t pixels = job->pixels, at = (image * job->channels + c) * pixels;
    T buffers[2][TREK_R(BUFFER)];
    for (int64_t start = 0, n; start < channels * pixels; start += n) {
        n = channels * pixels - start < CHUNK ? channels * pixels - start : CHUNK;
        const T *x = TREK_R(read)(job, job->x, at + start, n, buffers[0]);
        T *restrict y = TREK_R(place)(job, at + start, buffers[1]);
        if (channels == 1)
            TREK_R(normalize_row)(job, c, n, x, y);
        else
            for (int64_t k = 0; k < channels; k++)
                TREK_R(normalize_row)(job, c + k, pixels, x + k * pixels, y + k * pixels);
        TREK_R(write)(job, at + start, n, y);
    }
}

static void TREK_R(normalize_images)(void *arg, int64_t begin, int64_t end)
{
    const norm_job *job = arg;
    const int64_t block = block_channels(job);
    if (job->pixels == 1) {
        TREK_R(line_results)(job, false, begin, end);
        return;
    }
    for (int64_t i = begin; i < end; i++)
        for (int64_t c = 0; c < job->channels; c += block)
            TREK_R(normalize)(job, i, c, job->channels - c < block ? job->channels - c : block);
}

/* Computes statistics and results of channels [begin, end); the second pass finds them in the cache. */
static void TREK_R(forward_channels)(void *arg, int64_t begin, int64_t end)
{
    const norm_job *job = arg;
    for (int64_t c = begin; c < end; c++) {
        TREK_R(statistics)(job, c, 1);
        finish_forward(job, c);
        for (int64_t i = 0; i < job->images; i++)
            TREK_R(normalize)(job, i, c, 1);
    }
}

/* Computes sums of dy and of dy (x - mean) for few pixels, at most NARROW_CHANNELS channels. */
static void TREK_R(narrow_grad)(const norm_job *job, int64_t begin, int64_t channels)
{
    const int64_t pixels = job->pixels, row = job->channels * pixels;
    const double *mean = job->mean + begin;
    double *restrict sum = job->sum + begin, *restrict product = job->product + begin;
    T buffers[2][TREK_R(BUFFER)];
    for (int64_t i = 0; i < job->images; i++) {
        const T *x = TREK_R(read)(job, job->x, i * row + begin * pixels, channels * pixels, buffers[0]);
        const T *dy = TREK_R(read)(job, job->dy, i * row + begin * pixels, channels * pixels, buffers[1]);
        for (int64_t c = 0; c < channels; c++)
            for (int64_t j = c * pixels; j < (c + 1) * pixels; j++) {
                sum[c] += dy[j];
                product[c] += dy[j] * (x[j] - mean[c]);
            }
    }
}

/* Computes these sums for channels [c, c + channels), at most SIDE. */
static __attribute__((noinline)) void TREK_R(grad_sums)(const norm_job *job, int64_t c, int64_t channels)
{
    T means[SIDE];
    for (int64_t k = 0; k < channels; k++)
        means[k] = (T)job->mean[c + k];
    TREK_R(channel_sums)(true, job, c, channels, means, job->sum + c, job->product + c);
}

/* sum and product begin with zeros. */
static void TREK_R(grad_channels)(void *arg, int64_t begin, int64_t end)
{
    const norm_job *job = arg;
    const int64_t side = side_by_side(job);
    if (job->pixels >= NARROW)
        for (int64_t c = begin; c < end; c += side)
            TREK_R(grad_sums)(job, c, end - c < side ? end - c : side);
    else
        for (int64_t c = begin; c < end; c += NARROW_CHANNELS)
            (job->pixels == 1 ? TREK_R(line_grad) : TREK_R(narrow_grad))(
                job, c, end - c < NARROW_CHANNELS ? end - c : NARROW_CHANNELS);
}

TREK_INLINE void TREK_R(grad_row)(const norm_job *job, int64_t c, int64_t n, const T *x, const T *dy, T *restrict dx)
{
    T mean = (T)job->mean[c], scale = (T)job->scale[c], shift = (T)job->shift[c], slope = (T)job->slope[c];
    for (int64_t j = 0; j < n; j++)
        dx[j] = dy[j] * scale - shift - (x[j] - mean) * slope;
}

/* Computes dx = dy scale - shift - (x - mean) slope, in the order of `normalize`. */
static void TREK_R(input_grad)(const norm_job *job, int64_t image, int64_t c, int64_t channels)
{
    const int64_t pixels = job->pixels, at = (image * job->channels + c) * pixels;
    T buffers[3][TREK_R(BUFFER)];
    for (int64_t start = 0, n; start < channels * pixels; start += n) {
        n = channels * pixels - start < CHUNK ? channels * pixels - start : CHUNK;
        const T *x = TREK_R(read)(job, job->x, at + start, n, buffers[0]);
        const T *dy = TREK_R(read)(job, job->dy, at + start, n, buffers[1]);
        T *restrict dx = TREK_R(place)(job, at + start, buffers[2]);
        if (channels == 1)
            TREK_R(grad_row)(job, c, n, x, dy, dx);
        else
            for (int64_t k = 0; k < channels; k++)
                TREK_R(grad_row)(job, c + k, pixels, x + k * pixels, dy + k * pixels, dx + k * pixels);
        TREK_R(write)(job, at + start, n, dx);
    }
}

static void TREK_R(grad_images)(void *arg, int64_t begin, int64_t end)
{
    const norm_job *job = arg;
    const int64_t block = block_channels(job);
    if (job->pixels == 1) {
        TREK_R(line_results)(job, true, begin, end);
        return;
    }
    for (int64_t i = begin; i < end; i++)
        for (int64_t c = 0; c < job->channels; c += block)
            TREK_R(input_grad)(job, i, c, job->channels - c < block ? job->channels - c : block);
}

static void TREK_R(backward_channels)(void *arg, int64_t begin, int64_t end)
{
    const norm_job *job = arg;
    for (int64_t c = begin; c < end; c++) {
        TREK_R(grad_sums)(job, c, 1);
        finish_backward(job, c);
        for (int64_t i = 0; i < job->images; i++)
            TREK_R(input_grad)(job, i, c, 1);
    }
}

/* Processes groups [begin, end): statistics, then results; the second pass finds a group in the cache. */
static void TREK_R(forward_groups)(void *arg, int64_t begin, int64_t end)
{
    norm_job *job = arg;
    const int64_t block = block_channels(job);
    for (int64_t c = begin * job->group; c < end * job->group; c += job->group) {
        TREK_R(statistics_channels)(job, c, c + job->group);
        finish_group_forward(job, c);
        for (int64_t k = 0; k < job->group; k += block)
            TREK_R(normalize)(job, 0, c + k, job->group - k < block ? job->group - k : block);
    }
}

static void TREK_R(backward_groups)(void *arg, int64_t begin, int64_t end)
{
    norm_job *job = arg;
    const int64_t block = block_channels(job);
    for (int64_t c = begin * job->group; c < end * job->group; c += job->group) {
        TREK_R(grad_channels)(job, c, c + job->group);
        finish_group_backward(job, c);
        for (int64_t k = 0; k < job->group; k += block)
            TREK_R(input_grad)(job, 0, c + k, job->group - k < block ? job->group - k : block);
    }
}
