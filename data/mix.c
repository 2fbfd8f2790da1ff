/* SPDX-License-Identifier: Apache-2.0 */
/* MixUp (Zhang et al., 2018) and CutMix (Yun et al., 2019): samples of a batch mixed in pairs, with their labels. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "data/transform_internal.h"
#include "tensor/dtypes.h"
#include "tensor/layout.h"
#include "tensor/option_internal.h"
#include "tensor/shapes.h"

typedef struct mixed {
    trek_around around;
    int image, label;
    int64_t classes;
    trek_mix_opts opts;
} mixed;

/* How a batch is mixed. */
typedef struct mixture {
    bool is_cut;
    double lambda;
    double x, y, side; /* the rectangle's centre, and its fraction of each side, from 0 to 1 */
} mixture;

/* Marsaglia and Tsang, "A simple method for generating gamma variables", 2000. */
static double gamma_of(double shape, trek_transform_random *r)
{
    double boost = shape < 1 ? pow(1 - trek_transform_uniform(r), 1 / shape) : 1;
    double d = (shape < 1 ? shape + 1 : shape) - 1.0 / 3, c = 1 / sqrt(9 * d);
    for (;;) {
        double x = trek_random_normal(r), v = 1 + c * x;
        v = v * v * v;
        if (v > 0 && log1p(-trek_transform_uniform(r)) < 0.5 * x * x + d - d * v + d * log(v))
            return boost * d * v;
    }
}

static double beta_of(double alpha, trek_transform_random *r)
{
    double a = gamma_of(alpha, r), b = gamma_of(alpha, r);
    return a + b > 0 ? a / (a + b) : trek_transform_uniform(r) < 0.5; /* for very small alphas: either end */
}

static mixture draw(const mixed *s, const trek_fetch *fetch, int64_t first)
{
    trek_transform_random r = { .key = trek_random_key(fetch->seed, s->opts.seed, fetch->epoch), .sample = (uint64_t)first,
                                .place = 0x6d697875u };
    mixture m = { 0 };
    double u = trek_transform_uniform(&r);
    m.is_cut = s->opts.cutmix > 0 && (s->opts.mixup == 0 || u < 0.5);
    m.lambda = beta_of(m.is_cut ? s->opts.cutmix : s->opts.mixup, &r);
    m.x = trek_transform_uniform(&r);
    m.y = trek_transform_uniform(&r);
    m.side = sqrt(1 - m.lambda);
    return m;
}

/* Computes [*first, *end) of a side of n pixels. */
static void cut_side(double middle, double part, int64_t n, int64_t *first, int64_t *end)
{
    int64_t at = (int64_t)(middle * (double)n), half = (int64_t)(0.5 * part * (double)n);
    *first = at - half > 0 ? at - half : 0;
    *end = at + half < n ? at + half : n;
}

/* Mixes one image each from x and y. Returns the lambda of their labels. */
static double mix_pair(mixture m, trek_shape shape, bool is_float, const void *x, const void *y, float *to)
{
    const trek_pixel_kernels *kernels = trek_pixels(is_float);
    int64_t n = trek_shape_numel(shape), height = shape.sizes[2], width = shape.sizes[3];
    if (!m.is_cut) {
        kernels->mix(x, y, to, n, (float)m.lambda, (float)(1 - m.lambda));
        return m.lambda;
    }
    int64_t top, bottom, left, right;
    cut_side(m.y, m.side, height, &top, &bottom);
    cut_side(m.x, m.side, width, &left, &right);
    kernels->normalize(x, to, n, 0, 1);
    for (int64_t c = 0; c < shape.sizes[1]; c++)
        for (int64_t row = top; row < bottom; row++) {
            int64_t at = (c * height + row) * width + left;
            kernels->normalize((const char *)y + (size_t)at * (is_float ? sizeof(float) : 1), to + at, right - left, 0, 1);
        }
    return 1 - (double)((bottom - top) * (right - left)) / (double)(height * width);
}

/* Returns the first position of sample `index` in the batch. Even if a sample occurs twice, all ranks find the same
 * one. */
static int64_t place_of(const int64_t *batch, int64_t n, int64_t index)
{
    int64_t at = 0;
    while (at < n && batch[at] != index)
        at++;
    return at;
}

/* Lists the samples to fetch, the wanted ones first, and for each wanted one the position of its partner in the list. */
static trek_status list_partners(const trek_fetch *fetch, int64_t *list, int64_t *partner, int64_t *count)
{
    const int64_t *batch = fetch->batch ? fetch->batch : fetch->indices;
    int64_t n = fetch->batch ? fetch->n_batch : fetch->n;
    *count = fetch->n;
    memcpy(list, fetch->indices, (size_t)fetch->n * sizeof *list);
    for (int64_t i = 0; i < fetch->n; i++) {
        int64_t at = place_of(batch, n, fetch->indices[i]);
        if (at == n)
            return trek_fail(TREK_ERR_ARGUMENT, "dataset mix: index: sample %" PRId64 " is not in its batch", fetch->indices[i]);
        int64_t other = batch[at > 0 ? at - 1 : n - 1];
        partner[i] = i > 0 && list[i - 1] == other ? i - 1 : place_of(list, *count, other);
        if (partner[i] == *count)
            list[(*count)++] = other;
    }
    return TREK_OK;
}

static trek_status mix_labels(const mixed *s, const int64_t *labels, int64_t own, int64_t other, double lambda, float *row)
{
    int64_t pair[2] = { labels[own], labels[other] };
    for (int k = 0; k < 2; k++)
        if (pair[k] < 0 || pair[k] >= s->classes)
            return trek_fail(TREK_ERR_ARGUMENT,
                             "dataset mix: label: %" PRId64 "; must be below %" PRId64 ", the number of classes", pair[k],
                             s->classes);
    memset(row, 0, (size_t)s->classes * sizeof *row);
    row[pair[0]] += (float)lambda;
    row[pair[1]] += (float)(1 - lambda);
    return TREK_OK;
}

static trek_status mix_check(const mixed *s, trek_tensor *const *all, int64_t count)
{
    char text[TREK_SHAPE_TEXT];
    trek_shape images = trek_tensor_shape(all[s->image]), labels = trek_tensor_shape(all[s->label]);
    trek_dtype dtype = trek_tensor_dtype(all[s->image]);
    if (images.ndim != 4 || trek_shape_numel(images) == 0)
        return trek_fail(TREK_ERR_SHAPE, "dataset mix: images: %s; must be [n, channels, height, width]",
                         trek_shape_format(images, text, sizeof text));
    if (labels.ndim != 1 || labels.sizes[0] != count)
        return trek_fail(TREK_ERR_SHAPE, "dataset mix: labels: %s; must be [n]", trek_shape_format(labels, text, sizeof text));
    if ((dtype != TREK_U8 && dtype != TREK_F32) || trek_tensor_dtype(all[s->label]) != TREK_I64)
        return trek_fail(TREK_ERR_DTYPE, "dataset mix: images of %s and labels of %s; must be u8 or f32, and i64",
                         trek_dtype_name(dtype), trek_dtype_name(trek_tensor_dtype(all[s->label])));
    return TREK_OK;
}

static trek_status mix_rows(const mixed *s, const trek_fetch *fetch, const int64_t *partner, trek_tensor *const *all,
                            trek_tensor **out)
{
    const int64_t *batch = fetch->batch ? fetch->batch : fetch->indices;
    trek_shape shape = trek_tensor_shape(all[s->image]);
    trek_shape sample = trek_shape_make(shape.sizes + 1, 3);
    out[s->image] = trek_dataset_tensor(fetch->n, sample, TREK_F32);
    out[s->label] = out[s->image] ? trek_dataset_tensor(fetch->n, trek_dims(s->classes), TREK_F32) : NULL;
    if (!out[s->label])
        return trek_status_or(TREK_ERR_MEMORY);
    mixture m = draw(s, fetch, batch[0]);
    bool is_float = trek_tensor_dtype(all[s->image]) == TREK_F32;
    int64_t pixels = trek_shape_numel(sample);
    size_t bytes = (size_t)pixels * (is_float ? sizeof(float) : 1);
    const char *images = trek_tensor_data(all[s->image]);
    const int64_t *labels = trek_tensor_data(all[s->label]);
    shape.sizes[0] = 1;
    trek_status status = TREK_OK;
    for (int64_t i = 0; i < fetch->n && status == TREK_OK; i++) {
        double lambda = mix_pair(m, shape, is_float, images + (size_t)i * bytes, images + (size_t)partner[i] * bytes,
                                 (float *)trek_tensor_data(out[s->image]) + i * pixels);
        status = mix_labels(s, labels, i, partner[i], lambda, (float *)trek_tensor_data(out[s->label]) + i * s->classes);
    }
    return status;
}

/* The other fields are those of the wanted samples. */
static trek_status first_rows(const trek_fetch *fetch, trek_tensor *all, trek_tensor **out)
{
    trek_shape shape = trek_tensor_shape(all);
    *out = trek_dataset_tensor(fetch->n, trek_shape_make(shape.sizes + 1, shape.ndim - 1), trek_tensor_dtype(all));
    if (!*out)
        return trek_status_or(TREK_ERR_MEMORY);
    size_t bytes = (size_t)trek_tensor_numel(*out) * trek_dtype_size(trek_tensor_dtype(all));
    if (bytes > 0)
        memcpy(trek_tensor_data(*out), trek_tensor_data(all), bytes);
    return TREK_OK;
}

static trek_status mixed_get(trek_dataset *self, const trek_fetch *fetch, trek_tensor **out)
{
    mixed *s = (mixed *)self;
    int64_t count = 0;
    int64_t *list = trek_calloc((size_t)fetch->n, 3 * sizeof *list), *partner = list ? list + 2 * fetch->n : NULL;
    trek_tensor **all = list ? trek_calloc((size_t)s->around.base.n_fields, sizeof *all) : NULL;
    trek_status status = all ? list_partners(fetch, list, partner, &count) : TREK_ERR_MEMORY;
    trek_fetch wider = *fetch;
    wider.indices = list;
    wider.n = count;
    if (status == TREK_OK)
        status = trek_dataset_fetch(s->around.inner, &wider, all);
    for (int k = 0; k < s->around.base.n_fields && status == TREK_OK; k++) {
        trek_tensor *rows = trek_tensor_contiguous(all[k]);
        trek_tensor_release(all[k]);
        all[k] = rows;
        status = rows ? TREK_OK : trek_status_or(TREK_ERR_MEMORY);
    }
    if (status == TREK_OK)
        status = mix_check(s, all, count);
    if (status == TREK_OK)
        status = mix_rows(s, fetch, partner, all, out);
    for (int k = 0; all && k < s->around.base.n_fields; k++) {
        if (status == TREK_OK && k != s->image && k != s->label)
            status = first_rows(fetch, all[k], &out[k]);
        trek_tensor_release(all[k]);
    }
    trek_free(all);
    trek_free(list);
    return status;
}

static const trek_dataset_class mixed_class = {
    .name = "mix", .size = sizeof(mixed), .length = trek_around_length, .get = mixed_get, .free = trek_around_free,
        .needs_batch = true,
};

static trek_status mix_options(const trek_mix_opts *o, int64_t classes)
{
    if (!o)
        return trek_fail_missing("dataset_mix", "options");
    double mixup = trek_option(o->mixup, 0), cutmix = trek_option(o->cutmix, 0);
    if (!(mixup >= 0 && mixup < 1e6 && cutmix >= 0 && cutmix < 1e6 && (mixup > 0 || cutmix > 0)) || classes < 1 ||
        classes > INT32_MAX)
        return trek_fail(TREK_ERR_ARGUMENT,
                         "dataset_mix: .mixup: %g, .cutmix: %g, classes: %" PRId64
                         "; one of the first two must be above 0, and classes at least 1",
                         mixup, cutmix, classes);
    return TREK_OK;
}

trek_dataset *trek_dataset_mix(trek_dataset *dataset, const char *image, const char *label, int64_t classes,
                               const trek_mix_opts *opts)
{
    mixed *s = (mixed *)trek_dataset_around(&mixed_class, dataset, "dataset_mix");
    trek_dataset *base = (trek_dataset *)s;
    if (!s)
        return NULL;
    s->image = trek_dataset_field(base, image);
    s->label = s->image >= 0 ? trek_dataset_field(base, label) : -1;
    s->classes = classes;
    bool fits = s->label >= 0;
    if (fits && s->image == s->label)
        fits = trek_fail(TREK_ERR_ARGUMENT, "dataset_mix: fields: \"%s\" cannot hold both images and labels", image) == TREK_OK;
    if (!fits || mix_options(opts, classes) != TREK_OK)
        trek_dataset_free(&base);
    else
        s->opts = (trek_mix_opts){ trek_option(opts->mixup, 0), trek_option(opts->cutmix, 0), opts->seed };
    return base;
}
