/* SPDX-License-Identifier: Apache-2.0 */
/* Batch norm for one real type. Included by batch_norm.c. x is [images, channels,
 * pixels]; a channel's numbers are taken image by image, always in this order. */
#include "tensor/cpu/vector.h"

/* What of a row is summed up: deviations of x (forward), or dy and dy times x's deviation (backward). Gathered in vectors
 * for at most CHUNK elements, then in double. */
TREK_INLINE void TREK_R(row_sums)(const bool backward, const norm_job *job, int64_t at, T mean, double *sum, double *product)
{
    T buffers[2][TREK_R(BUFFER)];
    V centre = TREK_R(spread)(mean);
    for (int64_t start = 0; start < job->pixels; start += CHUNK) {
        int64_t n = job->pixels - start < CHUNK ? job->pixels - start : CHUNK;
        const T *x = TREK_R(read)(job, job->x, at + start, n, buffers[0]);
        const T *dy = backward ? TREK_R(read)(job, job->dy, at + start, n, buffers[1]) : NULL;
        V sums[2] = { { 0 } }, products[2] = { { 0 } };
        for (int64_t j = 0, v = 0; j < n; j += W, v ^= 1) {
            trek_lanes lanes = TREK_R(lanes)(n - j < W ? (int)(n - j) : W);
            V d = TREK_R(load_part)(x + j, lanes) - centre;
            if (backward) {
                V grad = TREK_R(load_part)(dy + j, lanes);
                sums[v] += grad;
                products[v] = TREK_R(fma)(grad, d, products[v]);
            } else {
                if (n - j < W) { /* lanes outside would count as -mean */
                    for (int l = 0; l < (int)(n - j); l++) {
                        *sum += x[j + l] - mean;
                        *product += (double)(x[j + l] - mean) * (x[j + l] - mean);
                    }
                    continue;
                }
                sums[v] += d;
                products[v] = TREK_R(fma)(d, d, products[v]);
            }
        }
        *sum += TREK_R(sum)(sums[0] + sums[1]);
        *product += TREK_R(sum)(products[0] + products[1]);
    }
}

/* Mean and variance of channel c. One pass over deviations from the first image's mean, which is near enough to
 * the channel's for the correction to cost no accuracy worth naming. */
static void TREK_R(statistics)(const norm_job *job, int64_t c)
{
    const int64_t pixels = job->pixels, sampled = pixels < 64 ? pixels : 64;
    const double count = (double)(job->images * pixels);
    double sum = 0, squares = 0;
    T guess = 0, buffer[64];
    const T *x = job->images > 0 ? TREK_R(read)(job, job->x, c * pixels, sampled, buffer) : NULL;
    for (int64_t j = 0; x && j < sampled; j++)
        guess += x[j] / (T)sampled;
    guess = guess - guess == 0 ? guess : 0;
    for (int64_t i = 0; i < job->images; i++)
        TREK_R(row_sums)(false, job, (i * job->channels + c) * pixels, guess, &sum, &squares);
    job->mean[c] = count > 0 ? (double)guess + sum / count : 0;
    double variance = count > 0 ? squares / count - sum / count * (sum / count) : 0;
    job->variance[c] = variance < 0 ? 0 : variance;
}

/* The same where an image has few pixels: at most NARROW_CHANNELS channels side by side, two passes. */
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
            if (pixels == 1 && pass)
                for (int64_t c = 0; c < channels; c++)
                    to[c] += (x[c] - mean[c]) * (x[c] - mean[c]);
            else if (pixels == 1)
                for (int64_t c = 0; c < channels; c++)
                    to[c] += x[c];
            else
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
    if (job->pixels >= NARROW)
        for (int64_t c = begin; c < end; c++)
            TREK_R(statistics)(job, c);
    else
        for (int64_t c = begin; c < end; c += NARROW_CHANNELS)
            TREK_R(narrow_statistics)(job, c, end - c < NARROW_CHANNELS ? end - c : NARROW_CHANNELS);
}

TREK_INLINE void TREK_R(normalize_row)(const norm_job *job, int64_t c, int64_t n, const T *x, T *restrict y)
{
    T mean = (T)job->mean[c], scale = (T)job->scale[c], shift = (T)job->shift[c];
    for (int64_t j = 0; j < n; j++)
        y[j] = (x[j] - mean) * scale + shift;
}

/* y = (x - mean) scale + shift for one image's channels [c, c + channels), or CHUNK and more of one. */
static void TREK_R(normalize)(const norm_job *job, int64_t image, int64_t c, int64_t channels)
{
    const int64_t pixels = job->pixels, at = (image * job->channels + c) * pixels;
    const double *means = job->mean + c, *scales = job->scale + c, *shifts = job->shift + c;
    T buffers[2][TREK_R(BUFFER)];
    for (int64_t start = 0, n; start < channels * pixels; start += n) {
        n = channels * pixels - start < CHUNK ? channels * pixels - start : CHUNK;
        const T *x = TREK_R(read)(job, job->x, at + start, n, buffers[0]);
        T *restrict y = TREK_R(place)(job, at + start, buffers[1]);
        if (pixels == 1)
            for (int64_t k = 0; k < n; k++)
                y[k] = (x[k] - (T)means[k]) * (T)scales[k] + (T)shifts[k];
        else if (channels == 1)
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
    for (int64_t i = begin; i < end; i++)
        for (int64_t c = 0; c < job->channels; c += block)
            TREK_R(normalize)(job, i, c, job->channels - c < block ? job->channels - c : block);
}

/* Statistics and results of channels [begin, end): the second reading finds them in the cache. */
static void TREK_R(forward_channels)(void *arg, int64_t begin, int64_t end)
{
    const norm_job *job = arg;
    for (int64_t c = begin; c < end; c++) {
        TREK_R(statistics)(job, c);
        finish_forward(job, c);
        for (int64_t i = 0; i < job->images; i++)
            TREK_R(normalize)(job, i, c, 1);
    }
}

/* Sums of dy and of dy (x - mean) for few pixels: at most NARROW_CHANNELS channels. */
static void TREK_R(narrow_grad)(const norm_job *job, int64_t begin, int64_t channels)
{
    const int64_t pixels = job->pixels, row = job->channels * pixels;
    const double *mean = job->mean + begin;
    double *restrict sum = job->sum + begin, *restrict product = job->product + begin;
    T buffers[2][TREK_R(BUFFER)];
    for (int64_t i = 0; i < job->images; i++) {
        const T *x = TREK_R(read)(job, job->x, i * row + begin * pixels, channels * pixels, buffers[0]);
        const T *dy = TREK_R(read)(job, job->dy, i * row + begin * pixels, channels * pixels, buffers[1]);
        if (pixels == 1) {
            for (int64_t c = 0; c < channels; c++) {
                sum[c] += dy[c];
                product[c] += dy[c] * (x[c] - mean[c]);
            }
            continue;
        }
        for (int64_t c = 0; c < channels; c++)
            for (int64_t j = c * pixels; j < (c + 1) * pixels; j++) {
                sum[c] += dy[j];
                product[c] += dy[j] * (x[j] - mean[c]);
            }
    }
}

/* The same for channel c. */
static void TREK_R(grad_sums)(const norm_job *job, int64_t c)
{
    for (int64_t i = 0; i < job->images; i++)
        TREK_R(row_sums)(true, job, (i * job->channels + c) * job->pixels, (T)job->mean[c], &job->sum[c], &job->product[c]);
}

/* sum and product begin as zeros. */
static void TREK_R(grad_channels)(void *arg, int64_t begin, int64_t end)
{
    const norm_job *job = arg;
    if (job->pixels >= NARROW)
        for (int64_t c = begin; c < end; c++)
            TREK_R(grad_sums)(job, c);
    else
        for (int64_t c = begin; c < end; c += NARROW_CHANNELS)
            TREK_R(narrow_grad)(job, c, end - c < NARROW_CHANNELS ? end - c : NARROW_CHANNELS);
}

TREK_INLINE void TREK_R(grad_row)(const norm_job *job, int64_t c, int64_t n, const T *x, const T *dy, T *restrict dx)
{
    T mean = (T)job->mean[c], scale = (T)job->scale[c], shift = (T)job->shift[c], slope = (T)job->slope[c];
    for (int64_t j = 0; j < n; j++)
        dx[j] = dy[j] * scale - shift - (x[j] - mean) * slope;
}

/* dx = dy scale - shift - (x - mean) slope, as `normalize` goes. */
static void TREK_R(input_grad)(const norm_job *job, int64_t image, int64_t c, int64_t channels)
{
    const int64_t pixels = job->pixels, at = (image * job->channels + c) * pixels;
    const double *means = job->mean + c, *scales = job->scale + c, *shifts = job->shift + c, *slopes = job->slope + c;
    T buffers[3][TREK_R(BUFFER)];
    for (int64_t start = 0, n; start < channels * pixels; start += n) {
        n = channels * pixels - start < CHUNK ? channels * pixels - start : CHUNK;
        const T *x = TREK_R(read)(job, job->x, at + start, n, buffers[0]);
        const T *dy = TREK_R(read)(job, job->dy, at + start, n, buffers[1]);
        T *restrict dx = TREK_R(place)(job, at + start, buffers[2]);
        if (pixels == 1)
            for (int64_t k = 0; k < n; k++)
                dx[k] = dy[k] * (T)scales[k] - (T)shifts[k] - (x[k] - (T)means[k]) * (T)slopes[k];
        else if (channels == 1)
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
    for (int64_t i = begin; i < end; i++)
        for (int64_t c = 0; c < job->channels; c += block)
            TREK_R(input_grad)(job, i, c, job->channels - c < block ? job->channels - c : block);
}

static void TREK_R(backward_channels)(void *arg, int64_t begin, int64_t end)
{
    const norm_job *job = arg;
    for (int64_t c = begin; c < end; c++) {
        TREK_R(grad_sums)(job, c);
        finish_backward(job, c);
        for (int64_t i = 0; i < job->images; i++)
            TREK_R(input_grad)(job, i, c, 1);
    }
}
