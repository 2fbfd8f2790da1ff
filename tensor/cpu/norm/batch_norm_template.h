/* SPDX-License-Identifier: Apache-2.0 */
/* Batch norm for one real type. Included by batch_norm.c. x is [images, channels,
 * pixels]; a channel's numbers are taken image by image, always in this order. */
#include "tensor/cpu/vector.h"

/* Sums of a[j] and a[j] * b[j] over a row are gathered in vectors for at most
 * this many elements, then in double. */
#define CHUNK 4096

/* What of a row is summed up: deviations of x (forward), or dy and dy times x's deviation (backward). */
TREK_INLINE void TREK_R(row_sums)(const bool backward, const T *x, const T *dy, int64_t n, T mean, double *sum, double *product)
{
    V centre = TREK_R(spread)(mean);
    for (int64_t start = 0; start < n; start += CHUNK) {
        int64_t end = start + CHUNK < n ? start + CHUNK : n;
        V sums[2] = { { 0 } }, products[2] = { { 0 } };
        for (int64_t j = start, v = 0; j < end; j += W, v ^= 1) {
            trek_lanes lanes = TREK_R(lanes)(end - j < W ? (int)(end - j) : W);
            V d = TREK_R(load_part)(x + j, lanes) - centre;
            if (backward) {
                V grad = TREK_R(load_part)(dy + j, lanes);
                sums[v] += grad;
                products[v] = TREK_R(fma)(grad, d, products[v]);
            } else {
                if (end - j < W) { /* lanes outside would count as -mean */
                    for (int l = 0; l < (int)(end - j); l++) {
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

/* Statistics of channels [begin, end): mean, and the sum of squared deviations.
 * One pass over deviations from the first image's mean, which is near enough to
 * the channel's for the correction to cost no accuracy worth naming. */
static void TREK_R(statistics)(const norm_job *job, int64_t begin, int64_t end)
{
    const int64_t pixels = job->pixels;
    const double count = (double)(job->images * pixels);
    for (int64_t c = begin; c < end; c++) {
        double sum = 0, squares = 0;
        const T *x = (const T *)job->x + c * pixels;
        T guess = 0;
        int64_t sampled = pixels < 64 ? pixels : 64;
        for (int64_t j = 0; j < sampled && job->images > 0; j++)
            guess += x[j] / (T)sampled;
        guess = guess - guess == 0 ? guess : 0;
        for (int64_t i = 0; i < job->images; i++)
            TREK_R(row_sums)(false, x + i * job->channels * pixels, NULL, pixels, guess, &sum, &squares);
        job->mean[c] = count > 0 ? (double)guess + sum / count : 0;
        double variance = count > 0 ? squares / count - sum / count * (sum / count) : 0;
        job->variance[c] = variance < 0 ? 0 : variance;
    }
}

/* The same where an image has few pixels: channels side by side, two passes. */
static void TREK_R(narrow_statistics)(const norm_job *job, int64_t begin, int64_t end)
{
    const int64_t pixels = job->pixels, row = job->channels * pixels;
    const double count = (double)(job->images * pixels);
    for (int64_t c = begin; c < end; c++)
        job->mean[c] = job->variance[c] = 0;
    for (int pass = 0; pass < 2; pass++) {
        double *restrict to = pass ? job->variance : job->mean;
        for (int64_t i = 0; i < job->images; i++) {
            const T *x = (const T *)job->x + i * row;
            if (pixels == 1 && pass)
                for (int64_t c = begin; c < end; c++)
                    to[c] += (x[c] - job->mean[c]) * (x[c] - job->mean[c]);
            else if (pixels == 1)
                for (int64_t c = begin; c < end; c++)
                    to[c] += x[c];
            else
                for (int64_t c = begin; c < end; c++)
                    for (int64_t j = 0; j < pixels; j++) {
                        double d = x[c * pixels + j] - (pass ? job->mean[c] : 0);
                        to[c] += pass ? d * d : d;
                    }
        }
        for (int64_t c = begin; c < end; c++)
            to[c] = count > 0 ? to[c] / count : 0;
    }
}

static void TREK_R(statistics_channels)(void *arg, int64_t begin, int64_t end)
{
    const norm_job *job = arg;
    if (job->pixels < 16)
        TREK_R(narrow_statistics)(job, begin, end);
    else
        TREK_R(statistics)(job, begin, end);
}

/* y = (x - mean) scale + shift, over images [begin, end). */
static void TREK_R(normalize_images)(void *arg, int64_t begin, int64_t end)
{
    const norm_job *job = arg;
    const int64_t pixels = job->pixels;
    if (pixels == 1) {
        for (int64_t i = begin; i < end; i++) {
            const T *x = (const T *)job->x + i * job->channels;
            T *restrict y = (T *)job->y + i * job->channels;
            for (int64_t c = 0; c < job->channels; c++)
                y[c] = (x[c] - (T)job->mean[c]) * (T)job->scale[c] + (T)job->shift[c];
        }
        return;
    }
    for (int64_t i = begin; i < end; i++)
        for (int64_t c = 0; c < job->channels; c++) {
            const T *x = (const T *)job->x + (i * job->channels + c) * pixels;
            T *y = (T *)job->y + (i * job->channels + c) * pixels;
            T mean = (T)job->mean[c], scale = (T)job->scale[c], shift = (T)job->shift[c];
            for (int64_t j = 0; j < pixels; j++)
                y[j] = (x[j] - mean) * scale + shift;
        }
}

/* Sums of dy and of dy (x - mean) for channels [begin, end). */
static void TREK_R(grad_channels)(void *arg, int64_t begin, int64_t end)
{
    const norm_job *job = arg;
    const int64_t pixels = job->pixels, row = job->channels * pixels;
    for (int64_t c = begin; c < end; c++)
        job->sum[c] = job->product[c] = 0;
    if (pixels < 16) {
        for (int64_t i = 0; i < job->images; i++) {
            const T *x = (const T *)job->x + i * row, *dy = (const T *)job->dy + i * row;
            if (pixels == 1) {
                double *restrict sum = job->sum, *restrict product = job->product;
                for (int64_t c = begin; c < end; c++) {
                    sum[c] += dy[c];
                    product[c] += dy[c] * (x[c] - job->mean[c]);
                }
                continue;
            }
            for (int64_t c = begin; c < end; c++)
                for (int64_t j = 0; j < pixels; j++) {
                    job->sum[c] += dy[c * pixels + j];
                    job->product[c] += dy[c * pixels + j] * (x[c * pixels + j] - job->mean[c]);
                }
        }
        return;
    }
    for (int64_t c = begin; c < end; c++)
        for (int64_t i = 0; i < job->images; i++)
            TREK_R(row_sums)(true, (const T *)job->x + i * row + c * pixels, (const T *)job->dy + i * row + c * pixels, pixels,
                             (T)job->mean[c], &job->sum[c], &job->product[c]);
}

/* dx = dy scale - shift - (x - mean) slope, over images [begin, end). */
static void TREK_R(grad_images)(void *arg, int64_t begin, int64_t end)
{
    const norm_job *job = arg;
    const int64_t pixels = job->pixels;
    if (pixels == 1) {
        for (int64_t i = begin; i < end; i++) {
            const T *x = (const T *)job->x + i * job->channels, *dy = (const T *)job->dy + i * job->channels;
            T *restrict dx = (T *)job->y + i * job->channels;
            for (int64_t c = 0; c < job->channels; c++)
                dx[c] = dy[c] * (T)job->scale[c] - (T)job->shift[c] - (x[c] - (T)job->mean[c]) * (T)job->slope[c];
        }
        return;
    }
    for (int64_t i = begin; i < end; i++)
        for (int64_t c = 0; c < job->channels; c++) {
            int64_t place = (i * job->channels + c) * pixels;
            const T *x = (const T *)job->x + place, *dy = (const T *)job->dy + place;
            T *dx = (T *)job->y + place;
            T mean = (T)job->mean[c], scale = (T)job->scale[c], shift = (T)job->shift[c], slope = (T)job->slope[c];
            for (int64_t j = 0; j < pixels; j++)
                dx[j] = dy[j] * scale - shift - (x[j] - mean) * slope;
        }
}
#undef CHUNK
