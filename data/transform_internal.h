/* SPDX-License-Identifier: Apache-2.0 */
/* What transforms are made of: a class, and the canvas on which those of a chain work one after the other. */
#ifndef TREK_DATA_TRANSFORM_INTERNAL_H
#define TREK_DATA_TRANSFORM_INTERNAL_H

#include "data/dataset_internal.h"
#include "data/pixels.h"
#include "data/transform.h"

/* Planes of rows, without gaps. */
typedef struct trek_image {
    int channels, height, width; /* >= 1 */
    bool is_float;               /* f32; otherwise u8 */
    bool writable;               /* the memory is the canvas's own, or may be written for another reason */
    void *data;
} trek_image;

struct trek_transform_random {
    uint64_t key, sample;  /* key: from seeds and epoch */
    uint32_t place, block; /* place: in the chain */
    uint32_t words[4];
    int left;
};

enum { TREK_CANVAS_ROOMS = 5 };

/* Its memory is reused for image after image. */
typedef struct trek_canvas {
    trek_image image;             /* the current one */
    trek_transform_random random; /* of the current transform */
    const char *name;             /* of the current transform */
    void *room[TREK_CANVAS_ROOMS]; /* two for images, used in turn; the others are spare */
    size_t bytes[TREK_CANVAS_ROOMS];
    trek_image target;            /* where the last image should be made if it has this form; data is NULL if there is no such
                                   * place */
    bool last;                    /* the current transform makes the last image */
} trek_canvas;

typedef struct trek_transform_class {
    const char *name;
    size_t size;
    trek_status (*apply)(const trek_transform *self, trek_canvas *canvas);
    void (*free)(trek_transform *self); /* may be NULL */
} trek_transform_class;

struct trek_transform {
    const trek_transform_class *klass;
};

/* Returns zeroed memory, or NULL with MEMORY. */
void *trek_transform_new(const trek_transform_class *klass);
void trek_canvas_end(trek_canvas *canvas);

/* Returns memory of at least `bytes`, whose content is not kept, or NULL with MEMORY. */
void *trek_canvas_spare(trek_canvas *canvas, int which, size_t bytes);
/* Provides memory for another image of this form, apart from that of the current image, in form->data. Fails with MEMORY. */
trek_status trek_canvas_space(trek_canvas *canvas, trek_image *form);
/* Makes the new image the current one. */
static inline void trek_canvas_take(trek_canvas *canvas, const trek_image *made)
{
    canvas->image = *made;
    canvas->image.writable = true;
}
/* Makes the current image writable. Fails with MEMORY. */
trek_status trek_canvas_write(trek_canvas *canvas);

static inline ptrdiff_t trek_image_plane(const trek_image *image) { return (ptrdiff_t)image->height * image->width; }
static inline size_t trek_image_item(const trek_image *image) { return image->is_float ? sizeof(float) : 1; }
static inline size_t trek_image_bytes(const trek_image *image)
{
    return (size_t)image->channels * (size_t)trek_image_plane(image) * trek_image_item(image);
}
static inline void *trek_image_at(const trek_image *image, int channel)
{
    return (char *)image->data + (size_t)channel * (size_t)trek_image_plane(image) * trek_image_item(image);
}

double trek_random_between(trek_transform_random *random, double low, double high);
int trek_random_below(trek_transform_random *random, int n); /* 0 .. n - 1 */
double trek_random_normal(trek_transform_random *random);
uint64_t trek_random_key(uint64_t loader_seed, uint64_t seed, int64_t epoch);

/* The failure of a constructor whose numbers are out of range. */
#define trek_transform_refused(...) ((trek_transform *)trek_fail_null(TREK_ERR_ARGUMENT, __VA_ARGS__))

#endif
