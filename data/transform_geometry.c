/* SPDX-License-Identifier: Apache-2.0 */
/* Transforms that move pixels: cuts, flips, resizing and affine maps. */
#include <math.h>
#include <string.h>

#include "data/transform_internal.h"
#include "tensor/option_internal.h"

enum { MOST_SIDE = 1 << 20 };

static bool is_size(int height, int width) { return height >= 1 && width >= 1 && height <= MOST_SIDE && width <= MOST_SIDE; }
static bool is_range(const double range[2], double least)
{
    return range[0] >= least && range[1] >= range[0] && !isinf(range[1]);
}

/* --- cuts, and what lies beyond the edge --------------------------------------------- */

/* Returns the position inside [0, size) that stands for one outside, or -1 if it is filled. */
static int inside(int64_t at, int size, trek_image_padding mode)
{
    if (at >= 0 && at < size)
        return (int)at;
    if (mode == TREK_IMAGE_PADDING_CONSTANT)
        return -1;
    if (mode == TREK_IMAGE_PADDING_EDGE || size == 1)
        return at < 0 ? 0 : size - 1;
    int64_t period = mode == TREK_IMAGE_PADDING_REFLECT ? 2 * (int64_t)size - 2 : 2 * (int64_t)size;
    at = (at % period + period) % period;
    return (int)(at < size ? at : mode == TREK_IMAGE_PADDING_REFLECT ? period - at : period - 1 - at);
}

static void fill(void *to, int n, bool is_float, double value)
{
    if (is_float)
        for (int x = 0; x < n; x++)
            ((float *)to)[x] = (float)value;
    else
        memset(to, (int)(value < 0 ? 0 : value > 255 ? 255 : value), (size_t)n);
}

/* Makes one row of a cut; `from` is NULL if all of it is beyond the edge. */
static void cut_row(const void *from, int size, int left, int width, bool is_float, trek_image_padding mode, double value,
                    void *to)
{
    size_t item = is_float ? sizeof(float) : 1;
    if (!from) {
        fill(to, width, is_float, value);
        return;
    }
    int first = left < 0 ? (-left < width ? -left : width) : 0; /* columns before the image, and up to its end */
    int64_t there = (int64_t)size - left;
    int end = there < first ? first : there < width ? (int)there : width;
    if (end > first)
        memcpy((char *)to + (size_t)first * item, (const char *)from + (size_t)(left + first) * item,
               (size_t)(end - first) * item);
    for (int x = 0; x < width; x = x + 1 == first ? end : x + 1) {
        if (x >= first && x < end) { /* nothing lies before the image */
            x = end - 1;
            continue;
        }
        int at = inside((int64_t)left + x, size, mode);
        if (at < 0)
            fill((char *)to + (size_t)x * item, 1, is_float, value);
        else
            memcpy((char *)to + (size_t)x * item, (const char *)from + (size_t)at * item, item);
    }
}

static trek_status cut(trek_canvas *canvas, int top, int left, int height, int width, trek_image_padding mode, double value)
{
    const trek_image *in = &canvas->image;
    trek_image out = { .channels = in->channels, .height = height, .width = width, .is_float = in->is_float };
    trek_status status = trek_canvas_space(canvas, &out);
    size_t item = trek_image_item(in);
    for (int c = 0; c < in->channels && status == TREK_OK; c++)
        for (int y = 0; y < height; y++) {
            int from = inside((int64_t)top + y, in->height, mode);
            cut_row(from < 0 ? NULL : (char *)trek_image_at(in, c) + (size_t)from * (size_t)in->width * item, in->width, left,
                    width,
                    in->is_float, mode, value, (char *)trek_image_at(&out, c) + (size_t)y * (size_t)width * item);
        }
    if (status == TREK_OK)
        trek_canvas_take(canvas, &out);
    return status;
}

typedef enum cut_kind { CUT_PAD, CUT_FIXED, CUT_CENTER, CUT_RANDOM } cut_kind;

typedef struct crop {
    trek_transform base;
    cut_kind kind;
    int top, left, height, width;
    trek_image_pad_opts pad;
} crop;

static trek_status too_small(const trek_canvas *canvas, int height, int width)
{
    return trek_fail(TREK_ERR_SHAPE, "%s: image: %d x %d; must be at least %d x %d", canvas->name, canvas->image.height,
                     canvas->image.width, height, width);
}

static trek_status random_crop(const crop *t, trek_canvas *canvas)
{
    trek_image_pad_opts pad = t->pad;
    int width = canvas->image.width + pad.left + pad.right, height = canvas->image.height + pad.top + pad.bottom;
    if (pad.if_needed && width < t->width) {
        pad.left += t->width - width;
        width += 2 * (t->width - width);
    }
    if (pad.if_needed && height < t->height) {
        pad.top += t->height - height;
        height += 2 * (t->height - height);
    }
    if (width < t->width || height < t->height)
        return too_small(canvas, t->height, t->width);
    int top = trek_random_below(&canvas->random, height - t->height + 1);
    int left = trek_random_below(&canvas->random, width - t->width + 1);
    return cut(canvas, top - pad.top, left - pad.left, t->height, t->width, pad.mode, trek_option(pad.fill, 0));
}

static trek_status crop_apply(const trek_transform *self, trek_canvas *canvas)
{
    const crop *t = (const crop *)self;
    const trek_image *in = &canvas->image;
    switch (t->kind) {
    case CUT_PAD:
        return cut(canvas, -t->pad.top, -t->pad.left, in->height + t->pad.top + t->pad.bottom,
                   in->width + t->pad.left + t->pad.right, t->pad.mode, trek_option(t->pad.fill, 0));
    case CUT_CENTER: { /* what is missing is added first, the lesser half in front; then halves are rounded to even */
        int height = in->height < t->height ? t->height : in->height, width = in->width < t->width ? t->width : in->width;
        int top = (int)nearbyint((height - t->height) / 2.0), left = (int)nearbyint((width - t->width) / 2.0);
        return cut(canvas, top - (height - in->height) / 2, left - (width - in->width) / 2, t->height, t->width,
                   TREK_IMAGE_PADDING_CONSTANT, 0);
    }
    case CUT_RANDOM: return random_crop(t, canvas);
    default: return cut(canvas, t->top, t->left, t->height, t->width, TREK_IMAGE_PADDING_CONSTANT, 0);
    }
}

static trek_transform *crop_new(const trek_transform_class *klass, cut_kind kind, int height, int width,
                                const trek_image_pad_opts *pad)
{
    static const trek_image_pad_opts none;
    pad = pad ? pad : &none;
    if (kind != CUT_PAD && !is_size(height, width))
        return trek_transform_refused("%s: size: %d x %d; must be at least 1 x 1", klass->name, height, width);
    if (pad->left < 0 || pad->top < 0 || pad->right < 0 || pad->bottom < 0 || pad->left > MOST_SIDE || pad->top > MOST_SIDE ||
        pad->right > MOST_SIDE || pad->bottom > MOST_SIDE)
        return trek_transform_refused("%s: padding: %d, %d, %d, %d; must be 0 or more", klass->name, pad->left, pad->top,
                                      pad->right, pad->bottom);
    if ((int)pad->mode < 0 || pad->mode > TREK_IMAGE_PADDING_SYMMETRIC || isnan(pad->fill))
        return trek_transform_refused("%s: .mode: %d, .fill: %g; must be a value of trek_image_padding, and a number",
                                      klass->name, (int)pad->mode, pad->fill);
    crop *t = trek_transform_new(klass);
    if (t) {
        t->kind = kind;
        t->height = height;
        t->width = width;
        t->pad = *pad;
    }
    return (trek_transform *)t;
}

static const trek_transform_class pad_class = { "transform_pad", sizeof(crop), crop_apply, NULL };
static const trek_transform_class crop_class = { "transform_crop", sizeof(crop), crop_apply, NULL };
static const trek_transform_class center_crop_class = { "transform_center_crop", sizeof(crop), crop_apply, NULL };
static const trek_transform_class random_crop_class = { "transform_random_crop", sizeof(crop), crop_apply, NULL };

trek_transform *trek_transform_pad(const trek_image_pad_opts *opts) { return crop_new(&pad_class, CUT_PAD, 0, 0, opts); }

trek_transform *trek_transform_crop(int top, int left, int height, int width)
{
    if (top < -MOST_SIDE || top > MOST_SIDE || left < -MOST_SIDE || left > MOST_SIDE)
        return trek_transform_refused("transform_crop: top and left: (%d, %d); must be within +-%d", top, left, MOST_SIDE);
    trek_transform *t = crop_new(&crop_class, CUT_FIXED, height, width, NULL);
    if (t) {
        ((crop *)t)->top = top;
        ((crop *)t)->left = left;
    }
    return t;
}

trek_transform *trek_transform_center_crop(int height, int width)
{
    return crop_new(&center_crop_class, CUT_CENTER, height, width, NULL);
}

trek_transform *trek_transform_random_crop(int height, int width, const trek_image_pad_opts *opts)
{
    return crop_new(&random_crop_class, CUT_RANDOM, height, width, opts);
}

/* --- flips ------------------------------------------------------------------------------- */

typedef struct flip {
    trek_transform base;
    double p;
} flip;

static bool made_flipped(const flip *t, trek_canvas *canvas, trek_image *out, trek_status *status)
{
    *status = TREK_OK;
    if (trek_transform_uniform(&canvas->random) >= t->p)
        return false;
    *out = canvas->image;
    *status = trek_canvas_space(canvas, out);
    return *status == TREK_OK;
}

static trek_status horizontal_apply(const trek_transform *self, trek_canvas *canvas)
{
    trek_image in = canvas->image, out;
    trek_status status;
    if (!made_flipped((const flip *)self, canvas, &out, &status))
        return status;
    trek_pixels(in.is_float)->mirror(in.data, out.data, in.width, in.channels * in.height);
    trek_canvas_take(canvas, &out);
    return TREK_OK;
}

static trek_status vertical_apply(const trek_transform *self, trek_canvas *canvas)
{
    trek_image in = canvas->image, out;
    trek_status status;
    if (!made_flipped((const flip *)self, canvas, &out, &status))
        return status;
    size_t row = (size_t)in.width * trek_image_item(&in);
    for (int c = 0; c < in.channels; c++)
        for (int y = 0; y < in.height; y++)
            memcpy((char *)trek_image_at(&out, c) + (size_t)y * row,
                   (char *)trek_image_at(&in, c) + (size_t)(in.height - 1 - y) * row, row);
    trek_canvas_take(canvas, &out);
    return TREK_OK;
}

static trek_transform *flip_new(const trek_transform_class *klass, double p)
{
    if (!(p >= 0 && p <= 1))
        return trek_transform_refused("%s: p: %g; must be 0 to 1", klass->name, p);
    flip *t = trek_transform_new(klass);
    if (t)
        t->p = p;
    return (trek_transform *)t;
}

static const trek_transform_class horizontal_class = { "transform_random_horizontal_flip", sizeof(flip), horizontal_apply, NULL };
static const trek_transform_class vertical_class = { "transform_random_vertical_flip", sizeof(flip), vertical_apply, NULL };

trek_transform *trek_transform_random_horizontal_flip(double p) { return flip_new(&horizontal_class, p); }
trek_transform *trek_transform_random_vertical_flip(double p) { return flip_new(&vertical_class, p); }

/* --- resizing -------------------------------------------------------------------------------
 * Pillow's way (libImaging/Resample.c): rows first, then columns, each pixel of the result a sum of pixels weighed by the
 * filter, whose width grows with the scale; of u8 in whole numbers, rounded after each. */

static double weigh(trek_image_filter filter, bool antialias, double x)
{
    x = fabs(x);
    if (filter == TREK_IMAGE_FILTER_BILINEAR)
        return x < 1 ? 1 - x : 0;
    double a = antialias ? -0.5 : -0.75; /* without antialias as in PyTorch */
    return x < 1 ? ((a + 2) * x - (a + 3)) * x * x + 1 : x < 2 ? (((x - 5) * x + 8) * x - 4) * a : 0;
}

static void taps_fill(trek_pixel_taps *t, int in, const trek_image_resize_opts *opts, double *weights)
{
    double scale = (double)in / t->out, wide = opts->no_antialias || scale < 1 ? 1 : scale;
    double support = (opts->filter == TREK_IMAGE_FILTER_BICUBIC ? 2 : 1) * wide;
    double nearest = 0.5 * scale; /* accumulated as in Pillow, whose roundings decide between two pixels */
    for (int i = 0; i < t->out; i++, nearest += scale) {
        double center = (i + 0.5) * scale, sum = 0;
        int first = (int)(center - support + 0.5), end = (int)(center + support + 0.5);
        if (opts->filter == TREK_IMAGE_FILTER_NEAREST) {
            first = (int)nearest < in ? (int)nearest : in - 1;
            end = first + 1;
        }
        first = first < 0 ? 0 : first;
        end = end > in ? in : end;
        for (int k = first; k < end; k++)
            sum += weights[k - first] = opts->filter == TREK_IMAGE_FILTER_NEAREST
                ? 1
                : weigh(opts->filter, !opts->no_antialias, (k - center + 0.5) / wide);
        for (int k = 0; k < end - first; k++) {
            double w = sum != 0 ? weights[k] / sum : weights[k];
            t->part[i * t->taps + k] = (float)w;
            t->whole[i * t->taps + k] = (int32_t)(w * 0x1p22 + (w < 0 ? -0.5 : 0.5));
        }
        t->first[i] = first;
        t->count[i] = end - first;
    }
}

/* Makes the table for one direction in the canvas's spare memory. Returns false without memory. */
static bool taps_make(trek_canvas *canvas, int which, trek_pixel_taps *t, int in, int out, const trek_image_resize_opts *opts)
{
    double scale = (double)in / out, wide = opts->no_antialias || scale < 1 ? 1 : scale;
    t->out = out;
    t->taps = (int)ceil((opts->filter == TREK_IMAGE_FILTER_BICUBIC ? 2 : 1) * wide) * 2 + 1;
    size_t entries = (size_t)out * (size_t)t->taps;
    char *room = trek_canvas_spare(canvas, which,
                                   (size_t)t->taps * sizeof(double) + (2 * entries + 2 * (size_t)out) * sizeof(int32_t));
    if (!room)
        return false;
    t->part = (float *)(void *)(room + (size_t)t->taps * sizeof(double));
    t->whole = (int32_t *)(void *)(t->part + entries);
    t->first = t->whole + entries;
    t->count = t->first + out;
    taps_fill(t, in, opts, (double *)(void *)room);
    return true;
}

/* Resizes a rectangle of the current image. */
static trek_status resize(trek_canvas *canvas, int top, int left, int height, int width, int to_height, int to_width,
                          const trek_image_resize_opts *opts)
{
    trek_image in = canvas->image, out = in;
    if (height == to_height && width == to_width)
        return top == 0 && left == 0 && height == in.height && width == in.width
            ? TREK_OK : cut(canvas, top, left, height, width, TREK_IMAGE_PADDING_CONSTANT, 0);
    trek_pixel_taps across, down;
    out.height = to_height;
    out.width = to_width;
    trek_status status = trek_canvas_space(canvas, &out);
    if (status != TREK_OK || !taps_make(canvas, 2, &across, width, to_width, opts) ||
        !taps_make(canvas, 3, &down, height, to_height, opts))
        return TREK_ERR_MEMORY;
    int first = down.first[0], rows = down.first[to_height - 1] + down.count[to_height - 1] - first;
    size_t item = trek_image_item(&in);
    float *sums = trek_canvas_spare(canvas, 4, ((size_t)to_width * (size_t)(rows + 1)) * sizeof(float));
    if (!sums)
        return TREK_ERR_MEMORY;
    const trek_pixel_kernels *kernels = trek_pixels(in.is_float);
    for (int c = 0; c < in.channels; c++) {
        const char *from = (char *)trek_image_at(&in, c) + ((size_t)(top + first) * (size_t)in.width + (size_t)left) * item;
        kernels->across(from, in.width, rows, &across, sums + to_width);
        kernels->down(sums + to_width, to_width, first, &down, sums, trek_image_at(&out, c));
    }
    trek_canvas_take(canvas, &out);
    return TREK_OK;
}

typedef struct resizer {
    trek_transform base;
    int height, width;
    trek_image_resize_opts opts;
    double scale[2], ratio[2]; /* of random_resized_crop */
} resizer;

static trek_status resize_apply(const trek_transform *self, trek_canvas *canvas)
{
    const resizer *t = (const resizer *)self;
    int h = canvas->image.height, w = canvas->image.width, height = t->height, width = t->width;
    if (width == 0 && h <= w) {
        width = (int)((int64_t)t->height * w / h);
    } else if (width == 0) {
        width = t->height;
        height = (int)((int64_t)t->height * h / w);
    }
    if (!is_size(height, width))
        return trek_fail(TREK_ERR_SHAPE, "%s: image: %d x %d would become %d x %d, which is not possible", canvas->name, h, w,
                         height, width);
    return resize(canvas, 0, 0, h, w, height, width, &t->opts);
}

static trek_status resized_crop_apply(const trek_transform *self, trek_canvas *canvas)
{
    const resizer *t = (const resizer *)self;
    int h = canvas->image.height, w = canvas->image.width;
    double area = (double)h * w;
    for (int attempt = 0; attempt < 10; attempt++) {
        double part = area * trek_random_between(&canvas->random, t->scale[0], t->scale[1]);
        double ratio = exp(trek_random_between(&canvas->random, log(t->ratio[0]), log(t->ratio[1])));
        double wide = nearbyint(sqrt(part * ratio)), high = nearbyint(sqrt(part / ratio));
        if (!(wide >= 1 && wide <= w && high >= 1 && high <= h))
            continue;
        int top = trek_random_below(&canvas->random, h - (int)high + 1),
            left = trek_random_below(&canvas->random, w - (int)wide + 1);
        return resize(canvas, top, left, (int)high, (int)wide, t->height, t->width, &t->opts);
    }
    double proportion = (double)w / h;
    int width = w, height = h;
    if (proportion < t->ratio[0])
        height = (int)nearbyint(w / t->ratio[0]);
    else if (proportion > t->ratio[1])
        width = (int)nearbyint(h * t->ratio[1]);
    height = height < 1 ? 1 : height > h ? h : height;
    width = width < 1 ? 1 : width > w ? w : width;
    return resize(canvas, (h - height) / 2, (w - width) / 2, height, width, t->height, t->width, &t->opts);
}

static const trek_transform_class resize_class = { "transform_resize", sizeof(resizer), resize_apply, NULL };
static const trek_transform_class resized_crop_class = { "transform_random_resized_crop", sizeof(resizer), resized_crop_apply,
                                                         NULL };

static resizer *resizer_new(const trek_transform_class *klass, int height, int width, const trek_image_resize_opts *opts)
{
    if (!is_size(height, width ? width : 1) || (opts && ((int)opts->filter < 0 || opts->filter > TREK_IMAGE_FILTER_BICUBIC))) {
        trek_fail(TREK_ERR_ARGUMENT, "%s: size: %d x %d, filter: %d; must be at least 1 x 1, and a value of trek_image_filter",
                  klass->name, height, width, opts ? (int)opts->filter : 0);
        return NULL;
    }
    resizer *t = trek_transform_new(klass);
    if (t) {
        t->height = height;
        t->width = width;
        if (opts)
            t->opts = *opts;
    }
    return t;
}

trek_transform *trek_transform_resize(int height, int width, const trek_image_resize_opts *opts)
{
    return (trek_transform *)resizer_new(&resize_class, height, width, opts);
}

trek_transform *trek_transform_random_resized_crop(int height, int width, const trek_resized_crop_opts *opts)
{
    static const trek_resized_crop_opts none;
    opts = opts ? opts : &none;
    bool scaled = opts->scale[0] != 0 || opts->scale[1] != 0, shaped = opts->ratio[0] != 0 || opts->ratio[1] != 0;
    if ((scaled && !(is_range(opts->scale, 0) && opts->scale[1] > 0)) ||
        (shaped && !(is_range(opts->ratio, 0) && opts->ratio[0] > 0)))
        return trek_transform_refused(
            "transform_random_resized_crop: .scale: %g .. %g, .ratio: %g .. %g; must be ascending and above 0", opts->scale[0],
            opts->scale[1], opts->ratio[0], opts->ratio[1]);
    if (width < 1)
        return trek_transform_refused("transform_random_resized_crop: size: %d x %d; must be at least 1 x 1", height, width);
    resizer *t = resizer_new(&resized_crop_class, height, width, &opts->resize);
    if (t) {
        t->scale[0] = scaled ? opts->scale[0] : 0.08;
        t->scale[1] = scaled ? opts->scale[1] : 1;
        t->ratio[0] = shaped ? opts->ratio[0] : 3.0 / 4;
        t->ratio[1] = shaped ? opts->ratio[1] : 4.0 / 3;
    }
    return (trek_transform *)t;
}

/* --- affine maps ------------------------------------------------------------------------------ */

typedef struct affine {
    trek_transform base;
    trek_random_affine_opts opts;
    double turn; /* 1 if degrees are clockwise, -1 if counter-clockwise */
} affine;

/* Returns one pixel of a plane, or the value for those outside. */
static float pixel(const trek_image *in, const void *plane, int y, int x, float outside)
{
    if (y < 0 || x < 0 || y >= in->height || x >= in->width)
        return outside;
    ptrdiff_t at = (ptrdiff_t)y * in->width + x;
    return in->is_float ? ((const float *)plane)[at] : ((const uint8_t *)plane)[at];
}

static float sampled(const trek_image *in, const void *plane, float y, float x, bool nearest, float outside)
{
    if (!(y > -2 && x > -2 && y < (float)in->height + 1 && x < (float)in->width + 1))
        return outside;
    if (nearest)
        return pixel(in, plane, (int)nearbyintf(y), (int)nearbyintf(x), outside);
    float top = floorf(y), left = floorf(x), down = y - top, right = x - left;
    int i = (int)top, j = (int)left;
    float above = (1 - right) * pixel(in, plane, i, j, outside) + right * pixel(in, plane, i, j + 1, outside);
    float below = (1 - right) * pixel(in, plane, i + 1, j, outside) + right * pixel(in, plane, i + 1, j + 1, outside);
    return (1 - down) * above + down * below;
}

/* m tells where a pixel of the result comes from; both positions are relative to the centre. */
static trek_status warp(trek_canvas *canvas, const double m[6], bool nearest, double outside)
{
    trek_image in = canvas->image, out = in;
    trek_status status = trek_canvas_space(canvas, &out);
    for (int c = 0; c < in.channels && status == TREK_OK; c++) {
        const void *plane = trek_image_at(&in, c);
        for (int y = 0; y < in.height; y++)
            for (int x = 0; x < in.width; x++) {
                double dx = x + 0.5 - 0.5 * in.width, dy = y + 0.5 - 0.5 * in.height;
                float from_x = (float)(m[0] * dx + m[1] * dy + m[2] + 0.5 * in.width - 0.5);
                float from_y = (float)(m[3] * dx + m[4] * dy + m[5] + 0.5 * in.height - 0.5);
                float value = sampled(&in, plane, from_y, from_x, nearest, (float)outside);
                ptrdiff_t at = (ptrdiff_t)y * in.width + x;
                if (in.is_float)
                    ((float *)trek_image_at(&out, c))[at] = value;
                else
                    ((uint8_t *)trek_image_at(&out, c))[at] = (uint8_t)nearbyintf(value < 0 ? 0 : value > 255 ? 255 : value);
            }
    }
    if (status == TREK_OK)
        trek_canvas_take(canvas, &out);
    return status;
}

/* torchvision's _get_inverse_affine_matrix, around the centre. */
static trek_status affine_apply(const trek_transform *self, trek_canvas *canvas)
{
    const affine *t = (const affine *)self;
    const trek_random_affine_opts *o = &t->opts;
    trek_transform_random *r = &canvas->random;
    const double radian = 3.14159265358979323846 / 180;
    double angle = t->turn * trek_random_between(r, o->degrees[0], o->degrees[1]) * radian;
    double tx = nearbyint(o->translate[0] * canvas->image.width * trek_random_between(r, -1, 1));
    double ty = nearbyint(o->translate[1] * canvas->image.height * trek_random_between(r, -1, 1));
    double scale = o->scale[1] == 0 ? 1 : trek_random_between(r, o->scale[0], o->scale[1]);
    double sx = trek_random_between(r, o->shear_x[0], o->shear_x[1]) * radian;
    double sy = trek_random_between(r, o->shear_y[0], o->shear_y[1]) * radian;
    double a = cos(angle - sy) / cos(sy), b = -cos(angle - sy) * tan(sx) / cos(sy) - sin(angle);
    double c = sin(angle - sy) / cos(sy), d = -sin(angle - sy) * tan(sx) / cos(sy) + cos(angle);
    double m[6] = { d / scale, -b / scale, 0, -c / scale, a / scale, 0 };
    m[2] = -m[0] * tx - m[1] * ty;
    m[5] = -m[3] * tx - m[4] * ty;
    return warp(canvas, m, o->filter == TREK_IMAGE_FILTER_NEAREST, trek_option(o->fill, 0));
}

static const trek_transform_class affine_class = { "transform_random_affine", sizeof(affine), affine_apply, NULL };

static trek_transform *affine_new(const trek_random_affine_opts *o, double turn)
{
    bool good = is_range(o->degrees, -1e6) && is_range(o->shear_x, -89) && is_range(o->shear_y, -89) && o->shear_x[1] <= 89 &&
                o->shear_y[1] <= 89 && o->translate[0] >= 0 && o->translate[0] <= 1 && o->translate[1] >= 0 &&
                o->translate[1] <= 1 && ((o->scale[0] == 0 && o->scale[1] == 0) || (o->scale[0] > 0 && is_range(o->scale, 0))) &&
                (o->filter == TREK_IMAGE_FILTER_BILINEAR || o->filter == TREK_IMAGE_FILTER_NEAREST) && !isnan(o->fill);
    if (!good)
        return trek_transform_refused("transform_random_affine: .degrees: %g .. %g, .translate: %g, %g, .scale: %g .. %g, "
                                      ".shear_x and .shear_y: %g .. %g, %g .. %g, .filter: %d; ranges must ascend, translate be "
                                      "inside 0 .. 1, scale above 0, shear inside -89 .. 89, the filter bilinear or nearest",
                                      o->degrees[0], o->degrees[1], o->translate[0], o->translate[1], o->scale[0], o->scale[1],
                                      o->shear_x[0], o->shear_x[1], o->shear_y[0], o->shear_y[1], (int)o->filter);
    affine *t = trek_transform_new(&affine_class);
    if (t) {
        t->opts = *o;
        t->turn = turn;
    }
    return (trek_transform *)t;
}

trek_transform *trek_transform_random_affine(const trek_random_affine_opts *opts)
{
    if (opts)
        return affine_new(opts, 1);
    trek_fail_missing("transform_random_affine", "options");
    return NULL;
}

trek_transform *trek_transform_random_rotation(double low, double high, trek_image_filter filter, double outside)
{
    return affine_new(&(trek_random_affine_opts){ .degrees = { low, high }, .filter = filter, .fill = outside }, -1);
}
