/* SPDX-License-Identifier: Apache-2.0 */
/* Chains of transforms, their random numbers, the canvas, and the dataset that runs them. */
#include "data/transform_internal.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "data/pixels_sets.h"
#include "tensor/backend.h"
#include "tensor/dlpack.h"
#include "tensor/random_internal.h"

const trek_pixel_kernels *trek_pixels(bool is_float)
{
    switch (trek_cpu_backend()->isa) {
#if defined(TREK_WITH_AVX512)
    case 2: return trek_pixels_avx512(is_float);
#endif
#if defined(TREK_WITH_AVX2)
    case 1: return trek_pixels_avx2(is_float);
#endif
    default: return trek_pixels_baseline(is_float);
    }
}

/* --- random numbers -------------------------------------------------------------- */

/* The last step of SplitMix64 (Steele, Lea, Flood, 2014): each bit of x changes half of the result's bits. */
static uint64_t mixed(uint64_t x)
{
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

uint64_t trek_random_key(uint64_t loader_seed, uint64_t seed, int64_t epoch)
{
    uint64_t key = mixed(loader_seed + 0x9e3779b97f4a7c15u);
    return mixed(mixed(key ^ seed) + (uint64_t)epoch + 0x9e3779b97f4a7c15u);
}

static uint32_t next_word(trek_transform_random *r)
{
    if (r->left == 0) {
        trek_philox(r->key, r->sample, r->place, r->block++, r->words);
        r->left = 4;
    }
    return r->words[--r->left];
}

double trek_transform_uniform(trek_transform_random *random) { return (double)next_word(random) * 0x1p-32; }

double trek_random_between(trek_transform_random *random, double low, double high)
{
    return low + (high - low) * trek_transform_uniform(random);
}

int trek_random_below(trek_transform_random *random, int n) { return (int)((uint64_t)next_word(random) * (uint64_t)n >> 32); }

double trek_random_normal(trek_transform_random *random)
{
    double radius = sqrt(-2 * log1p(-trek_transform_uniform(random)));
    return radius * cos(6.283185307179586 * trek_transform_uniform(random));
}

/* --- the canvas -------------------------------------------------------------------- */

void *trek_canvas_spare(trek_canvas *canvas, int which, size_t bytes)
{
    if (canvas->bytes[which] < bytes) {
        trek_block_free(canvas->room[which]);
        canvas->room[which] = trek_block_alloc(bytes);
        canvas->bytes[which] = canvas->room[which] ? bytes : 0;
    }
    return canvas->room[which];
}

trek_status trek_canvas_space(trek_canvas *canvas, trek_image *form)
{
    const trek_image *target = &canvas->target;
    if (canvas->last && target->data && canvas->image.data != target->data && target->channels == form->channels &&
        target->height == form->height && target->width == form->width && target->is_float == form->is_float)
        form->data = target->data;
    else
        form->data = trek_canvas_spare(canvas, canvas->image.data == canvas->room[0], trek_image_bytes(form));
    return form->data ? TREK_OK : TREK_ERR_MEMORY;
}

trek_status trek_canvas_write(trek_canvas *canvas)
{
    if (canvas->image.writable)
        return TREK_OK;
    trek_image copy = canvas->image;
    trek_status status = trek_canvas_space(canvas, &copy);
    if (status != TREK_OK)
        return status;
    memcpy(copy.data, canvas->image.data, trek_image_bytes(&copy));
    trek_canvas_take(canvas, &copy);
    return TREK_OK;
}

void trek_canvas_end(trek_canvas *canvas)
{
    for (int k = 0; k < TREK_CANVAS_ROOMS; k++)
        trek_block_free(canvas->room[k]);
}

/* --- transforms ---------------------------------------------------------------------- */

void *trek_transform_new(const trek_transform_class *klass)
{
    trek_transform *transform = trek_calloc(1, klass->size);
    if (transform)
        transform->klass = klass;
    return transform;
}

void trek_transform_free(trek_transform **transform)
{
    if (!transform || !*transform)
        return;
    trek_transform *t = *transform;
    *transform = NULL;
    if (t->klass->free)
        t->klass->free(t);
    trek_free(t);
}

/* Runs number `child` of the current transform's children; the current transform's own random stream continues
 * afterwards. */
static trek_status run_child(const trek_transform *child, int number, bool last, trek_canvas *canvas)
{
    trek_transform_random own = canvas->random;
    const char *name = canvas->name;
    bool was_last = canvas->last;
    canvas->random.place = own.place * 0x9e3779b1u + (uint32_t)number + 1;
    canvas->random.block = 0;
    canvas->random.left = 0;
    canvas->name = child->klass->name;
    canvas->last = was_last && last;
    trek_status status = child->klass->apply(child, canvas);
    canvas->random = own;
    canvas->name = name;
    canvas->last = was_last;
    return status;
}

typedef struct group {
    trek_transform base;
    int n;
    trek_transform **children;
    double p;        /* of random_apply */
    double *weights; /* cumulative sums for random_choice; NULL if all are equally likely */
} group;

static void group_free(trek_transform *self)
{
    group *g = (group *)self;
    for (int k = 0; k < g->n; k++)
        trek_transform_free(&g->children[k]);
    trek_free(g->children);
    trek_free(g->weights);
}

/* Takes ownership of the children, on failure as well. */
static group *group_new(const trek_transform_class *klass, int n, trek_transform *const *children)
{
    bool all = n == 0 || children != NULL;
    for (int k = 0; k < n && children; k++)
        all &= children[k] != NULL;
    group *g = all && n >= 0 ? trek_transform_new(klass) : NULL;
    if (!all || n < 0)
        trek_fail_missing(klass->name, "transform");
    trek_transform **list = g ? trek_calloc((size_t)n + 1, sizeof *list) : NULL;
    if (list) {
        if (n > 0)
            memcpy(list, children, (size_t)n * sizeof *list);
        g->children = list;
        g->n = n;
        return g;
    }
    trek_free(g);
    for (int k = 0; k < n && children; k++) {
        trek_transform *child = children[k];
        trek_transform_free(&child);
    }
    return NULL;
}

static trek_status chain_apply(const trek_transform *self, trek_canvas *canvas)
{
    const group *g = (const group *)self;
    trek_status status = TREK_OK;
    for (int k = 0; k < g->n && status == TREK_OK; k++)
        status = run_child(g->children[k], k, k == g->n - 1, canvas);
    return status;
}

static const trek_transform_class chain_class = { "transform_chain", sizeof(group), chain_apply, group_free };

trek_transform *trek_transform_chain(trek_transform *const *transforms, int n)
{
    return (trek_transform *)group_new(&chain_class, n, transforms);
}

static trek_status apply_apply(const trek_transform *self, trek_canvas *canvas)
{
    const group *g = (const group *)self;
    return trek_transform_uniform(&canvas->random) < g->p ? run_child(g->children[0], 0, true, canvas) : TREK_OK;
}

static const trek_transform_class apply_class = { "transform_random_apply", sizeof(group), apply_apply, group_free };

trek_transform *trek_transform_random_apply(trek_transform *transform, double p)
{
    group *g = group_new(&apply_class, 1, &transform);
    if (!g)
        return NULL;
    g->p = p;
    if (p >= 0 && p <= 1)
        return &g->base;
    trek_transform *t = &g->base;
    trek_transform_free(&t);
    return trek_transform_refused("transform_random_apply: p: %g; must be 0 to 1", p);
}

static trek_status choice_apply(const trek_transform *self, trek_canvas *canvas)
{
    const group *g = (const group *)self;
    int which = 0;
    if (g->weights) {
        double u = trek_random_between(&canvas->random, 0, g->weights[g->n - 1]);
        while (which < g->n - 1 && u >= g->weights[which])
            which++;
    } else {
        which = trek_random_below(&canvas->random, g->n);
    }
    return run_child(g->children[which], which, true, canvas);
}

static const trek_transform_class choice_class = { "transform_random_choice", sizeof(group), choice_apply, group_free };

static trek_status choice_weigh(group *g, const double *weights)
{
    double sum = 0;
    g->weights = trek_calloc((size_t)g->n, sizeof *g->weights);
    for (int k = 0; g->weights && k < g->n; k++) {
        if (!(weights[k] >= 0) || isinf(weights[k]))
            return trek_fail(TREK_ERR_ARGUMENT, "transform_random_choice: weight: %g; must be finite and not negative",
                             weights[k]);
        g->weights[k] = sum += weights[k];
    }
    if (g->weights && !(sum > 0))
        return trek_fail(TREK_ERR_ARGUMENT, "transform_random_choice: weights: all are 0; at least one must be above 0");
    return g->weights ? TREK_OK : TREK_ERR_MEMORY;
}

trek_transform *trek_transform_random_choice(trek_transform *const *transforms, const double *weights, int n)
{
    if (n < 1) {
        trek_fail_missing("transform_random_choice", "transform");
        return NULL;
    }
    group *g = group_new(&choice_class, n, transforms);
    trek_transform *t = g ? &g->base : NULL;
    if (g && weights && choice_weigh(g, weights) != TREK_OK)
        trek_transform_free(&t);
    return t;
}

/* --- a program's own ------------------------------------------------------------------- */

typedef struct own {
    trek_transform base;
    trek_transform_fn fn;
    void (*release)(void *arg);
    void *arg;
} own;

static void own_free(trek_transform *self)
{
    own *o = (own *)self;
    if (o->release)
        o->release(o->arg);
}

/* Views a tensor [C, H, W] as an image; the tensor keeps the memory. */
static trek_status image_of(const trek_tensor *x, const char *what, trek_image *image)
{
    char text[TREK_SHAPE_TEXT];
    trek_shape shape = trek_tensor_shape(x);
    trek_dtype dtype = trek_tensor_dtype(x);
    bool good = shape.ndim == 3;
    for (int d = 0; good && d < 3; d++)
        good = shape.sizes[d] >= 1 && shape.sizes[d] <= 1 << 24;
    if (!good || (double)shape.sizes[0] * (double)shape.sizes[1] * (double)shape.sizes[2] > (double)(1 << 30))
        return trek_fail(TREK_ERR_SHAPE, "%s: image: shape %s; must be [channels, height, width]", what,
                         trek_shape_format(shape, text, sizeof text));
    if (dtype != TREK_U8 && dtype != TREK_F32)
        return trek_fail(TREK_ERR_DTYPE, "%s: image: dtype %s; must be u8 or f32", what, trek_dtype_name(dtype));
    *image = (trek_image){ (int)shape.sizes[0], (int)shape.sizes[1], (int)shape.sizes[2], dtype == TREK_F32, false,
                           trek_tensor_data(x) };
    return TREK_OK;
}

static trek_shape image_shape(const trek_image *image) { return trek_dims(image->channels, image->height, image->width); }

static trek_status own_apply(const trek_transform *self, trek_canvas *canvas)
{
    const own *o = (const own *)self;
    trek_status status = trek_canvas_write(canvas);
    if (status != TREK_OK)
        return status;
    trek_dtype dtype = canvas->image.is_float ? TREK_F32 : TREK_U8;
    trek_tensor *image = trek_tensor_wrap(canvas->image.data, image_shape(&canvas->image), dtype, NULL, NULL);
    if (!image)
        return trek_status_or(TREK_ERR_MEMORY);
    trek_tensor *given = o->fn(image, &canvas->random, o->arg), *made = given ? trek_tensor_contiguous(given) : NULL;
    trek_image form;
    if (made)
        status = image_of(made, "transform_function", &form);
    else
        status = trek_fail_after(TREK_ERR_CALLBACK, "transform_function: the function returned no image; it must return one");
    if (status == TREK_OK && form.data != canvas->image.data) {
        const void *from = form.data;
        status = from ? trek_canvas_space(canvas, &form)
                      : trek_fail(TREK_ERR_DEVICE,
                                  "transform_function: the function returned an image that is not in host memory; must be");
        if (status == TREK_OK)
            memcpy(form.data, from, trek_image_bytes(&form));
    }
    if (status == TREK_OK)
        trek_canvas_take(canvas, &form);
    trek_tensor_release(made);
    trek_tensor_release(given);
    trek_tensor_release(image);
    return status;
}

static const trek_transform_class own_class = { "transform_function", sizeof(own), own_apply, own_free };

trek_transform *trek_transform_function(trek_transform_fn fn, void *arg, void (*release)(void *arg))
{
    own *o = fn ? trek_transform_new(&own_class) : NULL;
    if (!fn)
        trek_fail_missing("transform_function", "function");
    if (o)
        *o = (own){ { &own_class }, fn, release, arg };
    else if (release)
        release(arg);
    return (trek_transform *)o;
}

/* --- running them ------------------------------------------------------------------------- */

/* Runs the chain on contiguous `x`, whose memory is not written. The result is canvas->image. */
static trek_status run(const trek_transform *t, trek_canvas *canvas, const trek_tensor *x, uint64_t key, int64_t sample)
{
    trek_status status = image_of(x, t->klass->name, &canvas->image);
    canvas->random = (trek_transform_random){ .key = key, .sample = (uint64_t)sample };
    canvas->name = t->klass->name;
    canvas->last = true;
    return status == TREK_OK ? t->klass->apply(t, canvas) : status;
}

trek_tensor *trek_transform_apply(const trek_transform *transform, trek_tensor *image, uint64_t seed, int64_t epoch,
                                  int64_t sample)
{
    if (!transform || !image) {
        trek_fail_missing("transform_apply", transform ? "image" : "transform");
        return NULL;
    }
    if (!trek_tensor_data(image) && trek_tensor_numel(image) > 0)
        return trek_fail_null(TREK_ERR_DEVICE, "transform_apply: image: it is not in host memory; must be");
    trek_canvas canvas = { 0 };
    trek_tensor *x = trek_tensor_contiguous(image), *made = NULL;
    if (x && run(transform, &canvas, x, trek_random_key(0, seed, epoch), sample) == TREK_OK)
        made = trek_tensor_from_data(canvas.image.data, image_shape(&canvas.image), canvas.image.is_float ? TREK_F32 : TREK_U8,
                                     trek_cpu(0));
    trek_canvas_end(&canvas);
    trek_tensor_release(x);
    return made;
}

/* --- the dataset ----------------------------------------------------------------------------- */

typedef struct transformed {
    trek_around around;
    trek_transform *transform;
    int field;
    uint64_t seed;
} transformed;

/* Returns row i of a batch: its memory is in *room. The first row makes the batch, and the others have to have its
 * form. */
static trek_status row_of(const transformed *s, int field, const trek_fetch *fetch, int64_t i, trek_shape shape, trek_dtype dtype,
                          trek_tensor **batch, char **room)
{
    char text[TREK_SHAPE_TEXT], other[TREK_SHAPE_TEXT];
    if (i == 0 && !*batch)
        *batch = trek_dataset_tensor(fetch->n, shape, dtype);
    if (!*batch)
        return trek_status_or(TREK_ERR_MEMORY);
    trek_shape whole = trek_tensor_shape(*batch);
    trek_shape have = trek_shape_make(whole.sizes + 1, whole.ndim - 1);
    if (!trek_shape_equal(have, shape) || trek_tensor_dtype(*batch) != dtype)
        return trek_fail(TREK_ERR_SHAPE,
                         "dataset %s: samples %" PRId64 " and %" PRId64
                         " of \"%s\" differ: %s %s and %s %s; a batch needs one shape and dtype, which a crop or a resize gives",
                         s->around.inner->klass->name, fetch->indices[0], fetch->indices[i], s->around.base.fields[field],
                         trek_dtype_name(trek_tensor_dtype(*batch)), trek_shape_format(have, text, sizeof text),
                         trek_dtype_name(dtype),
                         trek_shape_format(shape, other, sizeof other));
    *room = (char *)trek_tensor_data(*batch) + (size_t)i * (size_t)trek_shape_numel(shape) * trek_dtype_size(dtype);
    return TREK_OK;
}

static trek_status copy_row(const transformed *s, int field, const trek_fetch *fetch, int64_t i, trek_tensor *one,
                            trek_tensor **batch)
{
    trek_shape shape = trek_tensor_shape(one);
    trek_dtype dtype = trek_tensor_dtype(one);
    char *room = NULL;
    trek_status status = row_of(s, field, fetch, i, trek_shape_make(shape.sizes + 1, shape.ndim - 1), dtype, batch, &room);
    return status == TREK_OK ? trek_tensor_to_host(one, dtype, room, (size_t)trek_tensor_numel(one) * trek_dtype_size(dtype))
                             : status;
}

static trek_status transform_row(const transformed *s, const trek_fetch *fetch, int64_t i, trek_tensor *one, trek_canvas *canvas,
                                 trek_tensor **batch)
{
    trek_shape shape = trek_tensor_shape(one);
    trek_tensor *image = trek_tensor_view(one, trek_shape_make(shape.sizes + 1, shape.ndim - 1));
    trek_tensor *x = image ? trek_tensor_contiguous(image) : NULL;
    trek_status status = x ? TREK_OK : trek_status_or(TREK_ERR_MEMORY);
    if (*batch && canvas->target.data) /* the first one has shown its form */
        canvas->target.data = (char *)trek_tensor_data(*batch) + (size_t)i * trek_image_bytes(&canvas->target);
    if (status == TREK_OK)
        status = run(s->transform, canvas, x, trek_random_key(fetch->seed, s->seed, fetch->epoch), fetch->indices[i]);
    char *room = NULL;
    if (status == TREK_OK)
        status = row_of(s, s->field, fetch, i, image_shape(&canvas->image), canvas->image.is_float ? TREK_F32 : TREK_U8, batch,
                        &room);
    if (status == TREK_OK && room != canvas->image.data)
        memcpy(room, canvas->image.data, trek_image_bytes(&canvas->image));
    if (i == 0) {
        canvas->target = canvas->image;
        canvas->target.data = room;
    }
    trek_tensor_release(x);
    trek_tensor_release(image);
    return status;
}

static trek_status transformed_get(trek_dataset *self, const trek_fetch *fetch, trek_tensor **out)
{
    transformed *s = (transformed *)self;
    trek_canvas canvas = { 0 };
    trek_tensor **one = trek_tensors_new(self->n_fields);
    trek_status status = one ? TREK_OK : TREK_ERR_MEMORY;
    for (int64_t i = 0; i < fetch->n && status == TREK_OK; i++) {
        trek_fetch each = *fetch;
        each.indices = fetch->indices + i;
        each.n = 1;
        if (!fetch->batch) {
            each.batch = fetch->indices;
            each.n_batch = fetch->n;
        }
        status = trek_dataset_fetch(s->around.inner, &each, one);
        for (int k = 0; k < self->n_fields && status == TREK_OK; k++)
            status = k == s->field ? transform_row(s, fetch, i, one[k], &canvas, &out[k])
                : copy_row(s, k, fetch, i, one[k], &out[k]);
        trek_tensors_clear(one, self->n_fields);
    }
    trek_free(one);
    trek_canvas_end(&canvas);
    return status;
}

/* One image at a time, because images of a stream may differ in size before the transforms. */
static trek_status transformed_next(trek_dataset *self, void *reading, int64_t n, trek_tensor **out, int64_t *got)
{
    (void)n;
    transformed *s = (transformed *)self;
    trek_canvas canvas = { 0 };
    int64_t number = trek_stream_position(reading);
    trek_fetch of = { .indices = &number, .n = 1 };
    trek_stream_key(reading, &of.epoch, &of.seed);
    trek_tensor **one = trek_tensors_new(self->n_fields);
    trek_status status = one ? trek_stream_next(reading, 1, one, got) : TREK_ERR_MEMORY;
    for (int k = 0; k < self->n_fields && status == TREK_OK && *got == 1; k++)
        if (k == s->field)
            status = transform_row(s, &of, 0, one[k], &canvas, &out[k]);
        else
            out[k] = trek_tensor_retain(one[k]);
    trek_tensors_clear(one, one ? self->n_fields : 0);
    trek_free(one);
    trek_canvas_end(&canvas);
    return status;
}

static void transformed_free(trek_dataset *self)
{
    trek_around_free(self);
    trek_transform_free(&((transformed *)self)->transform);
}

static const trek_stream_class transformed_stream = {
    .open = trek_around_open, .next = transformed_next, .skip = trek_around_skip, .close = trek_around_close,
};

static const trek_dataset_class transformed_class = {
    .name = "transform", .size = sizeof(transformed), .length = trek_around_length, .get = transformed_get,
    .free = transformed_free, .stream = &transformed_stream,
};

trek_dataset *trek_dataset_transform(trek_dataset *dataset, const char *field, trek_transform *transform, uint64_t seed)
{
    transformed *s = (transformed *)trek_dataset_around(&transformed_class, dataset, "dataset_transform");
    trek_dataset *base = (trek_dataset *)s;
    if (!s) {
        trek_transform_free(&transform);
        return NULL;
    }
    s->transform = transform;
    s->seed = seed;
    s->field = transform ? trek_dataset_field(base, field) : -1;
    if (!transform)
        trek_fail_missing("dataset_transform", "transform");
    if (s->field < 0)
        trek_dataset_free(&base);
    return base;
}
