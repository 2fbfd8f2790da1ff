/* SPDX-License-Identifier: Apache-2.0 */
/* Datasets: samples with numbers, which are fetched as batches of named tensors.
 *
 * A dataset is a struct that begins with trek_dataset, with a constant class, as modules are. References to it are counted.
 * The caller that makes a dataset owns one reference. An object that takes the dataset over (a loader, a run, a subset) takes
 * that reference, also on failure. trek_dataset_retain makes another reference, for example so that two subsets can share a
 * dataset. */
#ifndef TREK_DATA_DATASET_H
#define TREK_DATA_DATASET_H

#include "autograd/var.h"

TREK_BEGIN

/* A dataset. */
typedef struct trek_dataset trek_dataset;

/* Adds a reference to the dataset and returns the dataset. NULL is allowed: NULL is returned. */
TREK_API trek_dataset *trek_dataset_retain(trek_dataset *dataset);
/* Gives one reference back and sets *dataset to NULL. NULL is allowed.
 * Errors: STATE if all references belong to loaders and subsets; no reference is given back then. */
TREK_API void trek_dataset_free(trek_dataset **dataset);

/* Returns the number of samples, or -1 for a stream. If `dataset` is NULL, it returns -1 and sets an error. */
TREK_API int64_t trek_dataset_length(const trek_dataset *dataset);

/* -- Datasets of the library. These functions return NULL on failure.
 * Errors: IO, with the path and the reason, if a file is missing or cannot be read. FORMAT if a file does not have the
 * expected contents. MEMORY, ARGUMENT. -- */

/* The part of a dataset: the training set or the test set. */
typedef enum trek_data_split { TREK_DATA_SPLIT_TRAIN, TREK_DATA_SPLIT_TEST } trek_data_split;

/* Returns the dataset MNIST, or another dataset in its format, from the files of a folder. Its fields are "image", f32
 * [n, 1, 28, 28] with the byte divided by 255, and "label", i64 [n]. The files are train-images-idx3-ubyte and
 * train-labels-idx1-ubyte for TREK_DATA_SPLIT_TRAIN, t10k-... for TREK_DATA_SPLIT_TEST, plain or with .gz. */
TREK_API trek_dataset *trek_dataset_mnist(const char *folder, trek_data_split split);

/* Returns a dataset of n generated images of digits, distorted and noisy, for machines without data. Its fields and shapes are
 * those of MNIST. Sample i depends only on `seed` and i, so a longer dataset begins with the samples of a shorter one. Use
 * another seed, or another subset, for testing. */
TREK_API trek_dataset *trek_dataset_digits(int64_t n, uint64_t seed);

/* Returns a dataset of the rows of tensors in memory: field k has the name names[k], and sample i is row i of tensors[k].
 * The tensors are retained, and the caller keeps its references. Tensors on GPUs are copied to the host.
 * Errors: SHAPE unless the sizes of dimension 0 are equal. */
TREK_API trek_dataset *trek_dataset_tensors(const char *const *names, trek_tensor *const *tensors, int n_fields);

TREK_END

#endif
