/* SPDX-License-Identifier: Apache-2.0 */
/* Labelled images in IDX files (MNIST and datasets in its format), and what all datasets of byte images share. */
#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <unistd.h>

#include "data/idx_internal.h"
#include "data/image_sets.h"
#include "tensor/shapes.h"

const char *const trek_image_fields[2] = { "image", "label" };

trek_status trek_byte_images_get(const trek_byte_images *images, const trek_fetch *fetch, trek_tensor **out)
{
    out[0] = trek_dataset_tensor(fetch->n, images->sample, TREK_F32);
    out[1] = trek_dataset_tensor(fetch->n, trek_dims_none(), TREK_I64);
    if (!out[0] || !out[1])
        return trek_status_or(TREK_ERR_MEMORY);
    int64_t pixels = trek_shape_numel(images->sample);
    float *to = trek_tensor_data(out[0]);
    int64_t *labels = trek_tensor_data(out[1]);
    for (int64_t i = 0; i < fetch->n; i++, to += pixels) {
        const unsigned char *from = images->pixels + (size_t)fetch->indices[i] * images->pixel_stride;
        for (int64_t p = 0; p < pixels; p++)
            to[p] = (float)from[p] / 255.0f;
        labels[i] = images->labels[(size_t)fetch->indices[i] * images->label_stride];
    }
    return TREK_OK;
}

typedef struct idx_dataset {
    trek_dataset base;
    trek_idx images, labels;
    trek_byte_images view;
} idx_dataset;

static int64_t idx_length(const trek_dataset *self) { return ((const idx_dataset *)self)->images.shape.sizes[0]; }

static trek_status idx_get(trek_dataset *self, const trek_fetch *fetch, trek_tensor **out)
{
    return trek_byte_images_get(&((idx_dataset *)self)->view, fetch, out);
}

static void idx_free(trek_dataset *self)
{
    trek_free(((idx_dataset *)self)->images.bytes);
    trek_free(((idx_dataset *)self)->labels.bytes);
}

static const trek_dataset_class idx_class = {
    .name = "idx", .size = sizeof(idx_dataset), .length = idx_length, .get = idx_get, .free = idx_free,
    .n_fields = 2, .fields = trek_image_fields,
};

static const trek_dataset_class mnist_class = {
    .name = "mnist", .size = sizeof(idx_dataset), .length = idx_length, .get = idx_get, .free = idx_free,
    .n_fields = 2, .fields = trek_image_fields,
};

static trek_status idx_fill(idx_dataset *set, const char *images, const char *labels)
{
    char text[TREK_SHAPE_TEXT];
    if (trek_idx_load(images, &set->images) != TREK_OK || trek_idx_load(labels, &set->labels) != TREK_OK)
        return trek_status_or(TREK_ERR_IO);
    const trek_shape *shape = &set->images.shape;
    if (set->images.type != 0x08 || shape->ndim < 3 || shape->ndim > 4)
        return trek_fail(TREK_ERR_FORMAT,
                         "%s: elements of type 0x%02x and shape %s; must be images of unsigned bytes (0x08), [n, h, w]", images,
                         set->images.type, trek_shape_format(*shape, text, sizeof text));
    if (set->labels.type != 0x08 || set->labels.shape.ndim != 1)
        return trek_fail(TREK_ERR_FORMAT,
                         "%s: elements of type 0x%02x and shape %s; must be labels of unsigned bytes (0x08), [n]",
                         labels, set->labels.type, trek_shape_format(set->labels.shape, text, sizeof text));
    if (shape->sizes[0] != set->labels.shape.sizes[0])
        return trek_fail(TREK_ERR_FORMAT, "dataset_mnist: %" PRId64 " images in %s, but %" PRId64 " labels in %s",
                         shape->sizes[0], images, set->labels.shape.sizes[0], labels);
    int64_t channels = shape->ndim == 4 ? shape->sizes[1] : 1;
    set->view.sample = trek_dims(channels, shape->sizes[shape->ndim - 2], shape->sizes[shape->ndim - 1]);
    set->view.pixels = set->images.bytes;
    set->view.labels = set->labels.bytes;
    set->view.pixel_stride = (size_t)trek_shape_numel(set->view.sample);
    set->view.label_stride = 1;
    return TREK_OK;
}

static trek_dataset *idx_new(const trek_dataset_class *klass, const char *images, const char *labels)
{
    trek_dataset *set = trek_dataset_new(klass);
    if (set && idx_fill((idx_dataset *)set, images, labels) != TREK_OK)
        trek_dataset_free(&set);
    return set;
}

trek_dataset *trek_dataset_idx(const char *images, const char *labels)
{
    if (!images || !labels) {
        trek_fail_missing("dataset_idx", images ? "path of labels" : "path of images");
        return NULL;
    }
    return idx_new(&idx_class, images, labels);
}

/* Returns the path of folder/name, plain or with .gz; "-idx" may be written ".idx", as in some copies. Returns NULL
 * and the reason if there is none. */
static char *find_file(const char *folder, const char *name)
{
    static const char *const endings[] = { "", ".gz" };
    int reason = ENOENT;
    for (int variant = 0; variant < 4; variant++) {
        char *joined = trek_path_join(folder, name);
        char *path = joined ? trek_format("%s%s", joined, endings[variant % 2]) : NULL;
        trek_free(joined);
        if (!path)
            return NULL;
        char *dash = strrchr(path, '/');
        dash = strstr(dash ? dash : path, "-idx");
        if (variant >= 2 && dash)
            *dash = '.';
        if (access(path, R_OK) == 0)
            return path;
        if (errno != ENOENT)
            reason = errno;
        trek_free(path);
    }
    char *shown = trek_path_join(folder, name);
    if (shown)
        trek_fail(TREK_ERR_IO, "dataset_mnist: neither %s nor %s.gz can be opened: %s", shown, shown, strerror(reason));
    trek_free(shown);
    return NULL;
}

trek_dataset *trek_dataset_mnist(const char *folder, trek_data_split split)
{
    if (!folder) {
        trek_fail_missing("dataset_mnist", "folder");
        return NULL;
    }
    if (split != TREK_DATA_SPLIT_TRAIN && split != TREK_DATA_SPLIT_TEST)
        return trek_fail_null(TREK_ERR_ARGUMENT,
                              "dataset_mnist: split: %d; must be TREK_DATA_SPLIT_TRAIN or TREK_DATA_SPLIT_TEST", (int)split);
    char *images = find_file(folder, split == TREK_DATA_SPLIT_TRAIN ? "train-images-idx3-ubyte" : "t10k-images-idx3-ubyte");
    char *labels = images ? find_file(folder, split == TREK_DATA_SPLIT_TRAIN ? "train-labels-idx1-ubyte"
                                      : "t10k-labels-idx1-ubyte") : NULL;
    trek_dataset *set = labels ? idx_new(&mnist_class, images, labels) : NULL;
    trek_free(images);
    trek_free(labels);
    return set;
}
