/* SPDX-License-Identifier: Apache-2.0 */
/* Image files: PNG (by libpng) and JPEG (by libjpeg-turbo). The functions fail with UNSUPPORTED if trek was built without the
 * library. */
#ifndef TREK_DATA_IMAGE_H
#define TREK_DATA_IMAGE_H

#include "data/dataset.h"

TREK_BEGIN

/* Options of reading images. */
typedef struct trek_image_read_opts {
    int channels;        /* 1 grey, 3 RGB, 4 RGB and alpha (255 if the file has no alpha); default 3 */
    int64_t most_pixels; /* a file that claims more pixels is refused with FORMAT before memory is allocated; default 2^27 */
    /* For JPEG: decode at 1/2, 1/4 or 1/8 of the size as long as no side gets shorter than this, which is faster. The result
     * is nearly the same for images that are resized to less. Default: full size. */
    int shrink_to;
} trek_image_read_opts;

/* Reads an image file as a new u8 tensor [channels, height, width] in host memory. `opts` may be NULL. All kinds of PNG and
 * JPEG can be read: grey, palette and CMYK become RGB, of 16 bits the higher 8 are used, and alpha is dropped unless
 * opts->channels is 4. RGB becomes grey with the weights of Pillow.
 * Errors: IO, ARGUMENT, MEMORY. FORMAT, with the path and the message of the library, if the file is neither PNG nor JPEG, is
 * damaged or ends early. */
TREK_API trek_tensor *trek_image_read(const char *path, const trek_image_read_opts *opts);
/* Decodes an image file in memory as trek_image_read does. `name` is its name in error messages (NULL: "image"). */
TREK_API trek_tensor *trek_image_decode(const void *bytes, size_t length, const char *name, const trek_image_read_opts *opts);
/* Writes a u8 tensor [channels, height, width] in host memory, with any strides, as a PNG file. The channels are grey, grey
 * and alpha, RGB, or RGB and alpha. On failure no file is left.
 * Errors: DTYPE, SHAPE, DEVICE, IO, MEMORY. */
TREK_API trek_status trek_image_write_png(const char *path, trek_tensor *image);

/* Returns a dataset of images in one folder for each class, as torchvision's ImageFolder. Its fields are "image", u8 [n,
 * channels, height, width], and "label", i64 [n], the index of the class among the subfolders sorted by bytes.
 * - Files with names in .png, .jpg or .jpeg (upper or lower case) are read at any depth, ordered by the paths of their
 *   folders, then by their names. They are decoded when samples are fetched, with `opts` (NULL: RGB).
 * - Images of one fetch must have one size, otherwise it fails with SHAPE and names two files. trek_dataset_transform can
 *   resize them.
 * - Errors: IO, MEMORY. FORMAT if no class exists or a class has no images. NULL is returned. */
TREK_API trek_dataset *trek_dataset_image_folder(const char *folder, const trek_image_read_opts *opts);
/* Returns the names of the classes of an image folder and writes their number to *n. The dataset may also be made of one (a
 * subset, transforms). The list is valid as long as the dataset.
 * Errors: ARGUMENT for any other dataset; NULL is returned. */
TREK_API const char *const *trek_image_folder_classes(const trek_dataset *dataset, int *n);
/* Returns the path of a sample's file. The dataset must be the image folder itself, because a dataset that is made of it has
 * other indices. The string is valid as long as the dataset.
 * Errors: ARGUMENT for any other dataset or index; NULL is returned. */
TREK_API const char *trek_image_folder_path(const trek_dataset *dataset, int64_t index);

TREK_END

#endif
