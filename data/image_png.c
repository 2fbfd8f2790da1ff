/* SPDX-License-Identifier: Apache-2.0 */
/* PNG through libpng, which ends a failing call with a jump. */
#include <png.h>
#include <stdio.h>
#include <string.h>

#include "data/image_internal.h"
#include "tensor/late.h"

/* Opened for the first image. */
#define PNG_FUNCTIONS(F) F(png_, get_error_ptr) F(png_, longjmp) F(png_, get_io_ptr) F(png_, error) \
    F(png_, get_color_type) F(png_, get_bit_depth) F(png_, set_strip_16) F(png_, set_palette_to_rgb) \
    F(png_, set_expand_gray_1_2_4_to_8) F(png_, get_valid) F(png_, set_tRNS_to_alpha) F(png_, set_strip_alpha) \
    F(png_, set_gray_to_rgb) F(png_, set_interlace_handling) F(png_, read_update_info) F(png_, set_read_fn) \
    F(png_, set_user_limits) F(png_, set_chunk_malloc_max) F(png_, read_info) F(png_, get_image_height) \
    F(png_, get_image_width) F(png_, get_rowbytes) F(png_, get_interlace_type) F(png_, read_image) \
    F(png_, get_channels) F(png_, read_row) F(png_, read_end) F(png_, create_read_struct) \
    F(png_, create_info_struct) F(png_, destroy_read_struct) F(png_, init_io) F(png_, set_IHDR) F(png_, write_info) \
    F(png_, write_row) F(png_, write_end) F(png_, create_write_struct) F(png_, destroy_write_struct) \
    F(png_, set_longjmp_fn)
static struct { PNG_FUNCTIONS(TREK_LATE_FUNCTION) } png_lib;
static const char *const png_names[] = { PNG_FUNCTIONS(TREK_LATE_NAME) };
static trek_late libpng = { .variable = "TREK_LIBPNG", .package = "libpng (libpng16-16)", .names = png_names,
                            .functions = &png_lib,
                            .n = sizeof png_names / sizeof *png_names, .files = { "libpng16.so.16", "libpng16.so" } };

bool trek_png_there(const char *name) { return trek_late_there(&libpng, name); }

static void keep_words(char words[200], const char *text)
{
    snprintf(words, 200, "%s", text ? text : "");
}

static void png_failed(png_structp png, png_const_charp text)
{
    keep_words(((trek_decoding *)png_lib.get_error_ptr(png))->words, text);
    png_lib.longjmp(png, 1);
}

static void png_warned(png_structp png, png_const_charp text)
{
    (void)png;
    (void)text;
}

static void read_bytes(png_structp png, png_bytep to, png_size_t n)
{
    trek_decoding *d = png_lib.get_io_ptr(png);
    if (n > d->length - d->at)
        png_lib.error(png, "it ends early");
    memcpy(to, d->bytes + d->at, n);
    d->at += n;
}

/* Chooses the conversions that turn every kind of file into bytes of gray, gray and alpha, RGB or RGBA. */
static void choose_form(png_structp png, png_infop info, int channels)
{
    int kind = png_lib.get_color_type(png, info);
    if (png_lib.get_bit_depth(png, info) == 16)
        png_lib.set_strip_16(png);
    if (kind == PNG_COLOR_TYPE_PALETTE)
        png_lib.set_palette_to_rgb(png);
    else if (kind == PNG_COLOR_TYPE_GRAY)
        png_lib.set_expand_gray_1_2_4_to_8(png);
    if (channels == 4 && png_lib.get_valid(png, info, PNG_INFO_tRNS))
        png_lib.set_tRNS_to_alpha(png);
    else if (channels != 4)
        png_lib.set_strip_alpha(png);
    if (channels == 4)
        png_lib.set_gray_to_rgb(png);
    png_lib.set_interlace_handling(png);
    png_lib.read_update_info(png, info);
}

/* Jumps to `png` on failure. */
static trek_status read_picture(trek_decoding *d, png_structp png, png_infop info)
{
    png_lib.set_read_fn(png, d, read_bytes);
    png_lib.set_user_limits(png, 1 << 24, 1 << 24);
    png_lib.set_chunk_malloc_max(png, 1 << 24);
    png_lib.read_info(png, info);
    int64_t height = png_lib.get_image_height(png, info), width = png_lib.get_image_width(png, info);
    trek_status status = trek_decoding_size(d, height, width);
    if (status != TREK_OK)
        return status;
    choose_form(png, info, d->opts.channels);
    size_t row = png_lib.get_rowbytes(png, info);
    bool at_once = png_lib.get_interlace_type(png, info) != PNG_INTERLACE_NONE;
    d->rows = trek_alloc(row * (at_once ? (size_t)height : 1));
    d->places = trek_alloc((size_t)height * sizeof *d->places);
    if (!d->rows || !d->places)
        return TREK_ERR_MEMORY;
    for (int64_t y = 0; y < height; y++)
        d->places[y] = d->rows + (at_once ? (size_t)y * row : 0);
    if (at_once)
        png_lib.read_image(png, d->places);
    int channels = png_lib.get_channels(png, info);
    for (int64_t y = 0; y < height; y++) {
        if (!at_once)
            png_lib.read_row(png, d->rows, NULL);
        trek_decoding_row(d, y, d->places[y], channels);
    }
    png_lib.read_end(png, NULL);
    return TREK_OK;
}

static trek_status guarded(trek_decoding *d, png_structp png, png_infop info)
{
    if (setjmp(*png_lib.set_longjmp_fn(png, longjmp, sizeof(jmp_buf))))
        return trek_fail(TREK_ERR_FORMAT, "%s: the PNG cannot be read: %s", d->name, d->words);
    return read_picture(d, png, info);
}

trek_status trek_png_decode(trek_decoding *d)
{
    if (!trek_png_there(d->name))
        return TREK_ERR_UNSUPPORTED;
    png_structp png = png_lib.create_read_struct(PNG_LIBPNG_VER_STRING, d, png_failed, png_warned);
    png_infop info = png ? png_lib.create_info_struct(png) : NULL;
    trek_status status = info ? guarded(d, png, info) : trek_fail(TREK_ERR_MEMORY, "%s: no memory to decode it", d->name);
    png_lib.destroy_read_struct(&png, &info, NULL);
    return status;
}

/* --- writing ---------------------------------------------------------------------- */

static void write_failed(png_structp png, png_const_charp text)
{
    keep_words(png_lib.get_error_ptr(png), text);
    png_lib.longjmp(png, 1);
}

static bool write_guarded(png_structp png, png_infop info, FILE *file, const unsigned char *pixels, int channels, int height,
                          int width)
{
    static const int kinds[4] = { PNG_COLOR_TYPE_GRAY, PNG_COLOR_TYPE_GRAY_ALPHA, PNG_COLOR_TYPE_RGB, PNG_COLOR_TYPE_RGB_ALPHA };
    if (setjmp(*png_lib.set_longjmp_fn(png, longjmp, sizeof(jmp_buf))))
        return false;
    png_lib.init_io(png, file);
    png_lib.set_user_limits(png, 1 << 24, 1 << 24);
    png_lib.set_IHDR(png, info, (png_uint_32)width, (png_uint_32)height, 8, kinds[channels - 1], PNG_INTERLACE_NONE,
                 PNG_COMPRESSION_TYPE_DEFAULT, PNG_FILTER_TYPE_DEFAULT);
    png_lib.write_info(png, info);
    for (int y = 0; y < height; y++)
        png_lib.write_row(png, pixels + (size_t)y * (size_t)width * (size_t)channels);
    png_lib.write_end(png, NULL);
    return true;
}

bool trek_png_encode(void *file, const unsigned char *pixels, int channels, int height, int width, char words[200])
{
    png_structp png = png_lib.create_write_struct(PNG_LIBPNG_VER_STRING, words, write_failed, png_warned);
    png_infop info = png ? png_lib.create_info_struct(png) : NULL;
    bool written = info && write_guarded(png, info, file, pixels, channels, height, width);
    png_lib.destroy_write_struct(&png, &info);
    return written;
}
