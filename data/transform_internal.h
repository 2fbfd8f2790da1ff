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
    bool is_float;               /* f32, else u8 */
    bool writable;               /* the canvas's own memory, or what may be written all the same */
    void *data;
} trek_image;

struct trek_transform_random {
    uint64_t key, sample;  /* key: of seeds and epoch */
    uint32_t place, block; /* place: in the chain */
    uint32_t words[4];
    int left;
};

enum { TREK_CANVAS_ROOMS = 5 };

/* Its memory is used again for image after image. */
typedef struct trek_canvas {
    trek_image image;             /* the present one */
    trek_transform_random random; /* of the present transform */
    const char *name;             /* of it */
    void *room[TREK_CANVAS_ROOMS]; /* two for images, in turn; the others spare */
    size_t bytes[TREK_CANVAS_ROOMS];
    trek_image target;            /* where the last image had better be made, if it is of this form; data NULL: nowhere */
    bool last;                    /* the present transform makes the last one */
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

/* Zeroed; NULL and MEMORY. */
void *trek_transform_new(const trek_transform_class *klass);
void trek_canvas_end(trek_canvas *canvas);

/* Memory of at least `bytes`, which keeps nothing; NULL and MEMORY. */
void *trek_canvas_spare(trek_canvas *canvas, int which, size_t bytes);
/* Room for an image of this form, beside the present one, in form->data; MEMORY. */
trek_status trek_canvas_room(trek_canvas *canvas, trek_image *form);
/* What was made there is the present image. */
static inline void trek_canvas_take(trek_canvas *canvas, const trek_image *made)
{
    canvas->image = *made;
    canvas->image.writable = true;
}
/* Makes the present image one that may be written; MEMORY. */
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

/* What a constructor says of numbers out of range. */
#define trek_transform_refused(...) ((trek_transform *)trek_fail_null(TREK_ERR_ARGUMENT, __VA_ARGS__))

#endif
