/* SPDX-License-Identifier: Apache-2.0 */
/* Images of a run: tensors as pictures, and batches as grids of them. */
#include <math.h>

#include "data/image_internal.h"
#include "monitor/base64.h"
#include "monitor/monitor_internal.h"

enum { GAP = 2, MOST_SIDE = 1 << 16, MOST_PIXELS = 1 << 26 };

/* n images [channels, height, width], and the picture that contains them. */
typedef struct grid {
    int64_t n, channels, height, width, columns, rows, whole_height, whole_width;
} grid;

static trek_status refuse(const trek_tensor *image)
{
    char text[TREK_SHAPE_TEXT];
    return trek_fail(TREK_ERR_SHAPE,
                     "monitor_image: image: %s; must be [height, width], [channels, height, width] or [n, channels, height, "
                     "width] with 1, 3 or 4 channels", trek_shape_format(trek_tensor_shape(image), text, sizeof text));
}

static trek_status plan(grid *g, const trek_tensor *image)
{
    trek_shape s = trek_tensor_shape(image);
    if (s.ndim < 2 || s.ndim > 4)
        return refuse(image);
    g->n = s.ndim == 4 ? s.sizes[0] : 1;
    g->channels = s.ndim > 2 ? s.sizes[s.ndim - 3] : 1;
    g->height = s.sizes[s.ndim - 2];
    g->width = s.sizes[s.ndim - 1];
    bool known = g->channels == 1 || g->channels == 3 || g->channels == 4;
    if (!known || g->n < 1 || g->height < 1 || g->width < 1)
        return refuse(image);
    if (g->n > MOST_PIXELS || g->height > MOST_SIDE || g->width > MOST_SIDE)
        return trek_fail(TREK_ERR_SHAPE, "monitor_image: image: %lld images of %lld x %lld; too large", (long long)g->n,
                         (long long)g->height, (long long)g->width);
    g->columns = (int64_t)ceil(sqrt((double)g->n));
    g->rows = (g->n + g->columns - 1) / g->columns;
    g->whole_height = g->rows * (g->height + GAP) - GAP;
    g->whole_width = g->columns * (g->width + GAP) - GAP;
    if (g->whole_height * g->whole_width > MOST_PIXELS)
        return trek_fail(TREK_ERR_SHAPE, "monitor_image: image: a picture of %lld x %lld pixels; must have at most %d",
                         (long long)g->whole_height, (long long)g->whole_width, MOST_PIXELS);
    return TREK_OK;
}

static unsigned char byte_of(float value)
{
    return value >= 1 ? 255 : value > 0 ? (unsigned char)lround(value * 255.0) : 0; /* NaN becomes 0 */
}

/* Converts all elements to bytes, row-major. */
static trek_status load(const trek_tensor *image, unsigned char *bytes, int64_t n)
{
    trek_dtype dtype = trek_tensor_dtype(image);
    if (dtype == TREK_U8 || dtype == TREK_BOOL) {
        trek_status status = trek_tensor_to_host(image, TREK_U8, bytes, (size_t)n);
        for (int64_t k = 0; k < n && dtype == TREK_BOOL; k++)
            bytes[k] = bytes[k] ? 255 : 0;
        return status;
    }
    if (!trek_dtype_is_float(dtype))
        return trek_fail(TREK_ERR_DTYPE, "monitor_image: image: dtype %s; must be u8 (0 to 255), bool or floating (0 to 1)",
                         trek_dtype_name(dtype));
    float *values = trek_alloc((size_t)n * sizeof *values);
    trek_status status = values ? trek_tensor_to_host(image, TREK_F32, values, (size_t)n * sizeof *values) : TREK_ERR_MEMORY;
    for (int64_t k = 0; k < n && status == TREK_OK; k++)
        bytes[k] = byte_of(values[k]);
    trek_free(values);
    return status;
}

/* Copies image k to its position, with its channels interleaved. */
static void place(const grid *g, const unsigned char *bytes, int64_t k, unsigned char *pixels)
{
    int64_t top = k / g->columns * (g->height + GAP), left = k % g->columns * (g->width + GAP);
    const unsigned char *from = bytes + k * g->channels * g->height * g->width;
    for (int64_t c = 0; c < g->channels; c++)
        for (int64_t y = 0; y < g->height; y++) {
            unsigned char *to = pixels + ((top + y) * g->whole_width + left) * g->channels + c;
            for (int64_t x = 0; x < g->width; x++, to += g->channels)
                *to = *from++;
        }
}

static trek_status draw(const grid *g, const trek_tensor *image, trek_text *png)
{
    int64_t n = trek_tensor_numel(image);
    unsigned char *bytes = trek_alloc((size_t)n);
    unsigned char *pixels = trek_calloc((size_t)(g->whole_height * g->whole_width), (size_t)g->channels);
    trek_status status = bytes && pixels ? load(image, bytes, n) : TREK_ERR_MEMORY;
    for (int64_t k = 0; k < g->n && status == TREK_OK; k++)
        place(g, bytes, k, pixels);
    if (status == TREK_OK)
        status = trek_png_add(png, "monitor_image", pixels, (int)g->channels, (int)g->whole_height, (int)g->whole_width);
    trek_free(bytes);
    trek_free(pixels);
    return status;
}

trek_status trek_monitor_image_of(trek_monitor *m, const char *name, int64_t step, const trek_tensor *image)
{
    grid g = { 0 };
    trek_text png = { 0 }, base64 = { 0 }, line = { 0 };
    trek_status status = plan(&g, image);
    if (status == TREK_OK)
        status = draw(&g, image, &png);
    if (status == TREK_OK) {
        trek_base64_encode(&base64, png.data, png.length);
        trek_monitor_begin(&line, "image");
        trek_monitor_word(&line, "name", name);
        trek_monitor_whole(&line, "step", step);
        trek_monitor_whole(&line, "width", g.whole_width);
        trek_monitor_whole(&line, "height", g.whole_height);
        line.failed |= base64.failed;
        trek_text_add(&line, ",\"png\":\"");
        trek_text_bytes(&line, base64.data, base64.length);
        trek_text_add(&line, "\"");
        trek_monitor_write(m, &line);
    }
    trek_text_clear(&base64);
    trek_text_clear(&png);
    return status;
}
