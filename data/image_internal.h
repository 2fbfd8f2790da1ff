/* SPDX-License-Identifier: Apache-2.0 */
/* What the decoders share. */
#ifndef TREK_DATA_IMAGE_INTERNAL_H
#define TREK_DATA_IMAGE_INTERNAL_H

#include "data/dataset_internal.h"
#include "data/image.h"
#include "data/pixels.h"
#include "nn/text.h"

/* A file's bytes on their way to a tensor. What a decoder holds when its library jumps out of it is in here. */
typedef struct trek_decoding {
    const char *name;
    const unsigned char *bytes;
    size_t length, at;
    trek_image_read_opts opts; /* filled in */
    unsigned char *rows;       /* trek_free */
    unsigned char **places;    /* of rows; trek_free */
    trek_tensor *image;
    bool ends_early;
    char words[200];           /* the library's, of what is wrong */
} trek_decoding;

/* Makes d->image for pictures of this size, if they may have it. */
trek_status trek_decoding_size(trek_decoding *d, int64_t height, int64_t width);
/* Row y, of `from` channels side by side, into the image. */
void trek_decoding_row(trek_decoding *d, int64_t y, const unsigned char *row, int from);

/* Whether libpng is there; else UNSUPPORTED. */
bool trek_png_there(const char *name);
trek_status trek_png_decode(trek_decoding *d);
trek_status trek_jpeg_decode(trek_decoding *d);
/* Of bytes [height, width, channels] into an open file; what is wrong is written to words. */
bool trek_png_encode(void *file, const unsigned char *pixels, int channels, int height, int width, char words[200]);
/* The same added to a text, whatever it was built with: UNSUPPORTED without libpng; MEMORY, IO. `name` stands for it in errors.
 */
trek_status trek_png_add(trek_text *out, const char *name, const unsigned char *pixels, int channels, int height, int width);

#endif
