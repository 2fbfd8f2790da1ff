/* SPDX-License-Identifier: Apache-2.0 */
/* Images in files: PNG (by libpng) and JPEG (by libjpeg-turbo). UNSUPPORTED where the library was built without. */
#ifndef TREK_DATA_IMAGE_H
#define TREK_DATA_IMAGE_H

#include "data/dataset.h"

TREK_BEGIN

typedef struct trek_image_read_opts {
    int channels;        /* 1 gray, 3 RGB, 4 RGB and alpha (255 where a file has none); default 3 */
    int64_t most_pixels; /* FORMAT for a file that says it has more, before memory is asked for; default 2^27 */
    int shrink_to;       /* JPEG: decode at 1/2, 1/4 or 1/8 if no side gets shorter than this, which is faster and, for what
                            is resized to less anyway, nearly the same; default: whole */
} trek_image_read_opts;

/* A new u8 tensor [channels, height, width]. Every kind of PNG and JPEG that there is: gray, palette and CMYK become RGB; of
 * 16 bits the higher 8 are taken; alpha is dropped unless asked for. RGB becomes gray by Pillow's weights. opts may be NULL.
 * IO; FORMAT for a file that is neither, is damaged or ends early, with the path and the libraries' words; ARGUMENT, MEMORY. */
TREK_API trek_tensor *trek_image_read(const char *path, const trek_image_read_opts *opts);
/* The same of a file's bytes in memory; `name` stands for it in errors (NULL: "image"). */
TREK_API trek_tensor *trek_image_decode(const void *bytes, size_t length, const char *name, const trek_image_read_opts *opts);
/* Writes u8 [1 .. 4, height, width] (gray, gray and alpha, RGB, RGB and alpha), host memory, any strides. DTYPE, SHAPE, DEVICE,
 * IO, MEMORY; on failure there is no file. */
TREK_API trek_status trek_image_write_png(const char *path, trek_tensor *image);

/* Images in one folder for each class (torchvision's ImageFolder): "image" u8 [n, channels, height, width], "label" i64 [n],
 * the place of the class among the folder's subfolders, sorted by bytes. Files are those that end in .png, .jpg or .jpeg (in
 * any case), at any depth, in order of their folders' paths and then of their names; others are left out. They are decoded
 * when asked for, as opts say (NULL: RGB). Images of one call must be of one size (SHAPE, naming two files that differ):
 * trek_dataset_transform makes them so. NULL and IO; FORMAT if there are no classes, or one without images; MEMORY. */
TREK_API trek_dataset *trek_dataset_image_folder(const char *folder, const trek_image_read_opts *opts);
/* The names of its classes (or of what is made around it: a subset, transforms), *n of them, and the path of a sample's file (of
 * the folder itself: others have other numbers); both live as long as it does. NULL and ARGUMENT for another dataset or no such
 * sample. */
TREK_API const char *const *trek_image_folder_classes(const trek_dataset *dataset, int *n);
TREK_API const char *trek_image_folder_path(const trek_dataset *dataset, int64_t index);

TREK_END

#endif
