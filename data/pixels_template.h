/* SPDX-License-Identifier: Apache-2.0 */
/* Included for PIXEL = u8 and f32. The including file defines NAME(x), PIXEL, MOST (the largest colour value) and
 * KEEP(value), which limits a value to the range or truncates its fraction. */

static void NAME(across)(const void *from, ptrdiff_t width, int rows, const trek_pixel_taps *t, void *to)
{
    const PIXEL *in = from;
    PIXEL *out = to;
    for (int y = 0; y < rows; y++, in += width, out += t->out)
        for (int x = 0; x < t->out; x++) {
            const PIXEL *p = in + t->first[x];
            const WEIGHT *w = t->WEIGHTS + (ptrdiff_t)x * t->taps;
            WEIGHT sum = START;
            for (int k = 0; k < t->count[x]; k++)
                sum += (WEIGHT)p[k] * w[k];
            out[x] = ROUND(sum);
        }
}

static void NAME(down)(const void *from, int width, int top, const trek_pixel_taps *t, void *sums, void *to)
{
    PIXEL *out = to;
    WEIGHT *sum = sums;
    for (int y = 0; y < t->out; y++, out += width) {
        const PIXEL *in = (const PIXEL *)from + (ptrdiff_t)(t->first[y] - top) * width;
        const WEIGHT *w = t->WEIGHTS + (ptrdiff_t)y * t->taps;
        for (int x = 0; x < width; x++)
            sum[x] = START + (WEIGHT)in[x] * w[0];
        for (int k = 1; k < t->count[y]; k++) {
            in += width;
            for (int x = 0; x < width; x++)
                sum[x] += (WEIGHT)in[x] * w[k];
        }
        for (int x = 0; x < width; x++)
            out[x] = ROUND(sum[x]);
    }
}

static void NAME(scale)(void *data, ptrdiff_t n, float factor, float add)
{
    PIXEL *x = data;
    for (ptrdiff_t i = 0; i < n; i++)
        x[i] = KEEP(factor * (float)x[i] + add);
}

static void NAME(gray)(const void *red, const void *green, const void *blue, void *to, ptrdiff_t n)
{
    const PIXEL *r = red, *g = green, *b = blue;
    PIXEL *restrict out = to;
    for (ptrdiff_t i = 0; i < n; i++)
        out[i] = (PIXEL)(0.2989f * (float)r[i] + 0.587f * (float)g[i] + 0.114f * (float)b[i]);
}

static void NAME(towards)(void *data, const void *gray, ptrdiff_t n, float factor, float rest)
{
    PIXEL *restrict x = data;
    const PIXEL *g = gray;
    for (ptrdiff_t i = 0; i < n; i++)
        x[i] = KEEP(factor * (float)x[i] + rest * (float)g[i]);
}

/* torchvision's _rgb2hsv and _hsv2rgb, written without branches. The hue is a position on a circle of six, and a
 * channel lies below the greatest one by a fraction of the range: its distance from its own two sixths. */
static void NAME(hue)(void *red, void *green, void *blue, ptrdiff_t n, float turn)
{
    PIXEL *restrict rp = red, *restrict gp = green, *restrict bp = blue;
    for (ptrdiff_t i = 0; i < n; i++) {
        float r = (float)rp[i], g = (float)gp[i], b = (float)bp[i];
        float most = larger(larger(r, g), b), range = most - smaller(smaller(r, g), b);
        float part = 1 / (range == 0 ? 1 : range);
        float of_red = (g - b) * part, of_green = 2 + (b - r) * part, of_blue = 4 + (r - g) * part;
        float h = most == g ? of_green : of_blue;
        h = (most == r ? of_red : h) + turn * 6;
        rp[i] = BACK(most - range * away(h + 5));
        gp[i] = BACK(most - range * away(h + 3));
        bp[i] = BACK(most - range * away(h + 1));
    }
}

static void NAME(mirror)(const void *from, void *to, int width, int rows)
{
    const PIXEL *in = from;
    PIXEL *restrict out = to;
    for (int y = 0; y < rows; y++, in += width, out += width)
        for (int x = 0; x < width; x++)
            out[x] = in[width - 1 - x];
}

static void NAME(normalize)(const void *from, float *restrict to, ptrdiff_t n, float mean, float std)
{
    const PIXEL *in = from;
    for (ptrdiff_t i = 0; i < n; i++)
        to[i] = ((float)in[i] / MOST - mean) / std;
}

static void NAME(mix)(const void *first, const void *second, float *restrict to, ptrdiff_t n, float lambda, float rest)
{
    const PIXEL *x = first, *y = second;
    for (ptrdiff_t i = 0; i < n; i++)
        to[i] = (float)x[i] / MOST * lambda + (float)y[i] / MOST * rest;
}

static void NAME(planes)(const void *interleaved, void *to, ptrdiff_t n, ptrdiff_t plane)
{
    const PIXEL *in = interleaved;
    PIXEL *restrict r = to, *restrict g = r + plane, *restrict b = g + plane;
    for (ptrdiff_t i = 0; i < n; i++) {
        r[i] = in[3 * i];
        g[i] = in[3 * i + 1];
        b[i] = in[3 * i + 2];
    }
}

static const trek_pixel_kernels NAME(kernels) = {
    NAME(across), NAME(down), NAME(scale), NAME(gray), NAME(towards), NAME(hue), NAME(mirror), NAME(normalize), NAME(mix),
        NAME(planes),
};
