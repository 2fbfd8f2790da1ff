/* SPDX-License-Identifier: Apache-2.0 */
/* Data sets of images in the formats of MNIST and CIFAR. Errors are those of data/dataset.h. */
#ifndef TREK_DATA_IMAGE_SETS_H
#define TREK_DATA_IMAGE_SETS_H

#include "data/dataset.h"

TREK_BEGIN

/* Returns a dataset with the fields of trek_dataset_mnist from two IDX files of unsigned bytes, plain or compressed by gzip.
 * `images` is [n, h, w] (one channel) or [n, c, h, w], `labels` is [n]. */
TREK_API trek_dataset *trek_dataset_idx(const char *images, const char *labels);
/* Reads an IDX file as a tensor in host memory. Its dtype is u8 for unsigned bytes, i32 for signed integers of 8, 16 and 32
 * bits, f32 or f64.
 * Errors: FORMAT also for more than 8 dimensions. */
TREK_API trek_tensor *trek_idx_read(const char *path);
/* Returns the dataset CIFAR-10 from the binary files of a folder. Its fields are "image", f32 [n, 3, 32, 32] in [0, 1], and
 * "label", i64 [n]. The files are data_batch_1.bin, ..., data_batch_5.bin for TREK_DATA_SPLIT_TRAIN, and test_batch.bin for
 * TREK_DATA_SPLIT_TEST. */
TREK_API trek_dataset *trek_dataset_cifar10(const char *folder, trek_data_split split);
/* Returns the dataset CIFAR-100 from the binary files of a folder. Its fields are "image", as in trek_dataset_cifar10,
 * "label", i64 [n] in 0 .. 99, and "coarse", i64 [n] in 0 .. 19. The files are train.bin and test.bin. */
TREK_API trek_dataset *trek_dataset_cifar100(const char *folder, trek_data_split split);

TREK_END

#endif
