/* SPDX-License-Identifier: Apache-2.0 */
/* CIFAR-10's and CIFAR-100's binary versions: records of one label, or of a coarse and a fine one, and 3 x 32 x 32
 * bytes. */
#include <stdio.h>
#include <string.h>

#include "data/idx_internal.h"
#include "data/image_sets.h"

#define PIXELS (3 * 32 * 32)

typedef struct cifar {
    trek_dataset base;
    unsigned char *records;
    size_t length;
    size_t labels, record; /* bytes of each: labels + PIXELS */
} cifar;

static int64_t cifar_length(const trek_dataset *self)
{
    const cifar *set = (const cifar *)self;
    return (int64_t)(set->length / set->record);
}

static trek_status cifar_get(trek_dataset *self, const trek_fetch *fetch, trek_tensor **out)
{
    const cifar *set = (const cifar *)self;
    trek_byte_images view = { .pixels = set->records + set->labels, .labels = set->records + set->labels - 1,
                              .pixel_stride = set->record, .label_stride = set->record, .sample = trek_dims(3, 32, 32) };
    trek_status status = trek_byte_images_get(&view, fetch, out);
    if (status != TREK_OK || set->labels == 1)
        return status;
    out[2] = trek_dataset_tensor(fetch->n, trek_dims_none(), TREK_I64);
    if (!out[2])
        return trek_status_or(TREK_ERR_MEMORY);
    for (int64_t i = 0; i < fetch->n; i++)
        ((int64_t *)trek_tensor_data(out[2]))[i] = set->records[(size_t)fetch->indices[i] * set->record];
    return TREK_OK;
}

static void cifar_free(trek_dataset *self) { trek_free(((cifar *)self)->records); }

static const char *const cifar100_fields[3] = { "image", "label", "coarse" };

static const trek_dataset_class cifar10_class = {
    .name = "cifar10", .size = sizeof(cifar), .length = cifar_length, .get = cifar_get, .free = cifar_free,
    .n_fields = 2, .fields = trek_image_fields,
};
static const trek_dataset_class cifar100_class = {
    .name = "cifar100", .size = sizeof(cifar), .length = cifar_length, .get = cifar_get, .free = cifar_free,
    .n_fields = 3, .fields = cifar100_fields,
};

static trek_status check_records(const cifar *set, const char *path, const unsigned char *records, size_t length)
{
    if (length == 0 || length % set->record != 0)
        return trek_fail(TREK_ERR_FORMAT, "%s: %zu bytes; must be a whole number of records of %zu bytes", path, length,
                         set->record);
    for (size_t i = 0; i < length; i += set->record)
        for (size_t k = 0; k < set->labels; k++) {
            int most = set->labels == 1 ? 9 : k == 0 ? 19 : 99;
            if (records[i + k] > most)
                return trek_fail(TREK_ERR_FORMAT, "%s: label of record %zu: %d; must be 0 .. %d", path, i / set->record,
                                 records[i + k], most);
        }
    return TREK_OK;
}

static trek_status append_file(cifar *set, const char *path)
{
    unsigned char *records = NULL;
    size_t length = 0;
    trek_status status = trek_file_load(path, true, &records, &length);
    if (status == TREK_OK)
        status = check_records(set, path, records, length);
    unsigned char *grown = status == TREK_OK ? trek_realloc(set->records, set->length + length) : NULL;
    if (grown) {
        memcpy(grown + set->length, records, length);
        set->records = grown;
        set->length += length;
    } else if (status == TREK_OK) {
        status = TREK_ERR_MEMORY;
    }
    trek_free(records);
    return status;
}

/* Reads the file of that name, or the files numbered from 1 on. */
static trek_dataset *cifar_new(const trek_dataset_class *klass, size_t labels, const char *folder, const char *name, int files)
{
    trek_dataset *set = trek_dataset_new(klass);
    if (set) {
        ((cifar *)set)->labels = labels;
        ((cifar *)set)->record = labels + PIXELS;
    }
    for (int k = 1; set && k <= files; k++) {
        char numbered[32];
        if (files > 1)
            snprintf(numbered, sizeof numbered, "%s_%d.bin", name, k);
        else
            snprintf(numbered, sizeof numbered, "%s.bin", name);
        char *path = trek_path_join(folder, numbered);
        if (!path || append_file((cifar *)set, path) != TREK_OK)
            trek_dataset_free(&set);
        trek_free(path);
    }
    return set;
}

static bool may_read(const char *function, const char *folder, trek_data_split split)
{
    if (!folder)
        trek_fail_missing(function, "folder");
    else if (split != TREK_DATA_SPLIT_TRAIN && split != TREK_DATA_SPLIT_TEST)
        trek_fail(TREK_ERR_ARGUMENT, "%s: split: %d; must be TREK_DATA_SPLIT_TRAIN or TREK_DATA_SPLIT_TEST", function,
                  (int)split);
    return folder && (split == TREK_DATA_SPLIT_TRAIN || split == TREK_DATA_SPLIT_TEST);
}

trek_dataset *trek_dataset_cifar10(const char *folder, trek_data_split split)
{
    if (!may_read("dataset_cifar10", folder, split))
        return NULL;
    return split == TREK_DATA_SPLIT_TRAIN ? cifar_new(&cifar10_class, 1, folder, "data_batch", 5)
                               : cifar_new(&cifar10_class, 1, folder, "test_batch", 1);
}

trek_dataset *trek_dataset_cifar100(const char *folder, trek_data_split split)
{
    if (!may_read("dataset_cifar100", folder, split))
        return NULL;
    return cifar_new(&cifar100_class, 2, folder, split == TREK_DATA_SPLIT_TRAIN ? "train" : "test", 1);
}
