/* SPDX-License-Identifier: Apache-2.0 */
/* Transforms of images, with the names, formulas and defaults of torchvision. They are composed into a chain, which a dataset
 * applies to a field of its samples:
 *
 *     trek_dataset_transform(trek_dataset_image_folder("train", NULL), "image",
 *         trek_transform_chain((trek_transform *[]){ trek_transform_random_resized_crop(224, 224, NULL),
 *             trek_transform_random_horizontal_flip(0.5), trek_transform_color_jitter(&(trek_color_jitter_opts){ .hue = 0.1 }),
 *             trek_transform_normalize((double[]){ 0.485, 0.456, 0.406 }, (double[]){ 0.229, 0.224, 0.225 }, 3) }, 4), 0);
 *
 * Images are [channels, height, width], u8 in 0 .. 255 or f32, for which transforms of colours expect 0 .. 1. They stay u8
 * until a transform gives f32. The random numbers of a transform depend only on its seed, the loader's seed, the epoch, the
 * sample's index and its position in the chain. So the pixels are the same with any number of threads, ranks and processes,
 * after resuming, and whatever follows in the chain. Two chains of the same form and seed draw the same numbers, so an image
 * and its mask are cropped in the same way.
 *
 * A function that creates a transform returns NULL with ARGUMENT if a number is out of range or a required transform is NULL.
 * A function that takes transforms over takes them also on failure. A transform never changes, and any number of threads may
 * use it. */
#ifndef TREK_DATA_TRANSFORM_H
#define TREK_DATA_TRANSFORM_H

#include "data/dataset.h"

TREK_BEGIN

/* A transform of an image. */
typedef struct trek_transform trek_transform;
/* The source of the random numbers of one sample. */
typedef struct trek_transform_random trek_transform_random;

/* Frees the transform and sets *transform to NULL. NULL is allowed. */
TREK_API void trek_transform_free(trek_transform **transform);

/* Returns a dataset whose samples are those of `dataset` with a transformed `field`. Other fields do not change. It takes
 * dataset and transform over, also on failure. Samples are fetched one by one, so the images of a folder may have different
 * sizes before the transform. After it they must have one size. Errors when a batch is fetched: SHAPE if two results differ in
 * size, DTYPE or SHAPE if the field is not an image of u8 or f32. */
TREK_API trek_dataset *trek_dataset_transform(trek_dataset *dataset, const char *field, trek_transform *transform, uint64_t seed);
/* Applies the transform to one image [C, H, W] and returns a new tensor, as for sample number `sample` of an epoch. The image
 * must be in host memory and may have any strides. */
TREK_API trek_tensor *trek_transform_apply(const trek_transform *transform, trek_tensor *image, uint64_t seed, int64_t epoch,
                                           int64_t sample);

/* --- composition ----------------------------------------------------------------- */

/* Returns a transform that applies n >= 0 transforms one after the other (torchvision's Compose). */
TREK_API trek_transform *trek_transform_chain(trek_transform *const *transforms, int n);
/* Returns a transform that applies `transform` with probability p, otherwise does nothing (torchvision's RandomApply). */
TREK_API trek_transform *trek_transform_random_apply(trek_transform *transform, double p);
/* Returns a transform that applies one of n transforms (torchvision's RandomChoice). The probabilities are proportional to
 * `weights`, [n]. NULL stands for equal weights. */
TREK_API trek_transform *trek_transform_random_choice(trek_transform *const *transforms, const double *weights, int n);

/* A function of the user that transforms an image. It returns a new tensor [C, H, W] of u8 or f32 in host memory, or
 * trek_tensor_retain(image), or NULL after trek_fail. `image` is valid during the call and may be written. Several threads
 * call it. */
typedef trek_tensor *(*trek_transform_fn)(trek_tensor *image, trek_transform_random *random, void *arg);
/* Returns a transform that calls `fn` with `arg`. `release(arg)` is called when the transform is freed, and also if this
 * function fails. `release` may be NULL. */
TREK_API trek_transform *trek_transform_function(trek_transform_fn fn, void *arg, void (*release)(void *arg));
/* Returns the sample's next random number at this position of the chain: uniform in [0, 1), with 32 bits. */
TREK_API double trek_transform_uniform(trek_transform_random *random);

/* --- geometry ----------------------------------------------------------- */

/* The pixels beyond the edge of an image. CONSTANT is a number, EDGE the pixel at the edge. REFLECT mirrors without the edge
 * (c b | a b c), SYMMETRIC with it (b a | a b c). */
typedef enum trek_image_padding {
    TREK_IMAGE_PADDING_CONSTANT, TREK_IMAGE_PADDING_EDGE, TREK_IMAGE_PADDING_REFLECT, TREK_IMAGE_PADDING_SYMMETRIC
} trek_image_padding;

/* Options of padding. */
typedef struct trek_image_pad_opts {
    int left;                /* pixels at the left, >= 0; default 0 */
    int top;                 /* pixels at the top, >= 0; default 0 */
    int right;               /* pixels at the right, >= 0; default 0 */
    int bottom;              /* pixels at the bottom, >= 0; default 0 */
    double fill;             /* the number of TREK_IMAGE_PADDING_CONSTANT, in the units of the image; default 0 */
    trek_image_padding mode; /* how the pixels are filled; default TREK_IMAGE_PADDING_CONSTANT */
    bool if_needed; /* for trek_transform_random_crop: also pads an image that is too small, on both sides; default false */
} trek_image_pad_opts;

/* Returns a transform that adds pixels around the image. */
TREK_API trek_transform *trek_transform_pad(const trek_image_pad_opts *opts);
/* Returns a transform that cuts out the rectangle whose first pixel is (top, left). Pixels outside of the image are 0. */
TREK_API trek_transform *trek_transform_crop(int top, int left, int height, int width);
/* Returns a transform that cuts out the centre. An image that is smaller is surrounded by zeros. */
TREK_API trek_transform *trek_transform_center_crop(int height, int width);
/* Returns a transform that pads the image if `opts` is not NULL, then cuts out a rectangle at a random position.
 * Errors when it runs: SHAPE if the image is too small. */
TREK_API trek_transform *trek_transform_random_crop(int height, int width, const trek_image_pad_opts *opts);
/* Returns a transform that exchanges left and right with probability p. */
TREK_API trek_transform *trek_transform_random_horizontal_flip(double p);
/* Returns a transform that exchanges top and bottom with probability p. */
TREK_API trek_transform *trek_transform_random_vertical_flip(double p);

/* How a pixel is computed from others. If an image gets smaller, BILINEAR and BICUBIC widen with the scale, as in Pillow and in
 * torchvision with antialias. For u8 they give the same bits as Pillow. NEAREST is Pillow's, too. */
typedef enum trek_image_filter {
    TREK_IMAGE_FILTER_BILINEAR, TREK_IMAGE_FILTER_NEAREST, TREK_IMAGE_FILTER_BICUBIC
} trek_image_filter;

/* Options of resizing. */
typedef struct trek_image_resize_opts {
    trek_image_filter filter; /* default TREK_IMAGE_FILTER_BILINEAR */
    bool no_antialias;        /* uses the two (bicubic: four) nearest pixels in each dimension at any scale; default false */
} trek_image_resize_opts;

/* Returns a transform that resizes the image. If `width` is 0, the shorter side becomes `height`, and the other side keeps the
 * proportion, rounded down. `opts` may be NULL. */
TREK_API trek_transform *trek_transform_resize(int height, int width, const trek_image_resize_opts *opts);

/* Options of trek_transform_random_resized_crop. */
typedef struct trek_resized_crop_opts {
    double scale[2];               /* smallest and largest part of the area; default 0.08 and 1 */
    double ratio[2];               /* smallest and largest width / height; default 3/4 and 4/3 */
    trek_image_resize_opts resize; /* how the rectangle is resized */
} trek_resized_crop_opts;

/* Returns a transform that cuts out a rectangle of random area and proportion and resizes it. If the rectangle does not fit in
 * ten attempts, the centre is used. `opts` may be NULL. */
TREK_API trek_transform *trek_transform_random_resized_crop(int height, int width, const trek_resized_crop_opts *opts);

/* Options of trek_transform_random_affine. Each pair is the range of a random number. */
typedef struct trek_random_affine_opts {
    double degrees[2];        /* angle of the rotation, clockwise; default 0 and 0 */
    double translate[2];      /* largest shift as a part of width and of height, 0 .. 1, in whole pixels, in both directions */
    double scale[2];          /* scale; default (both 0) 1 */
    double shear_x[2];        /* shear along x in degrees; default 0 and 0 */
    double shear_y[2];        /* shear along y in degrees; default 0 and 0 */
    trek_image_filter filter; /* BILINEAR (default, unlike torchvision) or NEAREST */
    double fill;              /* the value of pixels from outside of the image; default 0 */
} trek_random_affine_opts;

/* Returns a transform that rotates, shifts, scales and shears the image around its centre. The size does not change
 * (torchvision's RandomAffine for tensors). */
TREK_API trek_transform *trek_transform_random_affine(const trek_random_affine_opts *opts);
/* Returns a transform that rotates the image counter-clockwise by a random angle in [low, high] degrees (torchvision's
 * RandomRotation). `fill` is the value of pixels from outside of the image. */
TREK_API trek_transform *trek_transform_random_rotation(double low, double high, trek_image_filter filter, double fill);

/* --- values of pixels ------------------------------------------------------------- */

/* Options of trek_transform_color_jitter. A field that is 0 does nothing. */
typedef struct trek_color_jitter_opts {
    double brightness; /* x: the factor of the brightness is in [max(0, 1 - x), 1 + x] */
    double contrast;   /* x: the factor of the contrast is in [max(0, 1 - x), 1 + x] */
    double saturation; /* x: the factor of the saturation is in [max(0, 1 - x), 1 + x] */
    double hue;        /* x <= 0.5: the hue turns by a part of the circle in [-x, x] */
} trek_color_jitter_opts;

/* Returns a transform that changes brightness, contrast, saturation and hue in a random order, each by a random factor
 * (torchvision's ColorJitter for tensors). Images have 3 channels, or 1, for which saturation and hue do nothing. Errors when
 * it runs: SHAPE for other numbers of channels. */
TREK_API trek_transform *trek_transform_color_jitter(const trek_color_jitter_opts *opts);
/* Returns a transform that changes brightness, contrast, saturation and hue by fixed factors, in this order. The factors 1, 1,
 * 1 and 0 do not change the image. */
TREK_API trek_transform *trek_transform_adjust(double brightness, double contrast, double saturation, double hue);
/* Returns a transform that replaces the image by 0.2989 R + 0.587 G + 0.114 B in each of `channels` channels, which is 1 or 3. */
TREK_API trek_transform *trek_transform_grayscale(int channels);
/* Returns a transform that makes the image grey with probability p. The image keeps its 3 channels. */
TREK_API trek_transform *trek_transform_random_grayscale(double p);
/* Returns a transform that blurs with a Gaussian of kernel x kernel pixels (odd) and a random sigma in [low, high]. The image is
 * mirrored at its edges. */
TREK_API trek_transform *trek_transform_gaussian_blur(int kernel, double low, double high);

/* Options of trek_transform_random_erasing. */
typedef struct trek_random_erasing_opts {
    double p;        /* the probability; default 0.5 */
    double scale[2]; /* smallest and largest part of the area; default 0.02 and 0.33 */
    double ratio[2]; /* smallest and largest height / width; default 0.3 and 3.3 */
    double value;    /* the new value, in the units of the image; default 0 */
    bool noise;      /* standard normal numbers instead of the value, for f32 only (DTYPE); default false */
} trek_random_erasing_opts;

/* Returns a transform that overwrites a random rectangle of the image (torchvision's RandomErasing). `opts` may be NULL. */
TREK_API trek_transform *trek_transform_random_erasing(const trek_random_erasing_opts *opts);

/* Returns a transform that converts u8 to f32 in [0, 1] and does not change f32 (torchvision's ToTensor). */
TREK_API trek_transform *trek_transform_to_float(void);
/* Returns a transform that computes (x - mean[c]) / std[c] for n channels. With n = 1 it is for any number of channels. For
 * u8, x is the byte divided by 255, and both are done in one pass. */
TREK_API trek_transform *trek_transform_normalize(const double *mean, const double *std, int n);

/* --- mixing samples of a batch ------------------------------------------------------ */

/* Options of trek_dataset_mix. If both alphas are given, each batch uses one of the two methods, with equal probability. */
typedef struct trek_mix_opts {
    double mixup;  /* alpha of Beta(alpha, alpha) for MixUp, whose draw is the weight of the sample itself; default 0: off */
    double cutmix; /* alpha for CutMix, which replaces a rectangle of the area 1 - lambda; default 0: off */
    uint64_t seed; /* the seed of the random numbers */
} trek_mix_opts;

/* Returns a dataset whose samples are mixed by MixUp and CutMix (as in torchvision's v2). Each sample is mixed with the sample
 * before it in the batch of all ranks, the first with the last. A batch has one lambda. It takes the dataset over, also on
 * failure.
 * - `image` becomes f32. u8 is divided by 255.
 * - `label`, i64 [n] in [0, classes), becomes f32 [n, classes] with rows whose sum is 1.
 * - Random numbers depend on the seeds, the epoch and the first sample of the batch. A rank that has some of the rows fetches
 *   one more.
 * - Errors when a batch is fetched: ARGUMENT if a label is out of range. */
TREK_API trek_dataset *trek_dataset_mix(trek_dataset *dataset, const char *image, const char *label, int64_t classes,
                                        const trek_mix_opts *opts);

TREK_END

#endif
