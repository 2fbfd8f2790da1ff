/* SPDX-License-Identifier: Apache-2.0 */
/* What the decoders share. */
#ifndef TREK_DATA_IMAGE_INTERNAL_H
#define TREK_DATA_IMAGE_INTERNAL_H

#include "data/dataset_internal.h"
#include "data/image.h"
#include "data/pixels.h"
#include "nn/text.h"

/* A file's bytes being decoded to a tensor. Everything that a decoder holds when its library jumps out of it is in
 * here. */
typedef struct trek_decoding {
    const char *name;
    const unsigned char *bytes;
    size_t length, at;
    trek_image_read_opts opts; /* filled in */
    unsigned char *rows;       /* free with trek_free */
    unsigned char **places;    /* of rows; free with trek_free */
    trek_tensor *image;
    bool ends_early;
    char words[200];           /* the library's error message */
} trek_decoding;

/* Makes d->image for pictures of this size, if the size is allowed. */
trek_status trek_decoding_size(trek_decoding *d, int64_t height, int64_t width);
/* Writes row y, which has `from` interleaved channels, into the image. */
void trek_decoding_row(trek_decoding *d, int64_t y, const unsigned char *row, int from);

/* Checks that libpng is available, and fails with UNSUPPORTED otherwise. */
bool trek_png_there(const char *name);
trek_status trek_png_decode(trek_decoding *d);
trek_status trek_jpeg_decode(trek_decoding *d);
/* Writes bytes [height, width, channels] to an open file. An error message goes to `words`. */
bool trek_png_encode(void *file, const unsigned char *pixels, int channels, int height, int width, char words[200]);
/* Appends the same to a text. Fails with UNSUPPORTED if libpng is missing at run time or at build time, and with
 * MEMORY or IO. `name` stands for the text in errors. */
trek_status trek_png_add(trek_text *out, const char *name, const unsigned char *pixels, int channels, int height, int width);

#endif
