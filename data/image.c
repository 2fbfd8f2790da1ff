/* SPDX-License-Identifier: Apache-2.0 */
/* Reading and writing images: everything independent of the format. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "data/idx_internal.h"
#include "data/image_internal.h"
#include "data/write_internal.h"
#include "tensor/creation.h"
#include "tensor/dtypes.h"
#include "tensor/layout.h"
#include "tensor/option_internal.h"
#include "tensor/shapes.h"

trek_status trek_decoding_size(trek_decoding *d, int64_t height, int64_t width)
{
    if (height < 1 || width < 1 || height > 1 << 24 || width > 1 << 24 || height * width > d->opts.most_pixels)
        return trek_fail(TREK_ERR_FORMAT, "%s: an image of %" PRId64 " x %" PRId64 "; must have at most %" PRId64 " pixels",
                         d->name, height, width, d->opts.most_pixels);
    d->image = trek_tensor_empty(trek_dims(d->opts.channels, height, width), TREK_U8, trek_cpu(0));
    return d->image ? TREK_OK : trek_status_or(TREK_ERR_MEMORY);
}

void trek_decoding_row(trek_decoding *d, int64_t y, const unsigned char *row, int from)
{
    trek_shape shape = trek_tensor_shape(d->image);
    int64_t width = shape.sizes[2], plane = shape.sizes[1] * width;
    int to = d->opts.channels;
    unsigned char *out = (unsigned char *)trek_tensor_data(d->image) + y * width;
    if (from == 3 && to == 3) {
        trek_pixels(false)->planes(row, out, width, plane);
        return;
    }
    if (from >= 3 && to == 1) { /* Pillow's weights */
        for (int64_t x = 0; x < width; x++, row += from)
            out[x] = (unsigned char)((row[0] * 19595u + row[1] * 38470u + row[2] * 7471u + 0x8000u) >> 16);
        return;
    }
    for (int c = 0; c < to; c++, out += plane) {
        int source = from >= 3 ? c : 0;
        if (c == 3 && from < 4)
            memset(out, 255, (size_t)width);
        else
            for (int64_t x = 0; x < width; x++)
                out[x] = row[x * from + source];
    }
}

static trek_status decode(trek_decoding *d)
{
    static const unsigned char png[8] = { 0x89, 'P', 'N', 'G', '\r', '\n', 0x1a, '\n' }, jpeg[3] = { 0xff, 0xd8, 0xff };
    if (d->length >= sizeof png && memcmp(d->bytes, png, sizeof png) == 0)
#if defined(TREK_HAVE_PNG)
        return trek_png_decode(d);
#else
        return trek_fail(TREK_ERR_UNSUPPORTED, "%s: it is a PNG, and this library was built without libpng", d->name);
#endif
    if (d->length >= sizeof jpeg && memcmp(d->bytes, jpeg, sizeof jpeg) == 0)
#if defined(TREK_HAVE_JPEG)
        return trek_jpeg_decode(d);
#else
        return trek_fail(TREK_ERR_UNSUPPORTED, "%s: it is a JPEG, and this library was built without libjpeg", d->name);
#endif
    return trek_fail(TREK_ERR_FORMAT, "%s: it is neither PNG nor JPEG; must be one of them", d->name);
}

static trek_status options(trek_decoding *d, const trek_image_read_opts *opts)
{
    if (opts)
        d->opts = *opts;
    d->opts.channels = d->opts.channels ? d->opts.channels : 3;
    d->opts.most_pixels = d->opts.most_pixels ? d->opts.most_pixels : 1 << 27;
    int channels = d->opts.channels;
    if ((channels != 1 && channels != 3 && channels != 4) || d->opts.most_pixels < 1 || d->opts.shrink_to < 0)
        return trek_fail(TREK_ERR_ARGUMENT,
                         "image_read: .channels: %d, .most_pixels: %" PRId64
                         ", .shrink_to: %d; must be 1, 3 or 4 channels, at least 1 pixel, and 0 or more",
                         channels, d->opts.most_pixels, d->opts.shrink_to);
    return TREK_OK;
}

trek_tensor *trek_image_decode(const void *bytes, size_t length, const char *name, const trek_image_read_opts *opts)
{
    trek_decoding d = { .name = name ? name : "image", .bytes = bytes, .length = length };
    if (!bytes && length > 0) {
        trek_fail_missing("image_decode", "bytes");
        return NULL;
    }
    trek_status status = options(&d, opts);
    if (status == TREK_OK)
        status = decode(&d);
    trek_free(d.rows);
    trek_free(d.places);
    if (status != TREK_OK) {
        trek_tensor_release(d.image);
        return NULL;
    }
    return d.image;
}

trek_tensor *trek_image_read(const char *path, const trek_image_read_opts *opts)
{
    unsigned char *bytes = NULL;
    size_t length = 0;
    if (!path)
        trek_fail_missing("image_read", "path");
    if (!path || trek_file_load(path, false, &bytes, &length) != TREK_OK)
        return NULL;
    trek_tensor *image = trek_image_decode(bytes, length, path, opts);
    trek_free(bytes);
    return image;
}

/* --- writing -------------------------------------------------------------------- */

#if defined(TREK_HAVE_PNG)
typedef struct picture {
    const char *path;
    const unsigned char *pixels;
    const int64_t *sizes;
} picture;

static trek_status write_picture(FILE *file, void *arg)
{
    const picture *p = arg;
    char words[200] = "";
    if (trek_png_encode(file, p->pixels, (int)p->sizes[0], (int)p->sizes[1], (int)p->sizes[2], words) || ferror(file))
        return TREK_OK;
    return trek_fail(TREK_ERR_IO, "%s: cannot be written: %s", p->path, words);
}
#endif

trek_status trek_png_add(trek_text *out, const char *name, const unsigned char *pixels, int channels, int height, int width)
{
#if defined(TREK_HAVE_PNG)
    if (!trek_png_there(name))
        return TREK_ERR_UNSUPPORTED;
    char *bytes = NULL, words[200] = "no memory"; /* allocated by the system's allocator */
    size_t length = 0;
    FILE *file = open_memstream(&bytes, &length);
    bool written = file && trek_png_encode(file, pixels, channels, height, width, words);
    if (file && fclose(file) != 0)
        written = false;
    if (written)
        trek_text_bytes(out, bytes, length);
    (free)(bytes);
    return !written      ? trek_fail(TREK_ERR_IO, "%s: the PNG cannot be made: %s", name, words)
           : out->failed ? trek_status_or(TREK_ERR_MEMORY)
                         : TREK_OK;
#else
    (void)out, (void)pixels, (void)channels, (void)height, (void)width;
    return trek_fail(TREK_ERR_UNSUPPORTED, "%s: this library was built without libpng", name);
#endif
}

trek_status trek_image_write_png(const char *path, trek_tensor *image)
{
    if (!path || !image)
        return trek_fail_missing("image_write_png", path ? "image" : "path");
    trek_shape shape = trek_tensor_shape(image);
    char text[TREK_SHAPE_TEXT];
    if (trek_tensor_dtype(image) != TREK_U8)
        return trek_fail(TREK_ERR_DTYPE, "image_write_png: image: dtype %s; must be u8",
                         trek_dtype_name(trek_tensor_dtype(image)));
    if (shape.ndim != 3 || shape.sizes[0] < 1 || shape.sizes[0] > 4 || shape.sizes[1] < 1 || shape.sizes[2] < 1 ||
        shape.sizes[1] > 1 << 24 || shape.sizes[2] > 1 << 24)
        return trek_fail(TREK_ERR_SHAPE, "image_write_png: image: shape %s; must be [1 .. 4, height, width]",
                         trek_shape_format(shape, text, sizeof text));
#if defined(TREK_HAVE_PNG)
    if (!trek_png_there(path))
        return TREK_ERR_UNSUPPORTED;
    size_t plane = (size_t)shape.sizes[1] * (size_t)shape.sizes[2], channels = (size_t)shape.sizes[0], all = plane * channels;
    unsigned char *planes = trek_alloc(2 * all), *pixels = planes ? planes + all : NULL;
    trek_status status = planes ? trek_tensor_to_host(image, TREK_U8, planes, all) : TREK_ERR_MEMORY;
    for (size_t c = 0; c < channels && status == TREK_OK; c++)
        for (size_t i = 0; i < plane; i++)
            pixels[i * channels + c] = planes[c * plane + i];
    if (status == TREK_OK)
        status = trek_write_whole(path, write_picture, &(picture){ path, pixels, shape.sizes });
    trek_free(planes);
    return status;
#else
    return trek_fail(TREK_ERR_UNSUPPORTED, "%s: this library was built without libpng", path);
#endif
}
