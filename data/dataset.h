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

/* A request for n samples, with the values that determine their random transforms.
 * A random number of a sample depends only on the seed, the epoch and the sample's index. The index is that of the dataset that
 * draws the number: a transform of a subset uses the subset's indices. So samples are the same with any number of threads, ranks
 * and processes, and after resuming. */
typedef struct trek_fetch {
    const int64_t *indices;    /* the indices of the samples, [n] */
    int64_t n;                 /* the number of samples */
    int64_t epoch;             /* the loader's epoch, >= 0; without a loader 0 */
    uint64_t seed;             /* the loader's seed; without a loader 0 */
    /* The indices of all samples of the batch of all ranks, [n_batch]. It is NULL if the requested samples are the whole
     * batch, or if the batch is not known. A loader sets it for datasets whose class needs_batch and for datasets that contain
     * one. */
    const int64_t *batch;
    int64_t n_batch;           /* the number of samples in `batch`; 0 if it is NULL */
    int64_t batch_first;       /* the position of indices[0] in `batch` */
} trek_fetch;

/* The class of a dataset: its functions and properties. */
typedef struct trek_dataset_class {
    const char *name;          /* the name of the class, such as "mnist" */
    size_t size;               /* the size of the whole struct in bytes */
    /* Returns the number of samples, which must never change. */
    int64_t (*length)(const trek_dataset *self);
    /* Fetches n >= 1 samples, whose indices are valid, and writes a new tensor [n, ...] in host memory to out[k] for each
     * field k. Several threads call it at once. Its variables belong to a scope that ends with the call. On failure it calls
     * trek_fail and returns the status; tensors that are already in `out` are then released. */
    trek_status (*get)(trek_dataset *self, const trek_fetch *fetch, trek_tensor **out);
    void (*free)(trek_dataset *self); /* frees the contents of the struct, which may be incomplete (zeros); may be NULL */
    int n_fields;              /* number of fields; 0 if each object has its own (trek_dataset_set_fields) */
    const char *const *fields; /* the names of the fields */
    /* The functions of a stream, which has them instead of length and get (data/stream.h). */
    const struct trek_stream_class *stream;
    bool needs_batch;          /* trek_fetch.batch must be set, because a sample depends on the other samples of its batch */
} trek_dataset_class;

/* The first member of every dataset. The fields may be read but not written. */
struct trek_dataset {
    const trek_dataset_class *klass;     /* the class */
    int n_fields;                        /* number of fields */
    const char *const *fields;           /* the names of the fields */
    struct trek_dataset_hidden *hidden;  /* internal */
};

/* Returns a new dataset of a class with one reference. The part of the struct after trek_dataset is filled with zeros.
 * Errors: ARGUMENT if the class is not a stream and lacks length or get. MEMORY. NULL is returned. */
TREK_API trek_dataset *trek_dataset_new(const trek_dataset_class *klass);
/* Sets the names of this object's fields, which are copied. It must be called before the dataset is first used.
 * Errors: ARGUMENT if the list is empty, or if a name is empty or occurs twice. MEMORY. */
TREK_API trek_status trek_dataset_set_fields(trek_dataset *dataset, const char *const *names, int n);
/* Adds a reference to the dataset and returns the dataset. NULL is allowed: NULL is returned. */
TREK_API trek_dataset *trek_dataset_retain(trek_dataset *dataset);
/* Gives one reference back and sets *dataset to NULL. NULL is allowed.
 * Errors: STATE if all references belong to loaders and subsets; no reference is given back then. */
TREK_API void trek_dataset_free(trek_dataset **dataset);

/* Returns the number of samples, or -1 for a stream. If `dataset` is NULL, it returns -1 and sets an error. */
TREK_API int64_t trek_dataset_length(const trek_dataset *dataset);
/* Returns the number of fields of a sample. */
TREK_API int trek_dataset_field_count(const trek_dataset *dataset);
/* Returns the name of a field, or NULL if `field` is out of range. */
TREK_API const char *trek_dataset_field_name(const trek_dataset *dataset, int field);
/* Returns the index of the field with this name.
 * Errors: ARGUMENT, with a list of the names, if the dataset has no such field; -1 is returned. */
TREK_API int trek_dataset_field(const trek_dataset *dataset, const char *name);

/* Fetches n samples by index, for epoch 0 and seed 0, and writes one tensor for each field to `out`. Each tensor is a new
 * reference, which the caller releases. On failure `out` holds NULLs.
 * Errors: ARGUMENT unless n >= 1 and all indices are valid. UNSUPPORTED for a stream. Errors of the dataset. */
TREK_API trek_status trek_dataset_get(trek_dataset *dataset, const int64_t *indices, int64_t n, trek_tensor **out);
/* Fetches samples as trek_dataset_get does, for any epoch and seed. A dataset that is made of others fetches from them with
 * this function.
 * Errors: as trek_dataset_get. ARGUMENT also if the epoch is negative or an index of the batch is not valid. */
TREK_API trek_status trek_dataset_fetch(trek_dataset *dataset, const trek_fetch *fetch, trek_tensor **out);
/* Returns one field of one sample as a batch of one, [1, ...], on `device`. The result belongs to the current scope. It serves
 * for predictions: trek_forward(model, trek_dataset_sample(set, 7, "image", device)). */
TREK_API trek_var *trek_dataset_sample(trek_dataset *dataset, int64_t index, const char *field, trek_device device);

/* -- Datasets of the library. These functions return NULL on failure.
 * Errors: IO, with the path and the reason, if a file is missing or cannot be read. FORMAT if a file does not have the
 * expected contents. MEMORY, ARGUMENT. -- */

/* The part of a dataset: the training set or the test set. */
typedef enum trek_data_split { TREK_DATA_SPLIT_TRAIN, TREK_DATA_SPLIT_TEST } trek_data_split;

/* Returns the dataset MNIST, or another dataset in its format, from the files of a folder. Its fields are "image", f32
 * [n, 1, 28, 28] with the byte divided by 255, and "label", i64 [n]. The files are train-images-idx3-ubyte and
 * train-labels-idx1-ubyte for TREK_DATA_SPLIT_TRAIN, t10k-... for TREK_DATA_SPLIT_TEST, plain or with .gz. */
TREK_API trek_dataset *trek_dataset_mnist(const char *folder, trek_data_split split);
/* Returns a dataset with the fields of trek_dataset_mnist from two IDX files of unsigned bytes, plain or compressed by gzip.
 * `images` is [n, h, w] (one channel) or [n, c, h, w], `labels` is [n]. */
TREK_API trek_dataset *trek_dataset_idx(const char *images, const char *labels);
/* Reads an IDX file as a tensor in host memory. Its dtype is u8 for unsigned bytes, i32 for signed integers of 8, 16 and 32
 * bits, f32 or f64.
 * Errors: FORMAT also for more than 8 dimensions. */
TREK_API trek_tensor *trek_idx_read(const char *path);

/* Returns a dataset of n generated images of digits, distorted and noisy, for machines without data. Its fields and shapes are
 * those of MNIST. Sample i depends only on `seed` and i, so a longer dataset begins with the samples of a shorter one. Use
 * another seed, or another subset, for testing. */
TREK_API trek_dataset *trek_dataset_digits(int64_t n, uint64_t seed);

/* Returns a dataset of the rows of tensors in memory: field k has the name names[k], and sample i is row i of tensors[k].
 * The tensors are retained, and the caller keeps its references. Tensors on GPUs are copied to the host.
 * Errors: SHAPE unless the sizes of dimension 0 are equal. */
TREK_API trek_dataset *trek_dataset_tensors(const char *const *names, trek_tensor *const *tensors, int n_fields);

/* Returns a dataset of the samples first, ..., first + count - 1 of another dataset, with indices from 0. It takes the other
 * dataset over.
 * Errors: ARGUMENT if the other dataset does not have all of them. */
TREK_API trek_dataset *trek_dataset_subset(trek_dataset *dataset, int64_t first, int64_t count);

/* Options of trek_dataset_text_windows. */
typedef struct trek_text_windows_opts {
    int64_t stride;            /* characters from the start of a window to the next start; default: window, no overlap */
} trek_text_windows_opts;

/* Returns a dataset of the windows of a text file, for language models of characters. Its fields are "input", i64 [n, window],
 * and "target", i64 [n, window], which is the text one character later. A character is a byte. Its number is its index in the
 * sorted list of the distinct bytes of the file. `opts` may be NULL.
 * Errors: FORMAT if the file is shorter than window + 1. */
TREK_API trek_dataset *trek_dataset_text_windows(const char *path, int64_t window, const trek_text_windows_opts *opts);
/* Returns the distinct characters of a dataset of text windows in the order of their numbers, and writes how many they are to
 * *size. The dataset may also be a subset, an index list or a cache of one. The list is valid as long as the dataset.
 * Errors: ARGUMENT for any other dataset; NULL is returned. */
TREK_API const unsigned char *trek_text_vocabulary(const trek_dataset *dataset, int *size);
/* Converts `count` characters of `text` to numbers and writes these to `ids`, [count].
 * Errors: ARGUMENT for a character that the file does not contain. */
TREK_API trek_status trek_text_encode(const trek_dataset *dataset, const char *text, int64_t count, int64_t *ids);

/* Returns the dataset CIFAR-10 from the binary files of a folder. Its fields are "image", f32 [n, 3, 32, 32] in [0, 1], and
 * "label", i64 [n]. The files are data_batch_1.bin, ..., data_batch_5.bin for TREK_DATA_SPLIT_TRAIN, and test_batch.bin for
 * TREK_DATA_SPLIT_TEST. */
TREK_API trek_dataset *trek_dataset_cifar10(const char *folder, trek_data_split split);

/* Returns the dataset CIFAR-100 from the binary files of a folder. Its fields are "image", as in trek_dataset_cifar10,
 * "label", i64 [n] in 0 .. 99, and "coarse", i64 [n] in 0 .. 19. The files are train.bin and test.bin. */
TREK_API trek_dataset *trek_dataset_cifar100(const char *folder, trek_data_split split);

/* Returns a dataset of the windows of files of token numbers. Its fields are "input" and "target", i64 [n, window], where the
 * target is one token later. Windows do not overlap and do not cross the end of a file. Numbers are little-endian, of 16 bits,
 * or of 32 bits if the file has a header that says so. A header has 1024 bytes and begins with 20240520 for 16 bits or
 * 20240801 for 32 bits. Files stay on disk and are read when samples are fetched.
 * Errors: FORMAT if no file has a whole window. */
TREK_API trek_dataset *trek_dataset_token_shards(const char *const *paths, int n_paths, int64_t window);

/* Options of trek_dataset_token_shards_with. */
typedef struct trek_token_shards_opts {
    int bits; /* size of a token number in files without a header: 16 or 32; default 16 */
} trek_token_shards_opts;

/* Returns a dataset as trek_dataset_token_shards does, with options. `opts` may be NULL. */
TREK_API trek_dataset *trek_dataset_token_shards_with(const char *const *paths, int n_paths, int64_t window,
                                                      const trek_token_shards_opts *opts);

TREK_END

#endif
