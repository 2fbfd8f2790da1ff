/* SPDX-License-Identifier: Apache-2.0 */
/* JPEG through libjpeg-turbo, which ends a failing call with a jump. */
#include <setjmp.h>
#include <stdio.h>
#include <string.h>

#include <jpeglib.h>

#include <jerror.h>

#include "data/image_internal.h"
#include "tensor/late.h"

/* The library is opened for the first image, in the version that these structures belong to. */
#define JPEG_FUNCTIONS(F) F(jpeg_, CreateDecompress) F(jpeg_, mem_src) F(jpeg_, read_header) F(jpeg_, start_decompress) \
    F(jpeg_, read_scanlines) F(jpeg_, finish_decompress) F(jpeg_, std_error) F(jpeg_, destroy_decompress)
static struct { JPEG_FUNCTIONS(TREK_LATE_FUNCTION) } jpeg_lib;
static const char *const jpeg_names[] = { JPEG_FUNCTIONS(TREK_LATE_NAME) };
static trek_late libjpeg = { .variable = "TREK_LIBJPEG", .package = "libjpeg (libjpeg62-turbo)", .names = jpeg_names,
                             .functions = &jpeg_lib, .n = sizeof jpeg_names / sizeof *jpeg_names,
                             .files = { JPEG_LIB_VERSION >= 80 ? "libjpeg.so.8" : "libjpeg.so.62", "libjpeg.so" } };

typedef struct reader {
    struct jpeg_error_mgr errors; /* first, because libjpeg refers to it */
    struct jpeg_progress_mgr progress;
    jmp_buf out;
    trek_decoding *d;
    struct jpeg_decompress_struct jpeg;
} reader;

static void failed(j_common_ptr jpeg)
{
    reader *r = (reader *)(void *)jpeg->err;
    char text[JMSG_LENGTH_MAX];
    jpeg->err->format_message(jpeg, text);
    snprintf(r->d->words, sizeof r->d->words, "%s", text);
    longjmp(r->out, 1);
}

/* Level -1 is a warning about damage. The image is decoded as far as possible, except for a file that ends early. */
static void noted(j_common_ptr jpeg, int level)
{
    reader *r = (reader *)(void *)jpeg->err;
    if (level < 0 && jpeg->err->msg_code == JWRN_JPEG_EOF)
        r->d->ends_early = true;
}

/* Each scan of a progressive file is decoded over the whole picture, so that a few bytes per scan could keep a core
 * busy for hours. */
enum { MOST_SCANS = 500 };
static void progressed(j_common_ptr jpeg)
{
    reader *r = (reader *)(void *)jpeg->err;
    if (r->jpeg.input_scan_number <= MOST_SCANS)
        return;
    snprintf(r->d->words, sizeof r->d->words, "it has more than %d scans", MOST_SCANS);
    longjmp(r->out, 1);
}

static void choose_form(reader *r)
{
    struct jpeg_decompress_struct *j = &r->jpeg;
    bool four = j->jpeg_color_space == JCS_CMYK || j->jpeg_color_space == JCS_YCCK;
    bool gray = r->d->opts.channels == 1 || j->jpeg_color_space == JCS_GRAYSCALE;
    j->out_color_space = four ? JCS_CMYK : gray && j->jpeg_color_space != JCS_RGB ? JCS_GRAYSCALE : JCS_RGB;
    int shorter = (int)(j->image_height < j->image_width ? j->image_height : j->image_width);
    j->scale_num = 1;
    j->scale_denom = 1;
    while (r->d->opts.shrink_to > 0 && j->scale_denom < 8 && shorter / (int)(2 * j->scale_denom) >= r->d->opts.shrink_to)
        j->scale_denom *= 2;
}

/* Inverts the values, since Photoshop and nearly all others write them inverted, and converts them to RGB as Pillow
 * does. */
static void from_cmyk(unsigned char *row, int width, bool inverted)
{
    for (int x = 0; x < width; x++) {
        unsigned char *in = row + 4 * x, *out = row + 3 * x;
        unsigned white = inverted ? in[3] : 255u - in[3];
        unsigned ink[3];
        for (int c = 0; c < 3; c++)
            ink[c] = inverted ? 255u - in[c] : in[c];
        for (int c = 0; c < 3; c++) {
            unsigned product = ink[c] * white + 128;
            out[c] = (unsigned char)(white - ((product + (product >> 8)) >> 8));
        }
    }
}

static trek_status read_picture(reader *r)
{
    struct jpeg_decompress_struct *j = &r->jpeg;
    trek_decoding *d = r->d;
    jpeg_lib.CreateDecompress(j, JPEG_LIB_VERSION, sizeof *j);
    r->progress.progress_monitor = progressed;
    j->progress = &r->progress;
    jpeg_lib.mem_src(j, d->bytes, (unsigned long)d->length);
    jpeg_lib.read_header(j, TRUE);
    choose_form(r);
    if ((int64_t)j->image_height * j->image_width > d->opts.most_pixels) /* progressive ones are kept whole */
        return trek_decoding_size(d, j->image_height, j->image_width);
    jpeg_lib.start_decompress(j);
    trek_status status = trek_decoding_size(d, j->output_height, j->output_width);
    d->rows = status == TREK_OK ? trek_alloc((size_t)j->output_width * (size_t)j->output_components) : NULL;
    if (!d->rows)
        return trek_status_or(TREK_ERR_MEMORY);
    bool four = j->out_color_space == JCS_CMYK;
    while (j->output_scanline < j->output_height) {
        int64_t y = j->output_scanline;
        unsigned char *row = d->rows;
        jpeg_lib.read_scanlines(j, &row, 1);
        if (four)
            from_cmyk(row, (int)j->output_width, j->saw_Adobe_marker);
        trek_decoding_row(d, y, row, four ? 3 : j->output_components);
    }
    jpeg_lib.finish_decompress(j);
    return d->ends_early ? trek_fail(TREK_ERR_FORMAT, "%s: the JPEG ends early", d->name) : TREK_OK;
}

static trek_status guarded(reader *r)
{
    if (setjmp(r->out))
        return trek_fail(TREK_ERR_FORMAT, "%s: the JPEG cannot be read: %s", r->d->name, r->d->words);
    return read_picture(r);
}

trek_status trek_jpeg_decode(trek_decoding *d)
{
    reader *r = trek_late_there(&libjpeg, d->name) ? trek_calloc(1, sizeof *r) : NULL;
    if (!r)
        return trek_error_status();
    r->d = d;
    r->jpeg.err = jpeg_lib.std_error(&r->errors);
    r->errors.error_exit = failed;
    r->errors.emit_message = noted;
    trek_status status = guarded(r);
    jpeg_lib.destroy_decompress(&r->jpeg);
    trek_free(r);
    return status;
}
