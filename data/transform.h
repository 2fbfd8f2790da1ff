/* SPDX-License-Identifier: Apache-2.0 */
/* Transforms of images, composed into a chain that a dataset runs on a field of its samples, by torchvision's names,
 * formulas and defaults:
 *
 *     trek_dataset_transform(trek_dataset_image_folder("train", NULL), "image",
 *         trek_transform_chain(4, (trek_transform *[]){ trek_transform_random_resized_crop(224, 224, NULL),
 *             trek_transform_random_horizontal_flip(0.5), trek_transform_color_jitter(&(trek_color_jitter_opts){ .hue = 0.1 }),
 *             trek_transform_normalize((double[]){ 0.485, 0.456, 0.406 }, (double[]){ 0.229, 0.224, 0.225 }, 3) }), 0);
 *
 * Images are [channels, height, width], u8 in 0 .. 255 or f32, of which colours take 0 .. 1; they stay u8 until something asks
 * for f32. What a random one draws is a function of its seed, the loader's seed, the epoch, the sample's number and its own
 * place in the chain: the same pixels from any number of threads, ranks and processes, after any resume, and whatever else
 * the chain has after it. Two chains of the same form and seed draw alike, so an image and its mask are cut alike.
 *
 * A constructor gives NULL and ARGUMENT for numbers out of range, and for a NULL where a transform is wanted; what takes
 * transforms over takes them also on failure. A transform does not change once made, and serves any number of threads. */
#ifndef TREK_DATA_TRANSFORM_H
#define TREK_DATA_TRANSFORM_H

#include "data/dataset.h"

TREK_BEGIN

typedef struct trek_transform trek_transform;
/* Where the random numbers of one sample come from. */
typedef struct trek_transform_random trek_transform_random;

TREK_API void trek_transform_free(trek_transform **transform); /* NULL is fine */

/* The dataset with `field` of each sample transformed: samples are fetched one by one, so those of an image folder may have
 * different sizes so far; results must not (SHAPE, naming both). Takes dataset and transform over, also on failure. The other
 * fields are as they were. DTYPE and SHAPE for fields that are no images of u8 or f32. */
TREK_API trek_dataset *trek_dataset_transform(trek_dataset *dataset, const char *field, trek_transform *transform, uint64_t seed);
/* One image [C, H, W] (any strides, host memory) as sample number `sample` of an epoch would become; a new tensor. */
TREK_API trek_tensor *trek_transform_apply(const trek_transform *transform, trek_tensor *image, uint64_t seed, int64_t epoch,
                                           int64_t sample);

/* --- composing ----------------------------------------------------------------- */

/* One after the other (Compose); n >= 0. */
TREK_API trek_transform *trek_transform_chain(int n, trek_transform *const *transforms);
/* The transform with probability p, else nothing (RandomApply). */
TREK_API trek_transform *trek_transform_random_apply(trek_transform *transform, double p);
/* One of n; weights[n] are probabilities, or any multiples of them; NULL: alike (RandomChoice). */
TREK_API trek_transform *trek_transform_random_choice(int n, trek_transform *const *transforms, const double *weights);

/* A program's own: gives a new tensor [C, H, W] of u8 or f32 in host memory (or trek_tensor_retain of the one given), or NULL
 * after trek_fail. `image` is valid during the call, and may be written. Called from several threads. `release(arg)`, unless
 * NULL, is called when the transform is freed, also where making it fails. */
typedef trek_tensor *(*trek_transform_fn)(trek_tensor *image, trek_transform_random *random, void *arg);
TREK_API trek_transform *trek_transform_function(trek_transform_fn fn, void *arg, void (*release)(void *arg));
/* The next number of the sample's stream at this place of the chain: uniform in [0, 1), of 32 bits. */
TREK_API double trek_transform_uniform(trek_transform_random *random);

/* --- places of pixels ----------------------------------------------------------- */

/* Beyond the edge: a constant; the edge's pixel; mirrored without it (c b | a b c); mirrored with it (b a | a b c). */
typedef enum trek_image_padding {
    TREK_IMAGE_CONSTANT, TREK_IMAGE_EDGE, TREK_IMAGE_REFLECT, TREK_IMAGE_SYMMETRIC
} trek_image_padding;

typedef struct trek_image_pad_opts {
    int left, top, right, bottom; /* pixels, >= 0 */
    double fill;                  /* of TREK_IMAGE_CONSTANT, in the image's own units; default 0 */
    trek_image_padding mode;
    bool if_needed; /* trek_transform_random_crop: as much more at both sides as the crop lacks */
} trek_image_pad_opts;

TREK_API trek_transform *trek_transform_pad(const trek_image_pad_opts *opts);
/* The rectangle whose first pixel is (top, left); what lies outside is 0. */
TREK_API trek_transform *trek_transform_crop(int top, int left, int height, int width);
/* An image that is smaller gets zeros around it. */
TREK_API trek_transform *trek_transform_center_crop(int height, int width);
/* Pads (opts may be NULL: does not), then takes a rectangle anywhere. SHAPE for an image that is too small. */
TREK_API trek_transform *trek_transform_random_crop(int height, int width, const trek_image_pad_opts *opts);
TREK_API trek_transform *trek_transform_random_horizontal_flip(double p);
TREK_API trek_transform *trek_transform_random_vertical_flip(double p);

/* How a pixel is made of others. BILINEAR and BICUBIC widen with the scale when an image becomes smaller, as Pillow's and
 * torchvision's with antialias: of u8 the very bits of Pillow's. NEAREST is Pillow's, too. */
typedef enum trek_image_filter { TREK_IMAGE_BILINEAR, TREK_IMAGE_NEAREST, TREK_IMAGE_BICUBIC } trek_image_filter;

typedef struct trek_image_resize_opts {
    trek_image_filter filter; /* default: bilinear */
    bool no_antialias;        /* the two (four) nearest pixels, whatever the scale */
} trek_image_resize_opts;

/* width 0: the shorter side becomes `height`, and the other one what keeps the proportion (rounded down). opts may be NULL. */
TREK_API trek_transform *trek_transform_resize(int height, int width, const trek_image_resize_opts *opts);

typedef struct trek_resized_crop_opts {
    double scale[2]; /* least and most of the area; default 0.08 and 1 */
    double ratio[2]; /* least and most width / height; default 3/4 and 4/3 */
    trek_image_resize_opts resize;
} trek_resized_crop_opts;

/* A rectangle of random area and proportion (ten tries, then the middle), resized. opts may be NULL. */
TREK_API trek_transform *trek_transform_random_resized_crop(int height, int width, const trek_resized_crop_opts *opts);

typedef struct trek_random_affine_opts {
    double degrees[2];        /* of the turn, clockwise */
    double translate[2];      /* most of width and of height by which it moves, either way, in whole pixels; 0 .. 1 */
    double scale[2];          /* both 0: 1 */
    double shear_x[2], shear_y[2]; /* degrees */
    trek_image_filter filter; /* default, unlike torchvision's: BILINEAR; NEAREST; no BICUBIC */
    double fill;              /* what comes from outside; default 0 */
} trek_random_affine_opts;

/* Around the middle; the size stays (RandomAffine; as torchvision does it with tensors). */
TREK_API trek_transform *trek_transform_random_affine(const trek_random_affine_opts *opts);
/* By an angle in [low, high] degrees, counter-clockwise (RandomRotation). */
TREK_API trek_transform *trek_transform_random_rotation(double low, double high, trek_image_filter filter, double fill);

/* --- values of pixels ------------------------------------------------------------- */

typedef struct trek_color_jitter_opts {
    double brightness, contrast, saturation; /* a factor in [max(0, 1 - x), 1 + x]; 0: left alone */
    double hue;                              /* a turn in [-x, x], x <= 0.5 of the circle */
} trek_color_jitter_opts;

/* Brightness, contrast, saturation and hue in a random order, each by a random factor (ColorJitter, of tensors). Images of 3
 * channels; of 1, to which saturation and hue do nothing. SHAPE for others. */
TREK_API trek_transform *trek_transform_color_jitter(const trek_color_jitter_opts *opts);
/* The four by given factors, in that order; 1, 1, 1, 0 leave an image alone. */
TREK_API trek_transform *trek_transform_adjust(double brightness, double contrast, double saturation, double hue);
/* 0.2989 R + 0.587 G + 0.114 B, in each of 1 or 3 channels. p: with this probability, where channels stay 3. */
TREK_API trek_transform *trek_transform_grayscale(int channels);
TREK_API trek_transform *trek_transform_random_grayscale(double p);
/* A Gaussian of kernel x kernel pixels (odd) and a random sigma in [low, high]; the image is mirrored at its edges. */
TREK_API trek_transform *trek_transform_gaussian_blur(int kernel, double low, double high);

typedef struct trek_random_erasing_opts {
    double p;        /* default 0.5 */
    double scale[2]; /* least and most of the area; default 0.02 and 0.33 */
    double ratio[2]; /* least and most height / width; default 0.3 and 3.3 */
    double value;    /* what is put there, in the image's units; default 0 */
    bool noise;      /* in its place standard normal numbers: f32 only (DTYPE) */
} trek_random_erasing_opts;

/* opts may be NULL. */
TREK_API trek_transform *trek_transform_random_erasing(const trek_random_erasing_opts *opts);

/* u8 to f32 in [0, 1]; f32 stays (ToTensor). */
TREK_API trek_transform *trek_transform_to_float(void);
/* (x - mean[c]) / std[c] for n channels, or for any number with n = 1; of u8, whose x is byte / 255, in one pass. */
TREK_API trek_transform *trek_transform_normalize(const double *mean, const double *std, int n);

/* --- mixing samples of a batch ------------------------------------------------------ */

typedef struct trek_mix_opts {
    double mixup;  /* alpha of Beta(alpha, alpha), which gives the part of the sample itself; 0: no mixup */
    double cutmix; /* the same of cutmix: a rectangle of the area 1 - lambda is the other's; 0: no cutmix */
    uint64_t seed;
} trek_mix_opts;

/* MixUp and CutMix (torchvision's v2): each sample is mixed with the one before it in the batch of all ranks, the first with
 * the last, by one lambda of the batch; with both alphas given, each batch is one or the other, evenly. `image` becomes f32
 * (u8 is divided by 255), `label`, i64 [n] in [0, classes), becomes f32 [n, classes], whose rows sum to 1. Random numbers are
 * keyed by seeds, epoch and the batch's first sample; a rank that has some of the rows fetches one more. Takes the dataset
 * over, also on failure. ARGUMENT for a label out of range. */
TREK_API trek_dataset *trek_dataset_mix(trek_dataset *dataset, const char *image, const char *label, int64_t classes,
                                        const trek_mix_opts *opts);

TREK_END

#endif
