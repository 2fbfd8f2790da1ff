/* SPDX-License-Identifier: Apache-2.0 */
/* The images that examples learn: MNIST's files, or digits that the library generates. */
#ifndef TREK_EXAMPLES_DIGITS_H
#define TREK_EXAMPLES_DIGITS_H

#include <stdio.h>

#include "trek.h"

/* "image" f32 [n, 1, 28, 28] and "label" i64 [n]; the caller's. NULL and an error on failure. */
typedef struct digits {
    trek_dataset *train, *test;
    const char *source;
} digits;

static inline bool digits_has_file(const char *folder, const char *name, const char *ending, char *path, size_t size)
{
    int length = snprintf(path, size, "%s/%s%s", folder, name, ending);
    FILE *file = length > 0 && (size_t)length < size ? fopen(path, "rb") : NULL;
    if (file)
        fclose(file);
    return file != NULL;
}

static inline bool digits_find(const char *folder, const char *name, char *path, size_t size)
{
    return digits_has_file(folder, name, ".gz", path, size) || digits_has_file(folder, name, "", path, size);
}

/* Whether MNIST's files, gzip'd or plain, or those of its test alone, are in a folder. */
static inline bool digits_are_in(const char *folder)
{
    char path[4096];
    return digits_find(folder, "train-images-idx3-ubyte", path, sizeof path) ||
           digits_find(folder, "t10k-images-idx3-ubyte", path, sizeof path);
}

/* Opens the folder's files. If only the published test set exists, its first 8000 images are for training and the last 2000 for
 * testing. With NULL this number of digits is generated. */
static inline digits digits_open(const char *folder, int64_t n_train, int64_t n_test)
{
    char images[4096], labels[4096], path[4096];
    if (!folder)
        return (digits){ trek_dataset_digits(n_train, 1), trek_dataset_digits(n_test, 2), "drawn digits" };
    if (!digits_find(folder, "train-images-idx3-ubyte", path, sizeof path) &&
        digits_find(folder, "t10k-images-idx3-ubyte", images, sizeof images) &&
        digits_find(folder, "t10k-labels-idx1-ubyte", labels, sizeof labels)) {
        trek_dataset *whole = trek_dataset_idx(images, labels), *same = trek_dataset_retain(whole);
        return (digits){ trek_dataset_subset(whole, 0, 8000), trek_dataset_subset(same, 8000, 2000),
                         "MNIST's test images, 8000 to train with" };
    }
    trek_dataset *train = trek_dataset_mnist(folder, TREK_DATA_SPLIT_TRAIN); /* says what is missing */
    return (digits){ train, train ? trek_dataset_mnist(folder, TREK_DATA_SPLIT_TEST) : NULL, "MNIST" };
}

#endif
