/* SPDX-License-Identifier: Apache-2.0 */
/* CIFAR-10's binary version: records of one label and 3 x 32 x 32 bytes. */
#include <stdio.h>
#include <string.h>

#include "data/idx_internal.h"

#define RECORD (1 + 3 * 32 * 32)

typedef struct cifar10 {
    trek_dataset base;
    unsigned char *records;
    size_t length;
} cifar10;

static int64_t cifar10_length(const trek_dataset *self) { return (int64_t)(((const cifar10 *)self)->length / RECORD); }

static trek_status cifar10_get(trek_dataset *self, const int64_t *indices, int64_t n, trek_tensor **out)
{
    const cifar10 *set = (const cifar10 *)self;
    trek_byte_images view = { .pixels = set->records + 1, .labels = set->records, .pixel_stride = RECORD, .label_stride = RECORD,
                              .sample = trek_dims(3, 32, 32) };
    return trek_byte_images_get(&view, indices, n, out);
}

static void cifar10_free(trek_dataset *self) { trek_free(((cifar10 *)self)->records); }

static const trek_dataset_class cifar10_class = {
    .name = "cifar10", .size = sizeof(cifar10), .length = cifar10_length, .get = cifar10_get, .free = cifar10_free,
    .n_fields = 2, .fields = trek_image_fields,
};

static trek_status check_records(const char *path, const unsigned char *records, size_t length)
{
    if (length == 0 || length % RECORD != 0)
        return trek_fail(TREK_ERR_FORMAT, "%s: %zu bytes are no whole number of records of %d", path, length, RECORD);
    for (size_t i = 0; i < length; i += RECORD)
        if (records[i] > 9)
            return trek_fail(TREK_ERR_FORMAT, "%s: record %zu has label %d, not 0 .. 9", path, i / RECORD, records[i]);
    return TREK_OK;
}

static trek_status append_file(cifar10 *set, const char *path)
{
    unsigned char *records = NULL;
    size_t length = 0;
    trek_status status = trek_file_load(path, &records, &length);
    if (status == TREK_OK)
        status = check_records(path, records, length);
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

trek_dataset *trek_dataset_cifar10(const char *folder, trek_data_split split)
{
    if (!folder) {
        trek_fail_missing("dataset_cifar10", "a folder");
        return NULL;
    }
    if (split != TREK_TRAIN && split != TREK_TEST)
        return trek_fail_null(TREK_ERR_ARGUMENT, "dataset_cifar10: split %d is neither TREK_TRAIN nor TREK_TEST", (int)split);
    trek_dataset *set = trek_dataset_new(&cifar10_class);
    for (int k = 1; set && k <= (split == TREK_TRAIN ? 5 : 1); k++) {
        char name[32] = "test_batch.bin";
        if (split == TREK_TRAIN)
            snprintf(name, sizeof(name), "data_batch_%d.bin", k);
        char *path = trek_path_join(folder, name);
        if (!path || append_file((cifar10 *)set, path) != TREK_OK)
            trek_dataset_free(&set);
        trek_free(path);
    }
    return set;
}
