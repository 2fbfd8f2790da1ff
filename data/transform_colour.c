/* SPDX-License-Identifier: Apache-2.0 */
/* Transforms of pixel values. */
#include <math.h>
#include <string.h>

#include "data/transform_internal.h"
#include "tensor/option_internal.h"

/* --- brightness, contrast, saturation, hue ------------------------------------------------ */

typedef enum colour { BRIGHTNESS, CONTRAST, SATURATION, HUE, COLOURS } colour;

typedef struct jitter {
    trek_transform base;
    bool fixed; /* the amounts are fixed factors */
    double amount[COLOURS];
} jitter;

static trek_status colour_channels(const trek_canvas *canvas)
{
    int channels = canvas->image.channels;
    return channels == 1 || channels == 3
               ? TREK_OK
               : trek_fail(TREK_ERR_SHAPE, "%s: image: %d channels; must be 1 or 3", canvas->name, channels);
}

/* Returns the image without colours, which is its own plane if it has only one. Returns NULL with MEMORY. */
static const void *gray_of(trek_canvas *canvas)
{
    const trek_image *x = &canvas->image;
    if (x->channels == 1)
        return x->data;
    void *gray = trek_canvas_spare(canvas, 2, (size_t)trek_image_plane(x) * trek_image_item(x));
    if (gray)
        trek_pixels(x->is_float)->gray(x->data, trek_image_at(x, 1), trek_image_at(x, 2), gray, trek_image_plane(x));
    return gray;
}

static double mean_of(const void *plane, ptrdiff_t n, bool is_float)
{
    double sum = 0;
    int64_t whole = 0;
    if (is_float)
        for (ptrdiff_t i = 0; i < n; i++)
            sum += ((const float *)plane)[i];
    else
        for (ptrdiff_t i = 0; i < n; i++)
            whole += ((const uint8_t *)plane)[i];
    return (is_float ? sum : (double)whole) / (double)n;
}

static trek_status change(trek_canvas *canvas, colour what, double factor)
{
    const trek_image *x = &canvas->image;
    if (factor == (what == HUE ? 0 : 1) || (x->channels == 1 && what >= SATURATION))
        return TREK_OK;
    const trek_pixel_kernels *kernels = trek_pixels(x->is_float);
    ptrdiff_t plane = trek_image_plane(x), all = plane * x->channels;
    const void *gray = what == CONTRAST || what == SATURATION ? gray_of(canvas) : x->data;
    if (!gray)
        return TREK_ERR_MEMORY;
    float ratio = (float)factor, rest = (float)(1 - factor);
    switch (what) {
    case BRIGHTNESS: kernels->scale(x->data, all, ratio, 0); break;
    case CONTRAST: kernels->scale(x->data, all, ratio, rest * (float)mean_of(gray, plane, x->is_float)); break;
    case SATURATION:
        for (int c = 0; c < 3; c++)
            kernels->towards(trek_image_at(x, c), gray, plane, ratio, rest);
        break;
    default: kernels->hue(x->data, trek_image_at(x, 1), trek_image_at(x, 2), plane, ratio);
    }
    return TREK_OK;
}

static trek_status jitter_apply(const trek_transform *self, trek_canvas *canvas)
{
    const jitter *t = (const jitter *)self;
    trek_status status = colour_channels(canvas);
    if (status == TREK_OK)
        status = trek_canvas_write(canvas);
    int order[COLOURS] = { BRIGHTNESS, CONTRAST, SATURATION, HUE };
    double factor[COLOURS];
    for (int k = 0; k < COLOURS; k++) {
        int other = t->fixed ? k : k + trek_random_below(&canvas->random, COLOURS - k), first = order[k];
        order[k] = order[other];
        order[other] = first;
    }
    for (int k = 0; k < COLOURS; k++) {
        double a = t->amount[k];
        factor[k] = t->fixed ? a : k == HUE ? trek_random_between(&canvas->random, -a, a)
            : a == 0 ? 1 : trek_random_between(&canvas->random, a < 1 ? 1 - a : 0, 1 + a);
    }
    for (int k = 0; k < COLOURS && status == TREK_OK; k++)
        status = change(canvas, (colour)order[k], factor[order[k]]);
    return status;
}

static const trek_transform_class jitter_class = { "transform_color_jitter", sizeof(jitter), jitter_apply, NULL };
static const trek_transform_class adjust_class = { "transform_adjust", sizeof(jitter), jitter_apply, NULL };

static trek_transform *jitter_new(const trek_transform_class *klass, const double amount[COLOURS])
{
    bool good = fabs(amount[HUE]) <= 0.5 && (klass == &adjust_class || amount[HUE] >= 0);
    for (int k = 0; k < HUE; k++)
        good &= amount[k] >= 0 && amount[k] <= 1e6;
    if (!good)
        return trek_transform_refused("%s: brightness %g, contrast %g, saturation %g, hue %g; must be 0 to 10^6, and hue at most "
                                      "0.5 (in trek_transform_adjust also down to -0.5)",
                                      klass->name, amount[BRIGHTNESS], amount[CONTRAST], amount[SATURATION], amount[HUE]);
    jitter *t = trek_transform_new(klass);
    if (t) {
        t->fixed = klass == &adjust_class;
        memcpy(t->amount, amount, sizeof t->amount);
    }
    return (trek_transform *)t;
}

trek_transform *trek_transform_color_jitter(const trek_color_jitter_opts *opts)
{
    if (opts)
        return jitter_new(&jitter_class, (double[]){ opts->brightness, opts->contrast, opts->saturation, opts->hue });
    trek_fail_missing("transform_color_jitter", "options");
    return NULL;
}

trek_transform *trek_transform_adjust(double brightness, double contrast, double saturation, double hue)
{
    return jitter_new(&adjust_class, (double[]){ brightness, contrast, saturation, hue });
}

/* --- gray --------------------------------------------------------------------------------- */

typedef struct grayscale {
    trek_transform base;
    int channels; /* 0 if it keeps the number of channels */
    double p;
} grayscale;

static trek_status grayscale_apply(const trek_transform *self, trek_canvas *canvas)
{
    const grayscale *t = (const grayscale *)self;
    trek_status status = colour_channels(canvas);
    if (status != TREK_OK || (t->channels == 0 && trek_transform_uniform(&canvas->random) >= t->p))
        return status;
    trek_image out = canvas->image;
    const void *gray = gray_of(canvas);
    out.channels = t->channels ? t->channels : out.channels;
    status = gray ? trek_canvas_space(canvas, &out) : TREK_ERR_MEMORY;
    for (int c = 0; c < out.channels && status == TREK_OK; c++)
        memcpy(trek_image_at(&out, c), gray, (size_t)trek_image_plane(&out) * trek_image_item(&out));
    if (status == TREK_OK)
        trek_canvas_take(canvas, &out);
    return status;
}

static const trek_transform_class grayscale_class = { "transform_grayscale", sizeof(grayscale), grayscale_apply, NULL };

static trek_transform *grayscale_new(int channels, double p)
{
    grayscale *t = trek_transform_new(&grayscale_class);
    if (t) {
        t->channels = channels;
        t->p = p;
    }
    return (trek_transform *)t;
}

trek_transform *trek_transform_grayscale(int channels)
{
    return channels == 1 || channels == 3 ? grayscale_new(channels, 1)
                                          : trek_transform_refused("transform_grayscale: channels: %d; must be 1 or 3", channels);
}

trek_transform *trek_transform_random_grayscale(double p)
{
    return p >= 0 && p <= 1 ? grayscale_new(0, p)
                            : trek_transform_refused("transform_random_grayscale: p: %g; must be 0 to 1", p);
}

/* --- blur ------------------------------------------------------------------------------------ */

enum { MOST_BLUR = 63 };

typedef struct blur {
    trek_transform base;
    int kernel;
    double low, high;
} blur;

/* Blurs a row of n elements, each with the weights around it; the edges are mirrored. */
static void blur_line(const float *in, ptrdiff_t step, int n, const float *weights, int kernel, float *out)
{
    int half = kernel / 2;
    for (int x = 0; x < n; x++) {
        float sum = 0;
        for (int k = 0; k < kernel; k++) {
            int at = x + k - half;
            at = at < 0 ? -at : at >= n ? 2 * n - 2 - at : at;
            sum += weights[k] * in[at * step];
        }
        out[x * step] = sum;
    }
}

static void blur_plane(float *plane, float *across, int height, int width, const float *weights, int kernel)
{
    for (int y = 0; y < height; y++)
        blur_line(plane + (ptrdiff_t)y * width, 1, width, weights, kernel, across + (ptrdiff_t)y * width);
    for (int x = 0; x < width; x++)
        blur_line(across + x, width, height, weights, kernel, plane + x);
}

static trek_status blur_apply(const trek_transform *self, trek_canvas *canvas)
{
    const blur *t = (const blur *)self;
    float weights[MOST_BLUR];
    double sigma = trek_random_between(&canvas->random, t->low, t->high), sum = 0;
    if (canvas->image.height <= t->kernel / 2 || canvas->image.width <= t->kernel / 2)
        return trek_fail(TREK_ERR_SHAPE, "%s: image: %d x %d; too small for a kernel of %d", canvas->name, canvas->image.height,
                         canvas->image.width, t->kernel);
    for (int pass = 0; pass < 2; pass++)
        for (int k = 0; k < t->kernel; k++) {
            double x = (k - t->kernel / 2) / sigma, w = exp(-0.5 * x * x);
            if (pass == 0)
                sum += w;
            else
                weights[k] = (float)(w / sum);
        }
    trek_status status = trek_canvas_write(canvas);
    const trek_image *image = &canvas->image;
    ptrdiff_t n = trek_image_plane(image);
    float *room = status == TREK_OK ? trek_canvas_spare(canvas, 2, 2 * (size_t)n * sizeof(float)) : NULL;
    if (!room)
        return TREK_ERR_MEMORY;
    for (int c = 0; c < image->channels; c++) {
        float *plane = image->is_float ? trek_image_at(image, c) : room;
        uint8_t *bytes = trek_image_at(image, c);
        for (ptrdiff_t i = 0; i < n && !image->is_float; i++)
            plane[i] = bytes[i];
        blur_plane(plane, room + n, image->height, image->width, weights, t->kernel);
        for (ptrdiff_t i = 0; i < n && !image->is_float; i++)
            bytes[i] = (uint8_t)nearbyintf(plane[i] < 255 ? plane[i] : 255);
    }
    return TREK_OK;
}

static const trek_transform_class blur_class = { "transform_gaussian_blur", sizeof(blur), blur_apply, NULL };

trek_transform *trek_transform_gaussian_blur(int kernel, double low, double high)
{
    if (kernel < 1 || kernel > MOST_BLUR || kernel % 2 == 0 || !(low > 0 && high >= low && high < 1e6))
        return trek_transform_refused(
            "transform_gaussian_blur: kernel: %d, sigma: %g .. %g; must be odd and at most %d, and above 0 and ascending", kernel,
            low, high, MOST_BLUR);
    blur *t = trek_transform_new(&blur_class);
    if (t) {
        t->kernel = kernel;
        t->low = low;
        t->high = high;
    }
    return (trek_transform *)t;
}

/* --- erasing ------------------------------------------------------------------------------------ */

typedef struct erasing {
    trek_transform base;
    trek_random_erasing_opts opts;
} erasing;

static void erase(trek_canvas *canvas, const trek_random_erasing_opts *o, int top, int left, int height, int width)
{
    const trek_image *x = &canvas->image;
    double value = trek_option(o->value, 0);
    int byte = (int)(value < 0 ? 0 : value > 255 ? 255 : value);
    for (int c = 0; c < x->channels; c++)
        for (int y = top; y < top + height; y++) {
            ptrdiff_t at = (ptrdiff_t)y * x->width + left;
            float *row = (float *)trek_image_at(x, c) + (x->is_float ? at : 0);
            for (int k = 0; k < width && x->is_float; k++)
                row[k] = (float)(o->noise ? trek_random_normal(&canvas->random) : value);
            if (!x->is_float)
                memset((uint8_t *)trek_image_at(x, c) + at, byte, (size_t)width);
        }
}

static trek_status erasing_apply(const trek_transform *self, trek_canvas *canvas)
{
    const trek_random_erasing_opts *o = &((const erasing *)self)->opts;
    trek_transform_random *r = &canvas->random;
    if (o->noise && !canvas->image.is_float)
        return trek_fail(TREK_ERR_DTYPE, "%s: image: not f32; noise can be added to f32 images only", canvas->name);
    if (trek_transform_uniform(r) >= o->p)
        return TREK_OK;
    trek_status status = trek_canvas_write(canvas);
    if (status != TREK_OK)
        return status;
    int h = canvas->image.height, w = canvas->image.width;
    for (int attempt = 0; attempt < 10; attempt++) {
        double area = (double)h * w * trek_random_between(r, o->scale[0], o->scale[1]);
        double ratio = exp(trek_random_between(r, log(o->ratio[0]), log(o->ratio[1])));
        double high = nearbyint(sqrt(area * ratio)), wide = nearbyint(sqrt(area / ratio));
        if (!(high < h && wide < w))
            continue;
        int top = trek_random_below(r, h - (int)high + 1), left = trek_random_below(r, w - (int)wide + 1);
        erase(canvas, o, top, left, (int)high, (int)wide);
        break;
    }
    return TREK_OK;
}

static const trek_transform_class erasing_class = { "transform_random_erasing", sizeof(erasing), erasing_apply, NULL };

static void default_range(double range[2], double low, double high)
{
    if (range[0] == 0 && range[1] == 0) {
        range[0] = low;
        range[1] = high;
    }
}

trek_transform *trek_transform_random_erasing(const trek_random_erasing_opts *opts)
{
    trek_random_erasing_opts o = { 0 };
    if (opts)
        o = *opts;
    o.p = o.p == 0 ? 0.5 : o.p == TREK_ZERO ? 0 : o.p;
    default_range(o.scale, 0.02, 0.33);
    default_range(o.ratio, 0.3, 3.3);
    if (!(o.p >= 0 && o.p <= 1 && o.scale[0] >= 0 && o.scale[1] >= o.scale[0] && o.scale[1] <= 1 && o.ratio[0] > 0 &&
          o.ratio[1] >= o.ratio[0] && o.ratio[1] < 1e6 && !isnan(o.value)))
        return trek_transform_refused("transform_random_erasing: .p: %g, .scale: %g .. %g, .ratio: %g .. %g, .value: %g; must be "
                                      "0 to 1, inside 0 .. 1, above 0, and ranges ascending",
                                      o.p, o.scale[0], o.scale[1], o.ratio[0], o.ratio[1], o.value);
    erasing *t = trek_transform_new(&erasing_class);
    if (t)
        t->opts = o;
    return (trek_transform *)t;
}

/* --- f32 ------------------------------------------------------------------------------------------ */

typedef struct normalizer {
    trek_transform base;
    int n;
    float *mean, *std; /* [n] */
} normalizer;

static trek_status normalize_apply(const trek_transform *self, trek_canvas *canvas)
{
    const normalizer *t = (const normalizer *)self;
    trek_image in = canvas->image, out = in;
    if (t->n > 1 && t->n != in.channels)
        return trek_fail(TREK_ERR_SHAPE, "%s: mean: %d values for an image of %d channels; must be one for each", canvas->name,
                         t->n, in.channels);
    out.is_float = true;
    trek_status status = trek_canvas_space(canvas, &out);
    for (int c = 0; c < in.channels && status == TREK_OK; c++) {
        int k = t->n > 1 ? c : 0;
        trek_pixels(in.is_float)->normalize(trek_image_at(&in, c), trek_image_at(&out, c), trek_image_plane(&in), t->mean[k],
                                            t->std[k]);
    }
    if (status == TREK_OK)
        trek_canvas_take(canvas, &out);
    return status;
}

static trek_status to_float_apply(const trek_transform *self, trek_canvas *canvas)
{
    return canvas->image.is_float ? TREK_OK : normalize_apply(self, canvas);
}

static void normalizer_free(trek_transform *self) { trek_free(((normalizer *)self)->mean); }

static const trek_transform_class normalize_class = { "transform_normalize", sizeof(normalizer), normalize_apply,
                                                      normalizer_free };
static const trek_transform_class to_float_class = { "transform_to_float", sizeof(normalizer), to_float_apply, normalizer_free };

static trek_transform *normalizer_new(const trek_transform_class *klass, const double *mean, const double *std, int n)
{
    normalizer *t = trek_transform_new(klass);
    float *numbers = t ? trek_calloc((size_t)n, 2 * sizeof *numbers) : NULL;
    if (!numbers) {
        trek_free(t);
        return NULL;
    }
    t->n = n;
    t->mean = numbers;
    t->std = numbers + n;
    for (int k = 0; k < n; k++) {
        t->mean[k] = (float)mean[k];
        t->std[k] = (float)std[k];
    }
    return &t->base;
}

trek_transform *trek_transform_normalize(const double *mean, const double *std, int n)
{
    if (!mean || !std || n < 1) {
        trek_fail_missing("transform_normalize", "means and deviations");
        return NULL;
    }
    for (int k = 0; k < n; k++)
        if (!isfinite(mean[k]) || !isfinite(std[k]) || (float)std[k] == 0)
            return trek_transform_refused("transform_normalize: mean: %g, std: %g of channel %d; must be finite, and std above 0",
                                          mean[k], std[k], k);
    return normalizer_new(&normalize_class, mean, std, n);
}

trek_transform *trek_transform_to_float(void) { return normalizer_new(&to_float_class, (double[]){ 0 }, (double[]){ 1 }, 1); }
